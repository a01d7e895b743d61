//! What holds for every request and response over TCP: the names of the server, and headers that
//! tell browsers what a page may do.

use super::auditing::Audited;
use super::caller::Arrival;
use super::error::ApiError;
use crate::app::App;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hindcast_api::{API_V1, ErrorBody, ErrorKind};
use std::sync::Arc;

/// Headers of every response.
const HEADERS: [(HeaderName, &str); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];
/// Tells browsers for a year to use TLS for this name.
const STRICT: &str = "max-age=31536000";

/// Handles a request over TCP: checks the name of the server in it, and adds headers to the
/// response.
pub(super) async fn over_tcp(app: Arc<App>, request: Request, next: Next) -> Response {
    let arrival = request.extensions().get::<Arrival>().copied();
    let path = request.uri().path();
    let (is_probe, is_api) = (path == "/healthz", path.starts_with(API_V1));
    let local = arrival.and_then(|arrival| arrival.local);
    // A probe may use any name. It learns no names and no paths.
    let is_ours = is_probe || app.web.is_host(host(&request), local);
    let refused = match ambiguous(&request) {
        Some(header) => Some(twice(header)),
        None => (!is_ours).then(|| wrong_host(host(&request))),
    };
    let mut response = match refused {
        // The guard writes the audit, but does not see this request. The audit counts the request
        // as a refused change, like a request without credentials.
        Some(refused) => Audited::new(&request).close(&app, true, refused).await,
        None => next.run(request).await,
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    if is_api {
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    }
    let signed = || app.web.certificate().is_some_and(|certificate| !certificate.self_signed);
    if arrival.is_some_and(|arrival| arrival.tls) && signed() {
        headers.insert(header::STRICT_TRANSPORT_SECURITY, HeaderValue::from_static(STRICT));
    }
    response
}

/// Returns the name of the server in a request, with its port. HTTP/2 has it in the URI.
pub(super) fn host(request: &Request) -> &str {
    let in_uri = request.uri().authority().map(|authority| authority.as_str());
    let in_header = || request.headers().get(header::HOST).and_then(|value| value.to_str().ok());
    in_uri.or_else(in_header).unwrap_or_default()
}

/// Returns the header of a request that two readers could read in two ways. HTTP/1.1 requests have
/// no repeated lines of these: their bytes are checked before.
fn ambiguous(request: &Request) -> Option<&'static str> {
    if request.headers().get_all(header::AUTHORIZATION).iter().nth(1).is_some() {
        return Some("Authorization");
    }
    let used = host(request);
    let is_other = |value: &HeaderValue| !value.to_str().is_ok_and(|text| text.eq_ignore_ascii_case(used));
    request.headers().get_all(header::HOST).iter().any(is_other).then_some("Host")
}

fn twice(header: &str) -> Response {
    let why = format!("use the admin API: the request has more than one value of {header}");
    ApiError::new(ErrorKind::Invalid, why).into_response()
}

fn wrong_host(host: &str) -> Response {
    let shown: String = host.chars().take(80).collect();
    let message = format!(
        "use the admin API as {shown:?}: this is not a name of the server; use an address on which it listens, or start it with --api-host NAME"
    );
    let body = ErrorBody { kind: ErrorKind::Forbidden, message };
    (StatusCode::MISDIRECTED_REQUEST, ApiError::from(body)).into_response()
}
