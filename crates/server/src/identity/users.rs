//! Users of the console, and their passwords.
//!
//! The data directory stores the users with hashes of their passwords (Argon2id).

use super::principal::check_name;
use super::records::Records;
use super::secret::{Hash, random, same};
use crate::realtime;
use argon2::{Algorithm, Argon2, Params, Version};
use hindcast_api::{CreateUser, PatchUser, Role, User};
use hindcast_engine::disk::Dir;
use hindcast_engine::{Error, ErrorKind, Result};
use jiff::Timestamp;
use rustix::process::setpriority_process;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Name, kind and version of the file of users. The version decides the cost of the hashes.
pub(crate) const STORED: (&str, &str, u32) = ("users.json", "users", 1);
/// Maximum number of users.
const MAX: usize = 1024;
/// Least length of a password, in characters.
const LEAST: usize = 12;
/// Maximum length of a password, in bytes.
const MOST: usize = 1024;
/// Memory that a hash takes, in KiB.
const MEMORY: u32 = 19 << 10;
/// Number of passes over that memory.
const PASSES: u32 = 2;

/// A user as the file has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredUser {
    name: String,
    role: Role,
    created: Timestamp,
    salt: Hash,
    hash: Hash,
}

/// Priority of the threads that hash passwords (setpriority(2)).
const LOWEST_PRIORITY: i32 = 19;

/// All users.
pub(crate) struct Users(Records<StoredUser>);

/// Checks the content of the file of users.
pub(crate) fn verify(content: &[u8]) -> Result<()> {
    Records::<StoredUser>::verify(STORED, content)
}

impl Users {
    pub(crate) fn open(dir: Arc<dyn Dir>) -> Users {
        Users(Records::open(dir, STORED))
    }

    /// Returns all users, sorted by name.
    pub(crate) fn list(&self) -> Result<Vec<User>> {
        Ok(self.0.all()?.iter().map(shown).collect())
    }

    /// Returns the role of the user with this name and password. It takes tens of milliseconds, and
    /// as long if there is no such user.
    pub(crate) fn role(&self, name: &str, password: &str) -> Result<Option<Role>> {
        let all = self.0.all()?;
        let found = all.iter().find(|user| user.name == name);
        let salt = found.map_or(Hash([0; 32]), |user| user.salt);
        let hash = hash(password, &salt)?;
        Ok(found.filter(|user| same(&user.hash.0, &hash.0)).map(|user| user.role))
    }

    /// Returns what changes with a user's role or password. `None`: there is no such user.
    pub(crate) fn state(&self, name: &str) -> Result<Option<(Role, [u8; 32])>> {
        Ok(self.0.all()?.iter().find(|user| user.name == name).map(|user| (user.role, user.hash.0)))
    }

    /// Creates a user. When this returns, the user survives a power loss.
    pub(crate) fn create(&self, new: &CreateUser, now: Timestamp) -> Result<User> {
        check_name("user", &new.name)?;
        let (salt, hash) = salted(&new.password)?;
        let user = StoredUser { name: new.name.clone(), role: new.role, created: now, salt, hash };
        check_role(new.role)?;
        self.0.update(|all| {
            if all.len() >= MAX {
                return Err(Error::new(
                    ErrorKind::NoSpace,
                    format!("create a user: there are {MAX} already"),
                ));
            }
            match all.binary_search_by(|other| other.name.cmp(&user.name)) {
                Ok(_) => Err(Error::new(
                    ErrorKind::Conflict,
                    format!("create user {}: it exists already", user.name),
                )),
                Err(place) => {
                    all.insert(place, user.clone());
                    Ok(())
                }
            }
        })?;
        Ok(shown(&user))
    }

    /// Changes a user.
    pub(crate) fn change(&self, name: &str, patch: &PatchUser) -> Result<User> {
        let password = patch.password.as_deref().map(salted).transpose()?;
        patch.role.map(check_role).transpose()?;
        let mut changed = None;
        self.0.update(|all| {
            let user = all.iter_mut().find(|user| user.name == name).ok_or_else(|| not_found(name))?;
            user.role = patch.role.unwrap_or(user.role);
            if let Some((salt, hash)) = password {
                (user.salt, user.hash) = (salt, hash);
            }
            changed = Some(shown(user));
            Ok(())
        })?;
        changed.ok_or_else(|| not_found(name))
    }

    /// Removes a user.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        self.0.update(|all| {
            let place = all.iter().position(|user| user.name == name).ok_or_else(|| not_found(name))?;
            all.remove(place);
            Ok(())
        })
    }
}

fn shown(user: &StoredUser) -> User {
    User { name: user.name.clone(), role: user.role, created: user.created }
}

fn not_found(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("find user {name}: it does not exist"))
}

/// Checks the role of a user. Two roles are for programs only.
fn check_role(role: Role) -> Result<()> {
    match role {
        Role::Viewer | Role::Operator | Role::Admin => Ok(()),
        Role::Replicate | Role::Metrics => {
            let text = format!("give a user the role {role}: only tokens can have it");
            Err(Error::new(ErrorKind::Invalid, text))
        }
    }
}

/// Checks a new password, and returns a new salt and its hash.
fn salted(password: &str) -> Result<(Hash, Hash)> {
    let length = password.chars().count();
    if length < LEAST || password.len() > MOST {
        let text =
            format!("set a password: it must have at least {LEAST} characters, and at most {MOST} bytes");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let salt = Hash(random()?);
    Ok((salt, hash(password, &salt)?))
}

/// Computes the hash of a password. The work is large on purpose, and those who log in can ask for
/// it again and again. It has a thread of its own with the lowest priority, which holds no lock, so
/// that nothing else of the server waits for a processor because of it.
fn hash(password: &str, salt: &Hash) -> Result<Hash> {
    let at_lowest = || {
        realtime::lower();
        // Without that the log-in is checked at the normal priority.
        let _ = setpriority_process(None, LOWEST_PRIORITY);
        hash_now(password, salt)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("password".into()).spawn_scoped(scope, at_lowest);
        let thread = thread.map_err(|e| Error::io("start a thread that hashes a password", e))?;
        let panicked = |_| Error::new(ErrorKind::Invalid, "hash a password: the thread panicked");
        thread.join().map_err(panicked)?
    })
}

fn hash_now(password: &str, salt: &Hash) -> Result<Hash> {
    let failed = |e: argon2::Error| Error::new(ErrorKind::Invalid, format!("hash a password: {e}"));
    let params = Params::new(MEMORY, PASSES, 1, Some(32)).map_err(failed)?;
    let mut hash = [0; 32];
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    argon2.hash_password_into(password.as_bytes(), &salt.0, &mut hash).map_err(failed)?;
    Ok(Hash(hash))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_engine::disk::MemDir;

    fn new(name: &str, password: &str) -> CreateUser {
        CreateUser { name: name.into(), role: Role::Operator, password: password.into() }
    }

    #[test]
    fn a_user_logs_in_with_the_password_only() {
        let dir: Arc<dyn Dir> = Arc::new(MemDir::new());
        let users = Users::open(dir.clone());
        users.create(&new("anna", "correct horse"), Timestamp::now()).unwrap();
        let kind = |result: Result<User>| result.unwrap_err().kind();
        assert_eq!(kind(users.create(&new("anna", "other horse!"), Timestamp::now())), ErrorKind::Conflict);
        assert_eq!(kind(users.create(&new("b", "short"), Timestamp::now())), ErrorKind::Invalid);
        let metrics = CreateUser { role: Role::Metrics, ..new("c", "correct horse") };
        assert_eq!(kind(users.create(&metrics, Timestamp::now())), ErrorKind::Invalid);
        let users = Users::open(dir.clone());
        assert_eq!(users.role("anna", "correct horse").unwrap(), Some(Role::Operator));
        for (name, password) in [("anna", "correct hors"), ("anna", ""), ("bob", "correct horse")] {
            assert_eq!(users.role(name, password).unwrap(), None, "{name} {password}");
        }
        let patch = PatchUser { password: Some("battery staple".into()), role: Some(Role::Viewer) };
        users.change("anna", &patch).unwrap();
        assert_eq!(users.role("anna", "correct horse").unwrap(), None);
        assert_eq!(users.role("anna", "battery staple").unwrap(), Some(Role::Viewer));
        let (name, kind_of_file, version) = STORED;
        let file = crate::atomic_file::DurableFile::new(dir, name, kind_of_file, version);
        let content = file.load().unwrap().unwrap();
        verify(&content).unwrap();
        assert!(!String::from_utf8(content).unwrap().contains("battery"));
        users.remove("anna").unwrap();
        assert_eq!(users.remove("anna").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(kind(users.change("anna", &patch)), ErrorKind::NotFound);
    }
}
