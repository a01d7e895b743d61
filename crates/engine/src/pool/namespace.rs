//! What the pool's names mean now: volumes, branches and physical volumes in memory, as of the last sequenced record.
//! The catalog follows, in LSN order.

use super::info::{NewVolume, VolumeInfo, VolumeStats};
use super::{DEFAULT_CHUNK_SIZE, MAX_VOLUME_SIZE, Placement, PoolConfig};
use crate::catalog::{BranchRecord, Control, PvRecord, VolumeRecord};
use crate::error::{Result, conflict, corrupt, invalid, not_found};
use crate::staging::Staging;
use parking_lot::RwLock;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One line of history, as the data path needs it.
pub(crate) struct Branch {
    pub(crate) id: u64,
    pub(crate) chunk_log2: u8,
    /// log2 of the slot size: the chunk size, but at least the atomic unit.
    pub(crate) slot_log2: u8,
    /// Writes are born in this epoch.
    pub(crate) epoch: u32,
    pub(crate) staging: Arc<Staging>,
    /// Slots that its map points to, as of the last commit.
    pub(crate) slots: AtomicU64,
}

impl Branch {
    pub(crate) fn new(id: u64, chunk_log2: u8, epoch: u32, slots: u64, atomic_unit: u32) -> Self {
        Branch {
            id,
            chunk_log2,
            slot_log2: chunk_log2.max(atomic_unit.trailing_zeros() as u8),
            epoch,
            staging: Arc::new(Staging::new()),
            slots: AtomicU64::new(slots),
        }
    }

    /// Chunks that `offset..offset+len` touches.
    pub(crate) fn chunks(&self, offset: u64, len: u64) -> std::ops::Range<u64> {
        offset >> self.chunk_log2..(offset + len).div_ceil(1 << self.chunk_log2)
    }
}

/// A volume, as handles share it.
pub(crate) struct VolumeState {
    pub(crate) id: u64,
    pub(crate) uuid: [u8; 16],
    pub(crate) block_size: u32,
    pub(crate) created: u64,
    pub(crate) branch: Arc<Branch>,
    pub(crate) name: RwLock<String>,
    /// Changes under the sequencing lock only.
    pub(crate) size: AtomicU64,
    pub(crate) read_only: AtomicBool,
    pub(crate) deleted: AtomicBool,
    pub(crate) handles: AtomicU64,
    pub(crate) counters: VolumeCounters,
}

/// Apart from what every request reads: counting must not take those lines from other processors.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct VolumeCounters {
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) write_bytes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) discards: AtomicU64,
    pub(crate) discard_bytes: AtomicU64,
    pub(crate) staged_read_bytes: AtomicU64,
    pub(crate) errors: AtomicU64,
}

impl VolumeState {
    pub(crate) fn info(&self) -> VolumeInfo {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let c = &self.counters;
        VolumeInfo {
            name: self.name.read().clone(),
            uuid: self.uuid,
            size: get(&self.size),
            chunk_size: 1 << self.branch.chunk_log2,
            block_size: self.block_size,
            read_only: self.read_only.load(Ordering::Relaxed),
            created: self.created,
            branch: self.branch.id,
            allocated: get(&self.branch.slots) << self.branch.slot_log2,
            handles: get(&self.handles),
            stats: VolumeStats {
                reads: get(&c.reads),
                read_bytes: get(&c.read_bytes),
                writes: get(&c.writes),
                write_bytes: get(&c.write_bytes),
                flushes: get(&c.flushes),
                discards: get(&c.discards),
                discard_bytes: get(&c.discard_bytes),
                staged_read_bytes: get(&c.staged_read_bytes),
                errors: get(&c.errors),
            },
        }
    }
}

/// See the module.
pub(crate) struct Namespace {
    atomic_unit: u32,
    pub(crate) by_name: BTreeMap<String, Arc<VolumeState>>,
    by_id: HashMap<u64, Arc<VolumeState>>,
    /// All branches that have rows in the catalog, or will have: dead ones too.
    pub(crate) branches: HashMap<u64, Arc<Branch>>,
    /// Physical volumes that were added and not removed.
    pub(crate) pvs: BTreeMap<u32, PvRecord>,
    pub(crate) placement: Placement,
    pub(crate) next_id: u64,
    pub(crate) next_pv: u32,
}

impl Namespace {
    pub(crate) fn new(atomic_unit: u32, placement: Placement, next_id: u64, next_pv: u32) -> Self {
        Namespace {
            atomic_unit,
            by_name: BTreeMap::new(),
            by_id: HashMap::new(),
            branches: HashMap::new(),
            pvs: BTreeMap::new(),
            placement,
            next_id,
            next_pv,
        }
    }

    pub(crate) fn load_branch(&mut self, id: u64, record: &BranchRecord) {
        let branch = Branch::new(id, record.chunk_log2, record.epoch, record.slots, self.atomic_unit);
        self.branches.insert(id, Arc::new(branch));
    }

    pub(crate) fn load_volume(&mut self, id: u64, record: VolumeRecord) -> Result<()> {
        let Some(branch) = self.branches.get(&record.branch).cloned() else {
            return Err(corrupt(format!(
                "load volume {}: its branch {} is missing",
                record.name, record.branch
            )));
        };
        let state = Arc::new(VolumeState {
            id,
            uuid: record.uuid,
            block_size: record.block_size,
            created: record.created,
            branch,
            name: RwLock::new(record.name.clone()),
            size: AtomicU64::new(record.size),
            read_only: AtomicBool::new(record.read_only),
            deleted: AtomicBool::new(false),
            handles: AtomicU64::new(0),
            counters: VolumeCounters::default(),
        });
        if self.by_name.insert(record.name.clone(), state.clone()).is_some() {
            return Err(corrupt(format!("load volume {}: two volumes have that name", record.name)));
        }
        self.by_id.insert(id, state);
        Ok(())
    }

    pub(crate) fn volume(&self, name: &str) -> Result<&Arc<VolumeState>> {
        self.by_name.get(name).ok_or_else(|| not_found(format!("find volume {name:?}: there is none")))
    }

    /// Gives a control operation its meaning, at its place in the order: called under the sequencing lock right after
    /// its record was pushed, and for every such record at recovery.
    pub(crate) fn apply(&mut self, control: &Control, lsn: u64) -> Result<()> {
        match control {
            Control::CreateVolume { id, chunk_log2, volume } => {
                self.load_branch(volume.branch, &BranchRecord::new(*chunk_log2));
                self.next_id = self.next_id.max(id + 1).max(volume.branch + 1);
                self.load_volume(*id, volume.clone())?;
            }
            Control::ResizeVolume { id, size } => {
                if let Some(volume) = self.by_id.get(id) {
                    let old = volume.size.swap(*size, Ordering::AcqRel);
                    if *size < old {
                        // Should it grow again before the tail is discarded, the tail reads as zeros already.
                        let end = old.next_multiple_of(1 << volume.branch.chunk_log2);
                        volume.branch.staging.insert_range(*size, end, lsn, false);
                    }
                }
            }
            Control::RenameVolume { id, name } => {
                if let Some(volume) = self.by_id.get(id).cloned() {
                    let old = std::mem::replace(&mut *volume.name.write(), name.clone());
                    self.by_name.remove(&old);
                    self.by_name.insert(name.clone(), volume);
                }
            }
            Control::SetReadOnly { id, read_only } => {
                if let Some(volume) = self.by_id.get(id) {
                    volume.read_only.store(*read_only, Ordering::Release);
                }
            }
            Control::DeleteVolume { id } => {
                if let Some(volume) = self.by_id.remove(id) {
                    volume.deleted.store(true, Ordering::Release);
                    self.by_name.remove(&*volume.name.read());
                }
            }
            Control::AddPv { pv, uuid, path, extents } => {
                self.next_pv = self.next_pv.max(pv + 1);
                let record = PvRecord { uuid: *uuid, path: path.clone(), extents: *extents, draining: false };
                self.pvs.insert(*pv, record);
            }
            Control::SetDraining { pv, draining } => {
                if let Some(record) = self.pvs.get_mut(pv) {
                    record.draining = *draining;
                }
            }
            Control::RemovePv { pv } => {
                self.pvs.remove(pv);
            }
            Control::SetPlacement(placement) => self.placement = *placement,
        }
        Ok(())
    }

    /// The number of the PV that `wanted` names: by path, UUID (as hex digits) or number.
    pub(crate) fn find_pv(&self, wanted: &str) -> Result<u32> {
        let hex: String = wanted.chars().filter(|c| *c != '-').collect::<String>().to_lowercase();
        let is = |id: u32, pv: &PvRecord| {
            let uuid: String = pv.uuid.iter().map(|b| format!("{b:02x}")).collect();
            pv.path == wanted || uuid == hex || id.to_string() == wanted
        };
        let found = self.pvs.iter().find(|(id, pv)| is(**id, pv)).map(|(id, _)| *id);
        found.ok_or_else(|| not_found(format!("find physical volume {wanted:?}: there is none")))
    }

    /// The operation that creates `new`, or why it can't be.
    pub(crate) fn create(
        &self,
        new: &NewVolume,
        config: &PoolConfig,
        uuid: [u8; 16],
        created: u64,
    ) -> Result<Control> {
        check_name(&new.name)?;
        check_block_size(new.block_size)?;
        check_size(new.size, new.block_size)?;
        let chunk = new.chunk_size;
        if !chunk.is_power_of_two()
            || chunk < 512
            || chunk > config.extent_size
            || chunk < new.block_size as u64
        {
            return Err(invalid(format!(
                "create volume {}: the chunk size must be a power of two from 512 (and the block size) to the extent size {}, like {DEFAULT_CHUNK_SIZE}",
                new.name, config.extent_size
            )));
        }
        if self.by_name.contains_key(&new.name) {
            return Err(conflict(format!("create volume {}: the name is taken", new.name)));
        }
        let volume = VolumeRecord {
            uuid,
            name: new.name.clone(),
            size: new.size,
            block_size: new.block_size,
            read_only: new.read_only,
            created,
            branch: self.next_id + 1,
        };
        Ok(Control::CreateVolume { id: self.next_id, chunk_log2: chunk.trailing_zeros() as u8, volume })
    }
}

/// Names are used in addresses (`vol@snap`), URLs, iSCSI names and export names.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let ok = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    if first && name.len() <= 128 && name.chars().all(ok) {
        return Ok(());
    }
    Err(invalid(format!(
        "use the name {name:?}: a name has 1 to 128 letters, digits, dots, underscores and hyphens, and starts with a letter or digit"
    )))
}

fn check_block_size(block_size: u32) -> Result<()> {
    if matches!(block_size, 512 | 4096) {
        return Ok(());
    }
    Err(invalid(format!("use a logical block size of {block_size}: it must be 512 or 4096")))
}

pub(crate) fn check_size(size: u64, block_size: u32) -> Result<()> {
    if size > 0 && size <= MAX_VOLUME_SIZE && size % block_size as u64 == 0 {
        return Ok(());
    }
    Err(invalid(format!(
        "use a size of {size} bytes: it must be a multiple of {block_size} from {block_size} to {MAX_VOLUME_SIZE}"
    )))
}
