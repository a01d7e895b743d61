//! The engine's tracing events: a subscriber that keeps the events of one thread.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, LazyLock, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Metadata, Subscriber};

/// Events as text: level, message, and fields as `name=value`.
#[derive(Clone, Default)]
pub(crate) struct Heard(Arc<Mutex<Vec<String>>>);

/// A second subscriber, which no test uses. While `tracing` knows only one subscriber, the first
/// thread that comes to an event decides whether the event is ever sent. A thread of another test,
/// which has no subscriber, would switch the event off for all tests.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Heard::default()));

impl Heard {
    /// Runs `act` while the subscriber collects events.
    pub(crate) fn during<T>(&self, act: impl FnOnce() -> T) -> T {
        LazyLock::force(&SECOND);
        tracing::subscriber::with_default(self.clone(), act)
    }

    /// Returns how many events contain a text.
    pub(crate) fn count(&self, text: &str) -> usize {
        self.0.lock().expect("no panic while it is held").iter().filter(|event| event.contains(text)).count()
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for Heard {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.0.lock().expect("no panic while it is held").push(text.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
