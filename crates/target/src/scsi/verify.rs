//! Commands that compare data: VERIFY, WRITE AND VERIFY and COMPARE AND WRITE. The module also has
//! ORWRITE.

use super::cdb::{Blocks, Cdb};
use super::medium::{
    STEP, comparing, is_durable, miscompare, range, reading, whole_blocks, write_one, writing,
};
use super::opcodes::Task;
use super::outcome::{Ending, Reply};
use super::sense::Sense;
use bytes::Bytes;
use hindcast_engine::device::{MAX_COMPARED, first_difference};
use hindcast_engine::{Error, ErrorKind};

/// Attempts of an ORWRITE while clients of another protocol write to its range.
const MAX_TRIES: u32 = 64;

/// Returns MAXIMUM COMPARE AND WRITE LENGTH, in blocks. It is the length that the device compares,
/// limited by the field of one byte.
pub(crate) fn max_compare_and_write(block_size: u32) -> u8 {
    u8::try_from(MAX_COMPARED / u64::from(block_size)).unwrap_or(u8::MAX)
}

/// Returns BYTCHK.
fn byte_check(cdb: &Cdb) -> u8 {
    (cdb.u8(1) >> 1) & 3
}

/// Returns the number of bytes that VERIFY takes from the initiator: none, the whole range, or one
/// block.
pub(crate) fn compared(cdb: &Cdb, block_size: u64) -> u64 {
    let count = Blocks::of(cdb).count;
    match byte_check(cdb) {
        1 => count.saturating_mul(block_size),
        3 if count > 0 => block_size,
        _ => 0,
    }
}

/// Carries out VERIFY (SBC-3 5.29). BYTCHK 00b checks that the medium can be read. 01b compares the
/// medium with the data. 11b compares every block with one block of data.
pub(crate) fn verify(task: &Task, data: &Bytes) -> Reply {
    let (offset, len) = range(task)?;
    match byte_check(&task.cdb) {
        0 => read_through(task, offset, len)?,
        1 => compare(task, offset, &whole_blocks(task, data, len))?,
        3 => {
            let block = whole_blocks(task, data, task.lu().block_size());
            if block.is_empty() && len > 0 {
                return Err(Sense::cdb_bit(1, 2).into());
            }
            each_step(task, offset, len, |at, buf| {
                let unequal = buf.iter().zip(block.iter().cycle()).position(|(a, b)| a != b);
                unequal.map_or(Ok(()), |n| Err(miscompare((at - offset) as usize + n)))
            })?;
        }
        _ => return Err(Sense::cdb_bit(1, 2).into()),
    }
    Ok(Vec::new())
}

/// Reads a range in steps, and calls `each` for every step.
fn each_step(
    task: &Task,
    offset: u64,
    len: u64,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), Ending>,
) -> Result<(), Ending> {
    let mut buf = vec![0; len.min(STEP) as usize];
    let mut done = 0;
    while done < len {
        task.go_on()?;
        let buf = &mut buf[..(len - done).min(STEP) as usize];
        task.lu().read(offset + done, buf).map_err(reading(task))?;
        each(offset + done, buf)?;
        done += buf.len() as u64;
    }
    Ok(())
}

fn read_through(task: &Task, offset: u64, len: u64) -> Result<(), Ending> {
    each_step(task, offset, len, |_, _| Ok(()))
}

/// Compares data with the medium from byte `offset`.
fn compare(task: &Task, offset: u64, data: &[u8]) -> Result<(), Ending> {
    each_step(task, offset, data.len() as u64, |at, buf| {
        let start = (at - offset) as usize;
        let sent = &data[start..start + buf.len()];
        first_difference(buf, sent).map_or(Ok(()), |n| Err(miscompare(start + n as usize)))
    })
}

/// Carries out WRITE AND VERIFY (SBC-3 5.37). It writes the data durably, and reads it back. With
/// BYTCHK 01b it also compares the data.
pub(crate) fn write_and_verify(task: &Task, data: &Bytes) -> Reply {
    let (offset, len) = range(task)?;
    if !matches!(byte_check(&task.cdb), 0 | 1) {
        return Err(Sense::cdb_bit(1, 2).into());
    }
    let data = whole_blocks(task, data, len);
    if data.is_empty() {
        return Ok(Vec::new());
    }
    write_one(task, offset, data.clone(), true)?;
    match byte_check(&task.cdb) {
        0 => read_through(task, offset, data.len() as u64)?,
        _ => compare(task, offset, &data)?,
    }
    Ok(Vec::new())
}

/// Carries out COMPARE AND WRITE (SBC-3 5.2). It compares the first half of the data with the
/// medium. If they are equal, it writes the second half. No other write happens in between.
pub(crate) fn compare_and_write(task: &Task, data: &Bytes) -> Reply {
    let info = task.lu().info();
    let blocks = Blocks { lba: task.cdb.u64(2), count: u64::from(task.cdb.u8(13)) };
    let (offset, len) = blocks.on(info.size, info.block_size)?;
    let len = len as usize;
    if data.len() != 2 * len || len as u64 > MAX_COMPARED {
        return Err(Sense::cdb_field(13).into());
    }
    if len == 0 {
        return Ok(Vec::new());
    }
    let (expected, new) = (data.slice(..len), data.slice(len..));
    let lu = task.lu();
    let compared = lu.alone(|| {
        task.go_on()?;
        lu.not_sanitizing().map_err(writing)?;
        lu.device().compare_and_write(offset, &expected, new, false).map_err(comparing(task))
    })?;
    compared.map_err(|at| miscompare(at as usize))?;
    make_durable(task)
}

/// Carries out ORWRITE(16) (SBC-3 5.6). It sets the bits on the medium that are set in the data.
pub(crate) fn or_write(task: &Task, data: &Bytes) -> Reply {
    let (offset, len) = range(task)?;
    let data = whole_blocks(task, data, len);
    if data.is_empty() {
        return Ok(Vec::new());
    }
    let lu = task.lu();
    lu.alone(|| {
        task.go_on()?;
        lu.not_sanitizing().map_err(writing)?;
        let piece = MAX_COMPARED as usize;
        (0..data.len()).step_by(piece).try_for_each(|at| {
            let piece = &data[at..data.len().min(at + piece)];
            set_bits(task, offset + at as u64, piece)
        })
    })?;
    make_durable(task)
}

/// Sets bits on the medium. It repeats the attempt, up to `MAX_TRIES` times, if a client of another
/// protocol writes to the range meanwhile.
fn set_bits(task: &Task, offset: u64, bits: &[u8]) -> Result<(), Ending> {
    let lu = task.lu();
    let mut current = vec![0; bits.len()];
    for _ in 0..MAX_TRIES {
        lu.read(offset, &mut current).map_err(reading(task))?;
        let new: Vec<u8> = current.iter().zip(bits).map(|(a, b)| a | b).collect();
        if lu
            .device()
            .compare_and_write(offset, &current, Bytes::from(new), false)
            .map_err(comparing(task))?
            .is_ok()
        {
            return Ok(());
        }
    }
    Err(writing(Error::new(ErrorKind::Busy, "set bits: other clients write to the range; try again")))
}

/// Flushes the device if the command must be durable. The caller does this after other writes may
/// continue, so that they do not wait for a disk.
fn make_durable(task: &Task) -> Reply {
    if is_durable(task) {
        task.lu().device().flush().map_err(writing)?;
    }
    Ok(Vec::new())
}
