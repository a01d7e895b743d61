//! Faults around the pool as a user meets them: messages, exit codes, and what still works.

use crate::server::{Server, failure, program};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// Bytes that are more than the server reads of a stream before it refuses it, and more than any
/// buffer between.
const ENDLESS: u64 = 4 << 30;

/// Starts `hindcast import` and feeds it `head`, then zeros, until it takes no more.
pub(crate) fn feed(mut child: Child, head: &[u8]) -> (i32, String, u64) {
    let mut input = child.stdin.take().unwrap();
    let zeros = vec![0; 1 << 20];
    let mut sent = 0;
    if input.write_all(head).is_ok() {
        while sent < ENDLESS && input.write_all(&zeros).is_ok() {
            sent += zeros.len() as u64;
        }
    }
    drop(input);
    let (code, text) = failure(child.wait_with_output().unwrap());
    (code, text, sent)
}

#[test]
fn a_refused_import_is_answered_before_the_stream_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "v", "--size", "1M"]);
    server.ok(&["snapshot", "create", "v@s"]);
    let file = dir.path().join("stream");
    server.ok(&["export", "v@s", "--file", file.to_str().unwrap()]);
    let stream = std::fs::read(&file).unwrap();
    // The volume is there, and is not what the stream builds upon.
    server.ok(&["volume", "create", "w", "--size", "2M"]);
    for _ in 0..3 {
        let begun = Instant::now();
        let mut command = program();
        command.arg("--socket").arg(server.socket()).args(["import", "w"]);
        let child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (code, text, sent) = feed(child, &stream);
        assert_eq!(code, 4, "{text}");
        assert!(text.contains("import the stream") || text.contains("import"), "{text}");
        assert!(sent < 256 << 20, "{sent} bytes were sent before the answer");
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
}

#[test]
fn a_damaged_file_of_schedules_does_not_stop_the_storage() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "v", "--size", "1M"]);
    server.ok(&["schedule", "create", "often", "v", "--every", "1h"]);
    assert_eq!(server.stop("-TERM"), Some(0));
    let file = dir.path().join("schedules.json");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes).unwrap();

    let server = Server::start(dir.path());
    assert_eq!(server.json(&["volume", "list"])[0]["name"], "v", "the volumes are served");
    let health = server.json(&["status"])["health"].clone();
    assert_eq!(health["problems"][0]["code"], "schedules-unreadable", "{health}");
    for args in [
        &["schedule", "list"][..],
        &["schedule", "show", "often"],
        &["schedule", "create", "new", "v", "--every", "1h"],
    ] {
        let (code, text) = server.fails(args);
        assert!(code == 1 && text.contains("schedules.json"), "{args:?}: {code} {text}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), bytes, "nothing replaces the file");
    assert_eq!(server.stop("-TERM"), Some(0));

    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let server = Server::start(dir.path());
    assert_eq!(server.json(&["schedule", "list"])[0]["name"], "often");
    assert_eq!(server.json(&["status"])["health"]["state"], "healthy");
}

#[test]
fn a_schedule_that_fails_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "v", "--size", "1M"]);
    server.ok(&["schedule", "create", "often", "v", "--every", "10s"]);
    server.ok(&["volume", "delete", "v", "--force"]);
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let health = server.json(&["status"])["health"].clone();
        if health["problems"][0]["code"] == "schedule-failing" {
            let text = health["problems"][0]["message"].as_str().unwrap();
            assert!(text.contains("often") && text.contains("its volumes were deleted"), "{text}");
            break;
        }
        assert!(Instant::now() < end, "{health}");
        std::thread::sleep(Duration::from_millis(100));
    }
    server.ok(&["schedule", "delete", "often"]);
    assert_eq!(server.json(&["status"])["health"]["state"], "healthy");
}

#[test]
fn a_hangup_does_not_end_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "v", "--size", "1M"]);
    server.signal("-HUP");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(server.json(&["volume", "list"])[0]["name"], "v");
    assert_eq!(server.stop("-TERM"), Some(0), "and it still stops in order");
}

/// The names in a directory, each with its length, and when the directory itself was changed.
/// `None` where there is no directory.
fn state(dir: &Path) -> Option<(SystemTime, BTreeMap<String, u64>)> {
    let changed = std::fs::metadata(dir).ok()?.modified().unwrap();
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    let files = entries.map(|e| (e.file_name().into_string().unwrap(), e.metadata().unwrap().len()));
    Some((changed, files.collect()))
}

/// `hindcast serve` ends by itself, since there is no pool in `data`, and writes nothing.
fn refused(data: &Path, args: &[&str]) -> String {
    let before = state(data);
    let command = ["serve", "--log", "off", "--pool-size", "64M", "--journal-size", "16M", "--data"];
    let (code, text) = failure(program().args(command).arg(data).args(args).output().unwrap());
    assert_eq!(code, 3, "{args:?}: {text}");
    assert!(text.contains(data.to_str().unwrap()) && text.contains("mounted?"), "{args:?}: {text}");
    assert_eq!(state(data), before, "{args:?}: something was written");
    text
}

#[test]
fn a_new_pool_is_made_only_where_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (empty, missing) = (dir.path().join("empty"), dir.path().join("on/the/way"));
    std::fs::create_dir(&empty).unwrap();
    for data in [&empty, &missing] {
        assert!(refused(data, &[]).contains("--create creates a new pool"));
        assert!(refused(data, &["--create=false"]).contains("--create"));
        refused(data, &["--accept-journal-loss"]);
        // There is nothing to show, and what only shows makes nothing.
        refused(data, &["--force-stale"]);
        refused(data, &["--force-stale", "--create"]);
    }
    assert!(!dir.path().join("on").exists());

    for data in [&empty, &missing] {
        let server = Server::start(data);
        server.ok(&["volume", "create", "v", "--size", "1M"]);
        assert_eq!(server.stop("-TERM"), Some(0));
        // Another start with these options opens the same pool.
        for again in [&[][..], &["--create"], &["--create=false"], &["--force-stale", "--create"]] {
            let server = Server::start_with(data, again);
            assert_eq!(server.json(&["volume", "list"])[0]["name"], "v", "{again:?}");
            server.stop("-TERM");
        }
    }
}

#[test]
fn a_creation_that_was_cut_short_is_begun_again_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(Server::start(dir.path()).stop("-TERM"), Some(0));
    // As it is before the catalog gets its name: there is no journal, and no backup.
    std::fs::remove_dir_all(dir.path().join("metadata")).unwrap();
    for name in state(dir.path()).unwrap().1.into_keys().filter(|name| name.starts_with("journal")) {
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    std::fs::rename(dir.path().join("catalog.redb"), dir.path().join("catalog.redb.new")).unwrap();
    std::fs::write(dir.path().join("catalog.redb.draft"), "the next one").unwrap();
    refused(dir.path(), &[]);
    let server = Server::start(dir.path());
    assert_eq!(server.json(&["status"])["health"]["state"], "healthy");
}

#[test]
fn a_data_directory_that_is_not_mounted_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (data, away) = (dir.path().join("data"), dir.path().join("away"));
    let server = Server::start(&data);
    server.ok(&["volume", "create", "v", "--size", "1M"]);
    assert_eq!(server.stop("-TERM"), Some(0));
    std::fs::rename(&data, &away).unwrap();
    std::fs::create_dir(&data).unwrap();
    refused(&data, &[]);
    std::fs::remove_dir(&data).unwrap();
    std::fs::rename(&away, &data).unwrap();
    let server = Server::start(&data);
    assert_eq!(server.json(&["volume", "list"])[0]["name"], "v");
}
