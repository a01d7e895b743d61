//! Unused rows are given back.

use super::*;

/// Bytes of a row's content: two columns of two blocks.
const ROW: u64 = 4 * BLOCK as u64;

/// Disks that can make zeros. One of them may fail when it should, or find out on the way that it
/// can't.
#[derive(Default)]
pub(super) struct Zeroing {
    failing: Option<&'static str>,
    giving_up: Option<&'static str>,
}

impl Layer for Zeroing {
    fn zero(&self, disk: &LowerDisk, offset: u64, len: u64, _unmap: bool) -> io::Result<bool> {
        if self.failing == Some(disk.name()) {
            return Err(io::Error::from_raw_os_error(5));
        }
        let gives_up = self.giving_up == Some(disk.name());
        // In memory, that makes zeros.
        disk.punch(offset, if gives_up { BLOCK as u64 } else { len }).map(|()| !gives_up)
    }
}

/// What a member has of a row: two lines.
fn of_row(place: &LayoutInMemory, member: usize, row: u64) -> Vec<u8> {
    let disk = place.memory.open(&member.to_string(), OpenMode::ReadOnly).unwrap();
    read(&*disk, CONTENT_START + row * 2 * BLOCK as u64, 2 * BLOCK)
}

fn is_zeros(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// The rows of which every member has only zeros.
fn given_back(place: &LayoutInMemory) -> Vec<u64> {
    (0..20).filter(|row| (0..3).all(|member| is_zeros(&of_row(place, member, *row)))).collect()
}

/// Makes a RAID-5 like [`written`], of disks that can make zeros.
fn written_on(disks: Zeroing) -> (LayoutInMemory, Arc<dyn Disk>, Vec<u8>) {
    let (place, disk, content) = written();
    drop(disk);
    let dir = LayeredDir::over(Arc::new(place.memory.clone()), Arc::new(disks));
    let dir = with_layouts(Arc::new(dir), LayoutOptions::default());
    let disk = dir.open_locked("raid5:m", OpenMode::Existing).unwrap();
    (place, disk, content)
}

fn assert_whole_without_any(place: &LayoutInMemory, is_right: impl Fn(&[u8]) -> bool) {
    for member in ["0", "1", "2"] {
        assert!(is_right(&without(place, member)), "without {member}");
    }
}

#[test]
fn whole_rows_are_given_back_at_the_next_sync() {
    let (place, disk, content) = written_on(Zeroing::default());
    // The end of row 0, rows 1 to 3 in parts that touch, and the beginning of row 4.
    disk.punch(ROW - 100, ROW + 100 + 500).unwrap();
    disk.punch(2 * ROW + 500, 2 * ROW).unwrap();
    assert!(given_back(&place).is_empty());
    sync(&*disk);
    assert_eq!(given_back(&place), [1, 2, 3]);
    let (from, to) = ((ROW - 100) as usize, (4 * ROW + 500) as usize);
    let is_right = |found: &[u8]| found[..from] == content[..from] && found[to..] == content[to..];
    // A block that is written there is protected like any other.
    disk.write_at(&[7; BLOCK], 2 * ROW).unwrap();
    sync(&*disk);
    drop(disk);
    let at = 2 * ROW as usize;
    assert_whole_without_any(&place, |found| is_right(found) && found[at..at + BLOCK] == [7; BLOCK]);
}

#[test]
fn what_is_used_again_is_not_given_back() {
    let (place, disk, _) = written_on(Zeroing::default());
    disk.punch(0, 5 * ROW).unwrap();
    disk.write_at(&[7; 512], 2 * ROW + 100).unwrap();
    disk.allocate(3 * ROW + 100, 1).unwrap();
    sync(&*disk);
    assert_eq!(given_back(&place), [0, 1, 4]);
    assert_eq!(read(&*disk, 2 * ROW + 100, 512), [7; 512]);
    // Much at once does not wait for a sync.
    disk.punch(0, 2 * UNIT).unwrap();
    assert_eq!(given_back(&place).len(), 20);
}

/// What was noted is given back when the rebuild has ended.
#[test]
fn nothing_is_given_back_while_a_member_is_out_or_rebuilt() {
    let (place, disk, content) = written_on(Zeroing::default());
    let layout = disk.as_layout().unwrap();
    let is_kept = || {
        sync(&*disk);
        let kept = [0, 2].map(|member| !is_zeros(&of_row(&place, member, 1)));
        kept == [true; 2] && read(&*disk, 0, content.len()) == content
    };
    layout.members().put_out(1, "a test").unwrap();
    disk.punch(0, 5 * ROW).unwrap();
    assert!(is_kept());
    place.replace(layout, 1, "new", 1);
    assert!(is_kept());
    let (begun, _) = layout.members().rebuilt().unwrap();
    layout.copy_to_incoming(0, 2 * UNIT, &|_, _| true).unwrap();
    layout.note_rebuilt(begun, u64::MAX).unwrap();
    assert_eq!(place.stored_in(), [true; 3]);
    assert!(!is_kept());
}

/// A disk has made some zeros when it finds out that it can't. Then nothing is known of the lines,
/// and their new parities are right nevertheless.
#[test]
fn lines_are_not_known_if_a_disk_gives_up() {
    let place = raid_of(&[1; 4], 4);
    let zeroing = Zeroing { giving_up: Some("2"), ..Zeroing::default() };
    let dir = LayeredDir::over(Arc::new(place.memory.clone()), Arc::new(zeroing));
    let dir = with_layouts(Arc::new(dir), LayoutOptions::default());
    let disk = dir.open_locked("raid5:m", OpenMode::Existing).unwrap();
    disk.write_at(&pattern(3 * UNIT, 3), 0).unwrap();
    sync(&*disk);
    raid(&*disk).groups.change(&place.memory, "m", |_, _| true).unwrap();
    disk.punch(0, 60 * BLOCK as u64).unwrap();
    sync(&*disk);
    assert!(!raid(&*disk).groups.are_consistent(0));
    drop(disk);
    let disk = place.open();
    let blocks = || (0..60).step_by(7).map(|block| block * BLOCK as u64);
    blocks().for_each(|at| disk.write_at(&[9; BLOCK], at).unwrap());
    sync(&*disk);
    drop(disk);
    for member in ["0", "1", "2", "3"] {
        let found = without(&place, member);
        assert!(blocks().all(|at| found[at as usize..][..BLOCK] == [9; BLOCK]), "without {member}");
    }
}

/// A disk that fails while it gives back is out. What is left is consistent.
#[test]
fn a_member_that_can_not_give_back_is_out() {
    let (place, disk, content) = written_on(Zeroing { failing: Some("1"), ..Zeroing::default() });
    disk.punch(0, 5 * ROW).unwrap();
    sync(&*disk);
    assert_eq!(place.stored_in(), [true, false, true]);
    let rest = 5 * ROW as usize;
    assert!(is_zeros(&read(&*disk, 0, rest)));
    assert!(read(&*disk, 5 * ROW, content.len() - rest) == content[rest..]);
}

/// The rows have three columns, so a write of one block computes the parity from the old one.
#[test]
fn a_crash_in_the_middle_leaves_consistent_rows() {
    const ROW: u64 = 6 * BLOCK as u64;
    for reached in 0..10 {
        let place = raid_of(&[1; 4], 4);
        let recorder = Arc::new(Recorder::default());
        let dir = LayeredDir::over(Arc::new(place.memory.clone()), recorder.clone());
        let dir = with_layouts(Arc::new(dir), LayoutOptions::default());
        let disk = dir.open_locked("raid5:m", OpenMode::Existing).unwrap();
        let content = pattern(3 * UNIT, 3);
        disk.write_at(&content, 0).unwrap();
        sync(&*disk);
        raid(&*disk).groups.change(&place.memory, "m", |_, _| true).unwrap();
        let synced = copy_of(&place.memory);
        recorder.0.lock().clear();
        disk.punch(0, 4 * ROW).unwrap();
        sync(&*disk);
        drop(disk);
        let members = ["0", "1", "2", "3"].map(str::to_owned);
        let crashed = crash(&place.memory, &synced, &members, &recorder, reached);
        for lost in [None, Some(0), Some(3)] {
            let left = copy_of(&crashed);
            if let Some(lost) = lost {
                left.remove(&members[lost]).unwrap();
            }
            let disk = open_in(&left, OpenMode::Existing);
            // One block of a line whose other blocks nobody uses.
            disk.write_at(&[9; BLOCK], ROW + 2 * BLOCK as u64).unwrap();
            sync(&*disk);
            drop(disk);
            for missing in members.iter().filter(|_| lost.is_none()).map(Some).chain([None]) {
                let left = copy_of(&left);
                if let Some(missing) = missing {
                    left.remove(missing).unwrap();
                }
                let found = read(&*open_in(&left, OpenMode::Existing), 0, content.len());
                let (at, rest) = (ROW as usize + 2 * BLOCK, 4 * ROW as usize);
                assert!(found[rest..] == content[rest..], "{reached} {lost:?} {missing:?}");
                assert!(found[at..at + BLOCK] == [9; BLOCK], "{reached} {lost:?} {missing:?}");
            }
        }
    }
}

/// Disks that can't make zeros keep what they have, and are not asked again.
#[test]
fn disks_that_can_not_give_back_keep_everything() {
    let (place, disk, content) = written();
    for _ in 0..2 {
        disk.punch(0, 5 * ROW).unwrap();
        sync(&*disk);
    }
    assert!(read(&*disk, 0, content.len()) == content);
    drop(disk);
    assert_whole_without_any(&place, |found| found == content);
}
