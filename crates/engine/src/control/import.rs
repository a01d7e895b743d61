//! Imports: how far a stream has filled a volume.

use super::Operation;
use crate::branch::namespace::Namespace;
use crate::catalog::{ImportRecord, Txn, decode_import, encode_import};
use crate::codec::{Reader, Writer};
use crate::error::Result;
use crate::ids::{Lsn, VolumeId};

/// Sets how far a stream was imported. All its writes up to there come before this record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetImport {
    pub(crate) id: VolumeId,
    pub(crate) import: Option<ImportRecord>,
}

impl Operation for SetImport {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u64(self.id);
        encode_import(w, self.import.as_ref());
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(SetImport { id: r.u64()?, import: decode_import(r)? })
    }

    fn shares_commit(&self) -> bool {
        true
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        names.on_volume(self.id, |v| v.set_import(self.import));
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        txn.change_volume(self.id, |v| v.import = self.import)
    }
}
