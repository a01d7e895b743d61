//! The wall clock is wrong for a while, in both directions. Nothing expires early, nothing is kept
//! for ever, and times mean the right moments.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::ErrorKind;
use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Compression, Encoding, Moment, Retention};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::{PoolOptions, code};
use hindcast_engine::testing::{KIB, Site, content, write};
use hindcast_engine::world::Clock;

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * SECOND;
const DAY: u64 = 24 * HOUR;
const YEAR: u64 = 365 * DAY;
const SIZE: u64 = 64 * KIB;

/// Makes a volume `v` in the year 2020 that keeps its history for `keep`.
fn site(keep: u64) -> Site {
    let site = Site::new(64);
    site.clock.set(50 * YEAR);
    site.pool.confirm_clock().unwrap();
    drop(site.volume("v", SIZE, 4 * KIB));
    let settings = CdpSettings {
        compression: Compression::None,
        anchors: AnchorPolicy::Every(10),
        retention: Retention { time: Some(keep), bytes: None },
        ..CdpSettings::default()
    };
    site.pool.set_cdp("v", Some(settings)).unwrap();
    site
}

/// Fills the volume with a byte, and returns the LSN.
fn put(site: &Site, byte: u8) -> Lsn {
    write(&site.pool.open_volume("v", false).unwrap(), 0, byte, SIZE);
    site.pool.stats().sequenced_lsn
}

/// Returns the volume's content at a moment.
fn at(site: &Site, moment: &Moment) -> Result<u8, ErrorKind> {
    let view = site.pool.open_moment("v", moment).map_err(|e| e.kind())?;
    let all = content(&view);
    assert!(all.iter().all(|b| *b == all[0]));
    Ok(all[0])
}

fn ago(site: &Site, ns: u64) -> Result<u8, ErrorKind> {
    at(site, &Moment::PoolTime(site.pool.ago(ns)))
}

fn go(site: &Site, ns: u64) {
    site.clock.advance(ns);
    site.idle();
}

/// Writes once an hour, and returns the LSNs.
fn hours(site: &Site, count: u8) -> Vec<Lsn> {
    let hour = |n| {
        go(site, HOUR);
        put(site, n)
    };
    (1..=count).map(hour).collect()
}

fn set(site: &Site, wall: u64) {
    site.clock.set(wall);
    site.idle();
}

fn warns(site: &Site, code: &str) -> bool {
    site.pool.health().has(code)
}

#[test]
fn a_jump_forward_expires_nothing_at_once() {
    let site = site(DAY);
    let lsns = hours(&site, 20);
    let right = site.clock.now();
    set(&site, right + YEAR);
    assert!(warns(&site, code::CLOCK_JUMPED));
    put(&site, 99);
    go(&site, SECOND);
    for (n, lsn) in (1..).zip(&lsns) {
        assert_eq!(at(&site, &Moment::Lsn(*lsn)), Ok(n));
    }
    // The clock is right again: writes from in between have their age, and everything expires in
    // time.
    set(&site, right + SECOND);
    assert!(!warns(&site, code::CLOCK_JUMPED) && warns(&site, code::TIMES_AHEAD));
    for (n, lsn) in (1..).zip(&lsns) {
        assert_eq!(at(&site, &Moment::Lsn(*lsn)), Ok(n));
    }
    hours(&site, 30);
    for lsn in &lsns {
        assert_eq!(at(&site, &Moment::Lsn(*lsn)), Err(ErrorKind::NotFound));
    }
    go(&site, HOUR);
    assert!(!warns(&site, code::TIMES_AHEAD), "what was written ahead of the clock is gone, too");
}

#[test]
fn a_jump_suspends_retention_until_it_is_confirmed() {
    let site = site(DAY);
    let first = hours(&site, 5)[0];
    set(&site, site.clock.now() - YEAR);
    hours(&site, 48);
    assert_eq!(at(&site, &Moment::Lsn(first)), Ok(1), "nothing is forgotten while the clock is in doubt");
    assert!(warns(&site, code::CLOCK_JUMPED) && warns(&site, code::TIMES_AHEAD));
    site.pool.confirm_clock().unwrap();
    go(&site, SECOND);
    assert_eq!(at(&site, &Moment::Lsn(first)), Err(ErrorKind::NotFound));
    assert!(!warns(&site, code::CLOCK_JUMPED));
    assert!(site.pool.cdp("v").unwrap().window <= DAY + 2 * HOUR);
    let site = site.reopen();
    go(&site, SECOND);
    assert!(!warns(&site, code::CLOCK_JUMPED), "the pool remembers that it was confirmed");
}

#[test]
fn so_long_ago_is_by_true_time() {
    let site = site(10 * DAY);
    put(&site, b'A');
    go(&site, 10 * SECOND);
    put(&site, b'B');
    let right = site.clock.now();
    set(&site, right + 10 * YEAR);
    put(&site, b'C');
    go(&site, 10 * SECOND);
    assert_eq!((ago(&site, 15 * SECOND), ago(&site, 5 * SECOND)), (Ok(b'A'), Ok(b'C')));
    set(&site, right + 10 * SECOND);
    put(&site, b'D');
    go(&site, 10 * SECOND);
    put(&site, b'E');
    go(&site, SECOND);
    assert_eq!(ago(&site, 5 * SECOND), Ok(b'D'));
    assert_eq!((ago(&site, SECOND / 2), ago(&site, 15 * SECOND)), (Ok(b'E'), Ok(b'C')));
    let site = site.reopen();
    go(&site, SECOND);
    assert_eq!(ago(&site, 6 * SECOND), Ok(b'D'), "also after a restart");
    assert_eq!(ago(&site, 100 * YEAR), Err(ErrorKind::NotFound));
}

#[test]
fn times_are_those_of_the_newest_stretch_that_has_them() {
    let site = site(10 * DAY);
    let right = site.clock.now();
    go(&site, 10 * SECOND);
    let a = put(&site, b'A'); // at 10 s
    go(&site, 100 * SECOND);
    put(&site, b'B'); // at 110 s
    site.pool.mark("v", "b").unwrap();
    set(&site, right + 5 * SECOND);
    go(&site, 15 * SECOND);
    put(&site, b'C'); // at 20 s
    site.pool.open_volume("v", false).unwrap().flush().unwrap();
    go(&site, 15 * SECOND);
    let time = |seconds: u64| at(&site, &Moment::Time(right + seconds * SECOND));
    assert_eq!(time(25), Ok(b'C'));
    assert_eq!(time(15), Ok(b'B'), "the newest time that the clock said this");
    assert_eq!(at(&site, &Moment::Lsn(a)), Ok(b'A'), "the other one by its number");
    assert_eq!(time(50), Ok(b'A'), "said only before the clock was put back");
    assert_eq!(time(200), Err(ErrorKind::Invalid), "yet to come");
    assert_eq!(at(&site, &Moment::FlushBefore(right + 30 * SECOND)), Ok(b'C'));
    // All reported times are those of the clock.
    let history = site.pool.history("v", 4).unwrap();
    let [change] = history.clock[..] else { panic!("{:?}", history.clock) };
    let second = |time: u64| (time - right) / SECOND;
    assert_eq!((second(change.before), second(change.after)), (110, 5));
    assert_eq!(second(history.marks[0].time), 110);
    assert_eq!(second(history.flushes.last().unwrap().time), 20);
    let changes = site.pool.changes("v", 0..1, Lsn::ZERO..=Lsn::MAX, 9).unwrap();
    let times: Vec<u64> = changes.iter().map(|c| second(c.time)).collect();
    assert_eq!(times, [10, 110, 20]);
    let resolved = site.pool.resolve("v", &Moment::Time(right + 25 * SECOND)).unwrap();
    assert_eq!(second(resolved.time), 20);
    // A restart keeps all of that.
    let site = site.reopen();
    assert_eq!(site.pool.history("v", 4).unwrap().clock, [change]);
    assert_eq!(at(&site, &Moment::Time(right + 50 * SECOND)), Ok(b'A'));
}

#[test]
fn anchors_by_time_come_whatever_the_clock_says() {
    for encoding in [Encoding::Parity, Encoding::Redo] {
        let site = site(DAY);
        let anchors = AnchorPolicy::Interval(60 * SECOND);
        let retention = Retention { time: Some(HOUR), bytes: None };
        let settings = CdpSettings { encoding, anchors, retention, ..CdpSettings::default() };
        site.pool.set_cdp("v", Some(settings)).unwrap();
        set(&site, site.clock.now() - YEAR);
        for n in 0..20 {
            put(&site, n);
            go(&site, 61 * SECOND);
        }
        let taken = site.pool.cdp("v").unwrap().anchors;
        assert!((20..=24).contains(&taken), "{taken} anchors");
    }
}

/// The process died before a commit stored the time to which the clock was set. The next start
/// detects it.
#[test]
fn a_restart_finds_a_jump() {
    for ahead in [true, false] {
        let site = site(DAY);
        let first = hours(&site, 5)[0];
        let now = site.clock.now();
        site.clock.set(if ahead { now + YEAR } else { now - YEAR });
        let site = site.reopen();
        site.idle();
        assert!(warns(&site, code::CLOCK_JUMPED));
        assert_eq!(at(&site, &Moment::Lsn(first)), Ok(1));
        assert_eq!(ago(&site, HOUR - SECOND), Ok(4));
        let site = site.reopen();
        site.clock.set(now);
        go(&site, SECOND);
        assert!(!warns(&site, code::CLOCK_JUMPED), "healed");
    }
}

/// The machine was off for a day: history older than a day expires, after a time service could set
/// the clock.
#[test]
fn time_without_power_is_age() {
    let site = site(DAY);
    site.clock.boot_after(0);
    let site = site.reopen();
    let first = hours(&site, 5)[0];
    site.pool.close().unwrap();
    site.clock.boot_after(DAY);
    let site = site.reopen_with(PoolOptions::default());
    site.idle();
    assert_eq!(at(&site, &Moment::Lsn(first)), Ok(1));
    go(&site, 601 * SECOND);
    put(&site, 9);
    go(&site, SECOND);
    assert_eq!(at(&site, &Moment::Lsn(first)), Err(ErrorKind::NotFound));
    assert!(!warns(&site, code::CLOCK_JUMPED));
}

/// Background work that waits for a time uses the monotonic clock.
#[test]
fn background_work_waits_for_no_wall_clock() {
    let site = site(DAY);
    put(&site, 1);
    site.pool.open_volume("v", false).unwrap().flush().unwrap();
    site.clock.set(site.clock.now() - YEAR);
    site.clock.advance(2 * SECOND);
    site.idle();
    // The flush point is in the catalog: a kill does not lose it.
    let site = site.reopen();
    assert_eq!(at(&site, &Moment::FlushUpTo(Lsn(u64::MAX - 1))), Err(ErrorKind::Invalid));
    assert_eq!(site.pool.history("v", 0).unwrap().flushes.len(), 1);
}
