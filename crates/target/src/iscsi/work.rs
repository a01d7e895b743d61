//! SCSI commands that have all the data that they need. A worker or the connection's thread carries
//! them out.

use super::reply::{Request, Shape, put_data, put_outcome};
use crate::net::buffers::ReplyBuf;
use crate::scsi::{LuNexus, Outcome, ReadCommand, Status, Task, WriteCommand};
use bytes::Bytes;
use hindcast_engine::device::{RequestKind, WriteOp};
use std::sync::Arc;

/// A command with its data.
pub(super) enum Work {
    Read(ReadCommand),
    /// The data may be shorter than the command requests, but it is whole blocks.
    Write(WriteCommand, Bytes),
    Other(Arc<Task>, Bytes),
    /// A command that has ended, with the number of bytes that it would have taken from the
    /// initiator.
    Done(Outcome, u64),
}

/// A command that counts in the statistics of a logical unit's device.
pub(super) struct Counted {
    pub(super) path: Arc<LuNexus>,
    pub(super) kind: RequestKind,
}

impl Counted {
    /// Tells the device that the response to a command is sent next.
    pub(super) fn tell(&self, request: &Request) {
        self.path.lu.device().answered(self.kind, request.arrived.elapsed(), 1);
    }
}

/// Whether a read may wait for a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    No,
    Yes,
}

impl Work {
    pub(super) fn scsi_task(&self) -> Option<Arc<Task>> {
        match self {
            Work::Other(task, _) => Some(task.clone()),
            _ => None,
        }
    }

    /// Returns what the device of a logical unit is told when the work is answered. `None`: the
    /// work does not reach the medium.
    pub(super) fn counted(&self) -> Option<Counted> {
        match self {
            Work::Read(read) => Some(Counted { path: read.path.clone(), kind: RequestKind::Read }),
            Work::Write(_, data) if data.is_empty() => None,
            Work::Write(write, _) => Some(Counted { path: write.path.clone(), kind: RequestKind::Write }),
            Work::Other(task, _) => task.request_kind().map(|kind| Counted { path: task.path.clone(), kind }),
            Work::Done(..) => None,
        }
    }

    /// Returns whether the work may take minutes.
    pub(super) fn may_take_long(&self) -> bool {
        matches!(self, Work::Other(task, _) if task.may_take_long())
    }

    /// Returns whether the work may change the medium, or something that other initiators see. A
    /// flush changes nothing.
    pub(super) fn changes(&self) -> bool {
        match self {
            Work::Write(..) => true,
            Work::Other(task, _) => task.changes(),
            Work::Read(_) | Work::Done(..) => false,
        }
    }

    /// Returns whether the work waits for the same disks as writes.
    pub(super) fn waits_with_writes(&self) -> bool {
        self.changes() || matches!(self, Work::Other(task, _) if task.is_flush())
    }

    /// Returns whether the work holds data that the initiator sent.
    pub(super) fn has_data(&self) -> bool {
        matches!(self, Work::Write(_, data) | Work::Other(_, data) if !data.is_empty())
    }

    /// Returns the number of bytes of memory that the work takes.
    pub(super) fn bytes(&self, request: &Request) -> u64 {
        match self {
            Work::Read(read) => u64::from(read.len),
            Work::Write(_, data) => data.len() as u64,
            Work::Other(task, data) => {
                data.len() as u64 + task.data_in_len().min(u64::from(request.expects_in))
            }
            Work::Done(..) => 0,
        }
    }

    /// Carries out the work, waits as needed, and appends the response. Returns whether the command
    /// succeeded.
    pub(super) fn perform(self, request: &Request, shape: Shape, out: &mut ReplyBuf) -> bool {
        let (outcome, moved_out) = match self {
            Work::Read(read) => return read_into(&read, request, shape, Wait::Yes, out) == Some(true),
            Work::Write(write, data) => {
                if data.is_empty() {
                    (Outcome::good(), u64::from(write.len))
                } else {
                    let mut op = [WriteOp::new(write.offset, data)];
                    WriteCommand::write_all(write.lu(), &mut op, write.fua, |_| &write);
                    let [WriteOp { result, .. }] = op;
                    (write.outcome(&result), u64::from(write.len))
                }
            }
            Work::Other(task, data) => (task.run(&data), task.data_out_len()),
            Work::Done(outcome, moved_out) => (outcome, moved_out),
        };
        put_outcome(out, shape, request, &outcome, moved_out);
        is_success(outcome.status)
    }
}

pub(super) fn is_success(status: Status) -> bool {
    matches!(status, Status::Good | Status::ConditionMet)
}

/// Reads directly into the response. Returns `None`, and does not change `out`, if the read must
/// wait and `wait` does not permit it. Otherwise returns whether the read succeeded.
pub(super) fn read_into(
    read: &ReadCommand,
    request: &Request,
    shape: Shape,
    wait: Wait,
    out: &mut ReplyBuf,
) -> Option<bool> {
    let (lu, len) = (read.lu(), read.len);
    let block = u32::try_from(lu.block_size()).unwrap_or(u32::MAX);
    let send = len.min(request.expects_in);
    let get = |offset: u64, buf: &mut [u8]| match wait {
        Wait::Yes => lu.read(offset, buf).map(|()| true),
        Wait::No => lu.try_read(offset, buf),
    };
    let whole_blocks = send % block == 0 && shape.segment >= block && shape.burst >= block;
    let result = if whole_blocks && send > 0 {
        put_data(out, shape, request, (send, u64::from(len), block), |at, buf| {
            get(read.offset + u64::from(at), buf)
        })
    } else {
        // The initiator expects a part of a block, or no data. The read needs a buffer.
        let mut data = vec![0; send.next_multiple_of(block).max(block).min(len) as usize];
        match get(read.offset, &mut data) {
            Ok(true) if send == 0 => {
                let mut nothing = Outcome::good();
                nothing.data_in = Bytes::from(vec![0; len as usize]);
                put_outcome(out, shape, request, &nothing, 0);
                Ok(true)
            }
            Ok(true) => put_data(out, shape, request, (send, u64::from(len), 1), |at, buf| {
                let at = at as usize;
                buf.copy_from_slice(&data[at..at + buf.len()]);
                Ok(true)
            }),
            other => other,
        }
    };
    match result {
        Ok(true) => Some(true),
        Ok(false) => None,
        Err(e) => {
            put_outcome(out, shape, request, &read.failed(&e), 0);
            Some(false)
        }
    }
}
