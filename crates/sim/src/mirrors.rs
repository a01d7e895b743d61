//! Pools on a mirror of two disks. One of them, the weak one, fails in every way: it refuses writes
//! or syncs, sectors of it can't be read, bits flip, and it is away after a crash. Nothing that
//! clients see may change by that. When it has all content again, the other one may become weak.

use crate::disk::Failing;
use crate::run::{Outcome, Run};
use crate::survive;
use crate::workload::Op;
use hindcast_engine::pool::{MirrorInfo, MirrorSpec, Progress, PvSpec};

/// Names of the members' files. Physical volumes have such names, so that tears are the same.
const MEMBERS: [&str; 2] = ["pv-m0", "pv-m1"];
const PATH: &str = "mirror:m";
/// Bytes of a member before its content, and a unit of that.
const HEAD: u64 = 1 << 20;
/// Steps of background work within which a rebuild has to end.
const MANY: usize = 20_000;

impl Run {
    /// Moves the pool to a mirror with as much space as its physical volumes have.
    pub(crate) fn move_to_mirror(&mut self) -> Outcome<()> {
        let size: u64 = self.plan.pvs.iter().map(|(size, _)| *size).sum();
        let size = HEAD + size.next_multiple_of(HEAD);
        let members = MEMBERS.map(|path| PvSpec { path: path.into(), size: Some(size), force: false });
        let spec = MirrorSpec { name: "m".into(), copies: 2, members: members.into() };
        let pool = self.pool()?;
        let added = survive(|| pool.add_mirror(&spec).map(drop));
        self.durably(added, &[])?;
        for plain in std::mem::take(&mut self.pvs) {
            let drained = survive(|| pool.drain_pv(&plain, true));
            self.durably(drained, &[])?;
            self.settle_pool(|_| false)?;
            let removed = survive(|| pool.remove_pv(&plain));
            self.durably(removed, &[])?;
        }
        self.pvs.insert(PATH.into());
        Ok(())
    }

    /// Does background work until there is none, or until `done`.
    fn settle_pool(&mut self, done: impl Fn(&MirrorInfo) -> bool) -> Outcome<bool> {
        for _ in 0..MANY {
            let pool = self.pool()?;
            let mirror = pool.pvs().into_iter().find_map(|pv| pv.mirror);
            if mirror.is_some_and(|mirror| done(&mirror)) {
                return Ok(true);
            }
            drop(pool);
            if self.poisoned() || self.dir.crashed() || self.maintain_once()? == Progress::Idle {
                break;
            }
        }
        Ok(false)
    }

    /// Carries out an operation about physical volumes in a pool on a mirror.
    pub(crate) fn perform_on_mirror(&mut self, op: &Op) -> Outcome<()> {
        match op {
            Op::AddPv { .. } | Op::DrainPv(..) => self.mend_member(),
            Op::FailPv(pick) => {
                let how = if pick.is_multiple_of(2) { Failing::Writes } else { Failing::Syncs };
                self.say(|| format!("{}: {how:?} fail", MEMBERS[self.weak]));
                self.dir.fail_writes(MEMBERS[self.weak], how, (pick >> 16) % 16);
                Ok(())
            }
            Op::BadReads if self.rand.percent(50) => {
                let (pick, most) = (self.rand.bits() >> 32, self.rand.between(1, 200));
                let lost = self.dir.lose_sectors(MEMBERS[self.weak], pick, most);
                self.say(|| format!("{}: {} sectors can't be read", MEMBERS[self.weak], lost.len()));
                Ok(())
            }
            Op::BadReads | Op::Rot(_) => self.rot(None).map(drop),
            _ => Ok(()),
        }
    }

    /// Returns the file in which bits flip, in a pool on a mirror.
    pub(crate) fn weak_member(&self) -> Option<String> {
        self.plan.mirrored.then(|| MEMBERS[self.weak].to_owned())
    }

    /// Returns the file of the member that does not fail, in a pool on a mirror.
    pub(crate) fn other_member(&self) -> Option<String> {
        self.plan.mirrored.then(|| MEMBERS[1 - self.weak].to_owned())
    }

    /// Takes the weak member away for the next opening, now and then.
    pub(crate) fn lose_member(&mut self) {
        let often = if self.wild { 15 } else { 50 };
        if self.plan.mirrored && self.rand.percent(often) {
            self.say(|| format!("{} is away", MEMBERS[self.weak]));
            self.dir.hide(MEMBERS[self.weak], true);
        }
    }

    /// Rebuilds the weak member, whatever it has. When that has ended, any member may be the weak
    /// one.
    fn mend_member(&mut self) -> Outcome<()> {
        let path = MEMBERS[self.weak];
        self.dir.hide(path, false);
        self.dir.clear_faults();
        let pool = self.pool()?;
        let is_rebuilt = pool
            .pvs()
            .iter()
            .filter_map(|pv| pv.mirror.as_ref())
            .any(|mirror| mirror.members.iter().any(|member| member.incoming.is_some()));
        if !is_rebuilt {
            let begun = survive(|| {
                pool.put_member_out(path)?;
                pool.rebuild_member(path, None).map(drop)
            });
            if self.dir.crashed() || self.dir.panicked() || self.poisoned() {
                return Ok(());
            }
            begun.map_err(|e| format!("rebuild {path}: {e:?}"))?;
        }
        drop(pool);
        let is_whole = |mirror: &MirrorInfo| mirror.members.iter().all(|member| member.is_in);
        if self.settle_pool(is_whole)? {
            self.weak = self.rand.below(2) as usize;
            self.say(|| format!("{path} is rebuilt; {} is the weak one", MEMBERS[self.weak]));
        }
        Ok(())
    }
}
