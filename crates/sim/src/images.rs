//! Volumes over images outside the pool, and flattening: volumes become independent of their base.

use crate::oracle::{Effect, Manner, SECTOR, View, VolId, VolumeModel, fill_sector};
use crate::perform::Answer;
use crate::run::{Outcome, Run};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::pool::{Health, Pool};
use hindcast_engine::{ErrorKind, Volume};
use std::sync::Arc;

/// Number of consecutive sectors of an image that one write has filled, or none.
const PIECE: u64 = 24;
/// The volume number in the content of images. No volume of a run has this number.
const IMAGES: VolId = 1 << 30;
/// Background steps without images.
const STEPS: u32 = 30;

impl Run {
    /// Adds a new image of `len` bytes beside the pool. Returns its name and its pieces that are
    /// not zeros: (first sector, end, stamp).
    fn add_image(&mut self, len: u64) -> (String, Vec<(u64, u64, u64)>) {
        self.next_image += 1;
        let (number, sectors) = (self.next_image, len / SECTOR);
        let mut data = vec![0; len as usize];
        let mut pieces = Vec::new();
        for (piece, start) in (0..sectors).step_by(PIECE as usize).enumerate() {
            let end = (start + PIECE).min(sectors);
            if !(piece as u64 * 7 + number).is_multiple_of(4) {
                let stamp = self.next_stamp;
                self.next_stamp += 1;
                for sector in start..end {
                    let at = (sector * SECTOR) as usize;
                    fill_sector(&mut data[at..at + SECTOR as usize], IMAGES, sector, stamp);
                }
                pieces.push((start, end, stamp));
            }
        }
        let name = format!("image-{number}");
        self.dir.add_image(&name, &data);
        (name, pieces)
    }

    /// Creates a volume over a new image of `len` bytes. If the model has no size, the volume gets
    /// the size of the image.
    pub(crate) fn create_over(&mut self, model: &VolumeModel, len: u64) -> Outcome<()> {
        let (image, pieces) = self.add_image(len);
        let mut model = model.clone();
        let asked = model.size;
        if asked == 0 {
            model.size = len.next_multiple_of(model.block_size.into());
        }
        let shown = model.size.min(len) / SECTOR;
        for (start, end, stamp) in pieces {
            model.content.set(start.min(shown), end.min(shown), stamp);
        }
        model.over_image = Some(shown * SECTOR);
        self.create_volume_of(&model, &[], |pool, mut new| {
            new.size = asked;
            pool.create_volume_over(&new, &image)
        })
    }

    /// Allows the pool to sequence records of its own with a request to a volume: content of an
    /// image is written to the journal before the request. Returns the number of these records.
    pub(crate) fn may_bring_in(&mut self, vol: VolId, chunks: u64) -> Outcome<u64> {
        let model = self.model(vol)?;
        let (line, chunk_size) = (model.line, model.chunk_size);
        let over_image = self.oracle.state().lines.over_image(line);
        // A chunk that is longer than a record can't be materialized by a record. The pool copies
        // it into the first epoch of the volume, as flattening does. Snapshots that show the chunk
        // keep this slot when the chunk is written.
        let fills = over_image && chunk_size > self.pool()?.max_record_bytes();
        let brought = if over_image && !fills { chunks } else { 0 };
        self.brought = brought;
        self.filled |= fills;
        self.may_anchor(vol);
        Ok(brought)
    }

    /// Allows the same for writes. With a history, all their chunks are materialized. Without one,
    /// those at the ends of the parts are.
    pub(crate) fn may_bring_in_for(&mut self, vol: VolId, parts: &[(u64, u64)]) -> Outcome<u64> {
        let ends = 2 * parts.len() as u64;
        let size = self.model(vol)?.chunk_size;
        let whole = parts.iter().map(|(_, len)| len / size).sum::<u64>();
        self.may_bring_in(vol, if self.is_recorded(vol) { whole + ends } else { ends })
    }

    /// Returns whether a refusal can leave the number of sequenced records unknown. This is so for
    /// several records, if physical volumes fail and the pool sequences records of its own for the
    /// request.
    pub(crate) fn may_stay_open(&self, effects: &[Effect]) -> bool {
        self.failing && self.brought > 0 && effects.len() > 1
    }

    /// Notes that a request failed, which may have brought in `materialized` records. An anchor
    /// follows only a request that succeeds.
    pub(crate) fn brings_no_anchor(&mut self, vol: VolId, materialized: u64) -> Outcome<()> {
        // Content of a moment may have been brought in, too.
        if !self.oracle.state().lines.has_base(self.model(vol)?.line) {
            self.brought = materialized;
        }
        Ok(())
    }

    /// Begins or stops the flattening of a volume. No content that a volume or snapshot shows
    /// changes.
    pub(crate) fn flatten(&mut self, vol: VolId, on: bool) -> Outcome<()> {
        let name = self.volume_name(vol)?;
        self.filled |= on;
        let refusal = if on { ErrorKind::Conflict } else { ErrorKind::NotFound };
        let answer = self.control(Effect::Manner(vol, Manner::default()), &[refusal], |pool| {
            if on { pool.flatten_volume(&name, 0) } else { pool.stop_flatten(&name) }
        })?;
        if let Answer::Done = answer
            && self.pool()?.flattening(&name).is_ok_and(|f| f.is_some()) != on
            && !self.dir.crashed()
        {
            return Err(format!("flattening {name}, {on}, is not told"));
        }
        Ok(())
    }

    /// Returns whether any volume is being flattened.
    pub(crate) fn flattening(&self) -> Outcome<bool> {
        let pool = self.pool()?;
        let volumes = self.oracle.state().volumes.values();
        let mut running = volumes.map(|v| pool.flattening(&v.name).is_ok_and(|f| f.is_some()));
        Ok(running.any(|running| running))
    }

    /// Opens the pool without any image. Reads that need an image fail with the right error,
    /// everything else is there, and staged data is carried out. Then the images come back.
    pub(crate) fn lose_images(&mut self) -> Outcome<()> {
        if !self.close()? {
            return self.reopen(None);
        }
        self.dir.crash_at(None);
        let images: Vec<String> =
            self.dir.files().into_iter().map(|f| f.0).filter(|n| n.starts_with("image-")).collect();
        images.iter().for_each(|name| self.dir.hide(name, true));
        let pool = Pool::open(self.dyn_dir(), self.world(), self.plan.options.clone());
        let pool = pool.map_err(|e| format!("open the pool without images: {e:?}"))?;
        self.read_without_images(&pool)?;
        pool.drain().map_err(|e| format!("drain without images: {e:?}"))?;
        // The model would not notice which snapshots a policy deletes here.
        let deletes = self.oracle.state().volumes.values().any(|volume| volume.policy.auto_delete);
        let before = pool.stats().sequenced_lsn;
        for _ in 0..if deletes { 0 } else { STEPS } {
            pool.maintain().map_err(|e| format!("a background step without images: {e:?}"))?;
        }
        // The pool may have begun to flatten deep volumes.
        self.filled |= pool.stats().sequenced_lsn != before;
        self.read_without_images(&pool)?;
        if let Health::Poisoned(why) = pool.health() {
            return Err(format!("without images the pool is poisoned: {why}"));
        }
        pool.close().map_err(|e| format!("close without images: {e:?}"))?;
        drop(pool);
        images.iter().for_each(|name| self.dir.hide(name, false));
        self.open(crate::oracle::Promise::Acknowledged)
    }

    fn read_without_images(&self, pool: &Arc<Pool>) -> Outcome<()> {
        let state = self.oracle.state();
        let fail = |e| format!("open without images: {e:?}");
        for (vol, model) in &state.volumes {
            let handle = pool.open_volume(&model.name, true).map_err(fail)?;
            let needs = state.lines.over_image(model.line);
            self.read_view_without_images(&handle, View::Volume(*vol), *vol, needs)?;
        }
        for (snap, model) in state.snapshots.iter().take(20) {
            let volume = self.volume_name(model.volume)?;
            let handle = pool.open_snapshot(&volume, &model.name).map_err(fail)?;
            let needs = state.lines.over_image(model.of.0);
            self.read_view_without_images(&handle, View::Snapshot(*snap), model.volume, needs)?;
        }
        Ok(())
    }

    fn read_view_without_images(&self, handle: &Volume, view: View, of: VolId, needs: bool) -> Outcome<()> {
        for (offset, len) in self.oracle.interesting(of, handle.info().size) {
            let mut data = vec![0xEE; len as usize];
            match handle.read(offset, &mut data) {
                Ok(()) => self.oracle.check_read(view, offset, &data)?,
                Err(e) if needs && e.kind() == ErrorKind::Unavailable => {}
                Err(e) if self.needs_lost(&e) => {}
                Err(e) => return Err(format!("read {view:?} at {offset} without images: {e:?}")),
            }
        }
        Ok(())
    }
}
