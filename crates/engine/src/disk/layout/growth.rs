//! How a layout grows when its members have more space than its content uses.
//!
//! New content needs free space on as many members as a span has places. Often only few members
//! have some: of two full disks and an empty one, only the empty one. Then places of existing
//! content move from full members to those with free space, until the rest can be laid out.
//!
//! The moves are the fewest that are possible. Let *D* be what the layout can gain, and *f* the
//! free space of a member. New content can use min(*f*, *D*) of it, and needs *width* · *D* in all.
//! Each unit that moves from a member with *f* < *D* to one with *f* > *D* makes up for one that is
//! missing. Such a pair exists as long as one is missing: if each member with *f* > *D* had a place
//! of all content, the members could not hold what they can. And less than *width* members have
//! *f* ≥ *D*, so that content of which the receiver has no place has two places elsewhere.
//!
//! Each step follows from the record alone. So growing goes on after a restart.

use super::create::capacity_with;
use super::member::CONTENT_START;
use super::record::{LayoutRecord, MemberRecord};
use super::spans::{CopiedSpan, CopyPlace, UNIT, spread_up_to};
use std::ops::Range;

/// The most bytes of a place that move at once. Writes go to both places meanwhile.
const STEP: u64 = 1 << 30;
/// Without moves, new content is laid out early if it is at least this part of what is missing.
/// The number of spans stays small so.
const WORTH: u64 = 8;

/// A place of a part of the content gets another position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlaceMove {
    /// Byte of the spans at which the part begins.
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// Position of the place among those of its span.
    pub(crate) index: usize,
    pub(crate) to: CopyPlace,
}

impl PlaceMove {
    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.start + self.len
    }

    /// Returns where a byte of a place of a span moves to, if it moves.
    pub(crate) fn target(&self, at: u64, index: usize) -> Option<CopyPlace> {
        let moves = index == self.index && self.range().contains(&at);
        moves.then(|| CopyPlace { member: self.to.member, offset: self.to.offset + (at - self.start) })
    }
}

/// What a layout needs next to grow.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum GrowthStep {
    /// New content is laid out in these spans.
    Extend(Vec<CopiedSpan>),
    /// A place moves.
    Move(PlaceMove),
}

/// What a layout gains when it has grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    /// Bytes that the layout has then: of a disk its content, of a physical volume its extents.
    pub size: u64,
    /// Bytes of places that have to move first.
    pub moves: u64,
}

/// The members of a layout, and what is free on them. Numbers are units, but for the free ranges.
pub(super) struct MemberRoom {
    /// Content of the layout.
    pub(super) held: u64,
    /// Content that the layout can gain.
    gain: u64,
    /// Units of each member that are in use.
    pub(super) used: Vec<u64>,
    /// Free units of each member.
    pub(super) free: Vec<u64>,
    /// Free bytes of each member's disk.
    ranges: Vec<Vec<Range<u64>>>,
}

/// Returns the bytes of a member that no place is in.
fn free_ranges(record: &LayoutRecord, member: usize) -> Vec<Range<u64>> {
    let places = record.spans.iter().flat_map(|span| span.places.iter().map(move |place| (place, span.len)));
    let mut used: Vec<Range<u64>> = places
        .filter(|(place, _)| place.member == member)
        .map(|(place, len)| place.offset..place.offset + len)
        .collect();
    used.sort_unstable_by_key(|range| range.start);
    let end = CONTENT_START + record.members[member].capacity / UNIT * UNIT;
    used.push(end..end);
    let mut free = Vec::new();
    let mut at = CONTENT_START;
    for range in used {
        if at < range.start {
            free.push(at..range.start);
        }
        at = at.max(range.end);
    }
    free
}

impl MemberRoom {
    /// Returns the room of a layout on its members, but for those that are out and empty.
    fn of(record: &LayoutRecord) -> MemberRoom {
        MemberRoom::on(record, |member| record.members[member].is_in || record.is_used(member))
    }

    /// Returns the room of a layout on some members. The others have none.
    pub(super) fn on(record: &LayoutRecord, counts: impl Fn(usize) -> bool) -> MemberRoom {
        let ranges: Vec<_> = (0..record.members.len())
            .map(|member| if counts(member) { free_ranges(record, member) } else { Vec::new() })
            .collect();
        let units =
            |ranges: &Vec<Range<u64>>| ranges.iter().map(|range| range.end - range.start).sum::<u64>() / UNIT;
        let free: Vec<u64> = ranges.iter().map(units).collect();
        let size = |(number, of): (usize, &MemberRecord)| if counts(number) { of.capacity / UNIT } else { 0 };
        let sizes: Vec<u64> = record.members.iter().enumerate().map(size).collect();
        let used = sizes.iter().zip(&free).map(|(size, free)| size - free).collect();
        let held = record.spans.last().map_or(0, CopiedSpan::end) / UNIT;
        let gain = capacity_with(&sizes, record.width, record.reserve).saturating_sub(held);
        MemberRoom { held, gain, used, free, ranges }
    }

    /// Returns the number of units that have to move before all can be gained.
    fn missing(&self, width: usize) -> u64 {
        let usable: u64 = self.free.iter().map(|free| (*free).min(self.gain)).sum();
        (self.gain * width as u64).saturating_sub(usable)
    }

    /// Lays out as much of what the layout can gain as the free space holds without a move.
    fn spread(&self, width: usize) -> Vec<CopiedSpan> {
        let sizes: Vec<u64> = self.free.iter().map(|units| units * UNIT).collect();
        let mut spans = Vec::new();
        for span in spread_up_to(&sizes, width, 0, self.gain * UNIT) {
            let mut done = 0;
            while done < span.len {
                let found = span.places.iter().filter_map(|place| self.find(place, done));
                let found: Vec<(CopyPlace, u64)> = found.collect();
                let rest = found.iter().map(|(_, rest)| *rest).min().unwrap_or(0).min(span.len - done);
                if rest == 0 {
                    return Vec::new();
                }
                let places = found.into_iter().map(|(place, _)| place).collect();
                spans.push(CopiedSpan { start: self.held * UNIT + span.start + done, len: rest, places });
                done += rest;
            }
        }
        spans
    }

    /// Finds the byte that is `done` bytes behind a byte of a member's free space. Returns it, and
    /// how much of its free range is left.
    fn find(&self, place: &CopyPlace, done: u64) -> Option<(CopyPlace, u64)> {
        let mut before = place.offset + done;
        for range in &self.ranges[place.member] {
            let len = range.end - range.start;
            if before < len {
                return Some((CopyPlace { offset: range.start + before, ..*place }, len - before));
            }
            before -= len;
        }
        None
    }

    /// Chooses the next move. The first member of each kind is taken, so that the next move is in
    /// front of the last one, and spans stay long.
    fn next_move(&self, record: &LayoutRecord) -> Option<PlaceMove> {
        let gets = |to: &usize| self.free[*to] > self.gain && self.used[*to] < self.held;
        (0..self.free.len()).filter(gets).find_map(|to| {
            let gives = |from: &usize| self.free[*from] < self.gain;
            (0..self.free.len()).filter(gives).find_map(|from| self.move_between(record, from, to))
        })
    }

    /// Chooses a move between two members: the end of the last content that is on the one and not
    /// on the other. So the beginning of the content, with the label, mostly stays.
    fn move_between(&self, record: &LayoutRecord, from: usize, to: usize) -> Option<PlaceMove> {
        let is_it = |span: &&CopiedSpan| place_on(span, from).is_some() && place_on(span, to).is_none();
        let span = record.spans.iter().rev().find(is_it)?;
        let units =
            (self.free[to] - self.gain).min(self.gain - self.free[from]).min(self.missing(record.width));
        self.move_end(span, place_on(span, from)?, to, units)
    }

    /// Moves the end of one of the places of a span to a member, at most so many units.
    pub(super) fn move_end(
        &self,
        span: &CopiedSpan,
        index: usize,
        to: usize,
        units: u64,
    ) -> Option<PlaceMove> {
        let range = self.ranges[to].last()?;
        let len = (units * UNIT).min(span.len).min(range.end - range.start).min(STEP);
        let to = CopyPlace { member: to, offset: range.end - len };
        Some(PlaceMove { start: span.end() - len, len, index, to })
    }
}

/// Returns which of the places of a span is on a member.
pub(super) fn place_on(span: &CopiedSpan, member: usize) -> Option<usize> {
    span.places.iter().position(|place| place.member == member)
}

/// Returns what a layout needs next to grow. `None`: it has all that its members can hold.
pub(crate) fn next_step(record: &LayoutRecord) -> Option<GrowthStep> {
    let room = MemberRoom::of(record);
    let new = if room.gain > 0 { room.spread(record.width) } else { Vec::new() };
    let gained = new.iter().map(|span| span.len).sum::<u64>() / UNIT;
    let missing = room.missing(record.width);
    let step = if gained > 0 && (missing == 0 || gained >= room.gain / WORTH) {
        Some(GrowthStep::Extend(new))
    } else if missing > 0 {
        room.next_move(record).map(GrowthStep::Move)
    } else {
        None
    };
    step.filter(|step| has_room_for(record, step))
}

/// Returns whether the record can still be stored after a step.
pub(super) fn has_room_for(record: &LayoutRecord, step: &GrowthStep) -> bool {
    let more = match step {
        GrowthStep::Extend(spans) => spans.len(),
        GrowthStep::Move(_) => 2,
    };
    record.has_room_for(more)
}

/// Returns what a layout gains when it has grown. `None`: nothing.
pub(crate) fn reckon(record: &LayoutRecord) -> Option<Growth> {
    next_step(record)?;
    let room = MemberRoom::of(record);
    let content = |units: u64| units * UNIT * record.columns();
    Some(Growth { size: content(room.held + room.gain), moves: room.missing(record.width) * UNIT })
}

/// Splits spans so that a part is whole spans.
pub(crate) fn split(spans: &[CopiedSpan], part: &Range<u64>) -> Vec<CopiedSpan> {
    let mut all = Vec::new();
    for span in spans {
        let inside = |at: &u64| span.start < *at && *at < span.end();
        let mut cuts = vec![span.start];
        cuts.extend([part.start, part.end].into_iter().filter(inside));
        cuts.push(span.end());
        all.extend(cuts.windows(2).map(|cut| {
            CopiedSpan {
                start: cut[0],
                len: cut[1] - cut[0],
                places: span
                    .places
                    .iter()
                    .map(|place| CopyPlace { offset: place.offset + (cut[0] - span.start), ..*place })
                    .collect(),
            }
        }));
    }
    all
}

/// Returns the spans after a move.
pub(crate) fn moved(spans: &[CopiedSpan], step: &PlaceMove) -> Vec<CopiedSpan> {
    let mut all = split(spans, &step.range());
    for span in all.iter_mut().filter(|span| step.range().contains(&span.start)) {
        if let Some(to) = step.target(span.start, step.index) {
            span.places[step.index] = to;
        }
    }
    joined(all)
}

/// Joins neighbours whose places are neighbours, too.
pub(crate) fn joined(spans: Vec<CopiedSpan>) -> Vec<CopiedSpan> {
    let mut all: Vec<CopiedSpan> = Vec::new();
    for span in spans {
        match all.last_mut() {
            Some(last) if follows(last, &span) => last.len += span.len,
            _ => all.push(span),
        }
    }
    all
}

fn follows(last: &CopiedSpan, next: &CopiedSpan) -> bool {
    let behind = |(a, b): (&CopyPlace, &CopyPlace)| a.member == b.member && a.offset + last.len == b.offset;
    last.end() == next.start && last.places.iter().zip(&next.places).all(behind)
}

#[cfg(test)]
mod tests;
