//! Physical volumes: adding them, recognizing them, and finding their disks on the read path.

use super::label::{Label, LabelFound, extents_on, most_bytes};
use crate::catalog::PvRecord;
use crate::disk::{BlockSums, Cause, Dir, Disk, DiskLayout, OpenMode, SyncPurpose};
use crate::error::{Error, ErrorKind, Result, conflict, corrupt, invalid, not_found};
use crate::journal::ReferredDisk;
use crate::journal::reference::SlotRun;
use crate::journal::verify::Slots;
use crate::settings::PvSpec;
use arc_swap::{ArcSwapOption, Guard};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use uuid::Uuid;

/// Number of physical volumes that a pool can have in its life. They fit a slot address, and the
/// table below stays small.
pub(crate) const MAX_PVS: u32 = 4096;

/// Bytes between two places of a physical volume at which reads are counted.
const READ_MARK: u64 = 64 << 10;

/// The time for which an opening waits for the last writes of a killed process.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// An open physical volume.
pub(crate) struct Pv {
    pub(crate) id: u32,
    pub(crate) uuid: Uuid,
    pub(crate) path: String,
    /// Only branches that were made for it have slots there.
    pub(crate) is_dedicated: bool,
    /// The part of its size that counts for Share, in per cent. The destager sets it.
    pub(crate) weight: AtomicU32,
    pub(crate) disk: Arc<dyn Disk>,
    /// Number of bytes that the disk below writes as a whole, if that is known.
    pub(crate) physical_block: Option<u64>,
    /// Whether the file system writes overwritten blocks to another place. It is determined once,
    /// since a dead disk may not answer.
    pub(crate) overwrites_elsewhere: bool,
    /// Number of extents that are used or wait for readers, as the allocator counts them.
    pub(crate) used_extents: AtomicU64,
    /// Number of multiples of [`READ_MARK`] that reads have passed since [`Pv::take_read_bytes`].
    read_marks: AtomicU64,
    /// Number of reads that failed since the pool was opened.
    read_errors: AtomicU64,
    last_read_error: Mutex<String>,
    /// The error of a write or a sync that failed. From then on nothing is written to the physical
    /// volume, until the pool is opened again.
    failure: OnceLock<String>,
    /// A sync has failed: the system may have forgotten data that was written before it.
    may_have_lost: AtomicBool,
    /// The physical volume is being drained or removed: nothing new refers to it. It is set by the
    /// allocator, before that operation is sequenced.
    pub(crate) leaving: AtomicBool,
    /// Set when the physical volume has left the pool: the result of wiping its label.
    pub(crate) wiped: OnceLock<Result<()>>,
}

impl Pv {
    pub(crate) fn new(id: u32, record: &PvRecord, disk: Arc<dyn Disk>) -> Arc<Pv> {
        disk.advise_random();
        let PvRecord { uuid, path, dedicated, weight, .. } = record.clone();
        Arc::new(Pv {
            id,
            uuid,
            path,
            is_dedicated: dedicated,
            weight: AtomicU32::new(weight),
            physical_block: disk.physical_block().ok().flatten(),
            overwrites_elsewhere: disk.overwrites_elsewhere().unwrap_or(false),
            disk,
            used_extents: AtomicU64::new(0),
            read_marks: AtomicU64::new(0),
            read_errors: AtomicU64::new(0),
            last_read_error: Mutex::default(),
            failure: OnceLock::new(),
            may_have_lost: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            wiped: OnceLock::new(),
        })
    }

    /// Counts a read, of a client or of the pool itself. A short read counts only if it passes a
    /// multiple of [`READ_MARK`], and then for the others. So readers seldom share the counter.
    #[inline]
    pub(crate) fn note_read(&self, at: u64, len: usize) {
        let passed = (at + len as u64) / READ_MARK - at / READ_MARK;
        if passed != 0 {
            self.read_marks.fetch_add(passed, Ordering::Relaxed);
        }
    }

    /// Returns about how many bytes were read since the last call.
    pub(crate) fn take_read_bytes(&self) -> u64 {
        self.read_marks.swap(0, Ordering::Relaxed).saturating_mul(READ_MARK)
    }

    /// Returns the error with which the physical volume failed, if it takes no writes any more.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Returns whether references to the physical volume may be sequenced. What a RAID-5 was sent
    /// since its last sync is lost if the process is killed, and a client's write must not be.
    pub(crate) fn takes_references(&self) -> bool {
        !self.leaving.load(Ordering::Acquire) && self.failure().is_none() && !self.is_raid5()
    }

    pub(crate) fn is_raid5(&self) -> bool {
        self.row_len().is_some()
    }

    /// Returns the number of bytes of content in a row, if this is a RAID-5.
    pub(crate) fn row_len(&self) -> Option<u64> {
        match self.disk.as_layout() {
            Some(DiskLayout::Raid5(raid)) => Some(raid.row_len()),
            _ => None,
        }
    }

    /// Returns the error of a write that failed. Unless it is a shortage, the physical volume has
    /// failed from then on.
    pub(crate) fn write_failed(&self, what: impl Into<String>, error: std::io::Error) -> Error {
        let error = Error::io(what, error);
        if error.is_shortage() { error } else { self.fail(error) }
    }

    /// Makes the written content durable. After an error the physical volume has failed, whatever
    /// the cause, because content written since the last sync may be lost.
    pub(crate) fn sync(&self, purpose: SyncPurpose) -> Result<()> {
        self.disk.sync(purpose).map_err(|e| self.sync_failed(Error::io(format!("sync {}", self.path), e)))
    }

    /// Notes that a sync has failed: what was written to the physical volume and not synced may be
    /// lost. The physical volume stays in use.
    pub(crate) fn note_lost(&self) {
        self.may_have_lost.store(true, Ordering::Release);
    }

    /// Notes that a sync has failed: the physical volume has failed, and what was written to it and
    /// not synced may be lost.
    pub(crate) fn sync_failed(&self, error: Error) -> Error {
        self.note_lost();
        self.fail(error)
    }

    /// Marks the physical volume as failed with `error`.
    pub(crate) fn fail(&self, error: Error) -> Error {
        self.failure.get_or_init(|| {
            let (pv, path) = (self.id, &self.path);
            tracing::error!(pv, path, %error, "a physical volume has failed: the pool writes no more data to it");
            error.to_string()
        });
        error.of_failed_pv()
    }

    /// Counts a read that failed.
    pub(crate) fn count_read_error(&self, at: u64, error: &std::io::Error) {
        *self.last_read_error.lock() = format!("at byte {at}: {error}");
        if self.read_errors.fetch_add(1, Ordering::Relaxed) == 0 {
            let (pv, path) = (self.id, &self.path);
            tracing::warn!(pv, path, at, %error, "a read of a physical volume has failed, the first since it was opened");
        }
    }

    /// Returns the number of reads that failed since the pool was opened, and the last of them.
    pub(crate) fn read_errors(&self) -> (u64, String) {
        (self.read_errors.load(Ordering::Relaxed), self.last_read_error.lock().clone())
    }
}

impl ReferredDisk for Pv {
    fn number(&self) -> u32 {
        self.id
    }

    fn sync_referred(&self) -> Result<()> {
        if self.may_have_lost.load(Ordering::Acquire) {
            let cause = self.failure().unwrap_or_default();
            let text = format!("sync {}: a sync has failed, and data may be lost: {cause}", self.path);
            return Err(Error::new(ErrorKind::Io, text));
        }
        self.sync(SyncPurpose::Direct)
    }
}

impl Slots for PvTable {
    fn read(&self, run: &SlotRun, buf: &mut [u8]) -> std::io::Result<bool> {
        let pv = self.held(run.first.pv()).ok_or(std::io::ErrorKind::NotFound)?;
        pv.disk.read_at(buf, run.first.offset()).map(|()| true)
    }

    fn disk(&self, pv: u32) -> Option<(String, Arc<dyn Disk>)> {
        self.held(pv).map(|pv| (pv.path.clone(), pv.disk.clone()))
    }
}

/// The open physical volumes by number, read without a lock. Numbers are never used twice. Groups
/// are made when one of their numbers is used first: a pool mostly has a few physical volumes, and
/// each place in the table costs time when the table is dropped.
pub(crate) struct PvTable {
    groups: [OnceLock<Group>; MAX_PVS as usize / GROUP],
    sums: OnceLock<KnownSums>,
}

/// The sums of units, which a layer above knows.
#[derive(Clone)]
pub(crate) struct KnownSums {
    /// Returns the sum of the unit at a byte of a physical volume, if it is known.
    pub(crate) known: Arc<dyn Fn(u32, u64) -> Option<u32> + Send + Sync>,
    /// Returns the sum of a content.
    pub(crate) sum_of: fn(&[u8]) -> u32,
}

const GROUP: usize = 64;
const _: () = assert!((MAX_PVS as usize).is_multiple_of(GROUP));

type Group = Box<[ArcSwapOption<Pv>; GROUP]>;

/// A physical volume found in the table. It stays open as long as this lives.
pub(crate) struct PvRef(Guard<Option<Arc<Pv>>>);

impl std::ops::Deref for PvRef {
    type Target = Pv;
    fn deref(&self) -> &Pv {
        // Only `PvTable::get` makes this, for an open physical volume.
        self.0.as_ref().expect("a PV that was found")
    }
}

impl PvTable {
    pub(crate) fn new() -> Self {
        PvTable { groups: std::array::from_fn(|_| OnceLock::new()), sums: OnceLock::new() }
    }

    #[inline]
    fn place(&self, id: u32) -> Option<&ArcSwapOption<Pv>> {
        Some(&self.groups.get(id as usize / GROUP)?.get()?[id as usize % GROUP])
    }

    pub(crate) fn get(&self, id: u32) -> Result<PvRef> {
        let found = self.place(id).map(ArcSwapOption::load).filter(|pv| pv.is_some());
        let found = found
            .ok_or_else(|| corrupt(format!("find PV {id}: the map points to it, but it does not exist")));
        Ok(PvRef(found?))
    }

    /// Returns the physical volume to be held for longer, if it is open.
    pub(crate) fn held(&self, id: u32) -> Option<Arc<Pv>> {
        self.place(id)?.load_full()
    }

    /// Returns about how many bytes were read from all of them since the last call.
    pub(crate) fn take_read_bytes(&self) -> u64 {
        let slots = self.groups.iter().filter_map(OnceLock::get).flat_map(|group| group.iter());
        slots.filter_map(ArcSwapOption::load_full).map(|pv| pv.take_read_bytes()).sum()
    }

    /// Lets disks with parities verify what they compute parities from, from now on.
    pub(crate) fn verify_with(&self, sums: KnownSums) {
        let _ = self.sums.set(sums);
        let ids = self.groups.iter().filter_map(OnceLock::get).flat_map(|group| group.iter());
        ids.filter_map(ArcSwapOption::load_full).for_each(|pv| self.lend_sums(&pv));
    }

    fn lend_sums(&self, pv: &Pv) {
        if let (Some(sums), Some(DiskLayout::Raid5(raid))) = (self.sums.get().cloned(), pv.disk.as_layout()) {
            let id = pv.id;
            raid.verify_with(BlockSums {
                known: Box::new(move |at| (sums.known)(id, at)),
                sum_of: sums.sum_of,
            });
        }
    }

    pub(crate) fn insert(&self, pv: Arc<Pv>) {
        self.lend_sums(&pv);
        if let Some(group) = self.groups.get(pv.id as usize / GROUP) {
            let group = group.get_or_init(|| Box::new(std::array::from_fn(|_| ArcSwapOption::empty())));
            group[pv.id as usize % GROUP].store(Some(pv));
        }
    }

    /// Removes a physical volume. Its disk is closed with its last reader.
    pub(crate) fn take(&self, id: u32) -> Option<Arc<Pv>> {
        self.place(id)?.swap(None)
    }
}

/// Opens a physical volume that the catalog knows, and verifies that it is the right one.
pub(crate) fn open_known(
    dir: &dyn Dir,
    pool: Uuid,
    extent_size: u64,
    id: u32,
    record: &PvRecord,
    mode: OpenMode,
) -> Result<Arc<Pv>> {
    let _cause = Cause::Open.begin();
    let path = &record.path;
    let wait = if mode == OpenMode::ReadOnly { Duration::ZERO } else { LOCK_WAIT };
    let disk = dir.open_for_flight(path, mode, wait).map_err(|e| match e.kind() {
        std::io::ErrorKind::WouldBlock => {
            let text = format!(
                "open physical volume {path}: another process has it open, or it is named twice; if a server was killed, its last writes may not be done"
            );
            Error::new(ErrorKind::Busy, text)
        }
        std::io::ErrorKind::NotFound => Error::with_source(
            ErrorKind::NotFound,
            format!(
                "open physical volume {path}: it is missing; attach it again, because the pool can't open without it; `hindcast serve --salvage` serves what others have, read-only"
            ),
            e,
        ),
        _ => Error::io(format!("open physical volume {path}"), e),
    })?;
    match Label::read(&*disk, path)? {
        LabelFound::Label(label) if label.pool != pool => {
            return Err(conflict(format!("open physical volume {path}: it belongs to another pool")));
        }
        LabelFound::Label(label) if label.pv_uuid != record.uuid || label.pv != id => {
            return Err(conflict(format!(
                "open physical volume {path}: it is another volume of this pool (number {}, not {id})",
                label.pv
            )));
        }
        // The label has the extents of the addition. It is never overwritten: a RAID-5 that loses a
        // member in a crash loses the block that is being written.
        LabelFound::Label(label) if label.extents > record.extents || label.extent_size != extent_size => {
            return Err(corrupt(format!("open physical volume {path}: its label contradicts the catalog")));
        }
        LabelFound::Label(_) => {}
        LabelFound::Damaged => {
            return Err(corrupt(format!("open physical volume {path}: its label does not verify")));
        }
        LabelFound::None => {
            return Err(conflict(format!("open physical volume {path}: it has no label of this pool")));
        }
    }
    let size = disk.len().map_err(|e| Error::io(format!("measure {path}"), e))?;
    if extents_on(size.min(most_bytes(extent_size)), extent_size, path)? < record.extents {
        return Err(corrupt(format!("open physical volume {path}: it was truncated to {size} bytes")));
    }
    Ok(Pv::new(id, record, disk))
}

/// Opens or creates the disk of a new physical volume, and refuses a disk that is already used.
/// Nothing is written yet. `known` returns whether a physical volume of this pool is in use: an
/// addition that a crash cut short may have left a label.
pub(crate) fn open_new(
    dir: &dyn Dir,
    spec: &PvSpec,
    pool: Uuid,
    (extent_size, atomic_unit): (u64, u32),
    known: &dyn Fn(&Uuid) -> bool,
) -> Result<(Arc<dyn Disk>, u32)> {
    let _cause = Cause::Open.begin();
    let path = &spec.path;
    if path.is_empty() || path.len() > 4096 {
        return Err(invalid("use a physical volume: its path must have 1 to 4096 bytes"));
    }
    if is_own_file(path) {
        return Err(conflict(format!("use {path}: such names are reserved for files of the pool")));
    }
    let fail = |e: std::io::Error| Error::io(format!("open {path}"), e);
    let mut created = false;
    let disk = match dir.open_for_flight(path, OpenMode::Existing, Duration::ZERO) {
        Ok(disk) => disk,
        // This pool may have it open, which gives a better error.
        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
            let disk = dir.open(path, OpenMode::ReadOnly).map_err(fail)?;
            check_unknown(Label::read(&*disk, path)?, path, pool, known)?;
            return Err(Error::new(ErrorKind::Busy, format!("use {path}: it is in use already")));
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            if spec.size.is_none() {
                return Err(not_found(format!(
                    "use {path}: it does not exist; give a size (--size) to create a file"
                )));
            }
            created = true;
            dir.open_for_flight(path, OpenMode::CreateNew, Duration::ZERO).map_err(fail)?
        }
        Err(e) => return Err(fail(e)),
    };
    let taken = take(&*disk, spec, pool, (extent_size, atomic_unit), known);
    if taken.is_err() && created {
        // The empty file is not needed. If it stays, it does no harm.
        let _ = dir.remove(path);
    }
    Ok((disk, taken?))
}

/// Refuses the disk of a new physical volume if it is already used or unsuitable, and gives a file
/// its size. Returns the number of its extents.
fn take(
    disk: &dyn Disk,
    spec: &PvSpec,
    pool: Uuid,
    (extent_size, atomic_unit): (u64, u32),
    known: &dyn Fn(&Uuid) -> bool,
) -> Result<u32> {
    let path = &spec.path;
    let fail = |e: std::io::Error| Error::io(format!("open {path}"), e);
    if let Some(whole) = disk.physical_block().map_err(fail)?.filter(|whole| *whole > u64::from(atomic_unit))
    {
        return Err(invalid(format!(
            "use {path}: its disk writes {whole} bytes as a whole, more than the pool's atomic unit of {atomic_unit}: a power failure could damage data beside a write"
        )));
    }
    match check_unknown(Label::read(disk, path)?, path, pool, known)? {
        LabelFound::Label(label) if label.pool == pool => {}
        LabelFound::Label(_) | LabelFound::Damaged if !spec.force => {
            return Err(conflict(format!(
                "use {path}: it carries the label of another pool; overwrite it with --force"
            )));
        }
        LabelFound::None if !spec.force && !is_blank(disk).map_err(fail)? => {
            return Err(conflict(format!("use {path}: it holds data; overwrite it with --force")));
        }
        _ => {}
    }
    let mut size = disk.len().map_err(fail)?;
    if let Some(wanted) = spec.size {
        if disk.is_block_device() {
            if wanted > size {
                return Err(invalid(format!(
                    "use {path}: the device has {size} bytes, not {wanted}; leave out the size"
                )));
            }
            size = wanted;
        } else if size < wanted {
            extents_on(wanted, extent_size, path)?;
            disk.set_len(wanted).map_err(fail)?;
            size = wanted;
        }
    }
    extents_on(size, extent_size, path)
}

/// Refuses the label of a physical volume of this pool that is in use.
fn check_unknown(
    found: LabelFound,
    path: &str,
    pool: Uuid,
    known: &dyn Fn(&Uuid) -> bool,
) -> Result<LabelFound> {
    match found {
        LabelFound::Label(label) if label.pool == pool && known(&label.pv_uuid) => {
            Err(conflict(format!("use {path}: it is already physical volume {} of this pool", label.pv)))
        }
        found => Ok(found),
    }
}

/// Returns whether the engine gives such a name to its own files.
fn is_own_file(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let prefixes = [
        crate::catalog::FILE,
        "journal-",
        "sums-",
        crate::cdp::log::record::FILE_PREFIX,
        crate::disk::layout::record::FILE_PREFIX,
        crate::disk::layout::stale::FILE_PREFIX,
        crate::disk::layout::raid5::LOG_PREFIX,
        crate::disk::layout::raid5::GROUPS_PREFIX,
        crate::disk::layout::spares::FILE,
    ];
    prefixes.iter().any(|prefix| name.starts_with(prefix)) || name == crate::space::lock::LOCK_FILE
}

/// Returns whether the space in front of the data is empty. (A file system, a partition table or an
/// image would be there.)
fn is_blank(disk: &dyn Disk) -> std::io::Result<bool> {
    let mut head = vec![0u8; disk.len()?.min(crate::space::label::DATA_START) as usize];
    disk.read_at(&mut head, 0)?;
    Ok(head.iter().all(|b| *b == 0))
}
