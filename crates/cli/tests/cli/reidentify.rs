//! A copy of a pool gets identities of its own, by the built program.

use crate::server::{Server, failure, program};
use serde_json::{Value, json};
use std::path::Path;

fn command(dir: &Path, args: &[&str]) -> std::process::Command {
    let mut command = program();
    command.args(["pool", "reidentify", "--data"]).arg(dir).args(args);
    command
}

fn run(dir: &Path, args: &[&str]) -> Value {
    let output = command(dir, &[args, &["-o", "json"]].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => copy(&entry.path(), &to),
            kind if kind.is_file() => drop(std::fs::copy(entry.path(), to).unwrap()),
            _ => {}
        }
    }
}

#[test]
fn a_copy_has_other_identities_and_the_same_everything_else() {
    let tmp = tempfile::tempdir().unwrap();
    let (original, copied) = (tmp.path().join("original"), tmp.path().join("copied"));
    let image = tmp.path().join("cd.image");
    std::fs::write(&image, vec![0; 1 << 20]).unwrap();
    let server = Server::start(&original);
    server.ok(&["volume", "create", "db", "--size", "8M"]);
    server.ok(&["snapshot", "create", "db@s"]);
    server.ok(&["snapshot", "set", "db@s", "--writable"]);
    server.ok(&["target", "create", "cluster"]);
    server.ok(&["target", "add-lun", "cluster", "--volume", "db"]);
    server.ok(&["target", "add-lun", "cluster", "--file", image.to_str().unwrap()]);
    server.ok(&["target", "set", "db", "--alias", "text for people"]);
    server.ok(&["schedule", "create", "hourly", "db", "--every", "1h", "--keep-last", "2"]);
    let luns = server.json(&["target", "show", "cluster"])["luns"].clone();
    let uuid = server.json(&["volume", "show", "db"])["uuid"].clone();
    let (code, message) = failure(command(&original, &["--yes"]).output().unwrap());
    assert!(code == 4 && message.contains("another process has it open"), "{message}");
    assert_eq!(server.stop("-KILL"), None);
    copy(&original, &copied);
    // What a logical unit of the original remembers.
    let remembered = format!("lu-{}.state", uuid.as_str().unwrap());
    std::fs::write(copied.join(&remembered), "whatever it is").unwrap();

    let names = |dir: &Path| -> Vec<_> {
        let all = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap());
        let mut all: Vec<_> =
            all.map(|e| (e.file_name(), e.metadata().unwrap().modified().unwrap())).collect();
        all.sort();
        all
    };
    let before = names(&copied);
    let plan = run(&copied, &[]);
    assert_eq!(plan["volumes"][0], json!({"name": "db", "old": uuid, "new": null}));
    assert_eq!((&plan["unfinished"], &plan["pvs"]), (&json!(false), &json!(["pv-0.img"])));
    assert_eq!(names(&copied), before, "nothing was written");
    let done = run(&copied, &["--yes"]);
    assert_eq!((&done["resumed"], &done["now"]["schedules"]), (&json!(false), &json!(["hourly"])));
    assert_eq!(done["now"]["volumes"][0]["old"], uuid);
    assert!(copied.join("metadata").join(done["backup"].as_str().unwrap()).exists());
    assert!(!copied.join(&remembered).exists());
    let check = program().args(["check", "--data"]).arg(&copied).output().unwrap();
    assert_eq!(check.status.code(), Some(0), "{}", String::from_utf8_lossy(&check.stdout));

    let server = Server::start(&copied);
    let now = server.json(&["volume", "show", "db"])["uuid"].clone();
    assert!(now != uuid && now == done["now"]["volumes"][0]["new"]);
    let mapped = server.json(&["target", "show", "cluster"])["luns"].clone();
    for n in 0..2 {
        assert_eq!(mapped[n]["source"], luns[n]["source"]);
        assert!(mapped[n]["uuid"] != luns[n]["uuid"] && mapped[n]["error"].is_null(), "{mapped}");
    }
    assert_eq!(server.json(&["target", "show", "db"])["alias"], "text for people");
    assert_eq!(server.json(&["schedule", "show", "hourly"])["volumes"], json!(["db"]));
    assert!(!server.json(&["snapshot", "show", "db@s"])["writable"].is_null());
}

#[test]
fn where_there_is_no_pool_nothing_is_made() {
    let tmp = tempfile::tempdir().unwrap();
    for dir in [tmp.path().to_owned(), tmp.path().join("none")] {
        assert_eq!(failure(command(&dir, &["--yes"]).output().unwrap()).0, 3);
    }
    assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 0);
}
