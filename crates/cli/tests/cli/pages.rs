//! Pages of lists, chosen fields, and entity tags, as a client of the API meets them.

use crate::identity::{Answer, send, token};
use crate::server::Server;
use crate::transport::{Reach, Way, serving};
use serde_json::{Value, json};

/// A server with volumes and snapshots, and a token for it.
fn filled(way: Way, dir: &std::path::Path) -> (Server, Reach, String) {
    let (server, reach) = serving(way, dir, &[]);
    for volume in ["db", "log", "web"] {
        server.ok(&["volume", "create", volume, "--size", "1M"]);
        for n in 0..3 {
            server.ok(&["snapshot", "create", &format!("{volume}@s{n}")]);
        }
    }
    let viewer = token(&server, "viewer", "viewer", &[]);
    (server, reach, viewer)
}

/// The path in the link to the next page.
fn next(answer: &Answer) -> Option<String> {
    let link = answer.header("link")?;
    assert!(link.ends_with("; rel=\"next\""), "{link}");
    Some(link.split(['<', '>']).nth(1).unwrap().to_owned())
}

#[test]
fn a_client_walks_through_pages() {
    for way in Way::ALL {
        let dir = tempfile::tempdir().unwrap();
        let (server, reach, viewer) = filled(way, dir.path());
        let get = |path: &str| send(reach, "GET", path, &[&viewer], None);
        for list in ["snapshots", "volumes/log/snapshots", "volumes"] {
            let whole = get(&format!("/api/v1/{list}"));
            assert!(next(&whole).is_none());
            let whole = whole.json();
            let (mut walked, mut path) = (Vec::new(), Some(format!("/api/v1/{list}?limit=2")));
            while let Some(now) = path {
                let page = get(&now);
                assert_eq!(page.status, 200, "{now}: {}", page.body);
                let entries = page.json().as_array().unwrap().clone();
                assert!(entries.len() == 2 || next(&page).is_none(), "{now}");
                walked.extend(entries);
                path = next(&page);
            }
            assert_eq!(Value::Array(walked), whole, "{way:?} {list}");
        }
        // What is made and deleted between two pages neither repeats nor hides others.
        let first = get("/api/v1/snapshots?limit=4&fields=volume,name");
        assert_eq!(first.json()[3], json!({"volume": "log", "name": "s0"}));
        server.ok(&["snapshot", "delete", "log@s0", "db@s1"]);
        server.ok(&["snapshot", "create", "db@new"]);
        let second = get(&next(&first).unwrap()).json();
        let names: Vec<&str> =
            second.as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["s1", "s2", "s0", "s1"]);
    }
}

#[test]
fn a_response_that_did_not_change_has_no_body() {
    for way in Way::ALL {
        let dir = tempfile::tempdir().unwrap();
        let (server, reach, viewer) = filled(way, dir.path());
        let get =
            |path: &str, more: &[&str]| send(reach, "GET", path, &[&[viewer.as_str()], more].concat(), None);
        for path in ["/api/v1/volumes/db?fields=name,size", "/api/v1/groups", "/api/v1/snapshots?limit=3"] {
            let first = get(path, &[]);
            let tag = format!("If-None-Match: {}", first.header("etag").unwrap());
            let again = get(path, &[&tag]);
            assert_eq!((again.status, again.body.as_str()), (304, ""), "{way:?} {path}");
        }
        let first = get("/api/v1/volumes/db?fields=name,size", &[]);
        assert_eq!(first.body, r#"{"name":"db","size":1048576}"#);
        let tag = format!("If-None-Match: {}", first.header("etag").unwrap());
        server.ok(&["volume", "resize", "db", "--size", "2M"]);
        assert_eq!(get("/api/v1/volumes/db?fields=name,size", &[&tag]).status, 200);
    }
}

#[test]
fn wrong_parameters_are_refused_and_others_pass() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, reach, viewer) = filled(Way::Plain, dir.path());
    let get = |path: &str| send(reach, "GET", path, &[&viewer], None);
    for bad in
        ["volumes?limit=0", "volumes?limit=x", "snapshots?after=db", "volumes?fields=nane", "pool?fields="]
    {
        let answer = get(&format!("/api/v1/{bad}"));
        assert_eq!((answer.status, answer.json()["kind"].as_str()), (400, Some("invalid")), "{bad}");
    }
    // Parameters of the routes themselves.
    assert_eq!(get("/api/v1/events?limit=2&fields=kind,id").json().as_array().unwrap().len(), 2);
    // Without a token nothing is told, not even what is wrong.
    assert_eq!(send(reach, "GET", "/api/v1/volumes?limit=0", &[], None).status, 401);
}
