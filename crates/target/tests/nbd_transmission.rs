//! The transmission phase: every command, every error, and how requests are received, batched, and
//! answered.
#![allow(clippy::unwrap_used)] // the lint knows test functions only, not what they use

mod common;

use common::mem::{MemDevice, SHARD};
use common::script::{go_data, meta_data, request};
use common::*;
use hindcast_engine::ErrorKind;
use hindcast_engine::device::{DeviceInfo, RequestKind};
use hindcast_target::nbd::Command;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};
use uuid::Uuid;

const EPERM: u32 = 1;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EOVERFLOW: u32 = 75;
const ENOTSUP: u32 = 95;

const SIZE: u64 = 64 << 20;

fn fixture() -> Fixture {
    start(MemDevice::new(SIZE), |_| {})
}

fn both(test: impl Fn(&Fixture, Client<UnixStream>)) {
    for structured in [false, true] {
        let fixture = fixture();
        let client = fixture.client(structured);
        test(&fixture, client);
    }
}

#[test]
fn what_is_written_is_read() {
    both(|_, mut client| {
        for (offset, len) in
            [(0, 512), (4096, 4096), (SIZE - 512, 512), (12288 + 512, 300 << 10), (1 << 20, 1 << 20)]
        {
            let data = pattern(offset, len);
            client.write(offset, &data);
            assert!(client.read(offset, len as u32) == data);
        }
    });
}

#[test]
fn the_largest_requests_are_served() {
    both(|_, mut client| {
        let data = pattern(5, 32 << 20);
        client.write(4096, &data);
        assert!(client.read(4096, 32 << 20) == data);
        client.write(0, &pattern(6, 512));
        assert_eq!(client.read(0, 512), pattern(6, 512));
    });
}

#[test]
fn flush_and_fua_reach_the_device() {
    both(|fixture, mut client| {
        assert_eq!(client.call(FLUSH, 0, 0, 0, &[]).error, 0);
        assert_eq!(client.call(WRITE, FUA, 0, 512, &[1; 512]).error, 0);
        assert_eq!(client.call(TRIM, FUA, SHARD, SHARD as u32, &[]).error, 0);
        assert_eq!(client.call(WRITE_ZEROES, FUA, SHARD, 512, &[]).error, 0);
        let calls = &fixture.device.calls;
        assert_eq!((calls.flushes.load(Relaxed), calls.fua_calls.load(Relaxed)), (1, 3));
        client.write(0, &[2; 512]);
        assert_eq!(calls.fua_calls.load(Relaxed), 3, "an ordinary write has no FUA");
        assert_eq!(
            client.call(READ, FUA, 0, 512, &[]).read(0, 512),
            [2; 512],
            "FUA is allowed on everything"
        );
        assert_eq!(client.call(FLUSH, FUA, 0, 0, &[]).error, 0);
    });
}

#[test]
fn trim_and_write_zeroes_read_as_zeros() {
    both(|fixture, mut client| {
        let calls = &fixture.device.calls;
        for (kind, flags, unmaps) in
            [(TRIM, 0, 0), (WRITE_ZEROES, 0, 1), (WRITE_ZEROES, FAST_ZERO, 2), (WRITE_ZEROES, NO_HOLE, 2)]
        {
            client.write(0, &[9; 8192]);
            assert_eq!(client.call(kind, flags, 512, 4096, &[]).error, 0);
            assert_eq!(client.read(0, 8192), [vec![9; 512], vec![0; 4096], vec![9; 3584]].concat());
            assert_eq!(calls.unmaps.load(Relaxed), unmaps);
        }
        assert_eq!(client.call(WRITE_ZEROES, FAST_ZERO | NO_HOLE, 0, 4096, &[]).error, ENOTSUP);
        assert_eq!(client.call(WRITE_ZEROES, 0, 0, SIZE as u32, &[]).error, 0, "longer than any READ may be");
        assert_eq!(client.call(TRIM, 0, 0, SIZE as u32, &[]).error, 0);
        assert_eq!(client.call(CACHE, 0, 0, SIZE as u32, &[]).error, 0);
        assert_eq!(calls.caches.load(Relaxed), 1);
    });
}

#[test]
fn block_status_describes_the_range() {
    let fixture = fixture();
    let mut client = fixture.client(true);
    client.write(SHARD, &[1; 512]);
    client.write(3 * SHARD, &[1; 512]);
    let shard = SHARD as u32;
    let answer = client.call(BLOCK_STATUS, 0, 0, 5 * shard, &[]);
    assert_eq!(answer.extents, [(shard, 3), (shard, 0), (shard, 3), (shard, 0), (shard, 3)]);
    let answer = client.call(BLOCK_STATUS, REQ_ONE, 512, 5 * shard - 512, &[]);
    assert_eq!(answer.extents, [(shard - 512, 3)]);
    let answer = client.call(BLOCK_STATUS, REQ_ONE, SHARD, 512, &[]);
    assert_eq!(answer.extents, [(512, 0)]);
    assert_eq!(client.call(BLOCK_STATUS, 0, SIZE, 512, &[]).error, EINVAL);
    let mut simple = fixture.client(false);
    assert_eq!(simple.call(BLOCK_STATUS, 0, 0, 512, &[]).error, EINVAL);
}

#[test]
fn holes_are_sent_as_holes_where_that_pays() {
    let fixture = fixture();
    let mut client = fixture.client(true);
    let shard = SHARD as usize;
    client.write(SHARD, &pattern(1, shard));
    let all = [vec![0; shard], pattern(1, shard), vec![0; 2 * shard]].concat();
    for cold in [false, true] {
        fixture.device.cold.store(cold, Relaxed);
        let answer = client.call(READ, 0, 0, 4 * SHARD as u32, &[]);
        assert!(answer.read(0, 4 * shard) == all);
        assert_eq!((answer.content_chunks, answer.hole_bytes), (3, 3 * SHARD));
        let answer = client.call(READ, DF, 0, 4 * SHARD as u32, &[]);
        assert!(answer.read(0, 4 * shard) == all);
        assert_eq!((answer.content_chunks, answer.hole_bytes), (1, 0), "DF means one chunk");
        let answer = client.call(READ, 0, 0, 4096, &[]);
        assert_eq!((answer.content_chunks, answer.hole_bytes), (1, 0), "not worth looking");
        let answer = client.call(READ, 0, 2 * SHARD, SHARD as u32, &[]);
        assert_eq!((answer.content_chunks, answer.hole_bytes), (1, SHARD));
        let answer = client.call(READ, 0, 0, 2 << 20, &[]);
        assert!(answer.read(0, 2 << 20)[..4 * shard] == all, "by a worker");
    }
}

#[test]
fn wrong_requests_get_their_error_and_the_connection_goes_on() {
    both(|_, mut client| {
        let past = SIZE - 512;
        for (kind, flags, offset, length, error) in [
            (READ, 0, past, 1024, EINVAL),
            (READ, 0, u64::MAX - 511, 512, EINVAL),
            (READ, 0, 1, 512, EINVAL),
            (READ, 0, 0, 100, EINVAL),
            (READ, 0, 0, 0, EINVAL),
            (READ, 0, 0, (32 << 20) + 512, EINVAL),
            (READ, 0, 0, u32::MAX, EINVAL),
            (READ, NO_HOLE, 0, 512, EINVAL),
            (READ, 1 << 15, 0, 512, EINVAL),
            (TRIM, 0, past, 1024, EINVAL),
            (TRIM, DF, 0, 512, EINVAL),
            (TRIM, 0, 0, 0, EINVAL),
            (WRITE_ZEROES, 0, past, 1024, ENOSPC),
            (WRITE_ZEROES, REQ_ONE, 0, 512, EINVAL),
            (CACHE, 0, past, 1024, EINVAL),
            (CACHE, FAST_ZERO, 0, 512, EINVAL),
            (FLUSH, 0, 512, 0, EINVAL),
            (FLUSH, 0, 0, 512, EINVAL),
            (8, 0, 0, 0, EINVAL),
            (u16::MAX, u16::MAX, u64::MAX, u32::MAX, EINVAL),
        ] {
            assert_eq!(
                client.call(kind, flags, offset, length, &[]).error,
                error,
                "{kind} {flags} {offset} {length}"
            );
            assert_eq!(client.read(0, 512), [0; 512]);
        }
    });
    let fixture = fixture();
    let mut client = fixture.client(true);
    let answer = client.call(READ, DF, 0, (32 << 20) + 512, &[]);
    assert_eq!(answer.error, EOVERFLOW);
    assert_eq!(answer.message, "too long to send in one piece");
    assert_eq!(
        fixture.client(false).call(READ, DF, 0, 512, &[]).error,
        EINVAL,
        "DF without structured replies"
    );
}

#[test]
fn a_refused_writes_payload_is_dropped_and_the_connection_goes_on() {
    both(|fixture, mut client| {
        let long = vec![7; (32 << 20) + 512];
        let cases: [(u16, u64, &[u8], u32); 6] = [
            (0, SIZE - 512, &[7; 1024], ENOSPC),
            (0, 100, &[7; 512], EINVAL),
            (0, 0, &[7; 100], EINVAL),
            (0, 0, &[], EINVAL),
            (DF, 0, &[7; 512], EINVAL),
            (0, 0, &long, EINVAL),
        ];
        for (flags, offset, payload, error) in cases {
            // The payload looks like requests if it is not skipped exactly.
            let cookie = client.submit(WRITE, flags, offset, payload.len() as u32, payload);
            let next = client.submit(READ, 0, 0, 512, &[]);
            assert_eq!(client.wait(cookie).error, error);
            assert_eq!(client.wait(next).read(0, 512), [0; 512]);
        }
        assert_eq!(fixture.device.calls.writes.load(Relaxed), 0);
    });
}

#[test]
fn an_absurdly_long_write_ends_the_session() {
    let fixture = fixture();
    let mut client = fixture.client(false);
    client.write(0, &[1; 512]);
    client.submit(WRITE, 0, 0, u32::MAX, &[]);
    client.assert_closed();
}

#[test]
fn a_wrong_magic_ends_the_session_after_the_answers() {
    let fixture = fixture();
    let mut client = fixture.client(false);
    let (cookie, mut bytes) = client.make(READ, 0, 0, 512, &[]);
    bytes.extend_from_slice(&[0; 28]);
    client.send(&bytes);
    assert_eq!(client.wait(cookie).read(0, 512), [0; 512]);
    client.assert_closed();
}

#[test]
fn disc_ends_the_session_after_the_answers() {
    both(|fixture, mut client| {
        fixture.device.cold.store(true, Relaxed);
        let (cookie, mut bytes) = client.make(READ, 0, 0, 512, &[]);
        let (write, more) = client.make(WRITE, 0, 512, 512, &[3; 512]);
        bytes.extend(more);
        bytes.extend(request(DISC, 0, 0, 0, 0, &[]));
        bytes.extend(request(WRITE, 0, 99, 0, 512, &[4; 512])); // must not be looked at
        client.send(&bytes);
        assert_eq!(client.wait(write).error, 0);
        assert_eq!(client.wait(cookie).read(0, 512), [0; 512]);
        client.assert_closed();
        assert_eq!(fixture.device.content()[..1024], [[0; 512], [3; 512]].concat());
    });
}

#[test]
fn a_read_only_export_refuses_writes() {
    let info =
        DeviceInfo { size: SIZE, block_size: 512, preferred_size: 4096, read_only: true, uuid: Uuid::nil() };
    let fixture = start(MemDevice::with_info(info), |_| {});
    let mut client = fixture.client(true);
    assert_eq!(client.call(WRITE, 0, 0, 512, &[1; 512]).error, EPERM);
    assert_eq!(client.call(TRIM, 0, 0, 512, &[]).error, EPERM);
    assert_eq!(client.call(WRITE_ZEROES, 0, 0, 512, &[]).error, EPERM);
    assert_eq!(client.call(FLUSH, 0, 0, 0, &[]).error, 0);
    assert_eq!(client.call(CACHE, 0, 0, 512, &[]).error, 0);
    assert_eq!(client.read(0, 512), [0; 512]);
}

#[test]
fn larger_blocks_are_enforced() {
    let info = DeviceInfo {
        size: SIZE,
        block_size: 4096,
        preferred_size: 4096,
        read_only: false,
        uuid: Uuid::nil(),
    };
    let fixture = start(MemDevice::with_info(info), |_| {});
    let mut client = fixture.client(true);
    assert_eq!(client.call(READ, 0, 512, 4096, &[]).error, EINVAL);
    assert_eq!(client.call(WRITE, 0, 0, 512, &[1; 512]).error, EINVAL);
    assert_eq!(client.call(WRITE, 0, 4096, 4096, &[1; 4096]).error, 0);
}

#[test]
fn the_devices_errors_reach_the_client() {
    both(|fixture, mut client| {
        for (kind, error) in [
            (ErrorKind::NoSpace, ENOSPC),
            (ErrorKind::Io, EIO),
            (ErrorKind::Corrupt, EIO),
            (ErrorKind::Poisoned, EIO),
            (ErrorKind::ReadOnly, EPERM),
            (ErrorKind::Invalid, EINVAL),
        ] {
            *fixture.device.failure.lock() = Some(kind);
            for command in [READ, TRIM, WRITE_ZEROES, CACHE] {
                assert_eq!(client.call(command, 0, 0, 512, &[]).error, error, "{command} {kind:?}");
            }
            assert_eq!(client.call(FLUSH, 0, 0, 0, &[]).error, error);
            assert_eq!(client.call(WRITE, 0, 0, 512, &[1; 512]).error, error);
            assert_eq!(client.call(READ, 0, 0, 128 << 10, &[]).error, error, "a sparse read");
            fixture.device.cold.store(true, Relaxed);
            assert_eq!(client.call(READ, 0, 0, 2 << 20, &[]).error, error, "a worker's read");
            fixture.device.cold.store(false, Relaxed);
        }
        // A volume that shrank: the device knows better than the check before it.
        *fixture.device.failure.lock() = Some(ErrorKind::OutOfRange);
        assert_eq!(client.call(WRITE, 0, 0, 512, &[1; 512]).error, ENOSPC);
        assert_eq!(client.call(READ, 0, 0, 512, &[]).error, EINVAL);
        *fixture.device.failure.lock() = None;
        assert_eq!(client.read(0, 512), [0; 512]);
    });
}

#[test]
fn errors_carry_their_text_in_structured_replies() {
    let fixture = fixture();
    *fixture.device.failure.lock() = Some(ErrorKind::Io);
    assert_eq!(fixture.client(true).call(FLUSH, 0, 0, 0, &[]).message, "fail as told");
}

#[test]
fn the_first_byte_that_can_not_be_read_reaches_the_client() {
    let fixture = fixture();
    *fixture.device.damaged.lock() = Some(64 << 10);
    for structured in [false, true] {
        let mut client = fixture.client(structured);
        for (offset, length) in [(64 << 10, 4096), (0, 1 << 20), (32 << 10, 64 << 10)] {
            let answer = client.call(READ, 0, offset, length, &[]);
            assert_eq!(answer.error, EIO);
            assert_eq!(answer.error_at, structured.then_some(64 << 10), "{offset} {length}");
        }
        assert_eq!(client.call(READ, 0, 0, 64 << 10, &[]).error, 0);
    }
}

#[test]
fn damaged_ranges_are_a_meta_context() {
    let fixture = fixture();
    *fixture.device.damaged.lock() = Some(64 << 10);
    let mut client = fixture.connect();
    client.flags(3);
    assert_eq!(client.opt_kind(8, &[]), 1);
    assert_eq!(client.opt_kind(10, &meta_data("vol", &["hindcast:damaged"])), 1);
    assert_eq!(client.opt_kind(7, &go_data("vol", &[])), 1);
    let answer = client.call(BLOCK_STATUS, 0, 0, 1 << 20, &[]);
    assert_eq!(answer.extents, [(64 << 10, 0), (512, 1), ((1 << 20) - (64 << 10) - 512, 0)]);
    assert_eq!(client.call(BLOCK_STATUS, 0, 0, 4096, &[]).extents, [(4096, 0)]);
}

#[test]
fn writes_that_arrive_together_are_one_call_of_the_device() {
    both(|fixture, mut client| {
        let mut bytes = Vec::new();
        let mut cookies = Vec::new();
        for n in 0..64u64 {
            let (cookie, one) = client.make(WRITE, 0, n * 512, 512, &pattern(n, 512));
            bytes.extend(one);
            cookies.push(cookie);
            let (cookie, one) = client.make(READ, 0, 1 << 20, 512, &[]);
            bytes.extend(one);
            cookies.push(cookie);
        }
        client.send(&bytes);
        cookies.into_iter().for_each(|cookie| assert_eq!(client.wait(cookie).error, 0));
        let calls = &fixture.device.calls;
        assert_eq!(calls.writes.load(Relaxed), 64);
        assert!(calls.write_calls.load(Relaxed) < 16, "{} calls", calls.write_calls.load(Relaxed));
        let expected: Vec<u8> = (0..64).flat_map(|n| pattern(n, 512)).collect();
        assert!(fixture.device.content()[..64 * 512] == expected);
    });
}

#[test]
fn a_complete_request_is_answered_although_the_next_is_incomplete() {
    both(|_, mut client| {
        let (first, mut bytes) = client.make(WRITE, 0, 0, 512, &[1; 512]);
        let (second, rest) = client.make(WRITE, 0, 4096, 300 << 10, &pattern(2, 300 << 10));
        for part in [10, 28, 600] {
            bytes.extend_from_slice(&rest[..part]);
            client.send(&bytes);
            assert_eq!(client.wait(first).error, 0);
            client.send(&rest[part..]);
            assert_eq!(client.wait(second).error, 0);
            assert!(client.read(4096, 300 << 10) == pattern(2, 300 << 10));
            client.write(4096, &vec![0; 300 << 10]);
            bytes = client.make(WRITE, 0, 0, 512, &[1; 512]).1;
            bytes[8..16].copy_from_slice(&first.to_be_bytes());
        }
    });
}

#[test]
fn a_device_that_keeps_payloads_sees_them_unchanged() {
    let fixture = fixture();
    *fixture.device.keep.lock() = Some(Vec::new());
    let mut client = fixture.client(true);
    for n in 0..200 {
        client.write(n * 4096, &pattern(n, 4096));
    }
    let kept = fixture.device.keep.lock().take().unwrap();
    assert!(kept.iter().enumerate().all(|(n, data)| data[..] == pattern(n as u64, 4096)));
}

#[test]
fn a_slow_request_does_not_hold_up_others() {
    both(|fixture, mut client| {
        fixture.device.blocked.close();
        fixture.device.cold.store(true, Relaxed);
        let (flush, mut bytes) = client.make(FLUSH, 0, 0, 0, &[]);
        let (slow, one) = client.make(READ, 0, 0, 512, &[]);
        bytes.extend(one);
        let (durable, one) = client.make(WRITE, FUA, 512, 512, &[5; 512]);
        bytes.extend(one);
        client.send(&bytes);
        fixture.device.blocked.wait_for(3);
        fixture.device.cold.store(false, Relaxed);
        for n in 0..20 {
            client.write(8192, &pattern(n, 4096));
            assert_eq!(client.read(8192, 4096), pattern(n, 4096));
        }
        assert!(![flush, slow, durable].iter().any(|c| client.answered(*c)));
        assert_eq!(fixture.server.stats().traffic.in_flight, 3);
        fixture.device.blocked.open();
        assert_eq!(client.wait(slow).read(0, 512), [0; 512]);
        assert_eq!(client.wait(flush).error, 0);
        assert_eq!(client.wait(durable).error, 0);
    });
}

#[test]
fn a_connection_over_its_limit_is_not_read_from_and_goes_on_later() {
    let fixture = start(MemDevice::new(SIZE), |c| c.max_jobs_per_connection = 2);
    let mut client = fixture.client(true);
    fixture.device.blocked.close();
    let cookies: Vec<u64> = (0..10)
        .map(|_| {
            let (cookie, bytes) = client.make(FLUSH, 0, 0, 0, &[]);
            client.send(&bytes);
            cookie
        })
        .collect();
    // The first is alone and served on the connection's thread or goes to a worker; in no case are
    // there more than two workers at it, and the connection's thread.
    thread::sleep(Duration::from_millis(100));
    assert!(fixture.device.calls.flushes.load(Relaxed) <= 3);
    let mut other = fixture.client(true);
    other.write(0, &[1; 512]);
    assert_eq!(other.read(0, 512), [1; 512], "another connection is served");
    fixture.device.blocked.open();
    cookies.into_iter().for_each(|cookie| assert_eq!(client.wait(cookie).error, 0));
    assert_eq!(fixture.device.calls.flushes.load(Relaxed), 10);
}

/// A wait that a test makes, and a time below which no such wait can be.
const WAIT: Duration = Duration::from_millis(1500);
const SHORT: Duration = Duration::from_millis(1200);

#[test]
fn the_device_is_told_how_long_requests_waited_also_behind_others() {
    let fixture = start(MemDevice::new(SIZE), |c| c.max_jobs_per_connection = 1);
    let mut client = fixture.client(true);
    fixture.device.blocked.close();
    let flushes: Vec<_> = (0..3).map(|_| client.make(FLUSH, 0, 0, 0, &[])).collect();
    client.send(&flushes.iter().flat_map(|(_, bytes)| bytes.clone()).collect::<Vec<u8>>());
    fixture.device.blocked.wait_for(1);
    thread::sleep(WAIT);
    fixture.device.blocked.open();
    flushes.iter().for_each(|(cookie, _)| assert_eq!(client.wait(*cookie).error, 0));
    let took = fixture.device.answered(RequestKind::Flush);
    assert!(took.len() == 3 && took.iter().all(|took| *took >= WAIT), "{took:?}");
}

#[test]
fn a_request_is_timed_when_all_of_it_is_there() {
    both(|fixture, mut client| {
        let (cookie, bytes) = client.make(WRITE, 0, 0, 4096, &[7; 4096]);
        client.send(&bytes[..100]);
        thread::sleep(WAIT);
        client.send(&bytes[100..]);
        assert_eq!(client.wait(cookie).error, 0);
        let took = fixture.device.answered(RequestKind::Write);
        assert!(took.len() == 1 && took[0] < SHORT, "{took:?}");
    });
}

/// A READ whose search for holes waits takes the replies before it along.
#[test]
fn requests_whose_replies_wait_behind_another_are_timed_with_it() {
    let fixture = fixture();
    let mut client = fixture.client(true);
    fixture.device.blocked.close();
    fixture.device.blocks_status.store(true, Relaxed);
    let (short, mut bytes) = client.make(READ, 0, 0, 512, &[]);
    let (long, more) = client.make(READ, 0, 0, 128 << 10, &[]);
    bytes.extend(more);
    client.send(&bytes);
    fixture.device.blocked.wait_for(1);
    thread::sleep(WAIT);
    client.write(0, &[1; 512]);
    fixture.device.blocked.open();
    [short, long].iter().for_each(|cookie| assert_eq!(client.wait(*cookie).error, 0));
    let (reads, writes) =
        (fixture.device.answered(RequestKind::Read), fixture.device.answered(RequestKind::Write));
    assert!(reads.len() == 2 && reads.iter().all(|took| *took >= WAIT), "{reads:?}");
    assert!(writes.len() == 1 && writes[0] < SHORT, "{writes:?}");
}

/// Every request that reaches the device counts once, whichever thread carries it out.
#[test]
fn requests_count_by_kind() {
    both(|fixture, mut client| {
        client.write(0, &[1; 4096]);
        let (one, mut bytes) = client.make(WRITE, 0, 0, 512, &[1; 512]);
        let (two, more) = client.make(WRITE, FUA, 512, 512, &[2; 512]);
        bytes.extend(more);
        client.send(&bytes);
        [one, two].into_iter().for_each(|cookie| assert_eq!(client.wait(cookie).error, 0));
        for cold in [false, true] {
            fixture.device.cold.store(cold, Relaxed);
            client.read(0, 512);
            client.read(0, 2 << 20);
        }
        assert_eq!(client.call(WRITE_ZEROES, 0, 0, 512, &[]).error, 0);
        assert_eq!(client.call(FLUSH, 0, 0, 0, &[]).error, 0);
        for kind in [TRIM, CACHE] {
            assert_eq!(client.call(kind, 0, 0, 4096, &[]).error, 0);
        }
        assert_eq!(client.call(READ, 0, SIZE, 512, &[]).error, EINVAL, "no device was asked");
        assert_eq!(RequestKind::ALL.map(|kind| fixture.device.answered(kind).len()), [4, 4, 1, 2]);
    });
}

#[test]
fn a_client_that_does_not_read_holds_up_nobody_and_is_given_up() {
    let fixture = start(MemDevice::new(SIZE), |c| {
        c.workers = 1;
        c.stall_timeout = Duration::from_secs(2);
    });
    fixture.device.cold.store(true, Relaxed);
    let mut stuck = fixture.client(true);
    for _ in 0..8 {
        stuck.submit(READ, DF, 0, 8 << 20, &[]);
    }
    // Its replies fill its socket; the only worker must be free all the same.
    thread::sleep(Duration::from_millis(300));
    let mut other = fixture.client(true);
    let begin = Instant::now();
    for _ in 0..10 {
        let (one, mut bytes) = other.make(READ, 0, 0, 4096, &[]);
        let (two, more) = other.make(READ, 0, 4096, 4096, &[]);
        bytes.extend(more);
        other.send(&bytes);
        assert_eq!(other.wait(one).error, 0);
        assert_eq!(other.wait(two).error, 0);
    }
    assert!(begin.elapsed() < Duration::from_millis(1500), "{:?}", begin.elapsed());
    let deadline = Instant::now() + Duration::from_secs(15);
    while fixture.server.connections().len() > 1 {
        assert!(Instant::now() < deadline, "the stuck client is still there");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(other.read(0, 512), [0; 512]);
}

#[test]
fn a_client_that_stops_in_mid_request_is_given_up_and_an_idle_one_is_not() {
    let fixture = start(MemDevice::new(SIZE), |c| c.stall_timeout = Duration::from_secs(2));
    let mut idle = fixture.client(true);
    let mut stopped = fixture.client(true);
    stopped.submit(WRITE, 0, 0, 1 << 20, &[1; 1000]);
    stopped.assert_closed();
    assert_eq!(idle.read(0, 512), [0; 512]);
}

#[test]
fn a_device_that_panics_ends_its_connection_only() {
    let fixture = fixture();
    let mut other = fixture.client(true);
    for kind in [READ, FLUSH] {
        let mut client = fixture.client(true);
        fixture.device.cold.store(true, Relaxed);
        fixture.device.broken.store(true, Relaxed);
        let (_, mut bytes) = client.make(kind, 0, 0, if kind == READ { 512 } else { 0 }, &[]);
        bytes.extend(client.make(kind, 0, 0, if kind == READ { 512 } else { 0 }, &[]).1);
        client.send(&bytes);
        client.assert_closed();
        fixture.device.broken.store(false, Relaxed);
        assert_eq!(other.read(0, 512), [0; 512]);
    }
}

#[test]
fn connections_see_each_others_writes() {
    let fixture = fixture();
    let mut clients: Vec<_> = (0..4).map(|n| fixture.client(n % 2 == 0)).collect();
    for round in 0..20u64 {
        let writer = (round % 4) as usize;
        clients[writer].write(round * 512, &pattern(round, 512));
        for client in &mut clients {
            assert_eq!(client.read(round * 512, 512), pattern(round, 512));
        }
    }
}

#[test]
fn many_connections_at_once() {
    let fixture = fixture();
    thread::scope(|scope| {
        for n in 0..8u64 {
            let mut client = fixture.client(n % 2 == 0);
            scope.spawn(move || {
                let base = n << 20;
                for round in 0..50 {
                    let pending: Vec<u64> = (0..16)
                        .map(|i| {
                            client.submit(WRITE, 0, base + i * 4096, 4096, &pattern(round * 100 + i, 4096))
                        })
                        .collect();
                    pending.into_iter().for_each(|c| assert_eq!(client.wait(c).error, 0));
                    let pending: Vec<u64> =
                        (0..16).map(|i| client.submit(READ, 0, base + i * 4096, 4096, &[])).collect();
                    for (i, cookie) in (0..).zip(pending) {
                        let read = client.wait(cookie).read(base + i * 4096, 4096);
                        assert_eq!(read, pattern(round * 100 + i, 4096));
                    }
                }
            });
        }
    });
    // A connection counts to the end when the server has noticed that.
    let end = Instant::now() + Duration::from_secs(10);
    let mut traffic = fixture.server.stats().traffic;
    while traffic.requests_of(Command::Read) < 8 * 50 * 16 && Instant::now() < end {
        thread::sleep(Duration::from_millis(10));
        traffic = fixture.server.stats().traffic;
    }
    assert_eq!(traffic.requests_of(Command::Write), 8 * 50 * 16);
    assert_eq!(traffic.requests_of(Command::Read), 8 * 50 * 16);
    assert_eq!((traffic.bytes_read, traffic.bytes_written), (8 * 50 * 16 * 4096, 8 * 50 * 16 * 4096));
    assert_eq!((traffic.errors, traffic.in_flight), (0, 0));
}

#[test]
fn requests_and_errors_are_counted_also_after_the_connection_is_gone() {
    let fixture = fixture();
    let mut client = fixture.client(true);
    client.write(0, &[0; 4096]);
    client.call(READ, 0, SIZE, 512, &[]);
    client.call(BLOCK_STATUS, 0, 0, 4096, &[]);
    let connections = fixture.server.connections();
    assert_eq!(connections.len(), 1);
    assert_eq!((connections[0].peer.as_str(), connections[0].export.as_deref()), ("unix", Some("vol")));
    client.stream.write_all(&request(DISC, 0, 0, 0, 0, &[])).unwrap();
    client.assert_closed();
    let deadline = Instant::now() + Duration::from_secs(10);
    while fixture.server.stats().connections > 0 {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(2));
    }
    let stats = fixture.server.stats();
    assert_eq!((stats.accepted, stats.refused, stats.failed_negotiations), (1, 0, 0));
    assert_eq!((stats.traffic.errors, stats.traffic.bytes_written), (1, 4096));
    assert_eq!(stats.traffic.requests_of(Command::BlockStatus), 1);
}
