//! Addresses of past content, `VOLUME@MOMENT`: conversion of the text that users write to the terms
//! of the engine.

use crate::clones::open_behind;
use crate::convert::time;
use hindcast_api::Moment;
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::{Pool, SnapshotInfo};
use hindcast_engine::stream::PastState;
use hindcast_engine::{Error, ErrorKind, Result, Volume, cdp};
use jiff::Timestamp;
use std::sync::Arc;

/// Number of names that an error suggests in place of an unknown one.
const NEAREST: usize = 3;

/// The past content that an address means.
#[derive(Debug)]
pub(crate) enum Past {
    /// A snapshot. It needs no history.
    Snapshot(SnapshotInfo),
    /// A moment that the engine has to find.
    Moment(cdp::Moment),
}

/// Returns the volume of an export: a name, or an address of the past.
pub(crate) fn volume_of(export: &str) -> &str {
    export.split_once('@').map_or(export, |(volume, _)| volume)
}

/// Returns the error for a name that no snapshot and no mark of a volume has.
fn nothing_named(volume: &str, name: &str, mut known: Vec<String>) -> Error {
    // The sort is stable, so names that are equally like it stay in order.
    known.sort_by_key(|known| strsim::damerau_levenshtein(name, known));
    let nearest: Vec<String> =
        known.into_iter().take(NEAREST).map(|known| format!("{volume}@{known}")).collect();
    let hint = match nearest.as_slice() {
        [] => "it has none at all".to_owned(),
        names => format!("the nearest names are {}", names.join(", ")),
    };
    let text =
        format!("find {volume}@{name}: volume {volume} has no snapshot and no mark of that name; {hint}");
    Error::new(ErrorKind::NotFound, text)
}

/// Returns the error of a request about a snapshot for its client. The engine says only that there
/// is no snapshot of a name. So this adds what else has the name and what to do with that, or which
/// names are like it. Other errors stay as they are.
pub(crate) fn no_snapshot(pool: &Pool, volume: &str, name: &str, error: Error) -> Error {
    let is_missing = |e: &Error| e.kind() == ErrorKind::NotFound;
    if !is_missing(&error) || !pool.snapshot(volume, name).is_err_and(|e| is_missing(&e)) {
        return error;
    }
    let found = pool.has_mark(volume, name).and_then(|is_mark| Ok((is_mark, pool.past_names(volume)?)));
    // Without the volume, the engine's error says so.
    let Ok((is_mark, known)) = found else { return error };
    let text = match (is_mark, name.parse::<Moment>()) {
        (true, _) => format!(
            "find snapshot {volume}@{name}: {name} is a mark of volume {volume}, not a snapshot; `hindcast mark {volume} {name} --delete` deletes it; `hindcast recover`, `rollback` and `clone create` take a mark; `hindcast snapshot create {volume}@NAME --at {name}` keeps its moment as a snapshot"
        ),
        (false, Ok(Moment::Name(_))) => return nothing_named(volume, name, known),
        (false, _) => format!(
            "find snapshot {volume}@{name}: a snapshot has a name, and {name} is none; `hindcast recover`, `rollback` and `clone create` take moments; `hindcast snapshot create {volume}@NAME --at {name}` keeps a moment as a snapshot"
        ),
    };
    Error::new(ErrorKind::NotFound, text)
}

/// Parses the text after the `@`. No snapshot has the name of a mark.
pub(crate) fn find(pool: &Pool, volume: &str, text: &str) -> Result<Past> {
    let moment: Moment =
        text.parse().map_err(|e| Error::new(ErrorKind::Invalid, format!("go back in {volume}: {e}")))?;
    match &moment {
        Moment::Name(name) => match pool.snapshot(volume, name) {
            Ok(snapshot) => Ok(Past::Snapshot(snapshot)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if !pool.has_mark(volume, name)? {
                    return Err(nothing_named(volume, name, pool.past_names(volume)?));
                }
                Ok(Past::Moment(cdp::Moment::Mark(name.clone())))
            }
            Err(error) => Err(error),
        },
        Moment::Lsn(lsn) => Ok(Past::Moment(cdp::Moment::Lsn(Lsn(*lsn)))),
        Moment::Time(time) => Ok(Past::Moment(cdp::Moment::Time(nanos(*time)))),
        // The clock may have been set since.
        Moment::Ago(ago) => {
            let ago = u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX);
            Ok(Past::Moment(cdp::Moment::PoolTime(pool.ago(ago))))
        }
    }
}

/// Returns the moment that a text means. For the name of a snapshot it is the moment at which the
/// snapshot was taken.
pub(crate) fn moment(pool: &Pool, volume: &str, text: &str) -> Result<cdp::Moment> {
    Ok(match find(pool, volume, text)? {
        // Not the time that it has: that was read before it was taken, or is another server's.
        Past::Snapshot(snapshot) => cdp::Moment::Lsn(pool.moment_of_snapshot(volume, &snapshot.name)?),
        Past::Moment(moment) => moment,
    })
}

/// Returns the last flush at or before a moment. If the moment is a time, the search is by time,
/// because a flush is later than the last write before that time.
pub(crate) fn last_flush(pool: &Pool, volume: &str, moment: cdp::Moment) -> Result<cdp::Moment> {
    Ok(match moment {
        cdp::Moment::Time(time) => cdp::Moment::FlushBefore(time),
        cdp::Moment::PoolTime(time) => cdp::Moment::FlushBeforePoolTime(time),
        cdp::Moment::Lsn(lsn) => cdp::Moment::FlushUpTo(lsn),
        moment => cdp::Moment::FlushUpTo(pool.resolve(volume, &moment)?.lsn),
    })
}

/// Opens the content at an address. It is read-only, except at the address of a writable snapshot,
/// where `read_only` decides.
pub(crate) fn open(pool: &Arc<Pool>, volume: &str, text: &str, read_only: bool) -> Result<Arc<Volume>> {
    match find(pool, volume, text)? {
        Past::Snapshot(snapshot) => match open_behind(pool, &snapshot, read_only)? {
            Some(clone) => Ok(clone),
            None => pool.open_snapshot(volume, &snapshot.name),
        },
        Past::Moment(moment) => pool.open_moment(volume, &moment),
    }
}

/// Opens the content that an address froze, even if the address is that of a writable snapshot. It
/// also returns a text that means the same content later.
pub(crate) fn open_frozen(pool: &Arc<Pool>, volume: &str, text: &str) -> Result<(Arc<Volume>, String)> {
    match find(pool, volume, text)? {
        Past::Snapshot(snapshot) => Ok((pool.open_snapshot(volume, &snapshot.name)?, snapshot.name)),
        Past::Moment(moment) => {
            let lsn = pool.resolve(volume, &moment)?.lsn;
            let view = pool.open_moment(volume, &cdp::Moment::Lsn(lsn))?;
            Ok((view, Moment::Lsn(lsn.0).to_string()))
        }
    }
}

/// Returns the state at an address, for an export. A moment that is not a mark gets its time as a
/// name.
pub(crate) fn past_state(pool: &Arc<Pool>, volume: &str, text: &str) -> Result<PastState> {
    let moment = match find(pool, volume, text)? {
        Past::Snapshot(snapshot) => return pool.past_snapshot(volume, &snapshot.name),
        Past::Moment(moment) => moment,
    };
    let point = pool.resolve(volume, &moment)?;
    let name = match moment {
        cdp::Moment::Mark(name) => name,
        _ => time(point.time).strftime("at-%Y%m%dT%H%M%S.%6fZ").to_string(),
    };
    pool.past_moment(volume, &cdp::Moment::Lsn(point.lsn), &name)
}

/// Converts a time to nanoseconds since 1970. A time before 1970 becomes 0, because it has no
/// history.
fn nanos(time: Timestamp) -> u64 {
    u64::try_from(time.as_nanosecond()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use hindcast_engine::cdp::CdpSettings;
    use hindcast_engine::device::{BlockDevice, WriteOp};
    use hindcast_engine::disk::MemDir;
    use hindcast_engine::pool::{NewVolume, Placement, PoolConfig, PoolOptions, PvSpec};
    use hindcast_engine::world::{ManualClock, SplitMix, World};

    const M: u64 = 1 << 20;
    const SECOND: u64 = 1_000_000_000;

    /// Makes a pool with a volume `v` that keeps its history, at 1970-01-01T00:00:01Z.
    fn pool() -> (Arc<Pool>, Arc<ManualClock>) {
        let (dir, clock) = (Arc::new(MemDir::new()), Arc::new(ManualClock::new(SECOND)));
        let world = World { clock: clock.clone(), rng: Arc::new(SplitMix::new(1)) };
        let config = PoolConfig { journal_size: 16 * M, segment_size: 4 * M, ..PoolConfig::default() };
        let pv = PvSpec { path: "pv-0.img".into(), size: Some(64 * M), force: false };
        Pool::create(dir.clone(), &world, &config, Placement::Anywhere, &[pv]).unwrap();
        let pool = Pool::open(dir, world, PoolOptions::default()).unwrap();
        let new =
            NewVolume { name: "v".into(), size: M, chunk_size: 16 << 10, block_size: 512, read_only: false };
        pool.create_volume(&new).unwrap();
        pool.set_cdp("v", Some(CdpSettings::default())).unwrap();
        (pool, clock)
    }

    fn write(pool: &Arc<Pool>, byte: u8) {
        let mut op = [WriteOp::new(0, Bytes::from(vec![byte; 512]))];
        pool.open_volume("v", false).unwrap().write(&mut op, false);
        op[0].result.clone().unwrap();
    }

    fn first(device: &Volume) -> u8 {
        let mut block = [0; 512];
        device.read(0, &mut block).unwrap();
        block[0]
    }

    /// Returns the first byte at a moment, or at the last flush before it.
    fn at(pool: &Arc<Pool>, text: &str, flush: bool) -> Result<u8> {
        let moment = moment(pool, "v", text)?;
        let moment = if flush { last_flush(pool, "v", moment)? } else { moment };
        Ok(first(&*pool.open_moment("v", &moment)?))
    }

    #[test]
    fn the_last_flush_is_that_of_the_time_asked_for() {
        let (pool, clock) = pool();
        for byte in 1..3 {
            clock.advance(SECOND);
            write(&pool, byte); // at 2 s and 6 s
            clock.advance(SECOND);
            pool.open_volume("v", false).unwrap().flush().unwrap(); // at 3 s and 7 s
            clock.advance(2 * SECOND);
        }
        let of = |second: u32| at(&pool, &format!("1970-01-01T00:00:0{second}Z"), true);
        assert_eq!((of(3).unwrap(), of(5).unwrap(), of(6).unwrap()), (1, 1, 1));
        assert_eq!((of(7).unwrap(), of(8).unwrap()), (2, 2), "nothing was written since");
        assert_eq!(of(2).unwrap_err().kind(), ErrorKind::NotFound, "before the first flush");
        let mark = pool.mark("v", "m").unwrap();
        pool.create_snapshots(&[("v", "s")]).unwrap();
        write(&pool, 3);
        for text in ["m", "s", &format!("lsn:{}", mark.lsn)] {
            assert_eq!(at(&pool, text, true).unwrap(), 2, "{text}");
        }
        assert_eq!(at(&pool, "1970-01-01T00:01:00Z", true).unwrap_err().kind(), ErrorKind::Invalid);
    }

    /// The name of a mark, of a moment or of nothing is no snapshot's, and the error says what it
    /// is.
    #[test]
    fn what_is_no_snapshot_is_called_what_it_is() {
        let (pool, _) = pool();
        pool.mark("v", "m1").unwrap();
        pool.create_snapshots(&[("v", "monday")]).unwrap();
        let error = |volume: &str, name: &str| {
            let error = no_snapshot(&pool, volume, name, pool.snapshot(volume, name).unwrap_err());
            assert_eq!(error.kind(), ErrorKind::NotFound);
            error.to_string()
        };
        for (name, part) in [
            ("m1", "m1 is a mark of volume v, not a snapshot; `hindcast mark v m1 --delete`"),
            ("mondai", "volume v has no snapshot and no mark of that name; the nearest names are v@monday"),
            ("lsn:7", "`hindcast snapshot create v@NAME --at lsn:7`"),
            ("-10m", "a snapshot has a name, and -10m is none"),
            ("10:41", "a snapshot has a name, and 10:41 is none"),
        ] {
            let text = error("v", name);
            assert!(text.contains(part), "{text}");
        }
        assert!(error("w", "m1").starts_with("find volume"), "{}", error("w", "m1"));
        // Errors about something else stay, as does one of a snapshot that exists by now.
        for (name, kind) in [("m1", ErrorKind::Conflict), ("monday", ErrorKind::NotFound)] {
            let kept = no_snapshot(&pool, "v", name, Error::new(kind, "as it was"));
            assert_eq!(kept.to_string(), "as it was");
        }
    }

    #[test]
    fn so_long_ago_is_by_true_time() {
        let (pool, clock) = pool();
        for byte in 1..4 {
            clock.advance(10 * SECOND);
            write(&pool, byte);
            pool.open_volume("v", false).unwrap().flush().unwrap();
        }
        clock.set(40_000_000 * SECOND);
        clock.advance(SECOND);
        for (text, byte) in [("-0.5s", 3), ("-2s", 2), ("-10.5s", 2), ("-12s", 1)] {
            let (write, flush) = (at(&pool, text, false).unwrap(), at(&pool, text, true).unwrap());
            assert_eq!((write, flush), (byte, byte), "{text}");
        }
    }

    #[test]
    fn a_snapshot_is_the_moment_at_which_it_was_taken() {
        let (pool, clock) = pool();
        clock.advance(SECOND);
        // The clock stands still: each write is later than the time that the snapshot has.
        for byte in 1..5 {
            write(&pool, byte);
        }
        pool.create_snapshots(&[("v", "s")]).unwrap();
        write(&pool, 5);
        assert_eq!((at(&pool, "s", false).unwrap(), first(&open(&pool, "v", "s", false).unwrap())), (4, 4));
        pool.set_cdp("v", None).unwrap();
        pool.create_snapshots(&[("v", "without")]).unwrap();
        let error = at(&pool, "without", false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("v@without"), "{error}");
        assert_eq!(first(&open(&pool, "v", "without", false).unwrap()), 5, "to open it no history is needed");
    }
}
