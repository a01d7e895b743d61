//! The trash and the labels of volumes.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::ErrorKind;
use hindcast_engine::cdp::{CdpSettings, Moment};
use hindcast_engine::disk::{Backing, Dir, Layer, LayeredDir, LowerDisk};
use hindcast_engine::pool::{FeatureState, Method, Progress};
use hindcast_engine::testing::{
    Act, FaultyDir, KIB, MIB, Site, assert_bytes, kind, try_read, try_write, write,
};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Makes a volume `v` whose first 64 KiB are 1 in a snapshot `s` and in a moment, and 2 now.
fn site() -> Site {
    let site = Site::new(32);
    let v = site.volume("v", MIB, 16 * KIB);
    site.pool.set_cdp("v", Some(CdpSettings::default())).unwrap();
    write(&v, 0, 1, 64 * KIB);
    site.snap("v", "s");
    write(&v, 0, 2, 64 * KIB);
    site
}

#[test]
fn a_volume_comes_back_with_all_that_it_had() {
    for settle in [false, true] {
        let site = site();
        let before = site.pool.volume("v").unwrap();
        let past = site.lsn();
        write(&site.open("v"), 0, 3, 64 * KIB);
        if settle {
            site.idle();
        }
        let trashed = site.pool.trash_volume("v", false).unwrap();
        assert_eq!((trashed.volume.uuid, trashed.snapshots), (before.uuid, 1));
        assert_eq!(kind(site.pool.volume("v")), ErrorKind::NotFound);
        assert!(site.pool.volumes().is_empty());
        // The name is free, and the other volume with that name is left alone.
        let other = site.volume("v", MIB, 4 * KIB);
        write(&other, 0, 9, 4 * KIB);
        drop(other);
        site.idle();
        let site = site.reopen();
        assert_eq!(kind(site.pool.restore_volume(before.uuid, None)), ErrorKind::Conflict);
        assert_eq!(kind(site.pool.restore_volume(before.uuid, Some("-"))), ErrorKind::Invalid);
        let back = site.pool.restore_volume(before.uuid, Some("w")).unwrap();
        assert_eq!((back.uuid, &back.name[..], back.created), (before.uuid, "w", before.created));
        assert_eq!(kind(site.pool.restore_volume(before.uuid, None)), ErrorKind::NotFound);
        let check = |site: &Site| {
            assert_bytes(&site.open("w"), 0, 3, 64 * KIB);
            assert_bytes(&site.snapshot("w", "s"), 0, 1, 64 * KIB);
            assert_bytes(&site.moment("w", past), 0, 2, 64 * KIB);
            assert_bytes(&site.open("v"), 0, 9, 4 * KIB);
            assert!(site.pool.trash().is_empty());
        };
        check(&site);
        check(&site.reopen());
    }
}

/// A client must not write to a volume that its owner believes to be away.
#[test]
fn handles_are_refused() {
    let site = site();
    let v = site.open("v");
    assert_eq!(kind(site.pool.trash_volume("v", false)), ErrorKind::Busy);
    let trashed = site.pool.trash_volume("v", true).unwrap();
    assert_eq!(try_write(&v, 0, 7, 4 * KIB), Err(ErrorKind::NotFound));
    assert_eq!(try_read(&v, 0, 512), Err(ErrorKind::NotFound));
    site.pool.restore_volume(trashed.volume.uuid, None).unwrap();
    // The handle stays refused. A client has to connect again.
    assert_eq!(try_write(&v, 0, 7, 4 * KIB), Err(ErrorKind::NotFound));
    assert_eq!(site.pool.volume("v").unwrap().handles, 0);
    assert_bytes(&site.open("v"), 0, 2, 64 * KIB);
}

#[test]
fn a_protected_snapshot_keeps_its_volume_in_use() {
    let site = site();
    site.pool.protect_snapshot("v", "s", true).unwrap();
    assert_eq!(kind(site.pool.trash_volume("v", true)), ErrorKind::Conflict);
    assert_eq!(site.pool.volumes().len(), 1);
}

#[test]
fn a_purge_gives_the_space_back() {
    let site = site();
    site.idle();
    let uuid = site.pool.trash_volume("v", false).unwrap().volume.uuid;
    site.pool.create_volume(&hindcast_engine::testing::new_volume("v", MIB, 4 * KIB)).unwrap();
    assert!(site.pool.trash()[0].space >= 128 * KIB, "{:?}", site.pool.trash());
    site.idle();
    assert!(site.pool.info().used > 0);
    let since = site.pool.trash()[0].since;
    assert_eq!(kind(site.pool.purge_volume(uuid, Some(since + 1))), ErrorKind::Conflict, "another stay");
    site.pool.purge_volume(uuid, Some(since)).unwrap();
    assert_eq!(kind(site.pool.purge_volume(uuid, None)), ErrorKind::NotFound);
    site.idle();
    site.pool.drain().unwrap();
    assert_eq!(site.pool.info().used, 0);
    // The volume that has the name now is another one.
    assert_eq!(site.pool.volumes().len(), 1);
    site.reopen();
}

/// What is left shrinks step by step, also behind a reader of a moment, who delays it.
#[test]
fn the_pool_tells_what_a_purge_has_left_to_free() {
    let site = Site::new(63);
    let v = site.volume("v", 32 * MIB, 4 * KIB);
    site.pool.set_cdp("v", Some(CdpSettings::default())).unwrap();
    (0..512).for_each(|n| write(&v, n * 64 * KIB, 1, 4 * KIB));
    drop(v);
    site.idle();
    let reader = site.moment("v", site.lsn());
    let uuid = site.pool.trash_volume("v", true).unwrap().volume.uuid;
    site.idle();
    assert_eq!(site.pool.freeing(), None, "it can be restored");
    site.pool.purge_volume(uuid, None).unwrap();
    site.idle();
    assert_eq!(site.pool.freeing(), None, "a client reads a moment of it");
    drop(reader);
    let mut left = vec![site.pool.freeing().unwrap()];
    assert!(left[0] >= 512 * 4 * KIB, "{left:?}");
    while site.pool.maintain().unwrap() == Progress::Worked {
        left.extend(site.pool.freeing());
    }
    left.dedup();
    assert!(left.len() >= 3 && left.is_sorted_by(|one, next| one > next), "{left:?}");
    assert_eq!((site.pool.freeing(), site.pool.info().used), (None, 0));
}

/// A clone of a snapshot goes on, whatever becomes of its origin.
#[test]
fn clones_outlive_the_trash() {
    let site = site();
    site.pool.set_method("v", Method::Copy).unwrap();
    site.pool.clone_volume("v", "s", "c").unwrap();
    let uuid = site.pool.trash_volume("v", false).unwrap().volume.uuid;
    site.idle();
    assert_bytes(&site.open("c"), 0, 1, 64 * KIB);
    site.pool.purge_volume(uuid, None).unwrap();
    site.idle();
    let site = site.reopen();
    assert_bytes(&site.open("c"), 0, 1, 64 * KIB);
}

#[test]
fn labels_stay_with_the_volume() {
    let site = site();
    let labels = |site: &Site| site.pool.volume("v").unwrap().labels;
    let has = |site: &Site| {
        let features = site.pool.features();
        features.iter().any(|f| f.name == "trash" && f.state == FeatureState::Enabled)
    };
    assert!(!has(&site), "older builds read a pool that does not use labels");
    site.pool.label_volume("v", &[("app", Some("shop")), ("tier", Some("1"))]).unwrap();
    assert!(has(&site));
    site.pool.label_volume("v", &[("tier", None), ("", None)]).unwrap();
    assert_eq!(labels(&site), [("app".to_owned(), "shop".to_owned())].into());
    assert_eq!(kind(site.pool.label_volume("v", &[("", Some("x"))])), ErrorKind::Invalid);
    let many: Vec<String> = (0..64).map(|n| n.to_string()).collect();
    let many: Vec<_> = many.iter().map(|key| (&key[..], Some(""))).collect();
    assert_eq!(kind(site.pool.label_volume("v", &many)), ErrorKind::Invalid, "65 labels");
    let site = site.reopen();
    let uuid = site.pool.trash_volume("v", false).unwrap().volume.uuid;
    site.pool.restore_volume(uuid, None).unwrap();
    site.pool.roll_back("v", "s", "undo", false).unwrap();
    site.idle();
    let site = site.reopen();
    assert_eq!(labels(&site).len(), 1);
    assert_bytes(&site.open("v"), 0, 1, 64 * KIB);
}

/// The first deletion enables the trash. It does not wait for destage, which a shortage holds up.
#[test]
fn the_first_deletion_works_in_a_shortage() {
    let full = Arc::new(AtomicBool::new(false));
    let is_full = full.clone();
    let site = Site::builder(32).over(move |dir| {
        FaultyDir::new(dir, move |op| {
            let grows = matches!(op.act, Act::Allocate(_) | Act::Write(_)) && op.name.starts_with("pv-");
            (grows && is_full.load(Ordering::Relaxed)).then(|| io::ErrorKind::StorageFull.into())
        })
    });
    let v = site.volume("v", MIB, 16 * KIB);
    full.store(true, Ordering::Relaxed);
    write(&v, 0, 1, 64 * KIB);
    drop(v);
    assert_eq!(kind(site.pool.drain()), ErrorKind::NoSpace);
    let trashed = site.pool.trash_volume("v", false).unwrap();
    assert_eq!(kind(site.pool.drain()), ErrorKind::NoSpace);
    full.store(false, Ordering::Relaxed);
    // The bit is durable before the volume is in the trash, whatever happens then.
    let site = site.reopen();
    assert!(site.pool.volumes().is_empty());
    site.pool.restore_volume(trashed.volume.uuid, None).unwrap();
    assert_bytes(&site.open("v"), 0, 1, 64 * KIB);
    site.idle();
    site.reopen();
}

/// A file system with a set number of available bytes.
struct Host(AtomicU64);

impl Layer for Host {
    fn backing_available(&self, _disk: &LowerDisk) -> io::Result<Option<Backing>> {
        Ok(Some(Backing { file_system: 1, available: self.0.load(Ordering::Relaxed) }))
    }
}

#[test]
fn a_history_in_the_trash_holds_room_that_others_need() {
    let host = Arc::new(Host(AtomicU64::new(1 << 40)));
    let below = host.clone();
    let site = Site::builder(32).over(move |dir| Arc::new(LayeredDir::over(Arc::new(dir), below)));
    let record = |name: &str| {
        let volume = site.volume(name, MIB, 16 * KIB);
        site.pool.set_cdp(name, Some(CdpSettings::default())).unwrap();
        for n in 0..4 {
            write(&volume, n * 64 * KIB, 1 + n as u8, 64 * KIB);
        }
    };
    record("old");
    site.idle();
    let moment = Moment::Lsn(site.lsn());
    site.pool.recover_volume("old", &moment, "child").unwrap();
    site.pool.trash_volume("old", true).unwrap();
    assert_eq!(site.pool.trash()[0].history, 0, "its history stays for the child");
    site.pool.delete_volume("child", true).unwrap();
    site.idle();
    let uuid = site.pool.trash()[0].volume.uuid;
    site.pool.restore_volume(uuid, None).unwrap();
    let uuid = site.pool.trash_volume("old", true).unwrap().volume.uuid;
    let held = site.pool.trash()[0].history;
    assert!(held > 0, "{held}");
    let run_out = |available: u64| {
        host.0.store(available, Ordering::Relaxed);
        (0..20).for_each(|_| drop(site.pool.maintain()));
        site.pool.lacks_history_room()
    };
    assert!(!run_out(0), "nobody needs the room");
    assert!(!run_out(1 << 40));
    record("new");
    site.idle();
    assert!(run_out(0) && site.pool.trash()[0].history == held);
    assert!(!run_out(1 << 40));
    site.pool.purge_volume(uuid, None).unwrap();
    site.idle();
    assert_eq!(site.dir.list().unwrap().iter().filter(|name| name.starts_with("cdp-")).count(), 1);
}
