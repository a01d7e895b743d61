//! Measures the creation of snapshots beside browsers that show the console, and one client that
//! logs in again and again.
//!
//! Each round has a part with the browsers and a part without them. The order of the two changes
//! from round to round, so that neither is always the second. A ratio compares the parts of a
//! round.

use super::{Args, Rig, many};
use crate::browser::Browser;
use crate::figures::{Figures, Goal};
use crate::fio::{self, Amount, Flush, Job};
use crate::samples::median;
use crate::scratch::Scratch;
use crate::server::Hindcast;
use crate::{Common, units};
use anyhow::{Context, Result};
use hindcast_api::{CreateUser, Encoding, PatchCdp, PatchVolume, Role};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const SECTION: &str = "browsers";
const VOLUME: &str = "shown";
const PASSWORD: &str = "a password of this benchmark";
/// Time between creations.
const BETWEEN: Duration = Duration::from_millis(20);
/// Writes per second that the timelines show.
const WRITES: u64 = 500;
/// Time until all browsers show their pages.
const ARRIVAL: Duration = Duration::from_secs(1);

/// Times of creations in milliseconds, sorted.
struct Times(Vec<f64>);

impl Times {
    fn at(&self, share: f64) -> f64 {
        let place = (self.0.len() as f64 * share) as usize;
        self.0.get(place).or(self.0.last()).copied().unwrap_or(f64::NAN)
    }
}

/// Runs the benchmark and writes the report.
pub(super) fn run(common: &Common, args: &Args, browsers: usize) -> Result<()> {
    let scope = &args.scope;
    let scratch = Scratch::new(&common.dir)?;
    let dir = scratch.join("");
    let hindcast = Hindcast::new(common, &dir, scope.size * 4, scope.journal)?.with_api_over_tcp();
    let server = hindcast.start(VOLUME)?;
    let address = hindcast.api_over_tcp()?;
    let rig = Rig { args, hindcast, server, scratch: &scratch };
    rig.hindcast.create_volume(VOLUME, scope.size, 16 << 10)?;
    let cdp = PatchCdp { encoding: Some(Encoding::Parity), ..PatchCdp::default() };
    rig.api().patch_volume(VOLUME, &PatchVolume { cdp: Some(cdp), ..PatchVolume::default() })?;
    for number in 0..=browsers {
        let (name, password) = (name_of(number), PASSWORD.to_owned());
        rig.api().create_user(&CreateUser { name, role: Role::Viewer, password })?;
    }
    let mut figures = Figures::default();
    let mut ratios = (Vec::new(), Vec::new());
    for round in 0..scope.rounds * 3 {
        let (mut alone, mut beside) = (None, None);
        for with in [round % 2 == 1, round % 2 == 0] {
            let number = if with { browsers } else { 0 };
            let times = part(&rig, address, number, round)?;
            *(if with { &mut beside } else { &mut alone }) = Some(times);
        }
        let (alone, beside) = alone.zip(beside).context("a round has two parts")?;
        for (what, times) in [("alone", &alone), ("beside browsers", &beside)] {
            let of = |share| times.at(share);
            let what = format!("round {}: median of {} creations {what}", round + 1, times.0.len());
            figures.add(SECTION, what, of(0.5), "ms", Goal::None);
            let what = format!("round {}: 99th percentile", round + 1);
            figures.add(SECTION, what, of(0.99), "ms", Goal::None);
        }
        ratios.0.push(beside.at(0.5) / alone.at(0.5));
        ratios.1.push(beside.at(0.99) / alone.at(0.99));
    }
    figures.add(SECTION, "ratio of the medians".into(), median(ratios.0), "×", Goal::None);
    figures.add(SECTION, "ratio of the 99th percentiles".into(), median(ratios.1), "×", Goal::None);
    drop(rig);
    let title = format!(
        "{} volume, journal {}, {browsers} browsers, rounds: {}",
        units::mib(scope.size),
        units::mib(scope.journal),
        scope.rounds * 3
    );
    figures.write(common.out.as_deref(), &title, !scope.quick)
}

fn name_of(number: usize) -> String {
    format!("browser-{number}")
}

/// Creates snapshots beside a load and `browsers` browsers. Returns the times of the creations.
fn part(rig: &Rig<'_>, address: SocketAddr, browsers: usize, round: usize) -> Result<Times> {
    let ended = AtomicBool::new(false);
    let log_ins = AtomicU64::new(0);
    let times = std::thread::scope(|scope| -> Result<Times> {
        let mut clients = Vec::new();
        for number in 0..browsers {
            let ended = &ended;
            let browser = Browser::log_in(address, &name_of(number), PASSWORD)?;
            clients.push(scope.spawn(move || show(&browser, ended)));
        }
        if browsers > 0 {
            clients.push(scope.spawn(|| log_in_again(address, &name_of(browsers), &ended, &log_ins)));
            std::thread::sleep(ARRIVAL);
        }
        let measured = create(rig, round);
        ended.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().map_err(|_| anyhow::anyhow!("a browser panicked"))??;
        }
        measured
    });
    if browsers > 0 {
        eprintln!("round {}: {} log-ins beside the browsers", round + 1, log_ins.into_inner());
    }
    rig.settle()?;
    times
}

/// Shows the console: two streams, and pages that are read again and again.
fn show(browser: &Browser, ended: &AtomicBool) -> Result<()> {
    std::thread::scope(|scope| {
        let streams = ["/live", "/events"].map(|path| scope.spawn(move || browser.follow(path, ended)));
        browser.poll(VOLUME, ended)?;
        for stream in streams {
            stream.join().map_err(|_| anyhow::anyhow!("a stream panicked"))??;
        }
        Ok(())
    })
}

/// Logs in again and again. The server hashes the password each time.
fn log_in_again(address: SocketAddr, name: &str, ended: &AtomicBool, log_ins: &AtomicU64) -> Result<()> {
    while !ended.load(Ordering::Relaxed) {
        Browser::log_in(address, name, PASSWORD)?;
        log_ins.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Creates snapshots while a few writes go on, and deletes them.
fn create(rig: &Rig<'_>, round: usize) -> Result<Times> {
    let seconds = if rig.args.scope.quick { 3 } else { 10 };
    let job = Job {
        amount: Amount::Seconds(seconds),
        flush: Flush::Never,
        rate: Some(WRITES),
        ..Job::writes("randwrite", 4096, 4, 0, round as u64)
    };
    let (mut times, mut names) = (Vec::new(), Vec::new());
    let load = fio::spawn(&job, &rig.hindcast.export(VOLUME), &rig.dir())?;
    load.wait(BETWEEN, || {
        let name = format!("r{round}-{}", names.len());
        times.push(rig.snapshot(VOLUME, &name)?.as_secs_f64() * 1000.0);
        names.push(name);
        Ok(())
    })?;
    for some in names.chunks(many::AT_ONCE) {
        rig.delete(VOLUME, some)?;
    }
    times.sort_by(f64::total_cmp);
    Ok(Times(times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_few_and_of_no_times() {
        let times = Times(vec![1.0, 2.0, 3.0]);
        assert_eq!((times.at(0.5), times.at(0.99), times.at(1.0)), (2.0, 3.0, 3.0));
        assert!(Times(Vec::new()).at(0.5).is_nan());
    }
}
