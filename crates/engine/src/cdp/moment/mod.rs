//! Moments: the LSN that a moment stands for, the content of a volume at it, and read-only devices
//! that show it.

pub(crate) mod changed;
pub(crate) mod flushes;
pub(crate) mod history;
pub(crate) mod reconstruct;
pub(crate) mod replay;
pub(crate) mod sample;
pub(crate) mod spans;
pub(crate) mod thin;
pub(crate) mod time;
pub(crate) mod timeline;
pub(crate) mod unsettled;

use crate::branch::pinned::PinnedMoment;
use crate::branch::{Branch, ExternalBase};
use crate::catalog::{Event, SegmentRecord};
use crate::cdp::log::record::IndexEntry;
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::ids::{Chunk, Lsn, Stamp};
use crate::world::derived_uuid;
use std::sync::Arc;
use uuid::Uuid;

/// Bytes of chunks that a reader of a moment keeps, so that a sequential read does not reconstruct
/// a chunk twice.
const CACHED_BYTES: usize = 1 << 20;

/// Returns the identity of the device that shows a volume at an LSN. The identity is equal each
/// time the device is opened.
pub fn moment_uuid(volume: &Uuid, lsn: Lsn) -> Uuid {
    derived_uuid("hindcast moment", &[volume.as_bytes(), &lsn.0.to_be_bytes()])
}

impl PinnedMoment {
    /// Fills `out` from byte `offset`. Returns false if a chunk has to be reconstructed and
    /// `may_block` is false.
    pub(crate) fn read(&self, core: &Core, out: &mut [u8], offset: u64, may_block: bool) -> Result<bool> {
        let size = self.branch.chunk_size();
        let mut done = 0;
        while done < out.len() {
            let place = offset + done as u64;
            let (chunk, inside) = (Chunk::of(place, self.branch.chunk_log2), (place % size) as usize);
            let len = (size as usize - inside).min(out.len() - done);
            let content = match self.cached(chunk) {
                Some(content) => content,
                None if may_block => self.chunk(core, chunk)?,
                None => return Ok(false),
            };
            out[done..done + len].copy_from_slice(&content[inside..inside + len]);
            done += len;
        }
        Ok(true)
    }

    /// Returns a chunk as it was at the moment, from the cache or reconstructed.
    pub(crate) fn chunk(&self, core: &Core, chunk: Chunk) -> Result<Arc<[u8]>> {
        if let Some(content) = self.cached(chunk) {
            return Ok(content);
        }
        let content: Arc<[u8]> = core.chunk_of_moment(self, chunk)?.into();
        let mut cache = self.cache.lock();
        if cache.len() >= (CACHED_BYTES / content.len()).max(1) {
            cache.remove(0);
        }
        cache.push((chunk, content.clone()));
        Ok(content)
    }
}

impl Drop for PinnedMoment {
    fn drop(&mut self) {
        self.branch.cdp.unpin(self.lsn);
    }
}

pub(crate) fn yet_to_come(of: std::fmt::Arguments<'_>) -> crate::Error {
    invalid(format!("go to a moment{of}: it is in the future"))
}

/// The key by which a moment is looked up. A time is pool time.
#[derive(Clone, Copy)]
pub(crate) enum By {
    Lsn(Lsn),
    Time(u64),
}

impl By {
    pub(crate) fn reaches(self, stamp: Stamp) -> bool {
        match self {
            By::Lsn(most) => stamp.lsn <= most,
            By::Time(most) => stamp.time <= most,
        }
    }
}

impl Core {
    /// Returns the first map page in `first..=last` in which a moment may show anything.
    pub(crate) fn next_page_at(&self, at: &PinnedMoment, first: u64, last: u64) -> Result<Option<u64>> {
        let branch = &at.branch;
        // This comes first: what is settled meanwhile is found below.
        let unsettled = at.unsettled().and_then(|unsettled| {
            let from = Chunk::first_of(first).start(branch.chunk_log2);
            let first = unsettled.touched(from..u64::MAX).next();
            first.map(|range| Chunk::of(range.start, branch.chunk_log2).page())
        });
        let placed = self.catalog.next_mapped(branch.id, first, last)?;
        let kept = self.catalog.next_version(branch.id, Chunk::first_of(first))?.map(Chunk::page);
        let known = placed.into_iter().chain(kept).chain(unsettled).min().filter(|page| *page <= last);
        // Only what comes before that is looked for in the log.
        let recorded = branch.cdp.next_page(first..known.unwrap_or(last.saturating_add(1)))?;
        Ok(recorded.or(known))
    }
}

impl Branch {
    /// Returns the last record or event of the branch up to a moment.
    pub(crate) fn last_recorded(&self, by: By) -> Result<Option<Stamp>> {
        // Segments that lie before the moment as a whole need not be read, nor those that can't
        // have anything later.
        let whole = |r: &SegmentRecord| by.reaches(r.last());
        let (mut best, sealed, open) = {
            let log = self.cdp.log.read();
            // The first moment that there is may have neither a record nor another event any more.
            let events = log.events.iter().map(|(lsn, event)| match event {
                Event::Floor { lsn, time } => Stamp::new(*lsn, *time),
                _ => Stamp::new(*lsn, event.time()),
            });
            let event = events.filter(|stamp| by.reaches(*stamp)).max();
            let straddles = |r: &SegmentRecord| by.reaches(r.first());
            let sealed: Vec<_> = log.sealed.values().filter(|s| straddles(&s.record)).cloned().collect();
            let open = log.open.as_ref().filter(|open| straddles(&open.record));
            let open = open.map(|open| match whole(&open.record) {
                true => Ok(Some(open.record.last())),
                false => open.check().map(|()| latest(open.entries.values(), by)),
            });
            (event, sealed, open.transpose()?.flatten())
        };
        best = best.max(open);
        let ends = sealed.iter().filter(|s| whole(&s.record)).map(|s| s.record.last());
        best = best.max(ends.max());
        for segment in sealed.iter().filter(|s| !whole(&s.record)) {
            best = best.max(latest(segment.all_entries()?.iter(), by));
        }
        Ok(best)
    }
}

fn latest<'a>(entries: impl Iterator<Item = &'a IndexEntry>, by: By) -> Option<Stamp> {
    entries.map(IndexEntry::stamp).filter(|stamp| by.reaches(*stamp)).max()
}

impl Core {
    /// Fails with [`ErrorKind::Lost`] if records may be missing that reconstructions of moments
    /// need.
    pub(crate) fn check_histories(&self) -> Result<()> {
        match self.salvage.get().and_then(|found| found.histories.as_ref()) {
            Some(why) => Err(Error::new(ErrorKind::Lost, format!("show a moment of the past: {why}"))),
            None => Ok(()),
        }
    }
}

impl ExternalBase {
    /// Fills `out` from byte `at`.
    pub(crate) fn read(&self, core: &Core, out: &mut [u8], at: u64) -> Result<()> {
        match self {
            ExternalBase::Image(image) => image.read(out, at, true).map(drop),
            ExternalBase::Moment(moment) => moment.read(core, out, at, true).map(drop),
        }
    }
}
