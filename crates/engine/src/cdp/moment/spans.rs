//! The stretches of a volume's history: the branch that it wrote to, from when to when.

use crate::branch::Branch;
use crate::catalog::LineRecord;
use crate::core::Core;
use crate::ids::{Lsn, Stamp, VolumeId};
use std::sync::Arc;

/// A stretch of a volume's history on one branch.
pub(crate) struct RecordedSpan {
    pub(crate) branch: Arc<Branch>,
    /// The point from which on nothing was recorded on the branch, because CDP was switched off or
    /// the volume moved to another branch. `None` while recording goes on.
    pub(crate) until: Option<Stamp>,
    /// Whether a younger stretch has expired. Then this stretch has expired too, independent of the
    /// retention that is configured now.
    pub(crate) outlived: bool,
}

impl Core {
    /// Returns the stretches of a volume's history of which anything exists, oldest first.
    pub(crate) fn stretches(&self, volume: VolumeId) -> Vec<RecordedSpan> {
        let lines = self.lines.read();
        let names = self.names.read();
        let of_volume = lines.get(&volume).into_iter().flatten();
        let mut found: Vec<RecordedSpan> = Vec::new();
        for (lsn, line) in of_volume {
            let LineRecord::Branch { branch: id, time } = line else { continue };
            if let Some(last) = found.last_mut() {
                // A branch comes twice in a row, with CDP off between.
                if last.branch.id == *id {
                    continue;
                }
                last.until.get_or_insert(Stamp::new(*lsn, *time));
            }
            let recorded = names.branches.get(id).filter(|b| !b.cdp.log.read().events.is_empty());
            let Some(branch) = recorded else {
                found.iter_mut().for_each(|older| older.outlived = true);
                continue;
            };
            // CDP may have been switched on again by a record that is not yet carried out.
            let off = branch.cdp.log.read().is_off().filter(|_| !branch.cdp.is_on());
            found.push(RecordedSpan { branch: branch.clone(), until: off, outlived: false });
        }
        found
    }
}

impl Core {
    /// Returns the first LSN that a volume can be taken back to, or the largest LSN if there is
    /// none.
    pub(crate) fn begins(&self, volume: VolumeId) -> Lsn {
        let stretches = self.stretches(volume);
        let begins = stretches.iter().filter_map(|s| s.branch.cdp.log.read().begins());
        begins.map(|stamp| stamp.lsn).min().unwrap_or(Lsn::MAX)
    }
}
