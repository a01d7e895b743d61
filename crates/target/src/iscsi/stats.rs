//! Counters of an iSCSI server, and the descriptions of its sessions and connections. Each
//! connection counts on its own cache lines. Totals are computed by a walk over the connections.

use crate::scsi::Nexus;
use std::net::SocketAddr;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters of the requests that were served, on one connection or on all connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IscsiTraffic {
    /// SCSI commands received.
    pub commands: u64,
    /// Reads of blocks, of `commands`.
    pub reads: u64,
    /// Writes of blocks, of `commands`.
    pub writes: u64,
    /// Commands that ended with another status than GOOD.
    pub errors: u64,
    /// Task management function requests.
    pub task_management: u64,
    /// Bytes of data sent to the initiator.
    pub bytes_read: u64,
    /// Bytes of data received from the initiator.
    pub bytes_written: u64,
    /// Digests that were wrong.
    pub digest_errors: u64,
    /// PDUs that were rejected.
    pub rejects: u64,
}

macro_rules! counters {
    ($($field:ident),*) => {
        /// Counters of one connection.
        #[derive(Default)]
        pub(super) struct Counters { $(pub(super) $field: AtomicU64),* }

        impl Counters {
            /// Adds counters that a thread kept apart.
            pub(super) fn add(&self, tally: &IscsiTraffic) {
                $(if tally.$field > 0 { self.$field.fetch_add(tally.$field, Ordering::Relaxed); })*
            }

            pub(super) fn read(&self) -> IscsiTraffic {
                IscsiTraffic { $($field: self.$field.load(Ordering::Relaxed)),* }
            }
        }

        impl IscsiTraffic {
            pub(super) fn add(&mut self, other: &IscsiTraffic) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

counters!(
    commands,
    reads,
    writes,
    errors,
    task_management,
    bytes_read,
    bytes_written,
    digest_errors,
    rejects
);

/// Totals of a server since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IscsiStats {
    /// Number of open connections, including those in the login phase.
    pub connections: usize,
    /// Number of open sessions, including discovery sessions.
    pub sessions: usize,
    /// Connections that the server accepted.
    pub accepted: u64,
    /// Connections that the server refused because there were too many.
    pub refused: u64,
    /// Logins that failed, including those that failed in authentication.
    pub failed_logins: u64,
    /// Logins, of `failed_logins`, that failed because the initiator could not prove its identity.
    pub failed_authentications: u64,
    /// Counters of the requests of all connections.
    pub traffic: IscsiTraffic,
}

/// Description of one connection of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Identifier of the connection within the session.
    pub cid: u16,
    /// Address of the initiator.
    pub peer: SocketAddr,
    /// Address of the portal.
    pub portal: SocketAddr,
    /// Whether the connection uses header digests.
    pub header_digest: bool,
    /// Whether the connection uses data digests.
    pub data_digest: bool,
    /// Time since the server accepted the connection.
    pub age: Duration,
    /// Counters of the requests of the connection.
    pub traffic: IscsiTraffic,
}

/// Description of one session.
#[derive(Debug, Clone)]
pub struct SessionInfo {
    /// Target session identifying handle.
    pub tsih: u16,
    /// Name of the initiator.
    pub initiator: String,
    /// InitiatorAlias, if the initiator declared it.
    pub initiator_alias: Option<String>,
    /// The part of the session identifier that the initiator chose.
    pub isid: [u8; 6],
    /// Name of the target. `None` for a discovery session.
    pub target: Option<String>,
    /// Portal group tag of the portals that the session uses.
    pub portal_group: u16,
    /// Name of the CHAP account that the initiator proved, if it proved one.
    pub user: Option<String>,
    /// The I_T nexus of the session, with the access that the initiator has. A discovery session
    /// has none.
    pub nexus: Weak<Nexus>,
    /// Time since the session began.
    pub age: Duration,
    /// Number of commands that the server carries out now.
    pub in_flight: usize,
    /// Negotiated parameters, such as MaxBurstLength and FirstBurstLength, as key and value.
    pub keys: Vec<(&'static str, String)>,
    /// Connections of the session.
    pub connections: Vec<ConnectionInfo>,
}

/// Who has a session with a target. It costs less than a [`SessionInfo`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionClient {
    /// Target session identifying handle.
    pub tsih: u16,
    /// Name of the initiator.
    pub initiator: String,
    /// Name of the target.
    pub target: String,
    /// Addresses of the initiator, one for each connection.
    pub peers: Vec<SocketAddr>,
}
