//! Scripts about where slots are placed.

use super::{KIB, freeze, volume, write, write_to};
use crate::workload::Op;
use hindcast_engine::pool::{Placement, SnapAware};

/// Data of a volume with a snapshot moves to the places that Share gives it: after the placement is
/// changed, and when a physical volume comes.
pub(super) fn share() -> Vec<Op> {
    vec![
        volume("a", 512 * KIB, 4 * KIB, 512),
        write(0, 120 * KIB, false),
        Op::Drain,
        freeze(1, "s"),
        write(64 * KIB, 64 * KIB, false),
        Op::Placement(Placement::Share),
        Op::Drain,
        Op::Rebalance(true),
        Op::Maintain(1),
        write(110 * KIB, 64 * KIB, false),
        Op::Settle,
        Op::AddPv { size: (1 << 20) + 30 * 64 * KIB, device: false },
        Op::Settle,
        write(0, 32 * KIB, true),
        Op::Drain,
    ]
}

/// Volumes have placements of their own, which a rollback keeps and a clone inherits, and a
/// physical volume has a weight.
pub(super) fn own() -> Vec<Op> {
    let snap_aware = Placement::SnapAware(SnapAware { slice: 2, gap: 1 });
    vec![
        volume("a", 512 * KIB, 4 * KIB, 512),
        volume("b", 512 * KIB, 4 * KIB, 512),
        write(0, 120 * KIB, false),
        Op::Drain,
        Op::VolumePlacement(1, Some(Placement::Share)),
        Op::VolumePlacement(2, Some(snap_aware)),
        write_to(2, 0, 100 * KIB),
        freeze(1, "s"),
        freeze(2, "t"),
        write(64 * KIB, 64 * KIB, false),
        write_to(2, 64 * KIB, 64 * KIB),
        Op::Drain,
        Op::Rebalance(true),
        Op::Settle,
        Op::Clone(1, "c".into()),
        Op::RollBack { snap: 2, undo: "u".into(), force: true },
        write_to(2, 0, 32 * KIB),
        write_to(3, 96 * KIB, 64 * KIB),
        Op::Weight(1, 25),
        Op::Settle,
        Op::VolumePlacement(1, None),
        write(0, 32 * KIB, true),
        Op::Drain,
        // What was written in the order of other volumes goes to its place, and what a snapshot
        // needs leaves that.
        Op::VolumePlacement(1, Some(snap_aware)),
        Op::Relocate(2),
        Op::Relocate(1),
        Op::Settle,
    ]
}
