//! Measures what many volumes cost, and how each cost grows with their number. The costs are those
//! of creating the volumes, of a batch in which each volume got one small write, of a snapshot of
//! all volumes, of opening the pool, of memory, of open files, and of lists.
//!
//! The volumes are measured without histories and with histories, with schedules, and with many
//! snapshots. Large empty pools follow. Their costs are opening and memory.

mod growth;
mod pass;
mod pools;
mod results;

use crate::figures::Figures;
use crate::scratch::Scratch;
use crate::{Common, units};
use anyhow::{Result, ensure};
use pass::Pass;
use results::{Kind, Results};
use std::fmt;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Few volumes and small pools, to check that everything works.
    #[arg(long)]
    quick: bool,
    /// Numbers of volumes, separated by commas.
    #[arg(long, value_delimiter = ',')]
    volumes: Vec<usize>,
    /// Seconds that one number of volumes may take without histories, and again with histories.
    /// What is not measured by then is left out, and the report says so.
    #[arg(long, default_value_t = 420)]
    limit: u64,
    /// Number of snapshots of each volume in the measurement with many snapshots.
    #[arg(long, default_value_t = 10)]
    snapshots: usize,
    /// Sizes of empty pools, separated by commas.
    #[arg(long, value_delimiter = ',', value_parser = units::parse_size)]
    pools: Vec<u64>,
    /// Size of Hindcast's journal.
    #[arg(long, default_value = "1G", value_parser = units::parse_size)]
    journal: u64,
    /// Run only the parts whose name contains this: without, histories, pools. Schedules and many
    /// snapshots belong to the part `without`.
    #[arg(long)]
    only: Option<String>,
}

impl Args {
    fn wants(&self, part: &str) -> bool {
        self.only.as_ref().is_none_or(|only| part.contains(only.as_str()))
    }

    /// Returns the numbers of volumes, in ascending order.
    fn counts(&self) -> Result<Vec<usize>> {
        let default: &[usize] = if self.quick { &[1, 10, 100] } else { &[1, 100, 1000, 10_000] };
        let mut counts = if self.volumes.is_empty() { default.to_vec() } else { self.volumes.clone() };
        counts.sort_unstable();
        counts.dedup();
        ensure!(counts.iter().all(|n| (1..=pass::MOST).contains(n)), "volumes: from 1 to {}", pass::MOST);
        Ok(counts)
    }

    /// Returns the sizes of the pools in bytes, in ascending order.
    fn pools(&self) -> Vec<u64> {
        let default: &[u64] = if self.quick { &[1, 4] } else { &[1, 10, 100] };
        let mut sizes: Vec<u64> = default.iter().map(|size| size << 40).collect();
        if !self.pools.is_empty() {
            sizes.clone_from(&self.pools);
        }
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}

/// The time when a pass has to be over.
#[derive(Debug, Clone, Copy)]
struct Deadline {
    start: Instant,
    limit: Duration,
}

impl Deadline {
    /// Fails with [`Late`] if the time is over.
    fn check(self) -> Result<()> {
        if self.start.elapsed() > self.limit {
            return Err(Late(self.limit).into());
        }
        Ok(())
    }
}

/// The error of a pass that took longer than its limit.
#[derive(Debug)]
struct Late(Duration);

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "took longer than {} s", self.0.as_secs())
    }
}

impl std::error::Error for Late {}

/// Runs the benchmark and writes the report.
pub(crate) fn run(common: &Common, args: &Args) -> Result<()> {
    let counts = args.counts()?;
    let scratch = Scratch::new(&common.dir)?;
    let mut figures = Figures::default();
    let mut results = Results::default();
    let start = Instant::now();
    for volumes in &counts {
        for histories in [false, true] {
            if args.wants(if histories { "histories" } else { "without" }) {
                one_pass(common, args, &scratch, (*volumes, histories), &mut results, &mut figures)?;
            }
        }
    }
    results.report(&counts, &mut figures);
    if args.wants("pools") {
        pools::run(common, args, &scratch, &mut figures)?;
    }
    figures.remark(remarks(args));
    let options = if common.serve_args.is_empty() {
        "as it is unless told otherwise".to_owned()
    } else {
        common.serve_args.join(" ")
    };
    let took = start.elapsed().as_secs();
    let title = format!("journal {}, server {options}; all of it took {took} s", units::mib(args.journal));
    figures.write(common.out.as_deref(), &title, false)
}

/// Takes all measurements of one pool. A pass that takes too long is reported, and is no failure.
fn one_pass(
    common: &Common,
    args: &Args,
    scratch: &Scratch,
    (volumes, histories): (usize, bool),
    results: &mut Results,
    figures: &mut Figures,
) -> Result<()> {
    let kind = if histories { Kind::Histories } else { Kind::Plain };
    let deadline = Deadline { start: Instant::now(), limit: Duration::from_secs(args.limit) };
    eprintln!("{volumes} volumes {}", kind.name());
    let mut pass = Pass::begin(common, args, scratch, (volumes, kind), deadline)?;
    if let Err(error) = pass.run(args, results) {
        let Some(late) = error.downcast_ref::<Late>() else { return Err(error) };
        let (made, doing) = (pass.made(), pass.kind());
        figures.remark(format!(
            "**Left out**: {volumes} volumes {}: {late}; {made} volumes were there by then. What is not in the tables was not \
             measured.",
            doing.name()
        ));
        // The kinds that the pass did not reach are left out too.
        let kinds = Kind::ALL.iter().skip_while(|kind| **kind != doing);
        kinds.filter(|kind| (**kind == Kind::Histories) == histories).for_each(|kind| {
            results.leave_out(*kind, volumes);
        });
    }
    eprintln!("  {volumes} volumes {} took {:.1?}", kind.name(), deadline.start.elapsed());
    pass.end()
}

fn remarks(args: &Args) -> String {
    format!(
        "Volumes are thin, of 1 GiB and chunks of 16 KiB; histories are `parity`; a schedule has ten volumes, and none is due \
         during the run. Many snapshots are {} more of each volume. What a batch costs is the time that `hindcast pool drain PV --cancel` \
         takes, which first carries out all that waits, less the median of what it takes when nothing waits. A batch takes at most 8,192 \
         map pages, so that with one of each volume 10,000 volumes are two batches. How long the disk takes for a sync swings on a \
         shared machine, and what waits for syncs with it: compare `a sync of the disk itself` before comparing sizes. A request takes snapshots of at most 200 volumes at \
         one instant: that of more volumes is several requests, one after another. Growth is the slope of the logarithm of the cost \
         against that of the number, between the last two numbers: below 0.15 flat, below 0.8 less than linear, up to 1.2 linear. \
         No limit of the server had to be raised: clients connect 8 at a time, and schedules and requests are as large as it \
         allows.",
        args.snapshots
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn parse(words: &[&str]) -> Args {
        Command::parse_from([&["scale"], words].concat()).args
    }

    #[test]
    fn numbers_are_lists() {
        assert_eq!(parse(&[]).counts().unwrap(), [1, 100, 1000, 10_000]);
        assert_eq!(parse(&["--volumes", "100,1,100"]).counts().unwrap(), [1, 100]);
        assert!(parse(&["--volumes", "0"]).counts().is_err());
        assert!(parse(&["--volumes", "100000"]).counts().is_err());
        assert!(Command::try_parse_from(["scale", "--volumes", "many"]).is_err());
        assert_eq!(parse(&["--pools", "100T,512G"]).pools(), [512 << 30, 100 << 40]);
        assert_eq!(parse(&["--quick"]).counts().unwrap(), [1, 10, 100]);
    }

    #[test]
    fn parts_are_chosen() {
        let only = parse(&["--only", "histories"]);
        assert!(only.wants("histories") && !only.wants("without") && parse(&[]).wants("pools"));
    }

    #[test]
    fn a_pass_can_be_late() {
        let now = Instant::now();
        assert!(Deadline { start: now, limit: Duration::from_secs(3600) }.check().is_ok());
        std::thread::sleep(Duration::from_millis(2));
        let late = Deadline { start: now, limit: Duration::from_millis(1) }.check().unwrap_err();
        assert!(late.downcast_ref::<Late>().is_some());
    }
}
