//! The places of metadata backups: files, and two slots of every physical volume, between its label
//! and its data. The slots are used in turn, so one backup is whole when the writing of the other
//! is interrupted.

use super::format::{BackupHeader, Section, sum};
use crate::disk::layout::member::beginning_on;
use crate::disk::{Dir, Disk, SyncPurpose};
use crate::error::{Error, Result, corrupt};
use crate::space::label::{DATA_START, HEADER_LEN, SLOTS_START};
use std::io;
use std::sync::Arc;
use uuid::Uuid;

/// Number of bytes of a slot, for header and body.
pub(super) const SLOT_LEN: u64 = (DATA_START - SLOTS_START) / 2;
const PREFIX: &str = "metadata-";
const SUFFIX: &str = ".backup";

/// The properties of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupInfo {
    /// Name of the backup's file in its directory; `None` if the backup lies on a physical volume.
    pub file: Option<String>,
    /// The pool's UUID.
    pub pool: Uuid,
    /// Number of the backup: a later backup of the pool has a larger one.
    pub sequence: u64,
    /// Time of the backup, in nanoseconds since the Unix epoch.
    pub time: u64,
    /// Incarnation of the pool: it grows with each opening.
    pub incarnation: u64,
    /// The backup was made when the pool had been closed.
    pub closed: bool,
    /// Number of rows of the catalog.
    pub rows: u64,
    /// Number of bytes that the backup takes.
    pub bytes: u64,
    /// Number of physical volumes that got a copy.
    pub pvs: u32,
}

impl BackupInfo {
    pub(super) fn of(header: &BackupHeader, file: Option<String>) -> BackupInfo {
        BackupInfo {
            file,
            pool: header.pool,
            sequence: header.sequence,
            time: header.time,
            incarnation: header.incarnation,
            closed: header.closed,
            rows: header.rows,
            bytes: HEADER_LEN as u64 + header.body_len,
            pvs: 0,
        }
    }
}

/// A backup that verifies, and its place.
pub struct Found {
    /// The properties in the backup's header.
    pub info: BackupInfo,
    pub(super) header: BackupHeader,
    pub(super) disk: Arc<dyn Disk>,
    /// Byte offset of the header on the disk.
    pub(super) at: u64,
}

impl Found {
    pub(super) fn body(&self) -> Section<'_> {
        let at = self.at + HEADER_LEN as u64;
        Section { disk: &*self.disk, at, end: at + self.header.body_len }
    }
}

pub(super) fn file_name(sequence: u64) -> String {
    format!("{PREFIX}{sequence:010}{SUFFIX}")
}

/// Returns the sequence in the name of a backup's file.
pub(super) fn sequence_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()
}

fn slot(number: u64) -> u64 {
    SLOTS_START + number % 2 * SLOT_LEN
}

/// Returns the valid headers in the slots of a physical volume of this pool, and their places.
pub(super) fn headers_on(disk: &dyn Disk, pool: Uuid) -> Vec<(u64, BackupHeader)> {
    let header = |at: u64| Some((at, header_at(disk, at)?)).filter(|(_, header)| header.pool == pool);
    [slot(0), slot(1)].into_iter().filter_map(header).collect()
}

fn header_at(disk: &dyn Disk, at: u64) -> Option<BackupHeader> {
    let mut block = vec![0; HEADER_LEN];
    disk.read_at(&mut block, at).ok()?;
    BackupHeader::decode(&block)
}

/// Writes a whole backup to its slot of a physical volume.
pub(super) fn write_on(disk: &Arc<dyn Disk>, sequence: u64, bytes: &[u8]) -> io::Result<()> {
    disk.write_at(bytes, slot(sequence))?;
    disk.sync(SyncPurpose::Label)
}

/// Returns the newest valid backup in `path`, which is a backup's file, a physical volume, or a
/// member of a mirror that has the beginning of its content. Returns
/// [`crate::ErrorKind::Corrupt`] if there is none.
pub fn find(dir: &dyn Dir, path: &str) -> Result<Found> {
    let disk = super::open(dir, path)?;
    let of_member = beginning_on(&*disk).into_iter().flat_map(|at| [at + slot(0), at + slot(1)]);
    let mut headers: Vec<(u64, BackupHeader)> = [0, slot(0), slot(1)]
        .into_iter()
        .chain(of_member)
        .filter_map(|at| Some((at, header_at(&*disk, at)?)))
        .collect();
    headers.sort_by_key(|(_, header)| std::cmp::Reverse(header.sequence));
    let len = disk.len().map_err(|e| Error::io(format!("measure {path}"), e))?;
    for (at, header) in headers {
        let body = at + HEADER_LEN as u64;
        let Some(end) = body.checked_add(header.body_len).filter(|end| *end <= len) else { continue };
        if sum(Section { disk: &*disk, at: body, end }).is_ok_and(|sum| sum == header.body_sum) {
            let info = BackupInfo::of(&header, (at == 0).then(|| path.to_owned()));
            return Ok(Found { info, header, disk, at });
        }
    }
    Err(corrupt(format!("find a backup of the metadata in {path}: it holds none that verifies")))
}
