//! Writing the journal's unsynced tail again, safely.
//!
//! After a kill the tail may be in the page cache only. After a failed sync even a successful one
//! proves nothing: Linux may regard pages as clean that never reached the disk. So an opening
//! writes again what is not known to have been durable.
//!
//! The tail may hold acknowledged bytes that were durable all the same, and a power loss may turn a
//! block that is being written into garbage. So the opening first copies each part of the tail to a
//! separate file and syncs that file. Then it writes the part to its place again. When an open was
//! interrupted, the next open repeats the write from the copy.
//!
//! An opening writes the slots of references again in the same way. The copy then names a physical
//! volume instead of a segment file.
//!
//! The copy counts only while the pool is at the incarnation that it names. Opening moves the
//! incarnation on, durably, before anything is appended. The file stays, because there may be no
//! room for it when it is needed again.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | magic `HCJT` |
//! | 4..8 | CRC32C of the CRC32C of bytes 8..64 and the CRC-32/MEF of the data, which has sums of its own (version 1: its CRC32C) |
//! | 8..24 | pool |
//! | 24..32 | incarnation that the pool had when it was opened |
//! | 32..40 | byte offset in the segment file |
//! | 40..48 | length in bytes |
//! | 48..52 | index of the segment file, or number of the physical volume |
//! | 52..56 | format version: 2 for a segment file, 3 for a physical volume; 1 is read, too |
//! | 56..64 | zero |
//! | 4096.. | the data |

use super::record::HEADER_LEN;
use super::reference::{Reference, SlotRun};
use super::verify::{Slots, Verified};
use crate::codec::{Reader, Writer, align_up, crc32c, outer_sum};
use crate::disk::{Backing, Dir, Disk, OpenMode, SyncPurpose, is_unreadable};
use crate::error::{Error, ErrorKind, Result, corrupt};
use crate::units::BLOCK;
use std::io;
use std::sync::Arc;
use uuid::Uuid;

/// The copy's name in the data directory.
const FILE: &str = "journal-tail";
const MAGIC: u32 = u32::from_le_bytes(*b"HCJT");
const VERSION: u32 = 2;
const CRC32C_VERSION: u32 = 1;
/// The format version of a copy of slots.
const SLOTS_VERSION: u32 = 3;
const HEAD_LEN: usize = 64;
const DATA_AT: u64 = BLOCK;
/// Bytes that are copied at a time.
const PART: u64 = 8 << 20;

/// The pool and the incarnation that a tail belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) pool: Uuid,
    /// The incarnation as committed before this opening.
    pub(crate) incarnation: u64,
}

/// The destination of the bytes of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyTarget {
    /// A segment file, by its index.
    Segment(u32),
    /// A physical volume, by its number.
    Pv(u32),
}

/// A part of a segment, or of a physical volume, that an opening was writing again.
pub(crate) struct TailCopy {
    pub(crate) target: CopyTarget,
    pub(crate) offset: u64,
    pub(crate) data: Vec<u8>,
}

fn encode_head(owner: &Owner, copy: &TailCopy) -> [u8; HEAD_LEN] {
    let mut w = Writer::default();
    w.uuid(&owner.pool).u64(owner.incarnation).u64(copy.offset).u64(copy.data.len() as u64);
    let (number, version) = match copy.target {
        CopyTarget::Segment(index) => (index, VERSION),
        CopyTarget::Pv(number) => (number, SLOTS_VERSION),
    };
    w.u32(number).u32(version).u64(0u64);
    let mut head = [0; HEAD_LEN];
    head[8..].copy_from_slice(&w.0);
    head[..4].copy_from_slice(&MAGIC.to_le_bytes());
    let crc = sum(&head[8..], outer_sum(&copy.data));
    head[4..8].copy_from_slice(&crc.to_le_bytes());
    head
}

fn sum(head: &[u8], of_data: u32) -> u32 {
    let mut sums = [0; 8];
    sums[..4].copy_from_slice(&crc32c(head).to_le_bytes());
    sums[4..].copy_from_slice(&of_data.to_le_bytes());
    crc32c(&sums)
}

/// Returns the copy that an opening of this incarnation had completed, if there is one.
pub(crate) fn interrupted(dir: &dyn Dir, owner: &Owner) -> Result<Option<TailCopy>> {
    let disk = match dir.open(FILE, OpenMode::ReadOnly) {
        Ok(disk) => disk,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(format!("open {FILE}"), e)),
    };
    read_copy(&*disk, owner).map_err(|e| Error::io(format!("read {FILE}"), e))
}

fn read_copy(disk: &dyn Disk, owner: &Owner) -> io::Result<Option<TailCopy>> {
    let len = disk.len()?;
    if len < DATA_AT {
        return Ok(None);
    }
    let mut head = [0; HEAD_LEN];
    disk.read_at(&mut head, 0)?;
    let Some((of, offset, length, target, version)) = decode_head(&head) else { return Ok(None) };
    if of != *owner || length > PART || DATA_AT + length > len {
        return Ok(None);
    }
    let mut data = vec![0; length as usize];
    disk.read_at(&mut data, DATA_AT)?;
    let of_data = if version == CRC32C_VERSION { crc32c(&data) } else { outer_sum(&data) };
    let good = sum(&head[8..], of_data).to_le_bytes() == head[4..8];
    Ok(good.then_some(TailCopy { target, offset, data }))
}

fn decode_head(head: &[u8]) -> Option<(Owner, u64, u64, CopyTarget, u32)> {
    let mut r = Reader::new(head);
    if r.u32()? != MAGIC {
        return None;
    }
    r.u32()?;
    let owner = Owner { pool: r.uuid()?, incarnation: r.u64()? };
    let (offset, length, number) = (r.u64()?, r.u64()?, r.u32()?);
    let version = r.u32()?;
    let target = match version {
        CRC32C_VERSION | VERSION => CopyTarget::Segment(number),
        SLOTS_VERSION => CopyTarget::Pv(number),
        _ => return None,
    };
    Some((owner, offset, length, target, version))
}

/// Repeats the write of an interrupted opening, before anything is read from the journal. `pv`
/// returns the disk of a physical volume by its number.
pub(crate) fn restore(dir: &dyn Dir, owner: &Owner, pv: &dyn Fn(u32) -> Option<Arc<dyn Disk>>) -> Result<()> {
    let Some(copy) = interrupted(dir, owner)? else { return Ok(()) };
    let index = match copy.target {
        CopyTarget::Segment(index) => index,
        CopyTarget::Pv(number) => {
            let Some(disk) = pv(number) else {
                return Err(corrupt(format!("restore a part of PV {number}: it does not exist")));
            };
            let fail = |e| Error::io(format!("restore a part of PV {number}"), e);
            let written = disk.write_at(&copy.data, copy.offset);
            let Err(error) = written.and_then(|()| disk.sync(SyncPurpose::JournalOpen)) else {
                return Ok(());
            };
            // The physical volume may refuse writes now. Then the write of the interrupted opening
            // may have failed, too. If the content is already there, nothing needs to be written.
            let mut there = vec![0; copy.data.len()];
            let is_there = disk.read_at(&mut there, copy.offset).is_ok() && there == copy.data;
            return if is_there { Ok(()) } else { Err(fail(error)) };
        }
    };
    let name = super::segment::file_name(index);
    let fail = |e| Error::io(format!("restore a part of {name}"), e);
    let disk = match dir.open(&name, OpenMode::Existing) {
        Ok(disk) => disk,
        // The scan tells what is missing.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(fail(e)),
    };
    if disk.len().map_err(fail)? < copy.offset + copy.data.len() as u64 {
        // It was cut short meanwhile: the scan has to see that.
        return Ok(());
    }
    disk.write_at(&copy.data, copy.offset).map_err(fail)?;
    // Before the copy makes room for the next part.
    disk.sync(SyncPurpose::JournalOpen).map_err(fail)
}

/// Writes the bytes `from..end` of a segment again. They are durable when the function returns.
pub(crate) fn write_again(
    dir: &dyn Dir,
    owner: &Owner,
    segment: &super::SegmentFile,
    from: u64,
    end: u64,
) -> Result<()> {
    let name = super::segment::file_name(segment.index);
    let fail = |e| Error::io(format!("write the tail of {name} again"), e);
    let copy_disk = open_copy(dir)?;
    // Whole blocks: what shares a block with the tail is written with it.
    let len = segment.disk.len().map_err(fail)?;
    let end = align_up(end, BLOCK).min(len);
    let mut at = from / BLOCK * BLOCK;
    let mut part = PART;
    while at < end {
        let target = CopyTarget::Segment(segment.index);
        let mut copy = TailCopy { target, offset: at, data: vec![0; (end - at).min(part) as usize] };
        if segment.disk.read_at(&mut copy.data, at).is_err() {
            // All that is needed was read by the scan: a header is worked out from its records, and
            // what can't be read between two records is none.
            at += if part == BLOCK { BLOCK } else { 0 };
            part = BLOCK;
            continue;
        }
        save(&*copy_disk, owner, &copy).map_err(|e| Error::io(format!("write {FILE}"), e))?;
        segment.disk.write_at(&copy.data, at).map_err(fail)?;
        segment.disk.sync(SyncPurpose::JournalOpen).map_err(fail)?;
        at += copy.data.len() as u64;
    }
    Ok(())
}

fn open_copy(dir: &dyn Dir) -> Result<Arc<dyn Disk>> {
    let disk = dir.open(FILE, OpenMode::Create).map_err(|e| Error::io(format!("create {FILE}"), e))?;
    dir.sync(SyncPurpose::Dir).map_err(|e| Error::io("sync the data directory", e))?;
    Ok(disk)
}

/// Destroys the record whose header begins at byte `at` of a segment: writes zeros from there to
/// the end of the blocks that hold the header. The bytes before `at` stay. The result is durable
/// when the function returns.
pub(crate) fn erase(dir: &dyn Dir, owner: &Owner, segment: &super::SegmentFile, at: u64) -> Result<()> {
    let name = super::segment::file_name(segment.index);
    let fail = |e| Error::io(format!("end {name} at byte {at}"), e);
    let from = at / BLOCK * BLOCK;
    let end = align_up(at + HEADER_LEN as u64, BLOCK).min(segment.disk.len().map_err(fail)?);
    let mut data = vec![0; (end - from) as usize];
    segment.disk.read_at(&mut data, from).map_err(fail)?;
    data[(at - from) as usize..].fill(0);
    let copy = TailCopy { target: CopyTarget::Segment(segment.index), offset: from, data };
    save(&*open_copy(dir)?, owner, &copy).map_err(|e| Error::io(format!("write {FILE}"), e))?;
    segment.disk.write_at(&copy.data, from).map_err(fail)?;
    segment.disk.sync(SyncPurpose::JournalOpen).map_err(fail)
}

/// Writes the content of the slots of references again. The content is durable when the function
/// returns. Physical volumes whose disk `slots` does not return are left out. The inner error names
/// the first physical volume that can't be written, by its number.
pub(super) fn write_slots_again(
    dir: &dyn Dir,
    owner: &Owner,
    verified: &[Verified],
    slots: &dyn Slots,
) -> Result<std::result::Result<(), (u32, io::Error)>> {
    let bytes = |reference: &Reference, run: &SlotRun| {
        let at = run.first.offset();
        (run.first.pv(), at, at + (u64::from(run.count) << reference.slot_log2))
    };
    let mut ranges: Vec<_> = verified
        .iter()
        .map(|verified| &verified.reference)
        .flat_map(|of| of.runs.iter().map(|run| bytes(of, run)))
        .collect();
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let joins = (next.0, next.1) == (last.0, last.2);
        if joins {
            last.2 = next.2;
        }
        joins
    });
    if ranges.is_empty() {
        return Ok(Ok(()));
    }
    let copy_disk = open_copy(dir)?;
    // The file of an earlier opening already has its space. A larger part might find no space.
    let kept = copy_disk.len().map_err(|e| Error::io(format!("read {FILE}"), e))?.saturating_sub(DATA_AT);
    let part = if kept < BLOCK { PART } else { kept / BLOCK * BLOCK };
    for (number, from, end) in ranges {
        let Some((path, disk)) = slots.disk(number) else { continue };
        let (mut at, mut part) = (from, part);
        while at < end {
            let data = vec![0; (end - at).min(part) as usize];
            let mut copy = TailCopy { target: CopyTarget::Pv(number), offset: at, data };
            if let Err(e) = disk.read_at(&mut copy.data, at) {
                if !is_unreadable(&e) {
                    return Err(Error::io(format!("read the data of references on {path} again"), e));
                }
                // The scan has noted the blocks that can't be read. They stay as they are.
                at += if part == BLOCK { BLOCK } else { 0 };
                part = BLOCK;
                continue;
            }
            save(&*copy_disk, owner, &copy).map_err(|e| Error::io(format!("write {FILE}"), e))?;
            let written = disk.write_at(&copy.data, at).and_then(|()| disk.sync(SyncPurpose::JournalOpen));
            if let Err(error) = written {
                return Ok(Err((number, error)));
            }
            at += copy.data.len() as u64;
        }
    }
    Ok(Ok(()))
}

fn save(disk: &dyn Disk, owner: &Owner, copy: &TailCopy) -> io::Result<()> {
    let mut head = [0; DATA_AT as usize];
    head[..HEAD_LEN].copy_from_slice(&encode_head(owner, copy));
    disk.write_vectored_at(&mut [io::IoSlice::new(&head), io::IoSlice::new(&copy.data)], 0)?;
    disk.sync(SyncPurpose::JournalOpen)
}

/// Keeps room for the next copy, so that a pool whose file system has become full opens again. The
/// caller has moved the incarnation on, so the last copy is ignored. If there is no room now, the
/// next opening tries again.
pub(crate) fn keep_room(dir: &dyn Dir, segment_size: u64) -> Result<()> {
    let fail = |e| Error::io(format!("reserve space for {FILE}"), e);
    let len = DATA_AT + segment_size.min(PART);
    let disk = dir.open(FILE, OpenMode::Create).map_err(fail)?;
    if disk.len().map_err(fail)? >= len {
        return Ok(());
    }
    match disk.allocate(0, len).and_then(|()| disk.set_len(len)).map_err(fail) {
        Err(e) if e.kind() == ErrorKind::NoSpace => return Ok(()),
        other => other?,
    }
    disk.sync(SyncPurpose::JournalOpen).map_err(fail)?;
    // The same directory has the journal's names: a failure counts (I7).
    dir.sync(SyncPurpose::Dir).map_err(|e| Error::io("sync the data directory", e))
}

/// A segment file as it will be once `copy` is restored. It can only be read.
pub(crate) struct Patched {
    pub(crate) inner: Arc<dyn Disk>,
    pub(crate) copy: TailCopy,
}

fn refused<T>() -> io::Result<T> {
    Err(io::ErrorKind::PermissionDenied.into())
}

impl Disk for Patched {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_at(buf, offset)?;
        let (from, to) = (self.copy.offset, self.copy.offset + self.copy.data.len() as u64);
        let (start, end) = (offset.max(from), (offset + buf.len() as u64).min(to));
        if start < end {
            let patch = &self.copy.data[(start - from) as usize..(end - from) as usize];
            buf[(start - offset) as usize..(end - offset) as usize].copy_from_slice(patch);
        }
        Ok(())
    }
    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        self.read_at(buf, offset).map(|()| true)
    }
    fn write_at(&self, _buf: &[u8], _offset: u64) -> io::Result<()> {
        refused()
    }
    fn write_vectored_at(&self, _bufs: &mut [io::IoSlice<'_>], _offset: u64) -> io::Result<()> {
        refused()
    }
    fn sync(&self, _purpose: SyncPurpose) -> io::Result<()> {
        refused()
    }
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn set_len(&self, _len: u64) -> io::Result<()> {
        refused()
    }
    fn allocate(&self, _offset: u64, _len: u64) -> io::Result<()> {
        refused()
    }
    fn punch(&self, _offset: u64, _len: u64) -> io::Result<()> {
        refused()
    }
    fn backing_available(&self) -> io::Result<Option<Backing>> {
        self.inner.backing_available()
    }
    fn advise_random(&self) {}
    fn is_block_device(&self) -> bool {
        self.inner.is_block_device()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::MemDir;

    fn owner() -> Owner {
        Owner { pool: Uuid::from_bytes([7; 16]), incarnation: 5 }
    }

    #[test]
    fn golden_bytes() {
        let copy = |target| TailCopy { target, offset: 8192, data: vec![1; 4096] };
        let head = encode_head(&owner(), &copy(CopyTarget::Segment(3)));
        let hex: String = head.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "48434a543056af680707070707070707070707070707070705000000000000000020000000000000001000000000000003000000020000000000000000000000"
        );
        assert_eq!(decode_head(&head), Some((owner(), 8192, 4096, CopyTarget::Segment(3), VERSION)));
        let of_slots = encode_head(&owner(), &copy(CopyTarget::Pv(3)));
        assert_eq!(of_slots[8..52], head[8..52]);
        assert_eq!(of_slots[52..], [3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(decode_head(&of_slots), Some((owner(), 8192, 4096, CopyTarget::Pv(3), SLOTS_VERSION)));
        // As version 1 was summed.
        let mut old = head;
        old[52] = 1;
        let crc = sum(&old[8..], crc32c(&[1; 4096]));
        assert_eq!(crc.to_le_bytes(), [0x7e, 0x58, 0xed, 0x11]);
    }

    #[test]
    fn a_copy_counts_when_it_is_whole_and_of_this_incarnation() {
        let dir = MemDir::new();
        assert!(interrupted(&dir, &owner()).unwrap().is_none());
        let disk = dir.open(FILE, OpenMode::Create).unwrap();
        let copy = TailCopy { target: CopyTarget::Segment(3), offset: 8192, data: vec![1; 4096] };
        save(&*disk, &owner(), &copy).unwrap();
        let found = interrupted(&dir, &owner()).unwrap().unwrap();
        assert_eq!((found.target, found.offset, found.data), (CopyTarget::Segment(3), 8192, vec![1; 4096]));
        for other in
            [Owner { incarnation: 6, ..owner() }, Owner { pool: Uuid::from_bytes([8; 16]), ..owner() }]
        {
            assert!(interrupted(&dir, &other).unwrap().is_none());
        }
        for at in [0, 4, 9, 25, 33, 41, 49, 53, 4096, 8191] {
            let mut byte = [0];
            disk.read_at(&mut byte, at).unwrap();
            disk.write_at(&[byte[0] ^ 1], at).unwrap();
            assert!(interrupted(&dir, &owner()).unwrap().is_none(), "byte {at}");
            disk.write_at(&byte, at).unwrap();
        }
        disk.set_len(8000).unwrap();
        assert!(interrupted(&dir, &owner()).unwrap().is_none(), "cut");
    }

    #[test]
    fn an_interrupted_opening_is_repeated() {
        let dir = MemDir::new();
        let name = super::super::segment::file_name(3);
        let disk = dir.open(&name, OpenMode::Create).unwrap();
        disk.write_at(&[2; 16384], 0).unwrap();
        let copy = TailCopy { target: CopyTarget::Segment(3), offset: 8192, data: vec![1; 4096] };
        save(&*dir.open(FILE, OpenMode::Create).unwrap(), &owner(), &copy).unwrap();
        let expected: Vec<u8> = [vec![2; 8192], vec![1; 4096], vec![2; 4096]].concat();
        let mut seen = vec![0; 16384];
        Patched { inner: disk.clone(), copy }.read_at(&mut seen, 0).unwrap();
        assert_eq!(seen, expected);
        restore(&dir, &owner(), &|_| None).unwrap();
        disk.read_at(&mut seen, 0).unwrap();
        assert_eq!(seen, expected);
    }
}
