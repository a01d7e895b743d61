//! A hasher for small integer keys that the engine itself chooses.

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
