//! systemd's notification protocol (sd_notify(3)): datagrams of `KEY=VALUE` lines to
//! `$NOTIFY_SOCKET`.
//!
//! This module implements the protocol without a library, because the protocol is one `sendto` and
//! the standard library supports abstract socket names.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The connection to the service manager, if there is one.
#[derive(Debug)]
pub(crate) struct Notifier {
    target: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// Makes a notifier from the environment variables.
    pub(crate) fn from_env() -> Self {
        let watchdog_is_ours = match std::env::var("WATCHDOG_PID") {
            Ok(pid) => pid == std::process::id().to_string(),
            Err(_) => true,
        };
        let watchdog = std::env::var("WATCHDOG_USEC")
            .ok()
            .filter(|_| watchdog_is_ours)
            .and_then(|usec| usec.parse().ok())
            .filter(|usec| *usec > 0)
            .map(Duration::from_micros);
        Self::new(std::env::var_os("NOTIFY_SOCKET"), watchdog)
    }

    fn new(socket: Option<OsString>, watchdog: Option<Duration>) -> Self {
        let target = socket.and_then(|name| {
            let address = match name.as_bytes() {
                [b'@', abstract_name @ ..] => {
                    use std::os::linux::net::SocketAddrExt;
                    SocketAddr::from_abstract_name(abstract_name)
                }
                _ => SocketAddr::from_pathname(&name),
            };
            Some((UnixDatagram::unbound().ok()?, address.ok()?))
        });
        Notifier { target, watchdog }
    }

    /// Returns the interval at which the watchdog needs a sign of life, a third of its limit.
    /// `None`: there is no watchdog.
    pub(crate) fn watchdog_interval(&self) -> Option<Duration> {
        self.target.as_ref().and(self.watchdog).map(|limit| limit / 3)
    }

    /// Reports that the server is ready. `systemctl status` shows `status`.
    pub(crate) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// Reports a new status, which `systemctl status` shows.
    pub(crate) fn status(&self, status: &str) {
        self.send(&format!("STATUS={status}"));
    }

    /// Reports that the server is alive.
    pub(crate) fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// Reports that the server is stopping.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping");
    }

    fn send(&self, message: &str) {
        if let Some((socket, address)) = &self.target
            && let Err(error) = socket.send_to_addr(message.as_bytes(), address)
        {
            tracing::debug!(%error, "notify the service manager");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(socket: &UnixDatagram) -> String {
        let mut buf = [0; 256];
        let len = socket.recv(&mut buf).unwrap();
        String::from_utf8(buf[..len].to_vec()).unwrap()
    }

    #[test]
    fn a_path_and_an_abstract_name_are_reached() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::new(Some(path.into()), Some(Duration::from_secs(30)));
        notifier.ready("2 volumes");
        assert_eq!(receive(&by_path), "READY=1\nSTATUS=2 volumes");
        assert_eq!(notifier.watchdog_interval(), Some(Duration::from_secs(10)));

        use std::os::linux::net::SocketAddrExt;
        let name = format!("hindcast-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&address).unwrap();
        Notifier::new(Some(format!("@{name}").into()), None).alive();
        assert_eq!(receive(&by_name), "WATCHDOG=1");
    }

    #[test]
    fn without_a_manager_nothing_happens() {
        let notifier = Notifier::new(None, Some(Duration::from_secs(30)));
        notifier.ready("x");
        assert_eq!(notifier.watchdog_interval(), None);
    }
}
