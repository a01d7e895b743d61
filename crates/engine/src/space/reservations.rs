//! The promises of space that the pool can make (I6).
//!
//! Slots of different sizes come from different extents. So a promise counts, per slot size, the
//! free slots of open extents first, and whole free extents beyond them. A promise is always kept:
//! whatever is reserved can be allocated.
//!
//! Promises of room for CDP logs are here too ([`crate::cdp::write::reserve`] computes how much a
//! record needs). Logs are files in the data directory. The files of physical volumes are mostly in
//! the same file system, which must not be promised twice.

mod totals;

pub(crate) use totals::Totals;

use crate::area::{Area, SlotKind};
use crate::error::{Error, no_space};
use crate::ids::Lsn;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// log2 of the largest slot (1 GiB), plus one.
const CLASSES: usize = 31;

/// The free and promised space of a pool.
pub(crate) struct Space {
    extent_log2: u8,
    inner: Mutex<Inner>,
}

#[derive(Clone)]
struct Inner {
    extent_log2: u8,
    areas: BTreeMap<Area, AreaSpace>,
    /// Areas whose promises the common area keeps.
    redirected: BTreeSet<Area>,
    /// The room below an area of which nothing was measured yet.
    unmeasured: AreaRoom,
    /// The room in the file systems below, as of the last measurement and without what extents have
    /// taken since.
    below: RoomBelow,
    /// Bytes that logs have taken since that measurement.
    logged: u64,
    /// Bytes promised to logs.
    log: u64,
    /// The part of `log` that records in the journal may need: (last LSN of some records, bytes),
    /// by LSN.
    unlogged: VecDeque<(Lsn, u64)>,
    /// The LSN up to which records are in their logs.
    logged_lsn: Lsn,
}

/// The space of an area.
#[derive(Clone)]
struct AreaSpace {
    extent_log2: u8,
    /// Unused extents on physical volumes that take data, without those in `aside`.
    free_extents: u64,
    /// Unused extents for which the file systems below have no room.
    aside: u64,
    /// The places of the free extents, as of the last measurement, and without what was opened
    /// since.
    backing: AreaRoom,
    /// Extents that were taken since that measurement, it is not known where.
    opened: u64,
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

/// A change of free space, by area, as an allocator reports it.
#[derive(Debug, Clone, Default)]
pub(crate) struct SpaceChange(BTreeMap<Area, AreaChange>);

/// A change of the free space of one area.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AreaChange {
    pub(crate) free_extents: i64,
    /// Change of the number of unused extents for which there is no room below.
    pub(crate) aside: i64,
    pub(crate) free_slots: [i64; CLASSES],
}

/// The places of the pool's free extents, and the room for them, without margins.
#[derive(Debug, Clone, Default)]
pub(crate) struct BackingRoom {
    /// The free extents of each area. An area that is not here has none.
    pub(crate) areas: BTreeMap<Area, AreaRoom>,
    pub(crate) below: RoomBelow,
}

/// The room in the file systems below the pool, without margins.
#[derive(Debug, Clone, Default)]
pub(crate) struct RoomBelow {
    /// Number of bytes that are available in each file system with sparse extents.
    pub(crate) bytes: BTreeMap<u64, u64>,
    /// The file system from which logs take their space.
    pub(crate) of_logs: Option<u64>,
    /// Number of bytes that are available for logs.
    pub(crate) log_bytes: u64,
}

/// The places of the free extents of an area.
#[derive(Debug, Clone, Default)]
pub(crate) struct AreaRoom {
    /// Number of free extents that have their space already.
    pub(crate) solid: u64,
    /// Number of free extents that take their space when they are opened, by file system.
    pub(crate) sparse: BTreeMap<u64, u64>,
}

impl AreaRoom {
    /// Extents that all have their space already.
    pub(crate) fn solid(extents: u64) -> AreaRoom {
        AreaRoom { solid: extents, sparse: BTreeMap::new() }
    }
}

/// Number of low bits of an LSN in which records that share an entry of [`Inner::unlogged`] may
/// differ.
const SHARED_BITS: u32 = 4;

impl SpaceChange {
    /// The change of one area.
    pub(crate) fn of(&mut self, area: Area) -> &mut AreaChange {
        self.0.entry(area).or_default()
    }

    /// Number of bytes that become free.
    pub(crate) fn bytes(&self, extent_size: u64) -> u64 {
        let slots = |change: &AreaChange| -> i64 {
            change.free_slots.iter().enumerate().map(|(log2, n)| n << log2).sum()
        };
        self.0.values().map(|area| area.free_extents * extent_size as i64 + slots(area)).sum::<i64>().max(0)
            as u64
    }

    /// The opposite change.
    pub(crate) fn negated(&self) -> SpaceChange {
        let negated = |change: &AreaChange| AreaChange {
            free_extents: -change.free_extents,
            aside: -change.aside,
            free_slots: change.free_slots.map(|n| -n),
        };
        SpaceChange(self.0.iter().map(|(area, change)| (*area, negated(change))).collect())
    }
}

impl Space {
    pub(crate) fn new(extent_size: u64) -> Self {
        let extent_log2 = extent_size.trailing_zeros() as u8;
        Space {
            extent_log2,
            inner: Mutex::new(Inner {
                extent_log2,
                areas: BTreeMap::new(),
                redirected: BTreeSet::new(),
                unmeasured: AreaRoom::solid(u64::MAX),
                below: RoomBelow { log_bytes: u64::MAX, ..RoomBelow::default() },
                logged: 0,
                log: 0,
                unlogged: VecDeque::new(),
                logged_lsn: Lsn::ZERO,
            }),
        }
    }

    /// Promises `slots` slots. False if that is not possible.
    pub(crate) fn try_reserve(&self, kind: SlotKind, slots: u64) -> bool {
        self.reserve_within(kind, slots, |usable| usable)
    }

    /// Promises `slots` slots for a need that may be much smaller. Such promises may take half of
    /// what there is. So promises with an exact count find room until the larger ones are given
    /// back.
    pub(crate) fn try_reserve_amply(&self, kind: SlotKind, slots: u64) -> bool {
        self.reserve_within(kind, slots, |usable| usable / 2)
    }

    /// Returns whether `slots` slots could be promised if the file systems below the pool had room
    /// for everything. True also if the area gives out none at all.
    pub(crate) fn has_own_room(&self, kind: SlotKind, slots: u64) -> bool {
        let mut inner = self.inner.lock();
        let kind = inner.serving(kind);
        let mut area = inner.area(kind.area).clone();
        area.class(kind).reserved += slots;
        area.recount(kind.log2);
        area.total_extents == 0 || area.needed <= area.free_extents + area.aside
    }

    fn reserve_within(&self, kind: SlotKind, slots: u64, limit: impl Fn(u64) -> u64) -> bool {
        if slots == 0 {
            return true;
        }
        let mut inner = self.inner.lock();
        let kind = inner.serving(kind);
        inner.area(kind.area).class(kind).reserved += slots;
        inner.area(kind.area).recount(kind.log2);
        let needed = inner.area(kind.area).needed;
        let fits = needed <= limit(inner.usable(kind.area)) && inner.keeps_log(kind.area);
        if !fits {
            inner.area(kind.area).class(kind).reserved -= slots;
            inner.area(kind.area).recount(kind.log2);
        }
        fits
    }

    /// Opens a free extent for slots of this kind: because a promise needs it now, or, if not
    /// `needed`, only if no promise does. The extent takes its space from a file system, or has it.
    ///
    /// The change counts at once, not with the batch's other changes. Later requests of the batch,
    /// or of a writer, must see one free extent less.
    pub(crate) fn open_extent(&self, kind: SlotKind, file_system: Option<u64>, needed: bool) -> bool {
        let mut inner = self.inner.lock();
        let mut change = AreaChange { free_extents: -1, ..AreaChange::default() };
        change.free_slots[kind.log2 as usize] = self.slots_of_extent(kind) as i64;
        let was_usable = inner.usable(kind.area) > 0;
        inner.try_change(kind.area, |inner| {
            inner.area(kind.area).apply(&change);
            inner.area(kind.area).recount(kind.log2);
            inner.take_below(kind.area, file_system);
            needed || was_usable && inner.areas.keys().all(|area| inner.fits(*area))
        })
    }

    /// Takes free slots of open extents away, to be lent to writers. Returns false, and takes
    /// nothing, if less than half of the usable extents would be left without a promise.
    pub(crate) fn try_lend(&self, kind: SlotKind, slots: u64) -> bool {
        self.inner.lock().try_change(kind.area, |inner| {
            let area = inner.area(kind.area);
            let Some(free) = area.class(kind).free.checked_sub(slots) else { return false };
            area.class(kind).free = free;
            area.recount(kind.log2);
            let needed = area.needed;
            needed <= inner.usable(kind.area) / 2 && inner.keeps_log(kind.area)
        })
    }

    /// Returns whether at least half of the usable extents of an area are left without a promise,
    /// also if `opened` more of them are opened.
    pub(crate) fn is_ample(&self, area: Area, opened: u64) -> bool {
        let mut inner = self.inner.lock();
        let needed = inner.area(area).needed;
        inner.usable(area).checked_sub(opened).is_some_and(|left| needed <= left / 2)
    }

    /// Returns the number of bytes of a file system that promises in other areas may need. They are
    /// not for extents of this area.
    pub(crate) fn claimed(&self, file_system: u64, area: Area) -> u64 {
        let inner = self.inner.lock();
        let of_common = if area == Area::Common { 0 } else { inner.common_needs(file_system) };
        (inner.dedicated_needs(file_system, area) + of_common) << self.extent_log2
    }

    /// Lets the common area keep all promises of a dedicated physical volume, which gives out
    /// nothing any more.
    pub(crate) fn redirect(&self, area: Area) {
        let mut inner = self.inner.lock();
        if area == Area::Common || !inner.redirected.insert(area) {
            return;
        }
        let mut promised = Vec::new();
        for (log2, class) in inner.area(area).classes.iter_mut().enumerate() {
            promised.push((log2, std::mem::take(&mut class.reserved)));
        }
        inner.area(area).recount_all();
        let common = inner.area(Area::Common);
        for (log2, slots) in promised {
            common.classes[log2].reserved += slots;
        }
        common.recount_all();
    }

    /// Takes back the opening of an extent that could not be had: the extent is free again.
    pub(crate) fn close_extent(&self, kind: SlotKind, file_system: Option<u64>) {
        let mut change = AreaChange { free_extents: 1, ..AreaChange::default() };
        change.free_slots[kind.log2 as usize] = -(self.slots_of_extent(kind) as i64);
        let mut inner = self.inner.lock();
        let area = inner.area(kind.area);
        area.apply(&change);
        area.recount(kind.log2);
        inner.give_below(kind.area, file_system);
    }

    /// Sets `extents` extents aside, because the file system below had no room for the extent that
    /// was just opened. That one is among them.
    pub(crate) fn set_aside(&self, kind: SlotKind, file_system: Option<u64>, extents: u64) {
        let slots = self.slots_of_extent(kind);
        let mut inner = self.inner.lock();
        let area = inner.area(kind.area);
        let class = area.class(kind);
        class.free = class.free.saturating_sub(slots);
        area.free_extents = area.free_extents.saturating_sub(extents - 1);
        area.aside += extents;
        area.recount(kind.log2);
        inner.give_below(kind.area, file_system);
    }

    fn slots_of_extent(&self, kind: SlotKind) -> u64 {
        1 << self.extent_log2.saturating_sub(kind.log2)
    }

    /// Takes a promise back, or, at open, makes one again that was given before a restart.
    pub(crate) fn adjust_reserved(&self, kind: SlotKind, slots: i64) {
        let mut inner = self.inner.lock();
        let kind = inner.serving(kind);
        let area = inner.area(kind.area);
        let class = area.class(kind);
        debug_assert!(class.reserved as i64 + slots >= 0, "more released than reserved");
        class.reserved = class.reserved.saturating_add_signed(slots);
        area.recount(kind.log2);
    }

    /// Applies allocations, and releases the promises that they kept, in one step.
    pub(crate) fn settle(&self, change: &SpaceChange, released: &[(SlotKind, u64)]) {
        let mut inner = self.inner.lock();
        for (area, change) in &change.0 {
            inner.area(*area).apply(change);
        }
        for (kind, slots) in released {
            let kind = inner.serving(*kind);
            let class = inner.area(kind.area).class(kind);
            debug_assert!(class.reserved >= *slots, "more released than reserved");
            class.reserved = class.reserved.saturating_sub(*slots);
        }
        inner.areas.values_mut().for_each(AreaSpace::recount_all);
    }

    /// Adds extents of a physical volume to its area, or removes them if negative: `total` in all,
    /// and `change` of what is free. Refuses a removal that would break promises, unless `force`.
    pub(crate) fn change_capacity(
        &self,
        (of, total): (Area, i64),
        change: &SpaceChange,
        force: bool,
    ) -> bool {
        let mut inner = self.inner.lock();
        for (area, change) in change.0.iter().filter(|(area, _)| **area != of) {
            inner.area(*area).apply(change);
            inner.area(*area).recount_all();
        }
        inner.try_change(of, |inner| {
            let area = inner.area(of);
            area.apply(&change.0.get(&of).copied().unwrap_or_default());
            area.total_extents = area.total_extents.saturating_add_signed(total);
            area.recount_all();
            force || total >= 0 || inner.fits(of)
        })
    }

    /// Stores what the file systems below can provide now. `taken_back` are extents that had been
    /// set aside and can be used again, by area.
    pub(crate) fn set_backing(&self, mut backing: BackingRoom, taken_back: &BTreeMap<Area, u64>) {
        let mut inner = self.inner.lock();
        for (area, back) in taken_back {
            let area = inner.area(*area);
            area.free_extents += back;
            area.aside = area.aside.saturating_sub(*back);
        }
        inner.unmeasured = AreaRoom::default();
        for (area, space) in &mut inner.areas {
            space.backing = backing.areas.remove(area).unwrap_or_default();
            space.opened = 0;
        }
        (inner.below, inner.logged) = (backing.below, 0);
    }

    /// Promises `bytes` bytes to logs. False if that is not possible.
    pub(crate) fn try_reserve_log(&self, bytes: u64) -> bool {
        let mut inner = self.inner.lock();
        inner.log = inner.log.saturating_add(bytes);
        let fits = bytes == 0 || inner.log_fits();
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
        self.inner.lock().logs()
    }

    /// Bytes that may still be promised to logs.
    pub(crate) fn log_room(&self) -> u64 {
        let inner = self.inner.lock();
        inner.below.log_bytes.saturating_sub(inner.logs())
    }

    /// Returns the totals of all areas.
    pub(crate) fn totals(&self) -> Totals {
        let inner = self.inner.lock();
        inner.areas.keys().map(|area| inner.totals(*area)).fold(Totals::default(), Totals::plus)
    }

    /// Returns the areas that have physical volumes.
    pub(crate) fn areas(&self) -> Vec<Area> {
        let inner = self.inner.lock();
        let areas = inner.areas.iter().filter(|(_, space)| space.total_extents > 0);
        areas.map(|(area, _)| *area).collect()
    }

    /// Returns the totals of one area.
    pub(crate) fn totals_of(&self, area: Area) -> Totals {
        self.inner.lock().totals(area)
    }
}

impl Inner {
    fn area(&mut self, area: Area) -> &mut AreaSpace {
        let (backing, extent_log2) = (&self.unmeasured, self.extent_log2);
        self.areas.entry(area).or_insert_with(|| AreaSpace::new(backing.clone(), extent_log2))
    }

    /// Returns the kind of slots that keep the promises of a kind.
    fn serving(&self, kind: SlotKind) -> SlotKind {
        if self.redirected.contains(&kind.area) { Area::Common.slots(kind.log2) } else { kind }
    }

    /// Changes an area, unless `change` returns false.
    fn try_change(&mut self, area: Area, change: impl FnOnce(&mut Inner) -> bool) -> bool {
        let before = (self.area(area).clone(), self.below.clone());
        let fits = change(self);
        if !fits {
            self.below = before.1;
            self.areas.insert(area, before.0);
        }
        fits
    }

    /// Takes the space of an extent that was opened from what was measured.
    fn take_below(&mut self, area: Area, file_system: Option<u64>) {
        let size = 1 << self.extent_log2;
        let space = self.area(area);
        space.opened = space.opened.saturating_sub(1);
        let Some(id) = file_system else {
            if space.backing.solid != u64::MAX {
                space.backing.solid = space.backing.solid.saturating_sub(1);
            }
            return;
        };
        if let Some(extents) = space.backing.sparse.get_mut(&id) {
            *extents = extents.saturating_sub(1);
        }
        if let Some(bytes) = self.below.bytes.get_mut(&id) {
            *bytes = bytes.saturating_sub(size);
        }
        if self.below.of_logs == Some(id) {
            self.below.log_bytes = self.below.log_bytes.saturating_sub(size);
        }
    }

    /// Gives the space of an extent back that was not opened after all.
    fn give_below(&mut self, area: Area, file_system: Option<u64>) {
        let size = 1 << self.extent_log2;
        let backing = &mut self.area(area).backing;
        let Some(id) = file_system else {
            backing.solid = backing.solid.saturating_add(1);
            return;
        };
        if let Some(extents) = backing.sparse.get_mut(&id) {
            *extents += 1;
        }
        if let Some(bytes) = self.below.bytes.get_mut(&id) {
            *bytes = bytes.saturating_add(size);
        }
        if self.below.of_logs == Some(id) {
            self.below.log_bytes = self.below.log_bytes.saturating_add(size);
        }
    }

    fn logs(&self) -> u64 {
        self.log.saturating_add(self.logged)
    }

    /// Number of extents for which a file system has room beside the logs.
    fn room_below(&self, file_system: u64) -> u64 {
        let bytes = self.below.bytes.get(&file_system).copied().unwrap_or(0);
        let logs = if self.below.of_logs == Some(file_system) { self.logs() } else { 0 };
        bytes.saturating_sub(logs) >> self.extent_log2
    }

    /// Number of extents of a file system that dedicated physical volumes, without `except`, may
    /// have taken since the last measurement, or need for promises.
    fn of_dedicated(&self, file_system: u64, except: Area) -> u64 {
        self.dedicated_on(file_system, except).map(|space| space.opened + space.needed).sum()
    }

    /// Number of extents of a file system that dedicated physical volumes need for promises.
    fn dedicated_needs(&self, file_system: u64, except: Area) -> u64 {
        self.dedicated_on(file_system, except).map(|space| space.needed).sum()
    }

    fn dedicated_on(&self, file_system: u64, except: Area) -> impl Iterator<Item = &AreaSpace> {
        let dedicated = self.areas.iter().filter(move |(area, _)| **area != Area::Common && **area != except);
        dedicated.map(|(_, space)| space).filter(move |space| space.backing.sparse.contains_key(&file_system))
    }

    /// Number of extents that the common area can have on a file system, if it has `extents` free
    /// ones there. What is promised on dedicated physical volumes comes first: they have no other.
    fn common_room(&self, file_system: u64, extents: u64) -> u64 {
        extents.min(self.room_below(file_system).saturating_sub(self.of_dedicated(file_system, Area::Common)))
    }

    /// Number of extents that the promises of the common area need on a file system, because it has
    /// no others.
    fn common_needs(&self, file_system: u64) -> u64 {
        let Some(common) = self.areas.get(&Area::Common) else { return 0 };
        let Some(there) = common.backing.sparse.get(&file_system) else { return 0 };
        let others = common.backing.sparse.iter().filter(|(id, _)| **id != file_system);
        let elsewhere: u64 = others.map(|(id, extents)| self.common_room(*id, *extents)).sum();
        let elsewhere = common.backing.solid.saturating_add(elsewhere);
        (common.needed + common.opened).saturating_sub(elsewhere).min(there + common.opened)
    }

    /// Number of free extents of an area for which there is room below, whatever is promised of
    /// them. What others are promised is not counted.
    fn usable(&self, area: Area) -> u64 {
        let Some(space) = self.areas.get(&area) else { return 0 };
        let sparse = space.backing.sparse.iter();
        let sparse: u64 = if area == Area::Common {
            sparse.map(|(id, extents)| self.common_room(*id, *extents)).sum()
        } else {
            sparse
                .map(|(id, extents)| {
                    let others = self.of_dedicated(*id, area) + self.common_needs(*id);
                    (*extents).min(self.room_below(*id).saturating_sub(others))
                })
                .sum()
        };
        space.free_extents.min(space.backing.solid.saturating_add(sparse).saturating_sub(space.opened))
    }

    /// Returns whether extents of an area may take space from the file system of the logs.
    fn is_beside_logs(&self, space: &AreaSpace) -> bool {
        self.below.of_logs.is_some_and(|id| space.backing.sparse.contains_key(&id))
    }

    /// Returns whether there is room for everything that is promised to logs. Extents that were
    /// opened, or will have to be, may all lie in the same file system.
    fn log_fits(&self) -> bool {
        let beside = self.areas.values().filter(|space| self.is_beside_logs(space));
        let extents: u64 = beside.map(|space| space.opened + space.needed).sum();
        self.logs().saturating_add(extents << self.extent_log2) <= self.below.log_bytes
    }

    /// Returns whether extents of an area leave logs what was promised to them.
    fn keeps_log(&self, area: Area) -> bool {
        self.log == 0 || !self.areas.get(&area).is_some_and(|a| self.is_beside_logs(a)) || self.log_fits()
    }

    fn fits(&self, area: Area) -> bool {
        let needed = self.areas.get(&area).map_or(0, |space| space.needed);
        needed <= self.usable(area) && self.keeps_log(area)
    }

    fn log_written(&mut self, bytes: u64) {
        debug_assert!(self.log >= bytes, "more released than reserved");
        self.log = self.log.saturating_sub(bytes);
        self.logged += bytes;
    }

    fn totals(&self, area: Area) -> Totals {
        let Some(space) = self.areas.get(&area) else { return Totals::default() };
        let bytes = |extents: u64| extents << self.extent_log2;
        let free_slots: u64 = space.classes.iter().enumerate().map(|(log2, c)| c.free << log2).sum();
        let reserved: u64 = space.classes.iter().enumerate().map(|(log2, c)| c.reserved << log2).sum();
        let unused = space.free_extents + space.aside;
        let free = bytes(self.usable(area)) + free_slots;
        Totals {
            capacity: bytes(space.total_extents),
            used: bytes(space.total_extents.saturating_sub(unused)).saturating_sub(free_slots),
            available: free.saturating_sub(reserved),
            own: (bytes(unused) + free_slots).saturating_sub(reserved),
            reserved,
        }
    }
}

impl AreaSpace {
    fn new(backing: AreaRoom, extent_log2: u8) -> AreaSpace {
        AreaSpace {
            extent_log2,
            free_extents: 0,
            aside: 0,
            backing,
            opened: 0,
            total_extents: 0,
            classes: [Class::default(); CLASSES],
            needed: 0,
        }
    }

    fn class(&mut self, kind: SlotKind) -> &mut Class {
        &mut self.classes[kind.log2 as usize]
    }

    fn apply(&mut self, change: &AreaChange) {
        self.free_extents = self.free_extents.saturating_add_signed(change.free_extents);
        self.aside = self.aside.saturating_add_signed(change.aside);
        // An opened extent takes backing space. Space that comes back counts once it is measured.
        self.opened += change.free_extents.min(0).unsigned_abs();
        for (class, slots) in self.classes.iter_mut().zip(change.free_slots) {
            class.free = class.free.saturating_add_signed(slots);
        }
    }

    fn recount(&mut self, slot_log2: u8) {
        let class = &mut self.classes[slot_log2 as usize];
        let per_extent = 1u64 << self.extent_log2.saturating_sub(slot_log2);
        let needed = class.reserved.saturating_sub(class.free).div_ceil(per_extent);
        self.needed = self.needed - class.needed + needed;
        class.needed = needed;
    }

    fn recount_all(&mut self) {
        for slot_log2 in 0..CLASSES as u8 {
            self.recount(slot_log2);
        }
    }
}

/// The error of a write when nothing can be promised.
pub(crate) fn full() -> Error {
    no_space("reserve space for the write: the pool is full; free some space or add a physical volume")
}

#[cfg(test)]
mod tests;
