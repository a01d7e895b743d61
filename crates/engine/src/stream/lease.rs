//! The right to fill a volume from a stream.

use super::import::check_same;
use crate::branch::VolumeState;
use crate::catalog::ImportRecord;
use crate::error::{Result, conflict, not_found};
use crate::pool::Pool;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The right of one import to fill a volume. While a lease is held, the volume takes writes of its
/// holder alone.
///
/// Each lease has a number of its own. The volume stores the number that is valid, and compares it
/// under the sequencing lock. So a write of a stale import is refused, however late it arrives. A
/// lease ends when a newer import of the same stream takes one, when the import ends or is
/// cancelled, when the volume is rolled back or deleted, and when it is dropped. A lease is not
/// durable: after a restart, no import holds an unfinished import's lease.
pub(crate) struct Lease {
    state: Arc<VolumeState>,
    number: u64,
}

impl Lease {
    /// Takes the lease of a volume. Also returns the unfinished import of the stream `wanted`, if
    /// there is one. Without an unfinished import, the volume refuses other writes only as long as
    /// the lease is held and the import is not durable.
    pub(super) fn take(
        pool: &Pool,
        state: Arc<VolumeState>,
        wanted: ImportRecord,
    ) -> Result<(Lease, Option<ImportRecord>)> {
        pool.core.check_usable()?;
        let mut names = pool.core.names.write();
        if !names.volume_by_id(state.id).is_some_and(|now| Arc::ptr_eq(now, &state)) {
            return Err(not_found("import: the volume was deleted or rolled back"));
        }
        let name = state.name.read().clone();
        let unfinished = *state.import.read();
        check_same(&name, unfinished, wanted)?;
        if unfinished.is_none() && state.importing.load(Ordering::Acquire) {
            return Err(conflict(format!("import into {name}: another import is starting; try again")));
        }
        names.leases += 1;
        let number = names.leases;
        // Every write of other clients is sequenced before this, or refused.
        let sequencing = pool.core.journal.sequence();
        state.lease.store(number, Ordering::Release);
        state.importing.store(true, Ordering::Release);
        drop(sequencing);
        drop(names);
        Ok((Lease { state, number }, unfinished))
    }

    /// Returns the volume.
    pub(crate) fn state(&self) -> &Arc<VolumeState> {
        &self.state
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Fails if the lease has ended. The caller holds the names locked for writing; the result is
    /// valid as long as they are.
    pub(crate) fn check(&self) -> Result<()> {
        self.state.check_there()?;
        self.state.check_lease(self.number)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let ended = self.state.lease.compare_exchange(self.number, 0, Ordering::AcqRel, Ordering::Acquire);
        // An import that did not become durable leaves nothing behind. Until now, no other import
        // could begin.
        if ended.is_ok() && self.state.import.read().is_none() {
            self.state.importing.store(false, Ordering::Release);
        }
    }
}
