//! Makes a new catalog from a backup of the metadata.

use super::format::visit_rows;
use super::{Found, LAYOUTS};
use crate::catalog::{Catalog, Positions, Superblock, Txn};
use crate::disk::layout;
use crate::disk::layout::record::LayoutRecord;
use crate::disk::{Dir, OpenMode, SyncPurpose};
use crate::error::{Error, ErrorKind, Result, conflict, corrupt};
use crate::journal::newest_incarnation;

/// Number of rows of one transaction.
const ROWS: u64 = 100_000;
/// Number of bytes of one read while the old catalog is copied.
const PIECE: usize = 1 << 20;

/// The result of a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Number of rows of the new catalog.
    pub rows: u64,
    /// The name under which the old catalog is kept; `None` if there was none.
    pub kept: Option<String>,
    /// The layouts whose files in the data directory were made again.
    pub layouts: Vec<String>,
}

/// Makes the catalog of the pool in `dir` again from a backup. The pool must not be open
/// ([`ErrorKind::Busy`]).
///
/// The backup must have been made when the pool had been closed ([`ErrorKind::Conflict`]
/// otherwise). In a backup of an open pool, space of one volume may belong to another volume by
/// now. That also holds for a backup from before the journal's last incarnation.
///
/// The old catalog is kept under another name. A crash leaves the old one or the new one in its
/// place.
pub fn restore(dir: &dyn Dir, from: &Found) -> Result<Restored> {
    let _lock = crate::space::lock::locked(dir.lock(crate::space::lock::LOCK_FILE))?;
    if !from.header.closed {
        return Err(conflict(
            "restore the catalog: the backup was made while the pool was open, and lacks the later commits; use a backup of an orderly stop",
        ));
    }
    let Draft { rows, superblock, positions, layouts } = draft(dir, from)?;
    refuse_older_than_journal(dir, &superblock, &positions)?;
    // The old catalog needs the same ones. What is there is left as it is.
    let layouts = restore_layouts(dir, &layouts)?;
    let kept = keep_old(dir)?;
    Catalog::replace(dir)?;
    Ok(Restored { rows, kept, layouts })
}

/// A catalog that does not have the name of a pool's catalog yet.
pub(crate) struct Draft {
    /// Number of rows that were stored.
    pub(crate) rows: u64,
    pub(crate) superblock: Superblock,
    pub(crate) positions: Positions,
    /// The records of layouts, by their names.
    pub(crate) layouts: Vec<(String, LayoutRecord)>,
}

/// Makes a catalog from a backup, whole and closed. [`Catalog::replace`] makes it the pool's.
pub(crate) fn draft(dir: &dyn Dir, from: &Found) -> Result<Draft> {
    let catalog = Catalog::draft(dir)?;
    let (rows, layouts) = fill(&catalog, from)?;
    // The stored rows must be a catalog of the pool that the backup names.
    let (superblock, positions) = (catalog.superblock()?, catalog.positions()?);
    if superblock.pool != from.header.pool {
        return Err(Error::new(
            ErrorKind::Corrupt,
            "restore the catalog: the backup belongs to another pool",
        ));
    }
    Ok(Draft { rows, superblock, positions, layouts })
}

/// Stores all rows of a backup. Returns their number, and the records of layouts by their names.
fn fill(catalog: &Catalog, from: &Found) -> Result<(u64, Vec<(String, LayoutRecord)>)> {
    let mut layouts = Vec::new();
    let mut txn = catalog.begin()?;
    txn.create_tables()?;
    let mut pending = Some(txn);
    let mut rows = 0;
    visit_rows(from.body(), from.header.rows, &mut |row| {
        if row.table == LAYOUTS {
            let record = LayoutRecord::decode(row.value).zip(String::from_utf8(row.key.to_vec()).ok());
            let (record, name) = record
                .ok_or_else(|| corrupt("restore the catalog: the record of a layout does not verify"))?;
            layouts.push((name, record));
            return Ok(());
        }
        rows += 1;
        if rows % ROWS == 0 {
            pending.take().map_or(Ok(()), Txn::commit)?;
        }
        let txn = match &mut pending {
            Some(txn) => txn,
            none => none.insert(catalog.begin()?),
        };
        txn.put_row(&row)
    })?;
    pending.take().map_or(Ok(()), Txn::commit)?;
    Ok((rows, layouts))
}

/// Makes the files of layouts again that are missing. Returns the names of these layouts.
pub(crate) fn restore_layouts(dir: &dyn Dir, layouts: &[(String, LayoutRecord)]) -> Result<Vec<String>> {
    let mut made = Vec::new();
    for (name, record) in layouts {
        let failed = |e| Error::io(format!("restore layout {name}"), e);
        if layout::restore(dir, name, record).map_err(failed)? {
            made.push(name.clone());
        }
    }
    Ok(made)
}

/// Refuses a backup if the journal has a segment of a later incarnation: then the pool was opened
/// after the backup.
fn refuse_older_than_journal(dir: &dyn Dir, superblock: &Superblock, positions: &Positions) -> Result<()> {
    let newest = newest_incarnation(dir, superblock.pool)?;
    if newest <= positions.incarnation {
        return Ok(());
    }
    Err(conflict(format!(
        "restore the catalog: the backup is of incarnation {}, and the journal has records of incarnation {newest}: the pool was opened after the backup; use a newer one",
        positions.incarnation
    )))
}

/// Copies the readable part of the old catalog to another name. The new catalog replaces the old
/// one in one step.
fn keep_old(dir: &dyn Dir) -> Result<Option<String>> {
    let fail = |e| Error::io("keep the old catalog", e);
    let old = match dir.open(crate::catalog::FILE, OpenMode::ReadOnly) {
        Ok(old) => old,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(fail(e)),
    };
    let names = dir.list().map_err(fail)?;
    let free = (1..).map(|n| format!("{}.old-{n}", crate::catalog::FILE)).find(|name| !names.contains(name));
    let Some(name) = free else { return Ok(None) };
    let copy = dir.open(&name, OpenMode::CreateNew).map_err(fail)?;
    let len = old.len().map_err(fail)?;
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while at < len {
        let part = (len - at).min(PIECE as u64) as usize;
        // An unreadable part becomes a hole: the copy is for inspection, not for opening.
        if old.read_at(&mut piece[..part], at).is_ok() {
            copy.write_at(&piece[..part], at).map_err(fail)?;
        }
        at += part as u64;
    }
    copy.set_len(len).map_err(fail)?;
    copy.sync(SyncPurpose::Catalog).map_err(fail)?;
    dir.sync(SyncPurpose::Dir).map_err(fail)?;
    Ok(Some(name))
}
