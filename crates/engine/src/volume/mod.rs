//! A volume as the targets use it: the engine's implementation of [`BlockDevice`].

mod damaged;
mod difference;
mod direct;
mod image;
pub(crate) mod pages;
mod read;
mod status;
mod write;

use crate::branch::{Branch, HEAD, VolumeState};
use crate::core::Core;
use crate::destage::Destager;
use crate::device::{BlockDevice, DeviceInfo, StatusRun, WriteOp};
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::ids::Stamp;
use bytes::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub use difference::{ChangeRun, Difference};

/// A handle of a volume. Handles share the volume's state. Each counts as a user of the volume,
/// unless it was opened not to.
pub struct Volume {
    core: Arc<Core>,
    destager: Arc<Destager>,
    state: Arc<VolumeState>,
    read_only: bool,
    counted: bool,
    /// The lease of an import that fills the volume from a stream.
    lease: Option<u64>,
    /// A handle of the pool itself, whose writes change nothing that a reader sees.
    internal: bool,
    /// Requests on this handle appear in no statistics.
    quiet: bool,
    /// The handle of the volume's next state, after the volume was given a new branch.
    next: OnceLock<Arc<Volume>>,
}

impl Volume {
    pub(crate) fn new(
        destager: Arc<Destager>,
        state: Arc<VolumeState>,
        read_only: bool,
        counted: bool,
    ) -> Self {
        state.handles.fetch_add(u64::from(counted), Ordering::AcqRel);
        Volume {
            core: destager.core.clone(),
            destager,
            state,
            read_only,
            counted,
            lease: None,
            internal: false,
            quiet: false,
            next: OnceLock::new(),
        }
    }

    /// Makes a read-only handle that counts neither as a user nor in statistics.
    pub(crate) fn quiet(destager: Arc<Destager>, state: Arc<VolumeState>) -> Self {
        let mut volume = Volume::new(destager, state, true, false);
        volume.quiet = true;
        volume
    }

    /// Makes the handle through which the import of this lease fills the volume.
    pub(crate) fn importer(destager: Arc<Destager>, state: Arc<VolumeState>, lease: u64) -> Self {
        let mut volume = Volume::new(destager, state, false, true);
        volume.lease = Some(lease);
        volume
    }

    /// Makes a handle of the pool itself, for a volume that may refuse writes.
    pub(crate) fn internal(destager: Arc<Destager>, state: Arc<VolumeState>) -> Self {
        let mut volume = Volume::new(destager, state, false, false);
        volume.internal = true;
        volume
    }

    /// The volume's current name.
    pub fn name(&self) -> String {
        self.newest().state.name.read().clone()
    }

    /// Returns the handle of the volume's next state, if the volume was given a new branch.
    fn successor(&self) -> Option<&Arc<Volume>> {
        if !self.state.deleted.load(Ordering::Acquire) {
            return None;
        }
        let state = self.state.successor.get()?;
        Some(self.next.get_or_init(|| {
            let state = state.clone();
            let next = OnceLock::new();
            Arc::new(Volume {
                core: self.core.clone(),
                destager: self.destager.clone(),
                state,
                read_only: self.read_only,
                counted: false,
                lease: None,
                internal: self.internal,
                quiet: self.quiet,
                next,
            })
        }))
    }

    /// Returns the handle of the volume's current state.
    fn newest_of(mut volume: Arc<Volume>) -> Arc<Volume> {
        while let Some(next) = volume.successor().cloned() {
            volume = next;
        }
        volume
    }

    /// Returns a reference to the handle of the volume's current state.
    fn newest(&self) -> &Volume {
        let mut newest = self;
        while let Some(next) = newest.successor() {
            newest = next;
        }
        newest
    }

    /// Runs a request on the volume's current state. Runs it again if the volume was given a new
    /// branch meanwhile.
    fn following<T>(&self, mut run: impl FnMut(&Volume) -> Result<T>) -> Result<T> {
        let mut volume = self.newest();
        loop {
            let done = run(volume);
            match volume.successor() {
                Some(next) if done.as_ref().is_err_and(|e| e.kind() == ErrorKind::NotFound) => volume = next,
                _ => return done,
            }
        }
    }

    pub(crate) fn chunk_size(&self) -> u64 {
        1 << self.branch().chunk_log2
    }

    pub(crate) fn branch(&self) -> &Arc<Branch> {
        &self.state.line.branch
    }

    fn size(&self) -> u64 {
        self.state.size.load(Ordering::Acquire)
    }

    /// Checks range and alignment of a request against the size at this instant.
    fn check_range(&self, offset: u64, len: u64) -> Result<()> {
        let unit = self.state.block_size as u64;
        if offset % unit != 0 || len % unit != 0 {
            return Err(invalid(format!(
                "use bytes {offset}+{len}: not a multiple of the block size {unit}"
            )));
        }
        self.state.check_there()?;
        let size = self.size();
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                format!("use bytes {offset}+{len}: the volume ends at {size}"),
            ));
        }
        Ok(())
    }

    fn check_writable(&self) -> Result<()> {
        self.core.check_usable()?;
        if self.internal {
            return Ok(());
        }
        if let Some(lease) = self.lease {
            return self.state.check_lease(lease);
        }
        if self.read_only || self.state.line.epoch != HEAD || self.state.read_only.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::ReadOnly, "write to the volume: it is read-only"));
        }
        if self.state.importing.load(Ordering::Acquire) {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                "write to the volume: an import into it is unfinished",
            ));
        }
        Ok(())
    }

    fn count(&self, counter: &AtomicU64, by: u64) {
        if self.quiet {
            return;
        }
        counter.fetch_add(by, Ordering::Relaxed);
    }

    fn counted<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.count(&self.state.counters.errors, 1);
            self.core.fault.damage(error);
        }
        result
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.state.handles.fetch_sub(u64::from(self.counted), Ordering::AcqRel);
    }
}

impl BlockDevice for Volume {
    fn info(&self) -> DeviceInfo {
        let volume = self.newest();
        DeviceInfo {
            size: volume.size(),
            block_size: volume.state.block_size,
            preferred_size: (1u32 << volume.branch().chunk_log2.min(22)).max(4096),
            read_only: volume.read_only || volume.state.read_only.load(Ordering::Acquire),
            uuid: volume.state.uuid,
        }
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        self.following(|volume| {
            let done = match volume.read_into(offset, buf, false) {
                // It may be repaired, which takes time.
                Err(error) if error.byte().is_some() => false,
                read => volume.counted(read)?,
            };
            if done {
                volume.count_read(offset, buf.len());
            }
            Ok(done)
        })
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.following(|volume| {
            volume.counted(volume.read_or_repair(offset, buf))?;
            volume.count_read(offset, buf.len());
            Ok(())
        })
    }

    fn write(&self, ops: &mut [WriteOp], fua: bool) {
        let mut volume = self.newest();
        volume.write_batch(ops, fua);
        while let Some(next) = volume.successor() {
            volume = next;
            let missed =
                |op: &&mut WriteOp| op.result.as_ref().is_err_and(|e| e.kind() == ErrorKind::NotFound);
            for op in ops.iter_mut().filter(missed) {
                volume.write_batch(std::slice::from_mut(op), fua);
            }
        }
    }

    fn compare_and_write(
        &self,
        offset: u64,
        expected: &[u8],
        new: Bytes,
        fua: bool,
    ) -> Result<std::result::Result<(), u64>> {
        self.following(|volume| volume.compare_counted(offset, expected, &new, fua))
    }

    fn flush(&self) -> Result<()> {
        self.newest().flush_here()
    }

    fn discard(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.following(|volume| {
            volume.count(&volume.state.counters.discards, 1);
            volume.count(&volume.state.counters.discard_bytes, len);
            volume.counted(volume.zero_range(offset, len, true, fua))
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool, fua: bool) -> Result<()> {
        self.following(|volume| {
            volume.count(&volume.state.counters.writes, 1);
            volume.count(&volume.state.counters.write_bytes, len);
            volume.counted(volume.zero_range(offset, len, may_unmap, fua))?;
            volume.count_place_of_write(offset, len);
            Ok(())
        })
    }

    fn block_status(&self, offset: u64, len: u64, max_runs: usize) -> Result<Vec<StatusRun>> {
        self.following(|volume| volume.counted(volume.status_runs(offset, len, max_runs)))
    }

    fn damaged(&self, offset: u64, len: u64, max_runs: usize) -> Result<Vec<(u64, bool)>> {
        self.following(|volume| volume.damaged_runs(offset, len, max_runs))
    }

    fn status_may_wait(&self) -> bool {
        self.newest().rests_on_a_moment()
    }

    fn cache(&self, offset: u64, len: u64) -> Result<()> {
        self.following(|volume| {
            volume.check_range(offset, len)?;
            volume.counted(volume.load_range(offset, len))
        })
    }
}

impl Volume {
    fn flush_here(&self) -> Result<()> {
        self.count(&self.state.counters.flushes, 1);
        self.branch().flush_pace.flushed();
        let flushed = self.core.check_usable().and_then(|()| {
            let cdp = &self.branch().cdp;
            let of_volume = self.state.line.epoch == HEAD && self.state.line.at.is_none();
            let recorded = || of_volume && cdp.is_on() && !self.state.deleted.load(Ordering::Acquire);
            let (before, written) = (recorded(), cdp.written());
            let Stamp { lsn, .. } = self.core.journal.last();
            // The time is later than everything that the flush covers. So going back to a flush by
            // time never includes anything later.
            let time = self.core.now();
            self.core.journal.sync_to(lsn)?;
            if before && recorded() {
                self.core.flushes.add(self.state.id, written, Stamp { lsn, time });
            }
            Ok(())
        });
        self.counted(flushed)
    }

    fn compare_counted(
        &self,
        offset: u64,
        expected: &[u8],
        new: &Bytes,
        fua: bool,
    ) -> Result<std::result::Result<(), u64>> {
        let done = self.counted(self.compare_then_write(offset, expected, new, fua))?;
        self.count_read(offset, expected.len());
        if done.is_ok() {
            self.count(&self.state.counters.writes, 1);
            self.count(&self.state.counters.write_bytes, new.len() as u64);
            self.count_place_of_write(offset, new.len() as u64);
        }
        Ok(done)
    }

    fn count_read(&self, offset: u64, bytes: usize) {
        self.count(&self.state.counters.reads, 1);
        self.count(&self.state.counters.read_bytes, bytes as u64);
        // Snapshots can be many, so their counters stay small.
        if self.state.line.epoch == HEAD && !self.quiet {
            self.state.counters.read_at(offset, bytes as u64, self.size());
        }
    }

    /// Counts a write by its place. The range must lie inside the volume.
    fn count_place_of_write(&self, offset: u64, bytes: u64) {
        self.state.counters.written_at(offset, bytes, self.size());
    }
}
