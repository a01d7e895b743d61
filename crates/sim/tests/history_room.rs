//! Histories on a file system that fills up. A write that can't be recorded is refused before it is
//! acknowledged, and everything else continues.
#![allow(clippy::unwrap_used)] // a test may panic

use bytes::Bytes;
use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Compression, Encoding, Moment, Retention};
use hindcast_engine::check::{CheckOptions, check};
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::pool::{Health, NewVolume, Placement, Pool, PoolConfig, PoolOptions, Progress, PvSpec};
use hindcast_engine::world::{ManualClock, Rng, SplitMix, World};
use hindcast_engine::{ErrorKind, Volume};
use hindcast_sim::SimDir;
use std::sync::Arc;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const MARGIN: u64 = 8 * MIB;
const SIZE: u64 = 4 * MIB;
const CHUNK: u64 = 64 * KIB;

/// A pool on a machine whose file system has `room` bytes more than the pool keeps for its catalog
/// and journal. It has two volumes: `history` has CDP, and `plain` does not.
struct Site {
    dir: SimDir,
    clock: Arc<ManualClock>,
    world: World,
    rng: SplitMix,
    pool: Arc<Pool>,
    /// The content of `history`.
    now: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq)]
enum Disks {
    /// Extents and histories take their space from the same file system.
    Files,
    Devices,
}

fn options() -> PoolOptions {
    PoolOptions { backing_margin: MARGIN, destage_threads: 1, ..PoolOptions::default() }
}

impl Site {
    fn new(room: u64, disks: Disks, settings: CdpSettings) -> Site {
        let (dir, clock) = (SimDir::new(1), Arc::new(ManualClock::new(1_000_000)));
        // A limit makes the machine count the space in use from the beginning.
        dir.set_backing(Some(1 << 40));
        let world = World { clock: clock.clone(), rng: Arc::new(SplitMix::new(1)) };
        let config = PoolConfig {
            extent_size: 256 * KIB,
            journal_size: 8 * MIB,
            segment_size: MIB,
            atomic_unit: 4096,
        };
        let pv = match disks {
            Disks::Files => PvSpec { path: "pv-0".into(), size: Some(64 * MIB), force: false },
            Disks::Devices => {
                dir.add_block_device("/dev/sim0", 64 * MIB);
                PvSpec { path: "/dev/sim0".into(), size: None, force: false }
            }
        };
        let engine_dir = Arc::new(dir.clone());
        Pool::create(engine_dir.clone(), &world, &config, Placement::Anywhere, &[pv]).unwrap();
        let pool = Pool::open(engine_dir, world.clone(), options()).unwrap();
        for name in ["history", "plain"] {
            let (name, size) = (name.into(), SIZE);
            let new = NewVolume { name, size, chunk_size: CHUNK, block_size: 512, read_only: false };
            pool.create_volume(&new).unwrap();
        }
        pool.set_cdp("history", Some(settings)).unwrap();
        let now = vec![0; SIZE as usize];
        let site = Site { dir, clock, world, rng: SplitMix::new(7), pool, now };
        // The files of the journal exist after this, and the catalog has its size.
        site.idle();
        site.dir.set_backing(Some(site.dir.backing_used() + MARGIN + room));
        site.idle();
        site
    }

    fn volume(&self, name: &str) -> Arc<Volume> {
        self.pool.open_volume(name, false).unwrap()
    }

    fn idle(&self) {
        for _ in 0..4 {
            while self.pool.maintain().unwrap() == Progress::Worked {}
        }
    }

    fn healthy(&self) -> bool {
        !matches!(self.pool.health(), Health::Poisoned(_))
    }

    /// Writes incompressible data. A refused write leaves no trace.
    fn write(&mut self, offset: u64, len: u64) -> Result<(), ErrorKind> {
        self.clock.advance(10);
        let data: Vec<u8> = (0..len / 8).flat_map(|_| self.rng.next().to_le_bytes()).collect();
        let result = write_to(&self.volume("history"), offset, &data);
        if result.is_ok() {
            self.now[offset as usize..(offset + len) as usize].copy_from_slice(&data);
        }
        result
    }

    /// Writes at random places until a write is refused. Returns the number of bytes that were
    /// accepted.
    fn fill(&mut self, part: u64) -> u64 {
        let mut taken = 0;
        while taken < 256 * MIB {
            let offset = self.rng.next() % (SIZE / part) * part;
            match self.write(offset, part) {
                Ok(()) => taken += part,
                Err(kind) => {
                    assert_eq!(kind, ErrorKind::NoSpace);
                    assert!(self.healthy(), "{:?}", self.pool.health());
                    return taken;
                }
            }
        }
        panic!("nothing was refused");
    }

    fn verify(&self) {
        let mut all = vec![0; SIZE as usize];
        self.volume("history").read(0, &mut all).unwrap();
        assert!(all == self.now, "what was acknowledged is there");
    }

    /// Opens the pool again after a kill and an offline check.
    fn reopen(self) -> Site {
        let Site { dir, clock, world, rng, pool, now } = self;
        drop(pool);
        dir.kill();
        let report = check(Arc::new(dir.clone()), &CheckOptions::default(), &mut |_, _| {}).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
        let pool = Pool::open(Arc::new(dir.clone()), world.clone(), options()).unwrap();
        Site { dir, clock, world, rng, pool, now }
    }
}

fn write_to(volume: &Volume, offset: u64, data: &[u8]) -> Result<(), ErrorKind> {
    let mut ops = [WriteOp::new(offset, Bytes::copy_from_slice(data))];
    volume.write(&mut ops, false);
    let [op] = ops;
    op.result.map_err(|e| e.kind())
}

fn settings(encoding: Encoding) -> CdpSettings {
    let (compression, anchors) = (Compression::None, AnchorPolicy::Never);
    CdpSettings { encoding, compression, anchors, max_distance: None, retention: Retention::default() }
}

#[test]
fn what_has_no_room_in_the_history_is_refused_before_it_is_acknowledged() {
    for (disks, part) in [(Disks::Files, 4 * KIB), (Disks::Files, MIB), (Disks::Devices, 64 * KIB)] {
        let mut site = Site::new(16 * MIB, disks, settings(Encoding::Parity));
        let taken = site.fill(part);
        assert!(taken >= 6 * MIB, "{taken} bytes of {part} each");
        // Everything acknowledged can be carried out.
        site.pool.drain().unwrap();
        assert_eq!(site.write(0, 2 * MIB), Err(ErrorKind::NoSpace));
        site.verify();
        let closing = site.pool.info().reserved_history;
        assert!(closing < 512 * KIB, "{closing} bytes are promised when nothing is pending");

        // Operations that need no space of the file system continue.
        if disks == Disks::Devices {
            let plain = site.volume("plain");
            let data = vec![3; SIZE as usize];
            write_to(&plain, 0, &data).unwrap();
            site.pool.drain().unwrap();
        }
        site.pool.mark("history", "full").unwrap();
        site.pool.create_snapshots(&[("history", "now"), ("plain", "now")]).unwrap();
        site.volume("history").discard(0, SIZE, false).unwrap();
        site.now.fill(0);
        site.verify();

        // The whole past is there. When it is deleted, writes are accepted again.
        let lsn = site.pool.stats().sequenced_lsn;
        site.pool.open_moment("history", &Moment::Lsn(lsn)).unwrap();
        site.pool.set_cdp("history", None).unwrap();
        site.pool.delete_snapshots("history", &["now"]).unwrap();
        site.pool.delete_volume("history", true).unwrap();
        site.idle();
        site.idle();
        assert_eq!(site.pool.info().reserved_history, 0);
        let new = NewVolume {
            name: "history".into(),
            size: SIZE,
            chunk_size: CHUNK,
            block_size: 512,
            read_only: false,
        };
        site.pool.create_volume(&new).unwrap();
        site.pool.set_cdp("history", Some(settings(Encoding::Undo))).unwrap();
        let again = site.fill(part);
        assert!(again >= 6 * MIB, "{again} bytes of {part} each");
        site.idle();
        site.verify();
    }
}

#[test]
fn zeros_are_as_long_in_a_history_as_they_are() {
    let mut site = Site::new(4 * MIB, Disks::Devices, settings(Encoding::Undo));
    site.write(0, MIB).unwrap();
    let volume = site.volume("history");
    let refused =
        |result: hindcast_engine::Result<()>| result.map_err(|e| e.kind()) == Err(ErrorKind::NoSpace);
    assert!(
        refused(volume.write_zeroes(0, SIZE, false, false)),
        "a tiny record, and all of the volume behind it"
    );
    site.verify();
    volume.write_zeroes(0, MIB, false, false).unwrap();
    site.now[..MIB as usize].fill(0);
    let mut discards = 0;
    loop {
        site.verify();
        let result = volume.discard(0, MIB / 2, false);
        if refused(result) {
            break;
        }
        discards += 1;
        assert!(discards < 100, "nothing was refused");
        site.pool.destage_step().unwrap();
    }
    // After an anchor there is nothing to record.
    volume.discard(0, 2 * MIB, false).unwrap();
    site.pool.drain().unwrap();
    assert!(site.healthy());
    drop(volume);
    let site = site.reopen();
    site.verify();
}

#[test]
fn promises_outlive_a_restart() {
    for disks in [Disks::Files, Disks::Devices] {
        let mut site = Site::new(12 * MIB, disks, settings(Encoding::Redo));
        // The journal holds writes of which none is in place. The file systems have no more room
        // than these writes need.
        for n in 0..60 {
            site.write(n * CHUNK, CHUNK).unwrap();
        }
        let promised = site.pool.info().reserved_history;
        assert!(promised > 60 * CHUNK);
        let mut site = site.reopen();
        assert_eq!(site.pool.info().reserved_history, promised);
        for _ in 0..6 {
            site.fill(32 * KIB);
            site = site.reopen();
        }
        site.verify();
        site.idle();
        site.verify();
    }
}

#[test]
fn retention_makes_room_for_what_was_refused() {
    let mut kept = settings(Encoding::Undo);
    kept.retention.time = Some(1_000_000);
    let mut site = Site::new(8 * MIB, Disks::Devices, kept);
    site.fill(64 * KIB);
    site.clock.advance(10_000_000);
    // No background work runs in between. The write makes its own room.
    site.write(0, 64 * KIB).unwrap();
    site.idle();
    site.verify();
}

#[test]
fn somebody_else_who_fills_the_file_system_is_noticed_in_time() {
    let mut site = Site::new(64 * MIB, Disks::Devices, settings(Encoding::Parity));
    site.write(0, MIB).unwrap();
    site.idle();
    let used = site.dir.backing_used();
    site.dir.set_backing(Some(used + MARGIN));
    site.idle();
    assert!(site.pool.health().has("history-room-low"), "{:?}", site.pool.health());
    assert_eq!(site.write(0, 4 * KIB), Err(ErrorKind::NoSpace));
    assert!(site.pool.health().has("history-room-refusing"), "{:?}", site.pool.health());
    write_to(&site.volume("plain"), 0, &[1; 4096]).unwrap();
    site.dir.set_backing(Some(used + MARGIN + MIB));
    site.idle();
    site.write(0, 4 * KIB).unwrap();
    site.dir.set_backing(Some(used + MARGIN + 64 * MIB));
    site.idle();
    assert_eq!(site.pool.health(), Health::Healthy);
    site.verify();
}
