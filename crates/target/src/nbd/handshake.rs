//! The driver of a [`Negotiator`]: it moves bytes between the negotiator and a transport. Each
//! option has a deadline.

use super::options::{Negotiated, Negotiator, PART, Step};
use crate::net::transport::{Transport, send_all};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A negotiation as a whole gets this many times what one option gets. Tools that list exports ask
/// each of them by itself, and some wait a fifth of a second in between.
const OPTIONS_OF_TIME: u32 = 120;

/// How long a client may take: so long for each option, and not for ever.
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

    /// Something is complete: the next thing has its own time.
    pub(super) fn renew(&mut self) {
        self.deadline = (Instant::now() + self.option).min(self.end);
    }

    /// When the client is given up.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }
}

/// Where a negotiation ended, or has to go on by other means.
pub(super) enum Outcome {
    /// The client accepted TLS.
    StartTls,
    /// On to the transmission phase, with the bytes that came early.
    Transmit(Negotiated, Vec<u8>),
    /// The client gave up in order.
    Closed,
    /// The client broke the rules or left.
    Failed(&'static str),
}

/// Bytes asked for at a time.
const RECEIVE: usize = 4096;
/// Replies are sent when they reach this length; a few options can ask for many long lists.
const SEND_AT: usize = PART;

/// Negotiates until something else has to happen. A peer that is slow has until the deadline,
/// however it is slow; what it completes moves that.
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
            // A client that takes parts of a long list is at work.
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
