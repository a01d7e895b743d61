//! What differs between two states: a snapshot and a later (or any other) snapshot, or a snapshot and now.
//!
//! Found by metadata: content is identified by where it was born (branch, chunk, epoch), so two states that find a chunk
//! in the same place of one history have the same content there, and nothing has to be read and compared. The answer may
//! name too much (whole chunks; what was written again with the same bytes), but never misses a change.

use super::Volume;
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::journal::record::BLOCK;
use crate::map::page::{CHUNKS, Entry, MapPage};
use crate::pool::line::{Based, Foreign, HEAD, Line};
use crate::staging::union;
use std::ops::Range;
use std::sync::Arc;

/// Map pages (of every line that decides) and long holes looked at by one step.
const PAGES_PER_STEP: usize = 1024;
/// Ranges found by one step, of each kind (staged, mapped): bounds its memory.
const RANGES_PER_STEP: usize = 4096;

/// A run of bytes that differ, or that do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangeRun {
    /// Length in bytes.
    pub length: u64,
    /// Its content may differ.
    pub changed: bool,
}

/// The difference between a snapshot and another state of the same history. Holds the snapshots that it compares: a
/// deletion waits.
pub struct Difference {
    to: Arc<Volume>,
    /// Held, so that what it sees is kept.
    from: Arc<Volume>,
}

/// The ways from two states down to what they have in common, as they are now.
struct Ways<'a> {
    to: &'a Volume,
    /// What both rested on when the ways were found.
    based: [Based; 2],
    /// Bytes from the start that both show of different images, or only one of any.
    foreign: u64,
    /// What lies above the branch that both have in common: what is there is in one state only.
    apart: Vec<Line>,
    /// The branch in common, at the earlier and at the later epoch.
    common: Option<(Line, Line)>,
}

impl Difference {
    /// Compares `to` with `from`, a snapshot. Both may belong to different volumes: a snapshot and a clone of it differ in
    /// what was written to the clone; states without a common history differ wherever either has anything.
    pub fn new(from: Arc<Volume>, to: Arc<Volume>) -> Result<Difference> {
        let (line, other) = (&from.state.line, &to.state.line);
        if line.epoch == HEAD {
            return Err(invalid(
                "compare two states: the first must be a snapshot, it may not change meanwhile",
            ));
        }
        if line.at.is_some() || other.at.is_some() {
            // Its map says what the branch holds now, and content of a moment has no place to be known by.
            return Err(Error::new(ErrorKind::Unsupported, "compare two states: one of them is a moment"));
        }
        if line.branch.chunk_log2 != other.branch.chunk_log2 {
            return Err(invalid("compare two states: their chunk sizes differ"));
        }
        if !Arc::ptr_eq(&from.pool, &to.pool) {
            return Err(invalid("compare two states: they are of different pools"));
        }
        Ok(Difference { to, from })
    }

    /// The size of what is compared, in bytes: that of the second state. Beyond the end of a smaller first state it has
    /// zeros.
    pub fn size(&self) -> u64 {
        self.to.size()
    }

    /// Describes `offset..offset+len` as runs in order; stops early, at a run's end, once `max_runs` were found or much
    /// was looked at. At least one run is reported, unless `len` is 0.
    pub fn runs(&self, offset: u64, len: u64, max_runs: usize) -> Result<Vec<ChangeRun>> {
        let (changed, end) = self.step(offset, len)?;
        let mut runs = Vec::new();
        let mut at = offset;
        for range in changed.into_iter().chain(std::iter::once(end..end)) {
            for (to, changed) in [(range.start, false), (range.end, true)] {
                if to > at && runs.len() < max_runs.max(1) {
                    runs.push(ChangeRun { length: to - at, changed });
                    at = to;
                }
            }
        }
        Ok(runs)
    }

    /// The ranges that differ, in order, found step by step: an error ends it.
    pub fn ranges(&self) -> impl Iterator<Item = Result<Range<u64>>> + '_ {
        self.ranges_from(0)
    }

    /// The same from `offset` on, a multiple of the block size.
    pub fn ranges_from(&self, offset: u64) -> impl Iterator<Item = Result<Range<u64>>> + '_ {
        let (mut at, mut found) = (offset, Vec::<Range<u64>>::new().into_iter());
        // The last one found: the next step may have more of it.
        let mut last: Option<Range<u64>> = None;
        let mut next = move || -> Result<Option<Range<u64>>> {
            loop {
                match (found.next(), &mut last) {
                    (Some(range), Some(last)) if last.end == range.start => last.end = range.end,
                    (Some(range), last) => {
                        if let Some(complete) = last.replace(range) {
                            return Ok(Some(complete));
                        }
                    }
                    (None, last) if at >= self.size() => return Ok(last.take()),
                    (None, _) => {
                        let (changed, end) = self.step(at, self.size().saturating_sub(at))?;
                        (at, found) = (end, changed.into_iter());
                    }
                }
            }
        };
        let mut failed = false;
        std::iter::from_fn(move || {
            let item = if failed { None } else { next().transpose() };
            failed = matches!(item, Some(Err(_)));
            item
        })
    }

    /// The ranges of `offset..offset+len` that differ, in order and apart from one another, and where the step ended: it
    /// says nothing of what follows. A bounded piece of work; the catalog is read a page at a time.
    pub fn step(&self, offset: u64, len: u64) -> Result<(Vec<Range<u64>>, u64)> {
        self.to.check_range(offset, len)?;
        loop {
            let ways = Ways::between(&self.from.state.line, &self.to);
            let step = ways.step(offset..offset + len);
            // A base that somebody lets go of meanwhile may be gone: the ways are others now.
            if ways.based.iter().all(Based::hold) {
                return step;
            }
        }
    }
}

impl<'a> Ways<'a> {
    fn between(line: &Line, to: &'a Volume) -> Ways<'a> {
        let other = &to.state.line;
        let based = [line.based(), other.based()];
        let mut apart: Vec<Line> = other.levels().collect();
        let mut common = None;
        for mine in line.levels() {
            if let Some(at) = apart.iter().position(|l| l.branch.id == mine.branch.id) {
                let theirs = apart.split_off(at).swap_remove(0);
                common = Some(if theirs.epoch < mine.epoch { (theirs, mine) } else { (mine, theirs) });
                break;
            }
        }
        let common_branch = common.as_ref().map(|(line, _)| line.branch.id);
        apart.extend(line.levels().take_while(|l| Some(l.branch.id) != common_branch));
        let below = [line.foreign(), other.foreign()];
        let same = match &below {
            [None, None] => true,
            [Some(mine), Some(theirs)] => mine.is(theirs),
            _ => false,
        };
        let shown = below.iter().flatten().map(Foreign::shown).max().unwrap_or(0);
        let foreign = if same || common.is_some() { 0 } else { shown.next_multiple_of(BLOCK) };
        Ways { to, based, foreign, apart, common }
    }

    fn step(&self, mut bytes: Range<u64>) -> Result<(Vec<Range<u64>>, u64)> {
        // Staging is asked before the map: a record leaves the one only after it has entered the other.
        let mut found = self.staged(&mut bytes);
        found.extend(self.mapped(&mut bytes)?);
        found.push(bytes.start..self.foreign);
        found.retain(|r| r.start < bytes.end.min(r.end));
        found.iter_mut().for_each(|r| r.end = r.end.min(bytes.end));
        Ok((union(found), bytes.end))
    }

    /// Ranges that only one of the states sees staged records in. Shortens `bytes` to what the answer covers.
    fn staged(&self, bytes: &mut Range<u64>) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        let common = self.common.iter().map(|(earlier, later)| (later, earlier.epoch.saturating_add(1)));
        for (line, first) in self.apart.iter().map(|line| (line, 0)).chain(common) {
            if !line.branch.staging.is_empty() && first <= line.epoch {
                let staging = &line.branch.staging;
                let (touched, end) = staging.touched(bytes.clone(), first..=line.epoch, RANGES_PER_STEP);
                bytes.end = end;
                found.extend(touched);
            }
        }
        found
    }

    /// Ranges of chunks that the maps give different contents. Shortens `bytes` to what the answer covers.
    fn mapped(&self, bytes: &mut Range<u64>) -> Result<Vec<Range<u64>>> {
        let chunk_log2 = self.to.branch().chunk_log2;
        let asked = bytes.clone();
        let clamp = |chunk: u64| chunk.saturating_mul(1 << chunk_log2).clamp(asked.start, asked.end);
        let chunks = asked.start >> chunk_log2..asked.end.div_ceil(1 << chunk_log2);
        let mut found: Vec<Range<u64>> = Vec::new();
        let mut add = |chunks: Range<u64>| {
            let range = clamp(chunks.start)..clamp(chunks.end);
            match found.last_mut() {
                Some(run) if run.end == range.start => run.end = range.end,
                _ => found.push(range),
            }
            found.len()
        };
        let (mut chunk, mut ranges, mut looked) = (chunks.start, 0, 0);
        while chunk < chunks.end {
            if ranges >= RANGES_PER_STEP || looked == PAGES_PER_STEP {
                bytes.end = clamp(chunk);
                break;
            }
            looked += 1;
            let (number, first) = (chunk / CHUNKS, chunk);
            let (end, verdict) = self.span(number, (chunks.end - 1) / CHUNKS)?;
            chunk = chunks.end.min(end.saturating_mul(CHUNKS));
            match verdict {
                Some(true) => ranges = add(first..chunk),
                Some(false) => {}
                None => {
                    let pages = self.pages(number)?;
                    for differs in (first..chunk).filter(|chunk| pages.differ(MapPage::locate(*chunk).1)) {
                        ranges = add(differs..differs + 1);
                    }
                }
            }
        }
        Ok(found)
    }

    /// Do the states differ in page `number`, and in those up to the end of the span that is returned? `None`: its chunks
    /// decide, the span is that page alone.
    fn span(&self, number: u64, last: u64) -> Result<(u64, Option<bool>)> {
        let (mut end, mut differs) = (last + 1, false);
        for line in &self.apart {
            match self.held(line, number, &mut end)? {
                Held::Page => return Ok((number + 1, None)),
                Held::Hole(_) => differs = true,
                Held::Nothing => {}
            }
        }
        if let Some((earlier, later)) = self.common.as_ref().filter(|(a, b)| a.epoch != b.epoch) {
            let held = (self.held(earlier, number, &mut end)?, self.held(later, number, &mut end)?);
            differs |= match held {
                (Held::Page, _) | (_, Held::Page) => return Ok((number + 1, None)),
                (_, Held::Hole(born)) => born > earlier.epoch,
                (was, Held::Nothing) => was != Held::Nothing,
            };
        }
        Ok((end, Some(differs)))
    }

    /// What a line holds at page `number`; shortens the span behind it that is all alike, `number..end`.
    fn held(&self, line: &Line, number: u64, end: &mut u64) -> Result<Held> {
        let hole = self.to.pool.catalog.hole_at(line.branch.id, number)?;
        let next = match hole {
            Some(hole) => {
                *end = hole.end.min(*end);
                if hole.born <= line.epoch {
                    return Ok(Held::Hole(hole.born));
                }
                // It came later: the line sees what was there before.
                let version = self.to.pool.catalog.next_version(line.branch.id, number * CHUNKS)?;
                version.map(|chunk| chunk / CHUNKS)
            }
            None => self.to.pool.map.next_page(line, number, *end - 1)?,
        };
        if next == Some(number) {
            return Ok(Held::Page);
        }
        *end = next.map_or(*end, |next| next.min(*end));
        Ok(Held::Nothing)
    }

    fn pages(&self, number: u64) -> Result<Pages> {
        let map = &self.to.pool.map;
        let apart = self.apart.iter().map(|line| map.load(line, number)).collect::<Result<_>>()?;
        let common = match &self.common {
            // The later first: what is overwritten in between is then found among what the earlier sees.
            Some((earlier, later)) if earlier.epoch != later.epoch => {
                let later = map.load(later, number)?;
                Some((map.load(earlier, number)?, later, earlier.epoch))
            }
            _ => None,
        };
        Ok(Pages { apart, common })
    }
}

/// What a line itself has of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    /// What was there before, in its base.
    Nothing,
    /// A long hole, and when it was born.
    Hole(u32),
    /// Perhaps chunks.
    Page,
}

/// One page of every line that decides.
struct Pages {
    apart: Vec<Arc<MapPage>>,
    /// At the earlier and the later epoch, and the former.
    common: Option<(Arc<MapPage>, Arc<MapPage>, u32)>,
}

impl Pages {
    fn differ(&self, index: usize) -> bool {
        self.apart.iter().any(|page| page.get(index).is_some())
            || self.common.as_ref().is_some_and(|(earlier, later, epoch)| {
                match (earlier.get(index), later.get(index)) {
                    // Born since, or else still what it was.
                    (_, Some(Entry { born, .. })) => born > *epoch,
                    (was, None) => was.is_some(),
                }
            })
    }
}
