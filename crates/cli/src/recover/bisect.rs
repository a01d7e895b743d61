//! `hindcast recover bisect`: finds the last good moment by a command that tells good from bad.

use super::interrupt::Interrupt;
use super::mount::{Mounted, uri};
use crate::failure::Failure;
use crate::output::line;
use crate::session::Session;
use crate::when::{Here, When};
use clap::Args;
use hindcast_api::{ChangesQuery, DeleteVolume, FoundMoment, MAX_CHANGES, Recover, RecoverVolume};
use serde::Serialize;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  hindcast recover bisect db --from -2h --to -1m --mount --check 'test -s $HINDCAST_MOUNT/important.txt'
  hindcast recover bisect db --from -1d --to lsn:4711 --check 'nbdcopy \"$HINDCAST_URI\" - | grep -q important'

The search runs the --check command by sh -c, once for each moment that it tests. The environment of \
the command names the moment:
  HINDCAST_URI      NBD URI of a read-only device with the content at that moment
  HINDCAST_ADDRESS  address of that device, VOLUME@lsn:N
  HINDCAST_MOUNT    with --mount: directory where its file system is mounted, read-only
  HINDCAST_TIME     time of the moment
  HINDCAST_LSN      position of the moment in the journal
Exit code 0 means good, and 1 to 125 means bad. Any other code, or a signal, ends the search.";

/// Interval between checks whether the command has ended.
const STEP: Duration = Duration::from_millis(5);

/// Find the last moment at which a check command finds the volume good, by binary search
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Bisect {
    /// Name of the volume
    volume: String,
    /// A moment at which the volume was good
    #[arg(long, value_name = "MOMENT", value_parser = When::parse, allow_hyphen_values = true)]
    from: When,
    /// A later moment at which the volume was bad
    #[arg(long, value_name = "MOMENT", value_parser = When::parse, allow_hyphen_values = true)]
    to: When,
    /// Command that exits with 0 if the volume is good, and with 1 to 125 if it is bad
    #[arg(long, value_name = "COMMAND")]
    check: String,
    /// Mount the file system of each moment, read-only, on a temporary volume in which the file
    /// system's own journal is replayed. It needs root, nbdfuse and loop devices
    #[arg(long)]
    mount: bool,
    /// Test only moments at which clients flushed, where the content was on stable storage. The
    /// newest 4096 flushes are searched
    #[arg(long)]
    flushes: bool,
}

/// Result of the search.
#[derive(Debug, Serialize)]
struct Found {
    volume: String,
    good: FoundMoment,
    bad: FoundMoment,
    checks: u32,
    /// With --flushes: no flush is known from `good` to this moment, and there are writes between
    /// them. The search left them out.
    not_searched_until: Option<FoundMoment>,
}

impl Found {
    fn text(&self, here: &Here) -> String {
        let gap = self.not_searched_until.as_ref().map_or_else(String::new, |end| {
            format!(
                "\nnot searched: lsn:{} to lsn:{} ({}), where no flush is known; search again without --flushes",
                self.good.lsn,
                end.lsn,
                here.stamp(end.time)
            )
        });
        format!(
            "last good: {}\nfirst bad: {}{gap}\nto recover it: hindcast recover {} --to lsn:{} --as NAME",
            place(&self.good, here),
            place(&self.bad, here),
            self.volume,
            self.good.lsn
        )
    }
}

/// Returns a moment for people: its time, and the LSN, which tells moments of one second apart.
fn place(found: &FoundMoment, here: &Here) -> String {
    format!("{} (lsn:{})", here.stamp(found.time), found.lsn)
}

pub(crate) fn run(args: &Bisect, session: &Session) -> Result<(), Failure> {
    let client = &session.client;
    let from = client.moment(&args.volume, &session.moment(&args.from)?)?;
    let to = client.moment(&args.volume, &session.moment(&args.to)?)?;
    if from.lsn > to.lsn {
        return Err(Failure::usage("--from must be a moment before --to"));
    }
    if !client.volume(&args.volume)?.nbd {
        let text = format!(
            "bisect {0}: the check command needs NBD, which does not serve this volume; see `hindcast volume set {0} --nbd`",
            args.volume
        );
        return Err(Failure::Failed(text));
    }
    let interrupt = if args.mount { Interrupt::listen()? } else { Interrupt::default() };
    let mut search = Search { args, session, interrupt, checks: 0 };
    if from.size == to.size && !search.has_writes(from.lsn, to.lsn + 1)? {
        let message = format!("nothing was written to {} between --from and --to", args.volume);
        return Err(Failure::Failed(message));
    }
    if !search.is_good(from.lsn)? {
        return Err(Failure::Failed(format!(
            "{} is already bad at --from; choose an earlier moment",
            args.volume
        )));
    }
    if search.is_good(to.lsn)? {
        return Err(Failure::Failed(format!("{} is still good at --to; choose a later moment", args.volume)));
    }
    let (good, bad) = search.between(from.lsn, to.lsn)?;
    let gap = search.gap(good, bad)?;
    let at = |lsn: u64| client.moment(&args.volume, &format!("lsn:{lsn}"));
    let found = Found {
        volume: args.volume.clone(),
        good: at(good)?,
        bad: at(bad)?,
        checks: search.checks,
        not_searched_until: gap.map(at).transpose()?,
    };
    session.output.show(&found, |found| found.text(&session.here))
}

struct Search<'a> {
    args: &'a Bisect,
    session: &'a Session,
    interrupt: Interrupt,
    checks: u32,
}

impl Search<'_> {
    /// Returns the last good moment and the first bad one. Each is a moment at which the volume
    /// changed, or a bound.
    fn between(&mut self, mut good: u64, mut bad: u64) -> Result<(u64, u64), Failure> {
        loop {
            let (points, complete) = self.points(good, bad)?;
            // While there are too many writes to list, halve by number; then go from write to
            // write.
            let middle = match complete {
                false => Some(good + (bad - good) / 2).filter(|m| *m > good),
                true => points.get(points.len() / 2).copied(),
            };
            let Some(middle) = middle else {
                return Ok((good, bad));
            };
            if self.is_good(middle)? {
                good = middle;
            } else {
                bad = middle;
            }
        }
    }

    /// Returns moments after `good` and before `bad` at which the volume changed, and whether these
    /// are all.
    fn points(&self, good: u64, bad: u64) -> Result<(Vec<u64>, bool), Failure> {
        if !self.args.flushes {
            return self.writes(good, bad);
        }
        let between = self.flushes()?.into_iter().filter(|lsn| *lsn > good && *lsn < bad);
        Ok((between.collect(), true))
    }

    /// Returns the known flushes, oldest first. No flush after the oldest of them is missing.
    fn flushes(&self) -> Result<Vec<u64>, Failure> {
        let history = self.session.client.history(&self.args.volume, 1)?;
        Ok(history.flushes.iter().map(|flush| flush.lsn).collect())
    }

    /// Returns the moment before which nothing was searched, although there were writes, because no
    /// flush is known there.
    fn gap(&self, good: u64, bad: u64) -> Result<Option<u64>, Failure> {
        if !self.args.flushes {
            return Ok(None);
        }
        let known = self.flushes()?.first().copied();
        let end = known.unwrap_or(bad).min(bad);
        Ok((good < end && self.has_writes(good, end)?).then_some(end))
    }

    /// Returns the writes after `good` and before `bad`, and whether these are all.
    fn writes(&self, good: u64, bad: u64) -> Result<(Vec<u64>, bool), Failure> {
        let mut lsns = self.changes(good, bad, MAX_CHANGES)?;
        let complete = (lsns.len() as u64) < MAX_CHANGES;
        lsns.sort_unstable();
        lsns.dedup();
        Ok((lsns, complete))
    }

    fn has_writes(&self, good: u64, bad: u64) -> Result<bool, Failure> {
        Ok(!self.changes(good, bad, 1)?.is_empty())
    }

    fn changes(&self, good: u64, bad: u64, limit: u64) -> Result<Vec<u64>, Failure> {
        if bad - good < 2 {
            return Ok(Vec::new());
        }
        let query = ChangesQuery {
            length: u64::MAX,
            from: Some(format!("lsn:{}", good + 1)),
            to: Some(format!("lsn:{}", bad - 1)),
            limit,
            ..ChangesQuery::default()
        };
        let changes = self.session.client.changes(&self.args.volume, &query)?;
        Ok(changes.iter().map(|change| change.lsn).collect())
    }

    fn is_good(&mut self, lsn: u64) -> Result<bool, Failure> {
        self.interrupt.check()?;
        self.checks += 1;
        let found = self.session.client.moment(&self.args.volume, &format!("lsn:{lsn}"))?;
        let verdict = match self.args.mount {
            false => self.judge(&found, None)?,
            true => self.judge_mounted(&found)?,
        };
        if !self.session.output.is_json() {
            let word = if verdict { "good" } else { "bad" };
            line(&format_args!("{}: {word}", place(&found, &self.session.here)))?;
        }
        Ok(verdict)
    }

    /// Runs the check on a temporary volume, which exists only as long as the check runs.
    fn judge_mounted(&self, found: &FoundMoment) -> Result<bool, Failure> {
        let name = format!("bisect-{}-{}", std::process::id(), self.checks);
        let volumes = vec![RecoverVolume { volume: self.args.volume.clone(), name: name.clone() }];
        let to = format!("lsn:{}", found.lsn);
        self.session.client.recover(&Recover { volumes, to, last_flush: false, complete: None })?;
        let verdict = self.nbd_uri(&name).and_then(|uri| {
            let mounted = Mounted::new(&uri, &self.interrupt)?;
            let verdict = self.judge(found, Some(&mounted))?;
            mounted.unmount()?;
            Ok(verdict)
        });
        match (verdict, self.session.client.delete_volume(&name, DeleteVolume { force: true, now: true })) {
            (verdict, Ok(_)) => verdict,
            (Ok(_), Err(error)) => Err(error.into()),
            (Err(why), Err(error)) => Err(Failure::Failed(format!(
                "{why}; the temporary volume {name} could not be deleted: {error}"
            ))),
        }
    }

    fn nbd_uri(&self, export: &str) -> Result<String, Failure> {
        let listeners = self.session.client.status()?.listeners.nbd;
        let first = listeners.first();
        first.map(|listener| uri(listener, export)).ok_or_else(|| {
            Failure::Failed(
                "the check command needs NBD, and the server has no NBD listener: start it with --nbd".into(),
            )
        })
    }

    fn judge(&self, found: &FoundMoment, mounted: Option<&Mounted>) -> Result<bool, Failure> {
        let address = format!("{}@lsn:{}", self.args.volume, found.lsn);
        let mut command = Command::new("sh");
        command
            .args(["-c", &self.args.check])
            .stdin(Stdio::null())
            .env("HINDCAST_URI", self.nbd_uri(&address)?)
            .env("HINDCAST_ADDRESS", &address)
            .env("HINDCAST_TIME", found.time.to_string())
            .env("HINDCAST_LSN", found.lsn.to_string());
        if let Some(mounted) = mounted {
            command.env("HINDCAST_MOUNT", mounted.path());
        }
        if self.session.output.is_json() {
            // Its own output would spoil ours.
            command.stdout(Stdio::null());
        }
        let status = self.run(&mut command)?;
        match status.code() {
            Some(0) => Ok(true),
            Some(1..=125) => Ok(false),
            _ => Err(Failure::Failed(format!(
                "the check command ended with {status} at {address}; 0 means good, 1 to 125 bad"
            ))),
        }
    }

    /// Runs a command until it ends or a signal arrives.
    fn run(&self, command: &mut Command) -> Result<ExitStatus, Failure> {
        let failed = |e| Failure::Failed(format!("run the check command: {e}"));
        let mut child = command.spawn().map_err(failed)?;
        loop {
            let status = child.try_wait().map_err(failed)?;
            if let Err(interrupted) = self.interrupt.check() {
                let _ = child.kill();
                let _ = child.wait();
                return Err(interrupted);
            }
            match status {
                Some(status) => return Ok(status),
                None => std::thread::sleep(STEP),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_local_time_and_their_lsn() {
        let moment = |time: &str, lsn| FoundMoment {
            volume: "db".into(),
            lsn,
            time: time.parse().unwrap(),
            size: 1 << 20,
        };
        let found = Found {
            volume: "db".into(),
            good: moment("2026-11-22T09:41:30.123456789Z", 7),
            bad: moment("2026-11-22T09:41:30.2Z", 8),
            checks: 4,
            not_searched_until: Some(moment("2026-11-22T09:42:00Z", 9)),
        };
        let text = found.text(&Here::new(Some("Etc/GMT-1")).unwrap());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..2],
            [
                "last good: 2026-11-22 10:41:30 +01:00 (lsn:7)",
                "first bad: 2026-11-22 10:41:30 +01:00 (lsn:8)"
            ]
        );
        assert!(lines[2].contains("lsn:7 to lsn:9 (2026-11-22 10:42:00 +01:00)"), "{text}");
        assert_eq!(lines[3], "to recover it: hindcast recover db --to lsn:7 --as NAME");
    }
}
