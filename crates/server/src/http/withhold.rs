//! What a caller with a scope of volumes does not see: the names of other volumes in responses.
//!
//! A volume of the scope can have an origin, clones and problems that name others. The table of
//! roles keeps such a caller from all lists. This module takes the names out of the rest, for all
//! routes at once.

use crate::app::App;
use crate::identity::principal::{Principal, VolumeScope};
use axum::body::{Body, Bytes};
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Keys of texts that are the name of a volume, or an address in it. The text is removed.
const OPTIONAL: [&str; 4] = ["after_moment", "origin", "parent", "writable"];
/// Key of users' own words, which are not names of volumes.
const LABELS: &str = "labels";
/// Keys of lists of names of volumes.
const LISTS: [&str; 1] = ["clones"];
/// Keys of lists of what depends on a volume.
const DEPENDENTS: &str = "dependents";
/// Key of the problems of the health.
const PROBLEMS: &str = "problems";
/// Text in place of what a problem says.
const HIDDEN: &str = "a caller with a scope of volumes sees only the code of a problem";

/// The filter of the response to one request.
#[derive(Clone)]
pub(super) struct Withhold {
    caller: Arc<Principal>,
    /// What the request itself says. Its caller knows these names.
    asked: String,
}

impl Withhold {
    /// Makes the filter for a request. `None`: its caller sees everything that its role allows.
    pub(super) fn of(caller: &Arc<Principal>, uri: &Uri, body: Option<&Value>) -> Option<Withhold> {
        if caller.scope == VolumeScope::All {
            return None;
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        Some(Withhold { caller: caller.clone(), asked: format!("{} {body}", uri) })
    }

    /// Takes out of a response what the caller must not see. Bodies that are no JSON are those of
    /// a volume of the scope.
    pub(super) async fn filter(self, app: &Arc<App>, response: Response) -> Response {
        let is_json = |value: &axum::http::HeaderValue| value.as_bytes().starts_with(b"application/json");
        if !response.headers().get(CONTENT_TYPE).is_some_and(is_json) {
            return response;
        }
        let (mut parts, body) = response.into_parts();
        let Ok(bytes) = axum::body::to_bytes(body, usize::MAX).await else {
            return Response::from_parts(parts, Body::empty());
        };
        let (app, is_error) = (app.clone(), !parts.status.is_success());
        let work = move || crate::realtime::lowered(|| self.filtered(&app, &bytes, is_error));
        // A response that can't be filtered is not sent.
        let bytes = tokio::task::spawn_blocking(work).await.ok().flatten().unwrap_or_default();
        parts.headers.remove(axum::http::header::CONTENT_LENGTH);
        Response::from_parts(parts, Body::from(bytes))
    }

    fn filtered(&self, app: &App, bytes: &[u8], is_error: bool) -> Option<Bytes> {
        let mut value: Value = serde_json::from_slice(bytes).ok()?;
        match is_error {
            true => self.hide_reason(&mut value, &names(app)),
            false => {
                self.hide_names(&mut value);
                let covered = || app.pool.volumes().iter().filter(|v| self.covers(&v.name)).count();
                // The number of volumes in the status.
                if let Some(number) = value.get_mut("volumes").filter(|number| number.is_number()) {
                    *number = json!(covered());
                }
            }
        }
        serde_json::to_vec(&value).ok().map(Bytes::from)
    }

    fn covers(&self, name: &str) -> bool {
        self.caller.scope.covers(name)
    }

    /// Returns whether a name or an address is one of the scope. A path is none of a volume.
    fn may_see(&self, text: &str) -> bool {
        text.starts_with('/') || self.covers(text.split('@').next().unwrap_or(text))
    }

    /// Replaces the message of an error that names a volume outside of the scope. The name of a
    /// snapshot, which follows an `@`, is none.
    fn hide_reason(&self, error: &mut Value, names: &BTreeSet<String>) {
        let Some(Value::String(message)) = error.get_mut("message") else { return };
        let is_in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@');
        let mut words = message.split(|c| !is_in_name(c)).map(|word| word.split('@').next().unwrap_or(word));
        let is_foreign = |word: &str| {
            // A full stop can follow a name.
            let word = if names.contains(word) { word } else { word.trim_end_matches('.') };
            names.contains(word) && !self.covers(word) && !self.asked.contains(word)
        };
        if words.any(is_foreign) {
            *message = format!("the reason concerns other volumes, which {} may not see", self.caller);
        }
    }

    fn hide_names(&self, value: &mut Value) {
        match value {
            Value::Array(elements) => elements.iter_mut().for_each(|element| self.hide_names(element)),
            Value::Object(fields) => self.hide_fields(fields),
            _ => {}
        }
    }

    fn hide_fields(&self, fields: &mut Map<String, Value>) {
        let hides =
            |value: &Value| value.as_str().is_some_and(|text| !text.is_empty() && !self.may_see(text));
        if fields.get("volume").is_some_and(hides) {
            for key in ["volume", "snapshot", "address"] {
                if let Some(value) = fields.get_mut(key).filter(|value| value.is_string()) {
                    *value = json!("");
                }
            }
        }
        for (key, value) in fields {
            match value {
                value if OPTIONAL.contains(&key.as_str()) && hides(value) => *value = Value::Null,
                Value::Array(all) if LISTS.contains(&key.as_str()) => all.retain(|name| !hides(name)),
                Value::Array(all) if key == DEPENDENTS => {
                    // The name of a view is that of its creator.
                    all.retain(|of| of["kind"] == "view" || !hides(&of["name"]));
                }
                Value::Array(all) if key == PROBLEMS => {
                    all.iter_mut().for_each(|problem| problem["message"] = json!(HIDDEN));
                }
                _ if key == LABELS => {}
                value => self.hide_names(value),
            }
        }
    }
}

/// Returns the names of all volumes, also of those in the trash.
fn names(app: &App) -> BTreeSet<String> {
    let volumes = app.pool.volumes().into_iter().map(|volume| volume.name);
    volumes.chain(app.pool.trash().into_iter().map(|gone| gone.volume.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_api::{PrincipalKind, Role};

    fn withhold(asked: &str) -> Withhold {
        let scope = VolumeScope::Volumes(vec!["db*".into()]);
        let caller = Principal { scope, ..Principal::new(PrincipalKind::Token, "ci", Role::Admin) };
        Withhold { caller: Arc::new(caller), asked: asked.into() }
    }

    #[test]
    fn names_of_other_volumes_are_taken_out() {
        let mut value = json!([{
            "name": "db", "origin": "sekrit@s", "parent": "db@monday", "writable": "sekrit.s", "labels": {"a": "b"},
            "clones": ["db2", "sekrit", "db3"], "inherited": {"volume": "sekrit", "rules": 1},
            "dependents": [{"kind": "clone", "name": "sekrit"}, {"kind": "view", "name": "mine"}, {"kind": "recovered", "name": "db4"}],
            "problems": [{"code": "history-short", "message": "the history of volume sekrit"}],
        }, {"origin": {"kind": "snapshot", "volume": "sekrit", "snapshot": "sekrit-s"}}, {"origin": "/srv/a.img"}]);
        withhold("").hide_names(&mut value);
        let text = value.to_string();
        assert!(!text.contains("sekrit"), "{text}");
        let first = &value[0];
        assert_eq!((&first["origin"], &first["parent"]), (&Value::Null, &json!("db@monday")));
        assert_eq!(first["clones"], json!(["db2", "db3"]));
        assert_eq!(first["dependents"].as_array().unwrap().len(), 2);
        assert_eq!(first["problems"][0]["code"], "history-short");
        assert_eq!(value[2]["origin"], "/srv/a.img");
    }

    #[test]
    fn a_reason_with_another_volume_is_not_told() {
        let names: BTreeSet<String> = ["db", "db.s", "sekrit", "a.b"].map(str::to_owned).into();
        let shown = |asked: &str, message: &str| {
            let mut error = json!({"kind": "conflict", "message": message});
            withhold(asked).hide_reason(&mut error, &names);
            error["message"].as_str().unwrap() == message
        };
        for bad in
            ["the clone sekrit is there", "sekrit@s", "(sekrit)", "rests on sekrit.", "use a.b, please"]
        {
            assert!(!shown("/volumes/db", bad), "{bad}");
        }
        for good in ["volume db.s and db are busy.", "find db@sekrit: none", "sekrits", "no volume"] {
            assert!(shown("/volumes/db", good), "{good}");
        }
        assert!(shown("/volumes/sekrit", "use volume sekrit: it is outside the scope"));
    }
}
