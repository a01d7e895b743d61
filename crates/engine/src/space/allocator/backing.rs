//! The room in the file systems below the physical volumes, and its division among areas.

use super::{Allocator, PvState};
use crate::area::Area;
use crate::disk::Backing;
use crate::error::{Error, Result};
use crate::space::reservations::{AreaRoom, BackingRoom, Space};
use std::collections::BTreeMap;

/// The free extents on a file system: the number in each area, and the bytes for all of them.
#[derive(Default)]
struct Below {
    free: BTreeMap<Area, u64>,
    bytes: u64,
}

/// The parts of file systems that an area has: (free extents there, bytes for them).
type Parts = BTreeMap<Area, Vec<(u64, u64)>>;

impl Allocator {
    /// Measures the room for free extents, and for logs, when `margin` bytes of each file system
    /// are kept for the rest of the pool. `data` is the file system of the logs; `ahead` bytes of
    /// it are already used by logs, and are also promised, so they count as available. Extents that
    /// were set aside are free again as far as there is room for them. Returns the room, and the
    /// number of such extents by area.
    pub(crate) fn backing(
        &mut self,
        space: &Space,
        margin: u64,
        data: Option<Backing>,
        ahead: u64,
    ) -> Result<(BackingRoom, BTreeMap<Area, u64>)> {
        let left = |below: &Backing| below.available.saturating_sub(margin);
        let of_pvs = self.measure_pvs(data.as_ref(), ahead)?;
        let mut areas: BTreeMap<Area, AreaRoom> = BTreeMap::new();
        let mut taken_back = BTreeMap::new();
        let mut below: BTreeMap<u64, Below> = BTreeMap::new();
        for ((id, state), of_pv) in self.pvs.iter_mut().zip(of_pvs) {
            let room = of_pv.as_ref().map_or(u64::MAX, |of_pv| left(of_pv) / self.extent_size);
            let kept = (state.aside.len() as u64).saturating_sub(room) as usize;
            let back = state.aside.split_off(kept);
            *taken_back.entry(state.area).or_default() += back.len() as u64;
            state.free += back.len() as u64;
            state.file_system = of_pv.as_ref().map(|of_pv| of_pv.file_system);
            self.areas.index(state.area).free.extend(back.into_iter().map(|extent| (*id, extent)));
            let area = areas.entry(state.area).or_insert(AreaRoom::NONE);
            let Some(of_pv) = of_pv else {
                area.solid += state.free;
                continue;
            };
            let known =
                below.entry(of_pv.file_system).or_insert(Below { bytes: u64::MAX, ..Below::default() });
            *known.free.entry(state.area).or_default() += state.free;
            known.bytes = known.bytes.min(left(&of_pv));
            let same = data.as_ref().is_some_and(|data| data.file_system == of_pv.file_system);
            area.shared |= same && state.gives();
        }
        self.areas.0.values_mut().for_each(|area| area.index.shunned.clear());
        self.rooms.of_logs = data.as_ref().map(|data| data.file_system);
        self.rooms.by_file_system = below.iter().map(|(id, below)| (*id, below.bytes)).collect();
        for (area, parts) in divide(below.into_values(), space.needed(), self.extent_size) {
            let room = areas.entry(area).or_insert(AreaRoom::NONE);
            room.sparse = parts.iter().map(|(free, _)| free).sum();
            room.sparse_bytes = match parts[..] {
                [(_, bytes)] => bytes,
                // The rests of two file systems do not add up to an extent.
                _ => {
                    parts.iter().map(|(free, bytes)| (*free).min(bytes / self.extent_size)).sum::<u64>()
                        * self.extent_size
                }
            };
        }
        let log_bytes = data.as_ref().map_or(u64::MAX, left);
        Ok((BackingRoom { areas, log_bytes }, taken_back))
    }

    /// Asks each physical volume for the room below it. `None`: it has its space already, or has
    /// failed.
    fn measure_pvs(&self, data: Option<&Backing>, ahead: u64) -> Result<Vec<Option<Backing>>> {
        let measure = |state: &PvState| {
            if state.failed {
                // A failed physical volume gets nothing, and may not answer.
                return Ok(None);
            }
            let fail = |e| Error::io(format!("determine the free space of {}", state.pv.path), e);
            let mut of_pv = state.pv.disk.backing_available().map_err(fail)?;
            if let (Some(of_pv), Some(data)) = (&mut of_pv, data)
                && of_pv.file_system == data.file_system
            {
                of_pv.available += ahead;
            }
            Ok(of_pv)
        };
        self.pvs.values().map(measure).collect()
    }
}

/// Divides file systems among the areas that use them, so that nothing is promised twice. Each area
/// first gets what its promises `needed` in extents. What is left is divided by the number of free
/// extents.
fn divide(all: impl Iterator<Item = Below>, mut needed: BTreeMap<Area, u64>, extent_size: u64) -> Parts {
    let mut parts = Parts::new();
    for Below { free, bytes } in all {
        let mut left = bytes;
        let mut got: BTreeMap<Area, u64> = BTreeMap::new();
        if free.len() > 1 {
            for (area, free) in &free {
                let needed = needed.entry(*area).or_default();
                let extents = (*needed).min(*free).min(left / extent_size);
                *needed -= extents;
                left -= extents * extent_size;
                got.insert(*area, extents * extent_size);
            }
        }
        let all_free: u64 = free.values().sum();
        for (area, free) in free {
            let share = u128::from(left) * u128::from(free) / u128::from(all_free.max(1));
            let bytes = got.get(&area).copied().unwrap_or(0) + share as u64;
            parts.entry(area).or_default().push((free, bytes));
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENT: u64 = 1 << 20;

    fn below(free: &[(Area, u64)], mib: u64) -> Below {
        Below { free: free.iter().copied().collect(), bytes: mib * EXTENT }
    }

    #[test]
    fn one_area_has_the_whole_file_system() {
        let all = [below(&[(Area::Common, 5)], 3), below(&[(Area::Common, 2)], 9)];
        let parts = divide(all.into_iter(), BTreeMap::from([(Area::Common, 4)]), EXTENT);
        assert_eq!(parts, Parts::from([(Area::Common, vec![(5, 3 * EXTENT), (2, 9 * EXTENT)])]));
    }

    #[test]
    fn promises_come_first_and_nothing_is_given_twice() {
        let (one, two) = (Area::Common, Area::Only(7));
        let all = [below(&[(one, 30), (two, 10)], 12), below(&[(two, 4)], 2)];
        let parts = divide(all.into_iter(), BTreeMap::from([(one, 1), (two, 7)]), EXTENT);
        // Four are left of the first one: three for the area with three times the extents.
        assert_eq!(parts[&one], [(30, 4 * EXTENT)]);
        assert_eq!(parts[&two], [(10, 8 * EXTENT), (4, 2 * EXTENT)]);
        // More is promised than there is.
        let all = [below(&[(one, 30), (two, 10)], 5)];
        let parts = divide(all.into_iter(), BTreeMap::from([(one, 4), (two, 4)]), EXTENT);
        assert_eq!((parts[&one][0].1, parts[&two][0].1), (4 * EXTENT, EXTENT));
    }
}
