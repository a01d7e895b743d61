//! Compresses old history harder, when there is nothing else to do.
//!
//! A sealed segment is written again as another edition, in which every record has the same
//! content. A commit then replaces the old edition. Readers of the old edition continue: its file
//! is removed when no reader holds it any more. A crash leaves a file that the catalog does not
//! know. The next opening removes such files. A damaged segment stays as it is, for the check to
//! find.

use crate::branch::Branch;
use crate::catalog::SegmentRecord;
use crate::cdp::log::LogState;
use crate::cdp::log::codec::{Packer, unpack};
use crate::cdp::log::record::{ALIGN, HEADER_LEN, SegmentHead};
use crate::cdp::log::segment::Sealed;
use crate::cdp::write::append::OpenSegmentWriter;
use crate::codec::align_up;
use crate::core::Core;
use crate::destage::Destager;
use crate::destage::state::{BackgroundState, Compacting};
use crate::disk::{Dir, SerialWriter, SyncPurpose};
use crate::error::{Error, Result};
use crate::ids::BranchId;
use crate::info::recompression::RecompressInfo;
use crate::settings::Compression;
use crate::shortage::Task;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of records after which the work checks two things: whether records become smaller, and
/// whether other work waits.
const SAMPLE: usize = 64;

/// Nanoseconds of rest for each nanosecond of compression. Compression is never urgent, and the
/// processor is needed elsewhere.
const REST: u64 = 3;
/// The longest rest, in nanoseconds.
const LONGEST_REST: u64 = 60_000_000_000;

/// The result of compressing a segment harder.
enum Outcome {
    /// The segment's next edition, on disk and durable.
    Smaller(Box<OpenSegmentWriter>),
    /// The segment would not become smaller by at least a twentieth.
    Futile,
    /// A record of the segment is damaged.
    Damaged,
    /// Other work waits.
    Pressed,
}

impl Destager {
    /// Compresses one segment harder, without blocking other background work. False when there is
    /// nothing to compress now.
    pub(crate) fn compact_history(&self) -> Result<bool> {
        if !self.core.options.recompress_history {
            return Ok(false);
        }
        let began = self.core.world.clock.monotonic();
        let Some((branch, old)) = self.next_to_compact(&mut self.state.lock(), began) else {
            return Ok(false);
        };
        // Two editions take space for a while. The next edition is not written unless it is
        // smaller.
        let room = old.record.end;
        if !self.core.space.try_reserve_log(room) {
            let state = &mut *self.state.lock();
            state.compacted.remove(&branch.id);
            state.compacting = Compacting::LacksRoom;
            return Ok(false);
        }
        self.state.lock().compacting = Compacting::Segment(room);
        let done = self.compact(&branch, &old, began);
        self.state.lock().compacting = Compacting::Nothing;
        self.core.space.adjust_log(-(room as i64));
        done
    }

    /// Returns the history that waits to be compressed harder: `None` if there is none. The history
    /// of the segment that is being compressed counts.
    pub(crate) fn recompression(&self) -> Option<RecompressInfo> {
        if !self.core.options.recompress_history {
            return None;
        }
        let state = self.state.lock();
        let names = self.core.names.read();
        let bytes_of = |branch: &Arc<Branch>| {
            let log = branch.cdp.log.read();
            let waiting = waiting(&log, &state, branch.id).map(|segment| segment.record.end);
            waiting.sum::<u64>()
        };
        let (at_work, lacks_room) = match state.compacting {
            Compacting::Segment(bytes) => (bytes, false),
            Compacting::Nothing => (0, false),
            Compacting::LacksRoom => (0, true),
        };
        let left_bytes = at_work + names.branches.values().map(bytes_of).sum::<u64>();
        (left_bytes > 0).then_some(RecompressInfo { left_bytes, lacks_room })
    }

    fn compact(&self, branch: &Arc<Branch>, old: &Sealed, began: u64) -> Result<bool> {
        let head = old.file.head;
        // A segment that can't be read, or written now, stays as it is: that only costs space.
        let outcome = self.core.compacted(branch, old);
        let now = self.core.world.clock.monotonic();
        let rest = (REST * now.saturating_sub(began)).min(LONGEST_REST);
        self.state.lock().compact_from = now.saturating_add(rest);
        if !matches!(outcome, Ok(Outcome::Smaller(_))) {
            let _ = self.core.dir.remove(&next_edition(&head).file_name());
        }
        let new = match outcome {
            Ok(Outcome::Smaller(draft)) => {
                Sealed::new(draft.file, SegmentRecord { compact: true, ..draft.record })
            }
            Ok(Outcome::Futile) => {
                Sealed::new(old.file.clone(), SegmentRecord { compact: true, ..old.record })
            }
            Ok(Outcome::Damaged) | Err(_) => return Ok(true),
            Ok(Outcome::Pressed) => {
                // A later attempt begins again at the start of the segment.
                self.state.lock().compacted.remove(&branch.id);
                return Ok(false);
            }
        };
        let state = &mut *self.state.lock();
        let (file, is_new) = (new.file.clone(), new.record.edition != old.record.edition);
        let done = self.replace_segment(state, branch, old, new);
        match done.map_err(|e| self.failed(state, Task::Upkeep, e)) {
            Err(error) if error.is_shortage() => {
                if is_new {
                    file.remove_unused();
                }
                state.compacted.remove(&branch.id);
                Ok(false)
            }
            done => done.map(|()| true),
        }
    }

    /// Returns the next segment to compress: for the first branch that has one, its oldest that was
    /// not tried since the pool was opened.
    fn next_to_compact(&self, state: &mut BackgroundState, now: u64) -> Option<(Arc<Branch>, Arc<Sealed>)> {
        if now < state.compact_from {
            return None;
        }
        let names = self.core.names.read();
        names.branches.values().find_map(|branch| {
            let found = waiting(&branch.cdp.log.read(), state, branch.id).next()?.clone();
            state.compacted.insert(branch.id, found.file.head.seq);
            Some((branch.clone(), found))
        })
    }

    fn replace_segment(
        &self,
        state: &mut BackgroundState,
        branch: &Arc<Branch>,
        old: &Sealed,
        new: Sealed,
    ) -> Result<()> {
        let seq = old.file.head.seq;
        let expired = !branch.cdp.log.read().sealed.get(&seq).is_some_and(|now| std::ptr::eq(&**now, old));
        if expired {
            if new.record.edition != old.record.edition {
                new.file.remove_unused();
            }
            return Ok(());
        }
        self.core.check_usable()?;
        let mut txn = self.core.catalog.begin()?;
        txn.put_cdp_segment(branch.id, seq, &new.record)?;
        self.commit_aside(state, txn, &[])?;
        let (before, after) = (old.record, new.record);
        branch.cdp.change(|log| log.put_sealed(seq, Arc::new(new)));
        if after.edition != before.edition {
            self.core.positions.compacted.fetch_add(before.end - after.end, Ordering::Relaxed);
            old.file.remove_unused();
        }
        Ok(())
    }
}

impl Core {
    /// Makes the next edition of a segment.
    fn compacted(&self, branch: &Branch, old: &Sealed) -> Result<Outcome> {
        let Ok(mut entries) = old.all_entries() else { return Ok(Outcome::Damaged) };
        entries.sort_unstable_by_key(|entry| entry.at);
        let from = old.file.open()?;
        let mut draft = OpenSegmentWriter::new(
            self.shelf(branch.id).create(old.file.head.seq, old.file.head.edition + 1)?,
        );
        let lane = &mut SerialWriter::new(false, 0);
        let mut packer = Packer::hard()?;
        let mut packed = Vec::new();
        let (mut before, mut after) = (0, 0);
        for (n, entry) in entries.into_iter().enumerate() {
            if n > 0 && n.is_multiple_of(SAMPLE) {
                if saves_little(before, after) {
                    return Ok(Outcome::Futile);
                }
                if self.is_pressed() {
                    return Ok(Outcome::Pressed);
                }
            }
            let Ok((epoch, raw)) = from.record(&entry) else { return Ok(Outcome::Damaged) };
            packed.clone_from(&raw);
            let compression = if raw.is_empty() { Compression::None } else { packer.pack(&mut packed, 0) };
            // The only other copy is about to be removed.
            if unpack(compression, &packed, raw.len()).as_ref() != Some(&raw) {
                return Err(Error::new(
                    crate::ErrorKind::Io,
                    "compress a record: the compressed content does not match",
                ));
            }
            before += entry.space();
            draft.push(lane, entry, epoch, |out| {
                out.extend_from_slice(&packed);
                compression
            })?;
            after += align_up((HEADER_LEN + packed.len()) as u64, ALIGN);
        }
        if saves_little(before, after) {
            return Ok(Outcome::Futile);
        }
        draft.end_group(lane)?;
        draft.seal(lane, std::iter::empty())?;
        if saves_little(old.record.end, draft.record.end) {
            return Ok(Outcome::Futile);
        }
        // Content that a failed sync did not make durable is in a file that is removed again.
        draft.sync(lane, SyncPurpose::Cdp)?;
        // The journal's names are in this directory too. What this sync failed to make durable, the
        // next sync would not report.
        let failed = |e| self.fault.poison(&Error::io("sync the data directory", e).lasting());
        self.dir.sync(SyncPurpose::Dir).map_err(failed)?;
        Ok(Outcome::Smaller(Box::new(draft)))
    }
}

/// Returns the segments of a branch that wait to be compressed harder, the oldest first.
fn waiting<'a>(
    log: &'a LogState,
    state: &BackgroundState,
    branch: BranchId,
) -> impl Iterator<Item = &'a Arc<Sealed>> {
    let from = state.compacted.get(&branch).map_or(0, |seq| seq + 1);
    let plain = log.last_settings().is_some_and(|s| s.compression == Compression::None);
    let segments = log.sealed.range(from..).map(|(_, segment)| segment);
    segments.filter(move |s| !plain && !s.record.compact && s.run().is_none())
}

fn saves_little(before: u64, after: u64) -> bool {
    after > before - before / 20
}

fn next_edition(head: &SegmentHead) -> SegmentHead {
    SegmentHead { edition: head.edition + 1, ..*head }
}
