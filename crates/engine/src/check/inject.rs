//! Damages a closed pool's catalog, through its transactions: for the simulator and for tests of
//! repair.

use crate::catalog::PageKey;
use crate::catalog::UsageKey;
use crate::catalog::{BITMAP_WORDS, BranchRecord, Catalog, ExtentRecord, Txn};
use crate::disk::Dir;
use crate::error::Result;
use crate::ids::BranchId;

/// A kind of damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Injury {
    /// Slots in use lose their marks.
    LostMarks,
    /// Unused slots are marked.
    Leak,
    /// A page of a bitmap does not verify.
    BadBitmap,
    /// The row of an extent does not verify.
    BadExtent,
    /// The row of an extent is gone, and its bitmap is not.
    LostExtent,
    /// The rows of an extent and of its bitmap are gone.
    LostExtentAndBitmap,
    /// The counts of an extent, of a branch, and of its usage are less than they were.
    WrongCounts,
    /// A map page does not verify.
    BadMapPage,
    /// The row of a map page is gone.
    LostMapPage,
}

impl Injury {
    /// Kinds that a repair mends completely.
    pub const MENDED: [Injury; 7] = [
        Injury::LostMarks,
        Injury::Leak,
        Injury::BadBitmap,
        Injury::BadExtent,
        Injury::LostExtent,
        Injury::LostExtentAndBitmap,
        Injury::WrongCounts,
    ];
    /// Kinds after which something can't be read any more.
    pub const FATAL: [Injury; 2] = [Injury::BadMapPage, Injury::LostMapPage];
}

/// Damages the catalog in `dir`. `pick` chooses the place. False when there is nothing to damage.
pub fn injure(dir: &dyn Dir, injury: Injury, pick: u64) -> Result<bool> {
    let catalog = Catalog::open(dir, 1 << 20)?;
    let mut txn = catalog.begin()?;
    let done = match injury {
        Injury::BadMapPage | Injury::LostMapPage => injure_map(&catalog, &mut txn, injury, pick)?,
        Injury::WrongCounts => injure_counts(&catalog, &mut txn, pick)?,
        _ => injure_extent(&catalog, &mut txn, injury, pick)?,
    };
    txn.commit()?;
    Ok(done)
}

fn nth<T>(mut all: Vec<T>, pick: u64) -> Option<T> {
    let index = pick.checked_rem(all.len() as u64)?;
    Some(all.swap_remove(index as usize))
}

fn extent(catalog: &Catalog, pick: u64) -> Result<Option<((u32, u32), ExtentRecord)>> {
    let mut all = Vec::new();
    // Rows that were damaged before are left out.
    catalog.visit_extents(&mut |id, record| all.extend(record.ok().map(|record| (id, record))))?;
    Ok(nth(all, pick))
}

fn injure_extent(catalog: &Catalog, txn: &mut Txn<'_>, injury: Injury, pick: u64) -> Result<bool> {
    let Some(((pv, number), record)) = extent(catalog, pick)? else { return Ok(false) };
    let slots = catalog.superblock()?.extent_size >> record.slot_log2;
    match injury {
        Injury::BadExtent => return txn.break_extent((pv, number)).map(|()| true),
        Injury::LostExtent => return txn.lose_extent((pv, number)).map(|()| true),
        Injury::LostExtentAndBitmap => {
            txn.lose_extent((pv, number))?;
            return txn.cut_bitmap(pv, number, 0).map(|()| true);
        }
        _ => {}
    }
    let Ok(mut words) = catalog.bitmap(pv, number, (slots as usize).div_ceil(64)) else { return Ok(false) };
    let page = (pick as usize % words.len().div_ceil(BITMAP_WORDS)) as u32;
    match injury {
        Injury::LostMarks => {
            // Half of the marks are removed: at least one stays, so that the extent does.
            let marked: Vec<u64> =
                (0..slots).filter(|s| words[*s as usize / 64] >> (s % 64) & 1 == 1).collect();
            for slot in &marked[..marked.len() / 2] {
                words[*slot as usize / 64] &= !(1 << (slot % 64));
            }
            txn.put_raw_extent((pv, number), &record, &words)?;
            return Ok(marked.len() > 1);
        }
        Injury::Leak => {
            let free: Vec<u64> =
                (0..slots).filter(|s| words[*s as usize / 64] >> (s % 64) & 1 == 0).collect();
            let Some(slot) = nth(free, pick) else { return Ok(false) };
            words[slot as usize / 64] |= 1 << (slot % 64);
            txn.put_raw_extent((pv, number), &ExtentRecord { used: record.used + 1, ..record }, &words)?;
        }
        _ => txn.break_bitmap((pv, number, page))?,
    }
    Ok(true)
}

fn injure_counts(catalog: &Catalog, txn: &mut Txn<'_>, pick: u64) -> Result<bool> {
    let branches = catalog.branches()?.into_iter().filter(|(_, branch)| branch.slots > 0);
    let Some((id, branch)) = nth(branches.collect(), pick) else { return Ok(false) };
    txn.put_branch(id, &BranchRecord { slots: branch.slots - 1, ..branch })?;
    if let Some((last, born, slots)) = nth(catalog.usage(id)?, pick) {
        txn.put_usage(UsageKey::new(id, last, born), slots - 1)?;
    }
    if let Some(((pv, number), record)) = extent(catalog, pick)? {
        let slots = catalog.superblock()?.extent_size >> record.slot_log2;
        if let Ok(words) = catalog.bitmap(pv, number, (slots as usize).div_ceil(64)) {
            let used = record.used.saturating_sub(1);
            txn.put_raw_extent((pv, number), &ExtentRecord { used, ..record }, &words)?;
        }
    }
    Ok(true)
}

fn injure_map(catalog: &Catalog, txn: &mut Txn<'_>, injury: Injury, pick: u64) -> Result<bool> {
    let mut all = Vec::new();
    catalog.visit_pages(PageKey::new(BranchId(0), 0), usize::MAX, &mut |key, page| {
        all.extend(page.ok().map(|page| (key, page)));
        Ok(())
    })?;
    let Some((key, page)) = nth(all, pick) else { return Ok(false) };
    match injury {
        Injury::LostMapPage => txn.lose_page(key)?,
        _ => {
            let mut bytes = page.encode(key);
            let at = pick as usize % bytes.len();
            bytes[at] ^= 1;
            txn.put_raw_page(key, &bytes)?;
        }
    }
    Ok(true)
}
