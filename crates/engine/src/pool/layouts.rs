//! Layouts: physical volumes whose content is on several disks.

use super::Pool;
use crate::branch::namespace::check_name;
use crate::catalog::features::LAYOUTS;
use crate::disk::layout::member::{check, is_of, read_record};
use crate::disk::layout::record::{
    LayoutKind, LayoutRecord, MAX_COPIES, MAX_MEMBERS, MemberRecord, file_name,
};
use crate::disk::layout::{NewLayout, NewMember, create, path_of};
use crate::disk::{Cause, Dir, Disk, DiskLayout, Growth};
use crate::error::{Error, ErrorKind, Result, conflict, invalid, not_found};
use crate::info::layout::{IncomingInfo, LayoutInfo, MemberInfo};
use crate::info::pv::PvInfo;
use crate::settings::{LayoutShape, LayoutSpec, PvSpec};
use crate::space::label::DATA_START;
use crate::space::pv::{Pv, open_new};
use crate::world::uuid;
use std::sync::Arc;
use uuid::Uuid;

/// Returns what is known of the layout that a disk is, as a physical volume with extents of a size.
pub(super) fn layout_info(disk: &dyn Disk, extent_size: u64) -> Option<LayoutInfo> {
    let layout = disk.as_layout()?;
    let members = layout.members();
    let record = members.record();
    let member = |(number, of): (usize, &MemberRecord)| MemberInfo {
        path: of.path.clone(),
        size: of.capacity,
        content: record.content_of(number),
        is_in: of.is_in,
        reason: of.reason.clone(),
        changed: of.is_listed.then(|| members.stale_of(&record, number)),
        incoming: of
            .incoming
            .as_ref()
            .map(|new| IncomingInfo { path: new.path.clone(), progress: members.progress() }),
    };
    Some(LayoutInfo {
        name: members.name().to_owned(),
        shape: match record.kind {
            LayoutKind::Mirror => LayoutShape::Mirror { copies: record.width },
            LayoutKind::Raid5 { unit } => LayoutShape::Raid5 { columns: record.width, unit },
        },
        survives: record.survives(),
        reserve: record.reserve,
        takes_over: members.takes_over(),
        members: record.members.iter().enumerate().map(member).collect(),
        growth: layout.growth().map(|growth| Growth {
            size: growth.size.saturating_sub(DATA_START) / extent_size * extent_size,
            ..growth
        }),
    })
}

/// Checks that so many disks can have a shape.
fn check_shape(spec: &LayoutSpec) -> Result<NewLayout> {
    let LayoutSpec { name, shape, reserve, members } = spec;
    let (reserve, members) = (*reserve, members.len());
    let (kind, width, rule) = match *shape {
        LayoutShape::Mirror { copies } => {
            let rule = format!("a mirror has 2 to {MAX_COPIES} copies, on as many disks or more");
            (LayoutKind::Mirror, copies, rule)
        }
        LayoutShape::Raid5 { columns, unit } => {
            let rule = format!(
                "a RAID-5 has rows of 3 to {MAX_MEMBERS} units, on as many disks or more, and a unit is a power of two \
                 from 4 KiB to 1 MiB"
            );
            (LayoutKind::Raid5 { unit }, columns, rule)
        }
    };
    if !kind.allows(width) || !(width..=MAX_MEMBERS).contains(&members) {
        return Err(invalid(format!("add layout {name}: {rule}, up to {MAX_MEMBERS} disks")));
    }
    if width.saturating_add(reserve) > members {
        return Err(invalid(format!(
            "add layout {name}: without {reserve} of the {members} disks there are less than {width}, so there is no reserve for them"
        )));
    }
    Ok(NewLayout { kind, width, reserve })
}

impl Pool {
    /// Makes a mirror or a RAID-5 of disks, and adds it as a physical volume. Its path is
    /// `mirror:NAME` or `raid5:NAME`.
    pub fn add_layout(&self, spec: &LayoutSpec) -> Result<PvInfo> {
        self.add_layout_as(spec, false)
    }

    /// Does the same, for volumes that are made for the layout: see [`Pool::add_dedicated_pv`].
    pub fn add_dedicated_layout(&self, spec: &LayoutSpec) -> Result<PvInfo> {
        self.add_layout_as(spec, true)
    }

    fn add_layout_as(&self, spec: &LayoutSpec, dedicated: bool) -> Result<PvInfo> {
        let _cause = Cause::Open.begin();
        let _one_at_a_time = self.core.pv_operations.lock();
        self.core.check_usable()?;
        let LayoutSpec { name, members, .. } = spec;
        check_name(name)?;
        if !self.core.sums.is_on() {
            return Err(conflict(
                "add a layout: the pool has no sums, which tell a right copy from a wrong one; see `hindcast pool upgrade`",
            ));
        }
        let layout = check_shape(spec)?;
        let path = path_of(layout.kind, name);
        let paths =
            [path.clone(), path_of(LayoutKind::Mirror, name), path_of(LayoutKind::Raid5 { unit: 0 }, name)];
        // The removal of a layout with this name may wait in the journal.
        self.destager.destage_to(self.core.journal.last().lsn)?;
        let is_held = |id| self.core.pvs.held(id).is_some_and(|pv| paths.contains(&pv.path));
        let next = self.core.names.read().next_pv;
        if (0..next).any(is_held) || self.core.names.read().pvs.values().any(|pv| paths.contains(&pv.path)) {
            return Err(conflict(format!("add layout {name}: there is one with this name")));
        }
        let new = members.iter().map(|member| self.open_member(member)).collect::<Result<Vec<_>>>()?;
        // Older builds would take the layout for a file that is missing.
        if !self.core.has_feature(LAYOUTS) {
            self.destager.enable_bare(LAYOUTS)?;
        }
        let failed = |e| Error::io(format!("add layout {name}"), e);
        create(&*self.core.dir, name, uuid(&*self.core.world.rng), layout, &new).map_err(failed)?;
        // The disks are locked again as those of the layout.
        drop(new);
        let added = self.add_pv_alone(&PvSpec { path: path.clone(), size: None, force: true }, dedicated);
        // An addition that waits for the end of a shortage needs the record. One that stays is
        // replaced by the next layout with this name.
        let is_known = || self.core.names.read().pvs.values().any(|pv| pv.path == path);
        if added.is_err() && !is_known() {
            let _ = self.core.dir.remove(&file_name(name));
        }
        added
    }

    /// Opens a disk that becomes a member. It must not be in use.
    pub(super) fn open_member(&self, spec: &PvSpec) -> Result<NewMember> {
        let known = |uuid: &Uuid| self.core.names.read().pvs.values().any(|pv| pv.uuid == *uuid);
        let of = (self.core.config.extent_size, self.core.config.atomic_unit);
        let (disk, _) = open_new(&*self.core.dir, spec, self.core.uuid, of, &known)?;
        Ok(NewMember { uuid: uuid(&*self.core.world.rng), path: spec.path.clone(), disk })
    }

    /// Finds the member of a layout with this path, also as the path of a disk that it is rebuilt
    /// onto.
    fn find_member(&self, path: &str) -> Result<(Arc<Pv>, usize)> {
        let pvs: Vec<u32> = self.core.names.read().pvs.keys().copied().collect();
        for pv in pvs.into_iter().filter_map(|id| self.core.pvs.held(id)) {
            let Some(layout) = pv.disk.as_layout() else { continue };
            let is_it = |of: &MemberRecord| {
                of.path == path || of.incoming.as_ref().is_some_and(|new| new.path == path)
            };
            if let Some(number) = layout.members().record().members.iter().position(is_it) {
                return Ok((pv, number));
            }
        }
        Err(not_found(format!(
            "find member {path}: no mirror and no RAID-5 has it; see `hindcast pool layouts`"
        )))
    }

    /// Puts a member out, or ends its rebuild. Returns [`ErrorKind::Conflict`] if those that are
    /// left would not have everything.
    pub fn put_member_out(&self, path: &str) -> Result<LayoutInfo> {
        let _one_at_a_time = self.core.pv_operations.lock();
        self.core.check_usable()?;
        let (pv, number) = self.find_member(path)?;
        let members = layout_of(&pv)?.members();
        let record = members.record();
        let ends_rebuild = record.members[number].incoming.is_some();
        if !ends_rebuild && record.members[number].is_in && !record.is_whole_without(&[number]) {
            return Err(conflict(format!("put {path} out: {} needs it for a part of its content", pv.path)));
        }
        members.put_out(number, "it was put out").map_err(|e| Error::io(format!("put {path} out"), e))?;
        layout_info(&*pv.disk, self.core.config.extent_size).ok_or_else(|| not_found(path))
    }

    /// Begins to rebuild a member of a layout: onto its own disk, which is there again, or onto
    /// another disk. A member that is in stays in until the other disk has everything.
    /// It copies at most `rate` bytes a second: 0 means no limit, and `None` what the options say.
    pub fn rebuild_member(&self, path: &str, onto: Option<&PvSpec>, rate: Option<u64>) -> Result<LayoutInfo> {
        let _cause = Cause::Open.begin();
        let _one_at_a_time = self.core.pv_operations.lock();
        self.core.check_usable()?;
        let (pv, number) = self.find_member(path)?;
        let layout = layout_of(&pv)?;
        let record = layout.members().record();
        let of = &record.members[number];
        if of.incoming.is_some() {
            return Err(conflict(format!(
                "rebuild {path}: it is being rebuilt; put it out first to begin anew"
            )));
        }
        let (new, spare) = match onto {
            Some(spec) => self.open_spare_or_new(spec)?,
            None if of.is_in => return Err(conflict(format!("rebuild {path}: it has all content already"))),
            None => (self.open_former(path, &record, of)?, None),
        };
        match (begin_onto(layout, number, (of.capacity, new), rate), spare) {
            (Err(error), Some(spare)) => {
                self.core.spares.put_back(spare);
                return Err(error);
            }
            (begun, None) => begun?,
            (Ok(()), Some(_)) => {
                // The next opening forgets it in the list, because it is a member.
                if let Err(error) = self.core.spares.store(&*self.core.dir) {
                    tracing::warn!(%error, "the list of spare disks could not be stored");
                }
            }
        }
        self.core.wake();
        layout_info(&*pv.disk, self.core.config.extent_size).ok_or_else(|| not_found(path))
    }

    /// Opens the disk of a member that is out. If it is the one that went out, and what changed
    /// since is listed, it keeps its UUID, and gets only that. Another disk may have its name by
    /// now, and keeps its content.
    fn open_former(&self, path: &str, record: &LayoutRecord, of: &MemberRecord) -> Result<NewMember> {
        let layout = &record.uuid;
        let failed = |e| Error::io(format!("open {path}"), e);
        let disk = self.core.dir.open_locked(path, crate::disk::OpenMode::Existing).map_err(failed)?;
        if !is_of(&*disk, layout).map_err(failed)? {
            return Err(conflict(format!(
                "rebuild {path}: it does not look like the disk that was there; `pool replace {path} {path} --force` overwrites it"
            )));
        }
        // A record that is newer was written with another data directory, and so was content.
        let is_newer = |known: LayoutRecord| known.uuid == record.uuid && known.sequence > record.sequence;
        let is_same = check(&*disk, layout, &of.uuid, of.capacity).is_ok()
            && !read_record(&*disk).is_some_and(is_newer);
        let uuid = if of.is_listed && is_same { of.uuid } else { uuid(&*self.core.world.rng) };
        Ok(NewMember { uuid, path: path.to_owned(), disk })
    }
}

/// Begins to rebuild a member with so many bytes onto a disk.
fn begin_onto(
    layout: DiskLayout<'_>,
    number: usize,
    (capacity, new): (u64, NewMember),
    rate: Option<u64>,
) -> Result<()> {
    let path = new.path.clone();
    let failed = |e| Error::io(format!("rebuild onto {path}"), e);
    let room = new.capacity().map_err(failed)?;
    if room < capacity {
        return Err(invalid(format!(
            "rebuild onto {path}: it has {room} bytes for content, and needs {capacity}"
        )));
    }
    layout.rebuild_onto(number, new, rate).map_err(failed)
}

fn layout_of(pv: &Pv) -> Result<DiskLayout<'_>> {
    let none = || Error::new(ErrorKind::NotFound, format!("{} is no mirror and no RAID-5", pv.path));
    pv.disk.as_layout().ok_or_else(none)
}
