//! Receivers of notices about problems: a command of the operator, and a webhook.
//!
//! A delivery blocks. It has a time limit, and its failure has no other effect than a message.

use crate::freeze::{reap, wait};
use hindcast_api::{NoticeDelivery, Severity};
use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// Time limit of the command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit of one request to the webhook. A request that fails is repeated once.
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before the request is repeated.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum length of a notice's message in bytes. The pipe to the command takes the whole notice.
const MAX_MESSAGE: usize = 8 << 10;
/// Where Linux distributions have the certificates of the authorities that they trust.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// What a notice is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Event {
    /// Problems with a code began, or became more.
    Began,
    /// The last problem with a code ended.
    Ended,
    /// The operator asked for a test.
    Test,
}

impl Event {
    fn name(self) -> &'static str {
        match self {
            Event::Began => "began",
            Event::Ended => "ended",
            Event::Test => "test",
        }
    }
}

/// A message to the operator about all problems with one code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Notice {
    pub(crate) event: Event,
    pub(crate) code: String,
    pub(crate) severity: Severity,
    /// The messages of the problems. When they ended, the last ones.
    pub(crate) message: String,
    /// Number of problems with the code.
    pub(crate) count: usize,
    /// Time at which the first problem with the code began.
    pub(crate) since: Option<Timestamp>,
    pub(crate) time: Timestamp,
}

/// A notice with the server that it comes from, as JSON.
#[derive(Serialize)]
struct Sent<'a> {
    #[serde(flatten)]
    notice: &'a Notice,
    /// Path of the data directory.
    data: &'a str,
}

/// All configured receivers. At least one of them is there.
#[derive(Debug, Clone)]
pub(crate) struct Receivers {
    /// Command for `sh -c`.
    pub(crate) command: Option<String>,
    pub(crate) webhook: Option<Webhook>,
    /// Problems of a lower severity are not reported.
    pub(crate) min_severity: Severity,
    /// Path of the data directory, by which a receiver tells servers apart.
    pub(crate) data: String,
}

impl Receivers {
    /// Delivers a notice to all receivers, one after the other, and returns the results.
    pub(crate) fn deliver(&self, notice: &Notice) -> Vec<NoticeDelivery> {
        let notice = Notice { message: printable(&notice.message), ..notice.clone() };
        let sent = Sent { notice: &notice, data: &self.data };
        let text = match serde_json::to_string(&sent) {
            Ok(text) => text,
            Err(error) => format!("{{\"event\":\"error\",\"message\":\"{error}\"}}"),
        };
        let result = |receiver: &str, result: Result<(), String>| NoticeDelivery {
            receiver: receiver.to_owned(),
            error: result.err(),
        };
        let command = self.command.iter().map(|c| result("command", run(c, &sent, &text, COMMAND_TIMEOUT)));
        let webhook = self.webhook.iter().map(|w| result("webhook", w.post(&text)));
        command.chain(webhook).collect()
    }
}

/// Returns a message that fits into a variable of the environment and into one line of text.
fn printable(message: &str) -> String {
    let end = message.floor_char_boundary(MAX_MESSAGE);
    message[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Runs the command with the notice `text` on its standard input. After `limit` it is killed with
/// all its processes.
fn run(command: &str, sent: &Sent<'_>, text: &str, limit: Duration) -> Result<(), String> {
    let end = Instant::now() + limit;
    let notice = sent.notice;
    let mut process = Command::new("sh")
        .args(["-c", command, "hindcast-notify"])
        .env("HINDCAST_EVENT", notice.event.name())
        .env("HINDCAST_CODE", &notice.code)
        .env("HINDCAST_SEVERITY", notice.severity.name())
        .env("HINDCAST_MESSAGE", &notice.message)
        .stdin(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|e| format!("start the command: {e}"))?;
    if let Some(mut stdin) = process.stdin.take() {
        // A command that does not read its input closes the pipe, which is no failure.
        let _ = writeln!(stdin, "{text}");
    }
    match wait(&mut process, end) {
        Ok(Some(status)) if status.success() => Ok(()),
        Ok(Some(status)) => Err(format!("the command failed: {status}")),
        Ok(None) => {
            let killed = kill_process_group(Pid::from_child(&process), Signal::KILL);
            reap(process);
            let killed =
                killed.map_or_else(|e| format!("could not be killed: {e}"), |()| "was killed".into());
            Err(format!("the command did not end in {} s and {killed}", limit.as_secs_f32()))
        }
        Err(error) => Err(format!("wait for the command: {error}")),
    }
}

/// An HTTP server that receives each notice as a POST request.
#[derive(Debug, Clone)]
pub(crate) struct Webhook {
    url: String,
    agent: ureq::Agent,
}

impl Webhook {
    /// Makes the webhook of a URL, and sends nothing. `ca` is a file of certificates (PEM) that
    /// replaces those that the system trusts.
    pub(crate) fn new(url: &str, ca: Option<&Path>) -> Result<Webhook, String> {
        let parsed: ureq::http::Uri = url.parse().map_err(|e| format!("it is not a URL: {e}"))?;
        let tls = match parsed.scheme_str() {
            Some("http") if ca.is_none() => TlsConfig::default(),
            Some("http") => return Err("http:// has no certificates; remove the file of certificates".into()),
            Some("https") => tls(ca)?,
            _ => return Err("it must begin with https:// or http://".into()),
        };
        if parsed.host().is_none_or(str::is_empty) {
            return Err("it names no host".into());
        }
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(WEBHOOK_TIMEOUT))
            // A request that is redirected would become one without the notice.
            .max_redirects(0)
            .max_redirects_will_error(true)
            .user_agent(concat!("hindcast/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls)
            .build()
            .into();
        Ok(Webhook { url: url.to_owned(), agent })
    }

    /// Sends a notice. If that fails, it sends the notice once more.
    fn post(&self, text: &str) -> Result<(), String> {
        let once = || {
            let request = self.agent.post(&self.url).header("content-type", "application/json");
            request.send(text).map(drop).map_err(|e| e.to_string())
        };
        once().or_else(|first| {
            std::thread::sleep(RETRY);
            once().map_err(|second| match first == second {
                true => format!("two requests failed: {first}"),
                false => format!("two requests failed: {first}; {second}"),
            })
        })
    }
}

fn tls(ca: Option<&Path>) -> Result<TlsConfig, String> {
    let bundle = match ca {
        Some(path) => path,
        None => BUNDLES.iter().map(Path::new).find(|path| path.exists()).ok_or(
            "this machine has no file of the certificate authorities that it trusts; install ca-certificates, \
             or give --notify-ca",
        )?,
    };
    let wrong = |why: String| format!("{}: {why}", bundle.display());
    let pem = std::fs::read(bundle).map_err(|e| wrong(e.to_string()))?;
    let certificates: Vec<Certificate<'static>> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(wrong("it holds no certificate (PEM)".into()));
    }
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&certificates))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read};
    use std::net::{TcpListener, TcpStream};

    fn notice(message: &str) -> Notice {
        Notice {
            event: Event::Began,
            code: "space-low".into(),
            severity: Severity::Warning,
            message: message.into(),
            count: 1,
            since: None,
            time: "2026-11-28T10:00:00Z".parse().unwrap(),
        }
    }

    fn receivers(command: Option<String>, url: Option<&str>) -> Receivers {
        let webhook = url.map(|url| Webhook::new(url, None).unwrap());
        Receivers { command, webhook, min_severity: Severity::Warning, data: "/srv/pool".into() }
    }

    #[test]
    fn a_command_gets_the_notice_twice() {
        let dir = tempfile::tempdir().unwrap();
        let (input, variables) = (dir.path().join("input"), dir.path().join("variables"));
        let command = format!(
            "cat > {}; echo \"$HINDCAST_EVENT $HINDCAST_CODE $HINDCAST_SEVERITY $HINDCAST_MESSAGE\" > {}",
            input.display(),
            variables.display()
        );
        let sent = receivers(Some(command), None).deliver(&notice("little\nspace \"left\""));
        assert_eq!(sent, [NoticeDelivery { receiver: "command".into(), error: None }]);
        let read = |path| std::fs::read_to_string(path).unwrap();
        assert_eq!(read(&variables), "began space-low warning little space \"left\"\n");
        let json: serde_json::Value = serde_json::from_str(&read(&input)).unwrap();
        assert_eq!(json["event"], "began");
        assert_eq!(json["severity"], "warning");
        assert_eq!(json["message"], "little space \"left\"");
        assert_eq!(json["data"], "/srv/pool");
    }

    #[test]
    fn what_a_command_does_wrong_is_told() {
        let error = |command: &str| {
            let sent = receivers(Some(command.into()), None).deliver(&notice(&"x".repeat(100_000)));
            sent[0].error.clone()
        };
        assert!(error("exit 7").unwrap().contains('7'));
        assert_eq!(error("true"), None, "it does not read its input");
        let begin = Instant::now();
        let notice = notice("slow");
        let sent = Sent { notice: &notice, data: "" };
        let late = run("sleep 30 & sleep 30", &sent, "{}", Duration::from_millis(200)).unwrap_err();
        assert!(late.contains("did not end in 0.2 s and was killed"), "{late}");
        assert!(begin.elapsed() < Duration::from_secs(20));
    }

    /// Answers one request with each of `answers`, and returns the bodies.
    fn serve(
        listener: TcpListener,
        answers: &'static [&'static str],
    ) -> std::thread::JoinHandle<Vec<String>> {
        let read = |stream: &TcpStream| {
            let mut reader = BufReader::new(stream);
            let (mut length, mut line) = (0, String::new());
            while {
                line.clear();
                reader.read_line(&mut line).unwrap()
            } > 2
            {
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            String::from_utf8(body).unwrap()
        };
        std::thread::spawn(move || {
            let answer = |answer: &&str| {
                let (mut stream, _) = listener.accept().unwrap();
                let body = read(&stream);
                let head = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                stream.write_all(head.as_bytes()).unwrap();
                body
            };
            answers.iter().map(answer).collect()
        })
    }

    #[test]
    fn a_webhook_gets_the_notice_and_one_more_try() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let server = serve(listener, &["200 OK", "500 Oops", "204 No Content", "500 Oops", "404 Not Found"]);
        let receivers = receivers(None, Some(&url));
        assert_eq!(receivers.deliver(&notice("once"))[0].error, None);
        assert_eq!(receivers.deliver(&notice("twice"))[0].error, None);
        let error = receivers.deliver(&notice("never"))[0].error.clone().unwrap();
        assert!(error.contains("500") && error.contains("404"), "{error}");
        let messages = server.join().unwrap().into_iter().map(|body| {
            let json: serde_json::Value = serde_json::from_str(&body).unwrap();
            json["message"].as_str().unwrap().to_owned()
        });
        assert_eq!(messages.collect::<Vec<_>>(), ["once", "twice", "twice", "never", "never"]);
    }

    #[test]
    fn urls_and_certificates_are_checked() {
        for (url, why) in [
            ("ftp://host/", "https://"),
            ("host", "https://"),
            ("/path", "https://"),
            ("http://", ""),
            ("https://a b/", ""),
        ] {
            let error = Webhook::new(url, None).unwrap_err();
            assert!(error.contains(why), "{url}: {error}");
        }
        let dir = tempfile::tempdir().unwrap();
        let empty = dir.path().join("ca.pem");
        std::fs::write(&empty, "nothing").unwrap();
        let error = Webhook::new("https://host/", Some(&empty)).unwrap_err();
        assert!(error.contains("no certificate"), "{error}");
    }
}
