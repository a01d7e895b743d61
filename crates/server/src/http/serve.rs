//! Serves the listeners of the admin API. The number of connections is limited, each client has
//! limited time, and requests in flight end before the server stops.

use super::caller::Peer;
use super::connection::Attendance;
use super::guests::{Guest, Guests};
use super::probe::Probe;
use super::routes;
use crate::app::App;
use crate::certificate::Certificates;
use crate::host_paths::Door;
use crate::listen::Listener;
use hindcast_api::Listeners;
use hindcast_target::Repeated;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// First pause after a failed accept. Accepts fail while the process has no free file descriptor,
/// and the pause keeps the loop from spinning. Each further failure doubles the pause, up to
/// [`LONGEST_PAUSE`].
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Maximum number of connections that receive a refusal at one time. The server closes further ones
/// without a response.
const REFUSALS: usize = 16;
/// Time that a refused client has to read the response and to close the connection.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);
const REFUSAL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
connection: close\r\ncontent-length: 93\r\n\r\n\
{\"kind\":\"busy\",\"message\":\"connect to the admin API: too many are connected; try again later\"}";

/// The running admin API.
pub(crate) struct ApiServer {
    stop: watch::Sender<bool>,
    loops: JoinSet<()>,
}

/// Starts to serve all listeners, with at most `connections` connections. Listeners for TCP belong
/// to the runtime `web`, which serves them. The current runtime serves the Unix sockets.
pub(crate) fn serve(
    app: &Arc<App>,
    listeners: Vec<Listener>,
    connections: usize,
    web: &Handle,
) -> io::Result<ApiServer> {
    let (stop, stopped) = watch::channel(false);
    let guests = Guests::new(connections);
    let refusals = Arc::new(Semaphore::new(REFUSALS));
    let (probe, room) = (Probe::start(app)?, Arc::default());
    let mut loops = JoinSet::new();
    for listener in listeners {
        let (door, certificates) = match &listener {
            Listener::Unix(..) => (Door::Local, None),
            Listener::Tcp(socket) => {
                let tls = app.web.config.speaks_tls(socket.local_addr()?.ip());
                (Door::Network, app.web.certificates.clone().filter(|_| tls))
            }
        };
        let router = routes::router(app.clone(), &probe, &room, door);
        let reception = Reception {
            app: app.clone(),
            service: TowerToHyperService::new(router),
            certificates,
            guests: guests.clone(),
            refusals: refusals.clone(),
            stopped: stopped.clone(),
        };
        let accepting = accept(listener, reception);
        match door {
            Door::Local => loops.spawn(accepting),
            Door::Network => loops.spawn_on(accepting, web),
        };
    }
    Ok(ApiServer { stop, loops })
}

/// Returns the addresses of `listeners` and of the targets, and the URLs of the admin API, for the
/// status.
pub(crate) fn addresses(
    listeners: &[Listener],
    urls: Vec<String>,
    nbd: Vec<String>,
    iscsi: Vec<String>,
) -> Listeners {
    Listeners { api: listeners.iter().map(Listener::address).collect(), urls, nbd, iscsi }
}

impl ApiServer {
    /// Stops accepting connections. Requests in flight have until `deadline` to end. Then the
    /// server closes the remaining connections.
    pub(crate) async fn stop(mut self, deadline: Duration) {
        let _ = self.stop.send(true);
        let all = async { while self.loops.join_next().await.is_some() {} };
        if tokio::time::timeout(deadline, all).await.is_err() {
            tracing::warn!("admin requests were still running at the deadline");
        }
    }
}

/// What the server needs to serve the connections of one listener.
struct Reception {
    app: Arc<App>,
    service: TowerToHyperService<axum::Router>,
    /// The certificate, if the listener speaks TLS.
    certificates: Option<Arc<Certificates>>,
    guests: Arc<Guests>,
    refusals: Arc<Semaphore>,
    stopped: watch::Receiver<bool>,
}

/// Accepts connections until the server stops. Then it waits for the connections to end.
async fn accept(listener: Listener, reception: Reception) {
    static FAILURES: Repeated = Repeated::new();
    let mut stopped = reception.stopped.clone();
    let mut pause = ACCEPT_PAUSE;
    let mut served = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = next(&listener) => accepted,
            Some(_) = served.join_next() => continue,
            _ = stopped.changed() => break,
        };
        match accepted {
            Ok(Connection::Tcp(stream, address)) => reception.network(stream, address, &mut served).await,
            Ok(Connection::Unix(stream)) => reception.local(stream, &mut served).await,
            Err(error) => {
                if let Some(turn) = FAILURES.turn() {
                    tracing::warn!(%error, suppressed = turn.suppressed(), "accept an admin connection");
                }
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    _ = stopped.changed() => break,
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
                continue;
            }
        }
        pause = ACCEPT_PAUSE;
    }
    drop(listener);
    while served.join_next().await.is_some() {}
}

enum Connection {
    Tcp(TcpStream, IpAddr),
    Unix(UnixStream),
}

async fn next(listener: &Listener) -> io::Result<Connection> {
    match listener {
        Listener::Tcp(listener) => {
            listener.accept().await.map(|(stream, peer)| Connection::Tcp(stream, peer.ip()))
        }
        Listener::Unix(listener, _) => listener.accept().await.map(|(stream, _)| Connection::Unix(stream)),
    }
}

impl Reception {
    async fn network(&self, stream: TcpStream, address: IpAddr, served: &mut JoinSet<()>) {
        match self.guests.enter(Some(address)).await {
            Some(guest) => {
                let certificates = self.certificates.clone();
                served.spawn(self.attendance(guest, Peer(None)).network(stream, certificates));
            }
            // A client that expects TLS would not understand the response.
            None if self.certificates.is_some() => tell_of_refusal(Some(address)),
            None => self.refuse(stream, Some(address)),
        }
    }

    async fn local(&self, stream: UnixStream, served: &mut JoinSet<()>) {
        let user = stream.peer_cred().map(|credentials| credentials.uid());
        let caller = user.ok().and_then(|uid| self.app.callers.local(uid));
        match self.guests.enter(None).await {
            Some(guest) => {
                served.spawn(self.attendance(guest, Peer(caller.map(Arc::new))).local(stream));
            }
            None => self.refuse(stream, None),
        }
    }

    fn attendance(&self, guest: Arc<Guest>, peer: Peer) -> Attendance {
        Attendance { service: self.service.clone(), guest, peer, stopped: self.stopped.clone() }
    }

    /// Refuses a connection: sends a response with status 503, and closes it.
    fn refuse<S>(&self, mut stream: S, address: Option<IpAddr>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        tell_of_refusal(address);
        let Ok(permit) = self.refusals.clone().try_acquire_owned() else { return };
        tokio::spawn(async move {
            let tell = async {
                stream.write_all(REFUSAL).await?;
                stream.shutdown().await?;
                // What is closed with something unread takes the answer with it.
                let mut rest = [0; 1024];
                while stream.read(&mut rest).await? > 0 {}
                io::Result::Ok(())
            };
            // A client that does not listen is not waited for.
            let _ = tokio::time::timeout(REFUSAL_TIMEOUT, tell).await;
            drop(permit);
        });
    }
}

fn tell_of_refusal(address: Option<IpAddr>) {
    static REFUSED: Repeated = Repeated::new();
    if let Some(turn) = REFUSED.turn() {
        let peer = address.map_or_else(|| "unix".to_owned(), |address| address.to_string());
        tracing::warn!(peer, suppressed = turn.suppressed(), "too many admin connections");
    }
}

#[cfg(test)]
mod tests {
    use super::REFUSAL;

    #[test]
    fn a_refusal_is_a_whole_answer() {
        let text = std::str::from_utf8(REFUSAL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head}");
        let body: hindcast_api::ErrorBody = serde_json::from_str(body).unwrap();
        assert_eq!(body.kind, hindcast_api::ErrorKind::Busy);
    }
}
