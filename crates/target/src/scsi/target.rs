//! A target: its ports, its inventory of logical units, and the I_T nexuses ([`Nexus`]) of its
//! sessions. The module [`super::dispatch`] begins the commands of a nexus.

use super::events::{Event, Events};
use super::lu::{LogicalUnit, LuNexus};
use super::ports::{TargetPort, lun_from_wire};
use super::sense::{Asc, Sense, SenseKey};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A SCSI target device: a name, ports and logical units.
pub struct Target {
    name: Arc<str>,
    ports: RwLock<Vec<Arc<TargetPort>>>,
    luns: RwLock<Arc<BTreeMap<u16, Arc<LogicalUnit>>>>,
    nexuses: Mutex<Vec<Weak<Nexus>>>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Target {
    /// Creates a target with a port for each portal group. The relative identifiers of the ports
    /// are 1, 2, … in the order of `portal_groups`.
    pub fn new(name: &str, portal_groups: &[u16]) -> Arc<Target> {
        let name: Arc<str> = name.into();
        let port = |(n, &portal_group): (usize, &u16)| {
            let relative_id = u16::try_from(n + 1).unwrap_or(u16::MAX);
            Arc::new(TargetPort { target: name.clone(), portal_group, relative_id })
        };
        let ports = RwLock::new(portal_groups.iter().enumerate().map(port).collect());
        Arc::new(Target { name, ports, luns: RwLock::default(), nexuses: Mutex::default() })
    }

    /// Returns the name of the target.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the ports of the target.
    pub fn ports(&self) -> Vec<Arc<TargetPort>> {
        self.ports.read().clone()
    }

    /// Returns the logical units of the target by their numbers.
    pub fn inventory(&self) -> Arc<BTreeMap<u16, Arc<LogicalUnit>>> {
        self.luns.read().clone()
    }

    /// Adds, replaces or (with `None`) removes a logical unit. Initiators get a unit attention
    /// about the changed inventory. The largest number that an initiator can address is
    /// [`super::MAX_LUN`].
    pub fn set_lun(&self, lun: u16, lu: Option<Arc<LogicalUnit>>) {
        {
            let mut luns = self.luns.write();
            let mut changed = BTreeMap::clone(&luns);
            match lu {
                Some(lu) => changed.insert(lun, lu),
                None => changed.remove(&lun),
            };
            *luns = Arc::new(changed);
        }
        for nexus in self.nexuses() {
            nexus.sync_luns(true);
        }
    }

    /// Returns the nexuses of the sessions.
    pub fn nexuses(&self) -> Vec<Arc<Nexus>> {
        self.nexuses.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Creates the nexus of a new session. `initiator` is the name of the SCSI initiator port,
    /// `iqn,i,0xISID`. Returns `None` if the target has no port in the portal group, or if the name
    /// is not valid. The session must call [`Nexus::detach`] at its end.
    pub fn attach(
        self: &Arc<Self>,
        initiator: &str,
        portal_group: u16,
        access: Access,
        events: Arc<dyn NexusEvents>,
    ) -> Option<Arc<Nexus>> {
        // A stored reservation contains the name on a line of text.
        if initiator.chars().any(|c| c.is_control() || c.is_whitespace() && c != ' ') {
            return None;
        }
        let port = self.ports.read().iter().find(|p| p.portal_group == portal_group)?.clone();
        let nexus = Nexus::new(self.clone(), initiator, port, access, events);
        self.nexuses.lock().push(Arc::downgrade(&nexus));
        nexus.sync_luns(false); // the inventory may have changed before it was known
        Some(nexus)
    }

    pub(crate) fn forget(&self, nexus: &Nexus) {
        self.nexuses.lock().retain(|n| n.upgrade().is_some_and(|n| !std::ptr::eq(&*n, nexus)));
    }
}

/// The access of an initiator to a target.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Whether the initiator may only read. It may not write, nor change mode parameters or
    /// reservations, nor reset a logical unit.
    pub read_only: bool,
    /// The logical units that the initiator may see. `None` means all logical units of the target.
    pub luns: Option<BTreeSet<u16>>,
    /// Further limits of single logical units among those that the initiator may see.
    pub limits: BTreeMap<u16, Limit>,
}

/// A limit of an initiator's access to one logical unit of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// The initiator may only read, as with [`Access::read_only`].
    ReadOnly,
    /// The initiator does not see the logical unit.
    Hidden,
}

impl Access {
    fn sees(&self, lun: u16) -> bool {
        self.luns.as_ref().is_none_or(|luns| luns.contains(&lun))
            && self.limits.get(&lun) != Some(&Limit::Hidden)
    }

    fn may_only_read(&self, lun: u16) -> bool {
        self.read_only || self.limits.get(&lun) == Some(&Limit::ReadOnly)
    }
}

/// A session, as the device server uses it.
pub trait NexusEvents: Events {
    /// Returns the nexuses of other sessions of the same initiator with this server. The session
    /// lists them only if the identity of the initiator is certain.
    fn others(&self) -> Vec<Arc<Nexus>> {
        Vec::new()
    }
}

/// An implementation for tests, and for a transport that has no tasks of its own.
impl NexusEvents for () {}

/// An I_T nexus. It exists from the login to the end of the session.
pub struct Nexus {
    pub(crate) target: Arc<Target>,
    pub(crate) initiator: Arc<str>,
    pub(crate) port: Arc<TargetPort>,
    access: RwLock<Access>,
    events: Arc<dyn NexusEvents>,
    luns: RwLock<BTreeMap<u16, Arc<LuNexus>>>,
    /// Whether the initiator has no report of a changed inventory yet. REPORT LUNS is such a
    /// report, and so is the unit attention.
    lun_news: Arc<AtomicBool>,
}

impl fmt::Debug for Nexus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.initiator, self.port.name())
    }
}

impl Nexus {
    pub(crate) fn new(
        target: Arc<Target>,
        initiator: &str,
        port: Arc<TargetPort>,
        access: Access,
        events: Arc<dyn NexusEvents>,
    ) -> Arc<Nexus> {
        let initiator = initiator.to_ascii_lowercase().into();
        let (access, luns) = (RwLock::new(access), RwLock::default());
        let lun_news = Arc::default();
        let nexus = Arc::new(Nexus { target, initiator, port, access, events, luns, lun_news });
        nexus.sync_luns(false);
        nexus
    }

    /// Returns the name of the initiator port.
    pub fn initiator(&self) -> &str {
        &self.initiator
    }

    /// Returns the target port that the initiator logged in to.
    pub fn port(&self) -> &Arc<TargetPort> {
        &self.port
    }

    /// Returns the target of the nexus.
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// Returns the access of the initiator.
    pub fn access(&self) -> Access {
        self.access.read().clone()
    }

    /// Changes the access of the initiator.
    pub fn set_access(&self, access: Access) {
        *self.access.write() = access;
        self.sync_luns(true);
    }

    /// Updates the logical units of the nexus from the target's inventory and the access rules.
    pub(crate) fn sync_luns(&self, notify: bool) {
        let access = self.access.read().clone();
        let wanted = self.target.inventory();
        let (mut gone, mut added) = (Vec::new(), false);
        let mut luns = self.luns.write();
        luns.retain(|lun, path| {
            let keep = access.sees(*lun) && wanted.get(lun).is_some_and(|lu| Arc::ptr_eq(lu, &path.lu));
            if !keep {
                gone.push(path.clone());
            }
            keep
        });
        for (lun, lu) in wanted.iter().filter(|(lun, _)| access.sees(**lun)) {
            let path = luns.entry(*lun).or_insert_with(|| {
                added = true;
                self.new_path(*lun, lu)
            });
            path.read_only.store(access.may_only_read(*lun), Ordering::Release);
        }
        drop(luns);
        for path in &gone {
            path.gone.store(true, Ordering::Release);
            path.lu.remove_path(path);
            path.abort_tasks();
        }
        if notify && (added || !gone.is_empty()) {
            self.tell_of_luns();
        }
    }

    /// Establishes the unit attention about a changed inventory for every logical unit. The session
    /// gets one event, for any number of logical units.
    fn tell_of_luns(&self) {
        let sense = Sense::new(SenseKey::UnitAttention, Asc::REPORTED_LUNS_DATA_CHANGED);
        let paths = self.paths();
        let Some(first) = paths.first() else {
            return; // nothing is left that could report it
        };
        let was_news = self.lun_news.swap(true, Ordering::AcqRel);
        for path in &paths {
            path.establish_silently(sense.clone());
        }
        if !was_news {
            self.events.event(Event::UnitAttention { lun: first.lun, sense });
        }
    }

    /// Records that the initiator has requested the inventory. It has the report of all earlier
    /// changes.
    pub(crate) fn luns_are_reported(&self) {
        self.lun_news.store(false, Ordering::Release);
    }

    /// Returns whether a unit attention of an earlier event has not reached the initiator yet. A
    /// change of the inventory has also reached an initiator that requested the inventory after it.
    pub fn is_unreported(&self, lun: u16, asc: Asc) -> bool {
        if asc == Asc::REPORTED_LUNS_DATA_CHANGED {
            return self.lun_news.load(Ordering::Acquire);
        }
        self.luns.read().get(&lun).is_some_and(|path| path.has_attention(asc))
    }

    fn new_path(&self, lun: u16, lu: &Arc<LogicalUnit>) -> Arc<LuNexus> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let path = Arc::new(LuNexus {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            initiator: self.initiator.clone(),
            port: self.port.clone(),
            lun,
            lu: lu.clone(),
            read_only: AtomicBool::new(true),
            events: self.events.clone(),
            fences: AtomicU64::new(0),
            attentive: AtomicBool::new(false),
            attentions: Mutex::default(),
            lun_news: self.lun_news.clone(),
            gone: AtomicBool::new(false),
        });
        lu.add_path(&path);
        path
    }

    /// Returns the numbers of the logical units that the initiator sees.
    pub fn luns(&self) -> Vec<u16> {
        self.luns.read().keys().copied().collect()
    }

    pub(crate) fn paths(&self) -> Vec<Arc<LuNexus>> {
        self.luns.read().values().cloned().collect()
    }

    /// Returns the nexuses of all logical units that the initiator sees. Those of this session come
    /// first. Those of its other sessions with this server follow, with the writable ones before
    /// the read-only ones.
    pub(crate) fn reachable(&self) -> Vec<Arc<LuNexus>> {
        let mut others: Vec<_> = self.events.others().iter().flat_map(|nexus| nexus.paths()).collect();
        others.sort_by_key(|path| path.read_only.load(Ordering::Acquire));
        let mut all = self.paths();
        all.extend(others);
        all
    }

    pub(super) fn path(&self, lun: u64) -> Option<Arc<LuNexus>> {
        self.luns.read().get(&lun_from_wire(lun)?).cloned()
    }

    /// Carries out LOGICAL UNIT RESET (SAM-5 7.7). Returns false if the logical unit does not
    /// exist. The session aborts its own tasks.
    pub fn reset_lu(&self, lun: u64) -> bool {
        let path = self.path(lun);
        if let Some(path) = &path {
            path.lu.reset(path);
        }
        path.is_some()
    }

    /// Carries out CLEAR TASK SET (SAM-5 7.5). It aborts the tasks of other nexuses, and
    /// establishes a unit attention for each nexus that had tasks. The session aborts its own
    /// tasks. Returns false if the logical unit does not exist.
    pub fn clear_task_set(&self, lun: u64) -> bool {
        let Some(path) = self.path(lun) else {
            return false;
        };
        for other in path.lu.paths().iter().filter(|p| !Arc::ptr_eq(p, &path)) {
            if other.abort_tasks() > 0 {
                other.establish(Sense::new(SenseKey::UnitAttention, Asc::COMMANDS_CLEARED));
            }
        }
        self.abort_task_set(lun)
    }

    /// Carries out ABORT TASK SET (SAM-5 7.3), after the session aborted its tasks. When this
    /// function returns, a write that was in progress is complete, or it never reaches the device.
    /// Returns false if the logical unit does not exist.
    pub fn abort_task_set(&self, lun: u64) -> bool {
        let path = self.path(lun);
        if let Some(path) = &path {
            path.fence();
            path.lu.settle();
        }
        path.is_some()
    }

    /// Carries out TARGET WARM or COLD RESET (RFC 7143 11.5.1): resets every logical unit that the
    /// nexus sees.
    pub fn reset_target(&self) {
        for path in self.paths() {
            path.lu.reset(&path);
        }
    }

    /// Returns whether the initiator may abort tasks of other nexuses at a logical unit, or reset
    /// the logical unit. An initiator that may only read may not affect other initiators.
    pub fn may_disturb(&self, lun: u64) -> bool {
        self.path(lun).is_some_and(|path| !path.read_only.load(Ordering::Acquire))
    }

    /// Returns whether the initiator may write to at least one logical unit that it sees.
    pub fn may_write(&self) -> bool {
        self.paths().iter().any(|path| !path.read_only.load(Ordering::Acquire))
    }

    /// Returns whether the initiator may affect other initiators at every logical unit that it
    /// sees.
    pub fn may_disturb_all(&self) -> bool {
        self.paths().iter().all(|path| !path.read_only.load(Ordering::Acquire))
    }

    /// Returns whether the initiator may end the sessions of other initiators. It needs write
    /// access to all logical units of the target.
    pub fn may_end_sessions(&self) -> bool {
        let seen = self.luns();
        self.may_disturb_all() && self.target.inventory().keys().all(|lun| seen.binary_search(lun).is_ok())
    }

    /// Returns whether the nexus sees a logical unit, for task management.
    pub fn has_lun(&self, lun: u64) -> bool {
        self.path(lun).is_some()
    }

    /// Ends the nexus at the end of its session (nexus loss, SAM-5 6.3.4). Persistent reservations
    /// stay.
    pub fn detach(&self) {
        self.target.forget(self);
        let luns = std::mem::take(&mut *self.luns.write());
        for path in luns.values() {
            path.gone.store(true, Ordering::Release);
            path.lu.remove_path(path);
        }
    }
}
