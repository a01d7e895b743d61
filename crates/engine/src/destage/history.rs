//! What continuous data protection keeps of a batch: one record for every (journal record, chunk), made in the preserve
//! phase from what is in place before the batch.

use super::apply::READ_AHEAD;
use super::collect::{Batch, Item, Source};
use super::plan::Below;
use crate::catalog::{Control, Event, LineRecord, SnapshotRecord, Txn};
use crate::cdp::Encoding;
use crate::cdp::append::{Appended, Appender, Item as CdpItem, MAX_SEGMENT, Shelf};
use crate::cdp::log::{Applying, Patch};
use crate::codec::crc32c;
use crate::disk::Lane;
use crate::error::{Error, Result, corrupt};
use crate::map::page::{MapPage, Slot};
use crate::pool::Pool;
use crate::pool::line::{Branch, HEAD, Line};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Sums of chunks that are kept of a branch, each some 20 bytes.
const MAX_SUMS: usize = 1 << 18;

/// So many bytes are announced of a batch that comes later: they have to stay in the page cache until then.
const MAX_AHEAD: u64 = 128 << 20;

/// Where what a chunk holds before a batch is found.
enum Before {
    /// This part of it, in this slot; its sum is known.
    Part(Slot, Range<u32>, u32),
    /// Nothing of it needs to be known but the sum.
    Replaced(u32),
    /// All of it, wherever that may be.
    Elsewhere,
}

/// Makes the records of one branch's part of a batch.
struct Recorder<'a> {
    pool: &'a Pool,
    branch: &'a Arc<Branch>,
    epoch: u32,
    stamps: &'a [(u64, u64)],
    appender: Appender,
    /// What is in place, and what comes there: kept for their memory.
    content: Vec<u8>,
    new: Vec<u8>,
}

impl Recorder<'_> {
    /// Records what changes in a chunk; tells the sum after it.
    fn record(&mut self, items: &[Item], before: Before) -> Result<u32> {
        let chunk = items[0].chunk;
        let (mut sum, first) = match before {
            Before::Part(slot, part, sum) => {
                self.content.resize(part.len(), 0);
                let pv = self.pool.pvs.get(slot.pv())?;
                let failed = |e| Error::io(format!("read from {}", pv.path), e);
                let at = slot.offset() + u64::from(part.start);
                pv.disk.read_at(&mut self.content, at).map_err(failed)?;
                (sum, part.start)
            }
            Before::Replaced(sum) => {
                self.content.resize(self.branch.chunk_size() as usize, 0);
                (sum, 0)
            }
            Before::Elsewhere => {
                self.content = self.pool.content_before(self.branch, chunk, items)?;
                (crc32c(&self.content), 0)
            }
        };
        for (n, item) in items.iter().enumerate() {
            self.new.resize((item.end - item.start) as usize, 0);
            match item.source {
                Source::Journal(file, position) => self.pool.read_journal(file, position, &mut self.new)?,
                Source::Zeros | Source::Hole => self.new.fill(0),
            }
            let (lsn, time) = self.stamps.get(item.order as usize).copied().unwrap_or_default();
            let (start, end) = (item.start as usize, item.end as usize);
            let what = CdpItem { lsn, time, chunk, epoch: self.epoch, start, end };
            let old = &mut self.content[(item.start - first) as usize..(item.end - first) as usize];
            self.appender.push(&what, old, &mut sum, &self.new)?;
            if n + 1 < items.len() {
                old.copy_from_slice(&self.new);
            }
        }
        Ok(sum)
    }
}

impl Pool {
    /// Where the segments of a branch's log come from.
    pub(crate) fn shelf(&self, branch: u64) -> Shelf {
        let limit = self.config.segment_size.min(MAX_SEGMENT);
        Shelf { dir: self.dir.clone(), pool: self.uuid, branch, limit }
    }

    /// Writes the CDP records of a batch, durably. They count with the commit that follows.
    pub(super) fn log_batch(&self, batch: &Batch) -> Result<Vec<Appended>> {
        if batch.stamps.is_empty() {
            return Ok(Vec::new());
        }
        let _reading = self.readers.enter();
        let mut all = Vec::new();
        for items in batch.items.chunk_by(|a, b| a.branch == b.branch) {
            let index = items[0].branch as usize;
            let branch = &batch.branches[index];
            let Some(settings) = branch.cdp.log.read().settings else { continue };
            let lane = Lane::new(self.options.destage_threads > 1);
            let appender = Appender::new(branch, self.shelf(branch.id), settings, lane)?;
            let (epoch, stamps) = (batch.epochs[index], &batch.stamps[..]);
            let (content, new) = (Vec::new(), Vec::new());
            let mut recorder = Recorder { pool: self, branch, epoch, stamps, appender, content, new };
            let mut sums = std::mem::take(&mut branch.cdp.log.write().sums);
            if sums.len() > MAX_SUMS {
                sums.clear();
            }
            let mut ahead = items.chunk_by(|a, b| a.chunk == b.chunk);
            let head = Line { branch: branch.clone(), epoch: HEAD, at: None };
            let mut located = VecDeque::with_capacity(READ_AHEAD);
            for of_chunk in items.chunk_by(|a, b| a.chunk == b.chunk) {
                while located.len() < READ_AHEAD
                    && let Some(next) = ahead.next()
                {
                    let sum = sums.get(&next[0].chunk).copied();
                    located.push_back(self.locate(&head, next, settings.encoding, sum)?);
                }
                let Some(before) = located.pop_front() else { break };
                sums.insert(of_chunk[0].chunk, recorder.record(of_chunk, before)?);
            }
            all.extend(recorder.appender.finish()?);
            branch.cdp.log.write().sums = sums;
        }
        Ok(all)
    }

    /// Tells the disks what the records of a batch will be made from, or the first part of it.
    pub(super) fn read_ahead(&self, batch: &Batch) -> Result<()> {
        let mut bytes = 0;
        for items in batch.items.chunk_by(|a, b| (a.branch, a.chunk) == (b.branch, b.chunk)) {
            let branch = &batch.branches[items[0].branch as usize];
            let known = {
                let log = branch.cdp.log.read();
                log.settings.map(|settings| (settings.encoding, log.sums.get(&items[0].chunk).copied()))
            };
            let Some((encoding, sum)) = known else { continue };
            let head = Line { branch: branch.clone(), epoch: HEAD, at: None };
            bytes += match self.locate(&head, items, encoding, sum)? {
                Before::Part(_, part, _) => part.len() as u64,
                Before::Replaced(_) => 0,
                Before::Elsewhere => branch.chunk_size(),
            };
            if bytes > MAX_AHEAD {
                break;
            }
        }
        Ok(())
    }

    /// Finds what a chunk holds before the items, and tells the disk that it will be read.
    fn locate(&self, head: &Line, items: &[Item], encoding: Encoding, sum: Option<u32>) -> Result<Before> {
        let (first, chunk_size) = (&items[0], head.branch.chunk_size());
        let replaced = encoding == Encoding::Redo && (first.start, u64::from(first.end)) == (0, chunk_size);
        if let Some(sum) = sum.filter(|_| replaced) {
            return Ok(Before::Replaced(sum));
        }
        let (number, at) = MapPage::locate(items[0].chunk);
        let slot = self.map.load(head, number)?.get(at).map(|entry| entry.slot);
        let Some(slot) = slot.filter(|slot| *slot != Slot::HOLE) else { return Ok(Before::Elsewhere) };
        let (before, part) = match sum {
            // From the sum before it and from what changes follows the sum after it.
            Some(sum) => {
                let start = items.iter().map(|item| item.start).min().unwrap_or(0);
                let end = items.iter().map(|item| item.end).max().unwrap_or(0);
                (Before::Part(slot, start..end, sum), start..end)
            }
            None => (Before::Elsewhere, 0..chunk_size as u32),
        };
        let from = slot.offset() + u64::from(part.start);
        self.pvs.get(slot.pv())?.disk.will_need(from, part.len() as u64);
        Ok(before)
    }

    /// What a chunk holds before the batch. What an image or a moment has there was brought into the journal as a whole before
    /// anything else: that record changes nothing, and says what was there.
    fn content_before(&self, branch: &Arc<Branch>, chunk: u64, items: &[Item]) -> Result<Vec<u8>> {
        let head = Line { branch: branch.clone(), epoch: HEAD, at: None };
        let (number, at) = MapPage::locate(chunk);
        let foreign = branch.over_foreign && branch.has_base();
        if foreign
            && self.map.load(&head, number)?.get(at).is_none()
            && let Below::Foreign(foreign) = self.find_below(&head, chunk)?
        {
            let mut content = vec![0; branch.chunk_size() as usize];
            let shown = foreign.shown().saturating_sub(chunk * branch.chunk_size()).min(branch.chunk_size());
            if shown == 0 {
                return Ok(content);
            }
            if let Some(Item { start: 0, end, source: Source::Journal(file, position), .. }) = items.first()
                && u64::from(*end) >= shown
            {
                self.read_journal(*file, *position, &mut content[..*end as usize])?;
                return Ok(content);
            }
        }
        self.placed_chunk(branch, chunk)
    }

    /// Reads journal data as the destager sees it: collected, so verified once.
    pub(crate) fn read_journal(&self, file: u32, position: u32, out: &mut [u8]) -> Result<()> {
        let Some(segment) = self.journal.file(file) else {
            return Err(corrupt(format!("read journal file {file}: there is none")));
        };
        let failed = |e| Error::io(format!("read journal file {file}"), e);
        segment.disk.read_at(out, position.into()).map_err(failed)
    }

    /// What a batch is about to write over what is in place on `branch`.
    pub(super) fn applying(&self, batch: &Batch, branch: &Branch) -> Applying {
        let index = batch.branches.iter().position(|b| b.id == branch.id).unwrap_or(0) as u32;
        let start = batch.items.partition_point(|item| item.branch < index);
        let end = batch.items.partition_point(|item| item.branch <= index);
        let parts = batch.items[start..end].iter().map(|item| {
            let patch = match item.source {
                Source::Journal(file, position) => Patch::Journal(file, position),
                Source::Zeros | Source::Hole => Patch::Zeros,
            };
            (item.chunk, item.start, item.end, patch)
        });
        Applying { parts: parts.collect() }
    }
}

/// What an operation means for histories.
#[derive(Default)]
pub(super) struct HistoryChange {
    events: Vec<(Arc<Branch>, Event)>,
    /// (volume, what happened to it)
    lines: Vec<(u64, LineRecord)>,
    /// (volume, LSN of a mark)
    forgotten: Option<(u64, u64)>,
}

impl HistoryChange {
    pub(super) fn store(&self, txn: &mut Txn<'_>, lsn: u64) -> Result<()> {
        for (branch, event) in &self.events {
            txn.put_cdp_event(branch.id, lsn, event)?;
        }
        for (volume, line) in &self.lines {
            txn.put_cdp_line(*volume, lsn, line)?;
        }
        self.forgotten.map_or(Ok(()), |(volume, lsn)| txn.remove_cdp_line(volume, lsn))
    }
}

impl Pool {
    /// Adds what `operation` means for histories, as things stand when it is carried out.
    pub(super) fn note_history(
        &self,
        change: &mut HistoryChange,
        operation: &Control,
        time: u64,
    ) -> Result<()> {
        match operation {
            Control::CreateSnapshots { snapshots } => {
                change.events.extend(snapshots.iter().filter_map(|(id, s)| self.anchor_event(*id, s, time)));
            }
            Control::RollBack { id, branch, size, undo_id, undo, .. } => {
                let old = self.branch(undo.of.branch)?;
                let settings = old.cdp.log.read().settings;
                if let Some(settings) = settings {
                    change.events.extend(self.anchor_event(*undo_id, undo, time));
                    let began = Event::On { settings, begins: true, size: *size, time };
                    change.events.push((self.branch(*branch)?, began));
                    change.lines.push((*id, LineRecord::Branch { branch: *branch, time }));
                    // An anchor follows: the branch's content by itself.
                }
            }
            Control::SetCdp { id, settings } => {
                let Some(volume) = self.catalog.volume(*id)? else { return Ok(()) };
                let branch = self.branch(volume.branch)?;
                let begins = branch.cdp.log.read().settings.is_none();
                match settings {
                    Some(settings) => {
                        let event = Event::On { settings: *settings, begins, size: volume.size, time };
                        if begins {
                            change.lines.push((*id, LineRecord::Branch { branch: branch.id, time }));
                        }
                        change.events.push((branch, event));
                    }
                    None if begins => {}
                    None => change.events.push((branch, Event::Off { time })),
                }
            }
            Control::ResizeVolume { id, size } => {
                let Some(volume) = self.catalog.volume(*id)? else { return Ok(()) };
                let branch = self.branch(volume.branch)?;
                if branch.cdp.log.read().settings.is_some() {
                    let shrinks = *size < volume.size;
                    let end = if shrinks { volume.size.next_multiple_of(branch.chunk_size()) } else { 0 };
                    change.events.push((branch, Event::Resized { size: *size, end, time }));
                }
            }
            Control::Mark { volume, name } => {
                change.lines.push((*volume, LineRecord::Mark { name: name.clone(), time }));
            }
            Control::Unmark { volume, lsn } => change.forgotten = Some((*volume, *lsn)),
            _ => {}
        }
        Ok(())
    }

    fn branch(&self, id: u64) -> Result<Arc<Branch>> {
        let branch = self.names.read().branches.get(&id).cloned();
        branch.ok_or_else(|| corrupt(format!("find branch {id}: it is missing")))
    }

    /// A snapshot of a branch whose history is kept is an anchor; and so is one that nobody was meant to see.
    fn anchor_event(&self, id: u64, snapshot: &SnapshotRecord, time: u64) -> Option<(Arc<Branch>, Event)> {
        let branch = self.names.read().branches.get(&snapshot.of.branch)?.clone();
        let counts = snapshot.deleted || branch.cdp.log.read().settings.is_some();
        counts.then_some((branch, Event::Anchor { epoch: snapshot.of.epoch, snapshot: id, time }))
    }

    /// Shows readers what was committed.
    pub(super) fn remember(&self, change: HistoryChange, lsn: u64) {
        // Lines first: whoever finds the anchor of a rollback finds where the volume went, too.
        {
            let mut lines = self.lines.write();
            for (volume, line) in change.lines {
                lines.entry(volume).or_default().insert(lsn, line);
            }
            if let Some((volume, lsn)) = change.forgotten
                && let Some(of_volume) = lines.get_mut(&volume)
            {
                of_volume.remove(&lsn);
            }
        }
        for (branch, event) in change.events {
            branch.cdp.change(|log| {
                match &event {
                    Event::On { settings, .. } => log.settings = Some(*settings),
                    Event::Off { .. } => log.settings = None,
                    _ => {}
                }
                log.put_event(lsn, event);
            });
        }
    }

    /// Does a history need this snapshot?
    pub(crate) fn is_anchor(&self, snapshot: u64) -> bool {
        let branch = self.names.read().snapshots.get(&snapshot).map(|s| s.state.line.branch.clone());
        branch.is_some_and(|branch| branch.cdp.log.read().is_anchor(snapshot))
    }

    /// All snapshots that histories need.
    pub(crate) fn anchors(&self) -> BTreeSet<u64> {
        let names = self.names.read();
        let of = |branch: &Arc<Branch>| branch.cdp.log.read().anchors().collect::<Vec<u64>>();
        names.branches.values().flat_map(of).collect()
    }
}
