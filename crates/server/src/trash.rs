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
const LEAST_DIGITS: usize = 8;
/// The shortest part of a UUID for which an error tells the volumes that it may be.
const HINT_DIGITS: usize = 4;

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
            tracing::warn!(volume = volume.name, %error, "the views of a deleted volume stay for now");
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

    fn find_in_trash(&self, id: &str) -> Result<Uuid> {
        find(&self.pool.trash(), id)
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
            history_bytes: info.history,
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
        if let Err(error) = self.iscsi.unmap_late() {
            tracing::debug!(%error, "LUNs of deleted volumes stay for now");
        }
        let now = Instant::now();
        let low = match paused.is_none_or(|until| now >= until) {
            true => Low {
                space: &|info| self.pool.lacks_own_space(&info.volume),
                history: self.pool.lacks_history_room(),
            },
            false => Low { space: &|_| false, history: false },
        };
        for info in due(&self.pool.trash(), self.trash, low) {
            if low.history || (low.space)(info) {
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

/// What the volumes in use lack.
#[derive(Clone, Copy)]
struct Low<'a> {
    /// Space where a volume in the trash has its own.
    space: &'a dyn Fn(&TrashInfo) -> bool,
    /// Room for histories in the data directory's file system.
    history: bool,
}

/// Finds a volume in the trash by its UUID, by the first digits of it, or by its name.
fn find(trash: &[TrashInfo], id: &str) -> Result<Uuid> {
    let uuid = id.strip_prefix("uuid:").unwrap_or(id);
    let digits = uuid.replace('-', "").to_ascii_lowercase();
    let is_hex = digits.len() >= HINT_DIGITS && digits.bytes().all(|b| b.is_ascii_hexdigit());
    let named: Vec<&TrashInfo> = trash.iter().filter(|t| t.volume.name == id).collect();
    let is_named = !named.is_empty();
    let found = match !is_named && is_hex {
        true => trash.iter().filter(|t| t.volume.uuid.simple().to_string().starts_with(&digits)).collect(),
        false => named,
    };
    match &found[..] {
        [one] if is_named || digits.len() >= LEAST_DIGITS => Ok(one.volume.uuid),
        [] => {
            let text = format!("find {id} in the trash: no deleted volume has this name or UUID");
            Err(Error::new(ErrorKind::NotFound, text))
        }
        several => {
            let all: Vec<String> =
                several.iter().map(|t| format!("{} ({})", t.volume.uuid, t.volume.name)).collect();
            let all = all.join(", ");
            let text = format!(
                "find {id} in the trash: it may be any of {all}; give at least {LEAST_DIGITS} digits of its UUID"
            );
            Err(Error::new(ErrorKind::Conflict, text))
        }
    }
}

/// Returns the volumes to purge now. `trash` is ordered by age, the oldest first.
fn due<'t>(trash: &'t [TrashInfo], times: TrashTimes, low: Low<'_>) -> Vec<&'t TrashInfo> {
    let reached = |info: &&TrashInfo, age: Duration| u128::from(info.age) >= age.as_nanos();
    let mut due: Vec<&TrashInfo> = trash.iter().filter(|info| reached(info, times.keep)).collect();
    if due.is_empty() {
        // One at a time, because its space comes back later. A volume that has nothing of what is
        // lacking would give nothing back.
        let helps =
            |info: &&TrashInfo| info.space > 0 && (low.space)(info) || low.history && info.history > 0;
        due.extend(trash.iter().filter(|info| reached(info, times.least)).find(helps));
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
        let recorded = TrashInfo { history: 1, ..aged("older", 2) };
        let trash =
            [aged("old", 30), aged("middle", 3), recorded, TrashInfo { history: 1, ..aged("new", 0) }];
        let times = TrashTimes { keep: Duration::from_secs(86_400), least: Duration::from_secs(3600) };
        let due = |trash: &[TrashInfo], space| {
            let low = Low { space: &|_| space, history: false };
            let names = super::due(trash, times, low).into_iter().map(|info| info.volume.name.clone());
            names.collect::<Vec<_>>()
        };
        assert_eq!(due(&trash, false), ["old"]);
        assert_eq!(due(&trash, true), ["old"], "its space may be enough");
        assert_eq!(due(&trash[1..], false), [""; 0]);
        assert_eq!(due(&trash[1..], true), ["middle"]);
        assert_eq!(due(&trash[3..], true), [""; 0], "it is too young");
        let for_history = super::due(&trash[1..], times, Low { space: &|_| false, history: true });
        assert_eq!(for_history.iter().map(|info| &info.volume.name[..]).collect::<Vec<_>>(), ["older"]);
        assert!(super::due(&trash[3..], times, Low { space: &|_| true, history: true }).is_empty());
    }

    #[test]
    fn few_digits_name_no_volume() {
        let (_place, pool) = pool();
        create(&pool, "db");
        create(&pool, "cafe");
        let db = pool.trash_volume("db", false).unwrap();
        let cafe = pool.trash_volume("cafe", false).unwrap();
        let trash = [db.clone(), cafe.clone()];
        let uuid = db.volume.uuid.to_string();
        assert_eq!(find(&trash, "db").unwrap(), db.volume.uuid);
        assert_eq!(find(&trash, "cafe").unwrap(), cafe.volume.uuid, "a name may look like a UUID");
        for digits in [8, 9, 20, 36] {
            assert_eq!(find(&trash, &uuid[..digits].to_uppercase()).unwrap(), db.volume.uuid, "{digits}");
            assert_eq!(find(&trash, &format!("uuid:{}", &uuid[..digits])).unwrap(), db.volume.uuid);
        }
        for digits in [4, 7] {
            let error = find(&trash, &uuid[..digits]).unwrap_err();
            assert!(error.kind() == ErrorKind::Conflict && error.to_string().contains(&uuid), "{error}");
        }
        assert_eq!(find(&trash, &uuid[..3]).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
