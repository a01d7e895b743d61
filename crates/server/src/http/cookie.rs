//! The cookie of a session.

use super::caller::Arrival;
use super::error::ApiError;
use crate::identity::sessions::LONGEST;
use axum::http::{HeaderMap, HeaderValue, header};

/// Beginning of the name of the cookie over TLS. Browsers accept this prefix only over TLS, for one
/// host.
const COOKIE_TLS: &str = "__Host-hindcast";
/// Beginning of the name of the cookie over plain HTTP.
const COOKIE_PLAIN: &str = "hindcast";

/// Returns the name of the cookie. It has the port of the server, because a browser sends the
/// cookies of a host to all ports of it. So two servers on one host do not replace each other's
/// cookie.
fn cookie_name(arrival: Arrival) -> String {
    let begin = if arrival.tls { COOKIE_TLS } else { COOKIE_PLAIN };
    arrival.local.map_or_else(|| begin.to_owned(), |local| format!("{begin}-{}", local.port()))
}

/// Returns the secret of the session in the cookies of a request.
pub(super) fn cookie(headers: &HeaderMap, arrival: Arrival) -> Option<&str> {
    let name = cookie_name(arrival);
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    lines
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find_map(|(key, value)| (key == name).then_some(value))
}

/// Returns the header that sets the cookie. Without a secret it removes the cookie.
pub(super) fn set_cookie(secret: Option<&str>, arrival: Arrival) -> Result<HeaderValue, ApiError> {
    let (name, secure) = (cookie_name(arrival), if arrival.tls { "Secure; " } else { "" });
    let age = if secret.is_some() { LONGEST.as_secs() } else { 0 };
    let value = secret.unwrap_or_default();
    let text = format!("{name}={value}; {secure}HttpOnly; SameSite=Strict; Path=/; Max-Age={age}");
    HeaderValue::from_str(&text).map_err(|e| ApiError::internal(format!("set the cookie: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_among_others() {
        let at = |port| Some(std::net::SocketAddr::from(([127, 0, 0, 1], port)));
        let (tls, plain) = (Arrival { local: at(8440), tls: true }, Arrival { local: at(80), tls: false });
        let mut headers = HeaderMap::new();
        assert_eq!(cookie(&headers, tls), None);
        headers.append(
            header::COOKIE,
            HeaderValue::from_static("a=b; hindcast=old; hindcast-8440=other; hindcast-80=plain"),
        );
        headers.append(
            header::COOKIE,
            HeaderValue::from_static("__Host-hindcast-80=x; __Host-hindcast-8440=secret; c=d"),
        );
        assert_eq!(cookie(&headers, tls), Some("secret"));
        assert_eq!(cookie(&headers, plain), Some("plain"));
        let set = set_cookie(Some("x"), tls).unwrap();
        let expected = "__Host-hindcast-8440=x; Secure; HttpOnly; SameSite=Strict; Path=/; Max-Age=604800";
        assert_eq!(set, expected);
        assert_eq!(
            set_cookie(None, plain).unwrap(),
            "hindcast-80=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0"
        );
    }
}
