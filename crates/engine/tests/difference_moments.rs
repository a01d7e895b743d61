//! Differences between moments, and between a moment and a snapshot or the present volume, compared
//! with what they read as.
#![allow(clippy::unwrap_used)] // a test may panic
#![allow(clippy::single_range_in_vec_init)] // lists of ranges are what is compared

use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Moment, Retention};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::disk::{Dir, OpenMode};
use hindcast_engine::testing::differences::{assert_covers, ranges};
use hindcast_engine::testing::{KIB, MIB, Site, content, write};
use hindcast_engine::world::{Rng, SplitMix};
use hindcast_engine::{Difference, ErrorKind, Volume};
use std::sync::Arc;

const CHUNK: u64 = 16 * KIB;

fn cdp(anchors: AnchorPolicy) -> Option<CdpSettings> {
    Some(CdpSettings { anchors, ..CdpSettings::default() })
}

/// Makes a pool with a volume `v` of 4 MiB that has kept its history from the beginning.
fn site(anchors: AnchorPolicy) -> (Site, Arc<Volume>) {
    let site = Site::new(64);
    let v = site.volume("v", 4 * MIB, CHUNK);
    site.pool.set_cdp("v", cdp(anchors)).unwrap();
    (site, v)
}

fn differ(from: &Arc<Volume>, to: &Arc<Volume>) -> Vec<std::ops::Range<u64>> {
    assert_covers(&Difference::new(from.clone(), to.clone()).unwrap(), from, to)
}

fn refused(from: &Arc<Volume>, to: &Arc<Volume>) -> String {
    let error = Difference::new(from.clone(), to.clone()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    error.to_string()
}

#[test]
fn between_two_moments_is_what_was_recorded_between_them() {
    for anchors in [AnchorPolicy::Never, AnchorPolicy::Every(1), AnchorPolicy::Every(3)] {
        let (site, v) = site(anchors);
        write(&v, 0, 1, 64 * KIB);
        let a = site.lsn();
        write(&v, 20 * KIB, 2, 512);
        write(&v, 15 * KIB, 3, 2 * KIB);
        v.discard(128 * KIB, 4 * KIB, false).unwrap();
        let b = site.lsn();
        write(&v, 256 * KIB, 4, CHUNK);
        v.discard(MIB, 2 * MIB, false).unwrap();
        let c = site.lsn();
        let first = [15 * KIB..17 * KIB, 20 * KIB..20 * KIB + 512, 128 * KIB..132 * KIB];
        let second = [256 * KIB..256 * KIB + CHUNK, MIB..3 * MIB];
        let [a, b, c] = [a, b, c].map(|lsn| site.moment("v", lsn));
        assert_eq!(differ(&a, &b), first);
        assert_eq!(differ(&b, &a), first, "backwards");
        assert_eq!(differ(&b, &c), second);
        assert_eq!(differ(&a, &c), [&first[..], &second].concat());
        assert_eq!(differ(&a, &a), []);
        // The differences are staged, and then in place.
        write(&v, 3 * MIB + CHUNK, 5, 1024);
        let last = [3 * MIB + CHUNK..3 * MIB + CHUNK + KIB];
        assert_eq!(differ(&c, &v), last);
        site.idle();
        assert_eq!(differ(&c, &v), last);
        assert_eq!(differ(&a, &v), [&first[..], &second, &last].concat());
    }
}

#[test]
fn snapshots_are_moments_of_a_history() {
    let (site, v) = site(AnchorPolicy::Never);
    write(&v, 0, 1, 64 * KIB);
    let before = site.lsn();
    write(&v, 32 * KIB, 2, 512);
    site.snap("v", "s");
    write(&v, 48 * KIB, 3, 512);
    let after = site.lsn();
    let (before, s) = (site.moment("v", before), site.snapshot("v", "s"));
    assert_eq!(differ(&before, &s), [32 * KIB..32 * KIB + 512], "one that is not carried out yet");
    assert_eq!(differ(&s, &before), [32 * KIB..32 * KIB + 512]);
    let after = site.moment("v", after);
    assert_eq!(differ(&s, &after), [48 * KIB..48 * KIB + 512]);
    write(&v, 60 * KIB, 4, 512);
    site.idle();
    assert_eq!(differ(&s, &after), [48 * KIB..48 * KIB + 512]);
    // The volume gets another size.
    let grown = after;
    site.pool.resize_volume("v", 6 * MIB, false).unwrap();
    write(&v, 5 * MIB, 5, 512);
    assert_eq!(differ(&grown, &v), [60 * KIB..60 * KIB + 512, 5 * MIB..5 * MIB + 512]);
    let large = site.moment("v", site.lsn());
    site.pool.resize_volume("v", 2 * MIB, true).unwrap();
    site.pool.resize_volume("v", 6 * MIB, false).unwrap();
    assert_eq!(differ(&large, &v), [2 * MIB..6 * MIB], "what was cut off is zeros");
    assert_eq!(differ(&large, &grown), [60 * KIB..60 * KIB + 512]);
}

#[test]
fn lines_that_parted_are_compared_down_to_where_they_did() {
    for anchors in [AnchorPolicy::Never, AnchorPolicy::Every(2)] {
        let (site, v) = site(anchors);
        write(&v, 0, 1, 256 * KIB);
        let base = site.lsn();
        write(&v, 32 * KIB, 2, CHUNK);
        let left = site.lsn();
        write(&v, 64 * KIB, 3, CHUNK);
        drop(v);
        site.pool.recover_volume("v", &Moment::Lsn(base), "r").unwrap();
        site.pool.roll_back_to(&[("v", "undo")], &Moment::Lsn(base), false).unwrap();
        let v = site.pool.open_volume("v", false).unwrap();
        write(&v, 96 * KIB, 4, 512);
        let on = site.lsn();
        write(&v, 128 * KIB, 5, 512);
        let at = |n: u64| n * CHUNK..(n + 1) * CHUNK;
        let [base, left, on] = [base, left, on].map(|lsn| site.moment("v", lsn));
        assert_eq!(differ(&base, &left), [at(2)]);
        let found = differ(&left, &on);
        assert!(found.starts_with(&[at(2)]) && !found.contains(&at(4)), "{found:?}");
        assert_eq!(differ(&base, &v), [at(6), at(8)], "by its map");
        assert!(found.len() <= 3, "not all that the new line will ever hold: {found:?}");
        differ(&on, &left);
        differ(&left, &v);
        // This compares a recovered volume with the volume on whose past it rests.
        let r = site.pool.open_volume("r", false).unwrap();
        write(&r, 160 * KIB, 6, 512);
        assert_eq!(differ(&base, &r), [at(10)], "chunks of a moment are brought in whole");
        assert_eq!(differ(&left, &r).first(), Some(&at(2)));
        site.idle();
        differ(&base, &r);
        differ(&left, &r);
        // This compares a clone with moments of its origin.
        site.snap("v", "s");
        site.pool.clone_volume("v", "s", "c").unwrap();
        let c = site.pool.open_volume("c", false).unwrap();
        write(&c, 0, 7, 512);
        let now = site.moment("v", site.pool.moment_of_snapshot("v", "s").unwrap());
        assert_eq!(differ(&now, &c), [at(0)]);
        differ(&left, &c);
    }
}

#[test]
fn what_was_not_recorded_is_not_told() {
    let (site, v) = site(AnchorPolicy::Never);
    write(&v, 0, 1, 64 * KIB);
    let a = site.moment("v", site.lsn());
    let since = Difference::new(a.clone(), v.clone()).unwrap();
    site.pool.set_cdp("v", None).unwrap();
    assert_eq!(ranges(&since), [], "nothing was written yet");
    site.idle();
    let error = since.step(0, 4 * MIB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    site.snap("v", "off");
    write(&v, 32 * KIB, 2, 512);
    site.pool.set_cdp("v", cdp(AnchorPolicy::Never)).unwrap();
    let on = site.moment("v", site.lsn());
    assert!(refused(&a, &on).contains("CDP was off"));
    refused(&on, &a);
    refused(&a, &v);
    assert!(refused(&on, &site.snapshot("v", "off")).contains("snapshot"));
    write(&v, 48 * KIB, 3, 512);
    assert_eq!(differ(&on, &v), [48 * KIB..48 * KIB + 512]);
    // Snapshots can be compared nevertheless.
    site.idle();
    assert_eq!(differ(&site.snapshot("v", "off"), &v), [32 * KIB..64 * KIB]);
}

#[test]
fn what_has_expired_is_not_told() {
    let (site, v) = site(AnchorPolicy::Every(8));
    site.snap("v", "s");
    let (s, mut lsns) = (site.snapshot("v", "s"), Vec::new());
    for n in 0..64 {
        write(&v, n * CHUNK, n as u8, CHUNK);
        lsns.push(site.lsn());
        site.clock.advance(1_000_000_000);
    }
    site.idle();
    let late = site.moment("v", lsns[60]);
    let since = Difference::new(s.clone(), late.clone()).unwrap();
    assert_eq!(assert_covers(&since, &s, &late), [0..61 * CHUNK]);
    let held = site.moment("v", lsns[50]);
    let retention = Retention { time: Some(5_000_000_000), bytes: None };
    site.pool.set_cdp("v", Some(CdpSettings { retention, ..cdp(AnchorPolicy::Every(8)).unwrap() })).unwrap();
    for _ in 0..20 {
        site.clock.advance(1_000_000_000);
        site.idle();
    }
    assert!(site.pool.open_moment("v", &Moment::Lsn(lsns[30])).is_err(), "it has expired");
    assert_eq!(since.step(0, 4 * MIB).unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(refused(&s, &late).contains("has left the history"));
    assert_eq!(differ(&held, &late), [51 * CHUNK..61 * CHUNK], "what is held does not expire");
}

/// There are more records than one step reads, over many segments, and one chunk alone has more.
#[test]
fn steps_are_bounded_and_lose_nothing() {
    let site = Site::new(128);
    let v = site.volume("v", 64 * MIB, 4 * KIB);
    site.pool.set_cdp("v", cdp(AnchorPolicy::Never)).unwrap();
    let from = site.lsn();
    let mut wanted = Vec::new();
    for round in 0..3u64 {
        for n in 0..8000 {
            let at = n * 8 * KIB + round * 512;
            write(&v, at, round as u8 + 1, 512);
        }
    }
    for n in 0..8000 {
        wanted.push(n * 8 * KIB..n * 8 * KIB + 3 * 512);
    }
    for n in 0..20_000u64 {
        write(&v, 4 * KIB, n as u8, 512);
    }
    // The whole chunk counts if it has more records than are read.
    wanted[1].start = 4 * KIB;
    let from = site.moment("v", from);
    let to = site.moment("v", site.lsn());
    site.idle();
    assert!(site.pool.cdp("v").unwrap().segments > 4);
    let difference = Difference::new(from.clone(), to).unwrap();
    let (first, end) = difference.step(0, 64 * MIB).unwrap();
    assert!(!first.is_empty() && end < 64 * MIB, "{} ranges to {end}", first.len());
    assert!(ranges(&difference) == wanted, "other ranges");
    // A difference that is not in the log as records extends over many steps.
    v.discard(MIB + 512, 40 * MIB, false).unwrap();
    write(&v, 63 * MIB, 1, 512);
    // The range has the records at its ends.
    let long = MIB..41 * MIB + 3 * 512;
    let difference = Difference::new(from, v).unwrap();
    wanted.retain(|r| r.end < long.start || r.start > long.end);
    wanted.extend([long, 63 * MIB..63 * MIB + 512]);
    wanted.sort_by_key(|r| r.start);
    let middle = difference.runs(20 * MIB, 30 * MIB, 1).unwrap()[0];
    assert!(middle.changed && middle.length <= 21 * MIB + 3 * 512, "{middle:?}");
    assert!(ranges(&difference) == wanted, "other ranges");
}

#[test]
fn a_damaged_index_is_made_up_for() {
    let (site, v) = site(AnchorPolicy::Never);
    let from = site.moment("v", site.lsn());
    let rng = SplitMix::new(3);
    for _ in 0..4000 {
        write(&v, rng.next() % 8192 * 512, rng.next() as u8, 512);
    }
    let to = site.moment("v", site.lsn());
    let whole = differ(&from, &to);
    drop((from, to, v));
    let first = site.pool.history("v", 0).unwrap().spans[0].from.lsn;
    let last = site.lsn();
    for block in [0u64, 7, 20] {
        // The index of a full segment is at its end; each attempt damages another block of all
        // segments.
        let mut damaged = 0;
        for name in site.dir.list().unwrap().into_iter().filter(|name| name.starts_with("cdp-")) {
            let file = site.dir.open(&name, OpenMode::Existing).unwrap();
            let mut bytes = vec![0; file.len().unwrap() as usize];
            file.read_at(&mut bytes, 0).unwrap();
            let blocks: Vec<u64> = (0..bytes.len() as u64 / 4096)
                .filter(|n| bytes[*n as usize * 4096..].starts_with(b"HCDI"))
                .collect();
            if let Some(at) = blocks.iter().rev().nth(block as usize) {
                file.write_at(&[0xEE; 16], at * 4096 + 100).unwrap();
                damaged += 1;
            }
        }
        assert!(damaged > 0, "block {block} of no index");
        let (from, to) = (site.moment("v", first), site.moment("v", last));
        assert_eq!(ranges(&Difference::new(from, to).unwrap()), whole, "block {block}");
    }
}

#[test]
fn random_histories() {
    for seed in 0..12 {
        let rng = SplitMix::new(seed);
        let below = |n: u64| rng.next() % n;
        let anchors = [AnchorPolicy::Never, AnchorPolicy::Every(1), AnchorPolicy::Every(5)];
        let (site, v) = site(anchors[below(3) as usize]);
        drop(v);
        let pool = &site.pool;
        let mut moments = vec![site.lsn()];
        for step in 0..40u8 {
            let v = pool.open_volume("v", false).unwrap();
            let (offset, len) = (below(128) * 512, (1 + below(60)) * 512);
            match below(12) {
                0..5 => write(&v, offset, step + 1, len),
                5 => v.discard(offset, len, false).unwrap(),
                6 => v.write_zeroes(0, 2 * MIB, below(2) == 0, false).unwrap(),
                7 => site.snap("v", &format!("s{step}")),
                8 => {
                    drop(v);
                    let to = Moment::Lsn(moments[below(moments.len() as u64) as usize]);
                    pool.roll_back_to(&[("v", &format!("u{step}"))], &to, false).unwrap();
                }
                9 => drop(pool.destage_step().unwrap()),
                _ => site.idle(),
            }
            moments.push(site.lsn());
        }
        let moments: Vec<Arc<Volume>> =
            (0..12).map(|_| site.moment("v", moments[below(moments.len() as u64) as usize])).collect();
        let snapshots = pool.snapshots("v").unwrap();
        let snapshots = snapshots.iter().map(|s| site.snapshot("v", &s.name));
        let now = pool.open_volume("v", true).unwrap();
        let others: Vec<Arc<Volume>> = moments.iter().cloned().chain(snapshots).chain([now]).collect();
        assert!(moments.iter().any(|m| content(m).iter().any(|b| *b != 0)));
        for from in &moments {
            for to in &others {
                differ(from, to);
            }
        }
    }
}
