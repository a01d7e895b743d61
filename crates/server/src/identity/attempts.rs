//! A limit of failed log-ins, by address and by user.
//!
//! Each address and each user has a bucket of five attempts. It fills by one attempt every ten
//! seconds. The number of buckets is fixed. Several addresses may share a bucket by chance.

use hindcast_target::admission::Source;
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Number of attempts in a full bucket.
const BURST: u32 = 5;
/// Time in which a bucket gains one attempt.
const INTERVAL: Duration = Duration::from_secs(10);
/// Number of buckets of each kind.
const BUCKETS: usize = 4096;

/// For each bucket, the time at which it is full again.
struct Buckets(Vec<Option<Instant>>);

impl Buckets {
    fn place(&mut self, number: u64) -> Option<&mut Option<Instant>> {
        let length = self.0.len() as u64;
        let index = usize::try_from(number.checked_rem(length)?).ok()?;
        self.0.get_mut(index)
    }

    /// Returns the time until the bucket has an attempt.
    fn wait(&mut self, number: u64, now: Instant) -> Duration {
        let full = self.place(number).and_then(|place| *place).unwrap_or(now);
        full.saturating_duration_since(now).saturating_sub(INTERVAL * (BURST - 1))
    }

    /// Takes an attempt.
    fn take(&mut self, number: u64, now: Instant) {
        if let Some(place) = self.place(number) {
            *place = Some(place.unwrap_or(now).max(now) + INTERVAL);
        }
    }

    /// Gives an attempt back.
    fn give(&mut self, number: u64) {
        if let Some(place) = self.place(number) {
            *place = place.and_then(|full| full.checked_sub(INTERVAL));
        }
    }
}

/// The buckets of failed log-ins.
pub(crate) struct Attempts {
    hasher: RandomState,
    addresses: Mutex<Buckets>,
    users: Mutex<Buckets>,
}

impl Attempts {
    pub(crate) fn new() -> Attempts {
        let buckets = || Mutex::new(Buckets(vec![None; BUCKETS]));
        Attempts { hasher: RandomState::new(), addresses: buckets(), users: buckets() }
    }

    fn numbers(&self, address: Option<IpAddr>, user: &str) -> (u64, u64) {
        let source = address.map_or(Source::Local, Source::of);
        (self.hasher.hash_one(source), self.hasher.hash_one(user))
    }

    /// Takes an attempt of the address and of the user. Returns the time to wait if one of them has
    /// none.
    pub(crate) fn begin(&self, address: Option<IpAddr>, user: &str, now: Instant) -> Result<(), Duration> {
        let (of_address, of_user) = self.numbers(address, user);
        let (mut addresses, mut users) = (self.addresses.lock(), self.users.lock());
        let wait = addresses.wait(of_address, now).max(users.wait(of_user, now));
        if !wait.is_zero() {
            return Err(wait);
        }
        addresses.take(of_address, now);
        users.take(of_user, now);
        Ok(())
    }

    /// Gives the attempt back: the log-in did not fail.
    pub(crate) fn succeeded(&self, address: Option<IpAddr>, user: &str) {
        let (of_address, of_user) = self.numbers(address, user);
        self.addresses.lock().give(of_address);
        self.users.lock().give(of_user);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_attempts_and_then_one_every_ten_seconds() {
        let (attempts, now) = (Attempts::new(), Instant::now());
        let home = Some(IpAddr::from([10, 0, 0, 1]));
        for _ in 0..5 {
            assert_eq!(attempts.begin(home, "anna", now), Ok(()));
        }
        assert_eq!(attempts.begin(home, "anna", now), Err(INTERVAL));
        assert_eq!(attempts.begin(home, "bob", now), Err(INTERVAL), "the address");
        let other = Some(IpAddr::from([10, 0, 0, 2]));
        assert_eq!(attempts.begin(other, "anna", now), Err(INTERVAL), "the user");
        assert_eq!(attempts.begin(home, "anna", now + INTERVAL), Ok(()));
        assert!(attempts.begin(home, "anna", now + INTERVAL).is_err());
        attempts.succeeded(home, "anna");
        assert_eq!(attempts.begin(home, "anna", now + INTERVAL), Ok(()));
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let (attempts, now) = (Attempts::new(), Instant::now());
        for host in 0..5u128 {
            let address = IpAddr::from((0xfd00_u128 << 112 | host).to_be_bytes());
            assert_eq!(attempts.begin(Some(address), &format!("user{host}"), now), Ok(()));
        }
        let next = IpAddr::from((0xfd00_u128 << 112 | 99).to_be_bytes());
        assert!(attempts.begin(Some(next), "another", now).is_err());
    }
}
