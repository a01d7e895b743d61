//! Data directories and physical volumes of different ages, as after a restore of one side. The
//! pool refuses to open. A pool that is opened by force shows what is there, and writes nothing.

use crate::oracle::Promise;
use crate::run::{Outcome, Run};
use crate::workload::Op;
use hindcast_engine::ErrorKind;
use hindcast_engine::check::{CheckOptions, check};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::pool::{Health, Placement, Pool};

impl Run {
    /// Makes a backup of a closed pool, continues for a while, and restores one side of the backup.
    /// Then it restores the last state of everything, and opens the pool.
    pub(crate) fn mix_ages(&mut self) -> Outcome<()> {
        let names: Vec<String> = self.oracle.state().volumes.values().map(|v| v.name.clone()).collect();
        // This test is not about room for its operations.
        self.dir.set_backing(None);
        self.plan.backing = None;
        let old = self.dir.save();
        self.open(Promise::Acknowledged)?;
        self.dir.crash_at(None);
        for placement in [Placement::Contiguous, Placement::Anywhere] {
            self.step(&Op::Placement(placement))?;
        }
        self.step(&Op::Drain)?;
        // A fault or a crash on the way would have to be ended first. A physical volume that failed
        // was not written to, so an older copy of it is as good.
        if self.faults || self.failing || !self.close()? {
            return self.step(&Op::Reopen(None));
        }
        let new = self.dir.save();
        let pvs: Vec<String> = self.pvs.iter().cloned().collect();
        let is_pv = |name: &str| pvs.iter().any(|pv| pv == name);

        self.dir.restore(&old, |name| !is_pv(name));
        self.refused("an older data directory")?;
        self.shown_by_force(&names)?;
        self.dir.restore(&new, |_| true);

        let Some(pv) = pvs.get(self.rand.clone().below(pvs.len() as u64) as usize) else { return Ok(()) };
        self.dir.restore(&old, |name| name == pv);
        self.refused("an older physical volume")?;
        self.shown_by_force(&names)?;
        self.dir.restore(&new, |_| true);
        self.open(Promise::Acknowledged)
    }

    fn refused(&mut self, what: &str) -> Outcome<()> {
        match Pool::open(self.dyn_dir(), self.world(), self.plan.options.clone()) {
            Err(e) if e.kind() == ErrorKind::Conflict => {}
            Err(e) => return Err(format!("{what} is refused for another reason: {e:?}")),
            Ok(_) => return Err(format!("{what} was opened")),
        }
        let report = check(self.dyn_dir(), &CheckOptions::default(), &mut |_, _| {});
        let report = report.map_err(|e| format!("check {what}: {e:?}"))?;
        match report.findings.iter().any(|f| f.code == "pv-age") {
            true => Ok(()),
            false => Err(format!("check finds nothing of {what}")),
        }
    }

    fn shown_by_force(&mut self, names: &[String]) -> Outcome<()> {
        let before = self.dir.save();
        let pool = Pool::open_read_only(self.dyn_dir(), self.world(), self.plan.options.clone())
            .map_err(|e| format!("open by force: {e:?}"))?;
        if !matches!(pool.health(), Health::Poisoned(_)) {
            return Err("what was opened by force does not say so".into());
        }
        let mut found: Vec<String> = pool.volumes().into_iter().map(|v| v.name).collect();
        let mut names = names.to_vec();
        names.sort_unstable();
        found.sort_unstable();
        if found != names {
            return Err(format!("opened by force there are {found:?}, not {names:?}"));
        }
        for name in found {
            // The content may be of another age.
            let handle = pool.open_volume(&name, true).map_err(|e| format!("open by force: {e:?}"))?;
            let _ = handle.read(0, &mut vec![0; handle.info().block_size as usize]);
            if pool.set_read_only(&name, true).is_ok() {
                return Err("what was opened by force can be changed".into());
            }
        }
        drop(pool);
        if self.dir.save() != before {
            return Err("opening by force has written something".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::disk::{CrashPoint, SimDir};
    use crate::fate::{PowerLoss, TearModel};
    use hindcast_engine::Result;
    use hindcast_engine::pool::{Placement, Pool, PoolConfig, PoolOptions, PvSpec, code};
    use hindcast_engine::world::{ManualClock, SplitMix, World};
    use std::sync::Arc;

    fn world(seed: u64) -> World {
        World { clock: Arc::new(ManualClock::new(seed)), rng: Arc::new(SplitMix::new(seed)) }
    }

    fn open(dir: &SimDir) -> Result<Arc<Pool>> {
        let options = PoolOptions { destage_threads: 1, ..PoolOptions::default() };
        Pool::open(Arc::new(dir.clone()), world(2), options)
    }

    /// Openings that are cut short follow one another. The first leaves content that only the page
    /// cache holds. The second loses it together with what it was writing. The stamp that the
    /// catalog knows to be durable must survive both.
    #[test]
    fn stamps_survive_one_crash_after_another() {
        let (extent_size, segment_size) = (64 << 10, 256 << 10);
        let config = PoolConfig { extent_size, journal_size: 1 << 20, segment_size, atomic_unit: 4096 };
        let dir = SimDir::new(0);
        let pv = PvSpec { path: "pv".into(), size: Some(2 << 20), force: false };
        Pool::create(Arc::new(dir.clone()), &world(1), &config, Placement::Anywhere, &[pv]).unwrap();
        for _ in 0..2 {
            let pool = open(&dir).unwrap();
            pool.set_placement(Placement::Contiguous).unwrap();
            pool.drain().unwrap();
            pool.close().unwrap();
        }
        let saved = dir.save();
        let start = |seed| {
            let dir = SimDir::new(seed);
            // A block that was being written becomes garbage.
            dir.set_tear_model(|name| if name == "pv" { TearModel::EMULATED } else { TearModel::SECTORS });
            dir.restore(&saved, |_| true);
            dir
        };
        let dir = start(1);
        drop(open(&dir).unwrap());
        let ops = dir.counts().ops;
        let mut tried = 0;
        let twice = (1..=2 * ops).map(|n| n.div_ceil(2));
        for (first, second) in twice.flat_map(|first| (1..=ops).map(move |second| (first, second))) {
            let dir = start(first * ops + second);
            dir.crash_at(Some(CrashPoint::Op(first)));
            drop(open(&dir));
            dir.kill();
            if !dir.has_unsynced("pv") {
                continue;
            }
            let at = dir.counts().ops;
            dir.crash_at(Some(CrashPoint::Op(at + second)));
            drop(open(&dir));
            dir.lose_power(if tried % 2 == 0 { PowerLoss::Tears } else { PowerLoss::Subset });
            tried += 1;
            let at = format!("crashes at {first} and {second} of {ops} operations");
            match open(&dir) {
                Ok(pool) => assert!(!pool.health().has(code::PV_STAMP), "{at}: {:?}", pool.health()),
                Err(why) => panic!("{at}: {why}"),
            }
        }
        assert!(tried > ops, "{tried}");
    }
}
