//! Bodies of responses: JSON, and the memory that responses hold while clients read them.
//!
//! The thread that serves the Unix socket also takes snapshots, so it writes short JSON only. It
//! leaves a longer value to a thread that may take its time.

use super::error::ApiError;
use super::guests::{self, Guest};
use super::room::AnswerRoom;
use super::written::Unwritten;
use crate::host_paths::Door;
use crate::realtime;
use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use hindcast_target::admission::Source;
use hyper::body::{Body as _, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

fn unwritable(error: &dyn std::fmt::Display) -> Response {
    ApiError::internal(format!("write the response: {error}")).into_response()
}

/// Writes what the handler left unwritten, on a thread that may block.
pub(super) async fn finish(mut response: Response) -> Response {
    let unwritten = response.extensions_mut().remove::<Unwritten>();
    let Some(Unwritten(write)) = unwritten else { return response };
    let write = move || realtime::lowered(|| write.lock().take().map_or_else(|| Ok(Vec::new()), |w| w()));
    match tokio::task::spawn_blocking(write).await {
        Ok(Ok(bytes)) => response.map(|_| Body::from(bytes)),
        Ok(Err(error)) => unwritable(&error),
        Err(error) => unwritable(&error),
    }
}

/// Takes room for a response. A client that reads slowly holds the room.
pub(super) fn hold(response: Response, guest: Option<&Arc<Guest>>, room: &Arc<AnswerRoom>) -> Response {
    let (parts, body) = response.into_parts();
    // Clients on this machine have few connections, and HTTP/1.1 only.
    let length = body.size_hint().exact().filter(|length| *length > 0 && guests::door() == Door::Network);
    let Some(length) = length else { return Response::from_parts(parts, body) };
    let source = guest.and_then(|guest| guest.address()).map_or(Source::Local, Source::of);
    match room.take(source, length) {
        Some(held) => Response::from_parts(parts, Body::new(Held { body, _held: held })),
        None => ApiError::no_room().into_response(),
    }
}

/// A body with its share of the room for responses.
struct Held<H> {
    body: Body,
    _held: H,
}

impl<H: Unpin> hyper::body::Body for Held<H> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::super::written::{SHORT, json};
    use super::*;
    use axum::http::header::{CONTENT_TYPE, HeaderValue};
    use http_body_util::BodyExt;
    use parking_lot::Mutex;
    use serde::Serialize;
    use serde::Serializer;
    use std::thread::{self, ThreadId};

    /// A value that records which threads write it.
    struct Spy(usize, Arc<Mutex<Vec<ThreadId>>>);

    impl Serialize for Spy {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let written = serializer.serialize_str(&"x".repeat(self.0))?;
            self.1.lock().push(thread::current().id());
            Ok(written)
        }
    }

    #[tokio::test]
    async fn long_json_is_written_by_another_thread() {
        for (length, own) in [(SHORT - 2, true), (SHORT - 1, false), (10 << 20, false)] {
            let threads = Arc::new(Mutex::new(Vec::new()));
            let response = json(Spy(length, threads.clone())).unwrap();
            let response = guests::through(Door::Local, finish(response)).await;
            assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
            assert_eq!(response.body().size_hint().exact(), Some(length as u64 + 2));
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body.len(), length + 2);
            let by_own = *threads.lock() == [thread::current().id()];
            assert_eq!((threads.lock().len(), by_own), (1, own), "{length}");
        }
    }

    #[tokio::test]
    async fn a_response_holds_its_room_until_it_is_read() {
        let room: Arc<AnswerRoom> = Arc::default();
        let answer = || {
            let long = json("x".repeat(100 << 20)).unwrap();
            guests::through(Door::Network, async { hold(finish(long).await, None, &room) })
        };
        let first = answer().await;
        assert_eq!(first.status(), 200);
        let refused = answer().await;
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()["retry-after"]),
            (503, &HeaderValue::from(1))
        );
        assert_eq!(first.into_body().collect().await.unwrap().to_bytes().len(), (100 << 20) + 2);
        assert_eq!(answer().await.status(), 200);
    }
}
