//! The progress of the pass that moves data to the places that Share gives it, as the catalog
//! stores it.

use super::features::OWN_PLACEMENTS;
use super::store::db;
use super::values::{Value, seal, unseal};
use super::{Catalog, META, PageKey, Txn, VersionKey, decode};
use crate::error::{ErrorKind, Result};
use crate::ids::{BranchId, Chunk, Epoch};
use crate::settings::Placement;

/// The key of the row in the table `meta`.
const REBALANCE: &str = "rebalance";

/// A place in a pass over everything that has slots. The pass covers first the current maps, then
/// the versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PassPosition {
    Map(PageKey),
    Versions(VersionKey),
}

impl Default for PassPosition {
    fn default() -> Self {
        PassPosition::Map(PageKey::new(BranchId(0), 0))
    }
}

impl PassPosition {
    /// The first version.
    pub(crate) const VERSIONS: PassPosition =
        PassPosition::Versions(VersionKey { branch: BranchId(0), chunk: Chunk::FIRST, last: Epoch::NONE });
}

/// The progress of the pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RebalanceRecord {
    /// A pass has begun and has not ended.
    pub(crate) running: bool,
    /// Something was left where it is in this round, because its place was full.
    pub(crate) passed_over: bool,
    /// The number of the round, from 0. What was passed over is tried again in the next round.
    pub(crate) round: u32,
    pub(crate) position: PassPosition,
    /// Bytes per second at most; 0: no limit.
    pub(crate) rate: u64,
    /// Bytes looked at in this round.
    pub(crate) seen: u64,
    /// Bytes moved in this round.
    pub(crate) in_round: u64,
    /// Bytes moved in all rounds.
    pub(crate) moved: u64,
}

impl Value for RebalanceRecord {
    fn encode(&self) -> Vec<u8> {
        seal(1, |w| {
            w.u8(u8::from(self.running) | u8::from(self.passed_over) << 1).u32(self.round);
            match self.position {
                PassPosition::Map(key) => w.u8(0).u64(key.branch.0).u64(key.page).u32(0),
                PassPosition::Versions(key) => w.u8(1).u64(key.branch.0).u64(key.chunk.0).u32(key.last.0),
            };
            w.u64(self.rate).u64(self.seen).u64(self.in_round).u64(self.moved);
        })
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = unseal(bytes, 1)?;
        let (flags, round) = (r.u8().filter(|flags| *flags < 4)?, r.u32()?);
        let (kind, branch, number, last) = (r.u8()?, BranchId(r.u64()?), r.u64()?, r.u32()?);
        let position = match kind {
            0 if last == 0 => PassPosition::Map(PageKey::new(branch, number)),
            1 => PassPosition::Versions(VersionKey::new(branch, Chunk(number), Epoch(last))),
            _ => return None,
        };
        let value = RebalanceRecord {
            running: flags & 1 != 0,
            passed_over: flags & 2 != 0,
            round,
            position,
            rate: r.u64()?,
            seen: r.u64()?,
            in_round: r.u64()?,
            moved: r.u64()?,
        };
        r.end(value)
    }
}

impl Catalog {
    /// Returns the progress that the catalog has. Nothing else depends on it, so without the row,
    /// or with a damaged one, no pass is under way.
    pub(crate) fn rebalance(&self) -> Result<RebalanceRecord> {
        let row = self.store.read("read the catalog", |txn| {
            let table = db!("read the catalog", txn.open_table(META));
            let value = db!("read the catalog", table.get(REBALANCE));
            value.map(|value| decode("the progress of the rebalancing", value.value())).transpose()
        });
        match row {
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(RebalanceRecord::default()),
            row => Ok(row?.unwrap_or_default()),
        }
    }
}

impl Txn<'_> {
    pub(crate) fn put_rebalance(&mut self, record: &RebalanceRecord) -> Result<()> {
        self.put(META, REBALANCE, &record.encode())
    }

    /// Begins a pass, if Share places slots of the pool or of a branch: the physical volumes have
    /// changed. A pass that is under way begins anew, with its rate.
    pub(crate) fn rebalance_if_shared(&mut self) -> Result<()> {
        let is_share = |placement| placement == Placement::Share;
        let superblock = self.superblock()?;
        let has_own = superblock.features & OWN_PLACEMENTS != 0;
        let own = if has_own { self.committed().branches()? } else { Vec::new() };
        if !is_share(superblock.placement) && !own.iter().any(|(_, of)| of.placement.is_some_and(is_share)) {
            return Ok(());
        }
        let rate = self.committed().rebalance()?.rate;
        self.put_rebalance(&RebalanceRecord { running: true, rate, ..RebalanceRecord::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let key = VersionKey::new(BranchId(0x0102), Chunk(0x0304), Epoch(0x05));
        let record = RebalanceRecord {
            running: true,
            passed_over: true,
            round: 6,
            position: PassPosition::Versions(key),
            rate: 7,
            seen: 8,
            in_round: 9,
            moved: 10,
        };
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let fields = "01030600000001020100000000000004030000000000000500000007000000000000000800000000000000\
                      09000000000000000a00000000000000";
        let bytes = record.encode();
        assert_eq!(hex(&bytes[..bytes.len() - 4]), fields);
        let begun = RebalanceRecord { running: true, ..RebalanceRecord::default() };
        for value in [record, begun, RebalanceRecord::default()] {
            let bytes = value.encode();
            assert_eq!(RebalanceRecord::decode(&bytes), Some(value));
            for at in 0..bytes.len() {
                let mut broken = bytes.clone();
                broken[at] ^= 1;
                assert_eq!(RebalanceRecord::decode(&broken), None, "byte {at}");
            }
        }
    }
}
