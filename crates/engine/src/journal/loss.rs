//! The records that an opening gives up when the operator has accepted the loss of a damaged
//! journal.

use super::record::{Header, Kind};
use crate::ids::{BranchId, Lsn};
use std::collections::BTreeMap;

/// The records of one branch that were found behind the damage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BranchLoss {
    pub(crate) records: u64,
    /// Bytes of the volume that these records would have changed. Every record's bytes are counted,
    /// also where records overlap.
    pub(crate) bytes: u64,
    pub(crate) first_lsn: Lsn,
    pub(crate) last_lsn: Lsn,
}

/// Records behind the tail, by branch. Branch 0 holds the control operations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Beyond(pub(crate) BTreeMap<BranchId, BranchLoss>);

impl Beyond {
    /// Counts a record that is given up.
    pub(crate) fn add(&mut self, header: &Header) {
        let branch = if header.kind == Kind::Control { BranchId(0) } else { header.branch };
        let loss = self.0.entry(branch).or_default();
        loss.first_lsn = if loss.records == 0 { header.lsn } else { loss.first_lsn.min(header.lsn) };
        loss.last_lsn = loss.last_lsn.max(header.lsn);
        loss.records += 1;
        loss.bytes += header.length;
    }

    /// Adds the records that were found behind other damage.
    pub(crate) fn join(&mut self, other: Beyond) {
        for (branch, more) in other.0 {
            let loss = self
                .0
                .entry(branch)
                .or_insert(BranchLoss { first_lsn: more.first_lsn, ..BranchLoss::default() });
            loss.first_lsn = loss.first_lsn.min(more.first_lsn);
            loss.last_lsn = loss.last_lsn.max(more.last_lsn);
            loss.records += more.records;
            loss.bytes += more.bytes;
        }
    }

    pub(super) fn records(&self) -> u64 {
        self.0.values().map(|loss| loss.records).sum()
    }
}

/// Damage that an opening accepted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Accepted {
    /// Descriptions of the damages, each with its file.
    pub(crate) damages: Vec<String>,
    /// The last LSN that was recovered. Everything up to it was recovered.
    pub(crate) recovered_lsn: Lsn,
    /// The largest LSN that is known to have been given out.
    pub(crate) last_lsn: Lsn,
    /// The last LSN that is known to have been durable. Everything up to it was durable.
    pub(crate) durable_lsn: Lsn,
    pub(crate) beyond: Beyond,
}

/// The beginning of the error that an opening without
/// [`crate::settings::PoolOptions::accept_journal_loss`] returns for a damaged journal.
pub const JOURNAL_DAMAGED: &str = "recover the journal";
