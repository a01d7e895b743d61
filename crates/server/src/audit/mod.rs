//! The audit: a file a month with one line of JSON for each request that changed something or was
//! refused.
//!
//! Each line has the SHA-256 of the line before it. So a line that is changed or removed later
//! breaks the chain. The chain goes on from file to file.
//!
//! One thread writes the files. So a disk that does not answer stops neither the threads that serve
//! connections nor those that read.

mod chain;
mod entry;
mod read;
mod refusals;
#[cfg(test)]
mod tests;

pub(crate) use entry::without_secrets;
pub(crate) use read::{EntryPlace, Wanted};

use crate::atomic_file::DurableFile;
use crate::realtime;
use chain::{Chain, Head, lengths};
use hindcast_api::{AuditEntry, AuditVerification};
use hindcast_engine::disk::Dir;
use hindcast_engine::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use refusals::Refusals;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Name of the directory of the files, in the data directory.
pub(crate) const DIRECTORY: &str = "audit";
/// Name, kind and version of the file with the end of the chain.
pub(crate) const STORED: (&str, &str, u32) = ("audit-head", "audit-head", 1);
/// Maximum number of entries that wait for the thread.
const MAX_WAITING: usize = 1024;
/// Time that a request waits for the thread.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time after which a disk that does not answer is a problem.
const SLOW: Duration = Duration::from_secs(10);

/// The audit of the admin API.
pub(crate) struct Audit {
    /// The limit of entries about refused requests.
    pub(crate) refusals: Refusals,
    files: Arc<Files>,
    /// Work for the thread. Its end is the end of the thread.
    jobs: SyncSender<Job>,
}

/// What the thread of the audit does for a request.
enum Work {
    Record(Box<AuditEntry>),
    /// Tries again after a failure.
    Retry,
}

struct Job {
    work: Work,
    done: oneshot::Sender<std::result::Result<(), String>>,
}

/// The files of the audit.
struct Files {
    /// `None`: the pool is only shown, and nothing is written to the data directory.
    dir: Option<PathBuf>,
    /// The file with the end of the chain.
    head: DurableFile,
    /// Held while the files are written, which may take as long as the disk does.
    chain: Mutex<Chain>,
    /// Whether the last entry was written. Threads that must not wait read it.
    usable: AtomicBool,
    state: Mutex<State>,
}

/// What is known of the files. Its lock is never held while a disk is waited for.
#[derive(Default)]
struct State {
    /// Why the last entry could not be written.
    problem: Option<String>,
    /// Since when the thread of the audit has been writing.
    writing: Option<Instant>,
}

/// Checks the content of the file with the end of the chain.
pub(crate) fn verify(content: &[u8]) -> Result<()> {
    decode(content).map(drop)
}

fn decode(content: &[u8]) -> Result<Head> {
    let wrong = |e: serde_json::Error| Error::new(ErrorKind::Corrupt, format!("read {}: {e}", STORED.0));
    serde_json::from_slice(content).map_err(wrong)
}

impl Audit {
    /// Opens the audit in the data directory. `own` is the directory of the server's own files. If
    /// the audit can't be read or written, the server starts, and changes are refused.
    pub(crate) fn open(data: Option<&Path>, own: Arc<dyn Dir>) -> Audit {
        let files = Arc::new(Files::open(data.map(|data| data.join(DIRECTORY)), own));
        let (jobs, work) = mpsc::sync_channel(MAX_WAITING);
        let theirs = files.clone();
        let started = std::thread::Builder::new().name("audit".into()).spawn(move || serve(&theirs, &work));
        if let Err(error) = started {
            files.set_problem(Some(format!("start the thread of the audit: {error}")));
        }
        Audit { refusals: Refusals::default(), files, jobs }
    }

    /// Checks that entries can be written. After a failure the thread of the audit tries again.
    pub(crate) async fn ready(&self) -> std::result::Result<(), String> {
        match self.files.usable.load(Ordering::Acquire) {
            true => Ok(()),
            false => self.ask(Work::Retry).await,
        }
    }

    /// Writes an entry. The value of its `prev` is replaced. After a failure that is a time limit,
    /// the entry may still be written.
    pub(crate) async fn record(&self, entry: AuditEntry) -> std::result::Result<(), String> {
        self.ask(Work::Record(Box::new(entry))).await
    }

    async fn ask(&self, work: Work) -> std::result::Result<(), String> {
        let (done, answer) = oneshot::channel();
        self.jobs.try_send(Job { work, done }).map_err(|e| match e {
            mpsc::TrySendError::Full(_) => format!("{MAX_WAITING} entries wait for the disk"),
            mpsc::TrySendError::Disconnected(_) => "the thread of the audit has ended".to_owned(),
        })?;
        let late = |_| format!("the disk did not answer within {} s", PATIENCE.as_secs());
        let answer = tokio::time::timeout(PATIENCE, answer).await.map_err(late)?;
        answer.map_err(|_| "the thread of the audit has ended".to_owned())?
    }

    /// Returns why entries can't be written.
    pub(crate) fn problem(&self) -> Option<String> {
        let state = self.files.state.lock();
        let slow = state.writing.map(|since| since.elapsed()).filter(|time| *time >= SLOW);
        let slow = slow.map(|time| format!("the disk has not answered for {} s", time.as_secs()));
        state.problem.clone().or(slow)
    }

    /// Does what is due from time to time: it writes how many refusals have no entries, makes the
    /// entries durable, and writes down where they end.
    pub(crate) fn keep_up(&self) {
        for entry in self.refusals.left_out(Instant::now()) {
            // A failure is the health's problem from then on.
            let _ = self.files.record(entry);
        }
        self.files.sync();
    }

    /// Returns the newest entries that are wanted, the oldest of them first.
    pub(crate) fn page(&self, wanted: &Wanted) -> io::Result<Vec<AuditEntry>> {
        self.files.dir.as_deref().map_or(Ok(Vec::new()), |dir| read::page(dir, wanted))
    }

    /// Verifies the chain of all files.
    pub(crate) fn verify(&self) -> io::Result<AuditVerification> {
        let Some(dir) = &self.files.dir else { return Ok(read::nothing()) };
        // Entries that are added meanwhile are not verified, and do not wait.
        let (files, head) = {
            let chain = self.files.chain.try_lock_for(SLOW);
            let chain = chain.ok_or_else(|| io::Error::other("an entry waits for the disk"))?;
            let whole = self.files.usable.load(Ordering::Acquire);
            (lengths(dir)?, whole.then_some(chain.head))
        };
        read::verify(dir, files, head)
    }
}

/// Writes entries until the audit is dropped.
fn serve(files: &Files, work: &Receiver<Job>) {
    realtime::lower();
    while let Ok(Job { work, done }) = work.recv() {
        files.state.lock().writing = Some(Instant::now());
        let result = match work {
            Work::Record(entry) => files.record(*entry),
            Work::Retry => files.retry(),
        };
        files.state.lock().writing = None;
        // The request may have been given up.
        let _ = done.send(result);
    }
}

impl Files {
    fn open(dir: Option<PathBuf>, own: Arc<dyn Dir>) -> Files {
        let (name, kind, version) = STORED;
        let head = DurableFile::new(own, name, kind, version);
        let opened = dir.as_deref().map_or(Ok(Chain::empty()), |dir| {
            let known = head.load()?.map(|content| decode(&content)).transpose()?;
            Chain::open(dir, known.as_ref()).map_err(|e| Error::io("open the audit", e))
        });
        let problem = opened.as_ref().err().map(ToString::to_string);
        if let Some(problem) = &problem {
            tracing::error!(problem, "the audit can't be used; changes are refused");
        }
        let usable = AtomicBool::new(problem.is_none());
        let chain = Mutex::new(opened.unwrap_or_else(|_| Chain::empty()));
        Files { dir, head, chain, usable, state: Mutex::new(State { problem, writing: None }) }
    }

    fn set_problem(&self, problem: Option<String>) {
        self.usable.store(problem.is_none(), Ordering::Release);
        self.state.lock().problem = problem;
    }

    fn record(&self, entry: AuditEntry) -> std::result::Result<(), String> {
        tracing::info!(
            who = entry.who,
            address = entry.address,
            method = entry.method,
            subject = entry.subject,
            status = entry.status,
            error = entry.error,
            "audit"
        );
        let Some(dir) = &self.dir else { return Ok(()) };
        // Nothing is appended to files whose end is not known.
        self.retry()?;
        let written = self.chain.lock().append(dir, entry).map_err(|e| e.to_string());
        if let Err(error) = &written {
            tracing::error!(error, "the audit can't be written; changes are refused");
            self.set_problem(Some(error.clone()));
        }
        written
    }

    /// Opens the files again, if the last entry could not be written.
    fn retry(&self) -> std::result::Result<(), String> {
        let Some(dir) = &self.dir else { return Ok(()) };
        if self.usable.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut chain = self.chain.lock();
        let opened = self
            .known(&chain)
            .and_then(|known| chain.reopen(dir, known.as_ref()).map_err(|e| Error::io("open the audit", e)));
        drop(chain);
        let result = opened.map_err(|e| e.to_string());
        self.set_problem(result.as_ref().err().cloned());
        result
    }

    /// Returns the last end of the chain that is known: that of this process, or the stored one.
    fn known(&self, chain: &Chain) -> Result<Option<Head>> {
        match chain.end() {
            Some(end) => Ok(Some(end)),
            None => self.head.load()?.map(|content| decode(&content)).transpose(),
        }
    }

    /// Makes the entries durable, and writes down where they end.
    fn sync(&self) {
        // The lock is not held during the sync. Entries wait for it as little as possible.
        let unsynced = self.chain.lock().take_unsynced();
        let saved = unsynced.map(|unsynced| {
            let (file, head) = unsynced?;
            file.sync_data()?;
            // Only what survives a power loss is written down, so that it is never missing later.
            let content = serde_json::to_vec(&head)?;
            self.head.save(&content).map_err(io::Error::other)
        });
        if let Some(Err(error)) = saved {
            self.chain.lock().sync_failed();
            tracing::warn!(%error, "the audit could not be synced");
        }
    }
}
