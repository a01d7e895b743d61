//! Lists: columns, order, and forms for programs.

use super::server::Server;
use std::time::{Duration, Instant};

#[test]
fn a_list_has_the_columns_and_the_order_that_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    for (name, size) in [("b", "2M"), ("a", "1M"), ("c", "10M")] {
        server.ok(&["volume", "create", name, "--size", size]);
    }
    server.ok(&["volume", "set", "c", "--cdp", "parity", "--retain", "7d"]);
    server.ok(&["snapshot", "create", "c@one"]);
    server.ok(&["volume", "label", "a", "app=shop"]);
    // The history begins with the next look of the maintenance.
    let end = Instant::now() + Duration::from_secs(20);
    let usual = loop {
        let usual = server.ok(&["volume", "list"]);
        if usual.contains("of 7 d") || Instant::now() > end {
            break usual;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let heading: Vec<&str> = usual.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(heading, ["NAME", "SIZE", "USED", "HISTORY", "SNAPSHOTS", "CLIENTS", "STATE"]);
    assert!(usual.lines().nth(3).unwrap().contains("of 7 d"), "{usual}");
    assert_eq!(server.ok(&["volume", "list", "-q", "--sort", "-size"]), "c\nb\na\n");
    let plain = server.ok(&["volume", "list", "-H", "-o", "name,size,snapshots,labels", "--sort", "size"]);
    assert_eq!(plain, "a\t1048576\t0\tapp=shop\nb\t2097152\t0\t-\nc\t10485760\t1\t-\n");
    let sorted = server.json(&["volume", "list", "--sort", "-name"]);
    assert_eq!(sorted[0]["name"], "c", "JSON is ordered, too");

    let (code, message) = server.fails(&["volume", "list", "-o", "name,sise"]);
    assert!(code == 2 && message.contains("no column sise; the columns are name,size"), "{message}");
    assert_eq!(server.fails(&["volume", "list", "--sort", "sise"]).0, 2);
    let (code, message) = server.fails(&["volume", "show", "a", "-o", "name"]);
    assert!(code == 2 && message.contains("no columns to choose"), "{message}");
    assert_eq!(server.fails(&["status", "-o", "XML"]).0, 2);
}

#[test]
fn tables_have_local_times() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "1M"]);
    server.ok(&["snapshot", "create", "db@one"]);
    let tree = server.ok(&["--tz", "Asia/Tokyo", "snapshot", "list"]);
    assert!(tree.contains("CREATED (+09:00)"), "{tree}");
    assert!(server.ok(&["--utc", "snapshot", "list"]).contains("CREATED (UTC)"));
    let flat = server.ok(&["--precise", "snapshot", "list", "-o", "snapshot,created"]);
    let created = server.json(&["snapshot", "show", "db@one"])["created"].as_str().unwrap().to_owned();
    assert!(flat.starts_with("SNAPSHOT") && flat.contains(&created), "{flat}");
    assert_eq!(server.ok(&["snapshot", "list", "-q"]), "db@one\n");
    assert_eq!(server.fails(&["--utc", "--tz", "Asia/Tokyo", "snapshot", "list"]).0, 2);
}
