//! The certificate of the admin API: read from files, or made by the server itself.
//!
//! [`Certificates`] notices when the files change. New connections get the new certificate.

use crate::atomic_file::DurableFile;
use crate::identity::secret::Hash;
use hindcast_engine::disk::Dir;
use hindcast_engine::{Error, ErrorKind, Result};
use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::path::PathBuf;
use std::sync::Arc;
use webpki::EndEntityCert;

/// Name, kind and version of the file with the certificate and the key that the server makes.
pub(crate) const STORED: (&str, &str, u32) = ("api-tls.pem", "certificate", 1);
/// Protocols that clients can choose in the handshake, the preferred one first.
const PROTOCOLS: [&[u8]; 2] = [HTTP2, b"http/1.1"];
/// Name of HTTP/2 in the handshake.
pub(crate) const HTTP2: &[u8] = b"h2";

/// The PEM files with the certificate chain and the key of the admin API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertificateFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// A certificate that is ready for handshakes.
pub(crate) struct Certificate {
    pub(crate) config: Arc<ServerConfig>,
    /// SHA-256 of the certificate in DER.
    pub(crate) fingerprint: Hash,
    /// Whether the certificate is its own issuer.
    pub(crate) self_signed: bool,
    leaf: CertificateDer<'static>,
    /// Hash of the content of the files.
    content: Hash,
}

/// The certificate of the admin API, and the files that it comes from.
pub(crate) struct Certificates {
    /// `None`: the server made the certificate.
    files: Option<CertificateFiles>,
    current: RwLock<Arc<Certificate>>,
}

impl Certificates {
    /// Reads the files of an operator.
    pub(crate) fn read(files: CertificateFiles) -> Result<Certificates> {
        let current = RwLock::new(Arc::new(files.load(None)?.ok_or_else(|| unusable("it did not change"))?));
        Ok(Certificates { files: Some(files), current })
    }

    /// Reads the certificate that the server made at an earlier start. If there is none, it makes
    /// one for `names` and the loopback names, and stores it in the data directory `dir`.
    pub(crate) fn own(dir: Arc<dyn Dir>, names: &[String]) -> Result<Certificates> {
        let (name, kind, version) = STORED;
        let file = DurableFile::new(dir, name, kind, version);
        let pem = match file.load()? {
            Some(pem) => pem,
            None => {
                let pem = make(names)?;
                file.save(&pem)?;
                pem
            }
        };
        let current = RwLock::new(Arc::new(Certificate::parse(&pem, &pem)?));
        Ok(Certificates { files: None, current })
    }

    /// Returns the certificate for new connections.
    pub(crate) fn current(&self) -> Arc<Certificate> {
        self.current.read().clone()
    }

    /// Reads the files again. If they changed, new connections get the new certificate. If they
    /// can't be used, the old one stays.
    pub(crate) fn look(&self) {
        let Some(files) = &self.files else { return };
        match files.load(Some(self.current().content)) {
            Ok(None) => {}
            Ok(Some(new)) => {
                let fingerprint = new.fingerprint.text();
                *self.current.write() = Arc::new(new);
                tracing::info!(fingerprint, "the admin API has a new certificate");
            }
            Err(error) => {
                tracing::warn!(%error, "the new certificate of the admin API can't be used; the old one stays");
            }
        }
    }
}

impl CertificateFiles {
    /// Reads the files. Returns `None` if their content has the hash `known`.
    fn load(&self, known: Option<Hash>) -> Result<Option<Certificate>> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|e| Error::io(format!("read {}", path.display()), e))
        };
        let (cert, key) = (read(&self.cert)?, read(&self.key)?);
        if known.is_some_and(|known| known == content_hash(&cert, &key)) {
            return Ok(None);
        }
        let named = |e: Error| {
            let text = format!("use --api-tls-cert {} with its --api-tls-key: {e}", self.cert.display());
            Error::new(ErrorKind::Invalid, text)
        };
        Certificate::parse(&cert, &key).map(Some).map_err(named)
    }
}

fn content_hash(cert: &[u8], key: &[u8]) -> Hash {
    let (cert, key) = (Hash::of(cert), Hash::of(key));
    Hash::of(&[cert.0, key.0].concat())
}

impl Certificate {
    /// Makes a certificate from the PEM text of its chain, and the PEM text of its key.
    fn parse(cert: &[u8], key: &[u8]) -> Result<Certificate> {
        let content = content_hash(cert, key);
        let chain: Vec<_> = CertificateDer::pem_slice_iter(cert)
            .collect::<std::result::Result<_, _>>()
            .map_err(|e| Error::with_source(ErrorKind::Invalid, "read the certificate", e))?;
        let leaf = chain.first().cloned().ok_or_else(|| unusable("the file holds no certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|e| Error::with_source(ErrorKind::Invalid, "read the key", e))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::with_source(ErrorKind::Invalid, "set up TLS", e))?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|e| Error::with_source(ErrorKind::Invalid, "use the certificate", e))?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        let self_signed = {
            let parsed = EndEntityCert::try_from(&leaf)
                .map_err(|e| Error::with_source(ErrorKind::Invalid, "read the certificate", e))?;
            parsed.issuer() == parsed.subject()
        };
        let (config, fingerprint) = (Arc::new(config), Hash::of(&leaf));
        Ok(Certificate { config, fingerprint, self_signed, leaf, content })
    }

    /// Returns the settings of a client that trusts this certificate.
    #[cfg(test)]
    pub(crate) fn client(&self) -> rustls::ClientConfig {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.leaf.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        builder.with_root_certificates(roots).with_no_client_auth()
    }

    /// Returns whether the certificate is for this host name or address.
    pub(crate) fn is_for(&self, host: &str) -> bool {
        let parsed = EndEntityCert::try_from(&self.leaf);
        let (Ok(parsed), Ok(name)) = (parsed, ServerName::try_from(host)) else { return false };
        parsed.verify_is_valid_for_subject_name(&name).is_ok()
    }
}

fn unusable(why: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("read the certificate: {why}"))
}

/// Checks the content of the file with the certificate that the server made.
pub(crate) fn verify(content: &[u8]) -> Result<()> {
    Certificate::parse(content, content).map(drop)
}

/// Makes a certificate that signs itself, and its key, as PEM.
fn make(names: &[String]) -> Result<Vec<u8>> {
    let failed = |e| Error::with_source(ErrorKind::Invalid, "make a certificate", e);
    let mut all: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    all.extend(names.iter().cloned());
    all.sort();
    all.dedup();
    let key = rcgen::KeyPair::generate().map_err(failed)?;
    let mut params = rcgen::CertificateParams::new(all).map_err(failed)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "Hindcast");
    let cert = params.self_signed(&key).map_err(failed)?;
    Ok(format!("{}{}", cert.pem(), key.serialize_pem()).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_engine::disk::MemDir;

    #[test]
    fn the_own_certificate_is_made_once() {
        let dir: Arc<dyn Dir> = Arc::new(MemDir::new());
        let first = Certificates::own(dir.clone(), &["storage.example".into()]).unwrap().current();
        let again = Certificates::own(dir, &[]).unwrap();
        again.look();
        let again = again.current();
        assert_eq!(first.fingerprint, again.fingerprint);
        assert!(again.self_signed);
        for host in ["localhost", "127.0.0.1", "::1", "storage.example"] {
            assert!(again.is_for(host), "{host}");
        }
        for host in ["other.example", "10.0.0.1", "", "a b"] {
            assert!(!again.is_for(host), "{host}");
        }
    }

    #[test]
    fn a_renewed_certificate_is_noticed_and_a_bad_one_is_not_used() {
        let place = tempfile::tempdir().unwrap();
        let (cert, key) = (place.path().join("c"), place.path().join("k"));
        let write = || {
            let pem = make(&[]).unwrap();
            std::fs::write(&cert, &pem).unwrap();
            std::fs::write(&key, &pem).unwrap();
        };
        let files = CertificateFiles { cert: cert.clone(), key: key.clone() };
        assert!(Certificates::read(files.clone()).is_err());
        write();
        let all = Certificates::read(files).unwrap();
        let first = all.current().fingerprint;
        all.look();
        assert_eq!(all.current().fingerprint, first);
        write();
        all.look();
        let second = all.current().fingerprint;
        assert_ne!(second, first);
        // The key of another certificate, and no certificate at all.
        for (path, text) in [(&key, make(&[]).unwrap()), (&cert, b"x".to_vec())] {
            std::fs::write(path, text).unwrap();
            all.look();
            assert_eq!(all.current().fingerprint, second);
        }
    }
}
