//! Sums of the data in place (invariants S1 to S7 of docs/DURABILITY.md, decision 64).
//!
//! Each unit of 4 KiB of a physical volume has a sum in a file of the data directory. Sums belong
//! to places, not to volumes. So a write that the disk loses, or puts into a wrong place, is
//! noticed: the data and its sum are in different files.
//!
//! The sums of the blocks that are used are in memory. A writer sets the sums after it has written
//! the data. Every commit needs the proof that all sums are durable ([`Flushed`]). Sums that are
//! ahead of the catalog harm nothing: new slots are not in use before the commit, and the journal
//! repeats what was written over slots in use.
//!
//! While data is written over slots in use, its sums do not match. A writer announces the range
//! ([`UnitSums::writing`]), and a reader that finds a mismatch waits for the writer and looks
//! again.

mod block;

pub(crate) use block::{UNKNOWN, stored, sum_of};

use crate::disk::{Dir, Disk, OpenMode, SyncPurpose, is_unreadable};
use crate::error::{Error, Result};
use crate::map::cache::Cache;
use crate::settings::CachePolicy;
use crate::space::label::DATA_START;
use crate::space::pv::Pv;
use crate::units::BLOCK;
use block::{BOTH, COPY, Copies, Identity, SUMS};
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use uuid::Uuid;

/// The beginning of the names of the files.
pub(crate) const FILE_PREFIX: &str = "sums-";
/// Number of bytes that the cache counts for a block.
const WEIGHT: usize = size_of::<Block>() + BlockCache::BOOKKEEPING;

/// Returns the name of the file for a physical volume.
pub(crate) fn file_name(pv: u32) -> String {
    format!("{FILE_PREFIX}{pv:08x}")
}

/// Returns the number of the physical volume that a file is for.
pub(crate) fn file_owner(name: &str) -> Option<u32> {
    let digits = name.strip_prefix(FILE_PREFIX)?;
    (digits.len() == 8).then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

/// Returns the number of the unit that begins at a byte of a physical volume, or that the byte lies
/// in.
pub(crate) fn unit_at(at: u64) -> u64 {
    at.saturating_sub(DATA_START) / BLOCK
}

/// The key of a block: a physical volume, and the number of the block.
type Key = (u32, u64);

type BlockCache = Cache<Key, Arc<Block>>;

/// A block of sums in memory. All threads share it.
struct Block {
    identity: Identity,
    file: Arc<SumFile>,
    /// Sequence number of the durable copy, 0 if there is none. Only [`UnitSums::flush`] changes
    /// it.
    sequence: AtomicU64,
    /// Copies on disk can't be read, or are invalid. They may come back. So the next write goes
    /// over both.
    doubtful: AtomicBool,
    /// Number of changes since the block was loaded.
    changes: AtomicU64,
    sums: [AtomicU32; SUMS],
}

/// The file for a physical volume.
struct SumFile {
    name: String,
    uuid: Uuid,
    /// The disk. There is none until a sum is stored in a file that does not exist.
    disk: RwLock<Option<Arc<dyn Disk>>>,
}

/// The sums of a pool.
pub(crate) struct UnitSums {
    dir: Arc<dyn Dir>,
    /// The pool has the feature.
    on: AtomicBool,
    files: RwLock<BTreeMap<u32, Arc<SumFile>>>,
    cache: BlockCache,
    /// The blocks that differ from their files. They are not in the cache alone, because the cache
    /// may drop them.
    dirty: Mutex<BTreeMap<Key, Arc<Block>>>,
    /// Held while blocks are written to their files.
    flushing: Mutex<()>,
    /// The ranges of slots in use that are being written: (physical volume, bytes).
    writing: Mutex<Vec<(u32, Range<u64>)>>,
    written: Condvar,
    /// Number of blocks of which no copy was valid when they were loaded.
    damaged_blocks: AtomicU64,
}

/// Proof that the sums which were set before a commit began are durable. Only [`UnitSums::flush`]
/// makes it.
pub(crate) struct Flushed(());

/// An announced write. The write ends when this is dropped.
pub(crate) struct Writing<'a> {
    sums: &'a UnitSums,
    place: (u32, Range<u64>),
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut writing = self.sums.writing.lock();
        if let Some(at) = writing.iter().position(|place| *place == self.place) {
            writing.swap_remove(at);
        }
        self.sums.written.notify_all();
    }
}

impl UnitSums {
    /// Makes the sums of a pool whose data directory is `dir`. The cache has `bytes`.
    pub(crate) fn new(dir: Arc<dyn Dir>, bytes: usize, on: bool) -> UnitSums {
        UnitSums {
            dir,
            on: AtomicBool::new(on),
            files: RwLock::default(),
            cache: BlockCache::new(CachePolicy::S3Fifo, bytes),
            dirty: Mutex::default(),
            flushing: Mutex::default(),
            writing: Mutex::default(),
            written: Condvar::new(),
            damaged_blocks: AtomicU64::new(0),
        }
    }

    /// Returns whether the pool has sums.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Notes that the pool has sums from now on. The catalog already has the feature.
    pub(crate) fn turn_on(&self) {
        self.on.store(true, Ordering::Release);
    }

    /// Ends the verification: from now on, nothing has sums.
    pub(crate) fn turn_off(&self) {
        self.on.store(false, Ordering::Release);
    }

    /// Returns the number of blocks that were damaged when they were loaded. Their sums are
    /// unknown.
    pub(crate) fn damaged_blocks(&self) -> u64 {
        self.damaged_blocks.load(Ordering::Relaxed)
    }

    /// Fills `out` with the sums of the units from `first` on, if they are in memory. Otherwise
    /// returns false.
    pub(crate) fn cached(&self, pv: u32, first: u64, out: &mut [u32]) -> bool {
        parts(first, out.len()).all(|(number, within, part)| {
            let Some(block) = self.cache.get(&(pv, number)) else { return false };
            block.read(within, &mut out[part]);
            true
        })
    }

    /// Fills `out` with the sums of the units from `first` on.
    pub(crate) fn get(&self, pv: &Pv, first: u64, out: &mut [u32]) -> Result<()> {
        for (number, within, part) in parts(first, out.len()) {
            self.block(pv, number)?.read(within, &mut out[part]);
        }
        Ok(())
    }

    /// Returns the sum of the unit at a byte of a physical volume.
    pub(crate) fn of(&self, pv: &Pv, at: u64) -> Result<u32> {
        let mut sum = [UNKNOWN];
        self.get(pv, unit_at(at), &mut sum)?;
        Ok(sum[0])
    }

    /// Sets the sums of the units from `first` on. The caller has written the data.
    pub(crate) fn set(&self, pv: &Pv, first: u64, sums: &[u32]) -> Result<()> {
        for (number, within, part) in parts(first, sums.len()) {
            let key = (pv.id, number);
            // The lock makes this the only place that loads a block to change it. Otherwise two
            // copies of a block could be changed at the same time.
            let mut dirty = self.dirty.lock();
            let block = match dirty.get(&key) {
                Some(block) => block.clone(),
                None => match self.cache.get(&key) {
                    Some(block) => block,
                    None => Arc::new(self.load(pv, number)?),
                },
            };
            if block.sequence.load(Ordering::Acquire) == 0 && !dirty.contains_key(&key) {
                // Without this, a commit could run out of space.
                match block.file.make_room(&*self.dir, number) {
                    // Without the space, the sums stay unknown, and nothing waits for them. A copy
                    // that can't be read now has space already, and must not come back.
                    Err(error) if error.is_shortage() && !block.doubtful.load(Ordering::Acquire) => continue,
                    made => made?,
                }
            }
            for (slot, sum) in block.sums[within..].iter().zip(&sums[part]) {
                slot.store(*sum, Ordering::Release);
            }
            block.changes.fetch_add(1, Ordering::Release);
            self.cache.publish(key, block.clone(), WEIGHT);
            dirty.insert(key, block);
        }
        Ok(())
    }

    /// Makes all sums durable that were set before the call. A failed write leaves them to the next
    /// call. After a failed sync nothing is certain.
    pub(crate) fn flush(&self) -> Result<Flushed> {
        let _alone = self.flushing.lock();
        let blocks: Vec<(Key, Arc<Block>)> =
            self.dirty.lock().iter().map(|(key, block)| (*key, block.clone())).collect();
        let mut done = Vec::with_capacity(blocks.len());
        for of_pv in blocks.chunk_by(|a, b| a.0.0 == b.0.0) {
            let file = &of_pv[0].1.file;
            let disk = file.opened(&*self.dir)?;
            for (key, block) in of_pv {
                let changes = block.changes.load(Ordering::Acquire);
                block.write(&*disk, key.1)?;
                done.push((*key, changes));
            }
            let failed = |e| Error::io(format!("sync {}", file.name), e).lasting();
            disk.sync(SyncPurpose::Sums).map_err(failed)?;
            for (_, block) in of_pv {
                let both = block.doubtful.swap(false, Ordering::AcqRel);
                block.sequence.fetch_add(1 + u64::from(both), Ordering::AcqRel);
            }
        }
        let mut dirty = self.dirty.lock();
        for (key, changes) in done {
            if dirty.get(&key).is_some_and(|block| block.changes.load(Ordering::Acquire) == changes) {
                dirty.remove(&key);
            }
        }
        Ok(Flushed(()))
    }

    /// Announces that a range of slots in use is written. The range ends with the value.
    pub(crate) fn writing(&self, pv: u32, range: Range<u64>) -> Writing<'_> {
        let place = (pv, range);
        self.writing.lock().push(place.clone());
        Writing { sums: self, place }
    }

    /// Waits until nobody writes a range.
    pub(crate) fn wait_written(&self, pv: u32, range: &Range<u64>) {
        let mut writing = self.writing.lock();
        while is_written(&writing, pv, range) {
            self.written.wait(&mut writing);
        }
    }

    /// Calls `condemn` if a unit still has `sum` and nobody writes it. No write of the unit begins
    /// before `condemn` returns. Returns whether it was called.
    pub(crate) fn judge(&self, pv: &Pv, at: u64, sum: u32, condemn: impl FnOnce()) -> Result<bool> {
        let now = self.of(pv, at)?;
        let writing = self.writing.lock();
        let mut later = [UNKNOWN];
        // A writer sets the sum before its announcement ends.
        let is_known = self.cached(pv.id, unit_at(at), &mut later);
        let is_same = now == sum && is_known && later == [sum];
        let judged = is_same && !is_written(&writing, pv.id, &(at..at + BLOCK));
        if judged {
            condemn();
        }
        Ok(judged)
    }

    /// Creates the file for a physical volume. A file without content has no sums.
    pub(crate) fn create(&self, pv: &Pv) -> Result<()> {
        self.file(pv)?.opened(&*self.dir).map(drop)
    }

    /// Removes the file of a physical volume that has left the pool. A file that stays is removed
    /// by the next opening.
    pub(crate) fn forget(&self, pv: u32) -> Result<()> {
        self.files.write().remove(&pv);
        self.dirty.lock().retain(|key, _| key.0 != pv);
        self.cache.invalidate_where(|key| key.0 == pv);
        let name = file_name(pv);
        match self.dir.remove(&name) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io(format!("remove {name}"), e)),
            _ => Ok(()),
        }
    }

    /// Returns a block for reading.
    fn block(&self, pv: &Pv, number: u64) -> Result<Arc<Block>> {
        let key = (pv.id, number);
        if let Some(block) = self.cache.get(&key) {
            return Ok(block);
        }
        let generation = self.cache.generation(&key);
        let known = self.dirty.lock().get(&key).cloned();
        let block = match known {
            Some(block) => block,
            None => Arc::new(self.load(pv, number)?),
        };
        self.cache.insert_if(key, block.clone(), WEIGHT, generation);
        Ok(block)
    }

    fn load(&self, pv: &Pv, number: u64) -> Result<Block> {
        let file = self.file(pv)?;
        let identity = Identity::new(&file.uuid, number);
        let (copies, readable) = file.read_block(number)?;
        let mut doubtful = false;
        let (sequence, sums) = match identity.decode(&copies) {
            Copies::Valid { sequence, sums } if readable => (sequence, sums),
            Copies::Empty if readable => (0, vec![UNKNOWN; SUMS]),
            _ => {
                // A copy that can't be read may be the newer one.
                doubtful = true;
                self.damaged_blocks.fetch_add(1, Ordering::Relaxed);
                let file = &file.name;
                tracing::error!(file, block = number, "sums are damaged: data can't be verified there");
                (0, vec![UNKNOWN; SUMS])
            }
        };
        let mut sums = sums.into_iter();
        Ok(Block {
            identity,
            file,
            sequence: AtomicU64::new(sequence),
            doubtful: AtomicBool::new(doubtful),
            changes: AtomicU64::new(0),
            sums: std::array::from_fn(|_| AtomicU32::new(sums.next().unwrap_or(UNKNOWN))),
        })
    }

    fn file(&self, pv: &Pv) -> Result<Arc<SumFile>> {
        if let Some(file) = self.files.read().get(&pv.id) {
            return Ok(file.clone());
        }
        let name = file_name(pv.id);
        let disk = match self.dir.open(&name, OpenMode::Existing) {
            Ok(disk) => Some(disk),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(Error::io(format!("open {name}"), e)),
        };
        let file = Arc::new(SumFile { name, uuid: pv.uuid, disk: RwLock::new(disk) });
        Ok(self.files.write().entry(pv.id).or_insert(file).clone())
    }
}

/// Splits a range of units by blocks: the number of the block, the first sum in it, and the part of
/// the range.
fn parts(first: u64, count: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == count {
            return None;
        }
        let unit = first + done as u64;
        let within = (unit % SUMS as u64) as usize;
        let part = done..count.min(done + SUMS - within);
        done = part.end;
        Some((unit / SUMS as u64, within, part))
    })
}

fn is_written(writing: &[(u32, Range<u64>)], pv: u32, range: &Range<u64>) -> bool {
    writing.iter().any(|(of, written)| *of == pv && written.start < range.end && range.start < written.end)
}

impl Block {
    fn read(&self, from: usize, out: &mut [u32]) {
        for (sum, stored) in out.iter_mut().zip(&self.sums[from..]) {
            *sum = stored.load(Ordering::Acquire);
        }
    }

    /// Writes the block over its older copy. Until that is synced, the newer copy must stay: a
    /// repeated write goes to the same place.
    fn write(&self, disk: &dyn Disk, number: u64) -> Result<()> {
        let first = self.sequence.load(Ordering::Acquire) + 1;
        let last = first + u64::from(self.doubtful.load(Ordering::Acquire));
        for sequence in first..=last {
            let sums = self.sums.iter().map(|sum| sum.load(Ordering::Acquire));
            let bytes = self.identity.encode(sequence, sums);
            let at = number * BOTH + sequence % 2 * COPY as u64;
            disk.write_at(&bytes, at).map_err(|e| Error::io(format!("write {}", self.file.name), e))?;
        }
        Ok(())
    }
}

impl SumFile {
    /// Returns the disk, and creates it first if it does not exist.
    fn opened(&self, dir: &dyn Dir) -> Result<Arc<dyn Disk>> {
        if let Some(disk) = &*self.disk.read() {
            return Ok(disk.clone());
        }
        let mut disk = self.disk.write();
        if let Some(disk) = &*disk {
            return Ok(disk.clone());
        }
        let failed = |e| Error::io(format!("create {}", self.name), e);
        let made = dir.open(&self.name, OpenMode::Create).map_err(failed)?;
        dir.sync(SyncPurpose::Dir).map_err(|e| failed(e).lasting())?;
        *disk = Some(made.clone());
        Ok(made)
    }

    /// Reserves the space of a block that was never written.
    fn make_room(&self, dir: &dyn Dir, number: u64) -> Result<()> {
        let disk = self.opened(dir)?;
        let room = disk.allocate(number * BOTH, BOTH);
        room.map_err(|e| Error::io(format!("reserve space in {}", self.name), e))
    }

    /// Reads both copies of a block, and returns whether both can be read. A copy that does not
    /// exist, or can't be read, is zeros.
    fn read_block(&self, number: u64) -> Result<(Vec<u8>, bool)> {
        let (mut copies, mut readable) = (vec![0; BOTH as usize], true);
        let Some(disk) = self.disk.read().clone() else { return Ok((copies, readable)) };
        let failed = |e| Error::io(format!("read {}", self.name), e);
        let len = disk.len().map_err(failed)?;
        for (at, copy) in (number * BOTH..).step_by(COPY).zip(copies.chunks_exact_mut(COPY)) {
            if at + COPY as u64 > len {
                break;
            }
            match disk.read_at(copy, at) {
                Ok(()) => {}
                Err(e) if is_unreadable(&e) => {
                    copy.fill(0);
                    readable = false;
                }
                Err(e) => return Err(failed(e)),
            }
        }
        Ok((copies, readable))
    }
}

#[cfg(test)]
mod tests;
