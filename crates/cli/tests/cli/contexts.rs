//! Names that a person gives to servers.

use crate::identity::{token, with_tcp};
use crate::server::{failure, program};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// A command of a person with this home.
fn of(home: &Path, args: &[&str]) -> Output {
    let mut command: Command = program();
    command.env("HOME", home).env_remove("XDG_CONFIG_HOME").current_dir(home);
    command.args(args).output().unwrap()
}

fn ok(home: &Path, args: &[&str]) -> String {
    let output = of(home, args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_server_is_reached_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path();
    let (server, address) = with_tcp(home, &[]);
    let header = token(&server, "t", "viewer", &[]);
    fs::write(home.join("its token"), header.rsplit(' ').next().unwrap()).unwrap();
    let url = format!("http://{address}");

    assert_eq!(ok(home, &["context", "list", "-o", "json"]).trim(), "[]");
    // A path is that of where the command was given.
    ok(home, &["context", "add", "here", "pool/hindcast.sock"]);
    ok(home, &["context", "add", "remote", &url, "--token-file", "its token", "--default"]);
    let table = ok(home, &["context", "list"]);
    assert!(table.contains("*  remote  http://127.0.0.1:") && table.contains("   here    /"), "{table}");
    for args in [&["--server", "here", "status"][..], &["--server", "remote", "status"], &["status"]] {
        assert!(ok(home, args).contains("healthy"), "{args:?}");
    }
    // The default is the viewer of the token, and what the command line says comes first.
    let create = ["volume", "create", "v", "--size", "1M"];
    assert!(failure(of(home, &create)).1.contains("role"));
    ok(home, &[&["--server", "here"][..], &create].concat());
    fs::write(home.join("no token"), "hct_wrong").unwrap();
    assert_eq!(failure(of(home, &["--token-file", "no token", "status"])).0, 1);

    ok(home, &["context", "use", "here"]);
    let all: Value = serde_json::from_str(&ok(home, &["context", "list", "-o", "json"])).unwrap();
    let defaults: Vec<(&Value, &Value)> =
        all.as_array().unwrap().iter().map(|context| (&context["name"], &context["default"])).collect();
    assert_eq!(defaults, [(&json!("here"), &json!(true)), (&json!("remote"), &json!(false))]);
    assert!(ok(home, &["volume", "list"]).contains('v'));
    ok(home, &["context", "use", "--none"]);
    assert_eq!(failure(of(home, &["status"])).0, 5, "no server is at the default place");
    ok(home, &["context", "remove", "here"]);

    let refusals: [(&[&str], i32, &str); 5] = [
        (&["context", "add", "remote", "/s"], 4, "there is one"),
        (&["context", "add", "a/b", "/s"], 2, "no name of a context"),
        (&["context", "add", "x", "http://host"], 2, "http://HOST:PORT"),
        (&["context", "use", "here"], 3, "does not exist"),
        (&["context", "remove", "here"], 3, "does not exist"),
    ];
    for (args, code, part) in refusals {
        let (found, message) = failure(of(home, args));
        assert!(found == code && message.contains(part), "{args:?}: {found} {message}");
    }
    fs::write(home.join(".config/hindcast/contexts"), "nothing\n").unwrap();
    let (code, message) = failure(of(home, &["status"]));
    assert!(code == 2 && message.contains("contexts: line 1"), "{message}");
}
