//! Tests of RAID-5 as disks.

mod punching;
mod returns;
mod rot;

use super::rows::BLOCK;
use crate::disk::layout::member::CONTENT_START;
use crate::disk::layout::record::{LayoutKind, LayoutRecord};
use crate::disk::layout::spans::{UNIT, spread};
use crate::disk::layout::testing::{LayoutInMemory, read};
use crate::disk::layout::{DiskLayout, LayoutOptions, Raid5, with_layouts};
use crate::disk::{
    Dir, Disk, Layer, LayeredDir, LowerDisk, MemDir, OpenMode, OverlayDir, Settled, SyncPurpose,
};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::io::{self, IoSlice};
use std::sync::Arc;
use uuid::Uuid;

/// Makes a RAID-5 `m` with rows of `width` units of two blocks.
fn raid_of(sizes: &[u64], width: usize) -> LayoutInMemory {
    LayoutInMemory::new(sizes, LayoutKind::Raid5 { unit: 2 * BLOCK as u64 }, width)
}

fn raid(disk: &dyn Disk) -> &Raid5 {
    match disk.as_layout() {
        Some(DiskLayout::Raid5(raid)) => raid,
        _ => panic!("no RAID-5"),
    }
}

/// Content in which no two blocks are equal.
fn pattern(len: u64, salt: u8) -> Vec<u8> {
    (0..len).map(|n| ((n / 512) as u8).wrapping_mul(7).wrapping_add((n / 4096 % 253) as u8) ^ salt).collect()
}

fn sync(disk: &dyn Disk) {
    disk.sync(SyncPurpose::Apply).unwrap();
}

/// Makes a RAID-5 of three members with content everywhere.
fn written() -> (LayoutInMemory, Arc<dyn Disk>, Vec<u8>) {
    let place = raid_of(&[1, 1, 1], 3);
    let disk = place.open();
    let content = pattern(2 * UNIT, 3);
    disk.write_at(&content, 0).unwrap();
    sync(&*disk);
    (place, disk, content)
}

/// Returns the whole content as it is without a member.
fn without(place: &LayoutInMemory, member: &str) -> Vec<u8> {
    place.broken.set(member, "open");
    let disk = place.dir.open_locked("raid5:m", OpenMode::ReadOnly).unwrap();
    let content = read(&*disk, 0, disk.len().unwrap() as usize);
    place.broken.heal();
    content
}

#[test]
fn what_is_written_is_read_whatever_member_goes() {
    let place = raid_of(&[1, 2, 2, 3], 3);
    let disk = place.open();
    assert_eq!(disk.len().unwrap(), 4 * UNIT, "two of three bytes");
    let content = pattern(4 * UNIT, 1);
    disk.write_at(&content, 0).unwrap();
    assert_eq!(read(&*disk, 0, content.len()), content, "a read sees a write at once");
    disk.write_vectored_at(&mut [IoSlice::new(b"ab"), IoSlice::new(b"cd")], UNIT - 2).unwrap();
    disk.write_direct(&[9; BLOCK], 3 * UNIT).unwrap();
    sync(&*disk);
    let whole = read(&*disk, 0, content.len());
    assert_eq!((&whole[..100], &whole[UNIT as usize - 2..][..4]), (&content[..100], &b"abcd"[..]));
    drop(disk);
    for member in ["0", "1", "2", "3"] {
        assert!(without(&place, member) == whole, "without {member}");
    }
    // Writes without a member count, too.
    place.broken.set("1", "open");
    let disk = place.open();
    let changed = pattern(UNIT, 77);
    disk.write_at(&changed, UNIT / 2 + 512).unwrap();
    sync(&*disk);
    assert_eq!(place.stored_in(), [true, false, true, true]);
    let whole = read(&*disk, 0, whole.len());
    assert!(whole[UNIT as usize / 2 + 512..][..UNIT as usize] == changed);
    drop(disk);
    place.broken.heal();
    assert!(read(&*place.open(), 0, whole.len()) == whole, "a member that is there again stays out");
    place.broken.set("3", "open");
    let error = place.try_open().err().unwrap().to_string();
    assert!(error.contains("can do without one"), "{error}");
}

#[test]
fn a_member_that_fails_is_out_durably_and_the_last_needed_one_stays() {
    for what in ["write", "sync"] {
        let place = raid_of(&[2, 2, 2], 3);
        let disk = place.open();
        disk.write_at(&pattern(UNIT, 1), 0).unwrap();
        sync(&*disk);
        place.broken.set("1", what);
        disk.write_at(&pattern(UNIT, 2), 100).unwrap();
        sync(&*disk);
        assert_eq!(place.stored_in(), [true, false, true], "{what}");
        assert!(read(&*disk, 100, UNIT as usize) == pattern(UNIT, 2));
        place.broken.set("0", what);
        disk.write_at(&[4; 3 * BLOCK], 0).unwrap();
        assert_eq!(disk.sync(SyncPurpose::Apply).unwrap_err().raw_os_error(), Some(5));
        // From then on all syncs fail, and all writes.
        place.broken.heal();
        disk.sync(SyncPurpose::Apply).unwrap_err();
        disk.write_at(&[4; BLOCK], 0).unwrap_err();
        assert_eq!(place.stored_in(), [true, false, true]);
    }
}

#[test]
fn nothing_is_written_before_the_log() {
    let place = raid_of(&[1, 1, 1], 3);
    let disk = place.open();
    disk.write_at(&pattern(UNIT, 1), 0).unwrap();
    sync(&*disk);
    let members = ["0", "1", "2"].map(|name| place.memory.open(name, OpenMode::Existing).unwrap());
    let contents = || members.each_ref().map(|member| read(&**member, CONTENT_START, UNIT as usize));
    let before = contents();
    place.broken.set("parity-m", "sync");
    disk.write_at(&[4; BLOCK], 0).unwrap();
    disk.sync(SyncPurpose::Apply).unwrap_err();
    assert!(contents() == before);
}

#[test]
fn what_one_member_can_not_read_follows_from_the_others() {
    let (place, disk, content) = written();
    place.broken.set("0", "read");
    assert!(read(&*disk, 0, content.len()) == content);
    assert_eq!(place.stored_in(), [false, true, true], "it does not answer at all");
    assert!(!disk.try_read_at(&mut vec![0; 12 * BLOCK], 0).unwrap());
    place.broken.set("1", "read");
    assert_eq!(disk.read_at(&mut vec![0; 12 * BLOCK], 0).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(place.stored_in(), [false, true, true]);
}

#[test]
fn a_wrong_block_is_settled_by_its_content() {
    let (place, disk, content) = written();
    let at = 5 * BLOCK as u64;
    let (line, column) = raid(&*disk).rows.find(5);
    let stored = raid(&*disk).place(line, column);
    let member = place.memory.open(&stored.member.to_string(), OpenMode::Existing).unwrap();
    member.write_at(&[0xEE; 9], stored.offset + 100).unwrap();
    let right = content[5 * BLOCK..6 * BLOCK].to_vec();
    assert!(!disk.agrees(&right, at).unwrap());
    let mut buf = vec![0; BLOCK];
    assert_eq!(disk.settle(&mut buf, at, &|_| false).unwrap(), Settled::NoneRight);
    assert_eq!(disk.settle(&mut buf, at, &|block| block == right).unwrap(), Settled::Mended);
    assert!(buf == right && disk.agrees(&right, at).unwrap());
    assert_eq!(disk.settle(&mut buf, at, &|block| block == right).unwrap(), Settled::AllRight);
    assert!(raid(&*disk).take_suspects().is_empty());
}

#[test]
fn a_line_is_mended_where_it_is_wrong() {
    for wrong in 0..3 {
        let (place, disk, content) = written();
        let raid = raid(&*disk);
        let stored = raid.place(1, wrong);
        let member = place.memory.open(&stored.member.to_string(), OpenMode::Existing).unwrap();
        member.write_at(&[0xEE; 9], stored.offset + 100).unwrap();
        let block_of = |column: usize| raid.rows.block(1, column) as usize * BLOCK;
        let is_right = |at: u64, block: &[u8]| block == &content[at as usize..at as usize + BLOCK];
        // A look at a right block of the line finds it.
        let other = block_of(usize::from(wrong == 0));
        let right = content[other..other + BLOCK].to_vec();
        assert!(!disk.agrees(&right, other as u64).unwrap());
        let settled = disk.settle(&mut vec![0; BLOCK], other as u64, &|block| block == right);
        assert_eq!(settled.unwrap(), Settled::AllRight);
        assert_eq!(raid.take_suspects(), [1]);
        assert!(raid.mend_line(1, &is_right).unwrap());
        assert!(!raid.mend_line(1, &is_right).unwrap());
        drop(disk);
        for member in ["0", "1", "2"] {
            assert!(without(&place, member) == content, "{wrong} was wrong, without {member}");
        }
    }
}

#[test]
fn an_opening_for_reading_shows_what_the_log_proves() {
    for column in 0..2 {
        let (place, disk, _) = written();
        // The log knows the sums of the last flush.
        let last = pattern(2 * BLOCK as u64, 8);
        let at = [0, 1].map(|column| raid(&*disk).rows.block(0, column) as usize * BLOCK);
        disk.write_at(&last[..BLOCK], at[0] as u64).unwrap();
        disk.write_at(&last[BLOCK..], at[1] as u64).unwrap();
        sync(&*disk);
        let stored = raid(&*disk).place(0, column);
        let content = read(&*disk, 0, disk.len().unwrap() as usize);
        drop(disk);
        let member = place.memory.open(&stored.member.to_string(), OpenMode::Existing).unwrap();
        member.write_at(&[0xEE; 9], stored.offset + 100).unwrap();
        let disk = place.dir.open_locked("raid5:m", OpenMode::ReadOnly).unwrap();
        assert!(read(&*disk, 0, content.len()) == content, "column {column}");
        let mut part = [0; 20];
        disk.read_at(&mut part, at[column] as u64 + 95).unwrap();
        assert_eq!(part, content[at[column] + 95..][..20]);
    }
}

#[test]
fn a_rebuilt_member_has_everything_and_nothing_is_believed_of_what_was_not_copied() {
    for (was_in, garbage) in [(false, false), (true, false), (false, true)] {
        let place = raid_of(&[9, 9, 9, 9], 4);
        let disk = place.open();
        let layout = disk.as_layout().unwrap();
        let content = pattern(4 * UNIT, 5);
        disk.write_at(&content, 0).unwrap();
        sync(&*disk);
        if !was_in {
            layout.members().put_out(1, "a test").unwrap();
            disk.write_at(&[8; 5 * BLOCK], 3 * BLOCK as u64 + 7).unwrap();
            sync(&*disk);
        }
        place.replace(layout, 1, "new", 9);
        if garbage {
            let new = place.memory.open("new", OpenMode::Existing).unwrap();
            new.write_at(&pattern(9 * UNIT, 99), CONTENT_START).unwrap();
        }
        let (begun, _) = layout.members().rebuilt().unwrap();
        disk.write_at(&[6; 3 * BLOCK], 9 * BLOCK as u64).unwrap();
        sync(&*disk);
        layout.copy_to_incoming(0, 4 * UNIT, &|_, _| true).unwrap();
        // A place far behind what was in use is written while the rebuild goes on.
        // In these rows, the missing column is each of the columns once.
        let far = [0, 1, 2, 3].map(|row| 26 * UNIT + row * 6 * BLOCK as u64);
        far.iter().for_each(|at| disk.write_at(&[5; BLOCK], *at).unwrap());
        disk.write_at(&[6; BLOCK], UNIT).unwrap();
        sync(&*disk);
        layout.note_rebuilt(begun, u64::MAX).unwrap();
        assert_eq!((layout.members().rebuilt(), place.stored_in()), (None, vec![true; 4]));
        // New lines are written beside those that the rebuild passed over.
        disk.write_at(&[4; BLOCK], 26 * UNIT + 7 * BLOCK as u64).unwrap();
        sync(&*disk);
        let groups: Vec<bool> =
            (0..3).map(|group| raid(&*disk).groups.are_consistent(group * 1024)).collect();
        assert_eq!(groups, [true, false, false]);
        let used = |disk: &dyn Disk| {
            let far = far.map(|at| read(disk, at, BLOCK)).concat();
            [read(disk, 0, 4 * UNIT as usize), far, read(disk, 26 * UNIT + 7 * BLOCK as u64, BLOCK)].concat()
        };
        let whole = used(&*disk);
        assert_eq!((whole[9 * BLOCK], whole[4 * UNIT as usize], whole[whole.len() - 1]), (6, 5, 4));
        drop(disk);
        for member in ["0", "new", "2", "3"] {
            place.broken.set(member, "open");
            let disk = place.dir.open_locked("raid5:m", OpenMode::ReadOnly).unwrap();
            assert!(used(&*disk) == whole, "without {member}, {was_in} {garbage}");
            place.broken.heal();
        }
    }
}

/// While the member that has the parity of a line is out, writes to the line need no entry. The one
/// before them says nothing of the line any more.
#[test]
fn an_entry_does_not_count_after_writes_without_one() {
    let (place, disk, _) = written();
    let layout = disk.as_layout().unwrap();
    let rows = &raid(&*disk).rows;
    let at = [0, 1].map(|column| rows.block(0, column) * BLOCK as u64);
    disk.write_at(&[7; BLOCK], at[0]).unwrap();
    sync(&*disk);
    let of_parity = raid(&*disk).place(0, rows.parity()).member;
    layout.members().put_out(of_parity, "a test").unwrap();
    disk.write_at(&[8; BLOCK], at[1]).unwrap();
    sync(&*disk);
    place.replace(layout, of_parity, "new", 1);
    let (begun, _) = layout.members().rebuilt().unwrap();
    layout.copy_to_incoming(0, 2 * UNIT, &|_, _| true).unwrap();
    layout.note_rebuilt(begun, u64::MAX).unwrap();
    assert_eq!(place.stored_in(), [true; 3]);
    let whole = read(&*disk, 0, 2 * UNIT as usize);
    drop(disk);
    drop(place.open());
    let members = (0..3).map(|n| if n == of_parity { "new".to_owned() } else { n.to_string() });
    for member in members {
        assert!(without(&place, &member) == whole, "without {member}");
    }
}

#[test]
fn disks_with_any_content_become_members() {
    // In such rows, the parity of a line that is known to be consistent is the source of the next.
    let place = raid_of(&[20; 5], 5);
    // Larger disks are not zeroed: nothing is known of their lines.
    for name in ["0", "1", "2", "3", "4"] {
        let member = place.memory.open(name, OpenMode::Existing).unwrap();
        member.write_at(&pattern(20 * UNIT, name.as_bytes()[0]), CONTENT_START).unwrap();
    }
    let disk = place.open();
    assert!(!raid(&*disk).groups.are_consistent(0));
    let places = [0, 7, 300, 5000].map(|block| block * BLOCK as u64);
    places.iter().for_each(|at| disk.write_at(&[(at / 4096) as u8; BLOCK], *at).unwrap());
    sync(&*disk);
    drop(disk);
    for member in ["0", "1", "2", "3", "4"] {
        let content = without(&place, member);
        for at in places {
            assert_eq!(content[at as usize..][..BLOCK], [(at / 4096) as u8; BLOCK], "{at} without {member}");
        }
    }
}

#[test]
fn a_raid_does_not_grow_and_ends() {
    let place = raid_of(&[1, 1, 1], 3);
    let disk = place.open();
    disk.set_len(2 * UNIT).unwrap();
    assert_eq!(disk.set_len(UNIT).unwrap_err().kind(), io::ErrorKind::Unsupported);
    for at in [2 * UNIT - 1, 2 * UNIT, u64::MAX] {
        assert_eq!(disk.write_at(&[1; 2], at).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(disk.read_at(&mut [1; 2], at).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
    let error = place.dir.open("mirror:m", OpenMode::Existing).err().unwrap();
    assert!(error.to_string().contains("raid5:m") || error.kind() == io::ErrorKind::WouldBlock, "{error}");
    disk.as_layout().unwrap().members().dissolve().unwrap();
    drop(disk);
    assert_eq!(place.try_open().err().unwrap().kind(), io::ErrorKind::NotFound);
    let left: Vec<String> = place.memory.list().unwrap();
    assert_eq!(left, ["0", "1", "2"]);
}

/// The length of the log follows from this, so it must not change.
#[test]
fn the_room_of_an_entry_is_part_of_the_format() {
    for (mib, blocks) in [(1, 64), (1 << 10, 2048), (1 << 12, 8192), (1 << 20, 8192)] {
        let members = vec![];
        let spans = spread(&[mib * UNIT; 3], 3, CONTENT_START);
        let kind = LayoutKind::Raid5 { unit: 65536 };
        let record = LayoutRecord {
            uuid: Uuid::nil(),
            sequence: 1,
            kind,
            width: 3,
            reserve: 0,
            stale: 0,
            members,
            spans,
        };
        assert_eq!(super::room(&record), blocks, "{mib} MiB");
    }
}

#[test]
fn a_missing_log_refuses() {
    let place = raid_of(&[1, 1, 1], 3);
    place.memory.remove("parity-m").unwrap();
    let error = place.try_open().err().unwrap().to_string();
    assert!(error.contains("parity-m"), "{error}");
}

/// Takes a while after each write.
struct Slow;

impl Layer for Slow {
    fn write_vectored_at(&self, disk: &LowerDisk, bufs: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        disk.write_vectored_at(bufs, offset)?;
        std::thread::sleep(std::time::Duration::from_micros(50));
        Ok(())
    }
}

#[test]
fn a_read_that_needs_several_members_meets_no_half_written_line() {
    let place = raid_of(&[1, 1, 1], 3);
    let dir = LayeredDir::over(Arc::new(place.memory.clone()), Arc::new(Slow));
    let disk = with_layouts(Arc::new(dir), LayoutOptions::default())
        .open_locked("raid5:m", OpenMode::Existing)
        .unwrap();
    disk.write_at(&pattern(UNIT, 1), 0).unwrap();
    sync(&*disk);
    // Blocks 0 and 2 have the same line, and block 2 is on the member that is out.
    let out = raid(&*disk).place(0, 1).member;
    disk.as_layout().unwrap().members().put_out(out, "a test").unwrap();
    let still = &pattern(UNIT, 1)[2 * BLOCK..3 * BLOCK];
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..100 {
                disk.write_at(&[round; BLOCK], 0).unwrap();
                sync(&*disk);
            }
            ended.store(true, std::sync::atomic::Ordering::Release);
        });
        while !ended.load(std::sync::atomic::Ordering::Acquire) {
            assert!(read(&*disk, 2 * BLOCK as u64, BLOCK) == still);
        }
    });
}

/// What is written to the members, in order.
#[derive(Default)]
struct Recorder(Mutex<Vec<(String, u64, Vec<u8>)>>);

impl Layer for Recorder {
    fn write_at(&self, disk: &LowerDisk, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.lock().push((disk.name().into(), offset, buf.to_vec()));
        disk.write_at(buf, offset)
    }
    fn write_vectored_at(&self, disk: &LowerDisk, bufs: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let whole: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        self.write_at(disk, &whole, offset)
    }
    fn zero(&self, disk: &LowerDisk, offset: u64, len: u64, unmap: bool) -> io::Result<bool> {
        self.0.lock().push((disk.name().into(), offset, vec![0; len as usize]));
        punching::Zeroing::default().zero(disk, offset, len, unmap)
    }
}

/// Returns a copy of a directory.
fn copy_of(dir: &MemDir) -> MemDir {
    let copy = MemDir::new();
    for name in dir.list().unwrap() {
        let from = dir.open(&name, OpenMode::ReadOnly).unwrap();
        let content = read(&*from, 0, from.len().unwrap() as usize);
        copy.open(&name, OpenMode::CreateNew).unwrap().write_at(&content, 0).unwrap();
    }
    copy
}

fn try_open_in(dir: &MemDir, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
    with_layouts(Arc::new(dir.clone()), LayoutOptions::default()).open_locked("raid5:m", mode)
}

fn open_in(dir: &MemDir, mode: OpenMode) -> Arc<dyn Disk> {
    try_open_in(dir, mode).unwrap()
}

/// Returns whether all is well when a member is away for one opening, which ends at once, and is
/// there again: then any member may be missing, as long as the layout opens.
fn survives_a_return(
    crashed: &MemDir,
    members: &[String],
    away: usize,
    is_well: &dyn Fn(&[u8]) -> bool,
) -> bool {
    let place = copy_of(crashed);
    place.remove(&members[away]).unwrap();
    drop(open_in(&place, OpenMode::Existing));
    let back = copy_of(crashed).open(&members[away], OpenMode::ReadOnly).unwrap();
    let content = read(&*back, 0, back.len().unwrap() as usize);
    place.open(&members[away], OpenMode::CreateNew).unwrap().write_at(&content, 0).unwrap();
    members.iter().all(|missing| {
        let place = copy_of(&place);
        place.remove(missing).unwrap();
        // Without a second one it does not open, if the first one is out.
        let Ok(disk) = try_open_in(&place, OpenMode::Existing) else { return *missing != members[away] };
        is_well(&read(&*disk, 0, disk.len().unwrap() as usize))
    })
}

/// Returns what a power loss leaves. The log was synced before the writes, of which some have
/// reached the members: all, none, or a part that `reached` chooses.
fn crash(now: &MemDir, synced: &MemDir, members: &[String], recorder: &Recorder, reached: u64) -> MemDir {
    let crashed = copy_of(now);
    for name in members {
        let old = synced.open(name, OpenMode::Existing).unwrap();
        let content = read(&*old, 0, old.len().unwrap() as usize);
        crashed.open(name, OpenMode::Existing).unwrap().write_at(&content, 0).unwrap();
    }
    let mut number = 0u64;
    for (name, at, bytes) in recorder.0.lock().iter().filter(|(name, ..)| members.contains(name)) {
        let disk = crashed.open(name, OpenMode::Existing).unwrap();
        for (sectors, at) in bytes.chunks(2048).zip((*at..).step_by(2048)) {
            number = (number ^ at ^ reached).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(17);
            let arrives = match reached % 5 {
                0 => true,
                1 => false,
                n => number % 5 < n,
            };
            if arrives {
                disk.write_at(sectors, at).unwrap();
            }
        }
    }
    crashed
}

type Writes = Vec<(u64, usize, u8)>;

fn writes(most: usize) -> impl Strategy<Value = Writes> {
    // Most are close to each other, so that they share rows.
    let at = prop_oneof![3 => 0u64..40, 1 => 0u64..500].prop_map(|n| n * 2048);
    prop::collection::vec((at, 1usize..50_000, any::<u8>()), 1..most)
}

fn write_all(disk: &dyn Disk, writes: &Writes, mut wrote: impl FnMut(usize, usize, u8)) {
    for (at, len, byte) in writes {
        let at = at % disk.len().unwrap();
        let len = (*len).min((disk.len().unwrap() - at) as usize);
        disk.write_at(&vec![*byte; len], at).unwrap();
        wrote(at as usize, len, *byte);
    }
}

/// A block is written as a whole, and its writer takes a part of it from here again after a crash.
#[test]
fn a_part_that_is_kept_outlives_the_member_that_has_it() {
    for reached in (0..400u64).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15)) {
        let place = raid_of(&[1, 1, 1], 3);
        let recorder = Arc::new(Recorder::default());
        let dir = LayeredDir::over(Arc::new(place.memory.clone()), recorder.clone());
        let dir = with_layouts(Arc::new(dir), LayoutOptions::default());
        let disk = dir.open_locked("raid5:m", OpenMode::Existing).unwrap();
        let content = pattern(2 * UNIT, 3);
        disk.write_at(&content, 0).unwrap();
        sync(&*disk);
        let synced = copy_of(&place.memory);
        recorder.0.lock().clear();
        let at = raid(&*disk).rows.block(0, 1) as usize * BLOCK;
        let lost = raid(&*disk).place(0, 1).member.to_string();
        let mut block = content[at..at + BLOCK].to_vec();
        block[..512].fill(9);
        raid(&*disk).keep_parts([at as u64].into_iter());
        disk.write_at(&block, at as u64).unwrap();
        sync(&*disk);
        drop(disk);
        let members = ["0", "1", "2"].map(String::from);
        let crashed = crash(&place.memory, &synced, &members, &recorder, reached);
        crashed.remove(&lost).unwrap();
        let found = read(&*open_in(&crashed, OpenMode::Existing), at as u64, BLOCK);
        assert!(found[512..] == block[512..], "{reached:#x}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// A power loss in the middle of a flush, and a member that is lost with it or was out before.
    #[test]
    fn no_write_hole(
        width in 3usize..5,
        more in 0usize..2,
        was_out in prop::option::of(0usize..3),
        before in writes(8),
        last in writes(6),
        reached in any::<u64>(),
        lost in prop::option::of(0usize..4),
        read_only_first in any::<bool>(),
    ) {
        let place = raid_of(&vec![1; width + more], width);
        let recorder = Arc::new(Recorder::default());
        let dir = LayeredDir::over(Arc::new(place.memory.clone()), recorder.clone());
        let dir = with_layouts(Arc::new(dir), LayoutOptions::default());
        let disk = dir.open_locked("raid5:m", OpenMode::Existing).unwrap();
        let len = disk.len().unwrap() as usize;
        let (mut model, mut is_known) = (vec![0u8; len], vec![true; len]);
        if let Some(out) = was_out {
            disk.as_layout().unwrap().members().put_out(out, "a test").unwrap();
        }
        write_all(&*disk, &before, |at, len, byte| model[at..at + len].fill(byte));
        sync(&*disk);
        let synced = copy_of(&place.memory);
        recorder.0.lock().clear();
        write_all(&*disk, &last, |at, len, _| is_known[at..at + len].fill(false));
        sync(&*disk);
        drop(disk);
        let members: Vec<String> = (0..width + more).map(|n| n.to_string()).collect();
        let crashed = crash(&place.memory, &synced, &members, &recorder, reached);
        let lost = lost.filter(|lost| *lost < members.len() && was_out.is_none_or(|out| out == *lost));
        if let Some(lost) = lost {
            let known = |found: &[u8]| (0..len).all(|n| !is_known[n] || found[n] == model[n]);
            prop_assert!(was_out.is_some() || survives_a_return(&crashed, &members, lost, &known));
            crashed.remove(&members[lost]).unwrap();
        }
        let check = |disk: &dyn Disk, text: &str| {
            let found = read(disk, 0, len);
            let wrong = (0..len).find(|n| is_known[*n] && found[*n] != model[*n]);
            prop_assert_eq!(wrong, None, "{}", text);
            Ok(found)
        };
        let mut seen = None;
        if read_only_first {
            seen = Some(check(&*open_in(&crashed, OpenMode::ReadOnly), "for reading")?);
            // A salvage opens for reading, and then writes to an overlay.
            let overlay = OverlayDir::new(Arc::new(crashed.clone()));
            let dir = with_layouts(Arc::new(overlay), LayoutOptions::default());
            let disk = dir.open_locked("raid5:m", OpenMode::ReadOnly).unwrap();
            write_all(&*disk, &last, |_, _, _| ());
            sync(&*disk);
            check(&*disk, "over an overlay")?;
        }
        let disk = open_in(&crashed, OpenMode::Existing);
        let found = check(&*disk, "opened")?;
        prop_assert!(seen.is_none_or(|seen| seen == found), "an opening for reading shows the same");
        sync(&*disk);
        drop(disk);
        // What was found once stays, whatever member goes next.
        if lost.is_none() && was_out.is_none() {
            for member in &members {
                let later = copy_of(&crashed);
                later.remove(member).unwrap();
                let found_then = check(&*open_in(&later, OpenMode::Existing), member)?;
                prop_assert!(found_then == found, "without {}", member);
            }
        } else {
            let found_then = check(&*open_in(&crashed, OpenMode::Existing), "again")?;
            prop_assert!(found_then == found);
        }
    }

    /// Any writes and syncs, and a member that goes away between them.
    #[test]
    fn a_raid_is_like_a_disk(
        sizes in prop::collection::vec(1u64..4, 3..6),
        all in prop::collection::vec(writes(4), 1..8),
        lost in (0usize..6, 0usize..8),
    ) {
        let place = raid_of(&sizes, 3);
        let Ok(disk) = place.try_open() else { return Ok(()) };
        let mut model = vec![0u8; disk.len().unwrap() as usize];
        for (n, writes) in all.iter().enumerate() {
            if n == lost.1 && lost.0 < sizes.len() {
                place.broken.set(&lost.0.to_string(), ["write", "sync", "read"][n % 3]);
            }
            write_all(&*disk, writes, |at, len, byte| model[at..at + len].fill(byte));
            if n % 2 == 0 {
                sync(&*disk);
            }
            prop_assert!(read(&*disk, 0, model.len()) == model);
        }
        sync(&*disk);
        drop(disk);
        place.broken.heal();
        let disk = place.open();
        prop_assert!(read(&*disk, 0, model.len()) == model);
    }
}

/// The new disk of a member that is in has anything where nothing was in use. What is written there
/// during the rebuild must follow from the others all the same.
#[test]
fn a_line_that_is_written_during_a_replacement_is_consistent_on_the_new_disk() {
    for is_out in [false, true] {
        for replaced in 0..3 {
            let place = raid_of(&[2, 2, 2], 3);
            let disk = place.open();
            let layout = disk.as_layout().unwrap();
            if is_out {
                layout.members().put_out(replaced, "a test").unwrap();
            }
            let new = place.dir.open_locked("new", OpenMode::CreateNew).unwrap();
            new.write_at(&vec![0xEE; (CONTENT_START + 2 * UNIT) as usize], 0).unwrap();
            drop(new);
            let new = place.dir.open_locked("new", OpenMode::Existing).unwrap();
            let new =
                crate::disk::layout::NewMember { uuid: Uuid::from_u128(77), path: "new".into(), disk: new };
            layout.rebuild_onto(replaced, new, None).unwrap();
            let (begun, _) = layout.members().rebuilt().unwrap();
            let written: Vec<u64> = (0..64).map(|n| n * 5 * BLOCK as u64).collect();
            for at in &written {
                disk.write_at(&[7; BLOCK], *at).unwrap();
            }
            sync(&*disk);
            layout.note_rebuilt(begun, u64::MAX).unwrap();
            assert_eq!(place.stored_in(), [true; 3]);
            drop(disk);
            for member in ["0", "1", "2", "new"] {
                place.broken.set(member, "open");
                let disk = place.open();
                for at in &written {
                    assert!(read(&*disk, *at, BLOCK) == [7; BLOCK], "byte {at} without {member}");
                }
                drop(disk);
                place.broken.heal();
            }
        }
    }
}
