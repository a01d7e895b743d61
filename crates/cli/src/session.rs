//! The options that every command has, and the connection to the server that most commands use.

use crate::context;
use crate::failure::Failure;
use crate::known_servers;
use crate::output::{Format, Output};
use crate::when::{Here, When};
use hindcast_api::{Client, Endpoint, Fingerprint, Trust};
use std::path::{Path, PathBuf};
use std::time::Duration;

const SYSTEM_SOCKET: &str = "/run/hindcast/hindcast.sock";
const LOCAL_SOCKET: &str = "./hindcast.sock";

#[derive(Debug, clap::Args)]
pub(crate) struct Global {
    /// Server to connect to: the path of its Unix socket, https://HOST:PORT, http://HOST:PORT, or a
    /// name that you gave it [default: that of hindcast context use, otherwise
    /// /run/hindcast/hindcast.sock if it exists, otherwise ./hindcast.sock]
    #[arg(
        long,
        visible_alias = "server",
        global = true,
        env = "HINDCAST_SOCKET",
        value_name = "ENDPOINT",
        help_heading = "Global options"
    )]
    socket: Option<String>,

    /// File with the token for https:// and http:// endpoints; HINDCAST_TOKEN can have the token
    /// itself
    #[arg(
        long,
        global = true,
        env = "HINDCAST_TOKEN_FILE",
        value_name = "FILE",
        help_heading = "Global options"
    )]
    token_file: Option<PathBuf>,

    /// Send the token over http:// to a host that is not this machine: everyone on the way can read
    /// it
    #[arg(
        long,
        global = true,
        env = "HINDCAST_PLAIN",
        value_parser = clap::builder::FalseyValueParser::new(),
        help_heading = "Global options"
    )]
    plain: bool,

    /// Certificate authorities (PEM) that sign the server's certificate, for https:// endpoints
    /// [default: servers that you confirmed, in ~/.config/hindcast/known_servers]
    #[arg(long, global = true, env = "HINDCAST_CA", value_name = "FILE", help_heading = "Global options")]
    ca: Option<PathBuf>,

    /// SHA-256 fingerprint of the server's certificate, as hindcast status shows it on the server
    #[arg(
        long,
        global = true,
        env = "HINDCAST_FINGERPRINT",
        value_name = "HEX",
        value_parser = fingerprint,
        conflicts_with = "ca",
        help_heading = "Global options"
    )]
    fingerprint: Option<Expected>,

    /// Seconds to wait for each answer, and for progress of a transfer [default: 60 for commands
    /// that only show, 330 for commands that change or transfer]
    #[arg(long, global = true, env = "HINDCAST_TIMEOUT", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Global options")]
    timeout: Option<u64>,

    /// Time zone of times that you write without an offset, and of times in tables, such as
    /// Europe/Berlin [default: TZ, or this machine's zone]
    #[arg(long, global = true, value_name = "ZONE", help_heading = "Global options")]
    tz: Option<String>,

    /// Show times in UTC; JSON always has them in UTC
    #[arg(long, global = true, conflicts_with = "tz", help_heading = "Global options")]
    utc: bool,

    /// Show times in full, in UTC
    #[arg(long, global = true, help_heading = "Global options")]
    precise: bool,

    /// Format of the result: table for people, json for programs (sizes in bytes, times in RFC
    /// 3339), or the columns of a list: name,size
    #[arg(
        short,
        long,
        global = true,
        value_name = "FORMAT",
        default_value = "table",
        help_heading = "Global options"
    )]
    output: Format,
}

/// The fingerprint on the command line. `None`: an empty variable, which counts as one that is not
/// set.
#[derive(Debug, Clone, Copy)]
struct Expected(Option<Fingerprint>);

fn fingerprint(text: &str) -> Result<Expected, String> {
    if text.is_empty() { Ok(Expected(None)) } else { text.parse().map(|found| Expected(Some(found))) }
}

/// The server and the output format of a command.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) output: Output,
    /// The zone in which times are written.
    pub(crate) here: Here,
}

impl Global {
    pub(crate) fn output(&self) -> Output {
        Output(self.output.clone())
    }

    /// Returns the file with the token that the command line or the environment names.
    pub(crate) fn token_file(&self) -> Option<&Path> {
        self.token_file.as_deref().filter(|path| !path.as_os_str().is_empty())
    }

    /// Makes the session. It sends no request to the server. It asks a server with TLS that is not
    /// known yet for its certificate.
    pub(crate) fn session(&self) -> Result<Session, Failure> {
        // An empty variable is one that is not set.
        let given = self.socket.as_deref().filter(|text| !text.is_empty());
        let context = context::of(given)?;
        let endpoint = match context.as_ref().map(|context| context.endpoint.as_str()).or(given) {
            Some(text) => text.parse().map_err(|e| Failure::usage(format!("--socket: {e}")))?,
            None => default_endpoint(Path::new(SYSTEM_SOCKET)),
        };
        let token = match self.token_file() {
            Some(path) => Some(read_token(path)?),
            None => token_in_environment()?,
        };
        let of_context = || context.and_then(|of| of.token_file).map(|path| read_token(&path));
        let token = token.map_or_else(|| of_context().transpose(), |token| Ok(Some(token)))?;
        if token.is_some() && !self.plain && !endpoint.is_private() {
            return Err(Failure::usage(format!(
                "{endpoint}: everyone on the way could read the token; use https://, or a Unix socket, or give --plain"
            )));
        }
        let patience = self.timeout.map(Duration::from_secs);
        let trust = self.trust(&endpoint, patience)?;
        let client = Client::new(endpoint, token)?.with_trust(trust).with_patience(patience);
        let zone = if self.utc { Some("UTC") } else { self.tz.as_deref().filter(|name| !name.is_empty()) };
        let here = Here { precise: self.precise, ..Here::new(zone)? };
        Ok(Session { client, output: self.output(), here })
    }
}

impl Global {
    /// Returns how the certificate of the server is verified.
    fn trust(&self, endpoint: &Endpoint, patience: Option<Duration>) -> Result<Option<Trust>, Failure> {
        let Endpoint::Tls(authority) = endpoint else { return Ok(None) };
        if let Some(path) = self.ca.as_ref().filter(|path| !path.as_os_str().is_empty()) {
            let failed = |why: String| Failure::usage(format!("--ca {}: {why}", path.display()));
            let pem = std::fs::read(path).map_err(|e| failed(e.to_string()))?;
            return Trust::authorities(&pem).map(Some).map_err(failed);
        }
        let fingerprint = match self.fingerprint {
            Some(Expected(Some(fingerprint))) => fingerprint,
            Some(Expected(None)) | None => known_servers::fingerprint(authority, patience)?,
        };
        Trust::fingerprint(fingerprint).map(Some).map_err(Failure::Failed)
    }
}

/// Returns the token in the variable HINDCAST_TOKEN.
fn token_in_environment() -> Result<Option<String>, Failure> {
    match std::env::var("HINDCAST_TOKEN") {
        Ok(token) if token.is_empty() => Ok(None),
        Ok(token) => check_token("HINDCAST_TOKEN", &token).map(Some),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(e) => Err(Failure::usage(format!("HINDCAST_TOKEN: {e}"))),
    }
}

impl Session {
    /// Returns a moment in a form that the server understands.
    pub(crate) fn moment(&self, when: &When) -> Result<String, Failure> {
        when.moment(&self.here).map(|moment| moment.to_string())
    }
}

fn default_endpoint(system: &Path) -> Endpoint {
    Endpoint::Unix(if system.exists() { system.into() } else { LOCAL_SOCKET.into() })
}

fn read_token(path: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::usage(format!("--token-file {}: {e}", path.display())))?;
    check_token(&format!("--token-file {}", path.display()), &text)
}

/// Returns the token in `text`. `source` says where it comes from.
fn check_token(source: &str, text: &str) -> Result<String, Failure> {
    let token = text.trim();
    if token.is_empty() || !token.chars().all(|c| c.is_ascii_graphic()) {
        return Err(Failure::usage(format!(
            "{source}: this must be one token of printable ASCII characters"
        )));
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_socket_is_used_where_it_exists() {
        let dir = tempfile::tempdir().unwrap();
        let system = dir.path().join("hindcast.sock");
        assert_eq!(default_endpoint(&system), Endpoint::Unix(LOCAL_SOCKET.into()));
        std::fs::write(&system, "").unwrap();
        assert_eq!(default_endpoint(&system), Endpoint::Unix(system));
    }
}
