//! How volumes are protected, and volumes that are named by UUID.

use super::server::Server;
use serde_json::{Value, json};

fn uuid(server: &Server, volume: &str) -> String {
    format!("uuid:{}", server.json(&["volume", "show", volume])["uuid"].as_str().unwrap())
}

#[test]
fn the_status_tells_how_volumes_are_protected() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "1M", "--cdp", "parity", "--retain", "7d"]);
    server.ok(&["volume", "create", "plain", "--size", "1M"]);
    server.ok(&["snapshot", "create", "db@s"]);
    let status = server.json(&["status"]);
    let [db, plain] = &status["protection"].as_array().unwrap()[..] else { panic!("{status}") };
    assert_eq!((&db["volume"], &db["retain_seconds"]), (&json!("db"), &json!(7 * 86_400)));
    assert!(
        db["window_seconds"].as_u64().unwrap() < 3600 && db["last_snapshot_age"].as_u64().unwrap() < 3600
    );
    assert_eq!(*plain, json!({"volume": "plain"}));
    let shown = server.ok(&["status"]);
    assert!(shown.contains("of 7 d") && shown.contains(" ago"), "{shown}");
    // A problem tells where to read on.
    server.ok(&["schedule", "create", "often", "plain", "--every", "10s"]);
    server.ok(&["volume", "delete", "plain", "--now"]);
    let problem = || {
        let status = server.json(&["status"]);
        let problems = status["health"]["problems"].as_array().unwrap().clone();
        problems.into_iter().find(|problem| problem["code"] == "schedule-failing")
    };
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let found = loop {
        if let Some(found) = problem() {
            break found;
        }
        assert!(std::time::Instant::now() < end, "the schedule does not fail");
        std::thread::sleep(std::time::Duration::from_millis(200));
    };
    assert_eq!(found["help"], json!("docs/OPERATIONS.md#schedule-failing"));
    assert!(server.ok(&["status"]).contains("docs/OPERATIONS.md#schedule-failing"));
}

#[test]
fn a_uuid_names_a_volume_whatever_it_is_called() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "1M", "--cdp", "parity"]);
    server.ok(&["volume", "create", "log", "--size", "1M"]);
    let (db, log) = (uuid(&server, "db"), uuid(&server, "log"));
    server.ok(&["volume", "rename", "db", "shop"]);
    server.ok(&["volume", "create", "db", "--size", "2M"]);
    let at = |moment: &str| format!("{db}@{moment}");
    assert_eq!(server.json(&["volume", "show", &db])["name"], json!("shop"));
    assert_eq!(server.json(&["snapshot", "create", &at("s")])[0]["volume"], json!("shop"));
    assert_eq!(server.json(&["snapshot", "list", &db])[0]["name"], json!("s"));
    server.ok(&["mark", &db, "here"]);
    server.ok(&["view", "create", &at("here")]);
    assert_eq!(server.json(&["group", "create", "all", &db, &log])["volumes"], json!(["shop", "log"]));
    let schedule = server.json(&["schedule", "create", "hourly", &log, "--every", "1h"]);
    assert_eq!(schedule["volumes"], json!(["log"]));
    server.ok(&["target", "create", "shelf"]);
    let target: Value = server.json(&["target", "add-lun", "shelf", &at("s")]);
    assert_eq!(target["luns"][0]["source"], json!("shop@s"));
    server.ok(&["recover", &db, "--to", "here", "--as", "copy"]);
    server.ok(&["snapshot", "delete", &at("s*"), "--force"]);
    assert_eq!(server.json(&["snapshot", "list", &db]).as_array().unwrap().len(), 0);
    // Programs that use the API name volumes in the same way.
    let (code, body) = server.http("GET", &format!("/api/v1/volumes/{db}"), "");
    assert!(code == 200 && body.contains("\"shop\""), "{body}");
    let body = format!(r#"{{"snapshots":[{{"volume":"{db}","name":"t"}}]}}"#);
    let (code, body) = server.http("POST", "/api/v1/snapshots", &body);
    assert!(code == 201 && body.contains("\"shop\""), "{code} {body}");
    let nobody = "uuid:00000000-0000-4000-8000-000000000000";
    assert_eq!(server.fails(&["volume", "show", nobody]).0, 3);
    server.ok(&["volume", "delete", &log]);
    server.ok(&["trash", "restore", &log]);
    assert_eq!(server.json(&["volume", "show", &log])["name"], json!("log"));
}
