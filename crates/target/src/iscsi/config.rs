//! Configuration of an iSCSI server: portals, digests, limits and timeouts.

use hindcast_engine::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::time::Duration;

/// A portal: an address and its portal group (RFC 7143, 4.4.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Portal {
    /// Where to listen; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// The portal group tag. The connections of a session may use any portal of one group, and none
    /// of another.
    pub group: u16,
    /// What SendTargets says instead of the address: `HOST[:PORT]`, for servers behind address
    /// translation.
    pub advertise: Option<String>,
}

impl Portal {
    /// A portal of group 1.
    pub fn new(listen: SocketAddr) -> Portal {
        Portal { listen, group: 1, advertise: None }
    }
}

/// Whether a digest is used (RFC 7143, 13.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DigestPolicy {
    /// As the initiator likes.
    #[default]
    Offered,
    /// Never.
    Refused,
    /// Initiators that do without are refused.
    Required,
}

/// How a server behaves.
#[derive(Debug, Clone)]
pub struct IscsiConfig {
    /// Where to listen.
    pub portals: Vec<Portal>,
    /// Connections that are logged in at a time; more are closed at once. Those that are not yet
    /// are beside these, and the oldest gives way to a new one.
    pub max_connections: usize,
    /// Of them, those from one address, or one /64 of IPv6: one host must not be able to shut all
    /// others out.
    pub max_connections_per_address: usize,
    /// Connections of one session (MaxConnections).
    pub max_connections_per_session: u16,
    /// Sessions at a time; more are refused at login. One initiator name has at most three
    /// quarters. Discovery sessions, which any initiator may open, have at most a quarter, and the
    /// oldest gives way to a new one.
    pub max_sessions: usize,
    /// Of them, those from one address, or one /64 of IPv6.
    pub max_sessions_per_address: usize,
    /// Time for the whole login phase.
    pub login_timeout: Duration,
    /// Commands of one session that may be under way: the command window.
    pub queue_depth: u32,
    /// Longest data segment that the server receives (MaxRecvDataSegmentLength).
    pub max_recv_data_segment: u32,
    /// Longest solicited burst either way (MaxBurstLength).
    pub max_burst: u32,
    /// Longest unsolicited burst (FirstBurstLength).
    pub first_burst: u32,
    /// Requests for data that may be open for one command (MaxOutstandingR2T).
    pub max_outstanding_r2t: u16,
    /// Header digests.
    pub header_digest: DigestPolicy,
    /// Data digests.
    pub data_digest: DigestPolicy,
    /// Bytes in flight on one connection, beyond its fixed buffers.
    pub max_in_flight_per_connection: u64,
    /// Bytes in flight on all connections, beyond their fixed buffers. A quarter is for PDUs that
    /// are being received, another for data that is being gathered for commands, the rest for
    /// answers that are being built.
    pub max_in_flight: u64,
    /// Requests of one connection that are worked on away from its thread.
    pub max_jobs_per_connection: usize,
    /// Threads for requests that may block.
    pub workers: usize,
    /// A connection without traffic for this long gets a NOP-In; the peer must answer within the
    /// same time again.
    pub nop_interval: Duration,
    /// An initiator that stops in the middle of a PDU or a data transfer, or does not take its
    /// responses, is given up after this long.
    pub stall_timeout: Duration,
    /// TCP keepalive after this long without traffic.
    pub keepalive: Option<Duration>,
}

impl Default for IscsiConfig {
    fn default() -> IscsiConfig {
        IscsiConfig {
            portals: Vec::new(),
            max_connections: 1024,
            max_connections_per_address: 512,
            max_connections_per_session: 8,
            max_sessions: 1024,
            max_sessions_per_address: 512,
            login_timeout: Duration::from_secs(15),
            queue_depth: 128,
            max_recv_data_segment: 256 << 10,
            max_burst: 1 << 20,
            first_burst: 256 << 10,
            max_outstanding_r2t: 4,
            header_digest: DigestPolicy::Offered,
            data_digest: DigestPolicy::Offered,
            max_in_flight_per_connection: 64 << 20,
            max_in_flight: 512 << 20,
            max_jobs_per_connection: 128,
            workers: 16,
            nop_interval: Duration::from_secs(15),
            stall_timeout: Duration::from_secs(60),
            keepalive: Some(Duration::from_secs(60)),
        }
    }
}

/// The range of lengths in text keys (RFC 7143, 13.12 to 13.14).
pub(super) const LENGTHS: std::ops::RangeInclusive<u32> = 512..=0x00ff_ffff;

impl IscsiConfig {
    pub(super) fn validate(&self) -> Result<()> {
        let invalid = |what: &str| Err(Error::new(ErrorKind::Invalid, format!("configure iSCSI: {what}")));
        let lengths = [self.max_recv_data_segment, self.max_burst, self.first_burst];
        if lengths.iter().any(|len| !LENGTHS.contains(len) || len % 512 != 0) {
            return invalid("a length is not a multiple of 512 below 16 MiB");
        }
        if self.first_burst > self.max_burst {
            return invalid("first_burst exceeds max_burst");
        }
        if self.max_recv_data_segment < 8192 {
            return invalid("max_recv_data_segment is less than 8192, the size of login PDUs");
        }
        let limits = [
            self.max_connections,
            self.max_connections_per_address,
            self.max_sessions,
            self.max_sessions_per_address,
            self.max_jobs_per_connection,
            self.workers,
        ];
        let zero = limits.contains(&0);
        if zero || self.max_connections_per_session == 0 || self.max_outstanding_r2t == 0 {
            return invalid("a limit is zero");
        }
        if self.queue_depth == 0 || self.queue_depth > 65536 {
            return invalid("queue_depth is not between 1 and 65536");
        }
        if self.max_in_flight / 4 < (64 << 20) {
            return invalid("max_in_flight is less than 256 MiB");
        }
        if self.portals.iter().any(|p| p.group == 0) {
            return invalid("a portal group tag is zero");
        }
        Ok(())
    }
}
