//! The sums of a catalog's blocks. They are read when needed, kept in bounded memory, and written
//! before each sync.

use super::layout::{BLOCK, GROUP, place, sums_of};
use crate::disk::Disk;
use std::collections::BTreeMap;
use std::io;

/// The number of groups whose sums are kept in memory. Each group stands for 4 MiB of the catalog,
/// so 4 MiB of memory stand for 4 GiB.
const KEPT: usize = 1024;

/// The sums of one group.
struct Group {
    sums: Box<[u32; GROUP as usize]>,
    /// The sums have changed and are not yet written.
    dirty: bool,
    /// The group was used since the hand last reached it.
    used: bool,
}

/// The sums in memory, as a cache of those in the file.
pub(super) struct Sums {
    groups: BTreeMap<u64, Group>,
    /// A bit for each block that was written since the file was opened, by group.
    written: BTreeMap<u64, [u64; GROUP as usize / 64]>,
    kept: usize,
    /// The group at which the next search for a group to drop begins.
    hand: u64,
}

impl Sums {
    pub(super) fn new() -> Sums {
        Sums { groups: BTreeMap::new(), written: BTreeMap::new(), kept: KEPT, hand: 0 }
    }

    #[cfg(test)]
    pub(super) fn keep(&mut self, groups: usize) {
        self.kept = groups.max(1);
    }

    #[cfg(test)]
    pub(super) fn groups(&self) -> usize {
        self.groups.len()
    }

    fn group(&mut self, disk: &dyn Disk, number: u64) -> io::Result<&mut Group> {
        if !self.groups.contains_key(&number) {
            self.make_room(disk)?;
            let mut bytes = [0; BLOCK];
            disk.read_at(&mut bytes, sums_of(number))?;
            let mut sums = Box::new([0; GROUP as usize]);
            for (sum, bytes) in sums.iter_mut().zip(bytes.chunks_exact(4)) {
                *sum = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
            self.groups.insert(number, Group { sums, dirty: false, used: true });
        }
        let group = self.groups.get_mut(&number).ok_or(io::ErrorKind::NotFound)?;
        group.used = true;
        Ok(group)
    }

    /// Drops groups that were not used lately, when there are too many.
    fn make_room(&mut self, disk: &dyn Disk) -> io::Result<()> {
        while self.groups.len() >= self.kept {
            let next = self.groups.range_mut(self.hand..).next();
            let Some((number, group)) = next else {
                self.hand = 0;
                continue;
            };
            self.hand = number + 1;
            if group.used {
                group.used = false;
                continue;
            }
            let number = *number;
            write(disk, number, group)?;
            self.groups.remove(&number);
        }
        Ok(())
    }

    /// Returns the sum of a block, or 0 if it was never written.
    pub(super) fn get(&mut self, disk: &dyn Disk, block: u64) -> io::Result<u32> {
        let (group, index) = place(block);
        Ok(self.group(disk, group)?.sums[index])
    }

    /// Returns whether the block was written since the file was opened.
    pub(super) fn was_written(&self, block: u64) -> bool {
        let (group, index) = place(block);
        self.written.get(&group).is_some_and(|bits| bits[index / 64] & 1 << (index % 64) != 0)
    }

    /// Sets the sum of a block that is written.
    pub(super) fn set(&mut self, disk: &dyn Disk, block: u64, sum: u32) -> io::Result<()> {
        let (number, index) = place(block);
        let bits = self.written.entry(number).or_default();
        bits[index / 64] |= 1 << (index % 64);
        let group = self.group(disk, number)?;
        if group.sums[index] != sum {
            group.sums[index] = sum;
            group.dirty = true;
        }
        Ok(())
    }

    /// Forgets the sums of the blocks from `block` on, because the store ends there.
    pub(super) fn cut(&mut self, disk: &dyn Disk, block: u64) -> io::Result<()> {
        let (number, index) = place(block.max(1));
        self.groups.retain(|group, _| *group <= number);
        if index == 0 {
            self.groups.remove(&number);
            return Ok(());
        }
        let group = self.group(disk, number)?;
        group.dirty |= group.sums[index..].iter().any(|sum| *sum != 0);
        group.sums[index..].fill(0);
        Ok(())
    }

    /// Writes the sums that have changed.
    pub(super) fn flush(&mut self, disk: &dyn Disk) -> io::Result<()> {
        self.groups.iter_mut().try_for_each(|(number, group)| write(disk, *number, group))
    }
}

fn write(disk: &dyn Disk, number: u64, group: &mut Group) -> io::Result<()> {
    if group.dirty {
        let mut bytes = [0; BLOCK];
        for (bytes, sum) in bytes.chunks_exact_mut(4).zip(group.sums.iter()) {
            bytes.copy_from_slice(&sum.to_le_bytes());
        }
        disk.write_at(&bytes, sums_of(number))?;
        group.dirty = false;
    }
    Ok(())
}
