//! What histories are asked and what they report.
//!
//! Times are nanoseconds. A moment is a place in the order of records: after one record, before the
//! next.

use crate::clock::ClockChange;
use crate::settings::CdpSettings;

/// A moment of a volume's past, as somebody names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moment {
    /// After the record with this LSN: 0 and LSNs of other volumes' records are moments too.
    Lsn(u64),
    /// After the last write not later than this by the wall clock: nanoseconds since the Unix
    /// epoch. Where the clock was put back and said this more than once, the newest time counts.
    Time(u64),
    /// A mark.
    Mark(String),
    /// The last flush not later than this: nanoseconds since the Unix epoch. It is later than the
    /// writes that it covers.
    FlushBefore(u64),
    /// The last flush that covers nothing after the record with this LSN.
    FlushUpTo(u64),
    /// After the last write not later than this by the pool's own time: see
    /// [`crate::pool::Pool::ago`].
    PoolTime(u64),
    /// The last flush not later than this by the pool's own time.
    FlushBeforePoolTime(u64),
}

/// A moment that was found: fixed, whatever is written afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// Everything up to here is part of it, and nothing after.
    pub lsn: u64,
    /// Nanoseconds since the Unix epoch.
    pub time: u64,
    /// The line of history that it is on: another one after each rollback.
    pub branch: u64,
    /// The volume's size then, in bytes.
    pub size: u64,
}

/// A named moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// Its name, unique among the volume's marks.
    pub name: String,
    /// LSN.
    pub lsn: u64,
    /// Nanoseconds since the Unix epoch.
    pub time: u64,
}

/// An anchor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anchor {
    /// The moment of it.
    pub lsn: u64,
    /// Nanoseconds since the Unix epoch.
    pub time: u64,
    /// The name of the snapshot that it is, if that is in sight.
    pub snapshot: Option<String>,
}

/// A stretch of time in which a volume wrote to one line of history, with CDP on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The line.
    pub branch: u64,
    /// First moment that can be gone back to: (LSN, time).
    pub from: (u64, u64),
    /// Last one: (LSN, time). `None` while the span goes on.
    pub to: Option<(u64, u64)>,
}

/// How much was written in a stretch of time, from the segments' summaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bucket {
    /// Where it starts.
    pub from: u64,
    /// Records.
    pub records: u64,
    /// Bytes that the host wrote.
    pub written: u64,
    /// Bytes of log.
    pub stored: u64,
}

/// What of a volume's past can be gone back to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    /// Oldest first; more than one after rollbacks, or where CDP was off for a while.
    pub spans: Vec<Span>,
    /// Oldest first.
    pub anchors: Vec<Anchor>,
    /// In the order of LSNs.
    pub marks: Vec<Mark>,
    /// Consistency points by FLUSH, the newest of them: (LSN, time).
    pub flushes: Vec<(u64, u64)>,
    /// Change over time, in buckets of equal length from the first moment to the last.
    pub buckets: Vec<Bucket>,
    /// Where the clock was set, oldest first. All times here are what it said, so they may go back
    /// there.
    pub clock: Vec<ClockChange>,
}

/// One change of a range: the part of a record that lies in one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// LSN of the record.
    pub lsn: u64,
    /// Nanoseconds since the Unix epoch.
    pub time: u64,
    /// Byte offset in the volume.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// The state of a volume's CDP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CdpInfo {
    /// `None`: it is off, and what was kept of the past is still there.
    pub settings: Option<CdpSettings>,
    /// Writes of chunks between two anchors, now; `None`: no limit.
    pub distance: Option<u64>,
    /// First moment that can be gone back to: (LSN, time).
    pub from: Option<(u64, u64)>,
    /// Records in the log.
    pub records: u64,
    /// Bytes that the host wrote, as far as records of them are kept.
    pub written: u64,
    /// Bytes of payload in records, compressed.
    pub payload: u64,
    /// Bytes of log files.
    pub stored: u64,
    /// Segments.
    pub segments: u64,
    /// Anchors.
    pub anchors: u64,
    /// Nanoseconds that can be gone back, from now.
    pub window: u64,
    /// Retention by time is not achieved, though history has been long enough: the limit in bytes,
    /// which there is, is too low.
    pub short: bool,
}
