//! The transactional store under the catalog: redb, and what redb lacks for a pool that lives on
//! after faults.
//!
//! After an I/O error, or a panic while one of its locks is held, redb refuses everything. But a
//! poisoned pool continues to serve reads that verify (I7). So the last durable state is then
//! opened a second time, with its writes kept in memory. A block that does not verify fails only
//! the operation that needs it: see [`super::blocks`]. redb may panic over a damaged file. Such a
//! panic is turned into [`ErrorKind::Corrupt`].

use super::backend::{BlockBackend, Latched, MemoryBackend};
use super::blocks::{met, named};
use crate::disk::{Backing, Disk};
use crate::error::{Error, ErrorKind, Result, corrupt};
use redb::{Database, ReadTransaction, ReadableDatabase, WriteTransaction};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Bytes of page cache of the store that a poisoned pool reads.
const FALLBACK_CACHE: usize = 8 << 20;

/// The store of a catalog: an open redb database, and the fallback for reads after a failure.
pub(super) struct Store {
    disk: Arc<dyn Disk>,
    below: BlockBackend,
    db: Guarded<Database>,
    /// The storage below `db` has panicked.
    panicked: Arc<AtomicBool>,
    fallback: OnceLock<Guarded<Database>>,
    /// Reads come from `fallback`, or a reader is opening it.
    failed: AtomicBool,
}

/// Converts an error of redb into one of the engine.
pub(super) fn fail(what: &str, error: redb::Error) -> Error {
    match error {
        redb::Error::Io(io) if io.kind() == std::io::ErrorKind::InvalidData => {
            Error::with_source(ErrorKind::Corrupt, what, io)
        }
        // The store answers nothing any more after any error of its file: so this is no shortage.
        redb::Error::Io(io) => Error::io(what, io).lasting(),
        redb::Error::Corrupted(ref text) => match named(text) {
            Some(block) => damaged(what, block),
            None => Error::with_source(ErrorKind::Corrupt, what, error),
        },
        // A panic over a page, or of a disk, came before. This store can't be used any more.
        redb::Error::PreviousIo | redb::Error::LockPoisoned(_) => {
            Error::with_source(ErrorKind::Poisoned, what, error)
        }
        error => Error::with_source(ErrorKind::Io, what, error),
    }
}

/// Returns the error of an operation that needed a block which does not verify.
fn damaged(what: &str, block: u64) -> Error {
    corrupt(format!("{what}: block {block} of the catalog does not verify"))
}

/// Applies `?` to redb's many error types.
macro_rules! db {
    ($what:expr, $result:expr) => {
        ($result).map_err(|e| $crate::catalog::store::fail($what, redb::Error::from(e)))?
    };
}
pub(super) use db;

/// Runs `f`, an operation of the store. If `f` was given a block that does not verify, the
/// operation fails, whatever `f` returns. A panic of the store over damaged pages becomes an error.
pub(super) fn guarded<T>(what: &str, f: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = met();
    let result = catch_unwind(AssertUnwindSafe(f))
        .unwrap_or_else(|_| Err(corrupt(format!("{what}: the store is damaged"))));
    let after = met();
    if after == before { result } else { Err(damaged(what, after.1)) }
}

/// An object of the store that may panic over damage even when it is dropped.
pub(super) struct Guarded<T>(Option<T>);

impl<T> Guarded<T> {
    pub(super) fn new(inner: T) -> Self {
        Guarded(Some(inner))
    }

    pub(super) fn get(&self) -> Result<&T> {
        self.0.as_ref().ok_or_else(|| corrupt("use the catalog: it is closed"))
    }

    pub(super) fn take(mut self) -> Result<T> {
        self.0.take().ok_or_else(|| corrupt("use the catalog: it is closed"))
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        let inner = self.0.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(inner)));
    }
}

impl Store {
    /// Opens the store on `below`, which lies in `disk`.
    pub(super) fn open(disk: Arc<dyn Disk>, below: BlockBackend, cache_bytes: usize) -> Result<Store> {
        let backend = Latched::new(below.clone());
        let panicked = backend.panicked();
        let db = database("open the catalog", backend, cache_bytes, false)?;
        Ok(Store { disk, below, db, panicked, fallback: OnceLock::new(), failed: AtomicBool::new(false) })
    }

    /// Opens the store without ever writing to `disk`.
    pub(super) fn open_untouched(
        disk: Arc<dyn Disk>,
        below: BlockBackend,
        cache_bytes: usize,
    ) -> Result<Store> {
        let overlay = MemoryBackend::new(below.clone()).map_err(|e| Error::io("open the catalog", e))?;
        let whole = matches!(below, BlockBackend::Plain(_));
        let db = database("open the catalog", overlay, cache_bytes, whole)?;
        let (panicked, failed) = (Arc::default(), AtomicBool::new(false));
        Ok(Store { disk, below, db, panicked, fallback: OnceLock::new(), failed })
    }

    pub(super) fn below(&self) -> &BlockBackend {
        &self.below
    }

    /// Reads everything that belongs to the last commit, and verifies it, by the store's own sums
    /// too. It takes as long as reading the whole file.
    pub(super) fn verify(&self) -> Result<()> {
        let what = "verify the catalog";
        // As long as this transaction lives, the store overwrites nothing of this commit or a later
        // one.
        let _pages = guarded(what, || Ok(db!(what, self.db.get()?.begin_read())))?;
        let overlay = MemoryBackend::new(self.below.clone()).map_err(|e| Error::io(what, e))?;
        database(what, overlay, FALLBACK_CACHE, true).map(drop)
    }

    /// Refuses changes after reads come, or are about to come, from a second opening of the last
    /// durable state. That opening does not see changes.
    pub(super) fn check_writable(&self) -> Result<()> {
        if self.failed.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Poisoned, "change the catalog: its store has failed"));
        }
        Ok(())
    }

    pub(super) fn begin_write(&self) -> Result<WriteTransaction> {
        self.check_writable()?;
        guarded("begin a catalog transaction", || {
            let mut txn = db!("begin a catalog transaction", self.db.get()?.begin_write());
            txn.set_quick_repair(true);
            Ok(txn)
        })
    }

    /// Runs a read in one snapshot of the store.
    pub(super) fn read<T>(&self, what: &str, mut f: impl FnMut(&ReadTransaction) -> Result<T>) -> Result<T> {
        let mut on = |db: &Guarded<Database>| guarded(what, || f(&db!(what, db.get()?.begin_read())));
        if let Some(fallback) = self.fallback.get() {
            return on(fallback);
        }
        match on(&self.db) {
            Err(error) if self.is_lost(&error) => on(self.fall_back()?),
            result => result,
        }
    }

    /// Returns whether the whole store is unusable, and not only the page that `error` is about.
    fn is_lost(&self, error: &Error) -> bool {
        match error.kind() {
            ErrorKind::Poisoned => true,
            // A disk that has panicked answers nothing any more.
            ErrorKind::Io if self.panicked.load(Ordering::Acquire) => true,
            // A panic over damage may have left a lock of the store poisoned: then no transaction
            // begins.
            ErrorKind::Corrupt => {
                let begin = || self.db.get().is_ok_and(|db| db.begin_read().is_ok());
                !catch_unwind(AssertUnwindSafe(begin)).unwrap_or(false)
            }
            _ => false,
        }
    }

    pub(super) fn backing_available(&self) -> std::io::Result<Option<Backing>> {
        self.disk.backing_available()
    }

    pub(super) fn file_bytes(&self) -> std::io::Result<u64> {
        self.disk.len()
    }

    fn fall_back(&self) -> Result<&Guarded<Database>> {
        let what = "open the catalog again";
        // A commit that does not see the flag is complete, and what is opened now sees the commit.
        self.failed.store(true, Ordering::SeqCst);
        let overlay = MemoryBackend::new(self.below.clone()).map_err(|e| Error::io(what, e))?;
        let whole = matches!(self.below, BlockBackend::Plain(_));
        let db = database(what, overlay, FALLBACK_CACHE, whole)?;
        Ok(self.fallback.get_or_init(|| db))
    }
}

/// Opens redb on `backend`. With `whole` redb verifies every page by its own sums.
pub(super) fn database(
    what: &str,
    backend: impl redb::StorageBackend,
    cache_bytes: usize,
    whole: bool,
) -> Result<Guarded<Database>> {
    let db = guarded(what, || {
        let mut builder = Database::builder();
        builder.set_cache_size(cache_bytes);
        let len = backend.len().map_err(|e| Error::io(what, e))?;
        builder.set_check_integrity_on_open(whole && len > 0);
        Ok(db!(what, builder.create_with_backend(backend)))
    })?;
    Ok(Guarded::new(db))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Dir, MemDir, OpenMode};
    use crate::testing::{FaultyDir, Op};
    use std::sync::atomic::AtomicU64;

    /// Opens a store, and changes many rows in some commits.
    fn change_rows(disk: &Arc<dyn Disk>) -> Result<Store> {
        let table = redb::TableDefinition::<u64, &[u8]>::new("t");
        let store = Store::open(disk.clone(), BlockBackend::Plain(disk.clone()), 16 << 10)?;
        for round in 0..4u64 {
            let txn = store.begin_write()?;
            guarded("change rows", || {
                let mut table = db!("change rows", txn.open_table(table));
                for row in (0..200).filter(|row| (row + round) % 3 > 0) {
                    db!("change rows", table.insert(row, &[round as u8; 500][..]));
                }
                for row in (0..200).filter(|row| (row + round) % 3 == 0) {
                    db!("change rows", table.remove(row));
                }
                Ok(())
            })?;
            guarded("commit", || Ok(db!("commit", txn.commit())))?;
        }
        Ok(store)
    }

    /// redb's page cache is small, so that it also writes pages while it reads others, with a lock
    /// held. A panic there would poison the lock. Closing such a store may panic twice.
    #[test]
    fn a_panic_of_the_disk_is_an_error_wherever_it_comes() {
        let mut panics = 0;
        // The first operation makes the file.
        for at in 2.. {
            let done = Arc::new(AtomicU64::new(0));
            let count = done.clone();
            let dir = FaultyDir::new(MemDir::new(), move |_: &Op<'_>| {
                assert_ne!(count.fetch_add(1, Ordering::SeqCst) + 1, at, "injected into a disk");
                None
            });
            let disk = dir.open("catalog", OpenMode::Create);
            let result = disk.map(|disk| catch_unwind(AssertUnwindSafe(|| change_rows(&disk).map(drop))));
            assert!(result.is_ok_and(|result| result.is_ok()), "operation {at} lets a panic through");
            if done.load(Ordering::SeqCst) < at {
                break;
            }
            panics += 1;
        }
        assert!(panics > 30, "{panics}");
    }
}
