//! Rot of the catalog under a salvage.

use crate::fixture::*;
use hindcast_engine::cdp::{CdpSettings, Moment};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::disk::MemDir;
use hindcast_engine::pool::{CatalogSource, Pool};
use hindcast_engine::testing::{KIB, MIB};
use hindcast_engine::world::{Rng, SplitMix};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Flips a bit of the catalog, once in each of `places` parts of it. Returns `(own, backup,
/// refused, lossy)`: the sources of the salvages, and how many had losses.
fn rot(dir: &MemDir, places: u64, check: &dyn Fn(&Arc<Pool>) -> Seen) -> [u32; 4] {
    let rng = SplitMix::new(7);
    let all = len(dir, CATALOG);
    let mut counts = [0; 4];
    for n in 0..places {
        let copy = dir.copy();
        flip(&copy, CATALOG, all * n / places + rng.next() % (all / places), n);
        let before = (n % 50 == 0).then(|| files(&copy));
        match salvage(&copy) {
            Err(error) => {
                assert!(error.to_string().contains("no backup of its metadata was found"), "{error}");
                counts[2] += 1;
            }
            Ok(pool) => {
                let seen = check(&pool);
                let own = pool.salvage().unwrap().source == CatalogSource::Own;
                counts[if own { 0 } else { 1 }] += 1;
                counts[3] += u32::from(seen.lost > 0 || seen.devices > 0);
            }
        }
        if let Some(before) = before {
            assert!(files(&copy) == before);
        }
    }
    counts
}

#[test]
fn rot_of_the_catalog_is_read_past_and_never_served() {
    let (dir, model) = Fixture::mixed(&[8]).kill();
    let [own, backup, refused, lossy] = rot(&dir, 400, &|pool| {
        assert!(pool.salvage().unwrap().doubts.is_empty());
        model.check(pool)
    });
    assert_eq!(backup, 0);
    assert!(own > 300 && refused > 0 && lossy > 3, "{own} {refused} {lossy}");
}

#[test]
fn where_the_catalog_does_not_open_any_more_a_backup_stands_in() {
    let (dir, model) = Fixture::mixed(&[8]).stop();
    let [own, backup, refused, lossy] = rot(&dir, 200, &|pool| {
        let found = pool.salvage().unwrap();
        let seen = model.check(pool);
        if let CatalogSource::Backup { exact, .. } = found.source {
            assert!(exact && found.doubts.is_empty() && seen.lost == 0 && seen.devices == 0, "{found:?}");
            assert_eq!(codes(pool), ["catalog", "backup"]);
        }
        seen
    });
    assert_eq!(refused, 0);
    assert!(own > 100 && backup > 0 && lossy > 1, "{own} {backup} {lossy}");
}

/// Many bits rot at once: whole parts of the catalog are gone.
#[test]
fn much_rot_is_read_past_too() {
    let (dir, model) = Fixture::mixed(&[8]).kill();
    let blocks = len(&dir, CATALOG) / BLOCK;
    let rng = SplitMix::new(11);
    let (mut shown, mut lost) = (0, 0);
    for n in 0..150 {
        let copy = dir.copy();
        for _ in 0..1 + n % 6 {
            // The first blocks are left out: if nothing opens, there is nothing to test.
            flip(&copy, CATALOG, (2 + rng.next() % (blocks - 2)) * BLOCK + rng.next() % BLOCK, n);
        }
        if let Ok(pool) = salvage(&copy) {
            let seen = model.check(&pool);
            shown += u32::from(seen.read > 0);
            lost += u32::from(seen.lost > 0);
        }
    }
    assert!(shown > 20 && lost > 3, "{shown} {lost}");
}

/// Rows of small tables in many blocks of the catalog rot: the numbers of the lost ones are
/// reported, and all others are served.
#[test]
fn rows_beside_those_that_rotted_are_served() {
    let mut f = Fixture::new(&[16]);
    for n in 0..220 {
        let name = format!("volume-{n}");
        f.create(&name, 32 * KIB, 4 * KIB);
        f.write(&name, 8 * KIB, 4 * KIB);
    }
    f.pool.drain().unwrap();
    let (dir, model) = f.kill();
    let blocks = len(&dir, CATALOG) / BLOCK;
    let (mut some, mut whole) = (0, 0);
    for block in 2..blocks {
        let copy = dir.copy();
        flip(&copy, CATALOG, block * BLOCK + 77, block);
        let Ok(pool) = salvage(&copy) else { continue };
        let seen = model.check(&pool);
        some += u32::from(seen.devices > 0 && seen.devices < 220);
        whole += u32::from(seen.devices == 0 && seen.lost == 0);
        if seen.devices > 0 {
            let found = pool.salvage().unwrap();
            let told = found.findings.iter().filter(|f| f.code == "catalog-row").map(|f| f.detail.clone());
            assert!(told.into_iter().any(|text| text.contains("rows with numbers")), "{found:?}");
        }
    }
    assert!(some >= 4 && whole > 4, "{some} {whole}");
}

/// A moment that is shown is right, whatever rotted: a missing record is never skipped.
#[test]
fn moments_are_right_or_refused() {
    let mut f = Fixture::new(&[8]);
    f.create("a", MIB, 16 * KIB);
    f.write("a", 0, MIB);
    f.pool.set_cdp("a", Some(CdpSettings::default())).unwrap();
    f.pool.drain().unwrap();
    let mut moments = Vec::new();
    for n in 0..30 {
        f.write("a", n * 40 * KIB % MIB / 512 * 512 / 4, 20 * KIB);
        moments.push((f.pool.stats().sequenced_lsn, f.shown[&("a".to_owned(), None)].clone()));
        if n % 3 == 2 {
            f.pool.drain().unwrap();
        }
        // These are enough for more than one block of events.
        (0..6).for_each(|m| f.snap("a", &format!("s{n}-{m}")));
    }
    f.pool.drain().unwrap();
    let (dir, model) = f.kill();
    let (mut right, mut refused) = (0, 0);
    let blocks = len(&dir, CATALOG) / BLOCK;
    for block in 1..blocks {
        let copy = dir.copy();
        flip(&copy, CATALOG, block * BLOCK + 99, block);
        let Ok(pool) = salvage(&copy) else { continue };
        let there = model.0.keys().filter(|(_, snapshot)| snapshot.as_ref().is_none_or(|s| s.ends_with('0')));
        let there: BTreeMap<_, _> = there.map(|key| (key.clone(), model.0[key].clone())).collect();
        Model(there).check(&pool);
        let doubtful = pool.salvage().unwrap().findings.iter().any(|f| f.code == "history");
        for (lsn, then) in moments.iter().step_by(4) {
            let mut data = vec![0; MIB as usize];
            let view = pool.open_moment("a", &Moment::Lsn(*lsn));
            match view.and_then(|view| view.read(0, &mut data)) {
                Ok(()) => {
                    assert!(data == *then && !doubtful, "block {block}, LSN {lsn}");
                    right += 1;
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(right > 20 && refused > 5, "{right} {refused}");
}
