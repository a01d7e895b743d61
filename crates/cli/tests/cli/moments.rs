//! One address everywhere: what takes `VOLUME@…` takes any moment.

use super::server::Server;
use serde_json::json;

#[test]
fn an_address_is_any_moment() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "1M"]);
    server.ok(&["volume", "set", "db", "--cdp", "parity"]);
    server.ok(&["mark", "db", "before-drop"]);
    server.ok(&["snapshot", "create", "db@monday"]);
    for (at, name) in [("before-drop", "a"), ("-0s", "b"), ("now", "c"), ("monday", "d"), ("0s ago", "e")] {
        let clone = server.json(&["clone", "create", &format!("db@{at}"), name]);
        assert_eq!(clone["name"], json!(name), "{at}");
    }
    let lsn = server.json(&["history", "db"])["marks"][0]["lsn"].as_u64().unwrap();
    for at in ["before-drop", "monday", &format!("lsn:{lsn}"), "now"] {
        let rolled = server.json(&["rollback", &format!("db@{at}"), "--undo-keep", "1d"]);
        assert_eq!(rolled[0]["volume"]["name"], json!("db"), "{at}");
        let undo = format!("db@{}", rolled[0]["undo"]["name"].as_str().unwrap());
        server.ok(&["rollback", &undo]);
        server.ok(&["snapshot", "rollback", &format!("db@{at}")]);
    }
    server.ok(&["recover", "db", "--to", "0s ago", "--as", "f"]);
    server.ok(&["diff", "db@0s ago"]);
}

/// A command for snapshots that gets the name of a mark says so, and what takes a mark.
#[test]
fn a_mark_is_no_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "1M", "--cdp", "parity"]);
    server.ok(&["mark", "db", "m1"]);
    server.ok(&["snapshot", "create", "db@monday"]);
    for command in [
        &["show", "db@m1"][..],
        &["rename", "db@m1", "x"],
        &["label", "db@m1", "a=b"],
        &["protect", "db@m1"],
        &["unprotect", "db@m1"],
        &["set", "db@m1", "--writable"],
        &["delete", "db@m1"],
    ] {
        let (code, message) = server.fails(&[&["snapshot"], command].concat());
        assert!(code == 3 && message.contains("hindcast mark db m1 --delete"), "{command:?}: {message}");
    }
    for command in [["show", "db@mondai"], ["delete", "db@mondai"], ["protect", "db@mondai"]] {
        let (code, message) = server.fails(&[&["snapshot"], &command[..]].concat());
        assert!(code == 3 && message.contains("the nearest names are db@monday"), "{command:?}: {message}");
    }
}

/// The commands over which users of the first version stumbled.
#[test]
fn what_users_typed_first_works() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "1M", "--cdp", "parity"]);
    server.ok(&["mark", "db", "m1"]);
    std::thread::sleep(std::time::Duration::from_millis(2100));
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).strftime("%H:%M:%S").to_string();
    server.ok(&["clone", "create", "db@-1s", "c"]);
    server.ok(&["rollback", "db@m1"]);
    let exported = server.run(&["export", "db@m1"]);
    assert!(exported.status.success() && !exported.stdout.is_empty());
    server.ok(&["snapshot", "create", "db@x", "--at", "-1s"]);
    server.ok(&["--tz", "UTC", "recover", "db", "--to", &now, "--as", "y"]);
    assert_eq!(server.json(&["clients"]), json!([]));
    assert_eq!(server.json(&["clients", "db"]), json!([]));
    server.ok(&["volume", "delete", "db", "--force"]);
    server.ok(&["trash", "restore", "db"]);
    let kept = server.json(&["snapshot", "list", "db"]);
    assert!(kept.as_array().unwrap().iter().any(|s| s["name"] == "x"), "{kept}");
}

#[test]
fn an_unknown_moment_is_named_with_the_nearest_names() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "1M"]);
    let (code, message) = server.fails(&["rollback", "db@before-dorp"]);
    assert_eq!(code, 3, "{message}");
    assert!(message.contains("no snapshot and no mark") && message.contains("it has none"), "{message}");
    server.ok(&["volume", "set", "db", "--cdp", "parity"]);
    server.ok(&["mark", "db", "before-drop"]);
    server.ok(&["snapshot", "create", "db@monday"]);
    for args in [
        &["clone", "create", "db@before-dorp", "x"][..],
        &["rollback", "db@before-dorp"],
        &["recover", "db", "--to", "before-dorp", "--as", "x"],
        &["diff", "db@before-dorp"],
    ] {
        let (code, message) = server.fails(args);
        assert_eq!(code, 3, "{args:?}: {message}");
        assert!(message.contains("the nearest names are db@before-drop"), "{args:?}: {message}");
    }
    let (code, message) = server.fails(&["rollback", "db@monday", "db@before-drop"]);
    assert!(code == 2 && message.contains("two moments"), "{message}");
    let (code, message) = server.fails(&["--tz", "Europe/Nowhere", "rollback", "db@10:41"]);
    assert!(code == 2 && message.contains("no such time zone"), "{message}");
    let (code, message) = server.fails(&["--tz", "UTC", "rollback", "db@2001-01-01 10:41"]);
    assert_eq!(code, 3, "{message}");
}

#[test]
fn a_history_is_shown_in_a_window() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "1M"]);
    let empty = server.json(&["history", "db"]);
    assert_eq!((&empty["timeline"]["begins"], &empty["timeline"]["spans"]), (&json!(null), &json!([])));
    server.ok(&["volume", "set", "db", "--cdp", "parity"]);
    server.ok(&["mark", "db", "here"]);
    let shown = server.json(&["history", "db", "--from", "-10m", "--buckets", "100"]);
    let timeline = &shown["timeline"];
    assert_eq!((&timeline["bucket_seconds"], &timeline["coarse"]), (&json!(10.0), &json!(false)));
    assert_eq!(timeline["marks"]["items"][0]["name"], json!("here"));
    assert!(timeline["begins"]["lsn"].is_u64(), "{timeline}");
    let past = server.json(&["history", "db", "--from", "-10m", "--to", "5m ago"]);
    assert_eq!(past["timeline"]["marks"]["count"], json!(0));
    server.ok(&["history", "db", "--from", "here", "--to", "now"]);
    for window in [["--from", "now", "--to", "-1h"], ["--from", "lsn:1", "--to", "now"]] {
        let (code, message) = server.fails(&["history", "db", window[0], window[1], window[2], window[3]]);
        assert!(code == 2 || code == 1, "{code}: {message}");
        assert!(message.contains("show a timeline"), "{message}");
    }
}

#[test]
fn short_words_and_relative_sizes_are_understood() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["vol", "create", "db", "--size", "1MB"]);
    assert_eq!(server.json(&["vol", "info", "db"])["size"], json!(999_424));
    server.ok(&["volume", "resize", "db", "--size", "1M"]);
    assert_eq!(server.json(&["volume", "resize", "db", "--size", "+1M"])["size"], json!(2 << 20));
    server.ok(&["snap", "create", "db@a"]);
    assert_eq!(server.json(&["snap", "ls"])[0]["name"], json!("a"));
    server.ok(&["snap", "rm", "db@a"]);
    server.ok(&["vol", "rm", "db", "--now"]);
    assert_eq!(server.json(&["vol", "ls"]), json!([]));
}
