//! Spares: disks of the pool that wait for a member of a layout to fail. Background work then
//! rebuilds the member onto one of them.
//!
//! The file `spare-disks` of the data directory lists them:
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `HCSPARES` |
//! | 8..12 | CRC32C of the bytes from 12 on |
//! | 12..16 | format version |
//! | 16..20 | number of spares; for each: UUID (16), length of the path (2), path |
//!
//! A spare has the header of a [member](super::member), with the UUID of the pool in place of a
//! layout's. When it steps in, it gets the header of a member first, then the record of the layout
//! names it, and then the list forgets it. After a crash before the record names it, the next
//! opening makes it a spare again. After a crash behind that, the opening forgets it.

use super::member::{check, mark_of, write_mark};
use super::record::LayoutRecord;
use super::{NewMember, replace_file};
use crate::codec::{Reader, Writer, crc32c};
use crate::disk::{Dir, Disk, OpenMode, SyncPurpose};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use uuid::Uuid;

const MAGIC: &[u8; 8] = b"HCSPARES";
const VERSION: u32 = 1;
/// Bytes before the number of spares.
const HEAD: usize = 16;
/// Name of the file with the list.
pub(crate) const FILE: &str = "spare-disks";
/// Name of the list while it is written.
const NEW_FILE: &str = "spare-disks~";
/// Largest number of spares of a pool.
pub(crate) const MAX_SPARES: usize = 64;
/// Largest length of the file in bytes.
const MAX_LIST: u64 = 1 << 20;

/// A spare disk.
#[derive(Clone)]
pub(crate) struct Spare {
    pub(crate) uuid: Uuid,
    pub(crate) path: String,
    /// The disk, locked; none if it could not be opened.
    pub(crate) disk: Option<Arc<dyn Disk>>,
    /// Bytes for the content of a member; 0 if the disk could not be opened.
    pub(crate) capacity: u64,
    /// Why the disk could not be opened.
    pub(crate) problem: String,
}

impl Spare {
    fn fits(&self, capacity: u64) -> bool {
        self.disk.is_some() && self.capacity >= capacity
    }

    /// Returns a spare on a disk that is there.
    pub(crate) fn on(new: NewMember) -> io::Result<Spare> {
        let capacity = new.capacity()?;
        let NewMember { uuid, path, disk } = new;
        Ok(Spare { uuid, path, disk: Some(disk), capacity, problem: String::new() })
    }
}

/// The spares of a pool. Only one operation at a time changes them. The lock is not held while a
/// disk is waited for.
#[derive(Default)]
pub(crate) struct Spares(Mutex<Vec<Spare>>);

impl Spares {
    /// Opens the listed spares of a pool. A disk that is not there any more stays in the list. A
    /// disk that one of the `layouts` reads, or rebuilds a member onto, is no spare by now.
    pub(crate) fn open(&self, dir: &dyn Dir, pool: &Uuid, layouts: &[LayoutRecord]) -> io::Result<()> {
        let all = || layouts.iter().flat_map(|record| &record.members);
        let incoming = || all().filter_map(|of| of.incoming.as_ref());
        let is_used = |path: &str| {
            all().any(|of| of.is_in && of.path == path) || incoming().any(|new| new.path == path)
        };
        let is_member =
            |uuid: &Uuid| all().any(|of| of.uuid == *uuid) || incoming().any(|new| new.uuid == *uuid);
        let mut spares = Vec::new();
        for (uuid, path) in load(dir)? {
            if is_used(&path) {
                continue;
            }
            let opened = dir.open_locked(&path, OpenMode::Existing).and_then(|disk| {
                if let Some((layout, member)) = mark_of(&*disk)?
                    && layouts.iter().any(|record| record.uuid == layout)
                {
                    if is_member(&member) {
                        let text = "it is a member of a layout, and another disk had this path";
                        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
                    }
                    write_mark(&*disk, pool, &uuid)?;
                    disk.sync(SyncPurpose::Layout)?;
                }
                check(&*disk, pool, &uuid, 0)?;
                Spare::on(NewMember { uuid, path: path.clone(), disk })
            });
            spares.push(opened.unwrap_or_else(|error| {
                tracing::warn!(spare = path, %error, "a spare disk can't be used");
                Spare { uuid, path, disk: None, capacity: 0, problem: error.to_string() }
            }));
        }
        *self.0.lock() = spares;
        Ok(())
    }

    /// Returns the spares.
    pub(crate) fn all(&self) -> Vec<Spare> {
        self.0.lock().clone()
    }

    /// Adds a spare of a pool, durably. Its disk gets a header.
    pub(crate) fn add(&self, dir: &dyn Dir, pool: &Uuid, spare: Spare) -> io::Result<()> {
        if let Some(disk) = &spare.disk {
            write_mark(&**disk, pool, &spare.uuid)?;
            disk.sync(SyncPurpose::Layout)?;
        }
        let mut next = self.all();
        next.retain(|of| of.path != spare.path);
        next.push(spare);
        save(dir, &next)?;
        *self.0.lock() = next;
        Ok(())
    }

    /// Forgets the spare at a path, durably. Returns it, or none if there is no such spare.
    pub(crate) fn remove(&self, dir: &dyn Dir, path: &str) -> io::Result<Option<Spare>> {
        let mut next = self.all();
        let Some(at) = next.iter().position(|spare| spare.path == path) else { return Ok(None) };
        let removed = next.remove(at);
        save(dir, &next)?;
        *self.0.lock() = next;
        Ok(Some(removed))
    }

    /// Returns whether a spare can take the place of a member with so many bytes.
    pub(crate) fn is_any_fitting(&self, capacity: u64) -> bool {
        self.0.lock().iter().any(|spare| spare.fits(capacity))
    }

    /// Takes the smallest spare that can take the place of a member with so many bytes. The list on
    /// the disk has it until [`Spares::store`].
    pub(crate) fn take(&self, capacity: u64) -> Option<(Spare, Arc<dyn Disk>)> {
        let mut spares = self.0.lock();
        let fitting = (0..spares.len()).filter(|at| spares[*at].fits(capacity));
        let at = fitting.min_by_key(|at| spares[*at].capacity);
        take_at(&mut spares, at)
    }

    /// Takes the spare with a path. The list on the disk has it until [`Spares::store`].
    pub(crate) fn take_path(&self, path: &str) -> Option<(Spare, Arc<dyn Disk>)> {
        let mut spares = self.0.lock();
        let at = spares.iter().position(|spare| spare.path == path && spare.disk.is_some());
        take_at(&mut spares, at)
    }

    /// Puts a spare back that was taken and did not step in.
    pub(crate) fn put_back(&self, spare: Spare) {
        self.0.lock().push(spare);
    }

    /// Puts a spare back that can't be used.
    pub(crate) fn put_back_failed(&self, spare: Spare, error: &io::Error) {
        self.put_back(Spare { disk: None, capacity: 0, problem: error.to_string(), ..spare });
    }

    /// Stores the list, durably.
    pub(crate) fn store(&self, dir: &dyn Dir) -> io::Result<()> {
        save(dir, &self.all())
    }
}

fn take_at(spares: &mut Vec<Spare>, at: Option<usize>) -> Option<(Spare, Arc<dyn Disk>)> {
    let spare = spares.remove(at?);
    let disk = spare.disk.clone()?;
    Some((spare, disk))
}

fn encode(spares: &[Spare]) -> Vec<u8> {
    let mut w = Writer::default();
    w.bytes(MAGIC).u32(0).u32(VERSION).u32(spares.len() as u32);
    for spare in spares {
        w.uuid(&spare.uuid).string(&spare.path);
    }
    let crc = crc32c(&w.0[12..]);
    w.0[8..12].copy_from_slice(&crc.to_le_bytes());
    w.0
}

fn decode(bytes: &[u8]) -> Option<Vec<(Uuid, String)>> {
    let mut r = Reader::new(bytes);
    (r.take(8)? == MAGIC).then_some(())?;
    let (crc, version) = (r.u32()?, r.u32()?);
    (version == VERSION && crc32c(&bytes[12..]) == crc).then_some(())?;
    let mut r = Reader::new(&bytes[HEAD..]);
    let count = r.u32()?;
    let spares = (0..count).map(|_| Some((r.uuid()?, r.string()?))).collect::<Option<Vec<_>>>()?;
    r.end(spares)
}

fn load(dir: &dyn Dir) -> io::Result<Vec<(Uuid, String)>> {
    let disk = match dir.open(FILE, OpenMode::ReadOnly) {
        Ok(disk) => disk,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![0; disk.len()?.min(MAX_LIST) as usize];
    disk.read_at(&mut bytes, 0)?;
    decode(&bytes).ok_or_else(|| {
        let text =
            format!("{FILE} does not verify, or is of a newer version; without it the pool has no spares");
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

fn save(dir: &dyn Dir, spares: &[Spare]) -> io::Result<()> {
    replace_file(dir, FILE, NEW_FILE, &encode(spares), SyncPurpose::Layout)
}

#[cfg(test)]
mod tests {
    use super::super::member::CONTENT_START;
    use super::super::record::{LayoutKind, MemberRecord};
    use super::super::spans::UNIT;
    use super::*;
    use crate::disk::MemDir;

    fn spare(dir: &MemDir, n: u8, units: u64) -> Spare {
        let path = format!("disk-{n}");
        let disk = dir.open_locked(&path, OpenMode::CreateNew).unwrap();
        disk.set_len(CONTENT_START + units * UNIT + 5).unwrap();
        Spare::on(NewMember { uuid: Uuid::from_bytes([n; 16]), path, disk }).unwrap()
    }

    fn paths(spares: &Spares) -> Vec<(String, u64)> {
        spares.all().into_iter().map(|spare| (spare.path, spare.capacity / UNIT)).collect()
    }

    #[test]
    fn golden_bytes() {
        let dir = MemDir::new();
        let bytes = encode(&[spare(&dir, 7, 1)]);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            concat!(
                "4843535041524553",
                "CRC",
                "0100000001000000",
                "07070707070707070707070707070707",
                "06006469736b2d37"
            )
            .replace("CRC", &hex[16..24])
        );
        assert_eq!(decode(&bytes), Some(vec![(Uuid::from_bytes([7; 16]), "disk-7".to_owned())]));
        for byte in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[byte] ^= 1;
            assert_eq!(decode(&bad), None, "byte {byte}");
            assert_eq!(decode(&bytes[..byte]), None);
        }
    }

    #[test]
    fn the_smallest_that_fits_steps_in() {
        let (dir, pool) = (MemDir::new(), Uuid::from_u128(1));
        let spares = Spares::default();
        for (n, units) in [(1, 4), (2, 2), (3, 3)] {
            spares.add(&dir, &pool, spare(&dir, n, units)).unwrap();
        }
        assert!(spares.is_any_fitting(4 * UNIT) && !spares.is_any_fitting(5 * UNIT));
        assert!(spares.take(5 * UNIT).is_none());
        let taken = [3, 3].map(|units| spares.take(units * UNIT).unwrap().0);
        assert_eq!(taken.each_ref().map(|spare| &spare.path[..]), ["disk-3", "disk-1"]);
        taken.into_iter().for_each(|spare| spares.put_back(spare));
        assert!(spares.remove(&dir, "disk-9").unwrap().is_none());
        assert_eq!(spares.remove(&dir, "disk-2").unwrap().unwrap().capacity, 2 * UNIT);
        assert_eq!(paths(&spares), [("disk-3".into(), 3), ("disk-1".into(), 4)]);
    }

    #[test]
    fn an_opening_finds_those_that_are_still_spares() {
        let (dir, pool) = (MemDir::new(), Uuid::from_u128(1));
        let spares = Spares::default();
        for n in 1..=5 {
            spares.add(&dir, &pool, spare(&dir, n, 2)).unwrap();
        }
        drop(spares);
        // One is a member, one has another header, one is gone.
        dir.open("disk-2", OpenMode::Existing).unwrap().write_at(&[0; 4096], 0).unwrap();
        dir.remove("disk-3").unwrap();
        // One was about to become a member, and one is a member that has the path of another disk.
        let layout = Uuid::from_u128(9);
        let mark = |path: &str, member| {
            write_mark(&*dir.open(path, OpenMode::Existing).unwrap(), &layout, &Uuid::from_u128(member))
                .unwrap();
        };
        mark("disk-4", 5);
        mark("disk-5", 6);
        let member = |path: &str, is_in, uuid| MemberRecord {
            uuid: Uuid::from_u128(uuid),
            path: path.into(),
            is_in,
            is_listed: false,
            capacity: UNIT,
            reason: String::new(),
            incoming: None,
        };
        // The disk of a member that is out may have been repaired.
        let members = vec![member("disk-1", true, 7), member("disk-4", false, 8), member("b", false, 6)];
        let (kind, spans) = (LayoutKind::Mirror, Vec::new());
        let record =
            LayoutRecord { uuid: layout, sequence: 1, kind, width: 2, reserve: 0, stale: 0, members, spans };
        let spares = Spares::default();
        spares.open(&dir, &pool, &[record]).unwrap();
        let expected = [("disk-2", 0), ("disk-3", 0), ("disk-4", 2), ("disk-5", 0)];
        assert_eq!(paths(&spares), expected.map(|(path, units)| (path.to_owned(), units)));
        assert!(spares.is_any_fitting(UNIT));
        assert!(!spares.all()[0].problem.is_empty());
        // What can't be used can be removed, and another disk can take its path.
        spares.remove(&dir, "disk-3").unwrap().unwrap();
        assert_eq!(paths(&spares).len(), 3);
    }
}
