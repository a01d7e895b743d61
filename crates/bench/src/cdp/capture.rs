//! A block device behind an NBD server that keeps all writes in a file. The real writes of a
//! program can then be repeated on other volumes.

use anyhow::{Context, Result, bail};
use hindcast_engine as engine;
use hindcast_engine::device::{BlockDevice, DeviceInfo, StatusRun, WriteOp};
use hindcast_target::nbd::{Listen, NbdConfig, NbdServer};
use hindcast_target::{ExportEntry, Exports};
use parking_lot::Mutex;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Largest write in bytes as which zeros are captured.
const ZEROS: u64 = 1 << 20;
/// Longest time that a client may take to disconnect.
const GRACE: Duration = Duration::from_secs(30);

/// An NBD server that captures all writes to its disk.
pub(super) struct Capture {
    server: NbdServer,
    disk: Arc<Disk>,
    trace: PathBuf,
}

impl Capture {
    /// Serves an empty disk of `size` bytes on `socket`, under any export name. The files of the
    /// disk and of its trace are beside the socket.
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
        let writer = BufWriter::with_capacity(1 << 20, open(&trace)?);
        let disk = Arc::new(Disk { file, size, trace: Mutex::new(writer), writes: AtomicU64::new(0) });
        let config = NbdConfig { listen: vec![Listen::Unix(socket.to_owned())], ..NbdConfig::default() };
        let server =
            NbdServer::start(config, Arc::new(OneDisk(disk.clone()))).context("serve a disk to capture")?;
        Ok(Capture { server, disk, trace })
    }

    /// Returns the number of writes so far.
    pub(super) fn writes(&self) -> u64 {
        self.disk.writes.load(Ordering::SeqCst)
    }

    /// Waits until the clients have disconnected, and returns the path of the trace with all
    /// writes. Fails if a client does not disconnect.
    pub(super) fn finish(self) -> Result<PathBuf> {
        if self.server.shutdown(GRACE) > 0 {
            bail!("capture writes: a client does not leave");
        }
        self.disk.trace.lock().flush().context("write the trace")?;
        Ok(self.trace)
    }
}

/// The captured disk. Its file holds the content. Its trace holds all writes in their order, each
/// as offset (8 bytes), length (4 bytes), and data.
struct Disk {
    file: File,
    size: u64,
    trace: Mutex<BufWriter<File>>,
    writes: AtomicU64,
}

impl Disk {
    /// Writes to the disk and to the trace, in the same order.
    fn capture(&self, offset: u64, data: &[u8]) -> engine::Result<()> {
        let length = u32::try_from(data.len()).map_err(|_| {
            engine::Error::new(engine::ErrorKind::Invalid, "capture a write of more than 4 GiB")
        })?;
        let mut trace = self.trace.lock();
        let write = self.file.write_all_at(data, offset).and_then(|()| {
            trace.write_all(&offset.to_be_bytes())?;
            trace.write_all(&length.to_be_bytes())?;
            trace.write_all(data)
        });
        write.map_err(|e| engine::Error::io("capture a write", e))?;
        self.writes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// All changes are captured as data. Zeros and discarded ranges are captured as writes of zeros.
impl BlockDevice for Disk {
    fn info(&self) -> DeviceInfo {
        let size = self.size;
        DeviceInfo {
            size,
            block_size: 512,
            preferred_size: 4096,
            read_only: false,
            uuid: uuid::Uuid::from_bytes([0; 16]),
        }
    }

    fn try_read(&self, _: u64, _: &mut [u8]) -> engine::Result<bool> {
        Ok(false)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> engine::Result<()> {
        self.file.read_exact_at(buf, offset).map_err(|e| engine::Error::io("read the captured disk", e))
    }

    fn write(&self, ops: &mut [WriteOp], _fua: bool) {
        for op in ops {
            op.result = self.capture(op.offset, &op.data);
        }
    }

    /// Does nothing. The disk is needed only during the measurement, so nothing has to be durable.
    fn flush(&self) -> engine::Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64, fua: bool) -> engine::Result<()> {
        self.write_zeroes(offset, len, true, fua)
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: bool, _fua: bool) -> engine::Result<()> {
        let end = offset + len;
        let zeros = vec![0; ZEROS.min(len) as usize];
        (offset..end)
            .step_by(ZEROS as usize)
            .try_for_each(|at| self.capture(at, &zeros[..ZEROS.min(end - at) as usize]))
    }

    fn block_status(&self, _: u64, len: u64, _: usize) -> engine::Result<Vec<StatusRun>> {
        Ok(vec![StatusRun { length: len, allocated: true, zero: false }])
    }

    fn cache(&self, _: u64, _: u64) -> engine::Result<()> {
        Ok(())
    }
}

/// Exports the captured disk under every name.
struct OneDisk(Arc<Disk>);

impl Exports for OneDisk {
    fn list(&self) -> Vec<ExportEntry> {
        vec![ExportEntry { name: "captured".into(), description: String::new() }]
    }

    fn open(&self, _: &str) -> engine::Result<Arc<dyn BlockDevice>> {
        Ok(self.0.clone())
    }
}

/// Reads the captured writes in their order.
pub(super) struct Trace {
    file: BufReader<File>,
}

impl Trace {
    /// Opens a trace at its beginning.
    pub(super) fn open(path: &Path) -> Result<Trace> {
        let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        Ok(Trace { file: BufReader::with_capacity(1 << 20, file) })
    }

    /// Skips `count` writes, and returns the number of their bytes.
    pub(super) fn skip(&mut self, count: u64) -> Result<u64> {
        let mut bytes = 0;
        for _ in 0..count {
            let (_, length) = self.head()?;
            self.file.seek_relative(i64::from(length)).context("read the trace")?;
            bytes += u64::from(length);
        }
        Ok(bytes)
    }

    /// Appends the data of the next write to `out`, and returns the offset of the write.
    pub(super) fn next(&mut self, out: &mut Vec<u8>) -> Result<u64> {
        let (offset, length) = self.head()?;
        let start = out.len();
        out.resize(start + length as usize, 0);
        self.file.read_exact(&mut out[start..]).context("read the trace")?;
        Ok(offset)
    }

    /// Reads the offset and the length of the next write.
    fn head(&mut self) -> Result<(u64, u32)> {
        let (mut offset, mut length) = ([0; 8], [0; 4]);
        self.file.read_exact(&mut offset).context("read the trace")?;
        self.file.read_exact(&mut length).context("read the trace")?;
        Ok((u64::from_be_bytes(offset), u32::from_be_bytes(length)))
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
