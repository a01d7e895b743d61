//! Records a batch for continuous data protection. Each pair of a journal record and a chunk
//! becomes one record of the history. The records are made from what is in place before the batch,
//! and its preserve phase commits them.
//!
//! Most of a batch is recorded while the last writes of the batch before it are on their way. That
//! covers all chunks that those writes do not touch. None of these records counts before the
//! commit. Dropped records leave what a crash would have left.

use super::batch::{Batch, BatchItem, Below, PartSource};
use super::gather::{Gather, RecordPart};
use super::state::BackgroundState;
use crate::branch::{Branch, View};
use crate::catalog::Version;
use crate::catalog::features::{KEPT, SHARED_SEGMENTS};
use crate::catalog::page::MapPage;
use crate::cdp::log::record::{Replaced, SHARED};
use crate::cdp::log::{Applying, Patch};
use crate::cdp::write::append::{
    Appender, LEAST_RECORDS, MAX_RECORDS, MAX_SEGMENT, RecordItem as CdpItem, Records, SegmentFactory,
    StagedSegments,
};
use crate::cdp::write::runs::{RunWriter, Runs};
use crate::codec::crc32c;
use crate::core::Core;
use crate::destage::Destager;
use crate::error::{Result, corrupt};
use crate::ids::{BranchId, Chunk, Epoch, Stamp};
use crate::settings::CdpSettings;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Number of chunk sums kept for one branch, and for all branches together, at some 20 bytes each.
/// A branch may always keep [`LEAST_SUMS`].
const MAX_SUMS: u64 = 1 << 18;
const ALL_SUMS: u64 = 1 << 22;
const LEAST_SUMS: u64 = 1 << 10;

/// Number of records in the open segments of all branches together, at some 100 bytes of memory
/// each. The open segment of a branch may always have [`LEAST_RECORDS`].
const ALL_ENTRIES: u64 = 1 << 20;

/// Number of branches that are recorded ahead. Each takes a thread and a buffer.
const MAX_AHEAD: usize = 4;

/// A branch gets segments of its own for a batch that writes at least a segment divided by this
/// number to it. One more sync is cheap beside writing that much twice.
const OWN_PART: u64 = 8;

/// The content of a chunk between two of its items.
#[derive(Default)]
struct Halfway {
    content: Vec<u8>,
    /// The byte of the chunk that `content` begins with.
    first: u32,
    /// The sum of the whole chunk.
    sum: u32,
    /// A part of the content was lost, so the sum tells nothing.
    is_lost: bool,
}

/// Makes the records of one branch's part of a batch, for segments of its own or a run.
pub(super) struct Recorder<A = Appender> {
    branch: Arc<Branch>,
    epoch: Epoch,
    appender: A,
    /// Sums of chunks, as of what is recorded. They belong to the branch's log, which gets them
    /// back when everything is recorded. A recorder that is dropped takes them with it.
    sums: HashMap<Chunk, u32>,
    /// The items of each chunk that is not recorded yet, in the batch's order.
    left: Vec<Range<usize>>,
    /// Number of bytes that are on disk.
    bytes: u64,
    /// Chunks whose records have no payload, because the newest anchor shows what they replace.
    kept: Vec<Chunk>,
    /// Number of bytes that records without a payload are about.
    bare: u64,
}

/// The records of a batch, on disk.
#[derive(Default)]
pub(super) struct LoggedBatch {
    pub(super) segments: Vec<StagedSegments>,
    /// Number of bytes that records without a payload are about.
    pub(super) bare: u64,
}

impl LoggedBatch {
    /// Returns the features whose formats the records use. The commit that makes the records count
    /// enables them.
    pub(super) fn features(&self) -> u64 {
        let shared = if self.segments.iter().any(StagedSegments::is_run) { SHARED_SEGMENTS } else { 0 };
        shared | if self.bare > 0 { KEPT } else { 0 }
    }
}

impl<A: Records> Recorder<A> {
    /// Records the remaining chunks for which `now` is true.
    fn record(&mut self, core: &Core, batch: &Batch, now: impl Fn(Chunk) -> bool) -> Result<()> {
        let is_now = |items: &Range<usize>| now(batch.items[items.start].chunk);
        let (now, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.left).into_iter().partition(is_now);
        self.left = left;
        let Recorder { branch, epoch, appender, sums, .. } = self;
        let mut after = Vec::with_capacity(now.len());
        let mut halfway = Halfway::default();
        let gather = Gather::new(core, batch, branch, (*epoch, appender.encoding()), sums, &now);
        gather.for_each(|piece| record_piece(appender, batch, *epoch, piece, &mut halfway, &mut after))?;
        for (chunk, sum) in after {
            match sum {
                After::Sum(sum) => drop(sums.insert(chunk, sum)),
                After::Lost => drop(sums.remove(&chunk)),
                After::Bare(replaced) => {
                    sums.remove(&chunk);
                    self.bare += branch.chunk_size();
                    self.kept.extend((replaced == Replaced::Anchor).then_some(chunk));
                }
            }
        }
        Ok(())
    }
}

impl Recorder {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn branch_id(&self) -> BranchId {
        self.branch.id
    }

    /// Makes the records durable. None when there are none.
    fn finish(self) -> Result<Option<StagedSegments>> {
        let appended = self.appender.finish()?;
        self.branch.cdp.log.write().sums = self.sums;
        Ok(appended)
    }
}

impl Recorder<RunWriter<'_>> {
    /// Ends the run. None when the run is empty.
    fn finish(self) -> Result<Option<StagedSegments>> {
        let appended = self.appender.finish()?;
        self.branch.cdp.log.write().sums = self.sums;
        Ok(appended)
    }
}

/// What is known of a chunk after its last record.
enum After {
    Sum(u32),
    /// A part of the content was lost.
    Lost,
    /// The record has no payload, and the sum is not known.
    Bare(Replaced),
}

/// Records a piece of a batch. `after` gets the chunks whose last item it has.
fn record_piece(
    appender: &mut impl Records,
    batch: &Batch,
    epoch: Epoch,
    piece: &mut RecordPart,
    halfway: &mut Halfway,
    after: &mut Vec<(Chunk, After)>,
) -> Result<()> {
    let RecordPart { chunks, old, new } = piece;
    let (all_old, mut new) = (old.bytes(), &*new.bytes());
    let description = |item: &BatchItem| {
        let Stamp { lsn, time } = batch.stamps.get(item.order as usize).copied().unwrap_or_default();
        CdpItem { lsn, time, chunk: item.chunk, epoch, start: item.start as usize, end: item.end as usize }
    };
    for part in chunks.iter() {
        let items = &batch.items[part.items.clone()];
        if let Some(replaced) = part.bare {
            items.iter().try_for_each(|item| appender.push_bare(&description(item), replaced))?;
            after.extend(items.first().map(|item| (item.chunk, After::Bare(replaced))));
            continue;
        }
        let (content, first, mut sum) = match &part.before {
            Some(before) => {
                let content = &mut all_old[before.old.clone()];
                let sum = before.sum.unwrap_or_else(|| crc32c(content));
                (content, before.first, sum)
            }
            None => (&mut halfway.content[..], halfway.first, halfway.sum),
        };
        for (n, item) in items.iter().enumerate() {
            let what = description(item);
            let (start, end) = (what.start, what.end);
            let (written, rest) = new.split_at(end - start);
            new = rest;
            let replaced = &mut content[start - first as usize..end - first as usize];
            appender.push(&what, replaced, &mut sum, written)?;
            if n + 1 < items.len() || !part.ends {
                replaced.copy_from_slice(written);
            }
        }
        let is_lost = part.is_new_lost || part.before.is_none() && halfway.is_lost;
        if part.ends {
            let known = if is_lost { After::Lost } else { After::Sum(sum) };
            after.extend(items.first().map(|item| (item.chunk, known)));
        } else {
            if let Some(before) = &part.before {
                halfway.content.clear();
                halfway.content.extend_from_slice(&all_old[before.old.clone()]);
            }
            (halfway.first, halfway.sum, halfway.is_lost) = (first, sum, is_lost);
        }
    }
    Ok(())
}

/// A branch whose part of a batch is to be recorded.
struct Recordable {
    branch: Arc<Branch>,
    /// The branch's index in the batch.
    index: u32,
    settings: CdpSettings,
    /// Number of bytes that the batch writes to the branch.
    bytes: u64,
}

/// Begins to record a branch's part of a batch.
fn recorder<A>(batch: &Batch, index: u32, appender: A, sums: HashMap<Chunk, u32>) -> Recorder<A> {
    let (branch, items) = (&batch.branches[index as usize], batch.items_of(index));
    let mut at = items.start;
    let chunks = batch.items[items].chunk_by(|a, b| a.chunk == b.chunk);
    let left = chunks.map(|of_chunk| {
        let start = at;
        at += of_chunk.len();
        start..at
    });
    let left = left.collect();
    let epoch = batch.epochs[index as usize];
    let (branch, kept) = (branch.clone(), Vec::new());
    Recorder { branch, epoch, appender, sums, left, bytes: 0, kept, bare: 0 }
}

/// Fails unless a batch's plan keeps what the records of a branch need. `versions` are what the
/// plan keeps for snapshots, and `kept` are chunks whose records have no payload.
fn check_kept(versions: &[Version], branch: BranchId, kept: &[Chunk]) -> Result<()> {
    if kept.is_empty() {
        return Ok(());
    }
    let of_branch = versions.iter().filter(|version| version.key.branch == branch);
    let versions: HashSet<Chunk> = of_branch.map(|version| version.key.chunk).collect();
    match kept.iter().find(|chunk| !versions.contains(chunk)) {
        None => Ok(()),
        Some(chunk) => Err(corrupt(format!(
            "record chunk {chunk} of branch {branch}: the batch does not keep what it replaces for its anchor"
        ))),
    }
}

impl Core {
    /// The factory that makes the segments of a branch's log.
    pub(crate) fn shelf(&self, branch: BranchId) -> SegmentFactory {
        let limit = self.config.segment_size.min(MAX_SEGMENT);
        let most = self.shared.portion(ALL_ENTRIES, LEAST_RECORDS, MAX_RECORDS);
        SegmentFactory {
            dir: self.dir.clone(),
            files: self.files.clone(),
            pool: self.uuid,
            branch,
            limit,
            most,
            most_held: u64::MAX,
        }
    }

    /// Writes the CDP records of a batch, durably. They count with the commit that follows. `begun`
    /// are the recorders that [`crate::core::Core::record_ahead`] has begun for it.
    /// `versions` are what the batch's plan keeps for snapshots.
    pub(super) fn log_batch(
        &self,
        batch: &Batch,
        versions: &[Version],
        mut begun: Vec<Recorder>,
    ) -> Result<LoggedBatch> {
        let mut done = LoggedBatch::default();
        if batch.stamps.is_empty() {
            return Ok(done);
        }
        let all = &mut done.segments;
        let _reading = self.readers.enter();
        let recorded = self.recordable(batch);
        let own = self.own_segments(&recorded);
        let mut runs = None;
        for Recordable { branch, index, settings, .. } in recorded {
            let known = begun.iter().position(|recorder| recorder.branch.id == branch.id);
            // A branch that was recorded ahead continues in segments of its own, since it may have
            // made files.
            let is_own = known.is_some() || own.contains(&index);
            // Retention may have changed the log since then.
            let known = known.map(|at| begun.swap_remove(at)).filter(|r| r.appender.continues_log());
            if is_own {
                let recorder = known.map_or_else(|| self.own_recorder(batch, index, settings), Ok);
                let mut recorder = recorder?;
                recorder.record(self, batch, |_| true)?;
                check_kept(versions, branch.id, &recorder.kept)?;
                done.bare += recorder.bare;
                all.extend(recorder.finish()?);
                continue;
            }
            let runs = match &mut runs {
                Some(runs) => runs,
                none => none.insert(Runs::new(&self.shared, self.shelf(SHARED), self.writes_beside())?),
            };
            let sums = self.sums(&branch);
            let mut recorder = recorder(batch, index, runs.writer(&branch, settings)?, sums);
            recorder.record(self, batch, |_| true)?;
            check_kept(versions, branch.id, &recorder.kept)?;
            done.bare += recorder.bare;
            all.extend(recorder.finish()?);
        }
        runs.map_or(Ok(()), Runs::finish)?;
        Ok(done)
    }

    fn writes_beside(&self) -> bool {
        self.options.destage_threads > 1
    }

    /// The branches of a batch whose histories are kept.
    fn recordable(&self, batch: &Batch) -> Vec<Recordable> {
        let of = |(branch, index): (&Arc<Branch>, u32)| {
            let items = &batch.items[batch.items_of(index)];
            let settings = branch.cdp.log.read().settings.filter(|_| !items.is_empty())?;
            let bytes = items.iter().map(|item| u64::from(item.end - item.start)).sum();
            Some(Recordable { branch: branch.clone(), index, settings, bytes })
        };
        batch.branches.iter().zip(0..).filter_map(of).collect()
    }

    /// Chooses the branches that are recorded in segments of their own. These are the few with the
    /// most to record, all with much to record, and all with many waiting runs. The others share a
    /// segment and its sync.
    fn own_segments(&self, recorded: &[Recordable]) -> BTreeSet<u32> {
        let mut by_size: Vec<&Recordable> = recorded.iter().collect();
        by_size.sort_by_key(|recordable| std::cmp::Reverse(recordable.bytes));
        let much = self.shelf(SHARED).limit / OWN_PART;
        let most = 2 * self.waiting_runs();
        let is_own = |(n, of): &(usize, &Recordable)| {
            let waiting = of.branch.cdp.log.read().runs.len();
            let leads = *n < self.options.own_histories && waiting == 0;
            leads || of.bytes >= much || waiting >= most
        };
        by_size.into_iter().enumerate().filter(is_own).map(|(_, of)| of.index).collect()
    }

    /// Records as much as possible of a batch while the batch `before` is moved to its place: the
    /// chunks that `before` does not touch. Slots that references name have their sums only when
    /// the batch is planned, so they are not read before.
    pub(super) fn record_ahead(&self, batch: &Batch, before: &Batch) -> Result<Vec<Recorder>> {
        let _reading = self.readers.enter();
        let mut begun = Vec::new();
        let recorded = self.recordable(batch);
        let own = self.own_segments(&recorded);
        for Recordable { branch, index, settings, .. } in recorded {
            if !own.contains(&index) {
                continue;
            }
            if begun.len() == MAX_AHEAD {
                break;
            }
            let mut recorder = self.own_recorder(batch, index, settings)?;
            let touched = before.branches.iter().position(|b| b.id == branch.id);
            let touched = touched.map_or(0..0, |index| before.items_of(index as u32));
            let touched = &before.items[touched];
            let items = &batch.items[batch.items_of(index)];
            let is_referred = |chunk: Chunk| {
                let of_chunk = &items[items.partition_point(|item| item.chunk < chunk)..];
                let mut of_chunk = of_chunk.iter().take_while(|item| item.chunk == chunk);
                of_chunk.any(|item| matches!(item.source, PartSource::Slot(_)))
            };
            recorder.record(self, batch, |chunk| {
                touched.binary_search_by_key(&chunk, |i| i.chunk).is_err() && !is_referred(chunk)
            })?;
            begun.push(recorder);
        }
        for recorder in &mut begun {
            recorder.bytes = recorder.appender.settle()?;
        }
        Ok(begun)
    }

    /// Begins to record a branch's part of a batch in segments of its own.
    fn own_recorder(&self, batch: &Batch, index: u32, settings: CdpSettings) -> Result<Recorder> {
        let branch = &batch.branches[index as usize];
        let shelf = self.shelf(branch.id).fit(&settings);
        let appender = Appender::new(branch, shelf, settings, self.writes_beside())?;
        Ok(recorder(batch, index, appender, self.sums(branch)))
    }

    /// Takes the known sums from a branch's log.
    fn sums(&self, branch: &Branch) -> HashMap<Chunk, u32> {
        let most = self.shared.portion(ALL_SUMS, LEAST_SUMS, MAX_SUMS);
        let sums = std::mem::take(&mut branch.cdp.log.write().sums);
        if sums.len() as u64 > most { HashMap::new() } else { sums }
    }

    /// Returns what a chunk holds before the batch, and whether a part of it could not be read.
    /// What an image or a moment has there was materialized as a whole before anything else. That
    /// record changes nothing, and holds what was there.
    pub(super) fn content_before(&self, head: &View, items: &[BatchItem]) -> Result<(Vec<u8>, bool)> {
        let (branch, chunk) = (&head.branch, items[0].chunk);
        let (number, at) = MapPage::locate(chunk);
        let external = branch.has_external_base && branch.has_base();
        if external
            && self.map.load(head, number)?.get(at).is_none()
            && let Below::External(external) = self.find_below(head, chunk)?
        {
            let mut content = vec![0; branch.chunk_size() as usize];
            let shown =
                external.shown().saturating_sub(chunk.start(branch.chunk_log2)).min(branch.chunk_size());
            if shown == 0 {
                return Ok((content, false));
            }
            if let Some(BatchItem { start: 0, end, source: PartSource::Journal(file, position), .. }) =
                items.first()
                && u64::from(*end) >= shown
            {
                self.read_journal(*file, *position, &mut content[..*end as usize])?;
                return Ok((content, false));
            }
        }
        self.placed_parts(branch, chunk)
    }
}

impl Destager {
    /// The ranges of `branch` whose slots a batch is about to overwrite in place.
    pub(super) fn applying(&self, state: &BackgroundState, batch: &Batch, branch: &Branch) -> Applying {
        let index = batch.branches.iter().position(|b| b.id == branch.id).unwrap_or(0) as u32;
        let items = &batch.items[batch.items_of(index)];
        // The first item of the branch is not in place. A batch has data of a branch from one side
        // of a snapshot only, so an anchor before them shows nothing that the batch overwrites.
        let first = items.iter().map(|item| item.order).min();
        let first = first.and_then(|order| batch.stamps.get(order as usize));
        let in_place = first.map_or(state.destaged, |stamp| stamp.lsn.prev());
        let parts = items.iter().filter_map(|item| {
            let patch = match item.source {
                PartSource::Journal(file, position) => Patch::Journal(file, position),
                PartSource::Zeros | PartSource::Hole => Patch::Zeros,
                // The slot holds the content already.
                PartSource::Slot(_) => return None,
            };
            Some((item.chunk, item.start, item.end, patch))
        });
        Applying { parts: parts.collect(), in_place }
    }
}

impl Core {
    /// Number of runs of a branch that may wait before they are sorted into segments of its own.
    pub(crate) fn waiting_runs(&self) -> usize {
        self.shared.portion_of_runs(self.options.waiting_runs as u64) as usize
    }
}
