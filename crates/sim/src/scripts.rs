//! The scripts that are cut everywhere: small histories, each of which leads through one part of the engine.

use crate::fate::PowerLoss;
use crate::oracle::VolumeModel;
use crate::workload::{Crash, Op};
use hindcast_engine::pool::Placement;

/// A short history with a name.
pub struct Script {
    /// For `sim --enumerate NAME`.
    pub name: &'static str,
    /// 512 or 4096.
    pub atomic_unit: u32,
    /// The crash may also come while the pool is being created.
    pub from_creation: bool,
    /// What happens.
    pub ops: Vec<Op>,
}

/// All scripts. Volumes are numbered in the order of their creation, from 1.
pub fn scripts() -> Vec<Script> {
    let script = |name, atomic_unit, ops| Script { name, atomic_unit, from_creation: false, ops };
    vec![
        Script { from_creation: true, ..script("create", 4096, create()) },
        // Early, because it is the one that notices a missing sync at open: mutation tests stop at the first.
        script("reopen", 4096, reopen()),
        script("overwrite", 4096, overwrite(4096, 16 * KIB)),
        script("overwrite-512", 512, overwrite(512, 1024)),
        script("small-chunks", 4096, overwrite(4096, 512)),
        script("volumes", 4096, volumes()),
        script("holes", 4096, holes()),
        script("physical-volumes", 512, physical_volumes()),
        script("segments", 4096, segments()),
    ]
}

const KIB: u64 = 1 << 10;

fn volume(name: &str, size: u64, chunk_size: u64, block_size: u32) -> Op {
    Op::Create(VolumeModel::new(name.into(), size, chunk_size, block_size, false))
}

fn write(offset: u64, len: u64, fua: bool) -> Op {
    Op::Write { vol: 1, parts: vec![(offset, len)], fua }
}

fn discard(offset: u64, len: u64) -> Op {
    Op::Discard { vol: 1, offset, len, fua: false }
}

fn create() -> Vec<Op> {
    vec![volume("a", 64 * KIB, 4 * KIB, 512), write(0, 4 * KIB, true)]
}

/// Writes to new chunks, then in place.
fn overwrite(atomic_unit: u32, chunk: u64) -> Vec<Op> {
    vec![
        volume("a", 256 * KIB, chunk, 512),
        write(0, 40 * KIB, false),
        write(1024, 512, true),
        Op::Drain,
        // In place now, in whole chunks and in parts, with neighbours that must not suffer.
        write(512, 1536, false),
        write(chunk, chunk, false),
        write(8 * KIB - 512, 1024, false),
        Op::Flush(1),
        Op::Maintain(2),
        write(512, 512, false),
        Op::Settle,
        write(3 * KIB, 9 * KIB, atomic_unit == 512),
        Op::Drain,
    ]
}

/// Volumes come, change, and go, and their names are used again.
fn volumes() -> Vec<Op> {
    vec![
        volume("a", 128 * KIB, 16 * KIB, 4096),
        write(0, 64 * KIB, false),
        volume("b", 64 * KIB, 4 * KIB, 512),
        Op::Write { vol: 2, parts: vec![(0, 512), (4096, 8192), (512, 1024)], fua: false },
        Op::Rename(1, "c".into()),
        Op::Resize { vol: 1, size: 20 * KIB, force: true },
        Op::Resize { vol: 1, size: 96 * KIB, force: false },
        Op::Maintain(1),
        Op::ReadOnly(2, true),
        write(16 * KIB, 8 * KIB, false),
        Op::Drain,
        Op::Delete { vol: 1, force: true },
        Op::Settle,
        volume("a", 64 * KIB, 4 * KIB, 512),
        Op::Write { vol: 3, parts: vec![(0, 48 * KIB)], fua: true },
        Op::Settle,
    ]
}

/// Discards and zeroes, of chunks staged and in place, whole and in parts.
fn holes() -> Vec<Op> {
    vec![
        volume("a", 512 * KIB, 16 * KIB, 512),
        write(0, 300 * KIB, false),
        Op::Drain,
        discard(10 * KIB, 100 * KIB),
        write(40 * KIB, 2 * KIB, false),
        Op::Zeroes { vol: 1, offset: 200 * KIB, len: 50 * KIB, unmap: false, fua: false },
        Op::Flush(1),
        Op::Maintain(1),
        discard(0, 512 * KIB),
        write(100 * KIB, KIB, false),
        Op::Drain,
        Op::Status { vol: 1, offset: 0, len: 512 * KIB, max_runs: 100 },
        // The slots that were freed are used again.
        write(128 * KIB, 256 * KIB, false),
        Op::Settle,
    ]
}

/// Data moves away from a physical volume until it can be removed.
fn physical_volumes() -> Vec<Op> {
    vec![
        volume("a", 512 * KIB, 4 * KIB, 512),
        write(0, 200 * KIB, false),
        Op::Drain,
        Op::AddPv { size: (1 << 20) + 30 * 64 * KIB, device: false },
        Op::Placement(Placement::Anywhere),
        Op::DrainPv(0, true),
        write(100 * KIB, 200 * KIB, false),
        Op::Settle,
        Op::Drain,
        Op::Settle,
        Op::RemovePv(0),
        write(0, 100 * KIB, true),
        Op::Drain,
    ]
}

/// Crashes follow one another.
fn reopen() -> Vec<Op> {
    vec![
        volume("a", 256 * KIB, 4 * KIB, 512),
        write(0, 20 * KIB, false),
        Op::Crash(Crash::Kill),
        // What the kill left in the page cache must have become durable, or must become so now.
        Op::Flush(1),
        write(4 * KIB, 512, false),
        Op::Crash(Crash::Power(PowerLoss::LoseAll)),
        write(16 * KIB, 8 * KIB, false),
        Op::Crash(Crash::Kill),
        Op::Drain,
    ]
}

/// The journal goes through its segments, and through reopens.
fn segments() -> Vec<Op> {
    vec![
        volume("a", 1 << 20, 64 * KIB, 4096),
        write(0, 200 * KIB, false),
        write(100 * KIB, 300 * KIB, false),
        Op::Flush(1),
        Op::Maintain(1),
        write(0, 600 * KIB, false),
        write(300 * KIB, 200 * KIB, true),
        Op::Reopen(None),
        write(0, 400 * KIB, false),
        Op::Reopen(Some(PowerLoss::LoseAll)),
        write(500 * KIB, 300 * KIB, false),
        Op::Drain,
    ]
}
