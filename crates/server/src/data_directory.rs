//! The data directory: whether it holds a pool, and the server's own files in it.

use crate::backups::DIRECTORY;
use crate::convert::error_body;
use hindcast_api::{ErrorBody, ErrorKind};
use hindcast_engine::disk::{Dir, FileDir, OverlayDir};
use hindcast_engine::pool::Pool;
use std::path::Path;
use std::sync::Arc;

/// Returns whether the directory holds a pool. The files of an interrupted creation are no pool.
pub(crate) fn exists(dir: &dyn Dir) -> Result<bool, ErrorBody> {
    match Pool::exists(dir).map_err(error_body) {
        Err(e) if e.kind == ErrorKind::NotFound => Ok(false),
        result => result,
    }
}

/// Returns the error for a data directory without a pool. A mount point without its file system is
/// an empty directory. A new pool there would fill another file system, and clients would not find
/// their volumes.
pub(crate) fn no_pool(path: &Path, advice: &str) -> ErrorBody {
    let shown = path.display();
    let lost = path.join(DIRECTORY).is_dir();
    let message = if lost {
        format!(
            "open the pool in {shown}: its catalog is lost, but backups of it exist; see `hindcast restore-metadata --data {shown}`"
        )
    } else {
        format!("open the pool in {shown}: the directory holds no pool; is the file system mounted?{advice}")
    };
    ErrorBody { kind: ErrorKind::NotFound, message }
}

/// Returns the directory of the server's own files: targets, schedules and states of logical units.
/// If the pool is only shown, changes of these files do not reach the disk.
pub(crate) fn settings_of(pool: &Pool, data: &Path) -> Arc<dyn Dir> {
    let files: Arc<dyn Dir> = Arc::new(FileDir::new(data));
    match pool.is_only_shown() {
        true => Arc::new(OverlayDir::new(files)),
        false => files,
    }
}
