//! The numbers by which the engine names things: a type for each kind, so that none can be taken
//! for another.
//!
//! On disk they are plain numbers. Codecs and tables convert them.

use std::fmt;
use std::ops::Range;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($number:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $number);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<$number> for $name {
            fn from(number: $number) -> $name {
                $name(number)
            }
        }

        impl From<$name> for $number {
            fn from(id: $name) -> $number {
                id.0
            }
        }
    };
}

number! {
    /// A branch: one line of history. No branch ever has the number 0.
    BranchId(u64)
}

number! {
    /// An epoch: the number of a stretch of a branch's writes between two snapshots. A snapshot,
    /// or an anchor of a history, ends its branch's epoch, and later writes belong to the next. A
    /// branch begins with [`Epoch::FIRST`]. Epochs of different branches have no relation.
    Epoch(u32)
}

impl Epoch {
    /// The number below all epochs. Records of no branch and views of moments have it.
    pub const NONE: Epoch = Epoch(0);
    /// The first epoch of every branch.
    pub const FIRST: Epoch = Epoch(1);
    /// The number above all epochs. No branch reaches it.
    pub const MAX: Epoch = Epoch(u32::MAX);

    /// Returns the epoch that follows.
    #[must_use]
    pub const fn next(self) -> Epoch {
        Epoch(self.0.saturating_add(1))
    }
}

number! {
    /// A chunk: the number of chunks that lie before it in the address space of its branch. The
    /// first chunk has the number 0. Chunk `n` has the bytes from `n * size` to `(n + 1) * size`,
    /// where `size` is the branch's chunk size, a power of two. A branch and the branches below it
    /// have one chunk size, so a number means the same bytes in all of them. It is no place on a
    /// physical volume, and no index within a map page.
    Chunk(u64)
}

impl Chunk {
    /// The first chunk of a branch.
    pub const FIRST: Chunk = Chunk(0);
    /// The number above all chunks.
    pub const MAX: Chunk = Chunk(u64::MAX);

    /// Returns the chunk that has the byte `offset`, where the chunk size is `1 << chunk_log2`.
    #[must_use]
    pub const fn of(offset: u64, chunk_log2: u8) -> Chunk {
        Chunk(offset >> chunk_log2)
    }

    /// Returns the first byte of the chunk, or `u64::MAX` if that lies behind all bytes.
    pub const fn start(self, chunk_log2: u8) -> u64 {
        self.0.saturating_mul(1 << chunk_log2)
    }

    /// Returns the bytes of the chunk.
    pub const fn bytes(self, chunk_log2: u8) -> Range<u64> {
        self.start(chunk_log2)..self.next().start(chunk_log2)
    }

    /// Returns the chunk that follows.
    #[must_use]
    pub const fn next(self) -> Chunk {
        Chunk(self.0.saturating_add(1))
    }

    /// Returns the chunk before, or the first for the first.
    #[must_use]
    pub const fn prev(self) -> Chunk {
        Chunk(self.0.saturating_sub(1))
    }

    /// Returns by how many chunks this one lies behind `earlier`, or 0 if it does not.
    pub const fn since(self, earlier: Chunk) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns each chunk of a range, in order.
    pub fn each(chunks: Range<Chunk>) -> impl Iterator<Item = Chunk> {
        (chunks.start.0..chunks.end.0).map(Chunk)
    }
}

/// The place of a chunk, or of a block, on a physical volume: the number of the physical volume in
/// the upper 16 bits, and the byte offset in units of 512 bytes below them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot(pub(crate) u64);

impl Slot {
    /// A hole: the chunk reads as zeros and takes no space.
    pub(crate) const HOLE: Slot = Slot(0);

    /// Makes the slot at byte `offset` of physical volume `pv`.
    pub(crate) fn new(pv: u32, offset: u64) -> Slot {
        debug_assert!(pv <= u16::MAX as u32 && offset % 512 == 0 && offset / 512 < 1 << 48);
        Slot((pv as u64) << 48 | offset / 512)
    }
    /// Returns the number of the physical volume.
    pub(crate) fn pv(self) -> u32 {
        (self.0 >> 48) as u32
    }
    /// Returns the byte offset on the physical volume.
    pub(crate) fn offset(self) -> u64 {
        (self.0 & ((1 << 48) - 1)) * 512
    }
    /// Returns the place `by` bytes before this one on the same physical volume.
    #[must_use]
    pub(crate) fn before(self, by: u64) -> Slot {
        Slot::new(self.pv(), self.offset().saturating_sub(by))
    }
    /// Returns the place `by` bytes further on the same physical volume.
    #[must_use]
    pub(crate) fn advanced(self, by: u64) -> Slot {
        Slot::new(self.pv(), self.offset() + by)
    }
}

number! {
    /// A volume. It keeps its number for as long as it exists, whatever branch it writes to.
    VolumeId(u64)
}

number! {
    /// A snapshot.
    SnapshotId(u64)
}

number! {
    /// A log sequence number: the place of a record of the journal in the order of all records.
    /// LSNs grow, and may skip some. No record has the number 0.
    Lsn(u64)
}

impl Lsn {
    /// The number below all LSNs.
    pub const ZERO: Lsn = Lsn(0);
    /// The number above all LSNs. As a moment it stands for the present.
    pub const MAX: Lsn = Lsn(u64::MAX);

    /// Returns the number that follows.
    #[must_use]
    pub const fn next(self) -> Lsn {
        Lsn(self.0.saturating_add(1))
    }

    /// Returns the number before, or 0 for 0.
    #[must_use]
    pub const fn prev(self) -> Lsn {
        Lsn(self.0.saturating_sub(1))
    }

    /// Returns by how many numbers `earlier` lies before this one, or 0 if it does not.
    pub const fn since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The place of a record in the order of all records, and when that was.
///
/// Times grow with LSNs, and LSNs come first in the order of stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp {
    /// The LSN of the record.
    pub lsn: Lsn,
    /// The time of the record, in nanoseconds: pool time inside the engine, time of the wall clock
    /// in what users are told.
    pub time: u64,
}

impl Stamp {
    /// Makes a stamp of an LSN and a time in nanoseconds.
    pub const fn new(lsn: Lsn, time: u64) -> Stamp {
        Stamp { lsn, time }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_bytes_and_bytes_of_chunks() {
        assert_eq!([0, 511, 512, 1023, 1024].map(|at| Chunk::of(at, 9)), [0, 0, 1, 1, 2].map(Chunk));
        assert_eq!(Chunk(3).bytes(12), 12288..16384);
        assert_eq!((Chunk(3).next(), Chunk(3).prev()), (Chunk(4), Chunk(2)));
        assert_eq!((Chunk(7).since(Chunk(3)), Chunk(3).since(Chunk(7))), (4, 0));
        assert_eq!(Chunk::each(Chunk(3)..Chunk(6)).collect::<Vec<_>>(), [3, 4, 5].map(Chunk));
        assert_eq!(Chunk::each(Chunk(6)..Chunk(3)).next(), None);
    }

    /// A chunk's number comes from disk, too.
    #[test]
    fn numbers_that_no_volume_has_do_not_overflow() {
        assert_eq!(Chunk(1 << 60).bytes(14), u64::MAX..u64::MAX);
        assert_eq!((Chunk::MAX.next(), Chunk::FIRST.prev()), (Chunk::MAX, Chunk::FIRST));
        assert_eq!(Chunk::MAX.start(9), u64::MAX);
    }
}
