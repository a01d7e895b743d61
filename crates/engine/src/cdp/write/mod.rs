//! Writing histories: the room that is promised, appending to segments, and loading them at open.

pub(crate) mod append;
pub(crate) mod committing;
pub(crate) mod load;
pub(crate) mod reserve;
pub(crate) mod runs;
