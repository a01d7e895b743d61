//! Streams: a snapshot as bytes, whole or as the difference from an older one, to be kept elsewhere
//! or taken in by another pool.
//!
//! Pulled out of an [`Export`] and pushed into an [`Import`], in pieces of any size: whoever moves
//! the bytes decides how. Every record and the whole stream carry sums. Records are in the order of
//! the volume's bytes, so a position in a volume says how far a transfer came, and an export can
//! begin there. The format is explained in docs/FORMAT.md.

mod codec;
mod export;
mod file;
mod import;
mod lease;
mod zeros;

#[cfg(feature = "fuzzing")]
pub(crate) use codec::{Decoder, StreamItem, fuzzed};
pub use codec::{StreamHeader, StreamState};
pub use export::Export;
pub use file::{StreamFile, StreamPart};
pub use import::{Import, UnfinishedImport};
