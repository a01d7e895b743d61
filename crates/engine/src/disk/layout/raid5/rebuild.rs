//! The rebuild of members: a disk gets what the member has, or what follows from the others.

use super::groups::GROUP;
use super::rows::{BLOCK, Rows};
use super::{Raid5, spans_of};
use crate::disk::layout::IsRight;
use crate::disk::layout::record::{Incoming, LayoutRecord};
use crate::disk::{Disk, is_unreadable};
use crate::error::is_shortage;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of lines that are copied under one lock: 1 MiB of each place.
const LINES: u64 = 256;

/// The groups that were copied as a whole since so many rebuilds had begun.
#[derive(Default)]
pub(super) struct Copied {
    begun: u64,
    groups: BTreeSet<u64>,
    /// Those that needed no copy when it was their turn: the disks that come back have them, and
    /// all that is written later.
    kept: BTreeSet<u64>,
}

impl Raid5 {
    /// Copies all groups of lines that have a part of a range of the content to the disks that
    /// members are rebuilt onto, and to where a place moves. `is_right` tells for a byte of the
    /// range and a block whether the block may be its content. Returns the bytes that no member has
    /// any more. The disks have zeros there.
    pub(crate) fn copy_to_incoming(
        &self,
        at: u64,
        len: u64,
        is_right: IsRight<'_>,
    ) -> io::Result<Vec<Range<u64>>> {
        let end = self.content_len().min(at + len);
        let mut unreadable = Vec::new();
        if at >= end {
            return Ok(unreadable);
        }
        let lines = self.rows.lines_of(at..end);
        let is_right = |place: u64, block: &[u8]| !(at..end).contains(&place) || is_right(place, block);
        let only_return = self.members.only_return();
        for group in lines.start / GROUP..lines.end.div_ceil(GROUP) {
            let begun = self.members.begun.load(Ordering::SeqCst);
            if self.is_copied(begun, group) {
                continue;
            }
            if only_return && !self.is_group_stale(group) {
                self.note_copied(begun, |copied| copied.kept.insert(group));
                continue;
            }
            let behind = ((group + 1) * GROUP).min(self.number_of_lines());
            for from in (group * GROUP..behind).step_by(LINES as usize) {
                self.copy_lines(from..behind.min(from + LINES), &is_right, &mut unreadable)?;
            }
            self.note_copied(begun, |copied| copied.groups.insert(group));
        }
        Ok(unreadable)
    }

    fn note_copied(&self, begun: u64, note: impl FnOnce(&mut Copied) -> bool) {
        let mut copied = self.copied.lock();
        if copied.begun != begun {
            *copied = Copied { begun, ..Copied::default() };
        }
        note(&mut copied);
    }

    fn is_group_stale(&self, group: u64) -> bool {
        self.members.stale.first_in(spans_of(&(group * GROUP..(group + 1) * GROUP))).is_some()
    }

    /// Returns whether a group is stale that has lines with a part of a range of the content.
    /// Those that are not are kept.
    pub(in crate::disk::layout) fn is_stale(&self, range: &Range<u64>) -> bool {
        let lines = self.rows.lines_of(range.clone());
        let begun = self.members.begun.load(Ordering::SeqCst);
        let mut is_stale = false;
        for group in lines.start / GROUP..lines.end.div_ceil(GROUP) {
            match self.is_group_stale(group) {
                true => is_stale = true,
                false => self.note_copied(begun, |copied| copied.kept.insert(group)),
            }
        }
        is_stale
    }

    fn is_copied(&self, begun: u64, group: u64) -> bool {
        let copied = self.copied.lock();
        copied.begun == begun && copied.groups.contains(&group)
    }

    fn is_kept(&self, begun: u64, group: u64) -> bool {
        let copied = self.copied.lock();
        copied.begun == begun && copied.kept.contains(&group)
    }

    fn copy_lines(
        &self,
        lines: Range<u64>,
        is_right: IsRight<'_>,
        unreadable: &mut Vec<Range<u64>>,
    ) -> io::Result<()> {
        let _alone = self.lines.write();
        let mut from = lines.start;
        while from < lines.end {
            let to = lines.end.min(self.rows.end_of_row(from));
            for column in 0..self.rows.width() {
                let place = self.place(from, column);
                let (new, target) = (self.members.incoming(place.member), self.target(from, column));
                if new.is_none() && target.is_none() {
                    continue;
                }
                let mut content = vec![0; (to - from) as usize * BLOCK];
                self.read_column(from, column, &mut content, is_right, unreadable)?;
                if let Some((to, disk)) = target {
                    self.members.copy_to_target(&to, &disk, to.offset, &content)?;
                }
                let Some(new) = new else { continue };
                let len = content.len() as u64;
                let done =
                    new.0.allocate(place.offset, len).and_then(|()| new.0.write_at(&content, place.offset));
                if let Err(error) = done {
                    // Clients do not wait for a disk that has no space for the content.
                    self.members.lose(place.member, &new, &error)?;
                }
            }
            from = to;
        }
        Ok(())
    }

    /// Reads what a column has in some lines of a row.
    fn read_column(
        &self,
        line: u64,
        column: usize,
        content: &mut [u8],
        is_right: IsRight<'_>,
        unreadable: &mut Vec<Range<u64>>,
    ) -> io::Result<()> {
        let read = |disk: &dyn Disk, buf: &mut [u8], at| disk.read_at(buf, at);
        let (place, disk) = self.stored(line, column);
        let known = match &disk {
            Some(disk) => disk.0.read_at(content, place.offset),
            None => self.restore(content, line, column, 0, &read),
        };
        for (block, line) in content.chunks_mut(BLOCK).zip(line..) {
            if column == self.rows.parity() {
                if known.is_err() {
                    self.parity_of(line, block)?;
                }
                continue;
            }
            let at = self.rows.block(line, column) * BLOCK as u64;
            if known.is_ok() && is_right(at, block) {
                continue;
            }
            let place = self.place(line, column).offset;
            let mut is_there = known.is_ok();
            if let (Some(disk), Err(_)) = (&disk, &known) {
                is_there = passes(disk.0.read_at(block, place))?;
            }
            let mut other = [0; BLOCK];
            let is_restored = disk.is_some() || known.is_err();
            if is_restored && passes(self.restore(&mut other, line, column, 0, &read))? {
                if !is_there || is_right(at, &other) {
                    block.copy_from_slice(&other);
                }
                is_there = true;
            }
            if !is_there {
                block.fill(0);
                unreadable.push(at..at + BLOCK as u64);
            }
        }
        Ok(())
    }

    /// Computes the parity of a line. A block that nothing has any more counts as zeros.
    fn parity_of(&self, line: u64, parity: &mut [u8]) -> io::Result<()> {
        let mut block = [0; BLOCK];
        parity.fill(0);
        for column in 0..self.rows.parity() {
            self.read_block(line, column, &mut block)?;
            super::add(parity, &block);
        }
        Ok(())
    }

    /// Notes that the content before `to` was copied since so many rebuilds had begun. It is
    /// durable when this returns. With `to` at the end, the disks are members from then on. If
    /// another rebuild began meanwhile, this does nothing.
    pub(crate) fn note_rebuilt(&self, begun: u64, to: u64) -> io::Result<()> {
        self.members.sync_incoming()?;
        // No flush is between the old disk and the new one.
        let _log = self.log.lock();
        let _alone = self.lines.write();
        let is_end = to >= self.content_len() && self.members.begun.load(Ordering::SeqCst) == begun;
        let are_consistent = if is_end { self.groups_then(begun) } else { Vec::new() };
        let (dir, name) = (&*self.members.dir, &self.members.name);
        let is_known = |group: u64| are_consistent.get(group as usize).copied().unwrap_or(false);
        if is_end {
            self.groups.change(dir, name, |group, was_consistent| was_consistent && is_known(group))?;
        }
        // What is known only because of the new disk counts when the record has the disk. Until
        // then the rebuild may end, and another disk may take its place.
        if self.members.note_rebuilt(begun, to)? && is_end {
            // Without it, nothing is known of them.
            let _ = self.groups.change(dir, name, |group, _| is_known(group));
        }
        Ok(())
    }

    /// Returns which groups are consistent when the disks have become members: those that were
    /// copied as a whole, or need no copy.
    fn groups_then(&self, begun: u64) -> Vec<bool> {
        let record = self.members.record();
        let rebuilt: Vec<(usize, bool)> = record
            .members
            .iter()
            .enumerate()
            .filter(|(_, of)| of.incoming.is_some())
            .map(|(number, of)| (number, of.is_in))
            .collect();
        let places = self.places.load();
        let only_return = self.members.only_return();
        self.groups.known(|group, was_consistent| {
            let lines = group * GROUP..((group + 1) * GROUP).min(Rows::lines(&places));
            let is_here = |(member, _): &&(usize, bool)| Rows::is_on(&places, lines.clone(), *member);
            let mut here = rebuilt.iter().filter(is_here).peekable();
            if here.peek().is_none() {
                return was_consistent;
            }
            if only_return && (self.is_kept(begun, group) || !self.is_group_stale(group)) {
                return was_consistent;
            }
            // What follows from the others agrees with them.
            self.is_copied(begun, group) && (was_consistent || here.any(|(_, is_in)| !is_in))
        })
    }

    /// Forgets that groups with a part of a range of the spans are consistent, unless they were
    /// copied as a whole since so many rebuilds and moves had begun.
    pub(in crate::disk::layout) fn forget_moved(&self, begun: u64, range: Range<u64>) -> io::Result<()> {
        const BYTES: u64 = GROUP * BLOCK as u64;
        let groups = range.start / BYTES..range.end.div_ceil(BYTES);
        self.groups.change(&*self.members.dir, &self.members.name, |group, was_consistent| {
            was_consistent && (!groups.contains(&group) || self.is_copied(begun, group))
        })
    }

    /// Forgets what is known of the group to which new content from byte `from` of the spans on is
    /// about to be added.
    pub(in crate::disk::layout) fn make_way_in_groups(&self, from: u64) -> io::Result<()> {
        self.groups.make_way(&*self.members.dir, &self.members.name, from / BLOCK as u64)
    }

    /// Adds the groups of new content to those of the layout. It begins at byte `from` of the
    /// spans. `is_consistent` says what is known of its lines.
    pub(in crate::disk::layout) fn extend_groups(
        &self,
        record: &LayoutRecord,
        (from, is_consistent): (u64, bool),
    ) -> io::Result<()> {
        let new = (from / BLOCK as u64, is_consistent);
        self.groups.extend(&*self.members.dir, &self.members.name, record, new)
    }

    /// Begins to rebuild a member onto a disk, whose header is written.
    pub(crate) fn begin_rebuild(&self, number: usize, new: Incoming, disk: Arc<dyn Disk>) -> io::Result<()> {
        self.while_alone(|| self.members.begin_rebuild(number, new, disk))
    }
}

/// Returns whether a read was successful. An error that says more than that a medium can't return
/// its data is returned.
fn passes(read: io::Result<()>) -> io::Result<bool> {
    match read {
        Ok(()) => Ok(true),
        Err(error) if is_shortage(&error) || !is_unreadable(&error) => Err(error),
        Err(_) => Ok(false),
    }
}
