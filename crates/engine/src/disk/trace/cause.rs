//! Why a thread accesses disks.

use crate::disk::SyncPurpose;
use std::cell::Cell;
use std::marker::PhantomData;

/// The cause of an access to a disk. The numbers are those of trace files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Cause {
    /// None of the others.
    Other = 0,
    /// A client reads.
    Read = 1,
    /// A client writes much at once, to slots that a reference names.
    Reference = 2,
    /// Old content is copied to another slot: a snapshot keeps the old slot, or gets the copy, or a
    /// clone writes a part of a chunk.
    Preserve = 3,
    /// A chunk gets the content of the image, snapshot or moment that its volume rests on.
    Fill = 4,
    /// Content from the journal goes to a slot that the chunk did not have before.
    NewSlot = 5,
    /// Content from the journal goes over the old content, or units of it are read for that.
    Apply = 6,
    /// A history records what is overwritten.
    History = 7,
    /// Content moves to another place: a physical volume is drained, or a volume is put in order.
    Move = 8,
    /// A member of a mirror gets its content.
    Rebuild = 9,
    /// A scrub verifies the data in place.
    Scrub = 10,
    /// Damaged data is repaired.
    Repair = 11,
    /// Labels and stamps of physical volumes, and records of mirrors.
    Open = 12,
}

impl Cause {
    /// All causes, in the order of their numbers.
    pub const ALL: [Cause; 13] = [
        Cause::Other,
        Cause::Read,
        Cause::Reference,
        Cause::Preserve,
        Cause::Fill,
        Cause::NewSlot,
        Cause::Apply,
        Cause::History,
        Cause::Move,
        Cause::Rebuild,
        Cause::Scrub,
        Cause::Repair,
        Cause::Open,
    ];

    /// Returns the name that commands and pictures use.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Other => "other",
            Cause::Read => "read",
            Cause::Reference => "reference",
            Cause::Preserve => "preserve",
            Cause::Fill => "fill",
            Cause::NewSlot => "new-slot",
            Cause::Apply => "apply",
            Cause::History => "history",
            Cause::Move => "move",
            Cause::Rebuild => "rebuild",
            Cause::Scrub => "scrub",
            Cause::Repair => "repair",
            Cause::Open => "open",
        }
    }

    /// Returns the cause with this number. Numbers of newer builds are other causes.
    pub(super) fn of(number: u8) -> Cause {
        Cause::ALL.get(usize::from(number)).copied().unwrap_or(Cause::Other)
    }

    /// Returns the cause of this thread's accesses.
    pub(crate) fn current() -> Cause {
        CURRENT.get()
    }

    /// Makes this the cause of the thread's accesses for as long as the returned value lives.
    pub(crate) fn begin(self) -> CauseGuard {
        CauseGuard { before: CURRENT.replace(self), _of_thread: PhantomData }
    }

    /// Makes this the cause of the thread's accesses, as [`Cause::begin`] does, unless the thread
    /// has a cause already.
    pub(crate) fn begin_default(self) -> CauseGuard {
        match Cause::current() {
            Cause::Other => self.begin(),
            current => current.begin(),
        }
    }

    /// Returns the cause of a sync on a thread without a cause.
    pub(crate) fn of_sync(purpose: SyncPurpose) -> Cause {
        match purpose {
            SyncPurpose::Preserve => Cause::NewSlot,
            SyncPurpose::Apply => Cause::Apply,
            SyncPurpose::Direct => Cause::Reference,
            SyncPurpose::Label | SyncPurpose::Stamp | SyncPurpose::Layout | SyncPurpose::Stale => Cause::Open,
            _ => Cause::Other,
        }
    }
}

thread_local! {
    static CURRENT: Cell<Cause> = const { Cell::new(Cause::Other) };
}

/// Gives the thread back the cause that it had before.
#[must_use]
pub(crate) struct CauseGuard {
    before: Cause,
    /// The guard stays on its thread.
    _of_thread: PhantomData<*const ()>,
}

impl Drop for CauseGuard {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique_and_in_order() {
        for (number, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!((cause as usize, Cause::of(number as u8)), (number, cause));
            assert_eq!(Cause::ALL.iter().filter(|other| other.name() == cause.name()).count(), 1);
        }
        assert_eq!(Cause::of(200), Cause::Other);
    }

    #[test]
    fn causes_are_nested_and_belong_to_threads() {
        assert_eq!(Cause::current(), Cause::Other);
        {
            let _scrub = Cause::Scrub.begin();
            {
                let _default = Cause::NewSlot.begin_default();
                assert_eq!(Cause::current(), Cause::Scrub);
                let _repair = Cause::Repair.begin();
                assert_eq!(Cause::current(), Cause::Repair);
            }
            assert_eq!(Cause::current(), Cause::Scrub);
            assert_eq!(std::thread::spawn(Cause::current).join().unwrap(), Cause::Other);
        }
        let _default = Cause::NewSlot.begin_default();
        assert_eq!(Cause::current(), Cause::NewSlot);
    }
}
