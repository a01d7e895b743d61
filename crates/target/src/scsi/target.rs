//! A target: its ports, its inventory of logical units, and the I_T nexuses ([`Nexus`]) of its
//! sessions. [`super::dispatch`] begins their commands.

use super::events::{Event, Events};
use super::lu::{LogicalUnit, LuNexus};
use super::ports::{TargetPort, lun_from_wire};
use super::sense::{Asc, Sense, SenseKey};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A target.
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
    /// A target with a port for each portal group, in the order of their relative identifiers (1,
    /// 2, …).
    pub fn new(name: &str, portal_groups: &[u16]) -> Arc<Target> {
        let name: Arc<str> = name.into();
        let port = |(n, &portal_group): (usize, &u16)| {
            let relative_id = u16::try_from(n + 1).unwrap_or(u16::MAX);
            Arc::new(TargetPort { target: name.clone(), portal_group, relative_id })
        };
        let ports = RwLock::new(portal_groups.iter().enumerate().map(port).collect());
        Arc::new(Target { name, ports, luns: RwLock::default(), nexuses: Mutex::default() })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its ports.
    pub fn ports(&self) -> Vec<Arc<TargetPort>> {
        self.ports.read().clone()
    }

    /// The logical units by number.
    pub fn inventory(&self) -> Arc<BTreeMap<u16, Arc<LogicalUnit>>> {
        self.luns.read().clone()
    }

    /// Adds, replaces or (with `None`) removes a logical unit; initiators learn that the inventory
    /// changed. Numbers go up to [`super::MAX_LUN`]; larger ones are not reachable.
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

    /// The sessions' nexuses.
    pub fn nexuses(&self) -> Vec<Arc<Nexus>> {
        self.nexuses.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// A session begins. `initiator` is the SCSI initiator port's name, `iqn,i,0xISID`. `None` if
    /// the target has no port in that portal group, or the name is none. The session must
    /// [`Nexus::detach`] at its end.
    pub fn attach(
        self: &Arc<Self>,
        initiator: &str,
        portal_group: u16,
        access: Access,
        events: Arc<dyn NexusEvents>,
    ) -> Option<Arc<Nexus>> {
        // What of it persists in reservations is on a line of text.
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

/// What an initiator may do with a target.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Nothing may be written, in any way, nor changed for others: no mode parameters, no
    /// reservations, no resets.
    pub read_only: bool,
    /// The logical units it may see; `None` means all of the target's.
    pub luns: Option<BTreeSet<u16>>,
    /// Of those, the ones with which it may do less.
    pub limits: BTreeMap<u16, Limit>,
}

/// What an initiator may do less with one logical unit than with the others of its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// As [`Access::read_only`].
    ReadOnly,
    /// It is not there.
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

/// A session, as the device server sees it.
pub trait NexusEvents: Events {
    /// What the same initiator, and certainly the same, is logged in to by other sessions with this
    /// server.
    fn others(&self) -> Vec<Arc<Nexus>> {
        Vec::new()
    }
}

/// For a transport that has no tasks of its own, and for tests.
impl NexusEvents for () {}

/// An I_T nexus, from login to the end of the session.
pub struct Nexus {
    pub(crate) target: Arc<Target>,
    pub(crate) initiator: Arc<str>,
    pub(crate) port: Arc<TargetPort>,
    access: RwLock<Access>,
    events: Arc<dyn NexusEvents>,
    luns: RwLock<BTreeMap<u16, Arc<LuNexus>>>,
    /// The inventory changed, and since then the initiator has neither asked for it nor had a unit
    /// attention that says so.
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

    /// The initiator port's name.
    pub fn initiator(&self) -> &str {
        &self.initiator
    }

    /// The target port it came in by.
    pub fn port(&self) -> &Arc<TargetPort> {
        &self.port
    }

    /// The target.
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// What the initiator may do.
    pub fn access(&self) -> Access {
        self.access.read().clone()
    }

    /// Changes what the initiator may do.
    pub fn set_access(&self, access: Access) {
        *self.access.write() = access;
        self.sync_luns(true);
    }

    /// Brings the logical units that are seen in line with the target's inventory and the access
    /// rules.
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

    /// Every logical unit has the unit attention; the session learns of it once, however many there
    /// are.
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

    /// The initiator asks which logical units there are: it knows of all changes up to now.
    pub(crate) fn luns_are_reported(&self) {
        self.lun_news.store(false, Ordering::Release);
    }

    /// Whether a unit attention that the session was told of has not reached the initiator yet. A
    /// change of the inventory has reached it also when it asked for the inventory since.
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

    /// The numbers of the logical units that the initiator sees.
    pub fn luns(&self) -> Vec<u16> {
        self.luns.read().keys().copied().collect()
    }

    pub(crate) fn paths(&self) -> Vec<Arc<LuNexus>> {
        self.luns.read().values().cloned().collect()
    }

    /// What the initiator sees, by this session first, then by its others with this server; where
    /// several show a logical unit those come first by which it may be written to.
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

    /// LOGICAL UNIT RESET (SAM-5 7.7): false if there is no such logical unit. The session aborts
    /// its own tasks.
    pub fn reset_lu(&self, lun: u64) -> bool {
        let path = self.path(lun);
        if let Some(path) = &path {
            path.lu.reset(path);
        }
        path.is_some()
    }

    /// CLEAR TASK SET (SAM-5 7.5): other nexuses' tasks are aborted, and they learn of it. The
    /// session aborts its own.
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

    /// ABORT TASK SET (SAM-5 7.3), after the session aborted the tasks that it knows: what it has
    /// on the way to the device is written when this returns, or never.
    pub fn abort_task_set(&self, lun: u64) -> bool {
        let path = self.path(lun);
        if let Some(path) = &path {
            path.fence();
            path.lu.settle();
        }
        path.is_some()
    }

    /// TARGET WARM or COLD RESET (RFC 7143 11.5.1): every logical unit of the target is reset.
    pub fn reset_target(&self) {
        for path in self.paths() {
            path.lu.reset(&path);
        }
    }

    /// Whether it may abort others' tasks at a logical unit, or reset that. An initiator that may
    /// only read may change nothing for others.
    pub fn may_disturb(&self, lun: u64) -> bool {
        self.path(lun).is_some_and(|path| !path.read_only.load(Ordering::Acquire))
    }

    /// Whether it may write to anything that it sees.
    pub fn may_write(&self) -> bool {
        self.paths().iter().any(|path| !path.read_only.load(Ordering::Acquire))
    }

    /// Whether it may disturb others at all that it sees.
    pub fn may_disturb_all(&self) -> bool {
        self.paths().iter().all(|path| !path.read_only.load(Ordering::Acquire))
    }

    /// Whether it may end the sessions of others: only with access to all that they could use.
    pub fn may_end_sessions(&self) -> bool {
        let seen = self.luns();
        self.may_disturb_all() && self.target.inventory().keys().all(|lun| seen.binary_search(lun).is_ok())
    }

    /// Whether there is such a logical unit, for task management.
    pub fn has_lun(&self, lun: u64) -> bool {
        self.path(lun).is_some()
    }

    /// Nexus loss (SAM-5 6.3.4): the session has ended. Persistent reservations stay.
    pub fn detach(&self) {
        self.target.forget(self);
        let luns = std::mem::take(&mut *self.luns.write());
        for path in luns.values() {
            path.gone.store(true, Ordering::Release);
            path.lu.remove_path(path);
        }
    }
}
