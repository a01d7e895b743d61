//! `hindcast volume stats`.

use crate::failure::Failure;
use crate::output::{line, list, properties};
use crate::session::Session;
use hindcast_api::{Preservation, Size, VolumeStatistics, VolumeStats};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Length of the longest bar in characters.
const BAR: u64 = 40;

const EXAMPLES: &str = "\
Examples:
  hindcast volume stats                          totals since the server started
  hindcast volume stats db                       the cost of snapshots, and requests by region
  hindcast volume stats db --watch 2             rates, every 2 seconds
  hindcast volume stats --watch 1 -o json | jq   one JSON line per interval";

/// Show the requests and bytes of all volumes; of one volume, also the cost of its snapshots and
/// the regions that requests go to
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Name of the volume [default: all volumes]
    name: Option<String>,
    /// Show rates every SECONDS seconds, 0.1 to 86400; 1 if no number is given
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
    watch: Option<Duration>,
    /// End after N intervals [default: run until interrupted]
    #[arg(long, value_name = "N", requires = "watch")]
    count: Option<u64>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.1..=86400.0).contains(&value) => Ok(Duration::from_secs_f64(value)),
        _ => Err("an interval is 0.1 to 86400 seconds".into()),
    }
}

pub(crate) fn run(args: &Args, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    match (&args.name, args.watch) {
        (name, Some(interval)) => watch(session, name.as_deref(), interval, args.count.unwrap_or(u64::MAX)),
        (Some(name), None) => output.show(&client.volume_statistics(name)?, details),
        (None, None) => output.show(&samples(session, None)?, |samples| totals(samples)),
    }
}

fn details(stats: &VolumeStatistics) -> String {
    let VolumeStatistics { name, requests: r, preservation: p, index, region_size, .. } = stats;
    let bytes = |count: u64, what: &str, bytes: u64| format!("{count} {what}, {}", Size(bytes));
    let staged = if r.staged_read_bytes > 0 {
        format!(", {} of it from the journal", Size(r.staged_read_bytes))
    } else {
        String::new()
    };
    let mut text = properties([
        ("name", name.clone()),
        ("reads", bytes(r.reads, "requests", r.read_bytes) + &staged),
        ("writes", bytes(r.writes, "requests", r.write_bytes)),
        ("flushes", r.flushes.to_string()),
        ("discards", bytes(r.discards, "requests", r.discard_bytes)),
        ("errors", r.errors.to_string()),
        ("pre-image copies", bytes(p.copies, "chunks", p.copied_bytes)),
        ("redirects", bytes(p.redirects, "chunks", p.redirected_bytes)),
        ("fill reads", bytes(p.fill_reads, "parts of chunks", p.fill_bytes)),
        ("space efficiency", efficiency(p)),
        (
            "index",
            format!("{} for {} chunks and {} versions", Size(index.bytes), index.chunks, index.versions),
        ),
        ("region", Size(*region_size).to_string()),
    ]);
    let regions = regions(stats);
    if !regions.is_empty() {
        text.push_str("\n\n");
        text.push_str(&regions);
    }
    text
}

/// Formats the space efficiency: bytes that clients wrote, divided by the bytes that were therefore
/// written to snapshot space.
pub(crate) fn efficiency(of: &Preservation) -> String {
    of.space_efficiency.map_or_else(|| "-".into(), |ratio| format!("{:.1} %", ratio * 100.0))
}

/// Makes one line for each region that was touched, with a bar. Reads are dark, writes are light.
fn regions(stats: &VolumeStatistics) -> String {
    let most = stats.regions.iter().map(|r| r.reads + r.writes).max().unwrap_or(0);
    if most == 0 {
        return String::new();
    }
    let length = |count: u64| (u128::from(count) * u128::from(BAR)).div_ceil(u128::from(most)) as usize;
    let rows = stats.regions.iter().enumerate().filter(|(_, r)| r.reads + r.writes > 0).map(|(at, r)| {
        let reads = length(r.reads);
        let writes = length(r.reads + r.writes) - reads;
        vec![
            Size(at as u64 * stats.region_size).to_string(),
            r.reads.to_string(),
            r.writes.to_string(),
            "█".repeat(reads) + &"░".repeat(writes),
        ]
    });
    list(&["REGION AT", "READS", "WRITES", "█ READS  ░ WRITES"], &[0, 1, 2], rows)
}

/// Counters of one volume at one instant.
#[derive(Debug, Clone, Serialize)]
struct Sample {
    name: String,
    #[serde(flatten)]
    stats: VolumeStats,
}

/// Requests and bytes of one volume per second, over one interval.
#[derive(Debug, Serialize, PartialEq)]
struct Rate {
    name: String,
    reads_per_second: f64,
    read_bytes_per_second: f64,
    writes_per_second: f64,
    write_bytes_per_second: f64,
    flushes_per_second: f64,
    discards_per_second: f64,
    errors_per_second: f64,
}

fn samples(session: &Session, name: Option<&str>) -> Result<Vec<Sample>, Failure> {
    let volumes = match name {
        Some(name) => vec![session.client.volume(name)?],
        None => session.client.volumes()?,
    };
    Ok(volumes.into_iter().map(|v| Sample { name: v.name, stats: v.stats }).collect())
}

fn totals(samples: &[Sample]) -> String {
    let rows = samples.iter().map(|Sample { name, stats: s }| {
        vec![
            name.clone(),
            s.reads.to_string(),
            Size(s.read_bytes).to_string(),
            Size(s.staged_read_bytes).to_string(),
            s.writes.to_string(),
            Size(s.write_bytes).to_string(),
            s.flushes.to_string(),
            s.discards.to_string(),
            Size(s.discard_bytes).to_string(),
            s.errors.to_string(),
        ]
    });
    let heading = [
        "NAME",
        "READS",
        "READ",
        "STAGED",
        "WRITES",
        "WRITTEN",
        "FLUSHES",
        "DISCARDS",
        "DISCARDED",
        "ERRORS",
    ];
    list(&heading, &[1, 2, 3, 4, 5, 6, 7, 8, 9], rows)
}

fn watch(session: &Session, name: Option<&str>, interval: Duration, count: u64) -> Result<(), Failure> {
    let mut last = samples(session, name)?;
    let mut at = Instant::now();
    for _ in 0..count {
        std::thread::sleep(interval.saturating_sub(at.elapsed()));
        let now = samples(session, name)?;
        let elapsed = at.elapsed();
        at = Instant::now();
        let rates = rates(&last, &now, elapsed.as_secs_f64());
        if session.output.is_json() {
            session.output.json_line(&rates)?;
        } else {
            line(&format_args!("{}\n", rate_table(&rates)))?;
        }
        last = now;
    }
    Ok(())
}

/// Computes rates from two samples. A volume that is new in `after` counts from zero. A counter
/// that went down also counts from zero: the server restarted, or the name belongs to a new volume.
fn rates(before: &[Sample], after: &[Sample], seconds: f64) -> Vec<Rate> {
    let rate = |sample: &Sample| {
        let old = before.iter().find(|s| s.name == sample.name).map(|s| s.stats).unwrap_or_default();
        let per_second = |value: fn(&VolumeStats) -> u64| {
            let (new, old) = (value(&sample.stats), value(&old));
            new.checked_sub(old).unwrap_or(new) as f64 / seconds.max(f64::EPSILON)
        };
        Rate {
            name: sample.name.clone(),
            reads_per_second: per_second(|s| s.reads),
            read_bytes_per_second: per_second(|s| s.read_bytes),
            writes_per_second: per_second(|s| s.writes),
            write_bytes_per_second: per_second(|s| s.write_bytes),
            flushes_per_second: per_second(|s| s.flushes),
            discards_per_second: per_second(|s| s.discards),
            errors_per_second: per_second(|s| s.errors),
        }
    };
    after.iter().map(rate).collect()
}

fn rate_table(rates: &[Rate]) -> String {
    let mib = |bytes: f64| format!("{:.1}", bytes / f64::from(1 << 20));
    let rows = rates.iter().map(|r| {
        vec![
            r.name.clone(),
            format!("{:.0}", r.reads_per_second),
            mib(r.read_bytes_per_second),
            format!("{:.0}", r.writes_per_second),
            mib(r.write_bytes_per_second),
            format!("{:.0}", r.flushes_per_second),
            format!("{:.0}", r.discards_per_second),
            format!("{:.0}", r.errors_per_second),
        ]
    });
    let heading = ["NAME", "READ/S", "MIB/S", "WRITE/S", "MIB/S", "FLUSH/S", "DISCARD/S", "ERROR/S"];
    list(&heading, &[1, 2, 3, 4, 5, 6, 7], rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_api::{Preservation, Region, VolumeIndex};

    #[test]
    fn rates_survive_restarts_and_new_volumes() {
        let sample = |name: &str, reads| Sample {
            name: name.into(),
            stats: VolumeStats { reads, ..VolumeStats::default() },
        };
        let rates = rates(
            &[sample("a", 10), sample("b", 10)],
            &[sample("a", 30), sample("b", 4), sample("c", 2)],
            2.0,
        );
        let reads: Vec<f64> = rates.iter().map(|r| r.reads_per_second).collect();
        assert_eq!(reads, [10.0, 2.0, 1.0]);
    }

    fn statistics(counts: &[(u64, u64)]) -> VolumeStatistics {
        VolumeStatistics {
            name: "db".into(),
            requests: VolumeStats::default(),
            preservation: Preservation {
                space_efficiency: Some(0.25),
                fill_reads: 3,
                fill_bytes: 4096,
                ..Preservation::default()
            },
            index: VolumeIndex { chunks: 2, versions: 1, bytes: 81 },
            region_size: 1 << 20,
            regions: counts.iter().map(|(reads, writes)| Region { reads: *reads, writes: *writes }).collect(),
        }
    }

    #[test]
    fn regions_have_bars_of_their_share() {
        let text = regions(&statistics(&[(40, 0), (0, 0), (10, 10), (0, 1)]));
        let bars: Vec<(usize, usize)> =
            text.lines().skip(1).map(|line| (line.matches('█').count(), line.matches('░').count())).collect();
        assert_eq!(bars, [(40, 0), (10, 10), (0, 1)]);
        assert!(text.contains("2 MiB     10      10"), "{text}");
        assert_eq!(regions(&statistics(&[(0, 0), (0, 0)])), "");
        let huge = regions(&statistics(&[(u64::MAX / 4, u64::MAX / 4), (1, 0)]));
        assert!(huge.lines().all(|line| line.matches(['█', '░']).count() <= 41), "{huge}");
    }

    #[test]
    fn details_tell_what_snapshots_cost() {
        let text = details(&statistics(&[(1, 0)]));
        for part in ["25.0 %", "3 parts of chunks, 4 KiB", "81 B for 2 chunks and 1 versions", "1 MiB"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
