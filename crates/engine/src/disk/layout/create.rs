//! The creation of a layout.

use super::member::{CONTENT_START, write_header};
use super::raid5;
use super::record::{LayoutKind, LayoutRecord, MemberRecord};
use super::spans::{UNIT, capacity, spread_up_to};
use crate::disk::{Dir, Disk, SyncPurpose};
use std::io;
use std::sync::Arc;
use uuid::Uuid;

/// A disk that becomes a member. Nothing of its content is needed.
pub(crate) struct NewMember {
    pub(crate) uuid: Uuid,
    pub(crate) path: String,
    pub(crate) disk: Arc<dyn Disk>,
}

impl NewMember {
    /// Returns the number of bytes for content.
    pub(crate) fn capacity(&self) -> io::Result<u64> {
        Self::capacity_of(&*self.disk)
    }

    /// Returns the record of a member that has all content.
    pub(super) fn record(&self) -> io::Result<MemberRecord> {
        Ok(MemberRecord {
            uuid: self.uuid,
            path: self.path.clone(),
            is_in: true,
            is_listed: false,
            capacity: self.capacity()?,
            reason: String::new(),
            incoming: None,
        })
    }

    /// Returns the number of bytes for content of a disk.
    pub(super) fn capacity_of(disk: &dyn Disk) -> io::Result<u64> {
        Ok(disk.len()?.saturating_sub(CONTENT_START) / UNIT * UNIT)
    }
}

/// Makes bytes of a member zeros, unless that would take long. Returns whether they are.
pub(super) fn zero(disk: &dyn Disk, at: u64, len: u64) -> io::Result<bool> {
    /// Bytes that are written as zeros where the disk can't do it by itself.
    const FEW: u64 = 16 << 20;
    if disk.zero(at, len, true)? {
        return Ok(true);
    }
    let zeros = vec![0; UNIT as usize];
    let few = if len <= FEW { 0..len / UNIT } else { 0..0 };
    few.clone().try_for_each(|n| disk.write_at(&zeros, at + n * UNIT))?;
    Ok(!few.is_empty())
}

/// Returns the number of units that members with `sizes` units hold, so that the content of the
/// `reserve` largest has space on the others.
pub(super) fn capacity_with(sizes: &[u64], width: usize, reserve: usize) -> u64 {
    let mut sizes = sizes.to_vec();
    sizes.sort_unstable();
    sizes.truncate(sizes.len().saturating_sub(reserve));
    capacity(&sizes, width as u64)
}

/// How a new layout keeps its content.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewLayout {
    pub(crate) kind: LayoutKind,
    /// Number of places of a span.
    pub(crate) width: usize,
    /// Number of members whose content has space on the others.
    pub(crate) reserve: usize,
}

/// Makes a layout of new members, durably. A layout with this name is replaced.
pub(crate) fn create(
    dir: &dyn Dir,
    name: &str,
    uuid: Uuid,
    NewLayout { kind, width, reserve }: NewLayout,
    members: &[NewMember],
) -> io::Result<()> {
    let sizes = members.iter().map(NewMember::capacity).collect::<io::Result<Vec<u64>>>()?;
    let units: Vec<u64> = sizes.iter().map(|size| size / UNIT).collect();
    let most = capacity_with(&units, width, reserve) * UNIT;
    let spans = spread_up_to(&sizes, width, CONTENT_START, most);
    if spans.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the members are too small"));
    }
    let records = members.iter().map(NewMember::record).collect::<io::Result<_>>()?;
    let record = LayoutRecord { uuid, sequence: 1, kind, width, reserve, stale: 0, members: records, spans };
    if let LayoutKind::Raid5 { .. } = kind {
        let are_zeroed = members.iter().zip(&sizes).try_fold(true, |all, (member, size)| {
            Ok::<bool, io::Error>(all & zero(&*member.disk, CONTENT_START, *size)?)
        })?;
        members.iter().try_for_each(|member| member.disk.sync(SyncPurpose::Layout))?;
        raid5::create(dir, name, &record, are_zeroed)?;
    }
    members.iter().try_for_each(|member| write_header(&*member.disk, &member.uuid, &record))?;
    record.save(dir, name)
}
