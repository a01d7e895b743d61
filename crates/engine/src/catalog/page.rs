//! A map page: 256 consecutive chunks of a branch's current map.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | CRC32C of the page's key (branch, page number) and bytes 4.. |
//! | 4..6 | format version |
//! | 6..8 | number of entries |
//! | 8..40 | bitmap: which chunks have an entry |
//! | 40.. | entries in order of chunks: slot (8 bytes), born epoch (4 bytes) |
//!
//! A slot is the PV number in the upper 16 bits and the byte offset on the PV in units of 512 B
//! below them. 0, where a PV's label lies, stands for a hole. A chunk without an entry has its
//! content in the branch's base. Only entries that exist take space, on disk and in memory, so
//! sparse volumes have small pages. A full page is 3,112 bytes. That is below the 4,000 bytes that
//! the catalog stores well.

use super::PageKey;
use crate::codec::crc32c;
pub(crate) use crate::ids::Slot;
use crate::ids::{Chunk, Epoch};
use std::ops::Range;

/// The number of chunks of a page.
pub(crate) const CHUNKS: u64 = 256;
const VERSION: u16 = 1;
const HEAD: usize = 40;
const ENTRY: usize = 12;
/// The bytes that a chunk takes in the map.
pub(crate) const ENTRY_BYTES: u64 = ENTRY as u64;
const _: () = assert!(HEAD + CHUNKS as usize * ENTRY <= 4000);

/// The map's entry for a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) slot: Slot,
    /// The epoch of the first write since the last snapshot that holds its content.
    pub(crate) born: Epoch,
}

impl Chunk {
    /// Returns the number of the chunk's map page.
    pub(crate) const fn page(self) -> u64 {
        self.0 / CHUNKS
    }

    /// Returns the numbers of the map pages in which `chunks` lie.
    pub(crate) const fn pages(chunks: &Range<Chunk>) -> Range<u64> {
        chunks.start.page()..chunks.end.0.div_ceil(CHUNKS)
    }

    /// Returns the first chunk of map page `page`.
    pub(crate) const fn first_of(page: u64) -> Chunk {
        Chunk(page.saturating_mul(CHUNKS))
    }

    /// Returns the chunk at `index` of map page `page`.
    pub(crate) const fn in_page(page: u64, index: usize) -> Chunk {
        Chunk(Chunk::first_of(page).0.saturating_add(index as u64))
    }
}

/// A map page in memory. Chunks without an entry take no space.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct MapPage {
    present: [u64; 4],
    entries: Vec<Entry>,
}

impl MapPage {
    /// Returns the page of a chunk, and the chunk's index in the page.
    pub(crate) fn locate(chunk: Chunk) -> (u64, usize) {
        (chunk.page(), (chunk.0 % CHUNKS) as usize)
    }

    /// Makes a page in which every chunk is a hole since epoch `born`.
    pub(crate) fn hole(born: Epoch) -> MapPage {
        MapPage { present: [u64::MAX; 4], entries: vec![Entry { slot: Slot::HOLE, born }; CHUNKS as usize] }
    }

    fn rank(&self, index: usize) -> usize {
        let word = index / 64;
        let before: u32 = self.present[..word].iter().map(|w| w.count_ones()).sum();
        let below = self.present[word] & ((1u64 << (index % 64)) - 1);
        (before + below.count_ones()) as usize
    }

    fn has(&self, index: usize) -> bool {
        self.present[index / 64] >> (index % 64) & 1 == 1
    }

    /// Returns the entry of the chunk at `index`.
    pub(crate) fn get(&self, index: usize) -> Option<Entry> {
        self.has(index).then(|| self.entries[self.rank(index)])
    }

    /// Sets an entry and returns the one before.
    pub(crate) fn set(&mut self, index: usize, entry: Entry) -> Option<Entry> {
        let rank = self.rank(index);
        if self.has(index) {
            return Some(std::mem::replace(&mut self.entries[rank], entry));
        }
        self.present[index / 64] |= 1 << (index % 64);
        self.entries.insert(rank, entry);
        None
    }

    /// Removes an entry and returns it.
    pub(crate) fn remove(&mut self, index: usize) -> Option<Entry> {
        if !self.has(index) {
            return None;
        }
        let rank = self.rank(index);
        self.present[index / 64] &= !(1 << (index % 64));
        Some(self.entries.remove(rank))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the entries as (index, entry), in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, Entry)> + '_ {
        (0..CHUNKS as usize).filter(|i| self.has(*i)).zip(self.entries.iter().copied())
    }

    /// Calls `change` with each entry that differs in `new`, and with the entry of `new` in its
    /// place.
    pub(crate) fn each_change(&self, new: &MapPage, mut change: impl FnMut(Option<Entry>, Option<Entry>)) {
        let mut tell = |old: Option<Entry>, new: Option<Entry>| {
            if old != new {
                change(old, new);
            }
        };
        if self.present == new.present {
            self.entries.iter().zip(&new.entries).for_each(|(old, new)| tell(Some(*old), Some(*new)));
            return;
        }
        let (mut olds, mut news) = (self.entries.iter(), new.entries.iter());
        for index in 0..CHUNKS as usize {
            let old = self.has(index).then(|| olds.next()).flatten();
            tell(old.copied(), new.has(index).then(|| news.next()).flatten().copied());
        }
    }

    /// Returns the number of bytes of memory that the page takes.
    pub(crate) fn weight(&self) -> usize {
        size_of::<MapPage>() + self.entries.capacity() * size_of::<Entry>()
    }

    pub(crate) fn encode(&self, key: PageKey) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD + self.entries.len() * ENTRY);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(self.entries.len() as u16).to_le_bytes());
        for word in self.present {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for entry in &self.entries {
            out.extend_from_slice(&entry.slot.0.to_le_bytes());
            out.extend_from_slice(&entry.born.0.to_le_bytes());
        }
        let crc = checksum(key, &out[4..]);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Sets the right sum in a page's bytes, so that a fuzzer gets past the check of the sum.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn fix_checksum(key: PageKey, bytes: &mut [u8]) {
        if bytes.len() >= 4 {
            let crc = checksum(key, &bytes[4..]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
        }
    }

    /// Decodes the page stored under `key`. Returns `None` when the page is damaged, misplaced or
    /// of another version.
    pub(crate) fn decode(key: PageKey, bytes: &[u8]) -> Option<MapPage> {
        let mut r = crate::codec::Reader::new(bytes);
        if r.u32()? != checksum(key, bytes.get(4..)?) || r.u16()? != VERSION {
            return None;
        }
        let count = r.u16()? as usize;
        let present: [u64; 4] = [r.u64()?, r.u64()?, r.u64()?, r.u64()?];
        if present.iter().map(|w| w.count_ones() as usize).sum::<usize>() != count {
            return None;
        }
        let mut entries = Vec::with_capacity(count);
        for entry in r.take(count * ENTRY)?.as_chunks::<ENTRY>().0 {
            let mut entry = crate::codec::Reader::new(entry);
            entries.push(Entry { slot: Slot(entry.u64()?), born: Epoch(entry.u32()?) });
        }
        r.end(MapPage { present, entries })
    }
}

fn checksum(key: PageKey, body: &[u8]) -> u32 {
    let mut head = [0u8; 20];
    head[..8].copy_from_slice(&key.branch.0.to_le_bytes());
    head[8..16].copy_from_slice(&key.page.to_le_bytes());
    head[16..].copy_from_slice(&crc32c(body).to_le_bytes());
    crc32c(&head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::BranchId;

    #[test]
    fn golden_bytes_and_damage() {
        let mut page = MapPage::default();
        page.set(70, Entry { slot: Slot::new(1, 4096), born: Epoch(3) });
        page.set(2, Entry { slot: Slot::HOLE, born: Epoch(1) });
        let bytes = page.encode(PageKey::new(BranchId(5), 9));
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "cad2d13e010002000400000000000000400000000000000000000000000000000000000000000000000000000000000001000000080000000000010003000000"
        );
        assert_eq!(MapPage::decode(PageKey::new(BranchId(5), 9), &bytes), Some(page));
        assert_eq!(MapPage::decode(PageKey::new(BranchId(5), 8), &bytes), None, "misplaced");
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(MapPage::decode(PageKey::new(BranchId(5), 9), &bad), None, "bit {bit}");
        }
    }

    #[test]
    fn agrees_with_a_plain_array() {
        use crate::world::{Rng, SplitMix};
        let rng = SplitMix::new(7);
        let mut page = MapPage::default();
        let mut plain = vec![None; CHUNKS as usize];
        for i in 0..20_000u64 {
            let index = (rng.next() % CHUNKS) as usize;
            if rng.next() % 3 == 0 {
                assert_eq!(page.remove(index), plain[index].take());
            } else {
                let entry = Entry { slot: Slot::new(2, i * 512), born: Epoch(i as u32) };
                assert_eq!(page.set(index, entry), plain[index].replace(entry));
            }
            assert_eq!(page.get(index), plain[index]);
        }
        let listed: Vec<_> = page.iter().collect();
        let expected: Vec<_> = plain.iter().enumerate().filter_map(|(i, e)| Some((i, (*e)?))).collect();
        assert_eq!(listed, expected);
        assert_eq!(
            MapPage::decode(PageKey::new(BranchId(1), 1), &page.encode(PageKey::new(BranchId(1), 1))),
            Some(page)
        );
    }

    #[test]
    fn slots() {
        let slot = Slot::new(65_535, (1 << 50) + 512);
        assert_eq!((slot.pv(), slot.offset()), (65_535, (1 << 50) + 512));
    }

    #[test]
    fn pages_of_chunks_and_chunks_of_pages() {
        for chunk in [0, 255, 256, 257, 511, 512, u64::MAX].map(Chunk) {
            let (page, index) = MapPage::locate(chunk);
            assert_eq!((Chunk::in_page(page, index), chunk.page()), (chunk, page));
            assert!(Chunk::first_of(page) <= chunk && index < CHUNKS as usize);
        }
        assert_eq!(Chunk::first_of(u64::MAX), Chunk::MAX);
    }
}
