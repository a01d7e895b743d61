//! Backups of the metadata: all rows of the catalog at one instant, in a file and in the reserved
//! space of every physical volume. A backup has no data; it has the places of the data.
//!
//! A backup that was made when the pool had been closed equals the catalog, as long as the pool was
//! not opened since then. Later, space that the backup gives to one volume may belong to another.

mod format;
mod places;
mod restore;
#[cfg(test)]
mod tests;

pub use places::{BackupInfo, Found, find};
pub use restore::{Restored, restore};
pub(crate) use restore::{draft, restore_layouts};

use crate::catalog::Row;
use crate::disk::{Dir, Disk, OpenMode, SyncPurpose};
use crate::error::{Error, ErrorKind, Result};
use crate::pool::Pool;
use crate::space::label::HEADER_LEN;
use format::{BackupHeader, BodyWriter};
use places::{file_name, sequence_of};
use std::sync::Arc;

/// The name of a backup's rows with the records of layouts: (name of the layout, record). The
/// catalog has no such table.
const LAYOUTS: &str = "layout-records";

/// The name of a backup's file until it is complete.
const NEW_FILE: &str = "metadata.new";

impl Pool {
    /// Writes a backup of the metadata to `target`, and keeps the last `keep` (at least one) of the
    /// backups there. It also writes the backup to the reserved space of every physical volume, if
    /// it fits. A physical volume that can't take it does not make the backup fail.
    ///
    /// Commits continue meanwhile. When this returns, the backup survives power loss.
    pub fn backup_metadata(&self, target: &dyn Dir, keep: usize) -> Result<BackupInfo> {
        if self.core.is_only_shown() {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                "back up the metadata: the pool was opened read-only by force",
            ));
        }
        let _one_at_a_time = self.core.pv_operations.lock();
        let fail = |e| Error::io("write a backup of the metadata", e);
        match target.remove(NEW_FILE) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(fail(e)),
            _ => {}
        }
        let names = target.list().map_err(fail)?;
        let pvs: Vec<_> = {
            let known = self.core.names.read();
            known.pvs.keys().filter_map(|id| self.core.pvs.held(*id)).collect()
        };
        let in_files = names.iter().filter_map(|name| sequence_of(name));
        let on_pvs =
            pvs.iter().flat_map(|pv| places::headers_on(&*pv.disk, self.core.uuid)).map(|(_, h)| h.sequence);
        let sequence = in_files.chain(on_pvs).max().unwrap_or(0) + 1;

        let disk = target.open(NEW_FILE, OpenMode::CreateNew).map_err(fail)?;
        let header = self.write_rows(&*disk, sequence)?;
        disk.write_at(&header.encode(), 0).map_err(fail)?;
        disk.sync(SyncPurpose::Catalog).map_err(fail)?;
        target.rename(NEW_FILE, &file_name(sequence)).map_err(fail)?;
        target.sync(SyncPurpose::Dir).map_err(fail)?;
        let mut info = BackupInfo::of(&header, Some(file_name(sequence)));
        let bytes = HEADER_LEN as u64 + header.body_len;
        if bytes <= places::SLOT_LEN {
            let mut all = vec![0; bytes as usize];
            disk.read_at(&mut all, 0).map_err(fail)?;
            // A sync that fails makes the system forget what else is dirty there. No data of a
            // batch may be dirty, because the error would be reported to no write.
            let _between_batches = self.destager.state.lock();
            let takes = pvs.iter().filter(|pv| pv.failure().is_none());
            let written = takes.filter(|pv| places::write_on(&pv.disk, sequence, &all).is_ok());
            info.pvs = written.count() as u32;
        }
        let mut old: Vec<u64> = names.iter().filter_map(|name| sequence_of(name)).collect();
        old.sort_unstable_by(|a, b| b.cmp(a));
        for sequence in old.into_iter().skip(keep.max(1) - 1) {
            // The new backup counts. A file that can't be removed now is removed with the next
            // backup.
            let _ = target.remove(&file_name(sequence));
        }
        Ok(info)
    }

    fn write_rows(&self, disk: &dyn Disk, sequence: u64) -> Result<BackupHeader> {
        // This comes before the rows are read: a commit in between makes the backup one of an open
        // pool.
        let closed = self.core.is_closed();
        let mut body = BodyWriter::new(disk)?;
        let mut incarnation = 0;
        self.core.catalog.visit_rows(&mut |row| {
            if let Some(positions) = crate::catalog::positions_in(&row) {
                incarnation = positions.incarnation;
            }
            body.put(row)
        })?;
        let ids: Vec<u32> = self.core.names.read().pvs.keys().copied().collect();
        for pv in ids.into_iter().filter_map(|id| self.core.pvs.held(id)) {
            let Some(layout) = pv.disk.as_layout() else { continue };
            let (name, record) = (layout.members().name(), layout.members().record());
            body.put(Row { table: LAYOUTS, key: name.as_bytes(), value: &record.encode() })?;
        }
        let (body_sum, body_len, rows) = body.finish()?;
        let (pool, time) = (self.core.uuid, self.core.world.clock.now());
        Ok(BackupHeader { pool, sequence, time, incarnation, closed, body_sum, body_len, rows })
    }
}

/// Opens a file or a device by its path.
fn open(dir: &dyn Dir, path: &str) -> Result<Arc<dyn Disk>> {
    dir.open(path, OpenMode::ReadOnly).map_err(|e| Error::io(format!("open {path}"), e))
}
