//! Tests that compare [`Framing`](super::framing::Framing) with hyper. Both have to see each
//! request end in the same place.

use super::framing::Framing;
use super::patience::TimedIo;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::sync::Arc;
use tokio::io::{AsyncWriteExt, duplex};

/// Returns the lengths of the bodies of all complete requests, as hyper sees them.
fn hyper(stream: &[u8]) -> Vec<u64> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let theirs = seen.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let seen = theirs.clone();
        async move {
            let body = request.into_body().collect().await?.to_bytes();
            seen.lock().push(body.len() as u64);
            Ok::<_, hyper::Error>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (ours, mut client) = duplex(1 << 20);
        client.write_all(stream).await.unwrap();
        client.shutdown().await.unwrap();
        let io = TokioIo::new(TimedIo::new(ours));
        // Most end with an error.
        let _ = http1::Builder::new().half_close(true).serve_connection(io, service).await;
    });
    let seen = seen.lock();
    seen.clone()
}

/// Returns the lengths of the bodies of all complete requests of `stream`, as [`Framing`] sees
/// them.
fn follower(stream: &[u8]) -> Vec<u64> {
    let (mut framing, mut seen, mut content) = (Framing::new(), Vec::new(), 0);
    for byte in stream {
        let (in_content, begun) = (framing.is_in_content(), framing.is_in_request());
        framing.look(&mut [*byte]);
        content += u64::from(in_content);
        if begun && !framing.is_in_request() && !framing.is_refused() {
            seen.push(std::mem::take(&mut content));
        }
    }
    seen
}

/// Generates repetitions of one of `of`. Their numbers include 0 and those near the length at which
/// a line is cut.
fn padding(of: &'static [&'static str]) -> impl Strategy<Value = String> {
    let many = prop_oneof![4 => Just(0usize), 1 => Just(1), 1 => Just(240), 1 => Just(256), 1 => Just(300)];
    (many, proptest::sample::select(of)).prop_map(|(n, what)| what.repeat(n))
}

fn token(of: &'static [&'static str]) -> impl Strategy<Value = String> {
    proptest::sample::select(of).prop_map(str::to_owned)
}

fn line_end() -> impl Strategy<Value = String> {
    prop_oneof![20 => Just("\r\n"), 1 => Just("\n"), 1 => Just("\r\r\n")].prop_map(str::to_owned)
}

/// A header that may determine the length of a body.
fn header() -> impl Strategy<Value = String> {
    let name = token(&["Content-Length", "transfer-encoding", "Transfer-Encoding", "Host", "X", ""]);
    let value = token(&["0", "5", "44", "1e", "+5", "chunked", "gzip", ", chunked", "x", ""]);
    let blank = || padding(&[" ", "\t"]);
    (name, token(&[":", ":", ":", " :", ""]), blank(), padding(&["0", "0,"]), value, blank(), line_end())
        .prop_map(|(a, b, c, d, e, f, g)| [a, b, c, d, e, f, g].concat())
}

/// A chunk, or text that resembles one.
fn chunk() -> impl Strategy<Value = String> {
    (padding(&["0"]), 0usize..60, padding(&[" ", "0"]), token(&["", "", "", ";a", "\t"]), line_end())
        .prop_map(|(zeros, n, more, extension, end)| {
            let content = &"GET / HTTP/1.1\r\n\r\n".repeat(4)[..n];
            let data = if n == 0 { "" } else { "\r\n" };
            format!("{zeros}{n:x}{more}{extension}{end}{content}{data}")
        })
}

/// A request with a body of either kind or none, and with other headers.
fn request() -> impl Strategy<Value = String> {
    let some = || proptest::collection::vec(header(), 0..2).prop_map(|all| all.concat());
    let with_length =
        (padding(&[" "]), padding(&["0"]), 0usize..60, padding(&[" "])).prop_map(|(a, b, n, c)| {
            let content = "GET / HTTP/1.1\r\n\r\n".repeat(4);
            (format!("Content-Length:{a}{b}{n}{c}\r\n"), content[..n].to_owned())
        });
    let codings = token(&["chunked", "chunked", "Chunked", "gzip, chunked"]);
    let chunks = proptest::collection::vec(chunk(), 0..4).prop_map(|all| all.concat());
    let trailer = prop_oneof![3 => Just(String::new()), 1 => header()];
    let chunked = (padding(&[" "]), codings, padding(&[" "]), padding(&[" ", ","]), chunks, trailer)
        .prop_map(|(a, codings, b, c, chunks, trailer)| {
            (format!("Transfer-Encoding:{a}{codings}{b}{c}\r\n"), format!("{chunks}0\r\n{trailer}\r\n"))
        });
    let body = prop_oneof![Just((String::new(), String::new())), with_length, chunked];
    (token(&["", "", "\r\n"]), token(&["GET", "POST"]), some(), body, some(), line_end()).prop_map(
        |(before, method, some, (header, body), more, end)| {
            format!("{before}{method} / HTTP/1.1\r\n{some}{header}{more}{end}{body}")
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn requests_end_where_hyper_sees_them_end(all in proptest::collection::vec(request(), 1..4)) {
        let stream = all.concat();
        let (hyper, follower) = (hyper(stream.as_bytes()), follower(stream.as_bytes()));
        // Hyper may refuse what the follower takes.
        prop_assert!(follower.starts_with(&hyper), "{:?} are not the first of {:?}", hyper, follower);
    }
}
