//! JSON of responses. The thread that serves a connection writes short JSON only, and leaves a
//! longer value to `http/answers.rs`.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use serde::Serialize;
use std::io;
use std::sync::Arc;

/// Maximum length of JSON that the thread of a connection writes itself, in bytes. It takes tens of
/// microseconds.
pub(super) const SHORT: usize = 16 << 10;

pub(super) type Write = Box<dyn FnOnce() -> serde_json::Result<Vec<u8>> + Send>;

/// A value of a response that is not written yet.
#[derive(Clone)]
pub(super) struct Unwritten(pub(super) Arc<Mutex<Option<Write>>>);

/// Returns a response with JSON. If the JSON is not short, the body is empty until [`finish`].
pub(super) fn json<T: Serialize + Send + 'static>(value: T) -> serde_json::Result<Response> {
    let kind = HeaderValue::from_static("application/json");
    let mut piece = Piece::default();
    let (body, unwritten) = match serde_json::to_writer(&mut piece, &value) {
        Ok(()) => (Body::from(piece.bytes), None),
        Err(_) if piece.is_full => {
            let write: Write = Box::new(move || serde_json::to_vec(&value));
            (Body::empty(), Some(Unwritten(Arc::new(Mutex::new(Some(write))))))
        }
        Err(error) => return Err(error),
    };
    let mut response = body.into_response();
    response.headers_mut().insert(CONTENT_TYPE, kind);
    if let Some(unwritten) = unwritten {
        response.extensions_mut().insert(unwritten);
    }
    Ok(response)
}

/// The first bytes of JSON. A write beyond [`SHORT`] fails.
#[derive(Default)]
struct Piece {
    bytes: Vec<u8>,
    is_full: bool,
}

impl io::Write for Piece {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > SHORT {
            self.is_full = true;
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
