//! Secrets: random bits from the kernel, their text, and their hashes.

use hindcast_engine::{Error, Result};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};
use std::fmt::Write;
use std::io;

/// Returns 256 random bits.
pub(crate) fn random() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(length) if length == bytes.len() => Ok(bytes),
        Ok(_) => Err(Error::io("make a secret", io::ErrorKind::UnexpectedEof.into())),
        Err(error) => Err(Error::io("make a secret", error.into())),
    }
}

/// Returns bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // A write to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A SHA-256 hash. The server keeps the hashes of secrets that have 256 random bits, and not the
/// secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Hash(pub(crate) [u8; 32]);

impl Hash {
    /// Returns the hash of `bytes`.
    pub(crate) fn of(bytes: &[u8]) -> Hash {
        Hash(Sha256::digest(bytes).into())
    }

    /// Parses 64 hexadecimal digits.
    pub(crate) fn parse(text: &str) -> Option<Hash> {
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
        }
        Some(Hash(bytes))
    }

    /// Returns the hash as 64 hexadecimal digits.
    pub(crate) fn text(&self) -> String {
        hex(&self.0)
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Hash, D::Error> {
        let text = String::deserialize(deserializer)?;
        Hash::parse(&text).ok_or_else(|| de::Error::custom("a hash must have 64 hexadecimal digits"))
    }
}

/// Compares two byte strings. The duration does not depend on the position of the first difference.
pub(super) fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |sum, (x, y)| sum | (x ^ y)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_have_a_text() {
        let hash = Hash::of(b"abc");
        assert_eq!(hash.text(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(Hash::parse(&hash.text()), Some(hash));
        for bad in ["", "ba78", &"g".repeat(64), &"ä".repeat(32), &"+1".repeat(32)] {
            assert_eq!(Hash::parse(bad), None, "{bad}");
        }
        assert_ne!(random().unwrap(), random().unwrap());
    }

    #[test]
    fn tokens_are_compared_whole() {
        assert!(same(b"abc", b"abc"));
        assert!(!same(b"abc", b"abd") && !same(b"abc", b"abcd") && !same(b"", b"a"));
    }
}
