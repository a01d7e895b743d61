//! Stale regions: the parts of a layout that changed while a member was out. The disk of the member
//! has all the rest when it comes back, and gets only these parts (decision 85).
//!
//! A *region* is a range of the spans. It becomes stale when a write to it has returned while a
//! member is out. When a member goes out, the regions become stale that were written since the last
//! sync that reached all disks: its disk may have lost those writes.
//!
//! The file `stale-NAME` of the data directory lists them. A sync stores it before it returns. So a
//! crash loses only the regions of writes that no sync had made durable. The engine relies on none
//! of these writes, and repeats those that it needs.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `HCSTALES` |
//! | 8..12 | CRC32C of the bytes from 12 on |
//! | 12..16 | format version |
//! | 16..32 | UUID of the layout |
//! | 32..40 | number of the list: the record of the layout names the one that counts |
//! | 40..44 | log2 of the number of bytes of a region |
//! | 44.. | 2,097,152 bits, the lowest one first. Region *n* has bit *n* modulo their number |

use super::record::LayoutRecord;
use super::replace_file;
use super::spans::CopiedSpan;
use crate::codec::{Reader, Writer, crc32c};
use crate::disk::{Dir, OpenMode, SyncPurpose};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use uuid::Uuid;

const MAGIC: &[u8; 8] = b"HCSTALES";
const VERSION: u32 = 1;
/// Number of bits.
const BITS: u64 = 1 << 21;
const WORDS: usize = (BITS / 64) as usize;
/// Bytes of the file before the bits.
const HEAD: usize = 44;
/// Log2 of the number of bytes of the smallest and of the largest region.
const REGION_LOG2: std::ops::RangeInclusive<u32> = 16..=48;
/// The beginning of the content, which is always listed. It has labels and stamps. An opening
/// believes the labels and stamps that it reads, also if no sync had made them durable.
const BEGINNING: Range<u64> = 0..1 << 20;
/// How the names of these files begin.
pub(crate) const FILE_PREFIX: &str = "stale-";
/// The beginning of the name of a file that is being written. No layout has such a name.
const NEW_PREFIX: &str = "stale-~";

/// A bit for each region.
struct Regions {
    words: Box<[AtomicU64]>,
    /// A bit for each word that may have bits, so that a sync need not look at all words.
    used: Box<[AtomicU64]>,
}

fn zeroed(words: usize) -> Box<[AtomicU64]> {
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

impl Regions {
    fn new() -> Regions {
        Regions { words: zeroed(WORDS), used: zeroed(WORDS / 64) }
    }

    fn set(&self, bit: u64) {
        let (at, mask) = ((bit / 64) as usize, 1 << (bit % 64));
        // Most bits are set already, and reading one disturbs no other processor.
        if self.words[at].load(Ordering::SeqCst) & mask == 0 {
            self.add([(at, mask)]);
        }
    }

    fn is_set(&self, bit: u64) -> bool {
        self.words[(bit / 64) as usize].load(Ordering::SeqCst) & 1 << (bit % 64) != 0
    }

    /// Adds bits of words: (position, bits).
    fn add(&self, words: impl IntoIterator<Item = (usize, u64)>) {
        for (at, bits) in words.into_iter().filter(|(_, bits)| *bits != 0) {
            self.words[at].fetch_or(bits, Ordering::SeqCst);
            self.used[at / 64].fetch_or(1 << (at % 64), Ordering::SeqCst);
        }
    }

    /// Removes the bits, and returns the words that had some: (position, bits). A bit that is added
    /// meanwhile may stay.
    fn take(&self) -> Vec<(usize, u64)> {
        let mut taken = Vec::new();
        for (n, used) in self.used.iter().enumerate() {
            if used.load(Ordering::SeqCst) == 0 {
                continue;
            }
            let mut left = used.swap(0, Ordering::SeqCst);
            while left != 0 {
                let at = n * 64 + left.trailing_zeros() as usize;
                taken.push((at, self.words[at].swap(0, Ordering::SeqCst)));
                left &= left - 1;
            }
        }
        taken
    }

    fn words(&self) -> Vec<u64> {
        self.words.iter().map(|word| word.load(Ordering::SeqCst)).collect()
    }
}

/// A sync that is under way, or whose regions another one still has to answer for.
struct Syncing {
    number: u64,
    /// The regions that were written before it began, as words with their positions.
    regions: Vec<(usize, u64)>,
    /// The last sync that had begun when it ended. `None`: it is under way.
    ended: Option<u64>,
}

#[derive(Default)]
struct Syncs {
    begun: u64,
    under_way: BTreeSet<u64>,
    all: Vec<Syncing>,
}

/// The stale regions of a layout.
pub(super) struct StaleRegions {
    region_log2: u32,
    /// Regions that were written since the last sync began.
    written: Regions,
    syncs: Mutex<Syncs>,
    stale: Regions,
    /// Whether writes list what they write.
    is_listing: AtomicBool,
    /// What the file has. `None`: that is not known.
    saved: Mutex<Option<Vec<u64>>>,
}

fn file_name(name: &str) -> String {
    format!("{FILE_PREFIX}{name}")
}

/// Returns log2 of the size of regions for a layout.
fn region_log2_of(record: &LayoutRecord) -> u32 {
    let len = record.spans.last().map_or(0, CopiedSpan::end);
    len.div_ceil(BITS).max(1).next_power_of_two().trailing_zeros().max(*REGION_LOG2.start())
}

fn encode(layout: &Uuid, number: u64, region_log2: u32, words: &[u64]) -> Vec<u8> {
    let mut w = Writer::default();
    w.bytes(MAGIC).u32(0).u32(VERSION).uuid(layout).u64(number).u32(region_log2);
    for word in words {
        w.u64(*word);
    }
    let crc = crc32c(&w.0[12..]);
    w.0[8..12].copy_from_slice(&crc.to_le_bytes());
    w.0
}

/// Returns log2 of the size of regions, and the bits.
fn decode(bytes: &[u8], layout: &Uuid, number: u64) -> Option<(u32, Vec<u64>)> {
    let mut r = Reader::new(bytes);
    let is_magic = r.take(8)? == MAGIC;
    let (crc, version) = (r.u32()?, r.u32()?);
    (is_magic && crc == crc32c(&bytes[12..]) && version == VERSION).then_some(())?;
    (r.uuid()? == *layout && r.u64::<u64>()? == number).then_some(())?;
    let region_log2 = Some(r.u32()?).filter(|log2| REGION_LOG2.contains(log2))?;
    let words = (0..WORDS).map(|_| r.u64()).collect::<Option<Vec<u64>>>()?;
    r.end((region_log2, words))
}

/// Returns the number of the list of a record: the one that it names, or a new one.
pub(super) fn number_in(record: &LayoutRecord) -> u64 {
    if record.stale == 0 { record.sequence + 1 } else { record.stale }
}

/// Removes the file of a layout.
pub(super) fn remove(dir: &dyn Dir, name: &str) -> io::Result<()> {
    match dir.remove(&file_name(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl StaleRegions {
    /// Returns the list of a layout that is opened. If its record names one that the file does not
    /// have, the list is empty, and the result is false.
    pub(super) fn load(dir: &dyn Dir, name: &str, record: &LayoutRecord) -> (StaleRegions, bool) {
        let stored = || {
            let disk = dir.open(&file_name(name), OpenMode::ReadOnly)?;
            let mut bytes = vec![0; disk.len()?.min((HEAD + WORDS * 8) as u64) as usize];
            disk.read_at(&mut bytes, 0).map(|()| bytes)
        };
        let counts = record.stale != 0;
        let known = if counts { stored().ok() } else { None };
        let known = known.and_then(|bytes| decode(&bytes, &record.uuid, record.stale));
        let is_known = known.is_some();
        if counts && !is_known {
            tracing::warn!(
                layout = name,
                "the list of stale regions is missing or damaged; a member that comes back gets all content"
            );
        }
        let (region_log2, words) = known.unwrap_or_else(|| (region_log2_of(record), Vec::new()));
        let regions = StaleRegions {
            region_log2,
            written: Regions::new(),
            syncs: Mutex::default(),
            stale: Regions::new(),
            is_listing: AtomicBool::new(is_known),
            saved: Mutex::new(None),
        };
        regions.stale.add(words.into_iter().enumerate());
        (regions, is_known || !counts)
    }

    /// Returns the bits of the regions with a part of a range.
    fn bits_of(&self, range: &Range<u64>) -> impl Iterator<Item = u64> + use<> {
        let first = range.start >> self.region_log2;
        let end = (range.end.saturating_sub(1) >> self.region_log2) + 1;
        let number = if range.is_empty() { 0 } else { (end - first).min(BITS) };
        (first..first + number).map(|region| region % BITS)
    }

    /// Notes that a range of the spans was written, before the write returns.
    pub(super) fn note_written(&self, range: Range<u64>) {
        for bit in self.bits_of(&range) {
            self.written.set(bit);
            // In this order: if a member goes out meanwhile, `begin` finds the bit, or the list has
            // begun here.
            if self.is_listing.load(Ordering::SeqCst) {
                self.stale.set(bit);
            }
        }
    }

    /// Begins a sync. Returns its number.
    pub(super) fn begin_sync(&self) -> u64 {
        let syncs = &mut *self.syncs.lock();
        syncs.begun += 1;
        let number = syncs.begun;
        syncs.under_way.insert(number);
        syncs.all.push(Syncing { number, regions: self.written.take(), ended: None });
        number
    }

    /// Ends a sync. If it failed, its regions still count as written. Of several syncs at the same
    /// time, the system reports an error to one only. So the regions of a sync are forgotten when
    /// all syncs have ended that had begun before its end.
    pub(super) fn end_sync(&self, number: u64, is_done: bool) {
        let syncs = &mut *self.syncs.lock();
        syncs.under_way.remove(&number);
        let last = syncs.begun;
        for sync in syncs.all.iter_mut().filter(|sync| sync.number == number) {
            sync.ended = Some(last);
            if !is_done {
                self.written.add(sync.regions.iter().copied());
            }
        }
        let first = syncs.under_way.first().copied().unwrap_or(u64::MAX);
        syncs.all.retain(|sync| sync.ended.is_none_or(|last| first <= last));
    }

    /// Begins the list, if there is none. Adds what the disk of a member may lack that goes out
    /// now.
    pub(super) fn begin(&self) {
        if !self.is_listing.load(Ordering::SeqCst) {
            self.stale.take();
            self.is_listing.store(true, Ordering::SeqCst);
        }
        // While this is held, no sync moves regions from `written` to its own.
        let syncs = self.syncs.lock();
        self.stale.add(self.written.words().into_iter().enumerate());
        syncs.all.iter().for_each(|sync| self.stale.add(sync.regions.iter().copied()));
        for bit in self.bits_of(&BEGINNING) {
            self.stale.set(bit);
        }
    }

    /// Returns whether writes list what they write.
    pub(super) fn is_listing(&self) -> bool {
        self.is_listing.load(Ordering::SeqCst)
    }

    /// Ends the list.
    pub(super) fn end(&self) {
        self.is_listing.store(false, Ordering::SeqCst);
        *self.saved.lock() = None;
    }

    /// Writes the file, with the number of the list. When this returns, the file survives a power
    /// loss.
    pub(super) fn save(&self, dir: &dyn Dir, name: &str, layout: &Uuid, number: u64) -> io::Result<()> {
        let saved = &mut *self.saved.lock();
        // The words are compared because a flag could be late: another thread may have set a bit,
        // and not yet the flag.
        let words = self.stale.words();
        if saved.as_ref() == Some(&words) {
            return Ok(());
        }
        *saved = None;
        let bytes = encode(layout, number, self.region_log2, &words);
        let new = format!("{NEW_PREFIX}{name}");
        replace_file(dir, &file_name(name), &new, &bytes, SyncPurpose::Stale)?;
        *saved = Some(words);
        Ok(())
    }

    /// Returns the first part of a range of the spans that is stale.
    pub(super) fn first_in(&self, range: Range<u64>) -> Option<Range<u64>> {
        let regions = range.start >> self.region_log2..range.end.div_ceil(1 << self.region_log2);
        let first = regions.clone().find(|region| self.stale.is_set(region % BITS))?;
        let behind = (first..regions.end).find(|region| !self.stale.is_set(region % BITS));
        let end = behind.map_or(range.end, |region| range.end.min(region << self.region_log2));
        Some(range.start.max(first << self.region_log2)..end)
    }

    /// Returns the number of bytes of a range of the spans that are stale.
    pub(super) fn bytes_in(&self, range: Range<u64>) -> u64 {
        let mut bytes = 0;
        let mut from = range.start;
        while let Some(part) = self.first_in(from..range.end) {
            bytes += part.end - part.start;
            from = part.end;
        }
        bytes
    }
}

#[cfg(test)]
mod tests;
