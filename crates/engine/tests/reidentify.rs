//! A copy of a pool gets identities of its own. All of them are new, and nothing else has changed.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::cdp::{CdpSettings, Moment};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::disk::{Dir, MemDir};
use hindcast_engine::pool::{Pool, PoolOptions, Progress, REIDENTIFYING, Reidentification, SnapshotInfo};
use hindcast_engine::testing::*;
use hindcast_engine::world::{ManualClock, SplitMix, World};
use hindcast_engine::{ErrorKind, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

const SIZE: u64 = MIB;

fn open(dir: &Arc<MemDir>, seed: u64) -> Result<Arc<Pool>> {
    Pool::open(dir.clone(), world(seed), PoolOptions::default())
}

/// Makes a pool with volumes, a clone, a history, an undo and an unfinished import. It was killed
/// with records in its journal that have identities.
fn killed() -> (Arc<MemDir>, Vec<u8>) {
    let site = Site::new(64);
    let v = site.volume("v", SIZE, 16 * KIB);
    site.pool.set_cdp("v", Some(CdpSettings::default())).unwrap();
    write(&v, 0, 1, SIZE);
    site.snap("v", "one");
    write(&v, 64 * KIB, 2, 4096);
    site.pool.mark("v", "here").unwrap();
    site.snap("v", "two");
    site.idle();
    drop(v);
    site.pool.roll_back("v", "one", "undone", true).unwrap();
    let clone = site.pool.clone_volume("v", "two", "clone").unwrap();
    let id = clone.uuid.to_string();
    site.pool.label_snapshot("v", "two", &[("hindcast.clone", Some(&id)), ("note", Some(&id))]).unwrap();
    let stream = export(&site.pool, "v", "two", None);
    let mut import = site.pool.import(Some("arriving"));
    import.push(&stream[..stream.len() / 2]).unwrap();
    import.keep().unwrap();
    drop(import);
    site.idle();
    // These records wait in the journal.
    let late = site.volume("late", SIZE, 16 * KIB);
    write(&late, 0, 7, SIZE);
    site.snap("late", "last");
    drop(late);
    (site.dir.clone(), stream)
}

fn export(pool: &Arc<Pool>, volume: &str, snapshot: &str, from: Option<&str>) -> Vec<u8> {
    let mut export = pool.export(volume, snapshot, from, 0).unwrap();
    let mut all = Vec::new();
    while let Some(piece) = export.next_piece().unwrap() {
        all.extend(piece);
    }
    all
}

/// Returns everything that clients can reach, by name, with its bytes.
fn contents(pool: &Arc<Pool>) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for v in pool.volumes() {
        all.insert(v.name.clone(), content(&pool.open_weak(&v.name).unwrap()));
    }
    for s in pool.all_snapshots() {
        let shown = pool.open_snapshot(&s.volume, &s.name).unwrap();
        all.insert(format!("{}@{}", s.volume, s.name), content(&shown));
    }
    let moment = pool.open_moment("v", &Moment::Mark("here".into())).unwrap();
    all.insert("moment".into(), content(&moment));
    all
}

fn identities(pool: &Pool) -> BTreeMap<String, Uuid> {
    let volumes = pool.volumes().into_iter().map(|v| (v.name, v.uuid));
    let snapshots = pool.all_snapshots().into_iter().map(|s| (format!("{}@{}", s.volume, s.name), s.uuid));
    volumes.chain(snapshots).collect()
}

fn of_content(pool: &Pool) -> BTreeMap<String, Uuid> {
    pool.all_snapshots().into_iter().map(|s| (format!("{}@{}", s.volume, s.name), s.content)).collect()
}

fn labelled(pool: &Pool) -> SnapshotInfo {
    pool.snapshot("v", "two").unwrap()
}

/// Checks that all identities of `now` are new, and that the mapping is reported.
fn assert_new(old: &BTreeMap<String, Uuid>, now: &BTreeMap<String, Uuid>, told: &BTreeMap<Uuid, Uuid>) {
    assert!(old.keys().eq(now.keys()));
    for (name, id) in old {
        assert_eq!(told.get(id), Some(&now[name]), "{name}");
    }
    let before: BTreeSet<_> = old.values().collect();
    assert!(now.values().all(|id| !before.contains(id)));
}

#[test]
fn all_identities_are_new_and_nothing_else_has_changed() {
    let (dir, stream) = killed();
    let original = open(&Arc::new(dir.copy()), 2).unwrap();
    let pool = open(&dir, 3).unwrap();
    let (before, by_content) = (contents(&pool), of_content(&pool));
    let old = identities(&pool);
    assert!(before.contains_key("v@undone") && before.contains_key("late@last"));
    let begun = pool.reidentify(&["hindcast.clone"]).unwrap();
    let told = begun.identities().clone();
    begun.end().unwrap();

    assert_clean(dir.clone());
    let pool = open(&dir, 4).unwrap();
    let now = identities(&pool);
    assert_new(&old, &now, &told);
    assert!(contents(&pool) == before);
    assert_eq!(of_content(&pool), by_content);
    let labels = labelled(&pool).labels;
    assert_eq!(labels["hindcast.clone"], now["clone"].to_string(), "it follows the clone");
    assert_eq!(labels["note"], old["clone"].to_string(), "what people note is theirs");
    let moment = |pool: &Arc<Pool>| pool.open_moment("v", &Moment::Mark("here".into())).unwrap().info().uuid;
    assert_ne!(moment(&pool), moment(&original));

    // The import continues, and differences of the original's snapshots still fit.
    let mut import = pool.import(Some("arriving"));
    import.push(&stream).unwrap();
    import.finish().unwrap();
    let v = original.open_volume("clone", false).unwrap();
    write(&v, 0, 9, 4096);
    original.create_snapshots(&[("clone", "first")]).unwrap();
    write(&v, 8192, 8, 4096);
    original.create_snapshots(&[("clone", "second")]).unwrap();
    for (snapshot, from) in [("first", None), ("second", Some("first"))] {
        let mut import = pool.import(Some("brought"));
        import.push(&export(&original, "clone", snapshot, from)).unwrap();
        import.finish().unwrap();
    }
    assert!(content(&pool.open_weak("brought").unwrap()) == content(&v));
    // A receiver of the original's snapshots takes differences of the copy's.
    let receiver = Site::seeded(64, 9);
    for (of, snapshot, from) in [(&original, "one", None), (&pool, "two", Some("one"))] {
        let mut import = receiver.pool.import(Some("v"));
        import.push(&export(of, "v", snapshot, from)).unwrap();
        import.finish().unwrap();
    }
    assert!(content(&receiver.pool.open_weak("v").unwrap()) == before["v@two"]);
}

#[test]
fn nothing_of_the_journal_brings_an_old_identity_back() {
    let (dir, _) = killed();
    let pool = open(&dir, 3).unwrap();
    assert!(pool.stats().destaged_lsn < pool.stats().sequenced_lsn, "records wait");
    let old: BTreeSet<Uuid> = identities(&pool).into_values().collect();
    pool.reidentify(&[]).unwrap().end().unwrap();
    for seed in 4..7 {
        let pool = open(&dir, seed).unwrap();
        assert!(identities(&pool).values().all(|id| !old.contains(id)));
        while pool.maintain().unwrap() == Progress::Worked {}
    }
    assert_clean(dir.clone());
}

#[test]
fn what_was_cut_short_keeps_the_pool_closed_until_it_is_ended() {
    let (dir, _) = killed();
    assert!(Reidentification::resume(&*dir).unwrap().is_none());
    let pool = open(&dir, 3).unwrap();
    let old = identities(&pool);
    let begun = pool.reidentify(&[]).unwrap();
    assert_eq!(open(&dir, 4).err().unwrap().kind(), ErrorKind::Busy, "it holds the pool");
    let told = begun.identities().clone();
    drop(begun);
    for force in [false, true] {
        let world = World { clock: Arc::new(ManualClock::new(4)), rng: Arc::new(SplitMix::new(4)) };
        let open = if force { Pool::open_read_only } else { Pool::open };
        let error = open(dir.clone(), world, PoolOptions::default()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.to_string().starts_with(REIDENTIFYING), "{error}");
    }
    assert_clean(dir.clone());
    for _ in 0..2 {
        let begun = Reidentification::resume(&*dir).unwrap().unwrap();
        assert_eq!(*begun.identities(), told, "the same ones, however often");
    }
    Reidentification::resume(&*dir).unwrap().unwrap().end().unwrap();
    assert!(Reidentification::resume(&*dir).unwrap().is_none());
    assert_new(&old, &identities(&open(&dir, 5).unwrap()), &told);
}

#[test]
fn a_pool_in_use_keeps_its_identities() {
    let (dir, _) = killed();
    let pool = open(&dir, 3).unwrap();
    let (old, held) = (identities(&pool), pool.open_volume("v", true).unwrap());
    assert_eq!(pool.clone().reidentify(&[]).err().unwrap().kind(), ErrorKind::Busy);
    drop(held);
    assert_eq!(identities(&pool), old);
    drop(pool);
    assert_eq!(identities(&open(&dir, 4).unwrap()), old);
}

/// An opening in memory changes none of the pool's bytes.
#[test]
fn a_pool_opened_in_memory_stays_as_it_is() {
    let (dir, _) = killed();
    let bytes = |name: &str| {
        let disk = dir.open(name, hindcast_engine::disk::OpenMode::ReadOnly).unwrap();
        let mut all = vec![0; disk.len().unwrap() as usize];
        disk.read_at(&mut all, 0).unwrap();
        all
    };
    let names = dir.list().unwrap();
    let before: Vec<Vec<u8>> = names.iter().map(|name| bytes(name)).collect();
    let world = World { clock: Arc::new(ManualClock::new(4)), rng: Arc::new(SplitMix::new(4)) };
    let pool = Pool::open_in_memory(dir.clone(), world, PoolOptions::default()).unwrap();
    assert!(contents(&pool).contains_key("late@last"));
    assert_eq!(open(&dir, 5).err().unwrap().kind(), ErrorKind::Busy);
    drop(pool);
    assert_eq!(dir.list().unwrap(), names);
    assert!(names.iter().map(|name| bytes(name)).eq(before));
}
