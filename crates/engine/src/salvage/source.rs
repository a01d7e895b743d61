//! Chooses the catalog of a salvage: the pool's own, or one from a backup.

use super::SalvageOptions;
use crate::backup::{self, Found};
use crate::catalog::{self, Catalog, Positions, Superblock};
use crate::disk::{Dir, OverlayDir};
use crate::error::{Error, ErrorKind, Result, corrupt};
use crate::info::{CatalogSource, Salvage};
use crate::journal::newest_incarnation;
use crate::pool::Pool;
use crate::settings::check_config;
use crate::space::lock::LOCK_FILE;

/// An open catalog with the rows without which no salvage is possible.
pub(super) struct SalvageSource {
    pub(super) catalog: Catalog,
    pub(super) superblock: Superblock,
    pub(super) positions: Positions,
    /// Whether the journal has a segment of this pool. If it has one, the journal would show that
    /// the pool was opened after a backup.
    pub(super) journal: bool,
}

fn open_own(dir: &dyn Dir, cache_bytes: usize) -> Result<SalvageSource> {
    if !Pool::exists(dir)? {
        return Err(crate::error::not_found(format!("open the catalog: {} is missing", catalog::FILE)));
    }
    let catalog = Catalog::open_untouched(dir, cache_bytes)?;
    let superblock = catalog.superblock()?;
    check_config(&superblock.config()).map_err(|e| corrupt(format!("read the superblock: {e}")))?;
    let positions = catalog.positions()?;
    let journal = newest_incarnation(dir, superblock.pool)? > 0;
    Ok(SalvageSource { catalog, superblock, positions, journal })
}

/// Opens the pool's own catalog. If that does not open, the catalog is made from the newest backup.
/// If the options name a backup, the catalog is made from that one.
pub(super) fn open(dir: &OverlayDir, options: &SalvageOptions, found: &mut Salvage) -> Result<SalvageSource> {
    let cache = options.pool.catalog_cache_bytes;
    if let Some(path) = &options.from {
        let backup = backup::find(dir, path)?;
        return restore(dir, cache, path, &backup, found);
    }
    let error = match open_own(dir, cache) {
        Ok(source) => return Ok(source),
        Err(e) if matches!(e.kind(), ErrorKind::Busy | ErrorKind::Unsupported) => return Err(e),
        Err(e) => e,
    };
    found.find("catalog", catalog::FILE, error.to_string());
    let (path, backup) = newest(dir, options).ok_or_else(|| {
        let text = format!(
            "open the pool for salvage: its catalog does not open ({error}), and no backup of its metadata was found \
             that verifies; name the file of one, or a physical volume"
        );
        Error::new(error.kind(), text)
    })?;
    restore(dir, cache, &path, &backup, found)
}

/// Returns the newest valid backup, among the named files and the physical volumes in the data
/// directory.
fn newest(dir: &dyn Dir, options: &SalvageOptions) -> Option<(String, Found)> {
    let own = |name: &String| {
        name != LOCK_FILE && !name.starts_with("journal-") && !name.starts_with(catalog::FILE)
    };
    let here = dir.list().unwrap_or_default().into_iter().filter(own);
    let named = options.backups.iter().chain(options.moved.values()).cloned();
    let all = named.chain(here).filter_map(|path| Some((backup::find(dir, &path).ok()?, path)));
    all.max_by_key(|(found, _)| found.info.sequence).map(|(found, path)| (path, found))
}

/// Makes a catalog in memory from a backup.
fn restore(
    dir: &OverlayDir,
    cache_bytes: usize,
    path: &str,
    backup: &Found,
    found: &mut Salvage,
) -> Result<SalvageSource> {
    let draft = backup::draft(dir, backup)?;
    let pool = draft.superblock.pool;
    // Without them the layouts' content is lost, and everything else is there.
    if let Err(error) = backup::restore_layouts(dir, &draft.layouts) {
        found.find("backup", path, error.to_string());
    }
    let newest = newest_incarnation(dir, pool)?;
    Catalog::replace(dir)?;
    let source = open_own(dir, cache_bytes)?;
    let (info, incarnation) = (&backup.info, source.positions.incarnation);
    let (text, exact) = if !info.closed {
        ("it was made while the pool was open, and lacks the later commits".to_owned(), false)
    } else if newest > incarnation {
        let text = format!(
            "it is of incarnation {incarnation}, and the journal has records of incarnation {newest}: the pool was opened after the backup"
        );
        (text, false)
    } else {
        ("it was made at an orderly stop: it equals the catalog".to_owned(), true)
    };
    let object = format!("backup {} in {path}", info.sequence);
    found.find("backup", &object, format!("the catalog was made from it, in memory; {text}"));
    if !exact {
        found.doubts.push(format!(
            "the catalog is of an earlier time ({object}): since then every volume may have changed, and parts of it may \
             show another volume's data; {text}"
        ));
    }
    found.source =
        CatalogSource::Backup { path: path.to_owned(), sequence: info.sequence, time: info.time, exact };
    Ok(source)
}
