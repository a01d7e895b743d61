//! Entry points of fuzz targets: what the server reads from texts of clients.

pub use crate::http::fuzzing::HeaderValues;

use crate::audit::EntryPlace;
use crate::events::Events;
use crate::identity::principal::{VolumeScope, check_pattern};
use crate::listen::Address;

/// Reads values of the headers Cookie, Authorization and Last-Event-ID.
pub fn headers(cookies: &[&[u8]], authorization: &[u8], event: &[u8]) -> HeaderValues {
    crate::http::fuzzing::read(cookies, authorization, event)
}

/// Returns the numbers of the events that a client gets that has seen the event with this number,
/// and whether it gets a note about a gap. There were no events yet.
pub fn events_after(number: u64) -> (usize, bool) {
    let found = Events::new().after(number);
    (found.events.len(), found.gap)
}

/// Returns an address to listen on as the server writes it, if the text is one.
pub fn address(text: &str) -> Option<String> {
    text.parse::<Address>().ok().map(|address| address.to_string())
}

/// Returns whether the text is a place in the audit.
pub fn is_place(text: &str) -> bool {
    EntryPlace::parse(text).is_some()
}

/// Returns whether a scope with this pattern has the volume of this name. `None`: the text is no
/// pattern.
pub fn covers(pattern: &str, name: &str) -> Option<bool> {
    check_pattern(pattern).ok()?;
    Some(VolumeScope::Volumes(vec![pattern.to_owned()]).covers(name))
}
