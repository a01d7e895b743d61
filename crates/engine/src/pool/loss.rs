//! Going on without a part of the journal, when the operator has said so.

use super::{Maintenance, Pool};
use crate::error::Result;
use crate::journal::{Accepted, Cursor, FIRST_RECORD};
use std::fmt;

/// How the error begins that an opening without [`super::PoolOptions::accept_journal_loss`]
/// returns.
pub const JOURNAL_DAMAGED: &str = "recover the journal";

/// What an opening with [`super::PoolOptions::accept_journal_loss`] gave up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalLoss {
    /// What is damaged, each with its file.
    pub damages: Vec<String>,
    /// Everything up to this LSN was recovered.
    pub recovered_lsn: u64,
    /// Everything up to this LSN is known to have been durable.
    pub durable_lsn: u64,
    /// No larger LSN is known to have been given out.
    pub last_lsn: u64,
    /// By volume, the writes behind the damage that were still found in the journal and are given
    /// up.
    pub volumes: Vec<VolumeLoss>,
    /// Control operations (snapshots, new volumes, …) behind the damage that were still found and
    /// are given up.
    pub operations: u64,
}

/// Writes of one volume that are given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeLoss {
    /// Its name, or the number of a branch that has no volume.
    pub volume: String,
    /// Records.
    pub records: u64,
    /// Bytes that they wrote.
    pub bytes: u64,
    /// Their LSNs.
    pub lsns: (u64, u64),
}

impl fmt::Display for JournalLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the journal was recovered up to LSN {}; ", self.recovered_lsn)?;
        if self.durable_lsn > self.recovered_lsn {
            write!(
                f,
                "LSN {} to {} are lost, and what was acknowledged later may be",
                self.recovered_lsn + 1,
                self.durable_lsn
            )?;
        } else {
            write!(f, "what was acknowledged later may be lost")?;
        }
        for loss in &self.volumes {
            let VolumeLoss { volume, records, bytes, lsns: (first, last) } = loss;
            write!(
                f,
                "; {records} writes of {bytes} bytes to {volume} (LSN {first} to {last}) are given up"
            )?;
        }
        if self.operations > 0 {
            write!(f, "; {} control operations are given up", self.operations)?;
        }
        write!(f, "; because: {}", self.damages.join("; "))
    }
}

impl Pool {
    /// What this opening gave up of the journal, if it was told to accept that.
    pub fn journal_loss(&self) -> Option<&JournalLoss> {
        self.journal_loss.get()
    }

    /// Carries out what was recovered, and begins a journal behind everything that was ever seen:
    /// no later opening looks for what is lost.
    pub(super) fn give_up(&self, accepted: Accepted) -> Result<()> {
        let last = accepted.last_lsn;
        self.destage_to(accepted.recovered_lsn)?;
        {
            let m: &mut Maintenance = &mut self.maintenance.lock();
            m.destaged = m.destaged.max(last);
            m.cursor = Cursor { seq: self.journal.start_after(last).0, at: FIRST_RECORD, lsn: last + 1 };
            m.ends = None;
            // Also where no position has moved: what an earlier incarnation wrote behind it counts
            // no more, should it be readable again one day.
            self.commit_alone(m)?;
        }
        self.journal.blank_unreadable();
        self.note_journal_loss(accepted);
        Ok(())
    }

    /// Names what is given up, for [`Pool::journal_loss`].
    pub(crate) fn note_journal_loss(&self, accepted: Accepted) {
        let _ = self.journal_loss.set(self.name_loss(accepted));
    }

    fn name_loss(&self, accepted: Accepted) -> JournalLoss {
        let names = self.names.read();
        let mut loss = JournalLoss {
            damages: accepted.damages,
            recovered_lsn: accepted.recovered_lsn,
            durable_lsn: accepted.durable_lsn,
            last_lsn: accepted.last_lsn,
            volumes: Vec::new(),
            operations: 0,
        };
        for (branch, lost) in accepted.beyond.0 {
            if branch == 0 {
                loss.operations = lost.records;
                continue;
            }
            let volume = names.by_name.values().find(|v| v.line.branch.id == branch);
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
