//! Views: moments that stay for as long as their leases.

use super::server::Server;
use serde_json::json;

#[test]
fn a_view_stays_over_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_with(dir.path(), &["--nbd", "127.0.0.1:0"]);
    server.ok(&["volume", "create", "db", "--size", "1M"]);
    server.ok(&["volume", "set", "db", "--cdp", "parity"]);
    server.ok(&["mark", "db", "here"]);
    server.ok(&["snapshot", "create", "db@monday"]);
    let view = server.json(&["view", "create", "db@here", "--lease", "2h", "--name", "audit"]);
    let id = view["id"].as_str().unwrap();
    let lsn = view["lsn"].as_u64().unwrap();
    assert_eq!((&view["address"], &view["name"]), (&json!(format!("db@lsn:{lsn}")), &json!("audit")));
    assert!(view["nbd"][0].as_str().unwrap().contains(&format!("/db@lsn:{lsn}")), "{view}");
    assert!(view["commands"].as_array().unwrap().len() >= 3, "{view}");
    let of_snapshot = server.json(&["view", "create", "db@monday"]);
    assert_eq!((&of_snapshot["address"], &of_snapshot["lsn"]), (&json!("db@monday"), &json!(null)));
    // The timeline shows both at their moments.
    let timeline = server.http("GET", "/api/v1/volumes/db/timeline", "").1;
    let timeline: serde_json::Value = serde_json::from_str(&timeline).unwrap();
    let of = |view: &serde_json::Value, name: &serde_json::Value| json!({ "kind": "view", "name": name, "time": view["time"], "lsn": view["lsn"] });
    let expected = json!([of(&view, &view["name"]), of(&of_snapshot, &of_snapshot["id"])]);
    assert_eq!(timeline["dependents"], expected);
    assert_eq!(server.stop("-TERM"), Some(0));
    let server = Server::start_with(dir.path(), &["--nbd", "127.0.0.1:0"]);
    let views = server.json(&["view", "list"]);
    assert_eq!((&views[0]["id"], &views[1]["id"]), (&view["id"], &of_snapshot["id"]));
    assert!(server.ok(&["view", "show", id]).contains("qemu-img convert"));
    let renewed = server.json(&["view", "renew", id, "--lease", "3h"]);
    assert!(renewed["expires"].as_str() > view["expires"].as_str(), "{renewed}");
    server.ok(&["view", "delete", id]);
    let (code, message) = server.fails(&["view", "show", id]);
    assert!(code == 3 && message.contains("hindcast view list"), "{message}");
    // A deleted volume has no views any more.
    server.ok(&["volume", "delete", "db", "--force"]);
    assert_eq!(server.json(&["view", "list"]), json!([]));
}

#[test]
fn a_view_needs_a_moment_and_a_lease() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "1M"]);
    for (args, code, part) in [
        (&["view", "create", "db"][..], 2, "VOLUME@MOMENT"),
        (&["view", "create", "db@then"], 3, "no snapshot and no mark"),
        (&["view", "create", "db@-1s"], 3, "history"),
        (&["view", "create", "w@-1s"], 3, "w"),
        (&["view", "delete", "nothing"], 3, "hindcast view list"),
        (&["view", "renew", "nothing", "--lease", "1s"], 2, "a lease has"),
    ] {
        let (found, message) = server.fails(args);
        assert!(found == code && message.contains(part), "{args:?}: {found} {message}");
    }
}

/// A view that is created beside the deletion of its volume is not left behind.
#[test]
fn a_view_beside_a_deletion_is_not_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    for n in 0..40 {
        let volume = format!("v{n}");
        server.http("POST", "/api/v1/volumes", &json!({"name": volume, "size": 1 << 20}).to_string());
        let snapshot = json!({"snapshots": [{"volume": volume, "name": "s"}]});
        assert_eq!(server.http("POST", "/api/v1/snapshots", &snapshot.to_string()).0, 201);
        let body = json!({"moment": "s", "lease_seconds": 600}).to_string();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| server.http("POST", &format!("/api/v1/volumes/{volume}/views"), &body));
            }
            scope.spawn(|| server.http("DELETE", &format!("/api/v1/volumes/{volume}?force=true"), ""));
        });
        assert_eq!(server.fails(&["volume", "show", &volume]).0, 3);
    }
    let stored = std::fs::read_to_string(dir.path().join("views.json")).unwrap();
    assert!(!stored.contains("shows"), "{stored}");
}
