//! The seam to the world: time and randomness. The engine has no other source of either (I1, I2).

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::sync::atomic::{AtomicU64, Ordering};
use uuid::{Builder, Uuid};

/// The clocks of a machine.
pub trait Clock: Send + Sync {
    /// Returns the wall clock: nanoseconds since 1970-01-01T00:00:00Z. The wall clock may be set at
    /// any time, in both directions.
    fn now(&self) -> u64;

    /// Returns the monotonic clock: nanoseconds since some instant of this boot. The clock never
    /// goes back and can't be set. It goes on while the machine sleeps.
    fn monotonic(&self) -> u64;

    /// Returns the boot that the monotonic clock counts from. Two readings of one boot can be
    /// compared. The nil UUID means that the boot is not known.
    fn boot(&self) -> Uuid;
}

/// A source of random bits for identities (UUIDs). It is not for secrets.
pub trait Rng: Send + Sync {
    /// Returns 64 random bits.
    fn next(&self) -> u64;
}

/// Clocks that move only when a test or the simulator moves them.
#[derive(Debug, Default)]
pub struct ManualClock {
    wall: AtomicU64,
    monotonic: AtomicU64,
    /// The number of the boot; 0: not known.
    boot: AtomicU64,
}

impl ManualClock {
    /// A wall clock that reads `ns`, on a machine that does not distinguish its boots.
    pub fn new(ns: u64) -> Self {
        ManualClock { wall: AtomicU64::new(ns), ..ManualClock::default() }
    }
    /// Advances both clocks by `ns` nanoseconds.
    pub fn advance(&self, ns: u64) {
        self.wall.fetch_add(ns, Ordering::Relaxed);
        self.monotonic.fetch_add(ns, Ordering::Relaxed);
    }
    /// Sets the wall clock.
    pub fn set(&self, ns: u64) {
        self.wall.store(ns, Ordering::Relaxed);
    }
    /// Boots the machine after `ns` nanoseconds without power. Only the wall clock goes on
    /// meanwhile. From the first call on the clock distinguishes boots.
    pub fn boot_after(&self, ns: u64) {
        self.wall.fetch_add(ns, Ordering::Relaxed);
        self.monotonic.store(0, Ordering::Relaxed);
        self.boot.fetch_add(1, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> u64 {
        self.wall.load(Ordering::Relaxed)
    }

    fn monotonic(&self) -> u64 {
        self.monotonic.load(Ordering::Relaxed)
    }

    fn boot(&self) -> Uuid {
        Uuid::from_u128_le(u128::from(self.boot.load(Ordering::Relaxed)))
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014), for many threads. It is small, seedable, and good
/// enough for identities and simulation.
#[derive(Debug)]
pub struct SplitMix(Mutex<u64>);

/// Advances a state of SplitMix64, and returns 64 random bits. Equal states give equal bits.
pub fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl SplitMix {
    /// A generator that produces the same numbers for the same seed.
    pub fn new(seed: u64) -> Self {
        SplitMix(Mutex::new(seed))
    }
}

impl Rng for SplitMix {
    fn next(&self) -> u64 {
        split_mix(&mut self.0.lock())
    }
}

/// Derives an identity from other bytes. Equal input gives the same identity, and other input gives
/// another one. `domain` names the kind of object, so that no other kind of object gets the same
/// identity. The identity comes from a hash (SHA-256), because other programs make shorter
/// identifiers of identities. Identities that differ in few bits would share such an identifier.
pub fn derived_uuid(domain: &str, of: &[&[u8]]) -> Uuid {
    let mut hash = Sha256::new().chain_update(domain).chain_update([0]);
    of.iter().for_each(|part| hash.update(part));
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&hash.finalize()[..16]);
    Uuid::from_bytes(uuid)
}

/// Makes a random (version 4) UUID.
pub fn uuid(rng: &dyn Rng) -> Uuid {
    let mut bytes = [0u8; 16];
    bytes[..8].copy_from_slice(&rng.next().to_le_bytes());
    bytes[8..].copy_from_slice(&rng.next().to_le_bytes());
    Builder::from_random_bytes(bytes).into_uuid()
}

/// The sources from which a pool gets time and identities.
#[derive(Clone)]
pub struct World {
    /// The source of time.
    pub clock: std::sync::Arc<dyn Clock>,
    /// The source of identities.
    pub rng: std::sync::Arc<dyn Rng>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_random_and_of_version_4() {
        let uuid = uuid(&SplitMix::new(1));
        assert_eq!(uuid.to_string(), "c15c0289-ec2d-4a91-a7ec-8e65a18debbe");
        assert_eq!((uuid.get_version_num(), uuid.get_variant()), (4, uuid::Variant::RFC4122));
    }

    /// Initiators and clients know devices by these identities, so they must not change.
    #[test]
    fn identities_that_follow_from_something_stay() {
        let volume = Uuid::from_bytes(std::array::from_fn(|i| i as u8));
        let moment = crate::cdp::moment_uuid(&volume, crate::ids::Lsn(0x1234));
        assert_eq!(moment.to_string(), "41aa8805-7b66-729d-748c-53dc8c6cde88");
        let serial = derived_uuid("hindcast serial number", &[b"cd-2026"]);
        assert_eq!(serial.to_string(), "6118b7ae-76f2-73be-c7a7-a5c39438fd75");
    }
}
