//! Listening, limits, TLS, disconnecting, and stopping.
#![allow(clippy::unwrap_used)] // the lint knows test functions only, not what they use

mod common;

use common::mem::{MemDevice, MemExports};
use common::script::{go_data, option};
use common::*;
use hindcast_engine::ErrorKind;
use hindcast_engine::device::BlockDevice;
use hindcast_target::nbd::options::{opt, rep};
use hindcast_target::nbd::{Client as Peer, Listen, NbdConfig, NbdServer, Opened, TlsConfig, TlsRequired};
use hindcast_target::{ExportEntry, Exports};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{self, Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const SIZE: u64 = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

fn wait_until(done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < deadline, "it did not happen in time");
        thread::sleep(Duration::from_millis(2));
    }
}

fn exports() -> Arc<MemExports> {
    MemExports::one("vol", Arc::new(MemDevice::new(SIZE)))
}

fn local() -> Listen {
    Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))
}

fn tcp_address(server: &NbdServer) -> SocketAddr {
    match server.addresses().into_iter().find(|l| matches!(l, Listen::Tcp(_))) {
        Some(Listen::Tcp(address)) => address,
        _ => panic!("no TCP address"),
    }
}

#[test]
fn tcp_and_unix_serve_the_same_exports() {
    let fixture = start(MemDevice::new(SIZE), |c| c.listen.push(local()));
    let mut tcp = Client::new(TcpStream::connect(tcp_address(&fixture.server)).unwrap());
    tcp.negotiate("", true);
    let mut unix = fixture.client(false);
    tcp.write(0, &[1; 4096]);
    assert_eq!(unix.read(0, 4096), [1; 4096]);
    let data: Vec<u8> = (0..4u32 << 20).map(|i| (i >> 9) as u8).collect();
    tcp.write(4096, &data);
    assert!(tcp.read(4096, 4 << 20) == data);
    let mut peers: Vec<_> = fixture.server.connections().into_iter().map(|c| (c.peer, c.export)).collect();
    peers.sort();
    assert!(peers[0].0.starts_with("127.0.0.1:"));
    assert_eq!(peers[1].0, "unix");
    assert!(peers.iter().all(|p| p.1.as_deref() == Some("vol")), "known by the canonical name");
}

#[test]
fn a_stale_socket_is_replaced_and_nothing_else_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nbd.sock");
    let start = || {
        NbdServer::start(
            NbdConfig { listen: vec![Listen::Unix(path.clone())], ..NbdConfig::default() },
            exports(),
        )
    };
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "a stale socket");
    let server = start().unwrap();
    let error = start().err().expect("a live socket is left alone");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let mut client = Client::new(UnixStream::connect(&path).unwrap());
    client.negotiate("vol", true);
    server.shutdown(Duration::from_secs(1));
    assert!(!path.exists(), "the socket goes with the server");
    drop(server);
    std::fs::write(&path, "precious").unwrap();
    assert_eq!(start().err().unwrap().kind(), ErrorKind::Conflict);
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn a_successors_socket_survives_the_end_of_its_predecessor() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nbd.sock");
    let start = || {
        let config = NbdConfig { listen: vec![Listen::Unix(path.clone())], ..NbdConfig::default() };
        NbdServer::start(config, exports()).unwrap()
    };
    let first = start();
    std::fs::remove_file(&path).unwrap();
    let second = start();
    drop(first);
    assert!(path.exists());
    drop(second);
    assert!(!path.exists());
}

#[test]
fn an_address_in_use_is_an_error_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nbd.sock");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = vec![Listen::Unix(path.clone()), Listen::Tcp(taken.local_addr().unwrap())];
    assert!(NbdServer::start(NbdConfig { listen, ..NbdConfig::default() }, exports()).is_err());
    assert!(!path.exists());
}

#[test]
fn limits_that_make_no_sense_are_refused() {
    let changes: [fn(&mut NbdConfig); 6] = [
        |c| c.max_request = 0,
        |c| c.max_request = (32 << 20) + 512,
        |c| c.max_in_flight = 32 << 20,
        |c| c.max_connections = 0,
        |c| c.workers = 0,
        |c| c.tls_required = TlsRequired::Always,
    ];
    for change in changes {
        let mut config = NbdConfig::default();
        change(&mut config);
        assert_eq!(NbdServer::start(config, exports()).err().unwrap().kind(), ErrorKind::Invalid);
    }
    assert!(NbdServer::start(NbdConfig::default(), exports()).is_ok());
}

#[test]
fn connections_over_the_limit_are_closed_at_once() {
    let fixture = start(MemDevice::new(SIZE), |c| c.max_connections = 2);
    let mut one = fixture.client(true);
    let two = fixture.client(true);
    Client::raw(UnixStream::connect(&fixture.path).unwrap()).assert_closed();
    assert_eq!(one.read(0, 512), [0; 512]);
    drop(two);
    wait_until(|| fixture.server.stats().connections == 1);
    assert_eq!(fixture.client(true).read(0, 512), [0; 512]);
    let stats = fixture.server.stats();
    assert_eq!((stats.accepted, stats.refused), (3, 1));
}

/// A connection to this host from an address of one's choice.
fn connect_from(host: u8, port: u16) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from(([127, 0, 0, host], 0))).unwrap();
    connect(&socket, &SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    TcpStream::from(socket)
}

/// A server on a Unix socket and on TCP, with a limit; the port.
fn both(max: usize) -> (Fixture, u16) {
    let fixture = start(MemDevice::new(SIZE), |c| {
        c.listen.push(local());
        (c.max_connections, c.max_connections_per_address) = (max, max / 2);
    });
    let port = tcp_address(&fixture.server).port();
    (fixture, port)
}

fn served(stream: TcpStream) -> Client<TcpStream> {
    let mut client = Client::new(stream);
    client.negotiate("", true);
    client.read(0, 512); // only then it is sure that it was let in
    client
}

#[test]
fn one_address_cannot_take_all_connections() {
    let (_fixture, port) = both(16);
    let held: Vec<_> = (0..8).map(|_| served(connect_from(2, port))).collect();
    Client::raw(connect_from(2, port)).assert_closed();
    assert_eq!(served(connect_from(3, port)).read(0, 512), [0; 512]);
    drop(held);
}

#[test]
fn tcp_leaves_room_for_unix_sockets_and_the_other_way_round() {
    let (fixture, port) = both(16);
    let held: Vec<_> = (0..14).map(|n| served(connect_from(2 + n / 7, port))).collect();
    Client::raw(connect_from(9, port)).assert_closed();
    let mut unix = [fixture.client(true), fixture.client(true)];
    assert_eq!(unix[1].read(0, 512), [0; 512]);
    Client::raw(UnixStream::connect(&fixture.path).unwrap()).assert_closed();
    drop((held, unix));
    wait_until(|| fixture.server.stats().connections == 0);
    let held: Vec<_> = (0..14).map(|_| fixture.client(true)).collect();
    Client::raw(UnixStream::connect(&fixture.path).unwrap()).assert_closed();
    assert_eq!(served(connect_from(2, port)).read(0, 512), [0; 512]);
    drop(held);
}

/// Connections that say nothing displace only connections that say nothing. The source that has
/// most of them loses its first.
#[test]
fn silent_connections_shut_nobody_out() {
    let (fixture, port) = both(32);
    let silent: Vec<_> = (0..60).map(|n| connect_from(10 + n % 6, port)).collect();
    // Eight wait: a quarter of what may be served, beside them.
    wait_until(|| fixture.server.stats().connections == 8);
    for _ in 0..20 {
        assert_eq!(served(connect_from(2, port)).read(0, 512), [0; 512]);
        assert_eq!(fixture.client(true).read(0, 512), [0; 512]);
    }
    drop(silent);
}

#[test]
fn an_export_can_be_disconnected() {
    let (one, two) = (Arc::new(MemDevice::new(SIZE)), Arc::new(MemDevice::new(SIZE)));
    let exports = Arc::new(MemExports([("one".to_owned(), one.clone()), ("two".to_owned(), two)].into()));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nbd.sock");
    let config = NbdConfig { listen: vec![Listen::Unix(path.clone())], ..NbdConfig::default() };
    let server = NbdServer::start(config, exports.clone()).unwrap();
    let connect = |export| {
        let mut client = Client::new(UnixStream::connect(&path).unwrap());
        client.negotiate(export, true);
        client
    };
    let (mut named, mut default, mut other) = (connect("one"), connect(""), connect("two"));
    // One has a request at a worker that the device will not let go of.
    one.blocked.close();
    let (_, mut bytes) = named.make(FLUSH, 0, 0, 0, &[]);
    bytes.extend(named.make(FLUSH, 0, 0, 0, &[]).1);
    named.send(&bytes);
    one.blocked.wait_for(1);
    assert_eq!(server.disconnect("one", Duration::from_millis(50)), (2, false), "one is stuck in the device");
    default.assert_closed();
    one.blocked.open();
    named.assert_closed();
    assert!(server.disconnect("one", Duration::from_secs(10)).1, "and gone when the device lets go");
    drop(exports);
    wait_until(|| server.stats().connections == 1);
    assert_eq!(server.disconnect("nothing", Duration::ZERO), (0, true));
    assert_eq!(other.read(0, 512), [0; 512]);
    // Only the exports and this test hold the device.
    assert_eq!(Arc::strong_count(&one), 2);
}

#[test]
fn stopping_finishes_what_is_under_way() {
    let fixture = start(MemDevice::new(SIZE), |c| c.listen.push(local()));
    let mut client = fixture.client(true);
    let mut tcp = Client::new(TcpStream::connect(tcp_address(&fixture.server)).unwrap());
    tcp.negotiate("vol", false);
    let mut haggling = fixture.connect();
    fixture.device.blocked.close();
    let mut cookies = Vec::new();
    let mut bytes = Vec::new();
    for _ in 0..3 {
        let (cookie, one) = client.make(FLUSH, 0, 0, 0, &[]);
        cookies.push(cookie);
        bytes.extend(one);
    }
    client.send(&bytes);
    let late = tcp.submit(FLUSH, 0, 0, 0, &[]);
    fixture.device.blocked.wait_for(4);
    thread::scope(|scope| {
        let stop = scope.spawn(|| fixture.server.shutdown(Duration::from_secs(10)));
        haggling.assert_closed();
        assert!(!stop.is_finished(), "it waits for what is under way");
        assert!(UnixStream::connect(&fixture.path).is_err(), "and lets nobody in");
        fixture.device.blocked.open();
        cookies.iter().for_each(|cookie| assert_eq!(client.wait(*cookie).error, 0));
        assert_eq!(tcp.wait(late).error, 0);
        client.assert_closed();
        tcp.assert_closed();
        assert_eq!(stop.join().unwrap(), 0, "nobody had to be broken off");
    });
    assert_eq!(fixture.server.stats().connections, 0);
}

/// Requests that had arrived are answered, in whatever way. Those that come later are not: the
/// client sees a closed connection, and a client that reconnects asks again. An error would reach
/// the program that uses the disk.
#[test]
fn requests_after_the_stop_are_not_answered_and_none_fails() {
    let fixture = start(MemDevice::new(SIZE), |c| c.listen = vec![local()]);
    let mut tcp = Client::new(TcpStream::connect(tcp_address(&fixture.server)).unwrap());
    tcp.negotiate("vol", true);
    fixture.device.blocked.close();
    let first = tcp.submit(FLUSH, 0, 0, 0, &[]);
    fixture.device.blocked.wait_for(1);
    thread::scope(|scope| {
        let stop = scope.spawn(|| fixture.server.shutdown(Duration::from_secs(10)));
        wait_until(|| TcpStream::connect(tcp_address(&fixture.server)).is_err());
        // More than one receive can bring, so that some of it comes after the stop was seen.
        let mut bytes = Vec::new();
        for n in 0..2000 {
            bytes.extend(tcp.make(WRITE, 0, n % 200 * 4096, 4096, &[1; 4096]).1);
        }
        let mut sender = tcp.stream.try_clone().unwrap();
        let sending = scope.spawn(move || sender.write_all(&bytes));
        thread::sleep(Duration::from_millis(50));
        fixture.device.blocked.open();
        assert_eq!(tcp.wait(first).error, 0);
        let mut rest = Vec::new();
        let _ = tcp.stream.read_to_end(&mut rest);
        // Simple replies and structured ones without data begin alike: a magic number, and then
        // what went wrong.
        assert!(rest.len().is_multiple_of(16), "{}", rest.len());
        assert!(rest.len() < 2000 * 16, "some were not answered");
        for reply in rest.chunks(16) {
            assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
        }
        let _ = sending.join().unwrap();
        drop(tcp);
        assert_eq!(stop.join().unwrap(), 0);
    });
}

/// Whatever waits for a disk, the connection's thread comes back to receiving.
#[test]
fn a_read_in_memory_overtakes_what_waits_for_a_disk() {
    let data = [1; 512];
    let cases = [
        ("a flush", FLUSH, 0, &data[..0]),
        ("a durable write", WRITE, 1, &data),
        ("a write", WRITE, 0, &data),
    ];
    for (name, command, flags, payload) in cases {
        let (offset, length) = (0, payload.len() as u32);
        let fixture = start(MemDevice::new(SIZE), |_| {});
        let mut client = fixture.client(true);
        fixture.device.blocks_all.store(true, Ordering::Relaxed);
        fixture.device.blocked.close();
        let slow = client.submit(command, flags, offset, length, payload);
        fixture.device.blocked.wait_for(1);
        for _ in 0..20 {
            let began = Instant::now();
            assert_eq!(client.read(4096, 4096).len(), 4096);
            assert!(began.elapsed() < Duration::from_millis(500), "{name}: {:?}", began.elapsed());
        }
        let more: Vec<_> = (0..4).map(|_| client.submit(command, flags, offset, length, payload)).collect();
        assert_eq!(client.read(4096, 128 << 10).len(), 128 << 10);
        fixture.device.blocked.open();
        for cookie in [vec![slow], more].concat() {
            assert_eq!(client.wait(cookie).error, 0, "{name}");
        }
    }
}

#[test]
fn stopping_breaks_off_what_takes_too_long() {
    let fixture = start(MemDevice::new(SIZE), |_| {});
    let mut client = fixture.client(true);
    fixture.device.blocked.close();
    client.submit(FLUSH, 0, 0, 0, &[]);
    fixture.device.blocked.wait_for(1);
    thread::scope(|scope| {
        let stop = scope.spawn(|| fixture.server.shutdown(Duration::from_millis(50)));
        client.assert_closed();
        fixture.device.blocked.open();
        assert_eq!(stop.join().unwrap(), 1);
    });
}

struct Pki {
    dir: tempfile::TempDir,
    ca: CertificateDer<'static>,
    client: (CertificateDer<'static>, Vec<u8>),
}

/// An authority, a server certificate for `localhost` and a client certificate, both signed by it.
fn pki() -> Pki {
    let issuer_key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = params.self_signed(&issuer_key).unwrap();
    let issuer = rcgen::Issuer::new(params, issuer_key);
    let sign = |name: &str| {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        (params.signed_by(&key, &issuer).unwrap(), key)
    };
    let (server, server_key) = sign("localhost");
    let (client, client_key) = sign("vm1");
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, pem: String| std::fs::write(dir.path().join(name), pem).unwrap();
    put("ca.pem", ca.pem());
    put("cert.pem", server.pem());
    put("key.pem", server_key.serialize_pem());
    Pki { ca: ca.der().clone(), client: (client.der().clone(), client_key.serialize_der()), dir }
}

impl Pki {
    fn config(&self, verify_clients: bool) -> TlsConfig {
        let file = |name: &str| self.dir.path().join(name);
        let client_ca = verify_clients.then(|| file("ca.pem"));
        TlsConfig { cert: file("cert.pem"), key: file("key.pem"), client_ca }
    }

    fn client_config(
        &self,
        with_certificate: bool,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.ca.clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        match with_certificate {
            false => config.with_no_client_auth(),
            true => {
                let key = rustls::pki_types::PrivateKeyDer::try_from(self.client.1.clone()).unwrap();
                config.with_client_auth_cert(vec![self.client.0.clone()], key).unwrap()
            }
        }
    }
}

type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// STARTTLS, then the handshake.
fn secure(server: &NbdServer, config: ClientConfig) -> std::io::Result<Client<TlsStream>> {
    let mut plain = Client::new(TcpStream::connect(tcp_address(server)).unwrap());
    plain.flags(3);
    assert_eq!(plain.opt_kind(opt::STARTTLS, &[]), rep::ACK);
    let name = "localhost".try_into().unwrap();
    let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
    while tls.is_handshaking() {
        tls.complete_io(&mut plain.stream)?;
    }
    Ok(Client::raw(StreamOwned::new(tls, plain.stream)))
}

fn tls_fixture(pki: &Pki, verify_clients: bool, required: TlsRequired) -> Fixture {
    start(MemDevice::new(SIZE), |c| {
        c.listen.push(local());
        c.tls = Some(pki.config(verify_clients));
        c.tls_required = required;
    })
}

#[test]
fn tls_protects_everything_after_starttls() {
    let pki = pki();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let fixture = tls_fixture(&pki, false, TlsRequired::Tcp);
        let mut client = secure(&fixture.server, pki.client_config(false, &[version])).unwrap();
        assert_eq!(client.opt_kind(opt::STARTTLS, &[]), rep::ERR_INVALID, "twice");
        client.negotiate_options("vol", true);
        let data: Vec<u8> = (0..2u32 << 20).map(|i| (i >> 8) as u8).collect();
        client.write(512, &data);
        assert!(client.read(512, 2 << 20) == data);
        assert!(fixture.server.connections()[0].tls);
        // Workers and the connection's thread share the stream.
        fixture.device.cold.store(true, Relaxed);
        let pending: Vec<u64> = (0..200).map(|n| client.submit(READ, 0, 512 + n * 4096, 4096, &[])).collect();
        for (n, cookie) in (0..).zip(pending) {
            let at = 512 + n * 4096;
            assert!(client.wait(cookie).read(at, 4096) == data[at as usize - 512..][..4096]);
        }
        client.send(&common::script::request(DISC, 0, 0, 0, 0, &[]));
        let mut rest = Vec::new();
        client.stream.read_to_end(&mut rest).expect("close_notify comes before the end");
        assert_eq!(rest, []);
    }
}

#[test]
fn tls_is_required_of_tcp_and_optional_for_unix() {
    let pki = pki();
    let fixture = tls_fixture(&pki, false, TlsRequired::Tcp);
    let mut plain = Client::new(TcpStream::connect(tcp_address(&fixture.server)).unwrap());
    plain.flags(3);
    assert_eq!(plain.opt_kind(opt::LIST, &[]), rep::ERR_TLS_REQD);
    assert_eq!(plain.opt_kind(opt::GO, &go_data("vol", &[])), rep::ERR_TLS_REQD);
    plain.send(&option(opt::EXPORT_NAME, b"vol"));
    plain.assert_closed();
    assert_eq!(fixture.client(true).read(0, 512), [0; 512]);
    let fixture = tls_fixture(&pki, false, TlsRequired::Always);
    let mut unix = fixture.connect();
    unix.flags(3);
    assert_eq!(unix.opt_kind(opt::GO, &go_data("vol", &[])), rep::ERR_TLS_REQD);
}

#[test]
fn what_was_agreed_before_tls_does_not_count_after_it() {
    let pki = pki();
    let fixture = tls_fixture(&pki, false, TlsRequired::Never);
    let mut plain = Client::new(TcpStream::connect(tcp_address(&fixture.server)).unwrap());
    plain.flags(3);
    assert_eq!(plain.opt_kind(opt::STRUCTURED_REPLY, &[]), rep::ACK);
    assert_eq!(plain.opt_kind(opt::STARTTLS, &[]), rep::ACK);
    let config = Arc::new(pki.client_config(false, rustls::ALL_VERSIONS));
    let tls = ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
    let mut client = Client::raw(StreamOwned::new(tls, plain.stream));
    client.negotiate_options("vol", false);
    // A simple reply: the client below would refuse a structured one, which it can't expect.
    assert_eq!(client.read(0, 512), [0; 512]);
}

#[test]
fn plain_text_that_follows_starttls_ends_the_session() {
    let pki = pki();
    let fixture = tls_fixture(&pki, false, TlsRequired::Never);
    let mut plain = Client::new(TcpStream::connect(tcp_address(&fixture.server)).unwrap());
    plain.flags(3);
    plain.send(&[option(opt::STARTTLS, &[]), option(opt::LIST, &[])].concat());
    assert_eq!(plain.opt_reply().kind, rep::ACK);
    plain.assert_closed();
}

#[test]
fn clients_without_a_certificate_are_refused_if_one_is_asked_for() {
    let pki = pki();
    let fixture = tls_fixture(&pki, true, TlsRequired::Always);
    let mut client = secure(&fixture.server, pki.client_config(true, rustls::ALL_VERSIONS)).unwrap();
    client.negotiate_options("vol", true);
    assert_eq!(client.read(0, 512), [0; 512]);
    let refused =
        secure(&fixture.server, pki.client_config(false, rustls::ALL_VERSIONS)).and_then(|mut client| {
            // In TLS 1.3 a client believes that it is through before the server has looked.
            client.stream.write_all(&option(opt::LIST, &[]))?;
            client.stream.read_exact(&mut [0; 1])
        });
    assert!(refused.is_err());
    wait_until(|| fixture.server.stats().failed_negotiations == 1);
}

#[test]
fn a_slow_tls_handshake_is_cut_off() {
    let pki = pki();
    let fixture = start(MemDevice::new(SIZE), |c| {
        c.tls = Some(pki.config(false));
        c.negotiation_timeout = Duration::from_millis(300);
    });
    let mut client = fixture.connect();
    client.flags(3);
    assert_eq!(client.opt_kind(opt::STARTTLS, &[]), rep::ACK);
    client.assert_closed();
    let mut client = fixture.connect();
    client.flags(3);
    assert_eq!(client.opt_kind(opt::STARTTLS, &[]), rep::ACK);
    client.send(&[0x42; 100]); // no TLS at all; an alert may come back
    let mut alert = Vec::new();
    let _ = client.stream.read_to_end(&mut alert);
    wait_until(|| fixture.server.stats().failed_negotiations == 2);
}

/// Exports that a client sees if its certificate has the common name `vm1`, or if it is on a Unix
/// socket.
struct Ruled(Arc<MemExports>, Option<Arc<Peer>>);

impl Exports for Ruled {
    fn seen_by(&self, client: &Arc<Peer>) -> Option<Box<dyn Exports>> {
        Some(Box::new(Ruled(self.0.clone(), Some(client.clone()))))
    }

    fn list(&self) -> Vec<ExportEntry> {
        if self.admits() { self.0.list() } else { Vec::new() }
    }

    fn open(&self, name: &str) -> hindcast_engine::Result<Arc<dyn BlockDevice>> {
        match self.admits() {
            true => self.0.open(name),
            false => Err(hindcast_engine::Error::new(ErrorKind::Conflict, "no rule")),
        }
    }
}

impl Ruled {
    fn admits(&self) -> bool {
        self.1.as_ref().is_some_and(|client| match &client.listener {
            Listen::Unix(_) => client.address.is_none() && client.common_names.is_empty(),
            Listen::Tcp(address) => address.port() != 0 && client.common_names == ["vm1"],
        })
    }
}

#[test]
fn a_client_is_known_by_its_listener_and_its_certificate() {
    let pki = pki();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nbd.sock");
    let config = NbdConfig {
        listen: vec![Listen::Unix(path.clone()), local()],
        tls: Some(pki.config(true)),
        tls_required: TlsRequired::Never,
        ..NbdConfig::default()
    };
    let server = NbdServer::start(config, Arc::new(Ruled(exports(), None))).unwrap();
    Client::new(UnixStream::connect(&path).unwrap()).negotiate("vol", true);

    let plain = || Client::new(TcpStream::connect(tcp_address(&server)).unwrap());
    let mut refused = plain();
    refused.flags(3);
    assert_eq!(refused.opt(opt::LIST, &[]).len(), 1, "only the ACK");
    for option in [opt::GO, opt::INFO] {
        assert_eq!(refused.opt_kind(option, &go_data("vol", &[])), rep::ERR_POLICY);
    }
    assert_eq!(refused.opt_kind(opt::STRUCTURED_REPLY, &[]), rep::ACK);
    for option in [opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT] {
        assert_eq!(refused.opt_kind(option, &common::script::meta_data("vol", &[])), rep::ERR_POLICY);
    }
    refused.send(&option(opt::EXPORT_NAME, b"vol"));
    refused.assert_closed();

    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let mut client = secure(&server, pki.client_config(true, &[version])).unwrap();
        assert_eq!(client.opt(opt::LIST, &[]).len(), 2);
        client.negotiate_options("vol", true);
        client.write(0, &[7; 512]);
        server.rename(&|export| (export == "vol").then(|| "volume".to_owned()));
        let vm = |opened: &Opened<'_>| opened.export == "volume" && opened.client.common_names == ["vm1"];
        assert_eq!(server.end_clients(&|opened| vm(opened) && opened.read_only, PATIENCE), (0, true));
        assert_eq!(server.end_clients(&vm, PATIENCE), (1, true));
    }
}

#[test]
fn tls_files_that_do_not_fit_are_refused_at_the_start() {
    let pki = pki();
    let start = |tls| NbdServer::start(NbdConfig { tls: Some(tls), ..NbdConfig::default() }, exports());
    let good = pki.config(true);
    assert!(start(good.clone()).is_ok());
    let empty = pki.dir.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    for bad in [
        TlsConfig { cert: Path::new("/nonexistent").into(), ..good.clone() },
        TlsConfig { cert: empty.clone(), ..good.clone() },
        TlsConfig { key: empty.clone(), ..good.clone() },
        TlsConfig { cert: pki.dir.path().join("ca.pem"), ..good.clone() },
        TlsConfig { client_ca: Some(empty), ..good },
    ] {
        assert_eq!(start(bad).err().unwrap().kind(), ErrorKind::Invalid);
    }
}
