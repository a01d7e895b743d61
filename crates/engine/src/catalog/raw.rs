//! Writes of rows that no pool writes. Tests and the simulator damage a catalog with them.

use super::{BITMAP_WORDS, BITMAPS, BitmapPage, EXTENTS, ExtentRecord, MAP, PageKey, Txn, Value};
use crate::error::Result;

/// Bytes that are no value of the catalog.
const NO_VALUE: [u8; 20] = [0x5A; 20];

impl Txn<'_> {
    /// Stores arbitrary bytes as a map page.
    pub(crate) fn put_raw_page(&mut self, key: PageKey, bytes: &[u8]) -> Result<()> {
        self.put(MAP, key, bytes)
    }

    /// Removes the row of a map page, without changing a count.
    pub(crate) fn lose_page(&mut self, key: PageKey) -> Result<()> {
        self.remove(MAP, key)
    }

    /// Stores an extent's record and bitmap, whether they agree or not.
    pub(crate) fn put_raw_extent(
        &mut self,
        (pv, extent): (u32, u32),
        record: &ExtentRecord,
        words: &[u64],
    ) -> Result<()> {
        self.put(EXTENTS, (pv, extent), &record.encode())?;
        for (page, words) in words.chunks(BITMAP_WORDS).enumerate() {
            self.put(BITMAPS, (pv, extent, page as u32), &BitmapPage(words.to_vec()).encode())?;
        }
        Ok(())
    }

    /// Stores a page of a bitmap that does not verify.
    pub(crate) fn break_bitmap(&mut self, key: (u32, u32, u32)) -> Result<()> {
        self.put(BITMAPS, key, &NO_VALUE)
    }

    /// Stores a row of an extent that does not verify.
    pub(crate) fn break_extent(&mut self, key: (u32, u32)) -> Result<()> {
        self.put(EXTENTS, key, &NO_VALUE)
    }

    /// Removes the row of an extent, and leaves its bitmap.
    pub(crate) fn lose_extent(&mut self, key: (u32, u32)) -> Result<()> {
        self.remove(EXTENTS, key)
    }
}
