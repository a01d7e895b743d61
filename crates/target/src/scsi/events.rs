//! What sessions learn outside their own commands.

use super::sense::Sense;

/// What a session learns outside its own commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Another nexus aborted this one's tasks at a logical unit (CLEAR TASK SET, a reset, PREEMPT
    /// AND ABORT): none of them is answered any more, and none changes the medium once the call
    /// returned, as far as that can be helped.
    AbortTasks {
        /// The logical unit.
        lun: u16,
    },
    /// A unit attention is waiting for this nexus that was not waiting before; a transport may tell
    /// the initiator at once. A change of the inventory comes once, for the first of the logical
    /// units that report it, and not again before the initiator was told.
    UnitAttention {
        /// The logical unit.
        lun: u16,
        /// What will be reported.
        sense: Sense,
    },
}

/// Takes news to a session. Called with no lock held that a command takes, from any thread.
pub trait Events: Send + Sync {
    /// Something happened. Returns how many tasks it aborted.
    fn event(&self, event: Event) -> usize;
}

/// For a transport that has no tasks of its own, and for tests.
impl Events for () {
    fn event(&self, _: Event) -> usize {
        0
    }
}
