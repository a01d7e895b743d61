//! The caller of a request ([`Principal`]): its name, its role, and the volumes that it may use.

use super::secret::Hash;
use hindcast_api::{ErrorBody, ErrorKind, PrincipalKind, Role};
use hindcast_engine::{Error, Result};
use std::fmt;

/// Maximum length of the name of a token or user.
const MAX_NAME: usize = 64;

/// The caller of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Principal {
    pub(crate) kind: PrincipalKind,
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) scope: VolumeScope,
    /// Whether it may create views, though its role may only read.
    pub(crate) views: bool,
    /// Hash of the secret of its token. A token with the same name that was created later has
    /// another one. `None`: the caller has none of the server's tokens.
    pub(crate) token: Option<Hash>,
}

impl Principal {
    /// Makes a caller that may use all volumes.
    pub(crate) fn new(kind: PrincipalKind, name: impl Into<String>, role: Role) -> Principal {
        Principal { kind, name: name.into(), role, scope: VolumeScope::All, views: false, token: None }
    }

    /// Checks that the caller has the role `needed`. `what` is the operation that needs it, in the
    /// imperative: `shrink a volume`.
    pub(crate) fn require(&self, needed: Role, what: &str) -> std::result::Result<(), ErrorBody> {
        if self.role.covers(needed) {
            return Ok(());
        }
        Err(forbidden(format!("{what}: this needs the role {needed}, and {self} has the role {}", self.role)))
    }

    /// Checks that the caller may use a volume.
    pub(crate) fn require_volume(&self, name: &str) -> std::result::Result<(), ErrorBody> {
        match self.scope.covers(name) {
            true => Ok(()),
            // Not by name: the request may have a UUID, whose name the caller does not know.
            false => {
                Err(forbidden(format!("use a volume of this request: it is outside the scope of {self}")))
            }
        }
    }
}

/// Returns the error for a caller that may not do what it asked for.
pub(crate) fn forbidden(message: impl Into<String>) -> ErrorBody {
    ErrorBody { kind: ErrorKind::Forbidden, message: message.into() }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            PrincipalKind::Local => write!(f, "the local user {}", self.name),
            PrincipalKind::Token => write!(f, "the token {}", self.name),
            PrincipalKind::User => write!(f, "the user {}", self.name),
            PrincipalKind::Link => write!(f, "the session by a link of {}", self.name),
        }
    }
}

/// The volumes that a caller may use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum VolumeScope {
    /// All volumes, and everything else of the server that the role allows.
    #[default]
    All,
    /// The volumes whose names match one of these patterns. In a pattern, `*` stands for any number
    /// of characters.
    Volumes(Vec<String>),
}

impl VolumeScope {
    /// Returns whether the scope includes the volume with this name. An identity of another form,
    /// such as `uuid:…`, is never included in a scope of names.
    pub(crate) fn covers(&self, name: &str) -> bool {
        match self {
            VolumeScope::All => true,
            VolumeScope::Volumes(patterns) => {
                is_name(name) && patterns.iter().any(|pattern| matches(pattern.as_bytes(), name.as_bytes()))
            }
        }
    }
}

/// Checks the name of a token or user. `what` says which of them.
pub(super) fn check_name(what: &str, name: &str) -> Result<()> {
    let ok = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let first = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    if first && name.len() <= MAX_NAME && name.bytes().all(ok) {
        return Ok(());
    }
    let text = format!(
        "use {name:?} for a {what}: a name must have 1 to {MAX_NAME} letters, digits, dots, underscores and hyphens, and start with a letter or digit"
    );
    Err(Error::new(hindcast_engine::ErrorKind::Invalid, text))
}

/// Checks a pattern of volume names.
pub(crate) fn check_pattern(pattern: &str) -> std::result::Result<(), ErrorBody> {
    if is_name(&pattern.replace('*', "x")) && pattern.len() <= 128 {
        return Ok(());
    }
    let message = format!(
        "use {pattern:?} for volumes: give a name of a volume, or a pattern of letters, digits, dots, underscores, hyphens and *"
    );
    Err(ErrorBody { kind: ErrorKind::Invalid, message })
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// Returns whether `text` matches `pattern`. The time is at most the product of their lengths.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // The place after the last `*`, and the place in the text up to which it matches.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match (pattern.get(p), star) {
            (Some(b'*'), _) => {
                star = Some((p + 1, t));
                p += 1;
            }
            (Some(byte), _) if *byte == text[t] => (p, t) = (p + 1, t + 1),
            (_, Some((after, matched))) => {
                star = Some((after, matched + 1));
                (p, t) = (after, matched + 1);
            }
            (_, None) => return false,
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_covers_names_and_patterns() {
        let scope = VolumeScope::Volumes(vec!["db*".into(), "log".into(), "*-a*z".into()]);
        for name in ["db", "db1", "db-x.y", "log", "x-az", "-abcz", "q-a-azz"] {
            assert!(scope.covers(name), "{name}");
        }
        for name in ["", "d", "log1", "xlog", "x-a", "uuid:db", "db@x", "db/x", "db x"] {
            assert!(!scope.covers(name), "{name}");
        }
        assert!(VolumeScope::Volumes(vec!["*".into()]).covers("any"));
        assert!(!VolumeScope::Volumes(vec!["*".into()]).covers("uuid:1"));
        assert!(VolumeScope::All.covers("uuid:1"));
        for good in ["*", "db*", "a.b_c-d"] {
            check_pattern(good).unwrap();
        }
        for bad in ["", "a b", "db@*", "a/b", "ä"] {
            assert!(check_pattern(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_refusal_names_the_role() {
        let viewer = Principal::new(PrincipalKind::Token, "ci", Role::Viewer);
        assert_eq!(viewer.require(Role::Viewer, "x"), Ok(()));
        let error = viewer.require(Role::Admin, "shrink a volume").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Forbidden);
        assert_eq!(
            error.message,
            "shrink a volume: this needs the role admin, and the token ci has the role viewer"
        );
    }
}
