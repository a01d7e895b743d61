//! Disks in memory, for tests and fuzzing. They are sparse, shared by clones of their directory,
//! and durable at once.

use super::image::Image;
use super::{Backing, Dir, Disk, OpenMode, SyncPurpose};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::sync::Arc;

/// A directory in memory. Clones share its content, so that a test can close a pool and open it
/// again.
#[derive(Debug, Clone, Default)]
pub struct MemDir(Arc<Mutex<Names>>);

#[derive(Debug, Default)]
struct Names {
    disks: BTreeMap<String, Arc<File>>,
    locked: BTreeSet<String>,
    physical_block: Option<u64>,
}

#[derive(Debug, Default)]
struct File {
    content: RwLock<Image>,
    lock: Mutex<Held>,
}

/// The locks of a disk that are held now.
#[derive(Debug, Default)]
struct Held {
    exclusive: bool,
    shared: u32,
}

impl Held {
    /// Takes a lock as [`Dir::open_locked`] specifies it. Returns false when another lock excludes
    /// it.
    fn take(&mut self, mode: OpenMode) -> bool {
        let shared = mode == OpenMode::ReadOnly;
        let free = !self.exclusive && (shared || self.shared == 0);
        if free && shared {
            self.shared += 1;
        } else if free {
            self.exclusive = true;
        }
        free
    }
}

impl MemDir {
    /// Makes an empty directory.
    pub fn new() -> Self {
        MemDir::default()
    }

    /// Sets the physical block size, in bytes, that all disks report from now on.
    pub fn set_physical_block(&self, bytes: u64) {
        self.0.lock().physical_block = Some(bytes);
    }

    /// Returns a directory with copies of all disks, as they are now.
    pub fn copy(&self) -> MemDir {
        let from = self.0.lock();
        let copies = from.disks.iter().map(|(name, file)| {
            let content = RwLock::new(file.content.read().clone());
            (name.clone(), Arc::new(File { content, lock: Mutex::default() }))
        });
        let disks = copies.collect();
        MemDir(Arc::new(Mutex::new(Names { disks, physical_block: from.physical_block, ..Names::default() })))
    }

    /// Gives `name` the content that it has in `other`, or removes it if `other` does not have it.
    pub fn take_from(&self, other: &MemDir, name: &str) {
        let taken = other.copy().0.lock().disks.remove(name);
        let disks = &mut self.0.lock().disks;
        match taken {
            Some(file) => drop(disks.insert(name.to_owned(), file)),
            None => drop(disks.remove(name)),
        }
    }

    fn open_disk(&self, name: &str, mode: OpenMode, locked: bool) -> io::Result<Arc<dyn Disk>> {
        let mut names = self.0.lock();
        let file = match (names.disks.get(name), mode) {
            (Some(_), OpenMode::CreateNew) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Some(file), _) => file.clone(),
            (None, OpenMode::Existing | OpenMode::ReadOnly) => return Err(io::ErrorKind::NotFound.into()),
            (None, _) => names.disks.entry(name.to_owned()).or_default().clone(),
        };
        if locked && !file.lock.lock().take(mode) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let physical_block = names.physical_block;
        Ok(Arc::new(MemDisk { file, mode, locked, physical_block }))
    }
}

impl Dir for MemDir {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        self.open_disk(name, mode, false)
    }

    fn open_locked(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        self.open_disk(name, mode, true)
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        let mut names = self.0.lock();
        if !names.locked.insert(name.to_owned()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        names.disks.entry(name.to_owned()).or_default();
        Ok(Box::new(Lock { dir: self.clone(), name: name.to_owned() }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.lock().disks.remove(name).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let names = &mut *self.0.lock();
        let content = names.disks.remove(from).ok_or(io::ErrorKind::NotFound)?;
        names.disks.insert(to.to_owned(), content);
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().disks.keys().filter(|name| !name.contains('/')).cloned().collect())
    }

    fn sync(&self, _purpose: SyncPurpose) -> io::Result<()> {
        Ok(())
    }
}

struct Lock {
    dir: MemDir,
    name: String,
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.dir.0.lock().locked.remove(&self.name);
    }
}

/// Returns the end of a range to be written. Files of the operating system end at `i64::MAX`, so
/// these files do too.
fn end(offset: u64, len: u64) -> io::Result<u64> {
    offset
        .checked_add(len)
        .filter(|end| i64::try_from(*end).is_ok())
        .ok_or(io::ErrorKind::FileTooLarge.into())
}

struct MemDisk {
    file: Arc<File>,
    mode: OpenMode,
    locked: bool,
    physical_block: Option<u64>,
}

impl MemDisk {
    fn for_writing(&self) -> io::Result<parking_lot::RwLockWriteGuard<'_, Image>> {
        if self.mode == OpenMode::ReadOnly {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(self.file.content.write())
    }
}

impl Drop for MemDisk {
    fn drop(&mut self) {
        if self.locked {
            let mut held = self.file.lock.lock();
            match self.mode {
                OpenMode::ReadOnly => held.shared -= 1,
                _ => held.exclusive = false,
            }
        }
    }
}

impl Disk for MemDisk {
    /// A pool in memory takes the way of one on disks.
    fn scatters(&self) -> bool {
        true
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let content = self.file.content.read();
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > content.len()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        content.read(buf, offset);
        Ok(())
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        Ok(self.read_at(buf, offset).is_ok())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut content = self.for_writing()?;
        end(offset, buf.len() as u64)?;
        content.write(buf, offset);
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut content = self.for_writing()?;
        let mut at = offset;
        for buf in bufs.iter() {
            let next = end(at, buf.len() as u64)?;
            content.write(buf, at);
            at = next;
        }
        Ok(())
    }

    fn sync(&self, _purpose: SyncPurpose) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.content.read().len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut content = self.for_writing()?;
        content.set_len(end(len, 0)?);
        Ok(())
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut content = self.for_writing()?;
        let end = end(offset, len)?.max(content.len());
        content.set_len(end);
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut content = self.for_writing()?;
        let to = end(offset, len)?.min(content.len());
        content.zero(offset, to.saturating_sub(offset));
        Ok(())
    }

    fn backing_available(&self) -> io::Result<Option<Backing>> {
        Ok(None)
    }

    fn advise_random(&self) {}

    fn is_block_device(&self) -> bool {
        false
    }

    fn physical_block(&self) -> io::Result<Option<u64>> {
        Ok(self.physical_block)
    }
}

#[cfg(test)]
mod tests {
    use super::super::image::PAGE;
    use super::*;
    use crate::world::{Rng, SplitMix};

    #[test]
    fn modes() {
        super::super::tests::modes(&MemDir::new());
    }

    #[test]
    fn contents() {
        super::super::tests::contents(&MemDir::new());
    }

    #[test]
    fn locks() {
        super::super::tests::locks(&MemDir::new());
    }

    #[test]
    fn disk_locks() {
        super::super::tests::disk_locks(&MemDir::new());
    }

    #[test]
    fn a_long_disk_is_cheap() {
        let dir = MemDir::new();
        let disk = dir.open("a", OpenMode::CreateNew).unwrap();
        disk.set_len(1 << 60).unwrap();
        disk.write_at(b"x", (1 << 59) + 5).unwrap();
        let mut buf = [9; 3];
        disk.read_at(&mut buf, (1 << 59) + 4).unwrap();
        assert_eq!(&buf, b"\0x\0");
        assert!(disk.write_at(b"x", u64::MAX).is_err());
        assert!(disk.read_at(&mut buf, u64::MAX).is_err());
        assert_eq!(dir.0.lock().disks["a"].content.read().pages_in(0..1 << 60).count(), 1);
    }

    #[test]
    fn agrees_with_a_plain_vector() {
        let rng = SplitMix::new(7);
        let below = |n: u64| rng.next() % n;
        let disk = MemDir::new().open("a", OpenMode::CreateNew).unwrap();
        let mut model: Vec<u8> = Vec::new();
        for _ in 0..3000 {
            let (at, len) = (below(5 * PAGE), below(3 * PAGE));
            let (from, to) = (at as usize, (at + len) as usize);
            match below(6) {
                0 | 1 => {
                    let data: Vec<u8> = (0..len).map(|_| below(256) as u8).collect();
                    disk.write_at(&data, at).unwrap();
                    if len > 0 {
                        model.resize(model.len().max(to), 0);
                        model[from..to].copy_from_slice(&data);
                    }
                }
                2 => {
                    disk.set_len(at).unwrap();
                    model.resize(from, 0);
                }
                3 => {
                    disk.allocate(at, len).unwrap();
                    model.resize(model.len().max(to), 0);
                }
                4 => {
                    disk.punch(at, len).unwrap();
                    let end = to.min(model.len());
                    if from < end {
                        model[from..end].fill(0);
                    }
                }
                _ => {
                    let mut buf = vec![1; len as usize];
                    let got = disk.read_at(&mut buf, at);
                    assert_eq!(got.is_ok(), to <= model.len());
                    if got.is_ok() {
                        assert_eq!(buf, model[from..to]);
                    }
                }
            }
            assert_eq!(disk.len().unwrap(), model.len() as u64);
        }
    }
}
