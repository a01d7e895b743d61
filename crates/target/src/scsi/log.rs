//! LOG SENSE and LOG SELECT (SPC-4 6.8, 6.9), with the pages of logical block provisioning (SBC-3
//! 6.4.5) and of background scans (SBC-3 6.4.2).

use super::lu::LogicalUnit;
use super::opcodes::Task;
use super::outcome::Reply;
use super::sense::{Asc, During, Sense, of_error};
use bytes::Bytes;

/// Code of the page of background scans.
const SCANS: u8 = 0x15;
/// Code of the page of logical block provisioning.
const PROVISIONING: u8 = 0x0c;
/// Number of medium scan parameters that the standard allows.
const MAX_FOUND: usize = 0x800;

/// Returns the supported log pages, by page code and subpage code.
fn supported(lu: &LogicalUnit) -> Vec<(u8, u8)> {
    let mut pages = vec![(0x00, 0), (0x00, 0xff)];
    pages.extend(lu.options.space.is_some().then_some((PROVISIONING, 0)));
    pages.extend(lu.options.scan.is_some().then_some((SCANS, 0)));
    pages
}

/// Carries out LOG SENSE.
pub(crate) fn sense(task: &Task, _: &Bytes) -> Reply {
    let cdb = &task.cdb;
    let lu = task.lu();
    let (code, subpage) = (cdb.u8(2) & 0x3f, cdb.u8(3));
    if cdb.bit(1, 0) {
        return Err(Sense::cdb_bit(1, 0).into()); // SP: there is nothing to save
    }
    if !supported(lu).contains(&(code, subpage)) {
        let known = supported(lu).iter().any(|&(c, _)| c == code);
        return Err(Sense::cdb_field(if known { 3 } else { 2 }).into());
    }
    let first = cdb.u16(5);
    let mut data = vec![code | if subpage == 0 { 0 } else { 0x40 }, subpage, 0, 0];
    match (code, subpage) {
        (0x00, 0) => data.extend(supported(lu).iter().filter(|(_, s)| *s == 0).map(|(c, _)| *c)),
        (0x00, _) => supported(lu).iter().for_each(|&(c, s)| data.extend([c, s])),
        (SCANS, _) => scans(lu, first, &mut data)?,
        _ => provisioning(lu, first, &mut data)?,
    }
    let len = u16::try_from(data.len() - 4).unwrap_or(u16::MAX);
    data[2..4].copy_from_slice(&len.to_be_bytes());
    Ok(data)
}

/// Appends the parameters of available and used space, from parameter code `first`.
fn provisioning(lu: &LogicalUnit, first: u16, data: &mut Vec<u8>) -> Result<(), Sense> {
    let Some(space) = &lu.options.space else {
        return Ok(());
    };
    let space = space();
    // The scopes differ: all logical units share the available space, but the used space belongs to
    // this one.
    let counts = [(1u16, space.available, 2u8), (2, space.used, 1)];
    if first > 2 {
        return Err(Sense::cdb_field(5));
    }
    for (parameter, bytes, scope) in counts.into_iter().filter(|(p, ..)| *p >= first) {
        data.extend(parameter.to_be_bytes());
        data.extend([0x03, 8]); // a list in binary
        data.extend(lu.threshold_sets(bytes).to_be_bytes());
        data.extend([scope, 0, 0, 0]);
    }
    Ok(())
}

/// Appends the status of the scan, and a parameter for each damaged logical block, from parameter
/// code `first`. The server keeps no time of each find, so all have the time of now.
fn scans(lu: &LogicalUnit, first: u16, data: &mut Vec<u8>) -> Result<(), Sense> {
    let Some(scan) = &lu.options.scan else {
        return Ok(());
    };
    let scan = scan();
    let minutes = scan.minutes.to_be_bytes();
    let short = |n: u64| u16::try_from(n).unwrap_or(u16::MAX).to_be_bytes();
    let blocks = damaged_blocks(lu).map_err(|error| of_error(&error, During::Read))?;
    if usize::from(first) > blocks.len() {
        return Err(Sense::cdb_field(5));
    }
    if first == 0 {
        let status = match (scan.running, scan.paused) {
            (true, false) => 0x01,
            (true, true) => 0x06, // halted for a vendor-specific reason
            _ => 0x08,            // waits until its interval expires
        };
        let share = u128::from(scan.done) * 0xffff / u128::from(scan.total.max(1));
        let progress = if scan.running { share.min(0xffff) as u64 } else { 0 };
        data.extend([0, 0, 0x03, 12]); // a list in binary
        data.extend(minutes);
        data.extend([0, status]);
        data.extend(short(scan.passes));
        data.extend(short(progress));
        data.extend(short(scan.passes));
    }
    for (number, lba) in (1u16..).zip(blocks).filter(|(number, _)| *number >= first) {
        data.extend(number.to_be_bytes());
        data.extend([0x03, 20]);
        data.extend(minutes);
        // The block waits for a write, which heals it (reassign status 1). Then the sense data of a
        // read of the block.
        data.extend([0x13, 0x11, 0x00, 0, 0, 0, 0, 0]);
        data.extend(lba.to_be_bytes());
    }
    Ok(())
}

/// Returns the addresses of the first damaged logical blocks.
fn damaged_blocks(lu: &LogicalUnit) -> hindcast_engine::Result<Vec<u64>> {
    let device = lu.device();
    let (size, block) = (device.info().size, lu.block_size());
    let (mut at, mut found) = (0, Vec::new());
    while at < size && found.len() < MAX_FOUND {
        let runs = device.damaged(at, size - at, MAX_FOUND)?;
        if runs.is_empty() {
            break;
        }
        for (length, damaged) in runs {
            if damaged {
                found.extend(at / block..(at + length).div_ceil(block));
            }
            at += length;
        }
    }
    found.truncate(MAX_FOUND);
    Ok(found)
}

/// Carries out LOG SELECT. No parameter can be set. PCR resets counters, but the logical unit has
/// no counters.
pub(crate) fn select(task: &Task, _: &Bytes) -> Reply {
    if task.cdb.bit(1, 0) {
        return Err(Sense::cdb_bit(1, 0).into());
    }
    if task.data_out_len() != 0 {
        return Err(Sense::illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST).into());
    }
    Ok(Vec::new())
}
