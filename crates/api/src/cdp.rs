//! Requests and responses about continuous data protection: settings, history, moments, recovery.

use crate::client::{Client, ClientError, segment};
use crate::named::named;
use crate::{ClockChange, RolledBack, Volume};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

named! {
    /// What a record of the CDP log holds.
    pub enum Encoding {
        /// Old content XOR new: small where a write changes little of a block, and damage loses no
        /// moment (TRAP).
        Parity = "parity",
        /// The old content (COW-CDP).
        Undo = "undo",
        /// The new content.
        Redo = "redo",
    }
}

named! {
    /// How records of the CDP log are compressed.
    pub enum Compression {
        /// Not at all.
        None = "none",
        /// Runs of zeros are left out.
        ZeroRun = "zero-run",
        /// LZ4.
        Lz4 = "lz4",
        /// Zstandard.
        Zstd = "zstd",
    }
}

/// When anchors are inserted: snapshots, mostly hidden, from which moments are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "policy", rename_all = "snake_case")]
pub enum Anchors {
    /// After as many writes as the cost model says, from what the server measures.
    Model,
    /// Never, but where CDP begins or its encoding changes.
    Never,
    /// After so many writes; one that touches several chunks counts for each.
    Writes {
        /// How many.
        count: u64,
    },
    /// After so much time in which something was written.
    Time {
        /// Seconds.
        seconds: u64,
    },
}

/// How a volume keeps its history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cdp {
    /// What a record holds.
    pub encoding: Encoding,
    /// How it is compressed.
    pub compression: Compression,
    /// When anchors are inserted.
    pub anchors: Anchors,
    /// The most writes between two anchors, whatever `anchors` says.
    pub max_distance: Option<u64>,
    /// Seconds that history is to be kept; absent: no limit.
    pub retain_seconds: Option<u64>,
    /// Bytes of log at most; absent: no limit.
    pub retain_bytes: Option<u64>,
}

/// Changes to how a volume keeps its history. Absent fields stay as they are, or get their default
/// where CDP was off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchCdp {
    /// False: keep no more history; what was kept stays, as long as retention says. An encoding
    /// switches it on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// What a record holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<Encoding>,
    /// How it is compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// When anchors are inserted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchors: Option<Anchors>,
    /// The most writes between two anchors; 0: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_distance: Option<u64>,
    /// Seconds that history is to be kept; 0: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_seconds: Option<u64>,
    /// Bytes of log at most; 0: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_bytes: Option<u64>,
}

/// A place in the order of all writes of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Position {
    /// Number of the record.
    pub lsn: u64,
    /// Its time.
    pub time: Timestamp,
}

/// The state of a volume's history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CdpStatus {
    /// The volume.
    pub volume: String,
    /// How history is kept; absent: it is not, but what was kept of the past may still be there.
    pub settings: Option<Cdp>,
    /// Writes between two anchors, now; absent: no limit.
    pub distance: Option<u64>,
    /// The first moment that can be gone back to.
    pub from: Option<Position>,
    /// Seconds that can be gone back, from now.
    pub window_seconds: f64,
    /// Retention by time is not achieved, because there is a limit in bytes and it is too low.
    pub short: bool,
    /// Records in the log.
    pub records: u64,
    /// Bytes that clients wrote, as far as records of them are kept.
    pub written: u64,
    /// Bytes of content in records, compressed.
    pub payload: u64,
    /// Bytes of log files.
    pub stored: u64,
    /// Log files.
    pub segments: u64,
    /// Anchors.
    pub anchors: u64,
}

/// What the server measures of a volume's history and of itself: the inputs of the cost model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CdpMeasured {
    /// *S_blk*: bytes of a chunk.
    pub block_size: f64,
    /// *S_log*: bytes of a record, on average.
    pub record_size: f64,
    /// *T_dec*: seconds to decode one.
    pub decode_seconds: f64,
    /// *T_xor*: seconds to apply one.
    pub xor_seconds: f64,
    /// *IO_rate*: bytes per second that the volume is read with, chunk by chunk.
    pub io_bytes_per_second: f64,
    /// *W_total*: records a day: writes, once for each chunk that they touch.
    pub writes_per_day: f64,
    /// *N*: distinct chunks written between two anchors.
    pub distinct_blocks: f64,
    /// *M_max*: the volume's most writes between two anchors; absent: no limit.
    pub max_distance: Option<u64>,
    /// Price of an hour of recovery that the server reckons with.
    pub price_per_hour: f64,
    /// Price of a gigabyte, in the same money.
    pub price_per_gigabyte: f64,
}

/// A moment that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FoundMoment {
    /// The volume.
    pub volume: String,
    /// Everything up to this record is part of it, and nothing after.
    pub lsn: u64,
    /// Its time.
    pub time: Timestamp,
    /// The volume's size then, bytes.
    pub size: u64,
}

/// A stretch of time in which a volume kept one line of history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistorySpan {
    /// First moment that can be gone back to.
    pub from: Position,
    /// Last one; absent: it goes on.
    pub to: Option<Position>,
}

/// A snapshot from which moments are found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Anchor {
    /// Number of its record.
    pub lsn: u64,
    /// Its time.
    pub time: Timestamp,
    /// Name of the snapshot that it is, if it is a snapshot that a client or a schedule took.
    pub snapshot: Option<String>,
}

/// A named moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Mark {
    /// Name; `VOLUME@NAME` is its address.
    pub name: String,
    /// Number of its record.
    pub lsn: u64,
    /// Its time.
    pub time: Timestamp,
}

/// A mark to make, of the present moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateMark {
    /// 1 to 128 characters of `[A-Za-z0-9._-]`, the first one alphanumeric; no snapshot of the
    /// volume has it.
    pub name: String,
}

/// How much was written in a stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryBucket {
    /// Where it starts; it ends where the next one starts.
    pub from: Timestamp,
    /// Records.
    pub records: u64,
    /// Bytes that clients wrote.
    pub written: u64,
    /// Bytes of log.
    pub stored: u64,
}

/// What of a volume's past can be gone back to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct History {
    /// The volume.
    pub volume: String,
    /// Oldest first; more than one after rollbacks, or where CDP was off for a while.
    pub spans: Vec<HistorySpan>,
    /// Oldest first.
    pub anchors: Vec<Anchor>,
    /// Oldest first.
    pub marks: Vec<Mark>,
    /// The newest flushes, oldest first: what clients had on stable storage.
    pub flushes: Vec<Position>,
    /// Change over time.
    pub buckets: Vec<HistoryBucket>,
    /// Where the server's clock was set, oldest first. Times are what the clock said, so they may
    /// go back there.
    #[serde(default)]
    pub clock: Vec<ClockChange>,
}

/// A write that changed a range, as far as it lies in one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Change {
    /// Number of the record: `lsn:` and this is the moment just after it.
    pub lsn: u64,
    /// Its time.
    pub time: Timestamp,
    /// Byte of the volume that it begins at.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// Changes that one answer has at most.
pub const MAX_CHANGES: u64 = 100_000;

/// Which changes to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangesQuery {
    /// Byte of the volume that the range begins at.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Moment from which on; absent: from the first.
    pub from: Option<String>,
    /// Moment until which; absent: now.
    pub to: Option<String>,
    /// At most so many, the oldest; never more than [`MAX_CHANGES`].
    pub limit: u64,
}

/// Volumes to recover, as new ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Recover {
    /// Which, and under which names; all at one moment.
    pub volumes: Vec<RecoverVolume>,
    /// The moment: a time, how long ago, `lsn:N`, or the name of a mark or snapshot of the first
    /// volume.
    pub to: String,
    /// To the last flush at or before that moment instead.
    #[serde(default)]
    pub last_flush: bool,
    /// Then make them independent of the history, in the background: bytes a second at most, 0: as
    /// fast as it goes. Absent: they rest on it, and keep it from expiring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete: Option<u64>,
}

/// A volume to recover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecoverVolume {
    /// The volume.
    pub volume: String,
    /// Name of the new volume.
    pub name: String,
}

/// A volume that was recovered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Recovered {
    /// The new volume.
    #[serde(flatten)]
    pub volume: Volume,
    /// The moment that it shows: the last record by then of the volume that it was made of. Absent
    /// where it shows a snapshot.
    pub moment: Option<Position>,
}

/// Volumes to take back to a moment, in place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecoverInPlace {
    /// Which; all to one moment.
    pub volumes: Vec<String>,
    /// The moment: a time, how long ago, `lsn:N`, or the name of a mark or snapshot of the first
    /// volume.
    pub to: String,
    /// To the last flush at or before that moment instead.
    #[serde(default)]
    pub last_flush: bool,
    /// Name of the snapshots that keep what the volumes are now; absent: `before-recovery-` and the
    /// time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<String>,
    /// Seconds after which those snapshots are deleted by themselves; absent: they stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo_keep_seconds: Option<u64>,
    /// Also while clients use them: NBD clients are disconnected, iSCSI initiators get a unit
    /// attention.
    #[serde(default)]
    pub force: bool,
}

type Result<T, E = ClientError> = std::result::Result<T, E>;

fn route(volume: &str, what: &str) -> String {
    format!("/volumes/{}/{what}", segment(volume))
}

/// Continuous data protection.
impl Client {
    /// The state of a volume's history.
    pub fn cdp(&self, volume: &str) -> Result<CdpStatus> {
        self.get(&route(volume, "cdp"))
    }

    /// What the server measures for the cost model; takes a moment.
    pub fn cdp_measured(&self, volume: &str) -> Result<CdpMeasured> {
        self.get(&route(volume, "cdp/measured"))
    }

    /// What can be gone back to; change over time in so many buckets.
    pub fn history(&self, volume: &str, buckets: u32) -> Result<History> {
        self.get(&route(volume, &format!("history?buckets={buckets}")))
    }

    /// When a range of a volume changed, oldest first.
    pub fn changes(&self, volume: &str, which: &ChangesQuery) -> Result<Vec<Change>> {
        let ChangesQuery { offset, length, limit, .. } = which;
        let mut query = format!("changes?offset={offset}&length={length}&limit={limit}");
        for (name, moment) in [("from", &which.from), ("to", &which.to)] {
            if let Some(moment) = moment {
                query.push_str(&format!("&{name}={}", segment(moment)));
            }
        }
        self.get(&route(volume, &query))
    }

    /// Finds a moment.
    pub fn moment(&self, volume: &str, moment: &str) -> Result<FoundMoment> {
        self.get(&route(volume, &format!("moments/{}", segment(moment))))
    }

    /// Names the present moment.
    pub fn create_mark(&self, volume: &str, new: &CreateMark) -> Result<Mark> {
        self.send(hyper::Method::POST, &route(volume, "marks"), new)
    }

    /// Forgets the name of a moment.
    pub fn delete_mark(&self, volume: &str, name: &str) -> Result<()> {
        self.delete(&route(volume, &format!("marks/{}", segment(name))))
    }

    /// Makes volumes as others were at a moment: there at once.
    pub fn recover(&self, what: &Recover) -> Result<Vec<Recovered>> {
        self.send(hyper::Method::POST, "/recoveries", what)
    }

    /// Takes volumes back to a moment.
    pub fn recover_in_place(&self, what: &RecoverInPlace) -> Result<Vec<RolledBack>> {
        self.send(hyper::Method::POST, "/recoveries/in-place", what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_json() {
        for encoding in [Encoding::Parity, Encoding::Undo, Encoding::Redo] {
            assert_eq!(encoding.name().parse(), Ok(encoding));
            assert_eq!(serde_json::to_value(encoding).unwrap(), encoding.name());
        }
        for compression in [Compression::None, Compression::ZeroRun, Compression::Lz4, Compression::Zstd] {
            assert_eq!(compression.name().parse(), Ok(compression));
            assert_eq!(serde_json::to_value(compression).unwrap(), compression.name());
        }
        assert_eq!("x".parse::<Encoding>(), Err("\"x\" is none of parity, undo, redo".into()));
    }

    #[test]
    fn anchors_tell_their_policy() {
        let json = serde_json::to_string(&Anchors::Writes { count: 5 }).unwrap();
        assert_eq!(json, r#"{"policy":"writes","count":5}"#);
        assert_eq!(serde_json::from_str::<Anchors>(r#"{"policy":"model"}"#).unwrap(), Anchors::Model);
    }
}
