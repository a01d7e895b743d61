//! The description of a command: how a CDB is matched to its entry in the [table](super::table),
//! the direction of its data, and what it needs to be allowed ([`Op`]). A [`Task`] is a command
//! under way, which such a description carries out.

use super::cdb::{Blocks, Cdb};
use super::lu::{LogicalUnit, LuNexus};
use super::outcome::{Ending, Outcome, Reply, Status};
use super::sense::{Asc, Sense};
use super::target::Nexus;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// MAXIMUM TRANSFER LENGTH in bytes.
pub(crate) const MAX_TRANSFER_BYTES: u64 = 32 << 20;

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
/// The initiator has to send exactly what the CDB implies; for others the transport reports a
/// residual.
pub(crate) const EXACT: u16 = 1 << 7;
/// It may take a minute rather than seconds: its timeouts say so.
pub(crate) const LONG: u16 = 1 << 8;
/// Bits that are not used have to be zero: what it does cannot be undone.
pub(crate) const STRICT: u16 = 1 << 10;
/// It changes nothing on the medium, but something for all initiators. Initiators that may only
/// read may not use it.
pub(crate) const GOVERNS: u16 = 1 << 11;
/// It is allowed to all initiators while RESERVE(6) is in force (SPC-2 table 10).
pub(crate) const UNRESERVED: u16 = 1 << 9;

/// Whether a command conflicts with a persistent reservation held by others (SPC-4 table 48, SBC-3
/// table 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// Never; PERSISTENT RESERVE OUT has its own rules.
    Free,
    /// With exclusive access.
    Read,
    /// With any reservation.
    Write,
    /// With any reservation, unless the initiator is registered.
    Registered,
    /// START STOP UNIT: like `Write`, unless it starts the unit.
    Start,
    /// PREVENT ALLOW MEDIUM REMOVAL: like `Write`, unless it allows.
    Prevent,
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
    /// CDB USAGE DATA (SPC-4 6.35.3): the operation code, the service action in its place, and ones
    /// where bits are looked at. Its length is the CDB's.
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
    /// A command that moves no data.
    pub(crate) const fn new(
        usage: &'static [u8],
        flags: u16,
        reserve: Reserve,
        run: fn(&Task, &Bytes) -> Reply,
    ) -> Op {
        let (data_in, data_out) = (Length::None, Length::None);
        Op { usage, service_action: None, kind: Kind::Task, flags, reserve, data_in, data_out, run }
    }

    /// With a service action in byte 1.
    pub(crate) const fn action(self) -> Op {
        Op { service_action: Some((self.usage[1] & 0x1f) as u16), ..self }
    }

    pub(crate) const fn reads(self, data_in: Length) -> Op {
        Op { data_in, ..self }
    }

    pub(crate) const fn takes(self, data_out: Length) -> Op {
        Op { data_out, ..self }
    }

    pub(crate) const fn kind(self, kind: Kind) -> Op {
        Op { kind, ..self }
    }

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

/// All commands, in the order of their operation codes and service actions.
#[derive(Debug)]
pub(crate) struct Table(pub(crate) &'static [Op]);

impl Table {
    /// All service actions of an operation code; one entry if it has none; nothing if it is not
    /// supported.
    pub(crate) fn all_of(&self, code: u8) -> &'static [Op] {
        let first = self.0.partition_point(|op| op.code() < code);
        let count = self.0[first..].iter().take_while(|op| op.code() == code).count();
        &self.0[first..first + count]
    }

    /// The command that a CDB asks for. An operation code without such a service action is a bad
    /// field, not a bad code.
    pub(crate) fn find(&self, cdb: &Cdb) -> Result<&'static Op, Sense> {
        let ops = self.all_of(cdb.code());
        if ops.is_empty() {
            return Err(Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE));
        }
        let action = u16::from(cdb.u8(1) & 0x1f);
        ops.iter()
            .find(|op| op.service_action.is_none_or(|a| a == action))
            .ok_or_else(|| Sense::cdb_bit(1, 4))
    }
}

/// A command other than plain reading and writing.
#[derive(Debug)]
pub struct Task {
    pub(crate) nexus: Arc<Nexus>,
    pub(crate) path: Arc<LuNexus>,
    pub(crate) op: &'static Op,
    /// All commands, for those that report on them.
    pub(crate) table: &'static Table,
    pub(crate) cdb: Cdb,
    aborted: AtomicBool,
    /// [`LuNexus::fences`] when it began.
    fences: u64,
}

impl Task {
    pub(crate) fn new(
        nexus: Arc<Nexus>,
        (path, fences): (Arc<LuNexus>, u64),
        (op, table): (&'static Op, &'static Table),
        cdb: Cdb,
    ) -> Task {
        Task { nexus, path, op, table, cdb, aborted: AtomicBool::new(false), fences }
    }

    /// The logical unit it addresses.
    pub fn lu(&self) -> &Arc<LogicalUnit> {
        &self.path.lu
    }

    /// Bytes that [`Task::run`] wants.
    pub fn data_out_len(&self) -> u64 {
        self.op.data_out.bytes(&self.cdb, self.lu().block_size())
    }

    /// Bytes that it returns at most: the allocation length.
    pub fn data_in_len(&self) -> u64 {
        // An allocation length may be anything; no answer is longer than the longest READ.
        self.op.data_in.bytes(&self.cdb, self.lu().block_size()).min(MAX_TRANSFER_BYTES)
    }

    /// It touches no medium and no file, and may run on the thread that received it.
    pub fn is_quick(&self) -> bool {
        self.op.has(QUICK)
    }

    /// It may change the medium, or something that other initiators see.
    pub fn changes(&self) -> bool {
        self.op.has(WRITES | GOVERNS) || self.op.code() == 0x83
    }

    /// SYNCHRONIZE CACHE: it changes nothing, and waits for what writes wait for.
    pub fn is_flush(&self) -> bool {
        matches!(self.op.code(), 0x35 | 0x91)
    }

    /// It may run for minutes: never on a thread that others wait for.
    pub fn may_take_long(&self) -> bool {
        self.op.has(LONG)
    }

    /// Makes a [`Task::run`] that takes long end soon. Its outcome is to be ignored then. Other
    /// tasks are not affected.
    pub fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
    }

    /// It was aborted: it must not write any more.
    pub(crate) fn is_late(&self) -> bool {
        self.aborted.load(Ordering::Acquire) || self.path.fences() != self.fences
    }

    /// An error if it was aborted.
    pub(crate) fn go_on(&self) -> std::result::Result<(), Ending> {
        if self.is_late() { Err(Ending::Status(Status::TaskAborted)) } else { Ok(()) }
    }

    /// Carries the command out; may block. `data_out` may be shorter than [`Task::data_out_len`] if
    /// the initiator sent less.
    pub fn run(&self, data_out: &Bytes) -> Outcome {
        match (self.op.run)(self, data_out) {
            Ok(mut data) => {
                data.truncate(usize::try_from(self.data_in_len()).unwrap_or(usize::MAX));
                Outcome::data(data)
            }
            Err(Ending::Status(status)) => Outcome::status(status),
            Err(Ending::Check(sense)) => self.path.check(sense),
        }
    }
}
