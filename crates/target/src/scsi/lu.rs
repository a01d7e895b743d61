//! A logical unit: a block device with a SCSI identity, and the state that SCSI keeps for it. There
//! is one [`LogicalUnit`] per device. All targets that map the device share it. An initiator
//! reaches it by an I_T_L nexus ([`LuNexus`]).

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

/// Keeps what a logical unit must remember across restarts: persistent reservations with APTPL,
/// saved mode pages.
pub trait LuStore: Send + Sync {
    /// What was saved last; `None` if nothing ever was.
    fn load(&self) -> Result<Option<Vec<u8>>>;

    /// Replaces it, durably: it survives power loss once this returned.
    fn save(&self, state: &[u8]) -> Result<()>;
}

/// Space for logical unit provisioning (SBC-3 4.7), in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// What this logical unit has allocated.
    pub used: u64,
    /// What it could still allocate.
    pub available: u64,
}

/// How a logical unit presents itself.
#[derive(Clone)]
pub struct LuOptions {
    /// PRODUCT IDENTIFICATION, up to 16 ASCII characters.
    pub product: String,
    /// PRODUCT REVISION LEVEL, up to 4 ASCII characters.
    pub revision: String,
    /// The unit serial number; by default the device's uuid.
    pub serial: Option<String>,
    /// Space left, if the device is thinly provisioned and can tell.
    pub space: Option<Arc<dyn Fn() -> Space + Send + Sync>>,
    /// The physical block size that is reported: what is written without reading first, a power of
    /// two. By default the logical block size, because no write tears its neighbours.
    pub physical_block_size: u32,
    /// The longest write in bytes that is all there or not at all after a power loss; 0 if nothing
    /// is promised.
    pub atomic_bytes: u32,
    /// How fast SANITIZE writes over everything, in bytes a second: other logical units want the
    /// disks too.
    pub sanitize_rate: u64,
}

impl Default for LuOptions {
    fn default() -> LuOptions {
        LuOptions {
            product: "VOLUME".into(),
            revision: "1".into(),
            serial: None,
            space: None,
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

/// Reasons to look closer before a command is carried out; zero almost always, so the fast path
/// looks at one word.
pub(crate) mod gate {
    /// There is a persistent reservation, or registrations that matter to RESERVE(6).
    pub(crate) const PERSISTENT: u32 = 1;
    /// RESERVE(6) is in force.
    pub(crate) const RESERVED: u32 = 1 << 1;
    /// SWP in the control mode page.
    pub(crate) const SOFT_PROTECTED: u32 = 1 << 2;
    /// WCE is off: every write is durable before it is answered.
    pub(crate) const WRITE_THROUGH: u32 = 1 << 3;
    /// START STOP UNIT stopped it.
    pub(crate) const STOPPED: u32 = 1 << 4;
    /// A sanitize operation runs, or has failed.
    pub(crate) const SANITIZE: u32 = 1 << 5;
    /// D_SENSE in the control mode page.
    pub(crate) const DESCRIPTOR_SENSE: u32 = 1 << 6;
    /// Some target port group is not active.
    pub(crate) const PORT_GROUPS: u32 = 1 << 7;
    /// Those that say how, rather than whether, a command is carried out.
    pub(crate) const MANNERS: u32 = WRITE_THROUGH | DESCRIPTOR_SENSE;
}

/// What becomes of a write that comes too late.
fn aborted() -> Error {
    Error::new(ErrorKind::Busy, "write: the command was aborted")
}

/// Unit attentions kept for one I_T_L nexus; of more, the oldest stay.
const MAX_ATTENTIONS: usize = 16;

/// Resource counts are in sets of 2^11 blocks.
pub(crate) const THRESHOLD_EXPONENT: u8 = 11;

/// Initiators that are remembered.
const MAX_KNOWN: usize = 4096;

/// What an initiator is remembered by. Not by its port: many initiators make up a new one for each
/// session.
fn acquaintance(path: &LuNexus) -> (String, Arc<str>) {
    let device = path.initiator.split_once(",i,").map_or(&*path.initiator, |(device, _)| device);
    (device.to_owned(), path.port.name().into())
}

/// A logical unit.
pub struct LogicalUnit {
    device: Arc<dyn BlockDevice>,
    pub(crate) options: LuOptions,
    pub(crate) store: Option<Arc<dyn LuStore>>,
    gates: AtomicU32,
    block_size: u32,
    /// Plain writes share it; a command that reads, decides and writes (COMPARE AND WRITE, ORWRITE)
    /// holds it alone.
    serial: RwLock<()>,
    paths: Mutex<Vec<Weak<LuNexus>>>,
    /// Initiator devices, by name and target port, that came by before, and whether one lost its
    /// RESERVE(6) since.
    known: Mutex<BTreeMap<(String, Arc<str>), bool>>,
    pub(crate) reservations: Mutex<Reservations>,
    /// Held while reservations or mode parameters are changed, on disk too. The locks of these are
    /// taken while commands are received, so no thread may hold those for as long as a disk takes.
    pub(crate) changing: Mutex<()>,
    /// Targets that were renamed under their sessions: the new names by the old ones. Taken after
    /// `reservations`.
    pub(crate) renamed: RwLock<BTreeMap<String, String>>,
    /// The holder of RESERVE(6): [`LuNexus::number`].
    pub(crate) reserved_by: Mutex<Option<u64>>,
    pub(crate) modes: Mutex<Modes>,
    pub(crate) sanitize: Sanitize,
    pub(crate) copies: Mutex<Records>,
    /// Empty for a lone server.
    pub(crate) port_groups: RwLock<Vec<PortGroup>>,
    /// What the store holds; and held while that is changed.
    saved: Mutex<Saved>,
    saving: Mutex<()>,
    /// The threshold of available space has been passed and reported.
    low_space: AtomicBool,
    /// It is being put in the place of another logical unit: initiators that find it have to be
    /// told.
    replacing: AtomicBool,
}

impl fmt::Debug for LogicalUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogicalUnit").field("info", &self.device.info()).finish_non_exhaustive()
    }
}

impl LogicalUnit {
    /// A logical unit over a device. With a store it remembers what it must across restarts; what
    /// is stored is read here.
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

    /// The logical unit that takes the place of this one, with another device of another content
    /// behind it, as after a rollback of a volume. It keeps reservations and mode parameters. For
    /// initiators the logical unit has been switched off and on. A command that this one has let in
    /// never reaches the new device.
    /// The caller puts the new one in the place of this one by [`super::Target::set_lun`], wherever
    /// this one is, and then calls [`LogicalUnit::notify_replaced`].
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

    /// The device behind it. Read through it; write by [`LogicalUnit::write`].
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Shape and current size.
    pub fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    /// Logical block size in bytes.
    pub fn block_size(&self) -> u64 {
        u64::from(self.block_size)
    }

    /// Reads without waiting for a disk: see [`BlockDevice::try_read`].
    pub fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        self.device.try_read(offset, buf)
    }

    /// Reads, waiting for disks as needed.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.device.read(offset, buf)
    }

    /// Writes a batch in one call of the device, not in the middle of a command that reads, decides
    /// and writes, nor of a sanitize operation.
    pub fn write(&self, ops: &mut [WriteOp], fua: bool) {
        self.write_unless(ops, fua, |_| false);
    }

    /// Writes like [`LogicalUnit::write`], but leaves out the operations that are `late`: their
    /// commands were aborted after they were let in. See [`LogicalUnit::settle`].
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

    /// Waits for the writes that are under way. A caller that aborts commands marks them first
    /// ([`LuNexus::abort_tasks`]). After this none of them changes the medium any more, which is
    /// the purpose of PREEMPT AND ABORT.
    pub(crate) fn settle(&self) {
        self.alone(|| ());
    }

    /// Zeroes a range, freeing space if it may, under the same conditions as a write.
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

    /// A write that was let in before a sanitize operation began comes too late.
    pub(crate) fn not_sanitizing(&self) -> Result<()> {
        match self.gates() & gate::SANITIZE {
            0 => Ok(()),
            _ => Err(Error::new(ErrorKind::Busy, "write while a sanitize operation runs")),
        }
    }

    /// Runs `f` while no write is under way.
    pub(crate) fn alone<T>(&self, f: impl FnOnce() -> T) -> T {
        let _exclusive = self.serial.write();
        f()
    }

    /// The reasons to look closer.
    pub(crate) fn gates(&self) -> u32 {
        self.gates.load(Ordering::Acquire)
    }

    /// Sets or clears reasons to look closer.
    pub(crate) fn set_gate(&self, gate: u32, on: bool) {
        if on {
            self.gates.fetch_or(gate, Ordering::AcqRel);
        } else {
            self.gates.fetch_and(!gate, Ordering::AcqRel);
        }
    }

    /// Lets what depends on changed mode parameters follow them.
    pub(crate) fn apply_modes(&self, modes: &Modes) {
        self.set_gate(gate::WRITE_THROUGH, !modes.write_cache);
        self.set_gate(gate::SOFT_PROTECTED, modes.protected);
        self.set_gate(gate::DESCRIPTOR_SENSE, modes.descriptor_sense);
    }

    /// Saved mode parameters, or the defaults.
    pub(crate) fn saved_modes(&self) -> Modes {
        self.saved.lock().modes.clone().unwrap_or_default()
    }

    /// Changes what is kept across restarts. Without a store nothing is.
    pub(crate) fn keep(&self, change: impl FnOnce(&mut Saved)) -> Result<()> {
        let _one_at_a_time = self.saving.lock();
        let saved = self.saved.lock().clone();
        let mut changed = saved.clone();
        change(&mut changed);
        if let Some(store) = &self.store
            && changed != saved
        {
            let bytes = changed.encode();
            // What could not be read again must not replace what can.
            Saved::decode(&bytes)?;
            store.save(&bytes)?;
        }
        *self.saved.lock() = changed;
        Ok(())
    }

    /// LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT.
    pub(crate) fn physical_exponent(&self) -> u32 {
        (self.options.physical_block_size.max(self.block_size) / self.block_size).ilog2().min(15)
    }

    /// MAXIMUM ATOMIC TRANSFER LENGTH, in bytes.
    pub(crate) fn atomic_bytes(&self) -> u64 {
        u64::from(self.options.atomic_bytes) / self.block_size() * self.block_size()
    }

    /// RELEASE(6), or the end of the nexus that reserved.
    pub(crate) fn release_by(&self, number: u64) -> bool {
        let mut holder = self.reserved_by.lock();
        let held = *holder == Some(number);
        if held {
            *holder = None;
            self.set_gate(gate::RESERVED, false);
        }
        held
    }

    /// Tells of groups of target ports and their states, for a pool that several servers can serve.
    /// An empty list is a lone server.
    pub fn set_port_groups(&self, groups: Vec<PortGroup>) {
        let inactive = groups.iter().any(|g| g.state.sense().is_some());
        *self.port_groups.write() = groups;
        self.set_gate(gate::PORT_GROUPS, inactive);
        self.establish(Asc::ASYMMETRIC_ACCESS_STATE_CHANGED, |_| true);
    }

    /// Bytes as threshold sets, rounded down.
    pub(crate) fn threshold_sets(&self, bytes: u64) -> u32 {
        u32::try_from((bytes / self.block_size()) >> THRESHOLD_EXPONENT).unwrap_or(u32::MAX)
    }

    /// The name by which a port registers: of a target that was renamed under its sessions, the new
    /// one.
    pub(crate) fn registered_name(&self, port: &TargetPort) -> Arc<str> {
        let renamed = self.renamed.read();
        match renamed.get(&*port.target) {
            Some(now) => TargetPort { target: now.as_str().into(), ..port.clone() }.name().into(),
            None => port.name().into(),
        }
    }

    /// Compares space with the threshold that the initiators set, and tells them when it is passed.
    /// To be called now and then, and after a write that found no space.
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

    /// A new I_T_L nexus. To an initiator that is new the logical unit has just been powered on;
    /// one that comes again learns what it lost.
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

    /// The I_T_L nexus is gone, and what it reserved by RESERVE(6) with it.
    pub(crate) fn remove_path(&self, path: &LuNexus) {
        if self.release_by(path.number) {
            self.known.lock().insert(acquaintance(path), true);
        }
        self.paths.lock().retain(|p| p.upgrade().is_some_and(|p| !std::ptr::eq(&*p, path)));
    }

    pub(crate) fn paths(&self) -> Vec<Arc<LuNexus>> {
        self.paths.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Establishes a unit attention condition for every I_T nexus that `which` chooses (SAM-5
    /// 5.14).
    pub(crate) fn establish(&self, asc: Asc, which: impl Fn(&LuNexus) -> bool) {
        for path in self.paths() {
            if which(&path) {
                path.establish(Sense::new(SenseKey::UnitAttention, asc));
            }
        }
    }

    /// The logical unit is going to be removed: a sanitize operation that runs is broken off, so
    /// that only sessions hold the device. A logical unit that is made over the device again
    /// reports that the operation has failed.
    pub fn retire(&self) {
        self.sanitize.retire();
    }

    /// The device's size changed: CAPACITY DATA HAS CHANGED for all nexuses.
    pub fn notify_resized(&self) {
        self.establish(Asc::CAPACITY_DATA_CHANGED, |_| true);
    }

    /// The identity, or read-only, changed: INQUIRY DATA HAS CHANGED for all nexuses.
    pub fn notify_inquiry_changed(&self) {
        self.establish(Asc::INQUIRY_DATA_CHANGED, |_| true);
    }

    /// It is in the place of the logical unit that it succeeds. Its nexuses have known since its
    /// first moment that it was switched off and on. This tells them what else may have changed.
    pub fn notify_replaced(&self, resized: bool) {
        self.replacing.store(false, Ordering::Release);
        self.notify_inquiry_changed();
        if resized {
            self.notify_resized();
        }
    }

    /// LOGICAL UNIT RESET, or a target reset (SAM-5 6.3.3): all nexuses learn of it. The tasks of
    /// all but `by` are aborted here; the session of `by` aborts its own.
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
    /// Unlike names, never used twice.
    pub(crate) number: u64,
    pub(crate) initiator: Arc<str>,
    pub(crate) port: Arc<TargetPort>,
    pub(crate) lun: u16,
    pub(crate) lu: Arc<LogicalUnit>,
    pub(crate) read_only: AtomicBool,
    pub(crate) events: Arc<dyn Events>,
    /// Goes up whenever tasks are aborted: what began before must not write any more.
    pub(super) fences: AtomicU64,
    /// There are attentions.
    pub(super) attentive: AtomicBool,
    pub(super) attentions: Mutex<VecDeque<Sense>>,
    /// [`super::Nexus`] has it, too: the inventory changed, and the initiator does not know yet.
    pub(super) lun_news: Arc<AtomicBool>,
    /// The session has ended, or does not see the logical unit any more.
    pub(super) gone: AtomicBool,
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

    pub(super) fn has_attention(&self, asc: Asc) -> bool {
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
