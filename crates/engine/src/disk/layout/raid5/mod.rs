//! RAID-5: a disk whose content is in rows over its members, each row with a unit of parity.
//!
//! The engine sees one disk. What makes that safe (decision 79):
//!
//! - **A write** waits in memory until the next sync, or until there are many. Then a *flush* reads
//!   what the new parities need, writes an entry of the parity log and syncs it, writes blocks and
//!   parities, and syncs the members. A flush that fails makes the disk fail for ever.
//! - **A member that fails** is out, as in every layout. What it had follows from the others.
//! - **After a crash** the lines of the youngest entry are settled before anything is read: each
//!   block that the entry does not write reads as before, whichever member is missing.
//! - **A line is consistent** from its first write on. Whether a line that was never written is,
//!   the groups tell. Parities are never computed from a parity that may be wrong.

mod disk;
mod flush;
mod groups;
mod log;
mod mend;
mod pending;
mod punch;
mod rebuild;
mod replay;
mod rows;

use super::members::{Members, Opened, no_copy};
use super::places::{CurrentPlaces, Places};
use super::record::{LayoutKind, LayoutRecord};
use super::spans::CopyPlace;
use crate::disk::{Dir, Disk, OpenMode};
pub(crate) use groups::FILE_PREFIX as GROUPS_PREFIX;
pub(crate) use log::FILE_PREFIX as LOG_PREFIX;

use groups::Groups;
use log::ParityLog;
use parking_lot::{Mutex, RwLock};
use pending::{BlockContent, PendingBlock, PendingBlocks, content_of, zeros};
use rebuild::Copied;
use rows::{BLOCK, Rows};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::OnceLock;

/// Bounds of the number of blocks that one entry of the log writes: 256 KiB to 32 MiB.
const ROOM: std::ops::RangeInclusive<u64> = 64..=log::MAX_ROOM as u64;
/// Part of the content that one entry can write.
const ROOM_PART: u64 = 256;
/// Number of sums of replaced blocks above which they are forgotten.
const MOST_REPLACED: usize = 1 << 18;
/// Number of lines that wait to be looked at because something in them is wrong.
const MAX_SUSPECTS: usize = 1024;

/// The sums of blocks, which a layer above knows.
pub(crate) struct BlockSums {
    /// Returns the sum of the block at a byte of the content, if it is known.
    pub(crate) known: Box<dyn Fn(u64) -> Option<u32> + Send + Sync>,
    /// Returns the sum of a content.
    pub(crate) sum_of: fn(&[u8]) -> u32,
}

/// Reads bytes of a disk: (disk, buffer, byte of it).
type ReadDisk<'a> = &'a dyn Fn(&dyn Disk, &mut [u8], u64) -> io::Result<()>;

/// A RAID-5 as a disk.
pub struct Raid5 {
    pub(crate) members: Members,
    rows: Rows,
    pub(super) places: CurrentPlaces,
    pending: PendingBlocks,
    /// Number of pending blocks from which on a write makes a flush.
    room: usize,
    /// Held while a part of a block is written: what is around it must not change meanwhile.
    patching: Mutex<()>,
    /// The parity log. Held by a flush, and by what else needs lines that no flush changes.
    log: Mutex<ParityLog>,
    /// Held shared while what belongs together is read from several members, and alone while it is
    /// written.
    lines: RwLock<()>,
    groups: Groups,
    /// What nothing uses, and is to be given back.
    punches: punch::Punches,
    copied: Mutex<Copied>,
    /// Blocks that an opening for reading would have to write, by column and line. A salvage opens
    /// for reading, and then writes to an overlay in memory: the first flush writes them there.
    corrected: RwLock<BTreeMap<(usize, u64), BlockContent>>,
    /// Blocks of which the next writes keep a part: see [`Raid5::keep_parts`].
    kept_parts: Mutex<BTreeSet<u64>>,
    /// Sums of blocks that the next writes replace. The layer above makes them unknown before it
    /// writes: see [`Raid5::note_sums`].
    replaced: Mutex<BTreeMap<u64, u32>>,
    /// Lines in which something is wrong.
    suspects: Mutex<Vec<u64>>,
    sums: OnceLock<BlockSums>,
    /// Why a flush failed.
    broken: OnceLock<io::Error>,
}

/// Returns the number of blocks that one entry of the log can write.
fn room(record: &LayoutRecord) -> usize {
    let blocks = record.len() / BLOCK as u64;
    (blocks / ROOM_PART).clamp(*ROOM.start(), *ROOM.end()) as usize
}

/// Makes what a new layout has beside its record: the parity log, and the list of groups. With
/// `is_zeroed` all bytes of all members are zeros.
pub(super) fn create(dir: &dyn Dir, name: &str, record: &LayoutRecord, is_zeroed: bool) -> io::Result<()> {
    groups::create(dir, name, record, is_zeroed)?;
    log::create(dir, name, room(record))
}

/// Returns the name of the file with the log of a layout.
pub(super) fn log_name(name: &str) -> String {
    format!("{LOG_PREFIX}{name}")
}

/// Removes what a layout has beside its record.
pub(super) fn remove(dir: &dyn Dir, name: &str) -> io::Result<()> {
    log::remove(dir, name)?;
    groups::remove(dir, name)
}

/// Adds bytes to others by exclusive or.
fn add(sum: &mut [u8], bytes: &[u8]) {
    for (sum, byte) in sum.iter_mut().zip(bytes) {
        *sum ^= byte;
    }
}

/// Returns the range of the spans that lines have.
fn spans_of(lines: &std::ops::Range<u64>) -> std::ops::Range<u64> {
    lines.start * BLOCK as u64..lines.end * BLOCK as u64
}

impl Raid5 {
    /// Opens a RAID-5. Settles what a crash may have left half written.
    pub(super) fn new(members: Members, mode: OpenMode) -> io::Result<Raid5> {
        let (name, record) = (members.name.clone(), members.record());
        let LayoutKind::Raid5 { unit } = record.kind else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no RAID-5"));
        };
        let rows = Rows::new(record.width, unit);
        let places = CurrentPlaces::new(Places::of(&record));
        let groups = Groups::load(&*members.dir, &name, &record);
        let (log, lines) = ParityLog::open(&*members.dir, &name, record.uuid, mode)?;
        let mut raid = Raid5 {
            members,
            rows,
            places,
            pending: PendingBlocks::default(),
            room: log.room,
            patching: Mutex::new(()),
            log: Mutex::new(log),
            lines: RwLock::new(()),
            groups,
            punches: punch::Punches::default(),
            copied: Mutex::default(),
            corrected: RwLock::default(),
            kept_parts: Mutex::default(),
            replaced: Mutex::default(),
            suspects: Mutex::default(),
            sums: OnceLock::new(),
            broken: OnceLock::new(),
        };
        raid.replay(&lines)?;
        Ok(raid)
    }

    /// Lets the disk verify the blocks that it computes parities from. Without that, a rotten block
    /// would become what its parity says.
    pub(crate) fn verify_with(&self, sums: BlockSums) {
        let _ = self.sums.set(sums);
    }

    /// Returns the number of columns with content.
    pub(super) fn columns(&self) -> u64 {
        self.rows.parity() as u64
    }

    /// Returns the number of bytes of content in a row.
    pub(crate) fn row_len(&self) -> u64 {
        self.rows.row_len()
    }

    /// Notes the known sums of blocks that the next writes replace: (byte of the content, sum). A
    /// writer of content in use makes the sums unknown before it writes, because data and sums do
    /// not match until the write has ended.
    pub(crate) fn note_sums(&self, sums: impl Iterator<Item = (u64, u32)>) {
        let mut replaced = self.replaced.lock();
        if replaced.len() > MOST_REPLACED {
            // Failed writes have left sums behind. A block without a sum is not verified.
            replaced.clear();
        }
        replaced.extend(sums.map(|(at, sum)| (at / BLOCK as u64, sum)));
    }

    /// Returns whether a parity is ever computed from old content while all members are in. In
    /// narrower rows, that never needs fewer reads.
    pub(crate) fn reads_old_content(&self) -> bool {
        self.rows.parity() > 2
    }

    /// Returns the sum of what a write of a block replaces, if it is known and needed.
    fn replaced_sum(&self, block: u64) -> Option<u32> {
        if !self.reads_old_content() {
            return None;
        }
        let noted = self.replaced.lock().remove(&block);
        noted.or_else(|| self.known_sum(block))
    }

    /// Returns the sum of a block as it is now, if it is known.
    fn known_sum(&self, block: u64) -> Option<u32> {
        (self.sums.get()?.known)(block * BLOCK as u64)
    }

    /// Returns whether a content has a sum.
    fn has_sum(&self, content: &[u8], sum: u32) -> bool {
        self.sums.get().is_none_or(|sums| (sums.sum_of)(content) == sum)
    }

    /// Does something while nothing is written.
    pub(super) fn while_alone<T>(&self, act: impl FnOnce() -> T) -> T {
        let _log = self.log.lock();
        let _alone = self.lines.write();
        act()
    }

    /// Notes that lines were written.
    fn note_written(&self, lines: std::ops::Range<u64>) {
        self.members.stale.note_written(spans_of(&lines));
    }

    /// Returns where a block of a line is.
    fn place(&self, line: u64, column: usize) -> CopyPlace {
        self.rows.place(&self.places.load(), line, column)
    }

    /// Returns where a block of a line moves to, and the disk there, if it moves.
    fn target(&self, line: u64, column: usize) -> Option<(CopyPlace, Arc<Opened>)> {
        let places = self.places.load();
        let to = self.rows.target(&places, line, column)?;
        Some((to, self.members.target_disk(to.member, places.moving_since()?)?))
    }

    /// Returns the number of lines.
    fn number_of_lines(&self) -> u64 {
        Rows::lines(&self.places.load())
    }

    /// Returns the number of bytes of the content.
    fn content_len(&self) -> u64 {
        self.rows.len(&self.places.load())
    }

    /// Returns where a block of a line is, and its disk, if its member is in.
    fn stored(&self, line: u64, column: usize) -> (CopyPlace, Option<Arc<Opened>>) {
        let place = self.place(line, column);
        (place, self.members.disk(place.member))
    }

    fn check_end(&self, at: u64, len: usize) -> io::Result<()> {
        match at.checked_add(len as u64).is_some_and(|end| end <= self.content_len()) {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "past the end of the RAID-5")),
        }
    }

    fn check_broken(&self) -> io::Result<()> {
        self.broken.get().map_or(Ok(()), |error| Err(super::members::like(error)))
    }

    /// Splits a range of the content into parts of one unit each. Returns the line, the column, the
    /// byte of the line's block, and the bytes of the range of each.
    fn units(
        &self,
        at: u64,
        len: usize,
    ) -> impl Iterator<Item = (u64, usize, u64, std::ops::Range<usize>)> + use<'_> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let place = at + from as u64;
            let to = len.min(from + usize::try_from(self.rows.rest_of_unit(place)).unwrap_or(usize::MAX));
            let (line, column) = self.rows.find(place / BLOCK as u64);
            let range = from..to;
            from = to;
            (!range.is_empty()).then_some((line, column, place % BLOCK as u64, range))
        })
    }

    /// Reads what the members have of a range, each part from its member, or else from the others.
    fn read_stored(&self, buf: &mut [u8], at: u64, read: ReadDisk<'_>) -> io::Result<()> {
        // Nothing else is written to these places meanwhile.
        let _held = self.places.load();
        for (line, column, within, range) in self.units(at, buf.len()) {
            let (place, disk) = self.stored(line, column);
            let part = &mut buf[range.clone()];
            let failed = match &disk {
                None => None,
                Some(disk) => match read(&*disk.0, part, place.offset + within) {
                    Ok(()) => {
                        self.correct(part, line, column, within);
                        continue;
                    }
                    Err(error) => Some((disk, error)),
                },
            };
            let restored = {
                let _lines = self.lines.read();
                self.restore(part, line, column, within, read)
            };
            match (restored, failed) {
                (Ok(()), None) => {}
                (Ok(()), Some((disk, error))) => {
                    let len = range.len() as u64;
                    self.members.look_after(at + range.start as u64, len, place.member, disk, &error);
                }
                // The error of the disk says more than that of the restoration.
                (Err(error), failed) => return Err(failed.map_or(error, |(_, error)| error)),
            }
        }
        Ok(())
    }

    /// Computes a part of a unit from the other units of its row. `within` is the byte of the
    /// line's block. The caller excludes writes to these lines.
    fn restore(
        &self,
        part: &mut [u8],
        line: u64,
        column: usize,
        within: u64,
        read: ReadDisk<'_>,
    ) -> io::Result<()> {
        part.fill(0);
        let mut other = vec![0; part.len()];
        for number in (0..self.rows.width()).filter(|number| *number != column) {
            let (place, disk) = self.stored(line, number);
            let disk = disk.ok_or_else(no_copy)?;
            read(&*disk.0, &mut other, place.offset + within)?;
            self.correct(&mut other, line, number, within);
            add(part, &other);
        }
        Ok(())
    }

    /// Replaces what was read of a unit where an opening for reading knows better.
    fn correct(&self, part: &mut [u8], line: u64, column: usize, within: u64) {
        if self.members.writable {
            return;
        }
        let from = line * BLOCK as u64 + within;
        let to = from + part.len() as u64;
        let lines = (column, line)..(column, to.div_ceil(BLOCK as u64));
        for ((_, line), content) in self.corrected.read().range(lines) {
            let start = line * BLOCK as u64;
            let (first, last) = (from.max(start), to.min(start + BLOCK as u64));
            let bytes = &content[(first - start) as usize..(last - start) as usize];
            part[(first - from) as usize..(last - from) as usize].copy_from_slice(bytes);
        }
    }

    /// Reads a range: what is pending, and the rest from the members.
    fn read(&self, buf: &mut [u8], at: u64, read: ReadDisk<'_>) -> io::Result<()> {
        self.check_end(at, buf.len())?;
        for part in self.pending.read(buf, at) {
            let from = at + part.start as u64;
            self.read_stored(&mut buf[part], from, read)?;
        }
        Ok(())
    }

    /// Reads without waiting. Whatever needs more than one member is left to a read that may wait.
    fn try_read(&self, buf: &mut [u8], at: u64) -> io::Result<bool> {
        let _held = self.places.load();
        self.check_end(at, buf.len())?;
        for part in self.pending.read(buf, at) {
            let (buf, at) = (&mut buf[part.clone()], at + part.start as u64);
            for (line, column, within, range) in self.units(at, buf.len()) {
                let (place, disk) = self.stored(line, column);
                let Some(disk) = disk else { return Ok(false) };
                let read = disk.0.try_read_at(&mut buf[range.clone()], place.offset + within);
                if !read.unwrap_or(false) {
                    return Ok(false);
                }
                self.correct(&mut buf[range], line, column, within);
            }
        }
        Ok(true)
    }

    /// Notes blocks, by a byte in each, that the next writes replace as a whole although a part of
    /// their content stays. After a crash, whoever writes takes that part from here again. So it is
    /// logged like that of a block that is written in part. What was noted before is forgotten.
    pub(crate) fn keep_parts(&self, bytes: impl Iterator<Item = u64>) {
        *self.kept_parts.lock() = bytes.map(|at| at / BLOCK as u64).collect();
    }

    /// Takes a write. It is on the members after the next sync.
    fn write<'b>(&self, parts: impl Iterator<Item = &'b [u8]>, at: u64) -> io::Result<()> {
        self.check_broken()?;
        let mut parts: Vec<&[u8]> = parts.collect();
        let len = parts.iter().map(|part| part.len()).sum();
        self.check_end(at, len)?;
        let end = at + len as u64;
        self.punches.forget(&(at..end));
        let mut whole = Vec::with_capacity(len / BLOCK + 2);
        let keeps_parts = !self.kept_parts.lock().is_empty();
        let mut ends = Vec::new();
        let mut from = at;
        while from < end {
            let block = from / BLOCK as u64;
            let to = end.min((block + 1) * BLOCK as u64);
            let mut content = zeros();
            let inside = (from % BLOCK as u64) as usize..(from % BLOCK as u64 + to - from) as usize;
            take(&mut parts, &mut content[inside.clone()]);
            match inside.len() == BLOCK {
                true => {
                    let is_patched = keeps_parts && self.kept_parts.lock().remove(&block);
                    let old_sum = self.replaced_sum(block);
                    whole.push((block, PendingBlock { content, is_patched, old_sum }));
                }
                false => ends.push((block, content, inside)),
            }
            from = to;
        }
        let mut waiting = self.pending.add(whole);
        if !ends.is_empty() {
            let _patching = self.patching.lock();
            for (block, content, inside) in ends {
                let mut old = zeros();
                self.read(&mut old[..], block * BLOCK as u64, &|disk, buf, at| disk.read_at(buf, at))?;
                old[inside.clone()].copy_from_slice(&content[inside]);
                let old_sum = self.replaced_sum(block);
                let pending = PendingBlock { content: old, is_patched: true, old_sum };
                waiting = self.pending.add(vec![(block, pending)]);
            }
        }
        if waiting >= self.room {
            self.flush(crate::disk::SyncPurpose::Apply)?;
        }
        Ok(())
    }

    /// Calls `visit` for the disk and the bytes of each part of a range whose member is in.
    fn visit(&self, at: u64, len: u64, visit: &dyn Fn(&dyn Disk, u64, u64)) {
        let len = len.min(self.content_len().saturating_sub(at)) as usize;
        for (line, column, within, range) in self.units(at, len) {
            if let (place, Some(disk)) = self.stored(line, column) {
                visit(&*disk.0, place.offset + within, range.len() as u64);
            }
        }
    }
}

/// Fills `buf` with the first bytes of `parts`, and removes them there.
fn take(parts: &mut Vec<&[u8]>, buf: &mut [u8]) {
    let mut filled = 0;
    let mut used = 0;
    for part in parts.iter_mut() {
        let len = part.len().min(buf.len() - filled);
        buf[filled..filled + len].copy_from_slice(&part[..len]);
        *part = &part[len..];
        filled += len;
        if !part.is_empty() {
            break;
        }
        used += 1;
    }
    parts.drain(..used);
}

#[cfg(test)]
mod tests;
