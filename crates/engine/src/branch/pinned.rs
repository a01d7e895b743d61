//! Pinned moments. Nothing of a pinned moment expires while something rests on it.

use super::unsettled::Unsettled;
use super::{Branch, View};
use crate::ids::{BranchId, Chunk, Lsn};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;

/// A moment of a branch that something rests on. Nothing of it expires before this is dropped.
pub(crate) struct PinnedMoment {
    pub(crate) branch: Arc<Branch>,
    pub(crate) lsn: Lsn,
    /// The moment was pinned before anything of it expired.
    pub(crate) kept: bool,
    /// The chunks that were read lately, oldest first.
    pub(crate) cache: Mutex<Vec<(Chunk, Arc<[u8]>)>>,
    /// The state from which the moment is made while it is not settled. It is `None` once the
    /// moment itself is settled.
    unsettled: RwLock<Option<Arc<Unsettled>>>,
}

impl PinnedMoment {
    pub(crate) fn new(branch: &Arc<Branch>, lsn: Lsn) -> Arc<PinnedMoment> {
        PinnedMoment::with(branch, lsn, None)
    }

    /// Pins a moment that is not settled.
    pub(crate) fn not_settled(branch: &Arc<Branch>, lsn: Lsn, unsettled: Unsettled) -> Arc<PinnedMoment> {
        PinnedMoment::with(branch, lsn, Some(Arc::new(unsettled)))
    }

    fn with(branch: &Arc<Branch>, lsn: Lsn, unsettled: Option<Arc<Unsettled>>) -> Arc<PinnedMoment> {
        let (kept, unsettled) = (branch.cdp.pin(lsn), RwLock::new(unsettled));
        Arc::new(PinnedMoment { branch: branch.clone(), lsn, kept, cache: Mutex::default(), unsettled })
    }

    /// Returns what makes the moment from one that is settled. `None` if the moment itself is
    /// settled.
    pub(crate) fn unsettled(&self) -> Option<Arc<Unsettled>> {
        self.unsettled.read().clone()
    }

    /// Notes that the moment is settled.
    pub(crate) fn settle(&self) {
        let released = self.unsettled.write().take();
        drop(released);
    }

    /// Returns the branch's id and the LSN.
    pub(crate) fn place(&self) -> (BranchId, Lsn) {
        (self.branch.id, self.lsn)
    }

    pub(crate) fn branch(&self) -> &Arc<Branch> {
        &self.branch
    }

    /// Returns the branch as it is now.
    pub(crate) fn line(&self) -> View {
        View::head(&self.branch)
    }

    /// Returns the size of the volume at the moment, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.branch.cdp.log.read().size_at(self.lsn)
    }

    pub(crate) fn cached(&self, chunk: Chunk) -> Option<Arc<[u8]>> {
        self.cache.lock().iter().find(|(of, _)| *of == chunk).map(|(_, content)| content.clone())
    }
}
