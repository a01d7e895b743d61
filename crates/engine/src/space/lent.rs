//! The slots that the destager has lent to writers, and that no writer has taken yet (decision 63).

use crate::ids::Slot;
use crate::journal::reference::{CHUNK_LOG2, SlotRun};
use parking_lot::Mutex;
use std::ops::RangeInclusive;
use std::sync::Arc;

const CLASSES: usize = (*CHUNK_LOG2.end() - *CHUNK_LOG2.start() + 1) as usize;

/// Lent slots by size. All threads share this table. No other lock is taken while one of its locks
/// is held.
#[derive(Default)]
pub(crate) struct Lent([Mutex<Class>; CLASSES]);

/// Lent slots of one size.
#[derive(Default)]
struct Class {
    /// The runs. Writers take the last run first.
    runs: Vec<SlotRun>,
    /// Number of slots in `runs`.
    slots: u64,
    /// Number of slots that writers wanted since the last look.
    wanted: u64,
    /// The destager could not lend as many slots as it planned after the last [`Lent::look`].
    exhausted: bool,
}

/// The use of the lent slots of one size, as the destager sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) slot_log2: u8,
    /// Number of slots that are lent and not taken.
    pub(crate) left: u64,
    /// Number of slots that writers wanted since the last look.
    pub(crate) wanted: u64,
}

/// Slots that a writer has taken. Unless a reference to them is sequenced ([`TakenRuns::keep`]),
/// they go back to the lent slots when this is dropped.
pub(crate) struct TakenRuns {
    from: Arc<Lent>,
    slot_log2: u8,
    runs: Vec<SlotRun>,
}

impl TakenRuns {
    pub(crate) fn runs(&self) -> &[SlotRun] {
        &self.runs
    }

    /// Removes the first `count` slots and returns them.
    pub(crate) fn split(&mut self, count: u32) -> TakenRuns {
        let runs = take_front(&mut self.runs, count, self.slot_log2);
        TakenRuns { from: self.from.clone(), slot_log2: self.slot_log2, runs }
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
            self.from.add(self.slot_log2, runs);
        }
    }
}

impl Lent {
    fn class(&self, slot_log2: u8) -> Option<&Mutex<Class>> {
        self.0.get(usize::from(slot_log2.checked_sub(*CHUNK_LOG2.start())?))
    }

    /// Returns whether fewer than `count` slots are lent and not taken, and the destager may have
    /// more to lend.
    pub(crate) fn wants_more(&self, slot_log2: u8, count: u64) -> bool {
        let wants = |class: &Class| class.slots < count && !class.exhausted;
        self.class(slot_log2).is_some_and(|class| wants(&class.lock()))
    }

    /// Notes that the destager has no more slots to lend now.
    pub(crate) fn note_exhausted(&self, slot_log2: u8) {
        if let Some(class) = self.class(slot_log2) {
            class.lock().exhausted = true;
        }
    }

    /// Takes `count` slots, from the last run on. Skips runs on physical volumes for which
    /// `refuses` is true. Returns `None`, and takes nothing, if there are not enough slots.
    pub(crate) fn take(
        self: &Arc<Self>,
        slot_log2: u8,
        count: u32,
        refuses: impl Fn(u32) -> bool,
    ) -> Option<TakenRuns> {
        let class = &mut *self.class(slot_log2)?.lock();
        class.wanted += u64::from(count);
        if class.slots < u64::from(count) {
            return None;
        }
        let (mut taken, mut missing) = (Vec::new(), count);
        let mut passed = Vec::new();
        while missing > 0
            && let Some(run) = class.runs.pop()
        {
            if refuses(run.first.pv()) {
                passed.push(run);
                continue;
            }
            let part = run.count.min(missing);
            missing -= part;
            taken.push(SlotRun { first: run.first, count: part });
            if part < run.count {
                class.runs.push(SlotRun { first: run.slot(part, slot_log2), count: run.count - part });
            }
        }
        class.runs.extend(passed);
        class.slots = count_of(&class.runs);
        let taken = TakenRuns { from: self.clone(), slot_log2, runs: taken };
        if missing > 0 {
            class.slots += count_of(&taken.runs);
            class.runs.extend(taken.runs.iter().rev());
            taken.keep();
            return None;
        }
        Some(taken)
    }

    /// Adds slots: those that the destager lends, and those that writers give back.
    pub(crate) fn add(&self, slot_log2: u8, runs: Vec<SlotRun>) {
        if let Some(class) = self.class(slot_log2) {
            let class = &mut *class.lock();
            class.slots += count_of(&runs);
            // The new runs go to the front, so that writers continue with the run that they have
            // begun.
            class.runs.splice(0..0, runs);
        }
    }

    /// Returns the demand for each size. Resets the number of wanted slots, and the note of
    /// [`Lent::note_exhausted`].
    pub(crate) fn look(&self) -> impl Iterator<Item = Demand> {
        let sizes = CHUNK_LOG2.zip(&self.0);
        sizes.map(|(slot_log2, class)| {
            let class = &mut *class.lock();
            class.exhausted = false;
            Demand { slot_log2, left: class.slots, wanted: std::mem::take(&mut class.wanted) }
        })
    }

    /// Takes back all lent slots for which `recalls` is true: (log2 of the slot size, number of the
    /// physical volume). Returns each slot with log2 of its size.
    pub(crate) fn recall(&self, recalls: impl Fn(u8, u32) -> bool) -> Vec<(Slot, u8)> {
        let mut slots = Vec::new();
        for (slot_log2, class) in CHUNK_LOG2.zip(&self.0) {
            let class = &mut *class.lock();
            let runs = std::mem::take(&mut class.runs);
            let (back, kept): (Vec<_>, Vec<_>) =
                runs.into_iter().partition(|run| recalls(slot_log2, run.first.pv()));
            class.slots = count_of(&kept);
            class.runs = kept;
            slots.extend(back.into_iter().flat_map(|run| run.slots(slot_log2)).map(|slot| (slot, slot_log2)));
        }
        slots
    }

    /// Returns the number of bytes that are lent and not taken.
    pub(crate) fn bytes(&self) -> u64 {
        let sizes: RangeInclusive<u8> = CHUNK_LOG2;
        sizes.zip(&self.0).map(|(slot_log2, class)| class.lock().slots << slot_log2).sum()
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
