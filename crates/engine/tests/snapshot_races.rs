//! Snapshots are read and taken while writers and background work run at full speed. No reader ever
//! sees a byte that was written too late for it, and a group is one instant of the order of writes.
#![allow(clippy::unwrap_used)] // a test may panic

use bytes::Bytes;
use hindcast_engine::Volume;
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::disk::MemDir;
use hindcast_engine::pool::{CachePolicy, Method, NewVolume, Placement, Pool, PoolOptions};
use hindcast_engine::testing::{KIB, MIB, Site, check, new_volume};
use hindcast_engine::world::{Rng, SplitMix};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BLOCK: u64 = 4 * KIB;
const CHUNK: u64 = 16 * KIB;
const SIZE: u64 = MIB;
/// How long the writers of one race run.
const RACE: Duration = Duration::from_millis(1500);

/// Makes a pool with small caches and batches, so that all kinds of work are always under way.
fn pool() -> (Arc<MemDir>, Arc<Pool>) {
    let options = PoolOptions {
        map_cache_bytes: 16 << 10,
        map_cache_policy: CachePolicy::S3Fifo,
        catalog_cache_bytes: 1 << 20,
        destage_threads: 2,
        batch_bytes: 256 * KIB,
        destage_start_percent: 0,
        ..PoolOptions::default()
    };
    let builder = Site::builder(128).extents(256 * KIB).journal(8 * MIB, MIB);
    let Site { dir, pool, .. } = builder.placement(Placement::Contiguous).options(options).build();
    (dir, pool)
}

fn volume(pool: &Arc<Pool>, name: &str, size: u64) -> Arc<Volume> {
    pool.create_volume(&NewVolume { block_size: 4096, ..new_volume(name, size, CHUNK) }).unwrap();
    pool.open_volume(name, false).unwrap()
}

/// Returns a block in which every word is `stamp`.
fn block(stamp: u64) -> Bytes {
    stamp.to_le_bytes().repeat(BLOCK as usize / 8).into()
}

fn put(volume: &Volume, at: u64, stamp: u64) {
    let mut ops = [WriteOp::new(at * BLOCK, block(stamp))];
    volume.write(&mut ops, false);
    let [op] = ops;
    op.result.unwrap();
}

/// Returns the stamps of all blocks. A block never mixes two writes.
fn stamps(volume: &Volume, blocks: u64) -> Vec<u64> {
    let mut data = vec![0; (blocks * BLOCK) as usize];
    volume.read(0, &mut data).unwrap();
    let of = |block: &[u8]| {
        let words: Vec<u64> =
            block.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
        assert!(words.iter().all(|w| *w == words[0]), "a block mixed of writes {} and others", words[0]);
        words[0]
    };
    data.chunks_exact(BLOCK as usize).map(of).collect()
}

/// Runs background work in a thread, like a server.
fn maintain(pool: &Pool, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        pool.maintain().unwrap();
    }
}

/// Checks for errors after a race, and in the pool that it leaves.
fn finish(dir: Arc<MemDir>, pool: Arc<Pool>) {
    pool.drain().unwrap();
    pool.close().unwrap();
    assert_eq!(Arc::strong_count(&pool), 1, "handles keep the pool alive");
    drop(pool);
    let report = check(dir);
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// Reads a snapshot, its clone and an older snapshot, while the origin is overwritten block by
/// block, discarded and destaged in threads.
fn readers_never_see_a_later_byte(method: Method) {
    let (dir, pool) = pool();
    let blocks = SIZE / BLOCK;
    {
        let origin = volume(&pool, "origin", SIZE);
        pool.set_method("origin", method).unwrap();
        (0..blocks).for_each(|at| put(&origin, at, 1 + at));
        pool.create_snapshots(&[("origin", "old")]).unwrap();
        pool.clone_volume("origin", "old", "clone").unwrap();
        let stop = AtomicBool::new(false);
        let stop = &stop;
        let (reads, round) = (AtomicU64::new(0), AtomicU64::new(0));
        let (reads, round) = (&reads, &round);
        std::thread::scope(|scope| {
            scope.spawn(|| maintain(&pool, stop));
            scope.spawn(|| {
                // There are rounds of overwriting. In the even ones, only this round's snapshot
                // protects the data from the writer.
                for n in 1.. {
                    pool.create_snapshots(&[("origin", &format!("s{n}"))]).unwrap();
                    round.store(n, Ordering::Release);
                    let rng = SplitMix::new(n);
                    for _ in 0..2 * blocks {
                        let at = rng.next() % blocks;
                        if rng.next() % 16 == 0 {
                            origin.discard(at * BLOCK / CHUNK * CHUNK, CHUNK, false).unwrap();
                        } else {
                            put(&origin, at, (n + 1) << 32 | at);
                        }
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                    if n > 4 {
                        pool.delete_snapshots("origin", &[&format!("s{}", n - 4)]).unwrap();
                    }
                }
            });
            let frozen: [Arc<Volume>; 2] =
                [pool.open_snapshot("origin", "old").unwrap(), pool.open_volume("clone", true).unwrap()];
            for view in frozen {
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let wrong = stamps(&view, blocks).into_iter().zip(1..).find(|(got, at)| got != at);
                        assert_eq!(wrong, None, "(found, expected) in what was frozen first");
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let n = round.load(Ordering::Acquire);
                    let Ok(view) = pool.open_snapshot("origin", &format!("s{n}")) else { continue };
                    let first = stamps(&view, blocks);
                    let late = first.iter().find(|stamp| *stamp >> 32 > n);
                    assert_eq!(late, None, "snapshot {n} shows a later write");
                    for _ in 0..4 {
                        assert_eq!(stamps(&view, blocks), first, "snapshot {n} has changed");
                    }
                    reads.fetch_add(5, Ordering::Relaxed);
                }
            });
            std::thread::sleep(RACE);
            stop.store(true, Ordering::Relaxed);
        });
        assert!(reads.load(Ordering::Relaxed) > 20 && round.load(Ordering::Relaxed) > 1, "no race at all");
    }
    finish(dir, pool);
}

#[test]
fn readers_never_see_a_later_byte_by_redirection() {
    readers_never_see_a_later_byte(Method::Redirect);
}

#[test]
fn readers_never_see_a_later_byte_by_copying() {
    readers_never_see_a_later_byte(Method::Copy);
}

/// Four writers each write a counter of their own, one write after the other, into two volumes in
/// turn. They write to block `2 * writer`, or to the block behind it, of the volume whose turn it
/// is. A group must show a prefix of each writer's writes.
#[test]
fn a_thousand_groups_are_instants_of_the_order_of_writes() {
    const WRITERS: u64 = 4;
    const GROUPS: u64 = 1000;
    let (dir, pool) = pool();
    {
        let volumes = ["left", "right"].map(|name| volume(&pool, name, 64 * KIB));
        pool.set_method("right", Method::Copy).unwrap();
        let stop = AtomicBool::new(false);
        let counts: [AtomicU64; WRITERS as usize] = std::array::from_fn(|_| AtomicU64::new(0));
        let started = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| maintain(&pool, &stop));
            for (writer, count) in (0..WRITERS).zip(&counts) {
                let (volumes, stop) = (&volumes, &stop);
                scope.spawn(move || {
                    for n in 1.. {
                        put(&volumes[(n % 2) as usize], writer * 4 + n / 2 % 2, n);
                        count.store(n, Ordering::SeqCst);
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                });
            }
            // This also ends the threads when an assertion fails.
            let _ender = Ender(&stop);
            let acknowledged = || counts.each_ref().map(|c| c.load(Ordering::SeqCst));
            for group in 0..GROUPS {
                let name = format!("g{group}");
                let before = acknowledged();
                pool.create_snapshots(&[("left", &name), ("right", &name)]).unwrap();
                let after = acknowledged();
                let [left, right] =
                    ["left", "right"].map(|v| stamps(&pool.open_snapshot(v, &name).unwrap(), 16));
                for writer in 0..WRITERS as usize {
                    // The last write of all four places determines the rest.
                    let places =
                        [left[writer * 4], left[writer * 4 + 1], right[writer * 4], right[writer * 4 + 1]];
                    let last = places.into_iter().max().unwrap();
                    assert!(
                        (before[writer]..=after[writer] + 1).contains(&last),
                        "group {group}: writer {writer} had done {} and then {}, the group shows {last}",
                        before[writer],
                        after[writer]
                    );
                    assert_eq!(
                        places,
                        expected(last),
                        "group {group}: not a prefix of what writer {writer} did"
                    );
                }
                if group >= 8 {
                    let old = format!("g{}", group - 8);
                    pool.delete_snapshots("left", &[&old]).unwrap();
                    pool.delete_snapshots("right", &[&old]).unwrap();
                }
                assert!(started.elapsed() < Duration::from_secs(300), "{group} groups in five minutes");
            }
        });
    }
    finish(dir, pool);
}

/// Returns what a writer's places hold after write `last`: for each place, the last write to it.
fn expected(last: u64) -> [u64; 4] {
    let at = |volume: u64, place: u64| {
        (last.saturating_sub(3)..=last)
            .rev()
            .find(|n| *n > 0 && n % 2 == volume && n / 2 % 2 == place)
            .unwrap_or(0)
    };
    [at(0, 0), at(0, 1), at(1, 0), at(1, 1)]
}

struct Ender<'a>(&'a AtomicBool);

impl Drop for Ender<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
