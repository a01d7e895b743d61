//! The real clock and the kernel's random bits, behind the engine's seam.

use hindcast_engine::world::{Clock, Rng, World};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> u64 {
        // A clock before 1970 or after 2554 is wrong anyway; the sequencer makes time grow whatever this says.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }
}

struct KernelRng;

impl Rng for KernelRng {
    fn next(&self) -> u64 {
        let mut bytes = [0u8; 8];
        // Eight bytes are never returned short, and once the kernel is seeded the call does not fail; were it to, the
        // hasher's keys are random too.
        match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
            Ok(8) => u64::from_le_bytes(bytes),
            _ => {
                use std::hash::{BuildHasher, Hasher, RandomState};
                RandomState::new().build_hasher().finish()
            }
        }
    }
}

/// The world as it is.
pub(crate) fn real() -> World {
    World { clock: Arc::new(SystemClock), rng: Arc::new(KernelRng) }
}

/// A random UUID, for identities that the engine does not give out.
pub(crate) fn uuid() -> [u8; 16] {
    hindcast_engine::world::uuid(&KernelRng)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_now_and_bits_differ() {
        let world = real();
        assert!(world.clock.now() > 1_700_000_000_000_000_000);
        assert_ne!(world.rng.next(), world.rng.next());
    }
}
