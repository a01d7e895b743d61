//! Physical volumes: they are added, removed, and fail.

use crate::disk::Failing;
use crate::oracle::{Effect, Manner, VolId, VolumeModel};
use crate::perform::Answer;
use crate::run::{Outcome, Run};
use crate::survive;
use crate::workload::{MIB, Op};
use hindcast_engine::ErrorKind;
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::{DirectMin, Placement, Pool, PvInfo, PvSpec};
use std::sync::Arc;

impl Run {
    pub(crate) fn perform_on_pvs(&mut self, op: &Op) -> Outcome<()> {
        let is_of_pvs = matches!(
            op,
            Op::AddPv { .. } | Op::DrainPv(..) | Op::RemovePv(_) | Op::BadReads | Op::Rot(_) | Op::FailPv(_)
        );
        if self.plan.layout.is_some() && is_of_pvs {
            return self.perform_on_layout(op);
        }
        match op {
            Op::AddPv { size, device } => self.add_pv(*size, *device),
            Op::DrainPv(pick, on) => self.drain_pv(*pick, *on),
            Op::RemovePv(pick) => self.remove_pv(*pick),
            Op::Placement(placement) => {
                self.make_room(4096)?;
                let pool = self.pool()?;
                let result = survive(|| pool.set_placement(*placement));
                self.durably(result, &[]).map(drop)
            }
            Op::VolumePlacement(vol, placement) => self.place_volume(*vol, *placement),
            Op::DirectMin(vol, own) => self.set_direct_min(*vol, *own),
            Op::Weight(pick, weight) => self.weigh_pv(*pick, *weight),
            Op::Rebalance(on) => self.rebalance(*on),
            Op::EnableFeature => self.enable_features(),
            Op::BadReads => self.bad_reads(),
            Op::Rot(before) => self.rot_recorded(*before),
            Op::FailPv(pick) => {
                self.fail_pv(*pick);
                Ok(())
            }
            of_snapshots => self.perform_on_snapshots(of_snapshots),
        }
    }

    fn add_pv(&mut self, size: u64, device: bool) -> Outcome<()> {
        if self.pvs.len() >= 6 {
            return Ok(());
        }
        let dedicated = self.plan.dedicates && self.rand.percent(50);
        self.add_pv_as(size, device, dedicated)
    }

    /// Adds a small dedicated physical volume to a new pool that has such.
    pub(crate) fn dedicate_one(&mut self) -> Outcome<()> {
        if !self.plan.dedicates {
            return Ok(());
        }
        let size = MIB + self.rand.between(4, 40) * self.plan.config.extent_size;
        let device = self.rand.percent(30);
        self.add_pv_as(size, device, true)
    }

    fn add_pv_as(&mut self, size: u64, device: bool, dedicated: bool) -> Outcome<()> {
        self.make_room(4096)?;
        let spec: PvSpec = self.new_pv(size, device);
        let pool = self.pool()?;
        self.coming_pvs.insert(spec.path.clone(), Lsn::MAX);
        self.say(|| format!("{}: {}", spec.path, if dedicated { "dedicated" } else { "for all" }));
        let add = || if dedicated { pool.add_dedicated_pv(&spec) } else { pool.add_pv(&spec) };
        let result = survive(|| add().map(drop));
        let answer = self.durably(result, &[ErrorKind::NoSpace])?;
        self.note_coming(&spec.path, &answer)?;
        match answer {
            Answer::Done => drop(self.pvs.insert(spec.path)),
            Answer::Unknown => drop(self.doubtful_pvs.insert(spec.path)),
            // A volume that was accepted and waits for the end of a shortage is listed.
            Answer::Refused(_) if pool.pvs().iter().any(|pv| pv.path == spec.path) => {
                self.doubtful_pvs.insert(spec.path);
            }
            Answer::Refused(_) => {}
        }
        Ok(())
    }

    fn place_volume(&mut self, vol: VolId, placement: Option<Placement>) -> Outcome<()> {
        let name = self.volume_name(vol)?;
        let said = Manner { placement: Some(placement), ..Manner::default() };
        let set = |pool: &Arc<Pool>| pool.set_volume_placement(&name, placement).map(drop);
        let pool = self.pool()?;
        if pool.volume(&name).is_ok_and(|now| now.placement == placement) {
            // Nothing changes, so nothing is recorded.
            let result = survive(|| set(&pool));
            return self.around(result, &[]).map(drop);
        }
        self.control(Effect::Manner(vol, said), &[], set).map(drop)
    }

    fn set_direct_min(&mut self, vol: VolId, own: DirectMin) -> Outcome<()> {
        let name = self.volume_name(vol)?;
        let said = Manner { direct_min: Some(own), ..Manner::default() };
        let set = |pool: &Arc<Pool>| pool.set_volume_direct_min(&name, own).map(drop);
        let pool = self.pool()?;
        if pool.volume(&name).is_ok_and(|now| now.direct_min == own) {
            // Nothing changes, so nothing is recorded.
            let result = survive(|| set(&pool));
            return self.around(result, &[]).map(drop);
        }
        self.control(Effect::Manner(vol, said), &[], set).map(drop)
    }

    fn weigh_pv(&mut self, pick: u64, weight: u32) -> Outcome<()> {
        let Some(path) = self.pick_pv(pick) else { return Ok(()) };
        self.make_room(4096)?;
        let pool = self.pool()?;
        let changes = pool.pvs().iter().any(|pv| pv.path == path && pv.weight != weight);
        let result = survive(|| pool.set_weight(&path, weight).map(drop));
        // Where nothing changes, nothing is recorded, and nothing becomes durable.
        if changes { self.durably(result, &[]).map(drop) } else { self.around(result, &[]).map(drop) }
    }

    /// Begins or stops a rebalancing. No content that a volume or snapshot shows changes, and no
    /// space is lost.
    fn rebalance(&mut self, on: bool) -> Outcome<()> {
        self.make_room(4096)?;
        let pool = self.pool()?;
        let shares = pool.info().placement == Placement::Share;
        let result =
            survive(|| if on { pool.rebalance(0).map(drop) } else { pool.stop_rebalance().map(drop) });
        let may_refuse: &[ErrorKind] = if shares { &[] } else { &[ErrorKind::Conflict] };
        self.around(result, may_refuse).map(drop)
    }

    /// Creates a volume, on a dedicated physical volume or on all others.
    pub(crate) fn create_volume(&mut self, model: &VolumeModel) -> Outcome<()> {
        let on = self.pick_dedicated();
        self.create_volume_of(model, &[], |pool, new| match &on {
            None => pool.create_volume(&new),
            Some(on) => pool.create_volume_on(&new, on),
        })
    }

    /// Returns a dedicated physical volume, or none.
    fn pick_dedicated(&mut self) -> Option<String> {
        if !self.plan.dedicates {
            return None;
        }
        let pick = self.rand.bits() as usize;
        let pvs = self.pool.as_ref()?.pvs();
        let dedicated: Vec<&PvInfo> =
            pvs.iter().filter(|pv| pv.dedicated.is_some() && !pv.draining).collect();
        let path = dedicated.get(pick % (dedicated.len() + 1))?.path.clone();
        self.say(|| format!("on {path}"));
        Some(path)
    }

    /// Notes until when the physical volume of the answer may take no data yet.
    fn note_coming(&mut self, path: &str, answer: &Answer) -> Outcome<()> {
        match answer {
            Answer::Done => drop(self.coming_pvs.remove(path)),
            _ => self.date_coming()?,
        }
        Ok(())
    }

    /// Sets the LSNs of accepted volumes that may wait. Such a volume has an LSN by now, or none.
    pub(crate) fn date_coming(&mut self) -> Outcome<()> {
        let last = self.pool()?.stats().sequenced_lsn;
        self.coming_pvs.values_mut().for_each(|lsn| *lsn = last.min(*lsn));
        Ok(())
    }

    fn pick_pv(&self, pick: u64) -> Option<String> {
        self.pvs.iter().nth((pick % (self.pvs.len() as u64).max(1)) as usize).cloned()
    }

    fn drain_pv(&mut self, pick: u64, on: bool) -> Outcome<()> {
        let Some(path) = self.pick_pv(pick) else {
            return Ok(());
        };
        self.make_room(4096)?;
        let pool: Arc<Pool> = self.pool()?;
        let drains = |pv: PvInfo| pv.path == path && pv.draining;
        let comes = !on && pool.pvs().into_iter().any(drains);
        if comes {
            self.coming_pvs.insert(path.clone(), Lsn::MAX);
        }
        let result = survive(|| pool.drain_pv(&path, on));
        let answer = self.durably(result, &[ErrorKind::NoSpace, ErrorKind::Conflict])?;
        if comes { self.note_coming(&path, &answer) } else { Ok(()) }
    }

    fn remove_pv(&mut self, pick: u64) -> Outcome<()> {
        let Some(path) = self.pick_pv(pick) else {
            return Ok(());
        };
        self.make_room(4096)?;
        let pool = self.pool()?;
        let result = survive(|| pool.remove_pv(&path));
        let fails = |pv: PvInfo| pv.path == path && pv.failure.is_some();
        let unwiped = self.failing && matches!(&result, Err(e) if e.kind() == ErrorKind::Io);
        if unwiped && !pool.pvs().into_iter().any(fails) {
            // The volume is removed, but its label is still there.
            self.pvs.remove(&path);
            return self.durably(Ok(()), &[]).map(drop);
        }
        match self.durably(result, &[ErrorKind::Conflict, ErrorKind::NoSpace])? {
            Answer::Done => {
                self.pvs.remove(&path);
                // The removed volume can't have held anything.
                self.verify_unless_crashed()
            }
            Answer::Unknown => {
                self.doubtful_pvs.insert(path);
                Ok(())
            }
            Answer::Refused(_) => Ok(()),
        }
    }

    /// Makes one of several physical volumes fail its writes or its syncs.
    fn fail_pv(&mut self, pick: u64) {
        let Some(path) = self.pick_pv(pick >> 1).filter(|_| self.pvs.len() > 1) else { return };
        let how = if pick.is_multiple_of(2) { Failing::Writes } else { Failing::Syncs };
        let after = (pick >> 16) % 16;
        self.say(|| format!("{path}: {how:?} fail after {after} changes"));
        self.dir.fail_writes(&path, how, after);
        self.failing = true;
    }

    fn bad_reads(&mut self) -> Outcome<()> {
        if self.plan.sums && self.rand.percent(50) {
            let lost = self.rot(None)?;
            self.lost.extend(lost);
            return Ok(());
        }
        let files = self.dir.files();
        let pvs: Vec<&(String, u64)> = files.iter().filter(|(name, _)| self.pvs.contains(name)).collect();
        if pvs.is_empty() {
            return Ok(());
        }
        let name = &pvs[self.rand.below(pvs.len() as u64) as usize].0;
        let lost = self.dir.lose_sectors(name, self.rand.bits() >> 32, self.rand.between(1, 200));
        self.say(|| format!("{name}: {} sectors can't be read", lost.len()));
        self.lost.extend(lost);
        Ok(())
    }

    /// Flips a bit in a block of the first physical volume with at least `before` blocks before it.
    /// The history of volume 1 leads to what the block held, so nothing is lost.
    fn rot_recorded(&mut self, before: u64) -> Outcome<()> {
        let name = self.model(1).map(|volume| volume.name.clone());
        let is_recorded = name.is_ok_and(|name| {
            self.pool.as_ref().is_some_and(|pool| pool.volume(&name).is_ok_and(|v| v.cdp.is_some()))
        });
        let held = self.rot(Some(before))?;
        if !is_recorded {
            self.lost.extend(held);
        }
        Ok(())
    }

    /// Flips a bit of data that has a sum. From then on the block can't be read, until it is
    /// written or repaired, and nothing may ever show it. Returns what the block held.
    pub(crate) fn rot(&mut self, before: Option<u64>) -> Outcome<Vec<(u64, u64)>> {
        let pool = self.pool()?;
        if self.faults || self.failing || self.poisoned() || pool.drain().is_err() {
            return Ok(Vec::new());
        }
        // A unit without a sum would be shown as it is.
        let found = match self.scrub_once(&pool) {
            Err(_) if self.dir.crashed() || self.poisoned() => return Ok(Vec::new()),
            found => found?,
        };
        let all_verify = found.unknown + found.damaged + found.unreadable == 0;
        if !all_verify || pool.stats().referred_bytes > 0 || pool.pvs().iter().any(|pv| pv.failure.is_some())
        {
            return Ok(Vec::new());
        }
        let names: Vec<String> = match self.weak_member() {
            Some(member) => vec![member],
            None => self.pvs.iter().cloned().collect(),
        };
        let (name, pick) = match before {
            Some(before) => (&names[0], before),
            None => (&names[self.rand.below(names.len() as u64) as usize], self.rand.bits()),
        };
        let held = self.dir.rot(name, pick);
        self.say(|| format!("{name}: a bit of {} sectors flips", held.len()));
        Ok(held)
    }
}
