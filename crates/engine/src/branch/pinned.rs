//! Pinned moments. Nothing of a pinned moment expires while something rests on it.

use super::{Branch, View};
use crate::ids::{BranchId, Lsn};
use parking_lot::Mutex;
use std::sync::Arc;

/// A moment of a branch that something rests on. Nothing of it expires before this is dropped.
pub(crate) struct PinnedMoment {
    pub(crate) branch: Arc<Branch>,
    pub(crate) lsn: Lsn,
    /// The moment was pinned before anything of it expired.
    pub(crate) kept: bool,
    /// The chunks that were read lately, oldest first.
    pub(crate) cache: Mutex<Vec<(u64, Arc<[u8]>)>>,
}

impl PinnedMoment {
    pub(crate) fn new(branch: &Arc<Branch>, lsn: Lsn) -> Arc<PinnedMoment> {
        let kept = branch.cdp.pin(lsn);
        Arc::new(PinnedMoment { branch: branch.clone(), lsn, kept, cache: Mutex::default() })
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

    pub(crate) fn cached(&self, chunk: u64) -> Option<Arc<[u8]>> {
        self.cache.lock().iter().find(|(of, _)| *of == chunk).map(|(_, content)| content.clone())
    }
}
