//! REPORT SUPPORTED OPERATION CODES and REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4 6.35,
//! 6.36). They report the table of commands.

use super::lu::LogicalUnit;
use super::opcodes::{LONG, Op, QUICK, Table, Task};
use super::outcome::Reply;
use super::sense::Sense;
use bytes::Bytes;

/// Returns whether a logical unit supports a command.
pub(crate) fn has(lu: &LogicalUnit, op: &Op) -> bool {
    op.code() != 0x9c || lu.atomic_bytes() > 0
}

/// Carries out REPORT SUPPORTED OPERATION CODES.
pub(crate) fn operation_codes(task: &Task, _: &Bytes) -> Reply {
    let cdb = &task.cdb;
    let timeouts = cdb.bit(2, 7);
    let (code, action) = (cdb.u8(3), cdb.u16(4));
    let ops = task.table.all_of(code);
    let has_actions = ops.iter().any(|op| op.service_action.is_some());
    let with_action = ops.iter().find(|op| op.service_action == Some(action));
    let found = match cdb.u8(2) & 0x07 {
        0 => return Ok(all(task.lu(), task.table, timeouts)),
        1 if has_actions => return Err(Sense::cdb_bit(2, 2).into()),
        1 => ops.first(),
        2 if !ops.is_empty() && !has_actions => return Err(Sense::cdb_bit(2, 2).into()),
        2 => with_action,
        3 if has_actions => with_action,
        3 => ops.first().filter(|_| action == 0),
        _ => return Err(Sense::cdb_bit(2, 2).into()),
    };
    Ok(one(found.filter(|op| has(task.lu(), op)), timeouts))
}

/// Returns the all_commands parameter data.
fn all(lu: &LogicalUnit, table: &Table, timeouts: bool) -> Vec<u8> {
    let mut data = vec![0; 4];
    for op in table.0.iter().filter(|op| has(lu, op)) {
        data.extend([op.code(), 0]);
        data.extend(op.service_action.unwrap_or(0).to_be_bytes());
        data.extend([0, u8::from(timeouts) << 1 | u8::from(op.service_action.is_some())]);
        data.extend((op.len() as u16).to_be_bytes());
        if timeouts {
            data.extend(timeouts_of(op));
        }
    }
    let len = u32::try_from(data.len() - 4).unwrap_or(u32::MAX);
    data[..4].copy_from_slice(&len.to_be_bytes());
    data
}

/// Returns the one_command parameter data. SUPPORT is 011b for a command that is supported as in
/// the standard, and 001b for a command that is not supported.
fn one(op: Option<&Op>, timeouts: bool) -> Vec<u8> {
    let Some(op) = op else {
        return vec![0, 1, 0, 0];
    };
    let mut data = vec![0, u8::from(timeouts) << 7 | 3];
    data.extend((op.len() as u16).to_be_bytes());
    data.extend(op.usage);
    if timeouts {
        data.extend(timeouts_of(op));
    }
    data
}

/// Returns the command timeouts descriptor, in seconds.
fn timeouts_of(op: &Op) -> [u8; 12] {
    let (nominal, recommended): (u32, u32) = match (op.has(QUICK), op.has(LONG)) {
        (true, _) => (1, 10),
        (_, true) => (10, 3600),
        _ => (1, 30),
    };
    let mut data = [0; 12];
    data[1] = 0x0a;
    data[4..8].copy_from_slice(&nominal.to_be_bytes());
    data[8..12].copy_from_slice(&recommended.to_be_bytes());
    data
}

/// Carries out REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS. It reports ABORT TASK, ABORT TASK SET,
/// CLEAR TASK SET, LOGICAL UNIT RESET and TARGET RESET.
pub(crate) fn task_management(task: &Task, _: &Bytes) -> Reply {
    let mut data = vec![0xda, 0x00, 0, 0];
    if task.cdb.bit(2, 7) {
        data[3] = 12;
        data.extend([0; 12]); // no timeouts are specified
    }
    Ok(data)
}
