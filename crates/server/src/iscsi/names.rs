//! The names of targets: iSCSI names, and the short names that people type.

use hindcast_api::Moment;
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::{SnapshotInfo, VolumeInfo};
use hindcast_engine::{Error, ErrorKind, Result};
use hindcast_target::iscsi::access::{IscsiName, fold};
use uuid::Uuid;

/// The naming authority in the names of targets. A name from the operator can have another one.
const AUTHORITY: &str = "iqn.2026-11.io.hindcast";
/// Separates the volume from its snapshot in a target's name. Neither name has a colon.
const SNAPSHOT: &str = ":snap:";
/// Separates the name of a volume's target from a moment.
const MOMENT: &str = ":at:";
/// The longest iSCSI name, in bytes (RFC 7143 4.2.7.1).
const MAX_NAME: usize = 223;

/// Parses the name of a target: an iSCSI name, or the part after the authority's colon.
pub(crate) fn target_name(text: &str) -> Result<String> {
    let short = || format!("{AUTHORITY}:{text}").parse::<IscsiName>();
    match text.parse::<IscsiName>().or_else(|e| if is_long(text) { Err(e) } else { short() }) {
        Ok(name) => Ok(name.to_string()),
        Err(why) => Err(Error::new(ErrorKind::Invalid, format!("use the target name {text:?}: {why}"))),
    }
}

/// Returns whether `text` begins like a full iSCSI name. The name need not be valid.
fn is_long(text: &str) -> bool {
    let text = fold(text);
    ["iqn.", "eui.", "naa."].iter().any(|kind| text.starts_with(kind))
}

/// Returns the name of a volume's own target: the authority and the volume's name. iSCSI names have
/// no capitals and no underscores (RFC 3722). A volume whose name has such characters gets a target
/// name with the first 4 bytes of its UUID, so that no two volumes share one.
pub(crate) fn of_volume(volume: &VolumeInfo) -> String {
    if is_plain(&volume.name) {
        return format!("{AUTHORITY}:{}", volume.name);
    }
    let folded = fold(&volume.name).replace('_', "-");
    let [a, b, c, d, ..] = volume.uuid.into_bytes();
    format!("{AUTHORITY}:{folded}:{a:02x}{b:02x}{c:02x}{d:02x}")
}

/// Returns the name of a volume's own target, if it consists of the authority and the volume's
/// name. Returns `None` if it needs a part of the UUID.
pub(crate) fn by_name_alone(volume: &str) -> Option<String> {
    is_plain(volume).then(|| format!("{AUTHORITY}:{volume}"))
}

/// Returns the name of the target that shows a snapshot: the authority, the volume's name, `:snap:`
/// and the snapshot's name. iSCSI names have no `@`, no capitals, no underscores and at most 223
/// bytes. If the names do not fit these rules, the snapshot's UUID replaces both of them.
pub(crate) fn of_snapshot(snapshot: &SnapshotInfo) -> String {
    let name = format!("{AUTHORITY}:{}{SNAPSHOT}{}", snapshot.volume, snapshot.name);
    if is_plain(&snapshot.volume) && is_plain(&snapshot.name) && name.len() <= MAX_NAME {
        return name;
    }
    format!("{AUTHORITY}{SNAPSHOT}{}", snapshot.uuid.simple())
}

/// Returns the name of the target that shows a moment: the name of the volume's own target, `:at:`
/// and the LSN. An initiator can also name the moment in another form, such as a time, if an iSCSI
/// name can hold it.
pub(crate) fn of_moment(volume: &VolumeInfo, lsn: Lsn) -> String {
    format!("{}{MOMENT}{}", of_volume(volume), Moment::Lsn(lsn.0))
}

/// Splits the name of a target into the name of a volume's own target and a moment. Returns `None`
/// if the name has no moment.
pub(crate) fn moment_part(target: &str) -> Option<(&str, &str)> {
    // The volume can have the name `at`.
    let from = if target.starts_with(AUTHORITY) { AUTHORITY.len() + 1 } else { 0 };
    let at = from + target.get(from..)?.find(MOMENT)?;
    Some((&target[..at], &target[at + MOMENT.len()..]))
}

/// The part of a target's name that identifies a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SnapshotPart<'a> {
    Named(&'a str, &'a str),
    Identified(Uuid),
}

/// Returns the snapshot that the name of a target could mean. The snapshot need not exist.
pub(crate) fn snapshot_part(target: &str) -> Option<SnapshotPart<'_>> {
    let part = target.strip_prefix(AUTHORITY)?;
    // The volume can have the name `snap`. The text after it decides what the name means.
    if let Some((volume, snapshot)) = part.strip_prefix(':')?.split_once(SNAPSHOT) {
        return Some(SnapshotPart::Named(volume, snapshot));
    }
    let id = part.strip_prefix(SNAPSHOT).filter(|id| id.len() == 32)?;
    Some(SnapshotPart::Identified(Uuid::try_parse(id).ok()?))
}

/// Returns whether an iSCSI name can contain this name unchanged.
fn is_plain(volume: &str) -> bool {
    volume.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.'))
}

/// Returns the volume name that `text` could mean: the part after the authority, unchanged, or all
/// of a short name.
pub(crate) fn volume_part(text: &str) -> &str {
    let head = text.get(..AUTHORITY.len()).filter(|head| head.eq_ignore_ascii_case(AUTHORITY));
    head.and_then(|_| text[AUTHORITY.len()..].strip_prefix(':')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_engine::ids::{BranchId, Epoch};
    use hindcast_engine::pool::{Method, Order, PreserveStats, SnapshotPolicy, VolumeStats};

    fn volume(name: &str) -> VolumeInfo {
        VolumeInfo {
            dedicated_pv: None,
            placement: None,
            direct_min: Default::default(),
            image: None,
            name: name.into(),
            uuid: Uuid::from_bytes([0xab; 16]),
            size: 1,
            chunk_size: 1,
            block_size: 512,
            read_only: false,
            created: 0,
            branch: BranchId(1),
            method: Method::Redirect,
            order: Order::Dependent,
            policy: SnapshotPolicy::default(),
            importing: false,
            labels: Default::default(),
            cdp: None,
            allocated: 0,
            handles: 0,
            stats: VolumeStats::default(),
            preserved: PreserveStats::default(),
        }
    }

    #[test]
    fn short_names_get_the_authority() {
        for (text, name) in [
            ("db", "iqn.2026-11.io.hindcast:db"),
            ("DB", "iqn.2026-11.io.hindcast:db"),
            ("a:b", "iqn.2026-11.io.hindcast:a:b"),
            ("iqn.2001-04.com.Example:x", "iqn.2001-04.com.example:x"),
            ("eui.02004567A425678D", "eui.02004567a425678d"),
        ] {
            assert_eq!(target_name(text).unwrap(), name);
        }
        for bad in ["", "a b", "a_b", "iqn.2026-13.x:y", "eui.1", "naa.", &"x".repeat(300)] {
            assert_eq!(target_name(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
        }
    }

    #[test]
    fn volumes_have_names_of_their_own() {
        for (name, iqn) in [
            ("db", "iqn.2026-11.io.hindcast:db"),
            ("db-1.old", "iqn.2026-11.io.hindcast:db-1.old"),
            ("DB", "iqn.2026-11.io.hindcast:db:abababab"),
            ("db_1", "iqn.2026-11.io.hindcast:db-1:abababab"),
        ] {
            assert_eq!(of_volume(&volume(name)), iqn);
            assert_eq!(iqn.parse::<IscsiName>().unwrap().as_str(), iqn);
        }
        let longest = of_volume(&volume(&"X".repeat(128)));
        assert_eq!(longest.parse::<IscsiName>().unwrap().as_str(), longest);
    }

    fn snapshot(volume: &str, name: &str) -> SnapshotInfo {
        SnapshotInfo {
            volume: volume.into(),
            name: name.into(),
            uuid: Uuid::from_bytes([0xcd; 16]),
            size: 1,
            created: 0,
            of: (BranchId(1), Epoch(1)),
            pinned: false,
            handles: 0,
            protected: false,
            expires: None,
            labels: Default::default(),
            content: Uuid::from_bytes([0xcd; 16]),
        }
    }

    #[test]
    fn a_snapshot_has_a_name_that_leads_back() {
        let identified = format!("iqn.2026-11.io.hindcast:snap:{}", "cd".repeat(16));
        let long = "x".repeat(128);
        for (volume, name, iqn) in [
            ("db", "before-1.2", "iqn.2026-11.io.hindcast:db:snap:before-1.2"),
            ("db", "20261122T031415Z", identified.as_str()),
            ("snap", "x", "iqn.2026-11.io.hindcast:snap:snap:x"),
            ("snap", "snap", "iqn.2026-11.io.hindcast:snap:snap:snap"),
            ("at", "at", "iqn.2026-11.io.hindcast:at:snap:at"),
            ("db_1", "a", identified.as_str()),
            (long.as_str(), long.as_str(), identified.as_str()),
        ] {
            assert_eq!(of_snapshot(&snapshot(volume, name)), iqn);
            assert_eq!(iqn.parse::<IscsiName>().unwrap().as_str(), iqn);
            let part = match iqn == identified {
                true => SnapshotPart::Identified(Uuid::from_bytes([0xcd; 16])),
                false => SnapshotPart::Named(volume, name),
            };
            assert_eq!(snapshot_part(iqn), Some(part));
        }
        for none in ["iqn.2026-11.io.hindcast:db", "iqn.2026-11.io.hindcast:snap:x", "db:snap:a", ":snap:"] {
            assert_eq!(snapshot_part(none), None, "{none}");
        }
    }

    #[test]
    fn a_moment_has_a_name_that_leads_back() {
        for (volume_name, iqn) in [
            ("db", "iqn.2026-11.io.hindcast:db:at:lsn:4711"),
            ("at", "iqn.2026-11.io.hindcast:at:at:lsn:4711"),
            ("snap", "iqn.2026-11.io.hindcast:snap:at:lsn:4711"),
            ("DB_1", "iqn.2026-11.io.hindcast:db-1:abababab:at:lsn:4711"),
        ] {
            let volume = volume(volume_name);
            assert_eq!(of_moment(&volume, Lsn(4711)), iqn);
            assert_eq!(iqn.parse::<IscsiName>().unwrap().as_str(), iqn);
            assert_eq!(moment_part(iqn), Some((of_volume(&volume).as_str(), "lsn:4711")));
        }
        // An iSCSI name has the letters of a time in lower case.
        let time = target_name("db:at:2026-11-21T10:00:00.5Z").unwrap();
        assert_eq!(time, "iqn.2026-11.io.hindcast:db:at:2026-11-21t10:00:00.5z");
        assert!(moment_part(&time).unwrap().1.parse::<Moment>().is_ok());
        assert_eq!(moment_part("iqn.2026-11.io.hindcast:db"), None);
    }

    #[test]
    fn a_name_leads_to_its_volume() {
        assert_eq!(volume_part("IQN.2026-11.io.hindcast:My_Vol"), "My_Vol");
        assert_eq!(volume_part("My_Vol"), "My_Vol");
        assert_eq!(volume_part("iqn.2001-04.com.example:x"), "iqn.2001-04.com.example:x");
        assert_eq!(volume_part("é"), "é");
    }
}
