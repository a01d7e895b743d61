//! The recorded past of a volume, and the moments to which it can be taken back.

use super::Pool;
use crate::cdp::log::record::{IndexEntry, Replaced};
use crate::cdp::log::segment::LogFile;
use crate::cdp::moment::history::{MAX_BUCKETS, anchors_of};
use crate::cdp::moment::sample::CdpSample;
use crate::error::{Result, invalid};
use crate::ids::{Chunk, Lsn, SnapshotId, Stamp, VolumeId};
use crate::info::history::{Anchor, Bucket, Change, History, Mark};
use crate::info::timeline::{Amount, Window};
use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// The largest number of flush points in a [`History`].
const MAX_FLUSHES: usize = 4096;

impl Pool {
    /// Returns the recorded past of a volume, with its changes over time in `buckets` buckets. The
    /// buckets have one length, and reach from the first moment to now. Records that wait for
    /// destage count too, and are not carried out.
    pub fn history(&self, volume: &str, buckets: usize) -> Result<History> {
        if buckets > MAX_BUCKETS {
            return Err(invalid(format!("list a history: at most {MAX_BUCKETS} buckets")));
        }
        let past = self.past(volume)?;
        let mut history = History {
            marks: self.marks(past.volume.id, |_| true),
            flushes: self.core.newest_flushes(past.volume.id, u64::MAX, MAX_FLUSHES)?,
            spans: past.spans.clone(),
            anchors: self.anchors(&past, |_| true),
            clock: past.clock.clone(),
            ..History::default()
        };
        if let Some(first) = past.first.filter(|_| buckets > 0) {
            let window = Window::even(first, past.latest, buckets);
            let amounts = self.amounts(&past, window, 0);
            let bucket = |(n, amount): (usize, &Amount)| Bucket {
                from: window.start_of(n),
                records: amount.records,
                written: amount.written,
                stored: amount.stored,
            };
            history.buckets = amounts.buckets.iter().enumerate().map(bucket).collect();
        }
        past.by_the_wall(&mut history);
        Ok(history)
    }

    /// Returns when a range of bytes changed, within a range of LSNs: the oldest `limit` changes,
    /// oldest first.
    pub fn changes(
        &self,
        volume: &str,
        bytes: Range<u64>,
        lsns: RangeInclusive<Lsn>,
        limit: usize,
    ) -> Result<Vec<Change>> {
        let id = self.core.names.read().volume(volume)?.id;
        self.destager.record_until((*lsns.end()).min(self.core.journal.last().lsn))?;
        let mut found = self.recorded(id, &bytes, &lsns, limit)?;
        found.iter_mut().for_each(|change| change.time = self.core.clock.wall(change.time));
        Ok(found)
    }

    /// Returns the distinct chunks that were written between the last two anchors, or, if there
    /// were none, in all recorded history. At most `limit` writes are read, the oldest first. The
    /// cost model calls this repeatedly, so writes that are not destaged yet do not count, and are
    /// not destaged for it.
    pub fn recorded_chunks(&self, volume: &str, limit: usize) -> Result<BTreeSet<Chunk>> {
        let state = self.core.names.read().volume(volume)?.clone();
        let mut anchors = BTreeSet::new();
        for stretch in self.core.stretches(state.id) {
            anchors.extend(anchors_of(&stretch.branch.cdp.log.read()).iter().map(|(stamp, _)| stamp.lsn));
        }
        let mut newest = anchors.iter().rev();
        let between = match (newest.next(), newest.next()) {
            (Some(last), Some(before)) => before.next()..=*last,
            _ => Lsn::ZERO..=Lsn::MAX,
        };
        let everything = 0..u64::MAX;
        let mut changes = self.recorded(state.id, &everything, &between, limit)?;
        if changes.is_empty() {
            changes = self.recorded(state.id, &everything, &(Lsn::ZERO..=Lsn::MAX), limit)?;
        }
        let chunk_log2 = state.line.branch.chunk_log2;
        Ok(changes.iter().map(|change| Chunk::of(change.offset, chunk_log2)).collect())
    }

    /// Returns the changes that [`Pool::changes`] returns, as far as they are recorded by now.
    fn recorded(
        &self,
        volume: VolumeId,
        bytes: &Range<u64>,
        lsns: &RangeInclusive<Lsn>,
        limit: usize,
    ) -> Result<Vec<Change>> {
        let mut found = Vec::new();
        for stretch in self.core.stretches(volume) {
            stretch.branch.changes(bytes, lsns, limit, &mut found)?;
        }
        found.sort_by_key(|change: &Change| (change.lsn, change.offset));
        found.truncate(limit);
        Ok(found)
    }

    /// Returns at most `limit` records of a volume as they are stored, spread over the newest part
    /// of its log.
    pub fn cdp_samples(&self, volume: &str, limit: usize) -> Result<Vec<CdpSample>> {
        let state = self.core.names.read().volume(volume)?.clone();
        let newest = {
            let log = state.line.branch.cdp.log.read();
            let open = log.open.as_ref().filter(|open| !open.entries.is_empty());
            match open {
                Some(open) => Some((open.file.clone(), open.entries.values().copied().collect())),
                None => match log.sealed.values().next_back().cloned() {
                    Some(sealed) => {
                        drop(log);
                        Some((sealed.file.clone(), sealed.all_entries()?))
                    }
                    None => None,
                },
            }
        };
        let Some((file, mut entries)): Option<(LogFile, Vec<IndexEntry>)> = newest else {
            return Ok(Vec::new());
        };
        entries.retain(|entry| entry.replaced == Replaced::Payload);
        let stride = entries.len().div_ceil(limit.max(1)).max(1);
        let file = file.open()?;
        entries.iter().step_by(stride).take(limit).map(|entry| CdpSample::read(&file, entry)).collect()
    }

    /// Returns those marks of a volume whose pool times are wanted, in the order of LSNs.
    pub(super) fn marks(&self, volume: VolumeId, wants: impl Fn(u64) -> bool) -> Vec<Mark> {
        // Control operations wait for the names, so the marks are converted behind their lock.
        let mut found: Vec<(Arc<str>, Stamp)> = {
            let names = self.core.names.read();
            let wanted = names.marks.of(volume).filter(|(_, at)| wants(at.time));
            wanted.map(|(name, at)| (name.clone(), at)).collect()
        };
        found.sort_by_key(|(_, at)| at.lsn);
        let mark =
            |(name, at): (Arc<str>, Stamp)| Mark { name: name.as_ref().into(), lsn: at.lsn, time: at.time };
        found.into_iter().map(mark).collect()
    }

    /// Returns anchors with the names of their snapshots.
    pub(super) fn named(&self, anchors: Vec<(Stamp, SnapshotId)>) -> Vec<Anchor> {
        let names = self.core.names.read();
        let name = |id: &SnapshotId| {
            let snapshot = names.snapshots.get(id).filter(|s| names.is_in_sight(s))?;
            Some(snapshot.state.name.read().clone())
        };
        let named = |(Stamp { lsn, time }, id)| Anchor { lsn, time, snapshot: name(&id) };
        anchors.into_iter().map(named).collect()
    }
}
