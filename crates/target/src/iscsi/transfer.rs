//! Data of writes from the initiator: unsolicited data, and data that an R2T requests (RFC 7143,
//! 4.2.5.2 and 11.7 to 11.8). Data always comes in order, because the server always negotiates
//! DataPDUInOrder=Yes and DataSequenceInOrder=Yes.

use super::active::Active;
use super::condition;
use super::pdu::{Bhs, NO_TAG, r2t};
use super::reply::Request;
use super::work::Work;
use crate::net::budget::Ticket;
use crate::net::outbox::MIN_RATE;
use crate::scsi::{Outcome, Sense, Task, WriteCommand};
use bytes::Bytes;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A command that needs data from the initiator.
pub(super) enum Need {
    Write(WriteCommand),
    Other(Arc<Task>),
}

impl Need {
    /// Returns the number of bytes that the command takes from the initiator.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Need::Write(write) => u64::from(write.len),
            Need::Other(task) => task.data_out_len(),
        }
    }

    /// Makes the work of the command with `data`. There may be less data than the command needs.
    pub(super) fn with(self, data: Bytes) -> Work {
        match self {
            Need::Write(write) if data.len() as u64 % write.lu().block_size() != 0 => {
                Work::Done(Outcome::check(condition::PARTIAL_BLOCK), u64::from(write.len))
            }
            Need::Write(write) => Work::Write(write, data),
            Need::Other(task) => Work::Other(task, data),
        }
    }
}

/// The negotiated parameters of transfers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) max_burst: u32,
    pub(super) max_outstanding: u16,
}

/// The data transfer of one command.
pub(super) struct Transfer {
    pub(super) request: Request,
    pub(super) active: Arc<Active>,
    pub(super) ticket: Ticket,
    need: Need,
    terms: Terms,
    /// Buffer for the data. Its length is the smaller one of what the command takes and what the
    /// initiator announced.
    buf: Vec<u8>,
    /// Number of bytes that were received in order. Bytes beyond `buf` are dropped.
    arrived: u32,
    /// Maximum end of the open sequence of unsolicited data, in bytes. `None` if no such sequence
    /// is open.
    unsolicited: Option<u32>,
    /// DataSN of the next Data-Out of the open sequence.
    data_sn: u32,
    /// End of the data that the last R2T requests, in bytes.
    asked: u32,
    bursts: VecDeque<Burst>,
    failure: Option<Sense>,
    progress: Instant,
    began: Instant,
}

/// Data that an R2T requests.
struct Burst {
    ttt: u32,
    end: u32,
}

/// The result of a Data-Out.
pub(super) enum Taken {
    /// No transfer waits for the data. It is dropped.
    Unknown,
    /// The Data-Out belongs to no open sequence of its command.
    Misplaced,
    /// The transfer waits for more data. The caller sends these R2Ts, if there are any.
    More(Vec<Bhs>),
    /// The transfer has all its data, or it has failed.
    Complete(Box<Transfer>),
}

impl Transfer {
    /// Begins a transfer with immediate data. If more unsolicited data follows, `unsolicited` is
    /// the limit of all unsolicited data in bytes.
    pub(super) fn new(
        (request, active, ticket): (Request, Arc<Active>, Ticket),
        need: Need,
        terms: Terms,
        immediate: &[u8],
        unsolicited: Option<u32>,
    ) -> Transfer {
        let want = need.bytes().min(u64::from(request.expects_out));
        let mut transfer = Transfer {
            request,
            active,
            ticket,
            need,
            terms,
            buf: vec![0; usize::try_from(want).unwrap_or(0)],
            arrived: 0,
            unsolicited,
            data_sn: 0,
            asked: 0,
            bursts: VecDeque::new(),
            failure: None,
            progress: Instant::now(),
            began: Instant::now(),
        };
        transfer.store(immediate);
        transfer
    }

    fn want(&self) -> u32 {
        u32::try_from(self.buf.len()).unwrap_or(u32::MAX)
    }

    fn store(&mut self, data: &[u8]) {
        let at = self.arrived as usize;
        if let Some(space) = self.buf.get_mut(at..) {
            let n = space.len().min(data.len());
            space[..n].copy_from_slice(&data[..n]);
        }
        self.arrived = self.arrived.saturating_add(u32::try_from(data.len()).unwrap_or(u32::MAX));
    }

    fn is_complete(&self) -> bool {
        let open = self.unsolicited.is_some() || !self.bursts.is_empty();
        !open && (self.arrived >= self.want() || self.failure.is_some())
    }

    /// Handles a Data-Out. `data` is `None` if the data digest was wrong. Returns false if the
    /// Data-Out belongs to no open sequence.
    fn take(&mut self, bhs: &Bhs, data: Option<&[u8]>) -> bool {
        let ttt = bhs.ttt();
        let end = match (self.unsolicited, self.bursts.front()) {
            (Some(end), _) if ttt == NO_TAG => end,
            (None, Some(burst)) if burst.ttt == ttt => burst.end,
            _ => return false,
        };
        self.progress = Instant::now();
        let after = u64::from(bhs.u32(40)) + bhs.data_len() as u64;
        let in_order = bhs.u32(36) == self.data_sn && bhs.u32(40) == self.arrived;
        self.data_sn = self.data_sn.wrapping_add(1);
        match data {
            _ if self.failure.is_some() => {}
            Some(_) if after > u64::from(end) => self.failure = Some(condition::UNEXPECTED_DATA),
            Some(data) if in_order => self.store(data),
            _ => self.failure = Some(condition::CRC_ERROR),
        }
        if bhs.is_final() || (self.failure.is_none() && self.arrived >= end) {
            let solicited = self.unsolicited.take().is_none() && self.bursts.pop_front().is_some();
            if solicited && self.failure.is_none() && self.arrived < end {
                self.failure = Some(condition::NOT_ENOUGH_DATA);
            }
            self.data_sn = 0;
        }
        true
    }

    /// Makes R2Ts for more data, as many as the negotiated parameters permit.
    fn ask(&mut self, next_ttt: &mut u32) -> Vec<Bhs> {
        let mut asked = Vec::new();
        if self.unsolicited.is_some() || self.failure.is_some() {
            return asked;
        }
        self.asked = self.asked.max(self.arrived);
        while self.asked < self.want() && self.bursts.len() < usize::from(self.terms.max_outstanding) {
            let length = (self.want() - self.asked).min(self.terms.max_burst);
            *next_ttt = if *next_ttt >= NO_TAG - 1 { 0 } else { *next_ttt + 1 };
            let (itt, lun) = (self.request.itt, self.request.lun.to_be_bytes());
            asked.push(r2t(lun, itt, *next_ttt, self.request.r2ts, self.asked, length));
            self.asked += length;
            self.bursts.push_back(Burst { ttt: *next_ttt, end: self.asked });
            self.request.r2ts += 1;
        }
        asked
    }

    /// Returns the work of the command, when the transfer is complete.
    pub(super) fn into_work(self) -> (Request, Arc<Active>, Ticket, Work) {
        let work = match self.failure {
            Some(sense) => Work::Done(Outcome::check(sense), self.need.bytes()),
            None => self.need.with(Bytes::from(self.buf)),
        };
        (self.request, self.active, self.ticket, work)
    }
}

/// The open transfers of one connection.
#[derive(Default)]
pub(super) struct Transfers {
    open: HashMap<u32, Box<Transfer>>,
    next_ttt: u32,
}

impl Transfers {
    /// Adds a transfer. A transfer that is complete is returned at once.
    pub(super) fn begin(&mut self, mut transfer: Transfer) -> Taken {
        if transfer.is_complete() {
            return Taken::Complete(Box::new(transfer));
        }
        let asked = transfer.ask(&mut self.next_ttt);
        self.open.insert(transfer.request.itt, Box::new(transfer));
        Taken::More(asked)
    }

    /// Handles a Data-Out. `data` is `None` if the data digest was wrong.
    pub(super) fn take(&mut self, bhs: &Bhs, data: Option<&[u8]>) -> Taken {
        let Some(transfer) = self.open.get_mut(&bhs.itt()) else {
            return Taken::Unknown;
        };
        if !transfer.take(bhs, data) {
            return Taken::Misplaced;
        }
        if !transfer.is_complete() {
            return Taken::More(transfer.ask(&mut self.next_ttt));
        }
        self.remove(bhs.itt()).map_or(Taken::Unknown, Taken::Complete)
    }

    pub(super) fn remove(&mut self, itt: u32) -> Option<Box<Transfer>> {
        self.open.remove(&itt)
    }

    pub(super) fn tags(&self) -> HashSet<u32> {
        self.open.keys().copied().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns whether a transfer stalls: the initiator has sent no data for `patience`, or the
    /// transfer takes longer than `patience` plus its time at [`MIN_RATE`]. Such a transfer would
    /// keep memory that other transfers need.
    pub(super) fn any_stalls(&self, patience: Duration) -> bool {
        self.open.values().any(|t| {
            let limit = patience + Duration::from_secs(u64::from(t.want()) / MIN_RATE);
            t.progress.elapsed() >= patience || t.began.elapsed() >= limit
        })
    }
}
