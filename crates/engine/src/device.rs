//! The top seam: what a target (NBD, iSCSI) knows of a volume, and nothing more (I1).
//!
//! All offsets and lengths are bytes and multiples of [`DeviceInfo::block_size`]; a target checks
//! range, alignment and access before it calls, the device checks again under its own lock, because
//! a volume can shrink meanwhile.

use crate::error::Result;
use bytes::Bytes;

/// The shape of a device. Fixed while it is open, except the size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Size in bytes.
    pub size: u64,
    /// Logical block size in bytes (512 or 4096): the unit of alignment of every request.
    pub block_size: u32,
    /// Preferred request granularity in bytes: the chunk size, at least 4096.
    pub preferred_size: u32,
    /// Writes are refused with [`crate::ErrorKind::ReadOnly`].
    pub read_only: bool,
    /// A stable identity, for protocols that want one.
    pub uuid: [u8; 16],
}

/// One write of a batch; the device fills `result`.
#[derive(Debug)]
pub struct WriteOp {
    /// Byte offset.
    pub offset: u64,
    /// The data; kept by reference until it is in the journal.
    pub data: Bytes,
    /// Filled by [`BlockDevice::write`].
    pub result: Result<()>,
}

impl WriteOp {
    /// A write not yet carried out.
    pub fn new(offset: u64, data: Bytes) -> Self {
        WriteOp { offset, data, result: Ok(()) }
    }
}

/// A run of blocks of one kind, as NBD's `base:allocation` and SCSI's GET LBA STATUS report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusRun {
    /// Length in bytes.
    pub length: u64,
    /// Space is allocated for it.
    pub allocated: bool,
    /// It reads as zeros. Not allocated implies zero.
    pub zero: bool,
}

/// The most bytes that [`BlockDevice::compare_and_write`] compares: what a journal record holds.
pub const MAX_COMPARED: u64 = 128 << 10;

/// The first byte where two slices of one length differ.
pub fn first_difference(one: &[u8], other: &[u8]) -> Option<u64> {
    if one == other { None } else { one.iter().zip(other).position(|(a, b)| a != b).map(|at| at as u64) }
}

/// A block device as the targets see it. Every method may be called from any thread at any time.
///
/// What an acknowledgement promises is I4: `write` returning means that the write survives the
/// death of the process; `flush` returning means that every write acknowledged before it was
/// called, on any connection, survives power loss. That is why multi-connection consistency may be
/// advertised.
pub trait BlockDevice: Send + Sync {
    /// Shape and current size.
    fn info(&self) -> DeviceInfo;

    /// Reads into `buf` without waiting for a disk: `Ok(false)` when it would have to (the buffer's
    /// content is then undefined, and the caller uses [`BlockDevice::read`] from a thread that may
    /// block).
    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<bool>;

    /// Reads into `buf`, waiting for disks as needed.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Writes a batch, in order, as one journal group; each operation gets its own result. With
    /// `fua` all of them are on stable storage before it returns. May block: on the journal's disk,
    /// and on backpressure.
    fn write(&self, ops: &mut [WriteOp], fua: bool);

    /// Writes `new` where the device holds `expected`, of the same length; the inner result is the
    /// first byte, from the start of the range, where it does not.
    ///
    /// Of a volume it is atomic among all requests of all protocols: no other write to the range
    /// comes between the comparison and the write, and a crash leaves all of `new` or nothing; at
    /// most [`MAX_COMPARED`] bytes. [`crate::ErrorKind::Busy`] when others write to the range all
    /// the time. This default reads, compares and writes, for devices that only one target writes
    /// to: the target keeps its own writes out meanwhile.
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

    /// Frees a range; it reads as zeros afterwards.
    fn discard(&self, offset: u64, len: u64, fua: bool) -> Result<()>;

    /// Zeroes a range. With `may_unmap` space may be freed, else it stays or becomes allocated (or
    /// reserved).
    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool, fua: bool) -> Result<()>;

    /// Describes `offset..offset+len` as runs in order; stops early, at a run's end, once
    /// `max_runs` were reported or much was looked at. At least one run is reported, unless `len`
    /// is 0.
    fn block_status(&self, offset: u64, len: u64, max_runs: usize) -> Result<Vec<StatusRun>>;

    /// Does [`BlockDevice::block_status`] have to read much to find out? Then it is asked from a
    /// thread that may block.
    fn status_may_wait(&self) -> bool {
        false
    }

    /// Brings a range into memory if that is cheap; a hint that may do nothing.
    fn cache(&self, offset: u64, len: u64) -> Result<()>;
}
