//! Snapshots that expire by themselves: a rollback keeps the volume's earlier state as a snapshot,
//! which can have an age limit.
//!
//! The limit is a label of the snapshot, in pool time. Pool time is never set, so a wrong wall
//! clock makes no snapshot expire early.

use super::Pool;
use crate::branch::namespace::UNTIL;
use crate::catalog::Labels;

/// The snapshot that keeps the earlier state of a volume that is rolled back.
#[derive(Debug, Clone, Copy)]
pub struct Undo<'a> {
    /// The snapshot's name.
    pub name: &'a str,
    /// Nanoseconds after which the snapshot is deleted, unless it is protected or in use then.
    /// `None`: it does not expire.
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
    /// Returns the labels of the snapshot that a rollback makes now.
    pub(crate) fn undo_labels(&self, undo: &Undo<'_>) -> Labels {
        let until = undo.keep.map(|keep| self.core.now().saturating_add(keep).to_string());
        until.map(|until| (UNTIL.to_owned(), until)).into_iter().collect()
    }
}
