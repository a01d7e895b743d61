//! Who calls the admin API, and how a caller proves that.

pub(crate) mod local;
pub(crate) mod principal;
mod records;
pub(crate) mod secret;
pub(crate) mod tokens;

use hindcast_api::{PrincipalKind, Role};
use hindcast_engine::disk::Dir;
use hindcast_engine::{Error, ErrorKind, Result};
use jiff::Timestamp;
use local::SocketAccess;
use principal::Principal;
use records::Records;
use std::sync::Arc;
use tokens::Tokens;

/// Maximum length of the name of a token or user.
const MAX_NAME: usize = 64;

/// Everything by which the server recognizes callers.
pub(crate) struct Callers {
    pub(crate) socket: SocketAccess,
    /// The token in the file of `--api-token-file`. Its holder is an admin.
    file_token: Option<String>,
    pub(crate) tokens: Tokens,
}

impl Callers {
    /// Reads the files of the data directory `dir`.
    pub(crate) fn open(dir: &Arc<dyn Dir>, socket: SocketAccess, file_token: Option<String>) -> Callers {
        Callers { socket, file_token, tokens: Tokens::open(dir.clone()) }
    }

    /// Returns the caller that presents this bearer token.
    pub(crate) fn bearer(&self, token: &str) -> Option<Principal> {
        let known = self.file_token.as_deref().unwrap_or_default();
        if !known.is_empty() && same(token.as_bytes(), known.as_bytes()) {
            return Some(Principal::new(PrincipalKind::Token, "api-token-file", Role::Admin));
        }
        self.tokens.holder(token, Timestamp::now())
    }

    /// Does what is due from time to time: it writes the times of last uses.
    pub(crate) fn keep_up(&self) {
        if let Err(error) = self.tokens.save_uses() {
            tracing::warn!(%error, "the times at which tokens were used can't be written");
        }
    }
}

/// Checks the name of a token or user. `what` says which of them.
fn check_name(what: &str, name: &str) -> Result<()> {
    let ok = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let first = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    if first && name.len() <= MAX_NAME && name.bytes().all(ok) {
        return Ok(());
    }
    let text = format!(
        "use {name:?} for a {what}: a name must have 1 to {MAX_NAME} letters, digits, dots, underscores and hyphens, and start with a letter or digit"
    );
    Err(Error::new(ErrorKind::Invalid, text))
}

/// Compares two byte strings. The duration does not depend on the position of the first difference.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |sum, (x, y)| sum | (x ^ y)) == 0
}

#[cfg(test)]
mod tests {
    use super::same;

    #[test]
    fn tokens_are_compared_whole() {
        assert!(same(b"abc", b"abc"));
        assert!(!same(b"abc", b"abd") && !same(b"abc", b"abcd") && !same(b"", b"a"));
    }
}
