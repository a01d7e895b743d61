//! The data directory: whether it holds a pool, and the server's own files in it.

use crate::backups::DIRECTORY;
use crate::convert::error_body;
use hindcast_api::{ErrorBody, ErrorKind};
use hindcast_engine::disk::{Dir, FileDir, OverlayDir};
use hindcast_engine::pool::Pool;
use std::path::Path;
use std::sync::Arc;

/// Is there a pool? What a creation that was cut short left behind is none.
pub(crate) fn exists(dir: &dyn Dir) -> Result<bool, ErrorBody> {
    match Pool::exists(dir).map_err(error_body) {
        Err(e) if e.kind == ErrorKind::NotFound => Ok(false),
        result => result,
    }
}

/// A mount point without its file system is an empty directory. A new pool there would take the
/// room of another file system, and clients would find their volumes gone.
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

/// Where the server's own files are: targets, schedules, states of logical units. Of a pool that is
/// only shown they stay as they are, whatever it seems to lack.
pub(crate) fn settings_of(pool: &Pool, data: &Path) -> Arc<dyn Dir> {
    let files: Arc<dyn Dir> = Arc::new(FileDir::new(data));
    match pool.is_only_shown() {
        true => Arc::new(OverlayDir::new(files)),
        false => files,
    }
}
