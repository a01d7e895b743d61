//! The files of a layout in the data directory are made again, from a backup and from what the
//! members have.

use super::member::read_record;
use super::raid5;
use super::record::{LayoutKind, LayoutRecord, file_name};
use super::returning::forget_stale;
use crate::disk::{Dir, OpenMode};
use std::io;

/// Makes the files of a layout again that are missing. What is there stays as it is, also if it is
/// of another time: it may be needed. `backup` is the record of the layout in a backup of the
/// metadata. Members may have newer ones. The pool was closed in an orderly way: no line of a
/// RAID-5 is half written, unless power failed while the backup itself was copied there. Returns
/// whether something was made.
pub(crate) fn restore(dir: &dyn Dir, name: &str, backup: &LayoutRecord) -> io::Result<bool> {
    let names = dir.list()?;
    let lacks_record = !names.contains(&file_name(name));
    if lacks_record {
        // A list of stale regions that is there may be of another time.
        let mut record = newest(dir, backup);
        forget_stale(&mut record);
        record.save(dir, name)?;
    }
    let record = LayoutRecord::load(dir, name)?;
    let LayoutKind::Raid5 { .. } = record.kind else { return Ok(lacks_record) };
    let lacks_log = !names.contains(&raid5::log_name(name));
    if record.uuid != backup.uuid || !lacks_record && !lacks_log {
        return Ok(lacks_record);
    }
    // Beside a record that was lost, a log and groups are of an unknown time. They would be
    // believed.
    raid5::create(dir, name, &record, false)?;
    Ok(true)
}

/// Returns the newest record that a backup or a member has.
fn newest(dir: &dyn Dir, backup: &LayoutRecord) -> LayoutRecord {
    let incoming = backup.members.iter().filter_map(|member| member.incoming.as_ref());
    let paths = backup.members.iter().map(|member| &member.path).chain(incoming.map(|new| &new.path));
    let on_members = paths.filter_map(|path| {
        let disk = dir.open(path, OpenMode::ReadOnly).ok()?;
        read_record(&*disk).filter(|record| record.uuid == backup.uuid)
    });
    on_members.fold(backup.clone(), |best, record| match record.sequence > best.sequence {
        true => record,
        false => best,
    })
}
