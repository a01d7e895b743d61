//! TLS with X.509 certificates, as a transport over a socket.
//!
//! One lock guards the TLS state. No thread holds it while a socket blocks, so a connection's
//! thread can wait for data while workers send.

use super::client::common_names;
use crate::net::transport::{Socket, Transport};
use hindcast_engine::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use std::io::{self, IoSlice, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of bytes of ciphertext in one receive: four TLS records.
const RECEIVE: usize = 64 << 10;

/// The PEM files with the server's certificate and key, and with the authorities for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// The server's certificate, followed by intermediate certificates.
    pub cert: PathBuf,
    /// The private key of the server's certificate.
    pub key: PathBuf,
    /// The authorities for client certificates. If it is `Some`, each client must present a
    /// certificate that one of them signed.
    pub client_ca: Option<PathBuf>,
}

impl TlsConfig {
    /// Reads the files, and checks that the key belongs to the certificate.
    pub(super) fn load(&self) -> Result<Arc<ServerConfig>> {
        let certs = certificates(&self.cert)?;
        let key =
            PrivateKeyDer::from_pem_file(&self.key).map_err(|e| unreadable("read TLS key", &self.key, e))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::with_source(ErrorKind::Invalid, "set up TLS", e))?;
        let config = match &self.client_ca {
            None => config.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for cert in certificates(path)? {
                    roots.add(cert).map_err(|e| {
                        Error::with_source(
                            ErrorKind::Invalid,
                            format!("use {} as client CA", path.display()),
                            e,
                        )
                    })?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                    .build()
                    .map_err(|e| Error::with_source(ErrorKind::Invalid, "set up client verification", e))?;
                config.with_client_cert_verifier(verifier)
            }
        };
        let config = config.with_single_cert(certs, key).map_err(|e| {
            Error::with_source(ErrorKind::Invalid, format!("use TLS certificate {}", self.cert.display()), e)
        })?;
        Ok(Arc::new(config))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let certs: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|e| unreadable("read TLS certificate", path, e))?;
    if certs.is_empty() {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("read TLS certificate {}: the file holds no certificate", path.display()),
        ));
    }
    Ok(certs)
}

fn unreadable(what: &str, path: &Path, error: pem::Error) -> Error {
    Error::with_source(ErrorKind::Invalid, format!("{what} {}", path.display()), error)
}

/// A TLS session over a socket. A thread takes the locks in the order of the fields.
pub(super) struct TlsTransport {
    socket: Arc<Socket>,
    /// Ciphertext that was received and not yet decrypted. Only the receiving thread locks it.
    incoming: Mutex<Incoming>,
    /// Ciphertext that was not yet sent. A thread holds the lock while it sends, so that TLS
    /// records are sent in order.
    outgoing: Mutex<Pending>,
    tls: Mutex<ServerConnection>,
}

/// Received ciphertext. The bytes at `start..end` are not yet decrypted.
struct Incoming {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

/// Bytes to send. Those before `done` have been sent.
#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    done: usize,
}

impl Pending {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.done..]
    }

    fn send(&mut self, socket: &Socket, wait: bool) -> io::Result<()> {
        while !self.rest().is_empty() {
            self.done += socket.send(&[IoSlice::new(self.rest())], wait)?;
        }
        self.bytes.clear();
        self.done = 0;
        Ok(())
    }
}

impl TlsTransport {
    /// Performs the TLS handshake. Fails with `TimedOut` when it takes longer than until
    /// `deadline`.
    pub(super) fn accept(
        socket: Arc<Socket>,
        config: Arc<ServerConfig>,
        deadline: Instant,
    ) -> io::Result<TlsTransport> {
        let tls = ServerConnection::new(config).map_err(io::Error::other)?;
        let transport = TlsTransport {
            socket,
            incoming: Mutex::new(Incoming { bytes: vec![0; RECEIVE], start: 0, end: 0 }),
            outgoing: Mutex::default(),
            tls: Mutex::new(tls),
        };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            transport.socket.set_timeouts(left, left)?;
            transport.flush(true)?;
            if !transport.tls.lock().is_handshaking() {
                return Ok(transport);
            }
            transport.decrypt(&mut transport.incoming.lock()).inspect_err(|_| {
                let _ = transport.flush(false); // the alert that says why
            })?;
        }
    }

    /// Returns the common names of the client's certificate, which the handshake has verified.
    /// Returns none if the client has no certificate.
    pub(super) fn common_names(&self) -> Vec<String> {
        let tls = self.tls.lock();
        tls.peer_certificates().and_then(|chain| chain.first()).map(common_names).unwrap_or_default()
    }

    /// Passes ciphertext to the TLS state. Receives some first if none is left. Returns false at
    /// the end of the stream.
    fn decrypt(&self, incoming: &mut Incoming) -> io::Result<bool> {
        if incoming.start == incoming.end {
            let n = self.socket.receive(&mut incoming.bytes)?;
            (incoming.start, incoming.end) = (0, n);
            if n == 0 {
                return Ok(false);
            }
        }
        let mut tls = self.tls.lock();
        incoming.start += tls.read_tls(&mut &incoming.bytes[incoming.start..incoming.end])?;
        tls.process_new_packets().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        Ok(true)
    }
}

impl Transport for TlsTransport {
    fn receive(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mut incoming = self.incoming.lock();
        loop {
            match self.tls.lock().reader().read(buf) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            if !self.decrypt(&mut incoming)? {
                return Ok(0);
            }
        }
    }

    fn send(&self, bufs: &[IoSlice<'_>], wait: bool) -> io::Result<usize> {
        let mut outgoing = self.outgoing.lock();
        outgoing.send(&self.socket, wait)?;
        let taken = {
            let mut tls = self.tls.lock();
            let taken = tls.writer().write_vectored(bufs)?;
            while tls.wants_write() {
                tls.write_tls(&mut outgoing.bytes)?;
            }
            taken
        };
        match outgoing.send(&self.socket, wait) {
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
            _ if taken == 0 => Err(io::ErrorKind::WriteZero.into()),
            _ => Ok(taken),
        }
    }

    fn flush(&self, wait: bool) -> io::Result<()> {
        let mut outgoing = self.outgoing.lock();
        {
            let mut tls = self.tls.lock();
            while tls.wants_write() {
                tls.write_tls(&mut outgoing.bytes)?;
            }
        }
        outgoing.send(&self.socket, wait)
    }

    fn set_timeouts(&self, receive: Duration, send: Duration) -> io::Result<()> {
        self.socket.set_timeouts(receive, send)
    }

    fn close(&self) {
        self.tls.lock().send_close_notify();
        let _ = self.flush(true);
        self.socket.close();
    }

    fn abort(&self) {
        self.socket.abort();
    }
}
