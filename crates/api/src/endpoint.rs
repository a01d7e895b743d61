//! The address of a server's admin API ([`Endpoint`]), and connections to it.

use crate::trust::Trust;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::str::FromStr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// Pause before the next attempt to connect to a listener whose queue is full.
const RETRY: Duration = Duration::from_millis(50);

/// Address of a server's admin API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// Path of a Unix socket.
    Unix(PathBuf),
    /// `HOST:PORT`, plain HTTP.
    Tcp(String),
    /// `HOST:PORT`, HTTP over TLS.
    Tls(String),
}

impl FromStr for Endpoint {
    type Err = String;

    /// Parses `unix:PATH`, `http://HOST:PORT`, `https://HOST:PORT`, or a plain path of a Unix
    /// socket.
    fn from_str(text: &str) -> Result<Self, String> {
        for (scheme, kind) in
            [("http://", Endpoint::Tcp as fn(String) -> Endpoint), ("https://", Endpoint::Tls)]
        {
            let Some(rest) = text.strip_prefix(scheme) else { continue };
            let authority = rest.trim_end_matches('/');
            return match authority.rsplit_once(':') {
                Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                    Ok(kind(authority.to_owned()))
                }
                _ => Err(format!("{text:?} is not of the form {scheme}HOST:PORT")),
            };
        }
        match text.strip_prefix("unix:").unwrap_or(text) {
            "" => Err("the path of the socket is empty".into()),
            path => Ok(Endpoint::Unix(path.into())),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
            Endpoint::Tcp(authority) => write!(f, "http://{authority}"),
            Endpoint::Tls(authority) => write!(f, "https://{authority}"),
        }
    }
}

/// A connection to a server.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}

impl Endpoint {
    /// Connects to the server, and verifies its certificate by `trust`. If the queue of a Unix
    /// socket is full, it tries again.
    pub(crate) async fn connect(&self, trust: Option<&Trust>) -> io::Result<Pin<Box<dyn Stream>>> {
        match self {
            Endpoint::Unix(path) => loop {
                match UnixStream::connect(path).await {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => tokio::time::sleep(RETRY).await,
                    connected => return Ok(Box::pin(connected?)),
                }
            },
            Endpoint::Tcp(authority) => Ok(Box::pin(TcpStream::connect(authority).await?)),
            Endpoint::Tls(authority) => {
                let trust = trust.ok_or_else(|| {
                    io::Error::other("it is not configured how to verify the server's certificate")
                })?;
                let stream = TcpStream::connect(authority).await?;
                Ok(Box::pin(trust.handshake(authority, stream).await?))
            }
        }
    }

    /// Returns whether no other host can read what is sent to the server: a Unix socket, TLS, or an
    /// address of this machine. A name other than `localhost` can lead to another host.
    pub fn is_private(&self) -> bool {
        let Endpoint::Tcp(authority) = self else { return true };
        let host = authority.rsplit_once(':').map_or(authority.as_str(), |(host, _)| host);
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        host.eq_ignore_ascii_case("localhost")
            || address.is_ok_and(|address| address.to_canonical().is_loopback())
    }

    /// Returns the name of the server in requests.
    pub(crate) fn host(&self) -> &str {
        match self {
            Endpoint::Unix(_) => "localhost",
            Endpoint::Tcp(authority) | Endpoint::Tls(authority) => authority,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_private_without_tls() {
        let is_private = |text: &str| text.parse::<Endpoint>().unwrap().is_private();
        for near in ["/x", "https://h:1", "http://127.0.0.9:1", "http://[::1]:1", "http://LocalHost:1"] {
            assert!(is_private(near), "{near}");
        }
        for far in ["http://h:1", "http://10.0.0.1:1", "http://[::2]:1", "http://localhost.example:1"] {
            assert!(!is_private(far), "{far}");
        }
        assert!(is_private("http://[::ffff:127.0.0.1]:1"));
    }

    #[test]
    fn endpoints_are_paths_or_urls() {
        assert_eq!("unix:/run/x".parse(), Ok(Endpoint::Unix("/run/x".into())));
        assert_eq!("./x.sock".parse(), Ok(Endpoint::Unix("./x.sock".into())));
        assert_eq!("http://[::1]:80/".parse(), Ok(Endpoint::Tcp("[::1]:80".into())));
        assert_eq!("https://h:443".parse(), Ok(Endpoint::Tls("h:443".into())));
        for bad in ["", "unix:", "http://host", "http://:80", "http://h:x", "https://h"] {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad} was accepted");
        }
        for text in ["unix:/x", "http://h:1", "https://h:1"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
    }
}
