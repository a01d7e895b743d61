//! `hindcast serve`: the daemon.

use crate::failure::Failure;
use hindcast_server::Settings;

const AFTER_HELP: &str = "\
Most options are also an environment variable (shown in brackets) and a key of the --config file. \
A flag overrides the environment, and the environment overrides the file.

Examples:
  hindcast serve --data ./pool --create                     the first start creates the pool
  hindcast serve --data ./pool --create --pool-size 20G --journal-size 256M
  hindcast serve --data ./pool                              every later start opens it
  hindcast serve --data ./pool --nbd 0.0.0.0:10809 --nbd-tls-cert srv.pem --nbd-tls-key srv.key --nbd-tls-required
  hindcast serve --data ./pool --api unix:/run/hindcast/hindcast.sock --api 10.0.0.5:8440
  hindcast serve --config /etc/hindcast.toml

Without --create the directory must hold a pool. If it holds none, the server writes nothing and \
exits with code 3. The usual cause is a file system that is not mounted: a new pool in the empty \
directory would have none of the volumes.

SIGTERM or SIGINT stops the server in order. A second signal stops it at once. Both are safe, and \
so is SIGKILL: every acknowledged write is in the journal.";

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
