//! Operations on volumes: their beginning, size, name and end.

use super::{FollowUp, HistoryChange, Operation, Preparation, put_area, put_at, take_at, take_chunk_log2};
use crate::area::Area;
use crate::branch::namespace::Namespace;
use crate::branch::{DiscardRange, VolumeState};
use crate::catalog::features::OWN_DIRECT;
use crate::catalog::{
    BaseRecord, BranchRecord, Event, Frozen, ImageRecord, Txn, VolumeRecord, decode_method, encode_method,
};
use crate::codec::{Reader, Writer};
use crate::core::Core;
use crate::error::{Result, corrupt};
use crate::ids::{Epoch, Lsn, SnapshotId, VolumeId};
use crate::settings::{DirectMin, Method, Placement};
use crate::staging::Range;
use std::sync::atomic::Ordering;

/// Creates a volume, and begins the volume's branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CreateVolume {
    pub(crate) id: VolumeId,
    pub(crate) chunk_log2: u8,
    pub(crate) volume: VolumeRecord,
    pub(crate) area: Area,
}

impl CreateVolume {
    fn branch(&self) -> BranchRecord {
        BranchRecord { area: self.area, ..BranchRecord::new(self.chunk_log2, None, Method::default()) }
    }
}

impl Operation for CreateVolume {
    fn put(&self, w: &mut Writer) {
        let CreateVolume { id, chunk_log2, volume: v, area } = self;
        put_area(w, *area);
        w.u8(Self::KIND).u64(*id).u64(v.branch).uuid(&v.uuid).string(&v.name).u64(v.size);
        w.u8(*chunk_log2).u32(v.block_size).u8(v.read_only as u8).u64(v.created);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        let (id, branch, uuid, name, size) = (r.u64()?, r.u64()?, r.uuid()?, r.string()?, r.u64()?);
        let (chunk_log2, block_size, read_only) = (take_chunk_log2(r)?, r.u32()?, r.u8()? != 0);
        let created = r.u64()?;
        let record = VolumeRecord::new(uuid, &name, (size, block_size), branch);
        let volume = VolumeRecord { read_only, created, ..record };
        Some(CreateVolume { id, chunk_log2, volume, area: Area::Common })
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        begin_volume(names, self.id, &self.volume, &self.branch())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        store_new_volume(txn, self.id, &self.volume, &self.branch())
    }
}

/// Creates a volume over an image outside of the pool, and begins the volume's branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CreateOver {
    pub(crate) id: VolumeId,
    pub(crate) chunk_log2: u8,
    pub(crate) image: ImageRecord,
    pub(crate) volume: VolumeRecord,
    pub(crate) area: Area,
}

impl CreateOver {
    fn branch(&self) -> BranchRecord {
        let base = Some(BaseRecord::Image(self.image.clone()));
        BranchRecord { area: self.area, ..BranchRecord::new(self.chunk_log2, base, Method::default()) }
    }
}

impl Operation for CreateOver {
    fn put(&self, w: &mut Writer) {
        put_area(w, self.area);
        w.u8(Self::KIND).u64(self.id).u8(self.chunk_log2);
        self.image.put(w);
        w.value(&self.volume);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(CreateOver {
            id: r.u64()?,
            chunk_log2: take_chunk_log2(r)?,
            image: ImageRecord::take(r)?,
            volume: r.value()?,
            area: Area::Common,
        })
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        begin_volume(names, self.id, &self.volume, &self.branch())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        store_new_volume(txn, self.id, &self.volume, &self.branch())
    }
}

/// Creates a volume over a frozen state, and begins the volume's branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CloneVolume {
    pub(crate) id: VolumeId,
    pub(crate) chunk_log2: u8,
    pub(crate) base: Frozen,
    /// The LSN of the record right after which the base branch is the base. Without one the base
    /// is as its epoch shows it.
    pub(crate) at: Option<Lsn>,
    pub(crate) method: Method,
    pub(crate) volume: VolumeRecord,
    pub(crate) area: Area,
}

impl CloneVolume {
    pub(super) fn take_at_moment(r: &mut Reader<'_>) -> Option<Self> {
        let at = Some(take_at(r)?);
        Some(CloneVolume { at, ..Self::take(r)? })
    }

    /// Returns the record of the branch, which inherits a placement.
    fn branch(&self, placement: Option<Placement>) -> BranchRecord {
        let record = BranchRecord::new(self.chunk_log2, Some(BaseRecord::Frozen(self.base)), self.method);
        BranchRecord { base_at: self.at, area: self.area, placement, ..record }
    }
}

impl Operation for CloneVolume {
    fn put(&self, w: &mut Writer) {
        put_area(w, self.area);
        put_at(w, (Self::KIND, Self::KIND_AT_MOMENT), self.at);
        w.u64(self.id).u8(self.chunk_log2).u64(self.base.branch).u32(self.base.epoch.0);
        w.u8(encode_method(self.method)).value(&self.volume);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(CloneVolume {
            id: r.u64()?,
            chunk_log2: take_chunk_log2(r)?,
            base: Frozen { branch: r.u64()?, epoch: Epoch(r.u32()?) },
            at: None,
            method: decode_method(r.u8()?)?,
            volume: r.value()?,
            area: Area::Common,
        })
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        begin_volume(names, self.id, &self.volume, &self.branch(names.placement_of(self.base.branch)))
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        let placement = txn.branch(self.base.branch)?.and_then(|base| base.placement);
        store_new_volume(txn, self.id, &self.volume, &self.branch(placement))
    }
}

/// Adds a new volume, and the branch that it writes to.
fn begin_volume(
    names: &mut Namespace,
    id: VolumeId,
    volume: &VolumeRecord,
    branch: &BranchRecord,
) -> Result<()> {
    names.load_branch(volume.branch, branch)?;
    names.next_id = names.next_id.max(id.0 + 1).max(volume.branch.0 + 1);
    names.load_volume(id, volume.clone())
}

fn store_new_volume(
    txn: &mut Txn<'_>,
    id: VolumeId,
    volume: &VolumeRecord,
    branch: &BranchRecord,
) -> Result<()> {
    txn.put_branch(volume.branch, branch)?;
    txn.put_volume(id, volume)?;
    txn.change_superblock(|s| s.next_id = s.next_id.max(id.0 + 1).max(volume.branch.0 + 1))
}

/// Changes the size of a volume. Shrinking discards the tail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResizeVolume {
    pub(crate) id: VolumeId,
    pub(crate) size: u64,
}

impl Operation for ResizeVolume {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u64(self.id).u64(self.size);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(ResizeVolume { id: r.u64()?, size: r.u64()? })
    }

    fn apply(&self, names: &mut Namespace, lsn: Lsn, _time: u64) -> Result<()> {
        names.on_volume(self.id, |v| resize(v, self.size, lsn));
        Ok(())
    }

    fn prepare(&self, core: &Core, preparation: &mut Preparation) -> Result<()> {
        preparation.discards.extend(self.tail(core)?);
        Ok(())
    }

    fn history(&self, core: &Core, time: u64, change: &mut HistoryChange) -> Result<()> {
        let Some(volume) = core.catalog.volume(self.id)? else { return Ok(()) };
        let branch = core.branch(volume.branch)?;
        if branch.cdp.log.read().settings.is_some() {
            let shrinks = self.size < volume.size;
            let end = if shrinks { volume.size.next_multiple_of(branch.chunk_size()) } else { 0 };
            change.events.push((branch, Event::Resized { size: self.size, end, time }));
        }
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        txn.change_volume(self.id, |v| v.size = self.size)
    }

    fn after(&self, core: &Core, lsn: Lsn, _follow_ups: &mut Vec<FollowUp>) -> Result<()> {
        // The discarded tail leaves staging only now that the map is without it.
        if let Some(volume) = core.catalog.volume(self.id)?
            && let Some(branch) = core.names.read().branches.get(&volume.branch)
        {
            branch.staging.remove(std::iter::empty(), lsn);
        }
        Ok(())
    }
}

impl ResizeVolume {
    /// Returns the tail that is cut off; `None` if there is none.
    fn tail(&self, core: &Core) -> Result<Option<DiscardRange>> {
        let Some(record) = core.catalog.volume(self.id)? else {
            return Ok(None);
        };
        if self.size >= record.size {
            return Ok(None);
        }
        let branch = core.names.read().branches.get(&record.branch).cloned();
        let Some(branch) = branch else {
            return Err(corrupt(format!("resize volume {}: its branch is missing", record.name)));
        };
        // The range reaches to the end of the last chunk. What lies behind the old end was never
        // visible, and must never be.
        let end = record.size.next_multiple_of(1 << branch.chunk_log2);
        // The operation's place in the order is behind all records of this epoch that were
        // sequenced before it.
        let Some(epoch) = core.catalog.branch(branch.id)?.map(|b| b.epoch) else { return Ok(None) };
        Ok(Some(DiscardRange { branch, epoch, bytes: self.size..end }))
    }
}

fn resize(volume: &VolumeState, size: u64, lsn: Lsn) {
    volume.line.branch.cdp.wrote(lsn);
    volume.line.branch.cdp.waiting.turn(lsn);
    let old = volume.size.swap(size, Ordering::AcqRel);
    if size < old {
        // Should it grow again before the tail is discarded, the tail reads as zeros already.
        let branch = &volume.line.branch;
        branch.staging.disturb(size, old);
        let end = old.next_multiple_of(1 << branch.chunk_log2);
        let range = Range { start: size, end, lsn, keeps_space: false };
        branch.staging.insert_range(branch.epoch(), range);
    }
}

/// Gives a volume another name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RenameVolume {
    pub(crate) id: VolumeId,
    pub(crate) name: String,
}

impl Operation for RenameVolume {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u64(self.id).string(&self.name);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(RenameVolume { id: r.u64()?, name: r.string()? })
    }

    fn shares_commit(&self) -> bool {
        true
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        if let Some(volume) = names.volume_by_id(self.id).cloned() {
            let old = std::mem::replace(&mut *volume.name.write(), self.name.clone());
            names.by_name.remove(&old);
            names.by_name.insert(self.name.clone(), volume);
        }
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        txn.change_volume(self.id, |v| v.name.clone_from(&self.name))
    }
}

/// Makes a volume refuse writes, or accept them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetReadOnly {
    pub(crate) id: VolumeId,
    pub(crate) read_only: bool,
}

impl Operation for SetReadOnly {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u64(self.id).u8(self.read_only as u8);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(SetReadOnly { id: r.u64()?, read_only: r.u8()? != 0 })
    }

    fn shares_commit(&self) -> bool {
        true
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        names.on_volume(self.id, |v| v.read_only.store(self.read_only, Ordering::Release));
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        txn.change_volume(self.id, |v| v.read_only = self.read_only)
    }
}

/// Sets the least size of a volume's writes by reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetDirectMin {
    pub(crate) id: VolumeId,
    pub(crate) direct_min: DirectMin,
}

impl Operation for SetDirectMin {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u64(self.id).u64(self.direct_min.code());
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(SetDirectMin { id: r.u64()?, direct_min: DirectMin::from_code(r.u64()?)? })
    }

    fn shares_commit(&self) -> bool {
        true
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        names.on_volume(self.id, |v| v.set_direct_min(self.direct_min));
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        txn.change_superblock(|s| s.features |= OWN_DIRECT)?;
        txn.change_volume(self.id, |v| v.direct_min = self.direct_min)
    }
}

/// Deletes a volume with its snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeleteVolume {
    pub(crate) id: VolumeId,
}

impl Operation for DeleteVolume {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u64(self.id);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(DeleteVolume { id: r.u64()? })
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        if let Some(volume) = names.volume_by_id(self.id).cloned() {
            volume.deleted.store(true, Ordering::Release);
            names.remove_volume(&volume);
            let snapshots: Vec<SnapshotId> = names.snapshots_of(self.id).iter().map(|s| s.id).collect();
            snapshots.into_iter().for_each(|id| names.hide_snapshot(id));
            names.marks.remove_all(self.id);
        }
        Ok(())
    }

    fn prepare(&self, core: &Core, preparation: &mut Preparation) -> Result<()> {
        preparation.orphan_branches.extend(core.catalog.volume(self.id)?.map(|v| v.branch));
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        if let Some(volume) = txn.volume(self.id)? {
            txn.remove_volume(self.id)?;
            txn.change_branch(volume.branch, |b| b.dead = true)?;
        }
        let of_volume = txn.committed().snapshots()?.into_iter().filter(|(_, s)| s.volume == self.id);
        of_volume.map(|(id, _)| id).try_for_each(|id| txn.change_snapshot(id, |s| s.deleted = true))
    }

    fn after(&self, core: &Core, _lsn: Lsn, follow_ups: &mut Vec<FollowUp>) -> Result<()> {
        let anchors = core.anchors();
        let snapshots = core.catalog.snapshots()?;
        let gone = snapshots.into_iter().filter(|(id, s)| s.deleted && !anchors.contains(id));
        follow_ups.push(FollowUp::DeleteSnapshots(gone.map(|(id, _)| id).collect()));
        follow_ups.push(FollowUp::DropHistory { volume: self.id });
        Ok(())
    }
}
