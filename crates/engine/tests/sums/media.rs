//! Media and page caches that answer wrong, or not at all.

use super::hostile::{killer, lose_a_part, options, read_range};
use super::*;
use hindcast_engine::disk::{Layer, LayeredDir, LowerDisk};
use hindcast_engine::testing::{Act, FaultyDir, Op};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const EIO: i32 = 5;

/// A medium and a page cache that differ at one byte.
struct TwoFaced {
    at: Mutex<Option<u64>>,
    /// The page cache is wrong, and the medium is right.
    cache_is_wrong: bool,
    /// Writes to the place fail.
    refuses: bool,
}

impl TwoFaced {
    /// Makes a pool with blocks 0 to 16 of generation 1 on such a disk; block 5 differs.
    fn site(cache_is_wrong: bool, refuses: bool) -> (Site, Arc<Volume>) {
        let layer = Arc::new(TwoFaced { at: Mutex::default(), cache_is_wrong, refuses });
        let site = builder(16).over(|files| Arc::new(LayeredDir::over(Arc::new(files), layer.clone())));
        enable(&site.pool);
        let v = site.volume("v", MIB, CHUNK);
        put(&v, 0..16, 1);
        site.idle();
        *layer.at.lock().unwrap() = Some(Medium::of(&site.dir, "pv-0.img").place(5, 1) + 2000);
        (site, v)
    }

    fn within(&self, offset: u64, len: usize) -> Option<usize> {
        let at = self.at.lock().unwrap().filter(|at| (offset..offset + len as u64).contains(at))?;
        Some((at - offset) as usize)
    }
}

impl Layer for TwoFaced {
    fn read_at(&self, disk: &LowerDisk, buf: &mut [u8], offset: u64) -> io::Result<()> {
        disk.read_at(buf, offset)?;
        if let Some(at) = self.within(offset, buf.len()).filter(|_| self.cache_is_wrong) {
            buf[at] ^= 1;
        }
        Ok(())
    }

    fn read_direct(&self, disk: &LowerDisk, buf: &mut [u8], offset: u64) -> io::Result<()> {
        disk.read_direct(buf, offset)?;
        if let Some(at) = self.within(offset, buf.len()).filter(|_| !self.cache_is_wrong) {
            buf[at] ^= 1;
        }
        Ok(())
    }

    fn drop_cached(&self, _: &LowerDisk, offset: u64, len: u64) {
        if self.cache_is_wrong && self.within(offset, len as usize).is_some() {
            *self.at.lock().unwrap() = None;
        }
    }

    fn write_at(&self, disk: &LowerDisk, buf: &[u8], offset: u64) -> io::Result<()> {
        match self.within(offset, buf.len()) {
            Some(_) if self.refuses => return Err(io::Error::from_raw_os_error(EIO)),
            Some(_) => *self.at.lock().unwrap() = None,
            None => {}
        }
        disk.write_at(buf, offset)
    }
}

/// What only the page cache has wrong is no damage: the medium is asked again.
#[test]
fn a_page_cache_that_is_wrong() {
    let (site, v) = TwoFaced::site(true, false);
    write(&v, 5 * BLOCK, 9, SECTOR);
    site.idle();
    assert_eq!(site.pool.damaged(), (0, 0));
    let mut expected = unique(5, 1);
    expected[..SECTOR as usize].fill(9);
    assert!(read_range(&v, 5 * BLOCK, BLOCK).unwrap() == expected);
    let (site, v) = TwoFaced::site(true, false);
    expect(&v, 0..16, 1, &[]);
    assert_eq!(site.pool.damaged(), (0, 0));
}

/// A repair that the disk refuses does not give the disk up.
#[test]
fn a_repair_that_is_refused() {
    let (site, v) = TwoFaced::site(false, true);
    let found = scrub::scrub(&site.pool);
    assert_eq!((found.repaired, found.damaged, found.verified), (0, BLOCK, 15 * BLOCK));
    put(&v, 100..101, 1);
    site.pool.drain().unwrap();
    assert!(site.pool.pvs().iter().all(|pv| pv.failure.is_none()));
    expect(&v, 0..16, 1, &[]);
}

/// Lost sectors are filled with zeros that have a sum. A mismatch that passes must not make the
/// zeros right.
#[test]
fn a_passing_mismatch_of_a_block_that_is_lost_in_part() {
    let site = site();
    let place = lose_a_part(&site);
    let (v, medium) = (site.open("v"), Medium::of(&site.dir, "pv-0.img"));
    let found = scrub::scrub(&site.pool);
    assert_eq!((found.damaged, found.verified), (BLOCK, 15 * BLOCK), "a filler is not verified");
    medium.flip(place + 100);
    assert!(read_range(&v, 5 * BLOCK, SECTOR).is_err());
    medium.flip(place + 100);
    scrub::scrub(&site.pool);
    assert!(read_range(&v, 5 * BLOCK + SECTOR, SECTOR).is_err(), "a filler is served");
}

/// A physical volume that does not answer keeps the scrub from no other.
#[test]
fn a_scrub_of_a_physical_volume_that_is_away() {
    let armed = Arc::new(AtomicBool::new(false));
    let a = armed.clone();
    let fail = move |op: &Op<'_>| {
        let hit = a.load(SeqCst) && op.name.starts_with("pv-0") && matches!(&op.act, Act::Read(_));
        hit.then(|| io::Error::from_raw_os_error(6))
    };
    let site = builder(16).over(|dir| FaultyDir::new(dir, fail));
    enable(&site.pool);
    put(&site.volume("v", MIB, CHUNK), 0..16, 1);
    site.idle();
    armed.store(true, SeqCst);
    let found = scrub::scrub(&site.pool);
    assert_eq!((found.unreadable, found.verified), (16 * BLOCK, 0));
    armed.store(false, SeqCst);
    assert_eq!(scrub::scrub(&site.pool).verified, 16 * BLOCK);
}

/// A sector of a block can't be read, and the process dies right after it has written another
/// sector of the block. The lost sector must not have become zeros. Before the commit it can be
/// read, if it fails `late`.
#[test]
fn a_kill_beside_a_sector_that_can_not_be_read() {
    for (commits, late) in [(false, false), (true, false), (false, true)] {
        let (armed, killer) = killer();
        let bad: Arc<Mutex<Option<u64>>> = Arc::default();
        let fails = Arc::new(AtomicBool::new(!late));
        let b = bad.clone();
        let fail = move |op: &Op<'_>| {
            let mut bad = b.lock().unwrap();
            match &op.act {
                Act::Read(r)
                    if op.name == "pv-0.img"
                        && bad.is_some_and(|at| r.contains(&at))
                        && fails.load(SeqCst) =>
                {
                    return Some(io::Error::from_raw_os_error(EIO));
                }
                Act::Write(_) if op.name.starts_with("catalog") && bad.is_some() => fails.store(true, SeqCst),
                Act::Write(r) if op.name == "pv-0.img" => *bad = bad.filter(|at| !r.contains(at)),
                _ => {}
            }
            drop(bad);
            killer(op)
        };
        let site = builder(16).options(options()).over(|dir| FaultyDir::new(dir, fail));
        enable(&site.pool);
        let v = site.volume("v", MIB, CHUNK);
        put(&v, 0..16, 1);
        site.idle();
        let place = Medium::of(&site.dir, "pv-0.img").place(5, 1);
        *bad.lock().unwrap() = Some(place + 3 * SECTOR);
        write(&v, 5 * BLOCK, 9, SECTOR);
        armed.store(!commits, SeqCst);
        assert_eq!(site.pool.drain().is_ok(), commits);
        armed.store(false, SeqCst);
        drop(v);
        let site = site.reopen();
        let v = site.open("v");
        site.idle();
        assert!(read_range(&v, 5 * BLOCK, SECTOR).unwrap().iter().all(|b| *b == 9));
        assert!(read_range(&v, 5 * BLOCK + 3 * SECTOR, SECTOR).is_err(), "a lost sector is served");
        let rest = unique(5, 1)[4 * SECTOR as usize..].to_vec();
        assert!(read_range(&v, 5 * BLOCK + 4 * SECTOR, 4 * SECTOR).unwrap() == rest);
        if commits {
            // The rest of the block is verified.
            Medium::of(&site.dir, "pv-0.img").flip(place + 6 * SECTOR);
            assert!(read_range(&v, 5 * BLOCK + 6 * SECTOR, SECTOR).is_err(), "rot is served");
        }
        // A write heals it.
        put(&v, 5..6, 2);
        site.idle();
        expect(&v, 5..6, 2, &[]);
    }
}
