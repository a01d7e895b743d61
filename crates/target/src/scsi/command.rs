//! Commands in progress ([`Command`]).

use super::lu::{LogicalUnit, LuNexus};
use super::opcodes::Task;
use super::outcome::Outcome;
use super::sense::{self, During};
use hindcast_engine::device::WriteOp;
use hindcast_engine::{Error, Result};
use std::sync::Arc;

/// A command that the device server accepted, or that has ended already.
#[derive(Debug)]
pub enum Command {
    /// A READ. The session reads the blocks and sends them; see [`LogicalUnit::try_read`].
    Read(ReadCommand),
    /// A WRITE. The session receives the blocks and writes them; see [`LogicalUnit::write`].
    Write(WriteCommand),
    /// Any other command. The session collects [`Task::data_out_len`] bytes, then calls
    /// [`Task::run`].
    Other(Task),
    /// A command that has ended. The session discards the data that the initiator sends with it.
    Done(Outcome),
}

impl Command {
    /// Returns the number of bytes that the command takes from the initiator.
    pub fn data_out_len(&self) -> u64 {
        match self {
            Command::Write(write) => u64::from(write.len),
            Command::Other(task) => task.data_out_len(),
            Command::Read(_) | Command::Done(_) => 0,
        }
    }

    /// Returns the largest number of bytes that the command sends to the initiator.
    pub fn data_in_len(&self) -> u64 {
        match self {
            Command::Read(read) => u64::from(read.len),
            Command::Other(task) => task.data_in_len(),
            Command::Done(outcome) => outcome.data_in.len() as u64,
            Command::Write(_) => 0,
        }
    }
}

/// A READ that needs only the device. Its range and the access of the initiator are checked.
#[derive(Debug)]
pub struct ReadCommand {
    pub(crate) path: Arc<LuNexus>,
    /// Byte offset.
    pub offset: u64,
    /// Length in bytes; not zero.
    pub len: u32,
}

impl ReadCommand {
    /// Returns the logical unit to read from.
    pub fn lu(&self) -> &Arc<LogicalUnit> {
        &self.path.lu
    }

    /// Returns the outcome of a read that failed with `error`. If the error does not name the first
    /// block that can't be read, INFORMATION is the first block of the command.
    pub fn failed(&self, error: &Error) -> Outcome {
        let first = error.byte().unwrap_or(self.offset).max(self.offset);
        let sense = sense::of_error(error, During::Read);
        self.path.check(sense.with_information(first / self.path.lu.block_size()))
    }
}

/// A WRITE whose range, access and write protection are checked.
#[derive(Debug)]
pub struct WriteCommand {
    pub(crate) path: Arc<LuNexus>,
    /// [`LuNexus::fences`] when the command began.
    pub(crate) fences: u64,
    /// Byte offset.
    pub offset: u64,
    /// Length in bytes; not zero.
    pub len: u32,
    /// Whether the data must be on stable storage before the command is answered. FUA requires
    /// this, and so does a write cache that is off.
    pub fua: bool,
}

impl WriteCommand {
    /// Returns the logical unit to write to.
    pub fn lu(&self) -> &Arc<LogicalUnit> {
        &self.path.lu
    }

    /// Writes a batch of WRITE commands to one logical unit, in one call of the device. `commands`
    /// returns the command of each operation by its index in `ops`. The data of an aborted command
    /// is not written; its operation fails.
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

    /// Returns the outcome of the command for the `result` of the device.
    pub fn outcome(&self, result: &Result<()>) -> Outcome {
        match result {
            Ok(()) => Outcome::good(),
            Err(e) => self.path.check(sense::of_error(e, During::Write)),
        }
    }
}
