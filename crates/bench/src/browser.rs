//! Clients that use the admin API as a browser with the console does: a session, streams of events,
//! and pages that are read again and again, over HTTP on the loopback address.

use anyhow::{Context, Result, bail};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time between two readings of the pages that a browser shows.
const POLL: Duration = Duration::from_secs(2);
/// Time after which a thread that waits for the server looks whether it should end.
const LOOK: Duration = Duration::from_millis(100);
/// Longest time until the server has answered a request.
const PATIENCE: Duration = Duration::from_secs(60);
/// Largest answer in bytes, for servers that never end one.
const MAX_ANSWER: u64 = 64 << 20;

/// A client with a session.
pub(crate) struct Browser {
    address: SocketAddr,
    cookie: String,
}

impl Browser {
    /// Logs in with a name and a password.
    pub(crate) fn log_in(address: SocketAddr, name: &str, password: &str) -> Result<Browser> {
        let body = serde_json::json!({ "name": name, "password": password }).to_string();
        let head = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        let answer = exchange(address, "POST", "/session", &head, &body).context("log in")?;
        let cookie = answer
            .lines()
            .take_while(|line| !line.is_empty())
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("set-cookie"))
            .and_then(|(_, value)| value.split(';').next())
            .context("the log-in has no cookie")?;
        Ok(Browser { address, cookie: format!("Cookie: {}\r\n", cookie.trim()) })
    }

    fn get(&self, path: &str) -> Result<()> {
        exchange(self.address, "GET", path, &self.cookie, "").map(drop)
    }

    /// Reads the pages of a volume again and again, until `ended`.
    pub(crate) fn poll(&self, volume: &str, ended: &AtomicBool) -> Result<()> {
        let timeline = format!("/volumes/{volume}/timeline?from=-5m&buckets=600");
        while !ended.load(Ordering::Relaxed) {
            let begin = Instant::now();
            self.get("/volumes")?;
            self.get(&timeline)?;
            while begin.elapsed() < POLL && !ended.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK);
            }
        }
        Ok(())
    }

    /// Follows a stream until `ended`. Returns the number of bytes that came.
    pub(crate) fn follow(&self, path: &str, ended: &AtomicBool) -> Result<u64> {
        let head = format!("{}Accept: text/event-stream\r\n", self.cookie);
        let mut stream = send(self.address, "GET", path, &head, "")?;
        stream.set_read_timeout(Some(LOOK)).context("set a timeout")?;
        let (mut bytes, mut buffer) = (0, [0; 16 << 10]);
        while !ended.load(Ordering::Relaxed) {
            match stream.read(&mut buffer) {
                Ok(0) => bail!("the stream {path} ended after {bytes} bytes"),
                Ok(length) if bytes == 0 => {
                    check(path, &String::from_utf8_lossy(&buffer[..length]))?;
                    bytes += length as u64;
                }
                Ok(length) => bytes += length as u64,
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error).with_context(|| format!("follow {path}")),
            }
        }
        Ok(bytes)
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

/// Fails unless the answer has a status of success.
fn check(path: &str, answer: &str) -> Result<()> {
    let status = answer.split(' ').nth(1).unwrap_or_default();
    if !status.starts_with('2') {
        bail!("{path}: the server answered {}", answer.lines().next().unwrap_or_default());
    }
    Ok(())
}

/// Sends a request on a connection of its own, which the server closes after its answer.
fn send(address: SocketAddr, method: &str, path: &str, head: &str, body: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address).context("connect to the admin API")?;
    stream.set_read_timeout(Some(PATIENCE)).context("set a timeout")?;
    let request = format!(
        "{method} /api/v1{path} HTTP/1.1\r\nHost: {address}\r\nOrigin: http://{address}\r\n\
         Connection: close\r\n{head}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).with_context(|| format!("send {method} {path}"))?;
    Ok(stream)
}

fn exchange(address: SocketAddr, method: &str, path: &str, head: &str, body: &str) -> Result<String> {
    let stream = send(address, method, path, head, body)?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).with_context(|| format!("read {path}"))?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    check(path, &answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Answers one request on a connection of its own. Returns the address, and what was asked.
    fn server(answer: &'static str) -> (SocketAddr, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = [0; 4096];
            let length = stream.read(&mut buffer).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        });
        (address, asked)
    }

    #[test]
    fn a_session_is_a_cookie() {
        let (address, asked) =
            server("HTTP/1.1 201 Created\r\nset-cookie: hindcast=ab12; HttpOnly; Path=/\r\n\r\n{}");
        let browser = Browser::log_in(address, "anna", "a long password").unwrap();
        assert_eq!(browser.cookie, "Cookie: hindcast=ab12\r\n");
        let asked = asked.join().unwrap();
        assert!(asked.starts_with("POST /api/v1/session HTTP/1.1\r\n"), "{asked}");
        assert!(asked.ends_with("\r\n\r\n{\"name\":\"anna\",\"password\":\"a long password\"}"), "{asked}");
    }

    #[test]
    fn a_refusal_is_an_error() {
        let (address, _asked) = server("HTTP/1.1 429 Too Many Requests\r\n\r\n");
        let error = Browser::log_in(address, "anna", "a long password").err().unwrap();
        assert!(format!("{error:#}").contains("429"), "{error:#}");
    }
}
