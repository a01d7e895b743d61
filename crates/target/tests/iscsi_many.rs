//! Several connections: those of one session, and those of initiators that are slow, silent or
//! greedy beside one that is not.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "common/initiator.rs"]
mod initiator;
#[path = "common/mem.rs"]
mod mem;

use hindcast_target::iscsi::pdu::{Bhs, FINAL, NO_TAG, opcode};
use initiator::{ABORT_TASK, Fixture, LUN_RESET, OPERATIONAL_TO_FULL, SOLICITED, TARGET, Wire, pattern};
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A session with `n` connections. Each keeps its own StatSN; CmdSN is the session's, and the
/// test's to hand out.
fn session_of(fixture: &Fixture, n: u16, keys: &[(&str, &str)]) -> Vec<Wire> {
    let mut leading = fixture.connect();
    leading.login(&[&[("MaxConnections", "4")], keys].concat());
    leading.clear_attentions();
    let mut wires = vec![leading];
    for cid in 1..n {
        let joined = join(fixture, &wires[0], cid);
        wires.push(joined.expect("the connection is taken in"));
    }
    wires
}

fn join(fixture: &Fixture, leading: &Wire, cid: u16) -> Result<Wire, u16> {
    let mut wire = fixture.connect();
    (wire.tsih, wire.isid, wire.cid, wire.cmd_sn) = (leading.tsih, leading.isid, cid, leading.cmd_sn);
    wire.itt = u32::from(cid) << 16;
    let response = wire.try_login(&[]);
    match response.login_status() {
        0 => {
            assert_eq!(response.bhs.u16(14), leading.tsih);
            assert_eq!(response.bhs.u32(28), leading.cmd_sn, "the session's ExpCmdSN");
            Ok(wire)
        }
        status => Err(status),
    }
}

#[test]
fn commands_of_all_connections_are_taken_in_one_order() {
    let fixture = Fixture::new();
    let mut wires = session_of(&fixture, 3, &[]);
    assert_eq!(fixture.server.sessions()[0].connections.len(), 3);
    let first = wires[0].cmd_sn;
    for round in 0..50u32 {
        // The later ones come first: they wait until the first has come.
        let base = first + round * 3;
        let commands: Vec<Bhs> = (0..3)
            .map(|n| {
                wires[n].cmd_sn = base + n as u32;
                wires[n].read_command(round, 1)
            })
            .collect();
        for n in [2, 1, 0] {
            wires[n].send(&commands[n], &[]);
        }
        for n in 0..3 {
            assert_eq!(wires[n].collect(commands[n].itt()).len(), 512);
        }
    }
}

#[test]
fn held_writes_get_their_data_on_their_own_connection() {
    let fixture = Fixture::new();
    let mut wires = session_of(&fixture, 2, &SOLICITED);
    let data = pattern(3, 2048);
    wires[1].cmd_sn = wires[0].cmd_sn + 1;
    let held = wires[1].write_command(0, 4);
    wires[1].send(&held, &[]);
    wires[1].expect_silence();
    let gap = wires[0].read_command(0, 1);
    wires[0].send(&gap, &[]);
    wires[0].collect(gap.itt());
    let (ttt, at, len) = wires[1].r2t(&held, 0);
    assert_eq!((at, len), (0, 2048));
    wires[1].send_data(&held, ttt, 0, 0, true, &data);
    assert_eq!(wires[1].receive().status(), 0);
    wires[0].cmd_sn += 1;
    assert_eq!(wires[0].read(0, 4), data);
}

#[test]
fn tasks_are_managed_from_any_connection() {
    let fixture = Fixture::new();
    let mut wires = session_of(&fixture, 2, &SOLICITED);
    for function in [ABORT_TASK, LUN_RESET] {
        let (command, ttt) = wires[0].waiting();
        wires[1].cmd_sn = wires[0].cmd_sn;
        assert_eq!(wires[1].manage(function, 0, command.itt()), 0);
        wires[0].send_data(&command, ttt, 0, 0, true, &[1; 512]);
        wires[0].ping();
    }
    wires[0].clear_attentions();
    assert_eq!(wires[0].read(0, 1), [0; 512]);
}

#[test]
fn joining_has_its_rules() {
    let fixture = Fixture::new();
    let mut leading = fixture.connect();
    leading.login(&[("MaxConnections", "2"), ("MaxBurstLength", "8192")]);
    let mut second = join(&fixture, &leading, 1).unwrap();
    second.ping();
    assert_eq!(join(&fixture, &leading, 2).err(), Some(0x0206), "as many as were agreed on");
    let mut stranger = fixture.connect();
    stranger.tsih = leading.tsih + 1;
    assert_eq!(stranger.try_login(&[]).login_status(), 0x020a);
    let mut other = fixture.connect();
    other.tsih = leading.tsih;
    other.name = "iqn.2026-11.com.example:other".into();
    assert_eq!(other.try_login(&[]).login_status(), 0x020a, "somebody else's session");
    let mut elsewhere = Wire::connect(fixture.address(2));
    elsewhere.tsih = leading.tsih;
    assert_eq!(elsewhere.try_login(&[]).login_status(), 0x020a, "another portal group");
    let mut through = Wire::connect(fixture.address(1));
    (through.tsih, through.cid, through.cmd_sn) = (leading.tsih, 1, leading.cmd_sn);
    let response = through.try_login(&[("MaxBurstLength", "512")]);
    assert_eq!(response.value("MaxBurstLength").as_deref(), Some("Reject"), "the session's keys are fixed");
    through.ping();
    assert!(second.is_closed(), "its CID was taken over");
    leading.ping();
    assert_eq!(fixture.server.sessions()[0].connections.len(), 2);
}

#[test]
fn a_connection_logs_out_alone_and_fails_with_all() {
    let fixture = Fixture::new();
    let mut wires = session_of(&fixture, 3, &[]);
    let cmd_sn = wires[0].cmd_sn;
    wires[1].cmd_sn = cmd_sn;
    assert_eq!(wires[1].logout(1, 1).bhs.u8(2), 0);
    assert!(wires[1].is_closed());
    wires[0].cmd_sn = cmd_sn + 1;
    assert_eq!(wires[0].read(0, 1).len(), 512);
    assert_eq!(wires[0].logout(1, 2).bhs.u8(2), 0, "another one's logout");
    assert!(wires[2].is_closed());
    wires[0].ping();

    let mut wires = session_of(&fixture, 2, &[]);
    drop(wires.pop());
    assert!(wires[0].is_closed(), "level 0 recovers sessions and nothing less");
    fixture.wait_for("the session to end", || fixture.server.stats().sessions == 0);
}

#[test]
fn a_session_logout_ends_all_connections() {
    let fixture = Fixture::new();
    let mut wires = session_of(&fixture, 3, &[]);
    assert_eq!(wires[0].logout(0, 0).bhs.u8(2), 0);
    assert!(wires.iter_mut().all(Wire::is_closed));
    fixture.wait_for("the session to end", || fixture.server.stats().sessions == 0);
}

/// How many reads of 4 KiB one session gets done in `time`, eight at a time.
fn speed(wire: &mut Wire, time: Duration) -> u32 {
    let began = Instant::now();
    let mut done = 0;
    while began.elapsed() < time {
        let commands: Vec<Bhs> = (0..8).map(|n| wire.read_command(n * 8, 8)).collect();
        let bytes: Vec<u8> = commands.iter().flat_map(|bhs| wire.bytes(bhs, &[])).collect();
        wire.stream.write_all(&bytes).unwrap();
        for command in commands {
            assert_eq!(wire.collect(command.itt()).len(), 4096);
        }
        done += 8;
    }
    done
}

/// Another initiator's session.
fn other(fixture: &Fixture, n: u8, keys: &[(&str, &str)]) -> Wire {
    let mut wire = fixture.connect();
    wire.isid[5] = n;
    wire.login(keys);
    wire.clear_attentions();
    wire
}

#[test]
fn misbehaving_initiators_do_not_slow_others_down() {
    let fixture = Fixture::with(|c| c.stall_timeout = Duration::from_secs(2));
    let mut good = other(&fixture, 1, &[]);
    let alone = speed(&mut good, Duration::from_millis(400));
    // Silent: half a PDU, half a login, and nothing more.
    let mut silent: Vec<TcpStream> = Vec::new();
    for n in 0..10 {
        let mut wire = other(&fixture, 20 + n, &[]);
        let mut bhs = wire.write_command(0, 512);
        bhs.set_data_len(256 << 10);
        wire.stream.write_all(&bhs.0).unwrap();
        silent.push(wire.stream);
        silent.push(TcpStream::connect(fixture.address(0)).unwrap());
    }
    // Greedy: reads without end whose data it does not take.
    let mut greedy = Vec::new();
    for n in 0..4 {
        let mut wire = other(&fixture, 40 + n, &[]);
        wire.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        for _ in 0..120 {
            let bhs = wire.read_command(0, 8192);
            if wire.stream.write_all(&bhs.0).is_err() {
                break;
            }
        }
        greedy.push(wire.stream);
    }
    // And writes without end whose data it does not send, while it answers everything else.
    let mut liar = other(&fixture, 60, &SOLICITED);
    for n in 0..100 {
        let bhs = liar.write_command(n, 8192);
        liar.send(&bhs, &[]);
    }
    let beside = speed(&mut good, Duration::from_millis(800)) / 2;
    assert!(beside * 4 > alone, "{beside} beside others, {alone} alone");
    // Its writes are served too.
    let data = pattern(1, 8192);
    let command = good.write_command(0, 16);
    good.send(&command, &[]);
    let (ttt, _, _) = good.r2t(&command, 0);
    good.send_data(&command, ttt, 0, 0, true, &data);
    assert_eq!(good.receive().status(), 0);
    // Those who stall are given up.
    drop(liar);
    fixture.wait_for("the misbehaving to be given up", || {
        good_is_alive(&fixture) && fixture.server.stats().sessions <= 1
    });
    good.ping();
}

fn good_is_alive(fixture: &Fixture) -> bool {
    thread::sleep(Duration::from_millis(20));
    fixture.server.stats().sessions >= 1
}

#[test]
fn writes_beyond_the_limit_are_told_to_come_again() {
    let fixture = Fixture::new();
    let mut wire = other(&fixture, 1, &SOLICITED);
    let mut refused = 0;
    let mut asked: Vec<Bhs> = Vec::new();
    for _ in 0..16 {
        let command = wire.write_command(0, 8192); // 4 MiB
        wire.send(&command, &[]);
        let answer = wire.receive();
        match answer.opcode() {
            opcode::R2T => {
                asked.push(command);
            }
            _ => {
                assert_eq!(answer.status(), 0x28, "TASK SET FULL");
                refused += 1;
            }
        }
    }
    assert_eq!(
        (asked.len(), refused),
        (6, 10),
        "what a connection holds is at most a quarter of what is left"
    );
    for command in &asked {
        assert_eq!(wire.manage(ABORT_TASK, 0, command.itt()), 0);
    }
    let command = wire.write_command(0, 8192);
    wire.send(&command, &[]);
    wire.r2t(&command, 0);
}

#[test]
fn data_that_never_comes_ends_the_connection_even_of_a_talkative_initiator() {
    let fixture = Fixture::with(|c| c.stall_timeout = Duration::from_secs(1));
    let mut wire = other(&fixture, 1, &SOLICITED);
    wire.waiting();
    let began = Instant::now();
    loop {
        let mut bhs = wire.request(opcode::NOP_OUT | 0x40, FINAL);
        bhs.put_u32(20, NO_TAG);
        if wire.stream.write_all(&bhs.0).is_err() || wire.try_receive().is_err() {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(15), "it goes on for ever");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn sessions_come_and_go_while_others_work() {
    let fixture = Arc::new(Fixture::new());
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..3)
        .map(|n| {
            let (fixture, stop) = (fixture.clone(), stop.clone());
            thread::spawn(move || {
                let mut wire = other(&fixture, 10 + n, &[]);
                let data = pattern(n, 4096);
                while !stop.load(Ordering::Relaxed) {
                    wire.write(u32::from(n + 1) * 8, &data);
                    assert!(wire.read(u32::from(n + 1) * 8, 8) == data);
                }
                wire.logout(0, 0);
            })
        })
        .collect();
    for round in 0..60u8 {
        let mut wire = fixture.connect();
        wire.isid[5] = 100 + round % 3; // some are reinstated
        wire.login(&SOLICITED);
        wire.clear_attentions();
        let (command, ttt) = wire.waiting();
        match round % 4 {
            0 => drop(wire),
            1 => {
                wire.send_data(&command, ttt, 0, 0, true, &[0; 512]);
                wire.receive();
            }
            2 => {
                wire.logout(0, 0);
            }
            _ => {
                let bhs = wire.data_out(&command, ttt, 0, 0, true);
                wire.stream.write_all(&bhs.0[..20]).unwrap();
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    fixture.wait_for("all sessions to end", || fixture.server.stats().sessions <= 3);
}

#[test]
fn a_session_may_begin_at_any_portal_of_its_group() {
    let fixture = Fixture::new();
    let mut wire = Wire::connect(fixture.address(1));
    let keys = [("InitiatorName", initiator::NAME), ("TargetName", TARGET)];
    let response = wire.login_step(OPERATIONAL_TO_FULL, &keys);
    wire.logged_in(&response);
    wire.ping();
    assert_eq!(fixture.server.sessions()[0].connections[0].portal, fixture.address(1));
}
