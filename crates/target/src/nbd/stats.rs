//! Counters of an NBD server. Each connection counts on its own cache lines. Totals are computed by
//! a walk over the connections.

use super::codec::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters of one connection, or of all that have ended.
#[derive(Default)]
pub(super) struct Counters {
    requests: [AtomicU64; Command::ALL.len()],
    errors: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    in_flight: AtomicU64,
}

/// What one receive brought, added up before it is counted.
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

    /// Adds an ended connection's counters to the sum of those that have ended.
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

/// Requests served, on one connection or on all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests received by command number; see [`Command::name`].
    pub requests: [u64; Command::ALL.len()],
    /// Requests answered by an error.
    pub errors: u64,
    /// Bytes that READs asked for.
    pub bytes_read: u64,
    /// Bytes that WRITEs brought.
    pub bytes_written: u64,
    /// Requests that are being worked on away from their connection's thread.
    pub in_flight: u64,
}

impl Traffic {
    /// Requests of one command.
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

/// A server's totals since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NbdStats {
    /// Connections that are open now, negotiating ones included.
    pub connections: usize,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections that were closed at once because there were too many.
    pub refused: u64,
    /// Connections that ended without reaching the transmission phase, although the client did not
    /// say so.
    pub failed_negotiations: u64,
    /// All requests.
    pub traffic: Traffic,
}

/// One open connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Unique within the server's life.
    pub id: u64,
    /// The client's address, or `unix`.
    pub peer: String,
    /// The export's canonical name, once the client has chosen one.
    pub export: Option<String>,
    /// Protected by TLS.
    pub tls: bool,
    /// Time since it was accepted.
    pub age: Duration,
    /// Its requests.
    pub traffic: Traffic,
}
