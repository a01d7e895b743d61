//! Volumes that requests name by their UUIDs, `uuid:UUID`: the name that the volume has now takes
//! the place of its UUID, in paths and in bodies. So everything behind works with names.

use crate::app::App;
use axum::extract::Request;
use axum::http::Uri;
use hindcast_api::split_uuid;
use hindcast_engine::pool::Pool;
use serde_json::Value;
use uuid::Uuid;

/// The keys of bodies whose values name volumes, or hold objects with such keys.
const KEYS: [&str; 5] = ["volume", "volumes", "snapshots", "add", "remove"];

/// Returns the request with names in its path. It comes before the routing.
pub(super) fn with_names(app: &App, mut request: Request) -> Request {
    if let Some(uri) = renamed_path(&app.pool, request.uri()) {
        *request.uri_mut() = uri;
    }
    request
}

/// Returns the URI with names, if its path has UUIDs of volumes.
fn renamed_path(pool: &Pool, uri: &Uri) -> Option<Uri> {
    let mut is_changed = false;
    let mut segments = Vec::new();
    for segment in uri.path().split('/') {
        let plain = unescaped(segment);
        let name = plain.as_deref().and_then(|plain| named(pool, plain).filter(|name| !name.contains('@')));
        is_changed |= name.is_some();
        // A name needs no escapes.
        segments.push(name.unwrap_or_else(|| segment.to_owned()));
    }
    if !is_changed {
        return None;
    }
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(format!("{}{query}", segments.join("/")).parse().ok()?);
    Uri::from_parts(parts).ok()
}

/// Returns a segment that may be a UUID, with the colon that clients may escape.
fn unescaped(segment: &str) -> Option<String> {
    let rest = segment.strip_prefix("uuid")?;
    let rest =
        rest.strip_prefix(':').or_else(|| rest.strip_prefix("%3A")).or_else(|| rest.strip_prefix("%3a"))?;
    Some(format!("uuid:{rest}"))
}

/// Returns the text with the name of the volume, if it has the UUID of one that exists.
fn named(pool: &Pool, text: &str) -> Option<String> {
    let (uuid, rest) = split_uuid(text)?;
    Some(pool.name_of(Uuid::try_parse(uuid).ok()?)? + rest)
}

/// Puts names into a body. Returns whether anything changed.
pub(super) fn rename_in(pool: &Pool, body: &mut Value) -> bool {
    let Value::Object(fields) = body else { return false };
    let mut is_changed = false;
    for (_, value) in fields.iter_mut().filter(|(key, _)| KEYS.contains(&key.as_str())) {
        is_changed |= rename_value(pool, value);
    }
    is_changed
}

fn rename_value(pool: &Pool, value: &mut Value) -> bool {
    let mut is_changed = false;
    match value {
        Value::String(text) => {
            if let Some(name) = named(pool, text) {
                (*text, is_changed) = (name, true);
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|value| is_changed |= rename_value(pool, value)),
        value => is_changed = rename_in(pool, value),
    }
    is_changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{create, pool};
    use serde_json::json;

    #[test]
    fn paths_and_bodies_get_the_name_of_now() {
        let (_place, pool) = pool();
        let uuid = create(&pool, "db").uuid;
        pool.rename_volume("db", "shop").unwrap();
        let path = |path: &str| renamed_path(&pool, &path.parse().unwrap()).map(|uri| uri.to_string());
        for by in [format!("uuid:{uuid}"), format!("uuid%3A{uuid}"), format!("uuid%3a{uuid}")] {
            let found = path(&format!("/api/v1/volumes/{by}/views?of=1"));
            assert_eq!(found.as_deref(), Some("/api/v1/volumes/shop/views?of=1"), "{by}");
        }
        let other = Uuid::from_u128(7);
        for text in
            ["/", "/api/v1/volumes/db", &format!("/uuid:{other}"), &format!("/uuid:{uuid}@x"), "/uuid%3", "*"]
        {
            assert_eq!(path(text), None, "{text}");
        }
        let by = format!("uuid:{uuid}");
        let mut body = json!({
            "name": by, "volume": format!("{by}@lsn:7"), "volumes": [by, {"volume": by, "name": by}, 7, null],
            "snapshots": [{"volume": by}], "add": [by], "remove": [format!("uuid:{other}")], "labels": {"volume": by},
        });
        assert!(rename_in(&pool, &mut body));
        let expected = json!({
            "name": by, "volume": "shop@lsn:7", "volumes": ["shop", {"volume": "shop", "name": by}, 7, null],
            "snapshots": [{"volume": "shop"}], "add": ["shop"], "remove": [format!("uuid:{other}")],
            "labels": {"volume": by},
        });
        assert_eq!(body, expected);
        assert!(!rename_in(&pool, &mut body));
    }
}
