//! Operations on physical volumes.

use super::{FollowUp, Operation, Preparation, put_area};
use crate::area::Area;
use crate::branch::namespace::Namespace;
use crate::catalog::{PvRecord, Txn};
use crate::codec::{Reader, Writer};
use crate::core::Core;
use crate::disk::OpenMode;
use crate::error::{Error, Result, corrupt};
use crate::ids::Lsn;
use crate::space::label::wipe;
use crate::space::pv::Pv;
use std::sync::Arc;
use uuid::Uuid;

/// Adds a physical volume, whose label is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AddPv {
    pub(crate) pv: u32,
    pub(crate) uuid: Uuid,
    pub(crate) path: String,
    pub(crate) extents: u32,
    pub(crate) dedicated: bool,
}

impl AddPv {
    fn record(&self) -> PvRecord {
        let record = PvRecord::new(self.uuid, self.path.clone(), self.extents);
        PvRecord { dedicated: self.dedicated, ..record }
    }
}

impl Operation for AddPv {
    fn put(&self, w: &mut Writer) {
        put_area(w, Area::of(self.pv, self.dedicated));
        w.u8(Self::KIND).u32(self.pv).uuid(&self.uuid).string(&self.path).u32(self.extents);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        let (pv, uuid, path, extents) = (r.u32()?, r.uuid()?, r.string()?, r.u32()?);
        Some(AddPv { pv, uuid, path, extents, dedicated: false })
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        names.next_pv = names.next_pv.max(self.pv + 1);
        // One that was added ahead of its turn may have grown since.
        names.pvs.entry(self.pv).or_insert_with(|| self.record());
        Ok(())
    }

    fn prepare(&self, core: &Core, _preparation: &mut Preparation) -> Result<()> {
        // The physical volume is opened before the catalog has it. A physical volume that can't be
        // opened now could not be opened later either.
        core.open_added(self.pv).map(drop)
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        if txn.committed().pv(self.pv)?.is_none() {
            txn.put_pv(self.pv, &self.record())?;
        }
        txn.rebalance_if_shared()?;
        txn.change_superblock(|s| s.next_pv = s.next_pv.max(self.pv + 1))
    }

    fn after(&self, _core: &Core, _lsn: Lsn, follow_ups: &mut Vec<FollowUp>) -> Result<()> {
        follow_ups.push(FollowUp::AddPv { pv: self.pv, extents: self.extents });
        Ok(())
    }
}

impl Core {
    /// Opens a PV that a sequenced operation has added.
    pub(crate) fn open_added(&self, id: u32) -> Result<Arc<Pv>> {
        if let Some(pv) = self.pvs.held(id) {
            return Ok(pv);
        }
        let record = self.names.read().pvs.get(&id).cloned();
        let record = record.ok_or_else(|| corrupt(format!("open PV {id}: it is unknown")))?;
        let pv = crate::space::pv::open_known(
            &*self.dir,
            self.uuid,
            self.config.extent_size,
            id,
            &record,
            OpenMode::Existing,
        )?;
        self.pvs.insert(pv.clone());
        Ok(pv)
    }
}

/// Starts or stops moving the data of a physical volume away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetDraining {
    pub(crate) pv: u32,
    pub(crate) draining: bool,
}

impl Operation for SetDraining {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u32(self.pv).u8(self.draining as u8);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(SetDraining { pv: r.u32()?, draining: r.u8()? != 0 })
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        if let Some(record) = names.pvs.get_mut(&self.pv) {
            record.draining = self.draining;
        }
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        match txn.committed().pv(self.pv)? {
            Some(record) => txn.put_pv(self.pv, &PvRecord { draining: self.draining, ..record })?,
            None => return Ok(()),
        }
        if self.draining { Ok(()) } else { txn.rebalance_if_shared() }
    }

    fn after(&self, core: &Core, _lsn: Lsn, follow_ups: &mut Vec<FollowUp>) -> Result<()> {
        // A later operation counts already: nothing new may be placed on a physical volume that is
        // about to be removed.
        let stays = core.names.read().pvs.get(&self.pv).is_some_and(|record| !record.draining);
        follow_ups.push(FollowUp::SetDraining { pv: self.pv, draining: !stays });
        Ok(())
    }
}

/// Removes an empty physical volume, and wipes its label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemovePv {
    pub(crate) pv: u32,
}

impl Operation for RemovePv {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u32(self.pv);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(RemovePv { pv: r.u32()? })
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        names.pvs.remove(&self.pv);
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        txn.remove_pv(self.pv)?;
        txn.rebalance_if_shared()
    }

    fn after(&self, _core: &Core, _lsn: Lsn, follow_ups: &mut Vec<FollowUp>) -> Result<()> {
        follow_ups.push(FollowUp::RemovePv { pv: self.pv });
        Ok(())
    }
}

impl Core {
    /// Closes and wipes a removed PV, from which no slot is given out any more.
    pub(crate) fn close_removed(&self, id: u32) {
        self.stamping.forget(id);
        // A file that stays is removed by the next opening.
        let _ = self.sums.forget(id);
        if let Some(pv) = self.pvs.take(id) {
            let wiped = wipe(&*pv.disk, &pv.path).and_then(|()| match pv.disk.as_layout() {
                Some(layout) => {
                    layout.members().dissolve().map_err(|e| Error::io(format!("dissolve {}", pv.path), e))
                }
                None => Ok(()),
            });
            let _ = pv.wiped.set(wiped);
        }
    }
}
