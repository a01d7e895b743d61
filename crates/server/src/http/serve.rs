//! Serves connections of the admin API. The number of connections is limited, each client has
//! limited time, and requests in flight end before the server stops.

use super::guard::Peer;
use super::guests::{Guest, Guests};
use super::patience::{TimedBody, TimedIo};
use super::probe::Probe;
use super::routes;
use crate::app::App;
use crate::host_paths::Door;
use crate::listen::Listener;
use axum::body::Body;
use hindcast_api::Listeners;
use hindcast_target::Repeated;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// Time that a client has to send the head of a request, and between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that a client over TCP has to send the head of a request, and between requests. It is
/// shorter than [`HEAD_TIMEOUT`], because every host on the network can connect.
const NETWORK_HEAD_TIMEOUT: Duration = Duration::from_secs(15);
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

/// Starts to serve all listeners, with at most `connections` connections.
pub(crate) fn serve(app: &Arc<App>, listeners: Vec<Listener>, connections: usize) -> io::Result<ApiServer> {
    let (stop, stopped) = watch::channel(false);
    let guests = Guests::new(connections);
    let refusals = Arc::new(Semaphore::new(REFUSALS));
    let probe = Probe::start(app)?;
    let mut loops = JoinSet::new();
    for listener in listeners {
        let door = match &listener {
            Listener::Tcp(_) => Door::Network,
            Listener::Unix(..) => Door::Local,
        };
        let router = routes::router(app.clone(), &probe, door);
        let reception = Reception {
            app: app.clone(),
            service: TowerToHyperService::new(router),
            door,
            guests: guests.clone(),
            refusals: refusals.clone(),
            graceful: GracefulShutdown::new(),
        };
        loops.spawn(accept(listener, reception, stopped.clone()));
    }
    Ok(ApiServer { stop, loops })
}

/// Returns the addresses of `listeners` and of the targets, for the status.
pub(crate) fn addresses(listeners: &[Listener], nbd: Vec<String>, iscsi: Vec<String>) -> Listeners {
    Listeners { api: listeners.iter().map(Listener::address).collect(), nbd, iscsi }
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
    door: Door,
    guests: Arc<Guests>,
    refusals: Arc<Semaphore>,
    graceful: GracefulShutdown,
}

async fn accept(listener: Listener, reception: Reception, mut stopped: watch::Receiver<bool>) {
    static FAILURES: Repeated = Repeated::new();
    let mut pause = ACCEPT_PAUSE;
    loop {
        let accepted = tokio::select! {
            accepted = next(&listener) => accepted,
            _ = stopped.changed() => break,
        };
        match accepted {
            Ok(Connection::Tcp(stream, address)) => {
                reception.receive(stream, Some(address), Peer(None)).await;
            }
            Ok(Connection::Unix(stream)) => {
                let peer = reception.peer(&stream);
                reception.receive(stream, None, peer).await;
            }
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
    reception.graceful.shutdown().await;
}

enum Connection {
    Tcp(tokio::net::TcpStream, IpAddr),
    Unix(tokio::net::UnixStream),
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
    /// Returns the caller at the other end of a Unix socket.
    fn peer(&self, stream: &tokio::net::UnixStream) -> Peer {
        let user = stream.peer_cred().map(|credentials| credentials.uid());
        let caller = user.ok().and_then(|uid| self.app.callers.socket.caller(uid));
        Peer(caller.map(Arc::new))
    }

    async fn receive<S>(&self, stream: S, address: Option<IpAddr>, peer: Peer)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        match self.guests.enter(address).await {
            Some(guest) => self.spawn(stream, guest, peer),
            None => self.refuse(stream, address),
        }
    }

    fn spawn<S>(&self, stream: S, guest: Arc<Guest>, peer: Peer)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let service = self.service.clone();
        let known = guest.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let mut request = request.map(|body| Body::new(TimedBody::new(body)));
            request.extensions_mut().insert(known.clone());
            request.extensions_mut().insert(peer.clone());
            service.call(request)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(match self.door {
                Door::Local => HEAD_TIMEOUT,
                Door::Network => NETWORK_HEAD_TIMEOUT,
            })
            .serve_connection(TokioIo::new(TimedIo::new(stream)), service);
        let watched = self.graceful.watch(connection);
        tokio::spawn(async move {
            tokio::select! {
                ended = watched => if let Err(error) = ended {
                    tracing::debug!(%error, "admin connection");
                },
                () = guest.has_to_go() => tracing::debug!("an admin connection without a token is closed, because a limit is reached"),
            }
        });
    }

    /// Refuses a connection: sends a response with status 503, and closes it.
    fn refuse<S>(&self, mut stream: S, address: Option<IpAddr>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        static REFUSED: Repeated = Repeated::new();
        if let Some(turn) = REFUSED.turn() {
            let peer = address.map_or_else(|| "unix".to_owned(), |address| address.to_string());
            tracing::warn!(peer, suppressed = turn.suppressed(), "too many admin connections");
        }
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
