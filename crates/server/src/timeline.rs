//! The timeline of a volume in the terms of the API.

use crate::app::App;
use crate::convert::{clock_change, mark, position, time};
use crate::lineage::Lineage;
use crate::moments::{self, Past};
use crate::views::{Shows, StoredView};
use hindcast_api as api;
use hindcast_engine::cdp::{self, Timeline, TimelineQuery, Window};
use hindcast_engine::pool::{Pool, SnapshotInfo};
use hindcast_engine::{Error, ErrorKind, Result};
use jiff::Timestamp;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use uuid::Uuid;

/// Number of buckets if a request does not tell it.
const BUCKETS: u32 = 200;
const SECOND: f64 = 1e9;

impl App {
    /// Returns a window of a volume's past. Nothing is destaged for it.
    pub(crate) fn timeline(&self, volume: &str, query: &api::TimelineQuery) -> Result<api::Timeline> {
        let bound = |text: &Option<String>| match text {
            Some(text) => bound(&self.pool, volume, text).map(Some),
            None => Ok(None),
        };
        let asked = TimelineQuery {
            from: bound(&query.from)?,
            to: bound(&query.to)?,
            buckets: query.buckets.unwrap_or(BUCKETS) as usize,
            regions: query.regions.unwrap_or(0) as usize,
        };
        let found = self.pool.timeline(volume, &asked)?;
        let window = found.window.from..found.window.end();
        let snapshots = self.pool.snapshots_within(volume, window)?;
        let retain = self.pool.volume(volume)?.cdp.and_then(|cdp| cdp.retention.time);
        let recorded = self.pool.cdp(volume).ok();
        let expires = recorded.zip(found.begins).and_then(|(info, begins)| {
            let retention = info.settings?.retention;
            edge(retention, info.stored.saturating_add(info.kept), (begins.time, found.now))
        });
        let mut dependents = self.dependents(&found, &snapshots);
        dependents.extend(self.views_within(volume, &found.window, &snapshots)?);
        let expires = expires.map(time);
        Ok(api::Timeline { expires, ..shown(volume, found, snapshots, dependents, retain) })
    }

    /// Returns the volumes that depend on moments and snapshots in the window of a timeline.
    fn dependents(&self, found: &Timeline, snapshots: &[SnapshotInfo]) -> Vec<api::Dependent> {
        let lineage = Lineage::new(&self.pool);
        let mut all = Vec::new();
        for snapshot in snapshots.iter().filter(|s| s.pinned) {
            let clone = |name| api::Dependent {
                kind: api::DependentKind::Clone,
                name,
                time: time(snapshot.created),
                lsn: None,
            };
            all.extend(lineage.clones(snapshot).into_iter().map(clone));
        }
        if !found.dependents.is_empty() {
            let names: BTreeMap<_, _> = self.pool.volumes().into_iter().map(|v| (v.branch, v.name)).collect();
            let recovered = found.dependents.iter().filter_map(|(branch, at)| {
                let (kind, name) = (api::DependentKind::Recovered, names.get(branch)?.clone());
                Some(api::Dependent { kind, name, time: time(at.time), lsn: Some(at.lsn.0) })
            });
            all.extend(recovered);
        }
        all
    }

    /// Returns the views of a volume whose moments are in the window of a timeline, oldest moment
    /// first. `snapshots` are those of the window.
    fn views_within(
        &self,
        volume: &str,
        window: &Window,
        snapshots: &[SnapshotInfo],
    ) -> Result<Vec<api::Dependent>> {
        // Without the file of views the timeline is still good. Requests about views say what is
        // wrong.
        let views = self.views.all().unwrap_or_default();
        if views.is_empty() {
            return Ok(Vec::new());
        }
        let volume = self.pool.volume(volume)?.uuid;
        let known: HashSet<Uuid> = snapshots.iter().map(|snapshot| snapshot.uuid).collect();
        let is_shown = |view: &StoredView| {
            let exists = match view.shows {
                Shows::Lsn(_) => true,
                Shows::Snapshot(id) => known.contains(&id),
            };
            view.volume == volume && exists
        };
        Ok(views_at(views.into_iter().filter(is_shown), &(time(window.from)..time(window.end()))))
    }
}

/// Returns the views of which the moment is in a window.
fn views_at(views: impl Iterator<Item = StoredView>, window: &Range<Timestamp>) -> Vec<api::Dependent> {
    let dependent = |view: StoredView| api::Dependent {
        kind: api::DependentKind::View,
        lsn: match view.shows {
            Shows::Lsn(lsn) => Some(lsn),
            Shows::Snapshot(_) => None,
        },
        name: view.name.unwrap_or(view.id),
        time: view.time,
    };
    let mut all: Vec<api::Dependent> =
        views.filter(|view| window.contains(&view.time)).map(dependent).collect();
    all.sort_by_key(|view| view.time);
    all
}

/// Returns the time that an end of a window means, in nanoseconds since 1970. Nothing is opened or
/// carried out for it.
fn bound(pool: &Pool, volume: &str, text: &str) -> Result<u64> {
    let unknown = |what: &str| {
        let text = format!("show a timeline: {text:?} is {what}; write a time, or a time before now");
        Error::new(ErrorKind::Invalid, text)
    };
    match moments::find(pool, volume, text)? {
        Past::Snapshot(snapshot) => Ok(snapshot.created),
        Past::Moment(cdp::Moment::Time(time)) => Ok(time),
        Past::Moment(cdp::Moment::PoolTime(time)) => Ok(pool.wall_time(time)),
        Past::Moment(cdp::Moment::Mark(name)) => {
            let marks = pool.history(volume, 0)?.marks;
            let mark = marks.into_iter().find(|mark| mark.name == name);
            mark.map(|mark| mark.time).ok_or_else(|| unknown("a mark that was just deleted"))
        }
        Past::Moment(_) => Err(unknown("no time")),
    }
}

fn lane<T, U>(lane: cdp::Lane<T>, item: impl Fn(T) -> U) -> api::Lane<U> {
    api::Lane {
        count: lane.count as u64,
        items: lane.items.into_iter().map(item).collect(),
        counts: lane.counts,
        partial: lane.partial,
    }
}

fn shown(
    volume: &str,
    found: Timeline,
    snapshots: Vec<SnapshotInfo>,
    dependents: Vec<api::Dependent>,
    retain: Option<u64>,
) -> api::Timeline {
    let window: Window = found.window;
    let of = |amount: fn(&cdp::Amount) -> u64| found.amounts.iter().map(amount).collect();
    // The snapshot of an anchor has its LSN.
    let lsns: BTreeMap<String, u64> =
        found.anchors.items.iter().filter_map(|a| Some((a.snapshot.clone()?, a.lsn.0))).collect();
    let snapshots = cdp::Lane::of(snapshots, &window, |snapshot| snapshot.created);
    api::Timeline {
        volume: volume.to_owned(),
        now: time(found.now),
        from: time(window.from),
        to: time(window.end()),
        bucket_seconds: window.length as f64 / SECOND,
        begins: found.begins.map(position),
        records: of(|amount| amount.records),
        written: of(|amount| amount.written),
        stored: of(|amount| amount.stored),
        waiting: of(|amount| amount.waiting),
        regions: found.regions.map(|regions| api::TimelineRegions {
            count: regions.count as u32,
            bytes_each: regions.length,
            written: regions.written,
        }),
        coarse: found.coarse,
        spans: found
            .spans
            .iter()
            .map(|s| api::HistorySpan { from: position(s.from), to: s.to.map(position) })
            .collect(),
        rollbacks: found.rollbacks.iter().map(rollback).collect(),
        sizes: found
            .sizes
            .iter()
            .map(|(at, size)| api::TimelineSize { time: time(at.time), size: *size })
            .collect(),
        snapshots: lane(snapshots, |s| api::TimelineSnapshot {
            lsn: lsns.get(&s.name).copied(),
            time: time(s.created),
            name: s.name,
        }),
        marks: lane(found.marks, |m| mark(&m)),
        anchors: lane(found.anchors, |a| api::Anchor {
            lsn: a.lsn.0,
            time: time(a.time),
            snapshot: a.snapshot,
        }),
        flushes: lane(found.flushes, position),
        dependents,
        retain_seconds: retain.map(|ns| ns / 1_000_000_000),
        expires: None,
        clock: found.clock.iter().map(clock_change).collect(),
    }
}

fn rollback(found: &cdp::Rollback) -> api::TimelineRollback {
    api::TimelineRollback { lsn: found.at.lsn.0, time: time(found.at.time), to: found.to.map(time) }
}

/// Returns when the first moment of a history expires, in nanoseconds since 1970. The history takes
/// `taken` bytes, and reaches from its first moment to now. A limit of bytes is reached at the pace
/// of the whole history. `None`: there is no limit.
fn edge(retention: cdp::Retention, taken: u64, (begins, now): (u64, u64)) -> Option<u64> {
    let by_time = retention.time.map(|time| begins.saturating_add(time));
    let is_known = taken > 0 && begins < now;
    let by_bytes = retention.bytes.filter(|_| is_known).map(|most| {
        let spare = u128::from(most.saturating_sub(taken));
        let wait = spare * u128::from(now.saturating_sub(begins)) / u128::from(taken);
        now.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX))
    });
    by_time.into_iter().chain(by_bytes).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_expires_by_the_limit_that_comes_first() {
        let limits = |time, bytes| cdp::Retention { time, bytes };
        // From 100 to 300 it took 50 bytes.
        let edge = |retention| edge(retention, 50, (100, 300));
        assert_eq!(edge(limits(None, None)), None);
        assert_eq!(edge(limits(Some(250), None)), Some(350));
        assert_eq!(edge(limits(None, Some(75))), Some(400));
        assert_eq!(edge(limits(Some(250), Some(75))), Some(350));
        assert_eq!(edge(limits(Some(900), Some(75))), Some(400));
        assert_eq!(edge(limits(None, Some(20))), Some(300), "it is over its limit");
        assert_eq!(super::edge(limits(None, Some(20)), 0, (100, 300)), None);
        assert_eq!(super::edge(limits(None, Some(20)), 50, (300, 300)), None, "it has no pace yet");
        assert_eq!(super::edge(limits(Some(7), Some(u64::MAX)), 1, (0, u64::MAX)), Some(7));
    }

    #[test]
    fn views_are_at_their_moments() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let view = |second, name: Option<&str>, shows| StoredView {
            id: format!("id-{second}"),
            volume: Uuid::nil(),
            name: name.map(str::to_owned),
            shows,
            time: at(second),
            size: 1 << 20,
            created: at(100),
            expires: at(200),
        };
        let views = [
            view(9, None, Shows::Lsn(9)),
            view(30, None, Shows::Lsn(30)),
            view(20, Some("audit"), Shows::Lsn(20)),
            view(10, Some("monday"), Shows::Snapshot(Uuid::nil())),
            view(19, None, Shows::Lsn(19)),
        ];
        let found = views_at(views.into_iter(), &(at(10)..at(30)));
        let found: Vec<_> = found.iter().map(|of| (of.name.as_str(), of.time.as_second(), of.lsn)).collect();
        assert_eq!(found, [("monday", 10, None), ("id-19", 19, Some(19)), ("audit", 20, Some(20))]);
    }
}
