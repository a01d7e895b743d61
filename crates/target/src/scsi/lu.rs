//! A logical unit: a block device with a SCSI identity and the state that SCSI keeps for it. One per device, shared by
//! all targets that map it.

use super::nexus::{Event, LuNexus};
use super::sense::{Asc, Sense, SenseKey};
use hindcast_engine::Result;
use hindcast_engine::device::{BlockDevice, DeviceInfo, WriteOp};
use parking_lot::{Mutex, RwLock};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// Keeps what a logical unit must remember across restarts: persistent reservations with APTPL, saved mode pages.
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
}

impl Default for LuOptions {
    fn default() -> LuOptions {
        LuOptions { product: "VOLUME".into(), revision: "1".into(), serial: None, space: None }
    }
}

impl fmt::Debug for LuOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LuOptions").field("product", &self.product).field("serial", &self.serial).finish()
    }
}

/// Reasons to look closer before a command is carried out; zero almost always, so the fast path looks at one word.
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
}

/// A logical unit.
pub struct LogicalUnit {
    device: Arc<dyn BlockDevice>,
    pub(crate) options: LuOptions,
    pub(crate) store: Option<Arc<dyn LuStore>>,
    gates: AtomicU32,
    block_size: u32,
    /// Plain writes share it; a command that reads, decides and writes (COMPARE AND WRITE, ORWRITE) holds it alone.
    serial: RwLock<()>,
    paths: Mutex<Vec<Weak<LuNexus>>>,
}

impl fmt::Debug for LogicalUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogicalUnit").field("info", &self.device.info()).finish_non_exhaustive()
    }
}

impl LogicalUnit {
    /// A logical unit over a device. With a store it remembers what it must across restarts; what is stored is read
    /// here.
    pub fn new(
        device: Arc<dyn BlockDevice>,
        options: LuOptions,
        store: Option<Arc<dyn LuStore>>,
    ) -> Result<Arc<LogicalUnit>> {
        let block_size = device.info().block_size;
        Ok(Arc::new(LogicalUnit {
            device,
            options,
            store,
            gates: AtomicU32::new(0),
            block_size,
            serial: RwLock::new(()),
            paths: Mutex::default(),
        }))
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

    /// Writes a batch in one call of the device, not in the middle of a command that reads, decides and writes.
    pub fn write(&self, ops: &mut [WriteOp], fua: bool) {
        let _shared = self.serial.read();
        self.device.write(ops, fua);
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

    pub(crate) fn add_path(&self, path: &Arc<LuNexus>) {
        let mut paths = self.paths.lock();
        paths.retain(|p| p.strong_count() > 0);
        paths.push(Arc::downgrade(path));
    }

    /// The I_T_L nexus is gone.
    pub(crate) fn remove_path(&self, path: &LuNexus) {
        self.paths.lock().retain(|p| p.upgrade().is_some_and(|p| !std::ptr::eq(&*p, path)));
    }

    pub(crate) fn paths(&self) -> Vec<Arc<LuNexus>> {
        self.paths.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Establishes a unit attention condition for every I_T nexus that `which` chooses (SAM-5 5.14).
    pub(crate) fn establish(&self, asc: Asc, which: impl Fn(&LuNexus) -> bool) {
        for path in self.paths() {
            if which(&path) {
                path.establish(Sense::new(SenseKey::UnitAttention, asc));
            }
        }
    }

    /// The device's size changed: CAPACITY DATA HAS CHANGED for everybody.
    pub fn notify_resized(&self) {
        self.establish(Asc::CAPACITY_DATA_CHANGED, |_| true);
    }

    /// The identity, or read-only, changed: INQUIRY DATA HAS CHANGED for everybody.
    pub fn notify_inquiry_changed(&self) {
        self.establish(Asc::INQUIRY_DATA_CHANGED, |_| true);
    }

    /// LOGICAL UNIT RESET by `by`, or a target reset (SAM-5 6.3.3): tasks of others are aborted, everybody else
    /// learns of it. The caller aborts the tasks of `by` itself.
    pub(crate) fn reset(&self, by: Option<&LuNexus>) {
        for path in self.paths() {
            if by.is_none_or(|by| !std::ptr::eq(by, &*path)) {
                path.events.event(Event::AbortTasks { lun: path.lun });
                path.establish(Sense::new(SenseKey::UnitAttention, Asc::BUS_DEVICE_RESET));
            }
        }
    }
}
