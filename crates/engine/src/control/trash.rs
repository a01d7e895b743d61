//! Operations on volumes in the trash, and on the labels of volumes (decision 68).
//!
//! A volume in the trash keeps its content, its snapshots and its history. It is addressed by its
//! UUID, because its name is free.

use super::Operation;
use crate::branch::namespace::Namespace;
use crate::catalog::{Labels, Txn, decode_labels, encode_labels};
use crate::codec::{Reader, Writer};
use crate::error::Result;
use crate::ids::{Lsn, VolumeId};

/// Moves a volume to the trash. Its handles are refused from then on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TrashVolume {
    pub(crate) id: VolumeId,
    /// Pool time. It is not 0.
    pub(crate) time: u64,
}

impl Operation for TrashVolume {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u64(self.id).u64(self.time);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(TrashVolume { id: r.u64()?, time: r.u64().filter(|time| *time != 0)? })
    }

    fn shares_commit(&self) -> bool {
        true
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        names.trash(self.id, self.time)
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        txn.change_volume(self.id, |v| v.trashed = self.time)
    }
}

/// Takes a volume out of the trash. It gets the name `name`, which is free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RestoreVolume {
    pub(crate) id: VolumeId,
    pub(crate) name: String,
}

impl Operation for RestoreVolume {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u64(self.id).string(&self.name);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(RestoreVolume { id: r.u64()?, name: r.string()? })
    }

    fn shares_commit(&self) -> bool {
        true
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        names.restore(self.id, &self.name)
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        txn.change_volume(self.id, |v| {
            v.trashed = 0;
            v.name.clone_from(&self.name);
        })
    }
}

/// Sets all labels of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LabelVolume {
    pub(crate) id: VolumeId,
    pub(crate) labels: Labels,
}

impl Operation for LabelVolume {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u64(self.id);
        encode_labels(w, &self.labels);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(LabelVolume { id: r.u64()?, labels: decode_labels(r)? })
    }

    fn shares_commit(&self) -> bool {
        true
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        names.on_volume(self.id, |v| self.labels.clone_into(&mut v.labels.write()));
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        txn.change_volume(self.id, |v| v.labels.clone_from(&self.labels))
    }
}
