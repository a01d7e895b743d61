//! Tests of the registry in memory and on disk.

use super::super::credentials::{Account, Secret};
use super::*;
use crate::atomic_file::DurableFile;
use crate::iscsi::store::Store;
use crate::iscsi::stored::{decode, encode};
use hindcast_engine::disk::{Dir, MemDir, OpenMode};
use hindcast_target::iscsi::access::{LunMask, Permit};
use proptest::prelude::*;
use std::sync::Arc;

const fn id(byte: u8) -> Uuid {
    Uuid::from_bytes([byte; 16])
}

const A: Uuid = id(0xaa);
const B: Uuid = id(0xbb);
const FILE: Uuid = id(0xff);

fn rule(initiator: &str) -> Rule {
    Rule { initiator: initiator.parse().unwrap(), address: None, user: None, permit: Some(Permit::full()) }
}

fn account(user: &str, secret: &str) -> Account {
    Account::new(user, Secret::new(secret).unwrap()).unwrap()
}

fn chap(account: Account, mutual: Option<Account>) -> Chap {
    Chap { accounts: vec![account], mutual }
}

fn sample() -> Registry {
    let mut registry = Registry::default();
    registry.all.chap = Some(chap(account("all", "twelve bytes"), None));
    registry.all.rules.push(Rule {
        initiator: "iqn.2026-11.x:*".parse().unwrap(),
        address: Some("10.0.0.0/8".parse().unwrap()),
        user: None,
        permit: Some(Permit { read_only: true, luns: LunMask::only(vec![2, 0]) }),
    });
    let named = Named { luns: BTreeMap::from([(0, A), (7, FILE)]), ..Named::default() };
    registry.named.insert("iqn.2026-11.io.hindcast:t".into(), named);
    let scope = Scope::Named("iqn.2026-11.io.hindcast:t".into());
    registry
        .change(&scope, |s| {
            s.alias = Some("text for people".into());
            s.enabled = false;
            s.guard.rules.push(Rule { permit: None, ..rule("*") });
            let mutual = Some(account("server", "open-open-open"));
            s.guard.chap = Some(chap(account("alice", "sesame-sesame"), mutual));
            Ok(())
        })
        .unwrap();
    registry.add_rule(&Scope::Volume(B), rule("eui.*"), None).unwrap();
    let file =
        FileSpec { uuid: FILE, path: "/srv/cd.iso".into(), read_only: true, block_size: 4096, serial: None };
    registry.files.insert(FILE, file);
    registry
}

#[test]
fn identities_are_renewed_wherever_they_are() {
    let (mut registry, new_a, new_b, new_file) = (sample(), id(1), id(2), id(3));
    let mut drawn = [new_file].into_iter();
    registry.renew(&BTreeMap::from([(A, new_a), (B, new_b)]), &mut || drawn.next().unwrap());
    let text = String::from_utf8(encode(&registry).unwrap()).unwrap();
    for old in ["aaaaaaaa-", "bbbbbbbb-", "ffffffff-"] {
        assert!(!text.contains(old), "{old} is left");
    }
    assert_eq!(registry.named["iqn.2026-11.io.hindcast:t"].luns, [(0, new_a), (7, new_file)].into());
    assert_eq!(registry.files[&new_file].path, "/srv/cd.iso");
    assert_eq!(registry.settings(&Scope::Volume(new_b)), sample().settings(&Scope::Volume(B)));
    // A second renewal changes only the UUIDs of files.
    let before = registry.clone();
    registry.renew(&BTreeMap::from([(A, new_a), (B, new_b)]), &mut || new_file);
    assert_eq!(registry, before);
}

/// A registry that also has the settings that the first builds did not have.
fn later() -> Registry {
    let mut registry = sample();
    let scope = Scope::Volume(B);
    registry.set_account(&scope, account("alice", "first-secret-1"), None).unwrap();
    registry.set_account(&scope, account("bob", "second-secret-"), None).unwrap();
    registry.add_rule(&scope, Rule { user: Some("bob".into()), ..rule("*") }, None).unwrap();
    let ranges = ["10.0.0.0/24".to_owned(), "fd00::5".to_owned()];
    let vm = NbdRule::parse(&ranges, Some("CN=vm1"), hindcast_api::Access::ReadWrite).unwrap();
    registry.add_nbd_rule(&scope, vm, None).unwrap();
    let denied = NbdRule::parse(&[], None, hindcast_api::Access::Denied).unwrap();
    registry.add_nbd_rule(&Scope::All, denied, None).unwrap();
    let kept_out = registry.change(&scope, |settings| {
        settings.nbd = false;
        Ok(settings.for_copy())
    });
    registry.making.insert("copy".into(), kept_out.unwrap().unwrap());
    registry
}

#[test]
fn no_secret_serves_both_directions_at_whatever_target() {
    let mut registry = sample();
    let (a, b) = (Scope::Volume(A), Scope::Volume(B));
    let refused = |registry: &Registry, scope: &Scope, new: Account, mutual: Option<Account>| {
        let result = registry.clone().set_account(scope, new, mutual.map(Some));
        result.unwrap_err().kind() == ErrorKind::Invalid
    };
    // The target `t` authenticates with the first secret. Alice authenticates at `t` with the other
    // one.
    assert!(refused(&registry, &a, account("x", "open-open-open"), None));
    assert!(refused(&registry, &a, account("x", "good-good-good"), Some(account("y", "sesame-sesame"))));
    assert!(refused(&registry, &a, account("x", "good-good-good"), Some(account("y", "good-good-good"))));
    assert!(refused(&registry, &Scope::All, account("x", "open-open-open"), None));
    // Two accounts may share a secret if it serves one direction only.
    registry
        .set_account(&a, account("alice", "sesame-sesame"), Some(Some(account("s", "open-open-open"))))
        .unwrap();
    registry.set_account(&b, account("carol", "carol-carol-carol"), None).unwrap();
    assert!(refused(
        &registry,
        &a,
        account("dave", "dave-dave-dave"),
        Some(account("s", "carol-carol-carol"))
    ));
    assert!(!registry.shares_secrets());
    // A setting that only an older build accepted does not keep the operator from other changes.
    registry.all.chap = Some(chap(account("old", "shared-shared"), Some(account("old", "shared-shared"))));
    assert!(registry.shares_secrets());
    registry.set_account(&b, account("erin", "erin-erin-erin"), None).unwrap();
}

#[test]
fn accounts_are_added_replaced_and_removed() {
    let (mut registry, scope) = (Registry::default(), Scope::Volume(A));
    let users = |registry: &Registry| -> Vec<String> {
        let chap = registry.settings(&scope).guard.chap;
        chap.iter().flat_map(|c| &c.accounts).map(|a| a.user.clone()).collect()
    };
    let mutual = Some(Some(account("server", "open-open-open")));
    registry.set_account(&scope, account("alice", "sesame-sesame"), mutual).unwrap();
    registry.set_account(&scope, account("bob", "second-secret"), None).unwrap();
    registry.set_account(&scope, account("alice", "another-secret"), None).unwrap();
    assert_eq!(users(&registry), ["alice", "bob"]);
    let chap = registry.settings(&scope).guard.chap.unwrap();
    assert_eq!(chap.account("alice"), Some(&account("alice", "another-secret")));
    assert!(chap.mutual.is_some(), "what is not said stays");
    registry.set_account(&scope, account("bob", "second-secret"), Some(None)).unwrap();
    assert!(registry.settings(&scope).guard.chap.unwrap().mutual.is_none());
    let kind = |r: Result<()>| r.unwrap_err().kind();
    assert_eq!(kind(registry.remove_account(&scope, "carol")), ErrorKind::NotFound);
    registry.remove_account(&scope, "alice").unwrap();
    assert_eq!(
        kind(registry.remove_account(&scope, "bob")),
        ErrorKind::Conflict,
        "nothing would be asked for"
    );
    assert_eq!(users(&registry), ["bob"]);
}

#[test]
fn what_is_written_is_read() {
    for registry in [Registry::default(), sample(), later()] {
        assert_eq!(decode(&encode(&registry).unwrap()).unwrap(), registry);
    }
}

/// The format of version 1. Every later build must read it.
#[test]
fn version_1_is_readable() {
    let text = br#"{
        "all": {"rules": [{"initiator": "iqn.2026-11.x:*", "address": "10.0.0.0/8",
                           "permit": {"read_only": true, "luns": [0, 2]}}],
                "chap": {"incoming": {"user": "all", "secret": "7477656c7665206279746573"}, "mutual": null}},
        "targets": [{"name": "iqn.2026-11.io.hindcast:t",
                     "settings": {"enabled": false, "alias": "text for people",
                                  "guard": {"rules": [{"initiator": "*", "address": null, "permit": null}],
                                            "chap": {"incoming": {"user": "alice", "secret": "736573616d652d736573616d65"},
                                                     "mutual": {"user": "server", "secret": "6f70656e2d6f70656e2d6f70656e"}}}},
                     "luns": [[0, "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"], [7, "ffffffff-ffff-ffff-ffff-ffffffffffff"]]}],
        "volumes": [{"uuid": "bbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbbb",
                     "settings": {"enabled": true, "alias": null,
                                  "guard": {"rules": [{"initiator": "eui.*", "address": null,
                                                       "permit": {"read_only": false, "luns": null}}],
                                            "chap": null}}}],
        "files": [{"uuid": "ffffffff-ffff-ffff-ffff-ffffffffffff", "path": "/srv/cd.iso", "read_only": true,
                   "block_size": 4096}]
    }"#;
    assert_eq!(decode(text).unwrap(), sample());
    // Older builds accepted this pattern. This build no longer accepts it from the operator.
    let text = String::from_utf8(text.to_vec()).unwrap().replace("eui.*", "eui.*\u{200b}");
    assert!(decode(text.as_bytes()).is_ok());
}

/// The form of rules for NBD. Every later build must read it.
#[test]
fn rules_for_nbd_are_readable() {
    let text = br#"{
        "all": {"rules": [], "chap": null,
                "nbd_rules": [{"addresses": [], "certificate": null, "access": "denied"}]},
        "targets": [], "files": [],
        "volumes": [{"uuid": "bbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbbb",
                     "settings": {"enabled": true, "alias": null,
                                  "guard": {"rules": [], "chap": null, "nbd_rules": [
                                      {"addresses": ["10.0.0.0/24", "fd00::5"], "certificate": "CN=vm1",
                                       "access": "read_write"},
                                      {"addresses": [], "certificate": "CN=backup", "access": "read_only"}]}}}]
    }"#;
    let registry = decode(text).unwrap();
    let later = later();
    assert_eq!(registry.all.nbd_rules, later.all.nbd_rules);
    let rules = &registry.settings(&Scope::Volume(B)).guard.nbd_rules;
    assert_eq!(rules[..1], later.settings(&Scope::Volume(B)).guard.nbd_rules);
    assert_eq!(rules[1].certificate().as_deref(), Some("CN=backup"));
    let text = String::from_utf8(text.to_vec()).unwrap();
    for (from, to) in [("CN=vm1", "vm1"), ("10.0.0.0/24", "10.0.0.1/24"), ("denied", "dined")] {
        assert_eq!(decode(text.replace(from, to).as_bytes()).unwrap_err().kind(), ErrorKind::Corrupt, "{to}");
    }
}

/// A file has a newer field only if the field differs from its default. So older builds can still
/// read files that do not use newer settings.
#[test]
fn what_came_later_is_written_only_where_it_is_used() {
    let text = |registry: &Registry| String::from_utf8(encode(registry).unwrap()).unwrap();
    for word in ["others", "making", "nbd", "\"user\": null"] {
        assert!(!text(&sample()).contains(word), "{word}");
    }
    let later = text(&later());
    let expected = [
        "\"others\": [",
        "\"user\": \"bob\"",
        "\"nbd\": false",
        "\"nbd_rules\": [\n      {\n        \"addresses\": [],\n        \"certificate\": null,\n        \"access\": \"denied\"",
        "\"making\": [\n    {\n      \"name\": \"copy\",\n      \"settings\": {",
    ];
    for part in expected {
        assert!(later.contains(part), "{part} is not in {later}");
    }
}

#[test]
fn files_keep_the_serial_number_that_was_chosen() {
    let mut registry = sample();
    let (uuid, serial) = crate::passthrough::identity_of_serial("cd-7").unwrap();
    let file = registry.files.remove(&FILE).unwrap();
    registry.files.insert(uuid, FileSpec { uuid, serial, ..file });
    let bytes = encode(&registry).unwrap();
    assert_eq!(decode(&bytes).unwrap(), registry);
    let other = String::from_utf8(bytes).unwrap().replace("\"cd-7\"", "\"cd-8\"");
    assert_eq!(
        decode(other.as_bytes()).unwrap_err().kind(),
        ErrorKind::Corrupt,
        "another identity belongs to it"
    );
    registry.renew(&BTreeMap::new(), &mut || id(9));
    assert_eq!(registry.files[&id(9)].serial, None, "a copy of the pool has its own");
}

#[test]
fn what_was_never_written_is_not_believed() {
    let good = String::from_utf8(encode(&sample()).unwrap()).unwrap();
    for (from, to) in [
        ("iqn.2026-11.io.hindcast:t", "hindcast"),
        ("10.0.0.0/8", "10.0.0.1/8"),
        ("\"*\"", "\"\""),
        ("736573616d652d736573616d65", "7365"),
        ("736573616d652d736573616d65", "73g573616d652d736573616d65"),
        ("bbbbbbbb-bbbb", "bb-bbbb"),
        ("4096", "4097"),
        ("/srv/cd.iso", "cd.iso"),
        ("\"alias\"", "\"alibi\""),
        ("{", "["),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from}");
        let error = decode(bad.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{from} to {to}");
        assert!(!error.to_string().contains("7365"), "a secret is in {error}");
    }
}

#[test]
fn rules_have_places() {
    let mut registry = Registry::default();
    let scope = Scope::Volume(A);
    for (name, at) in [("iqn.2", None), ("iqn.3", None), ("iqn.1", Some(1)), ("iqn.4", Some(4))] {
        registry.add_rule(&scope, rule(&format!("{name}*")), at).unwrap();
    }
    let names = |r: &Registry| -> Vec<String> {
        r.settings(&scope).guard.rules.iter().map(|r| r.initiator.to_string()).collect()
    };
    assert_eq!(names(&registry), ["iqn.1*", "iqn.2*", "iqn.3*", "iqn.4*"]);
    for at in [0, 6, usize::MAX] {
        assert!(registry.add_rule(&scope, rule("*"), Some(at)).is_err());
    }
    assert_eq!(registry.remove_rule(&scope, 2).unwrap(), rule("iqn.2*"));
    for number in [0, 4] {
        assert_eq!(registry.remove_rule(&scope, number).unwrap_err().kind(), ErrorKind::NotFound);
    }
    for _ in 0..3 {
        registry.remove_rule(&scope, 1).unwrap();
    }
    assert_eq!(registry, Registry::default(), "nothing is kept of what is as by default");
    let none = Scope::Named("iqn.2026-11.x:none".into());
    assert_eq!(registry.add_rule(&none, rule("*"), None).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn luns_have_numbers_and_files_users() {
    let mut registry = sample();
    let name = "iqn.2026-11.io.hindcast:t";
    let kind = |r: Result<u16>| r.unwrap_err().kind();
    assert_eq!(registry.add_lun(name, None, B).unwrap(), 1, "the lowest that is free");
    assert_eq!(kind(registry.add_lun(name, None, B)), ErrorKind::Conflict);
    assert_eq!(kind(registry.add_lun(name, Some(7), id(1))), ErrorKind::Conflict);
    assert_eq!(kind(registry.add_lun(name, Some(MAX_LUN + 1), id(1))), ErrorKind::Invalid);
    assert_eq!(kind(registry.add_lun("none", None, id(1))), ErrorKind::NotFound);
    registry.named.insert("iqn.2026-11.x:u".into(), Named::default());
    registry.add_lun("iqn.2026-11.x:u", Some(MAX_LUN), FILE).unwrap();
    assert_eq!(registry.mappings(&FILE), [(name, 7), ("iqn.2026-11.x:u", MAX_LUN)]);
    assert_eq!(registry.remove_lun(name, 7).unwrap(), None, "the other target has it still");
    assert_eq!(registry.remove_target("iqn.2026-11.x:u").unwrap(), [FILE]);
    assert!(registry.files.is_empty());

    registry.forget_volumes(|uuid| *uuid == A);
    assert_eq!(registry.named[name].luns, BTreeMap::from([(0, A)]));
    assert!(registry.volumes.is_empty());
}

#[test]
fn a_change_counts_when_it_is_written() {
    let dir: Arc<dyn Dir> = Arc::new(MemDir::new());
    let file = || DurableFile::new(dir.clone(), "t", "targets", 1);
    let store = Store::open(file()).unwrap();
    let fill = |registry: &mut Registry| {
        *registry = sample();
        Ok(())
    };
    store.update(fill).unwrap();
    assert!(
        store
            .update(|r| -> Result<()> {
                r.named.clear();
                Err(not_found("no".into()))
            })
            .is_err()
    );
    assert_eq!(*store.get(), sample(), "a change that failed is none");
    assert_eq!(*Store::open(file()).unwrap().get(), sample());

    let disk = dir.open("t", OpenMode::Existing).unwrap();
    disk.write_at(b"!", 20).unwrap();
    assert_eq!(Store::open(file()).map(|_| ()).unwrap_err().kind(), ErrorKind::Corrupt);
}

proptest! {
    #[test]
    fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0usize..2000, byte: u8) {
        let _ = decode(&bytes);
        let mut bytes = encode(&sample()).unwrap();
        let at = at % bytes.len();
        bytes[at] = byte;
        let _ = decode(&bytes);
    }
}
