//! An NBD server of one export and one connection. It keeps all writes in a file, so that the real
//! writes of a program can be made again on other volumes.

use crate::nbd::{
    DISCONNECT, FLUSH, GREETING, HANDSHAKE, OPT_GO, OPTION, OPTION_REPLY, READ, REP_ACK, REP_INFO, REPLY,
    REQUEST, REQUEST_BYTES, WRITE, be,
};
use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

const OPT_EXPORT_NAME: u32 = 1;
const OPT_ABORT: u32 = 2;
const REP_UNSUPPORTED: u32 = (1 << 31) + 1;
/// The export has flags; it can be flushed. No discards and no writes of zeros: all changes come as
/// data.
const FLAGS: u16 = 1 | 4;
const LONGEST_OPTION: u32 = 1 << 16;
const LONGEST_REQUEST: u32 = 64 << 20;
/// Offset and length of a write before its data.
const HEAD: usize = 12;

/// The server, until its client leaves.
pub(super) struct Capture {
    thread: JoinHandle<Result<()>>,
    trace: PathBuf,
    writes: Arc<AtomicU64>,
}

impl Capture {
    /// Serves an empty disk of `size` bytes on `socket` to the first client that comes; files go
    /// beside the socket.
    pub(super) fn serve(socket: &Path, size: u64) -> Result<Capture> {
        let (disk, trace) = (socket.with_extension("disk"), socket.with_extension("trace"));
        let open = |path: &Path| {
            File::options()
                .create(true)
                .truncate(true)
                .read(true)
                .write(true)
                .open(path)
                .with_context(|| format!("create {}", path.display()))
        };
        let file = open(&disk)?;
        file.set_len(size).context("size the disk")?;
        let mut session = Session {
            disk: file,
            size,
            trace: BufWriter::with_capacity(1 << 20, open(&trace)?),
            writes: Arc::default(),
        };
        let writes = session.writes.clone();
        let listener =
            UnixListener::bind(socket).with_context(|| format!("listen on {}", socket.display()))?;
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().context("wait for a client")?;
            session.negotiate(&mut stream)?;
            session.serve(&mut stream)?;
            session.trace.flush().context("write the trace")
        });
        Ok(Capture { thread, trace, writes })
    }

    /// Writes so far.
    pub(super) fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    /// All that was written, once the client has left.
    pub(super) fn finish(self) -> Result<PathBuf> {
        match self.thread.join() {
            Ok(result) => result.context("capture writes")?,
            Err(_) => bail!("the capturing thread panicked"),
        }
        Ok(self.trace)
    }
}

struct Session {
    disk: File,
    size: u64,
    trace: BufWriter<File>,
    writes: Arc<AtomicU64>,
}

impl Session {
    fn negotiate(&self, stream: &mut UnixStream) -> Result<()> {
        let mut hello = GREETING.to_be_bytes().to_vec();
        hello.extend(OPTION.to_be_bytes());
        hello.extend(HANDSHAKE.to_be_bytes());
        stream.write_all(&hello).context("greet")?;
        stream.read_exact(&mut [0; 4]).context("receive the client's flags")?;
        let mut export = self.size.to_be_bytes().to_vec();
        export.extend(FLAGS.to_be_bytes());
        loop {
            let mut head = [0; 16];
            stream.read_exact(&mut head).context("receive an option")?;
            let (option, length) = (be!(u32, head[8..]), be!(u32, head[12..]));
            ensure!(be!(u64, head) == OPTION && length <= LONGEST_OPTION, "a malformed option");
            stream.read_exact(&mut vec![0; length as usize]).context("receive an option")?;
            let answer = |stream: &mut UnixStream, kind: u32, data: &[u8]| {
                let mut answer = OPTION_REPLY.to_be_bytes().to_vec();
                for field in [option, kind, data.len() as u32] {
                    answer.extend(field.to_be_bytes());
                }
                answer.extend(data);
                stream.write_all(&answer).context("answer an option")
            };
            match option {
                OPT_GO => {
                    answer(stream, REP_INFO, &[&[0, 0], &export[..]].concat())?;
                    return answer(stream, REP_ACK, &[]);
                }
                OPT_EXPORT_NAME => return stream.write_all(&export).context("answer an option"),
                OPT_ABORT => bail!("the client went away"),
                _ => answer(stream, REP_UNSUPPORTED, &[])?,
            }
        }
    }

    fn serve(&mut self, stream: &mut UnixStream) -> Result<()> {
        let mut data = Vec::new();
        loop {
            let mut head = [0; REQUEST_BYTES];
            match stream.read_exact(&mut head) {
                // nbdfuse leaves like that.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
                result => result.context("receive a request")?,
            }
            ensure!(be!(u32, head) == REQUEST, "a malformed request");
            let (command, offset, length) = (be!(u16, head[6..]), be!(u64, head[16..]), be!(u32, head[24..]));
            let inside = offset.checked_add(u64::from(length)).is_some_and(|end| end <= self.size);
            ensure!(inside && length <= LONGEST_REQUEST, "a request beyond the end, or too long");
            data.resize(length as usize, 0);
            let mut reply = REPLY.to_be_bytes().to_vec();
            reply.extend([0; 4]);
            reply.extend(&head[8..16]);
            match command {
                READ => {
                    self.disk.read_exact_at(&mut data, offset).context("read the disk")?;
                    reply.extend(&data);
                }
                WRITE => {
                    stream.read_exact(&mut data).context("receive data")?;
                    self.disk.write_all_at(&data, offset).context("write the disk")?;
                    self.trace.write_all(&head[16..REQUEST_BYTES]).context("write the trace")?;
                    self.trace.write_all(&data).context("write the trace")?;
                    self.writes.fetch_add(1, Ordering::SeqCst);
                }
                FLUSH => {}
                DISCONNECT => return Ok(()),
                _ => bail!("a command that was not offered: {command}"),
            }
            stream.write_all(&reply).context("reply")?;
        }
    }
}

/// Reads captured writes again, in their order.
pub(super) struct Trace {
    file: BufReader<File>,
}

impl Trace {
    /// From the begin.
    pub(super) fn open(path: &Path) -> Result<Trace> {
        let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        Ok(Trace { file: BufReader::with_capacity(1 << 20, file) })
    }

    /// Passes over so many writes; their bytes.
    pub(super) fn skip(&mut self, count: u64) -> Result<u64> {
        let mut bytes = 0;
        for _ in 0..count {
            let mut head = [0; HEAD];
            self.file.read_exact(&mut head).context("read the trace")?;
            let length = be!(u32, head[8..]);
            self.file.seek_relative(i64::from(length)).context("read the trace")?;
            bytes += u64::from(length);
        }
        Ok(bytes)
    }

    /// Appends the data of the next write to `out`; its offset.
    pub(super) fn next(&mut self, out: &mut Vec<u8>) -> Result<u64> {
        let mut head = [0; HEAD];
        self.file.read_exact(&mut head).context("read the trace")?;
        let start = out.len();
        out.resize(start + be!(u32, head[8..]) as usize, 0);
        self.file.read_exact(&mut out[start..]).context("read the trace")?;
        Ok(be!(u64, head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::Client;

    #[test]
    fn what_is_written_can_be_written_again() {
        let dir = std::env::temp_dir().join(format!("hindcast-capture-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let socket = dir.join("capture.sock");
        let capture = Capture::serve(&socket, 1 << 20).unwrap();
        let mut client = Client::connect(&socket, "any").unwrap();
        assert_eq!(client.size(), 1 << 20);
        let mut writes = vec![(4096, vec![1u8; 512]), (0, vec![2; 8192]), (4096, vec![3; 1024])].into_iter();
        let mut latencies = Vec::new();
        client
            .write(2, &mut latencies, |out| {
                Ok(writes.next().map(|(offset, data)| {
                    out.extend(data);
                    offset
                }))
            })
            .unwrap();
        client.flush().unwrap();
        assert_eq!((latencies.len(), capture.writes()), (3, 3));
        assert_eq!(client.read(4096, 2048).unwrap(), [[3; 1024], [2; 1024]].concat());
        drop(client);
        let path = capture.finish().unwrap();
        let mut trace = Trace::open(&path).unwrap();
        let mut all = Vec::new();
        let offsets: Vec<u64> = (0..3).map(|_| trace.next(&mut all).unwrap()).collect();
        assert_eq!((offsets, all.len()), (vec![4096, 0, 4096], 512 + 8192 + 1024));
        assert!(trace.next(&mut all).is_err());
        let mut trace = Trace::open(&path).unwrap();
        assert_eq!(trace.skip(2).unwrap(), 512 + 8192);
        assert_eq!(trace.next(&mut all).unwrap(), 4096);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
