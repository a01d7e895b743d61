//! Differences between states, compared with what the states read as.
#![allow(clippy::unwrap_used)] // a test may panic
#![allow(clippy::single_range_in_vec_init)] // lists of ranges are what is compared

use hindcast_engine::device::BlockDevice;
use hindcast_engine::pool::{NewVolume, Pool};
use hindcast_engine::testing::differences::{assert_covers, ranges};
use hindcast_engine::testing::{self, KIB, MIB, Site, idle, write};
use hindcast_engine::world::{Rng, SplitMix};
use hindcast_engine::{Difference, ErrorKind, Volume};
use std::ops::Range;
use std::sync::Arc;

const SIZE: u64 = 3 << 20;

fn pool() -> Arc<Pool> {
    Site::new(64).pool
}

fn volume(pool: &Arc<Pool>, name: &str, chunk_size: u64) -> Arc<Volume> {
    testing::volume(pool, name, SIZE, chunk_size)
}

#[test]
fn names_what_was_written_since_staged_or_in_place() {
    for chunk in [512, 4 * KIB, 64 * KIB] {
        let pool = pool();
        let v = volume(&pool, "v", chunk);
        write(&v, 0, 1, 512 * KIB);
        pool.create_snapshots(&[("v", "a")]).unwrap();
        write(&v, 64 * KIB, 2, 512);
        v.discard(128 * KIB, 64 * KIB, false).unwrap();
        let since = pool.difference("v", "a", None).unwrap();
        let wide = 64 * KIB..64 * KIB + chunk.max(512);
        let staged = ranges(&since);
        assert_eq!(staged, [64 * KIB..64 * KIB + 512, 128 * KIB..192 * KIB], "staged, chunk {chunk}");
        idle(&pool);
        let mut in_place = vec![wide.clone(), 128 * KIB..192 * KIB];
        if wide.end == in_place[1].start {
            in_place.truncate(1);
            in_place[0].end = 192 * KIB;
        }
        assert_eq!(ranges(&since), in_place, "in place, chunk {chunk}");
        pool.create_snapshots(&[("v", "b")]).unwrap();
        write(&v, MIB, 3, 512);
        let between = pool.difference("v", "a", Some("b")).unwrap();
        assert_eq!(ranges(&between), in_place);
        let back =
            Difference::new(pool.open_snapshot("v", "b").unwrap(), pool.open_snapshot("v", "a").unwrap());
        assert_eq!(ranges(&back.unwrap()), in_place, "backwards");
        assert_eq!(ranges(&pool.difference("v", "b", Some("b")).unwrap()), []);
    }
}

#[test]
fn clones_and_rollbacks_are_compared_through_their_bases() {
    let pool = pool();
    let v = volume(&pool, "v", 4 * KIB);
    write(&v, 0, 1, MIB);
    pool.create_snapshots(&[("v", "a")]).unwrap();
    write(&v, 0, 2, 4 * KIB);
    pool.create_snapshots(&[("v", "b")]).unwrap();
    pool.clone_volume("v", "b", "c").unwrap();
    let c = pool.open_volume("c", false).unwrap();
    write(&c, 8 * KIB, 3, 4 * KIB);
    let a = pool.open_snapshot("v", "a").unwrap();
    let at = |block: u64| block * 4 * KIB..(block + 1) * 4 * KIB;
    let clone = Difference::new(a.clone(), c.clone()).unwrap();
    assert_eq!(assert_covers(&clone, &a, &c), [at(0), at(2)]);
    idle(&pool);
    assert_eq!(assert_covers(&clone, &a, &c), [at(0), at(2)]);
    drop(v);
    pool.roll_back("v", "a", "undo", false).unwrap();
    let v = pool.open_volume("v", false).unwrap();
    write(&v, 16 * KIB, 4, 4 * KIB);
    let b = pool.open_snapshot("v", "b").unwrap();
    let rolled = Difference::new(b.clone(), v.clone()).unwrap();
    assert_eq!(assert_covers(&rolled, &b, &v), [at(0), at(4)]);
    let undo = pool.open_snapshot("v", "undo").unwrap();
    assert_covers(&Difference::new(undo.clone(), c.clone()).unwrap(), &undo, &c);
    let other = volume(&pool, "other", 4 * KIB);
    write(&other, 2 * MIB, 1, 4 * KIB);
    let strange = Difference::new(a.clone(), other.clone()).unwrap();
    assert_eq!(assert_covers(&strange, &a, &other), [0..MIB, 2 * MIB..2 * MIB + 4 * KIB]);
    let refused = Difference::new(other, a).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

#[test]
fn a_deletion_waits_for_a_difference() {
    let pool = pool();
    let v = volume(&pool, "v", 4 * KIB);
    write(&v, 0, 1, 64 * KIB);
    pool.create_snapshots(&[("v", "a")]).unwrap();
    let since = pool.difference("v", "a", None).unwrap();
    pool.delete_snapshots("v", &["a"]).unwrap();
    idle(&pool);
    write(&v, 8 * KIB, 2, 4 * KIB);
    idle(&pool);
    assert_eq!(ranges(&since), [8 * KIB..12 * KIB]);
    v.discard(0, 64 * KIB, false).unwrap();
    idle(&pool);
    assert_eq!(ranges(&since), [0..64 * KIB], "the later has nothing any more");
}

#[test]
fn a_long_discard_of_a_clone_is_looked_at_as_one() {
    let pool = pool();
    let new =
        NewVolume { name: "v".into(), size: 8 << 40, chunk_size: 512, block_size: 512, read_only: false };
    pool.create_volume(&new).unwrap();
    pool.create_snapshots(&[("v", "a")]).unwrap();
    pool.clone_volume("v", "a", "c").unwrap();
    let c = pool.open_volume("c", false).unwrap();
    c.discard(MIB, (8 << 40) - 2 * MIB, false).unwrap();
    idle(&pool);
    pool.create_snapshots(&[("c", "b")]).unwrap();
    write(&c, 4 << 40, 1, 512);
    idle(&pool);
    let clone = Difference::new(pool.open_snapshot("v", "a").unwrap(), c.clone()).unwrap();
    assert_eq!(ranges(&clone), [MIB..(8 << 40) - MIB]);
    assert_eq!(ranges(&pool.difference("c", "b", None).unwrap()), [4 << 40..(4 << 40) + 512]);
    // One write is over a hole (`d`), and one is from before a hole was made (`f`).
    pool.clone_volume("c", "b", "d").unwrap();
    let d = pool.open_volume("d", false).unwrap();
    write(&d, 5 << 40, 1, 512);
    idle(&pool);
    let over = Difference::new(pool.open_snapshot("c", "b").unwrap(), d.clone()).unwrap();
    assert_eq!(ranges(&over), [5 << 40..(5 << 40) + 512]);
    pool.create_snapshots(&[("d", "e")]).unwrap();
    pool.clone_volume("d", "e", "f").unwrap();
    d.discard(0, 8 << 40, false).unwrap();
    idle(&pool);
    let f = pool.open_volume("f", false).unwrap();
    let before = Difference::new(pool.open_snapshot("c", "b").unwrap(), f).unwrap();
    assert_eq!(ranges(&before), [5 << 40..(5 << 40) + 512]);
}

/// There are more staged pieces and more scattered changes than one step takes.
#[test]
fn steps_are_bounded_and_lose_nothing() {
    let pool = pool();
    let new =
        NewVolume { name: "v".into(), size: 16 << 30, chunk_size: 512, block_size: 512, read_only: false };
    pool.create_volume(&new).unwrap();
    let v = pool.open_volume("v", false).unwrap();
    pool.create_snapshots(&[("v", "a")]).unwrap();
    let wanted: Vec<Range<u64>> = (0..9000).map(|i| i * 1024..i * 1024 + 512).collect();
    // The writes go downwards, so that later ones come before those that were found.
    wanted.iter().rev().for_each(|r| write(&v, r.start, 7, 512));
    let since = pool.difference("v", "a", None).unwrap();
    let (first, end) = since.step(0, 16 << 30).unwrap();
    assert!(first.len() <= 8192 && end < 10 << 20, "{} ranges to {end}", first.len());
    assert_eq!(ranges(&since), wanted);
    idle(&pool);
    let (first, end) = since.step(0, 16 << 30).unwrap();
    assert!(first.len() <= 8192 && end < 10 << 20, "{} ranges to {end}", first.len());
    assert_eq!(ranges(&since), wanted);
}

#[test]
fn random_histories() {
    for seed in 0..20 {
        let rng = SplitMix::new(seed);
        let below = |n: u64| rng.next() % n;
        let pool = pool();
        let chunk = [512, 4 * KIB, 16 * KIB][below(3) as usize];
        let names = ["v", "w"];
        drop(names.map(|name| volume(&pool, name, chunk)));
        let mut snapshots: Vec<(&str, String)> = Vec::new();
        for step in 0..60 {
            let name = names[below(2) as usize];
            let v = pool.open_volume(name, false).unwrap();
            let (offset, len) = (below(SIZE / 512) * 512, (1 + below(40)) * 512);
            let len = len.min(v.info().size.saturating_sub(offset));
            match below(12) {
                0..5 if len > 0 => write(&v, offset, step as u8 + 1, len),
                5 if len > 0 => v.discard(offset, len, false).unwrap(),
                6 => v.write_zeroes(0, v.info().size / 2, below(2) == 0, false).unwrap(),
                7 | 8 => {
                    pool.create_snapshots(&[(name, &format!("s{step}"))]).unwrap();
                    snapshots.push((name, format!("s{step}")));
                }
                9 if !snapshots.is_empty() => {
                    drop(v);
                    let of = &snapshots[below(snapshots.len() as u64) as usize];
                    pool.roll_back(of.0, &of.1, &format!("u{step}"), false).unwrap();
                }
                10 => drop(pool.destage_step().unwrap()),
                _ => idle(&pool),
            }
        }
        let open = |of: &(&str, String)| pool.open_snapshot(of.0, &of.1).unwrap();
        for from in &snapshots {
            let states = snapshots.iter().map(open).chain(names.map(|n| pool.open_volume(n, true).unwrap()));
            for to in states {
                let from = open(from);
                let difference = Difference::new(from.clone(), to.clone()).unwrap();
                assert_covers(&difference, &from, &to);
            }
        }
    }
}
