//! A member is away for one opening, and is there again in the next one.

use super::*;

/// Takes a copy of the directory just before the first write to a member.
struct BeforeWrite {
    memory: MemDir,
    copy: Mutex<Option<MemDir>>,
}

impl Layer for BeforeWrite {
    fn write_vectored_at(&self, disk: &LowerDisk, bufs: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        if disk.name().bytes().all(|byte| byte.is_ascii_digit()) {
            self.copy.lock().get_or_insert_with(|| copy_of(&self.memory));
        }
        disk.write_vectored_at(bufs, offset)
    }
}

/// Copies a file from one directory to another one.
fn bring(from: &MemDir, to: &MemDir, name: &str) {
    let disk = from.open(name, OpenMode::ReadOnly).unwrap();
    let content = read(&*disk, 0, disk.len().unwrap() as usize);
    to.open(name, OpenMode::CreateNew).unwrap().write_at(&content, 0).unwrap();
}

/// An opening finds what the missing member does not have. The power fails right behind the next
/// entry of the log. By then the record says that the member is out.
#[test]
fn a_member_that_lacks_what_was_found_stays_out() {
    let place = raid_of(&[1; 4], 4);
    let disk = place.open();
    let content = pattern(3 * UNIT, 3);
    disk.write_at(&content, 0).unwrap();
    sync(&*disk);
    let rows = &raid(&*disk).rows;
    let (at, other) = (rows.block(0, 1) * BLOCK as u64, rows.block(40, 0) * BLOCK as u64);
    let away = raid(&*disk).place(0, 1).member.to_string();
    let synced = copy_of(&place.memory);
    disk.write_at(&[9; BLOCK], at).unwrap();
    sync(&*disk);
    drop(disk);

    // The block did not reach its member, and that is missing now.
    place.memory.remove(&away).unwrap();
    let layer = Arc::new(BeforeWrite { memory: place.memory.clone(), copy: Mutex::default() });
    let dir = with_layouts(
        Arc::new(LayeredDir::over(Arc::new(place.memory.clone()), layer.clone())),
        LayoutOptions::default(),
    );
    let disk = dir.open_locked("raid5:m", OpenMode::Existing).unwrap();
    assert!(read(&*disk, at, BLOCK) == [9; BLOCK], "it follows from the others");
    disk.write_at(&[7; BLOCK], other).unwrap();
    sync(&*disk);
    drop(disk);

    let left = layer.copy.lock().take().unwrap();
    bring(&synced, &left, &away);
    for missing in ["0", "1", "2", "3"].iter().map(Some).chain([None]) {
        let left = copy_of(&left);
        if let Some(missing) = missing {
            left.remove(missing).unwrap();
        }
        // Without a second one it does not open.
        let Ok(disk) = try_open_in(&left, OpenMode::Existing) else {
            assert_ne!(*missing.unwrap(), away);
            continue;
        };
        assert!(read(&*disk, at, BLOCK) == [9; BLOCK], "without {missing:?}");
    }
}
