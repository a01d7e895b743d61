//! Files that are opened when they are used, of which a bounded number stays open.
//!
//! A pool keeps far more files than a process may have open. [`OpenFiles`] keeps the files that
//! were used last open (by the CLOCK rule), and closes others. A closed file is opened again by its
//! name. So a name must stay while a reader may still want the file: [`NamedFile::remove_unused`]
//! removes the name when the last holder drops the file.

use super::{Dir, Disk, OpenMode};
use crate::error::is_shortage;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// The smallest bound that is accepted.
const MIN_LIMIT: usize = 8;

/// A set of files of a directory. It keeps at most `limit` of them open, besides those that a
/// caller holds open. Clones share the bound.
#[derive(Clone)]
pub(crate) struct OpenFiles(Arc<Shared>);

struct Shared {
    dir: Arc<dyn Dir>,
    limit: usize,
    /// The files that are kept open, in the order of the clock's hand. A file that has been dropped
    /// stays in the ring until the hand reaches it.
    ring: Mutex<VecDeque<Weak<NamedFile>>>,
}

/// A file of the directory, known by its name.
pub(crate) struct NamedFile {
    name: String,
    shared: Arc<Shared>,
    disk: Mutex<Held>,
    /// The file was used since the clock's hand last reached it.
    used: AtomicBool,
    /// The name is removed with the last holder.
    unwanted: AtomicBool,
}

/// The open disk of a file, if it is open.
#[derive(Default)]
struct Held {
    kept: Option<Arc<dyn Disk>>,
    /// A disk that is not kept open any more, but that a caller may still hold. It is used again,
    /// so that a file is never open twice. Otherwise only one of two disks would report a sync that
    /// failed.
    elsewhere: Option<Weak<dyn Disk>>,
}

impl OpenFiles {
    pub(crate) fn new(dir: Arc<dyn Dir>, limit: usize) -> Self {
        let ring = Mutex::default();
        OpenFiles(Arc::new(Shared { dir, limit: limit.max(MIN_LIMIT), ring }))
    }

    /// Returns an existing file. It is opened when it is first used.
    pub(crate) fn named(&self, name: String) -> Arc<NamedFile> {
        Arc::new(NamedFile {
            name,
            shared: self.0.clone(),
            disk: Mutex::default(),
            used: AtomicBool::new(false),
            unwanted: AtomicBool::new(false),
        })
    }

    /// Opens a file as [`OpenMode::Create`] does.
    pub(crate) fn create(&self, name: String) -> io::Result<(Arc<NamedFile>, Arc<dyn Disk>)> {
        let disk = self.0.open(&name, OpenMode::Create)?;
        let file = self.named(name);
        file.disk.lock().kept = Some(disk.clone());
        self.0.keep(&file);
        Ok((file, disk))
    }

    /// Closes all files that are kept open.
    #[cfg(test)]
    pub(crate) fn close_all(&self) {
        self.0.close_beyond(0);
    }

    /// Returns the number of files that are kept open now.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        let open = |file: &Weak<NamedFile>| file.upgrade().is_some_and(|f| f.disk.lock().kept.is_some());
        self.0.ring.lock().iter().filter(|file| open(file)).count()
    }
}

impl Shared {
    /// Opens a file. If the system has no descriptor left, it closes some files that are not in use
    /// and tries once more.
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        match self.dir.open(name, mode) {
            Err(error) if is_shortage(&error) && error.kind() != io::ErrorKind::StorageFull => {
                let most = {
                    let mut ring = self.ring.lock();
                    ring.retain(|file| file.strong_count() > 0);
                    ring.len() / 2
                };
                if self.close_beyond(most) == 0 {
                    return Err(error);
                }
                self.dir.open(name, mode)
            }
            opened => opened,
        }
    }

    fn keep(&self, file: &Arc<NamedFile>) {
        file.used.store(true, Ordering::Relaxed);
        self.ring.lock().push_back(Arc::downgrade(file));
        self.close_beyond(self.limit);
    }

    /// Closes files until at most `most` are kept, and returns how many were closed.
    fn close_beyond(&self, most: usize) -> usize {
        let mut victims = Vec::new();
        let mut ring = self.ring.lock();
        // The second time around none is spared.
        let mut spared = ring.len();
        while ring.len() > most
            && let Some(file) = ring.pop_front()
        {
            let Some(file) = file.upgrade() else { continue };
            if spared > 0 && file.used.swap(false, Ordering::Relaxed) {
                spared -= 1;
                ring.push_back(Arc::downgrade(&file));
            } else {
                victims.push(file);
            }
        }
        // A file's own lock is taken before the ring's.
        drop(ring);
        victims.iter().for_each(|file| file.close());
        victims.len()
    }
}

impl NamedFile {
    /// Opens the file, or returns it if it is open. A writer holds the returned disk until its
    /// write is synced. A file that was closed in between would not report a sync that failed.
    pub(crate) fn open(self: &Arc<Self>) -> io::Result<Arc<dyn Disk>> {
        let mut held = self.disk.lock();
        if let Some(disk) = &held.kept {
            self.used.store(true, Ordering::Relaxed);
            return Ok(disk.clone());
        }
        let elsewhere = held.elsewhere.take().and_then(|disk| disk.upgrade());
        let disk = elsewhere.map_or_else(|| self.shared.open(&self.name, OpenMode::Existing), Ok)?;
        held.kept = Some(disk.clone());
        drop(held);
        self.shared.keep(self);
        Ok(disk)
    }

    fn close(&self) {
        let mut held = self.disk.lock();
        if let Some(disk) = held.kept.take() {
            held.elsewhere = Some(Arc::downgrade(&disk));
        }
    }

    /// Marks the file for removal, because nothing durable names it any more. The name is removed
    /// when the last holder of this value drops it.
    pub(crate) fn remove_unused(&self) {
        self.unwanted.store(true, Ordering::Release);
    }
}

impl Drop for NamedFile {
    fn drop(&mut self) {
        if self.unwanted.load(Ordering::Acquire) {
            // Should the name stay, the next opening of the pool finds that nothing knows it.
            let _ = self.shared.dir.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::MemDir;

    fn files(limit: usize, count: u32) -> (MemDir, OpenFiles, Vec<Arc<NamedFile>>) {
        let dir = MemDir::new();
        let open = OpenFiles::new(Arc::new(dir.clone()), limit);
        let create = |n: u32| {
            let (file, disk) = open.create(format!("f{n}")).unwrap();
            disk.write_at(&n.to_le_bytes(), 0).unwrap();
            file
        };
        let files = (0..count).map(create).collect();
        (dir, open, files)
    }

    fn number(file: &Arc<NamedFile>) -> u32 {
        let mut bytes = [0; 4];
        file.open().unwrap().read_at(&mut bytes, 0).unwrap();
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn few_stay_open_and_all_can_be_read() {
        let (_dir, open, files) = files(10, 100);
        assert_eq!(open.kept(), 10);
        for _ in 0..3 {
            for (n, file) in (0..).zip(&files) {
                assert_eq!(number(file), n);
                // One that is used all the time stays.
                let first = files[0].open().unwrap();
                assert!(Arc::ptr_eq(&first, &files[0].open().unwrap()));
                assert!(open.kept() <= 10);
            }
        }
        drop(files);
        open.close_all();
        assert!(open.0.ring.lock().is_empty());
    }

    #[test]
    fn what_somebody_holds_is_not_opened_twice() {
        let (_dir, open, files) = files(8, 1);
        let held = files[0].open().unwrap();
        open.close_all();
        assert_eq!(open.kept(), 0);
        assert!(Arc::ptr_eq(&held, &files[0].open().unwrap()));
    }

    #[test]
    fn a_name_goes_with_its_last_holder() {
        let (dir, open, mut files) = files(8, 3);
        let reader = files[1].clone();
        files[1].remove_unused();
        drop(files.remove(1));
        open.close_all();
        assert_eq!(number(&reader), 1, "a reader still finds it");
        drop(reader);
        assert_eq!(dir.list().unwrap(), ["f0", "f2"]);
    }
}
