//! Simulated disks ([`SimDir`]). They keep what was synced. Everything else can be lost.
//!
//! A file has three parts: the image that reads see, a durable image, and the changes since the
//! last completed sync. A kill keeps all three, because the page cache outlives the process. A
//! power loss replays the changes onto the durable image, and each change has a fate
//! ([`crate::fate`]). Names work the same way.

mod handle;
mod machine;

use crate::fate::{PowerLoss, TearModel};
use crate::oracle::{SECTOR, held_by};
use crate::rand::Rand;
use handle::{Lock, SimDisk};
use hindcast_engine::disk::IMAGE_PAGE as PAGE;
use hindcast_engine::disk::{Dir, Disk, Image, OpenMode, SyncPurpose};
use machine::{File, Machine, crashed, eio, emfile, index, is_meant};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// The data directory of a simulated machine, and the machine itself. Clones share the machine.
#[derive(Clone)]
pub struct SimDir(Arc<Mutex<Machine>>);

/// The files of a machine at the time of [`SimDir::save`]. The key is the name. The value is the
/// content, and whether the file is a block device.
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

/// Returns the pages that are not all zeros: (page number, content).
fn bytes(image: &Image) -> Vec<(u64, Vec<u8>)> {
    let read = |page| {
        let mut data = vec![0; PAGE as usize];
        image.read(&mut data, page * PAGE);
        (page, data)
    };
    image.pages_in(0..image.len()).map(read).filter(|(_, data)| data.iter().any(|b| *b != 0)).collect()
}

/// The point of a planned crash or panic. Operations and syncs are counted from the creation of the
/// [`SimDir`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashPoint {
    /// In the middle of the operation with this number ([`Counts::ops`]).
    Op(u64),
    /// In the middle of the sync with this number ([`Counts::syncs`]).
    Sync(u64),
}

/// The way in which a disk fails that accepts no more writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failing {
    /// Each write fails, and may leave a part of its data. Other changes and syncs fail too.
    Writes,
    /// Writes reach the cache, and syncs fail.
    Syncs,
}

/// The message of a planned panic.
pub(crate) const PANIC: &str = "a planned panic of a disk";

/// The operations of a machine since the creation of the [`SimDir`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of operations that change something, including syncs.
    pub ops: u64,
    /// Number of syncs of disks and directories.
    pub syncs: u64,
}

/// The changes that a power loss in the middle of one operation can affect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stake {
    /// The number of the operation, as [`Counts::ops`] counts.
    pub(crate) op: u64,
    /// Whether the operation is a sync.
    pub(crate) sync: bool,
    /// Number of earlier changes, of files and of names, that no sync has made durable.
    pub(crate) changes: u64,
    /// Number of files that have such changes. The directory does not count.
    pub(crate) disks: u64,
}

impl SimDir {
    /// Creates an empty directory on a machine. `seed` determines all random decisions of the
    /// machine.
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
            rotten: BTreeSet::new(),
            makes_zeros: false,
            bad: Vec::new(),
            failing: Vec::new(),
            away: Vec::new(),
            backing: None,
            full: Vec::new(),
            open: 0,
            descriptors: usize::MAX,
        })))
    }

    /// Sets the function that gives the tear model of each file from its name. It applies to files
    /// that are created from now on.
    pub fn set_tear_model(&self, model: fn(&str) -> TearModel) {
        self.0.lock().tear_model = model;
    }

    /// Sets whether disks make zeros when they are asked to.
    pub(crate) fn set_makes_zeros(&self, makes_zeros: bool) {
        self.0.lock().makes_zeros = makes_zeros;
    }

    /// Adds a block device of `len` bytes under an absolute path.
    pub fn add_block_device(&self, name: &str, len: u64) {
        let mut machine = self.0.lock();
        let mut file = File::new((machine.tear_model)(name), true);
        file.now.set_len(len);
        file.durable.set_len(len);
        let id = machine.add_file(file);
        machine.names.insert(name.to_owned(), id);
        machine.durable_names.insert(name.to_owned(), id);
    }

    /// Adds a file with durable content, as if another program had written it long ago.
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

    /// Removes a name (`hidden`), or restores a name that was removed in this way.
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

    /// Returns whether `name` has changes that no sync has made durable.
    #[cfg(test)]
    pub(crate) fn has_unsynced(&self, name: &str) -> bool {
        let machine = self.0.lock();
        let file = machine.names.get(name).and_then(|id| machine.files.get(id));
        file.is_some_and(|file| !file.changes.is_empty())
    }

    /// Copies all files as they are now, like a backup.
    pub(crate) fn save(&self) -> Saved {
        let machine = self.0.lock();
        let file = |id| machine.files.get(id).map(|f| (f.now.clone(), f.block));
        Saved(machine.names.iter().filter_map(|(name, id)| Some((name.clone(), file(id)?))).collect())
    }

    /// Restores the files whose names `of` accepts. It removes such files that `saved` does not
    /// have.
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

    /// Limits the backing space of all files together, in bytes. `None` removes the limit.
    pub fn set_backing(&self, bytes: Option<u64>) {
        self.0.lock().backing = bytes;
    }

    /// From now on files whose names begin with one of `names` get no more backing space. This
    /// applies only while the backing space is limited.
    pub fn set_full(&self, names: &[&str]) {
        self.0.lock().full = names.iter().map(|name| (*name).to_owned()).collect();
    }

    /// Limits the number of disks that the process may have open to the present number plus `more`.
    /// `None` removes the limit.
    pub fn set_descriptors(&self, more: Option<usize>) {
        let mut machine = self.0.lock();
        machine.descriptors = more.map_or(usize::MAX, |more| machine.open + more);
    }

    /// Returns the number of disks that the process has open.
    pub fn open_disks(&self) -> usize {
        self.0.lock().open
    }

    /// Returns the backing space in use, in bytes. The machine counts new space only while the
    /// backing space is limited.
    pub fn backing_used(&self) -> u64 {
        self.0.lock().backing_used()
    }

    /// From now on syncs of this purpose do nothing and report success.
    pub fn drop_syncs(&self, purpose: SyncPurpose) {
        self.0.lock().dropped[index(purpose)] = true;
    }

    /// Makes the next sync of this purpose fail. `Cdp` stands for all syncs of histories. Later
    /// syncs of the same file do not write the changes that were unsynced at the failure.
    pub fn fail_next_sync(&self, purpose: SyncPurpose) {
        self.0.lock().fail_sync = Some(purpose);
    }

    /// Makes reads that touch `range` of `name` fail from now on.
    pub fn fail_reads(&self, name: &str, range: Range<u64>) {
        self.0.lock().bad.push((name.to_owned(), range));
    }

    /// Makes `name` fail in the way `how`, after `after` further changes and syncs of it.
    pub fn fail_writes(&self, name: &str, how: Failing, after: u64) {
        let mut machine = self.0.lock();
        machine.failing.retain(|(other, ..)| other != name);
        machine.failing.push((name.to_owned(), how, after));
    }

    /// Makes every read, change and sync of `name` fail from now on (`away`), or ends this state.
    pub fn set_away(&self, name: &str, away: bool) {
        let mut machine = self.0.lock();
        machine.away.retain(|other| other != name);
        machine.away.extend(away.then(|| name.to_owned()));
    }

    /// Makes sectors of the file `name` unreadable until they are written again. The sectors are up
    /// to `most` consecutive ones, all with data that writes to volumes put there. The search for
    /// the first one starts at a page that `pick` selects. Pages in which a bit has flipped are
    /// spared: a unit of which a part can't be read can't be verified, and the disk answers for the
    /// rest of it. Returns what the sectors held: (sector of the volume, stamp).
    pub(crate) fn lose_sectors(&self, name: &str, pick: u64, most: u64) -> Vec<(u64, u64)> {
        let machine = &mut *self.0.lock();
        let Some(id) = machine.names.get(name).copied() else { return Vec::new() };
        let Some(file) = machine.files.get(&id) else { return Vec::new() };
        let mut lost = Vec::new();
        let mut last = None;
        let per_page = PAGE / SECTOR;
        let pages: Vec<u64> = file.now.pages_in(0..file.now.len()).collect();
        let from = (pick % (pages.len() as u64).max(1)) as usize;
        let sound = pages[from..].iter().filter(|page| !machine.rotten.contains(&(id, **page)));
        let sound: Vec<u64> = sound.copied().collect();
        for place in sound.iter().flat_map(|page| page * per_page..(page + 1) * per_page) {
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

    /// Returns whether a bit of data was ever flipped.
    pub(crate) fn has_rotten(&self) -> bool {
        !self.0.lock().rotten.is_empty()
    }

    /// Flips a bit of the file `name` on the medium, in a page that holds data of writes to volumes
    /// as a whole, and that has no changes that are not durable. The search begins at a page that
    /// `pick` selects. Returns what the page held: (sector of the volume, stamp).
    pub(crate) fn rot(&self, name: &str, pick: u64) -> Vec<(u64, u64)> {
        let machine = &mut *self.0.lock();
        let Some(id) = machine.names.get(name).copied() else { return Vec::new() };
        let Some(file) = machine.files.get_mut(&id) else { return Vec::new() };
        let pages: Vec<u64> = file.now.pages_in(0..file.now.len()).collect();
        let from = (pick % (pages.len() as u64).max(1)) as usize;
        for page in pages[from..].iter().filter(|page| !file.dirty.contains(page)) {
            let mut content = [0; PAGE as usize];
            file.now.read(&mut content, page * PAGE);
            let held: Vec<_> = content.chunks_exact(SECTOR as usize).filter_map(held_by).collect();
            if held.len() as u64 == PAGE / SECTOR {
                let at = (pick >> 8) as usize % content.len();
                content[at] ^= 1 << (pick & 7);
                file.now.write(&content, page * PAGE);
                file.durable.write(&content, page * PAGE);
                machine.rotten.insert((id, *page));
                return held;
            }
        }
        Vec::new()
    }

    /// Ends the effects of [`SimDir::fail_reads`], [`SimDir::fail_writes`] and
    /// [`SimDir::set_away`]. It also cancels a [`SimDir::fail_next_sync`] whose sync has not come
    /// yet.
    pub fn clear_faults(&self) {
        let mut machine = self.0.lock();
        machine.bad.clear();
        machine.failing.clear();
        machine.away.clear();
        machine.fail_sync = None;
    }

    /// Returns whether a planned failure of a sync has not happened yet.
    pub fn sync_failure_pending(&self) -> bool {
        self.0.lock().fail_sync.is_some()
    }

    /// Returns whether a sync of a file has failed since the last power loss.
    pub fn sync_failed(&self) -> bool {
        self.0.lock().files.values().any(|f| f.sync_failed)
    }

    /// Flips a bit in the durable image and in the present image. Returns false if the present
    /// image has no byte at `offset`.
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

    /// Returns names and lengths in bytes, sorted by name.
    pub fn files(&self) -> Vec<(String, u64)> {
        let machine = self.0.lock();
        let len = |id| machine.files.get(id).map_or(0, |f| f.now.len());
        machine.names.iter().map(|(name, id)| (name.clone(), len(id))).collect()
    }

    /// Returns the operations so far.
    pub fn counts(&self) -> Counts {
        self.0.lock().counts
    }

    /// Starts to record a [`Stake`] for each operation. Returns the stakes that were recorded
    /// before.
    pub(crate) fn note_stakes(&self) -> Vec<Stake> {
        self.0.lock().stakes.replace(Vec::new()).unwrap_or_default()
    }

    /// Plans a crash at `point`, or cancels the plan (`None`). After the crash every operation
    /// fails until [`SimDir::kill`] or [`SimDir::lose_power`].
    pub fn crash_at(&self, point: Option<CrashPoint>) {
        self.0.lock().crash_at = point;
    }

    /// Plans a panic of the operation at `point`, or cancels the plan (`None`). The operation that
    /// panics does nothing. The machine continues.
    pub fn panic_at(&self, point: Option<CrashPoint>) {
        let mut machine = self.0.lock();
        (machine.panic_at, machine.panicked) = (point, None);
    }

    /// Returns whether the planned panic has happened.
    pub fn panicked(&self) -> bool {
        self.0.lock().panicked.is_some()
    }

    /// Returns whether the planned panic has happened in an operation on the file of this name.
    pub fn panicked_in(&self, name: &str) -> bool {
        let machine = self.0.lock();
        machine.panicked.is_some_and(|id| machine.names.get(name) == Some(&id))
    }

    /// Returns whether the planned crash has happened.
    pub fn crashed(&self) -> bool {
        self.0.lock().dead
    }

    /// Ends the process. What it wrote stays. All handles and locks become invalid.
    pub fn kill(&self) {
        self.0.lock().end_process();
    }

    /// Ends the process by a power loss. Some of what was not synced is lost, as `how` determines.
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

#[cfg(test)]
mod tests;
