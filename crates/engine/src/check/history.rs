//! Checks CDP logs. Every record that an index names exists and verifies. Every index agrees with
//! its records. The catalog's counts match the records.

use super::{CheckReport, Tables};
use crate::catalog::{Catalog, Event, GroupRecord, SegmentRecord};
use crate::cdp::log::record::{
    HEADER_LEN, IndexEntry, Replaced, SEGMENT_HEAD, SHARED, SegmentHead, decode_record,
};
use crate::cdp::log::segment::SegmentDisk;
use crate::disk::{Dir, OpenMode};
use crate::error::{ErrorKind, Result};
use crate::ids::{BranchId, Epoch, Lsn, SnapshotId, Stamp, VolumeId};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn check_histories(
    dir: &dyn Dir,
    catalog: &Catalog,
    tables: &Tables,
    report: &mut CheckReport,
) -> Result<()> {
    let mut groups: BTreeMap<(BranchId, u64), Vec<GroupRecord>> = BTreeMap::new();
    for ((branch, seq, _), group) in catalog.cdp_groups()? {
        groups.entry((branch, seq)).or_default().push(group);
    }
    let events = catalog.cdp_events()?;
    let keepers = Keepers::new(catalog, &events);
    for ((branch, seq), record) in catalog.cdp_segments()? {
        let head = SegmentHead { pool: tables.superblock.pool, branch, seq, edition: record.edition };
        let groups = groups.remove(&(branch, seq)).unwrap_or_default();
        if !tables.branches.contains_key(&branch) {
            report.find("cdp-branch", head.file_name(), "its branch does not exist");
        }
        check_segment(dir, (&head, &record), &groups, &keepers, report)?;
    }
    check_runs(dir, (catalog, tables), &keepers, report)?;
    for (branch, seq) in groups.keys() {
        report.find(
            "cdp-group",
            format!("branch {branch} segment {seq}"),
            "groups of a segment that does not exist",
        );
    }
    let snapshots: BTreeSet<SnapshotId> = tables.snapshots.iter().map(|(id, _)| *id).collect();
    for ((branch, lsn), event) in events {
        let object = || format!("branch {branch} LSN {lsn}");
        if !tables.branches.contains_key(&branch) {
            report.find("cdp-branch", object(), "an event of a branch that does not exist");
        }
        if matches!(event, Event::Anchor { snapshot, .. } if !snapshots.contains(&snapshot)) {
            report.find("cdp-anchor", object(), "its snapshot does not exist");
        }
    }
    check_flushes(catalog, report)
}

/// The anchors and beginnings of all histories. Records without a payload need them.
struct Keepers<'a> {
    catalog: &'a Catalog,
    anchors: BTreeMap<(BranchId, Lsn), Epoch>,
    floors: BTreeMap<BranchId, Lsn>,
}

impl Keepers<'_> {
    fn new<'a>(catalog: &'a Catalog, events: &[((BranchId, Lsn), Event)]) -> Keepers<'a> {
        let mut keepers = Keepers { catalog, anchors: BTreeMap::new(), floors: BTreeMap::new() };
        for ((branch, lsn), event) in events {
            match event {
                Event::Anchor { epoch, .. } => _ = keepers.anchors.insert((*branch, *lsn), *epoch),
                Event::Floor { lsn, .. } => _ = keepers.floors.insert(*branch, *lsn),
                _ => {}
            }
        }
        keepers
    }

    /// Checks that the content that a record replaces is where the record says: the newest anchor
    /// before it has a version of the chunk (decision 66). Of a record before the beginning of the
    /// history that content may be gone.
    fn check(
        &self,
        branch: BranchId,
        entry: &IndexEntry,
        object: impl Fn() -> String,
        report: &mut CheckReport,
    ) -> Result<()> {
        if entry.replaced != Replaced::Anchor || self.floors.get(&branch).is_some_and(|f| entry.lsn <= *f) {
            return Ok(());
        }
        let before = self.anchors.range((branch, Lsn::ZERO)..(branch, entry.lsn)).next_back();
        let Some((_, epoch)) = before else {
            report.find("cdp-kept", object(), "no anchor keeps what it replaced");
            return Ok(());
        };
        match self.catalog.versions_at(branch, *epoch, (entry.chunk, entry.chunk)) {
            Ok(versions) if versions.is_empty() => {
                report.find("cdp-kept", object(), "its anchor does not keep what it replaced");
            }
            // The check of versions reports damaged rows.
            Err(error) if error.kind() != ErrorKind::Corrupt => return Err(error),
            _ => {}
        }
        Ok(())
    }
}

/// Checks that the flush points of all rows of a volume are in one order, by LSN and by time.
fn check_flushes(catalog: &Catalog, report: &mut CheckReport) -> Result<()> {
    let mut last = (VolumeId(0), Stamp::default());
    catalog.visit_flushes(|volume, key, record| {
        let object = || format!("flush points of volume {volume} up to LSN {key}");
        let Some(record) = record else { return report.find("cdp-flushes", object(), "they are damaged") };
        let before = if last.0 == volume { last.1 } else { Stamp::default() };
        let points = [&[before], &record.0[..]].concat();
        if !points.is_sorted_by(|a, b| a.lsn < b.lsn && a.time <= b.time) {
            report.find("cdp-flushes", object(), "they are out of order");
        }
        last = (volume, points.last().copied().unwrap_or(before));
        if last.1.lsn != key {
            report.find("cdp-flushes", object(), format!("the last one has LSN {}", last.1.lsn));
        }
    })
}

/// Checks the runs in shared segments: none overlaps another, and a branch has each number once.
fn check_runs(
    dir: &dyn Dir,
    (catalog, tables): (&Catalog, &Tables),
    keepers: &Keepers<'_>,
    report: &mut CheckReport,
) -> Result<()> {
    let rows = catalog.cdp_runs()?;
    let mut numbers: BTreeSet<(BranchId, u64)> =
        catalog.cdp_segments()?.into_iter().map(|(key, _)| key).collect();
    for of_segment in rows.chunk_by(|a, b| a.0.0 == b.0.0) {
        let seq = of_segment[0].0.0;
        let head = SegmentHead { pool: tables.superblock.pool, branch: SHARED, seq, edition: 0 };
        let end = of_segment.iter().map(|(_, run)| run.record.end).max().unwrap_or(0);
        let opened = open_segment(dir, &head, end, report);
        let mut before = SEGMENT_HEAD;
        for ((_, start), run) in of_segment {
            let object = || format!("{} byte {start}", head.file_name());
            if !tables.branches.contains_key(&run.branch) {
                report.find("cdp-branch", object(), "its branch does not exist");
            }
            if !numbers.insert((run.branch, run.seq)) {
                let text = format!("branch {} has another segment with number {}", run.branch, run.seq);
                report.find("cdp-run", object(), text);
            }
            if *start < std::mem::replace(&mut before, run.record.end) {
                report.find("cdp-run", object(), "it overlaps the run before it");
            }
            // In a segment that was cut short, the runs that are left are checked.
            if let Some((file, _)) = opened.as_ref().filter(|(_, len)| run.record.end <= *len) {
                let name = format!("branch {} in {}", run.branch, head.file_name());
                let indexes = index_of(&run.record);
                let file = file.clone().of_run(run.branch);
                check_records((&name, run.branch), (&file, &run.record), &indexes, keepers, report)?;
            }
        }
    }
    Ok(())
}

/// Opens the file of a segment that should have `end` bytes, and returns how many it has.
fn open_segment(
    dir: &dyn Dir,
    head: &SegmentHead,
    end: u64,
    report: &mut CheckReport,
) -> Option<(SegmentDisk, u64)> {
    let name = head.file_name();
    let Ok(disk) = dir.open(&name, OpenMode::ReadOnly) else {
        report.find("cdp-segment", name, "the file is missing");
        return None;
    };
    let len = disk.len().unwrap_or(end);
    if len < end {
        report.find("cdp-segment", &name, format!("the file ends before byte {end}"));
    }
    let mut bytes = vec![0; SEGMENT_HEAD as usize];
    let read = disk.read_at(&mut bytes, 0);
    if read.is_err() || SegmentHead::decode(&bytes) != Some(*head) {
        report.find("cdp-segment", &name, "its head is damaged");
    }
    Some((SegmentDisk::new(*head, disk), len))
}

/// Returns the index of all records of a closed segment, as (byte, number of records).
fn index_of(record: &SegmentRecord) -> Vec<(u64, u64)> {
    record.index_at.map(|at| (at, record.records)).into_iter().collect()
}

fn check_segment(
    dir: &dyn Dir,
    (head, record): (&SegmentHead, &SegmentRecord),
    groups: &[GroupRecord],
    keepers: &Keepers<'_>,
    report: &mut CheckReport,
) -> Result<()> {
    let opened = open_segment(dir, head, record.end, report);
    let Some((file, _)) = opened.filter(|(_, len)| record.end <= *len) else { return Ok(()) };
    let indexes: Vec<(u64, u64)> = match record.sealed {
        true => index_of(record),
        false => groups.iter().map(|g| (g.index_at, g.records)).collect(),
    };
    check_records((&head.file_name(), head.branch), (&file, record), &indexes, keepers, report)
}

/// Checks the records that the indexes of a segment or run name. `indexes` has (byte, number of
/// records) of each.
fn check_records(
    (name, branch): (&str, BranchId),
    (file, record): (&SegmentDisk, &SegmentRecord),
    indexes: &[(u64, u64)],
    keepers: &Keepers<'_>,
    report: &mut CheckReport,
) -> Result<()> {
    let counted: u64 = indexes.iter().map(|(_, records)| records).sum();
    if counted != record.records {
        report.find("cdp-count", name, format!("{counted} records are indexed, {} counted", record.records));
    }
    let mut kept = Some(0);
    for &(at, records) in indexes {
        let Some(entries) = file.index(at, records) else {
            report.find("cdp-index", name, format!("the index at byte {at} is damaged"));
            kept = None;
            continue;
        };
        kept = kept.map(|sum: u64| sum + entries.iter().map(IndexEntry::kept).sum::<u64>());
        for entry in &entries {
            let object = || format!("{name} LSN {} chunk {}", entry.lsn, entry.chunk);
            check_record(object, (file, entry), record, report);
            keepers.check(branch, entry, object, report)?;
        }
    }
    if let Some(kept) = kept.filter(|kept| *kept != record.kept) {
        let text = format!("its records need {kept} bytes in slots, {} are counted", record.kept);
        report.find("cdp-count", name, text);
    }
    Ok(())
}

fn within<T: Ord>((first, last): (T, T), at: T) -> bool {
    (first..=last).contains(&at)
}

fn check_record(
    object: impl Fn() -> String,
    (file, entry): (&SegmentDisk, &IndexEntry),
    record: &SegmentRecord,
    report: &mut CheckReport,
) {
    let at = u64::from(entry.at);
    let placed = at >= record.start && at + entry.space() <= record.end;
    if !placed || !within(record.lsns, entry.lsn) || !within(record.chunks, entry.chunk) {
        return report.find("cdp-position", object(), "its place differs from its segment");
    }
    let mut bytes = vec![0; HEADER_LEN + entry.stored as usize];
    let read = file.disk.read_at(&mut bytes, entry.at.into());
    let decoded =
        decode_record(&bytes, entry.at, file.salt).filter(|d| d.entry == *entry && d.epoch > Epoch::NONE);
    if read.is_err() || decoded.is_none() {
        report.find("cdp-record", object(), "it is damaged, or differs from its index");
    }
}
