//! Writing histories: promising room, appending to segments, and loading segments at open.

pub(crate) mod append;
pub(crate) mod committing;
pub(crate) mod load;
pub(crate) mod reserve;
pub(crate) mod runs;
