//! Writes to physical volumes: sorted by address, merged into runs, spread over threads.
//!
//! While the journal is filling up and hardly anything is read, content for slots in use passes the
//! page cache by, with many writes in flight (decision 90).

use super::batch::{Content, Placed, joined};
use super::sums::RunSums;
use crate::catalog::page::Slot;
use crate::core::Core;
use crate::disk::{Cause, SyncPurpose, write_in_folios};
use crate::error::{Error, Result};
use crate::space::pv::Pv;
use crate::units::BLOCK;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};

/// Size in bytes of each thread's buffer, and of the largest single write past the page cache.
const MAX_WRITE: usize = 1 << 20;
/// Copies of fewer bytes in a row than this stay in the page cache: they are not worth a wait for
/// the disk.
const MIN_PAST_CACHE: usize = 64 << 10;
/// Number of reads that are announced before the first of them is waited for. A cold disk serves
/// them side by side.
pub(super) const READ_AHEAD: usize = 128;
/// Number of threads that write past the page cache. While one of them waits for all writes of its
/// group, the others give the disk more.
const PAST_CACHE_THREADS: usize = 4;
/// The most runs that are written together.
const MAX_GROUP: usize = 64;
/// Number of bytes of a group after which no other run joins it.
const GROUP_BYTES: usize = 1 << 20;
/// Largest buffer, in bytes, that a run of a group keeps for the next one.
const KEPT_BUFFER: usize = 64 << 10;
/// Number of written bytes after which a sync is worth its cost.
const SYNC_AFTER: usize = 8 << 20;
/// With fewer writes than this, a second thread is not worth its cost.
pub(super) const MIN_PER_THREAD: usize = 64;

/// Contents that lie one after another on a physical volume.
#[derive(Default)]
struct Run {
    start: Option<Slot>,
    bytes: Vec<u8>,
    /// Every content of the run is a copy for snapshots, which is unlikely to be read soon.
    copied: bool,
    /// Parts of `bytes` that are zeros because their content could not be read.
    lost: Vec<Range<usize>>,
    /// Those of them whose damage the catalog does not have yet.
    unstored: Vec<Range<usize>>,
    /// The sums of the run's units; none if the pool has no sums.
    sums: RunSums,
}

impl Run {
    /// Returns whether content for `address` continues the run. A run ends at multiples of
    /// [`MAX_WRITE`], and so with a whole unit.
    fn takes(&self, address: Slot) -> bool {
        let follows =
            |s: Slot| (s.pv(), s.offset() + self.bytes.len() as u64) == (address.pv(), address.offset());
        self.start.is_none_or(|s| follows(s) && !address.offset().is_multiple_of(MAX_WRITE as u64))
    }

    fn is_long_copy(&self) -> bool {
        self.copied && self.bytes.len() >= MIN_PAST_CACHE
    }

    /// Empties the run. A run that is one of many keeps little memory.
    fn clear(&mut self, is_one_of_many: bool) {
        if is_one_of_many && self.bytes.capacity() > KEPT_BUFFER {
            self.bytes = Vec::new();
        }
        self.bytes.clear();
        self.lost.clear();
        self.unstored.clear();
    }
}

/// How content is written.
#[derive(Clone, Copy)]
struct Way {
    purpose: SyncPurpose,
    /// It passes the page cache by.
    past_cache: bool,
}

/// Complete runs that are written together. A run through the page cache is a group of its own.
struct Group {
    way: Way,
    runs: Vec<Run>,
    bytes: usize,
    /// Runs whose memory is used again.
    spare: Vec<Run>,
}

impl Group {
    fn is_full(&self) -> bool {
        !self.way.past_cache || self.runs.len() >= MAX_GROUP || self.bytes >= GROUP_BYTES
    }
}

impl Core {
    /// Writes all of `placed`, which is sorted by address and disjoint, durably.
    pub(super) fn write_placed(&self, placed: &[Placed], purpose: SyncPurpose) -> Result<()> {
        if !placed.is_empty() {
            self.stamping.check()?;
        }
        let past_cache = self.passes_cache(placed, purpose)?;
        let threads = match self.options.destage_threads {
            2.. if past_cache => PAST_CACHE_THREADS,
            threads => threads,
        };
        let way = Way { purpose, past_cache };
        let threads = threads.clamp(1, 1 + placed.len() / MIN_PER_THREAD);
        if threads == 1 {
            self.write_run(placed, way, None)?;
        } else {
            self.write_side_by_side(placed, threads, way)?;
        }
        self.sync_pvs(placed, purpose)
    }

    /// Returns whether content passes the page cache by. New slots do not: direct I/O would convert
    /// their extents, which the file system has not written yet, one by one.
    fn passes_cache(&self, placed: &[Placed], purpose: SyncPurpose) -> Result<bool> {
        if purpose != SyncPurpose::Apply || !self.is_pressed() || !self.pace.reads_are_rare() {
            return Ok(false);
        }
        let mut pvs = placed.chunk_by(|a, b| a.address.pv() == b.address.pv());
        pvs.try_fold(true, |all, of_pv| Ok(all && self.pvs.get(of_pv[0].address.pv())?.disk.scatters()))
    }

    /// Writes on several threads. Another thread syncs the page cache repeatedly, so the last sync
    /// has little left to do.
    fn write_side_by_side(&self, placed: &[Placed], threads: usize, way: Way) -> Result<()> {
        let share = placed.len().div_ceil(threads);
        let (progress, written) = channel();
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new;
            let sync = move || {
                while written.recv().is_ok() {
                    while written.try_recv().is_ok() {}
                    self.sync_pvs(placed, way.purpose)?;
                }
                Ok(())
            };
            // If a thread can't be started, the work continues without it. The sync that counts
            // comes last, in the caller.
            let mut workers = Vec::new();
            // Past the cache, a sync finds nothing to write.
            if !way.past_cache {
                workers.extend(thread().spawn_scoped(scope, sync));
            }
            let mut here = Ok(());
            for part in shares(placed, share) {
                let progress = progress.clone();
                let write = move || self.write_run(part, way, Some(&progress));
                match thread().spawn_scoped(scope, write) {
                    Ok(worker) => workers.push(worker),
                    Err(_) => here = here.and_then(|()| self.write_run(part, way, None)),
                }
            }
            drop(progress);
            workers.into_iter().try_for_each(joined).and(here)
        })
    }

    fn sync_pvs(&self, written: &[Placed], purpose: SyncPurpose) -> Result<()> {
        let mut last = None;
        let mut synced = BTreeSet::new();
        for placed in written {
            let pv = placed.address.pv();
            if last != Some(pv) && synced.insert(pv) {
                self.pvs.get(pv)?.sync(purpose)?;
            }
            last = Some(pv);
        }
        Ok(())
    }

    /// Writes `placed`, and reports to `progress` after each [`SYNC_AFTER`] bytes.
    fn write_run(&self, placed: &[Placed], way: Way, progress: Option<&Sender<()>>) -> Result<()> {
        let mut unsynced = 0;
        let mut run = Run::default();
        let mut group = Group { way, runs: Vec::new(), bytes: 0, spare: Vec::new() };
        let mut ahead = placed.iter();
        self.announce(ahead.by_ref().take(READ_AHEAD))?;
        for item in placed {
            self.announce(ahead.next().into_iter())?;
            let mut done = 0u32;
            while done < item.len {
                let address = Slot::new(item.address.pv(), item.address.offset() + done as u64);
                if !run.takes(address) {
                    self.end_run(&mut run, &mut group)?;
                }
                if run.start.is_none() {
                    (run.start, run.copied) = (Some(address), true);
                }
                run.copied &= matches!(item.fill, Content::Slot(_));
                let room = MAX_WRITE as u64 - address.offset() % MAX_WRITE as u64;
                let len = u64::from(item.len - done).min(room) as u32;
                self.fill(item, done, len, &mut run)?;
                if let (Some(start), true) = (run.start, self.sums.is_on()) {
                    run.sums.note(self, item, done..done + len, start, &mut run.lost)?;
                }
                done += len;
            }
            unsynced += item.len as usize;
            if let Some(progress) = progress.filter(|_| unsynced >= SYNC_AFTER) {
                unsynced = 0;
                // If the thread that syncs is gone, it has failed, and reports why itself.
                let _ = progress.send(());
            }
        }
        self.end_run(&mut run, &mut group)?;
        self.write_group(&mut group)
    }

    /// Announces to the disks the slots that will be copied.
    fn announce<'a>(&self, placed: impl Iterator<Item = &'a Placed>) -> Result<()> {
        for item in placed {
            if let Content::Slot(slot) = item.fill {
                self.pvs.get(slot.pv())?.disk.will_need(slot.offset(), item.len.into());
            }
        }
        Ok(())
    }

    /// Appends `len` bytes of the item's content, from byte `from` of it.
    fn fill(&self, item: &Placed, from: u32, len: u32, run: &mut Run) -> Result<()> {
        let old = run.bytes.len();
        let buffer = &mut run.bytes;
        buffer.resize(old + len as usize, 0);
        if let Content::Slot(slot) = item.fill {
            let _cause = Cause::Preserve.begin();
            let pv = self.pvs.get(slot.pv())?;
            let at = slot.offset() + from as u64;
            let lost = self.read_parts(&pv, &mut buffer[old..], at)?;
            let lost: Vec<_> = lost.into_iter().map(|part| old + part.start..old + part.end).collect();
            if !lost.is_empty() && !self.damage.is_stored(pv.id, &(at..at + u64::from(len))) {
                run.unstored.extend(lost.iter().cloned());
            }
            run.lost.extend(lost);
        }
        if let Content::Journal(file, position) = item.fill {
            let Some(segment) = self.journal.file(file) else {
                return Err(crate::error::corrupt(format!("read journal file {file}: it does not exist")));
            };
            let failed = |e| Error::io(format!("read journal file {file}"), e);
            segment.disk.read_at(&mut buffer[old..], (position + from) as u64).map_err(failed)?;
        }
        Ok(())
    }

    /// Adds a complete run to the group, which is written when it is full. `run` is empty then.
    fn end_run(&self, run: &mut Run, group: &mut Group) -> Result<()> {
        if run.start.is_none() {
            return Ok(());
        }
        group.bytes += run.bytes.len();
        group.runs.push(std::mem::replace(run, group.spare.pop().unwrap_or_default()));
        if group.is_full() { self.write_group(group) } else { Ok(()) }
    }

    /// Writes the runs of a group.
    fn write_group(&self, group: &mut Group) -> Result<()> {
        let mut runs = std::mem::take(&mut group.runs);
        for of_pv in runs.chunk_by_mut(|a, b| a.start.map(Slot::pv) == b.start.map(Slot::pv)) {
            self.write_runs(of_pv, group.way)?;
        }
        runs.iter_mut().for_each(|run| run.clear(group.way.past_cache));
        group.spare.append(&mut runs);
        group.runs = runs;
        group.bytes = 0;
        Ok(())
    }

    /// Writes runs of one physical volume.
    fn write_runs(&self, runs: &mut [Run], way: Way) -> Result<()> {
        let starts: Vec<Slot> = runs.iter_mut().filter_map(|run| run.start.take()).collect();
        let Some(first) = starts.first() else { return Ok(()) };
        let applies = way.purpose == SyncPurpose::Apply;
        let _cause = match way.purpose {
            SyncPurpose::Apply => Cause::Apply,
            _ if runs.iter().all(|run| run.copied) => Cause::Preserve,
            _ => Cause::NewSlot,
        }
        .begin();
        let pv = self.pvs.get(first.pv())?;
        let has_sums = self.sums.is_on();
        let ends = |start: &Slot, run: &Run| start.offset()..start.offset() + run.bytes.len() as u64;
        // Readers find slots that are overwritten in place. Until the write has returned, and after
        // it has failed, data and sums do not match there.
        let _writing: Vec<_> = match has_sums {
            true => starts
                .iter()
                .zip(&*runs)
                .map(|(start, run)| self.sums.writing(pv.id, ends(start, run)))
                .collect(),
            false => Vec::new(),
        };
        if has_sums && applies {
            for (start, run) in starts.iter().zip(&*runs) {
                run.sums.forget(self, &pv, start.offset())?;
            }
        }
        let failed = |e| pv.write_failed(format!("write to {} at byte {}", pv.path, first.offset()), e);
        self.write_bytes(&pv, &starts, runs, way).map_err(failed)?;
        for (start, run) in starts.iter().zip(runs) {
            if applies {
                run.unstored.iter().for_each(|part| run.sums.doubt(part, start.offset()));
            }
            if has_sums {
                run.sums.set(self, &pv, (start.offset(), &run.bytes), &run.lost)?;
            }
            let place = |at: usize| start.offset() + at as u64;
            let lost: Vec<_> = run.lost.drain(..).map(|part| place(part.start)..place(part.end)).collect();
            self.damage.written(pv.id, place(0)..place(run.bytes.len()), &lost);
            self.positions.bytes.fetch_add(run.bytes.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Writes the bytes of runs.
    fn write_bytes(&self, pv: &Pv, starts: &[Slot], runs: &[Run], way: Way) -> io::Result<()> {
        let mut pieces = Vec::with_capacity(runs.len());
        for (start, run) in starts.iter().zip(runs) {
            // What a slot in use has lost is not written over before the catalog knows of it. After
            // a crash, a filler could not be told from content.
            let kept: &[Range<usize>] = if way.purpose == SyncPurpose::Apply { &run.unstored } else { &[] };
            let parts = between(run.bytes.len(), kept);
            pieces.extend(parts.into_iter().map(|part| {
                let at = start.offset() + part.start as u64;
                (&run.bytes[part], at)
            }));
        }
        match runs {
            [run] if run.is_long_copy() && pieces.len() == 1 => {
                pv.disk.write_direct(pieces[0].0, pieces[0].1)
            }
            _ if way.past_cache => pv.disk.write_scattered(&pieces),
            _ => pieces.iter().try_for_each(|(bytes, at)| {
                write_in_folios(bytes, *at, &|part, at| pv.disk.write_at(part, at))
            }),
        }
    }
}

/// Returns the parts of `0..len` that are in none of `kept`, which are disjoint and in order.
fn between(len: usize, kept: &[Range<usize>]) -> Vec<Range<usize>> {
    let starts = std::iter::once(0).chain(kept.iter().map(|part| part.end));
    let ends = kept.iter().map(|part| part.start).chain(std::iter::once(len));
    starts.zip(ends).map(|(start, end)| start..end).filter(|part| part.start < part.end).collect()
}

/// Splits `placed` into parts of at least `share` entries. No unit is in two parts, except at the
/// ends of two runs.
fn shares(placed: &[Placed], share: usize) -> impl Iterator<Item = &[Placed]> {
    let mut rest = placed;
    std::iter::from_fn(move || {
        let mut len = share.min(rest.len());
        while len > 0 && len < rest.len() && !rest[len].address.offset().is_multiple_of(BLOCK) {
            len += 1;
        }
        let (part, later) = rest.split_at(len);
        rest = later;
        (!part.is_empty()).then_some(part)
    })
}
