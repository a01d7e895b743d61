//! The only source of random numbers in a run.

use hindcast_engine::world::split_mix;

/// SplitMix64: every decision of a run is drawn from generators like this one, so a seed repeats
/// it.
#[derive(Debug, Clone)]
pub struct Rand(u64);

impl Rand {
    /// A generator that repeats itself for the same seed.
    pub fn new(seed: u64) -> Self {
        // Neighbouring seeds must not give neighbouring streams.
        Rand(seed.wrapping_mul(0xA076_1D64_78BD_642F) ^ 0xE703_7ED1_A0B4_28DB)
    }

    /// An independent generator.
    pub fn fork(&mut self) -> Rand {
        Rand::new(self.bits())
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// A number below `n`; 0 for `n` 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.bits() % n }
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True `of` times in 100.
    pub fn percent(&mut self, of: u64) -> bool {
        self.below(100) < of
    }

    /// One of `items`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }

    /// Fills with random bytes.
    pub fn fill(&mut self, buf: &mut [u8]) {
        for part in buf.chunks_mut(8) {
            let bits = self.bits().to_le_bytes();
            part.copy_from_slice(&bits[..part.len()]);
        }
    }
}
