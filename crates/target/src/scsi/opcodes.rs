//! The description of a command ([`Op`]): the match of a CDB with its entry in the
//! [table](super::table), the direction of its data, and the conditions that allow it. A [`Task`]
//! is a command in progress that runs the function of its description.

use super::cdb::{Blocks, Cdb};
use super::lu::{LogicalUnit, LuNexus};
use super::outcome::{Ending, Outcome, Reply, Status};
use super::sense::{Asc, Sense};
use super::target::Nexus;
use bytes::Bytes;
use hindcast_engine::device::RequestKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// MAXIMUM TRANSFER LENGTH in bytes.
pub(crate) const MAX_TRANSFER_BYTES: u64 = 32 << 20;

/// The part of the server that carries out a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The session reads the blocks and sends them.
    Read,
    /// The session receives the blocks and writes them.
    Write,
    /// The function [`Op::run`] carries out the command.
    Task,
}

/// RDPROTECT, WRPROTECT or VRPROTECT is in bits 7 to 5 of byte 1. It must be zero.
pub(crate) const PROTECT: u16 = 1;
/// The CDB addresses blocks in the layout of its group. The blocks must be on the medium.
pub(crate) const RANGE: u16 = 1 << 1;
/// The command changes the medium.
pub(crate) const WRITES: u16 = 1 << 2;
/// The command accesses neither the medium nor files.
pub(crate) const QUICK: u16 = 1 << 3;
/// The command is carried out with any unit attention pending (SPC-4 6.4.1, 6.33, 6.39).
pub(crate) const ANY_TIME: u16 = 1 << 4;
/// The command needs a started logical unit.
pub(crate) const MEDIUM: u16 = 1 << 5;
/// The command is allowed if a sanitize operation runs or has failed (SBC-3 4.11.2).
pub(crate) const SANITIZING: u16 = 1 << 6;
/// The initiator must send exactly the length that the CDB implies. For other commands the
/// transport reports a residual count.
pub(crate) const EXACT: u16 = 1 << 7;
/// The command may take a minute rather than seconds. Its command timeouts report this.
pub(crate) const LONG: u16 = 1 << 8;
/// Unused bits of the CDB must be zero, because the effect of the command cannot be reversed.
pub(crate) const STRICT: u16 = 1 << 10;
/// The command does not change the medium, but it changes state for all initiators. An initiator
/// that may only read may not use it.
pub(crate) const GOVERNS: u16 = 1 << 11;
/// All initiators may use the command while RESERVE(6) is in force (SPC-2 table 10).
pub(crate) const UNRESERVED: u16 = 1 << 9;

/// The conflict of a command with a persistent reservation of another nexus (SPC-4 table 48, SBC-3
/// table 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// The command never conflicts. PERSISTENT RESERVE OUT has its own rules.
    Free,
    /// The command conflicts with an exclusive access reservation.
    Read,
    /// The command conflicts with any reservation.
    Write,
    /// The command conflicts with any reservation, unless the nexus is registered.
    Registered,
    /// The rule of START STOP UNIT: like `Write`, unless the command starts the unit.
    Start,
    /// The rule of PREVENT ALLOW MEDIUM REMOVAL: like `Write`, unless the command allows removal.
    Prevent,
}

/// The source of the number of bytes that a command transfers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Length {
    None,
    /// An allocation length or parameter list length. The values are the offset in the CDB and the
    /// width of the field, in bytes.
    Field(usize, usize),
    /// TRANSFER LENGTH, in blocks.
    Blocks,
    /// A function of the CDB and the block size in bytes.
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

/// The description of one command.
#[derive(Debug)]
pub(crate) struct Op {
    /// CDB USAGE DATA (SPC-4 6.35.3): the operation code, the service action in its field, and ones
    /// for the bits that the device server evaluates. It is as long as the CDB.
    pub(crate) usage: &'static [u8],
    /// The service action, if the operation code has service actions.
    pub(crate) service_action: Option<u16>,
    pub(crate) kind: Kind,
    pub(crate) flags: u16,
    pub(crate) reserve: Reserve,
    pub(crate) data_in: Length,
    pub(crate) data_out: Length,
    pub(crate) run: fn(&Task, &Bytes) -> Reply,
}

impl Op {
    /// Creates the description of a command without data.
    pub(crate) const fn new(
        usage: &'static [u8],
        flags: u16,
        reserve: Reserve,
        run: fn(&Task, &Bytes) -> Reply,
    ) -> Op {
        let (data_in, data_out) = (Length::None, Length::None);
        Op { usage, service_action: None, kind: Kind::Task, flags, reserve, data_in, data_out, run }
    }

    /// Adds the service action in byte 1.
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

    /// Returns the length of the CDB in bytes.
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
    /// Returns the entries of all service actions of an operation code. Returns one entry if the
    /// code has no service actions, and no entry if the code is not supported.
    pub(crate) fn all_of(&self, code: u8) -> &'static [Op] {
        let first = self.0.partition_point(|op| op.code() < code);
        let count = self.0[first..].iter().take_while(|op| op.code() == code).count();
        &self.0[first..first + count]
    }

    /// Returns the command of a CDB. An unknown service action of a known operation code is an
    /// invalid field, not an invalid operation code.
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

/// A command in progress that is not a plain READ or WRITE.
#[derive(Debug)]
pub struct Task {
    pub(crate) nexus: Arc<Nexus>,
    pub(crate) path: Arc<LuNexus>,
    pub(crate) op: &'static Op,
    /// The table of all commands, for commands that report on it.
    pub(crate) table: &'static Table,
    pub(crate) cdb: Cdb,
    aborted: AtomicBool,
    /// [`LuNexus::fences`] when the command began.
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

    /// Returns the logical unit that the command addresses.
    pub fn lu(&self) -> &Arc<LogicalUnit> {
        &self.path.lu
    }

    /// Returns the number of bytes that [`Task::run`] needs from the initiator.
    pub fn data_out_len(&self) -> u64 {
        self.op.data_out.bytes(&self.cdb, self.lu().block_size())
    }

    /// Returns the largest number of bytes that [`Task::run`] returns: the allocation length, up to
    /// the length of the longest READ.
    pub fn data_in_len(&self) -> u64 {
        // An allocation length may be any number. No reply is longer than the longest READ.
        self.op.data_in.bytes(&self.cdb, self.lu().block_size()).min(MAX_TRANSFER_BYTES)
    }

    /// Returns whether the command accesses neither the medium nor a file. Such a command may run
    /// on the thread that received it.
    pub fn is_quick(&self) -> bool {
        self.op.has(QUICK)
    }

    /// Returns whether the command may change the medium, or state that other initiators see.
    pub fn changes(&self) -> bool {
        self.op.has(WRITES | GOVERNS) || self.op.code() == 0x83
    }

    /// Returns whether the command is SYNCHRONIZE CACHE. It changes nothing, and waits as long as
    /// durable writes wait.
    pub fn is_flush(&self) -> bool {
        matches!(self.op.code(), 0x35 | 0x91)
    }

    /// Returns the kind under which statistics of the device count the command. `None`: it does not
    /// access the medium, or is a sanitize operation, which is no request of a client to wait for.
    pub fn request_kind(&self) -> Option<RequestKind> {
        const UNMAP: u8 = 0x42;
        match self.op.code() {
            _ if self.is_quick() || !self.op.has(MEDIUM) => None,
            _ if self.is_flush() => Some(RequestKind::Flush),
            // With FUA, a READ is a task.
            _ if self.op.kind == Kind::Read => Some(RequestKind::Read),
            code if self.op.has(WRITES) && code != UNMAP => Some(RequestKind::Write),
            _ => Some(RequestKind::Other),
        }
    }

    /// Returns whether the command may run for minutes. A thread that serves other commands must
    /// not run it.
    pub fn may_take_long(&self) -> bool {
        self.op.has(LONG)
    }

    /// Aborts the command: a long [`Task::run`] ends soon. The caller ignores its outcome then.
    /// Other tasks continue.
    pub fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
    }

    /// Returns whether the command was aborted. It must not write then.
    pub(crate) fn is_late(&self) -> bool {
        self.aborted.load(Ordering::Acquire) || self.path.fences() != self.fences
    }

    /// Returns TASK ABORTED as an error if the command was aborted.
    pub(crate) fn go_on(&self) -> std::result::Result<(), Ending> {
        if self.is_late() { Err(Ending::Status(Status::TaskAborted)) } else { Ok(()) }
    }

    /// Carries out the command. It may block. `data_out` may be shorter than [`Task::data_out_len`]
    /// if the initiator sent less.
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
