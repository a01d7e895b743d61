//! Traces of disk accesses.

use super::server::{Server, program};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// Draws a trace without a server. Returns (exit code, stdout, stderr).
fn draw(file: &Path, args: &[&str]) -> (i32, String, String) {
    let output = program().args(["pool", "trace", "draw"]).arg(file).args(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn wait_for_end(server: &Server) -> Value {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let trace = server.json(&["pool", "trace", "status"]);
        if trace["running"] == json!(false) {
            return trace;
        }
        assert!(Instant::now() < until, "{trace}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Makes the pool access its disks: labels and stamps of another physical volume, and copies of a
/// backup of the metadata.
fn work(server: &Server, pv: &str) {
    server.ok(&["pool", "add", pv, "--size", "64M"]);
    server.ok(&["pool", "backup-metadata"]);
}

#[test]
fn a_trace_is_made_and_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    assert!(server.ok(&["pool", "trace", "status"]).contains("no trace"));
    assert_eq!(server.fails(&["pool", "trace", "stop"]).0, 3);
    let begun = server.json(&["pool", "trace", "start"]);
    assert_eq!((&begun["running"], &begun["max_size"]), (&json!(true), &json!(256 << 20)));
    assert_eq!(server.fails(&["pool", "trace", "start"]).0, 4, "one at a time");
    work(&server, "a.img");
    let ended = server.json(&["pool", "trace", "stop"]);
    assert_eq!(
        (&ended["running"], &ended["reason"], &ended["lost"]),
        (&json!(false), &json!("stopped"), &json!(0))
    );
    assert!(ended["accesses"].as_u64().unwrap() >= 2, "{ended}");
    let file = Path::new(ended["path"].as_str().unwrap());
    assert!(file.starts_with(dir.path().join("traces")), "{ended}");
    assert_eq!(ended["size"], json!(file.metadata().unwrap().len()));
    let table = server.ok(&["pool", "trace", "status"]);
    assert!(table.contains("ended: stopped"), "{table}");

    let pictures = ["access", "seek", "density"].map(|name| dir.path().join(format!("{name}.svg")));
    let [access, seek, density] = [0, 1, 2].map(|n| pictures[n].to_str().unwrap());
    let (code, text, error) = draw(file, &["--access", access, "--seek", seek, "--density", density]);
    assert_eq!(code, 0, "{error}");
    assert!(text.contains("a.img") && text.contains("open") && text.contains("BUSY"), "{text}");
    for picture in &pictures {
        let svg = std::fs::read_to_string(picture).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("a.img") && !svg.contains("NaN"), "{svg}");
    }
    let (code, text, _) = draw(file, &["-o", "json", "--disk", "a.img", "--op", "sync"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &report["ended"]), (0, &json!("stopped")));
    let disks = report["disks"].as_array().unwrap();
    assert!(disks.len() == 1 && disks[0]["rows"][0]["op"] == "sync", "{report}");
    assert_eq!(draw(file, &["--disk", "nothing"]).0, 3);
    assert_eq!(draw(file, &["--cause", "nothing"]).0, 2);
    assert_eq!(draw(file, &["--density", density, "--slice", "1"]).0, 2);
}

#[test]
fn a_trace_ends_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["pool", "trace", "start", "--for", "1s"]);
    assert_eq!(wait_for_end(&server)["reason"], "time");
    let file = dir.path().join("small.trace");
    let path = file.to_str().unwrap();
    for args in [["--max-size", "1K"], ["--for", "0s"]] {
        assert_eq!(server.fails(&[&["pool", "trace", "start"], &args[..]].concat()).0, 2);
    }
    server.ok(&["pool", "trace", "start", "--out", path, "--max-size", "4K"]);
    for n in 0..200 {
        if server.json(&["pool", "trace", "status"])["running"] == json!(false) {
            break;
        }
        work(&server, &format!("pv-{}.img", n + 1));
    }
    let ended = wait_for_end(&server);
    assert_eq!((&ended["reason"], &ended["path"]), (&json!("size"), &json!(path)));
    assert!(file.metadata().unwrap().len() < (4 << 10) + 64, "the end has a block of its own");
    let (code, message) = server.fails(&["pool", "trace", "start", "--out", path]);
    assert!(code == 4 && message.contains("exists"), "{message}");
    let own = dir.path().join("journal-99999");
    assert_eq!(server.fails(&["pool", "trace", "start", "--out", own.to_str().unwrap()]).0, 4);

    // A stop of the server ends a trace.
    let last = server.json(&["pool", "trace", "start"])["path"].as_str().unwrap().to_owned();
    assert_eq!(server.stop("-TERM"), Some(0));
    let (code, text, _) = draw(Path::new(&last), &["-o", "json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &report["ended"]), (0, &json!("shutdown")));
}

#[test]
fn a_trace_lies_in_an_allowed_directory() {
    let (dir, allowed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start_with(dir.path(), &["--allow-path", allowed.path().to_str().unwrap()]);
    let elsewhere = dir.path().join("x.trace");
    let (_, message) = server.fails(&["pool", "trace", "start", "--out", elsewhere.to_str().unwrap()]);
    assert!(message.contains("--allow-path"), "{message}");
    let file = allowed.path().join("x.trace");
    server.ok(&["pool", "trace", "start", "--out", file.to_str().unwrap()]);
    server.ok(&["pool", "trace", "stop"]);
    assert_eq!(draw(&file, &[]).0, 0);
}

#[test]
fn damaged_and_foreign_files_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["pool", "trace", "start"]);
    work(&server, "a.img");
    let ended = server.json(&["pool", "trace", "stop"]);
    let whole = std::fs::read(ended["path"].as_str().unwrap()).unwrap();
    let file = dir.path().join("copy");
    let drawn = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        draw(&file, &[])
    };
    let (code, text, _) = drawn(&whole[..whole.len() - 20]);
    assert!(code == 0 && text.contains("cut off") && text.contains("open"), "{text}");
    let (code, _, error) = drawn(&whole[..30]);
    assert!(code == 1 && error.contains("within its head"), "{error}");
    let (code, _, error) =
        drawn(b"some other file, which is long enough to hold the head of a trace, and more");
    assert!(code == 2 && error.contains("no trace of Hindcast"), "{error}");
    let mut damaged = whole.clone();
    damaged[100] ^= 1;
    let (code, _, error) = drawn(&damaged);
    assert!(code == 1 && error.contains("byte 64 does not verify"), "{error}");
    assert_eq!(draw(&dir.path().join("missing"), &[]).0, 3);
}
