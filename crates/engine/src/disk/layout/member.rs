//! The disks of a layout's members: how they are recognized.
//!
//! | bytes | content |
//! |---|---|
//! | 0..4096 | magic `HCMEMBER`, CRC32C of bytes 12..4096, version, UUIDs of layout and member |
//! | 4096..516 KiB | a copy of the [record](super::record) |
//! | 1 MiB.. | content |

use super::record::{LayoutRecord, MAX_RECORD};
use crate::codec::{Reader, Writer, crc32c};
use crate::disk::{Disk, SyncPurpose};
use std::io;
use uuid::Uuid;

const MAGIC: &[u8; 8] = b"HCMEMBER";
const VERSION: u32 = 1;
const HEADER: usize = 4096;
/// Byte at which the content of a member begins.
pub(crate) const CONTENT_START: u64 = 1 << 20;
const _: () = assert!(HEADER + MAX_RECORD <= CONTENT_START as usize);

/// Writes header and record of a new member, and makes them durable.
pub(crate) fn write_header(disk: &dyn Disk, member: &Uuid, record: &LayoutRecord) -> io::Result<()> {
    write_mark(disk, &record.uuid, member)?;
    write_record(disk, record)?;
    disk.sync(SyncPurpose::Layout)
}

/// Writes the first block of a member, which tells whose it is.
pub(crate) fn write_mark(disk: &dyn Disk, layout: &Uuid, member: &Uuid) -> io::Result<()> {
    let mut w = Writer::default();
    w.bytes(MAGIC).u32(0).u32(VERSION).uuid(layout).uuid(member);
    w.0.resize(HEADER, 0);
    let crc = crc32c(&w.0[12..]);
    w.0[8..12].copy_from_slice(&crc.to_le_bytes());
    disk.write_at(&w.0, 0)
}

/// Writes the copy of the record.
pub(crate) fn write_record(disk: &dyn Disk, record: &LayoutRecord) -> io::Result<()> {
    disk.write_at(&record.encode(), HEADER as u64)
}

/// Reads the copy of the record, if there is one that verifies.
pub(crate) fn read_record(disk: &dyn Disk) -> Option<LayoutRecord> {
    let mut bytes = vec![0; MAX_RECORD];
    disk.read_at(&mut bytes, HEADER as u64).ok()?;
    LayoutRecord::decode(&bytes)
}

/// Checks that a disk is the member of a layout.
pub(crate) fn check(disk: &dyn Disk, layout: &Uuid, member: &Uuid, capacity: u64) -> io::Result<()> {
    let wrong = |text: &str| Err(io::Error::new(io::ErrorKind::InvalidData, text));
    let mut header = vec![0; HEADER];
    if disk.len()? < CONTENT_START + capacity {
        return wrong("it is smaller than it was");
    }
    disk.read_at(&mut header, 0)?;
    match owner(&header) {
        Some((of, id)) if of == *layout && id == *member => Ok(()),
        Some((of, _)) if of == *layout => wrong("it is another member of the layout"),
        Some(_) => wrong("it is a member of another layout"),
        None => wrong("it has no header of a member"),
    }
}

/// Returns whether a disk is, or was, a member of a layout. A header that a crash left half written
/// counts: the UUID of the layout is the same before and after.
pub(crate) fn is_of(disk: &dyn Disk, layout: &Uuid) -> io::Result<bool> {
    let mut header = vec![0; HEADER];
    disk.read_at(&mut header, 0)?;
    let mut r = Reader::new(&header);
    Ok(r.take(8) == Some(MAGIC) && r.take(8).is_some() && r.uuid() == Some(*layout))
}

/// Returns the UUIDs of layout and member in the header of a disk, if it has one.
pub(crate) fn mark_of(disk: &dyn Disk) -> io::Result<Option<(Uuid, Uuid)>> {
    let mut header = vec![0; HEADER];
    disk.read_at(&mut header, 0)?;
    Ok(owner(&header))
}

/// Returns the UUIDs of layout and member.
fn owner(header: &[u8]) -> Option<(Uuid, Uuid)> {
    let mut r = Reader::new(header);
    (r.take(8)? == MAGIC).then_some(())?;
    let (crc, version) = (r.u32()?, r.u32()?);
    (crc == crc32c(&header[12..]) && version == VERSION).then_some(())?;
    Some((r.uuid()?, r.uuid()?))
}

/// Returns the byte of a disk at which the content of its layout begins. `None`: it is no member,
/// or has another part of the content only.
pub(crate) fn beginning_on(disk: &dyn Disk) -> Option<u64> {
    let (layout, member) = mark_of(disk).ok()??;
    let Some(record) = read_record(disk).filter(|record| record.uuid == layout) else {
        return Some(CONTENT_START);
    };
    let number = record.members.iter().position(|of| of.uuid == member)?;
    record.spans.first()?.places.iter().find(|place| place.member == number).map(|place| place.offset)
}

/// Removes the header of a member that leaves its layout.
pub(crate) fn wipe(disk: &dyn Disk) -> io::Result<()> {
    disk.write_at(&[0; HEADER], 0)?;
    disk.sync(SyncPurpose::Layout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::layout::record::{LayoutKind, MemberRecord};
    use crate::disk::layout::spans::{CopiedSpan, CopyPlace};
    use crate::disk::{Dir, MemDir, OpenMode};

    #[test]
    fn a_disk_is_recognized() {
        let disk = MemDir::new().open("a", OpenMode::CreateNew).unwrap();
        disk.set_len(CONTENT_START + 10).unwrap();
        let [layout, member, other] = [1, 2, 3].map(Uuid::from_u128);
        let record = LayoutRecord {
            uuid: layout,
            sequence: 1,
            kind: LayoutKind::Mirror,
            width: 2,
            reserve: 0,
            stale: 0,
            members: Vec::new(),
            spans: Vec::new(),
        };
        let error = |layout, member, len| check(&*disk, layout, member, len).unwrap_err().to_string();
        assert!(error(&layout, &member, 10).contains("no header"));
        write_header(&*disk, &member, &record).unwrap();
        check(&*disk, &layout, &member, 10).unwrap();
        assert!(error(&layout, &member, 11).contains("smaller"));
        assert!(error(&layout, &other, 10).contains("another member"));
        assert!(error(&other, &member, 10).contains("another layout"));
        assert!(is_of(&*disk, &layout).unwrap() && !is_of(&*disk, &other).unwrap());
        // A crash may leave a new header half written.
        disk.write_at(&[7], 40).unwrap();
        assert!(error(&layout, &member, 10).contains("no header"));
        assert!(is_of(&*disk, &layout).unwrap() && !is_of(&*disk, &other).unwrap());
        write_header(&*disk, &member, &record).unwrap();
        wipe(&*disk).unwrap();
        assert!(error(&layout, &member, 10).contains("no header"));
        assert!(!is_of(&*disk, &layout).unwrap());
    }

    #[test]
    fn the_beginning_of_the_content_is_where_the_record_says() {
        let disk = MemDir::new().open("a", OpenMode::CreateNew).unwrap();
        disk.set_len(8 * CONTENT_START).unwrap();
        assert_eq!(beginning_on(&*disk), None);
        let uuids = [1, 2, 3].map(Uuid::from_u128);
        let member = |uuid: &Uuid| MemberRecord {
            uuid: *uuid,
            path: String::new(),
            is_in: true,
            is_listed: false,
            capacity: 7 * CONTENT_START,
            reason: String::new(),
            incoming: None,
        };
        let place = |member, offset: u64| CopyPlace { member, offset: offset * CONTENT_START };
        let span = |start: u64, places: Vec<CopyPlace>| CopiedSpan {
            start: start * CONTENT_START,
            len: CONTENT_START,
            places,
        };
        let record = LayoutRecord {
            uuid: Uuid::from_u128(9),
            sequence: 1,
            kind: LayoutKind::Mirror,
            width: 2,
            reserve: 0,
            stale: 0,
            members: uuids.iter().map(member).collect(),
            spans: vec![span(0, vec![place(0, 1), place(1, 3)]), span(1, vec![place(2, 1), place(0, 2)])],
        };
        let expected = [Some(CONTENT_START), Some(3 * CONTENT_START), None];
        for (uuid, expected) in uuids.iter().zip(expected) {
            write_header(&*disk, uuid, &record).unwrap();
            assert_eq!(beginning_on(&*disk), expected);
        }
        disk.write_at(&[0; 64], HEADER as u64).unwrap();
        assert_eq!(beginning_on(&*disk), Some(CONTENT_START), "nothing says otherwise");
    }
}
