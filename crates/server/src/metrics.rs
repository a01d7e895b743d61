//! Metrics for Prometheus. Counters are kept where events happen. The server collects them when a
//! client requests the metrics.

use crate::app::App;
use crate::convert;
use crate::latency::ReadTimes;
use crate::same::Same;
use hindcast_api::Protocol;
use hindcast_engine::cdp::CdpInfo;
use hindcast_engine::device::RequestKind;
use hindcast_engine::disk::SyncPurpose;
use hindcast_engine::pool::{
    Health, IndexSize, Pool, PoolInfo, PoolStats, PreserveStats, PvInfo, VolumeInfo,
};
use hindcast_target::iscsi::IscsiStats;
use hindcast_target::nbd::NbdStats;
use hindcast_target::nbd::codec::Command;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Content type of the text that [`encode`] returns.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns all metrics as text.
pub(crate) fn encode(app: &Arc<App>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ServerCollector(app.clone())));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    call_summary(&mut text);
    Ok(text)
}

/// Name of the times of each volume.
const OF_VOLUME: &str = "hindcast_volume_request_seconds";

/// Corrects the type of the times of each volume. They are a summary: a sum and a number without
/// buckets. The library has no summaries, and a histogram without buckets is not valid.
fn call_summary(text: &mut String) {
    let (written, right) =
        (format!("# TYPE {OF_VOLUME} histogram\n"), format!("# TYPE {OF_VOLUME} summary\n"));
    if let Some(at) = text.find(&written) {
        text.replace_range(at..at + written.len(), &right);
    }
}

struct ServerCollector(Arc<App>);

impl fmt::Debug for ServerCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerCollector")
    }
}

impl Collector for ServerCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(encoder);
        let app = &*self.0;
        process(&mut out, app)?;
        let info = app.pool.info();
        space(&mut out, &info)?;
        clock(&mut out, app)?;
        problems(&mut out, app)?;
        physical_volumes(&mut out, &app.pool.pvs())?;
        let stats = app.pool.stats();
        engine(&mut out, &stats)?;
        damage(&mut out, &app.pool)?;
        map_cache(&mut out, &stats)?;
        preservation(&mut out, &stats.preserving)?;
        // A catalog that can't be read is an alarm of its own.
        if let Ok(size) = app.pool.index_size() {
            index(&mut out, &size)?;
        }
        let all = app.pool.volumes();
        volumes(&mut out, &all)?;
        durations(&mut out, &app.latencies.read(|_| true), &all)?;
        snapshots(&mut out, app)?;
        histories(&mut out, &app.pool)?;
        nbd(&mut out, &app.nbd.stats())?;
        iscsi(&mut out, &app.iscsi.stats())
    }
}

/// An encoder for the two forms that this module uses: one value, and one value for each label.
struct Out<'a>(DescriptorEncoder<'a>);

type Label = [(&'static str, String); 1];

impl Out<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.gauge_f64(name, help, value as f64)
    }

    fn gauge_f64(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let gauge = ConstGauge::new(value);
        gauge.encode(self.0.encode_descriptor(name, help, None, gauge.metric_type())?)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let counter = ConstCounter::new(value);
        counter.encode(self.0.encode_descriptor(name, help, None, counter.metric_type())?)
    }

    fn gauges(&mut self, name: &str, help: &str, of: impl Iterator<Item = (Label, u64)>) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (label, value) in of {
            ConstGauge::new(value as f64).encode(family.encode_family(&label)?)?;
        }
        Ok(())
    }

    fn counters(&mut self, name: &str, help: &str, of: impl Iterator<Item = (Label, u64)>) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (label, value) in of {
            ConstCounter::new(value).encode(family.encode_family(&label)?)?;
        }
        Ok(())
    }
}

fn process(out: &mut Out<'_>, app: &App) -> fmt::Result {
    let version = [("version", env!("CARGO_PKG_VERSION").to_owned())];
    out.gauges("hindcast_build", "Always 1; the version is a label.", std::iter::once((version, 1)))?;
    let started = app.started.as_second();
    out.gauge_f64("process_start_time_seconds", "When the server started, Unix time.", started as f64)?;
    match resident_bytes() {
        Some(bytes) => out.gauge("process_resident_memory_bytes", "Resident memory.", bytes),
        None => Ok(()),
    }
}

/// Adds the times of clients' requests: a histogram for all volumes, by protocol and operation, and
/// sums for each volume.
fn durations(out: &mut Out<'_>, times: &ReadTimes, volumes: &[VolumeInfo]) -> fmt::Result {
    let help = "Time from the receipt of a client's request until its reply is ready to be sent.";
    let name = "hindcast_request_duration_seconds";
    let mut family = out.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for protocol in [Protocol::Nbd, Protocol::Iscsi] {
        for op in RequestKind::ALL {
            let label = [("protocol", protocol.name()), ("op", op.name())];
            let times = times.by_protocol.of(protocol).of(op);
            let mut encoder = family.encode_family(&label)?;
            encoder.encode_histogram::<Label>(
                times.nanos as f64 / 1e9,
                times.count,
                &times.coarse(),
                None,
            )?;
        }
    }
    of_volumes(out, times, volumes)
}

/// Adds the times of each volume's requests: their sum and their number. There are no buckets: the
/// number of series must not grow with the volumes and the buckets.
fn of_volumes(out: &mut Out<'_>, times: &ReadTimes, volumes: &[VolumeInfo]) -> fmt::Result {
    let help = "Times of clients' requests to the volume, from receipt to reply: the sum and the number.";
    // See `call_summary` for the type.
    let mut family = out.0.encode_descriptor(OF_VOLUME, help, None, MetricType::Histogram)?;
    for volume in volumes {
        let Some(times) = times.of.get(&volume.uuid) else { continue };
        let nanos: u64 = RequestKind::ALL.iter().map(|op| times.of(*op).nanos).sum();
        let count: u64 = RequestKind::ALL.iter().map(|op| times.of(*op).count).sum();
        let label = [("volume", volume.name.clone())];
        let mut encoder = family.encode_family(&label)?;
        encoder.encode_histogram::<Label>(nanos as f64 / 1e9, count, &[], None)?;
    }
    Ok(())
}

/// Returns the resident memory. `/proc/self/status` gives it in KiB for every page size.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Writes the number of problems of each kind. A kind without problems is absent.
fn problems(out: &mut Out<'_>, app: &App) -> fmt::Result {
    let mut by_code: BTreeMap<String, u64> = BTreeMap::new();
    for problem in app.health().problems {
        *by_code.entry(problem.code).or_default() += 1;
    }
    let each = by_code.into_iter().map(|(code, count)| ([("code", code)], count));
    out.gauges(
        "hindcast_health_problems",
        "Problems of the pool and the server, by code (docs/OPERATIONS.md).",
        each,
    )
}

fn clock(out: &mut Out<'_>, app: &App) -> fmt::Result {
    const SECOND: f64 = 1e9;
    let clock = app.pool.clock();
    out.gauge_f64(
        "hindcast_clock_jump_seconds",
        "Seconds by which the wall clock is ahead of the expected time (negative: behind), until it is confirmed; otherwise 0.",
        clock.jumped.map_or(0.0, |by| by as f64 / SECOND),
    )?;
    out.gauge(
        "hindcast_forgetting_suspended",
        "1 while expiry by time is suspended, because the clock is in doubt.",
        u64::from(clock.suspended),
    )?;
    out.gauge_f64(
        "hindcast_times_ahead_seconds",
        "Seconds by which the newest time of a history or snapshot is ahead of the clock.",
        clock.ahead as f64 / SECOND,
    )
}

fn space(out: &mut Out<'_>, info: &PoolInfo) -> fmt::Result {
    let states = ["healthy", "warning", "poisoned"];
    let now = match info.health {
        Health::Healthy => "healthy",
        Health::Warning(_) => "warning",
        Health::Poisoned(_) => "poisoned",
    };
    let health = states.into_iter().map(|state| ([("state", state.to_owned())], u64::from(state == now)));
    out.gauges("hindcast_pool_health", "1 for the present state of the pool.", health)?;
    out.gauge("hindcast_pool_capacity_bytes", "Capacity of the physical volumes.", info.capacity)?;
    out.gauge("hindcast_pool_used_bytes", "Bytes of extents in use.", info.used)?;
    if let Some(available) = info.data_available {
        let what =
            "Bytes available in the data directory's file system, where histories and the catalog grow.";
        out.gauge("hindcast_data_available_bytes", what, available)?;
    }
    out.gauge("hindcast_pool_available_bytes", "Bytes available for new writes.", info.available)?;
    out.gauge(
        "hindcast_pool_reserved_bytes",
        "Bytes reserved for writes that are not yet in place.",
        info.reserved,
    )?;
    out.gauge("hindcast_pool_provisioned_bytes", "Sum of the sizes of all volumes.", info.provisioned)?;
    out.gauge("hindcast_volumes", "Number of volumes.", info.volumes)
}

fn physical_volumes(out: &mut Out<'_>, pvs: &[PvInfo]) -> fmt::Result {
    let each = |value: fn(&PvInfo) -> u64| pvs.iter().map(move |pv| ([("pv", pv.path.clone())], value(pv)));
    out.gauges("hindcast_pv_size_bytes", "Usable bytes of a physical volume.", each(|pv| pv.size))?;
    out.gauges("hindcast_pv_used_bytes", "Bytes in use on a physical volume.", each(|pv| pv.used))?;
    out.gauges(
        "hindcast_pv_read_errors",
        "Reads of a physical volume that failed since the start.",
        each(|pv| pv.read_errors),
    )?;
    out.gauges(
        "hindcast_pv_failed",
        "1 when a write to a physical volume has failed and the pool writes no more data to it.",
        each(|pv| u64::from(pv.failure.is_some())),
    )?;
    out.gauges(
        "hindcast_pv_draining",
        "1 while a physical volume is being drained.",
        each(|pv| u64::from(pv.draining)),
    )?;
    let members = pvs.iter().filter_map(|pv| pv.layout.as_ref()).flat_map(|layout| &layout.members);
    let members = members.map(|of| ([("member", of.path.clone())], u64::from(of.is_in)));
    out.gauges(
        "hindcast_layout_member_in",
        "1 when a member of a mirror or of a RAID-5 has all content, 0 when it is out.",
        members,
    )
}

fn engine(out: &mut Out<'_>, stats: &PoolStats) -> fmt::Result {
    let positions = [
        ("sequenced", stats.sequenced_lsn),
        ("written", stats.written_lsn),
        ("synced", stats.synced_lsn),
        ("preserved", stats.preserved_lsn),
        ("destaged", stats.destaged_lsn),
    ];
    let positions = positions.into_iter().map(|(name, lsn)| ([("position", name.to_owned())], lsn.0));
    out.gauges("hindcast_journal_lsn", "Positions of the pool in its journal.", positions)?;
    out.gauge("hindcast_journal_used_bytes", "Journal bytes in use.", stats.journal_used)?;
    out.gauge("hindcast_journal_capacity_bytes", "Journal bytes that can be used.", stats.journal_capacity)?;
    out.gauge(
        "hindcast_history_runs",
        "Runs of histories in shared segments that wait for sorting.",
        stats.history_runs,
    )?;
    out.gauge(
        "hindcast_shared_segment_bytes",
        "Bytes of the segments that histories share.",
        stats.shared_segment_bytes,
    )?;
    out.counter(
        "hindcast_history_runs_sorted",
        "Runs of histories that were moved from shared segments to their own.",
        stats.history_runs_sorted,
    )?;
    out.gauge(
        "hindcast_journal_turns",
        "Turns: parts of the journal that wait and can't share a commit.",
        stats.journal_turns,
    )?;
    out.counter("hindcast_journal_groups", "Group writes to the journal.", stats.journal_groups)?;
    out.counter("hindcast_journal_records", "Records written to the journal.", stats.journal_records)?;
    out.counter("hindcast_journal_bytes", "Bytes written to the journal.", stats.journal_bytes)?;
    out.counter(
        "hindcast_journal_backpressure_waits",
        "Number of times that a writer waited for space in the journal.",
        stats.backpressure_waits,
    )?;
    out.gauge("hindcast_staged_pieces", "Staged pieces in memory.", stats.staged_pieces)?;
    out.counter("hindcast_destage_batches", "Batches that were destaged.", stats.destage_batches)?;
    out.counter("hindcast_destage_bytes", "Bytes written to physical volumes.", stats.destage_bytes)?;
    out.counter("hindcast_allocated_bytes", "Bytes of slots newly allocated.", stats.allocated_bytes)?;
    out.counter(
        "hindcast_direct_bytes",
        "Bytes written to their slots at once, without a copy in the journal.",
        stats.direct_bytes,
    )?;
    out.gauge(
        "hindcast_referred_bytes",
        "Bytes of such writes that are not in place.",
        stats.referred_bytes,
    )?;
    out.gauge("hindcast_lent_bytes", "Bytes of slots that wait for such writes.", stats.lent_bytes)?;
    out.counter(
        "hindcast_damaged_sum_blocks",
        "Blocks of sums of data in place that were damaged when they were loaded. What they cover is not verified.",
        stats.damaged_sum_blocks,
    )?;
    out.counter("hindcast_catalog_commits", "Commits of the catalog.", stats.catalog_commits)?;
    let scrub = &stats.catalog_scrub;
    out.counter("hindcast_catalog_scrubs", "Complete verifications of the catalog.", scrub.passes)?;
    out.gauge("hindcast_catalog_damaged_blocks", "Blocks of the catalog that do not verify.", scrub.damaged)?;
    let syncs = SyncPurpose::ALL.iter().zip(stats.syncs);
    let syncs = syncs.map(|(purpose, count)| ([("purpose", purpose.name().to_owned())], count));
    out.counters("hindcast_syncs", "Completed syncs.", syncs)
}

fn damage(out: &mut Out<'_>, pool: &Pool) -> fmt::Result {
    let (bytes, places) = pool.damaged();
    out.gauge("hindcast_damaged_bytes", "Bytes in place that can't be read until they are written.", bytes)?;
    out.gauge("hindcast_damaged_places", "Places of such bytes on physical volumes.", places)?;
    let scrub = pool.data_scrub();
    out.gauge("hindcast_scrub_running", "Whether a scrub of the data is under way.", scrub.running.into())?;
    out.counter("hindcast_scrub_passes", "Complete scrubs of the data.", scrub.passes)?;
    let states = [
        ("verified", scrub.verified),
        ("unknown", scrub.unknown),
        ("adopted", scrub.adopted),
        ("damaged", scrub.damaged),
        ("unreadable", scrub.unreadable),
        ("repaired", scrub.repaired),
    ];
    let bytes = states.into_iter().map(|(state, bytes)| ([("state", state.to_owned())], bytes));
    out.gauges("hindcast_scrub_bytes", "Bytes of the current or the last scrub, by their state.", bytes)?;
    let stats = pool.stats();
    let sources = [
        ("history", stats.repaired.history),
        ("journal", stats.repaired.journal),
        ("cache", stats.repaired.cache),
        ("copies", stats.repaired.copies),
    ];
    let bytes = sources.into_iter().map(|(from, bytes)| ([("from", from.to_owned())], bytes));
    out.counters(
        "hindcast_repaired_bytes",
        "Damaged bytes repaired, by the source of their content.",
        bytes,
    )?;
    out.gauge("hindcast_bad_bytes", "Bytes of slots that are not used again after a repair.", stats.bad_bytes)
}

fn map_cache(out: &mut Out<'_>, stats: &PoolStats) -> fmt::Result {
    let of = |value| {
        std::iter::once((
            [("policy", Same::<hindcast_api::CachePolicy>::same(stats.map_cache_policy).name().to_owned())],
            value,
        ))
    };
    out.counters("hindcast_map_cache_hits", "Map look-ups answered by the cache.", of(stats.map_hits))?;
    out.counters("hindcast_map_cache_misses", "Map look-ups that read the catalog.", of(stats.map_misses))?;
    out.counters("hindcast_map_cache_evictions", "Map pages evicted.", of(stats.map_evictions))?;
    out.gauge("hindcast_map_cache_size_bytes", "Memory limit of the map cache.", stats.map_cache_size)?;
    out.gauge("hindcast_map_cache_used_bytes", "Bytes in the map cache.", stats.map_cache_used)?;
    match convert::hit_rate(stats) {
        Some(rate) => {
            out.gauge_f64("hindcast_map_cache_hit_ratio", "Hits per map look-up since the start.", rate)
        }
        None => Ok(()),
    }
}

/// A counter of [`PreserveStats`]: the end of its metric's name, its help, and its value.
type Preserved = (&'static str, &'static str, fn(&PreserveStats) -> u64);

const PRESERVED: [Preserved; 7] = [
    ("preimage_copies", "Chunks whose old content was copied for a snapshot.", |p| p.copies),
    ("preimage_copied_bytes", "Bytes copied for snapshots.", |p| p.copied_bytes),
    ("redirects", "Chunks written to another place because of a snapshot.", |p| p.redirects),
    ("redirected_bytes", "Bytes written to another place because of a snapshot.", |p| p.redirected_bytes),
    ("fill_reads", "Reads that completed a chunk that was written in part to a new place.", |p| p.fill_reads),
    ("fill_read_bytes", "Bytes that completed chunks that were written in part to a new place.", |p| {
        p.fill_bytes
    }),
    ("preserving_write_bytes", "Bytes that clients wrote into chunks that had to be preserved.", |p| {
        p.host_bytes
    }),
];

fn preservation(out: &mut Out<'_>, stats: &PreserveStats) -> fmt::Result {
    for (name, help, value) in PRESERVED {
        out.counter(&format!("hindcast_{name}"), help, value(stats))?;
    }
    match stats.space_efficiency() {
        Some(efficiency) => out.gauge_f64(
            "hindcast_space_efficiency_ratio",
            "Bytes that clients wrote into preserved chunks, divided by the bytes written to snapshot space, since the start.",
            efficiency,
        ),
        None => Ok(()),
    }
}

fn index(out: &mut Out<'_>, size: &IndexSize) -> fmt::Result {
    out.gauge("hindcast_index_map_pages", "Pages of current maps in the catalog.", size.map_pages)?;
    out.gauge(
        "hindcast_index_versions",
        "Versions of chunks in the catalog that snapshots need.",
        size.versions,
    )?;
    out.gauge("hindcast_catalog_bytes", "Size of the catalog.", size.catalog_bytes)
}

fn volumes(out: &mut Out<'_>, volumes: &[VolumeInfo]) -> fmt::Result {
    let each =
        |value: fn(&VolumeInfo) -> u64| volumes.iter().map(move |v| ([("volume", v.name.clone())], value(v)));
    out.gauges("hindcast_volume_size_bytes", "Size of a volume.", each(|v| v.size))?;
    out.gauges("hindcast_volume_allocated_bytes", "Bytes allocated to a volume.", each(|v| v.allocated))?;
    out.gauges("hindcast_volume_handles", "Open handles.", each(|v| v.handles))?;
    out.counters("hindcast_volume_reads", "Read requests.", each(|v| v.stats.reads))?;
    out.counters("hindcast_volume_read_bytes", "Bytes read.", each(|v| v.stats.read_bytes))?;
    out.counters("hindcast_volume_writes", "Write requests.", each(|v| v.stats.writes))?;
    out.counters("hindcast_volume_write_bytes", "Bytes written.", each(|v| v.stats.write_bytes))?;
    out.counters("hindcast_volume_flushes", "Flush requests.", each(|v| v.stats.flushes))?;
    out.counters("hindcast_volume_discards", "Discard requests.", each(|v| v.stats.discards))?;
    out.counters("hindcast_volume_discard_bytes", "Bytes discarded.", each(|v| v.stats.discard_bytes))?;
    out.counters(
        "hindcast_volume_staged_read_bytes",
        "Bytes of reads that came from the journal.",
        each(|v| v.stats.staged_read_bytes),
    )?;
    out.counters("hindcast_volume_errors", "Requests that failed.", each(|v| v.stats.errors))?;
    for (name, help, value) in PRESERVED {
        let each = volumes.iter().map(|v| ([("volume", v.name.clone())], value(&v.preserved)));
        out.counters(&format!("hindcast_volume_{name}"), help, each)?;
    }
    Ok(())
}

fn snapshots(out: &mut Out<'_>, app: &App) -> fmt::Result {
    // By volume: with thousands of snapshots, a line for each would be of no use.
    let mut of: BTreeMap<String, (u64, u64, u64)> =
        app.pool.volumes().into_iter().map(|v| (v.name, (0, 0, 0))).collect();
    for snapshot in app.pool.all_snapshots() {
        let (count, handles, newest) = of.entry(snapshot.volume).or_default();
        (*count, *handles) = (*count + 1, *handles + snapshot.handles);
        // They come in the order in which they were taken: a clock that was ahead makes none of
        // them the newest for ever.
        *newest = snapshot.created / 1_000_000_000;
    }
    let each = |value: fn(&(u64, u64, u64)) -> u64| {
        of.iter().map(move |(name, counts)| ([("volume", name.clone())], value(counts)))
    };
    out.gauges("hindcast_snapshots", "Snapshots of a volume.", each(|c| c.0))?;
    out.gauges("hindcast_snapshot_handles", "Open handles of a volume's snapshots.", each(|c| c.1))?;
    out.gauges(
        "hindcast_snapshot_newest_time_seconds",
        "Time of the newest snapshot of a volume, Unix time; 0 without one.",
        each(|c| c.2),
    )?;
    out.counter(
        "hindcast_snapshots_auto_deleted",
        "Snapshots deleted by the policy of their volume.",
        app.pool.stats().snapshots_auto_deleted,
    )?;
    let schedules = app.schedules.runs();
    let last = schedules.iter().map(|(name, last, _)| {
        let at = last.map_or(0, |at| u64::try_from(at.as_second()).unwrap_or(0));
        ([("schedule", name.clone())], at)
    });
    out.gauges(
        "hindcast_schedule_last_run_time_seconds",
        "Time at which a schedule last took snapshots, Unix time; 0 if it took none since the start.",
        last,
    )?;
    let failed = schedules.iter().map(|(name, _, failed)| ([("schedule", name.clone())], u64::from(*failed)));
    out.gauges("hindcast_schedule_failed", "1 when the last run of a schedule failed.", failed)
}

fn histories(out: &mut Out<'_>, pool: &Pool) -> fmt::Result {
    const SECOND: u64 = 1_000_000_000;
    let of = |v: VolumeInfo| pool.cdp(&v.name).ok().map(|info| (v.name, info));
    let kept = |(_, info): &(String, CdpInfo)| info.settings.is_some() || info.records > 0;
    let all: Vec<(String, CdpInfo)> = pool.volumes().into_iter().filter_map(of).filter(kept).collect();
    let each = |value: fn(&CdpInfo) -> u64| {
        all.iter().map(move |(name, info)| ([("volume", name.clone())], value(info)))
    };
    out.gauges(
        "hindcast_cdp_enabled",
        "1 while a volume keeps a history.",
        each(|i| u64::from(i.settings.is_some())),
    )?;
    out.gauges("hindcast_cdp_records", "Records in the CDP log.", each(|i| i.records))?;
    out.gauges(
        "hindcast_cdp_written_bytes",
        "Bytes that clients wrote in these records.",
        each(|i| i.written),
    )?;
    out.gauges("hindcast_cdp_payload_bytes", "Bytes of their content, compressed.", each(|i| i.payload))?;
    out.gauges("hindcast_cdp_stored_bytes", "Bytes of the log's files.", each(|i| i.stored))?;
    out.gauges(
        "hindcast_cdp_kept_bytes",
        "Bytes of replaced data that the history keeps where it was.",
        each(|i| i.kept),
    )?;
    out.gauges("hindcast_cdp_anchors", "Anchors.", each(|i| i.anchors))?;
    out.gauges(
        "hindcast_cdp_anchor_distance_writes",
        "Present limit of writes between two anchors; 0: no limit.",
        each(|i| i.distance.unwrap_or(0)),
    )?;
    out.gauges(
        "hindcast_cdp_window_seconds",
        "Length of the history window, from now.",
        each(|i| i.window / SECOND),
    )?;
    out.gauges(
        "hindcast_cdp_retention_seconds",
        "Configured length of the history window; 0: no limit.",
        each(|i| i.settings.and_then(|s| s.retention.time).unwrap_or(0) / SECOND),
    )?;
    out.gauges(
        "hindcast_cdp_window_short",
        "1 when the window is shorter than configured, because the limit in bytes is too low.",
        each(|i| u64::from(i.short)),
    )?;
    out.counter(
        "hindcast_cdp_compacted_bytes",
        "Bytes that logs saved by stronger compression in the background.",
        pool.stats().history_compacted,
    )
}

fn nbd(out: &mut Out<'_>, stats: &NbdStats) -> fmt::Result {
    out.gauge("hindcast_nbd_connections", "Open connections.", stats.connections as u64)?;
    out.counter("hindcast_nbd_accepted", "Connections accepted.", stats.accepted)?;
    out.counter(
        "hindcast_nbd_refused",
        "Connections that were closed because a limit was reached.",
        stats.refused,
    )?;
    out.counter(
        "hindcast_nbd_failed_negotiations",
        "Connections that ended without an export.",
        stats.failed_negotiations,
    )?;
    let traffic = &stats.traffic;
    let requests = Command::ALL.iter().map(|c| ([("command", c.name().to_owned())], traffic.requests_of(*c)));
    out.counters("hindcast_nbd_requests", "Requests received.", requests)?;
    out.counter("hindcast_nbd_errors", "Requests answered by an error.", traffic.errors)?;
    out.counter("hindcast_nbd_read_bytes", "Bytes that reads requested.", traffic.bytes_read)?;
    out.counter("hindcast_nbd_written_bytes", "Bytes that writes sent.", traffic.bytes_written)?;
    out.gauge(
        "hindcast_nbd_in_flight",
        "Requests that another thread than their connection's carried out.",
        traffic.in_flight,
    )
}

fn iscsi(out: &mut Out<'_>, stats: &IscsiStats) -> fmt::Result {
    out.gauge("hindcast_iscsi_connections", "Open connections.", stats.connections as u64)?;
    out.gauge("hindcast_iscsi_sessions", "Sessions, discovery included.", stats.sessions as u64)?;
    out.counter("hindcast_iscsi_accepted", "Connections accepted.", stats.accepted)?;
    out.counter(
        "hindcast_iscsi_refused",
        "Connections that were closed because a limit was reached.",
        stats.refused,
    )?;
    out.counter("hindcast_iscsi_failed_logins", "Logins that failed.", stats.failed_logins)?;
    out.counter(
        "hindcast_iscsi_failed_authentications",
        "Logins that failed because the initiator could not authenticate.",
        stats.failed_authentications,
    )?;
    let traffic = &stats.traffic;
    let other = traffic.commands.saturating_sub(traffic.reads).saturating_sub(traffic.writes);
    let commands = [("read", traffic.reads), ("write", traffic.writes), ("other", other)];
    let commands = commands.into_iter().map(|(kind, n)| ([("kind", kind.to_owned())], n));
    out.counters("hindcast_iscsi_commands", "SCSI commands received.", commands)?;
    out.counter("hindcast_iscsi_errors", "Commands that did not end with GOOD.", traffic.errors)?;
    out.counter(
        "hindcast_iscsi_task_management",
        "Task management requests received.",
        traffic.task_management,
    )?;
    out.counter("hindcast_iscsi_read_bytes", "Bytes sent to initiators.", traffic.bytes_read)?;
    out.counter("hindcast_iscsi_written_bytes", "Bytes received from initiators.", traffic.bytes_written)?;
    out.counter("hindcast_iscsi_digest_errors", "Digest errors.", traffic.digest_errors)?;
    out.counter("hindcast_iscsi_rejects", "PDUs that were rejected.", traffic.rejects)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Latencies;
    use crate::testing;
    use hindcast_engine::device::BlockDevice;
    use prometheus_client::encoding::text;

    struct Durations(Latencies, Vec<VolumeInfo>);

    impl fmt::Debug for Durations {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Durations")
        }
    }

    impl Collector for Durations {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
            durations(&mut Out(encoder), &self.0.read(|_| true), &self.1)
        }
    }

    #[test]
    fn a_volume_has_a_sum_and_a_number_and_no_buckets() {
        let (_dir, pool) = testing::pool();
        let volume = testing::create(&pool, "v");
        let times = Latencies::default();
        let device = times.timed(Protocol::Nbd, volume.uuid, pool.open_volume("v", false).unwrap());
        device.answered(RequestKind::Read, std::time::Duration::from_millis(1), 1);
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Durations(times, vec![volume])));
        let mut text = String::new();
        text::encode(&mut text, &registry).unwrap();
        call_summary(&mut text);
        let of_volume: Vec<&str> = text.lines().filter(|line| line.contains(OF_VOLUME)).collect();
        assert_eq!(of_volume.len(), 4, "{of_volume:?}");
        assert_eq!(of_volume[1], format!("# TYPE {OF_VOLUME} summary"));
        assert!(of_volume[2].starts_with(&format!("{OF_VOLUME}_sum{{volume=\"v\"}} 0.")), "{of_volume:?}");
        assert_eq!(of_volume[3], format!("{OF_VOLUME}_count{{volume=\"v\"}} 1"));
        // The histograms by protocol and operation end with a bucket that has everything.
        let all = "hindcast_request_duration_seconds_bucket{le=\"+Inf\",protocol=\"nbd\",op=\"read\"} 1";
        assert!(text.lines().any(|line| line == all), "{text}");
    }
}
