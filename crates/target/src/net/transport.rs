//! The byte stream under a session ([`Transport`]): a socket, TLS over a socket, or what a test or
//! a fuzzer provides.

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrAny};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Size of the send buffer of a Unix socket in bytes.
const UNIX_SEND_BUFFER: usize = 512 << 10;

/// A connected byte stream. One thread receives from it. Any thread may send, one at a time.
pub trait Transport: Send + Sync + 'static {
    /// Receives at least one byte, and returns the number of bytes. 0 means the end of the stream.
    /// Fails with `WouldBlock` when the receive timeout has passed.
    fn receive(&self, buf: &mut [u8]) -> io::Result<usize>;

    /// Sends bytes from the front of `bufs`, at least one, and returns how many were sent. Without
    /// `wait` it fails with `WouldBlock` where it would block. With `wait` it fails with `TimedOut`
    /// when the send timeout has passed without progress.
    fn send(&self, bufs: &[IoSlice<'_>], wait: bool) -> io::Result<usize>;

    /// Hands all bytes that were sent so far to the network.
    fn flush(&self, wait: bool) -> io::Result<()> {
        let _ = wait;
        Ok(())
    }

    /// Sets the timeouts of each single receive and send from now on.
    fn set_timeouts(&self, receive: Duration, send: Duration) -> io::Result<()>;

    /// Ends the stream in order. Bytes that were sent before still arrive.
    fn close(&self);

    /// Breaks the stream. Threads that wait in `receive` or `send` return.
    fn abort(&self);

    /// Stops receiving. Bytes that have arrived can still be received, and then the stream ends.
    fn stop_receiving(&self) {}
}

impl<T: Transport + ?Sized> Transport for std::sync::Arc<T> {
    fn receive(&self, buf: &mut [u8]) -> io::Result<usize> {
        (**self).receive(buf)
    }

    fn send(&self, bufs: &[IoSlice<'_>], wait: bool) -> io::Result<usize> {
        (**self).send(bufs, wait)
    }

    fn flush(&self, wait: bool) -> io::Result<()> {
        (**self).flush(wait)
    }

    fn set_timeouts(&self, receive: Duration, send: Duration) -> io::Result<()> {
        (**self).set_timeouts(receive, send)
    }

    fn close(&self) {
        (**self).close();
    }

    fn abort(&self) {
        (**self).abort();
    }

    fn stop_receiving(&self) {
        (**self).stop_receiving();
    }
}

/// Sends all of `bytes`.
pub(crate) fn send_all(transport: &impl Transport, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let sent = transport.send(&[IoSlice::new(bytes)], true)?;
        bytes = &bytes[sent..];
    }
    transport.flush(true)
}

/// A TCP or Unix stream socket.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

impl Socket {
    pub(crate) fn new(fd: impl Into<OwnedFd>) -> Socket {
        Socket(fd.into())
    }

    /// Sets TCP_NODELAY, so that a small reply is sent at once. Sets keepalive after `keepalive`
    /// without traffic, so that the server notices a lost peer.
    pub(crate) fn tune_tcp(&self, keepalive: Option<Duration>) -> io::Result<()> {
        sockopt::set_tcp_nodelay(&self.0, true)?;
        if let Some(idle) = keepalive {
            sockopt::set_socket_keepalive(&self.0, true)?;
            sockopt::set_tcp_keepidle(&self.0, idle.max(Duration::from_secs(1)))?;
            sockopt::set_tcp_keepintvl(&self.0, Duration::from_secs(10))?;
            sockopt::set_tcp_keepcnt(&self.0, 6)?;
        }
        Ok(())
    }

    /// Gives a Unix socket room for a long reply. Otherwise the kernel wakes the client, and then
    /// this thread, several times for each. The kernel counts its own structures, too, so it
    /// doubles the size, and it may allow less. TCP adapts its buffers by itself.
    pub(crate) fn tune_unix(&self) -> io::Result<()> {
        Ok(sockopt::set_socket_send_buffer_size(&self.0, UNIX_SEND_BUFFER)?)
    }

    /// Returns the user of the process at the other end of a Unix socket.
    pub(crate) fn peer_user(&self) -> Option<u32> {
        sockopt::socket_peercred(&self.0).ok().map(|credentials| credentials.uid.as_raw())
    }

    /// Returns the address of the peer and the address of this end. Fails for a Unix socket.
    pub(crate) fn addresses(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        let none = || io::Error::other("a socket without an IP address");
        let tcp = |address: SocketAddrAny| SocketAddr::try_from(address).map_err(|_| none());
        let peer = rustix::net::getpeername(&self.0)?.ok_or_else(none)?;
        Ok((tcp(peer)?, tcp(rustix::net::getsockname(&self.0)?)?))
    }
}

impl Transport for Socket {
    fn receive(&self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match rustix::net::recv(&self.0, &mut *buf, RecvFlags::empty()) {
                Ok((_, n)) => return Ok(n),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn send(&self, bufs: &[IoSlice<'_>], wait: bool) -> io::Result<usize> {
        let mut flags = SendFlags::NOSIGNAL;
        if !wait {
            flags |= SendFlags::DONTWAIT;
        }
        loop {
            let sent = match bufs {
                [one] => rustix::net::send(&self.0, one, flags),
                _ => rustix::net::sendmsg(&self.0, bufs, &mut SendAncillaryBuffer::default(), flags),
            };
            return match sent {
                Ok(0) => Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => Ok(n),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) if wait => Err(io::ErrorKind::TimedOut.into()),
                Err(e) => Err(e.into()),
            };
        }
    }

    fn set_timeouts(&self, receive: Duration, send: Duration) -> io::Result<()> {
        let at_least = |d: Duration| Some(d.max(Duration::from_millis(1)));
        sockopt::set_socket_timeout(&self.0, Timeout::Recv, at_least(receive))?;
        sockopt::set_socket_timeout(&self.0, Timeout::Send, at_least(send))?;
        Ok(())
    }

    fn close(&self) {
        let _ = rustix::net::shutdown(&self.0, Shutdown::Write);
    }

    fn abort(&self) {
        let _ = rustix::net::shutdown(&self.0, Shutdown::Both);
    }

    fn stop_receiving(&self) {
        let _ = rustix::net::shutdown(&self.0, Shutdown::Read);
    }
}
