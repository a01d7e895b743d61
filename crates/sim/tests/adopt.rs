//! The adoption of a catalog from a build that had no checksums. It works wherever the machine
//! crashes on the way, and however full its file system is.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::ErrorKind;
use hindcast_engine::check::{CheckOptions, check};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::disk::{Dir, OpenMode};
use hindcast_engine::pool::{Pool, PoolOptions};
use hindcast_engine::world::{ManualClock, SplitMix, World};
use hindcast_sim::{CrashPoint, PowerLoss, SimDir};
use std::sync::Arc;

/// An image that the first build made. That build had no checksums.
const IMAGE: &[u8] = include_bytes!("../../engine/tests/images/0.1.0.img");
/// Unit in bytes in which an image separates zeros from content.
const BLOCK: usize = 512;

fn world() -> World {
    World { clock: Arc::new(ManualClock::new(10)), rng: Arc::new(SplitMix::new(10)) }
}

/// Creates a machine with the files of the image.
fn machine(seed: u64) -> SimDir {
    let dir = SimDir::new(seed);
    let mut rest = IMAGE;
    let mut take = |n: usize| {
        let (part, after) = rest.split_at(n);
        rest = after;
        (part, after.is_empty())
    };
    let number = |part: &[u8]| u64::from_le_bytes(part.try_into().unwrap());
    loop {
        let name_len = number(take(8).0) as usize;
        let name = String::from_utf8(take(name_len).0.to_vec()).unwrap();
        let mut content = vec![0; number(take(8).0) as usize];
        let (blocks, mut end) = take(8);
        for _ in 0..number(blocks) {
            let at = number(take(8).0) as usize * BLOCK;
            let len = BLOCK.min(content.len() - at);
            let (block, last) = take(len);
            content[at..at + len].copy_from_slice(block);
            end = last;
        }
        dir.add_image(&name, &content);
        if end {
            return dir;
        }
    }
}

fn open(dir: &SimDir) -> hindcast_engine::Result<Arc<Pool>> {
    Pool::open(Arc::new(dir.clone()), world(), PoolOptions::default())
}

/// Returns the name and the whole content of each volume.
fn contents(pool: &Arc<Pool>) -> Vec<(String, Vec<u8>)> {
    let read = |info: hindcast_engine::pool::VolumeInfo| {
        let mut data = vec![0; info.size as usize];
        pool.open_volume(&info.name, true).unwrap().read(0, &mut data).unwrap();
        (info.name, data)
    };
    pool.volumes().into_iter().map(read).collect()
}

fn is_adopted(dir: &SimDir) -> bool {
    let mut magic = [0; 6];
    dir.open("catalog.redb", OpenMode::ReadOnly).unwrap().read_at(&mut magic, 0).unwrap();
    magic == *b"HCSUMS"
}

fn assert_whole(dir: &SimDir, expected: &[(String, Vec<u8>)], what: &str) {
    let pool = open(dir).unwrap_or_else(|e| panic!("{what}: {e:?}"));
    assert!(contents(&pool) == expected, "{what}");
    pool.close().unwrap();
    drop(pool);
    assert!(is_adopted(dir), "{what}");
    let report = check(Arc::new(dir.clone()), &CheckOptions::default(), &mut |_, _| {}).unwrap();
    assert!(report.is_clean(), "{what}: {report:?}");
}

#[test]
fn adoption_survives_every_cut() {
    let dir = machine(0);
    let before = dir.counts().ops;
    let pool = open(&dir).unwrap();
    let ops = dir.counts().ops - before;
    let expected = contents(&pool);
    assert!(expected.len() == 2 && ops > 30, "{ops} operations");
    let mut old = 0;
    for op in 0..ops {
        for (n, how) in [None].into_iter().chain(PowerLoss::ALL.map(Some)).enumerate() {
            let what = format!("operation {op} of {ops}, {how:?}");
            let dir = machine(op * 8 + n as u64);
            dir.crash_at(Some(CrashPoint::Op(dir.counts().ops + op)));
            drop(open(&dir));
            assert!(dir.crashed(), "{what}");
            match how {
                None => dir.kill(),
                Some(loss) => dir.lose_power(loss),
            }
            dir.crash_at(None);
            old += u32::from(!is_adopted(&dir));
            assert_whole(&dir, &expected, &what);
        }
    }
    assert!(old > 50, "{old} crashes came before the adopted catalog had its name");
}

#[test]
fn a_catalog_without_room_for_a_second_copy_stays_as_it_is() {
    let expected = contents(&open(&machine(0)).unwrap());
    let mut unadopted = 0;
    for room in 1.. {
        let dir = machine(room);
        dir.set_backing(Some(u64::MAX));
        dir.set_backing(Some(dir.backing_used() + room * (16 << 10)));
        match open(&dir) {
            Ok(pool) => assert!(contents(&pool) == expected),
            // The journal may need more space than there is.
            Err(e) => assert_eq!(e.kind(), ErrorKind::NoSpace, "{e:?}"),
        }
        assert!(!dir.list().unwrap().iter().any(|name| name.ends_with("adopted")));
        let adopted = is_adopted(&dir);
        unadopted += u32::from(!adopted);
        dir.kill();
        dir.set_backing(None);
        assert_whole(&dir, &expected, "there is room now");
        if adopted {
            break;
        }
    }
    assert!(unadopted > 1, "{unadopted} times without room");
}
