//! Counters of an iSCSI server, and the descriptions of its sessions and connections. Each
//! connection counts on its own cache lines. Totals are computed by a walk over the connections.

use crate::scsi::Nexus;
use std::net::SocketAddr;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Requests served, on one connection or on all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IscsiTraffic {
    /// SCSI commands received.
    pub commands: u64,
    /// Of those, reads of blocks.
    pub reads: u64,
    /// Of those, writes of blocks.
    pub writes: u64,
    /// Commands that did not end with GOOD.
    pub errors: u64,
    /// Task management requests.
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
        /// Counters of one connection, or of all that have ended.
        #[derive(Default)]
        pub(super) struct Counters { $(pub(super) $field: AtomicU64),* }

        impl Counters {
            /// Adds what was counted apart.
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

/// A server's totals since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IscsiStats {
    /// Connections that are open now, those that are logging in included.
    pub connections: usize,
    /// Sessions that are open now, discovery sessions included.
    pub sessions: usize,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections that were closed at once because there were too many.
    pub refused: u64,
    /// Logins that failed, authentication included.
    pub failed_logins: u64,
    /// Of those, because the initiator could not prove who it is.
    pub failed_authentications: u64,
    /// All requests.
    pub traffic: IscsiTraffic,
}

/// One connection of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Its identifier within the session.
    pub cid: u16,
    /// The initiator's address.
    pub peer: SocketAddr,
    /// The portal's address.
    pub portal: SocketAddr,
    /// Header digests are in use.
    pub header_digest: bool,
    /// Data digests are in use.
    pub data_digest: bool,
    /// Time since its login.
    pub age: Duration,
    /// Its requests.
    pub traffic: IscsiTraffic,
}

/// One session.
#[derive(Debug, Clone)]
pub struct SessionInfo {
    /// The target session identifying handle.
    pub tsih: u16,
    /// The initiator's name.
    pub initiator: String,
    /// InitiatorAlias, if it gave one.
    pub initiator_alias: Option<String>,
    /// The initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// The target's name; none in a discovery session.
    pub target: Option<String>,
    /// The portal group.
    pub portal_group: u16,
    /// The name it authenticated itself with by CHAP.
    pub user: Option<String>,
    /// The device server's side of it: what it may do. None in a discovery session.
    pub nexus: Weak<Nexus>,
    /// Time since it began.
    pub age: Duration,
    /// Negotiated: MaxBurstLength, FirstBurstLength and so on, as key and value.
    pub keys: Vec<(&'static str, String)>,
    /// Its connections.
    pub connections: Vec<ConnectionInfo>,
}
