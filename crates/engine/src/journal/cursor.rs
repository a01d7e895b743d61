//! The reader of the log in order, as the destager uses it.

use super::Journal;
use super::record::Header;
use super::segment::{FIRST_RECORD, SegmentReader};
use crate::error::{Error, Result, corrupt};
use crate::ids::Lsn;

/// A place in the log: the next record is the one with `lsn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) seq: u64,
    pub(crate) at: u64,
    pub(crate) lsn: Lsn,
}

/// A record and the place of its data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Located {
    pub(crate) header: Header,
    pub(crate) file: u32,
    pub(crate) data_at: u64,
}

impl Journal {
    /// Visits the records from `cursor` up to LSN `last`, in order, while `visit` returns true. The
    /// cursor moves past every record for which `visit` returned true. `visit` gets the record's
    /// data.
    ///
    /// Everything up to `last` must be synced. A record that does not verify is
    /// [`crate::ErrorKind::Corrupt`].
    pub(crate) fn visit(
        &self,
        cursor: &mut Cursor,
        last: Lsn,
        visit: &mut dyn FnMut(&Located, &[u8]) -> Result<bool>,
    ) -> Result<()> {
        while cursor.lsn <= last {
            let Some(segment) = self.segment(cursor.seq) else {
                // Everything in the segment was carried out, and it was let go of: the log goes on
                // in the next one.
                if self.segment(cursor.seq + 1).is_some_and(|s| s.header.prev_lsn.next() == cursor.lsn) {
                    *cursor = Cursor { seq: cursor.seq + 1, at: FIRST_RECORD, lsn: cursor.lsn };
                    continue;
                }
                // After a restart LSNs go on behind the largest one ever seen: `last` may lie in
                // that gap.
                return if cursor.seq >= self.next_seq() { Ok(()) } else { Err(damaged(cursor)) };
            };
            if segment.last_lsn < cursor.lsn {
                *cursor = Cursor { seq: cursor.seq + 1, at: FIRST_RECORD, lsn: cursor.lsn };
                continue;
            }
            // LSNs skip what an older life of the pool had used up, at the start of a segment only.
            cursor.lsn = cursor.lsn.max(segment.header.first_lsn);
            let mut reader = SegmentReader::new(&*segment.file.disk, segment.header.salt(), segment.end);
            while cursor.lsn <= last.min(segment.last_lsn) {
                let incarnation = segment.header.incarnation;
                let wanted = cursor.lsn;
                let found = reader
                    .next_record(cursor.at, |h| h.lsn == wanted && h.incarnation == incarnation)
                    .map_err(|e| Error::io(format!("read journal segment {}", cursor.seq), e))?
                    .ok_or_else(|| damaged(cursor))?;
                let data = reader
                    .bytes(found.data_at, found.header.data_len as usize)
                    .map_err(|e| Error::io(format!("read journal segment {}", cursor.seq), e))?;
                let located =
                    Located { header: found.header, file: segment.file.index, data_at: found.data_at };
                if !visit(&located, data)? {
                    return Ok(());
                }
                *cursor = Cursor { seq: cursor.seq, at: found.next, lsn: cursor.lsn.next() };
            }
        }
        Ok(())
    }
}

fn damaged(cursor: &Cursor) -> Error {
    corrupt(format!(
        "read LSN {} at byte {} of journal segment {}: it was durable and no longer verifies",
        cursor.lsn, cursor.at, cursor.seq
    ))
}

/// The catalog's record of the journal: the number of its files and the start of the scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JournalRecord {
    /// The files with indexes below this one exist, at their full length. A file is counted before
    /// it is first used.
    pub(crate) files: u32,
    /// The `destaged_lsn` of the positions for which `start` was written.
    pub(crate) destaged_lsn: Lsn,
    /// The start of the scan. No record before this place is needed.
    pub(crate) start: Cursor,
}
