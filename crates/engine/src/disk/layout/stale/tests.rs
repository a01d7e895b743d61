//! Tests of stale regions, and of members that come back.

use super::*;
use crate::disk::MemDir;
use crate::disk::layout::testing::record_of_rows;

const REGION: u64 = 1 << 16;

fn record(stale: u64) -> LayoutRecord {
    LayoutRecord { stale, ..record_of_rows() }
}

fn regions() -> StaleRegions {
    StaleRegions::load(&MemDir::new(), "m", &record(0)).0
}

/// Returns the regions behind the beginning that are listed.
fn listed(regions: &StaleRegions) -> Vec<u64> {
    let first = BEGINNING.end / REGION;
    (first..first + 64).filter(|region| regions.stale.is_set(*region)).collect()
}

/// Notes a write of some bytes of a region.
fn write(regions: &StaleRegions, region: u64) {
    regions.note_written(region * REGION + 5..region * REGION + 9);
}

#[test]
fn golden_bytes() {
    let layout = Uuid::from_u128(7);
    let mut words = vec![0; WORDS];
    (words[0], words[WORDS - 1]) = (5, 1 << 63);
    let bytes = encode(&layout, 9, 17, &words);
    assert_eq!(bytes.len(), HEAD + (256 << 10));
    let hex: String = bytes[..HEAD + 8].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, GOLDEN);
    assert_eq!(bytes[bytes.len() - 1], 0x80);
    assert_eq!(decode(&bytes, &layout, 9), Some((17, words)));
    assert_eq!(decode(&bytes, &layout, 8), None);
    assert_eq!(decode(&bytes, &Uuid::nil(), 9), None);
    for byte in (0..HEAD + 8).chain([bytes.len() - 1]) {
        let mut bad = bytes.clone();
        bad[byte] ^= 1;
        assert_eq!(decode(&bad, &layout, 9), None, "byte {byte}");
        assert_eq!(decode(&bytes[..byte], &layout, 9), None, "{byte} bytes");
    }
}

#[test]
fn a_write_counts_until_a_sync_has_reached_all_disks() {
    let regions = regions();
    write(&regions, 20);
    let sync = regions.begin_sync();
    write(&regions, 21);
    regions.end_sync(sync, true);
    let failed = regions.begin_sync();
    regions.end_sync(failed, false);
    regions.begin();
    assert_eq!(listed(&regions), [21]);
    write(&regions, 22);
    assert_eq!(listed(&regions), [21, 22]);
    // What was listed when a member was out before is not listed.
    let sync = regions.begin_sync();
    regions.end_sync(sync, true);
    regions.end();
    write(&regions, 23);
    regions.begin();
    assert_eq!(listed(&regions), [23]);
}

#[test]
fn a_sync_answers_for_others_that_overlap_it() {
    let regions = regions();
    write(&regions, 20);
    let first = regions.begin_sync();
    write(&regions, 21);
    let second = regions.begin_sync();
    // The system may have told the error of region 20 to the second sync.
    regions.end_sync(first, true);
    write(&regions, 22);
    let third = regions.begin_sync();
    regions.begin();
    assert_eq!(listed(&regions), [20, 21, 22]);
    regions.end();
    regions.end_sync(second, true);
    regions.begin();
    assert_eq!(listed(&regions), [21, 22], "the third one began before the second one ended");
    regions.end();
    regions.end_sync(third, true);
    regions.begin();
    assert_eq!(listed(&regions), []);
}

#[test]
fn a_list_outlives_the_process() {
    let dir = MemDir::new();
    let layout = record(0).uuid;
    let regions = regions();
    write(&regions, 20);
    regions.begin();
    write(&regions, 40);
    regions.save(&dir, "m", &layout, 3).unwrap();
    let (known, is_known) = StaleRegions::load(&dir, "m", &record(3));
    assert!(is_known);
    assert_eq!(listed(&known), [20, 40]);
    write(&known, 41);
    assert_eq!(listed(&known), [20, 40, 41], "the list goes on");
    // Those of another time do not count, and none are asked for.
    for (number, expected) in [(2, false), (0, true)] {
        let (other, is_known) = StaleRegions::load(&dir, "m", &record(number));
        assert_eq!((is_known, listed(&other)), (expected, vec![]), "list {number}");
    }
    remove(&dir, "m").unwrap();
    remove(&dir, "m").unwrap();
    assert!(!StaleRegions::load(&dir, "m", &record(3)).1);
}

#[test]
fn stale_parts_of_a_range() {
    let regions = regions();
    regions.begin();
    for region in [20, 21, 30] {
        write(&regions, region);
    }
    let part = |from: u64, to: u64| regions.first_in(from..to);
    assert_eq!(part(17 * REGION, 64 * REGION), Some(20 * REGION..22 * REGION));
    assert_eq!(part(20 * REGION + 4096, 21 * REGION + 4096), Some(20 * REGION + 4096..21 * REGION + 4096));
    assert_eq!(part(22 * REGION, 30 * REGION), None);
    assert_eq!(part(30 * REGION, 31 * REGION), Some(30 * REGION..31 * REGION));
    assert_eq!(part(0, REGION), Some(0..REGION), "the beginning always is");
    assert_eq!(regions.bytes_in(21 * REGION..64 * REGION), 2 * REGION);
    // A layout that has grown has more regions than there are bits.
    assert_eq!(
        part((BITS + 20) * REGION, (BITS + 30) * REGION).map(|part| part.start),
        Some((BITS + 20) * REGION)
    );
    regions.note_written(0..u64::MAX);
    assert_eq!(part(0, 1 << 40), Some(0..1 << 40));
}

#[test]
fn regions_are_as_small_as_the_bits_allow() {
    let log2 = |len: u64| {
        let mut record = record(0);
        record.spans = vec![CopiedSpan { start: 0, len, places: Vec::new() }];
        region_log2_of(&record)
    };
    let sizes = [1, 1 << 37, (1 << 37) + 1, 1 << 40, 10 << 40].map(log2);
    assert_eq!(sizes, [16, 16, 17, 19, 23]);
}

const GOLDEN: &str = "48435354414c4553140f89b201000000000000000000000000000000000000070900000000000000110000000500000000000000";

mod returning {
    use crate::disk::layout::NewMember;
    use crate::disk::layout::record::{LayoutKind, LayoutRecord};
    use crate::disk::layout::testing::{LayoutInMemory, read};
    use crate::disk::{Dir, Disk, DiskLayout, OpenMode, SyncPurpose};
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    const RAID5: LayoutKind = LayoutKind::Raid5 { unit: 16 << 10 };

    fn layout(disk: &Arc<dyn Disk>) -> DiskLayout<'_> {
        disk.as_layout().unwrap()
    }

    /// Opens a layout and fills it, durably. Returns its content, too.
    fn filled(place: &LayoutInMemory) -> (Arc<dyn Disk>, Vec<u8>) {
        let disk = place.open();
        let content = vec![7; disk.len().unwrap() as usize];
        disk.write_at(&content, 0).unwrap();
        sync(&disk);
        (disk, content)
    }

    /// Begins to rebuild a member onto the disk that it had.
    fn bring_back(place: &LayoutInMemory, layout: DiskLayout<'_>, number: usize) {
        let of = layout.members().record().members[number].clone();
        let disk = place.dir.open_locked(&of.path, OpenMode::Existing).unwrap();
        layout.rebuild_onto(number, NewMember { uuid: of.uuid, path: of.path, disk }, None).unwrap();
    }

    /// Does what an operator gets whose disk is not the one that went out, or whose list is lost:
    /// checks that this is so, and begins to rebuild the member onto its disk.
    fn bring_back_anew(place: &LayoutInMemory, layout: DiskLayout<'_>, number: usize) {
        let of = layout.members().record().members[number].clone();
        assert!(!of.is_listed);
        let disk = place.dir.open_locked(&of.path, OpenMode::Existing).unwrap();
        let uuid = uuid::Uuid::from_u128(700);
        layout.rebuild_onto(number, NewMember { uuid, path: of.path, disk }, None).unwrap();
    }

    /// Copies what has to be copied, as background work does where everything is in use. Returns
    /// the number of bytes.
    fn copy(layout: DiskLayout<'_>, len: u64) -> u64 {
        let (begun, _) = layout.members().rebuilt().unwrap();
        let mut copied = 0;
        // Background work goes by extents.
        for start in (0..len).step_by(256 << 10) {
            let mut at = start;
            while let Some(part) = layout.first_to_copy(at..len.min(start + (256 << 10))) {
                assert!(
                    layout
                        .copy_to_incoming(part.start, part.end - part.start, &|_, _| true)
                        .unwrap()
                        .is_empty()
                );
                copied += part.end - part.start;
                at = part.end;
            }
        }
        layout.note_rebuilt(begun, u64::MAX).unwrap();
        copied
    }

    fn sync(disk: &Arc<dyn Disk>) {
        disk.sync(SyncPurpose::Apply).unwrap();
    }

    fn stored(place: &LayoutInMemory) -> LayoutRecord {
        LayoutRecord::load(&place.memory, "m").unwrap()
    }

    /// Puts each member out that the others can do without. Where a member came back, its disk is
    /// read then.
    fn check(place: &LayoutInMemory, expected: &[u8]) {
        for gone in 0..stored(place).members.len() {
            place.broken.set(&gone.to_string(), "open");
            let disk = place.open();
            assert!(read(&*disk, 0, expected.len()) == expected, "without {gone}");
            drop(disk);
            place.broken.heal();
        }
    }

    #[test]
    fn a_disk_that_comes_back_gets_what_changed() {
        for (kind, width) in [(LayoutKind::Mirror, 2), (RAID5, 3)] {
            let place = LayoutInMemory::new(&[16; 3], kind, width);
            let disk = place.open();
            let mut expected: Vec<u8> = (0..disk.len().unwrap()).map(|n| (n / 4096 % 251) as u8).collect();
            disk.write_at(&expected, 0).unwrap();
            sync(&disk);
            place.broken.set("1", "write");
            let mut change = |at: usize, value| {
                disk.write_at(&[value; 10_000], at as u64).unwrap();
                expected[at..at + 10_000].fill(value);
            };
            change(5 << 20, 1);
            sync(&disk);
            assert!(stored(&place).members[1].is_listed && stored(&place).stale != 0);
            change(9 << 20, 2);
            sync(&disk);
            place.broken.heal();
            let stale = layout(&disk).members().stale_of(&stored(&place), 1);
            assert!((1 << 16..4 << 20).contains(&stale), "{kind:?}: {stale} bytes are stale");
            bring_back(&place, layout(&disk), 1);
            let copied = copy(layout(&disk), disk.len().unwrap());
            // Of a RAID-5 whole groups of 4 MiB of each place are copied.
            let most = if kind == LayoutKind::Mirror { 4 << 20 } else { 28 << 20 };
            assert!((1..most).contains(&copied), "{kind:?}: {copied} bytes were copied");
            assert!(stored(&place).is_complete() && stored(&place).stale == 0);
            assert!(place.memory.open("stale-m", OpenMode::ReadOnly).is_err(), "no file is left");
            drop(disk);
            check(&place, &expected);
        }
    }

    #[test]
    fn without_a_list_a_disk_gets_everything() {
        let place = LayoutInMemory::new(&[8; 2], LayoutKind::Mirror, 2);
        let (disk, mut expected) = filled(&place);
        // The list can't be written.
        place.broken.set("1", "write");
        place.broken.set("stale-~m", "write");
        expected[5 << 20] = 1;
        disk.write_at(&[1], 5 << 20).unwrap();
        sync(&disk);
        assert!(!stored(&place).members[1].is_listed && stored(&place).stale == 0);
        place.broken.heal();
        bring_back(&place, layout(&disk), 1);
        assert_eq!(copy(layout(&disk), disk.len().unwrap()), disk.len().unwrap());
        drop(disk);
        for damage in [false, true] {
            expected[6 << 20] += 1;
            lose_list(&place, &expected[6 << 20..][..1], damage);
        }
        check(&place, &expected);
    }

    /// A full data directory ends the list, and fails no sync.
    #[test]
    fn a_sync_does_not_need_the_list() {
        for (kind, width) in [(LayoutKind::Mirror, 2), (RAID5, 3)] {
            let place = LayoutInMemory::new(&[8; 3], kind, width);
            let (disk, mut expected) = filled(&place);
            layout(&disk).members().put_out(1, "away").unwrap();
            for file in ["stale-~m", "layout-~m"] {
                place.broken.set(file, "write");
            }
            expected[5 << 20] = 1;
            disk.write_at(&[1], 5 << 20).unwrap();
            sync(&disk);
            drop(disk);
            place.broken.heal();
            let disk = place.open();
            bring_back_anew(&place, layout(&disk), 1);
            assert_eq!(copy(layout(&disk), disk.len().unwrap()), disk.len().unwrap());
            drop(disk);
            check(&place, &expected);
        }
    }

    #[test]
    fn a_bad_disk_is_not_listed() {
        let place = LayoutInMemory::new(&[8; 2], LayoutKind::Mirror, 2);
        let disk = place.open();
        layout(&disk).members().all[1].is_bad.store(true, Ordering::SeqCst);
        layout(&disk).members().put_out(1, "away").unwrap();
        assert!(!stored(&place).members[1].is_listed && stored(&place).stale == 0);
        bring_back_anew(&place, layout(&disk), 1);
        assert_eq!(copy(layout(&disk), disk.len().unwrap()), disk.len().unwrap());
        layout(&disk).members().put_out(1, "away").unwrap();
        assert!(stored(&place).members[1].is_listed, "it was made anew");
    }

    /// A line whose parity is on the member that is out has no entry of the log. The power fails
    /// before the sync behind its write ends.
    #[test]
    fn a_line_without_an_entry_is_listed_before_it_is_written() {
        // In one of three rows the parity is on the member.
        for (number, row) in (0..3).flat_map(|number| (0..3).map(move |row| (number, row))) {
            let place = LayoutInMemory::new(&[16; 3], RAID5, 3);
            let (disk, mut expected) = filled(&place);
            layout(&disk).members().put_out(number, "away").unwrap();
            let others: Vec<String> = (0..3).filter(|n| *n != number).map(|n| n.to_string()).collect();
            others.iter().for_each(|other| place.broken.set(other, "sync"));
            let at = (17 << 20) + row * (32 << 10);
            disk.write_at(&[9; 4096], at).unwrap();
            expected[at as usize..][..4096].fill(9);
            disk.sync(SyncPurpose::Apply).unwrap_err();
            drop(disk);
            place.broken.heal();
            let disk = place.open();
            bring_back(&place, layout(&disk), number);
            copy(layout(&disk), disk.len().unwrap());
            drop(disk);
            check(&place, &expected);
        }
    }

    /// A power loss takes what a member got of the youngest entry, and the member is missing in the
    /// next opening. The others have all of the entry.
    #[test]
    fn lines_of_the_youngest_entry_are_listed() {
        // The member has a block of the line, or its parity.
        for (number, row) in (0..3).flat_map(|number| (0..3).map(move |row| (number, row))) {
            let place = LayoutInMemory::new(&[16; 3], RAID5, 3);
            let (disk, mut expected) = filled(&place);
            let name = number.to_string();
            let member = place.memory.open(&name, OpenMode::Existing).unwrap();
            let old = read(&*member, 0, member.len().unwrap() as usize);
            let at = (17 << 20) + row * (32 << 10);
            disk.write_at(&[9; 4096], at).unwrap();
            expected[at as usize..][..4096].fill(9);
            sync(&disk);
            drop(disk);
            member.write_at(&old, 0).unwrap();
            place.broken.set(&name, "open");
            let disk = place.open();
            sync(&disk);
            place.broken.heal();
            bring_back(&place, layout(&disk), number);
            copy(layout(&disk), disk.len().unwrap());
            drop(disk);
            check(&place, &expected);
        }
    }

    /// An opening makes durable what it found of the youngest entry, before the next one.
    #[test]
    fn an_opening_syncs_the_lines_of_the_youngest_entry() {
        let place = LayoutInMemory::new(&[4; 3], RAID5, 3);
        let disk = place.open();
        disk.write_at(&[7; 4096], 0).unwrap();
        sync(&disk);
        drop(disk);
        place.broken.set("1", "sync");
        drop(place.open());
        assert_eq!(place.stored_in(), [true, false, true], "its sync failed");
    }

    /// A rebuild that ends before the record has its disk has changed nothing of what is known.
    #[test]
    fn groups_are_known_only_when_the_record_has_the_disk() {
        let place = LayoutInMemory::new(&[16; 3], RAID5, 3);
        place.memory.remove("rows-m").unwrap();
        let disk = place.open();
        layout(&disk).members().put_out(1, "away").unwrap();
        place.replace(layout(&disk), 1, "new", 16);
        let (begun, _) = layout(&disk).members().rebuilt().unwrap();
        let len = disk.len().unwrap();
        assert!(layout(&disk).copy_to_incoming(0, len, &|_, _| true).unwrap().is_empty());
        place.broken.set("layout-~m", "sync");
        layout(&disk).note_rebuilt(begun, u64::MAX).unwrap_err();
        let known = || place.memory.open("rows-m", OpenMode::ReadOnly).map(|list| read(&*list, 40, 1));
        assert_eq!(known().unwrap(), [0]);
        place.broken.heal();
        let (begun, _) = layout(&disk).members().rebuilt().unwrap();
        assert!(layout(&disk).copy_to_incoming(0, len, &|_, _| true).unwrap().is_empty());
        layout(&disk).note_rebuilt(begun, u64::MAX).unwrap();
        assert_eq!(known().unwrap(), [0x0F]);
    }

    /// A return that does not begin leaves no list that is not kept up.
    #[test]
    fn a_return_does_not_begin_while_nothing_can_be_stored() {
        let place = LayoutInMemory::new(&[8; 2], LayoutKind::Mirror, 2);
        let (disk, mut expected) = filled(&place);
        layout(&disk).members().put_out(1, "away").unwrap();
        expected[5 << 20] = 1;
        disk.write_at(&[1], 5 << 20).unwrap();
        for file in ["stale-~m", "layout-~m"] {
            place.broken.set(file, "write");
        }
        let of = stored(&place).members[1].clone();
        let back = place.dir.open_locked("1", OpenMode::Existing).unwrap();
        let new = NewMember { uuid: of.uuid, path: of.path, disk: back };
        layout(&disk).rebuild_onto(1, new, None).unwrap_err();
        place.broken.heal();
        expected[6 << 20] = 1;
        disk.write_at(&[1], 6 << 20).unwrap();
        sync(&disk);
        assert_eq!(stored(&place).stale, 0);
        bring_back(&place, layout(&disk), 1);
        assert_eq!(copy(layout(&disk), disk.len().unwrap()), disk.len().unwrap());
        drop(disk);
        check(&place, &expected);
    }

    /// Writes bytes while a member is out. Damages or removes the list in the middle of its
    /// return, and rebuilds it in the next opening.
    fn lose_list(place: &LayoutInMemory, bytes: &[u8], damage: bool) {
        let disk = place.open();
        layout(&disk).members().put_out(1, "away").unwrap();
        disk.write_at(bytes, 6 << 20).unwrap();
        sync(&disk);
        bring_back(place, layout(&disk), 1);
        let (begun, _) = layout(&disk).members().rebuilt().unwrap();
        layout(&disk).note_rebuilt(begun, 3 << 20).unwrap();
        drop(disk);
        match damage {
            true => place.memory.open("stale-m", OpenMode::Existing).unwrap().write_at(&[9], 50).unwrap(),
            false => place.memory.remove("stale-m").unwrap(),
        }
        let disk = place.open();
        assert_eq!(layout(&disk).members().rebuilt().map(|(_, to)| to), Some(0), "it begins anew");
        assert_eq!(copy(layout(&disk), disk.len().unwrap()), disk.len().unwrap());
        assert!(stored(place).is_complete());
    }

    /// A failure in the middle of a return leaves the list, and the next return uses it.
    #[test]
    fn a_return_that_fails_is_tried_again() {
        for (kind, width) in [(LayoutKind::Mirror, 2), (RAID5, 3)] {
            let place = LayoutInMemory::new(&[16; 3], kind, width);
            let (disk, mut expected) = filled(&place);
            let len = disk.len().unwrap();
            layout(&disk).members().put_out(1, "away").unwrap();
            let mut change = |at: usize, value| {
                disk.write_at(&[value; 10_000], at as u64).unwrap();
                expected[at..at + 10_000].fill(value);
            };
            change(5 << 20, 1);
            bring_back(&place, layout(&disk), 1);
            change(6 << 20, 2);
            sync(&disk);
            place.broken.set("1", "write");
            change(7 << 20, 3);
            sync(&disk);
            assert_eq!(layout(&disk).members().rebuilt(), None, "{kind:?}: its rebuild has ended");
            place.broken.heal();
            bring_back(&place, layout(&disk), 1);
            assert!(copy(layout(&disk), len) < len);
            drop(disk);
            check(&place, &expected);
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Write(u64, usize, u8),
        Sync,
        Fail,
        PutOut,
        Reopen { away: bool },
        Return,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0u64..6 << 20, 1usize..100_000, any::<u8>()).prop_map(|(at, len, value)| Step::Write(at, len, value)),
            3 => Just(Step::Sync),
            1 => Just(Step::Fail),
            1 => Just(Step::PutOut),
            1 => any::<bool>().prop_map(|away| Step::Reopen { away }),
            2 => Just(Step::Return),
        ]
    }

    fn is_in(disk: &Arc<dyn Disk>) -> bool {
        layout(disk).members().record().members[1].is_in
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn whatever_happens_the_disk_has_everything(
            is_raid in any::<bool>(),
            steps in prop::collection::vec(step(), 1..40),
        ) {
            let (kind, width) = if is_raid { (RAID5, 3) } else { (LayoutKind::Mirror, 2) };
            let place = LayoutInMemory::new(&[6; 3], kind, width);
            let mut disk = place.open();
            let len = disk.len().unwrap();
            prop_assert!(len > 6 << 20);
            let mut expected = vec![0; len as usize];
            disk.write_at(&expected, 0).unwrap();
            sync(&disk);
            for step in steps {
                match step {
                    Step::Write(at, size, value) => {
                        disk.write_at(&vec![value; size], at).unwrap();
                        expected[at as usize..at as usize + size].fill(value);
                    }
                    Step::Sync => sync(&disk),
                    Step::Fail => place.broken.set("1", "write"),
                    Step::PutOut => layout(&disk).members().put_out(1, "away").unwrap(),
                    Step::Reopen { away } => {
                        sync(&disk);
                        drop(disk);
                        place.broken.heal();
                        if away {
                            place.broken.set("1", "open");
                        }
                        disk = place.open();
                        place.broken.heal();
                    }
                    Step::Return => {
                        place.broken.heal();
                        if !is_in(&disk) && layout(&disk).members().rebuilt().is_none() {
                            bring_back(&place, layout(&disk), 1);
                        }
                        if layout(&disk).members().rebuilt().is_some() {
                            copy(layout(&disk), len);
                        }
                    }
                }
            }
            place.broken.heal();
            sync(&disk);
            if !is_in(&disk) && layout(&disk).members().rebuilt().is_none() {
                bring_back(&place, layout(&disk), 1);
            }
            if layout(&disk).members().rebuilt().is_some() {
                copy(layout(&disk), len);
            }
            sync(&disk);
            drop(disk);
            check(&place, &expected);
        }
    }
}
