//! A directory of disks that can be traced.
//!
//! The directory lies below layouts. It traces the disks that are opened with a lock: physical
//! volumes, and members of layouts. Other files (journal, histories, catalog) are forwarded.

use super::access::{AccessOp, DiskAccess};
use super::cause::Cause;
use super::tracer::{Traced, Tracer};
use crate::disk::{Backing, Dir, Disk, DiskLayout, OpenMode, Settled, SyncPurpose};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How the names of catalogs begin. They are opened with a lock, and are no disks of a physical
/// volume, which never has such a name.
const CATALOG: &str = "catalog.redb";

/// A directory of disks that can be traced, over another directory.
pub(crate) struct TracingDir {
    below: Arc<dyn Dir>,
    tracer: Arc<Tracer>,
}

impl TracingDir {
    /// Makes a directory over `below`.
    pub(crate) fn over(below: Arc<dyn Dir>, tracer: Arc<Tracer>) -> TracingDir {
        TracingDir { below, tracer }
    }

    fn traced(&self, name: &str, below: Arc<dyn Disk>) -> Arc<dyn Disk> {
        let traced = self.tracer.known(name, &below);
        Arc::new(TracedDisk { below, traced, tracer: self.tracer.clone() })
    }
}

#[deny(clippy::missing_trait_methods)] // a method that is not forwarded would do what its default does
impl Dir for TracingDir {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        self.below.open(name, mode)
    }
    fn open_locked(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        let below = self.below.open_locked(name, mode)?;
        Ok(if name.starts_with(CATALOG) { below } else { self.traced(name, below) })
    }
    fn open_for_flight(&self, name: &str, mode: OpenMode, wait: Duration) -> io::Result<Arc<dyn Disk>> {
        Ok(self.traced(name, self.below.open_for_flight(name, mode, wait)?))
    }
    fn lock(&self, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        self.below.lock(name)
    }
    fn lock_existing(&self, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        self.below.lock_existing(name)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.below.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.below.rename(from, to)
    }
    fn list(&self) -> io::Result<Vec<String>> {
        self.below.list()
    }
    fn sync(&self, purpose: SyncPurpose) -> io::Result<()> {
        self.below.sync(purpose)
    }
}

/// A disk that can be traced.
struct TracedDisk {
    below: Arc<dyn Disk>,
    traced: Arc<Traced>,
    tracer: Arc<Tracer>,
}

/// What a disk is asked for.
struct Request {
    op: AccessOp,
    offset: u64,
    len: u64,
    /// It passes the page cache by.
    direct: bool,
    /// It is only carried out if the page cache can serve it.
    cached: bool,
    purpose: Option<SyncPurpose>,
}

impl Request {
    fn new(op: AccessOp, offset: u64, len: usize) -> Request {
        Request { op, offset, len: len as u64, direct: false, cached: false, purpose: None }
    }

    fn direct(self) -> Request {
        Request { direct: true, ..self }
    }
}

/// When an operation was carried out.
#[derive(Clone, Copy)]
struct Took {
    /// Nanoseconds of the monotonic clock.
    began: u64,
    nanoseconds: u64,
    /// The operations of the disk that were under way, this one included.
    depth: u32,
}

/// The result of an operation of a disk.
trait Outcome {
    /// Returns whether the disk has carried the operation out.
    fn is_done(&self) -> bool;
}

impl Outcome for () {
    fn is_done(&self) -> bool {
        true
    }
}

impl Outcome for bool {
    fn is_done(&self) -> bool {
        *self
    }
}

impl TracedDisk {
    /// Carries out `run`, and notes it if a trace is under way.
    #[inline]
    fn access<T: Outcome>(
        &self,
        request: impl FnOnce() -> Request,
        run: impl FnOnce(&dyn Disk) -> io::Result<T>,
    ) -> io::Result<T> {
        match self.tracer.session() {
            0 => run(&*self.below),
            session => self.note(session, &request(), run),
        }
    }

    #[cold]
    #[inline(never)]
    fn note<T: Outcome>(
        &self,
        session: u64,
        request: &Request,
        run: impl FnOnce(&dyn Disk) -> io::Result<T>,
    ) -> io::Result<T> {
        let (result, took) = self.took(1, run);
        let is_done = match &result {
            Ok(outcome) => outcome.is_done(),
            // An operation that the disk does not have is no access.
            Err(error) => error.kind() != io::ErrorKind::Unsupported,
        };
        if is_done && (request.len > 0 || request.op == AccessOp::Sync) {
            self.noted(session, request, took, result.is_err());
        }
        result
    }

    /// Carries out writes side by side, and notes each of them with the time that all took.
    #[cold]
    #[inline(never)]
    fn note_scattered(&self, session: u64, pieces: &[(&[u8], u64)]) -> io::Result<()> {
        let count = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
        let direct = self.below.scatters();
        let (result, took) = self.took(count, |disk| disk.write_scattered(pieces));
        for (bytes, offset) in pieces.iter().filter(|(bytes, _)| !bytes.is_empty()) {
            let request = Request { direct, ..Request::new(AccessOp::Write, *offset, bytes.len()) };
            self.noted(session, &request, took, result.is_err());
        }
        result
    }

    /// Carries out `count` accesses that are under way together.
    fn took<T>(&self, count: u32, run: impl FnOnce(&dyn Disk) -> io::Result<T>) -> (io::Result<T>, Took) {
        let depth = self.traced.depth.fetch_add(count, Ordering::Relaxed).saturating_add(count);
        let began = self.tracer.clock.monotonic();
        let result = run(&*self.below);
        let nanoseconds = self.tracer.clock.monotonic().saturating_sub(began);
        self.traced.depth.fetch_sub(count, Ordering::Relaxed);
        (result, Took { began, nanoseconds, depth })
    }

    fn noted(&self, session: u64, request: &Request, took: Took, failed: bool) {
        let cause = match (Cause::current(), request.purpose) {
            (Cause::Other, Some(purpose)) => Cause::of_sync(purpose),
            (cause, _) => cause,
        };
        self.tracer.note(
            session,
            &DiskAccess {
                at: self.tracer.since(took.began),
                disk: self.traced.number,
                offset: request.offset,
                len: u32::try_from(request.len).unwrap_or(u32::MAX),
                micros: u32::try_from(took.nanoseconds / 1000).unwrap_or(u32::MAX),
                op: request.op,
                cause,
                failed,
                direct: request.direct,
                cached: request.cached,
                purpose: request.purpose,
                depth: u16::try_from(took.depth).unwrap_or(u16::MAX),
            },
        );
    }
}

#[deny(clippy::missing_trait_methods)] // a method that is not forwarded would do what its default does
impl Disk for TracedDisk {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let len = buf.len();
        self.access(|| Request::new(AccessOp::Read, offset, len), |disk| disk.read_at(buf, offset))
    }
    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        let len = buf.len();
        let request = || Request { cached: true, ..Request::new(AccessOp::Read, offset, len) };
        self.access(request, |disk| disk.try_read_at(buf, offset))
    }
    fn read_direct(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let len = buf.len();
        let request = || Request::new(AccessOp::Read, offset, len).direct();
        self.access(request, |disk| disk.read_direct(buf, offset))
    }
    fn drop_cached(&self, offset: u64, len: u64) {
        self.below.drop_cached(offset, len);
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let request = || Request::new(AccessOp::Write, offset, buf.len());
        self.access(request, |disk| disk.write_at(buf, offset))
    }
    fn write_vectored_at(&self, bufs: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        // A disk may change the slices.
        let len = if self.tracer.session() == 0 { 0 } else { bufs.iter().map(|buf| buf.len()).sum() };
        let request = || Request::new(AccessOp::Write, offset, len);
        self.access(request, |disk| disk.write_vectored_at(bufs, offset))
    }
    fn write_direct(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let request = || Request::new(AccessOp::Write, offset, buf.len()).direct();
        self.access(request, |disk| disk.write_direct(buf, offset))
    }
    fn write_scattered(&self, pieces: &[(&[u8], u64)]) -> io::Result<()> {
        match self.tracer.session() {
            0 => self.below.write_scattered(pieces),
            session => self.note_scattered(session, pieces),
        }
    }
    fn scatters(&self) -> bool {
        self.below.scatters()
    }
    fn sync(&self, purpose: SyncPurpose) -> io::Result<()> {
        let request = || Request { purpose: Some(purpose), ..Request::new(AccessOp::Sync, 0, 0) };
        self.access(request, |disk| disk.sync(purpose))
    }
    fn len(&self) -> io::Result<u64> {
        self.below.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.below.set_len(len)
    }
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.below.allocate(offset, len)
    }
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let request = || Request { len, ..Request::new(AccessOp::Punch, offset, 0) };
        self.access(request, |disk| disk.punch(offset, len))
    }
    fn zero(&self, offset: u64, len: u64, unmap: bool) -> io::Result<bool> {
        let op = if unmap { AccessOp::Punch } else { AccessOp::Write };
        let request = || Request { len, ..Request::new(op, offset, 0) };
        self.access(request, |disk| disk.zero(offset, len, unmap))
    }
    fn run_at(&self, offset: u64) -> io::Result<(u64, bool)> {
        self.below.run_at(offset)
    }
    fn modified(&self) -> io::Result<Option<u64>> {
        self.below.modified()
    }
    fn backing_available(&self) -> io::Result<Option<Backing>> {
        self.below.backing_available()
    }
    fn will_need(&self, offset: u64, len: u64) {
        self.below.will_need(offset, len);
    }
    fn advise_random(&self) {
        self.below.advise_random();
    }
    fn overwrites_elsewhere(&self) -> io::Result<bool> {
        self.below.overwrites_elsewhere()
    }
    fn answers(&self) -> io::Result<()> {
        self.below.answers()
    }
    fn is_block_device(&self) -> bool {
        self.below.is_block_device()
    }
    fn physical_block(&self) -> io::Result<Option<u64>> {
        self.below.physical_block()
    }
    fn settle(&self, buf: &mut [u8], offset: u64, is_right: &dyn Fn(&[u8]) -> bool) -> io::Result<Settled> {
        self.below.settle(buf, offset, is_right)
    }
    fn agrees(&self, content: &[u8], offset: u64) -> io::Result<bool> {
        self.below.agrees(content, offset)
    }
    fn as_layout(&self) -> Option<DiskLayout<'_>> {
        self.below.as_layout()
    }
}
