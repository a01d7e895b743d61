//! The trash and the labels of volumes.

use super::server::Server;
use serde_json::json;

#[test]
fn a_deleted_volume_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "1M", "--cdp", "parity"]);
    server.ok(&["snapshot", "create", "db@s"]);
    server.ok(&["mark", "db", "here"]);
    server.ok(&["target", "allow", "db", "--initiator", "iqn.2026-11.example:a"]);
    server.ok(&["volume", "label", "db", "app=shop"]);
    let rules = server.json(&["target", "show", "db"])["rules"].clone();
    let uuid = server.json(&["volume", "show", "db"])["uuid"].as_str().unwrap().to_owned();
    // Neither snapshots nor a history need force: nothing is lost.
    let deleted = server.json(&["volume", "delete", "db"]);
    assert_eq!(deleted["trash"]["uuid"], json!(uuid));
    assert_eq!(server.fails(&["volume", "show", "db"]).0, 3);
    let trash = server.json(&["trash", "list"]);
    let first = &trash[0];
    assert_eq!(
        (&first["name"], &first["snapshots"], &first["history"]),
        (&json!("db"), &json!(1), &json!(true))
    );
    assert_eq!(first["labels"], json!({"app": "shop"}));
    assert!(first["purge_at"].is_string());

    // The name is free, so a restored volume may need another one.
    server.ok(&["volume", "create", "db", "--size", "2M"]);
    let (code, message) = server.fails(&["trash", "restore", "db"]);
    assert!(code == 4 && message.contains("give this one a new name"), "{message}");
    assert_eq!(server.fails(&["trash", "restore", "nothing"]).0, 3);
    let restored = server.json(&["trash", "restore", &uuid[..8], "--name", "db2"]);
    assert_eq!((&restored["uuid"], &restored["labels"]), (&json!(uuid), &json!({"app": "shop"})));
    assert_eq!(server.json(&["snapshot", "list", "db2"])[0]["name"], json!("s"));
    assert_eq!(server.json(&["history", "db2"])["marks"][0]["name"], json!("here"));
    assert_eq!(server.json(&["target", "show", "db2"])["rules"], rules);
    assert_eq!(server.json(&["trash", "list"]), json!([]));
}

#[test]
fn the_trash_is_emptied_by_request() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    for _ in 0..2 {
        server.ok(&["volume", "create", "a", "--size", "1M"]);
        server.ok(&["volume", "delete", "a"]);
    }
    server.ok(&["volume", "create", "b", "--size", "1M"]);
    server.ok(&["volume", "delete", "b"]);
    let (code, message) = server.fails(&["trash", "empty", "a"]);
    assert!(code == 4 && message.contains("give at least 8 digits"), "{message}");
    let (code, message) = server.fails(&["trash", "empty"]);
    assert!(code == 2 && message.contains("--all"), "{message}");
    assert_eq!(server.ok(&["trash", "empty", "b"]), "1 volume deleted for good\n");
    assert_eq!(server.fails(&["trash", "restore", "b"]).0, 3);
    assert_eq!(server.ok(&["trash", "empty", "--all"]), "2 volumes deleted for good\n");
    assert_eq!(server.json(&["trash", "list"]), json!([]));
}

#[test]
fn without_a_trash_a_deletion_is_final() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_with(dir.path(), &["--trash", "0"]);
    server.ok(&["volume", "create", "db", "--size", "1M"]);
    server.ok(&["snapshot", "create", "db@s"]);
    let (code, message) = server.fails(&["volume", "delete", "db"]);
    assert!(code == 4 && message.contains("1 snapshots"), "{message}");
    assert_eq!(server.ok(&["volume", "delete", "db", "--force"]), "deleted db for good\n");
    assert_eq!(server.json(&["trash", "list"]), json!([]));
}

#[test]
fn volumes_are_listed_by_label() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    for name in ["a", "b", "c"] {
        server.ok(&["volume", "create", name, "--size", "1M"]);
    }
    server.ok(&["volume", "label", "a", "app=shop", "tier=1"]);
    server.ok(&["volume", "label", "b", "app=shop"]);
    let listed = |args: &[&str]| {
        let all = server.json(&[&["volume", "list"], args].concat());
        all.as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(listed(&["-l", "app=shop"]), ["a", "b"]);
    assert_eq!(listed(&["-l", "app=shop", "-l", "tier=1"]), ["a"]);
    assert_eq!(server.ok(&["volume", "label", "a", "tier="]), "a: app=shop\n");
    assert_eq!(listed(&["-l", "tier=1"]), [""; 0]);
    assert_eq!(server.fails(&["volume", "label", "a", "tier"]).0, 2);
}
