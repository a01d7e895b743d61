//! Pools written by earlier builds open for ever: every image in `images/` is opened, verified,
//! used and opened again.
//!
//! A release that changes a format adds an image and keeps the others: `HINDCAST_NEW_IMAGE=NAME.img
//! cargo test -p hindcast-engine --test old_images` writes one.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::check::{CheckOptions, check};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::disk::{Dir, MemDir, OpenMode};
use hindcast_engine::pool::{NewVolume, Placement, Pool, PoolConfig, PoolOptions, PvSpec};
use hindcast_engine::salvage::SalvageOptions;
use hindcast_engine::testing::{KIB, MIB, assert_bytes, content_of, world, write};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

/// Unit in which an image distinguishes zeros from content.
const BLOCK: usize = 512;

fn images() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/images")
}

/// Makes an image: for each file its name, its length, and the blocks that are not zeros. Numbers
/// are little-endian u64.
fn save(dir: &MemDir) -> Vec<u8> {
    let mut out = Vec::new();
    for name in dir.list().unwrap() {
        let content = content_of(dir, &name);
        let blocks: Vec<_> =
            content.chunks(BLOCK).enumerate().filter(|(_, b)| b.iter().any(|x| *x != 0)).collect();
        out.extend((name.len() as u64).to_le_bytes());
        out.extend(name.as_bytes());
        out.extend((content.len() as u64).to_le_bytes());
        out.extend((blocks.len() as u64).to_le_bytes());
        for (number, block) in blocks {
            out.extend((number as u64).to_le_bytes());
            out.extend(block);
        }
    }
    out
}

fn load(image: &[u8]) -> MemDir {
    let dir = MemDir::new();
    let mut rest = image;
    let mut take = |n: usize| {
        let (part, after) = rest.split_at(n);
        rest = after;
        (part, after.is_empty())
    };
    loop {
        let number = |part: &[u8]| u64::from_le_bytes(part.try_into().unwrap());
        let name_len = number(take(8).0) as usize;
        let name = String::from_utf8(take(name_len).0.to_vec()).unwrap();
        let disk = dir.open(&name, OpenMode::CreateNew).unwrap();
        let len = number(take(8).0);
        disk.set_len(len).unwrap();
        let (blocks, mut end) = take(8);
        for _ in 0..number(blocks) {
            let at = number(take(8).0) * BLOCK as u64;
            let wanted = BLOCK.min((len - at) as usize);
            let (block, last) = take(wanted);
            disk.write_at(block, at).unwrap();
            end = last;
        }
        if end {
            return dir;
        }
    }
}

/// Writes the state that every image holds: two physical volumes, data in place and in the journal,
/// every kind of record.
fn write_state(dir: &MemDir) {
    let config = PoolConfig {
        extent_size: 64 * KIB,
        journal_size: 4 * MIB,
        segment_size: 512 * KIB,
        atomic_unit: 4096,
    };
    let pv = |path: &str| PvSpec { path: path.into(), size: Some(2 * MIB), force: false };
    Pool::create(Arc::new(dir.clone()), &world(1), &config, Placement::Anywhere, &[pv("pv-0.img")]).unwrap();
    let pool = Pool::open(Arc::new(dir.clone()), world(2), PoolOptions::default()).unwrap();
    pool.add_pv(&pv("pv-1.img")).unwrap();
    let new = |name: &str, chunk_size, block_size, read_only| NewVolume {
        name: name.into(),
        size: MIB,
        chunk_size,
        block_size,
        read_only,
    };
    pool.create_volume(&new("db", 4096, 512, false)).unwrap();
    pool.create_volume(&new("old-name", 16 * KIB, 4096, true)).unwrap();
    pool.create_volume(&new("gone", 512, 512, false)).unwrap();
    let db = pool.open_volume("db", false).unwrap();
    write(&db, 0, 1, 64 * KIB);
    write(&pool.open_volume("gone", false).unwrap(), 0, 3, 1024);
    pool.drain().unwrap();
    // A bit flips in place, and the journal repairs it: that leaves a bad slot.
    let file = dir.open("pv-0.img", OpenMode::Existing).unwrap();
    let is_data = |at: &u64| {
        let mut block = [0; 512];
        file.read_at(&mut block, *at).unwrap();
        block == [1; 512]
    };
    let place = (MIB..2 * MIB).step_by(512).find(is_data).unwrap();
    file.write_at(&[9], place).unwrap();
    assert_bytes(&db, 0, 1, 64 * KIB);
    assert_eq!(pool.stats().bad_bytes, 4096);
    // From here on, content is in the journal only.
    write(&db, 8 * KIB, 2, 8 * KIB + 512);
    db.discard(32 * KIB, 8 * KIB, false).unwrap();
    db.write_zeroes(48 * KIB, 4 * KIB, false, false).unwrap();
    pool.delete_volume("gone", false).unwrap();
    pool.rename_volume("old-name", "new-name").unwrap();
    pool.resize_volume("db", 2 * MIB, false).unwrap();
    pool.set_placement(Placement::Contiguous).unwrap();
    write(&db, MIB, 4, 4096);
    db.flush().unwrap();
}

fn assert_state(pool: &Arc<Pool>) {
    let volumes: Vec<_> = pool
        .volumes()
        .into_iter()
        .map(|v| (v.name, v.size, v.chunk_size, v.block_size, v.read_only))
        .collect();
    assert_eq!(
        volumes,
        [("db".into(), 2 * MIB, 4096, 512, false), ("new-name".to_string(), MIB, 16 * KIB, 4096, true)]
    );
    assert_eq!(pool.pvs().len(), 2);
    assert_eq!(pool.info().placement, Placement::Contiguous);
    let db = pool.open_volume("db", true).unwrap();
    for (from, to, byte) in [
        (0, 8 * KIB, 1),
        (8 * KIB, 16 * KIB + 512, 2),
        (16 * KIB + 512, 32 * KIB, 1),
        (32 * KIB, 40 * KIB, 0),
        (40 * KIB, 48 * KIB, 1),
        (48 * KIB, 52 * KIB, 0),
        (52 * KIB, 64 * KIB, 1),
        (64 * KIB, MIB, 0),
        (MIB, MIB + 4096, 4),
        (MIB + 4096, 2 * MIB, 0),
    ] {
        assert_bytes(&db, from, byte, to - from);
    }
}

#[test]
fn images_of_earlier_builds_open() {
    let mut names: Vec<_> = fs::read_dir(images()).unwrap().map(|e| e.unwrap().path()).collect();
    names.sort();
    assert!(!names.is_empty(), "there are no images");
    for path in names {
        println!("{}", path.display());
        let dir = load(&fs::read(&path).unwrap());
        let clean = || check(Arc::new(dir.clone()), &CheckOptions::default(), &mut |_, _| {}).unwrap();
        assert!(clean().is_clean(), "{:?}", clean());
        let before = save(&dir);
        let pool = Pool::open_salvage(Arc::new(dir.clone()), world(9), SalvageOptions::default()).unwrap();
        assert!(pool.salvage().unwrap().is_clean(), "{:?}", pool.salvage());
        assert_state(&pool);
        drop(pool);
        assert!(save(&dir) == before, "a salvage has written");
        for time in [10, 11] {
            let pool = Pool::open(Arc::new(dir.clone()), world(time), PoolOptions::default()).unwrap();
            assert_state(&pool);
            pool.drain().unwrap();
            assert_state(&pool);
            pool.close().unwrap();
        }
        assert!(clean().is_clean(), "{:?}", clean());
    }
}

/// An upgrade changes nothing that the pool holds, wherever it comes between openings.
#[test]
fn an_image_of_an_earlier_build_is_upgraded() {
    let dir = load(&fs::read(images().join("0.1.0.img")).unwrap());
    assert_eq!(Pool::stored_features(&dir).unwrap(), [""; 0]);
    let open = |time| Pool::open(Arc::new(dir.clone()), world(time), PoolOptions::default()).unwrap();
    let pool = open(10);
    assert_eq!(pool.info().features, ["catalog-sums"]);
    assert_eq!(pool.upgrade(&["references".to_owned()]).unwrap().len(), 2);
    assert_state(&pool);
    pool.close().unwrap();
    drop(pool);
    for time in [11, 12] {
        let pool = open(time);
        assert_eq!(pool.info().features, ["references", "sums", "catalog-sums"]);
        assert_state(&pool);
        pool.drain().unwrap();
        pool.close().unwrap();
    }
    let report = check(Arc::new(dir.clone()), &CheckOptions::default(), &mut |_, _| {}).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn an_image_of_this_build_opens() {
    let dir = MemDir::new();
    write_state(&dir);
    // An opening makes it anew, and it has nothing but length.
    dir.remove("catalog-ballast").unwrap();
    let image = save(&dir);
    let pool = Pool::open(Arc::new(load(&image)), world(10), PoolOptions::default()).unwrap();
    assert_state(&pool);
    if let Ok(name) = std::env::var("HINDCAST_NEW_IMAGE") {
        fs::write(images().join(name), image).unwrap();
    }
}
