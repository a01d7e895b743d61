//! Changes of single values inside a write transaction.

use super::{BranchRecord, Catalog, SnapshotRecord, Superblock, Txn, VolumeRecord};
use crate::error::{Result, corrupt};
use crate::ids::{BranchId, SnapshotId, VolumeId};

impl<'a> Txn<'a> {
    /// Returns the catalog as of the last commit.
    pub(crate) fn committed(&self) -> &'a Catalog {
        self.catalog
    }

    pub(crate) fn change_superblock(&mut self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let mut superblock = self.superblock()?;
        change(&mut superblock);
        self.put_superblock(&superblock)
    }

    /// Changes a volume. Does nothing if an earlier operation of this transaction has deleted it.
    pub(crate) fn change_volume(
        &mut self,
        id: VolumeId,
        change: impl FnOnce(&mut VolumeRecord),
    ) -> Result<()> {
        match self.volume(id)? {
            Some(mut volume) => {
                change(&mut volume);
                self.put_volume(id, &volume)
            }
            None => Ok(()),
        }
    }

    /// Changes a snapshot. Does nothing if there is none with this id.
    pub(crate) fn change_snapshot(
        &mut self,
        id: SnapshotId,
        change: impl FnOnce(&mut SnapshotRecord),
    ) -> Result<()> {
        match self.snapshot(id)? {
            Some(mut snapshot) => {
                change(&mut snapshot);
                self.put_snapshot(id, &snapshot)
            }
            None => Ok(()),
        }
    }

    pub(crate) fn change_branch(
        &mut self,
        id: BranchId,
        change: impl FnOnce(&mut BranchRecord),
    ) -> Result<()> {
        let Some(mut record) = self.branch(id)? else {
            return Err(corrupt(format!("update branch {id}: the catalog does not have it")));
        };
        change(&mut record);
        self.put_branch(id, &record)
    }

    /// Adds `slots` to the count of a branch.
    pub(crate) fn add_slots(&mut self, branch: BranchId, slots: i64) -> Result<()> {
        self.change_branch(branch, |b| b.slots = b.slots.saturating_add_signed(slots))
    }
}
