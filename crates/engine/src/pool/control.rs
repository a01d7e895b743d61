//! Control operations: each is validated, sequenced like any write, and durable when it returns.

use super::Pool;
use super::layouts::layout_info;
use super::trash::check_unused;
use crate::area::Area;
use crate::branch::namespace::{Namespace, check_deletable, check_name, check_size};
use crate::branch::{Branch, VolumeState};
use crate::catalog::features::{DEDICATED, OWN_DIRECT, OWN_PLACEMENTS, PLACEMENTS};
use crate::catalog::{ImageRecord, PvRecord, VolumeRecord, is_later};
use crate::control::{
    AddPv, Control, CreateOver, CreateVolume, DeleteVolume, RemovePv, RenameVolume, ResizeVolume,
    SetDirectMin, SetDraining, SetPlacement, SetPolicy, SetReadOnly, SetVolumePlacement, SetWeight,
};
use crate::disk::{Dir, SyncPurpose};
use crate::error::{Error, ErrorKind, Result, conflict, invalid, no_space};
use crate::ids::{BranchId, Lsn, VolumeId};
use crate::info::VolumeInfo;
use crate::info::pv::{DedicatedSpace, PvInfo};
use crate::settings::{
    DEFAULT_CHUNK_SIZE, DirectMin, MAX_WEIGHT, NewVolume, Placement, PoolConfig, PvSpec, SnapshotPolicy,
};
use crate::shortage::Task;
use crate::space::label::Label;
use crate::space::pv::{MAX_PVS, Pv, open_new};
use crate::volume::Volume;
use crate::world::{Rng, uuid};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uuid::Uuid;

impl Pool {
    /// Creates a volume; it takes no space until it is written to.
    pub fn create_volume(&self, new: &NewVolume) -> Result<VolumeInfo> {
        let identity = uuid(&*self.core.world.rng);
        let now = self.core.world.clock.now();
        self.destager
            .submit(|names| created(names, new, &self.core.config, (identity, now), (None, None)))?;
        self.volume(&new.name)
    }

    /// Creates a volume on a dedicated physical volume, which is given by its path, or, if it is a
    /// layout, by its name. Whatever the volume, its snapshots and its clones need is allocated
    /// there, and only there.
    pub fn create_volume_on(&self, new: &NewVolume, on: &str) -> Result<VolumeInfo> {
        let identity = uuid(&*self.core.world.rng);
        let now = self.core.world.clock.now();
        let at = (identity, now);
        self.destager.submit(|names| created(names, new, &self.core.config, at, (None, Some(on))))?;
        self.volume(&new.name)
    }

    /// Grows, or with `force` shrinks, a volume. The part that is cut off is lost: growing again
    /// reads zeros. Returns [`ErrorKind::Conflict`] while the volume is filled from a stream, since
    /// the stream sets the size.
    pub fn resize_volume(self: &Arc<Self>, name: &str, size: u64, force: bool) -> Result<VolumeInfo> {
        let state = self.core.names.read().volume(name)?.clone();
        if force {
            // This is done even if the volume seems to grow: it may have grown by then.
            Volume::internal(self.destager.clone(), state.clone()).materialize_around(size)?;
        }
        self.destager.submit_with(|names| {
            let volume = names.volume(name)?;
            if !Arc::ptr_eq(volume, &state) {
                let text =
                    format!("resize volume {name}: it was rolled back or replaced meanwhile; try again");
                return Err(Error::new(ErrorKind::Busy, text));
            }
            if volume.importing.load(Ordering::Acquire) {
                return Err(conflict(format!("resize volume {name}: an import into it is unfinished")));
            }
            resized(names, volume, size, force, &*self.core.world.rng)
        })?;
        self.volume(name)
    }

    /// Gives a volume another name. Open handles stay valid.
    pub fn rename_volume(&self, name: &str, new_name: &str) -> Result<VolumeInfo> {
        check_name(new_name)?;
        self.destager.submit(|names| {
            let id = names.volume(name)?.id;
            if names.by_name.contains_key(new_name) {
                return Err(conflict(format!("rename volume {name}: the name {new_name} is taken")));
            }
            Ok(RenameVolume { id, name: new_name.to_string() }.into())
        })?;
        self.volume(new_name)
    }

    /// Makes a volume refuse, or accept, writes. Open handles follow.
    pub fn set_read_only(&self, name: &str, read_only: bool) -> Result<VolumeInfo> {
        self.destager.submit(|names| Ok(SetReadOnly { id: names.volume(name)?.id, read_only }.into()))?;
        self.volume(name)
    }

    /// Sets how much space a volume's snapshots may take, and what happens beyond that.
    pub fn set_snapshot_policy(&self, name: &str, policy: SnapshotPolicy) -> Result<VolumeInfo> {
        self.destager.submit(|names| Ok(SetPolicy { id: names.volume(name)?.id, policy }.into()))?;
        self.volume(name)
    }

    /// Deletes a volume. Its space comes back in the background. Returns [`ErrorKind::Busy`] if it
    /// is open and `force` is not set.
    pub fn delete_volume(&self, name: &str, force: bool) -> Result<()> {
        self.destager.submit(|names| {
            let volume = names.volume(name)?;
            let snapshots = names.snapshots_of(volume.id);
            snapshots.iter().try_for_each(|snapshot| check_deletable(snapshot))?;
            let snapshots = snapshots.len();
            if snapshots > 0 && !force {
                return Err(conflict(format!(
                    "delete volume {name}: it has {snapshots} snapshots; delete them too with --force"
                )));
            }
            check_unused(volume, name, force)?;
            Ok(DeleteVolume { id: volume.id }.into())
        })?;
        Ok(())
    }

    /// Sets where new slots are placed from now on. What is in place stays there. See
    /// [`Pool::rebalance`].
    pub fn set_placement(&self, placement: Placement) -> Result<()> {
        placement.check()?;
        // Older builds would not know the placement.
        if is_later(placement) && !self.core.has_feature(PLACEMENTS) {
            self.destager.enable_bare(PLACEMENTS)?;
        }
        self.destager.submit(|_| Ok(SetPlacement { placement }.into()))?;
        Ok(())
    }

    /// Sets where new slots of a volume are placed from now on. `None`: where those of the pool
    /// are. A rollback keeps the placement, and clones inherit it.
    pub fn set_volume_placement(&self, name: &str, placement: Option<Placement>) -> Result<VolumeInfo> {
        placement.map_or(Ok(()), Placement::check)?;
        let now = self.volume(name)?;
        if now.placement == placement {
            return Ok(now);
        }
        // Older builds would know neither the placement nor the operation.
        if !self.core.has_feature(OWN_PLACEMENTS) {
            self.destager.enable_bare(OWN_PLACEMENTS)?;
        }
        self.destager
            .submit(|names| Ok(SetVolumePlacement { id: names.volume(name)?.id, placement }.into()))?;
        self.volume(name)
    }

    /// Sets the least size of a volume's writes by reference, from the next write on. A rollback
    /// keeps it, and clones inherit it. Returns [`ErrorKind::Invalid`] for a size that is not one
    /// of [`crate::settings::DIRECT_SIZES`].
    pub fn set_volume_direct_min(&self, name: &str, direct_min: DirectMin) -> Result<VolumeInfo> {
        direct_min.check()?;
        let now = self.volume(name)?;
        if now.direct_min == direct_min {
            return Ok(now);
        }
        // Older builds would know neither the record nor the operation.
        if !self.core.has_feature(OWN_DIRECT) {
            self.destager.enable_bare(OWN_DIRECT)?;
        }
        self.destager.submit(|names| Ok(SetDirectMin { id: names.volume(name)?.id, direct_min }.into()))?;
        self.volume(name)
    }

    /// Sets the part of a physical volume's size that counts for Share, in per cent: with 50, it
    /// gets half as much data as others of its size. Data that Share has placed moves accordingly,
    /// in the background. See [`Pool::find_pv`] for `wanted`.
    pub fn set_weight(&self, wanted: &str, weight: u32) -> Result<PvInfo> {
        if !(1..=MAX_WEIGHT).contains(&weight) {
            return Err(invalid(format!(
                "set the weight of {wanted}: it is from 1 to {MAX_WEIGHT} per cent"
            )));
        }
        let _one_at_a_time = self.core.pv_operations.lock();
        let now = self.find_pv(wanted)?;
        if now.weight == weight {
            return Ok(now);
        }
        if !self.core.has_feature(OWN_PLACEMENTS) {
            self.destager.enable_bare(OWN_PLACEMENTS)?;
        }
        self.destager.submit(|_| Ok(SetWeight { pv: now.id, weight }.into()))?;
        self.pv(now.id)
    }

    /// Returns all physical volumes, by number.
    pub fn pvs(&self) -> Vec<PvInfo> {
        let names = self.core.names.read();
        let used = |id: u32| self.core.pvs.get(id).map_or(0, |pv| pv.used_extents.load(Ordering::Relaxed));
        let info = |(id, pv): (&u32, &PvRecord)| {
            let held = self.core.pvs.held(*id);
            let (read_errors, last_read_error) = held.as_ref().map(|pv| pv.read_errors()).unwrap_or_default();
            PvInfo {
                id: *id,
                uuid: pv.uuid,
                path: pv.path.clone(),
                size: pv.extents as u64 * self.core.config.extent_size,
                used: used(*id) * self.core.config.extent_size,
                draining: pv.draining,
                weight: pv.weight,
                dedicated: pv.dedicated.then(|| self.space_on(*id)),
                read_errors,
                last_read_error,
                layout: held.as_ref().and_then(|pv| layout_info(&*pv.disk, self.core.config.extent_size)),
                failure: held.and_then(|pv| pv.failure().map(str::to_owned)),
            }
        };
        names.pvs.iter().map(info).collect()
    }

    fn space_on(&self, pv: u32) -> DedicatedSpace {
        let totals = self.core.totals_of(Area::Only(pv));
        DedicatedSpace { capacity: totals.capacity, available: totals.available, own_available: totals.own }
    }

    /// Returns the number of bytes that new writes of volumes on a dedicated physical volume can
    /// still be promised, or (`None`) of all other volumes.
    pub fn available_to(&self, dedicated_pv: Option<u32>) -> u64 {
        self.core.totals_of(dedicated_pv.map_or(Area::Common, Area::Only)).available
    }

    /// Returns the path of a physical volume.
    pub fn pv_path(&self, pv: u32) -> Option<String> {
        self.core.names.read().pvs.get(&pv).map(|pv| pv.path.clone())
    }

    /// Adds a physical volume to the pool. Its space counts when this returns.
    pub fn add_pv(&self, spec: &PvSpec) -> Result<PvInfo> {
        let _one_at_a_time = self.core.pv_operations.lock();
        self.core.check_usable()?;
        self.add_pv_alone(spec, false)
    }

    /// Adds a physical volume that only volumes use that are made for it:
    /// [`Pool::create_volume_on`].
    pub fn add_dedicated_pv(&self, spec: &PvSpec) -> Result<PvInfo> {
        let _one_at_a_time = self.core.pv_operations.lock();
        self.core.check_usable()?;
        self.add_pv_alone(spec, true)
    }

    /// Adds a physical volume while no other operation of that kind goes on.
    pub(super) fn add_pv_alone(&self, spec: &PvSpec, dedicated: bool) -> Result<PvInfo> {
        let id = self.core.names.read().next_pv;
        if id >= MAX_PVS {
            return Err(invalid(format!(
                "add a physical volume: the limit of {MAX_PVS} in the life of a pool is reached"
            )));
        }
        let known = |uuid: &Uuid| self.core.names.read().pvs.values().any(|pv| pv.uuid == *uuid);
        let extent_size = self.core.config.extent_size;
        let (disk, extents) = open_new(
            &*self.core.dir,
            spec,
            self.core.uuid,
            (extent_size, self.core.config.atomic_unit),
            &known,
        )?;
        // Older builds would place everything everywhere.
        if dedicated && !self.core.has_feature(DEDICATED) {
            self.destager.enable_bare(DEDICATED)?;
        }
        let identity = uuid(&*self.core.world.rng);
        let label = Label { pool: self.core.uuid, pv_uuid: identity, pv: id, extents, extent_size };
        self.core.stamping.first(&label, &*disk, &spec.path)?;
        // The journal's names are in this directory too. What this sync failed to make durable, the
        // next sync would not report.
        self.core
            .dir
            .sync(SyncPurpose::Dir)
            .map_err(|e| self.core.fault.poison(&Error::io("sync the data directory", e)))?;
        let path = spec.path.clone();
        // The physical volume stays open from here on: no other process can claim it before the
        // operation is carried out.
        let record = PvRecord { dedicated, ..PvRecord::new(identity, path.clone(), extents) };
        self.core.pvs.insert(Pv::new(id, &record, disk));
        let add: Control = AddPv { pv: id, uuid: identity, path, extents, dedicated }.into();
        // Slots on the physical volume may be committed only after the catalog knows it. Its space
        // counts from then on.
        let added = match self.core.shortages.cause(Task::Destage) {
            Some(waits) => Err(waits),
            None => self.destager.submit(|_| Ok(add.clone())).and_then(|lsn| self.see_through(lsn)),
        };
        let added = added.or_else(|waits| {
            // The waiting records may wait for the space that this brings.
            let at_once = if waits.is_shortage() { self.add_pv_at_once(&add) } else { Err(waits.clone()) };
            let accepted = self.core.names.read().next_pv > id;
            at_once.map_err(|error| if accepted { waits } else { error })
        });
        if added.is_err() && self.core.names.read().next_pv <= id {
            self.core.pvs.take(id);
            self.core.stamping.forget(id);
        }
        added.and_then(|()| self.pv(id))
    }

    /// Adds a physical volume ahead of the records in the journal, when the journal has no record
    /// for it, or a record that waits. Other operations on the physical volume come later, and no
    /// earlier record concerns it.
    fn add_pv_at_once(&self, add: &Control) -> Result<()> {
        let state = &mut *self.destager.state.lock();
        self.core.check_usable()?;
        self.destager.commit_pv(state, add)?;
        add.apply(&mut self.core.names.write(), Lsn::ZERO, 0)
    }

    /// Carries out a sequenced operation, and waits for the end of a shortage if necessary. If the
    /// wait is too long, an error is returned, and the operation is still carried out later.
    pub(super) fn see_through(&self, lsn: Lsn) -> Result<()> {
        let mut waits = 0;
        loop {
            match self.destager.destage_to(lsn) {
                Err(error) if error.is_shortage() && waits < self.core.options.shortage_waits => {
                    waits += 1;
                    self.core.journal.wait_for_room();
                }
                Err(error) if error.is_shortage() => {
                    let text = format!(
                        "carry out the operation: it was accepted, and follows when a shortage ends: {error}"
                    );
                    return Err(Error::new(error.kind(), text));
                }
                done => return done,
            }
        }
    }

    /// Returns the physical volume that `wanted` names by path, UUID or number, or, if it is a
    /// layout, by its name.
    pub fn find_pv(&self, wanted: &str) -> Result<PvInfo> {
        let id = self.core.names.read().find_pv(wanted)?;
        self.pv(id)
    }

    fn pv(&self, id: u32) -> Result<PvInfo> {
        let found = self.pvs().into_iter().find(|pv| pv.id == id);
        found.ok_or_else(|| crate::error::not_found(format!("find PV {id}: it was removed")))
    }

    /// Starts (or stops) moving the data of a physical volume away, in the background. See
    /// [`Pool::find_pv`] for `wanted`. Returns [`ErrorKind::NoSpace`] if the other physical volumes
    /// can't hold what is promised.
    pub fn drain_pv(&self, wanted: &str, draining: bool) -> Result<()> {
        let _one_at_a_time = self.core.pv_operations.lock();
        self.core.check_usable()?;
        let pv = self.core.names.read().find_pv(wanted)?;
        // Earlier operations on the physical volume are carried out first.
        self.destager.destage_to(self.core.journal.last().lsn)?;
        if !draining {
            // The space counts again only once the catalog has that: a promise must hold after a
            // crash too.
            let lsn = self.destager.submit(|_| Ok(SetDraining { pv, draining }.into()))?;
            return self.see_through(lsn);
        }
        self.core.names.read().check_vacant(pv)?;
        {
            let state = &mut *self.destager.state.lock();
            let moving = state.allocator.movable_bytes(pv);
            let was_draining = state.allocator.is_draining(pv);
            let kept = self.destager.apply_draining(state, pv, true, false);
            let area = state.allocator.area(pv);
            if !kept || area == Area::Common && self.core.totals_of(area).available < moving {
                if kept && !was_draining {
                    self.destager.apply_draining(state, pv, false, true);
                }
                return Err(no_space(format!(
                    "drain {wanted}: the other physical volumes have no space for its data; add one first"
                )));
            }
        }
        self.submit_leaving(pv, SetDraining { pv, draining }.into(), |_| Ok(()))?;
        Ok(())
    }

    /// Sequences an operation on a physical volume that gives out no more slots. Volumes may have
    /// come to it, if it is dedicated: then it stays.
    fn submit_leaving(
        &self,
        pv: u32,
        operation: Control,
        check: impl Fn(&Namespace) -> Result<()>,
    ) -> Result<Lsn> {
        let submitted = self.destager.submit(|names| {
            names.check_vacant(pv)?;
            check(names)?;
            Ok(operation.clone())
        });
        if submitted.is_err() && !self.core.names.read().pvs.get(&pv).is_some_and(|pv| pv.draining) {
            self.destager.apply_draining(&mut self.destager.state.lock(), pv, false, true);
        }
        submitted
    }

    /// Removes an empty physical volume and wipes its label.
    pub fn remove_pv(&self, wanted: &str) -> Result<()> {
        let _one_at_a_time = self.core.pv_operations.lock();
        self.core.check_usable()?;
        let pv = self.core.names.read().find_pv(wanted)?;
        // Earlier operations on the physical volume are carried out first.
        self.destager.destage_to(self.core.journal.last().lsn)?;
        self.core.names.read().check_vacant(pv)?;
        let others: BTreeSet<u32>;
        {
            let state = &mut *self.destager.state.lock();
            self.destager.recall(state, |_, of| of == pv)?;
            let used = state.allocator.used_extents(pv);
            if used > 0 {
                return Err(conflict(format!(
                    "remove {wanted}: {used} extents are in use; drain it first and wait until it is empty"
                )));
            }
            let takes = |id: &u32| *id != pv && state.allocator.gives(*id);
            let takes = state.allocator.pv_ids().into_iter().filter(takes).collect();
            self.core.names.read().check_spared(pv, &takes)?;
            others = takes;
            // From here on nothing new is placed on the physical volume.
            if !self.destager.apply_draining(state, pv, true, false) {
                return Err(no_space(format!(
                    "remove {wanted}: the other physical volumes have no space for reserved writes"
                )));
            }
        }
        let removed = self.core.pvs.held(pv);
        let lsn = self.submit_leaving(pv, RemovePv { pv }.into(), |names| names.check_spared(pv, &others))?;
        self.see_through(lsn)?;
        removed.and_then(|pv| pv.wiped.get().cloned()).unwrap_or(Ok(()))
    }
}

/// Returns the operation that creates `new`, or the reason why it can't be created.
pub(super) fn created(
    names: &Namespace,
    new: &NewVolume,
    config: &PoolConfig,
    (uuid, created): (Uuid, u64),
    (image, on): (Option<ImageRecord>, Option<&str>),
) -> Result<Control> {
    check_name(&new.name)?;
    check_block_size(new.block_size)?;
    check_size(new.size, new.block_size)?;
    let chunk = new.chunk_size;
    if !chunk.is_power_of_two() || chunk < 512 || chunk > config.extent_size || chunk < new.block_size as u64
    {
        return Err(invalid(format!(
            "create volume {}: the chunk size must be a power of two from 512 (and the block size) to the extent size {}, like {DEFAULT_CHUNK_SIZE}",
            new.name, config.extent_size
        )));
    }
    if names.by_name.contains_key(&new.name) {
        return Err(conflict(format!("create volume {}: the name is taken", new.name)));
    }
    let area = on.map_or(Ok(Area::Common), |on| names.dedicated(on))?;
    let of = (new.size, new.block_size);
    let record = VolumeRecord::new(uuid, &new.name, of, BranchId(names.next_id + 1));
    let volume = VolumeRecord { read_only: new.read_only, created, ..record };
    let (id, chunk_log2) = (VolumeId(names.next_id), chunk.trailing_zeros() as u8);
    Ok(match image {
        None => CreateVolume { id, chunk_log2, volume, area }.into(),
        Some(image) => CreateOver { id, chunk_log2, image, volume, area }.into(),
    })
}

fn check_block_size(block_size: u32) -> Result<()> {
    if matches!(block_size, 512 | 4096) {
        return Ok(());
    }
    Err(invalid(format!("use a logical block size of {block_size}: it must be 512 or 4096")))
}

/// Returns the operations that resize a volume, and the branch of which they may need a slot.
pub(crate) fn resized(
    names: &Namespace,
    volume: &VolumeState,
    size: u64,
    force: bool,
    rng: &dyn Rng,
) -> Result<(Vec<Control>, Option<Arc<Branch>>)> {
    check_size(size, volume.block_size)?;
    let old = volume.size.load(Ordering::Acquire);
    if size < old && !force {
        let name = volume.name.read();
        return Err(conflict(format!(
            "resize volume {name}: shrinking it from {old} to {size} bytes destroys the data past the new end; use --force"
        )));
    }
    // A snapshot may need the part of a chunk that is cut off.
    let branch = &volume.line.branch;
    let cuts = size < old && !size.is_multiple_of(1 << branch.chunk_log2);
    // The part that is cut off is not recorded: an anchor keeps it.
    let anchored = size < old && branch.cdp.is_on();
    let shared = branch.has_base() || anchored || !branch.frozen.read().is_empty();
    let mut controls = Vec::new();
    if anchored {
        controls.push(names.anchor(volume, rng)?);
    }
    controls.push(ResizeVolume { id: volume.id, size }.into());
    Ok((controls, (cuts && shared).then(|| branch.clone())))
}
