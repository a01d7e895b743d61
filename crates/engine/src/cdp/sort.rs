//! Sorting apart: runs of shared segments are brought to segments of their branches' own.
//!
//! What is brought over is written and synced first; one commit makes it count and takes the runs
//! away. A crash before it leaves what nobody knows, behind the end of a segment or in a file that
//! goes at the next opening. Who reads a run goes on: the shared segment keeps its name until then.
//! A run with a damaged record stays where it is, so that nothing else is lost with it.

use super::append::{Appended, Appender, MAX_RECORDS, Shelf};
use super::record::{BLOCK_LEN, Entry, SHARED};
use super::room::index_room;
use super::segment::Sealed;
use crate::catalog::SegmentRecord;
use crate::disk::{Dir, SyncPurpose};
use crate::error::{Error, ErrorKind, Result};
use crate::fault::died;
use crate::pool::line::Branch;
use crate::pool::shortage::Task;
use crate::pool::{Maintenance, Pool};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Branches whose runs are brought over in one step, with one commit.
const BRANCHES: usize = 32;
/// Bytes of runs after which a step takes no further branch.
const BYTES: u64 = 32 << 20;
/// Threads that sync their segments side by side: a file system does that for the price of few.
const THREADS: usize = 8;
/// When nothing else is to be done, branches with so many runs are sorted, too.
const IDLE_RUNS: usize = 8;

/// Runs of one branch that lie next to each other in its log.
struct Neighbours {
    branch: Arc<Branch>,
    runs: Vec<(u64, Arc<Sealed>)>,
    /// They go to a new segment with this number; none: to the end of the open one.
    seq: Option<u64>,
    /// The new segment is followed by another one that is open.
    closes: bool,
}

/// The same, when what is in them is on its way to its place.
struct Sorted {
    of: Neighbours,
    appender: Appender,
}

/// A record as it is stored, with its epoch.
type Stored = (Entry, u32, Vec<u8>);

impl Neighbours {
    /// The first runs of a branch that wait.
    fn of(branch: &Arc<Branch>, limit: u64) -> Option<Neighbours> {
        let log = branch.cdp.log.read();
        let first = *log.runs.first()?;
        let open = log.open.as_ref().map(|open| open.file.head.seq);
        let (mut runs, mut bytes, mut records) = (Vec::new(), 0, 0);
        for (seq, run) in log.sealed.range(first..) {
            let parted = open.is_some_and(|open| (first..*seq).contains(&open));
            (bytes, records) = (bytes + run.record.bytes(), records + run.record.records);
            let full = !runs.is_empty() && (bytes > limit || records > MAX_RECORDS);
            if parted || full || !log.runs.contains(seq) {
                break;
            }
            runs.push((*seq, run.clone()));
        }
        let follow = |open: u64| open < first && log.sealed.range(open..first).next().is_none();
        let seq = if open.is_some_and(follow) { None } else { Some(first) };
        Some(Neighbours { branch: branch.clone(), runs, seq, closes: open.is_some() })
    }

    fn records(&self) -> impl Iterator<Item = &SegmentRecord> {
        self.runs.iter().map(|(_, run)| &run.record)
    }

    fn bytes(&self) -> u64 {
        self.records().map(SegmentRecord::bytes).sum()
    }

    /// The most bytes that they take in their new place, with what closing it takes.
    fn room(&self) -> u64 {
        let records: u64 = self.records().map(|record| record.records).sum();
        let known = self.branch.cdp.log.read().closing_room();
        self.bytes() + 2 * index_room(records) + known + 4 * BLOCK_LEN as u64
    }

    /// Writes what is in them; not synced yet. None when that is nothing: the first of them is damaged.
    fn write(mut self, shelf: Shelf) -> Result<Option<Sorted>> {
        let (limit, most) = (shelf.limit, shelf.most);
        let mut appender = Appender::for_runs(&self.branch, shelf, self.seq)?;
        for n in 0..self.runs.len() {
            let stored = match stored(&self.runs[n].1) {
                Ok(stored) => stored,
                Err(error) if error.kind() == ErrorKind::Lost => {
                    self.branch.cdp.log.write().runs.remove(&self.runs[n].0);
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
        let (bytes, records) = appender.current();
        if self.seq.is_some() && self.closes || bytes >= limit || records >= most {
            appender.seal()?;
        }
        Ok(Some(Sorted { of: self, appender }))
    }
}

/// All records of a run, verified, in the order in which they lie.
fn stored(run: &Sealed) -> Result<Vec<Stored>> {
    let mut entries = run.all_entries()?;
    entries.sort_unstable_by_key(|entry| entry.at);
    let (file, start) = (run.file.open()?, run.record.start);
    let mut bytes = vec![0; run.record.index_at.saturating_sub(start) as usize];
    let failed = |e| super::codec::lost(format!("read {}: {e}", run.file.head.file_name()));
    file.disk.read_at(&mut bytes, start).map_err(failed)?;
    let record = |entry: Entry| {
        let at = u64::from(entry.at).checked_sub(start).and_then(|at| usize::try_from(at).ok());
        let bytes = at.and_then(|at| bytes.get(at..)).unwrap_or_default();
        let (epoch, payload) = file.stored(bytes, &entry)?;
        Ok((entry, epoch, payload.to_vec()))
    };
    entries.into_iter().map(record).collect()
}

impl Pool {
    /// Brings the runs of some branches to segments of their own: of those that have many, and of
    /// those in the oldest shared segment when there are too many of these; with `idle` also of
    /// those that have some. False when there are none.
    pub(crate) fn sort_runs(&self, m: &mut Maintenance, idle: bool) -> Result<bool> {
        let chosen = self.to_sort(idle);
        if chosen.is_empty() {
            return Ok(false);
        }
        self.check_usable()?;
        let room: u64 = chosen.iter().map(Neighbours::room).sum();
        // They are read where they are until there is room.
        if !self.space.try_reserve_log(room) {
            return Ok(false);
        }
        let sorted = self.write_sorted(m, chosen);
        self.space.adjust_log(-(room as i64));
        sorted.map(|()| true).map_err(|e| self.failed(m, Task::Upkeep, e))
    }

    fn to_sort(&self, idle: bool) -> Vec<Neighbours> {
        let least = if idle { IDLE_RUNS.min(self.options.waiting_runs) } else { self.options.waiting_runs };
        let oldest = self.shared.crowded();
        let mut recorded = 0;
        let is_due = |branch: &&Arc<Branch>| {
            let log = branch.cdp.log.read();
            recorded += u64::from(log.open.is_some() || !log.runs.is_empty());
            let first = log.runs.first().and_then(|seq| log.sealed.get(seq)?.run());
            first.is_some_and(|(number, _)| {
                log.runs.len() >= least || oldest.is_some_and(|oldest| number <= oldest)
            })
        };
        let due: Vec<_> = self.names.read().branches.values().filter(is_due).cloned().collect();
        self.shared.note_recorded(recorded);
        let (limit, mut bytes) = (self.shelf(SHARED).limit, 0);
        let due = due.iter().take(BRANCHES).filter_map(|branch| Neighbours::of(branch, limit));
        due.take_while(|of| {
            let before = bytes;
            bytes += of.bytes();
            before < BYTES
        })
        .collect()
    }

    fn write_sorted(&self, m: &mut Maintenance, chosen: Vec<Neighbours>) -> Result<()> {
        let _reading = self.readers.enter();
        let mut sorted = Vec::new();
        for of in chosen {
            let shelf = self.shelf(of.branch.id);
            sorted.extend(of.write(shelf)?);
        }
        let mut new_names = false;
        sorted.iter_mut().for_each(|s| new_names |= s.appender.take_new_names());
        let done = self.sync_sorted(sorted)?;
        if new_names {
            let failed = |e| Error::io("sync the data directory", e).lasting();
            self.dir.sync(SyncPurpose::Dir).map_err(failed)?;
        }
        let mut txn = self.catalog.begin()?;
        for (of, appended) in &done {
            let taken = of.runs.iter().filter_map(|(_, run)| run.run());
            taken.into_iter().try_for_each(|key| txn.remove_cdp_run(key))?;
            appended.store(&mut txn)?;
        }
        self.space.adjust_log(done.iter().map(|(_, appended)| appended.closing_room()).sum());
        self.commit_aside(m, txn, &[])?;
        for (of, appended) in done {
            // There is something to be compressed among what was tried before.
            m.compacted.retain(|branch, tried| *branch != of.branch.id || *tried < of.runs[0].0);
            of.branch.cdp.change(|log| {
                of.runs.iter().for_each(|(seq, _)| drop(log.remove_sealed(*seq)));
                appended.show(log);
            });
            self.positions.sorted.fetch_add(of.runs.len() as u64, Ordering::Relaxed);
            let gone: Vec<_> = of.runs.into_iter().map(|(_, run)| run).collect();
            self.shared.let_go(&gone);
        }
        Ok(())
    }

    /// Makes them durable, side by side where destage may borrow threads.
    fn sync_sorted(&self, sorted: Vec<Sorted>) -> Result<Vec<(Neighbours, Appended)>> {
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
            // There may be as many threads as there can be: this one does what is left.
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
