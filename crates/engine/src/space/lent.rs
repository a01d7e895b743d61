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
    /// The runs for large writes. Writers take the last run first.
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
