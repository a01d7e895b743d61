//! Requests and responses about backups of the metadata.

use crate::client::{Client, ClientError};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How to back the metadata up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BackUp {
    /// A directory, absolute, on the server's machine; created if missing. Without it: `metadata`
    /// in the data directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// A backup of the metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Backup {
    /// Its file, on the server's machine.
    pub path: String,
    /// The pool's UUID.
    pub pool: String,
    /// A later backup of the pool has a larger one.
    pub sequence: u64,
    /// When it was made.
    pub made: Timestamp,
    /// Rows of the catalog.
    pub rows: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Physical volumes that got a copy; none when it does not fit there.
    pub pvs: u32,
}

/// Backups of the metadata.
impl Client {
    /// Backs the metadata up.
    pub fn back_up(&self, how: &BackUp) -> Result<Backup, ClientError> {
        self.send(hyper::Method::POST, "/pool/backups", how)
    }
}
