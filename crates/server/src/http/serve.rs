//! Serves connections of the admin API: bounded in number, patient for a bounded time, ended gracefully.

use super::{App, routes};
use crate::listen::Listener;
use hindcast_api::Listeners;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

/// A client gets this long to send the head of a request, and as long between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// After a failed accept (out of file descriptors), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The running API.
pub(crate) struct ApiServer {
    stop: watch::Sender<bool>,
    loops: JoinSet<()>,
}

/// Starts serving on all listeners, at most so many connections. TCP ones ask for `token`.
pub(crate) fn serve(
    app: &Arc<App>,
    listeners: Vec<Listener>,
    token: Option<&str>,
    connections: usize,
) -> ApiServer {
    let (stop, stopped) = watch::channel(false);
    let permits = Arc::new(Semaphore::new(connections));
    let mut loops = JoinSet::new();
    for listener in listeners {
        // Configuration refuses TCP without a token; an impossible one here admits nobody rather than everybody.
        let token = match &listener {
            Listener::Tcp(_) => Some(token.unwrap_or("\0").to_owned()),
            Listener::Unix(..) => None,
        };
        let router = routes::router(app.clone(), token);
        loops.spawn(accept(listener, router, permits.clone(), stopped.clone()));
    }
    ApiServer { stop, loops }
}

/// The addresses of `listeners` and of the targets, for the status.
pub(crate) fn addresses(listeners: &[Listener], nbd: Vec<String>, iscsi: Vec<String>) -> Listeners {
    Listeners { api: listeners.iter().map(Listener::address).collect(), nbd, iscsi }
}

impl ApiServer {
    /// Stops accepting, lets requests in flight end until `deadline` has passed, and closes what is left.
    pub(crate) async fn stop(mut self, deadline: Duration) {
        let _ = self.stop.send(true);
        let all = async { while self.loops.join_next().await.is_some() {} };
        if tokio::time::timeout(deadline, all).await.is_err() {
            tracing::warn!("admin requests were still running at the deadline");
        }
    }
}

async fn accept(
    listener: Listener,
    router: axum::Router,
    permits: Arc<Semaphore>,
    mut stopped: watch::Receiver<bool>,
) {
    let graceful = GracefulShutdown::new();
    let mut failed = 0u64;
    loop {
        let permit = tokio::select! {
            permit = permits.clone().acquire_owned() => permit,
            _ = stopped.changed() => break,
        };
        let Ok(permit) = permit else { break };
        let accepted = tokio::select! {
            accepted = next(&listener) => accepted,
            _ = stopped.changed() => break,
        };
        match accepted {
            Ok(Connection::Tcp(stream)) => spawn(stream, &router, permit, &graceful),
            Ok(Connection::Unix(stream)) => spawn(stream, &router, permit, &graceful),
            Err(error) => {
                // Without descriptors it fails ten times a second.
                failed += 1;
                if failed.is_power_of_two() {
                    tracing::warn!(%error, failed, "accept an admin connection");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    graceful.shutdown().await;
}

enum Connection {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

async fn next(listener: &Listener) -> io::Result<Connection> {
    match listener {
        Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| Connection::Tcp(stream)),
        Listener::Unix(listener, _) => listener.accept().await.map(|(stream, _)| Connection::Unix(stream)),
    }
}

fn spawn<S>(stream: S, router: &axum::Router, permit: OwnedSemaphorePermit, graceful: &GracefulShutdown)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone()));
    let watched = graceful.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = watched.await {
            tracing::debug!(%error, "admin connection");
        }
        drop(permit);
    });
}
