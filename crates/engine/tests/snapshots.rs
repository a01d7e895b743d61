//! Snapshots, clones and rollback through the public interface, on an in-memory directory.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::ErrorKind;
use hindcast_engine::device::BlockDevice;
use hindcast_engine::ids::Epoch;
use hindcast_engine::pool::{Method, NewVolume, Order, Progress};
use hindcast_engine::testing::{KIB, MIB, Site, assert_bytes, write};

fn site() -> Site {
    Site::new(16)
}

#[test]
fn snapshots_keep_what_was_there_by_either_method() {
    for method in [Method::Redirect, Method::Copy] {
        for settle in [false, true] {
            let f = site();
            let v = f.volume("a", MIB, 16 * KIB);
            f.pool.set_method("a", method).unwrap();
            write(&v, 0, 1, 64 * KIB);
            if settle {
                f.pool.drain().unwrap();
            }
            f.snap("a", "one");
            write(&v, 4 * KIB, 2, 20 * KIB);
            f.snap("a", "two");
            v.discard(0, 32 * KIB, false).unwrap();
            write(&v, 512 * KIB, 3, 512);
            let views = |f: &Site| {
                let [one, two] = ["one", "two"].map(|s| f.pool.open_snapshot("a", s).unwrap());
                let head = f.pool.open_volume("a", false).unwrap();
                assert_bytes(&one, 0, 1, 64 * KIB);
                assert_bytes(&one, 64 * KIB, 0, 960 * KIB);
                assert_bytes(&two, 0, 1, 4 * KIB);
                assert_bytes(&two, 4 * KIB, 2, 20 * KIB);
                assert_bytes(&two, 24 * KIB, 1, 40 * KIB);
                assert_bytes(&head, 0, 0, 32 * KIB);
                assert_bytes(&head, 32 * KIB, 1, 32 * KIB);
                assert_bytes(&head, 512 * KIB, 3, 512);
            };
            views(&f);
            f.pool.drain().unwrap();
            views(&f);
            drop(v);
            let f = f.reopen();
            views(&f);
            f.pool.delete_snapshots("a", &["one"]).unwrap();
            f.idle();
            assert_eq!(f.pool.snapshot("a", "one").unwrap_err().kind(), ErrorKind::NotFound);
            assert_bytes(&f.pool.open_snapshot("a", "two").unwrap(), 24 * KIB, 1, 40 * KIB);
            f.pool.delete_snapshots("a", &["two"]).unwrap();
            f.idle();
            // Three chunks are left: the two that were not discarded, and the one at 512 KiB.
            assert_eq!(f.pool.volume("a").unwrap().allocated, 3 * 16 * KIB, "{method:?}");
            f.reopen();
        }
    }
}

#[test]
fn clones_and_what_they_rest_on() {
    let f = site();
    let v = f.volume("a", MIB, 4 * KIB);
    write(&v, 0, 1, 32 * KIB);
    f.snap("a", "s");
    write(&v, 0, 2, 32 * KIB);
    f.pool.clone_volume("a", "s", "b").unwrap();
    let b = f.pool.open_volume("b", false).unwrap();
    assert_bytes(&b, 0, 1, 32 * KIB);
    write(&b, 6 * KIB, 3, 4 * KIB);
    b.discard(16 * KIB, 8 * KIB, false).unwrap();
    b.discard(25 * KIB, KIB, false).unwrap();
    f.snap("b", "t");
    f.pool.clone_volume("b", "t", "c").unwrap();
    let c = f.pool.open_volume("c", false).unwrap();
    write(&c, 0, 4, 512);
    let check_all = |f: &Site| {
        let [b, c] = ["b", "c"].map(|n| f.pool.open_volume(n, false).unwrap());
        for (volume, first) in [(&b, 1), (&c, 4)] {
            assert_bytes(volume, 0, first, 512);
            assert_bytes(volume, 512, 1, 6 * KIB - 512);
            assert_bytes(volume, 6 * KIB, 3, 4 * KIB);
            assert_bytes(volume, 10 * KIB, 1, 6 * KIB);
            assert_bytes(volume, 16 * KIB, 0, 8 * KIB);
            assert_bytes(volume, 24 * KIB, 1, KIB);
            assert_bytes(volume, 25 * KIB, 0, KIB);
            assert_bytes(volume, 26 * KIB, 1, 6 * KIB);
            assert_bytes(volume, 32 * KIB, 0, 992 * KIB);
        }
        assert_bytes(&f.pool.open_volume("a", false).unwrap(), 0, 2, 32 * KIB);
    };
    check_all(&f);
    f.pool.drain().unwrap();
    check_all(&f);
    let allocated = c.block_status(0, MIB, 99).unwrap();
    let shape: Vec<_> = allocated.iter().map(|r| (r.length / KIB, r.allocated)).collect();
    assert_eq!(shape, [(16, true), (8, false), (8, true), (992, false)]);
    drop((v, b, c));
    let f = f.reopen();
    check_all(&f);
    // The snapshots are invisible, and the clones still rest on them.
    assert_eq!(f.pool.delete_volume("a", false).unwrap_err().kind(), ErrorKind::Conflict, "it has snapshots");
    f.pool.delete_snapshots("a", &["s"]).unwrap();
    f.idle();
    check_all(&f);
    f.pool.delete_volume("b", true).unwrap();
    f.idle();
    let c = f.pool.open_volume("c", false).unwrap();
    assert_bytes(&c, 6 * KIB, 3, 4 * KIB);
    f.pool.delete_volume("a", true).unwrap();
    f.idle();
    assert_bytes(&c, 512, 1, 6 * KIB - 512);
    assert_bytes(&c, 16 * KIB, 0, 8 * KIB);
    drop(c);
    let f = f.reopen();
    f.pool.delete_volume("c", false).unwrap();
    f.idle();
    assert_eq!(f.pool.info().used, 0, "everything came back");
    f.reopen();
}

#[test]
fn rollback_keeps_newer_snapshots_and_can_be_undone() {
    let f = site();
    let v = f.volume("a", MIB, 4 * KIB);
    for (name, byte) in [("one", 1), ("two", 2), ("three", 3)] {
        write(&v, 0, byte, 16 * KIB);
        f.snap("a", name);
    }
    write(&v, 0, 4, 16 * KIB);
    assert_eq!(f.pool.roll_back("a", "one", "undo", false).unwrap_err().kind(), ErrorKind::Busy);
    f.pool.roll_back("a", "one", "undo", true).unwrap();
    let mut buf = [0; 512];
    assert_eq!(v.read(0, &mut buf).unwrap_err().kind(), ErrorKind::NotFound, "an old handle");
    drop(v);
    let expect = |f: &Site, head: u8| {
        for (name, byte) in [("one", 1), ("two", 2), ("three", 3), ("undo", 4)] {
            assert_bytes(&f.pool.open_snapshot("a", name).unwrap(), 0, byte, 16 * KIB);
        }
        assert_bytes(&f.pool.open_volume("a", false).unwrap(), 0, head, 16 * KIB);
    };
    expect(&f, 1);
    f.idle();
    expect(&f, 1);
    let f = f.reopen();
    write(&f.pool.open_volume("a", false).unwrap(), 0, 5, 16 * KIB);
    expect(&f, 5);
    f.pool.roll_back("a", "undo", "five", false).unwrap();
    f.idle();
    expect(&f, 4);
    assert_bytes(&f.pool.open_snapshot("a", "five").unwrap(), 0, 5, 16 * KIB);
    f.pool.delete_snapshots("a", &["one", "two", "three", "undo", "five"]).unwrap();
    f.idle();
    assert_bytes(&f.pool.open_volume("a", false).unwrap(), 0, 4, 16 * KIB);
    let f = f.reopen();
    f.idle();
    assert_bytes(&f.pool.open_volume("a", false).unwrap(), 0, 4, 16 * KIB);
    f.pool.delete_volume("a", false).unwrap();
    f.idle();
    assert_eq!(f.pool.info().used, 0);
}

#[test]
fn a_group_is_frozen_at_one_instant() {
    let f = site();
    let (a, b) = (f.volume("a", MIB, 4 * KIB), f.volume("b", MIB, 8 * KIB));
    write(&a, 0, 1, 4 * KIB);
    write(&b, 0, 1, 4 * KIB);
    let made = f.pool.create_snapshots(&[("a", "g"), ("b", "g")]).unwrap();
    assert_eq!(made.iter().map(|s| &s.volume[..]).collect::<Vec<_>>(), ["a", "b"]);
    write(&a, 0, 2, 4 * KIB);
    write(&b, 0, 2, 4 * KIB);
    for volume in ["a", "b"] {
        assert_bytes(&f.pool.open_snapshot(volume, "g").unwrap(), 0, 1, 4 * KIB);
    }
    assert_eq!(f.pool.create_snapshots(&[("a", "g")]).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(f.pool.create_snapshots(&[("a", "h"), ("a", "i")]).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(f.pool.create_snapshots(&[("a", "h"), ("z", "h")]).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(f.pool.snapshots("a").unwrap().len(), 1, "all or none");
}

#[test]
fn a_deleted_snapshot_waits_for_its_readers() {
    let f = site();
    let v = f.volume("a", MIB, 4 * KIB);
    write(&v, 0, 1, 64 * KIB);
    f.snap("a", "s");
    let s = f.pool.open_snapshot("a", "s").unwrap();
    write(&v, 0, 2, 64 * KIB);
    f.pool.delete_snapshots("a", &["s"]).unwrap();
    f.idle();
    assert_bytes(&s, 0, 1, 64 * KIB);
    assert_eq!(f.pool.volume("a").unwrap().allocated, 128 * KIB);
    drop(s);
    f.idle();
    assert_eq!(f.pool.volume("a").unwrap().allocated, 64 * KIB);
}

#[test]
fn a_shrunk_volume_keeps_what_its_snapshot_saw() {
    let f = site();
    let v = f.volume("a", MIB, 16 * KIB);
    write(&v, 0, 1, MIB);
    f.snap("a", "s");
    f.pool.resize_volume("a", 36 * KIB, true).unwrap();
    f.pool.resize_volume("a", MIB, false).unwrap();
    for _ in 0..2 {
        assert_bytes(&v, 0, 1, 36 * KIB);
        assert_bytes(&v, 36 * KIB, 0, MIB - 36 * KIB);
        assert_bytes(&f.pool.open_snapshot("a", "s").unwrap(), 0, 1, MIB);
        f.pool.drain().unwrap();
    }
    drop(v);
    f.reopen();
}

/// A branch stays in the catalog as long as a snapshot names it, wherever the deletion of both is
/// cut short.
#[test]
fn a_volume_goes_while_its_snapshot_is_being_dissolved() {
    for (before, after) in (0..8).flat_map(|before| (0..12).map(move |after| (before, after))) {
        let f = site();
        let v = f.volume("a", MIB, 4 * KIB);
        write(&v, 0, 1, 64 * KIB);
        f.snap("a", "s");
        write(&v, 0, 2, 32 * KIB);
        f.pool.drain().unwrap();
        drop(v);
        f.pool.delete_snapshots("a", &["s"]).unwrap();
        (0..before).for_each(|_| _ = f.pool.maintain().unwrap());
        f.pool.delete_volume("a", true).unwrap();
        (0..after).for_each(|_| _ = f.pool.maintain().unwrap());
        let f = f.reopen();
        f.idle();
        assert_eq!(f.pool.info().used, 0, "{before} steps before, {after} after");
        f.reopen();
    }
}

/// A discard of terabytes of a clone costs a row, not a page for each 256 of its chunks. Content
/// that snapshots saw stays.
#[test]
fn a_long_discard_of_a_clone_is_cheap() {
    const TIB: u64 = 1 << 40;
    let f = site();
    let new = NewVolume {
        name: "a".into(),
        size: 10 * TIB,
        chunk_size: 16 * KIB,
        block_size: 512,
        read_only: false,
    };
    f.pool.create_volume(&new).unwrap();
    {
        let a = f.pool.open_volume("a", false).unwrap();
        (0..8).for_each(|n| write(&a, n * TIB + 20 * KIB, 1, 64 * KIB));
        f.snap("a", "s");
        f.pool.clone_volume("a", "s", "b").unwrap();
        let b = f.pool.open_volume("b", false).unwrap();
        write(&b, 5 * TIB, 2, 4 * KIB);
        f.snap("b", "before");
        f.pool.drain().unwrap();
        let commits = f.pool.stats().catalog_commits;
        b.discard(TIB + 30 * KIB, 8 * TIB, false).unwrap();
        f.snap("b", "after");
        write(&b, 3 * TIB, 3, 512);
        f.pool.drain().unwrap();
        assert!(f.pool.stats().catalog_commits < commits + 20, "a commit for every few pages");
        f.pool.resize_volume("b", 2 * TIB, true).unwrap();
        f.pool.resize_volume("b", 10 * TIB, false).unwrap();
        write(&b, 9 * TIB, 4, 512);
        f.pool.drain().unwrap();
    }
    let f = f.reopen();
    let [before, after] = ["before", "after"].map(|s| f.pool.open_snapshot("b", s).unwrap());
    assert_bytes(&before, 2 * TIB + 20 * KIB, 1, 64 * KIB);
    assert_bytes(&before, 5 * TIB, 2, 4 * KIB);
    assert_bytes(&after, TIB + 20 * KIB, 1, 10 * KIB);
    assert_bytes(&after, TIB + 30 * KIB, 0, 64 * KIB);
    let b = f.pool.open_volume("b", false).unwrap();
    for volume in [&after, &b] {
        assert_bytes(volume, 5 * TIB, 0, 64 * KIB);
        assert_bytes(volume, 20 * KIB, 1, 64 * KIB);
    }
    assert_bytes(&b, 3 * TIB, 0, KIB);
    assert_bytes(&b, 9 * TIB, 4, 512);
    assert_bytes(&b, 9 * TIB + 512, 0, 64 * KIB);
    let report = f.pool.info();
    assert!(report.used < MIB, "{} bytes are used", report.used);
    drop((before, after, b));
    for volume in ["b", "a"] {
        f.pool.delete_volume(volume, true).unwrap();
        f.idle();
    }
    f.idle();
    assert_eq!(f.pool.info().used, 0);
    f.reopen();
}

/// In the independent order, a write costs a copy for each snapshot that lacks the chunk, and each
/// copy is freed with its snapshot.
#[test]
fn in_the_independent_order_each_snapshot_has_its_own_copy() {
    for method in [Method::Redirect, Method::Copy] {
        let f = site();
        let v = f.volume("a", MIB, 4 * KIB);
        f.pool.set_method("a", method).unwrap();
        assert_eq!(f.pool.set_order("a", Order::Independent).unwrap().order, Order::Independent);
        write(&v, 0, 1, 4 * KIB);
        f.pool.drain().unwrap();
        ["one", "two", "three"].into_iter().for_each(|name| f.snap("a", name));
        let held = f.pool.open_snapshot("a", "one").unwrap();
        assert_bytes(&held, 0, 1, 4 * KIB);
        write(&v, 512, 2, 512);
        f.pool.drain().unwrap();
        let allocated = |f: &Site| f.pool.volume("a").unwrap().allocated / (4 * KIB);
        assert_eq!(allocated(&f), 4, "{method:?}: three copies and the new content");
        write(&v, 1024, 3, 512);
        f.pool.drain().unwrap();
        assert_eq!(allocated(&f), 4, "only the first write after a snapshot");
        let views = |f: &Site, names: &[&str]| {
            for name in names {
                assert_bytes(&f.pool.open_snapshot("a", name).unwrap(), 0, 1, 4 * KIB);
            }
            let head = f.pool.open_volume("a", false).unwrap();
            assert_bytes(&head, 512, 2, 512);
            assert_bytes(&head, 1024, 3, 512);
        };
        views(&f, &["one", "two", "three"]);
        // Cached pages of the older snapshots named the slot that now belongs to the newest one
        // alone.
        f.pool.delete_snapshots("a", &["three"]).unwrap();
        f.idle();
        assert_eq!(allocated(&f), 3);
        write(&f.volume("b", MIB, 4 * KIB), 0, 9, 64 * KIB);
        f.pool.drain().unwrap();
        assert_bytes(&held, 0, 1, 4 * KIB);
        drop((v, held));
        let f = f.reopen();
        views(&f, &["one", "two"]);
        assert_eq!(f.pool.volume("a").unwrap().order, Order::Independent);
        f.pool.set_order("a", Order::Dependent).unwrap();
        ["four", "five"].into_iter().for_each(|name| f.snap("a", name));
        write(&f.pool.open_volume("a", false).unwrap(), 0, 4, 512);
        f.pool.drain().unwrap();
        assert_eq!(allocated(&f), 4, "one version for two snapshots");
        f.pool.delete_snapshots("a", &["one", "two", "four", "five"]).unwrap();
        f.idle();
        assert_eq!(allocated(&f), 1);
        f.reopen();
    }
}

/// The snapshots' own copies never take what was promised to writes: the snapshots share when space
/// is short.
#[test]
fn the_independent_order_shares_where_space_is_short() {
    let f = site();
    let v = f.volume("a", MIB, 4 * KIB);
    f.pool.set_order("a", Order::Independent).unwrap();
    write(&v, 0, 1, MIB);
    f.pool.drain().unwrap();
    let names: Vec<String> = (0..40).map(|n| format!("s{n}")).collect();
    names.iter().for_each(|name| f.snap("a", name));
    // 40 copies of 1 MiB would be more than the 16 MiB of the pool.
    write(&v, 0, 2, MIB);
    f.pool.drain().unwrap();
    assert_bytes(&v, 0, 2, MIB);
    for name in &names {
        assert_bytes(&f.pool.open_snapshot("a", name).unwrap(), 0, 1, MIB);
    }
    drop(v);
    let f = f.reopen();
    let names: Vec<&str> = names.iter().map(|n| &n[..]).collect();
    f.pool.delete_snapshots("a", &names).unwrap();
    f.idle();
    assert_eq!(f.pool.volume("a").unwrap().allocated, MIB);
    f.reopen();
}

/// A block status of a clone with staged content once asked the base chunk by chunk, at every
/// level.
#[test]
fn the_status_of_a_clone_asks_its_bases_once() {
    const CHUNKS: u64 = 16 << 10;
    let f = site();
    let new = |name: &str| NewVolume {
        name: name.into(),
        size: CHUNKS * 4 * KIB,
        chunk_size: 4 * KIB,
        block_size: 512,
        read_only: false,
    };
    f.pool.create_volume(&new("c0")).unwrap();
    write(&f.pool.open_volume("c0", false).unwrap(), 8 * MIB, 1, 4 * KIB);
    for depth in 0..6 {
        let (base, clone) = (format!("c{depth}"), format!("c{}", depth + 1));
        f.snap(&base, "s");
        f.pool.clone_volume(&base, "s", &clone).unwrap();
    }
    f.pool.drain().unwrap();
    let top = f.pool.open_volume("c6", false).unwrap();
    write(&top, 0, 2, 4 * KIB);
    let looks = || f.pool.stats().map_hits + f.pool.stats().map_misses;
    let before = looks();
    let runs = top.block_status(0, CHUNKS * 4 * KIB, 100).unwrap();
    let lengths: Vec<(u64, bool)> = runs.iter().map(|run| (run.length, run.zero)).collect();
    let rest = CHUNKS * 4 * KIB - 8 * MIB - 4 * KIB;
    assert_eq!(
        lengths,
        [(4 * KIB, false), (8 * MIB - 4 * KIB, true), (4 * KIB, false), (rest, true)],
        "what is staged, and what the lowest base has"
    );
    let looks = looks() - before;
    assert!(
        looks <= CHUNKS + 100,
        "{looks} looks at maps for {CHUNKS} chunks: one for each of the clone's own"
    );
}

/// The newest snapshot before a moment is looked up by what it froze. Its present name is returned,
/// and only visible snapshots count.
#[test]
fn the_newest_snapshot_before() {
    let f = site();
    let volume = f.volume("a", MIB, 16 * KIB);
    for name in ["one", "two", "three"] {
        write(&volume, 0, 1, 512);
        f.snap("a", name);
    }
    let of = |name: &str| f.pool.snapshot("a", name).unwrap().of;
    let (branch, third) = of("three");
    let newest = |epochs: std::ops::Range<Epoch>| f.pool.newest_snapshot(branch, epochs);
    let named = |name: &str| Some(("a".to_owned(), name.to_owned()));
    assert_eq!(newest(Epoch::NONE..third), named("two"));
    assert_eq!(newest(third..third.next()), named("three"));
    assert_eq!((newest(Epoch::NONE..of("one").1), newest(third.next()..Epoch::MAX)), (None, None));
    f.pool.rename_snapshot("a", "two", "second").unwrap();
    assert_eq!(newest(Epoch::NONE..third), named("second"));
    f.pool.delete_snapshots("a", &["second"]).unwrap();
    assert_eq!(newest(Epoch::NONE..third), named("one"));
    // After a rollback, the volume writes to a branch of its own without snapshots. The old branch
    // keeps its snapshots.
    drop(volume);
    f.pool.roll_back("a", "one", "undo", false).unwrap();
    let current = f.pool.volume("a").unwrap().branch;
    assert_eq!(f.pool.newest_snapshot(current, Epoch::NONE..Epoch::MAX), None);
    assert_eq!(newest(Epoch::NONE..Epoch::MAX), named("undo"));
    f.pool.drain().unwrap();
    let f = f.reopen();
    assert_eq!(f.pool.newest_snapshot(branch, Epoch::NONE..third), named("one"));
    f.pool.delete_volume("a", true).unwrap();
    assert_eq!(f.pool.newest_snapshot(branch, Epoch::NONE..Epoch::MAX), None);
}

/// Snapshots are read while their content is still staged. When it is destaged, their pages are
/// made again, whether a few pages are forgotten or all at once.
#[test]
fn views_of_staged_snapshots_follow_what_is_destaged() {
    for count in [3, 150] {
        let f = site();
        let volume = f.volume("a", MIB, 4 * KIB);
        let place = |n: u64| n % 16 * 4 * KIB;
        for n in 0..count {
            write(&volume, place(n), n as u8 + 1, 4 * KIB);
            f.snap("a", &format!("s{n}"));
        }
        let views: Vec<_> =
            (0..count).map(|n| f.pool.open_snapshot("a", &format!("s{n}")).unwrap()).collect();
        let look = || {
            for (n, view) in views.iter().enumerate() {
                let n = n as u64;
                assert_bytes(view, place(n), n as u8 + 1, 4 * KIB);
                let before = if n < 15 { 0 } else { n as u8 - 14 };
                assert_bytes(view, place(n + 1), before, 4 * KIB);
                // Nothing is staged here, so the map is used.
                assert_bytes(view, 512 * KIB, 0, 4 * KIB);
            }
        };
        look();
        while f.pool.destage_step().unwrap() == Progress::Worked {
            look();
        }
        f.pool.drain().unwrap();
        look();
    }
}
