//! Volumes, files, rules and CHAP as real initiators meet them: libiscsi's tools and qemu.

use crate::daemon::{pattern, require};
use crate::server::Server;
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const AUTHORITY: &str = "iqn.2026-11.io.hindcast";
/// What qemu calls itself where nothing else is said.
const QEMU: &str = "iqn.2008-11.org.linux-kvm*";

fn start(dir: &Path) -> Server {
    for tool in ["iscsi-ls", "iscsi-inq", "qemu-io", "qemu-img"] {
        require(tool, "libiscsi-bin qemu-utils qemu-block-extra");
    }
    Server::start_with(dir, &["--iscsi", "127.0.0.1:0", "--iscsi", "127.0.0.1:0/2"])
}

fn portal(server: &Server) -> String {
    server.json(&["status"])["listeners"]["iscsi"][0].as_str().unwrap().to_owned()
}

fn url(server: &Server, target: &str, lun: u16) -> String {
    format!("iscsi://{}/{AUTHORITY}:{target}/{lun}", portal(server))
}

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap()
}

/// Whether an initiator gets in, and otherwise the status that it was told.
fn inquiry(initiator: &str, url: &str) -> Result<(), String> {
    let output = run("iscsi-inq", &["-i", initiator, url]);
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if text.contains("Vendor:HINDCAST") { Ok(()) } else { Err(text) }
}

/// The short names of the targets that discovery shows.
fn discovered(from: &str) -> Vec<String> {
    let output = run("iscsi-ls", &[from]);
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|l| l.strip_prefix("Target:")?.split(' ').next());
    let mut names: Vec<String> =
        names.map(|n| n.strip_prefix(&format!("{AUTHORITY}:")).unwrap_or(n).to_owned()).collect();
    names.sort();
    names.dedup();
    names
}

fn qemu_io(url: &str, commands: &[&str]) {
    let mut args = vec!["-f", "raw"];
    commands.iter().for_each(|command| args.extend(["-c", command]));
    args.push(url);
    let output = run("qemu-io", &args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && !text.contains("verification failed") && errors.is_empty(),
        "{commands:?}: {text}{errors}"
    );
}

#[test]
fn what_is_written_survives_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "8M"]);
    let image = dir.path().join("image");
    std::fs::write(&image, pattern(8 << 20)).unwrap();
    let image = image.to_str().unwrap();
    let copied = run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", image, &url(&server, "db", 0)]);
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    qemu_io(&url(&server, "db", 0), &["write -P 7 1M 64k", "discard 2M 1M", "flush"]);
    assert_eq!(server.stop("-KILL"), None);
    let server = start(dir.path());
    let url = url(&server, "db", 0);
    qemu_io(&url, &["read -P 7 1M 64k", "read -P 0 2M 1M", "write -P 9 1M 64k"]);
    let back = dir.path().join("back");
    let copied = run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &url, back.to_str().unwrap()]);
    assert!(copied.status.success());
    let mut expected = pattern(8 << 20);
    expected[1 << 20..(1 << 20) + (64 << 10)].fill(9);
    expected[2 << 20..3 << 20].fill(0);
    assert!(std::fs::read(back).unwrap() == expected, "the volume differs from what was written");
}

#[test]
fn targets_with_several_luns_and_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "8M"]);
    server.ok(&["volume", "create", "log", "--size", "4M"]);
    server.ok(&["target", "create", "cluster"]);
    server.ok(&["target", "add-lun", "cluster", "--volume", "db"]);
    server.ok(&["target", "add-lun", "cluster", "--volume", "log", "--lun", "200"]);
    let file = dir.path().with_extension("file");
    std::fs::write(&file, pattern(1 << 20)).unwrap();
    server.ok(&["target", "add-lun", "cluster", "--file", file.to_str().unwrap(), "--lun", "1"]);
    assert_eq!(discovered(&format!("iscsi://{}", portal(&server))), ["cluster", "db", "log"]);

    // The same logical unit by two targets.
    qemu_io(&url(&server, "cluster", 0), &["write -P 5 0 4k", "flush"]);
    qemu_io(&url(&server, "db", 0), &["read -P 5 0 4k"]);
    qemu_io(&url(&server, "cluster", 200), &["write -P 6 0 4k"]);
    qemu_io(&url(&server, "log", 0), &["read -P 6 0 4k"]);
    // The file itself: no format of ours around it.
    qemu_io(&url(&server, "cluster", 1), &["write -P 8 64k 64k", "discard 128k 128k", "flush"]);
    let mut expected = pattern(1 << 20);
    expected[64 << 10..128 << 10].fill(8);
    expected[128 << 10..256 << 10].fill(0);
    assert!(std::fs::read(&file).unwrap() == expected);
    let missing = inquiry("iqn.2026-11.x:a", &url(&server, "cluster", 2));
    assert!(missing.is_err(), "there is no LUN 2");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn rules_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    for volume in ["db", "web"] {
        server.ok(&["volume", "create", volume, "--size", "4M"]);
    }
    let (db, web) = (url(&server, "db", 0), url(&server, "web", 0));
    let (one, two) = ("iqn.2026-11.x:one", "iqn.2026-11.x:two");
    inquiry(one, &db).unwrap();
    server.ok(&["target", "allow", "db", "--initiator", "IQN.2026-11.x:ONE"]);
    server.ok(&["target", "allow", "db", "--initiator", QEMU, "--address", "127.0.0.0/8", "--read-only"]);
    inquiry(one, &db).unwrap();
    let refused = inquiry(two, &db).unwrap_err();
    assert!(refused.contains("not found"), "{refused}");
    inquiry(two, &web).unwrap();
    assert_eq!(discovered(&format!("iscsi://{}", portal(&server))), ["web"], "only what it may use");

    let read = run("qemu-io", &["-r", "-f", "raw", "-c", "read 0 4k", &db]);
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let write = run("qemu-io", &["-f", "raw", "-c", "write 0 4k", &db]);
    assert!(!write.status.success(), "a read-only initiator wrote");

    server.ok(&["target", "deny", "--all", "--address", "127.0.0.1"]);
    inquiry(one, &db).unwrap();
    assert!(
        inquiry(two, &web).is_err(),
        "the rules for all are asked where the target has none that matches"
    );
    let none = inquiry(one, &url(&server, "none", 0)).unwrap_err();
    assert!(none.contains("Target not found") || none.contains("NotFound"), "{none}");
    server.ok(&["target", "set", "db", "--disabled"]);
    assert!(inquiry(one, &db).is_err());
}

#[test]
fn chap_is_asked_for_in_both_directions() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "4M"]);
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (secret, mutual) = (file("s1", "correct-horse\n"), file("s2", "battery-staple"));
    let incoming = ["target", "chap", "db", "--user", "alice", "--secret-file", &secret];
    server.ok(&[&incoming[..], &["--mutual-user", "server", "--mutual-secret-file", &mutual]].concat());
    let portal = portal(&server);
    let login = |user: &str, rest: &str| {
        inquiry("iqn.2026-11.x:a", &format!("iscsi://{user}{portal}/{AUTHORITY}:db/0{rest}"))
    };
    for (user, rest) in [
        ("", ""),
        ("alice%correct-hors@", ""),
        ("bob%correct-horse@", ""),
        ("alice%correct-horse@", "?target_user=server&target_password=wrong-wrong-wrong"),
        ("alice%correct-horse@", "?target_user=other&target_password=battery-staple"),
    ] {
        assert!(login(user, rest).is_err(), "{user} {rest} got in");
    }
    login("alice%correct-horse@", "").unwrap();
    login("alice%correct-horse@", "?target_user=server&target_password=battery-staple").unwrap();

    let third = file("s3", "trusty-trumpet");
    server.ok(&["target", "chap", "--all", "--user", "bob", "--secret-file", &third]);
    assert!(discovered(&format!("iscsi://{portal}")).is_empty());
    assert_eq!(discovered(&format!("iscsi://bob%trusty-trumpet@{portal}")), ["db"]);
    server.ok(&["target", "chap", "db", "--off"]);
    login("bob%trusty-trumpet@", "").unwrap();
    assert!(login("alice%correct-horse@", "").is_err());
    server.ok(&["target", "chap", "--all", "--off"]);
    login("", "").unwrap();
}

/// qemu with a LUN open, until it is dropped.
struct Open(Child);

impl Open {
    fn new(url: &str) -> Open {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw", url]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut open = Open(command.spawn().unwrap());
        open.0.stdin.as_mut().unwrap().write_all(b"write -P 3 0 64k\n").unwrap();
        open
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The sessions of a target, once there are so many.
fn sessions(server: &Server, target: &str, count: usize) -> Vec<Value> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let sessions = server.json(&["target", "show", target])["sessions"].as_array().unwrap().clone();
        let busy = sessions.iter().all(|s| s["write_bytes"].as_u64() > Some(0));
        if sessions.len() == count && busy {
            return sessions;
        }
        assert!(Instant::now() < end, "there are not {count} sessions with writes: {sessions:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn sessions_are_shown_and_obey() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    server.ok(&["volume", "create", "db", "--size", "4M"]);
    let open = Open::new(&url(&server, "db", 0));
    let [session] = &sessions(&server, "db", 1)[..] else { panic!("one session") };
    assert!(session["initiator"].as_str().unwrap().starts_with("iqn.2008-11.org.linux-kvm"), "{session}");
    assert!(session["addresses"][0].as_str().unwrap().starts_with("127.0.0.1:"), "{session}");
    assert_eq!((&session["write_bytes"], &session["portal_group"]), (&(64 << 10).into(), &1.into()));
    assert_eq!(session["read_only"], false);
    let (code, message) = server.fails(&["volume", "delete", "db"]);
    assert!(code == 4 && message.contains("iSCSI"), "{code}: {message}");
    assert_eq!(server.json(&["status"])["iscsi_sessions"], 1);

    server.ok(&["target", "allow", "db", "--initiator", QEMU, "--read-only"]);
    assert_eq!(sessions(&server, "db", 1)[0]["read_only"], true, "a rule acts on sessions");
    server.ok(&["target", "disallow", "db", "--rule", "1"]);
    server.ok(&["volume", "resize", "db", "--size", "8M"]);
    assert_eq!(sessions(&server, "db", 1)[0]["read_only"], false);
    server.ok(&["target", "deny", "db", "--initiator", QEMU]);
    sessions(&server, "db", 0);
    drop(open);
    server.ok(&["target", "disallow", "db", "--rule", "1"]);
    let _open = Open::new(&url(&server, "db", 0));
    sessions(&server, "db", 1);
    server.ok(&["volume", "delete", "db", "--force"]);
    assert_eq!(server.fails(&["target", "show", "db"]).0, 3);
    assert_eq!(
        server.stop("-TERM"),
        Some(0),
        "an initiator that is still there does not keep it from stopping"
    );
}
