//! Tasks: what goes on in the background, how it is stopped, and what is told of its end.

use crate::identity::{send, token, with_tcp};
use crate::server::Server;
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Waits for a task in a state.
fn wait_for(server: &Server, id: &str, state: &str) -> Value {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let all = server.json(&["tasks"]);
        let found = all.as_array().unwrap().iter().find(|t| t["id"] == id && t["state"] == state);
        if let Some(found) = found {
            return found.clone();
        }
        assert!(Instant::now() < end, "{id} is not {state}: {all}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn kinds(server: &Server, of: &str) -> Vec<String> {
    let found = server.json(&["events", "--kind", of]);
    found.as_array().unwrap().iter().map(|event| event["kind"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_end_of_a_task_is_told_and_listed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "1M"]);
    server.ok(&["snapshot", "create", "db@s"]);
    server.ok(&["clone", "create", "db@s", "copy"]);
    server.ok(&["volume", "flatten", "copy", "--wait"]);
    let done = wait_for(&server, "flatten:copy", "done");
    assert!(done["ended"].is_string() && done["can_stop"] == false, "{done}");
    assert_eq!(kinds(&server, "flatten"), ["flatten.began", "flatten.ended"]);
    server.ok(&["pool", "scrub", "--wait"]);
    wait_for(&server, "scrub:pool", "done");
    assert_eq!(kinds(&server, "scrub"), ["scrub.began", "scrub.ended"]);
    server.ok(&["export", "db@s", "--file", dir.path().join("stream").to_str().unwrap()]);
    wait_for(&server, "export:db@s", "done");
    let (code, message) = server.fails(&["tasks", "stop", "flatten:copy"]);
    assert!(code == 3 && message.contains("is not running"), "{message}");
    assert!(server.ok(&["tasks", "-o", "task,state,ended"]).contains("flatten:copy"));
    // A task of the same identity is another entry, also for pages.
    server.ok(&["pool", "scrub", "--wait"]);
    let id = "scrub:pool";
    let count = || {
        let all = server.json(&["tasks"]);
        all.as_array().unwrap().iter().filter(|t| t["id"] == id && t["state"] == "done").count()
    };
    let end = Instant::now() + Duration::from_secs(30);
    while count() < 2 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut seen = Vec::new();
    let mut path = "/api/v1/tasks?limit=1".to_owned();
    loop {
        let mut stream = UnixStream::connect(server.socket()).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let page: Value = serde_json::from_str(body).unwrap();
        seen.extend(page.as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap().to_owned()));
        let Some(next) = head.lines().find_map(|line| line.strip_prefix("link: <")) else { break };
        path = next.split('>').next().unwrap().to_owned();
    }
    assert_eq!(seen.iter().filter(|found| *found == id).count(), 2, "{seen:?}");
}

#[test]
fn a_rebuild_that_was_stopped_is_not_done() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["pool", "add", "--layout", "mirror", "--name", "m1", "a", "b", "--size", "64M"]);
    let plain = server.json(&["pool", "pvs"])[0]["path"].as_str().unwrap().to_owned();
    server.ok(&["pool", "drain", &plain, "--wait"]);
    wait_for(&server, &format!("drain:{plain}"), "done");
    // Extents are in use, so the rebuild takes longer than this test.
    let image = dir.path().join("image");
    std::fs::write(&image, crate::daemon::pattern(24 << 20)).unwrap();
    server.ok(&["volume", "create", "db", "--origin", image.to_str().unwrap()]);
    server.ok(&["volume", "flatten", "db", "--wait"]);
    server.ok(&["pool", "replace", "b", "c", "--size", "64M", "--rate", "1M"]);
    wait_for(&server, "rebuild:c", "running");
    server.ok(&["pool", "offline", "c"]);
    let task = wait_for(&server, "rebuild:c", "failed");
    assert!(task["error"].as_str().unwrap().contains("it was put out"), "{task}");
    server.ok(&["pool", "replace", "b", "d", "--size", "64M"]);
    wait_for(&server, "rebuild:d", "done");
}

#[test]
fn an_import_is_stopped_as_a_task() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "1M"]);
    server.ok(&["snapshot", "create", "db@s"]);
    let file = dir.path().join("stream");
    server.ok(&["export", "db@s", "--file", file.to_str().unwrap()]);
    let stream = std::fs::read(&file).unwrap();
    let mut command = crate::server::program();
    command.arg("--socket").arg(server.socket()).args(["import", "copy"]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(&stream[..stream.len() - 8]).unwrap();
    let task = wait_for(&server, "import:copy", "running");
    assert_eq!((&task["can_stop"], &task["error"]), (&Value::Bool(true), &Value::Null));
    server.ok(&["tasks", "stop", "import:copy"]);
    wait_for(&server, "import:copy", "stopped");
    let _ = input.write_all(&stream[stream.len() - 8..]);
    drop(input);
    assert_eq!(child.wait().unwrap().code(), Some(4));
    assert_eq!(server.json(&["volume", "show", "copy"])["importing"], false);
}

#[test]
fn an_export_is_stopped_as_a_task() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "32M"]);
    // Incompressible data, so that the stream is longer than what waits on the way.
    let image = dir.path().join("image");
    std::fs::write(&image, crate::daemon::pattern(24 << 20)).unwrap();
    server.ok(&["volume", "create", "big", "--origin", image.to_str().unwrap()]);
    server.ok(&["snapshot", "create", "big@s"]);
    let mut stream = UnixStream::connect(server.socket()).unwrap();
    let path = "/api/v1/volumes/big/snapshots/s/export";
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    // The reader takes nothing.
    let task = wait_for(&server, "export:big@s", "running");
    assert_eq!(task["kind"], "export");
    server.ok(&["tasks", "stop", "export:big@s"]);
    let mut sent = Vec::new();
    // The server breaks the stream off before its end.
    let _ = stream.read_to_end(&mut sent);
    assert!(sent.len() < 24 << 20, "{}", sent.len());
    wait_for(&server, "export:big@s", "stopped");
}

/// The list of tasks is no way around the role that the work itself needs.
#[test]
fn who_stops_a_task_may_stop_its_work() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = with_tcp(dir.path(), &[]);
    let (operator, admin) = (token(&server, "o", "operator", &[]), token(&server, "a", "admin", &[]));
    let stop = |caller: &str, id: &str| {
        send(address, "DELETE", &format!("/api/v1/tasks/{id}"), &[caller], None).status
    };
    for id in ["drain:x.img", "rebuild:x.img", "take-over:x.img", "grow:x"] {
        assert_eq!((stop(&operator, id), stop(&admin, id)), (403, 404), "{id}");
    }
    for id in ["flatten:x", "relocate:x", "import:x", "scrub:pool", "rebalance:pool", "nothing", "no:kind"] {
        assert_eq!(stop(&operator, id), 404, "{id}");
    }
}
