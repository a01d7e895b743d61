//! Sums of data in place: no read returns content that a disk has changed, swapped or lost, and
//! nothing else is refused.
#![allow(clippy::unwrap_used)] // a test may panic

mod hostile;
mod hostile_repair;
mod media;
mod past_cache;
mod repair;
mod scrub;

use bytes::Bytes;
use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Encoding};
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::disk::{Dir, Disk, MemDir, OpenMode};
use hindcast_engine::pool::{Method, Pool, PoolOptions, PvSpec, code};
use hindcast_engine::testing::{KIB, MIB, Site, SiteBuilder, assert_clean, flip, idle, pv, write};
use hindcast_engine::{ErrorKind, Volume};
use std::sync::Arc;

const BLOCK: u64 = 4096;
const SECTOR: u64 = 512;
const CHUNK: u64 = 16 * KIB;

/// The options of a pool that repairs nothing: damage stays, and tests can see it.
fn unrepaired() -> PoolOptions {
    PoolOptions { repairs: false, ..PoolOptions::default() }
}

/// Begins a pool that repairs nothing, and that has no sums yet.
fn builder(mib: u64) -> SiteBuilder {
    Site::builder(mib).options(unrepaired()).without_features()
}

fn enable(pool: &Pool) {
    pool.upgrade(&["sums".to_owned()]).unwrap();
}

/// The options of a pool that repairs, and destages on one thread.
fn alone() -> PoolOptions {
    PoolOptions { destage_threads: 1, ..PoolOptions::default() }
}

/// Makes a pool that repairs, and a volume `v` of 1 MiB. The journal is so large that its files are
/// not used again.
fn repairing() -> Site {
    let site = Site::builder(16).options(alone()).build();
    enable(&site.pool);
    site.having("v", MIB, CHUNK)
}

/// Overwrites the files of the journal with zeros, but for their headers: no content is left there.
fn forget_journal(dir: &dyn Dir) {
    for name in dir.list().unwrap().iter().filter(|name| name.starts_with("journal-0")) {
        let file = dir.open(name, OpenMode::Existing).unwrap();
        let len = file.len().unwrap();
        file.write_at(&vec![0; (len - BLOCK) as usize], BLOCK).unwrap();
    }
}

/// Makes a pool with sums, and a volume `v` of 1 MiB.
fn site() -> Site {
    site_with(1, CHUNK)
}

fn site_with(threads: usize, chunk: u64) -> Site {
    let options = PoolOptions { destage_threads: threads, ..unrepaired() };
    let site = builder(16).journal(2 * MIB, 256 * KIB).options(options).build();
    enable(&site.pool);
    site.having("v", MIB, chunk)
}

/// Returns the content of a block that no other block, and no other generation, has.
fn unique(block: u64, generation: u64) -> Vec<u8> {
    let word =
        |n: u64| (block << 40 | generation << 20 | n).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    (0..BLOCK / 8).flat_map(word).collect()
}

fn put(v: &Volume, blocks: std::ops::Range<u64>, generation: u64) {
    for block in blocks {
        let mut op = [WriteOp::new(block * BLOCK, Bytes::from(unique(block, generation)))];
        v.write(&mut op, false);
        op[0].result.as_ref().unwrap();
    }
}

/// Begins a history of volume `v`, without anchors of its own.
fn record(site: &Site, encoding: Encoding) {
    let settings = CdpSettings { encoding, anchors: AnchorPolicy::Never, ..CdpSettings::default() };
    site.pool.set_cdp("v", Some(settings)).unwrap();
}

/// Makes a pool with sums and references. The last write of its volume, 64 blocks of generation 7
/// at 1 MiB, is a reference that waits for destage.
fn referred() -> (Site, Arc<Volume>) {
    let site = builder(64).build();
    site.pool.upgrade(&["sums".to_owned(), "references".to_owned()]).unwrap();
    let v = site.volume("v", 4 * MIB, CHUNK);
    let refer = |at: u64, generation: u64| {
        let data: Vec<u8> = (0..64).flat_map(|n| unique(at / BLOCK + n, generation)).collect();
        let mut op = [WriteOp::new(at, Bytes::from(data))];
        v.write(&mut op, false);
        op[0].result.as_ref().unwrap();
    };
    for round in 0..4 {
        refer(0, round);
        site.idle();
    }
    let before = site.pool.stats().direct_bytes;
    refer(MIB, 7);
    assert_eq!(site.pool.stats().direct_bytes - before, 64 * BLOCK);
    (site, v)
}

/// The disk of a physical volume of a pool, beside the pool.
struct Medium(Arc<dyn Disk>);

impl Medium {
    fn of(dir: &MemDir, name: &str) -> Medium {
        Medium(dir.open(name, OpenMode::Existing).unwrap())
    }

    fn unit(&self, at: u64) -> Vec<u8> {
        let mut content = vec![0; BLOCK as usize];
        self.0.read_at(&mut content, at).unwrap();
        content
    }

    /// Returns the places of a content.
    fn find(&self, content: &[u8]) -> Vec<u64> {
        let units = (MIB..self.0.len().unwrap()).step_by(BLOCK as usize);
        units.filter(|at| self.unit(*at) == content).collect()
    }

    /// Returns the only place of a content.
    fn place(&self, block: u64, generation: u64) -> u64 {
        let found = self.find(&unique(block, generation));
        assert_eq!(found.len(), 1, "block {block}, generation {generation}");
        found[0]
    }

    fn write(&self, at: u64, content: &[u8]) {
        self.0.write_at(content, at).unwrap();
    }

    fn flip(&self, at: u64) {
        let mut byte = [0];
        self.0.read_at(&mut byte, at).unwrap();
        self.write(at, &[byte[0] ^ 4]);
    }
}

/// Returns the first byte that a read of the range reports as damaged, or `None` if the read
/// succeeds.
fn damage_in(v: &Volume, offset: u64, len: u64) -> Option<u64> {
    let mut buf = vec![0; len as usize];
    // The read that must not wait returns no damaged byte either.
    if let Ok(true) = v.try_read(offset, &mut buf) {
        return None;
    }
    let error = v.read(offset, &mut buf).err()?;
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    Some(error.byte().expect("the error names the byte"))
}

/// Checks that exactly the blocks `damaged` of `v` can't be read, by reads of several sizes. All
/// other blocks have the content of `generation`.
fn expect(v: &Volume, blocks: std::ops::Range<u64>, generation: u64, damaged: &[u64]) {
    for block in blocks.clone() {
        let at = block * BLOCK;
        let expected = damaged.contains(&block).then_some(at);
        assert_eq!(damage_in(v, at, BLOCK), expected, "block {block}");
        assert_eq!(
            damage_in(v, at + SECTOR, SECTOR).is_some(),
            expected.is_some(),
            "a part of block {block}"
        );
        let mut buf = vec![0; BLOCK as usize];
        if expected.is_none() {
            v.read(at, &mut buf).unwrap();
            assert!(buf == unique(block, generation), "block {block}");
            v.read(at + SECTOR, &mut buf[..SECTOR as usize]).unwrap();
            assert!(
                buf[..SECTOR as usize] == unique(block, generation)[SECTOR as usize..2 * SECTOR as usize]
            );
        }
    }
    let (first, end) = (blocks.start * BLOCK, blocks.end * BLOCK);
    let first_damaged = damaged.iter().min().map(|block| block * BLOCK);
    assert_eq!(damage_in(v, first, end - first), first_damaged);
    // The ends are no whole units.
    let found = damage_in(v, first + SECTOR, end - first - 2 * SECTOR);
    assert_eq!(found, first_damaged.map(|at| at.max(first + SECTOR)));
}

#[test]
fn every_change_of_the_medium_is_noticed_and_a_write_heals_it() {
    for chunk in [4 * KIB, CHUNK, 64 * KIB] {
        let site = site_with(1, chunk);
        let v = site.open("v");
        put(&v, 0..64, 1);
        site.idle();
        let medium = Medium::of(&site.dir, "pv-0.img");
        let stale = medium.unit(medium.place(9, 1));
        put(&v, 0..64, 2);
        site.idle();
        expect(&v, 0..64, 2, &[]);
        drop(v);
        let site = site.reopen_after(|_| {
            // A bit flips, two units are swapped, and a write is lost.
            medium.flip(medium.place(0, 2));
            medium.flip(medium.place(63, 2) + BLOCK - 1);
            let (a, b) = (medium.place(20, 2), medium.place(40, 2));
            let (content_a, content_b) = (medium.unit(a), medium.unit(b));
            medium.write(a, &content_b);
            medium.write(b, &content_a);
            medium.write(medium.place(9, 2), &stale);
        });
        let v = site.open("v");
        let damaged = [0, 9, 20, 40, 63];
        expect(&v, 0..64, 2, &damaged);
        assert!(site.pool.health().has(code::DATA_DAMAGED));
        let ranges: Vec<(u64, u64)> = damaged.iter().map(|block| (block * BLOCK, BLOCK)).collect();
        assert_eq!(site.pool.damaged_ranges("v").unwrap(), ranges);
        // What is known to be damaged stays so when the pool is opened again.
        site.idle();
        drop(v);
        let site = site.reopen();
        assert_eq!(site.pool.damaged_ranges("v").unwrap(), ranges);
        let v = site.open("v");
        put(&v, 0..64, 3);
        expect(&v, 0..64, 3, &[]);
        site.idle();
        expect(&v, 0..64, 3, &[]);
        assert!(!site.pool.health().has(code::DATA_DAMAGED));
    }
}

#[test]
fn a_write_to_a_part_of_a_damaged_block_keeps_the_damage_of_the_rest() {
    for threads in [1, 4] {
        for method in [Method::Redirect, Method::Copy] {
            for snapshot in [false, true] {
                let site = site_with(threads, CHUNK);
                let v = site.open("v");
                put(&v, 0..8, 1);
                site.idle();
                let medium = Medium::of(&site.dir, "pv-0.img");
                let place = medium.place(5, 1);
                if snapshot {
                    site.pool.set_method("v", method).unwrap();
                    site.snap("v", "s");
                    site.idle();
                }
                drop(v);
                let site = site.reopen_after(|_| medium.flip(place + 7));
                let v = site.open("v");
                // Nobody has read the block when the write comes.
                write(&v, 5 * BLOCK + SECTOR, 9, SECTOR);
                site.idle();
                let site = {
                    drop(v);
                    site.reopen()
                };
                let v = site.open("v");
                let mut sector = [0; SECTOR as usize];
                v.read(5 * BLOCK + SECTOR, &mut sector).unwrap();
                assert_eq!(sector, [9; SECTOR as usize]);
                for part in [0, 2, 3, 4, 5, 6, 7] {
                    let at = 5 * BLOCK + part * SECTOR;
                    assert_eq!(damage_in(&v, at, SECTOR), Some(at), "{threads} {method:?} {snapshot}");
                }
                expect(&v, 0..5, 1, &[]);
                expect(&v, 6..8, 1, &[]);
                put(&v, 5..6, 2);
                site.idle();
                expect(&v, 5..6, 2, &[]);
                if snapshot {
                    expect(&site.snapshot("v", "s"), 0..8, 1, &[5]);
                }
            }
        }
    }
}

/// Work that moves chunks moves the sums with them: a damaged block is damaged in its new place.
#[test]
fn chunks_that_move_keep_their_damage() {
    type Work = fn(&Site);
    let works: [(&str, Work); 4] = [
        ("evacuate", |site| {
            site.pool.add_pv(&pv("pv-1", 16 * MIB)).unwrap();
            site.pool.drain_pv("pv-0.img", true).unwrap();
        }),
        ("flatten", |site| {
            site.snap("v", "s");
            site.pool.clone_volume("v", "s", "c").unwrap();
            site.pool.flatten_volume("c", 0).unwrap();
        }),
        ("relocate", |site| site.pool.relocate_volume("v", 0).unwrap()),
        ("copy", |site| {
            site.pool.set_method("v", Method::Copy).unwrap();
            site.snap("v", "s");
            put(&site.open("v"), 5..6, 2);
        }),
    ];
    for (name, work) in works {
        for is_known in [false, true] {
            let site = site();
            let v = site.open("v");
            // Each chunk has a version, so the chunks lie out of order.
            put(&v, 0..16, 1);
            site.snap("v", "t");
            for chunk in [0, 2] {
                put(&v, chunk * 4..chunk * 4 + 1, 1);
                site.idle();
            }
            site.pool.delete_snapshots("v", &["t"]).unwrap();
            site.idle();
            site.idle();
            let medium = Medium::of(&site.dir, "pv-0.img");
            let places = medium.find(&unique(6, 1));
            drop(v);
            let site = site.reopen_after(|_| places.iter().for_each(|place| medium.flip(place + 100)));
            let v = site.open("v");
            if is_known {
                expect(&v, 0..16, 1, &[6]);
            }
            work(&site);
            site.idle();
            let shown = match name {
                "flatten" => site.open("c"),
                "copy" => site.snapshot("v", "s"),
                _ => v.clone(),
            };
            expect(&shown, 0..16, 1, &[6]);
            drop((v, shown));
            let site = site.reopen();
            let shown = match name {
                "flatten" => site.open("c"),
                "copy" => site.snapshot("v", "s"),
                _ => site.open("v"),
            };
            expect(&shown, 0..16, 1, &[6]);
        }
    }
}

/// A history never records a damaged content as if it were right. Later moments are right.
#[test]
fn a_history_does_not_lead_over_damage() {
    for encoding in [Encoding::Parity, Encoding::Undo, Encoding::Redo] {
        for threads in [1, 4] {
            let site = site_with(threads, CHUNK);
            let v = site.open("v");
            record(&site, encoding);
            put(&v, 0..8, 1);
            let first = site.lsn();
            site.idle();
            let medium = Medium::of(&site.dir, "pv-0.img");
            drop(v);
            let site = site.reopen_after(|_| medium.flip(medium.place(2, 1)));
            let v = site.open("v");
            write(&v, 2 * BLOCK + SECTOR, 7, SECTOR);
            site.idle();
            put(&v, 2..3, 2);
            let healed = site.lsn();
            site.idle();
            put(&v, 0..8, 3);
            site.idle();
            // No moment shows the flipped bit: it is right, or it can't be read.
            for (lsn, generation) in [(first, 1), (healed, 2)] {
                let moment = site.moment("v", lsn);
                let mut block = vec![0; BLOCK as usize];
                match moment.read(2 * BLOCK, &mut block) {
                    Ok(()) => assert!(block == unique(2, generation), "{encoding:?} {threads} {generation}"),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Lost, "{error}"),
                }
                expect(&moment, 4..8, 1, &[]);
            }
            expect(&v, 0..8, 3, &[]);
        }
    }
}

#[test]
fn slots_of_references_have_the_sums_of_their_records() {
    let (site, v) = referred();
    // Parts of the same batch lie over the reference.
    write(&v, MIB + 9 * BLOCK + SECTOR, 9, SECTOR);
    site.idle();
    let block = MIB / BLOCK;
    expect(&v, block..block + 9, 7, &[]);
    expect(&v, block + 10..block + 64, 7, &[]);
    let mut mixed = unique(block + 9, 7);
    mixed[SECTOR as usize..2 * SECTOR as usize].fill(9);
    let mut content = vec![0; BLOCK as usize];
    v.read(MIB + 9 * BLOCK, &mut content).unwrap();
    assert!(content == mixed);
    let medium = Medium::of(&site.dir, "pv-0.img");
    drop(v);
    let site = site.reopen_after(|_| {
        medium.flip(medium.place(block + 3, 7));
        medium.flip(medium.find(&mixed)[0]);
    });
    expect(&site.open("v"), block..block + 9, 7, &[block + 3]);
    assert_eq!(damage_in(&site.open("v"), MIB + 9 * BLOCK, BLOCK), Some(MIB + 9 * BLOCK));
}

/// Chunks that are smaller than a unit have no sums, whatever the sizes of their slots.
#[test]
fn small_chunks_have_no_sums_and_raise_no_alarm() {
    for atomic_unit in [512, 4096] {
        let site = builder(16).atomic_unit(atomic_unit).build();
        enable(&site.pool);
        let large = site.volume("large", MIB, CHUNK);
        put(&large, 0..256, 1);
        site.idle();
        drop(large);
        // The small chunks take the space of the large ones.
        site.pool.delete_volume("large", true).unwrap();
        site.idle();
        site.idle();
        let v = site.volume("v", MIB, 512);
        for round in 1..4 {
            for sector in (0..2048).step_by(round) {
                write(&v, sector as u64 * SECTOR, round as u8, SECTOR);
            }
            site.idle();
            let mut content = vec![0; MIB as usize];
            v.read(0, &mut content).unwrap();
            for (sector, content) in content.chunks(SECTOR as usize).enumerate() {
                let last = (1..=round).rev().find(|n| sector % n == 0).unwrap();
                assert_eq!(content, [last as u8; SECTOR as usize]);
            }
        }
        // And the other way round.
        drop(v);
        site.pool.delete_volume("v", true).unwrap();
        site.idle();
        site.idle();
        let large = site.volume("large", 2 * MIB, CHUNK);
        put(&large, 0..512, 2);
        site.idle();
        expect(&large, 0..512, 2, &[]);
    }
}

#[test]
fn a_pool_that_gets_sums_later_verifies_what_it_writes_from_then_on() {
    let site = builder(16).build().having("v", MIB, CHUNK);
    let v = site.open("v");
    put(&v, 0..16, 1);
    site.idle();
    enable(&site.pool);
    assert!(site.pool.info().features.contains(&"sums"));
    put(&v, 4..6, 2);
    // A part of a block without a sum: the block still has none.
    write(&v, 8 * BLOCK, 9, SECTOR);
    site.idle();
    let medium = Medium::of(&site.dir, "pv-0.img");
    drop(v);
    let site = site.reopen_after(|_| {
        medium.flip(medium.place(4, 2));
        medium.flip(medium.place(10, 1));
    });
    let v = site.open("v");
    assert_eq!(damage_in(&v, 4 * BLOCK, BLOCK), Some(4 * BLOCK));
    expect(&v, 5..6, 2, &[]);
    for block in [0, 8, 10] {
        assert_eq!(damage_in(&v, block * BLOCK, BLOCK), None, "a block without a sum can't be verified");
    }
}

#[test]
fn without_the_files_of_sums_nothing_is_verified_and_nothing_is_refused() {
    let site = site();
    let v = site.open("v");
    put(&v, 0..16, 1);
    site.idle();
    drop(v);
    let site = site.reopen_after(|dir| {
        let names: Vec<String> = dir.list().unwrap();
        let own: Vec<&String> = names.iter().filter(|name| name.starts_with("sums-")).collect();
        assert_eq!(own, ["sums-00000000"]);
        dir.remove(own[0]).unwrap();
    });
    let v = site.open("v");
    expect(&v, 0..16, 1, &[]);
    put(&v, 0..4, 2);
    site.idle();
    expect(&v, 0..4, 2, &[]);
    expect(&v, 4..16, 1, &[]);
}

/// Damaged sums are no damage of the data. They are counted, and the data is not verified.
#[test]
fn damaged_sums_refuse_nothing() {
    let site = site();
    let v = site.open("v");
    put(&v, 0..16, 1);
    site.idle();
    drop(v);
    let site = site.reopen_after(|_| ());
    let dir = site.dir.clone();
    let len = dir.open("sums-00000000", OpenMode::ReadOnly).unwrap().len().unwrap();
    let site = site.reopen_after(|_| {
        // A sum in each copy of each block.
        (0..len).step_by(4096).for_each(|at| flip(&dir, "sums-00000000", at + 200, 8));
    });
    expect(&site.open("v"), 0..16, 1, &[]);
    assert!(site.pool.stats().damaged_sum_blocks > 0);
    put(&site.open("v"), 0..16, 2);
    idle(&site.pool);
    expect(&site.open("v"), 0..16, 2, &[]);
}

/// The file of a physical volume goes with it.
#[test]
fn a_physical_volume_that_leaves_takes_its_sums_along() {
    let site = site();
    put(&site.open("v"), 0..16, 1);
    site.pool.add_pv(&PvSpec { path: "pv-1".into(), size: Some(16 * MIB), force: false }).unwrap();
    site.idle();
    site.pool.drain_pv("pv-0.img", true).unwrap();
    site.idle();
    site.pool.remove_pv("pv-0.img").unwrap();
    site.idle();
    expect(&site.open("v"), 0..16, 1, &[]);
    let sums = |dir: &MemDir| -> Vec<String> {
        dir.list().unwrap().into_iter().filter(|name| name.starts_with("sums-")).collect()
    };
    assert_eq!(sums(&site.dir), ["sums-00000001"]);
    // A crash can leave such a file. The next opening removes it.
    site.dir.open("sums-00000007", OpenMode::CreateNew).unwrap();
    let site = site.reopen();
    assert_eq!(sums(&site.dir), ["sums-00000001"]);
    site.pool.close().unwrap();
    assert_clean(site.kill());
}
