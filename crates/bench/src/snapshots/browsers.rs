//! Measures the creation of snapshots beside browsers that show the console, and one client that
//! logs in again and again.
//!
//! Each round has a part with the browsers and a part without them. A third part is the control:
//! the same browsers and log-ins use a second server, with which the first one shares only the
//! machine. The order changes from round to round, so that no part is always the last. A ratio
//! compares the parts of a round.

use super::{Args, Rig, many};
use crate::browser::Browser;
use crate::figures::{Figures, Goal};
use crate::fio::{self, Amount, Flush, Job};
use crate::samples::median;
use crate::scratch::Scratch;
use crate::server::Hindcast;
use crate::{Common, units};
use anyhow::Result;
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

/// What goes on beside the creations of a part.
#[derive(Clone, Copy, PartialEq)]
enum Beside {
    Nothing,
    Browsers,
    /// Browsers and log-ins of another server.
    Elsewhere,
}

impl Beside {
    fn name(self) -> &'static str {
        match self {
            Beside::Nothing => "alone",
            Beside::Browsers => "beside browsers",
            Beside::Elsewhere => "beside browsers of another server",
        }
    }
}

/// The server that the browsers of a part use.
struct Site {
    /// Address of the admin API.
    address: SocketAddr,
    browsers: usize,
}

/// Times of the parts of all rounds.
#[derive(Default)]
struct Parts(Vec<(usize, Beside, Times)>);

impl Parts {
    /// Returns the median over the rounds of how many times as long as in the part `than` a
    /// creation took in the part `of`, at a share of the creations.
    fn ratio(&self, of: Beside, than: Beside, share: f64) -> f64 {
        let find = |round, which| self.0.iter().find(|(r, w, _)| (*r, *w) == (round, which));
        let ratios = self.0.iter().filter(|(_, which, _)| *which == of).filter_map(|(round, _, times)| {
            find(*round, than).map(|(_, _, other)| times.at(share) / other.at(share))
        });
        median(ratios.collect())
    }

    fn report(&self, figures: &mut Figures) {
        for (round, which, times) in &self.0 {
            let what = format!("round {}: median of {} creations {}", round + 1, times.0.len(), which.name());
            figures.add(SECTION, what, times.at(0.5), "ms", Goal::None);
            let what = format!("round {}: 99th percentile", round + 1);
            figures.add(SECTION, what, times.at(0.99), "ms", Goal::None);
        }
        let pairs = [
            (Beside::Browsers, Beside::Nothing),
            (Beside::Elsewhere, Beside::Nothing),
            (Beside::Browsers, Beside::Elsewhere),
        ];
        for (of, than) in pairs {
            for (share, what) in [(0.5, "medians"), (0.99, "99th percentiles")] {
                let ratio = self.ratio(of, than, share);
                if !ratio.is_nan() {
                    let what = format!("ratio of the {what}: {} to {}", of.name(), than.name());
                    figures.add(SECTION, what, ratio, "×", Goal::None);
                }
            }
        }
    }
}

/// Runs the benchmark and writes the report.
pub(super) fn run(common: &Common, args: &Args, browsers: usize) -> Result<()> {
    let scope = &args.scope;
    let scratch = Scratch::new(&common.dir)?;
    let dir = scratch.join("");
    let hindcast = Hindcast::new(common, &dir, scope.size * 4, scope.journal)?;
    // The two servers are alike, so that a part costs the machine the same.
    let other = match args.elsewhere {
        true => Some(rig(args, hindcast.another(hindcast.binary(), &[])?, &scratch, browsers)?),
        false => None,
    };
    let own = rig(args, hindcast, &scratch, browsers)?;
    let mut parts = Parts::default();
    let mut kinds = vec![Beside::Nothing, Beside::Browsers];
    kinds.extend(other.as_ref().map(|_| Beside::Elsewhere));
    for round in 0..scope.rounds * 3 {
        for place in 0..kinds.len() {
            let which = kinds[(round + place) % kinds.len()];
            let site = match (which, &other) {
                (Beside::Elsewhere, Some(other)) => {
                    // The timelines show recent writes, as those of the first server do.
                    fio::run(&writes(2, round), &other.hindcast.export(VOLUME), &other.dir())?;
                    other.settle()?;
                    Some(Site { address: other.hindcast.api_over_tcp()?, browsers })
                }
                (Beside::Nothing, _) => None,
                _ => Some(Site { address: own.hindcast.api_over_tcp()?, browsers }),
            };
            parts.0.push((round, which, part(&own, site.as_ref(), round)?));
        }
    }
    drop((own, other));
    let mut figures = Figures::default();
    parts.report(&mut figures);
    let title = format!(
        "{} volume, journal {}, {browsers} browsers, rounds: {}",
        units::mib(scope.size),
        units::mib(scope.journal),
        scope.rounds * 3
    );
    figures.write(common.out.as_deref(), &title, !scope.quick)
}

/// Starts a server with a volume, and with a user for each browser and for the log-ins.
fn rig<'a>(args: &'a Args, hindcast: Hindcast, scratch: &'a Scratch, browsers: usize) -> Result<Rig<'a>> {
    let hindcast = hindcast.with_api_over_tcp();
    let server = hindcast.start(VOLUME)?;
    let rig = Rig { args, hindcast, server, scratch };
    rig.hindcast.create_volume(VOLUME, args.scope.size, 16 << 10)?;
    let cdp = PatchCdp { encoding: Some(Encoding::Parity), ..PatchCdp::default() };
    rig.api().patch_volume(VOLUME, &PatchVolume { cdp: Some(cdp), ..PatchVolume::default() })?;
    for number in 0..=browsers {
        let (name, password) = (name_of(number), PASSWORD.to_owned());
        rig.api().create_user(&CreateUser { name, role: Role::Viewer, password })?;
    }
    Ok(rig)
}

fn name_of(number: usize) -> String {
    format!("browser-{number}")
}

/// Creates snapshots beside a load, and beside the browsers of a site. Returns the times of the
/// creations.
fn part(rig: &Rig<'_>, site: Option<&Site>, round: usize) -> Result<Times> {
    let ended = AtomicBool::new(false);
    let log_ins = AtomicU64::new(0);
    let times = std::thread::scope(|scope| -> Result<Times> {
        let mut clients = Vec::new();
        if let Some(site) = site {
            for number in 0..site.browsers {
                let ended = &ended;
                let browser = Browser::log_in(site.address, &name_of(number), PASSWORD)?;
                clients.push(scope.spawn(move || show(&browser, ended)));
            }
            let log_in = || log_in_again(site.address, &name_of(site.browsers), &ended, &log_ins);
            clients.push(scope.spawn(log_in));
            std::thread::sleep(ARRIVAL);
        }
        let measured = create(rig, round);
        ended.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().map_err(|_| anyhow::anyhow!("a browser panicked"))??;
        }
        measured
    });
    if site.is_some() {
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

/// Returns a load of a few writes.
fn writes(seconds: u64, round: usize) -> Job {
    Job {
        amount: Amount::Seconds(seconds),
        flush: Flush::Never,
        rate: Some(WRITES),
        ..Job::writes("randwrite", 4096, 4, 0, round as u64)
    }
}

/// Creates snapshots while a few writes go on, and deletes them.
fn create(rig: &Rig<'_>, round: usize) -> Result<Times> {
    let seconds = if rig.args.scope.quick { 3 } else { 10 };
    let (mut times, mut names) = (Vec::new(), Vec::new());
    let load = fio::spawn(&writes(seconds, round), &rig.hindcast.export(VOLUME), &rig.dir())?;
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

    #[test]
    fn a_ratio_is_of_parts_of_one_round() {
        let part = |round, which, time| (round, which, Times(vec![time]));
        let parts = Parts(vec![
            part(0, Beside::Nothing, 1.0),
            part(0, Beside::Browsers, 3.0),
            part(1, Beside::Browsers, 40.0),
            part(1, Beside::Nothing, 10.0),
            part(2, Beside::Browsers, 500.0),
            part(2, Beside::Nothing, 100.0),
        ]);
        assert_eq!(parts.ratio(Beside::Browsers, Beside::Nothing, 0.5), 4.0);
        assert!(parts.ratio(Beside::Elsewhere, Beside::Nothing, 0.5).is_nan());
    }
}
