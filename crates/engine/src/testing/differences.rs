//! Checks of differences, by comparing them with what the states read as.

use super::content;
use crate::device::BlockDevice;
use crate::{Difference, Volume};
use std::ops::Range;

/// Returns all ranges of a difference.
pub fn ranges(difference: &Difference) -> Vec<Range<u64>> {
    difference.ranges().map(Result::unwrap).collect()
}

/// Checks that every difference is named. The ranges must be in order, apart from one another, and
/// inside the volume. The runs must agree, with requests of any length.
pub fn assert_covers(difference: &Difference, from: &Volume, to: &Volume) -> Vec<Range<u64>> {
    let got = ranges(difference);
    assert!(got.windows(2).all(|w| w[0].end < w[1].start), "{got:?}");
    assert!(got.iter().all(|r| r.start < r.end && r.end <= to.info().size));
    let (mut was, is) = (content(from), content(to));
    was.resize(is.len(), 0);
    let named = |at: u64| got.iter().any(|r| r.contains(&at));
    for sector in (0..is.len()).step_by(512) {
        let differs = was[sector..sector + 512] != is[sector..sector + 512];
        assert!(!differs || named(sector as u64), "sector at {sector} differs, not in {got:?}");
    }
    let (mut at, mut by_runs) = (0, Vec::<Range<u64>>::new());
    while at < to.info().size {
        for run in difference.runs(at, to.info().size - at, 3).unwrap() {
            match by_runs.last_mut() {
                Some(last) if run.changed && last.end == at => last.end += run.length,
                _ if run.changed => by_runs.push(at..at + run.length),
                _ => {}
            }
            at += run.length;
        }
    }
    assert_eq!(by_runs, got);
    got
}
