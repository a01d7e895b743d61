//! The difference between two states: a snapshot or a moment, and another one, or the volume as it
//! is now.
//!
//! The difference is found by metadata. Content is identified by where it was born (branch, chunk,
//! epoch). If two states find a chunk in the same place of one history, they have the same content
//! there, and nothing has to be read and compared. What lies between a moment and another state of
//! the same history is known by the records between them. The answer may name too much (whole
//! chunks; bytes that were written again with the same content), but it never misses a change.

use super::Volume;
use crate::branch::{Based, Branch, ExternalBase, HEAD, View};
use crate::catalog::Event;
use crate::catalog::page::{Entry, MapPage};
use crate::cdp::moment::changed::Recorded;
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::ids::{Chunk, Epoch, Lsn};
use crate::map::Held;
use crate::staging::union;
use crate::units::BLOCK;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use uuid::Uuid;

/// Number of map pages (of every line that decides) and of long holes that one step reads.
const PAGES_PER_STEP: usize = 1024;
/// Number of ranges that one step finds, of each kind (staged, mapped). It bounds the step's
/// memory.
const RANGES_PER_STEP: usize = 4096;

/// A run of bytes that may differ, or that do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangeRun {
    /// Length in bytes.
    pub length: u64,
    /// Whether the content of the run may differ.
    pub changed: bool,
}

/// The difference between a snapshot or a moment and another state of the same history. It holds
/// both states: what a deleted snapshot keeps is not freed, and a moment does not expire.
pub struct Difference {
    to: Arc<Volume>,
    /// The first state. It is held, so that what it sees is kept.
    from: Arc<Volume>,
}

/// The ways in which a difference is found, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// By maps down to the branch that both states have in common, and by its records where either
    /// state is a moment of it.
    Histories,
    /// By the maps of everything below both states. What they have in common is reported too, but
    /// not what neither has content for.
    Maps,
    /// By maps down to a moment; everything below counts as changed. The history does not even know
    /// what the moment showed.
    Top,
}

impl By {
    /// The next best way.
    fn next(self) -> Option<By> {
        match self {
            By::Histories => Some(By::Maps),
            By::Maps => Some(By::Top),
            By::Top => None,
        }
    }
}

fn is_unknown(error: &Error) -> bool {
    error.kind() == ErrorKind::Unsupported
}

/// Returns whether the error means that the history can't tell: it never knew, or what it knew
/// can't be read any more.
fn is_missing(error: &Error) -> bool {
    is_unknown(error) || error.kind() == ErrorKind::Lost
}

/// The lines from two states down to what they have in common, as they are now.
struct Ways<'a> {
    to: &'a Volume,
    by: By,
    /// The bases of both states when these lines were found.
    based: [Based; 2],
    /// Number of bytes, from the start, that the states show of different images, or that only one
    /// of them shows of an image.
    external: u64,
    /// Lines above the branch that both states have in common. Content there is in one state only.
    apart: Vec<View>,
    /// The common branch, at the earlier and at the later epoch. None when one of the states there
    /// is a moment.
    common: Option<(View, View)>,
    /// The changes that the logs of histories report about moments.
    recorded: Vec<Recorded>,
    /// Branches and epochs whose staged records only one of the states sees.
    staged: Vec<(Arc<Branch>, RangeInclusive<Epoch>)>,
}

impl Difference {
    /// Compares `to` with `from`, a snapshot or a moment. They may belong to different volumes. A
    /// snapshot and a clone of it differ in what was written to the clone. States without a common
    /// history differ wherever either has content. Returns [`ErrorKind::Unsupported`] if one is a
    /// moment and the changes between them are not all known. Later calls may also return it.
    pub fn new(from: Arc<Volume>, to: Arc<Volume>) -> Result<Difference> {
        let to = Volume::newest_of(to);
        let (line, other) = (&from.state.line, &to.state.line);
        if line.epoch == HEAD {
            return Err(invalid(
                "compare two states: the first must be a snapshot or a moment, which does not change",
            ));
        }
        if line.branch.chunk_log2 != other.branch.chunk_log2 {
            return Err(invalid("compare two states: their chunk sizes differ"));
        }
        if !Arc::ptr_eq(&from.core, &to.core) {
            return Err(invalid("compare two states: they belong to different pools"));
        }
        for at in [&line.at, &other.at].into_iter().flatten() {
            // The changes since a moment are known when it is carried out.
            from.destager.record_until(at.place().1)?;
        }
        if Ways::by(line, &to, By::Histories).is_err() {
            // The moment of a snapshot is known once its record is carried out.
            let carried_out = from.destager.record_until(from.core.journal.last().lsn);
            // Where no history is needed, the difference is known in spite of an error.
            if line.at.is_some() || to.state.line.at.is_some() {
                carried_out?;
            }
            Ways::between(line, &to, By::Histories)?;
        }
        Ok(Difference { to, from })
    }

    /// The identities of the two states: devices of these identities show them. A name may later
    /// mean another state.
    pub fn of(&self) -> [Uuid; 2] {
        [self.from.state.uuid, self.to.state.uuid]
    }

    /// The size of the second state, in bytes. Beyond the end of a smaller first state, that state
    /// counts as zeros.
    pub fn size(&self) -> u64 {
        self.to.size()
    }

    /// Describes `offset..offset+len` as runs in order. It stops early, at the end of a run, once
    /// `max_runs` were found or one step's work is done. At least one run is reported, unless `len`
    /// is 0.
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

    /// The ranges that differ, in order, found step by step. An error ends the iterator.
    pub fn ranges(&self) -> impl Iterator<Item = Result<Range<u64>>> + '_ {
        self.ranges_from(0)
    }

    /// The ranges that differ from `offset` on, a multiple of the block size, in order. An error
    /// ends the iterator.
    pub fn ranges_from(&self, offset: u64) -> impl Iterator<Item = Result<Range<u64>>> + '_ {
        let (mut at, mut found) = (offset, Vec::<Range<u64>>::new().into_iter());
        // The last range that was found: the next step may find its continuation.
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

    /// Returns the ranges of `offset..offset+len` that differ, in order and apart from one another,
    /// and the byte at which the step ended. Nothing is known of what follows that byte. The work
    /// is bounded; the catalog is read a page at a time.
    pub fn step(&self, offset: u64, len: u64) -> Result<(Vec<Range<u64>>, u64)> {
        self.to.check_range(offset, len)?;
        let line = &self.from.state.line;
        let (mut least, mut again) = (By::Histories, true);
        loop {
            let ways = Ways::between(line, &self.to, least)?;
            let step = ways.step(offset..offset + len);
            // A base that was dropped meanwhile may be gone: the lines are found again.
            if !ways.based.iter().all(Based::hold) {
                continue;
            }
            match (&step, ways.by.next().filter(|_| Ways::may_go_other_ways(line, &self.to))) {
                // Records between moments that the states rest on may just have expired. Now that
                // is known.
                (Err(error), _) if is_unknown(error) && again => again = false,
                (Err(error), Some(next)) if is_missing(error) => least = next,
                _ => return step,
            }
        }
    }
}

impl<'a> Ways<'a> {
    /// Finds the lines in the best way that works, but in none better than `least`.
    fn between(line: &View, to: &'a Volume, least: By) -> Result<Ways<'a>> {
        let mut by = least;
        loop {
            let found = Ways::by(line, to, by);
            match by.next() {
                Some(next) if found.as_ref().is_err_and(is_missing) && Ways::may_go_other_ways(line, to) => {
                    by = next;
                }
                _ => return found,
            }
        }
    }

    /// Returns whether another way is allowed. If a state is a moment itself, only the history can
    /// tell. A state that only rests on a moment has another way, which reports more.
    fn may_go_other_ways(line: &View, to: &Volume) -> bool {
        let states = [line, &to.state.line];
        states.iter().all(|line| line.at.is_none())
            && states.iter().any(|line| line.all_levels().any(|level| level.at.is_some()))
    }

    fn by(line: &View, to: &'a Volume, by: By) -> Result<Ways<'a>> {
        let levels = |line: &View| -> Vec<View> {
            if by == By::Top { line.levels().collect() } else { line.all_levels().collect() }
        };
        let (mine, theirs) = (levels(line), levels(&to.state.line));
        let meets = |of: &View| theirs.iter().position(|line| line.branch.id == of.branch.id);
        let common = mine.iter().enumerate().find_map(|(at, line)| Some((at, meets(line)?)));
        // Without the records between the two states in their common branch, all of it counts.
        let common = common.filter(|_| by != By::Maps);
        let below = [&mine, &theirs].map(|levels| levels.last().and_then(View::own_external_base));
        let same = match &below {
            [None, None] => true,
            [Some(mine), Some(theirs)] => mine.is(theirs),
            _ => false,
        };
        let shown = below.iter().flatten().map(ExternalBase::shown).max().unwrap_or(0);
        let mut ways = Ways {
            to,
            by,
            based: [&mine, &theirs].map(|levels| Based::of(levels.iter().cloned())),
            external: if same || common.is_some() { 0 } else { shown.next_multiple_of(BLOCK) },
            apart: Vec::new(),
            common: None,
            recorded: Vec::new(),
            staged: Vec::new(),
        };
        let (my_own, their_own) = common.unwrap_or((mine.len(), theirs.len()));
        theirs[..their_own].iter().chain(&mine[..my_own]).try_for_each(|line| ways.add_apart(line))?;
        if common.is_some() {
            ways.add_common(&theirs[their_own], &mine[my_own])?;
        }
        Ok(ways)
    }

    /// Adds a line that only one of the states has.
    fn add_apart(&mut self, line: &View) -> Result<()> {
        let mut line = line.clone();
        if let Some(at) = line.at.take() {
            // What the next anchor sees, and what was written until then, includes what the moment
            // had.
            let lsn = at.place().1;
            let next = line.branch.cdp.log.read().events.range(lsn..).find_map(|(lsn, event)| match event {
                Event::Anchor { epoch, .. } => Some((*lsn, *epoch)),
                _ => None,
            });
            let (until, epoch) = next.unwrap_or((Lsn::MAX, HEAD));
            self.recorded.push(Recorded::between(&line.branch, lsn, until)?);
            line.epoch = epoch;
        }
        self.staged.push((line.branch.clone(), Epoch::NONE..=line.epoch));
        self.apart.push(line);
        Ok(())
    }

    /// Adds the branch that both states have.
    fn add_common(&mut self, one: &View, other: &View) -> Result<()> {
        let branch = &one.branch;
        if one.at.is_none() && other.at.is_none() {
            let (earlier, later) = if one.epoch < other.epoch { (one, other) } else { (other, one) };
            self.staged.push((branch.clone(), earlier.epoch.next()..=later.epoch));
            self.common = Some((earlier.clone(), later.clone()));
            return Ok(());
        }
        let lsns = (lsn_of(one)?, lsn_of(other)?);
        self.recorded.push(Recorded::between(branch, lsns.0, lsns.1)?);
        let later = if lsns.0 > lsns.1 { one } else { other };
        if later.at.is_none() {
            // Everything up to a moment has been carried out.
            self.staged.push((branch.clone(), Epoch::NONE..=later.epoch));
        }
        Ok(())
    }

    fn step(&self, mut bytes: Range<u64>) -> Result<(Vec<Range<u64>>, u64)> {
        // Staging is read before the map: a record leaves staging only after it has entered the
        // map.
        let mut found = self.staged(&mut bytes);
        found.extend(self.mapped(&mut bytes)?);
        if !self.recorded.is_empty() {
            // Content that left a map meanwhile, which is read as it is now, is still staged, or
            // else recorded.
            found.extend(self.staged(&mut bytes));
        }
        for recorded in &self.recorded {
            found.extend(recorded.touched(&mut bytes)?);
        }
        found.push(bytes.start..self.external);
        found.iter_mut().for_each(|r| *r = r.start.max(bytes.start)..r.end.min(bytes.end));
        found.retain(|r| r.start < r.end);
        Ok((union(found), bytes.end))
    }

    /// Returns ranges with staged records that only one of the states sees. Shortens `bytes` to
    /// what the answer covers.
    fn staged(&self, bytes: &mut Range<u64>) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        for (branch, epochs) in &self.staged {
            if !branch.staging.is_empty() && !epochs.is_empty() {
                let (touched, end) = branch.staging.touched(bytes.clone(), epochs.clone(), RANGES_PER_STEP);
                bytes.end = end;
                found.extend(touched);
            }
        }
        found
    }

    /// Returns ranges of chunks for which the maps have different contents. Shortens `bytes` to
    /// what the answer covers.
    fn mapped(&self, bytes: &mut Range<u64>) -> Result<Vec<Range<u64>>> {
        let chunk_log2 = self.to.branch().chunk_log2;
        let asked = bytes.clone();
        let clamp = |chunk: Chunk| chunk.start(chunk_log2).clamp(asked.start, asked.end);
        let chunks = self.to.branch().chunks(asked.start, asked.end - asked.start);
        let mut found: Vec<Range<u64>> = Vec::new();
        let mut add = |chunks: Range<Chunk>| {
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
            let (number, first) = (chunk.page(), chunk);
            let (end, verdict) = self.span(number, chunks.end.prev().page())?;
            chunk = chunks.end.min(Chunk::first_of(end));
            match verdict {
                Some(true) => ranges = add(first..chunk),
                Some(false) => {}
                None => {
                    let pages = self.pages(number)?;
                    let differs = |chunk: &Chunk| pages.differ(MapPage::locate(*chunk).1);
                    for chunk in Chunk::each(first..chunk).filter(differs) {
                        ranges = add(chunk..chunk.next());
                    }
                }
            }
        }
        Ok(found)
    }

    /// Compares page `number`, and returns the end of the span to which the answer applies. The
    /// span may cover later pages too. `None`: the page's chunks decide, and the span is that page
    /// alone.
    fn span(&self, number: u64, last: u64) -> Result<(u64, Option<bool>)> {
        let (mut end, mut differs) = (last + 1, false);
        for line in &self.apart {
            match self.to.core.map.held(line, number, &mut end)? {
                Held::Page => return Ok((number + 1, None)),
                Held::Hole(_) => differs = true,
                Held::Nothing => {}
            }
        }
        if let Some((earlier, later)) = self.common.as_ref().filter(|(a, b)| a.epoch != b.epoch) {
            let map = &self.to.core.map;
            let held = (map.held(earlier, number, &mut end)?, map.held(later, number, &mut end)?);
            differs |= match held {
                (Held::Page, _) | (_, Held::Page) => return Ok((number + 1, None)),
                (_, Held::Hole(born)) => born > earlier.epoch,
                (was, Held::Nothing) => was != Held::Nothing,
            };
        }
        Ok((end, Some(differs)))
    }

    fn pages(&self, number: u64) -> Result<Pages> {
        let map = &self.to.core.map;
        let apart = self.apart.iter().map(|line| map.load(line, number)).collect::<Result<_>>()?;
        let common = match &self.common {
            // The later page is read first: what is overwritten in between is then found among what
            // the earlier one sees.
            Some((earlier, later)) if earlier.epoch != later.epoch => {
                let later = map.load(later, number)?;
                Some((map.load(earlier, number)?, later, earlier.epoch))
            }
            _ => None,
        };
        Ok(Pages { apart, common })
    }
}

/// Returns the LSN of the moment of its branch that a line is. The volume as it is now is the last
/// of all.
fn lsn_of(line: &View) -> Result<Lsn> {
    if let Some(at) = &line.at {
        return Ok(at.place().1);
    }
    if line.epoch == HEAD {
        return Ok(Lsn::MAX);
    }
    let log = line.branch.cdp.log.read();
    // Anchors are in the order of epochs, and the newest are used most.
    let mut anchors = log.events.iter().rev().filter_map(|(lsn, event)| match event {
        Event::Anchor { epoch, .. } if *epoch <= line.epoch => Some((*lsn, *epoch)),
        _ => None,
    });
    anchors.next().filter(|(_, epoch)| *epoch == line.epoch).map(|(lsn, _)| lsn).ok_or_else(|| {
        let why = "the moment of a snapshot is unknown if CDP was off when it was taken, or if it has left the history";
        Error::new(ErrorKind::Unsupported, format!("compare a moment with another state: {why}"))
    })
}

/// One page of every line that decides.
struct Pages {
    apart: Vec<Arc<MapPage>>,
    /// The page at the earlier and at the later epoch, and the earlier epoch.
    common: Option<(Arc<MapPage>, Arc<MapPage>, Epoch)>,
}

impl Pages {
    fn differ(&self, index: usize) -> bool {
        self.apart.iter().any(|page| page.get(index).is_some())
            || self.common.as_ref().is_some_and(|(earlier, later, epoch)| {
                match (earlier.get(index), later.get(index)) {
                    // The content was born since then, or it is unchanged.
                    (_, Some(Entry { born, .. })) => born > *epoch,
                    (was, None) => was.is_some(),
                }
            })
    }
}
