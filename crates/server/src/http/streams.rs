//! Responses that go on: streams of server-sent events.
//!
//! A stream ends with its client, or when the server stops. It takes one of a limited number of
//! places, so that streams can't use up what requests need.

use super::caller::{Caller, Key};
use super::error::ApiError;
use crate::app::App;
use crate::identity::principal::Principal;
use axum::body::{Body, Bytes};
use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use hindcast_api::{ChannelBody, ErrorKind, PrincipalKind};
use serde::Serialize;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Number of pieces that wait for a client. One that reads too slowly is waited for.
const PIECES: usize = 16;
/// Interval at which a stream without events shows that it lives.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// What a stream sends next.
#[derive(Default)]
pub(super) struct Sent(Vec<u8>);

impl Sent {
    /// Adds an event with a number, a type and data. Without a type it is a `message`.
    pub(super) fn put(
        &mut self,
        id: Option<u64>,
        kind: Option<&str>,
        data: &impl Serialize,
    ) -> io::Result<()> {
        if let Some(id) = id {
            self.0.extend_from_slice(format!("id: {id}\n").as_bytes());
        }
        if let Some(kind) = kind {
            self.0.extend_from_slice(format!("event: {kind}\n").as_bytes());
        }
        self.0.extend_from_slice(b"data: ");
        // JSON has no line ends outside of strings, and escapes them there.
        serde_json::to_writer(&mut self.0, data)?;
        self.0.extend_from_slice(b"\n\n");
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// What a stream sends.
pub(super) trait Feed: Send + 'static {
    /// Waits for the next events, and adds at least one. It may be called again after it was
    /// dropped while it waited. An error ends the stream.
    fn next(&mut self, sent: &mut Sent) -> impl Future<Output = io::Result<()>> + Send;
}

/// The caller of a stream, who must stay known while it goes on.
pub(super) struct StreamCaller {
    caller: Arc<Principal>,
    /// The session of the caller, if it has one.
    session: Option<Key>,
}

impl<S: Send + Sync> FromRequestParts<S> for StreamCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<StreamCaller, ApiError> {
        let Caller(caller) = Caller::from_request_parts(parts, state).await?;
        Ok(StreamCaller { caller, session: parts.extensions.get::<Key>().copied() })
    }
}

impl StreamCaller {
    fn is_known(&self, app: &App) -> bool {
        match &self.session {
            Some(Key(session)) => app.callers.sessions.expires(session).is_some(),
            None => app.callers.is_known(&self.caller),
        }
    }
}

/// Starts a stream. It ends when its caller's token or session ends.
pub(super) fn stream(
    app: &Arc<App>,
    listener: StreamCaller,
    mut feed: impl Feed,
) -> Result<Response, ApiError> {
    let local = listener.caller.kind == PrincipalKind::Local;
    let place = app.streams.take((!local).then_some(listener.caller.name.as_str())).ok_or_else(|| {
        ApiError::new(ErrorKind::Busy, "follow events: too many streams are open; try again later")
    })?;
    let known = Arc::downgrade(app);
    let mut stopping = app.stopping.subscribe();
    let (pieces, receiver) = mpsc::channel::<io::Result<Bytes>>(PIECES);
    app.web.ordinary.spawn(async move {
        let _place = place;
        // Some clients report the beginning only with the first bytes.
        let mut piece = b": stream\n\n".to_vec();
        loop {
            if !known.upgrade().is_some_and(|app| listener.is_known(&app)) {
                return;
            }
            tokio::select! {
                sent = pieces.send(Ok(std::mem::take(&mut piece).into())) => if sent.is_err() { return },
                _ = stopping.wait_for(|stops| *stops) => return,
            }
            let mut sent = Sent::default();
            tokio::select! {
                result = feed.next(&mut sent) => match result {
                    Ok(()) => piece = sent.into_bytes(),
                    Err(_) => return,
                },
                () = tokio::time::sleep(HEARTBEAT) => piece = b": here\n\n".to_vec(),
                () = pieces.closed() => return,
                _ = stopping.wait_for(|stops| *stops) => return,
            }
        }
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::new(ChannelBody(receiver))).into_response())
}

#[cfg(test)]
mod tests {
    use super::Sent;

    #[test]
    fn events_have_one_line_of_data() {
        let mut sent = Sent::default();
        sent.put(Some(7), Some("gap"), &"two\nlines").unwrap();
        sent.put(None, None, &1).unwrap();
        let text = String::from_utf8(sent.into_bytes()).unwrap();
        assert_eq!(text, "id: 7\nevent: gap\ndata: \"two\\nlines\"\n\ndata: 1\n\n");
    }
}
