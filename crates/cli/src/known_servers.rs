//! The certificates of servers that a person confirmed, in the file `known_servers`.
//!
//! Each line has the address of a server and the fingerprint of its certificate:
//! `HOST:PORT sha256:DIGITS`. A line that begins with `#` is a comment.

use crate::failure::Failure;
use crate::user_files;
use hindcast_api::{Fingerprint, fingerprint_of};
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

/// Returns the fingerprint that the certificate of the server at `authority` must have. A server
/// that the file does not have is shown to the person at the terminal, and added if the person
/// confirms it. Without a terminal it is refused. The server has `limit` to show its certificate.
pub(crate) fn fingerprint(authority: &str, limit: Option<Duration>) -> Result<Fingerprint, Failure> {
    let path =
        user_files::path("known_servers", "no known servers can be remembered; use --fingerprint or --ca")?;
    if let Some(known) = find(&user_files::read(&path)?, authority) {
        return known.map_err(|why| Failure::usage(format!("{}: {why}", path.display())));
    }
    let found = fingerprint_of(authority, limit)
        .map_err(|why| Failure::Unreachable(format!("reach the server at https://{authority}: {why}")))?;
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::Failed(format!(
            "the server at https://{authority} is not known; if `hindcast status` on the server shows the certificate {found}, use --fingerprint {found}, or --ca FILE"
        )));
    }
    if !confirm(authority, found)? {
        return Err(Failure::Failed(format!("the server at https://{authority} was not confirmed")));
    }
    add(&path, authority, found)?;
    Ok(found)
}

/// Returns the fingerprint in the line of a server.
fn find(text: &str, authority: &str) -> Option<Result<Fingerprint, String>> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let (server, fingerprint) = line.split_once(' ')?;
        server.eq_ignore_ascii_case(authority).then(|| fingerprint.trim().parse())
    })
}

fn confirm(authority: &str, found: Fingerprint) -> Result<bool, Failure> {
    let mut stderr = io::stderr().lock();
    writeln!(stderr, "The server at https://{authority} is not known yet.")?;
    writeln!(stderr, "The SHA-256 fingerprint of its certificate is")?;
    writeln!(stderr, "  {found}")?;
    writeln!(stderr, "`hindcast status` on the server shows the fingerprint that it should be.")?;
    write!(stderr, "Is it the same? [yes/no] ")?;
    stderr.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(answer.trim().eq_ignore_ascii_case("yes"))
}

fn add(path: &Path, authority: &str, found: Fingerprint) -> Result<(), Failure> {
    user_files::append(path, &format!("{authority} sha256:{found}"))
        .map_err(|e| Failure::Failed(format!("remember the server in {}: {e}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confirmed_server_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/known_servers");
        assert!(find(&user_files::read(&path).unwrap(), "h:1").is_none());
        let fingerprint: Fingerprint = "11".repeat(32).parse().unwrap();
        add(&path, "h:1", fingerprint).unwrap();
        add(&path, "h:2", "22".repeat(32).parse().unwrap()).unwrap();
        let text = user_files::read(&path).unwrap();
        assert_eq!(find(&text, "H:1"), Some(Ok(fingerprint)));
        assert_eq!(find(&text, "h:3"), None);
        assert!(find("#h:1 x\nh:1 sha256:zz\n", "h:1").unwrap().is_err());
    }
}
