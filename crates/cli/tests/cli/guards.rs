//! Access to data: which clients reach it, as commands set it up, and as an NBD client meets it.

use crate::server::Server;
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;

/// A client in negotiation.
struct Nbd(TcpStream);

/// Options and replies of the NBD protocol.
const LIST: u32 = 3;
const GO: u32 = 7;
const EXPORT_NAME: u32 = 1;
const ACK: u32 = 1;
const SERVER: u32 = 2;
const ERR_UNKNOWN: u32 = 0x8000_0006;

impl Nbd {
    fn connect(server: &Server) -> Nbd {
        let address = server.json(&["status"])["listeners"]["nbd"][0].as_str().unwrap().to_owned();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        stream.write_all(&3_u32.to_be_bytes()).unwrap();
        Nbd(stream)
    }

    fn option(&mut self, option: u32, data: &[u8]) {
        let mut bytes = b"IHAVEOPT".to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
        bytes.extend(data);
        self.0.write_all(&bytes).unwrap();
    }

    fn reply(&mut self) -> (u32, Vec<u8>) {
        let mut head = [0; 20];
        self.0.read_exact(&mut head).unwrap();
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let mut data = vec![0; word(16) as usize];
        self.0.read_exact(&mut data).unwrap();
        (word(12), data)
    }

    /// Whether GO leads to transmission; else it has to be that there is no such export.
    fn go(&mut self, name: &str) -> bool {
        let mut data = u32::try_from(name.len()).unwrap().to_be_bytes().to_vec();
        data.extend(name.as_bytes());
        data.extend([0, 0]);
        self.option(GO, &data);
        loop {
            match self.reply().0 {
                ACK => return true,
                error if error & 0x8000_0000 != 0 => {
                    assert_eq!(error, ERR_UNKNOWN, "{name}");
                    return false;
                }
                _ => {}
            }
        }
    }

    fn list(&mut self) -> Vec<String> {
        self.option(LIST, &[]);
        let mut names = Vec::new();
        loop {
            let (kind, data) = self.reply();
            if kind != SERVER {
                assert_eq!(kind, ACK);
                return names;
            }
            let length = u32::from_be_bytes(data[..4].try_into().unwrap()) as usize;
            names.push(String::from_utf8(data[4..4 + length].to_vec()).unwrap());
        }
    }

    fn is_closed(&mut self) -> bool {
        matches!(self.0.read(&mut [0]), Ok(0) | Err(_))
    }
}

#[test]
fn a_volume_is_kept_out_of_nbd() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_with(dir.path(), &["--nbd", "127.0.0.1:0"]);
    for name in ["db", "web"] {
        server.ok(&["volume", "create", name, "--size", "1M", "--cdp", "parity"]);
    }
    server.ok(&["snapshot", "create", "db@s", "web@s"]);
    server.ok(&["snapshot", "create", "db@w"]);
    server.ok(&["snapshot", "set", "db@w", "--writable"]);
    let go = |name: &str| Nbd::connect(&server).go(name);
    let names = ["db", "db@s", "db@-0s", "db@w"];
    assert!(names.iter().all(|name| go(name)));
    let mut open: Vec<Nbd> = names.iter().map(|_| Nbd::connect(&server)).collect();
    assert!(open.iter_mut().zip(names).all(|(nbd, name)| nbd.go(name)));

    let shown = server.json(&["volume", "set", "db", "--nbd", "no"]);
    assert_eq!(shown["nbd"], json!(false));
    assert!(server.ok(&["volume", "show", "db"]).lines().any(|l| l.starts_with("nbd") && l.ends_with("no")));
    assert!(open.iter_mut().all(Nbd::is_closed), "connections that there were end");
    for name in names {
        assert!(!go(name), "{name}");
        let mut old = Nbd::connect(&server);
        old.option(EXPORT_NAME, name.as_bytes());
        assert!(old.is_closed(), "{name}");
    }
    let mut listed = Nbd::connect(&server).list();
    listed.sort();
    assert_eq!(listed, ["db.w", "web", "web@s"], "the clone is older than the setting");
    assert!(go("web@s"));
    server.ok(&["volume", "set", "db.w", "--nbd", "no"]);
    server.ok(&["volume", "set", "db", "--nbd", "yes"]);
    assert!(go("db") && go("db@s") && !go("db@w"), "the clone behind it is kept out");
    server.ok(&["volume", "set", "db", "--nbd", "no"]);

    // What is made of it begins the same, for good.
    server.ok(&["clone", "create", "db@s", "copy"]);
    server.ok(&["recover", "db", "--to", "-0s", "--as", "then"]);
    server.ok(&["snapshot", "set", "db@s", "--writable"]);
    server.ok(&["volume", "rename", "db", "db2"]);
    assert_eq!(server.stop("-KILL"), None);
    let server = Server::start_with(dir.path(), &["--nbd", "127.0.0.1:0"]);
    assert_eq!(Nbd::connect(&server).list(), ["web", "web@s"]);
    assert!(Nbd::connect(&server).go(""), "the only one that is served");
    for name in ["db2", "db2@s", "copy", "then", "db.s"] {
        assert!(!Nbd::connect(&server).go(name), "{name}");
    }
    server.ok(&["volume", "set", "copy", "--nbd", "yes"]);
    assert!(Nbd::connect(&server).go("copy"));
}

#[test]
fn copies_say_what_they_took_over() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "1M", "--cdp", "parity"]);
    server.ok(&["snapshot", "create", "db@s"]);
    let plain = server.json(&["clone", "create", "db@s", "plain"]);
    assert_eq!(plain.get("inherited"), None);
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "sesame-sesame").unwrap();
    server.ok(&["target", "allow", "db", "--initiator", "iqn.2026-11.x:*"]);
    let chap = ["target", "chap", "db", "--user", "alice", "--secret-file", secret.to_str().unwrap()];
    server.ok(&chap);
    let expected = json!({"volume": "db", "rules": 1, "nbd_rules": 0, "chap_users": ["alice"], "enabled": true, "nbd": true});
    assert_eq!(server.json(&["clone", "create", "db@s", "copy"])["inherited"], expected);
    let recovered = server.json(&["recover", "db", "--to", "-0s", "--as", "then"]);
    assert_eq!(recovered[0]["inherited"], expected);
    let text = server.ok(&["snapshot", "set", "db@s", "--writable"]);
    assert!(text.contains("db.s inherits its access from db: 1 access rule, CHAP as alice"), "{text}");
    for copy in ["copy", "then", "db.s"] {
        let shown = server.json(&["target", "show", copy]);
        assert_eq!(shown["rules"][0]["initiator"], "iqn.2026-11.x:*", "{copy}");
        assert_eq!(shown["chap"]["user"], "alice", "{copy}");
    }
    assert_eq!(server.json(&["target", "show", "plain"])["rules"], json!([]));
}

#[test]
fn names_do_not_shadow_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "1M", "--cdp", "parity"]);
    server.ok(&["snapshot", "create", "db@s"]);
    let stream = dir.path().join("stream");
    server.ok(&["export", "db@s", "--file", stream.to_str().unwrap()]);
    server.ok(&["target", "create", "fin"]);
    for command in [
        &["volume", "create", "fin", "--size", "1M"][..],
        &["volume", "rename", "db", "fin"],
        &["clone", "create", "db@s", "fin"],
        &["recover", "db", "--to", "-0s", "--as", "fin"],
        &["snapshot", "set", "db@s", "--writable", "--clone", "fin"],
        &["import", "fin", "--file", stream.to_str().unwrap()],
    ] {
        let (code, message) = server.fails(command);
        assert_eq!(code, 4, "{command:?}: {message}");
        assert!(message.contains("iqn.2026-11.io.hindcast:fin"), "{message}");
    }
    assert_eq!(server.json(&["volume", "list"]).as_array().unwrap().len(), 1);
    server.ok(&["target", "delete", "fin"]);
    server.ok(&["import", "fin", "--file", stream.to_str().unwrap()]);
}

#[test]
fn accounts_are_listed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "1M"]);
    let set = |target: &str, user: &str, secret: &str, more: &[&str]| {
        let file = dir.path().join(format!("secret-{}", user.replace('/', "-")));
        std::fs::write(&file, secret).unwrap();
        let file = file.to_str().unwrap().to_owned();
        server.run(&[&["target", "chap", target, "--user", user, "--secret-file", &file], more].concat())
    };
    for user in ["alice", "bob", "o/dd@ one"] {
        assert!(set("db", user, &format!("{user}-secret-{user}"), &[]).status.success());
    }
    let users = || {
        let list = server.json(&["target", "chap", "db", "--list"]);
        list.as_array().unwrap().iter().map(|a| a["user"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(users(), ["alice", "bob", "o/dd@ one"]);
    server.ok(&["target", "chap", "db", "--remove", "o/dd@ one"]);
    server.ok(&["target", "chap", "db", "--remove", "alice"]);
    assert_eq!(server.fails(&["target", "chap", "db", "--remove", "alice"]).0, 3);
    assert_eq!(server.fails(&["target", "chap", "db", "--remove", "bob"]).0, 4, "the last one");
    assert_eq!(users(), ["bob"]);
    // No secret serves both directions.
    let mutual = dir.path().join("secret-bob");
    let mutual = ["--mutual-user", "server", "--mutual-secret-file", mutual.to_str().unwrap()];
    let refused = set("--all", "carol", "carol-secret-carol", &mutual);
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(
        !refused.status.success() && text.contains("both directions") && !text.contains("bob-secret"),
        "{text}"
    );
    let allowed = server.ok(&["target", "allow", "db", "--user", "bob", "--read-only"]);
    assert_eq!(allowed.trim(), "db: read-only for *, CHAP account bob");
    let denied = server.ok(&[
        "target",
        "deny",
        "db",
        "--initiator",
        "iqn.*",
        "--user",
        "bob",
        "--address",
        "10.0.0.0/8",
    ]);
    assert_eq!(denied.trim(), "db: denied for iqn.*, CHAP account bob, address 10.0.0.0/8");
    let some = server.ok(&["target", "allow", "db", "--lun", "0", "--lun", "7"]);
    assert_eq!(some.trim(), "db: read-write for *, LUNs 0 7");
    assert_eq!(server.json(&["target", "show", "db"])["rules"][0]["user"], "bob");
    server.ok(&["target", "clear-reservations", "db", "--lun", "0"]);
    assert_eq!(server.fails(&["target", "clear-reservations", "db", "--lun", "1"]).0, 3);
}

#[test]
fn nbd_clients_have_rules() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_with(dir.path(), &["--nbd", "0.0.0.0:0"]);
    server.ok(&["volume", "create", "db", "--size", "1M"]);
    let access = |of: &[&str]| server.json(&[&["access", "list"], of].concat());
    assert_eq!(access(&[]), json!([{"rules": [], "unmatched": "refused", "unmatched_on_loopback": "open"}]));
    let codes = |server: &Server| {
        let health = server.json(&["status"])["health"].clone();
        assert_eq!(health["state"], "healthy", "the operator chose it");
        let problems = health["problems"].as_array().cloned().unwrap_or_default();
        problems.iter().map(|problem| problem["code"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(codes(&server), ["nbd-closed"]);
    let added = server.ok(&["access", "allow", "db", "--nbd", "--address", "10.0.0.0/24,fd00::5"]);
    assert_eq!(codes(&server), [""; 0]);
    assert_eq!(added.trim(), "db: read-write for 10.0.0.0/24 fd00::5");
    let first = ["--certificate", "CN=vm1", "--read-only", "--at", "1"];
    let added = server.run(&[&["access", "allow", "db", "--nbd"], &first[..]].concat());
    assert_eq!(String::from_utf8(added.stdout).unwrap().trim(), "db: read-only for *, certificate CN=vm1");
    let warning = String::from_utf8(added.stderr).unwrap();
    assert!(warning.starts_with("warning: ") && warning.contains("--nbd-tls-ca"), "{warning}");
    server.ok(&["access", "deny", "--all", "--nbd", "--address", "10.6.6.6"]);
    let db = access(&["db"]);
    assert_eq!((&db["volume"], &db["unmatched_on_loopback"]), (&json!("db"), &json!("refused")));
    assert_eq!(db["rules"][0], json!({"addresses": [], "certificate": "CN=vm1", "access": "read_only"}));
    assert_eq!(db["rules"][1], json!({"addresses": ["10.0.0.0/24", "fd00::5"], "access": "read_write"}));
    assert_eq!(access(&["--all"])[0]["rules"][0]["access"], "denied");
    let text = server.ok(&["access", "list"]);
    for part in ["all volumes", "10.6.6.6", "denied", "CN=vm1", "read-only", "others", "refused"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert_eq!(server.ok(&["access", "remove", "db", "--nbd", "--rule", "1"]), "removed NBD rule 1 of db\n");
    assert_eq!(access(&["db"])["rules"].as_array().unwrap().len(), 1);
    assert_eq!(server.fails(&["access", "remove", "db", "--nbd", "--rule", "2"]).0, 3);
    assert_eq!(server.fails(&["access", "list", "none"]).0, 3);
    assert_eq!(server.fails(&["access", "allow", "db", "--address", "10.0.0.1"]).0, 2, "without a protocol");
    for bad in [["--certificate", "vm1"], ["--address", "10.0.0.1/8"], ["--at", "7"]] {
        assert_eq!(server.fails(&[&["access", "allow", "db", "--nbd"], &bad[..]].concat()).0, 2, "{bad:?}");
    }
}

#[test]
fn an_open_nbd_listener_is_in_the_health() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_with(dir.path(), &["--nbd", "0.0.0.0:0", "--nbd-open"]);
    let problem = server.json(&["status"])["health"]["problems"][0].clone();
    assert_eq!((&problem["code"], &problem["severity"]), (&json!("nbd-open"), &json!("info")));
    assert!(problem["message"].as_str().unwrap().starts_with("0.0.0.0:"), "{problem}");
}
