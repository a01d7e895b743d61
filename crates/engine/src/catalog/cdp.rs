//! Histories in the catalog: segments of CDP logs, events of a branch that the log's records don't
//! contain, and the lines and marks of each volume.

use super::store::db;
use super::values::{Value, seal, unseal};
use super::{Bytes, Catalog, Txn};
use crate::codec::{Reader, Writer};
use crate::error::Result;
use crate::ids::{BranchId, Chunk, Epoch, Lsn, SnapshotId, Stamp, VolumeId};
use crate::settings::{AnchorPolicy, CdpSettings, Compression, Encoding, Retention};
use redb::TableDefinition;

/// Segments of branches' logs, by (branch, number).
pub(super) const SEGMENTS: TableDefinition<'static, (BranchId, u64), Bytes> =
    TableDefinition::new("cdp_segments");
/// The key of a group: (branch, number of the segment, number of the group).
type GroupKey = (BranchId, u64, u64);
pub(super) const GROUPS: TableDefinition<'static, GroupKey, Bytes> = TableDefinition::new("cdp_groups");
/// The key of a run: (number of the shared segment, byte where the run begins).
type RunKey = (u64, u64);
pub(super) const RUNS: TableDefinition<'static, RunKey, Bytes> = TableDefinition::new("cdp_runs");
/// Lines and marks, by (volume, LSN).
pub(super) const LINES: TableDefinition<'static, (VolumeId, Lsn), Bytes> = TableDefinition::new("cdp_lines");
/// Events, by (branch, LSN).
pub(super) const EVENTS: TableDefinition<'static, (BranchId, Lsn), Bytes> =
    TableDefinition::new("cdp_events");

/// A segment of a branch's log, as far as it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentRecord {
    /// The edition of the segment. Each time the segment is written anew, it gets a new edition and
    /// a new file.
    pub(crate) edition: u32,
    /// No more records are appended.
    pub(crate) sealed: bool,
    /// The segment was written anew, with better compression.
    pub(crate) compact: bool,
    /// The byte at which a run begins in a shared segment. It is 0 for any other segment, and not
    /// stored with it.
    pub(crate) start: u64,
    /// The end of the bytes that count. What lies behind belongs to no commit.
    pub(crate) end: u64,
    /// The byte of the index of all records. `None` until the segment is sealed; on disk 0 stands
    /// for `None`.
    pub(crate) index_at: Option<u64>,
    pub(crate) records: u64,
    /// Bytes that the host wrote in the records.
    pub(crate) written: u64,
    /// Bytes of payload of the records.
    pub(crate) payload: u64,
    /// Bytes of replaced content that the records need in slots.
    pub(crate) kept: u64,
    /// The (first, last) LSN of the records.
    pub(crate) lsns: (Lsn, Lsn),
    pub(crate) times: (u64, u64),
    pub(crate) chunks: (Chunk, Chunk),
}

impl SegmentRecord {
    /// Returns the stamp of the first record.
    pub(crate) fn first(&self) -> Stamp {
        Stamp { lsn: self.lsns.0, time: self.times.0 }
    }

    /// Returns the stamp of the last record.
    pub(crate) fn last(&self) -> Stamp {
        Stamp { lsn: self.lsns.1, time: self.times.1 }
    }

    /// Makes the record of a segment or run that has no records yet. Its first record comes at byte
    /// `end` of the file.
    pub(crate) fn empty(edition: u32, start: u64, end: u64) -> SegmentRecord {
        SegmentRecord {
            edition,
            sealed: false,
            compact: false,
            start,
            end,
            index_at: None,
            records: 0,
            written: 0,
            payload: 0,
            kept: 0,
            lsns: (Lsn::MAX, Lsn::ZERO),
            times: (u64::MAX, 0),
            chunks: (Chunk::MAX, Chunk::FIRST),
        }
    }

    /// Returns the bytes that the segment or run takes in its file.
    pub(crate) fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Returns the bytes that expire with the segment or run, in its file and in slots.
    pub(crate) fn held(&self) -> u64 {
        self.bytes().saturating_add(self.kept)
    }

    /// Returns the version of the row. Version 2 ends with the bytes in slots. Rows without such
    /// bytes have version 1, which older builds can read.
    fn version(&self) -> u8 {
        if self.kept == 0 { 1 } else { 2 }
    }

    fn put(&self, w: &mut Writer) {
        w.u64(self.end).u64(self.index_at.unwrap_or(0)).u64(self.records).u64(self.written).u64(self.payload);
        w.u64(self.lsns.0).u64(self.lsns.1);
        w.u64(self.times.0).u64(self.times.1);
        w.u64(self.chunks.0).u64(self.chunks.1);
        if self.version() == 2 {
            w.u64(self.kept);
        }
    }

    fn take(r: &mut Reader<'_>, version: u8, (edition, sealed, compact): (u32, bool, bool)) -> Option<Self> {
        Some(SegmentRecord {
            edition,
            sealed,
            compact,
            start: 0,
            end: r.u64()?,
            index_at: Some(r.u64()?).filter(|at| *at > 0),
            records: r.u64()?,
            written: r.u64()?,
            payload: r.u64()?,
            lsns: (r.u64()?, r.u64()?),
            times: (r.u64()?, r.u64()?),
            chunks: (r.u64()?, r.u64()?),
            kept: if version == 2 { r.u64().filter(|kept| *kept > 0)? } else { 0 },
        })
    }
}

impl Value for SegmentRecord {
    fn encode(&self) -> Vec<u8> {
        seal(self.version(), |w| {
            w.u32(self.edition).u8(self.sealed as u8).u8(self.compact as u8);
            self.put(w);
        })
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (mut r, version) = unseal_segment(bytes)?;
        let manner = (r.u32()?, r.u8()? != 0, r.u8()? != 0);
        let value = SegmentRecord::take(&mut r, version, manner)?;
        r.end(value)
    }
}

/// Verifies the row of a segment or run. Returns a reader of its fields, and its version.
fn unseal_segment(bytes: &[u8]) -> Option<(Reader<'_>, u8)> {
    [1, 2].into_iter().find_map(|version| Some((unseal(bytes, version)?, version)))
}

/// A run in a shared segment: what one batch recorded of one branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunRecord {
    pub(crate) branch: BranchId,
    /// The run's number among the branch's segments.
    pub(crate) seq: u64,
    /// The run as a sealed segment. The byte at which it begins is part of the key.
    pub(crate) record: SegmentRecord,
}

impl Value for RunRecord {
    fn encode(&self) -> Vec<u8> {
        seal(self.record.version(), |w| {
            w.u64(self.branch.0).u64(self.seq);
            self.record.put(w);
        })
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (mut r, version) = unseal_segment(bytes)?;
        let (branch, seq) = (BranchId(r.u64()?), r.u64()?);
        let record = SegmentRecord::take(&mut r, version, (0, true, false))?;
        let value = RunRecord { branch, seq, record };
        r.end(value)
    }
}

/// Records of an open segment that were committed together, and the place of their index, which is
/// right behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupRecord {
    pub(crate) start: u64,
    pub(crate) index_at: u64,
    pub(crate) records: u64,
}

impl Value for GroupRecord {
    fn encode(&self) -> Vec<u8> {
        seal(1, |w| {
            w.u64(self.start).u64(self.index_at).u64(self.records);
        })
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = unseal(bytes, 1)?;
        let value = GroupRecord { start: r.u64()?, index_at: r.u64()?, records: r.u64()? };
        r.end(value)
    }
}

/// An event of a branch at an LSN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The moments before (LSN, time) are gone. This event is stored at [`Event::FLOOR_AT`].
    Floor { lsn: Lsn, time: u64 },
    /// From here on everything is recorded, with these settings. With `begins` recording was off
    /// before, and the volume had this size. The content of that moment is that of an anchor at the
    /// same LSN, or, for a new branch, of its base.
    On { settings: CdpSettings, begins: bool, size: u64, time: u64 },
    /// From here on nothing is recorded.
    Off { time: u64 },
    /// A snapshot that is an anchor.
    Anchor { epoch: Epoch, snapshot: SnapshotId, time: u64 },
    /// The volume got another size. If the size is smaller, everything from there to `end` became
    /// zeros. An anchor comes right before such an event.
    Resized { size: u64, end: u64, time: u64 },
    /// All of these bytes became zeros. An anchor comes right before the event.
    Emptied { start: u64, end: u64, time: u64 },
}

impl Event {
    /// The LSN at which the catalog and [`LogState`](crate::cdp::log::LogState) keep a branch's
    /// floor. No record has LSN 0, so the floor collides with no other event, and comes before all.
    pub(crate) const FLOOR_AT: Lsn = Lsn::ZERO;

    /// Returns the bytes that became zeros.
    pub(crate) fn emptied(&self) -> Option<std::ops::Range<u64>> {
        match *self {
            Event::Emptied { start, end, .. } => Some(start..end),
            Event::Resized { size, end, .. } if end > size => Some(size..end),
            _ => None,
        }
    }

    pub(crate) fn time(&self) -> u64 {
        match *self {
            Event::Floor { time, .. }
            | Event::On { time, .. }
            | Event::Off { time }
            | Event::Anchor { time, .. }
            | Event::Resized { time, .. }
            | Event::Emptied { time, .. } => time,
        }
    }
}

impl Value for Event {
    fn encode(&self) -> Vec<u8> {
        seal(1, |w| match self {
            Event::Floor { lsn, time } => _ = w.u8(1).u64(*lsn).u64(*time),
            Event::On { settings, begins, size, time } => {
                w.u8(2).u8(*begins as u8).u64(*size).u64(*time);
                encode_settings(w, settings);
            }
            Event::Off { time } => _ = w.u8(3).u64(*time),
            Event::Anchor { epoch, snapshot, time } => _ = w.u8(4).u32(epoch.0).u64(*snapshot).u64(*time),
            Event::Resized { size, end, time } => _ = w.u8(5).u64(*size).u64(*end).u64(*time),
            Event::Emptied { start, end, time } => _ = w.u8(6).u64(*start).u64(*end).u64(*time),
        })
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = unseal(bytes, 1)?;
        let event = match r.u8()? {
            1 => Event::Floor { lsn: r.u64()?, time: r.u64()? },
            2 => {
                let (begins, size, time) = (r.u8()? != 0, r.u64()?, r.u64()?);
                Event::On { begins, size, time, settings: decode_settings(&mut r)? }
            }
            3 => Event::Off { time: r.u64()? },
            4 => Event::Anchor { epoch: Epoch(r.u32()?), snapshot: r.u64()?, time: r.u64()? },
            5 => Event::Resized { size: r.u64()?, end: r.u64()?, time: r.u64()? },
            6 => Event::Emptied { start: r.u64()?, end: r.u64()?, time: r.u64()? },
            _ => return None,
        };
        r.end(event)
    }
}

pub(crate) fn encode_settings(w: &mut Writer, settings: &CdpSettings) {
    w.u8(settings.encoding as u8).u8(settings.compression as u8);
    let (policy, number) = match settings.anchors {
        AnchorPolicy::Never => (0, 0),
        AnchorPolicy::Every(writes) => (1, writes),
        AnchorPolicy::Interval(ns) => (2, ns),
        AnchorPolicy::Model => (3, 0),
    };
    w.u8(policy).u64(number);
    // The value 0 stands for no limit, because no limit is ever 0.
    let retention = settings.retention;
    for limit in [settings.max_distance, retention.time, retention.bytes] {
        w.u64(limit.unwrap_or(0));
    }
}

pub(crate) fn decode_settings(r: &mut Reader<'_>) -> Option<CdpSettings> {
    let (encoding, compression) = (Encoding::decode(r.u8()?)?, Compression::decode(r.u8()?)?);
    let anchors = match (r.u8()?, r.u64()?) {
        (0, 0) => AnchorPolicy::Never,
        (1, writes) => AnchorPolicy::Every(writes),
        (2, ns) => AnchorPolicy::Interval(ns),
        (3, 0) => AnchorPolicy::Model,
        _ => return None,
    };
    let mut limit = || Some(Some(r.u64()?).filter(|n| *n != 0));
    let (max_distance, time, bytes) = (limit()?, limit()?, limit()?);
    Some(CdpSettings { encoding, compression, anchors, max_distance, retention: Retention { time, bytes } })
}

/// An event of a volume at an LSN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LineRecord {
    /// The volume writes to this branch from here on.
    Branch { branch: BranchId, time: u64 },
    /// A mark: the moment has this name.
    Mark { name: String, time: u64 },
}

impl Value for LineRecord {
    fn encode(&self) -> Vec<u8> {
        seal(1, |w| match self {
            LineRecord::Branch { branch, time } => _ = w.u8(1).u64(branch.0).u64(*time),
            LineRecord::Mark { name, time } => _ = w.u8(2).u64(*time).string(name),
        })
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = unseal(bytes, 1)?;
        let value = match r.u8()? {
            1 => LineRecord::Branch { branch: BranchId(r.u64()?), time: r.u64()? },
            2 => {
                let time = r.u64()?;
                LineRecord::Mark { name: r.string()?, time }
            }
            _ => return None,
        };
        r.end(value)
    }
}

impl Catalog {
    pub(crate) fn cdp_segments(&self) -> Result<Vec<((BranchId, u64), SegmentRecord)>> {
        self.rows(SEGMENTS, "a segment of a CDP log")
    }

    pub(crate) fn cdp_groups(&self) -> Result<Vec<(GroupKey, GroupRecord)>> {
        self.rows(GROUPS, "a group of CDP records")
    }

    pub(crate) fn cdp_runs(&self) -> Result<Vec<(RunKey, RunRecord)>> {
        let mut rows: Vec<(RunKey, RunRecord)> = self.rows(RUNS, "a run of CDP records")?;
        rows.iter_mut().for_each(|((_, start), run)| run.record.start = *start);
        Ok(rows)
    }

    pub(crate) fn cdp_events(&self) -> Result<Vec<((BranchId, Lsn), Event)>> {
        self.rows(EVENTS, "an event of a CDP log")
    }

    pub(crate) fn cdp_lines(&self) -> Result<Vec<((VolumeId, Lsn), LineRecord)>> {
        self.rows(LINES, "a line of a volume")
    }
}

impl Txn<'_> {
    pub(super) fn create_cdp_tables(&mut self) -> Result<()> {
        db!("create the catalog", self.txn.get()?.open_table(SEGMENTS));
        db!("create the catalog", self.txn.get()?.open_table(GROUPS));
        db!("create the catalog", self.txn.get()?.open_table(LINES));
        db!("create the catalog", self.txn.get()?.open_table(EVENTS));
        db!("create the catalog", self.txn.get()?.open_table(super::flushes::FLUSHES));
        // The last one that an older build lacks.
        db!("create the catalog", self.txn.get()?.open_table(RUNS));
        Ok(())
    }

    pub(crate) fn put_cdp_segment(
        &mut self,
        branch: BranchId,
        seq: u64,
        value: &SegmentRecord,
    ) -> Result<()> {
        self.put(SEGMENTS, (branch, seq), &value.encode())
    }

    pub(crate) fn remove_cdp_segment(&mut self, branch: BranchId, seq: u64) -> Result<()> {
        self.remove(SEGMENTS, (branch, seq))
    }

    pub(crate) fn put_cdp_group(
        &mut self,
        branch: BranchId,
        seq: u64,
        number: u64,
        value: &GroupRecord,
    ) -> Result<()> {
        self.put(GROUPS, (branch, seq, number), &value.encode())
    }

    pub(crate) fn remove_cdp_group(&mut self, branch: BranchId, seq: u64, number: u64) -> Result<()> {
        self.remove(GROUPS, (branch, seq, number))
    }

    pub(crate) fn put_cdp_run(&mut self, key: RunKey, value: &RunRecord) -> Result<()> {
        self.put(RUNS, key, &value.encode())
    }

    pub(crate) fn remove_cdp_run(&mut self, key: RunKey) -> Result<()> {
        self.remove(RUNS, key)
    }

    pub(crate) fn put_cdp_event(&mut self, branch: BranchId, lsn: Lsn, value: &Event) -> Result<()> {
        self.put(EVENTS, (branch, lsn), &value.encode())
    }

    pub(crate) fn remove_cdp_event(&mut self, branch: BranchId, lsn: Lsn) -> Result<()> {
        self.remove(EVENTS, (branch, lsn))
    }

    pub(crate) fn put_cdp_line(&mut self, volume: VolumeId, lsn: Lsn, value: &LineRecord) -> Result<()> {
        self.put(LINES, (volume, lsn), &value.encode())
    }

    pub(crate) fn remove_cdp_line(&mut self, volume: VolumeId, lsn: Lsn) -> Result<()> {
        self.remove(LINES, (volume, lsn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> CdpSettings {
        CdpSettings {
            encoding: Encoding::Undo,
            compression: Compression::Zstd,
            anchors: AnchorPolicy::Every(7),
            max_distance: None,
            retention: Retention { time: Some(9), bytes: None },
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    fn golden<V: Value + PartialEq + std::fmt::Debug>(value: V, bytes: &str) {
        assert_eq!(hex(&value.encode()), bytes);
        assert_eq!(V::decode(&value.encode()), Some(value));
    }

    const GOLDEN_KEPT: &str = "02010000000100001000000000000000020000000000000700000000000000080000000000000009000000000000000100000000000000020000000000000003000000000000000400000000000000050000000000000006000000000000000a000000000000001fc4824e";

    /// Catalogs of older builds contain these bytes.
    #[test]
    fn golden_bytes() {
        let (lsns, times, chunks) = ((Lsn(1), Lsn(2)), (3, 4), (Chunk(5), Chunk(6)));
        let segment = SegmentRecord {
            edition: 1,
            sealed: true,
            compact: false,
            start: 0,
            end: 4096,
            index_at: Some(512),
            records: 7,
            written: 8,
            payload: 9,
            kept: 0,
            lsns,
            times,
            chunks,
        };
        golden(
            segment,
            "01010000000100001000000000000000020000000000000700000000000000080000000000000009000000000000000100000000000000020000000000000003000000000000000400000000000000050000000000000006000000000000001a2ba0cb",
        );
        golden(
            SegmentRecord { sealed: false, index_at: None, ..segment },
            "0101000000000000100000000000000000000000000000070000000000000008000000000000000900000000000000010000000000000002000000000000000300000000000000040000000000000005000000000000000600000000000000e09d7a7a",
        );
        golden(
            RunRecord { branch: BranchId(10), seq: 11, record: SegmentRecord { edition: 0, ..segment } },
            "010a000000000000000b0000000000000000100000000000000002000000000000070000000000000008000000000000000900000000000000010000000000000002000000000000000300000000000000040000000000000005000000000000000600000000000000b6ed59b1",
        );
        golden(SegmentRecord { kept: 10, ..segment }, GOLDEN_KEPT);
        assert_eq!(SegmentRecord { kept: 10, ..segment }.held(), 4096 + 10);
        golden(
            GroupRecord { start: 4096, index_at: 8192, records: 3 },
            "010010000000000000002000000000000003000000000000004f7c7665",
        );
        golden(Event::Floor { lsn: Lsn(1), time: 2 }, "010101000000000000000200000000000000e0e4dcf9");
        golden(
            Event::On { settings: settings(), begins: true, size: 512, time: 3 },
            "010201000200000000000003000000000000000203010700000000000000000000000000000009000000000000000000000000000000ea09a0bb",
        );
        golden(Event::Off { time: 4 }, "010304000000000000008a053910");
        golden(
            Event::Anchor { epoch: Epoch(5), snapshot: SnapshotId(6), time: 7 },
            "010405000000060000000000000007000000000000008e82a96d",
        );
        golden(
            Event::Resized { size: 512, end: 1024, time: 8 },
            "01050002000000000000000400000000000008000000000000002fde9459",
        );
        golden(
            Event::Emptied { start: 1, end: 2, time: 3 },
            "01060100000000000000020000000000000003000000000000003dcc7d99",
        );
        golden(
            LineRecord::Branch { branch: BranchId(2), time: 3 },
            "01010200000000000000030000000000000034f918a3",
        );
        golden(LineRecord::Mark { name: "here".into(), time: 3 }, "010203000000000000000400686572659fa3cf6a");
    }
}
