//! Responses about the timeline of a volume: how much changed when, and the moments that have a
//! name or a purpose.

use crate::client::{Client, ClientError, segment};
use crate::{Anchor, ClockChange, HistorySpan, Mark, Position};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Maximum number of buckets of a timeline.
pub const MAX_TIMELINE_BUCKETS: u32 = 2000;

/// A window of a volume's past.
///
/// The amounts are lists with one number for each bucket. Bucket `n` begins at `from` plus `n`
/// times `bucket_seconds`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Timeline {
    /// Name of the volume.
    pub volume: String,
    /// Time of the server's clock.
    pub now: Timestamp,
    /// Start of the first bucket.
    pub from: Timestamp,
    /// End of the last bucket.
    pub to: Timestamp,
    /// Length of a bucket in seconds.
    pub bucket_seconds: f64,
    /// The first moment that can be recovered. Absent if there is no history.
    pub begins: Option<Position>,
    /// Number of writes. A write to several chunks counts once for each.
    pub records: Vec<u64>,
    /// Number of bytes that clients wrote.
    pub written: Vec<u64>,
    /// Size of the log in bytes.
    pub stored: Vec<u64>,
    /// Number of the bytes in `written` that the log does not have yet. `stored` has nothing of
    /// them.
    pub waiting: Vec<u64>,
    /// The written bytes by part of the volume. Absent if the request asked for no regions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regions: Option<TimelineRegions>,
    /// Whether some amounts are spread evenly over more time than they took. A repetition of the
    /// request returns better ones.
    pub coarse: bool,
    /// Periods of continuous history that reach into the window, oldest first.
    pub spans: Vec<HistorySpan>,
    /// The rollbacks that took back writes of the window, or that were in it, oldest first.
    pub rollbacks: Vec<TimelineRollback>,
    /// Sizes that the volume had in the window, oldest first. Each size holds from its time on. At
    /// most 500, the newest.
    #[serde(default)]
    pub sizes: Vec<TimelineSize>,
    /// Snapshots of the volume.
    pub snapshots: Lane<TimelineSnapshot>,
    /// Marks.
    pub marks: Lane<Mark>,
    /// Anchors: snapshots from which moments are reconstructed.
    pub anchors: Lane<Anchor>,
    /// Flushes. At a flush, a client had all its data on stable storage.
    pub flushes: Lane<Position>,
    /// Volumes and views that depend on a moment or snapshot in the window.
    pub dependents: Vec<Dependent>,
    /// Time in seconds for which history is kept. Absent: there is no limit.
    pub retain_seconds: Option<u64>,
    /// About when the first moment expires: by the limit of time, or by the limit of bytes at the
    /// pace that the history had until now. Absent: there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// Changes of the server's clock, oldest first. All times are those of the clock, so they may
    /// go back at a change.
    pub clock: Vec<ClockChange>,
}

/// A rollback: the volume went back to an earlier moment. The writes in between are a line of their
/// own, which ended then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TimelineRollback {
    /// LSN of the rollback.
    pub lsn: u64,
    /// Time of the rollback.
    pub time: Timestamp,
    /// Time of the snapshot, the mark or the last write that the volume kept. For a write it is an
    /// estimate. Absent: it is not known any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Timestamp>,
}

/// The size of a volume from a moment on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TimelineSize {
    /// Time from which on the volume had the size.
    pub time: Timestamp,
    /// Size in bytes.
    pub size: u64,
}

/// Written bytes by part of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TimelineRegions {
    /// Number of regions.
    pub count: u32,
    /// Size of a region in bytes.
    pub bytes_each: u64,
    /// Number of bytes, by bucket and then by region: `written[bucket * count + region]`.
    pub written: Vec<u64>,
}

/// Moments of one kind in the window of a timeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lane<T> {
    /// Number of moments.
    pub count: u64,
    /// The moments, oldest first. Empty if there are more than 500.
    pub items: Vec<T>,
    /// Number of moments in each bucket. Only if there are more than 500.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<u32>,
    /// Whether the window has older moments that were not counted.
    #[serde(default)]
    pub partial: bool,
}

/// A snapshot in a timeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TimelineSnapshot {
    /// Name of the snapshot.
    pub name: String,
    /// Time at which the snapshot was taken.
    pub time: Timestamp,
    /// LSN of the snapshot's moment, if that is known and in the volume's history.
    pub lsn: Option<u64>,
}

crate::named::named! {
    /// How something depends on a moment or snapshot.
    pub enum DependentKind {
        /// A volume that was created from a snapshot.
        Clone = "clone",
        /// A volume that was recovered from a moment, or rolled back to it.
        Recovered = "recovered",
        /// A view of a moment.
        View = "view",
    }
}

/// A volume or view that depends on a moment or snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Dependent {
    /// How it depends.
    pub kind: DependentKind,
    /// Name of the volume or view.
    pub name: String,
    /// Time of the moment. For a recovered volume it is an estimate.
    pub time: Timestamp,
    /// LSN of the moment. Absent for what depends on a snapshot.
    pub lsn: Option<u64>,
}

/// The window of a timeline, and how finely it is divided.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TimelineQuery {
    /// First moment, in the form of [`crate::Moment`]. Absent: the beginning of the history.
    pub from: Option<String>,
    /// Last moment. Absent: now.
    pub to: Option<String>,
    /// Maximum number of buckets, up to [`MAX_TIMELINE_BUCKETS`]. Absent: 200.
    pub buckets: Option<u32>,
    /// Number of regions, up to 64. Absent: none.
    pub regions: Option<u32>,
}

impl Client {
    /// Returns a window of a volume's past.
    pub fn timeline(&self, volume: &str, query: &TimelineQuery) -> Result<Timeline, ClientError> {
        let mut all = Vec::new();
        for (name, moment) in [("from", &query.from), ("to", &query.to)] {
            all.extend(moment.iter().map(|moment| format!("{name}={}", segment(moment))));
        }
        for (name, number) in [("buckets", query.buckets), ("regions", query.regions)] {
            all.extend(number.iter().map(|number| format!("{name}={number}")));
        }
        self.get(&format!("/volumes/{}/timeline?{}", segment(volume), all.join("&")))
    }
}

/// Maximum number of ranges in [`Changed`].
pub const MAX_CHANGED_RANGES: usize = 1000;

/// What differs between two moments of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Changed {
    /// Address of the earlier state.
    pub from: String,
    /// Address of the later state. Absent: the volume as it is now.
    pub to: Option<String>,
    /// Number of bytes that may differ, in the granularity of chunks.
    pub bytes: u64,
    /// Bytes by part of the volume, in 64 parts of equal length.
    pub parts: Vec<ChangedPart>,
    /// The first ranges that may differ, up to 1000.
    pub ranges: Vec<crate::ByteRange>,
    /// Whether the comparison stopped early, because it took too much work. The numbers are then
    /// those of the first part of the volume.
    pub partial: bool,
}

/// Bytes that may differ in one part of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangedPart {
    /// Start of the part in bytes.
    pub offset: u64,
    /// Length of the part in bytes.
    pub length: u64,
    /// Number of bytes that may differ.
    pub bytes: u64,
}

impl Client {
    /// Returns what differs between two moments of a volume. Without `to` it is the volume as it is
    /// now.
    pub fn changed(&self, volume: &str, from: &str, to: Option<&str>) -> Result<Changed, ClientError> {
        let to = to.map_or_else(String::new, |to| format!("&to={}", segment(to)));
        self.get(&format!("/volumes/{}/changed?from={}{to}", segment(volume), segment(from)))
    }
}
