//! The volumes and files that initiators reach, as the iSCSI server asks for them: which targets there are, who may log
//! in, and the logical units behind them.
//!
//! A logical unit is made once for each volume or file, when it is first needed, and shared by all targets that map it;
//! it stays as long as the volume does, since reservations outlive the sessions that made them.

use super::names::{self, SnapshotPart};
use super::registry::{Guard, Named, Registry, Scope, Settings, Store, Uuid};
use crate::durable::DurableFile;
use crate::moments::{self, Past};
use crate::passthrough::FileDevice;
use hindcast_api::Moment;
use hindcast_engine::cdp;
use hindcast_engine::disk::Dir;
use hindcast_engine::pool::{Pool, SnapshotInfo, VolumeInfo};
use hindcast_engine::world::uuid_text as uuid;
use hindcast_engine::{Error, ErrorKind, Result, Volume};
use hindcast_target::iscsi::access::{LunMask, Otherwise, Permit, decide};
use hindcast_target::iscsi::{AuthPolicy, Denied, Grant, Initiator, TargetEntry, Targets};
use hindcast_target::scsi::{Access, LogicalUnit, LuOptions, LuStore, Space, Target};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

/// Kind and version of the files that keep what logical units must remember.
const LU_KIND: &str = "logical-unit";
const LU_VERSION: u32 = 1;

/// See the module.
pub(crate) struct Exports {
    pub(crate) pool: Arc<Pool>,
    dir: Arc<dyn Dir>,
    pub(crate) store: Store,
    /// What happens where there is no rule.
    pub(crate) otherwise: Otherwise,
    /// Portal group tags, ascending: each target has a port for each.
    groups: Vec<u16>,
    live: Mutex<Live>,
}

/// What exists because somebody asked for it.
#[derive(Default)]
struct Live {
    units: HashMap<Uuid, Unit>,
    targets: HashMap<String, LiveTarget>,
    /// Moments that are in use: the identity of their logical units, with the volume's identity and the LSN.
    moments: HashMap<Uuid, (Uuid, u64)>,
    /// Volumes that are being deleted: nobody may begin to use them.
    going: HashSet<Uuid>,
}

struct Unit {
    lu: Arc<LogicalUnit>,
    /// A snapshot or moment: it keeps them from being reclaimed, and goes when no target has it.
    past: bool,
    /// Set where it is not a volume.
    file: Option<Arc<FileDevice>>,
}

struct LiveTarget {
    target: Arc<Target>,
    scope: Scope,
    /// It shows a snapshot or a moment, and goes with its last session.
    on_demand: bool,
    /// The LSN of the moment: fixed while somebody uses it, whatever its name comes to later.
    moment: Option<u64>,
}

/// A target that exists.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) scope: Scope,
    /// The volume whose target it is by default.
    pub(crate) volume: Option<VolumeInfo>,
    /// The snapshot of that volume that it shows.
    pub(crate) snapshot: Option<SnapshotInfo>,
    /// The moment of that volume that it shows, as LSN.
    pub(crate) moment: Option<u64>,
}

/// What of the pool a logical unit shows.
pub(crate) enum Source {
    Volume(VolumeInfo),
    /// With its volume.
    Snapshot(SnapshotInfo, VolumeInfo),
    /// An LSN, and its volume.
    Moment(u64, VolumeInfo),
}

impl Source {
    /// Its address.
    pub(crate) fn address(&self) -> String {
        match self {
            Source::Volume(volume) => volume.name.clone(),
            Source::Snapshot(snapshot, _) => format!("{}@{}", snapshot.volume, snapshot.name),
            Source::Moment(lsn, volume) => format!("{}@{}", volume.name, Moment::Lsn(*lsn)),
        }
    }
}

impl Found {
    /// What is mapped where.
    pub(crate) fn luns(&self, registry: &Registry) -> BTreeMap<u16, Uuid> {
        match (&self.snapshot, &self.volume, registry.named.get(&self.name)) {
            (Some(snapshot), _, _) => BTreeMap::from([(0, snapshot.uuid)]),
            (None, Some(volume), _) => BTreeMap::from([(0, self.identity(volume))]),
            (None, None, named) => named.map(|t| t.luns.clone()).unwrap_or_default(),
        }
    }

    /// Of the logical unit that shows a volume, or a moment of it.
    fn identity(&self, volume: &VolumeInfo) -> Uuid {
        let Some(lsn) = self.moment else {
            return volume.uuid;
        };
        // The volume's, with the moment in it: the same for each session, and for every time that it is opened.
        let mut id = volume.uuid;
        id.iter_mut().zip(lsn.to_le_bytes()).for_each(|(byte, lsn)| *byte ^= lsn);
        id[15] ^= 0x80;
        id
    }

    /// It exists while somebody uses it.
    fn on_demand(&self) -> bool {
        self.snapshot.is_some() || self.moment.is_some()
    }
}

/// What a logical unit keeps across restarts.
struct LuFile(DurableFile);

impl LuStore for LuFile {
    fn load(&self) -> Result<Option<Vec<u8>>> {
        self.0.load()
    }

    fn save(&self, state: &[u8]) -> Result<()> {
        self.0.save(state)
    }
}

fn lu_file_name(id: &Uuid) -> String {
    format!("lu-{}.state", uuid(id))
}

impl Exports {
    pub(crate) fn new(
        pool: Arc<Pool>,
        dir: Arc<dyn Dir>,
        store: Store,
        otherwise: Otherwise,
        groups: Vec<u16>,
    ) -> Arc<Exports> {
        Arc::new(Exports { pool, dir, store, otherwise, groups, live: Mutex::default() })
    }

    /// Brings what was kept in line with the volumes there are, and opens what is mapped explicitly: a file that is
    /// missing should be noticed when the server starts, not when an initiator does.
    pub(crate) fn begin(&self) -> Result<()> {
        let volumes: HashSet<Uuid> = self.pool.volumes().iter().map(|v| v.uuid).collect();
        let snapshots: HashSet<Uuid> = self.pool.all_snapshots().iter().map(|s| s.uuid).collect();
        self.store.update(|registry| {
            registry.forget_volumes(|uuid| volumes.contains(uuid) || snapshots.contains(uuid));
            Ok(())
        })?;
        let registry = self.store.get();
        let known: HashSet<String> = volumes.iter().chain(registry.files.keys()).map(lu_file_name).collect();
        let names = self.dir.list().map_err(|e| Error::io("list the data directory", e))?;
        for name in names.iter().filter(|n| n.starts_with("lu-") && n.ends_with(".state")) {
            if !known.contains(name) {
                DurableFile::new(self.dir.clone(), name, LU_KIND, LU_VERSION).remove()?;
            }
        }
        if !self.groups.is_empty() {
            registry.named.keys().for_each(|name| self.realign(name));
        }
        Ok(())
    }

    /// The target that a name means: an iSCSI name, a short one, or a volume's.
    pub(crate) fn find(&self, text: &str) -> Result<Found> {
        if let Some((volume, moment)) = text.split_once('@') {
            return self.find_past(self.pool.volume(volume)?, moment);
        }
        let registry = self.store.get();
        let name = names::target_name(text);
        if let Ok(name) = &name {
            if registry.named.contains_key(name) {
                return Ok(Found::named(name.clone()));
            }
            if let Some(volume) = self.volume_called(name) {
                return Ok(Found::of_volume(volume));
            }
            if let Some((snapshot, volume)) = self.snapshot_called(name) {
                return Ok(Found::of_snapshot(snapshot, volume));
            }
            if let Some(found) = self.moment_called(name) {
                return found;
            }
        }
        // A volume's name as it is written, where an iSCSI name can't be written like that.
        if let Ok(volume) = self.pool.volume(names::volume_part(text))
            && !registry.named.contains_key(&names::of_volume(&volume))
        {
            return Ok(Found::of_volume(volume));
        }
        let name = name?;
        Err(Error::new(ErrorKind::NotFound, format!("find target {name}: there is none")))
    }

    fn volume_called(&self, target: &str) -> Option<VolumeInfo> {
        let part = names::volume_part(target);
        let direct = self.pool.volume(part).ok().filter(|v| names::of_volume(v) == target);
        direct.or_else(|| {
            // Only names that were changed have a colon.
            let changed = part.contains(':') && part != target;
            let all = if changed { self.pool.volumes() } else { Vec::new() };
            all.into_iter().find(|v| names::of_volume(v) == target)
        })
    }

    /// What an address says of a volume's past.
    fn find_past(&self, volume: VolumeInfo, moment: &str) -> Result<Found> {
        match moments::find(&self.pool, &volume.name, moment)? {
            Past::Snapshot(snapshot) => Ok(Found::of_snapshot(snapshot, volume)),
            Past::Moment(moment) => {
                let lsn = self.pool.resolve(&volume.name, &moment)?.lsn;
                Ok(Found::of_moment(names::of_moment(&volume, lsn), volume, lsn))
            }
        }
    }

    /// A moment by the name of its target. One that is in use stays what it was when it was opened.
    fn moment_called(&self, target: &str) -> Option<Result<Found>> {
        let (of, moment) = names::moment_part(target)?;
        let volume = self.volume_called(of)?;
        let known = self.live.lock().targets.get(target).and_then(|t| t.moment);
        let found = match known {
            Some(lsn) => Ok(Found::of_moment(target.to_owned(), volume, lsn)),
            None => self.find_past(volume, moment).map(|found| match found.moment {
                Some(_) => Found { name: target.to_owned(), ..found },
                None => found,
            }),
        };
        Some(found)
    }

    fn snapshot_called(&self, target: &str) -> Option<(SnapshotInfo, VolumeInfo)> {
        let snapshot = match names::snapshot_part(target)? {
            SnapshotPart::Named(volume, snapshot) => self.pool.snapshot(volume, snapshot).ok()?,
            SnapshotPart::Identified(id) => self.pool.all_snapshots().into_iter().find(|s| s.uuid == id)?,
        };
        let volume = self.pool.volume(&snapshot.volume).ok()?;
        (names::of_snapshot(&snapshot) == target).then_some((snapshot, volume))
    }

    /// All targets, by name. Those of snapshots exist as soon as somebody asks for them: they are told only while they are
    /// in use.
    pub(crate) fn all(&self) -> Vec<Found> {
        let registry = self.store.get();
        let named = registry.named.keys().cloned().map(Found::named);
        let volumes = self.pool.volumes().into_iter().map(Found::of_volume);
        let mut all: Vec<Found> =
            named.chain(volumes.filter(|v| !registry.named.contains_key(&v.name))).collect();
        let live: Vec<String> = {
            let live = self.live.lock();
            live.targets.iter().filter(|(_, t)| t.on_demand).map(|(name, _)| name.clone()).collect()
        };
        all.extend(live.iter().filter_map(|name| self.find(name).ok().filter(Found::on_demand)));
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// What an initiator may do with a target.
    pub(crate) fn permit(
        &self,
        registry: &Registry,
        guard: &Guard,
        initiator: &str,
        address: IpAddr,
    ) -> Option<Permit> {
        decide(&guard.rules, &registry.all.rules, self.otherwise, initiator, address)
    }

    /// The logical unit of a volume or file, opened if it is not yet.
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
                let options = LuOptions { product: "FILE".into(), ..LuOptions::default() };
                let lu = LogicalUnit::new(device.clone(), options, Some(store))?;
                Unit { lu, past: false, file: Some(device) }
            }
            None => match live.moments.get(id).map_or_else(|| self.stored(id), |of| self.moment(of))? {
                Source::Volume(info) => {
                    let (volume, options) = self.volume_device(&info)?;
                    Unit { lu: LogicalUnit::new(volume, options, Some(store))?, past: false, file: None }
                }
                Source::Snapshot(info, _) => {
                    let snapshot = self.pool.open_snapshot(&info.volume, &info.name)?;
                    let options = LuOptions { product: "SNAPSHOT".into(), ..LuOptions::default() };
                    // Nothing of it outlives its sessions: it is read-only, and may go at any time.
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

    /// The device of a volume, and how it presents itself.
    fn volume_device(&self, info: &VolumeInfo) -> Result<(Arc<Volume>, LuOptions)> {
        let volume = self.pool.watch_volume(&info.name)?;
        let (pool, watched) = (self.pool.clone(), volume.clone());
        let space = move || Space {
            used: pool.volume(&watched.name()).map_or(0, |v| v.allocated),
            available: pool.info().available,
        };
        // What fits a journal record is there as a whole after a crash, or not at all.
        let atomic_bytes = u32::try_from(self.pool.max_record_bytes()).unwrap_or(0);
        let options = LuOptions { space: Some(Arc::new(space)), atomic_bytes, ..LuOptions::default() };
        Ok((volume, options))
    }

    /// A volume, snapshot or moment by its identity.
    pub(crate) fn source(&self, id: &Uuid) -> Result<Source> {
        let moment = self.live.lock().moments.get(id).copied();
        moment.map_or_else(|| self.stored(id), |of| self.moment(&of))
    }

    fn moment(&self, (volume, lsn): &(Uuid, u64)) -> Result<Source> {
        let volume = self.pool.volumes().into_iter().find(|v| v.uuid == *volume);
        let volume = volume
            .ok_or_else(|| Error::new(ErrorKind::NotFound, "find the volume of a moment: it was deleted"))?;
        Ok(Source::Moment(*lsn, volume))
    }

    /// A volume or snapshot by its identity.
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

    /// The target as the device server has it, with its logical units as they are mapped now. One that can't be opened is
    /// not there.
    fn target(&self, found: &Found) -> Result<Arc<Target>> {
        let live = &mut *self.live.lock();
        // Read under the lock: what is put in place below must not be older than what another thread has just put.
        let registry = self.store.get();
        if let Scope::Named(name) = &found.scope
            && !registry.named.contains_key(name)
        {
            return Err(Error::new(ErrorKind::NotFound, format!("open {name}: it was deleted")));
        }
        if let Some(old) = live.targets.get(&found.name)
            && old.scope != found.scope
        {
            // The name belonged to a volume that was renamed, and whose sessions go on.
            if !old.target.nexuses().is_empty() {
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!("open {}: its old sessions go on", found.name),
                ));
            }
            live.targets.remove(&found.name);
        }
        let target = match live.targets.get(&found.name) {
            Some(known) => known.target.clone(),
            None => {
                let target = Target::new(&found.name, &self.groups);
                let known = LiveTarget {
                    target: target.clone(),
                    scope: found.scope.clone(),
                    on_demand: found.on_demand(),
                    moment: found.moment,
                };
                live.targets.insert(found.name.clone(), known);
                target
            }
        };
        // Of two that log in at once by the same name, the moment of the first counts.
        let moment = live.targets.get(&found.name).and_then(|t| t.moment);
        let found = &Found { moment, ..found.clone() };
        let wanted = found.luns(&registry);
        if let (Some(lsn), Some(volume)) = (found.moment, &found.volume) {
            live.moments.extend(wanted.values().map(|id| (*id, (volume.uuid, lsn))));
        }
        for lun in target.inventory().keys().filter(|lun| !wanted.contains_key(lun)) {
            target.set_lun(*lun, None);
        }
        for (lun, id) in &wanted {
            let unit = self.unit_in(live, id);
            if let Err(error) = &unit {
                tracing::warn!(target = found.name, lun, %error, "a logical unit can't be opened");
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
                format!("open {}: its volume can't be opened", found.name),
            ));
        }
        Ok(target)
    }

    /// Brings a target that was created in line with what is mapped now; its initiators learn of it.
    pub(crate) fn realign(&self, name: &str) {
        let found = Found::named(name.to_owned());
        if let Err(error) = self.target(&found) {
            tracing::warn!(target = name, %error, "a target can't be opened");
        }
    }

    /// The targets of the device server that a target has: more than one after its volume was renamed.
    pub(crate) fn live_targets(&self, scope: &Scope) -> Vec<Arc<Target>> {
        let live = self.live.lock();
        live.targets.values().filter(|t| t.scope == *scope).map(|t| t.target.clone()).collect()
    }

    /// Whether anybody is logged in to a target that maps a volume or file.
    pub(crate) fn in_use(&self, id: &Uuid) -> bool {
        let live = self.live.lock();
        let Some(unit) = live.units.get(id) else {
            return false;
        };
        let maps = |t: &&LiveTarget| t.target.inventory().values().any(|lu| Arc::ptr_eq(lu, &unit.lu));
        live.targets.values().filter(maps).any(|t| !t.target.nexuses().is_empty())
    }

    /// From here on nobody begins to use a volume, until this is taken back.
    pub(crate) fn set_going(&self, id: &Uuid, going: bool) {
        let mut live = self.live.lock();
        if going {
            live.going.insert(*id);
        } else {
            live.going.remove(id);
        }
    }

    /// A volume or file is gone, or no longer exported: takes it from all targets and forgets what was kept of it. Tells
    /// the names of targets that were its alone.
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
            tracing::warn!(%error, "the state of a logical unit that is gone stays until the next start");
        }
        let scope = Scope::Volume(*id);
        let names = live.targets.iter().filter(|(_, t)| t.scope == scope).map(|(name, _)| name.clone());
        let names: Vec<String> = names.collect();
        live.targets.retain(|_, t| t.scope != scope);
        names
    }

    /// The server stops: what logical units do by themselves ends.
    pub(crate) fn retire(&self) {
        self.live.lock().units.values().for_each(|unit| unit.lu.retire());
    }

    /// A target that was created is gone.
    pub(crate) fn forget_target(&self, name: &str) {
        self.live.lock().targets.remove(name);
    }

    /// Tells initiators that a volume has another size, or became read-only or writable.
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

    /// A volume has another content from one moment to the next: it was rolled back. Its logical unit is replaced by one
    /// that shows it as it is now, and initiators learn of that before anything else.
    pub(crate) fn volume_replaced(&self, info: &VolumeInfo) {
        let live = &mut *self.live.lock();
        let Some(old) = live.units.get(&info.uuid).map(|unit| unit.lu.clone()) else {
            return;
        };
        old.retire();
        let new = self.volume_device(info).and_then(|(volume, options)| old.successor(volume, options));
        let new = new.inspect_err(|error| {
            tracing::warn!(volume = info.name, %error, "initiators lose a volume that was rolled back");
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

    /// Lets go of snapshots that nobody uses any more, so that deleted ones give their space back.
    fn let_go(&self) {
        let live = &mut *self.live.lock();
        // A login holds the target before its session does.
        live.targets.retain(|_, t| {
            !t.on_demand || Arc::strong_count(&t.target) > 1 || !t.target.nexuses().is_empty()
        });
        let inventories: Vec<_> = live.targets.values().map(|t| t.target.inventory()).collect();
        let mapped = |lu: &Arc<LogicalUnit>| {
            inventories.iter().any(|inventory| inventory.values().any(|known| Arc::ptr_eq(known, lu)))
        };
        live.units.retain(|_, unit| !unit.past || mapped(&unit.lu));
        live.moments.retain(|id, _| live.units.contains_key(id));
    }

    /// Looks for what nobody tells: that an exported file has another length now, that space has become scarce, that a
    /// snapshot is not used any more. Tells initiators.
    pub(crate) fn look_around(&self) {
        self.let_go();
        let units: Vec<(Arc<LogicalUnit>, Option<Arc<FileDevice>>)> = {
            let live = self.live.lock();
            live.units.values().map(|unit| (unit.lu.clone(), unit.file.clone())).collect()
        };
        for (lu, file) in units {
            lu.check_thresholds();
            match file.map_or(Ok(false), |file| file.refresh()) {
                Ok(true) => lu.notify_resized(),
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "an exported file can't be looked at"),
            }
        }
    }
}

impl Found {
    fn named(name: String) -> Found {
        Found { scope: Scope::Named(name.clone()), name, volume: None, snapshot: None, moment: None }
    }

    fn of_volume(volume: VolumeInfo) -> Found {
        let (name, scope) = (names::of_volume(&volume), Scope::Volume(volume.uuid));
        Found { name, scope, volume: Some(volume), snapshot: None, moment: None }
    }

    /// Who may see a volume may see its past: the rules of its target count here too.
    fn of_snapshot(snapshot: SnapshotInfo, volume: VolumeInfo) -> Found {
        let (name, scope) = (names::of_snapshot(&snapshot), Scope::Volume(volume.uuid));
        Found { name, scope, volume: Some(volume), snapshot: Some(snapshot), moment: None }
    }

    fn of_moment(name: String, volume: VolumeInfo, lsn: u64) -> Found {
        let scope = Scope::Volume(volume.uuid);
        Found { name, scope, volume: Some(volume), snapshot: None, moment: Some(lsn) }
    }
}

/// What the device server is told of a permit.
pub(crate) fn access(permit: Permit) -> Access {
    let luns = match permit.luns {
        LunMask::All => None,
        LunMask::Only(luns) => Some(luns.into_iter().collect()),
    };
    Access { read_only: permit.read_only, luns }
}

/// CHAP of a target, or else of all.
fn auth(own: &Guard, all: &Guard) -> AuthPolicy {
    own.chap.as_ref().or(all.chap.as_ref()).map_or(AuthPolicy::None, |chap| chap.policy())
}

impl Targets for Exports {
    fn list(&self, initiator: &Initiator<'_>) -> Vec<TargetEntry> {
        let registry = self.store.get();
        let default = Settings::default();
        let visible = |found: &Found| {
            let settings = match &found.scope {
                Scope::Named(name) => registry.named.get(name).map(|t: &Named| &t.settings),
                Scope::Volume(id) => Some(registry.volumes.get(id).unwrap_or(&default)),
                Scope::All => None,
            };
            // With thousands of snapshots, a list of them would be of no use.
            !found.on_demand()
                && settings.is_some_and(|s| {
                    s.enabled
                        && self.permit(&registry, &s.guard, initiator.name, initiator.peer.ip()).is_some()
                })
        };
        let entry = |found: Found| TargetEntry { name: found.name, portal_groups: Vec::new() };
        self.all().into_iter().filter(visible).map(entry).collect()
    }

    fn discovery_auth(&self, _initiator: &Initiator<'_>) -> AuthPolicy {
        auth(&Guard::default(), &self.store.get().all)
    }

    fn login(&self, target: &str, initiator: &Initiator<'_>) -> std::result::Result<Grant, Denied> {
        let found = self.find(target).map_err(|_| Denied::NotFound)?;
        let registry = self.store.get();
        let settings = registry.settings(&found.scope);
        if !settings.enabled {
            return Err(Denied::NotFound);
        }
        let permit = self.permit(&registry, &settings.guard, initiator.name, initiator.peer.ip());
        let permit = permit.ok_or(Denied::Forbidden)?;
        let target = self.target(&found).map_err(|error| {
            tracing::warn!(target = found.name, %error, "a login has to wait");
            Denied::Unavailable
        })?;
        let auth = auth(&settings.guard, &registry.all);
        Ok(Grant { target, access: access(permit), auth, alias: settings.alias })
    }
}
