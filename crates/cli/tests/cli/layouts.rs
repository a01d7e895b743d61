//! Mirrors, RAID-5, and their members.

use super::server::{Server, program};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn states(server: &Server) -> Vec<(String, String)> {
    let all = server.json(&["pool", "layouts"]);
    let members = all[0]["layout"]["members"].as_array().unwrap().clone();
    let text = |member: &Value, key: &str| member[key].as_str().unwrap().to_owned();
    members.iter().map(|member| (text(member, "path"), text(member, "state"))).collect()
}

/// The layout at a path, and the size of its physical volume.
fn layout_at(server: &Server, path: &str) -> (Value, u64) {
    let all = server.json(&["pool", "layouts"]);
    let pv = all.as_array().unwrap().iter().find(|pv| pv["path"] == path).unwrap();
    (pv["layout"].clone(), pv["size"].as_u64().unwrap())
}

/// Waits until a layout is as wanted.
fn wait_for_layout(server: &Server, path: &str, wanted: impl Fn(&Value) -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let (layout, _) = layout_at(server, path);
        if wanted(&layout) {
            return;
        }
        assert!(Instant::now() < until, "{layout}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn wait_until_whole(server: &Server) {
    let path = server.json(&["pool", "layouts"])[0]["path"].as_str().unwrap().to_owned();
    let whole = |member: &Value| member["state"] == "in" && member["onto"].is_null();
    wait_for_layout(server, &path, |layout| layout["members"].as_array().unwrap().iter().all(whole));
}

fn degraded(server: &Server) -> bool {
    server.json(&["status"]).to_string().contains("layout-degraded")
}

#[test]
fn a_disk_of_a_mirror_fails_and_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    for (args, code) in [
        (&["pool", "add", "a", "b", "--size", "64M"][..], 2),
        (&["pool", "add", "--layout", "mirror", "a", "b", "--size", "64M"], 2),
        (&["pool", "add", "a", "--name", "m", "--size", "64M"], 2),
        (&["pool", "add", "--layout", "mirror", "--name", "m", "a", "--size", "64M"], 2),
        (&["pool", "offline", "a"], 3),
    ] {
        let (found, message) = server.fails(args);
        assert_eq!(found, code, "{args:?}: {message}");
    }
    let added = server
        .json(&["pool", "add", "--layout", "mirror", "--name", "m1", "a.img", "b.img", "--size", "100M"]);
    assert_eq!((&added["path"], &added["layout"]["survives"]), (&json!("mirror:m1"), &json!(1)));
    let plain = server.json(&["pool", "pvs"])[0]["path"].as_str().unwrap().to_owned();
    server.ok(&["pool", "drain", &plain, "--wait"]);
    server.ok(&["pool", "remove", &plain]);
    server.ok(&["volume", "create", "db", "--size", "8M"]);
    let table = server.ok(&["pool", "layouts"]);
    assert!(table.starts_with("NAME") && table.contains("mirror 2") && table.contains("a.img"), "{table}");

    server.ok(&["pool", "offline", "a.img"]);
    assert!(degraded(&server));
    let (code, message) = server.fails(&["pool", "offline", "b.img"]);
    assert!(code == 4 && message.contains("needs it"), "{message}");
    server.ok(&["pool", "online", "a.img"]);
    wait_until_whole(&server);
    assert!(!degraded(&server));
    assert_eq!(server.fails(&["pool", "online", "a.img"]).0, 4, "it has everything");
    let (code, message) = server.fails(&["pool", "replace", "a.img", "c.img", "--size", "50M"]);
    assert!(code == 2 && message.contains("bytes for content"), "{message}");
    server.ok(&["pool", "replace", "a.img", "d.img", "--size", "100M"]);
    wait_until_whole(&server);
    assert_eq!(states(&server)[0].0, "d.img");
    assert!(server.http("GET", "/metrics", "").1.contains("hindcast_layout_member_in{member=\"d.img\"} 1"));

    // The server starts without a member, and not without all of them.
    assert_eq!(server.stop("-TERM"), Some(0));
    std::fs::rename(dir.path().join("b.img"), dir.path().join("gone")).unwrap();
    let server = Server::start(dir.path());
    assert_eq!(states(&server)[1], ("b.img".into(), "out".into()));
    assert!(degraded(&server) && server.json(&["volume", "show", "db"])["name"] == "db");
    assert_eq!(server.stop("-TERM"), Some(0));
    std::fs::rename(dir.path().join("gone"), dir.path().join("b.img")).unwrap();
    std::fs::remove_file(dir.path().join("d.img")).unwrap();
    let socket = dir.path().join("other.sock");
    let refused = program()
        .args(["serve", "--data"])
        .arg(dir.path())
        .arg("--api")
        .arg(format!("unix:{}", socket.display()))
        .output()
        .unwrap();
    assert!(!refused.status.success());
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(message.contains("members are missing") && message.contains("d.img"), "{message}");
}

#[test]
fn a_raid5_is_made_and_a_disk_of_it_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let add = ["pool", "add", "--layout", "raid5", "--name", "r1", "--size", "64M"];
    for (more, part) in [
        (&["a", "b"][..], "3 to 16"),
        (&["a", "b", "c", "--columns", "4"], "as many disks"),
        (&["a", "b", "c", "--unit", "3K"], "power of two"),
        (&["a", "b", "c", "--copies", "2"], "copies"),
    ] {
        let (code, message) = server.fails(&[&add, more].concat());
        assert!(code == 2 && message.contains(part), "{more:?}: {message}");
    }
    let added = server.json(&[&add[..], &["a", "b", "c", "d"]].concat());
    assert_eq!((&added["path"], &added["layout"]["survives"]), (&json!("raid5:r1"), &json!(1)));
    assert_eq!((&added["layout"]["columns"], &added["layout"]["unit"]), (&json!(4), &json!(65536)));
    assert!(added["size"].as_u64().unwrap() > 180 << 20, "{added}");
    let plain = server.json(&["pool", "pvs"])[0]["path"].as_str().unwrap().to_owned();
    server.ok(&["pool", "drain", &plain, "--wait"]);
    server.ok(&["pool", "remove", &plain]);
    server.ok(&["volume", "create", "db", "--size", "8M"]);
    assert!(server.ok(&["pool", "layouts"]).contains("raid5 3+1"));
    server.ok(&["pool", "offline", "b"]);
    let (code, message) = server.fails(&["pool", "offline", "c"]);
    assert!(code == 4 && message.contains("needs it") && degraded(&server), "{message}");
    server.ok(&["pool", "replace", "b", "e", "--size", "64M"]);
    wait_until_whole(&server);
    assert!(!degraded(&server));
    assert_eq!(server.stop("-TERM"), Some(0));
    std::fs::remove_file(dir.path().join("a")).unwrap();
    let server = Server::start(dir.path());
    assert!(degraded(&server) && server.json(&["volume", "show", "db"])["name"] == "db");
}

#[test]
fn a_spare_disk_steps_in() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_with(dir.path(), &["--spare-after", "1s"]);
    server.ok(&["pool", "add", "--layout", "mirror", "--name", "m1", "a", "b", "--size", "64M"]);
    let (code, message) = server.fails(&["pool", "add", "--spare", "--copies", "2", "c", "--size", "64M"]);
    assert!(code == 2 && message.contains("--copies"), "{message}");
    assert_eq!(server.json(&["pool", "add", "--spare", "c", "d", "--size", "64M"])[1]["path"], "d");
    assert!(server.ok(&["pool", "spares"]).contains("63 MiB"));
    let (code, message) = server.fails(&["pool", "add", "c", "--size", "64M"]);
    assert!(code != 0 && message.contains("in use"), "{message}");
    server.ok(&["pool", "offline", "a"]);
    wait_until_whole(&server);
    let first = states(&server)[0].0.clone();
    assert!(["c", "d"].contains(&&first[..]), "{first}");
    let left = server.json(&["pool", "spares"])[0]["path"].as_str().unwrap().to_owned();
    server.ok(&["pool", "remove", &left]);
    assert_eq!(server.json(&["pool", "spares"]), json!([]));
    let (code, _) = server.fails(&["pool", "remove", &left]);
    assert_eq!(code, 3);
    // A spare that is missing is a problem. A member that is missing may be one, too.
    server.ok(&["pool", "add", "--spare", "e", "--size", "64M"]);
    assert_eq!(server.stop("-TERM"), Some(0));
    std::fs::remove_file(dir.path().join("e")).unwrap();
    let server = Server::start(dir.path());
    let status = server.json(&["status"]).to_string();
    assert!(status.contains("spare-missing") && !degraded(&server), "{status}");
    assert_eq!(server.stop("-TERM"), Some(0));
    std::fs::remove_file(dir.path().join("b")).unwrap();
    let refused = program()
        .args(["serve", "--require-all", "--data"])
        .arg(dir.path())
        .arg("--api")
        .arg(format!("unix:{}", dir.path().join("other.sock").display()))
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && message.contains("all are required"), "{message}");
    let server = Server::start(dir.path());
    assert!(degraded(&server));
}

#[test]
fn a_mirror_grows() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["pool", "add", "--layout", "mirror", "--name", "m1", "a.img", "b.img", "--size", "65M"]);
    let told = server.ok(&["pool", "grow", "m1", "c.img", "--size", "65M"]);
    assert!(told.starts_with("mirror:m1: ") && told.contains("have moved; see `hindcast tasks`"), "{told}");
    wait_for_layout(&server, "mirror:m1", |layout| layout["growth"].is_null());
    // A half of the disk, without the label.
    let (_, size) = layout_at(&server, "mirror:m1");
    assert!(size > 90 << 20, "{size}");
    let tasks = server.json(&["tasks"]);
    let grown = |task: &Value| task["kind"] == "grow" && task["subject"] == "mirror:m1";
    assert!(tasks.as_array().unwrap().iter().any(grown), "{tasks}");

    let plain = server.json(&["pool", "pvs"])[0].clone();
    let (path, size) = (plain["path"].as_str().unwrap(), plain["size"].as_u64().unwrap());
    let larger = (size + (64 << 20)).to_string();
    let told = server.ok(&["pool", "grow", path, "--size", &larger]);
    assert!(told.starts_with(&format!("{path}: ")), "{told}");
    assert!(server.json(&["pool", "pvs"])[0]["size"].as_u64().unwrap() > size);
    for (args, code) in [
        (&["pool", "grow", "nothing"][..], 3),
        (&["pool", "grow", "m1"], 4),
        (&["pool", "grow", "m1", "--size", "1G"], 2),
        (&["pool", "grow", path, "d.img", "--size", "65M"], 2),
        (&["pool", "grow", path, "--force"], 2),
    ] {
        let (found, message) = server.fails(args);
        assert_eq!(found, code, "{args:?}: {message}");
    }
}

#[test]
fn the_others_take_over() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_with(dir.path(), &["--spare-after", "1s"]);
    let (code, message) = server.fails(&[
        "pool",
        "add",
        "--layout",
        "raid5",
        "--name",
        "r1",
        "a",
        "b",
        "c",
        "--reserve",
        "1",
        "--size",
        "40M",
    ]);
    assert!(code == 2 && message.contains("no reserve"), "{message}");
    server.ok(&[
        "pool",
        "add",
        "--layout",
        "raid5",
        "--name",
        "r1",
        "a",
        "b",
        "c",
        "d",
        "--columns",
        "3",
        "--reserve",
        "1",
        "--size",
        "40M",
    ]);
    server.ok(&["pool", "offline", "b"]);
    wait_for_layout(&server, "raid5:r1", |layout| {
        layout["survives"] == 1 && layout["members"][1]["content"] == 0
    });
    let table = server.ok(&["pool", "layouts"]);
    assert!(table.contains("the others have taken over"), "{table}");
    assert!(server.json(&["status"]).to_string().contains("the others have taken over"));
    let tasks = server.json(&["tasks"]);
    let taken = |task: &Value| task["kind"] == "take-over" && task["subject"] == "b";
    assert!(
        tasks.as_array().unwrap().iter().all(|task| !taken(task) || task["state"] != "failed"),
        "{tasks}"
    );
    server.ok(&["pool", "replace", "b", "e", "--size", "40M"]);
    wait_for_layout(&server, "raid5:r1", |layout| layout["members"][1]["path"] == "e");
    let (layout, _) = layout_at(&server, "raid5:r1");
    assert!(!degraded(&server) && layout["reserve"] == 1, "{layout}");
}

#[test]
fn a_volume_has_a_layout_for_itself() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let add = ["pool", "add", "--layout", "mirror", "--name", "m1", "a", "b", "--size", "40M"];
    server.ok(&[&add[..], &["--dedicated"]].concat());
    server.ok(&["pool", "add", "p", "--size", "40M"]);
    server.ok(&["volume", "create", "db", "--size", "64M", "--on", "m1"]);
    server.ok(&["volume", "create", "scratch", "--size", "64M"]);
    assert!(server.ok(&["volume", "show", "db"]).contains("mirror:m1"));
    let table = server.ok(&["volume", "list", "-o", "name,on"]);
    assert!(table.contains("db       mirror:m1\nscratch  -"), "{table}");
    let pvs = server.json(&["pool", "pvs"]);
    let mirror = pvs.as_array().unwrap().iter().find(|pv| pv["path"] == "mirror:m1").unwrap();
    assert_eq!((&mirror["dedicated"], &mirror["available"]), (&Value::Bool(true), &mirror["size"]));
    assert!(server.ok(&["pool", "pvs"]).contains("dedicated"));
    // A clone is where its origin is.
    server.ok(&["snapshot", "create", "db@s"]);
    server.ok(&["clone", "create", "db@s", "copy"]);
    assert_eq!(server.json(&["volume", "show", "copy"])["on"], "mirror:m1");

    let refusals: [(&[&str], i32, &str); 5] = [
        (&["volume", "create", "x", "--size", "1M", "--on", "p"], 4, "not dedicated"),
        (&["volume", "create", "x", "--size", "1M", "--on", "m2"], 3, "does not exist"),
        (&["pool", "drain", "mirror:m1"], 4, "these volumes are on it: copy, db"),
        (&["pool", "remove", "mirror:m1"], 4, "these volumes are on it: copy, db"),
        (&["pool", "add", "--spare", "--dedicated", "q", "--size", "40M"], 2, "cannot be used with"),
    ];
    for (args, code, part) in refusals {
        let (found, message) = server.fails(args);
        assert!(found == code && message.contains(part), "{args:?}: {found} {message}");
    }
    let disk = r#"{"path": "q", "size": 41943040, "dedicated": true}"#;
    let body = format!(r#"{{"name": "m2", "kind": "mirror", "members": [{disk}, {disk}]}}"#);
    let (status, answer) = server.http("POST", "/api/v1/pool/layouts", &body);
    assert!(status == 400 && answer.contains("can't be `dedicated`"), "{status} {answer}");

    for volume in ["copy", "db"] {
        server.ok(&["volume", "delete", volume, "--now", "--force"]);
    }
    let until = Instant::now() + Duration::from_secs(30);
    while !server.run(&["pool", "remove", "m1"]).status.success() {
        assert!(Instant::now() < until, "{:?}", server.fails(&["pool", "remove", "mirror:m1"]));
        std::thread::sleep(Duration::from_millis(50));
    }
}
