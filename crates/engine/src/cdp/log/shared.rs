//! Shared segments: which there are, how many runs in each count, and which one is appended to.

use super::record::SegmentHead;
use super::segment::{LogFile, Sealed};
use crate::codec::align_up;
use crate::disk::OpenFiles;
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
    file: LogFile,
    /// Runs in it that count,
    runs: u64,
    /// and of these the ones that can be brought elsewhere.
    waiting: u64,
    /// Bytes that count, up to the next block.
    end: u64,
}

impl SharedLog {
    /// At open: the file of a shared segment that the catalog knows.
    pub(crate) fn known(&self, head: SegmentHead, files: &OpenFiles) -> LogFile {
        match self.state.lock().segments.get(&head.seq) {
            Some(shared) => shared.file.clone(),
            None => LogFile::new(head, files.named(head.file_name())),
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
    pub(crate) fn added(&self, file: &LogFile, end: u64) {
        let (number, state) = (file.head.seq, &mut *self.state.lock());
        let end = align_up(end, crate::cdp::log::record::BLOCK_LEN as u64);
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
    pub(crate) fn end(&self) -> (Option<(LogFile, u64)>, u64) {
        let state = self.state.lock();
        let open = state.open.and_then(|number| state.segments.get(&number));
        (open.map(|shared| (shared.file.clone(), shared.end)), state.next)
    }
}
