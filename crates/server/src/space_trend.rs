//! How fast the pool fills up. A point an hour, of the last week, tells the day on which the pool
//! is full if it goes on like that.
//!
//! The points are of the space that all volumes share. Dedicated physical volumes do not count.

use crate::atomic_file::DurableFile;
use crate::periodic::Worker;
use hindcast_api::Filling;
use hindcast_engine::disk::Dir;
use hindcast_engine::pool::Pool;
use hindcast_engine::{Error, ErrorKind, Result};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Name of the file of the points.
pub(crate) const FILE: &str = "space-trend.json";
const KIND: &str = "space-trend";
const VERSION: u32 = 1;

/// Time between two points.
const INTERVAL: Duration = Duration::from_secs(3600);
const DAY: i64 = 86_400;
/// Seconds for which points are kept.
const KEPT: i64 = 7 * DAY;
/// The least number of seconds that points must span: a day has busy and quiet hours.
const LEAST_SPAN: i64 = DAY;
/// A point that follows another one sooner than this number of seconds, after a restart, is left
/// out.
const LEAST_GAP: i64 = 1800;
/// No day is told that is further away than this number of seconds.
const FURTHEST: f64 = 20.0 * 365.0 * DAY as f64;

/// The points of the last week.
pub(crate) struct SpaceTrend {
    file: DurableFile,
    points: Mutex<Vec<Point>>,
}

/// What was taken at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Point {
    /// Seconds since the Unix epoch.
    at: i64,
    /// Bytes of the capacity that new writes can't use.
    taken: u64,
}

/// The space that volumes share.
#[derive(Clone, Copy)]
struct Shared {
    capacity: u64,
    available: u64,
}

impl Shared {
    fn of(pool: &Pool) -> Shared {
        let dedicated: u64 = pool.pvs().iter().filter_map(|pv| Some(pv.dedicated?.capacity)).sum();
        let capacity = pool.info().capacity.saturating_sub(dedicated);
        Shared { capacity, available: pool.available_to(None).min(capacity) }
    }
}

impl SpaceTrend {
    /// Reads the points of earlier runs of the server. Points that can't be read are given up: only
    /// an estimate depends on them.
    pub(crate) fn open(dir: &Arc<dyn Dir>) -> SpaceTrend {
        let file = DurableFile::new(dir.clone(), FILE, KIND, VERSION);
        let points = file.load().and_then(|bytes| bytes.map_or(Ok(Vec::new()), |bytes| decode(&bytes)));
        let points = points.unwrap_or_else(|error| {
            tracing::warn!(%error, "how fast the pool fills up is measured anew");
            Vec::new()
        });
        SpaceTrend { file, points: Mutex::new(points) }
    }

    /// Adds a point, and stores all.
    fn add(&self, point: Point) -> Result<()> {
        let points = {
            let mut points = self.points.lock();
            // The clock may have been set back.
            points.retain(|old| (point.at - KEPT..point.at).contains(&old.at));
            if points.last().is_some_and(|last| point.at - last.at < LEAST_GAP) {
                return Ok(());
            }
            points.push(point);
            points.clone()
        };
        self.file.save(&encode(&points)?)
    }

    /// Returns how fast the pool fills up. `None` until that was measured for a day.
    pub(crate) fn filling(&self, pool: &Pool) -> Option<Filling> {
        estimate(&self.points.lock(), Shared::of(pool).available, Timestamp::now())
    }
}

/// Starts the thread that adds the points.
pub(crate) fn start(pool: Arc<Pool>, trend: Arc<SpaceTrend>) -> io::Result<Worker> {
    Worker::start("space-trend", INTERVAL, move || {
        let Shared { capacity, available } = Shared::of(&pool);
        let point = Point { at: Timestamp::now().as_second(), taken: capacity - available };
        if let Err(error) = trend.add(point) {
            tracing::warn!(%error, "how fast the pool fills up could not be stored");
        }
    })
}

fn encode(points: &[Point]) -> Result<Vec<u8>> {
    serde_json::to_vec(points).map_err(|e| Error::with_source(ErrorKind::Invalid, format!("write {FILE}"), e))
}

fn decode(bytes: &[u8]) -> Result<Vec<Point>> {
    let points: Vec<Point> = serde_json::from_slice(bytes)
        .map_err(|e| Error::with_source(ErrorKind::Corrupt, format!("read {FILE}"), e))?;
    if points.is_sorted_by_key(|point| point.at) {
        return Ok(points);
    }
    Err(Error::new(ErrorKind::Corrupt, format!("read {FILE}: its points are not in order")))
}

/// Returns the rate at which what is taken grows, and the time at which it takes all that is
/// available.
fn estimate(points: &[Point], available: u64, now: Timestamp) -> Option<Filling> {
    let (first, last) = (points.first()?, points.last()?);
    if last.at - first.at < LEAST_SPAN {
        return None;
    }
    let per_second = slope(points);
    let left = available as f64 / per_second;
    let full_at = (per_second > 0.0 && left < FURTHEST)
        .then(|| now.checked_add(SignedDuration::from_secs(left as i64)).ok())
        .flatten();
    Some(Filling {
        bytes_per_day: (per_second * DAY as f64) as i64,
        measured_seconds: (last.at - first.at) as u64,
        full_at,
    })
}

/// Returns the slope of the line through the points with the least squares, in bytes per second.
fn slope(points: &[Point]) -> f64 {
    let count = points.len() as f64;
    let (origin, base) = (points[0].at, points[0].taken as f64);
    let of = |point: &Point| ((point.at - origin) as f64, point.taken as f64 - base);
    let (sum_x, sum_y) = points.iter().map(of).fold((0.0, 0.0), |sum, (x, y)| (sum.0 + x, sum.1 + y));
    let (mean_x, mean_y) = (sum_x / count, sum_y / count);
    let products = points.iter().map(of).map(|(x, y)| ((x - mean_x) * (y - mean_y), (x - mean_x).powi(2)));
    let (covariance, variance) = products.fold((0.0, 0.0), |sum, (c, v)| (sum.0 + c, sum.1 + v));
    if variance > 0.0 { covariance / variance } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use hindcast_engine::disk::{FileDir, MemDir};

    const HOUR: i64 = 3600;
    const GIB: u64 = 1 << 30;

    fn growing(hours: i64, taken: impl Fn(i64) -> u64) -> Vec<Point> {
        (0..hours).map(|hour| Point { at: 1_000_000 + hour * HOUR, taken: taken(hour) }).collect()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_day_follows_from_the_rate_of_the_week() {
        let points = growing(168, |hour| 10 * GIB + hour as u64 * GIB / 24);
        let now = at(2_000_000);
        let found = estimate(&points, 30 * GIB, now).unwrap();
        assert!(found.bytes_per_day.abs_diff(GIB as i64) < 1 << 20, "{found:?}");
        assert_eq!(found.measured_seconds as i64, 167 * HOUR);
        let days = found.full_at.unwrap().duration_since(now).as_secs() as f64 / DAY as f64;
        assert!((days - 30.0).abs() < 0.1, "{days}");
        // A night's backup that is deleted in the morning does not hide the trend.
        let uneven =
            growing(168, |hour| 10 * GIB + hour as u64 * GIB / 24 + if hour % 24 < 6 { 5 * GIB } else { 0 });
        let found = estimate(&uneven, 30 * GIB, now).unwrap();
        assert!(found.bytes_per_day.abs_diff(GIB as i64) < GIB / 5, "{found:?}");
    }

    #[test]
    fn nothing_is_told_that_was_not_measured_or_does_not_come() {
        let now = at(2_000_000);
        assert_eq!(estimate(&[], GIB, now), None);
        assert_eq!(estimate(&growing(24, |hour| hour as u64 * GIB), GIB, now), None, "23 hours");
        let constant = estimate(&growing(100, |_| GIB), GIB, now).unwrap();
        assert_eq!((constant.bytes_per_day, constant.full_at), (0, None));
        let shrinking = estimate(&growing(100, |hour| 200 * GIB - hour as u64 * GIB), GIB, now).unwrap();
        assert!(shrinking.bytes_per_day < 0 && shrinking.full_at.is_none(), "{shrinking:?}");
        let slow = estimate(&growing(100, |hour| hour as u64), 1 << 60, now).unwrap();
        assert_eq!(slow.full_at, None, "in thousands of years");
        let full = estimate(&growing(100, |hour| hour as u64 * GIB), 0, now).unwrap();
        assert_eq!(full.full_at, Some(now));
    }

    #[test]
    fn points_outlive_the_server_for_a_week() {
        let dir: Arc<dyn Dir> = Arc::new(MemDir::new());
        let trend = SpaceTrend::open(&dir);
        for hour in 0..200 {
            trend.add(Point { at: hour * HOUR, taken: hour as u64 }).unwrap();
        }
        let points = SpaceTrend::open(&dir).points.into_inner();
        assert_eq!((points.len(), points[0].at, points.last().unwrap().at), (169, 31 * HOUR, 199 * HOUR));
        // A restart a minute later, and a clock that was set back.
        let trend = SpaceTrend::open(&dir);
        trend.add(Point { at: 199 * HOUR + 60, taken: 7 }).unwrap();
        assert_eq!(*trend.points.lock(), points[1..], "the first one is older than a week now");
        trend.add(Point { at: 100 * HOUR, taken: 7 }).unwrap();
        let left = SpaceTrend::open(&dir).points.into_inner();
        assert_eq!((left.first().unwrap().at, left.last().unwrap().at), (32 * HOUR, 100 * HOUR));
    }

    #[test]
    fn a_damaged_file_is_given_up() {
        let dir: Arc<dyn Dir> = Arc::new(MemDir::new());
        let file = DurableFile::new(dir.clone(), FILE, KIND, VERSION);
        for content in [&b"no points"[..], br#"[{"at": 2, "taken": 1}, {"at": 1, "taken": 1}]"#] {
            file.save(content).unwrap();
            let trend = SpaceTrend::open(&dir);
            assert!(trend.points.lock().is_empty());
            trend.add(Point { at: 5, taken: 6 }).unwrap();
            assert_eq!(SpaceTrend::open(&dir).points.into_inner().len(), 1);
        }
    }

    #[test]
    fn dedicated_space_does_not_count() {
        let (place, pool) = testing::pool();
        let before = Shared::of(&pool);
        let spec = hindcast_engine::pool::PvSpec { path: "d".into(), size: Some(64 << 20), force: false };
        pool.add_dedicated_pv(&spec).unwrap();
        let now = Shared::of(&pool);
        assert_eq!((now.capacity, now.available), (before.capacity, before.available));
        let dir: Arc<dyn Dir> = Arc::new(FileDir::create(place.path()).unwrap());
        assert_eq!(SpaceTrend::open(&dir).filling(&pool), None);
    }
}
