//! The route of events: a page of them, or a stream that goes on.

use super::error::{ApiError, Json, Query};
use super::shared::{Shared, blocking};
use super::streams::{Feed, Sent, StreamCaller, stream};
use crate::app::App;
use crate::events::Events;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use hindcast_api::{ErrorBody, ErrorKind, Event, MAX_EVENTS};
use serde::Deserialize;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Number of events in a page if a request does not tell it.
const PAGE: u32 = 100;
/// Time from events to the next ones of a stream. So a burst of events wakes each stream only a few
/// times.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(events))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    before: Option<u64>,
    limit: Option<u32>,
    #[serde(default)]
    follow: bool,
    after: Option<u64>,
}

/// Returns events: what happened on this server.
///
/// The newest come first. `before` lists only events with smaller numbers. `limit` is the maximum
/// number of events. Default: 100. Maximum: 1000.
///
/// With `follow`, or with the header `Accept: text/event-stream`, the response is a stream of
/// server-sent events that goes on: each has the event's number as its `id`, and the event as its
/// data. It begins after the number `after`, or that of the header `Last-Event-ID`, or now. If
/// events behind that number are gone, the stream begins with one of the type `gap`: the client
/// reads anew what it shows. At most 64 streams are served at a time.
#[utoipa::path(get, path = "/events", params(("before" = Option<u64>, Query), ("limit" = Option<u32>, Query), ("follow" = Option<bool>, Query), ("after" = Option<u64>, Query)), responses((status = OK, body = Vec<Event>), (status = "default", body = ErrorBody)))]
async fn events(
    State(app): Shared,
    listener: StreamCaller,
    headers: HeaderMap,
    Query(query): Query<EventsQuery>,
) -> Result<Response, ApiError> {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
    if query.follow || header(header::ACCEPT).contains("text/event-stream") {
        let after = query.after.or_else(|| last_seen(&headers));
        return follow(&app, listener, after);
    }
    let limit = query.limit.unwrap_or(PAGE);
    if limit > MAX_EVENTS {
        let text = format!("list events: limit must be at most {MAX_EVENTS}");
        return Err(ApiError::new(ErrorKind::Invalid, text));
    }
    // Old events are in files.
    let newest = move |app: &App| Ok(Json(app.events.newest(query.before, limit as usize)).into_response());
    blocking(&app, newest).await
}

/// Returns the number of the last event that a client has seen, as it says when it connects again.
pub(super) fn last_seen(headers: &HeaderMap) -> Option<u64> {
    headers.get("last-event-id")?.to_str().ok()?.parse().ok()
}

/// The events after a number.
struct Follower {
    events: Events,
    changes: watch::Receiver<u64>,
    seen: u64,
    /// The time before which nothing more is sent.
    next: Instant,
}

impl Feed for Follower {
    async fn next(&mut self, sent: &mut Sent) -> io::Result<()> {
        tokio::time::sleep_until(self.next).await;
        loop {
            self.changes.mark_unchanged();
            let found = self.events.after(self.seen);
            if found.gap {
                sent.put(None, Some("gap"), &serde_json::json!({ "after": self.seen }))?;
                self.seen = found.last;
            }
            for event in &found.events {
                sent.put(Some(event.id), None, event)?;
                self.seen = self.seen.max(event.id);
            }
            if !sent.is_empty() {
                self.next = Instant::now() + PAUSE;
                return Ok(());
            }
            self.changes.changed().await.map_err(io::Error::other)?;
        }
    }
}

fn follow(app: &Arc<App>, listener: StreamCaller, after: Option<u64>) -> Result<Response, ApiError> {
    let events = app.events.clone();
    let (changes, seen) = (events.changes(), after.unwrap_or_else(|| events.last()));
    stream(app, listener, Follower { events, changes, seen, next: Instant::now() })
}
