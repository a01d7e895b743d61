//! Requests and responses about continuous data protection (CDP): settings, history, moments and
//! recovery.

use crate::client::{Client, ClientError, segment};
use crate::named::named;
use crate::{ClockChange, RolledBack, Volume};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

named! {
    /// Content of a record of the CDP log.
    pub enum Encoding {
        /// The old content XOR the new content (TRAP). A record is small if the write changes
        /// little of a block. Damage of a record makes no other moment unrecoverable.
        Parity = "parity",
        /// The old content (COW-CDP).
        Undo = "undo",
        /// The new content.
        Redo = "redo",
    }
}

named! {
    /// Compression of the records of the CDP log.
    pub enum Compression {
        /// No compression.
        None = "none",
        /// Runs of zeros are left out.
        ZeroRun = "zero-run",
        /// LZ4.
        Lz4 = "lz4",
        /// Zstandard.
        Zstd = "zstd",
    }
}

/// When the server inserts anchors. An anchor is a snapshot, usually hidden, from which moments are
/// reconstructed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "policy", rename_all = "snake_case")]
pub enum Anchors {
    /// After a number of writes. The server computes it by the cost model from its own
    /// measurements.
    Model,
    /// Never, except when CDP begins or its encoding changes.
    Never,
    /// After a number of writes. A write to several chunks counts once for each.
    Writes {
        /// Number of writes.
        count: u64,
    },
    /// After a time in which there were writes.
    Time {
        /// Time in seconds.
        seconds: u64,
    },
}

/// Settings of a volume's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cdp {
    /// Content of a record.
    pub encoding: Encoding,
    /// Compression of the records.
    pub compression: Compression,
    /// When the server inserts anchors.
    pub anchors: Anchors,
    /// Maximum number of writes between two anchors, whatever `anchors` is. Absent: no limit.
    pub max_distance: Option<u64>,
    /// Time in seconds for which history is kept. Absent: no limit.
    pub retain_seconds: Option<u64>,
    /// Maximum size of the log in bytes. Absent: no limit.
    pub retain_bytes: Option<u64>,
}

/// Changes to the settings of a volume's history. Absent fields stay unchanged. If CDP was off,
/// absent fields get their default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchCdp {
    /// true: record history. false: record no more history; the recorded history stays until its
    /// retention ends. Absent: a request that sets `encoding` turns CDP on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Content of a record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<Encoding>,
    /// Compression of the records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// When the server inserts anchors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchors: Option<Anchors>,
    /// Maximum number of writes between two anchors. 0: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_distance: Option<u64>,
    /// Time in seconds for which history is kept. 0: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_seconds: Option<u64>,
    /// Maximum size of the log in bytes. 0: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_bytes: Option<u64>,
}

/// A position in the order of all writes of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Position {
    /// LSN of the record.
    pub lsn: u64,
    /// Time of the record.
    pub time: Timestamp,
}

/// State of a volume's history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CdpStatus {
    /// Name of the volume.
    pub volume: String,
    /// Settings of the history. Absent if CDP is off; history that was recorded earlier may still
    /// exist.
    pub settings: Option<Cdp>,
    /// Current number of writes between two anchors. Absent: no limit.
    pub distance: Option<u64>,
    /// The first moment that can be recovered. Absent if there is none.
    pub from: Option<Position>,
    /// Length of the recoverable history up to now, in seconds.
    pub window_seconds: f64,
    /// Whether the history is shorter than `retain_seconds` because the limit `retain_bytes` is too
    /// low.
    pub short: bool,
    /// Number of records in the log.
    pub records: u64,
    /// Number of bytes that clients wrote in the writes whose records are kept.
    pub written: u64,
    /// Compressed size of the content of all records in bytes.
    pub payload: u64,
    /// Size of the log's files in bytes.
    pub stored: u64,
    /// Bytes of replaced data that the history keeps where it was, besides the log. They count as
    /// part of the history's limit in bytes.
    #[serde(default)]
    pub kept: u64,
    /// Number of files of the log.
    pub segments: u64,
    /// Number of anchors.
    pub anchors: u64,
}

/// Inputs of the cost model: the server's measurements of a volume's history and of itself, and the
/// configured prices.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CdpMeasured {
    /// *S_blk*: size of a chunk in bytes.
    pub block_size: f64,
    /// *S_log*: average size of a record in bytes.
    pub record_size: f64,
    /// *T_dec*: seconds to decode one record.
    pub decode_seconds: f64,
    /// *T_xor*: seconds to apply one record.
    pub xor_seconds: f64,
    /// *IO_rate*: bytes per second of reads of the volume, chunk by chunk.
    pub io_bytes_per_second: f64,
    /// *W_total*: number of records per day. A write makes one record for each chunk that it
    /// touches.
    pub writes_per_day: f64,
    /// *N*: number of distinct chunks written between two anchors.
    pub distinct_blocks: f64,
    /// *M_max*: the volume's maximum number of writes between two anchors. Absent: no limit.
    pub max_distance: Option<u64>,
    /// Configured price of an hour of recovery.
    pub price_per_hour: f64,
    /// Configured price of a gigabyte, in the same currency as `price_per_hour`.
    pub price_per_gigabyte: f64,
}

/// A moment that the server found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FoundMoment {
    /// Name of the volume.
    pub volume: String,
    /// LSN of the last record that is part of the moment. No later record is part of it.
    pub lsn: u64,
    /// Time of the moment.
    pub time: Timestamp,
    /// Size of the volume at that moment, in bytes.
    pub size: u64,
}

/// A period in which the volume recorded one continuous history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistorySpan {
    /// First moment of the period that can be recovered.
    pub from: Position,
    /// Last moment of the period. Absent while the period continues.
    pub to: Option<Position>,
}

/// A snapshot from which moments are reconstructed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Anchor {
    /// LSN of the anchor's record.
    pub lsn: u64,
    /// Time of the anchor.
    pub time: Timestamp,
    /// Name of the snapshot, if a client or a schedule took it. Absent if the anchor is hidden.
    pub snapshot: Option<String>,
}

/// A mark: the name of a moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Mark {
    /// Name of the mark. `VOLUME@NAME` is its address.
    pub name: String,
    /// LSN of the mark's record.
    pub lsn: u64,
    /// Time of the marked moment.
    pub time: Timestamp,
}

/// A mark to create for the present moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateMark {
    /// Name of the mark: 1 to 128 characters of `[A-Za-z0-9._-]`, the first one alphanumeric. No
    /// snapshot of the volume may have the same name.
    pub name: String,
}

/// Marks to create for one present moment of several volumes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateMarks {
    /// Name of the marks, as in `CreateMark`.
    pub name: String,
    /// Names of the volumes, each of them once. At most 200.
    pub volumes: Vec<String>,
}

/// Amount of writes in one part of a history's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryBucket {
    /// Start of the part. The part ends where the next one starts.
    pub from: Timestamp,
    /// Number of records.
    pub records: u64,
    /// Number of bytes that clients wrote.
    pub written: u64,
    /// Size of the log in bytes.
    pub stored: u64,
}

/// The recoverable history of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct History {
    /// Name of the volume.
    pub volume: String,
    /// Periods of continuous history, oldest first. There are several after rollbacks, or if CDP
    /// was off for a time.
    pub spans: Vec<HistorySpan>,
    /// Anchors, oldest first.
    pub anchors: Vec<Anchor>,
    /// Marks, oldest first.
    pub marks: Vec<Mark>,
    /// Positions of the newest flushes, oldest first. At a flush, a client had all its data on
    /// stable storage.
    pub flushes: Vec<Position>,
    /// Amount of writes over time, in parts of equal length, oldest first.
    pub buckets: Vec<HistoryBucket>,
    /// Changes of the server's clock, oldest first. All times are those of the clock, so they may
    /// go back at a change.
    #[serde(default)]
    pub clock: Vec<ClockChange>,
}

/// A write to a range, as far as the write lies in one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Change {
    /// LSN of the record. `lsn:` and this number is the moment just after the write.
    pub lsn: u64,
    /// Time of the record.
    pub time: Timestamp,
    /// Offset in the volume, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// Maximum number of changes in one response.
pub const MAX_CHANGES: u64 = 100_000;

/// Selects the changes to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangesQuery {
    /// Offset of the range in the volume, in bytes.
    pub offset: u64,
    /// Length of the range in bytes.
    pub length: u64,
    /// First moment. Absent: the beginning of the history.
    pub from: Option<String>,
    /// Last moment. Absent: now.
    pub to: Option<String>,
    /// Maximum number of changes, up to [`MAX_CHANGES`]. The oldest ones are listed.
    pub limit: u64,
}

/// Request to recover the content of volumes into new volumes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Recover {
    /// Volumes to recover, and the names of the new volumes. All are recovered to the same moment.
    pub volumes: Vec<RecoverVolume>,
    /// The moment: a time, a time before now like `-90s`, `lsn:N`, or the name of a mark or
    /// snapshot of the first volume.
    pub to: String,
    /// Recover to the last flush at or before the moment.
    #[serde(default)]
    pub last_flush: bool,
    /// Make the new volumes independent of the history by a copy in the background. The value is
    /// the limit of the copy rate in bytes per second; 0: no limit. Absent: the new volumes depend
    /// on the history, and that part of the history does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete: Option<u64>,
}

/// A volume to recover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecoverVolume {
    /// Name of the existing volume.
    pub volume: String,
    /// Name of the new volume: 1 to 128 characters of `[A-Za-z0-9._-]`, the first one alphanumeric.
    pub name: String,
}

/// Result of the recovery of one volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Recovered {
    /// The new volume.
    #[serde(flatten)]
    pub volume: Volume,
    /// The recovered moment: the last record, at that moment, of the volume from which the new one
    /// was created. Absent if the new volume was created from a snapshot.
    pub moment: Option<Position>,
}

/// Request to roll volumes back to a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecoverInPlace {
    /// Names of the volumes. All are rolled back to the same moment.
    pub volumes: Vec<String>,
    /// The moment: a time, a time before now like `-90s`, `lsn:N`, or the name of a mark or
    /// snapshot of the first volume.
    pub to: String,
    /// Roll back to the last flush at or before the moment.
    #[serde(default)]
    pub last_flush: bool,
    /// Name of the snapshots that keep the volumes' content from before the rollback. Absent:
    /// `before-recovery-` and the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<String>,
    /// Seconds after which the server deletes these snapshots automatically. Absent: they stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo_keep_seconds: Option<u64>,
    /// Roll back even while clients use the volumes. The server disconnects NBD clients and sends a
    /// unit attention to iSCSI initiators.
    #[serde(default)]
    pub force: bool,
}

type Result<T, E = ClientError> = std::result::Result<T, E>;

fn route(volume: &str, what: &str) -> String {
    format!("/volumes/{}/{what}", segment(volume))
}

/// Requests about continuous data protection.
impl Client {
    /// Returns the state of a volume's history.
    pub fn cdp(&self, volume: &str) -> Result<CdpStatus> {
        self.get(&route(volume, "cdp"))
    }

    /// Returns the inputs of the cost model for a volume. The measurement takes about a second.
    pub fn cdp_measured(&self, volume: &str) -> Result<CdpMeasured> {
        self.get(&route(volume, "cdp/measured"))
    }

    /// Returns the recoverable history of a volume. `buckets` is the number of parts of its time.
    pub fn history(&self, volume: &str, buckets: u32) -> Result<History> {
        self.get(&route(volume, &format!("history?buckets={buckets}")))
    }

    /// Returns the changes of a range of a volume, oldest first.
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

    /// Creates marks for one present moment of several volumes.
    pub fn create_marks(&self, new: &CreateMarks) -> Result<Mark> {
        self.send(hyper::Method::POST, "/marks", new)
    }

    /// Creates a mark for the present moment.
    pub fn create_mark(&self, volume: &str, new: &CreateMark) -> Result<Mark> {
        self.send(hyper::Method::POST, &route(volume, "marks"), new)
    }

    /// Deletes a mark. Its moment stays.
    pub fn delete_mark(&self, volume: &str, name: &str) -> Result<()> {
        self.delete(&route(volume, &format!("marks/{}", segment(name))))
    }

    /// Creates volumes with the content that others had at a moment. They can be used at once.
    pub fn recover(&self, what: &Recover) -> Result<Vec<Recovered>> {
        self.send(hyper::Method::POST, "/recoveries", what)
    }

    /// Rolls volumes back to a moment.
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
