//! Histories: the content of volumes with CDP at every moment that a run knows of, and recovery to
//! those moments.
//!
//! After each operation everything that was sequenced is known. So the content of a volume at that
//! time remains its content at the last LSN. The same is true for the states between the writes of
//! one request. After a crash, the moments behind the end of what was recovered never existed.

use crate::clock::{When, expires};
use crate::oracle::{Content, Effect, Manner, SnapId, Taken, VolId, VolumeModel, check_content};
use crate::perform::{Answer, check_runs};
use crate::run::{Outcome, Run};
use crate::survive;
use crate::workload::Op;
use hindcast_engine::ErrorKind;
use hindcast_engine::Volume;
use hindcast_engine::cdp::{CdpSettings, Moment, Retention, TimelineQuery};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::ids::Lsn;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of extra records that an operation on a volume with CDP may cause: anchors, and
/// materialized content of the base.
const EXTRA: u64 = 1 << 20;
/// Ranges that are read of one moment, about.
const RANGES: usize = 40;
/// Maximum number of moments that are held open at once.
const HELD: usize = 3;
/// Seconds within which the pool must forget what has expired.
const EXPIRY: usize = 20;
/// Moments that are checked after a recovery, about.
const AFTER_RECOVERY: usize = 4;

/// A moment that is held open. Nothing that happens to its volume may change it.
pub(crate) struct Held {
    view: Arc<Volume>,
    content: Content,
    what: String,
    ranges: Vec<(u64, u64)>,
}

/// The known past of one volume.
#[derive(Default)]
pub(crate) struct Past {
    on: bool,
    /// Whether moments may have expired, because retention was limited.
    expires: bool,
    /// The content and the size in bytes of the volume, by LSN.
    moments: BTreeMap<Lsn, (Content, u64)>,
    /// The times of those moments that were noted in this boot.
    pub(crate) times: BTreeMap<Lsn, When>,
    /// Flushes that succeeded with CDP on, by LSN. True means that the pool must know the flush:
    /// the volume had changed since the flush before, and the pool was not opened since. It also
    /// becomes true when the pool reports the flush.
    flushes: BTreeMap<Lsn, bool>,
}

/// Checks the block status of ranges of a device that shows `content`. Each range is checked alone,
/// and together with everything behind it in at most 3 runs. Written content must never be reported
/// as zeros. The outer error is that of the device.
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
            // Other checks cover how much one call reports.
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
    /// Notes the present content of volumes with CDP.
    pub(crate) fn note_moments(&mut self) -> Outcome<()> {
        // The clock stood still, and each record is a nanosecond later than the one before. After
        // this all of them are in the past.
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

    /// Now and then checks one of the newest moments, before anything else carries it out.
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

    /// Returns the LSN before a request of `records` records, and the content of a volume with CDP
    /// there. [`Run::note_steps`] needs them.
    pub(crate) fn before_steps(&self, vol: VolId, records: usize) -> Option<(Lsn, Content)> {
        let kept = records > 1 && self.past.get(&vol).is_some_and(|past| past.on);
        let model = self.oracle.state().volumes.get(&vol).filter(|_| kept)?;
        Some((self.pool().ok()?.stats().sequenced_lsn, model.content.clone()))
    }

    /// Notes the content of the volume between the writes of a request. The request has succeeded,
    /// and it was sequenced last. If an anchor came with the writes, it is unknown which record the
    /// anchor is, and the function notes nothing.
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

    /// Notes that a flush of a volume has succeeded.
    pub(crate) fn note_flush(&mut self, vol: VolId) -> Outcome<()> {
        let pool = self.pool()?;
        let (info, lsn) = (pool.volume(&self.volume_name(vol)?), pool.stats().sequenced_lsn);
        if info.is_ok_and(|info| info.cdp.is_some()) {
            let content = self.model(vol)?.content.clone();
            let past = self.past.entry(vol).or_default();
            let last = past.flushes.keys().next_back().copied();
            let held = last.and_then(|last| past.moments.range(..=last).next_back());
            // If nothing was written since the last flush, the pool may keep no new point.
            let new = last.is_none() || held.is_some_and(|(_, (held, _))| !held.zones().eq(content.zones()));
            past.flushes.entry(lsn).or_insert(new);
        }
        Ok(())
    }

    /// Checks the last flush up to a moment. The pool must report a flush that the run knows, and
    /// none before the last one that the pool must know.
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

    /// Forgets moments after a recovery. The moments behind the end of what was recovered never
    /// existed. The opening may have written records of its own since, and the crash may have
    /// happened after that. So the first lost record says more than the written position.
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
        // This is not done always. A comparison of a moment with another state carries the moment
        // out, and other operations should meet staged data too.
        if self.wild && self.rand.percent(30) { self.verify_moments(AFTER_RECOVERY) } else { Ok(()) }
    }

    /// Allows the pool to sequence records of its own with an operation on a volume with CDP.
    pub(crate) fn may_anchor(&mut self, vol: VolId) {
        if self.is_recorded(vol) {
            self.brought = EXTRA;
        }
    }

    /// Returns whether a volume keeps a history now.
    pub(crate) fn is_recorded(&self, vol: VolId) -> bool {
        let Some(model) = self.oracle.state().volumes.get(&vol) else { return false };
        self.pool.as_ref().and_then(|pool| pool.volume(&model.name).ok()?.cdp).is_some()
    }

    pub(crate) fn set_cdp(&mut self, vol: VolId, settings: Option<CdpSettings>) -> Outcome<()> {
        let name = self.volume_name(vol)?;
        self.kept_history = true;
        self.brought = EXTRA;
        if settings.is_some_and(|settings| expires(&settings.retention)) {
            // This is noted also if a crash leaves the outcome unknown.
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

    /// Returns the errors with which a moment may be refused.
    fn moment_refusals(&self, vol: VolId) -> &'static [ErrorKind] {
        if self.expires(vol) { &[ErrorKind::NotFound] } else { &[] }
    }

    /// Checks a moment: it shows what the volume held.
    pub(crate) fn read_moment(&mut self, vol: VolId, pick: u64) -> Outcome<()> {
        match self.pick_moment(vol, pick) {
            // The records that a moment needs may have to be carried out first, and that may have
            // to wait.
            Some((lsn, content, size)) if !self.faults && !self.failing => {
                self.read_new_moment(vol, pick)?;
                self.check_moment(vol, lsn, &content, size)?;
                // This is not done always, because a comparison carries out everything that waits.
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

    /// Looks at the timeline of a volume, whole and in part. That must not fail, and carries
    /// nothing out. No part has more than the whole.
    fn look_at_timeline(&mut self, vol: VolId) -> Outcome<()> {
        let name = self.volume_name(vol)?;
        let pool = self.pool()?;
        let whole = TimelineQuery { from: Some(0), to: Some(u64::MAX), buckets: 1, regions: 3 };
        let part = TimelineQuery { from: None, to: None, buckets: 50, regions: 0 };
        let (mut most, mut waits) = (u64::MAX, None);
        // The first look may carry out what changed how the volume is recorded.
        for query in [whole, whole, part, TimelineQuery { buckets: 2000, ..part }] {
            let found = match survive(|| pool.timeline(&name, &query)) {
                Ok(found) => found,
                Err(_) if self.dir.crashed() || self.failing || self.faults || self.poisoned() => {
                    return Ok(());
                }
                Err(e) => return Err(format!("look at the timeline of volume {vol}: {e:?}")),
            };
            let sum = found.amounts.iter().map(|amount| amount.records).sum::<u64>();
            let now = pool.stats().history_waits;
            if sum > most || waits.is_some_and(|waits| waits != now) {
                return Err(format!(
                    "the timeline of volume {vol}: {sum} records of {most}, {waits:?} then {now}"
                ));
            }
            if query == whole {
                (most, waits) = (sum, Some(now));
            }
        }
        Ok(())
    }

    /// Checks one of the newest moments. Its records may still wait for destage. The moment is
    /// often held open until they are carried out.
    fn read_new_moment(&mut self, vol: VolId, pick: u64) -> Outcome<()> {
        let Some(past) = self.past.get(&vol) else { return Ok(()) };
        let newest = past.moments.iter().rev().nth((pick % 4) as usize);
        let Some((lsn, (content, size))) = newest.map(|(lsn, held)| (*lsn, held.clone())) else {
            return Ok(());
        };
        let known = past.moments.len();
        if pick % 3 == 0 {
            self.look_at_timeline(vol)?;
        }
        let waits = self.pool()?.stats().history_waits;
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

    /// Checks moments that are held open. They show what they showed when they were opened: neither
    /// retention nor the deletion of their volume changes that.
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
                match survive(|| held.view.read(*offset, &mut data)) {
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
                // No crash may remove the LSN again. A moment that is named by a time contains only
                // what the volume has recorded until then.
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
                // The moment stays lost.
                self.past.entry(vol).or_default().moments.remove(&lsn);
                Ok(())
            }
            Err(e) => Err(format!("read {what}: {e:?}")),
        }
    }

    /// Returns whether the error can be that of a moment that needs unreadable content.
    pub(crate) fn needs_lost(&self, error: &hindcast_engine::Error) -> bool {
        !self.lost.is_empty() && matches!(error.kind(), ErrorKind::Io | ErrorKind::Lost)
    }

    /// Returns all known moments: (volume, LSN).
    pub(crate) fn known_moments(&self) -> impl Iterator<Item = (VolId, Lsn)> {
        self.past.iter().flat_map(|(vol, past)| past.moments.keys().map(|lsn| (*vol, *lsn)))
    }

    /// Returns about `most` random moments of all volumes.
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

    /// Checks about `most` moments of all volumes.
    pub(crate) fn verify_moments(&mut self, most: usize) -> Outcome<()> {
        // The records that a moment needs are carried out first, and that may have to wait.
        if self.failing {
            return Ok(());
        }
        for (vol, lsn, content, size) in self.some_moments(most) {
            self.check_moment(vol, lsn, &content, size)?;
        }
        Ok(())
    }

    /// Lets all retention pass and switches CDP off. Nothing may be left of any history, because
    /// every volume is flattened and rests on none.
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
        // Moments may have been opened since.
        self.held.clear();
        for _ in 0..EXPIRY {
            // Background copying pauses after the work of each second.
            self.pass(1_000_000_000);
            self.step(&Op::Settle)?;
        }
        // In a full pool, volumes still rest on histories.
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
        // From here on only the content of volumes and snapshots takes space.
        self.kept_history = false;
        self.step(&Op::Settle)
    }

    /// Creates a volume with the content of a moment.
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

    /// Keeps a moment as a snapshot.
    pub(crate) fn keep_moment(&mut self, vol: VolId, pick: u64, name: &str) -> Outcome<()> {
        let snap = self.next_snapshot;
        self.next_snapshot += 1;
        let Some((lsn, content, size)) = self.pick_moment(vol, pick) else { return Ok(()) };
        let volume = self.volume_name(vol)?;
        let mut refusals = self.moment_refusals(vol).to_vec();
        let taken = self.oracle.state().has_snapshot(vol, name);
        refusals.extend(taken.then_some(ErrorKind::Conflict));
        self.brought = EXTRA;
        let effect = Effect::KeepMoment(Taken { vol, content, size, undo: snap, name: name.into() });
        let mut made = None;
        let answer = self.control(effect, &refusals, |pool| {
            made = pool.keep_moment(&[(&volume, name)], &Moment::Lsn(lsn))?.pop();
            Ok(())
        })?;
        match (answer, made) {
            (Answer::Done, Some(info)) if !taken => self.made(&info, snap),
            (Answer::Done, _) => Err("a moment was kept under a name that is taken, or not at all".into()),
            (Answer::Unknown, _) => {
                self.unborn_snapshots = vec![(vol, name.into(), snap)];
                Ok(())
            }
            (Answer::Refused(_), _) => Ok(()),
        }
    }

    /// Returns the content and the size of a volume with CDP at an LSN, if they are known. It is
    /// the content that was noted last before the LSN. If moments expire, states between may have
    /// been noted and removed, so only a note of the LSN itself counts.
    fn held_at(&self, vol: VolId, lsn: Lsn) -> Option<(Content, u64)> {
        let past = self.past.get(&vol)?;
        let (noted, held) = past.moments.range(..=lsn).next_back()?;
        (!past.expires || *noted == lsn).then(|| held.clone())
    }

    /// Rolls volumes back to a moment of the first one, all at once. It leaves out volumes whose
    /// content at that moment is not known.
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
        // The history of another volume may have been off at this moment.
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
