//! Snapshots that go by themselves: what a rollback kept of a volume may have an age.
//!
//! The end is a label of the snapshot, in pool time, which nobody sets: a wrong clock makes no
//! snapshot go early.

use super::Pool;
use crate::branch::namespace::UNTIL;
use crate::catalog::Labels;

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

impl Pool {
    /// What is noted about the snapshot that a rollback makes now.
    pub(crate) fn undo_labels(&self, undo: &Undo<'_>) -> Labels {
        let until = undo.keep.map(|keep| self.core.now().saturating_add(keep).to_string());
        until.map(|until| (UNTIL.to_owned(), until)).into_iter().collect()
    }
}
