//! Conversion of the engine's plain data to the types of the API.

use crate::same::Same;
use crate::severities::{help, severity};
use hindcast_api as api;
use hindcast_engine::cdp;
use hindcast_engine::ids::Stamp;
use hindcast_engine::pool::{
    self, DamageInfo, DataScrubInfo, DirectMin, FeatureInfo, Health, IndexSize, LayoutInfo, LayoutShape,
    MemberInfo, Placement, Pool, PoolInfo, PoolStats, PreserveStats, PvInfo, RebalanceInfo, SnapAware,
    SnapshotSpace, SpareInfo, VolumeInfo, Warning, code,
};
use hindcast_engine::{Error, ErrorKind, Result};
use jiff::Timestamp;
use std::collections::BTreeMap;

/// Returns the API's representation of an engine's error.
pub fn error_body(error: Error) -> api::ErrorBody {
    let kind = match error.kind() {
        ErrorKind::NotFound => api::ErrorKind::NotFound,
        ErrorKind::Conflict => api::ErrorKind::Conflict,
        ErrorKind::Invalid => api::ErrorKind::Invalid,
        ErrorKind::OutOfRange => api::ErrorKind::OutOfRange,
        ErrorKind::ReadOnly => api::ErrorKind::ReadOnly,
        ErrorKind::NoSpace => api::ErrorKind::NoSpace,
        ErrorKind::Io => api::ErrorKind::Io,
        ErrorKind::Corrupt => api::ErrorKind::Corrupt,
        ErrorKind::Lost => api::ErrorKind::Lost,
        ErrorKind::Poisoned => api::ErrorKind::Poisoned,
        ErrorKind::Busy => api::ErrorKind::Busy,
        ErrorKind::Unsupported => api::ErrorKind::Unsupported,
        ErrorKind::Unavailable => api::ErrorKind::Unavailable,
    };
    api::ErrorBody { kind, message: error.to_string() }
}

/// Makes a problem with the severity and the help of its code.
pub(crate) fn problem(code: &str, message: impl Into<String>) -> api::Problem {
    let (severity, help) = (Some(severity(code)), Some(help(code)));
    api::Problem { code: code.into(), message: message.into(), subject: None, severity, help, since: None }
}

pub(crate) fn health(health: &Health) -> api::Health {
    match health {
        Health::Healthy => api::Health { state: api::HealthState::Healthy, problems: Vec::new() },
        Health::Warning(warnings) => {
            let of =
                |w: &Warning| api::Problem { subject: w.subject.clone(), ..problem(w.code, w.text.as_str()) };
            let problems = warnings.iter().map(of).collect();
            api::Health { state: api::HealthState::Warning, problems }
        }
        Health::Poisoned(reason) => {
            let problems = vec![problem(code::POISONED, reason.as_str())];
            api::Health { state: api::HealthState::Poisoned, problems }
        }
    }
}

/// Size of a slice, where neither the request nor the configuration names one.
const SLICE_SIZE: u64 = 64 << 20;
/// Number of snapshots for which a gap has room by default.
const SNAPSHOTS: u32 = 4;
/// Part of a slice that a snapshot keeps by default, in per cent.
const SNAPSHOT_PERCENT: u32 = 10;

fn placement_of(placement: Placement) -> api::Placement {
    match placement {
        Placement::Anywhere => api::Placement::Anywhere,
        Placement::Contiguous => api::Placement::Contiguous,
        Placement::Share => api::Placement::Share,
        Placement::SnapAware(_) => api::Placement::SnapAware,
    }
}

/// Converts the placement that a volume has of its own, in a pool with extents of this size.
pub(crate) fn volume_placement(placement: Placement, extent_size: u64) -> api::VolumePlacement {
    let (slice_size, gap_size) = sizes_of(placement, extent_size);
    api::VolumePlacement { policy: placement_of(placement), slice_size, gap_size }
}

/// Converts a placement that a pool or a volume is to have: see [`placement`]. `None`: the request
/// names none.
pub(crate) fn own_placement(patch: &api::PatchPlacement, extent_size: u64) -> Result<Option<Placement>> {
    let sizes = (patch.slice_size, patch.snapshots, patch.snapshot_percent);
    match patch.policy {
        Some(policy) => placement(policy, extent_size, sizes).map(Some),
        None if sizes == (None, None, None) => Ok(None),
        None => {
            let text = "set sizes of a placement: name the placement, too";
            Err(Error::new(ErrorKind::Invalid, text))
        }
    }
}

/// Converts the least size of a volume's writes by reference: that of the pool, 0 for none, or a
/// number of bytes.
pub(crate) fn direct_min(wanted: Option<u64>) -> DirectMin {
    match wanted {
        None => DirectMin::OfPool,
        Some(0) => DirectMin::Never,
        Some(bytes) => DirectMin::Bytes(bytes),
    }
}

/// Converts it back.
fn direct_min_of(own: DirectMin) -> Option<u64> {
    match own {
        DirectMin::OfPool => None,
        DirectMin::Never => Some(0),
        DirectMin::Bytes(bytes) => Some(bytes),
    }
}

/// Returns the sizes of a slice and of its gap in bytes, under the snap-aware placement.
fn sizes_of(placement: Placement, extent_size: u64) -> (Option<u64>, Option<u64>) {
    match placement {
        Placement::SnapAware(of) => {
            let bytes = |extents: u32| Some(u64::from(extents) * extent_size);
            (bytes(of.slice), bytes(of.gap))
        }
        _ => (None, None),
    }
}

/// Converts a placement, for a pool with extents of this size. Sizes of the placement `snap-aware`
/// that are not given have their defaults.
pub(crate) fn placement(
    placement: api::Placement,
    extent_size: u64,
    (slice, snapshots, percent): (Option<u64>, Option<u32>, Option<u32>),
) -> Result<Placement> {
    if placement != api::Placement::SnapAware && (slice, snapshots, percent) != (None, None, None) {
        let text = "set the placement: only snap-aware has slices and gaps";
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(match placement {
        api::Placement::Anywhere => Placement::Anywhere,
        api::Placement::Contiguous => Placement::Contiguous,
        api::Placement::Share => Placement::Share,
        api::Placement::SnapAware => Placement::SnapAware(SnapAware::of(
            extent_size,
            slice.unwrap_or(SLICE_SIZE),
            snapshots.unwrap_or(SNAPSHOTS),
            percent.unwrap_or(SNAPSHOT_PERCENT),
        )?),
    })
}

pub(crate) fn pool(info: &PoolInfo, stats: &PoolStats, index: IndexSize) -> api::Pool {
    let (slice_size, gap_size) = sizes_of(info.placement, info.config.extent_size);
    api::Pool {
        uuid: info.uuid.to_string(),
        extent_size: info.config.extent_size,
        atomic_unit: info.config.atomic_unit,
        placement: placement_of(info.placement),
        slice_size,
        gap_size,
        filling: None,
        capacity: info.capacity,
        used: info.used,
        available: info.available,
        reserved: info.reserved,
        provisioned: info.provisioned,
        volumes: info.volumes,
        features: info.features.iter().map(|name| (*name).to_owned()).collect(),
        health: health(&info.health),
        journal: api::Journal {
            size: info.config.journal_size,
            segment_size: info.config.segment_size,
            capacity: stats.journal_capacity,
            used: stats.journal_used,
            turns: stats.journal_turns,
            sequenced_lsn: stats.sequenced_lsn.0,
            written_lsn: stats.written_lsn.0,
            synced_lsn: stats.synced_lsn.0,
            destaged_lsn: stats.destaged_lsn.0,
            backpressure_waits: stats.backpressure_waits,
        },
        map_cache: api::MapCache {
            policy: stats.map_cache_policy.same(),
            size: stats.map_cache_size,
            used: stats.map_cache_used,
            hits: stats.map_hits,
            misses: stats.map_misses,
            evictions: stats.map_evictions,
            hit_rate: hit_rate(stats),
        },
        index: api::PoolIndex {
            map_pages: index.map_pages,
            versions: index.versions,
            catalog_bytes: index.catalog_bytes,
        },
        preservation: preservation(&stats.preserving),
    }
}

pub(crate) fn feature(info: &FeatureInfo) -> api::Feature {
    let (name, about) = (info.name.to_owned(), info.about.to_owned());
    api::Feature { name, about, state: info.state.same() }
}

fn preservation(stats: &PreserveStats) -> api::Preservation {
    api::Preservation {
        copies: stats.copies,
        copied_bytes: stats.copied_bytes,
        redirects: stats.redirects,
        redirected_bytes: stats.redirected_bytes,
        fill_reads: stats.fill_reads,
        fill_bytes: stats.fill_bytes,
        host_bytes: stats.host_bytes,
        space_efficiency: stats.space_efficiency(),
    }
}

pub(crate) fn statistics(name: String, of: &pool::VolumeStatistics) -> api::VolumeStatistics {
    api::VolumeStatistics {
        name,
        requests: requests(of.requests),
        preservation: preservation(&of.preserved),
        index: api::VolumeIndex {
            chunks: of.index.chunks,
            versions: of.index.versions,
            bytes: of.index.bytes,
        },
        region_size: of.regions.region_size,
        regions: of
            .regions
            .regions
            .iter()
            .map(|r| api::Region { reads: r.reads, writes: r.writes })
            .collect(),
    }
}

/// Returns the hits per look-up. `None`: there was no look-up yet.
pub(crate) fn hit_rate(stats: &PoolStats) -> Option<f64> {
    let lookups = stats.map_hits + stats.map_misses;
    (lookups > 0).then(|| stats.map_hits as f64 / lookups as f64)
}

pub(crate) fn pv(info: &PvInfo) -> api::Pv {
    api::Pv {
        id: info.id,
        uuid: info.uuid.to_string(),
        path: info.path.clone(),
        size: info.size,
        used: info.used,
        draining: info.draining,
        dedicated: info.dedicated.is_some(),
        available: info.dedicated.map(|space| space.available),
        weight: info.weight,
        failure: info.failure.clone(),
        layout: info.layout.as_ref().map(layout),
    }
}

pub(crate) fn layout(info: &LayoutInfo) -> api::PvLayout {
    let progress = |of: &MemberInfo| of.incoming.as_ref().and_then(|new| new.progress);
    let member = |of: &MemberInfo| api::Member {
        path: of.path.clone(),
        size: of.size,
        content: of.content,
        changed: of.changed,
        state: match (of.is_in, &of.incoming) {
            (true, _) => api::MemberState::In,
            (false, Some(_)) => api::MemberState::Rebuilding,
            (false, None) => api::MemberState::Out,
        },
        reason: Some(&of.reason).filter(|reason| !reason.is_empty()).cloned(),
        onto: of.incoming.as_ref().map(|new| new.path.clone()),
        rebuilt: progress(of).map(|progress| progress.copied),
        left: progress(of).map(|progress| progress.left),
        seconds_left: progress(of).and_then(|progress| progress.seconds),
    };
    let (kind, copies, columns, unit) = match info.shape {
        LayoutShape::Mirror { copies } => (api::LayoutKind::Mirror, Some(copies as u64), None, None),
        LayoutShape::Raid5 { columns, unit } => {
            (api::LayoutKind::Raid5, None, Some(columns as u64), Some(unit))
        }
    };
    api::PvLayout {
        name: info.name.clone(),
        kind,
        copies,
        columns,
        unit,
        survives: info.survives as u64,
        reserve: info.reserve as u64,
        takes_over: info.takes_over,
        members: info.members.iter().map(member).collect(),
        growth: info.growth.map(|growth| api::Growth { size: growth.size, moves: growth.moves }),
    }
}

pub(crate) fn spare(info: &SpareInfo) -> api::SpareDisk {
    api::SpareDisk {
        path: info.path.clone(),
        size: info.size,
        problem: Some(&info.problem).filter(|problem| !problem.is_empty()).cloned(),
    }
}

/// Converts the progress of a rebalancing.
pub(crate) fn rebalancing(info: &RebalanceInfo) -> api::Rebalancing {
    api::Rebalancing {
        running: info.running,
        round: info.round,
        rate: info.rate,
        checked: info.seen_bytes,
        used: info.used_bytes,
        moved: info.moved_bytes,
        passed_over: info.passed_over,
    }
}

/// Converts the progress of a scrub.
pub(crate) fn scrub(info: &DataScrubInfo) -> api::Scrub {
    let time_of = |nanos: u64| (nanos > 0).then(|| time(nanos));
    api::Scrub {
        running: info.running,
        paused: info.paused,
        adopts: info.adopts,
        total: info.total,
        verified: info.verified,
        unknown: info.unknown,
        adopted: info.adopted,
        damaged: info.damaged,
        unreadable: info.unreadable,
        repaired: info.repaired,
        rate: info.rate,
        started: time_of(info.started),
        finished: time_of(info.finished),
        passes: info.passes,
    }
}

/// Converts the damage of a volume or a snapshot.
pub(crate) fn damage(of: DamageInfo) -> api::Damage {
    let range = |(offset, length)| api::DamagedRange { offset, length };
    api::Damage {
        volume: of.volume,
        snapshot: of.snapshot,
        ranges: of.ranges.into_iter().map(range).collect(),
    }
}

/// Converts nanoseconds since 1970 to a time.
pub(crate) fn time(nanos: u64) -> Timestamp {
    Timestamp::from_nanosecond(nanos.into()).unwrap_or_default()
}

/// Adds the space that snapshots of one volume use.
pub(crate) fn add_space(pool: &Pool, volume: &str, snapshots: &mut [api::Snapshot]) {
    let usage = match pool.space_usage(volume) {
        Ok(usage) => usage.of,
        Err(error) => return tracing::debug!(volume, %error, "the space of snapshots is unknown"),
    };
    let of: BTreeMap<&str, &SnapshotSpace> = usage.iter().map(|s| (s.name.as_str(), s)).collect();
    for snapshot in snapshots {
        let space = of.get(snapshot.name.as_str());
        snapshot.unique = space.map(|s| s.unique);
        snapshot.shared = space.map(|s| s.shared);
    }
}

/// Returns the API's representation of a volume. It lacks the origin and the fields of other parts
/// of the server.
pub(crate) fn volume(info: &VolumeInfo) -> api::Volume {
    api::Volume {
        name: info.name.clone(),
        uuid: info.uuid.to_string(),
        size: info.size,
        chunk_size: info.chunk_size,
        block_size: info.block_size,
        read_only: info.read_only,
        method: info.method.same(),
        order: info.order.same(),
        snapshot_space: None,
        snapshot_reserve: info.policy.reserve_percent,
        auto_delete: info.policy.auto_delete,
        importing: info.importing,
        on: None,
        placement: None,
        direct_min: direct_min_of(info.direct_min),
        nbd: true,
        inherited: None,
        cdp: info.cdp.as_ref().map(cdp_settings),
        origin: None,
        parent: None,
        after_moment: None,
        created: time(info.created),
        allocated: info.allocated,
        handles: info.handles,
        clients: None,
        snapshots: None,
        history: None,
        last_change: None,
        labels: info.labels.clone(),
        damaged: Vec::new(),
        stats: requests(info.stats),
    }
}

fn requests(stats: pool::VolumeStats) -> api::VolumeStats {
    let pool::VolumeStats {
        reads,
        read_bytes,
        writes,
        write_bytes,
        flushes,
        discards,
        discard_bytes,
        staged_read_bytes,
        errors,
    } = stats;
    api::VolumeStats {
        reads,
        read_bytes,
        writes,
        write_bytes,
        flushes,
        discards,
        discard_bytes,
        staged_read_bytes,
        errors,
    }
}

pub(crate) fn engine_anchors(anchors: api::Anchors) -> Result<cdp::AnchorPolicy> {
    Ok(match anchors {
        api::Anchors::Model => cdp::AnchorPolicy::Model,
        api::Anchors::Never => cdp::AnchorPolicy::Never,
        api::Anchors::Writes { count } => cdp::AnchorPolicy::Every(count),
        api::Anchors::Time { seconds } => cdp::AnchorPolicy::Interval(nanos(seconds)?),
    })
}

/// Converts seconds to nanoseconds.
pub(crate) fn nanos(seconds: u64) -> Result<u64> {
    seconds.checked_mul(SECOND).ok_or_else(|| {
        Error::new(ErrorKind::Invalid, format!("use a time of {seconds} seconds: it is too long"))
    })
}

const SECOND: u64 = 1_000_000_000;

/// Returns the span of a history; `None` if there is none.
pub(crate) fn window(info: &cdp::CdpInfo) -> Option<api::HistoryWindow> {
    info.from.map(|_| api::HistoryWindow {
        held_seconds: info.window / SECOND,
        wanted_seconds: info.settings.and_then(|s| s.retention.time).map(|time| time / SECOND),
    })
}

fn cdp_settings(settings: &cdp::CdpSettings) -> api::Cdp {
    api::Cdp {
        encoding: settings.encoding.same(),
        compression: settings.compression.same(),
        anchors: match settings.anchors {
            cdp::AnchorPolicy::Model => api::Anchors::Model,
            cdp::AnchorPolicy::Never => api::Anchors::Never,
            cdp::AnchorPolicy::Every(count) => api::Anchors::Writes { count },
            cdp::AnchorPolicy::Interval(nanos) => api::Anchors::Time { seconds: nanos / SECOND },
        },
        max_distance: settings.max_distance,
        retain_seconds: settings.retention.time.map(|nanos| nanos / SECOND),
        retain_bytes: settings.retention.bytes,
    }
}

pub(crate) fn position(stamp: Stamp) -> api::Position {
    api::Position { lsn: stamp.lsn.0, time: time(stamp.time) }
}

pub(crate) fn cdp_status(volume: String, info: &cdp::CdpInfo) -> api::CdpStatus {
    api::CdpStatus {
        volume,
        settings: info.settings.as_ref().map(cdp_settings),
        distance: info.distance,
        from: info.from.map(position),
        window_seconds: info.window as f64 / SECOND as f64,
        short: info.short,
        records: info.records,
        written: info.written,
        payload: info.payload,
        stored: info.stored,
        kept: info.kept,
        segments: info.segments,
        anchors: info.anchors,
    }
}

pub(crate) fn mark(mark: &cdp::Mark) -> api::Mark {
    api::Mark { name: mark.name.clone(), lsn: mark.lsn.0, time: time(mark.time) }
}

pub(crate) fn change(change: &cdp::Change) -> api::Change {
    api::Change { lsn: change.lsn.0, time: time(change.time), offset: change.offset, length: change.length }
}

pub(crate) fn history(volume: String, found: &cdp::History) -> api::History {
    let span = |s: &cdp::Span| api::HistorySpan { from: position(s.from), to: s.to.map(position) };
    let anchor =
        |a: &cdp::Anchor| api::Anchor { lsn: a.lsn.0, time: time(a.time), snapshot: a.snapshot.clone() };
    let bucket = |b: &cdp::Bucket| api::HistoryBucket {
        from: time(b.from),
        records: b.records,
        written: b.written,
        stored: b.stored,
    };
    api::History {
        volume,
        spans: found.spans.iter().map(span).collect(),
        anchors: found.anchors.iter().map(anchor).collect(),
        marks: found.marks.iter().map(mark).collect(),
        flushes: found.flushes.iter().copied().map(position).collect(),
        buckets: found.buckets.iter().map(bucket).collect(),
        clock: found.clock.iter().map(clock_change).collect(),
    }
}

pub(crate) fn clock_change(change: &pool::ClockChange) -> api::ClockChange {
    api::ClockChange { lsn: change.lsn.0, before: time(change.before), after: time(change.after) }
}

pub(crate) fn clock(clock: &pool::ClockInfo) -> api::Clock {
    api::Clock {
        now: time(clock.now),
        jumped_seconds: clock.jumped.map(|by| by as f64 / SECOND as f64),
        suspended: clock.suspended,
        ahead_seconds: clock.ahead as f64 / SECOND as f64,
        changes: clock.changes.iter().map(clock_change).collect(),
    }
}
