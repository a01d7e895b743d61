//! `hindcast serve`: the daemon.

use crate::failure::Failure;
use hindcast_server::Settings;

const AFTER_HELP: &str = "\
Every option is also an environment variable and a key of the --config file; flags win over the environment, which
wins over the file.

Examples:
  hindcast serve --data ./pool --create                     the first start: makes the pool
  hindcast serve --data ./pool --create --pool-size 20G --journal-size 256M
  hindcast serve --data ./pool                              every other start: opens it
  hindcast serve --data ./pool --nbd 0.0.0.0:10809 --nbd-tls-cert srv.pem --nbd-tls-key srv.key --nbd-tls-required
  hindcast serve --data ./pool --api unix:/run/hindcast/hindcast.sock --api 10.0.0.5:8440 --api-token-file ./token
  hindcast serve --config /etc/hindcast.toml

Without --create there has to be a pool in the directory. Where there is none, nothing is written,
and the exit code is 3. Often a file system is not mounted then: a new pool there would be served
without the volumes.

SIGTERM or SIGINT stops it in order; a second one at once. Both are safe, and so is SIGKILL: what
was acknowledged is in the journal.";

/// Run the server
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    settings: Settings,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    Ok(hindcast_server::serve(args.settings)?)
}
