//! Commands under way ([`Command`]) and how they end ([`Outcome`]).

use super::cdb::Cdb;
use super::lu::LogicalUnit;
use super::nexus::{LuNexus, Nexus};
use super::opcodes::Op;
use super::sense::{self, During, Sense};
use bytes::Bytes;
use hindcast_engine::device::WriteOp;
use hindcast_engine::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// SAM-5 5.3.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)] // the names are the standard's own
pub enum Status {
    Good = 0x00,
    CheckCondition = 0x02,
    ConditionMet = 0x04,
    Busy = 0x08,
    ReservationConflict = 0x18,
    TaskSetFull = 0x28,
    TaskAborted = 0x40,
}

/// How a command ended. Residual counts are the transport's: it alone knows what the initiator
/// expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The status byte.
    pub status: Status,
    /// Present with [`Status::CheckCondition`].
    pub sense: Option<Sense>,
    /// What to send to the initiator; never longer than [`Task::data_in_len`].
    pub data_in: Bytes,
}

impl Outcome {
    /// GOOD.
    pub const fn good() -> Outcome {
        Outcome::status(Status::Good)
    }

    /// A status without data or sense.
    pub const fn status(status: Status) -> Outcome {
        Outcome { status, sense: None, data_in: Bytes::new() }
    }

    /// GOOD with data for the initiator.
    pub fn data(data: impl Into<Bytes>) -> Outcome {
        Outcome { status: Status::Good, sense: None, data_in: data.into() }
    }

    /// CHECK CONDITION.
    pub fn check(sense: Sense) -> Outcome {
        Outcome { status: Status::CheckCondition, sense: Some(sense), data_in: Bytes::new() }
    }
}

/// How a command ends unless it is GOOD.
#[derive(Debug)]
pub(crate) enum Ending {
    Check(Sense),
    Status(Status),
}

impl From<Sense> for Ending {
    fn from(sense: Sense) -> Ending {
        Ending::Check(sense)
    }
}

/// What a command's function returns: the data for the initiator, untruncated, or how else it ends.
pub(crate) type Reply = std::result::Result<Vec<u8>, Ending>;

/// A command that was accepted, or that has ended already.
#[derive(Debug)]
pub enum Command {
    /// Blocks to be read and sent; see [`LogicalUnit::try_read`].
    Read(ReadCommand),
    /// Blocks to be received and written; see [`LogicalUnit::write`].
    Write(WriteCommand),
    /// Anything else: collect [`Task::data_out_len`] bytes, then [`Task::run`].
    Other(Task),
    /// It has ended; whatever data came with it is dropped.
    Done(Outcome),
}

impl Command {
    /// Bytes that the command takes from the initiator.
    pub fn data_out_len(&self) -> u64 {
        match self {
            Command::Write(write) => u64::from(write.len),
            Command::Other(task) => task.data_out_len(),
            Command::Read(_) | Command::Done(_) => 0,
        }
    }

    /// Bytes that the command sends at most.
    pub fn data_in_len(&self) -> u64 {
        match self {
            Command::Read(read) => u64::from(read.len),
            Command::Other(task) => task.data_in_len(),
            Command::Done(outcome) => outcome.data_in.len() as u64,
            Command::Write(_) => 0,
        }
    }
}

/// A READ that needs nothing but the device: range and access are checked.
#[derive(Debug)]
pub struct ReadCommand {
    pub(crate) path: Arc<LuNexus>,
    /// Byte offset.
    pub offset: u64,
    /// Length in bytes; not zero.
    pub len: u32,
}

impl ReadCommand {
    /// The logical unit to read from.
    pub fn lu(&self) -> &Arc<LogicalUnit> {
        &self.path.lu
    }

    /// The outcome of reading that failed.
    pub fn failed(&self, error: &Error) -> Outcome {
        self.path.check(
            sense::of_error(error, During::Read).with_information(self.offset / self.path.lu.block_size()),
        )
    }
}

/// A WRITE: range, access and write protection are checked.
#[derive(Debug)]
pub struct WriteCommand {
    pub(crate) path: Arc<LuNexus>,
    /// [`LuNexus::fences`] when it began.
    pub(crate) fences: u64,
    /// Byte offset.
    pub offset: u64,
    /// Length in bytes; not zero.
    pub len: u32,
    /// It has to be on stable storage before it is answered (FUA, or the write cache is off).
    pub fua: bool,
}

impl WriteCommand {
    /// The logical unit to write to.
    pub fn lu(&self) -> &Arc<LogicalUnit> {
        &self.path.lu
    }

    /// Writes a batch of such commands to one logical unit, in one call of the device; `commands`
    /// gives them by their number. One that was aborted meanwhile is not written.
    pub fn write_all<'a>(
        lu: &LogicalUnit,
        ops: &mut [WriteOp],
        fua: bool,
        commands: impl Fn(usize) -> &'a Self,
    ) {
        lu.write_unless(ops, fua, |n| {
            let command = commands(n);
            command.path.fences() != command.fences
        });
    }

    /// The outcome, given what the device said.
    pub fn outcome(&self, result: &Result<()>) -> Outcome {
        match result {
            Ok(()) => Outcome::good(),
            Err(e) => self.path.check(sense::of_error(e, During::Write)),
        }
    }
}

/// A command other than plain reading and writing.
#[derive(Debug)]
pub struct Task {
    pub(crate) nexus: Arc<Nexus>,
    pub(crate) path: Arc<LuNexus>,
    pub(crate) op: &'static Op,
    pub(crate) cdb: Cdb,
    aborted: AtomicBool,
    /// [`LuNexus::fences`] when it began.
    fences: u64,
}

impl Task {
    pub(crate) fn new(
        nexus: Arc<Nexus>,
        (path, fences): (Arc<LuNexus>, u64),
        op: &'static Op,
        cdb: Cdb,
    ) -> Task {
        Task { nexus, path, op, cdb, aborted: AtomicBool::new(false), fences }
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
        self.op.data_in.bytes(&self.cdb, self.lu().block_size()).min(super::inquiry::MAX_TRANSFER_BYTES)
    }

    /// It touches no medium and no file, and may run on the thread that received it.
    pub fn is_quick(&self) -> bool {
        self.op.has(super::opcodes::QUICK)
    }

    /// It may change the medium, or something that other initiators see.
    pub fn changes(&self) -> bool {
        self.op.has(super::opcodes::WRITES | super::opcodes::GOVERNS) || self.op.code() == 0x83
    }

    /// SYNCHRONIZE CACHE: it changes nothing, and waits for what writes wait for.
    pub fn is_flush(&self) -> bool {
        matches!(self.op.code(), 0x35 | 0x91)
    }

    /// It may run for minutes: never on a thread that others wait for.
    pub fn may_take_long(&self) -> bool {
        self.op.has(super::opcodes::LONG)
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
