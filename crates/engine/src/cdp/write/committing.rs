//! Marks for commits of recorded batches that are under way.

use crate::branch::Branch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A mark that a recorded batch of a branch is being committed. From the commit until the log has
/// the batch's records, the catalog may have content from which no record leads back.
pub(crate) struct Committing(Arc<Branch>);

impl Committing {
    pub(crate) fn begin(branch: &Arc<Branch>) -> Committing {
        branch.cdp.committing.fetch_add(1, Ordering::SeqCst);
        Committing(branch.clone())
    }
}

impl Drop for Committing {
    fn drop(&mut self) {
        self.0.cdp.committing.fetch_sub(1, Ordering::SeqCst);
    }
}
