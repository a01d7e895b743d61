//! Background work beside destage: freeing, moving, rebalancing, making branches complete, expiry
//! of history, sorting.
//!
//! Each file has one kind of work, as steps that a caller takes one at a time.

pub(crate) mod dissolve;
pub(crate) mod evacuate;
pub(crate) mod flatten;
pub(crate) mod freeing;
mod growth;
pub(crate) mod rebalance;
pub(crate) mod rebuild;
pub(crate) mod reclaim;
pub(crate) mod recompress;
pub(crate) mod relocate;
pub(crate) mod repair;
pub(crate) mod retention;
pub(crate) mod scrub;
pub(crate) mod sort;
