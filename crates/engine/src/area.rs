//! Areas: which physical volumes serve a branch.
//!
//! A dedicated physical volume serves only the branches that were made for it, and is an area of
//! its own. All others are the common area. Promises of space are made and kept by area, so what is
//! promised to one branch never needs room that belongs to another.
//!
//! - Z1: each physical volume is in one area, and stays there.
//! - Z2: a branch takes slots from its own area only. If a dedicated physical volume has failed,
//!   its branches take slots from the common area, like content of any that has failed.
//! - Z3: whatever is promised in an area can be allocated in it (I6).

/// The physical volumes that serve the same branches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Area {
    /// All physical volumes that are not dedicated.
    Common,
    /// A dedicated physical volume.
    Only(u32),
}

/// Slots that can stand in for each other: those of an area that have one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotKind {
    pub(crate) area: Area,
    /// log2 of the size of the slots in bytes.
    pub(crate) log2: u8,
}

impl Area {
    /// The area of the physical volume `pv`.
    pub(crate) fn of(pv: u32, is_dedicated: bool) -> Area {
        if is_dedicated { Area::Only(pv) } else { Area::Common }
    }

    /// Returns the physical volume, if the area is a dedicated one.
    pub(crate) fn dedicated(self) -> Option<u32> {
        match self {
            Area::Common => None,
            Area::Only(pv) => Some(pv),
        }
    }

    /// Slots of this area, of size `1 << log2`.
    pub(crate) fn slots(self, log2: u8) -> SlotKind {
        SlotKind { area: self, log2 }
    }
}
