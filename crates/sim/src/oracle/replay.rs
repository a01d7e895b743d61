//! Replay of the records: the state after every prefix of them, compared with what was found.

use super::content::Found;
use super::{
    Effect, FoundSnapshot, FoundState, FoundVolume, SnapId, SnapshotModel, State, View, VolId, name_of,
};
use std::collections::BTreeMap;

/// Counts the differences between a state and what was found, while records change the state.
pub(super) struct Replay<'a> {
    pub(super) state: State,
    volumes: BTreeMap<VolId, &'a FoundVolume>,
    snapshots: BTreeMap<SnapId, &'a FoundSnapshot>,
    wrong_sectors: BTreeMap<View, i64>,
}

impl<'a> Replay<'a> {
    pub(super) fn new(state: State, found: &'a FoundState) -> Self {
        let mut replay = Replay {
            state,
            volumes: found.volumes.iter().map(|f| (f.id, f)).collect(),
            snapshots: found.snapshots.iter().map(|f| (f.id, f)).collect(),
            wrong_sectors: BTreeMap::new(),
        };
        let volumes = replay.state.volumes.keys().map(|id| View::Volume(*id));
        let snapshots = replay.state.snapshots.keys().map(|id| View::Snapshot(*id));
        let views: Vec<View> = volumes.chain(snapshots).collect();
        views.into_iter().for_each(|view| replay.recount(view));
        replay
    }

    fn found(&self, view: View) -> Option<&'a Found> {
        match view {
            View::Volume(vol) => self.volumes.get(&vol).map(|f| &f.content),
            View::Snapshot(snap) => self.snapshots.get(&snap).map(|f| &f.content),
        }
    }

    /// Returns the number of differing sectors in a range of sectors.
    fn differences(&self, view: View, start: u64, end: u64) -> i64 {
        match (self.state.content(view), self.found(view)) {
            (Some(content), Some(found)) => found.differences(content, start, end),
            _ => 0,
        }
    }

    fn recount(&mut self, view: View) {
        let wrong = self.differences(view, 0, u64::MAX);
        self.wrong_sectors.insert(view, wrong);
    }

    pub(super) fn apply(&mut self, effect: &Effect) {
        if let Some((vol, sector, count)) = effect.place() {
            let view = View::Volume(vol);
            let before = self.differences(view, sector, sector + count);
            self.state.apply(effect);
            let after = self.differences(view, sector, sector + count);
            *self.wrong_sectors.entry(view).or_default() += after - before;
            return;
        }
        self.state.apply(effect);
        match effect {
            Effect::Create(vol, _) | Effect::Resize(vol, _) | Effect::Clone(vol, ..) => {
                self.recount(View::Volume(*vol));
            }
            Effect::CreateSnapshots(new) => new.iter().for_each(|s| self.recount(View::Snapshot(s.0))),
            Effect::Imported(snap, ..) => self.recount(View::Snapshot(*snap)),
            Effect::RollBack(vol, _, undo, _) => {
                self.recount(View::Volume(*vol));
                self.recount(View::Snapshot(*undo));
            }
            Effect::RollBackTo(all) => all.iter().for_each(|taken| {
                self.recount(View::Volume(taken.vol));
                self.recount(View::Snapshot(taken.undo));
            }),
            // A volume or snapshot that is gone does not count.
            _ => {}
        }
    }

    fn wrong_shape(&self, id: SnapId, snapshot: &SnapshotModel) -> bool {
        let s = snapshot;
        let same = |f: &FoundSnapshot| {
            (f.volume, &f.name, f.size) == (s.volume, &s.name, s.size)
                && (f.origin, f.protected, &f.labels) == (s.origin, s.protected, &s.labels)
        };
        !self.snapshots.get(&id).is_some_and(|f| same(f))
    }

    pub(super) fn wrong(&self) -> i64 {
        let (volumes, snapshots) = (&self.state.volumes, &self.state.snapshots);
        let shapes =
            volumes.iter().filter(|(id, v)| self.volumes.get(id).is_none_or(|f| !v.same_shape(f))).count();
        let of_snapshots = snapshots.iter().filter(|(id, s)| self.wrong_shape(**id, s)).count();
        let extra = self.volumes.keys().filter(|id| !volumes.contains_key(id)).count()
            + self.snapshots.keys().filter(|id| !snapshots.contains_key(id)).count();
        let there = self.wrong_sectors.iter().filter(|(view, _)| self.state.content(**view).is_some());
        (shapes + of_snapshots + extra) as i64 + there.map(|(_, wrong)| wrong).sum::<i64>()
    }

    pub(super) fn explain(&self) -> String {
        for (id, volume) in &self.state.volumes {
            let Some(found) = self.volumes.get(id) else {
                return format!("volume {id} ({}) is missing", volume.name);
            };
            if !volume.same_shape(found) {
                return format!(
                    "volume {id} should be {} of {} bytes, read-only {}, {:?}, {:?}, {:?}, and is {} of {} bytes, read-only \
                     {}, {:?}, {:?}, {:?}",
                    volume.name,
                    volume.size,
                    volume.read_only,
                    volume.policy,
                    volume.import,
                    volume.manner,
                    found.name,
                    found.size,
                    found.read_only,
                    found.policy,
                    found.import,
                    found.manner
                );
            }
        }
        for (id, snapshot) in &self.state.snapshots {
            if self.wrong_shape(*id, snapshot) {
                let s = snapshot;
                let wanted = (s.volume, &s.name, s.size, s.origin, s.protected, &s.labels);
                let found = self.snapshots.get(id);
                let found = found.map(|f| (f.volume, &f.name, f.size, f.origin, f.protected, &f.labels));
                return format!(
                    "snapshot {id} (volume, name, size, origin, protected, labels) should be {wanted:?}, found {found:?}"
                );
            }
        }
        for view in self.wrong_sectors.iter().filter(|(_, wrong)| **wrong > 0).map(|(view, _)| *view) {
            if let (Some(content), Some(found)) = (self.state.content(view), self.found(view))
                && let Some((sector, expected, found)) = found.first_difference(content)
            {
                let (expected, found) = (name_of(expected), name_of(found));
                return format!("{view:?} sector {sector}: expected {expected}, found {found}");
            }
        }
        let extra = self.volumes.iter().find(|(id, _)| !self.state.volumes.contains_key(id));
        if let Some((id, found)) = extra {
            return format!("volume {id} ({}) should not exist", found.name);
        }
        let extra = self.snapshots.iter().find(|(id, _)| !self.state.snapshots.contains_key(id));
        extra.map_or_else(String::new, |(id, f)| format!("snapshot {id} ({}) should not exist", f.name))
    }
}
