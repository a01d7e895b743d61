//! What clients did lately, by second: samples of counters, and what changed between them.
//!
//! In memory are points of one second for five minutes and of ten seconds for an hour, for the pool
//! and for the volumes that clients use. The number of points is limited, whatever the number of
//! volumes.

use crate::latency::{AllTimes, Op};
use hindcast_api::{Activity, ActivityPoint, Live, Rates};
use hindcast_engine::pool::VolumeStats;
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use uuid::Uuid;

/// Number of one-second points.
const SECONDS: usize = 300;
/// Number of seconds of a longer point.
const LONG: usize = 10;
/// Number of longer points.
const LONGS: usize = 360;
/// Number of volumes that have points. Each takes up to 70 KiB.
const VOLUMES: usize = 400;

/// The counters of a volume at one time.
#[derive(Clone, Default)]
pub(crate) struct Counters {
    pub(crate) stats: VolumeStats,
    pub(crate) times: AllTimes,
}

/// The points of a volume, or of the pool.
#[derive(Default)]
struct Points {
    seconds: VecDeque<ActivityPoint>,
    longs: VecDeque<ActivityPoint>,
    /// The counters at the last short and at the last long point.
    last: Counters,
    last_long: Counters,
}

#[derive(Default)]
struct State {
    pool: Points,
    volumes: BTreeMap<Uuid, Points>,
    /// Number of samples.
    count: usize,
    at: Option<Instant>,
    at_long: Option<Instant>,
    /// Rates of the last second.
    now: BTreeMap<Uuid, Rates>,
}

/// The samples of a server.
pub(crate) struct Sampler {
    state: Mutex<State>,
    /// The last second, for those who follow.
    newest: watch::Sender<Arc<Live>>,
}

impl Sampler {
    pub(crate) fn new() -> Sampler {
        Sampler { state: Mutex::default(), newest: watch::Sender::default() }
    }

    /// Returns the last second, and what reports the next ones.
    pub(crate) fn newest(&self) -> watch::Receiver<Arc<Live>> {
        self.newest.subscribe()
    }

    /// Reports a second to those who follow.
    pub(crate) fn publish(&self, live: Live) {
        self.newest.send_replace(Arc::new(live));
    }

    /// Adds a sample of all volumes, with the requests under way. Returns the rates of the last
    /// second: of the pool, and of the volumes with requests.
    pub(crate) fn add(
        &self,
        all: Vec<(Uuid, Counters)>,
        flying: &BTreeMap<Uuid, u64>,
        time: Timestamp,
    ) -> (Rates, BTreeMap<Uuid, Rates>) {
        let mut state = self.state.lock();
        state.add(all, flying, Instant::now(), time);
        let pool = state.pool.seconds.back().map(|point| point.rates).unwrap_or_default();
        (pool, state.now.clone())
    }

    /// Returns what clients did with a volume, or with all, in the last five minutes or the last
    /// hour.
    pub(crate) fn activity(&self, volume: Option<Uuid>, hour: bool) -> Activity {
        let state = self.state.lock();
        let points = volume.map_or(Some(&state.pool), |id| state.volumes.get(&id));
        let points = points.map(|points| if hour { &points.longs } else { &points.seconds });
        Activity {
            interval_seconds: if hour { LONG as u64 } else { 1 },
            points: points.into_iter().flatten().copied().collect(),
        }
    }
}

impl State {
    /// Adds a sample of all volumes.
    fn add(
        &mut self,
        all: Vec<(Uuid, Counters)>,
        flying: &BTreeMap<Uuid, u64>,
        now: Instant,
        time: Timestamp,
    ) {
        self.count += 1;
        let since = |at: Option<Instant>| at.map(|at| now.duration_since(at));
        let short = since(self.at.replace(now));
        let long = match self.count % LONG {
            1 => Some(since(self.at_long.replace(now))),
            _ => None,
        };
        self.now.clear();
        let exists: std::collections::BTreeSet<Uuid> = all.iter().map(|(id, _)| *id).collect();
        self.volumes.retain(|id, _| exists.contains(id));
        let mut sum = Counters::default();
        for (id, counters) in all {
            sum.times.add(&counters.times);
            add_stats(&mut sum.stats, &counters.stats);
            let flying = flying.get(&id).copied().unwrap_or(0);
            let is_known = self.volumes.contains_key(&id);
            // A volume that no client has used yet needs no points.
            if !is_known && (counters.stats == VolumeStats::default() || self.volumes.len() >= VOLUMES) {
                continue;
            }
            let points = self.volumes.entry(id).or_default();
            if !is_known {
                (points.last, points.last_long) = (counters.clone(), counters.clone());
            }
            if let Some(rates) = points.add(&counters, flying, (short, long), time) {
                self.now.insert(id, rates);
            }
        }
        let all_flying = flying.values().sum();
        self.pool.add(&sum, all_flying, (short, long), time);
    }
}

impl Points {
    /// Adds a sample. Returns the rates of the last second, if there was any request.
    fn add(
        &mut self,
        counters: &Counters,
        flying: u64,
        (short, long): (Option<Duration>, Option<Option<Duration>>),
        time: Timestamp,
    ) -> Option<Rates> {
        let found = short.map(|short| rates(&self.last, counters, flying, short));
        self.last = counters.clone();
        let is_used = found.filter(|rates| rates.reads + rates.writes + rates.flushes > 0.0 || flying > 0);
        if let Some(rates) = found {
            push(&mut self.seconds, ActivityPoint { time, rates }, SECONDS);
        }
        if let Some(long) = long {
            if let Some(long) = long {
                let rates = rates(&self.last_long, counters, flying, long);
                push(&mut self.longs, ActivityPoint { time, rates }, LONGS);
            }
            self.last_long = counters.clone();
        }
        is_used
    }
}

fn push(points: &mut VecDeque<ActivityPoint>, point: ActivityPoint, most: usize) {
    points.push_back(point);
    if points.len() > most {
        points.pop_front();
    }
}

fn add_stats(sum: &mut VolumeStats, of: &VolumeStats) {
    sum.reads += of.reads;
    sum.writes += of.writes;
    sum.flushes += of.flushes;
    sum.read_bytes += of.read_bytes;
    sum.write_bytes += of.write_bytes;
}

/// Returns the requests between two states of the counters.
fn rates(before: &Counters, after: &Counters, in_flight: u64, took: Duration) -> Rates {
    let seconds = took.as_secs_f64().max(0.001);
    // A volume that was deleted takes its requests out of the sum.
    let rate =
        |of: fn(&VolumeStats) -> u64| of(&after.stats).saturating_sub(of(&before.stats)) as f64 / seconds;
    let times = after.times.since(&before.times);
    let within = |op, part| times.of(op).quantile(part).map(|time| time.as_secs_f64());
    Rates {
        reads: rate(|s| s.reads),
        writes: rate(|s| s.writes),
        flushes: rate(|s| s.flushes),
        read_bytes: rate(|s| s.read_bytes),
        write_bytes: rate(|s| s.write_bytes),
        in_flight,
        read_p50: within(Op::Read, 0.5),
        read_p99: within(Op::Read, 0.99),
        write_p50: within(Op::Write, 0.5),
        write_p99: within(Op::Write, 0.99),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(writes: u64) -> Counters {
        let stats = VolumeStats { writes, write_bytes: writes * 4096, ..VolumeStats::default() };
        Counters { stats, times: AllTimes::default() }
    }

    #[test]
    fn points_are_differences() {
        let (mut state, id, begin) = (State::default(), Uuid::from_u128(1), Instant::now());
        let idle = Uuid::from_u128(2);
        for n in 0..700u64 {
            let all = vec![(id, counters(n * 10)), (idle, counters(0))];
            state.add(all, &BTreeMap::new(), begin + Duration::from_secs(n), Timestamp::UNIX_EPOCH);
        }
        assert!(!state.volumes.contains_key(&idle), "no client used it");
        let points = &state.volumes[&id];
        assert_eq!((points.seconds.len(), points.longs.len()), (SECONDS, 69));
        assert!(points.seconds.iter().all(|point| point.rates.writes == 10.0));
        assert!(points.longs.iter().skip(1).all(|point| point.rates.write_bytes == 40_960.0));
        assert_eq!(state.pool.seconds.back().map(|point| point.rates.writes), Some(10.0));
        assert_eq!(state.now.len(), 1);
        state.add(Vec::new(), &BTreeMap::new(), begin + Duration::from_secs(700), Timestamp::UNIX_EPOCH);
        assert!(state.volumes.is_empty() && state.now.is_empty(), "a deleted volume has no points");
        assert_eq!(state.pool.seconds.back().map(|point| point.rates.writes), Some(0.0));
    }
}
