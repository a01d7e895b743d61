//! Scripts of repairs: a bit flips in place, and the history of the volume leads to the content.

use super::{KIB, volume, write, write_to};
use crate::workload::Op;
use hindcast_engine::cdp::{AnchorPolicy, CdpSettings};

/// A volume with a history, content that only a snapshot sees, and current content.
fn begin() -> Vec<Op> {
    vec![
        volume("a", 64 * KIB, 16 * KIB, 512),
        Op::Cdp(1, Some(CdpSettings { anchors: AnchorPolicy::Never, ..CdpSettings::default() })),
        write(0, 64 * KIB, false),
        Op::Snapshot(vec![(1, "s".into())]),
        write(0, 32 * KIB, false),
        Op::Drain,
    ]
}

/// Reads find the damage, a write to a part of a block does, and a drain does. What a repair leaves
/// behind goes with the drain.
pub(super) fn moved() -> Vec<Op> {
    let mut ops = begin();
    ops.extend([
        Op::Rot(0),
        Op::Verify,
        Op::Rot(12),
        // A part of each block that may be damaged.
        Op::Write { vol: 1, parts: (0..16).map(|block| (block * 4 * KIB + 1024, 512)).collect(), fua: false },
        Op::Drain,
        Op::Verify,
        Op::Rot(20),
        Op::AddPv { size: (1 << 20) + 30 * 64 * KIB, device: false },
        Op::DrainPv(0, true),
        Op::Settle,
        Op::Verify,
    ]);
    ops
}

/// There is no space for a repaired chunk, so it is repaired where it is.
pub(super) fn in_place() -> Vec<Op> {
    // The smaller physical volume alone is soon full.
    let mut ops = vec![Op::DrainPv(0, true), Op::Settle, Op::RemovePv(0)];
    ops.extend(begin());
    ops.extend([
        volume("b", 4096 * KIB, 64 * KIB, 512),
        write_to(2, 0, 64 * KIB),
        Op::Fill(2),
        Op::Rot(0),
        Op::Verify,
        Op::Settle,
    ]);
    ops
}
