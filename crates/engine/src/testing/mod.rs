//! The parts that tests of pools share: a [`Site`] in memory, simple requests, and disks whose
//! operations fail on demand. It is for tests only, so everything here panics when something fails.
#![allow(clippy::unwrap_used)]

pub mod differences;
mod faulty;

pub use faulty::{Act, Fail, Faults, FaultyDir, FaultyDisk, Op};

use crate::check::{CheckOptions, CheckReport, Finding};
use crate::device::{BlockDevice, WriteOp};
use crate::disk::{Dir, MemDir, OpenMode};
use crate::error::{ErrorKind, Result};
use crate::ids::Lsn;
use crate::info::SnapshotInfo;
use crate::info::history::Moment;
use crate::pool::{LayoutSpec, Pool, Progress};
use crate::settings::{NewVolume, Placement, PoolConfig, PoolOptions, PvSpec};
use crate::volume::Volume;
use crate::world::{ManualClock, SplitMix, World};
use bytes::Bytes;
use std::sync::Arc;

/// 1024 bytes.
pub const KIB: u64 = 1 << 10;
/// 1024 KiB.
pub const MIB: u64 = 1 << 20;

/// A pool in memory.
pub struct Site {
    /// The files of the pool.
    pub dir: Arc<MemDir>,
    /// The directory as the pool sees it: `dir`, or a layer over it.
    pub seen: Arc<dyn Dir>,
    /// The pool's clock.
    pub clock: Arc<ManualClock>,
    /// The pool's sources of time and identities.
    pub world: World,
    /// The options with which the pool is opened.
    pub options: PoolOptions,
    /// The pool.
    pub pool: Arc<Pool>,
}

/// A [`Site`] to be made.
#[derive(Clone)]
pub struct SiteBuilder {
    seed: u64,
    time: u64,
    config: PoolConfig,
    placement: Placement,
    options: PoolOptions,
    pvs: Vec<PvSpec>,
    features: Option<Vec<String>>,
}

impl SiteBuilder {
    /// Sets the seed of the pool's identities; by default 1.
    pub fn seed(self, seed: u64) -> Self {
        SiteBuilder { seed, ..self }
    }

    /// Sets the time at which the clock starts, in nanoseconds; by default the seed is that.
    pub fn time(self, time: u64) -> Self {
        SiteBuilder { time, ..self }
    }

    /// Sets the size of an extent; by default 64 KiB.
    pub fn extents(mut self, bytes: u64) -> Self {
        self.config.extent_size = bytes;
        self
    }

    /// Sets the sizes of the journal and of its segments; by default 8 MiB and 512 KiB.
    pub fn journal(mut self, bytes: u64, segment: u64) -> Self {
        (self.config.journal_size, self.config.segment_size) = (bytes, segment);
        self
    }

    /// Sets the size of the smallest slot; by default 4 KiB.
    pub fn atomic_unit(mut self, bytes: u32) -> Self {
        self.config.atomic_unit = bytes;
        self
    }

    /// Sets where slots are placed; by default anywhere.
    pub fn placement(self, placement: Placement) -> Self {
        SiteBuilder { placement, ..self }
    }

    /// Sets the options with which the pool is opened each time.
    pub fn options(self, options: PoolOptions) -> Self {
        SiteBuilder { options, ..self }
    }

    /// Sets the physical volumes: (path, bytes).
    pub fn pvs(self, pvs: &[(&str, u64)]) -> Self {
        SiteBuilder { pvs: pvs.iter().map(|(path, size)| pv(path, *size)).collect(), ..self }
    }

    /// Makes the pool without any feature that an upgrade can enable.
    pub fn without_features(self) -> Self {
        SiteBuilder { features: Some(Vec::new()), ..self }
    }

    /// Makes the pool, and opens it.
    pub fn build(self) -> Site {
        self.over(|dir| Arc::new(dir))
    }

    /// Makes the pool in the directory that `layer` makes over one in memory, and opens it.
    pub fn over(self, layer: impl FnOnce(MemDir) -> Arc<dyn Dir>) -> Site {
        let dir = Arc::new(MemDir::new());
        let seen = layer((*dir).clone());
        let clock = Arc::new(ManualClock::new(self.time));
        let world = World { clock: clock.clone(), rng: Arc::new(SplitMix::new(self.seed)) };
        let features = self.features.as_deref();
        Pool::create_with_features(seen.clone(), &world, &self.config, self.placement, &self.pvs, features)
            .unwrap();
        let pool = Pool::open(seen.clone(), world.clone(), self.options.clone()).unwrap();
        Site { dir, seen, clock, world, options: self.options, pool }
    }
}

impl Site {
    /// Makes a pool with one physical volume, `pv-0.img`, that has room for `mib` MiB.
    pub fn new(mib: u64) -> Site {
        Site::builder(mib).build()
    }

    /// Makes a pool like [`Site::new`], with identities that depend on `seed`.
    pub fn seeded(mib: u64, seed: u64) -> Site {
        Site::builder(mib).seed(seed).time(seed).build()
    }

    /// Returns what makes a pool like [`Site::new`], unless it is changed.
    pub fn builder(mib: u64) -> SiteBuilder {
        let config = PoolConfig {
            extent_size: 64 * KIB,
            journal_size: 8 * MIB,
            segment_size: 512 * KIB,
            atomic_unit: 4096,
        };
        SiteBuilder {
            seed: 1,
            time: 1,
            config,
            placement: Placement::Anywhere,
            options: PoolOptions::default(),
            pvs: vec![pv("pv-0.img", (mib + 1) * MIB)],
            features: None,
        }
    }

    /// Makes a volume in the pool of a new site.
    pub fn having(self, name: &str, size: u64, chunk_size: u64) -> Site {
        drop(self.volume(name, size, chunk_size));
        self
    }

    /// Makes a layout the only physical volume of a pool with one other.
    pub fn moved_to(self, spec: &LayoutSpec) -> Site {
        self.pool.add_layout(spec).unwrap();
        let plain = self.pool.pvs()[0].path.clone();
        self.pool.drain_pv(&plain, true).unwrap();
        self.idle();
        self.pool.remove_pv(&plain).unwrap();
        self
    }

    /// Writes the first 8 MiB of the volume `v`: MiB `n` has the byte `first + n` everywhere.
    pub fn fill(&self, first: u8) {
        let volume = self.open("v");
        for n in 0..8 {
            write(&volume, n * MIB, first + n as u8, MIB);
        }
        self.idle();
    }

    /// Checks that the volume `v` has what [`Site::fill`] writes.
    pub fn assert_filled(&self, first: u8) {
        let volume = self.open("v");
        for n in 0..8 {
            assert_bytes(&volume, n * MIB, first + n as u8, MIB);
        }
    }

    /// Drops the pool, as a kill does. Returns its files.
    pub fn kill(self) -> Arc<MemDir> {
        assert_eq!(Arc::strong_count(&self.pool), 1, "handles keep the pool alive");
        self.dir
    }

    /// Opens the pool again as after a kill: nothing is closed. The offline check finds nothing.
    pub fn reopen(self) -> Site {
        let options = self.options.clone();
        self.reopen_with(options)
    }

    /// Opens the pool again, this time with other options.
    pub fn reopen_with(self, options: PoolOptions) -> Site {
        let (site, found) = self.reopen_checked(options);
        assert!(found.is_empty(), "{found:?}");
        site
    }

    /// Opens the pool again as after a kill. `between` sees the files of the closed pool.
    pub fn reopen_after(self, between: impl FnOnce(Arc<dyn Dir>)) -> Site {
        let Site { dir, seen, clock, world, options, pool } = self;
        assert_eq!(Arc::strong_count(&pool), 1, "handles keep the pool alive");
        drop(pool);
        between(seen.clone());
        let pool = Pool::open(seen.clone(), world.clone(), options.clone()).unwrap();
        Site { dir, seen, clock, world, options, pool }
    }

    /// Opens the pool again as after a kill, and also returns what the offline check finds.
    pub fn reopen_checked(self, options: PoolOptions) -> (Site, Vec<Finding>) {
        let Site { dir, seen, clock, world, options: usual, pool } = self;
        assert_eq!(Arc::strong_count(&pool), 1, "handles keep the pool alive");
        drop(pool);
        let found = check(seen.clone()).findings;
        let pool = Pool::open(seen.clone(), world.clone(), options).unwrap();
        (Site { dir, seen, clock, world, options: usual, pool }, found)
    }

    /// Makes a volume.
    pub fn volume(&self, name: &str, size: u64, chunk_size: u64) -> Arc<Volume> {
        volume(&self.pool, name, size, chunk_size)
    }

    /// Opens a volume for reading and writing.
    pub fn open(&self, volume: &str) -> Arc<Volume> {
        self.pool.open_volume(volume, false).unwrap()
    }

    /// Opens a snapshot.
    pub fn snapshot(&self, volume: &str, name: &str) -> Arc<Volume> {
        self.pool.open_snapshot(volume, name).unwrap()
    }

    /// Opens a volume as it was at an LSN.
    pub fn moment(&self, volume: &str, lsn: Lsn) -> Arc<Volume> {
        self.pool.open_moment(volume, &Moment::Lsn(lsn)).unwrap()
    }

    /// Returns the LSN of the last record.
    pub fn lsn(&self) -> Lsn {
        self.pool.stats().sequenced_lsn
    }

    /// Writes `len` times `byte` to the volume `v`, durably. Returns the LSN.
    pub fn put(&self, offset: u64, byte: u8, len: u64) -> Lsn {
        let mut op = [WriteOp::new(offset, Bytes::from(vec![byte; len as usize]))];
        self.open("v").write(&mut op, true);
        op[0].result.as_ref().unwrap();
        self.lsn()
    }

    /// Takes a snapshot.
    pub fn snap(&self, volume: &str, name: &str) {
        self.pool.create_snapshots(&[(volume, name)]).unwrap();
    }

    /// Runs background work until nothing is left.
    pub fn idle(&self) {
        idle(&self.pool);
    }

    /// Returns a snapshot, or its difference to the snapshot `from`, as a stream from `start` on.
    pub fn export(&self, volume: &str, snapshot: &str, from: Option<&str>, start: u64) -> Vec<u8> {
        let mut export = self.pool.export(volume, snapshot, from, start).unwrap();
        let mut all = Vec::new();
        while let Some(piece) = export.next_piece().unwrap() {
            assert!(!piece.is_empty() && piece.len() < 4 << 20, "a piece of {} bytes", piece.len());
            all.extend(piece);
        }
        assert_eq!(export.position(), export.header().size);
        all
    }

    /// Imports a stream that comes in pieces.
    pub fn import(&self, name: Option<&str>, stream: &[u8]) -> Result<SnapshotInfo> {
        let mut import = self.pool.import(name);
        stream.chunks(100_000).try_for_each(|piece| import.push(piece))?;
        import.finish()
    }
}

/// Returns a world whose clock starts at `seed`, and whose identities depend on it.
pub fn world(seed: u64) -> World {
    World { clock: Arc::new(ManualClock::new(seed)), rng: Arc::new(SplitMix::new(seed)) }
}

/// Returns the specification of a physical volume.
pub fn pv(path: &str, bytes: u64) -> PvSpec {
    PvSpec { path: path.into(), size: Some(bytes), force: false }
}

/// Returns the specification of a volume with sectors of 512 bytes.
pub fn new_volume(name: &str, size: u64, chunk_size: u64) -> NewVolume {
    NewVolume { name: name.into(), size, chunk_size, block_size: 512, read_only: false }
}

/// Makes a volume, and opens it.
pub fn volume(pool: &Arc<Pool>, name: &str, size: u64, chunk_size: u64) -> Arc<Volume> {
    pool.create_volume(&new_volume(name, size, chunk_size)).unwrap();
    pool.open_volume(name, false).unwrap()
}

/// Checks a closed pool without repairing anything.
pub fn check(dir: Arc<dyn Dir>) -> CheckReport {
    crate::check::check(dir, &CheckOptions::default(), &mut |_, _| {}).unwrap()
}

/// Checks a closed pool, which has to be clean.
pub fn assert_clean(dir: Arc<dyn Dir>) {
    let report = check(dir);
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// Runs background work until nothing is left.
pub fn idle(pool: &Pool) {
    // Slots that the first pass retires become free in the next.
    for _ in 0..3 {
        while pool.maintain().unwrap() == Progress::Worked {}
    }
}

/// Writes `len` times `byte`.
pub fn write(volume: &Volume, offset: u64, byte: u8, len: u64) {
    request(volume, offset, byte, len).unwrap();
}

/// Writes `len` times `byte`, which may fail.
pub fn try_write(volume: &Volume, offset: u64, byte: u8, len: u64) -> std::result::Result<(), ErrorKind> {
    request(volume, offset, byte, len).map_err(|e| e.kind())
}

fn request(volume: &Volume, offset: u64, byte: u8, len: u64) -> Result<()> {
    let mut ops = [WriteOp::new(offset, Bytes::from(vec![byte; len as usize]))];
    volume.write(&mut ops, false);
    let [op] = ops;
    op.result
}

/// Reads a range.
pub fn read(volume: &Volume, offset: u64, len: u64) -> Vec<u8> {
    let mut buf = vec![0xEE; len as usize];
    volume.read(offset, &mut buf).unwrap();
    buf
}

/// Reads a range, which may fail.
pub fn try_read(volume: &Volume, offset: u64, len: u64) -> std::result::Result<Vec<u8>, ErrorKind> {
    let mut buf = vec![0xEE; len as usize];
    volume.read(offset, &mut buf).map(|()| buf).map_err(|e| e.kind())
}

/// Returns the content of a volume.
pub fn content(volume: &Volume) -> Vec<u8> {
    read(volume, 0, volume.info().size)
}

/// Checks that a range has only this byte.
pub fn assert_bytes(volume: &Volume, offset: u64, byte: u8, len: u64) {
    let got = read(volume, offset, len);
    let wrong = got.iter().position(|b| *b != byte);
    assert_eq!(wrong.map(|i| (i as u64 + offset, got[i])), None, "expected {byte}");
}

/// Returns the error of what has to fail.
pub fn kind<T>(result: Result<T>) -> ErrorKind {
    result.err().unwrap().kind()
}

/// Returns the content of a file.
pub fn content_of(dir: &MemDir, name: &str) -> Vec<u8> {
    let disk = dir.open(name, OpenMode::ReadOnly).unwrap();
    let mut bytes = vec![0; disk.len().unwrap() as usize];
    disk.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Inverts bits of a byte of a file.
pub fn flip(dir: &MemDir, name: &str, at: u64, bits: u8) {
    let disk = dir.open(name, OpenMode::Existing).unwrap();
    let mut byte = [0];
    disk.read_at(&mut byte, at).unwrap();
    disk.write_at(&[byte[0] ^ bits], at).unwrap();
}
