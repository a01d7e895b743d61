//! Who uses the volumes: connections over NBD and sessions over iSCSI.

use crate::client::{Client, ClientError, segment};
use crate::named::named;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

named! {
    /// A protocol by which clients reach volumes.
    pub enum Protocol {
        /// Network block device. Each connection is a client.
        Nbd = "nbd",
        /// SCSI over TCP. Each session is a client.
        Iscsi = "iscsi",
    }
}

/// A client that uses volumes, snapshots or moments now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectedClient {
    /// Identity of the connection or session while the server runs: `nbd-7`, `iscsi-3`.
    pub id: String,
    /// Protocol by which the client is connected.
    pub protocol: Protocol,
    /// Addresses of the client, one for each connection. `unix` for a Unix socket.
    pub addresses: Vec<String>,
    /// Name of the iSCSI initiator. Absent for other clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiator: Option<String>,
    /// CHAP account that the initiator has proven. Absent if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Whether TLS protects the connection.
    pub tls: bool,
    /// Subject of the certificate of an NBD client, as `CN=NAME`. Absent if it showed none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// Name of the local user of an NBD client on a Unix socket. Absent for other clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix_user: Option<String>,
    /// Whether the client may write to what it has open. Absent: it has nothing open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writable: Option<bool>,
    /// What the client has open or sees: names of volumes, addresses of snapshots or moments, paths
    /// of files. Empty for an NBD client that has not opened an export yet.
    pub exports: Vec<String>,
    /// Seconds since the client connected.
    pub age: u64,
    /// Number of requests so far.
    pub requests: u64,
    /// Number of requests that read, of `requests`.
    #[serde(default)]
    pub reads: u64,
    /// Number of requests that wrote, of `requests`.
    #[serde(default)]
    pub writes: u64,
    /// Number of bytes that the client read.
    pub read_bytes: u64,
    /// Number of bytes that the client wrote.
    pub write_bytes: u64,
    /// Number of requests that the server carries out now. Absent if it is not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
}

impl Client {
    /// Returns the clients that are connected now.
    pub fn clients(&self) -> Result<Vec<ConnectedClient>, ClientError> {
        self.get("/clients")
    }

    /// Ends the connection or session of a client.
    pub fn disconnect_client(&self, id: &str) -> Result<(), ClientError> {
        self.delete(&format!("/clients/{}", segment(id)))
    }
}
