//! Simulated disks ([`SimDir`]) that remember what was synced. Everything else can be lost.
//!
//! A file has the image that reads see, a durable image, and the changes since the last completed
//! sync. A kill keeps all three, because the page cache outlives the process. A power loss replays
//! the changes onto the durable image, each with a fate ([`crate::fate`]). Names work the same way.

mod machine;

use crate::fate::{PowerLoss, TearModel};
use crate::oracle::{SECTOR, held_by};
use crate::rand::Rand;
use hindcast_engine::disk::IMAGE_PAGE as PAGE;
use hindcast_engine::disk::{Backing, Dir, Disk, Image, OpenMode, SyncPurpose};
use machine::{Change, File, Go, Machine, crashed, eio, emfile, index, is_meant};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;

/// The data directory of a simulated machine, and the machine itself. Clones share it.
#[derive(Clone)]
pub struct SimDir(Arc<Mutex<Machine>>);

/// Files of a machine as they were: by name, what was in them, and whether each is a block device.
#[derive(Clone)]
pub(crate) struct Saved(BTreeMap<String, (Image, bool)>);

impl PartialEq for Saved {
    fn eq(&self, other: &Saved) -> bool {
        let all = |saved: &Saved| -> Vec<_> {
            saved.0.iter().map(|(name, (image, _))| (name.clone(), image.len(), bytes(image))).collect()
        };
        all(self) == all(other)
    }
}

/// What is not zeros, page by page.
fn bytes(image: &Image) -> Vec<(u64, Vec<u8>)> {
    let read = |page| {
        let mut data = vec![0; PAGE as usize];
        image.read(&mut data, page * PAGE);
        (page, data)
    };
    image.pages_in(0..image.len()).map(read).filter(|(_, data)| data.iter().any(|b| *b != 0)).collect()
}

/// Where a crash is to happen, counted from the making of the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashPoint {
    /// In the middle of the operation with this number: see [`Counts::ops`].
    Op(u64),
    /// In the middle of the sync with this number.
    Sync(u64),
}

/// How a disk fails that takes no writes any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failing {
    /// Each write fails, and may leave a part of what it was to write.
    Writes,
    /// Writes reach the cache, and syncs fail.
    Syncs,
}

/// What a planned panic says.
pub(crate) const PANIC: &str = "a planned panic of a disk";

/// What has been done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations that change something, syncs included.
    pub ops: u64,
    /// Syncs of disks and directories.
    pub syncs: u64,
}

/// What a power loss in the middle of an operation can do to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stake {
    /// The operation's number.
    pub(crate) op: u64,
    /// It is a sync.
    pub(crate) sync: bool,
    /// Changes before it that no sync has made durable.
    pub(crate) changes: u64,
    /// The disks that they are on.
    pub(crate) disks: u64,
}

impl SimDir {
    /// An empty directory on a machine whose chances follow `seed`.
    pub fn new(seed: u64) -> Self {
        SimDir(Arc::new(Mutex::new(Machine {
            rand: Rand::new(seed),
            life: 0,
            dead: false,
            counts: Counts::default(),
            crash_at: None,
            panic_at: None,
            panicked: None,
            stakes: None,
            clock: 0,
            files: BTreeMap::new(),
            next_file: 0,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            name_changes: Vec::new(),
            locked: BTreeSet::new(),
            tear_model: |_| TearModel::SECTORS,
            dropped: [false; SyncPurpose::ALL.len()],
            fail_sync: None,
            unreadable: BTreeSet::new(),
            bad: Vec::new(),
            failing: Vec::new(),
            away: Vec::new(),
            backing: None,
            full: Vec::new(),
            open: 0,
            descriptors: usize::MAX,
        })))
    }

    /// How files made from now on tear, by name.
    pub fn set_tear_model(&self, model: fn(&str) -> TearModel) {
        self.0.lock().tear_model = model;
    }

    /// Adds a block device under an absolute path.
    pub fn add_block_device(&self, name: &str, len: u64) {
        let mut machine = self.0.lock();
        let mut file = File::new((machine.tear_model)(name), true);
        file.now.set_len(len);
        file.durable.set_len(len);
        let id = machine.add_file(file);
        machine.names.insert(name.to_owned(), id);
        machine.durable_names.insert(name.to_owned(), id);
    }

    /// Adds a file that another program wrote long ago.
    pub fn add_image(&self, name: &str, data: &[u8]) {
        let mut machine = self.0.lock();
        let mut file = File::new((machine.tear_model)(name), false);
        for image in [&mut file.now, &mut file.durable] {
            image.write(data, 0);
            image.set_len(data.len() as u64);
        }
        let id = machine.add_file(file);
        machine.names.insert(name.to_owned(), id);
        machine.durable_names.insert(name.to_owned(), id);
    }

    /// Takes a name away, or brings it back.
    pub fn hide(&self, name: &str, hidden: bool) {
        let mut machine = self.0.lock();
        let (from, to) = if hidden {
            (name.to_owned(), format!("hidden/{name}"))
        } else {
            (format!("hidden/{name}"), name.to_owned())
        };
        if let Some(id) = machine.names.remove(&from) {
            machine.durable_names.remove(&from);
            machine.names.insert(to.clone(), id);
            machine.durable_names.insert(to, id);
        }
    }

    /// Has `name` changes that no sync has made durable?
    #[cfg(test)]
    pub(crate) fn has_unsynced(&self, name: &str) -> bool {
        let machine = self.0.lock();
        let file = machine.names.get(name).and_then(|id| machine.files.get(id));
        file.is_some_and(|file| !file.changes.is_empty())
    }

    /// All files as they are now, as a backup has them.
    pub(crate) fn save(&self) -> Saved {
        let machine = self.0.lock();
        let file = |id| machine.files.get(id).map(|f| (f.now.clone(), f.block));
        Saved(machine.names.iter().filter_map(|(name, id)| Some((name.clone(), file(id)?))).collect())
    }

    /// Brings back the files that `of` names, and takes away those that were not there.
    pub(crate) fn restore(&self, saved: &Saved, of: impl Fn(&str) -> bool) {
        let mut machine = self.0.lock();
        for names in [true, false] {
            let names = if names { &mut machine.names } else { &mut machine.durable_names };
            names.retain(|name, _| !of(name));
        }
        machine.name_changes.clear();
        for (name, (content, block)) in saved.0.iter().filter(|(name, _)| of(name)) {
            let mut file = File::new((machine.tear_model)(name), *block);
            (file.now, file.durable) = (content.clone(), content.clone());
            file.backed = content.pages_in(0..content.len()).collect();
            let id = machine.add_file(file);
            machine.names.insert(name.clone(), id);
            machine.durable_names.insert(name.clone(), id);
        }
    }

    /// Bounds the backing space of all files together.
    pub fn set_backing(&self, bytes: Option<u64>) {
        self.0.lock().backing = bytes;
    }

    /// From now on files whose names begin with one of these get no more backing space, while that
    /// is bounded.
    pub fn set_full(&self, names: &[&str]) {
        self.0.lock().full = names.iter().map(|name| (*name).to_owned()).collect();
    }

    /// How many disks a process may have open: those that are, and so many more. `None`: any
    /// number.
    pub fn set_descriptors(&self, more: Option<usize>) {
        let mut machine = self.0.lock();
        machine.descriptors = more.map_or(usize::MAX, |more| machine.open + more);
    }

    /// Disks that the process has open.
    pub fn open_disks(&self) -> usize {
        self.0.lock().open
    }

    /// Backing space in use; counted only while it is bounded.
    pub fn backing_used(&self) -> u64 {
        self.0.lock().backing_used()
    }

    /// From now on syncs of this purpose do nothing (and say nothing).
    pub fn drop_syncs(&self, purpose: SyncPurpose) {
        self.0.lock().dropped[index(purpose)] = true;
    }

    /// The next sync of this purpose (`Cdp`: of all of histories) fails for good.
    pub fn fail_next_sync(&self, purpose: SyncPurpose) {
        self.0.lock().fail_sync = Some(purpose);
    }

    /// Reads that touch `range` of `name` fail from now on.
    pub fn fail_reads(&self, name: &str, range: Range<u64>) {
        self.0.lock().bad.push((name.to_owned(), range));
    }

    /// After so many further changes of `name` its writes, or its syncs, fail.
    pub fn fail_writes(&self, name: &str, how: Failing, after: u64) {
        let mut machine = self.0.lock();
        machine.failing.retain(|(other, ..)| other != name);
        machine.failing.push((name.to_owned(), how, after));
    }

    /// From now on `name` does not answer: neither reads nor writes do anything but fail. Or it
    /// does again.
    pub fn set_away(&self, name: &str, away: bool) {
        let mut machine = self.0.lock();
        machine.away.retain(|other| other != name);
        machine.away.extend(away.then(|| name.to_owned()));
    }

    /// Sectors of a file that volumes' writes filled can't be read any more, until they are written
    /// again: `most` in a row, from about `pick` on. What they held: (sector of the volume, stamp).
    pub(crate) fn lose_sectors(&self, name: &str, pick: u64, most: u64) -> Vec<(u64, u64)> {
        let machine = &mut *self.0.lock();
        let Some(id) = machine.names.get(name).copied() else { return Vec::new() };
        let Some(file) = machine.files.get(&id) else { return Vec::new() };
        let mut lost = Vec::new();
        let mut last = None;
        let per_page = PAGE / SECTOR;
        let pages: Vec<u64> = file.now.pages_in(0..file.now.len()).collect();
        let from = (pick % (pages.len() as u64).max(1)) as usize;
        for place in pages[from..].iter().flat_map(|page| page * per_page..(page + 1) * per_page) {
            let mut content = [0; SECTOR as usize];
            file.now.read(&mut content, place * SECTOR);
            let held = held_by(&content);
            if let Some(held) = held.filter(|_| last.is_none_or(|last| last + 1 == place)) {
                machine.unreadable.insert((id, place));
                lost.push(held);
                last = Some(place);
            }
            if lost.len() as u64 == most || last.is_some_and(|last| last < place) {
                break;
            }
        }
        lost
    }

    /// Takes back [`SimDir::fail_reads`], [`SimDir::fail_writes`], [`SimDir::set_away`], and a
    /// [`SimDir::fail_next_sync`] that did not come to pass.
    pub fn clear_faults(&self) {
        let mut machine = self.0.lock();
        machine.bad.clear();
        machine.failing.clear();
        machine.away.clear();
        machine.fail_sync = None;
    }

    /// Is a planned failure of a sync still to come?
    pub fn sync_failure_pending(&self) -> bool {
        self.0.lock().fail_sync.is_some()
    }

    /// Did a sync fail since the last crash?
    pub fn sync_failed(&self) -> bool {
        self.0.lock().files.values().any(|f| f.sync_failed)
    }

    /// Flips a bit in the durable and in the present image. False when there is no such byte.
    pub fn flip_bit(&self, name: &str, offset: u64, bit: u8) -> bool {
        let mut machine = self.0.lock();
        let Some(file) = machine.names.get(name).copied().and_then(|id| machine.files.get_mut(&id)) else {
            return false;
        };
        for image in [&mut file.now, &mut file.durable] {
            if offset < image.len() {
                let mut byte = [0];
                image.read(&mut byte, offset);
                image.write(&[byte[0] ^ (1 << (bit % 8))], offset);
            }
        }
        offset < file.now.len()
    }

    /// Names and lengths, sorted by name.
    pub fn files(&self) -> Vec<(String, u64)> {
        let machine = self.0.lock();
        let len = |id| machine.files.get(id).map_or(0, |f| f.now.len());
        machine.names.iter().map(|(name, id)| (name.clone(), len(id))).collect()
    }

    /// What has been done so far.
    pub fn counts(&self) -> Counts {
        self.0.lock().counts
    }

    /// Takes note of what is at stake at each operation from now on; what was noted so far.
    pub(crate) fn note_stakes(&self) -> Vec<Stake> {
        self.0.lock().stakes.replace(Vec::new()).unwrap_or_default()
    }

    /// Plans a crash, or none. From there on every operation fails until [`SimDir::crash`].
    pub fn crash_at(&self, point: Option<CrashPoint>) {
        self.0.lock().crash_at = point;
    }

    /// Plans a panic of the operation at this point, which does nothing. The machine goes on. None:
    /// no panic.
    pub fn panic_at(&self, point: Option<CrashPoint>) {
        let mut machine = self.0.lock();
        (machine.panic_at, machine.panicked) = (point, None);
    }

    /// The planned panic has happened.
    pub fn panicked(&self) -> bool {
        self.0.lock().panicked.is_some()
    }

    /// The planned panic has happened in an operation on the file of this name.
    pub fn panicked_in(&self, name: &str) -> bool {
        let machine = self.0.lock();
        machine.panicked.is_some_and(|id| machine.names.get(name) == Some(&id))
    }

    /// The planned crash has happened.
    pub fn crashed(&self) -> bool {
        self.0.lock().dead
    }

    /// The process is gone; what it wrote stays. All handles and locks are void.
    pub fn kill(&self) {
        self.0.lock().end_process();
    }

    /// The machine is gone, and with it some of what was not synced.
    pub fn lose_power(&self, how: PowerLoss) {
        let mut machine = self.0.lock();
        machine.end_process();
        machine.lose_power(how);
    }
}

impl SimDir {
    fn open_disk(&self, name: &str, mode: OpenMode, locked: bool) -> io::Result<Arc<dyn Disk>> {
        let mut machine = self.0.lock();
        let life = machine.life;
        machine.alive(life)?;
        if machine.open >= machine.descriptors {
            return Err(emfile());
        }
        let existing = machine.names.get(name).copied();
        let id = match (existing, mode) {
            (Some(_), OpenMode::CreateNew) => return Err(io::ErrorKind::AlreadyExists.into()),
            (None, OpenMode::Existing | OpenMode::ReadOnly) => return Err(io::ErrorKind::NotFound.into()),
            (Some(id), _) => id,
            (None, _) => {
                if !machine.begin_whole(life, 0, false)? {
                    return Err(crashed());
                }
                let tear = (machine.tear_model)(name);
                let id = machine.add_file(File::new(tear, false));
                machine.set_name(name, Some(id));
                machine.end()?;
                id
            }
        };
        let writable = mode != OpenMode::ReadOnly;
        if locked && !machine.files.get_mut(&id).ok_or_else(crashed)?.lock(writable) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        machine.open += 1;
        Ok(Arc::new(SimDisk { machine: self.0.clone(), id, life, writable, locked }))
    }
}

impl Dir for SimDir {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        self.open_disk(name, mode, false)
    }

    fn open_locked(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        self.open_disk(name, mode, true)
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        self.open(name, OpenMode::Create)?;
        let mut machine = self.0.lock();
        if !machine.locked.insert(name.to_owned()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let life = machine.life;
        Ok(Box::new(Lock { machine: self.0.clone(), name: name.to_owned(), life }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut machine = self.0.lock();
        let life = machine.life;
        machine.alive(life)?;
        if !machine.names.contains_key(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if machine.begin_whole(life, 0, false)? {
            machine.set_name(name, None);
        }
        machine.end()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut machine = self.0.lock();
        let life = machine.life;
        machine.alive(life)?;
        let id = machine.names.get(from).copied().ok_or(io::ErrorKind::NotFound)?;
        if machine.begin_whole(life, 0, false)? {
            machine.rename(from, to, id);
        }
        machine.end()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let machine = self.0.lock();
        machine.alive(machine.life)?;
        Ok(machine.names.keys().filter(|name| !name.contains('/')).cloned().collect())
    }

    fn sync(&self, purpose: SyncPurpose) -> io::Result<()> {
        let mut machine = self.0.lock();
        let life = machine.life;
        let going_on = machine.begin_whole(life, 0, true)?;
        if is_meant(machine.fail_sync, purpose) {
            machine.fail_sync = None;
            return Err(eio());
        }
        if going_on && !machine.dropped[index(purpose)] {
            machine.sync_names();
        }
        machine.end()
    }
}

struct Lock {
    machine: Arc<Mutex<Machine>>,
    name: String,
    life: u64,
}

impl Drop for Lock {
    fn drop(&mut self) {
        let mut machine = self.machine.lock();
        // After a crash another process may hold it.
        if machine.life == self.life {
            machine.locked.remove(&self.name);
        }
    }
}

struct SimDisk {
    machine: Arc<Mutex<Machine>>,
    id: u64,
    life: u64,
    writable: bool,
    locked: bool,
}

impl Drop for SimDisk {
    fn drop(&mut self) {
        let mut machine = self.machine.lock();
        // A crash has ended the locks of its life, and closed its files.
        if machine.life != self.life {
            return;
        }
        machine.open -= 1;
        if self.locked
            && let Some(file) = machine.files.get_mut(&self.id)
        {
            file.unlock(self.writable);
        }
    }
}

impl SimDisk {
    fn machine(&self) -> io::Result<MutexGuard<'_, Machine>> {
        let machine = self.machine.lock();
        machine.alive(self.life)?;
        Ok(machine)
    }

    fn for_writing(&self) -> io::Result<MutexGuard<'_, Machine>> {
        if self.writable { self.machine() } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }

    /// Like `for_writing`, where nothing is left of what fails.
    fn for_changing(&self) -> io::Result<MutexGuard<'_, Machine>> {
        let mut machine = self.for_writing()?;
        let fails = machine.is_away(self.id) || machine.fails(self.id) == Some(Failing::Writes);
        if fails { Err(eio()) } else { Ok(machine) }
    }

    fn write(&self, mut data: Vec<u8>, offset: u64) -> io::Result<()> {
        let mut machine = self.for_writing()?;
        let end = offset.checked_add(data.len() as u64).filter(|end| i64::try_from(*end).is_ok());
        let end = end.ok_or(io::ErrorKind::FileTooLarge)?;
        if let Some(file) = machine.files.get(&self.id)
            && file.block
            && end > file.now.len()
        {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if machine.begin(self.life, self.id, false)? == Go::Crash {
            // Any part of the call may have been done.
            let done = match machine.rand.below(4) {
                0 => 0,
                1 => data.len(),
                _ => machine.rand.below(data.len() as u64 + 1) as usize,
            };
            data.truncate(done);
        }
        if machine.is_away(self.id) {
            return Err(eio());
        }
        let fails = machine.fails(self.id) == Some(Failing::Writes);
        if fails {
            let done = machine.rand.below(data.len() as u64 + 1) as usize;
            data.truncate(done / SECTOR as usize * SECTOR as usize);
        }
        if !data.is_empty() {
            machine.back(self.id, offset, data.len() as u64)?;
            for sector in offset.div_ceil(SECTOR)..(offset + data.len() as u64) / SECTOR {
                machine.unreadable.remove(&(self.id, sector));
            }
            machine.change(self.id, Change::Write { offset, data })?;
        }
        machine.end().and(if fails { Err(eio()) } else { Ok(()) })
    }
}

impl Disk for SimDisk {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let machine = self.machine()?;
        let file = machine.files.get(&self.id).ok_or_else(crashed)?;
        let len = buf.len() as u64;
        if len == 0 {
            return Ok(());
        }
        if offset.checked_add(len).is_none_or(|end| end > file.now.len()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if machine.is_away(self.id) || machine.unreadable(self.id, offset, len) {
            return Err(eio());
        }
        file.now.read(buf, offset);
        Ok(())
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        let ready = self.machine()?.rand.percent(50);
        if !ready {
            // The content of the buffer is undefined now, so the engine must not use it.
            buf.fill(0xA5);
            return Ok(false);
        }
        match self.read_at(buf, offset) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write(buf.to_vec(), offset)
    }

    fn write_vectored_at(&self, bufs: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.write(bufs.iter().flat_map(|b| b.iter().copied()).collect(), offset)
    }

    fn sync(&self, purpose: SyncPurpose) -> io::Result<()> {
        let mut machine = self.machine()?;
        let going_on = machine.begin_whole(self.life, self.id, true)?;
        let fails = machine.is_away(self.id) || machine.fails(self.id).is_some();
        let failing = is_meant(machine.fail_sync, purpose) || fails;
        let dropped = machine.dropped[index(purpose)];
        if failing {
            machine.fail_sync(self.id);
            return Err(eio());
        }
        let file = machine.files.get_mut(&self.id).ok_or_else(crashed)?;
        if going_on && !dropped {
            file.sync();
        }
        machine.end()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.machine()?.files.get(&self.id).ok_or_else(crashed)?.now.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut machine = self.for_changing()?;
        if machine.files.get(&self.id).is_some_and(|f| f.block) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if machine.begin_whole(self.life, self.id, false)? {
            machine.change(self.id, Change::SetLen(len))?;
        }
        machine.end()
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut machine = self.for_changing()?;
        let end = offset.checked_add(len).ok_or(io::ErrorKind::FileTooLarge)?;
        if machine.files.get(&self.id).is_some_and(|f| f.block) {
            return Ok(());
        }
        if machine.begin_whole(self.life, self.id, false)? {
            machine.back(self.id, offset, len)?;
            machine.change(self.id, Change::Extend(end))?;
        }
        machine.end()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut machine = self.for_changing()?;
        let going_on = machine.begin_whole(self.life, self.id, false)?;
        let file = machine.files.get(&self.id).ok_or_else(crashed)?;
        let len = len.min(file.now.len().saturating_sub(offset));
        // The content is undefined afterwards: the old one, zeros, or in a short range anything.
        let outcome = machine.rand.below(3);
        if !going_on || len == 0 || outcome == 0 {
            return machine.end();
        }
        if outcome == 1 || len > 1 << 20 {
            machine.change(self.id, Change::Zero { offset, len })?;
            if let Some(file) = machine.files.get_mut(&self.id) {
                let pages = offset.div_ceil(PAGE)..(offset + len) / PAGE;
                file.backed.retain(|page| !pages.contains(page));
            }
        } else {
            let mut data = vec![0; len as usize];
            machine.rand.fill(&mut data);
            machine.change(self.id, Change::Write { offset, data })?;
        }
        machine.end()
    }

    fn backing_available(&self) -> io::Result<Option<Backing>> {
        let machine = self.machine()?;
        let file = machine.files.get(&self.id).ok_or_else(crashed)?;
        if file.block {
            return Ok(None);
        }
        let free = |limit: u64| limit.saturating_sub(machine.backing_used());
        Ok(Some(Backing { file_system: 1, available: machine.backing.map_or(1 << 50, free) }))
    }

    fn advise_random(&self) {}

    fn is_block_device(&self) -> bool {
        self.machine.lock().files.get(&self.id).is_some_and(|f| f.block)
    }
}

#[cfg(test)]
mod tests;
