//! The CDP log of one branch in memory, as far as it is committed: segments, events, and how far it
//! goes.

pub(crate) mod codec;
pub(crate) mod flushes;
pub(crate) mod record;
pub(crate) mod segment;
pub(crate) mod shared;
pub(crate) mod stretch;

use crate::catalog::page::CHUNKS;
use crate::catalog::{Event, SegmentRecord, Txn};
use crate::error::Result;
use crate::settings::CdpSettings;
use parking_lot::{Mutex, RwLock};
use segment::{LogFile, Open, Sealed};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stretch::{JournalSpan, index_room};

/// What a branch has of CDP.
#[derive(Default)]
pub(crate) struct BranchCdp {
    /// As sequenced: what is written from now on is recorded in this way.
    wanted: RwLock<Option<CdpSettings>>,
    /// For the path of writes.
    on: AtomicBool,
    /// Writes sequenced since the last anchor, one for each chunk that they touch: as many as there
    /// will be records.
    pub(crate) writes: AtomicU64,
    /// The last record since the pool was opened after which the volume holds something else.
    pub(crate) written: AtomicU64,
    /// When the last anchor was sequenced.
    pub(crate) anchored: AtomicU64,
    /// Writes between two anchors, as the cost model says; 0: it said nothing.
    pub(crate) model: AtomicU64,
    /// How far it was promised room for groups. Changes under the sequencing lock only.
    pub(crate) stretch: Mutex<JournalSpan>,
    /// As carried out.
    pub(crate) log: RwLock<LogState>,
    /// Moves whenever what is in place, or the log, moves on.
    pub(crate) version: AtomicU64,
    /// Commits under way that the log does not know of yet: see
    /// [`crate::cdp::write::committing::Committing`].
    pub(crate) committing: AtomicU64,
    pins: Mutex<Pins>,
}

/// What keeps moments, and what is to be forgotten: decided together.
#[derive(Default)]
struct Pins {
    /// Moments that something rests on, and how much.
    held: BTreeMap<u64, u32>,
    /// Moments before this LSN are being forgotten, or are gone.
    floor: u64,
}

/// See [`BranchCdp::log`].
#[derive(Default)]
pub(crate) struct LogState {
    /// What is destaged now is recorded in this way.
    pub(crate) settings: Option<CdpSettings>,
    /// By LSN.
    pub(crate) events: BTreeMap<u64, Event>,
    /// The sums of chunks whose last change is recorded: whoever records the next one need not read
    /// them whole.
    pub(crate) sums: HashMap<u64, u32>,
    /// The snapshots that are anchors, as the events say, and at which LSN.
    anchors: BTreeMap<u64, u64>,
    /// The events that say how it was recorded and how large the volume was: few, among many
    /// anchors.
    turns: BTreeMap<u64, Event>,
    /// By number: closed segments of the branch's own, and runs in shared segments. LSNs grow with
    /// the number.
    pub(crate) sealed: BTreeMap<u64, Arc<Sealed>>,
    /// The segment that is appended to. Runs and closed segments may lie behind it.
    pub(crate) open: Option<Open>,
    /// The numbers of runs that wait to be sorted apart.
    pub(crate) runs: BTreeSet<u64>,
    /// The number of the next segment.
    pub(crate) next_seq: u64,
    /// What is being written over what is in place.
    pub(crate) applying: Option<Arc<Applying>>,
}

/// A batch whose records are in the log, and which is being applied.
pub(crate) struct Applying {
    /// Parts of chunks, by (chunk, order): (chunk, start, end, what is there).
    pub(crate) parts: Vec<(u64, u32, u32, Patch)>,
    /// Everything up to this LSN is in place.
    pub(crate) in_place: u64,
}

impl Applying {
    /// The parts of one chunk, in order.
    pub(crate) fn of(&self, chunk: u64) -> &[(u64, u32, u32, Patch)] {
        let start = self.parts.partition_point(|part| part.0 < chunk);
        let end = self.parts.partition_point(|part| part.0 <= chunk);
        &self.parts[start..end]
    }
}

/// What becomes of a part of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patch {
    Zeros,
    /// (journal file, byte position)
    Journal(u32, u32),
}

impl BranchCdp {
    /// So many more chunks were written to, since the last anchor, if that is recorded.
    pub(crate) fn count_writes(&self, chunks: u64) {
        if self.is_on() {
            self.writes.fetch_add(chunks, Ordering::Relaxed);
        }
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
        *wanted = settings;
    }

    /// Writes between two anchors; none: no limit.
    pub(crate) fn distance(&self) -> Option<u64> {
        let settings = self.wanted()?;
        let by_policy = match settings.anchors {
            crate::settings::AnchorPolicy::Every(writes) => Some(writes),
            crate::settings::AnchorPolicy::Model => {
                Some(self.model.load(Ordering::Relaxed)).filter(|m| *m > 0)
            }
            crate::settings::AnchorPolicy::Never | crate::settings::AnchorPolicy::Interval(_) => None,
        };
        by_policy.into_iter().chain(settings.max_distance).min()
    }

    /// The volume holds something else since this record.
    pub(crate) fn wrote(&self, lsn: u64) {
        self.written.fetch_max(lsn, Ordering::AcqRel);
    }

    /// An anchor was sequenced.
    pub(crate) fn anchored(&self, time: u64) {
        self.writes.store(0, Ordering::Relaxed);
        self.anchored.store(time, Ordering::Relaxed);
    }

    /// Keeps a moment from expiring. False when that comes too late: it is held all the same, but
    /// what it needs may be gone.
    pub(crate) fn pin(&self, lsn: u64) -> bool {
        let mut pins = self.pins.lock();
        *pins.held.entry(lsn).or_insert(0) += 1;
        pins.floor <= lsn
    }

    pub(crate) fn unpin(&self, lsn: u64) {
        let mut pins = self.pins.lock();
        if let Some(count) = pins.held.get_mut(&lsn) {
            *count -= 1;
            if *count == 0 {
                pins.held.remove(&lsn);
            }
        }
    }

    /// The oldest moment that something rests on.
    pub(crate) fn oldest_pin(&self) -> Option<u64> {
        self.pins.lock().held.keys().next().copied()
    }

    /// Asks before anything of the moments before `lsn` is forgotten; false when something rests on
    /// one of them. From here on they can't be pinned any more.
    pub(crate) fn may_forget(&self, lsn: u64) -> bool {
        let mut pins = self.pins.lock();
        let free = pins.held.keys().next().is_none_or(|oldest| *oldest >= lsn);
        if free {
            pins.floor = pins.floor.max(lsn);
        }
        free
    }

    /// Is what is in place still what it was in this version of the log, whatever was read there
    /// since?
    pub(crate) fn holds(&self, version: u64) -> bool {
        // In this order: the log moves on before a commit ends.
        self.committing.load(Ordering::SeqCst) == 0 && self.version.load(Ordering::SeqCst) == version
    }

    /// What is committed moves on.
    pub(crate) fn change(&self, change: impl FnOnce(&mut LogState)) {
        let mut log = self.log.write();
        change(&mut log);
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// The first of these map pages of which there are records.
    pub(crate) fn next_page(&self, pages: Range<u64>) -> Result<Option<u64>> {
        if pages.is_empty() {
            return Ok(None);
        }
        let first = pages.start.saturating_mul(CHUNKS);
        let touches = |r: &SegmentRecord| r.chunks.1 >= first && r.chunks.0 / CHUNKS < pages.end;
        let (mut sealed, open) = {
            let log = self.log.read();
            let sealed: Vec<_> = log.sealed.values().filter(|s| touches(&s.record)).cloned().collect();
            let next = |open: &Open| {
                open.check()?;
                Ok(open.entries.range((first, 0)..).next().map(|((chunk, _), _)| chunk / CHUNKS))
            };
            let open = log.open.as_ref().filter(|open| touches(&open.record));
            (sealed, open.map(next).transpose()?.flatten())
        };
        // Each has an index of its own: those that can't have an earlier page than was found are
        // not asked.
        sealed.sort_unstable_by_key(|segment| segment.record.chunks.0);
        let mut best = open.unwrap_or(pages.end);
        for segment in sealed {
            if best == pages.start || segment.record.chunks.0 / CHUNKS >= best {
                break;
            }
            best = best.min(segment.next_chunk(first)?.map_or(best, |chunk| chunk / CHUNKS));
        }
        Ok(Some(best).filter(|page| pages.contains(page)))
    }

    pub(crate) fn load_event(&self, lsn: u64, event: Event) {
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
    /// The size of the volume at a moment, in bytes.
    pub(crate) fn size_at(&self, lsn: u64) -> u64 {
        let size = self.turns.range(..=lsn).rev().find_map(|(_, event)| match event {
            Event::On { size, .. } | Event::Resized { size, .. } => Some(*size),
            _ => None,
        });
        size.unwrap_or(0)
    }

    /// Moments before this LSN are gone.
    pub(crate) fn floor(&self) -> u64 {
        match self.events.get(&0) {
            Some(Event::Floor { lsn, .. }) => *lsn,
            _ => 0,
        }
    }

    /// As of the last time that recording was on.
    pub(crate) fn last_settings(&self) -> Option<CdpSettings> {
        self.settings_at(u64::MAX)
    }

    /// As of the last time up to an LSN that recording was on.
    pub(crate) fn settings_at(&self, lsn: u64) -> Option<CdpSettings> {
        self.turns.range(..=lsn).rev().find_map(|(_, event)| match event {
            Event::On { settings, .. } => Some(*settings),
            _ => None,
        })
    }

    /// Since when, without a gap, everything was recorded at this moment.
    pub(crate) fn recording_since(&self, lsn: u64) -> Option<u64> {
        let mut begins = self.turns.range(..=lsn).rev().filter_map(|(at, event)| match event {
            Event::Off { .. } => Some(None),
            Event::On { begins: true, .. } => Some(Some(*at)),
            _ => None,
        });
        begins.next().flatten()
    }

    /// Since when, as (LSN, time), it is off: it was on before.
    pub(crate) fn is_off(&self) -> Option<(u64, u64)> {
        let last = self.turns.iter().rev().find(|(_, e)| matches!(e, Event::On { .. } | Event::Off { .. }));
        last.filter(|(_, e)| matches!(e, Event::Off { .. })).map(|(at, e)| (*at, e.time()))
    }

    /// The anchor behind which recording is to begin, if that is all there is of it yet.
    pub(crate) fn begun(&self) -> Option<u64> {
        let last = self.events.last_key_value().filter(|_| self.settings.is_none());
        last.filter(|(_, event)| matches!(event, Event::Anchor { .. })).map(|(lsn, _)| *lsn)
    }

    /// When recording was switched off for the first time after an LSN.
    pub(crate) fn off_after(&self, lsn: u64) -> Option<u64> {
        let mut later = self.turns.range(lsn.saturating_add(1)..);
        later.find(|(_, event)| matches!(event, Event::Off { .. })).map(|(at, _)| *at)
    }

    /// The first moment that there is: (LSN, time).
    pub(crate) fn begins(&self) -> Option<(u64, u64)> {
        if let Some(Event::Floor { lsn, time }) = self.events.get(&0) {
            return Some((*lsn, *time));
        }
        let on = |(at, event): (&u64, &Event)| match event {
            Event::On { time, .. } => Some((*at, *time)),
            _ => None,
        };
        self.turns.iter().find_map(on)
    }

    /// What is in place has everything up to here, of what was recorded.
    pub(crate) fn last_lsn(&self) -> u64 {
        let recorded = self.segment_records().map(|record| record.lsns.1);
        recorded.chain(self.events.keys().next_back().copied()).max().unwrap_or(0)
    }

    /// Is this the segment that is appended to?
    pub(crate) fn is_open(&self, seq: u64) -> bool {
        self.open.as_ref().is_some_and(|open| open.file.head.seq == seq)
    }

    /// Are there runs, or other segments, behind the one that is appended to?
    pub(crate) fn is_open_behind(&self) -> bool {
        let last = self.sealed.last_key_value().map(|(seq, _)| *seq);
        self.open.as_ref().is_some_and(|open| last.is_some_and(|last| last > open.file.head.seq))
    }

    /// All segments and runs with their numbers, in the order of LSNs.
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

    /// Bytes that closing the open segment may take.
    pub(crate) fn closing_room(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| index_room(open.record.records))
    }

    /// Bytes of files.
    pub(crate) fn stored(&self) -> u64 {
        self.segment_records().map(SegmentRecord::bytes).sum()
    }

    /// All segments and runs, as the catalog knows them.
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

    /// The events that moments from `lsn` on don't need.
    pub(crate) fn events_before(&self, lsn: u64) -> Vec<u64> {
        let turns = || self.turns.range(..lsn).rev();
        let last = |is: fn(&Event) -> bool| turns().find(|(_, e)| is(e)).map(|(at, _)| *at);
        let kept = [
            last(|e| matches!(e, Event::On { .. })),
            last(|e| matches!(e, Event::On { begins: true, .. })),
            last(|e| matches!(e, Event::Off { .. })),
            last(|e| matches!(e, Event::On { .. } | Event::Resized { .. })),
        ];
        self.events.range(1..lsn).map(|(at, _)| *at).filter(|at| !kept.contains(&Some(*at))).collect()
    }

    /// Empties the log. Returns its closed segments and runs, and the file of its open segment.
    pub(crate) fn clear(&mut self) -> (Vec<Arc<Sealed>>, Option<LogFile>) {
        let empty =
            LogState { next_seq: self.next_seq, applying: self.applying.take(), ..LogState::default() };
        let old = std::mem::replace(self, empty);
        (old.sealed.into_values().collect(), old.open.map(|open| open.file))
    }

    pub(crate) fn put_event(&mut self, lsn: u64, event: Event) {
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

    pub(crate) fn remove_event(&mut self, lsn: u64) {
        if let Some(Event::Anchor { snapshot, .. }) = self.events.remove(&lsn) {
            self.anchors.remove(&snapshot);
        }
        self.turns.remove(&lsn);
    }

    /// The snapshot that is the anchor of this LSN.
    pub(crate) fn anchor_at(&self, lsn: u64) -> Option<u64> {
        match self.events.get(&lsn) {
            Some(Event::Anchor { snapshot, .. }) => Some(*snapshot),
            _ => None,
        }
    }

    /// The snapshots that are anchors.
    pub(crate) fn anchors(&self) -> impl Iterator<Item = u64> {
        self.anchors.keys().copied()
    }

    pub(crate) fn is_anchor(&self, snapshot: u64) -> bool {
        self.anchors.contains_key(&snapshot)
    }

    /// The LSN of the anchor that a snapshot is.
    pub(crate) fn anchor(&self, snapshot: u64) -> Option<u64> {
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
    /// Of an open segment: its groups.
    pub(crate) groups: usize,
    /// Of a run: the shared segment, and where it begins there.
    pub(crate) run: Option<(u64, u64)>,
}

impl Listed {
    /// Takes it out of the catalog.
    pub(crate) fn remove(&self, txn: &mut Txn<'_>, branch: u64) -> Result<()> {
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
        assert!(cdp.pin(10));
        assert!(!cdp.may_forget(11) && cdp.may_forget(10));
        assert!(!cdp.pin(9), "it is going");
        assert!(cdp.pin(10), "the first one that stays");
        for lsn in [9, 10, 10] {
            cdp.unpin(lsn);
        }
        assert!(cdp.oldest_pin().is_none() && cdp.may_forget(u64::MAX));
        assert!(!cdp.pin(1 << 40));
    }
}
