//! Writes to physical volumes: sorted by address, merged into runs, spread over threads.

use super::batch::{Content, Placed, joined};
use super::sums::RunSums;
use crate::catalog::page::Slot;
use crate::core::Core;
use crate::disk::{Cause, SyncPurpose};
use crate::error::{Error, Result};
use crate::units::BLOCK;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};

/// Size in bytes of each thread's buffer, and of the largest single write past the page cache.
const MAX_WRITE: usize = 1 << 20;
/// Size in bytes of the largest single write to the page cache. The kernel makes folios as large as
/// the writes that first fill them. Every later write to a part of a folio goes through all its
/// blocks.
const MAX_CACHED: usize = 16 << 10;
/// Copies of fewer bytes in a row than this stay in the page cache: they are not worth a wait for
/// the disk.
const MIN_PAST_CACHE: usize = 64 << 10;
/// Number of reads that are announced before the first of them is waited for. A cold disk serves
/// them side by side.
pub(super) const READ_AHEAD: usize = 128;
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
}

impl Core {
    /// Writes all of `placed`, which is sorted by address and disjoint, durably.
    pub(super) fn write_placed(&self, placed: &[Placed], purpose: SyncPurpose) -> Result<()> {
        if !placed.is_empty() {
            self.stamping.check()?;
        }
        let threads = self.options.destage_threads.clamp(1, 1 + placed.len() / MIN_PER_THREAD);
        if threads == 1 {
            self.write_run(placed, purpose, None)?;
        } else {
            self.write_side_by_side(placed, threads, purpose)?;
        }
        self.sync_pvs(placed, purpose)
    }

    /// Writes on several threads while another thread syncs repeatedly. So the last sync has little
    /// left to do.
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
            // If a thread can't be started, the work continues without it. The sync that counts
            // comes last, in the caller.
            let mut workers: Vec<_> = thread().spawn_scoped(scope, sync).into_iter().collect();
            let mut here = Ok(());
            for part in shares(placed, share) {
                let progress = progress.clone();
                let write = move || self.write_run(part, purpose, Some(&progress));
                match thread().spawn_scoped(scope, write) {
                    Ok(worker) => workers.push(worker),
                    Err(_) => here = here.and_then(|()| self.write_run(part, purpose, None)),
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
    fn write_run(
        &self,
        placed: &[Placed],
        purpose: SyncPurpose,
        progress: Option<&Sender<()>>,
    ) -> Result<()> {
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
                    self.write_out(&mut run, purpose)?;
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
                // A receiver that is gone has failed, and reports why itself.
                let _ = progress.send(());
            }
        }
        self.write_out(&mut run, purpose)
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

    fn write_out(&self, run: &mut Run, purpose: SyncPurpose) -> Result<()> {
        let Some(start) = run.start.take() else { return Ok(()) };
        let _cause = match purpose {
            SyncPurpose::Apply => Cause::Apply,
            _ if run.copied => Cause::Preserve,
            _ => Cause::NewSlot,
        }
        .begin();
        let pv = self.pvs.get(start.pv())?;
        let has_sums = self.sums.is_on();
        let range = start.offset()..start.offset() + run.bytes.len() as u64;
        // Readers find slots that are overwritten in place. Until the write has returned, and after
        // it has failed, data and sums do not match there.
        let _writing = has_sums.then(|| self.sums.writing(start.pv(), range));
        if has_sums && purpose == SyncPurpose::Apply {
            run.sums.forget(self, &pv, start.offset())?;
        }
        let failed = |e| pv.write_failed(format!("write to {} at byte {}", pv.path, start.offset()), e);
        if run.copied && run.bytes.len() >= MIN_PAST_CACHE {
            pv.disk.write_direct(&run.bytes, start.offset()).map_err(failed)?;
        } else {
            // What a slot in use has lost is not written over before the catalog knows of it. After
            // a crash, a filler could not be told from content.
            let kept: &[Range<usize>] = if purpose == SyncPurpose::Apply { &run.unstored } else { &[] };
            for part in between(run.bytes.len(), kept) {
                let mut at = start.offset() + part.start as u64;
                for piece in run.bytes[part].chunks(MAX_CACHED) {
                    pv.disk.write_at(piece, at).map_err(failed)?;
                    at += piece.len() as u64;
                }
            }
            kept.iter().for_each(|part| run.sums.doubt(part, start.offset()));
        }
        run.unstored.clear();
        if has_sums {
            run.sums.set(self, &pv, (start.offset(), &run.bytes), &run.lost)?;
        }
        let place = |at: usize| start.offset() + at as u64;
        let lost: Vec<_> = run.lost.drain(..).map(|part| place(part.start)..place(part.end)).collect();
        self.damage.written(start.pv(), place(0)..place(run.bytes.len()), &lost);
        self.positions.bytes.fetch_add(run.bytes.len() as u64, Ordering::Relaxed);
        run.bytes.clear();
        Ok(())
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
