//! Tests that rules attach to data. It does not matter through which target an initiator logs in,
//! or whether the operator creates a copy of the volume.

use super::*;
use crate::iscsi::making::Making;
use crate::iscsi::registry::Scope;
use hindcast_target::scsi::Limit;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

const OTHER: &str = "iqn.1993-08.org.debian:01:other";

impl Fixture {
    fn proven(&self, target: &str, user: Option<&str>) -> std::result::Result<Access, Denied> {
        let who = Initiator { proof: Proof::Given(user), ..initiator(HOST, "127.0.0.1") };
        self.target.exports.login(target, &who).map(|grant| grant.access)
    }

    fn limits(&self, target: &str, name: &str) -> Vec<(u16, Limit)> {
        self.login_from(target, name, "127.0.0.1").unwrap().access.limits.into_iter().collect()
    }

    fn account(&self, target: &str, user: &str, secret: &str) -> Result<()> {
        let (user, secret) = (user.to_owned(), secret.to_owned());
        let chap = api::SetChap { user, secret, mutual_user: None, mutual_secret: None, no_mutual: false };
        self.target.set_chap(Some(target), chap)
    }

    /// Keeps the registry from being saved while `work` runs.
    fn unsaved<T>(&self, work: impl FnOnce() -> T) -> T {
        let blocking = self.dir.path().join(format!("{}.new", crate::iscsi::STORED.0));
        std::fs::create_dir(&blocking).unwrap();
        let done = work();
        std::fs::remove_dir(&blocking).unwrap();
        done
    }

    fn snapshot(&self, volume: &str, name: &str) {
        self.pool().create_snapshots(&[(volume, name)]).unwrap();
    }

    fn copy(&self, snapshot: (&str, &str), name: &str) -> Result<Option<api::Inherited>> {
        let making = [Making { name, of: Some(snapshot.0) }];
        let made = self.target.make_volumes(&making, |pool| pool.clone_volume(snapshot.0, snapshot.1, name));
        made.map(|(_, mut inherited)| inherited.pop().unwrap())
    }

    fn make(&self, name: &str) -> Result<()> {
        let new =
            NewVolume { name: name.into(), size: M, chunk_size: 16 << 10, block_size: 512, read_only: false };
        self.target.make_volumes(&[Making { name, of: None }], |pool| pool.create_volume(&new)).map(drop)
    }
}

/// Opens a session over TCP. Returns the connection, and the status of the login.
fn connect(portal: SocketAddr, target: &str, isid: u8) -> (TcpStream, u16) {
    let text = format!("InitiatorName={HOST}\0SessionType=Normal\0TargetName={target}\0");
    let mut pdu = vec![0x43, 0x87, 0, 0, 0, 0, 0, u8::try_from(text.len()).unwrap()];
    pdu.extend([0x80, 0, 0, 0, 0, isid, 0, 0, 0, 0, 0, 1]);
    pdu.resize(48, 0);
    pdu.extend(text.as_bytes());
    pdu.resize(pdu.len().next_multiple_of(4), 0);
    let mut stream = TcpStream::connect(portal).unwrap();
    stream.write_all(&pdu).unwrap();
    let mut answer = [0; 48];
    stream.read_exact(&mut answer).unwrap();
    (stream, u16::from_be_bytes([answer[36], answer[37]]))
}

/// Starts a server with one portal in each of two groups. Returns it with the portals' addresses.
fn two_groups() -> (Fixture, [SocketAddr; 2]) {
    let dir = tempfile::tempdir().unwrap();
    let portal = |group| Portal { group, ..Portal::new("127.0.0.1:0".parse().unwrap()) };
    let config = IscsiConfig { portals: vec![portal(1), portal(2)], ..IscsiConfig::default() };
    let target =
        IscsiTarget::start(&config, open_pool(dir.path()), Latencies::default(), dir.path()).unwrap();
    let addresses = [0, 1].map(|n: usize| target.server.portals()[n].listen);
    (Fixture { dir, target }, addresses)
}

#[test]
fn a_change_of_rules_reaches_the_sessions_of_every_portal_group() {
    let (f, portals) = two_groups();
    f.volume("db");
    f.rule(Some("db"), "*", api::Access::ReadWrite);
    let sessions: Vec<_> = portals.iter().map(|portal| connect(*portal, &iqn("db"), 7)).collect();
    assert!(sessions.iter().all(|(_, status)| *status == 0));
    let shown = |f: &Fixture| -> Vec<(u16, bool, Vec<u16>)> {
        let mut all = f.target.target("db").unwrap().sessions;
        all.sort_by_key(|s| s.portal_group);
        all.into_iter().map(|s| (s.portal_group, s.read_only, s.luns)).collect()
    };
    let may_write = |f: &Fixture| -> Vec<bool> {
        f.target.server.sessions().iter().map(|s| s.nexus.upgrade().unwrap().may_write()).collect()
    };
    assert_eq!(shown(&f), [(1, false, vec![0]), (2, false, vec![0])]);
    let rule = api::AddRule {
        initiator: HOST.into(),
        address: None,
        user: None,
        access: api::Access::ReadOnly,
        luns: None,
        at: Some(1),
    };
    f.target.add_rule(Some("db"), &rule).unwrap();
    assert_eq!(may_write(&f), [false, false]);
    assert_eq!(shown(&f), [(1, true, vec![0]), (2, true, vec![0])]);
    let masked = api::AddRule { luns: Some(vec![7]), ..rule };
    f.target.add_rule(Some("db"), &masked).unwrap();
    assert_eq!(shown(&f), [(1, true, vec![]), (2, true, vec![])]);
    f.rule(Some("db"), "*", api::Access::Denied);
    f.target.remove_rule(Some("db"), 1).unwrap();
    f.target.remove_rule(Some("db"), 1).unwrap();
    assert_eq!(may_write(&f), [true, true], "what was given is there, too");
    f.target.remove_rule(Some("db"), 1).unwrap();
    assert!(f.target.server.sessions().is_empty(), "both end");
}

/// A session shows the access that its nexus has, and not the access that the rules give.
#[test]
fn a_session_is_shown_as_its_nexus_is() {
    let (f, portals) = two_groups();
    f.volume("db");
    let _session = connect(portals[0], &iqn("db"), 7);
    let nexus = f.target.server.sessions()[0].nexus.upgrade().unwrap();
    nexus.set_access(Access { read_only: true, ..Access::default() });
    assert!(f.target.target("db").unwrap().sessions[0].read_only);
}

#[test]
fn a_second_target_lets_in_nobody_whom_the_first_refuses() {
    for rules_first in [true, false] {
        let f = local();
        f.volume("db");
        f.volume("web");
        f.create("t");
        f.map("t", "web").unwrap();
        let set = |f: &Fixture| {
            f.rule(Some("db"), HOST, api::Access::ReadWrite);
            f.rule(Some("db"), "eui.*", api::Access::ReadOnly);
        };
        if rules_first {
            set(&f);
        }
        let warned = f.map("t", "db").unwrap().warnings;
        if !rules_first {
            assert_eq!(warned, [] as [&str; 0]);
            set(&f);
        }
        assert_eq!(f.limits("t", HOST), []);
        assert_eq!(f.limits("t", "eui.02004567a425678d"), [(1, Limit::ReadOnly)]);
        assert_eq!(f.limits("t", OTHER), [(1, Limit::Hidden)], "the other LUN is there");
        let warnings = f.target.target("t").unwrap().warnings;
        assert!(warnings.len() == 1 && warnings[0].contains("own target of volume db"), "{warnings:?}");
    }
}

/// The response to a new LUN does not repeat the warnings about other LUNs.
#[test]
fn a_new_lun_brings_the_warnings_that_concern_it() {
    let f = local();
    for volume in ["db", "web", "log"] {
        f.volume(volume);
    }
    f.create("t");
    f.rule(Some("db"), HOST, api::Access::ReadWrite);
    assert_eq!(f.map("t", "db").unwrap().warnings.len(), 1);
    assert_eq!(f.map("t", "web").unwrap().warnings, [] as [&str; 0]);
    f.rule(Some("log"), HOST, api::Access::ReadWrite);
    let warned = f.map("t", "log").unwrap().warnings;
    assert!(
        warned.len() == 1 && warned[0].contains("volume log") && warned[0].contains("LUN 2"),
        "{warned:?}"
    );
    // The rules of a volume also protect its snapshots, so the warnings are the same.
    f.snapshot("db", "s");
    let warned = f.map("t", "db@s").unwrap().warnings;
    assert!(warned.len() == 1 && warned[0].contains("LUN 3"), "{warned:?}");
    assert_eq!(f.target.target("t").unwrap().warnings.len(), 3, "all of them");
}

#[test]
fn a_locked_target_in_front_of_an_open_one_is_told() {
    let f = local();
    f.volume("db");
    f.create("t");
    f.rule(Some("t"), HOST, api::Access::ReadWrite);
    let warnings = f.map("t", "db").unwrap().warnings;
    assert!(warnings.len() == 1 && warnings[0].contains("target set db --disabled"), "{warnings:?}");
    assert_eq!(f.target.target("db").unwrap().warnings.len(), 1, "from either side");
    f.target.patch("db", &api::PatchTarget { enabled: Some(false), alias: None }).unwrap();
    assert!(f.target.target("t").unwrap().warnings.is_empty());
    assert_eq!(f.limits("t", HOST), [], "a door that is shut shuts no other");
    assert_eq!(f.login("db").unwrap_err(), Denied::NotFound);
}

#[test]
fn the_accounts_of_a_volume_hold_at_every_target_that_maps_it() {
    let f = local();
    f.volume("db");
    f.create("t");
    f.map("t", "db").unwrap();
    f.account("db", "alice", "first-secret-1").unwrap();
    let hidden = |user| f.proven("t", user).unwrap().limits.get(&0) == Some(&Limit::Hidden);
    assert!(hidden(None));
    f.account("t", "alice", "another-secret").unwrap();
    f.account("t", "bob", "first-secret-1").unwrap();
    assert!(hidden(Some("alice")), "another secret is another account");
    assert!(hidden(Some("bob")), "another name, too");
    f.account("t", "alice", "first-secret-1").unwrap();
    assert!(!hidden(Some("alice")));
}

#[test]
fn a_session_learns_at_once_what_a_volumes_own_rules_take() {
    let (f, portals) = two_groups();
    f.volume("db");
    f.volume("web");
    f.create("t");
    f.map("t", "web").unwrap();
    let (_session, status) = connect(portals[0], &iqn("t"), 1);
    assert_eq!(status, 0);
    let luns = || f.target.target("t").unwrap().sessions[0].luns.clone();
    f.rule(Some("db"), OTHER, api::Access::ReadWrite);
    f.map("t", "db").unwrap();
    assert_eq!(luns(), [0], "never seen");
    f.target.remove_rule(Some("db"), 1).unwrap();
    assert_eq!(luns(), [0, 1]);
    f.account("db", "alice", "first-secret-1").unwrap();
    assert_eq!(luns(), [0]);
}

#[test]
fn the_past_keeps_its_volumes_rules_wherever_it_is_mapped() {
    let f = local();
    f.volume("db");
    f.snapshot("db", "s");
    f.rule(Some("db"), OTHER, api::Access::ReadWrite);
    f.create("t");
    f.map("t", "db@s").unwrap();
    assert_eq!(f.limits("t", HOST), [(0, Limit::Hidden)]);
    assert_eq!(f.limits("t", OTHER), []);
    for past in ["db:snap:s", "db:at:s"] {
        assert_eq!(f.login(&iqn(past)).unwrap_err(), Denied::NotFound, "{past}");
        assert!(f.login_from(&iqn(past), OTHER, "127.0.0.1").is_ok(), "{past}");
    }
}

#[test]
fn copies_begin_with_the_guard_of_their_source() {
    let f = local();
    f.volume("db");
    f.snapshot("db", "s");
    assert_eq!(f.copy(("db", "s"), "plain").unwrap(), None, "nothing to take over");
    f.rule(Some("db"), OTHER, api::Access::ReadOnly);
    f.account("db", "alice", "first-secret-1").unwrap();
    let rule = api::AddNbdRule { certificate: Some("CN=vm1".into()), ..api::AddNbdRule::default() };
    f.target.add_nbd_rule(Some("db"), &rule).unwrap();
    let alias = api::PatchTarget { enabled: Some(false), alias: Some("the database".into()) };
    f.target.patch("db", &alias).unwrap();
    f.target.set_nbd(&f.pool().volume("db").unwrap().uuid, false).unwrap();
    let taken = f.copy(("db", "s"), "copy").unwrap().unwrap();
    let chap_users = vec!["alice".to_owned()];
    let expected = api::Inherited {
        volume: "db".into(),
        rules: 1,
        nbd_rules: 1,
        chap_users,
        enabled: false,
        nbd: false,
    };
    assert_eq!(taken, expected);
    let f = f.restart();
    let (db, copy) = (f.target.target("db").unwrap(), f.target.target("copy").unwrap());
    assert_eq!((&copy.rules, &copy.chap, copy.enabled), (&db.rules, &db.chap, db.enabled));
    assert_eq!(copy.alias, None);
    assert_eq!(f.target.nbd_rules_of(Some("copy")).unwrap()[0].certificate().as_deref(), Some("CN=vm1"));
    assert!(!f.target.nbd_rules().serves(&f.pool().volume("copy").unwrap()));
    assert!(f.target.nbd_rules().serves(&f.pool().volume("plain").unwrap()));
    f.snapshot("copy", "t");
    assert!(f.copy(("copy", "t"), "second").unwrap().is_some(), "copies of copies");
    // A failed attempt leaves no settings behind.
    assert_eq!(kind(f.copy(("db", "s"), "copy")), ErrorKind::Conflict);
    assert_eq!(kind(f.copy(("db", "none"), "third")), ErrorKind::NotFound);
    f.make("third").unwrap();
    assert!(f.login("third").is_ok());
    assert!(f.target.exports.store.get().making.is_empty());
}

/// The power can fail between the creation of the volume and the change of its rules.
#[test]
fn a_copy_that_is_being_made_is_reached_by_nobody() {
    let f = local();
    f.volume("db");
    f.snapshot("db", "s");
    f.rule(Some("db"), OTHER, api::Access::ReadWrite);
    let seen = f.target.make_volumes(&[Making { name: "copy", of: Some("db") }], |pool| {
        let made = pool.clone_volume("db", "s", "copy")?;
        let found = f.login_from("copy", OTHER, "127.0.0.1").err();
        Ok((found, f.names(), f.target.nbd_rules().serves(&made)))
    });
    assert_eq!(seen.unwrap().0, (Some(Denied::NotFound), vec![iqn("db")], false));
    assert!(f.login_from("copy", OTHER, "127.0.0.1").is_ok());
    let settings = f.target.exports.store.get().settings(&Scope::Volume(f.pool().volume("db").unwrap().uuid));
    f.target
        .exports
        .store
        .update(|registry| {
            registry.making.insert("killed".into(), settings);
            Ok(())
        })
        .unwrap();
    f.pool().clone_volume("db", "s", "killed").unwrap();
    let f = f.restart();
    assert_eq!(f.login("killed").unwrap_err(), Denied::NotFound);
    assert!(f.login_from("killed", OTHER, "127.0.0.1").is_ok());
}

#[test]
fn a_clone_behind_a_snapshot_keeps_rules_of_its_own() {
    let f = local();
    f.volume("db");
    f.snapshot("db", "s");
    f.copy(("db", "s"), "copy").unwrap();
    let clone = f.pool().volume("copy").unwrap().uuid.to_string();
    f.pool().label_snapshot("db", "s", &[(crate::clones::CLONE, Some(&clone))]).unwrap();
    assert!(f.login(&iqn("db:snap:s")).is_ok() && f.login(&iqn("db:at:s")).is_ok());
    f.rule(Some("copy"), OTHER, api::Access::ReadWrite);
    for past in ["db:snap:s", "db:at:s"] {
        assert_eq!(f.login(&iqn(past)).unwrap_err(), Denied::NotFound, "{past}");
        assert!(f.login_from(&iqn(past), OTHER, "127.0.0.1").is_ok(), "{past}");
    }
}

#[test]
fn no_volume_takes_the_name_of_a_target() {
    let f = local();
    f.create("fin");
    f.volume("db");
    f.snapshot("db", "s");
    assert_eq!(kind(f.make("fin")), ErrorKind::Conflict);
    assert_eq!(kind(f.copy(("db", "s"), "fin")), ErrorKind::Conflict);
    assert_eq!(kind(f.target.rename_volume("db", "fin")), ErrorKind::Conflict);
    assert_eq!(kind(f.target.check_new_name("fin")), ErrorKind::Conflict);
    assert_eq!(f.pool().volumes().len(), 1);
    f.target.delete("fin", false).unwrap();
    f.make("fin").unwrap();
    assert_eq!(f.target.rename_volume("db", "other").unwrap().name, "other");
    let create = api::CreateTarget { name: "fin".into(), alias: None };
    assert_eq!(kind(f.target.create(&create)), ErrorKind::Conflict, "nor the other way round");
}

/// Pools of older builds can have a volume and a created target with the same name.
#[test]
fn the_past_behind_a_target_of_the_same_name_is_as_closed_as_that() {
    let f = local();
    f.create("fin");
    f.volume("fin");
    f.snapshot("fin", "s");
    f.pool().set_cdp("fin", Some(hindcast_engine::cdp::CdpSettings::default())).unwrap();
    f.map("fin", "fin").unwrap();
    f.rule(Some("fin"), OTHER, api::Access::ReadWrite);
    let f = f.restart();
    for name in ["fin", "fin:snap:s", "fin:at:s", "fin:at:-0s"] {
        let name = iqn(name);
        let refused = f.target.exports.login(&name, &initiator(HOST, "127.0.0.1")).map(drop);
        assert_eq!(refused.unwrap_err(), Denied::NotFound, "{name}");
        assert!(f.target.exports.login(&name, &initiator(OTHER, "127.0.0.1")).is_ok(), "{name}");
    }
    f.account("fin", "alice", "first-secret-1").unwrap();
    let grant = f.target.exports.login(&iqn("fin:snap:s"), &initiator(OTHER, "127.0.0.1")).unwrap();
    assert!(matches!(grant.auth, AuthPolicy::Chap { .. }), "{grant:?}");
    f.target.patch("fin", &api::PatchTarget { enabled: Some(false), alias: None }).unwrap();
    assert_eq!(f.login_from(&iqn("fin:snap:s"), OTHER, "127.0.0.1").unwrap_err(), Denied::NotFound);
}

#[test]
fn a_rule_may_name_an_account() {
    let f = local();
    f.volume("db");
    let user = |user: &str, access| api::AddRule {
        initiator: "*".into(),
        address: None,
        user: Some(user.into()),
        access,
        luns: None,
        at: None,
    };
    f.target.add_rule(Some("db"), &user("alice", api::Access::ReadWrite)).unwrap();
    f.target.add_rule(Some("db"), &user("bob", api::Access::ReadOnly)).unwrap();
    f.target.add_rule(Some("db"), &user("carol", api::Access::Denied)).unwrap();
    let pending = |f: &Fixture| {
        let who = Initiator { proof: Proof::Pending, ..initiator(HOST, "127.0.0.1") };
        f.target.exports.login("db", &who).map(|grant| grant.auth)
    };
    assert_eq!(pending(&f).unwrap_err(), Denied::NotFound, "nobody can be one of them");
    f.account("db", "carol", "third-secret-3").unwrap();
    assert_eq!(pending(&f).unwrap_err(), Denied::NotFound);
    f.account("db", "alice", "first-secret-1").unwrap();
    f.account("db", "bob", "second-secret-").unwrap();
    assert!(matches!(pending(&f).unwrap(), AuthPolicy::Chap { users, .. } if users.len() == 3));
    assert!(!f.proven("db", Some("alice")).unwrap().read_only);
    assert!(f.proven("db", Some("bob")).unwrap().read_only);
    assert_eq!(f.proven("db", Some("carol")).unwrap_err(), Denied::Forbidden, "it knows that there is one");
    assert_eq!(f.proven("db", None).unwrap_err(), Denied::NotFound);
    assert_eq!(f.target.target("db").unwrap().rules[1].user.as_deref(), Some("bob"));
    let bad = user("al\u{202e}ice", api::Access::ReadWrite);
    assert_eq!(kind(f.target.add_rule(Some("db"), &bad)), ErrorKind::Invalid);
}

#[test]
fn a_target_that_refuses_is_like_one_that_is_not_there() {
    let f = local();
    f.volume("db");
    f.volume("web");
    f.snapshot("db", "s");
    f.rule(Some("db"), OTHER, api::Access::ReadWrite);
    f.rule(Some("web"), "*", api::Access::Denied);
    for proof in [Proof::Pending, Proof::Given(None)] {
        let who = Initiator { proof, ..initiator(HOST, "127.0.0.1") };
        for name in ["none", "db", "web", "db:snap:s", "db:at:-0s", "db:snap:none"] {
            let denied = f.target.exports.login(&iqn(name), &who).map(drop);
            assert_eq!(denied.unwrap_err(), Denied::NotFound, "{name}");
        }
    }
}

#[test]
fn volumes_may_be_called_as_parts_of_names_are() {
    let f = local();
    for name in ["snap", "at"] {
        f.volume(name);
        f.snapshot(name, "x");
        f.pool().set_cdp(name, Some(hindcast_engine::cdp::CdpSettings::default())).unwrap();
        for past in ["snap:x", "at:x"] {
            let target = iqn(&format!("{name}:{past}"));
            assert_eq!(f.login(&target).unwrap().target.name(), target);
        }
        let shown = f.target.target(&format!("{name}@x")).unwrap().name;
        assert!(f.login(&shown).is_ok(), "{shown} is what is told");
    }
}

/// REGISTER with APTPL, and an exclusive access reservation.
fn reserve(nexus: &Arc<Nexus>) {
    let mut parameters = vec![0; 24];
    parameters[8..16].copy_from_slice(&7_u64.to_be_bytes());
    parameters[20] = 1;
    command(nexus, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], parameters.clone());
    parameters.copy_within(8..16, 0);
    command(nexus, &[0x5f, 1, 3, 0, 0, 0, 0, 0, 24, 0], parameters);
}

/// A session that has received all its unit attentions.
fn settled(f: &Fixture, target: &str) -> Arc<Nexus> {
    let nexus = f.attach(target);
    while attention(&nexus).is_some() {}
    nexus
}

fn read_status(nexus: &Arc<Nexus>) -> Status {
    match nexus.start(0, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], 0) {
        Command::Read(_) => Status::Good,
        Command::Done(outcome) => outcome.status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn reservations_follow_the_target_of_a_renamed_volume() {
    let f = local();
    f.volume("db");
    let old = session(&f, "db");
    reserve(&old);
    f.target.rename_volume("db", "db2").unwrap();
    assert_eq!(read_status(&old), Status::Good, "the session goes on, and holds what it held");
    let new = f.attach("db2");
    attention(&new);
    assert_eq!(read_status(&new), Status::Good, "the same initiator port under the new name");
    f.target.rename_volume("db2", "db3").unwrap();
    assert_eq!(read_status(&old), Status::Good);
    assert_eq!(f.target.target("db3").unwrap().reservations[0].port, format!("{},t,0x0001", iqn("db3")));
    old.detach();
    new.detach();
    drop((old, new));

    let f = f.restart();
    f.target.rename_volume("db3", "db4").unwrap();
    let stranger = f.login("db4").unwrap().target;
    let stranger = stranger.attach(&format!("{OTHER},i,0x1"), 1, Access::default(), Arc::new(())).unwrap();
    attention(&stranger);
    assert_eq!(read_status(&stranger), Status::ReservationConflict);
    let holder = session(&f, "db4");
    assert_eq!(read_status(&holder), Status::Good, "renamed while nobody was there");
    let told = f.target.target("db4").unwrap().reservations;
    assert_eq!((told.len(), told[0].holds.as_deref()), (1, Some("exclusive access")));
    assert_eq!((told[0].key.as_str(), told[0].lun), ("0000000000000007", 0));
    [stranger, holder].iter().for_each(|nexus| nexus.detach());
}

#[test]
fn registrations_go_with_a_port_that_is_no_more() {
    let f = local();
    f.volume("db");
    for by_deletion in [true, false] {
        f.create("t");
        f.map("t", "db").unwrap();
        let by_t = settled(&f, "t");
        reserve(&by_t);
        let own = settled(&f, "db");
        assert_eq!(read_status(&own), Status::ReservationConflict);
        by_t.detach();
        drop(by_t);
        match by_deletion {
            true => drop(f.target.delete("t", true).unwrap()),
            false => f.target.remove_lun("t", 0, true).unwrap(),
        }
        assert_eq!(read_status(&own), Status::Good, "by deletion: {by_deletion}");
        own.detach();
    }
    assert!(f.target.target("db").unwrap().reservations.is_empty());
}

#[test]
fn registrations_go_with_their_portal_group() {
    let (f, _) = two_groups();
    f.volume("db");
    let grant = f.login("db").unwrap();
    let port = format!("{HOST},i,0x00023d000001");
    let nexus = grant.target.attach(&port, 2, grant.access, Arc::new(())).unwrap();
    attention(&nexus);
    reserve(&nexus);
    nexus.detach();
    drop((nexus, grant.target));
    let f = f.restart(); // with one group
    assert!(f.target.target("db").unwrap().reservations.is_empty());
    let own = session(&f, "db");
    assert_eq!(read_status(&own), Status::Good);
    own.detach();
}

#[test]
fn reservations_can_be_cleared() {
    let f = local();
    f.volume("db");
    let holder = session(&f, "db");
    reserve(&holder);
    assert_eq!(f.target.clear_reservations("db", Some(1)).map_err(|e| e.kind()), Err(ErrorKind::NotFound));
    assert_eq!(f.target.clear_reservations("db", Some(0)).unwrap(), 1);
    assert_eq!(attention(&holder).as_deref(), Some("Asc(42, 3)"), "RESERVATIONS PREEMPTED");
    assert!(f.target.target("db").unwrap().reservations.is_empty());
    holder.detach();
    drop(holder);
    let f = f.restart();
    assert!(f.target.target("db").unwrap().reservations.is_empty(), "for good");
}

/// The name can belong to another file after the check.
#[test]
fn what_was_checked_tells_of_which_kind_it_is() {
    use hindcast_engine::disk::Hold;
    use rustix::fs::{Mode, OFlags};
    let f = local();
    f.create("t");
    let path = f.file("disk", M);
    let hold = Hold::file(&path, rustix::fs::open(&path, OFlags::PATH, Mode::empty()).unwrap());
    std::fs::rename(&path, format!("{path}.was")).unwrap();
    std::fs::create_dir(&path).unwrap();
    let new = api::AddLun { file: Some(path.clone()), read_only: true, ..api::AddLun::default() };
    assert_eq!(f.target.add_lun("t", &new).unwrap().luns[0].size, Some(M));
    drop(hold);
    std::fs::remove_dir(&path).unwrap();
    std::fs::remove_file(format!("{path}.was")).unwrap();
}

/// A LUN that could not be removed when its volume went to the trash shows the volume never again.
#[test]
fn a_lun_that_stayed_goes_before_its_volume_comes_back() {
    let f = local();
    let id = f.volume("db");
    let target = f.create("shelf");
    f.map(&target, "db").unwrap();
    let luns = || f.target.target(&target).unwrap().luns.len();
    f.unsaved(|| {
        f.target.trash_volume("db", true).unwrap();
        assert_eq!(kind(f.target.restore_volume(id, None)), ErrorKind::Io, "the LUN is still there");
        assert!(f.target.unmap_late().is_err());
    });
    f.target.restore_volume(id, None).unwrap();
    assert_eq!(luns(), 0);
    f.map(&target, "db").unwrap();
    f.unsaved(|| f.target.delete_volume("db", true).unwrap());
    assert!(!f.target.exports.store.get().mappings(&id).is_empty());
    f.target.unmap_late().unwrap();
    assert!(f.target.exports.store.get().mappings(&id).is_empty());
}
