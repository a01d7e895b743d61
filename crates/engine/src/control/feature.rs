//! The operation that enables features before their first use.

use super::{FollowUp, Operation, Preparation};
use crate::branch::namespace::Namespace;
use crate::catalog::Txn;
use crate::catalog::features::{SUMS, unknown};
use crate::codec::{Reader, Writer};
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::Lsn;
use std::sync::atomic::Ordering;

/// Sets bits of the superblock's feature word.
///
/// The running pool has the features only after the commit (F1). Otherwise a byte of a feature
/// could be on disk before its bit is durable in the catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EnableFeatures {
    pub(crate) features: u64,
}

impl Operation for EnableFeatures {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u64(self.features);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(EnableFeatures { features: r.u64()? })
    }

    fn check(&self) -> Result<()> {
        let Some(names) = unknown(self.features) else { return Ok(()) };
        let text = format!(
            "enable features: they are formats of a later build (features {names}); use a newer build"
        );
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    fn apply(&self, _names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        Ok(())
    }

    fn prepare(&self, core: &Core, _preparation: &mut Preparation) -> Result<()> {
        if self.features & SUMS == 0 {
            return Ok(());
        }
        let pvs: Vec<u32> = core.names.read().pvs.keys().copied().collect();
        for pv in pvs.into_iter().filter_map(|pv| core.pvs.held(pv)) {
            if !core.sums.is_on() {
                // Without the feature nothing keeps the sums of an earlier upgrade true. The pool
                // was restored from a copy that is older than that upgrade.
                core.sums.forget(pv.id)?;
            }
            // From now on, a missing file means that sums were lost.
            core.sums.create(&pv)?;
        }
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        txn.change_superblock(|superblock| superblock.features |= self.features)
    }

    fn after(&self, core: &Core, _lsn: Lsn, _follow_ups: &mut Vec<FollowUp>) -> Result<()> {
        core.features.fetch_or(self.features, Ordering::Release);
        if self.features & SUMS != 0 {
            core.sums.turn_on();
        }
        Ok(())
    }
}
