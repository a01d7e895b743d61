//! The changes that one record makes with a commit, while destage makes that commit.

use super::{Control, FollowUp, HistoryChange};
use crate::branch::Branch;
use crate::catalog::{Event, Txn};
use crate::core::Core;
use crate::error::Result;
use crate::ids::{Lsn, Stamp};
use std::sync::Arc;

/// The changes that one record makes with a commit: in the catalog, and in histories.
pub(crate) struct OperationChange<'a> {
    lsn: Lsn,
    /// The operation; `None` for a long discard.
    operation: Option<&'a Control>,
    history: HistoryChange,
}

impl<'a> OperationChange<'a> {
    /// Works out what an operation changes, given the state before its commit.
    pub(crate) fn of(core: &Core, Stamp { lsn, time }: Stamp, operation: &'a Control) -> Result<Self> {
        let mut history = HistoryChange::default();
        operation.history(core, time, &mut history)?;
        Ok(OperationChange { lsn, operation: Some(operation), history })
    }

    /// The change of a record that is no control operation, and adds an event to a history.
    pub(crate) fn of_event(lsn: Lsn, branch: Arc<Branch>, event: Event) -> Self {
        OperationChange { lsn, operation: None, history: HistoryChange::of(branch, event) }
    }

    pub(crate) fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// Makes the change part of a transaction.
    pub(crate) fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        self.operation.map_or(Ok(()), |operation| operation.store(txn))?;
        self.history.store(txn, self.lsn)
    }

    /// Shows the committed change to readers, and returns what destage has to do.
    pub(crate) fn publish(self, core: &Core) -> Result<Vec<FollowUp>> {
        core.remember(self.history, self.lsn);
        let mut follow_ups = Vec::new();
        self.operation.map_or(Ok(()), |operation| operation.after(core, self.lsn, &mut follow_ups))?;
        Ok(follow_ups)
    }
}
