//! What the pool can promise (I6).
//!
//! Slots of different sizes come from different extents, so a promise counts, per slot size, the
//! free slots of open extents first and whole free extents beyond them. A promise given is kept:
//! whatever is reserved can be allocated.
//!
//! Promises of room for CDP logs are here too ([`crate::cdp::write::reserve`] says how much a
//! record needs): logs are files in the data directory, and mostly the physical volumes' files are
//! in the same file system, which must not be promised twice.

use crate::error::{Error, no_space};
use parking_lot::Mutex;
use std::collections::VecDeque;

/// log2 of the largest slot (1 GiB), plus one.
const CLASSES: usize = 31;

/// See the module.
pub(crate) struct Space {
    extent_log2: u8,
    inner: Mutex<Inner>,
}

#[derive(Clone)]
struct Inner {
    /// Extents that nothing uses, on PVs that take data,
    free_extents: u64,
    /// but for those that the file systems below have no room for.
    aside: u64,
    /// What the file systems below said last,
    backing: BackingRoom,
    /// and what was taken from them since: extents that were opened,
    opened: u64,
    /// and bytes of logs.
    logged: u64,
    /// Bytes promised to logs.
    log: u64,
    /// Of them, what records in the journal may need: (last LSN of some, bytes), by LSN.
    unlogged: VecDeque<(u64, u64)>,
    /// Up to here records are in their logs.
    logged_lsn: u64,
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
pub(crate) struct SpaceChange {
    pub(crate) free_extents: i64,
    /// Extents that nothing uses, and that can't be had.
    pub(crate) aside: i64,
    pub(crate) free_slots: [i64; CLASSES],
}

/// What the file systems below the pool can provide, margins left out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BackingRoom {
    /// Free extents that have their space already.
    pub(crate) solid: u64,
    /// Other free extents,
    pub(crate) sparse: u64,
    /// and the bytes that there are for them.
    pub(crate) sparse_bytes: u64,
    /// Bytes for logs.
    pub(crate) log_bytes: u64,
    /// Some of the sparse extents take their space from where logs do.
    pub(crate) shared: bool,
}

impl BackingRoom {
    /// Everything is there.
    pub(crate) const ALL: BackingRoom =
        BackingRoom { solid: u64::MAX, sparse: 0, sparse_bytes: 0, log_bytes: u64::MAX, shared: false };
    /// Nothing is.
    pub(crate) const NONE: BackingRoom =
        BackingRoom { solid: 0, sparse: 0, sparse_bytes: 0, log_bytes: 0, shared: false };
}

/// Records whose LSNs agree but for so many of their low bits share an entry of
/// [`Inner::unlogged`].
const SHARED_BITS: u32 = 4;

/// Totals in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) capacity: u64,
    pub(crate) used: u64,
    pub(crate) available: u64,
    /// As `available`, if the file systems below the pool had room for everything.
    pub(crate) own: u64,
    pub(crate) reserved: u64,
}

impl SpaceChange {
    /// What becomes free, in bytes.
    pub(crate) fn bytes(&self, extent_size: u64) -> u64 {
        let slots: i64 = self.free_slots.iter().enumerate().map(|(log2, n)| n << log2).sum();
        (self.free_extents * extent_size as i64 + slots).max(0) as u64
    }

    /// The opposite change.
    pub(crate) fn negated(&self) -> SpaceChange {
        SpaceChange {
            free_extents: -self.free_extents,
            aside: -self.aside,
            free_slots: self.free_slots.map(|n| -n),
        }
    }
}

impl Space {
    pub(crate) fn new(extent_size: u64) -> Self {
        Space {
            extent_log2: extent_size.trailing_zeros() as u8,
            inner: Mutex::new(Inner {
                free_extents: 0,
                aside: 0,
                backing: BackingRoom::ALL,
                opened: 0,
                logged: 0,
                log: 0,
                unlogged: VecDeque::new(),
                logged_lsn: 0,
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

    /// The same for promises that may be much larger than the need: they may take half of what
    /// there is, so that those which count exactly find room until the larger ones are given back.
    pub(crate) fn try_reserve_amply(&self, slot_log2: u8, slots: u64) -> bool {
        self.reserve_within(slot_log2, slots, |usable| usable / 2)
    }

    /// Could so many slots be promised, if the file systems below the pool had room for everything?
    pub(crate) fn has_own_room(&self, slot_log2: u8, slots: u64) -> bool {
        let mut next = self.inner.lock().clone();
        next.classes[slot_log2 as usize].reserved += slots;
        next.recount(self.extent_log2, slot_log2);
        next.needed <= next.free_extents + next.aside
    }

    fn reserve_within(&self, slot_log2: u8, slots: u64, limit: impl Fn(u64) -> u64) -> bool {
        if slots == 0 {
            return true;
        }
        let mut inner = self.inner.lock();
        inner.classes[slot_log2 as usize].reserved += slots;
        inner.recount(self.extent_log2, slot_log2);
        let fits = inner.needed <= limit(inner.usable(self.extent_log2)) && inner.keeps_log(self.extent_log2);
        if !fits {
            inner.classes[slot_log2 as usize].reserved -= slots;
            inner.recount(self.extent_log2, slot_log2);
        }
        fits
    }

    /// Opens a free extent for slots of this size: because a promise needs it now, or, if not
    /// `needed`, only if no promise does.
    ///
    /// The change counts at once, not with the batch's other changes: what else the batch (or a
    /// writer meanwhile) asks for must see one free extent less.
    pub(crate) fn open_extent(&self, slot_log2: u8, needed: bool) -> bool {
        let mut inner = self.inner.lock();
        let mut next = inner.clone();
        let mut change = SpaceChange { free_extents: -1, ..SpaceChange::default() };
        change.free_slots[slot_log2 as usize] = 1 << self.extent_log2.saturating_sub(slot_log2);
        next.apply(&change);
        next.recount(self.extent_log2, slot_log2);
        let fits = needed || inner.usable(self.extent_log2) > 0 && next.fits(self.extent_log2);
        if fits {
            *inner = next;
        }
        fits
    }

    /// The extent that was just opened could not be had, and is free again.
    pub(crate) fn close_extent(&self, slot_log2: u8) {
        let mut inner = self.inner.lock();
        let mut change = SpaceChange { free_extents: 1, ..SpaceChange::default() };
        change.free_slots[slot_log2 as usize] = -(1 << self.extent_log2.saturating_sub(slot_log2));
        inner.apply(&change);
        inner.opened = inner.opened.saturating_sub(1);
        inner.recount(self.extent_log2, slot_log2);
    }

    /// The file system below had no room for the extent that was just opened: this many, with that
    /// one, can't be had.
    pub(crate) fn set_aside(&self, slot_log2: u8, extents: u64) {
        let mut inner = self.inner.lock();
        let slots = 1 << self.extent_log2.saturating_sub(slot_log2);
        let class = &mut inner.classes[slot_log2 as usize];
        class.free = class.free.saturating_sub(slots);
        inner.opened = inner.opened.saturating_sub(1);
        inner.free_extents = inner.free_extents.saturating_sub(extents - 1);
        inner.aside += extents;
        inner.recount(self.extent_log2, slot_log2);
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
    pub(crate) fn settle(&self, change: &SpaceChange, released: &[(u8, u64)]) {
        let mut inner = self.inner.lock();
        inner.apply(change);
        for (slot_log2, slots) in released {
            let class = &mut inner.classes[*slot_log2 as usize];
            debug_assert!(class.reserved >= *slots, "more released than reserved");
            class.reserved = class.reserved.saturating_sub(*slots);
        }
        inner.recount_all(self.extent_log2);
    }

    /// Adds (or, negative, takes out) extents of a PV: `total` in all and `change` of what is free.
    /// Refuses a removal that would break promises, unless `force`.
    pub(crate) fn change_capacity(&self, total: i64, change: &SpaceChange, force: bool) -> bool {
        let mut inner = self.inner.lock();
        let mut next = inner.clone();
        next.apply(change);
        next.total_extents = next.total_extents.saturating_add_signed(total);
        next.recount_all(self.extent_log2);
        let fits = force || total >= 0 || next.fits(self.extent_log2);
        if fits {
            *inner = next;
        }
        fits
    }

    /// Tells what the file systems below can provide now, and how many extents that had been set
    /// aside can be had again.
    pub(crate) fn set_backing(&self, backing: BackingRoom, taken_back: u64) {
        let mut inner = self.inner.lock();
        inner.free_extents += taken_back;
        inner.aside = inner.aside.saturating_sub(taken_back);
        (inner.backing, inner.opened, inner.logged) = (backing, 0, 0);
    }

    /// Promises so many bytes to logs, or says that it can't.
    pub(crate) fn try_reserve_log(&self, bytes: u64) -> bool {
        let mut inner = self.inner.lock();
        inner.log = inner.log.saturating_add(bytes);
        let fits = bytes == 0 || inner.log_fits(self.extent_log2);
        if !fits {
            inner.log -= bytes;
        }
        fits
    }

    /// Of bytes that were promised, `kept` are what records up to `lsn` may need, and `rest` is
    /// taken back.
    pub(crate) fn assign_log(&self, lsn: u64, kept: u64, rest: u64) {
        let mut inner = self.inner.lock();
        inner.log = inner.log.saturating_sub(rest);
        if kept == 0 {
            return;
        }
        if lsn <= inner.logged_lsn {
            return inner.log_written(kept);
        }
        match inner.unlogged.back_mut() {
            Some(last) if last.0 >> SHARED_BITS == lsn >> SHARED_BITS => {
                *last = (lsn.max(last.0), last.1 + kept);
            }
            _ => inner.unlogged.push_back((lsn, kept)),
        }
    }

    /// Ends the promises of records that are in their logs now, up to `lsn`: what they have taken
    /// counts as taken until the file system is asked again. False when there were none.
    pub(crate) fn settle_log(&self, lsn: u64) -> bool {
        let mut inner = self.inner.lock();
        inner.logged_lsn = inner.logged_lsn.max(lsn);
        let mut written = 0;
        while let Some((_, bytes)) = inner.unlogged.pop_front_if(|(last, _)| *last <= lsn) {
            written += bytes;
        }
        inner.log_written(written);
        written > 0
    }

    /// Promises more bytes to logs without asking whether they are there; or, negative, ends
    /// promises: what they were for is written.
    pub(crate) fn adjust_log(&self, bytes: i64) {
        let mut inner = self.inner.lock();
        match bytes {
            0.. => inner.log = inner.log.saturating_add(bytes.unsigned_abs()),
            _ => inner.log_written(bytes.unsigned_abs()),
        }
    }

    /// Bytes promised to logs.
    pub(crate) fn log(&self) -> u64 {
        self.inner.lock().log
    }

    /// Bytes that logs may take, or have taken, since the file systems below were asked.
    pub(crate) fn logs(&self) -> u64 {
        let inner = self.inner.lock();
        inner.log.saturating_add(inner.logged)
    }

    /// Bytes that may still be promised to logs.
    pub(crate) fn log_room(&self) -> u64 {
        let inner = self.inner.lock();
        inner.backing.log_bytes.saturating_sub(inner.log.saturating_add(inner.logged))
    }

    pub(crate) fn totals(&self) -> Totals {
        let inner = self.inner.lock();
        let bytes = |extents: u64| extents << self.extent_log2;
        let free_slots: u64 = inner.classes.iter().enumerate().map(|(log2, c)| c.free << log2).sum();
        let reserved: u64 = inner.classes.iter().enumerate().map(|(log2, c)| c.reserved << log2).sum();
        let unused = inner.free_extents + inner.aside;
        let free = bytes(inner.usable(self.extent_log2)) + free_slots;
        Totals {
            capacity: bytes(inner.total_extents),
            used: bytes(inner.total_extents.saturating_sub(unused)).saturating_sub(free_slots),
            available: free.saturating_sub(reserved),
            own: (bytes(unused) + free_slots).saturating_sub(reserved),
            reserved,
        }
    }
}

impl Inner {
    /// Free extents that can really be had.
    fn usable(&self, extent_log2: u8) -> u64 {
        let BackingRoom { solid, sparse, sparse_bytes, shared, .. } = self.backing;
        let logs = if shared { self.log.saturating_add(self.logged) } else { 0 };
        let sparse = sparse.min(sparse_bytes.saturating_sub(logs) >> extent_log2);
        self.free_extents.min(solid.saturating_add(sparse).saturating_sub(self.opened))
    }

    /// Can everything that is promised to logs be had? Extents that were opened, or will have to
    /// be, may all lie in the same file system.
    fn log_fits(&self, extent_log2: u8) -> bool {
        let extents = if self.backing.shared { (self.opened + self.needed) << extent_log2 } else { 0 };
        self.log.saturating_add(self.logged).saturating_add(extents) <= self.backing.log_bytes
    }

    /// Do extents leave logs what was promised to them?
    fn keeps_log(&self, extent_log2: u8) -> bool {
        !self.backing.shared || self.log == 0 || self.log_fits(extent_log2)
    }

    fn fits(&self, extent_log2: u8) -> bool {
        self.needed <= self.usable(extent_log2) && self.keeps_log(extent_log2)
    }

    fn log_written(&mut self, bytes: u64) {
        debug_assert!(self.log >= bytes, "more released than reserved");
        self.log = self.log.saturating_sub(bytes);
        self.logged += bytes;
    }

    fn apply(&mut self, change: &SpaceChange) {
        self.free_extents = self.free_extents.saturating_add_signed(change.free_extents);
        self.aside = self.aside.saturating_add_signed(change.aside);
        // What is opened takes backing; what comes back counts once it is measured.
        self.opened += change.free_extents.min(0).unsigned_abs();
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

/// What a write is told when nothing can be promised.
pub(crate) fn full() -> Error {
    no_space("promise space for the write: the pool is full; free some or add a physical volume")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(extents: i64) -> SpaceChange {
        SpaceChange { free_extents: extents, ..SpaceChange::default() }
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
        space
            .set_backing(BackingRoom { solid: 0, sparse: 9, sparse_bytes: 100 << 10, ..BackingRoom::ALL }, 0);
        assert!(space.try_reserve(16, 1) && !space.try_reserve(16, 1));
    }

    const KIB: u64 = 1 << 10;

    /// Nine free extents of 64 KiB.
    fn backed_by(backing: BackingRoom) -> Space {
        let space = Space::new(64 << 10);
        assert!(space.change_capacity(9, &free(9), false));
        space.set_backing(backing, 0);
        space
    }

    #[test]
    fn logs_and_extents_of_one_file_system_are_not_promised_twice() {
        let bytes = 300 * KIB;
        let shared = BackingRoom { solid: 0, sparse: 9, sparse_bytes: bytes, log_bytes: bytes, shared: true };
        let space = backed_by(shared);
        assert!(space.try_reserve(16, 2), "128 KiB");
        assert!(space.try_reserve_log(100 * KIB) && !space.try_reserve_log(73 * KIB));
        assert!(space.try_reserve(16, 1) && !space.try_reserve(16, 1));
        assert_eq!(space.totals().available, 0);
        assert!(space.try_reserve_log(8 * KIB) && !space.try_reserve_log(1));

        let space = backed_by(BackingRoom { shared: false, ..shared });
        assert!(space.try_reserve_log(300 * KIB) && !space.try_reserve_log(1));
        assert!(space.try_reserve(16, 4) && !space.try_reserve(16, 1), "elsewhere");

        // A device takes extents when the file system is full, but nobody knows where they will be
        // placed.
        let space = backed_by(BackingRoom { solid: 2, ..shared });
        assert!(space.try_reserve(16, 6) && !space.try_reserve(16, 1) && !space.try_reserve_log(1));
        space.adjust_reserved(16, -6);
        assert!(space.try_reserve_log(300 * KIB) && !space.try_reserve(16, 1));
        assert_eq!(space.totals().available, 128 * KIB);
    }

    #[test]
    fn what_logs_have_taken_is_gone_until_it_is_measured() {
        let backing = BackingRoom { solid: 9, log_bytes: 100 * KIB, ..BackingRoom::ALL };
        let space = backed_by(backing);
        assert!(space.try_reserve_log(60 * KIB));
        space.assign_log(70, 40 * KIB, 20 * KIB);
        assert!(space.try_reserve_log(50 * KIB));
        space.assign_log(300, 50 * KIB, 0);
        assert!(!space.settle_log(69) && space.log() == 90 * KIB);
        assert!(space.settle_log(70) && space.log() == 50 * KIB);
        assert!(space.try_reserve_log(10 * KIB) && !space.try_reserve_log(1));
        space.assign_log(0, 0, 10 * KIB);
        space.set_backing(BackingRoom { log_bytes: 80 * KIB, ..backing }, 0);
        assert!(space.try_reserve_log(30 * KIB) && !space.try_reserve_log(1));
        // Too late: the record is in its log already.
        space.assign_log(60, 30 * KIB, 0);
        assert!(space.settle_log(300));
        assert_eq!(space.log(), 0);
    }

    /// Whatever is promised and written in whatever order, the file system has enough.
    #[test]
    fn promises_are_kept() {
        use crate::world::{Rng, SplitMix};
        let rng = SplitMix::new(5);
        let below = |n: u64| rng.next() % n;
        for round in 0..200 {
            let solid = round % 3;
            let mut room = below(2000 * KIB);
            let mut free_solid = solid;
            let measured = |room: u64, free_solid: u64| BackingRoom {
                solid: free_solid,
                sparse: 40,
                sparse_bytes: room,
                log_bytes: room,
                shared: true,
            };
            let space = Space::new(64 << 10);
            assert!(space.change_capacity(100, &free(100), false));
            space.set_backing(measured(room, free_solid), 0);
            let (mut lsn, mut slots, mut records) = (0, 0u64, VecDeque::new());
            for _ in 0..300 {
                match below(5) {
                    0 if space.try_reserve(16, 1) => slots += 1,
                    1 | 2 => {
                        let bytes = 1 + below(60 * KIB);
                        if space.try_reserve_log(bytes) {
                            (lsn, _) = (lsn + 1, records.push_back((lsn + 1, bytes)));
                            space.assign_log(lsn, bytes, 0);
                        }
                    }
                    3 if slots > 0 => {
                        slots -= 1;
                        assert!(space.open_extent(16, true));
                        let change = SpaceChange {
                            free_slots: {
                                let mut f = [0; CLASSES];
                                f[16] = -1;
                                f
                            },
                            ..SpaceChange::default()
                        };
                        space.settle(&change, &[(16, 1)]);
                        if free_solid > 0 && (room < 64 * KIB || below(2) == 0) {
                            free_solid -= 1;
                        } else {
                            room = room.checked_sub(64 * KIB).expect("room for an extent");
                        }
                    }
                    _ => {
                        let Some((lsn, bytes)) = records.pop_front() else { continue };
                        room = room.checked_sub(1 + below(bytes)).expect("room for a record");
                        space.settle_log(lsn);
                    }
                }
                if below(4) == 0 {
                    space.set_backing(measured(room, free_solid), 0);
                }
            }
        }
    }
}
