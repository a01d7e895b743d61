//! What is particular to the admin API over TLS: browsers that shall come back by TLS, handshakes
//! that stall or fail, and streams whose answer comes before their end.

use crate::faults::feed;
use crate::identity::{send, token, with_tcp};
use crate::server::{Server, failure, program};
use crate::transport::{Reach, Way, authority, serving};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn only_a_certificate_of_an_authority_binds_browsers_to_tls() {
    let strict = |reach: Reach| {
        let answer = send(reach, "GET", "/", &[], None);
        assert_eq!(answer.status, 200, "{reach:?}");
        answer.header("strict-transport-security").map(str::to_owned)
    };
    for way in Way::ALL {
        let dir = tempfile::tempdir().unwrap();
        let (_server, reach) = serving(way, dir.path(), &[]);
        assert_eq!(strict(reach).is_some(), way.is_tls(), "{way:?}");
        assert!(strict(reach).is_none_or(|value| value == "max-age=31536000"));
    }
    // A browser that was told to use TLS would have no way past the warning about such a
    // certificate.
    let dir = tempfile::tempdir().unwrap();
    let unix = format!("unix:{}", dir.path().join("hindcast.sock").display());
    let server = Server::start_with(dir.path(), &["--api", &unix, "--api", "0.0.0.0:0"]);
    let status = server.json(&["status"]);
    assert_eq!(status["certificate"]["self_signed"], true);
    let pem = fs::read_to_string(dir.path().join("api-tls.pem")).unwrap();
    let begin = pem.find("-----BEGIN CERTIFICATE").unwrap();
    let port = status["listeners"]["urls"][0].as_str().unwrap().rsplit_once(':').unwrap().1;
    let address = SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap()));
    for way in [Way::Tls, Way::Http2] {
        let head = crate::transport::head_with(Reach { address, way }, &pem[begin..]);
        assert!(head.contains(" 200") && !head.contains("strict-transport-security"), "{way:?}: {head}");
    }
}

/// A command at `server`, which listens with TLS.
fn remote(reach: Reach, dir: &Path, token: &str) -> Command {
    let mut command = program();
    let ca = authority(dir);
    command.env("HINDCAST_TOKEN", token.strip_prefix("Authorization: Bearer ").unwrap());
    command.args(["--server", &format!("{}://{}", reach.scheme(), reach.address), "--ca", &ca]);
    command
}

/// A stream of the snapshot `v@s`.
fn stream(server: &Server, dir: &Path) -> Vec<u8> {
    server.ok(&["volume", "create", "v", "--size", "1M"]);
    server.ok(&["snapshot", "create", "v@s"]);
    let file = dir.join("stream");
    server.ok(&["export", "v@s", "--file", file.to_str().unwrap()]);
    fs::read(&file).unwrap()
}

fn importing(mut command: Command, volume: &str) -> Child {
    command.args(["import", volume]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// The client learns why, whatever it was about to send.
#[test]
fn a_refused_import_is_answered_before_the_stream_is_read() {
    for way in Way::TEXT {
        let dir = tempfile::tempdir().unwrap();
        let (server, reach) = serving(way, dir.path(), &[]);
        let stream = stream(&server, dir.path());
        server.ok(&["volume", "create", "w", "--size", "2M"]);
        let operator = token(&server, "operator", "operator", &[]);
        let viewer = token(&server, "viewer", "viewer", &[]);
        let wrong = "Authorization: Bearer hct_wrong".to_owned();
        for (who, code, why) in [
            (&operator, 4, "import"),
            (&viewer, 1, "role operator"),
            (&wrong, 1, "token"),
            (&operator, 4, "import"),
        ] {
            let begun = Instant::now();
            let (found, text, sent) = feed(importing(remote(reach, dir.path(), who), "w"), &stream);
            assert!(found == code && text.contains(why), "{way:?}: {found} {text}");
            assert!(sent < 256 << 20, "{sent} bytes were sent before the answer");
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        }
    }
}

#[test]
fn a_newer_import_replaces_an_older_one() {
    for way in Way::TEXT {
        let dir = tempfile::tempdir().unwrap();
        let (server, reach) = serving(way, dir.path(), &[]);
        let stream = stream(&server, dir.path());
        let operator = token(&server, "operator", "operator", &[]);
        let mut older = importing(remote(reach, dir.path(), &operator), "copy");
        let mut input = older.stdin.take().unwrap();
        let (begin, rest) = stream.split_at(stream.len() - 8);
        input.write_all(begin).unwrap();
        input.flush().unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        let running = || {
            let output = server.run(&["import", "copy", "--status", "-o", "json"]);
            String::from_utf8_lossy(&output.stdout).contains("\"running\": true")
        };
        while !running() {
            assert!(Instant::now() < end, "the import does not begin");
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut newer = importing(remote(reach, dir.path(), &operator), "copy");
        newer.stdin.take().unwrap().write_all(&stream).unwrap();
        let newer = newer.wait_with_output().unwrap();
        assert!(newer.status.success(), "{way:?}: {}", String::from_utf8_lossy(&newer.stderr));
        let _ = input.write_all(rest);
        drop(input);
        assert_eq!(failure(older.wait_with_output().unwrap()).0, 4, "{way:?}");
    }
}

/// Something else accepts connections, and says nothing.
#[test]
fn a_server_that_stalls_in_the_handshake_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let zeros = "0".repeat(64);
    for more in [&["--fingerprint", &zeros][..], &[]] {
        let begun = Instant::now();
        let mut command = program();
        command.env("HOME", dir.path()).env_remove("XDG_CONFIG_HOME").env("HINDCAST_TOKEN", "hct_x");
        command.args(["--server", &url, "--timeout", "1", "status"]).args(more);
        assert_eq!(failure(command.output().unwrap()).0, 5, "{more:?}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{more:?}: {:?}", begun.elapsed());
    }
}

#[test]
fn a_flood_of_handshakes_that_fail_does_not_flood_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let unix = format!("unix:{}", dir.path().join("hindcast.sock").display());
    let args = ["--api", &unix, "--api", "0.0.0.0:0", "--log", "info"];
    let server = Server::start_logged(dir.path(), &log, &args);
    let status = server.json(&["status"]);
    let port = status["listeners"]["urls"][0].as_str().unwrap().rsplit_once(':').unwrap().1;
    let address = SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap()));
    let begun = Instant::now();
    let fails = |hello: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let _ = stream.write_all(hello);
        let _ = stream.read_to_end(&mut Vec::new());
    };
    for _ in 0..200 {
        fails(b"\x16\x03\x01\x00\x05hello");
        fails(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
    let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    fails(b"x");
    assert_eq!(server.stop("-TERM"), Some(0));
    let text = fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("TLS handshake")).collect();
    assert!((2..=8 + seconds + 3).contains(&lines.len()), "{} lines in {seconds} s", lines.len());
    assert!(lines.last().unwrap().contains("suppressed="), "{lines:?}");
}

/// A token goes in the clear to no other host, and TLS needs no permission for it.
#[test]
fn plain_http_is_no_answer_for_a_client_of_tls() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = with_tcp(dir.path(), &[]);
    let viewer = token(&server, "v", "viewer", &[]);
    let (code, message) = failure(
        remote(Reach { address, way: Way::Tls }, dir.path(), &viewer).arg("status").output().unwrap(),
    );
    assert_eq!(code, 5, "{message}");
}
