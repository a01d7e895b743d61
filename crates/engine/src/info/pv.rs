//! What is known of physical volumes.

use super::layout::LayoutInfo;
use uuid::Uuid;

/// The state of a physical volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PvInfo {
    /// Number inside the pool, never used twice.
    pub id: u32,
    /// Identity in the label.
    pub uuid: Uuid,
    /// Path as the operator gave it.
    pub path: String,
    /// Usable bytes (whole extents).
    pub size: u64,
    /// Bytes of used extents.
    pub used: u64,
    /// New slots are placed elsewhere, and data is being moved away.
    pub draining: bool,
    /// The part of its size that counts for the placement `share`, in per cent.
    pub weight: u32,
    /// The space for the volumes that were made for it. `None`: it is not dedicated.
    pub dedicated: Option<DedicatedSpace>,
    /// Number of reads that failed since the pool was opened.
    pub read_errors: u64,
    /// The last read error; empty if there was none.
    pub last_read_error: String,
    /// The error of a write that failed. Nothing is written to the physical volume any more until
    /// the pool is opened again. It can still be read.
    pub failure: Option<String>,
    /// The members, if the physical volume is a mirror or a RAID-5.
    pub layout: Option<LayoutInfo>,
}

/// The space of a dedicated physical volume, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DedicatedSpace {
    /// Bytes of all extents, if they may take data.
    pub capacity: u64,
    /// Bytes that can still be promised to new writes of its volumes.
    pub available: u64,
    /// Bytes that could still be promised if the file system below had room for everything.
    pub own_available: u64,
}
