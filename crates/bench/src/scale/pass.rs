//! One pool with a number of volumes, and all measurements of it.

use super::results::{self as cost, Cost, Kind, Results};
use super::{Args, Deadline};
use crate::database::Random;
use crate::probe::Probe;
use crate::process;
use crate::samples::median;
use crate::scratch::Scratch;
use crate::server::{self, Hindcast, Server, timed};
use crate::{Common, rig};
use anyhow::{Context, Result, bail, ensure};
use hindcast_api::{Client, CreateSchedule, CreateSnapshots, Encoding, NewSnapshot, PatchCdp, PatchPv};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Largest number of volumes. The pool has space for so many, and the server allows enough
/// schedules of [`SCHEDULED`] volumes for them.
pub(super) const MOST: usize = 10_000;
/// Size of the pool in bytes. The pool is a sparse file.
const POOL: u64 = 64 << 30;
const VOLUME: u64 = 1 << 30;
const BLOCK: usize = 4 << 10;
/// Number of connections that write at the same time.
const CONNECTIONS: usize = 8;
/// Largest number of volumes that one request takes snapshots of.
const AT_ONCE: usize = 200;
/// Number of volumes of a schedule.
const SCHEDULED: usize = 10;
/// Seconds between the snapshots of a schedule. This is the longest interval that the server
/// accepts, so no snapshot is due during a run.
const EVERY: u64 = 31 * 24 * 3600;
/// Number of creations that one figure is made of.
const LAST: usize = 100;
const REST: Duration = Duration::from_secs(3);
/// Time of a measurement at rest with schedules. The server checks the schedules at the latest five
/// seconds after the last check ended.
const REST_WITH_SCHEDULES: Duration = Duration::from_secs(11);
/// Number of syncs before each batch. They show how long the disk takes for a sync, because that
/// time varies, and the time of a batch with it.
const SYNCS: usize = 30;
/// Number of short measurements that one figure is made of.
const REPEATS: usize = 3;

pub(super) fn volume(n: usize) -> String {
    format!("v{n:05}")
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Writes a block to each of `volumes` volumes. Each volume has a connection of its own, and
/// [`CONNECTIONS`] are open at a time. Returns the time until all writes are acknowledged.
fn write_all(hindcast: &Hindcast, volumes: usize, round: u64) -> Result<Duration> {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let work = |first: usize| {
            move || -> Result<()> {
                let mut random = Random(round << 32 | first as u64);
                for n in (first..volumes).step_by(CONNECTIONS) {
                    let mut block: Vec<u8> = Vec::with_capacity(BLOCK);
                    (0..BLOCK / 8).for_each(|_| block.extend(random.next().to_le_bytes()));
                    let mut client = hindcast.connect(&volume(n))?;
                    let mut written = false;
                    client.write(1, &mut Vec::new(), |out| {
                        let next = (!written).then_some(0);
                        out.extend(next.iter().flat_map(|_| &block));
                        written = true;
                        Ok(next)
                    })?;
                }
                Ok(())
            }
        };
        let threads: Vec<_> = (0..CONNECTIONS).map(|first| scope.spawn(work(first))).collect();
        for thread in threads {
            match thread.join() {
                Ok(done) => done?,
                Err(_) => bail!("a writing thread panicked"),
            }
        }
        Ok(start.elapsed())
    })
}

/// Watches how many files a process has open.
struct Watch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<usize>>,
}

impl Watch {
    fn start(pid: u32) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut most = 0;
            while !stopped.load(Ordering::Acquire) {
                // The process may have ended.
                most = most.max(process::open_files(pid).unwrap_or(0));
                std::thread::sleep(Duration::from_millis(50));
            }
            most
        });
        Watch { stop, thread: Some(thread) }
    }

    /// Ends the watch, and returns the largest number of open files. Returns 0 if the watch has
    /// ended before.
    fn end(&mut self) -> usize {
        self.stop.store(true, Ordering::Release);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or(0)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

/// One pool with a number of volumes, under measurement.
pub(super) struct Pass {
    hindcast: Hindcast,
    server: Server,
    dir: PathBuf,
    volumes: usize,
    /// The kind of volumes that is measured now.
    kind: Kind,
    made: usize,
    deadline: Deadline,
    /// Number of the only physical volume, as text.
    pv: String,
    /// Number of writes to each volume so far.
    round: u64,
    /// Number of snapshots of each volume so far.
    snapshots: usize,
}

impl Pass {
    /// Starts a server with a new pool in a directory of its own.
    pub(super) fn begin(
        common: &Common,
        args: &Args,
        scratch: &Scratch,
        (volumes, kind): (usize, Kind),
        deadline: Deadline,
    ) -> Result<Pass> {
        let dir = scratch.join(&format!("{volumes}-{}", usize::from(kind == Kind::Histories)));
        let hindcast = Hindcast::new(common, &dir, POOL, args.journal)?;
        let server = hindcast.start("")?;
        // The server writes the files of the journal in advance.
        process::settle(server.pid(), rig::SETTLE_LIMIT)?;
        let pvs = hindcast.api().pvs()?;
        let pv = pvs.first().context("the pool has no physical volume")?.id.to_string();
        let (made, round, snapshots) = (0, 0, 0);
        Ok(Pass { hindcast, server, dir, volumes, kind, made, deadline, pv, round, snapshots })
    }

    /// Returns the number of volumes that exist.
    pub(super) fn made(&self) -> usize {
        self.made
    }

    /// Returns the kind of volumes that is measured now.
    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Takes all measurements of the pool.
    pub(super) fn run(&mut self, args: &Args, results: &mut Results) -> Result<()> {
        let watch = Watch::start(self.server.pid());
        let created = self.create(results);
        created.and_then(|()| self.work(watch, results))?;
        if self.kind == Kind::Histories {
            return Ok(());
        }
        self.kind = Kind::Schedules;
        let watch = Watch::start(self.server.pid());
        let schedules = self.schedule(results)?;
        self.work(watch, results)?;
        for n in 0..schedules {
            self.api().delete_schedule(&format!("s{n}"))?;
        }
        self.kind = Kind::Snapshots;
        let watch = Watch::start(self.server.pid());
        for _ in 0..args.snapshots {
            self.snapshot()?;
            self.deadline.check()?;
        }
        self.destage()?;
        self.work(watch, results)
    }

    /// Ends the server, and removes the pool.
    pub(super) fn end(self) -> Result<()> {
        drop(self.server);
        std::fs::remove_dir_all(&self.dir).with_context(|| format!("remove {}", self.dir.display()))
    }

    fn api(&self) -> &Client {
        self.hindcast.api()
    }

    fn add(&self, results: &mut Results, cost: Cost, value: f64) {
        results.add(cost, self.kind, self.volumes, value);
    }

    /// Creates all volumes, one request after another, and measures that.
    fn create(&mut self, results: &mut Results) -> Result<()> {
        let mut times = Vec::with_capacity(self.volumes);
        let start = Instant::now();
        for n in 0..self.volumes {
            let mut new = server::volume(&volume(n), VOLUME);
            if self.kind == Kind::Histories {
                new.cdp = Some(PatchCdp { encoding: Some(Encoding::Parity), ..PatchCdp::default() });
            }
            times.push(milliseconds(timed(|| self.api().create_volume(&new))?.1));
            self.made = n + 1;
            self.deadline.check()?;
        }
        self.add(results, cost::CREATE_ALL, start.elapsed().as_secs_f64());
        let last = times.split_off(times.len().saturating_sub(LAST));
        self.add(results, cost::CREATE_LAST, median(last));
        self.destage()?;
        Ok(())
    }

    /// Creates schedules for all volumes, and measures that. Returns the number of schedules.
    fn schedule(&self, results: &mut Results) -> Result<usize> {
        let start = Instant::now();
        let schedules = self.volumes.div_ceil(SCHEDULED);
        for n in 0..schedules {
            let of = n * SCHEDULED..((n + 1) * SCHEDULED).min(self.volumes);
            let (name, volumes) = (format!("s{n}"), of.map(volume).collect());
            let new = CreateSchedule { name, volumes, every: EVERY, ..CreateSchedule::default() };
            self.api().create_schedule(&new)?;
        }
        self.add(results, cost::SCHEDULES, start.elapsed().as_secs_f64());
        Ok(schedules)
    }

    /// Takes the measurements that each kind of volumes has.
    fn work(&mut self, mut watch: Watch, results: &mut Results) -> Result<()> {
        let done = self.batches(results).and_then(|()| self.snapshots(results));
        let done = done.and_then(|()| self.rest(results)).and_then(|()| self.lists(results));
        let files = watch.end();
        done?;
        self.add(results, cost::FILES, files as f64);
        self.opening(results)
    }

    /// Makes the server carry out all records that wait, and returns how long that took, in
    /// milliseconds. The request is that of `hindcast pool drain PV --cancel`, which does this
    /// first.
    fn destage(&self) -> Result<f64> {
        let (sequenced, _) = self.positions()?;
        let (_, took) = timed(|| {
            self.api().patch_pv(&self.pv, &PatchPv { draining: Some(false), ..PatchPv::default() })
        })?;
        let (_, destaged) = self.positions()?;
        ensure!(destaged >= sequenced, "the server carried out {destaged} of {sequenced} records");
        self.deadline.check()?;
        Ok(milliseconds(took))
    }

    /// Returns the LSN of the last sequenced record, and the LSN of the last record that was
    /// carried out.
    fn positions(&self) -> Result<(u64, u64)> {
        let journal = self.api().pool()?.journal;
        Ok((journal.sequenced_lsn, journal.destaged_lsn))
    }

    /// Returns the milliseconds of [`Pass::destage`] when no record waits. They are subtracted from
    /// the time of a batch.
    fn empty(&self) -> Result<f64> {
        Ok(median((0..REPEATS + 2).map(|_| self.destage()).collect::<Result<_>>()?))
    }

    /// Writes to each volume. Returns the milliseconds until all writes are acknowledged.
    fn write(&mut self) -> Result<f64> {
        self.round += 1;
        Ok(milliseconds(write_all(&self.hindcast, self.volumes, self.round)?))
    }

    fn batches(&mut self, results: &mut Results) -> Result<()> {
        self.destage()?;
        let empty = self.empty()?;
        self.add(results, cost::EMPTY, empty);
        let probe = Probe::new(&self.dir)?;
        let (mut writes, mut batches, mut syncs) = (Vec::new(), Vec::new(), Vec::new());
        for batch in 0..=REPEATS {
            for _ in 0..SYNCS {
                syncs.push(milliseconds(probe.sync()?));
            }
            let wrote = self.write()?;
            let carried_out = self.destage()? - empty;
            if batch > 0 {
                batches.push(carried_out);
            } else {
                self.add(results, cost::BATCH_FIRST, carried_out);
            }
            writes.push(wrote);
        }
        self.add(results, cost::DISK, median(syncs));
        self.add(results, cost::WRITES, median(writes));
        self.add(results, cost::BATCH, median(batches));
        let memory = process::memory(self.server.pid())?;
        self.add(results, cost::RESIDENT_BATCH, mebibytes(memory.resident));
        self.add(results, cost::PEAK, mebibytes(memory.peak));
        Ok(())
    }

    /// Creates one snapshot of each volume, with up to 200 volumes in a request. Returns the time
    /// of the requests.
    fn snapshot(&mut self) -> Result<Duration> {
        let name = format!("n{}", self.snapshots);
        self.snapshots += 1;
        let mut took = Duration::ZERO;
        for first in (0..self.volumes).step_by(AT_ONCE) {
            let of = first..(first + AT_ONCE).min(self.volumes);
            let each = of.map(|n| NewSnapshot { volume: volume(n), name: Some(name.clone()) });
            let new = CreateSnapshots { snapshots: each.collect(), ..CreateSnapshots::default() };
            took += timed(|| self.api().create_snapshots(&new))?.1;
        }
        Ok(took)
    }

    fn snapshots(&mut self, results: &mut Results) -> Result<()> {
        let empty = self.empty()?;
        let took = self.snapshot()?;
        self.add(results, cost::SNAPSHOT, milliseconds(took));
        let carried_out = self.destage()? - empty;
        self.add(results, cost::SNAPSHOT_BATCH, carried_out);
        Ok(())
    }

    /// Measures the CPU time of the server while no client sends a request.
    fn rest(&self, results: &mut Results) -> Result<()> {
        let before = process::cpu_time(self.server.pid())?;
        let start = Instant::now();
        std::thread::sleep(if self.kind == Kind::Schedules { REST_WITH_SCHEDULES } else { REST });
        let used = process::cpu_time(self.server.pid())?.saturating_sub(before);
        self.add(results, cost::REST, used.as_secs_f64() * 100.0 / start.elapsed().as_secs_f64());
        self.deadline.check()
    }

    fn lists(&self, results: &mut Results) -> Result<()> {
        let api = [
            (cost::VOLUMES_API, "/volumes"),
            (cost::SNAPSHOTS_API, "/snapshots"),
            (cost::SCHEDULES_API, "/schedules"),
        ];
        for (cost, path) in api {
            let get = |_| Ok(milliseconds(timed(|| self.api().raw(path))?.1));
            let times = (0..REPEATS).map(get).collect::<Result<_>>()?;
            if cost != cost::SCHEDULES_API || self.kind == Kind::Schedules {
                self.add(results, cost, median(times));
            }
        }
        let commands: [(Cost, &[&str]); 4] = [
            (cost::VOLUMES_CLI, &["volume", "list"]),
            (cost::SNAPSHOTS_CLI, &["snapshot", "list"]),
            (cost::SCHEDULES_CLI, &["schedule", "list"]),
            (cost::STATUS_CLI, &["status"]),
        ];
        for (cost, command) in commands {
            let run = |_| Ok(milliseconds(self.hindcast.time_command(command)?));
            let times = (0..REPEATS).map(run).collect::<Result<_>>()?;
            if cost != cost::SCHEDULES_CLI || self.kind == Kind::Schedules {
                self.add(results, cost, median(times));
            }
        }
        self.deadline.check()
    }

    /// Starts the server on its pool. Returns the milliseconds until NBD answers.
    fn open(&mut self) -> Result<f64> {
        let start = Instant::now();
        self.server = self.hindcast.launch(&volume(0))?;
        self.server.wait_for(&self.hindcast, &volume(0))?;
        Ok(milliseconds(start.elapsed()))
    }

    fn opening(&mut self, results: &mut Results) -> Result<()> {
        let (mut stops, mut opens) = (Vec::new(), Vec::new());
        for _ in 0..REPEATS {
            let start = Instant::now();
            self.server.stop()?;
            stops.push(milliseconds(start.elapsed()));
            opens.push(self.open()?);
        }
        let memory = process::memory(self.server.pid())?;
        let files = process::open_files(self.server.pid())?;
        self.add(results, cost::STOP, median(stops));
        self.add(results, cost::OPEN, median(opens));
        self.add(results, cost::RESIDENT_OPEN, mebibytes(memory.resident));
        self.add(results, cost::PEAK_OPEN, mebibytes(memory.peak));
        self.add(results, cost::FILES_OPEN, files as f64);
        self.destage()?;
        self.write()?;
        self.server.kill()?;
        let took = self.open()?;
        self.add(results, cost::OPEN_KILLED, took);
        self.destage()?;
        Ok(())
    }
}

pub(super) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_sees_files_and_ends() {
        let mut watch = Watch::start(std::process::id());
        std::thread::sleep(Duration::from_millis(120));
        assert!(watch.end() > 0);
        assert_eq!(watch.end(), 0);
        drop(Watch::start(std::process::id()));
    }
}
