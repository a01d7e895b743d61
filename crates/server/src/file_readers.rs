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
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The running program, also if its file was replaced since it started.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// The command of the program that is a reader.
pub const READER_COMMAND: &str = "file-reader";
/// Settings of the allocator in a reader, which has little memory and one thread.
const ALLOCATOR: (&str, &str) = ("_RJEM_MALLOC_CONF", "background_thread:false,narenas:1");
/// Largest number of processes that answer questions at the same time, and of those that send
/// content. Each has as much memory as [`sandbox::MEMORY`].
const MAX_WORKING: usize = 4;
/// Time for which a question waits for a place.
const WAIT: Duration = Duration::from_secs(3);
/// Time for which a view counts as in use after a request. A client that reads several files has
/// the time to ask again, also if its lease ended during the first of them.
const REST: Duration = Duration::from_secs(60);
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
    /// The views in use.
    uses: Mutex<BTreeMap<String, Use>>,
    questions: Arc<Semaphore>,
    /// Requests for content last as long as their clients take it.
    contents: Arc<Semaphore>,
}

/// The use of one view.
struct Use {
    /// Number of requests under way.
    requests: usize,
    /// Time of the last end of a request.
    ended: Instant,
}

/// A place among the requests at the same time.
pub(crate) struct ReadingPlace(
    #[expect(dead_code, reason = "its drop frees the place")] OwnedSemaphorePermit,
);

/// A request under way.
struct Working<'r> {
    readers: &'r FileReaders,
    view: &'r str,
    _place: ReadingPlace,
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        if let Some(of_view) = self.readers.uses.lock().get_mut(self.view) {
            of_view.requests -= 1;
            of_view.ended = Instant::now();
        }
    }
}

impl FileReaders {
    pub(crate) fn new() -> Self {
        let (questions, contents) = (Semaphore::new(MAX_WORKING), Semaphore::new(MAX_WORKING));
        let (questions, contents) = (Arc::new(questions), Arc::new(contents));
        FileReaders { idle: Mutex::default(), uses: Mutex::default(), questions, contents }
    }

    /// Returns whether somebody reads files of a view, or did so a moment ago.
    pub(crate) fn is_in_use(&self, view: &str) -> bool {
        let of_view = |of_view: &Use| of_view.requests > 0 || of_view.ended.elapsed() < REST;
        self.uses.lock().get(view).is_some_and(of_view)
    }

    /// Waits for a place for a question. It is answered soon, so other questions wait.
    pub(crate) async fn question(&self) -> Result<ReadingPlace> {
        let place = tokio::time::timeout(WAIT, self.questions.clone().acquire_owned()).await;
        place.ok().and_then(|place| place.ok()).map(ReadingPlace).ok_or_else(busy)
    }

    /// Returns a place for content. Content lasts as long as its client takes it.
    pub(crate) fn content(&self) -> Result<ReadingPlace> {
        self.contents.clone().try_acquire_owned().map(ReadingPlace).map_err(|_| busy())
    }

    /// Sends a request about a view to a process. Content of a file goes to `take`. When the view
    /// ends, so does the request.
    pub(crate) fn ask<T: DeserializeOwned>(
        &self,
        views: &Views,
        view: &str,
        place: ReadingPlace,
        request: &Request,
        take: &mut dyn FnMut(Vec<u8>) -> io::Result<()>,
    ) -> Result<T> {
        // Also for a process that waits: a view that has ended shows nothing.
        let content = views.content(view)?;
        let _working = self.begin(view, place);
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

    fn begin<'r>(&'r self, view: &'r str, place: ReadingPlace) -> Working<'r> {
        let mut uses = self.uses.lock();
        uses.retain(|_, of_view| of_view.requests > 0 || of_view.ended.elapsed() < REST);
        let of_view = uses.entry(view.to_owned()).or_insert(Use { requests: 0, ended: Instant::now() });
        of_view.requests += 1;
        Working { readers: self, view, _place: place }
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

fn busy() -> Error {
    Error::new(ErrorKind::Busy, "read files: too many clients read files; try again later")
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
