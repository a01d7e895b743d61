//! What the pool tells about snapshots without reading them: what differs between two states, and what a deletion gives
//! back.

use crate::oracle::{SECTOR, SnapId, View, VolId};
use crate::run::{Outcome, Run};
use crate::workload::Op;
use hindcast_engine::device::BlockDevice;
use hindcast_engine::{Difference, Volume};
use std::ops::Range;
use std::sync::Arc;

/// Pairs of states that are compared at a time.
const PAIRS: usize = 4;

impl Run {
    /// Compares a few pairs of states: a sector that differs must be named.
    pub(crate) fn verify_differences(&mut self) -> Outcome<()> {
        let snapshots: Vec<SnapId> = self.oracle.state().snapshots.keys().copied().collect();
        let volumes: Vec<VolId> = self.oracle.state().volumes.keys().copied().collect();
        let views =
            snapshots.iter().map(|id| View::Snapshot(*id)).chain(volumes.into_iter().map(View::Volume));
        let views: Vec<View> = views.collect();
        for _ in 0..PAIRS.min(snapshots.len()) {
            let from = View::Snapshot(snapshots[self.rand.below(snapshots.len() as u64) as usize]);
            let to = views[self.rand.below(views.len() as u64) as usize];
            self.verify_difference(from, to)?;
        }
        Ok(())
    }

    fn verify_difference(&mut self, from: View, to: View) -> Outcome<()> {
        let (was, is) = (self.open_view(from)?, self.open_view(to)?);
        let what = |e| format!("compare {from:?} with {to:?}: {e}");
        if was.info().block_size != is.info().block_size {
            return Ok(());
        }
        // Volumes of other chunk sizes can't be compared.
        let Ok(difference) = Difference::new(was.clone(), is.clone()) else { return Ok(()) };
        let named: Vec<Range<u64>> =
            difference.ranges().collect::<Result<_, _>>().map_err(|e| what(format!("{e:?}")))?;
        if !named.windows(2).all(|pair| pair[0].end < pair[1].start) {
            return Err(what(format!("{} ranges out of order", named.len())));
        }
        let (old_size, size) = (was.info().size, is.info().size);
        let mut ranges = self.oracle.interesting(self.owner(from)?, size);
        ranges.extend(self.oracle.interesting(self.owner(to)?, size));
        for (offset, len) in ranges {
            let mut now = vec![0; len as usize];
            let mut then = vec![0; len as usize];
            let common = old_size.saturating_sub(offset).min(len) as usize;
            is.read(offset, &mut now).map_err(|e| what(format!("{e:?}")))?;
            if common > 0 {
                was.read(offset, &mut then[..common]).map_err(|e| what(format!("{e:?}")))?;
            }
            let sectors = now.chunks(SECTOR as usize).zip(then.chunks(SECTOR as usize));
            for (at, (now, then)) in (offset..).step_by(SECTOR as usize).zip(sectors) {
                if now != then && !named.iter().any(|range| range.contains(&at)) {
                    return Err(what(format!("byte {at} differs, it is in none of {} ranges", named.len())));
                }
            }
        }
        Ok(())
    }

    fn owner(&self, view: View) -> Outcome<VolId> {
        match view {
            View::Volume(id) => Ok(id),
            View::Snapshot(id) => Ok(self.snapshot_model(id)?.volume),
        }
    }

    fn open_view(&self, view: View) -> Outcome<Arc<Volume>> {
        let (pool, name) = (self.pool()?, self.volume_name(self.owner(view)?)?);
        let opened = match view {
            View::Snapshot(id) => pool.open_snapshot(&name, &self.snapshot_model(id)?.name),
            View::Volume(_) => pool.open_volume(&name, true),
        };
        opened.map_err(|e| format!("open {view:?}: {e:?}"))
    }

    /// Deletes a snapshot that nothing rests on: what was told to be its own comes back, and no more, unless hidden
    /// snapshots may go with it. Everything must be settled; a PV that is being drained never is, where there is no room.
    pub(crate) fn verify_space(&mut self) -> Outcome<()> {
        self.drop_handles();
        self.step(&Op::Settle)?;
        let pool = self.pool()?;
        let (info, options) = (pool.info(), &self.plan.options);
        // What is too deep waits for space to be flattened, and would take what the deletion frees.
        let waiting = options.flatten_depth > 0
            && info.available < info.capacity / 100 * u64::from(options.low_space_percent);
        if pool.pvs().iter().any(|pv| pv.draining) || waiting || self.flattening()? {
            return Ok(());
        }
        let mut free = Vec::new();
        for (id, model) in &self.oracle.state().snapshots {
            let volume = self.volume_name(model.volume)?;
            let info = pool.snapshot(&volume, &model.name).map_err(|e| format!("{e:?}"))?;
            if !info.pinned && info.handles == 0 && !info.protected {
                free.push((*id, volume, model.name.clone()));
            }
        }
        if free.is_empty() {
            return Ok(());
        }
        let (id, volume, name) = free.swap_remove(self.rand.below(free.len() as u64) as usize);
        let usage = pool.space_usage(&volume).map_err(|e| format!("tell the space of {volume}: {e:?}"))?;
        let own = usage.of.iter().find(|s| s.name == name).map(|s| s.unique);
        let own = own.ok_or_else(|| format!("{volume}@{name} is not in {usage:?}"))?;
        let before = info.used;
        let hidden = self.oracle.state().lines.any_hidden();
        drop(pool);
        self.step(&Op::DeleteSnapshots(vec![id]))?;
        self.step(&Op::Settle)?;
        let freed = before.saturating_sub(self.pool()?.info().used);
        if freed < own || (freed > own && !hidden) {
            return Err(format!(
                "{own} bytes of {volume}@{name} were its own, its deletion has freed {freed}"
            ));
        }
        Ok(())
    }
}
