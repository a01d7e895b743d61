//! Layouts in memory, whose members fail as a test wants.

use super::member::CONTENT_START;
use super::record::{LayoutKind, LayoutRecord};
use super::spans::UNIT;
use super::{DiskLayout, LayoutOptions, NewLayout, NewMember, create, path_of, with_layouts};
use crate::disk::{Dir, Disk, MemDir, OpenMode};
use crate::testing::{Act, FaultyDir, Op};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use uuid::Uuid;

/// The disks whose operations fail, by name and kind of operation, and bytes that can't be read.
#[derive(Default)]
pub(super) struct Broken(Mutex<BTreeSet<(String, &'static str)>>, Mutex<Option<(String, u64)>>);

impl Broken {
    pub(super) fn set(&self, name: &str, what: &'static str) {
        self.0.lock().insert((name.into(), what));
    }

    /// Makes each read fail that has this byte of a disk.
    pub(super) fn make_unreadable(&self, name: &str, byte: u64) {
        *self.1.lock() = Some((name.into(), byte));
    }

    pub(super) fn heal(&self) {
        self.0.lock().clear();
        *self.1.lock() = None;
    }

    fn fails(&self, op: &Op<'_>) -> Option<io::Error> {
        let what = match op.act {
            Act::Open(_) => "open",
            Act::Read(_) => "read",
            Act::Write(_) => "write",
            Act::Sync(_) => "sync",
            Act::Rename => "rename",
            _ => return None,
        };
        if let (Act::Read(bytes), Some((name, byte))) = (&op.act, &*self.1.lock())
            && name == op.name
            && bytes.contains(byte)
        {
            return Some(io::Error::from_raw_os_error(5));
        }
        let code = if what == "open" { 2 } else { 5 };
        let broken = self.0.lock();
        let is = |what| broken.contains(&(op.name.to_owned(), what));
        let full = what == "write" && is("full");
        full.then(|| io::ErrorKind::StorageFull.into())
            .or_else(|| is(what).then(|| io::Error::from_raw_os_error(code)))
    }
}

/// A layout `m` in memory, of members `0`, `1` and so on.
pub(super) struct LayoutInMemory {
    pub(super) memory: MemDir,
    pub(super) broken: Arc<Broken>,
    pub(super) dir: Arc<dyn Dir>,
    path: String,
}

impl LayoutInMemory {
    /// Makes a layout of members with these numbers of units, with so many places for each span.
    pub(super) fn new(sizes: &[u64], kind: LayoutKind, width: usize) -> LayoutInMemory {
        Self::with_reserve(sizes, NewLayout { kind, width, reserve: 0 })
    }

    /// Makes a layout of members with these numbers of units.
    pub(super) fn with_reserve(sizes: &[u64], new: NewLayout) -> LayoutInMemory {
        let (how, kind) = (new, new.kind);
        let (memory, broken) = (MemDir::new(), Arc::new(Broken::default()));
        let fails = broken.clone();
        let below: Arc<dyn Dir> = FaultyDir::new(memory.clone(), move |op: &Op<'_>| fails.fails(op));
        let new = |(n, size): (usize, &u64)| {
            let disk = below.open_locked(&n.to_string(), OpenMode::CreateNew).unwrap();
            disk.set_len(CONTENT_START + size * UNIT).unwrap();
            NewMember { uuid: Uuid::from_u128(n as u128 + 1), path: n.to_string(), disk }
        };
        let members: Vec<NewMember> = sizes.iter().enumerate().map(new).collect();
        create(&*below, "m", Uuid::from_u128(100), how, &members).unwrap();
        let dir = with_layouts(below, LayoutOptions::default());
        LayoutInMemory { memory, broken, dir, path: path_of(kind, "m") }
    }

    pub(super) fn try_open(&self) -> io::Result<Arc<dyn Disk>> {
        self.dir.open_locked(&self.path, OpenMode::Existing)
    }

    pub(super) fn open(&self) -> Arc<dyn Disk> {
        self.try_open().unwrap()
    }

    /// Returns the members that the stored record has in.
    pub(super) fn stored_in(&self) -> Vec<bool> {
        LayoutRecord::load(&self.memory, "m").unwrap().members.iter().map(|member| member.is_in).collect()
    }

    /// Begins to rebuild a member onto a new disk.
    pub(super) fn replace(&self, layout: DiskLayout<'_>, number: usize, path: &str, units: u64) {
        self.try_replace(layout, number, path, units).unwrap();
    }

    /// Tries to rebuild a member onto a new disk.
    pub(super) fn try_replace(
        &self,
        layout: DiskLayout<'_>,
        number: usize,
        path: &str,
        units: u64,
    ) -> io::Result<()> {
        let disk = self.dir.open_locked(path, OpenMode::CreateNew).unwrap();
        disk.set_len(CONTENT_START + units * UNIT).unwrap();
        let uuid = Uuid::from_u128(500 + number as u128);
        layout.rebuild_onto(number, NewMember { uuid, path: path.into(), disk }, None)
    }
}

/// Returns the record of a RAID-5 without members.
pub(super) fn record_of_rows() -> LayoutRecord {
    LayoutRecord {
        uuid: Uuid::from_u128(7),
        sequence: 1,
        kind: LayoutKind::Raid5 { unit: 65536 },
        width: 3,
        reserve: 0,
        stale: 0,
        members: Vec::new(),
        spans: Vec::new(),
    }
}

/// Reads a range of a disk.
pub(super) fn read(disk: &dyn Disk, at: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    disk.read_at(&mut buf, at).unwrap();
    buf
}
