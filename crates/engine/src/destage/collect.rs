//! Reads a batch from the journal. The records come from the journal and not from the index of
//! staging, so that a batch is exactly a range of LSNs.

use super::batch::{Batch, Collected, ControlRun, Reserved, RunStep};
use super::state::{Ahead, BackgroundState};
use crate::branch::{Branch, DiscardRange};
use crate::control::decode_control;
use crate::core::Core;
use crate::destage::Destager;
use crate::error::{ErrorKind, Result};
use crate::ids::{BranchId, Lsn};
use crate::journal::record::{Header, Kind};
use crate::journal::{Cursor, Located};
use crate::pace::{BATCH_BESIDE_WRITERS, BATCH_WAITED_FOR};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of chunk operations of one batch. It bounds the batch's memory, at 48 bytes each.
const MAX_ITEMS: usize = 256 << 10;
/// Number of map pages that one batch touches, if the catalog's file system has room for them. Each
/// page is in memory twice until the commit, with 4 KiB each time.
const MAX_PAGES: usize = 8 << 10;
/// Number of rows that the control records and long discards of one commit change, if the catalog's
/// file system has room for them.
const MAX_ROWS: usize = 4096;

/// Returns whether a discard is so long that it is carried out in steps.
fn is_long(header: &Header, branch: &Branch) -> bool {
    let recorded = branch.cdp.log.read().settings.is_some();
    branch.discards_alone(header.offset, header.length, recorded)
}

impl Destager {
    /// Collects what comes next in the journal, and moves `cursor` behind it.
    pub(super) fn next_collected(
        &self,
        state: &mut BackgroundState,
        cursor: &mut Cursor,
    ) -> Result<Collected> {
        if let Some(ahead) = state.ahead.take().filter(|ahead| ahead.from == *cursor) {
            *cursor = ahead.to;
            return Ok(Collected::Records(ahead.batch));
        }
        if self.core.journal.synced() < self.core.journal.written() {
            self.core.journal.sync_all()?;
        }
        self.core.collect(cursor, self.core.journal.synced(), self.core.batch_bytes())
    }
}

impl Core {
    /// Returns the batch at `from` and where it ends, if all of it is there and destage is pressed.
    /// An error is dropped here: it occurs again when the batch is collected in its turn.
    pub(super) fn collect_whole(&self, from: Cursor) -> Option<(Cursor, Batch)> {
        if !self.is_pressed() {
            return None;
        }
        let mut to = from;
        let collected = self.collect(&mut to, self.journal.synced(), self.batch_bytes()).ok()?;
        let Collected::Records(batch) = collected else { return None };
        batch.full.then_some((to, batch))
    }

    /// Records as much as possible of the batch at `from` while the batch `before` is moved to its
    /// place. `known` is the batch at `from`, if it was collected already.
    pub(super) fn look_ahead(
        &self,
        from: Cursor,
        known: Option<(Cursor, Batch)>,
        before: &Batch,
    ) -> Option<Ahead> {
        let (to, mut batch) = known.or_else(|| self.collect_whole(from))?;
        let recorded = self.record_ahead(&batch, before);
        if let Err(error) = &recorded
            && error.kind() == ErrorKind::Poisoned
        {
            // A thread that records has panicked, and the records that it held are lost.
            let _ = self.fault.poison(error);
        }
        batch.recorded = recorded.ok()?;
        Some(Ahead { from, to, batch })
    }

    /// Bytes of the journal in the next batch, at most: fewer where the disks are slow, but at
    /// least a segment. What histories were promised counts with a batch, or a segment if that is
    /// less (`cdp/write/reserve.rs`). A full batch has at least this length, so it ends in another
    /// segment than it begins in, and a segment has parts of two batches at most.
    fn batch_bytes(&self) -> u64 {
        let time = if self.is_throttled() { BATCH_BESIDE_WRITERS } else { BATCH_WAITED_FOR };
        self.pace.batch(time, self.config.segment_size, self.options.batch_bytes)
    }

    /// Collects from `cursor` up to LSN `last`, about `max_bytes` of journal, and moves the cursor
    /// behind it.
    pub(super) fn collect(&self, cursor: &mut Cursor, last: Lsn, max_bytes: u64) -> Result<Collected> {
        let mut collector = Collector {
            core: self,
            // Copied, so that control operations need not wait for the journal to be read.
            branches: self.names.read().branches.clone(),
            max_bytes,
            most_pages: self.catalog_room.pages(MAX_PAGES),
            most_rows: self.catalog_room.versions(MAX_ROWS),
            batch: Batch::default(),
            run: None,
            alone: None,
        };
        self.journal.visit(cursor, last, &mut |located, data| collector.add(located, data))?;
        Ok(collector.finish())
    }

    /// Returns whether a long discard frees anything. A discard that frees nothing only has to be
    /// committed.
    fn frees(&self, range: &DiscardRange) -> Result<bool> {
        let branch = &range.branch;
        let size = 1u64 << branch.chunk_log2;
        let whole = range.bytes.start.is_multiple_of(size) && range.bytes.end.is_multiple_of(size);
        if !whole || branch.has_base() || range.bytes.is_empty() {
            return Ok(true);
        }
        let chunks = branch.whole_chunks(&range.bytes);
        let (first, last) = (chunks.start.page(), chunks.end.prev().page());
        Ok(!self.catalog.page_numbers(branch.id, first, last, 1)?.is_empty())
    }
}

/// The state of a visit of the journal: what it has found so far.
struct Collector<'a> {
    core: &'a Core,
    branches: BTreeMap<BranchId, Arc<Branch>>,
    /// Bytes of the journal at which the batch is full. `most_pages` and `most_rows` bound its map
    /// pages and its rows of control records.
    max_bytes: u64,
    most_pages: usize,
    most_rows: usize,
    batch: Batch,
    run: Option<ControlRun>,
    alone: Option<Collected>,
}

impl Collector<'_> {
    /// Adds the next record. False when the record has to wait for the next batch.
    fn add(&mut self, located: &Located, data: &[u8]) -> Result<bool> {
        let header = &located.header;
        let batch = &mut self.batch;
        // A batch that is applied again is one batch, however large, and changes few pages.
        let crowded = self.max_bytes < u64::MAX && batch.pages.len() >= self.most_pages;
        batch.full = batch.bytes >= self.max_bytes || batch.items.len() >= MAX_ITEMS || crowded;
        if self.alone.is_some() || batch.full {
            return Ok(false);
        }
        if header.kind == Kind::Control {
            return self.add_control(header, data);
        }
        let branch = self.branches.get(&header.branch).cloned();
        if let Some(branch) = &branch {
            if header.kind == Kind::Discard && is_long(header, branch) {
                return self.add_long_discard(header, branch.clone());
            }
            if self.run.is_some() || self.batch.is_parted(header) {
                return Ok(false);
            }
            match header.kind {
                Kind::Reference => self.batch.add_reference(located, data, branch, self.core.sums.is_on())?,
                _ => self.batch.add(located, branch),
            }
        } else if header.kind == Kind::Reference {
            if self.run.is_some() {
                return Ok(false);
            }
            self.batch.add_unowned(header, data)?;
        }
        // This also holds for a record of a branch that is gone: the record is skipped.
        match &mut self.run {
            Some(run) => run.passed(header),
            None => self.batch.last = header.stamp(),
        }
        Ok(true)
    }

    fn add_control(&mut self, header: &Header, data: &[u8]) -> Result<bool> {
        let control = decode_control(header.lsn, data)?;
        if !control.shares_commit() || header.slots > 0 {
            if self.run.is_some() || !self.batch.is_empty() {
                return Ok(false);
            }
            let reserved = self.branches.get(&header.branch).map(|b| (b.kind(), header.slots.into()));
            self.alone = Some(Collected::Control(header.stamp(), control, reserved.into_iter().collect()));
            return Ok(true);
        }
        let before = self.run.as_ref().map_or(self.batch.rows, |run| run.rows);
        // A single record above the bound has to be carried out all the same.
        let rows = before + control.rows();
        let fits = before == 0 || rows <= self.most_rows || self.max_bytes == u64::MAX;
        if let Some(run) = &mut self.run {
            if fits {
                run.rows = rows;
                run.push(header, RunStep::Control(Box::new(control)));
            }
            return Ok(fits);
        }
        let batch = &mut self.batch;
        if fits {
            batch.rows = rows;
            batch.controls.push((header.stamp(), control));
            batch.last = header.stamp();
        }
        Ok(fits)
    }

    /// Adds a long discard, if the run is empty or can share its commit with the discard.
    fn add_long_discard(&mut self, header: &Header, branch: Arc<Branch>) -> Result<bool> {
        if self.batch.records > 0 || !self.batch.unowned.is_empty() {
            return Ok(false);
        }
        let mut run = self.run.take().unwrap_or_else(|| {
            let batch = std::mem::take(&mut self.batch);
            let steps =
                batch.controls.into_iter().map(|(at, control)| (at, RunStep::Control(Box::new(control))));
            ControlRun {
                last: batch.last,
                steps: steps.collect(),
                rows: batch.rows,
                reserved: Reserved::new(),
            }
        });
        let bytes = header.offset..header.offset + header.length;
        let range = DiscardRange { branch: branch.clone(), epoch: header.epoch, bytes };
        let fits = run.steps.is_empty() || run.rows < self.most_rows && !self.core.frees(&range)?;
        if fits {
            run.rows += 1;
            run.reserved.push((branch.kind(), header.slots.into()));
            run.push(header, RunStep::Discard(range));
        }
        self.run = Some(run);
        Ok(fits)
    }

    fn finish(mut self) -> Collected {
        if let Some(alone) = self.alone {
            return alone;
        }
        if let Some(run) = self.run.filter(|run| !run.is_empty()) {
            return Collected::Run(run);
        }
        if self.batch.is_empty() {
            return Collected::Nothing;
        }
        self.batch.items.sort_unstable_by_key(|i| (i.branch, i.chunk, i.order));
        Collected::Records(self.batch)
    }
}
