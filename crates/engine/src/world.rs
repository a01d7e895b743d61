//! The seam to the world: time and randomness. The engine has no other source of either (I1, I2).

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Wall-clock time in nanoseconds since the Unix epoch. May stand still or step; the sequencer makes it grow.
pub trait Clock: Send + Sync {
    /// Nanoseconds since 1970-01-01T00:00:00Z.
    fn now(&self) -> u64;
}

/// Random bits for identities (UUIDs). Not for secrets.
pub trait Rng: Send + Sync {
    /// 64 random bits.
    fn next(&self) -> u64;
}

/// A clock that moves only when told, for tests and the simulator.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Starts at `ns`.
    pub fn new(ns: u64) -> Self {
        ManualClock(AtomicU64::new(ns))
    }
    /// Moves forward by `ns`.
    pub fn advance(&self, ns: u64) {
        self.0.fetch_add(ns, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014): small, seedable, good enough for identities and simulation.
#[derive(Debug)]
pub struct SplitMix(Mutex<u64>);

impl SplitMix {
    /// A generator that repeats itself for the same seed.
    pub fn new(seed: u64) -> Self {
        SplitMix(Mutex::new(seed))
    }
}

impl Rng for SplitMix {
    fn next(&self) -> u64 {
        let mut state = self.0.lock();
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// The usual form of a UUID: 8-4-4-4-12 hexadecimal digits.
pub fn uuid_text(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (i, byte) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// A random (version 4) UUID.
pub fn uuid(rng: &dyn Rng) -> [u8; 16] {
    let mut bytes = [0u8; 16];
    bytes[..8].copy_from_slice(&rng.next().to_le_bytes());
    bytes[8..].copy_from_slice(&rng.next().to_le_bytes());
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    bytes
}

/// Where a pool gets time and identities from.
#[derive(Clone)]
pub struct World {
    /// Time.
    pub clock: std::sync::Arc<dyn Clock>,
    /// Identities.
    pub rng: std::sync::Arc<dyn Rng>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_reads_as_usual() {
        let bytes: [u8; 16] = std::array::from_fn(|i| u8::try_from(i * 16 + i).unwrap());
        assert_eq!(uuid_text(&bytes), "00112233-4455-6677-8899-aabbccddeeff");
    }
}
