//! The price of a trace: which accesses reach a disk, when, and what they take there.

use super::drives::Drive;
use super::geometry::SECTOR;
use super::mechanics::{Price, SectorRange, SpinningDisk};
use anyhow::{Result, ensure};
use hindcast_engine::disk::{AccessOp, Cause, DiskAccess};
use std::collections::BTreeMap;

/// Nanoseconds of a millisecond.
const NANOSECONDS: f64 = 1e6;

/// The price of the accesses of one disk with the same operation and cause. Times are in
/// milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct PriceSum {
    /// Accesses that reach the disk.
    pub(super) accesses: u64,
    /// Of these, how many the cache or the read-ahead of the drive serves.
    pub(super) from_cache: u64,
    pub(super) bytes: u64,
    pub(super) seek: f64,
    pub(super) rotation: f64,
    pub(super) transfer: f64,
}

impl PriceSum {
    pub(super) fn total(&self) -> f64 {
        self.seek + self.rotation + self.transfer
    }

    /// Adds an access that reaches the disk.
    fn add(&mut self, bytes: u64, price: &Price) {
        self.merge(&PriceSum {
            accesses: 1,
            from_cache: price.from_cache.into(),
            bytes,
            seek: price.seek,
            rotation: price.rotation,
            transfer: price.transfer,
        });
    }

    /// Adds another sum.
    pub(super) fn merge(&mut self, other: &PriceSum) {
        self.accesses += other.accesses;
        self.from_cache += other.from_cache;
        self.bytes += other.bytes;
        self.seek += other.seek;
        self.rotation += other.rotation;
        self.transfer += other.transfer;
    }
}

/// Numbers of accesses of a trace that do not reach a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Unpriced {
    /// Reads that the page cache answered at once.
    pub(super) cached: u64,
    /// Ranges that the server gave back.
    pub(super) punched: u64,
    /// Accesses that returned an error.
    pub(super) failed: u64,
}

/// What the accesses of one disk take.
#[derive(Debug, Default, PartialEq)]
pub(super) struct DiskPrice {
    pub(super) sums: BTreeMap<(AccessOp, Cause), PriceSum>,
    pub(super) unpriced: Unpriced,
    /// Buffered writes that no sync of the trace follows. They are priced at the end.
    pub(super) unsynced: u64,
}

impl DiskPrice {
    fn sum_of(&mut self, access: &DiskAccess) -> &mut PriceSum {
        self.sums.entry((access.op, access.cause)).or_default()
    }
}

/// Returns the sectors of a read or a write.
fn range_of(access: &DiskAccess) -> SectorRange {
    let from = access.offset / SECTOR;
    let to = access.offset.saturating_add(access.len.into()).div_ceil(SECTOR);
    SectorRange { from, to: to.max(from + 1) }
}

/// Prices the accesses of one disk, which are in the order of their times. Fails if the drive ends
/// before one of them.
pub(super) fn price_disk<'a>(
    drive: &Drive,
    accesses: impl Iterator<Item = &'a DiskAccess>,
) -> Result<DiskPrice> {
    let mut disk = SpinningDisk::new(drive);
    let mut priced = DiskPrice::default();
    let mut pending: Vec<&DiskAccess> = Vec::new();
    let mut last = 0;
    for access in accesses {
        last = access.at;
        let moves_data = matches!(access.op, AccessOp::Read | AccessOp::Write);
        let range = range_of(access);
        let capacity = drive.geometry.sectors();
        ensure!(
            !moves_data || range.to <= capacity,
            "a {} ends at byte {}, and a {} has {} bytes: choose disks with --pv, or a larger drive with --disk",
            access.op.name(),
            range.to.saturating_mul(SECTOR),
            drive.name,
            capacity * SECTOR
        );
        let at = access.at as f64 / NANOSECONDS;
        match access.op {
            _ if access.failed => priced.unpriced.failed += 1,
            AccessOp::Read if access.cached => priced.unpriced.cached += 1,
            AccessOp::Read => {
                let price = disk.read(at, range);
                priced.sum_of(access).add(access.len.into(), &price);
            }
            AccessOp::Write if access.direct => {
                let price = disk.write(at, range);
                priced.sum_of(access).add(access.len.into(), &price);
            }
            AccessOp::Write => pending.push(access),
            AccessOp::Sync => {
                priced.sum_of(access).add(0, &Price::default());
                write_pending(&mut disk, at, &mut pending, &mut priced);
            }
            AccessOp::Punch => priced.unpriced.punched += 1,
        }
    }
    priced.unsynced = pending.len() as u64;
    write_pending(&mut disk, last as f64 / NANOSECONDS, &mut pending, &mut priced);
    Ok(priced)
}

/// Prices the buffered writes that wait, as issued together at time `at`.
fn write_pending(
    disk: &mut SpinningDisk<'_>,
    at: f64,
    pending: &mut Vec<&DiskAccess>,
    priced: &mut DiskPrice,
) {
    let ranges: Vec<SectorRange> = pending.iter().map(|access| range_of(access)).collect();
    let prices = disk.write_together(at, &ranges);
    for (access, price) in pending.drain(..).zip(prices) {
        priced.sum_of(access).add(access.len.into(), &price);
    }
}
