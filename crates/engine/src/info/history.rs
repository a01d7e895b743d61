//! Queries of histories and their answers.
//!
//! Times are nanoseconds. A moment is a place in the order of records: after one record, and before
//! the next.

use crate::clock::ClockChange;
use crate::ids::{BranchId, Lsn, Stamp};
use crate::settings::CdpSettings;

/// A moment of a volume's past, as a caller names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moment {
    /// The moment after the record with this LSN. 0 and LSNs of other volumes' records are moments
    /// too.
    Lsn(Lsn),
    /// The moment after the last write not later than this time of the wall clock, in nanoseconds
    /// since the Unix epoch. If the clock was put back and showed this time more than once, the
    /// newest one counts.
    Time(u64),
    /// The moment of a mark, by its name.
    Mark(String),
    /// The last flush not later than this time, in nanoseconds since the Unix epoch. A flush is
    /// later than the writes that it covers.
    FlushBefore(u64),
    /// The last flush that covers nothing after the record with this LSN.
    FlushUpTo(Lsn),
    /// The moment after the last write not later than this pool time: see
    /// [`crate::pool::Pool::ago`].
    PoolTime(u64),
    /// The last flush not later than this pool time.
    FlushBeforePoolTime(u64),
}

/// A moment that was found. It stays fixed, whatever is written afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// The moment includes everything up to this LSN, and nothing after it.
    pub lsn: Lsn,
    /// Time of the moment, in nanoseconds since the Unix epoch.
    pub time: u64,
    /// The branch on which the moment lies. Each rollback begins another branch.
    pub branch: BranchId,
    /// The volume's size at the moment, in bytes.
    pub size: u64,
}

/// A named moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// Name, unique among the volume's marks.
    pub name: String,
    /// LSN of the moment.
    pub lsn: Lsn,
    /// Time of the moment, in nanoseconds since the Unix epoch.
    pub time: u64,
}

/// An anchor of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anchor {
    /// LSN of the anchor's moment.
    pub lsn: Lsn,
    /// Time of the anchor's moment, in nanoseconds since the Unix epoch.
    pub time: u64,
    /// The name of the anchor's snapshot, if that is visible.
    pub snapshot: Option<String>,
}

/// A stretch of time in which a volume wrote to one branch, with CDP on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The branch.
    pub branch: BranchId,
    /// The first moment that can be shown.
    pub from: Stamp,
    /// The last moment. `None` while the span continues.
    pub to: Option<Stamp>,
}

/// The amount that was written in a stretch of time, from the segments' summaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bucket {
    /// The time at which the stretch begins.
    pub from: u64,
    /// Number of records.
    pub records: u64,
    /// Number of bytes that the host wrote.
    pub written: u64,
    /// Number of bytes of log.
    pub stored: u64,
}

/// The recorded past of a volume: the moments that can be shown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    /// Spans, oldest first. There is more than one after rollbacks, or if CDP was off for a while.
    pub spans: Vec<Span>,
    /// Anchors, oldest first.
    pub anchors: Vec<Anchor>,
    /// Marks, in the order of LSNs.
    pub marks: Vec<Mark>,
    /// The newest consistency points by FLUSH.
    pub flushes: Vec<Stamp>,
    /// Changes over time, in buckets of equal length from the first moment to the last.
    pub buckets: Vec<Bucket>,
    /// The changes of the clock, oldest first. All times here are those of the wall clock, so they
    /// may go back at these places.
    pub clock: Vec<ClockChange>,
}

/// One change of a range: the part of a record that lies in one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// LSN of the record.
    pub lsn: Lsn,
    /// Time of the record, in nanoseconds since the Unix epoch.
    pub time: u64,
    /// Byte offset in the volume.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

/// The state of a volume's CDP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CdpInfo {
    /// The settings; `None` when CDP is off. The recorded history then still exists.
    pub settings: Option<CdpSettings>,
    /// Number of chunk writes between two anchors, at present; `None`: no limit.
    pub distance: Option<u64>,
    /// The first moment that can be shown.
    pub from: Option<Stamp>,
    /// Number of records in the log.
    pub records: u64,
    /// Number of bytes that the host wrote, as far as records of them are kept.
    pub written: u64,
    /// Number of bytes of payload in records, compressed.
    pub payload: u64,
    /// Number of bytes of log files.
    pub stored: u64,
    /// Number of bytes of replaced content that the records need in slots.
    pub kept: u64,
    /// Number of segments.
    pub segments: u64,
    /// Number of anchors.
    pub anchors: u64,
    /// Length of the history up to now, in nanoseconds.
    pub window: u64,
    /// Time of the newest write in the log.
    pub newest: Option<u64>,
    /// Retention by time is not achieved, though the history is old enough: the limit in bytes is
    /// too low.
    pub short: bool,
}
