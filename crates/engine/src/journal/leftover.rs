//! The content of blocks that the journal's files still have. A file keeps its records until it is
//! used again. So what was written lately can be found there, long after it is in place.

use super::Journal;
use super::record::{BLOCK, Kind};
use super::segment::{FIRST_RECORD, FoundRecord, SegmentHeader, SegmentReader};
use crate::ids::{BranchId, Lsn};
use std::collections::BTreeMap;
use std::io;

/// A block of a branch, and the sum of the content that is looked for. The block lies at this byte
/// of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SoughtBlock {
    pub(crate) branch: BranchId,
    pub(crate) at: u64,
    pub(crate) sum: u32,
}

/// The blocks that are still looked for, by (branch, byte of the volume), and for each its index
/// and its sum.
type Left = BTreeMap<(BranchId, u64), Vec<(usize, u32)>>;

impl Journal {
    /// Looks for the content of blocks in all files. `sum_of` makes the sum of a content. Returns
    /// for each block its content, if a record has it. Reads the files until everything is found.
    pub(crate) fn leftover_content(
        &self,
        sought: &[SoughtBlock],
        sum_of: fn(&[u8]) -> u32,
    ) -> Vec<Option<Vec<u8>>> {
        let mut search = Search { left: Left::new(), found: vec![None; sought.len()], sum_of };
        for (index, block) in sought.iter().enumerate() {
            search.left.entry((block.branch, block.at)).or_default().push((index, block.sum));
        }
        for file in self.files.iter().filter_map(|file| file.get()) {
            if search.left.is_empty() {
                break;
            }
            let mut head = [0; FIRST_RECORD as usize];
            let Ok(end) = file.disk.len() else { continue };
            if end < FIRST_RECORD || file.disk.read_at(&mut head, 0).is_err() {
                continue;
            }
            let Some(head) = SegmentHeader::decode(&head).filter(|head| head.pool == self.config.pool) else {
                continue;
            };
            let mut reader = SegmentReader::new(&*file.disk, head.salt(), end);
            // What can't be read ends the search of this file.
            let _ = search.read(&mut reader);
        }
        search.found
    }
}

struct Search {
    left: Left,
    found: Vec<Option<Vec<u8>>>,
    sum_of: fn(&[u8]) -> u32,
}

impl Search {
    /// Searches one file. A record that does not verify ends the search: what follows is older than
    /// the file's header.
    fn read(&mut self, reader: &mut SegmentReader<'_>) -> io::Result<()> {
        let (mut at, mut last) = (FIRST_RECORD, Lsn::ZERO);
        while let Some(record) = reader.next_record(at, |header| header.lsn > last)? {
            (at, last) = (record.next, record.header.lsn);
            if record.header.kind == Kind::Write {
                self.take(reader, &record)?;
            }
            if self.left.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Takes the blocks that a record has with the right content.
    fn take(&mut self, reader: &mut SegmentReader<'_>, record: &FoundRecord) -> io::Result<()> {
        let (branch, from) = (record.header.branch, record.header.offset);
        let end = from + record.header.length;
        let in_range = self.left.range((branch, from)..(branch, end)).map(|(key, _)| *key);
        let whole: Vec<(BranchId, u64)> = in_range.filter(|(_, at)| at + BLOCK <= end).collect();
        for key in whole {
            let content = reader.bytes(record.data_at + (key.1 - from), BLOCK as usize)?;
            if content.len() as u64 != BLOCK {
                continue;
            }
            let (sum, content) = ((self.sum_of)(content), content.to_vec());
            let Some(wanted) = self.left.get_mut(&key) else { continue };
            for (index, _) in wanted.extract_if(.., |(_, wanted)| *wanted == sum) {
                self.found[index] = Some(content.clone());
            }
            if wanted.is_empty() {
                self.left.remove(&key);
            }
        }
        Ok(())
    }
}
