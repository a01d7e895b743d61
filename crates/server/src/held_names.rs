//! Names of volumes that requests by UUID use.
//!
//! A request that names a volume by its UUID works with the name that the volume has when the
//! request arrives. Until the request has ended, the volume keeps that name: a rename and a
//! deletion wait. Otherwise another volume could get the name meanwhile, and the request would
//! reach that volume.

use hindcast_engine::pool::Pool;
use hindcast_engine::{Error, ErrorKind, Result};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Longest time that a rename or a deletion waits for requests.
const PATIENCE: Duration = Duration::from_secs(5);

/// How a name is used.
#[derive(Default)]
struct Use {
    /// Number of requests that hold it.
    held: usize,
    /// Whether a volume is losing it.
    leaving: bool,
}

#[derive(Default)]
struct Names {
    used: Mutex<BTreeMap<String, Use>>,
    changed: Condvar,
}

impl Names {
    fn change(&self, name: &str, change: impl FnOnce(&mut Use)) {
        let mut used = self.used.lock();
        if let Some(one) = used.get_mut(name) {
            change(one);
            if one.held == 0 && !one.leaving {
                used.remove(name);
            }
        }
        self.changed.notify_all();
    }
}

/// The names that requests hold. Copies share them.
#[derive(Clone, Default)]
pub(crate) struct HeldNames(Arc<Names>);

/// A name that a request holds. A drop releases it.
struct Hold {
    names: Arc<Names>,
    name: String,
    volume: Uuid,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.names.change(&self.name, |one| one.held -= 1);
    }
}

/// The names that one request holds.
#[derive(Default)]
pub(crate) struct Held(Mutex<Vec<Hold>>);

/// A name that a volume is losing. A drop ends that.
#[must_use]
pub(crate) struct Leaving {
    names: Arc<Names>,
    name: String,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.names.change(&self.name, |one| one.leaving = false);
    }
}

impl HeldNames {
    /// Lets a request hold the names of these volumes. Returns false, and holds none of them, if a
    /// volume has another name, or is losing its name. The caller then looks up the names again.
    pub(crate) fn hold(&self, pool: &Pool, request: &Held, volumes: &[(Uuid, String)]) -> bool {
        let mut holds = Vec::new();
        for (volume, name) in volumes {
            let mut used = self.0.used.lock();
            let one = used.entry(name.clone()).or_default();
            if one.leaving {
                return false;
            }
            one.held += 1;
            holds.push(Hold { names: self.0.clone(), name: name.clone(), volume: *volume });
        }
        let is_right = volumes.iter().all(|(volume, name)| pool.name_of(*volume).as_ref() == Some(name));
        if is_right {
            request.0.lock().append(&mut holds);
        }
        is_right
    }

    /// Waits until no other request holds the name of a volume, for a request that takes the name
    /// away from it. No request can hold the name until the result is dropped.
    ///
    /// Returns [`ErrorKind::Busy`] if requests hold it for too long. Returns
    /// [`ErrorKind::NotFound`] if the request found the volume by its UUID, and another request has
    /// taken the name away meanwhile.
    pub(crate) fn leave(&self, pool: &Pool, name: &str, request: &Held) -> Result<Leaving> {
        // Two requests that hold the name would wait for each other.
        let own = {
            let mut holds = request.0.lock();
            let own = holds.iter().find(|hold| hold.name == name).map(|hold| hold.volume);
            holds.retain(|hold| hold.name != name);
            own
        };
        let end = Instant::now() + PATIENCE;
        let mut used = self.0.used.lock();
        while used.get(name).is_some_and(|one| one.held > 0 || one.leaving) {
            if self.0.changed.wait_until(&mut used, end).timed_out() {
                let text = format!("change the name of volume {name}, or delete it: other requests use it");
                return Err(Error::new(ErrorKind::Busy, text));
            }
        }
        used.insert(name.to_owned(), Use { held: 0, leaving: true });
        drop(used);
        let leaving = Leaving { names: self.0.clone(), name: name.to_owned() };
        match own.is_none_or(|volume| pool.name_of(volume).as_deref() == Some(name)) {
            true => Ok(leaving),
            false => {
                Err(Error::new(ErrorKind::NotFound, format!("find volume {name}: it was renamed or deleted")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{create, pool};
    use std::sync::mpsc;

    #[test]
    fn a_volume_keeps_its_name_until_the_request_has_ended() {
        let (_place, pool) = pool();
        let names = HeldNames::default();
        let db = (create(&pool, "db").uuid, "db".to_owned());
        let (request, other) = (Held::default(), Held::default());
        assert!(!names.hold(&pool, &request, &[db.clone(), (db.0, "x".into())]), "it has another name");
        assert!(names.0.used.lock().is_empty());
        assert!(names.hold(&pool, &request, std::slice::from_ref(&db)));
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let (names, pool) = (&names, &pool);
            scope.spawn(move || {
                let _leaving = names.leave(pool, "db", &Held::default()).unwrap();
                pool.rename_volume("db", "shop").unwrap();
                tell.send(()).unwrap();
            });
            assert!(told.recv_timeout(Duration::from_millis(200)).is_err(), "it waits for the request");
            drop(request);
            told.recv_timeout(Duration::from_secs(60)).unwrap();
        });
        assert!(!names.hold(&pool, &other, std::slice::from_ref(&db)), "the name is another one now");
        assert!(names.hold(&pool, &other, &[(db.0, "shop".into())]));
    }

    #[test]
    fn of_two_deletions_by_uuid_the_second_finds_no_other_volume() {
        let (_place, pool) = pool();
        let names = HeldNames::default();
        let db = (create(&pool, "db").uuid, "db".to_owned());
        let (one, two) = (Held::default(), Held::default());
        assert!(
            names.hold(&pool, &one, std::slice::from_ref(&db))
                && names.hold(&pool, &two, std::slice::from_ref(&db))
        );
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let (names, pool) = (&names, &pool);
            scope.spawn(move || {
                let _leaving = names.leave(pool, "db", &one).unwrap();
                pool.delete_volume("db", false).unwrap();
                create(pool, "db");
                tell.send(()).unwrap();
            });
            assert!(told.recv_timeout(Duration::from_millis(200)).is_err(), "it waits for the other one");
            let error = names.leave(pool, "db", &two).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::NotFound);
        });
        assert!(pool.volume("db").is_ok());
        assert!(names.0.used.lock().is_empty());
    }

    #[test]
    fn nobody_takes_a_name_that_a_volume_is_losing() {
        let (_place, pool) = pool();
        let names = HeldNames::default();
        let db = (create(&pool, "db").uuid, "db".to_owned());
        let leaving = names.leave(&pool, "db", &Held::default()).unwrap();
        let request = Held::default();
        assert!(!names.hold(&pool, &request, std::slice::from_ref(&db)));
        drop(leaving);
        assert!(names.hold(&pool, &request, &[db]));
    }
}
