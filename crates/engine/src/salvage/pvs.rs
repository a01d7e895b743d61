//! Physical volumes of a salvage, whole or not.

use super::SalvageOptions;
use crate::branch::namespace::Namespace;
use crate::catalog::{KnownStamps, PvRecord, Superblock};
use crate::disk::{Backing, Dir, Disk, OpenMode, SyncPurpose, is_unreadable};
use crate::error::{Error, ErrorKind, Result};
use crate::info::Salvage;
use crate::journal::reference::SlotRun;
use crate::journal::verify::Slots;
use crate::space::label::{DATA_START, Label, LabelFound};
use crate::space::pv::{Pv, PvTable};
use crate::space::stamp::{Age, Bearer, Stamped};
use crate::space::stamping::age_of;
use crate::units::BLOCK;
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// A disk in place of a physical volume that can't be used. Every operation fails with the reason.
struct Absent(Arc<str>);

impl Absent {
    fn fail<T>(&self) -> io::Result<T> {
        Err(io::Error::other(self.0.to_string()))
    }
}

impl Disk for Absent {
    fn read_at(&self, _buf: &mut [u8], _offset: u64) -> io::Result<()> {
        self.fail()
    }
    fn try_read_at(&self, _buf: &mut [u8], _offset: u64) -> io::Result<bool> {
        self.fail()
    }
    fn write_at(&self, _buf: &[u8], _offset: u64) -> io::Result<()> {
        self.fail()
    }
    fn write_vectored_at(&self, _bufs: &mut [IoSlice<'_>], _offset: u64) -> io::Result<()> {
        self.fail()
    }
    fn sync(&self, _purpose: SyncPurpose) -> io::Result<()> {
        self.fail()
    }
    fn len(&self) -> io::Result<u64> {
        Ok(0)
    }
    fn set_len(&self, _len: u64) -> io::Result<()> {
        self.fail()
    }
    fn allocate(&self, _offset: u64, _len: u64) -> io::Result<()> {
        self.fail()
    }
    fn punch(&self, _offset: u64, _len: u64) -> io::Result<()> {
        self.fail()
    }
    fn backing_available(&self) -> io::Result<Option<Backing>> {
        Ok(None)
    }
    fn advise_random(&self) {}
    fn is_block_device(&self) -> bool {
        false
    }
}

/// The physical volumes on which a salvage verifies the slots of references. They are whole, and of
/// the catalog's time. On any other physical volume, slots do not show where the log ended.
pub(super) struct Judged(BTreeMap<u32, Arc<Pv>>);

impl Judged {
    /// Makes the empty set: the salvage believes every reference.
    pub(super) fn none() -> Judged {
        Judged(BTreeMap::new())
    }

    /// Opens the known physical volumes, each at its present path. Reports nothing: [`open`] opens
    /// them again, and reports what is wrong with them.
    pub(super) fn open(
        dir: &dyn Dir,
        names: &Namespace,
        superblock: &Superblock,
        options: &SalvageOptions,
        known: &KnownStamps,
    ) -> Judged {
        let mut unreported = Salvage::default();
        let mut judged = BTreeMap::new();
        for (id, record) in &names.pvs {
            let path = options.moved.get(&record.path).unwrap_or(&record.path).clone();
            let record = PvRecord { path, ..record.clone() };
            let label = label_of(*id, &record, superblock);
            let Ok(disk) = recognize(dir, &label, &record, "", &mut unreported) else { continue };
            let whole = disk.len().is_ok_and(|len| len >= whole_len(&label));
            let pv = Pv::new(*id, &record, disk);
            if whole && age_of(&pv, superblock.pool, known) == Age::Same {
                judged.insert(*id, pv);
            }
        }
        Judged(judged)
    }
}

impl Slots for Judged {
    fn read(&self, run: &SlotRun, buf: &mut [u8]) -> io::Result<bool> {
        let Some(pv) = self.0.get(&run.first.pv()) else { return Ok(false) };
        match pv.disk.read_at(buf, run.first.offset()) {
            Err(error) if !is_unreadable(&error) => Ok(false),
            read => read.map(|()| true),
        }
    }

    fn disk(&self, pv: u32) -> Option<(String, Arc<dyn Disk>)> {
        self.0.get(&pv).map(|pv| (pv.path.clone(), pv.disk.clone()))
    }
}

fn label_of(id: u32, record: &PvRecord, superblock: &Superblock) -> Label {
    Label {
        pool: superblock.pool,
        pv_uuid: record.uuid,
        pv: id,
        extents: record.extents,
        extent_size: superblock.extent_size,
    }
}

/// Number of bytes that a physical volume must have.
fn whole_len(label: &Label) -> u64 {
    DATA_START.saturating_add(u64::from(label.extents).saturating_mul(label.extent_size))
}

/// Opens the known physical volumes, each at its present path. One that can't be used is also in
/// the table, and fails all reads. Returns the physical volumes whose age is unknown, and why.
pub(super) fn open(
    dir: &dyn Dir,
    names: &mut Namespace,
    superblock: &Superblock,
    options: &SalvageOptions,
    (known, table): (Option<&KnownStamps>, &PvTable),
    found: &mut Salvage,
) -> Result<BTreeMap<u32, String>> {
    let mut undated = BTreeMap::new();
    for (id, record) in &mut names.pvs {
        if let Some(path) = options.moved.get(&record.path) {
            record.path = path.clone();
        }
        let object = format!("pv {id} ({})", record.path);
        let label = label_of(*id, record, superblock);
        let pv = match recognize(dir, &label, record, &object, found) {
            Ok(disk) => {
                let pv = Pv::new(*id, record, disk);
                limit(&pv, &label, &object, found);
                undated.extend(judge_age(&pv, superblock, known, &object, found).map(|text| (*id, text)));
                pv
            }
            Err(e) if e.kind() == ErrorKind::Busy => return Err(e),
            Err(e) => {
                found.find("pv", &object, e.to_string());
                let why: Arc<str> = format!("physical volume {} can't be used: {e}", record.path).into();
                found.limits.insert(*id, (0, why.clone()));
                Pv::new(*id, record, Arc::new(Absent(why)))
            }
        };
        table.insert(pv);
    }
    Ok(undated)
}

/// Returns the disk under a path, if it is this physical volume. Without its label, a rest of the
/// label or a stamp has to prove that.
fn recognize(
    dir: &dyn Dir,
    label: &Label,
    record: &PvRecord,
    object: &str,
    found: &mut Salvage,
) -> Result<Arc<dyn Disk>> {
    let path = &record.path;
    let refuse = |why: &str| Err(Error::new(ErrorKind::Conflict, why));
    let disk = dir.open_locked(path, OpenMode::ReadOnly).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Error::new(ErrorKind::NotFound, "it is missing"),
        io::ErrorKind::WouldBlock => {
            let text =
                format!("open physical volume {path}: another process has it open, or it is named twice");
            Error::new(ErrorKind::Busy, text)
        }
        // The error is not `Busy`, whatever the shortage is called: that would mean another
        // process.
        _ => Error::with_source(ErrorKind::Io, "open it", e),
    })?;
    match Label::read(&*disk, path) {
        Ok(LabelFound::Label(read)) if read.pool != label.pool => {
            return refuse("it belongs to another pool");
        }
        Ok(LabelFound::Label(read)) if read.pv_uuid != label.pv_uuid || read.pv != label.pv => {
            return refuse(&format!("it is another volume of this pool (number {})", read.pv));
        }
        Ok(LabelFound::Label(read)) if read.extent_size != label.extent_size => {
            return refuse("its label contradicts the catalog");
        }
        Ok(LabelFound::Label(_)) => return Ok(disk),
        Ok(LabelFound::None | LabelFound::Damaged) | Err(_) => {}
    }
    let bearer = Bearer { pool: label.pool, pv_uuid: label.pv_uuid };
    let proved =
        Stamped::read(&*disk, &bearer).latest().is_some() || label.remains_on(&*disk, path).unwrap_or(false);
    if !proved {
        return refuse("it has no label of this pool, and nothing on it proves that it is the right disk");
    }
    found.find(
        "pv-label",
        object,
        "its label can't be read; the data beside it proves that it is the right disk",
    );
    Ok(disk)
}

/// Reports a physical volume that was cut short.
fn limit(pv: &Pv, label: &Label, object: &str, found: &mut Salvage) {
    let whole = whole_len(label);
    let len = pv.disk.len().unwrap_or(0);
    if len < whole {
        found.find("pv", object, format!("it has shrunk to {len} bytes of {whole}"));
        let why = format!("physical volume {} ends at byte {len}", pv.path);
        found.limits.insert(pv.id, (len - len % BLOCK, why.into()));
    }
}

/// Notes a doubt about everything if a physical volume is of another time. If its age is unknown,
/// returns why.
fn judge_age(
    pv: &Pv,
    superblock: &Superblock,
    known: Option<&KnownStamps>,
    object: &str,
    found: &mut Salvage,
) -> Option<String> {
    let Some(known) = known else {
        let text = format!("stamps can't be read: the age of {} is unknown", pv.path);
        found.find("pv-age", object, &text);
        return Some(text);
    };
    let age = age_of(pv, superblock.pool, known);
    let text = age.describe(&pv.path)?;
    found.find("pv-age", object, &text);
    if age == Age::Unknown {
        return Some(text);
    }
    found.doubts.push(text);
    None
}
