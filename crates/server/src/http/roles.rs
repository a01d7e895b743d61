//! The roles that the routes of the admin API need, and the volumes that they concern.
//!
//! The table has one row for each route. A route without a row is refused, and a test finds it.

use crate::identity::principal::{Principal, VolumeScope, forbidden};
use hindcast_api::{API_V1, ErrorBody, Role};
use serde_json::Value;

/// What a caller needs for a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// No credentials.
    Nothing,
    /// Credentials of any role.
    Identity,
    /// This role, or one that covers it.
    Role(Role),
    /// The role operator, or viewer with the right to create views.
    Views,
}

/// The part of the server that a route concerns. It decides whether a caller with a scope of
/// volumes may use the route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// Nothing that a scope protects.
    Nothing,
    /// The volumes that the request names at these places.
    Volumes(&'static [Mention]),
    /// The whole server. A caller with a scope may not use the route.
    Server,
}

/// A place of a request that mentions a volume, or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mention {
    /// The parameter of the path with this name.
    Path(&'static str),
    /// The values of this key of the body, or of keys below it: `snapshots.volume`. The key may be
    /// absent.
    Body(&'static str),
}

/// A route of the admin API, and what it needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// Method in capital letters. A HEAD request counts as GET.
    pub(super) method: &'static str,
    /// Template of the path. The prefix `/api/v1` is left out.
    pub(super) path: &'static str,
    pub(super) needs: Needs,
    pub(super) reach: Reach,
}

const VIEWER: Needs = Needs::Role(Role::Viewer);
const OPERATOR: Needs = Needs::Role(Role::Operator);
const ADMIN: Needs = Needs::Role(Role::Admin);

/// Name of the parameter that the guard adds to those of a route's path: the volume of the view
/// that the path names.
pub(super) const VOLUME_OF_VIEW: &str = "volume of the view";

const SERVER: Reach = Reach::Server;
/// The volume of the view in the path.
pub(super) const VIEW: Reach = Reach::Volumes(&[Mention::Path(VOLUME_OF_VIEW)]);
const NAME: Reach = Reach::Volumes(&[Mention::Path("name")]);
const VOLUME: Reach = Reach::Volumes(&[Mention::Path("volume")]);
/// A volume in the path, and the name of another one in the body.
const VOLUME_AND_NAME: Reach = Reach::Volumes(&[Mention::Path("volume"), Mention::Body("name")]);

const fn row(method: &'static str, path: &'static str, needs: Needs, reach: Reach) -> Row {
    Row { method, path, needs, reach }
}

/// All routes, by path.
///
/// Rows with the role operator lose nothing. Some of their handlers require the role admin for
/// requests that do: see `by_body.rs`.
pub(super) const ROWS: &[Row] = &[
    row("POST", "/access/links", VIEWER, SERVER),
    row("GET", "/access/sessions", ADMIN, SERVER),
    row("DELETE", "/access/sessions/{id}", ADMIN, SERVER),
    row("GET", "/access/tokens", ADMIN, SERVER),
    row("POST", "/access/tokens", ADMIN, SERVER),
    row("DELETE", "/access/tokens/{name}", ADMIN, SERVER),
    row("GET", "/access/users", ADMIN, SERVER),
    row("POST", "/access/users", ADMIN, SERVER),
    row("PATCH", "/access/users/{name}", ADMIN, SERVER),
    row("DELETE", "/access/users/{name}", ADMIN, SERVER),
    row("GET", "/activity", VIEWER, SERVER),
    row("GET", "/audit", ADMIN, SERVER),
    row("GET", "/audit/verification", ADMIN, SERVER),
    row("GET", "/clients", VIEWER, SERVER),
    row("DELETE", "/clients/{id}", ADMIN, SERVER),
    row("GET", "/events", VIEWER, SERVER),
    row("GET", "/groups", VIEWER, SERVER),
    row("POST", "/groups", OPERATOR, SERVER),
    row("GET", "/groups/{name}", VIEWER, SERVER),
    row("PATCH", "/groups/{name}", OPERATOR, SERVER),
    row("DELETE", "/groups/{name}", ADMIN, SERVER),
    row("GET", "/health", VIEWER, Reach::Nothing),
    row("GET", "/healthz", Needs::Nothing, Reach::Nothing),
    row("POST", "/imports", OPERATOR, SERVER),
    row("GET", "/instance", Needs::Nothing, Reach::Nothing),
    row("GET", "/live", VIEWER, SERVER),
    row("POST", "/marks", OPERATOR, Reach::Volumes(&[Mention::Body("volumes")])),
    row("GET", "/metrics", Needs::Role(Role::Metrics), SERVER),
    row("GET", "/nbd-access", VIEWER, SERVER),
    row("POST", "/nbd-access/rules", ADMIN, SERVER),
    row("DELETE", "/nbd-access/rules/{number}", ADMIN, SERVER),
    row("POST", "/notify/test", OPERATOR, SERVER),
    row("GET", "/openapi.json", Needs::Nothing, Reach::Nothing),
    row("GET", "/pool", VIEWER, SERVER),
    row("PATCH", "/pool", ADMIN, SERVER),
    row("POST", "/pool/backups", OPERATOR, SERVER),
    row("GET", "/pool/clock", VIEWER, SERVER),
    row("POST", "/pool/clock/confirmation", ADMIN, SERVER),
    row("GET", "/pool/damage", VIEWER, SERVER),
    row("GET", "/pool/features", VIEWER, SERVER),
    row("GET", "/pool/pvs", VIEWER, SERVER),
    row("POST", "/pool/pvs", ADMIN, SERVER),
    row("POST", "/pool/layouts", ADMIN, SERVER),
    row("PATCH", "/pool/members/{member}", ADMIN, SERVER),
    row("GET", "/pool/spares", VIEWER, SERVER),
    row("POST", "/pool/spares", ADMIN, SERVER),
    row("DELETE", "/pool/spares/{spare}", ADMIN, SERVER),
    row("PATCH", "/pool/pvs/{pv}", ADMIN, SERVER),
    row("POST", "/pool/pvs/{pv}/grow", ADMIN, SERVER),
    row("DELETE", "/pool/pvs/{pv}", ADMIN, SERVER),
    row("GET", "/pool/rebalance", VIEWER, SERVER),
    row("POST", "/pool/rebalance", OPERATOR, SERVER),
    row("DELETE", "/pool/rebalance", OPERATOR, SERVER),
    row("GET", "/pool/scrub", VIEWER, SERVER),
    row("POST", "/pool/scrub", OPERATOR, SERVER),
    row("PATCH", "/pool/scrub", OPERATOR, SERVER),
    row("DELETE", "/pool/scrub", OPERATOR, SERVER),
    row("GET", "/pool/trace", VIEWER, SERVER),
    row("POST", "/pool/trace", ADMIN, SERVER),
    row("DELETE", "/pool/trace", ADMIN, SERVER),
    row("POST", "/pool/upgrade", ADMIN, SERVER),
    row(
        "POST",
        "/recoveries",
        OPERATOR,
        Reach::Volumes(&[Mention::Body("volumes.volume"), Mention::Body("volumes.name")]),
    ),
    row("POST", "/recoveries/in-place", ADMIN, Reach::Volumes(&[Mention::Body("volumes")])),
    row("GET", "/schedules", VIEWER, SERVER),
    row("POST", "/schedules", OPERATOR, SERVER),
    row("GET", "/schedules/{name}", VIEWER, SERVER),
    row("PATCH", "/schedules/{name}", OPERATOR, SERVER),
    row("DELETE", "/schedules/{name}", ADMIN, SERVER),
    row("GET", "/session", Needs::Identity, Reach::Nothing),
    row("POST", "/session", Needs::Nothing, Reach::Nothing),
    row("DELETE", "/session", Needs::Identity, Reach::Nothing),
    row("GET", "/snapshots", VIEWER, SERVER),
    row("POST", "/snapshots", OPERATOR, Reach::Volumes(&[Mention::Body("snapshots.volume")])),
    row("GET", "/status", VIEWER, Reach::Nothing),
    row("GET", "/target-defaults", VIEWER, SERVER),
    row("PUT", "/target-defaults/chap", ADMIN, SERVER),
    row("DELETE", "/target-defaults/chap", ADMIN, SERVER),
    row("DELETE", "/target-defaults/chap/{user}", ADMIN, SERVER),
    row("POST", "/target-defaults/rules", ADMIN, SERVER),
    row("DELETE", "/target-defaults/rules/{number}", ADMIN, SERVER),
    row("GET", "/targets", VIEWER, SERVER),
    row("POST", "/targets", ADMIN, SERVER),
    row("GET", "/targets/{target}", VIEWER, SERVER),
    row("PATCH", "/targets/{target}", ADMIN, SERVER),
    row("DELETE", "/targets/{target}", ADMIN, SERVER),
    row("PUT", "/targets/{target}/chap", ADMIN, SERVER),
    row("DELETE", "/targets/{target}/chap", ADMIN, SERVER),
    row("DELETE", "/targets/{target}/chap/{user}", ADMIN, SERVER),
    row("POST", "/targets/{target}/luns", ADMIN, SERVER),
    row("DELETE", "/targets/{target}/luns/{lun}", ADMIN, SERVER),
    row("DELETE", "/targets/{target}/reservations", ADMIN, SERVER),
    row("POST", "/targets/{target}/rules", ADMIN, SERVER),
    row("DELETE", "/targets/{target}/rules/{number}", ADMIN, SERVER),
    row("GET", "/tasks", VIEWER, SERVER),
    row("DELETE", "/tasks/{id}", OPERATOR, SERVER),
    row("GET", "/trash", VIEWER, SERVER),
    row("DELETE", "/trash/{id}", ADMIN, SERVER),
    row("POST", "/trash/{id}/restore", OPERATOR, SERVER),
    row("GET", "/views", VIEWER, SERVER),
    row("GET", "/views/{id}", VIEWER, VIEW),
    row("PATCH", "/views/{id}", Needs::Views, VIEW),
    row("DELETE", "/views/{id}", Needs::Views, VIEW),
    // Files are the data itself, as an export is.
    row("GET", "/views/{id}/file", Needs::Views, VIEW),
    row("GET", "/views/{id}/files", Needs::Views, VIEW),
    row("GET", "/views/{id}/partitions", Needs::Views, VIEW),
    row("GET", "/volumes", VIEWER, SERVER),
    row("POST", "/volumes", OPERATOR, Reach::Volumes(&[Mention::Body("name")])),
    row("GET", "/volumes/{name}", VIEWER, NAME),
    row(
        "PATCH",
        "/volumes/{name}",
        OPERATOR,
        Reach::Volumes(&[Mention::Path("name"), Mention::Body("name")]),
    ),
    row("DELETE", "/volumes/{name}", ADMIN, NAME),
    row("GET", "/volumes/{name}/stats", VIEWER, NAME),
    row("GET", "/volumes/{volume}/activity", VIEWER, VOLUME),
    row("GET", "/volumes/{volume}/cdp", VIEWER, VOLUME),
    row("GET", "/volumes/{volume}/cdp/measured", VIEWER, VOLUME),
    row("GET", "/volumes/{volume}/changed", VIEWER, VOLUME),
    row("GET", "/volumes/{volume}/changes", VIEWER, VOLUME),
    row("GET", "/volumes/{volume}/difference", VIEWER, VOLUME),
    row("GET", "/volumes/{volume}/flatten", VIEWER, VOLUME),
    row("POST", "/volumes/{volume}/flatten", OPERATOR, VOLUME),
    row("DELETE", "/volumes/{volume}/flatten", OPERATOR, VOLUME),
    row("GET", "/volumes/{volume}/history", VIEWER, VOLUME),
    row("GET", "/volumes/{volume}/import", VIEWER, VOLUME),
    row("DELETE", "/volumes/{volume}/import", OPERATOR, VOLUME),
    row("POST", "/volumes/{volume}/marks", OPERATOR, VOLUME),
    row("DELETE", "/volumes/{volume}/marks/{mark}", ADMIN, VOLUME),
    row("GET", "/volumes/{volume}/moments/{moment}", VIEWER, VOLUME),
    row("GET", "/volumes/{volume}/nbd-access", VIEWER, VOLUME),
    row("POST", "/volumes/{volume}/nbd-access/rules", ADMIN, VOLUME),
    row("DELETE", "/volumes/{volume}/nbd-access/rules/{number}", ADMIN, VOLUME),
    row("GET", "/volumes/{volume}/relocation", VIEWER, VOLUME),
    row("POST", "/volumes/{volume}/relocation", OPERATOR, VOLUME),
    row("DELETE", "/volumes/{volume}/relocation", OPERATOR, VOLUME),
    row("GET", "/volumes/{volume}/snapshots", VIEWER, VOLUME),
    row("POST", "/volumes/{volume}/snapshots/delete", ADMIN, VOLUME),
    row("GET", "/volumes/{volume}/snapshots/{snapshot}", VIEWER, VOLUME),
    row(
        "PATCH",
        "/volumes/{volume}/snapshots/{snapshot}",
        OPERATOR,
        Reach::Volumes(&[Mention::Path("volume"), Mention::Body("clone")]),
    ),
    row("POST", "/volumes/{volume}/snapshots/{snapshot}/clones", OPERATOR, VOLUME_AND_NAME),
    // An export is the data itself, which a viewer does not read.
    row("GET", "/volumes/{volume}/snapshots/{snapshot}/export", OPERATOR, VOLUME),
    row("POST", "/volumes/{volume}/snapshots/{snapshot}/rollback", ADMIN, VOLUME),
    row("GET", "/volumes/{volume}/timeline", VIEWER, VOLUME),
    row("POST", "/volumes/{volume}/views", Needs::Views, VOLUME),
];

/// Returns the path of a route without the prefix of versioned routes.
fn short(path: &str) -> &str {
    path.strip_prefix(API_V1).unwrap_or(path)
}

/// Returns the row of a route. `path` is its template, with its prefix.
pub(super) fn find(method: &str, path: &str) -> Option<&'static Row> {
    let method = if method == "HEAD" { "GET" } else { method };
    ROWS.iter().find(|row| row.method == method && row.path == short(path))
}

/// Returns whether a path needs a row. Other paths are those of a console: its files need no
/// credentials.
pub(super) fn needs_row(path: &str) -> bool {
    ["/api/", "/metrics", "/healthz"].iter().any(|part| path.starts_with(part))
}

/// Returns whether the table has a row for this path, whatever the method.
pub(super) fn knows_path(path: &str) -> bool {
    ROWS.iter().any(|row| row.path == short(path))
}

impl Row {
    /// Returns whether the body of a request is a stream of any length. The guard reads other
    /// bodies whole.
    pub(super) fn streams(&self) -> bool {
        self.path == "/imports"
    }

    /// Returns whether a request of this route is possible while the audit can't be written: it
    /// reads, or it lets an administrator in who can mend that.
    pub(super) fn is_harmless(&self) -> bool {
        self.method == "GET" || self.path == "/session"
    }

    /// Checks that `caller` may use the route for this request. `parameters` are those of the path.
    /// `body` is the JSON body; it is only read if the caller has a scope.
    pub(super) fn admit(
        &self,
        caller: &Principal,
        parameters: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<(), ErrorBody> {
        let shown = || format!("{} {}", self.method, self.path);
        match self.needs {
            Needs::Role(role) => caller.require(role, &shown())?,
            Needs::Views if caller.views => caller.require(Role::Viewer, &shown())?,
            Needs::Views => caller.require(Role::Operator, &shown())?,
            Needs::Nothing | Needs::Identity => {}
        }
        if caller.scope == VolumeScope::All {
            return Ok(());
        }
        let places = match self.reach {
            Reach::Nothing => return Ok(()),
            Reach::Server => {
                let message = format!(
                    "{}: {caller} has a scope of volumes, and this concerns the whole server",
                    shown()
                );
                return Err(forbidden(message));
            }
            Reach::Volumes(places) => places,
        };
        for place in places {
            match place {
                Mention::Path(name) => {
                    let value = parameters.iter().find(|(key, _)| key == name);
                    caller.require_volume(value.map_or("", |(_, value)| value))?;
                }
                Mention::Body(keys) => {
                    let body = body.ok_or_else(|| forbidden(format!("{}: the body is not JSON", shown())))?;
                    let names = named_at(body, keys)
                        .ok_or_else(|| forbidden(format!("{}: the body has no names of volumes", shown())))?;
                    names.into_iter().try_for_each(|name| caller.require_volume(name))?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the strings at a place in a JSON value. `keys` are separated by dots. Each element of an
/// array counts. Returns `None` if something else than an object or a string is there: a list could
/// stand for an object, by the order of its fields.
fn named_at<'v>(value: &'v Value, keys: &str) -> Option<Vec<&'v str>> {
    match value {
        Value::Array(elements) => {
            let all = elements.iter().map(|element| match element {
                Value::Array(_) => None,
                element => named_at(element, keys),
            });
            Some(all.collect::<Option<Vec<_>>>()?.concat())
        }
        Value::String(text) if keys.is_empty() => Some(vec![text]),
        Value::Object(fields) if !keys.is_empty() => {
            let (key, rest) = keys.split_once('.').unwrap_or((keys, ""));
            fields.get(key).map_or_else(|| Some(Vec::new()), |value| named_at(value, rest))
        }
        Value::Null => Some(Vec::new()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_api::PrincipalKind;
    use serde_json::json;
    use std::collections::BTreeSet;

    fn scoped(role: Role) -> Principal {
        let scope = VolumeScope::Volumes(vec!["db*".into()]);
        Principal { scope, ..Principal::new(PrincipalKind::Token, "ci", role) }
    }

    #[test]
    fn every_route_has_a_row_and_every_row_a_route() {
        let document: Value = serde_json::from_str(&super::super::routes::document()).unwrap();
        let methods = ["get", "put", "post", "delete", "patch", "head", "options", "trace"];
        let documented: BTreeSet<(String, String)> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, item)| {
                let here = item.as_object().unwrap().keys().filter(|key| methods.contains(&key.as_str()));
                here.map(|method| (short(path).to_owned(), method.to_uppercase())).collect::<Vec<_>>()
            })
            // The document does not describe itself.
            .chain([("/openapi.json".to_owned(), "GET".to_owned())])
            .collect();
        let rows: BTreeSet<(String, String)> =
            ROWS.iter().map(|row| (row.path.to_owned(), row.method.to_owned())).collect();
        let missing: Vec<_> = documented.difference(&rows).collect();
        assert!(missing.is_empty(), "routes without a row: {missing:?}");
        let stale: Vec<_> = rows.difference(&documented).collect();
        assert!(stale.is_empty(), "rows without a route: {stale:?}");
        assert_eq!(rows.len(), ROWS.len(), "a route has two rows");
    }

    #[test]
    fn a_mention_in_the_path_is_a_parameter_of_the_path() {
        for row in ROWS {
            let Reach::Volumes(places) = row.reach else { continue };
            for place in places {
                let of_view = *place == Mention::Path(VOLUME_OF_VIEW);
                assert_eq!(of_view, row.path.starts_with("/views/"), "{row:?}");
                if let Mention::Path(name) = place
                    && !of_view
                {
                    assert!(row.path.contains(&format!("{{{name}}}")), "{row:?}");
                }
            }
            assert!(!places.is_empty() && !row.streams(), "{row:?}");
        }
    }

    #[test]
    fn what_takes_away_needs_an_admin() {
        // These DELETE requests stop work that can begin again.
        let stops =
            ["/pool/rebalance", "/pool/scrub", "/volumes/{volume}/flatten", "/volumes/{volume}/relocation"];
        let cancels = ["/volumes/{volume}/import", "/tasks/{id}"];
        let own = ["/session", "/access/links"];
        let others = || ROWS.iter().filter(|row| !own.contains(&row.path));
        for row in others().filter(|row| row.method == "DELETE") {
            let harmless = stops.contains(&row.path) || cancels.contains(&row.path);
            let needs = match harmless {
                true => OPERATOR,
                // Whoever may create a view may end it.
                false if row.path == "/views/{id}" => Needs::Views,
                false => ADMIN,
            };
            assert_eq!(row.needs, needs, "{row:?}");
        }
        for row in others().filter(|row| row.method != "GET") {
            // A view changes nothing that others see.
            let is_view = row.needs == Needs::Views && row.path.contains("/views");
            assert!(row.needs == OPERATOR || row.needs == ADMIN || is_view, "{row:?}");
        }
    }

    /// A list could stand for an object, by the order of its fields.
    #[test]
    fn a_list_in_place_of_an_object_has_no_names() {
        let named = |value: Value, keys: &str| {
            named_at(&value, keys).map(|names| names.into_iter().map(str::to_owned).collect::<Vec<_>>())
        };
        let good = serde_json::json!({ "snapshots": [{ "volume": "db" }, { "volume": "log" }] });
        assert_eq!(named(good, "snapshots.volume"), Some(vec!["db".to_owned(), "log".to_owned()]));
        for bad in
            [serde_json::json!({ "snapshots": [["secret", "s"]] }), serde_json::json!({ "snapshots": 7 })]
        {
            assert_eq!(named(bad, "snapshots.volume"), None);
        }
        assert_eq!(named(serde_json::json!({ "volumes": [["secret"]] }), "volumes"), None);
        assert_eq!(named(serde_json::json!({}), "clone"), Some(Vec::new()), "it may be absent");
    }

    #[test]
    fn a_viewer_creates_views_if_its_token_says_so() {
        let row = find("POST", "/api/v1/volumes/{volume}/views").unwrap();
        let try_it = |caller: &Principal, volume| row.admit(caller, &[("volume", volume)], None).is_ok();
        let plain = scoped(Role::Viewer);
        let with_views = Principal { views: true, ..scoped(Role::Viewer) };
        assert_eq!((try_it(&plain, "db1"), try_it(&with_views, "db1")), (false, true));
        assert!(!try_it(&with_views, "log"), "it is outside the scope");
        assert!(try_it(&scoped(Role::Operator), "db1"));
        let metrics = Principal { views: true, ..Principal::new(PrincipalKind::Token, "m", Role::Metrics) };
        assert!(!try_it(&metrics, "db1"));
        // It creates nothing else.
        let snapshots = find("POST", "/api/v1/volumes/{volume}/marks").unwrap();
        assert!(snapshots.admit(&with_views, &[("volume", "db1")], None).is_err());
    }

    #[test]
    fn a_scope_holds_for_the_path_and_the_body() {
        let none: [(&str, &str); 0] = [];
        let caller = scoped(Role::Admin);
        let admit = |method, path, parameters: &[(&'static str, &'static str)], body: Option<Value>| {
            find(method, path).unwrap().admit(&caller, parameters, body.as_ref())
        };
        assert!(admit("GET", "/api/v1/status", &none, None).is_ok());
        assert!(admit("GET", "/api/v1/volumes", &none, None).is_err(), "a list");
        assert!(admit("GET", "/metrics", &none, None).is_err());
        for (volume, allowed) in [("db1", true), ("log", false), ("uuid:db", false)] {
            assert_eq!(admit("DELETE", "/api/v1/volumes/{name}", &[("name", volume)], None).is_ok(), allowed);
            assert!(admit("POST", "/api/v1/snapshots", &none, None).is_err(), "no JSON");
            let both = json!({"snapshots": [{"volume": "db"}, {"volume": volume}]});
            assert_eq!(admit("POST", "/api/v1/snapshots", &none, Some(both)).is_ok(), allowed, "{volume}");
            let clones = "/api/v1/volumes/{volume}/snapshots/{snapshot}/clones";
            let clone = json!({"name": volume});
            let from = [("volume", "db"), ("snapshot", "s")];
            assert_eq!(admit("POST", clones, &from, Some(clone)).is_ok(), allowed, "{volume}");
        }
    }

    #[test]
    fn a_head_request_is_a_get_request() {
        assert_eq!(find("HEAD", "/api/v1/pool").map(|row| row.method), Some("GET"));
        assert!(find("PUT", "/api/v1/pool").is_none() && knows_path("/api/v1/pool"));
        assert!(!knows_path("/api/v1/nothing"));
        assert!(
            ROWS.iter().all(|row| { needs_row(row.path) || needs_row(&format!("{API_V1}{}", row.path)) })
        );
        assert!(!needs_row("/") && !needs_row("/assets/{*path}"));
    }
}
