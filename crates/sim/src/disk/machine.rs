//! The machine behind the simulated disks: its files, the two images of each file, and the changes
//! between the images.

use super::{Counts, CrashPoint, Failing, PANIC, Stake};
use crate::fate::{Fates, PowerLoss, TearModel};
use crate::oracle::SECTOR;
use crate::rand::Rand;
use hindcast_engine::disk::SyncPurpose;
use hindcast_engine::disk::{IMAGE_PAGE as PAGE, Image};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;

pub(super) struct Machine {
    pub(super) rand: Rand,
    /// Number of the present process. Only handles with this number work. The end of a process
    /// increments it.
    pub(super) life: u64,
    pub(super) dead: bool,
    pub(super) counts: Counts,
    pub(super) crash_at: Option<CrashPoint>,
    pub(super) panic_at: Option<CrashPoint>,
    /// The file whose operation has panicked. 0 means an operation on names.
    pub(super) panicked: Option<u64>,
    /// The stakes of each operation, if the caller asked the machine to record them.
    pub(super) stakes: Option<Vec<Stake>>,
    /// Numbers all changes, so that a power loss can keep a prefix over all disks.
    pub(super) clock: u64,
    pub(super) files: BTreeMap<u64, File>,
    pub(super) next_file: u64,
    pub(super) names: BTreeMap<String, u64>,
    pub(super) durable_names: BTreeMap<String, u64>,
    pub(super) name_changes: Vec<(u64, NameChange)>,
    pub(super) locked: BTreeSet<String>,
    pub(super) tear_model: fn(&str) -> TearModel,
    pub(super) dropped: [bool; SyncPurpose::ALL.len()],
    pub(super) fail_sync: Option<SyncPurpose>,
    /// Sectors that can't be read until they are written: (file, sector).
    pub(super) unreadable: BTreeSet<(u64, u64)>,
    /// Pages in which a bit has flipped, as (file, page). They stay here when they are written.
    pub(super) rotten: BTreeSet<(u64, u64)>,
    /// Whether disks make zeros when they are asked to.
    pub(super) makes_zeros: bool,
    pub(super) bad: Vec<(String, Range<u64>)>,
    /// Files that accept no writes: the name, how the file fails, and the number of changes until
    /// then.
    pub(super) failing: Vec<(String, Failing, u64)>,
    /// Files whose every read, change and sync fails.
    pub(super) away: Vec<String>,
    pub(super) backing: Option<u64>,
    /// Prefixes of names. Files whose names begin with one get no more backing space.
    pub(super) full: Vec<String>,
    /// Number of disks that this life has open. `descriptors` is the maximum.
    pub(super) open: usize,
    pub(super) descriptors: usize,
}

#[derive(Clone)]
pub(super) enum NameChange {
    Set(String, u64),
    Remove(String),
    /// From, to, file. A power loss keeps both halves of the rename, or neither.
    Rename(String, String, u64),
}

pub(super) struct File {
    pub(super) block: bool,
    pub(super) tear: TearModel,
    pub(super) now: Image,
    pub(super) durable: Image,
    pub(super) changes: Vec<(u64, Change)>,
    /// Pages that differ, or may differ, between the images.
    pub(super) dirty: BTreeSet<u64>,
    /// A sync of the file has failed since the last power loss.
    pub(super) sync_failed: bool,
    /// Pages that take backing space.
    pub(super) backed: BTreeSet<u64>,
    /// Whether the exclusive lock is held, and the number of shared locks.
    pub(super) locked: (bool, u32),
}

/// A change since the last completed sync.
pub(super) enum Change {
    Write {
        offset: u64,
        data: Vec<u8>,
    },
    Zero {
        offset: u64,
        len: u64,
    },
    SetLen(u64),
    /// A new length that applies only if it is larger.
    Extend(u64),
}

pub(super) fn crashed() -> io::Error {
    io::Error::other("simulated crash")
}

/// The error of a process that has reached its limit of open files.
pub(super) fn emfile() -> io::Error {
    io::Error::from_raw_os_error(24)
}

pub(super) fn eio() -> io::Error {
    io::Error::from_raw_os_error(5)
}

pub(super) fn index(purpose: SyncPurpose) -> usize {
    SyncPurpose::ALL.iter().position(|p| *p == purpose).unwrap_or(0)
}

/// Returns whether a planned failure for `wanted` applies to a sync of `purpose`. Random runs use
/// the single purpose `Cdp` for all that histories write.
pub(super) fn is_meant(wanted: Option<SyncPurpose>, purpose: SyncPurpose) -> bool {
    let of_histories = [SyncPurpose::CdpShared, SyncPurpose::CdpSorted].contains(&purpose);
    wanted == Some(purpose) || wanted == Some(SyncPurpose::Cdp) && of_histories
}

/// The course of an operation.
#[derive(PartialEq)]
pub(super) enum Go {
    On,
    /// The crash happens in the middle of the operation.
    Crash,
}

impl Machine {
    pub(super) fn add_file(&mut self, file: File) -> u64 {
        self.next_file += 1;
        self.files.insert(self.next_file, file);
        self.next_file
    }

    pub(super) fn alive(&self, life: u64) -> io::Result<()> {
        if self.dead || life != self.life { Err(crashed()) } else { Ok(()) }
    }

    /// Counts an operation that changes something of `file` (0: a name). Returns whether the
    /// machine survives the operation.
    pub(super) fn begin(&mut self, life: u64, file: u64, is_sync: bool) -> io::Result<Go> {
        self.alive(life)?;
        self.clock += 1;
        self.counts.ops += 1;
        self.counts.syncs += u64::from(is_sync);
        if let Some(stakes) = &mut self.stakes {
            let disks = self.files.values().filter(|f| !f.changes.is_empty()).count() as u64;
            let changes: usize = self.files.values().map(|f| f.changes.len()).sum();
            let changes = (changes + self.name_changes.len()) as u64;
            stakes.push(Stake { op: self.counts.ops, sync: is_sync, changes, disks });
        }
        let counts = self.counts;
        let reached = |point: Option<CrashPoint>| match point {
            Some(CrashPoint::Op(n)) => counts.ops >= n,
            Some(CrashPoint::Sync(n)) => is_sync && counts.syncs >= n,
            None => false,
        };
        if reached(self.panic_at) {
            (self.panic_at, self.panicked) = (None, Some(file));
            panic!("{PANIC}");
        }
        let now = reached(self.crash_at);
        if now {
            self.dead = true;
            self.crash_at = None;
        }
        Ok(if now { Go::Crash } else { Go::On })
    }

    /// Begins an operation that a crash performs wholly or not at all. On `Ok(true)` the caller
    /// performs it and then calls [`Machine::end`].
    pub(super) fn begin_whole(&mut self, life: u64, file: u64, is_sync: bool) -> io::Result<bool> {
        Ok(self.begin(life, file, is_sync)? == Go::On || self.rand.percent(50))
    }

    pub(super) fn end(&self) -> io::Result<()> {
        if self.dead { Err(crashed()) } else { Ok(()) }
    }

    pub(super) fn end_process(&mut self) {
        self.life += 1;
        self.dead = false;
        self.crash_at = None;
        (self.panic_at, self.panicked) = (None, None);
        self.locked.clear();
        self.files.values_mut().for_each(|file| file.locked = (false, 0));
        self.open = 0;
    }

    pub(super) fn lose_power(&mut self, how: PowerLoss) {
        let changes = self.files.values().flat_map(|f| f.changes.iter().map(|c| c.0));
        let all: Vec<u64> = changes.chain(self.name_changes.iter().map(|c| c.0)).collect();
        let mut fates = Fates::new(how, all, self.rand.fork());
        for (id, file) in &mut self.files {
            file.lose_power(*id, &mut fates);
        }
        for (at, change) in std::mem::take(&mut self.name_changes) {
            if !fates.name_survives(at) {
                continue;
            }
            match change {
                NameChange::Set(name, id) => drop(self.durable_names.insert(name, id)),
                NameChange::Remove(name) => drop(self.durable_names.remove(&name)),
                NameChange::Rename(from, to, id) => {
                    self.durable_names.remove(&from);
                    self.durable_names.insert(to, id);
                }
            }
        }
        self.names = self.durable_names.clone();
        let named: BTreeSet<u64> = self.names.values().copied().collect();
        self.files.retain(|id, _| named.contains(id));
    }

    /// Carries out the planned failure of a sync, on this file.
    pub(super) fn fail_sync(&mut self, id: u64) {
        self.fail_sync = None;
        let how = self.rand.pick(&[PowerLoss::LoseAll, PowerLoss::Subset, PowerLoss::Tears]);
        let mut fates = Fates::new(how, Vec::new(), self.rand.fork());
        if let Some(file) = self.files.get_mut(&id) {
            file.fail_sync(id, &mut fates);
        }
    }

    /// Counts a change or a sync of a file. Returns how it fails, if it fails.
    pub(super) fn fails(&mut self, id: u64) -> Option<Failing> {
        let (_, how, after) = self.failing.iter_mut().find(|(name, ..)| self.names.get(name) == Some(&id))?;
        let now = *after == 0;
        *after = after.saturating_sub(1);
        now.then_some(*how)
    }

    pub(super) fn is_away(&self, id: u64) -> bool {
        self.away.iter().any(|name| self.names.get(name) == Some(&id))
    }

    pub(super) fn sync_names(&mut self) {
        self.name_changes.clear();
        self.durable_names = self.names.clone();
    }

    /// Takes backing space for a range of bytes, or fails if there is none left.
    pub(super) fn back(&mut self, id: u64, offset: u64, len: u64) -> io::Result<()> {
        let Some(limit) = self.backing else { return Ok(()) };
        let used = self.backing_used();
        let is_full =
            |(name, file): (&String, &u64)| *file == id && self.full.iter().any(|f| name.starts_with(f));
        let full = self.names.iter().any(is_full);
        let Some(file) = self.files.get_mut(&id) else {
            return Err(crashed());
        };
        if file.block || len == 0 {
            return Ok(());
        }
        let pages = offset / PAGE..(offset + len).div_ceil(PAGE);
        let more: Vec<u64> = pages.filter(|page| !file.backed.contains(page)).collect();
        if used + more.len() as u64 * PAGE > limit || full && !more.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.backed.extend(more);
        Ok(())
    }

    pub(super) fn backing_used(&self) -> u64 {
        let files = self.names.values().filter_map(|id| self.files.get(id));
        files.map(|f| f.backed.len() as u64 * PAGE).sum()
    }

    pub(super) fn unreadable(&self, id: u64, offset: u64, len: u64) -> bool {
        let sectors = (id, offset / SECTOR)..(id, (offset + len).div_ceil(SECTOR));
        self.unreadable.range(sectors).next().is_some()
            || self.bad.iter().any(|(name, range)| {
                self.names.get(name) == Some(&id) && range.start < offset + len && offset < range.end
            })
    }
}

impl File {
    pub(super) fn new(tear: TearModel, block: bool) -> Self {
        File {
            block,
            tear,
            now: Image::default(),
            durable: Image::default(),
            changes: Vec::new(),
            dirty: BTreeSet::new(),
            sync_failed: false,
            backed: BTreeSet::new(),
            locked: (false, 0),
        }
    }

    /// Takes the exclusive lock or a shared lock. Returns false if another lock excludes it.
    pub(super) fn lock(&mut self, exclusive: bool) -> bool {
        let free = !self.locked.0 && (!exclusive || self.locked.1 == 0);
        if free && exclusive {
            self.locked.0 = true;
        } else if free {
            self.locked.1 += 1;
        }
        free
    }

    pub(super) fn unlock(&mut self, exclusive: bool) {
        if exclusive {
            self.locked.0 = false;
        } else {
            self.locked.1 = self.locked.1.saturating_sub(1);
        }
    }

    pub(super) fn change(&mut self, at: u64, change: Change) {
        let span = match &change {
            Change::Write { offset, data } => {
                self.now.write(data, *offset);
                *offset..*offset + data.len() as u64
            }
            Change::Zero { offset, len } => {
                self.now.zero(*offset, *len);
                *offset..*offset + *len
            }
            Change::SetLen(len) => {
                let old = self.now.len();
                self.now.set_len(*len);
                self.backed.split_off(&len.div_ceil(PAGE));
                *len..old.max(*len)
            }
            Change::Extend(len) => {
                self.now.set_len(self.now.len().max(*len));
                0..0
            }
        };
        if matches!(change, Change::SetLen(_)) {
            // Only pages of the durable image can come to differ here. A cut can span a very long
            // range, so not all its pages are added.
            self.dirty.extend(self.durable.pages_in(span));
        } else if !span.is_empty() {
            self.dirty.extend(span.start / PAGE..span.end.div_ceil(PAGE));
        }
        self.changes.push((at, change));
    }

    pub(super) fn sync(&mut self) {
        self.changes.clear();
        self.durable.set_len(self.now.len());
        for page in std::mem::take(&mut self.dirty) {
            self.durable.copy_page(&self.now, page);
        }
    }

    /// Makes a sync fail. The fates of the unsynced changes are decided now, and the system regards
    /// the pages as clean. Reads still see the changes. Later syncs write only pages that change
    /// from now on.
    pub(super) fn fail_sync(&mut self, id: u64, fates: &mut Fates) {
        self.settle(id, fates);
        self.sync_failed = true;
    }

    pub(super) fn lose_power(&mut self, id: u64, fates: &mut Fates) {
        self.settle(id, fates);
        self.sync_failed = false;
        self.now = self.durable.clone();
        self.backed.split_off(&self.now.len().div_ceil(PAGE));
    }

    /// Applies to the durable image what survives of the changes.
    fn settle(&mut self, id: u64, fates: &mut Fates) {
        for (at, change) in std::mem::take(&mut self.changes) {
            match change {
                Change::Write { offset, data } => {
                    fates.write(id, at, &self.tear, &mut self.durable, offset, &data);
                }
                Change::Zero { offset, len } if fates.survives(id, at) => self.durable.zero(offset, len),
                Change::SetLen(len) if fates.survives(id, at) => self.durable.set_len(len),
                Change::Extend(len) if fates.survives(id, at) => {
                    self.durable.set_len(self.durable.len().max(len));
                }
                _ => {}
            }
        }
        self.dirty.clear();
    }
}

impl Machine {
    /// Renames a file. Both names are in the directory itself.
    pub(super) fn rename(&mut self, from: &str, to: &str, id: u64) {
        self.names.remove(from);
        self.names.insert(to.to_owned(), id);
        let change = NameChange::Rename(from.to_owned(), to.to_owned(), id);
        self.name_changes.push((self.clock, change));
    }

    pub(super) fn set_name(&mut self, name: &str, id: Option<u64>) {
        match id {
            Some(id) => self.names.insert(name.to_owned(), id),
            None => self.names.remove(name),
        };
        if name.contains('/') {
            // The contract of [`Dir`] says that names outside of the directory are durable at once.
            match id {
                Some(id) => self.durable_names.insert(name.to_owned(), id),
                None => self.durable_names.remove(name),
            };
            return;
        }
        let change = match id {
            Some(id) => NameChange::Set(name.to_owned(), id),
            None => NameChange::Remove(name.to_owned()),
        };
        self.name_changes.push((self.clock, change));
    }
}

impl Machine {
    pub(super) fn change(&mut self, id: u64, change: Change) -> io::Result<()> {
        let at = self.clock;
        self.files.get_mut(&id).ok_or_else(crashed)?.change(at, change);
        Ok(())
    }
}
