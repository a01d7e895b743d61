//! The slots that the destager has lent to writers, and that no writer has taken yet (decision 63).

use crate::area::{Area, SlotKind};
use crate::ids::Slot;
use crate::journal::reference::{CHUNK_LOG2, SlotRun};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The shortest run for large writes, in bytes. If a slot is larger, the shortest run is one slot.
const LEAST_RUN: u64 = 64 << 10;

/// Returns the number of slots of [`LEAST_RUN`]. Only writes of fewer slots take shorter runs.
pub(crate) fn least_run(slot_log2: u8) -> u32 {
    ((LEAST_RUN >> slot_log2) as u32).max(1)
}

const CLASSES: usize = (*CHUNK_LOG2.end() - *CHUNK_LOG2.start() + 1) as usize;

/// Lent slots by area and size. All threads share this table. No other lock is taken while one of
/// its locks is held.
#[derive(Default)]
pub(crate) struct Lent(RwLock<BTreeMap<Area, Arc<[Mutex<Class>; CLASSES]>>>);

/// Lent slots of one size.
#[derive(Default)]
struct Class {
    /// The runs for all writes.
    long: Runs,
    /// Runs that were shorter than [`least_run`] when they were lent or given back. Small writes
    /// take these first.
    short: Runs,
    /// Number of slots that writers wanted since the last look.
    wanted: u64,
    /// The smallest number of slots that one write wanted since the last look; 0: none did.
    least: u32,
    /// The largest number.
    largest: u32,
    /// The destager could not lend as many slots as it planned after the last [`Lent::look`].
    exhausted: bool,
}

/// Runs of slots in the order in which writers take them: the last one first.
#[derive(Default)]
struct Runs {
    runs: Vec<SlotRun>,
    /// Number of slots in `runs`.
    slots: u64,
}

/// The use of the lent slots of one size, as the destager sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) kind: SlotKind,
    /// Number of slots that are lent and not taken, and that the largest of these writes may take.
    pub(crate) left: u64,
    /// Number of slots that writers wanted since the last look.
    pub(crate) wanted: u64,
    /// The smallest number of slots that one write wanted since the last look; 0: none did.
    pub(crate) least: u32,
}

/// Slots that a writer has taken. Unless a reference to them is sequenced ([`TakenRuns::keep`]),
/// they go back to the lent slots when this is dropped.
pub(crate) struct TakenRuns {
    from: Arc<Lent>,
    kind: SlotKind,
    runs: Vec<SlotRun>,
}

impl TakenRuns {
    pub(crate) fn runs(&self) -> &[SlotRun] {
        &self.runs
    }

    /// Removes the first `count` slots and returns them.
    pub(crate) fn split(&mut self, count: u32) -> TakenRuns {
        let runs = take_front(&mut self.runs, count, self.kind.log2);
        TakenRuns { from: self.from.clone(), kind: self.kind, runs }
    }

    /// Notes that a reference to the slots is sequenced. The slots then belong to that reference,
    /// and do not go back.
    pub(crate) fn keep(mut self) {
        self.runs.clear();
    }
}

impl Drop for TakenRuns {
    fn drop(&mut self) {
        let runs = std::mem::take(&mut self.runs);
        if !runs.is_empty() {
            self.from.add(self.kind, runs);
        }
    }
}

impl Lent {
    /// Returns what `look` tells of the slots of a kind. `None` if slots of this size are not lent.
    fn with<T>(&self, kind: SlotKind, look: impl FnOnce(&mut Class) -> T) -> Option<T> {
        let number = usize::from(kind.log2.checked_sub(*CHUNK_LOG2.start())?);
        let known = self.0.read().get(&kind.area).cloned();
        let of_area = known.unwrap_or_else(|| self.0.write().entry(kind.area).or_default().clone());
        of_area.get(number).map(|class| look(&mut class.lock()))
    }

    /// All kinds of slots that were ever wanted, in order.
    fn kinds(&self) -> Vec<SlotKind> {
        let areas: Vec<Area> = self.0.read().keys().copied().collect();
        areas.into_iter().flat_map(|area| CHUNK_LOG2.map(move |log2| area.slots(log2))).collect()
    }

    /// Returns whether there are too few slots for four more writes of `count` slots, and the
    /// destager may have more to lend.
    pub(crate) fn wants_more(&self, kind: SlotKind, count: u32) -> bool {
        let wants =
            |class: &mut Class| class.slots_for(kind.log2, count) < 4 * u64::from(count) && !class.exhausted;
        self.with(kind, wants).unwrap_or(false)
    }

    /// Notes that the destager has no more slots to lend now.
    pub(crate) fn note_exhausted(&self, kind: SlotKind) {
        self.with(kind, |class| class.exhausted = true);
    }

    /// Takes `count` slots, from the last run on. Skips runs on physical volumes for which
    /// `refuses` is true. Returns `None`, and takes nothing, if there are not enough slots.
    pub(crate) fn take(
        self: &Arc<Self>,
        kind: SlotKind,
        count: u32,
        refuses: impl Fn(u32) -> bool,
    ) -> Option<TakenRuns> {
        let runs = self.with(kind, |class| class.take(kind.log2, count, refuses))??;
        Some(TakenRuns { from: self.clone(), kind, runs })
    }

    /// Adds slots: those that the destager lends, and those that writers give back.
    pub(crate) fn add(&self, kind: SlotKind, runs: Vec<SlotRun>) {
        let (long, short): (Vec<_>, Vec<_>) =
            runs.into_iter().partition(|run| run.count >= least_run(kind.log2));
        self.with(kind, |class| {
            class.long.add(long);
            class.short.add(short);
        });
    }

    /// Returns the demand for each kind. Resets the number of wanted slots, and the note of
    /// [`Lent::note_exhausted`].
    pub(crate) fn look(&self) -> impl Iterator<Item = Demand> {
        self.kinds().into_iter().filter_map(|kind| {
            self.with(kind, |class| {
                class.exhausted = false;
                let (wanted, least) = (std::mem::take(&mut class.wanted), std::mem::take(&mut class.least));
                let largest = std::mem::take(&mut class.largest);
                let left = class.slots_for(kind.log2, largest);
                Demand { kind, left, wanted, least }
            })
        })
    }

    /// Takes back all lent slots for which `recalls` is true: (kind, number of the physical
    /// volume). Returns each slot with log2 of its size.
    pub(crate) fn recall(&self, recalls: impl Fn(SlotKind, u32) -> bool) -> Vec<(Slot, u8)> {
        let mut slots = Vec::new();
        for kind in self.kinds() {
            let back = self.with(kind, |class| {
                let of = |run: &SlotRun| recalls(kind, run.first.pv());
                [class.long.recall(of), class.short.recall(of)].concat()
            });
            let back = back.into_iter().flatten().flat_map(|run| run.slots(kind.log2));
            slots.extend(back.map(|slot| (slot, kind.log2)));
        }
        slots
    }

    /// Returns the number of bytes that are lent and not taken.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes_where(|_| true)
    }

    /// Returns the number of bytes of an area that are lent and not taken.
    pub(crate) fn bytes_of(&self, area: Area) -> u64 {
        self.bytes_where(|of| of == area)
    }

    fn bytes_where(&self, counts: impl Fn(Area) -> bool) -> u64 {
        let areas = self.0.read();
        let counted = areas.iter().filter(|(area, _)| counts(**area));
        let classes = counted.flat_map(|(_, of_area)| CHUNK_LOG2.zip(&**of_area));
        classes.map(|(slot_log2, class)| class.lock().slots() << slot_log2).sum()
    }
}

impl Class {
    /// Returns the number of slots of all runs.
    fn slots(&self) -> u64 {
        self.long.slots + self.short.slots
    }

    /// Returns the number of slots that a write of `count` slots may take.
    fn slots_for(&self, slot_log2: u8, count: u32) -> u64 {
        if count < least_run(slot_log2) { self.slots() } else { self.long.slots }
    }

    /// Takes `count` slots: see [`Lent::take`].
    fn take(&mut self, slot_log2: u8, count: u32, refuses: impl Fn(u32) -> bool) -> Option<Vec<SlotRun>> {
        self.wanted += u64::from(count);
        self.least = if self.least == 0 { count } else { self.least.min(count) };
        self.largest = self.largest.max(count);
        if self.slots_for(slot_log2, count) < u64::from(count) {
            return None;
        }
        let (mut taken, mut missing) = (Vec::new(), count);
        if count < least_run(slot_log2) {
            taken = self.short.take(slot_log2, &mut missing, &refuses);
        }
        let of_short = taken.len();
        taken.extend(self.long.take(slot_log2, &mut missing, &refuses));
        if missing > 0 {
            self.long.give_back(&taken[of_short..]);
            self.short.give_back(&taken[..of_short]);
            return None;
        }
        Some(taken)
    }
}

impl Runs {
    /// Adds runs at the front, so that writers continue with the run that they have begun.
    fn add(&mut self, runs: Vec<SlotRun>) {
        self.slots += count_of(&runs);
        self.runs.splice(0..0, runs);
    }

    /// Takes up to `missing` slots, and subtracts what it takes.
    fn take(&mut self, slot_log2: u8, missing: &mut u32, refuses: &impl Fn(u32) -> bool) -> Vec<SlotRun> {
        let (mut taken, mut passed) = (Vec::new(), Vec::new());
        while *missing > 0
            && let Some(run) = self.runs.pop()
        {
            if refuses(run.first.pv()) {
                passed.push(run);
                continue;
            }
            let part = run.count.min(*missing);
            *missing -= part;
            self.slots -= u64::from(part);
            taken.push(SlotRun { first: run.first, count: part });
            if part < run.count {
                self.runs.push(SlotRun { first: run.slot(part, slot_log2), count: run.count - part });
            }
        }
        self.runs.extend(passed.into_iter().rev());
        taken
    }

    /// Gives back what [`Runs::take`] has just returned.
    fn give_back(&mut self, taken: &[SlotRun]) {
        self.slots += count_of(taken);
        self.runs.extend(taken.iter().rev());
    }

    /// Removes the runs for which `recalls` is true, and returns them.
    fn recall(&mut self, recalls: impl Fn(&SlotRun) -> bool) -> Vec<SlotRun> {
        let (back, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.runs).into_iter().partition(recalls);
        self.slots = count_of(&kept);
        self.runs = kept;
        back
    }
}

fn count_of(runs: &[SlotRun]) -> u64 {
    runs.iter().map(|run| u64::from(run.count)).sum()
}

/// Removes the first `count` slots of `runs`, in order.
fn take_front(runs: &mut Vec<SlotRun>, count: u32, slot_log2: u8) -> Vec<SlotRun> {
    let mut missing = count;
    let whole = runs.iter().take_while(|run| {
        let fits = run.count <= missing;
        missing -= if fits { run.count } else { 0 };
        fits
    });
    let whole = whole.count();
    let mut front: Vec<SlotRun> = runs.drain(..whole).collect();
    if missing > 0
        && let Some(run) = runs.first_mut()
    {
        front.push(SlotRun { first: run.first, count: missing });
        *run = SlotRun { first: run.slot(missing, slot_log2), count: run.count - missing };
    }
    front
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slots of 4 KiB, of which a large write wants at least 16.
    const KIND: SlotKind = SlotKind { area: Area::Common, log2: 12 };

    fn run(number: u64, count: u32) -> SlotRun {
        SlotRun { first: Slot::new(0, (1 << 20) + number * 4096), count }
    }

    fn lent(runs: Vec<SlotRun>) -> Arc<Lent> {
        let lent = Arc::<Lent>::default();
        lent.add(KIND, runs);
        lent
    }

    fn take(lent: &Arc<Lent>, count: u32) -> Option<Vec<SlotRun>> {
        let taken = lent.take(KIND, count, |_| false)?;
        let runs = taken.runs().to_vec();
        taken.keep();
        Some(runs)
    }

    #[test]
    fn small_writes_take_short_runs_first_and_large_ones_never() {
        let lent = lent(vec![run(0, 32), run(100, 1), run(200, 2)]);
        assert_eq!(take(&lent, 33), None, "the short runs are not for it");
        assert_eq!(take(&lent, 2), Some(vec![run(200, 2)]));
        assert_eq!(take(&lent, 2), Some(vec![run(100, 1), run(0, 1)]));
        assert_eq!(take(&lent, 16), Some(vec![run(1, 16)]));
        assert_eq!(lent.bytes(), 15 * 4096);
        assert_eq!(take(&lent, 16), None);
        assert_eq!(take(&lent, 15), Some(vec![run(17, 15)]));
        assert_eq!(lent.bytes(), 0);
    }

    #[test]
    fn a_take_that_fails_changes_nothing() {
        let lent = lent(vec![run(0, 16), run(100, 1), run(200, 1)]);
        let refuses = |pv: u32| pv == 0;
        assert!(lent.take(KIND, 2, refuses).is_none());
        assert_eq!(lent.bytes(), 18 * 4096);
        // Given back by a writer that did not use them.
        drop(lent.take(KIND, 3, |_| false));
        assert_eq!(lent.bytes(), 18 * 4096);
        assert_eq!(lent.recall(|_, _| true).len(), 18);
        assert_eq!(lent.bytes(), 0);
    }

    /// What is left counts for the largest write, so that the destager does not wait for small
    /// writes to use up short runs.
    #[test]
    fn the_demand_is_that_of_all_writes() {
        let lent = lent(vec![run(0, 16), run(100, 1)]);
        take(&lent, 1);
        let demand = lent.look().find(|demand| demand.kind == KIND).unwrap();
        assert_eq!((demand.left, demand.wanted, demand.least), (16, 1, 1));
        lent.add(KIND, vec![run(300, 3)]);
        take(&lent, 1);
        take(&lent, 16);
        let demand = lent.look().find(|demand| demand.kind == KIND).unwrap();
        assert_eq!((demand.left, demand.wanted, demand.least), (0, 17, 1));
        assert_eq!(lent.look().find(|demand| demand.kind == KIND).map(|demand| demand.wanted), Some(0));
    }
}
