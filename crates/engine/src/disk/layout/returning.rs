//! Members that come back: when a list of stale regions counts, and when it counts no more.

use super::members::Members;
use super::record::{LayoutRecord, MemberRecord};
use super::spans::CopiedSpan;
use super::stale;
use crate::disk::SyncPurpose;
use std::io;
use std::sync::atomic::Ordering;

/// Notes that no list counts. A disk that comes back gets all content then, from the beginning.
pub(super) fn forget_stale(record: &mut LayoutRecord) {
    for of in &mut record.members {
        let returns = of.returns();
        of.incoming.iter_mut().filter(|_| returns).for_each(|new| new.rebuilt = 0);
        of.is_listed = false;
    }
    record.stale = 0;
}

/// Notes that no list counts, if no member needs one.
pub(super) fn drop_unused_list(record: &mut LayoutRecord) {
    if !record.members.iter().any(|of| of.is_listed) {
        record.stale = 0;
    }
}

impl Members {
    /// Makes the list durable that a record names. If that fails, it counts no more, and the record
    /// says so in memory. Returns whether the record must be stored before anything relies on that.
    pub(super) fn save_stale(&self, record: &mut LayoutRecord) -> bool {
        if record.stale == 0 {
            return false;
        }
        let saved = self.stale.save(&*self.dir, &self.name, &record.uuid, record.stale);
        let Err(error) = saved else { return false };
        let layout = &self.name;
        tracing::warn!(layout, %error, "what changes can't be listed; a member that comes back gets all content");
        self.forget_list(record);
        // If the file is missing, the list does not count, whatever the stored record says. A full
        // data directory allows the removal, so it fails no write of a client.
        let gone = stale::remove(&*self.dir, &self.name).and_then(|()| self.dir.sync(SyncPurpose::Stale));
        gone.is_err()
    }

    /// Returns whether all disks that members are rebuilt onto are those that the members had, and
    /// have what is not stale.
    pub(super) fn only_return(&self) -> bool {
        let record = self.record.lock();
        let mut rebuilt = record.members.iter().filter(|of| of.incoming.is_some()).peekable();
        rebuilt.peek().is_some() && rebuilt.all(MemberRecord::returns)
    }

    /// Lets no list count from now on, durably: a disk that comes back gets everything.
    pub(crate) fn give_up_stale(&self) -> io::Result<()> {
        let record = &mut *self.record.lock();
        if record.stale == 0 {
            return Ok(());
        }
        self.forget_list(record);
        self.save(record)
    }

    fn forget_list(&self, record: &mut LayoutRecord) {
        forget_stale(record);
        // What was copied to a disk that comes back is copied again, with all the rest.
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.stale.end();
    }

    /// Returns the number of bytes of a member's places that are stale.
    pub(crate) fn stale_of(&self, record: &LayoutRecord, number: usize) -> u64 {
        let spans = record.spans.iter();
        let on_it = spans.filter(|span| span.places.iter().any(|place| place.member == number));
        on_it.map(|span| self.stale.bytes_in(span.start..span.end())).sum()
    }

    /// Returns the bytes of each place that are listed as changed.
    pub(super) fn listed(&self) -> u64 {
        let end = self.record.lock().spans.last().map_or(0, CopiedSpan::end);
        self.stale.bytes_in(0..end)
    }

    /// Ends the list, if the record that was stored names none.
    pub(super) fn end_unused_list(&self, record: &LayoutRecord) {
        if record.stale == 0 && self.writable {
            self.stale.end();
            // A file that stays does no harm: no record names its list.
            let _ = stale::remove(&*self.dir, &self.name);
        }
    }
}
