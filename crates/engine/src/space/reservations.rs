//! The promises of space that the pool can make (I6).
//!
//! Slots of different sizes come from different extents. So a promise counts, per slot size, the
//! free slots of open extents first, and whole free extents beyond them. A promise is always kept:
//! whatever is reserved can be allocated.
//!
//! Promises of room for CDP logs are here too ([`crate::cdp::write::reserve`] computes how much a
//! record needs). Logs are files in the data directory. The files of physical volumes are mostly in
//! the same file system, which must not be promised twice.

use crate::error::{Error, no_space};
use crate::ids::Lsn;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// log2 of the largest slot (1 GiB), plus one.
const CLASSES: usize = 31;

/// The free and promised space of a pool.
pub(crate) struct Space {
    extent_log2: u8,
    inner: Mutex<Inner>,
}

#[derive(Clone)]
struct Inner {
    /// Unused extents on physical volumes that take data, without those in `aside`.
    free_extents: u64,
    /// Unused extents for which the file systems below have no room.
    aside: u64,
    /// The room in the file systems below, as of the last measurement.
    backing: BackingRoom,
    /// Extents that were opened since that measurement.
    opened: u64,
    /// Bytes that logs have taken since that measurement.
    logged: u64,
    /// Bytes promised to logs.
    log: u64,
    /// The part of `log` that records in the journal may need: (last LSN of some records, bytes),
    /// by LSN.
    unlogged: VecDeque<(Lsn, u64)>,
    /// The LSN up to which records are in their logs.
    logged_lsn: Lsn,
    /// Number of all extents on physical volumes that take data.
    total_extents: u64,
    classes: [Class; CLASSES],
    /// Number of extents that reservations need beyond open ones: the sum over the classes.
    needed: u64,
}

#[derive(Clone, Copy, Default)]
struct Class {
    /// Number of free slots in open extents of this class.
    free: u64,
    reserved: u64,
    needed: u64,
}

/// A change of free space, as an allocator reports it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SpaceChange {
    pub(crate) free_extents: i64,
    /// Change of the number of unused extents for which there is no room below.
    pub(crate) aside: i64,
    pub(crate) free_slots: [i64; CLASSES],
}

/// The room in the file systems below the pool, without margins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BackingRoom {
    /// Number of free extents that have their space already.
    pub(crate) solid: u64,
    /// Number of free extents that take their space when they are opened.
    pub(crate) sparse: u64,
    /// Number of bytes that are available for the sparse extents.
    pub(crate) sparse_bytes: u64,
    /// Number of bytes that are available for logs.
    pub(crate) log_bytes: u64,
    /// Some of the sparse extents take their space from the file system of the logs.
    pub(crate) shared: bool,
}

impl BackingRoom {
    /// Room for everything.
    pub(crate) const ALL: BackingRoom =
        BackingRoom { solid: u64::MAX, sparse: 0, sparse_bytes: 0, log_bytes: u64::MAX, shared: false };
    /// No room.
    pub(crate) const NONE: BackingRoom =
        BackingRoom { solid: 0, sparse: 0, sparse_bytes: 0, log_bytes: 0, shared: false };
}

/// Number of low bits of an LSN in which records that share an entry of [`Inner::unlogged`] may
/// differ.
const SHARED_BITS: u32 = 4;

/// Totals in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) capacity: u64,
    pub(crate) used: u64,
    pub(crate) available: u64,
    /// Bytes that would be available if the file systems below the pool had room for everything.
    pub(crate) own: u64,
    pub(crate) reserved: u64,
}

impl SpaceChange {
    /// Number of bytes that become free.
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
                logged_lsn: Lsn::ZERO,
                total_extents: 0,
                classes: [Class::default(); CLASSES],
                needed: 0,
            }),
        }
    }

    /// Promises `slots` slots of size `1 << slot_log2`. False if that is not possible.
    pub(crate) fn try_reserve(&self, slot_log2: u8, slots: u64) -> bool {
        self.reserve_within(slot_log2, slots, |usable| usable)
    }

    /// Promises `slots` slots for a need that may be much smaller. Such promises may take half of
    /// what there is. So promises with an exact count find room until the larger ones are given
    /// back.
    pub(crate) fn try_reserve_amply(&self, slot_log2: u8, slots: u64) -> bool {
        self.reserve_within(slot_log2, slots, |usable| usable / 2)
    }

    /// Returns whether `slots` slots could be promised if the file systems below the pool had room
    /// for everything.
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
    /// The change counts at once, not with the batch's other changes. Later requests of the batch,
    /// or of a writer, must see one free extent less.
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

    /// Takes free slots of open extents away, to be lent to writers. Returns false, and takes
    /// nothing, if less than half of the usable extents would be left without a promise.
    pub(crate) fn try_lend(&self, slot_log2: u8, slots: u64) -> bool {
        let mut inner = self.inner.lock();
        let mut next = inner.clone();
        let class = &mut next.classes[slot_log2 as usize];
        let Some(free) = class.free.checked_sub(slots) else { return false };
        class.free = free;
        next.recount(self.extent_log2, slot_log2);
        let fits = next.needed <= next.usable(self.extent_log2) / 2 && next.keeps_log(self.extent_log2);
        if fits {
            *inner = next;
        }
        fits
    }

    /// Returns whether at least half of the usable extents are left without a promise, also if
    /// `opened` more of them are opened.
    pub(crate) fn is_ample(&self, opened: u64) -> bool {
        let inner = self.inner.lock();
        inner.usable(self.extent_log2).checked_sub(opened).is_some_and(|left| inner.needed <= left / 2)
    }

    /// Takes back the opening of an extent that could not be had: the extent is free again.
    pub(crate) fn close_extent(&self, slot_log2: u8) {
        let mut inner = self.inner.lock();
        let mut change = SpaceChange { free_extents: 1, ..SpaceChange::default() };
        change.free_slots[slot_log2 as usize] = -(1 << self.extent_log2.saturating_sub(slot_log2));
        inner.apply(&change);
        inner.opened = inner.opened.saturating_sub(1);
        inner.recount(self.extent_log2, slot_log2);
    }

    /// Sets `extents` extents aside, because the file system below had no room for the extent that
    /// was just opened. That one is among them.
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

    /// Takes a promise back, or, at open, makes one again that was given before a restart.
    pub(crate) fn adjust_reserved(&self, slot_log2: u8, slots: i64) {
        let mut inner = self.inner.lock();
        let class = &mut inner.classes[slot_log2 as usize];
        debug_assert!(class.reserved as i64 + slots >= 0, "more released than reserved");
        class.reserved = class.reserved.saturating_add_signed(slots);
        inner.recount(self.extent_log2, slot_log2);
    }

    /// Applies allocations, and releases the promises that they kept, in one step.
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

    /// Adds extents of a physical volume, or removes them if negative: `total` in all, and `change`
    /// of what is free. Refuses a removal that would break promises, unless `force`.
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

    /// Stores what the file systems below can provide now. `taken_back` extents that had been set
    /// aside can be used again.
    pub(crate) fn set_backing(&self, backing: BackingRoom, taken_back: u64) {
        let mut inner = self.inner.lock();
        inner.free_extents += taken_back;
        inner.aside = inner.aside.saturating_sub(taken_back);
        (inner.backing, inner.opened, inner.logged) = (backing, 0, 0);
    }

    /// Promises `bytes` bytes to logs. False if that is not possible.
    pub(crate) fn try_reserve_log(&self, bytes: u64) -> bool {
        let mut inner = self.inner.lock();
        inner.log = inner.log.saturating_add(bytes);
        let fits = bytes == 0 || inner.log_fits(self.extent_log2);
        if !fits {
            inner.log -= bytes;
        }
        fits
    }

    /// Assigns promised bytes: records up to `lsn` may need `kept` of them, and `rest` is taken
    /// back.
    pub(crate) fn assign_log(&self, lsn: Lsn, kept: u64, rest: u64) {
        let mut inner = self.inner.lock();
        inner.log = inner.log.saturating_sub(rest);
        if kept == 0 {
            return;
        }
        if lsn <= inner.logged_lsn {
            return inner.log_written(kept);
        }
        match inner.unlogged.back_mut() {
            Some(last) if last.0.0 >> SHARED_BITS == lsn.0 >> SHARED_BITS => {
                *last = (lsn.max(last.0), last.1 + kept);
            }
            _ => inner.unlogged.push_back((lsn, kept)),
        }
    }

    /// Ends the promises of records up to `lsn`, which are in their logs now. Their bytes count as
    /// taken until the next measurement of the file system. False when there were none.
    pub(crate) fn settle_log(&self, lsn: Lsn) -> bool {
        let mut inner = self.inner.lock();
        inner.logged_lsn = inner.logged_lsn.max(lsn);
        let mut written = 0;
        while let Some((_, bytes)) = inner.unlogged.pop_front_if(|(last, _)| *last <= lsn) {
            written += bytes;
        }
        inner.log_written(written);
        written > 0
    }

    /// Promises more bytes to logs without a check of the room. A negative number ends promises
    /// whose content is written.
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

    /// Bytes that logs may take, or have taken, since the last measurement of the file systems
    /// below.
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
    /// Number of free extents for which there is room below.
    fn usable(&self, extent_log2: u8) -> u64 {
        let BackingRoom { solid, sparse, sparse_bytes, shared, .. } = self.backing;
        let logs = if shared { self.log.saturating_add(self.logged) } else { 0 };
        let sparse = sparse.min(sparse_bytes.saturating_sub(logs) >> extent_log2);
        self.free_extents.min(solid.saturating_add(sparse).saturating_sub(self.opened))
    }

    /// Returns whether there is room for everything that is promised to logs. Extents that were
    /// opened, or will have to be, may all lie in the same file system.
    fn log_fits(&self, extent_log2: u8) -> bool {
        let extents = if self.backing.shared { (self.opened + self.needed) << extent_log2 } else { 0 };
        self.log.saturating_add(self.logged).saturating_add(extents) <= self.backing.log_bytes
    }

    /// Returns whether extents leave logs what was promised to them.
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
        // An opened extent takes backing space. Space that comes back counts once it is measured.
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

/// The error of a write when nothing can be promised.
pub(crate) fn full() -> Error {
    no_space("reserve space for the write: the pool is full; free some space or add a physical volume")
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

        // A device takes extents when the file system is full, but it is unknown where they will be
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
        space.assign_log(Lsn(70), 40 * KIB, 20 * KIB);
        assert!(space.try_reserve_log(50 * KIB));
        space.assign_log(Lsn(300), 50 * KIB, 0);
        assert!(!space.settle_log(Lsn(69)) && space.log() == 90 * KIB);
        assert!(space.settle_log(Lsn(70)) && space.log() == 50 * KIB);
        assert!(space.try_reserve_log(10 * KIB) && !space.try_reserve_log(1));
        space.assign_log(Lsn(0), 0, 10 * KIB);
        space.set_backing(BackingRoom { log_bytes: 80 * KIB, ..backing }, 0);
        assert!(space.try_reserve_log(30 * KIB) && !space.try_reserve_log(1));
        // This comes too late: the record is in its log already.
        space.assign_log(Lsn(60), 30 * KIB, 0);
        assert!(space.settle_log(Lsn(300)));
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
            let (mut lsn, mut slots, mut records) = (Lsn::ZERO, 0u64, VecDeque::new());
            for _ in 0..300 {
                match below(5) {
                    0 if space.try_reserve(16, 1) => slots += 1,
                    1 | 2 => {
                        let bytes = 1 + below(60 * KIB);
                        if space.try_reserve_log(bytes) {
                            (lsn, _) = (lsn.next(), records.push_back((lsn.next(), bytes)));
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
