//! Forgetting: histories that have come of age, or grown too large, lose their beginning; those of deleted volumes go.
//!
//! What goes is committed first, then the files lose their names. Anchors that nothing needs any more are snapshots like
//! others: what a user can still see stays, the rest is dissolved.

use super::record::SegmentHead;
use super::{CdpInfo, Encoding, Retention};
use crate::catalog::{Event, LineRecord, SegmentRecord};
use crate::disk::Dir;
use crate::error::Result;
use crate::pool::line::{Branch, VolumeState};
use crate::pool::{Maintenance, Pool};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A stretch of a volume's past on one branch.
pub(super) struct Stretch {
    pub(super) branch: Arc<Branch>,
    /// LSN of the line in the volume's table.
    pub(super) lsn: u64,
    /// Time at which the next one begins.
    pub(super) until: Option<u64>,
}

impl Pool {
    /// Takes a step of forgetting. False when there is nothing to forget.
    pub(crate) fn forget_history(&self, m: &mut Maintenance) -> Result<bool> {
        let forgot = self.end_histories(m).and_then(|ended| Ok(ended || self.enforce_retention(m)?));
        forgot.map_err(|e| self.fault.poison(&e))
    }

    /// Drops what nothing rests on of the history of a deleted volume; a volume that was rolled back rests on itself, so that
    /// goes piece by piece.
    fn end_histories(&self, m: &mut Maintenance) -> Result<bool> {
        let ended: Vec<u64> = m.ended.iter().copied().collect();
        for volume in ended {
            let stretches = self.stretches(volume);
            if let Some(free) = stretches.iter().find(|s| s.branch.cdp.may_forget(u64::MAX)) {
                self.drop_stretch(m, volume, free)?;
                return Ok(true);
            }
            if stretches.is_empty() {
                self.drop_lines(m, volume)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn drop_lines(&self, m: &mut Maintenance, volume: u64) -> Result<()> {
        let lines = self.lines.read().get(&volume).cloned().unwrap_or_default();
        let mut txn = self.catalog.begin()?;
        lines.keys().try_for_each(|lsn| txn.remove_cdp_line(volume, *lsn))?;
        self.commit_aside(m, txn, &[])?;
        self.lines.write().remove(&volume);
        m.ended.remove(&volume);
        Ok(())
    }

    /// The stretches of a volume's past, oldest first.
    pub(super) fn stretches(&self, volume: u64) -> Vec<Stretch> {
        let lines = self.lines.read();
        let names = self.names.read();
        let of_volume = lines.get(&volume).into_iter().flatten();
        let mut found: Vec<Stretch> = Vec::new();
        for (lsn, line) in of_volume {
            let LineRecord::Branch { branch, time } = line else { continue };
            if let Some(last) = found.last_mut() {
                last.until = Some(*time);
            }
            if let Some(branch) = names.branches.get(branch) {
                found.push(Stretch { branch: branch.clone(), lsn: *lsn, until: None });
            }
        }
        found
    }

    /// Moves the beginning of one volume's history, if its retention says so.
    fn enforce_retention(&self, m: &mut Maintenance) -> Result<bool> {
        let volumes: Vec<Arc<VolumeState>> = {
            let lines = self.lines.read();
            let names = self.names.read();
            names.by_name.values().filter(|v| lines.contains_key(&v.id)).cloned().collect()
        };
        for state in volumes {
            let Some(retention) = state.line.branch.cdp.log.read().last_settings().map(|s| s.retention)
            else {
                continue;
            };
            if retention == Retention::default() {
                continue;
            }
            let stretches = self.stretches(state.id);
            let cutoff = retention.time.map(|time| self.now().saturating_sub(time));
            let stored: u64 = stretches.iter().map(|s| s.branch.cdp.log.read().stored()).sum();
            let too_large = retention.bytes.is_some_and(|most| stored > most);
            let Some(oldest) = stretches.first() else { continue };
            let is_old = |until: u64| cutoff.is_some_and(|cutoff| until <= cutoff);
            // A branch may come twice, with CDP off between.
            let again = stretches[1..].iter().any(|s| s.branch.id == oldest.branch.id);
            if let Some(until) = oldest.until
                && !again
                && (is_old(until) || too_large)
                && oldest.branch.cdp.may_forget(u64::MAX)
            {
                self.drop_stretch(m, state.id, oldest)?;
                return Ok(true);
            }
            // What a rollback rests on keeps its stretch; the younger ones go on losing their beginnings. None of them is dropped
            // out of the middle: its moments would seem to belong to the one before.
            for branch in stretches.iter().map(|s| &s.branch) {
                if let Some((lsn, time)) = branch.cdp.new_floor(cutoff, too_large)
                    && branch.cdp.may_forget(lsn)
                {
                    self.raise_floor(m, branch, lsn, time)?;
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Forgets all that a branch has recorded.
    fn drop_stretch(&self, m: &mut Maintenance, volume: u64, stretch: &Stretch) -> Result<()> {
        let branch = &stretch.branch;
        let (segments, events) = {
            let log = branch.cdp.log.read();
            (log.all_segments(), log.events.keys().copied().collect::<Vec<u64>>())
        };
        let anchors: Vec<u64> = branch.cdp.log.read().anchors().collect();
        let mut txn = self.catalog.begin()?;
        for (seq, record, groups) in &segments {
            txn.remove_cdp_segment(branch.id, *seq)?;
            (0..*groups).try_for_each(|n| txn.remove_cdp_group(branch.id, *seq, n as u64))?;
            debug_assert!(record.records > 0);
        }
        events.iter().try_for_each(|lsn| txn.remove_cdp_event(branch.id, *lsn))?;
        txn.remove_cdp_line(volume, stretch.lsn)?;
        self.commit_aside(m, txn, &[])?;
        branch.cdp.change(|log| log.clear());
        if let Some(lines) = self.lines.write().get_mut(&volume) {
            lines.remove(&stretch.lsn);
        }
        self.let_go(m, branch, anchors, segments.iter().map(|(seq, record, _)| (*seq, *record)))
    }

    /// Forgets what a branch has recorded before an LSN.
    fn raise_floor(&self, m: &mut Maintenance, branch: &Arc<Branch>, lsn: u64, time: u64) -> Result<()> {
        let (segments, events, anchors) = {
            let log = branch.cdp.log.read();
            let gone = |s: &(u64, SegmentRecord, usize)| s.1.sealed && s.1.lsns.1 <= lsn;
            let segments: Vec<_> = log.all_segments().into_iter().filter(gone).collect();
            let events = log.events_before(lsn);
            let is_gone = |event: Option<&Event>| match event {
                Some(Event::Anchor { snapshot, .. }) => Some(*snapshot),
                _ => None,
            };
            let anchors: Vec<u64> = events.iter().filter_map(|at| is_gone(log.events.get(at))).collect();
            (segments, events, anchors)
        };
        let floor = Event::Floor { lsn, time };
        let mut txn = self.catalog.begin()?;
        segments.iter().try_for_each(|(seq, ..)| txn.remove_cdp_segment(branch.id, *seq))?;
        events.iter().try_for_each(|at| txn.remove_cdp_event(branch.id, *at))?;
        txn.put_cdp_event(branch.id, 0, &floor)?;
        self.commit_aside(m, txn, &[])?;
        branch.cdp.change(|log| {
            segments.iter().for_each(|(seq, ..)| drop(log.sealed.remove(seq)));
            events.iter().for_each(|at| log.remove_event(*at));
            log.put_event(0, floor);
        });
        self.let_go(m, branch, anchors, segments.into_iter().map(|(seq, record, _)| (seq, record)))
    }

    /// After the commit: files lose their names, and anchors that nobody sees are to be dissolved.
    fn let_go(
        &self,
        m: &mut Maintenance,
        branch: &Arc<Branch>,
        anchors: Vec<u64>,
        segments: impl Iterator<Item = (u64, SegmentRecord)>,
    ) -> Result<()> {
        for (seq, record) in segments {
            let head = SegmentHead { pool: self.uuid, branch: branch.id, seq, edition: record.edition };
            // Should it stay, the next opening finds that nobody knows it.
            let _ = self.dir.remove(&head.file_name());
        }
        for id in anchors {
            // A deletion that is only sequenced, and may yet be lost, counts when it is carried out.
            if self.catalog.snapshot(id)?.is_some_and(|s| s.deleted) {
                m.deleted.insert(id);
            }
        }
        let names = self.names.read();
        let is_left = !names.by_name.values().any(|v| v.line.branch.id == branch.id);
        if is_left {
            // It may have been trimmed before: what its anchors kept has to be looked at again.
            m.dead.entry(branch.id).or_insert(0);
        }
        Ok(())
    }

    /// How CDP of a volume stands.
    pub fn cdp(&self, volume: &str) -> Result<CdpInfo> {
        let state = self.names.read().volume(volume)?.clone();
        let cdp = &state.line.branch.cdp;
        let stretches = self.stretches(state.id);
        let mut info = CdpInfo {
            settings: cdp.wanted(),
            distance: cdp.distance(),
            from: None,
            records: 0,
            written: 0,
            payload: 0,
            stored: 0,
            segments: 0,
            anchors: 0,
            window: 0,
            short: false,
        };
        let mut seen = BTreeSet::new();
        for stretch in &stretches {
            let log = stretch.branch.cdp.log.read();
            info.from = info.from.or_else(|| log.begins());
            if !seen.insert(stretch.branch.id) {
                continue;
            }
            for record in log.segment_records() {
                info.records += record.records;
                info.written += record.written;
                info.payload += record.payload;
                info.stored += record.end;
                info.segments += 1;
            }
            info.anchors += log.anchors().count() as u64;
        }
        let (_, last) = self.journal.last();
        info.window = info.from.map_or(0, |(_, from)| last.saturating_sub(from));
        let wanted = cdp.wanted().and_then(|s| s.retention.time);
        let began = stretches.first().map_or(0, |s| s.branch.cdp.log.read().floor());
        // Where nothing was forgotten yet, history is as long as it can be.
        info.short = began > 0 && wanted.is_some_and(|time| info.window < time);
        Ok(info)
    }
}

impl super::log::BranchCdp {
    /// Where history should begin instead, as (LSN, time): at the newest anchor before `cutoff`, or at the end of a segment
    /// if records lead backward from there; with `too_large` at the first such place behind the oldest segment.
    fn new_floor(&self, cutoff: Option<u64>, too_large: bool) -> Option<(u64, u64)> {
        let log = self.log.read();
        let (floor, pinned) = (log.floor(), self.oldest_pin().unwrap_or(u64::MAX));
        if pinned <= floor {
            return None;
        }
        let anchor = |(at, event): (&u64, &Event)| match event {
            Event::Anchor { time, .. } => Some((*at, *time)),
            _ => None,
        };
        let backward = |at: u64| log.settings_at(at).is_some_and(|s| s.encoding != Encoding::Redo);
        let ends = || {
            let ends = log.sealed.values().map(|s| (s.record.lsns.1, s.record.times.1));
            ends.filter(|(at, _)| *at > floor && *at <= pinned && backward(*at))
        };
        let by_time = cutoff.and_then(|cutoff| {
            // Times grow with LSNs.
            let anchors = log.events.range(floor + 1..=pinned).filter_map(anchor);
            let anchor = anchors.take_while(|(_, time)| *time <= cutoff).last();
            ends().filter(|(_, time)| *time <= cutoff).max().max(anchor)
        });
        let first_end = log.sealed.values().next().map(|s| s.record.lsns.1).filter(|_| too_large);
        let by_size = first_end.filter(|end| *end <= pinned).and_then(|end| {
            let anchor = log.events.range(end.max(floor + 1)..=pinned).find_map(anchor);
            ends().filter(|(at, _)| *at >= end).chain(anchor).min()
        });
        by_time.max(by_size)
    }
}
