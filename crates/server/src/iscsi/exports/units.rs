//! The exports of a pool ([`Exports`]): logical units, and the targets that show them.
//!
//! Each volume or exported file has one logical unit. The server opens it when it is first needed,
//! and all targets that map the volume share it. The logical unit stays as long as the volume does,
//! because reservations outlive the sessions that made them.

use super::found::{Found, Shown};
use super::live::{Live, LiveTarget, Unit};
use crate::atomic_file::DurableFile;
use crate::iscsi::registry::Scope;
use crate::iscsi::store::Store;
use crate::latency::Latencies;
use crate::passthrough::FileDevice;
use hindcast_api::{Moment, Protocol};
use hindcast_engine::disk::Dir;
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::{Pool, SnapshotInfo, VolumeInfo};
use hindcast_engine::{Error, ErrorKind, Result, Volume, cdp};
use hindcast_target::iscsi::access::Otherwise;
use hindcast_target::scsi::{LogicalUnit, LuOptions, LuStore, Scan, Space, Target};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;
use uuid::Uuid;

/// Kind and version of the files that store the state of logical units.
pub(crate) const LU_KIND: &str = "logical-unit";
pub(crate) const LU_VERSION: u32 = 1;
/// The exports of a pool: the registry of targets, and the targets and logical units that are open.
pub(crate) struct Exports {
    pub(crate) pool: Arc<Pool>,
    pub(super) latencies: Latencies,
    pub(super) dir: Arc<dyn Dir>,
    pub(crate) store: Store,
    /// Whether a target without access rules admits every initiator or none.
    pub(crate) otherwise: Otherwise,
    /// Portal group tags, ascending. Each target has one port for each portal group.
    pub(super) groups: Vec<u16>,
    pub(super) live: Mutex<Live>,
}

/// The volume, snapshot or moment that a logical unit shows.
pub(crate) enum Source {
    Volume(VolumeInfo),
    /// A snapshot and its volume.
    Snapshot(SnapshotInfo, VolumeInfo),
    /// The LSN of a moment, and its volume.
    Moment(Lsn, VolumeInfo),
}

impl Source {
    /// Returns the address: `VOLUME`, `VOLUME@SNAPSHOT` or `VOLUME@lsn:N`.
    pub(crate) fn address(&self) -> String {
        match self {
            Source::Volume(volume) => volume.name.clone(),
            Source::Snapshot(snapshot, _) => format!("{}@{}", snapshot.volume, snapshot.name),
            Source::Moment(lsn, volume) => format!("{}@{}", volume.name, Moment::Lsn(lsn.0)),
        }
    }
}

/// The file that stores the state of a logical unit across restarts.
struct LuFile(DurableFile);

impl LuStore for LuFile {
    fn load(&self) -> Result<Option<Vec<u8>>> {
        self.0.load()
    }

    fn save(&self, state: &[u8]) -> Result<()> {
        self.0.save(state)
    }
}

/// Returns whether `name` is the name of a file that stores the state of a logical unit.
pub(crate) fn is_lu_file(name: &str) -> bool {
    name.starts_with("lu-") && name.ends_with(".state")
}

pub(super) fn lu_file_name(id: &Uuid) -> String {
    format!("lu-{id}.state")
}

impl Exports {
    pub(crate) fn new(
        (pool, latencies): (Arc<Pool>, Latencies),
        dir: Arc<dyn Dir>,
        store: Store,
        otherwise: Otherwise,
        groups: Vec<u16>,
    ) -> Arc<Exports> {
        Arc::new(Exports { pool, latencies, dir, store, otherwise, groups, live: Mutex::default() })
    }

    /// Returns the logical unit of a volume, snapshot, moment or file. Opens it if it is not open.
    pub(crate) fn unit(&self, id: &Uuid) -> Result<Arc<LogicalUnit>> {
        self.unit_in(&mut self.live.lock(), id)
    }

    fn unit_in(&self, live: &mut Live, id: &Uuid) -> Result<Arc<LogicalUnit>> {
        if let Some(unit) = live.units.get(id) {
            return Ok(unit.lu.clone());
        }
        if live.going.contains(id) {
            return Err(Error::new(ErrorKind::Busy, "open the volume: it is being deleted"));
        }
        let file = LuFile(DurableFile::new(self.dir.clone(), lu_file_name(id), LU_KIND, LU_VERSION));
        let store: Arc<dyn LuStore> = Arc::new(file);
        let unit = match self.store.get().files.get(id) {
            Some(spec) => {
                let device = FileDevice::open(spec.clone())?;
                let serial = spec.serial.clone();
                let options = LuOptions { product: "FILE".into(), serial, ..LuOptions::default() };
                let lu = LogicalUnit::new(device.clone(), options, Some(store))?;
                Unit { lu, past: false, file: Some(device) }
            }
            None => match live.moments.get(id).map_or_else(|| self.stored(id), |of| self.moment(of))? {
                Source::Volume(info) => {
                    let (volume, options) = self.volume_device(&info)?;
                    let device = self.latencies.timed(Protocol::Iscsi, info.uuid, volume);
                    Unit { lu: LogicalUnit::new(device, options, Some(store))?, past: false, file: None }
                }
                Source::Snapshot(info, _) => {
                    let snapshot = self.pool.open_snapshot(&info.volume, &info.name)?;
                    let options = LuOptions { product: "SNAPSHOT".into(), ..LuOptions::default() };
                    // A snapshot is read-only and can be deleted at any time. Its logical unit
                    // stores no state.
                    Unit { lu: LogicalUnit::new(snapshot, options, None)?, past: true, file: None }
                }
                Source::Moment(lsn, info) => {
                    let device = self.pool.open_moment(&info.name, &cdp::Moment::Lsn(lsn))?;
                    let options = LuOptions { product: "MOMENT".into(), ..LuOptions::default() };
                    Unit { lu: LogicalUnit::new(device, options, None)?, past: true, file: None }
                }
            },
        };
        let lu = unit.lu.clone();
        live.units.insert(*id, unit);
        Ok(lu)
    }

    /// Opens the device of a volume, and returns it with the options of its logical unit.
    fn volume_device(&self, info: &VolumeInfo) -> Result<(Arc<Volume>, LuOptions)> {
        let volume = self.pool.open_weak(&info.name)?;
        let (pool, watched) = (self.pool.clone(), volume.clone());
        let space = move || {
            let now = pool.volume(&watched.name());
            Space {
                used: now.as_ref().map_or(0, |v| v.allocated),
                available: pool.available_to(now.ok().and_then(|v| v.dedicated_pv)),
            }
        };
        let (pool, began) = (self.pool.clone(), Instant::now());
        let scan = move || {
            let scrub = pool.data_scrub();
            Scan {
                running: scrub.running,
                paused: scrub.paused,
                done: scrub.done(),
                total: scrub.total,
                passes: scrub.passes,
                minutes: u32::try_from(began.elapsed().as_secs() / 60).unwrap_or(u32::MAX),
            }
        };
        // A write that fits into one journal record is atomic in a crash.
        let atomic_bytes = u32::try_from(self.pool.max_record_bytes()).unwrap_or(0);
        let options = LuOptions {
            space: Some(Arc::new(space)),
            scan: Some(Arc::new(scan)),
            atomic_bytes,
            ..LuOptions::default()
        };
        Ok((volume, options))
    }

    /// Finds a volume, a snapshot, or a moment that is in use, by its UUID.
    pub(crate) fn source(&self, id: &Uuid) -> Result<Source> {
        let moment = self.live.lock().moments.get(id).copied();
        moment.map_or_else(|| self.stored(id), |of| self.moment(&of))
    }

    fn moment(&self, (volume, lsn): &(Uuid, Lsn)) -> Result<Source> {
        let volume = self.pool.volumes().into_iter().find(|v| v.uuid == *volume);
        let volume = volume
            .ok_or_else(|| Error::new(ErrorKind::NotFound, "find the volume of a moment: it was deleted"))?;
        Ok(Source::Moment(*lsn, volume))
    }

    /// Finds a volume or snapshot by its UUID.
    fn stored(&self, id: &Uuid) -> Result<Source> {
        if let Some(volume) = self.pool.volumes().into_iter().find(|v| v.uuid == *id) {
            return Ok(Source::Volume(volume));
        }
        let found = self.pool.all_snapshots().into_iter().find(|s| s.uuid == *id);
        let found = found
            .ok_or_else(|| Error::new(ErrorKind::NotFound, "find the volume or snapshot: it was deleted"))?;
        let volume = self.pool.volume(&found.volume)?;
        Ok(Source::Snapshot(found, volume))
    }

    /// Returns the target of the device server, and aligns its LUNs with the current mappings. A
    /// LUN whose logical unit can't be opened is left out.
    fn target(&self, found: &Found) -> Result<Arc<Target>> {
        self.target_in(&mut self.live.lock(), found)
    }

    pub(super) fn target_in(&self, live: &mut Live, found: &Found) -> Result<Arc<Target>> {
        // The registry is read under the lock. Otherwise an older state could replace the state
        // that another thread has just applied.
        let registry = self.store.get();
        if let Scope::Named(name) = &found.scope
            && !registry.named.contains_key(name)
        {
            return Err(Error::new(ErrorKind::NotFound, format!("open {name}: it was deleted")));
        }
        let (target, shows) = live.target(found, &self.groups)?;
        let found = &Found { shows, ..found.clone() };
        let wanted = found.luns(&registry);
        if let (Some(Shown::Moment(lsn)), Some(volume)) = (shows, &found.volume) {
            live.moments.extend(wanted.values().map(|id| (*id, (volume.uuid, lsn))));
        }
        for lun in target.inventory().keys().filter(|lun| !wanted.contains_key(lun)) {
            target.set_lun(*lun, None);
        }
        for (lun, id) in &wanted {
            let unit = self.unit_in(live, id);
            if let Err(error) = &unit {
                tracing::warn!(target = found.name, lun, %error, "a logical unit could not be opened");
            }
            let unit = unit.ok();
            let known = target.inventory().get(lun).cloned();
            let same = match (&unit, &known) {
                (Some(unit), Some(known)) => Arc::ptr_eq(unit, known),
                (None, None) => true,
                _ => false,
            };
            if !same {
                target.set_lun(*lun, unit);
            }
        }
        if found.volume.is_some() && target.inventory().is_empty() {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("open {}: its volume could not be opened", found.name),
            ));
        }
        Ok(target)
    }

    /// Aligns the LUNs of a created target with the current mappings. Its initiators get a unit
    /// attention if the LUNs changed. An error is only logged.
    pub(crate) fn realign(&self, name: &str) {
        let found = Found::named(name.to_owned());
        if let Err(error) = self.target(&found) {
            tracing::warn!(target = name, %error, "a target could not be opened");
        }
    }

    /// Returns the open targets of `scope` in the device server. A volume that was renamed can have
    /// more than one.
    pub(crate) fn live_targets(&self, scope: &Scope) -> Vec<Arc<Target>> {
        let live = self.live.lock();
        live.targets.values().filter(|t| t.scope == *scope).map(|t| t.target.clone()).collect()
    }

    /// Returns whether an initiator is logged in to a target that maps this volume or file.
    pub(crate) fn in_use(&self, id: &Uuid) -> bool {
        let live = self.live.lock();
        let Some(unit) = live.units.get(id) else {
            return false;
        };
        let maps = |t: &&LiveTarget| t.target.inventory().values().any(|lu| Arc::ptr_eq(lu, &unit.lu));
        live.targets.values().filter(maps).any(|t| !t.target.nexuses().is_empty())
    }

    /// Returns whether a session or a login uses a target that shows this snapshot or clone as a
    /// part of a volume's past.
    pub(crate) fn is_past_in_use(&self, id: &Uuid) -> bool {
        let shows =
            |t: &&LiveTarget| matches!(t.shows, Some(Shown::Snapshot(of) | Shown::Clone(of)) if of == *id);
        self.live.lock().targets.values().filter(shows).any(LiveTarget::is_in_use)
    }

    /// Sets or clears the block on a volume. While `going` is set, no initiator can begin to use
    /// the volume.
    pub(crate) fn set_going(&self, id: &Uuid, going: bool) {
        let mut live = self.live.lock();
        if going {
            live.going.insert(*id);
        } else {
            live.going.remove(id);
        }
    }

    /// Removes the logical unit of a deleted volume, or of a file that is no longer exported, from
    /// all targets. Deletes its state file. Returns the names of the targets that showed only this
    /// volume.
    pub(crate) fn forget_unit(&self, id: &Uuid) -> Vec<String> {
        let live = &mut *self.live.lock();
        if let Some(unit) = live.units.remove(id) {
            unit.lu.retire();
            for known in live.targets.values() {
                let luns: Vec<u16> = known
                    .target
                    .inventory()
                    .iter()
                    .filter(|(_, lu)| Arc::ptr_eq(lu, &unit.lu))
                    .map(|(lun, _)| *lun)
                    .collect();
                luns.into_iter().for_each(|lun| known.target.set_lun(lun, None));
            }
        }
        let file = DurableFile::new(self.dir.clone(), lu_file_name(id), LU_KIND, LU_VERSION);
        if let Err(error) = file.remove() {
            tracing::warn!(%error, "the state file of a deleted logical unit could not be removed; the next start removes it");
        }
        let scope = Scope::Volume(*id);
        let alone = |t: &LiveTarget| t.scope == scope || t.shows == Some(Shown::Clone(*id));
        live.targets.extract_if(|_, t| alone(t)).map(|(name, _)| name).collect()
    }

    /// Aborts the background work of all logical units, because the server stops.
    pub(crate) fn retire(&self) {
        self.live.lock().units.values().for_each(|unit| unit.lu.retire());
    }

    /// Drops a deleted target.
    pub(crate) fn forget_target(&self, name: &str) {
        self.live.lock().targets.remove(name);
    }

    /// Reports a volume's new size, or its new read-only setting, to initiators by a unit
    /// attention.
    pub(crate) fn volume_changed(&self, id: &Uuid, resized: bool, access: bool) {
        let unit = self.live.lock().units.get(id).map(|unit| unit.lu.clone());
        if let Some(lu) = unit {
            if resized {
                lu.notify_resized();
            }
            if access {
                lu.notify_inquiry_changed();
            }
        }
    }

    /// Replaces the logical unit of a volume that was rolled back. The new logical unit shows the
    /// volume's current content. Initiators get a unit attention before any other answer.
    pub(crate) fn volume_replaced(&self, info: &VolumeInfo) {
        let live = &mut *self.live.lock();
        let Some(old) = live.units.get(&info.uuid).map(|unit| unit.lu.clone()) else {
            return;
        };
        old.retire();
        let new = self.volume_device(info).and_then(|(volume, options)| old.successor(volume, options));
        let new = new.inspect_err(|error| {
            tracing::warn!(volume = info.name, %error, "a volume that was rolled back could not be exported again: initiators lose it");
        });
        let new = new.ok();
        match &new {
            Some(lu) => {
                let unit = Unit { lu: lu.clone(), past: false, file: None };
                live.units.insert(info.uuid, unit);
            }
            None => drop(live.units.remove(&info.uuid)),
        }
        for known in live.targets.values() {
            let inventory = known.target.inventory();
            let luns = inventory.iter().filter(|(_, lu)| Arc::ptr_eq(lu, &old));
            luns.for_each(|(lun, _)| known.target.set_lun(*lun, new.clone()));
        }
        if let Some(lu) = new {
            lu.notify_replaced(lu.info().size != old.info().size);
        }
    }

    /// Polls for changes that no event reports, and reports them to initiators. The length of an
    /// exported file can change, and space can become scarce. It also drops snapshots and moments
    /// that no session uses any more.
    pub(crate) fn look_around(&self) {
        self.live.lock().let_go();
        let units: Vec<(Arc<LogicalUnit>, Option<Arc<FileDevice>>)> = {
            let live = self.live.lock();
            live.units.values().map(|unit| (unit.lu.clone(), unit.file.clone())).collect()
        };
        for (lu, file) in units {
            lu.check_thresholds();
            match file.map_or(Ok(false), |file| file.refresh()) {
                Ok(true) => lu.notify_resized(),
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "an exported file could not be checked"),
            }
        }
    }
}
