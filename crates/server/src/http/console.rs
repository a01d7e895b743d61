//! The console's files, for browsers. They need no credentials: the pages ask the API, which does.

use super::error::ApiError;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// How long a browser keeps a file whose name has a hash of its content: a year.
const FOR_EVER: &str = "public, max-age=31536000, immutable";

/// Answers a request that is for no route: with a file of the console, or with an error.
pub(super) async fn answer(request: Request) -> Response {
    let nothing = || ApiError::no_such_path().into_response();
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return nothing();
    }
    let Some(asset) = hindcast_console::find(request.uri().path()) else { return nothing() };
    let keep = if asset.immutable { FOR_EVER } else { "no-cache" };
    let headers = [
        (header::CONTENT_TYPE, asset.content_type),
        (header::ETAG, asset.etag),
        (header::CACHE_CONTROL, keep),
    ];
    match has(request.headers(), asset.etag) {
        true => (StatusCode::NOT_MODIFIED, headers).into_response(),
        false => (headers, Body::from(asset.bytes)).into_response(),
    }
}

/// Returns whether the browser has this version of a file.
fn has(headers: &HeaderMap, etag: &str) -> bool {
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok()).unwrap_or("");
    known.split(',').any(|known| known.trim().trim_start_matches("W/") == etag)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(method: Method, path: &str, known: &str) -> (StatusCode, HeaderMap) {
        let request = Request::builder().method(method).uri(path).header(header::IF_NONE_MATCH, known);
        let response = answer(request.body(Body::empty()).unwrap()).await;
        (response.status(), response.headers().clone())
    }

    #[tokio::test]
    async fn pages_are_files_and_nothing_else_is() {
        for path in ["/", "/index.html", "/volumes/db"] {
            let (status, headers) = ask(Method::GET, path, "").await;
            assert_eq!(
                (status, &headers[header::CACHE_CONTROL]),
                (StatusCode::OK, &"no-cache".parse().unwrap())
            );
            assert!(headers[header::CONTENT_TYPE].to_str().unwrap().starts_with("text/html"));
            let etag = headers[header::ETAG].to_str().unwrap();
            assert_eq!(ask(Method::GET, path, &format!("\"x\", W/{etag}")).await.0, StatusCode::NOT_MODIFIED);
        }
        for (method, path) in
            [(Method::POST, "/"), (Method::GET, "/api/v1/nothing"), (Method::GET, "/assets/x.js")]
        {
            assert_eq!(ask(method, path, "").await.0, StatusCode::NOT_FOUND, "{path}");
        }
    }
}
