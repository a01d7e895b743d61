//! Statistics as users meet them: what snapshots cost by method and order, the index, the cache's
//! policy, regions.

use crate::daemon::require;
use crate::server::Server;
use serde_json::{Value, json};
use std::process::Command;
use std::time::{Duration, Instant};

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;

/// Requests to a volume over NBD.
fn io(server: &Server, volume: &str, commands: &[&str]) {
    let address = server.json(&["status"])["listeners"]["nbd"][0].as_str().unwrap().to_owned();
    let mut args = vec!["-f".to_owned(), "raw".to_owned()];
    for command in commands {
        args.extend(["-c".to_owned(), (*command).to_owned()]);
    }
    let output =
        Command::new("qemu-io").args(args).arg(format!("nbd://{address}/{volume}")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Waits until everything is in place.
fn settle(server: &Server) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let journal = &server.json(&["pool", "show"])["journal"];
        if journal["destaged_lsn"] == journal["sequenced_lsn"] {
            return;
        }
        assert!(Instant::now() < end, "the server does not destage: {journal}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn preserved(server: &Server, volume: &str) -> Value {
    settle(server);
    server.json(&["volume", "stats", volume])["preservation"].clone()
}

#[test]
fn orders_and_methods_show_in_what_snapshots_cost() {
    require("qemu-io", "qemu-utils");
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_with(
        dir.path(),
        &["--nbd", "127.0.0.1:0", "--map-cache-policy", "lfu", "--map-cache", "1M"],
    );
    let made = server.json(&["volume", "create", "db", "--size", "4M"]);
    assert_eq!((&made["method"], &made["order"]), (&json!("row"), &json!("dependent")));
    io(&server, "db", &["write -P 1 0 1M"]);
    settle(&server);

    // One snapshot: a redirect of a chunk of 16 KiB for 4 KiB, 12 KiB of it filled.
    server.ok(&["snapshot", "create", "db@a"]);
    io(&server, "db", &["write -P 2 4k 4k"]);
    let row = preserved(&server, "db");
    for (counter, value) in [
        ("copies", 0),
        ("redirects", 1),
        ("redirected_bytes", 16 * K),
        ("fill_bytes", 12 * K),
        ("host_bytes", 4 * K),
    ] {
        assert_eq!(row[counter], value, "{counter}: {row}");
    }
    assert_eq!((&row["fill_reads"], &row["space_efficiency"]), (&json!(2), &json!(0.25)));

    // The independent order copies for each snapshot but the newest.
    assert_eq!(server.json(&["volume", "set", "db", "--order", "independent"])["order"], "independent");
    assert!(server.ok(&["volume", "show", "db"]).contains("independent"));
    assert_eq!(
        server.ok(&["volume", "set", "db", "--method", "cow"]),
        "db is now writable, cow, independent, no history\n"
    );
    server.ok(&["snapshot", "create", "db@b"]);
    server.ok(&["snapshot", "create", "db@c"]);
    io(&server, "db", &["write -P 3 16k 16k"]);
    let independent = preserved(&server, "db");
    assert_eq!((&independent["copies"], &independent["redirects"]), (&json!(3), &json!(1)), "{independent}");

    // The dependent one, one copy for all of them.
    assert_eq!(server.json(&["volume", "set", "db", "--order", "dependent"])["order"], "dependent");
    io(&server, "db", &["write -P 4 32k 16k"]);
    assert_eq!(preserved(&server, "db")["copies"], 4);
    assert_eq!(server.fails(&["volume", "set", "db", "--order", "sideways"]).0, 2);
    for (snapshot, first) in [("a", 1), ("b", 1), ("c", 1)] {
        io_reads(&server, &format!("db@{snapshot}"), first);
    }

    let pool = server.json(&["pool", "show"]);
    assert_eq!((&pool["map_cache"]["policy"], &pool["map_cache"]["size"]), (&json!("lfu"), &json!(M)));
    assert!(pool["map_cache"]["hit_rate"].as_f64().is_some_and(|rate| (0.0..=1.0).contains(&rate)), "{pool}");
    assert_eq!(
        (&pool["index"]["versions"], &pool["preservation"]["copies"]),
        (&json!(5), &json!(4)),
        "{pool}"
    );
    assert!(pool["index"]["catalog_bytes"].as_u64() > Some(0));
    let text = server.ok(&["pool", "show"]);
    assert!(text.contains("lfu") && text.contains("4 pre-image copies, 1 redirects, 2 fill reads"), "{text}");
    assert_metrics(&server);
}

/// All of the first 48 KiB is as it was before any snapshot.
fn io_reads(server: &Server, export: &str, byte: u8) {
    let address = server.json(&["status"])["listeners"]["nbd"][0].as_str().unwrap().to_owned();
    let read = format!("read -P {byte} 16k 32k");
    let output = Command::new("qemu-io")
        .args(["-r", "-f", "raw", "-c", &read])
        .arg(format!("nbd://{address}/{export}"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && !text.contains("verification failed"), "{export}: {text}");
}

fn assert_metrics(server: &Server) {
    let (code, metrics) = server.http("GET", "/metrics", "");
    assert_eq!(code, 200);
    for line in [
        "hindcast_preimage_copies_total 4",
        "hindcast_redirects_total 1",
        "hindcast_fill_reads_total 2",
        "hindcast_fill_read_bytes_total 12288",
        "hindcast_volume_preimage_copies_total{volume=\"db\"} 4",
        "hindcast_volume_redirects_total{volume=\"db\"} 1",
        "hindcast_index_versions 5.0",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} is not in\n{metrics}");
    }
    for start in [
        "hindcast_map_cache_hits_total{policy=\"lfu\"} ",
        "hindcast_map_cache_hit_ratio 0.",
        "hindcast_space_efficiency_ratio 0.",
        "hindcast_index_map_pages 1.0",
        "hindcast_catalog_bytes ",
    ] {
        assert!(metrics.lines().any(|l| l.starts_with(start)), "{start} is not in\n{metrics}");
    }
}

#[test]
fn regions_show_where_requests_go() {
    require("qemu-io", "qemu-utils");
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_with(dir.path(), &["--nbd", "127.0.0.1:0"]);
    server.ok(&["volume", "create", "db", "--size", "512M"]);
    let quiet = server.json(&["volume", "stats", "db"]);
    assert_eq!((&quiet["region_size"], quiet["regions"].as_array().unwrap().len()), (&json!(2 * M), 256));
    assert_eq!((&quiet["name"], &quiet["preservation"]["space_efficiency"]), (&json!("db"), &Value::Null));
    io(&server, "db", &["write 4M 4k", "write 4M 4k", "write 4M 4k", "read 510M 4k", "write 510M 4k"]);
    let stats = server.json(&["volume", "stats", "db"]);
    assert_eq!(stats["requests"]["writes"], 4);
    assert_eq!(stats["regions"][2], json!({ "reads": 0, "writes": 3 }));
    assert_eq!(stats["regions"][255]["writes"], 1);
    assert!(stats["regions"][255]["reads"].as_u64() > Some(0), "{stats}");

    let text = server.ok(&["volume", "stats", "db"]);
    let bar = |region: &str| {
        let line = text.lines().find(|l| l.trim_start().starts_with(region)).unwrap_or_default();
        (line.matches('█').count(), line.matches('░').count())
    };
    assert_eq!(bar("4 MiB"), (0, 40), "{text}");
    assert!(bar("510 MiB").0 > 0 && bar("510 MiB").1 > 0, "{text}");
    assert!(!text.lines().any(|l| l.trim_start().starts_with("6 MiB")), "what nobody touched is left out");
    assert_eq!(server.fails(&["volume", "stats", "none"]).0, 3);
    assert_eq!(server.json(&["volume", "stats"])[0]["writes"], 4);
}

/// A history knows its newest write after a restart, too.
#[test]
fn a_list_tells_when_volumes_were_last_written_to() {
    require("qemu-io", "qemu-utils");
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_with(dir.path(), &["--nbd", "127.0.0.1:0"]);
    for name in ["idle", "plain", "recorded"] {
        server.ok(&["volume", "create", name, "--size", "1M"]);
    }
    server.ok(&["volume", "set", "recorded", "--cdp", "parity"]);
    let changes = |server: &Server| {
        let all = server.json(&["volume", "list"]);
        let of = |volume: &Value| {
            volume["last_change"].as_str().map(|text| text.parse::<jiff::Timestamp>().unwrap())
        };
        ["idle", "plain", "recorded"]
            .map(|name| of(all.as_array().unwrap().iter().find(|volume| volume["name"] == name).unwrap()))
    };
    assert_eq!(changes(&server), [None; 3]);
    let before = jiff::Timestamp::now();
    io(&server, "plain", &["write -P 1 0 4k"]);
    io(&server, "recorded", &["write -P 1 0 4k"]);
    settle(&server);
    let end = Instant::now() + Duration::from_secs(20);
    let seen = loop {
        let seen = changes(&server);
        if seen[1].is_some() && seen[2].is_some() {
            break seen;
        }
        assert!(Instant::now() < end, "{seen:?}");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(seen[0].is_none() && seen[1] > Some(before) && seen[2] > Some(before), "{seen:?}");
    let table = server.ok(&["volume", "list", "-H", "-o", "name,last-change"]);
    assert!(table.starts_with("idle\t-\nplain\t20"), "{table}");
    assert!(!server.ok(&["volume", "list"]).contains("LAST-CHANGE"));
    assert_eq!(server.stop("-TERM"), Some(0));
    let server = Server::start_with(dir.path(), &["--nbd", "127.0.0.1:0"]);
    let later = changes(&server);
    assert_eq!(later[..2], [None, None]);
    assert!(later[2] > Some(before) && later[2] <= seen[2], "{later:?} {seen:?}");
}
