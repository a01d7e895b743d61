//! What the pool can promise (I6).
//!
//! Slots of different sizes come from different extents, so a promise counts, per slot size, the free slots of open
//! extents first and whole free extents beyond them. A promise given is kept: whatever is reserved can be allocated.

use parking_lot::Mutex;

/// log2 of the largest slot (1 GiB), plus one.
const CLASSES: usize = 31;

/// See the module.
pub(crate) struct Space {
    extent_log2: u8,
    inner: Mutex<Inner>,
}

#[derive(Clone)]
struct Inner {
    /// Extents that nothing uses, on PVs that take data.
    free_extents: u64,
    /// Of them, as many as the backing file systems can really provide.
    backed_extents: u64,
    /// Extents in all, on PVs that take data.
    total_extents: u64,
    classes: [Class; CLASSES],
    /// Extents that reservations need beyond open ones; the sum over the classes.
    needed: u64,
}

#[derive(Clone, Copy, Default)]
struct Class {
    /// Free slots in extents of this class.
    free: u64,
    reserved: u64,
    needed: u64,
}

/// A change of what is free, as an allocator reports it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Change {
    pub(crate) free_extents: i64,
    pub(crate) free_slots: [i64; CLASSES],
}

/// Totals in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) capacity: u64,
    pub(crate) used: u64,
    pub(crate) available: u64,
    pub(crate) reserved: u64,
}

impl Change {
    /// The opposite change.
    pub(crate) fn negated(&self) -> Change {
        Change { free_extents: -self.free_extents, free_slots: self.free_slots.map(|n| -n) }
    }
}

impl Space {
    pub(crate) fn new(extent_size: u64) -> Self {
        Space {
            extent_log2: extent_size.trailing_zeros() as u8,
            inner: Mutex::new(Inner {
                free_extents: 0,
                backed_extents: u64::MAX,
                total_extents: 0,
                classes: [Class::default(); CLASSES],
                needed: 0,
            }),
        }
    }

    /// Promises `slots` slots of size `1 << slot_log2`, or says that it can't.
    pub(crate) fn try_reserve(&self, slot_log2: u8, slots: u64) -> bool {
        self.reserve_within(slot_log2, slots, |usable| usable)
    }

    /// The same for promises that may be much larger than the need: they may take half of what there is, so that those
    /// which count exactly find room until the larger ones are given back.
    pub(crate) fn try_reserve_amply(&self, slot_log2: u8, slots: u64) -> bool {
        self.reserve_within(slot_log2, slots, |usable| usable / 2)
    }

    fn reserve_within(&self, slot_log2: u8, slots: u64, limit: impl Fn(u64) -> u64) -> bool {
        if slots == 0 {
            return true;
        }
        let mut inner = self.inner.lock();
        inner.classes[slot_log2 as usize].reserved += slots;
        inner.recount(self.extent_log2, slot_log2);
        let fits = inner.needed <= limit(inner.usable());
        if !fits {
            inner.classes[slot_log2 as usize].reserved -= slots;
            inner.recount(self.extent_log2, slot_log2);
        }
        fits
    }

    /// Opens a free extent for slots of this size: because a promise needs it now, or, if not `needed`, only if no
    /// promise does.
    ///
    /// The change counts at once, not with the batch's other changes: what else the batch (or a writer meanwhile) asks
    /// for must see one free extent less.
    pub(crate) fn open_extent(&self, slot_log2: u8, needed: bool) -> bool {
        let mut inner = self.inner.lock();
        let mut next = inner.clone();
        let mut change = Change { free_extents: -1, ..Change::default() };
        change.free_slots[slot_log2 as usize] = 1 << self.extent_log2.saturating_sub(slot_log2);
        next.apply(&change);
        next.recount(self.extent_log2, slot_log2);
        let fits = needed || inner.usable() > 0 && next.needed <= next.usable();
        if fits {
            *inner = next;
        }
        fits
    }

    /// Takes a promise back, or makes one that was given before a restart.
    pub(crate) fn adjust_reserved(&self, slot_log2: u8, slots: i64) {
        let mut inner = self.inner.lock();
        let class = &mut inner.classes[slot_log2 as usize];
        debug_assert!(class.reserved as i64 + slots >= 0, "more released than reserved");
        class.reserved = class.reserved.saturating_add_signed(slots);
        inner.recount(self.extent_log2, slot_log2);
    }

    /// Applies allocations and the release of the promises that they kept, as one.
    pub(crate) fn settle(&self, change: &Change, released: &[(u8, u64)]) {
        let mut inner = self.inner.lock();
        inner.apply(change);
        for (slot_log2, slots) in released {
            let class = &mut inner.classes[*slot_log2 as usize];
            debug_assert!(class.reserved >= *slots, "more released than reserved");
            class.reserved = class.reserved.saturating_sub(*slots);
        }
        inner.recount_all(self.extent_log2);
    }

    /// Adds (or, negative, takes out) extents of a PV: `total` in all and `change` of what is free. Refuses a removal
    /// that would break promises, unless `force`.
    pub(crate) fn change_capacity(&self, total: i64, change: &Change, force: bool) -> bool {
        let mut inner = self.inner.lock();
        let mut next = inner.clone();
        next.apply(change);
        next.total_extents = next.total_extents.saturating_add_signed(total);
        next.recount_all(self.extent_log2);
        let fits = force || total >= 0 || next.needed <= next.usable();
        if fits {
            *inner = next;
        }
        fits
    }

    /// Tells how many free extents the backing file systems can provide.
    pub(crate) fn set_backed(&self, extents: u64) {
        self.inner.lock().backed_extents = extents;
    }

    pub(crate) fn totals(&self) -> Totals {
        let inner = self.inner.lock();
        let bytes = |extents: u64| extents << self.extent_log2;
        let free_slots: u64 = inner.classes.iter().enumerate().map(|(log2, c)| c.free << log2).sum();
        let reserved: u64 = inner.classes.iter().enumerate().map(|(log2, c)| c.reserved << log2).sum();
        let free = bytes(inner.usable()) + free_slots;
        Totals {
            capacity: bytes(inner.total_extents),
            used: bytes(inner.total_extents.saturating_sub(inner.free_extents)).saturating_sub(free_slots),
            available: free.saturating_sub(reserved),
            reserved,
        }
    }
}

impl Inner {
    fn usable(&self) -> u64 {
        self.free_extents.min(self.backed_extents)
    }

    fn apply(&mut self, change: &Change) {
        self.free_extents = self.free_extents.saturating_add_signed(change.free_extents);
        // What is opened takes backing; what comes back counts once it is measured.
        if self.backed_extents != u64::MAX {
            self.backed_extents = self.backed_extents.saturating_add_signed(change.free_extents.min(0));
        }
        for (class, slots) in self.classes.iter_mut().zip(change.free_slots) {
            class.free = class.free.saturating_add_signed(slots);
        }
    }

    fn recount(&mut self, extent_log2: u8, slot_log2: u8) {
        let class = &mut self.classes[slot_log2 as usize];
        let per_extent = 1u64 << extent_log2.saturating_sub(slot_log2);
        let needed = class.reserved.saturating_sub(class.free).div_ceil(per_extent);
        self.needed = self.needed - class.needed + needed;
        class.needed = needed;
    }

    fn recount_all(&mut self, extent_log2: u8) {
        for slot_log2 in 0..CLASSES as u8 {
            self.recount(extent_log2, slot_log2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(extents: i64) -> Change {
        Change { free_extents: extents, ..Change::default() }
    }

    #[test]
    fn classes_compete_for_whole_extents() {
        let space = Space::new(64 << 10);
        assert!(space.change_capacity(3, &free(3), false));
        assert!(space.try_reserve(12, 16), "one extent of 4 KiB slots");
        assert!(space.try_reserve(12, 1), "a second one, for one slot");
        assert!(space.try_reserve(14, 4), "the third one");
        assert!(!space.try_reserve(14, 1));
        assert!(space.try_reserve(12, 15), "but the second has room");
        assert!(!space.try_reserve(12, 1));
        space.adjust_reserved(14, -4);
        assert!(space.try_reserve(12, 1));
    }

    #[test]
    fn allocation_settles_promises() {
        let space = Space::new(64 << 10);
        assert!(space.change_capacity(2, &free(2), false));
        assert!(space.try_reserve(14, 8));
        let mut change = free(-1);
        change.free_slots[14] = 4 - 3;
        space.settle(&change, &[(14, 5)]);
        assert_eq!(space.totals().reserved, 3 << 14);
        assert!(space.try_reserve(14, 2) && !space.try_reserve(14, 1));
        assert_eq!(space.totals().used, 3 << 14);
        assert!(!space.change_capacity(-1, &free(-1), false), "promises are kept");
    }

    #[test]
    fn neatness_never_takes_what_is_promised() {
        let space = Space::new(64 << 10);
        assert!(space.change_capacity(3, &free(3), false));
        assert!(space.try_reserve(13, 9), "two extents");
        assert!(space.open_extent(12, false));
        assert!(!space.open_extent(12, false));
        assert!(space.open_extent(13, true), "what was promised itself");
        assert!(!space.try_reserve(14, 1));
        assert!(space.try_reserve(12, 16), "the extent that was opened");
    }

    #[test]
    fn backing_limits() {
        let space = Space::new(64 << 10);
        assert!(space.change_capacity(9, &free(9), false));
        space.set_backed(1);
        assert!(space.try_reserve(16, 1) && !space.try_reserve(16, 1));
    }
}
