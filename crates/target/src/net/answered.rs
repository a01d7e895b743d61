//! The requests that one send answers, by kind ([`Answered`]), and when they had been received
//! ([`Arrival`]).

use hindcast_engine::device::{BlockDevice, RequestKind};
use std::time::{Duration, Instant};

/// Of so many receives that bring only reads of data in memory, one is timed.
const TIMED: u32 = 4;

/// Numbers of requests to one device, by kind, that one receive brought and one send answers. They
/// take the same time, so one look at the clock is enough.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Answered([u64; RequestKind::ALL.len()]);

impl Answered {
    pub(crate) fn add(&mut self, kind: RequestKind, count: u64) {
        self.0[kind as usize] += count;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|count| *count == 0)
    }

    /// Tells the device that each of the requests took `took`, and forgets them.
    pub(crate) fn tell(&mut self, device: &dyn BlockDevice, took: Duration) {
        for (kind, count) in RequestKind::ALL.into_iter().zip(std::mem::take(self).0) {
            if count > 0 {
                device.answered(kind, took, count);
            }
        }
    }
}

/// The time of the last receive. Two looks at the clock are a considerable part of a read that
/// finds its data in memory, and such reads are alike. So of the receives that bring nothing else,
/// one in [`TIMED`] is timed. The others count as long as that one.
#[derive(Debug)]
pub(crate) struct Arrival {
    at: Option<Instant>,
    /// Whether the receive brought work that may wait.
    may_wait: bool,
    /// Number of receives since the last one that was timed for the others. 0: the next receive is
    /// timed.
    since: u32,
    /// Time that the requests of the receive took that was timed for the others.
    last: Duration,
}

impl Arrival {
    /// Begins with requests that were received before the session began.
    pub(crate) fn now() -> Arrival {
        Arrival { at: Some(Instant::now()), may_wait: false, since: 0, last: Duration::ZERO }
    }

    /// Begins with the requests of a new receive.
    pub(crate) fn received(&mut self) {
        self.at = (self.since == 0).then(Instant::now);
        self.may_wait = false;
    }

    /// Returns the time of the receive. The session calls this function before work that may wait.
    /// Until then, reads of data in memory are all that it has done since the receive.
    pub(crate) fn before_wait(&mut self) -> Instant {
        self.may_wait = true;
        *self.at.get_or_insert_with(Instant::now)
    }

    /// Returns the time from the receive until now. If the receive is not timed, returns that of
    /// the last one that was timed for the others.
    pub(crate) fn took(&mut self) -> Duration {
        let Some(at) = self.at else {
            self.since = (self.since + 1) % TIMED;
            return self.last;
        };
        let took = at.elapsed();
        if !self.may_wait {
            (self.since, self.last) = (1, took);
        }
        took
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_wait_is_always_timed_and_one_of_several_others() {
        let mut arrival = Arrival::now();
        let mut timed = Vec::new();
        for n in 0..2 * TIMED {
            arrival.received();
            timed.push(arrival.at.is_some());
            assert_eq!(arrival.took(), arrival.last, "{n}");
        }
        assert_eq!(timed.iter().filter(|timed| **timed).count(), 2, "{timed:?}");
        assert!(timed[0] && timed[TIMED as usize], "{timed:?}");
        let wait = Duration::from_millis(20);
        for _ in 0..TIMED {
            let last = arrival.last;
            arrival.received();
            let at = arrival.before_wait();
            std::thread::sleep(wait);
            assert!(arrival.took() >= wait && arrival.before_wait() == at);
            assert_eq!(arrival.last, last, "it does not stand for the others");
        }
        arrival.received();
        assert!(arrival.took() < wait);
    }
}
