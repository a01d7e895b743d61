//! Tests of the exports that a client sees, over a real pool.

use super::*;
use crate::clones::CLONE;
use crate::iscsi::IscsiTarget;
use crate::testing;
use hindcast_api::{Access, AddNbdRule};
use hindcast_target::iscsi::IscsiConfig;

struct Fixture {
    iscsi: IscsiTarget,
    exports: PoolExports,
    _place: tempfile::TempDir,
}

/// A pool with the volumes `db`, which has the snapshot `s`, and `log`.
fn fixture(open: bool) -> Fixture {
    let (place, pool) = testing::pool();
    testing::create(&pool, "db");
    testing::create(&pool, "log");
    pool.create_snapshots(&[("db", "s")]).unwrap();
    let iscsi = IscsiTarget::start(&IscsiConfig::default(), pool.clone(), Latencies::default(), place.path())
        .unwrap();
    let exports = PoolExports::new(pool, iscsi.nbd_rules(), open, Latencies::default());
    Fixture { iscsi, exports, _place: place }
}

fn client(listener: &str, address: &str) -> Arc<Client> {
    let listener = Listen::Tcp(listener.parse().unwrap());
    Arc::new(Client { listener, address: Some(address.parse().unwrap()), common_names: Vec::new() })
}

fn far() -> Arc<Client> {
    client("0.0.0.0:10809", "192.0.2.1")
}

fn near() -> Arc<Client> {
    client("127.0.0.1:10809", "127.0.0.1")
}

impl Fixture {
    fn rule(&self, volume: Option<&str>, address: &str, access: Access) {
        let rule = AddNbdRule { addresses: vec![address.into()], access, ..AddNbdRule::default() };
        self.iscsi.add_nbd_rule(volume, &rule).unwrap();
    }

    fn names(&self, client: &Arc<Client>) -> Vec<String> {
        self.exports.seen_by(client).unwrap().list().into_iter().map(|e| e.name).collect()
    }

    fn open(&self, client: &Arc<Client>, name: &str) -> std::result::Result<bool, EngineKind> {
        let device = self.exports.seen_by(client).unwrap().open(name);
        device.map(|device| device.info().read_only).map_err(|e| e.kind())
    }

    fn keeps(&self, client: &Arc<Client>, export: &str, read_only: bool) -> bool {
        self.exports.keeps(&Opened { client, export, read_only })
    }
}

#[test]
fn the_listener_decides_about_volumes_without_rules() {
    let all = ["db", "db@s", "log"];
    let f = fixture(false);
    assert_eq!(f.names(&near()), all);
    assert_eq!(f.names(&far()), [""; 0]);
    // A host also reaches a listener for all addresses by its loopback address.
    assert_eq!(f.names(&client("0.0.0.0:10809", "127.0.0.1")), [""; 0]);
    let unix =
        Arc::new(Client { listener: Listen::Unix("/x".into()), address: None, common_names: Vec::new() });
    assert_eq!(f.names(&unix), all);
    for name in ["db", "db@s", "db@-1s", "log"] {
        assert_eq!(f.open(&far(), name).unwrap_err(), EngineKind::Conflict, "{name}");
        assert_eq!(f.exports.view(far()).describe(name), None);
    }
    assert_eq!(f.open(&far(), "none").unwrap_err(), EngineKind::NotFound);
    assert_eq!(f.open(&far(), "db@none").unwrap_err(), EngineKind::Conflict, "it does not tell of snapshots");
    assert_eq!(f.exports.view(far()).snapshots("db", 9), [""; 0]);
    assert_eq!(f.open(&near(), "db"), Ok(false));
    let f = fixture(true);
    assert_eq!(f.names(&far()), all);
    f.rule(Some("db"), "10.0.0.1", Access::ReadWrite);
    assert_eq!(f.names(&far()), ["log"]);
    assert_eq!(f.names(&near()), ["log"]);
    assert_eq!(f.names(&unix), all);
}

#[test]
fn rules_hold_for_the_past_and_for_differences() {
    let f = fixture(false);
    f.rule(Some("db"), "192.0.2.0/24", Access::ReadOnly);
    assert_eq!(f.names(&far()), ["db", "db@s"]);
    assert_eq!((f.open(&far(), "db"), f.open(&far(), "db@s")), (Ok(true), Ok(true)));
    assert_eq!(f.open(&far(), ""), Ok(true), "the only volume that this client sees");
    let seen = f.exports.view(far());
    assert!(seen.describe("db").unwrap().ends_with(", read-only"));
    assert!(seen.changed_since("db", "s").is_ok());
    f.rule(Some("log"), "192.0.2.1", Access::ReadWrite);
    assert!(seen.changed_since("log", "db@s").is_ok());
    f.rule(Some("db"), "10.0.0.1", Access::ReadWrite);
    f.iscsi.remove_nbd_rule(Some("db"), 1).unwrap();
    assert!(seen.changed_since("log", "db@s").is_err(), "the rules of both volumes count");
    assert_eq!(f.open(&far(), "log"), Ok(false));
}

#[test]
fn the_rules_of_a_clone_behind_an_address_count() {
    let f = fixture(false);
    let pool = &f.exports.pool;
    let clone = pool.clone_volume("db", "s", "copy").unwrap();
    pool.label_snapshot("db", "s", &[(CLONE, Some(&clone.uuid.to_string()))]).unwrap();
    f.rule(Some("db"), "192.0.2.1", Access::ReadWrite);
    assert_eq!(f.open(&far(), "db@s").unwrap_err(), EngineKind::Conflict);
    assert_eq!(f.names(&far()), ["db"]);
    f.rule(Some("copy"), "192.0.2.1", Access::ReadOnly);
    assert_eq!((f.open(&far(), "db@s"), f.open(&far(), "db")), (Ok(true), Ok(false)));
    assert!(f.keeps(&far(), "db@s", true) && !f.keeps(&far(), "db@s", false));
}

#[test]
fn a_connection_ends_when_its_access_shrinks() {
    let f = fixture(false);
    assert!(f.keeps(&near(), "db", false) && !f.keeps(&far(), "db", false));
    f.rule(None, "192.0.2.0/24", Access::ReadWrite);
    assert!(f.keeps(&far(), "db@s", true) && f.keeps(&far(), "log", false) && !f.keeps(&near(), "db", false));
    f.rule(Some("log"), "192.0.2.1", Access::ReadOnly);
    assert!(!f.keeps(&far(), "log", false) && f.keeps(&far(), "log", true));
    assert!(f.keeps(&client("0.0.0.0:1", "192.0.2.2"), "log", false), "the rules for all volumes");
    assert!(!f.keeps(&far(), "gone", false) && !f.keeps(&far(), "db@gone", true));
    let id = f.exports.pool.volume("db").unwrap().uuid;
    f.iscsi.set_nbd(&id, false).unwrap();
    assert!(!f.keeps(&far(), "db", false));
    assert_eq!(f.open(&far(), "db").unwrap_err(), EngineKind::NotFound);
}

#[test]
fn the_default_export_of_a_refused_client_is_refused() {
    let f = fixture(false);
    assert_eq!(f.open(&far(), "").unwrap_err(), EngineKind::NotFound, "there are two volumes");
    f.exports.pool.delete_volume("log", true).unwrap();
    assert_eq!(f.open(&far(), "").unwrap_err(), EngineKind::Conflict);
    assert_eq!(f.open(&near(), ""), Ok(false));
}
