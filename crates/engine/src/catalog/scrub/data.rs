//! The progress of the scrub of data in place, as the catalog stores it.

use crate::catalog::store::db;
use crate::catalog::values::{Value, seal, unseal};
use crate::catalog::{Catalog, META, Txn, VersionKey, decode};
use crate::error::Result;
use crate::ids::{BranchId, Chunk, Epoch};

/// The key of the row in the table `meta`.
const DATA_SCRUB: &str = "data-scrub";

/// The place from which a pass continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ScrubPosition {
    /// The current content of a branch, and the byte of the branch.
    Heads(BranchId, u64),
    /// A version, and the byte of its chunk.
    Versions(VersionKey, u64),
}

impl ScrubPosition {
    /// The beginning of a pass.
    pub(crate) const START: ScrubPosition = ScrubPosition::Heads(BranchId(0), 0);
    /// The first version.
    pub(crate) const VERSIONS: ScrubPosition = ScrubPosition::Versions(
        VersionKey { branch: BranchId(0), chunk: Chunk::FIRST, last: Epoch::NONE },
        0,
    );
}

/// What a pass has found so far, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ScrubCounts {
    /// What matches its sum.
    pub(crate) verified: u64,
    /// What has no sum.
    pub(crate) unknown: u64,
    /// What had no sum and got one.
    pub(crate) adopted: u64,
    /// What does not match its sum.
    pub(crate) damaged: u64,
    /// What can't be read.
    pub(crate) unreadable: u64,
    /// What was wrong or unreadable, and was repaired.
    pub(crate) repaired: u64,
}

/// The progress of the scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DataScrubRecord {
    /// A pass has begun and has not ended.
    pub(crate) running: bool,
    /// The pass waits until it is resumed.
    pub(crate) paused: bool,
    /// The pass gives sums to what has none.
    pub(crate) adopts: bool,
    pub(crate) position: ScrubPosition,
    /// Begin of the newest pass, in nanoseconds since the Unix epoch. Before the first pass: the
    /// time from which its interval counts, or 0.
    pub(crate) started: u64,
    /// End of the newest whole pass, in nanoseconds since the Unix epoch; 0: never.
    pub(crate) finished: u64,
    /// Number of whole passes so far.
    pub(crate) passes: u64,
    /// Bytes per second at most; 0: no limit.
    pub(crate) rate: u64,
    /// What the current or the last pass has found.
    pub(crate) counts: ScrubCounts,
}

impl Default for DataScrubRecord {
    fn default() -> Self {
        DataScrubRecord {
            running: false,
            paused: false,
            adopts: false,
            position: ScrubPosition::START,
            started: 0,
            finished: 0,
            passes: 0,
            rate: 0,
            counts: ScrubCounts::default(),
        }
    }
}

impl Value for DataScrubRecord {
    fn encode(&self) -> Vec<u8> {
        seal(1, |w| {
            let flag = |on: bool, bit: u8| if on { bit } else { 0 };
            w.u8(flag(self.running, 1) | flag(self.paused, 2) | flag(self.adopts, 4));
            match self.position {
                ScrubPosition::Heads(branch, at) => w.u8(0).u64(branch.0).u64(0u64).u32(0).u64(at),
                ScrubPosition::Versions(key, at) => {
                    w.u8(1).u64(key.branch.0).u64(key.chunk.0).u32(key.last.0).u64(at)
                }
            };
            w.u64(self.started).u64(self.finished).u64(self.passes).u64(self.rate);
            let c = &self.counts;
            for count in [c.verified, c.unknown, c.adopted, c.damaged, c.unreadable, c.repaired] {
                w.u64(count);
            }
        })
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = unseal(bytes, 1)?;
        let flags = r.u8().filter(|flags| *flags < 8)?;
        let (kind, branch, chunk, last, at) = (r.u8()?, BranchId(r.u64()?), r.u64()?, r.u32()?, r.u64()?);
        let position = match kind {
            0 if chunk == 0 && last == 0 => ScrubPosition::Heads(branch, at),
            1 => ScrubPosition::Versions(VersionKey::new(branch, Chunk(chunk), Epoch(last)), at),
            _ => return None,
        };
        let value = DataScrubRecord {
            running: flags & 1 != 0,
            paused: flags & 2 != 0,
            adopts: flags & 4 != 0,
            position,
            started: r.u64()?,
            finished: r.u64()?,
            passes: r.u64()?,
            rate: r.u64()?,
            counts: ScrubCounts {
                verified: r.u64()?,
                unknown: r.u64()?,
                adopted: r.u64()?,
                damaged: r.u64()?,
                unreadable: r.u64()?,
                repaired: r.u64()?,
            },
        };
        r.end(value)
    }
}

impl Catalog {
    /// Returns the progress that the catalog has.
    pub(crate) fn data_scrub(&self) -> Result<DataScrubRecord> {
        let row = self.store.read("read the catalog", |txn| {
            let table = db!("read the catalog", txn.open_table(META));
            let value = db!("read the catalog", table.get(DATA_SCRUB));
            value.map(|value| decode("the progress of the scrub of data", value.value())).transpose()
        })?;
        Ok(row.unwrap_or_default())
    }
}

impl Txn<'_> {
    pub(crate) fn put_data_scrub(&mut self, record: &DataScrubRecord) -> Result<()> {
        self.put(META, DATA_SCRUB, &record.encode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let key = VersionKey::new(BranchId(0x0102), Chunk(0x0304), Epoch(0x05));
        let record = DataScrubRecord {
            running: true,
            paused: false,
            adopts: true,
            position: ScrubPosition::Versions(key, 0x06),
            started: 7,
            finished: 8,
            passes: 9,
            rate: 10,
            counts: ScrubCounts {
                verified: 11,
                unknown: 12,
                adopted: 13,
                damaged: 14,
                unreadable: 15,
                repaired: 16,
            },
        };
        let bytes = record.encode();
        assert_eq!(bytes.len(), 1 + 30 + 80 + 4);
        assert_eq!(bytes[..12], [1, 5, 1, 2, 1, 0, 0, 0, 0, 0, 0, 4]);
        assert_eq!(bytes[18..35], [0, 5, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0]);
        for value in [record, DataScrubRecord::default()] {
            let bytes = value.encode();
            assert_eq!(DataScrubRecord::decode(&bytes), Some(value));
            for at in 0..bytes.len() {
                let mut broken = bytes.clone();
                broken[at] ^= 1;
                assert_eq!(DataScrubRecord::decode(&broken), None, "byte {at}");
            }
        }
    }
}
