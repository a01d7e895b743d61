//! Negotiation: every option, every error, and what hostile clients try before the transmission
//! phase.
#![allow(clippy::unwrap_used)] // the lint knows test functions only, not what they use

mod common;

use common::mem::{MemDevice, MemExports};
use common::script::{Script, go_data, handshake, meta_data, option};
use common::{Client, Fixture, start};
use hindcast_engine::device::DeviceInfo;
use hindcast_target::nbd::options::{Negotiator, OPTION_REPLY_MAGIC, Policy, Step, info, opt, rep};
use hindcast_target::nbd::{Listen, NbdConfig, NbdServer, WorkerPool, serve_transport};
use proptest::prelude::*;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

const SIZE: u64 = 1 << 20;
/// HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES, MULTI_CONN, CACHE, FAST_ZERO.
const FLAGS: u16 = 0b1101_0110_1101;
const DF_FLAG: u16 = 1 << 7;

fn fixture() -> Fixture {
    start(MemDevice::new(SIZE), |_| {})
}

fn haggling(fixture: &Fixture) -> Client<UnixStream> {
    let mut client = fixture.connect();
    client.flags(3);
    client
}

#[test]
fn export_name_enters_transmission_with_and_without_zeroes() {
    let fixture = fixture();
    for (flags, padding) in [(3, 0), (1, 124), (0, 124)] {
        let mut client = fixture.connect();
        client.flags(flags);
        client.send(&option(opt::EXPORT_NAME, b"vol"));
        let mut reply = vec![0; 10 + padding];
        std::io::Read::read_exact(&mut client.stream, &mut reply).unwrap();
        assert_eq!(reply[..8], SIZE.to_be_bytes());
        assert_eq!(reply[8..10], FLAGS.to_be_bytes());
        assert!(reply[10..].iter().all(|b| *b == 0));
        assert_eq!(client.read(0, 512), [0; 512]);
    }
}

#[test]
fn export_name_that_cannot_be_served_ends_the_session() {
    let fixture = fixture();
    for name in [&b"nothing"[..], b"\xff\xfe", b"v\0l", &[b'x'; 4097], &vec![b'x'; 40 << 10]] {
        let mut client = haggling(&fixture);
        client.send(&option(opt::EXPORT_NAME, name));
        client.assert_closed();
    }
}

#[test]
fn unknown_client_flags_and_wrong_magic_end_the_session() {
    let fixture = fixture();
    let mut client = fixture.connect();
    client.flags(7);
    client.assert_closed();
    let mut client = haggling(&fixture);
    client.send(b"IHAVEOPX\0\0\0\x03\0\0\0\0");
    client.assert_closed();
}

#[test]
fn abort_is_acknowledged_whatever_comes_with_it() {
    let fixture = fixture();
    for data in [&b""[..], b"farewell"] {
        let mut client = haggling(&fixture);
        assert_eq!(client.opt_kind(opt::ABORT, data), rep::ACK);
        client.assert_closed();
    }
    wait_until(|| fixture.server.stats().connections == 0);
    assert_eq!(fixture.server.stats().failed_negotiations, 0);
}

fn wait_until(done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < deadline, "it did not happen in time");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn list_names_the_exports() {
    let fixture = fixture();
    let mut client = haggling(&fixture);
    let replies = client.opt(opt::LIST, &[]);
    let kinds: Vec<_> = replies.iter().map(|r| r.kind).collect();
    assert_eq!(kinds, [rep::SERVER, rep::ACK]);
    assert_eq!(replies[0].data, b"\0\0\0\x03vol1048576 bytes of memory");
    assert_eq!(client.opt_kind(opt::LIST, b"x"), rep::ERR_INVALID);
}

#[test]
fn unknown_options_are_unsupported_and_the_connection_goes_on() {
    let fixture = fixture();
    let mut client = haggling(&fixture);
    // PEEK_EXPORT was withdrawn; 11 is EXTENDED_HEADERS, which this server does not speak.
    for unknown in [0, 4, 11, 12, 0x4242, u32::MAX] {
        assert_eq!(client.opt_kind(unknown, b"data"), rep::ERR_UNSUP, "{unknown}");
    }
    assert_eq!(client.opt_kind(opt::STARTTLS, &[]), rep::ERR_POLICY);
    assert_eq!(client.opt_kind(opt::STARTTLS, b"x"), rep::ERR_INVALID);
    assert_eq!(client.opt_kind(opt::STRUCTURED_REPLY, b"x"), rep::ERR_INVALID);
    client.negotiate_options("vol", true);
    assert_eq!(client.read(0, 512), [0; 512]);
}

#[test]
fn info_and_go_tell_what_was_asked_for() {
    let fixture = fixture();
    let mut client = haggling(&fixture);
    assert_eq!(client.opt_kind(opt::STRUCTURED_REPLY, &[]), rep::ACK);
    let wanted = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 0x7777];
    for number in [opt::INFO, opt::GO] {
        let replies = client.opt(number, &go_data("", &wanted));
        assert_eq!(replies.last().unwrap().kind, rep::ACK);
        let infos: Vec<_> = replies[..replies.len() - 1].iter().map(|r| (r.kind, &r.data[..])).collect();
        let mut export = vec![0, 0];
        export.extend_from_slice(&SIZE.to_be_bytes());
        export.extend_from_slice(&(FLAGS | DF_FLAG).to_be_bytes());
        let mut sizes = vec![0, 3];
        [512u32, 4096, 32 << 20].iter().for_each(|n| sizes.extend_from_slice(&n.to_be_bytes()));
        let expected: [(u32, &[u8]); 4] = [
            (rep::INFO, &export),
            (rep::INFO, b"\0\x01vol"),
            (rep::INFO, b"\0\x021048576 bytes of memory"),
            (rep::INFO, &sizes),
        ];
        assert_eq!(infos, expected);
    }
    client.send(&common::script::request(0, 0, 1, 0, 512, &[]));
    assert_eq!(client.wait(1).read(0, 512), [0; 512]);
}

#[test]
fn block_sizes_are_within_the_protocols_bounds() {
    for (block_size, preferred_size, expected) in
        [(4096, 4096, 4096), (512, 1 << 30, 32 << 20), (512, 65536, 65536)]
    {
        let info =
            DeviceInfo { size: 1 << 22, block_size, preferred_size, read_only: false, uuid: Uuid::nil() };
        let fixture = start(MemDevice::with_info(info), |_| {});
        let replies = haggling(&fixture).opt(opt::INFO, &go_data("vol", &[info::BLOCK_SIZE]));
        let sizes = &replies.iter().find(|r| r.data[..2] == [0, 3]).unwrap().data[2..];
        assert_eq!(sizes[..4], (block_size).to_be_bytes());
        assert_eq!(sizes[4..8], (expected as u32).to_be_bytes());
        assert_eq!(sizes[8..], (32u32 << 20).to_be_bytes());
    }
}

#[test]
fn a_read_only_export_promises_no_writes() {
    let info =
        DeviceInfo { size: SIZE, block_size: 512, preferred_size: 4096, read_only: true, uuid: Uuid::nil() };
    let fixture = start(MemDevice::with_info(info), |_| {});
    let replies = haggling(&fixture).opt(opt::INFO, &go_data("vol", &[]));
    // HAS_FLAGS, READ_ONLY, FLUSH, MULTI_CONN, CACHE
    assert_eq!(replies[0].data[10..12], 0b101_0000_0111u16.to_be_bytes());
}

#[test]
fn an_unknown_export_is_an_error_and_the_connection_goes_on() {
    let fixture = fixture();
    let mut client = haggling(&fixture);
    assert_eq!(client.opt_kind(opt::INFO, &go_data("nothing", &[])), rep::ERR_UNKNOWN);
    let refused = client.opt(opt::GO, &go_data("nothing", &[]));
    assert_eq!((refused.len(), refused[0].kind), (1, rep::ERR_UNKNOWN));
    assert_eq!(String::from_utf8_lossy(&refused[0].data), "open export nothing");
    client.negotiate_options("vol", false);
    client.read(0, 512);
}

#[test]
fn malformed_info_is_invalid() {
    let fixture = fixture();
    let mut client = haggling(&fixture);
    let good = go_data("vol", &[info::NAME]);
    for cut in 0..good.len() {
        assert_eq!(client.opt_kind(opt::INFO, &good[..cut]), rep::ERR_INVALID, "cut at {cut}");
    }
    let mut long = good.clone();
    long.push(0);
    assert_eq!(client.opt_kind(opt::GO, &long), rep::ERR_INVALID);
    assert_eq!(client.opt_kind(opt::INFO, b"\xff\xff\xff\xff\0\0"), rep::ERR_INVALID);
    assert_eq!(client.opt_kind(opt::INFO, b"\0\0\0\x03v\0l\0\0"), rep::ERR_INVALID);
    assert_eq!(client.opt_kind(opt::INFO, &go_data(&"x".repeat(4097), &[])), rep::ERR_TOO_BIG);
    assert_eq!(client.opt_kind(opt::INFO, &go_data(&"x".repeat(4096), &[])), rep::ERR_UNKNOWN);
    client.negotiate_options("vol", true);
}

#[test]
fn too_much_data_is_skipped_and_far_too_much_ends_the_session() {
    let fixture = fixture();
    let mut client = haggling(&fixture);
    assert_eq!(client.opt_kind(opt::LIST, &vec![0; 100 << 10]), rep::ERR_TOO_BIG);
    assert_eq!(client.opt_kind(0x4242, &vec![0; 1 << 20]), rep::ERR_TOO_BIG);
    assert_eq!(client.opt_kind(opt::LIST, &[]), rep::ACK);
    let mut header = option(opt::LIST, &[]);
    header[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    client.send(&header);
    client.assert_closed();
}

#[test]
fn meta_contexts_are_listed_and_selected() {
    let fixture = fixture();
    let mut client = haggling(&fixture);
    let ask = |queries: &[&str]| meta_data("vol", queries);
    assert_eq!(
        client.opt_kind(opt::LIST_META_CONTEXT, &ask(&[])),
        rep::ERR_INVALID,
        "structured replies first"
    );
    assert_eq!(
        client.opt_kind(opt::SET_META_CONTEXT, &ask(&[])),
        rep::ERR_INVALID,
        "structured replies first"
    );
    assert_eq!(client.opt_kind(opt::STRUCTURED_REPLY, &[]), rep::ACK);
    let allocation = |id: u32| [&id.to_be_bytes()[..], b"base:allocation"].concat();
    let damaged = |id: u32| [&id.to_be_bytes()[..], b"hindcast:damaged"].concat();
    type Case<'a> = (u32, &'a [&'a str], &'a [Vec<u8>]);
    let cases: [Case<'_>; 11] = [
        (opt::LIST_META_CONTEXT, &[], &[allocation(0), damaged(0)]),
        (opt::LIST_META_CONTEXT, &["base:"], &[allocation(0)]),
        (opt::LIST_META_CONTEXT, &["hindcast:"], &[damaged(0)]),
        (opt::LIST_META_CONTEXT, &["hindcast:damaged"], &[damaged(0)]),
        (opt::LIST_META_CONTEXT, &["x-y:z"], &[]),
        (opt::LIST_META_CONTEXT, &[""], &[]),
        (opt::SET_META_CONTEXT, &[], &[]),
        (opt::SET_META_CONTEXT, &["base:", "hindcast:"], &[]),
        (opt::SET_META_CONTEXT, &["x-y:z", "base:allocation", "base:other"], &[allocation(1)]),
        (opt::SET_META_CONTEXT, &["hindcast:damaged", "base:allocation"], &[allocation(1), damaged(2)]),
        (opt::SET_META_CONTEXT, &["nonsense"], &[]),
    ];
    for (number, queries, expected) in cases {
        let replies = client.opt(number, &ask(queries));
        assert_eq!(replies.last().unwrap().kind, rep::ACK);
        let contexts: Vec<_> =
            replies[..replies.len() - 1].iter().map(|r| (r.kind, r.data.clone())).collect();
        let expected: Vec<_> = expected.iter().map(|data| (rep::META_CONTEXT, data.clone())).collect();
        assert_eq!(contexts, expected, "{queries:?}");
    }
    let elsewhere = meta_data("nothing", &["base:allocation"]);
    assert_eq!(client.opt_kind(opt::SET_META_CONTEXT, &elsewhere), rep::ERR_UNKNOWN);
    let many = vec!["base:"; 1025];
    assert_eq!(client.opt_kind(opt::LIST_META_CONTEXT, &ask(&many)), rep::ERR_TOO_BIG);
}

/// BLOCK_STATUS works only with a context that was selected last, for the export that was opened.
#[test]
fn a_selection_holds_until_it_is_replaced_and_for_its_export_only() {
    let good = meta_data("vol", &["base:allocation"]);
    let none = meta_data("vol", &[]);
    let default = meta_data("", &["base:allocation"]);
    let fails = meta_data("nothing", &["base:allocation"]);
    let cases: [(&[&[u8]], u32); 5] = [
        (&[&good], 0),
        (&[&good, &none], 22),
        (&[&good, &fails], 22),
        (&[&none, &good], 0),
        (&[&default], 22),
    ];
    let fixture = fixture();
    for (options, error) in cases {
        let mut client = haggling(&fixture);
        client.opt_kind(opt::STRUCTURED_REPLY, &[]);
        for data in options {
            client.opt_kind(opt::SET_META_CONTEXT, data);
        }
        assert_eq!(client.opt_kind(opt::GO, &go_data("vol", &[])), rep::ACK);
        assert_eq!(client.call(common::BLOCK_STATUS, 0, 0, 4096, &[]).error, error);
    }
}

#[test]
fn a_client_may_ask_for_as_many_exports_as_there_are() {
    let fixture = fixture();
    let mut client = haggling(&fixture);
    assert_eq!(client.opt_kind(opt::STRUCTURED_REPLY, &[]), rep::ACK);
    for _ in 0..10_000 {
        assert_eq!(client.opt_kind(opt::INFO, &go_data("vol", &[info::BLOCK_SIZE])), rep::ACK);
        assert_eq!(client.opt_kind(opt::LIST_META_CONTEXT, &meta_data("vol", &[])), rep::ACK);
    }
    client.negotiate_options("vol", true);
    assert_eq!(client.read(0, 512), [0; 512]);
}

#[test]
fn each_option_has_its_own_time() {
    let timeout = Duration::from_millis(400);
    let fixture = start(MemDevice::new(SIZE), |c| c.negotiation_timeout = timeout);
    let (begin, mut client) = (Instant::now(), haggling(&fixture));
    while begin.elapsed() < 5 * timeout {
        std::thread::sleep(timeout / 4);
        assert_eq!(client.opt_kind(opt::INFO, &go_data("vol", &[])), rep::ACK);
    }
    client.negotiate_options("vol", true);
    assert_eq!(client.read(0, 512), [0; 512]);
    let mut client = haggling(&fixture);
    assert_eq!(client.opt_kind(opt::INFO, &go_data("vol", &[])), rep::ACK);
    let begin = Instant::now();
    client.send(&option(opt::INFO, &go_data("vol", &[]))[..20]);
    client.assert_closed();
    assert!(begin.elapsed() < 5 * timeout, "an option that does not end is not waited for");
}

#[test]
fn a_negotiation_does_not_last_for_ever() {
    let fixture = start(MemDevice::new(SIZE), |c| c.negotiation_timeout = Duration::from_millis(20));
    let (begin, mut client) = (Instant::now(), haggling(&fixture));
    let one = option(opt::INFO, &go_data("vol", &[]));
    while std::io::Write::write_all(&mut client.stream, &one).is_ok() {
        assert!(begin.elapsed() < Duration::from_secs(10), "it goes on and on");
        std::thread::sleep(Duration::from_millis(5));
    }
    wait_until(|| fixture.server.stats().failed_negotiations == 1);
}

fn large_blocks() -> Fixture {
    let info = DeviceInfo {
        size: SIZE,
        block_size: 4096,
        preferred_size: 4096,
        read_only: false,
        uuid: Uuid::nil(),
    };
    start(MemDevice::with_info(info), |_| {})
}

#[test]
fn large_blocks_are_for_clients_that_ask_for_block_sizes() {
    let fixture = large_blocks();
    for number in [opt::INFO, opt::GO] {
        let mut client = haggling(&fixture);
        let replies = client.opt(number, &go_data("vol", &[info::NAME]));
        assert!(
            replies.iter().any(|r| r.kind == rep::INFO && r.data[..2] == [0, 3]),
            "it may learn them all the same"
        );
        let last = replies.last().unwrap();
        assert_eq!(last.kind, rep::ERR_BLOCK_SIZE_REQD);
        assert!(String::from_utf8_lossy(&last.data).contains("4096"));
        assert_eq!(client.opt_kind(number, &go_data("vol", &[info::BLOCK_SIZE])), rep::ACK);
    }
    let mut client = haggling(&fixture);
    client.send(&option(opt::EXPORT_NAME, b"vol"));
    client.assert_closed();
}

#[test]
fn block_sizes_that_were_asked_for_before_count_for_that_export() {
    let fixture = large_blocks();
    let mut client = haggling(&fixture);
    assert_eq!(client.opt_kind(opt::INFO, &go_data("", &[info::BLOCK_SIZE])), rep::ACK);
    assert_eq!(client.opt_kind(opt::GO, &go_data("vol", &[])), rep::ERR_BLOCK_SIZE_REQD, "another name");
    assert_eq!(client.opt_kind(opt::INFO, &go_data("vol", &[info::BLOCK_SIZE])), rep::ACK);
    assert_eq!(client.opt_kind(opt::GO, &go_data("vol", &[])), rep::ACK);
    assert_eq!(client.read(0, 4096), [0; 4096]);
    let mut client = haggling(&fixture);
    assert_eq!(client.opt_kind(opt::INFO, &go_data("vol", &[info::BLOCK_SIZE])), rep::ACK);
    client.send(&option(opt::EXPORT_NAME, b"vol"));
    std::io::Read::read_exact(&mut client.stream, &mut [0; 10]).unwrap();
    client.send(&common::script::request(0, 0, 1, 0, 4096, &[]));
}

#[test]
fn a_slow_negotiation_is_cut_off_even_if_it_trickles() {
    let fixture = start(MemDevice::new(SIZE), |c| c.negotiation_timeout = Duration::from_millis(300));
    let begin = Instant::now();
    let mut silent = fixture.connect();
    let mut trickling = fixture.connect();
    trickling.flags(3);
    let list = option(0x4242, &[0; 1000]);
    for byte in list {
        if std::io::Write::write_all(&mut trickling.stream, &[byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        if begin.elapsed() > Duration::from_secs(5) {
            break;
        }
    }
    silent.assert_closed();
    trickling.assert_closed();
    assert!(begin.elapsed() < Duration::from_secs(4), "the deadline is for the whole option");
    wait_until(|| fixture.server.stats().failed_negotiations == 2);
}

#[test]
fn a_client_that_does_not_read_its_list_is_cut_off() {
    let fixture = start(MemDevice::new(SIZE), |c| c.negotiation_timeout = Duration::from_millis(500));
    let mut client = haggling(&fixture);
    let list = option(opt::LIST, &[]).repeat(40_000);
    // The client doesn't read the replies, so at some point the server doesn't take the options
    // either.
    let _ = std::io::Write::write_all(&mut client.stream, &list);
    wait_until(|| fixture.server.stats().connections == 0);
}

fn policy() -> Policy {
    Policy { tls_available: false, tls_required: false, max_request: 32 << 20 }
}

/// Runs the machine alone, giving it `pieces` one after the other. Tells what it put out and
/// whether it ended well.
fn machine(exports: &MemExports, policy: Policy, pieces: &[&[u8]]) -> (Vec<u8>, &'static str) {
    let mut negotiator = Negotiator::new(exports, policy);
    let (mut out, mut held) = (Vec::new(), Vec::new());
    for piece in pieces {
        held.extend_from_slice(piece);
        loop {
            let (taken, step) = negotiator.step(&held, &mut out);
            held.drain(..taken);
            match step {
                Step::Next | Step::Part => {}
                Step::More => break,
                Step::StartTls => return (out, "tls"),
                Step::Transmit(_) => return (out, "transmit"),
                Step::Close => return (out, "close"),
            }
        }
    }
    (out, "more")
}

/// A client may take no answers, and there may be many of both.
#[test]
fn a_long_list_comes_in_parts_that_take_little_memory() {
    let device = Arc::new(MemDevice::new(SIZE));
    let name = |n| format!("{n:05}-{}", "x".repeat(200));
    let exports = MemExports((0..10_000).map(|n| (name(n), device.clone())).collect());
    let mut negotiator = Negotiator::new(&exports, policy());
    let input = [&3u32.to_be_bytes()[..], &option(opt::LIST, &[]), &option(opt::ABORT, &[])].concat();
    let (mut taken, mut all, mut parts) = (0, Vec::new(), 0);
    loop {
        let mut out = Vec::new();
        let (n, step) = negotiator.step(&input[taken..], &mut out);
        taken += n;
        assert!(out.len() <= 72 << 10, "{} bytes at once", out.len());
        all.extend(out);
        match step {
            Step::Part => parts += 1,
            Step::Next => {}
            Step::Close => break,
            _ => panic!(),
        }
    }
    assert!(parts > 30 && taken == input.len());
    let (whole, _) = machine(&exports, policy(), &[&input]);
    assert!(whole == all, "it is the same list");
    for name in (0..10_000).step_by(999).map(name) {
        assert!(all.windows(name.len()).any(|window| window == name.as_bytes()));
    }
    assert_eq!(all.windows(8).filter(|w| *w == OPTION_REPLY_MAGIC.to_be_bytes()).count(), 10_002);
}

/// It needs longer for all of it than an option may take, but not for a part.
#[test]
fn a_client_that_takes_a_long_list_slowly_gets_all_of_it() {
    let device = Arc::new(MemDevice::new(SIZE));
    let name = |n| format!("{n:05}-{}", "x".repeat(200));
    let exports = MemExports((0..10_000).map(|n| (name(n), device.clone())).collect());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nbd.sock");
    let mut config = NbdConfig { listen: vec![Listen::Unix(path.clone())], ..NbdConfig::default() };
    config.negotiation_timeout = Duration::from_millis(400);
    let _server = NbdServer::start(config, Arc::new(exports)).unwrap();
    let mut client = Client::new(UnixStream::connect(&path).unwrap());
    client.flags(3);
    client.send(&option(opt::LIST, &[]));
    let words = [&OPTION_REPLY_MAGIC.to_be_bytes()[..], &opt::LIST.to_be_bytes(), &rep::ACK.to_be_bytes()];
    let last = [&words.concat()[..], &[0; 4]].concat();
    let (mut piece, mut all, begun) = (vec![0; 128 << 10], Vec::new(), Instant::now());
    while !all.ends_with(&last) {
        let n = std::io::Read::read(&mut client.stream, &mut piece).unwrap();
        assert_ne!(n, 0, "after {:?} and {} bytes", begun.elapsed(), all.len());
        all.extend_from_slice(&piece[..n]);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(all.len() > 10_000 * 230);
    assert!(begun.elapsed() > Duration::from_millis(800));
}

#[test]
fn a_list_ends_when_the_server_does() {
    let device = Arc::new(MemDevice::new(SIZE));
    let exports = MemExports((0..10_000).map(|n| (format!("{n:0200}"), device.clone())).collect());
    let mut negotiator = Negotiator::new(&exports, policy());
    let input = [&3u32.to_be_bytes()[..], &option(opt::LIST, &[])].concat();
    let mut out = Vec::new();
    let (flags, _) = negotiator.step(&input, &mut out);
    negotiator.step(&input[flags..], &mut out);
    assert!(matches!(negotiator.step(&[], &mut out).1, Step::Part));
    negotiator.shut_down();
    out.clear();
    assert!(matches!(negotiator.step(&[], &mut out).1, Step::Next));
    assert_eq!(out[8..16], [opt::LIST.to_be_bytes(), rep::ERR_SHUTDOWN.to_be_bytes()].concat());
    assert!(matches!(negotiator.step(&[], &mut out).1, Step::More));
}

#[test]
fn required_tls_allows_nothing_before_it() {
    let exports = MemExports::one("vol", Arc::new(MemDevice::new(SIZE)));
    let policy = Policy { tls_available: true, tls_required: true, max_request: 32 << 20 };
    let flags = 3u32.to_be_bytes();
    let last_reply = |out: &[u8]| u32::from_be_bytes(out[12..16].try_into().unwrap());
    for number in [opt::LIST, opt::INFO, opt::GO, opt::STRUCTURED_REPLY, opt::LIST_META_CONTEXT, 0x4242] {
        let (out, end) = machine(&exports, policy, &[&flags, &option(number, &go_data("vol", &[]))]);
        assert_eq!((last_reply(&out), end), (rep::ERR_TLS_REQD, "more"), "{number}");
    }
    let (out, end) = machine(&exports, policy, &[&flags, &option(opt::EXPORT_NAME, b"vol")]);
    assert_eq!((&out[..], end), (&[][..], "close"));
    let (out, end) = machine(&exports, policy, &[&flags, &option(opt::ABORT, &[])]);
    assert_eq!((last_reply(&out), end), (rep::ACK, "close"));
    let (out, end) = machine(&exports, policy, &[&flags, &option(opt::STARTTLS, &[])]);
    assert_eq!((last_reply(&out), end), (rep::ACK, "tls"));
    // A client that does not speak fixed newstyle must not hear of TLS.
    let (out, end) = machine(&exports, policy, &[&0u32.to_be_bytes(), &option(opt::LIST, &[])]);
    assert_eq!((&out[..], end), (&[][..], "close"));
}

#[test]
fn options_are_refused_during_shutdown() {
    let exports = MemExports::one("vol", Arc::new(MemDevice::new(SIZE)));
    let mut negotiator = Negotiator::new(&*exports, policy());
    let mut out = Vec::new();
    negotiator.step(&3u32.to_be_bytes(), &mut out);
    negotiator.shut_down();
    negotiator.step(&option(opt::GO, &go_data("vol", &[])), &mut out);
    assert_eq!(out[12..16], rep::ERR_SHUTDOWN.to_be_bytes());
    out.clear();
    assert!(matches!(negotiator.step(&option(opt::ABORT, &[]), &mut out), (_, Step::Close)));
    assert_eq!(out[12..16], rep::ACK.to_be_bytes());
}

#[test]
fn requests_may_follow_the_last_option_at_once() {
    let exports = MemExports::one("vol", Arc::new(MemDevice::new(SIZE)));
    let mut bytes = handshake("vol", false);
    bytes.extend(common::script::request(0, 0, 77, 0, 512, &[]));
    let script = Script::new([bytes]);
    serve_transport(&NbdConfig::default(), &*exports, WorkerPool::inline(), script.clone()).unwrap();
    let output = script.output.lock();
    assert_eq!(output[output.len() - 528..][..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
}

fn any_option() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![Just("vol".to_owned()), Just(String::new()), "[a-z]{0,6}"];
    let data = prop_oneof![
        Just(Vec::new()),
        (name.clone(), proptest::collection::vec(0u16..6, 0..4)).prop_map(|(n, w)| go_data(&n, &w)),
        (
            name,
            proptest::collection::vec(prop_oneof![Just("base:allocation"), Just("base:"), Just("x")], 0..4)
        )
            .prop_map(|(n, q)| meta_data(&n, &q)),
        proptest::collection::vec(any::<u8>(), 0..40),
        Just(vec![0; 33 << 10]),
    ];
    (prop_oneof![0u32..12, any::<u32>()], data).prop_map(|(number, data)| option(number, &data))
}

proptest! {
    /// How the bytes are cut into pieces makes no difference.
    #[test]
    fn pieces_do_not_matter(
        options in proptest::collection::vec(any_option(), 0..8),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..20),
        flags in prop_oneof![Just(3u32), 0u32..5],
    ) {
        let exports = MemExports::one("vol", Arc::new(MemDevice::new(SIZE)));
        let mut bytes = flags.to_be_bytes().to_vec();
        bytes.extend(options.concat());
        let mut cuts: Vec<usize> = cuts.iter().map(|i| i.index(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
        prop_assert_eq!(machine(&exports, policy(), &pieces), machine(&exports, policy(), &[&bytes]));
    }

    #[test]
    fn garbage_is_answered_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let exports = MemExports::one("vol", Arc::new(MemDevice::new(SIZE)));
        machine(&exports, policy(), &[&3u32.to_be_bytes(), &bytes]);
    }
}
