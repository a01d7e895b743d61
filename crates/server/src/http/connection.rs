//! One connection of the admin API: the TLS handshake, HTTP/1.1 or HTTP/2, and its time limits.

use super::caller::{Arrival, Peer};
use super::guests::Guest;
use super::pacing::Pacing;
use super::patience::{TimedBody, TimedIo};
use crate::certificate::{Certificates, HTTP2};
use axum::body::Body;
use hindcast_target::Repeated;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::CONNECTION;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsAcceptor;

/// Time that a client over a Unix socket has to send the head of a request, and between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that a client over TCP has to send the head of a request, and between requests. It is
/// shorter than [`HEAD_TIMEOUT`], because every host on the network can connect.
const NETWORK_HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// Time that a client has for the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without a new request after which a connection of HTTP/2 accepts no more requests. Those
/// that run continue.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of requests that a connection of HTTP/2 has under way.
const MAX_STREAMS: u32 = 32;
/// Maximum size of the headers of a request over HTTP/2, in bytes.
const MAX_HEADERS: u32 = 32 << 10;
/// Maximum number of bytes of a response over HTTP/2 that wait for the connection.
const MAX_UNSENT: usize = 64 << 10;
/// Interval between pings to a client over HTTP/2, and the time that it has to answer one.
const PING: Duration = Duration::from_secs(20);
/// First byte of a TLS handshake.
const HANDSHAKE: u8 = 0x16;
/// Answer to plain HTTP where the server expects TLS.
const USE_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n\
connection: close\r\ncontent-length: 47\r\n\r\nThis port speaks TLS. Use https:// in the URL.\n";

/// A connection's parts beside its stream.
pub(super) struct Attendance {
    pub(super) service: TowerToHyperService<axum::Router>,
    pub(super) guest: Arc<Guest>,
    pub(super) peer: Peer,
    /// Changes when the server stops.
    pub(super) stopped: watch::Receiver<bool>,
}

impl Attendance {
    /// Serves a connection over a Unix socket.
    pub(super) async fn local(self, stream: tokio::net::UnixStream) {
        let arrival = Arrival { local: None, tls: false };
        self.serve(stream, arrival, false, HEAD_TIMEOUT).await;
    }

    /// Serves a connection over TCP, with TLS if there are `certificates`.
    pub(super) async fn network(self, stream: TcpStream, certificates: Option<Arc<Certificates>>) {
        let local = stream.local_addr().ok();
        let Some(certificates) = certificates else {
            return self.serve(stream, Arrival { local, tls: false }, false, NETWORK_HEAD_TIMEOUT).await;
        };
        let handshake = handshake(stream, &certificates);
        let stream = tokio::select! {
            done = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake) => match done {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return tell_of_handshake(&self.guest, &error),
                Err(_) => return tell_of_handshake(&self.guest, &io::ErrorKind::TimedOut.into()),
            },
            () = self.guest.has_to_go() => return,
        };
        let http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
        self.serve(stream, Arrival { local, tls: true }, http2, NETWORK_HEAD_TIMEOUT).await;
    }

    async fn serve<S>(self, stream: S, arrival: Arrival, http2: bool, head_timeout: Duration)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Attendance { service, guest, peer, mut stopped } = self;
        let requests = Arc::new(AtomicU64::new(0));
        let (known, counted) = (guest.clone(), requests.clone());
        let pacing = Pacing::default();
        // The clients of the Unix socket speak HTTP/1.1, and have a share of the connections.
        let paced = arrival.local.is_some().then(|| pacing.clone());
        let refused = Arc::new(Notify::new());
        let refusing = refused.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            counted.fetch_add(1, Ordering::Relaxed);
            let mut request = request.map(|body| Body::new(TimedBody::new(body)));
            let extensions = request.extensions_mut();
            extensions.insert(known.clone());
            extensions.insert(peer.clone());
            extensions.insert(arrival);
            let (answer, paced) = (service.call(request), paced.clone());
            let refusing = refusing.clone();
            async move {
                let mut answer = answer.await?;
                // HTTP/2 has no such header.
                if http2 && answer.headers_mut().remove(CONNECTION).is_some_and(|value| value == "close") {
                    refusing.notify_one();
                }
                Ok::<_, Infallible>(match paced {
                    Some(pacing) => answer.map(|body| pacing.paced(body)),
                    None => answer,
                })
            }
        });
        let builder = protocol(http2, head_timeout);
        let stream = if http2 { TimedIo::http2(stream) } else { TimedIo::new(stream) };
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let mut idle = pin!(idle(&requests, http2));
        let mut stalled = pin!(pacing.stalled());
        let mut closing = *stopped.borrow();
        loop {
            if closing {
                connection.as_mut().graceful_shutdown();
            }
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "admin connection");
                    }
                    return;
                }
                _ = stopped.changed(), if !closing => closing = true,
                () = &mut idle, if !closing => closing = true,
                () = refused.notified(), if !closing => closing = true,
                // HTTP/1.1 has the time limit of its stream.
                () = &mut stalled, if http2 => {
                    tracing::debug!("an admin connection is closed, because its client does not read a response");
                    return;
                }
                () = guest.has_to_go() => {
                    tracing::debug!("an admin connection without a token is closed, because a limit is reached");
                    return;
                }
            }
        }
    }
}

/// Returns after [`IDLE_TIMEOUT`] without a new request on a connection of HTTP/2. HTTP/1.1 has the
/// time limit of its heads.
async fn idle(requests: &AtomicU64, http2: bool) {
    if !http2 {
        return std::future::pending::<()>().await;
    }
    let mut seen = None;
    while seen != Some(requests.load(Ordering::Relaxed)) {
        seen = Some(requests.load(Ordering::Relaxed));
        tokio::time::sleep(IDLE_TIMEOUT).await;
    }
}

fn protocol(http2: bool, head_timeout: Duration) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(head_timeout);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADERS)
        .max_send_buf_size(MAX_UNSENT)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    // The handshake has decided. So no connection waits without a time limit for its first bytes.
    if http2 { builder.http2_only() } else { builder.http1_only() }
}

/// Performs the TLS handshake. A client that speaks plain HTTP gets an answer that says so.
async fn handshake(
    mut stream: TcpStream,
    certificates: &Certificates,
) -> io::Result<tokio_rustls::server::TlsStream<TcpStream>> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE {
        stream.write_all(USE_TLS).await?;
        stream.shutdown().await?;
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the client does not speak TLS"));
    }
    TlsAcceptor::from(certificates.current().config.clone()).accept(stream).await
}

fn tell_of_handshake(guest: &Guest, error: &io::Error) {
    static FAILED: Repeated = Repeated::new();
    if let Some(turn) = FAILED.turn() {
        let peer = guest.address().map(|address| address.to_canonical().to_string());
        tracing::info!(peer, %error, suppressed = turn.suppressed(), "a TLS handshake of the admin API failed");
    }
}

#[cfg(test)]
mod tests {
    use super::super::guests::Guests;
    use super::*;
    use axum::{Extension, Router, routing::get};
    use hindcast_engine::disk::MemDir;
    use http_body_util::{BodyExt as _, Empty};
    use hyper::body::Bytes;
    use hyper::client::conn::http2;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsConnector;

    /// Serves one connection with TLS. Returns the client's end of it, and what stops the server.
    async fn connected(
        protocols: &[&[u8]],
    ) -> (tokio_rustls::client::TlsStream<TcpStream>, watch::Sender<bool>) {
        let certificates = Arc::new(Certificates::own(Arc::new(MemDir::new()), &[]).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let (served, mut config) = (certificates.clone(), certificates.current().client());
        tokio::spawn(async move {
            let (stream, peer) = listener.accept().await.unwrap();
            let guest = Guests::new(8).enter(Some(peer.ip())).await.unwrap();
            let shown = async |Extension(arrival): Extension<Arrival>| arrival.tls.to_string();
            let service = TowerToHyperService::new(Router::new().route("/", get(shown)));
            Attendance { service, guest, peer: Peer(None), stopped }.network(stream, Some(served)).await;
        });
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let stream = TcpStream::connect(address).await.unwrap();
        let name = "localhost".try_into().unwrap();
        (TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap(), stop)
    }

    #[tokio::test]
    async fn http2_is_served_until_the_server_stops() {
        let (stream, stop) = connected(&[HTTP2]).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(HTTP2));
        let (mut sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(connection);
        for _ in 0..2 {
            let request = Request::builder().uri("https://localhost/").body(Empty::<Bytes>::new()).unwrap();
            let response = sender.send_request(request).await.unwrap();
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "true");
        }
        stop.send(true).unwrap();
        connection.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn without_a_choice_the_protocol_is_http1() {
        let (mut stream, _stop) = connected(&[]).await;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut text = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut text).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("true"), "{text}");
    }

    /// Serves a connection of HTTP/2 in memory, with responses of 1 MiB at `/`, and one that goes
    /// on at `/idle`. The client grants 64 KiB for each response.
    async fn unread() -> (http2::SendRequest<Empty<Bytes>>, tokio::task::JoinHandle<()>, Arc<()>) {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let guest = Guests::new(8).enter(Some([10, 0, 0, 1].into())).await.unwrap();
        let (stop, stopped) = watch::channel(false);
        let memory = Arc::new(());
        let held = memory.clone();
        let long = move || {
            let held = held.clone();
            async move { Body::new(Body::from(vec![7; 1 << 20]).map_frame(move |f| (f, held.clone()).0)) }
        };
        let (silent, pieces) = tokio::sync::mpsc::channel(1);
        let pieces = Arc::new(parking_lot::Mutex::new(Some(pieces)));
        let idle = async move || Body::new(hindcast_api::ChannelBody(pieces.lock().take().unwrap()));
        let router = Router::new().route("/", get(long)).route("/idle", get(idle));
        let attendance =
            Attendance { service: TowerToHyperService::new(router), guest, peer: Peer(None), stopped };
        let local = Some("127.0.0.1:1".parse().unwrap());
        let served = tokio::spawn(async move {
            let _alive = (stop, silent);
            attendance.serve(theirs, Arrival { local, tls: true }, true, HEAD_TIMEOUT).await;
        });
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(64 << 10).initial_connection_window_size(16 << 20);
        let (sender, connection) = builder.handshake(TokioIo::new(ours)).await.unwrap();
        tokio::spawn(connection);
        (sender, served, memory)
    }

    async fn ask(sender: &mut http2::SendRequest<Empty<Bytes>>, path: &str) -> Incoming {
        let uri = format!("https://localhost{path}");
        let request = Request::builder().uri(uri).body(Empty::<Bytes>::new()).unwrap();
        sender.send_request(request).await.unwrap().into_body()
    }

    #[tokio::test(start_paused = true)]
    async fn responses_that_are_not_read_are_given_up_with_their_connection() {
        let (mut sender, served, memory) = unread().await;
        let begun = tokio::time::Instant::now();
        let mut unread = Vec::new();
        for _ in 0..8 {
            unread.push(ask(&mut sender, "/").await);
        }
        assert_eq!(Arc::strong_count(&memory), 2 + 8);
        tokio::time::timeout(Duration::from_secs(600), served).await.unwrap().unwrap();
        assert!((60..=70).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(Arc::strong_count(&memory), 1, "the memory of the responses is free");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_stays_and_so_does_a_response_without_news() {
        let (mut sender, served, _memory) = unread().await;
        let _idle = ask(&mut sender, "/idle").await;
        let mut slow = ask(&mut sender, "/").await;
        let begun = tokio::time::Instant::now();
        let mut read = 0;
        while let Some(frame) = slow.frame().await {
            read += frame.unwrap().into_data().unwrap().len();
            tokio::time::sleep(Duration::from_secs(20)).await;
        }
        assert_eq!(read, 1 << 20);
        assert!(begun.elapsed() > Duration::from_secs(600) && !served.is_finished());
    }

    #[test]
    fn the_hint_is_a_whole_answer() {
        let text = std::str::from_utf8(USE_TLS).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head}");
    }
}
