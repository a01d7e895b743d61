//! Scripts of large writes by reference. In these pools a write of whole chunks goes to lent slots
//! if it has at least 16 KiB, or at least 64 KiB where a flush is near.

use super::{KIB, discard, freeze, look, volume, write, write_to};
use crate::workload::{Crash, Op};
use hindcast_engine::pool::{DirectMin, Placement};

/// A volume whose next writes find lent slots.
fn begin(more: Vec<Op>) -> Vec<Op> {
    let mut ops = vec![volume("a", 256 * KIB, 16 * KIB, 512), write(0, 32 * KIB, false), Op::Drain];
    ops.extend(more);
    ops
}

/// An upgrade with writes before and after it, and one that has nothing to do.
pub(super) fn upgrade() -> Vec<Op> {
    vec![
        volume("a", 64 * KIB, 4 * KIB, 512),
        write(0, 16 * KIB, false),
        Op::EnableFeature,
        write(1024, 8 * KIB, true),
        freeze(1, "s"),
        Op::Drain,
        write(4 * KIB, 4 * KIB, false),
        Op::EnableFeature,
        Op::Drain,
    ]
}

/// References to new chunks, and to chunks that already have slots.
pub(super) fn plain() -> Vec<Op> {
    begin(vec![
        write(64 * KIB, 64 * KIB, false),
        write(0, 32 * KIB, false),
        Op::Flush(1),
        Op::Drain,
        write(16 * KIB, 64 * KIB, false),
        Op::Read { vol: 1, offset: 0, len: 160 * KIB, try_first: true },
        Op::Maintain(3),
        write(32 * KIB, 64 * KIB, true),
        Op::Settle,
    ])
}

/// References that later references of the same batch replace.
pub(super) fn overtaken() -> Vec<Op> {
    begin(vec![
        write(0, 64 * KIB, false),
        write(0, 64 * KIB, false),
        write(16 * KIB, 32 * KIB, false),
        Op::Flush(1),
        Op::Drain,
        write(32 * KIB, 64 * KIB, false),
        write(32 * KIB, 64 * KIB, false),
        Op::Settle,
        write(0, 64 * KIB, false),
        Op::Drain,
    ])
}

/// Writes to parts of chunks that references wrote, in the same batch and in the next one.
pub(super) fn part_over_it() -> Vec<Op> {
    begin(vec![
        write(0, 64 * KIB, false),
        write(4 * KIB, 512, false),
        write(14 * KIB, 4 * KIB, false),
        Op::Zeroes { vol: 1, offset: 40 * KIB, len: 2 * KIB, unmap: false, fua: false },
        Op::Read { vol: 1, offset: 0, len: 64 * KIB, try_first: false },
        Op::Flush(1),
        Op::Drain,
        write(20 * KIB, KIB, true),
        Op::Drain,
        Op::Read { vol: 1, offset: 0, len: 64 * KIB, try_first: false },
    ])
}

/// Snapshots between references to the same chunks.
pub(super) fn snapshot_between() -> Vec<Op> {
    begin(vec![
        freeze(1, "s"),
        write(0, 64 * KIB, false),
        write(5 * KIB, 512, false),
        freeze(1, "t"),
        write(16 * KIB, 64 * KIB, false),
        look(1, 96 * KIB),
        look(2, 96 * KIB),
        Op::Maintain(2),
        write(0, 32 * KIB, false),
        Op::Flush(1),
        Op::Drain,
        look(1, 96 * KIB),
        look(2, 96 * KIB),
        Op::DeleteSnapshots(vec![1]),
        Op::Settle,
        look(2, 96 * KIB),
    ])
}

/// Discards of chunks that references wrote, and references to discarded chunks.
pub(super) fn discards() -> Vec<Op> {
    begin(vec![
        write(0, 64 * KIB, false),
        discard(0, 48 * KIB),
        write(16 * KIB, 16 * KIB, false),
        discard(20 * KIB, 40 * KIB),
        Op::Read { vol: 1, offset: 0, len: 64 * KIB, try_first: true },
        Op::Flush(1),
        Op::Drain,
        discard(0, 256 * KIB),
        write(0, 64 * KIB, false),
        write(2 * KIB, 512, false),
        Op::Settle,
    ])
}

/// Writes by reference to a clone and to its origin.
pub(super) fn clone() -> Vec<Op> {
    begin(vec![
        write(0, 64 * KIB, false),
        freeze(1, "s"),
        Op::Clone(1, "b".into()),
        write_to(2, 16 * KIB, 32 * KIB),
        write(0, 64 * KIB, false),
        write_to(2, 20 * KIB, 512),
        Op::Flush(2),
        Op::Maintain(2),
        Op::Read { vol: 2, offset: 0, len: 128 * KIB, try_first: true },
        Op::Delete { vol: 2, force: true },
        Op::Settle,
        look(1, 64 * KIB),
    ])
}

/// A rollback of a volume whose references are not destaged.
pub(super) fn rollback() -> Vec<Op> {
    begin(vec![
        write(0, 64 * KIB, false),
        freeze(1, "s"),
        write(0, 64 * KIB, false),
        Op::RollBack { snap: 1, undo: "u".into(), force: true },
        Op::Read { vol: 1, offset: 0, len: 64 * KIB, try_first: false },
        write(32 * KIB, 32 * KIB, false),
        Op::Maintain(3),
        Op::RollBack { snap: 2, undo: "v".into(), force: true },
        write(64 * KIB, 64 * KIB, true),
        Op::Settle,
        look(2, 128 * KIB),
    ])
}

/// The deletion of a volume whose references are not destaged. Another volume reuses its slots.
pub(super) fn dead_branch() -> Vec<Op> {
    begin(vec![
        write(0, 64 * KIB, false),
        write(64 * KIB, 64 * KIB, false),
        Op::Delete { vol: 1, force: true },
        volume("b", 256 * KIB, 16 * KIB, 512),
        write_to(2, 0, 64 * KIB),
        Op::Flush(2),
        Op::Settle,
        write_to(2, 64 * KIB, 64 * KIB),
        Op::Settle,
        Op::Read { vol: 2, offset: 0, len: 256 * KIB, try_first: true },
    ])
}

/// A flush covers a reference. Later records name it as durable. The pool is killed twice.
pub(super) fn flush_then_inline() -> Vec<Op> {
    begin(vec![
        write(0, 64 * KIB, false),
        Op::Flush(1),
        write(100 * KIB, 512, false),
        write(64 * KIB, 64 * KIB, false),
        write(130 * KIB, 512, false),
        Op::Crash(Crash::Kill),
        write(131 * KIB, 512, true),
        write(0, 512, false),
        Op::Flush(1),
        Op::Read { vol: 1, offset: 0, len: 256 * KIB, try_first: true },
        Op::Crash(Crash::Kill),
        Op::Drain,
    ])
}

/// A physical volume with references is drained and removed.
pub(super) fn drain() -> Vec<Op> {
    begin(vec![
        Op::Placement(Placement::Anywhere),
        write(0, 64 * KIB, false),
        Op::DrainPv(0, true),
        write(64 * KIB, 64 * KIB, false),
        write(16 * KIB, 512, false),
        Op::Settle,
        Op::Drain,
        Op::Settle,
        Op::RemovePv(0),
        write(0, 64 * KIB, true),
        Op::Drain,
    ])
}

/// Volumes have least sizes of their own. A rollback keeps the size, a clone inherits it, and a
/// volume in the trash keeps it.
pub(super) fn own_size() -> Vec<Op> {
    vec![
        volume("a", 256 * KIB, 4 * KIB, 512),
        volume("b", 256 * KIB, 4 * KIB, 512),
        write(0, 32 * KIB, false),
        Op::Drain,
        Op::DirectMin(1, DirectMin::Bytes(4 * KIB)),
        Op::DirectMin(2, DirectMin::Never),
        write(64 * KIB, 16 * KIB, false),
        write_to(2, 0, 64 * KIB),
        write(64 * KIB, 4 * KIB, false),
        Op::Flush(1),
        Op::Drain,
        freeze(1, "s"),
        write(0, 16 * KIB, false),
        write(4 * KIB, 4 * KIB, false),
        Op::Clone(1, "c".into()),
        write_to(3, 0, 16 * KIB),
        Op::RollBack { snap: 1, undo: "u".into(), force: true },
        write(8 * KIB, 16 * KIB, false),
        Op::Settle,
        Op::DirectMin(2, DirectMin::OfPool),
        Op::DirectMin(1, DirectMin::Bytes(64 * KIB)),
        write(16 * KIB, 32 * KIB, false),
        write_to(2, 16 * KIB, 64 * KIB),
        Op::LabelVolume(1, "k".into(), Some("v".into())),
        Op::Drain,
    ]
}

/// Only single slots are free: a snapshot had every second chunk, and is deleted. They are lent to
/// writes of one chunk, which replace others.
pub(super) fn short_holes() -> Vec<Op> {
    let every_second = |first: u64, count: u64| {
        let parts = (0..count).map(|n| ((first + 2 * n) * 4 * KIB, 4 * KIB)).collect();
        Op::Write { vol: 1, parts, fua: false }
    };
    let mut ops = vec![volume("a", 2560 * KIB, 4 * KIB, 512)];
    ops.extend((0..10).flat_map(|n| [write(n * 256 * KIB, 256 * KIB, false), Op::Drain]));
    ops.push(freeze(1, "s"));
    ops.extend((0..5).flat_map(|n| [every_second(128 * n, 62), Op::Drain]));
    ops.extend([Op::DeleteSnapshots(vec![1]), Op::Settle, Op::DirectMin(1, DirectMin::Bytes(4 * KIB))]);
    // The first of these writes use up the long runs.
    ops.extend((0..8).flat_map(|n| [every_second(20 * n + 1, 8), Op::Maintain(2)]));
    ops.extend([Op::Flush(1), every_second(1, 8), Op::Drain, freeze(1, "t"), every_second(2, 8), Op::Settle]);
    ops
}
