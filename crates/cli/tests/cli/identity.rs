//! Who may use the admin API: roles and scopes of tokens, sessions of browsers, links, and the
//! audit.

use crate::server::{Server, failure, program};
use crate::transport::{Reach, Way, Wire, send2, serving};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// A response: status, head and body.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let line = self.head.lines().find(|line| line.to_lowercase().starts_with(&format!("{name}: ")))?;
        line.split_once(": ").map(|(_, value)| value)
    }
}

/// Reads a response, and parses it.
pub(crate) fn answer(mut stream: impl Read) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    // An export is no text.
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.into(), body: body.into() }
}

/// Sends a request over TCP. `headers` are whole lines.
pub(crate) fn send(
    reach: impl Into<Reach>,
    method: &str,
    path: &str,
    headers: &[&str],
    body: Option<&Value>,
) -> Answer {
    let reach = reach.into();
    if reach.way == Way::Http2 {
        return send2(reach.address, method, path, headers, body);
    }
    let mut stream = Wire::connect(reach).unwrap();
    let body = body.map(Value::to_string).unwrap_or_default();
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|line| line.starts_with("Host:")) {
        head.push_str("Host: localhost\r\n");
    }
    if !body.is_empty() {
        head.push_str("Content-Type: application/json\r\n");
    }
    headers.iter().for_each(|line| head.push_str(&format!("{line}\r\n")));
    // The server may answer before it has read everything.
    let _ = write!(stream, "{head}\r\n{body}");
    answer(stream)
}

/// A server that listens on TCP, too; where.
pub(crate) fn with_tcp(dir: &Path, args: &[&str]) -> (Server, SocketAddr) {
    let unix = format!("unix:{}", dir.join("pool/hindcast.sock").display());
    let ours = ["--api", &unix, "--api", "127.0.0.1:0"];
    let server = Server::start_with(&dir.join("pool"), &[&ours, args].concat());
    let status = server.json(&["status"]);
    let listeners = status["listeners"]["api"].as_array().unwrap();
    let address = listeners.iter().find_map(|l| l.as_str()?.parse().ok()).unwrap();
    (server, address)
}

pub(crate) fn token(server: &Server, name: &str, role: &str, more: &[&str]) -> String {
    let args = [&["access", "token", "create", name, "--role", role], more].concat();
    format!("Authorization: Bearer {}", server.ok(&args).trim())
}

/// Every route of the API, with parameters filled in: (method, template, path).
fn routes(address: Reach) -> Vec<(String, String, String)> {
    let document = send(address, "GET", "/api/v1/openapi.json", &[], None).json();
    let mut routes = Vec::new();
    for (template, item) in document["paths"].as_object().unwrap() {
        let filled = template.replace("{number}", "1").replace("{lun}", "1");
        let parts = filled.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
        let path = parts.collect::<Vec<_>>().join("/");
        for method in item.as_object().unwrap().keys() {
            routes.push((method.to_uppercase(), template.clone(), path.clone()));
        }
    }
    assert!(routes.len() > 90, "{}", routes.len());
    routes
}

/// The least role that a request needs, by rules that are not those of the server's table.
fn least(method: &str, template: &str) -> &'static str {
    let admin = [
        "/access/",
        "/audit",
        "/nbd-access/rules",
        "/rollback",
        "/in-place",
        "/snapshots/delete",
        "/upgrade",
        "/clock/confirmation",
        "/pool/pvs",
        "/pool/layouts",
        "/pool/members",
        "/pool/spares",
        "/pool/trace",
        "/targets",
        "/target-defaults",
    ];
    let stops = ["/rebalance", "/scrub", "/flatten", "/relocation", "/import", "/tasks/{id}", "/views/{id}"];
    match (method, template) {
        (_, "/healthz" | "/api/v1/instance") | ("POST", "/api/v1/session") => "none",
        (_, "/api/v1/session") => "any",
        (_, "/metrics") => "metrics",
        ("POST", "/api/v1/access/links") => "local",
        ("GET", path) if path.contains("/access/") || path.contains("/audit") => "admin",
        ("GET", path)
            if ["/export", "/file", "/files", "/partitions"].iter().any(|end| path.ends_with(end)) =>
        {
            "operator"
        }
        ("GET", _) => "viewer",
        ("PATCH", "/api/v1/pool") => "admin",
        (_, path) if admin.iter().any(|part| path.contains(part)) => "admin",
        ("DELETE", path) if !stops.iter().any(|part| path.ends_with(part)) => "admin",
        _ => "operator",
    }
}

#[test]
fn each_role_may_use_its_routes_and_no_others() {
    Way::ALL.into_iter().for_each(roles_over);
}

fn roles_over(way: Way) {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serving(way, dir.path(), &[]);
    let names = ["metrics", "replicate", "viewer", "operator", "admin"];
    let tokens = names.map(|role| token(&server, role, role, &[]));
    let covers = |role: &str, least: &str| match least {
        "none" | "any" => true,
        "local" => false,
        "metrics" => role != "replicate",
        "viewer" => ["viewer", "operator", "admin"].contains(&role),
        "operator" => ["operator", "admin"].contains(&role),
        _ => role == "admin",
    };
    for (method, template, path) in routes(address) {
        let least = least(&method, &template);
        let body = (method != "GET").then(|| json!({}));
        let ask = |headers: &[&str]| send(address, &method, &path, headers, body.as_ref());
        let unknown = ask(&[]).status;
        assert_eq!(unknown == 401, least != "none", "{method} {template} without credentials: {unknown}");
        for (role, token) in names.iter().zip(&tokens) {
            let answer = ask(&[token]);
            let (status, body) = (answer.status, &answer.body);
            assert_eq!(status == 403, !covers(role, least), "{method} {template} as {role}: {status} {body}");
            assert!(![401, 405].contains(&status), "{method} {template} as {role}: {status} {body}");
        }
    }
    let refusal = send(address, "DELETE", "/api/v1/volumes/x", &[&tokens[2]], None).json();
    let message = refusal["message"].as_str().unwrap();
    assert!(message.contains("role admin") && message.contains("viewer"), "{message}");
    // The server is still as it was.
    assert_eq!(server.json(&["access", "token", "list"]).as_array().unwrap().len(), names.len());
}

#[test]
fn a_token_has_a_scope_an_expiry_and_an_end() {
    Way::ALL.into_iter().for_each(scope_over);
}

fn scope_over(way: Way) {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serving(way, dir.path(), &[]);
    for volume in ["db", "db1", "log"] {
        server.ok(&["volume", "create", volume, "--size", "1M"]);
    }
    let scoped = token(&server, "ci", "operator", &["--volumes", "db*"]);
    let ask = |token: &str, method: &str, path: &str, body: Value| {
        let body = (method != "GET").then_some(&body);
        send(address, method, &format!("/api/v1{path}"), &[token], body).status
    };
    assert_eq!(ask(&scoped, "GET", "/status", json!({})), 200);
    assert_eq!(ask(&scoped, "GET", "/volumes/db1", json!({})), 200);
    assert_eq!(ask(&scoped, "GET", "/volumes/log", json!({})), 403);
    assert_eq!(ask(&scoped, "GET", "/volumes/%64b1", json!({})), 200);
    assert_eq!(ask(&scoped, "GET", "/volumes/%6cog", json!({})), 403);
    assert_eq!(ask(&scoped, "GET", "/volumes/nothing", json!({})), 403, "not even whether it exists");
    for list in ["/volumes", "/snapshots", "/clients", "/targets", "/pool"] {
        assert_eq!(ask(&scoped, "GET", list, json!({})), 403, "{list}");
    }
    let snapshots = |volumes: &[&str]| json!({"snapshots": volumes.iter().map(|v| json!({"volume": v, "name": "s"})).collect::<Vec<_>>()});
    assert_eq!(ask(&scoped, "POST", "/snapshots", snapshots(&["db", "log"])), 403);
    assert_eq!(ask(&scoped, "POST", "/snapshots", snapshots(&["db", "db1"])), 201);
    assert_eq!(ask(&scoped, "POST", "/volumes/db/snapshots/s/clones", json!({"name": "other"})), 403);
    assert_eq!(ask(&scoped, "POST", "/volumes/db/snapshots/s/clones", json!({"name": "db-c"})), 201);
    assert_eq!(ask(&scoped, "PATCH", "/volumes/db1", json!({"name": "mine"})), 403);
    assert_eq!(ask(&scoped, "PATCH", "/volumes/db1", json!({"size": 2 << 20})), 200);
    assert_eq!(ask(&scoped, "PATCH", "/volumes/db1", json!({"size": 1 << 20})), 403, "shrinking");

    let short = token(&server, "short", "viewer", &["--expires", "1s"]);
    assert_eq!(ask(&short, "GET", "/status", json!({})), 200);
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(ask(&short, "GET", "/status", json!({})), 401);
    let list = server.json(&["access", "token", "list"]);
    assert_eq!(list[0]["name"], "ci");
    assert!(list[0]["last_used"].is_string(), "{list}");
    assert!(server.ok(&["access", "token", "list"]).contains("db*"));
    server.ok(&["access", "token", "revoke", "ci"]);
    assert_eq!(ask(&scoped, "GET", "/status", json!({})), 401);
}

fn user(server: &Server, dir: &Path, name: &str, role: &str, password: &str) {
    let file = dir.join("password");
    fs::write(&file, format!("{password}\n")).unwrap();
    server.ok(&["access", "user", "add", name, "--role", role, "--password-file", file.to_str().unwrap()]);
}

fn log_in(address: impl Into<Reach>, name: &str, password: &str) -> Answer {
    let body = json!({"name": name, "password": password});
    send(address, "POST", "/api/v1/session", &[], Some(&body))
}

/// The header with the cookie of a session.
fn cookie(answer: &Answer) -> String {
    let set = answer.header("set-cookie").unwrap();
    assert!(set.contains("HttpOnly") && set.contains("SameSite=Strict") && set.contains("Path=/"), "{set}");
    format!("Cookie: {}", set.split(';').next().unwrap())
}

#[test]
fn a_session_is_for_pages_of_this_server_only() {
    Way::ALL.into_iter().for_each(session_over);
}

fn session_over(way: Way) {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serving(way, dir.path(), &["--api-host", "storage.example"]);
    user(&server, dir.path(), "anna", "operator", "correct horse");
    assert_eq!(log_in(address, "anna", "wrong horse!").status, 401);
    let begun = log_in(address, "anna", "correct horse");
    assert_eq!(begun.status, 201, "{}", begun.body);
    assert_eq!(begun.json()["role"], "operator");
    for name in
        ["content-security-policy", "x-content-type-options", "referrer-policy", "cross-origin-opener-policy"]
    {
        assert!(begun.header(name).is_some(), "{name}");
    }
    assert_eq!(begun.header("cache-control"), Some("no-store"));
    let set = begun.header("set-cookie").unwrap();
    assert_eq!(set.starts_with("__Host-"), way.is_tls(), "{set}");
    assert_eq!(set.contains("; Secure"), way.is_tls(), "{set}");
    let cookie = cookie(&begun);
    let who = send(address, "GET", "/api/v1/session", &[&cookie], None);
    assert_eq!((who.status, who.json()["name"].as_str()), (200, Some("anna")));
    assert!(who.json()["expires"].is_string());

    let create = |name: &str, more: &[&str]| {
        let body = json!({"name": name, "size": 1 << 20});
        send(address, "POST", "/api/v1/volumes", &[&[cookie.as_str()], more].concat(), Some(&body)).status
    };
    let (at, scheme) = (address.address, address.scheme());
    let origin = format!("Origin: {scheme}://{at}");
    let host = format!("Host: {at}");
    let other_scheme = format!("Origin: {}://{at}", if way.is_tls() { "http" } else { "https" });
    assert_eq!(create("v1", &["Sec-Fetch-Site: same-origin"]), 201);
    assert_eq!(create("v2", &[&origin, &host]), 201);
    for foreign in [
        &[][..],
        &["Sec-Fetch-Site: cross-site"],
        &["Sec-Fetch-Site: same-site"],
        &["Origin: http://evil.example"],
        &["Origin: null"],
        &[&other_scheme, &host],
    ] {
        assert_eq!(create("v3", foreign), 403, "{foreign:?}");
    }
    let volume = json!({"name": "v3", "size": 1 << 20}).to_string();
    let plain = [cookie.as_str(), "Sec-Fetch-Site: same-origin", "Content-Type: text/plain"];
    assert_eq!(
        send(address, "POST", &format!("/api/v1/volumes?{volume}").replace('"', ""), &plain, None).status,
        403
    );

    let named = |host: &str| {
        send(address, "GET", "/api/v1/session", &[&cookie, &format!("Host: {host}")], None).status
    };
    assert_eq!(named("evil.example"), 421);
    assert_eq!(named(&format!("evil.example:{}", at.port())), 421);
    for good in ["localhost", "storage.example:8440", "127.0.0.1"] {
        assert_eq!(named(good), 200, "{good}");
    }

    let list = server.json(&["access", "session", "list"]);
    assert_eq!((list.as_array().unwrap().len(), list[0]["name"].as_str()), (1, Some("anna")));
    let again = cookie_of(log_in(address, "anna", "correct horse"));
    let out = ["Sec-Fetch-Site: same-origin", "Content-Type: application/json", again.as_str()];
    assert_eq!(send(address, "DELETE", "/api/v1/session", &out, None).status, 204);
    assert_eq!(send(address, "GET", "/api/v1/session", &[&again], None).status, 401);
    server.ok(&["access", "session", "end", list[0]["id"].as_str().unwrap()]);
    assert_eq!(send(address, "GET", "/api/v1/session", &[&cookie], None).status, 401);
    let third = cookie_of(log_in(address, "anna", "correct horse"));
    server.ok(&["access", "user", "role", "anna", "viewer"]);
    assert_eq!(send(address, "GET", "/api/v1/session", &[&third], None).status, 401);
}

fn cookie_of(answer: Answer) -> String {
    assert_eq!(answer.status, 201, "{}", answer.body);
    cookie(&answer)
}

#[test]
fn guessing_a_password_is_slow() {
    Way::ALL.into_iter().for_each(guessing_over);
}

fn guessing_over(way: Way) {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serving(way, dir.path(), &[]);
    user(&server, dir.path(), "anna", "viewer", "correct horse");
    let wrong = log_in(address, "anna", "wrong horse!");
    let unknown = log_in(address, "nobody", "wrong horse!");
    assert_eq!((wrong.status, unknown.status), (401, 401));
    assert_eq!(wrong.body, unknown.body, "the answer does not tell whether the user exists");
    let statuses: Vec<u16> =
        (0..8).map(|n| log_in(address, "anna", &format!("wrong horse {n}")).status).collect();
    assert!(statuses.contains(&429) && statuses[..3].iter().all(|s| *s == 401), "{statuses:?}");
    let right = log_in(address, "anna", "correct horse");
    assert_eq!(right.status, 429);
    assert!(right.json()["message"].as_str().unwrap().contains("try again in"));
    let wait: u64 = right.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=11).contains(&wait), "{wait}");
    assert_eq!(failure(server.run(&["access", "user", "password", "anna"])).0, 2, "there is no terminal");
}

#[test]
fn a_link_is_good_once() {
    Way::ALL.into_iter().for_each(link_over);
}

fn link_over(way: Way) {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serving(way, dir.path(), &[]);
    let url = server.ok(&["console"]);
    let begin = format!("{}://{}/#link=", address.scheme(), address.address);
    let secret = url.trim().strip_prefix(&begin).unwrap();
    let follow = |link: &str| send(address, "POST", "/api/v1/session", &[], Some(&json!({"link": link})));
    let begun = follow(secret);
    assert_eq!((begun.status, begun.json()["role"].as_str()), (201, Some("admin")));
    assert_eq!(send(address, "GET", "/api/v1/session", &[&cookie(&begun)], None).json()["kind"], "link");
    assert_eq!(follow(secret).status, 401);
    let both = json!({"link": secret, "name": "x", "password": "y"});
    assert_eq!(send(address, "POST", "/api/v1/session", &[], Some(&both)).status, 400);
    let admin = token(&server, "a", "admin", &[]);
    assert_eq!(send(address, "POST", "/api/v1/access/links", &[&admin], None).status, 403);
    assert_eq!(server.http("POST", "/api/v1/session", "{\"link\":\"x\"}").0, 501);
}

#[test]
fn the_audit_has_what_changed_and_who_was_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = with_tcp(dir.path(), &[]);
    user(&server, dir.path(), "anna", "viewer", "correct horse");
    let ci = token(&server, "ci", "operator", &[]);
    let body = json!({"name": "v", "size": 1 << 20});
    assert_eq!(send(address, "POST", "/api/v1/volumes", &[&ci], Some(&body)).status, 201);
    assert_eq!(send(address, "DELETE", "/api/v1/volumes/v", &[&ci], None).status, 403);
    assert_eq!(send(address, "GET", "/api/v1/volumes", &[], None).status, 401);
    assert_eq!(send(address, "GET", "/api/v1/volumes", &[&ci], None).status, 200);
    assert_eq!(log_in(address, "anna", "correct horse").status, 201);
    assert_eq!(log_in(address, "anna", "wrong horse!").status, 401);
    let all = server.json(&["audit"]);
    let shown: Vec<(Option<&str>, &str, &str, u64)> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|e| {
            let status = e["status"].as_u64().unwrap();
            (e["who"].as_str(), e["method"].as_str().unwrap(), e["route"].as_str().unwrap(), status)
        })
        .collect();
    let local = shown[0].0;
    assert!(local.is_some());
    assert_eq!(
        shown,
        [
            (local, "POST", "/api/v1/access/users", 201),
            (local, "POST", "/api/v1/access/tokens", 201),
            (Some("ci"), "POST", "/api/v1/volumes", 201),
            (Some("ci"), "DELETE", "/api/v1/volumes/{name}", 403),
            (None, "GET", "/api/v1/volumes", 401),
            (Some("anna"), "POST", "/api/v1/session", 201),
            (None, "POST", "/api/v1/session", 401),
        ]
    );
    assert_eq!(all[2]["asked"], body);
    // A request without credentials is no event: a page asks so whether it has a session.
    let refused = server.json(&["events", "--kind", "access.refused"]);
    let statuses: Vec<bool> = refused
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["message"].as_str().unwrap().contains("status 403"))
        .collect();
    assert_eq!(statuses, [true, false], "{refused}");
    assert!(all[3]["error"].as_str().unwrap().contains("role admin"));
    assert_eq!(server.json(&["audit", "--who", "ci", "--since", "-1h"]).as_array().unwrap().len(), 2);
    assert!(server.ok(&["audit"]).contains("DELETE /api/v1/volumes/v"));
    assert_eq!(server.json(&["audit", "--verify"])["entries"], 7);
    let month = fs::read_dir(server.dir.join("audit")).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&month).unwrap();
    assert!(!text.contains("horse"), "{text}");
    fs::write(&month, text.replacen("\"status\":403", "\"status\":204", 1)).unwrap();
    let (code, message) = failure(server.run(&["audit", "--verify"]));
    assert_eq!(code, 1);
    assert!(message.contains("line 5"), "{message}");
}

#[test]
fn changes_are_refused_while_the_audit_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    drop(Server::start(dir.path()));
    fs::remove_dir_all(dir.path().join("audit")).unwrap();
    fs::write(dir.path().join("audit"), "in the way").unwrap();
    let server = Server::start(dir.path());
    let (_, message) = server.fails(&["volume", "create", "v", "--size", "1M"]);
    assert!(message.contains("the audit can't be written"), "{message}");
    let health = server.json(&["status"])["health"].clone();
    assert_eq!(health["problems"][0]["code"], "audit-unwritable", "{health}");
    fs::remove_file(dir.path().join("audit")).unwrap();
    server.ok(&["volume", "create", "v", "--size", "1M"]);
    assert_eq!(server.json(&["status"])["health"]["state"], "healthy");
    assert_eq!(server.json(&["audit", "--verify"])["problems"], json!([]));
}

#[test]
fn a_token_can_come_from_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = with_tcp(dir.path(), &[]);
    let secret = server.ok(&["access", "token", "create", "t", "--role", "viewer"]);
    let run = |token: &str| {
        let mut command = program();
        command.env("HINDCAST_TOKEN", token).args([
            "--server",
            &format!("http://{address}"),
            "volume",
            "list",
        ]);
        command.output().unwrap()
    };
    assert!(run(secret.trim()).status.success());
    assert_eq!(failure(run("hct_wrong")).0, 1);
    assert_eq!(failure(run("")).0, 1);
}

#[test]
fn a_viewer_creates_views_in_its_scope_if_its_token_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = with_tcp(dir.path(), &[]);
    for volume in ["db", "log"] {
        server.ok(&["volume", "create", volume, "--size", "1M"]);
        server.ok(&["snapshot", "create", &format!("{volume}@s")]);
    }
    let plain = token(&server, "plain", "viewer", &["--volumes", "db"]);
    let views = token(&server, "views", "viewer", &["--volumes", "db", "--views"]);
    let create = |who: &str, volume: &str| {
        let body = json!({"moment": "s", "lease_seconds": 600});
        send(address, "POST", &format!("/api/v1/volumes/{volume}/views"), &[who], Some(&body)).status
    };
    assert_eq!((create(&plain, "db"), create(&views, "db"), create(&views, "log")), (403, 201, 403));
    let uuid = |volume: &str| server.json(&["volume", "show", volume])["uuid"].as_str().unwrap().to_owned();
    assert_eq!(create(&views, &format!("uuid:{}", uuid("db"))), 201);
    let path = format!("/api/v1/volumes/uuid:{}", uuid("log"));
    let refused = send(address, "GET", &path, &[&views], None);
    assert!(refused.status == 403 && !refused.body.contains("log"), "{}", refused.body);
    assert_eq!(create(&views, &format!("uuid:{}", uuid("log"))), 403);
    // Whoever may create a view may use and end it, within the scope.
    let made = server.json(&["view", "create", "log@s"]);
    let own = server.json(&["view", "create", "db@s"]);
    let on = |who: &str, method: &str, view: &Value, rest: &str| {
        let path = format!("/api/v1/views/{}{rest}", view["id"].as_str().unwrap());
        send(address, method, &path, &[who], None).status
    };
    assert_eq!((on(&views, "GET", &made, ""), on(&views, "GET", &own, "")), (403, 200));
    assert_eq!((on(&views, "GET", &made, "/partitions"), on(&views, "GET", &own, "/partitions")), (403, 200));
    assert_eq!((on(&plain, "GET", &own, "/partitions"), on(&plain, "DELETE", &own, "")), (403, 403));
    assert_eq!((on(&views, "DELETE", &made, ""), on(&views, "DELETE", &own, "")), (403, 204));
    assert_eq!(on(&views, "GET", &json!({"id": "nothing"}), ""), 403);
    let mark = send(address, "POST", "/api/v1/volumes/db/marks", &[&views], Some(&json!({"name": "m"})));
    assert_eq!(mark.status, 403, "{}", mark.body);
    assert_eq!(server.fails(&["access", "token", "create", "m", "--role", "metrics", "--views"]).0, 2);
    // The status tells a caller only of volumes in its scope.
    let status = send(address, "GET", "/api/v1/status", &[&views], None).json();
    let shown: Vec<&Value> =
        status["protection"].as_array().unwrap().iter().map(|of| &of["volume"]).collect();
    assert_eq!(shown, [&json!("db")]);
}

#[test]
fn a_token_is_not_sent_in_the_clear_to_another_host() {
    let run = |more: &[&str], variable: &str| {
        let mut command = program();
        command.env("HINDCAST_TOKEN", "hct_x").env("HINDCAST_PLAIN", variable).args(["--timeout", "1"]);
        command.args(["--server", "http://192.0.2.1:8440", "status"]).args(more);
        failure(command.output().unwrap())
    };
    for refused in ["", "0"] {
        let (code, message) = run(&[], refused);
        assert!(code == 2 && message.contains("https://") && message.contains("--plain"), "{message}");
    }
    // Nobody answers there.
    assert_eq!((run(&["--plain"], "").0, run(&[], "1").0), (5, 5));
}

/// Answers requests to a Unix socket as a server does that made a link to `url`.
fn maker_of_links(path: &Path, url: String) {
    let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).unwrap();
            let link = json!({"url": url, "expires": "2030-01-01T00:00:00Z", "instance": "mine"}).to_string();
            write!(
                stream,
                "HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{link}",
                link.len()
            )
            .unwrap();
        }
    });
}

#[test]
fn the_console_shows_no_link_to_the_port_of_another_program() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = with_tcp(dir.path(), &[]);
    assert!(server.ok(&["console"]).starts_with(&format!("http://{address}/#link=")));
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (name, other) in [("a", address), ("b", closed)] {
        let socket = dir.path().join(name);
        maker_of_links(&socket, format!("http://{other}/#link=0123"));
        let run = |more: &[&str]| {
            program().arg("--socket").arg(&socket).arg("console").args(more).output().unwrap()
        };
        let output = run(&[]);
        assert!(output.stdout.is_empty(), "{name}");
        let (code, message) = failure(output);
        assert!(code == 1 && message.contains("the link is not shown"), "{name}: {message}");
        assert!(run(&["--no-check"]).status.success());
    }
}

#[test]
fn a_default_address_that_another_program_has_is_a_problem() {
    // Another server of this machine may have it already.
    let _taken = std::net::TcpListener::bind("127.0.0.1:8440");
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_at_default(dir.path());
    let health = server.json(&["status"])["health"].clone();
    let is_it = |problem: &Value| problem["code"] == "api-address-taken" && problem["severity"] == "warning";
    assert!(health["problems"].as_array().unwrap().iter().any(is_it), "{health}");
    assert!(server.fails(&["console"]).1.contains("no listener over TCP"));
}

/// A schedule deletes what its retention does not keep, also of a volume that joins its group.
#[test]
fn an_operator_lets_no_schedule_delete_snapshots_through_a_group() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = with_tcp(dir.path(), &[]);
    for volume in ["db", "log"] {
        server.ok(&["volume", "create", volume, "--size", "1M"]);
    }
    server.ok(&["snapshot", "create", "db@daily-old"]);
    server.ok(&["volume", "create", "other", "--size", "1M"]);
    server.ok(&["group", "create", "shop", "other"]);
    server.ok(&["schedule", "create", "daily", "shop", "--every", "1d", "--keep-last", "1"]);
    let operator = token(&server, "op", "operator", &[]);
    let add = |volume: &str| {
        let body = json!({"add": [volume]});
        send(address, "PATCH", "/api/v1/groups/shop", &[&operator], Some(&body)).status
    };
    assert_eq!((add("db"), add("log")), (403, 200));
    // A volume of a group that is in the trash is in the group again when it is restored.
    server.ok(&["volume", "create", "mail", "--size", "1M"]);
    server.ok(&["snapshot", "create", "mail@weekly-old"]);
    server.ok(&["group", "create", "office", "mail", "log"]);
    server.ok(&["volume", "delete", "mail"]);
    let create = |name: &str| {
        let keep = json!({"last": 1});
        let body = json!({"name": name, "groups": ["office"], "volumes": [], "every": 86400, "keep": keep});
        send(address, "POST", "/api/v1/schedules", &[&operator], Some(&body)).status
    };
    assert_eq!((create("weekly"), create("monthly")), (403, 201));
}
