//! Pools on a mirror or a RAID-5. One member, the weak one, fails in every way: it refuses writes
//! or syncs, sectors of it can't be read, bits flip, and it is away after a crash. Nothing that
//! clients see may change by that. When it has all content again, another one may become weak.

use crate::disk::Failing;
use crate::run::{Outcome, Run};
use crate::survive;
use crate::workload::Op;
use hindcast_engine::ErrorKind;
use hindcast_engine::pool::{
    GrowSpec, LayoutInfo, LayoutShape, LayoutSpec, MemberInfo, Pool, Progress, PvSpec,
};

/// Names of the members' files, and of a spare disk. Physical volumes have such names, so that
/// tears are the same.
const MEMBERS: [&str; 7] = ["pv-m0", "pv-m1", "pv-m2", "pv-m3", "pv-m4", "pv-m5", "pv-m6"];
/// Number of disks that a layout gets later.
const MORE: usize = 2;
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

    /// A RAID-5 whose rows are so wide that new parities are computed from old ones.
    pub const WIDE: Shape = Shape::Raid5 { disks: 4, columns: 4, unit: 8 << 10 };

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
        let (disks, reserve) = (self.number_of_disks(), usize::from(self.plan.reserve));
        let member = |path: &&str| PvSpec { path: (*path).into(), size: Some(size), force: false };
        let members = MEMBERS[..disks].iter().map(member).collect();
        let spec = LayoutSpec { name: "m".into(), shape, reserve, members };
        self.member_size = size;
        self.member_files = MEMBERS[..disks].to_vec();
        if !self.wild {
            self.weak = self.rand.below(disks as u64) as usize;
        }
        if self.plan.grows {
            // The first member gives places away. If it were the weak one, nothing would rely on
            // what they become.
            self.weak = 1;
        }
        let pool = self.pool()?;
        let added = survive(|| pool.add_layout(&spec).map(drop));
        self.durably(added, &[])?;
        self.add_spare()?;
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

    /// Returns the number of disks of the layout at first.
    fn number_of_disks(&self) -> usize {
        self.plan.layout.map_or(0, Shape::disks) + usize::from(self.plan.reserve)
    }

    /// Makes the disk that is no member a spare, in a pool with spares.
    fn add_spare(&mut self) -> Outcome<()> {
        let all = (self.member_files.len() + 1).min(MEMBERS.len());
        let free = MEMBERS[..all].iter().find(|path| !self.member_files.contains(path));
        let (true, Some(path)) = (self.plan.spares, free) else { return Ok(()) };
        // The disk was repaired.
        self.dir.hide(path, false);
        self.dir.clear_faults();
        let pool = self.pool()?;
        if pool.spares().iter().any(|spare| spare.path == *path && spare.size > 0) {
            return Ok(());
        }
        let spec = self.used_disk(path, self.member_size);
        let added = survive(|| {
            // One that was away has no size.
            let _ = pool.remove_spare(path);
            pool.add_spare(&spec).map(drop)
        });
        if self.dir.crashed() || self.dir.panicked() || self.poisoned() {
            return Ok(());
        }
        added.map_err(|e| format!("add spare {path}: {e:?}"))?;
        self.say(|| format!("{path} is a spare"));
        Ok(())
    }

    /// Notes which disks are members now. A spare may have stepped in for the weak one. If all
    /// members have all content, another one may become the weak one.
    fn note_members(&mut self, always: bool) -> Outcome<()> {
        let Some(layout) = self.pool()?.pvs().into_iter().find_map(|pv| pv.layout) else { return Ok(()) };
        if layout.members.iter().any(|member| !member.is_in || member.incoming.is_some()) {
            return Ok(());
        }
        let is_member = |path: &&&str| layout.members.iter().any(|member| member.path == **path);
        self.member_files = MEMBERS.iter().filter(is_member).copied().collect();
        let weak_left = !self.member_files.contains(&MEMBERS[self.weak]);
        if always || weak_left {
            let pick = self.rand.below(self.member_files.len() as u64) as usize;
            let weak = self.member_files[pick];
            self.weak = MEMBERS.iter().position(|path| *path == weak).unwrap_or(0);
            self.say(|| format!("all members are whole; {weak} is the weak one"));
        }
        self.add_spare()
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
            Op::AddPv { .. } if self.plan.grows => self.grow_layout(),
            Op::AddPv { .. } | Op::DrainPv(..) => self.mend_member(),
            Op::FailPv(pick) => {
                let how = if pick.is_multiple_of(2) { Failing::Writes } else { Failing::Syncs };
                self.say(|| format!("{}: {how:?} fail", MEMBERS[self.weak]));
                self.dir.fail_writes(MEMBERS[self.weak], how, (pick >> 16) % 16);
                Ok(())
            }
            Op::BadReads if self.rand.percent(50) => {
                let (pick, most) = (self.rand.bits() >> 32, self.rand.between(1, 200));
                self.weak_is_bad = true;
                let lost = self.dir.lose_sectors(MEMBERS[self.weak], pick, most);
                self.say(|| format!("{}: {} sectors can't be read", MEMBERS[self.weak], lost.len()));
                Ok(())
            }
            // A parity that is computed from an old one absorbs what is rotten in that.
            Op::BadReads | Op::Rot(_) if self.plan.layout.is_some_and(Shape::reads_old) => Ok(()),
            Op::BadReads | Op::Rot(_) => {
                self.weak_is_bad = true;
                self.rot(None).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Returns the files of the members, in a pool on a layout.
    pub(crate) fn members(&self) -> &[&'static str] {
        &self.member_files
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
            Some(_) if self.plan.grows => None,
            Some(Shape::Mirror) => {
                let strong = self.member_files.iter().find(|path| **path != MEMBERS[self.weak]);
                strong.map(|path| (*path).to_owned())
            }
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

    /// Adds a disk to the layout. Content moves to it in later background work.
    fn grow_layout(&mut self) -> Outcome<()> {
        let pool = self.pool()?;
        let most = (self.number_of_disks() + MORE).min(MEMBERS.len());
        let is_full = |layout: LayoutInfo| layout.members.len() >= most;
        if pool.pvs().into_iter().find_map(|pv| pv.layout).is_none_or(is_full) {
            return Ok(());
        }
        // One disk more beside those with a single unit brings nothing.
        let (number, size) = match self.member_size == 2 * HEAD {
            true => (2, 2 * self.member_size),
            false => (1, self.member_size),
        };
        let paths: Vec<_> = self.unused_disks(&pool).into_iter().take(number).collect();
        if paths.len() < number {
            return Ok(());
        }
        let disks = paths.iter().map(|path| self.used_disk(path, size)).collect();
        let how = GrowSpec { disks, ..GrowSpec::default() };
        let grown = survive(|| pool.grow("m", &how).map(drop));
        if self.dir.crashed() || self.dir.panicked() || self.poisoned() {
            return Ok(());
        }
        match grown {
            Ok(()) => self.say(|| format!("further members: {paths:?}")),
            // Very small members do not make a whole unit together.
            Err(e) if e.kind() == ErrorKind::Conflict && e.to_string().contains("gain nothing") => {}
            Err(e) => return Err(format!("grow by {paths:?}: {e:?}")),
        }
        Ok(())
    }

    /// Returns the disks that are neither members nor spares, and do not fail.
    fn unused_disks(&self, pool: &Pool) -> Vec<&'static str> {
        let layout = pool.pvs().into_iter().find_map(|pv| pv.layout);
        let is_used = |path: &str| {
            let is_it = |of: &MemberInfo| {
                of.path == path || of.incoming.as_ref().is_some_and(|new| new.path == *path)
            };
            layout.as_ref().is_none_or(|layout| layout.members.iter().any(is_it))
                || pool.spares().iter().any(|spare| spare.path == path)
        };
        MEMBERS.into_iter().filter(|path| !is_used(path) && *path != MEMBERS[self.weak]).collect()
    }

    /// Returns what makes a disk one of the layout. In a layout that grows, it was in use before,
    /// and has anything.
    fn used_disk(&self, path: &str, size: u64) -> PvSpec {
        self.dir.hide(path, false);
        if self.plan.grows && self.dir.files().iter().all(|(name, _)| name != path) {
            self.dir.add_image(path, &vec![0xEE; size as usize]);
        }
        PvSpec { path: path.into(), size: Some(size), force: true }
    }

    /// Begins to put another disk in the place of the weak member, which may be in.
    fn replace_member(&mut self) -> Outcome<bool> {
        let pool = self.pool()?;
        let Some(path) = self.unused_disks(&pool).first().copied() else { return Ok(false) };
        let layout = pool.pvs().into_iter().find_map(|pv| pv.layout);
        let weak = MEMBERS[self.weak];
        let is_weak = |of: &&MemberInfo| of.path == weak;
        let size = layout.iter().flat_map(|layout| &layout.members).find(is_weak).map(|of| of.size);
        let Some(size) = size else { return Ok(false) };
        let new = self.used_disk(path, HEAD + size);
        let begun = survive(|| pool.rebuild_member(weak, Some(&new), None).map(drop));
        if self.dir.crashed() || self.dir.panicked() || self.poisoned() {
            return Ok(true);
        }
        begun.map_err(|e| format!("replace {weak} by {path}: {e:?}"))?;
        self.say(|| format!("{path} takes the place of {weak}"));
        Ok(true)
    }

    /// Rebuilds the weak member, whatever it has, onto its own disk or onto a spare. When that has
    /// ended, any member may be the weak one.
    fn mend_member(&mut self) -> Outcome<()> {
        self.note_members(false)?;
        if self.dir.crashed() || self.dir.panicked() || self.poisoned() {
            return Ok(());
        }
        let path = MEMBERS[self.weak];
        let spared = self.plan.spares && self.rand.percent(50);
        if !spared {
            self.dir.hide(path, false);
        }
        self.dir.clear_faults();
        let pool = self.pool()?;
        let any_is_rebuilt = pool
            .pvs()
            .iter()
            .filter_map(|pv| pv.layout.as_ref())
            .any(|layout| layout.members.iter().any(|member| member.incoming.is_some()));
        let is_rebuilt = any_is_rebuilt && !self.weak_is_bad;
        if !any_is_rebuilt && self.plan.grows && self.rand.percent(40) && self.replace_member()? {
            return Ok(());
        }
        if !is_rebuilt {
            let begun = survive(|| {
                pool.put_member_out(path)?;
                // That may have ended only a rebuild.
                pool.put_member_out(path)?;
                if spared && pool.spares().iter().any(|spare| spare.size > 0) {
                    return Ok(());
                }
                self.dir.hide(path, false);
                // Its disk has what did not change meanwhile, unless that is bad.
                let anew = PvSpec { path: path.into(), size: None, force: true };
                pool.rebuild_member(path, self.weak_is_bad.then_some(&anew), None).map(drop)
            });
            if self.dir.crashed() || self.dir.panicked() || self.poisoned() {
                return Ok(());
            }
            begun.map_err(|e| format!("rebuild {path}: {e:?}"))?;
        }
        drop(pool);
        let is_whole = |layout: &LayoutInfo| layout.members.iter().all(|member| member.is_in);
        if self.settle_pool(is_whole)? {
            self.say(|| format!("{path} was rebuilt"));
            self.weak_is_bad = false;
            self.note_members(true)?;
        }
        Ok(())
    }
}
