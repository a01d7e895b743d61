//! CHAP, one way and mutual (RFC 1994; RFC 7143, 12.1): challenges, responses and their comparison.
//! The module does no input or output, except that it reads the random numbers of the system. A
//! [`Secret`] has no textual form, so that no log can show it.

use md5::{Digest, Md5};
use sha1::Sha1;
use sha2::Sha256;
use sha3::Sha3_256;
use std::fmt;

/// A CHAP secret. Its `Debug` form does not show it.
#[derive(Clone)]
pub struct Secret(Box<[u8]>);

impl Secret {
    /// Recommended minimum length in bytes. A shorter secret must not be used where others can
    /// listen (RFC 7143, 12.1.2).
    pub const RECOMMENDED_MIN: usize = 12;

    /// Makes a secret of its bytes.
    pub fn new(secret: impl Into<Vec<u8>>) -> Secret {
        Secret(secret.into().into())
    }

    /// Returns a hash of a user and this secret, for comparison.
    pub(super) fn proof(&self, user: &str) -> [u8; 32] {
        Sha256::new().chain_update(user).chain_update([0]).chain_update(&self.0).finalize().into()
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        same(&self.0, &other.0)
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Compares two byte strings. The time does not depend on the place of the first difference.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differences = a.iter().zip(b).fold(0, |sum, (a, b)| std::hint::black_box(sum | (a ^ b)));
    a.len() == b.len() && differences == 0
}

/// A hash algorithm for CHAP_A (RFC 7143, 12.1.4, and the registry of PPP authentication
/// algorithms).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)] // the names are the standards'
pub enum Algorithm {
    Md5 = 5,
    Sha1 = 6,
    Sha256 = 7,
    Sha3_256 = 8,
}

impl Algorithm {
    /// Returns the algorithm with a number of CHAP_A. Returns `None` for an unknown number.
    pub fn from_number(number: u64) -> Option<Algorithm> {
        [Algorithm::Md5, Algorithm::Sha1, Algorithm::Sha256, Algorithm::Sha3_256]
            .into_iter()
            .find(|a| *a as u64 == number)
    }

    /// Returns the length in bytes of the responses of the algorithm.
    fn len(self) -> usize {
        match self {
            Algorithm::Md5 => 16,
            Algorithm::Sha1 => 20,
            Algorithm::Sha256 | Algorithm::Sha3_256 => 32,
        }
    }

    /// Returns the response to a challenge (RFC 1994, 4.1).
    pub fn response(self, identifier: u8, secret: &Secret, challenge: &[u8]) -> Vec<u8> {
        fn hash<D: Digest>(identifier: u8, secret: &Secret, challenge: &[u8]) -> Vec<u8> {
            D::new()
                .chain_update([identifier])
                .chain_update(&secret.0)
                .chain_update(challenge)
                .finalize()
                .to_vec()
        }
        match self {
            Algorithm::Md5 => hash::<Md5>(identifier, secret, challenge),
            Algorithm::Sha1 => hash::<Sha1>(identifier, secret, challenge),
            Algorithm::Sha256 => hash::<Sha256>(identifier, secret, challenge),
            Algorithm::Sha3_256 => hash::<Sha3_256>(identifier, secret, challenge),
        }
    }
}

/// A challenge to an initiator.
pub struct Challenge {
    algorithm: Algorithm,
    identifier: u8,
    bytes: Vec<u8>,
}

impl Challenge {
    /// Makes a challenge from random numbers of the system. It is as long as a response of the
    /// algorithm.
    pub fn new(algorithm: Algorithm) -> std::io::Result<Challenge> {
        let mut bytes = vec![0; 1 + algorithm.len()];
        crate::net::random(&mut bytes)?;
        let identifier = bytes.pop().unwrap_or_default();
        Ok(Challenge { algorithm, identifier, bytes })
    }

    /// Returns the algorithm, CHAP_A.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the identifier, CHAP_I.
    pub fn identifier(&self) -> u8 {
        self.identifier
    }

    /// Returns the bytes of the challenge, CHAP_C.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns whether `response` proves the knowledge of `secret`.
    pub fn answered_by(&self, secret: &Secret, response: &[u8]) -> bool {
        same(&self.algorithm.response(self.identifier, secret, &self.bytes), response)
    }

    /// Returns whether `challenge` is this challenge. An initiator may send it back to get the
    /// response from the target (12.1.4).
    pub fn is_reflected_by(&self, challenge: &[u8]) -> bool {
        same(&self.bytes, challenge)
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::to_hex;
    use super::*;

    #[test]
    fn responses_are_hashes_of_identifier_secret_and_challenge() {
        // md5sum, sha1sum, sha256sum and sha3sum of the bytes 0x27 "secretsecret" 0x01 0x02 0x03.
        let secret = Secret::new("secretsecret");
        for (algorithm, expected) in CASES {
            assert_eq!(to_hex(&algorithm.response(0x27, &secret, &[1, 2, 3])), expected, "{algorithm:?}");
        }
    }

    const CASES: [(Algorithm, &str); 4] = [
        (Algorithm::Md5, "0x5f1663b10e47548016b6f5debac646aa"),
        (Algorithm::Sha1, "0x8c778e71703dd9d85fa4bde62380ac0e0c6fe6a7"),
        (Algorithm::Sha256, "0x14a4e8e192eeb173a9d95bbceae358aa82c96d0aabe16b82d69a42800aed9e58"),
        (Algorithm::Sha3_256, "0x5f246cc08aa9f25352151b0210e2beeb264a688d15828cd23ddf813c9a1b4036"),
    ];

    #[test]
    fn only_the_right_answer_is_taken() {
        let challenge = Challenge::new(Algorithm::Sha256).unwrap();
        let secret = Secret::new("the right secret");
        let answer = Algorithm::Sha256.response(challenge.identifier(), &secret, challenge.bytes());
        assert!(challenge.answered_by(&secret, &answer));
        assert!(!challenge.answered_by(&Secret::new("the wrong secret"), &answer));
        assert!(!challenge.answered_by(&secret, &answer[..31]));
        assert!(!challenge.answered_by(&secret, &[]));
        assert!(challenge.is_reflected_by(challenge.bytes()));
        assert!(
            !Challenge::new(Algorithm::Sha256).unwrap().is_reflected_by(challenge.bytes()),
            "they are random"
        );
    }

    #[test]
    fn a_secret_is_never_shown() {
        let user = super::super::ChapUser { name: "u".into(), secret: Secret::new("hush hush") };
        assert!(!format!("{user:?}").contains("hush"));
    }
}
