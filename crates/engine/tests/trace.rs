//! Traces of a pool's disks: which accesses known operations cause.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::ErrorKind;
use hindcast_engine::cdp::CdpSettings;
use hindcast_engine::disk::{AccessOp, Cause, DiskAccess, TraceEncoder, TraceEnd, TracePiece, TraceReader};
use hindcast_engine::pool::{LayoutShape, LayoutSpec, Method, Pool};
use hindcast_engine::testing::{KIB, MIB, Site, kind, pv, read, write};
use std::collections::BTreeSet;

/// Returns the accesses that `work` causes, read from the bytes of a trace file.
fn traced(pool: &Pool, work: impl FnOnce()) -> Vec<DiskAccess> {
    let head = pool.begin_trace().unwrap();
    work();
    let (mut file, mut encoder) = (head.encode(), TraceEncoder::default());
    encoder.disks(&pool.traced_disks(), &mut file);
    encoder.accesses(&pool.end_trace(), u64::MAX, &mut file);
    encoder.end(TraceEnd::Stopped, 0, &mut file);
    let mut reader = TraceReader::open(&file[..]).unwrap();
    let mut found = Vec::new();
    while let Some(piece) = reader.next_piece().unwrap() {
        if let TracePiece::Accesses(accesses) = piece {
            found.extend(accesses);
        }
    }
    assert!(reader.is_whole() && reader.lost() == 0);
    found
}

fn causes(accesses: &[DiskAccess]) -> BTreeSet<(AccessOp, Cause)> {
    accesses.iter().map(|access| (access.op, access.cause)).collect()
}

/// Makes a site with the volume `v`, of which the first MiB is in place.
fn site() -> Site {
    let site = Site::new(64).having("v", 8 * MIB, 16 * KIB);
    write(&site.open("v"), 0, 1, MIB);
    site.idle();
    site
}

#[test]
fn one_trace_at_a_time() {
    let site = site();
    site.pool.begin_trace().unwrap();
    assert_eq!(kind(site.pool.begin_trace()), ErrorKind::Conflict);
    site.pool.end_trace();
    assert!(site.pool.end_trace().is_empty());
    site.pool.begin_trace().unwrap();
}

#[test]
fn reads_and_writes_of_a_client() {
    let site = site();
    let v = site.open("v");
    let found = traced(&site.pool, || drop(read(&v, 64 * KIB, 16 * KIB)));
    assert_eq!(causes(&found), [(AccessOp::Read, Cause::Read)].into());
    assert_eq!(found.iter().map(|access| access.len).sum::<u32>(), 16 << 10);

    let found = traced(&site.pool, || {
        write(&v, 4 * MIB, 2, 16 * KIB);
        site.idle();
    });
    assert!(
        causes(&found)
            .is_superset(&[(AccessOp::Write, Cause::NewSlot), (AccessOp::Sync, Cause::NewSlot)].into())
    );
    assert!(!causes(&found).contains(&(AccessOp::Write, Cause::Apply)));

    let found = traced(&site.pool, || {
        write(&v, 64 * KIB, 3, 16 * KIB);
        site.idle();
    });
    assert!(
        causes(&found).is_superset(&[(AccessOp::Write, Cause::Apply), (AccessOp::Sync, Cause::Apply)].into())
    );
    assert!(!causes(&found).contains(&(AccessOp::Write, Cause::NewSlot)));
}

#[test]
fn a_large_write_is_a_reference() {
    let site = site();
    let v = site.open("v");
    let found = traced(&site.pool, || {
        for n in 0..4 {
            write(&v, 4 * MIB, n, MIB);
            site.idle();
        }
    });
    assert!(causes(&found).contains(&(AccessOp::Write, Cause::Reference)), "{:?}", causes(&found));
}

#[test]
fn snapshots_and_histories_read_what_is_overwritten() {
    let site = site();
    let v = site.open("v");
    site.pool.set_method("v", Method::Copy).unwrap();
    site.snap("v", "s");
    let found = traced(&site.pool, || {
        write(&v, 0, 3, 16 * KIB);
        site.idle();
    });
    let copied = [(AccessOp::Read, Cause::Preserve), (AccessOp::Write, Cause::Preserve)];
    assert!(causes(&found).is_superset(&copied.into()), "{:?}", causes(&found));
    site.pool.set_cdp("v", Some(CdpSettings::default())).unwrap();
    let found = traced(&site.pool, || {
        write(&v, 512 * KIB, 3, 4 * KIB);
        site.idle();
    });
    assert!(causes(&found).contains(&(AccessOp::Read, Cause::History)), "{:?}", causes(&found));
}

#[test]
fn work_in_the_background_has_its_cause() {
    let site = site();
    site.snap("v", "s");
    site.pool.clone_volume("v", "s", "c").unwrap();
    let found = traced(&site.pool, || {
        site.pool.flatten_volume("c", 0).unwrap();
        site.idle();
    });
    assert!(
        causes(&found).is_superset(&[(AccessOp::Read, Cause::Fill), (AccessOp::Write, Cause::Fill)].into())
    );

    let found = traced(&site.pool, || {
        site.pool.scrub(0, true).unwrap();
        while site.pool.data_scrub().running {
            site.pool.scrub_step().unwrap();
        }
    });
    assert!(causes(&found).contains(&(AccessOp::Read, Cause::Scrub)));

    let added = traced(&site.pool, || drop(site.pool.add_pv(&pv("pv-1", 64 * MIB)).unwrap()));
    assert!(
        causes(&added).is_superset(&[(AccessOp::Write, Cause::Open), (AccessOp::Sync, Cause::Open)].into())
    );
    let found = traced(&site.pool, || {
        site.pool.drain_pv("0", true).unwrap();
        site.idle();
    });
    assert!(
        causes(&found).is_superset(&[(AccessOp::Read, Cause::Move), (AccessOp::Write, Cause::Move)].into())
    );
    let disks: BTreeSet<u16> = found.iter().map(|access| access.disk).collect();
    assert_eq!(disks.len(), 2, "from one to the other");
}

#[test]
fn the_members_of_a_mirror_are_traced() {
    let site = Site::new(64);
    let spec = LayoutSpec {
        reserve: 0,
        name: "m".into(),
        shape: LayoutShape::Mirror { copies: 2 },
        members: vec![pv("a", 34 * MIB), pv("b", 34 * MIB)],
    };
    site.pool.add_layout(&spec).unwrap();
    site.pool.drain_pv("pv-0.img", true).unwrap();
    site.idle();
    let v = site.volume("v", 4 * MIB, 64 * KIB);
    let found = traced(&site.pool, || {
        write(&v, 0, 1, 64 * KIB);
        site.idle();
    });
    let disks = site.pool.traced_disks();
    let paths: Vec<(&str, &str)> = disks.iter().map(|d| (d.path.as_str(), d.pv_path.as_str())).collect();
    assert_eq!(paths, [("pv-0.img", "pv-0.img"), ("a", "mirror:m"), ("b", "mirror:m")]);
    assert!(disks.iter().all(|disk| disk.size >= 34 * MIB));
    for disk in &disks[1..] {
        let written = |access: &&DiskAccess| access.disk == disk.number && access.op == AccessOp::Write;
        assert!(found.iter().filter(written).map(|access| access.len).sum::<u32>() >= 64 << 10);
    }
    site.pool.put_member_out("a").unwrap();
    let found = traced(&site.pool, || {
        site.pool.rebuild_member("a", None, None).unwrap();
        site.idle();
    });
    let rebuilt = [(AccessOp::Read, Cause::Rebuild), (AccessOp::Write, Cause::Rebuild)];
    assert!(causes(&found).is_superset(&rebuilt.into()), "{:?}", causes(&found));
}

/// A snapshot that is deleted leaves holes in rows. New content goes to rows that nothing uses, so
/// that no parity needs a read. When there are no such rows, it goes into the holes.
#[test]
fn new_content_of_a_raid5_fills_whole_rows() {
    let site = Site::new(64);
    let spec = LayoutSpec {
        reserve: 0,
        name: "r".into(),
        shape: LayoutShape::Raid5 { columns: 3, unit: LayoutShape::DEFAULT_UNIT },
        members: ["a", "b", "c"].map(|path| pv(path, 18 * MIB)).into(),
    };
    let site = site.moved_to(&spec).having("v", 8 * MIB, 16 * KIB);
    let v = site.open("v");
    write(&v, 0, 1, 8 * MIB);
    site.idle();
    site.snap("v", "before");
    // A row has eight chunks, four on each column. The holes are on one of them.
    let chunks = 8 * MIB / (16 * KIB);
    let leaves = |chunk: &u64| chunk % 8 < 2;
    (0..chunks).filter(leaves).for_each(|chunk| write(&v, chunk * 16 * KIB, 2, 16 * KIB));
    site.idle();
    site.pool.delete_snapshots("v", &["before"]).unwrap();
    site.idle();
    site.snap("v", "again");
    let stays = || (0..chunks).filter(|chunk| chunk % 8 == 7);
    let reads = |found: &[DiskAccess]| found.iter().filter(|access| access.op == AccessOp::Read).count();
    let found = traced(&site.pool, || {
        stays().take(16).for_each(|chunk| write(&v, chunk * 16 * KIB, 3, 16 * KIB));
        site.idle();
    });
    assert!(causes(&found).contains(&(AccessOp::Write, Cause::NewSlot)));
    assert_eq!(reads(&found), 0, "{found:?}");
    // What is left fills up, the holes as well.
    let w = site.volume("w", 23 * MIB, 16 * KIB);
    let found = traced(&site.pool, || {
        write(&w, 0, 4, 23 * MIB);
        stays().skip(16).for_each(|chunk| write(&v, chunk * 16 * KIB, 3, 16 * KIB));
        site.idle();
    });
    assert!(reads(&found) > 0, "there are not enough rows that nothing uses");
    for chunk in stays() {
        assert_eq!(read(&v, chunk * 16 * KIB, 16 * KIB), vec![3; 16 << 10], "chunk {chunk}");
    }
}
