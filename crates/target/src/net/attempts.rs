//! How often secrets may be guessed.
//!
//! A source that failed a few times has its further tries looked at no more than once a second; what
//! comes in between is refused unseen, be it right or wrong. Otherwise who hangs up on a wrong guess
//! would not notice that it was slowed down. Other sources are not concerned.

use super::admission::Source;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Failures in a row without a consequence.
const FREE: u32 = 20;
/// One failure is forgiven after each of these.
const FORGIVEN: Duration = Duration::from_secs(3);
/// Between tries that are looked at when there were more.
const PACE: Duration = Duration::from_secs(1);
/// Sources that are remembered. Of more, the one that has been quiet for longest is forgotten.
const MAX_KNOWN: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub struct Attempts(Mutex<HashMap<Source, Tally>>);

#[derive(Debug)]
struct Tally {
    /// Failures, and tries under way, that are not forgiven.
    failures: u32,
    /// Up to when failures were forgiven.
    forgiven: Instant,
    /// When the next try is looked at.
    next: Instant,
    last: Instant,
}

impl Attempts {
    /// Nobody has failed.
    pub fn new() -> Attempts {
        Attempts::default()
    }

    /// A secret of `source` is about to be looked at. `false`: it must not be, there were too many
    /// wrong ones. Unless [`Attempts::succeeded`] follows it counts as wrong.
    pub fn begin(&self, source: Source) -> bool {
        self.begin_at(source, Instant::now())
    }

    fn begin_at(&self, source: Source, now: Instant) -> bool {
        // Who may open the socket is the owner.
        if source == Source::Local {
            return true;
        }
        let mut known = self.0.lock();
        if !known.contains_key(&source) && known.len() >= MAX_KNOWN {
            let quiet = known.iter().min_by_key(|(_, tally)| tally.last).map(|(source, _)| *source);
            quiet.and_then(|source| known.remove(&source));
        }
        let new = Tally { failures: 0, forgiven: now, next: now, last: now };
        let tally = known.entry(source).or_insert(new);
        tally.forgive(now);
        if tally.failures >= FREE {
            if now < tally.next {
                return false;
            }
            tally.next = now + PACE;
        }
        tally.last = now;
        tally.failures = (tally.failures + 1).min(FREE);
        true
    }

    /// The secret was right.
    pub fn succeeded(&self, source: Source) {
        let mut known = self.0.lock();
        let Some(tally) = known.get_mut(&source) else { return };
        tally.failures = tally.failures.saturating_sub(1);
        if tally.failures == 0 {
            known.remove(&source);
        }
    }
}

impl Tally {
    fn forgive(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.forgiven).as_nanos() / FORGIVEN.as_nanos();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        if passed >= self.failures {
            (self.failures, self.forgiven) = (0, now);
        } else {
            self.failures -= passed;
            self.forgiven += FORGIVEN * passed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(n: u32) -> Source {
        Source::V4(n.into())
    }

    /// How many of the tries were looked at.
    fn looked_at(all: &Attempts, source: Source, from: Instant, every: Duration, tries: u32) -> usize {
        (0..tries).filter(|n| all.begin_at(source, from + every * *n)).count()
    }

    #[test]
    fn guesses_are_slow_after_the_first_few() {
        let (all, start) = (Attempts::new(), Instant::now());
        // 10,000 a second, for ten seconds.
        let seen = looked_at(&all, v4(1), start, Duration::from_micros(100), 100_000);
        assert_eq!(seen, 20 + 10 + 3, "the first, one a second, and those that were forgiven");
        assert!(all.begin_at(v4(2), start), "nobody else is concerned");
        let later = start + Duration::from_secs(10) + FORGIVEN;
        assert!(all.begin_at(v4(1), later) && all.begin_at(v4(1), later), "one of them was forgiven");
        assert!(!all.begin_at(v4(1), later));
        let much_later = later + FORGIVEN * FREE;
        assert_eq!(looked_at(&all, v4(1), much_later, Duration::ZERO, 100), 21);
    }

    #[test]
    fn who_is_right_may_come_as_often_as_he_likes() {
        let (all, start) = (Attempts::new(), Instant::now());
        for _ in 0..1000 {
            assert!(all.begin_at(v4(1), start));
            all.succeeded(v4(1));
        }
        assert!(all.0.lock().is_empty());
        // One secret that is known does not make guessing another cheaper.
        for _ in 0..FREE {
            assert!(all.begin_at(v4(1), start));
            assert!(all.begin_at(v4(1), start));
            all.succeeded(v4(1));
        }
        assert!(all.begin_at(v4(1), start) && !all.begin_at(v4(1), start));
        // Nor does the pace end there.
        assert!(!all.begin_at(v4(1), start + PACE / 2) && all.begin_at(v4(1), start + PACE));
    }

    #[test]
    fn memory_is_bounded_and_the_socket_free() {
        let (all, start) = (Attempts::new(), Instant::now());
        assert_eq!(looked_at(&all, Source::Local, start, Duration::ZERO, 1000), 1000);
        for n in 0..10 * MAX_KNOWN as u32 {
            assert!(all.begin_at(v4(n), start + Duration::from_micros(n.into())));
        }
        assert_eq!(all.0.lock().len(), MAX_KNOWN);
    }
}
