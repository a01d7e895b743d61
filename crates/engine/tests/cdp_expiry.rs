//! Expiry of histories that are not needed any more: after CDP was switched off, after rollbacks,
//! and where something rests on them.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::ErrorKind;
use hindcast_engine::cdp::{AnchorPolicy, CdpInfo, CdpSettings, Compression, Encoding, Moment, Retention};
use hindcast_engine::disk::{Dir, OpenMode};
use hindcast_engine::ids::{Lsn, Stamp};
use hindcast_engine::pool::PoolOptions;
use hindcast_engine::testing::{KIB, MIB, Site, content, write};

const SIZE: u64 = 256 * KIB;
const CHUNK: u64 = 4 * KIB;
const SECOND: u64 = 1_000_000_000;

/// Settings with a retention of one second.
fn settings() -> CdpSettings {
    CdpSettings {
        compression: Compression::None,
        anchors: AnchorPolicy::Every(10),
        retention: Retention { time: Some(SECOND), bytes: None },
        ..CdpSettings::default()
    }
}

/// Makes a pool with a volume `v` of zeros.
fn site() -> Site {
    let site = Site::new(64);
    site.clock.advance(SECOND);
    drop(site.volume("v", SIZE, CHUNK));
    site
}

/// Overwrites the whole volume, chunk by chunk, with `byte`. Returns the LSN of the last write.
fn fill(site: &Site, byte: u8) -> Lsn {
    let volume = site.pool.open_volume("v", false).unwrap();
    for chunk in 0..SIZE / CHUNK {
        site.clock.advance(1000);
        write(&volume, chunk * CHUNK, byte, CHUNK);
    }
    site.pool.stats().sequenced_lsn
}

fn shows(site: &Site, byte: u8) -> bool {
    content(&site.pool.open_volume("v", true).unwrap()).iter().all(|b| *b == byte)
}

fn moment(site: &Site, moment: Moment) -> Result<u8, ErrorKind> {
    let view = site.pool.open_moment("v", &moment).map_err(|e| e.kind())?;
    let all = content(&view);
    assert!(all.iter().all(|b| *b == all[0]));
    Ok(all[0])
}

/// Lets some seconds pass without a write.
fn pass(site: &Site) {
    site.idle();
    for _ in 0..5 {
        site.clock.advance(SECOND);
        site.idle();
    }
}

fn info(site: &Site) -> CdpInfo {
    site.pool.cdp("v").unwrap()
}

/// Checks that nothing of the history is left, and that the volume has no slots but those that it
/// shows.
fn assert_all_gone(site: &Site) {
    let left = info(site);
    assert_eq!((left.anchors, left.segments, left.stored, left.from), (0, 0, 0, None), "{left:?}");
    let files = site.dir.list().unwrap();
    assert!(!files.iter().any(|name| name.starts_with("cdp-")), "{files:?}");
    assert!(site.pool.history("v", 10).unwrap().spans.is_empty());
    let used = site.pool.info().used;
    assert!(used <= SIZE, "{used} bytes are used, the volume has {SIZE}");
}

/// Checks that the whole history expires after CDP was switched off, and that the volume stays as
/// it was.
fn assert_ends(site: Site, byte: u8) {
    site.pool.set_cdp("v", None).unwrap();
    pass(&site);
    assert_all_gone(&site);
    assert!(shows(&site, byte));
    site.reopen();
}

#[test]
fn after_cdp_went_off_history_expires_as_a_whole() {
    let site = site();
    site.pool.set_cdp("v", Some(settings())).unwrap();
    let lsn = fill(&site, 1);
    fill(&site, 2);
    site.pool.set_cdp("v", None).unwrap();
    fill(&site, 3);
    site.idle();
    assert_eq!(moment(&site, Moment::Lsn(lsn)), Ok(1), "what was kept stays as long as retention says");
    // A moment that is open for reading stays longer.
    let view = site.pool.open_moment("v", &Moment::Lsn(lsn)).unwrap();
    pass(&site);
    assert!(info(&site).stored > 0 && content(&view).iter().all(|b| *b == 1));
    drop(view);
    pass(&site);
    assert_all_gone(&site);
    assert_eq!(moment(&site, Moment::Lsn(lsn)), Err(ErrorKind::NotFound));
    // CDP can begin again.
    let site = site.reopen();
    site.pool.set_cdp("v", Some(settings())).unwrap();
    let lsn = fill(&site, 4);
    fill(&site, 5);
    assert_eq!(moment(&site, Moment::Lsn(lsn)), Ok(4));
    let site = site.reopen();
    assert_eq!(moment(&site, Moment::Lsn(lsn)), Ok(4));
    assert_ends(site, 5);
}

/// The branch that the rollback left has two stretches.
#[test]
fn off_and_on_again_then_rolled_back() {
    let site = site();
    site.pool.set_cdp("v", Some(settings())).unwrap();
    fill(&site, 1);
    site.pool.set_cdp("v", None).unwrap();
    fill(&site, 2);
    site.pool.set_cdp("v", Some(settings())).unwrap();
    fill(&site, 3);
    site.pool.create_snapshots(&[("v", "s")]).unwrap();
    let left = site.pool.volume("v").unwrap().branch;
    site.pool.roll_back("v", "s", "undo", false).unwrap();
    let since = site.pool.stats().sequenced_lsn;
    fill(&site, 4);
    assert_eq!(site.pool.history("v", 1).unwrap().spans.len(), 3);
    pass(&site);
    let lsn = fill(&site, 5);
    pass(&site);
    let from = info(&site).from.unwrap().lsn;
    assert!(from > since, "{from} {since}");
    assert!(site.pool.history("v", 1).unwrap().spans.iter().all(|span| span.branch != left));
    assert_eq!(moment(&site, Moment::Lsn(lsn)), Ok(5));
    site.pool.delete_snapshots("v", &["s", "undo"]).unwrap();
    site.pool.set_cdp("v", None).unwrap();
    pass(&site);
    let site = site.reopen();
    pass(&site);
    assert_eq!((info(&site).anchors, info(&site).stored), (0, 0));
    assert!(shows(&site, 5));
}

/// The present branch of the volume has never had CDP.
#[test]
fn rolled_back_while_cdp_is_off() {
    let site = site();
    site.pool.set_cdp("v", Some(settings())).unwrap();
    fill(&site, 1);
    site.pool.create_snapshots(&[("v", "s")]).unwrap();
    let lsn = fill(&site, 2);
    site.pool.set_cdp("v", None).unwrap();
    site.pool.roll_back("v", "s", "undo", false).unwrap();
    site.idle();
    assert_eq!(moment(&site, Moment::Lsn(lsn)), Ok(2));
    pass(&site);
    assert_eq!((info(&site).anchors, info(&site).stored, info(&site).from), (0, 0, None));
    assert_eq!(moment(&site, Moment::Lsn(lsn)), Err(ErrorKind::NotFound));
    assert!(shows(&site, 1));
    let undone = content(&site.pool.open_snapshot("v", "undo").unwrap());
    assert!(undone.iter().all(|b| *b == 2), "a user's own");
    site.reopen();
}

/// The newest settings expire before a moment that is still open for reading.
#[test]
fn what_is_held_longest_goes_all_the_same() {
    let site = site();
    let retention = Retention::default();
    site.pool.set_cdp("v", Some(CdpSettings { retention, ..settings() })).unwrap();
    let lsn = fill(&site, 1);
    site.pool.create_snapshots(&[("v", "s")]).unwrap();
    let view = site.pool.open_moment("v", &Moment::Lsn(lsn)).unwrap();
    fill(&site, 2);
    site.pool.roll_back("v", "s", "undo", false).unwrap();
    site.pool.set_cdp("v", Some(settings())).unwrap();
    fill(&site, 3);
    site.pool.set_cdp("v", None).unwrap();
    pass(&site);
    assert_eq!(site.pool.history("v", 1).unwrap().spans.len(), 1);
    assert!(content(&view).iter().all(|b| *b == 1));
    // No expired moment seems to belong to what is left.
    let last = site.pool.stats().sequenced_lsn;
    assert_eq!(moment(&site, Moment::Lsn(Lsn(last.0 - 5))), Err(ErrorKind::NotFound));
    drop(view);
    let site = site.reopen();
    pass(&site);
    assert_eq!((info(&site).anchors, info(&site).stored, info(&site).from), (0, 0, None));
    assert!(site.pool.history("v", 1).unwrap().spans.is_empty());
}

/// A volume that is taken back to moments rests on its own past, and would keep that for ever.
#[test]
fn a_chain_of_moments_becomes_short_by_itself_and_expires() {
    let site = site().reopen_with(PoolOptions { flatten_depth: 5, ..PoolOptions::default() });
    let retention = Retention { time: Some(1000 * SECOND), bytes: None };
    site.pool.set_cdp("v", Some(CdpSettings { retention, ..settings() })).unwrap();
    let first = site.pool.volume("v").unwrap().branch;
    let mut flattened = 0;
    for n in 0..8u8 {
        let lsn = fill(&site, n + 1);
        fill(&site, 100);
        let undo = format!("u{n}");
        site.pool.roll_back_to(&[("v", &undo)], &Moment::Lsn(lsn), false).unwrap();
        site.pool.delete_snapshots("v", &[&undo]).unwrap();
        assert!(shows(&site, n + 1));
        pass(&site);
        let branch = site.pool.volume("v").unwrap().branch;
        flattened += u32::from(!site.pool.branch_bases().contains_key(&branch));
    }
    assert_eq!(flattened, 1, "once in eight times it rests on more than five levels");
    assert!(info(&site).from.is_some_and(|from| from.lsn < Lsn(10)), "all of it is wanted");
    let retention = Retention { time: Some(SECOND), bytes: None };
    site.pool.set_cdp("v", Some(CdpSettings { retention, ..settings() })).unwrap();
    pass(&site);
    let lsn = fill(&site, 50);
    pass(&site);
    let spans = site.pool.history("v", 1).unwrap().spans;
    assert!(spans.len() == 1 && spans[0].branch != first, "{spans:?}");
    assert!(site.pool.branch_bases().is_empty(), "{:?}", site.pool.branch_bases());
    assert_eq!(moment(&site, Moment::Lsn(lsn)), Ok(50));
    assert_ends(site, 50);
}

#[test]
fn what_rests_on_its_own_past_can_be_flattened() {
    let site = site();
    let retention = Retention::default();
    site.pool.set_cdp("v", Some(CdpSettings { retention, ..settings() })).unwrap();
    let lsn = fill(&site, 1);
    fill(&site, 2);
    site.pool.roll_back_to(&[("v", "undo")], &Moment::Lsn(lsn), false).unwrap();
    pass(&site);
    assert_eq!(site.pool.branch_bases().len(), 1);
    assert!(site.pool.origin("v").unwrap().is_none(), "its own past is no origin");
    site.pool.flatten_volume("v", 0).unwrap();
    pass(&site);
    assert!(site.pool.branch_bases().is_empty() && shows(&site, 1));
    assert_eq!(site.pool.flatten_volume("v", 0).unwrap_err().kind(), ErrorKind::Conflict);
    site.reopen();
}

/// After one recovery in place, and without a request to flatten, retention still passes, as far as
/// the user's snapshot allows.
#[test]
fn retention_passes_what_a_volume_was_taken_back_to() {
    let site = site();
    site.pool.set_cdp("v", Some(settings())).unwrap();
    let lsn = fill(&site, 1);
    fill(&site, 2);
    site.pool.roll_back_to(&[("v", "undo")], &Moment::Lsn(lsn), false).unwrap();
    let since = site.pool.stats().sequenced_lsn;
    pass(&site);
    assert!(site.pool.branch_bases().is_empty());
    assert!(info(&site).from.is_some_and(|from| from.lsn >= since.prev()), "{:?} {since}", info(&site));
    assert!(shows(&site, 1));
    let undone = content(&site.pool.open_snapshot("v", "undo").unwrap());
    assert!(undone.iter().all(|b| *b == 2));
    site.reopen();
}

/// If history begins at the end of a segment, its first moment has neither a record nor an anchor.
#[test]
fn the_first_moment_that_is_shown_is_found_by_its_time() {
    let site = site();
    let retention = Retention { time: None, bytes: Some(600 * KIB) };
    site.pool
        .set_cdp("v", Some(CdpSettings { anchors: AnchorPolicy::Never, retention, ..settings() }))
        .unwrap();
    for byte in 1..10 {
        fill(&site, byte);
    }
    site.pool.drain().unwrap();
    site.idle();
    let verify = |site: &Site| {
        let Stamp { lsn, time } = info(site).from.unwrap();
        assert!(lsn > Lsn(60), "nothing has expired");
        for wanted in [time, time + 1] {
            let point = site.pool.resolve("v", &Moment::Time(wanted)).unwrap();
            assert_eq!((point.lsn, point.time), (lsn, time));
        }
        let gone = site.pool.resolve("v", &Moment::Time(time - 1)).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
    };
    verify(&site);
    verify(&site.reopen());
}

/// These records lead forward only: without an anchor the beginning of the log could never expire.
#[test]
fn a_redo_log_with_a_limit_gets_the_anchors_that_it_needs() {
    let site = site();
    let most = 2 * MIB;
    let retention = Retention { time: None, bytes: Some(most) };
    let redo =
        CdpSettings { encoding: Encoding::Redo, anchors: AnchorPolicy::Never, retention, ..settings() };
    site.pool.set_cdp("v", Some(redo)).unwrap();
    let mut moments = Vec::new();
    for byte in 1..60 {
        moments.push((fill(&site, byte), byte));
        site.pool.drain().unwrap();
        site.idle();
        let stored = info(&site).stored;
        assert!(stored < most + MIB, "{stored} of {most} after {byte}");
    }
    let from = info(&site).from.unwrap().lsn;
    moments.retain(|(lsn, _)| *lsn >= from);
    assert!((3..20).contains(&moments.len()), "{}: about as much as there may be", moments.len());
    for (lsn, byte) in &moments {
        assert_eq!(moment(&site, Moment::Lsn(*lsn)), Ok(*byte));
    }
    assert!(info(&site).anchors < 8, "{:?}", info(&site));
    site.reopen();
}

/// Flattening over a moment does not read every segment for every page.
#[test]
fn flattening_looks_only_at_segments_that_matter() {
    let site = Site::new(64);
    site.clock.advance(SECOND);
    // The volume has five map pages.
    let volume = site.volume("v", 5 * MIB, CHUNK);
    let (anchors, retention) = (AnchorPolicy::Never, Retention::default());
    site.pool.set_cdp("v", Some(CdpSettings { anchors, retention, ..settings() })).unwrap();
    write(&volume, 0, 1, 64 * KIB);
    site.pool.drain().unwrap();
    let before: Vec<String> = site.dir.list().unwrap();
    // These writes fill segments of their own, all in the last page.
    let mut lsn = Lsn::ZERO;
    for n in 0..40u8 {
        write(&volume, 4 * MIB, n + 1, 64 * KIB);
        if n == 20 {
            lsn = site.pool.stats().sequenced_lsn;
        }
    }
    drop(volume);
    site.pool.drain().unwrap();
    site.pool.recover_volume("v", &Moment::Lsn(lsn), "then").unwrap();
    assert!(info(&site).segments > 2);
    for name in site.dir.list().unwrap().iter().filter(|n| n.starts_with("cdp-") && !before.contains(n)) {
        let disk = site.dir.open(name, OpenMode::Existing).unwrap();
        let len = disk.len().unwrap();
        disk.write_at(&vec![0xAA; len as usize], 0).unwrap();
    }
    site.pool.flatten_volume("then", 0).unwrap();
    site.idle();
    let told = site.pool.flattening("then").unwrap().unwrap();
    // The whole first page, and the first segment's part of the last page.
    let copied = 64 * KIB..128 * KIB;
    assert!(told.position >= 4 * MIB && copied.contains(&told.copied_bytes), "{told:?}");
    assert!(told.stalled.is_some());
}

/// `redo` can't reconstruct a moment without an anchor before it. An anchor is taken in time,
/// because otherwise nothing could ever expire.
#[test]
fn redo_expires_by_time_without_anchors_of_its_own() {
    let site = site();
    let settings = CdpSettings { encoding: Encoding::Redo, anchors: AnchorPolicy::Never, ..settings() };
    site.pool.set_cdp("v", Some(settings)).unwrap();
    let first = fill(&site, 1);
    let mut most = 0;
    for byte in 2..40 {
        fill(&site, byte);
        site.clock.advance(SECOND / 5);
        site.idle();
        most = most.max(info(&site).stored);
    }
    assert!(
        most < 14 * (SIZE + SIZE / 4),
        "{most} bytes of history are kept for a second, in which there are five rounds"
    );
    assert_eq!(moment(&site, Moment::Lsn(first)), Err(ErrorKind::NotFound));
    let last = site.pool.stats().sequenced_lsn;
    assert_eq!(moment(&site, Moment::Lsn(last)), Ok(39));
    site.reopen();
}

/// The name of a mark whose moment has expired is free again.
#[test]
fn marks_expire_with_their_moments() {
    let site = site();
    site.pool.set_cdp("v", Some(settings())).unwrap();
    fill(&site, 1);
    site.pool.mark("v", "old").unwrap();
    site.pool.mark("v", "older").unwrap();
    fill(&site, 2);
    let names = |site: &Site| -> Vec<String> {
        site.pool.history("v", 0).unwrap().marks.into_iter().map(|mark| mark.name).collect()
    };
    site.idle();
    assert_eq!(names(&site), ["old", "older"]);
    // A reader has the moment open.
    let view = site.pool.open_moment("v", &Moment::Mark("old".into())).unwrap();
    pass(&site);
    fill(&site, 3);
    pass(&site);
    assert_eq!(names(&site), ["old", "older"]);
    drop(view);
    fill(&site, 4);
    site.pool.mark("v", "new").unwrap();
    fill(&site, 5);
    site.idle();
    assert_eq!(names(&site), ["new"]);
    site.pool.create_snapshots(&[("v", "old")]).unwrap();
    let site = site.reopen();
    site.idle();
    assert_eq!(names(&site), ["new"]);
    site.pool.set_cdp("v", None).unwrap();
    pass(&site);
    assert_all_gone(&site);
    assert_eq!(names(&site), [] as [&str; 0]);
    site.pool.mark("v", "new").unwrap_err();
    site.reopen();
}
