//! What is left of the recompression of history.

/// The history that waits to be compressed harder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecompressInfo {
    /// Bytes of segments that were not tried yet, and of the segment that is at work.
    pub left_bytes: u64,
    /// Whether the last segment waits for space: both of its editions take space for a while.
    pub lacks_room: bool,
}
