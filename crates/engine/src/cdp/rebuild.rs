//! Finding a chunk as it was: from the nearer anchor, forward or backward over the records between, and checked.

use super::codec::{crc_of_zeros, lost};
use super::log::{Located, LogState, Patch};
use crate::catalog::Event;
use crate::codec::crc32c;
use crate::error::{Error, ErrorKind, Result};
use crate::map::page::{MapPage, Slot};
use crate::pool::Pool;
use crate::pool::line::{Base, Branch, HEAD, Line};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Anchors that are tried on either side, nearest first, when the nearest does not lead there.
const TRIES: usize = 3;

/// Where a reconstruction starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// An anchor: everything up to this LSN, as the epoch shows it.
    Epoch(u64, u32),
    /// What is in place now, in this version of the log.
    Head(u64),
}

/// Of all the reasons why no way leads there: the first, but what may pass (an image that is away, a physical volume that does
/// not answer) comes before what is lost. Nothing is lost while a way may open again.
fn note(why: &mut Option<Error>, error: Error) {
    let passes = |error: &Error| !matches!(error.kind(), ErrorKind::Lost | ErrorKind::Corrupt);
    if why.as_ref().is_none_or(|first| passes(&error) && !passes(first)) {
        *why = Some(error);
    }
}

/// One step of a reconstruction.
enum Step {
    Record(Located),
    /// These bytes of the chunk became zeros: it leads forward only.
    Emptied(Range<usize>),
}

impl Step {
    fn leads(&self, forward: bool) -> bool {
        match self {
            Step::Record(located) if forward => located.entry.encoding.leads_forward(),
            Step::Record(located) => located.entry.encoding.leads_backward(),
            Step::Emptied(_) => forward,
        }
    }

    /// The chunk's sum before or after it, if that is known.
    fn sum(&self, after: bool, chunk_size: u64) -> Option<u32> {
        match self {
            Step::Record(located) if after => Some(located.entry.after),
            Step::Record(located) => Some(located.entry.before),
            Step::Emptied(range) if after && range.len() as u64 == chunk_size => {
                Some(crc_of_zeros(chunk_size))
            }
            Step::Emptied(_) => None,
        }
    }

    fn apply(&self, content: &mut [u8]) -> Result<()> {
        match self {
            Step::Record(located) => {
                let payload = located.file.payload(&located.entry)?;
                let part = content.get_mut(located.entry.bytes());
                let part = part.ok_or_else(|| lost("apply a CDP record: it does not fit its chunk"))?;
                located.entry.encoding.apply(part, &payload);
            }
            Step::Emptied(range) => content[range.clone()].fill(0),
        }
        Ok(())
    }
}

/// A way from a start to the moment.
struct Way {
    start: Start,
    steps: Vec<Step>,
    forward: bool,
}

impl LogState {
    /// Where reconstructions of a moment can start: before it (nearest first) and after it; none when nothing was recorded
    /// then.
    fn starts(&self, lsn: u64, version: u64) -> Option<(Vec<Start>, Vec<Start>)> {
        let began = self.recording_since(lsn)?;
        let anchor = |(at, event): (&u64, &Event)| match event {
            Event::Anchor { epoch, .. } => Some(Start::Epoch(*at, *epoch)),
            _ => None,
        };
        // The anchor with which recording begins comes right before it.
        let floor = self.floor().max(began.saturating_sub(1));
        let mut older: Vec<Start> = Vec::new();
        if floor <= lsn {
            older.extend(self.events.range(floor..=lsn).rev().filter_map(anchor).take(TRIES));
        }
        let off = self.off_after(lsn);
        let mut newer: Vec<Start> = self
            .events
            .range(lsn.saturating_add(1)..)
            .take_while(|(at, _)| off.is_none_or(|off| **at < off))
            .filter_map(anchor)
            .take(TRIES)
            .collect();
        if off.is_none() && self.settings.is_some() && newer.len() < TRIES {
            newer.push(Start::Head(version));
        }
        Some((older, newer))
    }

    /// What emptied a part of the chunk after `from` and up to `to`.
    fn emptied(&self, chunk: Range<u64>, from: u64, to: u64) -> Vec<(u64, Range<usize>)> {
        if from >= to {
            return Vec::new();
        }
        let events = self.events.range(from + 1..=to);
        let parts = events.filter_map(|(at, event)| {
            let bytes = event.emptied().filter(|b| b.start < chunk.end && b.end > chunk.start)?;
            let (start, end) = (chunk.start.max(bytes.start), chunk.end.min(bytes.end));
            Some((*at, (start - chunk.start) as usize..(end - chunk.start) as usize))
        });
        parts.collect()
    }
}

impl Pool {
    /// A chunk as it was on `branch` right after the record with `lsn`; all up to there must be carried out.
    pub(crate) fn chunk_at(&self, branch: &Arc<Branch>, chunk: u64, lsn: u64) -> Result<Vec<u8>> {
        loop {
            let version = branch.cdp.version.load(Ordering::SeqCst);
            let starts = branch.cdp.log.read().starts(lsn, version);
            let Some((older, newer)) = starts else {
                return Err(lost(format!(
                    "reconstruct chunk {chunk} at LSN {lsn}: nothing was recorded then"
                )));
            };
            let mut why = None;
            for round in 0..older.len().max(newer.len()) {
                let way = |start: Option<&Start>, forward| {
                    start.map(|start| self.way(branch, chunk, *start, lsn, forward))
                };
                let (before, after) = (way(older.get(round), true), way(newer.get(round), false));
                match self.settle(branch, chunk, lsn, before, after) {
                    Ok(content) => return Ok(content),
                    Err(error) => note(&mut why, error),
                }
            }
            if branch.cdp.version.load(Ordering::SeqCst) != version {
                // What is in place has moved on since the starts were looked up.
                continue;
            }
            return Err(why.unwrap_or_else(|| {
                lost(format!("reconstruct chunk {chunk} at LSN {lsn}: no anchor leads there any more"))
            }));
        }
    }

    /// The steps between a start and the moment, in the order in which they are taken.
    fn way(&self, branch: &Arc<Branch>, chunk: u64, start: Start, lsn: u64, forward: bool) -> Result<Way> {
        let (from, to) = match start {
            Start::Epoch(at, _) if forward => (at, lsn),
            Start::Epoch(at, _) => (lsn, at),
            Start::Head(_) => (lsn, branch.cdp.log.read().last_lsn().max(lsn)),
        };
        let records = if from < to { branch.cdp.find(chunk, from + 1..=to)? } else { Vec::new() };
        let size = branch.chunk_size();
        let emptied = branch.cdp.log.read().emptied(chunk * size..(chunk + 1) * size, from, to);
        let mut steps: Vec<(u64, Step)> =
            records.into_iter().map(|r| (r.entry.lsn, Step::Record(r))).collect();
        steps.extend(emptied.into_iter().map(|(at, range)| (at, Step::Emptied(range))));
        steps.sort_by_key(|(at, _)| *at);
        let mut steps: Vec<Step> = steps.into_iter().map(|(_, step)| step).collect();
        if !forward {
            steps.reverse();
        }
        Ok(Way { start, steps, forward })
    }

    /// Goes one of two ways, the shorter one first, and the other if that does not lead there.
    fn settle(
        &self,
        branch: &Arc<Branch>,
        chunk: u64,
        lsn: u64,
        before: Option<Result<Way>>,
        after: Option<Result<Way>>,
    ) -> Result<Vec<u8>> {
        let size = branch.chunk_size();
        // The last step before the moment and the first one after it know what the chunk was in between.
        let last = |way: &Option<Result<Way>>, after| match way {
            Some(Ok(way)) => way.steps.last().and_then(|step| step.sum(after, size)),
            _ => None,
        };
        let sum = last(&before, true).or_else(|| last(&after, false));
        let mut ways: Vec<Result<Way>> = before.into_iter().chain(after).collect();
        ways.sort_by_key(|way| way.as_ref().map_or(usize::MAX, |way| way.steps.len()));
        let mut why: Option<Error> = None;
        for way in ways {
            match way.and_then(|way| self.go(branch, chunk, lsn, way, sum)) {
                Ok(content) => return Ok(content),
                Err(error) => note(&mut why, error),
            }
        }
        Err(why.unwrap_or_else(|| lost(format!("reconstruct chunk {chunk} at LSN {lsn}: no anchor is left"))))
    }

    fn go(&self, branch: &Arc<Branch>, chunk: u64, lsn: u64, way: Way, sum: Option<u32>) -> Result<Vec<u8>> {
        if let Some(step) = way.steps.iter().find(|step| !step.leads(way.forward)) {
            let what = match step {
                Step::Record(located) => format!("the record with LSN {}", located.entry.lsn),
                Step::Emptied(_) => "a discard".to_owned(),
            };
            let direction = if way.forward { "forward" } else { "backward" };
            return Err(lost(format!(
                "reconstruct chunk {chunk} at LSN {lsn}: {what} does not lead {direction}, and the other way is lost"
            )));
        }
        let mut content = match way.start {
            Start::Epoch(_, epoch) => {
                self.frozen_chunk(&Line { branch: branch.clone(), epoch, at: None }, chunk)?
            }
            Start::Head(version) => self.head_chunk(branch, chunk, version)?,
        };
        for (n, step) in way.steps.iter().enumerate() {
            step.apply(&mut content)?;
            // After a part was emptied the sum is not known any more: what is under it is looked at before.
            let is_last_known = matches!(way.steps.get(n + 1), Some(Step::Emptied(_)));
            let sum = if is_last_known { step.sum(way.forward, branch.chunk_size()) } else { None };
            if sum.is_some_and(|sum| crc32c(&content) != sum) {
                return Err(lost(format!(
                    "reconstruct chunk {chunk} at LSN {lsn}: it does not verify on the way"
                )));
            }
        }
        if let Start::Epoch(at, _) = way.start
            && !branch.cdp.log.read().events.contains_key(&at)
        {
            return Err(lost(format!("reconstruct chunk {chunk} at LSN {lsn}: its anchor has expired")));
        }
        if sum.is_some_and(|sum| crc32c(&content) != sum) {
            return Err(lost(format!(
                "reconstruct chunk {chunk} at LSN {lsn}: what {} records from {:?} lead to does not verify",
                way.steps.len(),
                way.start
            )));
        }
        Ok(content)
    }

    /// What is in place on a branch now, whole though it may be in the middle of being overwritten. Refused when it is of
    /// another version.
    fn head_chunk(&self, branch: &Arc<Branch>, chunk: u64, version: u64) -> Result<Vec<u8>> {
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
        if branch.cdp.version.load(Ordering::SeqCst) == version {
            Ok(content)
        } else {
            Err(lost(format!("reconstruct chunk {chunk}: what is in place is newer by now")))
        }
    }

    /// A chunk of a branch as it is in place: what is staged is not part of it.
    pub(crate) fn placed_chunk(&self, branch: &Arc<Branch>, chunk: u64) -> Result<Vec<u8>> {
        self.frozen_chunk(&Line { branch: branch.clone(), epoch: HEAD, at: None }, chunk)
    }

    /// A chunk as a line shows it, all of which is in place.
    fn frozen_chunk(&self, line: &Line, chunk: u64) -> Result<Vec<u8>> {
        let _reading = self.readers.enter();
        let (number, at) = MapPage::locate(chunk);
        let branch = &line.branch;
        loop {
            let based = branch.has_base();
            let look_up_and_read = || match self.map.load(line, number)?.get(at).map(|entry| entry.slot) {
                Some(Slot::HOLE) => Ok(vec![0; branch.chunk_size() as usize]),
                Some(slot) => self.slot_content(slot, branch.chunk_size()),
                None => self.base_chunk(branch, chunk),
            };
            let content = match line.epoch {
                HEAD => look_up_and_read(),
                _ => branch.generation.read(look_up_and_read),
            };
            // A branch that has lost its base meanwhile has everything itself now.
            if !based || branch.has_base() {
                return content;
            }
        }
    }

    /// A chunk of what a branch rests on.
    fn base_chunk(&self, branch: &Arc<Branch>, chunk: u64) -> Result<Vec<u8>> {
        let mut content = vec![0; branch.chunk_size() as usize];
        match branch.base() {
            None => {}
            Some(Base::Line(line)) => match &line.at {
                Some(at) => content.copy_from_slice(&at.chunk(self, chunk)?),
                None => return self.frozen_chunk(&line, chunk),
            },
            Some(Base::Image(image)) => drop(image.read(&mut content, chunk * branch.chunk_size(), true)?),
        }
        Ok(content)
    }

    fn slot_content(&self, slot: Slot, len: u64) -> Result<Vec<u8>> {
        let mut content = vec![0; len as usize];
        let pv = self.pvs.get(slot.pv())?;
        let failed = |e| Error::io(format!("read from {} at byte {}", pv.path, slot.offset()), e);
        pv.disk.read_at(&mut content, slot.offset()).map_err(failed)?;
        Ok(content)
    }
}
