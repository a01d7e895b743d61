//! Tests of the lineage of one volume or snapshot. It agrees with the lineage computed from all
//! branches, and reads no more than it needs.

use super::*;
use crate::testing::{create, pool};
use hindcast_engine::cdp::{CdpSettings, Moment};

fn snap(pool: &Pool, volume: &str, name: &str) -> SnapshotInfo {
    pool.create_snapshots(&[(volume, name)]).unwrap().remove(0)
}

impl Lineage<'_> {
    fn looked_at_branches(&self) -> bool {
        self.bases.get().is_some()
    }

    fn looked_at_volumes(&self) -> bool {
        self.clones.get().is_some() || self.names.get().is_some()
    }
}

/// Returns the origin and the parent of a volume, computed from the bases of all branches.
fn by_everything(pool: &Pool, volume: &VolumeInfo) -> (Option<String>, Option<String>) {
    let (bases, moments) = (pool.branch_bases(), pool.moment_bases());
    let newest = |branch, epochs| pool.newest_snapshot(branch, epochs).map(|(v, s)| format!("{v}@{s}"));
    let origin = match (moments.get(&volume.branch), bases.get(&volume.branch)) {
        (Some((of, lsn)), _) => of.as_ref().map(|of| format!("{of}@lsn:{lsn}")),
        (None, Some((branch, epoch))) => newest(*branch, *epoch..epoch.next()),
        (None, None) => None,
    };
    let (mut at, mut parent) = (Some((volume.branch, Epoch::MAX)), None);
    while let (Some((branch, end)), None) = (at, &parent) {
        parent = newest(branch, Epoch::NONE..end);
        if let (None, Some((_, lsn)), Some((base, _))) = (&parent, moments.get(&branch), bases.get(&branch)) {
            parent = pool.newest_snapshot_at(*base, *lsn).map(|(v, s)| format!("{v}@{s}"));
        }
        at = bases.get(&branch).map(|(base, epoch)| (*base, epoch.next()));
    }
    (origin, parent)
}

/// Creates volumes that are based on snapshots of each other, on moments, and on nothing.
fn family(pool: &Pool) {
    create(pool, "plain");
    create(pool, "db");
    snap(pool, "db", "one");
    snap(pool, "db", "two");
    pool.clone_volume("db", "one", "early").unwrap();
    pool.clone_volume("db", "two", "late").unwrap();
    pool.clone_volume("db", "two", "also-late").unwrap();
    snap(pool, "late", "own");
    pool.clone_volume("late", "own", "grandchild").unwrap();
    pool.roll_back("early", "nothing", "undo", false).unwrap_err();
    snap(pool, "early", "before");
    pool.roll_back("early", "before", "undo", false).unwrap();
    create(pool, "kept");
    pool.set_cdp("kept", Some(CdpSettings::default())).unwrap();
    let lsn = pool.mark("kept", "here").unwrap().lsn;
    pool.recover_volume("kept", &Moment::Lsn(lsn), "recovered").unwrap();
    pool.clone_volume("db", "one", "orphan").unwrap();
    snap(pool, "plain", "gone");
    pool.clone_volume("plain", "gone", "of-gone").unwrap();
    pool.delete_snapshots("plain", &["gone"]).unwrap();
}

#[test]
fn one_volume_is_told_of_as_in_a_list() {
    let (_place, pool) = pool();
    family(&pool);
    let all = Lineage::new(&pool);
    for volume in pool.volumes() {
        let (alone, listed) = (Lineage::new(&pool).volume(&volume), all.volume(&volume));
        let told = (alone.origin, alone.parent);
        assert_eq!(told, (listed.origin, listed.parent), "{}", volume.name);
        assert_eq!(told, by_everything(&pool, &volume), "{}", volume.name);
    }
    let told = |name: &str| {
        let told = Lineage::new(&pool).volume(&pool.volume(name).unwrap());
        (told.origin, told.parent)
    };
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(told("plain"), (None, None));
    assert_eq!(told("late"), (text("db@two"), text("late@own")));
    assert_eq!(told("grandchild"), (text("late@own"), text("late@own")));
    assert_eq!(told("early"), (text("early@before"), text("early@before")));
    assert_eq!(told("of-gone"), (None, None));
    assert!(told("recovered").0.unwrap().starts_with("kept@lsn:"));
}

/// What was recovered, or rolled back to a moment, comes after that moment, until it has snapshots.
#[test]
fn a_moment_lies_before_what_came_of_it() {
    let (_place, pool) = pool();
    create(&pool, "db");
    pool.set_cdp("db", Some(CdpSettings::default())).unwrap();
    snap(&pool, "db", "one");
    let lsn = pool.mark("db", "here").unwrap().lsn;
    snap(&pool, "db", "two");
    pool.recover_volume("db", &Moment::Lsn(lsn), "copy").unwrap();
    pool.roll_back_to(&[("db", "undo")], &Moment::Lsn(lsn), false).unwrap();
    pool.drain().unwrap();
    let at = Some(format!("db@lsn:{lsn}"));
    let volume = |name: &str| {
        let told = Lineage::new(&pool).volume(&pool.volume(name).unwrap());
        (told.parent, told.after_moment)
    };
    let snapshot = |name: &str| {
        let told = Lineage::new(&pool).snapshot(&pool.snapshot("db", name).unwrap());
        (told.parent, told.after_moment)
    };
    let text = |text: &str| Some(text.to_owned());
    assert_eq!((volume("copy"), volume("db")), ((text("db@one"), at.clone()), (text("db@one"), at.clone())));
    assert_eq!((snapshot("two"), snapshot("undo")), ((text("db@one"), None), (text("db@two"), None)));
    snap(&pool, "db", "three");
    assert_eq!((snapshot("three"), volume("db")), ((text("db@one"), at), (text("db@three"), None)));
}

#[test]
fn one_snapshot_is_told_of_as_in_a_list() {
    let (_place, pool) = pool();
    family(&pool);
    let (all, bases) = (Lineage::new(&pool), pool.branch_bases());
    for snapshot in pool.all_snapshots() {
        let (alone, listed) = (Lineage::new(&pool).snapshot(&snapshot), all.snapshot(&snapshot));
        let rests = |v: &VolumeInfo| bases.get(&v.branch) == Some(&snapshot.of);
        let clones: Vec<String> = pool.volumes().into_iter().filter(rests).map(|v| v.name).collect();
        assert_eq!((&alone.clones, &alone.parent), (&clones, &listed.parent), "{}", snapshot.name);
        assert_eq!(listed.clones, clones, "{}", snapshot.name);
    }
    let two = Lineage::new(&pool).snapshot(&pool.snapshot("db", "two").unwrap());
    assert_eq!((two.clones, two.parent), (vec!["also-late".into(), "late".into()], Some("db@one".into())));
}

#[test]
fn answers_about_one_do_not_look_at_all_volumes() {
    let (_place, pool) = pool();
    family(&pool);
    let lineage = Lineage::of_new(&pool);
    let new = create(&pool, "new");
    assert_eq!(lineage.volume(&new).parent, None);
    let lineage = Lineage::new(&pool);
    lineage.volume(&pool.volume("grandchild").unwrap());
    assert!(!lineage.looked_at_volumes());
    let lineage = Lineage::new(&pool);
    lineage.snapshot(&snap(&pool, "new", "first"));
    assert!(!lineage.looked_at_volumes());
    let lineage = Lineage::new(&pool);
    lineage.snapshot(&snap(&pool, "new", "second"));
    assert!(!lineage.looked_at_branches() && !lineage.looked_at_volumes());
}

#[test]
fn the_clone_behind_a_snapshot_is_told_by_whatever_name_it_has() {
    let (_place, pool) = pool();
    family(&pool);
    for name in ["db.two", "chosen"] {
        let clone = pool.clone_volume("db", "two", name).unwrap();
        let label = clone.uuid.to_string();
        let labelled = pool.label_snapshot("db", "two", &[(clones::CLONE, Some(&label))]).unwrap();
        let lineage = Lineage::new(&pool);
        assert_eq!(lineage.writable(&labelled).as_deref(), Some(name));
        assert_eq!(lineage.looked_at_volumes(), name == "chosen", "{name}");
        assert_eq!(clones::clone_behind(&pool, &labelled).unwrap().uuid, clone.uuid);
    }
    // Another volume now has the name that the clone would have.
    pool.delete_volume("chosen", false).unwrap();
    let labelled = pool.snapshot("db", "two").unwrap();
    assert_eq!(Lineage::new(&pool).writable(&labelled), None);
}
