//! Sorting: runs of shared segments are moved to segments of their own branches.
//!
//! The copy of the runs is written and synced first. One commit then makes the copy count and
//! removes the runs. A crash before that commit leaves bytes behind the end of a segment, or a file
//! that the next opening removes. A shared segment keeps its name until no reader holds it. A run
//! with a damaged record stays where it is, so that the segment of its branch stays whole.

use crate::branch::Branch;
use crate::catalog::SegmentRecord;
use crate::cdp::log::record::{BLOCK_LEN, IndexEntry, SegmentHead};
use crate::cdp::log::segment::Sealed;
use crate::cdp::log::shared::SharedLog;
use crate::cdp::log::stretch::index_room;
use crate::cdp::write::append::{Appender, SegmentFactory, StagedSegments};
use crate::core::Core;
use crate::destage::Destager;
use crate::destage::state::BackgroundState;
use crate::disk::{Dir, SyncPurpose};
use crate::error::{Error, ErrorKind, Result, is_shortage};
use crate::fault::died;
use crate::ids::Epoch;
use crate::shortage::Task;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uuid::Uuid;

/// Number of branches whose runs one step, and so one commit, sorts. A step takes one part in
/// `BRANCH_PART` of the waiting branches if that is more: the more branches come with each batch,
/// the more of them wait.
const BRANCHES: usize = 32;
const BRANCH_PART: usize = 8;
/// Number of bytes of runs at which a step takes no further branch.
const BYTES: u64 = 16 << 20;
/// Number of runs at which a step takes no further branch. The rows of runs are scattered over
/// their table, and each may change a page of the catalog.
const ROWS: usize = 8192;
/// Number of threads that sync their segments side by side. A file system does that at the cost of
/// a few syncs.
const THREADS: usize = 8;
/// Number of runs from which a branch is sorted when there is nothing else to do.
const IDLE_RUNS: usize = 8;

/// Runs of one branch that lie next to each other in its log.
struct Neighbours {
    branch: Arc<Branch>,
    shelf: SegmentFactory,
    runs: Vec<(u64, Arc<Sealed>)>,
    /// The number of the new segment that gets the runs; none if the runs are added to the open
    /// segment.
    seq: Option<u64>,
    /// Whether the new segment is closed, because the open segment lies behind it.
    closes: bool,
}

/// Neighbours whose records are written to their new place, and not synced yet.
struct Sorted {
    of: Neighbours,
    appender: Appender,
}

/// A record as it is stored, with its epoch.
type Stored = (IndexEntry, Epoch, Vec<u8>);

impl Neighbours {
    /// Returns the first waiting runs of a branch.
    fn of(branch: &Arc<Branch>, shelf: SegmentFactory) -> Option<Neighbours> {
        let log = branch.cdp.log.read();
        let shelf = log.last_settings().map_or(shelf.clone(), |settings| shelf.fit(&settings));
        let SegmentFactory { limit, most, most_held, .. } = shelf;
        let first = *log.runs.first()?;
        let open = log.open.as_ref().map(|open| open.file.head.seq);
        let (mut runs, mut bytes, mut held, mut records) = (Vec::new(), 0, 0, 0);
        for (seq, run) in log.sealed.range(first..) {
            let parted = open.is_some_and(|open| (first..*seq).contains(&open));
            (bytes, records) = (bytes + run.record.bytes(), records + run.record.records);
            held += run.record.held();
            let full = !runs.is_empty() && (bytes > limit || held > most_held || records > most);
            if parted || full || !log.runs.contains(seq) {
                break;
            }
            runs.push((*seq, run.clone()));
        }
        // Runs behind a damaged open segment would be lost with it, so they go to a new segment.
        let whole = log.open.as_ref().is_some_and(|open| !open.incomplete);
        let follow = |open: u64| whole && open < first && log.sealed.range(open..first).next().is_none();
        let seq = if open.is_some_and(follow) { None } else { Some(first) };
        Some(Neighbours {
            branch: branch.clone(),
            shelf,
            runs,
            seq,
            closes: open.is_some_and(|open| open > first),
        })
    }

    /// The name of the file that is made for the runs, if one is.
    fn new_name(&self) -> Option<String> {
        let (pool, branch) = (Uuid::nil(), self.branch.id);
        self.seq.map(|seq| SegmentHead { pool, branch, seq, edition: 0 }.file_name())
    }

    fn records(&self) -> impl Iterator<Item = &SegmentRecord> {
        self.runs.iter().map(|(_, run)| &run.record)
    }

    fn bytes(&self) -> u64 {
        self.records().map(SegmentRecord::bytes).sum()
    }

    /// The most bytes that the runs take in their new place, together with what closing the segment
    /// takes.
    fn room(&self) -> u64 {
        let records: u64 = self.records().map(|record| record.records).sum();
        let known = self.branch.cdp.log.read().closing_room();
        self.bytes() + 2 * index_room(records) + known + 4 * BLOCK_LEN as u64
    }

    /// Writes the records of the runs, without a sync. None when the first run is damaged.
    fn write(mut self, shared: &SharedLog) -> Result<Option<Sorted>> {
        let SegmentFactory { limit, most, most_held, .. } = self.shelf;
        let mut appender = Appender::for_runs(&self.branch, self.shelf.clone(), self.seq)?;
        for n in 0..self.runs.len() {
            let stored = match stored(&self.runs[n].1) {
                Ok(stored) => stored,
                Err(error) if error.kind() == ErrorKind::Lost => {
                    let (seq, run) = &self.runs[n];
                    self.branch.cdp.log.write().runs.remove(seq);
                    shared.stays(run);
                    self.runs.truncate(n);
                    break;
                }
                Err(error) => return Err(error),
            };
            for (entry, epoch, payload) in stored {
                appender.put(entry, epoch, |_, out| {
                    out.extend_from_slice(&payload);
                    entry.compression
                })?;
            }
        }
        if self.runs.is_empty() {
            return Ok(None);
        }
        let (bytes, kept, records) = appender.current();
        let is_full = bytes >= limit || bytes + kept >= most_held || records >= most;
        if self.seq.is_some() && self.closes || is_full {
            appender.seal()?;
        }
        Ok(Some(Sorted { of: self, appender }))
    }
}

/// Returns all records of a run, verified, in the order in which they lie.
fn stored(run: &Sealed) -> Result<Vec<Stored>> {
    let mut entries = run.all_entries()?;
    entries.sort_unstable_by_key(|entry| entry.at);
    let (file, start) = (run.file.open()?, run.record.start);
    let end = run.record.index_at.unwrap_or(start);
    let mut bytes = vec![0; end.saturating_sub(start) as usize];
    file.disk.read_at(&mut bytes, start).map_err(|e| {
        let context = format!("read {}", run.file.head.file_name());
        let passes = is_shortage(&e);
        if passes { Error::io(context, e) } else { crate::cdp::log::codec::lost(format!("{context}: {e}")) }
    })?;
    let record = |entry: IndexEntry| {
        let at = u64::from(entry.at).checked_sub(start).and_then(|at| usize::try_from(at).ok());
        let bytes = at.and_then(|at| bytes.get(at..)).unwrap_or_default();
        let (epoch, payload) = file.stored(bytes, &entry)?;
        Ok((entry, epoch, payload.to_vec()))
    };
    entries.into_iter().map(record).collect()
}

impl Destager {
    /// Sorts the runs of some branches. Branches with many runs come first. Branches in the oldest
    /// shared segment are sorted when there are too many shared segments. With `idle`, branches
    /// with a few runs are sorted too. False when no branch is to be sorted.
    pub(crate) fn sort_runs(&self, state: &mut BackgroundState, idle: bool) -> Result<bool> {
        let chosen = self.to_sort(state, idle);
        if chosen.is_empty() {
            self.core.shortages.over(Task::Sort);
            return Ok(false);
        }
        self.core.check_usable()?;
        // Runs stay where they are until there is room for their copy.
        let mut room = 0;
        let fits = |of: &Neighbours| {
            let fits = self.core.space.try_reserve_log(of.room());
            room += if fits { of.room() } else { 0 };
            fits
        };
        let chosen: Vec<_> = chosen.into_iter().filter(fits).collect();
        if chosen.is_empty() {
            return Ok(false);
        }
        let made: Vec<_> = chosen.iter().filter_map(Neighbours::new_name).collect();
        let written = self.core.write_sorted(chosen);
        if written.is_err() {
            // No commit knows of these files.
            made.iter().for_each(|name| _ = self.core.dir.remove(name));
        }
        let sorted = written.and_then(|sorted| self.commit_sorted(state, sorted));
        self.core.space.adjust_log(-(room as i64));
        match sorted {
            Ok(()) => self.core.shortages.over(Task::Sort),
            Err(error) => return Err(self.failed(state, Task::Sort, error)),
        }
        Ok(true)
    }

    fn to_sort(&self, state: &BackgroundState, idle: bool) -> Vec<Neighbours> {
        if !self.core.shared.any_wait() {
            return Vec::new();
        }
        let most = self.core.waiting_runs();
        let least = if idle { IDLE_RUNS.min(most) } else { most };
        let crowded = self.core.shared.is_crowded(self.core.options.shared_segment_bytes);
        let (mut recorded, mut oldest, mut due) = (0, u64::MAX, Vec::new());
        for branch in self.core.names.read().branches.values() {
            let log = branch.cdp.log.read();
            recorded += u64::from(log.open.is_some() || !log.runs.is_empty());
            let first = log.runs.first().and_then(|seq| log.sealed.get(seq)?.run());
            let Some((number, _)) = first else { continue };
            // The recorder ahead has written behind the end of this log: a copy would overwrite its
            // records.
            if state.ahead.as_ref().is_some_and(|ahead| ahead.records(branch.id)) {
                continue;
            }
            oldest = oldest.min(number);
            if crowded || log.runs.len() >= least {
                due.push((std::cmp::Reverse(log.runs.len()), branch.id, number, branch.clone()));
            }
        }
        self.core.shared.note_recorded(recorded);
        due.retain(|(runs, _, number, _)| runs.0 >= least || *number == oldest);
        due.sort_unstable_by_key(|(runs, id, ..)| (*runs, *id));
        let branches = BRANCHES.max(due.len() / BRANCH_PART);
        let due = due.iter().take(branches);
        let due = due.filter_map(|(.., branch)| Neighbours::of(branch, self.core.shelf(branch.id)));
        let most_rows = self.core.catalog_room.versions(ROWS);
        let (mut bytes, mut rows) = (0, 0);
        due.take_while(|of| {
            let fits = bytes < BYTES && rows < most_rows;
            (bytes, rows) = (bytes + of.bytes(), rows + of.runs.len());
            fits
        })
        .collect()
    }

    fn commit_sorted(
        &self,
        state: &mut BackgroundState,
        done: Vec<(Neighbours, StagedSegments)>,
    ) -> Result<()> {
        if done.is_empty() {
            return Ok(());
        }
        let mut txn = self.core.catalog.begin()?;
        for (of, appended) in &done {
            let taken = of.runs.iter().filter_map(|(_, run)| run.run());
            taken.into_iter().try_for_each(|key| txn.remove_cdp_run(key))?;
            appended.store(&mut txn)?;
        }
        self.core.space.adjust_log(done.iter().map(|(_, appended)| appended.closing_room()).sum());
        self.commit_aside(state, txn, &[])?;
        for (of, appended) in done {
            // The new segment may have a number below those that compaction has tried.
            state.compacted.retain(|branch, tried| *branch != of.branch.id || *tried < of.runs[0].0);
            of.branch.cdp.change(|log| {
                of.runs.iter().for_each(|(seq, _)| drop(log.remove_sealed(*seq)));
                appended.show(log);
            });
            self.core.positions.sorted.fetch_add(of.runs.len() as u64, Ordering::Relaxed);
            let gone: Vec<_> = of.runs.into_iter().map(|(_, run)| run).collect();
            self.core.shared.let_go(&gone);
        }
        Ok(())
    }
}

impl Core {
    /// Writes the records of runs to their new place, durably. They count with the commit that
    /// follows.
    fn write_sorted(&self, chosen: Vec<Neighbours>) -> Result<Vec<(Neighbours, StagedSegments)>> {
        let _reading = self.readers.enter();
        let (mut done, mut new_names) = (Vec::new(), false);
        let mut chosen = chosen.into_iter();
        while chosen.len() > 0 {
            // Each has a file open until it is synced.
            let written = chosen.by_ref().take(BRANCHES).map(|of| of.write(&self.shared));
            let mut sorted: Vec<Sorted> = written.filter_map(Result::transpose).collect::<Result<_>>()?;
            sorted.iter_mut().for_each(|s| new_names |= s.appender.take_new_names());
            done.extend(self.sync_sorted(sorted)?);
        }
        if new_names {
            let failed = |e| Error::io("sync the data directory", e).lasting();
            self.dir.sync(SyncPurpose::Dir).map_err(failed)?;
        }
        Ok(done)
    }

    /// Syncs the segments, side by side where destage may borrow threads.
    fn sync_sorted(&self, sorted: Vec<Sorted>) -> Result<Vec<(Neighbours, StagedSegments)>> {
        let threads = if self.options.destage_threads > 1 { THREADS.min(sorted.len()) } else { 1 };
        let queue = Mutex::new(sorted);
        let work = || {
            let mut done = Vec::new();
            loop {
                let Some(next) = queue.lock().pop() else { return Ok(done) };
                done.extend(next.appender.finish()?.map(|appended| (next.of, appended)));
            }
        };
        std::thread::scope(|scope| {
            // No more threads may be available: this thread does the rest.
            let helper = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
            let helpers: Vec<_> = (1..threads).filter_map(helper).collect();
            let mut done = work();
            for helper in helpers {
                let more = helper.join().unwrap_or_else(|panic| Err(died("sort a history", &*panic)));
                done = done.and_then(|mut done| more.map(|more| (done.extend(more), done).1));
            }
            done
        })
    }
}

/// Sorts the first runs of a branch, without a pool. Returns the bytes promised for that, and by
/// how much more closing the open segment takes.
#[cfg(test)]
pub(crate) fn sort_one(branch: &Arc<Branch>, shelf: &SegmentFactory, shared: &SharedLog) -> (u64, i64) {
    let of = Neighbours::of(branch, shelf.clone()).unwrap();
    let room = of.room();
    let Sorted { of, appender } = of.write(shared).unwrap().unwrap();
    let appended = appender.finish().unwrap().unwrap();
    let closing = appended.closing_room();
    branch.cdp.change(|log| {
        of.runs.iter().for_each(|(seq, _)| drop(log.remove_sealed(*seq)));
        appended.show(log);
    });
    // The names of shared segments stay, so that only additions are seen.
    (room, closing)
}

#[cfg(test)]
mod tests {
    use crate::device::{BlockDevice, WriteOp};
    use crate::info::Progress;
    use crate::info::history::Moment;
    use crate::pool::Pool;
    use crate::settings::{AnchorPolicy, CdpSettings, Compression, PoolOptions};
    use crate::testing::Site;
    use bytes::Bytes;

    /// The recorder of the next batch and a sort would write behind the same end of the log.
    #[test]
    fn a_branch_that_is_recorded_ahead_is_not_sorted() {
        const SIZE: u64 = 1 << 20;
        let Site { dir, world, pool, .. } = Site::new(63).having("v", SIZE, 4096);
        drop(pool);
        let options = PoolOptions {
            own_histories: 0,
            waiting_runs: 1,
            destage_threads: 1,
            destage_start_percent: 0,
            batch_bytes: 256 << 10,
            recompress_history: false,
            ..PoolOptions::default()
        };
        let pool = Pool::open(dir, world, options).unwrap();
        let (compression, anchors) = (Compression::None, AnchorPolicy::Never);
        pool.set_cdp("v", Some(CdpSettings { compression, anchors, ..CdpSettings::default() })).unwrap();
        let volume = pool.open_volume("v", false).unwrap();
        let mut moments = Vec::new();
        let mut fill = |byte: u8, len: u64| {
            for at in (0..len).step_by(64 << 10) {
                let content = Bytes::from(vec![byte; len.min(64 << 10) as usize]);
                let mut op = [WriteOp::new(at, content)];
                volume.write(&mut op, true);
                op[0].result.clone().unwrap();
            }
            moments.push((pool.stats().sequenced_lsn, byte));
        };
        fill(1, SIZE);
        pool.drain().unwrap();
        while pool.maintain().unwrap() != Progress::Idle {}
        // A run, and then batches that are recorded in a segment of the branch's own.
        fill(2, 4096);
        pool.drain().unwrap();
        fill(3, SIZE);
        assert_eq!(pool.destage_step().unwrap(), Progress::Worked);
        let branch = pool.core.names.read().volume("v").unwrap().line.branch.clone();
        let waiting = || branch.cdp.log.read().runs.len();
        {
            let state = &mut *pool.destager.state.lock();
            let is_ahead = state.ahead.as_ref().is_some_and(|ahead| ahead.records(branch.id));
            assert!(is_ahead, "nothing is recorded ahead");
            assert_eq!(waiting(), 1);
            assert!(!pool.destager.sort_runs(state, false).unwrap() && waiting() == 1);
            // Without the recorder, the branch is sorted.
            state.ahead = None;
            assert!(pool.destager.sort_runs(state, false).unwrap() && waiting() == 0);
        }
        pool.drain().unwrap();
        for (lsn, byte) in moments {
            let view = pool.open_moment("v", &Moment::Lsn(lsn)).unwrap();
            let mut found = [0; 4096];
            view.read(0, &mut found).unwrap();
            assert!(found.iter().all(|b| *b == byte), "at LSN {lsn}: {}", found[0]);
        }
    }
}
