//! The feature word: a set of bits, one for each format that not every build knows.
//!
//! A build refuses a pool that has a bit which the build does not know. So a bit must be durable in
//! the superblock before any byte of its format is on disk. Permanent bits are never cleared. A bit
//! is never used for a second format.

/// Journal records may name slots that hold the data of a write, instead of carrying the data.
pub(crate) const REFERENCES: u64 = 1;
/// Data in place has sums, in the files `sums-PV`.
pub(crate) const SUMS: u64 = 2;
/// Physical volumes may be mirrors, whose members the files `layout-NAME` list. The bit is set
/// before the first of them.
pub(crate) const LAYOUTS: u64 = 4;
/// Histories may have records without a payload, whose replaced content stays in its slots. The bit
/// is set with the first such record.
pub(crate) const KEPT: u64 = 8;
/// The blocks of the catalog have sums.
pub(crate) const CATALOG_SUMS: u64 = 32;
/// Volumes and snapshots have new identities, and files beside the catalog may still use the old
/// ones. The bit is cleared when no file uses them.
pub(super) const REIDENTIFIED: u64 = 64;
/// Histories may have runs in shared segments. The bit is set with the first such run.
pub(crate) const SHARED_SEGMENTS: u64 = 128;
/// Volumes may have labels, and may be in the trash. The bit is set before the first of them.
pub(crate) const TRASH: u64 = 256;
/// The placement may be one that a row of its own stores (`catalog/placement.rs`). The bit is set
/// before the first such placement.
pub(crate) const PLACEMENTS: u64 = 512;
/// Physical volumes may be dedicated, and branches may be on one of them. The bit is set before the
/// first of them.
pub(crate) const DEDICATED: u64 = 1024;
/// Volumes may have a placement of their own, and physical volumes a weight. The bit is set before
/// the first of them.
pub(crate) const OWN_PLACEMENTS: u64 = 2048;
/// Volumes may have a least size of writes by reference of their own. The bit is set before the
/// first of them.
pub(crate) const OWN_DIRECT: u64 = 4096;

/// How a feature is enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// New pools have the feature, and an upgrade enables it.
    Stable,
    /// An upgrade enables the feature only if the request names it.
    Experimental,
    /// The pool enables the feature by itself.
    Internal,
    /// The build does not know the format. Only its number and its name are fixed.
    Reserved,
}

/// The meaning of a bit of the feature word.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Feature {
    pub(crate) bit: u64,
    pub(crate) name: &'static str,
    /// A description for users, of one sentence.
    pub(crate) about: &'static str,
    pub(crate) standing: Standing,
}

/// All bits that have a meaning, in ascending order.
pub(crate) const FEATURES: [Feature; 13] = [
    Feature {
        bit: REFERENCES,
        name: "references",
        about: "Large writes go to their slots at once, and the journal only refers to them.",
        standing: Standing::Stable,
    },
    Feature {
        bit: SUMS,
        name: "sums",
        about: "Data in place has sums, and a read verifies them.",
        standing: Standing::Stable,
    },
    Feature {
        bit: LAYOUTS,
        name: "layouts",
        about: "Physical volumes may be mirrors of several disks.",
        standing: Standing::Internal,
    },
    Feature {
        bit: KEPT,
        name: "kept",
        about: "Histories keep replaced data in its slots.",
        standing: Standing::Internal,
    },
    Feature {
        bit: 16,
        name: "regions",
        about: "Physical volumes are divided into regions.",
        standing: Standing::Reserved,
    },
    Feature {
        bit: CATALOG_SUMS,
        name: "catalog-sums",
        about: "The blocks of the catalog have sums.",
        standing: Standing::Internal,
    },
    Feature {
        bit: REIDENTIFIED,
        name: "reidentified",
        about: "A change of identities has begun and has not ended.",
        standing: Standing::Internal,
    },
    Feature {
        bit: SHARED_SEGMENTS,
        name: "shared-segments",
        about: "Histories of several volumes share segment files.",
        standing: Standing::Internal,
    },
    Feature {
        bit: TRASH,
        name: "trash",
        about: "Volumes may have labels, and may be in the trash.",
        standing: Standing::Internal,
    },
    Feature {
        bit: PLACEMENTS,
        name: "placements",
        about: "The placement may be share or snap-aware.",
        standing: Standing::Internal,
    },
    Feature {
        bit: DEDICATED,
        name: "dedicated",
        about: "Physical volumes may serve only volumes that were made for them.",
        standing: Standing::Internal,
    },
    Feature {
        bit: OWN_PLACEMENTS,
        name: "own-placements",
        about: "Volumes may have a placement of their own, and physical volumes a weight.",
        standing: Standing::Internal,
    },
    Feature {
        bit: OWN_DIRECT,
        name: "own-direct",
        about: "Volumes may have a least size of writes by reference of their own.",
        standing: Standing::Internal,
    },
];

/// The bits of the features that this build can handle.
const KNOWN: u64 = STABLE | bits(&FEATURES, Standing::Experimental) | bits(&FEATURES, Standing::Internal);

/// The bits of the features that a new pool has, and that an upgrade without names enables.
pub(crate) const STABLE: u64 = bits(&FEATURES, Standing::Stable);

/// Returns the bits of the features in `table` that have this standing.
const fn bits(table: &[Feature], standing: Standing) -> u64 {
    let (mut bits, mut at) = (0, 0);
    while at < table.len() {
        if table[at].standing as u8 == standing as u8 {
            bits |= table[at].bit;
        }
        at += 1;
    }
    bits
}

/// Returns the names of the features in the word that this build does not know, or `None` if it
/// knows all of them.
pub(crate) fn unknown(features: u64) -> Option<String> {
    let unknown = features & !KNOWN;
    (unknown != 0).then(|| names(unknown))
}

/// Returns the names of all features in the word, for messages. A bit without a name is shown as a
/// number.
fn names(features: u64) -> String {
    let bits = (0..u64::BITS).map(|shift| 1 << shift).filter(|bit| features & bit != 0);
    let name = |bit: u64| match FEATURES.iter().find(|feature| feature.bit == bit) {
        Some(feature) => feature.name.to_owned(),
        None => format!("{bit:#x}"),
    };
    bits.map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The numbers of the bits and the names are part of the format. Users type the names.
    #[test]
    fn the_table_is_fixed() {
        let table: Vec<(u64, &str)> = FEATURES.iter().map(|f| (f.bit, f.name)).collect();
        assert_eq!(
            table,
            [
                (1, "references"),
                (2, "sums"),
                (4, "layouts"),
                (8, "kept"),
                (16, "regions"),
                (32, "catalog-sums"),
                (64, "reidentified"),
                (128, "shared-segments"),
                (256, "trash"),
                (512, "placements"),
                (1024, "dedicated"),
                (2048, "own-placements"),
                (4096, "own-direct"),
            ]
        );
        assert!(FEATURES.iter().all(|f| f.bit.is_power_of_two() && f.about.ends_with('.')));
        assert_eq!(FEATURES.iter().map(|f| f.name).collect::<BTreeSet<_>>().len(), FEATURES.len());
        assert_eq!(
            KNOWN,
            REFERENCES
                | SUMS
                | LAYOUTS
                | KEPT
                | CATALOG_SUMS
                | REIDENTIFIED
                | SHARED_SEGMENTS
                | TRASH
                | PLACEMENTS
                | DEDICATED
                | OWN_PLACEMENTS
                | OWN_DIRECT
        );
    }

    #[test]
    fn stable_features_are_known_and_enabled_without_a_name() {
        let mut table = FEATURES;
        table[1].standing = Standing::Stable;
        table[4].standing = Standing::Stable;
        assert_eq!(bits(&table, Standing::Stable), STABLE | SUMS | 16);
        assert_eq!(bits(&table, Standing::Reserved), 0);
        assert_eq!(STABLE & !KNOWN, 0);
    }

    #[test]
    fn unknown_bits_are_named() {
        assert_eq!(unknown(0), None);
        assert_eq!(unknown(KNOWN), None);
        assert_eq!(unknown(REFERENCES | LAYOUTS | 16 | 1 << 40).as_deref(), Some("regions, 0x10000000000"));
        assert_eq!(unknown(1 << 63).as_deref(), Some("0x8000000000000000"));
    }
}
