//! Groups: several operations that a crash leaves as a whole, or not at all.

use super::{Control, FollowUp, HistoryChange, Operation, Preparation};
use crate::branch::namespace::Namespace;
use crate::catalog::Txn;
use crate::codec::{Reader, Writer};
use crate::core::Core;
use crate::error::Result;
use crate::ids::Lsn;

/// Several operations, none of them a group, that are carried out as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) parts: Vec<Control>,
}

impl Operation for Group {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u16(self.parts.len() as u16);
        for part in &self.parts {
            let bytes = part.encode();
            w.u32(bytes.len() as u32).bytes(&bytes);
        }
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        let part = |r: &mut Reader<'_>| {
            let len = r.u32()? as usize;
            let bytes = r.take(len)?;
            // A group in a group is not even looked at: its depth would be that of the stack.
            if bytes.first() == Some(&Self::KIND) { None } else { Control::decode(bytes) }
        };
        let count = r.u16()?;
        Some(Group { parts: (0..count).map(|_| part(r)).collect::<Option<_>>()? })
    }

    fn check(&self) -> Result<()> {
        self.parts.iter().try_for_each(Control::check)
    }

    fn shares_commit(&self) -> bool {
        self.parts.iter().all(Control::shares_commit)
    }

    fn rows(&self) -> usize {
        self.parts.iter().map(Control::rows).sum()
    }

    fn apply(&self, names: &mut Namespace, lsn: Lsn, time: u64) -> Result<()> {
        self.parts.iter().try_for_each(|part| part.apply(names, lsn, time))
    }

    fn prepare(&self, core: &Core, preparation: &mut Preparation) -> Result<()> {
        self.parts.iter().try_for_each(|part| part.prepare(core, preparation))
    }

    fn history(&self, core: &Core, time: u64, change: &mut HistoryChange) -> Result<()> {
        self.parts.iter().try_for_each(|part| part.history(core, time, change))
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        self.parts.iter().try_for_each(|part| part.store(txn))
    }

    fn after(&self, core: &Core, lsn: Lsn, follow_ups: &mut Vec<FollowUp>) -> Result<()> {
        self.parts.iter().try_for_each(|part| part.after(core, lsn, follow_ups))
    }
}
