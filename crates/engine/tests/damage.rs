//! Sectors that can't be read. The damage affects the content there, and nothing else. All
//! background work that meets such sectors continues, and the rest of the chunk is right. A read of
//! the lost content returns an error until it is written again, and never shows anything else.
#![allow(clippy::unwrap_used)] // a test may panic

use bytes::Bytes;
use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Encoding, Moment};
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::disk::{Dir, MemDir, OpenMode};
use hindcast_engine::pool::code;
use hindcast_engine::pool::{Health, Method, Pool, PoolOptions, PvSpec};
use hindcast_engine::salvage::SalvageOptions;
use hindcast_engine::testing::{self, Act, FaultyDir, KIB, MIB, Op, Site, assert_clean, idle, world, write};
use hindcast_engine::{ErrorKind, Volume};
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};

const CHUNK: u64 = 16 * KIB;
const SECTOR: u64 = 512;

/// A directory in which sectors of physical volumes can't be read until they are written.
#[derive(Clone, Default)]
struct BadDir {
    files: MemDir,
    /// Sectors that can't be read: (file, sector).
    bad: Arc<Mutex<BTreeSet<(String, u64)>>>,
    /// A file that can't be read at all.
    away: Arc<Mutex<Option<String>>>,
}

impl BadDir {
    /// Returns the directory as a pool sees it.
    fn dir(&self) -> Arc<dyn Dir> {
        let bad = self.clone();
        FaultyDir::new(self.files.clone(), move |op: &Op<'_>| bad.of(op))
    }

    fn of(&self, op: &Op<'_>) -> Option<io::Error> {
        let mut bad = self.bad.lock().unwrap();
        match &op.act {
            Act::Read(range) => {
                let sectors =
                    (op.name.into(), range.start / SECTOR)..(op.name.into(), range.end.div_ceil(SECTOR));
                let away = self.away.lock().unwrap().as_deref() == Some(op.name);
                (away || bad.range(sectors).next().is_some()).then(|| io::Error::from_raw_os_error(5))
            }
            Act::Write(range) => {
                let whole = range.start.div_ceil(SECTOR)..range.end / SECTOR;
                bad.retain(|(name, at)| *name != op.name || !whole.contains(at));
                None
            }
            _ => None,
        }
    }

    /// Makes sectors unreadable that hold nothing but `byte`, and returns how many.
    fn lose(&self, name: &str, byte: u8, most: usize) -> usize {
        let disk = self.files.open(name, OpenMode::ReadOnly).unwrap();
        let mut bad = self.bad.lock().unwrap();
        let mut found = 0;
        for sector in MIB / SECTOR..disk.len().unwrap() / SECTOR {
            let mut content = [0; SECTOR as usize];
            disk.read_at(&mut content, sector * SECTOR).unwrap();
            if found < most && content.iter().all(|b| *b == byte) {
                bad.insert((name.into(), sector));
                found += 1;
            }
        }
        found
    }
}

struct Damaged {
    dir: BadDir,
    pool: Arc<Pool>,
    v: Arc<Volume>,
    threads: usize,
}

fn pv(path: &str) -> PvSpec {
    testing::pv(path, 16 * MIB)
}

impl Damaged {
    /// Makes a volume `v`. Its first chunk has byte 1, except for one sector of byte 200 at 4 KiB.
    /// The next three chunks have byte 2.
    fn new(threads: usize) -> Damaged {
        let mut dir = BadDir::default();
        let options = PoolOptions { destage_threads: threads, ..PoolOptions::default() };
        let builder =
            Site::builder(0).journal(2 * MIB, 256 * KIB).atomic_unit(512).pvs(&[("pv-0", 16 * MIB)]);
        let site = builder.options(options).over(|files| {
            dir.files = files;
            dir.dir()
        });
        let pool = site.having("v", MIB, CHUNK).having("w", MIB, CHUNK).pool;
        let v = pool.open_volume("v", false).unwrap();
        let site = Damaged { dir, pool, v, threads };
        site.write(0, 1, CHUNK);
        site.write(4096, 200, SECTOR);
        site.write(CHUNK, 2, 3 * CHUNK);
        site.pool.drain().unwrap();
        site
    }

    /// Makes the sector of byte 200 unreadable, wherever there is a copy of it.
    fn lose(&self) {
        assert!(self.dir.lose("pv-0", 200, usize::MAX) > 0);
    }

    fn write(&self, offset: u64, byte: u8, len: u64) {
        write(&self.v, offset, byte, len);
    }

    /// Opens the pool again, as after a kill.
    fn reopen(self) -> Damaged {
        let Damaged { dir, pool, v, threads } = self;
        drop((pool, v));
        assert_clean(dir.dir());
        let options = PoolOptions { destage_threads: threads, ..PoolOptions::default() };
        let pool = Pool::open(dir.dir(), world(1), options).unwrap();
        let v = pool.open_volume("v", false).unwrap();
        Damaged { dir, pool, v, threads }
    }

    /// Checks that the lost sector returns an error, that its neighbours and the next chunk are
    /// right, and that other requests succeed.
    fn expect_lost(&self, device: &Volume) {
        let mut sector = [0; SECTOR as usize];
        assert_eq!(device.read(4096, &mut sector).unwrap_err().kind(), ErrorKind::Io);
        device.read(4096 + SECTOR, &mut sector).unwrap();
        assert_eq!(sector, [1; SECTOR as usize]);
        device.read(4096 - SECTOR, &mut sector).unwrap();
        assert_eq!(sector, [1; SECTOR as usize]);
        device.read(CHUNK, &mut sector).unwrap();
        assert_eq!(sector, [2; SECTOR as usize]);
        assert!(!matches!(self.pool.health(), Health::Poisoned(_)), "{:?}", self.pool.health());
        let w = self.pool.open_volume("w", false).unwrap();
        let mut op = [WriteOp::new(0, Bytes::from(vec![5; 4096]))];
        w.write(&mut op, true);
        op[0].result.as_ref().unwrap();
    }

    fn snapshot(&self, name: &str) -> Arc<Volume> {
        self.pool.open_snapshot("v", name).unwrap()
    }

    /// Writes the sector again, which heals it.
    fn heal(&self) {
        self.write(4096, 9, SECTOR);
        let mut sector = [0; SECTOR as usize];
        self.v.read(4096, &mut sector).unwrap();
        self.pool.drain().unwrap();
        self.v.read(4096, &mut sector).unwrap();
        assert_eq!(sector, [9; SECTOR as usize]);
        let mut all = vec![0; CHUNK as usize];
        self.v.read(0, &mut all).unwrap();
    }
}

/// A part of the chunk is written while a snapshot sees it: by both methods, in several lives.
#[test]
fn a_chunk_that_is_written_in_part_keeps_its_damage_and_the_pool_goes_on() {
    for method in [Method::Redirect, Method::Copy] {
        for threads in [1, 4] {
            let mut site = Damaged::new(threads);
            site.pool.set_method("v", method).unwrap();
            site.pool.create_snapshots(&[("v", "s")]).unwrap();
            site.pool.drain().unwrap();
            site.lose();
            site.write(0, 3, SECTOR);
            site.pool.drain().unwrap();
            for life in 0..3 {
                site.expect_lost(&site.v);
                site.expect_lost(&site.snapshot("s"));
                assert!(site.pool.health().has(code::DATA_DAMAGED), "{method:?}, life {life}");
                let mut sector = [0; SECTOR as usize];
                site.v.read(0, &mut sector).unwrap();
                assert_eq!(sector, [3; SECTOR as usize]);
                site = site.reopen();
                // Nothing of it depends on the disk: the copied content is known to be a filler.
                assert!(site.pool.health().has(code::DATA_DAMAGED), "{method:?}, life {life}");
            }
            site.heal();
            site.expect_lost(&site.snapshot("s"));
            // A clone shares the slot, and so the damage, until it is written there.
            site.pool.clone_volume("v", "s", "c").unwrap();
            site.expect_lost(&site.pool.open_volume("c", false).unwrap());
            site.pool.delete_volume("c", true).unwrap();
            // The slot of the snapshot is freed, and its damage is removed.
            site.pool.delete_snapshots("v", &["s"]).unwrap();
            site.pool.drain().unwrap();
            idle(&site.pool);
            idle(&site.pool);
            assert!(!site.pool.health().has(code::DATA_DAMAGED), "{:?}", site.pool.health());
            assert!(!site.reopen().pool.health().has(code::DATA_DAMAGED));
        }
    }
}

/// Work that moves chunks moves the damage with them, and no filler is ever shown.
#[test]
fn chunks_that_move_keep_their_damage() {
    type Work = fn(&Damaged);
    let works: [(&str, Work); 3] = [
        ("evacuate", |site| {
            site.pool.add_pv(&pv("pv-1")).unwrap();
            site.pool.drain_pv("pv-0", true).unwrap();
        }),
        ("flatten", |site| {
            site.pool.create_snapshots(&[("v", "s")]).unwrap();
            site.pool.clone_volume("v", "s", "c").unwrap();
            site.pool.flatten_volume("c", 0).unwrap();
        }),
        ("relocate", |site| site.pool.relocate_volume("v", 0).unwrap()),
    ];
    for (name, work) in works {
        let site = Damaged::new(1);
        if name == "relocate" {
            // The chunks are out of order: each second one was redirected.
            site.pool.create_snapshots(&[("v", "t")]).unwrap();
            for chunk in [0, 2] {
                site.write(chunk * CHUNK + 8192, 2 - u8::from(chunk == 0), SECTOR);
                site.pool.drain().unwrap();
            }
            site.pool.delete_snapshots("v", &["t"]).unwrap();
            idle(&site.pool);
        }
        let found = site.dir.lose("pv-0", 200, usize::MAX);
        assert!(found > 0);
        work(&site);
        idle(&site.pool);
        site.expect_lost(&site.v);
        let site = site.reopen();
        site.expect_lost(&site.v);
        if name == "flatten" {
            let c = site.pool.open_volume("c", false).unwrap();
            assert!(site.pool.flattening("c").unwrap().is_none(), "it is complete");
            site.expect_lost(&c);
        }
        if name == "evacuate" {
            site.pool.remove_pv("pv-0").unwrap();
            site.expect_lost(&site.v);
        }
        site.heal();
    }
}

/// In a history, moments that need the lost content are lost. Later moments are right once it is
/// written again.
#[test]
fn a_history_says_lost_before_here_and_goes_on() {
    for encoding in [Encoding::Parity, Encoding::Undo, Encoding::Redo] {
        for threads in [1, 4] {
            let site = Damaged::new(threads);
            let settings = CdpSettings { encoding, anchors: AnchorPolicy::Never, ..CdpSettings::default() };
            site.pool.set_cdp("v", Some(settings)).unwrap();
            site.pool.drain().unwrap();
            site.write(8192, 3, SECTOR);
            site.pool.drain().unwrap();
            let before = site.pool.stats().sequenced_lsn;
            let site = site.reopen();
            site.lose();
            // A write to a neighbour needs the old content of the chunk, and that is lost.
            site.write(0, 4, SECTOR);
            site.pool.drain().unwrap();
            let damaged = site.pool.stats().sequenced_lsn;
            site.expect_lost(&site.v);
            let site = site.reopen();
            site.heal();
            let healed = site.pool.stats().sequenced_lsn;
            // An encoding that leads forward only needs an anchor behind the damage.
            site.pool.create_snapshots(&[("v", "healed")]).unwrap();
            site.write(8192, 6, SECTOR);
            site.pool.drain().unwrap();
            let site = site.reopen();
            let last = site.pool.stats().sequenced_lsn;
            let at = |lsn, offset| {
                let view = site.pool.open_moment("v", &Moment::Lsn(lsn)).unwrap();
                let mut sector = [0; SECTOR as usize];
                view.read(offset, &mut sector).map(|()| sector[0]).map_err(|e| e.kind())
            };
            assert_eq!((at(last, 4096), at(last, 8192)), (Ok(9), Ok(6)), "{encoding:?}");
            if encoding != Encoding::Redo {
                assert_eq!((at(healed, 4096), at(healed, 8192)), (Ok(9), Ok(3)), "{encoding:?}");
            }
            for lsn in [before, damaged] {
                let found = at(lsn, 4096);
                assert!(matches!(found, Err(_) | Ok(200)), "{encoding:?}: LSN {lsn} shows {found:?}");
            }
            // Another chunk is not affected.
            assert_eq!(at(before, CHUNK), Ok(2));
            assert!(!matches!(site.pool.health(), Health::Poisoned(_)));
        }
    }
}

/// A physical volume that answers nothing is absent, not damaged. The journal keeps its records,
/// and nothing is given up. When the physical volume answers again, the work continues.
#[test]
fn a_physical_volume_that_is_away_is_not_taken_for_damage() {
    let site = Damaged::new(1);
    site.pool.create_snapshots(&[("v", "s")]).unwrap();
    site.pool.drain().unwrap();
    site.write(0, 3, SECTOR);
    *site.dir.away.lock().unwrap() = Some("pv-0".into());
    let error = site.pool.drain().unwrap_err();
    assert!(error.is_shortage() && error.to_string().contains("pv-0"), "{error:?}");
    let Health::Warning(warnings) = site.pool.health() else { panic!("{:?}", site.pool.health()) };
    assert!(warnings.iter().any(|w| w.code == "pv-away" && w.text.contains("pv-0")), "{warnings:?}");
    // The journal takes the writes in the meantime, and shows them.
    site.write(512, 4, SECTOR);
    let mut sector = [0; SECTOR as usize];
    site.v.read(512, &mut sector).unwrap();
    assert_eq!(sector[0], 4);
    *site.dir.away.lock().unwrap() = None;
    site.pool.drain().unwrap();
    let mut all = vec![0; CHUNK as usize];
    site.v.read(0, &mut all).unwrap();
    assert_eq!((all[0], all[512], all[1024], all[4096]), (3, 4, 1, 200), "nothing was given up");
    assert!(!site.pool.health().has("pv-away"));
}

/// Failed reads are counted, and reported with their place.
#[test]
fn read_errors_are_told_by_physical_volume() {
    let site = Damaged::new(1);
    site.lose();
    let mut sector = [0; SECTOR as usize];
    assert_eq!(site.v.read(4096, &mut sector).unwrap_err().kind(), ErrorKind::Io);
    let Health::Warning(warnings) = site.pool.health() else { panic!("{:?}", site.pool.health()) };
    let warning = warnings.iter().find(|w| w.code == code::PV_READ_ERRORS).unwrap();
    assert!(warning.text.contains("pv-0") && warning.text.contains("at byte"), "{}", warning.text);
    // It is an error of the disk, as long as no work had to continue without the content.
    assert!(!site.pool.health().has(code::DATA_DAMAGED));
}

/// Content that could not be read once is lost for a salvage, too, even if the disk answers again:
/// what it returns then is unknown.
#[test]
fn a_salvage_names_what_is_known_to_be_lost() {
    let site = Damaged::new(1);
    site.pool.create_snapshots(&[("v", "s")]).unwrap();
    site.lose();
    site.write(0, 3, SECTOR);
    site.pool.drain().unwrap();
    let Damaged { dir, pool, v, .. } = site;
    drop((v, pool));
    let pool = Pool::open_salvage(Arc::new(dir.files), world(1), SalvageOptions::default()).unwrap();
    assert!(pool.salvage().unwrap().is_clean(), "{:?}", pool.salvage());
    let mut lost = Vec::new();
    pool.losses("v", None, &mut |loss| lost.push((loss.offset, loss.length, loss.reason.code()))).unwrap();
    assert_eq!(lost, [(4096, SECTOR, "known-damage")]);
    let v = pool.open_volume("v", true).unwrap();
    let mut sector = [0; SECTOR as usize];
    assert!(v.read(4096, &mut sector).is_err());
    v.read(4096 + SECTOR, &mut sector).unwrap();
    assert_eq!(sector, [1; SECTOR as usize]);
}
