//! The scrub: it reads all blocks of the catalog again and again, so that rot is found before an
//! operation needs the block.
//!
//! Not every block that does not verify is damage: a crash leaves such blocks where nothing reads
//! (see [`super::blocks`]). So a pass collects suspects. If there are any at its end, everything
//! that belongs to the last commit is read once. Suspects outside of it are forgotten: they become
//! blocks that were never written.

pub(crate) mod data;

use super::backend::BlockBackend;
use super::store::db;
use super::values::{Value, seal, unseal};
use super::{Catalog, META, Txn, decode};
use crate::error::{Error, ErrorKind, Result};
use std::collections::BTreeSet;

/// The key of the scrub's row in the table `meta`.
const SCRUB: &str = "scrub";

/// The progress of the scrub, as the catalog stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ScrubRecord {
    /// The next block of the current pass; 0: there is no current pass.
    pub(crate) next: u64,
    /// The end of the last whole pass, in nanoseconds since the Unix epoch; 0: there was none.
    pub(crate) finished: u64,
    /// The number of whole passes so far.
    pub(crate) passes: u64,
}

impl Value for ScrubRecord {
    fn encode(&self) -> Vec<u8> {
        seal(1, |w| {
            w.u64(self.next).u64(self.finished).u64(self.passes);
        })
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = unseal(bytes, 1)?;
        let value = ScrubRecord { next: r.u64()?, finished: r.u64()?, passes: r.u64()? };
        r.end(value)
    }
}

/// The result of one piece of a scrub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scrubbed {
    /// The next block to read; 0: the pass is at its end.
    pub(crate) next: u64,
    /// The blocks that do not verify.
    pub(crate) suspects: Vec<u64>,
}

impl Catalog {
    /// Returns the number of the catalog's blocks that have sums.
    pub(crate) fn blocks(&self) -> u64 {
        match self.store.below() {
            BlockBackend::Blocks(blocks) => blocks.len(),
            BlockBackend::Plain(_) => 0,
        }
    }

    /// Returns the blocks that do not verify, of those that were needed or scrubbed.
    pub(crate) fn damaged_blocks(&self) -> Vec<u64> {
        match self.store.below() {
            BlockBackend::Blocks(blocks) => blocks.damaged(),
            BlockBackend::Plain(_) => Vec::new(),
        }
    }

    /// Returns the progress of the scrub that the catalog has.
    pub(crate) fn scrub_record(&self) -> Result<ScrubRecord> {
        let row = self.store.read("read the catalog", |txn| {
            let table = db!("read the catalog", txn.open_table(META));
            let value = db!("read the catalog", table.get(SCRUB));
            value.map(|value| decode("the scrub", value.value())).transpose()
        })?;
        Ok(row.unwrap_or_default())
    }

    /// Reads `count` blocks from `first` on, and verifies them.
    pub(crate) fn scrub(&self, first: u64, count: u64) -> Scrubbed {
        let BlockBackend::Blocks(blocks) = self.store.below() else {
            return Scrubbed { next: 0, suspects: Vec::new() };
        };
        let len = blocks.len();
        let end = first.saturating_add(count).min(len);
        let suspects = (first..end).filter(|block| !blocks.verify(*block)).collect();
        Scrubbed { next: if end < len { end } else { 0 }, suspects }
    }

    /// Decides which suspects are damage, and forgets the others. A crash can have left a suspect.
    /// If there is such a suspect, everything that belongs to the last commit is read, and verified
    /// by the store's own sums too. If all of that is sound, no such suspect belongs to it.
    /// Otherwise each of them may belong to it, and counts as damaged.
    ///
    /// A block that was written since the catalog was opened was not left by a crash. The store may
    /// need it even if no durable commit does.
    pub(crate) fn judge(&self, suspects: &BTreeSet<u64>) -> Result<()> {
        let BlockBackend::Blocks(blocks) = self.store.below() else { return Ok(()) };
        let (rotten, doubtful): (Vec<u64>, Vec<u64>) =
            suspects.iter().copied().partition(|block| blocks.was_written(*block));
        if !rotten.is_empty() {
            tracing::error!(
                blocks = rotten.len(),
                first = rotten[0],
                "blocks of the catalog no longer verify"
            );
        }
        rotten.iter().for_each(|block| blocks.note_damaged(*block));
        if doubtful.is_empty() {
            return Ok(());
        }
        match self.verify_whole() {
            Ok(()) => {
                let forget = |block: &u64| blocks.forget(*block);
                let forgotten = doubtful.iter().try_for_each(forget);
                forgotten.map_err(|e| Error::io("forget blocks of the catalog that nothing reads", e))
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                doubtful.iter().for_each(|block| blocks.note_damaged(*block));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Reads everything that belongs to the last commit, and verifies it, by the store's own sums
    /// too.
    pub(crate) fn verify_whole(&self) -> Result<()> {
        self.store.verify()
    }

    /// Notes blocks that do not verify.
    pub(crate) fn note_damaged(&self, suspects: &BTreeSet<u64>) {
        if let BlockBackend::Blocks(blocks) = self.store.below() {
            suspects.iter().for_each(|block| blocks.note_damaged(*block));
        }
    }
}

impl Txn<'_> {
    pub(crate) fn put_scrub(&mut self, record: &ScrubRecord) -> Result<()> {
        self.put(META, SCRUB, &record.encode())
    }
}
