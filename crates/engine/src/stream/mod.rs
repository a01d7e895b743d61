//! Streams: a snapshot as bytes, whole or as the difference from an older one. A stream can be
//! stored elsewhere, or imported by another pool.
//!
//! The bytes are pulled out of an [`Export`] and pushed into an [`Import`], in pieces of any size.
//! The caller decides how they are transferred. Every record and the whole stream have sums.
//! Records are in the order of the volume's bytes, so a position in the volume tells how far a
//! transfer came, and an export can begin there. docs/FORMAT.md has the format.

mod codec;
mod export;
mod file;
mod import;
mod lease;
mod zeros;

#[cfg(feature = "fuzzing")]
pub(crate) use codec::{Decoder, StreamItem, fuzzed};
pub use codec::{StreamHeader, StreamState};
pub use export::{Export, PastState};
pub use file::{StreamFile, StreamPart};
pub use import::{Import, UnfinishedImport};
