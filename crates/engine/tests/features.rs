//! The feature word: an upgrade enables formats that older builds do not know. No command reverts
//! it.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::ErrorKind;
use hindcast_engine::disk::{MemDir, SyncPurpose};
use hindcast_engine::pool::{FeatureState, Health, Placement, Pool, PoolConfig};
use hindcast_engine::testing::{Act, FaultyDir, KIB, MIB, Op, Site, check, pv, read, world, write};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn state(pool: &Pool, name: &str) -> FeatureState {
    pool.features().into_iter().find(|info| info.name == name).unwrap().state
}

#[test]
fn an_upgrade_is_for_good() {
    let site = Site::builder(4).without_features().build();
    let volume = site.volume("db", MIB, 16 * KIB);
    write(&volume, 0, 1, 64 * KIB);
    drop(volume);
    let pool = &site.pool;
    let all: Vec<_> = pool.features().into_iter().map(|info| (info.name, info.state)).collect();
    assert_eq!(
        all,
        [
            ("references", FeatureState::Available),
            ("sums", FeatureState::Available),
            ("layouts", FeatureState::Internal),
            ("kept", FeatureState::Internal),
            ("catalog-sums", FeatureState::Enabled),
            ("reidentified", FeatureState::Internal),
            ("shared-segments", FeatureState::Internal),
            ("trash", FeatureState::Internal),
            ("placements", FeatureState::Internal),
            ("dedicated", FeatureState::Internal),
            ("own-placements", FeatureState::Internal),
            ("own-direct", FeatureState::Internal),
        ]
    );
    let before = pool.stats().sequenced_lsn;
    let planned = pool.plan_upgrade(&[]).unwrap();
    assert_eq!((planned[0].name, planned[0].state), ("references", FeatureState::Available));
    assert_eq!((planned.len(), pool.stats().sequenced_lsn), (2, before));

    // An upgrade enables all stable features, whichever the request names.
    let enabled = pool.upgrade(&names(&["references", "references"])).unwrap();
    assert_eq!(
        enabled.iter().map(|info| (info.name, info.state)).collect::<Vec<_>>(),
        [("references", FeatureState::Enabled), ("sums", FeatureState::Enabled)]
    );
    assert_eq!(pool.upgrade(&[]).unwrap(), []);
    assert_eq!(pool.info().features, ["references", "sums", "catalog-sums"]);
    assert_eq!(Pool::stored_features(&*site.dir).map_err(|e| e.kind()), Err(ErrorKind::Busy));

    // The pool already has the requested feature, so nothing is done.
    let after = pool.stats().sequenced_lsn;
    assert_eq!(pool.upgrade(&names(&["references"])).unwrap(), []);
    assert_eq!(pool.stats().sequenced_lsn, after);

    let site = site.reopen();
    assert_eq!(state(&site.pool, "references"), FeatureState::Enabled);
    site.pool.close().unwrap();
    let dir = site.kill();
    assert_eq!(Pool::stored_features(&*dir).unwrap(), ["references", "sums", "catalog-sums"]);
}

#[test]
fn names_that_can_not_be_enabled_are_refused() {
    let site = Site::builder(4).without_features().build();
    let before = site.pool.stats().sequenced_lsn;
    for (name, part) in [
        ("nothing", "this build does not know it; it knows: references, sums"),
        // The feature has a name, but this build can't handle it.
        ("regions", "this build does not know it; it knows: references, sums"),
        ("", "it knows: references, sums"),
        ("shared-segments", "the pool sets it by itself"),
        ("layouts", "the pool sets it by itself"),
        ("catalog-sums", "the pool sets it by itself"),
    ] {
        let wanted = names(&["references", name]);
        for error in [site.pool.upgrade(&wanted).unwrap_err(), site.pool.plan_upgrade(&wanted).unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Invalid, "{name}");
            assert!(error.to_string().contains(part), "{error}");
        }
    }
    assert_eq!(site.pool.stats().sequenced_lsn, before);
    assert_eq!(state(&site.pool, "references"), FeatureState::Available);
}

/// F1: the running pool has a feature only after its commit is durable. The record of the upgrade
/// stays in the journal. The pool carries it out after the next opening.
#[test]
fn a_feature_is_had_only_after_the_commit() {
    let failing = Arc::new(AtomicBool::new(false));
    let fails = failing.clone();
    let site = Site::builder(4).without_features().over(move |dir| {
        FaultyDir::new(dir, move |op: &Op<'_>| {
            let commits = op.name.starts_with("catalog") && op.act == Act::Sync(SyncPurpose::Catalog);
            (commits && fails.load(Ordering::Relaxed)).then(|| io::Error::other("the disk is broken"))
        })
    });
    let volume = site.volume("db", MIB, 16 * KIB);
    write(&volume, 0, 1, 64 * KIB);
    site.pool.drain().unwrap();
    failing.store(true, Ordering::Relaxed);
    site.pool.upgrade(&names(&["references"])).unwrap_err();
    assert!(matches!(site.pool.health(), Health::Poisoned(_)));
    assert_eq!(state(&site.pool, "references"), FeatureState::Available);
    drop(volume);

    failing.store(false, Ordering::Relaxed);
    let site = site.reopen();
    assert_eq!(state(&site.pool, "references"), FeatureState::Available);
    site.pool.drain().unwrap();
    assert_eq!(state(&site.pool, "references"), FeatureState::Enabled);
    assert_eq!(read(&site.open("db"), 0, 64 * KIB), vec![1; 64 << 10]);
    let site = site.reopen();
    assert_eq!(state(&site.pool, "references"), FeatureState::Enabled);
    site.pool.close().unwrap();
    let dir = site.kill();
    assert!(check(dir.clone()).is_clean());
}

/// A backup of the metadata has the features. A catalog that is restored from it has them, too.
#[test]
fn a_restored_catalog_has_the_features() {
    let site = Site::builder(4).without_features().build().having("db", MIB, 16 * KIB);
    site.pool.upgrade(&names(&["references"])).unwrap();
    site.pool.close().unwrap();
    let info = site.pool.backup_metadata(&*site.dir, 2).unwrap();
    let dir = site.kill();
    let found = hindcast_engine::backup::find(&*dir, &info.file.unwrap()).unwrap();
    hindcast_engine::backup::restore(&*dir, &found).unwrap();
    assert_eq!(Pool::stored_features(&*dir).unwrap(), ["references", "sums", "catalog-sums"]);
}

/// A new pool has the features that are stable, or those that its creation names.
#[test]
fn a_new_pool_has_the_features_that_are_wanted() {
    assert_eq!(Site::new(4).pool.info().features, ["references", "sums", "catalog-sums"]);
    assert_eq!(Site::builder(4).without_features().build().pool.info().features, ["catalog-sums"]);
    let create = |features: &[&str]| {
        let (dir, config) = (Arc::new(MemDir::new()), PoolConfig::default());
        let (pv, features) = (pv("pv-0.img", 64 * MIB), names(features));
        let placement = Placement::Anywhere;
        Pool::create_with_features(dir.clone(), &world(1), &config, placement, &[pv], Some(&features))?;
        Pool::stored_features(&*dir)
    };
    assert_eq!(create(&["references"]).unwrap(), ["references", "catalog-sums"]);
    assert_eq!(create(&["layouts"]).unwrap_err().kind(), ErrorKind::Invalid);
}
