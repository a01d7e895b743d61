//! What a caller with a scope, or with the role operator, can't learn and can't do.

use crate::identity::{send, token, with_tcp};
use crate::server::Server;
use serde_json::{Value, json};
use std::net::SocketAddr;

/// Makes volumes of a scope `db*` that are entangled with others. The names of these have `sekrit`
/// in them.
fn entangled(server: &Server) {
    for volume in ["db", "sekrit"] {
        server.ok(&["volume", "create", volume, "--size", "1M", "--cdp", "parity"]);
    }
    for snapshot in ["sekrit@s", "db@s", "db@w"] {
        server.ok(&["snapshot", "create", snapshot, "--no-hooks"]);
    }
    server.ok(&["clone", "create", "sekrit@s", "db2"]);
    server.ok(&["clone", "create", "db@s", "sekrit2"]);
    server.ok(&["snapshot", "set", "db@w", "--writable", "--clone", "sekrit3"]);
    server.ok(&["volume", "create", "sekrit4", "--size", "1M"]);
    server.ok(&["volume", "delete", "sekrit4"]);
    server.ok(&["recover", "db", "--to", "s", "--as", "sekrit5"]);
    // Its runs fail, because of the hook of the volume.
    server.ok(&["schedule", "create", "hourly", "sekrit", "--every", "10s"]);
    let health = || server.json(&["status"])["health"].to_string();
    for _ in 0..200 {
        if health().contains("sekrit") {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("the health names no volume: {}", health());
}

/// All routes of the API for GET, with these values for their parameters.
fn questions(address: SocketAddr) -> Vec<String> {
    let document = send(address, "GET", "/api/v1/openapi.json", &[], None).json();
    let mut paths = Vec::new();
    for (template, item) in document["paths"].as_object().unwrap() {
        let Some(get) = item.get("get") else { continue };
        let required = get["parameters"].as_array().into_iter().flatten();
        let required = required.filter(|p| p["in"] == "query" && p["required"] == true);
        let query: Vec<String> =
            required.map(|p| format!("{}={}", p["name"].as_str().unwrap(), "s")).collect();
        for volume in ["db", "db2", "sekrit", "db-none"] {
            for moment in ["s", "w", "none"] {
                let path = template
                    .replace("{volume}", volume)
                    .replace("{snapshot}", moment)
                    .replace("{moment}", moment)
                    .replace("{name}", volume);
                let path = path.replace(['{', '}'], "");
                let path = if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) };
                paths.push(path);
            }
        }
    }
    paths.sort();
    paths.dedup();
    assert!(paths.len() > 100, "{}", paths.len());
    paths
}

#[test]
fn a_scope_hides_the_names_of_other_volumes() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.toml");
    std::fs::write(&config, "[hooks.sekrit]\nbefore = \"test -e sekrit-go\"\nafter = \"true\"\n").unwrap();
    let (server, address) = with_tcp(dir.path(), &["--config", config.to_str().unwrap()]);
    entangled(&server);
    let whole = token(&server, "whole", "admin", &[]);
    let scoped = token(&server, "ci", "admin", &["--volumes", "db*"]);
    let (mut leaks, mut known, mut served) = (Vec::new(), 0, 0);
    for path in questions(address) {
        let ask = |token: &str| send(address, "GET", &path, &[token], None);
        let (seen, all) = (ask(&scoped), ask(&whole));
        served += u32::from(seen.status == 200);
        known += u32::from(seen.status == 200 && all.body.contains("sekrit"));
        // What a refusal repeats of the request is known to the caller.
        if !path.contains("sekrit") && (seen.body.contains("sekrit") || seen.head.contains("sekrit")) {
            leaks.push(format!("{path}: {} {}", seen.head, seen.body));
        }
    }
    assert!(leaks.is_empty(), "{}", leaks.join("\n"));
    assert!(served > 30, "{served} requests were answered");
    assert!(known >= 6, "without the scope, {known} responses have the name");

    // The default name of a clone is in the scope of all of db*, and not in that of db alone.
    let narrow = token(&server, "narrow", "operator", &["--volumes", "db"]);
    let writable = json!({"writable": true});
    let make = |token: &str| {
        send(address, "PATCH", "/api/v1/volumes/db/snapshots/s", &[token], Some(&writable)).status
    };
    assert_eq!((make(&narrow), make(&scoped)), (403, 200));

    // Changes, and errors that would name another volume.
    for (method, path, body) in [
        ("PATCH", "/volumes/db/snapshots/w", json!({"writable": true, "clone": "db9"})),
        ("PATCH", "/volumes/db/snapshots/w", json!({"labels": {"a": "b"}})),
        ("DELETE", "/volumes/db", json!({})),
        ("DELETE", "/volumes/db?now=true", json!({})),
        ("POST", "/volumes/db/snapshots/delete", json!({"names": ["s", "w"]})),
        ("POST", "/volumes/db2/flatten", json!({})),
        ("DELETE", "/volumes/db2/flatten", json!({})),
        ("POST", "/volumes/db/snapshots/s/clones", json!({"name": "db2"})),
        ("PATCH", "/volumes/db2", json!({"name": "db"})),
        ("POST", "/volumes/db/views", json!({"moment": "w"})),
        ("POST", "/volumes/db2/snapshots/s/rollback", json!({})),
    ] {
        let answer = send(address, method, &format!("/api/v1{path}"), &[&scoped], Some(&body));
        let text = format!("{method} {path}: {} {}", answer.head, answer.body);
        assert!(!text.contains("sekrit") && answer.status != 401, "{text}");
    }
}

#[test]
fn a_list_in_place_of_an_object_does_not_get_past_a_scope() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = with_tcp(dir.path(), &[]);
    server.ok(&["volume", "create", "sekrit", "--size", "1M"]);
    let scoped = token(&server, "ci", "operator", &["--volumes", "db*"]);
    for (body, status) in [
        (json!([[["sekrit", "s"]]]), 400),
        (json!([{"snapshots": [{"volume": "sekrit", "name": "s"}]}]), 400),
        (json!({"snapshots": [["sekrit", "s"]]}), 403),
        (json!({"snapshots": {"volume": "sekrit", "name": "s"}}), 403),
    ] {
        let answer = send(address, "POST", "/api/v1/snapshots", &[&scoped], Some(&body));
        assert_eq!(answer.status, status, "{body}: {}", answer.body);
    }
    assert_eq!(server.json(&["snapshot", "list", "sekrit"]), json!([]));
}

#[test]
fn an_operator_cannot_delete_snapshots_by_a_schedule_or_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = with_tcp(dir.path(), &[]);
    server.ok(&["volume", "create", "db", "--size", "1M"]);
    server.ok(&["snapshot", "create", "db@auto-20260101T000000Z"]);
    server.ok(&["snapshot", "create", "db@precious"]);
    server.ok(&["schedule", "create", "kept", "db", "--every", "1h"]);
    server.ok(&["schedule", "create", "pruned", "db", "--every", "1h", "--keep-last", "3"]);
    let operator = token(&server, "o", "operator", &[]);
    let ask = |method: &str, path: &str, body: Value| {
        send(address, method, &format!("/api/v1{path}"), &[&operator], Some(&body)).status
    };
    let create = |name: &str, prefix: &str, keep: Value| {
        ask(
            "POST",
            "/schedules",
            json!({"name": name, "prefix": prefix, "volumes": ["db"], "every": 3600, "keep": keep}),
        )
    };
    assert_eq!(create("a", "auto", json!({"last": 1})), 403, "its prefix fits a snapshot that is there");
    assert_eq!(create("b", "other", json!({"last": 1})), 201);
    assert_eq!(create("c", "auto", json!({})), 201, "it deletes none");
    for keep in [json!({"last": 1}), json!({})] {
        assert_eq!(ask("PATCH", "/schedules/kept", json!({"keep": keep})), 403);
    }
    assert_eq!(ask("PATCH", "/schedules/pruned", json!({"every": 10})), 403, "it pushes older ones out");
    assert_eq!(ask("PATCH", "/schedules/kept", json!({"every": 60})), 200);
    server.ok(&["volume", "create", "mail", "--size", "1M"]);
    server.ok(&["group", "create", "office", "mail"]);
    server.ok(&["snapshot", "create", "mail@pruned-old"]);
    server.ok(&["snapshot", "create", "mail@kept-old"]);
    for patch in [json!({"add": ["mail"]}), json!({"add_groups": ["office"]})] {
        assert_eq!(ask("PATCH", "/schedules/pruned", patch.clone()), 403, "it would delete mail@pruned-old");
        assert_eq!(ask("PATCH", "/schedules/kept", patch), 200);
    }
    server.ok(&["volume", "create", "log", "--size", "1M"]);
    assert_eq!(ask("PATCH", "/schedules/pruned", json!({"add": ["log"], "remove": ["db"]})), 200);
    assert_eq!(ask("PATCH", "/schedules/pruned", json!({"paused": true})), 200);
    let precious = "/volumes/db/snapshots/precious";
    assert_eq!(
        ask("PATCH", precious, json!({"name": "pruned-20260101T000000Z"})),
        403,
        "a schedule deletes by name"
    );
    assert_eq!(ask("PATCH", "/volumes/db", json!({"auto_delete": true})), 403);
    let names: Vec<String> = server
        .json(&["snapshot", "list", "db"])
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["auto-20260101T000000Z", "precious"]);
}
