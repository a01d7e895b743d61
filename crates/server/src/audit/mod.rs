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
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Name of the directory of the files, in the data directory.
pub(crate) const DIRECTORY: &str = "audit";
/// Name, kind and version of the file with the end of the chain.
pub(crate) const STORED: (&str, &str, u32) = ("audit-head", "audit-head", 1);
/// Maximum number of changes under way, each of which will have an entry, and maximum number of
/// other entries that wait for the thread.
const MAX_WAITING: usize = 1024;
/// Time that a request waits for the thread.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time after which a disk that does not answer is a problem.
const SLOW: Duration = Duration::from_secs(10);
/// Time that a stop waits for entries of requests that were answered or given up.
const LAST_ENTRIES: Duration = Duration::from_secs(5);

/// The audit of the admin API.
pub(crate) struct Audit {
    /// The limit of entries about refused requests.
    pub(crate) refusals: Refusals,
    files: Arc<Files>,
    /// Work for the thread. Its end is the end of the thread.
    jobs: Sender<Job>,
    changes: Arc<Semaphore>,
    others: Arc<Semaphore>,
}

/// A place for an entry. A change takes it before it begins, so that its entry is never the one too
/// many.
pub(crate) struct EntryTurn(#[expect(dead_code, reason = "its drop frees the place")] OwnedSemaphorePermit);

/// What the thread of the audit does for a request.
enum Work {
    Record(Box<AuditEntry>),
    /// Tries again after a failure.
    Retry,
    /// Ends the thread.
    End,
}

struct Job {
    work: Work,
    /// Held until the work is done, also if its request is given up.
    turn: Option<EntryTurn>,
    done: oneshot::Sender<std::result::Result<(), String>>,
}

type Answer = oneshot::Receiver<std::result::Result<(), String>>;

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
        let (jobs, work) = mpsc::channel();
        let theirs = files.clone();
        let started = std::thread::Builder::new().name("audit".into()).spawn(move || serve(&theirs, &work));
        if let Err(error) = started {
            files.set_problem(Some(format!("start the thread of the audit: {error}")));
        }
        let (changes, others) =
            (Arc::new(Semaphore::new(MAX_WAITING)), Arc::new(Semaphore::new(MAX_WAITING)));
        Audit { refusals: Refusals::default(), files, jobs, changes, others }
    }

    /// Checks that entries can be written, and returns the place for that of a change. After a
    /// failure the thread of the audit tries again.
    ///
    /// A disk that does not answer is a failure, too: a change would be made, and its entry may
    /// never be written.
    pub(crate) async fn ready(&self) -> std::result::Result<EntryTurn, String> {
        self.files.slow().map_or(Ok(()), Err)?;
        let turn = self.changes.clone().try_acquire_owned();
        let turn = turn.map_err(|_| format!("{MAX_WAITING} changes are under way"))?;
        if !self.files.usable.load(Ordering::Acquire) {
            self.ask(Work::Retry, None).await?;
        }
        Ok(EntryTurn(turn))
    }

    /// Writes an entry. The value of its `prev` is replaced. After a failure that is a time limit,
    /// the entry may still be written. The entry of a change has the place that
    /// [`Audit::ready`] returned.
    pub(crate) async fn record(
        &self,
        entry: AuditEntry,
        turn: Option<EntryTurn>,
    ) -> std::result::Result<(), String> {
        let turn = match turn {
            Some(turn) => turn,
            None => {
                let turn = self.others.clone().try_acquire_owned();
                EntryTurn(turn.map_err(|_| format!("{MAX_WAITING} entries wait for the disk"))?)
            }
        };
        self.ask(Work::Record(Box::new(entry)), Some(turn)).await
    }

    fn send(&self, work: Work, turn: Option<EntryTurn>) -> std::result::Result<Answer, String> {
        let (done, answer) = oneshot::channel();
        let ended = |_| "the thread of the audit has ended".to_owned();
        self.jobs.send(Job { work, turn, done }).map_err(ended)?;
        Ok(answer)
    }

    async fn ask(&self, work: Work, turn: Option<EntryTurn>) -> std::result::Result<(), String> {
        let answer = self.send(work, turn)?;
        let late = |_| format!("the disk did not answer within {} s", PATIENCE.as_secs());
        let answer = tokio::time::timeout(PATIENCE, answer).await.map_err(late)?;
        answer.map_err(|_| "the thread of the audit has ended".to_owned())?
    }

    /// Returns why entries can't be written.
    pub(crate) fn problem(&self) -> Option<String> {
        let problem = self.files.state.lock().problem.clone();
        problem.or_else(|| self.files.slow())
    }

    /// Writes the entries that wait, and ends the thread. It waits for [`LAST_ENTRIES`] at most.
    pub(crate) fn close(&self) {
        let until = Instant::now() + LAST_ENTRIES;
        let Ok(mut answer) = self.send(Work::End, None) else { return };
        while let Err(oneshot::error::TryRecvError::Empty) = answer.try_recv() {
            if Instant::now() >= until {
                tracing::error!("the audit's disk does not answer; entries of the last changes are lost");
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.keep_up();
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
    while let Ok(Job { work, turn, done }) = work.recv() {
        files.state.lock().writing = Some(Instant::now());
        let result = match work {
            Work::Record(entry) => files.record(*entry),
            Work::Retry => files.retry(),
            Work::End => return drop(done.send(Ok(()))),
        };
        files.state.lock().writing = None;
        drop(turn);
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

    /// Returns why an entry would wait, if the disk has not answered for long.
    fn slow(&self) -> Option<String> {
        let since = self.state.lock().writing;
        let time = since.map(|since| since.elapsed()).filter(|time| *time >= SLOW)?;
        Some(format!("the disk has not answered for {} s", time.as_secs()))
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
