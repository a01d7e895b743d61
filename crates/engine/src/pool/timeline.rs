//! The timeline of a volume: a window of its past, without carrying anything out.

use super::Pool;
use crate::branch::{Base, Branch, VolumeState};
use crate::catalog::LineRecord;
use crate::cdp::moment::history::anchors_of;
use crate::cdp::moment::spans::RecordedSpan;
use crate::cdp::moment::timeline::{Amounts, MADE};
use crate::clock::{ClockChange, WallTimes};
use crate::error::{Result, invalid};
use crate::ids::{BranchId, Lsn, Stamp};
use crate::info::history::{Anchor, History, Span};
use crate::info::timeline::{
    Lane, MAX_BUCKETS, MAX_ITEMS, MAX_REGIONS, Rollback, Timeline, TimelineQuery, Window,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The largest number of flush points that one timeline looks at.
const MAX_FLUSHES: usize = 20_000;
/// The number of times that amounts are added up, if destage moves on meanwhile.
const ATTEMPTS: usize = 3;
/// Nanoseconds that a timeline shows of a volume without a past.
const SHORTEST: u64 = 60 * 1_000_000_000;

/// The past of a volume, in pool times, and what converts them.
pub(super) struct Past {
    pub(super) volume: Arc<VolumeState>,
    pub(super) walls: WallTimes,
    /// The time of the wall clock now.
    pub(super) now: u64,
    stretches: Vec<RecordedSpan>,
    pub(super) spans: Vec<Span>,
    /// The first moment that can be shown.
    pub(super) begins: Option<Stamp>,
    /// The earliest time that the wall clock showed since then. It is earlier than that of the
    /// first moment where the clock was put back.
    pub(super) first: Option<u64>,
    /// The latest time that the wall clock showed since then: now, unless it was put back.
    pub(super) latest: u64,
    /// The changes of the clock since `begins`.
    pub(super) clock: Vec<ClockChange>,
}

impl Past {
    /// Returns a stamp with the time of the wall clock.
    fn on_the_wall(&self, stamp: Stamp) -> Stamp {
        Stamp { time: self.walls.of(stamp.time), ..stamp }
    }

    /// Converts pool times to times of the wall clock.
    pub(super) fn by_the_wall(&self, history: &mut History) {
        let History { spans, anchors, marks, flushes, buckets: _, clock: _ } = history;
        let of_spans = spans.iter_mut().flat_map(|span| [Some(&mut span.from), span.to.as_mut()]).flatten();
        let times = of_spans.chain(flushes).map(|stamp| &mut stamp.time);
        let times = times.chain(anchors.iter_mut().map(|anchor| &mut anchor.time));
        let times = times.chain(marks.iter_mut().map(|mark| &mut mark.time));
        times.for_each(|time| *time = self.walls.of(*time));
    }
}

/// Returns the sizes that a volume had in a window, with the times of the wall clock.
fn sizes(past: &Past, window: &Window) -> Vec<(Stamp, u64)> {
    let of = |span: &RecordedSpan| span.branch.cdp.log.read().sizes();
    let all = past.stretches.iter().flat_map(of).map(|(at, size)| (past.on_the_wall(at), size));
    let mut sizes: Vec<(Stamp, u64)> = all.filter(|(at, _)| at.time < window.end()).collect();
    sizes.dedup_by_key(|(_, size)| *size);
    let before = sizes.iter().take_while(|(at, _)| at.time <= window.from).count();
    sizes.drain(..before.saturating_sub(1).max(sizes.len().saturating_sub(MAX_ITEMS)));
    sizes
}

impl Pool {
    /// Returns the timeline of a volume in a window. Nothing is destaged for it: records that wait
    /// for destage count from memory. Only a record that changed how the volume is recorded, or its
    /// size, is carried out, once.
    pub fn timeline(&self, volume: &str, query: &TimelineQuery) -> Result<Timeline> {
        if query.buckets == 0 || query.buckets > MAX_BUCKETS || query.regions > MAX_REGIONS {
            return Err(invalid(format!(
                "show a timeline: 1 to {MAX_BUCKETS} buckets, and at most {MAX_REGIONS} regions"
            )));
        }
        let past = self.past(volume)?;
        let info = past.volume.info();
        let to = query.to.unwrap_or(past.latest);
        let first = past.first.unwrap_or(info.created);
        let from = query.from.unwrap_or(first.min(to.saturating_sub(SHORTEST)));
        if from >= to {
            return Err(invalid("show a timeline: its end is not after its start"));
        }
        let window = Window::round(from, to, query.buckets);
        let amounts = self.amounts(&past, window, query.regions);
        let wants = |time: u64| window.bucket(past.walls.of(time)).is_some();
        let mut all = History {
            marks: self.marks(past.volume.id, wants),
            anchors: self.anchors(&past, wants),
            spans: past.spans.clone(),
            ..History::default()
        };
        past.by_the_wall(&mut all);
        let reaches =
            |span: &Span| span.from.time < window.end() && span.to.is_none_or(|to| to.time >= window.from);
        Ok(Timeline {
            now: past.now,
            window,
            amounts: amounts.buckets,
            regions: amounts.regions,
            coarse: amounts.coarse,
            begins: past.begins.map(|begins| past.on_the_wall(begins)),
            spans: all.spans.into_iter().filter(reaches).collect(),
            rollbacks: self.rollbacks(&past, &window),
            sizes: sizes(&past, &window),
            marks: Lane::of(all.marks, &window, |mark| mark.time),
            anchors: Lane::of(all.anchors, &window, |anchor| anchor.time),
            flushes: self.flushes_in(&past, &window)?,
            dependents: self.dependents(&past).filter(|(_, at)| window.bucket(at.time).is_some()).collect(),
            clock: past.clock,
        })
    }

    /// Returns the past of a volume.
    pub(super) fn past(&self, volume: &str) -> Result<Past> {
        let volume = self.core.names.read().volume(volume)?.clone();
        self.carry_out_turns(&volume)?;
        self.core.look_at_clock();
        let stretches = self.core.stretches(volume.id);
        let of = |span: &RecordedSpan| span.branch.cdp.log.read().spans(span.branch.id, span.until);
        let spans: Vec<Span> = stretches.iter().flat_map(of).collect();
        let begins = spans.iter().map(|span| span.from).min_by_key(|from| from.time);
        let clock = begins.map_or_else(Vec::new, |begins| self.core.clock.changes(begins.time));
        let walls = self.core.clock.walls();
        let now = walls.of(self.core.clock.now().max(self.core.journal.last().time));
        let first = begins
            .map(|begins| clock.iter().map(|change| change.after).fold(walls.of(begins.time), u64::min));
        let latest = clock.iter().map(|change| change.before).fold(now, u64::max);
        Ok(Past { volume, walls, now, stretches, spans, begins, first, latest, clock })
    }

    /// Carries out what changed how a volume is recorded, or its size.
    fn carry_out_turns(&self, volume: &VolumeState) -> Result<()> {
        if self.core.check_usable().is_err() {
            // What is recorded can be shown all the same.
            return Ok(());
        }
        let cdp = &volume.line.branch.cdp;
        let settled = self.core.positions.settled();
        let begins = || cdp.log.read().recording_since(settled).is_some();
        if cdp.waiting.turned_after(settled) || cdp.is_on() && !begins() {
            self.destager.record_until(self.core.journal.last().lsn)?;
        }
        Ok(())
    }

    /// Returns those anchors of a volume's past whose pool times are wanted, oldest first. Anchors
    /// that wait for destage count too.
    pub(super) fn anchors(&self, past: &Past, wants: impl Fn(u64) -> bool) -> Vec<Anchor> {
        let of = |span: &RecordedSpan| {
            // What waits comes first: an anchor that is carried out meanwhile is in the log then.
            let waiting = span.branch.cdp.waiting.anchors();
            let mut anchors = anchors_of(&span.branch.cdp.log.read());
            let known: BTreeSet<Lsn> = anchors.iter().map(|(at, _)| at.lsn).collect();
            anchors.extend(waiting.into_iter().filter(|(at, _)| !known.contains(&at.lsn)));
            anchors.retain(|(at, _)| wants(at.time));
            anchors
        };
        // Names are locked before logs: a holder of the names may lock a log.
        let mut anchors = self.named(past.stretches.iter().flat_map(of).collect());
        anchors.sort_by_key(|anchor| anchor.lsn);
        anchors
    }

    /// Returns the amounts in a window.
    pub(super) fn amounts<'a>(&self, past: &'a Past, window: Window, regions: usize) -> Amounts<'a> {
        let size = past.volume.size.load(Ordering::Relaxed);
        let (mut attempt, mut left) = (1, MADE);
        loop {
            let mut amounts = Amounts::new(window, &past.walls, size, regions);
            let mut is_whole = true;
            for span in &past.stretches {
                let (cdp, chunk_log2) = (&span.branch.cdp, span.branch.chunk_log2);
                let settled = self.core.positions.settled();
                let recorded = amounts.add_log(span, &self.core.profiles, &mut left);
                if !cdp.is_on() {
                    continue;
                }
                let from = settled.max(recorded);
                // What was settled since the log was read is missing in the list.
                if !cdp.waiting.visit(from, |record| amounts.add_waiting(record, chunk_log2)) {
                    is_whole = false;
                    if attempt == ATTEMPTS {
                        let from = self.core.positions.settled().max(from);
                        cdp.waiting.visit(from, |record| amounts.add_waiting(record, chunk_log2));
                    }
                }
            }
            if is_whole || attempt == ATTEMPTS {
                return amounts;
            }
            attempt += 1;
        }
    }

    /// Returns the rollbacks in a window, and those that took back writes of it, by the wall clock.
    fn rollbacks(&self, past: &Past, window: &Window) -> Vec<Rollback> {
        let lines = self.core.lines.read();
        let of_volume = lines.get(&past.volume.id).into_iter().flatten();
        let branches = of_volume.filter_map(|(lsn, line)| match line {
            LineRecord::Branch { branch, time } => Some((*branch, Stamp::new(*lsn, *time))),
            LineRecord::Mark { .. } => None,
        });
        let branches: Vec<_> = branches.collect();
        drop(lines);
        let moved = branches.windows(2).filter(|pair| pair[0].0 != pair[1].0).map(|pair| pair[1]);
        let moved = moved.map(|(branch, at)| (branch, past.on_the_wall(at)));
        let late = moved.filter(|(_, at)| at.time >= window.from);
        let all = late.map(|(branch, at)| Rollback { at, to: self.went_back_to(past, branch) });
        all.filter(|Rollback { at, to }| to.unwrap_or(at.time).min(at.time) < window.end()).collect()
    }

    /// Returns the time of the moment or snapshot that a branch depends on, by the wall clock.
    fn went_back_to(&self, past: &Past, branch: BranchId) -> Option<u64> {
        let place = {
            let names = self.core.names.read();
            let Some(Base::View(view)) = names.branches.get(&branch)?.base() else { return None };
            let Some(moment) = &view.at else {
                let snapshot = names.newest_in(view.branch.id, view.epoch..view.epoch.next())?;
                return Some(snapshot.state.created);
            };
            moment.place()
        };
        self.stamp_of(past, place).map(|at| at.time)
    }

    /// Returns a moment of the past by the wall clock. If the moment has a mark, the time is that
    /// of the mark. Otherwise the time is an estimate, because this function reads no index.
    fn stamp_of(&self, past: &Past, (of, lsn): (BranchId, Lsn)) -> Option<Stamp> {
        let marked = match self.core.lines.read().get(&past.volume.id).and_then(|lines| lines.get(&lsn)) {
            Some(LineRecord::Mark { time, .. }) => Some(*time),
            _ => None,
        };
        let estimate = || {
            let span = past.stretches.iter().find(|span| span.branch.id == of)?;
            span.branch.cdp.log.read().estimate_time(lsn)
        };
        let time = marked.or_else(estimate)?;
        Some(past.on_the_wall(Stamp { lsn, time }))
    }

    /// Returns the branches that depend on a moment of the past, and the moment by the wall clock.
    fn dependents(&self, past: &Past) -> impl Iterator<Item = (BranchId, Stamp)> {
        let branches: BTreeSet<BranchId> = past.stretches.iter().map(|span| span.branch.id).collect();
        let resting: Vec<(BranchId, (BranchId, Lsn))> = {
            let names = self.core.names.read();
            let base = |(id, branch): (&BranchId, &Arc<Branch>)| {
                let Some(Base::View(view)) = branch.base() else { return None };
                let place = view.at?.place();
                branches.contains(&place.0).then_some((*id, place))
            };
            names.branches.iter().filter_map(base).collect()
        };
        // Destage holds a log while it publishes a batch. Nobody waits for the names meanwhile.
        let found = resting.into_iter().filter_map(|(id, place)| Some((id, self.stamp_of(past, place)?)));
        found.collect::<Vec<_>>().into_iter()
    }

    fn flushes_in(&self, past: &Past, window: &Window) -> Result<Lane<Stamp>> {
        let end = match window.end() > past.now {
            true => u64::MAX,
            false => self.core.pool_time(window.end()).unwrap_or(u64::MAX),
        };
        let found = self.core.newest_flushes(past.volume.id, end, MAX_FLUSHES)?;
        let is_cut = found.len() >= MAX_FLUSHES;
        let found: Vec<Stamp> = found.into_iter().map(|at| past.on_the_wall(at)).collect();
        let partial = is_cut && found.first().is_some_and(|first| first.time > window.from);
        Ok(Lane { partial, ..Lane::of(found, window, |at| at.time) })
    }
}
