//! The login phase: negotiation, stages, authentication, discovery, and requests that no initiator
//! should send.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "common/initiator.rs"]
mod initiator;
#[path = "common/mem.rs"]
mod mem;

use hindcast_target::iscsi::chap::Algorithm;
use hindcast_target::iscsi::pdu::{Bhs, CONTINUE, FINAL, NO_TAG, RejectReason, opcode};
use hindcast_target::iscsi::text::{binary, to_hex};
use hindcast_target::iscsi::{AuthPolicy, ChapUser, Denied, DigestPolicy, Secret};
use initiator::{
    Fixture, NAME, OPERATIONAL_TO_FULL, Pdu, SECURITY_TO_FULL, SECURITY_TO_OPERATIONAL, TARGET, Wire, to_text,
};
use std::io::Write;
use std::time::{Duration, Instant};

const WHO: [(&str, &str); 2] = [("InitiatorName", NAME), ("TargetName", TARGET)];

fn with<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    WHO.iter().chain(more).copied().collect()
}

/// What one offered key is answered by, and that the login succeeds.
fn answer(fixture: &Fixture, key: &str, value: &str) -> Option<String> {
    let mut wire = fixture.connect();
    let response = wire.login(&[(key, value)]);
    response.value(key)
}

#[test]
fn keys_are_negotiated_by_their_rules() {
    let fixture = Fixture::new();
    let cases = [
        ("HeaderDigest", "CRC32C,None", Some("CRC32C")),
        ("HeaderDigest", "None,CRC32C", Some("None")),
        ("DataDigest", "SHA,CRC32C", Some("CRC32C")),
        ("DataDigest", "SHA", Some("Reject")),
        ("MaxConnections", "4", Some("4")),
        ("MaxConnections", "65535", Some("8")),
        ("MaxConnections", "0", Some("Reject")),
        ("InitialR2T", "No", Some("No")),
        ("InitialR2T", "Yes", Some("Yes")),
        ("InitialR2T", "yes", Some("Reject")),
        ("ImmediateData", "No", Some("No")),
        ("ImmediateData", "Yes", Some("Yes")),
        ("MaxBurstLength", "16777215", Some("1048576")),
        ("MaxBurstLength", "512", Some("512")),
        ("MaxBurstLength", "511", Some("Reject")),
        ("MaxBurstLength", "16777216", Some("Reject")),
        ("MaxBurstLength", "0x4000", Some("16384")),
        ("FirstBurstLength", "99999999999999999999999", Some("Reject")),
        ("FirstBurstLength", "65536", Some("65536")),
        ("MaxOutstandingR2T", "16", Some("4")),
        ("DataPDUInOrder", "No", Some("Yes")),
        ("DataSequenceInOrder", "No", Some("Yes")),
        ("ErrorRecoveryLevel", "2", Some("0")),
        ("ErrorRecoveryLevel", "3", Some("Reject")),
        ("DefaultTime2Wait", "5", Some("5")),
        ("DefaultTime2Retain", "20", Some("0")),
        ("DefaultTime2Retain", "3601", Some("Reject")),
        ("iSCSIProtocolLevel", "2", Some("1")),
        ("TaskReporting", "FastAbort,RFC3720", Some("RFC3720")),
        ("TaskReporting", "FastAbort", Some("Reject")),
        ("OFMarker", "No", Some("No")),
        ("IFMarker", "Yes", Some("No")),
        ("IFMarkInt", "2048~4096", Some("Reject")),
        ("X-com.example.speed", "fast", Some("NotUnderstood")),
        ("Nonsense", "1", Some("NotUnderstood")),
        ("MaxRecvDataSegmentLength", "511", Some("Reject")),
    ];
    for (key, offer, expected) in cases {
        assert_eq!(answer(&fixture, key, offer).as_deref(), expected, "{key}={offer}");
    }
    // A declaration is answered by the target's own.
    assert_eq!(answer(&fixture, "MaxRecvDataSegmentLength", "8192").as_deref(), Some("262144"));
}

#[test]
fn the_first_response_tells_the_portal_group_and_the_alias() {
    let fixture = Fixture::new();
    let mut wire = Wire::connect(fixture.address(2));
    let response = wire.login(&[]);
    assert_eq!(response.value("TargetPortalGroupTag").as_deref(), Some("2"));
    assert_eq!(response.value("TargetAlias").as_deref(), Some("a volume"));
    assert_ne!(response.bhs.u16(14), 0, "TSIH");
    assert_eq!(fixture.server.sessions()[0].portal_group, 2);
}

#[test]
fn both_stages_one_after_the_other() {
    let fixture = Fixture::new();
    let mut wire = fixture.connect();
    let first = wire.login_step(0, &with(&[("AuthMethod", "CHAP,None")]));
    assert_eq!((first.login_status(), first.bhs.u8(1)), (0, 0), "no transit was asked for");
    assert_eq!(first.value("AuthMethod").as_deref(), Some("None"));
    let second = wire.login_step(SECURITY_TO_OPERATIONAL, &[]);
    assert_eq!(second.bhs.u8(1), 0x81);
    let third = wire.login_step(0x04, &[("MaxBurstLength", "4096")]);
    assert_eq!((third.bhs.u8(1), third.value("MaxBurstLength").as_deref()), (0x04, Some("4096")));
    let fourth = wire.login_step(OPERATIONAL_TO_FULL, &[("FirstBurstLength", "65536")]);
    assert_eq!(fourth.bhs.u8(1), 0x87);
    wire.logged_in(&fourth);
    wire.ping();
    let keys = &fixture.server.sessions()[0].keys;
    assert!(keys.contains(&("FirstBurstLength", "4096".into())), "never more than MaxBurstLength: {keys:?}");
}

#[test]
fn straight_from_security_to_full_feature() {
    let fixture = Fixture::new();
    let mut wire = fixture.connect();
    let response = wire.login_step(SECURITY_TO_FULL, &with(&[("AuthMethod", "None")]));
    assert_eq!((response.login_status(), response.bhs.u8(1)), (0, 0x83));
    wire.logged_in(&response);
    wire.ping();
}

#[test]
fn operational_keys_wait_for_their_stage() {
    let fixture = Fixture::new();
    let mut wire = fixture.connect();
    let response = wire.login_step(SECURITY_TO_OPERATIONAL, &with(&[("MaxBurstLength", "4096")]));
    assert_eq!(response.value("MaxBurstLength").as_deref(), Some("Reject"));
}

#[test]
fn text_may_be_continued() {
    let fixture = Fixture::new();
    let text = to_text(&with(&[("MaxBurstLength", "8192"), ("X-long", &"v".repeat(3000))]));
    for piece in [1, 7, 50, text.len() - 1] {
        let mut wire = fixture.connect();
        let mut rest = &text[..];
        while rest.len() > piece.max(40) {
            let (head, tail) = rest.split_at(piece.max(40));
            let response = wire.login_text(0x04 | CONTINUE, head);
            assert_eq!((response.login_status(), response.bhs.u8(1), response.data.len()), (0, 0x04, 0));
            rest = tail;
        }
        let response = wire.login_text(OPERATIONAL_TO_FULL, rest);
        assert_eq!(response.value("MaxBurstLength").as_deref(), Some("8192"));
    }
}

/// Sends one first request, and tells how it is refused.
fn refusal(fixture: &Fixture, flags: u8, keys: &[(&str, &str)]) -> u16 {
    let mut wire = fixture.connect();
    let response = wire.login_step(flags, keys);
    let status = response.login_status();
    assert!(status == 0 || wire.is_closed(), "{status:04x}");
    status
}

#[test]
fn what_does_not_fit_is_refused() {
    let fixture = Fixture::new();
    type Case<'a> = (u8, &'a [(&'a str, &'a str)], u16);
    let cases: &[Case<'_>] = &[
        (0x87, &[("TargetName", TARGET)], 0x0207),
        (0x87, &[("InitiatorName", NAME)], 0x0207),
        (0x87, &[("InitiatorName", "somebody"), ("TargetName", TARGET)], 0x0200),
        (0x87, &[("InitiatorName", NAME), ("TargetName", "iqn.2026-11.io.hindcast:none")], 0x0203),
        (0x87, &[WHO[0], WHO[1], ("SessionType", "Other")], 0x0209),
        (0x87, &[WHO[0], WHO[1], ("MaxBurstLength", "512"), ("MaxBurstLength", "1024")], 0x0200),
        (0x87, &[WHO[0], WHO[1], ("AuthMethod", "None")], 0x0200),
        (0x87, &[WHO[0], WHO[1], ("no key", "1")], 0x0200),
        (0x81, &[WHO[0], WHO[1], ("AuthMethod", "KRB5")], 0x0201),
        (0x85, &WHO, 0x0200), // from operational to operational
        (0x86, &WHO, 0x0200), // a stage that does not exist
        (0x8c, &WHO, 0x0200), // a stage that no login begins in
        (0xc7, &WHO, 0x0200), // transit and continue
    ];
    for (flags, keys, expected) in cases {
        assert_eq!(refusal(&fixture, *flags, keys), *expected, "{flags:02x} {keys:?}");
    }
    for (denied, expected) in [
        (Denied::NotFound, 0x0203),
        (Denied::Forbidden, 0x0202),
        (Denied::Removed, 0x0204),
        (Denied::Unavailable, 0x0301),
        (Denied::TooMany, 0x0302),
    ] {
        *fixture.daemon.denied.lock() = Some(denied);
        assert_eq!(refusal(&fixture, 0x87, &WHO), expected);
    }
    assert_eq!(fixture.server.stats().failed_logins, cases.len() as u64 + 5);
    assert_eq!(fixture.server.stats().sessions, 0);
    assert_eq!(*fixture.daemon.opened.lock(), 0, "nobody made the server open anything");
}

#[test]
fn the_stage_and_the_identifiers_stay() {
    let fixture = Fixture::new();
    let mut wire = fixture.connect();
    wire.login_step(0x04, &WHO);
    assert_eq!(wire.login_step(SECURITY_TO_OPERATIONAL, &[]).login_status(), 0x0200, "back to security");
    let mut wire = fixture.connect();
    wire.login_step(0x04, &WHO);
    wire.isid[5] = 9;
    assert_eq!(wire.login_step(OPERATIONAL_TO_FULL, &[]).login_status(), 0x0200, "another ISID");
    let mut wire = fixture.connect();
    wire.login_step(0x04, &WHO);
    wire.cid = 9;
    assert_eq!(wire.login_step(OPERATIONAL_TO_FULL, &[]).login_status(), 0x0200, "another CID");
}

#[test]
fn only_login_requests_of_this_version_come_first() {
    let fixture = Fixture::new();
    let mut wire = fixture.connect();
    let bhs = wire.request(opcode::NOP_OUT | 0x40, FINAL);
    wire.send(&bhs, &[]);
    assert_eq!(wire.receive().login_status(), 0x020b);
    let mut wire = fixture.connect();
    let text = to_text(&WHO);
    let mut bhs = wire.login_request(OPERATIONAL_TO_FULL, &text);
    bhs.0[3] = 1;
    wire.send(&bhs, &text);
    assert_eq!(wire.receive().login_status(), 0x0205);
}

#[test]
fn hostile_lengths_end_the_connection() {
    let fixture = Fixture::with(|c| c.login_timeout = Duration::from_millis(500));
    for len in [8193, 0x00ff_ffff] {
        let mut wire = fixture.connect();
        let mut bhs = wire.login_request(OPERATIONAL_TO_FULL, &[]);
        bhs.set_data_len(len);
        wire.stream.write_all(&bhs.0).unwrap();
        assert!(wire.is_closed());
    }
    // Additional headers that never come, and text without end.
    let mut wire = fixture.connect();
    let mut bhs = wire.login_request(OPERATIONAL_TO_FULL, &[]);
    bhs.0[4] = 255;
    wire.stream.write_all(&bhs.0).unwrap();
    assert!(wire.is_closed());
    let mut wire = fixture.connect();
    let text = vec![b'x'; 8192];
    let status = (0..9).map(|_| wire.login_text(0x04 | CONTINUE, &text).login_status()).find(|s| *s != 0);
    assert_eq!(status, Some(0x0302));
    let mut wire = fixture.connect();
    let many: Vec<(String, &str)> = (0..250).map(|n| (format!("X-{n:050}"), "v")).collect();
    let text: Vec<(&str, &str)> = many.iter().map(|(k, v)| (k.as_str(), *v)).collect();
    let text = to_text(&with(&text));
    let (head, tail) = text.split_at(8000);
    wire.login_text(0x04 | CONTINUE, head);
    assert_eq!(wire.login_text(OPERATIONAL_TO_FULL, tail).login_status(), 0x0200, "the answer would not fit");
    fixture.session().ping();
}

#[test]
fn a_slow_login_ends() {
    let fixture = Fixture::with(|c| c.login_timeout = Duration::from_millis(400));
    let began = Instant::now();
    let mut wire = fixture.connect();
    let bytes = {
        let text = to_text(&WHO);
        let bhs = wire.login_request(OPERATIONAL_TO_FULL, &text);
        wire.bytes(&bhs, &text)
    };
    for byte in bytes {
        if wire.stream.write_all(&[byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(wire.is_closed());
    assert!(began.elapsed() < Duration::from_secs(15));
}

#[test]
fn names_that_can_be_printed_are_let_in() {
    let fixture = Fixture::new();
    for name in [
        "iqn.2008-11.org.linux-kvm:web_01",
        "iqn.2008-11.org.linux-kvm:Win 10",
        "iqn.1991-05.com.microsoft:FS_01.(x)~\u{fc}",
    ] {
        let mut wire = fixture.connect();
        wire.name = name.into();
        wire.login(&[]);
        wire.ping();
        // Reservations know it by that name, too, and TransportIDs have it in them.
        wire.clear_attentions();
        let mut register = [0; 24];
        register[15] = 7;
        let cdb = [0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0];
        assert_eq!(wire.run(0x20, &cdb, 24, &register).status(), 0, "{name}");
        let full = wire.run(0x40, &[0x5e, 3, 0, 0, 0, 0, 0, 2, 0, 0], 512, &[]).data;
        let text = String::from_utf8_lossy(&full).into_owned();
        assert!(text.contains(&format!("{},i,0x", name.to_lowercase())), "{text:?}");
        let unregister = [0, 0, 0, 0, 0, 0, 0, 7].into_iter().chain([0; 16]).collect::<Vec<u8>>();
        assert_eq!(wire.run(0x20, &cdb, 24, &unregister).status(), 0);
        wire.logout(0, 0);
    }
    for name in ["iqn.a\nb", "iqn.a\tb", "iqn.a ", "iqn.a,i,0x00023d000001", "host"] {
        let mut wire = fixture.connect();
        wire.name = name.into();
        assert_eq!(wire.try_login(&[]).login_status(), 0x0200, "{name:?}");
    }
}

// --- CHAP ---

fn chap(mutual: bool) -> AuthPolicy {
    let user = |name: &str, secret: &str| ChapUser { name: name.into(), secret: Secret::new(secret) };
    AuthPolicy::Chap {
        users: vec![user("alice", "alice's secret"), user("carol", "carol's secret")],
        mutual: mutual.then(|| user("target", "target's secret")),
    }
}

fn fixture_with(policy: AuthPolicy) -> Fixture {
    let fixture = Fixture::new();
    *fixture.daemon.auth.lock() = policy;
    fixture
}

/// The challenge that follows an offer of algorithms.
fn challenge(wire: &mut Wire, offer: &str) -> (Algorithm, u8, Vec<u8>) {
    let response = wire.login_step(0, &with(&[("AuthMethod", "CHAP,None")]));
    assert_eq!(response.value("AuthMethod").as_deref(), Some("CHAP"), "what is required is chosen");
    let response = wire.login_step(0, &[("CHAP_A", offer)]);
    assert_eq!(response.login_status(), 0);
    let number = response.value("CHAP_A").unwrap().parse().unwrap();
    let identifier = response.value("CHAP_I").unwrap().parse().unwrap();
    (
        Algorithm::from_number(number).unwrap(),
        identifier,
        binary(&response.value("CHAP_C").unwrap(), 99).unwrap(),
    )
}

fn prove(wire: &mut Wire, name: &str, secret: &str, more: &[(&str, &str)]) -> Pdu {
    let (algorithm, identifier, challenge) = challenge(wire, "7");
    let response = to_hex(&algorithm.response(identifier, &Secret::new(secret), &challenge));
    let mut keys = vec![("CHAP_N", name), ("CHAP_R", response.as_str())];
    keys.extend_from_slice(more);
    wire.login_step(SECURITY_TO_OPERATIONAL, &keys)
}

#[test]
fn chap_lets_in_those_who_know_the_secret() {
    let fixture = fixture_with(chap(false));
    let mut wire = fixture.connect();
    let response = prove(&mut wire, "carol", "carol's secret", &[]);
    assert_eq!((response.login_status(), response.bhs.u8(1)), (0, 0x81));
    let response = wire.login_step(OPERATIONAL_TO_FULL, &[]);
    wire.logged_in(&response);
    wire.ping();
    assert_eq!(fixture.server.sessions()[0].user.as_deref(), Some("carol"));
}

/// Logs in with CHAP; how that ended.
fn login_as(wire: &mut Wire, user: &str) -> u16 {
    let response = prove(wire, user, &format!("{user}'s secret"), &[]);
    assert_eq!(response.login_status(), 0);
    let response = wire.login_step(OPERATIONAL_TO_FULL, &[]);
    wire.logged_in(&response);
    response.login_status()
}

/// A name and an ISID are only said; an account is proven.
#[test]
fn a_session_is_taken_over_only_by_the_account_that_began_it() {
    let fixture = fixture_with(chap(false));
    let mut alice = fixture.connect();
    assert_eq!(login_as(&mut alice, "alice"), 0);
    alice.ping();
    let mut carol = fixture.connect();
    assert_eq!(login_as(&mut carol, "carol"), 0x0202, "the same name and ISID");
    let mut joining = fixture.connect();
    (joining.tsih, joining.cid, joining.cmd_sn) = (alice.tsih, 1, alice.cmd_sn);
    assert_eq!(login_as(&mut joining, "carol"), 0x0202, "nor does it get a connection");
    alice.ping();
    *fixture.daemon.auth.lock() = AuthPolicy::None;
    assert_eq!(fixture.connect().try_login(&[]).login_status(), 0x0202, "nor without an account");
    alice.ping();
    *fixture.daemon.auth.lock() = chap(false);
    let mut again = fixture.connect();
    assert_eq!(login_as(&mut again, "alice"), 0, "itself it may");
    assert!(alice.is_closed());
    again.ping();
    let mut other = fixture.connect();
    other.isid[5] = 77;
    assert_eq!(login_as(&mut other, "carol"), 0, "another session is another's");
    again.ping();
}

/// An initiator gets no session if it began the login before accounts were set, or if it proved an
/// account that does not exist any more.
#[test]
fn accounts_are_asked_again_at_the_end_of_a_login() {
    let fixture = Fixture::new();
    let mut wire = fixture.connect();
    assert_eq!(wire.login_step(1 << 2, &WHO).login_status(), 0, "nothing has to be proven yet");
    *fixture.daemon.auth.lock() = chap(false);
    assert_eq!(wire.login_step(OPERATIONAL_TO_FULL, &[]).login_status(), 0x0201);

    let secret = |secret: &str| ChapUser { name: "alice".into(), secret: Secret::new(secret) };
    let changed = |users| AuthPolicy::Chap { users, mutual: None };
    for (users, expected) in [
        (vec![secret("another secret")], 0x0201),
        (vec![ChapUser { name: "bob".into(), ..secret("alice's secret") }], 0x0201),
        (vec![ChapUser { name: "bob".into(), ..secret("bob's secret") }, secret("alice's secret")], 0),
    ] {
        *fixture.daemon.auth.lock() = chap(false);
        let mut wire = fixture.connect();
        assert_eq!(prove(&mut wire, "alice", "alice's secret", &[]).login_status(), 0);
        *fixture.daemon.auth.lock() = changed(users);
        assert_eq!(wire.login_step(OPERATIONAL_TO_FULL, &[]).login_status(), expected);
    }
}

/// The target's alias is for initiators that may use the target, not for all that reach it.
#[test]
fn the_alias_is_told_to_those_who_have_proven_who_they_are() {
    let fixture = fixture_with(chap(false));
    let mut wire = fixture.connect();
    let first = wire.login_step(0, &with(&[("AuthMethod", "CHAP")]));
    assert_eq!((first.login_status(), first.value("TargetAlias")), (0, None));
    let mut wire = fixture.connect();
    let proven = prove(&mut wire, "carol", "carol's secret", &[]);
    assert_eq!(proven.value("TargetAlias").as_deref(), Some("a volume"));
    *fixture.daemon.auth.lock() = AuthPolicy::None;
    assert_eq!(fixture.connect().login(&[]).value("TargetAlias").as_deref(), Some("a volume"));
}

#[test]
fn a_target_is_opened_once_the_initiator_has_proven_who_it_is() {
    let fixture = fixture_with(chap(false));
    let mut wire = fixture.connect();
    assert_eq!(prove(&mut wire, "carol", "a guess", &[]).login_status(), 0x0201);
    let mut wire = fixture.connect();
    assert_eq!(prove(&mut wire, "carol", "carol's secret", &[]).login_status(), 0);
    assert_eq!(*fixture.daemon.opened.lock(), 0);
    let response = wire.login_step(OPERATIONAL_TO_FULL, &[]);
    wire.logged_in(&response);
    assert!(*fixture.daemon.opened.lock() > 0);

    // It may turn out only then that it can't be.
    *fixture.daemon.full.lock() = true;
    let mut wire = fixture.connect();
    assert_eq!(prove(&mut wire, "alice", "alice's secret", &[]).login_status(), 0);
    assert_eq!(wire.login_step(OPERATIONAL_TO_FULL, &[]).login_status(), 0x0302);
    assert!(wire.is_closed());
    assert_eq!(fixture.server.stats().sessions, 1);
}

#[test]
fn the_first_known_algorithm_is_chosen() {
    let fixture = fixture_with(chap(false));
    for (offer, expected) in [
        ("5", Algorithm::Md5),
        ("6,5", Algorithm::Sha1),
        ("99,7,5", Algorithm::Sha256),
        ("8", Algorithm::Sha3_256),
    ] {
        assert_eq!(challenge(&mut fixture.connect(), offer).0, expected);
    }
    let mut wire = fixture.connect();
    wire.login_step(0, &with(&[("AuthMethod", "CHAP")]));
    assert_eq!(wire.login_step(0, &[("CHAP_A", "4,x")]).login_status(), 0x0201);
}

#[test]
fn chap_refuses_everybody_else() {
    let fixture = fixture_with(chap(false));
    let failures = [("alice", "wrong"), ("alice", "carol's secret"), ("bob", "alice's secret"), ("", "")];
    for (name, secret) in failures {
        let mut wire = fixture.connect();
        assert_eq!(prove(&mut wire, name, secret, &[]).login_status(), 0x0201, "{name}");
        assert!(wire.is_closed());
    }
    // Going around it: other methods, another stage, nothing at all, the wrong order, missing and
    // repeated keys.
    assert_eq!(refusal(&fixture, 0x81, &with(&[("AuthMethod", "None")])), 0x0201);
    assert_eq!(refusal(&fixture, 0x81, &WHO), 0x0201);
    assert_eq!(refusal(&fixture, 0x83, &WHO), 0x0201);
    assert_eq!(refusal(&fixture, 0x87, &WHO), 0x0201);
    assert_eq!(refusal(&fixture, 0x81, &with(&[("CHAP_A", "5")])), 0x0201);
    for keys in [
        &[("CHAP_N", "alice")][..],
        &[("CHAP_R", "0x00")],
        &[],
        &[("CHAP_N", "alice"), ("CHAP_R", "0x00"), ("CHAP_R", "0x01")],
        &[("CHAP_N", "alice"), ("CHAP_R", "junk")],
    ] {
        let mut wire = fixture.connect();
        challenge(&mut wire, "5");
        assert_eq!(wire.login_step(SECURITY_TO_OPERATIONAL, keys).login_status(), 0x0201, "{keys:?}");
    }
    let mut wire = fixture.connect();
    let early = wire.login_step(SECURITY_TO_OPERATIONAL, &with(&[("AuthMethod", "CHAP")]));
    assert_eq!(early.bhs.u8(1), 0, "no transit before the proof");
    assert_eq!(wire.login_step(OPERATIONAL_TO_FULL, &[]).login_status(), 0x0200);
    assert_eq!(fixture.server.stats().sessions, 0);
    assert_eq!(fixture.server.stats().failed_authentications, 4 + 5 + 5);
}

#[test]
fn the_target_proves_itself_too() {
    let fixture = fixture_with(chap(true));
    let mut wire = fixture.connect();
    let mine = [9; 16];
    let more = [("CHAP_I", "77"), ("CHAP_C", "0x09090909090909090909090909090909")];
    let response = prove(&mut wire, "alice", "alice's secret", &more);
    assert_eq!(response.login_status(), 0);
    assert_eq!(response.value("CHAP_N").as_deref(), Some("target"));
    let expected = Algorithm::Sha256.response(77, &Secret::new("target's secret"), &mine);
    assert_eq!(response.value("CHAP_R"), Some(to_hex(&expected)));
    // An initiator that did not prove its identity gets no proof.
    let mut wire = fixture.connect();
    let response = prove(&mut wire, "alice", "wrong", &more);
    assert_eq!((response.login_status(), response.value("CHAP_R")), (0x0201, None));
    for half in [&more[..1], &more[1..]] {
        assert_eq!(prove(&mut fixture.connect(), "alice", "alice's secret", half).login_status(), 0x0201);
    }
}

#[test]
fn a_reflected_challenge_is_refused() {
    let fixture = fixture_with(chap(true));
    let mut wire = fixture.connect();
    let (algorithm, identifier, theirs) = challenge(&mut wire, "7");
    let response = to_hex(&algorithm.response(identifier, &Secret::new("alice's secret"), &theirs));
    let (identifier, theirs) = (identifier.to_string(), to_hex(&theirs));
    let keys =
        [("CHAP_N", "alice"), ("CHAP_R", response.as_str()), ("CHAP_I", &identifier), ("CHAP_C", &theirs)];
    let response = wire.login_step(SECURITY_TO_OPERATIONAL, &keys);
    assert_eq!((response.login_status(), response.value("CHAP_R")), (0x0201, None));
}

#[test]
fn mutual_chap_needs_a_secret_of_its_own() {
    let more = [("CHAP_I", "1"), ("CHAP_C", "0x01020304")];
    let fixture = fixture_with(chap(false));
    assert_eq!(prove(&mut fixture.connect(), "alice", "alice's secret", &more).login_status(), 0x0201);
    let AuthPolicy::Chap { users, .. } = chap(false) else { panic!() };
    let mutual = Some(ChapUser { name: "target".into(), secret: Secret::new("carol's secret") });
    let fixture = fixture_with(AuthPolicy::Chap { users, mutual });
    assert_eq!(prove(&mut fixture.connect(), "alice", "alice's secret", &more).login_status(), 0x0201);
    assert_eq!(
        prove(&mut fixture.connect(), "alice", "alice's secret", &[]).login_status(),
        0,
        "one way it works"
    );
}

#[test]
fn required_digests_are_required() {
    let fixture =
        Fixture::with(|c| (c.header_digest, c.data_digest) = (DigestPolicy::Required, DigestPolicy::Refused));
    assert_eq!(refusal(&fixture, 0x87, &WHO), 0x0200);
    let mut wire = fixture.connect();
    let response = wire.login(&[("HeaderDigest", "None,CRC32C"), ("DataDigest", "CRC32C,None")]);
    assert_eq!(response.value("HeaderDigest").as_deref(), Some("CRC32C"));
    assert_eq!(response.value("DataDigest").as_deref(), Some("None"));
    wire.ping();
}

// --- discovery ---

const DISCOVERY: (&str, &str) = ("SessionType", "Discovery");

#[test]
fn discovery_shows_targets_and_nothing_else() {
    let fixture = Fixture::new();
    fixture.daemon.shown.lock().push("iqn.2026-11.io.hindcast:other".into());
    let mut wire = fixture.connect();
    let response = wire.login(&[DISCOVERY, ("MaxConnections", "4"), ("HeaderDigest", "None")]);
    assert_eq!(response.value("MaxConnections").as_deref(), Some("Irrelevant"));
    assert_eq!(response.value("TargetPortalGroupTag"), None);
    let all = wire.text_request(FINAL, NO_TAG, b"SendTargets=All\0");
    assert_eq!((all.opcode(), all.bhs.u8(1), all.bhs.ttt()), (opcode::TEXT_RESPONSE, FINAL, NO_TAG));
    let text = all.text();
    assert_eq!(text.len(), 8, "two targets with three portals each");
    assert_eq!(text[0], ("TargetName".into(), TARGET.into()));
    assert_eq!(text[1], ("TargetAddress".into(), format!("{},1", fixture.address(0))));
    assert_eq!(text[3], ("TargetAddress".into(), format!("{},2", fixture.address(2))));
    let one = wire.text_request(FINAL, NO_TAG, format!("SendTargets={TARGET}\0").as_bytes());
    assert_eq!(one.text(), text[..4]);
    assert_eq!(wire.text_request(FINAL, NO_TAG, b"SendTargets=iqn.none\0").data, b"");
    assert_eq!(
        wire.text_request(FINAL, NO_TAG, b"SendTargets=\0").value("SendTargets").as_deref(),
        Some("Reject")
    );
    let rejected = wire.run(0x40, &[0x12, 0, 0, 0, 36, 0], 36, &[]);
    assert_eq!((rejected.opcode(), rejected.bhs.u8(2)), (opcode::REJECT, RejectReason::ProtocolError as u8));
    wire.ping();
    assert_eq!(fixture.server.sessions()[0].target, None);
    let answer = wire.logout(0, 0);
    assert_eq!((answer.opcode(), answer.bhs.u8(2)), (opcode::LOGOUT_RESPONSE, 0));
    assert!(wire.is_closed());
}

#[test]
fn a_normal_session_learns_of_its_own_target_only() {
    let fixture = Fixture::new();
    fixture.daemon.shown.lock().push("iqn.2026-11.io.hindcast:other".into());
    let mut wire = fixture.session();
    let own = wire.text_request(FINAL, NO_TAG, b"SendTargets=\0");
    assert_eq!(own.text().len(), 4);
    assert_eq!(own.value("TargetName").as_deref(), Some(TARGET));
    assert_eq!(
        wire.text_request(FINAL, NO_TAG, b"SendTargets=All\0").value("SendTargets").as_deref(),
        Some("Reject")
    );
    assert_eq!(wire.text_request(FINAL, NO_TAG, b"SendTargets=iqn.2026-11.io.hindcast:other\0").data, b"");
    let late = wire.text_request(FINAL, NO_TAG, b"MaxBurstLength=512\0X-a=b\0");
    assert_eq!(late.value("MaxBurstLength").as_deref(), Some("Reject"));
    assert_eq!(late.value("X-a").as_deref(), Some("NotUnderstood"));
    let malformed = wire.text_request(FINAL, NO_TAG, b"garbage\0");
    assert_eq!(
        (malformed.opcode(), malformed.bhs.u8(2)),
        (opcode::REJECT, RejectReason::ProtocolError as u8)
    );
}

#[test]
fn long_lists_come_in_parts() {
    let fixture = Fixture::new();
    *fixture.daemon.shown.lock() = (0..200).map(|n| format!("iqn.2026-11.io.hindcast:v{n}")).collect();
    let mut wire = fixture.connect();
    wire.login(&[DISCOVERY, ("MaxRecvDataSegmentLength", "1000")]);
    let mut text = Vec::new();
    let mut bhs = wire.request(opcode::TEXT, FINAL);
    let itt = bhs.itt();
    bhs.put_u32(20, NO_TAG).set_data_len(16);
    wire.send(&bhs, b"SendTargets=All\0");
    loop {
        let part = wire.receive();
        assert!(part.data.len() <= 1000);
        text.extend(&part.data);
        if part.bhs.u8(1) & CONTINUE == 0 {
            break;
        }
        let mut next = wire.request(opcode::TEXT, FINAL);
        next.put_u32(16, itt).put_u32(20, part.bhs.ttt());
        wire.send(&next, &[]);
    }
    assert_eq!(initiator::text_of(&text).len(), 201 * 4);
}

#[test]
fn limits_on_sessions_and_connections() {
    let fixture = Fixture::with(|c| {
        (c.max_sessions, c.max_sessions_per_address) = (2, 2);
        (c.max_connections, c.max_connections_per_address) = (2, 2);
    });
    let login = |n: u8| {
        let mut wire = fixture.connect();
        wire.isid[5] = n;
        (wire.try_login(&[]).login_status(), wire)
    };
    let held = [login(1), login(2)];
    assert_eq!(held.each_ref().map(|(status, _)| *status), [0, 0]);
    assert!(fixture.connect().is_closed());
    assert_eq!(fixture.server.stats().refused, 1);
    let fixture = Fixture::with(|c| (c.max_sessions, c.max_sessions_per_address) = (1, 1));
    let _one = fixture.session();
    let mut two = fixture.connect();
    two.isid[5] = 2;
    assert_eq!(two.try_login(&[]).login_status(), 0x0302);
    assert!(two.is_closed());
}

#[test]
fn a_request_in_pieces_is_one_request() {
    let fixture = Fixture::new();
    let mut wire = fixture.connect();
    let text = to_text(&WHO);
    let bhs: Bhs = wire.login_request(OPERATIONAL_TO_FULL, &text);
    for piece in wire.bytes(&bhs, &text).chunks(11) {
        wire.stream.write_all(piece).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(wire.receive().login_status(), 0);
}
