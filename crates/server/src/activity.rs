//! What clients did lately, by second: samples of counters, and what changed between them.
//!
//! In memory are points of one second for five minutes and of ten seconds for an hour, for the pool
//! and for the busiest volumes. All of it takes less than 32 MiB, whatever the number of volumes.

use crate::latency::{AllTimes, ReadTimes};
use hindcast_api::{Activity, ActivityPoint, Live, Rates};
use hindcast_engine::device::RequestKind;
use hindcast_engine::pool::VolumeStats;
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
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
/// Number of volumes that have longer points.
const VOLUMES: usize = 400;
/// Number of those volumes that have one-second points, too.
const CLOSELY: usize = 64;
/// Number of volumes that are ranked.
const RANKED: usize = 32 << 10;
/// The part of a volume's rank that stays after a second. Half of it is gone after 69 seconds.
const STAYS: f64 = 0.99;
/// How much busier a volume must be than the one whose place it takes.
const BUSIER: f64 = 1.5;

/// The counters of a volume at one time.
#[derive(Clone, Default)]
struct Counters {
    stats: VolumeStats,
    times: AllTimes,
}

/// The points of a volume, or of the pool.
#[derive(Default)]
struct Points {
    /// One-second points, if the volume has a place for them.
    seconds: Option<VecDeque<ActivityPoint>>,
    longs: VecDeque<ActivityPoint>,
    /// The counters at the last short and at the last long point.
    last: Counters,
    last_long: Counters,
}

/// Volumes with their ranks.
type Ranks = Vec<(Uuid, f64)>;

/// What is known of a volume, whether clients have used it or not.
struct Ranked {
    stats: VolumeStats,
    /// Number of requests, those of long ago for less.
    rank: f64,
}

#[derive(Default)]
struct State {
    pool: Points,
    /// The requests of all ranked volumes since the first sample, also of those that do not exist
    /// any more.
    sum: VolumeStats,
    ranked: HashMap<Uuid, Ranked>,
    /// The busiest volumes.
    volumes: BTreeMap<Uuid, Points>,
    /// Number of samples.
    count: usize,
    at: Option<Instant>,
    at_long: Option<Instant>,
    /// Rates of the last second.
    now: BTreeMap<Uuid, Rates>,
}

/// A sample of all volumes.
pub(crate) struct Sample<'a> {
    pub(crate) stats: &'a [(Uuid, VolumeStats)],
    /// The requests under way.
    pub(crate) flying: &'a BTreeMap<Uuid, u64>,
    pub(crate) time: Timestamp,
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

    /// Adds a sample of all volumes. `times` returns the times of the volumes that it is asked for.
    /// Returns the rates of the last second: of the pool, and of the busiest volumes with requests.
    pub(crate) fn add(
        &self,
        sample: &Sample<'_>,
        times: impl FnOnce(&dyn Fn(&Uuid) -> bool) -> ReadTimes,
    ) -> (Rates, BTreeMap<Uuid, Rates>) {
        let mut state = self.state.lock();
        state.add(sample, Instant::now(), times);
        let last = state.pool.seconds.iter().flatten().next_back();
        (last.map(|point| point.rates).unwrap_or_default(), state.now.clone())
    }

    /// Returns what clients did with a volume, or with all, in the last five minutes or the last
    /// hour. A volume that is not among the busiest has no points, or only the longer ones.
    pub(crate) fn activity(&self, volume: Option<Uuid>, hour: bool) -> Activity {
        let state = self.state.lock();
        let points = volume.map_or(Some(&state.pool), |id| state.volumes.get(&id));
        let (interval, points) = match points {
            None => (if hour { LONG } else { 1 }, Vec::new()),
            Some(points) => match points.seconds.as_ref().filter(|_| !hour) {
                Some(seconds) => (1, seconds.iter().copied().collect()),
                None => {
                    let wanted = if hour { LONGS } else { SECONDS / LONG };
                    let skipped = points.longs.len().saturating_sub(wanted);
                    (LONG, points.longs.range(skipped..).copied().collect())
                }
            },
        };
        Activity { interval_seconds: interval as u64, points }
    }
}

impl State {
    /// Adds a sample of all volumes.
    fn add(
        &mut self,
        sample: &Sample<'_>,
        now: Instant,
        times: impl FnOnce(&dyn Fn(&Uuid) -> bool) -> ReadTimes,
    ) {
        self.count += 1;
        let since = |at: Option<Instant>| at.map(|at| now.duration_since(at));
        let short = since(self.at.replace(now));
        let long = match self.count % LONG {
            1 => Some(since(self.at_long.replace(now))),
            _ => None,
        };
        self.rank(sample.stats);
        self.choose(long.is_some());
        self.now.clear();
        let ReadTimes { all, mut of, .. } = times(&|id| self.volumes.contains_key(id));
        for (id, stats) in sample.stats {
            let Some(points) = self.volumes.get_mut(id) else { continue };
            let counters = Counters { stats: *stats, times: of.remove(id).unwrap_or_default() };
            let flying = sample.flying.get(id).copied().unwrap_or(0);
            if let Some(rates) = points.add(&counters, flying, (short, long), sample.time) {
                self.now.insert(*id, rates);
            }
        }
        let counters = Counters { stats: self.sum, times: all };
        self.pool.seconds.get_or_insert_default();
        self.pool.add(&counters, sample.flying.values().sum(), (short, long), sample.time);
    }

    /// Adds the requests since the last sample to the sum, and to the ranks of their volumes.
    fn rank(&mut self, all: &[(Uuid, VolumeStats)]) {
        let exists: HashSet<Uuid> = all.iter().map(|(id, _)| *id).collect();
        self.volumes.retain(|id, _| exists.contains(id));
        self.ranked.retain(|id, _| exists.contains(id));
        for (id, stats) in all {
            let Some(known) = self.ranked.get_mut(id) else {
                // The requests of a volume that was in the trash are not new.
                if self.ranked.len() < RANKED {
                    self.ranked.insert(*id, Ranked { stats: *stats, rank: 0.0 });
                }
                continue;
            };
            let before = requests(&self.sum);
            add_since(&mut self.sum, stats, &known.stats);
            let new = requests(&self.sum).saturating_sub(before) as f64;
            (known.stats, known.rank) = (*stats, known.rank * STAYS + new);
        }
    }

    /// Chooses the volumes that have points. The busiest ones take the places of others at longer
    /// points only, and only if they are much busier, because points are lost then.
    fn choose(&mut self, may_replace: bool) {
        if self.volumes.len() < VOLUMES || may_replace {
            let has = |id: &Uuid| self.volumes.contains_key(id);
            let (mut inside, outside) = self.parted(has);
            if !may_replace {
                inside.clear();
            }
            let (removed, added) = replaced(inside, outside, VOLUMES - self.volumes.len());
            removed.iter().for_each(|id| drop(self.volumes.remove(id)));
            for id in added {
                let stats = self.ranked.get(&id).map(|ranked| ranked.stats).unwrap_or_default();
                let last = Counters { stats, times: AllTimes::default() };
                self.volumes.insert(id, Points { last_long: last.clone(), last, ..Points::default() });
            }
        }
        let closely = self.volumes.values().filter(|points| points.seconds.is_some()).count();
        if closely < CLOSELY || may_replace {
            let (mut inside, mut outside) =
                self.parted(|id| self.volumes.get(id).is_some_and(|points| points.seconds.is_some()));
            outside.retain(|(id, _)| self.volumes.contains_key(id));
            if !may_replace {
                inside.clear();
            }
            let (removed, added) = replaced(inside, outside, CLOSELY - closely.min(CLOSELY));
            for (ids, seconds) in [(removed, None), (added, Some(VecDeque::new()))] {
                for id in ids {
                    self.volumes.entry(id).and_modify(|points| points.seconds.clone_from(&seconds));
                }
            }
        }
    }

    /// Returns the ranked volumes, by whether they are inside: those inside with the idlest first,
    /// and the others with the busiest first.
    fn parted(&self, inside: impl Fn(&Uuid) -> bool) -> (Ranks, Ranks) {
        // A volume that no client has used yet needs no points.
        let used = self.ranked.iter().filter(|(_, ranked)| ranked.stats != VolumeStats::default());
        let all = used.map(|(id, ranked)| (*id, ranked.rank));
        let (mut within, mut outside): (Vec<_>, Vec<_>) = all.partition(|(id, _)| inside(id));
        within.sort_unstable_by(|one, other| one.1.total_cmp(&other.1).then(one.0.cmp(&other.0)));
        outside.sort_unstable_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
        (within, outside)
    }
}

/// Returns who leaves and who enters, with `free` places left.
fn replaced(inside: Ranks, outside: Ranks, free: usize) -> (Vec<Uuid>, Vec<Uuid>) {
    let (mut removed, mut added) = (Vec::new(), Vec::new());
    let mut idlest = inside.into_iter();
    for (id, rank) in outside {
        if added.len() >= free {
            let Some((idle, _)) = idlest.next().filter(|(_, of)| rank > of * BUSIER + 1.0) else { break };
            removed.push(idle);
        }
        added.push(id);
    }
    (removed, added)
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
        if let (Some(rates), Some(seconds)) = (found, &mut self.seconds) {
            push(seconds, ActivityPoint { time, rates }, SECONDS);
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

/// Adds a point. The memory has room for `most` points at most.
fn push(points: &mut VecDeque<ActivityPoint>, point: ActivityPoint, most: usize) {
    if points.len() == most {
        points.pop_front();
    } else if points.len() == points.capacity() {
        points.reserve_exact((most - points.len()).min(60));
    }
    points.push_back(point);
}

fn requests(stats: &VolumeStats) -> u64 {
    stats.reads + stats.writes + stats.flushes
}

/// Adds what was counted since an earlier state.
fn add_since(sum: &mut VolumeStats, now: &VolumeStats, earlier: &VolumeStats) {
    sum.reads += now.reads.saturating_sub(earlier.reads);
    sum.writes += now.writes.saturating_sub(earlier.writes);
    sum.flushes += now.flushes.saturating_sub(earlier.flushes);
    sum.read_bytes += now.read_bytes.saturating_sub(earlier.read_bytes);
    sum.write_bytes += now.write_bytes.saturating_sub(earlier.write_bytes);
}

/// Returns the requests between two states of the counters.
fn rates(before: &Counters, after: &Counters, in_flight: u64, took: Duration) -> Rates {
    let seconds = took.as_secs_f64().max(0.001);
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
        read_p50: within(RequestKind::Read, 0.5),
        read_p99: within(RequestKind::Read, 0.99),
        write_p50: within(RequestKind::Write, 0.5),
        write_p99: within(RequestKind::Write, 0.99),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(writes: u64) -> VolumeStats {
        VolumeStats { writes, write_bytes: writes * 4096, ..VolumeStats::default() }
    }

    /// Adds a sample at a second: (number of the volume, its writes so far).
    fn sample(state: &mut State, begin: Instant, second: u64, all: &[(u128, u64)]) {
        let all: Vec<_> = all.iter().map(|(id, writes)| (Uuid::from_u128(*id), stats(*writes))).collect();
        let sample = Sample { stats: &all, flying: &BTreeMap::new(), time: Timestamp::UNIX_EPOCH };
        let times = |_: &dyn Fn(&Uuid) -> bool| ReadTimes {
            all: AllTimes::default(),
            by_protocol: Default::default(),
            of: BTreeMap::new(),
        };
        state.add(&sample, begin + Duration::from_secs(second), times);
    }

    fn last(points: &Points) -> Option<f64> {
        points.seconds.iter().flatten().next_back().map(|point| point.rates.writes)
    }

    #[test]
    fn points_are_differences() {
        let (mut state, begin) = (State::default(), Instant::now());
        let (id, idle) = (Uuid::from_u128(1), Uuid::from_u128(2));
        for n in 0..700u64 {
            sample(&mut state, begin, n, &[(1, n * 10), (2, 0), (3, 7 + n)]);
        }
        assert!(!state.volumes.contains_key(&idle), "no client used it");
        let points = &state.volumes[&id];
        let seconds = points.seconds.as_ref().unwrap();
        assert_eq!((seconds.len(), points.longs.len()), (SECONDS, 69));
        assert!(seconds.iter().all(|point| point.rates.writes == 10.0));
        assert!(points.longs.iter().skip(1).all(|point| point.rates.write_bytes == 40_960.0));
        assert_eq!(last(&state.pool), Some(11.0));
        assert_eq!(state.now.len(), 2);
        sample(&mut state, begin, 700, &[(3, 707)]);
        assert!(!state.volumes.contains_key(&id) && state.now.len() == 1, "a deleted volume has no points");
        assert_eq!(last(&state.pool), Some(1.0), "what goes on counts beside the deletion");
        let rates: Vec<f64> = state.pool.longs.iter().skip(1).map(|point| point.rates.writes).collect();
        // The last second of the deleted volume is not known.
        let (last, before) = rates.split_last().unwrap();
        assert!(before.iter().all(|rate| *rate == 11.0) && *last == 10.0, "{rates:?}");
    }

    #[test]
    fn the_busiest_volumes_have_points() {
        let (mut state, begin) = (State::default(), Instant::now());
        let count = VOLUMES as u128 + 100;
        // The later ones are the busier ones.
        for second in 0..21 {
            let all: Vec<_> = (1..=count).map(|id| (id, (second + 1) * id as u64 * 10)).collect();
            sample(&mut state, begin, second, &all);
            assert!(state.volumes.len() <= VOLUMES);
        }
        let busiest = Uuid::from_u128(count);
        assert!(last(&state.volumes[&busiest]) == Some(count as f64 * 10.0));
        assert!(!state.volumes.contains_key(&Uuid::from_u128(1)));
        assert_eq!(state.volumes.len(), VOLUMES);
        let closely = |state: &State| {
            let has = state.volumes.iter().filter(|(_, points)| points.seconds.is_some());
            has.map(|(id, _)| id.as_u128()).collect::<Vec<_>>()
        };
        let before = closely(&state);
        assert!(before.len() == CLOSELY && before.iter().all(|id| *id > 200), "{before:?}");
        // A volume that was idle before becomes the busiest, and takes a place at a longer point.
        for second in 21..60 {
            let mut all: Vec<_> = (1..=count).map(|id| (id, 21 * id as u64 * 10)).collect();
            all[0].1 = 1_000_000 * second;
            sample(&mut state, begin, second, &all);
        }
        let after = closely(&state);
        assert!(after.len() == CLOSELY && after.contains(&1), "{after:?}");
        assert_eq!(after.iter().filter(|id| !before.contains(id)).count(), 1, "the others keep their points");
        assert_eq!(last(&state.volumes[&Uuid::from_u128(1)]), Some(1_000_000.0));
    }

    #[test]
    fn volumes_that_are_not_ranked_do_not_count() {
        let (mut state, begin) = (State::default(), Instant::now());
        for second in 0..3 {
            let all: Vec<(u128, u64)> = (1..=RANKED as u128 + 10).map(|id| (id, 7 + second)).collect();
            sample(&mut state, begin, second, &all);
        }
        assert_eq!((state.ranked.len(), state.sum.writes), (RANKED, 2 * RANKED as u64));
        assert_eq!(last(&state.pool), Some(RANKED as f64));
    }

    #[test]
    fn a_volume_that_comes_back_from_the_trash_makes_no_burst() {
        let (mut state, begin) = (State::default(), Instant::now());
        for (second, all) in
            [vec![(1, 5), (2, 900)], vec![(1, 6)], vec![(1, 7), (2, 900)], vec![(1, 8), (2, 901)]]
                .into_iter()
                .enumerate()
        {
            sample(&mut state, begin, second as u64, &all);
        }
        let rates: Vec<f64> = state.pool.seconds.iter().flatten().map(|point| point.rates.writes).collect();
        assert_eq!(rates, [1.0, 1.0, 2.0]);
    }

    #[test]
    fn the_memory_is_bounded() {
        let point = size_of::<ActivityPoint>();
        let volumes = VOLUMES * (size_of::<Points>() + LONGS * point) + CLOSELY * SECONDS * point;
        // A hash table has up to twice as many places, and a byte for each.
        let ranked = RANKED * 2 * (size_of::<(Uuid, Ranked)>() + 1);
        assert!(volumes + ranked <= 32 << 20, "{volumes} + {ranked}");
        let mut points = VecDeque::new();
        for _ in 0..2 * SECONDS {
            let point = ActivityPoint { time: Timestamp::UNIX_EPOCH, rates: Rates::default() };
            push(&mut points, point, SECONDS);
        }
        assert_eq!((points.len(), points.capacity()), (SECONDS, SECONDS));
    }
}
