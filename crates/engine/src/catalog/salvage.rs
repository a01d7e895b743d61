//! Reading past damage: all rows of a table that can be read, and whether there may be other rows.

use super::store::db;
use super::{
    BRANCHES, BranchRecord, Bytes, Catalog, DamageKey, DamageRecord, Event, GroupRecord, LineRecord, PVS,
    PvRecord, RunRecord, SNAPSHOTS, SegmentRecord, SnapshotRecord, VOLUMES, Value, VolumeRecord, cdp, damage,
    decode,
};
use crate::error::Result;
use crate::ids::{BranchId, Lsn, SnapshotId, VolumeId};
use redb::{ReadableTable, TableDefinition, TableError};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The number of ids that are looked up one by one when a table is damaged.
const MOST_PROBES: u64 = 1 << 24;

/// The rows of a table that could be read.
pub(crate) struct Left<K, V> {
    pub(crate) rows: BTreeMap<K, V>,
    /// The table had no other rows.
    pub(crate) whole: bool,
}

/// The rows of a table whose keys are numbers, as far as they could be read.
pub(crate) struct LeftIds<K, V> {
    pub(crate) rows: BTreeMap<K, V>,
    /// The numbers of rows that may have existed and can't be read.
    pub(crate) lost: Vec<RangeInclusive<u64>>,
}

impl<K, V> LeftIds<K, V> {
    fn lose(&mut self, id: u64) {
        match self.lost.last_mut() {
            Some(last) if *last.end() + 1 == id => *last = *last.start()..=id,
            _ => self.lost.push(id..=id),
        }
    }
}

impl Catalog {
    /// Visits the rows of a table from its start or from its end, as far as they can be read. A row
    /// may be visited more than once.
    fn sweep<K: redb::Key + for<'a> redb::Value<SelfType<'a> = K> + 'static, V: Value>(
        &self,
        table: TableDefinition<'static, K, Bytes>,
        from_end: bool,
        visit: &mut dyn FnMut(K, Result<V>),
    ) -> Result<()> {
        let what = "read what is left of the catalog";
        self.store.read(what, |txn| {
            let table = match txn.open_table(table) {
                // Some are made with their first row.
                Err(TableError::TableDoesNotExist(_)) => return Ok(()),
                table => db!(what, table),
            };
            let mut rows = db!(what, table.iter());
            while let Some(row) = if from_end { rows.next_back() } else { rows.next() } {
                let (key, value) = db!(what, row);
                visit(key.value(), decode("a row", value.value()));
            }
            Ok(())
        })
    }

    fn left<K, V: Value>(&self, table: TableDefinition<'static, K, Bytes>) -> Left<K, V>
    where
        K: redb::Key + for<'a> redb::Value<SelfType<'a> = K> + Ord + 'static,
    {
        let mut left = Left { rows: BTreeMap::new(), whole: true };
        let mut undecoded = false;
        for from_end in [false, true] {
            let swept = self.sweep(table, from_end, &mut |key, value| match value {
                Ok(value) => drop(left.rows.insert(key, value)),
                Err(_) => undecoded = true,
            });
            // A sweep from the other end may find more.
            left.whole = swept.is_ok();
            if left.whole {
                break;
            }
        }
        left.whole &= !undecoded;
        left
    }

    /// Reads a table whose keys are numbers below `end`.
    fn left_ids<K, V: Value>(&self, table: TableDefinition<'static, K, Bytes>, end: u64) -> LeftIds<K, V>
    where
        K: redb::Key
            + for<'a> redb::Value<SelfType<'a> = K>
            + Copy
            + Ord
            + TryFrom<u64>
            + Into<u64>
            + 'static,
    {
        let Left { rows, whole } = self.left(table);
        let end = rows.keys().next_back().map_or(end, |last| end.max((*last).into() + 1));
        let mut left = LeftIds { rows, lost: Vec::new() };
        if whole {
            return left;
        }
        for id in 0..end.min(MOST_PROBES) {
            let Some(key) = K::try_from(id).ok().filter(|key| !left.rows.contains_key(key)) else { continue };
            match self.row(table, key, "a row") {
                Ok(Some(value)) => drop(left.rows.insert(key, value)),
                Ok(None) => {}
                Err(_) => left.lose(id),
            }
        }
        if end > MOST_PROBES {
            left.lost.push(MOST_PROBES..=end - 1);
        }
        left
    }

    pub(crate) fn branches_left(&self, next_id: u64) -> LeftIds<BranchId, BranchRecord> {
        self.left_ids(BRANCHES, next_id)
    }

    pub(crate) fn volumes_left(&self, next_id: u64) -> LeftIds<VolumeId, VolumeRecord> {
        self.left_ids(VOLUMES, next_id)
    }

    pub(crate) fn snapshots_left(&self, next_id: u64) -> LeftIds<SnapshotId, SnapshotRecord> {
        self.left_ids(SNAPSHOTS, next_id)
    }

    pub(crate) fn pvs_left(&self, next_pv: u32) -> LeftIds<u32, PvRecord> {
        self.left_ids(PVS, next_pv.into())
    }

    pub(crate) fn events_left(&self) -> Left<(BranchId, Lsn), Event> {
        self.left(cdp::EVENTS)
    }

    pub(crate) fn lines_left(&self) -> Left<(VolumeId, Lsn), LineRecord> {
        self.left(cdp::LINES)
    }

    pub(crate) fn segments_left(&self) -> Left<(BranchId, u64), SegmentRecord> {
        self.left(cdp::SEGMENTS)
    }

    pub(crate) fn groups_left(&self) -> Left<(BranchId, u64, u64), GroupRecord> {
        self.left(cdp::GROUPS)
    }

    pub(crate) fn runs_left(&self) -> Left<(u64, u64), RunRecord> {
        self.left(cdp::RUNS)
    }

    /// Returns the rows of the table of damage, and whether these are all.
    pub(crate) fn damage_left(&self) -> (Vec<(DamageKey, DamageRecord)>, bool) {
        let Left { rows, whole } = self.left(damage::DAMAGE);
        let found = rows.len();
        let known = rows.into_iter().filter_map(|(key, record)| Some((DamageKey::of(key)?, record)));
        let known: Vec<_> = known.collect();
        let all = known.len() == found;
        (known, whole && all)
    }
}
