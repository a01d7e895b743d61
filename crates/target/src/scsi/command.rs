//! Commands under way ([`Command`]).

use super::lu::{LogicalUnit, LuNexus};
use super::opcodes::Task;
use super::outcome::Outcome;
use super::sense::{self, During};
use hindcast_engine::device::WriteOp;
use hindcast_engine::{Error, Result};
use std::sync::Arc;

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
