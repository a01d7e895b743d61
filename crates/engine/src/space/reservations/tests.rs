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

fn only_common(room: AreaRoom, log_bytes: u64) -> BackingRoom {
    BackingRoom { areas: BTreeMap::from([(Area::Common, room)]), log_bytes }
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
    assert!(space.open_extent(of(12), false));
    assert!(!space.open_extent(of(12), false));
    assert!(space.open_extent(of(13), true), "what was promised itself");
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
    assert!(!space.open_extent(of(12), false) && space.open_extent(of(16), true));
    assert!(!space.change_capacity((other, -1), &free_of(other, -1), false));
    assert_eq!((space.totals().available, space.totals().reserved), (0, 5 << 16));
    assert_eq!(space.totals_of(other).capacity, 3 << 16);
    space.adjust_reserved(other.slots(16), -1);
    assert!(space.change_capacity((other, -1), &free_of(other, -1), false));
    assert!(!space.try_reserve(of(16), 1), "what one area lacks, another one does not give");
    assert_eq!(space.needed(), BTreeMap::from([(Area::Common, 1), (other, 2)]));
}

#[test]
fn an_area_that_comes_waits_for_a_measurement() {
    let space = backed_by(only_common(AreaRoom { solid: 9, ..AreaRoom::ALL }, u64::MAX));
    let other = Area::Only(1);
    assert!(space.change_capacity((other, 4), &free_of(other, 4), false));
    assert!(!space.try_reserve(other.slots(16), 1));
    let solid = AreaRoom { solid: 4, ..AreaRoom::NONE };
    let areas = BTreeMap::from([(Area::Common, solid), (other, solid)]);
    set_backing(&space, BackingRoom { areas, log_bytes: u64::MAX });
    assert!(space.try_reserve(other.slots(16), 4) && !space.try_reserve(other.slots(16), 1));
}

#[test]
fn backing_limits() {
    let space = Space::new(64 << 10);
    assert!(space.change_capacity((Area::Common, 9), &free(9), false));
    let room = AreaRoom { sparse: 9, sparse_bytes: 100 << 10, ..AreaRoom::NONE };
    set_backing(&space, only_common(room, u64::MAX));
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
    let shared = AreaRoom { solid: 0, sparse: 9, sparse_bytes: bytes, shared: true };
    let space = backed_by(only_common(shared, bytes));
    assert!(space.try_reserve(of(16), 2), "128 KiB");
    assert!(space.try_reserve_log(100 * KIB) && !space.try_reserve_log(73 * KIB));
    assert!(space.try_reserve(of(16), 1) && !space.try_reserve(of(16), 1));
    assert_eq!(space.totals().available, 0);
    assert!(space.try_reserve_log(8 * KIB) && !space.try_reserve_log(1));

    let space = backed_by(only_common(AreaRoom { shared: false, ..shared }, bytes));
    assert!(space.try_reserve_log(300 * KIB) && !space.try_reserve_log(1));
    assert!(space.try_reserve(of(16), 4) && !space.try_reserve(of(16), 1), "elsewhere");

    // A device takes extents when the file system is full, but it is unknown where they will be
    // placed.
    let space = backed_by(only_common(AreaRoom { solid: 2, ..shared }, bytes));
    assert!(space.try_reserve(of(16), 6) && !space.try_reserve(of(16), 1) && !space.try_reserve_log(1));
    space.adjust_reserved(of(16), -6);
    assert!(space.try_reserve_log(300 * KIB) && !space.try_reserve(of(16), 1));
    assert_eq!(space.totals().available, 128 * KIB);
}

#[test]
fn what_logs_have_taken_is_gone_until_it_is_measured() {
    let room = AreaRoom { solid: 9, ..AreaRoom::ALL };
    let space = backed_by(only_common(room, 100 * KIB));
    assert!(space.try_reserve_log(60 * KIB));
    space.assign_log(Lsn(70), 40 * KIB, 20 * KIB);
    assert!(space.try_reserve_log(50 * KIB));
    space.assign_log(Lsn(300), 50 * KIB, 0);
    assert!(!space.settle_log(Lsn(69)) && space.log() == 90 * KIB);
    assert!(space.settle_log(Lsn(70)) && space.log() == 50 * KIB);
    assert!(space.try_reserve_log(10 * KIB) && !space.try_reserve_log(1));
    space.assign_log(Lsn(0), 0, 10 * KIB);
    set_backing(&space, only_common(room, 80 * KIB));
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
        let measured = |room: u64, solid: u64| {
            only_common(AreaRoom { solid, sparse: 40, sparse_bytes: room, shared: true }, room)
        };
        let space = Space::new(64 << 10);
        assert!(space.change_capacity((Area::Common, 100), &free(100), false));
        set_backing(&space, measured(room, free_solid));
        let (mut lsn, mut slots, mut records) = (Lsn::ZERO, 0u64, VecDeque::new());
        for _ in 0..300 {
            match below(5) {
                0 if space.try_reserve(of(16), 1) => slots += 1,
                1 | 2 => {
                    let bytes = 1 + below(60 * KIB);
                    if space.try_reserve_log(bytes) {
                        (lsn, _) = (lsn.next(), records.push_back((lsn.next(), bytes)));
                        space.assign_log(lsn, bytes, 0);
                    }
                }
                3 if slots > 0 => {
                    slots -= 1;
                    assert!(space.open_extent(of(16), true));
                    let mut change = SpaceChange::default();
                    change.of(Area::Common).free_slots[16] = -1;
                    space.settle(&change, &[(of(16), 1)]);
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
                set_backing(&space, measured(room, free_solid));
            }
        }
    }
}
