//! New identities for a pool that is a copy of another one. The engine changes the identities of
//! volumes and snapshots; this module changes those in the server's own files.
//!
//! A run has three steps:
//!
//! - The engine's transaction changes its identities. It stores a table of the old and the new
//!   ones.
//! - The server's files are changed, each as a whole. A repetition of this step changes
//!   nothing more.
//! - The old identities are forgotten.
//!
//! So the next run, or the next start of the server, completes a run that was interrupted anywhere.

use crate::atomic_file::DurableFile;
use crate::backups::Backups;
use crate::clones::CLONE;
use crate::convert::error_body;
use crate::{data_directory, files, groups, iscsi, schedule, views, world};
use hindcast_api::{ErrorBody, ErrorKind};
use hindcast_engine::disk::{Dir, FileDir};
use hindcast_engine::pool::{Pool, PoolOptions, REIDENTIFYING, Reidentification};
use hindcast_engine::{Error, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use uuid::Uuid;

/// New UUIDs, by the old ones.
type Identities = BTreeMap<Uuid, Uuid>;

/// The objects of a pool that initiators know by an identity or a name.
#[derive(Debug, Default, Serialize)]
pub struct Identified {
    /// Whether an earlier run was interrupted. Then the other fields are empty until a run
    /// completes it.
    pub unfinished: bool,
    /// Paths of the physical volumes. Only the operator knows whether they are copies, too.
    pub pvs: Vec<String>,
    /// Volumes.
    pub volumes: Vec<Identity>,
    /// Snapshots, by their addresses.
    pub snapshots: Vec<Identity>,
    /// Files and block devices that targets export. They are outside of the pool.
    pub files: Vec<String>,
    /// iSCSI names of targets that a copy of the pool also has.
    pub targets: Vec<String>,
    /// Names of schedules.
    pub schedules: Vec<String>,
}

/// The identity of one object.
#[derive(Debug, Serialize)]
pub struct Identity {
    /// Name or address of the object.
    pub name: String,
    /// UUID before the run, or the current UUID if nothing was changed.
    pub old: String,
    /// UUID after the run. `None`: nothing was changed.
    pub new: Option<String>,
}

/// Result of [`reidentify`].
#[derive(Debug, Serialize)]
pub struct Reidentified {
    /// Whether the run completed an earlier run that was interrupted.
    pub resumed: bool,
    /// The objects of the pool after the run.
    pub now: Identified,
    /// File name of the final backup of the metadata, which is in the data directory's directory of
    /// backups. `None`: there is none.
    pub backup: Option<String>,
}

/// Returns what [`reidentify`] would change. It writes nothing.
pub fn survey_identities(data: &Path) -> std::result::Result<Identified, ErrorBody> {
    let dir = directory(data)?;
    match Pool::open_in_memory(dir.clone(), world::real(), PoolOptions::default()) {
        Ok(pool) => identified(&dir, &pool, None).map_err(error_body),
        Err(error) if is_unfinished(&error) => Ok(Identified { unfinished: true, ..Identified::default() }),
        Err(error) => Err(error_body(error)),
    }
}

/// Gives all volumes, snapshots and exported files of the pool in `data` new UUIDs, or completes a
/// run that was interrupted. `keep` backups of the metadata are kept.
///
/// Returns [`ErrorKind::Busy`] if a server has the pool open. If the server's files can't be read,
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

/// Opens the pool. It completes an interrupted run first.
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

/// Returns whether the opening of a pool failed only because a run was interrupted.
fn is_unfinished(error: &Error) -> bool {
    error.to_string().starts_with(REIDENTIFYING)
}

/// Completes an interrupted run, if there is one. Returns the new UUIDs, by the old ones.
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

/// Makes all changes, in order.
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

/// Changes the server's files, and forgets the old UUIDs. Each step can be repeated.
fn complete(dir: &Arc<dyn Dir>, begun: Reidentification) -> Result<Identities> {
    let identities = begun.identities().clone();
    rewrite(dir, iscsi::STORED, &|content| iscsi::renew(content, &identities))?;
    rewrite(dir, schedule::STORED, &|content| schedule::renew(content, &identities))?;
    rewrite(dir, groups::STORED, &|content| groups::renew(content, &identities))?;
    rewrite(dir, views::STORED, &|content| views::renew(content, &identities))?;
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

/// Returns the objects of the pool, with the old UUIDs if they were changed.
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
