//! The numbers by which the engine names things: a type for each kind, so that none can be taken
//! for another.
//!
//! On disk they are plain numbers. Codecs and tables convert them.

use std::fmt;

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
