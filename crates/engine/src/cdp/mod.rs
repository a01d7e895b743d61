//! Continuous data protection: a volume keeps every write between its snapshots, and can be read as it was at any moment.
//!
//! While a batch is preserved each of its records becomes one record of the branch's CDP log for every chunk that it
//! touches ([`record`], [`segment`]; Yang et al., "ST-CDP: Snapshots in TRAP for Continuous Data Protection"). *Anchors*
//! are snapshots, mostly hidden ones, between which few records have to be applied to find a chunk as it was.

pub(crate) mod append;
mod codec;
mod compact;
mod control;
#[cfg(test)]
mod descriptors;
pub(crate) mod flushes;
pub(crate) mod log;
pub mod model;
pub(crate) mod moment;
mod past;
mod rebuild;
pub(crate) mod record;
pub(crate) mod recorded;
mod retain;
pub(crate) mod room;
pub(crate) mod runs;
mod sample;
pub(crate) mod segment;
mod sort;
pub(crate) mod thin;
mod way;

#[cfg(feature = "fuzzing")]
pub(crate) use codec::unpack;
pub use codec::{Compression, Encoding};
pub use moment::moment_uuid;
pub use sample::CdpSample;

use crate::clock::ClockChange;
use crate::error::{Result, invalid};

/// A discard of more bytes than this is not recorded: it comes right behind an anchor.
pub(crate) const LONG_DISCARD: u64 = 1 << 20;

/// When anchors are inserted: a moment is found from the nearest one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AnchorPolicy {
    /// Never, but when CDP begins or its encoding changes: the paper's native TRAP.
    Never,
    /// After so many writes of chunks: one that touches several counts for each, as it is recorded for each.
    Every(u64),
    /// After so many nanoseconds in which there were writes.
    Interval(u64),
    /// After as many writes as the cost model says: see [`crate::pool::Pool::set_anchor_distance`].
    #[default]
    Model,
}

/// How long history is kept. Without any limit it is kept until the volume is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    /// Nanoseconds that can be gone back, at least, if `bytes` allows it.
    pub time: Option<u64>,
    /// Bytes of CDP log, at most, give or take a segment.
    pub bytes: Option<u64>,
}

/// How a volume keeps its history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CdpSettings {
    /// What a record holds.
    pub encoding: Encoding,
    /// How it is compressed.
    pub compression: Compression,
    /// When anchors are inserted.
    pub anchors: AnchorPolicy,
    /// The most writes of chunks between two anchors, whatever `anchors` says: the paper's M_max.
    pub max_distance: Option<u64>,
    /// How long it is kept.
    pub retention: Retention,
}

impl Default for CdpSettings {
    /// Parity with zero runs left out, anchors by the model, kept for ever.
    fn default() -> Self {
        CdpSettings {
            encoding: Encoding::Parity,
            compression: Compression::ZeroRun,
            anchors: AnchorPolicy::Model,
            max_distance: None,
            retention: Retention::default(),
        }
    }
}

impl CdpSettings {
    pub(crate) fn check(&self) -> Result<()> {
        let zero = matches!(self.anchors, AnchorPolicy::Every(0) | AnchorPolicy::Interval(0))
            || self.max_distance == Some(0)
            || self.retention.time == Some(0)
            || self.retention.bytes == Some(0);
        if zero {
            return Err(invalid("set up CDP: distances and limits must be more than zero"));
        }
        Ok(())
    }
}

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
    /// The last flush not later than this: nanoseconds since the Unix epoch. It is later than the writes that it covers.
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
    /// Retention by time is not achieved, though history has been long enough: the limit in bytes, which there is, is too low.
    pub short: bool,
}
