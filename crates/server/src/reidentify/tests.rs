//! Tests of runs that complete, of runs that are interrupted at any point, and of runs that must
//! not begin.

use super::*;
use hindcast_engine::disk::{OpenMode, SyncPurpose};
use hindcast_engine::pool::{NewVolume, Placement, PoolConfig, PvSpec};
use hindcast_engine::world::{ManualClock, SplitMix, World};
use hindcast_sim::{CrashPoint, PowerLoss, SimDir};
use serde_json::Value;
use std::collections::BTreeSet;

const FILE: &str = "ffffffff-ffff-ffff-ffff-ffffffffffff";

fn world(seed: u64) -> World {
    World { clock: Arc::new(ManualClock::new(seed)), rng: Arc::new(SplitMix::new(seed)) }
}

/// Returns the UUIDs of all volumes and snapshots, as text.
fn known(pool: &Pool) -> BTreeSet<String> {
    let volumes = pool.volumes().into_iter().map(|v| v.uuid.to_string());
    volumes.chain(pool.all_snapshots().iter().map(|s| s.uuid.to_string())).collect()
}

fn durable(dir: &Arc<dyn Dir>, (name, kind, version): (&str, &'static str, u32)) -> DurableFile {
    DurableFile::new(dir.clone(), name, kind, version)
}

/// Creates a simulated directory with a pool. Returns it with the UUIDs in the pool.
fn site(seed: u64) -> (SimDir, Arc<dyn Dir>, BTreeSet<String>) {
    let sim = SimDir::new(seed);
    let dir: Arc<dyn Dir> = Arc::new(sim.clone());
    let old = make(&dir);
    (sim, dir, old)
}

/// Creates and closes a pool with a volume and its snapshot, and the server's files that name both.
/// Returns their UUIDs.
fn make(dir: &Arc<dyn Dir>) -> BTreeSet<String> {
    let config = PoolConfig {
        extent_size: 64 << 10,
        journal_size: 2 << 20,
        segment_size: 256 << 10,
        ..PoolConfig::default()
    };
    let pv = PvSpec { path: "pv-0.img".into(), size: Some(16 << 20), force: false };
    Pool::create(dir.clone(), &world(1), &config, Placement::Anywhere, &[pv]).unwrap();
    let pool = Pool::open(dir.clone(), world(2), PoolOptions::default()).unwrap();
    let (name, size) = ("db".to_owned(), 1 << 20);
    let new = NewVolume { name, size, chunk_size: 4096, block_size: 512, read_only: false };
    let volume = pool.create_volume(&new).unwrap().uuid.to_string();
    let snapshot = pool.create_snapshots(&[("db", "s")]).unwrap()[0].uuid.to_string();
    pool.label_snapshot("db", "s", &[(CLONE, Some(&volume))]).unwrap();
    let old = known(&pool);
    pool.close().unwrap();
    let settings = r#"{"enabled": true, "alias": null, "guard": {"rules": [], "chap": null}}"#;
    let targets = format!(
        r#"{{"all": {{"rules": [], "chap": null}},
        "targets": [{{"name": "iqn.2026-11.io.hindcast:t", "settings": {settings},
            "luns": [[0, "{volume}"], [1, "{snapshot}"], [2, "{FILE}"]]}}],
        "volumes": [{{"uuid": "{volume}", "settings": {}}}],
        "files": [{{"uuid": "{FILE}", "path": "/srv/cd.iso", "read_only": true, "block_size": 4096}}]}}"#,
        settings.replace("null, \"guard", "\"people\", \"guard")
    );
    let schedules = format!(
        r#"[{{"name": "hourly", "volumes": ["{volume}"], "every": 3600, "paused": false,
        "keep": {{"last": 1, "hourly": 0, "daily": 0, "weekly": 0, "monthly": 0}}, "since": "2026-11-22T03:14:15Z"}}]"#
    );
    durable(dir, iscsi::STORED).save(targets.as_bytes()).unwrap();
    durable(dir, schedule::STORED).save(schedules.as_bytes()).unwrap();
    for id in [volume.as_str(), FILE] {
        let name = format!("lu-{id}.state");
        durable(dir, (&name, iscsi::LU_KIND, iscsi::LU_VERSION)).save(b"registrations").unwrap();
    }
    dir.sync(SyncPurpose::Dir).unwrap();
    old
}

fn json(dir: &Arc<dyn Dir>, stored: (&str, &'static str, u32)) -> Value {
    serde_json::from_slice(&durable(dir, stored).read().unwrap().unwrap()).unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// Checks that every UUID in the server's files exists, and that all UUIDs are either old or new.
fn assert_together(dir: &Arc<dyn Dir>, pool: &Pool, old: &BTreeSet<String>, what: &str) {
    let (volume, snapshot) = (pool.volume("db").unwrap(), pool.snapshot("db", "s").unwrap());
    let id = volume.uuid.to_string();
    let changed = !old.contains(&id);
    assert_eq!(known(pool).is_disjoint(old), changed, "{what}");
    assert_eq!(snapshot.labels[CLONE], id, "{what}");
    let targets = json(dir, iscsi::STORED);
    let lun = |n: usize| text(&targets["targets"][0]["luns"][n][1]);
    assert_eq!((lun(0), lun(1)), (id.clone(), snapshot.uuid.to_string()), "{what}");
    assert_eq!(text(&targets["volumes"][0]["uuid"]), id, "{what}");
    assert_eq!(lun(2), text(&targets["files"][0]["uuid"]), "{what}");
    assert_eq!(lun(2) != FILE, changed, "{what}");
    assert_eq!(text(&json(dir, schedule::STORED)[0]["volumes"][0]), id, "{what}");
    assert_eq!(lu_files(dir).unwrap().len(), if changed { 0 } else { 2 }, "{what}");
}

#[test]
fn a_run_changes_everything_together() {
    let (_, dir, old) = site(1);
    let pool = Pool::open(dir.clone(), world(3), PoolOptions::default()).unwrap();
    assert_together(&dir, &pool, &old, "before");
    let identities = begin(&dir, pool).unwrap();
    let pool = open(&dir, &PoolOptions::default()).unwrap();
    assert_together(&dir, &pool, &old, "after");
    let now = identified(&dir, &pool, Some(&identities)).unwrap();
    assert_eq!(now.volumes[0].new.as_ref(), Some(&pool.volume("db").unwrap().uuid.to_string()));
    let told: BTreeSet<String> = now.volumes.iter().chain(&now.snapshots).map(|i| i.old.clone()).collect();
    assert_eq!(told, old);
    assert_eq!(now.targets, ["iqn.2026-11.io.hindcast:db", "iqn.2026-11.io.hindcast:t"]);
    assert_eq!((now.files, now.schedules), (vec!["/srv/cd.iso".into()], vec!["hourly".into()]));
}

/// The test interrupts a run at each disk operation, with and without the loss of unsynced data.
/// The next start of the server finds either all old or all new UUIDs, and the next run completes.
#[test]
fn a_run_that_is_cut_short_anywhere_is_ended_by_the_next_opening() {
    let ops = {
        let (sim, dir, _) = site(1);
        let pool = Pool::open(dir.clone(), world(3), PoolOptions::default()).unwrap();
        let before = sim.counts().ops;
        begin(&dir, pool).unwrap();
        sim.counts().ops - before
    };
    assert!(ops > 20, "{ops} operations");
    let mut found = [0; 3];
    for op in 0..ops {
        // The test uses a kill, and one kind of power loss in turn.
        let loss = PowerLoss::ALL[op as usize % PowerLoss::ALL.len()];
        for how in [None, Some(loss)] {
            let what = format!("operation {op} of {ops}, {how:?}");
            let (sim, dir, old) = site(op + 2);
            let pool = Pool::open(dir.clone(), world(3), PoolOptions::default()).unwrap();
            sim.crash_at(Some(CrashPoint::Op(sim.counts().ops + op)));
            // The run promises nothing about closing the catalog, so an error there does not
            // matter.
            let done = begin(&dir, pool).is_ok();
            assert!(sim.crashed(), "{what}");
            how.map_or_else(|| sim.kill(), |loss| sim.lose_power(loss));
            sim.crash_at(None);
            let unfinished = match Pool::open(dir.clone(), world(4), PoolOptions::default()) {
                Ok(pool) => {
                    let changed = known(&pool).is_disjoint(&old);
                    found[if changed { 2 } else { 0 }] += 1;
                    assert!(changed || !done, "{what}");
                    false
                }
                Err(error) => {
                    assert!(is_unfinished(&error), "{what}: {error}");
                    found[1] += 1;
                    true
                }
            };
            let pool = open(&dir, &PoolOptions::default()).unwrap();
            assert_together(&dir, &pool, &old, &what);
            assert!(!(unfinished || done) || known(&pool).is_disjoint(&old), "{what}");
            if op % 16 == 0 {
                let older = known(&pool);
                begin(&dir, pool).unwrap();
                let pool = open(&dir, &PoolOptions::default()).unwrap();
                assert!(known(&pool).is_disjoint(&older), "{what}");
            }
        }
    }
    assert!(found.iter().all(|n| *n > 0), "before, in between, after: {found:?}");
}

#[test]
fn the_command_tells_of_a_run_that_was_cut_short_and_ends_it() {
    let tmp = tempfile::tempdir().unwrap();
    let dir: Arc<dyn Dir> = Arc::new(FileDir::new(tmp.path()));
    let old = make(&dir);
    let pool = Pool::open(dir.clone(), world(3), PoolOptions::default()).unwrap();
    assert_eq!(survey_identities(tmp.path()).unwrap_err().kind, ErrorKind::Busy, "it is open");
    drop(pool.reidentify(&[CLONE]).unwrap());
    assert!(survey_identities(tmp.path()).unwrap().unfinished);
    let done = reidentify(tmp.path(), 3).unwrap();
    assert!(done.resumed && tmp.path().join("metadata").join(done.backup.unwrap()).exists());
    let told: BTreeSet<String> =
        done.now.volumes.iter().chain(&done.now.snapshots).map(|i| i.old.clone()).collect();
    assert_eq!(told, old);
    let found = survey_identities(tmp.path()).unwrap();
    assert!(!found.unfinished && !old.contains(&found.volumes[0].old));
    assert_together(&dir, &open(&dir, &PoolOptions::default()).unwrap(), &old, "ended");
    // The next run is a new one, and does not resume the last one.
    let again = reidentify(tmp.path(), 3).unwrap();
    assert!(!again.resumed && again.now.volumes[0].old == found.volumes[0].old);
}

#[test]
fn files_that_cannot_be_read_are_looked_at_first() {
    for (name, kind, version) in [iscsi::STORED, schedule::STORED] {
        let (_, dir, old) = site(1);
        dir.remove(name).unwrap();
        dir.open(name, OpenMode::CreateNew).unwrap().write_at(b"damage", 0).unwrap();
        let pool = Pool::open(dir.clone(), world(3), PoolOptions::default()).unwrap();
        let error = begin(&dir, pool).unwrap_err();
        assert!(error.kind == ErrorKind::Corrupt && error.message.contains(name), "{error:?}");
        let pool = open(&dir, &PoolOptions::default()).unwrap();
        assert_eq!(known(&pool), old, "nothing was changed");
        // The operator can also move away a file that was damaged after the change began.
        let begun = pool.reidentify(&[CLONE]).unwrap();
        assert_eq!(complete(&dir, begun).unwrap_err().kind(), hindcast_engine::ErrorKind::Corrupt);
        assert!(open(&dir, &PoolOptions::default()).is_err());
        durable(&dir, (name, kind, version)).remove().unwrap();
        assert!(known(&open(&dir, &PoolOptions::default()).unwrap()).is_disjoint(&old));
    }
}
