//! Physical volumes that become larger: with more disks, or because their disks were enlarged.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::ErrorKind;
use hindcast_engine::backup::find;
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::disk::{Dir, OpenMode};
use hindcast_engine::pool::{GrowSpec, Growth, LayoutInfo, LayoutShape, LayoutSpec, PoolOptions, PvSpec};
use hindcast_engine::testing::{KIB, MIB, Site, assert_bytes, kind, pv, write};
use std::time::Duration;

const RAID5: LayoutShape = LayoutShape::Raid5 { columns: 3, unit: LayoutShape::DEFAULT_UNIT };
const MIRROR: LayoutShape = LayoutShape::Mirror { copies: 2 };

/// Makes a pool whose only physical volume is a layout of these disks, with a volume `v` of 8 MiB
/// that is written.
fn on(shape: LayoutShape, members: &[(&str, u64)]) -> Site {
    let members = members.iter().map(|(path, mib)| pv(path, *mib * MIB)).collect();
    move_to(Site::new(4), &LayoutSpec { name: "m".into(), shape, reserve: 0, members })
}

/// Makes a layout the only physical volume of a pool, and writes a volume `v` of 8 MiB there.
fn move_to(site: Site, spec: &LayoutSpec) -> Site {
    let site = site.moved_to(spec).having("v", 8 * MIB, 64 * KIB);
    site.fill(1);
    site
}

fn by(disks: &[(&str, u64)]) -> GrowSpec {
    let disks = disks.iter().map(|(path, mib)| pv(path, mib * MIB)).collect();
    GrowSpec { disks, ..GrowSpec::default() }
}

fn layout(site: &Site) -> LayoutInfo {
    site.pool.pvs().into_iter().find_map(|pv| pv.layout).unwrap()
}

fn size(site: &Site) -> u64 {
    site.pool.pvs()[0].size
}

/// Loses each disk in turn, and reads everything without it.
fn assert_outlives_each(mut site: Site, first: u8) -> Site {
    for member in layout(&site).members {
        let path = member.path.clone();
        site = site.reopen_after(|dir| dir.remove(&path).unwrap());
        site.assert_filled(first);
        let new = PvSpec { path, size: Some(member.size + MIB), force: false };
        site.pool.rebuild_member(&new.path, Some(&new), None).unwrap();
        site.idle();
        assert!(layout(&site).members.iter().all(|member| member.is_in));
    }
    site
}

#[test]
fn one_more_disk_beside_full_ones_is_used() {
    for (shape, members, before, after) in
        [(MIRROR, &[("a", 11), ("b", 11)][..], 9, 14), (RAID5, &[("a", 7), ("b", 7), ("c", 7)], 11, 15)]
    {
        let site = on(shape, members);
        assert_eq!(size(&site), before * MIB);
        let new = members[0].1;
        let info = site.pool.grow("m", &by(&[("d", new)])).unwrap();
        let Growth { size: promised, moves } = info.layout.unwrap().growth.unwrap();
        assert!(promised > before * MIB && moves > 0, "{promised} {moves}");
        // A kill in the middle does no harm, and it goes on by itself.
        for _ in 0..3 {
            site.pool.maintain().unwrap();
        }
        let site = site.reopen();
        site.assert_filled(1);
        site.fill(11);
        assert_eq!((layout(&site).growth, size(&site)), (None, after * MIB), "{shape:?}");
        site.assert_filled(11);
        let site = site.reopen();
        assert_eq!(size(&site), after * MIB);
        // The new space is used.
        let more = site.volume("w", 4 * MIB, 64 * KIB);
        for n in 0..4 {
            write(&more, n * MIB, 99, MIB);
        }
        drop(more);
        site.idle();
        let site = assert_outlives_each(site, 11);
        let more = site.open("w");
        (0..4).for_each(|n| assert_bytes(&more, n * MIB, 99, MIB));
    }
}

#[test]
fn a_layout_grows_when_its_disks_do() {
    let site = on(MIRROR, &[("a", 11), ("b", 11)]);
    assert_eq!(kind(site.pool.grow("mirror:m", &GrowSpec::default())), ErrorKind::Conflict);
    for member in ["a", "b"] {
        site.dir.open(member, OpenMode::Existing).unwrap().set_len(21 * MIB).unwrap();
    }
    assert_eq!(layout(&site).growth, None, "nobody has asked for it");
    site.pool.grow("m", &GrowSpec::default()).unwrap();
    site.idle();
    assert_eq!(size(&site), 19 * MIB);
    site.assert_filled(1);
    let site = site.reopen();
    assert_eq!(size(&site), 19 * MIB);
    assert_outlives_each(site, 1);
}

#[test]
fn a_spare_becomes_a_member() {
    let site = on(RAID5, &[("a", 7), ("b", 7), ("c", 7)]);
    site.pool.add_spare(&pv("s", 7 * MIB)).unwrap();
    site.pool.grow("m", &GrowSpec { disks: vec![PvSpec { size: None, ..pv("s", 0) }], ..by(&[]) }).unwrap();
    assert_eq!(site.pool.spares(), []);
    site.idle();
    let site = site.reopen();
    assert_eq!((layout(&site).members.len(), site.pool.spares().len(), size(&site)), (4, 0, 15 * MIB));
    // A disk that would bring nothing stays a spare.
    site.pool.add_spare(&pv("t", 2 * MIB)).unwrap();
    let how = GrowSpec { disks: vec![PvSpec { size: None, ..pv("t", 0) }], ..by(&[]) };
    assert_eq!(kind(site.pool.grow("m", &how)), ErrorKind::Conflict);
    assert_eq!(site.pool.spares().len(), 1);
}

#[test]
fn a_layout_waits_until_all_members_have_everything() {
    let site = on(MIRROR, &[("a", 11), ("b", 11)]);
    site.pool.put_member_out("b").unwrap();
    site.pool.grow("m", &by(&[("c", 11)])).unwrap();
    site.idle();
    assert_eq!(size(&site), 9 * MIB);
    site.pool.rebuild_member("b", None, None).unwrap();
    site.idle();
    assert_eq!(size(&site), 14 * MIB);
    assert_outlives_each(site, 1);
}

#[test]
fn a_plain_disk_that_was_enlarged_is_used() {
    let site = Site::new(4).having("v", 8 * MIB, 64 * KIB);
    let path = site.pool.pvs()[0].path.clone();
    assert_eq!(kind(site.pool.grow(&path, &GrowSpec::default())), ErrorKind::Conflict);
    site.dir.open(&path, OpenMode::Existing).unwrap().set_len(7 * MIB).unwrap();
    assert_eq!(site.pool.grow("0", &GrowSpec::default()).unwrap().size, 6 * MIB);
    let site = site.reopen();
    assert_eq!(size(&site), 6 * MIB);
    let how = GrowSpec { size: Some(17 * MIB), ..GrowSpec::default() };
    assert_eq!(site.pool.grow(&path, &how).unwrap().size, 16 * MIB);
    site.fill(1);
    let site = site.reopen();
    site.assert_filled(1);
    assert_eq!(kind(site.pool.grow(&path, &GrowSpec { size: Some(16 * MIB), ..how })), ErrorKind::Invalid);
}

#[test]
fn the_others_take_over_and_a_new_disk_brings_the_reserve_back() {
    for (shape, mib) in [(MIRROR, 8), (RAID5, 6)] {
        let members = ["a", "b", "c", "d"].map(|path| pv(path, mib * MIB)).to_vec();
        let spec = LayoutSpec { name: "m".into(), shape, reserve: 1, members };
        let options = PoolOptions { spare_after: Some(Duration::from_secs(60)), ..PoolOptions::default() };
        let site = move_to(Site::new(4).reopen_with(options.clone()), &spec);
        assert!(layout(&site).reserve == 1 && layout(&site).growth.is_none());
        site.pool.put_member_out("b").unwrap();
        site.fill(20);
        assert_eq!(layout(&site).survives, 0);
        site.clock.advance(61 * 1_000_000_000);
        site.idle();
        let after = layout(&site);
        assert_eq!((after.survives, after.members[1].content, after.members[1].is_in), (1, 0, false));
        // A second disk is lost now.
        let mut site = site.reopen_after(|dir| dir.remove("c").unwrap());
        site.assert_filled(20);
        let new = pv("e", mib * MIB);
        site.pool.rebuild_member("c", Some(&new), None).unwrap();
        site.idle();
        site.pool.rebuild_member("b", Some(&pv("f", mib * MIB)), None).unwrap();
        site.idle();
        assert!(layout(&site).members.iter().all(|member| member.is_in));
        // The reserve is there again.
        site = site.reopen_with(options.clone());
        site.pool.put_member_out("e").unwrap();
        site.idle();
        site.clock.advance(61 * 1_000_000_000);
        site.idle();
        assert_eq!(layout(&site).survives, 1);
        site.assert_filled(20);
    }
}

/// What waits for space gets it from a disk that is enlarged, although the growth comes later than
/// what waits.
#[test]
fn a_pool_that_has_no_space_left_grows() {
    let site = Site::new(4).having("v", 8 * MIB, 64 * KIB);
    let volume = site.open("v");
    let taken = (0..8 * 16).take_while(|n| {
        let data = bytes::Bytes::from(vec![1; 64 << 10]);
        let mut ops = [WriteOp::new(n * 64 * KIB, data)];
        volume.write(&mut ops, false);
        ops.into_iter().next().unwrap().result.is_ok()
    });
    let taken = taken.count() as u64;
    assert!(taken < 8 * 16, "the pool has 4 MiB");
    drop(volume);
    site.dir.open("pv-0.img", OpenMode::Existing).unwrap().set_len(10 * MIB).unwrap();
    site.pool.grow("0", &GrowSpec::default()).unwrap();
    site.fill(5);
    site.reopen().assert_filled(5);
}

#[test]
fn what_can_not_grow_says_why() {
    let site = on(MIRROR, &[("a", 11), ("b", 11)]);
    let fails = |wanted: &str, how: &GrowSpec| site.pool.grow(wanted, how).unwrap_err();
    assert_eq!(fails("x", &by(&[])).kind(), ErrorKind::NotFound);
    assert_eq!(fails("m", &GrowSpec { size: Some(MIB), ..by(&[]) }).kind(), ErrorKind::Invalid);
    let many: Vec<String> = (0..15).map(|n| n.to_string()).collect();
    let many: Vec<(&str, u64)> = many.iter().map(|path| (&path[..], 2)).collect();
    let error = fails("m", &by(&many));
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("up to 16 disks"), "{error}");
    let error = fails("m", &by(&[("c", 2)]));
    assert!(error.to_string().contains("gain nothing"), "{error}");
    assert_eq!(fails("m", &by(&[("a", 11)])).kind(), ErrorKind::Busy);
    assert_eq!(layout(&site).members.len(), 2);
    assert!(!site.dir.list().unwrap().contains(&"0".to_owned()), "nothing was made");
    site.pool.add_pv(&pv("p", 4 * MIB)).unwrap();
    assert_eq!(fails("p", &by(&[("c", 11)])).kind(), ErrorKind::Invalid);
}

/// The beginning of the content, with the backups of the metadata, stays where it is.
#[test]
fn a_backup_is_found_after_growing() {
    let site = on(MIRROR, &[("a", 11), ("b", 11)]);
    for new in ["c", "d", "e"] {
        site.pool.grow("m", &by(&[(new, 11)])).unwrap();
        site.idle();
    }
    site.pool.close().unwrap();
    let info = site.pool.backup_metadata(&*site.dir, 2).unwrap();
    assert_eq!(info.pvs, 1);
    let found = |member: &&str| find(&*site.dir, member).is_ok_and(|of| of.info.sequence == info.sequence);
    let members: Vec<&str> = ["a", "b", "c", "d", "e"].into_iter().filter(|member| found(member)).collect();
    assert_eq!(members, ["a", "b"]);
}
