//! How the admin API is served over TCP: the certificate, the host names of the server, and the
//! runtimes.

use crate::certificate::Certificates;
use crate::listen::Listener;
use hindcast_api::ApiCertificate;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tokio::runtime::Handle;

/// How the admin API is served over TCP.
pub(crate) struct Web {
    /// The certificate. `None`: all listeners speak plain HTTP.
    pub(crate) certificates: Option<Arc<Certificates>>,
    /// The configuration that this follows.
    pub(crate) config: WebConfig,
    /// Why the default address has no listener. `None`: it has one, or the operator chose others.
    pub(crate) unbound: Option<String>,
    /// Identity of this process, by which a client recognizes that two addresses are of one server.
    pub(crate) instance: String,
    /// URLs of the listeners.
    pub(crate) urls: Vec<String>,
    /// The runtime of the Unix socket. What is urgent for the clients of volumes runs on its
    /// threads, which have a raised priority.
    pub(crate) urgent: Handle,
    /// The runtime of TCP, with ordinary threads. Responses that go on are made there, also those
    /// for the Unix socket.
    pub(crate) ordinary: Handle,
}

/// The settings of the admin API over TCP.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WebConfig {
    /// Whether all listeners speak plain HTTP.
    pub(crate) plain: bool,
    /// The certificate of the operator. All listeners then speak TLS.
    pub(crate) files: Option<crate::certificate::CertificateFiles>,
    /// Further names of the server.
    pub(crate) hosts: Vec<String>,
}

impl WebConfig {
    /// Returns whether a listener on this address speaks TLS.
    pub(crate) fn speaks_tls(&self, address: IpAddr) -> bool {
        !self.plain && (self.files.is_some() || !address.to_canonical().is_loopback())
    }

    /// Returns the names for a certificate that the server makes.
    pub(crate) fn names(&self, listeners: &[Listener]) -> Vec<String> {
        let addresses = listeners.iter().filter_map(Listener::tcp).map(|address| address.ip().to_canonical());
        let addresses = addresses.filter(|ip| !ip.is_unspecified()).map(|ip| ip.to_string());
        self.hosts.iter().cloned().chain(host_name()).chain(addresses).collect()
    }
}

/// Returns the name of this machine.
fn host_name() -> Option<String> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    (!name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-')))
        .then_some(name)
}

impl Web {
    /// Returns the certificate, for the status.
    pub(crate) fn certificate(&self) -> Option<ApiCertificate> {
        let current = self.certificates.as_ref()?.current();
        Some(ApiCertificate { fingerprint: current.fingerprint.text(), self_signed: current.self_signed })
    }

    /// Returns whether a request may name this server `host`. `host` is the content of the header
    /// Host. `local` is the address at which the connection arrived.
    ///
    /// A page of another site can make a browser send requests here under the name of that site
    /// (DNS rebinding). Such a name is none of the server's.
    pub(crate) fn is_host(&self, host: &str, local: Option<SocketAddr>) -> bool {
        let name = without_port(host).trim_end_matches('.').to_ascii_lowercase();
        if let Ok(address) = name.parse::<IpAddr>() {
            let address = address.to_canonical();
            if address.is_loopback() || local.is_some_and(|local| local.ip().to_canonical() == address) {
                return true;
            }
        }
        name == "localhost"
            || host_name().is_some_and(|own| own.eq_ignore_ascii_case(&name))
            || self.config.hosts.iter().any(|known| known.eq_ignore_ascii_case(&name))
            || self.certificates.as_ref().is_some_and(|all| all.current().is_for(&name))
    }
}

/// Returns the name or address in `HOST`, `HOST:PORT` or `[ADDRESS]:PORT`.
fn without_port(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    match host.rsplit_once(':') {
        Some((name, _)) if !name.contains(':') => name,
        _ => host,
    }
}

impl WebConfig {
    /// Returns the URL of a listener for people and browsers. A listener on all addresses has the
    /// first configured name of the server, or the name of the machine.
    pub(crate) fn url(&self, address: SocketAddr) -> String {
        let scheme = if self.speaks_tls(address.ip()) { "https" } else { "http" };
        if !address.ip().is_unspecified() {
            return format!("{scheme}://{address}");
        }
        let name = self.hosts.first().cloned().or_else(host_name).unwrap_or_else(|| "localhost".into());
        format!("{scheme}://{name}:{}", address.port())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_server_are_its_host() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let config = WebConfig { hosts: vec!["Storage.example".into()], ..WebConfig::default() };
        let (urgent, ordinary) = (runtime.handle().clone(), runtime.handle().clone());
        let web = Web {
            certificates: None,
            config,
            urls: Vec::new(),
            unbound: None,
            instance: String::new(),
            urgent,
            ordinary,
        };
        let local: SocketAddr = "10.0.0.5:8440".parse().unwrap();
        for good in [
            "localhost",
            "LOCALHOST:8440",
            "localhost.",
            "127.0.0.1:1",
            "[::1]:8440",
            "10.0.0.5:8440",
            "10.0.0.5",
            "storage.example:443",
        ] {
            assert!(web.is_host(good, Some(local)), "{good}");
        }
        for bad in
            ["", "evil.example", "evil.example:8440", "10.0.0.6", "localhost.evil.example", "[::2]", "::"]
        {
            assert!(!web.is_host(bad, Some(local)), "{bad}");
        }
        assert!(!web.is_host("10.0.0.5", None));
    }

    #[test]
    fn loopback_is_plain_unless_the_operator_has_a_certificate() {
        let (near, far) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([10, 0, 0, 1]));
        let config = WebConfig::default();
        assert!(!config.speaks_tls(near) && config.speaks_tls(far));
        let plain = WebConfig { plain: true, ..WebConfig::default() };
        assert!(!plain.speaks_tls(near) && !plain.speaks_tls(far));
        let files = crate::certificate::CertificateFiles { cert: "c".into(), key: "k".into() };
        let own = WebConfig { files: Some(files), ..WebConfig::default() };
        assert!(own.speaks_tls(near) && own.speaks_tls(far));
        assert_eq!(config.url("[::1]:80".parse().unwrap()), "http://[::1]:80");
        assert!(config.url("0.0.0.0:80".parse().unwrap()).starts_with("https://"));
        let named = WebConfig { hosts: vec!["a.example".into()], ..config };
        assert_eq!(named.url("[::]:80".parse().unwrap()), "https://a.example:80");
    }
}
