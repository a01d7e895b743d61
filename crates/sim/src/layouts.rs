//! Pools on a mirror or a RAID-5. One member, the weak one, fails in every way: it refuses writes
//! or syncs, sectors of it can't be read, bits flip, and it is away after a crash. Nothing that
//! clients see may change by that. When it has all content again, another one may become weak.

use crate::disk::Failing;
use crate::run::{Outcome, Run};
use crate::survive;
use crate::workload::Op;
use hindcast_engine::pool::{LayoutInfo, LayoutShape, LayoutSpec, Progress, PvSpec};

/// Names of the members' files. Physical volumes have such names, so that tears are the same.
const MEMBERS: [&str; 4] = ["pv-m0", "pv-m1", "pv-m2", "pv-m3"];
/// Bytes of a member before its content, and a unit of that.
const HEAD: u64 = 1 << 20;
/// Steps of background work within which a rebuild has to end.
const MANY: usize = 20_000;

/// The layout that a pool is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A mirror of two disks.
    Mirror,
    /// A RAID-5.
    Raid5 {
        /// Number of disks: 3 or 4.
        disks: usize,
        /// Number of units in a row.
        columns: usize,
        /// Bytes of a unit.
        unit: u64,
    },
}

impl Shape {
    /// The RAID-5 of scripts.
    pub const RAID5: Shape = Shape::Raid5 { disks: 3, columns: 3, unit: 8 << 10 };

    /// Returns the RAID-5 of a seed.
    pub(crate) fn raid5_of(seed: u64) -> Shape {
        let disks = 3 + (seed / 5 % 2) as usize;
        let columns = if seed / 10 % 2 == 0 { disks } else { 3 };
        Shape::Raid5 { disks, columns, unit: 4096 << (seed % 5) }
    }

    fn disks(self) -> usize {
        match self {
            Shape::Mirror => 2,
            Shape::Raid5 { disks, .. } => disks,
        }
    }

    /// Returns whether new parities are computed from old ones, too: rows are wide enough.
    fn reads_old(self) -> bool {
        matches!(self, Shape::Raid5 { columns: 4.., .. })
    }

    /// Returns the path of the physical volume.
    fn path(self) -> &'static str {
        match self {
            Shape::Mirror => "mirror:m",
            Shape::Raid5 { .. } => "raid5:m",
        }
    }

    /// Returns the shape, and the bytes of each disk, for so many bytes of content.
    fn of_disks(self, size: u64) -> (LayoutShape, u64) {
        match self {
            Shape::Mirror => (LayoutShape::Mirror { copies: 2 }, size),
            Shape::Raid5 { disks, columns, unit } => {
                let all = (size * columns as u64).div_ceil(columns as u64 - 1);
                (LayoutShape::Raid5 { columns, unit }, all.div_ceil(disks as u64))
            }
        }
    }
}

impl Run {
    /// Moves the pool to its layout, with as much space as its physical volumes have.
    pub(crate) fn move_to_layout(&mut self) -> Outcome<()> {
        let Some(planned) = self.plan.layout else { return Ok(()) };
        let size: u64 = self.plan.pvs.iter().map(|(size, _)| *size).sum();
        let (shape, size) = planned.of_disks(size);
        let size = HEAD + size.next_multiple_of(HEAD);
        let member = |path: &&str| PvSpec { path: (*path).into(), size: Some(size), force: false };
        let members = MEMBERS[..planned.disks()].iter().map(member).collect();
        let spec = LayoutSpec { name: "m".into(), shape, members };
        let pool = self.pool()?;
        let added = survive(|| pool.add_layout(&spec).map(drop));
        self.durably(added, &[])?;
        for plain in std::mem::take(&mut self.pvs) {
            let drained = survive(|| pool.drain_pv(&plain, true));
            self.durably(drained, &[])?;
            self.settle_pool(|_| false)?;
            let removed = survive(|| pool.remove_pv(&plain));
            self.durably(removed, &[])?;
        }
        self.pvs.insert(planned.path().into());
        Ok(())
    }

    /// Does background work until there is none, or until `done`.
    fn settle_pool(&mut self, done: impl Fn(&LayoutInfo) -> bool) -> Outcome<bool> {
        for _ in 0..MANY {
            let pool = self.pool()?;
            let layout = pool.pvs().into_iter().find_map(|pv| pv.layout);
            if layout.is_some_and(|layout| done(&layout)) {
                return Ok(true);
            }
            drop(pool);
            if self.poisoned() || self.dir.crashed() || self.maintain_once()? == Progress::Idle {
                break;
            }
        }
        Ok(false)
    }

    /// Carries out an operation about physical volumes in a pool on a layout.
    pub(crate) fn perform_on_layout(&mut self, op: &Op) -> Outcome<()> {
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
            // A parity that is computed from an old one absorbs what is rotten in that.
            Op::BadReads | Op::Rot(_) if self.plan.layout.is_some_and(Shape::reads_old) => Ok(()),
            Op::BadReads | Op::Rot(_) => self.rot(None).map(drop),
            _ => Ok(()),
        }
    }

    /// Returns the files of the members, in a pool on a layout.
    pub(crate) fn members(&self) -> &'static [&'static str] {
        &MEMBERS[..self.plan.layout.map_or(0, Shape::disks)]
    }

    /// Returns the file in which bits flip, in a pool on a layout.
    pub(crate) fn weak_member(&self) -> Option<String> {
        self.plan.layout.map(|_| MEMBERS[self.weak].to_owned())
    }

    /// Returns the file that has the beginning of a physical volume: of a mirror, the member that
    /// does not fail. A RAID-5 has none.
    pub(crate) fn with_beginning(&self, pv: String) -> Option<String> {
        match self.plan.layout {
            None => Some(pv),
            Some(Shape::Mirror) => Some(MEMBERS[1 - self.weak].to_owned()),
            Some(Shape::Raid5 { .. }) => None,
        }
    }

    /// Takes the weak member away for the next opening, now and then.
    pub(crate) fn lose_member(&mut self) {
        let often = if self.wild { 15 } else { 50 };
        if self.plan.layout.is_some() && self.rand.percent(often) {
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
            .filter_map(|pv| pv.layout.as_ref())
            .any(|layout| layout.members.iter().any(|member| member.incoming.is_some()));
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
        let is_whole = |layout: &LayoutInfo| layout.members.iter().all(|member| member.is_in);
        if self.settle_pool(is_whole)? {
            self.weak = self.rand.below(self.members().len() as u64) as usize;
            self.say(|| format!("{path} is rebuilt; {} is the weak one", MEMBERS[self.weak]));
        }
        Ok(())
    }
}
