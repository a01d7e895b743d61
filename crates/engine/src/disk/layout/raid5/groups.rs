//! Which lines are known to be consistent: their parity is the exclusive or of their blocks.
//!
//! A line is consistent from its first write on. But a line that was never written has what the
//! disks had before, and a rebuild copies only what is in use. If nothing is known of a group of
//! lines, a new parity is computed from all blocks of its line, not from the old parity. That is
//! right in any case, and needs more reads where rows are wide.
//!
//! The file `rows-NAME` of the data directory has a bit for each group. A file that is missing or
//! damaged says that nothing is known.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `HCGROUPS` |
//! | 8..12 | CRC32C of the bytes from 12 on |
//! | 12..16 | format version |
//! | 16..32 | UUID of the layout |
//! | 32..40 | number of groups |
//! | 40.. | a bit for each group, the lowest one first |

use super::rows::BLOCK;
use crate::codec::{Reader, Writer, crc32c};
use crate::disk::layout::record::LayoutRecord;
use crate::disk::layout::replace_file;
use crate::disk::layout::spans::CopiedSpan;
use crate::disk::{Dir, OpenMode, SyncPurpose};
use parking_lot::RwLock;
use std::io;
use uuid::Uuid;

const MAGIC: &[u8; 8] = b"HCGROUPS";
const VERSION: u32 = 1;
/// Number of lines of a group: 4 MiB of each place.
pub(super) const GROUP: u64 = 1024;
/// How the names of these files begin.
pub(crate) const FILE_PREFIX: &str = "rows-";
/// The beginning of the name of a list that is being written. No layout has such a name.
const NEW_PREFIX: &str = "rows-~";

/// What is known of the groups of a layout.
pub(super) struct Groups {
    layout: Uuid,
    consistent: RwLock<Vec<bool>>,
}

fn file_name(name: &str) -> String {
    format!("{FILE_PREFIX}{name}")
}

/// Returns the number of groups of a layout.
fn number_of(record: &LayoutRecord) -> usize {
    let lines = record.spans.last().map_or(0, CopiedSpan::end) / BLOCK as u64;
    lines.div_ceil(GROUP) as usize
}

fn encode(layout: &Uuid, groups: &[bool]) -> Vec<u8> {
    let mut w = Writer::default();
    w.bytes(MAGIC).u32(0).u32(VERSION).uuid(layout).u64(groups.len() as u64);
    for eight in groups.chunks(8) {
        w.u8(eight.iter().enumerate().map(|(n, bit)| u8::from(*bit) << n).sum());
    }
    let crc = crc32c(&w.0[12..]);
    w.0[8..12].copy_from_slice(&crc.to_le_bytes());
    w.0
}

/// Decodes a list. It may have fewer groups than the layout, if a crash came while the layout grew:
/// nothing is known of the others.
fn decode(bytes: &[u8], layout: &Uuid, number: usize) -> Option<Vec<bool>> {
    let mut r = Reader::new(bytes);
    let is_magic = r.take(8)? == MAGIC;
    let (crc, version) = (r.u32()?, r.u32()?);
    (is_magic && crc == crc32c(&bytes[12..]) && version == VERSION).then_some(())?;
    (r.uuid()? == *layout).then_some(())?;
    let known = usize::try_from(r.u64::<u64>()?).ok().filter(|known| *known <= number)?;
    let bits = r.take(known.div_ceil(8))?;
    r.end((0..number).map(|n| n < known && bits[n / 8] & 1 << (n % 8) != 0).collect())
}

/// Writes the list. When this returns, it survives a power loss.
fn save(dir: &dyn Dir, name: &str, layout: &Uuid, groups: &[bool]) -> io::Result<()> {
    let new = format!("{NEW_PREFIX}{name}");
    replace_file(dir, &file_name(name), &new, &encode(layout, groups), SyncPurpose::Layout)
}

/// Makes the list of a new layout. `is_consistent` says what is known of all lines.
pub(super) fn create(
    dir: &dyn Dir,
    name: &str,
    record: &LayoutRecord,
    is_consistent: bool,
) -> io::Result<()> {
    save(dir, name, &record.uuid, &vec![is_consistent; number_of(record)])
}

/// Removes the list of a layout.
pub(super) fn remove(dir: &dyn Dir, name: &str) -> io::Result<()> {
    match dir.remove(&file_name(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Groups {
    /// Loads what is known.
    pub(super) fn load(dir: &dyn Dir, name: &str, record: &LayoutRecord) -> Groups {
        let number = number_of(record);
        let stored = || {
            let disk = dir.open(&file_name(name), OpenMode::ReadOnly)?;
            let mut bytes = vec![0; disk.len()?.min(40 + number.div_ceil(8) as u64) as usize];
            disk.read_at(&mut bytes, 0).map(|()| bytes)
        };
        let known = stored().ok().and_then(|bytes| decode(&bytes, &record.uuid, number));
        Groups { layout: record.uuid, consistent: RwLock::new(known.unwrap_or_else(|| vec![false; number])) }
    }

    /// Returns whether all lines of a line's group are consistent.
    pub(super) fn are_consistent(&self, line: u64) -> bool {
        self.consistent.read().get((line / GROUP) as usize).copied().unwrap_or(false)
    }

    /// Forgets the group to which lines from `first` on are about to be added, durably, if nothing
    /// is known of them.
    pub(super) fn make_way(&self, dir: &dyn Dir, name: &str, first: u64) -> io::Result<()> {
        match first.is_multiple_of(GROUP) || !self.are_consistent(first) {
            true => Ok(()),
            false => self.change(dir, name, |group, known| known && group != first / GROUP),
        }
    }

    /// Adds the groups of new content, durably. It begins at line `first`. `is_consistent` says
    /// what is known of its lines.
    pub(super) fn extend(
        &self,
        dir: &dyn Dir,
        name: &str,
        record: &LayoutRecord,
        (first, is_consistent): (u64, bool),
    ) -> io::Result<()> {
        let mut new = self.consistent.read().clone();
        new.resize(first.div_ceil(GROUP) as usize, false);
        new.resize(number_of(record), is_consistent);
        save(dir, name, &self.layout, &new)?;
        *self.consistent.write() = new;
        Ok(())
    }

    /// Returns what would be known after a change.
    pub(super) fn known(&self, change: impl Fn(u64, bool) -> bool) -> Vec<bool> {
        self.consistent.read().iter().zip(0..).map(|(bit, group)| change(group, *bit)).collect()
    }

    /// Changes what is known, durably.
    pub(super) fn change(
        &self,
        dir: &dyn Dir,
        name: &str,
        change: impl Fn(u64, bool) -> bool,
    ) -> io::Result<()> {
        let new = self.known(change);
        save(dir, name, &self.layout, &new)?;
        *self.consistent.write() = new;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let layout = Uuid::from_u128(7);
        let groups = [true, false, true, false, false, false, false, false, true];
        let bytes = encode(&layout, &groups);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, GOLDEN);
        assert_eq!(decode(&bytes, &layout, 9).unwrap(), groups);
        assert_eq!(decode(&bytes, &layout, 8), None);
        assert_eq!(decode(&bytes, &layout, 10).unwrap(), [&groups[..], &[false]].concat());
        assert_eq!(decode(&bytes, &Uuid::nil(), 9), None);
        for byte in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[byte] ^= 1;
            assert_eq!(decode(&bad, &layout, 9), None, "byte {byte}");
            assert_eq!(decode(&bytes[..byte], &layout, 9), None);
        }
    }

    #[test]
    fn new_content_is_known_as_far_as_it_is_zeros() {
        let lines = |number: u64| {
            let mut record = crate::disk::layout::testing::record_of_rows();
            record.spans = vec![CopiedSpan { start: 0, len: number * BLOCK as u64, places: Vec::new() }];
            record
        };
        let dir = crate::disk::MemDir::new();
        for (was, first, is_zeroed, expected) in [
            (true, GROUP, false, [true, false, false]),
            (true, GROUP, true, [true, true, true]),
            (true, GROUP + 256, false, [true, false, false]),
            (true, GROUP + 256, true, [true, true, true]),
            (false, GROUP + 256, true, [false, false, true]),
        ] {
            create(&dir, "m", &lines(first), was).unwrap();
            let groups = Groups::load(&dir, "m", &lines(first));
            let grown = lines(3 * GROUP);
            if !is_zeroed {
                groups.make_way(&dir, "m", first).unwrap();
                // A crash may come here, and after the record has the new lines.
                let known = Groups::load(&dir, "m", &grown);
                assert!(!known.are_consistent(first) && !known.are_consistent(2 * GROUP));
            }
            groups.extend(&dir, "m", &grown, (first, is_zeroed)).unwrap();
            for groups in [groups, Groups::load(&dir, "m", &grown)] {
                let known = [0, 1, 2].map(|group| groups.are_consistent(group * GROUP));
                assert_eq!(known, expected, "{was} up to line {first}, then {is_zeroed}");
            }
        }
        // A crash left the list as it was. Nothing is known of what it does not have.
        create(&dir, "m", &lines(GROUP), true).unwrap();
        let groups = Groups::load(&dir, "m", &lines(2 * GROUP));
        groups.extend(&dir, "m", &lines(3 * GROUP), (2 * GROUP, true)).unwrap();
        assert_eq!([0, 1, 2].map(|group| groups.are_consistent(group * GROUP)), [true, false, true]);
    }

    const GOLDEN: &str =
        "484347524f555053a34b1935010000000000000000000000000000000000000709000000000000000501";
}
