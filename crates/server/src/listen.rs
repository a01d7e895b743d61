//! Addresses to listen on, and the listeners of the admin API.

use crate::identity::local::SocketAccess;
use hindcast_api::{ErrorBody, ErrorKind};
use hindcast_target::listen_unix;
use rustix::net;
use std::fmt;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tokio::net::{TcpListener, UnixListener};

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// `HOST:PORT`.
    Tcp(String),
    /// `unix:PATH`.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return std::path::absolute(path).map(Address::Unix).map_err(|e| e.to_string());
        }
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Address::Tcp(text.into()))
            }
            _ => Err("the address must be HOST:PORT or unix:PATH".into()),
        }
    }
}

/// Resolves `HOST:PORT` to an address. A host name is looked up, and its first address is used. A
/// link-local address may name its interface, `[fe80::1%eth0]:3260`, because the interface's number
/// may differ after each boot.
pub(crate) fn resolve(host_port: &str) -> io::Result<SocketAddr> {
    if let Some((ip, interface, port)) = zoned(host_port) {
        let socket = net::socket(net::AddressFamily::INET6, net::SocketType::DGRAM, None)?;
        let number = net::netdevice::name_to_index(socket, interface)
            .map_err(|e| io::Error::other(format!("find the interface {interface}: {e}")))?;
        return Ok(SocketAddrV6::new(ip, port, 0, number).into());
    }
    let found = host_port.to_socket_addrs()?.next();
    found.ok_or_else(|| io::Error::other("the name has no address"))
}

/// Parses a link-local address with the name of an interface and a port.
fn zoned(host_port: &str) -> Option<(Ipv6Addr, &str, u16)> {
    let (place, port) = host_port.strip_prefix('[')?.rsplit_once("]:")?;
    let (ip, interface) = place.split_once('%')?;
    let ip: Ipv6Addr = ip.parse().ok()?;
    let is_name = interface.parse::<u32>().is_err();
    (is_name && ip.is_unicast_link_local()).then_some((ip, interface, port.parse().ok()?))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => f.write_str(address),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A bound listener of the admin API.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

impl Listener {
    /// Binds a listener. Only its owner and the group in `access` can open a Unix socket. A socket
    /// that a killed server left is replaced. A socket on which a server answers is not.
    pub(crate) async fn bind(address: &Address, access: &SocketAccess) -> Result<Listener, ErrorBody> {
        let bound = match address {
            Address::Tcp(host_port) => match zoned(host_port).map(|_| resolve(host_port)) {
                Some(address) => bind_tcp(address).await,
                None => TcpListener::bind(host_port).await.map(Listener::Tcp),
            },
            Address::Unix(path) => bind_unix(path, access).map(|(l, file)| Listener::Unix(l, file)),
        };
        bound.map_err(|e| ErrorBody {
            kind: if e.kind() == io::ErrorKind::AddrInUse { ErrorKind::Busy } else { ErrorKind::Io },
            message: format!("listen on {address}: {e}"),
        })
    }

    /// Returns the bound address. It has the real port instead of port 0.
    pub(crate) fn address(&self) -> String {
        match self {
            Listener::Tcp(listener) => listener.local_addr().map_or_else(|_| "?".into(), |a| a.to_string()),
            Listener::Unix(_, file) => format!("unix:{}", file.0.display()),
        }
    }
}

impl Listener {
    /// Returns the bound address of a listener for TCP.
    pub(crate) fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(..) => None,
        }
    }
}

async fn bind_tcp(address: io::Result<SocketAddr>) -> io::Result<Listener> {
    TcpListener::bind(address?).await.map(Listener::Tcp)
}

/// The file of a socket. It is removed on drop.
#[derive(Debug)]
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Nothing to do about a failure: a stale name is replaced at the next start.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Binds a socket under a temporary name, restricts its permissions, and renames it. So no other
/// user can connect at any time, and a leftover socket is replaced without a gap.
fn bind_unix(path: &Path, access: &SocketAccess) -> io::Result<(UnixListener, SocketFile)> {
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens there"));
    }
    if path.exists() && !is_socket(path) {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path exists and is not a socket"));
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    if is_socket(&temporary) {
        std::fs::remove_file(&temporary)?;
    }
    let listener = listen_unix(&temporary, 0o600)?;
    if access.group.is_some() {
        std::os::unix::fs::chown(&temporary, None, access.group)?;
        std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(access.mode()))?;
    }
    listener.set_nonblocking(true)?;
    std::fs::rename(&temporary, path)?;
    Ok((UnixListener::from_std(listener)?, SocketFile(path.to_path_buf())))
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_api::Role;

    #[test]
    fn addresses_are_host_port_or_unix() {
        assert_eq!("0.0.0.0:80".parse(), Ok(Address::Tcp("0.0.0.0:80".into())));
        assert_eq!("unix:/a b".parse(), Ok(Address::Unix("/a b".into())));
        for bad in ["", "unix:", "80", ":80", "host:", "host:99999", "/path"] {
            assert!(bad.parse::<Address>().is_err(), "{bad} was accepted");
        }
    }

    #[test]
    fn interfaces_are_found_by_name() {
        assert_eq!(resolve("[fe80::1%lo]:80").unwrap(), "[fe80::1%1]:80".parse().unwrap());
        assert_eq!(resolve("[fe80::1%7]:80").unwrap(), "[fe80::1%7]:80".parse().unwrap());
        assert_eq!(resolve("127.0.0.1:80").unwrap(), "127.0.0.1:80".parse().unwrap());
        let error = resolve("[fe80::1%nosuchif]:80").unwrap_err().to_string();
        assert!(error.contains("nosuchif"), "{error}");
    }

    #[test]
    fn a_leftover_socket_is_replaced_and_a_live_one_is_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("s");
            let address = Address::Unix(path.clone());
            let access = SocketAccess { group: None, role: Role::Operator };
            // A dropped std listener leaves its name behind, as a killed server does.
            drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
            let first = Listener::bind(&address, &access).await.unwrap();
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            assert_eq!(Listener::bind(&address, &access).await.unwrap_err().kind, ErrorKind::Busy);
            drop(first);
            assert!(!path.exists());
            let own = rustix::process::getegid().as_raw();
            let shared = SocketAccess { group: Some(own), ..access };
            let second = Listener::bind(&address, &shared).await.unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
            drop(second);
            std::fs::write(&path, "precious").unwrap();
            assert!(Listener::bind(&address, &access).await.is_err());
            assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        });
    }
}
