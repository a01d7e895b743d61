//! Sessions of browsers. They are in memory only, so a restart of the server ends them.

use super::principal::{Principal, VolumeScope};
use super::secret::{Hash, hex, random};
use hindcast_api::{ActiveSession, PrincipalKind, WhoAmI};
use hindcast_engine::Result;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time without a request after which a session ends.
const IDLE: Duration = Duration::from_secs(12 * 3600);
/// Time after which a session ends in any case.
pub(crate) const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum number of sessions. A new one ends the session that was not used for the longest time.
const MAX: usize = 1024;
/// Maximum number of sessions of one user.
const MAX_OF_ONE: usize = 32;

/// A session.
struct Active {
    /// Identity for people. It is no secret.
    id: String,
    caller: Arc<Principal>,
    address: String,
    began: (Instant, Timestamp),
    used: (Instant, Timestamp),
}

impl Active {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.used.0) >= IDLE || now.duration_since(self.began.0) >= LONGEST
    }

    fn expires(&self) -> Timestamp {
        let after =
            |time: Timestamp, span: Duration| time.checked_add(SignedDuration::try_from(span).ok()?).ok();
        let (idle, longest) = (after(self.used.1, IDLE), after(self.began.1, LONGEST));
        idle.into_iter().chain(longest).min().unwrap_or(self.used.1)
    }
}

/// All sessions, by the hashes of their secrets.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<BTreeMap<Hash, Active>>);

impl Sessions {
    /// Begins a session. Returns its secret, for the cookie, and its end.
    pub(crate) fn begin(
        &self,
        caller: Principal,
        address: String,
        now: Instant,
    ) -> Result<(String, Timestamp)> {
        let (secret, id) = (hex(&random()?), hex(&random()?[..8]));
        let times = (now, Timestamp::now());
        let session = Active { id, caller: Arc::new(caller), address, began: times, used: times };
        let expires = session.expires();
        let mut all = self.0.lock();
        all.retain(|_, other| !other.is_over(now));
        let own = |other: &Active| {
            other.caller.kind == session.caller.kind && other.caller.name == session.caller.name
        };
        let of_user = all.values().filter(|other| own(other)).count();
        let oldest = |mine: bool| {
            let among = all.iter().filter(|(_, other)| !mine || own(other));
            among.min_by_key(|(_, other)| other.used.0).map(|(key, _)| *key)
        };
        let gone = match (of_user >= MAX_OF_ONE, all.len() >= MAX) {
            (true, _) => oldest(true),
            (false, true) => oldest(false),
            (false, false) => None,
        };
        gone.map(|key| all.remove(&key));
        all.insert(Hash::of(secret.as_bytes()), session);
        Ok((secret, expires))
    }

    /// Returns the caller of a session, and the key of the session. The session counts as used.
    pub(crate) fn caller(&self, secret: &str, now: Instant) -> Option<(Arc<Principal>, Hash)> {
        let key = Hash::of(secret.as_bytes());
        let mut all = self.0.lock();
        let session = all.get_mut(&key)?;
        if session.is_over(now) {
            all.remove(&key);
            return None;
        }
        session.used = (now, Timestamp::now());
        Some((session.caller.clone(), key))
    }

    /// Returns when a session ends.
    pub(crate) fn expires(&self, key: &Hash) -> Option<Timestamp> {
        self.0.lock().get(key).map(Active::expires)
    }

    /// Ends a session by its key.
    pub(crate) fn end(&self, key: &Hash) {
        self.0.lock().remove(key);
    }

    /// Ends a session by its identity. Returns whether it existed.
    pub(crate) fn end_by_id(&self, id: &str) -> bool {
        let mut all = self.0.lock();
        let before = all.len();
        all.retain(|_, session| session.id != id);
        all.len() < before
    }

    /// Ends the sessions that a user began with a password.
    pub(crate) fn end_of_user(&self, name: &str) {
        self.0.lock().retain(|_, s| s.caller.kind != PrincipalKind::User || s.caller.name != name);
    }

    /// Removes sessions that are over.
    pub(crate) fn tidy(&self, now: Instant) {
        self.0.lock().retain(|_, session| !session.is_over(now));
    }

    /// Returns all sessions, the oldest first.
    pub(crate) fn list(&self, now: Instant) -> Vec<ActiveSession> {
        let all = self.0.lock();
        let shown = |session: &Active| ActiveSession {
            id: session.id.clone(),
            kind: session.caller.kind,
            name: session.caller.name.clone(),
            role: session.caller.role,
            address: session.address.clone(),
            since: session.began.1,
            last_used: session.used.1,
            expires: session.expires(),
        };
        let mut list: Vec<_> = all.values().filter(|s| !s.is_over(now)).map(shown).collect();
        list.sort_by_key(|session| session.since);
        list
    }
}

/// Describes a caller, for itself.
pub(crate) fn who(caller: &Principal, expires: Option<Timestamp>) -> WhoAmI {
    let volumes = match &caller.scope {
        VolumeScope::All => Vec::new(),
        VolumeScope::Volumes(patterns) => patterns.clone(),
    };
    WhoAmI { kind: caller.kind, name: caller.name.clone(), role: caller.role, volumes, expires }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_api::Role;

    fn anna() -> Principal {
        Principal::new(PrincipalKind::User, "anna", Role::Operator)
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_session_ends_when_it_is_idle_and_after_a_week() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let (idle, _) = sessions.begin(anna(), "a".into(), start).unwrap();
        let (used, expires) = sessions.begin(anna(), "a".into(), start).unwrap();
        assert!(expires > Timestamp::now());
        let mut now = start;
        while now < start + LONGEST - HOUR * 11 {
            assert_eq!(sessions.caller(&used, now).unwrap().0.name, "anna");
            now += HOUR * 11;
        }
        assert!(sessions.caller(&used, start + LONGEST).is_none());
        assert!(sessions.caller(&idle, start + IDLE).is_none());
        assert!(sessions.caller("", start).is_none());
        assert!(sessions.list(start).is_empty());
    }

    #[test]
    fn sessions_are_ended_by_key_by_identity_and_with_their_user() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let begin = |caller| sessions.begin(caller, "a".into(), now).unwrap().0;
        let secrets = [begin(anna()), begin(anna()), begin(anna())];
        let link = begin(Principal::new(PrincipalKind::Link, "anna", Role::Admin));
        let (_, key) = sessions.caller(&secrets[0], now).unwrap();
        sessions.end(&key);
        assert!(sessions.caller(&secrets[0], now).is_none());
        let list = sessions.list(now);
        assert_eq!(list.len(), 3);
        assert!(sessions.end_by_id(&list[0].id) && !sessions.end_by_id(&list[0].id));
        sessions.end_of_user("anna");
        assert!(secrets.iter().all(|secret| sessions.caller(secret, now).is_none()));
        assert!(sessions.caller(&link, now).is_some(), "it does not belong to the user");
    }

    #[test]
    fn the_number_of_sessions_is_limited() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let (first, _) = sessions.begin(anna(), "a".into(), start).unwrap();
        for n in 0..MAX_OF_ONE {
            sessions.begin(anna(), "a".into(), start + Duration::from_secs(n as u64 + 1)).unwrap();
        }
        assert_eq!(sessions.list(start).len(), MAX_OF_ONE);
        assert!(sessions.caller(&first, start).is_none());
    }
}
