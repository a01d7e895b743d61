//! Scripts of records that share a commit: data of several volumes with control records between
//! them, and long discards with anchors before them.

use super::{KIB, freeze, look, volume, write_to};
use crate::workload::Op;
use hindcast_engine::cdp::CdpSettings;
use hindcast_engine::pool::Method;

const MIB: u64 = 1 << 20;

/// Rounds of snapshots with writes between them. The two volumes use different methods, and one has
/// a history.
pub(super) fn rounds() -> Vec<Op> {
    let mut ops = vec![
        volume("a", 64 * KIB, 4 * KIB, 512),
        volume("b", 64 * KIB, 4 * KIB, 512),
        Op::Method(2, Method::Copy),
        Op::Cdp(1, Some(CdpSettings::default())),
        write_to(1, 0, 16 * KIB),
        write_to(2, 0, 16 * KIB),
        Op::Drain,
    ];
    for round in 0..2 {
        ops.extend([
            write_to(1, round * KIB, 6 * KIB),
            freeze(1, &format!("a{round}")),
            freeze(2, &format!("b{round}")),
            write_to(2, round * KIB, 6 * KIB),
        ]);
    }
    ops.extend([
        Op::RenameSnapshot(1, "kept".into()),
        Op::Protect(1, true),
        Op::DeleteSnapshots(vec![2]),
        Op::Rename(2, "c".into()),
        write_to(2, 5 * KIB, 2 * KIB),
        Op::Drain,
        Op::ReadMoment(1, 1),
        look(1, 64 * KIB),
        look(4, 64 * KIB),
        write_to(1, 0, 8 * KIB),
        Op::Settle,
    ]);
    ops
}

/// Discards of a volume with a history. Some chunks have slots and some have none.
pub(super) fn discards() -> Vec<Op> {
    let discard = |offset: u64, len: u64| Op::Discard { vol: 1, offset, len, fua: false };
    vec![
        volume("a", 6 * MIB, 64 * KIB, 512),
        Op::Cdp(1, Some(CdpSettings::default())),
        write_to(1, MIB, 8 * KIB),
        Op::Drain,
        discard(0, MIB + 64 * KIB),
        discard(2 * MIB, MIB + 64 * KIB),
        freeze(1, "s"),
        discard(4 * MIB + 512, MIB + 512),
        write_to(1, MIB + KIB, 8 * KIB),
        freeze(1, "t"),
        Op::Drain,
        look(1, MIB),
        look(2, MIB + 64 * KIB),
        Op::ReadMoment(1, 2),
        Op::Settle,
    ]
}
