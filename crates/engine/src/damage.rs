//! The record of what can't be read any more (I5). A sector that destage needs and can't read is
//! damage of the sector's place, not of the pool. The batch is carried out, and the place answers
//! an error until something is written there, or its slot is freed.
//!
//! Rules:
//! - The code that writes to a physical volume reports the write ([`Damage::written`]). The range
//!   is then whole again, except for the parts that were filled with zeros because their source
//!   could not be read.
//! - The code that reads a slot first calls [`Damage::overlaps`]. In a pool without damage that
//!   costs one load.
//! - Changes are in memory at once, and durable with the next commit of any kind
//!   ([`Damage::store`]). A slot that a commit makes known is written, and reported, before the
//!   commit. A slot that is overwritten in place is whole when it is written, and the journal keeps
//!   what was written there until a later commit.
//! - A history whose records replaced content that could not be read has a gap there. No
//!   reconstruction goes through the gap.

use crate::catalog::{Catalog, DamageKey, DamageRecord, Txn};
use crate::error::Result;
use crate::ids::{BranchId, Chunk, Lsn};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sizes of the separate reads, in bytes, that find out which parts of a range can be read: first
/// whole blocks, then sectors.
pub(crate) const BLOCK: u64 = 4096;
pub(crate) const SECTOR: u64 = 512;

/// The damage of a pool: places that can't be read, and gaps of histories. All threads share it.
#[derive(Default)]
pub(crate) struct Damage {
    /// At least one place is damaged.
    any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The damaged places: (PV, first byte), and the byte behind the last one. Places don't touch
    /// each other.
    places: BTreeMap<(u32, u64), u64>,
    /// The gaps of histories: (branch, chunk, LSN of the first record), and the LSN of the last
    /// record.
    gaps: BTreeMap<(BranchId, Chunk, Lsn), Lsn>,
    /// The rows that differ from the catalog.
    changed: BTreeSet<DamageKey>,
}

impl State {
    fn set(&mut self, pv: u32, start: u64, end: Option<u64>) {
        match end {
            Some(end) => drop(self.places.insert((pv, start), end)),
            None => drop(self.places.remove(&(pv, start))),
        }
        self.changed.insert(DamageKey::Place(pv, start));
    }

    /// Returns the places that lie in a range, or touch it.
    fn touching(&self, pv: u32, range: &Range<u64>) -> Vec<Range<u64>> {
        let before =
            self.places.range((pv, 0)..(pv, range.start)).next_back().filter(|(_, end)| **end >= range.start);
        let inside = self.places.range((pv, range.start)..=(pv, range.end));
        before.into_iter().chain(inside).map(|((_, start), end)| *start..*end).collect()
    }

    fn add(&mut self, pv: u32, range: Range<u64>) {
        let mut whole = range.clone();
        for place in self.touching(pv, &range) {
            whole = whole.start.min(place.start)..whole.end.max(place.end);
            self.set(pv, place.start, None);
        }
        self.set(pv, whole.start, Some(whole.end));
    }

    fn cut(&mut self, pv: u32, range: Range<u64>) {
        for place in self.touching(pv, &range) {
            if place.start >= range.end || place.end <= range.start {
                continue;
            }
            self.set(pv, place.start, None);
            if place.start < range.start {
                self.set(pv, place.start, Some(range.start));
            }
            if place.end > range.end {
                self.set(pv, range.end, Some(place.end));
            }
        }
    }
}

impl Damage {
    /// Loads the damage that the catalog has recorded.
    pub(crate) fn load(catalog: &Catalog) -> Result<Damage> {
        catalog.damage().map(Damage::of)
    }

    /// Makes the damage of these rows of the catalog.
    pub(crate) fn of(rows: Vec<(DamageKey, DamageRecord)>) -> Damage {
        let mut state = State::default();
        for (key, record) in rows {
            match key {
                DamageKey::Place(pv, start) => drop(state.places.insert((pv, start), record.end)),
                DamageKey::History(branch, chunk, first) => {
                    state.gaps.insert((branch, chunk, first), Lsn(record.end));
                }
            }
        }
        Damage { any: AtomicBool::new(!state.places.is_empty()), state: Mutex::new(state) }
    }

    /// Returns whether any place is damaged. Damage of a place that a reader finds through the map
    /// was reported before the map pointed to the place.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Returns the damaged parts of a range of a physical volume.
    pub(crate) fn overlaps(&self, pv: u32, range: Range<u64>) -> Vec<Range<u64>> {
        if !self.any() {
            return Vec::new();
        }
        let places = self.state.lock().touching(pv, &range);
        let inside = places.into_iter().map(|p| p.start.max(range.start)..p.end.min(range.end));
        inside.filter(|part| part.start < part.end).collect()
    }

    /// Returns whether the catalog has all that is known of the damage in a range.
    pub(crate) fn is_stored(&self, pv: u32, range: &Range<u64>) -> bool {
        let state = self.state.lock();
        let places = state.touching(pv, range);
        places.iter().all(|place| !state.changed.contains(&DamageKey::Place(pv, place.start)))
    }

    /// Notes that a part of a physical volume is damaged, and why.
    pub(crate) fn add(&self, pv: u32, range: Range<u64>, why: &str) {
        let (from, to) = (range.start, range.end);
        tracing::error!(
            pv,
            from,
            to,
            why,
            "data is damaged; reads of it fail until it is repaired or written again"
        );
        self.state.lock().add(pv, range);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Notes that a range was written. The content that belongs in the parts `fillers` is not
    /// known.
    pub(crate) fn written(&self, pv: u32, range: Range<u64>, fillers: &[Range<u64>]) {
        if fillers.is_empty() && !self.any() {
            return;
        }
        let mut state = self.state.lock();
        state.cut(pv, range);
        fillers.iter().for_each(|filler| state.add(pv, filler.clone()));
        self.any.store(!state.places.is_empty(), Ordering::Relaxed);
    }

    /// Notes that records `first..=last` of a chunk replaced content that could not be read.
    pub(crate) fn add_gap(&self, branch: BranchId, chunk: Chunk, (first, last): (Lsn, Lsn)) {
        let mut state = self.state.lock();
        let known = state.gaps.entry((branch, chunk, first)).or_insert(last);
        *known = last.max(*known);
        state.changed.insert(DamageKey::History(branch, chunk, first));
    }

    /// Forgets the gaps that a batch has noted, because the batch is taken back. No commit has
    /// them. `lsns` are the first and the last LSN of the batch.
    pub(crate) fn retract_gaps(&self, (first, last): (Lsn, Lsn)) {
        let state = &mut *self.state.lock();
        let is_of_batch = |lsn: Lsn| first <= lsn && lsn <= last;
        let changed = &mut state.changed;
        state.gaps.retain(|key, _| {
            let goes = is_of_batch(key.2);
            if goes {
                changed.insert(DamageKey::History(key.0, key.1, key.2));
            }
            !goes
        });
    }

    /// Returns whether the records between two moments of a chunk (LSNs) contain a gap.
    pub(crate) fn is_gap_between(&self, branch: BranchId, chunk: Chunk, from: Lsn, to: Lsn) -> bool {
        let state = self.state.lock();
        let mut gaps = state.gaps.range((branch, chunk, Lsn::ZERO)..=(branch, chunk, to));
        gaps.any(|(_, last)| *last > from)
    }

    /// Forgets the gaps of a branch up to an LSN, because its moments up to there are forgotten.
    pub(crate) fn forget_gaps(&self, branch: BranchId, lsn: Lsn) {
        let state = &mut *self.state.lock();
        let of_branch = state.gaps.range((branch, Chunk::FIRST, Lsn::ZERO)..=(branch, Chunk::MAX, Lsn::MAX));
        let gone: Vec<_> = of_branch.filter(|(_, last)| **last <= lsn).map(|(key, _)| *key).collect();
        for key in gone {
            state.gaps.remove(&key);
            state.changed.insert(DamageKey::History(key.0, key.1, key.2));
        }
    }

    /// Keeps the parts of places that lie in slots in use, and the gaps of branches that exist.
    /// `slot` returns for a byte of a physical volume whether it lies in a slot in use, and the end
    /// of the range for which that answer holds.
    pub(crate) fn retain(
        &self,
        mut slot: impl FnMut(u32, u64) -> (bool, u64),
        branch: impl Fn(BranchId) -> bool,
    ) {
        let state = &mut *self.state.lock();
        for ((pv, start), end) in state.places.clone() {
            let mut from = start;
            while from < end {
                let (used, to) = slot(pv, from);
                // A place may go on in the next slot.
                let part = from..to.clamp(from + 1, end);
                from = part.end;
                if !used {
                    state.cut(pv, part);
                }
            }
        }
        let gone: Vec<_> = state.gaps.keys().filter(|key| !branch(key.0)).copied().collect();
        for key in gone {
            state.gaps.remove(&key);
            state.changed.insert(DamageKey::History(key.0, key.1, key.2));
        }
        self.any.store(!state.places.is_empty(), Ordering::Relaxed);
    }

    /// Returns the number of bytes and of ranges that are lost.
    pub(crate) fn totals(&self) -> (u64, u64) {
        if !self.any() {
            return (0, 0);
        }
        let state = self.state.lock();
        (state.places.iter().map(|((_, start), end)| end - start).sum(), state.places.len() as u64)
    }

    /// Returns whether the catalog lacks changes.
    pub(crate) fn is_changed(&self) -> bool {
        !self.state.lock().changed.is_empty()
    }

    /// Writes the changes into `txn`. If the transaction is not committed afterwards, the pool must
    /// not go on.
    pub(crate) fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        let rows: Vec<(DamageKey, Option<DamageRecord>)> = {
            let state = &mut *self.state.lock();
            let (places, gaps) = (&state.places, &state.gaps);
            let row = |key| match key {
                DamageKey::Place(pv, start) => places.get(&(pv, start)).copied(),
                DamageKey::History(branch, chunk, first) => {
                    gaps.get(&(branch, chunk, first)).map(|last| last.0)
                }
            };
            let changed = std::mem::take(&mut state.changed);
            changed.into_iter().map(|key| (key, row(key).map(|end| DamageRecord { end }))).collect()
        };
        rows.into_iter().try_for_each(|(key, record)| txn.put_damage(key, record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{Rng, SplitMix};

    /// Compares the places with a plain array of sectors.
    #[test]
    fn places_are_what_was_lost_and_not_written_since() {
        let rng = SplitMix::new(1);
        for _ in 0..200 {
            let (damage, mut plain) = (Damage::default(), [false; 64]);
            for _ in 0..30 {
                let start = rng.next() % 64;
                let end = start + 1 + rng.next() % (64 - start);
                let lost = rng.next() % 3 == 0;
                let all = start * 512..end * 512;
                match lost {
                    true => damage.add(3, all, "test"),
                    false => damage.written(3, all, &[]),
                }
                plain[start as usize..end as usize].fill(lost);
                damage.add(2, 0..512, "test");
                for (sector, lost) in (0..).zip(plain) {
                    let found = damage.overlaps(3, sector * 512..sector * 512 + 512);
                    assert_eq!(!found.is_empty(), lost);
                }
                let bytes = plain.iter().filter(|lost| **lost).count() as u64 * 512;
                let runs = plain.chunk_by(|a, b| a == b).filter(|run| run[0]).count() as u64;
                assert_eq!(damage.totals(), (bytes + 512, runs + 1), "neighbours are one place");
            }
        }
    }

    #[test]
    fn of_a_place_in_two_slots_the_part_in_the_used_one_stays() {
        let damage = Damage::default();
        damage.add(1, 3584..4096, "test");
        damage.add(1, 4096..4608, "test");
        damage.add(2, 0..512, "test");
        assert_eq!(damage.totals(), (1536, 2));
        damage.retain(|pv, at| (pv == 1 && at >= 4096, at / 4096 * 4096 + 4096), |_| true);
        assert_eq!(damage.overlaps(1, 0..8192), vec![4096..4608]);
        assert_eq!(damage.totals(), (512, 1));
    }

    #[test]
    fn a_gap_is_in_the_way_from_its_first_record_to_before_its_last() {
        let damage = Damage::default();
        damage.add_gap(BranchId(1), Chunk(7), (Lsn(10), Lsn(12)));
        let of = |branch, chunk, from, to| {
            damage.is_gap_between(BranchId(branch), Chunk(chunk), Lsn(from), Lsn(to))
        };
        let between = |from, to| of(1, 7, from, to);
        assert!(between(9, 10) && between(11, 12) && between(5, 20) && between(10, 11));
        assert!(!between(12, 20) && !between(3, 9));
        assert!(!of(1, 8, 5, 20) && !of(2, 7, 5, 20));
        damage.forget_gaps(BranchId(1), Lsn(11));
        assert!(between(5, 20));
        damage.forget_gaps(BranchId(1), Lsn(12));
        assert!(!between(5, 20));
    }
}
