//! Commands on the medium that need only one or two calls of the device.

use super::cdb::Blocks;
use super::lu::gate;
use super::opcodes::Task;
use super::outcome::{Ending, Reply};
use super::sense::{self, Asc, During, Sense, SenseKey};
use bytes::Bytes;
use hindcast_engine::device::WriteOp;

/// What one call of the device moves when a long range is worked through.
pub(crate) const STEP: u64 = 1 << 20;

/// What PRE-FETCH brings in at most.
const MAX_PRE_FETCH: u64 = 64 << 20;

/// TEST UNIT READY: the checks before it are all there is. So it is with a WRITE, which is then the
/// session's.
pub(crate) fn nothing(_: &Task, _: &Bytes) -> Reply {
    Ok(Vec::new())
}

/// Blocks of the CDB as byte offset and length; checked again, because the device may have shrunk.
pub(crate) fn range(task: &Task) -> Result<(u64, u64), Sense> {
    let info = task.lu().info();
    Blocks::of(&task.cdb).on(info.size, info.block_size)
}

/// A failure while reading.
pub(crate) fn reading(error: hindcast_engine::Error) -> Ending {
    sense::of_error(&error, During::Read).into()
}

/// A failure while writing.
pub(crate) fn writing(error: hindcast_engine::Error) -> Ending {
    sense::of_error(&error, During::Write).into()
}

/// Writes one piece of data.
pub(crate) fn write_one(task: &Task, offset: u64, data: Bytes, fua: bool) -> Result<(), Ending> {
    let mut ops = [WriteOp::new(offset, data)];
    task.lu().write_unless(&mut ops, fua, |_| task.is_late());
    let [op] = ops;
    op.result.map_err(writing)
}

/// Whether what a task writes has to be durable at its end: FUA in byte 1, or the write cache is
/// off.
pub(crate) fn is_durable(task: &Task) -> bool {
    task.cdb.bit(1, 3) || task.lu().gates() & gate::WRITE_THROUGH != 0
}

/// The data that came, without the part of a block at its end, at most `len` bytes: the transport
/// reports what is missing.
pub(crate) fn whole_blocks(task: &Task, data: &Bytes, len: u64) -> Bytes {
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(data.len());
    let block = usize::try_from(task.lu().block_size()).unwrap_or(usize::MAX);
    data.slice(..len - len % block)
}

/// READ with FUA (SBC-3 5.7): what is read has to be on stable storage. Other READs are the
/// session's.
pub(crate) fn read(task: &Task, _: &Bytes) -> Reply {
    let (offset, len) = range(task)?;
    let mut data = vec![0; usize::try_from(len).unwrap_or(0)];
    if !data.is_empty() {
        task.lu().device().flush().map_err(writing)?;
        task.lu().read(offset, &mut data).map_err(reading)?;
    }
    Ok(data)
}

/// WRITE ATOMIC(16) (SBC-4 5.43): all of it or nothing, whatever happens. The device promises that
/// for one write that is not too long.
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

/// SYNCHRONIZE CACHE (SBC-3 5.22). A flush is for the whole device. IMMED changes nothing: the
/// answer comes when it is done.
pub(crate) fn synchronize_cache(task: &Task, _: &Bytes) -> Reply {
    task.lu().device().flush().map_err(writing)?;
    Ok(Vec::new())
}

/// PRE-FETCH (SBC-3 5.8): a hint. CONDITION MET would promise that all of it fits the cache, which
/// the target does not know.
pub(crate) fn pre_fetch(task: &Task, _: &Bytes) -> Reply {
    let (offset, len) = range(task)?;
    let len = if len == 0 { task.lu().info().size.saturating_sub(offset) } else { len };
    if len > 0 {
        task.lu().device().cache(offset, len.min(MAX_PRE_FETCH)).map_err(reading)?;
    }
    Ok(Vec::new())
}

/// READ CAPACITY(10) (SBC-3 5.15).
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

/// READ CAPACITY(16) (SBC-3 5.16).
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

/// START STOP UNIT (SBC-3 5.25). A stopped unit answers nothing about its medium until it is
/// started.
pub(crate) fn start_stop(task: &Task, _: &Bytes) -> Reply {
    let cdb = &task.cdb;
    if cdb.u8(4) >> 4 != 0 {
        // POWER CONDITION: there is nothing to save.
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

/// PREVENT ALLOW MEDIUM REMOVAL (SPC-4 6.18): the medium is not removable, so nothing has to be
/// prevented.
pub(crate) fn prevent_allow(task: &Task, _: &Bytes) -> Reply {
    if task.cdb.u8(4) & 0x02 != 0 {
        return Err(Sense::cdb_bit(4, 1).into()); // obsolete: for medium changers
    }
    Ok(Vec::new())
}

/// READ DEFECT DATA (SBC-3 5.17, 5.18): there is no defect list; an empty one in the asked-for
/// format says so.
pub(crate) fn read_defect_data(task: &Task, _: &Bytes) -> Reply {
    let (byte, header) = if task.op.len() == 10 { (2, 4) } else { (1, 8) };
    let mut data = vec![0; header];
    data[1] = task.cdb.u8(byte) & 0x1f;
    Ok(data)
}

/// MISCOMPARE, with the offset of the first byte that differs (SBC-3 5.2).
pub(crate) fn miscompare(offset: usize) -> Ending {
    Sense::new(SenseKey::Miscompare, Asc::MISCOMPARE_DURING_VERIFY).with_information(offset as u64).into()
}
