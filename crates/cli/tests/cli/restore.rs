//! Backups of the metadata that a real server makes, and a catalog that is restored from one.

use crate::server::{Server, program};
use serde_json::Value;
use std::path::Path;

fn restore(dir: &Path, args: &[&str]) -> (Option<i32>, Value) {
    let output =
        program().args(["restore-metadata", "-o", "json", "--data"]).arg(dir).args(args).output().unwrap();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_default())
}

#[test]
fn a_lost_catalog_comes_back_from_the_backup_of_a_stop() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "1M"]);
    let made = server.json(&["pool", "backup-metadata"]);
    assert_eq!(made["pvs"], 1);
    assert!(Path::new(made["path"].as_str().unwrap()).starts_with(dir.path().join("metadata")));
    let elsewhere = dir.path().join("else/where");
    let other = server.json(&["pool", "backup-metadata", "--to", elsewhere.to_str().unwrap()]);
    assert!(other["sequence"].as_u64() > made["sequence"].as_u64());
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 1);

    // One of a running server is shown, and not restored.
    let (code, report) = restore(dir.path(), &["--from", other["path"].as_str().unwrap()]);
    assert_eq!((code, &report["closed"], &report["restored"]), (Some(0), &false.into(), &false.into()));
    assert_eq!(server.stop("-TERM"), Some(0));
    assert_eq!(restore(dir.path(), &["--from", other["path"].as_str().unwrap(), "--yes"]).0, Some(4));

    for from in [None, Some(dir.path().join("pv-0.img"))] {
        std::fs::remove_file(dir.path().join("catalog.redb")).unwrap();
        let refused = program()
            .args(["serve", "--nbd=none", "--iscsi=none", "--data"])
            .arg(dir.path())
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(3) && told.contains("restore-metadata"), "{told}");
        let from: Vec<&str> = from.iter().flat_map(|path| ["--from", path.to_str().unwrap()]).collect();
        let (code, report) = restore(dir.path(), &from);
        assert_eq!((code, &report["closed"], &report["restored"]), (Some(0), &true.into(), &false.into()));
        assert!(!dir.path().join("catalog.redb").exists(), "without --yes nothing is written");
        let (code, report) = restore(dir.path(), &[&from[..], &["--yes"]].concat());
        assert_eq!((code, &report["restored"]), (Some(0), &true.into()));
        let check = program().args(["check", "--data"]).arg(dir.path()).output().unwrap();
        assert_eq!(check.status.code(), Some(0), "{}", String::from_utf8_lossy(&check.stdout));
    }
    let server = Server::start(dir.path());
    assert_eq!(server.json(&["volume", "show", "db"])["name"], "db");
}
