//! A small NBD client on a Unix socket. It is used for content that fio cannot make, for
//! connections that have to be timed, and for loads that pause for snapshots.

use anyhow::{Context, Result, bail, ensure};
use hindcast_target::nbd::Command;
use hindcast_target::nbd::codec::{REQUEST_LEN, ReplyHeader, Request, SIMPLE_REPLY_LEN};
use hindcast_target::nbd::options::{GREETING, OPTION_MAGIC, OPTION_REPLY_MAGIC, info, opt, rep};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

/// Smallest type of an option reply that is an error. Every error has the highest bit set.
const REP_ERROR: u32 = 1 << 31;
/// Longest option reply that is accepted, in bytes. A server sends messages, not megabytes.
const LONGEST_OPTION_REPLY: u32 = 1 << 16;

/// A connection to one export.
pub(crate) struct Client {
    stream: UnixStream,
    size: u64,
}

impl Client {
    /// Connects and chooses an export. The export is open when this function returns.
    pub(crate) fn connect(socket: &Path, export: &str) -> Result<Client> {
        let mut stream =
            UnixStream::connect(socket).with_context(|| format!("connect to {}", socket.display()))?;
        let size = negotiate(&mut stream, export).with_context(|| format!("open {export}"))?;
        Ok(Client { stream, size })
    }

    /// Returns the size of the export in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Reads `length` bytes at `offset`.
    pub(crate) fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>> {
        self.stream.write_all(&request(Command::Read, 0, offset, length)).context("send a read")?;
        self.reply()?;
        let mut data = vec![0; length as usize];
        self.stream.read_exact(&mut data).context("receive data")?;
        Ok(data)
    }

    /// Waits until all acknowledged writes are on stable storage.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.stream.write_all(&request(Command::Flush, 0, 0, 0)).context("send a flush")?;
        self.reply()
    }

    /// Sends writes with `depth` requests in flight. For each write, `next` appends the data to the
    /// buffer and returns the offset. The function returns after `next` has returned `None` and all
    /// writes are acknowledged. It appends the latency of each write, in microseconds, to
    /// `latencies`.
    pub(crate) fn write(
        &mut self,
        depth: usize,
        latencies: &mut Vec<f32>,
        mut next: impl FnMut(&mut Vec<u8>) -> Result<Option<u64>>,
    ) -> Result<()> {
        let mut free: Vec<usize> = (0..depth).collect();
        let mut started = vec![Instant::now(); depth];
        let (mut out, mut replies, mut filled) = (Vec::new(), vec![0; depth * SIMPLE_REPLY_LEN], 0);
        let mut more = true;
        loop {
            out.clear();
            let mut sent = Vec::new();
            while more && let Some(slot) = free.pop() {
                let head = out.len();
                let data = head + REQUEST_LEN;
                out.resize(data, 0);
                if let Some(offset) = next(&mut out)? {
                    let length = u32::try_from(out.len() - data).context("a long write")?;
                    let request = request(Command::Write, slot as u64, offset, length);
                    out[head..data].copy_from_slice(&request);
                    sent.push(slot);
                } else {
                    out.truncate(head);
                    free.push(slot);
                    more = false;
                }
            }
            let now = Instant::now();
            for slot in sent {
                started[slot] = now;
            }
            self.stream.write_all(&out).context("send writes")?;
            if free.len() == depth {
                return Ok(());
            }
            let received = self.stream.read(&mut replies[filled..]).context("receive replies")?;
            ensure!(received > 0, "the server closed the connection");
            filled += received;
            let now = Instant::now();
            let whole = filled / SIMPLE_REPLY_LEN * SIMPLE_REPLY_LEN;
            for reply in replies[..whole].chunks_exact(SIMPLE_REPLY_LEN) {
                let slot = usize::try_from(check(reply)?).context("a reply to nothing")?;
                let start = started.get(slot).context("a reply to nothing")?;
                latencies.push((now - *start).as_secs_f32() * 1e6);
                free.push(slot);
            }
            replies.copy_within(whole..filled, 0);
            filled -= whole;
        }
    }

    fn reply(&mut self) -> Result<()> {
        let mut reply = [0; SIMPLE_REPLY_LEN];
        self.stream.read_exact(&mut reply).context("receive a reply")?;
        check(&reply).map(drop)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The server may have ended already.
        let _ = self.stream.write_all(&request(Command::Disc, 0, 0, 0));
    }
}

fn request(command: Command, cookie: u64, offset: u64, length: u32) -> [u8; REQUEST_LEN] {
    Request { flags: 0, kind: command as u16, cookie, offset, length }.encode()
}

/// Returns the cookie of a simple reply. Fails if the reply reports an error.
fn check(reply: &[u8]) -> Result<u64> {
    match ReplyHeader::decode(reply) {
        Ok(Some((ReplyHeader::Simple { error: 0, cookie }, _))) => Ok(cookie),
        Ok(Some((ReplyHeader::Simple { error, .. }, _))) => bail!("the server reports error {error}"),
        _ => bail!("this is no simple reply: {reply:02x?}"),
    }
}

/// Receives the next `N` bytes.
fn take<const N: usize>(stream: &mut UnixStream) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).context("receive an answer")?;
    Ok(bytes)
}

/// Chooses an export, and returns its size in bytes.
fn negotiate(stream: &mut UnixStream, export: &str) -> Result<u64> {
    ensure!(take(stream)? == GREETING, "this is no NBD server of the kind that is measured");
    let name = export.as_bytes();
    // The client sends the flags of the server back, in 32 bits.
    let mut hello = vec![0, 0];
    hello.extend(&GREETING[16..]);
    hello.extend(OPTION_MAGIC.to_be_bytes());
    for word in [opt::GO, name.len() as u32 + 6, name.len() as u32] {
        hello.extend(word.to_be_bytes());
    }
    hello.extend(name);
    // The client requests no information by name.
    hello.extend([0, 0]);
    stream.write_all(&hello).context("choose the export")?;
    let mut size = None;
    loop {
        let magic = u64::from_be_bytes(take(stream)?);
        // These are the option, the type of the reply, and its length.
        let [_, kind, length] = [take(stream)?, take(stream)?, take(stream)?].map(u32::from_be_bytes);
        ensure!(magic == OPTION_REPLY_MAGIC && length <= LONGEST_OPTION_REPLY, "a malformed answer");
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data).context("receive an answer")?;
        match (kind, data.as_slice()) {
            (rep::ACK, _) => return size.context("the server did not tell the size"),
            (rep::INFO, [a, b, rest @ ..]) if u16::from_be_bytes([*a, *b]) == info::EXPORT => {
                size = rest.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
            }
            (REP_ERROR.., text) => bail!("refused ({kind:#x}): {}", String::from_utf8_lossy(text)),
            _ => {}
        }
    }
}
