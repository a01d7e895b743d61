//! Flattening: branches are made complete, so that they rest on nothing any more.

use super::{FollowUp, Operation};
use crate::branch::namespace::Namespace;
use crate::catalog::{BranchRecord, FillRecord, Txn};
use crate::codec::{Reader, Writer};
use crate::core::Core;
use crate::error::Result;
use crate::ids::{BranchId, Lsn};
use std::sync::atomic::Ordering;

/// Makes branches complete, at this rate in bytes per second (0: without limit), or stops making
/// them complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetFill {
    pub(crate) branches: Vec<BranchId>,
    pub(crate) rate: Option<u64>,
}

impl Operation for SetFill {
    fn put(&self, w: &mut Writer) {
        let SetFill { branches, rate } = self;
        w.u8(Self::KIND).u8(rate.is_some() as u8).u64(rate.unwrap_or(0)).u16(branches.len() as u16);
        branches.iter().for_each(|id| _ = w.u64(*id));
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        let (set, rate, count) = (r.u8()? != 0, r.u64()?, r.u16()?);
        let branches = (0..count).map(|_| r.u64()).collect::<Option<_>>()?;
        Some(SetFill { branches, rate: set.then_some(rate) })
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        for branch in self.branches.iter().filter_map(|id| names.branches.get(id)) {
            branch.filling.store(self.rate.is_some() && branch.has_base(), Ordering::Release);
        }
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        let fill = self.rate.map(|rate| FillRecord { rate, ..FillRecord::default() });
        self.branches.iter().try_for_each(|id| match txn.branch(*id)? {
            Some(branch) if branch.base.is_some() => txn.put_branch(*id, &BranchRecord { fill, ..branch }),
            // Without a base there is nothing to store.
            _ => Ok(()),
        })
    }

    fn after(&self, core: &Core, _lsn: Lsn, follow_ups: &mut Vec<FollowUp>) -> Result<()> {
        let stored = |id: &BranchId| Ok((*id, core.catalog.branch(*id)?.and_then(|b| b.fill)));
        follow_ups.push(FollowUp::SetFill(self.branches.iter().map(stored).collect::<Result<_>>()?));
        Ok(())
    }
}
