//! What the engine says: the simulator demands that a pool which is poisoned has said so.
//!
//! Each run has a thread of its own, and so has what it hears.

use std::cell::Cell;
use std::fmt::Debug;
use std::sync::Once;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

thread_local! {
    static POISONINGS: Cell<u64> = const { Cell::new(0) };
}

/// Begins to listen, for the whole program. What is no error costs nothing.
pub(crate) fn listen() {
    static ONCE: Once = Once::new();
    // Another listener, of a test, may be there already.
    ONCE.call_once(|| _ = tracing::subscriber::set_global_default(Errors));
}

/// How often the engine has said on this thread that a pool is poisoned, since it was last asked.
pub(crate) fn take_poisonings() -> u64 {
    POISONINGS.take()
}

/// A subscriber to errors.
struct Errors;

struct IsPoisoning(bool);

impl Visit for IsPoisoning {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 |= field.name() == "message" && format!("{value:?}").starts_with("the pool is poisoned");
    }
}

impl Subscriber for Errors {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() == Level::ERROR
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut poisoning = IsPoisoning(false);
        event.record(&mut poisoning);
        if poisoning.0 {
            POISONINGS.set(POISONINGS.get() + 1);
        }
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
