//! A small NBD client on a Unix socket. It is used for content that fio can't make, for connections
//! that have to be timed, and for loads that go on while snapshots are taken.

use anyhow::{Context, Result, bail, ensure};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

pub(crate) const GREETING: u64 = 0x4e42_444d_4147_4943;
pub(crate) const OPTION: u64 = 0x4948_4156_454f_5054;
pub(crate) const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
pub(crate) const REQUEST: u32 = 0x2560_9513;
pub(crate) const REPLY: u32 = 0x6744_6698;
/// Fixed newstyle, no zeroes.
pub(crate) const HANDSHAKE: u16 = 3;
pub(crate) const OPT_GO: u32 = 7;
pub(crate) const REP_ACK: u32 = 1;
pub(crate) const REP_INFO: u32 = 3;
const REP_ERROR: u32 = 1 << 31;
pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISCONNECT: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
/// Bytes of a request without its data.
pub(crate) const REQUEST_BYTES: usize = 28;
const REPLY_BYTES: usize = 16;
/// A server answers with messages, not with megabytes.
const LONGEST_OPTION_REPLY: u32 = 1 << 16;

/// A big-endian integer at the beginning of `bytes`, which are long enough wherever this is called.
macro_rules! be {
    ($type:ty, $bytes:expr) => {{
        let mut raw = [0; size_of::<$type>()];
        raw.copy_from_slice(&$bytes[..size_of::<$type>()]);
        <$type>::from_be_bytes(raw)
    }};
}
pub(crate) use be;

/// A connection to one export.
pub(crate) struct Client {
    stream: UnixStream,
    size: u64,
}

impl Client {
    /// Connects and chooses an export: it is open when this returns.
    pub(crate) fn connect(socket: &Path, export: &str) -> Result<Client> {
        let mut stream =
            UnixStream::connect(socket).with_context(|| format!("connect to {}", socket.display()))?;
        let size = negotiate(&mut stream, export).with_context(|| format!("open {export}"))?;
        Ok(Client { stream, size })
    }

    /// Bytes of the export.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Reads.
    pub(crate) fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>> {
        self.stream.write_all(&request(READ, 0, offset, length)).context("send a read")?;
        self.reply()?;
        let mut data = vec![0; length as usize];
        self.stream.read_exact(&mut data).context("receive data")?;
        Ok(data)
    }

    /// Waits until all that was written is on stable storage.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.stream.write_all(&request(FLUSH, 0, 0, 0)).context("send a flush")?;
        self.reply()
    }

    /// Writes what `next` appends to the buffer, at the offset that it returns, `depth` requests in
    /// flight, until it returns none. Latencies in microseconds are added to `latencies`.
    pub(crate) fn write(
        &mut self,
        depth: usize,
        latencies: &mut Vec<f32>,
        mut next: impl FnMut(&mut Vec<u8>) -> Result<Option<u64>>,
    ) -> Result<()> {
        let mut free: Vec<usize> = (0..depth).collect();
        let mut started = vec![Instant::now(); depth];
        let (mut out, mut replies, mut filled) = (Vec::new(), vec![0; depth * REPLY_BYTES], 0);
        let mut more = true;
        loop {
            out.clear();
            let mut sent = Vec::new();
            while more && let Some(slot) = free.pop() {
                let head = out.len();
                out.resize(head + REQUEST_BYTES, 0);
                if let Some(offset) = next(&mut out)? {
                    let length = u32::try_from(out.len() - head - REQUEST_BYTES).context("a long write")?;
                    out[head..head + REQUEST_BYTES].copy_from_slice(&request(
                        WRITE,
                        slot as u64,
                        offset,
                        length,
                    ));
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
            let whole = filled / REPLY_BYTES * REPLY_BYTES;
            for reply in replies[..whole].chunks_exact(REPLY_BYTES) {
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
        let mut reply = [0; REPLY_BYTES];
        self.stream.read_exact(&mut reply).context("receive a reply")?;
        check(&reply).map(drop)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The server may be gone.
        let _ = self.stream.write_all(&request(DISCONNECT, 0, 0, 0));
    }
}

fn request(command: u16, handle: u64, offset: u64, length: u32) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..4].copy_from_slice(&REQUEST.to_be_bytes());
    bytes[6..8].copy_from_slice(&command.to_be_bytes());
    bytes[8..16].copy_from_slice(&handle.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset.to_be_bytes());
    bytes[24..].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// The handle of a simple reply without an error.
fn check(reply: &[u8]) -> Result<u64> {
    ensure!(be!(u32, reply) == REPLY, "this is no simple reply: {reply:02x?}");
    let error = be!(u32, reply[4..]);
    ensure!(error == 0, "the server reports error {error}");
    Ok(be!(u64, reply[8..]))
}

fn negotiate(stream: &mut UnixStream, export: &str) -> Result<u64> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).context("receive the greeting")?;
    ensure!(be!(u64, greeting) == GREETING && be!(u64, greeting[8..]) == OPTION, "this is no NBD server");
    let mut hello = u32::from(HANDSHAKE).to_be_bytes().to_vec();
    hello.extend(OPTION.to_be_bytes());
    hello.extend(OPT_GO.to_be_bytes());
    hello.extend((export.len() as u32 + 6).to_be_bytes());
    hello.extend((export.len() as u32).to_be_bytes());
    hello.extend(export.as_bytes());
    hello.extend([0, 0]);
    stream.write_all(&hello).context("choose the export")?;
    let mut size = None;
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head).context("receive an answer")?;
        let (kind, length) = (be!(u32, head[12..]), be!(u32, head[16..]));
        ensure!(be!(u64, head) == OPTION_REPLY && length <= LONGEST_OPTION_REPLY, "a malformed answer");
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data).context("receive an answer")?;
        match kind {
            REP_ACK => return size.context("the server did not tell the size"),
            REP_INFO if data.len() >= 10 && be!(u16, data) == 0 => size = Some(be!(u64, data[2..])),
            REP_ERROR.. => bail!("refused ({kind:#x}): {}", String::from_utf8_lossy(&data)),
            _ => {}
        }
    }
}
