//! How the client of a test reaches a server: over plain HTTP, or over TLS with either version of
//! HTTP.
//!
//! Servers with TLS have a certificate that an authority of these tests signed. The clients verify
//! it.

use crate::identity::{Answer, answer, with_tcp};
use crate::server::Server;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection};
use serde_json::Value;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// A way to speak HTTP over TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Plain,
    /// HTTP/1.1 over TLS.
    Tls,
    /// HTTP/2 over TLS.
    Http2,
}

impl Way {
    pub(crate) const ALL: [Way; 3] = [Way::Plain, Way::Tls, Way::Http2];
    /// The ways whose requests are text.
    pub(crate) const TEXT: [Way; 2] = [Way::Plain, Way::Tls];

    pub(crate) fn is_tls(self) -> bool {
        self != Way::Plain
    }
}

/// Where a server is, and how to speak to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reach {
    pub(crate) address: SocketAddr,
    pub(crate) way: Way,
}

impl From<SocketAddr> for Reach {
    fn from(address: SocketAddr) -> Reach {
        Reach { address, way: Way::Plain }
    }
}

impl Reach {
    pub(crate) fn scheme(self) -> &'static str {
        if self.way.is_tls() { "https" } else { "http" }
    }
}

/// The authority of these tests, and what it signed.
struct Authority {
    pem: String,
    cert: String,
    key: String,
}

static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "Authority");
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    let issuer = rcgen::Issuer::new(params, key);
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(["localhost".into(), "127.0.0.1".into()]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "Server");
    let cert = params.signed_by(&key, &issuer).unwrap().pem();
    Authority { pem, cert, key: key.serialize_pem() }
});

/// The settings of clients that trust the authority, for HTTP/1.1 and for HTTP/2.
static CLIENTS: LazyLock<[Arc<ClientConfig>; 2]> =
    LazyLock::new(|| [&b"http/1.1"[..], b"h2"].map(|protocol| trusting(&AUTHORITY.pem, protocol)));

/// The settings of a client that trusts this certificate.
fn trusting(pem: &str, protocol: &[u8]) -> Arc<ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    Arc::new(config)
}

fn client(way: Way) -> Arc<ClientConfig> {
    CLIENTS[usize::from(way == Way::Http2)].clone()
}

fn name() -> ServerName<'static> {
    ServerName::try_from("localhost").unwrap()
}

/// Writes the certificate of the authority, for `--ca`. Returns its path.
pub(crate) fn authority(dir: &Path) -> String {
    let path = dir.join("ca.pem");
    fs::write(&path, &AUTHORITY.pem).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A server that listens on TCP, too, and how to reach it there.
pub(crate) fn serving(way: Way, dir: &Path, args: &[&str]) -> (Server, Reach) {
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| dir.join(name).to_str().unwrap().to_owned());
    fs::write(&cert, &AUTHORITY.cert).unwrap();
    fs::write(&key, &AUTHORITY.key).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let tls = ["--api-tls-cert", &cert, "--api-tls-key", &key];
    let tls = if way.is_tls() { &tls[..] } else { &[] };
    let (server, address) = with_tcp(dir, &[tls, args].concat());
    (server, Reach { address, way })
}

/// A connection whose handshake is complete.
pub(crate) struct Wire {
    pub(crate) tcp: TcpStream,
    tls: Option<ClientConnection>,
}

impl Wire {
    pub(crate) fn connect(reach: impl Into<Reach>) -> io::Result<Wire> {
        let reach = reach.into();
        Wire::over(TcpStream::connect(reach.address)?, reach.way)
    }

    pub(crate) fn over(tcp: TcpStream, way: Way) -> io::Result<Wire> {
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(Duration::from_secs(40)))?;
        match way {
            Way::Plain => Ok(Wire { tcp, tls: None }),
            _ => Wire::with(tcp, client(way)),
        }
    }

    fn with(mut tcp: TcpStream, config: Arc<ClientConfig>) -> io::Result<Wire> {
        let mut tls = ClientConnection::new(config, name()).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut tcp)?;
        }
        while tls.wants_write() {
            tls.write_tls(&mut tcp)?;
        }
        Ok(Wire { tcp, tls: Some(tls) })
    }
}

impl Read for Wire {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.tcp.read(buf) };
        loop {
            match tls.reader().read(buf) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            tls.read_tls(&mut self.tcp)?;
            tls.process_new_packets().map_err(io::Error::other)?;
        }
    }
}

impl Write for Wire {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.tcp.write(buf) };
        let written = tls.writer().write(buf)?;
        while tls.wants_write() {
            tls.write_tls(&mut self.tcp)?;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs the client of HTTP/2.
pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

pub(crate) type Sender = http2::SendRequest<Full<Bytes>>;

/// Connects over HTTP/2. The task ends with the connection.
pub(crate) async fn connect2(address: SocketAddr) -> (Sender, tokio::task::JoinHandle<()>) {
    connect2_with(address, client(Way::Http2)).await
}

async fn connect2_with(
    address: SocketAddr,
    config: Arc<ClientConfig>,
) -> (Sender, tokio::task::JoinHandle<()>) {
    let tcp = tokio::net::TcpStream::connect(address).await.unwrap();
    let stream = tokio_rustls::TlsConnector::from(config).connect(name(), tcp).await.unwrap();
    // The responses of this client may wait to be read.
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(64 << 10).initial_connection_window_size(16 << 20);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    let ended = tokio::spawn(async move {
        let _ = connection.await;
    });
    (sender, ended)
}

/// The head of the response for the console, over TLS with a certificate that signs itself.
pub(crate) fn head_with(reach: Reach, pem: &str) -> String {
    if reach.way != Way::Http2 {
        let tcp = TcpStream::connect(reach.address).unwrap();
        let mut wire = Wire::with(tcp, trusting(pem, b"http/1.1")).unwrap();
        wire.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        return answer(wire).head;
    }
    run(async {
        let (mut sender, _ended) = connect2_with(reach.address, trusting(pem, b"h2")).await;
        head2(&sender.send_request(request2("GET", "/", &[], String::new())).await.unwrap())
    })
}

/// The head of a response, as HTTP/1.1 would have it.
fn head2(response: &hyper::Response<hyper::body::Incoming>) -> String {
    let mut head = format!("HTTP/2 {}\r\n", response.status());
    for (name, value) in response.headers() {
        head.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap()));
    }
    head
}

/// A request for HTTP/2. The first line `Host` names the server; further ones are headers.
pub(crate) fn request2(
    method: &str,
    path: &str,
    headers: &[&str],
    body: String,
) -> hyper::Request<Full<Bytes>> {
    let lines: Vec<(&str, &str)> = headers.iter().map(|line| line.split_once(": ").unwrap()).collect();
    let mut hosts = lines.iter().filter(|(name, _)| *name == "Host");
    let host = hosts.next().map_or("localhost", |(_, host)| host);
    let mut request = hyper::Request::builder().method(method).uri(format!("https://{host}{path}"));
    for (name, value) in hosts.chain(lines.iter().filter(|(name, _)| *name != "Host")) {
        request = request.header(*name, *value);
    }
    if !body.is_empty() {
        request = request.header("Content-Type", "application/json");
    }
    request.body(Full::new(body.into())).unwrap()
}

/// Sends a request over HTTP/2, on a connection of its own.
pub(crate) fn send2(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[&str],
    body: Option<&Value>,
) -> Answer {
    let body = body.map(Value::to_string).unwrap_or_default();
    run(async {
        let (mut sender, _ended) = connect2(address).await;
        let response = sender.send_request(request2(method, path, headers, body)).await.unwrap();
        let (status, head) = (response.status(), head2(&response));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Answer { status: status.as_u16(), head, body: String::from_utf8_lossy(&body).into_owned() }
    })
}
