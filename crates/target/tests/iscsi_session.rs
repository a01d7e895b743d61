//! Sessions: data transfer, digests, and sessions that come and go.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "common/initiator.rs"]
mod initiator;
#[path = "common/mem.rs"]
mod mem;

use hindcast_target::iscsi::pdu::{Bhs, FINAL, NO_TAG, RejectReason, opcode};
use hindcast_target::scsi::{LogicalUnit, LuOptions};
use initiator::{ABORT_TASK, Fixture, SIZE, SOLICITED, encode, pattern};
use mem::MemDevice;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const DIGESTS: [(&str, &str); 2] = [("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C")];
/// Unsolicited data of 2 KiB, bursts of 4 KiB.
const SMALL: [(&str, &str); 4] = [
    ("InitialR2T", "No"),
    ("FirstBurstLength", "2048"),
    ("MaxBurstLength", "4096"),
    ("MaxOutstandingR2T", "2"),
];

#[test]
fn data_comes_in_pieces_that_the_initiator_takes() {
    let fixture = Fixture::new();
    let data = pattern(3, 64 << 10);
    for segment in ["512", "8192", "65000", "16777215"] {
        for digests in [&[][..], &DIGESTS] {
            let mut keys = vec![("MaxRecvDataSegmentLength", segment), ("MaxBurstLength", "16384")];
            keys.extend_from_slice(digests);
            let mut wire = fixture.session_with(&keys);
            wire.write(8, &data[..8192]);
            assert_eq!(wire.read(8, 16), data[..8192]);
            assert_eq!(wire.read(0, 128).len(), 64 << 10);
        }
    }
}

#[test]
fn reads_that_have_to_wait_are_answered_too() {
    let fixture = Fixture::new();
    let mut wire = fixture.session();
    let data = pattern(1, 4096);
    wire.write(0, &data);
    fixture.device.cold.store(true, Ordering::Relaxed);
    let commands: Vec<Bhs> = (0..8).map(|_| wire.read_command(0, 8)).collect();
    let bytes: Vec<u8> = commands.iter().flat_map(|bhs| wire.bytes(bhs, &[])).collect();
    wire.stream.write_all(&bytes).unwrap();
    let mut tags: Vec<u32> = (0..8)
        .map(|_| {
            let pdu = wire.receive();
            assert_eq!((pdu.status(), &pdu.data), (0, &data));
            pdu.bhs.itt()
        })
        .collect();
    tags.sort_unstable();
    assert_eq!(tags, commands.iter().map(Bhs::itt).collect::<Vec<_>>());
}

#[test]
fn many_writes_of_one_receive_are_one_call_of_the_device() {
    let fixture = Fixture::new();
    let mut wire = fixture.session();
    let before = fixture.device.calls.write_calls.load(Ordering::Relaxed);
    let data = pattern(9, 4096);
    let mut bytes = Vec::new();
    for n in 0..8 {
        let mut bhs = wire.write_command(n * 8, 8);
        bhs.set_data_len(4096);
        bytes.extend(wire.bytes(&bhs, &data));
    }
    wire.stream.write_all(&bytes).unwrap();
    for _ in 0..8 {
        assert_eq!(wire.receive().status(), 0);
    }
    let calls = fixture.device.calls.write_calls.load(Ordering::Relaxed) - before;
    assert!(calls < 8, "{calls} calls");
    assert_eq!(wire.read(56, 8), data);
}

#[test]
fn solicited_data_is_asked_for_burst_by_burst() {
    let fixture = Fixture::new();
    let data = pattern(5, 10240);
    let mut wire = fixture.session_with(&[
        SOLICITED[0],
        SOLICITED[1],
        ("MaxBurstLength", "4096"),
        ("MaxOutstandingR2T", "2"),
    ]);
    let command = wire.write_command(0, 20);
    wire.send(&command, &[]);
    let (first, at0, len0) = wire.r2t(&command, 0);
    let (second, at1, len1) = wire.r2t(&command, 1);
    assert_eq!([(at0, len0), (at1, len1)], [(0, 4096), (4096, 4096)]);
    wire.expect_silence(); // not more than were agreed on
    wire.send_data(&command, first, 0, 0, false, &data[..1000]);
    wire.send_data(&command, first, 1, 1000, true, &data[1000..4096]);
    let (third, at2, len2) = wire.r2t(&command, 2);
    assert_eq!((at2, len2), (8192, 2048));
    wire.send_data(&command, second, 0, 4096, true, &data[4096..8192]);
    wire.send_data(&command, third, 0, 8192, true, &data[8192..]);
    let answer = wire.receive();
    assert_eq!((answer.status(), answer.bhs.u32(36)), (0, 3), "ExpDataSN counts the R2Ts");
    assert_eq!(wire.read(0, 20), data);
}

#[test]
fn unsolicited_data_then_solicited() {
    let fixture = Fixture::new();
    let data = pattern(6, 6144);
    for digests in [&[][..], &DIGESTS] {
        let mut wire = fixture.session_with(&[&SMALL, digests].concat());
        let mut command = wire.write_command(0, 12);
        command.0[1] &= !FINAL;
        command.set_data_len(1024);
        wire.send(&command, &data[..1024]);
        wire.send_data(&command, NO_TAG, 0, 1024, false, &data[1024..1536]);
        wire.send_data(&command, NO_TAG, 1, 1536, true, &data[1536..2048]);
        let (ttt, at, len) = wire.r2t(&command, 0);
        assert_eq!((at, len), (2048, 4096));
        wire.send_data(&command, ttt, 0, 2048, true, &data[2048..]);
        assert_eq!(wire.receive().status(), 0);
        assert_eq!(wire.read(0, 12), data);
    }
}

#[test]
fn data_that_was_not_agreed_on_fails_the_command() {
    let fixture = Fixture::new();
    let data = pattern(7, 4096);
    // Immediate data, and unsolicited data, where only solicited data is allowed; too much of
    // either elsewhere.
    for (keys, more, len) in [(&SOLICITED[..], false, 512), (&SOLICITED, true, 0), (&SMALL, false, 4096)] {
        let mut wire = fixture.session_with(keys);
        let mut command = wire.write_command(0, 8);
        command.set_data_len(len);
        if more {
            command.0[1] &= !FINAL;
        }
        wire.send(&command, &data[..len]);
        assert_eq!(wire.receive().sense(), (0x0b, 0x0c, 0x0c));
        wire.ping();
    }
    let mut wire = fixture.session_with(&SMALL);
    let mut command = wire.write_command(0, 8);
    command.0[1] &= !FINAL;
    wire.send(&command, &[]);
    wire.send_data(&command, NO_TAG, 0, 0, true, &data);
    assert_eq!(wire.receive().sense(), (0x0b, 0x0c, 0x0c));
    assert_eq!(wire.read(0, 8), [0; 4096], "nothing was written");
}

#[test]
fn data_out_of_order_fails_the_command_when_all_has_come() {
    let fixture = Fixture::new();
    let data = pattern(8, 2048);
    let mut wire = fixture.session_with(&SOLICITED);
    // (DataSN, offset) of the two halves
    for halves in [
        [(1, 0), (0, 1024)],
        [(0, 1024), (1, 0)],
        [(0, 0), (0, 1024)],
        [(0, 0), (1, 0)],
        [(27, 0), (28, 1024)],
    ] {
        let command = wire.write_command(0, 4);
        wire.send(&command, &[]);
        let (ttt, _, _) = wire.r2t(&command, 0);
        wire.send_data(&command, ttt, halves[0].0, halves[0].1, false, &data[..1024]);
        wire.send_data(&command, ttt, halves[1].0, halves[1].1, true, &data[1024..]);
        assert_eq!(wire.receive().sense(), (0x0b, 0x47, 0x05), "{halves:?}");
    }
    // Beyond what was asked for, and less than that.
    for (len, expected) in [(3072, (0x0b, 0x0c, 0x0c)), (1024, (0x0b, 0x0c, 0x0d))] {
        let command = wire.write_command(0, 4);
        wire.send(&command, &[]);
        let (ttt, _, _) = wire.r2t(&command, 0);
        wire.send_data(&command, ttt, 0, 0, true, &pattern(1, len));
        assert_eq!(wire.receive().sense(), expected);
    }
    assert_eq!(wire.read(0, 4), [0; 2048]);
}

#[test]
fn data_for_nobody_is_dropped_and_misplaced_data_is_rejected() {
    let fixture = Fixture::new();
    let mut wire = fixture.session_with(&SOLICITED);
    let mut stranger = Bhs::new(0, 0);
    stranger.put_u32(16, 0x7777);
    wire.send_data(&stranger, 5, 0, 0, true, &[1; 512]);
    wire.ping();
    let command = wire.write_command(0, 1);
    wire.send(&command, &[]);
    let (ttt, _, _) = wire.r2t(&command, 0);
    wire.send_data(&command, ttt + 1, 0, 0, true, &[1; 512]);
    assert_eq!(wire.receive().reject(), RejectReason::InvalidPduField as u8);
    wire.send_data(&command, NO_TAG, 0, 0, true, &[1; 512]);
    assert_eq!(wire.receive().reject(), RejectReason::InvalidPduField as u8);
    wire.send_data(&command, ttt, 0, 0, true, &[1; 512]);
    assert_eq!(wire.receive().status(), 0);
}

#[test]
fn residuals_tell_what_was_not_expected_or_not_there() {
    let fixture = Fixture::new();
    let mut wire = fixture.session();
    wire.write(0, &pattern(2, 1024));
    let read1 = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    for (expected, got, residual) in
        [(512, 512, (0, 0)), (1000, 512, (2, 488)), (100, 100, (4, 412)), (0, 0, (4, 512))]
    {
        let pdu = wire.run(0x40, &read1, expected, &[]);
        assert_eq!((pdu.status(), pdu.data.len(), pdu.residual()), (0, got, residual), "{expected}");
        assert_eq!(pdu.data, pattern(2, 512)[..got]);
    }
    // Without the R bit nothing can be sent.
    let pdu = wire.run(0, &read1, 512, &[]);
    assert_eq!((pdu.status(), pdu.residual()), (0, (4, 512)));
    let write1 = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    let pdu = wire.run(0x20, &write1, 1024, &pattern(4, 1024));
    assert_eq!((pdu.status(), pdu.residual()), (0, (2, 512)));
    assert_eq!(wire.read(0, 2), [&pattern(4, 1024)[..512], &pattern(2, 1024)[512..]].concat());
    let pdu = wire.run(0x20, &write1, 100, &pattern(5, 100));
    assert_eq!((pdu.sense(), pdu.residual()), ((5, 0x0e, 0x03), (4, 412)), "a part of a block");
}

// --- digests ---

#[test]
fn a_damaged_header_ends_the_connection() {
    let fixture = Fixture::new();
    let mut wire = fixture.session_with(&DIGESTS);
    let bhs = wire.read_command(0, 1);
    let mut bytes = wire.bytes(&bhs, &[]);
    bytes[40] ^= 1;
    wire.stream.write_all(&bytes).unwrap();
    assert!(wire.is_closed());
    fixture.wait_for("the session to end", || fixture.server.stats().sessions == 0);
    assert_eq!(fixture.server.stats().traffic.digest_errors, 1);
}

#[test]
fn a_damaged_length_is_not_believed() {
    let fixture = Fixture::new();
    let mut wire = fixture.session_with(&DIGESTS);
    let bhs = wire.read_command(0, 1);
    let mut bytes = wire.bytes(&bhs, &[]);
    bytes[5] = 3; // 192 KiB that never come
    wire.stream.write_all(&bytes).unwrap();
    assert!(wire.is_closed());
}

#[test]
fn damaged_data_is_rejected_and_the_command_can_be_sent_again() {
    let fixture = Fixture::new();
    let mut wire = fixture.session_with(&DIGESTS);
    let data = pattern(4, 512);
    let mut command = wire.write_command(0, 1);
    command.set_data_len(512);
    let good = wire.bytes(&command, &data);
    let mut bad = good.clone();
    bad[60] ^= 0x80;
    wire.stream.write_all(&bad).unwrap();
    assert_eq!(wire.receive().reject(), RejectReason::DataDigestError as u8);
    wire.stream.write_all(&good).unwrap();
    assert_eq!(wire.receive().status(), 0, "its CmdSN was not used up");
    assert_eq!(wire.read(0, 1), data);
}

#[test]
fn damaged_data_out_fails_the_command_when_all_has_come() {
    let fixture = Fixture::new();
    let mut wire = fixture.session_with(&[DIGESTS[0], DIGESTS[1], SOLICITED[0], SOLICITED[1]]);
    let data = pattern(4, 1024);
    let command = wire.write_command(0, 2);
    wire.send(&command, &[]);
    let (ttt, _, _) = wire.r2t(&command, 0);
    let mut bhs = wire.data_out(&command, ttt, 0, 0, false);
    bhs.set_data_len(512);
    let mut bytes = wire.bytes(&bhs, &data[..512]);
    *bytes.last_mut().unwrap() ^= 1;
    wire.stream.write_all(&bytes).unwrap();
    assert_eq!(wire.receive().reject(), RejectReason::DataDigestError as u8);
    wire.expect_silence();
    wire.send_data(&command, ttt, 1, 512, true, &data[512..]);
    assert_eq!(wire.receive().sense(), (0x0b, 0x47, 0x05));
    assert_eq!(wire.read(0, 2), [0; 1024]);
}

// --- sessions that come and go ---

#[test]
fn a_session_is_reinstated() {
    let fixture = Fixture::new();
    let mut old = fixture.session_with(&SOLICITED);
    let (command, _) = old.waiting();
    let tsih = old.tsih;
    let mut new = fixture.session();
    assert_ne!(new.tsih, tsih);
    assert!(old.is_closed());
    assert_eq!(fixture.server.stats().sessions, 1);
    assert_eq!(new.manage(ABORT_TASK, 0, command.itt()), 1, "its tasks went with it");
    // Another initiator, or another ISID, is another session.
    let mut other = fixture.connect();
    other.isid[5] = 2;
    other.login(&[]);
    let mut third = fixture.connect();
    third.name = "iqn.2026-11.com.example:other".into();
    third.login(&[]);
    assert_eq!(fixture.server.stats().sessions, 3);
    new.ping();
}

#[test]
fn a_connection_lost_in_the_middle_of_a_write_writes_nothing() {
    let fixture = Fixture::new();
    let mut wire = fixture.session_with(&SOLICITED);
    let command = wire.write_command(0, 4);
    wire.send(&command, &[]);
    let (ttt, _, _) = wire.r2t(&command, 0);
    wire.send_data(&command, ttt, 0, 0, false, &[1; 1024]);
    let mut half = wire.data_out(&command, ttt, 1, 1024, true);
    half.set_data_len(1024);
    let bytes = encode(&half, &[1; 1024], wire.digests);
    wire.stream.write_all(&bytes[..500]).unwrap();
    drop(wire);
    fixture.wait_for("the session to end", || fixture.server.stats().sessions == 0);
    let mut wire = fixture.session();
    assert_eq!(wire.read(0, 4), [0; 2048]);
    assert_eq!(fixture.device.calls.writes.load(Ordering::Relaxed), 0);
}

#[test]
fn logouts() {
    let fixture = Fixture::new();
    let mut wire = fixture.session();
    assert_eq!(wire.logout(2, 0).bhs.u8(2), 2, "no recovery at level 0");
    assert_eq!(wire.logout(1, 77).bhs.u8(2), 1, "no such connection");
    assert_eq!(wire.logout(5, 0).reject(), RejectReason::InvalidPduField as u8);
    let answer = wire.logout(0, 0);
    assert_eq!((answer.opcode(), answer.bhs.u8(2)), (opcode::LOGOUT_RESPONSE, 0));
    assert!(wire.is_closed());
    let mut wire = fixture.session();
    assert_eq!(wire.logout(1, 0).bhs.u8(2), 0);
    assert!(wire.is_closed());
    fixture.wait_for("the sessions to end", || fixture.server.stats().sessions == 0);
}

#[test]
fn a_silent_initiator_is_asked_and_given_up() {
    let fixture = Fixture::with(|c| c.nop_interval = Duration::from_millis(300));
    let mut wire = fixture.session();
    for _ in 0..2 {
        let ping = wire.receive();
        assert_eq!((ping.opcode(), ping.bhs.itt()), (opcode::NOP_IN, NO_TAG));
        assert_ne!(ping.bhs.ttt(), NO_TAG);
        let mut pong = wire.request(opcode::NOP_OUT | 0x40, FINAL);
        pong.put_u32(16, NO_TAG).put_u32(20, ping.bhs.ttt());
        wire.send(&pong, &[]);
    }
    let began = Instant::now();
    assert_eq!(wire.receive().opcode(), opcode::NOP_IN);
    assert!(wire.is_closed());
    assert!(began.elapsed() > Duration::from_millis(400));
    fixture.wait_for("the session to end", || fixture.server.stats().sessions == 0);
}

#[test]
fn a_resized_or_removed_volume_is_told_of() {
    let fixture = Fixture::new();
    let mut wire = fixture.session();
    fixture.lu.notify_resized();
    let event = wire.receive();
    assert_eq!((event.opcode(), event.bhs.itt(), event.bhs.u8(36)), (opcode::ASYNC_MESSAGE, NO_TAG, 0));
    assert_eq!((event.data[4] & 15, event.data[14], event.data[15]), (6, 0x2a, 0x09));
    assert_eq!(wire.run(0, &[0; 6], 0, &[]).sense(), (6, 0x2a, 0x09));
    fixture.daemon.target.set_lun(0, None);
    let event = wire.receive();
    assert_eq!((event.bhs.u8(36), event.data[14], event.data[15]), (0, 0x3f, 0x0e));
    assert_eq!(wire.run(0, &[0; 6], 0, &[]).sense(), (5, 0x25, 0x00), "the unit is gone");
    assert_eq!(wire.run(0x40, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 256, &[]).data.len(), 16);
    let device = Arc::new(MemDevice::new(SIZE));
    let lu = LogicalUnit::new(device, LuOptions::default(), None).unwrap();
    fixture.daemon.target.set_lun(0, Some(lu));
    wire.receive();
}

#[test]
fn a_shutdown_asks_for_logouts_first() {
    let fixture = Fixture::new();
    let mut wire = fixture.session();
    let (server, began) = (fixture.server, Instant::now());
    let stopping = std::thread::spawn(move || server.shutdown(Duration::from_secs(20)));
    let event = wire.receive();
    assert_eq!((event.opcode(), event.bhs.u8(36), event.bhs.u16(42)), (opcode::ASYNC_MESSAGE, 1, 20));
    wire.ping();
    wire.logout(0, 0);
    assert_eq!(stopping.join().unwrap(), 0);
    assert!(began.elapsed() < Duration::from_secs(9), "it did not have to wait");
}

#[test]
fn a_shutdown_does_not_wait_for_ever() {
    let fixture = Fixture::new();
    let mut wire = fixture.session();
    assert_eq!(fixture.server.shutdown(Duration::from_millis(200)), 0, "it ended when nothing more was read");
    wire.receive();
    assert!(wire.is_closed());
}

#[test]
fn a_target_can_be_disconnected() {
    let fixture = Fixture::new();
    let mut one = fixture.session();
    let mut two = fixture.connect();
    two.name = "iqn.2026-11.com.example:other".into();
    two.login(&[]);
    let wait = Duration::from_secs(5);
    assert_eq!(fixture.server.disconnect("iqn.other", None, wait), (0, true));
    assert_eq!(fixture.server.disconnect(initiator::TARGET, Some(&two.name), wait), (1, true));
    assert!(two.is_closed());
    one.ping();
    assert_eq!(fixture.server.disconnect(initiator::TARGET, None, wait), (1, true));
    assert!(one.is_closed());
    assert_eq!(fixture.server.stats().sessions, 0);
}

#[test]
fn a_device_that_panics_costs_the_connection_only() {
    let fixture = Fixture::new();
    let mut wire = fixture.session();
    let mut other = fixture.connect();
    other.isid[5] = 2;
    other.login(&[]);
    fixture.device.cold.store(true, Ordering::Relaxed);
    fixture.device.broken.store(true, Ordering::Relaxed);
    let (one, two) = (wire.read_command(0, 1), wire.read_command(0, 1));
    let both = [wire.bytes(&one, &[]), wire.bytes(&two, &[])].concat();
    wire.stream.write_all(&both).unwrap();
    assert!(wire.is_closed());
    fixture.device.broken.store(false, Ordering::Relaxed);
    other.ping();
    fixture.wait_for("the session to end", || fixture.server.stats().sessions == 1);
}
