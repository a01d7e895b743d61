//! Traces of disk accesses ([`Traces`]): the server writes what the pool traces to a file.

use crate::periodic::{Waker, Worker};
use hindcast_api::{Trace, TraceReason};
use hindcast_engine::disk::{Dir, Disk, FileDir, OpenMode, TraceDisk, TraceEncoder, TraceEnd, TracePart};
use hindcast_engine::pool::Pool;
use hindcast_engine::{Error, ErrorKind, Result};
use jiff::Timestamp;
use parking_lot::Mutex;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Name of the directory of traces, in the data directory.
pub(crate) const DIRECTORY: &str = "traces";
/// Size of a file at which a trace ends, if the request names none.
const MAX_SIZE: u64 = 256 << 20;
/// Smallest size of a file that a request may name.
const LEAST_SIZE: u64 = 4 << 10;
/// A trace ends when the file system has fewer bytes left. The pool needs them more.
const LEAST_LEFT: u64 = 256 << 20;
/// Interval at which accesses are written.
const TURN: Duration = Duration::from_millis(250);

/// What a trace is to be.
#[derive(Debug, Default)]
pub(crate) struct TraceWish {
    /// Path of the file. `None`: a new one in the data directory.
    pub(crate) path: Option<String>,
    /// Size in bytes of the file at which the trace ends.
    pub(crate) max_size: Option<u64>,
    /// Number of seconds after which the trace ends.
    pub(crate) seconds: Option<u64>,
}

/// The trace that is under way, and what is known of the last one.
pub(crate) struct Traces {
    data: PathBuf,
    running: Mutex<Option<Running>>,
    shown: Arc<Mutex<Trace>>,
}

struct Running {
    worker: Worker,
    writer: Arc<Mutex<Writer>>,
}

impl Traces {
    pub(crate) fn new(data: &Path) -> Traces {
        Traces { data: data.to_owned(), running: Mutex::default(), shown: Arc::default() }
    }

    /// Returns what is known of the trace that is under way, or of the last one.
    pub(crate) fn show(&self) -> Trace {
        self.shown.lock().clone()
    }

    /// Begins a trace. Returns [`ErrorKind::Conflict`] if one is under way, or if the file exists.
    pub(crate) fn begin(&self, pool: &Arc<Pool>, wanted: TraceWish) -> Result<Trace> {
        let invalid = |text: &str| Err(Error::new(ErrorKind::Invalid, format!("begin a trace: {text}")));
        if wanted.max_size.is_some_and(|size| size < LEAST_SIZE) {
            return invalid("its file needs at least 4 KiB");
        }
        if wanted.seconds == Some(0) {
            return invalid("it needs at least a second");
        }
        let mut running = self.running.lock();
        let head = pool.begin_trace()?;
        let begun = self.open(pool, &wanted).and_then(|(path, disk)| {
            let max_size = wanted.max_size.unwrap_or(MAX_SIZE);
            let mut writer = Writer {
                pool: pool.clone(),
                disk,
                encoder: TraceEncoder::default(),
                at: 0,
                is_full: false,
                began: Instant::now(),
                disks: Vec::new(),
                shown: self.shown.clone(),
                now: Trace {
                    running: true,
                    path: Some(path.clone()),
                    started: Some(Timestamp::now()),
                    max_size,
                    seconds: wanted.seconds,
                    ..Trace::default()
                },
            };
            let written = writer.put(head.encode(), &TracePart::default());
            written.map_err(|e| Error::io(format!("write {path}"), e))?;
            let writer = Arc::new(Mutex::new(writer));
            let work = writer.clone();
            let turn = move || work.lock().turn();
            let worker = Worker::start_paced("trace", TURN, Waker::default(), turn);
            let worker = worker.map_err(|e| Error::io("start the trace thread", e))?;
            Ok((path, Running { worker, writer }))
        });
        match begun {
            Ok((path, new)) => {
                tracing::info!(event = "trace.began", path, "a trace of disk accesses begins");
                *running = Some(new);
                Ok(self.show())
            }
            Err(error) => {
                pool.end_trace();
                Err(error)
            }
        }
    }

    /// Creates the file. Returns its path, and the file.
    fn open(&self, pool: &Pool, wanted: &TraceWish) -> Result<(String, Arc<dyn Disk>)> {
        let (dir, path) = match &wanted.path {
            Some(path) => (FileDir::new(&self.data), path.clone()),
            None if pool.is_only_shown() => {
                let text = "begin a trace: the pool is open read-only, and its data directory with it; name a file elsewhere";
                return Err(Error::new(ErrorKind::Conflict, text));
            }
            None => {
                let directory = self.data.join(DIRECTORY);
                let failed = |e| Error::io(format!("create {}", directory.display()), e);
                let now = Timestamp::now();
                let name =
                    format!("{}-{:03}.trace", now.strftime("%Y%m%dT%H%M%SZ"), now.subsec_millisecond());
                (FileDir::create(&directory).map_err(failed)?, directory.join(name).display().to_string())
            }
        };
        match dir.open(&path, OpenMode::CreateNew) {
            Ok(disk) => Ok((path, disk)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(Error::new(ErrorKind::Conflict, format!("create {path}: it exists already")))
            }
            Err(error) => Err(Error::io(format!("create {path}"), error)),
        }
    }

    /// Ends the trace that is under way. Returns [`ErrorKind::NotFound`] if there is none.
    pub(crate) fn end(&self, end: TraceEnd) -> Result<Trace> {
        let mut running = self.running.lock();
        let Some(Running { worker, writer }) = running.take() else {
            return Err(Error::new(ErrorKind::NotFound, "end the trace: none is under way"));
        };
        worker.stop();
        let mut writer = writer.lock();
        // It may have ended by itself a moment ago.
        if writer.now.running {
            writer.finish(end, None);
        }
        Ok(writer.now.clone())
    }
}

/// Writes a trace to its file.
struct Writer {
    pool: Arc<Pool>,
    disk: Arc<dyn Disk>,
    encoder: TraceEncoder,
    /// Bytes of the file.
    at: u64,
    /// The file had no room for an access.
    is_full: bool,
    began: Instant,
    /// The disks that the file knows.
    disks: Vec<TraceDisk>,
    /// What requests see. It is not locked while the file is written.
    shown: Arc<Mutex<Trace>>,
    /// What `shown` becomes.
    now: Trace,
}

impl Writer {
    /// Writes the accesses since the last turn, and ends the trace if it is time.
    fn turn(&mut self) -> ControlFlow<(), Duration> {
        if !self.now.running {
            return ControlFlow::Break(());
        }
        let part = self.pool.take_trace();
        if let Err(error) = self.put(Vec::new(), &part) {
            self.fail(&error);
            return ControlFlow::Break(());
        }
        let is_over = self.now.seconds.is_some_and(|most| self.began.elapsed() >= Duration::from_secs(most));
        let left = self.disk.backing_available().ok().flatten();
        let end = match () {
            () if self.is_full || self.at >= self.now.max_size => TraceEnd::Size,
            () if is_over => TraceEnd::Time,
            () if left.is_some_and(|left| left.available < LEAST_LEFT) => TraceEnd::Full,
            () => return ControlFlow::Continue(self.pause()),
        };
        self.finish(end, None);
        ControlFlow::Break(())
    }

    /// Returns the time until the next turn.
    fn pause(&self) -> Duration {
        let left =
            self.now.seconds.map(|most| Duration::from_secs(most).saturating_sub(self.began.elapsed()));
        left.map_or(TURN, |left| left.min(TURN))
    }

    /// Writes bytes, the disks that are new, and accesses. Accesses that the file has no room for
    /// are lost, and end the trace.
    fn put(&mut self, mut bytes: Vec<u8>, part: &TracePart) -> io::Result<()> {
        let disks = self.pool.traced_disks();
        if disks != self.disks {
            self.encoder.disks(&disks, &mut bytes);
            self.disks = disks;
        }
        let room = self.now.max_size.saturating_sub(self.at + bytes.len() as u64);
        let written = self.encoder.accesses(part, room, &mut bytes);
        self.append(&bytes)?;
        if written < part.len() {
            // The next one would have no room either.
            self.is_full = true;
        }
        self.now.accesses += written as u64;
        self.now.lost = self.encoder.lost();
        self.now.size = self.at;
        *self.shown.lock() = self.now.clone();
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !bytes.is_empty() {
            self.disk.write_at(bytes, self.at)?;
            self.at += bytes.len() as u64;
        }
        Ok(())
    }

    /// Ends the trace after an error of its file.
    fn fail(&mut self, error: &io::Error) {
        let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        self.finish(if is_full { TraceEnd::Full } else { TraceEnd::Failed }, Some(error.to_string()));
    }

    fn finish(&mut self, end: TraceEnd, error: Option<String>) {
        let rest = self.pool.end_trace();
        self.now.error = error;
        if self.now.error.is_none()
            && let Err(error) = self.put(Vec::new(), &rest)
        {
            self.now.error = Some(error.to_string());
        }
        let mut bytes = Vec::new();
        let at = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.encoder.end(end, at, &mut bytes);
        // A file without an end is one that was cut off, and the status has the reason.
        let _ = self.append(&bytes);
        self.now.size = self.at;
        self.now.running = false;
        self.now.ended = Some(Timestamp::now());
        self.now.reason = Some(reason(end));
        *self.shown.lock() = self.now.clone();
        let Trace { path, accesses, lost, error, .. } = &self.now;
        let reason = reason(end).name();
        let path = path.as_deref().unwrap_or_default();
        match error {
            None => tracing::info!(event = "trace.ended", path, reason, accesses, lost, "a trace has ended"),
            Some(error) => {
                tracing::warn!(
                    event = "trace.ended",
                    path,
                    reason,
                    accesses,
                    lost,
                    error,
                    "a trace has ended"
                );
            }
        }
    }
}

fn reason(end: TraceEnd) -> TraceReason {
    match end {
        TraceEnd::Stopped => TraceReason::Stopped,
        TraceEnd::Size => TraceReason::Size,
        TraceEnd::Time => TraceReason::Time,
        TraceEnd::Full => TraceReason::Full,
        TraceEnd::Shutdown => TraceReason::Shutdown,
        TraceEnd::Failed => TraceReason::Failed,
    }
}
