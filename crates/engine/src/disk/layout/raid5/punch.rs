//! Gives backing space of rows that nothing uses back.
//!
//! A row is given back as a whole. Its blocks and its parity become zeros on all members, and zeros
//! are consistent. An entry of the parity log comes first, as before a write of whole rows: after a
//! crash in the middle, an opening makes the lines consistent, whichever member is missing.
//!
//! Ranges are collected until there are many, or until the next flush. So one entry and one sync
//! serve many of them, and neighbours have whole rows together. A write or a reservation of space
//! takes its range out again.

use super::groups::GROUP;
use super::log::{LoggedLine, ParityLog};
use super::rows::BLOCK;
use super::{Raid5, zeros};
use crate::codec::crc32c;
use crate::disk::SyncPurpose;
use crate::error::is_shortage;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ranges of the content that nothing uses and that are to be given back.
#[derive(Default)]
pub(super) struct Punches {
    ranges: Mutex<Ranges>,
    /// A member can't give space back. Nothing is tried until the next opening.
    are_useless: AtomicBool,
}

/// Ranges of bytes, by their start. None of them touches another one.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn add(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        // One that begins before and reaches the start, and all that begin inside or at the end.
        let reaching = self.0.range(..start).next_back().filter(|(_, to)| **to >= start);
        let touching: Vec<u64> =
            reaching.into_iter().chain(self.0.range(start..=end)).map(|(from, _)| *from).collect();
        for from in touching {
            let to = self.0.remove(&from).unwrap_or(from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.0.insert(start, end);
    }

    fn remove(&mut self, range: &Range<u64>) {
        let reaching = self.0.range(..range.start).next_back().filter(|(_, to)| **to > range.start);
        let inside = self.0.range(range.start..range.end);
        let touched: Vec<(u64, u64)> = reaching.into_iter().chain(inside).map(|(a, b)| (*a, *b)).collect();
        for (from, to) in touched {
            self.0.remove(&from);
            if from < range.start {
                self.0.insert(from, range.start);
            }
            if to > range.end {
                self.0.insert(range.end, to);
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|(from, to)| to - from).sum()
    }
}

impl Punches {
    /// Takes out what is about to be used. When this returns, nothing of it becomes zeros any more.
    pub(super) fn forget(&self, range: &Range<u64>) {
        let mut ranges = self.ranges.lock();
        if !ranges.0.is_empty() {
            ranges.remove(range);
        }
    }
}

impl Raid5 {
    /// Notes a range that nothing uses. Gives back what was noted, if that is much.
    pub(super) fn note_unused(&self, range: Range<u64>) -> io::Result<()> {
        if range.is_empty() || !self.members.writable || self.punches.are_useless.load(Ordering::Relaxed) {
            return Ok(());
        }
        let are_at_rest = self.are_all_at_rest();
        let is_much = {
            let mut ranges = self.punches.ranges.lock();
            ranges.add(range);
            // While a member is out there may be very many.
            are_at_rest && ranges.bytes() >= self.room as u64 * BLOCK as u64
        };
        if is_much { self.flush(SyncPurpose::Apply) } else { Ok(()) }
    }

    /// Gives back the whole rows of what was noted. The caller holds the log, and the lines of its
    /// youngest entry are durable.
    pub(super) fn give_back(&self, log: &mut ParityLog) -> io::Result<()> {
        // Held until the rows are zeros: space that is reserved meanwhile must stay.
        let mut ranges = self.punches.ranges.lock();
        if ranges.0.is_empty() || !self.are_all_at_rest() {
            return Ok(());
        }
        let most = (log.room / self.rows.parity()).max(1) as u64;
        for (start, end) in std::mem::take(&mut ranges.0) {
            let lines = self.rows.whole_rows(start..end);
            let mut from = lines.start;
            while from < lines.end && !self.punches.are_useless.load(Ordering::Relaxed) {
                let to = lines.end.min(from + most);
                self.make_zeros(log, from..to)?;
                from = to;
            }
        }
        Ok(())
    }

    /// Returns whether all members are in, and nothing is rebuilt or moves.
    fn are_all_at_rest(&self) -> bool {
        let record = self.members.record();
        let is_whole = record.members.iter().all(|of| of.is_in && of.incoming.is_none());
        is_whole && self.places.load().moving_since().is_none()
    }

    /// Makes lines zeros on all members, durably. There is at least one line.
    fn make_zeros(&self, log: &mut ParityLog, lines: Range<u64>) -> io::Result<()> {
        let columns = self.rows.parity();
        let sum = crc32c(&zeros()[..]);
        let logged = |line| LoggedLine {
            line,
            written: u16::MAX >> (16 - columns),
            sums: vec![sum; columns],
            parity_sum: sum,
            partial: None,
            patched: Vec::new(),
        };
        log.append(&lines.clone().map(logged).collect::<Vec<_>>())?;
        let are_zeros = {
            let _alone = self.lines.write();
            let done = self.zero_places(&lines);
            self.note_written(lines.clone());
            done?
        };
        // The next entry replaces this one, so these lines must be durable before it is written.
        self.members.sync_all(SyncPurpose::Parity)?;
        if are_zeros {
            return Ok(());
        }
        // A disk that could not make all zeros may have made some, so its lines may be
        // inconsistent. The entry counts until the list says that nothing is known of them.
        let groups = lines.start / GROUP..=(lines.end - 1) / GROUP;
        let is_other = |group: u64, known: bool| known && !groups.contains(&group);
        self.groups.change(&*self.members.dir, &self.members.name, is_other)?;
        log.end_entry()
    }

    /// Makes the places of lines zeros. A member that fails is out. False if they may have anything
    /// now. If one disk can't make zeros, this is not tried again.
    fn zero_places(&self, lines: &Range<u64>) -> io::Result<bool> {
        let places = self.places.load();
        let (mut from, end) = (lines.start * BLOCK as u64, lines.end * BLOCK as u64);
        while from < end {
            let span = &places.from(from)[0];
            let to = end.min(span.end());
            for place in &span.places {
                let Some(disk) = self.members.disk(place.member) else { continue };
                let at = place.offset + (from - span.start);
                match disk.0.zero(at, to - from, true) {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(error) if is_shortage(&error) => {
                        let layout = &self.members.name;
                        tracing::warn!(layout, %error, "unused space is not given back any more");
                    }
                    Err(error) => {
                        self.members.lose(place.member, &disk, &error)?;
                        continue;
                    }
                }
                self.punches.are_useless.store(true, Ordering::Relaxed);
                return Ok(false);
            }
            from = to;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined_and_cut() {
        let mut ranges = Ranges::default();
        for range in [10..20, 30..40, 20..25, 50..60, 28..30] {
            ranges.add(range);
        }
        assert_eq!(ranges.0, [(10, 25), (28, 40), (50, 60)].into());
        ranges.add(24..52);
        assert_eq!((ranges.0.clone(), ranges.bytes()), ([(10, 60)].into(), 50));
        ranges.remove(&(20..30));
        ranges.remove(&(0..11));
        ranges.remove(&(55..99));
        assert_eq!(ranges.0, [(11, 20), (30, 55)].into());
        ranges.remove(&(20..30));
        ranges.remove(&(15..45));
        assert_eq!(ranges.0, [(11, 15), (45, 55)].into());
        ranges.remove(&(0..100));
        assert!(ranges.0.is_empty());
    }
}
