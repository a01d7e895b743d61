//! Tests of attacks: what a hostile initiator could do to the server, to other initiators, or to
//! get more rights than it has.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "common/initiator.rs"]
mod initiator;
#[path = "common/mem.rs"]
mod mem;

use hindcast_target::iscsi::chap::Algorithm;
use hindcast_target::iscsi::pdu::{FINAL, NO_TAG, RejectReason, opcode};
use hindcast_target::iscsi::text::{binary, to_hex};
use hindcast_target::iscsi::{AuthPolicy, Denied, IscsiConfig, Secret};
use hindcast_target::scsi::Access;
use initiator::{
    ABORT_TASK, ABORT_TASK_SET, Fixture, LUN_RESET, NAME, OPERATIONAL_TO_FULL, SECURITY_TO_OPERATIONAL,
    SOLICITED, TARGET, Wire, encode, pattern, to_text,
};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// GET LBA STATUS may be asked for 4 GiB, which no answer ever has; the budget for answers must not
/// be asked for it.
#[test]
fn an_allocation_length_takes_no_memory() {
    let fixture = Fixture::new();
    let mut wire = fixture.session();
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x9e, 0x12);
    cdb[10..14].fill(0xff);
    let mut greedy = wire.command(0x40, &cdb, u32::MAX);
    greedy.set_data_len(0);
    let after = wire.command(0, &[0; 6], 0);
    // In one piece, so that the first is not alone and goes to a worker.
    let both = [encode(&greedy, &[], wire.digests), encode(&after, &[], wire.digests)].concat();
    wire.stream.write_all(&both).unwrap();
    let tags = [wire.receive().bhs.itt(), wire.receive().bhs.itt()];
    assert!(tags.contains(&greedy.itt()) && tags.contains(&after.itt()));
    fixture.device.cold.store(true, Ordering::Relaxed);
    assert_eq!(wire.read(0, 64).len(), 64 * 512);
}

/// The server stops reading from an initiator that sends requests and takes no answers.
#[test]
fn answers_that_nobody_takes_do_not_pile_up() {
    const ALL: usize = 40 << 20;
    let fixture = Fixture::with(|c| c.stall_timeout = Duration::from_secs(2));
    let mut wire = fixture.session();
    let mut bhs = wire.request(opcode::TASK_MANAGEMENT | 0x40, FINAL | ABORT_TASK);
    bhs.put_u32(20, 0x1234);
    let many = wire.bytes(&bhs, &[]).repeat(1 << 14);
    wire.stream.set_write_timeout(Some(Duration::from_secs(4))).unwrap();
    let mut sent = 0;
    while sent < ALL && wire.stream.write_all(&many).is_ok() {
        sent += many.len();
    }
    assert!(sent < ALL, "everything was taken in");
}

/// Immediate commands need no place in the window; behind an ordered task they would be kept
/// without end.
#[test]
fn immediate_commands_behind_an_ordered_one_are_bounded() {
    let fixture = Fixture::with(|c| c.queue_depth = 4);
    let mut wire = fixture.session_with(&SOLICITED);
    wire.waiting();
    let mut ordered = wire.read_command(0, 1);
    ordered.0[1] |= 2;
    wire.send(&ordered, &[]);
    let mut rejected = 0;
    for _ in 0..100 {
        let bhs = wire.request(opcode::SCSI_COMMAND | 0x40, FINAL);
        wire.send(&bhs, &[]); // TEST UNIT READY, held up
    }
    let mut last = wire.request(opcode::NOP_OUT | 0x40, FINAL);
    last.put_u32(20, NO_TAG);
    wire.send(&last, &[]);
    loop {
        let answer = wire.receive();
        if answer.opcode() == opcode::NOP_IN {
            break;
        }
        assert_eq!(answer.reject(), RejectReason::TooManyImmediate as u8);
        rejected += 1;
    }
    assert!(rejected > 80, "{rejected}");
}

/// A login has a limit of keys, not each of its requests alone.
#[test]
fn a_login_cannot_go_on_naming_keys() {
    let fixture = Fixture::new();
    fixture.daemon.auth.lock().clone_from(&chap());
    let mut wire = fixture.connect();
    let mut keys = vec![("InitiatorName".to_owned(), NAME.to_owned()), ("TargetName".into(), TARGET.into())];
    for round in 0..100 {
        keys.extend((0..50).map(|n| (format!("X-{round}-{n}"), "1".to_owned())));
        let pairs: Vec<_> = keys.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let answer = wire.login_text(0, &to_text(&pairs));
        if answer.login_status() != 0 {
            assert_eq!(answer.login_status(), 0x0302, "out of resources");
            assert!(round > 1);
            return;
        }
        keys.clear();
    }
    panic!("it goes on for ever");
}

fn chap() -> AuthPolicy {
    let user = hindcast_target::iscsi::ChapUser {
        name: "u".into(),
        secret: hindcast_target::iscsi::Secret::new("a long secret"),
    };
    AuthPolicy::Chap { users: vec![user], mutual: None }
}

/// A request that waits for its turn belongs to a connection, and must not keep it when it is gone.
#[test]
fn what_waits_for_its_turn_goes_with_its_connection() {
    let fixture = Fixture::new();
    for n in 0..3 {
        let mut wire = fixture.connect();
        wire.isid[5] = n;
        wire.login(&[]);
        wire.cmd_sn += 1; // a gap
        let mut bhs = wire.request(opcode::NOP_OUT, FINAL);
        bhs.put_u32(20, NO_TAG);
        wire.send(&bhs, &[]);
        wire.ping();
    }
    fixture.wait_for("connections to be forgotten", || fixture.server.stats().connections == 0);
}

/// Names are one name however they are written: for sessions to be found by, and for rules to be
/// applied to them.
#[test]
fn a_name_in_other_letters_is_no_other_name() {
    let fixture = Fixture::new();
    let mut first = fixture.session();
    let mut second = fixture.connect();
    second.name = NAME.to_uppercase().replace("IQN.", "iqn.");
    let target = TARGET.to_uppercase();
    let keys = [("InitiatorName", second.name.clone()), ("TargetName", target)];
    let keys: Vec<_> = keys.iter().map(|(k, v)| (*k, v.as_str())).collect();
    let response = second.login_step(OPERATIONAL_TO_FULL, &keys);
    second.logged_in(&response);
    assert_eq!(response.login_status(), 0);
    assert!(first.is_closed(), "its session was reinstated");
    fixture.wait_for("the first connection to end", || fixture.server.stats().connections == 1);
    let sessions = fixture.server.sessions();
    assert_eq!(sessions.len(), 1);
    assert_eq!((sessions[0].initiator.as_str(), sessions[0].target.as_deref()), (NAME, Some(TARGET)));
    let (ended, all) = fixture.server.disconnect(TARGET, Some(NAME), Duration::from_secs(5));
    assert_eq!((ended, all), (1, true));
    // The daemon knows a short name, for people. A session under that name would not be found by
    // the target's name.
    let keys = [("InitiatorName", NAME), ("TargetName", "vol")];
    assert_eq!(fixture.connect().login_step(OPERATIONAL_TO_FULL, &keys).login_status(), 0x0203);
}

/// Rules that change during a login hold for it, and a connection gets nothing of its session that
/// it would not get by itself.
#[test]
fn rules_are_asked_again_at_the_end_of_a_login() {
    let fixture = Fixture::new();
    let keys = [("InitiatorName", NAME), ("TargetName", TARGET)];
    let mut wire = fixture.connect();
    assert_eq!(wire.login_step(1 << 2, &keys).login_status(), 0, "let in so far");
    *fixture.daemon.denied.lock() = Some(Denied::Forbidden);
    assert_eq!(wire.login_step(OPERATIONAL_TO_FULL, &[]).login_status(), 0x0202);
    *fixture.daemon.denied.lock() = None;
    assert!(fixture.server.sessions().is_empty());

    let mut leading = fixture.connect();
    leading.login(&[("MaxConnections", "2")]);
    *fixture.daemon.access.lock() = Access { read_only: true, ..Access::default() };
    let mut second = fixture.connect();
    (second.tsih, second.cid, second.cmd_sn) = (leading.tsih, 1, leading.cmd_sn);
    assert_eq!(second.try_login(&[]).login_status(), 0x0202, "it may only read");
    leading.ping();
}

/// A write whose data was gathered is gone once its abort was answered. A session that takes the
/// place of another finds no write of it still on its way.
#[test]
fn a_session_is_not_replaced_before_its_last_write() {
    let fixture = Fixture::new();
    let mut old = fixture.session_with(&SOLICITED);
    fixture.device.blocked.close();
    let mut command = old.write_command(0, 1);
    command.0[33] = 8; // FUA
    old.send(&command, &[]);
    let (ttt, _, _) = old.r2t(&command, 0);
    // Two at a time, so that it is for a worker.
    let ping = {
        let mut bhs = old.request(opcode::NOP_OUT | 0x40, FINAL);
        bhs.put_u32(20, NO_TAG);
        encode(&bhs, &[], old.digests)
    };
    let mut data = old.data_out(&command, ttt, 0, 0, true);
    data.set_data_len(512);
    let bytes = [encode(&data, &[1; 512], old.digests), ping].concat();
    old.stream.write_all(&bytes).unwrap();
    fixture.device.blocked.wait_for(1);
    let address = fixture.address(0);
    let new = thread::spawn(move || {
        let mut wire = Wire::connect(address);
        wire.login(&[]);
        wire
    });
    thread::sleep(Duration::from_millis(300));
    assert!(!new.is_finished(), "the old session still writes");
    fixture.device.blocked.open();
    let mut new = new.join().unwrap();
    new.clear_attentions();
    new.write(0, &pattern(9, 512));
    assert_eq!(new.read(0, 1), pattern(9, 512));
}

/// A reset is answered when what others have on the way to the device is there.
#[test]
fn a_reset_waits_for_the_writes_of_others() {
    let fixture = Fixture::new();
    let mut victim = fixture.session();
    let mut other = fixture.connect();
    other.isid[5] = 77;
    other.login(&[]);
    other.clear_attentions();
    fixture.device.blocked.close();
    let mut command = victim.write_command(0, 1);
    command.0[33] = 8;
    command.set_data_len(512);
    victim.send(&command, &[1; 512]); // alone: on the connection's own thread, which knows no task
    fixture.device.blocked.wait_for(1);
    let reset = other.task_management(LUN_RESET, 0, NO_TAG, 0);
    other.expect_silence();
    fixture.device.blocked.open();
    assert_eq!(other.receive().bhs.itt(), reset.itt());
    assert_eq!(fixture.device.content()[..512], [1; 512]);
}

/// Functions that wait for a task are remembered by it, so there is a limit.
#[test]
fn task_management_that_has_to_wait_is_bounded() {
    let fixture = Fixture::new();
    let mut wire = fixture.session();
    fixture.device.blocked.close();
    let mut write = wire.write_command(0, 1);
    write.0[33] = 8; // FUA
    write.set_data_len(512);
    wire.send(&write, &[1; 512]);
    fixture.device.blocked.wait_for(1);
    let functions: Vec<_> =
        (0..100).map(|_| wire.task_management(ABORT_TASK_SET, 0, NO_TAG, 0).itt()).collect();
    for itt in &functions[16..] {
        let answer = wire.receive();
        assert_eq!((answer.bhs.itt(), answer.bhs.u8(2)), (*itt, 255), "rejected");
    }
    fixture.device.blocked.open();
    for _ in 0..16 {
        let answer = wire.receive();
        assert_eq!((answer.opcode(), answer.bhs.u8(2)), (opcode::TASK_MANAGEMENT_RESPONSE, 0));
        assert!(functions[..16].contains(&answer.bhs.itt()));
    }
    assert_eq!(wire.manage(ABORT_TASK_SET, 0, NO_TAG), 0, "there is room again");
}

/// Commands that may take minutes leave the others their workers.
#[test]
fn long_commands_leave_workers_to_others() {
    let fixture = Fixture::with(|c| c.workers = 8);
    let mut greedy = fixture.session();
    let mut good = fixture.connect();
    good.isid[5] = 77;
    good.login(&[]);
    good.clear_attentions();
    fixture.device.cold.store(true, Ordering::Relaxed);
    fixture.device.blocked.close();
    for _ in 0..8 {
        let bhs = greedy.command(0, &[0x2f, 0, 0, 0, 0, 0, 0, 0, 9, 0], 0); // VERIFY
        greedy.send(&bhs, &[]);
    }
    fixture.device.blocked.wait_for(2);
    // Two commands at once, so that they are not served by the connection's own thread.
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x12, 24);
    let two = [good.command(0x40, &cdb, 24), good.command(0x40, &cdb, 24)];
    good.stream.write_all(&two.map(|bhs| encode(&bhs, &[], good.digests)).concat()).unwrap();
    assert_eq!([good.receive().status(), good.receive().status()], [0, 0]);
    // Nor has one initiator all the workers for long commands.
    let bhs = good.command(0, &[0x2f, 0, 0, 0, 0, 0, 0, 0, 9, 0], 0);
    good.send(&bhs, &[]);
    fixture.device.blocked.wait_for(3);
    fixture.device.blocked.open();
    assert_eq!(good.receive().status(), 0);
    for _ in 0..8 {
        assert_eq!(greedy.receive().status(), 0);
    }
}

/// Discovery needs no rights. So initiators that only discover must not use up the sessions of
/// initiators that have rights, nor those of others that want to discover.
#[test]
fn discovery_leaves_sessions_and_discovery_to_others() {
    let fixture = Fixture::with(|c| c.max_sessions = 8);
    let discover = |n: u8| {
        let mut wire = fixture.connect();
        wire.isid[5] = n;
        let response = wire.try_login(&[("SessionType", "Discovery")]);
        // So many may be on their way out at a time as there may be.
        fixture.wait_for("the oldest to give way", || fixture.server.sessions().len() <= 2);
        (response.login_status(), wire)
    };
    let mut held: Vec<(u16, Wire)> = (0..6).map(discover).collect();
    assert_eq!(held.iter().map(|(status, _)| *status).collect::<Vec<_>>(), [0; 6]);
    fixture.wait_for("the oldest to give way", || fixture.server.sessions().len() == 2);
    for (_, wire) in &mut held[..4] {
        assert!(wire.is_closed());
    }
    drop(fixture.session());
}

/// A connection to this host from an address of one's choice.
fn connect_from(local: [u8; 4], port: u16) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from((local, 0))).unwrap();
    connect(&socket, &SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    TcpStream::from(socket)
}

/// A server that others than this host's 127.0.0.1 reach, too.
fn reachable(change: impl FnOnce(&mut IscsiConfig)) -> (Fixture, u16) {
    let fixture = Fixture::with(|c| {
        change(c);
        c.portals.truncate(1);
        c.portals[0].listen = "0.0.0.0:0".parse().unwrap();
    });
    let port = fixture.address(0).port();
    (fixture, port)
}

/// A login with an ISID of its own, from 127.0.0.`host`.
fn login_from(host: u8, port: u16, isid: u8, keys: &[(&str, &str)]) -> (u16, Wire) {
    let mut wire = Wire::over(connect_from([127, 0, 0, host], port));
    wire.isid[5] = isid;
    let status = wire.try_login(keys).login_status();
    (status, wire)
}

#[test]
fn one_address_cannot_take_all_connections() {
    let (fixture, port) = reachable(|c| (c.max_connections, c.max_connections_per_address) = (8, 3));
    let held: Vec<(u16, Wire)> = (0..3).map(|n| login_from(1, port, n, &[])).collect();
    assert!(held.iter().all(|(status, _)| *status == 0));
    assert!(Wire::over(connect_from([127, 0, 0, 1], port)).is_closed());
    assert_eq!(login_from(2, port, 9, &[]).0, 0);
    drop(held);
    fixture.wait_for("all to end", || fixture.server.stats().connections == 0);
    assert_eq!(login_from(1, port, 1, &[]).0, 0);
}

#[test]
fn one_address_cannot_take_all_sessions() {
    let (_fixture, port) = reachable(|c| (c.max_sessions, c.max_sessions_per_address) = (8, 4));
    let held: Vec<(u16, Wire)> = (0..8).map(|n| login_from(2, port, n, &[])).collect();
    assert_eq!(
        held.iter().map(|(status, _)| *status).collect::<Vec<_>>(),
        [0, 0, 0, 0, 0x302, 0x302, 0x302, 0x302]
    );
    assert_eq!(login_from(3, port, 20, &[]).0, 0);
    assert_eq!(login_from(3, port, 21, &[("SessionType", "Discovery")]).0, 0);
}

/// From however many addresses: an initiator under one name leaves some for others.
#[test]
fn one_initiator_name_cannot_take_all_sessions() {
    let (_fixture, port) = reachable(|c| (c.max_sessions, c.max_sessions_per_address) = (8, 4));
    let held: Vec<(u16, Wire)> = (0..8).map(|n| login_from(2 + n, port, n, &[])).collect();
    assert_eq!(held.iter().filter(|(status, _)| *status == 0).count(), 6);
    let mut other = Wire::over(connect_from([127, 0, 0, 9], port));
    other.name = "iqn.2026-11.org.example:other".into();
    assert_eq!(other.try_login(&[]).login_status(), 0);
}

/// Connections that say nothing displace only connections that say nothing. The source that has
/// most of them loses its first.
#[test]
fn silent_connections_shut_nobody_out() {
    let (fixture, port) = reachable(|c| (c.max_connections, c.max_connections_per_address) = (32, 16));
    let silent: Vec<TcpStream> = (0..60).map(|n| connect_from([127, 0, 0, 10 + n % 6], port)).collect();
    // Eight wait: a quarter of what may be logged in, beside them.
    fixture.wait_for("the others to be gone", || fixture.server.stats().connections == 8);
    for n in 0..20 {
        assert_eq!(login_from(2, port, n, &[]).0, 0, "login {n}");
    }
    drop(silent);
}

#[test]
fn both_wildcard_addresses_may_have_one_port() {
    let fixture = Fixture::with(|c| {
        c.portals.truncate(1);
        c.portals[0].listen = "[::]:0".parse().unwrap();
    });
    let port = fixture.address(0).port();
    let refused = std::net::TcpStream::connect(("127.0.0.1", port));
    assert!(refused.is_err(), "an IPv6 portal serves IPv6");
    let both = Fixture::with(|c| {
        c.portals.truncate(1);
        c.portals[0].listen = ([0, 0, 0, 0], port).into();
    });
    Wire::connect(([127, 0, 0, 1], port).into()).login(&[]);
    assert_eq!(both.address(0).port(), port);
}

/// A bug that ends a connection's thread leaves no session, and no reservation of RESERVE(6),
/// behind.
#[test]
fn a_panic_ends_the_session() {
    let fixture = Fixture::new();
    let mut wire = fixture.session();
    assert_eq!(wire.run(FINAL | 0x40, &[0x16, 0, 0, 0, 0, 0], 0, &[]).status(), 0); // RESERVE(6)
    fixture.device.broken_inline.store(true, Ordering::Relaxed);
    let bhs = wire.read_command(0, 1);
    wire.send(&bhs, &[]);
    assert!(wire.is_closed());
    fixture.wait_for("the session to end", || fixture.server.sessions().is_empty());
    fixture.device.broken_inline.store(false, Ordering::Relaxed);
    let mut other = fixture.connect();
    other.isid[5] = 9;
    other.login(&[]);
    other.clear_attentions();
    assert_eq!(other.read(0, 1).len(), 512);
}

/// The answer to a CHAP proof of an account, from 127.0.0.`host`.
fn prove_from(host: u8, port: u16, account: &str, secret: &str) -> u16 {
    prove_as(NAME, host, port, account, secret)
}

/// The answer to a CHAP proof of an account by `initiator`, from 127.0.0.`host`.
fn prove_as(initiator: &str, host: u8, port: u16, account: &str, secret: &str) -> u16 {
    let mut wire = Wire::over(connect_from([127, 0, 0, host], port));
    wire.login_step(0, &[("InitiatorName", initiator), ("TargetName", TARGET), ("AuthMethod", "CHAP")]);
    let challenged = wire.login_step(0, &[("CHAP_A", "7")]);
    let identifier = challenged.value("CHAP_I").unwrap().parse().unwrap();
    let challenge = binary(&challenged.value("CHAP_C").unwrap(), 99).unwrap();
    let algorithm = Algorithm::from_number(7).unwrap();
    let response = to_hex(&algorithm.response(identifier, &Secret::new(secret), &challenge));
    wire.login_step(SECURITY_TO_OPERATIONAL, &[("CHAP_N", account), ("CHAP_R", &response)]).login_status()
}

/// An initiator with the right secret is let in from every address where no guesses are made.
#[test]
fn secrets_are_not_guessed_at_the_speed_of_the_line() {
    let (fixture, port) = reachable(|_| ());
    *fixture.daemon.auth.lock() = chap();
    for _ in 0..40 {
        assert_eq!(prove_from(3, port, "u", "a long secret"), 0, "it is right, as often as you like");
    }
    let begun = Instant::now();
    let answers: Vec<u16> = (0..200).map(|n| prove_from(2, port, "u", &format!("guess {n}"))).collect();
    let looked_at = answers.iter().filter(|status| **status == 0x0201).count() as u64;
    assert!(looked_at >= 20 && looked_at <= 22 + 2 * begun.elapsed().as_secs(), "{looked_at}");
    assert!(answers.iter().all(|status| [0x0201, 0x0301].contains(status)), "{answers:04x?}");
    assert_eq!(prove_from(3, port, "u", "a long secret"), 0, "another address is not concerned");
    // The right one gets in from there as well, a second later.
    let end = Instant::now() + Duration::from_secs(20);
    while prove_from(2, port, "u", "a long secret") != 0 {
        assert!(Instant::now() < end);
        thread::sleep(Duration::from_millis(100));
    }
}

/// They may share an address: behind a router, or a /64 of IPv6.
#[test]
fn who_guesses_shuts_out_no_other_account_of_its_address() {
    let (fixture, port) = reachable(|_| ());
    *fixture.daemon.auth.lock() = chap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let guessers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut refused = 0;
                    while !done.load(Ordering::Relaxed) {
                        refused += u32::from(prove_from(2, port, "somebody", "a wrong secret") == 0x0301);
                    }
                    refused
                })
            })
            .collect();
        thread::sleep(Duration::from_secs(1));
        let answers: Vec<u16> = (0..20).map(|_| prove_from(2, port, "u", "a long secret")).collect();
        done.store(true, Ordering::Relaxed);
        let refused: u32 = guessers.into_iter().map(|guesser| guesser.join().unwrap()).sum();
        assert!(refused > 0, "they were too slow");
        assert_eq!(answers, [0; 20], "{answers:04x?}");
    });
    // Nor is one that has been right shut out by guesses at its own account.
    let other = "iqn.2024-01.org.example:guesser";
    let guess = || prove_as(other, 2, port, "u", "a wrong secret");
    while guess() != 0x0301 {}
    assert_eq!(prove_from(2, port, "u", "a long secret"), 0);
}
