//! The damage of a pool, as users see it.

use super::Pool;
use crate::branch::VolumeState;
use crate::branch::namespace::Snapshot;
use crate::error::{ErrorKind, Result};
use crate::info::DamageInfo;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Pool {
    /// Returns the ranges of a volume that can't be read any more, as (byte offset, length). What
    /// is staged over them does not count. Reads the volume's map if the pool has any damage.
    pub fn damaged_ranges(&self, volume: &str) -> Result<Vec<(u64, u64)>> {
        let state = self.core.names.read().volume(volume)?.clone();
        let size = state.size.load(Ordering::Acquire);
        self.core.damaged_ranges(&state.line, 0..size, usize::MAX)
    }

    /// Returns the damage of each volume and each snapshot that has any, with about `most` ranges
    /// in total. The name of a volume in the trash is `trash:UUID`. What is staged over them does
    /// not count. Reads all maps if the pool has any damage.
    pub fn damage_by_owner(&self, most: usize) -> Result<Vec<DamageInfo>> {
        let mut found = Vec::new();
        if !self.core.damage.any() {
            return Ok(found);
        }
        let states: Vec<(String, Option<String>, _)> = {
            let names = self.core.names.read();
            let in_trash = names.trashed().into_iter().map(|state| (format!("trash:{}", state.uuid), state));
            let all = names.by_name.iter().map(|(name, state)| (name.clone(), state)).chain(in_trash);
            let of_volume = |(name, state): (String, &Arc<VolumeState>)| {
                let of_snapshot =
                    |s: &Arc<Snapshot>| (name.clone(), Some(s.state.name.read().clone()), s.state.clone());
                let snapshots: Vec<_> = names.snapshots_of(state.id).into_iter().map(of_snapshot).collect();
                [(name.clone(), None, state.clone())].into_iter().chain(snapshots)
            };
            all.flat_map(of_volume).collect()
        };
        let mut left = most;
        for (volume, snapshot, state) in states {
            let size = state.size.load(Ordering::Acquire);
            let ranges = match self.core.damaged_ranges(&state.line, 0..size, left) {
                // The check reports a map that can't be read.
                Err(error) if error.kind() == ErrorKind::Corrupt => continue,
                ranges => ranges?,
            };
            left = left.saturating_sub(ranges.len());
            if !ranges.is_empty() {
                found.push(DamageInfo { volume, snapshot, ranges });
            }
            if left == 0 {
                break;
            }
        }
        Ok(found)
    }

    /// Returns the number of bytes, and of places, of the pool that can't be read any more.
    pub fn damaged(&self) -> (u64, u64) {
        self.core.damage.totals()
    }
}
