//! Scripts of pools on a layout, of whose members one fails. After each cut the member that fails
//! is away in half of the runs.

use super::{KIB, discard, freeze, look, volume, write};
use crate::workload::Op;

/// Fails the writes of the weak member after some changes.
const WRITES_FAIL: Op = Op::FailPv(2 << 16);
/// Fails the syncs of the weak member.
const SYNCS_FAIL: Op = Op::FailPv(1);
/// Adds a disk to the layout.
const GROW: Op = Op::AddPv { size: 0, device: false };
/// Rebuilds the weak member.
const MEND: Op = Op::DrainPv(0, true);

fn begin(more: Vec<Op>) -> Vec<Op> {
    let mut ops = vec![volume("a", 256 * KIB, 16 * KIB, 512), write(0, 32 * KIB, false), Op::Drain];
    ops.extend(more);
    ops
}

/// A member fails between writes of every kind, and stays out.
pub(super) fn failures() -> Vec<Op> {
    begin(vec![
        write(64 * KIB, 64 * KIB, false),
        freeze(1, "s"),
        WRITES_FAIL,
        write(0, 32 * KIB, false),
        write(5 * KIB, 4 * KIB, true),
        Op::Drain,
        write(16 * KIB, 64 * KIB, false),
        Op::Flush(1),
        look(1, 128 * KIB),
        Op::Settle,
        write(0, 16 * KIB, true),
        Op::Drain,
    ])
}

/// A member that was out is rebuilt while writes go on, and then fails its syncs.
pub(super) fn rebuild() -> Vec<Op> {
    begin(vec![
        WRITES_FAIL,
        write(64 * KIB, 64 * KIB, false),
        Op::Drain,
        write(0, 16 * KIB, false),
        MEND,
        write(8 * KIB, 64 * KIB, true),
        Op::Drain,
        SYNCS_FAIL,
        write(32 * KIB, 32 * KIB, false),
        Op::Flush(1),
        Op::Drain,
        MEND,
        Op::Settle,
    ])
}

/// The layout gets a disk. Writes go on while content moves to it, and a member fails meanwhile.
pub(super) fn growth() -> Vec<Op> {
    begin(vec![
        write(64 * KIB, 64 * KIB, false),
        freeze(1, "s"),
        Op::Drain,
        GROW,
        write(0, 16 * KIB, false),
        Op::Drain,
        write(40 * KIB, 16 * KIB, true),
        Op::Settle,
        look(1, 128 * KIB),
        GROW,
        Op::Maintain(3),
        WRITES_FAIL,
        write(16 * KIB, 32 * KIB, false),
        Op::Drain,
        MEND,
        Op::Settle,
    ])
}

/// A member fails, and a spare takes its place while writes go on.
pub(super) fn spare() -> Vec<Op> {
    begin(vec![
        WRITES_FAIL,
        write(64 * KIB, 32 * KIB, false),
        Op::Drain,
        write(0, 16 * KIB, false),
        Op::Settle,
        write(8 * KIB, 32 * KIB, true),
        Op::Drain,
    ])
}

/// A member fails, a spare takes its place while writes go on, and the disk that failed is the next
/// spare.
pub(super) fn spares() -> Vec<Op> {
    begin(vec![
        freeze(1, "s"),
        WRITES_FAIL,
        write(64 * KIB, 64 * KIB, false),
        Op::Drain,
        write(0, 16 * KIB, false),
        Op::Settle,
        write(8 * KIB, 64 * KIB, true),
        Op::Drain,
        MEND,
        WRITES_FAIL,
        write(32 * KIB, 32 * KIB, false),
        Op::Drain,
        Op::Settle,
        look(1, 128 * KIB),
    ])
}

/// Extents become empty, their rows are given back, and some are used again.
pub(super) fn giving_back() -> Vec<Op> {
    begin(vec![
        write(64 * KIB, 192 * KIB, false),
        Op::Drain,
        discard(16 * KIB, 220 * KIB),
        Op::Drain,
        Op::Settle,
        write(0, 16 * KIB, false),
        Op::Drain,
        write(32 * KIB, 100 * KIB, true),
        Op::Drain,
        discard(0, 256 * KIB),
        Op::Settle,
        write(5 * KIB, 40 * KIB, false),
        Op::Drain,
    ])
}
