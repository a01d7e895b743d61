//! The ballast: space that is held in reserve beside the catalog. With it a file system that
//! another program has filled never keeps the catalog from committing.
//!
//! The ballast is a file of noise. When a write to the catalog finds no space, the ballast is cut
//! to length 0, and the write is tried again. So what was acknowledged can be carried out, and a
//! deletion gives its space back. The ballast is made whole again when there is room.

use crate::disk::{Dir, Disk, Layer, LowerDisk, OpenMode};
use crate::error::is_shortage;
use crate::world::{Rng, SplitMix};
use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Name of the ballast's file in the data directory.
pub(crate) const FILE: &str = "catalog-ballast";
/// Bytes of one write to the ballast.
const PIECE: u64 = 1 << 20;

/// The ballast of an open pool. The catalog's disk spends it. It is made whole again when there is
/// room.
pub(crate) struct Ballast {
    disk: Mutex<Option<Arc<dyn Disk>>>,
    /// The size of the whole ballast, in bytes.
    whole: u64,
    /// The present size of the ballast, in bytes.
    held: AtomicU64,
}

impl Ballast {
    /// Opens the ballast. A ballast that is not whole is given up, and a file that can't be opened
    /// is not used.
    pub(crate) fn open(dir: &dyn Dir, whole: u64) -> Arc<Ballast> {
        let disk = dir.open(FILE, OpenMode::Create).ok();
        // A copy of the directory may have made holes of it.
        let data = |disk: &Arc<dyn Disk>| Some((disk.len().ok()?, disk.run_at(0).ok()?));
        let there = disk.as_ref().and_then(data);
        let ballast = Ballast { disk: Mutex::new(disk), whole, held: AtomicU64::new(0) };
        if there.is_some_and(|(len, (run, is_data))| len == whole && is_data && run >= whole) {
            ballast.held.store(whole, Ordering::Relaxed);
        } else {
            ballast.give_up();
        }
        Arc::new(ballast)
    }

    /// Returns the bytes that the ballast can still give.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns the bytes that the ballast lacks.
    pub(crate) fn missing(&self) -> u64 {
        self.whole - self.held()
    }

    /// Gives the ballast's space back to the file system. Returns false when the ballast had none.
    fn give_up(&self) -> bool {
        let disk = self.disk.lock();
        let had = self.held.swap(0, Ordering::Relaxed);
        let gave = disk.as_ref().is_some_and(|disk| disk.set_len(0).is_ok()) && had > 0;
        if gave {
            tracing::warn!(bytes = had, "the catalog uses its ballast, because its file system is full");
        }
        gave
    }

    /// Makes the ballast whole again, if `available` bytes are at least twice its size.
    pub(crate) fn restore(&self, available: u64) {
        if self.missing() == 0 || available < 2 * self.whole {
            return;
        }
        let disk = self.disk.lock();
        let Some(disk) = disk.as_ref() else { return };
        match self.fill(&**disk) {
            Ok(()) => {
                tracing::info!(bytes = self.whole, "the catalog's ballast is complete again");
                self.held.store(self.whole, Ordering::Relaxed);
            }
            // The file gives back the space that it took before the error.
            Err(_) => _ = disk.set_len(0),
        }
    }

    /// Fills the ballast with noise. On a file system that can't reserve space, or compresses data,
    /// only bytes that are written and don't compress take space.
    fn fill(&self, disk: &dyn Disk) -> io::Result<()> {
        disk.allocate(0, self.whole)?;
        let rng = SplitMix::new(self.whole);
        let mut at = 0;
        while at < self.whole {
            let len = PIECE.min(self.whole - at);
            let piece: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| rng.next().to_le_bytes()).collect();
            disk.write_at(&piece[..len as usize], at)?;
            at += len;
        }
        Ok(())
    }

    /// Runs work that may need space. If the work finds none, it is run once more with the space of
    /// the ballast, if there is some.
    pub(super) fn spend<T>(&self, work: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match work() {
            Err(error) if is_shortage(&error) && self.give_up() => work(),
            done => done,
        }
    }
}

/// The layer over the catalog's file, whose changes may spend the ballast. They must not fail,
/// because the store refuses everything after an error.
impl Layer for Ballast {
    fn write_at(&self, disk: &LowerDisk, buf: &[u8], offset: u64) -> io::Result<()> {
        self.spend(|| disk.write_at(buf, offset))
    }
    fn write_vectored_at(&self, disk: &LowerDisk, bufs: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        // An attempt may advance the slices.
        self.spend(|| disk.write_vectored_at(&mut bufs.to_vec(), offset))
    }
    fn write_direct(&self, disk: &LowerDisk, buf: &[u8], offset: u64) -> io::Result<()> {
        self.spend(|| disk.write_direct(buf, offset))
    }
    fn set_len(&self, disk: &LowerDisk, len: u64) -> io::Result<()> {
        self.spend(|| disk.set_len(len))
    }
    fn allocate(&self, disk: &LowerDisk, offset: u64, len: u64) -> io::Result<()> {
        self.spend(|| disk.allocate(offset, len))
    }
    fn zero(&self, disk: &LowerDisk, offset: u64, len: u64, unmap: bool) -> io::Result<bool> {
        self.spend(|| disk.zero(offset, len, unmap))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::MemDir;
    use std::cell::Cell;

    fn full() -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }

    #[test]
    fn it_is_spent_once_and_comes_back() {
        let dir = MemDir::new();
        let len = || dir.open(FILE, OpenMode::ReadOnly).unwrap().len().unwrap();
        let ballast = Ballast::open(&dir, 1 << 20);
        assert_eq!((ballast.held(), len()), (0, 0));
        ballast.restore(1 << 20);
        assert_eq!(ballast.held(), 0, "there is hardly room for it");
        ballast.restore(4 << 20);
        assert_eq!((ballast.held(), len()), (1 << 20, 1 << 20));
        drop(ballast);
        let ballast = Ballast::open(&dir, 1 << 20);
        assert_eq!((ballast.held(), ballast.missing()), (1 << 20, 0), "it is there at the next opening");
        let tries = Cell::new(0);
        let write = || {
            tries.set(tries.get() + 1);
            if len() > 0 { full() } else { Ok(()) }
        };
        ballast.spend(write).unwrap();
        assert_eq!((tries.get(), len(), ballast.missing()), (2, 0, 1 << 20));
        assert!(ballast.spend(full).is_err());
        let eio = || -> io::Result<()> { Err(io::Error::from_raw_os_error(5)) };
        ballast.restore(4 << 20);
        assert!(ballast.spend(eio).is_err() && ballast.held() > 0, "it is no cure for a broken disk");
        assert_eq!(Ballast::open(&dir, 1 << 10).held(), 0, "of another size");
    }

    /// A copy of a data directory may contain holes in place of a full ballast.
    #[test]
    fn a_ballast_with_holes_is_none() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = crate::disk::FileDir::new(tmp.path());
        Ballast::open(&dir, 1 << 20).restore(u64::MAX);
        assert_eq!(Ballast::open(&dir, 1 << 20).held(), 1 << 20);
        let file = dir.open(FILE, OpenMode::Existing).unwrap();
        file.set_len(0).unwrap();
        file.set_len(1 << 20).unwrap();
        let sparse = file.run_at(0).unwrap() != (1 << 20, true);
        if !sparse {
            println!("SKIPPED: this file system does not tell holes");
            return;
        }
        let ballast = Ballast::open(&dir, 1 << 20);
        assert_eq!((ballast.held(), file.len().unwrap()), (0, 0), "it is made anew where there is room");
    }
}
