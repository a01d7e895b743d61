//! The lock of a data directory: only one process can have a pool open.

use crate::disk::Dir;
use crate::error::{Error, ErrorKind, Result};

pub(crate) const LOCK_FILE: &str = "pool.lock";

pub(crate) fn lock(dir: &dyn Dir) -> Result<Box<dyn Send + Sync>> {
    locked(dir.lock(LOCK_FILE))
}

/// Converts the result of locking the pool to a result of the engine.
pub(crate) fn locked(result: std::io::Result<Box<dyn Send + Sync>>) -> Result<Box<dyn Send + Sync>> {
    result.map_err(|e| match e.kind() {
        std::io::ErrorKind::WouldBlock => {
            Error::new(ErrorKind::Busy, "lock the pool: another process has it open")
        }
        _ => Error::io("lock the pool", e),
    })
}
