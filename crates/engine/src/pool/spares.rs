//! Spares: disks that wait for a member of a layout to fail.

use super::Pool;
use crate::disk::Cause;
use crate::disk::layout::member::wipe;
use crate::disk::layout::spares::{MAX_SPARES, Spare};
use crate::disk::layout::{NewMember, record::MemberRecord};
use crate::error::{Error, Result, conflict, not_found};
use crate::info::layout::SpareInfo;
use crate::settings::PvSpec;
use crate::world::uuid;
use uuid::Uuid;

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
        let spare = Spare::on(new.uuid, new.path, new.disk).map_err(failed)?;
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

    /// Opens a disk that becomes a member. It may be a spare of the pool.
    pub(super) fn open_spare_or_new(&self, spec: &PvSpec) -> Result<NewMember> {
        let spare = self.core.spares.all().into_iter().find(|spare| spare.path == spec.path);
        match spare.and_then(|spare| spare.disk) {
            Some(disk) => Ok(NewMember { uuid: uuid(&*self.core.world.rng), path: spec.path.clone(), disk }),
            None => self.open_member(spec),
        }
    }

    /// Forgets that a disk was a spare, because it is a member now.
    pub(super) fn forget_spare(&self, path: &str) -> Result<()> {
        let failed = |e| Error::io(format!("forget spare {path}"), e);
        self.core.spares.remove(&*self.core.dir, path).map(drop).map_err(failed)
    }

    /// Opens the spares when the pool is opened. Without them the pool is as good as before: a list
    /// that can't be read is reported, and keeps nothing from opening.
    pub(super) fn open_spares(&self) {
        let ids: Vec<u32> = self.core.names.read().pvs.keys().copied().collect();
        let paths = |of: MemberRecord| [Some(of.path), of.incoming.map(|new| new.path)];
        let records: Vec<_> = ids
            .into_iter()
            .filter_map(|id| self.core.pvs.held(id))
            .filter_map(|pv| Some(pv.disk.as_layout()?.members().record()))
            .collect();
        let layouts: Vec<Uuid> = records.iter().map(|record| record.uuid).collect();
        let members: Vec<String> =
            records.into_iter().flat_map(|record| record.members).flat_map(paths).flatten().collect();
        let (dir, pool) = (&*self.core.dir, &self.core.uuid);
        if let Err(error) = self.core.spares.open(dir, pool, &members, &layouts) {
            tracing::error!(%error, "the list of spare disks can't be read: the pool has none");
        }
    }
}
