//! Tests of the mechanics and of the cache: what single accesses take.

use super::super::drives::Drive;
use super::super::mechanics::{Price, SpinningDisk};
use super::{KNOWN, barracuda, cylinder, drive, is_near, sectors};

/// Time at which no disk of a test is busy any more, in milliseconds.
const LATER: f64 = 10_000.0;

fn drives() -> Vec<Drive> {
    KNOWN.iter().map(|name| drive(name)).chain([barracuda()]).collect()
}

/// The end of a track and the beginning of the next one are apart by the angle of the switch.
#[test]
fn a_sector_follows_the_one_before_it() {
    for drive in drives() {
        let geometry = &drive.geometry;
        let last = geometry.sectors() - 1;
        let starts = (0..200).map(|n| last / 200 * n).chain([last - 2000]);
        for first in starts {
            for sector in first..first + 1999 {
                let end = geometry.passing(sector, sector + 1);
                let (here, next) = (geometry.locate(sector), geometry.locate(sector + 1));
                let at = geometry.turn_to(0.0, &here) + end;
                let wait = geometry.turn_to(at, &next);
                let switch =
                    geometry.continuing(sector + 1, sector + 2) - geometry.passing(sector + 1, sector + 2);
                let turns = (wait - switch) / geometry.revolution();
                assert!(is_near(turns, turns.round()), "{}: sector {sector}", drive.name);
                assert!(next.cylinder == here.cylinder || next.cylinder == here.cylinder + 1);
            }
        }
    }
}

#[test]
fn a_time_of_passing_leads_to_its_sector() {
    for drive in drives() {
        let geometry = &drive.geometry;
        for (from, count) in [(0, 1), (1, 5000), (123_456, 777), (geometry.sectors() - 3000, 3000)] {
            let limit = geometry.sectors();
            let time = geometry.continuing(from, from + count);
            assert_eq!(geometry.reached(from, time, limit), from + count);
            assert_eq!(geometry.reached(from, time, from + 1), from + 1);
            assert_eq!(geometry.reached(from, 0.0, limit), from);
        }
    }
}

#[test]
fn the_cache_answers_what_was_read() {
    let drive = drive("wd400bb");
    let mut disk = SpinningDisk::new(&drive);
    let missed = disk.read(0.0, sectors(1000, 8));
    assert!(!missed.from_cache && missed.total() > 0.0);
    // 8 sectors on an interface of 100 MB/s.
    let answer = Price { transfer: 0.3 + 0.04096, from_cache: true, ..Price::default() };
    let same = |price: Price| is_near(price.total(), answer.total()) && price.from_cache && price.seek == 0.0;
    assert!(same(disk.read(LATER, sectors(1000, 8))));
    // The read-ahead has 96 KiB behind the read.
    assert!(same(disk.read(LATER, sectors(1192, 8))));
    let far = disk.read(LATER, sectors(50_000_000, 8));
    assert!(far.seek > 2.0 && !far.from_cache);
    assert!(same(disk.read(2.0 * LATER, sectors(1000, 8))), "the first segment is still there");
    disk.write(3.0 * LATER, sectors(1004, 1));
    assert!(!disk.read(4.0 * LATER, sectors(1000, 8)).from_cache, "the host wrote a sector of it");
}

/// The interface is faster than the medium. A reader of small requests is slower than the medium,
/// because each request has a command. Then the read-ahead ends now and then, and the head waits.
#[test]
fn a_sequential_reader_of_large_requests_waits_for_no_turn() {
    for drive in drives() {
        let mut disk = SpinningDisk::new(&drive);
        disk.read(0.0, sectors(0, 256));
        for n in 1..1000 {
            let price = disk.read(0.0, sectors(n * 256, 256));
            assert!(price.from_cache && price.seek == 0.0 && price.rotation == 0.0, "{}: {n}", drive.name);
        }
        let small = |n: u64| sectors(n * 16, 16);
        disk.read(0.0, small(0));
        let prices: Vec<Price> = (1..1000).map(|n| disk.read(0.0, small(n))).collect();
        assert!(prices.iter().all(|price| price.from_cache && price.seek == 0.0), "{}", drive.name);
        let waits: f64 = prices.iter().map(|price| price.rotation).sum();
        let total: f64 = prices.iter().map(Price::total).sum();
        assert!(waits < 0.7 * total, "{}: {waits} of {total} ms", drive.name);
    }
}

/// The read-ahead of the drive has ended, so the head waits for the sector behind it.
#[test]
fn a_reader_that_pauses_waits_for_a_turn() {
    let drive = drive("wd400bb");
    let mut disk = SpinningDisk::new(&drive);
    disk.read(0.0, sectors(0, 16));
    let price = disk.read(LATER, sectors(16, 1000));
    assert!(!price.from_cache && price.seek == 0.0, "{price:?}");
    assert!(price.rotation < drive.geometry.revolution(), "{price:?}");
    let expected = drive.command + drive.geometry.passing(16 + 192, 1016);
    assert!(is_near(price.transfer, expected), "{price:?}");
}

#[test]
fn a_write_settles_and_a_write_behind_it_waits_for_a_turn() {
    let drive = drive("wd400bb");
    let there = cylinder(&drive.geometry, 5000);
    let [mut reading, mut disk] = [SpinningDisk::new(&drive), SpinningDisk::new(&drive)];
    let read = reading.read(0.0, sectors(there, 8));
    let write = disk.write(0.0, sectors(there, 8));
    assert!(is_near(write.seek - read.seek, 2.0), "{write:?} {read:?}");
    let next = disk.write(0.0, sectors(there + 8, 8));
    assert!(
        next.seek == 0.0 && is_near(next.rotation, drive.geometry.revolution() - drive.command),
        "{next:?}"
    );
}

#[test]
fn writes_that_touch_are_one_command() {
    let drive = drive("wd400bb");
    let mut disk = SpinningDisk::new(&drive);
    let requests = [sectors(1016, 8), sectors(1000, 16), sectors(1004, 4), sectors(1020, 8)];
    let prices = disk.write_together(0.0, &requests);
    let of_sector = drive.geometry.passing(0, 1);
    assert!(prices[1].rotation > 0.0);
    for (price, passing) in prices.iter().zip([8.0, 16.0, 0.0, 4.0]) {
        let command = if passing == 16.0 { drive.command } else { 0.0 };
        assert!(is_near(price.transfer, command + passing * of_sector), "{prices:?}");
    }
    assert!(is_near(disk.free(), prices.iter().map(Price::total).sum()));
    assert!(disk.write_together(0.0, &[]).is_empty());
}

#[test]
fn writes_that_are_issued_together_are_in_c_look_order() {
    let drive = drive("6y080m0");
    let at = |number| cylinder(&drive.geometry, number);
    let begin = sectors(at(40_000), 8);
    let requests = [5, 90_000, 39_000, 41_000, 60_000].map(|number| sectors(at(number), 8));
    let mut together = SpinningDisk::new(&drive);
    together.write(0.0, begin);
    let prices = together.write_together(0.0, &requests);
    let mut by_hand = SpinningDisk::new(&drive);
    by_hand.write(0.0, begin);
    for n in [3, 4, 1, 0, 2] {
        assert_eq!(by_hand.write(0.0, requests[n]), prices[n], "{n}");
    }
    let mut in_turn = SpinningDisk::new(&drive);
    in_turn.write(0.0, begin);
    for request in requests {
        in_turn.write(0.0, request);
    }
    assert!(in_turn.free() > together.free());
}
