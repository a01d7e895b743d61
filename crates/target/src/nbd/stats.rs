//! Counters of an NBD server. Each connection counts on its own cache lines. Totals are computed by
//! a walk over the connections.

use super::codec::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters of one connection, or the sum of all ended connections.
#[derive(Default)]
pub(super) struct Counters {
    requests: [AtomicU64; Command::ALL.len()],
    errors: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    in_flight: AtomicU64,
}

/// Counts of the requests of one receive. The session adds them to [`Counters`] together.
#[derive(Default)]
pub(super) struct Tally {
    requests: [u64; Command::ALL.len()],
    bytes_read: u64,
    bytes_written: u64,
}

impl Tally {
    pub(super) fn request(&mut self, command: Command, length: u32) {
        self.requests[command as usize] += 1;
        match command {
            Command::Read => self.bytes_read += u64::from(length),
            Command::Write => self.bytes_written += u64::from(length),
            _ => {}
        }
    }
}

impl Counters {
    pub(super) fn add(&self, tally: &mut Tally) {
        let tally = std::mem::take(tally);
        for (counter, n) in self.requests.iter().zip(tally.requests) {
            if n > 0 {
                counter.fetch_add(n, Ordering::Relaxed);
            }
        }
        self.bytes_read.fetch_add(tally.bytes_read, Ordering::Relaxed);
        self.bytes_written.fetch_add(tally.bytes_written, Ordering::Relaxed);
    }

    pub(super) fn errors(&self, n: u64) {
        if n > 0 {
            self.errors.fetch_add(n, Ordering::Relaxed);
        }
    }

    pub(super) fn job_started(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn job_ended(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Adds the counters of an ended connection to this sum.
    pub(super) fn absorb(&self, ended: &Counters) {
        for (sum, n) in self.requests.iter().zip(&ended.requests) {
            sum.fetch_add(n.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let pairs = [
            (&self.errors, &ended.errors),
            (&self.bytes_read, &ended.bytes_read),
            (&self.bytes_written, &ended.bytes_written),
        ];
        for (sum, n) in pairs {
            sum.fetch_add(n.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    pub(super) fn read(&self) -> Traffic {
        let load = |c: &AtomicU64| c.load(Ordering::Relaxed);
        Traffic {
            requests: std::array::from_fn(|i| load(&self.requests[i])),
            errors: load(&self.errors),
            bytes_read: load(&self.bytes_read),
            bytes_written: load(&self.bytes_written),
            in_flight: load(&self.in_flight),
        }
    }
}

/// Counts of the requests of one connection or of all connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of valid requests, by command number. See [`Command::name`].
    pub requests: [u64; Command::ALL.len()],
    /// Number of requests that were answered with an error.
    pub errors: u64,
    /// Number of bytes that READs requested.
    pub bytes_read: u64,
    /// Number of bytes that WRITEs contained.
    pub bytes_written: u64,
    /// Number of requests that are now carried out away from the thread that receives.
    pub in_flight: u64,
}

impl Traffic {
    /// Returns the number of requests with `command`.
    pub fn requests_of(&self, command: Command) -> u64 {
        self.requests[command as usize]
    }

    pub(super) fn add(&mut self, other: &Traffic) {
        for (sum, n) in self.requests.iter_mut().zip(other.requests) {
            *sum += n;
        }
        self.errors += other.errors;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.in_flight += other.in_flight;
    }
}

/// Totals of a server since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NbdStats {
    /// Number of open connections, including those that negotiate.
    pub connections: usize,
    /// Number of accepted connections, without those that were refused on arrival.
    pub accepted: u64,
    /// Number of connections that the server closed because there were too many, on arrival or
    /// after the negotiation.
    pub refused: u64,
    /// Number of connections that failed before the transmission phase. A connection that the
    /// server closed after ABORT, or after a message that no error reply can answer, does not
    /// count.
    pub failed_negotiations: u64,
    /// Requests of all connections, open and ended.
    pub traffic: Traffic,
}

/// The state of one open connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Number of the connection, unique while the server runs.
    pub id: u64,
    /// The client's address, or `unix`.
    pub peer: String,
    /// The canonical name of the export that the client opened last. `None` before the first one.
    pub export: Option<String>,
    /// Whether the device that the client opened last refuses writes.
    pub read_only: bool,
    /// Whether TLS protects the connection.
    pub tls: bool,
    /// The first common name of the certificate that the client presented and the server verified.
    pub common_name: Option<String>,
    /// Number of the user of the process at the other end of a Unix socket.
    pub user: Option<u32>,
    /// Time since the server accepted the connection.
    pub age: Duration,
    /// Requests of the connection.
    pub traffic: Traffic,
}
