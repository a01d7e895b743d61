//! The state after every prefix of the records, compared with what was found.

use super::{Effect, FoundVolume, State, VolId, name_of};
use std::collections::BTreeMap;

/// Counts the differences between a state and what was found, while the state moves on.
pub(super) struct Replay<'a> {
    pub(super) state: State,
    found: BTreeMap<VolId, &'a FoundVolume>,
    wrong_sectors: BTreeMap<VolId, i64>,
}

impl<'a> Replay<'a> {
    pub(super) fn new(state: State, found: &'a [FoundVolume]) -> Self {
        let mut replay = Replay {
            state,
            found: found.iter().map(|f| (f.id, f)).collect(),
            wrong_sectors: BTreeMap::new(),
        };
        let ids: Vec<VolId> = replay.state.volumes.keys().copied().collect();
        for id in ids {
            replay.recount(id);
        }
        replay
    }

    fn recount(&mut self, id: VolId) {
        let (Some(volume), Some(found)) = (self.state.volumes.get(&id), self.found.get(&id)) else {
            self.wrong_sectors.remove(&id);
            return;
        };
        let wrong = found.sectors.iter().filter(|(sector, stamp)| volume.sector(**sector) != **stamp).count();
        self.wrong_sectors.insert(id, wrong as i64);
    }

    pub(super) fn apply(&mut self, effect: &Effect) {
        let before = self.wrong_in(effect);
        self.state.apply(effect);
        match effect {
            Effect::Write { vol, .. } | Effect::Zero { vol, .. } => {
                let change = self.wrong_in(effect) - before;
                *self.wrong_sectors.entry(*vol).or_default() += change;
            }
            Effect::Create(vol, _) | Effect::Delete(vol) | Effect::Resize(vol, _) => self.recount(*vol),
            Effect::Rename(..) | Effect::ReadOnly(..) => {}
        }
    }

    /// Differences in the range that an effect covers.
    fn wrong_in(&self, effect: &Effect) -> i64 {
        let (Effect::Write { vol, sector, count, .. } | Effect::Zero { vol, sector, count }) = effect else {
            return 0;
        };
        let (Some(volume), Some(found)) = (self.state.volumes.get(vol), self.found.get(vol)) else {
            return 0;
        };
        let range = found.sectors.range(*sector..sector + count);
        range.filter(|(sector, stamp)| volume.sector(**sector) != **stamp).count() as i64
    }

    pub(super) fn wrong(&self) -> i64 {
        let volumes = &self.state.volumes;
        let shapes =
            volumes.iter().filter(|(id, v)| self.found.get(id).is_none_or(|f| !v.same_shape(f))).count();
        let extra = self.found.keys().filter(|id| !volumes.contains_key(id)).count();
        let sectors: i64 = volumes.keys().filter_map(|id| self.wrong_sectors.get(id)).sum();
        (shapes + extra) as i64 + sectors
    }

    pub(super) fn explain(&self) -> String {
        for (id, volume) in &self.state.volumes {
            let Some(found) = self.found.get(id) else {
                return format!("volume {id} ({}) is missing", volume.name);
            };
            if !volume.same_shape(found) {
                return format!(
                    "volume {id} should be {} of {} bytes, read-only {}, and is {} of {} bytes, read-only {}",
                    volume.name, volume.size, volume.read_only, found.name, found.size, found.read_only
                );
            }
            if let Some((sector, stamp)) =
                found.sectors.iter().find(|(s, stamp)| volume.sector(**s) != **stamp)
            {
                let expected = name_of(volume.sector(*sector));
                return format!(
                    "volume {id} sector {sector}: expected {expected}, found {}",
                    name_of(*stamp)
                );
            }
        }
        let extra = self.found.iter().find(|(id, _)| !self.state.volumes.contains_key(id));
        extra.map_or_else(String::new, |(id, f)| format!("volume {id} ({}) should not exist", f.name))
    }
}
