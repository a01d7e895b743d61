//! Tests of layouts that grow, as disks.

use super::*;
use crate::disk::Disk;
use crate::disk::layout::NewLayout;
use crate::disk::layout::member::CONTENT_START;
use crate::disk::layout::record::LayoutKind;
use crate::disk::layout::spans::UNIT;
use crate::disk::layout::testing::{LayoutInMemory, read};
use crate::disk::{Dir, OpenMode};
use proptest::prelude::*;
use uuid::Uuid;

const RAID5: LayoutKind = LayoutKind::Raid5 { unit: 8192 };

/// Adds members with these numbers of units. Their names are the numbers behind the last one.
fn add(place: &LayoutInMemory, disk: &dyn Disk, units: &[u64]) {
    let layout = disk.as_layout().unwrap();
    let first = layout.members().record().members.len();
    let new = units.iter().enumerate().map(|(n, units)| {
        let path = (first + n).to_string();
        let disk = place.dir.open_locked(&path, OpenMode::CreateNew).unwrap();
        disk.set_len(CONTENT_START + units * UNIT).unwrap();
        NewMember { uuid: Uuid::from_u128(900 + (first + n) as u128), path, disk }
    });
    layout.add_members(new.collect(), None).unwrap();
}

/// Grows to the end. `between` is called after each part of a step. What is not in use is copied as
/// well.
fn grow(disk: &dyn Disk, between: &mut dyn FnMut(&dyn Disk)) -> io::Result<()> {
    let layout = disk.as_layout().unwrap();
    for _ in 0..1000 {
        match layout.grow(&[])? {
            Growing::Not => return Ok(()),
            Growing::Waits => panic!("nothing reads"),
            Growing::Extended => between(disk),
            Growing::Moves(begun, range) => {
                between(disk);
                for at in range.clone().step_by(UNIT as usize) {
                    layout.copy_to_incoming(at, UNIT.min(range.end - at), &|_, _| true)?;
                    between(disk);
                }
                layout.finish_move(begun)?;
                between(disk);
            }
        }
    }
    panic!("the layout never ends to grow");
}

fn len(disk: &dyn Disk) -> u64 {
    disk.len().unwrap()
}

/// Writes content in which no two sectors are equal everywhere. Returns it.
fn fill(disk: &dyn Disk, salt: u8) -> Vec<u8> {
    let content: Vec<u8> = (0..len(disk))
        .map(|n| ((n / 512) as u8).wrapping_mul(7).wrapping_add((n / 4096 % 253) as u8) ^ salt)
        .collect();
    disk.write_at(&content, 0).unwrap();
    disk.sync(SyncPurpose::Apply).unwrap();
    content
}

/// Checks that the content is there with all members, and without any one of them.
fn check(place: &LayoutInMemory, disk: Arc<dyn Disk>, content: &[u8]) {
    assert!(read(&*disk, 0, content.len()) == content, "all members are there");
    disk.sync(SyncPurpose::Apply).unwrap();
    let members = disk.as_layout().unwrap().members().record().members.len();
    drop(disk);
    for member in 0..members {
        place.broken.set(&member.to_string(), "open");
        let disk = place.try_open().unwrap();
        assert!(read(&*disk, 0, content.len()) == content, "without member {member}");
        drop(disk);
        place.broken.heal();
    }
}

#[test]
fn full_members_and_an_empty_one_give_half_of_that() {
    for (kind, sizes, width, before, after) in [
        (LayoutKind::Mirror, &[4, 4][..], 2, 4, 6),
        (LayoutKind::Mirror, &[2, 2, 2], 3, 2, 2),
        (RAID5, &[6, 6, 6], 3, 12, 16),
        (RAID5, &[3, 3, 3, 3], 4, 9, 9),
    ] {
        let place = LayoutInMemory::new(sizes, kind, width);
        let disk = place.open();
        let mut content = fill(&*disk, 1);
        assert_eq!(len(&*disk), before * UNIT);
        add(&place, &*disk, &[sizes[0]]);
        let mut salt = 0u8;
        grow(&*disk, &mut |disk| {
            // Writes reach what moves before and after it was copied.
            salt += 1;
            for (n, byte) in content.iter_mut().enumerate().step_by(4096 * 37 + usize::from(salt)) {
                *byte = salt;
                disk.write_at(&[salt], n as u64).unwrap();
            }
            disk.sync(SyncPurpose::Apply).unwrap();
        })
        .unwrap();
        assert_eq!(len(&*disk), after * UNIT, "{kind:?} of {sizes:?}");
        content.resize((after * UNIT) as usize, 0);
        let new = (before * UNIT) as usize..content.len();
        content[new.clone()].fill(9);
        disk.write_at(&content[new], before * UNIT).unwrap();
        disk.sync(SyncPurpose::Apply).unwrap();
        check(&place, disk, &content);
    }
}

#[test]
fn larger_disks_are_used() {
    let place = LayoutInMemory::new(&[2, 2], LayoutKind::Mirror, 2);
    let disk = place.open();
    let layout = disk.as_layout().unwrap();
    for member in ["0", "1"] {
        assert_eq!(layout.growth_with(&[]).unwrap(), None);
        let file = place.memory.open(member, OpenMode::Existing).unwrap();
        file.set_len(CONTENT_START + 5 * UNIT).unwrap();
    }
    assert_eq!(layout.growth(), None, "nobody has asked for it");
    assert_eq!(layout.growth_with(&[]).unwrap(), Some(Growth { size: 5 * UNIT, moves: 0 }));
    layout.measure_members().unwrap();
    grow(&*disk, &mut |_| ()).unwrap();
    assert_eq!(len(&*disk), 5 * UNIT);
    let content = fill(&*disk, 2);
    check(&place, disk, &content);
}

#[test]
fn an_interrupted_move_begins_again() {
    for kind in [LayoutKind::Mirror, RAID5] {
        let (sizes, width) = if kind == RAID5 { (&[3, 3, 3][..], 3) } else { (&[4, 4][..], 2) };
        let place = LayoutInMemory::new(sizes, kind, width);
        let mut disk = place.open();
        let content = fill(&*disk, 3);
        add(&place, &*disk, &[4]);
        let Growing::Moves(begun, range) = disk.as_layout().unwrap().grow(&[]).unwrap() else {
            panic!("no move")
        };
        disk.as_layout().unwrap().copy_to_incoming(range.start, UNIT, &|_, _| true).unwrap();
        drop(disk);
        disk = place.open();
        disk.as_layout().unwrap().finish_move(begun).unwrap();
        assert!(read(&*disk, 0, content.len()) == content);
        assert_eq!(len(&*disk), content.len() as u64);
        grow(&*disk, &mut |_| ()).unwrap();
        assert!(len(&*disk) > content.len() as u64);
        check(&place, disk, &content);
    }
}

#[test]
fn a_place_that_was_left_is_not_used_while_a_read_may_be_there() {
    let place = LayoutInMemory::new(&[4, 4], LayoutKind::Mirror, 2);
    let disk = place.open();
    let layout = disk.as_layout().unwrap();
    add(&place, &*disk, &[4]);
    let held = layout.places().load();
    let Growing::Moves(begun, range) = layout.grow(&[]).unwrap() else { panic!("no move") };
    layout.copy_to_incoming(range.start, range.end - range.start, &|_, _| true).unwrap();
    layout.finish_move(begun).unwrap();
    assert_eq!(layout.grow(&[]).unwrap(), Growing::Waits);
    drop(held);
    assert_ne!(layout.grow(&[]).unwrap(), Growing::Waits);
}

#[test]
fn a_full_disk_spoils_the_move_and_stays_a_member() {
    for kind in [LayoutKind::Mirror, RAID5] {
        let place = LayoutInMemory::new(&[4, 4, 4], kind, 3);
        let disk = place.open();
        let mut content = fill(&*disk, 4);
        add(&place, &*disk, &[4]);
        let layout = disk.as_layout().unwrap();
        let Growing::Moves(begun, range) = layout.grow(&[]).unwrap() else { panic!("no move") };
        place.broken.set("3", "full");
        assert!(layout.copy_to_incoming(range.start, UNIT, &|_, _| true).is_err());
        disk.write_at(&[7; 4096], range.start).unwrap();
        disk.sync(SyncPurpose::Apply).unwrap();
        content[range.start as usize..][..4096].fill(7);
        layout.finish_move(begun).unwrap();
        assert_eq!(place.stored_in(), [true; 4]);
        assert!(read(&*disk, 0, content.len()) == content);
        place.broken.heal();
        grow(&*disk, &mut |_| ()).unwrap();
        check(&place, disk, &content);
    }
}

#[test]
fn a_member_that_fails_ends_the_move() {
    for kind in [LayoutKind::Mirror, RAID5] {
        for (failing, what) in [("3", "write"), ("3", "sync"), ("0", "write"), ("1", "sync")] {
            let place = LayoutInMemory::new(&[3, 3, 3], kind, 3);
            let disk = place.open();
            let mut content = fill(&*disk, 5);
            add(&place, &*disk, &[4]);
            let layout = disk.as_layout().unwrap();
            let Growing::Moves(begun, range) = layout.grow(&[]).unwrap() else { panic!("no move") };
            layout.copy_to_incoming(range.start, range.end - range.start, &|_, _| true).unwrap();
            place.broken.set(failing, what);
            for at in [0, range.start, len(&*disk) - 4096] {
                disk.write_at(&[8; 4096], at).unwrap();
                content[at as usize..][..4096].fill(8);
            }
            disk.sync(SyncPurpose::Apply).unwrap();
            layout.finish_move(begun).unwrap();
            assert_eq!(layout.grow(&[]).unwrap(), Growing::Not, "a member is out");
            assert!(read(&*disk, 0, content.len()) == content, "{kind:?}: {what} of {failing} fails");
            let out = place.stored_in().iter().filter(|is_in| !**is_in).count();
            assert_eq!(out, 1);
            place.broken.heal();
            // After the rebuild of the member it goes on.
            let number = failing.parse().unwrap();
            place.replace(layout, number, "new", 4);
            layout.copy_to_incoming(0, len(&*disk), &|_, _| true).unwrap();
            layout.note_rebuilt(layout.members().rebuilt().unwrap().0, u64::MAX).unwrap();
            grow(&*disk, &mut |_| ()).unwrap();
            assert!(read(&*disk, 0, content.len()) == content);
            assert!(len(&*disk) > content.len() as u64);
        }
    }
}

#[test]
fn the_others_take_over_what_a_member_had() {
    for (kind, width) in [(LayoutKind::Mirror, 2), (RAID5, 3)] {
        for lost in ["0", "1", "3"] {
            let how = NewLayout { kind, width, reserve: 1 };
            let place = LayoutInMemory::with_reserve(&[4, 4, 4, 4], how);
            let disk = place.open();
            let mut content = fill(&*disk, 7);
            let layout = disk.as_layout().unwrap();
            place.broken.set(lost, "write");
            disk.write_at(&content, 0).unwrap();
            disk.sync(SyncPurpose::Apply).unwrap();
            let number: usize = lost.parse().unwrap();
            assert_eq!(layout.grow(&[]).unwrap(), Growing::Not, "nobody has given it up");
            assert!(!layout.members().takes_over() && layout.members().record().survives() == 0);
            let mut salt = 0u8;
            loop {
                match layout.grow(&[number]).unwrap() {
                    Growing::Not => break,
                    Growing::Moves(begun, range) => {
                        for at in range.clone().step_by(UNIT as usize) {
                            salt += 1;
                            for at in (0..content.len()).step_by(4096 * 31 + usize::from(salt)) {
                                content[at] = salt;
                                disk.write_at(&[salt], at as u64).unwrap();
                            }
                            disk.sync(SyncPurpose::Apply).unwrap();
                            layout.copy_to_incoming(at, UNIT.min(range.end - at), &|_, _| true).unwrap();
                        }
                        layout.finish_move(begun).unwrap();
                    }
                    other => panic!("{other:?}"),
                }
            }
            let record = layout.members().record();
            assert_eq!((record.survives(), record.is_used(number)), (1, false), "{kind:?} without {lost}");
            assert!(!layout.members().takes_over());
            place.broken.heal();
            check(&place, disk, &content);
        }
    }
}

/// An operator may begin a rebuild, or put a member out, while the next move is chosen.
#[test]
fn a_move_does_not_begin_when_the_record_has_changed() {
    for is_rebuild in [false, true] {
        let place = LayoutInMemory::new(&[4, 4, 4], LayoutKind::Mirror, 3);
        let disk = place.open();
        add(&place, &*disk, &[4]);
        let layout = disk.as_layout().unwrap();
        let record = layout.members().record();
        let Some(GrowthStep::Move(step)) = next_step(&record) else { panic!("no move") };
        if is_rebuild {
            place.replace(layout, 0, "new", 4);
        } else {
            layout.members().put_out(3, "a test").unwrap();
        }
        let rebuilt = layout.members().rebuilt();
        assert_eq!(layout.begin_move(&record, step), Growing::Waits);
        assert_eq!((layout.members().rebuilt(), layout.members().valid_move()), (rebuilt, None));
    }
}

/// A disk that is full spoils the move to it. Nothing else needs it.
#[test]
fn a_spoilt_move_keeps_no_rebuild_from_its_end() {
    for kind in [LayoutKind::Mirror, RAID5] {
        let place = LayoutInMemory::new(&[4, 4, 4], kind, 3);
        let disk = place.open();
        let content = fill(&*disk, 9);
        add(&place, &*disk, &[4]);
        let layout = disk.as_layout().unwrap();
        let Growing::Moves(_, range) = layout.grow(&[]).unwrap() else { panic!("no move") };
        place.broken.set("3", "full");
        layout.copy_to_incoming(range.start, UNIT, &|_, _| true).unwrap_err();
        place.broken.set("1", "write");
        disk.write_at(&content, 0).unwrap();
        disk.sync(SyncPurpose::Apply).unwrap();
        assert_eq!(place.stored_in(), [true, false, true, true]);
        place.replace(layout, 1, "new", 4);
        let (begun, _) = layout.members().rebuilt().unwrap();
        layout.copy_to_incoming(0, len(&*disk), &|_, _| true).unwrap();
        disk.write_at(&content[..UNIT as usize], 0).unwrap();
        disk.sync(SyncPurpose::Apply).unwrap();
        layout.note_rebuilt(begun, u64::MAX).unwrap();
        assert_eq!(place.stored_in(), [true; 4], "{kind:?}");
        assert!(read(&*disk, 0, content.len()) == content);
    }
}

/// In a takeover no further member can be out. A write that fails only where a place moves to is
/// good all the same.
#[test]
fn a_write_is_good_that_fails_where_a_place_moves_to() {
    for (kind, width) in [(LayoutKind::Mirror, 2), (RAID5, 3)] {
        for what in ["write", "full"] {
            let how = NewLayout { kind, width, reserve: 1 };
            let place = LayoutInMemory::with_reserve(&[4, 4, 4, 4], how);
            let disk = place.open();
            let mut content = fill(&*disk, 7);
            let layout = disk.as_layout().unwrap();
            layout.members().put_out(1, "a test").unwrap();
            let Growing::Moves(begun, range) = layout.grow(&[1]).unwrap() else { panic!("no move") };
            let (_, step) = layout.members().valid_move().unwrap();
            place.broken.set(&step.to.member.to_string(), what);
            let at = range.start as usize;
            content[at..at + 65536].fill(5);
            disk.write_at(&content[at..at + 65536], range.start).unwrap();
            disk.sync(SyncPurpose::Apply).unwrap();
            layout.finish_move(begun).unwrap();
            place.broken.heal();
            // The member is out only if the others have everything without it.
            assert!(layout.members().record().is_whole_without(&[]));
            assert!(layout.members().record().is_used(1), "{kind:?}: the move was spoilt");
            disk.write_at(&content[at..at + 4096], range.start).unwrap();
            disk.sync(SyncPurpose::Apply).unwrap();
            assert!(read(&*disk, 0, content.len()) == content, "{kind:?} {what}");
        }
    }
}

#[test]
fn a_record_that_can_not_be_stored_changes_nothing() {
    let place = LayoutInMemory::new(&[4, 4], LayoutKind::Mirror, 2);
    let disk = place.open();
    let content = fill(&*disk, 6);
    let layout = disk.as_layout().unwrap();
    place.broken.set("layout-~m", "rename");
    let disk3 = place.dir.open_locked("2", OpenMode::CreateNew).unwrap();
    disk3.set_len(CONTENT_START + 4 * UNIT).unwrap();
    let new = NewMember { uuid: Uuid::from_u128(9), path: "2".into(), disk: disk3 };
    layout.add_members(vec![new], None).unwrap_err();
    assert_eq!((layout.growth(), place.stored_in()), (None, vec![true; 2]));
    place.broken.heal();
    place.memory.remove("2").unwrap();
    add(&place, &*disk, &[4]);
    let Growing::Moves(begun, range) = layout.grow(&[]).unwrap() else { panic!("no move") };
    layout.copy_to_incoming(range.start, range.end - range.start, &|_, _| true).unwrap();
    place.broken.set("layout-~m", "rename");
    layout.finish_move(begun).unwrap_err();
    assert!(read(&*disk, 0, content.len()) == content);
    place.broken.heal();
    layout.finish_move(begun).unwrap();
    grow(&*disk, &mut |_| ()).unwrap();
    assert_eq!(len(&*disk), 6 * UNIT);
    check(&place, disk, &content);
}

/// The new place of what is not in use has what its disk had before. A parity must not be computed
/// from that.
#[test]
fn lines_that_a_move_did_not_copy_are_not_known_to_be_consistent() {
    let place = LayoutInMemory::new(&[4, 4, 4, 4], RAID5, 4);
    let disk = place.open();
    let layout = disk.as_layout().unwrap();
    let new = place.dir.open_locked("4", OpenMode::CreateNew).unwrap();
    new.write_at(&vec![0xEE; (CONTENT_START + 4 * UNIT) as usize], 0).unwrap();
    layout
        .add_members(vec![NewMember { uuid: Uuid::from_u128(9), path: "4".into(), disk: new }], None)
        .unwrap();
    let Growing::Moves(begun, range) = layout.grow(&[]).unwrap() else { panic!("no move") };
    layout.finish_move(begun).unwrap();
    let mut content = vec![0; len(&*disk) as usize];
    for at in range.step_by(40 << 10) {
        disk.write_at(&[7; 4096], at).unwrap();
        content[at as usize..][..4096].fill(7);
    }
    disk.sync(SyncPurpose::Apply).unwrap();
    drop(disk);
    for member in 0..5 {
        place.broken.set(&member.to_string(), "open");
        let disk = place.try_open().unwrap();
        for (at, block) in (0..).step_by(4096).zip(content.chunks(4096)).filter(|(_, block)| block[0] == 7) {
            assert!(read(&*disk, at, 4096) == block, "byte {at} without member {member}");
        }
        place.broken.heal();
    }
}

/// What a random run does while a layout grows.
struct Around<'p> {
    place: &'p LayoutInMemory,
    /// Content that the disk must have.
    model: Vec<u8>,
    /// What is written next: (place, bytes, byte).
    writes: std::vec::IntoIter<(u32, usize, u8)>,
    steps: usize,
    /// A member fails: (step, member, whether writes do, and not syncs).
    fails: (usize, usize, bool),
    /// Number of copies until a restart.
    copies: usize,
}

impl Around<'_> {
    fn act(&mut self, disk: &dyn Disk) {
        self.steps += 1;
        let (step, member, writes) = self.fails;
        if self.steps == step && member < self.place.stored_in().len() {
            self.place.broken.set(&member.to_string(), if writes { "write" } else { "sync" });
        }
        let Some((at, size, byte)) = self.writes.next() else { return };
        let at = u64::from(at) % self.model.len() as u64;
        let size = size.min(self.model.len() - at as usize);
        disk.write_at(&vec![byte; size], at).unwrap();
        if byte % 3 == 0 {
            disk.sync(SyncPurpose::Apply).unwrap();
        }
        self.model[at as usize..at as usize + size].fill(byte);
    }

    /// Grows to the end, or to a restart. Returns whether it is the end.
    fn grow(&mut self, disk: &dyn Disk) -> bool {
        let layout = disk.as_layout().unwrap();
        for _ in 0..100 {
            match layout.grow(&[]).unwrap() {
                Growing::Not | Growing::Waits => return true,
                Growing::Extended => {}
                Growing::Moves(begun, range) => {
                    for at in range.clone().step_by(UNIT as usize) {
                        self.act(disk);
                        layout.copy_to_incoming(at, UNIT.min(range.end - at), &|_, _| true).unwrap();
                        self.copies = self.copies.wrapping_sub(1);
                        if self.copies == 0 {
                            return false;
                        }
                    }
                    self.act(disk);
                    layout.finish_move(begun).unwrap();
                }
            }
            self.act(disk);
        }
        panic!("the layout never ends to grow");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Members of any sizes, writes at any time, a restart, and a member that fails.
    #[test]
    fn a_layout_that_grows_is_like_a_disk(
        sizes in prop::collection::vec(1u64..4, 3..5),
        new in prop::collection::vec(1u64..4, 1..3),
        is_raid in any::<bool>(),
        writes in prop::collection::vec((any::<u32>(), 1usize..200_000, any::<u8>()), 1..20),
        fails in (0usize..30, 0usize..6, any::<bool>()),
        copies in 0usize..20,
    ) {
        let (kind, width) = if is_raid { (RAID5, 3) } else { (LayoutKind::Mirror, 2) };
        let place = LayoutInMemory::new(&sizes, kind, width);
        let mut disk = place.open();
        let model = vec![0u8; len(&*disk) as usize];
        disk.write_at(&model, 0).unwrap();
        disk.sync(SyncPurpose::Apply).unwrap();
        add(&place, &*disk, &new);
        let writes = writes.into_iter();
        let mut around = Around { place: &place, model, writes, steps: 0, fails, copies };
        if !around.grow(&*disk) {
            disk.sync(SyncPurpose::Apply).unwrap();
            drop(disk);
            disk = place.open();
            prop_assert!(around.grow(&*disk));
        }
        let model = around.model;
        prop_assert!(read(&*disk, 0, model.len()) == model);
        disk.sync(SyncPurpose::Apply).unwrap();
        let is_whole = place.stored_in().iter().all(|is_in| *is_in);
        place.broken.heal();
        if is_whole {
            check(&place, disk, &model);
        } else {
            drop(disk);
            prop_assert!(read(&*place.open(), 0, model.len()) == model);
        }
    }
}
