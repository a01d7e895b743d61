//! The content of blocks that the journal's files still have. A file keeps its records until it is
//! used again. So what was written lately can be found there, long after it is in place.
//!
//! A sum alone does not prove that a record has the current content of a block: the sum itself may
//! be that of older content. So only the newest record that touches a block counts. And it must be
//! certain that there is no newer one: the files must have everything that was sequenced since.

use super::Journal;
use super::record::{BLOCK, Kind};
use super::segment::{FIRST_RECORD, FoundRecord, SegmentHeader, SegmentReader};
use crate::ids::{BranchId, Epoch, Lsn};
use std::collections::BTreeMap;
use std::io;

/// A block of a branch that begins at this byte of the volume, and the sum of the content that is
/// looked for. It is the content after the last record up to the LSN `until` and the epoch `last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SoughtBlock {
    pub(crate) branch: BranchId,
    pub(crate) at: u64,
    pub(crate) sum: u32,
    pub(crate) until: Lsn,
    pub(crate) last: Epoch,
}

/// What the search needs to know of records and contents.
#[derive(Clone, Copy)]
pub(crate) struct Judgement {
    /// Makes the sum of a block.
    pub(crate) sum_of: fn(&[u8]) -> u32,
    /// Tells for the data of a control record whether it may change the content of a block.
    pub(crate) changes_content: fn(&[u8]) -> bool,
}

/// The newest record that touches a block, and the block's content if the record has the right one.
type Newest = (Lsn, Option<Vec<u8>>);

impl Journal {
    /// Looks for the content of blocks in all files. Returns for each block its content, if the
    /// newest record that touches the block has it.
    pub(crate) fn leftover_content(
        &self,
        sought: &[SoughtBlock],
        judgement: Judgement,
    ) -> Vec<Option<Vec<u8>>> {
        let mut search = Search {
            sought,
            by_place: BTreeMap::new(),
            found: vec![(Lsn::ZERO, None); sought.len()],
            judgement,
        };
        for (index, block) in sought.iter().enumerate() {
            search.by_place.entry((block.branch, block.at)).or_default().push(index);
        }
        // The records of each file, as (LSN before the first one, LSN of the last one).
        let mut spans: Vec<(Lsn, Lsn)> = Vec::new();
        for file in self.files.iter().filter_map(|file| file.get()) {
            let mut head = [0; FIRST_RECORD as usize];
            let Ok(end) = file.disk.len() else { continue };
            if end < FIRST_RECORD || file.disk.read_at(&mut head, 0).is_err() {
                continue;
            }
            let Some(head) = SegmentHeader::decode(&head).filter(|head| head.pool == self.config.pool) else {
                continue;
            };
            let mut reader = SegmentReader::new(&*file.disk, head.salt(), end);
            let mut last = head.prev_lsn;
            // What can't be read ends the span of this file.
            let _ = search.read(&mut reader, &mut last);
            spans.push((head.prev_lsn, last));
        }
        let known = unbroken(spans);
        let is_current = |lsn: Lsn, block: &SoughtBlock| {
            known.is_some_and(|(before, last)| before < lsn && block.until <= last)
        };
        let found = search.found.into_iter().zip(sought);
        found.map(|((lsn, content), block)| content.filter(|_| is_current(lsn, block))).collect()
    }
}

/// Returns the newest stretch of the log without a hole, as (LSN before the first record, last
/// LSN). A segment states the last LSN of the segment before it.
fn unbroken(mut spans: Vec<(Lsn, Lsn)>) -> Option<(Lsn, Lsn)> {
    spans.sort_unstable();
    let (mut before, last) = spans.pop()?;
    while let Some((earlier, _)) = spans.pop().filter(|(_, end)| *end >= before) {
        before = earlier;
    }
    Some((before, last))
}

struct Search<'a> {
    sought: &'a [SoughtBlock],
    /// The blocks that are looked for, by (branch, byte of the volume), as indexes into `sought`.
    by_place: BTreeMap<(BranchId, u64), Vec<usize>>,
    /// For each block what was found so far.
    found: Vec<Newest>,
    judgement: Judgement,
}

impl Search<'_> {
    /// Searches one file, and moves `last` to the last record. A record that does not verify ends
    /// the search: what follows is older than the file's header.
    fn read(&mut self, reader: &mut SegmentReader<'_>, last: &mut Lsn) -> io::Result<()> {
        let mut at = FIRST_RECORD;
        while let Some(record) = reader.next_record(at, |header| header.lsn > *last)? {
            self.take(reader, &record)?;
            (at, *last) = (record.next, record.header.lsn);
        }
        Ok(())
    }

    /// Notes a record for the blocks that it touches.
    fn take(&mut self, reader: &mut SegmentReader<'_>, record: &FoundRecord) -> io::Result<()> {
        let header = &record.header;
        if header.kind == Kind::Control {
            let data = reader.bytes(record.data_at, header.data_len as usize)?;
            if (self.judgement.changes_content)(data) {
                let before = self.found.iter_mut().zip(self.sought);
                let before = before.filter(|((lsn, _), block)| (*lsn..=block.until).contains(&header.lsn));
                before.for_each(|(newest, _)| *newest = (header.lsn, None));
            }
            return Ok(());
        }
        let (branch, from) = (header.branch, header.offset);
        let end = from + header.length;
        for ((_, at), blocks) in self.by_place.range((branch, from / BLOCK * BLOCK)..(branch, end)) {
            let is_whole = header.kind == Kind::Write && from <= *at && at + BLOCK <= end;
            for index in blocks {
                let (block, newest) = (&self.sought[*index], &mut self.found[*index]);
                if header.lsn > block.until || header.epoch > block.last || header.lsn <= newest.0 {
                    continue;
                }
                *newest = (header.lsn, None);
                if is_whole {
                    let content = reader.bytes(record.data_at + (at - from), BLOCK as usize)?;
                    let is_right =
                        content.len() as u64 == BLOCK && (self.judgement.sum_of)(content) == block.sum;
                    newest.1 = is_right.then(|| content.to_vec());
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_in_the_log_ends_what_is_known() {
        let spans = |spans: &[(u64, u64)]| {
            let known = unbroken(spans.iter().map(|(before, last)| (Lsn(*before), Lsn(*last))).collect());
            known.map(|(before, last)| (before.0, last.0))
        };
        assert_eq!(spans(&[]), None);
        assert_eq!(spans(&[(0, 5)]), Some((0, 5)));
        assert_eq!(spans(&[(5, 9), (0, 5), (9, 12)]), Some((0, 12)));
        assert_eq!(spans(&[(0, 4), (5, 9), (9, 12)]), Some((5, 12)), "the record 5 is missing");
        assert_eq!(spans(&[(0, 5), (9, 12)]), Some((9, 12)));
    }
}
