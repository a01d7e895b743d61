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
/// Largest number of processes that answer questions at the same time, and of those that send
/// content. Each has as much memory as [`sandbox::MEMORY`].
const MAX_WORKING: usize = 4;
/// Time for which a question waits for a place, and the pause between two looks.
const WAIT: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(10);
/// Largest number of processes that wait for another request.
const MAX_IDLE: usize = 4;
/// Time after which a process that waits is ended.
const IDLE: Duration = Duration::from_secs(30);
/// Content after which a process gets its processor time anew, in bytes.
const MORE_TIME: u64 = 64 << 20;

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
    child: Ended,
    reading: Reading<Content>,
    view: String,
    last_use: Instant,
}

/// A child that is killed and waited for when this is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Ended {
    /// Gives the process the time of [`sandbox::SECONDS`] from now on. If that fails, it has what
    /// is left.
    fn renew_time(&self) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        if let Some(used) = seconds_used(self.0.id()) {
            let limit = Rlimit { current: Some(used + sandbox::SECONDS), maximum: None };
            let _ = prlimit(pid, Resource::Cpu, limit);
        }
    }
}

/// Returns the processor time that a process has used, in whole seconds, rounded up.
fn seconds_used(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before the parenthesis may contain blanks. Fields 14 and 15 of proc_pid_stat(5).
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let ticks = ticks()? + ticks()?;
    Some(ticks.div_ceil(rustix::param::clock_ticks_per_second().max(1)))
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
            .current_dir("/")
            .spawn()
            .map(Ended)?;
        let reading = Reading::begin(ours, Content(content))?;
        let (view, last_use) = (view.to_owned(), Instant::now());
        Ok(Process { child, reading, view, last_use })
    }

    fn ask<T: DeserializeOwned>(
        &mut self,
        request: &Request,
        take: &mut dyn FnMut(Vec<u8>) -> io::Result<()>,
    ) -> std::result::Result<T, Failure> {
        self.child.renew_time();
        let mut delivered = 0;
        self.reading.ask(request, &mut |piece| {
            delivered += piece.len() as u64;
            if delivered >= MORE_TIME {
                delivered = 0;
                self.child.renew_time();
            }
            take(piece)
        })
    }
}

/// The processes that read files, and their limits.
pub(crate) struct FileReaders {
    idle: Mutex<Vec<Process>>,
    /// The views of the requests under way.
    working: Mutex<Vec<String>>,
    questions: Semaphore,
    /// Requests for content last as long as their clients take it.
    contents: Semaphore,
}

/// A request under way.
struct Working<'r> {
    readers: &'r FileReaders,
    view: &'r str,
    _place: SemaphorePermit<'r>,
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let mut working = self.readers.working.lock();
        if let Some(at) = working.iter().position(|view| view == self.view) {
            working.swap_remove(at);
        }
    }
}

impl FileReaders {
    pub(crate) fn new() -> Self {
        let (questions, contents) = (Semaphore::new(MAX_WORKING), Semaphore::new(MAX_WORKING));
        FileReaders { idle: Mutex::default(), working: Mutex::default(), questions, contents }
    }

    /// Returns whether somebody reads files of a view now.
    pub(crate) fn is_reading(&self, view: &str) -> bool {
        self.working.lock().iter().any(|working| working == view)
    }

    /// Sends a request about a view to a process. Content of a file goes to `take`. When the view
    /// ends, so does the request.
    pub(crate) fn ask<T: DeserializeOwned>(
        &self,
        views: &Views,
        view: &str,
        request: &Request,
        take: &mut dyn FnMut(Vec<u8>) -> io::Result<()>,
    ) -> Result<T> {
        // Also for a process that waits: a view that has ended shows nothing.
        let content = views.content(view)?;
        let _working = self.begin(view, request)?;
        let waiting = {
            let mut idle = self.idle.lock();
            idle.iter().position(|process| process.view == view).map(|at| idle.swap_remove(at))
        };
        let mut process = match waiting {
            Some(process) => process,
            None => Process::start(view, content)
                .map_err(|e| Error::io(format!("start a process that reads files of view {view}"), e))?,
        };
        let answer = process.ask(request, &mut |piece| {
            views.content(view).map_err(io::Error::other)?;
            take(piece)
        });
        if let Some(failure) = answer.as_ref().err().filter(|failure| failure.kind == FailureKind::Reader) {
            tracing::debug!(view, %failure, "a process that reads files is ended");
        } else {
            process.last_use = Instant::now();
            self.keep(process, views);
        }
        answer.map_err(error)
    }

    fn begin<'r>(&'r self, view: &'r str, request: &Request) -> Result<Working<'r>> {
        // Content lasts as long as its client takes it. A question is answered soon, so others
        // wait.
        let (places, until) = match request {
            Request::Read { .. } => (&self.contents, Instant::now()),
            _ => (&self.questions, Instant::now() + WAIT),
        };
        let place = loop {
            match places.try_acquire() {
                Ok(place) => break place,
                Err(_) if Instant::now() < until => std::thread::sleep(PAUSE),
                Err(_) => {
                    let text = "read files: too many clients read files; try again later";
                    return Err(Error::new(ErrorKind::Busy, text));
                }
            }
        };
        self.working.lock().push(view.to_owned());
        Ok(Working { readers: self, view, _place: place })
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
