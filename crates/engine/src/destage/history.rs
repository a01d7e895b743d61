//! What control operations mean for continuous data protection: events of a branch's log, and the
//! branches on which a volume's history continues.

use crate::branch::Branch;
use crate::catalog::{Control, Event, LineRecord, SnapshotRecord, Txn};
use crate::core::Core;
use crate::error::{Result, corrupt};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Changes of histories that follow from an operation.
#[derive(Default)]
pub(super) struct HistoryChange {
    events: Vec<(Arc<Branch>, Event)>,
    /// (volume, what happened to it)
    lines: Vec<(u64, LineRecord)>,
    /// (volume, LSN of a mark)
    forgotten: Option<(u64, u64)>,
}

impl HistoryChange {
    pub(super) fn of(branch: Arc<Branch>, event: Event) -> Self {
        HistoryChange { events: vec![(branch, event)], ..Self::default() }
    }

    pub(super) fn store(&self, txn: &mut Txn<'_>, lsn: u64) -> Result<()> {
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
    /// Adds what `operation` changes in histories, given the state in which it is carried out.
    pub(super) fn note_history(
        &self,
        change: &mut HistoryChange,
        operation: &Control,
        time: u64,
    ) -> Result<()> {
        match operation {
            Control::CreateSnapshots { snapshots } => {
                change.events.extend(snapshots.iter().filter_map(|(id, s)| self.anchor_event(*id, s, time)));
            }
            Control::RollBack { id, branch, size, undo_id, undo, .. } => {
                let old = self.branch(undo.of.branch)?;
                let settings = old.cdp.log.read().settings;
                if let Some(settings) = settings {
                    change.events.extend(self.anchor_event(*undo_id, undo, time));
                    let began = Event::On { settings, begins: true, size: *size, time };
                    change.events.push((self.branch(*branch)?, began));
                    change.lines.push((*id, LineRecord::Branch { branch: *branch, time }));
                    // An anchor follows, with the branch's own content.
                }
            }
            Control::SetCdp { id, settings } => {
                let Some(volume) = self.catalog.volume(*id)? else { return Ok(()) };
                let branch = self.branch(volume.branch)?;
                let begins = branch.cdp.log.read().settings.is_none();
                match settings {
                    Some(settings) => {
                        let event = Event::On { settings: *settings, begins, size: volume.size, time };
                        if begins {
                            change.lines.push((*id, LineRecord::Branch { branch: branch.id, time }));
                        }
                        change.events.push((branch, event));
                    }
                    None if begins => {}
                    None => change.events.push((branch, Event::Off { time })),
                }
            }
            Control::ResizeVolume { id, size } => {
                let Some(volume) = self.catalog.volume(*id)? else { return Ok(()) };
                let branch = self.branch(volume.branch)?;
                if branch.cdp.log.read().settings.is_some() {
                    let shrinks = *size < volume.size;
                    let end = if shrinks { volume.size.next_multiple_of(branch.chunk_size()) } else { 0 };
                    change.events.push((branch, Event::Resized { size: *size, end, time }));
                }
            }
            Control::Mark { volume, name } => {
                change.lines.push((*volume, LineRecord::Mark { name: name.clone(), time }));
            }
            Control::Unmark { volume, lsn } => change.forgotten = Some((*volume, *lsn)),
            _ => {}
        }
        Ok(())
    }

    fn branch(&self, id: u64) -> Result<Arc<Branch>> {
        let branch = self.names.read().branches.get(&id).cloned();
        branch.ok_or_else(|| corrupt(format!("find branch {id}: it is missing")))
    }

    /// Returns the anchor event of a new snapshot, or none. A snapshot is an anchor if its branch
    /// has CDP, or if it was made deleted and is never visible.
    fn anchor_event(&self, id: u64, snapshot: &SnapshotRecord, time: u64) -> Option<(Arc<Branch>, Event)> {
        let branch = self.names.read().branches.get(&snapshot.of.branch)?.clone();
        let counts = snapshot.deleted || branch.cdp.log.read().settings.is_some();
        counts.then_some((branch, Event::Anchor { epoch: snapshot.of.epoch, snapshot: id, time }))
    }

    /// Shows committed changes to readers.
    pub(super) fn remember(&self, change: HistoryChange, lsn: u64) {
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

    /// Whether a history needs this snapshot.
    pub(crate) fn is_anchor(&self, snapshot: u64) -> bool {
        let branch = self.names.read().snapshots.get(&snapshot).map(|s| s.state.line.branch.clone());
        branch.is_some_and(|branch| branch.cdp.log.read().is_anchor(snapshot))
    }

    /// The ids of all snapshots that histories need.
    pub(crate) fn anchors(&self) -> BTreeSet<u64> {
        let names = self.names.read();
        let of = |branch: &Arc<Branch>| branch.cdp.log.read().anchors().collect::<Vec<u64>>();
        names.branches.values().flat_map(of).collect()
    }
}
