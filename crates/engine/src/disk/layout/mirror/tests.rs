//! Tests of mirrors as disks.

use crate::disk::layout::member::CONTENT_START;
use crate::disk::layout::record::{LayoutKind, LayoutRecord};
use crate::disk::layout::spans::UNIT;
use crate::disk::layout::testing::{LayoutInMemory, read};
use crate::disk::layout::{LayoutOptions, with_layouts};
use crate::disk::{Dir, OpenMode, Settled, SyncPurpose};
use proptest::prelude::*;
use std::io;
use std::sync::Arc;

/// Makes a mirror `m` of members `0`, `1` and so on with these numbers of units.
fn mirror_of(sizes: &[u64], copies: usize) -> LayoutInMemory {
    LayoutInMemory::new(sizes, LayoutKind::Mirror, copies)
}

#[test]
fn what_is_written_is_read_whatever_member_goes() {
    for gone in ["0", "1", "2"] {
        let place = mirror_of(&[1, 2, 3], 2);
        let disk = place.open();
        assert_eq!(disk.len().unwrap(), 3 * UNIT);
        // It crosses all boundaries between members.
        let content: Vec<u8> = (0..3 * UNIT).map(|n| (n / 4096 % 251) as u8).collect();
        disk.write_at(&content, 0).unwrap();
        disk.write_vectored_at(&mut [io::IoSlice::new(b"ab"), io::IoSlice::new(b"cd")], UNIT - 2).unwrap();
        let whole = read(&*disk, 0, content.len());
        assert_eq!((&whole[..100], &whole[UNIT as usize - 2..][..4]), (&content[..100], &b"abcd"[..]));
        disk.sync(SyncPurpose::Apply).unwrap();
        drop(disk);
        place.broken.set(gone, "open");
        let disk = place.open();
        assert_eq!(read(&*disk, 0, content.len()), whole, "without {gone}");
        let is_in: Vec<bool> = ["0", "1", "2"].iter().map(|member| *member != gone).collect();
        assert_eq!(place.stored_in(), [true; 3], "an opening that fails later has changed nothing");
        disk.sync(SyncPurpose::Stamp).unwrap();
        assert_eq!(place.stored_in(), is_in);
        drop(disk);
        // A member that is there again has old content, and stays out.
        place.broken.heal();
        drop(place.open());
        assert_eq!(place.stored_in(), is_in);
        // No copy of a part is left without a second one.
        let other = if gone == "2" { "1" } else { "2" };
        place.broken.set(other, "open");
        let error = place.try_open().err().unwrap().to_string();
        assert!(error.contains("members are missing"), "{error}");
    }
}

#[test]
fn a_member_that_fails_is_out_durably_before_anybody_relies_on_it() {
    for what in ["write", "sync"] {
        let place = mirror_of(&[2, 2], 2);
        let disk = place.open();
        disk.write_at(&[1; 4096], 0).unwrap();
        disk.sync(SyncPurpose::Apply).unwrap();
        place.broken.set("1", what);
        disk.write_at(&[2; 4096], 0).unwrap();
        disk.sync(SyncPurpose::Apply).unwrap();
        assert_eq!(place.stored_in(), [true, false], "{what}");
        // Reads of all regions go to the member that is left.
        for at in [0, UNIT] {
            disk.write_at(&[3; 4096], at).unwrap();
            assert_eq!(read(&*disk, at, 4096), [3; 4096]);
        }
        // The last copy is not given up.
        place.broken.set("0", what);
        let failed = disk.write_at(&[4; 4096], 0).and_then(|()| disk.sync(SyncPurpose::Apply));
        assert_eq!(failed.unwrap_err().raw_os_error(), Some(5));
        assert_eq!(place.stored_in(), [true, false]);
    }
}

#[test]
fn a_sync_fails_while_the_record_can_not_be_written() {
    let place = mirror_of(&[2, 2], 2);
    let disk = place.open();
    place.broken.set("1", "write");
    place.broken.set("layout-~m", "sync");
    disk.write_at(&[2; 4096], 0).unwrap_err();
    disk.sync(SyncPurpose::Apply).unwrap_err();
    assert_eq!(place.stored_in(), [true, true]);
    place.broken.heal();
    disk.sync(SyncPurpose::Apply).unwrap();
    assert_eq!(place.stored_in(), [true, false]);
}

/// Nothing relies on a rebuild that did not begin, or on progress that was not stored. So a full
/// data directory fails neither writes nor syncs because of them.
#[test]
fn a_sync_does_not_need_the_record_of_a_rebuild_that_did_not_begin() {
    let place = mirror_of(&[2, 2], 2);
    let disk = place.open();
    let layout = disk.as_layout().unwrap();
    place.broken.set("layout-~m", "sync");
    place.try_replace(layout, 1, "new", 2).unwrap_err();
    disk.write_at(&[2; 4096], 0).unwrap();
    disk.sync(SyncPurpose::Apply).unwrap();
    place.broken.heal();
    place.replace(layout, 1, "newer", 2);
    place.broken.set("layout-~m", "sync");
    let (begun, _) = layout.members().rebuilt().unwrap();
    layout.note_rebuilt(begun, UNIT).unwrap_err();
    disk.sync(SyncPurpose::Apply).unwrap();
    place.broken.heal();
    layout.note_rebuilt(begun, UNIT).unwrap();
    assert_eq!(layout.members().rebuilt(), Some((begun, UNIT)));
}

#[test]
fn a_block_that_one_member_can_not_read_is_written_again() {
    let place = mirror_of(&[2, 2], 2);
    let disk = place.open();
    disk.write_at(&[7; 8192], 0).unwrap();
    // Byte 0 is read from member 0 first.
    place.broken.set("0", "read");
    assert_eq!(read(&*disk, 0, 8192), [7; 8192]);
    // It does not answer at all, and so it is out.
    assert_eq!(place.stored_in(), [false, true]);
    assert!(!disk.try_read_at(&mut [0; 512], 0).unwrap() || read(&*disk, 0, 512) == [7; 512]);
    place.broken.set("1", "read");
    let error = disk.read_at(&mut [0; 512], 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5));
    assert_eq!(place.stored_in(), [false, true], "the last copy stays");
}

#[test]
fn the_right_copy_is_found_by_its_content() {
    let place = mirror_of(&[2, 2], 2);
    let disk = place.open();
    disk.write_at(&[7; 4096], 4096).unwrap();
    assert!(disk.agrees(&[7; 4096], 4096).unwrap());
    let wrong = place.memory.open("0", OpenMode::Existing).unwrap();
    wrong.write_at(&[8], CONTENT_START + 4096 + 9).unwrap();
    assert!(!disk.agrees(&[7; 4096], 4096).unwrap());
    let mut buf = [0; 4096];
    let settle = |buf: &mut [u8], right: u8| disk.settle(buf, 4096, &|copy| copy.iter().all(|b| *b == right));
    assert_eq!(settle(&mut buf, 9).unwrap(), Settled::NoneRight);
    assert_eq!(settle(&mut buf, 7).unwrap(), Settled::Mended);
    assert_eq!(buf, [7; 4096]);
    assert_eq!(settle(&mut buf, 7).unwrap(), Settled::AllRight);
    assert!(disk.agrees(&[7; 4096], 4096).unwrap());
}

#[test]
fn a_rebuilt_member_has_everything() {
    for was_in in [false, true] {
        let place = mirror_of(&[3, 3], 2);
        let disk = place.open();
        let mirror = disk.as_layout().unwrap();
        disk.write_at(&vec![1; 3 * UNIT as usize], 0).unwrap();
        if !was_in {
            mirror.members().put_out(1, "a test").unwrap();
        }
        place.replace(mirror, 1, "new", 3);
        assert_eq!(place.stored_in(), [true, was_in]);
        let (begun, rebuilt) = mirror.members().rebuilt().unwrap();
        assert_eq!(rebuilt, 0);
        mirror.copy_to_incoming(0, UNIT, &|_, _| true).unwrap();
        // Writes reach the new disk, whether what is there was copied or not.
        disk.write_at(&[2; 4096], 100 << 10).unwrap();
        disk.write_at(&[3; 4096], 2 * UNIT).unwrap();
        mirror.note_rebuilt(begun, UNIT).unwrap();
        // It goes on after a restart.
        drop(disk);
        let disk = place.open();
        let mirror = disk.as_layout().unwrap();
        let (begun, rebuilt) = mirror.members().rebuilt().unwrap();
        assert_eq!(rebuilt, UNIT);
        mirror.copy_to_incoming(UNIT, 2 * UNIT, &|_, _| true).unwrap();
        mirror.note_rebuilt(begun, u64::MAX).unwrap();
        assert_eq!((mirror.members().rebuilt(), place.stored_in()), (None, vec![true, true]));
        let whole = read(&*disk, 0, 3 * UNIT as usize);
        drop(disk);
        place.broken.set("0", "open");
        let disk = place.open();
        assert_eq!(read(&*disk, 0, 3 * UNIT as usize), whole);
        assert_eq!((whole[100 << 10], whole[2 * UNIT as usize], whole[0]), (2, 3, 1));
    }
}

#[test]
fn a_rebuild_takes_the_right_copy_and_goes_on_behind_what_nobody_can_read() {
    let place = mirror_of(&[2, 2, 2], 3);
    let disk = place.open();
    let mirror = disk.as_layout().unwrap();
    disk.write_at(&[7; 8192], 0).unwrap();
    mirror.members().put_out(2, "a test").unwrap();
    place.replace(mirror, 2, "new", 2);
    let rotten = place.memory.open("0", OpenMode::Existing).unwrap();
    rotten.write_at(&[8], CONTENT_START + 4096).unwrap();
    let is_right = |at: u64, block: &[u8]| at >= 8192 || block.iter().all(|byte| *byte == 7);
    assert_eq!(mirror.copy_to_incoming(0, 2 * UNIT, &is_right).unwrap(), []);
    let copied = place.memory.open("new", OpenMode::Existing).unwrap();
    assert_eq!(read(&*copied, CONTENT_START, 8192), [7; 8192]);
    ["0", "1"].iter().for_each(|member| place.broken.set(member, "read"));
    let lost = mirror.copy_to_incoming(0, 8192, &is_right).unwrap();
    assert_eq!((lost.len(), lost[0].clone()), (16, 0..512));
    assert_eq!(read(&*copied, CONTENT_START, 8192), [0; 8192]);
}

#[test]
fn a_full_disk_ends_its_rebuild_and_delays_nobody() {
    let place = mirror_of(&[1, 1], 2);
    let disk = place.open();
    let mirror = disk.as_layout().unwrap();
    mirror.members().put_out(1, "a test").unwrap();
    place.replace(mirror, 1, "new", 1);
    place.broken.set("new", "full");
    disk.write_at(&[1; 4096], 0).unwrap();
    assert_eq!(mirror.members().rebuilt(), None);
    assert!(mirror.members().record().members[1].reason.contains("the rebuild onto new ended"));
}

#[test]
fn a_member_that_fails_makes_a_rebuild_begin_again() {
    let place = mirror_of(&[1, 1, 1], 3);
    let disk = place.open();
    let mirror = disk.as_layout().unwrap();
    mirror.members().put_out(2, "a test").unwrap();
    place.replace(mirror, 2, "new", 1);
    let (begun, _) = mirror.members().rebuilt().unwrap();
    mirror.copy_to_incoming(0, UNIT, &|_, _| true).unwrap();
    place.broken.set("1", "write");
    disk.write_at(&[1; 4096], 0).unwrap();
    mirror.note_rebuilt(begun, u64::MAX).unwrap();
    assert_eq!(place.stored_in(), [true, false, false]);
    assert_eq!(mirror.members().rebuilt().unwrap().1, 0);
}

#[test]
fn what_another_rebuild_has_copied_does_not_count() {
    let place = mirror_of(&[1, 1, 1], 3);
    let disk = place.open();
    let mirror = disk.as_layout().unwrap();
    mirror.members().put_out(1, "a test").unwrap();
    mirror.members().put_out(2, "a test").unwrap();
    place.replace(mirror, 1, "one", 1);
    let (begun, _) = mirror.members().rebuilt().unwrap();
    place.replace(mirror, 2, "two", 1);
    mirror.note_rebuilt(begun, u64::MAX).unwrap();
    assert_eq!(place.stored_in(), [true, false, false], "disk two has nothing");
    let (begun, rebuilt) = mirror.members().rebuilt().unwrap();
    assert_eq!(rebuilt, 0);
    place.broken.set("two", "write");
    mirror.copy_to_incoming(0, UNIT, &|_, _| true).unwrap();
    mirror.note_rebuilt(begun, u64::MAX).unwrap();
    assert_eq!(place.stored_in(), [true, true, false]);
    assert!(mirror.members().record().members[2].reason.contains("the rebuild onto two ended"));
}

#[test]
fn an_older_data_directory_is_refused() {
    let place = mirror_of(&[1, 1], 2);
    let old = LayoutRecord::load(&place.memory, "m").unwrap();
    let disk = place.open();
    disk.as_layout().unwrap().members().put_out(1, "a test").unwrap();
    disk.write_at(&[1; 4096], 0).unwrap();
    drop(disk);
    drop(place.open());
    old.save(&place.memory, "m").unwrap();
    let error = place.try_open().err().unwrap().to_string();
    assert!(error.contains("newer record"), "{error}");
    assert_eq!(place.stored_in(), [true, true], "nothing was changed");
}

#[test]
fn a_disk_that_can_not_give_space_back_has_not_failed() {
    struct Unable;
    impl crate::disk::Layer for Unable {
        fn punch(&self, _: &crate::disk::LowerDisk, _: u64, _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn allocate(&self, _: &crate::disk::LowerDisk, _: u64, _: u64) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }
    let place = mirror_of(&[2, 2], 2);
    let below = crate::disk::LayeredDir::over(Arc::new(place.memory.clone()), Arc::new(Unable));
    let dir = with_layouts(Arc::new(below), LayoutOptions::default());
    let disk = dir.open_locked("mirror:m", OpenMode::Existing).unwrap();
    disk.punch(0, 4096).unwrap_err();
    disk.allocate(0, 4096).unwrap_err();
    disk.write_at(&[1; 4096], 0).unwrap();
    assert_eq!(place.stored_in(), [true, true]);
}

#[test]
fn a_dissolved_mirror_leaves_its_disks() {
    let place = mirror_of(&[1, 1], 2);
    let disk = place.open();
    disk.as_layout().unwrap().members().dissolve().unwrap();
    drop(disk);
    assert_eq!(place.try_open().err().unwrap().kind(), io::ErrorKind::NotFound);
    assert_eq!(read(&*place.memory.open("0", OpenMode::Existing).unwrap(), 0, 8), [0; 8]);
}

#[test]
fn a_mirror_does_not_grow_and_ends() {
    let place = mirror_of(&[1, 1], 2);
    let disk = place.open();
    disk.set_len(UNIT).unwrap();
    assert_eq!(disk.set_len(UNIT + 1).unwrap_err().kind(), io::ErrorKind::Unsupported);
    for at in [UNIT - 1, UNIT, u64::MAX] {
        assert_eq!(disk.write_at(&[1; 2], at).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(disk.read_at(&mut [1; 2], at).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
    assert_eq!(
        place.dir.open("mirror:m", OpenMode::Create).err().unwrap().kind(),
        io::ErrorKind::Unsupported
    );
    assert_eq!(place.try_open().err().unwrap().kind(), io::ErrorKind::WouldBlock, "its members are locked");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// Any writes, and a member that goes away between them.
    #[test]
    fn a_mirror_is_like_a_disk(
        sizes in prop::collection::vec(1u64..4, 2..5),
        writes in prop::collection::vec((0u64..3 * UNIT, 1usize..300_000, any::<u8>()), 1..12),
        lost in (0usize..5, 0usize..12),
    ) {
        let place = mirror_of(&sizes, 2);
        let Ok(mut disk) = place.try_open() else { return Ok(()) };
        let len = disk.len().unwrap();
        let mut model = vec![0u8; len as usize];
        for (n, (at, size, byte)) in writes.iter().enumerate() {
            if n == lost.1 && lost.0 < sizes.len() {
                place.broken.set(&lost.0.to_string(), if n % 2 == 0 { "write" } else { "sync" });
            }
            let at = at % len;
            let size = (*size).min((len - at) as usize);
            disk.write_at(&vec![*byte; size], at).unwrap();
            disk.sync(SyncPurpose::Apply).unwrap();
            model[at as usize..at as usize + size].fill(*byte);
        }
        prop_assert_eq!(read(&*disk, 0, model.len()), model.clone());
        drop(disk);
        place.broken.heal();
        disk = place.open();
        prop_assert_eq!(read(&*disk, 0, model.len()), model);
    }
}
