//! Writing to physical volumes: sorted, merged, in parallel.

use super::batch::{Content, Placed, joined};
use crate::catalog::page::Slot;
use crate::core::Core;
use crate::disk::SyncPurpose;
use crate::error::{Error, Result};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};

/// The buffer of each thread, and the largest single write past the page cache.
const MAX_WRITE: usize = 1 << 20;
/// The largest single write to the page cache. The kernel makes folios as large as the writes that
/// first fill them, and goes through all blocks of a folio for every later write to a part of it.
const MAX_CACHED: usize = 16 << 10;
/// Copies of fewer bytes in a row than this are not worth waiting for the disk.
const MIN_PAST_CACHE: usize = 64 << 10;
/// So many reads are announced before the first of them is waited for: a cold disk serves them side
/// by side.
pub(super) const READ_AHEAD: usize = 128;
/// Bytes after which those written before are worth a sync.
const SYNC_AFTER: usize = 8 << 20;
/// Fewer writes than this are not worth a second thread.
pub(super) const MIN_PER_THREAD: usize = 64;

/// Contents that follow one another on a PV.
#[derive(Default)]
struct Run {
    start: Option<Slot>,
    bytes: Vec<u8>,
    /// Nothing of it is new: a snapshot's, which nobody is likely to read soon.
    copied: bool,
    /// Parts of `bytes` that are zeros because what belongs there could not be read.
    lost: Vec<Range<usize>>,
}

impl Run {
    /// Does what belongs at `address` continue it?
    fn takes(&self, address: Slot) -> bool {
        let follows =
            |s: Slot| (s.pv(), s.offset() + self.bytes.len() as u64) == (address.pv(), address.offset());
        self.bytes.len() < MAX_WRITE && self.start.is_none_or(follows)
    }
}

impl Core {
    /// Writes all of `placed`, which is sorted by address and disjoint, durably.
    pub(super) fn write_placed(&self, placed: &[Placed], purpose: SyncPurpose) -> Result<()> {
        if !placed.is_empty() {
            self.stamping.check()?;
        }
        let threads = self.options.destage_threads.clamp(1, 1 + placed.len() / MIN_PER_THREAD);
        if threads == 1 {
            self.write_run(placed, None)?;
        } else {
            self.write_side_by_side(placed, threads, purpose)?;
        }
        self.sync_pvs(placed, purpose)
    }

    /// While some threads write another one syncs, over and over, so that the disks have little
    /// left to do in the end.
    fn write_side_by_side(&self, placed: &[Placed], threads: usize, purpose: SyncPurpose) -> Result<()> {
        let share = placed.len().div_ceil(threads);
        let (progress, written) = channel();
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new;
            let sync = move || {
                while written.recv().is_ok() {
                    while written.try_recv().is_ok() {}
                    self.sync_pvs(placed, purpose)?;
                }
                Ok(())
            };
            // There may be as many threads as there can be. The sync that counts comes last, and
            // not here.
            let mut workers: Vec<_> = thread().spawn_scoped(scope, sync).into_iter().collect();
            let mut here = Ok(());
            for part in placed.chunks(share) {
                let progress = progress.clone();
                let write = move || self.write_run(part, Some(&progress));
                match thread().spawn_scoped(scope, write) {
                    Ok(worker) => workers.push(worker),
                    Err(_) => here = here.and_then(|()| self.write_run(part, None)),
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

    /// Writes `placed`; says so each time when [`SYNC_AFTER`] bytes more are written.
    fn write_run(&self, placed: &[Placed], progress: Option<&Sender<()>>) -> Result<()> {
        let mut unsynced = 0;
        let mut run = Run::default();
        run.bytes.reserve(MAX_WRITE.min(placed.iter().map(|p| p.len as usize).sum()));
        let mut ahead = placed.iter();
        self.announce(ahead.by_ref().take(READ_AHEAD))?;
        for item in placed {
            self.announce(ahead.next().into_iter())?;
            let mut done = 0u32;
            while done < item.len {
                let address = Slot::new(item.address.pv(), item.address.offset() + done as u64);
                if !run.takes(address) {
                    self.write_out(&mut run)?;
                }
                if run.start.is_none() {
                    (run.start, run.copied) = (Some(address), true);
                }
                run.copied &= matches!(item.fill, Content::Slot(_));
                let len = (item.len - done).min((MAX_WRITE - run.bytes.len()) as u32);
                self.fill(item, done, len, &mut run)?;
                done += len;
            }
            unsynced += item.len as usize;
            if let Some(progress) = progress.filter(|_| unsynced >= SYNC_AFTER) {
                unsynced = 0;
                // Who listens has failed, and says why.
                let _ = progress.send(());
            }
        }
        self.write_out(&mut run)
    }

    /// Tells the disks what will be copied.
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
            let pv = self.pvs.get(slot.pv())?;
            let at = slot.offset() + from as u64;
            let lost = self.read_parts(&pv, &mut buffer[old..], at)?;
            run.lost.extend(lost.into_iter().map(|part| old + part.start..old + part.end));
        }
        if let Content::Journal(file, position) = item.fill {
            let Some(segment) = self.journal.file(file) else {
                return Err(crate::error::corrupt(format!("read journal file {file}: there is none")));
            };
            let failed = |e| Error::io(format!("read journal file {file}"), e);
            segment.disk.read_at(&mut buffer[old..], (position + from) as u64).map_err(failed)?;
        }
        Ok(())
    }

    fn write_out(&self, run: &mut Run) -> Result<()> {
        let Some(start) = run.start.take() else { return Ok(()) };
        let pv = self.pvs.get(start.pv())?;
        let failed = |e| pv.write_failed(format!("write to {} at byte {}", pv.path, start.offset()), e);
        if run.copied && run.bytes.len() >= MIN_PAST_CACHE {
            pv.disk.write_direct(&run.bytes, start.offset()).map_err(failed)?;
        } else {
            let mut at = start.offset();
            for piece in run.bytes.chunks(MAX_CACHED) {
                pv.disk.write_at(piece, at).map_err(failed)?;
                at += piece.len() as u64;
            }
        }
        let place = |at: usize| start.offset() + at as u64;
        let lost: Vec<_> = run.lost.drain(..).map(|part| place(part.start)..place(part.end)).collect();
        self.damage.written(start.pv(), place(0)..place(run.bytes.len()), &lost);
        self.positions.bytes.fetch_add(run.bytes.len() as u64, Ordering::Relaxed);
        run.bytes.clear();
        Ok(())
    }
}
