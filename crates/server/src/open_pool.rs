//! Opens the pool of a data directory. It creates a pool only if the operator asked for that.

use crate::config::{Config, Creation};
use crate::convert::error_body;
use crate::data_directory::{exists, no_pool};
use crate::settings::Salvaging;
use crate::{reidentify, world};
use hindcast_api::{ErrorBody, ErrorKind, Size};
use hindcast_engine::disk::{Dir, FileDir};
use hindcast_engine::pool::{DataReport, JOURNAL_DAMAGED, Pool, PoolOptions, PvSpec};
use hindcast_engine::salvage::SalvageOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// File name of the first physical volume of a new pool.
const FIRST_PV: &str = "pv-0.img";

/// Opens the readable data of the damaged pool in `data`, read-only. It writes to no part of the
/// pool. If the catalog can't be opened, the newest backup in the data directory replaces it.
pub fn salvage(data: &Path, how: &Salvaging, options: PoolOptions) -> Result<Arc<Pool>, ErrorBody> {
    salvage_bound(data, how, options, &[])
}

/// Opens the readable data of the damaged pool in `data`, as [`salvage`] does. No symbolic link
/// leads an image out of the directories `allowed`.
pub(crate) fn salvage_bound(
    data: &Path,
    how: &Salvaging,
    options: PoolOptions,
    allowed: &[PathBuf],
) -> Result<Arc<Pool>, ErrorBody> {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let text = |path: &Path| absolute(path).to_string_lossy().into_owned();
    let directory = absolute(data).join(crate::backups::DIRECTORY);
    let names = FileDir::new(&directory).list().unwrap_or_default();
    let options = SalvageOptions {
        pool: options,
        from: how.from.as_deref().map(text),
        backups: names.iter().map(|name| text(&directory.join(name))).collect(),
        moved: how.moved.iter().map(|moved| (moved.old.clone(), moved.new.clone())).collect(),
    };
    let dir = FileDir::new(data).bound(allowed);
    Pool::open_salvage(Arc::new(dir), world::real(), options).map_err(error_body)
}

/// Opens the readable data of a damaged pool for the server, and logs the losses.
fn open_salvage(config: &Config, how: &Salvaging) -> Result<Arc<Pool>, ErrorBody> {
    tracing::warn!(data = %config.data.display(), "opening the readable data of the pool, READ-ONLY, for salvage");
    if !config.data.is_dir() {
        return Err(no_pool(&config.data, ""));
    }
    let pool = salvage_bound(&config.data, how, config.options.clone(), &config.allowed)?;
    if let Some(found) = pool.salvage() {
        for finding in &found.findings {
            tracing::warn!(code = finding.code, object = finding.object, "{}", finding.detail);
        }
        for doubt in &found.doubts {
            tracing::error!("the data that clients read may be wrong: {doubt}");
        }
    }
    Ok(pool)
}

/// Opens the pool. If there is none, it creates one with `--create`. Without `--create` it fails
/// and writes nothing.
pub(crate) fn open(config: &Config) -> Result<Arc<Pool>, ErrorBody> {
    let dir: Arc<dyn Dir> = Arc::new(FileDir::new(&config.data).bound(&config.allowed));
    if let Some(how) = &config.salvage {
        return open_salvage(config, how);
    }
    // Before anything is locked: the lock is a file.
    let exists = exists(&*dir)?;
    if config.force_stale {
        if !exists {
            return Err(no_pool(&config.data, ""));
        }
        tracing::warn!(
            data = %config.data.display(),
            "opening the pool READ-ONLY BY FORCE: if its parts are of different times, the data that clients read may be wrong"
        );
        return Pool::open_read_only(dir, world::real(), config.options.clone()).map_err(error_body);
    }
    if !exists {
        if !config.create {
            return Err(no_pool(&config.data, " --create creates a new pool"));
        }
        FileDir::create(&config.data).map_err(|e| ErrorBody {
            kind: ErrorKind::Io,
            message: format!("create data directory {}: {e}", config.data.display()),
        })?;
        create(&dir, &config.data, &config.creation)?;
    } else if !config.creation.given.is_empty() {
        tracing::warn!(
            options = config.creation.given.join(" "),
            "the pool exists: options for a new pool are ignored"
        );
    }
    tracing::info!(data = %config.data.display(), "opening the pool");
    let pool = reidentify::open(&dir, &config.options).map_err(|e| {
        let mut body = error_body(e);
        if body.message.starts_with(JOURNAL_DAMAGED) {
            body.message += "; restore the files if you can; --accept-journal-loss opens the pool without the lost writes";
        }
        body
    })?;
    if let Some(loss) = pool.journal_loss() {
        tracing::error!("the pool was opened without a part of the journal: {loss}");
    }
    Ok(pool)
}

fn create(dir: &Arc<dyn Dir>, path: &Path, creation: &Creation) -> Result<(), ErrorBody> {
    let free = free_space(path)?;
    let size = match creation.pool_size {
        Some(size) => {
            if size > free {
                tracing::warn!(
                    pool = %Size(size),
                    free = %Size(free),
                    "the pool is larger than the free space of its file system: writes may fail before the pool is full"
                );
            }
            size
        }
        None => default_pool_size(free, creation.config.journal_size, creation.config.extent_size)
            .ok_or_else(|| ErrorBody {
                kind: ErrorKind::NoSpace,
                message: format!(
                    "create a pool in {}: {} are free, which is too little for a journal of {} and data; give a smaller --journal-size or --pool-size",
                    path.display(),
                    Size(free),
                    Size(creation.config.journal_size)
                ),
            })?,
    };
    tracing::info!(
        data = %path.display(),
        size = %Size(size),
        journal = %Size(creation.config.journal_size),
        "creating a pool"
    );
    let pv = PvSpec { path: FIRST_PV.into(), size: Some(size), force: false };
    let Creation { config, placement, features, .. } = creation;
    Pool::create_with_features(dir.clone(), &world::real(), config, *placement, &[pv], features.as_deref())
        .map_err(error_body)
}

/// Returns the default size of a pool: four fifths of the space that the journal leaves, in whole
/// extents. `None`: that is too small for a pool.
fn default_pool_size(free: u64, journal: u64, extent: u64) -> Option<u64> {
    let share = free.saturating_sub(journal) / 5 * 4;
    let size = share - share % extent.max(1);
    // The label takes some of the first extent.
    (size >= 4 * extent).then_some(size)
}

fn free_space(path: &Path) -> Result<u64, ErrorBody> {
    let stat = rustix::fs::statvfs(path).map_err(|e| ErrorBody {
        kind: ErrorKind::Io,
        message: format!("determine the free space of {}: {e}", path.display()),
    })?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Verifies all data in place of a closed pool with its sums. It writes nothing. `None` if the pool
/// has no sums. `progress` gets (bytes done, bytes of all).
pub fn verify_data(
    dir: Arc<dyn Dir>,
    progress: &mut dyn FnMut(u64, u64),
) -> hindcast_engine::Result<Option<DataReport>> {
    Pool::verify_data(dir, world::real(), progress)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn the_default_size_leaves_room_and_is_whole_extents() {
        const G: u64 = 1 << 30;
        let size = default_pool_size(101 * G + 12345, G, 4 << 20).unwrap();
        assert!(size <= 80 * G + 12345 && size > 79 * G, "{size}");
        assert_eq!(size % (4 << 20), 0);
        assert_eq!(default_pool_size(G, G, 4 << 20), None);
        assert_eq!(default_pool_size(0, G, 4 << 20), None);
    }

    /// An older data directory is refused. By force it is shown, and stays unchanged.
    #[test]
    fn an_older_directory_opens_by_force_only() {
        let tmp = tempfile::tempdir().unwrap();
        let config = |directory: &Path, force: &[&str]| {
            let size = ["--pool-size", "64M", "--journal-size", "16M"];
            let data = ["hindcast", "--data", directory.to_str().unwrap()];
            let said = data.iter().chain(&size).chain(force).copied();
            Line::try_parse_from(said).unwrap().settings.resolve().unwrap()
        };
        let (now, older) = (tmp.path().join("now"), tmp.path().join("older"));
        drop(open(&config(&now, &["--create"])).unwrap());
        std::fs::create_dir(&older).unwrap();
        for entry in std::fs::read_dir(&now).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), older.join(entry.file_name())).unwrap();
        }
        drop(open(&config(&now, &[])).unwrap());
        std::fs::copy(now.join(FIRST_PV), older.join(FIRST_PV)).unwrap();
        let refused = open(&config(&older, &[])).map(drop).unwrap_err();
        assert!(refused.message.contains("this data directory is older"), "{}", refused.message);
        let pool = open(&config(&older, &["--force-stale"])).unwrap();
        assert!(pool.health().has("poisoned"));
        drop(pool);
        assert!(open(&config(&older, &[])).is_err(), "it is as old as before");
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        settings: crate::settings::Settings,
    }

    #[test]
    fn free_space_is_known() {
        assert!(free_space(Path::new("/")).unwrap() > 0);
        assert!(free_space(Path::new("/nonexistent")).is_err());
    }
}
