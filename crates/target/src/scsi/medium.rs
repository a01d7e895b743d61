//! Commands on the medium that need only one or two calls of the device.

use super::cdb::Blocks;
use super::lu::gate;
use super::opcodes::Task;
use super::outcome::{Ending, Reply};
use super::sense::{self, Asc, During, Sense, SenseKey};
use bytes::Bytes;
use hindcast_engine::device::WriteOp;

/// Length of one call of the device for a long range, in bytes.
pub(crate) const STEP: u64 = 1 << 20;

/// Largest length that PRE-FETCH reads, in bytes.
const MAX_PRE_FETCH: u64 = 64 << 20;

/// Carries out TEST UNIT READY, which consists only of the checks before this function. A plain
/// WRITE uses the function too, because the session carries it out.
pub(crate) fn nothing(_: &Task, _: &Bytes) -> Reply {
    Ok(Vec::new())
}

/// Returns the blocks of the CDB as byte offset and length. It repeats the check of the range,
/// because the device may have shrunk.
pub(crate) fn range(task: &Task) -> Result<(u64, u64), Sense> {
    let info = task.lu().info();
    Blocks::of(&task.cdb).on(info.size, info.block_size)
}

/// Returns the end of a command whose read failed, for its error.
pub(crate) fn reading(task: &Task) -> impl Fn(hindcast_engine::Error) -> Ending + use<> {
    let block_size = task.lu().block_size();
    move |error| sense::of_read(&error, block_size).into()
}

/// Returns the end of a command that compares and then writes, for its error. The error of the read
/// names the first byte that can't be read.
pub(crate) fn comparing(task: &Task) -> impl Fn(hindcast_engine::Error) -> Ending + use<> {
    let reading = reading(task);
    move |error| if error.byte().is_some() { reading(error) } else { writing(error) }
}

/// Returns the end of a command whose write failed.
pub(crate) fn writing(error: hindcast_engine::Error) -> Ending {
    sense::of_error(&error, During::Write).into()
}

/// Writes `data` at byte `offset`, unless the task was aborted.
pub(crate) fn write_one(task: &Task, offset: u64, data: Bytes, fua: bool) -> Result<(), Ending> {
    let mut ops = [WriteOp::new(offset, data)];
    task.lu().write_unless(&mut ops, fua, |_| task.is_late());
    let [op] = ops;
    op.result.map_err(writing)
}

/// Returns whether the writes of a task must be durable at its end. FUA in byte 1 requires this,
/// and so does a write cache that is off.
pub(crate) fn is_durable(task: &Task) -> bool {
    task.cdb.bit(1, 3) || task.lu().gates() & gate::WRITE_THROUGH != 0
}

/// Returns the whole blocks of the received data, up to `len` bytes. The transport reports the
/// missing rest.
pub(crate) fn whole_blocks(task: &Task, data: &Bytes, len: u64) -> Bytes {
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(data.len());
    let block = usize::try_from(task.lu().block_size()).unwrap_or(usize::MAX);
    data.slice(..len - len % block)
}

/// Carries out READ with FUA (SBC-3 5.7): the data must be on stable storage before it is returned.
/// The session carries out other READs.
pub(crate) fn read(task: &Task, _: &Bytes) -> Reply {
    let (offset, len) = range(task)?;
    let mut data = vec![0; usize::try_from(len).unwrap_or(0)];
    if !data.is_empty() {
        task.lu().device().flush().map_err(writing)?;
        task.lu().read(offset, &mut data).map_err(reading(task))?;
    }
    Ok(data)
}

/// Carries out WRITE ATOMIC(16) (SBC-4 5.43): the medium gets all of the data or none, also after a
/// power loss. The device promises this for one write of up to `atomic_bytes`.
pub(crate) fn write_atomic(task: &Task, data: &Bytes) -> Reply {
    let info = task.lu().info();
    let blocks = Blocks { lba: task.cdb.u64(2), count: u64::from(task.cdb.u16(12)) };
    let (offset, len) = blocks.on(info.size, info.block_size)?;
    if task.cdb.u16(10) != 0 {
        return Err(Sense::cdb_field(10).into()); // ATOMIC BOUNDARY: none is supported
    }
    if len > task.lu().atomic_bytes() {
        return Err(Sense::cdb_field(12).into());
    }
    if (data.len() as u64) < len {
        return Err(Sense::cdb_field(12).into()); // half of it is not all of it
    }
    if len > 0 {
        write_one(task, offset, whole_blocks(task, data, len), is_durable(task))?;
    }
    Ok(Vec::new())
}

/// Carries out SYNCHRONIZE CACHE (SBC-3 5.22). It flushes the whole device. With IMMED too, the
/// command ends after the flush.
pub(crate) fn synchronize_cache(task: &Task, _: &Bytes) -> Reply {
    task.lu().device().flush().map_err(writing)?;
    Ok(Vec::new())
}

/// Carries out PRE-FETCH (SBC-3 5.8), which is a hint. CONDITION MET would promise that the whole
/// range fits the cache. The target cannot promise this.
pub(crate) fn pre_fetch(task: &Task, _: &Bytes) -> Reply {
    let (offset, len) = range(task)?;
    let len = if len == 0 { task.lu().info().size.saturating_sub(offset) } else { len };
    if len > 0 {
        task.lu().device().cache(offset, len.min(MAX_PRE_FETCH)).map_err(reading(task))?;
    }
    Ok(Vec::new())
}

/// Carries out READ CAPACITY(10) (SBC-3 5.15).
pub(crate) fn read_capacity10(task: &Task, _: &Bytes) -> Reply {
    let cdb = &task.cdb;
    if cdb.u32(2) != 0 && !cdb.bit(8, 0) {
        return Err(Sense::cdb_field(2).into()); // an LBA without PMI
    }
    let info = task.lu().info();
    let last = (info.size / u64::from(info.block_size)).saturating_sub(1);
    let mut data = u32::try_from(last).unwrap_or(u32::MAX).to_be_bytes().to_vec();
    data.extend(info.block_size.to_be_bytes());
    Ok(data)
}

/// Carries out READ CAPACITY(16) (SBC-3 5.16).
pub(crate) fn read_capacity16(task: &Task, _: &Bytes) -> Reply {
    let cdb = &task.cdb;
    if cdb.u64(2) != 0 && !cdb.bit(14, 0) {
        return Err(Sense::cdb_field(2).into());
    }
    let info = task.lu().info();
    let last = (info.size / u64::from(info.block_size)).saturating_sub(1);
    let mut data = vec![0; 32];
    data[..8].copy_from_slice(&last.to_be_bytes());
    data[8..12].copy_from_slice(&info.block_size.to_be_bytes());
    data[13] = u8::try_from(task.lu().physical_exponent()).unwrap_or(0);
    data[14] = 0xc0; // LBPME, LBPRZ; the lowest aligned LBA is 0
    Ok(data)
}

/// Carries out START STOP UNIT (SBC-3 5.25). While the unit is stopped, it refuses commands that
/// need its medium.
pub(crate) fn start_stop(task: &Task, _: &Bytes) -> Reply {
    let cdb = &task.cdb;
    if cdb.u8(4) >> 4 != 0 {
        // The unit has no power conditions. Therefore a valid POWER CONDITION has no effect.
        return if matches!(cdb.u8(4) >> 4, 1..=3 | 7) {
            Ok(Vec::new())
        } else {
            Err(Sense::cdb_bit(4, 7).into())
        };
    }
    if cdb.bit(4, 1) {
        return Err(Sense::cdb_bit(4, 1).into()); // LOEJ: the medium is not removable
    }
    let start = cdb.bit(4, 0);
    if !start && !cdb.bit(4, 2) {
        task.lu().device().flush().map_err(writing)?;
    }
    task.lu().set_gate(gate::STOPPED, !start);
    Ok(Vec::new())
}

/// Carries out PREVENT ALLOW MEDIUM REMOVAL (SPC-4 6.18). It has no effect, because the medium is
/// not removable.
pub(crate) fn prevent_allow(task: &Task, _: &Bytes) -> Reply {
    if task.cdb.u8(4) & 0x02 != 0 {
        return Err(Sense::cdb_bit(4, 1).into()); // obsolete: for medium changers
    }
    Ok(Vec::new())
}

/// Carries out READ DEFECT DATA (SBC-3 5.17, 5.18). It returns an empty defect list in the
/// requested format.
pub(crate) fn read_defect_data(task: &Task, _: &Bytes) -> Reply {
    let (byte, header) = if task.op.len() == 10 { (2, 4) } else { (1, 8) };
    let mut data = vec![0; header];
    data[1] = task.cdb.u8(byte) & 0x1f;
    Ok(data)
}

/// Returns MISCOMPARE with the byte offset of the first difference (SBC-3 5.2).
pub(crate) fn miscompare(offset: usize) -> Ending {
    Sense::new(SenseKey::Miscompare, Asc::MISCOMPARE_DURING_VERIFY).with_information(offset as u64).into()
}
