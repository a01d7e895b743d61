//! Limits on what clients can take from the server, and from each other: connections, threads, and
//! files of the host.

use crate::identity::{answer, send};
use crate::server::{Server, failure, program};
use crate::transport::{Reach, Way, Wire, connect2, request2, run, serving};
use hyper::body::Incoming;
use serde_json::json;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const TOKEN: &str = "0123456789abcdef";

/// A server that listens on TCP, too, and has a token of its operator; how to reach it there.
fn with_token(way: Way, dir: &Path, args: &[&str]) -> (Server, Reach) {
    let token = dir.join("token");
    fs::write(&token, TOKEN).unwrap();
    serving(way, dir, &[&["--api-token-file", token.to_str().unwrap()], args].concat())
}

/// A request with the token over TCP.
fn post(reach: Reach, path: &str, body: &serde_json::Value) -> (u16, String) {
    let token = format!("Authorization: Bearer {TOKEN}");
    let answer = send(reach, "POST", &format!("/api/v1{path}"), &[&token], Some(body));
    (answer.status, answer.body)
}

/// An NBD client that opens an export and then says nothing.
fn idle(address: &str, export: &str) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).ok()?;
    let mut go = 3u32.to_be_bytes().to_vec();
    go.extend(b"IHAVEOPT\0\0\0\x07");
    go.extend((export.len() as u32 + 6).to_be_bytes());
    go.extend((export.len() as u32).to_be_bytes());
    go.extend(export.as_bytes());
    go.extend([0, 0]);
    stream.write_all(&go).ok()?;
    // Any answer will do.
    let mut answer = [0; 20];
    stream.read_exact(&mut answer).ok()?;
    Some(stream)
}

#[test]
fn idle_connections_leave_the_pool_its_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_limited(dir.path(), 1024, &["--nbd", "127.0.0.1:0"]);
    for n in 0..8 {
        server.ok(&["volume", "create", &format!("v{n}"), "--size", "16M", "--cdp", "parity"]);
    }
    let status = server.json(&["status"]);
    let address = status["listeners"]["nbd"][0].as_str().unwrap();
    let limits = &status["limits"];
    assert_eq!(limits["open_files"], 1024);
    let nbd = limits["nbd"].as_u64().unwrap();
    assert!(nbd < 900 && nbd > 50, "{limits}");
    assert!(server.ok(&["status"]).contains(&format!("{nbd} NBD")));
    let mut held: Vec<TcpStream> = (0..992).filter_map(|_| idle(address, "v0")).collect();
    assert!(!held.is_empty());
    // One address has at most half. The last that came may just be being closed.
    let end = Instant::now() + Duration::from_secs(10);
    while server.json(&["status"])["nbd_connections"].as_u64().unwrap() > nbd.div_ceil(2) {
        assert!(Instant::now() < end, "{}", server.json(&["status"]));
    }
    held.extend((0..64).filter_map(|_| TcpStream::connect(address).ok()));
    for n in 0..8 {
        server.ok(&["snapshot", "create", &format!("v{n}@s")]);
    }
    server.ok(&["schedule", "create", "often", "v0", "--every", "1h", "--keep-last", "3"]);
    server.ok(&["volume", "create", "more", "--size", "1M", "--cdp", "parity"]);
    assert_eq!(server.json(&["status"])["health"]["state"], "healthy");
    drop(held);
    assert_eq!(server.stop("-TERM"), Some(0));
}

#[test]
fn a_server_without_descriptors_for_clients_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    drop(Server::start(dir.path()));
    let script = r#"ulimit -n 200; exec "$0" serve --log off --data "$1""#;
    let output =
        Command::new("sh").args(["-c", script]).arg(program().get_program()).arg(dir.path()).output();
    let (code, message) = failure(output.unwrap());
    assert_eq!(code, 6);
    assert!(message.contains("open files") && message.contains("ulimit -n"), "{message}");
}

#[test]
fn silent_connections_over_tcp_keep_nobody_from_the_socket_or_the_port() {
    Way::ALL.into_iter().for_each(silence_over);
}

/// Clients that ask for what needs no token, again and again, and take no answer. What keeps their
/// connections open.
fn unread(reach: Reach) -> Box<dyn std::any::Any> {
    if reach.way != Way::Http2 {
        let request = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(200);
        let asked = (0..60).filter_map(|_| {
            let mut wire = Wire::connect(reach).ok()?;
            wire.tcp.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
            let _ = wire.write(&request);
            Some(wire)
        });
        return Box::new(asked.collect::<Vec<_>>());
    }
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let (ready, begun) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        run(async {
            let (mut all, mut responses): (Vec<_>, Vec<hyper::Response<Incoming>>) = Default::default();
            for _ in 0..30 {
                let (mut sender, ended) = connect2(reach.address).await;
                for _ in 0..8 {
                    let request = request2("GET", "/api/v1/openapi.json", &[], String::new());
                    // A connection may have made room for another one.
                    responses.extend(sender.send_request(request).await.ok());
                }
                all.push((sender, ended));
            }
            ready.send(()).unwrap();
            while stopped.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
    });
    begun.recv().unwrap();
    Box::new(stop)
}

fn silence_over(way: Way) {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = with_token(way, dir.path(), &[]);
    // Each has completed its handshake, or lost its place to a later one during it.
    let held: Vec<Wire> = (0..300).filter_map(|_| Wire::connect(address).ok()).collect();
    assert!(held.len() > 100, "{way:?}: {}", held.len());
    let asked = unread(address);
    for _ in 0..20 {
        let begun = Instant::now();
        server.ok(&["status"]);
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    assert_eq!(post(address, "/volumes", &json!({"name": "v", "size": 1 << 20})).0, 201, "{way:?}");
    drop((held, asked));
}

#[test]
fn a_request_without_the_token_ends_its_connection() {
    for way in Way::TEXT {
        let dir = tempfile::tempdir().unwrap();
        let (_server, address) = with_token(way, dir.path(), &[]);
        let mut wire = Wire::connect(address).unwrap();
        wire.write_all(b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        assert_eq!(answer(wire).status, 401, "{way:?}"); // reads to the end
    }
    let dir = tempfile::tempdir().unwrap();
    let (_server, reach) = with_token(Way::Http2, dir.path(), &[]);
    run(async {
        let (mut sender, ended) = connect2(reach.address).await;
        let request = request2("GET", "/api/v1/status", &[], String::new());
        assert_eq!(sender.send_request(request).await.unwrap().status(), 401);
        tokio::time::timeout(Duration::from_secs(10), ended).await.unwrap().unwrap();
    });
}

/// A request over HTTP/2 has one name of the server and one token, or it is refused.
#[test]
fn over_http2_a_request_has_one_host_and_one_token() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, reach) = with_token(Way::Http2, dir.path(), &[]);
    let (right, wrong) = (format!("Authorization: Bearer {TOKEN}"), "Authorization: Bearer x");
    let ask = |headers: &[&str]| send(reach, "GET", "/api/v1/status", headers, None).status;
    assert_eq!(ask(&[&right]), 200);
    for twice in [[&right, wrong], [wrong, &right], [&right, &right]] {
        assert_eq!(ask(&twice), 400, "{twice:?}");
    }
    assert_eq!(ask(&[&right, "Host: localhost", "Host: localhost"]), 200, "both say the same");
    for other in ["evil.example", "127.0.0.1"] {
        let other = format!("Host: {other}");
        assert_eq!(ask(&[&right, "Host: localhost", &other]), 400, "{other}");
        assert_eq!(ask(&[&right, "Host: localhost", "Host: localhost", &other]), 400, "{other}");
    }
    assert_eq!(ask(&[&right, "Host: evil.example"]), 421);
    // Each of these is in the audit, as of no caller: whose request it is was not asked.
    let entries = send(reach, "GET", "/api/v1/audit", &[&right], None).json();
    let of = |status: u64| {
        entries.as_array().unwrap().iter().filter(move |entry| entry["status"] == status).collect::<Vec<_>>()
    };
    assert_eq!((of(400).len(), of(421).len()), (7, 1), "{entries}");
    let foreign = of(421)[0];
    assert_eq!((&foreign["method"], &foreign["subject"]), (&json!("GET"), &json!("/api/v1/status")));
    assert!(foreign["who"].is_null() && foreign["error"].to_string().contains("evil.example"), "{foreign}");
    // Their number is limited, as that of other requests of unknown callers is.
    (0..20).for_each(|_| assert_eq!(ask(&["Host: evil.example"]), 421));
    let entries = send(reach, "GET", "/api/v1/audit", &[&right], None).json();
    assert!(entries.as_array().unwrap().len() < 20, "{entries}");
}

/// Statuses of all answers to these pieces, the text of them, and how long they took after the last
/// piece. The client leaves its end open.
fn answers<'a>(
    reach: Reach,
    pieces: impl IntoIterator<Item = &'a str>,
    pause: Duration,
) -> (Vec<u16>, String, Duration) {
    let mut stream = Wire::connect(reach).unwrap();
    for (n, piece) in pieces.into_iter().enumerate() {
        if n > 0 {
            std::thread::sleep(pause);
        }
        let _ = stream.write_all(piece.as_bytes());
    }
    let (begun, mut answers) = (Instant::now(), Vec::new());
    // To its end, or until it is broken off with something unread.
    let _ = stream.read_to_end(&mut answers);
    let answers = String::from_utf8_lossy(&answers).into_owned();
    let statuses = answers.split("HTTP/1.1 ").skip(1).map(|answer| answer[..3].parse().unwrap()).collect();
    (statuses, answers, begun.elapsed())
}

/// A request that makes a volume, were it clear: the body follows.
fn creation() -> (String, &'static str) {
    let head =
        format!("POST /api/v1/volumes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n");
    (format!("{head}Content-Type: application/json\r\n"), r#"{"name":"v","size":1048576}"#)
}

/// Each would be two requests to some, and one to others. The bad byte is behind the bar.
#[test]
fn requests_that_end_in_two_places_are_refused() {
    Way::TEXT.into_iter().for_each(two_ends_over);
}

fn two_ends_over(way: Way) {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = with_token(way, dir.path(), &[]);
    let next =
        format!("GET /api/v1/pool HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    let (post, json) = creation();
    let length = format!("Content-Length: {}\r", json.len());
    let te = "Transfer-Encoding: chunked\r";
    let chunks = format!("{:x}\r\n{json}\r\n0\r\n\r\n", json.len());
    let refused_at_once = [
        "GET /healthz HTTP/1.1|\nHost: localhost\n\n".to_owned(),
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\n|\n".to_owned(),
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: y\r|\n\r\n".to_owned(),
        format!("{post}{length}\n{te}|\n\r\n{chunks}"),
        format!("{post}{te}\n{length}|\n\r\n{chunks}"),
        format!("{post}{length}\n{length}|\n\r\n{json}"),
        format!("{post}Content-Length: {}{}\r|\n\r\n{json}", "0".repeat(240), json.len()),
        format!("{post}Transfer-Encoding: gzip, chunked\r|\n\r\n{chunks}"),
        format!("{post}{te}\n{te}|\n\r\n{chunks}"),
        format!("{post}Transfer-Encoding : chunked\r|\n\r\n{chunks}"),
        format!("{post}X: a\r\n b\r|\n{length}\n\r\n{json}"),
    ];
    let refused_in_the_body = [
        format!("{post}{te}\n\r\n1b;a=b\r|\n{json}\r\n0\r\n\r\n"),
        format!("{post}{te}\n\r\n1b\r\n{json}\r\n0\r\nA: b|\n\r\n"),
        format!("{post}{te}\n\r\n1b\r\n{json}|\n0\r\n\r\n"),
    ];
    for request in refused_at_once.iter().chain(&refused_in_the_body) {
        let (before, after) = request.split_once('|').unwrap();
        for pieces in [
            vec![format!("{before}{after}{next}")],
            vec![before.into(), format!("{after}{next}")],
            vec![before.into(), after[..1].into()],
        ] {
            let pieces = pieces.iter().map(String::as_str);
            let (statuses, text, took) = answers(address, pieces, Duration::from_millis(50));
            assert_eq!(statuses, [400], "{request:?}: {text}");
            assert!(took < Duration::from_secs(2), "{request:?}: {took:?}");
            // No handler has seen it.
            assert!(!refused_at_once.contains(request) || !text.contains('{'), "{request:?}: {text}");
        }
    }
    assert_eq!(server.json(&["status"])["volumes"], 0);
    // As clear as can be: a body, and then the next one, which the client ends.
    let end = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let clear = format!("{post}{length}\n\r\n{json}{next}{end}");
    assert_eq!(answers(address, [&*clear], Duration::ZERO).0, [201, 200, 200]);
    let clear = format!("{post}{te}\n\r\n{chunks}{next}{end}");
    assert_eq!(answers(address, [&*clear], Duration::ZERO).0, [409, 200, 200]);
}

#[test]
fn a_head_without_an_end_is_refused() {
    for way in Way::TEXT {
        let dir = tempfile::tempdir().unwrap();
        let (_server, address) = with_token(way, dir.path(), &[]);
        let piece = "a".repeat(4096);
        let pieces = ["GET /healthz HTTP/1.1\r\nX: "].into_iter().chain([&*piece; 16]).chain(["a"]);
        let (statuses, text, took) = answers(address, pieces, Duration::from_millis(5));
        assert_eq!(statuses, [400], "{way:?}: {text}");
        assert!(took < Duration::from_secs(2), "{took:?}");
    }
}

/// From 127.0.0.`host`: a request with a token; the answer's status.
fn ask_from(host: u8, reach: Reach, token: &str) -> u16 {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from(([127, 0, 0, host], 0))).unwrap();
    connect(&socket, &reach.address).unwrap();
    let mut stream = Wire::over(TcpStream::from(socket), reach.way).unwrap();
    let request = "GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    write!(stream, "{request}Authorization: Bearer {token}\r\n\r\n").unwrap();
    answer(stream).status
}

/// As behind a proxy: all come from one address.
#[test]
fn who_guesses_the_token_waits_and_keeps_nobody_else_out() {
    Way::TEXT.into_iter().for_each(guesses_over);
}

fn guesses_over(way: Way) {
    let dir = tempfile::tempdir().unwrap();
    let (server, port) = with_token(way, dir.path(), &[]);
    let begun = Instant::now();
    assert_eq!(ask_from(1, port, "0123456789abcdeX"), 401);
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    let end = Instant::now() + Duration::from_secs(3);
    std::thread::scope(|scope| {
        let guessers: Vec<_> = (0..24)
            .map(|n| {
                scope.spawn(move || {
                    let guess = format!("0123456789abcde{n}");
                    let mut answers = Vec::new();
                    while Instant::now() < end {
                        answers.push(ask_from(1, port, &guess));
                    }
                    answers
                })
            })
            .collect();
        let mut asked = 0;
        while Instant::now() < end {
            assert_eq!(ask_from(1, port, TOKEN), 200);
            asked += 1;
        }
        assert!(asked > 3, "{asked}");
        let answers: Vec<u16> = guessers.into_iter().flat_map(|g| g.join().unwrap()).collect();
        let held = answers.iter().filter(|status| **status == 401).count();
        // Of sixteen at a time, one a second; the last may just have begun.
        assert!((16..=16 * 5).contains(&held), "{held} of {}", answers.len());
        assert!(answers.iter().all(|status| [401, 429].contains(status)), "{answers:?}");
        assert!(answers.contains(&429));
    });
    server.ok(&["status"]);
}

#[test]
fn over_tcp_no_path_of_the_host_is_named_unless_the_configuration_says_where() {
    Way::ALL.into_iter().for_each(host_paths_over);
}

fn host_paths_over(way: Way) {
    let dir = tempfile::tempdir().unwrap();
    let (images, secret) = (dir.path().join("images"), dir.path().join("secret"));
    fs::create_dir(&images).unwrap();
    for file in [&images.join("disk"), &secret] {
        fs::write(file, vec![7; 1 << 20]).unwrap();
    }
    symlink(&secret, images.join("out")).unwrap();
    symlink("../secret", images.join("up")).unwrap();
    symlink("disk", images.join("within")).unwrap();
    let origin = |address: Reach, path: &Path| {
        let name = format!("v{}", path.file_name().unwrap().to_string_lossy());
        post(address, "/volumes", &json!({"name": name, "origin": path, "size": 0})).0
    };
    {
        let (server, address) = with_token(way, dir.path(), &[]);
        assert_eq!(origin(address, &images.join("disk")), 403);
        assert_eq!(post(address, "/pool/pvs", &json!({"path": "pv-1.img", "size": 64 << 20})).0, 403);
        assert_eq!(post(address, "/pool/backups", &json!({"path": images})).0, 403);
        server.ok(&["target", "create", "t"]);
        let lun = |path: &Path| post(address, "/targets/t/luns", &json!({"file": path})).0;
        assert_eq!(lun(&secret), 403);
        // The socket is its owner's.
        server.ok(&["volume", "create", "own", "--origin", secret.to_str().unwrap()]);
    }
    let (server, address) = with_token(way, dir.path(), &["--allow-path", images.to_str().unwrap()]);
    for (path, code) in [("disk", 201), ("within", 201), ("out", 403), ("up", 403), ("none", 404)] {
        assert_eq!(origin(address, &images.join(path)), code, "{path}");
    }
    assert_eq!(origin(address, &secret), 403);
    let up = images.join("../secret");
    assert_eq!(post(address, "/volumes", &json!({"name": "x", "origin": up, "size": 0})).0, 400);
    let (code, message) = server.fails(&["volume", "create", "y", "--origin", secret.to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(message.contains("--allow-path"), "the socket is bound, too: {message}");
    // A new physical volume is made within, and a link that leads out is not followed.
    let pv = |path: &Path| post(address, "/pool/pvs", &json!({"path": path, "size": 64 << 20})).0;
    symlink(dir.path().join("made"), images.join("dangling")).unwrap();
    assert_eq!(pv(&images.join("dangling")), 403);
    assert!(!dir.path().join("made").exists());
    assert_eq!(pv(&images.join("new")), 201);
}

#[test]
fn no_name_leads_to_the_servers_own_files() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = with_token(Way::Plain, dir.path(), &[]);
    server.ok(&["target", "create", "t"]);
    let links = dir.path().join("links");
    fs::create_dir(&links).unwrap();
    for (n, own) in ["pool/targets.json", "pool/catalog.redb", "pool/pv-0.img", "pool/pool.lock", "token"]
        .into_iter()
        .enumerate()
    {
        let own = dir.path().join(own);
        let (hard, soft) = (links.join(format!("hard{n}")), links.join(format!("soft{n}")));
        fs::hard_link(&own, &hard).unwrap();
        symlink(&own, &soft).unwrap();
        for path in [&own, &hard, &soft] {
            let text = path.to_str().unwrap();
            let shown = path.display();
            let (code, message) = server.fails(&["volume", "create", "v", "--origin", text]);
            assert_eq!(code, 4, "{shown}: {message}");
            let (code, message) = server.fails(&["target", "add-lun", "t", "--file", text, "--read-only"]);
            assert_eq!(code, 4, "{shown}: {message}");
            let (code, message) = server.fails(&["pool", "add", text, "--size", "64M", "--force"]);
            assert_eq!(code, 4, "{shown}: {message}");
        }
    }
    assert_eq!(server.json(&["status"])["health"]["state"], "healthy");
}

#[test]
fn a_size_that_is_refused_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let path = dir.path().join("pv-1.img");
    assert_eq!(server.fails(&["pool", "add", path.to_str().unwrap(), "--size", "4K"]).0, 2);
    assert!(!path.exists());
}

/// The server would wait for a FIFO that no process writes to.
#[test]
fn no_path_blocks_the_api_or_the_stop() {
    Way::ALL.into_iter().for_each(fifo_over);
}

fn fifo_over(way: Way) {
    let dir = tempfile::tempdir().unwrap();
    let images = dir.path().join("images");
    fs::create_dir(&images).unwrap();
    let (server, reach) = with_token(way, dir.path(), &["--allow-path", images.to_str().unwrap()]);
    let fifo = images.join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let begun = Instant::now();
    for _ in 0..16 {
        let (code, _) = server.fails(&["volume", "create", "v", "--origin", fifo.to_str().unwrap()]);
        assert_eq!(code, 2);
        assert_eq!(post(reach, "/volumes", &json!({"name": "v", "origin": fifo, "size": 0})).0, 400);
    }
    assert_eq!(server.http("GET", "/healthz", "").0, 200);
    assert_eq!(send(reach, "GET", "/healthz", &[], None).status, 200);
    assert_eq!(server.stop("-TERM"), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

/// A probe has no token, so it learns no names.
#[test]
fn a_probe_learns_no_names() {
    for way in Way::ALL {
        let dir = tempfile::tempdir().unwrap();
        let (server, reach) = with_token(way, dir.path(), &[]);
        server.ok(&["volume", "create", "sekrit", "--size", "1M"]);
        server.ok(&["schedule", "create", "hourly", "sekrit", "--every", "10s"]);
        server.ok(&["volume", "delete", "sekrit"]);
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let answer = send(reach, "GET", "/healthz", &["Host: probe.example"], None);
            assert_eq!(answer.status, 200, "{way:?}");
            assert!(!answer.body.contains("sekrit"), "{}", answer.body);
            if answer.body == "warning\nschedule-failing\n" {
                break;
            }
            assert!(Instant::now() < end, "{}", answer.body);
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn what_is_made_is_its_owners_alone() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    let nbd = dir.path().join("nbd.sock");
    let listen = format!("unix:{}", nbd.display());
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    let server = Server::start_with(&pool, &["--nbd", &listen]);
    assert_eq!((mode(&pool), mode(&nbd), mode(&server.socket())), (0o700, 0o600, 0o600));
    server.ok(&["volume", "create", "v", "--size", "1M"]);
    server.ok(&["snapshot", "create", "v@s"]);
    let stream = dir.path().join("v.hcs");
    server.ok(&["export", "v@s", "--file", stream.to_str().unwrap()]);
    assert_eq!(mode(&stream), 0o600);
    drop(server);
    fs::set_permissions(&pool, fs::Permissions::from_mode(0o750)).unwrap();
    let _server = Server::start_with(&pool, &["--nbd", &listen, "--nbd-socket-mode", "0660"]);
    assert_eq!((mode(&pool), mode(&nbd)), (0o750, 0o660));
}
