//! How long clients wait for their requests: from when all of a request was received until its
//! reply is ready to be sent.
//!
//! Each open device has histograms of its own, so threads of different connections share no cache
//! line. A reader merges them. A histogram is log-linear: four buckets for each doubling of the
//! time, from 1 µs to 64 s. The targets tell the times ([`BlockDevice::answered`]).

use hindcast_api::Protocol;
use hindcast_engine::device::{BlockDevice, DeviceInfo, RequestKind, StatusRun, WriteOp};
use hindcast_engine::{Result, Volume};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use uuid::Uuid;

/// Number of buckets: four for each doubling, from 1 µs to 64 s.
const BUCKETS: usize = 104;

/// Returns the bucket of a time in nanoseconds.
fn bucket(nanos: u64) -> usize {
    let micros = nanos / 1000;
    if micros == 0 {
        return 0;
    }
    let octave = micros.ilog2();
    // The two bits below the highest one.
    let part = (nanos / 250 >> octave) & 3;
    (octave as usize * 4 + part as usize).min(BUCKETS - 1)
}

/// Returns the end of a bucket in nanoseconds.
fn end(bucket: usize) -> u64 {
    ((bucket as u64 % 4 + 5) * 250) << (bucket / 4)
}

/// Times of requests of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Times {
    /// Number of requests by bucket.
    buckets: [u64; BUCKETS],
    /// Number of requests.
    pub(crate) count: u64,
    /// The sum of the times, in nanoseconds.
    pub(crate) nanos: u64,
}

impl Default for Times {
    fn default() -> Self {
        Times { buckets: [0; BUCKETS], count: 0, nanos: 0 }
    }
}

impl Times {
    fn add(&mut self, other: &Times) {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(sum, n)| *sum += n);
        self.count += other.count;
        self.nanos += other.nanos;
    }

    /// Returns the times since an earlier state of the same histogram.
    pub(crate) fn since(&self, earlier: &Times) -> Times {
        let mut buckets = self.buckets;
        buckets.iter_mut().zip(earlier.buckets).for_each(|(n, before)| *n = n.saturating_sub(before));
        Times {
            buckets,
            count: self.count.saturating_sub(earlier.count),
            nanos: self.nanos.saturating_sub(earlier.nanos),
        }
    }

    /// Returns the time within which this part of the requests was answered, to the end of its
    /// bucket. `None`: there was no request.
    pub(crate) fn quantile(&self, part: f64) -> Option<Duration> {
        let all: u64 = self.buckets.iter().sum();
        let wanted = ((all as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        let found = self.buckets.iter().position(|n| {
            seen += n;
            seen >= wanted
        });
        found.filter(|_| all > 0).map(|bucket| Duration::from_nanos(end(bucket)))
    }

    /// Returns the number of requests by coarser buckets, two for each factor of 16, as (end in
    /// seconds, number). The last bucket has no end.
    pub(crate) fn coarse(&self) -> Vec<(f64, u64)> {
        let parts = self.buckets.chunks(8).enumerate();
        let parts = parts.map(|(n, part)| (end(n * 8 + part.len() - 1) as f64 / 1e9, part.iter().sum()));
        let mut all: Vec<(f64, u64)> = parts.collect();
        if let Some(last) = all.last_mut() {
            last.0 = f64::INFINITY;
        }
        all
    }
}

/// Times of all kinds of requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AllTimes([Times; RequestKind::ALL.len()]);

impl AllTimes {
    pub(crate) fn of(&self, op: RequestKind) -> &Times {
        &self.0[op as usize]
    }

    pub(crate) fn add(&mut self, other: &AllTimes) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, times)| sum.add(times));
    }

    /// Returns the times since an earlier state.
    pub(crate) fn since(&self, earlier: &AllTimes) -> AllTimes {
        AllTimes(std::array::from_fn(|n| self.0[n].since(&earlier.0[n])))
    }
}

/// The histogram of one device and one kind of request.
struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

impl Histogram {
    fn new() -> Self {
        Histogram { buckets: [const { AtomicU64::new(0) }; BUCKETS], nanos: AtomicU64::new(0) }
    }

    /// Adds `count` requests. Each of them took `took`.
    fn add(&self, took: Duration, count: u64) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(nanos)].fetch_add(count, Ordering::Relaxed);
        self.nanos.fetch_add(nanos.saturating_mul(count), Ordering::Relaxed);
    }

    fn read(&self) -> Times {
        let buckets = std::array::from_fn(|n| self.buckets[n].load(Ordering::Relaxed));
        let nanos = self.nanos.load(Ordering::Relaxed);
        Times { buckets, count: buckets.iter().sum(), nanos }
    }
}

/// The histograms of one device.
struct Histograms([Histogram; RequestKind::ALL.len()]);

impl Histograms {
    fn new() -> Self {
        Histograms(std::array::from_fn(|_| Histogram::new()))
    }

    /// Adds `count` requests. Each of them took `took`.
    fn add(&self, op: RequestKind, took: Duration, count: u64) {
        self.0[op as usize].add(took, count);
    }

    fn read(&self) -> AllTimes {
        AllTimes(std::array::from_fn(|n| self.0[n].read()))
    }
}

/// Times by the protocol of the clients: NBD, iSCSI.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ByProtocol([AllTimes; 2]);

impl ByProtocol {
    pub(crate) fn of(&self, protocol: Protocol) -> &AllTimes {
        let [nbd, iscsi] = &self.0;
        match protocol {
            Protocol::Nbd => nbd,
            Protocol::Iscsi => iscsi,
        }
    }

    fn add_to(&mut self, protocol: Protocol, times: &AllTimes) {
        let [nbd, iscsi] = &mut self.0;
        match protocol {
            Protocol::Nbd => nbd.add(times),
            Protocol::Iscsi => iscsi.add(times),
        }
    }

    fn add(&mut self, other: &ByProtocol) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, times)| sum.add(times));
    }

    /// Returns the times of all protocols together.
    fn sum(&self) -> AllTimes {
        let mut sum = AllTimes::default();
        self.0.iter().for_each(|times| sum.add(times));
        sum
    }
}

/// The times of one volume.
#[derive(Default)]
struct OfVolume {
    /// Open devices.
    open: Vec<(Protocol, Weak<Histograms>)>,
    /// Times of devices that were closed.
    closed: ByProtocol,
}

impl OfVolume {
    /// Returns the times of all devices, open or closed.
    fn read(&self) -> ByProtocol {
        let mut sum = ByProtocol::default();
        self.add_to(&mut sum);
        sum
    }

    /// Adds the times of all devices, open or closed, to a sum.
    fn add_to(&self, sum: &mut ByProtocol) {
        sum.add(&self.closed);
        for (protocol, open) in &self.open {
            if let Some(open) = open.upgrade() {
                sum.add_to(*protocol, &open.read());
            }
        }
    }

    fn is_open(&self) -> bool {
        self.open.iter().any(|(_, open)| open.strong_count() > 0)
    }
}

/// What is known of all volumes.
#[derive(Default)]
struct OfAll {
    volumes: BTreeMap<Uuid, OfVolume>,
    /// Times of volumes that do not exist any more. The sum of all never falls.
    ended: ByProtocol,
}

/// The times of all volumes. Copies share them.
#[derive(Clone, Default)]
pub(crate) struct Latencies(Arc<Mutex<OfAll>>);

/// The times of some volumes, and the sum of all that there ever were.
pub(crate) struct ReadTimes {
    pub(crate) all: AllTimes,
    /// The sum of all, by protocol.
    pub(crate) by_protocol: ByProtocol,
    pub(crate) of: BTreeMap<Uuid, AllTimes>,
}

impl Latencies {
    /// Returns a device whose requests are timed as requests of a volume.
    pub(crate) fn timed(&self, protocol: Protocol, volume: Uuid, device: Arc<Volume>) -> Arc<Timed> {
        let times = Arc::new(Histograms::new());
        let mut all = self.0.lock();
        let of = all.volumes.entry(volume).or_default();
        of.open.retain(|(_, open)| open.strong_count() > 0);
        of.open.push((protocol, Arc::downgrade(&times)));
        Arc::new(Timed { device, protocol, volume, times, all: self.clone() })
    }

    /// Returns the times of those volumes that are wanted and were opened since the start, and the
    /// sum of all.
    pub(crate) fn read(&self, wanted: impl Fn(&Uuid) -> bool) -> ReadTimes {
        let state = self.0.lock();
        let (mut by_protocol, mut of) = (state.ended.clone(), BTreeMap::new());
        for (id, volume) in &state.volumes {
            if wanted(id) {
                let times = volume.read();
                by_protocol.add(&times);
                of.insert(*id, times.sum());
            } else {
                volume.add_to(&mut by_protocol);
            }
        }
        ReadTimes { all: by_protocol.sum(), by_protocol, of }
    }

    /// Forgets volumes that do not exist any more. Their times stay in the sum of all.
    pub(crate) fn retain(&self, exists: impl Fn(&Uuid) -> bool) {
        let OfAll { volumes, ended } = &mut *self.0.lock();
        volumes.retain(|volume, of| {
            let stays = exists(volume) || of.is_open();
            if !stays {
                ended.add(&of.closed);
            }
            stays
        });
    }
}

/// A device whose requests are timed.
pub(crate) struct Timed {
    device: Arc<Volume>,
    protocol: Protocol,
    volume: Uuid,
    times: Arc<Histograms>,
    all: Latencies,
}

impl Drop for Timed {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        let of = all.volumes.entry(self.volume).or_default();
        of.closed.add_to(self.protocol, &self.times.read());
        of.open.retain(|(_, open)| !std::ptr::eq(open.as_ptr(), Arc::as_ptr(&self.times)));
    }
}

impl BlockDevice for Timed {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        self.device.try_read(offset, buf)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.device.read(offset, buf)
    }

    fn write(&self, ops: &mut [WriteOp], fua: bool) {
        self.device.write(ops, fua);
    }

    fn compare_and_write(
        &self,
        offset: u64,
        expected: &[u8],
        new: bytes::Bytes,
        fua: bool,
    ) -> Result<std::result::Result<(), u64>> {
        self.device.compare_and_write(offset, expected, new, fua)
    }

    fn flush(&self) -> Result<()> {
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.device.discard(offset, len, fua)
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool, fua: bool) -> Result<()> {
        self.device.write_zeroes(offset, len, may_unmap, fua)
    }

    fn block_status(&self, offset: u64, len: u64, max_runs: usize) -> Result<Vec<StatusRun>> {
        self.device.block_status(offset, len, max_runs)
    }

    fn damaged(&self, offset: u64, len: u64, max_runs: usize) -> Result<Vec<(u64, bool)>> {
        self.device.damaged(offset, len, max_runs)
    }

    fn status_may_wait(&self) -> bool {
        self.device.status_may_wait()
    }

    fn cache(&self, offset: u64, len: u64) -> Result<()> {
        self.device.cache(offset, len)
    }

    fn answered(&self, kind: RequestKind, took: Duration, count: u64) {
        self.times.add(kind, took, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn buckets_follow_one_another() {
        let mut last = 0;
        for nanos in (0..20).map(|n| n * 250).chain((0..37).flat_map(|n| [1u64 << n, (1 << n) + 1, 3 << n])) {
            let found = bucket(nanos);
            assert!(found < BUCKETS && nanos < end(found) || found == BUCKETS - 1, "{nanos} in {found}");
            assert!(found == 0 || nanos >= end(found - 1) || nanos < 1000, "{nanos} in {found}");
            last = last.max(found);
        }
        assert_eq!((bucket(999), bucket(1000), bucket(1250), bucket(2000)), (0, 0, 1, 4));
        assert_eq!((bucket(u64::MAX), last), (BUCKETS - 1, BUCKETS - 1));
        assert!((0..BUCKETS - 1).all(|n| end(n) < end(n + 1)));
    }

    #[test]
    fn quantiles_are_ends_of_buckets() {
        let histogram = Histogram::new();
        assert_eq!(histogram.read().quantile(0.5), None);
        histogram.add(Duration::from_micros(10), 99);
        histogram.add(Duration::from_millis(30), 1);
        let times = histogram.read();
        let micros = |part: f64| times.quantile(part).unwrap().as_micros();
        assert!((10..=13).contains(&micros(0.5)) && (10..=13).contains(&micros(0.99)), "{}", micros(0.5));
        assert!((30_000..=40_000).contains(&micros(1.0)), "{}", micros(1.0));
        assert_eq!((times.count, times.nanos), (100, 99 * 10_000 + 30_000_000));
        assert_eq!(times.since(&times).quantile(0.5), None);
        let coarse = times.coarse();
        assert_eq!((coarse.len(), coarse.iter().map(|(_, count)| count).sum::<u64>()), (13, 100));
        assert!(coarse.is_sorted_by(|one, other| one.0 < other.0), "{coarse:?}");
    }

    #[test]
    fn times_of_closed_devices_stay() {
        let (_dir, pool) = testing::pool();
        let id = testing::create(&pool, "v").uuid;
        let all = Latencies::default();
        let open = |protocol| all.timed(protocol, id, pool.open_volume("v", false).unwrap());
        let (one, two) = (open(Protocol::Nbd), open(Protocol::Iscsi));
        one.answered(RequestKind::Flush, Duration::from_millis(1), 1);
        two.answered(RequestKind::Write, Duration::from_millis(1), 2);
        two.answered(RequestKind::Read, Duration::from_millis(1), 1);
        let counts = || RequestKind::ALL.map(|op| all.read(|_| true).of[&id].of(op).count);
        let sums = |wanted: bool| RequestKind::ALL.map(|op| all.read(|_| wanted).all.of(op).count);
        assert_eq!(counts(), [1, 2, 1, 0]);
        let of =
            |protocol| RequestKind::ALL.map(|op| all.read(|_| false).by_protocol.of(protocol).of(op).count);
        let by_protocol = || (of(Protocol::Nbd), of(Protocol::Iscsi));
        assert_eq!(by_protocol(), ([0, 0, 1, 0], [1, 2, 0, 0]));
        drop(one);
        all.retain(|_| false);
        assert_eq!(counts(), [1, 2, 1, 0], "a device is open");
        drop(two);
        assert_eq!((counts(), sums(false), sums(true)), ([1, 2, 1, 0], [1, 2, 1, 0], [1, 2, 1, 0]));
        all.retain(|volume| *volume == id);
        assert_eq!((all.read(|_| true).of.len(), all.read(|_| false).of.len()), (1, 0));
        all.retain(|_| false);
        assert!(all.read(|_| true).of.is_empty());
        assert_eq!((sums(false), sums(true)), ([1, 2, 1, 0], [1, 2, 1, 0]), "the sum of all never falls");
        assert_eq!(by_protocol(), ([0, 0, 1, 0], [1, 2, 0, 0]));
    }
}
