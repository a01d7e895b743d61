//! One-time links: secrets that a browser trades for a session.

use super::principal::Principal;
use super::secret::{Hash, hex, random};
use hindcast_engine::Result;
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Time for which a link is good.
pub(crate) const LIFE: Duration = Duration::from_secs(120);
/// Maximum number of links. A new one replaces the oldest.
const MAX: usize = 64;

struct Offer {
    key: Hash,
    caller: Principal,
    ends: Instant,
}

/// All links that are good and not used yet.
#[derive(Default)]
pub(crate) struct Links(Mutex<Vec<Offer>>);

impl Links {
    /// Makes a link for a session of `caller`. Returns its secret.
    pub(crate) fn make(&self, caller: Principal, now: Instant) -> Result<String> {
        let secret = hex(&random()?);
        let mut all = self.0.lock();
        all.retain(|link| link.ends > now);
        if all.len() >= MAX {
            all.remove(0);
        }
        all.push(Offer { key: Hash::of(secret.as_bytes()), caller, ends: now + LIFE });
        Ok(secret)
    }

    /// Returns the caller of a link, and removes the link.
    pub(crate) fn take(&self, secret: &str, now: Instant) -> Option<Principal> {
        let key = Hash::of(secret.as_bytes());
        let mut all = self.0.lock();
        all.retain(|link| link.ends > now);
        let place = all.iter().position(|link| link.key == key)?;
        Some(all.remove(place).caller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_api::{PrincipalKind, Role};

    #[test]
    fn a_link_is_good_once_and_for_a_while() {
        let (links, now) = (Links::default(), Instant::now());
        let root = || Principal::new(PrincipalKind::Link, "root", Role::Admin);
        let secret = links.make(root(), now).unwrap();
        assert_eq!(links.take("x", now), None);
        assert_eq!(links.take(&secret, now), Some(root()));
        assert_eq!(links.take(&secret, now), None);
        let late = links.make(root(), now).unwrap();
        assert_eq!(links.take(&late, now + LIFE), None);
        let first = links.make(root(), now).unwrap();
        (0..MAX).for_each(|_| drop(links.make(root(), now).unwrap()));
        assert_eq!(links.take(&first, now), None, "too many are waiting");
    }
}
