//! An I_T nexus ([`Nexus`]), and its state for each logical unit. Every command begins here.

use super::cdb::{Blocks, Cdb};
use super::command::{Command, Outcome, ReadCommand, Status, Task, WriteCommand};
use super::lu::{LogicalUnit, gate};
use super::opcodes::{self, Kind, Length, Op, Reserve};
use super::reservation::{Name, Want};
use super::sense::{Asc, Sense, SenseKey};
use super::target::{Target, TargetPort, lun_from_wire};
use super::{alua, inquiry, reports, target};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Unit attentions kept for one I_T_L nexus; of more, the oldest stay.
const MAX_ATTENTIONS: usize = 16;

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

/// What a session learns outside its own commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Another nexus aborted this one's tasks at a logical unit (CLEAR TASK SET, a reset, PREEMPT
    /// AND ABORT): none of them is answered any more, and none changes the medium once the call
    /// returned, as far as that can be helped.
    AbortTasks {
        /// The logical unit.
        lun: u16,
    },
    /// A unit attention is waiting for this nexus that was not waiting before; a transport may tell
    /// the initiator at once. A change of the inventory comes once, for the first of the logical
    /// units that report it, and not again before the initiator was told.
    UnitAttention {
        /// The logical unit.
        lun: u16,
        /// What will be reported.
        sense: Sense,
    },
}

/// A session, as the device server sees it. Called with no lock held that a command takes, from any
/// thread.
pub trait NexusEvents: Send + Sync {
    /// Something happened. Returns how many tasks it aborted.
    fn event(&self, event: Event) -> usize;

    /// What the same initiator, and certainly the same, is logged in to by other sessions with this
    /// server.
    fn others(&self) -> Vec<Arc<Nexus>> {
        Vec::new()
    }
}

/// For a transport that has no tasks of its own, and for tests.
impl NexusEvents for () {
    fn event(&self, _: Event) -> usize {
        0
    }
}

/// An I_T_L nexus: one initiator port, one target port, one logical unit.
pub(crate) struct LuNexus {
    /// Unlike names, never used twice.
    pub(crate) number: u64,
    pub(crate) initiator: Arc<str>,
    pub(crate) port: Arc<TargetPort>,
    pub(crate) lun: u16,
    pub(crate) lu: Arc<LogicalUnit>,
    pub(crate) read_only: AtomicBool,
    pub(crate) events: Arc<dyn NexusEvents>,
    /// Goes up whenever tasks are aborted: what began before must not write any more.
    fences: AtomicU64,
    /// There are attentions.
    attentive: AtomicBool,
    attentions: Mutex<VecDeque<Sense>>,
    /// [`Nexus::lun_news`].
    lun_news: Arc<AtomicBool>,
    /// The session has ended, or does not see the logical unit any more.
    gone: AtomicBool,
}

impl fmt::Debug for LuNexus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} LUN {}", self.initiator, self.port.name(), self.lun)
    }
}

impl LuNexus {
    /// Adds a unit attention condition and tells the session, unless it is pending already.
    pub(crate) fn establish(&self, sense: Sense) {
        if self.establish_silently(sense.clone()) {
            self.events.event(Event::UnitAttention { lun: self.lun, sense });
        }
    }

    /// Adds a unit attention condition without telling the session. False if it is pending already.
    pub(crate) fn establish_silently(&self, sense: Sense) -> bool {
        let mut attentions = self.attentions.lock();
        let is_new = attentions.len() < MAX_ATTENTIONS && !attentions.iter().any(|a| a.asc == sense.asc);
        if is_new {
            attentions.push_back(sense);
        }
        self.attentive.store(true, Ordering::Release);
        is_new
    }

    /// Whether it must not be used any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    fn has_attention(&self, asc: Asc) -> bool {
        self.attentions.lock().iter().any(|a| a.asc == asc)
    }

    /// Takes the oldest unit attention.
    pub(crate) fn take_attention(&self) -> Option<Sense> {
        if !self.attentive.load(Ordering::Acquire) {
            return None;
        }
        let mut attentions = self.attentions.lock();
        let sense = attentions.pop_front();
        self.attentive.store(!attentions.is_empty(), Ordering::Release);
        if sense.as_ref().is_some_and(|sense| sense.asc == Asc::REPORTED_LUNS_DATA_CHANGED) {
            self.lun_news.store(false, Ordering::Release);
        }
        sense
    }

    /// Forgets one kind of unit attention, because its news has been delivered.
    pub(crate) fn forget_attention(&self, asc: Asc) {
        let mut attentions = self.attentions.lock();
        attentions.retain(|a| a.asc != asc);
        self.attentive.store(!attentions.is_empty(), Ordering::Release);
    }

    /// How often tasks were aborted. A command that remembers another number than this is late.
    pub(crate) fn fences(&self) -> u64 {
        self.fences.load(Ordering::Acquire)
    }

    /// Marks all that has begun as late; [`LogicalUnit::settle`] makes sure of it.
    pub(crate) fn fence(&self) {
        self.fences.fetch_add(1, Ordering::AcqRel);
    }

    /// Marks all that has begun as late, and has the session abort it. Tells how many tasks the
    /// session knew of.
    pub(crate) fn abort_tasks(&self) -> usize {
        self.fence();
        self.events.event(Event::AbortTasks { lun: self.lun })
    }

    /// The names of the two ports, as they register.
    pub(crate) fn name(&self) -> Name {
        Name { initiator: self.initiator.clone(), port: self.lu.registered_name(&self.port) }
    }

    /// Whether reservations of others let it do so.
    pub(crate) fn allowed(&self, want: Want) -> bool {
        let gates = self.lu.gates();
        let reserved =
            gates & gate::RESERVED != 0 && self.lu.reserved_by.lock().is_some_and(|n| n != self.number);
        !reserved && (gates & gate::PERSISTENT == 0 || self.lu.reservations.lock().allows(&self.name(), want))
    }

    /// CHECK CONDITION in the sense format that the control mode page asks for.
    pub(crate) fn check(&self, mut sense: Sense) -> Outcome {
        sense.descriptor_format = self.lu.gates() & gate::DESCRIPTOR_SENSE != 0;
        Outcome::check(sense)
    }
}

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

    fn path(&self, lun: u64) -> Option<Arc<LuNexus>> {
        self.luns.read().get(&lun_from_wire(lun)?).cloned()
    }

    /// Begins a command: finds the logical unit (`lun` as it is on the wire), reports a unit
    /// attention, checks reservations, access, protection and range. What is left is to move data
    /// and to do it. `data_out` is how much the initiator says that it will send: some commands
    /// insist on what their CDB implies.
    pub fn start(self: &Arc<Self>, lun: u64, cdb: &[u8], data_out: u64) -> Command {
        let cdb = Cdb::new(cdb);
        let Some(path) = self.path(lun) else {
            return Command::Done(target::without_lu(self, &cdb));
        };
        let fences = path.fences(); // before it is known to be allowed
        match self.check(&path, &cdb) {
            Ok(op) => self.accept((path, fences), op, cdb, data_out),
            Err(outcome) => Command::Done(outcome),
        }
    }

    /// Everything that does not depend on the command's own fields.
    fn check(&self, path: &LuNexus, cdb: &Cdb) -> Result<&'static Op, Outcome> {
        let op = opcodes::find(cdb);
        if op.as_ref().map_or(true, |op| !op.has(opcodes::ANY_TIME))
            && let Some(attention) = path.take_attention()
        {
            return Err(path.check(attention));
        }
        let op = op.map_err(|sense| path.check(sense))?;
        if !reports::has(&path.lu, op) {
            return Err(path.check(Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE)));
        }
        let gates = path.lu.gates();
        if gates & !gate::MANNERS != 0 {
            check_gates(path, op, cdb, gates)?;
        }
        if op.has(opcodes::WRITES | opcodes::GOVERNS) {
            let read_only = path.read_only.load(Ordering::Acquire);
            if read_only || op.has(opcodes::WRITES) && path.lu.info().read_only {
                return Err(path.check(Sense::new(SenseKey::DataProtect, Asc::WRITE_PROTECTED)));
            }
        }
        if op.has(opcodes::WRITES) && gates & gate::SOFT_PROTECTED != 0 {
            return Err(path.check(Sense::new(SenseKey::DataProtect, Asc::SOFTWARE_WRITE_PROTECTED)));
        }
        let control = op.len() - 1;
        if cdb.u8(control) & 0x04 != 0 {
            return Err(path.check(Sense::cdb_bit(control, 2))); // NACA
        }
        Ok(op)
    }

    /// Checks the fields that many commands share, and sorts out the fast path.
    fn accept(
        self: &Arc<Self>,
        (path, fences): (Arc<LuNexus>, u64),
        op: &'static Op,
        cdb: Cdb,
        data_out: u64,
    ) -> Command {
        match try_accept(&path, op, &cdb, data_out) {
            Ok(Some((offset, len))) if op.kind == Kind::Read => {
                Command::Read(ReadCommand { path, offset, len })
            }
            Ok(Some((offset, len))) => {
                let fua = cdb.group_len() > 6 && cdb.bit(1, 3) || path.lu.gates() & gate::WRITE_THROUGH != 0;
                Command::Write(WriteCommand { path, fences, offset, len, fua })
            }
            Ok(None) => Command::Other(Task::new(self.clone(), (path, fences), op, cdb)),
            Err(outcome) => Command::Done(outcome),
        }
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

/// Whether reservations, a sanitize operation, or the state of the unit or port stand in the way.
fn check_gates(path: &LuNexus, op: &Op, cdb: &Cdb, gates: u32) -> Result<(), Outcome> {
    if gates & (gate::PERSISTENT | gate::RESERVED) != 0 && conflicts(path, op, cdb, gates) {
        return Err(Outcome::status(Status::ReservationConflict));
    }
    if gates & gate::SANITIZE != 0 && !op.has(opcodes::SANITIZING) {
        let again = op.code() == 0x48 && path.lu.sanitize.may_try_again();
        if let Some(sense) = path.lu.sanitize.sense().filter(|_| !again) {
            return Err(path.check(sense));
        }
    }
    if gates & gate::PORT_GROUPS != 0 && op.has(opcodes::MEDIUM) {
        let groups = path.lu.port_groups.read();
        let own = groups.iter().find(|g| g.ports.contains(&path.port.relative_id));
        if let Some(sense) = own.and_then(|group| alua::sense(group.state)) {
            return Err(path.check(sense));
        }
    }
    if gates & gate::STOPPED != 0 && op.has(opcodes::MEDIUM) {
        return Err(path.check(Sense::new(SenseKey::NotReady, Asc::INITIALIZING_COMMAND_REQUIRED)));
    }
    Ok(())
}

/// RESERVATION CONFLICT (SPC-4 table 48, SBC-3 table 6; SPC-2 table 10).
fn conflicts(path: &LuNexus, op: &Op, cdb: &Cdb, gates: u32) -> bool {
    if gates & gate::RESERVED != 0 {
        // PREVENT is let in only to allow.
        let free = op.has(opcodes::UNRESERVED) && !(op.code() == 0x1e && cdb.u8(4) & 3 != 0);
        let own = path.lu.reserved_by.lock().is_none_or(|number| number == path.number);
        if !own && !free || own && op.code() == 0x5f {
            return true;
        }
    }
    if gates & gate::PERSISTENT == 0 {
        return false;
    }
    let starts = cdb.bit(4, 0) && cdb.u8(4) >> 4 == 0;
    let want = match op.reserve {
        Reserve::Free => return false,
        Reserve::Start if starts => return false,
        Reserve::Prevent if cdb.u8(4) & 3 == 0 => return false,
        Reserve::Read => Want::Read,
        Reserve::Registered => Want::Registered,
        Reserve::Write | Reserve::Start | Reserve::Prevent => Want::Write,
    };
    !path.lu.reservations.lock().allows(&path.name(), want)
}

/// The longest parameter list that a command takes: memory is set aside for it before any of it
/// arrives. PERSISTENT RESERVE OUT has the longest, with a TransportID for each initiator.
const MAX_PARAMETER_LIST: u64 = 256 << 10;

/// Checks the fields that many commands share. The range for the fast path, if it is a command for
/// it.
fn try_accept(path: &LuNexus, op: &Op, cdb: &Cdb, data_out: u64) -> Result<Option<(u64, u32)>, Outcome> {
    let fail = |sense| Err(path.check(sense));
    if op.has(opcodes::PROTECT) && cdb.u8(1) & 0xe0 != 0 {
        return fail(Sense::cdb_bit(1, 7)); // there is no protection information
    }
    if op.has(opcodes::STRICT)
        && let Some(byte) =
            (1..op.len()).find(|&n| cdb.u8(n) & !(op.usage[n] | if n == 1 { 0x1f } else { 0 }) != 0)
    {
        return fail(Sense::cdb_field(byte));
    }
    let info = path.lu.info();
    let mut range = (0, 0);
    if op.has(opcodes::RANGE) {
        range = match Blocks::of(cdb).on(info.size, info.block_size) {
            Ok(range) => range,
            Err(sense) => return fail(sense),
        };
    }
    let taken = op.data_out.bytes(cdb, path.lu.block_size());
    if matches!(op.data_out, Length::Field(..)) && taken > MAX_PARAMETER_LIST {
        return fail(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR));
    }
    let sent = if op.kind == Kind::Read { range.1 } else { 0 };
    if taken.max(sent) > inquiry::MAX_TRANSFER_BYTES || op.has(opcodes::EXACT) && taken != data_out {
        return fail(Sense::illegal(Asc::INVALID_FIELD_IN_CDB));
    }
    let durable_read = op.kind == Kind::Read && op.len() > 6 && cdb.bit(1, 3);
    if op.kind == Kind::Task || durable_read {
        return Ok(None);
    }
    match u32::try_from(range.1) {
        Ok(0) => Err(Outcome::good()),
        Ok(len) => Ok(Some((range.0, len))),
        Err(_) => fail(Sense::illegal(Asc::INVALID_FIELD_IN_CDB)),
    }
}
