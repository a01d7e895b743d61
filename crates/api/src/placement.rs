//! The placement that a volume has of its own.

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
