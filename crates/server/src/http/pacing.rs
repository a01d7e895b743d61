//! How fast clients read responses over TCP.
//!
//! A response is sent in small pieces, so that its memory is freed when its client is given up. A
//! client over HTTP/2 can read a connection and not one of its responses. So the server notes for
//! each response since when it waits for the client.

use axum::body::{Body, Bytes};
use hyper::body::{Body as _, Frame, SizeHint};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum size of a piece, in bytes. It is the usual size of a frame of HTTP/2.
const PIECE: usize = 16 << 10;
/// Time in which a client has to read a piece.
const WINDOW: Duration = Duration::from_secs(60);
/// Interval between checks of the responses of a connection.
const LOOK: Duration = Duration::from_secs(5);

/// The responses of one connection.
#[derive(Clone, Default)]
pub(super) struct Pacing(Arc<Mutex<Waits>>);

#[derive(Default)]
struct Waits {
    last: u64,
    /// For each response whose client has to read, the time at which it got the last piece.
    since: BTreeMap<u64, Instant>,
}

impl Pacing {
    /// Returns the body of a response, in pieces. Its time begins now.
    pub(super) fn paced(&self, body: Body) -> Body {
        if body.is_end_stream() {
            return body;
        }
        let number = {
            let mut waits = self.0.lock();
            waits.last += 1;
            waits.last
        };
        let paced = Paced { body, rest: Bytes::new(), number, pacing: self.clone() };
        paced.wait_for_client();
        Body::new(paced)
    }

    /// Returns when the client has not read a piece of a response in time.
    pub(super) async fn stalled(&self) {
        let is_late = |since: &Instant| since.elapsed() >= WINDOW;
        while !self.0.lock().since.values().any(is_late) {
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// The body of a response, in pieces.
struct Paced {
    body: Body,
    /// What is left of the last frame of `body`.
    rest: Bytes,
    number: u64,
    pacing: Pacing,
}

impl Paced {
    fn wait_for_client(&self) {
        self.pacing.0.lock().since.insert(self.number, Instant::now());
    }

    fn wait_for_server(&self) {
        self.pacing.0.lock().since.remove(&self.number);
    }

    /// Returns a copy of the next piece. A part of `rest` would keep all of its memory.
    fn piece(&mut self) -> Frame<Bytes> {
        let piece = self.rest.split_to(self.rest.len().min(PIECE));
        Frame::data(if self.rest.is_empty() { piece } else { Bytes::copy_from_slice(&piece) })
    }
}

impl hyper::body::Body for Paced {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let polled = Pin::new(&mut self.body).poll_frame(context);
            match polled.map(|frame| frame.map(|frame| frame.map(Frame::into_data))) {
                Poll::Ready(Some(Ok(Ok(data)))) => self.rest = data,
                Poll::Ready(Some(Ok(Err(other)))) => {
                    self.wait_for_client();
                    return Poll::Ready(Some(Ok(other)));
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {
                    self.wait_for_server();
                    return Poll::Pending;
                }
            }
        }
        self.wait_for_client();
        let piece = self.piece();
        Poll::Ready(Some(Ok(piece)))
    }

    /// The body ends with one more poll, which comes when the client has read all pieces. Until
    /// then the response counts as one that the client has to read.
    fn is_end_stream(&self) -> bool {
        false
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let rest = self.rest.len() as u64;
        let lower = hint.lower() + rest;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(lower);
        hint
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        self.wait_for_server();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn a_body_comes_in_pieces_and_whole() {
        let pacing = Pacing::default();
        let content: Vec<u8> = (0..PIECE * 3 + 7).map(|n| n as u8).collect();
        let mut body = pacing.paced(Body::from(content.clone()));
        assert_eq!(body.size_hint().exact(), Some(content.len() as u64));
        assert_eq!(pacing.0.lock().since.len(), 1);
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!((first.len(), body.size_hint().exact()), (PIECE, Some((PIECE * 2 + 7) as u64)));
        assert!(!body.is_end_stream());
        let rest = body.collect().await.unwrap().to_bytes();
        assert_eq!([first, rest].concat(), content);
        assert!(pacing.0.lock().since.is_empty());
        assert!(pacing.paced(Body::empty()).is_end_stream());
    }
}
