//! Tests that a history needs few descriptors, however long it is.

use crate::ErrorKind;
use crate::catalog::{Catalog, SegmentRecord};
use crate::cdp::log::record::SegmentHead;
use crate::device::{BlockDevice, WriteOp};
use crate::disk::{Dir, MemDir, OpenMode, ScarceDir};
use crate::ids::{Chunk, Lsn};
use crate::info::history::Moment;
use crate::pool::Pool;
use crate::settings::{
    AnchorPolicy, CdpSettings, Compression, Encoding, Placement, PoolConfig, PoolOptions, PvSpec, Retention,
};
use crate::testing::{new_volume, world};
use crate::world::World;
use bytes::Bytes;
use std::sync::Arc;

const CHUNK: u64 = 4096;
const SIZE: u64 = 1 << 20;

/// A pool with small segments and a volume `v` that has a history, in a directory with few
/// descriptors.
struct Site {
    files: MemDir,
    dir: Arc<ScarceDir>,
    world: World,
    pool: Arc<Pool>,
}

fn options() -> PoolOptions {
    PoolOptions { open_files: 16, recompress_history: false, ..PoolOptions::default() }
}

impl Site {
    fn new(descriptors: usize) -> Site {
        let (files, world) = (MemDir::new(), world(1));
        let dir = Arc::new(ScarceDir::new(Arc::new(files.clone()), descriptors));
        let config = PoolConfig {
            extent_size: 64 << 10,
            journal_size: 2 << 20,
            segment_size: 256 << 10,
            ..PoolConfig::default()
        };
        let pv = PvSpec { path: "pv-0.img".into(), size: Some(64 << 20), force: false };
        Pool::create(dir.clone(), &world, &config, Placement::Anywhere, &[pv]).unwrap();
        let pool = Pool::open(dir.clone(), world.clone(), options()).unwrap();
        pool.create_volume(&new_volume("v", SIZE, CHUNK)).unwrap();
        let settings = CdpSettings {
            encoding: Encoding::Parity,
            compression: Compression::None,
            anchors: AnchorPolicy::Never,
            ..CdpSettings::default()
        };
        pool.set_cdp("v", Some(settings)).unwrap();
        Site { files, dir, world, pool }
    }

    /// Fills the volume with `byte`, and returns the last LSN.
    fn fill(&self, byte: u8) -> Lsn {
        let volume = self.pool.open_volume("v", false).unwrap();
        for chunk in 0..SIZE / CHUNK {
            let mut op = [WriteOp::new(chunk * CHUNK, Bytes::from(vec![byte; CHUNK as usize]))];
            volume.write(&mut op, false);
            op[0].result.clone().unwrap();
        }
        self.pool.stats().sequenced_lsn
    }

    fn shows(&self, lsn: Lsn, byte: u8) {
        let view = self.pool.open_moment("v", &Moment::Lsn(lsn)).unwrap();
        let mut content = vec![0; 16 * CHUNK as usize];
        view.read(0, &mut content).unwrap();
        assert!(content.iter().all(|b| *b == byte), "at LSN {lsn}");
    }

    fn segments(&self) -> u64 {
        self.pool.cdp("v").unwrap().segments
    }

    fn reopen(self) -> Site {
        let Site { files, dir, world, pool } = self;
        pool.close().unwrap();
        drop(pool);
        let pool = Pool::open(dir.clone(), world.clone(), options()).unwrap();
        Site { files, dir, world, pool }
    }
}

#[test]
fn a_long_history_works_with_few_descriptors() {
    let mut site = Site::new(100);
    let moments: Vec<(Lsn, u8)> = (1..=45).map(|byte| (site.fill(byte), byte)).collect();
    site.pool.drain().unwrap();
    assert!(site.segments() > 150, "{} segments", site.segments());
    assert!(site.dir.most() < 60, "{} files were open at once", site.dir.most());
    for _ in 0..2 {
        for (lsn, byte) in moments.iter().step_by(11) {
            site.shows(*lsn, *byte);
        }
        assert!(site.dir.open_now() < 60);
        site = site.reopen();
        assert!(site.dir.open_now() < 30, "{} files are open after the opening", site.dir.open_now());
    }
}

/// A reader reads to the end what expires while it is read. The file keeps its name until then.
#[test]
fn readers_keep_what_expires() {
    let site = Site::new(100);
    let (first, _) = (site.fill(1), site.fill(2));
    (3..12).for_each(|byte| _ = site.fill(byte));
    site.pool.drain().unwrap();
    let branch = site.pool.core.names.read().volume("v").unwrap().line.branch.clone();
    let held: Vec<_> = branch.cdp.log.read().sealed.values().cloned().collect();
    let named = || site.files.list().unwrap().iter().filter(|name| name.starts_with("cdp-")).count() as u64;
    let before = named();
    assert_eq!(before, site.segments());
    site.pool.set_cdp("v", None).unwrap();
    site.pool.drain().unwrap();
    site.pool
        .set_cdp(
            "v",
            Some(CdpSettings {
                retention: Retention { time: Some(1), bytes: None },
                ..CdpSettings::default()
            }),
        )
        .unwrap();
    while site.pool.maintain().unwrap() != crate::info::Progress::Idle {}
    assert!(site.pool.open_moment("v", &Moment::Lsn(first)).is_err());
    // The one that was appended to has no reader.
    assert!(site.segments() < before / 2 && named() == before - 1, "{} of {before}", site.segments());
    // All segments are closed meanwhile, and opened by name.
    for segment in &held {
        let entries = segment.all_entries().unwrap();
        entries.iter().for_each(|entry| drop(segment.file.payload(entry).unwrap()));
    }
    drop(held);
    assert_eq!(named(), site.segments());
}

/// A shortage is no damage: a file that can't be opened now can be read later.
#[test]
fn without_descriptors_a_moment_is_busy() {
    let site = Site::new(100);
    let moments: Vec<(Lsn, u8)> = (1..=40).map(|byte| (site.fill(byte), byte)).collect();
    site.pool.drain().unwrap();
    let view = site.pool.open_moment("v", &Moment::Lsn(moments[3].0)).unwrap();
    site.pool.core.files.close_all();
    site.dir.set_limit(site.dir.open_now());
    let mut content = vec![0; SIZE as usize];
    let refused = view.read(0, &mut content).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused:?}");
    site.dir.set_limit(100);
    view.read(0, &mut content).unwrap();
    assert!(content.iter().all(|b| *b == moments[3].1));
    moments.iter().step_by(9).for_each(|(lsn, byte)| site.shows(*lsn, *byte));
    assert!(!format!("{:?}", site.pool.health()).contains("history"), "{:?}", site.pool.health());
}

/// Opening a pool does not touch its segments, however many there are.
#[test]
fn opening_touches_no_sealed_segment() {
    const MANY: u64 = 20_000;
    let mut site = Site::new(256);
    let (first, second) = (site.fill(1), site.fill(2));
    site.pool.drain().unwrap();
    let branch = site.pool.core.names.read().volume("v").unwrap().line.branch.id;
    site.pool.close().unwrap();
    let Site { files, dir, world, pool } = site;
    drop(pool);
    // More segments behind those that are there, of another chunk: nothing reads them.
    let catalog = Catalog::open(&*dir, 1 << 20).unwrap();
    let (superblock, known) = (catalog.superblock().unwrap(), catalog.cdp_segments().unwrap());
    let sealed = known.iter().map(|(_, record)| *record).find(|record| record.sealed).unwrap();
    let last = known.iter().map(|((_, seq), _)| *seq).max().unwrap();
    let mut txn = catalog.begin().unwrap();
    for seq in last + 1..last + 1 + MANY {
        let record = SegmentRecord { chunks: (Chunk(1 << 40), Chunk(1 << 40)), ..sealed };
        txn.put_cdp_segment(branch, seq, &record).unwrap();
        let head = SegmentHead { pool: superblock.pool, branch, seq, edition: record.edition };
        files.open(&head.file_name(), OpenMode::CreateNew).unwrap();
    }
    txn.commit().unwrap();
    drop(catalog);
    let pool = Pool::open(dir.clone(), world.clone(), options()).unwrap();
    site = Site { files, dir, world, pool };
    assert!(site.segments() > MANY && site.dir.most() < 60, "{} files were open", site.dir.most());
    site.shows(first, 1);
    site.shows(second, 2);
    let third = site.fill(3);
    site.pool.drain().unwrap();
    site.shows(third, 3);
    site.shows(first, 1);
    assert!(site.dir.most() < 100, "{} files were open", site.dir.most());
}
