//! Pools on mirrors and RAID-5: failures of members, rebuilds, and copies that are wrong.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::ErrorKind;
use hindcast_engine::backup::{find, restore};
use hindcast_engine::disk::{Dir, Layer, LayeredDir, LowerDisk, OpenMode};
use hindcast_engine::pool::{LayoutShape, LayoutSpec, PoolOptions, PvSpec, code};
use hindcast_engine::testing::{Act, FaultyDir, KIB, MIB, Op, Site, assert_bytes, flip, kind, pv, write};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The content of members begins here.
const CONTENT: u64 = MIB;

fn spec(members: &[(&str, u64)], copies: usize) -> LayoutSpec {
    let members = members.iter().map(|(path, mib)| pv(path, *mib * MIB)).collect();
    LayoutSpec { name: "m".into(), shape: LayoutShape::Mirror { copies }, reserve: 0, members }
}

/// Makes a pool whose only physical volume is a mirror of `a` and `b`, with a volume `v` of 8 MiB.
fn mirrored() -> Site {
    only_on(&spec(&[("a", 34), ("b", 34)], 2))
}

/// Makes a pool whose only physical volume is a RAID-5 of `a`, `b` and `c`, with such a volume.
fn with_parity() -> Site {
    let shape = LayoutShape::Raid5 { columns: 3, unit: LayoutShape::DEFAULT_UNIT };
    only_on(&LayoutSpec { shape, ..spec(&[("a", 18), ("b", 18), ("c", 18)], 2) })
}

fn only_on(spec: &LayoutSpec) -> Site {
    move_to(Site::new(4), spec)
}

fn move_to(site: Site, spec: &LayoutSpec) -> Site {
    site.moved_to(spec).having("v", 8 * MIB, 64 * KIB)
}

fn states(site: &Site) -> Vec<bool> {
    let mirror = site.pool.pvs().into_iter().find_map(|pv| pv.layout).unwrap();
    mirror.members.iter().map(|member| member.is_in).collect()
}

fn has(site: &Site, wanted: &str) -> bool {
    site.pool.health().has(wanted)
}

/// Replaces the whole content of a file.
fn spoil(dir: &dyn Dir, name: &str) {
    let disk = dir.open(name, OpenMode::Existing).unwrap();
    let len = disk.len().unwrap() as usize;
    disk.write_at(&vec![0xEE; len], 0).unwrap();
}

#[test]
fn a_pool_outlives_each_member() {
    for (gone, left) in [("a", "b"), ("b", "a")] {
        let site = mirrored();
        site.fill(1);
        let site = site.reopen_after(|dir| spoil(&*dir, gone));
        site.assert_filled(1);
        assert!(has(&site, code::LAYOUT_DEGRADED), "{:?}", site.pool.health());
        assert_eq!(states(&site).iter().filter(|is_in| **is_in).count(), 1);
        site.fill(11);
        assert_eq!(kind(site.pool.put_member_out(left)), ErrorKind::Conflict);
        assert_eq!(
            kind(site.pool.rebuild_member(gone, None, None)),
            ErrorKind::Conflict,
            "it is another disk now"
        );
        let again = PvSpec { force: true, ..pv(gone, 0) };
        let again = PvSpec { size: None, ..again };
        let info = site.pool.rebuild_member(gone, Some(&again), None).unwrap();
        assert_eq!((info.survives, info.members.len()), (0, 2));
        // Writes go on meanwhile.
        let volume = site.open("v");
        write(&volume, 0, 99, 4 * KIB);
        drop(volume);
        site.idle();
        assert_eq!(states(&site), [true, true]);
        assert!(!has(&site, code::LAYOUT_DEGRADED));
        let volume = site.open("v");
        write(&volume, 0, 11, 4 * KIB);
        drop(volume);
        site.idle();
        let site = site.reopen_after(|dir| spoil(&*dir, left));
        site.assert_filled(11);
    }
}

/// Disks that make zeros at once. Then all lines of a new RAID-5 are known to be consistent.
struct Zeroing;

impl Layer for Zeroing {
    fn zero(&self, disk: &LowerDisk, offset: u64, len: u64, _unmap: bool) -> io::Result<bool> {
        disk.write_at(&vec![0; len as usize], offset)?;
        Ok(true)
    }
}

/// A block in use rots, and is then overwritten in place. In wide rows its old content is a source
/// of the new parity, which the blocks of other members need when one of them is lost.
#[test]
fn rot_that_is_overwritten_harms_nothing_else() {
    for gone in ["a", "b", "c", "d"] {
        let shape = LayoutShape::Raid5 { columns: 4, unit: LayoutShape::DEFAULT_UNIT };
        let members = [("a", 18), ("b", 18), ("c", 18), ("d", 18)];
        let site = Site::builder(4).over(|dir| Arc::new(LayeredDir::over(Arc::new(dir), Arc::new(Zeroing))));
        let site = move_to(site, &LayoutSpec { shape, ..spec(&members, 2) });
        site.fill(1);
        let rotten = 4 * MIB + 64 * KIB;
        write(&site.open("v"), rotten, 0xAB, 4 * KIB);
        site.idle();
        // The youngest entry of the parity log would mend the block.
        write(&site.open("v"), 0, 1, 4 * KIB);
        site.idle();
        let site = site.reopen_after(|dir| {
            let is_it = |block: &[u8]| block == [0xAB; 4096];
            let found = members.iter().find_map(|(name, _)| {
                let disk = dir.open(name, OpenMode::Existing).unwrap();
                let mut content = vec![0; disk.len().unwrap() as usize];
                disk.read_at(&mut content, 0).unwrap();
                Some((disk, content.chunks(4096).position(is_it)? as u64 * 4096))
            });
            let (disk, at) = found.unwrap();
            disk.write_at(&[0xEE; 100], at + 7).unwrap();
        });
        write(&site.open("v"), rotten, 0xCD, 4 * KIB);
        site.idle();
        let site = site.reopen_after(|dir| spoil(&*dir, gone));
        let volume = site.open("v");
        assert_bytes(&volume, rotten, 0xCD, 4 * KIB);
        assert_bytes(&volume, 4 * MIB, 5, 64 * KIB);
        assert_bytes(&volume, rotten + 4 * KIB, 5, MIB - 68 * KIB);
        for n in [0, 1, 2, 3, 5, 6, 7] {
            assert_bytes(&volume, n * MIB, 1 + n as u8, MIB);
        }
    }
}

#[test]
fn a_rebuild_goes_on_after_a_kill() {
    let site = mirrored();
    site.fill(1);
    site.pool.put_member_out("a").unwrap();
    site.fill(21);
    site.pool.rebuild_member("a", None, None).unwrap();
    (0..2).for_each(|_| drop(site.pool.maintain()));
    assert_eq!(states(&site), [false, true]);
    let site = site.reopen();
    assert_eq!(states(&site), [false, true]);
    site.idle();
    assert_eq!(states(&site), [true, true]);
    let site = site.reopen_after(|dir| spoil(&*dir, "b"));
    site.assert_filled(21);
}

/// Returns how many bytes of a member's places changed since it went out.
fn changed(site: &Site) -> Option<u64> {
    let layout = site.pool.pvs().into_iter().find_map(|pv| pv.layout).unwrap();
    layout.members[0].changed
}

#[test]
fn a_disk_that_is_there_again_gets_only_what_changed() {
    for (make, other) in [(mirrored as fn() -> Site, "b"), (with_parity, "c")] {
        let site = make();
        site.fill(1);
        assert_eq!(changed(&site), None);
        site.pool.put_member_out("a").unwrap();
        let volume = site.open("v");
        write(&volume, 5 * MIB, 77, 4 * KIB);
        drop(volume);
        site.idle();
        // The marks outlive a restart.
        let site = site.reopen();
        let some = changed(&site).unwrap();
        assert!((64 * KIB..4 * MIB).contains(&some), "{some} bytes changed");
        site.pool.rebuild_member("a", None, Some(MIB)).unwrap();
        let mut steps = 0;
        site.idle();
        while !states(&site)[0] {
            site.clock.advance(SECOND / 16);
            site.idle();
            steps += 1;
        }
        // All of it takes 8 s. Of a RAID-5 groups of 8 MiB of content are copied.
        assert!(steps < if other == "b" { 2 * 16 } else { 10 * 16 }, "{steps} sixteenths of a second");
        assert_eq!(changed(&site), None);
        let site = site.reopen_after(|dir| spoil(&*dir, other));
        assert_bytes(&site.open("v"), 5 * MIB, 77, 4 * KIB);
    }
}

/// Destage is due in each step of background work.
#[test]
fn a_rebuild_ends_while_destage_is_always_due() {
    let site = mirrored().reopen_with(PoolOptions { lazy_turns: 0, ..PoolOptions::default() });
    site.fill(1);
    site.pool.put_member_out("a").unwrap();
    site.pool.rebuild_member("a", Some(&pv("new", 34 * MIB)), None).unwrap();
    let volume = site.open("v");
    for n in 0.. {
        assert!(n < 2000, "the rebuild waits for ever");
        write(&volume, n % 8 * MIB, 1 + (n % 8) as u8, 64 * KIB);
        site.clock.advance(SECOND / 16);
        site.pool.maintain().unwrap();
        if states(&site)[0] {
            break;
        }
    }
    drop(volume);
    site.reopen_after(|dir| spoil(&*dir, "b")).assert_filled(1);
}

#[test]
fn a_member_is_replaced_without_being_out() {
    let site = mirrored();
    site.fill(1);
    let small = PvSpec { size: Some(20 * MIB), ..pv("c", 0) };
    assert_eq!(kind(site.pool.rebuild_member("a", Some(&small), None)), ErrorKind::Invalid);
    let info = site.pool.rebuild_member("a", Some(&pv("d", 40 * MIB)), None).unwrap();
    assert!(info.members[0].is_in && info.members[0].incoming.is_some(), "{info:?}");
    assert_eq!(info.survives, 1);
    assert_eq!(kind(site.pool.rebuild_member("a", None, None)), ErrorKind::Conflict, "one at a time");
    site.idle();
    let mirror = site.pool.pvs()[0].layout.clone().unwrap();
    assert_eq!(mirror.members.iter().map(|m| &m.path[..]).collect::<Vec<_>>(), ["d", "b"]);
    let site = site.reopen_after(|dir| {
        spoil(&*dir, "a");
        spoil(&*dir, "b");
    });
    site.assert_filled(1);
}

#[test]
fn a_wrong_copy_is_never_read_and_is_mended() {
    for by_scrub in [false, true] {
        let site = mirrored();
        site.fill(1);
        // One byte in each piece of one member: no unit of it is right.
        let len = site.dir.open("a", OpenMode::ReadOnly).unwrap().len().unwrap();
        for at in (CONTENT + MIB..len).step_by(4 * KIB as usize) {
            flip(&site.dir, "a", at, 1);
        }
        if by_scrub {
            site.pool.scrub(0, false).unwrap();
            while site.pool.data_scrub().running {
                site.pool.scrub_step().unwrap();
            }
            assert!(site.pool.data_scrub().repaired >= 8 * MIB, "{:?}", site.pool.data_scrub());
            assert_eq!(site.pool.data_scrub().damaged, 0);
        }
        site.assert_filled(1);
        if !by_scrub {
            assert!(site.pool.stats().repaired.copies > 0, "half of it is read from the wrong member first");
        }
        assert!(!has(&site, code::DATA_DAMAGED));
        if by_scrub {
            let site = site.reopen_after(|dir| spoil(&*dir, "b"));
            site.assert_filled(1);
        }
    }
}

#[test]
fn a_backup_of_the_metadata_is_found_on_each_member() {
    let site = mirrored();
    site.fill(1);
    site.pool.close().unwrap();
    let info = site.pool.backup_metadata(&*site.dir, 2).unwrap();
    assert_eq!(info.pvs, 1);
    for member in ["a", "b"] {
        let found = hindcast_engine::backup::find(&*site.dir, member).unwrap();
        assert_eq!(found.info.sequence, info.sequence, "{member}");
    }
}

#[test]
fn mirrors_are_made_of_what_fits() {
    let site = Site::new(4);
    for (members, copies) in [(&[("a", 8)][..], 2), (&[("a", 8), ("b", 8)], 1), (&[("a", 8), ("b", 8)], 5)] {
        assert_eq!(kind(site.pool.add_layout(&spec(members, copies))), ErrorKind::Invalid);
    }
    let added = site.pool.add_layout(&spec(&[("a", 10), ("b", 20), ("c", 30)], 2)).unwrap();
    assert_eq!(added.path, "mirror:m");
    assert!(added.size >= 26 * MIB, "{added:?}");
    assert_eq!(kind(site.pool.add_layout(&spec(&[("d", 8), ("e", 8)], 2))), ErrorKind::Conflict, "the name");
    let again = LayoutSpec { name: "n".into(), ..spec(&[("a", 10), ("f", 10)], 2) };
    assert_eq!(kind(site.pool.add_layout(&again)), ErrorKind::Busy, "a disk of a mirror is in use");
    assert_eq!(kind(site.pool.put_member_out("x")), ErrorKind::NotFound);
    // An empty mirror can be removed, and its disks can be used again.
    site.pool.remove_pv("mirror:m").unwrap();
    let again = LayoutSpec { name: "n".into(), ..spec(&[("a", 10), ("b", 10)], 2) };
    let again = LayoutSpec {
        members: again.members.into_iter().map(|member| PvSpec { force: true, ..member }).collect(),
        ..again
    };
    site.pool.add_layout(&again).unwrap();
}

#[test]
fn a_raid5_outlives_each_member() {
    for gone in ["a", "b", "c"] {
        let site = with_parity();
        site.fill(1);
        let site = site.reopen_after(|dir| spoil(&*dir, gone));
        site.assert_filled(1);
        assert!(has(&site, code::LAYOUT_DEGRADED), "{:?}", site.pool.health());
        site.fill(11);
        let volume = site.open("v");
        write(&volume, 5 * 64 * KIB, 77, 8 * KIB);
        drop(volume);
        site.idle();
        let again = PvSpec { size: None, force: true, ..pv(gone, 0) };
        site.pool.rebuild_member(gone, Some(&again), None).unwrap();
        site.idle();
        assert_eq!(states(&site), [true; 3]);
        let volume = site.open("v");
        write(&volume, 5 * 64 * KIB, 11, 8 * KIB);
        drop(volume);
        site.idle();
        let next = if gone == "a" { "c" } else { "a" };
        let site = site.reopen_after(|dir| spoil(&*dir, next));
        site.assert_filled(11);
    }
}

#[test]
fn rot_in_one_member_of_a_raid5_is_mended() {
    for (member, by_scrub) in [("a", false), ("b", true), ("c", true)] {
        let site = with_parity();
        site.fill(1);
        let len = site.dir.open(member, OpenMode::ReadOnly).unwrap().len().unwrap();
        for at in (CONTENT + MIB..len).step_by(4 * KIB as usize) {
            flip(&site.dir, member, at, 1);
        }
        if by_scrub {
            site.pool.scrub(0, false).unwrap();
            while site.pool.data_scrub().running {
                site.pool.scrub_step().unwrap();
                site.idle();
            }
            assert_eq!(site.pool.data_scrub().damaged, 0);
        }
        site.assert_filled(1);
        assert!(site.pool.stats().repaired.copies > 0);
        assert!(!has(&site, code::DATA_DAMAGED));
        if by_scrub {
            // Parities are right again, too.
            let site = site.reopen_after(|dir| spoil(&*dir, if member == "b" { "a" } else { "b" }));
            site.assert_filled(1);
        }
    }
}

const SECOND: u64 = 1_000_000_000;

/// Options of a pool in which a spare disk steps in after so many seconds.
fn after(seconds: u64) -> PoolOptions {
    PoolOptions { spare_after: Some(Duration::from_secs(seconds)), ..PoolOptions::default() }
}

fn members_of(site: &Site) -> Vec<String> {
    let layout = site.pool.pvs().into_iter().find_map(|pv| pv.layout).unwrap();
    layout.members.into_iter().map(|member| member.path).collect()
}

#[test]
fn a_spare_takes_the_place_of_a_member_that_is_out() {
    for (make, member, first) in [(mirrored as fn() -> Site, 34, "b"), (with_parity, 18, "c")] {
        let site = make().reopen_with(after(600));
        assert_eq!(kind(site.pool.add_spare(&pv("a", MIB))), ErrorKind::Busy);
        site.pool.add_spare(&pv("small", 4 * MIB)).unwrap();
        site.pool.add_spare(&pv("large", 60 * MIB)).unwrap();
        let spare = site.pool.add_spare(&pv("fit", member * MIB)).unwrap();
        assert_eq!((spare.size, &spare.problem[..]), ((member - 1) * MIB, ""));
        assert_eq!(kind(site.pool.add_spare(&pv("fit", member * MIB))), ErrorKind::Conflict);
        site.fill(1);
        site.pool.put_member_out("a").unwrap();
        let health = format!("{:?}", site.pool.health());
        assert!(health.contains("a spare disk takes its place soon"), "{health}");
        site.idle();
        site.clock.advance(599 * SECOND);
        site.idle();
        assert!(!states(&site)[0], "it steps in after ten minutes");
        site.clock.advance(2 * SECOND);
        site.fill(31);
        assert_eq!((&members_of(&site)[0][..], states(&site).contains(&false)), ("fit", false));
        let left: Vec<String> = site.pool.spares().into_iter().map(|spare| spare.path).collect();
        assert_eq!(left, ["small", "large"]);
        // What it has is right, also after another member is gone.
        let site = site.reopen_after(|dir| spoil(&*dir, first));
        site.assert_filled(31);
        assert_eq!(site.pool.spares().len(), 2);
    }
}

#[test]
fn spares_are_listed_removed_and_missed() {
    let site = mirrored().reopen_with(after(0));
    site.pool.add_spare(&pv("s1", 40 * MIB)).unwrap();
    site.pool.add_spare(&pv("s2", 40 * MIB)).unwrap();
    assert_eq!(kind(site.pool.add_pv(&pv("s1", MIB))), ErrorKind::Busy);
    // An operator may use a spare as any other disk.
    site.pool.rebuild_member("b", Some(&pv("s2", MIB)), None).unwrap();
    site.idle();
    assert_eq!((members_of(&site), site.pool.spares().len()), (vec!["a".to_owned(), "s2".to_owned()], 1));
    let site = site.reopen_after(|dir| dir.remove("s1").unwrap());
    assert!(has(&site, code::SPARE_MISSING) && site.pool.spares()[0].size == 0);
    site.pool.remove_spare("s1").unwrap();
    assert!(!has(&site, code::SPARE_MISSING) && site.pool.spares().is_empty());
    assert_eq!(kind(site.pool.remove_spare("s1")), ErrorKind::NotFound);
    // A disk that was removed can be used for something else.
    site.pool.add_spare(&pv("s3", 40 * MIB)).unwrap();
    site.pool.remove_spare("s3").unwrap();
    site.pool.add_pv(&pv("s3", 40 * MIB)).unwrap();
    // A list that does not verify keeps nothing from opening.
    let site = site.reopen_after(|dir| spoil(&*dir, "spare-disks"));
    assert!(site.pool.spares().is_empty());
}

/// A disk is never a spare and a member at once, also if the list of spares can't be stored.
#[test]
fn a_spare_that_is_used_is_none_any_more_whatever_becomes_of_the_list() {
    let broken = Arc::new(AtomicBool::new(false));
    let fails = broken.clone();
    let site = Site::builder(4).options(after(0)).over(|memory| {
        FaultyDir::new(memory, move |op: &Op<'_>| {
            let is_list = op.name == "spare-disks~" && matches!(op.act, Act::Sync(_));
            (is_list && fails.load(Ordering::Relaxed)).then(|| std::io::Error::from_raw_os_error(5))
        })
    });
    let site = move_to(site, &spec(&[("a", 34), ("b", 34)], 2));
    site.pool.add_spare(&pv("s", 40 * MIB)).unwrap();
    broken.store(true, Ordering::Relaxed);
    site.pool.rebuild_member("b", Some(&pv("s", MIB)), None).unwrap();
    site.idle();
    assert_eq!((members_of(&site), site.pool.spares()), (vec!["a".into(), "s".into()], vec![]));
    assert_eq!(kind(site.pool.remove_spare("s")), ErrorKind::NotFound, "its header stays");
    site.pool.put_member_out("a").unwrap();
    site.idle();
    assert_eq!(states(&site), [false, true], "no disk steps in");
    broken.store(false, Ordering::Relaxed);
    // The list on the disk has it still.
    let site = site.reopen();
    assert_eq!((site.pool.spares(), states(&site)), (vec![], vec![false, true]));
}

#[test]
fn a_rebuild_keeps_its_rate() {
    let site = mirrored();
    site.fill(1);
    site.pool.put_member_out("a").unwrap();
    // Its own disk would lack nothing.
    site.pool.rebuild_member("a", Some(&pv("new", 34 * MIB)), Some(MIB)).unwrap();
    site.idle();
    let mut steps = 0;
    while !states(&site)[0] {
        site.clock.advance(SECOND / 16);
        site.idle();
        steps += 1;
    }
    assert!((7 * 16..10 * 16).contains(&steps), "8 MiB take 8 s and not {steps} sixteenths");
}

/// A backup of the metadata has the records of layouts. So a pool whose data directory is lost
/// comes back from its disks and a backup.
#[test]
fn a_backup_brings_back_what_the_data_directory_had_of_a_layout() {
    for (make, files) in [
        (mirrored as fn() -> Site, &["layout-m"][..]),
        (with_parity, &["layout-m", "parity-m", "rows-m"]),
        (with_parity, &["parity-m"]),
    ] {
        let site = make();
        site.fill(1);
        site.pool.close().unwrap();
        let backup = site.pool.backup_metadata(&*site.seen, 3).unwrap();
        assert!(backup.closed);
        let name = backup.file.unwrap();
        // A member that goes out later is in the records of the others.
        let site = site.reopen_after(|dir| {
            files.iter().for_each(|file| dir.remove(file).unwrap());
            spoil(&*dir, "catalog.redb");
            let found = find(&*dir, &name).unwrap();
            let restored = restore(&*dir, &found).unwrap();
            assert_eq!(restored.layouts, ["m"]);
            assert!(restore(&*dir, &found).unwrap().layouts.is_empty(), "once is enough");
        });
        site.assert_filled(1);
        assert!(!states(&site).contains(&false));
        site.fill(51);
        site.pool.put_member_out("b").unwrap();
        site.assert_filled(51);
    }
}
