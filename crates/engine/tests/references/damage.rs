//! References whose data is lost, and damage of the catalog or the journal beside references.

use super::*;
use hindcast_engine::check::inject::{Injury, injure};
use hindcast_engine::check::{CheckOptions, check};
use hindcast_engine::disk::{MemDir, OpenMode};
use hindcast_engine::salvage::SalvageOptions;
use hindcast_engine::testing::{try_write, world};

/// Returns the first position in a file at which 4 KiB hold only `byte`. Looks from `from` on, in
/// steps of `step` bytes.
fn find_in(dir: &dyn Dir, name: &str, (from, step): (u64, usize), byte: u8) -> Option<u64> {
    let disk = dir.open(name, OpenMode::ReadOnly).unwrap();
    let mut block = vec![0; 4096];
    let mut places = (from..disk.len().unwrap().saturating_sub(4095)).step_by(step);
    places.find(|at| {
        disk.read_at(&mut block, *at).unwrap();
        block.iter().all(|b| *b == byte)
    })
}

/// Returns the position of the first block of the physical volume that holds only `byte`.
fn find(dir: &dyn Dir, byte: u8) -> u64 {
    find_in(dir, "pv-0.img", (MIB, 4096), byte).unwrap()
}

/// Damages the first block that holds only `byte`, as a lost write would.
fn lose(dir: &dyn Dir, byte: u8) {
    let disk = dir.open("pv-0.img", OpenMode::Existing).unwrap();
    disk.write_at(&[0xAA; 4096], find(dir, byte)).unwrap();
}

#[test]
fn a_lost_write_ends_the_log_for_ever() {
    let site = site(64);
    let v = volume(&site, "v", 4 * MIB, 16 * KIB);
    refer(&site.pool, &v, 0, 1, 256 * KIB);
    v.flush().unwrap();
    refer(&site.pool, &v, MIB, 2, 256 * KIB);
    refer(&site.pool, &v, 2 * MIB, 3, 256 * KIB);
    inline(&site.pool, &v, 3 * MIB, 4, 256 * KIB - 512);
    drop(v);
    lose(&*site.dir, 3);
    let mut site = site.reopen_after(|dir| {
        // A salvage ends the log at the same record.
        let salvage = Pool::open_salvage(dir, world(9), SalvageOptions::default()).unwrap();
        let found: Vec<&str> = salvage.salvage().unwrap().findings.iter().map(|f| f.code).collect();
        assert_eq!(found, ["journal-end"]);
        let v = salvage.open_volume("v", false).unwrap();
        assert_bytes(&v, MIB, 2, 256 * KIB);
        assert_bytes(&v, 2 * MIB, 0, MIB + 4 * KIB);
    });
    for round in 0..3u8 {
        let v = site.open("v");
        assert_bytes(&v, 0, 1, 256 * KIB);
        assert_bytes(&v, MIB, 2, 256 * KIB);
        assert_bytes(&v, 2 * MIB, 0, 256 * KIB);
        assert_bytes(&v, 3 * MIB, round, 4 * KIB);
        // This write makes a later life name an LSN beyond the dropped record as durable.
        inline(&site.pool, &v, 3 * MIB, round + 1, 4 * KIB);
        v.flush().unwrap();
        drop(v);
        site = site.reopen();
    }
    let v = site.open("v");
    warm(&site.pool, &v);
    refer(&site.pool, &v, 2 * MIB, 5, 256 * KIB);
    idle(&site.pool);
    assert_bytes(&v, 2 * MIB, 5, 256 * KIB);
}

/// Loses the data of a reference that no flush covers, and then changes the files. Returns what a
/// salvage shows of the record behind the reference: its content, or nothing.
fn salvaged_behind_a_lost_write(
    before: impl FnOnce(&Pool, &MemDir),
    change: impl FnOnce(&MemDir),
) -> Vec<&'static str> {
    let site = site(64);
    let v = volume(&site, "v", 4 * MIB, 16 * KIB);
    before(&site.pool, &site.dir);
    refer(&site.pool, &v, 2 * MIB, 3, 256 * KIB);
    inline(&site.pool, &v, 3 * MIB, 4, 4 * KIB);
    drop(v);
    let dir = site.kill();
    lose(&*dir, 3);
    change(&dir);
    let salvage = Pool::open_salvage(dir, world(9), SalvageOptions::default()).unwrap();
    let v = salvage.open_volume("v", false).unwrap();
    let codes: Vec<&str> = salvage.salvage().unwrap().findings.iter().map(|f| f.code).collect();
    if codes.contains(&"journal-end") {
        assert_bytes(&v, 2 * MIB, 0, MIB + 4 * KIB);
    } else {
        assert_bytes(&v, 3 * MIB, 4, 4 * KIB);
        let mut buf = vec![0; 256 * KIB as usize];
        assert!(v.read(2 * MIB, &mut buf).is_err(), "a part of the reference is lost");
    }
    codes
}

/// A salvage believes a reference where the slots do not show whether its data was ever there: with
/// a catalog of an earlier time, and on a physical volume that is not whole.
#[test]
fn a_salvage_drops_a_reference_only_where_its_slots_prove_something() {
    assert_eq!(salvaged_behind_a_lost_write(|_, _| {}, |_| {}), ["journal-end"]);
    let found = salvaged_behind_a_lost_write(
        |pool, dir| drop(pool.backup_metadata(dir, 3).unwrap()),
        |dir| dir.remove("catalog.redb").unwrap(),
    );
    assert!(found.contains(&"backup") && !found.contains(&"journal-end"), "{found:?}");
    let found = salvaged_behind_a_lost_write(
        |_, _| {},
        |dir| {
            let pv = dir.open("pv-0.img", OpenMode::Existing).unwrap();
            pv.set_len(pv.len().unwrap() - 64 * KIB).unwrap();
        },
    );
    assert_eq!(found, ["pv"]);
}

#[test]
fn a_reference_that_was_flushed_is_believed_whatever_its_slots_hold() {
    let site = site(64);
    let v = volume(&site, "v", 4 * MIB, 16 * KIB);
    refer(&site.pool, &v, MIB, 2, 256 * KIB);
    v.flush().unwrap();
    // The next record names the reference as durable.
    inline(&site.pool, &v, 3 * MIB, 4, 4 * KIB);
    drop(v);
    lose(&*site.dir, 2);
    let site = site.reopen();
    let v = site.open("v");
    assert_bytes(&v, 3 * MIB, 4, 4 * KIB);
    let mut buf = vec![0; 256 * KIB as usize];
    assert_eq!(v.read(MIB, &mut buf).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(read(&v, MIB + 16 * KIB, 4096), vec![2; 4096]);
}

#[test]
fn a_block_that_cant_be_read_is_damage_of_its_place() {
    let broken = Arc::new(AtomicU64::new(0));
    let fails = broken.clone();
    let site = Site::builder(64).over(|files| {
        FaultyDir::new(files, move |op: &Op<'_>| {
            let block = fails.load(Ordering::Relaxed);
            let fails = block > 0 && op.name.starts_with("pv");
            let hits = |bytes: &std::ops::Range<u64>| bytes.start < block + 4096 && block < bytes.end;
            (fails && matches!(&op.act, Act::Read(bytes) if hits(bytes)))
                .then(|| io::Error::from_raw_os_error(5))
        })
    });
    enable(&site.pool);
    let v = volume(&site, "v", 4 * MIB, 16 * KIB);
    refer(&site.pool, &v, MIB, 2, 64 * KIB);
    inline(&site.pool, &v, 2 * MIB, 3, 4096);
    drop(v);
    let Site { dir, seen, world, pool, .. } = site;
    drop(pool);
    broken.store(find(&*dir, 2) + 8192, Ordering::Relaxed);
    for _ in 0..2 {
        let pool = Pool::open(seen.clone(), world.clone(), PoolOptions::default()).unwrap();
        let v = pool.open_volume("v", false).unwrap();
        assert_bytes(&v, 2 * MIB, 3, 4096);
        assert_bytes(&v, MIB, 2, 8 * KIB);
        assert_eq!(try_read(&v, MIB + 8 * KIB, 4096).unwrap_err(), ErrorKind::Io);
        assert_bytes(&v, MIB + 12 * KIB, 2, 52 * KIB);
    }
    broken.store(0, Ordering::Relaxed);
    let pool = Pool::open(seen, world, PoolOptions::default()).unwrap();
    let v = pool.open_volume("v", false).unwrap();
    write(&v, MIB + 8 * KIB, 4, 4096);
    idle(&pool);
    assert_bytes(&v, MIB + 8 * KIB, 4, 4096);
}

/// If a physical volume accepts no writes, the pool does not open: the data there may not be
/// durable.
#[test]
fn references_that_cant_be_made_durable_refuse_the_opening() {
    let broken = Arc::new(AtomicBool::new(false));
    let fails = broken.clone();
    let site = Site::builder(0).pvs(&[("pv-0", 65 * MIB), ("pv-1", 65 * MIB)]).over(|files| {
        FaultyDir::new(files, move |op: &Op<'_>| {
            let fails = fails.load(Ordering::Relaxed) && op.name == "pv-0";
            (fails && matches!(op.act, Act::Write(_))).then(|| io::Error::from_raw_os_error(5))
        })
    });
    enable(&site.pool);
    let v = volume(&site, "v", 4 * MIB, 16 * KIB);
    inline(&site.pool, &v, 2 * MIB, 3, 4096);
    refer(&site.pool, &v, MIB, 2, 64 * KIB);
    drop(v);
    let Site { seen, world, pool, .. } = site;
    drop(pool);
    broken.store(true, Ordering::Relaxed);
    let open = |accept_journal_loss| {
        let options = PoolOptions { accept_journal_loss, ..PoolOptions::default() };
        Pool::open(seen.clone(), world.clone(), options)
    };
    let error = open(false).err().unwrap();
    assert!(error.to_string().contains("on pv-0, which takes no writes"), "{error}");
    let pool = open(true).unwrap();
    let v = pool.open_volume("v", false).unwrap();
    assert_bytes(&v, 2 * MIB, 3, 4096);
    assert_bytes(&v, MIB, 0, 64 * KIB);
}

/// A repair that has to guess reserves space, but not the slots that references name. Before, it
/// refused to repair the marks of such a pool, and the opening gave slots in use to other chunks.
#[test]
fn a_repair_leaves_references_their_slots() {
    for pick in 0..32 {
        let site = site(16);
        let other = site.volume("a", MIB, 16 * KIB);
        write(&other, 0, 1, 512 * KIB);
        idle(&site.pool);
        let v = volume(&site, "b", 4 * MIB, 4 * KIB);
        write(&v, 0, 2, MIB);
        idle(&site.pool);
        site.pool.create_snapshots(&[("b", "s")]).unwrap();
        refer(&site.pool, &v, 0, 3, 256 * KIB);
        refer(&site.pool, &v, 2 * MIB, 4, 64 * KIB);
        drop((v, other));
        let site = site.reopen_after(|dir| {
            assert!(injure(&*dir, Injury::BadMapPage, 0).unwrap());
            let injury =
                [Injury::LostExtent, Injury::LostExtentAndBitmap, Injury::BadExtent][pick as usize % 3];
            assert!(injure(&*dir, injury, pick / 3).unwrap());
            let options = CheckOptions { repair: true, ..CheckOptions::default() };
            let found = check(dir.clone(), &options, &mut |_, _| {}).unwrap().findings;
            assert!(found.iter().any(|finding| finding.repaired), "{found:?}");
            assert!(found.iter().all(|finding| finding.code != "reference"), "{found:?}");
        });
        let (v, snapshot) = (site.open("b"), site.snapshot("b", "s"));
        let look = || {
            assert_bytes(&snapshot, 0, 2, MIB);
            assert_bytes(&v, 0, 3, 256 * KIB);
            assert_bytes(&v, 256 * KIB, 2, 768 * KIB);
            assert_bytes(&v, 2 * MIB, 4, 64 * KIB);
        };
        look();
        // Writes to all space that the pool calls free.
        for chunk in [4 * KIB, 16 * KIB] {
            let new = site.volume(&format!("new-{chunk}"), 16 * MIB, chunk);
            let full = |at: u64| try_write(&new, at * 64 * KIB, 9, 64 * KIB).is_err();
            let _ = (0..256).any(full);
            idle(&site.pool);
        }
        look();
    }
}

/// A repair that has to guess leaves references their slots also if the journal is damaged behind
/// them. The opening then accepts the loss of the journal, and uses these references.
#[test]
fn a_repair_beside_a_damaged_journal_leaves_references_their_slots() {
    let site = site(16);
    let other = site.volume("a", MIB, 16 * KIB);
    write(&other, 0, 1, 512 * KIB);
    idle(&site.pool);
    let v = volume(&site, "b", 4 * MIB, 4 * KIB);
    refer(&site.pool, &v, 0, 3, 256 * KIB);
    v.flush().unwrap();
    inline(&site.pool, &v, MIB, 4, 48 * KIB);
    v.flush().unwrap();
    inline(&site.pool, &v, 2 * MIB, 5, 4 * KIB);
    drop((v, other));
    let dir = site.kill();
    // The first write behind the reference is damaged in the journal.
    let files = dir.list().unwrap().into_iter().filter(|name| name.starts_with("journal"));
    let mut found = files.filter_map(|name| Some((find_in(&*dir, &name, (0, 8), 4)?, name)));
    let (at, name) = found.next().unwrap();
    dir.open(&name, OpenMode::Existing).unwrap().write_at(&[0xAA; 4096], at).unwrap();
    assert!(injure(&*dir, Injury::BadMapPage, 0).unwrap());
    assert!(injure(&*dir, Injury::LostExtentAndBitmap, 0).unwrap());
    let options = CheckOptions { repair: true, ..CheckOptions::default() };
    let found = check(dir.clone(), &options, &mut |_, _| {}).unwrap().findings;
    assert!(found.iter().any(|finding| finding.code == "journal"), "{found:?}");
    assert!(found.iter().any(|finding| finding.code == "marks-lost" && finding.repaired), "{found:?}");
    let options = PoolOptions { accept_journal_loss: true, ..PoolOptions::default() };
    let pool = Pool::open(dir, world(9), options).unwrap();
    let v = pool.open_volume("b", false).unwrap();
    assert_bytes(&v, 0, 3, 256 * KIB);
    assert_bytes(&v, MIB, 0, 48 * KIB);
}
