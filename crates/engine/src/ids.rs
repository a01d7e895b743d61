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
    /// A volume. It keeps its number for as long as it exists, whatever branch it writes to.
    VolumeId(u64)
}

number! {
    /// A snapshot.
    SnapshotId(u64)
}

/// The place of a record in the order of all records, and when that was.
///
/// Times grow with LSNs, and LSNs come first in the order of stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp {
    /// The LSN of the record.
    pub lsn: u64,
    /// The time of the record, in nanoseconds: pool time inside the engine, time of the wall clock
    /// in what users are told.
    pub time: u64,
}

impl Stamp {
    /// Makes a stamp of an LSN and a time in nanoseconds.
    pub const fn new(lsn: u64, time: u64) -> Stamp {
        Stamp { lsn, time }
    }
}
