//! Events that the device server reports to a session, apart from the outcomes of its commands.

use super::sense::Sense;

/// An event that the device server reports to a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Another nexus aborted the tasks of this nexus at a logical unit, by CLEAR TASK SET, a reset
    /// or PREEMPT AND ABORT. The session answers none of these tasks. As far as possible, none of
    /// them changes the medium after the call of [`Events::event`] returned.
    AbortTasks {
        /// The logical unit.
        lun: u16,
    },
    /// A new unit attention is pending for this nexus. A transport may report it to the initiator
    /// at once. A change of the inventory is one event, for the first of the logical units that
    /// report it. A further change is an event only after the initiator received that unit
    /// attention, or the inventory.
    UnitAttention {
        /// The logical unit.
        lun: u16,
        /// The sense data that the logical unit will report.
        sense: Sense,
    },
}

/// Delivers events to a session. The device server calls it from any thread, and then holds no lock
/// that a command takes.
pub trait Events: Send + Sync {
    /// Delivers `event`. Returns the number of tasks that the session aborted.
    fn event(&self, event: Event) -> usize;
}

/// An implementation for tests, and for a transport that has no tasks of its own.
impl Events for () {
    fn event(&self, _: Event) -> usize {
        0
    }
}
