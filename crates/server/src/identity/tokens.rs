//! Access tokens: named secrets with a role, a scope of volumes and a time of expiry.
//!
//! The data directory stores them with the SHA-256 hashes of their secrets. A secret has 256 random
//! bits, so its hash reveals nothing.

use super::principal::{Principal, VolumeScope, check_name, check_pattern};
use super::records::Records;
use super::secret::{Hash, hex, random};
use hindcast_api::{AccessToken, CreateToken, CreatedToken, PrincipalKind, Role};
use hindcast_engine::disk::Dir;
use hindcast_engine::{Error, ErrorKind, Result};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Name, kind and version of the file of tokens.
pub(crate) const STORED: (&str, &str, u32) = ("tokens.json", "tokens", 1);
/// Maximum number of tokens.
const MAX: usize = 1024;
/// The first characters of each secret. They show people and scanners what it is.
const PREFIX: &str = "hct_";

/// A token as the file has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredToken {
    name: String,
    role: Role,
    volumes: Vec<String>,
    /// Earlier builds refuse a file with such a token.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    views: bool,
    created: Timestamp,
    expires: Option<Timestamp>,
    last_used: Option<Timestamp>,
    hash: Hash,
}

/// All tokens.
pub(crate) struct Tokens {
    records: Records<StoredToken>,
    /// Times of last uses that the file does not have yet, by name.
    used: Mutex<BTreeMap<String, Timestamp>>,
}

/// Checks the content of the file of tokens.
pub(crate) fn verify(content: &[u8]) -> Result<()> {
    Records::<StoredToken>::verify(STORED, content)
}

impl Tokens {
    pub(crate) fn open(dir: Arc<dyn Dir>) -> Tokens {
        Tokens { records: Records::open(dir, STORED), used: Mutex::default() }
    }

    /// Returns the holder of the token with this secret.
    pub(crate) fn holder(&self, secret: &str, now: Timestamp) -> Option<Principal> {
        let digits = secret.strip_prefix(PREFIX).filter(|digits| digits.len() == 64)?;
        let hash = Hash::of(digits.as_bytes());
        let all = self.records.all().ok()?;
        // A comparison of hashes tells nothing of the secret.
        let found = all.iter().find(|token| token.hash == hash)?;
        if found.expires.is_some_and(|end| end <= now) {
            return None;
        }
        self.used.lock().insert(found.name.clone(), now);
        let scope = match found.volumes.is_empty() {
            true => VolumeScope::All,
            false => VolumeScope::Volumes(found.volumes.clone()),
        };
        Some(Principal {
            scope,
            views: found.views,
            token: Some(hash),
            ..Principal::new(PrincipalKind::Token, &found.name, found.role)
        })
    }

    /// Returns whether the token whose secret has this hash exists and has not expired.
    pub(crate) fn has(&self, hash: &Hash, now: Timestamp) -> bool {
        let is_it = |token: &StoredToken| token.hash == *hash && token.expires.is_none_or(|end| end > now);
        self.records.all().is_ok_and(|all| all.iter().any(is_it))
    }

    /// Returns all tokens, sorted by name.
    pub(crate) fn list(&self) -> Result<Vec<AccessToken>> {
        let all = self.records.all()?;
        Ok(all.iter().map(|token| self.shown(token)).collect())
    }

    fn shown(&self, token: &StoredToken) -> AccessToken {
        let used = self.used.lock().get(&token.name).copied();
        let StoredToken { name, role, volumes, views, created, expires, last_used, hash: _ } = token.clone();
        AccessToken { name, role, volumes, views, created, expires, last_used: used.or(last_used) }
    }

    /// Creates a token. When this returns, the token survives a power loss.
    pub(crate) fn create(&self, new: &CreateToken, now: Timestamp) -> Result<CreatedToken> {
        check_name("token", &new.name)?;
        let invalid = |text: String| Error::new(ErrorKind::Invalid, text);
        new.volumes.iter().try_for_each(|p| check_pattern(p)).map_err(|e| invalid(e.message))?;
        if !new.volumes.is_empty() && new.role == Role::Metrics {
            return Err(invalid("create a token: the role metrics has no scope of volumes".into()));
        }
        if new.views && !new.role.covers(Role::Viewer) {
            return Err(invalid(format!("create a token: the role {} creates no views", new.role)));
        }
        if new.volumes.len() > MAX {
            return Err(invalid(format!("create a token: it can name at most {MAX} volumes")));
        }
        let expires = new.expires_seconds.map(|seconds| {
            let far = || invalid("create a token: it expires too late".into());
            let span = i64::try_from(seconds).map(SignedDuration::from_secs).map_err(|_| far())?;
            now.checked_add(span).map_err(|_| far())
        });
        let digits = hex(&random()?);
        let token = StoredToken {
            name: new.name.clone(),
            role: new.role,
            volumes: new.volumes.clone(),
            views: new.views,
            created: now,
            expires: expires.transpose()?,
            last_used: None,
            hash: Hash::of(digits.as_bytes()),
        };
        self.records.update(|all| {
            if all.len() >= MAX {
                let text = format!("create a token: there are {MAX} already; revoke some");
                return Err(Error::new(ErrorKind::NoSpace, text));
            }
            match all.binary_search_by(|other| other.name.cmp(&token.name)) {
                Ok(_) => Err(Error::new(
                    ErrorKind::Conflict,
                    format!("create token {}: it exists already", token.name),
                )),
                Err(place) => {
                    all.insert(place, token.clone());
                    Ok(())
                }
            }
        })?;
        self.used.lock().remove(&token.name);
        Ok(CreatedToken { token: self.shown(&token), secret: format!("{PREFIX}{digits}") })
    }

    /// Revokes a token.
    pub(crate) fn revoke(&self, name: &str) -> Result<()> {
        self.records.update(|all| match all.iter().position(|token| token.name == name) {
            Some(place) => {
                all.remove(place);
                Ok(())
            }
            None => Err(Error::new(ErrorKind::NotFound, format!("find token {name}: it does not exist"))),
        })?;
        self.used.lock().remove(name);
        Ok(())
    }

    /// Writes the times of last uses to the file, if there are new ones.
    pub(crate) fn save_uses(&self) -> Result<()> {
        let used = std::mem::take(&mut *self.used.lock());
        if used.is_empty() {
            return Ok(());
        }
        self.records.update(|all| {
            for token in all {
                token.last_used = used.get(&token.name).copied().or(token.last_used);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_engine::disk::MemDir;

    fn new(name: &str, volumes: &[&str], expires_seconds: Option<u64>) -> CreateToken {
        let volumes = volumes.iter().map(|v| (*v).to_owned()).collect();
        CreateToken { name: name.into(), role: Role::Operator, volumes, views: false, expires_seconds }
    }

    #[test]
    fn a_token_is_known_by_its_secret_until_it_expires_or_is_revoked() {
        let dir: Arc<dyn Dir> = Arc::new(MemDir::new());
        let tokens = Tokens::open(dir.clone());
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let made = tokens.create(&new("ci", &["db*"], Some(60)), now).unwrap();
        let other = tokens.create(&new("a", &[], None), now).unwrap();
        assert_eq!(tokens.create(&new("ci", &[], None), now).unwrap_err().kind(), ErrorKind::Conflict);
        let again = Tokens::open(dir.clone());
        let holder = again.holder(&made.secret, now).unwrap();
        assert_eq!((holder.name.as_str(), holder.role), ("ci", Role::Operator));
        assert!(holder.scope.covers("db1") && !holder.scope.covers("log"));
        let later = now + SignedDuration::from_secs(60);
        assert_eq!(again.holder(&made.secret, later), None, "it has expired");
        assert_eq!(again.holder(&other.secret, later).unwrap().scope, VolumeScope::All);
        for wrong in ["", "hct_", &made.secret[..made.secret.len() - 1], &made.token.name] {
            assert_eq!(again.holder(wrong, now), None, "{wrong}");
        }
        let list = again.list().unwrap();
        assert_eq!(list.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["a", "ci"]);
        assert_eq!((list[0].last_used, list[1].last_used), (Some(later), Some(now)));
        again.save_uses().unwrap();
        assert_eq!(Tokens::open(dir.clone()).list().unwrap(), list);
        again.revoke("ci").unwrap();
        assert_eq!(again.revoke("ci").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(again.holder(&made.secret, now), None);
    }

    #[test]
    fn the_file_has_no_secret() {
        let dir: Arc<dyn Dir> = Arc::new(MemDir::new());
        let tokens = Tokens::open(dir.clone());
        let made = tokens.create(&new("ci", &[], None), Timestamp::now()).unwrap();
        let (name, kind, version) = STORED;
        let content = crate::atomic_file::DurableFile::new(dir, name, kind, version).load().unwrap().unwrap();
        verify(&content).unwrap();
        let text = String::from_utf8(content).unwrap();
        let digits = made.secret.strip_prefix(PREFIX).unwrap();
        assert!(!text.contains(digits) && text.contains("\"ci\""), "{text}");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let tokens = Tokens::open(Arc::new(MemDir::new()));
        let metrics = CreateToken { role: Role::Metrics, ..new("m", &["db"], None) };
        for bad in [
            new("", &[], None),
            new("a b", &[], None),
            new("a", &["x y"], None),
            new("a", &[], Some(u64::MAX)),
            metrics,
        ] {
            let error = tokens.create(&bad, Timestamp::now()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad:?}");
        }
    }
}
