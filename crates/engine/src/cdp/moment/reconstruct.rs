//! The reconstruction of a chunk at a moment: from the nearer anchor, forward or backward over the
//! records between, and verified.

use super::replay::Replay;
use crate::branch::{Branch, View};
use crate::catalog::Event;
use crate::cdp::log::codec::lost;
use crate::cdp::log::{LogState, Patch};
use crate::codec::crc32c;
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Chunk, Epoch, Lsn};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The number of anchors that are tried on either side, nearest first.
const TRIES: usize = 3;

/// The content that a reconstruction starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// An anchor: everything up to this LSN, as the epoch shows it.
    Epoch(Lsn, Epoch),
    /// The content in place, in this version of the log.
    Head(u64),
}

/// Keeps one of the reasons why no way leads to the moment. The first reason is kept. But a reason
/// that may pass (an image that is away, a physical volume that does not answer) replaces one that
/// means loss: nothing is lost while a way may open again.
fn note(why: &mut Option<Error>, error: Error) {
    let passes = |error: &Error| !matches!(error.kind(), ErrorKind::Lost | ErrorKind::Corrupt);
    if why.as_ref().is_none_or(|first| passes(&error) && !passes(first)) {
        *why = Some(error);
    }
}

impl LogState {
    /// Returns the starts of reconstructions of a moment: those before it (nearest first) and those
    /// after it. Returns `None` when nothing was recorded at the moment.
    ///
    /// Everything up to `settled` is carried out. If that ends with an anchor, the anchor has the
    /// content in place, and the content in place is no start of its own. The next operation may
    /// be a long discard or a smaller size, which changes it in steps. The log has the event of
    /// such an operation only after the last step, also after a crash between two steps.
    fn starts(&self, lsn: Lsn, version: u64, settled: Lsn) -> Option<(Vec<Start>, Vec<Start>)> {
        let began = self.recording_since(lsn)?;
        let anchor = |(at, event): (&Lsn, &Event)| match event {
            Event::Anchor { epoch, .. } => Some(Start::Epoch(*at, *epoch)),
            _ => None,
        };
        // The anchor with which recording begins comes right before it.
        let floor = self.floor().max(began.prev());
        let mut older: Vec<Start> = Vec::new();
        if floor <= lsn {
            older.extend(self.events.range(floor..=lsn).rev().filter_map(anchor).take(TRIES));
        }
        let off = self.off_after(lsn);
        let mut newer: Vec<Start> = self
            .events
            .range(lsn.next()..)
            // Content that a batch moves to its place now is read only at the head.
            .take_while(|(at, _)| self.applying.as_ref().is_none_or(|a| **at <= a.in_place))
            .take_while(|(at, _)| off.is_none_or(|off| **at < off))
            .filter_map(anchor)
            .take(TRIES)
            .collect();
        let is_anchor = matches!(self.events.get(&settled), Some(Event::Anchor { .. }));
        if off.is_none() && self.settings.is_some() && newer.len() < TRIES && !is_anchor {
            newer.push(Start::Head(version));
        }
        Some((older, newer))
    }

    /// Returns the anchor before a moment from which a reconstruction would start, as (LSN, epoch).
    /// The outer `None` means that nothing was recorded at the moment. The inner `None` means that
    /// there is no such anchor.
    pub(super) fn anchor_before(&self, lsn: Lsn) -> Option<Option<(Lsn, Epoch)>> {
        let (older, _) = self.starts(lsn, 0, Lsn::ZERO)?;
        Some(older.first().and_then(|start| match start {
            Start::Epoch(at, epoch) => Some((*at, *epoch)),
            Start::Head(_) => None,
        }))
    }

    /// Returns the parts of the chunk that became zeros without a record after `from` and up to
    /// `to`, with their LSNs.
    fn emptied(&self, chunk: Range<u64>, from: Lsn, to: Lsn) -> Vec<(Lsn, Range<usize>)> {
        if from >= to {
            return Vec::new();
        }
        let events = self.events.range(from.next()..=to);
        let parts = events.filter_map(|(at, event)| {
            let bytes = event.emptied().filter(|b| b.start < chunk.end && b.end > chunk.start)?;
            let (start, end) = (chunk.start.max(bytes.start), chunk.end.min(bytes.end));
            Some((*at, (start - chunk.start) as usize..(end - chunk.start) as usize))
        });
        parts.collect()
    }
}

impl Core {
    /// Returns a chunk as it was on `branch` right after the record with `lsn`. Everything up to
    /// there must be carried out.
    pub(crate) fn chunk_at(&self, branch: &Arc<Branch>, chunk: Chunk, lsn: Lsn) -> Result<Vec<u8>> {
        self.check_histories()?;
        loop {
            let version = branch.cdp.version.load(Ordering::SeqCst);
            let starts = branch.cdp.log.read().starts(lsn, version, self.positions.settled());
            let Some((older, newer)) = starts else {
                return Err(lost(format!(
                    "reconstruct chunk {chunk} at LSN {lsn}: the history has no record of that time"
                )));
            };
            let mut why = None;
            for round in 0..older.len().max(newer.len()) {
                let way = |start: Option<&Start>, forward| {
                    start.map(|start| (*start, self.way(branch, chunk, *start, lsn, forward)))
                };
                // No way leads through content that could not be read when it was replaced.
                let way = |start, forward| {
                    way(start, forward)
                        .map(|(start, way)| (start, self.without_gap(branch, chunk, start, lsn, way)))
                };
                let (before, after) = (way(older.get(round), true), way(newer.get(round), false));
                match self.settle(branch, chunk, lsn, before, after) {
                    Ok(content) => return Ok(content),
                    Err(error) => note(&mut why, error),
                }
            }
            if !branch.cdp.holds(version) {
                // The content in place has changed since the starts were looked up, or is about to
                // change.
                std::thread::yield_now();
                continue;
            }
            return Err(why.unwrap_or_else(|| {
                lost(format!("reconstruct chunk {chunk} at LSN {lsn}: no anchor leads there any more"))
            }));
        }
    }

    /// Returns the way from a start to the moment, unless it leads through a gap.
    fn without_gap(
        &self,
        branch: &Branch,
        chunk: Chunk,
        start: Start,
        lsn: Lsn,
        way: Result<Replay>,
    ) -> Result<Replay> {
        let at = match start {
            Start::Epoch(at, _) => at,
            Start::Head(_) => Lsn::MAX,
        };
        if self.damage.is_gap_between(branch.id, chunk, at.min(lsn), at.max(lsn)) {
            return Err(lost(format!(
                "reconstruct chunk {chunk} at LSN {lsn}: the content that a later write replaced could not be read"
            )));
        }
        way
    }

    /// Returns the way from a start to the moment.
    fn way(
        &self,
        branch: &Arc<Branch>,
        chunk: Chunk,
        start: Start,
        lsn: Lsn,
        forward: bool,
    ) -> Result<Replay> {
        let (from, to) = match start {
            Start::Epoch(at, _) if forward => (at, lsn),
            Start::Epoch(at, _) => (lsn, at),
            Start::Head(_) => (lsn, branch.cdp.log.read().last_lsn().max(lsn)),
        };
        let size = branch.chunk_size();
        let emptied = branch.cdp.log.read().emptied(chunk.bytes(branch.chunk_log2), from, to);
        Replay::new(&branch.cdp, (chunk, size), from.next()..=to, emptied, forward)
    }

    /// Reconstructs the chunk by the shorter of two ways, or by the other one if the shorter one
    /// does not lead there.
    fn settle(
        &self,
        branch: &Arc<Branch>,
        chunk: Chunk,
        lsn: Lsn,
        before: Option<(Start, Result<Replay>)>,
        after: Option<(Start, Result<Replay>)>,
    ) -> Result<Vec<u8>> {
        // The last step before the moment and the first one after it know what the chunk was in
        // between.
        let known = |way: &Option<(Start, Result<Replay>)>| way.as_ref()?.1.as_ref().ok()?.sum;
        let sum = known(&before).or_else(|| known(&after));
        let mut ways: Vec<(Start, Result<Replay>)> = before.into_iter().chain(after).collect();
        ways.sort_by_key(|(_, way)| way.as_ref().map_or(usize::MAX, |way| way.len));
        let mut why: Option<Error> = None;
        for (start, way) in ways {
            match way.and_then(|way| self.go(branch, (chunk, lsn), start, &way, sum)) {
                Ok(content) => return Ok(content),
                Err(error) => note(&mut why, error),
            }
        }
        Err(why.unwrap_or_else(|| lost(format!("reconstruct chunk {chunk} at LSN {lsn}: no anchor is left"))))
    }

    fn go(
        &self,
        branch: &Arc<Branch>,
        (chunk, lsn): (Chunk, Lsn),
        start: Start,
        way: &Replay,
        sum: Option<u32>,
    ) -> Result<Vec<u8>> {
        let lost = |why: String| lost(format!("reconstruct chunk {chunk} at LSN {lsn}: {why}"));
        way.check().map_err(lost)?;
        let mut content = match start {
            Start::Epoch(_, epoch) => {
                self.frozen_chunk(&View { branch: branch.clone(), epoch, at: None }, chunk)?
            }
            Start::Head(version) => self.head_chunk(branch, chunk, version)?,
        };
        way.go(&mut content)?;
        if let Start::Epoch(at, _) = start
            && !branch.cdp.log.read().events.contains_key(&at)
        {
            return Err(lost("its anchor has expired".into()));
        }
        if sum.is_some_and(|sum| crc32c(&content) != sum) {
            return Err(lost(format!("the result of {} records from {start:?} does not verify", way.len)));
        }
        Ok(content)
    }

    /// Returns the content of a chunk in place on a branch now. The content is whole even while the
    /// chunk is being overwritten. The call fails if the content is of another version.
    fn head_chunk(&self, branch: &Arc<Branch>, chunk: Chunk, version: u64) -> Result<Vec<u8>> {
        let _reading = self.readers.enter();
        let applying = branch.cdp.log.read().applying.clone();
        let mut content = self.placed_chunk(branch, chunk)?;
        for (_, start, end, patch) in applying.iter().flat_map(|applying| applying.of(chunk)) {
            let part = &mut content[*start as usize..*end as usize];
            match *patch {
                Patch::Zeros => part.fill(0),
                Patch::Journal(file, position) => self.read_journal(file, position, part)?,
            }
        }
        if branch.cdp.holds(version) {
            Ok(content)
        } else {
            Err(lost(format!("reconstruct chunk {chunk}: its content in place is newer by now")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cdp::log::Applying;
    use crate::cdp::write::committing::Committing;
    use crate::ids::SnapshotId;
    use crate::settings::CdpSettings;
    use crate::testing::Site;

    /// Three anchors of a batch whose data are not in place yet would hide the only place from
    /// which a moment before them can be reconstructed.
    #[test]
    fn nobody_goes_back_from_anchors_of_a_batch_that_is_not_in_place() {
        let settings = CdpSettings::default();
        let mut log = LogState::default();
        log.settings = Some(settings);
        log.put_event(Lsn(1), Event::On { settings, begins: true, size: 1 << 20, time: 1 });
        for (epoch, lsn) in (1..).map(Epoch).zip([10, 20, 21, 22]) {
            log.put_event(Lsn(lsn), Event::Anchor { epoch, snapshot: SnapshotId(epoch.0.into()), time: lsn });
        }
        log.applying = Some(Arc::new(Applying { parts: Vec::new(), in_place: Lsn(15) }));
        assert_eq!(
            log.starts(Lsn(12), 7, Lsn(15)),
            Some((vec![Start::Epoch(Lsn(10), Epoch(1))], vec![Start::Head(7)]))
        );
        assert_eq!(
            log.starts(Lsn(5), 7, Lsn(15)),
            Some((vec![], vec![Start::Epoch(Lsn(10), Epoch(1)), Start::Head(7)]))
        );
        log.applying = None;
        let newer = [(20, 2), (21, 3), (22, 4)].map(|(lsn, epoch)| Start::Epoch(Lsn(lsn), Epoch(epoch)));
        let from_anchors = Some((vec![Start::Epoch(Lsn(10), Epoch(1))], newer.to_vec()));
        assert_eq!(log.starts(Lsn(12), 7, Lsn(30)), from_anchors);
    }

    /// Behind an anchor a long discard changes the content in place in steps, before the log has
    /// its event.
    #[test]
    fn the_content_in_place_is_no_start_right_behind_an_anchor() {
        let settings = CdpSettings::default();
        let mut log = LogState::default();
        log.settings = Some(settings);
        log.put_event(Lsn(1), Event::On { settings, begins: true, size: 1 << 20, time: 1 });
        log.put_event(Lsn(9), Event::Anchor { epoch: Epoch(2), snapshot: SnapshotId(2), time: 9 });
        let anchor = Start::Epoch(Lsn(9), Epoch(2));
        let newer = |settled| log.starts(Lsn(5), 7, Lsn(settled)).map(|(_, newer)| newer);
        assert_eq!(newer(8), Some(vec![anchor, Start::Head(7)]));
        assert_eq!(newer(9), Some(vec![anchor]));
        assert_eq!(newer(10), Some(vec![anchor, Start::Head(7)]));
    }

    /// Between a commit and its publication the catalog has content from which no record in memory
    /// leads back.
    #[test]
    fn what_is_in_place_is_not_taken_while_a_commit_is_under_way() {
        let site = Site::new(63).having("v", 1 << 20, 4096);
        site.pool.set_cdp("v", Some(CdpSettings::default())).unwrap();
        site.put(0, 7, 4096);
        site.pool.drain().unwrap();
        let branch = site.pool.core.names.read().volume("v").unwrap().line.branch.clone();
        let version = branch.cdp.version.load(Ordering::SeqCst);
        let head = || site.pool.core.head_chunk(&branch, Chunk::FIRST, version);
        assert_eq!(head().unwrap(), [7; 4096]);
        let committing = Committing::begin(&branch);
        assert_eq!(head().unwrap_err().kind(), ErrorKind::Lost);
        drop(committing);
        assert_eq!(head().unwrap(), [7; 4096]);
    }
}
