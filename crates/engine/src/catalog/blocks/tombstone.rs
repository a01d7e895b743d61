//! Tombstones: pages without content, which the store gets in place of pages that do not verify.
//!
//! After an error of a read, redb regards the file as unusable: every later operation fails, of all
//! threads. A page of this module that leads nowhere fails only the one operation that needs it.
//! The page is a branch whose two children are pages of an order that redb refuses. So each descent
//! ends in redb's error `Corrupted`, whatever the table. The numbers of the children name the
//! damaged block. If the page is read as a leaf, its first value ends behind the page.
//!
//! redb keeps the page in its cache. Two functions ensure that no transaction takes content from
//! it. [`met`] shows that a thread was given a tombstone, and [`is_copied`] finds a tombstone that
//! was merged into a page about to be written.

use std::cell::Cell;

/// The mark of a tombstone, at byte 8 and every 8 bytes behind it, where a branch has the sums of
/// its children.
const MARK: [u8; 8] = [0xF5, 0x9A, 0xC1, 0xFF, 0x8D, 0xE2, 0x77, 0xFE];
/// The largest order of pages that exist.
const MAX_ORDER: u64 = 20;
/// The largest order that a page number can express.
const NUMBERED_ORDER: u64 = 31;
/// The number of regions that a page number can express. For each order this many blocks have a
/// name.
const REGIONS: u64 = 1 << 20;

thread_local! {
    /// The number of damaged blocks that this thread was given, and the last one.
    static MET: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Returns the number of damaged blocks that this thread was given so far, and the last one.
pub(in crate::catalog) fn met() -> (u64, u64) {
    MET.get()
}

/// Notes that this thread is given a damaged block.
pub(super) fn note(block: u64) {
    MET.set((MET.get().0 + 1, block));
}

/// Returns a page number that redb refuses. It names `block`, unless the block's number is too
/// large for that.
fn child(block: u64) -> u64 {
    let order = (MAX_ORDER + 1 + block / REGIONS).min(NUMBERED_ORDER);
    order << 59 | (block % REGIONS) << 20
}

/// Makes `page` a tombstone.
pub(super) fn fill(page: &mut [u8], block: u64) {
    page.fill(0);
    // A branch with one key; as a leaf it has one value, which ends behind the page.
    page[..8].copy_from_slice(&[2, 0, 1, 0, 0xFF, 0xFF, 0xFF, 0xFF]);
    for place in (8..40).step_by(8) {
        page[place..place + 8].copy_from_slice(&MARK);
    }
    page[40..48].copy_from_slice(&child(block).to_le_bytes());
    page[48..56].copy_from_slice(&child(block).to_le_bytes());
    // In a table whose keys vary in length, this is the end of the key, which has only zeros. In
    // other tables the key begins here. Its first byte is zero, as one of redb's own types of keys
    // requires.
    page[56..60].copy_from_slice(&256u32.to_le_bytes());
}

/// Returns the damaged block that redb's error `Corrupted` names. The text of redb 4.5 is
/// `Page r5.0/21 has order`.
pub(in crate::catalog) fn named(error: &str) -> Option<u64> {
    let (_, rest) = error.split_once("Page r")?;
    let (number, _) = rest.split_once(" has order")?;
    let (place, order) = number.split_once('/')?;
    let (region, index) = place.split_once('.')?;
    let (order, region): (u64, u64) = (order.parse().ok()?, region.parse().ok()?);
    let named = index == "0" && (MAX_ORDER + 1..NUMBERED_ORDER).contains(&order);
    named.then(|| (order - MAX_ORDER - 1) * REGIONS + region)
}

/// Returns whether this page contains a part of a tombstone.
pub(super) fn is_copied(page: &[u8]) -> bool {
    // Keys and sums are copied whole, in any order, to any place.
    page.windows(MARK.len()).any(|bytes| bytes == MARK)
}
