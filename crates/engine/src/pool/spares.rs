//! Spares: disks that wait for a member of a layout to fail.

use super::Pool;
use crate::disk::Cause;
use crate::disk::layout::NewMember;
use crate::disk::layout::member::wipe;
use crate::disk::layout::spares::{MAX_SPARES, Spare};
use crate::error::{Error, Result, conflict, not_found};
use crate::info::layout::SpareInfo;
use crate::settings::PvSpec;
use crate::world::uuid;

fn info(spare: &Spare) -> SpareInfo {
    SpareInfo { path: spare.path.clone(), size: spare.capacity, problem: spare.problem.clone() }
}

impl Pool {
    /// Returns the spare disks.
    pub fn spares(&self) -> Vec<SpareInfo> {
        self.core.spares.all().iter().map(info).collect()
    }

    /// Adds a spare disk. It takes the place of a member that is out for as long as
    /// `PoolOptions::spare_after` says, of any mirror or RAID-5 of the pool, if it is large enough.
    pub fn add_spare(&self, spec: &PvSpec) -> Result<SpareInfo> {
        let _cause = Cause::Open.begin();
        let _one_at_a_time = self.core.pv_operations.lock();
        self.core.check_usable()?;
        let path = &spec.path;
        let known = self.core.spares.all();
        if known.iter().any(|spare| spare.path == *path && spare.disk.is_some()) {
            return Err(conflict(format!("add spare {path}: it is one already")));
        }
        if known.len() >= MAX_SPARES {
            return Err(conflict(format!("add spare {path}: a pool has at most {MAX_SPARES} spares")));
        }
        let failed = |e| Error::io(format!("add spare {path}"), e);
        let new = self.open_member(spec)?;
        let spare = Spare::on(new).map_err(failed)?;
        let added = info(&spare);
        self.core.spares.add(&*self.core.dir, &self.core.uuid, spare).map_err(failed)?;
        self.core.wake();
        Ok(added)
    }

    /// Removes a spare disk, which can be used for something else then.
    pub fn remove_spare(&self, path: &str) -> Result<()> {
        let _one_at_a_time = self.core.pv_operations.lock();
        self.core.check_usable()?;
        let failed = |e| Error::io(format!("remove spare {path}"), e);
        let removed = self.core.spares.remove(&*self.core.dir, path).map_err(failed)?;
        let Some(removed) = removed else {
            return Err(not_found(format!("remove spare {path}: there is none with this path")));
        };
        // A header that stays does no harm: another use of the disk needs `force` then.
        let _ = removed.disk.map(|disk| wipe(&*disk));
        Ok(())
    }

    /// Opens a disk that becomes a member. If it is a spare of the pool, it is none any more: it is
    /// returned, too.
    pub(super) fn open_spare_or_new(&self, spec: &PvSpec) -> Result<(NewMember, Option<Spare>)> {
        match self.core.spares.take_path(&spec.path) {
            Some((spare, disk)) => {
                let uuid = uuid(&*self.core.world.rng);
                Ok((NewMember { uuid, path: spec.path.clone(), disk }, Some(spare)))
            }
            None => Ok((self.open_member(spec)?, None)),
        }
    }

    /// Opens the spares when the pool is opened. Without them the pool is as good as before: a list
    /// that can't be read is reported, and keeps nothing from opening.
    pub(super) fn open_spares(&self) {
        let ids: Vec<u32> = self.core.names.read().pvs.keys().copied().collect();
        let records: Vec<_> = ids
            .into_iter()
            .filter_map(|id| self.core.pvs.held(id))
            .filter_map(|pv| Some(pv.disk.as_layout()?.members().record()))
            .collect();
        if let Err(error) = self.core.spares.open(&*self.core.dir, &self.core.uuid, &records) {
            tracing::error!(%error, "the list of spare disks can't be read: the pool has none");
        }
    }
}
