//! Scripts of histories: one history, the histories of a group, and histories that share segments.

use super::{KIB, discard, volume, write, write_to};
use crate::workload::Op;
use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Encoding, Retention};

/// Every write is recorded, also over earlier recorded ones, with anchors between them and past a
/// rollback.
pub(super) fn one() -> Vec<Op> {
    let cdp = |encoding| {
        Op::Cdp(1, Some(CdpSettings { encoding, anchors: AnchorPolicy::Every(3), ..CdpSettings::default() }))
    };
    vec![
        volume("a", 64 * KIB, 4 * KIB, 512),
        write(0, 8 * KIB, false),
        cdp(Encoding::Parity),
        write(1024, 6 * KIB, true),
        Op::Drain,
        write(512, 1024, false),
        write(6 * KIB, 4 * KIB, false),
        Op::Drain,
        cdp(Encoding::Undo),
        discard(2 * KIB, 4 * KIB),
        write(0, 2 * KIB, true),
        Op::Maintain(3),
        Op::ReadMoment(1, 1),
        Op::RollBackTo { vols: vec![(1, "u".into())], pick: 2, force: true },
        write(3 * KIB, 2 * KIB, false),
        Op::Drain,
        write(0, 4 * KIB, true),
        Op::Settle,
    ]
}

/// Moments are kept as snapshots, before and after they are carried out. The history ends, one of
/// the snapshots is deleted, and the volume is rolled back to the other one.
pub(super) fn kept_moments() -> Vec<Op> {
    let keep = |pick, name: &str| Op::KeepMoment(1, pick, name.into());
    vec![
        volume("a", 64 * KIB, 4 * KIB, 512),
        write(0, 16 * KIB, false),
        Op::Cdp(1, Some(CdpSettings { anchors: AnchorPolicy::Every(3), ..CdpSettings::default() })),
        write(1024, 6 * KIB, true),
        write(20 * KIB, 8 * KIB, false),
        keep(1, "s"),
        Op::Drain,
        write(512, 12 * KIB, false),
        Op::Maintain(2),
        keep(2, "t"),
        write(0, 4 * KIB, false),
        Op::Settle,
        Op::Cdp(1, None),
        Op::Settle,
        Op::DeleteSnapshots(vec![1]),
        Op::RollBack { snap: 2, undo: "u".into(), force: true },
        write(4 * KIB, 8 * KIB, true),
        Op::Settle,
        Op::Verify,
    ]
}

/// Two volumes with histories are rolled back to one moment, twice.
pub(super) fn group() -> Vec<Op> {
    let on = |vol, encoding| Op::Cdp(vol, Some(CdpSettings { encoding, ..CdpSettings::default() }));
    let back = |undo: &str, pick| Op::RollBackTo {
        vols: vec![(2, undo.into()), (1, undo.into())],
        pick,
        force: true,
    };
    vec![
        volume("a", 64 * KIB, 4 * KIB, 512),
        volume("b", 64 * KIB, 16 * KIB, 512),
        on(1, Encoding::Parity),
        on(2, Encoding::Undo),
        write(1024, 6 * KIB, false),
        write_to(2, 0, 16 * KIB),
        write(4 * KIB, 4 * KIB, false),
        back("u", 2),
        write(0, 4 * KIB, false),
        write_to(2, 8 * KIB, 4 * KIB),
        back("v", 2),
        Op::Maintain(2),
        Op::Read { vol: 1, offset: 0, len: 64 * KIB, try_first: false },
        Op::Read { vol: 2, offset: 0, len: 64 * KIB, try_first: false },
        Op::Settle,
    ]
}

/// Two volumes have histories. The pool sorts their runs into segments of their own, behind and
/// between other runs. One history keeps little, and the other volume is rolled back. The shared
/// segments are deleted.
pub(super) fn shared() -> Vec<Op> {
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
