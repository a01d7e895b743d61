//! What a request knows of its connection and its caller, as extensions.

use super::error::ApiError;
use crate::identity::principal::Principal;
use crate::identity::secret::Hash;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use hindcast_api::{ErrorBody, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;

/// How a connection arrived. Each request has it as an extension.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    /// The server's address of a TCP connection.
    pub(super) local: Option<SocketAddr>,
    pub(super) tls: bool,
}

/// The caller over a Unix socket, as the kernel reports it. `None`: the connection came over TCP.
#[derive(Clone)]
pub(super) struct Peer(pub(super) Option<Arc<Principal>>);

/// The key of the session of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key(pub(super) Hash);

/// The caller of the request, as an argument of handlers.
pub(super) struct Caller(pub(super) Arc<Principal>);

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Caller, ApiError> {
        let known = parts.extensions.get::<Arc<Principal>>();
        known.cloned().map(Caller).ok_or_else(|| unknown("the request has no credentials").into())
    }
}

/// Returns the error for a caller that the server does not know.
pub(super) fn unknown(message: &str) -> ErrorBody {
    ErrorBody { kind: ErrorKind::Unauthorized, message: message.into() }
}
