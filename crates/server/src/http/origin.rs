//! The defence against requests that pages of other sites make a browser send (CSRF).
//!
//! A browser adds the cookie of a session by itself. So a request with a cookie that changes
//! something must show that it comes from a page of this server.

use super::caller::Arrival;
use super::policy::host;
use axum::extract::Request;
use axum::http::{HeaderName, Method, header};

/// Where a request comes from, as the browser says.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Checks a request with the cookie of a session.
pub(super) fn check_with_cookie(request: &Request, arrival: Arrival) -> Result<(), &'static str> {
    if [Method::GET, Method::HEAD].contains(request.method()) {
        return Ok(());
    }
    if !is_json(request) {
        return Err("change something with a session: the request needs Content-Type: application/json");
    }
    let own = match text(request, &FETCH_SITE) {
        Some(site) => site == "same-origin",
        None => text(request, &header::ORIGIN).is_some_and(|origin| is_own(request, origin, arrival.tls)),
    };
    match own {
        true => Ok(()),
        false => Err("change something with a session: the request does not come from a page of this server"),
    }
}

/// Checks a request that needs no credentials, for example a log-in. A browser must not send it for
/// a page of another site. Other programs do not say where it comes from.
pub(super) fn check_without_cookie(request: &Request) -> Result<(), &'static str> {
    if [Method::GET, Method::HEAD].contains(request.method()) {
        return Ok(());
    }
    if !is_json(request) {
        return Err("log in: the request needs Content-Type: application/json");
    }
    let tls = request.extensions().get::<Arrival>().is_some_and(|arrival| arrival.tls);
    let foreign = match (text(request, &FETCH_SITE), text(request, &header::ORIGIN)) {
        (Some(site), _) => site != "same-origin",
        (None, Some(origin)) => !is_own(request, origin, tls),
        (None, None) => false,
    };
    match foreign {
        false => Ok(()),
        true => Err("log in: the request does not come from a page of this server"),
    }
}

fn text<'r>(request: &'r Request, name: &HeaderName) -> Option<&'r str> {
    // A value that is no text counts as one that is none of ours.
    request.headers().get(name).map(|value| value.to_str().unwrap_or("?"))
}

fn is_json(request: &Request) -> bool {
    let kind = text(request, &header::CONTENT_TYPE).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

/// Returns whether `origin` is this server, by the name in the request.
fn is_own(request: &Request, origin: &str, tls: bool) -> bool {
    let scheme = if tls { "https" } else { "http" };
    origin.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://")) == Some(host(request))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn request(method: &str, headers: &[(&str, &str)]) -> Request {
        let mut request = Request::builder().method(method).uri("/api/v1/x").header("host", "h:1");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap()
    }

    #[test]
    fn a_cookie_counts_only_for_pages_of_this_server() {
        let plain = Arrival { local: None, tls: false };
        let json = ("content-type", "application/json; charset=utf-8");
        let check = |headers: &[(&str, &str)]| check_with_cookie(&request("POST", headers), plain).is_ok();
        assert!(check_with_cookie(&request("GET", &[]), plain).is_ok());
        assert!(check(&[json, ("sec-fetch-site", "same-origin")]));
        assert!(check(&[json, ("origin", "http://h:1")]));
        for bad in [
            &[json][..],
            &[("sec-fetch-site", "same-origin")],
            &[("content-type", "text/plain"), ("sec-fetch-site", "same-origin")],
            &[json, ("sec-fetch-site", "cross-site")],
            &[json, ("sec-fetch-site", "none")],
            &[json, ("sec-fetch-site", "same-site"), ("origin", "http://h:1")],
            &[json, ("origin", "https://h:1")],
            &[json, ("origin", "http://h:1.evil.example")],
            &[json, ("origin", "null")],
        ] {
            assert!(!check(bad), "{bad:?}");
        }
        assert!(check_with_cookie(&request("DELETE", &[]), plain).is_err());
    }

    #[test]
    fn a_program_logs_in_and_a_foreign_page_does_not() {
        let json = ("content-type", "application/json");
        let check = |headers: &[(&str, &str)]| check_without_cookie(&request("POST", headers)).is_ok();
        assert!(check(&[json]) && check(&[json, ("origin", "http://h:1")]));
        assert!(check(&[json, ("sec-fetch-site", "same-origin")]));
        assert!(!check(&[]) && !check(&[json, ("sec-fetch-site", "cross-site")]));
        assert!(!check(&[json, ("origin", "http://evil.example")]));
    }
}
