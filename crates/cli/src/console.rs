//! `hindcast console`: a link that opens the console in a browser.

use crate::failure::Failure;
use crate::session::Session;
use hindcast_api::{Client, ClientError, CreatedLink, Endpoint, Trust};
use std::time::Duration;

/// Time that the server has to answer at the link's address.
const PATIENCE: Duration = Duration::from_secs(10);

const AFTER_HELP: &str = "\
Examples:
  hindcast console

Open the link in a browser within two minutes. It works once. The session in the browser has your \
role, so the first log-in needs no password. The command works on the server only, over its Unix \
socket. To let others log in: hindcast access user add --help.

The command shows no link to an address at which another program answers.

With a self-signed certificate the browser warns. Compare the fingerprint that it shows with that of \
hindcast status.";

/// Show a link that opens the console in a browser
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Do not check that this server answers at the link's address
    #[arg(long)]
    no_check: bool,
}

pub(crate) fn run(args: &Args, session: &Session) -> Result<(), Failure> {
    let link = session.client.create_link()?;
    if !args.no_check {
        check(&link, session)?;
    }
    session.output.show(&link, |link: &CreatedLink| link.url.clone())
}

/// Checks that the server that made the link answers at its address. Another program there would
/// get the link, and then the passwords of the console's users.
fn check(link: &CreatedLink, session: &Session) -> Result<(), Failure> {
    let origin = link.url.split("/#").next().unwrap_or_default();
    let refused = |why: &str| {
        Failure::Failed(format!(
            "the link is not shown, because {why}; see the listeners in hindcast status, or give --no-check"
        ))
    };
    let endpoint: Endpoint = origin.parse().map_err(|why: String| refused(&why))?;
    let trust = match &endpoint {
        Endpoint::Tls(_) => {
            let certificate = session.client.status()?.certificate;
            let shown = certificate.ok_or_else(|| refused("the server has no certificate"))?.fingerprint;
            let shown = shown.parse().map_err(|why: String| refused(&why))?;
            Some(Trust::fingerprint(shown).map_err(Failure::Failed)?)
        }
        _ => None,
    };
    let client = Client::new(endpoint, None)?.with_trust(trust).with_patience(Some(PATIENCE));
    match client.instance() {
        Ok(found) if found.instance == link.instance => Ok(()),
        Ok(_) | Err(ClientError::Api(_) | ClientError::Protocol(_)) => {
            Err(refused(&format!("another server answers at {origin}")))
        }
        Err(error) => Err(refused(&format!("this server does not answer at {origin} ({error})"))),
    }
}
