//! Scripts of histories that keep what references replace in its slots. In these pools an anchor
//! is due after 48 KiB of references.

use super::{KIB, discard, volume, write};
use crate::workload::{Crash, Op};
use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Encoding, Retention};

fn record(encoding: Encoding, bytes: Option<u64>) -> Op {
    let retention = Retention { time: None, bytes };
    // No anchor is due but those of references.
    let anchors = AnchorPolicy::Every(1 << 20);
    Op::Cdp(1, Some(CdpSettings { encoding, anchors, retention, ..CdpSettings::default() }))
}

/// A recorded volume whose next writes find lent slots.
fn begin(record: Op, more: Vec<Op>) -> Vec<Op> {
    let mut ops = vec![volume("a", 256 * KIB, 16 * KIB, 512), record, write(0, 32 * KIB, false), Op::Drain];
    ops.extend(more);
    ops
}

/// Chunks without slots, chunks that an anchor shows, and the same chunk twice behind an anchor.
pub(super) fn plain() -> Vec<Op> {
    begin(
        record(Encoding::Parity, None),
        vec![
            write(0, 64 * KIB, false),
            write(32 * KIB, 64 * KIB, false),
            Op::Flush(1),
            Op::Drain,
            Op::ReadMoment(1, 1),
            write(0, 64 * KIB, false),
            write(16 * KIB, 16 * KIB, false),
            Op::Maintain(3),
            record(Encoding::Undo, None),
            write(0, 64 * KIB, true),
            write(0, 64 * KIB, false),
            Op::Settle,
            Op::ReadMoment(1, 4),
        ],
    )
}

/// Parts of chunks over references, discards of them, and a volume that goes back.
pub(super) fn mixed() -> Vec<Op> {
    begin(
        record(Encoding::Undo, None),
        vec![
            write(0, 64 * KIB, false),
            write(5 * KIB, KIB, false),
            write(16 * KIB, 48 * KIB, false),
            Op::Drain,
            discard(16 * KIB, 32 * KIB),
            write(0, 64 * KIB, false),
            write(20 * KIB, 512, true),
            Op::Drain,
            Op::ReadMoment(1, 2),
            Op::RollBackTo { vols: vec![(1, "u".into())], pick: 3, force: true },
            write(0, 64 * KIB, false),
            Op::Crash(Crash::Kill),
            write(0, 64 * KIB, false),
            Op::Settle,
        ],
    )
}

/// The beginning of a history expires, with what it kept. Then recording ends.
pub(super) fn expiry() -> Vec<Op> {
    let mut ops = Vec::new();
    for _ in 0..4 {
        ops.extend([write(0, 64 * KIB, false), write(64 * KIB, 32 * KIB, false), Op::Drain, Op::Maintain(3)]);
        ops.extend([Op::ReadMoment(1, 0), Op::ReadMoment(1, 2)]);
    }
    ops.extend([Op::Cdp(1, None), write(0, 64 * KIB, false), Op::Delete { vol: 1, force: true }, Op::Settle]);
    begin(record(Encoding::Parity, Some(256 * KIB)), ops)
}
