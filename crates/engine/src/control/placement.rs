//! Operations on where new slots are placed.

use super::{FollowUp, Operation};
use crate::branch::namespace::Namespace;
use crate::catalog::features::{OWN_PLACEMENTS, PLACEMENTS};
use crate::catalog::{PvRecord, Txn, is_later, put_placement, take_placement, take_weight};
use crate::codec::{Reader, Writer};
use crate::core::Core;
use crate::error::Result;
use crate::ids::{Lsn, VolumeId};
use crate::settings::Placement;

/// Sets where new slots are placed from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetPlacement {
    pub(crate) placement: Placement,
}

impl Operation for SetPlacement {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND);
        put_placement(w, self.placement);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(SetPlacement { placement: take_placement(r)? })
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        names.placement = self.placement;
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        txn.change_superblock(|s| {
            s.placement = self.placement;
            s.features |= if is_later(self.placement) { PLACEMENTS } else { 0 };
        })
    }

    fn after(&self, _core: &Core, _lsn: Lsn, follow_ups: &mut Vec<FollowUp>) -> Result<()> {
        follow_ups.push(FollowUp::SetPlacement(self.placement));
        Ok(())
    }
}

/// Sets where new slots of a volume are placed from now on. `None`: where those of the pool are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetVolumePlacement {
    pub(crate) id: VolumeId,
    pub(crate) placement: Option<Placement>,
}

impl Operation for SetVolumePlacement {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u64(self.id).u8(self.placement.is_some() as u8);
        if let Some(placement) = self.placement {
            put_placement(w, placement);
        }
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        let (id, has_placement) = (r.u64()?, r.u8().filter(|flag| *flag < 2)? == 1);
        let placement = if has_placement { Some(take_placement(r)?) } else { None };
        Some(SetVolumePlacement { id, placement })
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        names.on_volume(self.id, |v| v.line.branch.set_placement(self.placement));
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        let Some(volume) = txn.volume(self.id)? else { return Ok(()) };
        txn.change_superblock(|s| s.features |= OWN_PLACEMENTS)?;
        txn.change_branch(volume.branch, |b| b.placement = self.placement)
    }

    fn after(&self, core: &Core, _lsn: Lsn, follow_ups: &mut Vec<FollowUp>) -> Result<()> {
        let volume = core.catalog.volume(self.id)?;
        follow_ups.extend(volume.map(|volume| FollowUp::ForgetRegions { branch: volume.branch }));
        Ok(())
    }
}

/// Sets the part of a physical volume's size that counts for Share, in per cent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetWeight {
    pub(crate) pv: u32,
    pub(crate) weight: u32,
}

impl Operation for SetWeight {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u32(self.pv).u32(self.weight);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(SetWeight { pv: r.u32()?, weight: take_weight(r)? })
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        if let Some(record) = names.pvs.get_mut(&self.pv) {
            record.weight = self.weight;
        }
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        let Some(record) = txn.committed().pv(self.pv)? else { return Ok(()) };
        txn.change_superblock(|s| s.features |= OWN_PLACEMENTS)?;
        txn.put_pv(self.pv, &PvRecord { weight: self.weight, ..record })?;
        txn.rebalance_if_shared()
    }

    fn after(&self, _core: &Core, _lsn: Lsn, follow_ups: &mut Vec<FollowUp>) -> Result<()> {
        follow_ups.push(FollowUp::SetWeight { pv: self.pv, weight: self.weight });
        Ok(())
    }
}
