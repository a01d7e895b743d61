//! Listeners: they bind addresses and accept connections.

use super::repeated::Repeated;
use super::transport::Socket;
use hindcast_engine::{Error, ErrorKind, Result};
use rustix::fs::Mode;
use rustix::net::{self, AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// An address on which a server listens, or is to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address. With port 0 the system chooses the port.
    Tcp(SocketAddr),
    /// Path of a Unix socket. A socket that no process listens on is replaced. A socket in use, or
    /// any other file, stays and is an error.
    Unix(PathBuf),
}

/// The name of every client on a Unix socket, in place of an address.
pub(crate) const UNIX_PEER: &str = "unix";
/// First pause after an error of `accept`. The usual cause is a lack of file descriptors. Each
/// further error doubles the pause, up to [`LONGEST_PAUSE`].
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Maximum pause after an error of `accept`. A stop of the listener may have to wait for it.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 128;

enum Kind {
    Tcp(TcpListener),
    /// A Unix socket, and the device and inode number of its file. The listener removes no other
    /// file.
    Unix(UnixListener, (u64, u64)),
}

/// Listens as the standard library does, except that an IPv6 address accepts only IPv6, whatever
/// the default of the system is. So `[::]` and `0.0.0.0` can be bound side by side, and a portal
/// serves exactly its address.
fn listen_tcp(address: &SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(net::ipproto::TCP))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    net::bind(&socket, address)?;
    net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Creates a Unix socket and listens on it. The socket has the permissions `mode` from the start,
/// whatever the umask is. No client can connect before they are set.
pub fn listen_unix(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The file that `bind` creates has at most these permissions.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // The umask has removed some of these permissions.
    let exact = fs::set_permissions(path, fs::Permissions::from_mode(mode));
    exact.and_then(|()| Ok(net::listen(&socket, BACKLOG)?)).inspect_err(|_| drop(fs::remove_file(path)))?;
    Ok(UnixListener::from(socket))
}

/// A bound address. The file of a Unix socket is removed when the listener stops or is dropped.
pub(crate) struct Listener {
    kind: Kind,
    address: Listen,
}

impl Listener {
    /// Binds the address `listen` and listens on it. A Unix socket gets the permissions `mode`.
    pub(crate) fn bind(listen: &Listen, mode: u32) -> Result<Listener> {
        match listen {
            Listen::Tcp(address) => {
                let fail = |e| Error::io(format!("listen on {address}"), e);
                let listener = listen_tcp(address).map_err(fail)?;
                let address = Listen::Tcp(listener.local_addr().map_err(fail)?);
                Ok(Listener { kind: Kind::Tcp(listener), address })
            }
            Listen::Unix(path) => {
                let fail = |e| Error::io(format!("listen on {}", path.display()), e);
                remove_stale(path)?;
                let listener = listen_unix(path, mode).map_err(fail)?;
                let meta = fs::symlink_metadata(path).map_err(fail)?;
                Ok(Listener { kind: Kind::Unix(listener, (meta.dev(), meta.ino())), address: listen.clone() })
            }
        }
    }

    pub(crate) fn address(&self) -> &Listen {
        &self.address
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Tcp(listener) => listener.as_fd(),
            Kind::Unix(listener, _) => listener.as_fd(),
        }
    }

    /// Accepts connections until [`Listener::stop`], and calls `admit` with the socket and the name
    /// of each client. The caller sets `stopping` before the stop.
    pub(crate) fn accept_loop(&self, stopping: &AtomicBool, admit: impl Fn(Socket, String)) {
        let failures = Repeated::new();
        let mut pause = ACCEPT_PAUSE;
        loop {
            let accepted = match &self.kind {
                Kind::Tcp(listener) => listener.accept().map(|(s, peer)| (Socket::new(s), peer.to_string())),
                Kind::Unix(listener, _) => {
                    listener.accept().map(|(s, _)| (Socket::new(s), UNIX_PEER.to_owned()))
                }
            };
            if stopping.load(Ordering::SeqCst) {
                return;
            }
            match accepted {
                Ok((socket, peer)) => {
                    pause = ACCEPT_PAUSE;
                    admit(socket, peer);
                }
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(e) => {
                    if let Some(turn) = failures.turn() {
                        tracing::warn!(error = %e, suppressed = turn.suppressed(), "accept a connection");
                    }
                    thread::sleep(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Ends the accept loop, and removes the file of a Unix socket. On Linux the shutdown of a
    /// listening socket wakes `accept`.
    pub(crate) fn stop(&self) {
        let _ = net::shutdown(self.fd(), Shutdown::Both);
        self.remove_file();
    }

    fn remove_file(&self) {
        if let (Kind::Unix(_, identity), Listen::Unix(path)) = (&self.kind, &self.address)
            && fs::symlink_metadata(path).is_ok_and(|m| (m.dev(), m.ino()) == *identity)
        {
            let _ = fs::remove_file(path);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.remove_file();
    }
}

/// Removes a Unix socket that no process listens on. Any other file at the path is an error.
fn remove_stale(path: &Path) -> Result<()> {
    let in_the_way =
        |why: &str| Err(Error::new(ErrorKind::Conflict, format!("listen on {}: {why}", path.display())));
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io(format!("check {}", path.display()), e)),
        Ok(meta) if !meta.file_type().is_socket() => {
            return in_the_way("the path is a file and not a socket");
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => in_the_way("another server is listening there"),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|e| Error::io(format!("remove stale socket {}", path.display()), e))
        }
        Err(e) => Err(Error::io(format!("probe socket {}", path.display()), e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_its_permissions_whatever_the_umask() {
        let dir = tempfile::tempdir().unwrap();
        // All threads share the umask, so the test does not set it. These modes have more and fewer
        // permissions than any usual umask leaves.
        for mode in [0o600, 0o660, 0o666] {
            let path = dir.path().join("s");
            let listener = listen_unix(&path, mode).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
            UnixStream::connect(&path).unwrap();
            listener.accept().unwrap();
            fs::remove_file(&path).unwrap();
        }
        assert!(listen_unix(&dir.path().join("none/s"), 0o600).is_err());
    }
}
