//! CHAP credentials as they are set and stored, and the rules for them. No code can show a secret
//! by accident: a [`Secret`] has no textual form.

use hindcast_engine::{Error, ErrorKind, Result};
use hindcast_target::iscsi::{self, AuthPolicy, ChapUser};
use std::fmt;

/// Shortest and longest CHAP secret in bytes. RFC 7143 9.2.1 asks for at least 96 random bits where
/// nothing else protects the connection; the length has to fit CHAP's one-byte length (RFC 1994
/// 4.1).
const SECRET_LEN: std::ops::RangeInclusive<usize> = 12..=255;

fn refuse<T>(why: impl fmt::Display) -> Result<T> {
    Err(Error::new(ErrorKind::Invalid, format!("set CHAP: {why}")))
}

/// A CHAP secret that is long enough. Neither `Debug` nor anything else shows it; it can only be
/// asked for.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Vec<u8>);

impl Secret {
    /// Checks the length: [`SECRET_LEN`].
    pub(crate) fn new(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        let bytes = bytes.into();
        if !SECRET_LEN.contains(&bytes.len()) {
            let (least, most) = SECRET_LEN.into_inner();
            return refuse(format!("a secret must have {least} to {most} bytes, not {}", bytes.len()));
        }
        Ok(Secret(bytes))
    }

    /// The secret itself, for the file that keeps it.
    pub(crate) fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A CHAP name with its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    /// CHAP_N.
    pub(crate) user: String,
    /// What CHAP_R is computed from.
    pub(crate) secret: Secret,
}

impl Account {
    /// Checks both. CHAP_N is a text value (RFC 7143 12.1.3).
    pub(crate) fn new(user: impl Into<String>, secret: Secret) -> Result<Self> {
        let user = user.into();
        if user.is_empty() || user.len() > 255 || user.chars().any(char::is_control) {
            return refuse("a user name must have 1 to 255 bytes and no control characters");
        }
        Ok(Account { user, secret })
    }
}

/// CHAP as it is set for a target, or for all targets: the accounts of initiators, and the target's
/// own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Chap {
    /// An initiator proves to know one of these. There is at least one, and no name is there twice.
    pub(crate) accounts: Vec<Account>,
    /// The target proves to know this, if the initiator asks it to.
    pub(crate) mutual: Option<Account>,
}

impl Account {
    /// As the target's login asks for it.
    fn for_login(&self) -> ChapUser {
        ChapUser { name: self.user.clone(), secret: iscsi::Secret::new(self.secret.0.clone()) }
    }
}

impl Chap {
    /// As the target's login asks for it; `may_prove` tells whether a secret of the target's may be
    /// used.
    pub(crate) fn policy(&self, may_prove: impl Fn(&Secret) -> bool) -> AuthPolicy {
        let mutual = self.mutual.as_ref().filter(|own| may_prove(&own.secret));
        AuthPolicy::Chap {
            users: self.accounts.iter().map(Account::for_login).collect(),
            mutual: mutual.map(Account::for_login),
        }
    }

    /// The account of this name.
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
