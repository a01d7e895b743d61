//! Snapshots of past moments.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::ErrorKind;
use hindcast_engine::cdp::{CdpSettings, Moment};
use hindcast_engine::testing::{KIB, MIB, Site, assert_bytes, kind};

/// A snapshot of a past moment is there at once. It stays when the moment expires, and a rollback
/// to it works.
#[test]
fn a_moment_is_kept_as_a_snapshot() {
    for settle in [false, true] {
        let site = Site::new(32).having("v", MIB, 16 * KIB);
        let forever = CdpSettings::default();
        site.pool.set_cdp("v", Some(forever)).unwrap();
        let then = site.put(0, 1, 64 * KIB);
        site.put(32 * KIB, 2, 64 * KIB);
        let kept = site.pool.keep_moment(&[("v", "before")], &Moment::Lsn(then)).unwrap();
        assert_eq!((kept[0].name.as_str(), kept[0].size), ("before", MIB));
        assert_eq!(kind(site.pool.keep_moment(&[("v", "before")], &Moment::Lsn(then))), ErrorKind::Conflict);
        assert_eq!(kind(site.pool.keep_moment(&[("v", "-")], &Moment::Lsn(then))), ErrorKind::Invalid);
        // Two snapshots of one volume in one operation would leave a catalog that does not load.
        let twice = [("v", "a"), ("v", "a")];
        assert_eq!(kind(site.pool.keep_moment(&twice, &Moment::Lsn(then))), ErrorKind::Invalid);
        let check = |site: &Site| {
            assert_bytes(&site.snapshot("v", "before"), 0, 1, 64 * KIB);
            assert_bytes(&site.snapshot("v", "before"), 64 * KIB, 0, MIB - 64 * KIB);
            assert_bytes(&site.open("v"), 32 * KIB, 2, 64 * KIB);
        };
        check(&site);
        if settle {
            site.idle();
            check(&site);
        }
        let site = site.reopen();
        check(&site);
        site.idle();
        // The history goes, the snapshot stays.
        site.pool.set_cdp("v", None).unwrap();
        site.idle();
        check(&site);
        site.pool.roll_back("v", "before", "undo", false).unwrap();
        assert_bytes(&site.open("v"), 0, 1, 64 * KIB);
        site.pool.delete_snapshots("v", &["before"]).unwrap();
        site.idle();
        assert_bytes(&site.open("v"), 0, 1, 64 * KIB);
        site.pool.delete_volume("v", true).unwrap();
        site.idle();
        site.pool.drain().unwrap();
        assert_eq!(site.pool.info().used, 0);
        site.reopen();
    }
}
