//! The superblock: the fixed facts of a pool, the formats that it uses, and the counters of ids.

use super::features::{REIDENTIFIED, unknown};
use super::values::{Value, put_placement, seal, take_placement, unseal};
use crate::error::{Error, ErrorKind, Result};
use crate::settings::{Placement, PoolConfig};
use uuid::Uuid;

/// Fixed facts of a pool and counters of ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) pool: Uuid,
    pub(crate) extent_size: u64,
    pub(crate) journal_size: u64,
    pub(crate) segment_size: u64,
    pub(crate) atomic_unit: u32,
    pub(crate) placement: Placement,
    /// Ids below this number are used up, for volumes and branches.
    pub(crate) next_id: u64,
    pub(crate) next_pv: u32,
    /// The formats in use that not every build knows, a bit for each. A build that does not know
    /// one of them refuses the pool.
    pub(crate) features: u64,
}

impl Superblock {
    pub(crate) fn config(&self) -> PoolConfig {
        PoolConfig {
            extent_size: self.extent_size,
            journal_size: self.journal_size,
            segment_size: self.segment_size,
            atomic_unit: self.atomic_unit,
        }
    }

    /// Returns the placement that the superblock itself has. Builds that know no other placement
    /// refuse a pool for the feature `placements`, and so they must be able to read the superblock.
    fn plain_placement(&self) -> Placement {
        match self.placement {
            placement if is_later(placement) => Placement::Anywhere,
            placement => placement,
        }
    }

    /// Returns whether a change of identities has begun, and has not ended.
    pub(crate) fn is_reidentified(&self) -> bool {
        self.features & REIDENTIFIED != 0
    }

    /// Refuses a pool that uses a format of a later build.
    pub(super) fn check_features(&self) -> Result<()> {
        let Some(names) = unknown(self.features) else { return Ok(()) };
        let context =
            format!("open the pool: it uses formats of a later build (features {names}); use a newer build");
        Err(Error::new(ErrorKind::Unsupported, context))
    }
}

/// Returns whether a placement is one that only pools with the feature `placements` have. A row
/// of its own stores it (`catalog/placement.rs`).
pub(crate) fn is_later(placement: Placement) -> bool {
    !matches!(placement, Placement::Anywhere | Placement::Contiguous)
}

impl Value for Superblock {
    /// Encodes the superblock. A superblock without features is written as version 1, so that
    /// builds that know no features open such a pool. Version 1 is version 2 without features.
    fn encode(&self) -> Vec<u8> {
        seal(if self.features == 0 { 1 } else { 2 }, |w| {
            w.uuid(&self.pool).u64(self.extent_size).u64(self.journal_size).u64(self.segment_size);
            w.u32(self.atomic_unit);
            put_placement(w, self.plain_placement());
            w.u64(self.next_id).u32(self.next_pv);
            if self.features != 0 {
                w.u64(self.features);
            }
        })
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (mut r, version) = match unseal(bytes, 2) {
            Some(r) => (r, 2),
            None => (unseal(bytes, 1)?, 1),
        };
        let value = Superblock {
            pool: r.uuid()?,
            extent_size: r.u64()?,
            journal_size: r.u64()?,
            segment_size: r.u64()?,
            atomic_unit: r.u32()?,
            placement: take_placement(&mut r).filter(|placement| !is_later(*placement))?,
            next_id: r.u64()?,
            next_pv: r.u32()?,
            features: if version == 2 { r.u64()? } else { 0 },
        };
        r.end(value)
    }
}

#[cfg(test)]
mod tests {
    use super::super::features::{CATALOG_SUMS, PLACEMENTS, REFERENCES};
    use super::*;

    fn superblock(features: u64) -> Superblock {
        Superblock {
            pool: Uuid::from_bytes([1; 16]),
            extent_size: 4 << 20,
            journal_size: 1 << 30,
            segment_size: 32 << 20,
            atomic_unit: 4096,
            placement: Placement::Contiguous,
            next_id: 9,
            next_pv: 2,
            features,
        }
    }

    #[test]
    fn golden_bytes() {
        let hex = |s: &Superblock| s.encode().iter().map(|b| format!("{b:02x}")).collect::<String>();
        for (features, bytes) in [
            (
                0,
                "01010101010101010101010101010101010000400000000000000000400000000000000002000000000010000001090000000000000002000000bef75317",
            ),
            (
                CATALOG_SUMS,
                "020101010101010101010101010101010100004000000000000000004000000000000000020000000000100000010900000000000000020000002000000000000000b4599a88",
            ),
            (
                CATALOG_SUMS | REIDENTIFIED,
                "02010101010101010101010101010101010000400000000000000000400000000000000002000000000010000001090000000000000002000000600000000000000086929a92",
            ),
            (
                CATALOG_SUMS | REFERENCES,
                "0201010101010101010101010101010101000040000000000000000040000000000000000200000000001000000109000000000000000200000021000000000000009324a6c1",
            ),
        ] {
            let value = superblock(features);
            assert_eq!(hex(&value), bytes);
            assert_eq!(Superblock::decode(&value.encode()), Some(value));
        }
    }

    /// Builds without the feature `placements` read the superblock, and refuse the pool for it.
    #[test]
    fn a_later_placement_is_stored_elsewhere() {
        let plain = Superblock { placement: Placement::Anywhere, ..superblock(PLACEMENTS) };
        let shared = Superblock { placement: Placement::Share, ..superblock(PLACEMENTS) };
        assert_eq!(shared.encode(), plain.encode());
        assert_eq!(Superblock::decode(&shared.encode()), Some(plain));
        let mut unknown = superblock(0).encode();
        let at = 1 + 16 + 3 * 8 + 4;
        unknown.truncate(unknown.len() - 4);
        assert_eq!(unknown[at], 1);
        unknown[at] = 2;
        let sealed = seal(unknown[0], |w| _ = w.bytes(&unknown[1..]));
        assert_eq!(Superblock::decode(&sealed), None);
    }

    #[test]
    fn an_unknown_feature_is_named() {
        superblock(CATALOG_SUMS).check_features().unwrap();
        superblock(0).check_features().unwrap();
        let error = superblock(CATALOG_SUMS | 16 | 1 << 40).check_features().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("(features regions, 0x10000000000)"), "{error}");
    }
}
