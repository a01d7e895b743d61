//! The headers of requests, for fuzz targets.

use super::caller::Arrival;
use super::{cookie, events, guard};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use std::net::SocketAddr;

/// What the server reads from the headers of a request: the secret of the session over plain HTTP
/// and over TLS, the bearer token, and the number of the last event.
#[derive(Debug, Default)]
pub struct HeaderValues {
    /// Secret of the session, over plain HTTP.
    pub plain: Option<String>,
    /// Secret of the session, over TLS.
    pub tls: Option<String>,
    /// Bearer token.
    pub token: Option<String>,
    /// Number of the last event that the client has seen.
    pub event: Option<u64>,
}

/// Reads these values of the headers Cookie, Authorization and Last-Event-ID. A value that no
/// header can have is left out.
pub(crate) fn read(cookies: &[&[u8]], authorization: &[u8], event: &[u8]) -> HeaderValues {
    let mut headers = HeaderMap::new();
    let mut add = |name: HeaderName, value: &[u8]| {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.append(name, value);
        }
    };
    cookies.iter().for_each(|value| add(header::COOKIE, value));
    add(header::AUTHORIZATION, authorization);
    add(HeaderName::from_static("last-event-id"), event);
    let arrival = |tls| Arrival { local: Some(SocketAddr::from(([127, 0, 0, 1], 8440))), tls };
    let secret = |tls| cookie::cookie(&headers, arrival(tls)).map(str::to_owned);
    HeaderValues {
        plain: secret(false),
        tls: secret(true),
        token: guard::bearer(&headers).map(str::to_owned),
        event: events::last_seen(&headers),
    }
}
