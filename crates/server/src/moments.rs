//! Addresses of the past, `VOLUME@MOMENT`: what people write, as the engine takes it.

use hindcast_api::Moment;
use hindcast_engine::cdp;
use hindcast_engine::pool::{Pool, SnapshotInfo};
use hindcast_engine::{Error, ErrorKind, Result, Volume};
use jiff::Timestamp;
use std::sync::Arc;

/// What of a volume's past is meant.
#[derive(Debug)]
pub(crate) enum Past {
    /// A snapshot, which needs no history.
    Snapshot(SnapshotInfo),
    /// A moment, for the engine to find.
    Moment(cdp::Moment),
}

/// What a text after the `@` means. A snapshot hides a mark of the same name.
pub(crate) fn find(pool: &Pool, volume: &str, text: &str) -> Result<Past> {
    let moment: Moment =
        text.parse().map_err(|e| Error::new(ErrorKind::Invalid, format!("go back in {volume}: {e}")))?;
    match &moment {
        Moment::Name(name) => match pool.snapshot(volume, name) {
            Ok(snapshot) => Ok(Past::Snapshot(snapshot)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                pool.volume(volume)?;
                Ok(Past::Moment(cdp::Moment::Mark(name.clone())))
            }
            Err(error) => Err(error),
        },
        Moment::Lsn(lsn) => Ok(Past::Moment(cdp::Moment::Lsn(*lsn))),
        Moment::Time(_) | Moment::Ago(_) => {
            let time = moment.time(Timestamp::now()).unwrap_or(Timestamp::MIN);
            Ok(Past::Moment(cdp::Moment::Time(nanos(time))))
        }
    }
}

/// A text as a moment, also where it names a snapshot: that was taken at a moment.
pub(crate) fn moment(pool: &Pool, volume: &str, text: &str) -> Result<cdp::Moment> {
    Ok(match find(pool, volume, text)? {
        Past::Snapshot(snapshot) => cdp::Moment::Time(snapshot.created),
        Past::Moment(moment) => moment,
    })
}

/// The last flush at or before a moment.
pub(crate) fn last_flush(pool: &Pool, volume: &str, moment: &cdp::Moment) -> Result<cdp::Moment> {
    Ok(cdp::Moment::FlushBefore(pool.resolve(volume, moment)?.time))
}

/// Opens what an address names, read-only.
pub(crate) fn open(pool: &Arc<Pool>, volume: &str, text: &str) -> Result<Arc<Volume>> {
    match find(pool, volume, text)? {
        Past::Snapshot(snapshot) => pool.open_snapshot(volume, &snapshot.name),
        Past::Moment(moment) => pool.open_moment(volume, &moment),
    }
}

/// Nanoseconds since 1970; what was before that has no history.
fn nanos(time: Timestamp) -> u64 {
    u64::try_from(time.as_nanosecond()).unwrap_or(0)
}
