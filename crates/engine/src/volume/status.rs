//! Reports what is allocated and what reads as zeros (NBD `base:allocation`, SCSI GET LBA STATUS).

use super::Volume;
use crate::branch::image::ExternalImage;
use crate::branch::pinned::PinnedMoment;
use crate::branch::{Base, View};
use crate::catalog::page::{CHUNKS, MapPage, Slot};
use crate::cdp::moment::thin::Shown;
use crate::core::Core;
use crate::device::StatusRun;
use crate::error::Result;
use crate::ids::{BranchId, Chunk, Lsn};
use crate::map::Held;
use crate::staging::{SectorSource, Stretch};
use crate::units::{BLOCK, SECTOR};
use std::ops::Range;
use std::sync::Arc;

/// Number of chunks that one call examines. The answer may be shorter than the question.
const MAX_CHUNKS: u64 = 1 << 20;

/// Number of bytes of a large chunk that are resolved at a time.
const STRIDE: u64 = 1 << 20;

/// Number of bytes of a volume whose staging is outlined at a time.
const OUTLINE: u64 = 64 << 20;

/// Number of queries of moments by one call, each of which may read a few pages and indexes. The
/// answer may be shorter than the question.
const MAX_LOOKS: usize = 1024;

const DATA: (bool, bool) = (true, false);
const HOLE: (bool, bool) = (false, true);

/// Collects runs, and merges neighbours of one kind.
struct Runs {
    runs: Vec<StatusRun>,
    max: usize,
    /// The byte at which the question ends.
    end: u64,
    /// Number of queries of moments that are still allowed.
    looks: usize,
    /// The last answer for each moment.
    seen: Vec<Seen>,
}

/// The content that a moment shows in a range, in parts end to end.
struct Seen {
    moment: (BranchId, Lsn),
    parts: Vec<(Range<u64>, Shown)>,
}

impl Seen {
    /// Returns the part that contains byte `at`, and the parts that follow it.
    fn from(&self, at: u64) -> &[(Range<u64>, Shown)] {
        let next = self.parts.partition_point(|(part, _)| part.end <= at);
        let begins = self.parts.get(next).is_some_and(|(part, _)| part.start <= at);
        if begins { &self.parts[next..] } else { &[] }
    }
}

impl Runs {
    /// Returns the known parts of a moment in `bytes`, end to end from the start of `bytes` on. The
    /// list is empty if that start is not known.
    fn seen(&self, at: &PinnedMoment, bytes: &Range<u64>) -> Vec<(Range<u64>, Shown)> {
        let seen = self.seen.iter().find(|seen| seen.moment == at.place());
        let parts = seen.map_or(&[][..], |seen| seen.from(bytes.start)).iter();
        let parts = parts.take_while(|(part, _)| part.start < bytes.end);
        parts.map(|(part, shown)| (part.start.max(bytes.start)..part.end.min(bytes.end), *shown)).collect()
    }

    /// Queries a moment. Returns the byte at which the answer ends.
    fn look(&mut self, core: &Core, at: &PinnedMoment, bytes: Range<u64>) -> Result<u64> {
        let (moment, start) = (at.place(), bytes.start);
        self.looks = self.looks.saturating_sub(1);
        let parts = core.shown_at(at, bytes)?;
        let end = parts.last().map_or(start, |(part, _)| part.end);
        match self.seen.iter_mut().find(|seen| seen.moment == moment) {
            Some(seen) => seen.parts = parts,
            None => self.seen.push(Seen { moment, parts }),
        }
        Ok(end)
    }

    /// Appends a run. False when the list is full.
    fn push(&mut self, length: u64, (allocated, zero): (bool, bool)) -> bool {
        let full = self.runs.len() == self.max;
        match self.runs.last_mut() {
            Some(run) if run.allocated == allocated && run.zero == zero => run.length += length,
            _ if full => return false,
            _ => self.runs.push(StatusRun { length, allocated, zero }),
        }
        true
    }
}

impl Volume {
    pub(super) fn status_runs(&self, offset: u64, len: u64, max_runs: usize) -> Result<Vec<StatusRun>> {
        self.check_range(offset, len)?;
        let _reading = self.core.readers.enter();
        let chunks = self.branch().chunks(offset, len);
        let last = chunks.end.min(Chunk(chunks.start.0 + MAX_CHUNKS));
        let end = (offset + len).min(last.start(self.branch().chunk_log2));
        loop {
            let based = self.state.line.based();
            let mut runs =
                Runs { runs: Vec::new(), max: max_runs.max(1), end, looks: MAX_LOOKS, seen: Vec::new() };
            let walked = self.line_runs(&self.state.line, offset..end, &mut runs);
            if based.hold() {
                return walked.map(|_| runs.runs);
            }
        }
    }

    /// Returns whether anything that the volume shows rests on a moment. If so, the history is read
    /// to report what is allocated.
    pub(super) fn rests_on_a_moment(&self) -> bool {
        self.state.line.all_levels().any(|line| line.at.is_some())
    }

    /// Adds the runs of a range of a line. False when the list is full, or this call has done
    /// enough.
    fn line_runs(&self, line: &View, bytes: Range<u64>, runs: &mut Runs) -> Result<bool> {
        let mut walk = Walk { volume: self, line, runs, gap: bytes.start..bytes.start };
        if let Some(at) = &line.at {
            return Ok(walk.moment(at, bytes)? && walk.end_gap()?);
        }
        // Staging is checked once, before any page. What was acknowledged before is staged, or in
        // every page that is read from here on.
        let all = if line.branch.staging.is_empty() { walk.mapped(bytes)? } else { walk.staged(bytes)? };
        Ok(all && walk.end_gap()?)
    }
}

/// Adds the runs of a range of an image. False when the list is full. Data is reported in whole
/// blocks.
fn image_runs(image: &ExternalImage, bytes: Range<u64>, runs: &mut Runs) -> Result<bool> {
    let mut at = bytes.start;
    while at < bytes.end {
        let (end, data) = if at < image.record.shown { image.run_at(at)? } else { (bytes.end, false) };
        let whole = if data { end.next_multiple_of(BLOCK) } else { end - end % BLOCK };
        // This is a hole that ends in the block in which it began.
        let data = data || whole <= at && end < image.record.shown;
        let end = if whole > at { whole } else { (at + 1).next_multiple_of(BLOCK) }.min(bytes.end);
        if !runs.push(end - at, if data { DATA } else { HOLE }) {
            return Ok(false);
        }
        at = end;
    }
    Ok(true)
}

/// A walk along a line.
struct Walk<'a> {
    volume: &'a Volume,
    line: &'a View,
    runs: &'a mut Runs,
    /// The last bytes of the walk for which the line itself has nothing. The base is asked for all
    /// of them at once.
    gap: Range<u64>,
}

impl Walk<'_> {
    /// Notes that the line itself has nothing of the next bytes.
    fn absent(&mut self, bytes: Range<u64>) {
        if self.gap.is_empty() {
            self.gap.start = bytes.start;
        }
        self.gap.end = bytes.end;
    }

    /// Adds the next bytes, which the line itself knows. False when the list is full.
    fn known(&mut self, bytes: Range<u64>, kind: (bool, bool)) -> Result<bool> {
        Ok(self.end_gap()? && self.runs.push(bytes.end - bytes.start, kind))
    }

    fn end_gap(&mut self) -> Result<bool> {
        let gap = std::mem::replace(&mut self.gap, 0..0);
        match self.line.branch.base() {
            _ if gap.is_empty() => Ok(true),
            Some(Base::View(base)) => self.volume.line_runs(&base, gap, self.runs),
            Some(Base::Image(image)) => image_runs(&image, gap, self.runs),
            None => Ok(self.runs.push(gap.end - gap.start, HOLE)),
        }
    }

    /// Adds a range of a moment, by what is in place and recorded. The queried range grows while
    /// nothing is found, so a caller that wants one run gets it without everything that follows. It
    /// extends beyond `bytes`, because a line that rests on a moment asks for many ranges close
    /// together.
    fn moment(&mut self, at: &PinnedMoment, bytes: Range<u64>) -> Result<bool> {
        let page = CHUNKS << self.line.branch.chunk_log2;
        let (mut start, mut window) = (bytes.start, page);
        while start < bytes.end {
            let mut seen = self.runs.seen(at, &(start..bytes.end));
            if seen.is_empty() {
                // At least one run is reported.
                if self.runs.looks == 0 && !(self.gap.is_empty() && self.runs.runs.is_empty()) {
                    self.end_gap()?;
                    return Ok(false);
                }
                let end = start.saturating_add(window).min(self.runs.end);
                let reached = self.runs.look(&self.volume.core, at, start..end)?;
                window = if reached == end { window.saturating_mul(8) } else { page };
                seen = self.runs.seen(at, &(start..bytes.end));
            }
            for (part, shown) in seen {
                start = part.end;
                match shown {
                    Shown::Below => self.absent(part),
                    Shown::Zeros if !self.known(part.clone(), HOLE)? => return Ok(false),
                    Shown::Data if !self.known(part.clone(), DATA)? => return Ok(false),
                    Shown::Zeros | Shown::Data => {}
                }
            }
        }
        Ok(true)
    }

    /// Adds a range of which something may be staged.
    fn staged(&mut self, bytes: Range<u64>) -> Result<bool> {
        let mut start = bytes.start;
        while start < bytes.end {
            let end = ((start / OUTLINE + 1) * OUTLINE).min(bytes.end);
            for (part, stretch) in self.line.branch.staging.outline(start..end, self.line.epoch) {
                let goes_on = match stretch {
                    Stretch::Below => self.mapped(part)?,
                    // A discard counts from its acknowledgement. The slot is freed later, which no
                    // client needs to know. In a discarded part of a chunk, the space may turn out
                    // to stay.
                    Stretch::Zeros(keeps_space) => self.known(part, (keeps_space, true))?,
                    Stretch::Written => self.written(part)?,
                };
                if !goes_on {
                    return Ok(false);
                }
            }
            start = end;
        }
        Ok(true)
    }

    /// Adds a range of blocks in each of which something is staged.
    fn written(&mut self, bytes: Range<u64>) -> Result<bool> {
        let chunk_log2 = self.line.branch.chunk_log2;
        let mut start = bytes.start;
        while start < bytes.end {
            let chunk_end = Chunk::of(start, chunk_log2).next().start(chunk_log2);
            let next = ((start / STRIDE + 1) * STRIDE).min(chunk_end).min(bytes.end);
            if !self.staged_part(start..next)? {
                return Ok(false);
            }
            start = next;
        }
        Ok(true)
    }

    /// Adds a range of which nothing is staged.
    fn mapped(&mut self, bytes: Range<u64>) -> Result<bool> {
        let (line, map) = (self.line, &self.volume.core.map);
        let chunks = line.branch.chunks(bytes.start, bytes.end - bytes.start);
        let clamp = |chunk: Chunk| chunk.start(line.branch.chunk_log2).clamp(bytes.start, bytes.end);
        let mut page: Option<(u64, Arc<MapPage>)> = None;
        let mut chunk = chunks.start;
        while chunk < chunks.end {
            let (number, index) = MapPage::locate(chunk);
            if page.as_ref().is_none_or(|(held, _)| *held != number) {
                page = map.cached(line, number).map(|page| (number, page));
                if page.is_none() {
                    // One query passes all pages in a row that are absent, or that lie in one hole.
                    let mut end = chunks.end.prev().page() + 1;
                    let held = map.held(line, number, &mut end)?;
                    let alike = clamp(chunk)..clamp(Chunk::first_of(end));
                    match held {
                        Held::Page => page = Some((number, map.load(line, number)?)),
                        Held::Nothing => self.absent(alike),
                        Held::Hole(_) if !self.known(alike, HOLE)? => return Ok(false),
                        Held::Hole(_) => {}
                    }
                    if page.is_none() {
                        chunk = Chunk::first_of(end);
                        continue;
                    }
                }
            }
            let range = clamp(chunk)..clamp(chunk.next());
            match page.as_ref().and_then(|(_, p)| p.get(index)) {
                None => self.absent(range),
                Some(entry) => {
                    let kind = if entry.slot == Slot::HOLE { HOLE } else { DATA };
                    if !self.known(range, kind)? {
                        return Ok(false);
                    }
                }
            }
            chunk = chunk.next();
        }
        Ok(true)
    }

    /// Adds a part of a chunk of which something may be staged. Staging is read before the map, as
    /// in a read.
    fn staged_part(&mut self, bytes: Range<u64>) -> Result<bool> {
        let (branch, epoch) = (&self.line.branch, self.line.epoch);
        let blocks = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
        let sources: Vec<_> = blocks.clone().map(|b| branch.staging.resolve(b, epoch)).collect();
        let (number, index) = MapPage::locate(Chunk::of(bytes.start, branch.chunk_log2));
        let entry = self.volume.core.map.load(self.line, number)?.get(index);
        let mapped = entry.is_some_and(|e| e.slot != Slot::HOLE);
        let kind = |source: &SectorSource| match source {
            SectorSource::Below if mapped => DATA,
            SectorSource::Below => HOLE,
            SectorSource::Staged(_) => DATA,
            SectorSource::Zeros(keeps_space) => (*keeps_space, true),
        };
        for (block, sources) in blocks.zip(&sources) {
            let mut at = bytes.start.max(block * BLOCK);
            let end = bytes.end.min((block + 1) * BLOCK);
            let sectors = &sources[(at % BLOCK / SECTOR) as usize..][..((end - at) / SECTOR) as usize];
            for run in sectors.chunk_by(|a, b| {
                kind(a) == kind(b) && (*a == SectorSource::Below) == (*b == SectorSource::Below)
            }) {
                let next = at + run.len() as u64 * SECTOR;
                match run[0] {
                    SectorSource::Below if entry.is_none() => self.absent(at..next),
                    _ if !self.known(at..next, kind(&run[0]))? => return Ok(false),
                    _ => {}
                }
                at = next;
            }
        }
        Ok(true)
    }
}
