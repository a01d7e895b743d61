//! Reports about snapshots that the pool makes without reading their data: the differences between
//! two states, and the space that a deletion gives back.

use crate::oracle::{SECTOR, SnapId, View, VolId};
use crate::policies::spaces;
use crate::rand::Rand;
use crate::run::{Outcome, Run};
use crate::survive;
use crate::workload::Op;
use hindcast_engine::cdp::Moment;
use hindcast_engine::device::BlockDevice;
use hindcast_engine::ids::Lsn;
use hindcast_engine::{Difference, ErrorKind, Volume};
use std::ops::Range;
use std::sync::Arc;

/// Pairs of states that are compared at a time.
const PAIRS: usize = 4;

/// A state that can be compared.
#[derive(Debug, Clone, Copy)]
enum Compared {
    View(View),
    /// A moment, by its LSN.
    Moment(VolId, Lsn),
}

impl Run {
    /// Compares a few pairs of states. The report must name each sector that differs.
    pub(crate) fn verify_differences(&mut self) -> Outcome<()> {
        let snapshots: Vec<SnapId> = self.oracle.state().snapshots.keys().copied().collect();
        let volumes: Vec<VolId> = self.oracle.state().volumes.keys().copied().collect();
        let views =
            snapshots.iter().map(|id| View::Snapshot(*id)).chain(volumes.into_iter().map(View::Volume));
        let views: Vec<View> = views.collect();
        for _ in 0..PAIRS.min(snapshots.len()) {
            let from = View::Snapshot(snapshots[self.rand.below(snapshots.len() as u64) as usize]);
            let to = views[self.rand.below(views.len() as u64) as usize];
            self.verify_difference(Compared::View(from), Compared::View(to))?;
        }
        self.verify_differences_of_moments()
    }

    /// Compares a few moments with other moments, snapshots and volumes of all histories.
    fn verify_differences_of_moments(&mut self) -> Outcome<()> {
        // The records that a moment needs are carried out first, and that may have to wait.
        if self.failing {
            return Ok(());
        }
        let moments: Vec<Compared> =
            self.known_moments().map(|(vol, lsn)| Compared::Moment(vol, lsn)).collect();
        let state = self.oracle.state();
        let snapshots = state.snapshots.keys().map(|id| Compared::View(View::Snapshot(*id)));
        let volumes = state.volumes.keys().map(|id| Compared::View(View::Volume(*id)));
        let others: Vec<Compared> = moments.iter().copied().chain(snapshots).chain(volumes).collect();
        // A generator of its own makes these draws, so that those of the run stay the same.
        let mut rand = Rand::new(self.summary.ops);
        for _ in 0..PAIRS.min(moments.len()) {
            let (moment, other) = (rand.pick(&moments), rand.pick(&others));
            match other {
                Compared::View(View::Snapshot(_)) | Compared::Moment(..) if rand.percent(50) => {
                    self.verify_difference(other, moment)?;
                }
                _ => self.verify_difference(moment, other)?,
            }
        }
        Ok(())
    }

    /// Checks the report of what has changed since a moment.
    pub(crate) fn verify_change_since(&mut self, vol: VolId, lsn: Lsn) -> Outcome<()> {
        self.verify_difference(Compared::Moment(vol, lsn), Compared::View(View::Volume(vol)))
    }

    fn verify_difference(&mut self, from: Compared, to: Compared) -> Outcome<()> {
        let (Some(was), Some(is)) = (self.open_compared(from)?, self.open_compared(to)?) else {
            return Ok(());
        };
        let of_moment = matches!(from, Compared::Moment(..)) || matches!(to, Compared::Moment(..));
        let what = |e| format!("compare {from:?} with {to:?}: {e}");
        if was.info().block_size != is.info().block_size {
            return Ok(());
        }
        let named = Difference::new(was.clone(), is.clone())
            .and_then(|difference| difference.ranges().collect::<Result<Vec<Range<u64>>, _>>());
        let named = match named {
            Ok(named) => named,
            // The chunk sizes differ.
            Err(e) if e.kind() == ErrorKind::Invalid => return Ok(()),
            // A state between them was not recorded, or has expired.
            Err(e) if of_moment && e.kind() == ErrorKind::Unsupported => return Ok(()),
            Err(_) if self.dir.crashed() => return Ok(()),
            Err(e) => return Err(what(format!("{e:?}"))),
        };
        self.summary.moments_compared += u64::from(of_moment);
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
            let read = is.read(offset, &mut now).and_then(|()| match common {
                0 => Ok(()),
                _ => was.read(offset, &mut then[..common]),
            });
            match read {
                Err(_) if self.dir.crashed() => return Ok(()),
                Err(e) if self.needs_lost(&e) => continue,
                read => read.map_err(|e| what(format!("{e:?}")))?,
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

    fn owner(&self, compared: Compared) -> Outcome<VolId> {
        match compared {
            Compared::View(View::Volume(id)) | Compared::Moment(id, _) => Ok(id),
            Compared::View(View::Snapshot(id)) => Ok(self.snapshot_model(id)?.volume),
        }
    }

    /// Opens a state. Returns `None` if it has expired, or after a crash.
    fn open_compared(&self, compared: Compared) -> Outcome<Option<Arc<Volume>>> {
        let owner = self.owner(compared)?;
        let (pool, name) = (self.pool()?, self.volume_name(owner)?);
        let opened = match compared {
            Compared::View(View::Snapshot(id)) => pool.open_snapshot(&name, &self.snapshot_model(id)?.name),
            Compared::View(View::Volume(_)) => pool.open_volume(&name, true),
            Compared::Moment(_, lsn) => match survive(|| pool.open_moment(&name, &Moment::Lsn(lsn))) {
                Err(e) if self.expires(owner) && e.kind() == ErrorKind::NotFound => return Ok(None),
                Err(_) if self.dir.crashed() => return Ok(None),
                opened => opened,
            },
        };
        opened.map(Some).map_err(|e| format!("open {compared:?}: {e:?}"))
    }

    /// Deletes a snapshot that nothing rests on. The deletion must free the space that the pool
    /// reported as the snapshot's own. It may free more only if hidden snapshots may be deleted
    /// with it.
    ///
    /// Everything must be settled. This is never so while a PV is drained and there is no room.
    /// What is on a PV that failed does not count as used, and a PV may fail while the pool opens.
    /// In these cases the function checks nothing.
    pub(crate) fn verify_space(&mut self) -> Outcome<()> {
        self.drop_handles();
        self.step(&Op::Settle)?;
        let pool = self.pool()?;
        let options = &self.plan.options;
        // A volume whose chain is too deep waits for space to be flattened. It would take the space
        // that the deletion frees.
        let share = u64::from(options.low_space_percent);
        let mut spaces = spaces(&pool).into_iter();
        let waiting = options.flatten_depth > 0
            && spaces.any(|(_, space)| space.available < space.capacity / 100 * share);
        if self.failing || pool.pvs().iter().any(|pv| pv.draining) || waiting || self.flattening()? {
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
        let before = pool.info().used;
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
