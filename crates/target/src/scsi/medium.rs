//! Commands about the medium that need no more than one call of the device.

use super::cdb::Blocks;
use super::command::{Ending, Reply, Task};
use super::sense::{self, During, Sense};
use bytes::Bytes;
use hindcast_engine::device::WriteOp;

/// TEST UNIT READY: the checks before it are all there is.
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

/// READ with FUA (SBC-3 5.7): what is read has to be on stable storage. Other READs are the session's.
pub(crate) fn read(task: &Task, _: &Bytes) -> Reply {
    let (offset, len) = range(task)?;
    let mut data = vec![0; usize::try_from(len).unwrap_or(0)];
    if !data.is_empty() {
        task.lu().device().flush().map_err(writing)?;
        task.lu().read(offset, &mut data).map_err(reading)?;
    }
    Ok(data)
}

/// WRITE; normally the session's.
pub(crate) fn write(task: &Task, data: &Bytes) -> Reply {
    let (offset, len) = range(task)?;
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(data.len());
    let mut ops = [WriteOp::new(offset, data.slice(..len))];
    task.lu().write(&mut ops, task.cdb.bit(1, 3));
    let [op] = ops;
    op.result.map_err(writing)?;
    Ok(Vec::new())
}

/// SYNCHRONIZE CACHE (SBC-3 5.22). A flush is for the whole device. IMMED changes nothing: the answer comes when it
/// is done.
pub(crate) fn synchronize_cache(task: &Task, _: &Bytes) -> Reply {
    task.lu().device().flush().map_err(writing)?;
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
    let info = task.lu().info();
    let last = (info.size / u64::from(info.block_size)).saturating_sub(1);
    let mut data = vec![0; 32];
    data[..8].copy_from_slice(&last.to_be_bytes());
    data[8..12].copy_from_slice(&info.block_size.to_be_bytes());
    let per_physical = info.preferred_size.min(4096).max(info.block_size) / info.block_size;
    data[13] = u8::try_from(per_physical.trailing_zeros()).unwrap_or(0);
    data[14] = 0xc0; // LBPME, LBPRZ; the lowest aligned LBA is 0
    Ok(data)
}
