//! Tests of rot in the catalog's file. Rot is reported, is never served, and fails only operations
//! that need the block.

use super::blocks::{BLOCK, offset_of};
use super::features::{CATALOG_SUMS, PLACEMENTS};
use super::page::{Entry, Slot};
use super::*;
use crate::disk::MemDir;
use crate::ids::{Chunk, Epoch};
use crate::settings::Placement;
use crate::testing::{Act, FaultyDisk, Op};
use crate::world::{Rng, SplitMix};
use std::collections::BTreeMap;
use uuid::Uuid;

const BRANCH: BranchId = BranchId(5);

type Pages = BTreeMap<u64, MapPage>;

/// Makes a page with entries of its own.
fn page(number: u64, stamp: u64, entries: usize) -> MapPage {
    let mut page = MapPage::default();
    for at in 0..entries {
        let slot = Slot::new(0, (number * 256 + at as u64 + 1) * 4096);
        page.set(at, Entry { slot, born: Epoch((stamp + 1) as u32) });
    }
    page
}

fn put(catalog: &Catalog, pages: impl Iterator<Item = (u64, MapPage)>) -> Result<()> {
    changed(catalog, pages)?.commit()
}

/// Returns a transaction in which the pages are put.
fn changed(catalog: &Catalog, pages: impl Iterator<Item = (u64, MapPage)>) -> Result<Txn<'_>> {
    let mut txn = catalog.begin()?;
    let pages: Vec<(PageKey, MapPage)> =
        pages.map(|(number, page)| (PageKey::new(BRANCH, number), page)).collect();
    txn.put_pages(pages.iter().map(|(key, page)| (*key, page)))?;
    Ok(txn)
}

fn superblock() -> Superblock {
    Superblock {
        pool: Uuid::from_bytes([1; 16]),
        extent_size: 64 << 10,
        journal_size: 4 << 20,
        segment_size: 1 << 20,
        atomic_unit: 4096,
        placement: Placement::Anywhere,
        next_id: 9,
        next_pv: 1,
        features: CATALOG_SUMS,
    }
}

/// Makes a catalog with this number of pages, and as many extents.
fn catalog(pages: u64, entries: usize, cache: usize) -> (MemDir, Catalog, Pages) {
    let dir = MemDir::new();
    Catalog::create(&dir, &superblock(), &[], &StampRecord::default()).unwrap();
    Catalog::finish(&dir).unwrap();
    let catalog = Catalog::open(&dir, cache).unwrap();
    let model: Pages = (0..pages).map(|number| (number, page(number, 0, entries))).collect();
    for first in (0..pages).step_by(2000) {
        let part = model.range(first..first + 2000);
        put(&catalog, part.map(|(number, page)| (*number, page.clone()))).unwrap();
        let mut txn = catalog.begin().unwrap();
        for extent in first..(first + 2000).min(pages) {
            let words = [extent | 1 << 40; 1];
            txn.put_extent(0, extent as u32, &ExtentRecord { slot_log2: 12, used: 1 }, &words).unwrap();
        }
        txn.commit().unwrap();
    }
    (dir, catalog, model)
}

fn file(dir: &MemDir) -> Arc<dyn Disk> {
    dir.open(FILE, OpenMode::Existing).unwrap()
}

fn bytes(dir: &MemDir) -> Vec<u8> {
    let disk = file(dir);
    let mut bytes = vec![0; disk.len().unwrap() as usize];
    disk.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn flip(dir: &MemDir, at: u64, bit: u8) {
    let disk = file(dir);
    let mut byte = [0];
    disk.read_at(&mut byte, at).unwrap();
    disk.write_at(&[byte[0] ^ 1 << (bit % 8)], at).unwrap();
}

/// Returns the value of a result, or `None` if the result is damage.
fn sound<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) if error.kind() == ErrorKind::Corrupt => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// Checks that everything that can be read is right. Returns the pages that can't be read, and
/// whether the extents can't be read.
fn compare(catalog: &Catalog, model: &Pages) -> (Vec<u64>, bool) {
    compare_with(catalog, model, model.len() as u32)
}

fn compare_with(catalog: &Catalog, model: &Pages, extents: u32) -> (Vec<u64>, bool) {
    let mut unread = Vec::new();
    for (number, page) in model {
        match sound(catalog.page(PageKey::new(BRANCH, *number))) {
            Some(found) => assert_eq!(found.as_ref(), Some(page), "page {number}"),
            None => unread.push(*number),
        }
    }
    let mut numbers = Vec::new();
    let visit = &mut |key: PageKey, page: Result<MapPage>| {
        if let Some(page) = sound(page) {
            assert_eq!(Some(&page), model.get(&key.page));
        }
        numbers.push(key.page);
        Ok(())
    };
    if sound(catalog.visit_pages(PageKey::new(BranchId(0), 0), usize::MAX, visit)).is_some() {
        assert_eq!(numbers, model.keys().copied().collect::<Vec<_>>(), "an absent page");
    }
    let mut seen = 0;
    let all = sound(catalog.extents(&mut |_, _, _| seen += 1));
    assert!(all.is_none() || seen == extents, "{seen} extents");
    for extent in (0..extents).step_by(7) {
        if let Some(words) = sound(catalog.bitmap(0, extent, 1)) {
            assert_eq!(words, [u64::from(extent) | 1 << 40], "bitmap {extent}");
        }
    }
    (unread, all.is_none())
}

/// Returns the places of `key` in the file.
fn places(dir: &MemDir, key: &[u8]) -> Vec<u64> {
    let bytes = bytes(dir);
    let blocks = bytes.chunks(BLOCK).enumerate();
    let found = blocks.flat_map(|(block, content)| {
        content.windows(key.len()).enumerate().filter(|(_, w)| *w == key).map(move |(at, _)| (block, at))
    });
    found.map(|(block, at)| (block * BLOCK + at) as u64).collect()
}

#[test]
fn a_bit_of_a_key_of_a_large_catalog_hides_no_row() {
    let (dir, catalog, mut model) = catalog(17_500, 256, 1 << 20);
    assert!(catalog.file_bytes().unwrap() > 64 << 20);
    drop(catalog);
    let key = |number: u64| [BRANCH.0.to_le_bytes(), number.to_le_bytes()].concat();
    for at in places(&dir, &key(4711)) {
        flip(&dir, at + 8, 3);
    }
    // (PV, extent) of an extent, with the next one behind it.
    for at in places(&dir, &[0, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0, 101, 0, 0, 0]) {
        flip(&dir, at + 4, 1);
    }
    let catalog = Catalog::open(&dir, 1 << 20).unwrap();
    let error = catalog.page(PageKey::new(BRANCH, 4711)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains(" of the catalog does not verify"), "{error}");
    let (unread, extents) = compare(&catalog, &model);
    assert!(unread.contains(&4711) && unread.len() < 500, "{} pages can't be read", unread.len());
    assert!(extents, "the extents are said to be complete");
    assert!(!catalog.damaged_blocks().is_empty());
    assert!(catalog.verify_whole().is_err());
    // The rest goes on, also in what was in the store's cache as damaged.
    let new = page(15_000, 1, 256);
    put(&catalog, [(15_000, new.clone())].into_iter()).unwrap();
    model.insert(15_000, new);
    assert_eq!(
        put(&catalog, [(4711, page(4711, 1, 256))].into_iter()).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    assert_eq!(compare(&catalog, &model).0, unread);
    drop(catalog);
    let catalog = Catalog::open(&dir, 1 << 20).unwrap();
    assert_eq!(compare(&catalog, &model).0, unread);
}

#[test]
fn a_thousand_flips_at_rest() {
    let (dir, catalog, model) = catalog(300, 40, 64 << 10);
    drop(catalog);
    let len = file(&dir).len().unwrap();
    let rng = SplitMix::new(7);
    let (mut refused, mut reported) = (0, 0);
    for n in 0..1000 {
        let at = len * n / 1000 + rng.next() % (len / 1000);
        let bit = rng.next() as u8;
        flip(&dir, at, bit);
        match Catalog::open_untouched(&dir, 64 << 10) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
                refused += 1;
            }
            Ok(catalog) => {
                let (unread, extents) = compare(&catalog, &model);
                let damaged = !unread.is_empty() || extents;
                assert!(!damaged || !catalog.damaged_blocks().is_empty());
                reported += u32::from(damaged);
            }
        }
        flip(&dir, at, bit);
    }
    assert!(refused > 0 && reported > 100, "{refused} refused, {reported} reported");
    let catalog = Catalog::open(&dir, 64 << 10).unwrap();
    assert_eq!(compare(&catalog, &model), (Vec::new(), false));
}

/// Rot in an open catalog, with the smallest possible cache of the store. What can be read is
/// right, and so is what can be changed. What can't be changed is as it was.
#[test]
fn a_thousand_flips_in_use() {
    let (dir, mut catalog, mut model) = catalog(300, 40, 0);
    let rng = SplitMix::new(8);
    let (mut unread, mut unwritten, mut uncommitted, mut written) = (0, 0, 0, 0);
    for n in 0..1000 {
        let len = file(&dir).len().unwrap();
        let at = len * n / 1000 + rng.next() % (len / 1000);
        let (block, bit) = (at / BLOCK as u64 * BLOCK as u64, rng.next() as u8);
        flip(&dir, at, bit);
        let content = |dir: &MemDir| bytes(dir)[block as usize..][..BLOCK].to_vec();
        let was = content(&dir);
        if n % 4 == 0 {
            unread += u32::from(!compare_with(&catalog, &model, 300).0.is_empty());
        }
        // Pages go and come, so that the store merges and splits its own.
        let first = rng.next() % 290;
        let entries = if rng.next() % 2 == 0 { 0 } else { 40 };
        let new: Vec<_> = (first..first + 10).map(|number| (number, page(number, n, entries))).collect();
        let failed = match sound(changed(&catalog, new.iter().cloned())) {
            Some(txn) => {
                let committed = sound(txn.commit()).is_some();
                if committed {
                    written += 1;
                    model.retain(|number, _| !(first..first + 10).contains(number));
                    model.extend(new.into_iter().filter(|(_, page)| !page.is_empty()));
                }
                !committed
            }
            None => {
                unwritten += 1;
                false
            }
        };
        if content(&dir) == was {
            flip(&dir, at, bit);
        }
        if failed {
            // A pool is poisoned then, and opened again.
            uncommitted += 1;
            drop(catalog);
            catalog = Catalog::open(&dir, 0).unwrap();
        }
    }
    let counts = format!("{unread} {unwritten} {uncommitted} {written}");
    assert!(unread > 20 && unwritten > 20 && uncommitted < 200 && written > 500, "{counts}");
    put(&catalog, (0..300).map(|number| (number, page(number, 0, 40)))).unwrap();
    let model: Pages = (0..300).map(|number| (number, page(number, 0, 40))).collect();
    assert_eq!(compare(&catalog, &model), (Vec::new(), false));
    catalog.verify_whole().unwrap();
}

/// Three blocks that are wrong: a block in the place of another one, one that lost its last write,
/// and one that can't be read at all.
#[test]
fn blocks_that_are_sound_in_themselves_but_wrong() {
    let (dir, catalog, model) = catalog(300, 40, 0);
    let before = bytes(&dir);
    let mut newer = model.clone();
    for number in 0..300 {
        newer.insert(number, page(number, 1, 40));
    }
    put(&catalog, newer.iter().map(|(number, page)| (*number, page.clone()))).unwrap();
    put(&catalog, newer.iter().map(|(number, page)| (*number, page.clone()))).unwrap();
    let after = bytes(&dir);
    let disk = file(&dir);
    let (mut misplaced, mut lost) = (0, 0);
    for block in 1..blocks_of(&after) - 1 {
        let at = offset_of(block) as usize;
        let next = offset_of(block + 1) as usize;
        disk.write_at(&after[next..next + BLOCK], at as u64).unwrap();
        misplaced += compare(&catalog, &newer).0.len();
        if before.len() >= at + BLOCK && before[at..at + BLOCK] != after[at..at + BLOCK] {
            disk.write_at(&before[at..at + BLOCK], at as u64).unwrap();
            lost += compare(&catalog, &newer).0.len();
        }
        disk.write_at(&after[at..at + BLOCK], at as u64).unwrap();
    }
    assert!(misplaced > 200 && lost > 0, "{misplaced} {lost}");
    assert_eq!(compare(&catalog, &newer), (Vec::new(), false));
}

fn blocks_of(bytes: &[u8]) -> u64 {
    (1..).take_while(|block| offset_of(*block) < bytes.len() as u64).count() as u64
}

/// The head has two copies. Rot of one of them has no effect.
#[test]
fn a_copy_of_the_head_may_rot() {
    let (dir, catalog, model) = catalog(10, 4, 0);
    drop(catalog);
    for at in (0..1024).step_by(5) {
        flip(&dir, at, at as u8);
        let catalog = Catalog::open_untouched(&dir, 0).unwrap();
        assert_eq!(compare(&catalog, &model), (Vec::new(), false), "byte {at}");
        flip(&dir, at, at as u8);
    }
    flip(&dir, 100, 0);
    flip(&dir, 700, 0);
    let error = Catalog::open(&dir, 0).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("block 0"), "{error}");
}

/// Makes a catalog of an older build: the store's pages without sums.
fn plain(pages: u64) -> (MemDir, Pages) {
    let (dir, catalog, model) = catalog(pages, 40, 1 << 20);
    drop(catalog);
    let len = adopt::below(&file(&dir)).unwrap().bytes().unwrap();
    let old = MemDir::new();
    let disk = old.open(FILE, OpenMode::CreateNew).unwrap();
    let all = bytes(&dir);
    for block in 0..len / BLOCK as u64 {
        let at = offset_of(block) as usize;
        let content = if block == 0 { &all[16..336] } else { &all[at..at + BLOCK] };
        disk.write_at(content, block * BLOCK as u64).unwrap();
    }
    disk.set_len(len).unwrap();
    let catalog = Catalog::on(disk.clone(), BlockBackend::Plain(disk), 1 << 20).unwrap();
    let mut txn = catalog.begin().unwrap();
    txn.put_superblock(&Superblock { features: 0, ..superblock() }).unwrap();
    txn.commit().unwrap();
    (old, model)
}

#[test]
fn an_old_catalog_gets_sums() {
    let (dir, model) = plain(2000);
    let before = bytes(&dir);
    let catalog = Catalog::open_untouched(&dir, 1 << 20).unwrap();
    assert_eq!(compare(&catalog, &model), (Vec::new(), false));
    assert_eq!(catalog.superblock().unwrap().features, 0);
    drop(catalog);
    assert!(bytes(&dir) == before, "a look changes nothing");
    // The rest of an adoption that a crash interrupted is no obstacle.
    dir.open("catalog.redb.adopted", OpenMode::CreateNew).unwrap().write_at(b"half", 0).unwrap();
    for _ in 0..2 {
        let catalog = Catalog::open(&dir, 1 << 20).unwrap();
        assert_eq!(compare(&catalog, &model), (Vec::new(), false));
        assert_eq!(catalog.superblock().unwrap(), superblock());
        catalog.verify_whole().unwrap();
        assert!(catalog.scrub(0, u64::MAX).suspects.is_empty());
    }
    assert_eq!(dir.list().unwrap(), [FILE]);
    assert!(bytes(&dir).starts_with(b"HCSUMS"));
    let plain = redb::Database::builder().create_with_backend(BlockBackend::Plain(file(&dir)));
    assert!(plain.is_err(), "an older build does not open it");
}

#[test]
fn a_damaged_old_catalog_is_not_adopted() {
    let (dir, _) = plain(2000);
    let key = [BRANCH.0.to_le_bytes(), 1234u64.to_le_bytes()].concat();
    for at in places(&dir, &key) {
        flip(&dir, at + 8, 3);
    }
    let before = bytes(&dir);
    for _ in 0..2 {
        assert_eq!(Catalog::open(&dir, 1 << 20).err().unwrap().kind(), ErrorKind::Corrupt);
        assert_eq!(Catalog::open_untouched(&dir, 1 << 20).err().unwrap().kind(), ErrorKind::Corrupt);
    }
    assert!(bytes(&dir) == before);
    assert_eq!(dir.list().unwrap(), [FILE]);
}

#[test]
fn a_placement_that_older_builds_do_not_know_has_a_row() {
    let (dir, catalog, _) = catalog(10, 4, 1 << 20);
    let put = |catalog: &Catalog, placement| {
        let mut txn = catalog.begin().unwrap();
        txn.change_superblock(|s| (s.placement, s.features) = (placement, s.features | PLACEMENTS)).unwrap();
        assert_eq!(txn.superblock().unwrap().placement, placement);
        // A change of something else leaves it.
        txn.change_superblock(|s| s.next_id += 1).unwrap();
        txn.commit().unwrap();
    };
    put(&catalog, Placement::Share);
    drop(catalog);
    let catalog = Catalog::open(&dir, 1 << 20).unwrap();
    assert_eq!(catalog.superblock().unwrap().placement, Placement::Share);
    put(&catalog, Placement::Contiguous);
    assert_eq!(catalog.superblock().unwrap().placement, Placement::Contiguous);
}

#[test]
fn a_layout_or_a_feature_of_a_later_build_is_refused() {
    let (dir, catalog, _) = catalog(10, 4, 1 << 20);
    let mut txn = catalog.begin().unwrap();
    txn.put_superblock(&Superblock { features: CATALOG_SUMS | 1 << 50, ..superblock() }).unwrap();
    txn.commit().unwrap();
    drop(catalog);
    for catalog in [Catalog::open(&dir, 1 << 20), Catalog::open_untouched(&dir, 1 << 20)] {
        let error = catalog.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("(features 0x4000000000000)"), "{error}");
    }
    let disk = file(&dir);
    let mut copy = [0; 512];
    disk.read_at(&mut copy, 0).unwrap();
    copy[8] = 2;
    let crc = crate::codec::crc32c(&copy[..508]).to_le_bytes();
    copy[508..].copy_from_slice(&crc);
    disk.write_at(&copy, 0).unwrap();
    let error = Catalog::open(&dir, 1 << 20).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("version 2"), "{error}");
}

/// A block that a crash left torn is damage only when the last commit needs it.
#[test]
fn a_scrub_tells_damage_from_what_a_crash_left() {
    let (dir, catalog, model) = catalog(300, 40, 0);
    for stamp in 1..4 {
        put(&catalog, (0..300).map(|number| (number, page(number, stamp, 40)))).unwrap();
    }
    put(&catalog, (0..300).map(|number| (number, page(number, 0, 40)))).unwrap();
    drop(catalog);
    let mut catalog = Catalog::open(&dir, 0).unwrap();
    // Flip every block, one after another: those that no page is in are forgotten.
    let (mut needed, mut free) = (0, 0);
    for block in (1..catalog.blocks()).step_by(3) {
        let at = offset_of(block) + 2000;
        flip(&dir, at, 0);
        let suspects: std::collections::BTreeSet<u64> =
            catalog.scrub(0, u64::MAX).suspects.into_iter().collect();
        assert_eq!(suspects, [block].into());
        catalog.judge(&suspects).unwrap();
        if catalog.damaged_blocks().is_empty() {
            free += 1;
        } else {
            flip(&dir, at, 0);
            drop(catalog);
            catalog = Catalog::open(&dir, 0).unwrap();
            needed += 1;
        }
        assert!(catalog.scrub(0, u64::MAX).suspects.is_empty(), "block {block}");
        assert_eq!(compare(&catalog, &model), (Vec::new(), false), "block {block}");
    }
    assert!(needed > 20 && free > 20, "{needed} needed, {free} free");
    put(&catalog, (0..300).map(|number| (number, page(number, 5, 40)))).unwrap();
    catalog.verify_whole().unwrap();
}

/// A poisoned pool reads the last durable state, and that state is verified too.
#[test]
fn the_state_that_a_failed_commit_leaves_is_verified() {
    let (dir, catalog, model) = catalog(2000, 40, 0);
    drop(catalog);
    let fails = Arc::new(AtomicBool::new(false));
    let failing = fails.clone();
    let disk: Arc<dyn Disk> = FaultyDisk::new(file(&dir), move |op: &Op<'_>| {
        let fails = matches!(op.act, Act::Sync(_)) && failing.load(Ordering::Relaxed);
        fails.then(|| std::io::Error::other("the device is gone"))
    });
    let below = adopt::below(&disk).unwrap();
    let catalog = Catalog::on(disk, below, 0).unwrap();
    fails.store(true, Ordering::Relaxed);
    let new = (0..2000).map(|number| (number, page(number, 1, 40)));
    assert_eq!(put(&catalog, new).unwrap_err().kind(), ErrorKind::Io);
    let key = [BRANCH.0.to_le_bytes(), 1234u64.to_le_bytes()].concat();
    for at in places(&dir, &key) {
        flip(&dir, at + 8, 3);
    }
    let (unread, _) = compare(&catalog, &model);
    assert!(unread.contains(&1234) && unread.len() < 500, "{} pages can't be read", unread.len());
    assert_eq!(catalog.begin().err().unwrap().kind(), ErrorKind::Poisoned);
}

/// Compares the versions that snapshots see with those that a plain search finds. Some chunks have
/// no versions, some a few, and some so many that a query seeks past them.
#[test]
fn a_snapshot_sees_the_versions_of_its_epoch() {
    let (_dir, catalog, _) = catalog(0, 0, 1 << 20);
    let rng = SplitMix::new(7);
    let mut all: BTreeMap<(u64, u32), Version> = BTreeMap::new();
    for chunk in 0..40u64 {
        let most = [0, 0, 1, 3, 30][(rng.next() % 5) as usize];
        for _ in 0..most {
            let last = (rng.next() % 40) as u32 + 1;
            let born = Epoch((rng.next() % u64::from(last)) as u32 + 1);
            let entry = Entry { slot: Slot::new(0, (chunk + 1) * 4096), born };
            let key = VersionKey::new(BRANCH, Chunk(chunk), Epoch(last));
            all.insert((chunk, last), Version { key, entry });
        }
    }
    // Rows of the next branch are behind those of this one.
    let entry = Entry { slot: Slot::new(0, 4096), born: Epoch(1) };
    let other = Version { key: VersionKey::new(BranchId(6), Chunk(1), Epoch(40)), entry };
    let mut txn = catalog.begin().unwrap();
    txn.put_versions(all.values().chain([&other])).unwrap();
    txn.commit().unwrap();
    for epoch in 1..=41 {
        for (first, last) in [(0, 39), (0, 0), (7, 21), (39, 100), (50, 60)] {
            let seen = |chunk: u64| {
                let next = all.range((chunk, epoch)..=(chunk, u32::MAX)).next();
                next.map(|(_, version)| *version).filter(|version| version.entry.born <= Epoch(epoch))
            };
            let plain: Vec<Version> = (first..=last).filter_map(seen).collect();
            let found = catalog.versions_at(BRANCH, Epoch(epoch), (Chunk(first), Chunk(last))).unwrap();
            assert_eq!(found, plain, "epoch {epoch}, chunks {first} to {last}");
        }
    }
}
