//! The committed CDP log of one branch, in memory: its segments, its events, and its end.

pub(crate) mod codec;
pub(crate) mod flushes;
pub(crate) mod profile;
pub(crate) mod record;
pub(crate) mod segment;
pub(crate) mod shared;
pub(crate) mod stretch;

use crate::catalog::{Event, SegmentRecord, Txn};
use crate::error::Result;
use crate::ids::{BranchId, Chunk, Epoch, Lsn, SnapshotId, Stamp};
use crate::settings::{AnchorPolicy, CdpSettings};
use crate::staging::Waiting;
use parking_lot::{Mutex, RwLock};
use segment::{LogFile, Open, Sealed};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stretch::{JournalSpan, index_room};

/// The history of one branch, as the data path and the background work share it.
#[derive(Default)]
pub(crate) struct BranchCdp {
    /// The settings as of the last sequenced record. What is written from now on is recorded with
    /// them.
    wanted: RwLock<Option<CdpSettings>>,
    /// Recording is on. It is a copy of `wanted` for the path of writes.
    on: AtomicBool,
    /// The writes sequenced since the last anchor. A write counts once for each chunk that it
    /// touches, so this is the number of records that will be recorded.
    pub(crate) writes: AtomicU64,
    /// The bytes of writes by reference since the last anchor.
    referred: AtomicU64,
    /// The bytes of all writes since the last anchor.
    bytes: AtomicU64,
    /// The LSN of the last record, since the pool was opened, that changed the volume's content.
    written: AtomicU64,
    /// The pool time at which the last anchor was sequenced.
    pub(crate) anchored: AtomicU64,
    /// Number of writes between two anchors by the cost model; 0 stands for no result.
    model: AtomicU64,
    /// The stretch of the journal for which the branch was promised room for groups. It changes
    /// under the sequencing lock only.
    pub(crate) stretch: Mutex<JournalSpan>,
    /// The log as of the last batch that was carried out.
    pub(crate) log: RwLock<LogState>,
    /// Moves whenever the content in place, or the log, moves on.
    pub(crate) version: AtomicU64,
    /// The number of commits under way that the log does not contain yet: see
    /// [`crate::cdp::write::committing::Committing`].
    pub(crate) committing: AtomicU64,
    pins: Mutex<Pins>,
    /// The records and anchors that the log does not have yet.
    pub(crate) waiting: Arc<Waiting>,
}

/// The moments that are kept, and the moments that are being forgotten. One lock decides both.
#[derive(Default)]
struct Pins {
    /// The pinned moments, by LSN, and how many pins each has.
    held: BTreeMap<Lsn, u32>,
    /// Moments before this LSN are being forgotten, or are gone.
    floor: Lsn,
}

/// The state of a branch's log as of the last batch that was carried out.
#[derive(Default)]
pub(crate) struct LogState {
    /// The settings with which destage records now.
    pub(crate) settings: Option<CdpSettings>,
    /// The events, by LSN.
    pub(crate) events: BTreeMap<Lsn, Event>,
    /// The sums of chunks whose last change is recorded. With them the next change of such a chunk
    /// is recorded without reading the whole chunk.
    pub(crate) sums: HashMap<Chunk, u32>,
    /// The snapshots that are anchors, by the events, and the LSN of each.
    anchors: BTreeMap<SnapshotId, Lsn>,
    /// The events that state how the branch was recorded and how large the volume was. They are few
    /// among many anchors.
    turns: BTreeMap<Lsn, Event>,
    /// The closed segments of the branch's own and its runs in shared segments, by number. LSNs
    /// grow with the number.
    pub(crate) sealed: BTreeMap<u64, Arc<Sealed>>,
    /// The segment that records are appended to. Runs and closed segments may lie behind it.
    pub(crate) open: Option<Open>,
    /// The numbers of runs that wait to be sorted into segments of the branch's own.
    pub(crate) runs: BTreeSet<u64>,
    /// The number of the next segment.
    pub(crate) next_seq: u64,
    /// The batch that is being applied over the content in place.
    pub(crate) applying: Option<Arc<Applying>>,
}

/// A batch whose records are in the log and that is being applied.
pub(crate) struct Applying {
    /// The parts of chunks, sorted by (chunk, order), as (chunk, start, end, new content).
    pub(crate) parts: Vec<(Chunk, u32, u32, Patch)>,
    /// The last LSN up to which everything of the branch is in place.
    pub(crate) in_place: Lsn,
}

impl Applying {
    /// Returns the parts of one chunk, in order.
    pub(crate) fn of(&self, chunk: Chunk) -> &[(Chunk, u32, u32, Patch)] {
        let start = self.parts.partition_point(|part| part.0 < chunk);
        let end = self.parts.partition_point(|part| part.0 <= chunk);
        &self.parts[start..end]
    }
}

/// The new content of a part of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patch {
    Zeros,
    /// Content in the journal: (journal file, byte position).
    Journal(u32, u32),
}

impl BranchCdp {
    /// The history of a branch whose staging has `waiting`.
    pub(crate) fn new(waiting: Arc<Waiting>) -> Self {
        BranchCdp { waiting, ..BranchCdp::default() }
    }

    /// Counts `chunks` more chunks and `bytes` that were written since the last anchor, and how
    /// many of the bytes are `referred` to, if recording is on.
    pub(crate) fn count_writes(&self, chunks: u64, bytes: u64, referred: u64) {
        if self.is_on() {
            self.writes.fetch_add(chunks, Ordering::Relaxed);
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            if referred > 0 {
                self.referred.fetch_add(referred, Ordering::Relaxed);
            }
        }
    }

    /// Returns whether enough was written since the last anchor. `keep_distance` is the number of
    /// bytes of references after which an anchor is due. A history with references whose retention
    /// has limits needs an anchor after a part of each limit. `now` returns the pool time.
    pub(crate) fn is_anchor_due(&self, keep_distance: Option<u64>, now: impl Fn() -> u64) -> bool {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        if self.distance().is_some_and(|most| of(&self.writes) >= most) {
            return true;
        }
        let (Some(distance), referred) = (keep_distance, of(&self.referred)) else { return false };
        if referred == 0 {
            return false;
        }
        let Some(settings) = self.wanted().filter(CdpSettings::keeps_slots) else { return false };
        let since = || now().saturating_sub(of(&self.anchored));
        referred >= distance
            || settings.retention.step_bytes().is_some_and(|most| of(&self.bytes) >= most)
            || settings.retention.step_time().is_some_and(|most| since() >= most)
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    pub(crate) fn wanted(&self) -> Option<CdpSettings> {
        *self.wanted.read()
    }

    pub(crate) fn want(&self, settings: Option<CdpSettings>) {
        let mut wanted = self.wanted.write();
        self.on.store(settings.is_some(), Ordering::Release);
        self.waiting.keep(settings.is_some());
        *wanted = settings;
    }

    /// Returns the number of writes between two anchors by the cost model, if it has a result.
    pub(crate) fn model(&self) -> Option<u64> {
        Some(self.model.load(Ordering::Relaxed)).filter(|writes| *writes > 0)
    }

    /// Notes the result of the cost model.
    pub(crate) fn set_model(&self, writes: Option<u64>) {
        self.model.store(writes.unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns the number of writes between two anchors, or `None` if there is no limit.
    pub(crate) fn distance(&self) -> Option<u64> {
        let settings = self.wanted()?;
        let by_policy = match settings.anchors {
            AnchorPolicy::Every(writes) => Some(writes),
            AnchorPolicy::Model => self.model(),
            AnchorPolicy::Never | AnchorPolicy::Interval(_) => None,
        };
        by_policy.into_iter().chain(settings.max_distance).min()
    }

    /// Notes that the record with this LSN changed the volume's content.
    pub(crate) fn wrote(&self, lsn: Lsn) {
        self.written.fetch_max(lsn.0, Ordering::AcqRel);
    }

    /// Returns the LSN of the last record, since the pool was opened, that changed the volume's
    /// content.
    pub(crate) fn written(&self) -> Lsn {
        Lsn(self.written.load(Ordering::Acquire))
    }

    /// Notes that an anchor was sequenced at this pool time.
    pub(crate) fn anchored(&self, time: u64) {
        self.writes.store(0, Ordering::Relaxed);
        self.referred.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        self.anchored.store(time, Ordering::Relaxed);
    }

    /// Keeps a moment from expiring. Returns false when the call comes too late. The moment is
    /// pinned all the same, but what it needs may be gone.
    pub(crate) fn pin(&self, lsn: Lsn) -> bool {
        let mut pins = self.pins.lock();
        *pins.held.entry(lsn).or_insert(0) += 1;
        pins.floor <= lsn
    }

    pub(crate) fn unpin(&self, lsn: Lsn) {
        let mut pins = self.pins.lock();
        if let Some(count) = pins.held.get_mut(&lsn) {
            *count -= 1;
            if *count == 0 {
                pins.held.remove(&lsn);
            }
        }
    }

    /// Returns the oldest pinned moment.
    pub(crate) fn oldest_pin(&self) -> Option<Lsn> {
        self.pins.lock().held.keys().next().copied()
    }

    /// Asks whether the moments before `lsn` may be forgotten. Returns false when one of them is
    /// pinned. After true they can't be pinned any more.
    pub(crate) fn may_forget(&self, lsn: Lsn) -> bool {
        let mut pins = self.pins.lock();
        let free = pins.held.keys().next().is_none_or(|oldest| *oldest >= lsn);
        if free {
            pins.floor = pins.floor.max(lsn);
        }
        free
    }

    /// Returns whether the content in place is still that of this version of the log. If so,
    /// everything that was read there since then was right.
    pub(crate) fn holds(&self, version: u64) -> bool {
        // The order of the two checks matters, because the log moves on before a commit ends.
        self.committing.load(Ordering::SeqCst) == 0 && self.version.load(Ordering::SeqCst) == version
    }

    /// Changes the committed log, and moves its version.
    pub(crate) fn change(&self, change: impl FnOnce(&mut LogState)) {
        let mut log = self.log.write();
        change(&mut log);
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the first of these map pages of which there are records.
    pub(crate) fn next_page(&self, pages: Range<u64>) -> Result<Option<u64>> {
        if pages.is_empty() {
            return Ok(None);
        }
        let first = Chunk::first_of(pages.start);
        let touches = |r: &SegmentRecord| r.chunks.1 >= first && r.chunks.0.page() < pages.end;
        let (mut sealed, open) = {
            let log = self.log.read();
            let sealed: Vec<_> = log.sealed.values().filter(|s| touches(&s.record)).cloned().collect();
            let next = |open: &Open| {
                open.check()?;
                Ok(open.entries.range((first, Lsn::ZERO)..).next().map(|((chunk, _), _)| chunk.page()))
            };
            let open = log.open.as_ref().filter(|open| touches(&open.record));
            (sealed, open.map(next).transpose()?.flatten())
        };
        // Each has an index of its own: those that can't have an earlier page than was found are
        // not asked.
        sealed.sort_unstable_by_key(|segment| segment.record.chunks.0);
        let mut best = open.unwrap_or(pages.end);
        for segment in sealed {
            if best == pages.start || segment.record.chunks.0.page() >= best {
                break;
            }
            best = best.min(segment.next_chunk(first)?.map_or(best, |chunk| chunk.page()));
        }
        Ok(Some(best).filter(|page| pages.contains(page)))
    }

    pub(crate) fn load_event(&self, lsn: Lsn, event: Event) {
        let mut log = self.log.write();
        match &event {
            Event::On { settings, .. } => log.settings = Some(*settings),
            Event::Off { .. } => log.settings = None,
            _ => {}
        }
        log.put_event(lsn, event);
        let settings = log.settings;
        drop(log);
        self.want(settings);
        if let Event::Anchor { time, .. } = event {
            self.anchored.store(time, Ordering::Relaxed);
        }
    }
}

impl LogState {
    /// Returns the size of the volume at a moment, in bytes.
    pub(crate) fn size_at(&self, lsn: Lsn) -> u64 {
        let size = self.turns.range(..=lsn).rev().find_map(|(_, event)| match event {
            Event::On { size, .. } | Event::Resized { size, .. } => Some(*size),
            _ => None,
        });
        size.unwrap_or(0)
    }

    /// Returns the sizes of the volume in bytes, oldest first: each from its stamp on.
    pub(crate) fn sizes(&self) -> Vec<(Stamp, u64)> {
        let size = |(lsn, event): (&Lsn, &Event)| match event {
            Event::On { size, time, .. } | Event::Resized { size, time, .. } => {
                Some((Stamp::new(*lsn, *time), *size))
            }
            _ => None,
        };
        self.turns.iter().filter_map(size).collect()
    }

    /// Returns the LSN before which moments are gone.
    pub(crate) fn floor(&self) -> Lsn {
        self.floor_stamp().map_or(Lsn::ZERO, |floor| floor.lsn)
    }

    /// Returns the stamp before which moments are gone, or `None` if none has expired.
    pub(crate) fn floor_stamp(&self) -> Option<Stamp> {
        match self.events.get(&Event::FLOOR_AT) {
            Some(Event::Floor { lsn, time }) => Some(Stamp::new(*lsn, *time)),
            _ => None,
        }
    }

    /// Returns the settings of the last time that recording was on.
    pub(crate) fn last_settings(&self) -> Option<CdpSettings> {
        self.settings_at(Lsn::MAX)
    }

    /// Returns the settings of the last time, up to an LSN, that recording was on.
    pub(crate) fn settings_at(&self, lsn: Lsn) -> Option<CdpSettings> {
        self.turns.range(..=lsn).rev().find_map(|(_, event)| match event {
            Event::On { settings, .. } => Some(*settings),
            _ => None,
        })
    }

    /// Returns the LSN since which everything is recorded without a gap, as of this moment.
    pub(crate) fn recording_since(&self, lsn: Lsn) -> Option<Lsn> {
        let mut begins = self.turns.range(..=lsn).rev().filter_map(|(at, event)| match event {
            Event::Off { .. } => Some(None),
            Event::On { begins: true, .. } => Some(Some(*at)),
            _ => None,
        });
        begins.next().flatten()
    }

    /// Returns since when recording is off. Returns `None` if it is on, or was never on.
    pub(crate) fn is_off(&self) -> Option<Stamp> {
        let last = self.turns.iter().rev().find(|(_, e)| matches!(e, Event::On { .. } | Event::Off { .. }));
        last.filter(|(_, e)| matches!(e, Event::Off { .. })).map(|(at, e)| Stamp::new(*at, e.time()))
    }

    /// Returns the LSN of the anchor behind which recording is to begin, if there is no other event
    /// after it yet.
    pub(crate) fn begun(&self) -> Option<Lsn> {
        let last = self.events.last_key_value().filter(|_| self.settings.is_none());
        last.filter(|(_, event)| matches!(event, Event::Anchor { .. })).map(|(lsn, _)| *lsn)
    }

    /// Returns the LSN at which recording was switched off for the first time after `lsn`.
    pub(crate) fn off_after(&self, lsn: Lsn) -> Option<Lsn> {
        let mut later = self.turns.range(lsn.next()..);
        later.find(|(_, event)| matches!(event, Event::Off { .. })).map(|(at, _)| *at)
    }

    /// Returns the first moment that exists.
    pub(crate) fn begins(&self) -> Option<Stamp> {
        let on = |(at, event): (&Lsn, &Event)| match event {
            Event::On { time, .. } => Some(Stamp::new(*at, *time)),
            _ => None,
        };
        self.floor_stamp().or_else(|| self.turns.iter().find_map(on))
    }

    /// Returns the last LSN of what was recorded. The content in place has everything up to it.
    pub(crate) fn last_lsn(&self) -> Lsn {
        let recorded = self.segment_records().map(|record| record.lsns.1);
        recorded.chain(self.events.keys().next_back().copied()).max().unwrap_or(Lsn::ZERO)
    }

    /// Returns the LSN of the last record, or 0.
    pub(crate) fn last_record(&self) -> Lsn {
        let used = self.segment_records().filter(|record| record.records > 0);
        used.map(|record| record.lsns.1).max().unwrap_or(Lsn::ZERO)
    }

    /// Returns whether records are appended to this segment.
    pub(crate) fn is_open(&self, seq: u64) -> bool {
        self.open.as_ref().is_some_and(|open| open.file.head.seq == seq)
    }

    /// Returns whether there are runs, or other segments, behind the segment that records are
    /// appended to.
    pub(crate) fn is_open_behind(&self) -> bool {
        let last = self.sealed.last_key_value().map(|(seq, _)| *seq);
        self.open.as_ref().is_some_and(|open| last.is_some_and(|last| last > open.file.head.seq))
    }

    /// Returns all segments and runs with their numbers, in the order of LSNs.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = (u64, &SegmentRecord)> {
        let open = self.open.as_ref().map(|open| (open.file.head.seq, &open.record));
        let at = open.map_or(u64::MAX, |(seq, _)| seq);
        self.sealed
            .range(..at)
            .map(|(seq, s)| (*seq, &s.record))
            .chain(open)
            .chain(self.sealed.range(at..).map(|(seq, s)| (*seq, &s.record)))
    }

    pub(crate) fn put_sealed(&mut self, seq: u64, segment: Arc<Sealed>) {
        if segment.run().is_some() {
            self.runs.insert(seq);
        }
        self.sealed.insert(seq, segment);
    }

    pub(crate) fn remove_sealed(&mut self, seq: u64) -> Option<Arc<Sealed>> {
        self.runs.remove(&seq);
        self.sealed.remove(&seq)
    }

    /// Returns the bytes that closing the open segment may take.
    pub(crate) fn closing_room(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| index_room(open.record.records))
    }

    /// Returns the bytes of the log's files, and of what its records need in slots.
    pub(crate) fn held(&self) -> u64 {
        self.segment_records().map(SegmentRecord::held).sum()
    }

    /// Returns the part of [`LogState::held`] of the segments that begin behind an LSN.
    pub(crate) fn held_behind(&self, lsn: Lsn) -> u64 {
        self.segment_records().filter(|r| r.lsns.0 > lsn).map(SegmentRecord::held).sum()
    }

    /// Returns the part of [`LogState::held`] of the segments with records behind an LSN.
    pub(crate) fn held_since(&self, lsn: Lsn) -> u64 {
        self.segment_records().filter(|r| r.lsns.1 > lsn).map(SegmentRecord::held).sum()
    }

    /// Returns the bytes of the log's files.
    pub(crate) fn stored(&self) -> u64 {
        self.segment_records().map(SegmentRecord::bytes).sum()
    }

    /// Returns all segments and runs, as the catalog knows them.
    pub(crate) fn all_segments(&self) -> Vec<Listed> {
        let sealed = self.sealed.iter().map(|(seq, s)| Listed {
            seq: *seq,
            record: s.record,
            groups: 0,
            run: s.run(),
        });
        let open = self.open.iter().map(|o| Listed {
            seq: o.file.head.seq,
            record: o.record,
            groups: o.groups.len(),
            run: None,
        });
        sealed.chain(open).collect()
    }

    /// Returns the LSNs of the events that moments from `lsn` on don't need.
    pub(crate) fn events_before(&self, lsn: Lsn) -> Vec<Lsn> {
        let turns = || self.turns.range(..lsn).rev();
        let last = |is: fn(&Event) -> bool| turns().find(|(_, e)| is(e)).map(|(at, _)| *at);
        let kept = [
            last(|e| matches!(e, Event::On { .. })),
            last(|e| matches!(e, Event::On { begins: true, .. })),
            last(|e| matches!(e, Event::Off { .. })),
            last(|e| matches!(e, Event::On { .. } | Event::Resized { .. })),
        ];
        self.events.range(Lsn(1)..lsn).map(|(at, _)| *at).filter(|at| !kept.contains(&Some(*at))).collect()
    }

    /// Empties the log. Returns its closed segments and runs, and the file of its open segment.
    pub(crate) fn clear(&mut self) -> (Vec<Arc<Sealed>>, Option<LogFile>) {
        let empty =
            LogState { next_seq: self.next_seq, applying: self.applying.take(), ..LogState::default() };
        let old = std::mem::replace(self, empty);
        (old.sealed.into_values().collect(), old.open.map(|open| open.file))
    }

    pub(crate) fn put_event(&mut self, lsn: Lsn, event: Event) {
        match event {
            Event::Anchor { snapshot, .. } => _ = self.anchors.insert(snapshot, lsn),
            Event::On { .. } | Event::Off { .. } | Event::Resized { .. } => {
                // Something may have changed, or will, without a record.
                self.sums.clear();
                self.turns.insert(lsn, event);
            }
            Event::Emptied { .. } => self.sums.clear(),
            Event::Floor { .. } => {}
        }
        self.events.insert(lsn, event);
    }

    pub(crate) fn remove_event(&mut self, lsn: Lsn) {
        if let Some(Event::Anchor { snapshot, .. }) = self.events.remove(&lsn) {
            self.anchors.remove(&snapshot);
        }
        self.turns.remove(&lsn);
    }

    /// Returns the snapshot that is the anchor of this LSN.
    pub(crate) fn anchor_at(&self, lsn: Lsn) -> Option<SnapshotId> {
        match self.events.get(&lsn) {
            Some(Event::Anchor { snapshot, .. }) => Some(*snapshot),
            _ => None,
        }
    }

    /// Returns the snapshots that are anchors.
    pub(crate) fn anchors(&self) -> impl Iterator<Item = SnapshotId> {
        self.anchors.keys().copied()
    }

    /// Returns the LSN of the anchor with this epoch, if there is one.
    pub(crate) fn anchor_of(&self, epoch: Epoch) -> Option<Lsn> {
        let mut newest_first = self.events.iter().rev().filter_map(|(at, event)| match event {
            Event::Anchor { epoch, .. } => Some((*at, *epoch)),
            _ => None,
        });
        // Epochs grow with LSNs.
        newest_first.find(|(_, found)| *found <= epoch).filter(|(_, found)| *found == epoch).map(|(at, _)| at)
    }

    pub(crate) fn is_anchor(&self, snapshot: SnapshotId) -> bool {
        self.anchors.contains_key(&snapshot)
    }

    /// Returns the LSN of the anchor, if `snapshot` is one.
    pub(crate) fn anchor(&self, snapshot: SnapshotId) -> Option<Lsn> {
        self.anchors.get(&snapshot).copied()
    }

    pub(crate) fn segment_records(&self) -> impl Iterator<Item = &SegmentRecord> {
        self.sealed.values().map(|s| &s.record).chain(self.open.as_ref().map(|o| &o.record))
    }
}

/// A segment or a run, as the catalog knows it.
pub(crate) struct Listed {
    pub(crate) seq: u64,
    pub(crate) record: SegmentRecord,
    /// The number of groups of an open segment.
    pub(crate) groups: usize,
    /// For a run: the number of the shared segment, and the byte at which the run begins there.
    pub(crate) run: Option<(u64, u64)>,
}

impl Listed {
    /// Removes the segment or run from the catalog.
    pub(crate) fn remove(&self, txn: &mut Txn<'_>, branch: BranchId) -> Result<()> {
        if let Some(key) = self.run {
            return txn.remove_cdp_run(key);
        }
        txn.remove_cdp_segment(branch, self.seq)?;
        (0..self.groups).try_for_each(|n| txn.remove_cdp_group(branch, self.seq, n as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_being_forgotten_is_not_pinned_any_more() {
        let cdp = BranchCdp::default();
        assert!(cdp.pin(Lsn(10)));
        assert!(!cdp.may_forget(Lsn(11)) && cdp.may_forget(Lsn(10)));
        assert!(!cdp.pin(Lsn(9)), "it is going");
        assert!(cdp.pin(Lsn(10)), "the first one that stays");
        for lsn in [9, 10, 10] {
            cdp.unpin(Lsn(lsn));
        }
        assert!(cdp.oldest_pin().is_none() && cdp.may_forget(Lsn::MAX));
        assert!(!cdp.pin(Lsn(1 << 40)));
    }
}
