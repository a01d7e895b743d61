//! Events: what happened on a server.

use super::server::{Server, program};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

#[test]
fn what_happens_is_listed_and_followed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "1M"]);
    server.ok(&["volume", "create", "log", "--size", "1M"]);
    let kinds = |server: &Server, args: &[&str]| -> Vec<String> {
        let found = server.json(&[&["events"], args].concat());
        found.as_array().unwrap().iter().map(|e| e["kind"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(kinds(&server, &["--of", "db"]), ["volume.created"]);
    let mut child = program()
        .arg("--socket")
        .arg(server.socket())
        .args(["events", "--follow", "--kind", "snapshot", "-o", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    server.ok(&["snapshot", "create", "log@a"]);
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    // The command may have begun before or after the first one.
    let first = next();
    assert_eq!((&first["kind"], &first["subject"]), (&json!("snapshot.created"), &json!("log")));
    server.ok(&["snapshot", "create", "log@b"]);
    assert!(next()["id"].as_u64() > first["id"].as_u64());
    // The events are there after a restart, and the command waits for it.
    assert_eq!(server.stop("-TERM"), Some(0));
    let server = Server::start(dir.path());
    let away = said.next().unwrap().unwrap();
    assert!(away.starts_with("hindcast: ") && away.ends_with("; connecting again"), "{away}");
    server.ok(&["snapshot", "create", "log@c"]);
    assert_eq!(next()["kind"], "snapshot.created");
    assert_eq!(said.next().unwrap().unwrap(), "hindcast: the server is there again");
    child.kill().unwrap();
    child.wait().unwrap();
    server.ok(&["snapshot", "delete", "log@c"]);
    let all = ["snapshot.created", "snapshot.created", "snapshot.created", "snapshot.deleted"];
    assert_eq!(kinds(&server, &["--kind", "snapshot"]), all);
    server.ok(&["volume", "delete", "db", "--force"]);
    assert_eq!(kinds(&server, &["--of", "db", "--since", "-1h"]), ["volume.created", "volume.trashed"]);
    let (code, message) = server.fails(&["events", "--since", "here"]);
    assert!(code == 2 && message.contains("takes a time"), "{message}");
}
