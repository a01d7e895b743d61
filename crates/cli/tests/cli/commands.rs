//! Every command against a real server: results, JSON shapes, and exit codes.

use crate::server::{Server, failure, program};
use serde_json::{Value, json};

const M: u64 = 1 << 20;

#[test]
fn a_volume_from_creation_to_deletion() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("made/on/the/way"));
    assert_eq!(server.json(&["volume", "list"]), json!([]));

    let made = server.json(&["volume", "create", "db", "--size", "10M", "--chunk", "64K", "--block", "4K"]);
    assert_eq!(made["size"], 10 * M);
    assert_eq!(made["chunk_size"], 64 << 10);
    assert_eq!(made["block_size"], 4096);
    assert_eq!(made["read_only"], false);
    assert!(made["created"].as_str().unwrap().ends_with('Z'), "{made}");
    assert_eq!(made["uuid"].as_str().unwrap().len(), 36);
    for counter in ["reads", "read_bytes", "writes", "write_bytes", "flushes", "discards", "errors"] {
        assert_eq!(made["stats"][counter], 0, "{counter}");
    }
    let plain = server.json(&["volume", "create", "plain", "--size", "1.5G"]);
    assert_eq!((&plain["chunk_size"], &plain["block_size"]), (&json!(16384), &json!(512)));

    let names: Vec<Value> =
        server.json(&["volume", "list"]).as_array().unwrap().iter().map(|v| v["name"].clone()).collect();
    assert_eq!(names, ["db", "plain"]);
    assert!(server.ok(&["volume", "list"]).lines().any(|l| l.starts_with("db ") && l.contains("10 MiB")));
    assert_eq!(server.json(&["volume", "show", "db"])["uuid"], made["uuid"]);

    assert_eq!(server.json(&["volume", "resize", "db", "--size", "20M"])["size"], 20 * M);
    assert_eq!(server.fails(&["volume", "resize", "db", "--size", "5M"]).0, 4);
    assert_eq!(server.json(&["volume", "resize", "db", "--size", "5M", "--force"])["size"], 5 * M);
    assert_eq!(server.json(&["volume", "set", "db", "--read-only"])["read_only"], true);
    assert_eq!(server.json(&["volume", "set", "db", "--writable"])["read_only"], false);
    let renamed = server.json(&["volume", "rename", "db", "db2"]);
    assert_eq!((&renamed["name"], &renamed["uuid"]), (&json!("db2"), &made["uuid"]));
    assert_eq!(server.fails(&["volume", "show", "db"]).0, 3);

    assert_eq!(server.json(&["volume", "stats"]).as_array().unwrap().len(), 2);
    let lines = server.ok(&["volume", "stats", "db2", "--watch", "0.1", "--count", "2", "-o", "json"]);
    assert_eq!(lines.lines().count(), 2);
    for line in lines.lines() {
        let rates: Value = serde_json::from_str(line).unwrap();
        assert_eq!(rates[0]["reads_per_second"], 0.0);
    }

    let deleted = server.ok(&["volume", "delete", "db2"]);
    assert!(
        deleted.starts_with("deleted db2; it stays in the trash for 23 h") || deleted.contains("24 h"),
        "{deleted}"
    );
    assert_eq!(server.json(&["volume", "delete", "plain", "--now"]), serde_json::json!({}));
    assert_eq!(server.json(&["status"])["volumes"], 0);
}

#[test]
fn exit_codes_tell_what_went_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "a", "--size", "1M"]);

    let cases: [(&[&str], i32); 12] = [
        (&["volume", "create", "b"], 2),
        (&["volume", "create", "b", "--size", "1Q"], 2),
        (&["volume", "create", "-o", "json", "no/slash", "--size", "1M"], 2),
        (&["volume", "create", "b", "--size", "1M", "--chunk", "3K"], 2),
        (&["volume", "create", "b", "--size", "100"], 2),
        (&["volume", "create", "b", "--size", "65T"], 2),
        (&["volume", "show", "none"], 3),
        (&["volume", "delete", "none"], 3),
        (&["pool", "remove", "none"], 3),
        (&["volume", "create", "a", "--size", "1M"], 4),
        (&["volume", "rename", "a", "a/b"], 2),
        (&["pool", "add", "/nonexistent/pv"], 3),
    ];
    for (args, code) in cases {
        let (actual, message) = server.fails(args);
        assert_eq!(actual, code, "{args:?}: {message}");
    }
    server.ok(&["volume", "create", "b", "--size", "1M"]);
    assert_eq!(server.fails(&["volume", "rename", "b", "a"]).0, 4);

    let nobody = program().args(["--socket", "/nonexistent/h.sock", "status"]).output().unwrap();
    assert_eq!(failure(nobody).0, 5);
    let bad = program().args(["--socket", "https://x", "status"]).output().unwrap();
    assert_eq!(failure(bad).0, 2);
}

#[test]
fn physical_volumes_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let before = server.json(&["pool", "show"]);
    assert_eq!(before["health"]["state"], "healthy");

    let added = server.json(&["pool", "add", "pv-1.img", "--size", "32M"]);
    assert_eq!(added["path"], "pv-1.img");
    let pvs = server.json(&["pool", "pvs"]);
    assert_eq!(pvs.as_array().unwrap().len(), 2);
    let after = server.json(&["pool", "show"]);
    assert!(after["capacity"].as_u64() > before["capacity"].as_u64());

    // By path, by UUID, and by number.
    let drained = server.json(&["pool", "drain", "pv-1.img", "--wait"]);
    assert_eq!((&drained["draining"], &drained["used"]), (&json!(true), &json!(0)));
    let uuid = added["uuid"].as_str().unwrap();
    assert_eq!(server.json(&["pool", "drain", uuid, "--cancel"])["draining"], false);
    server.ok(&["pool", "remove", &added["id"].to_string()]);
    assert_eq!(server.json(&["pool", "pvs"]).as_array().unwrap().len(), 1);

    assert_eq!(server.json(&["pool", "set", "--placement", "contiguous"])["placement"], "contiguous");
    assert_eq!(server.json(&["pool", "show"])["placement"], "contiguous");
    assert!(server.ok(&["pool", "show"]).contains("full         not known before a day has passed"));
}

#[test]
fn a_pool_is_spread_over_its_physical_volumes() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_with(dir.path(), &["--extent-size", "64K"]);
    let refused = |args: &[&str], part: &str| {
        let (code, text) = server.fails(args);
        assert!(code > 0 && text.contains(part), "{code} {text}");
    };
    refused(&["pool", "rebalance"], "neither its placement nor that of a volume is share");
    server.ok(&["pool", "set", "--placement", "share"]);
    server.ok(&["pool", "add", "pv-1.img", "--size", "64M"]);
    let done = server.json(&["pool", "rebalance", "--rate", "100M", "--wait"]);
    assert_eq!((&done["running"], &done["rate"]), (&json!(false), &json!(100 << 20)));
    let text = server.ok(&["pool", "rebalance", "--status"]);
    assert!(text.contains("100 MiB a second"), "{text}");
    assert_eq!(server.ok(&["pool", "rebalance", "--stop"]).trim(), "stopped");
    assert!(server.json(&["pool", "show"])["features"].as_array().unwrap().contains(&json!("placements")));

    let sizes = ["--slice-size", "1M", "--snapshots", "4", "--snapshot-percent", "10"];
    let set = server.json(&[&["pool", "set", "--placement", "snap-aware"][..], &sizes].concat());
    assert_eq!((&set["slice_size"], &set["gap_size"]), (&json!(1 << 20), &json!(7 * (64 << 10))));
    let text = server.ok(&["pool", "show"]);
    assert!(text.contains("snap-aware, slices of 1 MiB and gaps of 448 KiB"), "{text}");
    refused(&["pool", "set", "--placement", "share", "--snapshots", "4"], "only snap-aware has slices");
    refused(&["pool", "set", "--placement", "snap-aware", "--snapshots", "0"], "at least one extent");
}

#[test]
fn volumes_have_least_sizes_of_direct_writes() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let made = server.json(&["volume", "create", "db", "--size", "64M", "--chunk", "4K", "--direct", "4K"]);
    assert_eq!(made["direct_min"], 4096);
    server.ok(&["volume", "create", "other", "--size", "64M"]);
    assert_eq!(server.json(&["volume", "show", "other"])["direct_min"], Value::Null);
    assert!(server.ok(&["volume", "show", "other"]).contains("as the pool"));
    let said = server.ok(&["volume", "set", "other", "--direct", "off"]);
    assert!(said.contains("no direct writes"), "{said}");
    let table = server.ok(&["volume", "list", "-o", "name,direct"]);
    assert!(table.contains("db     4 KiB\nother  off"), "{table}");
    server.ok(&["snapshot", "create", "db@s"]);
    server.ok(&["clone", "create", "db@s", "copy"]);
    assert_eq!(server.json(&["volume", "show", "copy"])["direct_min"], 4096);
    server.ok(&["volume", "set", "db", "--direct", "pool"]);
    assert_eq!(server.json(&["volume", "show", "db"])["direct_min"], Value::Null);
    let said = server.ok(&["volume", "set", "db", "--direct", "1M"]);
    assert!(said.contains("direct from 1 MiB"), "{said}");
    for refused in [
        &["volume", "set", "db", "--direct", "512"][..],
        &["volume", "create", "no", "--size", "1M", "--direct", "32M"],
    ] {
        let (code, text) = server.fails(refused);
        assert!(code > 0 && text.contains("from 4 KiB to 16 MiB"), "{code} {text}");
    }
    assert!(server.ok(&["volume", "list", "-o", "name"]).lines().all(|line| line.trim() != "no"));
}

#[test]
fn volumes_have_placements_and_disks_have_weights() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["pool", "add", "p", "--size", "40M"]);
    let create = ["volume", "create", "db", "--size", "64M", "--placement", "snap-aware"];
    let sizes = ["--slice-size", "8M", "--snapshots", "2", "--snapshot-percent", "25"];
    let made = server.json(&[&create[..], &sizes].concat());
    let extent = server.json(&["pool", "show"])["extent_size"].as_u64().unwrap();
    let gap = (4_u64 << 20).next_multiple_of(extent);
    let placement = json!({"policy": "snap-aware", "slice_size": 8 << 20, "gap_size": gap});
    assert_eq!(made["placement"], placement);
    assert!(server.ok(&["volume", "show", "db"]).contains("snap-aware, slices of 8 MiB and gaps of"));
    server.ok(&["volume", "create", "other", "--size", "64M"]);
    assert!(server.ok(&["volume", "show", "other"]).contains("that of the pool"));
    let said = server.ok(&["volume", "set", "db", "--placement", "share"]);
    assert!(said.contains("placed share"), "{said}");
    let table = server.ok(&["volume", "list", "-o", "name,placement"]);
    assert!(table.contains("db     share\nother  -"), "{table}");
    server.ok(&["pool", "rebalance", "--wait"]);
    server.ok(&["snapshot", "create", "db@s"]);
    server.ok(&["clone", "create", "db@s", "copy"]);
    assert_eq!(server.json(&["volume", "show", "copy"])["placement"]["policy"], "share");
    server.ok(&["volume", "set", "db", "--placement", "pool"]);
    assert_eq!(server.json(&["volume", "show", "db"])["placement"], Value::Null);

    let weighed = server.json(&["pool", "weight", "p", "50"]);
    assert_eq!((&weighed["path"], &weighed["weight"]), (&json!("p"), &json!(50)));
    let pvs = server.ok(&["pool", "pvs", "-o", "path,weight"]);
    assert!(pvs.contains("p         50") || pvs.contains(" 50\n"), "{pvs}");

    let sized = ["volume", "set", "db", "--placement", "pool", "--snapshots", "4"];
    let refusals: [(&[&str], i32, &str); 6] = [
        (&["volume", "create", "x", "--size", "1M", "--placement", "near"], 2, "snap-aware"),
        (&["volume", "set", "db", "--placement", "near"], 2, "or pool"),
        (&["volume", "set", "db", "--slice-size", "8M"], 2, "--placement"),
        (&sized, 2, "name the placement, too"),
        (&["pool", "weight", "p", "0"], 2, "1..=1000"),
        (&["pool", "weight", "q", "50"], 3, "does not exist"),
    ];
    for (args, code, part) in refusals {
        let (found, message) = server.fails(args);
        assert!(found == code && message.contains(part), "{args:?}: {found} {message}");
    }
    // What can't be made is not half made.
    let none = ["volume", "create", "x", "--size", "1M", "--placement", "snap-aware", "--snapshots", "0"];
    assert!(server.fails(&none).1.contains("at least one extent"));
    assert_eq!(server.fails(&["volume", "show", "x"]).0, 3);
}

#[test]
fn a_pool_is_upgraded() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_with(dir.path(), &["--pool-features", "none"]);
    let state = |server: &Server| {
        let features = server.json(&["pool", "features"]);
        let named = |f: &&Value| f["name"] == "references";
        features.as_array().unwrap().iter().find(named).unwrap()["state"].clone()
    };
    assert_eq!(state(&server), "available");
    assert_eq!(server.json(&["pool", "show"])["features"], json!(["catalog-sums"]));
    let planned = server.json(&["pool", "upgrade", "--dry-run"]);
    assert_eq!((&planned[0]["name"], &planned[0]["state"]), (&json!("references"), &json!("available")));
    assert_eq!(state(&server), "available");
    for (name, part) in [("none", "it knows: references"), ("catalog-sums", "sets it by itself")] {
        let (code, message) = server.fails(&["pool", "upgrade", "--enable", "references", "--enable", name]);
        assert_eq!(code, 2, "{message}");
        assert!(message.contains(part), "{message}");
    }
    let (code, body) = server.http("POST", "/api/v1/pool/upgrade", r#"{"enabel": ["references"]}"#);
    assert_eq!(code, 400, "{body}");
    let document: Value = serde_json::from_str(&server.http("GET", "/api/v1/openapi.json", "").1).unwrap();
    for (path, method) in [("features", "get"), ("upgrade", "post")] {
        assert!(document["paths"][format!("/api/v1/pool/{path}")][method].is_object(), "{document}");
    }
    assert_eq!(state(&server), "available");

    let done = server.ok(&["pool", "upgrade", "--enable", "references"]);
    assert!(done.contains("older builds refuse the pool from now on"), "{done}");
    assert_eq!(server.json(&["pool", "upgrade", "--enable", "references"]), json!([]));
    assert!(server.ok(&["pool", "show"]).contains("references, sums, catalog-sums"));
    assert_eq!(server.stop("-KILL"), None);
    let server = Server::start(dir.path());
    assert_eq!(state(&server), "enabled");
}

#[test]
fn help_completions_and_manual_pages_are_there() {
    for args in
        [&["--help"][..], &["volume", "--help"], &["volume", "create", "--help"], &["serve", "--help"]]
    {
        let output = program().args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(output.stderr.is_empty());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("Usage:"), "{text}");
    }
    let noun = program().arg("volume").output().unwrap();
    assert_eq!(noun.status.code(), Some(2));
    for shell in ["bash", "zsh", "fish"] {
        let output = program().args(["completions", shell]).output().unwrap();
        assert!(output.status.success() && output.stdout.len() > 1000);
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(program().args(["man", "--dir"]).arg(dir.path()).status().unwrap().success());
    assert!(dir.path().join("hindcast-volume-create.1").exists());
}
