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
use tokio::sync::{mpsc, watch};

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
pub(super) fn stream(app: &Arc<App>, listener: StreamCaller, feed: impl Feed) -> Result<Response, ApiError> {
    let local = listener.caller.kind == PrincipalKind::Local;
    let place = app.streams.take((!local).then_some(listener.caller.name.as_str())).ok_or_else(|| {
        ApiError::new(ErrorKind::Busy, "follow events: too many streams are open; try again later")
    })?;
    let known = Arc::downgrade(app);
    let stopping = app.stopping.subscribe();
    let (pieces, receiver) = mpsc::channel(PIECES);
    app.web.ordinary.spawn(async move {
        let _place = place;
        let is_known = || known.upgrade().is_some_and(|app| listener.is_known(&app));
        send(feed, &pieces, is_known, stopping).await;
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::new(ChannelBody(receiver))).into_response())
}

/// Sends what `feed` has, as long as the caller of the stream is known. A caller that is not known
/// any more gets nothing that happened later, and its stream ends within [`HEARTBEAT`].
async fn send(
    mut feed: impl Feed,
    pieces: &mpsc::Sender<io::Result<Bytes>>,
    is_known: impl Fn() -> bool,
    mut stopping: watch::Receiver<bool>,
) {
    // Some clients report the beginning only with the first bytes.
    let mut piece = b": stream\n\n".to_vec();
    loop {
        let place = tokio::select! {
            place = pieces.reserve() => Some(place),
            () = tokio::time::sleep(HEARTBEAT) => None,
            _ = stopping.wait_for(|stops| *stops) => return,
        };
        if !is_known() {
            return;
        }
        let Some(place) = place else { continue };
        let Ok(place) = place else { return };
        place.send(Ok(std::mem::take(&mut piece).into()));
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::time::Instant;

    /// Gives an event each `0` seconds.
    struct Clock(u64);

    impl Feed for Clock {
        async fn next(&mut self, sent: &mut Sent) -> io::Result<()> {
            tokio::time::sleep(Duration::from_secs(self.0)).await;
            sent.put(None, None, &"tick")
        }
    }

    /// Begins a stream whose caller is known until `known` is false.
    fn begin(feed: Clock) -> (mpsc::Receiver<io::Result<Bytes>>, Arc<AtomicBool>, watch::Sender<bool>) {
        let (pieces, receiver) = mpsc::channel(2);
        let (stop, stopping) = watch::channel(false);
        let known = Arc::new(AtomicBool::new(true));
        let asked = known.clone();
        tokio::spawn(async move { send(feed, &pieces, || asked.load(Ordering::SeqCst), stopping).await });
        (receiver, known, stop)
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_soon_after_its_caller_is_not_known() {
        for every in [1, 10_000] {
            let (mut pieces, known, _stop) = begin(Clock(every));
            pieces.recv().await.unwrap().unwrap();
            let second = pieces.recv().await.unwrap().unwrap();
            let expected: &[u8] = if every == 1 { b"data: \"tick\"\n\n" } else { b": here\n\n" };
            assert_eq!(second, expected);
            known.store(false, Ordering::SeqCst);
            let begun = Instant::now();
            assert!(pieces.recv().await.is_none(), "nothing is sent any more");
            assert!(begun.elapsed() <= HEARTBEAT, "{:?}", begun.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_is_not_read_ends_too() {
        let (mut pieces, known, _stop) = begin(Clock(1));
        tokio::time::sleep(Duration::from_secs(60)).await;
        known.store(false, Ordering::SeqCst);
        tokio::time::sleep(HEARTBEAT * 2).await;
        let mut read = 0;
        while pieces.try_recv().is_ok() {
            read += 1;
        }
        assert_eq!(read, 2, "what waited before, and nothing since");
        assert!(pieces.recv().await.is_none());
    }

    #[test]
    fn events_have_one_line_of_data() {
        let mut sent = Sent::default();
        sent.put(Some(7), Some("gap"), &"two\nlines").unwrap();
        sent.put(None, None, &1).unwrap();
        let text = String::from_utf8(sent.into_bytes()).unwrap();
        assert_eq!(text, "id: 7\nevent: gap\ndata: \"two\\nlines\"\n\ndata: 1\n\n");
    }
}
