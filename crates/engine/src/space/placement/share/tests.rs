//! Share beside the two functions that it is measured against: Share as published, and weighted
//! rendezvous hashing.

use super::*;
use std::collections::BTreeMap;

fn weights(capacities: &[u64]) -> Vec<Weight> {
    (0..).zip(capacities).map(|(pv, capacity)| Weight { pv, capacity: *capacity, gives: true }).collect()
}

fn map(capacities: &[u64]) -> ShareMap {
    ShareMap::new(&weights(capacities))
}

/// Capacities of 1 to 16 units, the first of them in the middle.
fn unequal(disks: usize) -> Vec<u64> {
    let drawn = (1..disks as u64).map(|n| 100 * (1 + mix(n) % 16));
    std::iter::once(800).chain(drawn).collect()
}

/// The part of all points that each disk gets, without the noise of a sample: a point's draw is
/// even among the intervals that cover it.
fn loads(map: &ShareMap) -> Vec<f64> {
    let mut loads = vec![0.0; map.disks.len()];
    let whole: u64 = map.disks.iter().map(|disk| disk.rounds).sum();
    for (frame, start) in map.starts.iter().enumerate() {
        let end = map.starts.get(frame + 1).map_or(u128::from(u64::MAX) + 1, |end| u128::from(*end));
        let length = (end - u128::from(*start)) as f64 / (u128::from(u64::MAX) + 1) as f64;
        let members = map.frame(*start);
        let all = whole + members.iter().map(|(_, count)| u64::from(*count)).sum::<u64>();
        let part = length / all as f64;
        for index in &map.everywhere {
            loads[usize::from(*index)] += part * map.disks[usize::from(*index)].rounds as f64;
        }
        for (index, count) in members {
            loads[usize::from(*index)] += part * f64::from(*count);
        }
    }
    loads
}

/// The largest load of a disk divided by its share, and the standard deviation of that ratio.
fn evenness(loads: &[f64], capacities: &[u64]) -> (f64, f64) {
    let total: f64 = capacities.iter().sum::<u64>() as f64;
    let ratios: Vec<f64> = loads.iter().zip(capacities).map(|(load, c)| load / (*c as f64 / total)).collect();
    let square: f64 = ratios.iter().map(|ratio| (ratio - 1.0).powi(2)).sum();
    (ratios.iter().copied().fold(0.0, f64::max), (square / ratios.len() as f64).sqrt())
}

/// Share as published: one interval for each disk, in proportion to its part of the whole.
fn published(capacities: &[u64]) -> ShareMap {
    let weights = weights(capacities);
    let unit = capacities.iter().sum();
    let stretch = (3.0 * (capacities.len() as f64).ln()).ceil() as u64;
    ShareMap::with(&weights, Parameters { unit, stretch, intervals: 1 })
}

/// Weighted rendezvous hashing.
fn rendezvous(capacities: &[u64], item: u64) -> u32 {
    let score = |(pv, capacity): (u32, &u64)| {
        let drawn = (mix(item ^ mix(u64::from(pv) + 1)) as f64 + 1.0) / 2f64.powi(64);
        (*capacity as f64 / -drawn.ln(), pv)
    };
    let best = (0..).zip(capacities).map(score).max_by(|one, other| one.0.total_cmp(&other.0));
    best.unwrap().1
}

/// Random Slicing (Miranda, Effert, Kang, Miller, Brinkmann and Cortes 2014): a table of slices of
/// the circle, each with its disk. A disk that is added takes whole slices of the others, and of
/// each of them a part of one more at most.
#[derive(Clone, Default)]
struct SliceTable(Vec<(f64, u32)>);

impl SliceTable {
    fn new(capacities: &[u64]) -> SliceTable {
        let mut table = SliceTable(vec![(1.0, 0)]);
        for disks in 2..=capacities.len() {
            table.add(&capacities[..disks]);
        }
        table
    }

    /// Adds the last of the disks.
    fn add(&mut self, capacities: &[u64]) {
        let all: u64 = capacities.iter().sum();
        let new = capacities.len() - 1;
        let before = all - capacities[new];
        // What each disk has too much.
        let mut excess: Vec<f64> =
            capacities[..new].iter().map(|c| *c as f64 / before as f64 - *c as f64 / all as f64).collect();
        let mut slices = Vec::new();
        for (length, disk) in std::mem::take(&mut self.0) {
            let taken = excess[disk as usize].min(length);
            excess[disk as usize] -= taken;
            slices.extend((taken > 0.0).then_some((taken, new as u32)));
            slices.extend((length - taken > 0.0).then_some((length - taken, disk)));
        }
        // Neighbours of the same disk are one slice.
        for (length, disk) in slices {
            match self.0.last_mut() {
                Some((last, of)) if *of == disk => *last += length,
                _ => self.0.push((length, disk)),
            }
        }
    }

    fn loads(&self, disks: usize) -> Vec<f64> {
        let mut loads = vec![0.0; disks];
        self.0.iter().for_each(|(length, disk)| loads[*disk as usize] += length);
        loads
    }
}

/// The part of `items` that has another place in `after` than in `before`, and the part that moved
/// between disks other than `pv`.
fn moved(items: u64, pv: u32, before: impl Fn(u64) -> u32, after: impl Fn(u64) -> u32) -> (f64, f64) {
    let (mut all, mut others) = (0, 0);
    for item in (0..items).map(mix) {
        let (from, to) = (before(item), after(item));
        all += u64::from(from != to);
        others += u64::from(from != to && from != pv && to != pv);
    }
    (all as f64 / items as f64, others as f64 / items as f64)
}

#[test]
fn eight_unequal_disks_are_filled_by_their_weights() {
    let capacities = [800, 400, 1600, 1200, 800, 2000, 600, 1000];
    let map = map(&capacities);
    let total: u64 = capacities.iter().sum();
    let mut items: BTreeMap<u32, u64> = BTreeMap::new();
    for part in 0..200_000 {
        *items.entry(map.place(item(BranchId(part % 10), part / 10)).unwrap()).or_default() += 1;
    }
    for (pv, capacity) in (0..).zip(capacities) {
        let ratio = items[&pv] as f64 / 200_000.0 / (capacity as f64 / total as f64);
        assert!((0.95..=1.05).contains(&ratio), "disk {pv} has {ratio:.3} of its share");
    }
    let (fullest, deviation) = evenness(&loads(&map), &capacities);
    assert!(fullest < 1.02 && deviation < 0.02, "{fullest:.3} {deviation:.3}");
}

#[test]
fn a_disk_that_is_added_takes_its_share_and_nothing_else_moves() {
    let mut capacities = vec![800, 400, 1600, 1200, 800, 2000, 600, 1000];
    let before = map(&capacities);
    capacities.push(1400);
    let after = map(&capacities);
    let place = |map: &ShareMap, item: u64| map.place(item).unwrap();
    let (all, others) = moved(50_000, 8, |item| place(&before, item), |item| place(&after, item));
    let least = 1400.0 / capacities.iter().sum::<u64>() as f64;
    assert!((0.9..1.1).contains(&(all / least)), "moved {all:.4}, at least {least:.4}");
    assert_eq!(others, 0.0);
}

#[test]
fn what_a_drained_disk_held_is_spread_and_nothing_else_moves() {
    let mut drained = weights(&[800, 400, 1600, 1200, 800, 2000, 600, 1000]);
    let before = ShareMap::new(&drained);
    drained[3].gives = false;
    let after = ShareMap::new(&drained);
    let place = |map: &ShareMap, item: u64| map.place(item).unwrap();
    let (all, others) = moved(50_000, 3, |item| place(&before, item), |item| place(&after, item));
    assert!((0.9..1.1).contains(&(all / (1200.0 / 8400.0))), "{all}");
    assert_eq!(others, 0.0);
    assert!((0..1000).map(mix).all(|item| !after.ranking(item).contains(&3)));
}

/// From 4 to 4,000 disks: how even the loads are, and what moves when a disk is added.
#[test]
fn beside_the_published_function_and_rendezvous() {
    for (disks, fullest, deviation) in
        [(4, 1.06, 0.04), (16, 1.06, 0.03), (100, 1.08, 0.04), (1000, 1.12, 0.04), (4000, 1.25, 0.06)]
    {
        let mut capacities = unequal(disks);
        let (ours, theirs) = (map(&capacities), published(&capacities));
        let (most, spread) = evenness(&loads(&ours), &capacities);
        let (their_most, their_spread) = evenness(&loads(&theirs), &capacities);
        assert!(most < fullest && spread < deviation, "{disks} disks: {most:.3} {spread:.3}");
        assert!(most < their_most && spread < their_spread, "{disks}: {their_most:.3} {their_spread:.3}");

        capacities.push(1000);
        let (ours_after, theirs_after) = (map(&capacities), published(&capacities));
        let least = 1000.0 / capacities.iter().sum::<u64>() as f64;
        // Ours moves things to the new disk only, so this is its load.
        let all = loads(&ours_after)[disks];
        assert!((0.85..1.15).contains(&(all / least)), "{disks} disks: {:.3}", all / least);
        let pv = disks as u32;
        let place = |map: &ShareMap, item: u64| map.place(item).unwrap();
        let items = 2000;
        let (_, others) = moved(items, pv, |item| place(&ours, item), |item| place(&ours_after, item));
        let (_, their_others) =
            moved(items, pv, |item| place(&theirs, item), |item| place(&theirs_after, item));
        assert_eq!(others, 0.0, "{disks} disks");
        // With more disks, 2,000 items show too little.
        assert!(their_others > 0.0 || disks > 100, "{disks} disks: each new disk shortens all others");
        let items = if disks > 1000 { 50 } else { 500 };
        let before = &capacities[..disks];
        let (_, others) =
            moved(items, pv, |item| rendezvous(before, item), |item| rendezvous(&capacities, item));
        assert_eq!(others, 0.0);
    }
}

/// The parameters change seldom, and with them the places of much.
#[test]
fn the_unit_holds_while_a_pool_grows() {
    let mut changes = Vec::new();
    let mut last = None;
    let all = weights(&[100; 300]);
    for disks in 1..=300 {
        let now = Parameters::of(&all[..disks]);
        if last != Some(now) {
            changes.push(disks);
        }
        last = Some(now);
    }
    assert_eq!(changes, [1, 33, 67, 135, 271]);
    // A large disk beside small ones changes the unit at once.
    assert_eq!(Parameters::of(&weights(&[1, 1000])).unit, 1001);
    assert_eq!(Parameters::of(&weights(&[1000, 1])).unit, 1000);
}

#[test]
fn the_ranking_begins_with_the_place_and_has_every_disk_once() {
    for disks in [1, 2, 5, 40] {
        let map = map(&unequal(disks));
        for item in (0..500).map(mix) {
            let mut ranking = map.ranking(item);
            assert_eq!(ranking.first().copied(), map.place(item));
            ranking.sort_unstable();
            assert_eq!(ranking, (0..disks as u32).collect::<Vec<_>>());
        }
    }
    assert_eq!(map(&[]).place(1), None);
    assert_eq!(map(&[0, 0]).place(1), None);
    let none_gives = [Weight { pv: 0, capacity: 5, gives: false }];
    assert_eq!(ShareMap::new(&none_gives).place(9), None);
}

/// The places are those of every build: data lies there.
#[test]
fn golden_places() {
    let map = map(&[800, 400, 1600, 1200, 800]);
    let places: Vec<u32> = (0..24).map(|part| map.place(item(BranchId(3), part)).unwrap()).collect();
    assert_eq!(places, [4, 3, 1, 4, 0, 3, 1, 2, 2, 0, 3, 2, 3, 0, 2, 2, 3, 3, 2, 2, 2, 3, 1, 3]);
}

/// Random Slicing is exact and moves the least, but it has a table that grows, and that all who
/// place anything must have. Share needs the list of disks only.
#[test]
fn random_slicing_is_exact_and_has_a_table() {
    for (disks, slices) in [(8, 10..50), (100, 500..5_000), (300, 2_000..45_000)] {
        let mut capacities = unequal(disks);
        let before = SliceTable::new(&capacities);
        let (most, _) = evenness(&before.loads(disks), &capacities);
        assert!(most < 1.000_001, "{disks} disks: {most}");
        assert!(slices.contains(&before.0.len()), "{disks} disks: {} slices", before.0.len());
        capacities.push(1000);
        let mut after = before;
        after.add(&capacities);
        let least = 1000.0 / capacities.iter().sum::<u64>() as f64;
        assert!((after.loads(disks + 1)[disks] / least - 1.0).abs() < 1e-6, "{disks} disks");
    }
}
