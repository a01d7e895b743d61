//! Errors as responses ([`ApiError`]), and extractors that reject bad requests with such errors.

use super::written;
use crate::convert::error_body;
use axum::body::Bytes;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hindcast_api::{ErrorBody, ErrorKind};
use hindcast_engine::Error;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// The error of a handler.
#[derive(Debug)]
pub(crate) struct ApiError {
    body: ErrorBody,
    /// HTTP status. `None`: the status that belongs to the kind of the error.
    status: Option<StatusCode>,
    /// Seconds after which another attempt makes sense, for a response with status 429 or 503.
    wait: u64,
}

impl ApiError {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        ErrorBody { kind, message: message.into() }.into()
    }

    /// Returns the error for a connection beyond the limit.
    pub(crate) fn full() -> Self {
        let body = ErrorBody {
            kind: ErrorKind::Busy,
            message: "use the admin API: too many connections are in use; try again later".into(),
        };
        ApiError { body, status: Some(StatusCode::SERVICE_UNAVAILABLE), wait: 1 }
    }

    /// Returns the error for a response that finds no room beside those that clients are reading.
    pub(crate) fn no_room() -> Self {
        let body = ErrorBody {
            kind: ErrorKind::Busy,
            message: "send the response: clients hold too many responses that they have not read; read them, or try again later".into(),
        };
        ApiError { body, status: Some(StatusCode::SERVICE_UNAVAILABLE), wait: 1 }
    }

    /// Returns the error for a wrong token while the server delays the responses to many other
    /// wrong tokens.
    pub(crate) fn guessing() -> Self {
        let body = ErrorBody {
            kind: ErrorKind::Busy,
            message: "use the admin API: the bearer token is wrong, and many requests had a wrong one; wait a second".into(),
        };
        ApiError { body, status: Some(StatusCode::TOO_MANY_REQUESTS), wait: 1 }
    }

    /// Returns the error for a log-in after too many that failed.
    pub(crate) fn later(wait: Duration) -> Self {
        let seconds = wait.as_secs() + 1;
        let message = format!("log in: too many log-ins failed; try again in {seconds} s");
        let body = ErrorBody { kind: ErrorKind::Busy, message };
        ApiError { body, status: Some(StatusCode::TOO_MANY_REQUESTS), wait: seconds }
    }

    /// Makes an error that the request itself caused. The response has status 400, whatever the
    /// kind of `error` is.
    pub(crate) fn of_request(error: Error) -> Self {
        ApiError { body: error_body(error), status: Some(StatusCode::BAD_REQUEST), wait: 1 }
    }

    pub(crate) fn no_such_path() -> Self {
        Self::new(ErrorKind::NotFound, "the admin API has no such path")
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        error_body(error).into()
    }
}

impl From<ErrorBody> for ApiError {
    fn from(body: ErrorBody) -> Self {
        ApiError { body, status: None, wait: 1 }
    }
}

impl From<JsonRejection> for ApiError {
    fn from(rejection: JsonRejection) -> Self {
        Self::new(ErrorKind::Invalid, rejection.body_text())
    }
}

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        Self::new(ErrorKind::Invalid, rejection.body_text())
    }
}

impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> Self {
        Self::new(ErrorKind::Invalid, rejection.body_text())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let ErrorBody { kind, message } = &self.body;
        match kind {
            _ if self.status.is_some() => tracing::debug!(?kind, message, "request refused"),
            ErrorKind::Io
            | ErrorKind::Corrupt
            | ErrorKind::Lost
            | ErrorKind::Poisoned
            | ErrorKind::Internal => {
                tracing::error!(?kind, message, "request failed");
            }
            _ => tracing::debug!(?kind, message, "request refused"),
        }
        let unauthorized = *kind == ErrorKind::Unauthorized;
        let told = self.body.clone();
        let status = self.status.or_else(|| StatusCode::from_u16(kind.http_status()).ok());
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(self.body)).into_response();
        // The audit reads it.
        response.extensions_mut().insert(told);
        let headers = response.headers_mut();
        if unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        let no_business = [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS];
        // A pool that refuses writes has the same status, and no time after which it accepts them.
        if self.status.is_some() && no_business.contains(&status) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(self.wait));
        }
        if unauthorized || no_business.contains(&status) {
            // The connection of a client that is not served makes room for others.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// A JSON body of a request or response.
#[derive(FromRequest)]
#[from_request(via(axum::Json), rejection(ApiError))]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: serde::Serialize + Send + 'static> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let failed = |error| ApiError::internal(format!("write the response: {error}")).into_response();
        written::json(self.0).unwrap_or_else(failed)
    }
}

/// A JSON body that contains secrets. An error reports where the body is wrong and repeats nothing
/// of it.
pub(crate) struct Confidential<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Confidential<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let body = Bytes::from_request(request, state).await;
        let body = body.map_err(|e| ApiError::new(ErrorKind::Invalid, e.body_text()))?;
        serde_json::from_slice(&body).map(Confidential).map_err(|e| {
            let place = format!("line {}, column {}", e.line(), e.column());
            ApiError::new(
                ErrorKind::Invalid,
                format!("the body does not match the schema of this request: {place}"),
            )
        })
    }
}

/// Parameters in the path of a request.
#[derive(FromRequestParts)]
#[from_request(via(axum::extract::Path), rejection(ApiError))]
pub(crate) struct Path<T>(pub(crate) T);

/// Parameters in the query of a request.
#[derive(FromRequestParts)]
#[from_request(via(axum::extract::Query), rejection(ApiError))]
pub(crate) struct Query<T>(pub(crate) T);
