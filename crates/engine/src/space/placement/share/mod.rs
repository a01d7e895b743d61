//! Share: the physical volume for each part of a branch, by hashing (Brinkmann, Salzwedel and
//! Scheideler 2002).
//!
//! Each physical volume covers intervals of a circle, in proportion to its size. An item hashes to
//! a point of the circle. Among the volumes that cover this point, rendezvous hashing chooses one.
//! A volume that is added takes its share from all others, and nothing moves between those.
//!
//! There are three differences to the paper, which make the shares even and keep items in place:
//!
//! - A volume has many short intervals instead of one. What exceeds whole rounds of the circle is
//!   cut into [`Parameters::intervals`] pieces at hashed places.
//! - Whole rounds are exact. They need no interval.
//! - The length of an interval does not depend on the other volumes, as long as the total size
//!   stays within wide limits of a fixed unit. In the paper, each new volume shortens all
//!   intervals. The unit follows from the volumes in the order of their addition: see
//!   [`Parameters::of`].

use crate::ids::BranchId;
use std::ops::Range;

/// The largest number of intervals of a physical volume.
const MOST_INTERVALS: u64 = 128;
/// With this number of volumes times intervals, the number of intervals of a volume begins to
/// shrink.
const FEW_INTERVALS: u64 = 32_768;
/// The least number of intervals of a physical volume.
const LEAST_INTERVALS: u64 = 8;
/// The number of rounds of the circle that all volumes cover at least together.
const LEAST_STRETCH: u64 = 8;
/// A unit that was set with fewer volumes than this holds for longer. Few volumes may cover the
/// circle many times without a long search.
const FEW: u64 = 8;

/// A physical volume, as Share sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Weight {
    /// The number of the physical volume.
    pub(crate) pv: u32,
    /// Its size as far as it counts: hundredths of extents.
    pub(crate) capacity: u64,
    /// Whether it takes data. One that does not has no share, but still counts for the unit.
    pub(crate) gives: bool,
}

/// The places of all items.
#[derive(Debug, Default)]
pub(crate) struct ShareMap {
    disks: Vec<ShareDisk>,
    /// The indexes of the volumes that cover whole rounds.
    everywhere: Vec<u16>,
    /// The first point of each frame. Within a frame, the same volumes cover each point.
    starts: Vec<u64>,
    /// The end of each frame's part of `members`.
    ends: Vec<usize>,
    /// (index in `disks`, number of intervals that cover the frame).
    members: Vec<(u16, u16)>,
}

/// A physical volume that takes data.
#[derive(Debug)]
struct ShareDisk {
    pv: u32,
    key: u64,
    /// Number of whole rounds of the circle that the volume covers.
    rounds: u64,
    /// The number of tickets in the draw for points that no volume covers.
    tickets: u64,
}

/// What the intervals of all volumes depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Parameters {
    /// The total size that covers the circle `stretch` times.
    unit: u64,
    /// Number of rounds of the circle that `unit` covers.
    stretch: u64,
    /// Number of intervals of each volume.
    intervals: u64,
}

impl Parameters {
    /// Returns the parameters for these volumes, which are in the order of their numbers. A volume
    /// that is added last changes them only when the total size, or the number of volumes, has
    /// grown much since they last changed: about 32 times for the first volumes, later twice.
    fn of(weights: &[Weight]) -> Parameters {
        let (mut unit, mut count, mut total) = (0, 0, 0);
        for (index, weight) in (1..).zip(weights) {
            total += weight.capacity;
            let factor = if count < FEW { 32 } else { 2 };
            if total > factor * unit || index > factor * count {
                (unit, count) = (total, index);
            }
        }
        // 3 ln n, rounded up to the next power of two of n.
        let log2 = u64::from(count.checked_ilog2().unwrap_or(0)) + 1;
        let stretch = (log2 * 2_079).div_ceil(1000).max(LEAST_STRETCH);
        let intervals = (FEW_INTERVALS / count.max(1)).clamp(LEAST_INTERVALS, MOST_INTERVALS);
        Parameters { unit: unit.max(1), stretch, intervals }
    }
}

impl ShareMap {
    /// Makes the map of these physical volumes, which are in the order of their numbers.
    pub(crate) fn new(weights: &[Weight]) -> ShareMap {
        ShareMap::with(weights, Parameters::of(weights))
    }

    fn with(weights: &[Weight], parameters: Parameters) -> ShareMap {
        let Parameters { unit, stretch, intervals } = parameters;
        let largest = weights.iter().map(|w| w.capacity).max().unwrap_or(0).max(1);
        let mut map = ShareMap::default();
        let mut edges = Vec::new();
        let mut active: Vec<(u16, u16)> = Vec::new();
        for weight in weights.iter().filter(|w| w.gives && w.capacity > 0) {
            let Ok(index) = u16::try_from(map.disks.len()) else { break };
            let key = mix(u64::from(weight.pv) + 1);
            // The length that the volume covers, where a round is 2^64.
            let length = (u128::from(stretch * weight.capacity) << 64) / u128::from(unit);
            let rounds = u64::try_from(length >> 64).unwrap_or(u64::MAX);
            let tickets = 1 + 63 * weight.capacity / largest;
            map.everywhere.extend((rounds > 0).then_some(index));
            map.disks.push(ShareDisk { pv: weight.pv, key, rounds, tickets });
            let piece = length as u64 / intervals;
            for number in 0..if piece > 0 { intervals } else { 0 } {
                let start = mix(key.wrapping_add(mix(number)));
                let end = start.wrapping_add(piece);
                edges.push((start, index, true));
                edges.push((end, index, false));
                if end < start {
                    count(&mut active, index, true);
                }
            }
        }
        edges.sort_unstable();
        map.add_frames(&edges, active);
        map
    }

    /// Adds the frames between the edges of intervals. `active` are the intervals that cover
    /// point 0 because they go over the end of the circle.
    fn add_frames(&mut self, edges: &[(u64, u16, bool)], mut active: Vec<(u16, u16)>) {
        let mut start = 0;
        for at_point in edges.chunk_by(|a, b| a.0 == b.0) {
            if at_point[0].0 > start {
                self.add_frame(start, &active);
            }
            start = at_point[0].0;
            // An interval may begin where another one of the same volume ends.
            at_point.iter().filter(|edge| edge.2).for_each(|edge| count(&mut active, edge.1, true));
            at_point.iter().filter(|edge| !edge.2).for_each(|edge| count(&mut active, edge.1, false));
        }
        self.add_frame(start, &active);
    }

    fn add_frame(&mut self, start: u64, active: &[(u16, u16)]) {
        self.starts.push(start);
        self.members.extend_from_slice(active);
        self.ends.push(self.members.len());
    }

    /// Returns the part of `members` that covers a point.
    fn frame(&self, point: u64) -> &[(u16, u16)] {
        let after = self.starts.partition_point(|start| *start <= point);
        let Some(&end) = after.checked_sub(1).and_then(|frame| self.ends.get(frame)) else { return &[] };
        let start = after.checked_sub(2).and_then(|frame| self.ends.get(frame)).copied().unwrap_or(0);
        self.members.get(start..end).unwrap_or(&[])
    }

    /// Returns the place of an item, or `None` if no physical volume takes data.
    pub(crate) fn place(&self, item: u64) -> Option<u32> {
        let covering = self.covering(item).map(|(index, rounds)| self.score(item, index, rounds));
        match covering.max() {
            Some((_, pv)) => Some(pv),
            None => self.ranking(item).first().copied(),
        }
    }

    /// Returns all physical volumes that take data, in the order in which they are tried for an
    /// item. The first is its place.
    pub(crate) fn ranking(&self, item: u64) -> Vec<u32> {
        let mut best = vec![None; self.disks.len()];
        for (index, rounds) in self.covering(item) {
            best[index] = best[index].max(Some(self.score(item, index, rounds)));
        }
        let scored = self.disks.iter().zip(best).enumerate().map(|(index, (disk, best))| match best {
            Some(best) => (true, best),
            // Weighted rendezvous hashing over those that do not cover the point.
            None => (false, self.score(!item, index, 0..disk.tickets)),
        });
        let mut scored: Vec<(bool, (u64, u32))> = scored.collect();
        scored.sort_unstable_by(|one, other| other.cmp(one));
        scored.into_iter().map(|(_, (_, pv))| pv).collect()
    }

    /// Returns the volumes that cover an item's point, by their index, and the numbers of the
    /// rounds in which they do. A volume may come twice, with different rounds.
    fn covering(&self, item: u64) -> impl Iterator<Item = (usize, Range<u64>)> {
        let whole = self.everywhere.iter().map(|index| {
            let index = usize::from(*index);
            (index, 0..self.disks[index].rounds)
        });
        let further = self.frame(mix(item)).iter().map(|(index, count)| {
            let (index, count) = (usize::from(*index), u64::from(*count));
            let first = self.disks[index].rounds;
            (index, first..first + count)
        });
        whole.chain(further)
    }

    /// Returns the largest of the numbers that a volume draws for an item in these rounds, and the
    /// volume.
    fn score(&self, item: u64, index: usize, rounds: Range<u64>) -> (u64, u32) {
        let ShareDisk { pv, key, .. } = self.disks[index];
        let draw = |round: u64| mix(item ^ key.wrapping_add(round.wrapping_mul(ODD)));
        (rounds.map(draw).max().unwrap_or(0), pv)
    }
}

/// Returns the item that a part of a branch is. `part` is the number of the part. The numbers of
/// branches are the pool's own, and stay when the pool gets a new identity. So its identity is no
/// part of the item.
pub(crate) fn item(branch: BranchId, part: u64) -> u64 {
    mix(mix(branch.0).wrapping_add(part))
}

/// Adds an interval of a volume to the sorted list of those that cover a point, or removes it.
fn count(active: &mut Vec<(u16, u16)>, index: u16, begins: bool) {
    match active.binary_search_by_key(&index, |(of, _)| *of) {
        Ok(at) if begins => active[at].1 += 1,
        Ok(at) if active[at].1 > 1 => active[at].1 -= 1,
        Ok(at) => drop(active.remove(at)),
        Err(at) if begins => active.insert(at, (index, 1)),
        Err(_) => {}
    }
}

/// 2^64 divided by the golden ratio, an odd number.
const ODD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Mixes the bits of a number: the finalizer of `SplitMix64`. The places of all data depend on it,
/// so it never changes.
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(ODD);
    let number = (number ^ number >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ number >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ number >> 31
}

#[cfg(test)]
mod tests;
