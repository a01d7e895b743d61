//! The path of a write up to its acknowledgement: checks, reservation, sequencing, journal.

use super::Volume;
use crate::catalog::page::{Entry, MapPage, Slot};
use crate::cdp::write::reserve::{LogReservation, no_room};
use crate::device::{WriteOp, first_difference};
use crate::error::{Error, ErrorKind, Result, invalid, no_space};
use crate::ids::{Chunk, Epoch, Lsn};
use crate::journal::record::{Kind, MAX_ZERO, PieceCrcs, space};
use crate::journal::{Admission, Record, Sequencing};
use crate::sequence::relief::Relief;
use crate::settings::LONG_DISCARD;
use crate::space::catalog_room::{Promise as PagesPromise, growth, no_pages};
use crate::space::lent::TakenRuns;
use crate::space::reservations::full;
use crate::staging::Watch;
use bytes::Bytes;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Number of chunks of a request for which the need is computed exactly. That takes time under the
/// sequencing lock.
const MAX_EXACT: u64 = 64 << 10;

/// The work of a writer whose panic would leave promises that nothing ends.
const PROMISED: &str = "space was promised to a write";

/// The change that a request makes to a range, before it is cut into records.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change<'a> {
    Data(&'a Bytes),
    Discard,
    Zeros,
}

/// Number of comparisons of a COMPARE AND WRITE that other writes disturb, before it is refused.
const MAX_COMPARISONS: u32 = 256;

/// The error of a COMPARE AND WRITE that other writes disturb.
fn busy() -> Error {
    Error::new(ErrorKind::Busy, "compare and write: other clients write to the range; try again")
}

/// Returns whether a record is so long a discard that, with CDP, it is sequenced behind an anchor
/// instead of being recorded.
fn needs_anchor(record: &Record) -> bool {
    record.kind == Kind::Discard && record.length > LONG_DISCARD
}

/// The result of sequencing a request.
#[derive(Clone, Copy)]
enum Sequenced {
    /// The request has no bytes, so it has no records.
    Nothing,
    /// All records are sequenced. This is the LSN of the last one, which may still have to be
    /// written.
    UpTo(Lsn),
    /// The request is a long discard of a volume with CDP. It needs an anchor, and nothing was
    /// sequenced.
    NeedsAnchor,
    /// The bytes of the volume from `from` on can't be written by reference any more. The records
    /// before `from` are sequenced. `last` is the LSN of the last of them, if there is one.
    Inline { from: u64, last: Option<Lsn> },
}

impl Sequenced {
    /// Returns the last LSN, if there is one.
    fn last(&self) -> Option<Lsn> {
        match self {
            Sequenced::UpTo(lsn) => Some(*lsn),
            Sequenced::Inline { last, .. } => *last,
            Sequenced::Nothing | Sequenced::NeedsAnchor => None,
        }
    }
}

/// One request, cut into records.
pub(super) struct Request {
    offset: u64,
    pub(super) len: u64,
    pub(super) records: Vec<Record>,
    /// The slots of the references among `records`, in the same order.
    pub(super) taken: VecDeque<TakenRuns>,
    /// The request is valid only as long as nothing else was sequenced in its range.
    watch: Option<Watch>,
}

impl Volume {
    pub(super) fn write_batch(&self, ops: &mut [WriteOp], fua: bool) {
        self.core.wait_until_paid(self.branch());
        let mut last = None;
        let mut requests: Vec<Result<Request>> = ops
            .iter()
            .map(|op| {
                self.count(&self.state.counters.writes, 1);
                self.count(&self.state.counters.write_bytes, op.data.len() as u64);
                let len = op.data.len() as u64;
                let request = self.data_request(op.offset, &op.data, fua)?;
                self.count_place_of_write(op.offset, len);
                Ok(request)
            })
            .collect();
        let _writing = self.writing_after(|| {
            for (op, request) in ops.iter().zip(&mut requests).filter(|(_, request)| request.is_ok()) {
                let most = self.most(Change::Data(&op.data));
                if let Err(error) = self.materialize(op.offset, op.data.len() as u64, most, true) {
                    *request = Err(error);
                }
            }
            Ok(())
        });
        {
            let mut sequencing = None;
            for (op, request) in ops.iter_mut().zip(requests) {
                let result = request.and_then(|request| self.sequence(&mut sequencing, request));
                let result = match result {
                    Ok(Sequenced::Inline { from, last: before }) => {
                        last = before.max(last);
                        self.sequence_rest(&mut sequencing, op, from)
                    }
                    result => result,
                };
                op.result = result.map(|sequenced| last = sequenced.last().max(last));
            }
        }
        let finished = self.finish(last, fua);
        for op in ops {
            if let (Ok(()), Err(error)) = (&op.result, &finished) {
                op.result = Err(error.clone());
            }
            if op.result.is_err() {
                self.count(&self.state.counters.errors, 1);
            }
        }
    }

    pub(super) fn zero_range(&self, offset: u64, len: u64, may_unmap: bool, fua: bool) -> Result<()> {
        let change = if may_unmap { Change::Discard } else { Change::Zeros };
        loop {
            let request = self.request(offset, len, change)?;
            let recorded = !request.records.iter().any(needs_anchor);
            let _writing =
                self.writing_after(|| self.materialize(offset, len, self.most(change), recorded))?;
            if self.branch().cdp.is_on() && request.records.iter().any(needs_anchor) {
                return self.finish(Some(self.sequence_long_discard(request)?), fua);
            }
            // The sequencing lock is released before anything is written.
            let sequenced = self.sequence(&mut None, request)?;
            match sequenced {
                // CDP was switched on just now: the request is prepared again.
                Sequenced::NeedsAnchor => {}
                sequenced => return self.finish(sequenced.last(), fua),
            }
        }
    }

    /// Sequences the rest of a write, from byte `from` of the volume on, inline.
    fn sequence_rest<'a>(
        &'a self,
        held: &mut Option<Sequencing<'a>>,
        op: &WriteOp,
        from: u64,
    ) -> Result<Sequenced> {
        // The sums of the rest are computed without the sequencing lock. Waiting for space also
        // needs the lock to be free.
        *held = None;
        let rest = op.data.slice((from - op.offset) as usize..);
        let request = self.request(from, rest.len() as u64, Change::Data(&rest))?;
        self.sequence(held, request)
    }

    /// Compares and writes atomically. The comparison counts if nothing else was sequenced in the
    /// range between it and the write.
    pub(super) fn compare_then_write(
        &self,
        offset: u64,
        expected: &[u8],
        new: &Bytes,
        fua: bool,
    ) -> Result<std::result::Result<(), u64>> {
        let len = expected.len() as u64;
        if new.len() as u64 != len || len > self.core.max_record_bytes() {
            let most = self.core.max_record_bytes();
            return Err(invalid(format!(
                "compare and write {len} bytes: the limit is {most} bytes, and both contents must have the same length"
            )));
        }
        let change = Change::Data(new);
        let mut found = vec![0; expected.len()];
        for _ in 0..MAX_COMPARISONS {
            let mut request = self.request(offset, len, change)?;
            // The first read changes nothing: a difference at any instant is a difference.
            self.read_or_repair(offset, &mut found)?;
            if let Some(at) = first_difference(&found, expected) {
                return Ok(Err(at));
            }
            let _writing = self.writing_after(|| self.materialize(offset, len, self.most(change), true))?;
            let sequencing = self.core.journal.sequence();
            let (watch, before) =
                (Watch::begin(&self.branch().staging, offset..offset + len), sequencing.last_lsn());
            drop(sequencing);
            self.core.journal.write_out(before)?;
            self.read_into(offset, &mut found, true)?;
            if let Some(at) = first_difference(&found, expected) {
                return Ok(Err(at));
            }
            request.watch = Some(watch);
            // The sequencing lock is released before anything is written.
            let sequenced = self.sequence(&mut None, request);
            match sequenced {
                Err(error) if error.kind() == ErrorKind::Busy => {}
                sequenced => return self.finish(sequenced?.last(), fua).map(Ok),
            }
        }
        Err(busy())
    }

    /// Sequences a discard that is not recorded as such, behind an anchor that keeps the old
    /// content. The request must have one record.
    fn sequence_long_discard(&self, mut request: Request) -> Result<Lsn> {
        let _alarm = self.core.fault.alarm(PROMISED);
        let branch = self.branch();
        if self.reserve(&mut None, &mut request)?.is_some() {
            // After the anchor, a chunk that had a slot of its own may need another.
            for record in &mut request.records {
                let more = self.most_slots(record.kind, record.offset, record.length) - record.slots;
                if let Err(error) = self.promise_more(more.into()) {
                    self.core.space.adjust_reserved(branch.kind(), -i64::from(record.slots));
                    return Err(error);
                }
                record.slots += more;
            }
        }
        let (offset, len) = (request.offset, request.len);
        let slots: u64 = request.records.iter().map(|r| r.slots as u64).sum();
        let mut record = request.records.pop();
        let sequenced = self.destager.discard_behind_anchor(&self.state, || {
            self.check_writable()?;
            self.check_range(offset, len)?;
            let mut record = record.take().ok_or_else(full)?;
            record.epoch = branch.epoch();
            Ok(record)
        });
        if sequenced.is_err() {
            self.core.space.adjust_reserved(branch.kind(), -(slots as i64));
        }
        sequenced
    }

    /// Materializes a chunk of which a part is about to be written: writes it to the journal with
    /// the content of the image or moment below. Then destage does not need the image, which may be
    /// gone by then. Writers of the volume wait until the record is staged.
    pub(super) fn materialize_chunk(&self, chunk: Chunk) -> Result<()> {
        let branch = self.branch();
        if self.falls_to_external(chunk)?.is_none() {
            return Ok(());
        }
        let _alone = branch.materialize_lock.write();
        let Some(external) = self.falls_to_external(chunk)? else { return Ok(()) };
        if branch.chunk_size() > self.core.max_record_bytes() {
            return self.fill_chunk(chunk, &external);
        }
        loop {
            let start = chunk.start(branch.chunk_log2);
            let size = self.size();
            let len = size.saturating_sub(start).min(1 << branch.chunk_log2);
            if len == 0 {
                return Ok(());
            }
            let mut data = vec![0; len as usize];
            external.read(&self.core, &mut data, start)?;
            let request = self.request(start, len, Change::Data(&Bytes::from(data)))?;
            // The sequencing lock is released before anything is written.
            let sequenced = self.sequence(&mut None, request);
            match sequenced {
                // The volume has become smaller meanwhile.
                Err(e) if e.kind() == ErrorKind::OutOfRange && size != self.size() => {}
                sequenced => return sequenced?.last().map_or(Ok(()), |lsn| self.core.journal.write_out(lsn)),
            }
        }
    }

    /// Waits until everything up to `last` is written, and durable if `fua` is set. `last` is
    /// `None` if nothing was sequenced: the request was refused as a whole, or has no bytes.
    fn finish(&self, last: Option<Lsn>, fua: bool) -> Result<()> {
        let Some(lsn) = last else { return Ok(()) };
        self.core.journal.write_out(lsn)?;
        if self.branch().cdp.is_on() {
            self.branch().cdp.wrote(lsn);
            self.destager.anchor_if_due(&self.state);
        }
        if fua { self.core.journal.sync_to(lsn) } else { Ok(()) }
    }

    /// Number of bytes that one record changes at most.
    fn most(&self, change: Change<'_>) -> u64 {
        match change {
            Change::Data(_) => self.core.max_record_bytes(),
            Change::Zeros => MAX_ZERO,
            Change::Discard => u64::MAX,
        }
    }

    /// Cuts a request into records. All sums over data are computed here, outside of any lock.
    fn request(&self, offset: u64, len: u64, change: Change<'_>) -> Result<Request> {
        let mut request = self.empty_request(offset, len)?;
        self.add_records(&mut request.records, offset, len, change);
        Ok(request)
    }

    /// Cuts a write into records, and writes the data of its references to their slots.
    fn data_request(&self, offset: u64, data: &Bytes, fua: bool) -> Result<Request> {
        let len = data.len() as u64;
        let mut request = self.empty_request(offset, len)?;
        self.branch().flush_pace.wrote(len);
        let Some(direct) = self.write_direct(offset, data, fua) else {
            self.add_records(&mut request.records, offset, len, Change::Data(data));
            return Ok(request);
        };
        let (start, end) = ((direct.bytes.start - offset) as usize, (direct.bytes.end - offset) as usize);
        let (head, middle, tail) = (data.slice(..start), data.slice(start..end), data.slice(end..));
        let behind = direct.bytes.end;
        self.add_records(&mut request.records, offset, head.len() as u64, Change::Data(&head));
        self.add_references(&mut request, direct, &middle);
        self.add_records(&mut request.records, behind, tail.len() as u64, Change::Data(&tail));
        Ok(request)
    }

    fn empty_request(&self, offset: u64, len: u64) -> Result<Request> {
        self.check_writable()?;
        self.check_range(offset, len)?;
        Ok(Request { offset, len, records: Vec::new(), taken: VecDeque::new(), watch: None })
    }

    /// Adds the inline records of a change.
    fn add_records(&self, records: &mut Vec<Record>, offset: u64, len: u64, change: Change<'_>) {
        let branch = self.branch();
        let max = self.most(change);
        records.reserve((len / max.min(1 << 62) + 1) as usize);
        let mut at = offset;
        let end = offset + len;
        while at < end {
            // A change that fits one record stays whole, so that a crash leaves all of it or
            // nothing.
            let next = if len <= max { end } else { ((at / max + 1) * max).min(end) };
            let part = next - at;
            let (kind, data) = match change {
                Change::Data(data) => {
                    let start = (at - offset) as usize;
                    (Kind::Write, data.slice(start..start + part as usize))
                }
                Change::Zeros => (Kind::Zero, Bytes::new()),
                Change::Discard => (Kind::Discard, Bytes::new()),
            };
            let slots = self.most_slots(kind, at, part);
            records.push(Record {
                kind,
                branch: branch.id,
                // The epoch is set when the record is sequenced.
                epoch: Epoch::NONE,
                offset: at,
                length: part,
                slots,
                crcs: PieceCrcs::of(at, &data),
                alone: kind == Kind::Discard && branch.discards_alone(at, part, branch.cdp.is_on()),
                data,
                reference: None,
                staging: Some(branch.staging.clone()),
            });
            at = next;
        }
    }

    /// Number of slots that a record can need at most: one for each chunk that may get content. A
    /// discard gives content only to chunks of which it leaves a part.
    fn most_slots(&self, kind: Kind, offset: u64, len: u64) -> u16 {
        if kind == Kind::Reference {
            return 0;
        }
        let chunks = self.branch().chunks(offset, len);
        if kind != Kind::Discard {
            return chunks.end.since(chunks.start) as u16;
        }
        let size = 1u64 << self.branch().chunk_log2;
        let (head, tail) = (!offset.is_multiple_of(size), !(offset + len).is_multiple_of(size));
        if chunks.end == chunks.start.next() { (head || tail) as u16 } else { head as u16 + tail as u16 }
    }

    /// Sequences a request's records under the lock in `held`, and takes the lock if necessary. The
    /// lock is released only to wait for room.
    fn sequence<'a>(&'a self, held: &mut Option<Sequencing<'a>>, mut request: Request) -> Result<Sequenced> {
        let _alarm = self.core.fault.alarm(PROMISED);
        let journal = &self.core.journal;
        let branch = self.branch();
        let mut pages = self.promise_pages(held, &request.records)?;
        let mut room = self.promise_room(held, &request.records)?;
        let exact_in = self.reserve(held, &mut request)?;
        let mut unsequenced: u64 = request.records.iter().map(|r| r.slots as u64).sum();
        let mut done = Sequenced::Nothing;
        let mut checked = false;
        let sequenced: Result<()> = request.records.into_iter().try_for_each(|mut record| {
            loop {
                let fresh = held.is_none();
                held.get_or_insert_with(|| journal.sequence());
                if let Some(stopped) = self.stopped(&record, request.taken.front(), done) {
                    done = stopped;
                    return Ok(());
                }
                if fresh || !checked {
                    // The size, and whether the volume accepts writes, count at this instant.
                    self.check_writable()?;
                    self.check_range(request.offset, request.len)?;
                    if request.watch.as_ref().is_some_and(Watch::is_disturbed) {
                        return Err(busy());
                    }
                    checked = true;
                }
                if exact_in.is_some_and(|epoch| epoch != branch.epoch()) {
                    unsequenced += self.reserve_most(held, &mut record)?;
                }
                let Some(sequencing) = held else { continue };
                let place = self.admission(&record, sequencing);
                if place == Admission::Ready {
                    let slots = record.slots as u64;
                    // Snapshots are sequenced under the same lock: the record is before or after
                    // each of them.
                    record.epoch = branch.epoch();
                    room.take(branch, &record, sequencing)?;
                    pages.take(growth(branch, record.kind, record.offset, record.length));
                    let chunks = branch.chunks(record.offset, record.length);
                    let (length, data_len) = (record.length, record.data.len() as u64);
                    let referred = if record.kind == Kind::Reference { record.length } else { 0 };
                    let lsn = sequencing.push(record)?;
                    if referred > 0 {
                        request.taken.pop_front().into_iter().for_each(TakenRuns::keep);
                        self.core.positions.referred.fetch_add(referred, Ordering::Relaxed);
                    }
                    if data_len > 0 {
                        self.core.charge(branch, space(data_len), referred, sequencing);
                    }
                    room.sequenced(lsn);
                    done = Sequenced::UpTo(lsn);
                    unsequenced -= slots;
                    branch.cdp.count_writes(chunks.end.since(chunks.start), length, referred);
                    return Ok(());
                }
                let sequenced = sequencing.last_lsn();
                *held = None;
                journal.write_out(sequenced)?;
                self.destager.make_room(place)?;
            }
        });
        if sequenced.is_err() || matches!(done, Sequenced::NeedsAnchor | Sequenced::Inline { .. }) {
            self.core.space.adjust_reserved(branch.kind(), -(unsequenced as i64));
        }
        sequenced.map(|()| done)
    }

    /// Returns the result of a request, if this record of it can't be sequenced as it is. `done` is
    /// the result of the records before. The caller holds the sequencing lock, because histories
    /// begin under it.
    fn stopped(&self, record: &Record, taken: Option<&TakenRuns>, done: Sequenced) -> Option<Sequenced> {
        match done {
            Sequenced::Inline { .. } => Some(done),
            _ if record.kind == Kind::Reference && !self.may_refer(taken) => {
                Some(Sequenced::Inline { from: record.offset, last: done.last() })
            }
            // This is the only record of its request: nothing is sequenced.
            _ if needs_anchor(record) && self.branch().cdp.is_on() => Some(Sequenced::NeedsAnchor),
            _ => None,
        }
    }

    /// Returns whether `record` can be sequenced now, or what has to be waited for.
    fn admission(&self, record: &Record, sequencing: &Sequencing<'_>) -> Admission {
        match sequencing.room(record.data.len() as u64, false) {
            Admission::Ready if self.core.staging_full(sequencing.last_lsn()) => Admission::Full,
            Admission::Ready if record.alone && self.core.too_many_turns(sequencing.turns()) => {
                Admission::Turns
            }
            place => place,
        }
    }

    /// Promises the room that a request may take in the catalog (I6), or refuses it as a whole.
    fn promise_pages<'a>(
        &'a self,
        held: &mut Option<Sequencing<'a>>,
        records: &[Record],
    ) -> Result<PagesPromise<'a>> {
        let (core, branch) = (&self.core, self.branch());
        let mut relief = Relief::default();
        loop {
            if let Some(pages) = core.promise_pages(branch, records) {
                return Ok(pages);
            }
            // Records that add no page can always be carried out, and so can records that free
            // some.
            if core.pages_are_there(branch, records)?
                && let Some(nothing) = core.catalog_room.promise(0)
            {
                return Ok(nothing);
            }
            *held = None;
            core.journal.write_out(core.journal.last().lsn)?;
            if !self.destager.relieve(&mut relief, None, 0)? {
                return Err(no_pages());
            }
        }
    }

    /// Promises the room that the records of a request may take in the volume's history (I6), or
    /// refuses the request as a whole.
    fn promise_room<'a>(
        &'a self,
        held: &mut Option<Sequencing<'a>>,
        records: &[Record],
    ) -> Result<LogReservation<'a>> {
        let journal = &self.core.journal;
        let mut relief = Relief::default();
        loop {
            self.core.check_usable()?;
            if let Some(room) = LogReservation::promise(&self.core, self.branch(), records) {
                return Ok(room);
            }
            *held = None;
            // Pending records mostly take less than was promised to them.
            journal.write_out(journal.last().lsn)?;
            if !self.destager.relieve(&mut relief, None, 0)? {
                if !self.core.positions.history_refused.swap(true, Ordering::Relaxed) {
                    tracing::warn!(volume = %self.name(), "a write was refused: no space is left for its history");
                }
                return Err(no_room());
            }
        }
    }

    /// Promises the slots that a request can need at most (I6), or refuses the request as a whole.
    ///
    /// One slot per record and chunk is promised, whatever the map has. When much of the pool is
    /// promised, the need is computed exactly, inside the sequencing lock, so that chunks that have
    /// a slot can always be overwritten. The exact need is valid in the epoch that is returned.
    fn reserve<'a>(
        &'a self,
        held: &mut Option<Sequencing<'a>>,
        request: &mut Request,
    ) -> Result<Option<Epoch>> {
        let kind = self.branch().kind();
        self.check_dedicated()?;
        let wanted: u64 = request.records.iter().map(|r| r.slots as u64).sum();
        if self.core.space.try_reserve_amply(kind, wanted) {
            return Ok(None);
        }
        if wanted > MAX_EXACT {
            *held = None;
            return self.promise_more(wanted).map(|()| None);
        }
        let journal = &self.core.journal;
        let mut quiet = false;
        let mut relief = Relief::default();
        loop {
            self.core.check_usable()?;
            let sequencing = held.get_or_insert_with(|| journal.sequence());
            // A record that is sequenced and not yet staged can't be seen. If that is a write, the
            // need only seems larger than it is. A record that may unmap chunks has to be seen.
            let must_see = if quiet { sequencing.last_lsn() } else { sequencing.last_unmapping() };
            if journal.written() < must_see {
                *held = None;
                journal.write_out(must_see)?;
                continue;
            }
            let exact = self.exact_need(request)?;
            let slots = exact.iter().map(|n| *n as u64).sum();
            if self.core.space.try_reserve(kind, slots) {
                for (record, slots) in request.records.iter_mut().zip(exact) {
                    record.slots = slots;
                }
                return Ok(Some(self.branch().epoch()));
            }
            if !std::mem::replace(&mut quiet, true) {
                continue;
            }
            *held = None;
            if !self.destager.relieve(&mut relief, Some(kind), self.asked_for(slots))? {
                return Err(full());
            }
        }
    }

    /// Promises a record all slots that it can need, and returns how many more these are. A
    /// snapshot came while the lock was released, so a chunk that had a slot of its own may need
    /// another. Releases the lock in `held` if space has to be brought back.
    fn reserve_most(&self, held: &mut Option<Sequencing<'_>>, record: &mut Record) -> Result<u64> {
        let more = self.most_slots(record.kind, record.offset, record.length) - record.slots;
        if !self.core.space.try_reserve(self.branch().kind(), more.into()) {
            *held = None;
            self.promise_more(more.into())?;
        }
        record.slots += more;
        Ok(more.into())
    }

    /// Promises `slots` slots, and brings space back if necessary. The sequencing lock must not be
    /// held.
    fn promise_more(&self, slots: u64) -> Result<()> {
        let kind = self.branch().kind();
        self.check_dedicated()?;
        let mut relief = Relief::default();
        while !self.core.space.try_reserve(kind, slots) {
            self.core.journal.write_out(self.core.journal.last().lsn)?;
            if !self.destager.relieve(&mut relief, Some(kind), self.asked_for(slots))? {
                return Err(full());
            }
        }
        Ok(())
    }

    /// Refuses new content while the dedicated physical volume of the volume takes no writes.
    fn check_dedicated(&self) -> Result<()> {
        let pv = self.branch().area.dedicated().and_then(|pv| self.core.pvs.held(pv));
        match pv.filter(|pv| pv.failure().is_some() && !self.internal) {
            Some(pv) => Err(no_space(format!(
                "reserve space for the write: {}, which the volume is on, takes no more writes",
                pv.path
            ))),
            None => Ok(()),
        }
    }

    /// Number of slots for which snapshots may be deleted. The pool's own writes delete none.
    fn asked_for(&self, slots: u64) -> u64 {
        if self.internal { 0 } else { slots }
    }

    /// Returns the slots that each record of a request needs, given the map and staging as they
    /// are. A chunk with a slot that no snapshot needs requires none, unless a staged discard may
    /// free that slot first. A chunk that was written to in this epoch and is staged has a promise
    /// already.
    fn exact_need(&self, request: &Request) -> Result<Vec<u16>> {
        let branch = self.branch();
        let epoch = branch.epoch();
        let mut counted = BTreeSet::new();
        let mut needs = Vec::with_capacity(request.records.len());
        for record in &request.records {
            let mut need = 0u16;
            if record.kind == Kind::Reference {
                needs.push(0);
                continue;
            }
            let content = record.kind != Kind::Discard;
            let chunks = branch.chunks(record.offset, record.length);
            // A discard, however long it is, leaves parts of chunks only at its ends.
            let step = if content { 1 } else { chunks.end.since(chunks.start).saturating_sub(1).max(1) };
            for chunk in (chunks.start.0..chunks.end.0).step_by(step as usize).map(Chunk) {
                let Range { start, end } = chunk.bytes(branch.chunk_log2);
                if !content && record.offset <= start && end <= record.offset + record.length {
                    continue;
                }
                if branch.staging.has_range(start, end) {
                    need += 1;
                    continue;
                }
                // The map is checked before staging, because that is quicker, and again after it,
                // because destage moves chunks from staging to the map.
                let known = !counted.insert(chunk)
                    || self.has_own_slot(chunk, epoch)?
                    || branch.staging.touches(start, end, epoch)
                    || self.has_own_slot(chunk, epoch)?;
                if known {
                    continue;
                }
                need += 1;
            }
            needs.push(need);
        }
        Ok(needs)
    }

    /// Returns whether the chunk has a slot that a write of `epoch` may overwrite.
    fn has_own_slot(&self, chunk: Chunk, epoch: Epoch) -> Result<bool> {
        let (number, index) = MapPage::locate(chunk);
        let page = self.core.map.load(&self.state.line, number)?;
        let own =
            |e: &Entry| e.slot != Slot::HOLE && self.branch().newest_snapshot_seeing(e.born, epoch).is_none();
        let Some(entry) = page.get(index).filter(own) else { return Ok(false) };
        Ok(self.core.pvs.get(entry.slot.pv())?.failure().is_none())
    }
}
