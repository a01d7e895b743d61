//! Drives a [`Negotiator`] over a transport, within one deadline for all of it.

use super::options::{Negotiated, Negotiator, Step};
use crate::net::transport::{Transport, send_all};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

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
const SEND_AT: usize = 64 << 10;

/// Negotiates until something else has to happen. A peer that is slow has until `deadline`, however it is slow.
pub(super) fn negotiate(
    transport: &impl Transport,
    negotiator: &mut Negotiator<'_>,
    greeting: &[u8],
    deadline: Instant,
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
            continue;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Outcome::Failed("negotiation took too long"));
        }
        transport.set_timeouts(left, left)?;
        send_all(transport, &out)?;
        out.clear();
        match step {
            Step::More => {}
            Step::Next => continue,
            Step::Transmit(negotiated) => {
                return Ok(Outcome::Transmit(negotiated, received.split_off(taken)));
            }
            Step::StartTls if taken < received.len() => {
                return Ok(Outcome::Failed("plain text after STARTTLS")); // someone may have put it there
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
