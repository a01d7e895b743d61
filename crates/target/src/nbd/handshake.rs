//! The driver of a [`Negotiator`]: it moves bytes between the negotiator and a transport. Each
//! option has a deadline.

use super::options::{Negotiated, Negotiator, PART, Step};
use crate::net::transport::{Transport, send_all};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time limit of a whole negotiation, as a multiple of the time for one option. Tools that list
/// exports send an option for each export, and some wait a fifth of a second between two options.
const OPTIONS_OF_TIME: u32 = 120;

/// The time limits of a negotiation: one for each option, and one for the whole negotiation.
pub(super) struct Patience {
    option: Duration,
    end: Instant,
    deadline: Instant,
}

impl Patience {
    pub(super) fn new(option: Duration) -> Patience {
        let now = Instant::now();
        Patience { option, end: now + option * OPTIONS_OF_TIME, deadline: now + option }
    }

    /// Starts the time for the next option. The whole negotiation keeps its time limit.
    pub(super) fn renew(&mut self) {
        self.deadline = (Instant::now() + self.option).min(self.end);
    }

    /// Returns the time at which the negotiation fails.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }
}

/// The result of [`negotiate`].
pub(super) enum Outcome {
    /// The client requested TLS, and the server acknowledged it. The TLS handshake follows.
    StartTls,
    /// The transmission phase follows. The bytes were received behind the last option.
    Transmit(Negotiated, Vec<u8>),
    /// The server ends the connection: the client sent ABORT, or a message that no error reply can
    /// answer.
    Closed,
    /// The negotiation failed: the client was too slow, left, or sent plain text behind STARTTLS.
    Failed(&'static str),
}

/// Maximum number of bytes in one receive.
const RECEIVE: usize = 4096;
/// Replies are sent when they reach this length, in bytes. A few options can request many long
/// lists.
const SEND_AT: usize = PART;

/// Negotiates until a step ends the negotiation or starts TLS. The deadline bounds each receive and
/// each send. Each complete message of the client renews the deadline.
pub(super) fn negotiate(
    transport: &impl Transport,
    negotiator: &mut Negotiator<'_>,
    greeting: &[u8],
    patience: &mut Patience,
    stopping: &AtomicBool,
) -> io::Result<Outcome> {
    let mut out = greeting.to_vec();
    let mut received: Vec<u8> = Vec::new();
    let mut taken = 0;
    loop {
        if stopping.load(Ordering::Relaxed) {
            negotiator.shut_down();
        }
        let (n, step) = negotiator.step(&received[taken..], &mut out);
        taken += n;
        if matches!(step, Step::Next) && out.len() < SEND_AT {
            patience.renew();
            continue;
        }
        let left = patience.deadline().saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Outcome::Failed("negotiation took too long"));
        }
        transport.set_timeouts(left, left)?;
        send_all(transport, &out)?;
        out.clear();
        match step {
            Step::More => {}
            // A client that receives the parts of a long list is not idle.
            Step::Part | Step::Next => {
                patience.renew();
                continue;
            }
            Step::Transmit(negotiated) => {
                return Ok(Outcome::Transmit(negotiated, received.split_off(taken)));
            }
            Step::StartTls if taken < received.len() => {
                return Ok(Outcome::Failed("plain text was sent after STARTTLS")); // someone may have put it there
            }
            Step::StartTls => return Ok(Outcome::StartTls),
            Step::Close => return Ok(Outcome::Closed),
        }
        received.drain(..taken);
        taken = 0;
        let filled = received.len();
        received.resize(filled + RECEIVE, 0);
        let n = match transport.receive(&mut received[filled..]) {
            Ok(0) => return Ok(Outcome::Failed("the client left during negotiation")),
            Ok(n) => n,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => 0,
            Err(e) => return Err(e),
        };
        received.truncate(filled + n);
    }
}
