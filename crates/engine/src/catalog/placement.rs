//! The placement of a pool, if it is one that builds without the feature `placements` do not know.
//!
//! The superblock then has a placement that every build knows. So those builds can read it, and
//! refuse the pool for the feature.

use super::features::PLACEMENTS;
use super::superblock::is_later;
use super::values::{Value, put_placement, seal, take_placement, unseal};
use super::{Catalog, META, SUPERBLOCK, Superblock, Txn, db, decode, guarded};
use crate::error::{ErrorKind, Result};
use crate::settings::Placement;
use redb::ReadableTable;

/// The key of the row in the table `meta`.
const PLACEMENT: &str = "placement";

/// The row. The pool has the placement as long as the row is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PlacementRecord(Placement);

impl Value for PlacementRecord {
    fn encode(&self) -> Vec<u8> {
        seal(1, |w| put_placement(w, self.0))
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = unseal(bytes, 1)?;
        let placement = take_placement(&mut r).filter(|placement| is_later(*placement))?;
        r.end(PlacementRecord(placement))
    }
}

/// Returns the superblock with the placement of the row. Placement is a wish, so a row that is
/// damaged or missing is no error.
fn with_row(superblock: Superblock, row: Result<Option<PlacementRecord>>) -> Result<Superblock> {
    match row {
        Ok(Some(PlacementRecord(placement))) => Ok(Superblock { placement, ..superblock }),
        Ok(None) => Ok(superblock),
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(superblock),
        Err(error) => Err(error),
    }
}

fn has_row(superblock: &Superblock) -> bool {
    superblock.features & PLACEMENTS != 0
}

impl Catalog {
    /// Returns the superblock with the placement that the row has, if there is one.
    pub(super) fn with_placement(&self, superblock: Superblock) -> Result<Superblock> {
        if !has_row(&superblock) {
            return Ok(superblock);
        }
        let row = self.store.read("read the catalog", |txn| {
            let table = db!("read the catalog", txn.open_table(META));
            let value = db!("read the catalog", table.get(PLACEMENT));
            value.map(|value| decode("the placement", value.value())).transpose()
        });
        with_row(superblock, row)
    }
}

impl Txn<'_> {
    /// Returns the superblock with the placement that the row has, if there is one.
    pub(super) fn with_placement(&self, superblock: Superblock) -> Result<Superblock> {
        if !has_row(&superblock) {
            return Ok(superblock);
        }
        let row = guarded("read the catalog", || {
            let table = db!("read the catalog", self.txn.get()?.open_table(META));
            let value = db!("read the catalog", table.get(PLACEMENT));
            value.map(|value| decode("the placement", value.value())).transpose()
        });
        with_row(superblock, row)
    }

    /// Writes the superblock. Writes or removes the row of the placement.
    pub(crate) fn put_superblock(&mut self, superblock: &Superblock) -> Result<()> {
        self.put(META, SUPERBLOCK, &superblock.encode())?;
        if is_later(superblock.placement) {
            self.put(META, PLACEMENT, &PlacementRecord(superblock.placement).encode())
        } else if has_row(superblock) {
            self.remove(META, PLACEMENT)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SnapAware;

    #[test]
    fn golden_bytes() {
        let snap_aware = |slice, gap| PlacementRecord(Placement::SnapAware(SnapAware { slice, gap }));
        for (value, fields) in
            [(PlacementRecord(Placement::Share), "0102"), (snap_aware(0x0304, 5), "01030403000005000000")]
        {
            let bytes = value.encode();
            let hex: String = bytes[..bytes.len() - 4].iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(hex, fields);
            assert_eq!(PlacementRecord::decode(&bytes), Some(value));
            for at in 0..bytes.len() {
                let mut broken = bytes.clone();
                broken[at] ^= 1;
                assert_eq!(PlacementRecord::decode(&broken), None, "byte {at}");
            }
        }
        // The superblock has the placements of every build.
        for refused in [PlacementRecord(Placement::Contiguous), snap_aware(0, 5), snap_aware(1 << 20, 1)] {
            assert_eq!(PlacementRecord::decode(&refused.encode()), None);
        }
    }
}
