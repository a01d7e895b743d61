//! Who calls the admin API, and how a caller proves that.

mod attempts;
mod links;
pub(crate) mod local;
pub(crate) mod principal;
mod records;
pub(crate) mod secret;
pub(crate) mod sessions;
pub(crate) mod tokens;
pub(crate) mod users;

use attempts::Attempts;
use hindcast_api::{PrincipalKind, Role};
use hindcast_engine::disk::Dir;
use hindcast_engine::{Error, Result};
use jiff::{SignedDuration, Timestamp};
use links::Links;
use local::{Accounts, SocketAccess};
use principal::Principal;
use secret::{Hash, same};
use sessions::Sessions;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokens::Tokens;
use users::Users;

/// Name of the caller with the token of `--api-token-file`.
const FILE_TOKEN: &str = "api-token-file";

/// Everything by which the server recognizes callers.
pub(crate) struct Callers {
    socket: SocketAccess,
    accounts: Accounts,
    /// The token in the file of `--api-token-file`. Its holder is an admin.
    file_token: Option<String>,
    pub(crate) tokens: Tokens,
    pub(crate) users: Users,
    pub(crate) sessions: Sessions,
    links: Links,
    attempts: Attempts,
}

/// Why a log-in failed.
#[derive(Debug)]
pub(crate) enum LogInError {
    /// The name, the password or the link is wrong.
    Wrong,
    /// Too many log-ins failed. The next attempt is possible after this time.
    Later(Duration),
    /// The log-in could not be checked.
    Failed(Error),
}

impl From<Error> for LogInError {
    fn from(error: Error) -> LogInError {
        LogInError::Failed(error)
    }
}

impl Callers {
    /// Reads the files of the data directory `dir`.
    pub(crate) fn open(dir: &Arc<dyn Dir>, socket: SocketAccess, file_token: Option<String>) -> Callers {
        let accounts = Accounts::default();
        accounts.read();
        Callers {
            socket,
            accounts,
            file_token,
            tokens: Tokens::open(dir.clone()),
            users: Users::open(dir.clone()),
            sessions: Sessions::default(),
            links: Links::default(),
            attempts: Attempts::new(),
        }
    }

    /// Returns the caller for a process of user `uid` that is connected to the Unix socket. `None`:
    /// the user has no access. It reads no file.
    pub(crate) fn local(&self, uid: u32) -> Option<Principal> {
        self.socket.caller(uid, &self.accounts)
    }

    /// Returns the name of a user of this machine. It reads no file.
    pub(crate) fn user_name(&self, uid: u32) -> String {
        self.accounts.name(uid)
    }

    /// Returns the caller that presents this bearer token.
    pub(crate) fn bearer(&self, token: &str) -> Option<Principal> {
        let known = self.file_token.as_deref().unwrap_or_default();
        if !known.is_empty() && same(token.as_bytes(), known.as_bytes()) {
            return Some(Principal::new(PrincipalKind::Token, FILE_TOKEN, Role::Admin));
        }
        self.tokens.holder(token, Timestamp::now())
    }

    /// Returns whether a caller without a session is still one: its token was neither revoked nor
    /// has it expired.
    pub(crate) fn is_known(&self, caller: &Principal) -> bool {
        caller.token.is_none_or(|token| self.tokens.has(&token, Timestamp::now()))
    }

    /// Begins a session for a user with a password. Returns the secret of the session, its caller
    /// and its end. It takes tens of milliseconds, whether the user exists or not.
    pub(crate) fn log_in(
        &self,
        (name, password): (&str, &str),
        address: Option<IpAddr>,
    ) -> std::result::Result<NewSession, LogInError> {
        self.attempts.begin(address, name, Instant::now()).map_err(LogInError::Later)?;
        let known = self.users.state(name)?;
        let role = self.users.role(name, password)?.ok_or(LogInError::Wrong)?;
        let begun = self.begin(Principal::new(PrincipalKind::User, name, role), address)?;
        // The user may have been removed or changed while the password was hashed. That ends the
        // sessions that exist by then, so it is looked up again after this one exists.
        if self.users.state(name)? != known {
            self.sessions.end(&Hash::of(begun.secret.as_bytes()));
            return Err(LogInError::Wrong);
        }
        self.attempts.succeeded(address, name);
        Ok(begun)
    }

    /// Begins a session with the secret of a one-time link.
    pub(crate) fn follow(
        &self,
        link: &str,
        address: Option<IpAddr>,
    ) -> std::result::Result<NewSession, LogInError> {
        // Nobody guesses 256 bits. A limit would only let strangers keep others out.
        let caller = self.links.take(link, Instant::now()).ok_or(LogInError::Wrong)?;
        Ok(self.begin(caller, address)?)
    }

    fn begin(&self, caller: Principal, address: Option<IpAddr>) -> Result<NewSession> {
        let shown = address.map_or_else(|| "unix".to_owned(), |address| address.to_canonical().to_string());
        let (secret, expires) = self.sessions.begin(caller.clone(), shown, Instant::now())?;
        Ok(NewSession { secret, caller, expires })
    }

    /// Makes a one-time link for a session with the role of `caller`. Returns its secret and its
    /// end.
    pub(crate) fn make_link(&self, caller: &Principal) -> Result<(String, Timestamp)> {
        let caller = Principal { kind: PrincipalKind::Link, ..caller.clone() };
        let secret = self.links.make(caller, Instant::now())?;
        let life = SignedDuration::try_from(links::LIFE).unwrap_or_default();
        let now = Timestamp::now();
        Ok((secret, now.checked_add(life).unwrap_or(now)))
    }

    /// Does what is due from time to time: it reads the names of local users again, writes the
    /// times of last uses, and forgets sessions that are over.
    pub(crate) fn keep_up(&self) {
        self.accounts.read();
        self.sessions.tidy(Instant::now());
        if let Err(error) = self.tokens.save_uses() {
            tracing::warn!(%error, "the times at which tokens were used can't be written");
        }
    }
}

/// A session that has just begun.
pub(crate) struct NewSession {
    /// The secret, for the cookie.
    pub(crate) secret: String,
    pub(crate) caller: Principal,
    pub(crate) expires: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_api::{CreateToken, CreateUser};
    use hindcast_engine::disk::MemDir;
    use std::sync::Barrier;

    fn callers() -> Callers {
        let socket = SocketAccess { group: None, role: Role::Viewer };
        Callers::open(&(Arc::new(MemDir::new()) as Arc<dyn Dir>), socket, None)
    }

    #[test]
    fn a_token_that_was_revoked_or_has_expired_is_not_known() {
        let callers = callers();
        let create = |name: &str, expires_seconds| {
            let new = CreateToken {
                name: name.into(),
                role: Role::Viewer,
                volumes: Vec::new(),
                expires_seconds,
                views: false,
            };
            let created = callers.tokens.create(&new, Timestamp::now()).unwrap();
            callers.bearer(&created.secret).unwrap()
        };
        let (stays, revoked, expires) = (create("a", None), create("b", None), create("c", Some(1)));
        assert!([&stays, &revoked, &expires].into_iter().all(|caller| callers.is_known(caller)));
        callers.tokens.revoke("b").unwrap();
        std::thread::sleep(Duration::from_millis(1100));
        assert!(callers.is_known(&stays));
        assert!(!callers.is_known(&revoked) && !callers.is_known(&expires));
        let again = create("b", None);
        assert!(callers.is_known(&again) && !callers.is_known(&revoked), "a token of the same name");
        let (begun, address) = (callers.begin(stays, None).unwrap(), None);
        let key = Hash::of(begun.secret.as_bytes());
        assert!(callers.sessions.expires(&key).is_some());
        callers.sessions.end(&key);
        assert!(callers.sessions.expires(&key).is_none());
        assert!(matches!(callers.follow("none", address), Err(LogInError::Wrong)));
    }

    /// An attempt is taken before the password is checked, which takes long. Otherwise all attempts
    /// that begin at one time would find the bucket full.
    #[test]
    fn log_ins_at_one_time_share_the_bucket_of_failures() {
        const THREADS: usize = 12;
        let callers = callers();
        let new = CreateUser { name: "anna".into(), role: Role::Viewer, password: "correct horse".into() };
        callers.users.create(&new, Timestamp::now()).unwrap();
        let (begin, address) = (Barrier::new(THREADS), Some(IpAddr::from([10, 0, 0, 1])));
        let attempt = || {
            begin.wait();
            callers.log_in(("anna", "wrong horse!"), address)
        };
        let failed: Vec<_> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..THREADS).map(|_| scope.spawn(attempt)).collect();
            all.into_iter().map(|thread| thread.join().unwrap().err().unwrap()).collect()
        });
        let checked = failed.iter().filter(|error| matches!(error, LogInError::Wrong)).count();
        assert_eq!(checked, 5, "{failed:?}");
        assert!(matches!(callers.log_in(("anna", "correct horse"), address), Err(LogInError::Later(_))));
    }
}
