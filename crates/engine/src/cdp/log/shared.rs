//! Shared segments: the list of them, how many runs in each count, and the one that runs are
//! appended to.

use super::record::SegmentHead;
use super::segment::{LogFile, Sealed};
use crate::codec::align_up;
use crate::disk::OpenFiles;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of shared segments above which the oldest is emptied.
const MAX_SEGMENTS: usize = 32;

/// The number of runs that may wait, as long as each branch may have [`LEAST_RUNS`]. Each takes
/// some 400 bytes of memory.
const MAX_RUNS: u64 = 256 << 10;

const LEAST_RUNS: u64 = 8;

/// The shared segments of a pool. All branches share them.
#[derive(Default)]
pub(crate) struct SharedLog {
    state: Mutex<State>,
    /// The number of recorded branches at the last count.
    recorded: AtomicU64,
}

#[derive(Default)]
struct State {
    /// The shared segments, by number.
    segments: BTreeMap<u64, Shared>,
    /// The number of the next shared segment.
    next: u64,
    /// The number of the shared segment that runs are appended to.
    open: Option<u64>,
}

/// The totals of all shared segments.
pub(crate) struct Counts {
    pub(crate) segments: u64,
    pub(crate) runs: u64,
    pub(crate) bytes: u64,
}

struct Shared {
    file: LogFile,
    /// The number of runs in the segment that count.
    runs: u64,
    /// The number of runs in the segment that can be sorted into segments of their branches.
    waiting: u64,
    /// The end of the bytes that count, rounded up to the next block.
    end: u64,
}

impl SharedLog {
    /// Returns the file of a shared segment that the catalog knows. It is called at open.
    pub(crate) fn known(&self, head: SegmentHead, files: &OpenFiles) -> LogFile {
        match self.state.lock().segments.get(&head.seq) {
            Some(shared) => shared.file.clone(),
            None => LogFile::new(head, files.named(head.file_name())),
        }
    }

    /// Notes at open that all runs are known.
    pub(crate) fn loaded(&self) {
        self.state.lock().open = None;
    }

    /// Notes the number of branches that are recorded.
    pub(crate) fn note_recorded(&self, branches: u64) {
        self.recorded.store(branches, Ordering::Relaxed);
    }

    /// Returns the share of one recorded branch in `all`, which all recorded branches may hold in
    /// memory together. The share is between `least` and `most`.
    pub(crate) fn portion(&self, all: u64, least: u64, most: u64) -> u64 {
        (all / self.recorded.load(Ordering::Relaxed).max(1)).clamp(least, most)
    }

    /// Returns the number of runs of a branch that may wait. It is `most` if there are few
    /// branches.
    pub(crate) fn portion_of_runs(&self, most: u64) -> u64 {
        self.portion(MAX_RUNS, LEAST_RUNS.min(most), most)
    }

    /// Counts a run that ends at byte `end`, from now on.
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

    /// Notes a number that was used once, even if its segment is gone. It is not used again.
    pub(crate) fn used(&self, number: u64) {
        let state = &mut *self.state.lock();
        state.next = state.next.max(number + 1);
    }

    /// Notes that a run is damaged and stays where it is.
    pub(crate) fn stays(&self, run: &Sealed) {
        if let Some((number, _)) = run.run().filter(|_| run.stay())
            && let Some(shared) = self.state.lock().segments.get_mut(&number)
        {
            shared.waiting = shared.waiting.saturating_sub(1);
        }
    }

    /// Stops counting these segments of a branch. A file that contains nothing else loses its name
    /// when it has no reader.
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

    /// Returns whether there are runs that can be sorted into segments of their branches.
    pub(crate) fn any_wait(&self) -> bool {
        self.state.lock().segments.values().any(|shared| shared.waiting > 0)
    }

    /// Returns whether too many shared segments have such runs, or these segments have more than
    /// `most` bytes.
    pub(crate) fn is_crowded(&self, most: u64) -> bool {
        let state = self.state.lock();
        // Segments in which all runs are damaged do not count. Damaged runs are not moved, and
        // other runs need not suffer for them.
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

    /// Returns the shared segment that runs are appended to, and its end in bytes; and the number
    /// of the next segment.
    pub(crate) fn end(&self) -> (Option<(LogFile, u64)>, u64) {
        let state = self.state.lock();
        let open = state.open.and_then(|number| state.segments.get(&number));
        (open.map(|shared| (shared.file.clone(), shared.end)), state.next)
    }
}
