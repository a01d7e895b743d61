//! SANITIZE (SBC-3 5.19): the operation destroys the current content of a logical unit.
//!
//! It runs on a thread of its own, and goes on when the command that began it is aborted or its
//! session ends. An operation that was interrupted, for example by a stop of the server, has
//! failed. The logical unit reports that, also after a restart, until another operation succeeds or
//! the initiator gives up.
//!
//! Snapshots and history of a volume do not belong to the logical unit. Only the administrator can
//! delete them.

use super::lu::{LogicalUnit, gate};
use super::medium::{STEP, writing};
use super::opcodes::Task;
use super::outcome::{Ending, Reply};
use super::sense::{Asc, Sense, SenseKey};
use super::state::Phase;
use bytes::Bytes;
use hindcast_engine::device::WriteOp;
use hindcast_engine::{Error, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How to destroy.
enum Way {
    /// Everything is unmapped.
    Erase,
    /// Everything is written over: pattern, passes, and whether every other pass is inverted.
    Overwrite(Vec<u8>, u8, bool),
}

/// BLOCK ERASE.
pub(crate) fn block_erase(task: &Task, _: &Bytes) -> Reply {
    no_parameters(task)?;
    begin(task, Way::Erase)
}

/// EXIT FAILURE MODE.
pub(crate) fn exit_failure_mode(task: &Task, _: &Bytes) -> Reply {
    no_parameters(task)?;
    let lu = task.lu();
    let mut phase = lu.sanitize.phase.lock();
    match *phase {
        Phase::Failed { unrestricted: false } => Err(Sense::cdb_bit(1, 4).into()),
        Phase::Failed { unrestricted: true } => {
            lu.keep(|saved| saved.sanitizing = false).map_err(writing)?;
            *phase = Phase::Idle;
            lu.set_gate(gate::SANITIZE, false);
            Ok(Vec::new())
        }
        Phase::Idle | Phase::Running => Ok(Vec::new()),
    }
}

fn no_parameters(task: &Task) -> Result<(), Sense> {
    if task.data_out_len() == 0 { Ok(()) } else { Err(Sense::cdb_field(7)) }
}

/// OVERWRITE: with a pattern of up to a block (SBC-3 5.19.2.2).
pub(crate) fn overwrite(task: &Task, list: &Bytes) -> Reply {
    let block = task.lu().block_size();
    let len = task.data_out_len();
    if len < 5 || len > block + 4 || (list.len() as u64) < len {
        return Err(Sense::cdb_field(7).into());
    }
    let pattern_len = usize::from(u16::from_be_bytes([list[2], list[3]]));
    let count = list[0] & 0x1f;
    if count == 0 {
        return Err(Sense::parameter_field(0).into());
    }
    if pattern_len == 0 || pattern_len as u64 > block {
        return Err(Sense::parameter_field(2).into());
    }
    let pattern = list.get(4..4 + pattern_len).ok_or_else(|| Sense::parameter_field(2))?;
    begin(task, Way::Overwrite(pattern.to_vec(), count, list[0] & 0x80 != 0))
}

/// Begins, and waits for the end unless IMMED says not to.
fn begin(task: &Task, way: Way) -> Reply {
    let lu = task.lu();
    let unrestricted = task.cdb.bit(1, 5);
    {
        let mut phase = lu.sanitize.phase.lock();
        if let Phase::Running = *phase {
            return Err(Sense::new(SenseKey::NotReady, Asc::SANITIZE_IN_PROGRESS).into());
        }
        lu.keep(|saved| saved.sanitizing = true).map_err(writing)?;
        *phase = Phase::Running;
        lu.sanitize.progress.store(0, Ordering::Relaxed);
        // Whatever writes already ends first; from here on nothing is let in.
        lu.alone(|| lu.set_gate(gate::SANITIZE, true));
    }
    let worker = lu.clone();
    let spawned = std::thread::Builder::new().name("sanitize".into()).spawn(move || {
        let result = destroy(&worker, &way);
        finish(&worker, result.is_ok(), unrestricted);
    });
    if spawned.is_err() {
        finish(lu, false, true);
        return Err(Sense::new(SenseKey::HardwareError, Asc::INTERNAL_TARGET_FAILURE).into());
    }
    if task.cdb.bit(1, 7) {
        return Ok(Vec::new());
    }
    let mut phase = lu.sanitize.phase.lock();
    while *phase == Phase::Running {
        task.go_on()?;
        lu.sanitize.ended.wait_for(&mut phase, Duration::from_millis(50));
    }
    drop(phase);
    match lu.sanitize.sense() {
        Some(sense) => Err(Ending::Check(sense)),
        None => Ok(Vec::new()),
    }
}

fn finish(lu: &LogicalUnit, ok: bool, unrestricted: bool) {
    let mut phase = lu.sanitize.phase.lock();
    // What cannot be recorded as done is not done.
    let ok = ok && lu.keep(|saved| saved.sanitizing = false).is_ok();
    *phase = if ok { Phase::Idle } else { Phase::Failed { unrestricted } };
    lu.set_gate(gate::SANITIZE, !ok);
    lu.sanitize.ended.notify_all();
}

fn destroy(lu: &Arc<LogicalUnit>, way: &Way) -> hindcast_engine::Result<()> {
    let size = lu.info().size;
    match way {
        Way::Erase => lu.device().discard(0, size, true),
        Way::Overwrite(pattern, count, invert) => {
            for pass in 0..*count {
                let inverted = *invert && pass % 2 == 1;
                let pattern: Vec<u8> = pattern.iter().map(|&b| if inverted { !b } else { b }).collect();
                overwrite_once(lu, &pattern, size, |done| {
                    let total = u128::from(size.max(1)) * u128::from(*count);
                    let done = u128::from(size) * u128::from(pass) + u128::from(done);
                    let progress = u16::try_from(done * 65536 / total).unwrap_or(u16::MAX);
                    lu.sanitize.progress.store(progress, Ordering::Relaxed);
                })?;
            }
            lu.device().flush()
        }
    }
}

/// Fills every block with the pattern, which begins anew in each. Not faster than the logical
/// unit's share, so that other logical units keep their speed.
fn overwrite_once(
    lu: &LogicalUnit,
    pattern: &[u8],
    size: u64,
    progress: impl Fn(u64),
) -> hindcast_engine::Result<()> {
    let block_size = lu.block_size() as usize;
    let block: Vec<u8> = pattern.iter().copied().cycle().take(block_size).collect();
    let buffer = Bytes::from(block.repeat((STEP as usize / block_size).max(1)));
    let begun = Instant::now();
    let mut done = 0;
    while done < size {
        if lu.sanitize.retired.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Busy, "sanitize the logical unit: it was removed"));
        }
        let n = (size - done).min(buffer.len() as u64);
        let mut ops = [WriteOp::new(done, buffer.slice(..n as usize))];
        lu.device().write(&mut ops, false);
        let [op] = ops;
        op.result?;
        done += n;
        progress(done);
        let due = Duration::from_secs_f64(done as f64 / lu.options.sanitize_rate.max(1) as f64);
        if let Some(early) = due.checked_sub(begun.elapsed()) {
            std::thread::sleep(early);
        }
    }
    Ok(())
}
