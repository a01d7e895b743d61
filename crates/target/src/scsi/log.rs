//! LOG SENSE and LOG SELECT (SPC-4 6.8, 6.9), with the logical block provisioning page (SBC-3
//! 6.4.5).

use super::lu::LogicalUnit;
use super::opcodes::Task;
use super::outcome::Reply;
use super::sense::{Asc, Sense};
use bytes::Bytes;

/// Returns the supported log pages, by page code and subpage code.
fn supported(lu: &LogicalUnit) -> &'static [(u8, u8)] {
    if lu.options.space.is_some() {
        &[(0x00, 0), (0x00, 0xff), (0x0c, 0)]
    } else {
        &[(0x00, 0), (0x00, 0xff)]
    }
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
