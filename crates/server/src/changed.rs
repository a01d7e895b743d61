//! What differs between two moments, in sums that a picture can show.

use crate::app::App;
use crate::moments;
use hindcast_api::{ByteRange, Changed, ChangedPart, MAX_CHANGED_RANGES};
use hindcast_engine::{Difference, Result};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Number of parts of the volume.
const PARTS: u64 = 64;
/// Time after which a comparison stops.
const LONGEST: Duration = Duration::from_secs(2);

impl App {
    /// Compares two states of a volume for at most [`LONGEST`].
    pub(crate) fn changed(&self, volume: &str, from: &str, to: Option<&str>) -> Result<Changed> {
        let (from, from_name) = moments::open_frozen(&self.pool, volume, from)?;
        let (to, to_name) = match to {
            Some(to) => moments::open_frozen(&self.pool, volume, to).map(|(to, name)| (to, Some(name)))?,
            None => (self.pool.open_weak(volume)?, None),
        };
        let difference = Difference::new(from, to)?;
        let end = Instant::now() + LONGEST;
        let mut sums = Sums::new(difference.size());
        let mut at = 0;
        while at < difference.size() && Instant::now() < end {
            let (found, next) = difference.step(at, difference.size() - at)?;
            found.into_iter().for_each(|range| sums.add(range));
            at = next;
        }
        let address = |name: String| format!("{volume}@{name}");
        Ok(Changed {
            from: address(from_name),
            to: to_name.map(address),
            bytes: sums.parts.iter().map(|part| part.bytes).sum(),
            parts: sums.parts,
            ranges: sums.ranges,
            partial: at < difference.size(),
        })
    }
}

/// Ranges added up by parts of the volume.
struct Sums {
    parts: Vec<ChangedPart>,
    ranges: Vec<ByteRange>,
}

impl Sums {
    fn new(size: u64) -> Sums {
        let length = size.div_ceil(PARTS).max(1);
        let part = |n: u64| {
            let offset = (n * length).min(size);
            ChangedPart { offset, length: length.min(size - offset), bytes: 0 }
        };
        Sums { parts: (0..PARTS).map(part).collect(), ranges: Vec::new() }
    }

    /// Adds a range. Ranges come in order.
    fn add(&mut self, range: Range<u64>) {
        for part in &mut self.parts {
            let overlap = range.start.max(part.offset)..range.end.min(part.offset + part.length);
            part.bytes += overlap.end.saturating_sub(overlap.start);
        }
        let length = range.end - range.start;
        let is_full = self.ranges.len() >= MAX_CHANGED_RANGES;
        match self.ranges.last_mut() {
            Some(last) if last.offset + last.length == range.start => last.length += length,
            _ if is_full => {}
            _ => self.ranges.push(ByteRange { offset: range.start, length }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_added_up_by_part() {
        let mut sums = Sums::new(6400);
        [0..50, 50..150, 6350..6400].into_iter().for_each(|range| sums.add(range));
        let bytes: Vec<u64> = sums.parts.iter().map(|part| part.bytes).collect();
        assert_eq!((bytes[0], bytes[1], bytes[2], bytes[63]), (100, 50, 0, 50));
        assert_eq!(sums.ranges.len(), 2, "what touches is one range");
        assert_eq!(Sums::new(10).parts.iter().map(|part| part.length).sum::<u64>(), 10);
    }
}
