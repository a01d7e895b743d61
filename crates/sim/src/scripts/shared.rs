//! Histories whose batches are recorded as runs of shared segments, and sorted apart.

use super::{KIB, volume, write_to};
use crate::workload::Op;
use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Encoding, Retention};

/// Two volumes with histories; their runs are brought to segments of their own, behind others and
/// between others, one keeps little, the other goes back, and the segments that they share go.
pub(super) fn history() -> Vec<Op> {
    let on = |vol, encoding, bytes| {
        let retention = Retention { time: None, bytes };
        let anchors = AnchorPolicy::Every(6);
        Op::Cdp(vol, Some(CdpSettings { encoding, anchors, retention, ..CdpSettings::default() }))
    };
    let mut ops = vec![
        volume("a", 64 * KIB, 4 * KIB, 512),
        volume("b", 64 * KIB, 16 * KIB, 512),
        on(1, Encoding::Parity, None),
        on(2, Encoding::Undo, Some(16 * KIB)),
        write_to(1, 0, 8 * KIB),
        write_to(2, 0, 16 * KIB),
        Op::Drain,
    ];
    for round in 0..4 {
        ops.extend([
            write_to(1, round * 512, 5 * KIB),
            write_to(2, round * 4 * KIB, 6 * KIB),
            Op::Drain,
            Op::Maintain(2),
        ]);
    }
    ops.extend([
        Op::ReadMoment(1, 2),
        Op::ReadMoment(2, 1),
        Op::RollBackTo { vols: vec![(1, "u".into())], pick: 2, force: true },
        write_to(1, 512, 4 * KIB),
        write_to(2, 0, 3 * KIB),
        Op::Drain,
        Op::Cdp(2, None),
        Op::Maintain(4),
        write_to(1, 3 * KIB, 2 * KIB),
        Op::Settle,
    ]);
    ops
}
