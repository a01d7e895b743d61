//! Physical volumes that are made larger.

use super::Pool;
use crate::disk::layout::NewMember;
use crate::disk::layout::record::MAX_MEMBERS;
use crate::disk::layout::spares::Spare;
use crate::disk::{Cause, DiskLayout, SyncPurpose};
use crate::error::{Error, Result, conflict, invalid, not_found};
use crate::info::pv::PvInfo;
use crate::settings::GrowSpec;
use crate::space::label::{extents_on, most_bytes};
use crate::space::pv::Pv;
use std::sync::atomic::Ordering;

impl Pool {
    /// Makes a physical volume larger. `wanted` is its path, UUID or number, or the name of a
    /// mirror or RAID-5.
    ///
    /// A plain one gets all of its disk, which was enlarged. A mirror or RAID-5 gets more disks, or
    /// all of the disks that it has. Where that needs content to be moved, it grows step by step in
    /// the background, and [`LayoutInfo::growth`](crate::info::layout::LayoutInfo::growth) tells
    /// what is left.
    pub fn grow(&self, wanted: &str, how: &GrowSpec) -> Result<PvInfo> {
        let _cause = Cause::Open.begin();
        let _one_at_a_time = self.core.pv_operations.lock();
        self.core.check_usable()?;
        let id = self.core.names.read().find_pv(wanted)?;
        let gone = || not_found(format!("grow {wanted}: it was removed"));
        let pv = self.core.pvs.held(id).ok_or_else(gone)?;
        if let Some(failure) = pv.failure() {
            return Err(conflict(format!(
                "grow {wanted}: it takes no writes, since it has failed: {failure}"
            )));
        }
        if pv.leaving.load(Ordering::Acquire) {
            return Err(conflict(format!(
                "grow {wanted}: it is being drained; `hindcast pool drain {wanted} --cancel`"
            )));
        }
        match pv.disk.as_layout() {
            Some(layout) => self.grow_layout(&pv, layout, how)?,
            None => self.grow_plain(&pv, how)?,
        }
        self.pvs().into_iter().find(|info| info.id == id).ok_or_else(gone)
    }

    fn grow_plain(&self, pv: &Pv, how: &GrowSpec) -> Result<()> {
        let path = &pv.path;
        if !how.disks.is_empty() {
            return Err(invalid(format!(
                "grow {path}: it is one disk; `hindcast pool add` adds others to the pool"
            )));
        }
        let failed = |e| Error::io(format!("grow {path}"), e);
        let len = pv.disk.len().map_err(failed)?;
        if let Some(size) = how.size {
            if pv.disk.is_block_device() {
                return Err(invalid(format!(
                    "grow {path}: the size of a device is its own; leave out the size"
                )));
            }
            if size < len {
                return Err(invalid(format!("grow {path}: it has {len} bytes, more than {size}")));
            }
            extents_on(size, self.core.config.extent_size, path)?;
            pv.disk.set_len(size).map_err(failed)?;
            pv.disk.sync(SyncPurpose::Label).map_err(failed)?;
        }
        let state = &mut *self.destager.state.lock();
        self.core.check_usable()?;
        if self.destager.grow_pv(state, pv)? {
            return Ok(());
        }
        let text = match self.core.catalog.pv(pv.id)? {
            None => "its addition waits for the end of a shortage; try again then",
            Some(_) => "its disk has no space for another extent; make it larger first",
        };
        Err(conflict(format!("grow {path}: {text}")))
    }

    fn grow_layout(&self, pv: &Pv, layout: DiskLayout<'_>, how: &GrowSpec) -> Result<()> {
        let path = &pv.path;
        if how.size.is_some() {
            return Err(invalid(format!(
                "grow {path}: the size is for a file; a mirror or RAID-5 grows by disks"
            )));
        }
        let known = layout.members().record().members.len();
        if known + how.disks.len() > MAX_MEMBERS {
            return Err(invalid(format!(
                "grow {path}: a mirror or RAID-5 has up to {MAX_MEMBERS} disks, and this one has {known}"
            )));
        }
        let mut spares = Vec::new();
        let grown = self.add_to_layout(path, layout, how, &mut spares);
        if spares.is_empty() {
        } else if grown.is_err() {
            spares.into_iter().for_each(|spare| self.core.spares.put_back(spare));
        } else if let Err(error) = self.core.spares.store(&*self.core.dir) {
            // The next opening forgets them in the list, because they are members.
            tracing::warn!(%error, "the list of spare disks could not be stored");
        }
        self.core.wake();
        grown
    }

    /// Adds disks to a layout, or notes that its disks are larger. Disks that were spares are added
    /// to `spares`.
    fn add_to_layout(
        &self,
        path: &str,
        layout: DiskLayout<'_>,
        how: &GrowSpec,
        spares: &mut Vec<Spare>,
    ) -> Result<()> {
        let failed = |e| Error::io(format!("grow {path}"), e);
        let mut new: Vec<NewMember> = Vec::new();
        for disk in &how.disks {
            let (member, spare) = self.open_spare_or_new(disk)?;
            spares.extend(spare);
            new.push(member);
        }
        let size = |with: &[NewMember]| {
            let growth = layout.growth_with(with).map_err(failed)?;
            Ok::<u64, Error>(growth.map_or(0, |growth| growth.size))
        };
        let (grown, without) = (size(&new)?, size(&[])?);
        if grown == 0 || !new.is_empty() && grown <= without {
            let width = layout.members().record().width;
            let text = match new.is_empty() {
                true => "its disks have no more space; add one, or make them larger first".to_owned(),
                false => format!("it would gain nothing: new content needs space on {width} disks at once"),
            };
            return Err(conflict(format!("grow {path}: {text}")));
        }
        if grown > most_bytes(self.core.config.extent_size) {
            return Err(invalid(format!(
                "grow {path}: {grown} bytes are more than a physical volume can have with extents of {} bytes",
                self.core.config.extent_size
            )));
        }
        layout.measure_members().map_err(failed)?;
        layout.add_members(new, how.rate).map_err(failed)
    }
}
