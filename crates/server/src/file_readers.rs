//! The processes that read files in views: their start, their requests and their end.
//!
//! A process reads one view, for one request at a time. It stays for a while after a request, so
//! that a client that walks through directories does not wait for a start each time.

use crate::views::Views;
use hindcast_engine::device::BlockDevice;
use hindcast_engine::{Error, ErrorKind, Result, Volume};
use hindcast_files::{Device, Failure, FailureKind, Reading, Request, sandbox};
use parking_lot::Mutex;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde::de::DeserializeOwned;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};

/// The running program, also if its file was replaced since it started.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// The command of the program that is a reader.
pub const READER_COMMAND: &str = "file-reader";
/// Settings of the allocator in a reader, which has little memory and one thread.
const ALLOCATOR: (&str, &str) = ("_RJEM_MALLOC_CONF", "background_thread:false,narenas:1");
/// Largest number of processes that work at the same time. Each has as much memory as
/// [`sandbox::MEMORY`].
const MAX_WORKING: usize = 4;
/// Largest number of processes that wait for another request.
const MAX_IDLE: usize = 4;
/// Time after which a process that waits is ended.
const IDLE: Duration = Duration::from_secs(30);
/// Content for which a process gets another second of processor time, in bytes.
const BYTES_PER_SECOND: u64 = 16 << 20;

/// The content of a view, as a reader's disk.
struct Content(Arc<Volume>);

impl Device for Content {
    fn size(&self) -> u64 {
        self.0.info().size
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::result::Result<(), String> {
        self.0.read(offset, out).map_err(|error| error.to_string())
    }
}

/// A reader's process. Its drop ends it.
struct Process {
    child: Child,
    reading: Reading<Content>,
    view: String,
    last_use: Instant,
    /// Content that it has delivered, in bytes.
    delivered: u64,
    /// Processor time that it may use, in seconds.
    seconds: u64,
}

impl Process {
    fn start(view: &str, content: Arc<Volume>) -> io::Result<Process> {
        let (ours, theirs) = UnixStream::pair()?;
        let child = Command::new(OWN_PROGRAM)
            .arg0("hindcast")
            .arg(READER_COMMAND)
            .env_clear()
            .env(ALLOCATOR.0, ALLOCATOR.1)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let reading = Reading::begin(ours, Content(content))?;
        let (view, last_use) = (view.to_owned(), Instant::now());
        Ok(Process { child, reading, view, last_use, delivered: 0, seconds: sandbox::SECONDS })
    }

    fn ask<T: DeserializeOwned>(
        &mut self,
        request: &Request,
        take: &mut dyn FnMut(Vec<u8>) -> io::Result<()>,
    ) -> std::result::Result<T, Failure> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let (delivered, seconds) = (&mut self.delivered, &mut self.seconds);
        self.reading.ask(request, &mut |piece| {
            *delivered += piece.len() as u64;
            let earned = sandbox::SECONDS + *delivered / BYTES_PER_SECOND;
            if earned > *seconds {
                *seconds = earned;
                prlimit(pid, Resource::Cpu, Rlimit { current: Some(earned), maximum: None })?;
            }
            take(piece)
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The processes that read files, and their limits.
pub(crate) struct FileReaders {
    idle: Mutex<Vec<Process>>,
    places: Semaphore,
}

impl FileReaders {
    pub(crate) fn new() -> Self {
        FileReaders { idle: Mutex::default(), places: Semaphore::new(MAX_WORKING) }
    }

    /// Sends a request about a view to a process. Content of a file goes to `take`.
    pub(crate) fn ask<T: DeserializeOwned>(
        &self,
        views: &Views,
        view: &str,
        request: &Request,
        take: &mut dyn FnMut(Vec<u8>) -> io::Result<()>,
    ) -> Result<T> {
        // Also for a process that waits: a view that has ended shows nothing.
        let content = views.content(view)?;
        let _place = self.place()?;
        let waiting = {
            let mut idle = self.idle.lock();
            idle.iter().position(|process| process.view == view).map(|at| idle.swap_remove(at))
        };
        let mut process = match waiting {
            Some(process) => process,
            None => Process::start(view, content)
                .map_err(|e| Error::io(format!("start a process that reads files of view {view}"), e))?,
        };
        let answer = process.ask(request, take);
        if answer.as_ref().is_err_and(|failure| failure.kind == FailureKind::Reader) {
            tracing::warn!(view, process = process.child.id(), "a process that reads files was ended");
        } else {
            process.last_use = Instant::now();
            self.keep(process, views);
        }
        answer.map_err(error)
    }

    fn place(&self) -> Result<SemaphorePermit<'_>> {
        self.places.try_acquire().map_err(|_| {
            let text = "read files: too many clients read files; try again later";
            Error::new(ErrorKind::Busy, text)
        })
    }

    /// Keeps a process for another request, unless its view has ended.
    fn keep(&self, process: Process, views: &Views) {
        let mut idle = self.idle.lock();
        if views.content(&process.view).is_err() {
            return;
        }
        idle.push(process);
        if idle.len() > MAX_IDLE {
            let oldest = (0..idle.len()).min_by_key(|at| idle[*at].last_use);
            let oldest = oldest.map(|at| idle.swap_remove(at));
            drop(idle);
            drop(oldest);
        }
    }

    /// Ends the processes that wait too long, or whose view has ended.
    pub(crate) fn end_idle(&self, views: &Views) {
        let is_over = |process: &mut Process| {
            process.last_use.elapsed() >= IDLE || views.content(&process.view).is_err()
        };
        let over: Vec<Process> = self.idle.lock().extract_if(.., is_over).collect();
        drop(over);
    }
}

/// Returns the error of a failure. A guest's damaged file system is no defect of this server.
fn error(failure: Failure) -> Error {
    let kind = match failure.kind {
        FailureKind::NotFound => ErrorKind::NotFound,
        FailureKind::Invalid => ErrorKind::Invalid,
        FailureKind::Unsupported | FailureKind::Reader => ErrorKind::Unsupported,
        FailureKind::Disk => ErrorKind::Io,
    };
    Error::new(kind, failure.message)
}
