//! Commits of recorded batches that are under way.

use crate::branch::Branch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A batch that is recorded is being committed. From its commit until the log has its records, who
/// looks into the catalog may find what no record leads back from.
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
