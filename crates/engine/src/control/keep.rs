//! The operation that makes a snapshot of a past moment (decision 71).

use super::{Operation, put_area, take_at, take_chunk_log2};
use crate::area::Area;
use crate::branch::namespace::Namespace;
use crate::catalog::{BaseRecord, BranchRecord, Frozen, SnapshotRecord, Txn, decode_method, encode_method};
use crate::codec::{Reader, Writer};
use crate::error::Result;
use crate::ids::{Epoch, Lsn, SnapshotId};
use crate::settings::{Method, Placement};

/// Keeps a moment of a volume as a snapshot. The snapshot is of a new branch that no volume writes
/// to and that rests on the moment, like the branch of a recovered volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeepMoment {
    pub(crate) id: SnapshotId,
    /// The snapshot. It freezes the first epoch of the new branch.
    pub(crate) snapshot: SnapshotRecord,
    pub(crate) chunk_log2: u8,
    pub(crate) base: Frozen,
    /// The LSN of the last record of the moment.
    pub(crate) at: Lsn,
    pub(crate) method: Method,
    pub(crate) area: Area,
}

impl KeepMoment {
    /// Returns the record of the branch, which inherits a placement.
    fn branch(&self, placement: Option<Placement>) -> BranchRecord {
        let base = Some(BaseRecord::Frozen(self.base));
        BranchRecord {
            dead: true,
            epoch: self.snapshot.of.epoch.next(),
            base_at: Some(self.at),
            area: self.area,
            placement,
            ..BranchRecord::new(self.chunk_log2, base, self.method)
        }
    }

    /// Returns the next id that is free.
    fn next_id(&self) -> u64 {
        self.id.0.max(self.snapshot.of.branch.0) + 1
    }
}

impl Operation for KeepMoment {
    fn put(&self, w: &mut Writer) {
        put_area(w, self.area);
        w.u8(Self::KIND).u64(self.at).u64(self.id).u8(self.chunk_log2);
        w.u64(self.base.branch).u32(self.base.epoch.0).u8(encode_method(self.method)).value(&self.snapshot);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(KeepMoment {
            at: take_at(r)?,
            id: r.u64()?,
            chunk_log2: take_chunk_log2(r)?,
            base: Frozen { branch: r.u64()?, epoch: Epoch(r.u32()?) },
            method: decode_method(r.u8()?)?,
            snapshot: r.value()?,
            area: Area::Common,
        })
    }

    fn rows(&self) -> usize {
        2
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        let placement = names.placement_of(self.base.branch);
        names.load_branch(self.snapshot.of.branch, &self.branch(placement))?;
        names.load_snapshot(self.id, &self.snapshot)?;
        names.next_id = names.next_id.max(self.next_id());
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        let placement = txn.branch(self.base.branch)?.and_then(|base| base.placement);
        txn.put_branch(self.snapshot.of.branch, &self.branch(placement))?;
        txn.put_snapshot(self.id, &self.snapshot)?;
        txn.change_superblock(|s| s.next_id = s.next_id.max(self.next_id()))
    }
}
