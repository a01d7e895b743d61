//! Turns: the stretches of the log that destage carries out one after another. Each has at least
//! one commit of its own.
//!
//! The numbers of bytes and of records show how much work waits, but not how many commits.
//! Stretches that snapshots, marks or long discards separate can't share a commit. So the log
//! counts turns while it grows. The count follows the rules by which destage collects a batch,
//! except for the limit on a batch's size.

use crate::ids::{Epoch, Lsn};
use crate::staging::Staging;
use std::collections::VecDeque;

/// The turns that wait.
#[derive(Default)]
pub(crate) struct Turns {
    /// The LSNs of the first records of the turns, oldest first.
    begins: VecDeque<Lsn>,
    /// The number of the last turn.
    number: u32,
    /// The last record is carried out alone.
    after_alone: bool,
}

impl Turns {
    /// Notes the next record, in order. With `alone` no other record shares its commit. `staging`
    /// is the staging index of the record's branch, and `epoch` is the record's epoch.
    pub(crate) fn note(&mut self, lsn: Lsn, alone: bool, staging: Option<&Staging>, epoch: Epoch) {
        let parted = || staging.is_some_and(|s| s.turn().is_some_and(|t| t.0 == self.number && t.1 != epoch));
        if alone || self.after_alone || self.number == 0 || parted() {
            self.number = self.number.wrapping_add(1).max(1);
            self.begins.push_back(lsn);
        }
        if let Some(staging) = staging {
            staging.set_turn(self.number, epoch);
        }
        self.after_alone = alone;
    }

    /// Notes that everything up to `lsn` is carried out.
    pub(crate) fn passed(&mut self, lsn: Lsn) {
        while self.begins.front().is_some_and(|begin| *begin <= lsn) {
            self.begins.pop_front();
        }
    }

    /// The number of turns that have not begun to be carried out.
    pub(crate) fn len(&self) -> usize {
        self.begins.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_part_only_what_their_own_branch_has() {
        let (a, b) = (Staging::new(), Staging::new());
        let mut turns = Turns::default();
        // Two volumes take turns in writing and being snapshotted: a round is a turn.
        for round in 0..3 {
            let lsn = 1 + round * 4;
            turns.note(Lsn(lsn), false, Some(&a), Epoch(round as u32));
            turns.note(Lsn(lsn + 1), false, None, Epoch::NONE);
            turns.note(Lsn(lsn + 2), false, Some(&b), Epoch(round as u32));
            turns.note(Lsn(lsn + 3), false, None, Epoch::NONE);
        }
        assert_eq!(turns.begins, [1, 5, 9].map(Lsn));
        turns.passed(Lsn(4));
        assert_eq!(turns.len(), 2);
        turns.passed(Lsn(12));
        assert_eq!(turns.len(), 0);
    }

    #[test]
    fn what_is_carried_out_alone_is_a_turn() {
        let a = Staging::new();
        let mut turns = Turns::default();
        for (lsn, alone) in [(1, false), (2, true), (3, true), (4, false), (5, false)] {
            turns.note(Lsn(lsn), alone, Some(&a), Epoch(0));
        }
        assert_eq!(turns.begins, [1, 2, 3, 4].map(Lsn));
    }
}
