//! `hindcast recover bisect`: the last good moment, found by a command that tells good from bad.

use super::mount::{Mounted, uri};
use crate::failure::Failure;
use crate::history::moment;
use crate::output::line;
use crate::session::Session;
use clap::Args;
use hindcast_api::{ChangesQuery, FoundMoment, Recover, RecoverVolume};
use serde::Serialize;
use std::process::{Command, Stdio};

const EXAMPLES: &str = "\
Examples:
  hindcast recover bisect db --from -2h --to -1m --mount --check 'test -s $HINDCAST_MOUNT/important.txt'
  hindcast recover bisect db --from -1d --to lsn:4711 --check 'nbdcopy \"$HINDCAST_URI\" - | grep -q important'

The command is run by sh -c, again and again, with the moment to judge in its environment:
  HINDCAST_URI      NBD URI of a read-only device of that moment
  HINDCAST_ADDRESS  the same as an address, VOLUME@lsn:N
  HINDCAST_MOUNT    with --mount: where its file system is mounted, read-only
  HINDCAST_TIME, HINDCAST_LSN
Exit code 0 says good, 1 to 125 bad; anything else, and a signal, ends the search.";

/// Changes that are asked for at once.
const CHANGES: u64 = 100_000;

/// Find the last moment at which a command still finds a volume good
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Bisect {
    volume: String,
    /// A moment at which it was good
    #[arg(long, value_name = "MOMENT", value_parser = moment, allow_hyphen_values = true)]
    from: String,
    /// A moment at which it was bad
    #[arg(long, value_name = "MOMENT", value_parser = moment, allow_hyphen_values = true)]
    to: String,
    /// Tells good (exit code 0) from bad (1 to 125)
    #[arg(long, value_name = "COMMAND")]
    check: String,
    /// Mount the file system of each moment, read-only, on a temporary copy in which its own journal is replayed. Needs
    /// root, nbdfuse and loop devices
    #[arg(long)]
    mount: bool,
    /// Go only from flush to flush: what clients had on stable storage
    #[arg(long)]
    flushes: bool,
}

/// What was found.
#[derive(Debug, Serialize)]
struct Found {
    volume: String,
    good: FoundMoment,
    bad: FoundMoment,
    checks: u32,
}

pub(crate) fn run(args: &Bisect, session: &Session) -> Result<(), Failure> {
    let client = &session.client;
    let from = client.moment(&args.volume, &args.from)?;
    let to = client.moment(&args.volume, &args.to)?;
    if from.lsn >= to.lsn {
        return Err(Failure::usage("--from has to be before --to"));
    }
    let mut search = Search { args, session, checks: 0 };
    if !search.is_good(from.lsn)? {
        return Err(Failure::Failed(format!("{} is bad already at --from; begin earlier", args.volume)));
    }
    if search.is_good(to.lsn)? {
        return Err(Failure::Failed(format!("{} is good still at --to; end later", args.volume)));
    }
    let (good, bad) = search.between(from.lsn, to.lsn)?;
    let at = |lsn: u64| client.moment(&args.volume, &format!("lsn:{lsn}"));
    let found = Found { volume: args.volume.clone(), good: at(good)?, bad: at(bad)?, checks: search.checks };
    session.output.show(&found, |f| {
        format!(
            "last good: {} (lsn:{})\nfirst bad: {} (lsn:{})\nto have it: hindcast recover {} --to lsn:{} --as NAME",
            f.good.time, f.good.lsn, f.bad.time, f.bad.lsn, f.volume, f.good.lsn
        )
    })
}

struct Search<'a> {
    args: &'a Bisect,
    session: &'a Session,
    checks: u32,
}

impl Search<'_> {
    /// The last good moment and the first bad one, both of which are moments at which the volume changed, or the bounds.
    fn between(&mut self, mut good: u64, mut bad: u64) -> Result<(u64, u64), Failure> {
        loop {
            let (points, complete) = self.points(good, bad)?;
            // While there are too many writes to list, halve by number; then go from write to write.
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

    /// Moments after `good` and before `bad` at which the volume is another one than before, and whether these are all.
    fn points(&self, good: u64, bad: u64) -> Result<(Vec<u64>, bool), Failure> {
        if bad - good < 2 {
            return Ok((Vec::new(), true));
        }
        let (client, volume) = (&self.session.client, &self.args.volume);
        if self.args.flushes {
            let flushes = client.history(volume, 1)?.flushes;
            let between = flushes.iter().map(|f| f.lsn).filter(|lsn| *lsn > good && *lsn < bad);
            return Ok((between.collect(), true));
        }
        let query = ChangesQuery {
            length: u64::MAX,
            from: Some(format!("lsn:{}", good + 1)),
            to: Some(format!("lsn:{}", bad - 1)),
            limit: CHANGES,
            ..ChangesQuery::default()
        };
        let changes = client.changes(volume, &query)?;
        let complete = (changes.len() as u64) < CHANGES;
        let mut lsns: Vec<u64> = changes.iter().map(|change| change.lsn).collect();
        lsns.sort_unstable();
        lsns.dedup();
        Ok((lsns, complete))
    }

    fn is_good(&mut self, lsn: u64) -> Result<bool, Failure> {
        self.checks += 1;
        let found = self.session.client.moment(&self.args.volume, &format!("lsn:{lsn}"))?;
        let verdict = match self.args.mount {
            false => self.judge(&found, None)?,
            true => self.judge_mounted(&found)?,
        };
        if !self.session.output.is_json() {
            let word = if verdict { "good" } else { "bad" };
            line(&format_args!("{} (lsn:{}): {word}", found.time, found.lsn))?;
        }
        Ok(verdict)
    }

    /// On a volume of its own, for as long as the command looks at it.
    fn judge_mounted(&self, found: &FoundMoment) -> Result<bool, Failure> {
        let name = format!("bisect-{}-{}", std::process::id(), self.checks);
        let volumes = vec![RecoverVolume { volume: self.args.volume.clone(), name: name.clone() }];
        let to = format!("lsn:{}", found.lsn);
        self.session.client.recover(&Recover { volumes, to, last_flush: false, complete: None })?;
        let verdict = self.nbd_uri(&name).and_then(|uri| {
            let mounted = Mounted::new(&uri)?;
            let verdict = self.judge(found, Some(&mounted));
            mounted.unmount()?;
            verdict
        });
        let deleted = self.session.client.delete_volume(&name, true);
        let verdict = verdict?;
        deleted?;
        Ok(verdict)
    }

    fn nbd_uri(&self, export: &str) -> Result<String, Failure> {
        let listeners = self.session.client.status()?.listeners.nbd;
        let first = listeners.first();
        first
            .map(|listener| uri(listener, export))
            .ok_or_else(|| Failure::Failed("the server has no NBD listener for the command to use".into()))
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
        let status = command.status().map_err(|e| Failure::Failed(format!("run the command: {e}")))?;
        match status.code() {
            Some(0) => Ok(true),
            Some(1..=125) => Ok(false),
            _ => Err(Failure::Failed(format!("at {address} the command ended with {status}"))),
        }
    }
}
