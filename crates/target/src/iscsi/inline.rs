//! Work that the thread of a connection does itself and that may wait for a disk: writes, commands,
//! task management and text requests.

use super::active::Active;
use super::conn::Conn;
use super::pdu::Bhs;
use super::reply::Request;
use super::session::Managing;
use super::work::Work;
use crate::net::budget::Ticket;
use crate::scsi::{self, WriteCommand};
use bytes::Bytes;
use hindcast_engine::device::WriteOp;
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of threads of one connection that wait for a disk. If there are as many, workers
/// do further work that may wait.
pub(super) const MAX_STUCK: usize = 4;

/// A write with all its data.
pub(super) struct Write {
    pub(super) request: Request,
    pub(super) command: WriteCommand,
    pub(super) data: Payload,
    /// The registered task of the write. `None` if all data came with the command.
    pub(super) active: Option<(Arc<Active>, Ticket)>,
}

pub(super) enum Payload {
    /// The data is in the receive buffer.
    Received(Range<usize>),
    Gathered(Bytes),
    /// The data was passed to the device.
    Taken,
}

/// The next work of the thread of a connection. It may wait for a disk.
pub(super) enum Inline {
    Writes(Batch),
    /// The only command that the initiator waits for. The ticket is for its response, if that is
    /// long.
    Work(Request, Work, Option<Ticket>),
    /// A task management function.
    Tasks(Bhs, Managing),
    /// A text request.
    Text(Bhs, Bytes),
}

/// Writes to one logical unit, for one call of the device. The operations are in the order of the
/// writes.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) fua: bool,
    pub(super) writes: Vec<Write>,
    pub(super) ops: Vec<WriteOp>,
}

impl Batch {
    /// Sorts writes by logical unit and durability into `batches`. `lent` is the receive buffer
    /// that the writes point into.
    pub(super) fn sort(writes: &mut Vec<Write>, spare: &mut Batch, lent: &Bytes, batches: &mut Vec<Batch>) {
        for mut write in writes.drain(..) {
            let data = match std::mem::replace(&mut write.data, Payload::Taken) {
                Payload::Received(range) => lent.slice(range),
                Payload::Gathered(data) => data,
                Payload::Taken => continue,
            };
            let op = WriteOp::new(write.command.offset, data);
            let same = |batch: &Batch| {
                let first = batch.writes.first();
                first.is_some_and(|w| Arc::ptr_eq(w.command.lu(), write.command.lu()))
                    && batch.fua == write.command.fua
            };
            let at = batches.iter().position(same).unwrap_or_else(|| {
                let mut batch = std::mem::take(spare);
                batch.fua = write.command.fua;
                batches.push(batch);
                batches.len() - 1
            });
            batches[at].writes.push(write);
            batches[at].ops.push(op);
        }
    }

    /// Begins the writes. An abort that comes later waits for them. Writes that were aborted before
    /// are removed.
    pub(super) fn begin(&mut self) {
        if self.writes.iter().all(|w| w.active.is_none()) {
            return;
        }
        let mut ops = std::mem::take(&mut self.ops).into_iter();
        self.writes.retain(|w| {
            let op = ops.next();
            let begins = w.active.as_ref().is_none_or(|(active, _)| active.run(None, true));
            self.ops.extend(op.filter(|_| begins));
            begins
        });
    }

    pub(super) fn carry_out(&mut self) {
        let Batch { fua, writes, ops } = self;
        if let Some(first) = writes.first() {
            let lu = first.command.lu().clone();
            WriteCommand::write_all(&lu, ops, *fua, |n| &writes[n].command);
        }
    }
}

/// The work in progress on the thread of the connection.
#[derive(Default)]
pub(super) struct Owed {
    /// Requests in order. A request that is not registered has no task.
    pub(super) requests: Vec<(Request, Option<Arc<Active>>)>,
    pub(super) task: Option<Arc<scsi::Task>>,
    /// Number of bytes of memory that no ticket counts.
    pub(super) bytes: u64,
    pub(super) changes: bool,
}

impl Owed {
    /// Records new work. `lent` is the length in bytes of the receive buffer, if the work points
    /// into it.
    pub(super) fn note(&mut self, inline: &Inline, lent: usize) {
        self.requests.clear();
        self.task = None;
        match inline {
            Inline::Writes(batch) => {
                let known = |w: &Write| w.active.as_ref().map(|(active, _)| active.clone());
                self.requests.extend(batch.writes.iter().map(|w| (w.request, known(w))));
                self.bytes = lent as u64;
                self.changes = true;
            }
            Inline::Work(request, work, ticket) => {
                self.requests.push((*request, None));
                self.task = work.scsi_task();
                self.bytes = if ticket.is_some() { 0 } else { work.bytes(request) };
                self.changes = work.changes();
            }
            Inline::Tasks(..) | Inline::Text(..) => (self.bytes, self.changes) = (0, false),
        }
    }

    /// Ends the tasks of a thread that panicked. Such a thread sends no responses, and the
    /// initiator must not wait for them for ever.
    pub(super) fn give_up(&mut self, conn: &Conn) {
        for (_, active) in self.requests.drain(..) {
            if let Some(active) = active {
                conn.session.finish(&active, || ()).run();
            }
        }
    }
}
