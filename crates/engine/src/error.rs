//! The engine's only error type. An error has a small kind that states what the caller can do, a
//! context that begins with a verb, and the source.

use std::fmt;
use std::io;

/// A kind of error, by what a caller can do about it. Targets map kinds to protocol codes, and the
/// CLI maps them to exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The named object does not exist: check the name.
    NotFound,
    /// The name or state conflicts with what exists: choose another name, or use force where a
    /// command has it.
    Conflict,
    /// The request can never succeed as written: misaligned, malformed, out of a limit.
    Invalid,
    /// The request reaches past the end of the volume.
    OutOfRange,
    /// The device or the pool accepts no writes by configuration.
    ReadOnly,
    /// The pool cannot promise the space: free some or add a physical volume, then retry.
    NoSpace,
    /// A disk returned an error for this request. The pool continues to work.
    Io,
    /// Stored bytes do not verify. They are never served: run `hindcast check`.
    Corrupt,
    /// A part of a volume's history can't be reconstructed, because records that are needed for it
    /// are damaged. Everything that is served is right.
    Lost,
    /// The pool refuses writes after a failed write or sync (I7): restart the server to recover.
    Poisoned,
    /// Another process or an unfinished operation holds what the request needs: retry later.
    Busy,
    /// The request is not available in this configuration or format version.
    Unsupported,
    /// The image that a volume rests on is missing, or has changed: make it available again, then
    /// retry.
    Unavailable,
}

/// Linux's error numbers that have no [`io::ErrorKind`]: the system, or the process, has no
/// descriptor left.
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

/// Returns whether an error is a shortage that passes (of descriptors, memory, threads, or space),
/// and not a fault of a disk.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    use io::ErrorKind::{OutOfMemory, QuotaExceeded, StorageFull, WouldBlock};
    matches!(error.kind(), StorageFull | QuotaExceeded | OutOfMemory | WouldBlock)
        || matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

/// Returns the outcome of two operations that ran in parallel. If both failed, the error is the one
/// after which less can be done. After a shortage the operation is tried again as if nothing had
/// happened. What failed on a physical volume is done elsewhere.
pub(crate) fn both<T>(first: Result<T>, second: Result<()>) -> Result<T> {
    let rank = |error: &Error| match () {
        () if error.is_shortage() => 0,
        () if error.is_pv_failure() => 1,
        () => 2,
    };
    match (first, second) {
        (Err(first), Err(second)) if rank(&first) < rank(&second) => Err(second),
        (Err(first), _) => Err(first),
        (first, second) => second.and(first),
    }
}

/// The engine's result type.
pub type Result<T> = std::result::Result<T, Error>;

/// An engine error. `Clone` because one failed group write answers many requests.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    context: String,
    source: Option<std::sync::Arc<dyn std::error::Error + Send + Sync>>,
    after: After,
    at: Option<u64>,
}

/// The state of the pool after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// The state that the error's kind implies.
    Kind,
    /// The outcome is uncertain. The error is no shortage, whatever its kind.
    Uncertain,
    /// A physical volume has failed and is not written to any more. Other physical volumes may be
    /// written to.
    PvFailed,
    /// The work that failed was taken back, and can be done again at once: a physical volume has
    /// failed, or a repair comes first.
    TakenBack,
    /// A physical volume does not answer. It may come back with all that it holds.
    PvAway,
}

impl Error {
    /// Makes an error without a source. `context` begins with a verb: "open journal segment 3".
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Error { kind, context: context.into(), source: None, after: After::Kind, at: None }
    }

    /// Makes an I/O error with its source. `ENOSPC` becomes [`ErrorKind::NoSpace`], other shortages
    /// become [`ErrorKind::Busy`].
    pub fn io(context: impl Into<String>, source: io::Error) -> Self {
        let kind = match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::ResourceBusy => ErrorKind::Busy,
            _ if is_shortage(&source) => ErrorKind::Busy,
            _ => ErrorKind::Io,
        };
        let source = Some(std::sync::Arc::new(source) as std::sync::Arc<_>);
        Error { kind, context: context.into(), source, after: After::Kind, at: None }
    }

    /// Returns whether the error is a shortage that passes (descriptors, memory, threads, space, a
    /// disk that does not answer), and not a fault of a disk. Work that failed with a shortage has
    /// changed nothing, and can be tried again.
    pub fn is_shortage(&self) -> bool {
        match self.after {
            After::Kind => matches!(self.kind, ErrorKind::NoSpace | ErrorKind::Busy),
            After::TakenBack | After::PvAway => true,
            After::Uncertain | After::PvFailed => false,
        }
    }

    /// Returns whether a physical volume has failed and is not written to any more. The work that
    /// failed with this error counts for nothing, and can be done again elsewhere.
    pub(crate) fn is_pv_failure(&self) -> bool {
        self.after == After::PvFailed
    }

    /// Returns whether the work that failed was taken back, and can be done again at once: without
    /// the physical volume that has failed, or after a repair.
    pub(crate) fn is_taken_back(&self) -> bool {
        self.after == After::TakenBack
    }

    /// Returns whether the error is that a physical volume does not answer.
    pub(crate) fn is_pv_away(&self) -> bool {
        self.after == After::PvAway
    }

    /// Marks the error as one of an operation after which nothing is certain: a sync, or a commit.
    /// The error is then no shortage, whatever its cause.
    pub(crate) fn lasting(self) -> Self {
        Error { after: After::Uncertain, ..self }
    }

    /// Marks the error as one of a physical volume that has failed.
    pub(crate) fn of_failed_pv(self) -> Self {
        Error { after: After::PvFailed, ..self }
    }

    /// Marks the error as one of work that is taken back, and can be done again at once.
    pub(crate) fn taken_back(self) -> Self {
        Error { after: After::TakenBack, ..self }
    }

    /// Marks the error as one of a physical volume that does not answer.
    pub(crate) fn of_absent_pv(self) -> Self {
        Error { after: After::PvAway, ..self }
    }

    /// Makes an error of `kind` caused by `source`.
    pub fn with_source(
        kind: ErrorKind,
        context: impl Into<String>,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        let source = Some(std::sync::Arc::new(source) as std::sync::Arc<_>);
        Error { kind, context: context.into(), source, after: After::Kind, at: None }
    }

    /// Puts the error into the context of a larger operation.
    pub(crate) fn within(self, context: impl Into<String>) -> Self {
        let (kind, after, at) = (self.kind, self.after, self.at);
        Error { after, at, ..Error::with_source(kind, context, self) }
    }

    /// Names the first byte that can't be read, in the addresses of what the caller reads.
    pub fn with_byte(self, at: u64) -> Self {
        Error { at: Some(at), ..self }
    }

    /// Translates the first byte that can't be read, if the error names one.
    pub(crate) fn map_byte(self, translate: impl FnOnce(u64) -> u64) -> Self {
        Error { at: self.at.map(translate), ..self }
    }

    /// Returns the first byte that can't be read, if it is known. An error of a volume gives the
    /// byte of the volume.
    pub fn byte(&self) -> Option<u64> {
        self.at
    }

    /// Returns the kind of the error: what the caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)?;
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.kind)
    }
}

impl std::error::Error for Error {}

/// Constructors for errors without a source, used in the whole engine.
macro_rules! ctor {
    ($($name:ident => $kind:ident),*) => {$(
        pub(crate) fn $name(context: impl Into<String>) -> Error {
            Error::new(ErrorKind::$kind, context)
        }
    )*};
}
ctor!(corrupt => Corrupt, invalid => Invalid, conflict => Conflict, not_found => NotFound, no_space => NoSpace);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_hides_no_other_failure() {
        let short = || Err::<(), _>(no_space("x"));
        let failed = || Err::<(), _>(Error::new(ErrorKind::Io, "sync"));
        for outcome in [both(short(), failed()), both(failed(), short()), both(Ok(()), failed())] {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Io);
        }
        let pv = || Err::<(), _>(Error::new(ErrorKind::Io, "write").of_failed_pv());
        for outcome in [both(short(), pv()), both(pv(), short())] {
            assert!(outcome.unwrap_err().is_pv_failure());
        }
        for outcome in [both(failed(), pv()), both(pv(), failed())] {
            let error = outcome.unwrap_err();
            assert!(!error.is_pv_failure() && !error.is_shortage());
        }
        let lasting = Err(no_space("commit").lasting());
        assert!(!both(short(), lasting).unwrap_err().is_shortage());
        assert!(both(short(), short()).unwrap_err().is_shortage() && both(Ok(7), Ok(())).unwrap() == 7);
    }
}
