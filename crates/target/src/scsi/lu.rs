//! A logical unit: a block device with a SCSI identity and SCSI state. Each device has one
//! [`LogicalUnit`]. All targets that map the device share it. An initiator accesses it by an I_T_L
//! nexus ([`LuNexus`]).

use super::events::{Event, Events};
use super::outcome::Outcome;
use super::persist::Saved;
use super::ports::{PortGroup, TargetPort};
use super::reservation::{Name, Reservations, Want};
use super::sense::{Asc, Sense, SenseKey};
use super::state::{Modes, Records, Sanitize};
use hindcast_engine::device::{BlockDevice, DeviceInfo, WriteOp};
use hindcast_engine::{Error, ErrorKind, Result};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Stores the state of a logical unit that survives restarts: persistent reservations with APTPL,
/// and saved mode pages.
pub trait LuStore: Send + Sync {
    /// Returns the state that was saved last, or `None` if no state was ever saved.
    fn load(&self) -> Result<Option<Vec<u8>>>;

    /// Replaces the stored state. The new state survives power loss once this function returned.
    fn save(&self, state: &[u8]) -> Result<()>;
}

/// Space for logical unit provisioning (SBC-3 4.7), in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Space that this logical unit has allocated, in bytes.
    pub used: u64,
    /// Space that this logical unit can still allocate, in bytes.
    pub available: u64,
}

/// The state of the scan that verifies the medium in the background (SBC-3 4.23).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scan {
    /// A pass is under way.
    pub running: bool,
    /// The pass waits until it is resumed.
    pub paused: bool,
    /// Bytes that the pass has looked at.
    pub done: u64,
    /// Bytes that the pass will look at in all.
    pub total: u64,
    /// Number of whole passes so far.
    pub passes: u64,
    /// Minutes since the logical unit was made available.
    pub minutes: u32,
}

/// Properties that a logical unit reports to initiators, and its limits.
#[derive(Clone)]
pub struct LuOptions {
    /// PRODUCT IDENTIFICATION, up to 16 ASCII characters.
    pub product: String,
    /// PRODUCT REVISION LEVEL, up to 4 ASCII characters.
    pub revision: String,
    /// The unit serial number. The default is the UUID of the device.
    pub serial: Option<String>,
    /// Returns the used and the available space. It is present if the device is thinly provisioned
    /// and knows its space.
    pub space: Option<Arc<dyn Fn() -> Space + Send + Sync>>,
    /// Returns the state of the background scan. It is present if the medium is scanned.
    pub scan: Option<Arc<dyn Fn() -> Scan + Send + Sync>>,
    /// The physical block size that the logical unit reports, in bytes: a power of two. Writing a
    /// whole physical block needs no read. 0 means the logical block size, because a write never
    /// tears the blocks beside it.
    pub physical_block_size: u32,
    /// The longest write, in bytes, that is complete or absent after a power loss. 0 means that the
    /// device promises nothing.
    pub atomic_bytes: u32,
    /// The rate at which SANITIZE overwrites the medium, in bytes per second. The limit leaves disk
    /// bandwidth to other logical units.
    pub sanitize_rate: u64,
}

impl Default for LuOptions {
    fn default() -> LuOptions {
        LuOptions {
            product: "VOLUME".into(),
            revision: "1".into(),
            serial: None,
            space: None,
            scan: None,
            physical_block_size: 0,
            atomic_bytes: 0,
            sanitize_rate: 128 << 20,
        }
    }
}

impl fmt::Debug for LuOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LuOptions").field("product", &self.product).field("serial", &self.serial).finish()
    }
}

/// Conditions that need further checks before a command is carried out. They are rarely set.
/// Without one, the fast path reads only one word.
pub(crate) mod gate {
    /// Persistent registrations exist, with or without a persistent reservation. They also conflict
    /// with RESERVE(6).
    pub(crate) const PERSISTENT: u32 = 1;
    /// RESERVE(6) is in force.
    pub(crate) const RESERVED: u32 = 1 << 1;
    /// SWP is set in the control mode page.
    pub(crate) const SOFT_PROTECTED: u32 = 1 << 2;
    /// WCE is off. Every write is durable before it is answered.
    pub(crate) const WRITE_THROUGH: u32 = 1 << 3;
    /// START STOP UNIT stopped the logical unit.
    pub(crate) const STOPPED: u32 = 1 << 4;
    /// A sanitize operation runs, or has failed.
    pub(crate) const SANITIZE: u32 = 1 << 5;
    /// D_SENSE is set in the control mode page.
    pub(crate) const DESCRIPTOR_SENSE: u32 = 1 << 6;
    /// At least one target port group is not active.
    pub(crate) const PORT_GROUPS: u32 = 1 << 7;
    /// The conditions that change how a command is carried out. They do not decide whether it is
    /// allowed.
    pub(crate) const MANNERS: u32 = WRITE_THROUGH | DESCRIPTOR_SENSE;
}

/// Returns the error of a write whose command was aborted.
fn aborted() -> Error {
    Error::new(ErrorKind::Busy, "write: the command was aborted")
}

/// Unit attentions that one I_T_L nexus holds at most. When the queue is full, new ones are
/// dropped.
const MAX_ATTENTIONS: usize = 16;

/// Exponent of a threshold set: resource counts are in sets of 2^11 blocks.
pub(crate) const THRESHOLD_EXPONENT: u8 = 11;

/// Initiator devices, by name and target port, that a logical unit remembers at most. At the limit
/// it forgets all of them.
const MAX_KNOWN: usize = 4096;

/// Returns the key that identifies an initiator: the device's name and the target port's name. The
/// initiator port's name does not identify it, because many initiators use a new one for each
/// session.
fn acquaintance(path: &LuNexus) -> (String, Arc<str>) {
    let device = path.initiator.split_once(",i,").map_or(&*path.initiator, |(device, _)| device);
    (device.to_owned(), path.port.name().into())
}

/// A block device with a SCSI identity and SCSI state.
pub struct LogicalUnit {
    device: Arc<dyn BlockDevice>,
    pub(crate) options: LuOptions,
    pub(crate) store: Option<Arc<dyn LuStore>>,
    gates: AtomicU32,
    block_size: u32,
    /// Lock of the medium. Plain writes hold it shared. COMPARE AND WRITE and ORWRITE read, decide
    /// and write; they hold it exclusively.
    serial: RwLock<()>,
    paths: Mutex<Vec<Weak<LuNexus>>>,
    /// Initiator devices that had a nexus before, by name and target port. The value states whether
    /// the device has lost its RESERVE(6) since.
    known: Mutex<BTreeMap<(String, Arc<str>), bool>>,
    pub(crate) reservations: Mutex<Reservations>,
    /// Lock that a thread holds while it changes reservations or mode parameters, also on disk. The
    /// threads that receive commands take the locks of the values themselves. Therefore no thread
    /// holds those for the time of a disk access.
    pub(crate) changing: Mutex<()>,
    /// New names of targets that were renamed while they had sessions, by the old names. A thread
    /// takes this lock after `reservations`.
    pub(crate) renamed: RwLock<BTreeMap<String, String>>,
    /// The nexus that holds RESERVE(6): [`LuNexus::number`].
    pub(crate) reserved_by: Mutex<Option<u64>>,
    pub(crate) modes: Mutex<Modes>,
    pub(crate) sanitize: Sanitize,
    pub(crate) copies: Mutex<Records>,
    /// Target port groups. The list is empty if the server serves the pool alone.
    pub(crate) port_groups: RwLock<Vec<PortGroup>>,
    /// The content of the store.
    saved: Mutex<Saved>,
    saving: Mutex<()>,
    /// Whether the available space has passed the threshold, and initiators got the unit attention.
    low_space: AtomicBool,
    /// Whether this logical unit is replacing another one. A new nexus then gets the unit attention
    /// of a power on, also if the initiator is known.
    replacing: AtomicBool,
}

impl fmt::Debug for LogicalUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogicalUnit").field("info", &self.device.info()).finish_non_exhaustive()
    }
}

impl LogicalUnit {
    /// Creates a logical unit over `device`. This function reads the stored state. With a store the
    /// logical unit keeps durable state across restarts.
    pub fn new(
        device: Arc<dyn BlockDevice>,
        options: LuOptions,
        store: Option<Arc<dyn LuStore>>,
    ) -> Result<Arc<LogicalUnit>> {
        let stored = store.as_ref().map(|store| store.load()).transpose()?.flatten();
        let saved = stored.map(|bytes| Saved::decode(&bytes)).transpose()?.unwrap_or_default();
        let reservations = saved.reservations.clone().unwrap_or_default();
        let modes = saved.modes.clone().unwrap_or_default();
        let block_size = device.info().block_size;
        let lu = LogicalUnit {
            device,
            options,
            store,
            gates: AtomicU32::new(0),
            block_size,
            serial: RwLock::new(()),
            paths: Mutex::default(),
            known: Mutex::default(),
            reserved_by: Mutex::default(),
            modes: Mutex::new(modes.clone()),
            sanitize: if saved.sanitizing { Sanitize::interrupted() } else { Sanitize::default() },
            copies: Mutex::default(),
            port_groups: RwLock::default(),
            low_space: AtomicBool::new(false),
            replacing: AtomicBool::new(false),
            saved: Mutex::new(saved.clone()),
            saving: Mutex::new(()),
            reservations: Mutex::default(),
            changing: Mutex::new(()),
            renamed: RwLock::default(),
        };
        lu.set_gate(gate::PERSISTENT, !reservations.registrations.is_empty());
        lu.set_gate(gate::SANITIZE, saved.sanitizing);
        *lu.reservations.lock() = reservations;
        lu.apply_modes(&modes);
        Ok(Arc::new(lu))
    }

    /// Creates the logical unit that replaces this one, over a device with other content, as after
    /// a rollback of a volume. It keeps reservations and mode parameters. To initiators it looks
    /// like a power cycle of the logical unit. A command that this logical unit accepted never
    /// reaches the new device.
    ///
    /// The caller replaces this logical unit by [`super::Target::set_lun`] in every target that
    /// maps it. It then calls [`LogicalUnit::notify_replaced`].
    pub fn successor(&self, device: Arc<dyn BlockDevice>, options: LuOptions) -> Result<Arc<LogicalUnit>> {
        let lu = LogicalUnit::new(device, options, self.store.clone())?;
        lu.replacing.store(true, Ordering::Release);
        let reservations = self.reservations.lock().clone();
        lu.set_gate(gate::PERSISTENT, self.gates() & gate::PERSISTENT != 0);
        *lu.reservations.lock() = reservations;
        lu.renamed.write().clone_from(&self.renamed.read());
        let modes = self.modes.lock().clone();
        lu.apply_modes(&modes);
        *lu.modes.lock() = modes;
        *lu.port_groups.write() = self.port_groups.read().clone();
        lu.set_gate(gate::PORT_GROUPS, self.gates() & gate::PORT_GROUPS != 0);
        Ok(lu)
    }

    /// Returns the device of the logical unit. A caller may read from the device. It writes by
    /// [`LogicalUnit::write`].
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Returns the shape and the current size of the device.
    pub fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    /// Returns the logical block size in bytes.
    pub fn block_size(&self) -> u64 {
        u64::from(self.block_size)
    }

    /// Reads without a wait for a disk; see [`BlockDevice::try_read`].
    pub fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        self.device.try_read(offset, buf)
    }

    /// Reads, and waits for disks if necessary.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.device.read(offset, buf)
    }

    /// Writes a batch in one call of the device. The writes wait for a command that reads, decides
    /// and writes. They fail if a sanitize operation runs or has failed.
    pub fn write(&self, ops: &mut [WriteOp], fua: bool) {
        self.write_unless(ops, fua, |_| false);
    }

    /// Writes like [`LogicalUnit::write`], except the operations for which `late` returns true.
    /// Their commands were aborted after the device server accepted them; see
    /// [`LogicalUnit::settle`].
    pub(crate) fn write_unless(&self, ops: &mut [WriteOp], fua: bool, late: impl Fn(usize) -> bool) {
        let _shared = self.serial.read();
        if let Err(error) = self.not_sanitizing() {
            return ops.iter_mut().for_each(|op| op.result = Err(error.clone()));
        }
        let fua = fua || self.gates() & gate::WRITE_THROUGH != 0;
        if !(0..ops.len()).any(&late) {
            return self.device.write(ops, fua);
        }
        for (n, op) in ops.iter_mut().enumerate() {
            match late(n) {
                true => op.result = Err(aborted()),
                false => self.device.write(std::slice::from_mut(op), fua),
            }
        }
    }

    /// Waits for the writes in progress. A caller that aborts commands marks them first by
    /// [`LuNexus::abort_tasks`]. After this function returns, none of them changes the medium.
    /// PREEMPT AND ABORT requires this.
    pub(crate) fn settle(&self) {
        self.alone(|| ());
    }

    /// Writes zeros to a range under the same conditions as a write. With `unmap` it may free
    /// space. `offset` and `len` are in bytes.
    pub(crate) fn zero(
        &self,
        offset: u64,
        len: u64,
        (unmap, fua): (bool, bool),
        late: impl Fn() -> bool,
    ) -> Result<()> {
        let _shared = self.serial.read();
        self.not_sanitizing()?;
        if late() {
            return Err(aborted());
        }
        let fua = fua || self.gates() & gate::WRITE_THROUGH != 0;
        match unmap {
            true => self.device.discard(offset, len, fua),
            false => self.device.write_zeroes(offset, len, false, fua),
        }
    }

    /// Returns an error if a sanitize operation runs or has failed. It stops a write that was
    /// accepted before the operation began.
    pub(crate) fn not_sanitizing(&self) -> Result<()> {
        match self.gates() & gate::SANITIZE {
            0 => Ok(()),
            _ => Err(Error::new(ErrorKind::Busy, "write while a sanitize operation runs")),
        }
    }

    /// Runs `f` while no write is in progress.
    pub(crate) fn alone<T>(&self, f: impl FnOnce() -> T) -> T {
        let _exclusive = self.serial.write();
        f()
    }

    /// Returns the conditions of [`gate`] that are set.
    pub(crate) fn gates(&self) -> u32 {
        self.gates.load(Ordering::Acquire)
    }

    /// Sets or clears conditions of [`gate`].
    pub(crate) fn set_gate(&self, gate: u32, on: bool) {
        if on {
            self.gates.fetch_or(gate, Ordering::AcqRel);
        } else {
            self.gates.fetch_and(!gate, Ordering::AcqRel);
        }
    }

    /// Sets the gates that depend on mode parameters.
    pub(crate) fn apply_modes(&self, modes: &Modes) {
        self.set_gate(gate::WRITE_THROUGH, !modes.write_cache);
        self.set_gate(gate::SOFT_PROTECTED, modes.protected);
        self.set_gate(gate::DESCRIPTOR_SENSE, modes.descriptor_sense);
    }

    /// Returns the saved mode parameters, or the defaults.
    pub(crate) fn saved_modes(&self) -> Modes {
        self.saved.lock().modes.clone().unwrap_or_default()
    }

    /// Changes the state that survives restarts. Without a store no state survives.
    pub(crate) fn keep(&self, change: impl FnOnce(&mut Saved)) -> Result<()> {
        let _one_at_a_time = self.saving.lock();
        let saved = self.saved.lock().clone();
        let mut changed = saved.clone();
        change(&mut changed);
        if let Some(store) = &self.store
            && changed != saved
        {
            let bytes = changed.encode();
            // A state that cannot be decoded never replaces the stored state.
            Saved::decode(&bytes)?;
            store.save(&bytes)?;
        }
        *self.saved.lock() = changed;
        Ok(())
    }

    /// Returns LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT.
    pub(crate) fn physical_exponent(&self) -> u32 {
        (self.options.physical_block_size.max(self.block_size) / self.block_size).ilog2().min(15)
    }

    /// Returns MAXIMUM ATOMIC TRANSFER LENGTH, in bytes.
    pub(crate) fn atomic_bytes(&self) -> u64 {
        u64::from(self.options.atomic_bytes) / self.block_size() * self.block_size()
    }

    /// Releases RESERVE(6) if the nexus `number` holds it, for RELEASE(6) and for the end of the
    /// nexus. Returns whether the nexus held it.
    pub(crate) fn release_by(&self, number: u64) -> bool {
        let mut holder = self.reserved_by.lock();
        let held = *holder == Some(number);
        if held {
            *holder = None;
            self.set_gate(gate::RESERVED, false);
        }
        held
    }

    /// Sets the target port groups and their states, for a pool that several servers can serve. An
    /// empty list describes a server that serves the pool alone.
    pub fn set_port_groups(&self, groups: Vec<PortGroup>) {
        let inactive = groups.iter().any(|g| g.state.sense().is_some());
        *self.port_groups.write() = groups;
        self.set_gate(gate::PORT_GROUPS, inactive);
        self.establish(Asc::ASYMMETRIC_ACCESS_STATE_CHANGED, |_| true);
    }

    /// Returns a number of bytes as threshold sets, rounded down.
    pub(crate) fn threshold_sets(&self, bytes: u64) -> u32 {
        u32::try_from((bytes / self.block_size()) >> THRESHOLD_EXPONENT).unwrap_or(u32::MAX)
    }

    /// Returns the port name that registrations use. For a target that was renamed while it had
    /// sessions, the port name contains the new target name.
    pub(crate) fn registered_name(&self, port: &TargetPort) -> Arc<str> {
        let renamed = self.renamed.read();
        match renamed.get(&*port.target) {
            Some(now) => TargetPort { target: now.as_str().into(), ..port.clone() }.name().into(),
            None => port.name().into(),
        }
    }

    /// Compares the available space with the threshold of the mode page. When the space reaches the
    /// threshold, all nexuses get a unit attention. The server calls it at intervals, and after a
    /// write that found no space.
    pub fn check_thresholds(&self) {
        let Some(space) = &self.options.space else {
            return;
        };
        let (enabled, threshold) = {
            let modes = self.modes.lock();
            (modes.threshold_enabled, modes.threshold)
        };
        let low = enabled && self.threshold_sets(space().available) <= threshold;
        if !self.low_space.swap(low, Ordering::AcqRel) && low {
            self.establish(Asc::THIN_PROVISIONING_THRESHOLD, |_| true);
        }
    }

    /// Adds an I_T_L nexus. A new initiator gets the unit attention of a power on. During a
    /// replacement, every initiator gets it. A known initiator gets NEXUS LOSS if it lost its
    /// RESERVE(6).
    pub(crate) fn add_path(&self, path: &Arc<LuNexus>) {
        {
            let mut known = self.known.lock();
            if known.len() >= MAX_KNOWN {
                known.clear(); // a power on too many does no harm
            }
            let news = match known.insert(acquaintance(path), false) {
                None => Some(Asc::POWER_ON_OR_RESET),
                Some(_) if self.replacing.load(Ordering::Acquire) => Some(Asc::POWER_ON_OR_RESET),
                Some(lost) => lost.then_some(Asc::NEXUS_LOSS),
            };
            if let Some(asc) = news {
                path.establish_silently(Sense::new(SenseKey::UnitAttention, asc));
            }
        }
        let mut paths = self.paths.lock();
        paths.retain(|p| p.strong_count() > 0);
        paths.push(Arc::downgrade(path));
    }

    /// Removes an I_T_L nexus, and releases its RESERVE(6).
    pub(crate) fn remove_path(&self, path: &LuNexus) {
        if self.release_by(path.number) {
            self.known.lock().insert(acquaintance(path), true);
        }
        self.paths.lock().retain(|p| p.upgrade().is_some_and(|p| !std::ptr::eq(&*p, path)));
    }

    pub(crate) fn paths(&self) -> Vec<Arc<LuNexus>> {
        self.paths.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Establishes a unit attention condition for every nexus that `which` accepts (SAM-5 5.14).
    pub(crate) fn establish(&self, asc: Asc, which: impl Fn(&LuNexus) -> bool) {
        for path in self.paths() {
            if which(&path) {
                path.establish(Sense::new(SenseKey::UnitAttention, asc));
            }
        }
    }

    /// Prepares the removal of the logical unit. It stops a SANITIZE OVERWRITE that runs, and waits
    /// until the sanitize operation has released the device. A new logical unit over the same
    /// device reports that a stopped operation failed.
    pub fn retire(&self) {
        self.sanitize.retire();
    }

    /// Reports a changed size of the device: CAPACITY DATA HAS CHANGED for all nexuses.
    pub fn notify_resized(&self) {
        self.establish(Asc::CAPACITY_DATA_CHANGED, |_| true);
    }

    /// Reports a changed identity or a changed read-only state: INQUIRY DATA HAS CHANGED for all
    /// nexuses.
    pub fn notify_inquiry_changed(&self) {
        self.establish(Asc::INQUIRY_DATA_CHANGED, |_| true);
    }

    /// Ends the replacement that [`LogicalUnit::successor`] began. The nexuses have got the unit
    /// attention of a power on at their creation. This function reports the changes of INQUIRY data
    /// and, with `resized`, of the capacity.
    pub fn notify_replaced(&self, resized: bool) {
        self.replacing.store(false, Ordering::Release);
        self.notify_inquiry_changed();
        if resized {
            self.notify_resized();
        }
    }

    /// Carries out LOGICAL UNIT RESET, or a target reset (SAM-5 6.3.3). All nexuses get a unit
    /// attention. This function aborts the tasks of all nexuses but `by`. The session of `by`
    /// aborts its own tasks.
    pub(crate) fn reset(&self, by: &LuNexus) {
        *self.reserved_by.lock() = None;
        self.set_gate(gate::RESERVED | gate::STOPPED, false);
        let paths = self.paths();
        for path in &paths {
            match std::ptr::eq(by, &**path) {
                true => path.fence(),
                false => drop(path.abort_tasks()),
            }
        }
        self.settle();
        for path in paths {
            path.establish(Sense::new(SenseKey::UnitAttention, Asc::BUS_DEVICE_RESET));
        }
    }
}

/// An I_T_L nexus: one initiator port, one target port, one logical unit.
pub(crate) struct LuNexus {
    /// The number of the nexus. Unlike a name, it is never used twice.
    pub(crate) number: u64,
    pub(crate) initiator: Arc<str>,
    pub(crate) port: Arc<TargetPort>,
    pub(crate) lun: u16,
    pub(crate) lu: Arc<LogicalUnit>,
    pub(crate) read_only: AtomicBool,
    pub(crate) events: Arc<dyn Events>,
    /// Counter of task aborts. A command that began before the last abort must not write.
    pub(super) fences: AtomicU64,
    /// Whether unit attentions are pending.
    pub(super) attentive: AtomicBool,
    pub(super) attentions: Mutex<VecDeque<Sense>>,
    /// Whether the inventory changed and the initiator has no report of it yet. [`super::Nexus`]
    /// shares this value.
    pub(super) lun_news: Arc<AtomicBool>,
    /// Whether the session has ended, or no longer sees the logical unit.
    pub(super) gone: AtomicBool,
}

impl fmt::Debug for LuNexus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} LUN {}", self.initiator, self.port.name(), self.lun)
    }
}

impl LuNexus {
    /// Adds a unit attention condition, and reports it to the session. Does nothing if the
    /// condition is pending.
    pub(crate) fn establish(&self, sense: Sense) {
        if self.establish_silently(sense.clone()) {
            self.events.event(Event::UnitAttention { lun: self.lun, sense });
        }
    }

    /// Adds a unit attention condition without a report to the session. Returns false if the
    /// condition is pending or the queue is full.
    pub(crate) fn establish_silently(&self, sense: Sense) -> bool {
        let mut attentions = self.attentions.lock();
        let is_new = attentions.len() < MAX_ATTENTIONS && !attentions.iter().any(|a| a.asc == sense.asc);
        if is_new {
            attentions.push_back(sense);
        }
        self.attentive.store(true, Ordering::Release);
        is_new
    }

    /// Returns whether the nexus must no longer be used.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    pub(super) fn has_attention(&self, asc: Asc) -> bool {
        self.attentions.lock().iter().any(|a| a.asc == asc)
    }

    /// Removes and returns the oldest unit attention.
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

    /// Removes one kind of unit attention, because the initiator has received the information.
    pub(crate) fn forget_attention(&self, asc: Asc) {
        let mut attentions = self.attentions.lock();
        attentions.retain(|a| a.asc != asc);
        self.attentive.store(!attentions.is_empty(), Ordering::Release);
    }

    /// Returns the number of task aborts of this nexus. A command that began at another number is
    /// late.
    pub(crate) fn fences(&self) -> u64 {
        self.fences.load(Ordering::Acquire)
    }

    /// Marks all commands in progress as late. [`LogicalUnit::settle`] then waits for their writes.
    pub(crate) fn fence(&self) {
        self.fences.fetch_add(1, Ordering::AcqRel);
    }

    /// Marks all commands in progress as late. The session aborts them. Returns the number of tasks
    /// that the session aborted.
    pub(crate) fn abort_tasks(&self) -> usize {
        self.fence();
        self.events.event(Event::AbortTasks { lun: self.lun })
    }

    /// Returns the names of the two ports, as registrations use them.
    pub(crate) fn name(&self) -> Name {
        Name { initiator: self.initiator.clone(), port: self.lu.registered_name(&self.port) }
    }

    /// Returns whether the reservations of other nexuses allow `want`.
    pub(crate) fn allowed(&self, want: Want) -> bool {
        let gates = self.lu.gates();
        let reserved =
            gates & gate::RESERVED != 0 && self.lu.reserved_by.lock().is_some_and(|n| n != self.number);
        !reserved && (gates & gate::PERSISTENT == 0 || self.lu.reservations.lock().allows(&self.name(), want))
    }

    /// Returns CHECK CONDITION in the sense data format that the control mode page selects.
    pub(crate) fn check(&self, mut sense: Sense) -> Outcome {
        sense.descriptor_format = self.lu.gates() & gate::DESCRIPTOR_SENSE != 0;
        Outcome::check(sense)
    }
}
