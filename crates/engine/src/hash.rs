//! Hashers for small integer keys that the engine itself chooses.

use std::hash::{BuildHasher, Hasher};

/// A hash by folded multiplication: a few instructions for small integer keys. It does not protect
/// against keys that an attacker chooses. There are none: branch and page numbers are the engine's
/// own.
#[derive(Clone, Copy, Default)]
pub(crate) struct Mix(u64);

impl BuildHasher for Mix {
    type Hasher = Mix;
    fn build_hasher(&self) -> Mix {
        Mix::default()
    }
}

impl Mix {
    fn fold(a: u64, b: u64) -> u64 {
        let wide = u128::from(a) * u128::from(b);
        (wide as u64) ^ (wide >> 64) as u64
    }
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        Self::fold(self.0 ^ 0x9E37_79B9_7F4A_7C15, 0xD6E8_FEB8_6659_FD93)
    }
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = Self::fold(self.0 ^ value ^ 0xA076_1D64_78BD_642F, 0xE703_7ED1_A0B4_28DB);
    }
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

/// A hash of one integer that keeps neighbours together. Runs of 16 numbers, which begin at
/// multiples of 16, get consecutive places in a table. So the processor's caches already have the
/// next places while a long write goes through the table.
///
/// The standard library's table begins to look for a key at the place that the lower bits of the
/// hash name. It compares the upper seven bits of the hash before it compares keys. So this hash
/// has the lower four bits of the number as its own, and mixes them into its upper bits.
#[derive(Clone, Copy, Default)]
pub(crate) struct MixRuns(u64);

impl Hasher for MixRuns {
    fn finish(&self) -> u64 {
        let (run, inside) = (self.0 >> 4, self.0 & 15);
        let mixed = Mix::fold(run ^ 0x9E37_79B9_7F4A_7C15, 0xD6E8_FEB8_6659_FD93);
        (mixed << 4 | inside) ^ inside << 57
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0 << 8 | u64::from(*byte)));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::BuildHasherDefault;

    #[test]
    fn runs_stay_together_and_are_spread() {
        let hash = |block: u64| BuildHasherDefault::<MixRuns>::default().hash_one(block);
        let hashes: Vec<u64> = (64..80).map(hash).collect();
        assert!(hashes.windows(2).all(|pair| pair[1] & 0xFFFF == (pair[0] & 0xFFFF) + 1), "{hashes:x?}");
        assert_eq!(hashes.iter().map(|hash| hash >> 57).collect::<HashSet<_>>().len(), 16);
        // In a million places, few numbers share one, whatever lies between them.
        for stride in [1, 16, 256, 4096, 1 << 20] {
            let places: HashSet<u64> = (0..4096u64).map(|n| hash(n * stride) & 0xF_FFFF).collect();
            assert!(places.len() > 3800, "{stride}: {}", places.len());
            let tags: HashSet<u64> = (0..4096u64).map(|n| hash(n * stride) >> 57).collect();
            assert!(tags.len() > 100, "{stride}: {}", tags.len());
        }
    }
}
