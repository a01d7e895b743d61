//! Limits on how often a client may guess secrets.
//!
//! After some failures, at most one further try a second is checked. Tries in between are refused
//! without a check, whether they are right or wrong. Otherwise a client that hangs up on a wrong
//! guess would not notice the slowdown.
//!
//! Many clients may share an address, for example behind a router, and one of them must not shut
//! out the others. So failures count for an address together with an account. They count for the
//! address as a whole only from a much larger number on. An initiator that was right lately has a
//! tally of its own.

use super::admission::Source;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Failures in a row without a consequence.
const FREE: u32 = 20;
/// One failure is forgiven after each of these.
const FORGIVEN: Duration = Duration::from_secs(3);
/// Time between tries that are checked when there were more failures.
const PACE: Duration = Duration::from_secs(1);
/// An address as a whole, or a /64, may do so many times as much.
const PARTY: u32 = 8;
/// Kinds of accounts that are told apart at an address. A guesser may make up any number of names.
const BUCKETS: u64 = 64;
/// Tallies that are kept. Of more, the one that has been quiet for longest is forgotten.
const MAX_TALLIES: usize = 4096;
/// Initiators that are remembered to have been right.
const MAX_KNOWN: usize = 1024;

/// Who tries to prove an account.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Who<'a> {
    pub(crate) address: IpAddr,
    /// What it calls itself.
    pub(crate) initiator: &'a str,
    pub(crate) account: &'a str,
}

/// The tallies of failed tries, of all addresses and accounts. They decide whether a secret is
/// checked now.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    state: Mutex<State>,
    random: RandomState,
}

#[derive(Debug, Default)]
struct State {
    tallies: HashMap<Key, Tally>,
    /// Those that were right, and when.
    known: HashMap<Known, Instant>,
}

/// An initiator that was right: its address, and a hash of its name and its account.
type Known = (IpAddr, u64);

/// What failures are counted of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    /// An address, and one of [`BUCKETS`].
    Account(IpAddr, u64),
    Party(Source),
    Known(Known),
}

/// A try that is under way.
#[derive(Debug)]
pub(crate) struct Attempt {
    known: Known,
    keys: [Option<Key>; 2],
}

#[derive(Debug)]
struct Tally {
    /// Failures, and tries under way, that are not forgiven.
    failures: u32,
    /// Up to when failures were forgiven.
    forgiven: Instant,
    /// When the next try is checked.
    next: Instant,
    last: Instant,
}

impl Attempts {
    /// A secret is about to be checked. `None`: it must not be checked, because there were too many
    /// wrong ones. Unless [`Attempts::succeeded`] follows, the try counts as wrong.
    pub(crate) fn begin(&self, who: Who<'_>) -> Option<Attempt> {
        self.begin_at(who, Instant::now())
    }

    fn begin_at(&self, who: Who<'_>, now: Instant) -> Option<Attempt> {
        let address = who.address.to_canonical();
        let known = (address, self.random.hash_one((who.initiator, who.account)));
        let mut state = self.state.lock();
        let keys = match state.known.contains_key(&known) {
            true => [Some(Key::Known(known)), None],
            false => {
                let account = Key::Account(address, bucket(who.account));
                [Some(account), Some(Key::Party(Source::of(address)))]
            }
        };
        if keys.iter().flatten().any(|key| !state.may(key, now)) {
            return None;
        }
        keys.iter().flatten().for_each(|key| state.count(*key, now));
        Some(Attempt { known, keys })
    }

    /// The secret was right.
    pub(crate) fn succeeded(&self, attempt: &Attempt) {
        let mut state = self.state.lock();
        for key in attempt.keys.iter().flatten() {
            let Some(tally) = state.tallies.get_mut(key) else { continue };
            tally.failures = tally.failures.saturating_sub(1);
            if tally.failures == 0 {
                state.tallies.remove(key);
            }
        }
        if !state.known.contains_key(&attempt.known) && state.known.len() >= MAX_KNOWN {
            let oldest = state.known.iter().min_by_key(|(_, when)| **when).map(|(known, _)| *known);
            oldest.and_then(|known| state.known.remove(&known));
        }
        state.known.insert(attempt.known, Instant::now());
    }
}

/// Which of [`BUCKETS`] an account is in.
fn bucket(account: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    account.hash(&mut hasher);
    hasher.finish() % BUCKETS
}

impl Key {
    /// How many times as much as usual it may do.
    fn share(self) -> u32 {
        if matches!(self, Key::Party(_)) { PARTY } else { 1 }
    }
}

impl State {
    /// Whether a try is checked now.
    fn may(&mut self, key: &Key, now: Instant) -> bool {
        let Some(tally) = self.tallies.get_mut(key) else { return true };
        tally.forgive(now, FORGIVEN / key.share());
        tally.failures < FREE * key.share() || now >= tally.next
    }

    /// One is.
    fn count(&mut self, key: Key, now: Instant) {
        if !self.tallies.contains_key(&key) && self.tallies.len() >= MAX_TALLIES {
            let quiet = self.tallies.iter().min_by_key(|(_, tally)| tally.last).map(|(key, _)| *key);
            quiet.and_then(|key| self.tallies.remove(&key));
        }
        let new = Tally { failures: 0, forgiven: now, next: now, last: now };
        let tally = self.tallies.entry(key).or_insert(new);
        let free = FREE * key.share();
        if tally.failures >= free {
            tally.next = now + PACE / key.share();
        }
        tally.last = now;
        tally.failures = (tally.failures + 1).min(free);
    }
}

impl Tally {
    /// Forgives a failure for each `every` that has passed.
    fn forgive(&mut self, now: Instant, every: Duration) {
        let passed = now.saturating_duration_since(self.forgiven).as_nanos() / every.as_nanos();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        if passed >= self.failures {
            (self.failures, self.forgiven) = (0, now);
        } else {
            self.failures -= passed;
            self.forgiven += every * passed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(n: u32) -> Who<'static> {
        Who { address: IpAddr::V4(n.into()), initiator: "i", account: "a" }
    }

    /// Of one /64.
    fn v6(n: u64) -> Who<'static> {
        let address = IpAddr::V6((0xfd00_u128 << 112 | u128::from(n)).into());
        Who { address, ..v4(0) }
    }

    /// How many of the tries were looked at.
    fn looked_at<'a>(
        all: &Attempts,
        who: impl Fn(u32) -> Who<'a>,
        from: Instant,
        every: Duration,
        tries: u32,
    ) -> usize {
        (0..tries).filter(|n| all.begin_at(who(*n), from + every * *n).is_some()).count()
    }

    #[test]
    fn guesses_are_slow_after_the_first_few() {
        let (all, start) = (Attempts::default(), Instant::now());
        let may = |who, when| all.begin_at(who, when).is_some();
        // 10,000 a second, for ten seconds.
        let seen = looked_at(&all, |_| v4(1), start, Duration::from_micros(100), 100_000);
        assert_eq!(seen, 20 + 10 + 3, "the first, one a second, and those that were forgiven");
        assert!(may(v4(2), start), "no other address is concerned");
        assert!(may(Who { account: "b", ..v4(1) }, start), "nor is another account");
        let later = start + Duration::from_secs(10) + FORGIVEN;
        assert!(may(v4(1), later) && may(v4(1), later), "one of them was forgiven");
        assert!(!may(v4(1), later));
        let much_later = later + FORGIVEN * FREE;
        assert_eq!(looked_at(&all, |_| v4(1), much_later, Duration::ZERO, 100), 21);
    }

    /// An address, or a /64, has all names and numbers to choose from.
    #[test]
    fn a_party_has_eight_times_as_much() {
        let (all, start) = (Attempts::default(), Instant::now());
        let every = Duration::from_micros(100);
        let seen = looked_at(&all, |n| v6(n.into()), start, every, 100_000);
        let most = 8 * (20 + 10 + 3);
        assert!((most - 8..=most + 8).contains(&seen), "{seen}");
        let (all, names) = (Attempts::default(), (0..1000).map(|n| format!("n{n}")).collect::<Vec<_>>());
        let who = |n: u32| Who { account: &names[n as usize % 1000], ..v4(1) };
        let seen = looked_at(&all, who, start, every, 100_000);
        assert!((most - 8..=most + 8).contains(&seen), "{seen}");
    }

    #[test]
    fn who_is_right_may_come_as_often_as_he_likes() {
        let (all, start) = (Attempts::default(), Instant::now());
        let right = |who| all.begin_at(who, start).inspect(|attempt| all.succeeded(attempt)).is_some();
        assert!((0..1000).all(|_| right(v4(1))));
        assert!(all.state.lock().tallies.is_empty());
        // One secret that is known does not make guessing another cheaper.
        let (guess, own) = (Who { initiator: "guesser", ..v4(1) }, Who { initiator: "own", ..v4(1) });
        for _ in 0..FREE {
            assert!(all.begin_at(guess, start).is_some());
            assert!(right(own));
        }
        assert!(all.begin_at(guess, start).is_some() && all.begin_at(guess, start).is_none());
        // Nor does the pace end there.
        assert!(all.begin_at(guess, start + PACE / 2).is_none());
        assert!(all.begin_at(guess, start + PACE).is_some());
        // An initiator that has been right at this address still gets in. Its account can be
        // guessed only as slowly as others.
        assert!((0..1000).all(|_| right(v4(1)) && right(own)));
        assert_eq!(looked_at(&all, |_| own, start, Duration::ZERO, 1000), 21);
    }

    #[test]
    fn memory_is_bounded() {
        let (all, start) = (Attempts::default(), Instant::now());
        for n in 0..10 * MAX_TALLIES as u32 {
            assert!(all.begin_at(v4(n), start + Duration::from_micros(n.into())).is_some());
        }
        assert_eq!(all.state.lock().tallies.len(), MAX_TALLIES);
        for n in 0..2 * MAX_KNOWN as u32 {
            all.succeeded(&all.begin_at(v4(n), start + FORGIVEN).unwrap());
        }
        let state = all.state.lock();
        assert_eq!(state.known.len(), MAX_KNOWN);
        assert!(state.known.keys().all(|(address, _)| *address >= v4(MAX_KNOWN as u32).address));
    }
}
