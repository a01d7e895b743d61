//! Commands that compare: VERIFY, WRITE AND VERIFY, COMPARE AND WRITE; and ORWRITE.

use super::cdb::{Blocks, Cdb};
use super::medium::{STEP, is_durable, miscompare, range, reading, whole_blocks, write_one, writing};
use super::opcodes::Task;
use super::outcome::{Ending, Reply};
use super::sense::Sense;
use bytes::Bytes;
use hindcast_engine::device::{MAX_COMPARED, first_difference};
use hindcast_engine::{Error, ErrorKind};

/// Tries of an ORWRITE that another protocol disturbs.
const MAX_TRIES: u32 = 64;

/// MAXIMUM COMPARE AND WRITE LENGTH, in blocks: what the device compares, and what the one byte can
/// say.
pub(crate) fn max_compare_and_write(block_size: u32) -> u8 {
    u8::try_from(MAX_COMPARED / u64::from(block_size)).unwrap_or(u8::MAX)
}

/// BYTCHK.
fn byte_check(cdb: &Cdb) -> u8 {
    (cdb.u8(1) >> 1) & 3
}

/// What VERIFY takes from the initiator: nothing, everything, or one block for all.
pub(crate) fn compared(cdb: &Cdb, block_size: u64) -> u64 {
    let count = Blocks::of(cdb).count;
    match byte_check(cdb) {
        1 => count.saturating_mul(block_size),
        3 if count > 0 => block_size,
        _ => 0,
    }
}

/// VERIFY (SBC-3 5.29): with BYTCHK 00b that the medium can be read, with 01b that it holds what
/// was sent, with 11b that every block holds the one block that was sent.
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

/// Reads a range piece by piece.
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
        task.lu().read(offset + done, buf).map_err(reading)?;
        each(offset + done, buf)?;
        done += buf.len() as u64;
    }
    Ok(())
}

fn read_through(task: &Task, offset: u64, len: u64) -> Result<(), Ending> {
    each_step(task, offset, len, |_, _| Ok(()))
}

/// Compares data with the medium.
fn compare(task: &Task, offset: u64, data: &[u8]) -> Result<(), Ending> {
    each_step(task, offset, data.len() as u64, |at, buf| {
        let start = (at - offset) as usize;
        let sent = &data[start..start + buf.len()];
        first_difference(buf, sent).map_or(Ok(()), |n| Err(miscompare(start + n as usize)))
    })
}

/// WRITE AND VERIFY (SBC-3 5.37): writes, makes it durable, and reads it back; with BYTCHK 01b it
/// compares too.
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

/// COMPARE AND WRITE (SBC-3 5.2): the first half of the data is compared, and if it is equal the
/// second half is written, with nothing in between.
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
        lu.device().compare_and_write(offset, &expected, new, false).map_err(writing)
    })?;
    compared.map_err(|at| miscompare(at as usize))?;
    make_durable(task)
}

/// ORWRITE(16) (SBC-3 5.6): sets the bits that are set in the data.
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

/// Sets bits, in as many tries as it takes until no other protocol writes there meanwhile.
fn set_bits(task: &Task, offset: u64, bits: &[u8]) -> Result<(), Ending> {
    let lu = task.lu();
    let mut current = vec![0; bits.len()];
    for _ in 0..MAX_TRIES {
        lu.read(offset, &mut current).map_err(reading)?;
        let new: Vec<u8> = current.iter().zip(bits).map(|(a, b)| a | b).collect();
        if lu.device().compare_and_write(offset, &current, Bytes::from(new), false).map_err(writing)?.is_ok()
        {
            return Ok(());
        }
    }
    Err(writing(Error::new(ErrorKind::Busy, "set bits: other clients write to the range; try again")))
}

/// What has to be durable is made so after others may write again: they wait for no disk.
fn make_durable(task: &Task) -> Reply {
    if is_durable(task) {
        task.lu().device().flush().map_err(writing)?;
    }
    Ok(Vec::new())
}
