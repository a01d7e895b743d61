//! Measures the costs and benefits of a history of every write: speed and CPU beside a volume
//! without history, space for each encoding, views of any moment, recovery to any moment, and a
//! snapshot a minute as the alternative (near-CDP).

mod capture;
mod cost;
mod near;
mod postgres;
mod recovery;
mod space;
mod views;

use crate::args::Scope;
use crate::figures::Figures;
use crate::nbd::Client;
use crate::scratch::Scratch;
use crate::server::Hindcast;
use crate::{Common, rig, units};
use anyhow::{Context, Result, ensure};
use hindcast_api::{Anchors, CdpStatus, Compression, Encoding, PatchCdp, PatchVolume};
use std::time::{Duration, Instant};

/// Longest time that the log may lag behind the last write.
const LOG_LIMIT: Duration = Duration::from_secs(300);
/// Least size of a pool in bytes. A pool takes only the space that is used.
const POOL: u64 = 16 << 30;

#[derive(clap::Args)]
#[command(mut_arg("rounds", |rounds| {
    rounds.help("Rounds of bursts; half as many of the long sustained runs")
}))]
#[command(mut_arg("size", |size| {
    size.default_value("1G").default_value_if("quick", "true", "128M").help(
        "Size of the volumes of `cost`, fully written before the first run; the others use parts of it",
    )
}))]
#[command(mut_arg("journal", |journal| journal.default_value_if("quick", "true", "64M")))]
#[command(mut_arg("only", |only| {
    only.help("Only parts whose name contains this: cost, space, views, recovery, near")
}))]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) scope: Scope,
    /// Records of the history whose views are opened.
    #[arg(long, default_value = "10000000", default_value_if("quick", "true", "200000"))]
    records: u64,
    /// Writes between two anchors of that history.
    #[arg(long, default_value_t = 500_000)]
    anchor: u64,
    /// Writes of the history that is recovered.
    #[arg(long, default_value = "600000", default_value_if("quick", "true", "40000"))]
    writes: u64,
    /// Snapshots of near-CDP; 10080 are one a minute for a week.
    #[arg(long, default_value = "10080", default_value_if("quick", "true", "200"))]
    snapshots: u64,
    /// Seconds that pgbench runs.
    #[arg(long, default_value = "30", default_value_if("quick", "true", "5"))]
    pgbench: u64,
    /// Run only this load of `cost`.
    #[arg(long)]
    load: Option<cost::Load>,
}

type Rig<'a> = rig::Rig<'a, Args>;

/// Returns a change of a volume's settings that keeps history in this way.
fn keep(encoding: Encoding, compression: Compression, anchors: Anchors) -> PatchCdp {
    PatchCdp {
        encoding: Some(encoding),
        compression: Some(compression),
        anchors: Some(anchors),
        ..PatchCdp::default()
    }
}

impl Rig<'_> {
    /// Creates a volume without history.
    fn create(&self, name: &str, size: u64) -> Result<()> {
        self.hindcast.create_volume(name, size, 16 << 10)
    }

    /// Keeps the history of a volume from now on.
    fn keep(&self, volume: &str, how: PatchCdp) -> Result<()> {
        self.api().patch_volume(volume, &PatchVolume { cdp: Some(how), ..PatchVolume::default() })?;
        Ok(())
    }

    fn connect(&self, export: &str) -> Result<Client> {
        self.hindcast.connect(export)
    }

    /// Waits until all of the `bytes` that clients wrote are in the log of a volume. Returns the
    /// state of the history then.
    fn logged(&self, volume: &str, bytes: u64) -> Result<CdpStatus> {
        let start = Instant::now();
        loop {
            let log = self.api().cdp(volume)?;
            if log.written >= bytes {
                return Ok(log);
            }
            ensure!(
                start.elapsed() < LOG_LIMIT,
                "{volume}: {bytes} bytes were written, {} of them are in the log",
                log.written
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the LSN with which the history begins, and the LSN of the moment one millisecond
    /// ago. At rest that is the last one.
    fn window(&self, volume: &str) -> Result<(u64, u64)> {
        let from = self.api().cdp(volume)?.from.context("no history")?;
        Ok((from.lsn, self.api().moment(volume, "-1ms")?.lsn))
    }
}

/// Sorts the values, and returns the one at `share` (0 to 1) of the way from the smallest to the
/// largest. Returns NaN for no values.
fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = ((values.len() as f64 * share) as usize).min(values.len().saturating_sub(1));
    values.get(index).copied().unwrap_or(f64::NAN)
}

type Part = fn(&mut Rig<'_>, &mut Figures) -> Result<()>;

/// Runs the benchmark and writes the report.
pub(crate) fn run(common: &Common, args: &Args) -> Result<()> {
    let mut figures = Figures::default();
    let parts: [(&str, Part); 5] = [
        ("cost", cost::run),
        ("space", space::run),
        ("views", views::run),
        ("recovery", recovery::run),
        ("near", near::run),
    ];
    for (name, part) in parts {
        if !args.scope.wants(name) {
            continue;
        }
        let start = Instant::now();
        // Each part has a pool of its own, so that no part finds data of another.
        let scratch = Scratch::new(&common.dir)?;
        let pool = POOL.max(args.scope.size * 16);
        // Recompression is off. The parts measure what an encoding takes and costs by itself. The
        // compressor would also keep the server from settling between two runs.
        let hindcast = Hindcast::new(common, &scratch.join(""), pool, args.scope.journal)?
            .with("--cdp-recompress=false".to_owned());
        let server = hindcast.start("")?;
        let mut rig = Rig { args, hindcast, server, scratch: &scratch };
        part(&mut rig, &mut figures).with_context(|| format!("measure {name}"))?;
        eprintln!("{name} took {:.0?}", start.elapsed());
    }
    let title = format!(
        "{} volumes, journal {}, old history left as it is, rounds: {}",
        units::mib(args.scope.size),
        units::mib(args.scope.journal),
        args.scope.rounds
    );
    figures.write(common.out.as_deref(), &title, !args.scope.quick)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let mut values: Vec<f64> = (0..100).rev().map(f64::from).collect();
        assert_eq!(
            [0.0, 0.5, 0.99, 1.0].map(|share| percentile(&mut values, share)),
            [0.0, 50.0, 99.0, 99.0]
        );
        assert!(percentile(&mut [], 0.5).is_nan());
    }
}
