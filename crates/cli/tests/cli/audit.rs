//! The audit of a running server: a disk that does not answer, clients that go away, and what is
//! bounded.

use crate::identity::{answer, send, token, with_tcp};
use crate::server::{Server, failure};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Puts a pipe in the place of the audit's next file. A write waits until the pipe is read.
fn blocked(server: &Server) -> PathBuf {
    let month = jiff::Timestamp::now().strftime("%Y-%m.jsonl").to_string();
    let path = server.dir.join("audit").join(month);
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

/// Sends a request over the Unix socket, and waits for its response for some seconds only.
fn ask(server: &Server, method: &str, path: &str, body: &str) -> (UnixStream, String) {
    let mut stream = UnixStream::connect(server.socket()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let length = body.len();
    let head = format!(
        "{method} /api/v1{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    (stream, body.to_owned())
}

#[test]
fn a_disk_that_does_not_answer_the_audit_delays_no_reader() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let pipe = blocked(&server);
    // More than there are threads for administration.
    let volume = |n: usize| json!({"name": format!("v{n}"), "size": 1 << 20}).to_string();
    let changes: Vec<_> = (0..20).map(|n| ask(&server, "POST", "/volumes", &volume(n)).0).collect();
    std::thread::sleep(Duration::from_millis(300));
    let begun = Instant::now();
    for path in ["/health", "/status", "/volumes", "/snapshots", "/session"] {
        let response = answer(ask(&server, "GET", path, "").0);
        assert_eq!(response.status, 200, "{path}: {}", response.body);
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let volumes = answer(ask(&server, "GET", "/volumes", "").0).json();
    assert_eq!(volumes.as_array().unwrap().len(), 20, "the changes wait for the audit only");
    let entries = BufReader::new(File::open(&pipe).unwrap());
    let read = std::thread::spawn(move || entries.lines().take(20).map(Result::unwrap).collect::<Vec<_>>());
    for change in changes {
        assert_eq!(answer(change).status, 201);
    }
    let read = read.join().unwrap();
    assert!(read.iter().all(|line| line.contains("\"status\":201")), "{read:?}");
}

#[test]
fn a_client_that_goes_away_does_not_keep_its_change_out_of_the_audit() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.toml");
    fs::write(&config, "[hooks.v]\nbefore = \"sleep 1\"\nafter = \"true\"\n").unwrap();
    let data = dir.path().join("pool");
    let server = Server::start_with(&data, &["--config", config.to_str().unwrap()]);
    server.ok(&["volume", "create", "v", "--size", "1M"]);
    let body = json!({"snapshots": [{"volume": "v", "name": "s"}]}).to_string();
    let (stream, _) = ask(&server, "POST", "/snapshots", &body);
    std::thread::sleep(Duration::from_millis(300));
    drop(stream);
    let taken = |entry: &Value| entry["route"] == "/api/v1/snapshots" && entry["status"] == 201;
    let end = Instant::now() + Duration::from_secs(10);
    while !server.json(&["audit"]).as_array().unwrap().iter().any(taken) {
        assert!(Instant::now() < end, "{}", server.ok(&["audit"]));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(server.json(&["snapshot", "list", "v"]).as_array().unwrap().len(), 1);
}

#[test]
fn refusals_of_a_caller_do_not_fill_the_audit() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = with_tcp(dir.path(), &[]);
    let viewer = token(&server, "v", "viewer", &[]);
    for _ in 0..60 {
        assert_eq!(send(address, "DELETE", "/api/v1/volumes/x", &[&viewer], None).status, 403);
    }
    let of_viewer = server.json(&["audit", "--who", "v"]).as_array().unwrap().len();
    assert!((16..=20).contains(&of_viewer), "{of_viewer}");
    // The stop of the server writes how many were left out.
    let data = server.dir.clone();
    assert_eq!(server.stop("-TERM"), Some(0));
    let server = Server::start(&data);
    let all = server.json(&["audit", "--who", "v"]);
    let counted: u64 = all.as_array().unwrap().iter().filter_map(|e| e["suppressed"].as_u64()).sum();
    assert_eq!(counted as usize + of_viewer, 60, "{all}");
}

#[test]
fn verification_lists_every_problem_and_a_lost_newest_file() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    for n in 0..6 {
        server.ok(&["volume", "create", &format!("vol{n}"), "--size", "1M"]);
    }
    assert_eq!(server.json(&["audit", "--limit", "4"]).as_array().unwrap().len(), 4);
    assert_eq!(server.stop("-TERM"), Some(0));
    let month = fs::read_dir(dir.path().join("audit")).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&month).unwrap();
    fs::write(&month, text.replace("vol1", "wol1").replace("vol4", "wol4")).unwrap();
    let server = Server::start(dir.path());
    let (code, message) = failure(server.run(&["audit", "--verify"]));
    assert_eq!(code, 1);
    assert!(message.contains("not whole at 2 places") && message.contains("line 3"), "{message}");
    drop(server);
    fs::remove_file(&month).unwrap();
    let server = Server::start(dir.path());
    let (_, message) = failure(server.run(&["audit", "--verify"]));
    assert!(message.contains("is missing"), "{message}");
}

#[test]
fn a_log_in_is_the_act_of_the_user_who_logs_in() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = with_tcp(dir.path(), &[]);
    let file = dir.path().join("password");
    fs::write(&file, "correct horse\n").unwrap();
    for name in ["anna", "bob"] {
        let password = ["--role", "viewer", "--password-file", file.to_str().unwrap()];
        server.ok(&[&["access", "user", "add", name], &password[..]].concat());
    }
    let log_in = |name: &str, password: &str, headers: &[&str]| {
        let body = json!({"name": name, "password": password});
        send(address, "POST", "/api/v1/session", headers, Some(&body))
    };
    let begun = log_in("anna", "correct horse", &[]);
    let cookie = format!("Cookie: {}", begun.header("set-cookie").unwrap().split(';').next().unwrap());
    assert_eq!(log_in("bob", "correct horse", &[&cookie, "Sec-Fetch-Site: same-origin"]).status, 201);
    assert_eq!(log_in("bob", "wrong horse!", &[&cookie, "Sec-Fetch-Site: same-origin"]).status, 401);
    let all = server.json(&["audit"]);
    let who: Vec<Option<&str>> = all
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["route"] == "/api/v1/session")
        .map(|entry| entry["who"].as_str())
        .collect();
    assert_eq!(who, [Some("anna"), Some("bob"), None]);
}
