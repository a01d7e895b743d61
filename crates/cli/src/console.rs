//! `hindcast console`: a link that opens the console in a browser.

use crate::failure::Failure;
use crate::session::Session;
use hindcast_api::CreatedLink;

const AFTER_HELP: &str = "\
Examples:
  hindcast console

Open the link in a browser within two minutes. It works once. The session in the browser has your \
role, so the first log-in needs no password. The command works on the server only, over its Unix \
socket. To let others log in: hindcast access user add --help.

With a self-signed certificate the browser warns. Compare the fingerprint that it shows with that of \
hindcast status.";

/// Show a link that opens the console in a browser
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {}

pub(crate) fn run(Args {}: Args, session: &Session) -> Result<(), Failure> {
    session.output.show(&session.client.create_link()?, |link: &CreatedLink| link.url.clone())
}
