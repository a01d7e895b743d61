//! EXTENDED COPY between targets: an initiator reaches the logical units of all its sessions, each
//! by the rules of its session.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "common/initiator.rs"]
mod initiator;
#[path = "common/mem.rs"]
mod mem;

use hindcast_engine::device::DeviceInfo;
use hindcast_target::iscsi::chap::Algorithm;
use hindcast_target::iscsi::pdu::opcode;
use hindcast_target::iscsi::text::{binary, to_hex};
use hindcast_target::iscsi::{
    AuthPolicy, ChapUser, Denied, Grant, Initiator, IscsiConfig, IscsiServer, Portal, Secret, TargetEntry,
    Targets,
};
use hindcast_target::scsi::{Access, LogicalUnit, LuOptions, Target};
use initiator::{NAME, OPERATIONAL_TO_FULL, SECURITY_TO_OPERATIONAL, Wire, pattern};
use mem::MemDevice;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use uuid::Uuid;

const SIZE: u64 = 4 << 20;
const NOT_REACHABLE: (u8, u8, u8) = (0x0a, 0x0d, 0x02);
const PROTECTED: (u8, u8, u8) = (0x07, 0x27, 0x00);

/// Each with one logical unit.
struct Two {
    targets: HashMap<String, Arc<Target>>,
    access: Mutex<HashMap<String, Access>>,
    auth: Mutex<HashMap<String, AuthPolicy>>,
}

impl Targets for Two {
    fn list(&self, _: &Initiator<'_>) -> Vec<TargetEntry> {
        Vec::new()
    }

    fn discovery_auth(&self, _: &Initiator<'_>) -> AuthPolicy {
        AuthPolicy::None
    }

    fn login(&self, target: &str, _: &Initiator<'_>) -> Result<Grant, Denied> {
        let auth = self.auth.lock().get(target).cloned().unwrap_or(AuthPolicy::None);
        let access = self.access.lock().get(target).cloned().unwrap_or_default();
        Ok(Grant { name: target.to_owned(), access, auth, alias: None })
    }

    fn open(&self, grant: &Grant) -> Result<Arc<Target>, Denied> {
        self.targets.get(&grant.name).cloned().ok_or(Denied::NotFound)
    }
}

struct Fixture {
    server: IscsiServer,
    two: Arc<Two>,
}

fn name(of: &str) -> String {
    format!("iqn.2026-11.io.hindcast:{of}")
}

/// The identity of the logical unit of a target.
fn uuid(of: &str) -> Uuid {
    let mut bytes = [of.as_bytes()[0] ^ 0x11; 16];
    bytes[0] = 0; // what is folded is not all zeros
    Uuid::from_bytes(bytes)
}

impl Fixture {
    fn new() -> Fixture {
        let target = |of: &str| {
            let uuid = uuid(of);
            let info =
                DeviceInfo { size: SIZE, block_size: 512, preferred_size: 4096, read_only: false, uuid };
            let device = Arc::new(MemDevice::with_info(info));
            let target = Target::new(&name(of), &[1]);
            target.set_lun(0, Some(LogicalUnit::new(device, LuOptions::default(), None).unwrap()));
            (name(of), target)
        };
        let targets = ["a", "b"].map(target).into();
        let two = Arc::new(Two { targets, access: Mutex::default(), auth: Mutex::default() });
        let portals = ["127.0.0.1:0", "[::1]:0"].map(|at| Portal::new(at.parse().unwrap())).to_vec();
        let config = IscsiConfig { portals, ..IscsiConfig::default() };
        Fixture { server: IscsiServer::start(config, two.clone()).unwrap(), two }
    }

    fn connect(&self, portal: usize) -> Wire {
        Wire::connect(self.server.portals()[portal].listen)
    }

    fn session(&self, target: &str) -> Wire {
        self.session_as(target, NAME, 0)
    }

    fn session_as(&self, target: &str, initiator: &str, portal: usize) -> Wire {
        let mut wire = self.connect(portal);
        let target = name(target);
        let keys = [("InitiatorName", initiator), ("TargetName", target.as_str())];
        let response = wire.login_step(OPERATIONAL_TO_FULL, &keys);
        assert_eq!(response.login_status(), 0);
        wire.logged_in(&response);
        ready(&mut wire);
        wire
    }

    fn session_with_secret(&self, target: &str, secret: &str) -> Wire {
        let mut wire = self.connect(0);
        let target = name(target);
        let keys = [("InitiatorName", NAME), ("TargetName", target.as_str()), ("AuthMethod", "CHAP")];
        wire.login_step(0, &keys);
        let asked = wire.login_step(0, &[("CHAP_A", "7")]);
        let challenge = binary(&asked.value("CHAP_C").unwrap(), 99).unwrap();
        let identifier = asked.value("CHAP_I").unwrap().parse().unwrap();
        let response = Algorithm::Sha256.response(identifier, &Secret::new(secret), &challenge);
        let response = to_hex(&response);
        let keys = [("CHAP_N", "alice"), ("CHAP_R", response.as_str())];
        assert_eq!(wire.login_step(SECURITY_TO_OPERATIONAL, &keys).login_status(), 0);
        let response = wire.login_step(OPERATIONAL_TO_FULL, &[]);
        wire.logged_in(&response);
        ready(&mut wire);
        wire
    }

    fn protect(&self, target: &str, secret: &str) {
        let users = vec![ChapUser { name: "alice".into(), secret: Secret::new(secret) }];
        self.two.auth.lock().insert(name(target), AuthPolicy::Chap { users, mutual: None });
    }
}

/// Takes the unit attentions; messages that tell of them may come in between.
fn ready(wire: &mut Wire) {
    loop {
        let command = wire.command(0, &[0; 6], 0);
        wire.send(&command, &[]);
        let mut answer = wire.receive();
        while answer.opcode() == opcode::ASYNC_MESSAGE {
            answer = wire.receive();
        }
        if answer.status() == 0 {
            return;
        }
    }
}

/// Copies the first 8 blocks; the sense if it fails.
fn copy(wire: &mut Wire, source: &str, destination: &str) -> Option<(u8, u8, u8)> {
    let descriptor = |of: &str| {
        let id = uuid(of).into_bytes();
        let mut naa: Vec<u8> = (0..8).map(|n| id[n] ^ id[n + 8]).collect();
        naa[0] = 0x30 | naa[0] & 0x0f;
        let mut descriptor = vec![0xe4, 0, 0, 0, 1, 3, 0, 8];
        descriptor.extend(naa);
        descriptor.resize(28, 0);
        descriptor.extend(512u32.to_be_bytes());
        descriptor
    };
    let mut list = vec![1, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0];
    list.extend(descriptor(source));
    list.extend(descriptor(destination));
    list.extend([0x02, 0, 0, 24, 0, 0, 0, 1, 0, 0, 0, 8]);
    list.extend([0; 16]);
    let mut cdb = [0; 16];
    cdb[0] = 0x83;
    cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
    let answer = wire.run(0x20, &cdb, list.len() as u32, &list);
    (answer.status() != 0).then(|| answer.sense())
}

#[test]
fn what_an_initiator_has_by_other_sessions_is_reached() {
    let fixture = Fixture::new();
    let (mut a, mut b) = (fixture.session("a"), fixture.session("b"));
    let data = pattern(5, 4096);
    a.write(0, &data);
    assert_eq!(copy(&mut a, "a", "b"), None);
    assert_eq!(b.read(0, 8), data);
    b.write(0, &pattern(6, 4096));
    assert_eq!(copy(&mut a, "b", "a"), None, "either way");
    assert_eq!(a.read(0, 8), pattern(6, 4096));
    assert_eq!(copy(&mut b, "b", "b"), None);
    b.logout(0, 0);
    drop(b);
    for _ in 0..500 {
        if fixture.server.stats().sessions == 1 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(copy(&mut a, "a", "b"), Some(NOT_REACHABLE), "the session is over");
}

#[test]
fn what_others_have_is_not_reached() {
    let fixture = Fixture::new();
    let mut a = fixture.session("a");
    let _other = fixture.session_as("b", "iqn.2026-11.com.example:other", 0);
    assert_eq!(copy(&mut a, "a", "b"), Some(NOT_REACHABLE), "another name");
    let _elsewhere = fixture.session_as("b", NAME, 1);
    assert_eq!(copy(&mut a, "a", "b"), Some(NOT_REACHABLE), "the name from another address");
    let _own = fixture.session("b");
    assert_eq!(copy(&mut a, "a", "b"), None);
}

#[test]
fn who_has_not_proven_the_same_reaches_nothing() {
    let fixture = Fixture::new();
    fixture.protect("b", "alice's secret");
    let (mut a, _b) = (fixture.session("a"), fixture.session_with_secret("b", "alice's secret"));
    assert_eq!(copy(&mut a, "b", "a"), Some(NOT_REACHABLE), "nothing was proven");
    a.logout(0, 0);
    fixture.protect("a", "another secret");
    let mut a = fixture.session_with_secret("a", "another secret");
    assert_eq!(copy(&mut a, "b", "a"), Some(NOT_REACHABLE), "another secret of the same user");
    a.logout(0, 0);
    fixture.protect("a", "alice's secret");
    let mut a = fixture.session_with_secret("a", "alice's secret");
    assert_eq!(copy(&mut a, "b", "a"), None);
}

#[test]
fn the_rules_of_the_other_session_hold() {
    let fixture = Fixture::new();
    let (mut a, mut b) = (fixture.session("a"), fixture.session("b"));
    let nexus = fixture.two.targets[&name("b")].nexuses().pop().unwrap();
    nexus.set_access(Access { read_only: true, ..Access::default() });
    assert_eq!(copy(&mut a, "a", "b"), Some(PROTECTED));
    assert_eq!(copy(&mut a, "b", "a"), None, "reading is allowed");
    nexus.set_access(Access { luns: Some([1].into()), ..Access::default() });
    assert_eq!(copy(&mut a, "b", "a"), Some(NOT_REACHABLE), "masked");
    nexus.set_access(Access::default());
    ready(&mut b);
    assert_eq!(copy(&mut a, "a", "b"), None);
    // Another initiator reserves it.
    let mut other = fixture.session_as("b", "iqn.2026-11.com.example:other", 0);
    assert_eq!(other.run(0, &[0x16, 0, 0, 0, 0, 0], 0, &[]).status(), 0);
    assert_eq!(copy(&mut a, "a", "b"), Some(NOT_REACHABLE));
}
