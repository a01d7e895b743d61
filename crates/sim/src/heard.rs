//! Errors that the engine logs. The simulator demands that the engine has logged an error for each
//! pool that is poisoned.
//!
//! A run stays on one thread, and the count of errors is per thread.

use std::cell::Cell;
use std::fmt::Debug;
use std::sync::Once;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

thread_local! {
    static POISONINGS: Cell<u64> = const { Cell::new(0) };
}

/// Starts to listen, for the whole program. Events below the level of errors are disabled and cost
/// nothing.
pub(crate) fn listen() {
    static ONCE: Once = Once::new();
    // A test may have installed another subscriber already.
    ONCE.call_once(|| _ = tracing::subscriber::set_global_default(Errors));
}

/// Returns how many poisoned pools the engine has reported on this thread since the last call.
pub(crate) fn take_poisonings() -> u64 {
    POISONINGS.take()
}

/// A subscriber to errors only.
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
