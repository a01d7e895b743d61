//! Volumes over images, and flattening: making volumes independent of what they rest on.

use super::Pool;
use super::control::created;
use crate::branch::image::ExternalImage;
use crate::branch::namespace::Namespace;
use crate::branch::{Base, Branch, VolumeState};
use crate::catalog::Frozen;
use crate::catalog::page::CHUNKS;
use crate::control::SetFill;
use crate::error::{Result, conflict, not_found};
use crate::ids::BranchId;
use crate::info::{FlattenInfo, Origin, VolumeInfo};
use crate::policies::is_moment;
use crate::settings::NewVolume;
use crate::world::uuid;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of branches that one operation names: it has to fit a journal record.
const MAX_BRANCHES: usize = 1000;

impl Pool {
    /// Creates a volume that shows an image outside of the pool until it is written to. The image
    /// is a raw file or block device that must not change from now on. The volume takes no space. A
    /// size of 0 means the image's size. A longer volume has zeros behind the image.
    pub fn create_volume_over(&self, new: &NewVolume, image: &str) -> Result<VolumeInfo> {
        self.create_over(new, image, None)
    }

    /// Does the same on a dedicated physical volume: see [`Pool::create_volume_on`].
    pub fn create_volume_over_on(&self, new: &NewVolume, image: &str, on: &str) -> Result<VolumeInfo> {
        self.create_over(new, image, Some(on))
    }

    fn create_over(&self, new: &NewVolume, image: &str, on: Option<&str>) -> Result<VolumeInfo> {
        let record = ExternalImage::describe(&*self.core.dir, image, new.size)?;
        let mut new = new.clone();
        if new.size == 0 {
            new.size =
                record.len.checked_next_multiple_of(new.block_size.max(1).into()).unwrap_or(record.len);
        }
        let at = (uuid(&*self.core.world.rng), self.core.world.clock.now());
        let of = (Some(record), on);
        self.destager.submit(|names| created(names, &new, &self.core.config, at, of.clone()))?;
        // The image is opened now, and kept open. It is the file that the caller may hold for this
        // call, and its name need not lead to it a moment later. If it is gone, reads will report
        // that.
        let _ = self.origin(&new.name);
        self.volume(&new.name)
    }

    /// Returns what a volume shows where it has nothing of its own: an image, or the snapshot of
    /// another volume, or a moment of it.
    pub fn origin(&self, volume: &str) -> Result<Option<Origin>> {
        let base = {
            let names = self.core.names.read();
            let own = names.branches_of(names.volume(volume)?);
            let mut bases = own.values().rev().filter_map(|branch| branch.base());
            let Some(base) = bases.find(|base| is_external(base, &own)) else { return Ok(None) };
            match base {
                Base::View(line) if line.at.is_none() => return Ok(names.snapshot_at(line.frozen())),
                base => base,
            }
        };
        // The names are not locked here: this may take time.
        Ok(match base {
            Base::Image(image) => {
                let unavailable = image.check().err().map(|e| e.to_string());
                Some(Origin::Image { path: image.record.path.clone(), length: image.record.len, unavailable })
            }
            Base::View(line) => line.at.map(|at| self.moment_origin(&at)),
        })
    }

    /// Makes a volume independent of its origin in the background, at most `bytes_per_second` (0:
    /// no limit). It copies into the volume what the volume and its snapshots still show of an
    /// image, of a snapshot of another volume, or of a moment (also one of its own past, after a
    /// recovery in place). Flattening continues after a restart. Returns
    /// [`crate::ErrorKind::Conflict`] if the volume rests on none of these.
    pub fn flatten_volume(&self, volume: &str, bytes_per_second: u64) -> Result<()> {
        self.destager.submit(|names| {
            let state = names.volume(volume)?;
            let own = names.branches_of(state);
            let wanted = own.values().filter(|branch| {
                branch.base().is_some_and(|base| is_external(&base, &own) || is_moment(&base, |_| true))
            });
            let branches: Vec<BranchId> = wanted.map(|branch| branch.id).take(MAX_BRANCHES).collect();
            if branches.is_empty() {
                return Err(conflict(format!(
                    "flatten {volume}: it has no origin, so it is already independent"
                )));
            }
            Ok(SetFill { branches, rate: Some(bytes_per_second) }.into())
        })?;
        Ok(())
    }

    /// Ends the flattening of a volume where it is. The copied chunks stay. Returns
    /// [`crate::ErrorKind::NotFound`] if there is none.
    pub fn stop_flatten(&self, volume: &str) -> Result<()> {
        self.destager.submit(|names| {
            let branches: Vec<BranchId> =
                filling(names, names.volume(volume)?).iter().map(|b| b.id).collect();
            if branches.is_empty() {
                return Err(not_found(format!("stop flattening {volume}: it is not being flattened")));
            }
            Ok(SetFill { branches, rate: None }.into())
        })?;
        Ok(())
    }

    /// Returns the progress of a volume's flattening; `None` if there is none (any more).
    pub fn flattening(&self, volume: &str) -> Result<Option<FlattenInfo>> {
        let (branches, size) = {
            let names = self.core.names.read();
            let state = names.volume(volume)?;
            (filling(&names, state), state.size.load(Ordering::Relaxed))
        };
        if branches.is_empty() {
            return Ok(None);
        }
        let mut info = FlattenInfo { position: size, copied_bytes: 0, stalled: None };
        let m = self.destager.state.lock();
        for branch in branches {
            let Some(job) = m.filling.get(&branch.id) else {
                // It has not begun yet, or is just done.
                info.position = if branch.has_base() { 0 } else { info.position };
                continue;
            };
            info.position = info.position.min(job.record.page.saturating_mul(CHUNKS << branch.chunk_log2));
            info.copied_bytes += job.record.copied;
            info.stalled = info.stalled.or(job.stalled.clone());
        }
        Ok(Some(info))
    }
}

/// Returns whether a base is not the volume's own.
fn is_external(base: &Base, own: &BTreeMap<BranchId, Arc<Branch>>) -> bool {
    match base {
        Base::Image(_) => true,
        Base::View(line) => !own.contains_key(&line.branch.id),
    }
}

/// Returns the branches of a volume that are being filled.
pub(crate) fn filling(names: &Namespace, volume: &VolumeState) -> Vec<Arc<Branch>> {
    let own = names.branches_of(volume).into_values();
    own.filter(|branch| branch.filling.load(Ordering::Acquire)).collect()
}

impl Namespace {
    /// Returns the snapshot that froze this state, by its names.
    fn snapshot_at(&self, of: Frozen) -> Option<Origin> {
        let snapshot = self.snapshots.values().find(|s| s.state.line.frozen() == of)?;
        let volume = self.volume_by_id(snapshot.volume).map(|v| v.name.read().clone());
        let name = snapshot.state.name.read().clone();
        Some(Origin::Snapshot { volume: volume.unwrap_or_default(), snapshot: name })
    }
}
