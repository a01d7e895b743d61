//! Writes over an image outside of the pool, or over a moment of a history.
//!
//! An acknowledged write must reach its place whatever happens to the image. So before the first
//! write to a part of a chunk that still shows the image, the whole chunk is materialized: it is
//! written to the journal with the content of the image. That is a record like any other, and
//! changes nothing that a reader sees. Destage never reads an image.
//!
//! A moment that has to be reconstructed is the same case. If its content is damaged, the write
//! gets the error, and destage of other volumes continues. A chunk that is longer than a record is
//! copied to its place instead, by the first write to it.
//!
//! With CDP every chunk is materialized as a whole before a write, even one that is overwritten
//! completely, because what was there before has to be recorded.

use super::Volume;
use crate::branch::{Base, ExternalBase};
use crate::catalog::page::MapPage;
use crate::error::{ErrorKind, Result};
use crate::ids::{Chunk, Epoch};
use crate::sequence::relief::Relief;
use parking_lot::RwLockReadGuard;

impl Volume {
    /// Returns the guard that is held while a request is sequenced and staged. Meanwhile, no chunk
    /// that the request overwrites is materialized.
    fn writing(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let branch = self.branch();
        (branch.has_external_base && branch.has_base()).then(|| branch.materialize_lock.read())
    }

    /// Materializes as the volume's present state requires (more, if CDP is on), and returns the
    /// guard of [`Volume::writing`].
    pub(super) fn writing_after(
        &self,
        mut materialize: impl FnMut() -> Result<()>,
    ) -> Result<Option<RwLockReadGuard<'_, ()>>> {
        loop {
            let recorded = self.branch().cdp.is_on();
            materialize()?;
            let writing = self.writing();
            // While the guard is held, CDP is not switched on; it may have been switched on just
            // before.
            if writing.is_none() || recorded || !self.branch().cdp.is_on() {
                return Ok(writing);
            }
        }
    }

    /// Materializes the chunks of which a request changes only a part. With CDP and `recorded`,
    /// materializes all chunks that the request changes. `most` is the most that one of the
    /// request's records changes. A write to a longer chunk takes several records, and a crash may
    /// leave some of them, so such chunks are materialized too.
    pub(super) fn materialize(&self, offset: u64, len: u64, most: u64, recorded: bool) -> Result<()> {
        let branch = self.branch();
        if len == 0 || !branch.has_external_base || !branch.has_base() {
            return Ok(());
        }
        let (size, end) = (1u64 << branch.chunk_log2, offset + len);
        let chunks = branch.chunks(offset, len);
        if recorded && branch.cdp.is_on() || size > most {
            return Chunk::each(chunks).try_for_each(|chunk| self.materialize_chunk(chunk));
        }
        let is_part = |chunk: &Chunk| {
            let start = chunk.start(branch.chunk_log2);
            offset > start || end < (start + size).min(self.size())
        };
        let last = Some(chunks.end.prev()).filter(|last| *last > chunks.start);
        [chunks.start].into_iter().chain(last).filter(is_part).try_for_each(|c| self.materialize_chunk(c))
    }

    /// Materializes the chunk that byte `at` lies inside of.
    pub(crate) fn materialize_around(&self, at: u64) -> Result<()> {
        let branch = self.branch();
        if !branch.has_external_base || !branch.has_base() || at.is_multiple_of(1 << branch.chunk_log2) {
            return Ok(());
        }
        self.materialize_chunk(Chunk::of(at, branch.chunk_log2))
    }

    /// Copies a chunk that is too long for a record to its place.
    pub(super) fn fill_chunk(&self, chunk: Chunk, below: &ExternalBase) -> Result<()> {
        let size = self.branch().chunk_size();
        let mut content = vec![0; size as usize];
        // Only writers of this volume wait for this read.
        below.read(&self.core, &mut content, chunk.start(self.branch().chunk_log2))?;
        let content = Some(&content[..]).filter(|content| content.iter().any(|b| *b != 0));
        let mut relief = Relief::default();
        loop {
            match self.destager.fill_chunk(&self.state, chunk, content) {
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    // Pending records may give some space back.
                    self.core.journal.write_out(self.core.journal.last().lsn)?;
                    if !self.destager.relieve(&mut relief, None, 0)? {
                        return Err(error);
                    }
                }
                filled => return filled,
            }
        }
    }

    /// Returns the image or moment that a chunk shows, if no line above it has content for the
    /// chunk in the pool.
    pub(super) fn falls_to_external(&self, chunk: Chunk) -> Result<Option<ExternalBase>> {
        let (number, index) = MapPage::locate(chunk);
        let mut line = self.state.line.clone();
        let bytes = chunk.bytes(line.branch.chunk_log2);
        loop {
            // Staging is read before the map: a record leaves staging only after it has entered the
            // map.
            let staging = &line.branch.staging;
            if !staging.is_empty()
                && !staging.touched(bytes.clone(), Epoch::NONE..=line.epoch, 1).0.is_empty()
            {
                return Ok(None);
            }
            if self.core.map.load(&line, number)?.get(index).is_some() {
                return Ok(None);
            }
            let external = match line.branch.base() {
                Some(Base::View(base)) => match &base.at {
                    Some(at) => ExternalBase::Moment(at.clone()),
                    None => {
                        line = base;
                        continue;
                    }
                },
                Some(Base::Image(image)) => ExternalBase::Image(image),
                None => return Ok(None),
            };
            return Ok(Some(external).filter(|external| bytes.start < external.shown()));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check::{CheckOptions, check};
    use crate::device::BlockDevice;
    use crate::disk::{Dir, OpenMode};
    use crate::error::ErrorKind;
    use crate::ids::Chunk;
    use crate::info::Progress;
    use crate::settings::CdpSettings;
    use crate::testing::{Site, new_volume};

    /// A writer that has decided what to materialize, and is overtaken by the switch, decides
    /// again.
    #[test]
    fn cdp_switched_on_between_looking_and_writing() {
        let Site { dir, pool, .. } = Site::new(63);
        dir.open("image", OpenMode::CreateNew).unwrap().write_at(&[7; 1 << 16], 0).unwrap();
        pool.create_volume_over(&new_volume("v", 1 << 16, 4096), "image").unwrap();
        let volume = pool.open_volume("v", false).unwrap();
        let mut looks = 0;
        let writing = volume.writing_after(|| {
            looks += 1;
            if looks == 1 {
                pool.set_cdp("v", Some(CdpSettings::default())).map(drop)?;
            }
            volume.materialize(0, 4096, u64::MAX, true)
        });
        assert!(writing.unwrap().is_some());
        assert_eq!(looks, 2);
        // Everything that a record reports of the old content is in the journal.
        drop(volume);
        dir.remove("image").unwrap();
        let volume = pool.open_volume("v", false).unwrap();
        volume.zero_range(0, 4096, true, true).unwrap();
        pool.drain().unwrap();
        assert_eq!(pool.cdp("v").unwrap().records, 2);
    }

    /// Between the check of a chunk and its copy there is a wait for the current user of the map.
    /// What came meanwhile stays.
    #[test]
    fn a_chunk_that_was_filled_or_cut_off_meanwhile() {
        let Site { dir, pool, .. } = Site::new(63);
        dir.open("image", OpenMode::CreateNew).unwrap().write_at(&[7; 1 << 16], 0).unwrap();
        pool.create_volume_over(&new_volume("v", 1 << 16, 4096), "image").unwrap();
        let volume = pool.open_volume("v", false).unwrap();
        let fill = |chunk| pool.destager.fill_chunk(&volume.state, Chunk(chunk), Some(&[7; 4096]));
        // The branch is in the journal only.
        fill(0).unwrap();
        let allocated = pool.volume("v").unwrap().allocated;
        fill(0).unwrap();
        assert_eq!((allocated, pool.volume("v").unwrap().allocated), (4096, 4096));
        pool.resize_volume("v", 1 << 15, true).unwrap();
        pool.drain().unwrap();
        fill(15).unwrap();
        pool.resize_volume("v", 1 << 16, false).unwrap();
        let mut found = vec![1; 1 << 15];
        volume.read(1 << 15, &mut found).unwrap();
        assert!(found.iter().all(|b| *b == 0), "what was cut off has come back");
        pool.delete_volume("v", true).unwrap();
        assert_eq!(fill(2).unwrap_err().kind(), ErrorKind::NotFound);
        drop(volume);
        while pool.maintain().unwrap() == Progress::Worked {}
        pool.close().unwrap();
        drop(pool);
        let report = check(dir, &CheckOptions::default(), &mut |_, _| {}).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
    }
}
