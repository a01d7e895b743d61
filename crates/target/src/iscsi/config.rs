//! Configuration of an iSCSI server: portals, digests, limits and timeouts.

use hindcast_engine::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::time::Duration;

/// A portal: an address and its portal group (RFC 7143, 4.4.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Portal {
    /// Address to listen on. With port 0 the system chooses the port.
    pub listen: SocketAddr,
    /// Portal group tag. The connections of one session may use any portal of one group. They may
    /// use no portal of another group.
    pub group: u16,
    /// Address that SendTargets reports instead of `listen`: `HOST[:PORT]`. It is for servers
    /// behind address translation.
    pub advertise: Option<String>,
}

impl Portal {
    /// Makes a portal of group 1.
    pub fn new(listen: SocketAddr) -> Portal {
        Portal { listen, group: 1, advertise: None }
    }
}

/// Policy for the use of a digest (RFC 7143, 13.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DigestPolicy {
    /// The initiator chooses whether the digest is used.
    #[default]
    Offered,
    /// The server never uses the digest.
    Refused,
    /// The server refuses an initiator that does not use the digest.
    Required,
}

/// Settings of an iSCSI server.
#[derive(Debug, Clone)]
pub struct IscsiConfig {
    /// Portals that the server listens on.
    pub portals: Vec<Portal>,
    /// Maximum number of connections that are logged in at a time. The server refuses every further
    /// connection. Connections that are not logged in yet do not count. Their number has a limit of
    /// its own; at that limit a new connection displaces the oldest one of the address that has
    /// most of them.
    pub max_connections: usize,
    /// Maximum number of connections, of `max_connections`, from one address or one /64 of IPv6.
    /// The limit keeps one host from using all connections.
    pub max_connections_per_address: usize,
    /// Maximum number of connections of one session (MaxConnections).
    pub max_connections_per_session: u16,
    /// Maximum number of sessions at a time. The server refuses the login of a further session. The
    /// sessions of one initiator name are at most three quarters of them, or
    /// `max_sessions_per_address` if that is more. Any initiator may open discovery sessions, so at
    /// most a quarter are discovery sessions. At that limit a new discovery session displaces the
    /// oldest one of the address that has most of them.
    pub max_sessions: usize,
    /// Maximum number of sessions, of `max_sessions`, from one address or one /64 of IPv6.
    pub max_sessions_per_address: usize,
    /// Maximum time of the whole login phase.
    pub login_timeout: Duration,
    /// Maximum number of commands of one session that are in progress: the size of the command
    /// window.
    pub queue_depth: u32,
    /// Maximum length in bytes of a data segment that the server receives
    /// (MaxRecvDataSegmentLength).
    pub max_recv_data_segment: u32,
    /// Maximum length in bytes of a solicited burst in either direction (MaxBurstLength).
    pub max_burst: u32,
    /// Maximum length in bytes of an unsolicited burst (FirstBurstLength).
    pub first_burst: u32,
    /// Maximum number of open requests for data of one command (MaxOutstandingR2T).
    pub max_outstanding_r2t: u16,
    /// Policy for header digests.
    pub header_digest: DigestPolicy,
    /// Policy for data digests.
    pub data_digest: DigestPolicy,
    /// Maximum number of bytes in flight on one connection, beyond its fixed buffers.
    pub max_in_flight_per_connection: u64,
    /// Maximum number of bytes in flight on all connections, beyond their fixed buffers. A quarter
    /// is for PDUs that a connection receives. Another quarter is for data that a connection
    /// gathers for commands. The rest is for responses that a worker builds.
    pub max_in_flight: u64,
    /// Maximum number of requests of one connection that workers carry out at a time.
    pub max_jobs_per_connection: usize,
    /// Number of threads for requests that may block.
    pub workers: usize,
    /// Time without traffic after which a connection gets a NOP-In. The initiator must answer
    /// within the same time.
    pub nop_interval: Duration,
    /// Time after which the server gives up an initiator that stops in the middle of a PDU or of a
    /// data transfer, or that does not receive its responses.
    pub stall_timeout: Duration,
    /// Time without traffic after which TCP sends keepalive probes.
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

/// Range of the lengths in text keys (RFC 7143, 13.12 to 13.14), in bytes.
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
