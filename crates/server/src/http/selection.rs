//! What every request of GET may ask of its response: a page of a list, some fields only, and no
//! body if nothing changed.

use super::described::Described;
use super::error::ApiError;
use super::pages::{NextPage, Page, list_of};
use super::written::SHORT;
use crate::identity::secret::Hash;
use crate::realtime;
use axum::body::{Body, Bytes};
use axum::extract::{Query, Request};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use hindcast_api::{ErrorKind, percent_encoded};
use hyper::body::Body as _;
use serde_json::Value;

/// Parameters of every route of GET.
const FIELDS: &str = "fields";
/// Parameters of the routes of lists.
const LIMIT: &str = "limit";
const AFTER: &str = "after";
/// Number of hexadecimal digits in an entity tag.
const TAG_DIGITS: usize = 32;

/// What a request asks of its response.
#[derive(Debug)]
pub(super) struct Selection {
    page: Page,
    /// `None`: all fields.
    fields: Option<Vec<String>>,
    /// Entity tags of the responses that the client has.
    known: Vec<String>,
    /// Path and query of the next page, but for its `after`.
    next: String,
}

/// The parameters of a query that this module handles.
#[derive(Default)]
struct Parameters {
    limit: Option<String>,
    after: Option<String>,
    fields: Option<String>,
}

impl Selection {
    /// Takes the parameters out of a request, so that its handler does not see them. `path` is the
    /// path of its route, without the prefix of versioned routes. `None`: the request is not one of
    /// GET.
    pub(super) fn take(
        request: &mut Request,
        path: &str,
        described: &Described,
    ) -> Result<Option<Selection>, ApiError> {
        if request.method() != Method::GET {
            return Ok(None);
        }
        let list = list_of(path);
        let (parameters, rest) = split(request.uri(), list.is_some())?;
        let fields = match &parameters.fields {
            Some(text) => Some(described.check_fields(path, text)?),
            None => None,
        };
        let page = match list {
            Some(list) => Page::new(list, parameters.limit.as_deref(), parameters.after.as_deref())?,
            None => Page::default(),
        };
        let own = request.uri().path().to_owned();
        let with = |query: &[String]| match query.is_empty() {
            true => own.clone(),
            false => format!("{own}?{}", query.join("&")),
        };
        let kept = [("limit", &parameters.limit), ("fields", &parameters.fields)];
        let kept =
            kept.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", encoded(value.as_ref()?))));
        let next = with(&rest.iter().cloned().chain(kept).collect::<Vec<_>>());
        if let Ok(uri) = with(&rest).parse::<Uri>() {
            let mut parts = request.uri().clone().into_parts();
            parts.path_and_query = uri.into_parts().path_and_query;
            let uri = Uri::from_parts(parts);
            *request.uri_mut() = uri.map_err(|e| ApiError::internal(format!("read the query: {e}")))?;
        }
        let known = known(request.headers());
        request.extensions_mut().insert(page.clone());
        Ok(Some(Selection { page, fields, known, next }))
    }

    /// Applies this to a response.
    pub(super) async fn apply(self, mut response: Response) -> Response {
        let is_json = |value: &HeaderValue| value.as_bytes().starts_with(b"application/json");
        let is_whole = response.body().size_hint().exact().is_some();
        let kind = response.headers().get(header::CONTENT_TYPE);
        if response.status() != StatusCode::OK || !is_whole || !kind.is_some_and(is_json) {
            return response;
        }
        let next = response.extensions_mut().remove::<NextPage>();
        let (mut parts, body) = response.into_parts();
        let Ok(bytes) = axum::body::to_bytes(body, usize::MAX).await else {
            return Response::from_parts(parts, Body::empty());
        };
        let known = self.known.clone();
        let done = match bytes.len() <= SHORT {
            true => self.selected(bytes, next),
            false => {
                let work = move || realtime::lowered(|| self.selected(bytes, next));
                tokio::task::spawn_blocking(work).await.ok().flatten()
            }
        };
        let Some(Selected { bytes, tag, link }) = done else {
            return ApiError::internal("cut the response to what was asked").into_response();
        };
        parts.headers.remove(header::CONTENT_LENGTH);
        let is_known = known.iter().any(|known| *known == tag || known == "*");
        parts.headers.extend(HeaderValue::from_str(&tag).ok().map(|tag| (header::ETAG, tag)));
        let link = link.and_then(|link| HeaderValue::from_str(&link).ok());
        parts.headers.extend(link.map(|link| (header::LINK, link)));
        if is_known {
            parts.status = StatusCode::NOT_MODIFIED;
            parts.headers.remove(header::CONTENT_TYPE);
            return Response::from_parts(parts, Body::empty());
        }
        Response::from_parts(parts, Body::from(bytes))
    }

    /// Returns the body that was asked for. `next`: the handler has cut the page. `None`: the body
    /// is no JSON.
    fn selected(&self, mut bytes: Bytes, next: Option<NextPage>) -> Option<Selected> {
        let cuts = self.page.is_asked() && next.is_none();
        let mut next = next.and_then(|NextPage(next)| next);
        if cuts || self.fields.is_some() {
            let mut value: Value = serde_json::from_slice(&bytes).ok()?;
            if let Value::Array(all) = &mut value {
                if cuts {
                    let (page, NextPage(after)) = self.page.cut_json(std::mem::take(all));
                    (*all, next) = (page, after);
                }
                all.iter_mut().for_each(|entry| self.keep_fields(entry));
            }
            self.keep_fields(&mut value);
            bytes = serde_json::to_vec(&value).ok()?.into();
        }
        let link = next.map(|after| {
            let separator = if self.next.contains('?') { '&' } else { '?' };
            format!("<{}{separator}after={}>; rel=\"next\"", self.next, encoded(&after))
        });
        let whole = Hash::of(
            &[Hash::of(&bytes).0, Hash::of(link.as_deref().unwrap_or_default().as_bytes()).0].concat(),
        );
        let digits: String = whole.text().chars().take(TAG_DIGITS).collect();
        Some(Selected { bytes, tag: format!("\"{digits}\""), link })
    }

    fn keep_fields(&self, value: &mut Value) {
        if let (Some(fields), Value::Object(entry)) = (&self.fields, value) {
            entry.retain(|key, _| fields.contains(key));
        }
    }
}

/// A body, its entity tag, and the link to the next page.
struct Selected {
    bytes: Bytes,
    tag: String,
    link: Option<String>,
}

/// Splits a query into the parameters of this module, and the rest as it was.
fn split(uri: &Uri, is_list: bool) -> Result<(Parameters, Vec<String>), ApiError> {
    let (mut parameters, mut rest) = (Parameters::default(), Vec::new());
    for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let name = pair.split('=').next().unwrap_or_default();
        let place = match name {
            FIELDS => &mut parameters.fields,
            LIMIT if is_list => &mut parameters.limit,
            AFTER if is_list => &mut parameters.after,
            _ => {
                rest.push(pair.to_owned());
                continue;
            }
        };
        let decoded = decoded(pair).filter(|_| place.is_none());
        let wrong = || {
            ApiError::new(ErrorKind::Invalid, format!("read the query: {name} is there twice, or no text"))
        };
        *place = Some(decoded.ok_or_else(wrong)?);
    }
    Ok((parameters, rest))
}

/// Returns the value in `key=value`, with its percent-encoding undone.
fn decoded(pair: &str) -> Option<String> {
    let uri = format!("/?{pair}").parse().ok()?;
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(&uri).ok()?;
    pairs.into_iter().next().map(|(_, value)| value)
}

/// Returns a value for a query.
fn encoded(text: &str) -> String {
    percent_encoded(text, b",:/")
}

/// Returns the entity tags in the header If-None-Match.
fn known(headers: &HeaderMap) -> Vec<String> {
    let lines = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|line| line.to_str().ok());
    let tags = lines.flat_map(|line| line.split(',')).map(|tag| tag.trim().trim_start_matches("W/"));
    tags.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use serde_json::json;

    fn described() -> Described {
        Described::of(&json!({
            "paths": {
                "/api/v1/volumes": { "get": { "responses": { "200": { "content": { "application/json": {
                    "schema": { "type": "array", "items": { "$ref": "#/components/schemas/V" } } } } } } } },
                "/api/v1/pool": { "get": { "responses": { "200": { "content": { "application/json": {
                    "schema": { "$ref": "#/components/schemas/V" } } } } } } },
                "/healthz": { "get": { "responses": { "200": { "content": { "text/plain": {
                    "schema": { "type": "string" } } } } } } },
            },
            "components": { "schemas": { "V": { "type": "object", "properties": { "name": {}, "size": {} } } } },
        }))
    }

    async fn ask(uri: &str, headers: &[(&str, &str)], body: Value) -> (u16, HeaderMap, String, String) {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::empty()).unwrap();
        let path = request.uri().path().trim_start_matches("/api/v1").to_owned();
        let selection = Selection::take(&mut request, &path, &described()).unwrap().unwrap();
        let response = selection.apply(crate::http::error::Json(body).into_response()).await;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        (
            parts.status.as_u16(),
            parts.headers,
            String::from_utf8(bytes.to_vec()).unwrap(),
            request.uri().to_string(),
        )
    }

    fn volumes() -> Value {
        json!([{"name": "b", "size": 2}, {"name": "a", "size": 1}, {"name": "c"}])
    }

    #[tokio::test]
    async fn without_parameters_a_response_is_as_it_was() {
        let (status, headers, body, uri) = ask("/api/v1/volumes?x=1", &[], volumes()).await;
        assert_eq!((status, body, uri.as_str()), (200, volumes().to_string(), "/api/v1/volumes?x=1"));
        assert!(!headers.contains_key("link") && headers.contains_key("etag"));
    }

    #[tokio::test]
    async fn a_page_has_a_link_to_the_next_one() {
        let uri = "/api/v1/volumes?x=%20&limit=2&fields=size,name";
        let (_, headers, body, seen) = ask(uri, &[], volumes()).await;
        assert_eq!(body, r#"[{"name":"a","size":1},{"name":"b","size":2}]"#);
        assert_eq!(seen, "/api/v1/volumes?x=%20");
        let link = headers["link"].to_str().unwrap();
        assert_eq!(link, "</api/v1/volumes?x=%20&limit=2&fields=size,name&after=b>; rel=\"next\"");
        let next = link.split(['<', '>']).nth(1).unwrap();
        let (_, headers, body, _) = ask(next, &[], volumes()).await;
        assert_eq!((body.as_str(), headers.contains_key("link")), (r#"[{"name":"c"}]"#, false));
    }

    #[tokio::test]
    async fn a_known_response_has_no_body() {
        let tag = |headers: &HeaderMap| headers["etag"].to_str().unwrap().to_owned();
        let (_, first, ..) = ask("/api/v1/pool", &[], json!({"size": 1})).await;
        let first = tag(&first);
        for known in [first.clone(), format!("\"x\", W/{first}"), "*".into()] {
            let (status, headers, body, _) =
                ask("/api/v1/pool", &[("if-none-match", &known)], json!({"size": 1})).await;
            assert_eq!((status, body.as_str(), tag(&headers)), (304, "", first.clone()), "{known}");
        }
        let (status, second, ..) =
            ask("/api/v1/pool", &[("if-none-match", &first)], json!({"size": 2})).await;
        assert!(status == 200 && tag(&second) != first);
        // The page is the same, and there is a next one now.
        let one = json!([{"name": "a"}]);
        let two = json!([{"name": "a"}, {"name": "b"}]);
        let (_, alone, ..) = ask("/api/v1/volumes?limit=1", &[], one).await;
        let (_, followed, ..) = ask("/api/v1/volumes?limit=1", &[], two).await;
        assert_ne!(tag(&alone), tag(&followed));
    }

    #[test]
    fn wrong_parameters_are_refused() {
        for bad in [
            "/api/v1/volumes?fields=",
            "/api/v1/volumes?fields=name,nane",
            "/api/v1/volumes?limit=1&limit=2",
            "/api/v1/volumes?limit=%ff",
            "/healthz?fields=name",
        ] {
            let mut request = Request::builder().uri(bad).body(Body::empty()).unwrap();
            let path = request.uri().path().trim_start_matches("/api/v1").to_owned();
            assert!(Selection::take(&mut request, &path, &described()).is_err(), "{bad}");
        }
    }
}
