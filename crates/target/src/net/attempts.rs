//! Limits on how often a client may guess secrets.
//!
//! After some failures the server checks at most one secret each second. It refuses every other
//! attempt without checking the secret, whether the secret is right or wrong. Otherwise a client
//! that disconnects after a wrong secret would not be slowed down.
//!
//! Many clients may share an address, for example behind a router. One of them must not lock out
//! the others. So the server counts failures for each pair of an address and an account. It limits
//! the address as a whole only after many more failures. An initiator that recently proved an
//! account has a count of its own.

use super::admission::Source;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Number of failures without a consequence.
const FREE: u32 = 20;
/// Time after which one failure is forgiven.
const FORGIVEN: Duration = Duration::from_secs(3);
/// Time between two checked attempts after more than [`FREE`] failures.
const PACE: Duration = Duration::from_secs(1);
/// Factor by which the limits of a whole IPv4 address, or of a whole /64, are larger than those of
/// one account at an address.
const PARTY: u32 = 8;
/// Number of groups that the accounts at one address are hashed to. A client may invent any number
/// of account names.
const BUCKETS: u64 = 64;
/// Maximum number of tallies. A new tally replaces the one that was unused for the longest time.
const MAX_TALLIES: usize = 4096;
/// Maximum number of initiators that are remembered because they proved an account.
const MAX_KNOWN: usize = 1024;

/// The source of an attempt to prove an account.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Who<'a> {
    pub(crate) address: IpAddr,
    /// The name that the initiator sent.
    pub(crate) initiator: &'a str,
    pub(crate) account: &'a str,
}

/// The tallies of failed attempts for all addresses and accounts. They decide whether a secret is
/// checked now.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    state: Mutex<State>,
    random: RandomState,
}

#[derive(Debug, Default)]
struct State {
    tallies: HashMap<Key, Tally>,
    /// The initiators that proved an account, and the time of the last proof.
    known: HashMap<Known, Instant>,
}

/// An initiator that proved an account: its address, and a hash of its name and the account.
type Known = (IpAddr, u64);

/// The key of a tally of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    /// An address, and one of [`BUCKETS`] groups of accounts.
    Account(IpAddr, u64),
    Party(Source),
    Known(Known),
}

/// An attempt in progress.
#[derive(Debug)]
pub(crate) struct Attempt {
    known: Known,
    keys: [Option<Key>; 2],
}

#[derive(Debug)]
struct Tally {
    /// Number of failures and attempts in progress that are not forgiven.
    failures: u32,
    /// Time up to which failures have been forgiven.
    forgiven: Instant,
    /// Time from which the next attempt is checked.
    next: Instant,
    last: Instant,
}

impl Attempts {
    /// Begins an attempt before its secret is checked. Returns `None` after too many failures: the
    /// caller must then not check the secret. The attempt counts as failed unless
    /// [`Attempts::succeeded`] follows.
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

    /// Records that the secret of `attempt` was right.
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

/// Returns the group of an account, a number below [`BUCKETS`].
fn bucket(account: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    account.hash(&mut hasher);
    hasher.finish() % BUCKETS
}

impl Key {
    /// Returns the factor by which the limits for this key are larger than those of one account.
    fn share(self) -> u32 {
        if matches!(self, Key::Party(_)) { PARTY } else { 1 }
    }
}

impl State {
    /// Returns whether the tally of `key` allows an attempt now.
    fn may(&mut self, key: &Key, now: Instant) -> bool {
        let Some(tally) = self.tallies.get_mut(key) else { return true };
        tally.forgive(now, FORGIVEN / key.share());
        tally.failures < FREE * key.share() || now >= tally.next
    }

    /// Counts an attempt that begins as a failure. [`Attempts::succeeded`] removes it again.
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
    /// Forgives one failure for each `every` that has passed.
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

    /// Returns an initiator with the address number `n` of one /64.
    fn v6(n: u64) -> Who<'static> {
        let address = IpAddr::V6((0xfd00_u128 << 112 | u128::from(n)).into());
        Who { address, ..v4(0) }
    }

    /// Returns the number of attempts that were checked.
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
        // The client makes 10,000 attempts a second for ten seconds.
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

    /// A client may use every account name at its address, and every address of its /64.
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
        // The knowledge of one secret does not make guesses of another one faster.
        let (guess, own) = (Who { initiator: "guesser", ..v4(1) }, Who { initiator: "own", ..v4(1) });
        for _ in 0..FREE {
            assert!(all.begin_at(guess, start).is_some());
            assert!(right(own));
        }
        assert!(all.begin_at(guess, start).is_some() && all.begin_at(guess, start).is_none());
        // The guesser stays slow after its first refused attempt.
        assert!(all.begin_at(guess, start + PACE / 2).is_none());
        assert!(all.begin_at(guess, start + PACE).is_some());
        // An initiator that proved its account at this address is still accepted. Guesses of its
        // account are as slow as others.
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
