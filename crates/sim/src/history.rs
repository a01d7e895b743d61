//! Histories: what volumes with CDP held at every moment that a run knows of, and recovery to those
//! moments.
//!
//! After each operation all that was sequenced is known. So what a volume holds then is what it
//! held at the last LSN for ever. The same is true for the states between the writes of one
//! request. After a crash, the moments behind the end of what was recovered never existed.

use crate::clock::{When, expires};
use crate::oracle::{Content, Effect, Manner, SnapId, Taken, VolId, VolumeModel, check_content};
use crate::perform::{Answer, check_runs};
use crate::run::{Outcome, Run};
use crate::survive;
use crate::workload::Op;
use hindcast_engine::ErrorKind;
use hindcast_engine::Volume;
use hindcast_engine::cdp::{CdpSettings, Moment, Retention};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::ids::Lsn;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Extra records that an operation on a volume with CDP may bring: anchors, and content of what is
/// below.
const EXTRA: u64 = 1 << 20;
/// Ranges read of one moment.
const RANGES: usize = 40;
/// Moments that are held open at once.
const HELD: usize = 3;
/// Seconds after which what has expired must be gone.
const EXPIRY: usize = 20;
/// Moments that are looked at after a recovery.
const AFTER_RECOVERY: usize = 4;

/// A moment that is held open, whatever happens to its volume.
pub(crate) struct Held {
    view: Arc<Volume>,
    content: Content,
    what: String,
    ranges: Vec<(u64, u64)>,
}

/// What is known of the past of one volume.
#[derive(Default)]
pub(crate) struct Past {
    on: bool,
    /// Moments may have expired: retention was limited.
    expires: bool,
    /// By LSN: what it held, and its size.
    moments: BTreeMap<Lsn, (Content, u64)>,
    /// When that was, of those of this boot.
    pub(crate) times: BTreeMap<Lsn, When>,
    /// By LSN: flushes that succeeded with CDP on, and whether they must be known: no kill and no
    /// crash came since, or it was found after that.
    flushes: BTreeMap<Lsn, bool>,
}

/// The status of ranges of a device that shows `content`, with what lies behind each, and asked for
/// all at once and by few runs: what is there is never called zeros. The outer error is the
/// device's.
fn check_statuses(
    view: &Volume,
    what: &str,
    content: &Content,
    ranges: &[(u64, u64)],
) -> Result<Outcome<()>, hindcast_engine::Error> {
    let size = view.info().size;
    for (offset, len) in ranges {
        for (len, most) in [(size - offset, 3), (*len, usize::MAX)] {
            let runs = view.block_status(*offset, len, most)?;
            // How much one call looks at is for others to check.
            let told = runs.iter().map(|run| run.length).sum();
            let checked = check_runs(&runs, (*offset, told), most, Some(content), size);
            if let Err(e) = checked {
                return Ok(Err(format!("status of {what}: {e}")));
            }
        }
    }
    Ok(Ok(()))
}

impl Run {
    /// Takes note of what volumes with CDP hold now.
    pub(crate) fn note_moments(&mut self) -> Outcome<()> {
        // The clock stood still, and each record is a nanosecond later than the one before: now all
        // of them are past.
        self.pass(1_000_000);
        let when = self.when()?;
        let pool = self.pool()?;
        let lsn = pool.stats().sequenced_lsn;
        let state = self.oracle.state();
        self.past.retain(|vol, _| state.volumes.contains_key(vol));
        if self.oracle.doubtful() || self.faults || self.dir.crashed() || self.poisoned() {
            return Ok(());
        }
        for (vol, model) in &state.volumes {
            let Ok(info) = pool.volume(&model.name) else { continue };
            if info.cdp.is_none() && !self.past.contains_key(vol) {
                continue;
            }
            let past = self.past.entry(*vol).or_default();
            past.on = info.cdp.is_some();
            past.expires |= info.cdp.is_some_and(|settings| expires(&settings.retention));
            let held = || (model.content.clone(), model.size);
            let same = past.moments.values().next_back().is_some_and(|(content, size)| {
                *size == model.size && content.zones().eq(model.content.zones())
            });
            if past.on && (!same || lsn.0.is_multiple_of(8)) {
                past.moments.insert(lsn, held());
                past.times.insert(lsn, when);
            }
        }
        Ok(())
    }

    /// Now and then one of the newest moments is looked at, before anything else carries it out.
    pub(crate) fn read_some_new_moment(&mut self) -> Outcome<()> {
        let fit = self.wild && self.pool.is_some() && !self.failing && !self.faults && !self.poisoned();
        if !fit || !self.rand.percent(8) {
            return Ok(());
        }
        let on: Vec<VolId> = self.past.iter().filter(|(_, past)| past.on).map(|(vol, _)| *vol).collect();
        let pick = self.rand.below(64);
        match on.get(pick as usize % on.len().max(1)) {
            Some(vol) => self.read_new_moment(*vol, pick / 8),
            None => Ok(()),
        }
    }

    /// The LSN before a request of so many records, and what a volume with CDP holds there, for
    /// [`Run::note_steps`].
    pub(crate) fn before_steps(&self, vol: VolId, records: usize) -> Option<(Lsn, Content)> {
        let kept = records > 1 && self.past.get(&vol).is_some_and(|past| past.on);
        let model = self.oracle.state().volumes.get(&vol).filter(|_| kept)?;
        Some((self.pool().ok()?.stats().sequenced_lsn, model.content.clone()))
    }

    /// A request of several writes has succeeded, and was sequenced last. Notes what the volume
    /// held between the writes. If an anchor came with them, it is not known which record the
    /// anchor is.
    pub(crate) fn note_steps(&mut self, vol: VolId, before: (Lsn, Content), writes: &[Effect]) {
        let (first, mut content) = before;
        let last = self.oracle.last_lsn();
        if last - first.0 != writes.len() as u64
            || self.oracle.doubtful()
            || self.faults
            || self.dir.crashed()
            || self.poisoned()
        {
            return;
        }
        let Some(size) = self.oracle.state().volumes.get(&vol).map(|model| model.size) else { return };
        let Some(past) = self.past.get_mut(&vol) else { return };
        for (lsn, write) in (first.0 + 1..last).map(Lsn).zip(writes) {
            if let Effect::Write { sector, count, stamp, .. } = write {
                content.set(*sector, sector + count, *stamp);
            }
            past.moments.insert(lsn, (content.clone(), size));
        }
    }

    /// A flush of a volume has succeeded.
    pub(crate) fn note_flush(&mut self, vol: VolId) -> Outcome<()> {
        let pool = self.pool()?;
        let (info, lsn) = (pool.volume(&self.volume_name(vol)?), pool.stats().sequenced_lsn);
        if info.is_ok_and(|info| info.cdp.is_some()) {
            let content = self.model(vol)?.content.clone();
            let past = self.past.entry(vol).or_default();
            let last = past.flushes.keys().next_back().copied();
            let held = last.and_then(|last| past.moments.range(..=last).next_back());
            // Where nothing was written since the last one there may be no new point.
            let new = last.is_none() || held.is_some_and(|(_, (held, _))| !held.zones().eq(content.zones()));
            past.flushes.entry(lsn).or_insert(new);
        }
        Ok(())
    }

    /// The last flush up to a moment is known, or one before it that was known by the last start.
    fn check_last_flush(&mut self, vol: VolId, lsn: Lsn) -> Outcome<()> {
        let (pool, name) = (self.pool()?, self.volume_name(vol)?);
        let found = survive(|| pool.resolve(&name, &Moment::FlushUpTo(lsn)));
        let (crashed, refusals) = (self.dir.crashed(), self.moment_refusals(vol));
        let flushes = &mut self.past.entry(vol).or_default().flushes;
        let sure = flushes.range(..=lsn).rev().find(|(_, sure)| **sure).map(|(lsn, _)| *lsn);
        match found {
            Ok(found)
                if (sure.unwrap_or(Lsn::ZERO)..=lsn).contains(&found.lsn)
                    && flushes.contains_key(&found.lsn) =>
            {
                flushes.insert(found.lsn, true);
                Ok(())
            }
            Err(_) if crashed => Ok(()),
            Err(e) if e.kind() == ErrorKind::NotFound && sure.is_none() => Ok(()),
            Err(e) if refusals.contains(&e.kind()) => Ok(()),
            found => Err(format!("the last flush of volume {vol} up to {lsn} is {found:?}, of {flushes:?}")),
        }
    }

    /// After a crash: what lies behind the end of what was recovered has never been. Opening may
    /// have written records of its own by now, and the crash may have hit after that: what is
    /// written says less than the first record that is lost.
    pub(crate) fn forget_lost_moments(&mut self, first_lost: Option<Lsn>) -> Outcome<()> {
        let written = self.pool()?.stats().written_lsn.next();
        let end = first_lost.map_or(written, |lost| lost.min(written));
        let state = self.oracle.state();
        self.past.retain(|vol, _| state.volumes.contains_key(vol));
        for past in self.past.values_mut() {
            drop(past.moments.split_off(&end));
            drop(past.times.split_off(&end));
            past.flushes.values_mut().for_each(|sure| *sure = false);
        }
        // Not always: comparing a moment with another state carries it out, and what is staged is
        // to be met by other things too.
        if self.wild && self.rand.percent(30) { self.verify_moments(AFTER_RECOVERY) } else { Ok(()) }
    }

    /// Records of its own that an operation on a volume may come with.
    pub(crate) fn may_anchor(&mut self, vol: VolId) {
        let Some(model) = self.oracle.state().volumes.get(&vol) else { return };
        let on = self.pool.as_ref().and_then(|pool| pool.volume(&model.name).ok()?.cdp).is_some();
        if on {
            self.brought = EXTRA;
        }
    }

    pub(crate) fn set_cdp(&mut self, vol: VolId, settings: Option<CdpSettings>) -> Outcome<()> {
        let name = self.volume_name(vol)?;
        self.kept_history = true;
        self.brought = EXTRA;
        if settings.is_some_and(|settings| expires(&settings.retention)) {
            // Also where a crash leaves it open whether that happened.
            self.past.entry(vol).or_default().expires = true;
        }
        let said = Manner { cdp: Some(settings), ..Manner::default() };
        let result =
            self.control(Effect::Manner(vol, said), &[], |pool| pool.set_cdp(&name, settings).map(drop))?;
        match result {
            Answer::Done => {
                let told = self.pool()?.volume(&name).map_err(|e| format!("{e:?}"))?.cdp;
                if told != settings { Err(format!("CDP is told as {told:?}")) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    fn pick_moment(&self, vol: VolId, pick: u64) -> Option<(Lsn, Content, u64)> {
        let moments = &self.past.get(&vol)?.moments;
        let (lsn, (content, size)) = moments.iter().nth((pick % (moments.len() as u64).max(1)) as usize)?;
        Some((*lsn, content.clone(), *size))
    }

    pub(crate) fn expires(&self, vol: VolId) -> bool {
        self.past.get(&vol).is_some_and(|past| past.expires)
    }

    /// How a moment may be refused.
    fn moment_refusals(&self, vol: VolId) -> &'static [ErrorKind] {
        if self.expires(vol) { &[ErrorKind::NotFound] } else { &[] }
    }

    /// A moment is as it was.
    pub(crate) fn read_moment(&mut self, vol: VolId, pick: u64) -> Outcome<()> {
        match self.pick_moment(vol, pick) {
            // What a moment shows may be carried out first, which may have to wait.
            Some((lsn, content, size)) if !self.faults && !self.failing => {
                self.read_new_moment(vol, pick)?;
                self.check_moment(vol, lsn, &content, size)?;
                // Not always: a comparison carries out all that waits.
                if self.rand.percent(50) {
                    self.verify_change_since(vol, lsn)?;
                }
                self.check_last_flush(vol, lsn)?;
                if self.rand.percent(20) && self.held.len() < HELD {
                    self.hold_moment(vol, lsn, content, size)?;
                } else if self.rand.percent(10) {
                    self.held.clear();
                }
                self.verify_held()
            }
            _ => Ok(()),
        }
    }

    /// One of the newest moments is as it was. It may wait for destage, and is often held open
    /// until destage has come to it.
    fn read_new_moment(&mut self, vol: VolId, pick: u64) -> Outcome<()> {
        let Some(past) = self.past.get(&vol) else { return Ok(()) };
        let newest = past.moments.iter().rev().nth((pick % 4) as usize);
        let Some((lsn, (content, size))) = newest.map(|(lsn, held)| (*lsn, held.clone())) else {
            return Ok(());
        };
        let (known, waits) = (past.moments.len(), self.pool()?.stats().history_waits);
        let waiting = self.pool()?.stats().settled_lsn < lsn;
        self.check_moment(vol, lsn, &content, size)?;
        let found = self.past.get(&vol).is_some_and(|past| past.moments.len() == known);
        if self.dir.crashed() || !found {
            return Ok(());
        }
        self.oracle.durable(self.pool()?.stats().synced_lsn.0);
        let at_once = self.pool()?.stats().history_waits == waits;
        self.summary.moments_waiting += u64::from(waiting && at_once);
        if self.rand.percent(60) {
            if self.held.len() >= HELD {
                self.held.remove(0);
            }
            self.hold_moment(vol, lsn, content, size)?;
        }
        Ok(())
    }

    fn hold_moment(&mut self, vol: VolId, lsn: Lsn, content: Content, size: u64) -> Outcome<()> {
        let name = self.volume_name(vol)?;
        let what = format!("volume {vol}, held at LSN {lsn}");
        let pool = self.pool()?;
        match survive(|| pool.open_moment(&name, &Moment::Lsn(lsn))) {
            Ok(view) => {
                let ranges = self.oracle.interesting(vol, size);
                self.held.push(Held { view, content, what, ranges });
                Ok(())
            }
            Err(e) if self.moment_refusals(vol).contains(&e.kind()) || self.dir.crashed() => Ok(()),
            Err(e) => Err(format!("open {what}: {e:?}")),
        }
    }

    /// Moments that are held open show what they did: neither retention nor the end of their volume
    /// changes that.
    pub(crate) fn verify_held(&self) -> Outcome<()> {
        for held in &self.held {
            match check_statuses(&held.view, &held.what, &held.content, &held.ranges) {
                Ok(checked) => checked?,
                Err(_) if self.dir.crashed() || self.faults => return Ok(()),
                Err(e) if self.needs_lost(&e) => {}
                Err(e) => return Err(format!("status of {}: {e:?}", held.what)),
            }
            for (offset, len) in &held.ranges {
                let mut data = vec![0xEE; *len as usize];
                match held.view.read(*offset, &mut data) {
                    Ok(()) => check_content(&held.what, &held.content, *offset, &data, |_, _| false)?,
                    Err(_) if self.dir.crashed() || self.faults => return Ok(()),
                    Err(e) if self.needs_lost(&e) => {}
                    Err(e) => return Err(format!("read {}: {e:?}", held.what)),
                }
            }
        }
        Ok(())
    }

    fn check_moment(&mut self, vol: VolId, lsn: Lsn, content: &Content, size: u64) -> Outcome<()> {
        let name = self.volume_name(vol)?;
        let pool = self.pool()?;
        let names = self.names_of(vol, lsn);
        let moment = names[self.rand.below(names.len() as u64) as usize].clone();
        let result = (|| {
            let view = survive(|| pool.open_moment(&name, &moment))?;
            let mut ranges = self.oracle.interesting(vol, size);
            let rand = &mut self.rand;
            let all = ranges.len() as u64;
            ranges.retain(|_| all <= RANGES as u64 || rand.below(all) < RANGES as u64);
            let mut read = Vec::new();
            for (offset, len) in ranges {
                let mut data = vec![0xEE; len as usize];
                view.read(offset, &mut data)?;
                read.push((offset, data));
            }
            let ranges: Vec<_> = read.iter().map(|(offset, data)| (*offset, data.len() as u64)).collect();
            let status = check_statuses(&view, "a moment", content, &ranges)?;
            Ok::<_, hindcast_engine::Error>((view.info().size, read, status))
        })();
        let what = format!("volume {vol} at LSN {lsn}, as {moment:?}");
        match result {
            Ok((found, read, status)) => {
                if found != size {
                    return Err(format!("{what} has {found} bytes, not {size}"));
                }
                // No crash may take the number away again. By a time, only what the volume has
                // recorded until then is named.
                if matches!(moment, Moment::Lsn(_)) && self.pool()?.stats().synced_lsn < lsn {
                    return Err(format!("{what} is shown and not durable"));
                }
                status.map_err(|e| format!("{what}: {e}"))?;
                let compared = read
                    .iter()
                    .map(|(offset, data)| check_content(&what, content, *offset, data, |_, _| false));
                compared.into_iter().collect()
            }
            Err(_) if self.dir.crashed() => Ok(()),
            Err(e) if self.needs_lost(&e) => Ok(()),
            Err(e) if self.moment_refusals(vol).contains(&e.kind()) => {
                // For good.
                self.past.entry(vol).or_default().moments.remove(&lsn);
                Ok(())
            }
            Err(e) => Err(format!("read {what}: {e:?}")),
        }
    }

    /// Can an error be that of a moment which needs what went bad?
    pub(crate) fn needs_lost(&self, error: &hindcast_engine::Error) -> bool {
        !self.lost.is_empty() && matches!(error.kind(), ErrorKind::Io | ErrorKind::Lost)
    }

    /// All moments that are known, by LSN.
    pub(crate) fn known_moments(&self) -> impl Iterator<Item = (VolId, Lsn)> {
        self.past.iter().flat_map(|(vol, past)| past.moments.keys().map(|lsn| (*vol, *lsn)))
    }

    /// Moments of all volumes, about so many.
    pub(crate) fn some_moments(&mut self, most: usize) -> Vec<(VolId, Lsn, Content, u64)> {
        let moments = self.past.iter().flat_map(|(vol, past)| {
            past.moments.iter().map(|(lsn, (content, size))| (*vol, *lsn, content.clone(), *size))
        });
        let mut moments: Vec<_> = moments.collect();
        let all = moments.len() as u64;
        let rand = &mut self.rand;
        moments.retain(|_| all <= most as u64 || rand.below(all) < most as u64);
        moments
    }

    /// Moments of all volumes, about so many, are as they were.
    pub(crate) fn verify_moments(&mut self, most: usize) -> Outcome<()> {
        // What a moment shows is carried out first, which may have to wait.
        if self.failing {
            return Ok(());
        }
        for (vol, lsn, content, size) in self.some_moments(most) {
            self.check_moment(vol, lsn, &content, size)?;
        }
        Ok(())
    }

    /// Retention passes, and CDP goes off: nothing is left of any history, since nothing rests on
    /// one any more.
    pub(crate) fn expire_histories(&mut self) -> Outcome<()> {
        if !self.kept_history {
            return Ok(());
        }
        self.drop_handles();
        self.trust_clock()?;
        let volumes: Vec<VolId> = self.oracle.state().volumes.keys().copied().collect();
        for vol in volumes {
            let name = self.volume_name(vol)?;
            let info = self.pool()?.cdp(&name).map_err(|e| format!("{e:?}"))?;
            if info.settings.is_some() || info.anchors > 0 {
                let retention = Retention { time: Some(1), bytes: None };
                let short = CdpSettings { retention, ..info.settings.unwrap_or_default() };
                self.step(&Op::Cdp(vol, Some(short)))?;
                self.step(&Op::Cdp(vol, None))?;
            }
            self.step(&Op::Flatten(vol, true))?;
        }
        // Moments that were opened since.
        self.held.clear();
        for _ in 0..EXPIRY {
            // What is copied by itself takes a rest after each second's worth.
            self.pass(1_000_000_000);
            self.step(&Op::Settle)?;
        }
        // Where the pool is full they rest on it still.
        if self.flattening()? {
            return Ok(());
        }
        for volume in self.oracle.state().volumes.values() {
            let left = self.pool()?.cdp(&volume.name).map_err(|e| format!("{e:?}"))?;
            if (left.anchors, left.segments, left.stored) != (0, 0, 0) {
                return Err(format!("of the history of {} is left: {left:?}", volume.name));
            }
        }
        if let Some((name, _)) = self.dir.files().iter().find(|(name, _)| name.starts_with("cdp-")) {
            return Err(format!("{name} is left, and nobody has a history"));
        }
        // From now on only what volumes and snapshots show takes space.
        self.kept_history = false;
        self.step(&Op::Settle)
    }

    /// A volume of a moment.
    pub(crate) fn recover(&mut self, vol: VolId, pick: u64, name: &str) -> Outcome<()> {
        let Some((lsn, content, size)) = self.pick_moment(vol, pick) else { return Ok(()) };
        let origin = self.model(vol)?.clone();
        let old = origin.name.clone();
        let mut model = VolumeModel::new(name.into(), size, origin.chunk_size, origin.block_size, false);
        (model.content, model.over_image) = (content, Some(size));
        self.oracle.share_zones(vol, self.next_vol);
        let refusals = self.moment_refusals(vol);
        self.create_volume_of(&model, refusals, |pool, new| {
            pool.recover_volume(&old, &Moment::Lsn(lsn), &new.name)
        })
    }

    /// What a volume with CDP held at an LSN, and its size, if that is known: what it was noted to
    /// hold last. Where moments expire it may be that what was noted between is gone.
    fn held_at(&self, vol: VolId, lsn: Lsn) -> Option<(Content, u64)> {
        let past = self.past.get(&vol)?;
        let (noted, held) = past.moments.range(..=lsn).next_back()?;
        (!past.expires || *noted == lsn).then(|| held.clone())
    }

    /// Volumes go on from a moment of the first, all at once. Those of which that moment is not
    /// known stay out of it.
    pub(crate) fn roll_back_to(&mut self, vols: &[(VolId, String)], pick: u64, force: bool) -> Outcome<()> {
        let first = self.next_snapshot;
        self.next_snapshot += vols.len() as SnapId;
        let Some((lsn, ..)) = vols.first().and_then(|(vol, _)| self.pick_moment(*vol, pick)) else {
            return Ok(());
        };
        let mut all = Vec::new();
        for (undo, (vol, name)) in (first..).zip(vols) {
            let taken = self.oracle.state().has_snapshot(*vol, name);
            let Some((content, size)) = self.held_at(*vol, lsn) else { continue };
            if !taken {
                all.push(Taken { vol: *vol, content, size, undo, name: name.clone() });
            }
        }
        if all.first().is_none_or(|taken| taken.undo != first) {
            return Ok(());
        }
        let mut refusals = Vec::new();
        for taken in &all {
            refusals.extend((self.in_use(taken.vol) && !force).then_some(ErrorKind::Busy));
            refusals.extend(self.moment_refusals(taken.vol));
        }
        // A history may have been off at a moment of another one.
        refusals.extend((all.len() > 1).then_some(ErrorKind::NotFound));
        let names = all.iter().map(|taken| Ok((self.volume_name(taken.vol)?, taken.name.as_str())));
        let names: Vec<(String, &str)> = names.collect::<Outcome<_>>()?;
        let wanted: Vec<(&str, &str)> = names.iter().map(|(vol, undo)| (vol.as_str(), *undo)).collect();
        self.brought = EXTRA;
        let mut made = Vec::new();
        let answer = self.control(Effect::RollBackTo(all.clone()), &refusals, |pool| {
            made = pool.roll_back_to(&wanted, &Moment::Lsn(lsn), force)?;
            Ok(())
        })?;
        match answer {
            Answer::Done if made.len() == all.len() => {
                for (taken, info) in all.iter().zip(&made) {
                    self.summary.clones += 1;
                    self.made(info, taken.undo)?;
                    if let Some(handle) = self.handles.remove(&taken.vol) {
                        self.check_cut_off(&handle)?;
                    }
                }
                Ok(())
            }
            Answer::Done => Err("a rollback without a snapshot".into()),
            Answer::Unknown => {
                let unborn = all.into_iter().map(|taken| (taken.vol, taken.name, taken.undo));
                self.unborn_snapshots = unborn.collect();
                self.unborn_snapshots.iter().for_each(|(vol, ..)| drop(self.handles.remove(vol)));
                Ok(())
            }
            Answer::Refused(_) => Ok(()),
        }
    }
}
