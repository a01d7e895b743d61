//! Groups stand for their volumes.

use super::server::Server;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

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
    server.ok(&["schedule", "delete", "hourly"]);
    server.ok(&["group", "delete", "shop"]);
    assert_eq!(server.fails(&["group", "show", "shop"]).0, 3);
    assert_eq!(server.fails(&["snapshot", "create", "shop@x"]).0, 3);
}

/// A group stands for the snapshots of its volumes, all of them or none.
#[test]
fn snapshots_of_a_group_are_protected_and_deleted_together() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    for name in ["wal", "db", "log"] {
        server.ok(&["volume", "create", name, "--size", "1M"]);
    }
    server.ok(&["group", "create", "shop", "wal", "db", "log"]);
    let count = || server.json(&["snapshot", "list"]).as_array().unwrap().len();
    server.ok(&["snapshot", "create", "shop@v1"]);
    server.ok(&["snapshot", "create", "wal@v2", "db@v2"]);
    let protected = server.json(&["snapshot", "protect", "shop@v1"]);
    assert_eq!(names(&protected, "volume"), ["wal", "db", "log"]);
    assert!(protected.as_array().unwrap().iter().all(|s| s["protected"] == true), "{protected}");
    let (code, message) = server.fails(&["snapshot", "protect", "shop@v2"]);
    assert!(code == 3 && message.contains("log@v2") && message.contains("nothing was changed"), "{message}");
    assert_eq!(server.json(&["snapshot", "show", "wal@v2"])["protected"], false);
    let (code, message) = server.fails(&["snapshot", "delete", "shop@v2"]);
    assert!(code == 3 && message.contains("log@v2") && message.contains("nothing was deleted"), "{message}");
    server.ok(&["snapshot", "unprotect", "db@v1", "wal@v1"]);
    let (code, message) = server.fails(&["snapshot", "delete", "shop@v1"]);
    assert!(code == 4 && message.contains("log@v1") && message.contains("nothing was deleted"), "{message}");
    assert_eq!(count(), 5);
    server.ok(&["snapshot", "unprotect", "shop@v1"]);
    assert_eq!(server.json(&["snapshot", "delete", "shop@v1", "--dry-run"]).as_array().unwrap().len(), 3);
    assert_eq!(server.ok(&["snapshot", "delete", "shop@v1"]), "deleted db@v1 log@v1 wal@v1\n");
    server.ok(&["snapshot", "delete", "shop@v*"]);
    assert_eq!(count(), 0);
    // What is neither a volume nor a group is named.
    let (code, message) = server.fails(&["snapshot", "delete", "shelf@v1"]);
    assert!(code == 3 && message.contains("shelf"), "{message}");
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

/// A schedule of a group takes the volumes that are in the group when it runs.
#[test]
fn a_schedule_of_a_group_follows_the_group() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    for name in ["a", "b", "c"] {
        server.ok(&["volume", "create", name, "--size", "1M"]);
    }
    server.ok(&["group", "create", "shop", "a"]);
    let made = server.json(&["schedule", "create", "often", "shop", "c", "--every", "10s"]);
    assert_eq!((&made["groups"], &made["volumes"]), (&json!(["shop"]), &json!(["c", "a"])));
    let (code, message) = server.fails(&["group", "delete", "shop"]);
    assert!(code == 4 && message.contains("often"), "{message}");
    server.ok(&["group", "add", "shop", "b"]);
    assert_eq!(server.json(&["schedule", "show", "often"])["volumes"], json!(["c", "a", "b"]));
    let end = Instant::now() + Duration::from_secs(60);
    while names(&server.json(&["snapshot", "list", "b"]), "name").is_empty() {
        assert!(Instant::now() < end, "the new volume has no snapshot");
        std::thread::sleep(Duration::from_millis(200));
    }
    let newest = names(&server.json(&["snapshot", "list", "b"]), "name").pop().unwrap();
    for volume in ["a", "c"] {
        assert!(names(&server.json(&["snapshot", "list", volume]), "name").contains(&newest), "{volume}");
    }
    server.ok(&["schedule", "delete", "often"]);
    server.ok(&["group", "delete", "shop"]);
    // A run that went well has an event, with the name and the number of its snapshots.
    let ran = server.json(&["events", "--kind", "schedule.ran"]);
    let ran: Vec<&Value> = ran.as_array().unwrap().iter().collect();
    assert!(ran.iter().all(|event| event["subject"] == "often"), "{ran:?}");
    let of_newest = format!("snapshot {newest}, count 3");
    assert!(ran.iter().any(|event| event["message"].to_string().contains(&of_newest)), "{ran:?}");
}

#[test]
fn a_schedule_gets_other_volumes_and_groups() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    for name in ["a", "b", "c", "gone"] {
        server.ok(&["volume", "create", name, "--size", "1M"]);
    }
    server.ok(&["group", "create", "shop", "a", "b"]);
    server.ok(&["schedule", "create", "daily", "a", "gone", "--every", "1d"]);
    let before = server.json(&["schedule", "show", "daily"])["since"].clone();
    let set = |args: &[&str]| server.json(&[&["schedule", "set", "daily"], args].concat());
    let has = |schedule: &Value| (schedule["own_volumes"].clone(), schedule["volumes"].clone());
    let changed = set(&["--add", "shop", "--add", "c"]);
    assert_eq!(changed["groups"], json!(["shop"]));
    assert_eq!(has(&changed), (json!(["a", "gone", "c"]), json!(["a", "gone", "c", "b"])));
    assert_ne!(changed["since"], before, "no run of the new volumes was missed");
    // A volume that is deleted leaves the schedule with its next change.
    server.ok(&["volume", "delete", "gone", "--now"]);
    let changed = set(&["--remove", "a", "--every", "2d"]);
    assert_eq!(has(&changed), (json!(["c"]), json!(["c", "a", "b"])));
    assert_eq!(changed["every"], 172_800);
    for (args, code, why) in [
        (&["--add", "c"][..], 2, "c is named twice"),
        (&["--add", "a", "--add", "a"], 2, "a is named twice"),
        (&["--add", "shop"], 2, "shop is named twice"),
        (&["--add", "nothing"], 3, "nothing"),
        (&["--remove", "a"], 3, "remove a from schedule daily"),
        (&["--remove", "c", "--remove", "shop"], 2, "1 to 200 volumes"),
    ] {
        let (found, message) = server.fails(&[&["schedule", "set", "daily"], args].concat());
        assert!(found == code && message.contains(why), "{args:?}: {found}, {message}");
    }
    assert_eq!(has(&server.json(&["schedule", "show", "daily"])), has(&changed), "nothing of these was kept");
    let changed = set(&["--remove", "shop", "--add", "a"]);
    assert_eq!((has(&changed), &changed["groups"]), ((json!(["c", "a"]), json!(["c", "a"])), &Value::Null));
    server.ok(&["group", "delete", "shop"]);
}

/// What "ten seconds ago" means is settled once for all volumes of the group.
#[test]
fn a_view_of_a_group_is_of_one_moment() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    for name in ["a", "b"] {
        server.ok(&["volume", "create", name, "--size", "1M", "--cdp", "parity"]);
    }
    server.ok(&["group", "create", "shop", "a", "b"]);
    server.ok(&["mark", "shop", "here"]);
    server.ok(&["mark", "b", "later"]);
    let views = server.json(&["view", "create", "shop@-0s", "--name", "both"]);
    assert_eq!(names(&views, "volume"), ["a", "b"]);
    assert_eq!(views[0]["lsn"], views[1]["lsn"], "{views}");
    let marked = server.json(&["view", "create", "shop@here"]);
    assert_eq!(marked[0]["lsn"], marked[1]["lsn"], "{marked}");
    assert_eq!(server.json(&["view", "list"]).as_array().unwrap().len(), 4);
    assert!(server.json(&["view", "create", "a@here"])["id"].is_string(), "one volume is one view");
}
