//! Lists: columns, order, and forms for programs.

use super::server::Server;
use std::time::{Duration, Instant};

#[test]
fn a_list_has_the_columns_and_the_order_that_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    for (name, size) in [("b", "2M"), ("a", "1M"), ("c", "10M")] {
        server.ok(&["volume", "create", name, "--size", size]);
    }
    server.ok(&["volume", "set", "c", "--cdp", "parity", "--retain", "7d"]);
    server.ok(&["snapshot", "create", "c@one"]);
    server.ok(&["volume", "label", "a", "app=shop"]);
    // The history begins with the next look of the maintenance.
    let end = Instant::now() + Duration::from_secs(20);
    let usual = loop {
        let usual = server.ok(&["volume", "list"]);
        if usual.contains("of 7 d") || Instant::now() > end {
            break usual;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let heading: Vec<&str> = usual.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(heading, ["NAME", "SIZE", "USED", "HISTORY", "SNAPSHOTS", "CLIENTS", "STATE"]);
    assert!(usual.lines().nth(3).unwrap().contains("of 7 d"), "{usual}");
    assert_eq!(server.ok(&["volume", "list", "-q", "--sort", "-size"]), "c\nb\na\n");
    let plain = server.ok(&["volume", "list", "-H", "-o", "name,size,snapshots,labels", "--sort", "size"]);
    assert_eq!(plain, "a\t1048576\t0\tapp=shop\nb\t2097152\t0\t-\nc\t10485760\t1\t-\n");
    let sorted = server.json(&["volume", "list", "--sort", "-name"]);
    assert_eq!(sorted[0]["name"], "c", "JSON is ordered, too");

    let (code, message) = server.fails(&["volume", "list", "-o", "name,sise"]);
    assert!(code == 2 && message.contains("no column sise; the columns are name,size"), "{message}");
    assert_eq!(server.fails(&["volume", "list", "--sort", "sise"]).0, 2);
    let (code, message) = server.fails(&["volume", "show", "a", "-o", "name"]);
    assert!(code == 2 && message.contains("no columns to choose"), "{message}");
    assert_eq!(server.fails(&["status", "-o", "XML"]).0, 2);
}

#[test]
fn tables_have_local_times() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "1M"]);
    server.ok(&["snapshot", "create", "db@one"]);
    let tree = server.ok(&["--tz", "Asia/Tokyo", "snapshot", "list"]);
    assert!(tree.contains("CREATED (+09:00)"), "{tree}");
    assert!(server.ok(&["--utc", "snapshot", "list"]).contains("CREATED (UTC)"));
    let flat = server.ok(&["--precise", "snapshot", "list", "-o", "snapshot,created"]);
    let created = server.json(&["snapshot", "show", "db@one"])["created"].as_str().unwrap().to_owned();
    assert!(flat.starts_with("SNAPSHOT") && flat.contains(&created), "{flat}");
    assert_eq!(server.ok(&["snapshot", "list", "-q"]), "db@one\n");
    assert_eq!(server.fails(&["--utc", "--tz", "Asia/Tokyo", "snapshot", "list"]).0, 2);
}

/// Every list has the same options.
#[test]
fn every_list_has_columns_and_an_order() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    for volume in ["b", "a"] {
        server.ok(&["volume", "create", volume, "--size", "1M", "--cdp", "parity"]);
        server.ok(&["snapshot", "create", &format!("{volume}@s")]);
        server.ok(&["clone", "create", &format!("{volume}@s"), &format!("{volume}-copy")]);
        server.ok(&["group", "create", &format!("{volume}-group"), volume]);
        server.ok(&["schedule", "create", &format!("{volume}-hourly"), volume, "--every", "1h"]);
        server.ok(&["target", "create", &format!("{volume}-target")]);
        server.ok(&["access", "token", "create", &format!("{volume}-token"), "--role", "viewer"]);
        server.ok(&["access", "allow", volume, "--nbd", "--address", "10.0.0.1"]);
        server.ok(&["view", "create", &format!("{volume}@s")]);
        server.ok(&["volume", "create", &format!("{volume}-gone"), "--size", "1M"]);
        server.ok(&["volume", "delete", &format!("{volume}-gone")]);
    }
    for (command, column) in [
        ("clone list", "name"),
        ("group list", "name"),
        ("schedule list", "name"),
        ("target list", "target"),
        ("access token list", "name"),
        ("access user list", "name"),
        ("access session list", "id"),
        ("access list", "volume"),
        ("audit", "request"),
        ("clients", "id"),
        ("pool pvs", "path"),
        ("pool layouts", "member"),
        ("snapshot list", "snapshot"),
        ("tasks", "task"),
        ("trash list", "name"),
        ("view list", "address"),
        ("volume list", "name"),
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        let run = |more: &[&str]| server.ok(&[&words[..], more].concat());
        let plain: Vec<String> = run(&["-H", "-o", column]).lines().map(str::to_owned).collect();
        let mut sorted: Vec<String> =
            run(&["-H", "-o", column, "--sort", column]).lines().map(str::to_owned).collect();
        let reversed: Vec<String> =
            run(&["-q", "-o", column, "--sort", &format!("-{column}")]).lines().map(str::to_owned).collect();
        assert!(sorted.is_sorted() && sorted.len() == plain.len(), "{command}: {sorted:?}");
        sorted.reverse();
        assert_eq!(sorted, reversed, "{command}");
        let heading = run(&["-o", column]);
        assert!(heading.starts_with(&column.to_uppercase()), "{command}: {heading}");
        assert_eq!(server.fails(&[&words[..], &["-o", "sise"]].concat()).0, 2, "{command}");
        let json: serde_json::Value = serde_json::from_str(&run(&["-o", "json"])).unwrap();
        assert!(json.is_array(), "{command}");
    }
    assert_eq!(server.ok(&["schedule", "list", "-q"]), "a-hourly\nb-hourly\n");
    assert!(server.json(&["schedule", "list"])[0].get("state").is_none(), "JSON is that of the API");
    assert!(server.json(&["access", "list"])[0]["rules"].is_array(), "JSON is that of the API");
}

/// A person reads the clock on the wall, everywhere, and a program reads UTC.
#[test]
fn no_table_has_times_of_another_zone() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "1M", "--cdp", "parity"]);
    server.ok(&["snapshot", "create", "db@s"]);
    server.ok(&["clone", "create", "db@s", "copy"]);
    server.ok(&["schedule", "create", "hourly", "db", "--every", "1h"]);
    for command in [
        "status",
        "clone list",
        "schedule list",
        "schedule show hourly",
        "pool clock",
        "pool scrub status",
        "snapshot show db@s",
        "mark db here",
        "view create db@s",
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        let text = server.ok(&[&["--tz", "Asia/Tokyo"], &words[..]].concat());
        assert!(!text.contains("Z\n") && !text.contains("Z "), "{command}: {text}");
        let has_times = !["scrub"].iter().any(|without| command.contains(without));
        assert_eq!(text.contains("+09:00") || text.contains("JST"), has_times, "{command}: {text}");
    }
    let precise = server.ok(&["--precise", "status"]);
    let started = server.json(&["status"])["started"].as_str().unwrap().to_owned();
    assert!(precise.contains(&started), "{precise}");
    assert!(!server.ok(&["pool", "show"]).contains("sequenced"));
    assert!(server.ok(&["--precise", "pool", "show"]).contains("sequenced"));
}

#[test]
fn before_something_rests_on_a_moment_the_command_says_which() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "1M", "--cdp", "parity"]);
    server.ok(&["mark", "db", "here"]);
    for (command, begin, kept) in [
        ("clone create db@here copy", "cloning from ", "db stays as it is, and copy begins there"),
        ("recover db --to here --as then", "recovering to ", "new ones begin there"),
        ("recover db --to here --in-place", "going back to ", "kept as a snapshot"),
        ("rollback db@here --undo-name undo", "going back to ", "kept as the snapshot undo"),
        ("snapshot rollback db@here", "going back to ", "with newer snapshots and the newer history"),
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        let output = server.run(&[&["--tz", "Asia/Tokyo"], &words[..]].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{command}: {said}");
        assert!(
            said.starts_with(begin) && said.contains(" JST = ") && said.contains(" s ago, lsn:"),
            "{command}: {said}"
        );
        assert!(said.contains(kept), "{command}: {said}");
    }
    // Of a snapshot without a history there is no moment.
    server.ok(&["volume", "create", "plain", "--size", "1M"]);
    server.ok(&["snapshot", "create", "plain@s"]);
    let output = server.run(&["clone", "create", "plain@s", "p2"]);
    assert!(output.status.success() && output.stderr.is_empty());
}
