//! Writing over an image outside of the pool.
//!
//! What is acknowledged must come to its place whatever becomes of the image. So before the first write to a part of a
//! chunk that still shows the image, the whole chunk is brought into the journal as the image has it: a record like any
//! other, that changes nothing that anybody reads. Destage never looks at an image.

use super::Volume;
use crate::error::Result;
use crate::map::page::MapPage;
use crate::pool::image::Image;
use crate::pool::line::Base;
use parking_lot::RwLockReadGuard;
use std::sync::Arc;

impl Volume {
    /// Held while a request is sequenced and staged: nobody brings in meanwhile what it overwrites.
    pub(super) fn writing(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let branch = self.branch();
        (branch.over_image && branch.has_base()).then(|| branch.bringing.read())
    }

    /// Brings in the chunks of which a request changes a part only.
    pub(super) fn bring_in(&self, offset: u64, len: u64) -> Result<()> {
        let branch = self.branch();
        if len == 0 || !branch.over_image || !branch.has_base() {
            return Ok(());
        }
        let (size, end) = (1u64 << branch.chunk_log2, offset + len);
        let chunks = branch.chunks(offset, len);
        let is_part = |chunk: &u64| {
            let start = chunk << branch.chunk_log2;
            offset > start || end < (start + size).min(self.size())
        };
        let last = (chunks.end - 1 > chunks.start).then_some(chunks.end - 1);
        [chunks.start].into_iter().chain(last).filter(is_part).try_for_each(|c| self.bring_in_chunk(c))
    }

    /// Brings in the chunk that byte `at` lies inside of.
    pub(crate) fn bring_in_around(&self, at: u64) -> Result<()> {
        let branch = self.branch();
        if !branch.over_image || !branch.has_base() || at.is_multiple_of(1 << branch.chunk_log2) {
            return Ok(());
        }
        self.bring_in_chunk(at >> branch.chunk_log2)
    }

    /// The image, if it is what a chunk shows: nothing above has anything of it.
    pub(super) fn falls_to_image(&self, chunk: u64) -> Result<Option<Arc<Image>>> {
        let (number, index) = MapPage::locate(chunk);
        let mut line = self.state.line.clone();
        let start = chunk << line.branch.chunk_log2;
        let bytes = start..start + (1 << line.branch.chunk_log2);
        loop {
            // Staging is asked before the map: a record leaves the one only after it has entered the other.
            let staging = &line.branch.staging;
            if !staging.is_empty() && !staging.touched(bytes.clone(), 0..=line.epoch, 1).0.is_empty() {
                return Ok(None);
            }
            if self.pool.map.load(&line, number)?.get(index).is_some() {
                return Ok(None);
            }
            match line.branch.base() {
                Some(Base::Line(base)) => line = base,
                Some(Base::Image(image)) => return Ok(Some(image).filter(|i| start < i.record.shown)),
                None => return Ok(None),
            }
        }
    }
}
