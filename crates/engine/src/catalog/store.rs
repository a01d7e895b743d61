//! The transactional store under the catalog: redb, with what it lacks for a pool that lives on after faults.
//!
//! After an I/O error redb answers nothing any more, but a poisoned pool goes on serving reads that verify (I7): the
//! last durable state is then opened a second time, with its writes kept in memory. And redb may panic over a damaged
//! file; that is turned into [`ErrorKind::Corrupt`].

use super::backend::{DiskBackend, Overlay};
use crate::disk::{Backing, Disk};
use crate::error::{Error, ErrorKind, Result, corrupt};
use redb::{Database, ReadTransaction, ReadableDatabase, WriteTransaction};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Catalogs up to this size, in bytes, are verified whole when they are opened.
const VERIFIED_WHOLE: u64 = 64 << 20;
/// Page cache of the store that a poisoned pool reads, in bytes.
const FALLBACK_CACHE: usize = 8 << 20;

/// See the module.
pub(super) struct Store {
    disk: Arc<dyn Disk>,
    db: Guarded<Database>,
    /// The disk below `db` has panicked.
    panicked: Arc<AtomicBool>,
    fallback: OnceLock<Guarded<Database>>,
}

/// The engine's error for one of redb's.
pub(super) fn fail(what: &str, error: redb::Error) -> Error {
    match error {
        redb::Error::Io(io) => Error::io(what, io),
        redb::Error::Corrupted(_) => Error::with_source(ErrorKind::Corrupt, what, error),
        // After a panic over a page, or of a disk: nothing is to be had of this store any more.
        redb::Error::PreviousIo | redb::Error::LockPoisoned(_) => {
            Error::with_source(ErrorKind::Poisoned, what, error)
        }
        error => Error::with_source(ErrorKind::Io, what, error),
    }
}

/// `?` for redb's many error types.
macro_rules! db {
    ($what:expr, $result:expr) => {
        ($result).map_err(|e| $crate::catalog::store::fail($what, redb::Error::from(e)))?
    };
}
pub(super) use db;

/// Runs `f`; a panic of the store over damaged pages is an error like any other.
pub(super) fn guarded<T>(what: &str, f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f))
        .unwrap_or_else(|_| Err(corrupt(format!("{what}: the store is damaged"))))
}

/// Something of the store's that may panic over damage even when it is dropped.
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
    pub(super) fn open(disk: Arc<dyn Disk>, cache_bytes: usize) -> Result<Store> {
        let backend = DiskBackend::new(disk.clone());
        let panicked = backend.panicked();
        let db = Self::database("open the catalog", &disk, cache_bytes, backend)?;
        Ok(Store { disk, db, panicked, fallback: OnceLock::new() })
    }

    /// Opens without ever writing to `disk`.
    pub(super) fn open_untouched(disk: Arc<dyn Disk>, cache_bytes: usize) -> Result<Store> {
        let overlay = Overlay::new(disk.clone()).map_err(|e| Error::io("open the catalog", e))?;
        let db = Self::database("open the catalog", &disk, cache_bytes, overlay)?;
        Ok(Store { disk, db, panicked: Arc::default(), fallback: OnceLock::new() })
    }

    fn database(
        what: &str,
        disk: &Arc<dyn Disk>,
        cache_bytes: usize,
        backend: impl redb::StorageBackend,
    ) -> Result<Guarded<Database>> {
        let db = guarded(what, || {
            let mut builder = Database::builder();
            builder.set_cache_size(cache_bytes);
            let len = disk.len().map_err(|e| Error::io(what, e))?;
            builder.set_check_integrity_on_open((1..=VERIFIED_WHOLE).contains(&len));
            Ok(db!(what, builder.create_with_backend(backend)))
        })?;
        Ok(Guarded::new(db))
    }

    pub(super) fn begin_write(&self) -> Result<WriteTransaction> {
        self.check_current()?;
        guarded("begin a catalog transaction", || {
            let mut txn = db!("begin a catalog transaction", self.db.get()?.begin_write());
            txn.set_quick_repair(true);
            Ok(txn)
        })
    }

    /// Fails where reads are served from the last durable state already: what was committed now, they would not see.
    pub(super) fn check_current(&self) -> Result<()> {
        match self.fallback.get() {
            None => Ok(()),
            Some(_) => Err(Error::new(ErrorKind::Poisoned, "write to the catalog: it has failed before")),
        }
    }

    /// Reads in one snapshot.
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

    /// Nothing is to be had of the store any more: not of the page alone that `error` speaks of.
    fn is_lost(&self, error: &Error) -> bool {
        match error.kind() {
            ErrorKind::Poisoned => true,
            // A panic over damage, or one that has left the store's locks poisoned: then no transaction begins.
            ErrorKind::Corrupt => {
                let begin = || self.db.get().is_ok_and(|db| db.begin_read().is_ok());
                !catch_unwind(AssertUnwindSafe(begin)).unwrap_or(false)
            }
            ErrorKind::Io => self.panicked.load(Ordering::Acquire),
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
        let overlay = Overlay::new(self.disk.clone()).map_err(|e| Error::io(what, e))?;
        let db = Self::database(what, &self.disk, FALLBACK_CACHE, overlay)?;
        Ok(self.fallback.get_or_init(|| db))
    }
}
