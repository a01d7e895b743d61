//! iSCSI targets by commands: results, JSON shapes, exit codes, and what a restart keeps.

use crate::server::Server;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;

const AUTHORITY: &str = "iqn.2026-11.io.hindcast";

fn names(server: &Server) -> Vec<String> {
    let targets = server.json(&["target", "list"]);
    targets.as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_target_from_creation_to_deletion() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    assert_eq!(server.json(&["target", "list"]), json!([]));
    server.ok(&["volume", "create", "db", "--size", "8M"]);
    server.ok(&["volume", "create", "log", "--size", "4M", "--block", "4K"]);
    assert_eq!(names(&server), [format!("{AUTHORITY}:db"), format!("{AUTHORITY}:log")]);
    let own = server.json(&["target", "show", "db"]);
    assert_eq!(
        (&own["volume"], &own["enabled"], &own["unmatched"]),
        (&json!("db"), &json!(true), &json!("open"))
    );
    assert_eq!(own["luns"][0]["source"], "db");

    let made = server.json(&["target", "create", "cluster", "--alias", "two disks"]);
    assert_eq!((&made["name"], &made["luns"]), (&json!(format!("{AUTHORITY}:cluster")), &json!([])));
    server.ok(&["target", "add-lun", "cluster", "--volume", "db"]);
    let two = server.json(&["target", "add-lun", "cluster", "--volume", "log", "--lun", "7"]);
    assert_eq!(
        two["luns"][1],
        json!({
            "lun": 7, "backing": "volume", "source": "log", "uuid": two["luns"][1]["uuid"], "size": 4 << 20,
            "block_size": 4096, "read_only": false, "error": null,
        })
    );
    let image = dir.path().with_extension("image");
    std::fs::write(&image, vec![0; 1 << 20]).unwrap();
    let path = image.to_str().unwrap();
    let text = server.ok(&["target", "add-lun", "cluster", "--file", path, "--read-only"]);
    assert!(text.contains("LUN 1 of iqn."), "{text}");

    server.ok(&["volume", "rename", "log", "log2"]);
    let shown = server.ok(&["target", "show", "cluster"]);
    for part in ["two disks", "log2", path, "read-only", "4096"] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    assert!(server.ok(&["target", "list"]).lines().any(|l| l.starts_with("iqn.") && l.contains("cluster")));

    let (code, message) = server.fails(&["volume", "delete", "db"]);
    assert_eq!(code, 4);
    assert!(message.contains("LUN 0 of iqn.2026-11.io.hindcast:cluster"), "{message}");
    server.ok(&["volume", "delete", "db", "--force"]);
    let left = server.json(&["target", "show", "cluster"]);
    let luns: Vec<&Value> = left["luns"].as_array().unwrap().iter().map(|l| &l["lun"]).collect();
    assert_eq!(luns, [1, 7]);
    assert_eq!(server.ok(&["target", "remove-lun", "cluster", "7"]), "removed LUN 7 of cluster\n");
    assert_eq!(server.ok(&["target", "delete", "cluster"]), "deleted cluster\n");
    assert_eq!(names(&server), [format!("{AUTHORITY}:log2")]);
    assert!(image.exists(), "the file stays");
    std::fs::remove_file(image).unwrap();
}

/// A server with a volume that has rules and CHAP.
fn guarded(dir: &std::path::Path) -> Server {
    let server = Server::start(dir);
    server.ok(&["volume", "create", "db", "--size", "8M"]);
    let first = ["--initiator", "IQN.2026-11.x:*", "--address", "10.0.0.0/8", "--lun", "0,3"];
    server.ok(&[&["target", "allow", "db"], &first[..]].concat());
    server.ok(&["target", "allow", "db", "--initiator", "eui.*", "--read-only"]);
    server.ok(&["target", "deny", "db", "--address", "10.6.6.6", "--at", "1"]);
    server.ok(&["target", "allow", "--all", "--address", "fd00::/8"]);
    let file = |name: &str, content: &str| {
        let path = dir.join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (secret, mutual) = (file("secret", "correct-horse\n"), file("mutual", "battery-staple\n"));
    let incoming = ["--user", "alice", "--secret-file", &secret];
    let outgoing = ["--mutual-user", "server", "--mutual-secret-file", &mutual];
    server.ok(&[&["target", "chap", "db"], &incoming[..], &outgoing[..]].concat());
    server.ok(&["target", "chap", "--all", "--user", "bob", "--secret-file", &secret]);
    server
}

fn guards(server: &Server) -> [Value; 2] {
    [server.json(&["target", "show", "db"]), server.json(&["target", "show", "--all"])]
}

#[test]
fn rules_and_chap_are_shown_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let server = guarded(dir.path());
    let [db, defaults] = guards(&server);
    let rule = |initiator: &str, address: Value, access: &str, luns: Value| json!({"initiator": initiator, "address": address, "access": access, "luns": luns});
    assert_eq!(db["rules"][0], rule("*", json!("10.6.6.6"), "denied", Value::Null));
    assert_eq!(db["rules"][1], rule("iqn.2026-11.x:*", json!("10.0.0.0/8"), "read_write", json!([0, 3])));
    assert_eq!(db["rules"][2], rule("eui.*", Value::Null, "read_only", Value::Null));
    assert_eq!(db["unmatched"], "refused");
    assert_eq!(db["chap"], json!({"user": "alice", "mutual_user": "server"}));
    assert_eq!(defaults["rules"][0], rule("*", json!("fd00::/8"), "read_write", Value::Null));
    assert_eq!(defaults["chap"]["user"], "bob");

    server.ok(&["target", "disallow", "db", "--rule", "2"]);
    server.ok(&["target", "disallow", "--all", "--rule", "1"]);
    server.ok(&["target", "chap", "db", "--off"]);
    server.ok(&["target", "set", "db", "--disabled", "--alias", "x"]);
    let [db, defaults] = guards(&server);
    assert_eq!((db["rules"].as_array().unwrap().len(), &db["chap"]), (2, &Value::Null));
    assert_eq!((&db["enabled"], &defaults["rules"]), (&json!(false), &json!([])));
    server.ok(&["target", "set", "db", "--enabled"]);
    assert_eq!(server.json(&["target", "show", "db"])["alias"], "x");
}

#[test]
fn rules_and_secrets_survive_a_kill_and_are_not_told() {
    let dir = tempfile::tempdir().unwrap();
    let server = guarded(dir.path());
    let before = guards(&server);
    let kept = dir.path().join("targets.json");
    assert_eq!(std::fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(server.stop("-KILL"), None);
    let server = Server::start(dir.path());
    assert_eq!(guards(&server), before);
    let shown = server.ok(&["target", "show", "db"]) + &server.ok(&["target", "show", "--all"]);
    assert!(shown.contains("as alice, mutual as server") && shown.contains("0,3"), "{shown}");
    for text in [shown, format!("{before:?}"), server.http("GET", "/api/v1/targets", "").1] {
        assert!(!text.contains("horse") && !text.contains("staple"), "{text}");
    }
}

#[test]
fn a_secret_is_not_repeated_in_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    for path in ["/api/v1/target-defaults/chap", "/api/v1/targets/none/chap"] {
        for body in [
            r#"{"user":"u","secret":123456789012345}"#,
            r#"{"user":"u","secret":"123456789012345","secrat":1}"#,
            r#"{"user":"u","secret":"123456789012345""#,
            r#"{"user":"u","secret":"12345"}"#,
            r#""123456789012345""#,
        ] {
            let (code, text) = server.http("PUT", path, body);
            assert!(matches!(code, 400 | 404) && !text.contains("12345"), "{body}: {code}: {text}");
        }
    }
}

#[test]
fn exit_codes_tell_what_went_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "8M"]);
    server.ok(&["target", "create", "t"]);
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "short").unwrap();
    let secret = secret.to_str().unwrap();
    let own = dir.path().join("pv-0.img");
    let cases: [(&[&str], i32); 17] = [
        (&["target", "show", "none"], 3),
        (&["target", "create", "t"], 4),
        (&["target", "create", "db"], 4),
        (&["target", "create", "a b"], 2),
        (&["target", "create", "iqn.2026-13.x:y"], 2),
        (&["target", "delete", "db"], 4),
        (&["target", "delete", "none"], 3),
        (&["target", "add-lun", "db", "--volume", "db"], 4),
        (&["target", "add-lun", "t", "--volume", "none"], 3),
        (&["target", "add-lun", "t", "--file", "/nonexistent"], 3),
        (&["target", "add-lun", "t", "--file", own.to_str().unwrap()], 4),
        (&["target", "add-lun", "t", "--volume", "db", "--lun", "20000"], 2),
        (&["target", "remove-lun", "t", "0"], 3),
        (&["target", "allow", "t", "--initiator", "host"], 2),
        (&["target", "allow", "t", "--address", "10.0.0.1/8"], 2),
        (&["target", "disallow", "t", "--rule", "1"], 3),
        (&["target", "chap", "t", "--user", "a", "--secret-file", secret], 2),
    ];
    for (args, code) in cases {
        let (actual, message) = server.fails(args);
        assert_eq!(actual, code, "{args:?}: {message}");
    }
    // A damaged registry is not guessed at: it says who may see which data.
    assert_eq!(server.stop("-TERM"), Some(0));
    let file = dir.path().join("targets.json");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let output =
        crate::server::program().args(["serve", "--log", "off", "--data"]).arg(dir.path()).output().unwrap();
    let (code, message) = crate::server::failure(output);
    assert!(code == 1 && message.contains("targets.json"), "{code}: {message}");
}
