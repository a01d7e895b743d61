//! How a client verifies the certificate of a server ([`Trust`]).

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use sha2::{Digest as _, Sha256};
use std::fmt::{self, Write};
use std::io;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Time that a server has to show its certificate, by default.
const TIMEOUT: Duration = Duration::from_secs(10);

/// SHA-256 of a certificate in DER. Its text has 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    fn of(certificate: &CertificateDer<'_>) -> Fingerprint {
        Fingerprint(Sha256::digest(certificate).into())
    }
}

impl FromStr for Fingerprint {
    type Err = String;

    /// Parses 64 hexadecimal digits. They may be grouped by colons, and begin with `sha256:`.
    fn from_str(text: &str) -> Result<Fingerprint, String> {
        let wrong = || format!("{text:?} is not a fingerprint: it must have 64 hexadecimal digits");
        let digits = text.strip_prefix("sha256:").unwrap_or(text).replace(':', "");
        if digits.len() != 64 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            let pair = digits.get(2 * i..2 * i + 2).ok_or_else(wrong)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(Fingerprint(bytes))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        for byte in self.0 {
            write!(text, "{byte:02x}")?;
        }
        f.write_str(&text)
    }
}

/// How a client verifies the certificate of a server.
#[derive(Debug, Clone)]
pub struct Trust(Arc<ClientConfig>);

impl Trust {
    /// Trusts servers with a certificate that one of these authorities signed, for the name by
    /// which the client reaches the server. `pem` has the certificates of the authorities. A
    /// certificate that is its own authority counts, too.
    pub fn authorities(pem: &[u8]) -> Result<Trust, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|e| e.to_string())?;
            roots.add(certificate).map_err(|e| e.to_string())?;
        }
        if roots.is_empty() {
            return Err("it holds no certificate".into());
        }
        let config = builder()?.with_root_certificates(roots).with_no_client_auth();
        Ok(Trust(Arc::new(config)))
    }

    /// Trusts the server whose certificate has this fingerprint, whatever its name is.
    pub fn fingerprint(fingerprint: Fingerprint) -> Result<Trust, String> {
        Trust::verified(Arc::new(Pinned { expected: Some(fingerprint), seen: Mutex::new(None) }))
    }

    fn verified(verifier: Arc<Pinned>) -> Result<Trust, String> {
        let config = builder()?.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        Ok(Trust(Arc::new(config)))
    }

    pub(crate) async fn handshake(
        &self,
        authority: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        TlsConnector::from(self.0.clone()).connect(name, stream).await
    }
}

/// Returns the fingerprint of the certificate of the server at `authority`, `HOST:PORT`. It
/// verifies only that the server has the key of the certificate. The server has `limit` for it.
/// Default: 10 seconds.
pub fn fingerprint_of(authority: &str, limit: Option<Duration>) -> Result<Fingerprint, String> {
    let limit = limit.unwrap_or(TIMEOUT);
    let verifier = Arc::new(Pinned { expected: None, seen: Mutex::new(None) });
    let trust = Trust::verified(verifier.clone())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let exchange = async {
        let stream = TcpStream::connect(authority).await?;
        trust.handshake(authority, stream).await.map(drop)
    };
    runtime
        .map_err(|e| e.to_string())?
        .block_on(async { tokio::time::timeout(limit, exchange).await })
        .map_err(|_| format!("no certificate arrived within {} s", limit.as_secs()))?
        .map_err(|e| e.to_string())?;
    let seen = *verifier.seen.lock().unwrap_or_else(PoisonError::into_inner);
    seen.ok_or_else(|| "the server showed no certificate".into())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn builder() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, String> {
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())
}

/// A verifier that compares fingerprints.
#[derive(Debug)]
struct Pinned {
    /// `None`: every certificate will do.
    expected: Option<Fingerprint>,
    seen: Mutex<Option<Fingerprint>>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let found = Fingerprint::of(end_entity);
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        match self.expected {
            Some(expected) if expected != found => Err(Error::General(format!(
                "the certificate has another fingerprint than expected: {found}, and not {expected}"
            ))),
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &provider().signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &provider().signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_have_a_text() {
        let digits = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let fingerprint: Fingerprint = digits.parse().unwrap();
        assert_eq!(fingerprint.to_string(), digits);
        assert_eq!(format!("sha256:{digits}").parse(), Ok(fingerprint));
        let colons: Vec<String> = digits
            .to_uppercase()
            .as_bytes()
            .chunks(2)
            .map(|c| String::from_utf8(c.to_vec()).unwrap())
            .collect();
        assert_eq!(colons.join(":").parse(), Ok(fingerprint));
        for bad in ["", "ba", &"g".repeat(64), &"+1".repeat(32), &"ä".repeat(32)] {
            assert!(bad.parse::<Fingerprint>().is_err(), "{bad}");
        }
    }

    #[test]
    fn authorities_are_certificates() {
        assert!(Trust::authorities(b"").is_err());
        assert!(
            Trust::authorities(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").is_err()
        );
    }
}
