//! SANITIZE (SBC-3 5.19): the operation destroys the current content of a logical unit.
//!
//! The operation runs on its own thread. It continues when its command is aborted or the session
//! ends. A stop of the server, for example, interrupts the operation, and the operation has then
//! failed. The logical unit reports the failure, also after a restart. It reports it until another
//! operation succeeds, or until the initiator uses EXIT FAILURE MODE.
//!
//! Snapshots and history of a volume are not part of the logical unit. Only the operator can delete
//! them.

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

/// The method that destroys the content.
enum Way {
    /// The operation unmaps all blocks.
    Erase,
    /// The operation overwrites all blocks. The values are the pattern, the number of passes, and
    /// whether every other pass inverts the pattern.
    Overwrite(Vec<u8>, u8, bool),
}

/// Carries out BLOCK ERASE.
pub(crate) fn block_erase(task: &Task, _: &Bytes) -> Reply {
    no_parameters(task)?;
    begin(task, Way::Erase)
}

/// Carries out EXIT FAILURE MODE.
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

/// Carries out OVERWRITE with a pattern of up to one block (SBC-3 5.19.2.2).
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

/// Begins the operation. Without IMMED, it waits for the end of the operation.
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
        // The writes in progress end first. After this line no write is accepted.
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
    // An operation whose end cannot be stored counts as failed.
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

/// Writes the pattern to every block once. Each block begins with the first byte of the pattern.
/// The rate limit `sanitize_rate` leaves disk bandwidth to other logical units.
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
