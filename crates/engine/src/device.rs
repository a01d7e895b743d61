//! The top seam: what a target (NBD, iSCSI) knows of a volume, and nothing more (I1).
//!
//! All offsets and lengths are bytes and multiples of [`DeviceInfo::block_size`]. A target checks
//! range, alignment and access before it calls. The device checks them again under its own lock,
//! because a volume can shrink in between.

use crate::error::Result;
use bytes::Bytes;
use std::time::Duration;
use uuid::Uuid;

/// The shape of a device. All of it except the size is fixed while the device is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Size in bytes.
    pub size: u64,
    /// Logical block size in bytes (512 or 4096): the unit of alignment of every request.
    pub block_size: u32,
    /// Preferred request granularity in bytes: the chunk size, at least 4096.
    pub preferred_size: u32,
    /// The device refuses writes with [`crate::ErrorKind::ReadOnly`].
    pub read_only: bool,
    /// A stable identity, for protocols that need one.
    pub uuid: Uuid,
}

/// One write of a batch.
#[derive(Debug)]
pub struct WriteOp {
    /// The position of the write, in bytes.
    pub offset: u64,
    /// The data. The device keeps a reference to it until it is in the journal.
    pub data: Bytes,
    /// The result of the write, set by [`BlockDevice::write`].
    pub result: Result<()>,
}

impl WriteOp {
    /// A write that is not yet carried out.
    pub fn new(offset: u64, data: Bytes) -> Self {
        WriteOp { offset, data, result: Ok(()) }
    }
}

/// A run of blocks of one kind, as NBD's `base:allocation` and SCSI's GET LBA STATUS report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusRun {
    /// Length in bytes.
    pub length: u64,
    /// Space is allocated for the run.
    pub allocated: bool,
    /// The run reads as zeros. A run that is not allocated always reads as zeros.
    pub zero: bool,
}

/// The kinds of clients' requests. Statistics tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Reads data.
    Read,
    /// Writes data, or zeros.
    Write,
    /// Makes earlier writes durable.
    Flush,
    /// Does anything else with the medium: discards, asks for holes, verifies, reads ahead.
    Other,
}

impl RequestKind {
    /// All kinds.
    pub const ALL: [RequestKind; 4] =
        [RequestKind::Read, RequestKind::Write, RequestKind::Flush, RequestKind::Other];

    /// Returns the name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            RequestKind::Read => "read",
            RequestKind::Write => "write",
            RequestKind::Flush => "flush",
            RequestKind::Other => "other",
        }
    }
}

/// The largest number of bytes that [`BlockDevice::compare_and_write`] compares: what a journal
/// record holds.
pub const MAX_COMPARED: u64 = 128 << 10;

/// Returns the first byte at which two slices of one length differ.
pub fn first_difference(one: &[u8], other: &[u8]) -> Option<u64> {
    if one == other { None } else { one.iter().zip(other).position(|(a, b)| a != b).map(|at| at as u64) }
}

/// A block device as the targets see it. Every method may be called from any thread at any time.
///
/// I4 defines what an acknowledgement promises. When `write` returns, the write survives the death
/// of the process. When `flush` returns, every write that was acknowledged before the call, on any
/// connection, survives power loss. That is why multi-connection consistency may be advertised.
pub trait BlockDevice: Send + Sync {
    /// Returns the shape and the current size.
    fn info(&self) -> DeviceInfo;

    /// Reads into `buf` without waiting for a disk. Returns `Ok(false)` when the read would have to
    /// wait. The buffer's content is then undefined, and the caller uses [`BlockDevice::read`] from
    /// a thread that may block.
    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<bool>;

    /// Reads into `buf`, waiting for disks as needed.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Writes a batch, in order, as one journal group. Each operation gets its own result. With
    /// `fua` all of them are on stable storage before the method returns. The method may block on
    /// the journal's disk, and on backpressure.
    fn write(&self, ops: &mut [WriteOp], fua: bool);

    /// Writes `new` if the device holds `expected`, which has the same length. If it does not, the
    /// inner result is the first byte that differs, counted from the start of the range.
    ///
    /// A volume does this atomically among all requests of all protocols. No other write to the
    /// range comes between the comparison and the write, and a crash leaves all of `new` or
    /// nothing. The length is at most [`MAX_COMPARED`] bytes. The error is
    /// [`crate::ErrorKind::Busy`] when other requests write to the range all the time.
    ///
    /// This default reads, compares and writes. It is for devices that only one target writes to:
    /// the target keeps its own writes out of the range meanwhile.
    fn compare_and_write(
        &self,
        offset: u64,
        expected: &[u8],
        new: Bytes,
        fua: bool,
    ) -> Result<std::result::Result<(), u64>> {
        let mut found = vec![0; expected.len()];
        self.read(offset, &mut found)?;
        if let Some(at) = first_difference(&found, expected) {
            return Ok(Err(at));
        }
        let mut ops = [WriteOp::new(offset, new)];
        self.write(&mut ops, fua);
        let [op] = ops;
        op.result.map(Ok)
    }

    /// Makes every acknowledged write durable.
    fn flush(&self) -> Result<()>;

    /// Frees a range. The range reads as zeros afterwards.
    fn discard(&self, offset: u64, len: u64, fua: bool) -> Result<()>;

    /// Zeroes a range. With `may_unmap` its space may be freed. Otherwise the space stays
    /// allocated, or becomes allocated or reserved.
    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool, fua: bool) -> Result<()>;

    /// Describes `offset..offset+len` as runs in order. Stops early, at a run's end, after
    /// `max_runs` runs or after much work. At least one run is reported, unless `len` is 0.
    fn block_status(&self, offset: u64, len: u64, max_runs: usize) -> Result<Vec<StatusRun>>;

    /// Tells which parts of `offset..offset+len` are known to be damaged, as runs in order: (length
    /// in bytes, damaged). A read of a damaged run fails. Stops early, at a run's end, after
    /// `max_runs` runs. A device that does not keep such a record reports no damage.
    fn damaged(&self, _offset: u64, len: u64, _max_runs: usize) -> Result<Vec<(u64, bool)>> {
        Ok(vec![(len, false)])
    }

    /// Returns whether [`BlockDevice::block_status`] may have to read much. The caller then calls
    /// it from a thread that may block.
    fn status_may_wait(&self) -> bool {
        false
    }

    /// Reads a range into memory if that is cheap. It is a hint, and may do nothing.
    fn cache(&self, offset: u64, len: u64) -> Result<()>;

    /// Tells the device that a target answers `count` requests of clients. Each of them `took` this
    /// long, from when all of it was received until its reply was ready to be sent. The method
    /// returns at once, and takes no lock. A device without statistics does nothing.
    fn answered(&self, _kind: RequestKind, _took: Duration, _count: u64) {}
}
