//! Opening a pool without a part of its journal, if the operator has accepted that.

use super::Pool;
use crate::destage::state::BackgroundState;
use crate::error::{Error, Result};
use crate::ids::BranchId;
use crate::info::{JournalLoss, VolumeLoss};
use crate::journal::{Accepted, Cursor, FIRST_RECORD};

impl Pool {
    /// Returns what this opening gave up of the journal, if the operator accepted a loss.
    pub fn journal_loss(&self) -> Option<&JournalLoss> {
        self.core.journal_loss.get()
    }

    /// Carries out the recovered records, and begins a journal behind everything that was ever
    /// seen. No later opening looks for what is lost.
    pub(super) fn give_up(&self, accepted: Accepted) -> Result<()> {
        let last = accepted.last_lsn;
        // What the journal does not repeat may differ between the disks of a layout.
        for pv in self.destager.held_pvs() {
            if let Some(layout) = pv.disk.as_layout() {
                layout.members().give_up_stale().map_err(|e| Error::io(format!("open {}", pv.path), e))?;
            }
        }
        self.destager.destage_to(accepted.recovered_lsn)?;
        {
            let state: &mut BackgroundState = &mut self.destager.state.lock();
            state.destaged = state.destaged.max(last);
            state.cursor =
                Cursor { seq: self.core.journal.start_after(last).0, at: FIRST_RECORD, lsn: last.next() };
            state.ends = None;
            // This commit is made even if no position has moved. What an earlier incarnation wrote
            // behind it does not count any more, even if it becomes readable again later.
            self.destager.commit_alone(state)?;
        }
        self.core.journal.blank_unreadable();
        self.note_journal_loss(accepted);
        Ok(())
    }

    /// Stores what is given up, for [`Pool::journal_loss`].
    pub(crate) fn note_journal_loss(&self, accepted: Accepted) {
        let loss = self.name_loss(accepted);
        tracing::error!(%loss, "the pool was opened without a part of its journal, as the operator accepted");
        let _ = self.core.journal_loss.set(loss);
    }

    fn name_loss(&self, accepted: Accepted) -> JournalLoss {
        let names = self.core.names.read();
        let mut loss = JournalLoss {
            damages: accepted.damages,
            recovered_lsn: accepted.recovered_lsn,
            durable_lsn: accepted.durable_lsn,
            last_lsn: accepted.last_lsn,
            volumes: Vec::new(),
            operations: 0,
        };
        for (branch, lost) in accepted.beyond.0 {
            if branch == BranchId(0) {
                loss.operations = lost.records;
                continue;
            }
            let volume = names.volume_of(branch);
            loss.volumes.push(VolumeLoss {
                volume: volume.map_or_else(|| format!("branch {branch}"), |v| v.name.read().clone()),
                records: lost.records,
                bytes: lost.bytes,
                lsns: (lost.first_lsn, lost.last_lsn),
            });
        }
        loss
    }
}
