//! Volumes that requests name by their UUIDs, `uuid:UUID`: the name that the volume has now takes
//! the place of its UUID, in paths and in bodies. So everything behind works with names. The volume
//! keeps its name until the request has ended.

use super::error::ApiError;
use crate::app::App;
use crate::held_names::Held;
use axum::extract::Request;
use axum::http::Uri;
use hindcast_api::{ErrorKind, split_uuid};
use hindcast_engine::pool::Pool;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// Time between two looks at a volume that is losing its name.
const AGAIN: Duration = Duration::from_millis(5);
/// Longest time that a request waits for the name of a volume.
const PATIENCE: Duration = Duration::from_secs(10);

/// The keys of bodies whose values name volumes, or hold objects with such keys.
const KEYS: [&str; 5] = ["volume", "volumes", "snapshots", "add", "remove"];

/// Volumes that a request names by their UUIDs, with their names.
type Found = Vec<(Uuid, String)>;

/// Returns the request with names in its path. It comes before the routing. The request has the
/// names that it holds as an extension.
pub(super) async fn with_names(app: &App, mut request: Request) -> Result<Request, ApiError> {
    let held = Arc::<Held>::default();
    let uri = request.uri();
    if let Some(uri) = settled(app, &held, |found| renamed_path(&app.pool, uri, found)).await? {
        *request.uri_mut() = uri;
    }
    request.extensions_mut().insert(held);
    Ok(request)
}

/// Puts names into a body, and lets the request hold them. Returns whether anything changed.
pub(super) async fn settle_body(app: &App, held: &Held, body: &mut Value) -> Result<bool, ApiError> {
    let given = body.clone();
    let rename = |found: &mut Found| {
        let mut renamed = given.clone();
        rename_in(&app.pool, &mut renamed, found).then_some(renamed)
    };
    let renamed = settled(app, held, rename).await?;
    Ok(renamed.map(|renamed| *body = renamed).is_some())
}

/// Replaces UUIDs with names, until the volumes had these names all the time and the request holds
/// them.
async fn settled<T>(
    app: &App,
    held: &Held,
    replace: impl Fn(&mut Found) -> Option<T>,
) -> Result<Option<T>, ApiError> {
    let end = Instant::now() + PATIENCE;
    loop {
        let mut found = Found::new();
        let replaced = replace(&mut found);
        if app.held_names.hold(&app.pool, held, &found) {
            return Ok(replaced);
        }
        if Instant::now() >= end {
            let text = "find a volume by its UUID: its name is being changed; try again later";
            return Err(ApiError::new(ErrorKind::Busy, text));
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Returns the URI with names, if its path has UUIDs of volumes.
fn renamed_path(pool: &Pool, uri: &Uri, found: &mut Found) -> Option<Uri> {
    let mut is_changed = false;
    let mut segments = Vec::new();
    for segment in uri.path().split('/') {
        let plain = unescaped(segment);
        let plain = plain.filter(|plain| !plain.contains('@'));
        let name = plain.as_deref().and_then(|plain| named(pool, plain, found));
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
fn named(pool: &Pool, text: &str, found: &mut Found) -> Option<String> {
    let (uuid, rest) = split_uuid(text)?;
    let uuid = Uuid::try_parse(uuid).ok()?;
    let name = pool.name_of(uuid)?;
    found.push((uuid, name.clone()));
    Some(name + rest)
}

/// Puts names into a body. Returns whether anything changed.
fn rename_in(pool: &Pool, body: &mut Value, found: &mut Found) -> bool {
    let Value::Object(fields) = body else { return false };
    let mut is_changed = false;
    for (_, value) in fields.iter_mut().filter(|(key, _)| KEYS.contains(&key.as_str())) {
        is_changed |= rename_value(pool, value, found);
    }
    is_changed
}

fn rename_value(pool: &Pool, value: &mut Value, found: &mut Found) -> bool {
    let mut is_changed = false;
    match value {
        Value::String(text) => {
            if let Some(name) = named(pool, text, found) {
                (*text, is_changed) = (name, true);
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|value| is_changed |= rename_value(pool, value, found)),
        value => is_changed = rename_in(pool, value, found),
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
        let path = |path: &str| {
            let mut found = Found::new();
            let renamed = renamed_path(&pool, &path.parse().unwrap(), &mut found);
            let expected = if renamed.is_some() { vec![(uuid, "shop".to_owned())] } else { Found::new() };
            assert_eq!(found, expected);
            renamed.map(|uri| uri.to_string())
        };
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
        let mut found = Found::new();
        assert!(rename_in(&pool, &mut body, &mut found));
        assert_eq!(found, vec![(uuid, "shop".to_owned()); 5]);
        let expected = json!({
            "name": by, "volume": "shop@lsn:7", "volumes": ["shop", {"volume": "shop", "name": by}, 7, null],
            "snapshots": [{"volume": "shop"}], "add": ["shop"], "remove": [format!("uuid:{other}")],
            "labels": {"volume": by},
        });
        assert_eq!(body, expected);
        assert!(!rename_in(&pool, &mut body, &mut found));
    }
}
