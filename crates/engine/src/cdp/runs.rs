//! Shared segments: what a batch records of many branches, in one file with one sync.
//!
//! Each branch's part of a batch is a *run*: its records, sorted by (chunk, LSN), and an index of
//! them. A run has a number among the branch's segments, and is searched like one. Runs are
//! brought to segments of the branch's own in the background ([`super::sort`]), as the runs of a
//! log-structured merge tree are (O'Neil et al., 1996).
//!
//! A shared segment loses its name when no run in it counts any more. Only the opening of the pool
//! that made a shared segment appends to it, so nothing that was committed is ever overwritten.

use super::append::{Appended, Draft, Item, Records, Shelf, WAITING, put_payload};
use super::codec::Packer;
use super::record::SegmentHead;
use super::segment::{Sealed, SegmentFile};
use super::{CdpSettings, Compression, Encoding};
use crate::catalog::SegmentRecord;
use crate::codec::align_up;
use crate::disk::{Lane, OpenFiles, SyncPurpose};
use crate::error::{Error, Result};
use crate::pool::line::Branch;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Shared segments that may be there before the oldest is emptied.
const MAX_SEGMENTS: usize = 32;
/// Runs that may wait, as long as each branch may have [`LEAST_RUNS`]: each takes some 400 bytes of
/// memory.
const MAX_RUNS: u64 = 256 << 10;
const LEAST_RUNS: u64 = 8;

/// The shared segments of a pool.
#[derive(Default)]
pub(crate) struct SharedLog {
    state: Mutex<State>,
    /// The superblock says that there may be some.
    marked: AtomicBool,
    /// Branches that are recorded, as counted last.
    recorded: AtomicU64,
}

#[derive(Default)]
struct State {
    /// By number.
    segments: BTreeMap<u64, Shared>,
    /// The number of the next one.
    next: u64,
    /// The one that is appended to.
    open: Option<u64>,
}

/// What there is of shared segments.
pub(crate) struct Counts {
    pub(crate) segments: u64,
    pub(crate) runs: u64,
    pub(crate) bytes: u64,
}

struct Shared {
    file: SegmentFile,
    /// Runs in it that count,
    runs: u64,
    /// and of these the ones that can be brought elsewhere.
    waiting: u64,
    /// Bytes that count, up to the next block.
    end: u64,
}

impl SharedLog {
    /// At open: the file of a shared segment that the catalog knows.
    pub(crate) fn known(&self, head: SegmentHead, files: &OpenFiles) -> SegmentFile {
        match self.state.lock().segments.get(&head.seq) {
            Some(shared) => shared.file.clone(),
            None => SegmentFile::new(head, files.named(head.file_name())),
        }
    }

    /// At open: all runs are known. `marked`: the superblock says that there may be some.
    pub(crate) fn loaded(&self, marked: bool) {
        self.state.lock().open = None;
        self.marked.store(marked, Ordering::Relaxed);
    }

    /// Does the superblock say that there may be shared segments?
    pub(crate) fn is_marked(&self) -> bool {
        self.marked.load(Ordering::Relaxed)
    }

    /// So many branches are recorded.
    pub(crate) fn note_recorded(&self, branches: u64) {
        self.recorded.store(branches, Ordering::Relaxed);
    }

    /// What one of the branches that are recorded may have of what all of them may hold in memory,
    /// between `least` and `most`.
    pub(crate) fn portion(&self, all: u64, least: u64, most: u64) -> u64 {
        (all / self.recorded.load(Ordering::Relaxed).max(1)).clamp(least, most)
    }

    /// Runs of a branch that may wait, `most` if there are few branches.
    pub(crate) fn portion_of_runs(&self, most: u64) -> u64 {
        self.portion(MAX_RUNS, LEAST_RUNS.min(most), most)
    }

    pub(crate) fn mark(&self) {
        self.marked.store(true, Ordering::Relaxed);
    }

    /// A run that ends at byte `end` counts from now on.
    pub(crate) fn added(&self, file: &SegmentFile, end: u64) {
        let (number, state) = (file.head.seq, &mut *self.state.lock());
        let end = align_up(end, super::record::BLOCK_LEN as u64);
        let shared = state.segments.entry(number).or_insert_with(|| Shared {
            file: file.clone(),
            runs: 0,
            waiting: 0,
            end,
        });
        (shared.runs, shared.waiting) = (shared.runs + 1, shared.waiting + 1);
        shared.end = shared.end.max(end);
        state.next = state.next.max(number + 1);
        state.open = Some(number);
    }

    /// A number that was used once, whatever became of it.
    pub(crate) fn used(&self, number: u64) {
        let state = &mut *self.state.lock();
        state.next = state.next.max(number + 1);
    }

    /// A run is damaged, and stays where it is.
    pub(crate) fn stays(&self, run: &Sealed) {
        if let Some((number, _)) = run.run().filter(|_| run.stay())
            && let Some(shared) = self.state.lock().segments.get_mut(&number)
        {
            shared.waiting = shared.waiting.saturating_sub(1);
        }
    }

    /// These segments of a branch don't count any more: files that hold nothing else lose their
    /// names when nobody reads them.
    pub(crate) fn let_go(&self, gone: &[Arc<Sealed>]) {
        let state = &mut *self.state.lock();
        for segment in gone {
            let Some((number, _)) = segment.run() else {
                segment.file.remove_unused();
                continue;
            };
            let Some(shared) = state.segments.get_mut(&number) else { continue };
            shared.runs = shared.runs.saturating_sub(1);
            shared.waiting = shared.waiting.saturating_sub(u64::from(!segment.stays()));
            if shared.runs == 0 {
                shared.file.remove_unused();
                state.segments.remove(&number);
                state.open = state.open.filter(|open| *open != number);
            }
        }
    }

    /// Are there runs that can be brought elsewhere?
    pub(crate) fn any_wait(&self) -> bool {
        self.state.lock().segments.values().any(|shared| shared.waiting > 0)
    }

    /// Are there too many of them, or more than `most` bytes?
    pub(crate) fn is_crowded(&self, most: u64) -> bool {
        let state = self.state.lock();
        // What is damaged is not brought elsewhere, and the rest need not suffer for it.
        let waiting = || state.segments.iter().filter(|(_, shared)| shared.waiting > 0);
        let bytes: u64 = waiting().map(|(_, shared)| shared.end).sum();
        waiting().count() > MAX_SEGMENTS || bytes > most
    }

    pub(crate) fn counts(&self) -> Counts {
        let state = self.state.lock();
        let bytes = state.segments.values().map(|shared| shared.end).sum();
        let runs = state.segments.values().map(|shared| shared.runs).sum();
        Counts { segments: state.segments.len() as u64, runs, bytes }
    }

    /// The one that is appended to, and where; the number of the next one.
    fn end(&self) -> (Option<(SegmentFile, u64)>, u64) {
        let state = self.state.lock();
        let open = state.open.and_then(|number| state.segments.get(&number));
        (open.map(|shared| (shared.file.clone(), shared.end)), state.next)
    }
}

/// Writes the runs of a batch.
pub(crate) struct Runs {
    shelf: Shelf,
    lane: Lane,
    packers: Vec<(Compression, Packer)>,
    current: Option<Draft>,
    full: Vec<Draft>,
    next: u64,
    new_files: bool,
}

impl Runs {
    /// `shelf` is that of shared segments; `beside`: writes on a thread of its own.
    pub(crate) fn new(shared: &SharedLog, shelf: Shelf, beside: bool) -> Result<Runs> {
        let (open, next) = shared.end();
        let of = |(file, end): (SegmentFile, u64)| {
            let disk = file.open()?;
            Ok::<_, Error>(Draft::of((file, disk), SegmentRecord::empty(0, 0, end), Vec::new()))
        };
        let current = open.filter(|(_, end)| *end < shelf.limit).map(of).transpose()?;
        let lane = Lane::new(beside, WAITING);
        Ok(Runs { shelf, lane, packers: Vec::new(), current, full: Vec::new(), next, new_files: false })
    }

    /// Begins the run of a branch.
    pub(crate) fn writer(&mut self, branch: &Arc<Branch>, settings: CdpSettings) -> Result<RunWriter<'_>> {
        if let Some(mut full) = self.current.take_if(|draft| draft.len() >= self.shelf.limit) {
            full.end_runs(&mut self.lane)?;
            self.full.push(full);
        }
        let draft = match &mut self.current {
            Some(draft) => draft,
            none => {
                let created = self.shelf.create(self.next, 0)?;
                (self.next, self.new_files) = (self.next + 1, true);
                none.insert(Draft::new(created))
            }
        };
        draft.begin_run(branch.id);
        let compression = settings.compression;
        let known = self.packers.iter().position(|(of, _)| *of == compression);
        let known = match known {
            Some(known) => known,
            None => {
                self.packers.push((compression, Packer::new(compression)?));
                self.packers.len() - 1
            }
        };
        let packer = &mut self.packers[known].1;
        Ok(RunWriter { branch: branch.clone(), settings, draft, lane: &mut self.lane, packer })
    }

    /// Makes all of them durable.
    pub(crate) fn finish(mut self) -> Result<()> {
        if let Some(mut last) = self.current.take() {
            last.end_runs(&mut self.lane)?;
            self.full.push(last);
        }
        for draft in &mut self.full {
            draft.sync(&mut self.lane, SyncPurpose::CdpShared)?;
        }
        self.lane.join()?;
        if self.new_files {
            let failed = |e| Error::io("sync the data directory", e).lasting();
            self.shelf.dir.sync(SyncPurpose::Dir).map_err(failed)?;
        }
        Ok(())
    }
}

/// Writes one run.
pub(crate) struct RunWriter<'a> {
    branch: Arc<Branch>,
    settings: CdpSettings,
    draft: &'a mut Draft,
    lane: &'a mut Lane,
    packer: &'a mut Packer,
}

impl Records for RunWriter<'_> {
    fn encoding(&self) -> Encoding {
        self.settings.encoding
    }

    fn push(&mut self, item: &Item, old: &[u8], sum: &mut u32, new: &[u8]) -> Result<()> {
        let encoding = self.settings.encoding;
        let entry = item.entry((&self.branch, encoding), old, sum, new);
        let packer = &mut *self.packer;
        self.draft.push(self.lane, entry, item.epoch, |out| put_payload((encoding, packer), old, new, out))
    }
}

impl RunWriter<'_> {
    /// Ends the run, which counts once [`Runs::finish`] has made it durable and a commit says so.
    /// None when there is nothing in it.
    pub(crate) fn finish(self) -> Result<Option<Appended>> {
        let file = self.draft.file.clone();
        let record = self.draft.end_run(self.lane)?;
        Ok(record.map(|record| Appended::run(self.branch, file, record)))
    }
}
