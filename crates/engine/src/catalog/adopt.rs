//! Opening a catalog's file, and adopting a catalog that an older build wrote. Adoption gives its
//! blocks sums.
//!
//! An adopted catalog is written anew beside the old one, synced, and then renamed to the catalog's
//! name. Until that rename is durable, the old catalog is there and whole. So a crash at any point
//! leaves one of the two.

use super::backend::{BlockBackend, MemoryBackend};
use super::ballast::Ballast;
use super::blocks::{BLOCK, Head, SummedBlocks, decode_head};
use super::store::database;
use super::{FILE, in_use};
use crate::disk::{Dir, Disk, LayeredDisk, OpenMode, SyncPurpose};
use crate::error::{Error, ErrorKind, Result, corrupt};
use std::sync::Arc;

/// Name of the adopted catalog until it is complete.
const ADOPTED_FILE: &str = "catalog.redb.adopted";
/// Bytes of page cache while the old catalog is verified.
const CACHE: usize = 64 << 20;
/// Bytes that are copied at once.
const STEP: usize = 1 << 20;
/// The size of redb's own header in bytes.
const HEADER: usize = 320;

/// Returns a backend for what lies in the catalog's file `disk`.
pub(super) fn below(disk: &Arc<dyn Disk>) -> Result<BlockBackend> {
    let fail = |e| Error::io("open the catalog", e);
    disk.advise_random();
    let len = disk.len().map_err(fail)?;
    let blocks =
        |header| Ok(BlockBackend::Blocks(Arc::new(SummedBlocks::new(disk.clone(), header).map_err(fail)?)));
    if len == 0 {
        return blocks(None);
    }
    let mut block = vec![0; len.min(BLOCK as u64) as usize];
    disk.read_at(&mut block, 0).map_err(fail)?;
    match decode_head(&block) {
        Head::Header(header) => blocks(Some(header)),
        Head::Plain => Ok(BlockBackend::Plain(disk.clone())),
        Head::Later(version) => Err(Error::new(
            ErrorKind::Unsupported,
            format!("open the catalog: its layout has version {version}, which is of a later build"),
        )),
        Head::Damaged => Err(corrupt("open the catalog: its block 0 does not verify")),
    }
}

/// Opens the catalog's file for writing. A catalog without sums is verified as a whole, and gets
/// sums. If there is no space for a second copy, the catalog stays as it is. It is then verified as
/// a whole at each opening, as an older build did.
///
/// With a ballast, writes that find no space spend it.
pub(super) fn open(dir: &dyn Dir, ballast: Option<&Arc<Ballast>>) -> Result<(Arc<dyn Disk>, BlockBackend)> {
    let open = || {
        let disk = dir.open_locked(FILE, OpenMode::Existing).map_err(in_use)?;
        Ok::<_, Error>(match ballast {
            Some(ballast) => Arc::new(LayeredDisk::over(disk, ballast.clone())),
            None => disk,
        })
    };
    let disk = open()?;
    let found = below(&disk)?;
    let BlockBackend::Plain(_) = found else { return Ok((disk, found)) };
    let overlay = MemoryBackend::new(found.clone()).map_err(|e| Error::io("verify the catalog", e))?;
    drop(database("verify the catalog", overlay, CACHE, true)?);
    match adopt(dir, &*disk) {
        Ok(()) => {
            let disk = open()?;
            let adopted = below(&disk)?;
            Ok((disk, adopted))
        }
        Err(error) if error.kind() == ErrorKind::NoSpace => {
            remove_adopted(dir)?;
            Ok((disk, found))
        }
        Err(error) => Err(error),
    }
}

fn remove_adopted(dir: &dyn Dir) -> Result<()> {
    match dir.remove(ADOPTED_FILE) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("remove a catalog that was not adopted", e))
        }
        _ => Ok(()),
    }
}

fn adopt(dir: &dyn Dir, old: &dyn Disk) -> Result<()> {
    let fail = |e| Error::io("give the catalog's blocks sums", e);
    remove_adopted(dir)?;
    let new = dir.open(ADOPTED_FILE, OpenMode::CreateNew).map_err(fail)?;
    let blocks = SummedBlocks::new(new, None).map_err(fail)?;
    let len = old.len().map_err(fail)?;
    blocks.set_len(len).map_err(fail)?;
    let mut header = [0; HEADER];
    old.read_at(&mut header, 0).map_err(fail)?;
    blocks.write(0, &header).map_err(fail)?;
    let mut buffer = vec![0; STEP];
    let mut at = BLOCK as u64;
    while at < len {
        let part = &mut buffer[..(len - at).min(STEP as u64) as usize];
        old.read_at(part, at).map_err(fail)?;
        // A page of the store is never all zeros: what is was never written.
        let written = |block: &[u8]| block.iter().any(|byte| *byte != 0);
        let mut place = at;
        for run in part.chunks(BLOCK).collect::<Vec<_>>().chunk_by(|a, b| written(a) == written(b)) {
            if run.first().is_some_and(|block| written(block)) {
                blocks.write(place, &run.concat()).map_err(fail)?;
            }
            place += (run.len() * BLOCK) as u64;
        }
        at += part.len() as u64;
    }
    blocks.sync().map_err(fail)?;
    drop(blocks);
    dir.rename(ADOPTED_FILE, FILE).map_err(|e| Error::io("name the adopted catalog", e))?;
    dir.sync(SyncPurpose::Dir).map_err(|e| Error::io("sync the data directory", e))
}
