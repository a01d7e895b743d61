//! TLS of the admin API: certificates, fingerprints, and known servers.

use crate::identity::{answer, with_tcp};
use crate::server::{Server, failure, program};
use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

/// Files with a certificate that signs itself, and its key.
struct Files {
    cert: PathBuf,
    key: PathBuf,
}

impl Files {
    fn new(dir: &Path) -> Files {
        let files = Files { cert: dir.join("cert.pem"), key: dir.join("key.pem") };
        files.renew();
        files
    }

    fn renew(&self) {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
        fs::write(&self.key, made.signing_key.serialize_pem()).unwrap();
        fs::write(&self.cert, made.cert.pem()).unwrap();
    }

    fn server(&self, dir: &Path) -> (Server, SocketAddr) {
        let (cert, key) = (self.cert.to_str().unwrap(), self.key.to_str().unwrap());
        with_tcp(dir, &["--api-tls-cert", cert, "--api-tls-key", key])
    }
}

fn fingerprint(server: &Server) -> String {
    server.json(&["status"])["certificate"]["fingerprint"].as_str().unwrap().to_owned()
}

/// Runs `volume list` over TLS, with a home directory of its own.
fn list(home: &Path, address: SocketAddr, token: &str, more: &[&str]) -> Output {
    let mut command = program();
    command.env("HOME", home).env_remove("XDG_CONFIG_HOME").env("HINDCAST_TOKEN", token);
    command.args(["--server", &format!("https://{address}")]).args(more).args(["volume", "list"]);
    command.output().unwrap()
}

fn viewer(server: &Server) -> String {
    server.ok(&["access", "token", "create", "t", "--role", "viewer"]).trim().to_owned()
}

#[test]
fn a_client_verifies_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::new(dir.path());
    let (server, address) = files.server(dir.path());
    let token = viewer(&server);
    let run = |more: &[&str]| list(dir.path(), address, &token, more);
    assert!(run(&["--ca", files.cert.to_str().unwrap()]).status.success());
    let known = fingerprint(&server);
    assert!(run(&["--fingerprint", &known]).status.success());
    let (code, message) = failure(run(&["--fingerprint", &"0".repeat(64)]));
    assert_eq!(code, 5);
    assert!(message.contains("another fingerprint"), "{message}");
    let (code, message) = failure(run(&[]));
    assert_eq!(code, 1);
    assert!(message.contains(&format!("--fingerprint {known}")), "{message}");
    fs::create_dir_all(dir.path().join(".config/hindcast")).unwrap();
    let remembered = dir.path().join(".config/hindcast/known_servers");
    fs::write(&remembered, format!("# mine\n{address} sha256:{known}\n")).unwrap();
    assert!(run(&[]).status.success());
    fs::write(&remembered, format!("{address} sha256:{}\n", "1".repeat(64))).unwrap();
    assert_eq!(failure(run(&[])).0, 5);
}

#[test]
fn a_renewed_certificate_is_used_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::new(dir.path());
    let (server, address) = files.server(dir.path());
    let (token, old) = (viewer(&server), fingerprint(&server));
    files.renew();
    server.signal("-HUP");
    let end = Instant::now() + Duration::from_secs(20);
    while fingerprint(&server) == old {
        assert!(Instant::now() < end, "the certificate is still the old one");
        std::thread::sleep(Duration::from_millis(20));
    }
    let new = fingerprint(&server);
    assert!(list(dir.path(), address, &token, &["--fingerprint", &new]).status.success());
    assert_eq!(failure(list(dir.path(), address, &token, &["--fingerprint", &old])).0, 5);
    fs::write(&files.cert, "nonsense").unwrap();
    server.signal("-HUP");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(fingerprint(&server), new);
}

/// The same limits as over plain TCP: a connection that has shown no token, because it is silent or
/// in the middle of its handshake, makes room for others.
#[test]
fn connections_without_a_handshake_keep_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::new(dir.path());
    let (server, address) = files.server(dir.path());
    let (token, known) = (viewer(&server), fingerprint(&server));
    let mut silent = Vec::new();
    for number in 0..200 {
        let Ok(mut stream) = TcpStream::connect(address) else { continue };
        if number % 2 == 0 {
            // The head of a handshake of 512 bytes, which never come. The server may be gone.
            let _ = stream.write_all(&[0x16, 3, 1, 2, 0]);
        }
        silent.push(stream);
    }
    assert!(silent.len() > 150, "{}", silent.len());
    let begun = Instant::now();
    let run = |token: &str| list(dir.path(), address, token, &["--fingerprint", &known]);
    assert!(run(&token).status.success());
    let (code, message) = failure(run("hct_wrong"));
    assert!(code == 1 && message.contains("token"), "{code}: {message}");
    server.ok(&["status"]);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    drop(silent);
}

#[test]
fn off_loopback_the_server_makes_a_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let unix = format!("unix:{}", dir.path().join("hindcast.sock").display());
    let args = ["--api", &unix, "--api", "0.0.0.0:0"];
    let server = Server::start_with(dir.path(), &args);
    let status = server.json(&["status"]);
    assert_eq!(status["certificate"]["self_signed"], true);
    let port: u16 =
        status["listeners"]["urls"][0].as_str().unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
    assert!(status["listeners"]["urls"][0].as_str().unwrap().starts_with("https://"));
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let (token, known) = (viewer(&server), fingerprint(&server));
    assert!(list(dir.path(), address, &token, &["--fingerprint", &known]).status.success());
    let shown = server.ok(&["status"]);
    assert!(shown.contains(&known) && shown.contains("self-signed"), "{shown}");

    let mut plain = TcpStream::connect(address).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let answer = answer(plain);
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("https://"), "{}", answer.body);
    assert!(server.ok(&["console"]).starts_with("https://"));
    assert_eq!(server.stop("-TERM"), Some(0));
    let again = Server::start_with(dir.path(), &args);
    assert_eq!(fingerprint(&again), known, "the certificate is made once");
}

#[test]
fn plain_http_is_a_choice() {
    let dir = tempfile::tempdir().unwrap();
    let unix = format!("unix:{}", dir.path().join("hindcast.sock").display());
    let server = Server::start_with(dir.path(), &["--api", &unix, "--api", "0.0.0.0:0", "--api-plain"]);
    let status = server.json(&["status"]);
    assert!(status["certificate"].is_null());
    assert!(status["listeners"]["urls"][0].as_str().unwrap().starts_with("http://"), "{status}");
}
