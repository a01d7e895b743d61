//! The content of a device, sector by sector ([`Content`]). Copies share what did not change, so a
//! snapshot costs nothing until a volume is written.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of sectors that are shared, read and verified together.
pub(crate) const ZONE: u64 = 128;

type Zone = [u64; ZONE as usize];

/// A number for each sector (or chunk). It is 0 where none was given. A clone shares everything
/// with its origin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Content {
    zones: Arc<BTreeMap<u64, Arc<Zone>>>,
}

/// Returns the part of zone `number` inside `start..end`, as indices into the zone.
fn inside(number: u64, start: u64, end: u64) -> std::ops::Range<usize> {
    let first = number * ZONE;
    (start.max(first) - first) as usize..(end.min(first + ZONE) - first) as usize
}

impl Content {
    /// Returns the number at `at`.
    pub(crate) fn get(&self, at: u64) -> u64 {
        self.zones.get(&(at / ZONE)).map_or(0, |zone| zone[(at % ZONE) as usize])
    }

    /// Gives `value` to `start..end`. The range may be huge only if the value is 0.
    pub(crate) fn set(&mut self, start: u64, end: u64, value: u64) {
        if start >= end {
            return;
        }
        let zones = Arc::make_mut(&mut self.zones);
        let (first, last) = (start / ZONE, (end - 1) / ZONE);
        if value != 0 {
            for number in first..=last {
                let zone = zones.entry(number).or_insert_with(|| Arc::new([0; ZONE as usize]));
                Arc::make_mut(zone)[inside(number, start, end)].fill(value);
            }
            return;
        }
        let there: Vec<u64> = zones.range(first..=last).map(|z| *z.0).collect();
        for number in there {
            let range = inside(number, start, end);
            if range.len() as u64 == ZONE {
                zones.remove(&number);
            } else if let Some(zone) = zones.get_mut(&number) {
                Arc::make_mut(zone)[range].fill(0);
            }
        }
    }

    /// Returns the first place in `start..end` whose number is not 0.
    pub(crate) fn first(&self, start: u64, end: u64) -> Option<u64> {
        if start >= end {
            return None;
        }
        let zones = self.zones.range(start / ZONE..=(end - 1) / ZONE);
        zones.into_iter().find_map(|(number, zone)| {
            let range = inside(*number, start, end);
            let at = zone[range.clone()].iter().position(|v| *v != 0)?;
            Some(number * ZONE + (range.start + at) as u64)
        })
    }

    /// Returns the number of places whose number is not 0.
    pub(crate) fn count(&self) -> u64 {
        self.zones.values().map(|zone| zone.iter().filter(|v| **v != 0).count() as u64).sum()
    }

    /// Returns the stored zones: (number of the zone, content). Two contents share a zone if its
    /// addresses are equal.
    pub(crate) fn zones(&self) -> impl Iterator<Item = (u64, &Arc<Zone>)> {
        self.zones.iter().map(|(number, zone)| (*number, zone))
    }
}

/// The stamps of the sectors of a device that were read. Nothing is known of the other sectors.
#[derive(Debug, Clone, Default)]
pub(crate) struct Found {
    zones: BTreeMap<u64, Box<Zone>>,
}

/// Stamp of a sector that was not read.
const UNREAD: u64 = u64::MAX - 1;

impl Found {
    /// Notes the stamp of a sector.
    pub(crate) fn put(&mut self, sector: u64, stamp: u64) {
        let zone = self.zones.entry(sector / ZONE).or_insert_with(|| Box::new([UNREAD; ZONE as usize]));
        zone[(sector % ZONE) as usize] = stamp;
    }

    /// Returns the number of sectors in `start..end` that were read and differ from `expected`.
    pub(crate) fn differences(&self, expected: &Content, start: u64, end: u64) -> i64 {
        if start >= end {
            return 0;
        }
        let zones = self.zones.range(start / ZONE..=(end - 1) / ZONE);
        let count = |number: u64, zone: &Zone| {
            let range = inside(number, start, end);
            let found = &zone[range.clone()];
            match expected.zones.get(&number) {
                Some(zone) => {
                    found.iter().zip(&zone[range]).filter(|(f, e)| **f != UNREAD && f != e).count() as i64
                }
                None => found.iter().filter(|f| **f != UNREAD && **f != 0).count() as i64,
            }
        };
        zones.map(|(number, zone)| count(*number, zone)).sum()
    }

    /// Returns the first sector that was read and differs from `expected`: (sector, expected,
    /// found).
    pub(crate) fn first_difference(&self, expected: &Content) -> Option<(u64, u64, u64)> {
        self.zones.iter().find_map(|(number, zone)| {
            let sectors = (number * ZONE..).zip(zone.iter()).filter(|(_, found)| **found != UNREAD);
            let mut compared = sectors.map(|(sector, found)| (sector, expected.get(sector), *found));
            compared.find(|(_, expected, found)| expected != found)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rand::Rand;

    #[test]
    fn agrees_with_a_plain_array_and_shares() {
        for seed in 0..100 {
            let mut rand = Rand::new(seed);
            let mut plain = [0u64; 600];
            let mut content = Content::default();
            let mut frozen = Vec::new();
            for value in 1..30 {
                let start = rand.below(600);
                let end = start + 1 + rand.below(600 - start);
                let value = if rand.percent(30) { 0 } else { value };
                content.set(start, end, value);
                plain[start as usize..end as usize].fill(value);
                if rand.percent(20) {
                    frozen.push((content.clone(), plain));
                }
                let first = (start..end).find(|at| plain[*at as usize] != 0);
                assert_eq!(content.first(start, end), first);
            }
            frozen.push((content, plain));
            for (content, plain) in &frozen {
                let mut found = Found::default();
                for at in 0..600 {
                    assert_eq!(content.get(at), plain[at as usize], "seed {seed}");
                    found.put(at, plain[at as usize]);
                }
                assert_eq!(found.differences(content, 0, 600), 0);
                assert_eq!(found.first_difference(content), None);
                found.put(77, 99);
                assert_eq!((found.differences(content, 0, 600), found.differences(content, 78, 600)), (1, 0));
                assert_eq!(found.first_difference(content), Some((77, plain[77], 99)));
            }
        }
    }
}
