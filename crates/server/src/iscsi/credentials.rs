//! CHAP credentials, as the operator sets them and as the file of targets stores them. A [`Secret`]
//! has no textual form, so no code can log a secret by accident.

use hindcast_engine::{Error, ErrorKind, Result};
use hindcast_target::iscsi::{self, AuthPolicy, ChapUser};
use std::fmt;

/// Shortest and longest CHAP secret, in bytes. RFC 7143 9.2.1 requires at least 96 random bits
/// where nothing else protects the connection. The length must fit CHAP's one-byte length field
/// (RFC 1994 4.1).
const SECRET_LEN: std::ops::RangeInclusive<usize> = 12..=255;

fn refuse<T>(why: impl fmt::Display) -> Result<T> {
    Err(Error::new(ErrorKind::Invalid, format!("set CHAP: {why}")))
}

/// A CHAP secret whose length is in [`SECRET_LEN`]. `Debug` does not show it. Only
/// [`Secret::expose`] returns the bytes.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Vec<u8>);

impl Secret {
    /// Creates a secret. Fails if the length is not in [`SECRET_LEN`].
    pub(crate) fn new(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        let bytes = bytes.into();
        if !SECRET_LEN.contains(&bytes.len()) {
            let (least, most) = SECRET_LEN.into_inner();
            return refuse(format!("a secret must have {least} to {most} bytes, not {}", bytes.len()));
        }
        Ok(Secret(bytes))
    }

    /// Returns the bytes of the secret, for the file that stores it.
    pub(crate) fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A CHAP user name and its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    /// The user name: CHAP_N, 1 to 255 bytes.
    pub(crate) user: String,
    /// The secret that CHAP_R is computed from.
    pub(crate) secret: Secret,
}

impl Account {
    /// Creates an account. Fails if the user name is empty, longer than 255 bytes, or has a control
    /// character. CHAP_N is a text value (RFC 7143 12.1.3).
    pub(crate) fn new(user: impl Into<String>, secret: Secret) -> Result<Self> {
        let user = user.into();
        if user.is_empty() || user.len() > 255 || user.chars().any(char::is_control) {
            return refuse("a user name must have 1 to 255 bytes and no control characters");
        }
        Ok(Account { user, secret })
    }
}

/// The CHAP configuration of a target, or of all targets: the accounts of initiators, and the
/// target's own account.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Chap {
    /// An initiator authenticates with one of these accounts. The list is not empty, and its user
    /// names are unique.
    pub(crate) accounts: Vec<Account>,
    /// The target authenticates with this account if the initiator requests mutual CHAP.
    pub(crate) mutual: Option<Account>,
}

impl Account {
    /// Converts the account to the type that the iSCSI login uses.
    fn for_login(&self) -> ChapUser {
        ChapUser { name: self.user.clone(), secret: iscsi::Secret::new(self.secret.0.clone()) }
    }
}

impl Chap {
    /// Converts the configuration to the type that the iSCSI login uses. `may_prove` returns
    /// whether a target may authenticate with a secret. Without that permission mutual CHAP is off.
    pub(crate) fn policy(&self, may_prove: impl Fn(&Secret) -> bool) -> AuthPolicy {
        let mutual = self.mutual.as_ref().filter(|own| may_prove(&own.secret));
        AuthPolicy::Chap {
            users: self.accounts.iter().map(Account::for_login).collect(),
            mutual: mutual.map(Account::for_login),
        }
    }

    /// Returns the account with this user name.
    pub(crate) fn account(&self, user: &str) -> Option<&Account> {
        self.accounts.iter().find(|account| account.user == user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_long_enough_and_not_shown() {
        for (len, good) in [(0, false), (11, false), (12, true), (255, true), (256, false)] {
            assert_eq!(Secret::new(vec![b'x'; len]).is_ok(), good, "{len}");
        }
        let account = |user: &str, secret: &str| Account::new(user, Secret::new(secret).unwrap());
        let (incoming, mutual) = (account("alice", "sesame-sesame"), account("target", "open-open-open"));
        let chap = Chap { accounts: vec![incoming.unwrap()], mutual: Some(mutual.unwrap()) };
        let shown = format!("{chap:?}");
        assert!(shown.contains("alice") && !shown.contains("sesame") && !shown.contains("open"), "{shown}");
        assert!(account("", "sesame-sesame").is_err() && account("a\nb", "sesame-sesame").is_err());
    }
}
