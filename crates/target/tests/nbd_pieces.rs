//! The server's replies do not depend on how a client's stream is cut into pieces, nor on which
//! threads serve it.
#![allow(clippy::unwrap_used)] // the lint knows test functions only, not what they use

mod common;

use common::mem::{MemDevice, MemExports};
use common::script::{Answer, Script, handshake, request, requests_in, take_reply};
use common::*;
use hindcast_target::nbd::{NbdConfig, WorkerPool, serve_transport};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const ENOSPC: u32 = 28;
const SIZE: u64 = 64 << 20;

/// Serves `pieces` from memory and returns the answers by cookie.
fn play(
    device: &Arc<MemDevice>,
    structured: bool,
    pieces: Vec<Vec<u8>>,
    pool: WorkerPool,
) -> BTreeMap<u64, Answer> {
    let bytes: Vec<u8> = pieces.concat();
    let script = Script::new([handshake("vol", structured)].into_iter().chain(pieces));
    let exports = MemExports::one("vol", device.clone());
    serve_transport(&NbdConfig::default(), &*exports, pool, script.clone()).unwrap();
    let output = script.output.lock();
    let mut rest = &output[18..];
    while rest.starts_with(&0x0003_e889_0455_65a9u64.to_be_bytes()) {
        let len = u32::from_be_bytes(rest[16..20].try_into().unwrap());
        rest = &rest[20 + len as usize..];
    }
    let requests = requests_in(&bytes, 64 << 20);
    let reads = requests.iter().filter(|r| r.kind == READ && !structured);
    let reads = reads.map(|r| (r.cookie, (r.offset, r.length))).collect();
    let mut answers = BTreeMap::new();
    while take_reply(&mut rest, &reads, &mut answers) {}
    assert_eq!(rest, []);
    assert!(answers.values().all(|a| a.done));
    answers
}

#[test]
fn one_byte_at_a_time_is_served_like_all_at_once() {
    for structured in [false, true] {
        let mut bytes = Vec::new();
        bytes.extend(request(WRITE, 0, 1, 0, 4096, &pattern(1, 4096)));
        bytes.extend(request(WRITE, 0, 2, SIZE, 512, &[0; 512])); // refused
        bytes.extend(request(READ, 0, 3, 1 << 20, 4096, &[]));
        bytes.extend(request(WRITE, FUA, 4, 8192, 512, &pattern(4, 512)));
        bytes.extend(request(FLUSH, 0, 5, 0, 0, &[]));
        bytes.extend(request(TRIM, 0, 6, 1 << 20, 4096, &[]));
        bytes.extend(request(DISC, 0, 7, 0, 0, &[]));
        let singly = bytes.iter().map(|b| vec![*b]).collect();
        let (one, other) = (Arc::new(MemDevice::new(SIZE)), Arc::new(MemDevice::new(SIZE)));
        let answers = play(&one, structured, singly, WorkerPool::inline());
        assert_eq!(answers, play(&other, structured, vec![bytes], WorkerPool::inline()));
        assert_eq!(answers.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(answers[&2].error, ENOSPC);
        assert!(one.same_content(&other));
        assert_eq!(one.content()[..4096], pattern(1, 4096));
    }
}

/// A request of a client that keeps its reads and its writes apart, so that the order of service
/// does not show.
fn any_request() -> impl Strategy<Value = (u16, u16, u64, u32)> {
    let kind = prop_oneof![4 => Just(READ), 6 => Just(WRITE), 1 => 2u16..10];
    let flags = prop_oneof![6 => Just(0u16), 1 => Just(FUA), 1 => 0u16..64];
    let place = prop_oneof![8 => (0u64..1000).prop_map(|n| n * 512), 1 => 0u64..2 * SIZE];
    let length = prop_oneof![8 => (1u32..16).prop_map(|n| n * 512), 1 => 0u32..200_000, 1 => Just(100 << 10)];
    (kind, flags, place, length)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However the stream is cut, every request gets one answer, the same one, and the device ends
    /// up the same.
    #[test]
    fn pieces_do_not_matter(
        requests in proptest::collection::vec(any_request(), 1..20),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..40),
        structured: bool,
        threads: bool,
    ) {
        let mut bytes = Vec::new();
        for (n, (kind, flags, place, length)) in requests.iter().enumerate() {
            // Each request has a place of its own, apart from the wild ones.
            let place = if *place < 1000 * 512 { place + (n as u64 + 1) * (1 << 21) } else { *place };
            let payload = if *kind == WRITE { pattern(n as u64, *length as usize) } else { Vec::new() };
            bytes.extend(request(*kind, *flags, n as u64, place, *length, &payload));
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|i| i.index(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|w| bytes[w[0]..w[1]].to_vec()).collect();
        let (one, other) = (Arc::new(MemDevice::new(SIZE)), Arc::new(MemDevice::new(SIZE)));
        one.cold.store(threads, Relaxed);
        let pool = if threads { WorkerPool::start("test", 3, 3).unwrap() } else { WorkerPool::inline() };
        let answers = play(&one, structured, pieces, pool);
        let expected = requests_in(&bytes, 64 << 20);
        let answered = expected.iter().filter(|r| !(r.kind == DISC && r.flags & !1 == 0));
        prop_assert_eq!(answers.keys().copied().collect::<Vec<_>>(), answered.map(|r| r.cookie).collect::<Vec<_>>());
        prop_assert_eq!(answers, play(&other, structured, vec![bytes], WorkerPool::inline()));
        prop_assert!(one.same_content(&other));
    }
}
