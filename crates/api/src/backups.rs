//! Requests and responses about backups of the metadata.

use crate::client::{Client, ClientError};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Request for a backup of the pool's metadata.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BackUp {
    /// Absolute path of the directory for the backup, on the server's machine. The server creates
    /// the directory if it does not exist. Absent: `metadata` in the data directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// A backup of the pool's metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Backup {
    /// Path of the backup's file, on the server's machine.
    pub path: String,
    /// UUID of the pool.
    pub pool: String,
    /// Number of the backup. A later backup of the pool has a larger number.
    pub sequence: u64,
    /// Time at which the backup was made.
    pub made: Timestamp,
    /// Number of rows of the catalog in the backup.
    pub rows: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Number of physical volumes that hold a copy of the backup. A physical volume gets a copy if
    /// the backup fits in its reserved space.
    pub pvs: u32,
}

/// Requests about backups of the metadata.
impl Client {
    /// Backs up the pool's metadata.
    pub fn back_up(&self, how: &BackUp) -> Result<Backup, ClientError> {
        self.send(hyper::Method::POST, "/pool/backups", how)
    }
}
