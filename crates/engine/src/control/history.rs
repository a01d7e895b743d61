//! The effects of control operations on continuous data protection: events of a branch's log, and
//! the branches on which a volume's history continues.

use crate::branch::Branch;
use crate::catalog::{Event, LineRecord, SnapshotRecord, Txn};
use crate::core::Core;
use crate::error::{Result, corrupt};
use crate::ids::{BranchId, Lsn, SnapshotId, VolumeId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Changes of histories that follow from an operation.
#[derive(Default)]
pub(crate) struct HistoryChange {
    pub(super) events: Vec<(Arc<Branch>, Event)>,
    /// (volume, what happened to it)
    pub(super) lines: Vec<(VolumeId, LineRecord)>,
    /// (volume, LSN of a mark)
    pub(super) forgotten: Option<(VolumeId, Lsn)>,
}

impl HistoryChange {
    pub(super) fn of(branch: Arc<Branch>, event: Event) -> Self {
        HistoryChange { events: vec![(branch, event)], ..Self::default() }
    }

    pub(super) fn store(&self, txn: &mut Txn<'_>, lsn: Lsn) -> Result<()> {
        for (branch, event) in &self.events {
            txn.put_cdp_event(branch.id, lsn, event)?;
        }
        for (volume, line) in &self.lines {
            txn.put_cdp_line(*volume, lsn, line)?;
        }
        self.forgotten.map_or(Ok(()), |(volume, lsn)| txn.remove_cdp_line(volume, lsn))
    }
}

impl Core {
    /// Returns a branch that an operation needs.
    pub(super) fn branch(&self, id: BranchId) -> Result<Arc<Branch>> {
        let branch = self.names.read().branches.get(&id).cloned();
        branch.ok_or_else(|| corrupt(format!("find branch {id}: it is missing")))
    }

    /// Returns the anchor event of a new snapshot, or none. A snapshot is an anchor if its branch
    /// has CDP, or if it was made deleted and is never visible.
    pub(super) fn anchor_event(
        &self,
        id: SnapshotId,
        snapshot: &SnapshotRecord,
        time: u64,
    ) -> Option<(Arc<Branch>, Event)> {
        let branch = self.names.read().branches.get(&snapshot.of.branch)?.clone();
        let counts = snapshot.deleted || branch.cdp.log.read().settings.is_some();
        counts.then_some((branch, Event::Anchor { epoch: snapshot.of.epoch, snapshot: id, time }))
    }

    /// Shows committed changes to readers.
    pub(super) fn remember(&self, change: HistoryChange, lsn: Lsn) {
        // Lines come first: a reader that finds the anchor of a rollback must also find the
        // volume's new branch.
        {
            let mut lines = self.lines.write();
            for (volume, line) in change.lines {
                lines.entry(volume).or_default().insert(lsn, line);
            }
            if let Some((volume, lsn)) = change.forgotten
                && let Some(of_volume) = lines.get_mut(&volume)
            {
                of_volume.remove(&lsn);
            }
        }
        for (branch, event) in change.events {
            // Anchors may come without records, with which destage takes them off the list.
            branch.cdp.waiting.settled(self.positions.settled());
            branch.cdp.change(|log| {
                match &event {
                    Event::On { settings, .. } => log.settings = Some(*settings),
                    Event::Off { .. } => log.settings = None,
                    _ => {}
                }
                log.put_event(lsn, event);
            });
        }
    }

    /// Returns whether a history needs this snapshot.
    pub(crate) fn is_anchor(&self, snapshot: SnapshotId) -> bool {
        let branch = self.names.read().snapshots.get(&snapshot).map(|s| s.state.line.branch.clone());
        branch.is_some_and(|branch| branch.cdp.log.read().is_anchor(snapshot))
    }

    /// The ids of all snapshots that histories need.
    pub(crate) fn anchors(&self) -> BTreeSet<SnapshotId> {
        let names = self.names.read();
        let of = |branch: &Arc<Branch>| branch.cdp.log.read().anchors().collect::<Vec<SnapshotId>>();
        names.branches.values().flat_map(of).collect()
    }
}
