//! The table of commands: the one place that says which exist, what their CDBs look like, where data goes, and what they
//! need to be let in.

use super::cdb::{Blocks, Cdb};
use super::command::{Reply, Task};
use super::sense::{Asc, Sense};
use super::{inquiry, medium};
use bytes::Bytes;

/// How a command is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The session reads and sends.
    Read,
    /// The session receives and writes.
    Write,
    /// [`Op::run`].
    Task,
}

/// RDPROTECT, WRPROTECT or VRPROTECT is in bits 7 to 5 of byte 1, and has to be zero.
pub(crate) const PROTECT: u16 = 1;
/// It names blocks in the layout of its group; they have to be on the medium.
pub(crate) const RANGE: u16 = 1 << 1;
/// It changes the medium.
pub(crate) const WRITES: u16 = 1 << 2;
/// It touches neither medium nor files.
pub(crate) const QUICK: u16 = 1 << 3;
/// It is carried out whatever unit attention is pending (SPC-4 6.4.1, 6.33, 6.39).
pub(crate) const ANY_TIME: u16 = 1 << 4;
/// It needs a unit that is started.
pub(crate) const MEDIUM: u16 = 1 << 5;
/// It is allowed while a sanitize operation runs or has failed (SBC-3 4.11.2).
pub(crate) const SANITIZING: u16 = 1 << 6;

/// Whether a command conflicts with a reservation held by others (SPC-4 table 48, SBC-3 table 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// Never.
    Free,
    /// With exclusive access.
    Read,
    /// With any reservation.
    Write,
    /// With any reservation, unless the initiator is registered.
    Registered,
}

/// How many bytes a command moves, from its CDB.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Length {
    None,
    /// An allocation or parameter list length of so many bytes at an offset.
    Field(usize, usize),
    /// TRANSFER LENGTH.
    Blocks,
    /// Anything else; given the block size.
    By(fn(&Cdb, u64) -> u64),
}

impl Length {
    pub(crate) fn bytes(self, cdb: &Cdb, block_size: u64) -> u64 {
        match self {
            Length::None => 0,
            Length::Field(at, 1) => u64::from(cdb.u8(at)),
            Length::Field(at, 2) => u64::from(cdb.u16(at)),
            Length::Field(at, 3) => u64::from(cdb.u24(at)),
            Length::Field(at, _) => u64::from(cdb.u32(at)),
            Length::Blocks => Blocks::of(cdb).count.saturating_mul(block_size),
            Length::By(f) => f(cdb, block_size),
        }
    }
}

/// One command.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) name: &'static str,
    /// CDB USAGE DATA (SPC-4 6.35.3): the operation code, the service action in its place, and ones where bits are
    /// looked at.
    pub(crate) usage: &'static [u8],
    /// The service action, for operation codes that have them.
    pub(crate) service_action: Option<u16>,
    pub(crate) kind: Kind,
    pub(crate) flags: u16,
    pub(crate) reserve: Reserve,
    pub(crate) data_in: Length,
    pub(crate) data_out: Length,
    pub(crate) run: fn(&Task, &Bytes) -> Reply,
}

impl Op {
    pub(crate) fn code(&self) -> u8 {
        self.usage[0]
    }

    /// The CDB's length.
    pub(crate) fn len(&self) -> usize {
        self.usage.len()
    }

    pub(crate) fn has(&self, flags: u16) -> bool {
        self.flags & flags != 0
    }
}

/// A command that moves no data.
const fn op(
    name: &'static str,
    usage: &'static [u8],
    flags: u16,
    reserve: Reserve,
    run: fn(&Task, &Bytes) -> Reply,
) -> Op {
    let (data_in, data_out) = (Length::None, Length::None);
    Op { name, usage, service_action: None, kind: Kind::Task, flags, reserve, data_in, data_out, run }
}

impl Op {
    const fn action(self, service_action: u16) -> Op {
        Op { service_action: Some(service_action), ..self }
    }

    const fn data_in(self, data_in: Length) -> Op {
        Op { data_in, ..self }
    }

    #[allow(dead_code)]
    const fn data_out(self, data_out: Length) -> Op {
        Op { data_out, ..self }
    }
}

const fn read(name: &'static str, usage: &'static [u8]) -> Op {
    let flags = PROTECT_UNLESS_SIX[(usage[0] < 0x20) as usize] | RANGE | MEDIUM;
    Op { kind: Kind::Read, data_in: Length::Blocks, ..op(name, usage, flags, Reserve::Read, medium::read) }
}

const fn write(name: &'static str, usage: &'static [u8]) -> Op {
    let flags = PROTECT_UNLESS_SIX[(usage[0] < 0x20) as usize] | RANGE | MEDIUM | WRITES;
    Op {
        kind: Kind::Write,
        data_out: Length::Blocks,
        ..op(name, usage, flags, Reserve::Write, medium::write)
    }
}

/// The 6-byte forms have address bits where the others have protection.
const PROTECT_UNLESS_SIX: [u16; 2] = [PROTECT, 0];

use Length::Field;
use Reserve::*;

/// All commands, by operation code and service action.
pub(crate) static TABLE: &[Op] = &[
    op("TEST UNIT READY", &[0x00, 0, 0, 0, 0, 0x04], QUICK | MEDIUM, Free, medium::nothing),
    op(
        "REQUEST SENSE",
        &[0x03, 0x01, 0, 0, 0xff, 0x04],
        QUICK | ANY_TIME | SANITIZING,
        Free,
        inquiry::request_sense,
    )
    .data_in(Field(4, 1)),
    read("READ(6)", &[0x08, 0x1f, 0xff, 0xff, 0xff, 0x04]),
    write("WRITE(6)", &[0x0a, 0x1f, 0xff, 0xff, 0xff, 0x04]),
    op(
        "INQUIRY",
        &[0x12, 0x01, 0xff, 0xff, 0xff, 0x04],
        QUICK | ANY_TIME | SANITIZING,
        Free,
        inquiry::inquiry,
    )
    .data_in(Field(3, 2)),
    op(
        "READ CAPACITY(10)",
        &[0x25, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x01, 0x04],
        QUICK | MEDIUM,
        Free,
        medium::read_capacity10,
    )
    .data_in(Length::By(|_, _| 8)),
    read("READ(10)", &[0x28, 0xf8, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0x04]),
    write("WRITE(10)", &[0x2a, 0xf8, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0x04]),
    op(
        "SYNCHRONIZE CACHE(10)",
        &[0x35, 0x02, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0x04],
        RANGE | MEDIUM,
        Write,
        medium::synchronize_cache,
    ),
    read(
        "READ(16)",
        &[0x88, 0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x04],
    ),
    write(
        "WRITE(16)",
        &[0x8a, 0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x04],
    ),
    op(
        "SYNCHRONIZE CACHE(16)",
        &[0x91, 0x02, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x04],
        RANGE | MEDIUM,
        Write,
        medium::synchronize_cache,
    ),
    op(
        "READ CAPACITY(16)",
        &[0x9e, 0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0x04],
        QUICK | MEDIUM,
        Free,
        medium::read_capacity16,
    )
    .action(0x10)
    .data_in(Field(10, 4)),
    op(
        "REPORT LUNS",
        &[0xa0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0x04],
        QUICK | ANY_TIME | SANITIZING,
        Free,
        inquiry::report_luns,
    )
    .data_in(Field(6, 4)),
    read("READ(12)", &[0xa8, 0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x04]),
    write("WRITE(12)", &[0xaa, 0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x04]),
];

/// The command that a CDB asks for. An operation code without such a service action is a bad field, not a bad code.
pub(crate) fn find(cdb: &Cdb) -> Result<&'static Op, Sense> {
    let mut bad = Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE);
    let first = TABLE.partition_point(|op| op.code() < cdb.code());
    for op in TABLE[first..].iter().take_while(|op| op.code() == cdb.code()) {
        match op.service_action {
            None => return Ok(op),
            Some(action) if action == u16::from(cdb.u8(1) & 0x1f) => return Ok(op),
            Some(_) => bad = Sense::cdb_bit(1, 4),
        }
    }
    Err(bad)
}
