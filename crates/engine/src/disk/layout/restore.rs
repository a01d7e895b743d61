//! The files of a layout in the data directory are made again, from a backup and from what the
//! members have.

use super::member::read_record;
use super::raid5;
use super::record::{LayoutKind, LayoutRecord};
use crate::disk::{Dir, OpenMode};
use std::io;

/// Makes the files of a layout again that are missing or do not verify. `backup` is its record in a
/// backup of the metadata. Members may have newer ones. The pool was closed in an orderly way: no
/// line of a RAID-5 is half written. Returns whether something was made.
pub(crate) fn restore(dir: &dyn Dir, name: &str, backup: &LayoutRecord) -> io::Result<bool> {
    let is_of = |record: &LayoutRecord| record.uuid == backup.uuid;
    let held = LayoutRecord::load(dir, name).ok().filter(is_of);
    let known = [Some(backup), held.as_ref()].into_iter().flatten();
    let paths = known.clone().flat_map(|record| &record.members).flat_map(|member| {
        let incoming = member.incoming.as_ref().map(|new| &new.path);
        std::iter::once(&member.path).chain(incoming)
    });
    let on_members = paths.filter_map(|path| {
        let disk = dir.open(path, OpenMode::ReadOnly).ok()?;
        read_record(&*disk).filter(is_of)
    });
    let newest = known.cloned().chain(on_members).max_by_key(|record| record.sequence);
    let Some(newest) = newest else { return Ok(false) };
    let is_stale = held.is_none_or(|held| held.sequence < newest.sequence);
    if is_stale {
        newest.save(dir, name)?;
    }
    if let LayoutKind::Raid5 { .. } = newest.kind
        && raid5::lacks_log(dir, name, &newest)
    {
        raid5::create(dir, name, &newest, false)?;
        return Ok(true);
    }
    Ok(is_stale)
}
