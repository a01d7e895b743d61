//! CDP logs: every record that an index names is there and verifies, every index agrees with its records, and what the
//! catalog counts is what there is.

use super::{CheckReport, Tables};
use crate::catalog::{Catalog, Event, GroupRecord, SegmentRecord};
use crate::cdp::record::{Entry, HEADER_LEN, SEGMENT_HEAD, SegmentHead, decode_record};
use crate::cdp::segment::SegmentDisk;
use crate::disk::{Dir, OpenMode};
use crate::error::Result;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn check_histories(
    dir: &dyn Dir,
    catalog: &Catalog,
    tables: &Tables,
    report: &mut CheckReport,
) -> Result<()> {
    let mut groups: BTreeMap<(u64, u64), Vec<GroupRecord>> = BTreeMap::new();
    for ((branch, seq, _), group) in catalog.cdp_groups()? {
        groups.entry((branch, seq)).or_default().push(group);
    }
    for ((branch, seq), record) in catalog.cdp_segments()? {
        let head = SegmentHead { pool: tables.superblock.pool, branch, seq, edition: record.edition };
        let groups = groups.remove(&(branch, seq)).unwrap_or_default();
        if !tables.branches.contains_key(&branch) {
            report.find("cdp-branch", head.file_name(), "its branch does not exist");
        }
        check_segment(dir, &head, &record, &groups, report);
    }
    for (branch, seq) in groups.keys() {
        report.find(
            "cdp-group",
            format!("branch {branch} segment {seq}"),
            "groups of a segment that is not there",
        );
    }
    let snapshots: BTreeSet<u64> = tables.snapshots.iter().map(|(id, _)| *id).collect();
    for ((branch, lsn), event) in catalog.cdp_events()? {
        let object = || format!("branch {branch} LSN {lsn}");
        if !tables.branches.contains_key(&branch) {
            report.find("cdp-branch", object(), "an event of a branch that does not exist");
        }
        if matches!(event, Event::Anchor { snapshot, .. } if !snapshots.contains(&snapshot)) {
            report.find("cdp-anchor", object(), "the snapshot that it is does not exist");
        }
    }
    check_flushes(catalog, report)
}

/// Of a volume the points of all rows are in one order, by LSN and by time.
fn check_flushes(catalog: &Catalog, report: &mut CheckReport) -> Result<()> {
    let mut last = (0, (0, 0));
    catalog.visit_flushes(|volume, key, record| {
        let object = || format!("flush points of volume {volume} up to LSN {key}");
        let Some(record) = record else { return report.find("cdp-flushes", object(), "they are damaged") };
        let before = if last.0 == volume { last.1 } else { (0, 0) };
        let points = [&[before], &record.0[..]].concat();
        if !points.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1) {
            report.find("cdp-flushes", object(), "they are out of order");
        }
        last = (volume, points.last().copied().unwrap_or(before));
        if last.1.0 != key {
            report.find("cdp-flushes", object(), format!("the last is that of LSN {}", last.1.0));
        }
    })
}

fn check_segment(
    dir: &dyn Dir,
    head: &SegmentHead,
    record: &SegmentRecord,
    groups: &[GroupRecord],
    report: &mut CheckReport,
) {
    let name = head.file_name();
    let Ok(disk) = dir.open(&name, OpenMode::ReadOnly) else {
        return report.find("cdp-segment", name, "the file is missing");
    };
    if disk.len().is_ok_and(|len| len < record.end) {
        return report.find("cdp-segment", name, format!("the file ends before byte {}", record.end));
    }
    let mut bytes = vec![0; SEGMENT_HEAD as usize];
    let read = disk.read_at(&mut bytes, 0);
    if read.is_err() || SegmentHead::decode(&bytes) != Some(*head) {
        report.find("cdp-segment", &name, "its head is damaged");
    }
    let file = SegmentDisk::new(*head, disk);
    let indexes: Vec<(u64, u64)> = match record.sealed {
        true => vec![(record.index_at, record.records)],
        false => groups.iter().map(|g| (g.index_at, g.records)).collect(),
    };
    let counted: u64 = indexes.iter().map(|(_, records)| records).sum();
    if counted != record.records {
        report.find("cdp-count", &name, format!("{counted} records are indexed, {} counted", record.records));
    }
    for (at, records) in indexes {
        match file.index(at, records) {
            Some(entries) => entries.iter().for_each(|entry| check_record(&file, entry, record, report)),
            None => report.find("cdp-index", &name, format!("the index at byte {at} is damaged")),
        }
    }
}

fn check_record(file: &SegmentDisk, entry: &Entry, record: &SegmentRecord, report: &mut CheckReport) {
    let object = || format!("{} LSN {} chunk {}", file.head.file_name(), entry.lsn, entry.chunk);
    let within = |(first, last): (u64, u64), at: u64| (first..=last).contains(&at);
    let placed = u64::from(entry.at) + entry.space() <= record.end;
    if !placed || !within(record.lsns, entry.lsn) || !within(record.chunks, entry.chunk) {
        return report.find("cdp-position", object(), "it is not where its segment says");
    }
    let mut bytes = vec![0; HEADER_LEN + entry.stored as usize];
    let read = file.disk.read_at(&mut bytes, entry.at.into());
    let decoded = decode_record(&bytes, entry.at, file.salt).filter(|d| d.entry == *entry && d.epoch > 0);
    if read.is_err() || decoded.is_none() {
        report.find("cdp-record", object(), "it is damaged, or not what the index says");
    }
}
