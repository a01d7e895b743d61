//! What clients can take from the server, and from each other: connections, threads, and files of
//! the host.

use crate::server::{Server, failure, program, read_response};
use serde_json::json;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const TOKEN: &str = "0123456789abcdef";

/// A server that listens on TCP, too; where.
fn with_tcp(dir: &Path, args: &[&str]) -> (Server, SocketAddr) {
    let token = dir.join("token");
    fs::write(&token, TOKEN).unwrap();
    let unix = format!("unix:{}", dir.join("pool/hindcast.sock").display());
    let token = token.to_str().unwrap();
    let ours = ["--api", &unix, "--api", "127.0.0.1:0", "--api-token-file", token];
    let server = Server::start_with(&dir.join("pool"), &[&ours, args].concat());
    let status = server.json(&["status"]);
    let listeners = status["listeners"]["api"].as_array().unwrap();
    let address = listeners.iter().find_map(|l| l.as_str()?.parse().ok()).unwrap();
    (server, address)
}

/// A request with the token over TCP.
fn post(address: SocketAddr, path: &str, body: &serde_json::Value) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let body = body.to_string();
    write!(
        stream,
        "POST /api/v1{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    read_response(stream)
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
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = with_tcp(dir.path(), &[]);
    let held: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(address).unwrap()).collect();
    // Others ask for what needs no token, again and again, and take no answer.
    let asked: Vec<TcpStream> = (0..60)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            let request = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n".repeat(200);
            stream.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
            let _ = stream.write(&request);
            stream
        })
        .collect();
    for _ in 0..20 {
        let begun = Instant::now();
        server.ok(&["status"]);
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    assert_eq!(post(address, "/volumes", &json!({"name": "v", "size": 1 << 20})).0, 201);
    drop((held, asked));
}

#[test]
fn a_request_without_the_token_ends_its_connection() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, address) = with_tcp(dir.path(), &[]);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(b"GET /api/v1/status HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let (code, _) = read_response(stream); // reads to the end
    assert_eq!(code, 401);
}

/// Each would be two requests to some, and one to others.
#[test]
fn requests_that_end_in_two_places_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, address) = with_tcp(dir.path(), &[]);
    let next = format!("GET /api/v1/pool HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    let post = format!("POST /api/v1/volumes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n");
    let chunked = "Transfer-Encoding: chunked\r\n";
    let answers = |request: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let _ = stream.write_all(format!("{request}{next}").as_bytes());
        let mut answers = Vec::new();
        // To its end, or until it is broken off with something unread.
        let _ = stream.read_to_end(&mut answers);
        let answers = String::from_utf8_lossy(&answers).into_owned();
        answers.split("HTTP/1.1 ").skip(1).map(|answer| answer[..3].parse().unwrap()).collect::<Vec<u16>>()
    };
    for request in [
        "GET /healthz HTTP/1.1\nHost: x\n\n".to_owned(),
        "GET /healthz HTTP/1.1\r\nHost: x\r\n\n".to_owned(),
        format!("{post}Content-Length: 4\r\n{chunked}\r\n0\r\n\r\n"),
        format!("{post}{chunked}Content-Length: 4\r\n\r\n0\r\n\r\n"),
        format!("{post}Content-Length: 2\r\nContent-Length: 2\r\n\r\n{{}}"),
        format!("{post}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        format!("{post}{chunked}{chunked}\r\n0\r\n\r\n"),
        format!("{post}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
        format!("{post}X: a\r\n b\r\nContent-Length: 0\r\n\r\n"),
        format!("{post}{chunked}\r\n2;a=b\r\n{{}}\r\n0\r\n\r\n"),
        "GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n".to_owned(),
    ] {
        assert_eq!(answers(&request), [400], "{request:?}");
    }
    // As clear as can be: a body, and then the next one, which the client ends.
    let end = "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let json = "Content-Type: application/json\r\n";
    let clear = format!("{post}{json}Content-Length: 2\r\n\r\n{{}}{next}{end}");
    assert_eq!(answers(&clear), [400, 200, 200]);
    let clear = format!("{post}{json}{chunked}\r\n2\r\n{{}}\r\n0\r\n\r\n{next}{end}");
    assert_eq!(answers(&clear), [400, 200, 200]);
}

/// From 127.0.0.`host`: a request with a token; the answer's status.
fn ask_from(host: u8, port: u16, token: &str) -> u16 {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from(([127, 0, 0, host], 0))).unwrap();
    connect(&socket, &SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let request = "GET /api/v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
    write!(stream, "{request}Authorization: Bearer {token}\r\n\r\n").unwrap();
    read_response(stream).0
}

#[test]
fn the_token_is_not_guessed_at_the_speed_of_the_line() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = with_tcp(dir.path(), &[]);
    let port = address.port();
    let mut held = TcpStream::connect(address).unwrap();
    let known = format!("GET /api/v1/status HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    held.write_all(known.as_bytes()).unwrap();
    held.read_exact(&mut [0; 12]).unwrap();
    let begun = Instant::now();
    let answers: Vec<u16> = (0..200).map(|n| ask_from(1, port, &format!("0123456789abcde{n}"))).collect();
    let looked_at = answers.iter().filter(|status| **status == 401).count() as u64;
    assert!(looked_at >= 20 && looked_at <= 22 + 2 * begun.elapsed().as_secs(), "{looked_at}");
    assert!(answers.iter().all(|status| [401, 429].contains(status)), "{answers:?}");
    assert_eq!(ask_from(2, port, TOKEN), 200, "another address is not concerned");
    held.write_all(known.replace("x\r\n", "x\r\nConnection: close\r\n").as_bytes()).unwrap();
    let mut rest = String::new();
    held.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("HTTP/1.1 200"), "nor who has shown the token before: {rest}");
    server.ok(&["status"]);
    let end = Instant::now() + Duration::from_secs(20);
    while ask_from(1, port, TOKEN) != 200 {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn over_tcp_no_path_of_the_host_is_named_unless_the_configuration_says_where() {
    let dir = tempfile::tempdir().unwrap();
    let (images, secret) = (dir.path().join("images"), dir.path().join("secret"));
    fs::create_dir(&images).unwrap();
    for file in [&images.join("disk"), &secret] {
        fs::write(file, vec![7; 1 << 20]).unwrap();
    }
    symlink(&secret, images.join("out")).unwrap();
    symlink("../secret", images.join("up")).unwrap();
    symlink("disk", images.join("within")).unwrap();
    let origin = |address, path: &Path| {
        let name = format!("v{}", path.file_name().unwrap().to_string_lossy());
        post(address, "/volumes", &json!({"name": name, "origin": path, "size": 0})).0
    };
    {
        let (server, address) = with_tcp(dir.path(), &[]);
        assert_eq!(origin(address, &images.join("disk")), 403);
        assert_eq!(post(address, "/pool/pvs", &json!({"path": "pv-1.img", "size": 64 << 20})).0, 403);
        assert_eq!(post(address, "/pool/backups", &json!({"path": images})).0, 403);
        server.ok(&["target", "create", "t"]);
        let lun = |path: &Path| post(address, "/targets/t/luns", &json!({"file": path})).0;
        assert_eq!(lun(&secret), 403);
        // The socket is its owner's.
        server.ok(&["volume", "create", "own", "--origin", secret.to_str().unwrap()]);
    }
    let (server, address) = with_tcp(dir.path(), &["--allow-path", images.to_str().unwrap()]);
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
    let (server, _) = with_tcp(dir.path(), &[]);
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

/// A FIFO that nobody writes to would be waited for.
#[test]
fn no_path_blocks_the_api_or_the_stop() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("pool"));
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for _ in 0..16 {
        let (code, _) = server.fails(&["volume", "create", "v", "--origin", fifo.to_str().unwrap()]);
        assert_eq!(code, 2);
    }
    assert_eq!(server.http("GET", "/healthz", "").0, 200);
    assert_eq!(server.stop("-TERM"), Some(0));
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
