//! Deleted volumes: they are in the trash until the server purges them, by age or in a shortage of
//! space (decision 68).

use crate::app::App;
use crate::convert::time;
use crate::periodic::Worker;
use crate::settings::TrashTimes;
use hindcast_api::{DeleteVolume, DeletedVolume, TrashedVolume};
use hindcast_engine::pool::{TrashInfo, VolumeInfo};
use hindcast_engine::{Error, ErrorKind, Result};
use jiff::Timestamp;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Interval between two searches for volumes to purge.
const INTERVAL: Duration = Duration::from_secs(30);
/// Time between two purges in a shortage of space. The space of a purged volume comes back later.
const SPACE_PAUSE: Duration = Duration::from_secs(600);
/// The shortest part of a UUID that names a volume in the trash.
const LEAST_DIGITS: usize = 4;

impl App {
    /// Deletes a volume: to the trash, or for good.
    pub(crate) fn delete_volume(&self, volume: &str, how: DeleteVolume) -> Result<DeletedVolume> {
        let info = self.pool.volume(volume)?;
        if how.now || self.trash.keep.is_zero() {
            self.delete_for_good(&info, how.force)?;
            return Ok(DeletedVolume { trash: None });
        }
        let snapshots = self.pool.snapshots(volume)?;
        let trashed = self.iscsi.trash_volume(volume, how.force)?;
        self.disconnect_nbd(&info);
        self.end_views(&info);
        // Also its snapshots and moments.
        self.nbd.disconnect_volume(volume);
        tracing::info!(event = "volume.trashed", volume, uuid = %info.uuid, snapshots = snapshots.len(), "volume moved to the trash");
        Ok(DeletedVolume { trash: Some(self.trashed(&trashed)) })
    }

    fn delete_for_good(&self, info: &VolumeInfo, force: bool) -> Result<()> {
        let volume = &info.name;
        let snapshots = self.pool.snapshots(volume)?;
        if !force {
            self.check_without_history(volume)?;
        }
        self.iscsi.delete_volume(volume, force)?;
        self.disconnect_nbd(info);
        self.end_views(info);
        snapshots.iter().for_each(|s| self.nbd.disconnect(&format!("{volume}@{}", s.name)));
        tracing::info!(event = "volume.deleted", volume, snapshots = snapshots.len(), "volume deleted");
        Ok(())
    }

    /// Ends the views of a deleted volume.
    fn end_views(&self, volume: &VolumeInfo) {
        if let Err(error) = self.views.remove_of(volume.uuid) {
            tracing::warn!(volume = volume.name, %error, "the views of a deleted volume stay until a restart");
        }
    }

    /// Returns the volumes in the trash, oldest first.
    pub(crate) fn trash(&self) -> Vec<TrashedVolume> {
        self.pool.trash().iter().map(|info| self.trashed(info)).collect()
    }

    /// Takes a volume out of the trash.
    pub(crate) fn restore_volume(&self, id: &str, name: Option<&str>) -> Result<VolumeInfo> {
        let uuid = self.find_in_trash(id)?;
        let info = self.iscsi.restore_volume(uuid, name)?;
        tracing::info!(event = "volume.restored", volume = info.name, %uuid, "volume restored from the trash");
        Ok(info)
    }

    /// Deletes a volume in the trash for good.
    pub(crate) fn purge_volume(&self, id: &str) -> Result<()> {
        self.purge(self.find_in_trash(id)?, None, "request")
    }

    fn purge(&self, uuid: Uuid, since: Option<u64>, cause: &str) -> Result<()> {
        self.iscsi.purge_volume(uuid, since)?;
        tracing::info!(event = "volume.purged", %uuid, cause, "volume in the trash purged");
        Ok(())
    }

    /// Finds a volume in the trash by its UUID, by the first digits of it, or by its name.
    fn find_in_trash(&self, id: &str) -> Result<Uuid> {
        let trash = self.pool.trash();
        let digits = id.replace('-', "").to_ascii_lowercase();
        let is_uuid = digits.len() >= LEAST_DIGITS && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let named: Vec<&TrashInfo> = trash.iter().filter(|t| t.volume.name == id).collect();
        let found = match named.is_empty() && is_uuid {
            true => {
                trash.iter().filter(|t| t.volume.uuid.simple().to_string().starts_with(&digits)).collect()
            }
            false => named,
        };
        match &found[..] {
            [one] => Ok(one.volume.uuid),
            [] => {
                let text = format!("find {id} in the trash: no deleted volume has this name or UUID");
                Err(Error::new(ErrorKind::NotFound, text))
            }
            several => {
                let all: Vec<String> = several.iter().map(|t| t.volume.uuid.to_string()).collect();
                let text =
                    format!("find {id} in the trash: it may be any of {}; give a UUID", all.join(", "));
                Err(Error::new(ErrorKind::Conflict, text))
            }
        }
    }

    fn trashed(&self, info: &TrashInfo) -> TrashedVolume {
        let left = self.trash.keep.as_nanos().saturating_sub(info.age.into());
        let left = Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX));
        let kept = !self.trash.keep.is_zero() && !self.pool.clock().suspended;
        TrashedVolume {
            uuid: info.volume.uuid.to_string(),
            name: info.volume.name.clone(),
            size: info.volume.size,
            space: info.space,
            snapshots: info.snapshots,
            history: info.volume.cdp.is_some(),
            labels: info.volume.labels.clone(),
            deleted: time(info.trashed),
            purge_at: kept.then(|| Timestamp::now().checked_add(left).unwrap_or(Timestamp::MAX)),
        }
    }

    /// Purges volumes that were in the trash for long enough. While the pool is low on space, it
    /// also purges the oldest volume that may go.
    /// Updates `paused`, the time until which no volume is purged for space.
    fn purge_due(&self, paused: &mut Option<Instant>) {
        // Ages are in doubt then.
        if self.pool.is_only_shown() || self.pool.clock().suspended {
            return;
        }
        let now = Instant::now();
        let low = paused.is_none_or(|until| now >= until) && self.pool.lacks_own_space();
        for info in due(&self.pool.trash(), self.trash, low) {
            if low {
                *paused = Some(now + SPACE_PAUSE);
            }
            let uuid = info.volume.uuid;
            if let Err(error) = self.purge(uuid, Some(info.since), "age or space") {
                // It may have been restored or purged meanwhile.
                tracing::warn!(%uuid, %error, "a volume in the trash could not be purged");
            }
        }
    }
}

/// Returns the volumes to purge now. `trash` is ordered by age, the oldest first.
fn due(trash: &[TrashInfo], times: TrashTimes, low: bool) -> Vec<&TrashInfo> {
    let reached = |info: &&TrashInfo, age: Duration| u128::from(info.age) >= age.as_nanos();
    let mut due: Vec<&TrashInfo> = trash.iter().filter(|info| reached(info, times.keep)).collect();
    if due.is_empty() && low {
        // One at a time, because its space comes back later. A volume without space of its own
        // would give none back.
        let mut old = trash.iter().filter(|info| reached(info, times.least) && info.space > 0);
        due.extend(old.next());
    }
    due
}

/// Starts the thread that purges.
pub(crate) fn start(app: Arc<App>) -> io::Result<Worker> {
    let mut paused = None;
    Worker::start("trash", INTERVAL, move || app.purge_due(&mut paused))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{create, pool};

    const HOUR: u64 = 3_600_000_000_000;

    #[test]
    fn volumes_are_purged_by_age_and_one_at_a_time_for_space() {
        let (_place, pool) = pool();
        let aged = |name: &str, hours: u64| {
            create(&pool, name);
            TrashInfo { age: hours * HOUR, space: 1, ..pool.trash_volume(name, false).unwrap() }
        };
        let trash = [aged("old", 30), aged("middle", 3), aged("older", 2), aged("new", 0)];
        let times = TrashTimes { keep: Duration::from_secs(86_400), least: Duration::from_secs(3600) };
        let due = |trash: &[TrashInfo], low| {
            let names = super::due(trash, times, low).into_iter().map(|info| info.volume.name.clone());
            names.collect::<Vec<_>>()
        };
        assert_eq!(due(&trash, false), ["old"]);
        assert_eq!(due(&trash, true), ["old"], "its space may be enough");
        assert_eq!(due(&trash[1..], false), [""; 0]);
        assert_eq!(due(&trash[1..], true), ["middle"]);
        assert_eq!(due(&trash[3..], true), [""; 0], "it is too young");
    }
}
