//! Groups stand for their volumes.

use super::server::Server;
use serde_json::{Value, json};

fn names(list: &Value, key: &str) -> Vec<String> {
    list.as_array().unwrap().iter().map(|v| v[key].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_group_is_its_volumes() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    for name in ["wal", "db", "log"] {
        server.ok(&["volume", "create", name, "--size", "1M", "--cdp", "parity"]);
    }
    server.ok(&["group", "create", "shop", "wal", "db"]);
    assert_eq!(server.json(&["group", "add", "shop", "log"])["volumes"], json!(["wal", "db", "log"]));
    let created = server.json(&["snapshot", "create", "shop@before"]);
    assert_eq!(names(&created, "volume"), ["wal", "db", "log"]);
    let mark = server.json(&["mark", "shop", "deployed"]);
    for name in ["wal", "db", "log"] {
        assert_eq!(server.json(&["history", name])["marks"][0]["lsn"], mark["lsn"], "one instant");
    }
    let rolled = server.json(&["rollback", "shop@deployed"]);
    assert_eq!(rolled.as_array().unwrap().len(), 3);
    server.json(&["recover", "shop", "--to", "deployed", "--suffix", "-then"]);
    let all = names(&server.json(&["volume", "list"]), "name");
    assert_eq!(all, ["db", "db-then", "log", "log-then", "wal", "wal-then"]);
    let schedule = server.json(&["schedule", "create", "hourly", "shop", "--every", "1h"]);
    assert_eq!(schedule["volumes"], json!(["wal", "db", "log"]));

    // A renamed volume stays, a deleted one is left out and comes back with its volume.
    server.ok(&["volume", "rename", "log", "journal"]);
    server.ok(&["volume", "delete", "db"]);
    assert_eq!(server.json(&["group", "show", "shop"])["volumes"], json!(["wal", "journal"]));
    server.ok(&["trash", "restore", "db"]);
    let left = server.json(&["group", "remove", "shop", "journal"]);
    assert_eq!(left["volumes"], json!(["wal", "db"]));
    assert_eq!(names(&server.json(&["group", "list"]), "name"), ["shop"]);
    server.ok(&["mark", "shop", "deployed", "--delete"]);
    server.ok(&["group", "delete", "shop"]);
    assert_eq!(server.fails(&["group", "show", "shop"]).0, 3);
    assert_eq!(server.fails(&["snapshot", "create", "shop@x"]).0, 3);
}

#[test]
fn a_group_is_no_volume() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "a", "--size", "1M"]);
    for (args, code) in [
        (&["group", "create", "a", "a"][..], 4),
        (&["group", "create", "g", "nothing"], 3),
        (&["group", "create", "g", "a", "a"], 2),
        (&["group", "create", "-g", "a"], 2),
        (&["group", "create", "g"], 2),
        (&["group", "add", "none", "a"], 3),
    ] {
        assert_eq!(server.fails(args).0, code, "{args:?}");
    }
    server.ok(&["group", "create", "g", "a"]);
    assert_eq!(server.fails(&["group", "create", "g", "a"]).0, 4);
    assert_eq!(server.fails(&["group", "remove", "g", "a"]).0, 2, "a group has a volume at least");
    assert_eq!(server.fails(&["group", "add", "g", "a"]).0, 2);
}
