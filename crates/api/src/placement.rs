//! The placement that a volume has of its own, and which of its writes go to their places at once.

use crate::Placement;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The placement of a volume's new slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumePlacement {
    /// Where new slots are placed.
    pub policy: Placement,
    /// With the placement `snap-aware`: size of a slice of the volume in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice_size: Option<u64>,
    /// With the placement `snap-aware`: size of the gap behind a slice in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_size: Option<u64>,
}

/// A placement that a volume is to have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchPlacement {
    /// Where new slots are placed. Absent: where the pool places those of other volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Placement>,
    /// With the placement `snap-aware`: size of a slice of the volume in bytes. Default: 64 MiB, or
    /// the size of an extent if that is larger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice_size: Option<u64>,
    /// With the placement `snap-aware`: number of snapshots that the gap behind a slice has room
    /// for. Default: 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<u32>,
    /// With the placement `snap-aware`: part of a slice that one snapshot keeps, in per cent.
    /// Default: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_percent: Option<u32>,
}

/// Which writes of a volume are to go to their places at once, without a copy in the journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchDirect {
    /// The least size in bytes of such a write: 0 for none, or 4,096 to 16,777,216. Absent: that of
    /// the pool (`serve --direct-min`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<u64>,
}
