//! A blocking client of the admin API, over a Unix socket, TCP or TLS.
//!
//! It opens one connection per request. The command line makes only a few requests before it ends,
//! and a fresh connection cannot be stale.

use crate::answered::Answered;
use crate::endpoint::{Endpoint, Stream};
use crate::percent::percent_encoded;
use crate::trust::Trust;
use crate::{
    API_V1, AddLun, AddPv, AddRule, ChannelBody, CreateTarget, CreateVolume, ErrorBody, ErrorKind, Health,
    PatchPool, PatchPv, PatchTarget, PatchVolume, Pool, Pv, SetChap, Status, Target, TargetDefaults, Volume,
};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that the server has to answer a request that changes nothing. Such a request takes memory
/// accesses and a few reads.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that the server has to answer a request that changes something. Such a request waits for
/// disks, and for hooks, which may take 300 seconds.
const ORDER_TIMEOUT: Duration = Duration::from_secs(330);
/// Time without progress after which a transfer fails.
const STALL_TIMEOUT: Duration = Duration::from_secs(330);
/// Interval between checks whether a transfer makes progress.
const LOOK: Duration = Duration::from_secs(1);
/// Largest response in bytes. It limits the memory that a wrong server can make the client use.
const MAX_ANSWER: usize = 256 << 20;

/// Why a request has no result.
#[derive(Debug)]
pub enum ClientError {
    /// No server answers at the endpoint.
    Unreachable(String),
    /// The server did not answer in time. It may still carry out the request.
    NoAnswer(String),
    /// The server refused the request.
    Api(ErrorBody),
    /// The response is not one of this API, or a local operation failed.
    Protocol(String),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::Unreachable(text) | ClientError::NoAnswer(text) | ClientError::Protocol(text) => {
                f.write_str(text)
            }
            ClientError::Api(body) => body.fmt(f),
        }
    }
}

impl std::error::Error for ClientError {}

type Result<T, E = ClientError> = std::result::Result<T, E>;

/// A blocking client of the admin API.
#[derive(Debug)]
pub struct Client {
    endpoint: Endpoint,
    token: Option<String>,
    /// How the certificate of the server is verified. `None`: it is not, so no connection uses TLS.
    trust: Option<Trust>,
    /// Time limit that replaces the default limits of all requests.
    patience: Option<Duration>,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    /// Makes a client of the server at `endpoint`, and sends nothing. The server needs `token` over
    /// TCP.
    pub fn new(endpoint: Endpoint, token: Option<String>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| ClientError::Protocol(format!("start the client: {e}")))?;
        Ok(Client { endpoint, token, trust: None, patience: None, runtime })
    }

    /// Sets the time to wait for each response, and in a transfer for progress. `None`: the default
    /// limits.
    pub fn with_patience(self, patience: Option<Duration>) -> Self {
        Client { patience, ..self }
    }

    /// Sets how the client verifies the certificate of the server. A client of an `https` endpoint
    /// needs it.
    pub fn with_trust(self, trust: Option<Trust>) -> Self {
        Client { trust, ..self }
    }

    /// Returns the state of the server.
    pub fn status(&self) -> Result<Status> {
        self.get("/status")
    }

    /// Returns the health of the pool.
    pub fn health(&self) -> Result<Health> {
        self.get("/health")
    }

    /// Returns the state of the pool.
    pub fn pool(&self) -> Result<Pool> {
        self.get("/pool")
    }

    /// Changes the pool.
    pub fn patch_pool(&self, patch: &PatchPool) -> Result<Pool> {
        self.send(Method::PATCH, "/pool", patch)
    }

    /// Returns all physical volumes.
    pub fn pvs(&self) -> Result<Vec<Pv>> {
        self.get("/pool/pvs")
    }

    /// Adds a physical volume to the pool.
    pub fn add_pv(&self, pv: &AddPv) -> Result<Pv> {
        self.send(Method::POST, "/pool/pvs", pv)
    }

    /// Starts or stops draining a physical volume. `pv` is its number, UUID or path.
    pub fn patch_pv(&self, pv: &str, patch: &PatchPv) -> Result<Pv> {
        self.send(Method::PATCH, &format!("/pool/pvs/{}", segment(pv)), patch)
    }

    /// Removes an empty physical volume from the pool. `pv` is its number, UUID or path.
    pub fn remove_pv(&self, pv: &str) -> Result<()> {
        self.delete(&format!("/pool/pvs/{}", segment(pv)))
    }

    /// Returns all volumes, sorted by name.
    pub fn volumes(&self) -> Result<Vec<Volume>> {
        self.get("/volumes")
    }

    /// Returns one volume.
    pub fn volume(&self, name: &str) -> Result<Volume> {
        self.get(&format!("/volumes/{}", segment(name)))
    }

    /// Creates a volume.
    pub fn create_volume(&self, new: &CreateVolume) -> Result<Volume> {
        self.send(Method::POST, "/volumes", new)
    }

    /// Changes a volume.
    pub fn patch_volume(&self, name: &str, patch: &PatchVolume) -> Result<Volume> {
        self.send(Method::PATCH, &format!("/volumes/{}", segment(name)), patch)
    }

    /// Returns all iSCSI targets, sorted by name.
    pub fn targets(&self) -> Result<Vec<Target>> {
        self.get("/targets")
    }

    /// Returns one iSCSI target. `name` is its iSCSI name, its short name, or the name of its
    /// volume.
    pub fn target(&self, name: &str) -> Result<Target> {
        self.get(&format!("/targets/{}", segment(name)))
    }

    /// Creates an iSCSI target.
    pub fn create_target(&self, new: &CreateTarget) -> Result<Target> {
        self.send(Method::POST, "/targets", new)
    }

    /// Changes an iSCSI target.
    pub fn patch_target(&self, name: &str, patch: &PatchTarget) -> Result<Target> {
        self.send(Method::PATCH, &format!("/targets/{}", segment(name)), patch)
    }

    /// Deletes an iSCSI target. With `force` it also deletes a target that initiators use.
    pub fn delete_target(&self, name: &str, force: bool) -> Result<()> {
        let query = if force { "?force=true" } else { "" };
        self.delete(&format!("/targets/{}{query}", segment(name)))
    }

    /// Adds a logical unit to a target.
    pub fn add_lun(&self, name: &str, new: &AddLun) -> Result<Target> {
        self.send(Method::POST, &format!("/targets/{}/luns", segment(name)), new)
    }

    /// Removes a logical unit from a target. With `force` it does so even while initiators use the
    /// target.
    pub fn remove_lun(&self, name: &str, lun: u16, force: bool) -> Result<()> {
        let query = if force { "?force=true" } else { "" };
        self.delete(&format!("/targets/{}/luns/{lun}{query}", segment(name)))
    }

    /// Adds an access rule to a target, or with `None` to the defaults for all targets.
    pub fn add_rule(&self, name: Option<&str>, rule: &AddRule) -> Result<()> {
        self.send::<serde::de::IgnoredAny>(Method::POST, &format!("{}/rules", scope(name)), rule).map(|_| ())
    }

    /// Removes an access rule by its number, from 1, from a target, or with `None` from the
    /// defaults for all targets.
    pub fn remove_rule(&self, name: Option<&str>, number: usize) -> Result<()> {
        self.delete(&format!("{}/rules/{number}", scope(name)))
    }

    /// Adds or replaces a CHAP account of a target. With `None` the account applies to all targets
    /// that have no account of their own.
    pub fn set_chap(&self, name: Option<&str>, chap: &SetChap) -> Result<()> {
        self.send::<serde::de::IgnoredAny>(Method::PUT, &format!("{}/chap", scope(name)), chap).map(|_| ())
    }

    /// Removes all CHAP accounts of a target, or with `None` of the defaults for all targets.
    pub fn remove_chap(&self, name: Option<&str>) -> Result<()> {
        self.delete(&format!("{}/chap", scope(name)))
    }

    /// Removes one of several CHAP accounts of a target, or with `None` of the defaults for all
    /// targets.
    pub fn remove_account(&self, name: Option<&str>, user: &str) -> Result<()> {
        self.delete(&format!("{}/chap/{}", scope(name), segment(user)))
    }

    /// Removes all reservations of one logical unit of a target, or with `None` of all its logical
    /// units.
    pub fn clear_reservations(&self, name: &str, lun: Option<u16>) -> Result<()> {
        let query = lun.map_or_else(String::new, |lun| format!("?lun={lun}"));
        self.delete(&format!("/targets/{}/reservations{query}", segment(name)))
    }

    /// Returns the settings that apply to all targets.
    pub fn target_defaults(&self) -> Result<TargetDefaults> {
        self.get("/target-defaults")
    }

    /// Returns the body of the response to a GET request of `path`, which is relative to `/api/v1`.
    /// The body is not decoded, so that a caller can measure the server alone.
    pub fn raw(&self, path: &str) -> Result<Bytes> {
        self.request(Method::GET, path, Bytes::new())
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.get_by(Method::GET, path)
    }

    /// Sends a request without a body, and reads the response.
    pub(crate) fn get_by<T: DeserializeOwned>(&self, method: Method, path: &str) -> Result<T> {
        parse(&self.request(method, path, Bytes::new())?)
    }

    pub(crate) fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T> {
        let body =
            serde_json::to_vec(body).map_err(|e| ClientError::Protocol(format!("write request: {e}")))?;
        parse(&self.request(method, path, body.into())?)
    }

    /// Sends a request whose response has no body.
    pub(crate) fn order(&self, method: Method, path: &str, body: &impl Serialize) -> Result<()> {
        let body =
            serde_json::to_vec(body).map_err(|e| ClientError::Protocol(format!("write request: {e}")))?;
        self.request(method, path, body.into()).map(|_| ())
    }

    pub(crate) fn delete(&self, path: &str) -> Result<()> {
        self.request(Method::DELETE, path, Bytes::new()).map(|_| ())
    }

    /// Writes a response of any length to `out`, and returns its length in bytes.
    pub(crate) fn download(&self, path: &str, out: &mut dyn Write) -> Result<u64> {
        self.runtime.block_on(async {
            let begun = self.begin(Method::GET, path, Full::default());
            let response = self.in_time(ORDER_TIMEOUT, begun).await?;
            let (status, mut body) = (response.status(), response.into_body());
            if !status.is_success() {
                let body = self.in_time(QUESTION_TIMEOUT, self.whole(body)).await?;
                return Err(refusal(status, &body));
            }
            let mut written = 0;
            let broke_off = |written: u64, e: &dyn fmt::Display| {
                let text = format!("receive the stream: it was interrupted after {written} bytes: {e}");
                ClientError::Protocol(text)
            };
            let stall = self.patience.unwrap_or(STALL_TIMEOUT);
            loop {
                let frame = tokio::time::timeout(stall, body.frame()).await;
                let why = format_args!("no bytes arrived for {} s", stall.as_secs());
                let Some(frame) = frame.map_err(|_| broke_off(written, &why))? else { break };
                if let Ok(data) = frame.map_err(|e| broke_off(written, &e))?.into_data() {
                    let write = out.write_all(&data);
                    write.map_err(|e| ClientError::Protocol(format!("write the stream: {e}")))?;
                    written += data.len() as u64;
                }
            }
            out.flush().map_err(|e| ClientError::Protocol(format!("write the stream: {e}")))?;
            Ok(written)
        })
    }

    /// Sends a body of any length. The request fails if the transfer makes no progress for the time
    /// limit.
    pub(crate) fn upload<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: ChannelBody,
    ) -> Result<T> {
        self.runtime.block_on(async {
            let moves = Arc::new(Moves::default());
            let body = Watched { body, moves: moves.clone() };
            let exchange = async { self.answer(self.begin(method, path, body).await?).await };
            let stall = self.patience.unwrap_or(STALL_TIMEOUT);
            tokio::select! {
                answer = exchange => parse(&answer?),
                () = moves.stalled(stall) => {
                    Err(self.no_answer(format_args!("did not read the stream for {} s", stall.as_secs())))
                }
            }
        })
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes> {
        let limit = if method == Method::GET { QUESTION_TIMEOUT } else { ORDER_TIMEOUT };
        self.runtime.block_on(async {
            let exchange = async { self.answer(self.begin(method, path, Full::new(body)).await?).await };
            self.in_time(limit, exchange).await
        })
    }

    async fn in_time<T>(&self, limit: Duration, exchange: impl Future<Output = Result<T>>) -> Result<T> {
        let limit = self.patience.unwrap_or(limit);
        let late = |_| self.no_answer(format_args!("did not answer within {} s", limit.as_secs()));
        tokio::time::timeout(limit, exchange).await.map_err(late)?
    }

    fn no_answer(&self, what: fmt::Arguments<'_>) -> ClientError {
        ClientError::NoAnswer(format!("the server at {} {what}", self.endpoint))
    }

    async fn whole(&self, body: Incoming) -> Result<Bytes> {
        let body = Limited::new(body, MAX_ANSWER).collect().await;
        Ok(body.map_err(|e| self.unreachable(&e))?.to_bytes())
    }

    fn unreachable(&self, why: &dyn fmt::Display) -> ClientError {
        ClientError::Unreachable(format!("reach the server at {}: {why}", self.endpoint))
    }

    /// Returns the whole response body, if the status is one of success.
    async fn answer(&self, response: Response<Incoming>) -> Result<Bytes> {
        let status = response.status();
        let body = self.whole(response.into_body()).await?;
        if status.is_success() { Ok(body) } else { Err(refusal(status, &body)) }
    }

    /// Connects, sends a request, and returns when the head of the response has arrived.
    async fn begin<B>(&self, method: Method, path: &str, body: B) -> Result<Response<Incoming>>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let connect = self.endpoint.connect(self.trust.as_ref());
        let connected = tokio::time::timeout(self.patience.unwrap_or(CONNECT_TIMEOUT), connect).await;
        let late = |_| self.no_answer(format_args!("did not accept the connection"));
        let stream = connected.map_err(late)?.map_err(|e| self.unreachable(&e))?;
        self.exchange(stream, method, path, body).await.map_err(|e| self.unreachable(&e))
    }

    async fn exchange<B>(
        &self,
        stream: Pin<Box<dyn Stream>>,
        method: Method,
        path: &str,
        body: B,
    ) -> Result<Response<Incoming>, Box<dyn std::error::Error + Send + Sync>>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let stream = TokioIo::new(Answered::new(stream));
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
        // Runs whenever this thread waits below, and ends with the connection; its error reaches
        // `sender` too.
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{API_V1}{path}"))
            .header(header::HOST, self.endpoint.host())
            .header(header::USER_AGENT, concat!("hindcast/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        match body.size_hint().exact() {
            Some(0) => {}
            Some(_) => request = request.header(header::CONTENT_TYPE, "application/json"),
            None => request = request.header(header::CONTENT_TYPE, "application/octet-stream"),
        }
        Ok(sender.send_request(request.body(Box::pin(body))?).await?)
    }
}

/// Progress of a body that is being sent.
#[derive(Default)]
struct Moves {
    pieces: AtomicU64,
    /// Whether the client waits for the next piece. Then the client does not wait for the server.
    starving: AtomicBool,
}

impl Moves {
    /// Returns when the server has neither taken a piece nor answered for `limit`.
    async fn stalled(&self, limit: Duration) {
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            tokio::time::sleep(LOOK.min(limit)).await;
            let pieces = self.pieces.load(Ordering::Relaxed);
            if pieces != seen || self.starving.load(Ordering::Relaxed) {
                (seen, since) = (pieces, Instant::now());
            } else if since.elapsed() >= limit {
                return;
            }
        }
    }
}

/// A body whose progress is recorded in `moves`.
struct Watched {
    body: ChannelBody,
    moves: Arc<Moves>,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.moves.starving.store(polled.is_pending(), Ordering::Relaxed);
        self.moves.pieces.fetch_add(1, Ordering::Relaxed);
        polled
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|e| ClientError::Protocol(format!("read the server's answer: {e}")))
}

fn refusal(status: StatusCode, body: &[u8]) -> ClientError {
    match serde_json::from_slice::<ErrorBody>(body) {
        Ok(body) => ClientError::Api(body),
        Err(_) if status == StatusCode::UNAUTHORIZED => ClientError::Api(ErrorBody {
            kind: ErrorKind::Unauthorized,
            message: "the server requires a token".into(),
        }),
        Err(_) => ClientError::Protocol(format!("the server answered {status} without a reason")),
    }
}

/// Returns the route of a target, or of the defaults for all targets.
fn scope(target: Option<&str>) -> String {
    target.map_or_else(|| "/target-defaults".into(), |name| format!("/targets/{}", segment(name)))
}

/// Returns `text` as one path segment.
pub(crate) fn segment(text: &str) -> String {
    percent_encoded(text, b"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn names_cannot_leave_their_segment() {
        assert_eq!(segment("/dev/sd b?x=1"), "%2Fdev%2Fsd%20b%3Fx%3D1");
    }

    #[test]
    fn no_server_is_unreachable() {
        let client = Client::new(Endpoint::Unix("/nonexistent/hindcast.sock".into()), None).unwrap();
        assert!(matches!(client.status(), Err(ClientError::Unreachable(_))));
    }

    /// Accepts one connection, sends `answer` whatever the request is, and returns the request.
    fn one_answer(answer: &'static str) -> (Endpoint, std::thread::JoinHandle<String>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Endpoint::Tcp(listener.local_addr().unwrap().to_string());
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; 4096];
            let len = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(request[..len].to_vec()).unwrap()
        });
        (endpoint, thread)
    }

    #[test]
    fn the_token_is_sent_and_refusals_are_typed() {
        let (endpoint, server) = one_answer(
            "HTTP/1.1 409 Conflict\r\ncontent-length: 37\r\n\r\n{\"kind\":\"conflict\",\"message\":\"taken\"}\n",
        );
        let client = Client::new(endpoint, Some("sesame".into())).unwrap();
        let error = client.volume("a/b").unwrap_err();
        assert!(matches!(error, ClientError::Api(ErrorBody { kind: ErrorKind::Conflict, .. })), "{error:?}");
        let request = server.join().unwrap();
        assert!(request.starts_with("GET /api/v1/volumes/a%2Fb HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("authorization: Bearer sesame\r\n"), "{request}");
    }

    /// The server accepts connections and sends nothing.
    #[test]
    fn a_server_that_says_nothing_is_not_waited_for_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let patience = Some(Duration::from_millis(300));
        let client = Client::new(Endpoint::Unix(path), None).unwrap().with_patience(patience);
        let begun = Instant::now();
        let endless = || Client::import(&client, None, io::repeat(0)).map(drop);
        for error in [client.status().unwrap_err(), endless().unwrap_err()] {
            assert!(matches!(error, ClientError::NoAnswer(_)), "{error:?}");
        }
        drop(listener);
        assert!(begun.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn what_is_not_our_server_is_a_protocol_error() {
        let (endpoint, server) = one_answer("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello");
        let error = Client::new(endpoint, None).unwrap().status().unwrap_err();
        assert!(matches!(error, ClientError::Protocol(_)), "{error:?}");
        server.join().unwrap();
        let (endpoint, server) = one_answer("SSH-2.0-OpenSSH_9.2\r\n");
        let error = Client::new(endpoint, None).unwrap().status().unwrap_err();
        assert!(matches!(error, ClientError::Unreachable(_)), "{error:?}");
        server.join().unwrap();
    }
}
