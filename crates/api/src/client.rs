//! A blocking client of the admin API, over a Unix socket or TCP.
//!
//! One connection per request: the command line makes a few requests and ends, and a fresh connection cannot be a
//! stale one.

use crate::{
    API_V1, AddLun, AddPv, AddRule, ChannelBody, CreateTarget, CreateVolume, ErrorBody, ErrorKind, Health,
    PatchPool, PatchPv, PatchTarget, PatchVolume, Pool, Pv, SetChap, Status, Target, TargetDefaults, Volume,
};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Control operations wait for disks, not for data to move; one that takes this long will not end.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);
/// Bounds what a wrong address (not our server) can make us hold.
const MAX_ANSWER: usize = 256 << 20;

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket.
    Unix(PathBuf),
    /// `HOST:PORT`, plain HTTP.
    Tcp(String),
}

impl FromStr for Endpoint {
    type Err = String;

    /// `unix:PATH`, `http://HOST:PORT`, or a plain path.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(rest) = text.strip_prefix("http://") {
            let authority = rest.trim_end_matches('/');
            return match authority.rsplit_once(':') {
                Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                    Ok(Endpoint::Tcp(authority.to_owned()))
                }
                _ => Err(format!("{text:?} is not http://HOST:PORT")),
            };
        }
        if text.starts_with("https://") {
            return Err(
                "the admin API speaks plain HTTP; put a TLS proxy in front, or tunnel the socket".into()
            );
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
        }
    }
}

/// Why a request had no result.
#[derive(Debug)]
pub enum ClientError {
    /// No server answers there.
    Unreachable(String),
    /// The server refused.
    Api(ErrorBody),
    /// What came back is not this API.
    Protocol(String),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::Unreachable(text) | ClientError::Protocol(text) => f.write_str(text),
            ClientError::Api(body) => body.fmt(f),
        }
    }
}

impl std::error::Error for ClientError {}

type Result<T, E = ClientError> = std::result::Result<T, E>;

/// The client.
#[derive(Debug)]
pub struct Client {
    endpoint: Endpoint,
    token: Option<String>,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    /// A client of the server at `endpoint`; nothing is sent yet. `token` is needed over TCP.
    pub fn new(endpoint: Endpoint, token: Option<String>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| ClientError::Protocol(format!("start the client: {e}")))?;
        Ok(Client { endpoint, token, runtime })
    }

    /// The server.
    pub fn status(&self) -> Result<Status> {
        self.get("/status")
    }

    /// Health of the pool.
    pub fn health(&self) -> Result<Health> {
        self.get("/health")
    }

    /// The pool.
    pub fn pool(&self) -> Result<Pool> {
        self.get("/pool")
    }

    /// Changes the pool.
    pub fn patch_pool(&self, patch: &PatchPool) -> Result<Pool> {
        self.send(Method::PATCH, "/pool", patch)
    }

    /// All physical volumes.
    pub fn pvs(&self) -> Result<Vec<Pv>> {
        self.get("/pool/pvs")
    }

    /// Takes a physical volume into the pool.
    pub fn add_pv(&self, pv: &AddPv) -> Result<Pv> {
        self.send(Method::POST, "/pool/pvs", pv)
    }

    /// Starts or stops draining a physical volume, named by number, UUID or path.
    pub fn patch_pv(&self, pv: &str, patch: &PatchPv) -> Result<Pv> {
        self.send(Method::PATCH, &format!("/pool/pvs/{}", segment(pv)), patch)
    }

    /// Takes an empty physical volume out of the pool.
    pub fn remove_pv(&self, pv: &str) -> Result<()> {
        self.delete(&format!("/pool/pvs/{}", segment(pv)))
    }

    /// All volumes, by name.
    pub fn volumes(&self) -> Result<Vec<Volume>> {
        self.get("/volumes")
    }

    /// One volume.
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

    /// Deletes a volume; with `force` also one that clients use.
    pub fn delete_volume(&self, name: &str, force: bool) -> Result<()> {
        let query = if force { "?force=true" } else { "" };
        self.delete(&format!("/volumes/{}{query}", segment(name)))
    }

    /// All iSCSI targets, by name.
    pub fn targets(&self) -> Result<Vec<Target>> {
        self.get("/targets")
    }

    /// One iSCSI target, by its iSCSI name, short name, or volume.
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

    /// Deletes an iSCSI target; with `force` also one that initiators use.
    pub fn delete_target(&self, name: &str, force: bool) -> Result<()> {
        let query = if force { "?force=true" } else { "" };
        self.delete(&format!("/targets/{}{query}", segment(name)))
    }

    /// Adds a logical unit to a target.
    pub fn add_lun(&self, name: &str, new: &AddLun) -> Result<Target> {
        self.send(Method::POST, &format!("/targets/{}/luns", segment(name)), new)
    }

    /// Removes a logical unit from a target; with `force` also while initiators use the target.
    pub fn remove_lun(&self, name: &str, lun: u16, force: bool) -> Result<()> {
        let query = if force { "?force=true" } else { "" };
        self.delete(&format!("/targets/{}/luns/{lun}{query}", segment(name)))
    }

    /// Adds an access rule to a target, or with `None` for all targets.
    pub fn add_rule(&self, name: Option<&str>, rule: &AddRule) -> Result<()> {
        self.send::<serde::de::IgnoredAny>(Method::POST, &format!("{}/rules", scope(name)), rule).map(|_| ())
    }

    /// Removes an access rule by its number, from 1.
    pub fn remove_rule(&self, name: Option<&str>, number: usize) -> Result<()> {
        self.delete(&format!("{}/rules/{number}", scope(name)))
    }

    /// Adds or replaces a CHAP account of a target, or with `None` of all that have none of their own.
    pub fn set_chap(&self, name: Option<&str>, chap: &SetChap) -> Result<()> {
        self.send::<serde::de::IgnoredAny>(Method::PUT, &format!("{}/chap", scope(name)), chap).map(|_| ())
    }

    /// Asks for CHAP no more.
    pub fn remove_chap(&self, name: Option<&str>) -> Result<()> {
        self.delete(&format!("{}/chap", scope(name)))
    }

    /// Removes one of several CHAP accounts.
    pub fn remove_account(&self, name: Option<&str>, user: &str) -> Result<()> {
        self.delete(&format!("{}/chap/{}", scope(name), segment(user)))
    }

    /// Drops all reservations of a target's logical units, or of one of them.
    pub fn clear_reservations(&self, name: &str, lun: Option<u16>) -> Result<()> {
        let query = lun.map_or_else(String::new, |lun| format!("?lun={lun}"));
        self.delete(&format!("/targets/{}/reservations{query}", segment(name)))
    }

    /// What applies to all targets.
    pub fn target_defaults(&self) -> Result<TargetDefaults> {
        self.get("/target-defaults")
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        parse(&self.request(Method::GET, path, Bytes::new())?)
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

    /// A request that is answered by nothing.
    pub(crate) fn order(&self, method: Method, path: &str, body: &impl Serialize) -> Result<()> {
        let body =
            serde_json::to_vec(body).map_err(|e| ClientError::Protocol(format!("write request: {e}")))?;
        self.request(method, path, body.into()).map(|_| ())
    }

    pub(crate) fn delete(&self, path: &str) -> Result<()> {
        self.request(Method::DELETE, path, Bytes::new()).map(|_| ())
    }

    /// Writes an answer of any length to `out`; tells its length.
    pub(crate) fn download(&self, path: &str, out: &mut dyn Write) -> Result<u64> {
        self.runtime.block_on(async {
            let begun = tokio::time::timeout(ANSWER_TIMEOUT, self.begin(Method::GET, path, Full::default()));
            let response = begun.await.map_err(|_| self.unreachable(&"no answer to the request"))??;
            let (status, mut body) = (response.status(), response.into_body());
            if !status.is_success() {
                let body = Limited::new(body, MAX_ANSWER).collect().await;
                return Err(refusal(status, &body.map_err(|e| self.unreachable(&e))?.to_bytes()));
            }
            let mut written = 0;
            while let Some(frame) = body.frame().await {
                let broke_off = |e: &dyn fmt::Display| {
                    ClientError::Protocol(format!(
                        "receive the stream: it broke off after {written} bytes: {e}"
                    ))
                };
                if let Ok(data) = frame.map_err(|e| broke_off(&e))?.into_data() {
                    let write = out.write_all(&data);
                    write.map_err(|e| ClientError::Protocol(format!("write the stream: {e}")))?;
                    written += data.len() as u64;
                }
            }
            out.flush().map_err(|e| ClientError::Protocol(format!("write the stream: {e}")))?;
            Ok(written)
        })
    }

    /// Sends a body of any length, for as long as that takes.
    pub(crate) fn upload<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: ChannelBody,
    ) -> Result<T> {
        self.runtime.block_on(async {
            let response = self.begin(method, path, body).await?;
            parse(&self.answer(response).await?)
        })
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes> {
        self.runtime.block_on(async {
            let exchange = async { self.answer(self.begin(method, path, Full::new(body)).await?).await };
            let answered = tokio::time::timeout(ANSWER_TIMEOUT, exchange).await;
            answered.map_err(|_| self.unreachable(&"no answer to the request"))?
        })
    }

    fn unreachable(&self, why: &dyn fmt::Display) -> ClientError {
        ClientError::Unreachable(format!("reach the server at {}: {why}", self.endpoint))
    }

    /// The whole answer, if it is one of success.
    async fn answer(&self, response: Response<Incoming>) -> Result<Bytes> {
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|e| self.unreachable(&e))?.to_bytes();
        if status.is_success() { Ok(body) } else { Err(refusal(status, &body)) }
    }

    /// Connects and sends a request; the head of the answer is there.
    async fn begin<B>(&self, method: Method, path: &str, body: B) -> Result<Response<Incoming>>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let connect = async {
            match &self.endpoint {
                Endpoint::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix),
                Endpoint::Tcp(authority) => TcpStream::connect(authority).await.map(Stream::Tcp),
            }
        };
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connect)
            .await
            .map_err(|_| self.unreachable(&"no answer"))?
            .map_err(|e| self.unreachable(&e))?;
        let exchange = async {
            match stream {
                Stream::Unix(stream) => self.exchange(stream, method, path, body).await,
                Stream::Tcp(stream) => self.exchange(stream, method, path, body).await,
            }
        };
        exchange.await.map_err(|e| self.unreachable(&e))
    }

    async fn exchange<S, B>(
        &self,
        stream: S,
        method: Method,
        path: &str,
        body: B,
    ) -> Result<Response<Incoming>, Box<dyn std::error::Error + Send + Sync>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // Runs whenever this thread waits below, and ends with the connection; its error reaches `sender` too.
        tokio::spawn(connection);
        let host = match &self.endpoint {
            Endpoint::Unix(_) => "localhost",
            Endpoint::Tcp(authority) => authority,
        };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{API_V1}{path}"))
            .header(header::HOST, host)
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

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|e| ClientError::Protocol(format!("read the server's answer: {e}")))
}

fn refusal(status: StatusCode, body: &[u8]) -> ClientError {
    match serde_json::from_slice::<ErrorBody>(body) {
        Ok(body) => ClientError::Api(body),
        Err(_) if status == StatusCode::UNAUTHORIZED => ClientError::Api(ErrorBody {
            kind: ErrorKind::Unauthorized,
            message: "the server wants credentials".into(),
        }),
        Err(_) => ClientError::Protocol(format!("the server answered {status} without saying why")),
    }
}

/// The route of a target, or of what applies to all.
fn scope(target: Option<&str>) -> String {
    target.map_or_else(|| "/target-defaults".into(), |name| format!("/targets/{}", segment(name)))
}

/// One path segment, percent-encoded but for the unreserved characters of RFC 3986.
pub(crate) fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn endpoints_are_paths_or_urls() {
        assert_eq!("unix:/run/x".parse(), Ok(Endpoint::Unix("/run/x".into())));
        assert_eq!("./x.sock".parse(), Ok(Endpoint::Unix("./x.sock".into())));
        assert_eq!("http://[::1]:80/".parse(), Ok(Endpoint::Tcp("[::1]:80".into())));
        for bad in ["", "unix:", "http://host", "http://:80", "http://h:x", "https://h:443"] {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad} was accepted");
        }
    }

    #[test]
    fn names_cannot_leave_their_segment() {
        assert_eq!(segment("/dev/sd b?x=1"), "%2Fdev%2Fsd%20b%3Fx%3D1");
    }

    #[test]
    fn no_server_is_unreachable() {
        let client = Client::new(Endpoint::Unix("/nonexistent/hindcast.sock".into()), None).unwrap();
        assert!(matches!(client.status(), Err(ClientError::Unreachable(_))));
    }

    /// Answers one connection with `answer`, whatever it asks, and hands back the request.
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
