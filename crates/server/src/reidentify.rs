//! New identities for a pool that is a copy of another one. The engine changes the identities of
//! volumes and snapshots; this module changes those in the server's own files.
//!
//! A run has three steps:
//!
//! - The engine's transaction comes first. It keeps a table of the old and the new identities.
//! - Then the files are changed, each as a whole. A second run of this step changes nothing more.
//! - Only then the old identities are forgotten.
//!
//! So a run that was cut short anywhere in between is completed by the next run, or by the next
//! start of the server.

use crate::atomic_file::DurableFile;
use crate::backups::Backups;
use crate::clones::CLONE;
use crate::convert::error_body;
use crate::{data_directory, files, iscsi, schedule, world};
use hindcast_api::{ErrorBody, ErrorKind};
use hindcast_engine::disk::{Dir, FileDir};
use hindcast_engine::pool::{Pool, PoolOptions, REIDENTIFYING, Reidentification};
use hindcast_engine::{Error, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use uuid::Uuid;

/// New identities, by the old ones.
type Identities = BTreeMap<Uuid, Uuid>;

/// What a pool has that initiators know by an identity, or by a name.
#[derive(Debug, Default, Serialize)]
pub struct Identified {
    /// An earlier run was cut short. Before it is ended nothing else is known.
    pub unfinished: bool,
    /// Paths of the physical volumes: whether they are copies, too, only people know.
    pub pvs: Vec<String>,
    /// Volumes.
    pub volumes: Vec<Identity>,
    /// Snapshots, by their addresses.
    pub snapshots: Vec<Identity>,
    /// Files and block devices that targets export. They lie outside of the pool.
    pub files: Vec<String>,
    /// iSCSI names of targets that a copy of the pool has, too.
    pub targets: Vec<String>,
    /// Schedules.
    pub schedules: Vec<String>,
}

/// What one thing is known by.
#[derive(Debug, Serialize)]
pub struct Identity {
    /// Its name or address.
    pub name: String,
    /// The identity that it had, or has as long as nothing was changed.
    pub old: String,
    /// The identity that it has now. `None`: nothing was changed.
    pub new: Option<String>,
}

/// What [`reidentify`] did.
#[derive(Debug, Serialize)]
pub struct Reidentified {
    /// It has ended an earlier run that was cut short.
    pub resumed: bool,
    /// What the pool has now.
    pub now: Identified,
    /// The file of the backup of the metadata that was made in the end, in the data directory.
    pub backup: Option<String>,
}

/// What [`reidentify`] would change. Nothing is written.
pub fn survey_identities(data: &Path) -> std::result::Result<Identified, ErrorBody> {
    let dir = directory(data)?;
    match Pool::open_in_memory(dir.clone(), world::real(), PoolOptions::default()) {
        Ok(pool) => identified(&dir, &pool, None).map_err(error_body),
        Err(error) if is_unfinished(&error) => Ok(Identified { unfinished: true, ..Identified::default() }),
        Err(error) => Err(error_body(error)),
    }
}

/// Gives all volumes, snapshots and exported files of the pool in `data` identities of their own,
/// or ends a run that was cut short. `keep` backups of the metadata are kept.
///
/// [`ErrorKind::Busy`] when a server has the pool open. Where the server's files can't be read
/// nothing is changed.
pub fn reidentify(data: &Path, keep: usize) -> std::result::Result<Reidentified, ErrorBody> {
    let dir = directory(data)?;
    let opened = Pool::open(dir.clone(), world::real(), PoolOptions::default());
    let (identities, resumed) = match opened {
        Ok(pool) => (begin(&dir, pool)?, false),
        Err(error) if is_unfinished(&error) => (end(&dir).map_err(error_body)?, true),
        Err(error) => return Err(error_body(error)),
    };
    let finished = || {
        let pool = Pool::open(dir.clone(), world::real(), PoolOptions::default())?;
        let now = identified(&dir, &pool, Some(&identities))?;
        pool.close()?;
        let backup = Backups::open(data, keep, None).make(&pool, None)?.file;
        Ok(Reidentified { resumed, now, backup })
    };
    finished().map_err(|error: Error| {
        let mut body = error_body(error);
        body.message =
            format!("all identities are new, but the backup of the metadata failed: {}", body.message);
        body
    })
}

/// Opens the pool. If a run was cut short it is ended first.
pub(crate) fn open(dir: &Arc<dyn Dir>, options: &PoolOptions) -> Result<Arc<Pool>> {
    match Pool::open(dir.clone(), world::real(), options.clone()) {
        Err(error) if is_unfinished(&error) => {
            tracing::warn!("`hindcast pool reidentify` was interrupted; the server completes it");
            end(dir)?;
            Pool::open(dir.clone(), world::real(), options.clone())
        }
        opened => opened,
    }
}

/// Does an opening of the pool fail only because a run was cut short?
fn is_unfinished(error: &Error) -> bool {
    error.to_string().starts_with(REIDENTIFYING)
}

/// Ends a run that was cut short, if there is one; the new identities, by the old ones.
fn end(dir: &Arc<dyn Dir>) -> Result<Identities> {
    Reidentification::resume(&**dir)?.map_or_else(|| Ok(Identities::new()), |begun| complete(dir, begun))
}

fn directory(data: &Path) -> std::result::Result<Arc<dyn Dir>, ErrorBody> {
    let dir: Arc<dyn Dir> = Arc::new(FileDir::new(data));
    match data_directory::exists(&*dir)? {
        true => Ok(dir),
        false => Err(data_directory::no_pool(data, "")),
    }
}

/// Changes everything, in order.
fn begin(dir: &Arc<dyn Dir>, pool: Arc<Pool>) -> std::result::Result<Identities, ErrorBody> {
    // What can't be read can't be changed, and its owner should decide before anything else is.
    let damaged = files::check_files(dir).map_err(error_body)?;
    if let Some(damaged) = damaged.into_iter().find(|file| !iscsi::is_lu_file(&file.name)) {
        let message = format!("give new identities: {}", damaged.why);
        return Err(ErrorBody { kind: ErrorKind::Corrupt, message });
    }
    let begun = pool.reidentify(&[CLONE]).map_err(error_body)?;
    complete(dir, begun).map_err(error_body)
}

/// Changes the server's files, and forgets the old identities. Each step can be done again.
fn complete(dir: &Arc<dyn Dir>, begun: Reidentification) -> Result<Identities> {
    let identities = begun.identities().clone();
    rewrite(dir, iscsi::STORED, &|content| iscsi::renew(content, &identities))?;
    rewrite(dir, schedule::STORED, &|content| schedule::renew(content, &identities))?;
    // Registrations and reservations are those of the original's initiators.
    for name in lu_files(dir)? {
        DurableFile::new(dir.clone(), name, iscsi::LU_KIND, iscsi::LU_VERSION).remove()?;
    }
    begun.end()?;
    Ok(identities)
}

fn rewrite(
    dir: &Arc<dyn Dir>,
    (name, kind, version): (&str, &'static str, u32),
    renew: &dyn Fn(&[u8]) -> Result<Vec<u8>>,
) -> Result<()> {
    let file = DurableFile::new(dir.clone(), name, kind, version);
    match file.load()? {
        Some(content) => file.save(&renew(&content)?),
        None => Ok(()),
    }
}

fn lu_files(dir: &Arc<dyn Dir>) -> Result<Vec<String>> {
    let mut names = dir.list().map_err(|e| Error::io("list the data directory", e))?;
    names.retain(|name| iscsi::is_lu_file(name));
    Ok(names)
}

/// What the pool has; with the old identities, if they were changed.
fn identified(dir: &Arc<dyn Dir>, pool: &Pool, changed: Option<&Identities>) -> Result<Identified> {
    let olds = changed.map(|all| all.iter().map(|(old, new)| (*new, *old)).collect::<Identities>());
    let identity = |name: String, now: &Uuid| match &olds {
        None => Identity { name, old: now.to_string(), new: None },
        Some(olds) => {
            Identity { name, old: olds.get(now).unwrap_or(now).to_string(), new: Some(now.to_string()) }
        }
    };
    let volumes = pool.volumes();
    let targets = iscsi::names_and_files(dir, &volumes)?;
    Ok(Identified {
        unfinished: false,
        pvs: pool.pvs().into_iter().map(|pv| pv.path).collect(),
        volumes: volumes.iter().map(|v| identity(v.name.clone(), &v.uuid)).collect(),
        snapshots: pool
            .all_snapshots()
            .iter()
            .map(|s| identity(format!("{}@{}", s.volume, s.name), &s.uuid))
            .collect(),
        files: targets.1,
        targets: targets.0,
        schedules: schedule::names(dir)?,
    })
}

#[cfg(test)]
mod tests;
