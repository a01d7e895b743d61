//! The server as a process: first start, stopping, killing, its API from outside, and the offline
//! check.

use crate::server::{Server, failure, program, read_response};
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A test that needs a client fails without it: `./dev test` installs it.
pub(crate) fn require(program: &str, packages: &str) {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    assert!(
        found.is_ok_and(|output| output.status.success()),
        "{program} is needed: apt-get install {packages}"
    );
}

/// Bytes that are neither zero nor repeat soon.
pub(crate) fn pattern(len: u32) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// The address that an NBD listener on port 0 got.
fn nbd_address(server: &Server) -> String {
    server.json(&["status"])["listeners"]["nbd"][0].as_str().unwrap().to_owned()
}

fn check(dir: &Path, args: &[&str]) -> (Option<i32>, Value) {
    let output = program().args(["check", "-o", "json", "--data"]).arg(dir).args(args).output().unwrap();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or(Value::Null))
}

#[test]
fn a_stopped_and_a_killed_server_come_back_with_everything() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "a", "--size", "1M"]);
    assert_eq!(server.stop("-TERM"), Some(0));
    assert!(!dir.path().join("hindcast.sock").exists());

    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "b", "--size", "2M"]);
    assert_eq!(server.stop("-KILL"), None);
    assert!(dir.path().join("hindcast.sock").exists());

    let server = Server::start(dir.path());
    let names: Vec<Value> =
        server.json(&["volume", "list"]).as_array().unwrap().iter().map(|v| v["name"].clone()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(server.stop("-INT"), Some(0));
}

#[test]
fn one_directory_has_one_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let second = program().args(["serve", "--log", "off", "--data"]).arg(dir.path()).output();
    assert_eq!(failure(second.unwrap()).0, 4);
    assert_eq!(server.json(&["status"])["health"]["state"], "healthy");
}

#[test]
fn a_bad_configuration_is_a_usage_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("h.toml");
    std::fs::write(&file, "map-cash = 1\n").unwrap();
    let data = dir.path().join("d");
    let data = data.to_str().unwrap();
    for args in [
        &["serve"][..],
        &["serve", "--config", file.to_str().unwrap()],
        &["serve", "--data", data, "--nbd", "nowhere"],
        &["serve", "--data", data, "--create", "--extent-size", "3M", "--log", "off"],
        &["serve", "--data", data, "--iscsi", "unix:/run/x"],
        &["serve", "--data", data, "--iscsi", "127.0.0.1:0/0"],
        &["serve", "--data", data, "--log", "a=b=c"],
    ] {
        let (code, message) = failure(program().args(args).output().unwrap());
        assert_eq!(code, 2, "{args:?}: {message}");
    }
}

#[test]
fn the_api_describes_itself_and_refuses_politely() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "a", "--size", "1M"]);

    let (code, text) = server.http("GET", "/api/v1/openapi.json", "");
    assert_eq!(code, 200);
    let document: Value = serde_json::from_str(&text).unwrap();
    for (path, methods) in [
        ("/api/v1/status", &["get"][..]),
        ("/api/v1/health", &["get"]),
        ("/api/v1/pool", &["get", "patch"]),
        ("/api/v1/pool/pvs", &["get", "post"]),
        ("/api/v1/pool/pvs/{pv}", &["patch", "delete"]),
        ("/api/v1/volumes", &["get", "post"]),
        ("/api/v1/volumes/{name}", &["get", "patch", "delete"]),
        ("/api/v1/volumes/{name}/stats", &["get"]),
        ("/api/v1/targets", &["get", "post"]),
        ("/api/v1/targets/{target}", &["get", "patch", "delete"]),
        ("/api/v1/targets/{target}/luns", &["post"]),
        ("/api/v1/targets/{target}/luns/{lun}", &["delete"]),
        ("/api/v1/targets/{target}/rules", &["post"]),
        ("/api/v1/targets/{target}/rules/{number}", &["delete"]),
        ("/api/v1/targets/{target}/chap", &["put", "delete"]),
        ("/api/v1/target-defaults", &["get"]),
        ("/api/v1/target-defaults/rules", &["post"]),
        ("/api/v1/target-defaults/rules/{number}", &["delete"]),
        ("/api/v1/target-defaults/chap", &["put", "delete"]),
        ("/healthz", &["get"]),
        ("/metrics", &["get"]),
    ] {
        for method in methods {
            assert!(document["paths"][path][method].is_object(), "{method} {path}");
        }
    }
    assert!(document["components"]["schemas"]["Volume"]["properties"]["chunk_size"].is_object());
    assert!(document["components"]["schemas"]["Target"]["properties"]["sessions"].is_object());
    assert!(
        document["components"]["schemas"]["Chap"]["properties"]["secret"].is_null(),
        "secrets are not told"
    );

    assert_eq!(server.http("GET", "/healthz", ""), (200, "healthy\n".into()));
    for (method, path, body, code, kind) in [
        ("GET", "/api/v1/volumes/none", "", 404, "not_found"),
        ("GET", "/api/v1/nothing", "", 404, "not_found"),
        ("PUT", "/api/v1/volumes", "", 405, "unsupported"),
        ("POST", "/api/v1/volumes", "{", 400, "invalid"),
        ("POST", "/api/v1/volumes", r#"{"name":"b","size":-1}"#, 400, "invalid"),
        ("POST", "/api/v1/volumes", r#"{"name":"b","size":1048576,"sice":1}"#, 400, "invalid"),
        ("POST", "/api/v1/volumes", r#"{"name":"a","size":1048576}"#, 409, "conflict"),
        ("PATCH", "/api/v1/volumes/a", r#"{"size":512}"#, 409, "conflict"),
        ("DELETE", "/api/v1/volumes/a?force=perhaps", "", 400, "invalid"),
        ("GET", "/api/v1/targets/none", "", 404, "not_found"),
        ("DELETE", "/api/v1/targets/a", "", 409, "conflict"),
        ("POST", "/api/v1/targets", r#"{"name":"a"}"#, 409, "conflict"),
        ("POST", "/api/v1/targets/a/rules", r#"{"initiator":"x"}"#, 400, "invalid"),
        ("DELETE", "/api/v1/targets/a/rules/1", "", 404, "not_found"),
        ("PUT", "/api/v1/targets/a/chap", r#"{"user":"u","secret":"short"}"#, 400, "invalid"),
        ("DELETE", "/api/v1/target-defaults/rules/x", "", 400, "invalid"),
    ] {
        let (actual, text) = server.http(method, path, body);
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((actual, &answer["kind"]), (code, &json!(kind)), "{method} {path}: {text}");
        assert!(!answer["message"].as_str().unwrap().is_empty());
    }
    let long = format!(r#"{{"name":"{}","size":1}}"#, "x".repeat(100_000));
    let (_, text) = server.http("POST", "/api/v1/volumes", &long);
    assert!(text.contains("\"kind\":\"invalid\""), "{text}");
}

#[test]
fn metrics_are_in_prometheus_form() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "a", "--size", "1M"]);
    let (code, text) = server.http("GET", "/metrics", "");
    assert_eq!(code, 200);
    // The server closes, so the body is not chunked.
    assert!(text.ends_with("# EOF\n"), "{text}");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("hindcast_") || name.starts_with("process_"), "{line}");
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
    for metric in [
        "hindcast_pool_health{state=\"healthy\"} 1",
        "hindcast_volume_size_bytes{volume=\"a\"} 1048576",
        "hindcast_syncs_total{purpose=\"journal\"} ",
        "hindcast_journal_lsn{position=\"destaged\"} ",
        "hindcast_pv_size_bytes{pv=\"pv-0.img\"} ",
        "hindcast_map_cache_hits_total{policy=\"s3-fifo\"} ",
        "hindcast_nbd_requests_total{command=\"read\"} 0",
        "hindcast_iscsi_sessions 0",
        "hindcast_iscsi_commands_total{kind=\"read\"} 0",
    ] {
        assert!(text.contains(metric), "{metric} is not in {text}");
    }
}

#[test]
fn tcp_asks_for_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "correct-horse-battery\n").unwrap();
    let socket = format!("unix:{}", dir.path().join("d/hindcast.sock").display());
    let args = ["--nbd", "none", "--api", &socket, "--api", "127.0.0.1:0", "--api-token-file"];
    let server = Server::start_with(&dir.path().join("d"), &[&args[..], &[token.to_str().unwrap()]].concat());
    let address = server.json(&["status"])["listeners"]["api"][1].as_str().unwrap().to_owned();

    let get = |path: &str, header: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n")
            .unwrap();
        read_response(stream).0
    };
    for path in ["/api/v1/status", "/api/v1/volumes", "/metrics"] {
        assert_eq!(get(path, ""), 401, "{path}");
        assert_eq!(get(path, "Authorization: Bearer wrong-horse-battery\r\n"), 401, "{path}");
        assert_eq!(get(path, "Authorization: Bearer correct-horse-battery\r\n"), 200, "{path}");
    }
    assert_eq!(get("/healthz", ""), 200);

    let url = format!("http://{address}");
    let without = program().args(["--socket", &url, "volume", "list"]).output().unwrap();
    assert_eq!(failure(without).0, 1);
    let with = program()
        .args(["--socket", &url, "--token-file"])
        .arg(&token)
        .args(["volume", "list"])
        .output()
        .unwrap();
    assert!(with.status.success());
}

#[test]
fn every_volume_is_an_export() {
    require("nbdinfo", "libnbd-bin");
    require("nbdcopy", "libnbd-bin");
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_with(dir.path(), &["--nbd", "127.0.0.1:0"]);
    let address = nbd_address(&server);
    let nbd = |program: &str, args: &[&str]| Command::new(program).args(args).output().unwrap();
    let info = |name: &str| nbd("nbdinfo", &["--json", &format!("nbd://{address}/{name}")]);
    assert!(!info("").status.success(), "no volume, no default export");
    server.ok(&["volume", "create", "a", "--size", "8M"]);
    let only: Value = serde_json::from_slice(&info("").stdout).unwrap();
    assert_eq!(only["exports"][0]["export-size"], 8 << 20);
    server.ok(&["volume", "create", "b", "--size", "4M", "--read-only"]);
    assert!(!info("").status.success(), "two volumes, no default export");
    assert!(!info("a@yesterday").status.success());
    let b: Value = serde_json::from_slice(&info("b").stdout).unwrap();
    assert_eq!(b["exports"][0]["is_read_only"], true);
    assert_eq!(b["exports"][0]["can_multi_conn"], true);
    let all: Value =
        serde_json::from_slice(&nbd("nbdinfo", &["--list", "--json", &format!("nbd://{address}")]).stdout)
            .unwrap();
    let names: Vec<&Value> = all["exports"].as_array().unwrap().iter().map(|e| &e["export-name"]).collect();
    assert_eq!(names, ["a", "b"]);

    // What is written before a kill is there after it.
    let image = dir.path().join("image");
    let data = pattern(8 << 20);
    std::fs::write(&image, &data).unwrap();
    let image = image.to_str().unwrap();
    assert!(nbd("nbdcopy", &["--flush", image, &format!("nbd://{address}/a")]).status.success());
    let stats = server.json(&["volume", "show", "a"]);
    assert!(stats["stats"]["write_bytes"].as_u64().unwrap() > 0, "{stats}");
    assert_eq!(server.stop("-KILL"), None);
    let server = Server::start_with(dir.path(), &["--nbd", "127.0.0.1:0"]);
    let back = dir.path().join("back");
    let from = format!("nbd://{}/a", nbd_address(&server));
    assert!(nbd("nbdcopy", &[&from, back.to_str().unwrap()]).status.success());
    assert!(std::fs::read(back).unwrap() == data, "the volume differs from what was written");
}

#[test]
fn a_directory_without_room_is_out_of_space() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("d");
    let args = ["serve", "--create", "--log", "off", "--journal-size", "4E", "--data"];
    let (code, message) = failure(program().args(args).arg(&data).output().unwrap());
    assert_eq!(code, 6, "{message}");
    assert!(message.contains("--journal-size") && message.contains("--pool-size"), "{message}");
    assert!(!data.join("pv-0.img").exists());
}

#[test]
fn a_full_pool_refuses_writes_until_it_grows() {
    require("nbdcopy", "libnbd-bin");
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_with(dir.path(), &["--nbd", "127.0.0.1:0"]);
    server.ok(&["volume", "create", "a", "--size", "96M"]);
    let image = dir.path().join("image");
    std::fs::write(&image, pattern(96 << 20)).unwrap();
    let url = format!("nbd://{}/a", nbd_address(&server));
    let copy = || Command::new("nbdcopy").args(["--flush", image.to_str().unwrap(), &url]).output().unwrap();

    let full = copy();
    assert!(!full.status.success());
    let text = String::from_utf8_lossy(&full.stderr).into_owned();
    assert!(text.contains("No space left on device"), "{text}");
    assert_eq!(server.json(&["status"])["health"]["state"], "warning");
    server.ok(&["volume", "create", "b", "--size", "1M"]);
    server.ok(&["pool", "add", "pv-1.img", "--size", "96M"]);
    let copied = copy();
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
}

#[test]
fn check_runs_offline_only() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(check(&dir.path().join("none"), &[]).0, Some(3));
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "a", "--size", "1M"]);
    assert_eq!(check(dir.path(), &[]).0, Some(4), "the pool is in use");
    // The check counts what the catalog holds, so the creation has to have reached it.
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let journal = &server.json(&["pool", "show"])["journal"];
        if journal["destaged_lsn"] == journal["sequenced_lsn"] {
            break;
        }
        assert!(Instant::now() < end, "the server does not destage: {journal}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.stop("-TERM"), Some(0));
    let (code, report) = check(dir.path(), &[]);
    assert_eq!((code, &report["clean"]), (Some(0), &json!(true)), "{report}");
    assert_eq!((&report["pvs"], &report["volumes"], &report["findings"]), (&json!(1), &json!(1), &json!([])));
    assert_eq!(check(dir.path(), &["--repair"]).0, Some(0));
}
