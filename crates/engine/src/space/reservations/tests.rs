//! Tests of the promises of space.

use super::*;

fn free(extents: i64) -> SpaceChange {
    free_of(Area::Common, extents)
}

fn free_of(area: Area, free_extents: i64) -> SpaceChange {
    SpaceChange(BTreeMap::from([(area, AreaChange { free_extents, ..AreaChange::default() })]))
}

/// Slots of the common area.
fn of(log2: u8) -> SlotKind {
    Area::Common.slots(log2)
}

/// The file system below sparse extents, and that of the logs.
const BELOW: u64 = 1;
const OF_LOGS: u64 = 2;

/// A place for sparse extents beside solid ones: (solid, sparse, bytes for the sparse ones).
fn only_common((solid, sparse, bytes): (u64, u64, u64), (of_logs, log_bytes): (u64, u64)) -> BackingRoom {
    let room = AreaRoom { solid, sparse: BTreeMap::from([(BELOW, sparse)]) };
    let below = RoomBelow { bytes: BTreeMap::from([(BELOW, bytes)]), of_logs: Some(of_logs), log_bytes };
    BackingRoom { areas: BTreeMap::from([(Area::Common, room)]), below }
}

fn set_backing(space: &Space, backing: BackingRoom) {
    space.set_backing(backing, &BTreeMap::new());
}

#[test]
fn classes_compete_for_whole_extents() {
    let space = Space::new(64 << 10);
    assert!(space.change_capacity((Area::Common, 3), &free(3), false));
    assert!(space.try_reserve(of(12), 16), "one extent of 4 KiB slots");
    assert!(space.try_reserve(of(12), 1), "a second one, for one slot");
    assert!(space.try_reserve(of(14), 4), "the third one");
    assert!(!space.try_reserve(of(14), 1));
    assert!(space.try_reserve(of(12), 15), "but the second has room");
    assert!(!space.try_reserve(of(12), 1));
    space.adjust_reserved(of(14), -4);
    assert!(space.try_reserve(of(12), 1));
}

#[test]
fn allocation_settles_promises() {
    let space = Space::new(64 << 10);
    assert!(space.change_capacity((Area::Common, 2), &free(2), false));
    assert!(space.try_reserve(of(14), 8));
    let mut change = free(-1);
    change.of(Area::Common).free_slots[14] = 4 - 3;
    space.settle(&change, &[(of(14), 5)]);
    assert_eq!(space.totals().reserved, 3 << 14);
    assert!(space.try_reserve(of(14), 2) && !space.try_reserve(of(14), 1));
    assert_eq!(space.totals().used, 3 << 14);
    assert!(!space.change_capacity((Area::Common, -1), &free(-1), false), "promises are kept");
}

#[test]
fn neatness_never_takes_what_is_promised() {
    let space = Space::new(64 << 10);
    assert!(space.change_capacity((Area::Common, 3), &free(3), false));
    assert!(space.try_reserve(of(13), 9), "two extents");
    assert!(space.open_extent(of(12), None, false));
    assert!(!space.open_extent(of(12), None, false));
    assert!(space.open_extent(of(13), None, true), "what was promised itself");
    assert!(!space.try_reserve(of(14), 1));
    assert!(space.try_reserve(of(12), 16), "the extent that was opened");
}

#[test]
fn areas_keep_their_own_promises() {
    let space = Space::new(64 << 10);
    let other = Area::Only(3);
    assert!(space.change_capacity((Area::Common, 2), &free(2), false));
    assert!(!space.try_reserve(other.slots(16), 1), "there is no such physical volume yet");
    assert!(space.change_capacity((other, 3), &free_of(other, 3), false));
    assert!(space.try_reserve(of(16), 2) && !space.try_reserve(of(16), 1));
    assert!(space.try_reserve(other.slots(16), 3) && !space.try_reserve(other.slots(14), 1));
    assert!(!space.open_extent(of(12), None, false) && space.open_extent(of(16), None, true));
    assert!(!space.change_capacity((other, -1), &free_of(other, -1), false));
    assert_eq!((space.totals().available, space.totals().reserved), (0, 5 << 16));
    assert_eq!(space.totals_of(other).capacity, 3 << 16);
    space.adjust_reserved(other.slots(16), -1);
    assert!(space.change_capacity((other, -1), &free_of(other, -1), false));
    assert!(!space.try_reserve(of(16), 1), "what one area lacks, another one does not give");
    assert_eq!(space.totals_of(Area::Common).reserved, 2 << 16);
}

#[test]
fn an_area_that_comes_waits_for_a_measurement() {
    let space = backed_by(only_common((9, 0, 0), (OF_LOGS, u64::MAX)));
    let other = Area::Only(1);
    assert!(space.change_capacity((other, 4), &free_of(other, 4), false));
    assert!(!space.try_reserve(other.slots(16), 1));
    let areas = BTreeMap::from([(Area::Common, AreaRoom::solid(4)), (other, AreaRoom::solid(4))]);
    set_backing(&space, BackingRoom { areas, below: RoomBelow::default() });
    assert!(space.try_reserve(other.slots(16), 4) && !space.try_reserve(other.slots(16), 1));
}

#[test]
fn areas_on_one_file_system_are_not_promised_the_same_room() {
    let other = Area::Only(1);
    let space = Space::new(64 << 10);
    assert!(space.change_capacity((Area::Common, 110), &free(110), false));
    assert!(space.change_capacity((other, 100), &free_of(other, 100), false));
    // Ten extents have their space, and ten more fit into the file system of both areas.
    let sparse = BTreeMap::from([(BELOW, 100)]);
    let areas = BTreeMap::from([
        (Area::Common, AreaRoom { solid: 10, sparse: sparse.clone() }),
        (other, AreaRoom { solid: 0, sparse }),
    ]);
    let below = RoomBelow { bytes: BTreeMap::from([(BELOW, 640 << 10)]), of_logs: None, log_bytes: 0 };
    let measured = BackingRoom { areas, below };
    set_backing(&space, measured.clone());
    assert!(space.try_reserve(other.slots(16), 5));
    assert!(space.try_reserve(of(16), 10), "they have their space");
    assert!(!space.try_reserve(of(16), 6) && space.try_reserve(of(16), 2));
    assert!(!space.try_reserve(other.slots(16), 4) && space.try_reserve(other.slots(16), 3));
    assert!(!space.try_reserve(of(16), 1) && !space.try_reserve(other.slots(14), 1));
    // No measurement changes that.
    set_backing(&space, measured);
    assert!(!space.try_reserve(of(16), 1) && !space.try_reserve(other.slots(14), 1));
    assert_eq!((space.claimed(BELOW, Area::Common), space.claimed(BELOW, other)), (8 << 16, 2 << 16));
}

#[test]
fn promises_of_what_has_failed_are_kept_elsewhere() {
    let other = Area::Only(1);
    let space = Space::new(64 << 10);
    assert!(space.change_capacity((Area::Common, 4), &free(4), false));
    assert!(space.change_capacity((other, 9), &free_of(other, 9), false));
    assert!(space.try_reserve(other.slots(16), 3));
    assert!(space.change_capacity((other, -9), &free_of(other, -9), true));
    space.redirect(other);
    assert!(space.try_reserve(of(16), 1) && !space.try_reserve(of(16), 1));
    assert!(space.has_own_room(other.slots(16), 0) && !space.try_reserve(other.slots(16), 1));
    space.settle(&free(-2), &[(other.slots(16), 2)]);
    space.adjust_reserved(other.slots(16), -1);
    assert_eq!(space.totals().reserved, 1 << 16);
}

#[test]
fn backing_limits() {
    let space = Space::new(64 << 10);
    assert!(space.change_capacity((Area::Common, 9), &free(9), false));
    set_backing(&space, only_common((0, 9, 100 << 10), (OF_LOGS, u64::MAX)));
    assert!(space.try_reserve(of(16), 1) && !space.try_reserve(of(16), 1));
}

const KIB: u64 = 1 << 10;

/// Nine free extents of 64 KiB.
fn backed_by(backing: BackingRoom) -> Space {
    let space = Space::new(64 << 10);
    assert!(space.change_capacity((Area::Common, 9), &free(9), false));
    set_backing(&space, backing);
    space
}

#[test]
fn logs_and_extents_of_one_file_system_are_not_promised_twice() {
    let bytes = 300 * KIB;
    let space = backed_by(only_common((0, 9, bytes), (BELOW, bytes)));
    assert!(space.try_reserve(of(16), 2), "128 KiB");
    assert!(space.try_reserve_log(100 * KIB) && !space.try_reserve_log(73 * KIB));
    assert!(space.try_reserve(of(16), 1) && !space.try_reserve(of(16), 1));
    assert_eq!(space.totals().available, 0);
    assert!(space.try_reserve_log(8 * KIB) && !space.try_reserve_log(1));

    let space = backed_by(only_common((0, 9, bytes), (OF_LOGS, bytes)));
    assert!(space.try_reserve_log(300 * KIB) && !space.try_reserve_log(1));
    assert!(space.try_reserve(of(16), 4) && !space.try_reserve(of(16), 1), "elsewhere");

    // A device takes extents when the file system is full, but it is unknown where they will be
    // placed.
    let space = backed_by(only_common((2, 9, bytes), (BELOW, bytes)));
    assert!(space.try_reserve(of(16), 6) && !space.try_reserve(of(16), 1) && !space.try_reserve_log(1));
    space.adjust_reserved(of(16), -6);
    assert!(space.try_reserve_log(300 * KIB) && !space.try_reserve(of(16), 1));
    assert_eq!(space.totals().available, 128 * KIB);
}

#[test]
fn what_logs_have_taken_is_gone_until_it_is_measured() {
    let space = backed_by(only_common((9, 0, 0), (OF_LOGS, 100 * KIB)));
    assert!(space.try_reserve_log(60 * KIB));
    space.assign_log(Lsn(70), 40 * KIB, 20 * KIB);
    assert!(space.try_reserve_log(50 * KIB));
    space.assign_log(Lsn(300), 50 * KIB, 0);
    assert!(!space.settle_log(Lsn(69)) && space.log() == 90 * KIB);
    assert!(space.settle_log(Lsn(70)) && space.log() == 50 * KIB);
    assert!(space.try_reserve_log(10 * KIB) && !space.try_reserve_log(1));
    space.assign_log(Lsn(0), 0, 10 * KIB);
    set_backing(&space, only_common((9, 0, 0), (OF_LOGS, 80 * KIB)));
    assert!(space.try_reserve_log(30 * KIB) && !space.try_reserve_log(1));
    // This comes too late: the record is in its log already.
    space.assign_log(Lsn(60), 30 * KIB, 0);
    assert!(space.settle_log(Lsn(300)));
    assert_eq!(space.log(), 0);
}

/// A file system with the logs, extents of the common area and of a dedicated physical volume; and
/// extents of the common area that have their space.
struct Host {
    space: Space,
    /// Bytes that the file system has, and that it had at the last measurement less what extents
    /// have taken since.
    room: u64,
    known: u64,
    solid: u64,
    /// Slots that are promised and not allocated: in the common area, and on the dedicated one.
    promised: [u64; 2],
}

const AREAS: [Area; 2] = [Area::Common, Area::Only(7)];

impl Host {
    fn new(solid: u64, room: u64) -> Host {
        let space = Space::new(64 << 10);
        for area in AREAS {
            assert!(space.change_capacity((area, 100), &free_of(area, 100), false));
        }
        let mut host = Host { space, room, known: 0, solid, promised: [0; 2] };
        host.measure();
        host
    }

    fn measure(&mut self) {
        self.known = self.room;
        let sparse = |extents| BTreeMap::from([(BELOW, extents)]);
        let rooms =
            [AreaRoom { solid: self.solid, sparse: sparse(40) }, AreaRoom { solid: 0, sparse: sparse(30) }];
        let bytes = BTreeMap::from([(BELOW, self.room)]);
        let below = RoomBelow { bytes, of_logs: Some(BELOW), log_bytes: self.room };
        set_backing(&self.space, BackingRoom { areas: AREAS.into_iter().zip(rooms).collect(), below });
    }

    /// Allocates a slot that is promised, as an allocator does: on the file system only if that
    /// leaves others what they are promised, or if there is nothing else.
    fn allocate(&mut self, of: usize, prefers_solid: bool) {
        let kind = AREAS[of].slots(16);
        self.promised[of] -= 1;
        let taken = self.space.logs() + self.space.claimed(BELOW, AREAS[of]);
        let fits_below = self.known.saturating_sub(taken) >= 64 * KIB;
        let is_solid = of == 0 && self.solid > 0 && (prefers_solid || !fits_below);
        assert!(self.space.open_extent(kind, (!is_solid).then_some(BELOW), true));
        let mut change = SpaceChange::default();
        change.of(AREAS[of]).free_slots[16] = -1;
        self.space.settle(&change, &[(kind, 1)]);
        if is_solid {
            self.solid -= 1;
        } else {
            // Logs may count twice until the next measurement: then the margin is used.
            self.room = self.room.checked_sub(64 * KIB).expect("room for an extent");
            self.known -= 64 * KIB;
        }
    }
}

/// Whatever is promised and written in whatever order, the file system has enough.
#[test]
fn promises_are_kept() {
    use crate::world::{Rng, SplitMix};
    let rng = SplitMix::new(5);
    let below = |n: u64| rng.next() % n;
    for round in 0..400 {
        let mut host = Host::new(round % 5, below(2000 * KIB));
        let (mut lsn, mut records) = (Lsn::ZERO, VecDeque::new());
        for _ in 0..300 {
            let of = below(2) as usize;
            match below(5) {
                0 if host.space.try_reserve(AREAS[of].slots(16), 1) => host.promised[of] += 1,
                1 | 2 => {
                    let bytes = 1 + below(60 * KIB);
                    if host.space.try_reserve_log(bytes) {
                        (lsn, _) = (lsn.next(), records.push_back((lsn.next(), bytes)));
                        host.space.assign_log(lsn, bytes, 0);
                    }
                }
                3 if host.promised[of] > 0 => host.allocate(of, below(2) == 0),
                _ => {
                    let Some((lsn, bytes)) = records.pop_front() else { continue };
                    let written = 1 + below(bytes);
                    host.room = host.room.checked_sub(written).expect("room for a record");
                    host.space.settle_log(lsn);
                }
            }
            if below(4) == 0 {
                host.measure();
            }
        }
    }
}
