//! Sequence numbers, the order of tasks, and task management.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "common/initiator.rs"]
mod initiator;
#[path = "common/mem.rs"]
mod mem;

use hindcast_engine::device::RequestKind;
use hindcast_target::iscsi::pdu::{Bhs, FINAL, NO_TAG, RejectReason, opcode};
use initiator::{
    ABORT_TASK, ABORT_TASK_SET, BLOCK, CLEAR_ACA, CLEAR_TASK_SET, COLD_RESET, Fixture, LUN_RESET, Pdu,
    REASSIGN, SOLICITED, WARM_RESET, Wire,
};
use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

// --- sequence numbers ---

#[test]
fn commands_outside_the_window_are_ignored() {
    let fixture = Fixture::with(|c| c.queue_depth = 4);
    let mut wire = fixture.session();
    let next = wire.cmd_sn;
    for cmd_sn in [next.wrapping_sub(1), next + 4, next.wrapping_add(1 << 31)] {
        let mut bhs = wire.read_command(0, 1);
        bhs.put_u32(24, cmd_sn);
        wire.send(&bhs, &[]);
    }
    wire.cmd_sn = next;
    wire.ping();
    assert_eq!(wire.read(0, 1).len(), BLOCK);
    assert_eq!(wire.max_cmd_sn, next + 4);
}

#[test]
fn the_window_closes_while_commands_are_under_way() {
    let fixture = Fixture::with(|c| c.queue_depth = 4);
    let mut wire = fixture.session_with(&SOLICITED);
    let commands: Vec<Bhs> = (0..4).map(|n| wire.write_command(n, 1)).collect();
    let mut tags = Vec::new();
    for command in &commands {
        wire.send(command, &[]);
        tags.push(wire.r2t(command, 0).0);
    }
    assert_eq!(wire.max_cmd_sn, wire.cmd_sn.wrapping_sub(1), "closed");
    let late = wire.read_command(0, 1);
    wire.send(&late, &[]);
    wire.expect_silence();
    wire.send_data(&commands[0], tags[0], 0, 0, true, &[1; 512]);
    assert_eq!(wire.receive().status(), 0);
    wire.send(&late, &[]);
    assert_eq!(wire.collect(late.itt()).len(), BLOCK, "open again");
}

#[test]
fn immediate_commands_overtake() {
    let fixture = Fixture::new();
    let mut wire = fixture.session();
    let mut gap = wire.read_command(0, 1);
    let held = wire.read_command(0, 1);
    wire.send(&held, &[]); // one CmdSN is missing before it
    wire.expect_silence();
    let mut bhs = wire.request(opcode::SCSI_COMMAND | 0x40, FINAL | 0x40);
    bhs.put_u32(20, 512).put(32, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    wire.send(&bhs, &[]);
    wire.collect(bhs.itt());
    gap.put_u32(28, wire.exp_stat_sn);
    wire.send(&gap, &[]);
    let mut tags = [wire.receive().bhs.itt(), wire.receive().bhs.itt()];
    tags.sort_unstable();
    assert_eq!(tags, [gap.itt(), held.itt()]);
}

#[test]
fn what_waits_for_its_turn_does_not_outlive_its_session() {
    let fixture = Fixture::new();
    for opcode in [opcode::NOP_OUT, opcode::SCSI_COMMAND] {
        let mut wire = fixture.session();
        let _gap = wire.read_command(0, 1);
        let held = wire.request(opcode, FINAL);
        wire.send(&held, &[]);
        wire.expect_silence();
        drop(wire);
        fixture.wait_for("the connection to be let go of", || fixture.server.stats().connections == 0);
    }
}

#[test]
fn ordered_tasks_wait_and_are_waited_for() {
    let fixture = Fixture::new();
    let mut wire = fixture.session_with(&SOLICITED);
    let first = wire.write_command(0, 1);
    wire.send(&first, &[]);
    let (ttt, _, _) = wire.r2t(&first, 0);
    let mut ordered = wire.read_command(0, 1);
    ordered.0[1] |= 2;
    wire.send(&ordered, &[]);
    let after = wire.read_command(0, 1);
    wire.send(&after, &[]);
    let mut urgent = wire.read_command(0, 1);
    urgent.0[1] |= 3; // head of queue
    wire.send(&urgent, &[]);
    assert_eq!(wire.collect(urgent.itt()), [0; 512]);
    wire.expect_silence();
    wire.send_data(&first, ttt, 0, 0, true, &[7; 512]);
    assert_eq!(wire.receive().bhs.itt(), first.itt());
    assert_eq!(wire.collect(ordered.itt()), [7; 512]);
    assert_eq!(wire.collect(after.itt()), [7; 512]);
}

// --- task management ---

#[test]
fn a_task_is_aborted_and_never_answered() {
    let fixture = Fixture::new();
    let mut wire = fixture.session_with(&SOLICITED);
    let (command, ttt) = wire.waiting();
    assert_eq!(wire.manage(ABORT_TASK, 1, command.itt()), 1, "not at this logical unit");
    assert_eq!(wire.manage(ABORT_TASK, 0, command.itt()), 0);
    wire.send_data(&command, ttt, 0, 0, true, &[1; 512]);
    wire.ping();
    assert_eq!(wire.manage(ABORT_TASK, 0, command.itt()), 1, "it is gone");
    assert_eq!(wire.manage(ABORT_TASK, 0, 0x1234), 1);
    assert_eq!(wire.read(0, 1), [0; 512]);
    assert_eq!(wire.max_cmd_sn.wrapping_sub(wire.cmd_sn), 127, "its place in the window is free");
}

/// A write on which the initiator's abort was answered must never change the medium after that.
#[test]
fn an_abort_is_answered_when_the_write_has_ended() {
    let fixture = Fixture::new();
    let mut wire = fixture.session();
    fixture.device.blocked.close();
    let write = durable_write(&mut wire);
    fixture.device.blocked.wait_for(1);
    let request = wire.task_management(ABORT_TASK, 0, write.itt(), write.cmd_sn());
    wire.expect_silence();
    wire.ping();
    fixture.device.blocked.open();
    let answer = wire.receive();
    assert_eq!((answer.opcode(), answer.bhs.itt()), (opcode::TASK_MANAGEMENT_RESPONSE, request.itt()));
    assert_eq!(answer.bhs.u8(2), 0);
    wire.ping(); // the write itself is not answered
}

#[test]
fn an_abort_of_what_changes_nothing_is_answered_at_once() {
    let fixture = Fixture::new();
    let mut wire = fixture.session();
    fixture.device.cold.store(true, Ordering::Relaxed);
    fixture.device.blocked.close();
    let flush = wire.command(FINAL, &FLUSH, 0);
    wire.send(&flush, &[]);
    fixture.device.blocked.wait_for(1);
    let reads = [wire.read_command(0, 1), wire.read_command(0, 1)];
    let both = reads.map(|read| wire.bytes(&read, &[])).concat();
    wire.stream.write_all(&both).unwrap();
    fixture.device.blocked.wait_for(3);
    for command in [&flush, &reads[0]] {
        assert_eq!(wire.manage(ABORT_TASK, 0, command.itt()), 0);
        assert_eq!(wire.manage(ABORT_TASK, 0, command.itt()), 1, "it is gone, and its tag may be used again");
    }
    fixture.device.blocked.open();
    assert_eq!(wire.receive().bhs.itt(), reads[1].itt());
    wire.ping();
}

const FLUSH: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn durable_write(wire: &mut Wire) -> Bhs {
    let mut write = wire.write_command(0, 1);
    write.0[33] = 8; // FUA
    write.set_data_len(512);
    wire.send(&write, &[1; 512]);
    write
}

/// Whatever waits for a disk, the connection's thread comes back to receiving.
#[test]
fn everything_else_is_answered_while_a_disk_sleeps() {
    type Begin = fn(&mut Wire) -> Bhs;
    let cases: [(&str, Begin); 5] = [
        ("a flush", |wire| {
            let flush = wire.command(FINAL, &FLUSH, 0);
            wire.send(&flush, &[]);
            flush
        }),
        ("a durable write", durable_write),
        ("a write", |wire| {
            let mut write = wire.write_command(0, 1);
            write.set_data_len(512);
            wire.send(&write, &[1; 512]);
            write
        }),
        ("a read", |wire| {
            let read = wire.read_command(0, 1);
            wire.send(&read, &[]);
            read
        }),
        ("a verification", |wire| {
            let verify = wire.command(FINAL, &[0x2f, 0, 0, 0, 0, 0, 0, 0, 1, 0], 0);
            wire.send(&verify, &[]);
            verify
        }),
    ];
    for (name, begin) in cases {
        let fixture = Fixture::new();
        let mut wire = fixture.session();
        fixture.device.cold.store(true, Ordering::Relaxed);
        fixture.device.blocks_all.store(true, Ordering::Relaxed);
        fixture.device.blocked.close();
        let slow = begin(&mut wire);
        fixture.device.blocked.wait_for(1);
        for round in 0..20 {
            let began = Instant::now();
            wire.ping();
            assert!(
                began.elapsed() < Duration::from_millis(500),
                "{name}: a ping took {:?}",
                began.elapsed()
            );
            let mut other = wire.read_command(0, 1);
            other.0[9] = 1;
            wire.send(&other, &[]);
            assert_eq!(wire.collect(other.itt()).len(), 512, "{name}, {round}");
        }
        // Two more that wait do not stop it either.
        let more = [begin(&mut wire), begin(&mut wire)];
        wire.ping();
        fixture.device.blocked.open();
        let mut answered: Vec<u32> = Vec::new();
        while answered.len() < 3 {
            let answer = wire.receive();
            assert_eq!(answer.status(), 0, "{name}");
            answered.push(answer.bhs.itt());
        }
        answered.sort_unstable();
        let mut expected = [slow.itt(), more[0].itt(), more[1].itt()];
        expected.sort_unstable();
        assert_eq!(answered, expected, "{name}");
        wire.ping();
    }
}

/// A reset waits for writes; pings and other logical units do not wait for the reset, nor does a
/// logout.
#[test]
fn a_reset_that_waits_stops_nothing_else() {
    let fixture = Fixture::new();
    let mut wire = fixture.session();
    fixture.device.blocked.close();
    durable_write(&mut wire);
    fixture.device.blocked.wait_for(1);
    wire.task_management(LUN_RESET, 0, NO_TAG, 0);
    wire.expect_silence();
    wire.ping();
    let mut other = wire.read_command(0, 1);
    other.0[9] = 1;
    wire.send(&other, &[]);
    assert_eq!(wire.collect(other.itt()).len(), 512);
    fixture.device.blocked.open();
    assert_eq!(wire.receive().opcode(), opcode::TASK_MANAGEMENT_RESPONSE);
}

/// A logout does not wait for a flush. It waits for writes, because a write must not appear after
/// the end was confirmed.
#[test]
fn a_logout_waits_for_writes_and_for_nothing_else() {
    for (durable, waits) in [(false, false), (true, true)] {
        let fixture = Fixture::new();
        let mut wire = fixture.session();
        fixture.device.blocked.close();
        if durable {
            durable_write(&mut wire);
        } else {
            let flush = wire.command(FINAL, &FLUSH, 0);
            wire.send(&flush, &[]);
        }
        fixture.device.blocked.wait_for(1);
        let mut logout = wire.request(opcode::LOGOUT, FINAL);
        logout.put_u16(20, 0);
        wire.send(&logout, &[]);
        if waits {
            wire.expect_silence();
            fixture.device.blocked.open();
        }
        let answer = wire.receive();
        assert_eq!((answer.opcode(), answer.bhs.u8(2)), (opcode::LOGOUT_RESPONSE, 0));
        fixture.device.blocked.open();
        assert!(wire.is_closed());
        fixture.wait_for("the session to end", || fixture.server.stats().connections == 0);
    }
}

/// Who leaves while long answers wait to be taken leaves nothing behind.
#[test]
fn a_connection_that_breaks_while_it_sends_is_over() {
    let fixture = Fixture::new();
    let mut wire = fixture.session();
    let reads: Vec<u8> = (0..64)
        .flat_map(|_| {
            let read = wire.read_command(0, 2048);
            wire.bytes(&read, &[])
        })
        .collect();
    wire.stream.write_all(&reads).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    drop(wire);
    fixture.wait_for("the connection to end", || fixture.server.stats().connections == 0);
}

#[test]
fn a_command_still_on_its_way_can_be_aborted() {
    let fixture = Fixture::new();
    let mut wire = fixture.session();
    let lost = wire.read_command(0, 1);
    let held = wire.read_command(0, 1);
    wire.send(&held, &[]);
    let request = wire.task_management(ABORT_TASK, 0, lost.itt(), lost.cmd_sn());
    let mut answers = [wire.receive(), wire.receive()];
    answers.sort_by_key(Pdu::opcode);
    assert_eq!((answers[0].bhs.itt(), answers[0].bhs.u8(2)), (request.itt(), 0));
    assert_eq!(answers[1].bhs.itt(), held.itt(), "its number no longer is missing");
    wire.send(&lost, &[]);
    wire.ping();
}

#[test]
fn task_sets_are_aborted_by_logical_unit() {
    let fixture = Fixture::new();
    for function in [ABORT_TASK_SET, CLEAR_TASK_SET, LUN_RESET, WARM_RESET] {
        let mut wire = fixture.session_with(&SOLICITED);
        let (zero, ttt0) = wire.waiting();
        let mut one = wire.write_command(0, 1);
        one.0[9] = 1;
        wire.send(&one, &[]);
        let (ttt1, _, _) = wire.r2t(&one, 0);
        assert_eq!(wire.manage(function, 9, 0), if function == WARM_RESET { 0 } else { 2 }, "no such LUN");
        assert_eq!(wire.manage(function, 0, 0), 0);
        wire.send_data(&zero, ttt0, 0, 0, true, &[1; 512]);
        wire.send_data(&one, ttt1, 0, 0, true, &[1; 512]);
        if function != WARM_RESET {
            assert_eq!(wire.receive().bhs.itt(), one.itt(), "the other logical unit's task lives");
        }
        wire.clear_attentions();
        assert_eq!(wire.read(0, 1), [0; 512]);
        wire.logout(0, 0);
    }
}

#[test]
fn resets_end_the_tasks_of_others_and_tell_them() {
    let fixture = Fixture::new();
    for (function, attention) in
        [(CLEAR_TASK_SET, (6, 0x2f, 0)), (LUN_RESET, (6, 0x29, 3)), (WARM_RESET, (6, 0x29, 3))]
    {
        let mut one = fixture.session();
        let mut two = fixture.connect();
        two.isid[5] = 2;
        two.login(&SOLICITED);
        two.clear_attentions();
        let (command, ttt) = two.waiting();
        assert_eq!(one.manage(function, 0, 0), 0);
        two.send_data(&command, ttt, 0, 0, true, &[1; 512]);
        let answer = two.run(0, &[0; 6], 0, &[]);
        assert_eq!(answer.sense(), attention, "{function}");
        two.clear_attentions();
        two.logout(0, 0);
        one.clear_attentions();
        one.logout(0, 0);
    }
}

#[test]
fn a_cold_reset_ends_all_sessions_of_the_target() {
    let fixture = Fixture::new();
    let mut one = fixture.session();
    let mut two = fixture.connect();
    two.isid[5] = 2;
    two.login(&[]);
    assert_eq!(one.manage(COLD_RESET, 0, 0), 0);
    assert!(one.is_closed());
    assert!(two.is_closed());
    drop((one, two));
    fixture.wait_for("the sessions to end", || fixture.server.stats().sessions == 0);
    fixture.session().ping();
}

#[test]
fn what_is_not_supported_is_said_so() {
    let fixture = Fixture::new();
    let mut wire = fixture.session();
    assert_eq!(wire.manage(REASSIGN, 0, 1), 4);
    assert_eq!(wire.manage(CLEAR_ACA, 0, 0), 5);
    assert_eq!(wire.manage(0x55, 0, 0), 255);
    let snack = wire.request(opcode::SNACK | 0x40, FINAL);
    wire.send(&snack, &[]);
    assert_eq!(wire.receive().reject(), RejectReason::SnackReject as u8);
    let strange = wire.request(0x1c | 0x40, FINAL);
    wire.send(&strange, &[]);
    let rejected = wire.receive();
    assert_eq!(rejected.data, strange.0);
    assert_eq!(rejected.reject(), RejectReason::CommandNotSupported as u8);
    let login = wire.login_request(0x87, &[]);
    wire.send(&login, &[]);
    assert_eq!(wire.receive().reject(), RejectReason::ProtocolError as u8);
    wire.ping();
}

#[test]
fn a_task_tag_in_use_is_refused() {
    let fixture = Fixture::new();
    let mut wire = fixture.session_with(&SOLICITED);
    let (command, ttt) = wire.waiting();
    let mut again = wire.write_command(0, 1);
    again.put_u32(16, command.itt());
    wire.send(&again, &[]);
    assert_eq!(wire.receive().reject(), RejectReason::TaskInProgress as u8);
    wire.send_data(&command, ttt, 0, 0, true, &[1; 512]);
    assert_eq!(wire.receive().status(), 0);
}

/// An initiator that may only read changes nothing for others. One that does not see a logical unit
/// does nothing to it.
#[test]
fn who_may_only_read_aborts_and_resets_nothing() {
    use hindcast_target::scsi::{Access, Limit};
    let fixture = Fixture::new();
    let mut victim = fixture.session_with(&SOLICITED);
    let whole = Access { read_only: true, ..Access::default() };
    let single = Access { limits: [(0, Limit::ReadOnly)].into(), ..Access::default() };
    let masked = Access { luns: Some([1].into()), ..Access::default() };
    let hidden = Access { limits: [(0, Limit::Hidden)].into(), ..Access::default() };
    // At LUN 0: CLEAR TASK SET and LOGICAL UNIT RESET; TARGET WARM RESET; TARGET COLD RESET.
    for (n, (access, expected)) in
        [(whole, [6, 6, 6]), (single, [6, 6, 6]), (masked, [2, 0, 6]), (hidden, [2, 0, 6])]
            .into_iter()
            .enumerate()
    {
        *fixture.daemon.access.lock() = access.clone();
        let mut other = fixture.connect();
        other.isid[5] = 2 + n as u8;
        other.login(&[]);
        other.ping();
        let (command, ttt) = victim.waiting();
        for (function, expected) in [
            (CLEAR_TASK_SET, expected[0]),
            (LUN_RESET, expected[0]),
            (WARM_RESET, expected[1]),
            (COLD_RESET, expected[2]),
        ] {
            assert_eq!(other.manage(function, 0, 0), expected, "{function}: {access:?}");
        }
        assert_eq!(other.manage(ABORT_TASK_SET, 0, 0), if expected[0] == 2 { 2 } else { 0 }, "its own");
        victim.send_data(&command, ttt, 0, 0, true, &[n as u8; 512]);
        assert_eq!(victim.receive().status(), 0, "{access:?}");
        assert_eq!(victim.read(0, 1), [n as u8; 512]);
        other.logout(0, 0);
    }
    *fixture.daemon.access.lock() = Access::default();
    assert_eq!(fixture.session_of(9).manage(COLD_RESET, 0, 0), 0, "who may do everything may do that");
}

// --- times ---

/// A wait that a test makes, and a time below which no such wait can be.
const WAIT: Duration = Duration::from_millis(1500);
const SHORT: Duration = Duration::from_millis(1200);

/// The time of a command begins when all of it has arrived, even if it must wait for its turn.
#[test]
fn the_device_is_told_how_long_commands_waited() {
    let fixture = Fixture::new();
    let mut wire = fixture.session();
    let [first, second] = [0, 1].map(|lba| wire.read_command(lba, 1));
    wire.send(&second, &[]);
    std::thread::sleep(WAIT);
    wire.send(&first, &[]);
    let mut tags = [wire.receive().bhs.itt(), wire.receive().bhs.itt()];
    tags.sort_unstable();
    assert_eq!(tags, [first.itt(), second.itt()]);
    let mut took = fixture.device.answered(RequestKind::Read);
    took.sort_unstable();
    assert!(took.len() == 2 && took[0] < SHORT && took[1] >= WAIT, "{took:?}");

    let mut wire = fixture.session_with(&SOLICITED);
    let (command, tag) = wire.waiting();
    std::thread::sleep(WAIT);
    wire.send_data(&command, tag, 0, 0, true, &[1; 512]);
    assert_eq!(wire.receive().status(), 0);
    let took = fixture.device.answered(RequestKind::Write);
    assert!(took.len() == 1 && took[0] < SHORT, "the initiator took its time: {took:?}");
}

/// Every command that accesses the medium counts once, whichever thread carries it out. An aborted
/// one does not.
#[test]
fn commands_count_by_kind() {
    let fixture = Fixture::new();
    let mut wire = fixture.session();
    wire.write(0, &[1; 2 * BLOCK]);
    durable_write(&mut wire);
    assert_eq!(wire.receive().status(), 0);
    for cold in [false, true] {
        fixture.device.cold.store(cold, Ordering::Relaxed);
        wire.read(0, 1);
        wire.read(0, 4096);
    }
    for cdb in [FLUSH, [0x2f, 0, 0, 0, 0, 0, 0, 0, 1, 0]] {
        assert_eq!(wire.run(FINAL, &cdb, 0, &[]).status(), 0);
    }
    let durable = [0x28, 8, 0, 0, 0, 0, 0, 0, 1, 0];
    let read = wire.command(0x40 | FINAL, &durable, BLOCK as u32);
    wire.send(&read, &[]);
    wire.collect(read.itt());
    // Neither TEST UNIT READY nor RESERVE and RELEASE access the medium.
    for code in [0, 0x16, 0x17] {
        assert_eq!(wire.run(FINAL, &[code, 0, 0, 0, 0, 0], 0, &[]).status(), 0);
    }
    fixture.device.blocked.close();
    let flush = wire.command(FINAL, &FLUSH, 0);
    wire.send(&flush, &[]);
    fixture.device.blocked.wait_for(1);
    assert_eq!(wire.manage(ABORT_TASK, 0, flush.itt()), 0);
    fixture.device.blocked.open();
    wire.ping();
    assert_eq!(RequestKind::ALL.map(|kind| fixture.device.answered(kind).len()), [5, 2, 1, 1]);
}
