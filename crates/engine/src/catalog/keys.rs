//! Keys of tables that are more than plain numbers.
//!
//! Each is stored as the number or tuple that it consists of: with the same bytes, in the same
//! order, and under the same type name. The store refuses a table whose type name differs.

use crate::ids::{BranchId, Chunk, Epoch, Lsn, SnapshotId, VolumeId};
use std::ops::RangeInclusive;

macro_rules! stored_as {
    ($key:ty, $plain:ty, $key_of:expr, $plain_of:expr) => {
        impl redb::Value for $key {
            type SelfType<'a> = $key;
            type AsBytes<'a> = <$plain as redb::Value>::AsBytes<'a>;

            fn fixed_width() -> Option<usize> {
                <$plain as redb::Value>::fixed_width()
            }

            fn from_bytes<'a>(data: &'a [u8]) -> $key
            where
                Self: 'a,
            {
                $key_of(<$plain as redb::Value>::from_bytes(data))
            }

            fn as_bytes<'a, 'b: 'a>(value: &'a Self::SelfType<'b>) -> Self::AsBytes<'a>
            where
                Self: 'b,
            {
                <$plain as redb::Value>::as_bytes(&$plain_of(*value))
            }

            fn type_name() -> redb::TypeName {
                <$plain as redb::Value>::type_name()
            }
        }

        impl redb::Key for $key {
            fn compare(one: &[u8], other: &[u8]) -> std::cmp::Ordering {
                <$plain as redb::Key>::compare(one, other)
            }
        }
    };
}

/// The key of a map page, or of a hole by its first page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct PageKey {
    pub(crate) branch: BranchId,
    /// The number of the page.
    pub(crate) page: u64,
}

impl PageKey {
    pub(crate) const fn new(branch: BranchId, page: u64) -> PageKey {
        PageKey { branch, page }
    }
}

/// The key of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct VersionKey {
    pub(crate) branch: BranchId,
    pub(crate) chunk: Chunk,
    /// The last epoch that needs the version.
    pub(crate) last: Epoch,
}

impl VersionKey {
    pub(crate) const fn new(branch: BranchId, chunk: Chunk, last: Epoch) -> VersionKey {
        VersionKey { branch, chunk, last }
    }

    /// Returns the version's key in the index by last epochs.
    pub(super) fn by_last(self) -> ByLast {
        ByLast { branch: self.branch, last: self.last, chunk: self.chunk }
    }
}

/// The key of a version in the index by last epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ByLast {
    pub(super) branch: BranchId,
    pub(super) last: Epoch,
    pub(super) chunk: Chunk,
}

impl ByLast {
    pub(super) fn version(self) -> VersionKey {
        VersionKey { branch: self.branch, chunk: self.chunk, last: self.last }
    }
}

/// The key of a count of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UsageKey {
    pub(crate) branch: BranchId,
    /// The last epoch that needs the slots, or [`CURRENT`](super::CURRENT).
    pub(crate) last: Epoch,
    /// The epoch in which their contents were born.
    pub(crate) born: Epoch,
}

impl UsageKey {
    /// All keys.
    pub(crate) const ALL: RangeInclusive<UsageKey> =
        UsageKey::first_of(BranchId(0))..=UsageKey::last_of(BranchId(u64::MAX));

    pub(crate) const fn new(branch: BranchId, last: Epoch, born: Epoch) -> UsageKey {
        UsageKey { branch, last, born }
    }

    const fn first_of(branch: BranchId) -> UsageKey {
        UsageKey { branch, last: Epoch::NONE, born: Epoch::NONE }
    }

    const fn last_of(branch: BranchId) -> UsageKey {
        UsageKey { branch, last: Epoch::MAX, born: Epoch::MAX }
    }

    /// Returns all keys of a branch.
    pub(crate) const fn of(branch: BranchId) -> RangeInclusive<UsageKey> {
        UsageKey::first_of(branch)..=UsageKey::last_of(branch)
    }
}

stored_as!(BranchId, u64, BranchId, |id: BranchId| id.0);
stored_as!(VolumeId, u64, VolumeId, |id: VolumeId| id.0);
stored_as!(Lsn, u64, Lsn, |lsn: Lsn| lsn.0);
stored_as!(SnapshotId, u64, SnapshotId, |id: SnapshotId| id.0);
stored_as!(
    PageKey,
    (u64, u64),
    |(branch, page)| PageKey { branch: BranchId(branch), page },
    |key: PageKey| (key.branch.0, key.page)
);
stored_as!(
    VersionKey,
    (u64, u64, u32),
    |(branch, chunk, last)| VersionKey { branch: BranchId(branch), chunk: Chunk(chunk), last: Epoch(last) },
    |key: VersionKey| (key.branch.0, key.chunk.0, key.last.0)
);
stored_as!(
    ByLast,
    (u64, u32, u64),
    |(branch, last, chunk)| ByLast { branch: BranchId(branch), last: Epoch(last), chunk: Chunk(chunk) },
    |key: ByLast| (key.branch.0, key.last.0, key.chunk.0)
);
stored_as!(
    UsageKey,
    (u64, u32, u32),
    |(branch, last, born)| UsageKey { branch: BranchId(branch), last: Epoch(last), born: Epoch(born) },
    |key: UsageKey| (key.branch.0, key.last.0, key.born.0)
);

#[cfg(test)]
mod tests {
    use super::*;
    use redb::{Key, Value};

    /// Compares the key with the plain type, of which catalogs of older builds have tables.
    fn same<K, P>(pairs: &[(K, P)])
    where
        K: Key + for<'a> Value<SelfType<'a> = K> + PartialEq + std::fmt::Debug + 'static,
        P: Key + for<'a> Value<SelfType<'a> = P> + 'static,
    {
        assert_eq!(K::type_name(), P::type_name());
        assert_eq!(K::fixed_width(), P::fixed_width());
        for (key, plain) in pairs {
            let (bytes, plain) = (K::as_bytes(key), P::as_bytes(plain));
            assert_eq!(bytes.as_ref(), plain.as_ref());
            assert_eq!(&K::from_bytes(plain.as_ref()), key);
            for (_, other) in pairs {
                let other = P::as_bytes(other);
                assert_eq!(
                    K::compare(bytes.as_ref(), other.as_ref()),
                    P::compare(plain.as_ref(), other.as_ref())
                );
            }
        }
    }

    #[test]
    fn keys_are_stored_as_the_plain_types_of_older_builds() {
        let (one, two) = (BranchId(1), BranchId(1 << 40));
        same(&[(one, 1u64), (two, 1 << 40)]);
        same(&[(VolumeId(1), 1u64), (VolumeId(1 << 40), 1 << 40)]);
        same(&[(Lsn(1), 1u64), (Lsn(1 << 40), 1 << 40)]);
        same(&[(SnapshotId(1), 1u64), (SnapshotId(1 << 40), 1 << 40)]);
        same(&[(PageKey::new(one, 9), (1u64, 9u64)), (PageKey::new(two, 3), (1 << 40, 3))]);
        same(&[
            (VersionKey::new(one, Chunk(9), Epoch(7)), (1u64, 9u64, 7u32)),
            (VersionKey::new(one, Chunk(7), Epoch(9)), (1, 7, 9)),
            (VersionKey::new(two, Chunk(1), Epoch(300)), (1 << 40, 1, 300)),
        ]);
        same(&[
            (VersionKey::new(one, Chunk(9), Epoch(7)).by_last(), (1u64, 7u32, 9u64)),
            (VersionKey::new(two, Chunk(300), Epoch(1)).by_last(), (1 << 40, 1, 300)),
        ]);
        same(&[
            (UsageKey { branch: one, last: Epoch(2), born: Epoch(3) }, (1u64, 2u32, 3u32)),
            (UsageKey { branch: two, last: Epoch(1), born: Epoch(900) }, (1 << 40, 1, 900)),
        ]);
        same(&[((one, 9u64), (1u64, 9u64)), ((two, 3), (1 << 40, 3))]);
    }
}
