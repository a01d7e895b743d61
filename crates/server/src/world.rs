//! The real clock and the kernel's random bits, behind the engine's interface to the outside world.

use hindcast_engine::world::{Clock, Rng, World};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// File with the kernel's identity of the boot, a random UUID that is new after each boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

struct SystemClock {
    boot: Uuid,
}

impl SystemClock {
    fn new() -> SystemClock {
        // Where the kernel does not tell, each start counts as one after a boot.
        let text = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
        SystemClock { boot: identity(&text).unwrap_or_default() }
    }
}

/// Parses a UUID.
fn identity(text: &str) -> Option<Uuid> {
    Uuid::try_parse(text.trim()).ok()
}

impl Clock for SystemClock {
    fn now(&self) -> u64 {
        // A clock before 1970 or after 2554 is wrong anyway: the pool finds that it jumped.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    fn monotonic(&self) -> u64 {
        // It goes on while the machine sleeps, as histories go on to age.
        let since = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(since.tv_sec).unwrap_or(0);
        seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(since.tv_nsec).unwrap_or(0))
    }

    fn boot(&self) -> Uuid {
        self.boot
    }
}

struct KernelRng;

impl Rng for KernelRng {
    fn next(&self) -> u64 {
        let mut bytes = [0u8; 8];
        // Eight bytes are never returned short, and once the kernel is seeded the call does not
        // fail; were it to, the hasher's keys are random too.
        match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
            Ok(8) => u64::from_le_bytes(bytes),
            _ => {
                use std::hash::{BuildHasher, Hasher, RandomState};
                RandomState::new().build_hasher().finish()
            }
        }
    }
}

/// Returns the real clock and the kernel's random bits.
pub(crate) fn real() -> World {
    World { clock: Arc::new(SystemClock::new()), rng: Arc::new(KernelRng) }
}

/// Returns a random UUID, for identities that the engine does not assign.
pub(crate) fn uuid() -> Uuid {
    hindcast_engine::world::uuid(&KernelRng)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_now_and_bits_differ() {
        let world = real();
        assert!(world.clock.now() > 1_700_000_000_000_000_000);
        let before = world.clock.monotonic();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(world.clock.monotonic() >= before + 2_000_000);
        assert_ne!(world.rng.next(), world.rng.next());
    }

    #[test]
    fn a_boot_has_a_name() {
        assert_eq!(real().clock.boot(), real().clock.boot());
        let text = "00112233-4455-6677-8899-aabbccddeeff\n";
        assert_eq!(identity(text), Some(Uuid::from_u128(0x00112233_4455_6677_8899_aabbccddeeff)));
        for wrong in ["", "x", "00112233-4455-6677-8899-aabbccddeef"] {
            assert_eq!(identity(wrong), None, "{wrong}");
        }
    }
}
