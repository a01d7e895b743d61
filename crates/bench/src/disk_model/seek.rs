//! The time of a seek by its distance in cylinders.

use anyhow::{Result, ensure};

/// The times that the arm of a drive takes. Distances are in cylinders, times in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum SeekCurve {
    /// The law `t(x) = track + root * sqrt(x) + line * x`, where `x` is the distance as a part of
    /// `stroke`. The stroke is the distance between the outermost and the innermost cylinder.
    Law { track: f64, root: f64, line: f64, stroke: f64 },
    /// Measured points (distance, time), in ascending order of the distance. There are at least
    /// two. The curve between two points is a line.
    Table(Vec<(f64, f64)>),
}

impl SeekCurve {
    /// Makes the law from the three times of a data sheet: of a seek to the next track, of the
    /// average seek, and of a seek over all `cylinders`.
    ///
    /// A data sheet averages over all pairs of cylinders. The mean of `x` over them is 1/3, and the
    /// mean of `sqrt(x)` is 8/15. So the average is `track + 8/15 * root + 1/3 * line`, and the
    /// full stroke is `track + root + line`. The two equations give `root` and `line`.
    pub(super) fn law(track: f64, average: f64, full: f64, cylinders: u64) -> Result<SeekCurve> {
        ensure!(
            0.0 < track && track <= average && average <= full && full.is_finite(),
            "seek times: track {track}, average {average} and full stroke {full} ms are not in ascending order"
        );
        ensure!(cylinders > 1, "seek times: a drive has at least two cylinders");
        let root = (average - track - (full - track) / 3.0) / 0.2;
        let line = full - track - root;
        // The slope is least at the ends of the curve: infinity or the sign of `root` at the
        // beginning, and `root / 2 + line` at the full stroke.
        ensure!(
            root >= 0.0 && root / 2.0 + line >= 0.0,
            "seek times: no curve that rises has track {track}, average {average} and full stroke {full} ms; \
             give a table"
        );
        Ok(SeekCurve::Law { track, root, line, stroke: (cylinders - 1) as f64 })
    }

    /// Makes a curve from measured points (distance in cylinders, milliseconds).
    pub(super) fn table(points: &[(u32, f64)]) -> Result<SeekCurve> {
        ensure!(points.len() >= 2, "seek table: it has fewer than two points");
        for (distance, time) in points {
            ensure!(
                *distance > 0 && *time > 0.0 && time.is_finite(),
                "seek table: the point {distance}, {time} is not positive"
            );
        }
        for pair in points.windows(2) {
            ensure!(
                pair[0].0 < pair[1].0,
                "seek table: distance {} does not follow {} in ascending order",
                pair[1].0,
                pair[0].0
            );
        }
        let (first, last) = (points[0], points[points.len() - 1]);
        ensure!(first.1 <= last.1, "seek table: the longest seek takes less time than the shortest");
        Ok(SeekCurve::Table(points.iter().map(|(distance, time)| (f64::from(*distance), *time)).collect()))
    }

    /// Returns the milliseconds of a seek over `distance` cylinders. A seek over no cylinder takes
    /// no time. A table is continued beyond its ends: its first time is that of all shorter seeks,
    /// and the line through its first and last point goes on behind the last point.
    pub(super) fn milliseconds(&self, distance: u64) -> f64 {
        let distance = distance as f64;
        match self {
            _ if distance == 0.0 => 0.0,
            SeekCurve::Law { track, root, line, stroke } => {
                let part = distance / stroke;
                track + root * part.sqrt() + line * part
            }
            SeekCurve::Table(points) => interpolated(points, distance),
        }
    }
}

fn interpolated(points: &[(f64, f64)], distance: f64) -> f64 {
    let slope = |from: &(f64, f64), to: &(f64, f64)| (to.1 - from.1) / (to.0 - from.0);
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return 0.0 };
    let next = points.partition_point(|point| point.0 < distance);
    match (next.checked_sub(1).and_then(|before| points.get(before)), points.get(next)) {
        (None, _) => first.1,
        (Some(before), Some(after)) => before.1 + slope(before, after) * (distance - before.0),
        (Some(_), None) => last.1 + slope(first, last) * (distance - last.0),
    }
}
