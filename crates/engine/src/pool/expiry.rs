//! Snapshots that go by themselves: what a rollback kept of a volume may have an age.
//!
//! The end is a label of the snapshot, in pool time, which nobody sets: a wrong clock makes no
//! snapshot go early.

use super::Pool;
use super::namespace::{Namespace, Snapshot};
use super::snapshots::check_deletable;
use crate::catalog::{Control, Labels};
use crate::error::{ErrorKind, Result, conflict};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The label with the pool time, in nanoseconds, at which a snapshot goes.
const UNTIL: &str = "hindcast.until";

/// What keeps the state of a volume that is rolled back: a snapshot of this name.
#[derive(Debug, Clone, Copy)]
pub struct Undo<'a> {
    /// Its name.
    pub name: &'a str,
    /// Nanoseconds after which it is deleted, unless it is protected or in use then; `None`: never.
    pub keep: Option<u64>,
}

impl<'a> From<&'a str> for Undo<'a> {
    fn from(name: &'a str) -> Undo<'a> {
        Undo { name, keep: None }
    }
}

impl<'a> From<&'a String> for Undo<'a> {
    fn from(name: &'a String) -> Undo<'a> {
        Undo::from(name.as_str())
    }
}

/// When a snapshot with these labels goes, in pool time.
pub(crate) fn until(labels: &Labels) -> Option<u64> {
    labels.get(UNTIL)?.parse().ok()
}

impl Pool {
    /// What is noted about the snapshot that a rollback makes now.
    pub(crate) fn undo_labels(&self, undo: &Undo<'_>) -> Labels {
        let until = undo.keep.map(|keep| self.now().saturating_add(keep).to_string());
        until.map(|until| (UNTIL.to_owned(), until)).into_iter().collect()
    }

    /// Deletes one snapshot whose time has come. None goes while the clock is in doubt. False when
    /// none is due.
    pub(crate) fn expire_undo(&self) -> Result<bool> {
        if self.clock.is_suspended() {
            return Ok(false);
        }
        let now = self.clock.now();
        let Some(id) = due(&self.names.read(), now).map(|s| s.state.id) else { return Ok(false) };
        let deleted = self.submit(|names| match due(names, now) {
            Some(snapshot) if snapshot.state.id == id => Ok(Control::DeleteSnapshots { ids: vec![id] }),
            _ => Err(conflict("delete a snapshot whose time has come: it is kept after all")),
        });
        match deleted {
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
            deleted => deleted.map(|_| true),
        }
    }
}

/// A snapshot whose time has come, and that nothing keeps.
fn due(names: &Namespace, now: u64) -> Option<&Arc<Snapshot>> {
    let come = names.expiring.iter().filter(|(_, until)| **until <= now);
    let mut found = come.filter_map(|(id, _)| names.snapshots.get(id));
    found.find(|s| check_deletable(s).is_ok() && s.state.handles.load(Ordering::Acquire) == 0)
}
