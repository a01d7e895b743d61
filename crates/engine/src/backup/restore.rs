//! A new catalog out of a backup of the metadata.

use super::Found;
use super::format::visit_rows;
use crate::catalog::{Catalog, Positions, Superblock, Txn};
use crate::disk::{Dir, OpenMode, SyncPurpose};
use crate::error::{Error, ErrorKind, Result, conflict};
use crate::journal::newest_incarnation;

/// Rows of one transaction.
const ROWS: u64 = 100_000;
/// Bytes of one read while the old catalog is copied.
const PIECE: usize = 1 << 20;

/// What was restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Rows of the new catalog.
    pub rows: u64,
    /// Where the old catalog is kept; `None` when there was none.
    pub kept: Option<String>,
}

/// Makes the catalog of the pool in `dir` anew from a backup. The pool must not be open
/// ([`ErrorKind::Busy`]).
///
/// The backup must have been made when the pool had been closed ([`ErrorKind::Conflict`] else): one
/// of an open pool calls space a volume's that may have become another's since. So does one from
/// before the journal's last incarnation.
///
/// The old catalog is kept under another name. A crash leaves the old one or the new one in its
/// place.
pub fn restore(dir: &dyn Dir, from: &Found) -> Result<Restored> {
    let _lock = crate::space::lock::locked(dir.lock(crate::space::lock::LOCK_FILE))?;
    if !from.header.closed {
        return Err(conflict(
            "restore the catalog: the backup was made while the pool was open, and what was committed after it is \
             not in it",
        ));
    }
    let Draft { rows, superblock, positions } = draft(dir, from)?;
    refuse_older_than_journal(dir, &superblock, &positions)?;
    let kept = keep_old(dir)?;
    Catalog::replace(dir)?;
    Ok(Restored { rows, kept })
}

/// A catalog that has no name of a pool's yet.
pub(crate) struct Draft {
    /// Rows that were stored.
    pub(crate) rows: u64,
    pub(crate) superblock: Superblock,
    pub(crate) positions: Positions,
}

/// Makes a catalog out of a backup, whole and closed: [`Catalog::replace`] makes it the pool's.
pub(crate) fn draft(dir: &dyn Dir, from: &Found) -> Result<Draft> {
    let catalog = Catalog::draft(dir)?;
    let rows = fill(&catalog, from)?;
    // What was stored must be a catalog of the pool that the backup names.
    let (superblock, positions) = (catalog.superblock()?, catalog.positions()?);
    if superblock.pool != from.header.pool {
        return Err(Error::new(ErrorKind::Corrupt, "restore the catalog: the backup holds another pool's"));
    }
    Ok(Draft { rows, superblock, positions })
}

/// Stores all rows of a backup; how many there were.
fn fill(catalog: &Catalog, from: &Found) -> Result<u64> {
    let mut txn = catalog.begin()?;
    txn.create_tables()?;
    let mut pending = Some(txn);
    let mut rows = 0;
    visit_rows(from.body(), from.header.rows, &mut |row| {
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
    Ok(rows)
}

/// Refuses a backup when the journal has a segment of a later incarnation: the pool was opened
/// after it.
fn refuse_older_than_journal(dir: &dyn Dir, superblock: &Superblock, positions: &Positions) -> Result<()> {
    let newest = newest_incarnation(dir, superblock.pool)?;
    if newest <= positions.incarnation {
        return Ok(());
    }
    Err(conflict(format!(
        "restore the catalog: the backup is of incarnation {}, and the journal has records of {newest}: the pool was \
         opened after it was made",
        positions.incarnation
    )))
}

/// Copies the old catalog to another name, as far as it can be read: the new one takes its place in
/// one step.
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
        // What can't be read is left as a hole: the copy is for looking, not for opening.
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
