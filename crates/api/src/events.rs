//! Responses about events: what happened on a server, in its order.

use crate::Severity;
use crate::client::{Client, ClientError};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::io::Write;
use utoipa::ToSchema;

/// Largest number of events in one response.
pub const MAX_EVENTS: u32 = 1000;

/// Something that happened on a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Number of the event. Numbers grow, also over restarts of the server.
    pub id: u64,
    /// Time of the event.
    pub time: Timestamp,
    /// Kind of the event, for programs: `volume.created`. docs/OPERATIONS.md lists the kinds; a
    /// kind never changes its meaning.
    pub kind: String,
    /// How urgent the event is.
    pub severity: Severity,
    /// Name of what the event is about, such as a volume. Absent if it is about the whole server.
    pub subject: Option<String>,
    /// One sentence for people, with the relevant names and numbers.
    pub message: String,
}

/// What a client that follows the events gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Followed {
    /// An event.
    Event(Event),
    /// The server left out events before the next one: they are not in its memory any more.
    Gap,
}

/// Which events to list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventsQuery {
    /// Only events with a smaller number.
    pub before: Option<u64>,
    /// Maximum number of events, up to [`MAX_EVENTS`]. The newest ones are listed.
    pub limit: Option<u32>,
}

impl Client {
    /// Returns events, newest first.
    pub fn events(&self, query: EventsQuery) -> Result<Vec<Event>, ClientError> {
        let limit = query.limit.unwrap_or(MAX_EVENTS);
        let before = query.before.map_or_else(String::new, |before| format!("&before={before}"));
        self.get(&format!("/events?limit={limit}{before}"))
    }

    /// Passes events on to `take` as they happen, from the one after `after` on, until `take`
    /// returns false or the connection ends.
    pub fn follow_events(
        &self,
        after: Option<u64>,
        take: &mut dyn FnMut(Followed) -> bool,
    ) -> Result<(), ClientError> {
        let after = after.map_or_else(String::new, |after| format!("&after={after}"));
        let mut lines = Lines { rest: Vec::new(), take };
        self.download(&format!("/events?follow=true{after}"), &mut lines).map(drop)
    }
}

/// Takes the events out of a stream of server-sent events.
struct Lines<'a> {
    rest: Vec<u8>,
    take: &'a mut dyn FnMut(Followed) -> bool,
}

impl Write for Lines<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let followed = if line == b"event: gap\n" {
                Followed::Gap
            } else {
                let Some(data) = line.strip_prefix(b"data: ") else { continue };
                // The data of a gap is no event.
                let Ok(event) = serde_json::from_slice::<Event>(data) else { continue };
                Followed::Event(event)
            };
            if !(self.take)(followed) {
                return Err(std::io::ErrorKind::BrokenPipe.into());
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_taken_from_a_stream_however_it_is_cut() {
        let event = Event {
            id: 7,
            time: Timestamp::UNIX_EPOCH,
            kind: "volume.created".into(),
            severity: Severity::Info,
            subject: Some("db".into()),
            message: "volume created".into(),
        };
        let text = serde_json::to_string(&event).unwrap();
        let stream = format!(
            ": here\n\nevent: gap\ndata: {{}}\n\nid: 7\ndata: {text}\n\n: here\n\nid: 8\ndata: {text}\n\n"
        );
        for size in [1, 7, 1000] {
            let mut found = Vec::new();
            let mut take = |event| {
                found.push(event);
                true
            };
            let mut lines = Lines { rest: Vec::new(), take: &mut take };
            stream.as_bytes().chunks(size).for_each(|part| lines.write_all(part).unwrap());
            let event = Followed::Event(event.clone());
            assert_eq!(found, [Followed::Gap, event.clone(), event], "{size}");
        }
        let mut lines = Lines { rest: Vec::new(), take: &mut |_| false };
        assert!(lines.write_all(stream.as_bytes()).is_err());
    }
}
