//! Salvage of a pool that does not open: each byte that can be read is the one that was written,
//! each other byte is named, and no part of the pool is written to.
#![allow(clippy::unwrap_used)] // a test may panic

mod crash;
mod fixture;
mod rot;

use bytes::Bytes;
use fixture::*;
use hindcast_engine::ErrorKind;
use hindcast_engine::cdp::{CdpSettings, Moment};
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::disk::{Dir, OpenMode};
use hindcast_engine::pool::{CatalogSource, Pool};
use hindcast_engine::salvage::SalvageOptions;
use hindcast_engine::testing::{KIB, MIB, world, write};
use std::sync::Arc;

#[test]
fn a_whole_pool_is_shown_as_a_whole_and_takes_nothing() {
    let (dir, model) = Fixture::mixed(&[8]).kill();
    let before = files(&dir);
    let pool = salvage(&dir).unwrap();
    assert!(pool.salvage().unwrap().is_clean(), "{:?}", pool.salvage());
    assert_eq!(model.check(&pool), Seen { read: model.bytes(), ..Seen::default() });
    let devices: Vec<_> = pool.devices();
    assert_eq!(devices.len(), model.0.len());
    let mut op = [WriteOp::new(0, Bytes::from(vec![1; 512]))];
    pool.open_volume("a", false).unwrap().write(&mut op, false);
    assert!(op[0].result.is_err());
    assert!(pool.create_snapshots(&[("a", "no")]).is_err());
    assert_eq!(pool.backup_metadata(&dir, 3).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert!(pool.maintain().is_err() && pool.drain().is_err());
    assert_eq!(
        salvage(&dir).map(drop).unwrap_err().kind(),
        ErrorKind::Busy,
        "another process could change it meanwhile"
    );
    drop(pool);
    assert!(files(&dir) == before);
    // If the lock's file is missing, none is made.
    dir.remove("pool.lock").unwrap();
    let pool = salvage(&dir).unwrap();
    assert!(Pool::open(Arc::new(dir.clone()), world(4), options()).is_err(), "the catalog is locked");
    dir.remove("pool.lock").unwrap();
    drop(pool);
    assert!(!files(&dir).contains_key("pool.lock"));
    // The pool also opens as before.
    drop(Pool::open(Arc::new(dir), world(4), options()).unwrap());
}

/// A volume on the remaining physical volume is whole. Of another volume, exactly the part on the
/// lost one is named.
#[test]
fn a_physical_volume_that_is_missing_takes_only_what_lies_on_it() {
    let mut f = Fixture::new(&[2, 4]);
    f.create("whole", MIB, 16 * KIB);
    f.write("whole", 0, MIB);
    f.pool.drain().unwrap();
    f.create("split", 4 * MIB, 16 * KIB);
    f.write("split", 0, 3 * MIB);
    f.pool.drain().unwrap();
    f.write("split", 2 * MIB, 6 * KIB);
    let (dir, model) = f.kill();
    let there = dir.copy();
    there.remove("pv-1.img").unwrap();
    let before = files(&there);
    let pool = salvage(&there).unwrap();
    assert_eq!(codes(&pool), ["pv"]);
    assert!(pool.salvage().unwrap().doubts.is_empty());
    assert!(losses(&pool, "whole", None).is_empty());
    let lost = losses(&pool, "split", None);
    assert!(lost.iter().all(|l| l.reason.code() == "physical-volume"), "{lost:?}");
    assert!(lost[0].reason.to_string().contains("pv-1.img can't be used: it is missing"), "{lost:?}");
    assert!(
        !lost.iter().any(|l| l.offset <= 2 * MIB && l.offset + l.length > 2 * MIB),
        "it is in the journal"
    );
    let seen = model.check(&pool);
    assert!(seen.lost > MIB && seen.lost < 3 * MIB, "{seen:?}");
    assert_eq!(seen.read + seen.lost, model.bytes());
    drop(pool);
    assert!(files(&there) == before);

    // This is the same disk under another path.
    let moved = dir.copy();
    moved.rename("pv-1.img", "found").unwrap();
    assert!(model.check(&salvage(&moved).unwrap()).lost > 0);
    let of =
        SalvageOptions { moved: [("pv-1.img".into(), "found".into())].into(), ..SalvageOptions::default() };
    let pool = salvage_with(&moved, of).unwrap();
    assert!(pool.salvage().unwrap().is_clean());
    assert_eq!(model.check(&pool), Seen { read: model.bytes(), ..Seen::default() });
    // The other way round: the disk there is another one.
    let swapped = dir.copy();
    swapped.take_from(&dir, "pv-0.img");
    swapped.remove("pv-1.img").unwrap();
    swapped.rename("pv-0.img", "pv-1.img").unwrap();
    let pool = salvage(&swapped).unwrap();
    assert!(
        pool.salvage().unwrap().findings.iter().any(|f| f.detail.contains("another volume of this pool"))
    );
    assert!(model.check(&pool).lost > 3 * MIB);
}

#[test]
fn a_physical_volume_that_was_cut_short_or_has_lost_its_label_is_used_as_far_as_it_goes() {
    let (dir, model) = Fixture::mixed(&[8]).kill();
    let cut = dir.copy();
    cut.open("pv-0.img", OpenMode::Existing).unwrap().set_len(MIB + 700 * KIB + 100).unwrap();
    let pool = salvage(&cut).unwrap();
    assert_eq!(codes(&pool), ["pv"]);
    let seen = model.check(&pool);
    assert!(seen.lost > 256 * KIB && seen.read > 3 * MIB, "{seen:?}");

    let unlabelled = dir.copy();
    unlabelled.open("pv-0.img", OpenMode::Existing).unwrap().write_at(&[0; 4096], 0).unwrap();
    let pool = salvage(&unlabelled).unwrap();
    assert_eq!(codes(&pool), ["pv-label"], "its stamps prove whose it is");
    assert_eq!(model.check(&pool).lost, 0);
    drop(pool);
    unlabelled.open("pv-0.img", OpenMode::Existing).unwrap().write_at(&[0; 3 * 4096], 0).unwrap();
    let pool = salvage(&unlabelled).unwrap();
    assert_eq!(codes(&pool), ["pv"]);
    let seen = model.check(&pool);
    assert!(seen.lost > MIB, "{seen:?}");
}

#[test]
fn a_damaged_journal_is_given_up_from_there_on_and_named() {
    let mut f = Fixture::new(&[8]);
    f.create("a", MIB, 16 * KIB);
    f.write("a", 0, MIB);
    f.pool.drain().unwrap();
    let then = f.shown[&("a".to_owned(), None)].clone();
    for n in 0..8 {
        f.write("a", n * 128 * KIB, 64 * KIB);
    }
    let (dir, model) = f.kill();
    let files_of: Vec<String> =
        dir.list().unwrap().into_iter().filter(|n| n.starts_with("journal-0")).collect();
    assert!(files_of.len() > 2, "{files_of:?}");
    let (mut lossy, mut whole) = (0, 0);
    for name in &files_of {
        for at in (0..len(&dir, name)).step_by(24_576) {
            let copy = dir.copy();
            let disk = copy.open(name, OpenMode::Existing).unwrap();
            disk.write_at(&[0x99; 4096], at).unwrap();
            let pool = salvage(&copy).unwrap();
            let found = pool.salvage().unwrap();
            let Some(loss) = pool.journal_loss() else {
                assert!(found.is_clean(), "{found:?}");
                let mut data = vec![0; MIB as usize];
                pool.open_volume("a", true).unwrap().read(0, &mut data).unwrap();
                // Nothing proves that the last record was durable.
                let last = 7 * 128 * 1024;
                assert!(data[..last] == model.0[&("a".to_owned(), None)][..last]);
                whole += 1;
                continue;
            };
            assert_eq!(codes(&pool), ["journal"]);
            assert!(loss.recovered_lsn < loss.durable_lsn.max(loss.last_lsn));
            // The content is a prefix: some writes are there, and then none.
            let mut data = vec![0; MIB as usize];
            pool.open_volume("a", true).unwrap().read(0, &mut data).unwrap();
            let now = &model.0[&("a".to_owned(), None)];
            let newer: Vec<bool> = (0..8)
                .map(|n| {
                    let range = n * 128 * 1024..n * 128 * 1024 + 65536;
                    assert!(
                        data[range.clone()] == then[range.clone()]
                            || data[range.clone()] == now[range.clone()]
                    );
                    data[range.clone()] == now[range]
                })
                .collect();
            assert!(newer.is_sorted_by(|a, b| a >= b) && newer.contains(&false), "{newer:?}");
            lossy += 1;
        }
    }
    assert!(lossy > 5 && whole > 5, "{lossy} {whole}");
    // All of them are gone.
    for name in files_of {
        dir.remove(&name).unwrap();
    }
    let pool = salvage(&dir).unwrap();
    assert!(pool.journal_loss().is_some());
    let mut data = vec![0; MIB as usize];
    pool.open_volume("a", true).unwrap().read(0, &mut data).unwrap();
    assert!(data == then);
}

#[test]
fn a_history_without_one_of_its_files_takes_nothing_of_what_volumes_are() {
    let mut f = Fixture::new(&[8]);
    f.create("a", MIB, 16 * KIB);
    f.write("a", 0, MIB);
    f.pool.set_cdp("a", Some(CdpSettings::default())).unwrap();
    f.pool.drain().unwrap();
    let mut moments = Vec::new();
    for n in 0..24 {
        f.write("a", n % 8 * 128 * KIB, 64 * KIB);
        moments.push((f.pool.stats().sequenced_lsn, f.shown[&("a".to_owned(), None)].clone()));
        f.pool.drain().unwrap();
    }
    let (dir, model) = f.kill();
    // Returns (number of moments that are right, number that can't be shown).
    let show = |pool: &Arc<Pool>| {
        let (mut right, mut refused) = (0, 0);
        for (lsn, then) in &moments {
            let mut data = vec![0; MIB as usize];
            let view = pool.open_moment("a", &Moment::Lsn(*lsn));
            match view.and_then(|view| view.read(0, &mut data)) {
                Ok(()) => {
                    assert!(data == *then, "LSN {lsn}");
                    right += 1;
                }
                Err(_) => refused += 1,
            }
        }
        (right, refused)
    };
    let pool = salvage(&dir).unwrap();
    assert!(pool.salvage().unwrap().is_clean());
    assert_eq!(show(&pool), (24, 0));
    drop(pool);
    let segments: Vec<String> = dir.list().unwrap().into_iter().filter(|n| n.starts_with("cdp-")).collect();
    assert!(!segments.is_empty(), "{:?}", dir.list());
    for name in &segments {
        for cut in [false, true] {
            let copy = dir.copy();
            match cut {
                true => copy.open(name, OpenMode::Existing).unwrap().set_len(5000).unwrap(),
                false => copy.remove(name).unwrap(),
            }
            let before = files(&copy);
            let pool = salvage(&copy).unwrap();
            assert_eq!(codes(&pool), ["history"], "{:?}", pool.salvage());
            assert_eq!(model.check(&pool).lost, 0);
            assert!(show(&pool).1 > 0);
            drop(pool);
            assert!(files(&copy) == before);
        }
    }
}

#[test]
fn a_catalog_that_is_gone_comes_from_a_backup_and_doubt_is_told() {
    // The backup is that of an orderly stop: all of it is exact.
    let (dir, model) = Fixture::mixed(&[8]).stop();
    let gone = dir.copy();
    gone.remove(CATALOG).unwrap();
    let before = files(&gone);
    let pool = salvage(&gone).unwrap();
    let source = &pool.salvage().unwrap().source;
    assert!(matches!(source, CatalogSource::Backup { exact: true, sequence: 1, .. }), "{source:?}");
    assert_eq!(model.check(&pool), Seen { read: model.bytes(), ..Seen::default() });
    drop(pool);
    assert!(files(&gone) == before);
    // The copy on the physical volume is exact, too.
    gone.remove("metadata-0000000001.backup").unwrap();
    let pool = salvage(&gone).unwrap();
    assert!(
        matches!(&pool.salvage().unwrap().source, CatalogSource::Backup { path, .. } if path == "pv-0.img")
    );
    assert_eq!(model.check(&pool).lost, 0);
    drop(pool);

    // The pool was opened since then: the same backup is of an earlier time.
    let later = dir.copy();
    let pool = Pool::open(Arc::new(later.clone()), world(5), options()).unwrap();
    write(&pool.open_volume("a", false).unwrap(), 0, 7, 64 * KIB);
    pool.drain().unwrap();
    pool.close().unwrap();
    drop(pool);
    later.remove(CATALOG).unwrap();
    let pool = salvage(&later).unwrap();
    let found = pool.salvage().unwrap();
    assert!(matches!(found.source, CatalogSource::Backup { exact: false, .. }));
    assert!(found.doubts[0].contains("another volume's data"), "{found:?}");
    assert!(found.findings.iter().any(|f| f.code == "pv-age"), "{found:?}");
    drop(pool);

    // The backup was made while the pool was open.
    let f = Fixture::mixed(&[8]);
    f.pool.backup_metadata(&f.dir, 3).unwrap();
    let (dir, _) = f.kill();
    dir.remove(CATALOG).unwrap();
    let pool = salvage(&dir).unwrap();
    let found = pool.salvage().unwrap();
    assert!(found.doubts[0].contains("made while the pool was open"), "{found:?}");
    assert!(pool.open_volume("a", true).is_ok());
    let told = format!("{:?}", pool.health());
    assert!(told.contains("with a catalog of an earlier time"), "{told}");
    drop(pool);

    // There is no backup at all, and then one that is named.
    let (dir, model) = Fixture::mixed(&[8]).stop();
    let named = dir.copy();
    named.rename("metadata-0000000001.backup", "elsewhere").unwrap();
    let of = SalvageOptions { from: Some("elsewhere".into()), ..SalvageOptions::default() };
    let pool = salvage_with(&named, of).unwrap();
    assert_eq!(model.check(&pool).lost, 0);
    drop(pool);
    dir.remove(CATALOG).unwrap();
    dir.remove("metadata-0000000001.backup").unwrap();
    dir.open("pv-0.img", OpenMode::Existing).unwrap().write_at(&vec![0; 960 << 10], 64 << 10).unwrap();
    let error = salvage(&dir).map(drop).unwrap_err();
    assert!(error.to_string().contains("no backup"), "{error}");
}

#[test]
fn parts_of_different_times_are_shown_and_doubted() {
    let (older, _) = Fixture::mixed(&[8]).stop();
    let dir = older.copy();
    let pool = Pool::open(Arc::new(dir.clone()), world(5), options()).unwrap();
    pool.drain().unwrap();
    pool.close().unwrap();
    drop(pool);
    let stale = older.copy();
    stale.take_from(&dir, "pv-0.img");
    assert!(Pool::open(Arc::new(stale.clone()), world(6), options()).is_err());
    let pool = salvage(&stale).unwrap();
    assert!(
        pool.salvage().unwrap().doubts[0].contains("this data directory is older"),
        "{:?}",
        pool.salvage()
    );
    assert!(pool.open_volume("a", true).is_ok());
}

/// If the image, or the moment of a history, below a volume is lost, the volume's own content is
/// not.
#[test]
fn what_lies_below_a_volume_is_named_where_it_is_gone() {
    let mut f = Fixture::new(&[8]);
    let image: Vec<u8> = (0..MIB).map(|n| (n / 512 % 200) as u8 + 7).collect();
    f.dir.open("image", OpenMode::CreateNew).unwrap().write_at(&image, 0).unwrap();
    let new = hindcast_engine::pool::NewVolume {
        name: "over".into(),
        size: 2 * MIB,
        chunk_size: 16 * KIB,
        block_size: 512,
        read_only: false,
    };
    f.pool.create_volume_over(&new, "image").unwrap();
    f.shown.insert(("over".into(), None), [image, vec![0; MIB as usize]].concat());
    f.write("over", 64 * KIB, 32 * KIB);
    f.create("a", MIB, 16 * KIB);
    f.write("a", 0, 512 * KIB);
    f.pool.set_cdp("a", Some(CdpSettings::default())).unwrap();
    f.pool.drain().unwrap();
    f.write("a", 0, 200 * KIB);
    let (lsn, then) = (f.pool.stats().sequenced_lsn, f.shown[&("a".to_owned(), None)].clone());
    f.write("a", 64 * KIB, 200 * KIB);
    f.pool.drain().unwrap();
    f.pool.recover_volume("a", &Moment::Lsn(lsn), "then").unwrap();
    f.shown.insert(("then".into(), None), then);
    f.write("then", 128 * KIB, 16 * KIB);
    let (dir, model) = f.kill();
    assert_eq!(model.check(&salvage(&dir).unwrap()).lost, 0);

    for name in dir.list().unwrap().into_iter().filter(|name| name.starts_with("cdp-") || name == "image") {
        dir.remove(&name).unwrap();
    }
    let pool = salvage(&dir).unwrap();
    let seen = model.check(&pool);
    let of = |name| losses(&pool, name, None).into_iter().map(|l| (l.offset, l.length, l.reason.code()));
    let over = [(0, 64 * KIB, "image"), (96 * KIB, MIB - 96 * KIB, "image")];
    assert_eq!(of("over").collect::<Vec<_>>(), over);
    assert!(losses(&pool, "a", None).is_empty());
    let then: Vec<_> = of("then").collect();
    assert!(!then.is_empty() && then.iter().all(|(.., code)| *code == "history"), "{then:?}");
    assert!(then.iter().all(|(at, len, _)| at + len <= 128 * KIB || *at >= 144 * KIB), "{then:?}");
    assert!(seen.lost > MIB - 96 * KIB, "{seen:?}");
}

#[test]
fn a_backup_is_exact_only_while_something_tells_that_the_pool_was_not_opened_since() {
    let exact = |pool: &Pool| {
        let found = pool.salvage().unwrap();
        let CatalogSource::Backup { exact, .. } = found.source else { panic!("{found:?}") };
        exact
    };
    let (dir, _) = Fixture::mixed(&[8]).stop();
    dir.remove(CATALOG).unwrap();
    for name in dir.list().unwrap().iter().filter(|name| name.starts_with("journal-")) {
        dir.remove(name).unwrap();
    }
    assert!(exact(&salvage(&dir).unwrap()), "the physical volume's stamp tells");
    dir.open("pv-0.img", OpenMode::Existing).unwrap().write_at(&[0x55; 8192], 4096).unwrap();
    let pool = salvage(&dir).unwrap();
    assert!(!exact(&pool));
    let doubts = &pool.salvage().unwrap().doubts;
    assert!(doubts.iter().any(|doubt| doubt.contains("was opened after that")), "{doubts:?}");
}

/// A volume in the trash is shown under a name of its own, whether its deletion was carried out or
/// is only in the journal.
#[test]
fn a_volume_in_the_trash_is_shown() {
    for settle in [false, true] {
        let mut f = Fixture::new(&[4]);
        f.create("db", MIB, 16 * KIB);
        f.write("db", 0, 64 * KIB);
        f.pool.drain().unwrap();
        let uuid = f.pool.trash_volume("db", false).unwrap().volume.uuid;
        f.create("db", MIB, 4 * KIB);
        if settle {
            f.pool.drain().unwrap();
        }
        let (dir, _) = f.kill();
        let pool = salvage(&dir).unwrap();
        let name = format!("db.trash-{:08x}", uuid.as_fields().0);
        assert_eq!(pool.devices(), [("db".to_owned(), None), (name.clone(), None)], "{settle}");
        assert!(losses(&pool, &name, None).is_empty());
        let mut read = vec![0; 512];
        pool.open_volume(&name, true).unwrap().read(0, &mut read).unwrap();
        assert!(read.iter().any(|byte| *byte != 0));
    }
}
