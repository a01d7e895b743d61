//! Volumes over images, and making volumes independent of what they rest on.

use super::image::Image;
use super::line::{Base, Branch, VolumeState};
use super::namespace::Namespace;
use super::{FlattenInfo, NewVolume, Origin, Pool, VolumeInfo};
use crate::catalog::{Control, Frozen};
use crate::error::{Result, conflict, not_found};
use crate::map::page::CHUNKS;
use crate::world::uuid;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Branches that one operation names: it has to fit a journal record.
const MAX_BRANCHES: usize = 1000;
/// Bytes a second that flattening by itself copies.
pub(super) const QUIET_RATE: u64 = 64 << 20;

impl Pool {
    /// Creates a volume that shows an image outside of the pool, a raw file or block device that must not change from now
    /// on, until it is written to. It takes no space. A size of 0 is the image's; a longer volume has zeros behind it.
    pub fn create_volume_over(&self, new: &NewVolume, image: &str) -> Result<VolumeInfo> {
        let record = Image::describe(&*self.dir, image, new.size)?;
        let mut new = new.clone();
        if new.size == 0 {
            new.size =
                record.len.checked_next_multiple_of(new.block_size.max(1).into()).unwrap_or(record.len);
        }
        let (identity, now) = (uuid(&*self.world.rng), self.world.clock.now());
        self.submit(|names| names.create(&new, &self.config, identity, now, Some(record.clone())))?;
        // Opened now, and kept open: it is the file that the caller may hold for us, which its name
        // need not lead to a moment later. Should it have gone, the reads will tell.
        let _ = self.origin(&new.name);
        self.volume(&new.name)
    }

    /// What a volume shows where it has nothing of its own: an image, or the snapshot of another volume, or a moment of it.
    pub fn origin(&self, volume: &str) -> Result<Option<Origin>> {
        let base = {
            let names = self.names.read();
            let own = names.branches_of(names.volume(volume)?);
            let mut bases = own.values().rev().filter_map(|branch| branch.base());
            let Some(base) = bases.find(|base| is_foreign(base, &own)) else { return Ok(None) };
            match base {
                Base::Line(line) if line.at.is_none() => return Ok(names.snapshot_at(line.frozen())),
                base => base,
            }
        };
        // Looked at without the names: it may take time.
        Ok(match base {
            Base::Image(image) => {
                let unavailable = image.check().err().map(|e| e.to_string());
                Some(Origin::Image { path: image.record.path.clone(), length: image.record.len, unavailable })
            }
            Base::Line(line) => line.at.map(|at| self.moment_origin(&at)),
        })
    }

    /// Makes a volume independent of its origin in the background, at most `bytes_per_second` (0: as fast as it goes): what
    /// it and its snapshots still show of an image, of a snapshot of another volume, or of a moment (also one of its own
    /// past, after a recovery in place), is copied into it. Goes on after a restart. [`crate::ErrorKind::Conflict`] when it
    /// rests on none.
    pub fn flatten_volume(&self, volume: &str, bytes_per_second: u64) -> Result<()> {
        self.submit(|names| {
            let state = names.volume(volume)?;
            let own = names.branches_of(state);
            let wanted = own.values().filter(|branch| {
                branch.base().is_some_and(|base| is_foreign(&base, &own) || is_moment(&base, |_| true))
            });
            let branches: Vec<u64> = wanted.map(|branch| branch.id).take(MAX_BRANCHES).collect();
            if branches.is_empty() {
                return Err(conflict(format!("flatten {volume}: it rests on nothing else")));
            }
            Ok(Control::SetFill { branches, rate: Some(bytes_per_second) })
        })?;
        Ok(())
    }

    /// Ends the flattening of a volume where it is: what is copied stays. [`crate::ErrorKind::NotFound`] when there is none.
    pub fn stop_flatten(&self, volume: &str) -> Result<()> {
        self.submit(|names| {
            let branches: Vec<u64> = filling(names, names.volume(volume)?).iter().map(|b| b.id).collect();
            if branches.is_empty() {
                return Err(not_found(format!("stop flattening {volume}: it is not being flattened")));
            }
            Ok(Control::SetFill { branches, rate: None })
        })?;
        Ok(())
    }

    /// How far the flattening of a volume is; `None` when there is none (any more).
    pub fn flattening(&self, volume: &str) -> Result<Option<FlattenInfo>> {
        let (branches, size) = {
            let names = self.names.read();
            let state = names.volume(volume)?;
            (filling(&names, state), state.size.load(Ordering::Relaxed))
        };
        if branches.is_empty() {
            return Ok(None);
        }
        let mut info = FlattenInfo { position: size, copied_bytes: 0, stalled: None };
        let m = self.maintenance.lock();
        for branch in branches {
            let Some(job) = m.filling.get(&branch.id) else {
                // Not begun yet, or just done.
                info.position = if branch.has_base() { 0 } else { info.position };
                continue;
            };
            info.position = info.position.min(job.record.page.saturating_mul(CHUNKS << branch.chunk_log2));
            info.copied_bytes += job.record.copied;
            info.stalled = info.stalled.or(job.stalled.clone());
        }
        Ok(Some(info))
    }

    /// Begins to flatten the volume that rests on the most levels, if those are too many: reading walks them. One at a time,
    /// and not where space is low. False when nothing is to be done.
    pub(crate) fn flatten_deepest(&self) -> Result<bool> {
        let limit = self.options.flatten_depth;
        let deepest = {
            let names = self.names.read();
            let deep = names.by_name.values().map(|v| &v.line).filter(|line| line.branch.depth > limit);
            let mut deep = deep.map(|line| (line.depth() as u32 - 1, line.branch.clone())).peekable();
            if limit == 0 || deep.peek().is_none() {
                return Ok(false);
            }
            let deep: Vec<(u32, Arc<Branch>)> = deep.filter(|(depth, _)| *depth > limit).collect();
            if deep.iter().any(|(_, branch)| branch.filling.load(Ordering::Acquire)) {
                return Ok(false);
            }
            deep.into_iter().max_by_key(|(depth, _)| *depth)
        };
        let Some((_, branch)) = deepest.filter(|_| !self.is_low_on_space()) else { return Ok(false) };
        self.submit(|_| Ok(Control::SetFill { branches: vec![branch.id], rate: Some(QUIET_RATE) }))?;
        Ok(true)
    }

    /// Begins to flatten what rests on moments that have expired: a volume, or a snapshot that somebody sees, of which they
    /// are the own past. Where nobody sees a snapshot it goes with its own part of that past. One at a time, and not where
    /// space is low. False when nothing is to be done.
    pub(crate) fn flatten_over_expired(&self) -> Result<bool> {
        let held_up = std::mem::take(&mut self.maintenance.lock().held_up);
        if held_up.is_empty() || self.options.flatten_depth == 0 || self.is_low_on_space() {
            return Ok(false);
        }
        let found = {
            let names = self.names.read();
            let seen = names.snapshots.values().filter(|s| names.is_in_sight(s)).map(|s| &s.state);
            let mut seen = names.by_name.values().chain(seen).map(|state| &state.line.branch);
            let holds = |branch: &&Arc<Branch>| {
                branch.base().is_some_and(|base| is_moment(&base, |of| held_up.contains(&of)))
                    && !branch.filling.load(Ordering::Acquire)
            };
            seen.find(holds).map(|branch| branch.id)
        };
        let Some(branch) = found else { return Ok(false) };
        self.submit(|_| Ok(Control::SetFill { branches: vec![branch], rate: Some(QUIET_RATE) }))?;
        Ok(true)
    }
}

/// Is it something that is not the volume's own?
fn is_foreign(base: &Base, own: &BTreeMap<u64, Arc<Branch>>) -> bool {
    match base {
        Base::Image(_) => true,
        Base::Line(line) => !own.contains_key(&line.branch.id),
    }
}

/// Is it a moment of such a branch?
fn is_moment(base: &Base, of: impl Fn(u64) -> bool) -> bool {
    matches!(base, Base::Line(line) if line.at.is_some() && of(line.branch.id))
}

/// The branches of a volume that are being made complete.
fn filling(names: &Namespace, volume: &VolumeState) -> Vec<Arc<Branch>> {
    let own = names.branches_of(volume).into_values();
    own.filter(|branch| branch.filling.load(Ordering::Acquire)).collect()
}

impl Namespace {
    /// The snapshot that froze this state, by its names.
    fn snapshot_at(&self, of: Frozen) -> Option<Origin> {
        let snapshot = self.snapshots.values().find(|s| s.state.line.frozen() == of)?;
        let volume = self.volume_by_id(snapshot.volume).map(|v| v.name.read().clone());
        let name = snapshot.state.name.read().clone();
        Some(Origin::Snapshot { volume: volume.unwrap_or_default(), snapshot: name })
    }
}
