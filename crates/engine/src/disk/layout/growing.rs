//! Growing, carried out: members are added, places move, and new content is laid out. What is to be
//! done next follows from the record ([`growth`](super::growth)).
//!
//! - **A move** begins in memory only. From then on writes go to both places of what moves. When
//!   all that is in use was copied and is durable, the record gets the new place. A crash before
//!   that leaves the old one.
//! - **What a move leaves** is used again when no read can still be there.
//! - **A member that fails** ends the move. It begins anew when all members have everything.
//! - **What a member had that is out** moves in the same way: it is copied from the others.

use super::growth::{Growth, GrowthStep, PlaceMove, joined, moved, next_step, reckon};
use super::member::write_header;
use super::members::{Members, Opened};
use super::places::{CurrentPlaces, Places};
use super::record::{LayoutRecord, MAX_MEMBERS};
use super::spans::{CopiedSpan, CopyPlace};
use super::takeover::next_takeover;
use super::{DiskLayout, NewMember};
use crate::disk::SyncPurpose;
use crate::error::is_shortage;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a layout that grows does now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Growing {
    /// It has all that its members can hold, or waits until they have everything.
    Not,
    /// It can go on when reads have left former places.
    Waits,
    /// It has more content.
    Extended,
    /// What is in use of a range of the content has to be copied. The number is that of rebuilds
    /// and moves that had begun.
    Moves(u64, Range<u64>),
}

impl Members {
    /// Adds members, whose headers are written. They have no content yet. The record says so
    /// durably when this returns.
    fn add(&self, new: Vec<NewMember>) -> io::Result<()> {
        let records = new.iter().map(NewMember::record).collect::<io::Result<Vec<_>>>()?;
        let record = &mut *self.record.lock();
        let before = record.clone();
        let first = record.members.len();
        if first + new.len() > MAX_MEMBERS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a layout has at most 16 members"));
        }
        record.members.extend(records);
        self.save_or_undo(record, before)?;
        for (slot, member) in self.all[first..].iter().zip(new) {
            slot.disk.store(Some(Arc::new(Opened(member.disk))));
        }
        Ok(())
    }

    /// Sets how large the disks of the members are now, in a record.
    fn measure(&self, record: &mut LayoutRecord) -> io::Result<()> {
        for (of, member) in record.members.iter_mut().zip(&self.all) {
            let Some(disk) = member.disk.load_full().filter(|_| of.incoming.is_none()) else { continue };
            of.capacity = of.capacity.max(NewMember::capacity_of(&*disk.0)?);
        }
        Ok(())
    }

    /// Returns whether the members take over what one had that is out.
    pub(crate) fn takes_over(&self) -> bool {
        self.takes_over.load(Ordering::Relaxed)
    }

    /// Returns whether the record is one that needs no step to grow.
    fn is_grown(&self) -> bool {
        self.record.lock().sequence == self.grown.load(Ordering::Relaxed)
    }

    /// Notes that what is copied now is no longer all that the new place of a move needs.
    pub(super) fn spoil_move(&self) {
        let moving = *self.moving.lock();
        if let Some((begun, _)) = moving {
            // One that is spoilt already stays so, and what is rebuilt meanwhile goes on.
            let _ = self.begun.compare_exchange(begun, begun + 1, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Writes what was copied to where its place moves. If the member has no space, it is an error,
    /// and the move begins anew later. After another error the member is out.
    pub(super) fn copy_to_target(
        &self,
        to: &CopyPlace,
        disk: &Arc<Opened>,
        at: u64,
        content: &[u8],
    ) -> io::Result<()> {
        let done = disk.0.allocate(at, content.len() as u64).and_then(|()| disk.0.write_at(content, at));
        done.or_else(|error| {
            self.spoil_move();
            if is_shortage(&error) { Err(error) } else { self.lose(to.member, disk, &error) }
        })
    }

    /// Notes that a client's write failed where a place moves to. The place stays where it is, and
    /// the write is good without it. If the cause is no shortage, the member is out, unless the
    /// others would not have everything.
    pub(super) fn target_failed(&self, number: usize, disk: &Arc<Opened>, error: &io::Error) {
        self.spoil_move();
        if !is_shortage(error) {
            let _ = self.lose(number, disk, error);
        }
    }

    /// Returns the disk of a member to which a place moves, since so many rebuilds and moves had
    /// begun. `None`: the move was spoilt, and nothing is written there any more.
    pub(super) fn target_disk(&self, number: usize, begun: u64) -> Option<Arc<Opened>> {
        (self.begun.load(Ordering::SeqCst) == begun).then(|| self.disk(number))?
    }

    /// Returns the move that is under way, unless it was spoilt.
    fn valid_move(&self) -> Option<(u64, PlaceMove)> {
        self.moving.lock().filter(|(begun, _)| self.begun.load(Ordering::SeqCst) == *begun)
    }

    /// Makes the disk that a place moves to durable.
    fn sync_target(&self, step: &PlaceMove) -> io::Result<()> {
        let Some(disk) = self.disk(step.to.member) else { return Ok(()) };
        disk.0.sync(SyncPurpose::Layout).or_else(|error| {
            self.spoil_move();
            // What a sync failed to write may be that of content, too.
            self.lose(step.to.member, &disk, &error)
        })
    }

    /// Notes where the content is from now on, durably, unless what `begun` counts has changed, or
    /// the members do not allow it. Returns whether it did. The caller excludes writes.
    fn set_spans(
        &self,
        begun: u64,
        is_allowed: impl FnOnce(&LayoutRecord) -> bool,
        change: impl FnOnce(&LayoutRecord) -> Vec<CopiedSpan>,
    ) -> io::Result<bool> {
        let record = &mut *self.record.lock();
        if self.begun.load(Ordering::SeqCst) != begun || !is_allowed(record) {
            return Ok(false);
        }
        let before = record.clone();
        record.spans = change(record);
        // The disk of a member that is out does not have what is laid out anew.
        record.members.iter_mut().for_each(|of| of.is_listed = false);
        record.stale = 0;
        self.save_or_undo(record, before)?;
        self.end_unused_list(record);
        Ok(true)
    }
}

impl<'d> DiskLayout<'d> {
    /// Adds disks as members. The layout grows by them, step by step.
    pub(crate) fn add_members(self, new: Vec<NewMember>, rate: Option<u64>) -> io::Result<()> {
        let members = self.members();
        if rate.is_some() {
            members.set_rate(rate);
        }
        let record = members.record();
        new.iter().try_for_each(|member| write_header(&*member.disk, &member.uuid, &record))?;
        self.alone(|| members.add(new))
    }

    /// Notes how large the disks of the members are now, durably.
    pub(crate) fn measure_members(self) -> io::Result<()> {
        let members = self.members();
        let record = &mut *members.record.lock();
        let before = record.clone();
        members.measure(record)?;
        if *record == before { Ok(()) } else { members.save_or_undo(record, before) }
    }

    /// Returns what the layout would gain by further members, and by the whole of its disks.
    pub(crate) fn growth_with(self, new: &[NewMember]) -> io::Result<Option<Growth>> {
        let mut record = self.members().record();
        self.members().measure(&mut record)?;
        for member in new {
            record.members.push(member.record()?);
        }
        Ok(reckon(&record))
    }

    /// Returns what the layout gains when it has grown. `None`: nothing.
    pub(crate) fn growth(self) -> Option<Growth> {
        reckon(&self.members().record())
    }

    /// Takes the next step of growing, but for the copying of a move. If a member is out, the
    /// others take over what it had, unless one of those that are out is not among `given_up`.
    pub(crate) fn grow(self, given_up: &[usize]) -> io::Result<Growing> {
        let members = self.members();
        if !members.writable || members.is_grown() {
            return Ok(Growing::Not);
        }
        let record = members.record();
        let is_complete = record.is_complete();
        let may = is_complete || may_take_over(&record, given_up);
        members.takes_over.store(may && !is_complete, Ordering::Relaxed);
        if !may {
            return Ok(Growing::Not);
        }
        if let Some((begun, step)) = members.valid_move() {
            return Ok(Growing::Moves(begun, content_of(&record, &step)));
        }
        self.drop_spoilt_move();
        let step = if is_complete { next_step(&record) } else { next_takeover(&record) };
        let Some(step) = step else {
            members.takes_over.store(false, Ordering::Relaxed);
            if is_complete {
                members.grown.store(record.sequence, Ordering::Relaxed);
            }
            return Ok(Growing::Not);
        };
        if self.places().are_former_used() {
            return Ok(Growing::Waits);
        }
        match step {
            GrowthStep::Extend(spans) => self.extend(spans),
            GrowthStep::Move(step) => Ok(self.begin_move(&record, step)),
        }
    }

    /// Forgets a move that was spoilt. When this returns, nothing is written to its new place any
    /// more, and the space there is given back.
    fn drop_spoilt_move(self) {
        let members = self.members();
        let Some((_, step)) = members.moving.lock().take() else { return };
        self.alone(|| self.places().replace(Places::of(&members.record())));
        if let Some(disk) = members.disk(step.to.member) {
            let _ = disk.0.punch(step.to.offset, step.len);
        }
    }

    /// Begins a move that follows from a record, unless the record has changed since.
    fn begin_move(self, record: &LayoutRecord, step: PlaceMove) -> Growing {
        let members = self.members();
        self.alone(|| {
            // A rebuild begins, and a member is put out, under this lock.
            let held = members.record.lock();
            if held.sequence != record.sequence {
                return Growing::Waits;
            }
            let begun = members.begun.fetch_add(1, Ordering::SeqCst) + 1;
            *members.moving.lock() = Some((begun, step));
            self.places().replace(Places::while_moving(record, begun, step));
            Growing::Moves(begun, content_of(record, &step))
        })
    }

    /// Ends a move whose content was copied since so many rebuilds and moves had begun. If it was
    /// spoilt, this does nothing.
    pub(crate) fn finish_move(self, begun: u64) -> io::Result<()> {
        let members = self.members();
        let Some((_, step)) = members.valid_move().filter(|(of, _)| *of == begun) else { return Ok(()) };
        members.sync_target(&step)?;
        self.alone(|| {
            if members.valid_move().is_none() {
                return Ok(());
            }
            if let DiskLayout::Raid5(raid) = self {
                raid.forget_moved(begun, step.range())?;
            }
            let is_allowed = |record: &LayoutRecord| {
                let to = &record.members[step.to.member];
                to.is_in && record.members.iter().all(|of| of.incoming.is_none())
            };
            if members.set_spans(begun, is_allowed, |record| moved(&record.spans, &step))? {
                *members.moving.lock() = None;
                self.places().replace(Places::of(&members.record()));
            }
            Ok(())
        })
    }

    /// Lays out new content. Nothing else has its places.
    fn extend(self, spans: Vec<CopiedSpan>) -> io::Result<Growing> {
        let members = self.members();
        let begun = members.begun.load(Ordering::SeqCst);
        let first = spans.first().map_or(0, |span| span.start);
        let is_zeroed = match self {
            DiskLayout::Mirror(_) => false,
            DiskLayout::Raid5(_) => self.zero(&spans)?,
        };
        self.alone(|| {
            if let DiskLayout::Raid5(raid) = self
                && !is_zeroed
            {
                raid.make_way_in_groups(first)?;
            }
            let all = |record: &LayoutRecord| joined([record.spans.clone(), spans].concat());
            if !members.set_spans(begun, LayoutRecord::is_complete, all)? {
                return Ok(Growing::Waits);
            }
            let record = members.record();
            self.places().replace(Places::of(&record));
            if let DiskLayout::Raid5(raid) = self {
                raid.extend_groups(&record, (first, is_zeroed))?;
            }
            Ok(Growing::Extended)
        })
    }

    /// Makes the places of new content zeros, unless that would take long. Returns whether they
    /// are, durably.
    fn zero(self, spans: &[CopiedSpan]) -> io::Result<bool> {
        let members = self.members();
        for span in spans {
            for place in &span.places {
                let Some(disk) = members.disk(place.member) else { return Ok(false) };
                match super::create::zero(&*disk.0, place.offset, span.len) {
                    Ok(true) => {}
                    Ok(false) => return Ok(false),
                    Err(error) if is_shortage(&error) => return Ok(false),
                    Err(error) => return members.lose(place.member, &disk, &error).map(|()| false),
                }
            }
        }
        members.sync_all(SyncPurpose::Layout)?;
        Ok(true)
    }

    fn places(self) -> &'d CurrentPlaces {
        match self {
            DiskLayout::Mirror(mirror) => &mirror.places,
            DiskLayout::Raid5(raid) => &raid.places,
        }
    }

    /// Does something while nothing is written.
    fn alone<T>(self, act: impl FnOnce() -> T) -> T {
        match self {
            DiskLayout::Mirror(mirror) => mirror.while_alone(act),
            DiskLayout::Raid5(raid) => raid.while_alone(act),
        }
    }
}

/// Returns whether the others may take over what members had that are out.
fn may_take_over(record: &LayoutRecord, given_up: &[usize]) -> bool {
    let mut all = record.members.iter().enumerate();
    all.all(|(number, of)| {
        let is_given_up = given_up.contains(&number) || !record.is_used(number);
        of.incoming.is_none() && (of.is_in || is_given_up)
    })
}

/// Returns the range of the content that a move is about.
fn content_of(record: &LayoutRecord, step: &PlaceMove) -> Range<u64> {
    step.start * record.columns()..(step.start + step.len) * record.columns()
}

#[cfg(test)]
mod tests;
