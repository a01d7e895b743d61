//! The only source of random numbers in a run.

use hindcast_engine::world::split_mix;

/// A SplitMix64 generator. Every decision of a run comes from generators of this type, so a seed
/// repeats the run.
#[derive(Debug, Clone)]
pub struct Rand(u64);

impl Rand {
    /// Creates a generator. The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        // Neighbouring seeds must not give neighbouring streams.
        Rand(seed.wrapping_mul(0xA076_1D64_78BD_642F) ^ 0xE703_7ED1_A0B4_28DB)
    }

    /// Creates an independent generator.
    pub fn fork(&mut self) -> Rand {
        Rand::new(self.bits())
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// Returns a number below `n`, or 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.bits() % n }
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns true in `of` of 100 cases.
    pub fn percent(&mut self, of: u64) -> bool {
        self.below(100) < of
    }

    /// Returns one of `items`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }

    /// Fills `buf` with random bytes.
    pub fn fill(&mut self, buf: &mut [u8]) {
        for part in buf.chunks_mut(8) {
            let bits = self.bits().to_le_bytes();
            part.copy_from_slice(&bits[..part.len()]);
        }
    }
}
