//! Recovery of volumes to a moment, as new volumes or in place.

use crate::app::App;
use crate::iscsi::Making;
use crate::moments::{self, Past};
use crate::snapshots::nanoseconds;
use hindcast_api::{Inherited, Recover, RecoverInPlace, RecoverVolume, RollBack};
use hindcast_engine::cdp;
use hindcast_engine::pool::{Pool, SnapshotInfo, Undo, VolumeInfo};
use hindcast_engine::{Error, ErrorKind, Result};
use jiff::{Timestamp, tz::TimeZone};
use std::sync::Arc;

/// Bytes per second at which a clone of a moment is copied out of the history.
const COMPLETION_RATE: u64 = 64 << 20;

fn nobody() -> Error {
    Error::new(ErrorKind::Invalid, "recover: name at least one volume")
}

/// A volume that was created from the past content of another.
pub(crate) struct Made {
    pub(crate) volume: VolumeInfo,
    /// The recovered moment. `None`: the volume was created from a snapshot.
    pub(crate) point: Option<cdp::Point>,
    /// Access settings that the new volume copied from the other. `None`: there was nothing to
    /// copy.
    pub(crate) inherited: Option<Inherited>,
}

impl App {
    /// Returns the moment of a request, for all its volumes. `None`: it is a snapshot of the only
    /// volume, which needs no history.
    fn recovery_point(
        &self,
        first: &str,
        alone: bool,
        to: &str,
        last_flush: bool,
    ) -> Result<Option<cdp::Moment>> {
        if alone && !last_flush && matches!(moments::find(&self.pool, first, to)?, Past::Snapshot(_)) {
            return Ok(None);
        }
        let moment = moments::moment(&self.pool, first, to)?;
        let moment = match last_flush {
            true => moments::last_flush(&self.pool, first, moment)?,
            false => moment,
        };
        Ok(Some(match moment {
            // The last write by then of each volume is another one.
            cdp::Moment::Time(_) | cdp::Moment::PoolTime(_) | cdp::Moment::Lsn(_) => moment,
            // These are the first volume's, and mean a place in the one order of all writes.
            _ => cdp::Moment::Lsn(self.pool.resolve(first, &moment)?.lsn),
        }))
    }

    /// Creates volumes with the content that others had at a moment or in a snapshot.
    pub(crate) fn recover(&self, what: &Recover) -> Result<Vec<Made>> {
        let first = what.volumes.first().ok_or_else(nobody)?;
        let alone = what.volumes.len() == 1;
        let point = self.recovery_point(&first.volume, alone, &what.to, what.last_flush)?;
        let making: Vec<Making<'_>> =
            what.volumes.iter().map(|v| Making { name: &v.name, of: Some(&v.volume) }).collect();
        let make = |pool: &Arc<Pool>| match &point {
            None => {
                pool.clone_volume(&first.volume, &what.to, &first.name)?;
                Ok(vec![None])
            }
            Some(moment) => {
                let wanted: Vec<(&str, &str)> =
                    what.volumes.iter().map(|v| (v.volume.as_str(), v.name.as_str())).collect();
                Ok(pool.recover_volumes(&wanted, moment)?.into_iter().map(Some).collect())
            }
        };
        let (points, inherited): (Vec<Option<cdp::Point>>, _) = self.iscsi.make_volumes(&making, make)?;
        if let Some(rate) = what.complete {
            what.volumes.iter().for_each(|v| self.complete(&v.name, rate));
        }
        for (RecoverVolume { volume, name }, point) in what.volumes.iter().zip(&points) {
            tracing::info!(
                event = "volume.recovered",
                volume,
                to = what.to,
                lsn = point.map(|p| p.lsn.0),
                name,
                "recovered"
            );
        }
        let made = what.volumes.iter().zip(points).zip(inherited);
        made.map(|((v, point), inherited)| Ok(Made { volume: self.pool.volume(&v.name)?, point, inherited }))
            .collect()
    }

    /// Creates a volume with the content of a snapshot or of a moment. Also returns the access
    /// settings that it copied.
    pub(crate) fn clone_of(
        &self,
        volume: &str,
        of: &str,
        name: &str,
    ) -> Result<(VolumeInfo, Option<Inherited>)> {
        let volumes = vec![RecoverVolume { volume: volume.to_owned(), name: name.to_owned() }];
        let complete = match moments::find(&self.pool, volume, of)? {
            // A clone of a snapshot shares its data.
            Past::Snapshot(_) => None,
            Past::Moment(_) => Some(COMPLETION_RATE),
        };
        let what = Recover { volumes, to: of.to_owned(), last_flush: false, complete };
        let made = self.recover(&what)?.into_iter().next().ok_or_else(nobody)?;
        Ok((made.volume, made.inherited))
    }

    /// Rolls a volume back to a snapshot or to a moment.
    pub(crate) fn roll_back_to(
        &self,
        volume: &str,
        to: &str,
        how: RollBack,
    ) -> Result<(VolumeInfo, SnapshotInfo)> {
        if matches!(moments::find(&self.pool, volume, to)?, Past::Snapshot(_)) {
            return self.roll_back(volume, to, &how);
        }
        let RollBack { undo, undo_keep_seconds, force } = how;
        let (volumes, to) = (vec![volume.to_owned()], to.to_owned());
        let what = RecoverInPlace { volumes, to, last_flush: false, undo, undo_keep_seconds, force };
        self.recover_in_place(&what)?.into_iter().next().ok_or_else(nobody)
    }

    /// Starts to make a recovered volume independent of the history.
    fn complete(&self, name: &str, rate: u64) {
        match self.pool.flatten_volume(name, rate) {
            Ok(()) => {}
            // It shows nothing of the past.
            Err(error) if error.kind() == ErrorKind::Conflict => {}
            // It is as good without; the user sees what it rests on, and that nothing goes on.
            Err(error) => {
                tracing::warn!(volume = name, %error, "the copy of a recovered volume could not be started; the volume depends on the history")
            }
        }
    }

    /// Rolls volumes back to a moment. While clients use the volumes, it fails, or with `force`
    /// notifies the clients.
    pub(crate) fn recover_in_place(&self, what: &RecoverInPlace) -> Result<Vec<(VolumeInfo, SnapshotInfo)>> {
        let first = what.volumes.first().ok_or_else(nobody)?;
        let undo = what.undo.clone().unwrap_or_else(|| {
            let at = Timestamp::now().to_zoned(TimeZone::UTC).strftime("%Y%m%dT%H%M%S.%3fZ").to_string();
            format!("before-recovery-{at}")
        });
        let alone = what.volumes.len() == 1;
        let Some(moment) = self.recovery_point(first, alone, &what.to, what.last_flush)? else {
            let undo_keep_seconds = what.undo_keep_seconds;
            let how = RollBack { undo: Some(undo), undo_keep_seconds, force: what.force };
            return Ok(vec![self.roll_back(first, &what.to, &how)?]);
        };
        let names: Vec<&str> = what.volumes.iter().map(String::as_str).collect();
        let kept = Undo { name: &undo, keep: what.undo_keep_seconds.map(nanoseconds) };
        let wanted: Vec<(&str, Undo<'_>)> = names.iter().map(|name| (*name, kept)).collect();
        let undone = self
            .iscsi
            .roll_back(&names, what.force, |pool| pool.roll_back_to(&wanted, &moment, what.force))?;
        for name in &names {
            self.disconnect_nbd(&self.pool.volume(name)?);
            let force = what.force;
            tracing::info!(
                event = "volume.rolled-back",
                volume = name,
                to = what.to,
                undo,
                force,
                "volume rolled back"
            );
        }
        names.iter().zip(undone).map(|(name, undo)| Ok((self.pool.volume(name)?, undo))).collect()
    }
}
