//! Compressing old history harder, when nothing else is to be done.
//!
//! A sealed segment is written anew as another edition, every record with the content that it had, and takes the old one's
//! place with a commit. Who reads the old one goes on: it only loses its name. A crash leaves a file that the catalog does
//! not know, and that goes at the next opening. What is damaged stays as it is, for the check to find.

use super::append::Draft;
use super::codec::{Compression, Packer, unpack};
use super::record::{Entry, SegmentHead};
use super::segment::Sealed;
use crate::catalog::SegmentRecord;
use crate::disk::{Dir, SyncPurpose};
use crate::error::{Error, Result};
use crate::pool::line::Branch;
use crate::pool::{Maintenance, Pool};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Pool {
    /// Compresses one segment harder, without keeping other background work from being done. False when there is none left.
    pub(crate) fn compact_history(&self) -> Result<bool> {
        let Some((branch, old)) = self.next_to_compact(&mut self.maintenance.lock()) else {
            return Ok(false);
        };
        let head = old.file.head;
        // What can't be read, or written now, stays as it is: that takes space, and nothing else.
        let new = match self.compacted(&branch, &old) {
            Ok(Some(draft)) if draft.record.end < old.record.end => {
                Sealed::new(draft.file, SegmentRecord { compact: true, ..draft.record })
            }
            Ok(Some(draft)) => {
                let _ = self.dir.remove(&draft.file.head.file_name());
                Sealed::new(old.file.clone(), SegmentRecord { compact: true, ..old.record })
            }
            Ok(None) => return Ok(true),
            Err(_) => {
                let _ = self.dir.remove(&next_edition(&head).file_name());
                return Ok(true);
            }
        };
        let done = self.replace_segment(&mut self.maintenance.lock(), &branch, &old, new);
        done.map(|()| true).map_err(|e| self.fault.poison(&e))
    }

    /// The oldest segment of any branch that was not tried since the pool was opened.
    fn next_to_compact(&self, m: &mut Maintenance) -> Option<(Arc<Branch>, Arc<Sealed>)> {
        let names = self.names.read();
        names.branches.values().find_map(|branch| {
            let tried = m.compacted.get(&branch.id);
            let from = tried.map_or(0, |seq| seq + 1);
            let log = branch.cdp.log.read();
            let plain = log.last_settings().is_some_and(|s| s.compression == Compression::None);
            let mut segments = log.sealed.range(from..).map(|(_, segment)| segment);
            let found = segments.find(|segment| !segment.record.compact && !plain)?;
            m.compacted.insert(branch.id, found.file.head.seq);
            Some((branch.clone(), found.clone()))
        })
    }

    /// The next edition of a segment, on disk and durable; `None` where a record of it is damaged.
    fn compacted(&self, branch: &Branch, old: &Sealed) -> Result<Option<Draft>> {
        let Ok(mut entries) = old.all_entries() else { return Ok(None) };
        entries.sort_unstable_by_key(|entry| entry.at);
        let mut draft =
            Draft::new(self.shelf(branch.id).create(old.file.head.seq, old.file.head.edition + 1)?);
        let mut packer = Packer::hard()?;
        let mut packed = Vec::new();
        for entry in entries {
            let Ok((epoch, raw)) = old.file.record(&entry) else {
                let _ = self.dir.remove(&draft.file.head.file_name());
                return Ok(None);
            };
            packed.clear();
            let compression = packer.pack(&raw, &mut packed);
            // The only other copy is about to go.
            if unpack(compression, &packed, raw.len()).as_ref() != Some(&raw) {
                return Err(Error::new(crate::ErrorKind::Io, "compress a record: it does not come back"));
            }
            draft.push(Entry { compression, ..entry }, epoch, &packed);
        }
        draft.end_group()?;
        draft.seal(std::iter::empty())?;
        draft.sync()?;
        self.dir.sync(SyncPurpose::Dir).map_err(|e| Error::io("sync the data directory", e))?;
        Ok(Some(draft))
    }

    fn replace_segment(
        &self,
        m: &mut Maintenance,
        branch: &Arc<Branch>,
        old: &Sealed,
        new: Sealed,
    ) -> Result<()> {
        let seq = old.file.head.seq;
        let expired = !branch.cdp.log.read().sealed.get(&seq).is_some_and(|now| std::ptr::eq(&**now, old));
        if expired {
            if new.record.edition != old.record.edition {
                let _ = self.dir.remove(&new.file.head.file_name());
            }
            return Ok(());
        }
        self.check_usable()?;
        let mut txn = self.catalog.begin()?;
        txn.put_cdp_segment(branch.id, seq, &new.record)?;
        let (preserved, destaged) = (m.committed.preserved_lsn.max(m.destaged), m.destaged);
        self.commit(m, txn, preserved, destaged, &[])?;
        let (before, after) = (old.record, new.record);
        branch.cdp.change(|log| _ = log.sealed.insert(seq, Arc::new(new)));
        if after.edition != before.edition {
            self.positions.compacted.fetch_add(before.end - after.end, Ordering::Relaxed);
            // Should it stay, the next opening finds that nobody knows it.
            let _ = self.dir.remove(&old.file.head.file_name());
        }
        Ok(())
    }
}

fn next_edition(head: &SegmentHead) -> SegmentHead {
    SegmentHead { edition: head.edition + 1, ..*head }
}
