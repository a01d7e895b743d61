//! `hindcast check` on the files that a real server left behind.

use crate::server::{Server, program};
use serde_json::Value;
use std::path::Path;

fn check(dir: &Path, args: &[&str]) -> (Option<i32>, Value) {
    let output = program().args(["check", "-o", "json", "--data"]).arg(dir).args(args).output().unwrap();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
}

/// Flips a bit in the middle of a file.
fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn damaged_files_beside_the_storage_and_labels_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "1M"]);
    server.ok(&["schedule", "create", "hourly", "db", "--every", "1h", "--keep-last", "3"]);
    drop(server);
    let (code, report) = check(dir.path(), &[]);
    assert_eq!((code, &report["clean"], &report["storage_clean"]), (Some(0), &true.into(), &true.into()));

    damage(&dir.path().join("schedules.json"));
    let (code, report) = check(dir.path(), &["--repair"]);
    assert_eq!((code, &report["clean"], &report["storage_clean"]), (Some(1), &false.into(), &true.into()));
    let finding = &report["findings"][0];
    assert_eq!((&finding["code"], &finding["object"]), (&"server-file".into(), &"schedules.json".into()));
    assert_eq!(finding["repairable"], false);
    std::fs::remove_file(dir.path().join("schedules.json")).unwrap();

    // A label that is gone is written again where the operator names the disk.
    let pv = std::fs::OpenOptions::new().write(true).open(dir.path().join("pv-0.img")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&pv, &[0; 4096], 0).unwrap();
    let (code, report) = check(dir.path(), &["--repair"]);
    assert_eq!((code, &report["findings"][0]["code"]), (Some(1), &"label".into()));
    let (code, report) = check(dir.path(), &["--repair", "--relabel", "pv-0.img"]);
    assert_eq!((code, &report["findings"][0]["repaired"]), (Some(0), &true.into()));
    let server = Server::start(dir.path());
    assert_eq!(server.json(&["volume", "show", "db"])["name"], "db");
}
