//! Tests of targets over a real pool. The admin API changes the targets, and the iSCSI server
//! requests them.

mod guards;

use super::*;
use crate::world;
use hindcast_api as api;
use hindcast_engine::ErrorKind;
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::{NewVolume, Placement, PoolConfig, PoolOptions, PvSpec};
use hindcast_target::iscsi::{AuthPolicy, Denied, Initiator, Portal, Proof, Targets};
use hindcast_target::scsi::{Access, Command, Nexus, Status, Target};
use uuid::Uuid;

const HOST: &str = "iqn.1993-08.org.debian:01:abc";
const M: u64 = 1 << 20;

struct Fixture {
    dir: tempfile::TempDir,
    target: IscsiTarget,
}

/// The result of a login.
#[derive(Debug)]
struct Entered {
    target: Arc<Target>,
    access: Access,
    auth: AuthPolicy,
    alias: Option<String>,
}

fn open_pool(dir: &Path) -> Arc<Pool> {
    let files: Arc<dyn hindcast_engine::disk::Dir> = Arc::new(hindcast_engine::disk::FileDir::new(dir));
    if !Pool::exists(&*files).unwrap() {
        let config = PoolConfig { journal_size: 16 * M, segment_size: 4 * M, ..PoolConfig::default() };
        let pv = PvSpec { path: "pv-0.img".into(), size: Some(64 * M), force: false };
        Pool::create(files.clone(), &world::real(), &config, Placement::Anywhere, &[pv]).unwrap();
    }
    Pool::open(files, world::real(), PoolOptions::default()).unwrap()
}

fn config(listen: &str) -> IscsiConfig {
    IscsiConfig { portals: vec![Portal::new(listen.parse().unwrap())], ..IscsiConfig::default() }
}

fn start(dir: tempfile::TempDir, listen: &str) -> Fixture {
    let pool = open_pool(dir.path());
    let target = IscsiTarget::start(&config(listen), pool, Latencies::default(), dir.path()).unwrap();
    Fixture { dir, target }
}

/// A server that listens on the loopback address.
fn local() -> Fixture {
    start(tempfile::tempdir().unwrap(), "127.0.0.1:0")
}

impl Fixture {
    fn restart(self) -> Fixture {
        let Fixture { dir, target } = self;
        target.stop(Duration::from_secs(5));
        target.exports.pool.close().unwrap();
        drop(target);
        start(dir, "127.0.0.1:0")
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.target.exports.pool
    }

    fn volume(&self, name: &str) -> Uuid {
        let new =
            NewVolume { name: name.into(), size: M, chunk_size: 16 << 10, block_size: 512, read_only: false };
        self.pool().create_volume(&new).unwrap().uuid
    }

    fn create(&self, name: &str) -> String {
        self.target.create(&api::CreateTarget { name: name.into(), alias: None }).unwrap().name
    }

    fn map(&self, target: &str, volume: &str) -> Result<api::Target> {
        self.target.add_lun(target, &api::AddLun { volume: Some(volume.into()), ..api::AddLun::default() })
    }

    fn file(&self, name: &str, len: u64) -> String {
        let outside = self.dir.path().with_extension(name);
        std::fs::File::create(&outside).unwrap().set_len(len).unwrap();
        outside.to_str().unwrap().to_owned()
    }

    fn names(&self) -> Vec<String> {
        self.target.targets().into_iter().map(|t| t.name).collect()
    }

    fn login_from(&self, target: &str, name: &str, address: &str) -> std::result::Result<Entered, Denied> {
        let grant = self.target.exports.login(target, &initiator(name, address))?;
        let target = self.target.exports.open(&grant)?;
        assert_eq!(target.name(), grant.name);
        Ok(Entered { target, access: grant.access, auth: grant.auth, alias: grant.alias })
    }

    fn login(&self, target: &str) -> std::result::Result<Entered, Denied> {
        self.login_from(target, HOST, "127.0.0.1")
    }

    fn attach(&self, target: &str) -> Arc<Nexus> {
        let grant = self.login(target).unwrap();
        grant.target.attach(&format!("{HOST},i,0x00023d000001"), 1, grant.access, Arc::new(())).unwrap()
    }

    fn seen_by(&self, name: &str, address: &str) -> Vec<String> {
        self.target.exports.list(&initiator(name, address)).into_iter().map(|e| e.name).collect()
    }

    fn rule(&self, target: Option<&str>, initiator: &str, access: api::Access) {
        let rule = api::AddRule {
            initiator: initiator.into(),
            address: None,
            user: None,
            access,
            luns: None,
            at: None,
        };
        self.target.add_rule(target, &rule).unwrap();
    }
}

fn initiator<'a>(name: &'a str, address: &str) -> Initiator<'a> {
    let peer = std::net::SocketAddr::new(address.parse().unwrap(), 50000);
    let local = "127.0.0.1:3260".parse().unwrap();
    Initiator { name, peer, local, portal_group: 1, proof: Proof::Given(None) }
}

fn kind<T>(result: Result<T>) -> ErrorKind {
    result.map(|_| ()).unwrap_err().kind()
}

fn iqn(text: &str) -> String {
    format!("iqn.2026-11.io.hindcast:{text}")
}

#[test]
fn a_volume_is_a_target_as_long_as_it_exists() {
    let f = local();
    assert!(f.names().is_empty());
    f.volume("db");
    f.volume("My_Vol");
    let changed = f.target.target("My_Vol").unwrap().name;
    assert!(changed.starts_with(&iqn("my-vol:")), "{changed}");
    assert_eq!(f.names(), [iqn("db"), changed.clone()]);
    assert_eq!(f.seen_by(HOST, "127.0.0.1"), f.names());
    for name in ["db", "DB", &iqn("db"), &iqn("DB").to_uppercase()] {
        assert_eq!(f.login(name).unwrap().target.name(), iqn("db"), "{name}");
    }
    for name in ["My_Vol", &iqn("My_Vol"), &changed] {
        assert_eq!(f.login(name).unwrap().target.name(), changed, "{name}");
    }
    assert_eq!(f.login("none").unwrap_err(), Denied::NotFound);

    let target = f.target.target("db").unwrap();
    assert_eq!((target.volume.as_deref(), target.luns.len()), (Some("db"), 1));
    assert_eq!((target.luns[0].lun, target.luns[0].size), (0, Some(M)));
    let grant = f.login("db").unwrap();
    assert_eq!(grant.target.inventory().keys().copied().collect::<Vec<_>>(), [0]);
    assert_eq!((grant.auth, grant.access.read_only, grant.access.luns), (AuthPolicy::None, false, None));

    f.pool().rename_volume("db", "db2").unwrap();
    assert_eq!(f.login("db").unwrap_err(), Denied::NotFound);
    assert_eq!(f.login("db2").unwrap().target.name(), iqn("db2"));
    f.target.delete_volume("db2", false).unwrap();
    assert_eq!(f.login("db2").unwrap_err(), Denied::NotFound);
    assert_eq!(f.names(), [changed]);
}

#[test]
fn the_logical_unit_of_a_volume_is_one() {
    let f = local();
    f.volume("db");
    f.create("t");
    f.map("t", "db").unwrap();
    let by_itself = f.login("db").unwrap().target.inventory()[&0].clone();
    let mapped = f.login("t").unwrap().target.inventory()[&0].clone();
    assert!(Arc::ptr_eq(&by_itself, &mapped));
    f.pool().rename_volume("db", "db2").unwrap();
    assert!(Arc::ptr_eq(&by_itself, &f.login("db2").unwrap().target.inventory()[&0]));
    assert_eq!(f.target.target("t").unwrap().luns[0].source, "db2", "the mapping follows the volume");
}

#[test]
fn a_volume_in_use_is_deleted_by_force_only() {
    let f = local();
    f.volume("db");
    f.volume("log");
    f.create("t");
    assert_eq!(f.map("t", "db").unwrap().luns.len(), 1);
    assert_eq!(f.map("t", "log").unwrap().luns[1].lun, 1);
    assert_eq!(kind(f.target.delete_volume("db", false)), ErrorKind::Conflict);
    let nexus = f.attach("t");
    assert_eq!(nexus.luns(), [0, 1]);
    f.target.delete_volume("db", true).unwrap();
    assert_eq!(nexus.luns(), [1], "its LUN went with it");
    assert_eq!(kind(f.target.delete("t", false)), ErrorKind::Busy);
    assert_eq!(kind(f.target.remove_lun("t", 1, false)), ErrorKind::Busy);
    f.target.remove_lun("t", 1, true).unwrap();
    nexus.detach();
    f.target.delete("t", false).unwrap();

    let nexus = f.attach("log");
    assert_eq!(kind(f.target.delete_volume("log", false)), ErrorKind::Busy);
    assert!(f.login("log").is_ok(), "a refused deletion changes nothing");
    nexus.detach();
    f.target.delete_volume("log", false).unwrap();
}

#[test]
fn targets_are_created_and_deleted() {
    let f = local();
    f.volume("db");
    assert_eq!(f.create("Cluster"), iqn("cluster"));
    assert_eq!(f.create("iqn.2001-04.com.example:x"), "iqn.2001-04.com.example:x");
    let create = |name: &str| f.target.create(&api::CreateTarget { name: name.into(), alias: None });
    assert_eq!(kind(create("cluster")), ErrorKind::Conflict);
    assert_eq!(kind(create("db")), ErrorKind::Conflict, "a volume has it");
    assert_eq!(kind(create("a b")), ErrorKind::Invalid);
    assert_eq!(kind(f.target.delete("db", true)), ErrorKind::Conflict);
    assert_eq!(kind(f.map("db", "db")), ErrorKind::Conflict);
    assert_eq!(kind(f.target.delete("none", true)), ErrorKind::NotFound);
    // A volume of the same name has no target by default.
    f.volume("cluster");
    assert_eq!(f.target.target("cluster").unwrap().volume, None);
    assert_eq!(f.names().len(), 3);
    f.target.delete("cluster", false).unwrap();
    assert_eq!(f.target.target("cluster").unwrap().volume.as_deref(), Some("cluster"));
}

#[test]
fn a_target_can_be_switched_off() {
    let f = local();
    f.volume("db");
    let off = api::PatchTarget { enabled: Some(false), alias: Some("the database".into()) };
    assert!(!f.target.patch("db", &off).unwrap().enabled);
    assert_eq!(f.login("db").unwrap_err(), Denied::NotFound);
    assert!(f.seen_by(HOST, "127.0.0.1").is_empty());
    let f = f.restart();
    assert!(!f.target.target("db").unwrap().enabled);
    f.target.patch("db", &api::PatchTarget { enabled: Some(true), alias: None }).unwrap();
    assert_eq!(f.login("db").unwrap().alias.as_deref(), Some("the database"));
    let bad = api::PatchTarget { enabled: None, alias: Some("a\nb".into()) };
    assert_eq!(kind(f.target.patch("db", &bad)), ErrorKind::Invalid);
}

#[test]
fn rules_decide_at_login_and_at_discovery() {
    let f = local();
    f.volume("db");
    f.volume("web");
    f.rule(Some("db"), "iqn.1993-08.org.debian:*", api::Access::ReadOnly);
    assert!(f.login("db").unwrap().access.read_only);
    assert_eq!(f.login_from("db", "eui.02004567a425678d", "127.0.0.1").unwrap_err(), Denied::NotFound);
    assert_eq!(f.seen_by("eui.02004567a425678d", "127.0.0.1"), [iqn("web")]);

    let rule = api::AddRule {
        initiator: "*".into(),
        address: Some("10.0.0.0/8".into()),
        user: None,
        access: api::Access::ReadWrite,
        luns: Some(vec![0, 3]),
        at: None,
    };
    f.target.add_rule(None, &rule).unwrap();
    assert_eq!(f.login("web").unwrap_err(), Denied::NotFound, "a rule for all closes every target");
    let grant = f.login_from("db", "eui.02004567a425678d", "10.1.2.3").unwrap();
    assert_eq!(grant.access.luns, Some([0, 3].into()));
    f.target.remove_rule(None, 1).unwrap();
    assert_eq!(kind(f.target.remove_rule(None, 1)), ErrorKind::NotFound);
    assert!(f.login("web").is_ok());
    for bad in [
        api::AddRule { initiator: "host".into(), ..rule.clone() },
        api::AddRule { address: Some("10.0.0.1/8".into()), ..rule.clone() },
        api::AddRule { luns: Some(Vec::new()), ..rule.clone() },
        api::AddRule { access: api::Access::Denied, ..rule.clone() },
        api::AddRule { at: Some(9), ..rule },
    ] {
        assert_eq!(kind(f.target.add_rule(Some("db"), &bad)), ErrorKind::Invalid, "{bad:?}");
    }
}

#[test]
fn reachable_from_outside_everything_is_closed_at_first() {
    let dir = tempfile::tempdir().unwrap();
    let f = start(dir, "0.0.0.0:0");
    f.volume("db");
    assert_eq!(f.login("db").unwrap_err(), Denied::NotFound);
    assert!(f.seen_by(HOST, "127.0.0.1").is_empty());
    assert_eq!(f.target.target("db").unwrap().unmatched, api::Unmatched::Refused);
    f.rule(None, "*", api::Access::ReadWrite);
    assert!(f.login("db").is_ok());
    assert_eq!(f.seen_by(HOST, "127.0.0.1"), [iqn("db")]);
}

#[test]
fn chap_is_the_targets_own_or_that_of_all() {
    let f = local();
    f.volume("db");
    f.volume("web");
    let chap = |user: &str| api::SetChap {
        user: user.into(),
        secret: "sesame-sesame".into(),
        mutual_user: Some("server".into()),
        mutual_secret: Some("open-open-open".into()),
        no_mutual: false,
    };
    let users = |auth: AuthPolicy| match auth {
        AuthPolicy::None => Vec::new(),
        AuthPolicy::Chap { users, mutual } => {
            users.into_iter().chain(mutual).map(|u| u.name).collect::<Vec<_>>()
        }
    };
    let discovery = |f: &Fixture| users(f.target.exports.discovery_auth(&initiator(HOST, "127.0.0.1")));
    f.target.set_chap(Some("db"), chap("alice")).unwrap();
    assert_eq!(users(f.login("db").unwrap().auth), ["alice", "server"]);
    assert!(users(f.login("web").unwrap().auth).is_empty() && discovery(&f).is_empty());
    f.target.set_chap(None, chap("bob")).unwrap();
    let f = f.restart();
    assert_eq!(users(f.login("db").unwrap().auth), ["alice", "server"]);
    assert_eq!(users(f.login("web").unwrap().auth), ["bob", "server"]);
    assert_eq!(discovery(&f), ["bob", "server"]);
    let shown = serde_json::to_string(&(f.target.targets(), f.target.defaults())).unwrap();
    assert!(shown.contains("alice") && !shown.contains("sesame") && !shown.contains("open-"), "{shown}");
    f.target.remove_chap(Some("db")).unwrap();
    assert_eq!(users(f.login("db").unwrap().auth), ["bob", "server"]);
    f.target.remove_chap(None).unwrap();
    assert!(users(f.login("db").unwrap().auth).is_empty() && discovery(&f).is_empty());

    let half = api::SetChap { mutual_secret: None, ..chap("alice") };
    let same = api::SetChap { mutual_secret: Some("sesame-sesame".into()), ..chap("alice") };
    let short = api::SetChap { secret: "sesame".into(), ..chap("alice") };
    for bad in [half, same, short] {
        let error = f.target.set_chap(Some("db"), bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(!error.to_string().contains("sesame"), "{error}");
    }
}

#[test]
fn files_are_exported_as_they_are() {
    let f = local();
    f.create("t");
    f.create("u");
    let path = f.file("one", 4 * M);
    let add = |target: &str, new: api::AddLun| f.target.add_lun(target, &new);
    let file = |path: &str| api::AddLun { file: Some(path.into()), ..api::AddLun::default() };
    let mapped = add("t", api::AddLun { lun: Some(5), ..file(&path) }).unwrap();
    assert_eq!((mapped.luns[0].lun, mapped.luns[0].size), (5, Some(4 * M)));
    assert_eq!(mapped.luns[0].backing, api::Backing::File);
    add("u", file(&path)).unwrap();
    let unit = |target: &str, lun: u16| f.login(target).unwrap().target.inventory()[&lun].clone();
    assert!(Arc::ptr_eq(&unit("t", 5), &unit("u", 0)), "one file is one logical unit");

    assert_eq!(kind(add("u", file(&path))), ErrorKind::Conflict);
    assert_eq!(kind(add("u", api::AddLun { read_only: true, ..file(&path) })), ErrorKind::Conflict);
    assert_eq!(kind(add("u", api::AddLun { block_size: Some(1024), ..file(&path) })), ErrorKind::Invalid);
    assert_eq!(kind(add("u", file("/nonexistent"))), ErrorKind::NotFound);
    assert_eq!(kind(add("u", file("relative"))), ErrorKind::Invalid);
    assert_eq!(kind(add("u", file("/dev/null"))), ErrorKind::Invalid);
    assert_eq!(kind(add("u", api::AddLun::default())), ErrorKind::Invalid);
    let own = f.dir.path().join("pv-0.img");
    assert_eq!(kind(add("u", file(own.to_str().unwrap()))), ErrorKind::Conflict, "a part of the pool");
    let as_device = api::AddLun { device: Some(path.clone()), ..api::AddLun::default() };
    assert_eq!(kind(add("u", as_device)), ErrorKind::Invalid);

    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(8 * M).unwrap();
    f.target.exports.look_around();
    assert_eq!(f.target.target("t").unwrap().luns[0].size, Some(8 * M));

    let serial = f.target.target("t").unwrap().luns[0].uuid.clone();
    let f = f.restart();
    assert_eq!(f.target.target("t").unwrap().luns[0].uuid, serial, "its identity is kept");
    f.target.remove_lun("t", 5, false).unwrap();
    f.target.delete("u", false).unwrap();
    // The server has released the file, so the test can lock it.
    let dir = hindcast_engine::disk::FileDir::new("/");
    drop(hindcast_engine::disk::Dir::lock(&dir, &path).unwrap());
    std::fs::remove_file(path).unwrap();
}

#[test]
fn the_end_of_a_file_is_reached_or_the_file_refused() {
    let f = local();
    f.create("t");
    let path = f.file("odd", 1_000_000);
    let new = api::AddLun { file: Some(path.clone()), ..api::AddLun::default() };
    let error = f.target.add_lun("t", &new).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("truncate -s 1000448"), "{error}");
    let read_only = api::AddLun { read_only: true, ..new };
    assert_eq!(f.target.add_lun("t", &read_only).unwrap().luns[0].size, Some(1_000_448));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_file_has_the_serial_number_that_it_is_given() {
    let f = local();
    f.create("t");
    let volume = f.volume("db");
    let (path, other) = (f.file("first", M), f.file("second", M));
    let new = |path: &str, serial: &str| api::AddLun {
        file: Some(path.into()),
        serial: Some(serial.into()),
        ..api::AddLun::default()
    };
    let mapped = f.target.add_lun("t", &new(&path, "win-2026")).unwrap().luns[0].clone();
    let serial = |f: &Fixture| f.login("t").unwrap().target.inventory()[&0].serial();
    assert_eq!(serial(&f), "win-2026");
    assert_eq!(kind(f.target.add_lun("t", &new(&path, "win-2027"))), ErrorKind::Conflict);
    assert_eq!(kind(f.target.add_lun("t", &new(&other, "win-2026"))), ErrorKind::Conflict);
    assert_eq!(kind(f.target.add_lun("t", &new(&other, &volume.to_string()))), ErrorKind::Conflict);
    assert_eq!(kind(f.target.add_lun("t", &new(&other, "no blanks"))), ErrorKind::Invalid);
    let f = f.restart();
    assert_eq!(serial(&f), "win-2026");
    f.target.remove_lun("t", 0, false).unwrap();
    let again = f.target.add_lun("t", &new(&path, "win-2026")).unwrap().luns[0].clone();
    assert_eq!((again.uuid, serial(&f)), (mapped.uuid, "win-2026".to_owned()));
    // An identity that the server chose stays.
    f.target.remove_lun("t", 0, false).unwrap();
    let random =
        f.target.add_lun("t", &api::AddLun { serial: None, ..new(&path, "") }).unwrap().luns[0].clone();
    let random_serial = serial(&f);
    assert_eq!(random_serial, random.uuid.replace('-', ""));
    f.target.remove_lun("t", 0, false).unwrap();
    let kept = f.target.add_lun("t", &new(&path, &random_serial)).unwrap().luns[0].clone();
    assert_eq!((kept.uuid, serial(&f)), (random.uuid, random_serial));
    [path, other].iter().for_each(|path| std::fs::remove_file(path).unwrap());
}

#[test]
fn a_file_that_is_missing_is_said_and_comes_back() {
    let f = local();
    f.create("t");
    f.volume("db");
    f.map("t", "db").unwrap();
    let path = f.file("two", M);
    f.target.add_lun("t", &api::AddLun { file: Some(path.clone()), ..api::AddLun::default() }).unwrap();
    let away = format!("{path}.away");
    let Fixture { dir, target } = f;
    target.exports.pool.close().unwrap();
    drop(target);
    std::fs::rename(&path, &away).unwrap();
    let f = start(dir, "127.0.0.1:0");
    let shown = f.target.target("t").unwrap();
    assert!(shown.luns[1].error.as_deref().is_some_and(|e| e.contains(&path)), "{shown:?}");
    assert_eq!(f.login("t").unwrap().target.inventory().len(), 1, "the other LUN is there");
    std::fs::rename(&away, &path).unwrap();
    assert_eq!(f.login("t").unwrap().target.inventory().len(), 2);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn everything_survives_a_restart() {
    let f = local();
    let id = f.volume("db");
    f.volume("log");
    f.create("t");
    f.map("t", "log").unwrap();
    f.map("t", "db").unwrap();
    f.rule(Some("t"), "iqn.1993-08.org.debian:*", api::Access::ReadWrite);
    f.rule(Some("db"), "eui.*", api::Access::ReadOnly);
    f.rule(None, "*:abc", api::Access::Denied);
    let shown = |f: &Fixture| (f.target.targets(), f.target.defaults());
    let before = shown(&f);
    let f = f.restart();
    assert_eq!(shown(&f), before);

    // As after a crash during a deletion: the pool has no volume, but its settings remain.
    f.pool().delete_volume("db", true).unwrap();
    std::fs::write(f.dir.path().join(format!("lu-{id}.state")), "x").unwrap();
    let f = f.restart();
    assert_eq!(f.target.target("t").unwrap().luns.len(), 1);
    assert!(f.target.exports.store.get().volumes.is_empty());
    assert!(!f.dir.path().join(format!("lu-{id}.state")).exists());
}

/// A volume `db` whose first byte was each of `1..=bytes`, and the LSNs of these moments.
fn with_history(f: &Fixture, bytes: u16) -> Vec<Lsn> {
    f.volume("db");
    f.pool().set_cdp("db", Some(hindcast_engine::cdp::CdpSettings::default())).unwrap();
    let volume = f.pool().open_volume("db", false).unwrap();
    let write = |byte: u16| {
        let data = bytes::Bytes::from(vec![byte as u8; 512]);
        let mut op = [hindcast_engine::device::WriteOp::new(0, data)];
        hindcast_engine::device::BlockDevice::write(&*volume, &mut op, false);
        op[0].result.clone().unwrap();
        f.pool().stats().sequenced_lsn
    };
    (1..=bytes).map(write).collect()
}

/// The first byte of LUN 0.
fn first_byte(target: &Arc<Target>) -> u8 {
    let mut block = [0; 512];
    target.inventory()[&0].read(0, &mut block).unwrap();
    block[0]
}

#[test]
fn snapshots_and_moments_are_targets_by_the_names_they_are_asked_for() {
    let f = local();
    let lsns = with_history(&f, 3);
    f.pool().create_snapshots(&[("db", "three")]).unwrap();
    f.pool().mark("db", "also-three").unwrap();
    for (name, expected) in [
        ("db:at:three".to_owned(), 3),
        ("db:snap:three".into(), 3),
        ("db:at:also-three".into(), 3),
        (format!("db:at:lsn:{}", lsns[1]), 2),
    ] {
        let entered = f.login(&iqn(&name)).unwrap();
        assert_eq!((entered.target.name(), first_byte(&entered.target)), (iqn(&name).as_str(), expected));
        assert!(f.names().contains(&iqn(&name)), "told while it is in use");
        assert!(!f.seen_by(HOST, "127.0.0.1").contains(&iqn(&name)), "but not to initiators");
    }
    for none in ["db:at:four", "db:at:lsn:99999", "db:at:2099-01-01t00:00:00z", "none:at:three", "db@three"] {
        let name = if none.contains('@') { none.to_owned() } else { iqn(none) };
        assert_eq!(f.login(&name).unwrap_err(), Denied::NotFound, "{none}");
    }
    let units = |name: &str| f.login(&iqn(name)).unwrap().target.inventory()[&0].clone();
    assert!(Arc::ptr_eq(&units("db:at:three"), &units("db:snap:three")), "one snapshot is one logical unit");

    // While a session uses a name, the name keeps its meaning, even if something else now has it.
    let held = f.login(&iqn("db:at:three")).unwrap();
    f.pool().delete_snapshots("db", &["three"]).unwrap();
    f.pool().roll_back_to(&[("db", "undo")], &hindcast_engine::cdp::Moment::Lsn(lsns[0]), true).unwrap();
    f.pool().mark("db", "three").unwrap();
    let again = f.login(&iqn("db:at:three")).unwrap();
    assert!(Arc::ptr_eq(&held.target, &again.target) && first_byte(&again.target) == 3);
    assert_eq!(f.login(&iqn("db:snap:three")).unwrap_err(), Denied::NotFound);
    drop((held, again));
    let entered = f.login(&iqn("db:at:three")).unwrap();
    assert_eq!(first_byte(&entered.target), 1, "the mark");
}

#[test]
fn who_may_not_log_in_opens_nothing() {
    let f = local();
    let lsns = with_history(&f, 3);
    f.rule(Some("db"), HOST, api::Access::ReadWrite);
    let name = iqn(&format!("db:at:lsn:{}", lsns[2]));
    let settled = || f.pool().stats().destaged_lsn;
    let before = settled();
    assert!(before < lsns[2]);
    let stranger = "iqn.1993-08.org.debian:01:stranger";
    for name in [&name, &iqn("db:at:none"), &iqn("db:at:lsn:99999")] {
        assert_eq!(f.login_from(name, stranger, "127.0.0.1").unwrap_err(), Denied::NotFound);
    }
    // The server opens nothing for an initiator that has not authenticated yet.
    let grant = f.target.exports.login(&name, &initiator(HOST, "127.0.0.1")).unwrap();
    assert_eq!((settled(), f.names()), (before, vec![iqn("db")]));
    f.target.exports.open(&grant).unwrap();
    assert!(settled() >= lsns[2]);
}

#[test]
fn a_moment_has_one_identity_and_no_other_has_it() {
    let f = local();
    let lsns = with_history(&f, 40);
    let live = f.login("db").unwrap().target.inventory()[&0].serial();
    let mut seen = std::collections::BTreeSet::from([live]);
    for lsn in &lsns {
        let lu = f.login(&iqn(&format!("db:at:lsn:{lsn}"))).unwrap().target.inventory()[&0].clone();
        let moment = hindcast_engine::cdp::Moment::Lsn(*lsn);
        let opened = f.pool().open_moment("db", &moment).unwrap();
        assert_eq!(lu.info().uuid, hindcast_engine::device::BlockDevice::info(&*opened).uuid);
        let shown = f.target.target(&format!("db@lsn:{lsn}")).unwrap().luns[0].uuid.replace('-', "");
        assert_eq!(shown, lu.serial(), "what is shown is what initiators see");
        assert!(seen.insert(lu.serial()), "LSN {lsn}");
    }
}

#[test]
fn only_so_many_moments_are_open_at_once() {
    let f = local();
    let lsns = with_history(&f, exports::MAX_SHOWN as u16 + 2);
    let login = |lsn: &Lsn| f.login(&iqn(&format!("db:at:lsn:{lsn}")));
    // Moments that no session uses any more make room.
    for lsn in &lsns {
        login(lsn).unwrap();
    }
    assert!(f.names().len() <= exports::MAX_SHOWN + 1);
    let mut held: Vec<Entered> = lsns[..exports::MAX_SHOWN].iter().map(|lsn| login(lsn).unwrap()).collect();
    assert_eq!(login(&lsns[exports::MAX_SHOWN]).unwrap_err(), Denied::TooMany);
    assert!(login(&lsns[0]).is_ok(), "it is open already");
    assert!(f.login("db").is_ok(), "volumes are not meant");
    held.pop();
    let entered = login(&lsns[exports::MAX_SHOWN]).unwrap();
    assert_eq!(first_byte(&entered.target), (exports::MAX_SHOWN as u16 + 1) as u8);
}

/// Runs a command that carries `data`, and returns the response data.
fn command(nexus: &Arc<Nexus>, cdb: &[u8], data: Vec<u8>) -> Vec<u8> {
    let outcome = match nexus.start(0, cdb, data.len() as u64) {
        Command::Other(task) => task.run(&data.into()),
        Command::Done(outcome) => outcome,
        other => panic!("{other:?}"),
    };
    assert_eq!(outcome.status, Status::Good, "{cdb:x?}: {outcome:?}");
    outcome.data_in.to_vec()
}

/// A session that has received the unit attention for power on.
fn session(f: &Fixture, target: &str) -> Arc<Nexus> {
    let nexus = f.attach(target);
    assert!(matches!(nexus.start(0, &[0; 6], 0), Command::Done(o) if o.status == Status::CheckCondition));
    nexus
}

/// Returns the additional sense code that TEST UNIT READY reports.
fn attention(nexus: &Arc<Nexus>) -> Option<String> {
    match nexus.start(0, &[0; 6], 0) {
        Command::Done(outcome) => outcome.sense.map(|sense| format!("{:?}", sense.asc)),
        Command::Other(task) => task.run(&Vec::new().into()).sense.map(|sense| format!("{:?}", sense.asc)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn initiators_are_told_of_changes() {
    let f = local();
    f.volume("db");
    f.volume("log");
    f.create("t");
    f.map("t", "db").unwrap();
    let nexus = session(&f, "t");
    assert_eq!(attention(&nexus), None);
    f.target.change_volume("db", |pool| pool.resize_volume("db", 2 * M, false)).unwrap();
    let resized = attention(&nexus);
    assert!(resized.is_some() && attention(&nexus).is_none(), "{resized:?}");
    f.target.change_volume("db", |pool| pool.resize_volume("db", 2 * M, false)).unwrap();
    assert_eq!(attention(&nexus), None, "nothing has changed");
    f.target.change_volume("db", |pool| pool.set_read_only("db", true)).unwrap();
    let read_only = attention(&nexus);
    assert!(read_only.is_some() && read_only != resized, "{read_only:?}");
    f.map("t", "log").unwrap();
    let mapped = attention(&nexus);
    assert!(mapped.is_some() && mapped != resized && mapped != read_only, "{mapped:?}");
    assert_eq!(nexus.luns(), [0, 1]);
    nexus.detach();
}

/// PERSISTENT RESERVE IN, READ KEYS (SPC-4 6.15.2).
const READ_KEYS: [u8; 10] = [0x5e, 0, 0, 0, 0, 0, 0, 0, 64, 0];

#[test]
fn reservations_survive_a_restart_and_go_with_their_volume() {
    let f = local();
    let id = f.volume("db");
    let state = |f: &Fixture| f.dir.path().join(format!("lu-{id}.state"));
    let nexus = session(&f, "db");
    // REGISTER with APTPL: the key is 0x0123456789abcdef.
    let mut parameters = vec![0; 24];
    parameters[8..16].copy_from_slice(&0x0123_4567_89ab_cdef_u64.to_be_bytes());
    parameters[20] = 1;
    command(&nexus, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], parameters);
    assert!(state(&f).exists());
    nexus.detach();
    drop(nexus);

    let f = f.restart();
    f.pool().rename_volume("db", "db2").unwrap();
    let nexus = session(&f, "db2");
    let keys = command(&nexus, &READ_KEYS, Vec::new());
    assert_eq!(keys[4..], [0, 0, 0, 8, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
    nexus.detach();
    drop(nexus);
    f.target.delete_volume("db2", false).unwrap();
    assert!(!state(&f).exists());
}

#[test]
fn a_damaged_registry_is_not_guessed_at() {
    let f = local();
    f.create("t");
    let Fixture { dir, target } = f;
    target.exports.pool.close().unwrap();
    drop(target);
    let file = dir.path().join("targets.json");
    let good = std::fs::read(&file).unwrap();
    let pool = open_pool(dir.path());
    let start = || {
        IscsiTarget::start(&config("127.0.0.1:0"), pool.clone(), Latencies::default(), dir.path()).map(|_| ())
    };
    std::fs::write(&file, &good[..good.len() - 1]).unwrap();
    assert_eq!(start().unwrap_err().kind(), ErrorKind::Corrupt);
    let future = String::from_utf8(good.clone()).unwrap().replacen("targets 1 ", "targets 2 ", 1);
    std::fs::write(&file, future).unwrap();
    assert_eq!(start().unwrap_err().kind(), ErrorKind::Unsupported);
    std::fs::write(&file, &good).unwrap();
    std::fs::write(dir.path().join("targets.json.new"), &good[..10]).unwrap();
    start().unwrap();
}
