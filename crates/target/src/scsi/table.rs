//! The table of commands, in the order of their operation codes and service actions.
#![allow(clippy::wildcard_imports)] // it is all about these words

use super::cdb::Cdb;
use super::opcodes::{Length::*, Reserve::*, *};
use super::outcome::Reply;
use super::{alua, copy, inquiry, log, medium, mode, provisioning, reports, reserve, sanitize, verify};
use bytes::Bytes;

const F: u8 = 0xff;
/// Usage mask of CONTROL. NACA is checked and refused.
const C: u8 = 0x04;
/// Usage mask of a protection field, DPO and FUA.
const DFP: u8 = 0xf8;
/// Usage mask of GROUP NUMBER.
const G: u8 = 0x1f;

/// Returns the description of a command that reads blocks.
const fn read(usage: &'static [u8]) -> Op {
    let protect = if usage.len() == 6 { 0 } else { PROTECT };
    Op::new(usage, protect | RANGE | MEDIUM, Read, medium::read).reads(Blocks).kind(Kind::Read)
}

/// Returns the description of a command that writes blocks. The session carries it out completely.
const fn write(usage: &'static [u8]) -> Op {
    let protect = if usage.len() == 6 { 0 } else { PROTECT };
    Op::new(usage, protect | RANGE | MEDIUM | WRITES, Write, medium::nothing).takes(Blocks).kind(Kind::Write)
}

/// Returns the description of a VERIFY.
const fn check(usage: &'static [u8]) -> Op {
    Op::new(usage, PROTECT | RANGE | MEDIUM | LONG, Read, verify::verify).takes(By(verify::compared))
}

/// Returns the description of a task that receives blocks and changes the medium.
const fn change(usage: &'static [u8], flags: u16, run: fn(&Task, &Bytes) -> Reply) -> Op {
    Op::new(usage, PROTECT | RANGE | MEDIUM | WRITES | flags, Write, run).takes(Blocks)
}

/// Returns the description of a report that does not access the medium.
const fn report(usage: &'static [u8], flags: u16, reserve: Reserve, run: fn(&Task, &Bytes) -> Reply) -> Op {
    Op::new(usage, QUICK | flags, reserve, run)
}

const fn one_block(_: &Cdb, block_size: u64) -> u64 {
    block_size
}

pub(crate) static TABLE: Table = Table(&[
    report(&[0x00, 0, 0, 0, 0, C], MEDIUM, Free, medium::nothing),
    report(&[0x03, 0x01, 0, 0, F, C], ANY_TIME | SANITIZING | UNRESERVED, Free, inquiry::request_sense)
        .reads(Field(4, 1)),
    read(&[0x08, 0x1f, F, F, F, C]),
    write(&[0x0a, 0x1f, F, F, F, C]),
    report(&[0x12, 0x01, F, F, F, C], ANY_TIME | SANITIZING | UNRESERVED, Free, inquiry::inquiry)
        .reads(Field(3, 2)),
    Op::new(&[0x15, 0x11, 0, 0, F, C], GOVERNS, Registered, mode::select6).takes(Field(4, 1)),
    Op::new(&[0x16, 0, 0, 0, 0, C], GOVERNS, Free, reserve::reserve6),
    report(&[0x17, 0, 0, 0, 0, C], UNRESERVED, Free, reserve::release6),
    report(&[0x1a, 0x08, F, F, F, C], 0, Registered, mode::sense6).reads(Field(4, 1)),
    Op::new(&[0x1b, 0x01, 0, 0x0f, 0xf7, C], LONG | GOVERNS, Start, medium::start_stop),
    report(&[0x1e, 0, 0, 0, 0x03, C], UNRESERVED, Prevent, medium::prevent_allow),
    report(&[0x25, 0, F, F, F, F, 0, 0, 0x01, C], MEDIUM | UNRESERVED, Free, medium::read_capacity10)
        .reads(By(|_, _| 8)),
    read(&[0x28, DFP, F, F, F, F, G, F, F, C]),
    write(&[0x2a, DFP, F, F, F, F, G, F, F, C]),
    change(&[0x2e, 0xf6, F, F, F, F, G, F, F, C], LONG, verify::write_and_verify),
    check(&[0x2f, 0xf6, F, F, F, F, G, F, F, C]),
    Op::new(&[0x34, 0x02, F, F, F, F, G, F, F, C], RANGE | MEDIUM, Read, medium::pre_fetch),
    Op::new(&[0x35, 0x02, F, F, F, F, G, F, F, C], RANGE | MEDIUM, Write, medium::synchronize_cache),
    report(&[0x37, 0, 0x1f, 0, 0, 0, 0, F, F, C], 0, Free, medium::read_defect_data).reads(Field(7, 2)),
    change(&[0x41, DFP, F, F, F, F, G, F, F, C], EXACT | LONG, provisioning::write_same).takes(By(one_block)),
    Op::new(&[0x42, 0x01, 0, 0, 0, 0, G, F, F, C], MEDIUM | WRITES | LONG, Write, provisioning::unmap)
        .takes(Field(7, 2)),
    sanitize_op(&[0x48, 0xa1, 0, 0, 0, 0, 0, F, F, C], sanitize::overwrite),
    sanitize_op(&[0x48, 0xa2, 0, 0, 0, 0, 0, F, F, C], sanitize::block_erase),
    sanitize_op(&[0x48, 0x9f, 0, 0, 0, 0, 0, F, F, C], sanitize::exit_failure_mode),
    Op::new(&[0x4c, 0x03, F, F, 0, 0, 0, F, F, C], GOVERNS, Write, log::select).takes(Field(7, 2)),
    report(&[0x4d, 0x01, F, F, 0, F, F, F, F, C], SANITIZING | UNRESERVED | LONG, Free, log::sense)
        .reads(Field(7, 2)),
    Op::new(&[0x55, 0x11, 0, 0, 0, 0, 0, F, F, C], GOVERNS, Registered, mode::select10).takes(Field(7, 2)),
    report(&[0x5a, 0x18, F, F, 0, 0, 0, F, F, C], 0, Registered, mode::sense10).reads(Field(7, 2)),
    reserve_in(&[0x5e, 0x00, 0, 0, 0, 0, 0, F, F, C]),
    reserve_in(&[0x5e, 0x01, 0, 0, 0, 0, 0, F, F, C]),
    reserve_in(&[0x5e, 0x02, 0, 0, 0, 0, 0, F, F, C]),
    reserve_in(&[0x5e, 0x03, 0, 0, 0, 0, 0, F, F, C]),
    reserve_out(&[0x5f, 0x00, 0, 0, 0, F, F, F, F, C]),
    reserve_out(&[0x5f, 0x01, F, 0, 0, F, F, F, F, C]),
    reserve_out(&[0x5f, 0x02, F, 0, 0, F, F, F, F, C]),
    reserve_out(&[0x5f, 0x03, 0, 0, 0, F, F, F, F, C]),
    reserve_out(&[0x5f, 0x04, F, 0, 0, F, F, F, F, C]),
    reserve_out(&[0x5f, 0x05, F, 0, 0, F, F, F, F, C]),
    reserve_out(&[0x5f, 0x06, 0, 0, 0, F, F, F, F, C]),
    reserve_out(&[0x5f, 0x07, 0, 0, 0, F, F, F, F, C]),
    Op::new(
        &[0x83, 0x00, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, C],
        MEDIUM | LONG,
        Write,
        copy::extended_copy,
    )
    .action()
    .takes(Field(10, 4)),
    copy_results(&[0x84, 0x00, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, C], copy::status),
    copy_results(&[0x84, 0x03, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, C], copy::operating_parameters),
    copy_results(&[0x84, 0x04, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, C], copy::failed_segment_details),
    read(&[0x88, DFP, F, F, F, F, F, F, F, F, F, F, F, F, G, C]),
    Op::new(
        &[0x89, DFP, F, F, F, F, F, F, F, F, 0, 0, 0, F, G, C],
        PROTECT | MEDIUM | WRITES | EXACT,
        Write,
        verify::compare_and_write,
    )
    .takes(By(|cdb, block_size| 2 * u64::from(cdb.u8(13)) * block_size)),
    write(&[0x8a, DFP, F, F, F, F, F, F, F, F, F, F, F, F, G, C]),
    change(&[0x8b, DFP, F, F, F, F, F, F, F, F, F, F, F, F, G, C], 0, verify::or_write),
    change(&[0x8e, 0xf6, F, F, F, F, F, F, F, F, F, F, F, F, G, C], LONG, verify::write_and_verify),
    check(&[0x8f, 0xf6, F, F, F, F, F, F, F, F, F, F, F, F, G, C]),
    Op::new(&[0x90, 0x02, F, F, F, F, F, F, F, F, F, F, F, F, G, C], RANGE | MEDIUM, Read, medium::pre_fetch),
    Op::new(
        &[0x91, 0x02, F, F, F, F, F, F, F, F, F, F, F, F, G, C],
        RANGE | MEDIUM,
        Write,
        medium::synchronize_cache,
    ),
    change(&[0x93, 0xf9, F, F, F, F, F, F, F, F, F, F, F, F, G, C], EXACT | LONG, provisioning::write_same)
        .takes(By(|cdb, block_size| if cdb.bit(1, 0) { 0 } else { block_size })),
    Op::new(
        &[0x9c, DFP, F, F, F, F, F, F, F, F, F, F, F, F, G, C],
        PROTECT | MEDIUM | WRITES,
        Write,
        medium::write_atomic,
    )
    .takes(By(|cdb, block_size| u64::from(cdb.u16(12)) * block_size)),
    report(&[0x9e, 0x10, F, F, F, F, F, F, F, F, F, F, F, F, 0x01, C], MEDIUM, Free, medium::read_capacity16)
        .action()
        .reads(Field(10, 4)),
    Op::new(&[0x9e, 0x12, F, F, F, F, F, F, F, F, F, F, F, F, 0, C], MEDIUM, Free, provisioning::lba_status)
        .action()
        .reads(Field(10, 4)),
    report(
        &[0xa0, 0, F, 0, 0, 0, F, F, F, F, 0, C],
        ANY_TIME | SANITIZING | UNRESERVED,
        Free,
        inquiry::report_luns,
    )
    .reads(Field(6, 4)),
    report(&[0xa3, 0xea, 0, 0, 0, 0, F, F, F, F, 0, C], 0, Free, alua::report_target_port_groups)
        .action()
        .reads(Field(6, 4)),
    report(&[0xa3, 0x0c, 0x87, F, F, F, F, F, F, F, 0, C], SANITIZING, Free, reports::operation_codes)
        .action()
        .reads(Field(6, 4)),
    report(&[0xa3, 0x0d, 0x80, 0, 0, 0, F, F, F, F, 0, C], SANITIZING, Free, reports::task_management)
        .action()
        .reads(Field(6, 4)),
    read(&[0xa8, DFP, F, F, F, F, F, F, F, F, G, C]),
    write(&[0xaa, DFP, F, F, F, F, F, F, F, F, G, C]),
    change(&[0xae, 0xf6, F, F, F, F, F, F, F, F, G, C], LONG, verify::write_and_verify),
    check(&[0xaf, 0xf6, F, F, F, F, F, F, F, F, G, C]),
    report(&[0xb7, 0x1f, F, F, F, F, F, F, F, F, 0, C], 0, Free, medium::read_defect_data).reads(Field(6, 4)),
]);

/// Returns the description of a SANITIZE service action.
const fn sanitize_op(usage: &'static [u8], run: fn(&Task, &Bytes) -> Reply) -> Op {
    Op::new(usage, WRITES | LONG | STRICT, Write, run).action().takes(Field(7, 2))
}

/// Returns the description of a PERSISTENT RESERVE IN service action.
const fn reserve_in(usage: &'static [u8]) -> Op {
    report(usage, 0, Free, reserve::reserve_in).action().reads(Field(7, 2))
}

/// Returns the description of a PERSISTENT RESERVE OUT service action.
const fn reserve_out(usage: &'static [u8]) -> Op {
    Op::new(usage, GOVERNS, Free, reserve::reserve_out).action().takes(Field(5, 4))
}

/// Returns the description of a RECEIVE COPY RESULTS service action.
const fn copy_results(usage: &'static [u8], run: fn(&Task, &Bytes) -> Reply) -> Op {
    report(usage, 0, Registered, run).action().reads(Field(10, 4))
}
