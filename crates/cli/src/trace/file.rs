//! The content of a trace file, and what it amounts to.

use crate::failure::Failure;
use crate::output::{harmless, list};
use hindcast_api::{ErrorBody, ErrorKind, Size};
use hindcast_engine::disk::{
    AccessOp, Cause, DiskAccess, TraceDisk, TraceEnd, TraceHead, TracePiece, TraceReader,
};
use hindcast_server::error_body;
use jiff::Timestamp;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

const NANOSECONDS: f64 = 1e9;

/// Which accesses are wanted.
pub(super) struct Chosen<'a> {
    /// Paths or numbers of disks. Empty: all disks.
    pub(super) disks: &'a [String],
    /// Empty: all causes.
    pub(super) causes: &'a [Cause],
    /// Empty: all operations.
    pub(super) ops: &'a [AccessOp],
    /// Times since the start of the trace, in nanoseconds.
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Chosen<'_> {
    /// Returns whether an access of a chosen disk and time is wanted.
    pub(super) fn wants(&self, access: &DiskAccess) -> bool {
        (self.causes.is_empty() || self.causes.contains(&access.cause))
            && (self.ops.is_empty() || self.ops.contains(&access.op))
    }
}

/// A trace file: the accesses of the chosen disks and times.
pub(super) struct Loaded {
    pub(super) head: TraceHead,
    /// The chosen disks, by number.
    pub(super) disks: BTreeMap<u16, TraceDisk>,
    /// In the order of their times.
    pub(super) accesses: Vec<DiskAccess>,
    pub(super) lost: u64,
    /// Why and when the trace ended: nanoseconds since its start. `None`: the file was cut off.
    pub(super) end: Option<(TraceEnd, u64)>,
    /// Nanoseconds from the start of the trace to its end, or to its last access.
    pub(super) length: u64,
}

impl Loaded {
    pub(super) fn read(path: &Path, chosen: &Chosen<'_>) -> Result<Loaded, Failure> {
        let failed = |e: hindcast_engine::Error| {
            let body = error_body(e);
            ErrorBody { message: format!("{}: {}", path.display(), body.message), ..body }
        };
        let file = File::open(path).map_err(|e| {
            let not_found = e.kind() == std::io::ErrorKind::NotFound;
            let kind = if not_found { ErrorKind::NotFound } else { ErrorKind::Io };
            ErrorBody { kind, message: format!("open {}: {e}", path.display()) }
        })?;
        let mut reader = TraceReader::open(BufReader::with_capacity(1 << 20, file)).map_err(failed)?;
        let (mut disks, mut accesses, mut end) = (BTreeMap::new(), Vec::new(), None);
        let mut length = 0;
        while let Some(piece) = reader.next_piece().map_err(failed)? {
            match piece {
                TracePiece::Disks(found) => disks.extend(found.into_iter().map(|disk| (disk.number, disk))),
                TracePiece::Accesses(found) => {
                    length = found.iter().map(|access| access.at).fold(length, u64::max);
                    let is_in_time = |access: &DiskAccess| (chosen.from..chosen.to).contains(&access.at);
                    accesses.extend(found.into_iter().filter(is_in_time));
                }
                TracePiece::End(why, at) => end = Some((why, at)),
            }
        }
        let (head, lost) = (reader.head(), reader.lost());
        length = end.map_or(length, |(_, at)| at.max(length));
        accesses.sort_by_key(|access| access.at);
        for number in accesses.iter().map(|access| access.disk) {
            disks.entry(number).or_insert_with(|| unknown(number));
        }
        let mut loaded = Loaded { head, disks, accesses, lost, end, length };
        loaded.choose(chosen)?;
        Ok(loaded)
    }

    /// Leaves out the disks that are not chosen.
    fn choose(&mut self, chosen: &Chosen<'_>) -> Result<(), Failure> {
        let is = |disk: &TraceDisk, wanted: &String| {
            disk.path == *wanted || disk.pv_path == *wanted || disk.number.to_string() == *wanted
        };
        for wanted in chosen.disks {
            if !self.disks.values().any(|disk| is(disk, wanted)) {
                let all: Vec<String> = self.disks.values().map(|disk| harmless(&disk.path)).collect();
                let message = format!("find disk {wanted}: the trace has {}", all.join(", "));
                return Err(ErrorBody { kind: ErrorKind::NotFound, message }.into());
            }
        }
        if !chosen.disks.is_empty() {
            self.disks.retain(|_, disk| chosen.disks.iter().any(|wanted| is(disk, wanted)));
            self.accesses.retain(|access| self.disks.contains_key(&access.disk));
        }
        Ok(())
    }

    /// Returns the accesses of a disk.
    pub(super) fn of_disk(&self, number: u16) -> impl Iterator<Item = &DiskAccess> {
        self.accesses.iter().filter(move |access| access.disk == number)
    }
}

/// A disk that the file says nothing of.
fn unknown(number: u16) -> TraceDisk {
    let path = format!("disk {number}");
    TraceDisk { number, pv: u32::MAX, size: 0, pv_path: path.clone(), path }
}

/// What a trace amounts to.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    file: String,
    pool: String,
    started: Timestamp,
    /// Length of the trace.
    seconds: f64,
    /// Why it ended; absent if the file was cut off.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<&'static str>,
    lost: u64,
    disks: Vec<DiskReport>,
    pictures: Vec<String>,
}

#[derive(Debug, Serialize)]
struct DiskReport {
    number: u16,
    path: String,
    pv: String,
    size: u64,
    rows: Vec<Row>,
}

/// The accesses of a disk with one operation and cause.
#[derive(Debug, Default, Serialize)]
struct Row {
    op: &'static str,
    cause: &'static str,
    accesses: u64,
    /// Of these, how many the page cache answered without the disk.
    cached: u64,
    failed: u64,
    bytes: u64,
    /// Sum of their durations.
    busy_seconds: f64,
    mean_ms: f64,
    longest_ms: f64,
}

impl Report {
    pub(super) fn of(file: &Path, loaded: &Loaded, chosen: &Chosen<'_>, pictures: Vec<String>) -> Report {
        let disk = |disk: &TraceDisk| DiskReport {
            number: disk.number,
            path: disk.path.clone(),
            pv: disk.pv_path.clone(),
            size: disk.size,
            rows: rows(loaded.of_disk(disk.number).filter(|access| chosen.wants(access))),
        };
        Report {
            file: file.display().to_string(),
            pool: loaded.head.pool.to_string(),
            started: Timestamp::from_nanosecond(loaded.head.started.into()).unwrap_or_default(),
            seconds: loaded.length as f64 / NANOSECONDS,
            ended: loaded.end.map(|(end, _)| name(end)),
            lost: loaded.lost,
            disks: loaded.disks.values().map(disk).collect(),
            pictures,
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!("trace of pool {} from {}, {:.1} s", self.pool, self.started, self.seconds);
        text.push_str(match self.ended {
            Some(_) => "",
            None => "; the file was cut off",
        });
        if self.lost > 0 {
            text.push_str(&format!("\n{} accesses are missing, because they came too fast", self.lost));
        }
        let all = self.disks.iter().flat_map(|disk| disk.rows.iter().map(move |row| (disk, row)));
        let rows = all.map(|(disk, row)| {
            vec![
                harmless(&disk.path),
                row.op.to_owned(),
                row.cause.to_owned(),
                row.accesses.to_string(),
                if row.op == AccessOp::Sync.name() { "-".into() } else { Size(row.bytes).to_string() },
                format!("{:.3} ms", row.mean_ms),
                format!("{:.3} ms", row.longest_ms),
                format!("{:.1} %", 100.0 * row.busy_seconds / self.seconds.max(1e-9)),
            ]
        });
        let heading = ["DISK", "OP", "CAUSE", "ACCESSES", "BYTES", "MEAN", "LONGEST", "BUSY"];
        text.push_str(&format!("\n\n{}", list(&heading, &[3, 4, 5, 6, 7], rows)));
        for picture in &self.pictures {
            text.push_str(&format!("\nwrote {picture}"));
        }
        text
    }
}

fn rows<'a>(accesses: impl Iterator<Item = &'a DiskAccess>) -> Vec<Row> {
    let mut rows: BTreeMap<(AccessOp, Cause), Row> = BTreeMap::new();
    for access in accesses {
        let row = rows.entry((access.op, access.cause)).or_default();
        row.accesses += 1;
        row.cached += u64::from(access.cached);
        row.failed += u64::from(access.failed);
        row.bytes += u64::from(access.len);
        row.busy_seconds += f64::from(access.micros) / 1e6;
        row.longest_ms = row.longest_ms.max(f64::from(access.micros) / 1e3);
    }
    let named = |((op, cause), row): ((AccessOp, Cause), Row)| Row {
        op: op.name(),
        cause: cause.name(),
        mean_ms: row.busy_seconds * 1e3 / row.accesses.max(1) as f64,
        ..row
    };
    let mut rows: Vec<Row> = rows.into_iter().map(named).collect();
    rows.sort_by(|a, b| b.busy_seconds.total_cmp(&a.busy_seconds));
    rows
}

fn name(end: TraceEnd) -> &'static str {
    match end {
        TraceEnd::Stopped => "stopped",
        TraceEnd::Size => "size",
        TraceEnd::Time => "time",
        TraceEnd::Full => "full",
        TraceEnd::Shutdown => "shutdown",
        TraceEnd::Failed => "failed",
    }
}
