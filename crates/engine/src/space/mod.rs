//! Space: physical volumes with their labels and stamps, slots that are free, and what is promised
//! of them.

pub(crate) mod allocator;
pub(crate) mod catalog_room;
pub(crate) mod label;
pub(crate) mod lent;
pub(crate) mod lock;
pub(crate) mod placement;
pub(crate) mod pv;
pub(crate) mod reservations;
pub(crate) mod stamp;
pub(crate) mod stamping;
