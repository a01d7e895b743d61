//! Logical block provisioning (SBC-3 4.7): UNMAP, WRITE SAME and GET LBA STATUS.

use super::cdb::Blocks;
use super::medium::{STEP, range, reading, write_one, writing};
use super::opcodes::Task;
use super::outcome::{Ending, Reply};
use super::sense::{Asc, Sense};
use bytes::Bytes;

/// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT: the descriptors that fit the parameter list of one UNMAP.
pub(crate) const MAX_UNMAP_DESCRIPTORS: usize = (0xffff - 8) / 16;

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Carries out UNMAP (SBC-3 5.28). It checks all descriptors before it unmaps the first range.
pub(crate) fn unmap(task: &Task, list: &Bytes) -> Reply {
    if task.cdb.bit(1, 0) {
        return Err(Sense::cdb_bit(1, 0).into()); // ANCHOR
    }
    if task.data_out_len() == 0 {
        return Ok(Vec::new());
    }
    let Some(described) = be16(list, 2) else {
        return Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR).into());
    };
    let Some(rest) = list.get(8..) else {
        return Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR).into());
    };
    // An incomplete descriptor is ignored (SBC-3 5.28.2).
    let descriptors = &rest[..rest.len().min(usize::from(described))];
    let info = task.lu().info();
    let mut ranges = Vec::new();
    for descriptor in descriptors.chunks_exact(16) {
        let (lba, rest) = descriptor.split_at(8);
        let blocks = Blocks {
            lba: u64::from_be_bytes(lba.try_into().unwrap_or_default()),
            count: u64::from(u32::from_be_bytes(rest[..4].try_into().unwrap_or_default())),
        };
        let (offset, len) = blocks.on(info.size, info.block_size)?;
        if len > 0 {
            ranges.push((offset, len));
        }
    }
    let last = ranges.len().saturating_sub(1);
    for (n, (offset, len)) in ranges.into_iter().enumerate() {
        task.go_on()?;
        let durable = n == last && task.lu().gates() & super::lu::gate::WRITE_THROUGH != 0;
        task.lu().zero(offset, len, (true, durable), || task.is_late()).map_err(writing)?;
    }
    Ok(Vec::new())
}

/// Carries out WRITE SAME (SBC-3 5.44, 5.45). It refuses a number of blocks of zero, which would
/// mean all blocks up to the end of the medium. Such a command is an easy mistake. The block limits
/// page reports this by WSNZ.
pub(crate) fn write_same(task: &Task, data: &Bytes) -> Reply {
    let cdb = &task.cdb;
    let (anchor, unmap) = (cdb.bit(1, 4), cdb.bit(1, 3));
    let no_data = task.op.len() == 16 && cdb.bit(1, 0);
    if anchor {
        return Err(Sense::cdb_bit(1, 4).into()); // nothing can be anchored
    }
    if cdb.u8(1) & 0x06 != 0 {
        return Err(Sense::cdb_bit(1, 2).into()); // PBDATA, LBDATA: obsolete
    }
    let (offset, len) = range(task)?;
    if len == 0 {
        return Err(Sense::cdb_field(if task.op.len() == 10 { 7 } else { 10 }).into());
    }
    let block = usize::try_from(task.lu().block_size()).unwrap_or(usize::MAX);
    if !no_data && data.len() != block {
        return Err(Sense::illegal(Asc::INVALID_FIELD_IN_CDB).into());
    }
    let durable = task.lu().gates() & super::lu::gate::WRITE_THROUGH != 0;
    if data.iter().all(|&b| b == 0) || no_data {
        task.lu().zero(offset, len, (unmap, durable), || task.is_late()).map_err(writing)?;
        return Ok(Vec::new());
    }
    repeat(task, data, offset, len, durable)?;
    Ok(Vec::new())
}

/// Writes one pattern repeatedly to a range, from one buffer.
pub(crate) fn repeat(
    task: &Task,
    pattern: &[u8],
    offset: u64,
    len: u64,
    durable: bool,
) -> Result<(), Ending> {
    let times = usize::try_from(len.min(STEP)).unwrap_or(0).div_ceil(pattern.len().max(1));
    let buffer = Bytes::from(pattern.repeat(times));
    let step = buffer.len() as u64;
    let mut done = 0;
    while done < len {
        task.go_on()?;
        let n = (len - done).min(step);
        write_one(task, offset + done, buffer.slice(..n as usize), false)?;
        done += n;
    }
    if durable {
        task.lu().device().flush().map_err(writing)?;
    }
    Ok(())
}

/// Carries out GET LBA STATUS (SBC-3 5.3). It reports mapped and unmapped ranges, with as many
/// descriptors as fit the allocation length, up to 4,096.
pub(crate) fn lba_status(task: &Task, _: &Bytes) -> Reply {
    let info = task.lu().info();
    let block = u64::from(info.block_size);
    let lba = task.cdb.u64(2);
    let blocks = info.size / block;
    if lba >= blocks {
        return Err(Sense::illegal(Asc::LBA_OUT_OF_RANGE).with_information(lba).into());
    }
    let room = (task.data_in_len().saturating_sub(8) / 16).clamp(1, 4096) as usize;
    let (offset, len) = (lba * block, info.size - lba * block);
    let runs = task.lu().device().block_status(offset, len, room).map_err(reading(task))?;
    let mut data = vec![0; 8];
    let mut at = lba;
    for run in runs {
        // A run that is longer than the field allows is cut. The initiator can send another request
        // from its end.
        let count = (run.length / block).min(u64::from(u32::MAX));
        data.extend(at.to_be_bytes());
        data.extend((count as u32).to_be_bytes());
        data.extend([u8::from(!run.allocated), 0, 0, 0]);
        at += count;
        if count < run.length / block {
            break;
        }
    }
    let length = u32::try_from(data.len() - 4).unwrap_or(u32::MAX);
    data[..4].copy_from_slice(&length.to_be_bytes());
    Ok(data)
}
