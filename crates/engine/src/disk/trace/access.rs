//! One access to a disk, and its bytes in memory and in trace files.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | when it began: nanoseconds since the trace began |
//! | 8..16 | place: the disk's number in the upper 16 bits, and the sector of 512 bytes below them |
//! | 16..20 | length in bytes; longer accesses have the largest number |
//! | 20..24 | duration in microseconds; longer ones have the largest number |
//! | 24 | operation |
//! | 25 | cause |
//! | 26 | flags |
//! | 27 | purpose of a sync, by its place in [`SyncPurpose::ALL`]; 255 for other operations |
//! | 28..30 | accesses of the disk that were under way when it began, itself included |
//! | 30..32 | 0 |

use super::Cause;
use crate::codec::Reader;
use crate::disk::SyncPurpose;
use crate::units::SECTOR;

/// Number of bytes of an access.
pub const ACCESS_LEN: usize = 32;

/// The bytes of an access.
pub(super) type RawAccess = [u8; ACCESS_LEN];

/// Number of bits of the sector in a place.
const SECTOR_BITS: u32 = 48;
const NO_PURPOSE: u8 = u8::MAX;
const FAILED: u8 = 1;
const DIRECT: u8 = 2;
const CACHED: u8 = 4;

/// What an access does. The numbers are those of trace files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum AccessOp {
    /// Data is read.
    Read = 0,
    /// Data, or zeros, are written.
    Write = 1,
    /// Written data is made durable. It concerns the whole disk.
    Sync = 2,
    /// Space is given back.
    Punch = 3,
}

impl AccessOp {
    /// All operations, in the order of their numbers.
    pub const ALL: [AccessOp; 4] = [AccessOp::Read, AccessOp::Write, AccessOp::Sync, AccessOp::Punch];

    /// Returns the name that commands and pictures use.
    pub fn name(self) -> &'static str {
        match self {
            AccessOp::Read => "read",
            AccessOp::Write => "write",
            AccessOp::Sync => "sync",
            AccessOp::Punch => "punch",
        }
    }
}

/// One access to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskAccess {
    /// When it began: nanoseconds since the trace began.
    pub at: u64,
    /// Number of the disk in the trace.
    pub disk: u16,
    /// Byte of the disk at which it begins, rounded down to a sector; 0 for a sync.
    pub offset: u64,
    /// Length in bytes; 0 for a sync. Lengths of 4 GiB and more are the largest number.
    pub len: u32,
    /// Duration in microseconds.
    pub micros: u32,
    /// What it does.
    pub op: AccessOp,
    /// Why it is done.
    pub cause: Cause,
    /// The disk returned an error.
    pub failed: bool,
    /// It passes the page cache by where the file system allows that.
    pub direct: bool,
    /// The page cache had all of it: the disk below had nothing to do. Other accesses may also be
    /// served by the page cache.
    pub cached: bool,
    /// Why a sync is done.
    pub purpose: Option<SyncPurpose>,
    /// Number of accesses of the disk that were under way when it began, itself included.
    pub depth: u16,
}

impl DiskAccess {
    /// Returns the bytes of the access.
    pub(super) fn encode(&self) -> RawAccess {
        let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
        let flags = flag(self.failed, FAILED) | flag(self.direct, DIRECT) | flag(self.cached, CACHED);
        let sector = (self.offset / SECTOR).min((1 << SECTOR_BITS) - 1);
        let mut bytes = [0; ACCESS_LEN];
        bytes[..8].copy_from_slice(&self.at.to_le_bytes());
        bytes[8..16].copy_from_slice(&(u64::from(self.disk) << SECTOR_BITS | sector).to_le_bytes());
        bytes[16..20].copy_from_slice(&self.len.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.micros.to_le_bytes());
        let purpose = self.purpose.map_or(NO_PURPOSE, |purpose| purpose as u8);
        bytes[24..28].copy_from_slice(&[self.op as u8, self.cause as u8, flags, purpose]);
        bytes[28..30].copy_from_slice(&self.depth.to_le_bytes());
        bytes
    }

    /// Decodes an access. `None` if its operation is one of a newer build.
    pub(super) fn decode(bytes: &RawAccess) -> Option<DiskAccess> {
        let mut r = Reader::new(bytes);
        let (at, place, len, micros) = (r.u64()?, r.u64::<u64>()?, r.u32()?, r.u32()?);
        let [op, cause, flags, purpose] = r.array()?;
        Some(DiskAccess {
            at,
            disk: (place >> SECTOR_BITS) as u16,
            offset: (place & ((1 << SECTOR_BITS) - 1)) * SECTOR,
            len,
            micros,
            op: AccessOp::ALL.get(usize::from(op)).copied()?,
            cause: Cause::of(cause),
            failed: flags & FAILED != 0,
            direct: flags & DIRECT != 0,
            cached: flags & CACHED != 0,
            purpose: SyncPurpose::ALL.get(usize::from(purpose)).copied(),
            depth: r.u16()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Trace files are read by later builds, so these bytes never change.
    #[test]
    fn golden_bytes() {
        let access = DiskAccess {
            at: 0x0102_0304_0506_0708,
            disk: 0x0A0B,
            offset: 0x1122_3344 * 512,
            len: 16 << 10,
            micros: 0x0C0D,
            op: AccessOp::Write,
            cause: Cause::NewSlot,
            failed: true,
            direct: false,
            cached: true,
            purpose: None,
            depth: 3,
        };
        let bytes = access.encode();
        let expected = [
            8, 7, 6, 5, 4, 3, 2, 1, 0x44, 0x33, 0x22, 0x11, 0, 0, 0x0B, 0x0A, 0, 0x40, 0, 0, 0x0D, 0x0C, 0,
            0, 1, 5, 5, 255, 3, 0, 0, 0,
        ];
        assert_eq!(bytes, expected);
        assert_eq!(DiskAccess::decode(&bytes), Some(access));
        let sync = DiskAccess {
            op: AccessOp::Sync,
            purpose: Some(SyncPurpose::Apply),
            direct: true,
            failed: false,
            ..access
        };
        assert_eq!(sync.encode()[24..28], [2, 5, 6, 3]);
        assert_eq!(DiskAccess::decode(&sync.encode()), Some(sync));
    }

    #[test]
    fn operations_of_newer_builds_are_left_out() {
        let mut bytes = [0; ACCESS_LEN];
        assert!(DiskAccess::decode(&bytes).is_some());
        bytes[24] = 4;
        assert_eq!(DiskAccess::decode(&bytes), None);
        for (number, op) in AccessOp::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, number);
        }
    }
}
