//! The table of what a damaged pool has lost.

use super::{Device, Range, SHOWN, progress};
use crate::failure::Failure;
use crate::output::{Output, line, list, properties};
use hindcast_api::Size;
use hindcast_engine::pool::{CatalogSource, Pool, Salvage};
use hindcast_engine::salvage::Losses;
use hindcast_server::error_body;
use jiff::Timestamp;
use serde::Serialize;
use std::io::{self, BufWriter, Write};

/// Findings that are known before any volume is read.
#[derive(Debug, Serialize)]
pub(super) struct Head {
    pool: String,
    catalog: Catalog,
    /// Reasons why all content that is read may be wrong.
    pub(super) doubts: Vec<String>,
    findings: Vec<Finding>,
    /// Volumes and snapshots of which only the name is known.
    lost_devices: Vec<LostDevice>,
}

#[derive(Debug, Serialize)]
struct Catalog {
    /// `own` or `backup`.
    source: &'static str,
    /// Path of the backup.
    path: Option<String>,
    sequence: Option<u64>,
    made: Option<Timestamp>,
    /// Whether the catalog has the present state. Otherwise it has an earlier one.
    exact: bool,
}

#[derive(Debug, Serialize)]
struct Finding {
    code: &'static str,
    object: String,
    detail: String,
}

#[derive(Debug, Serialize)]
struct LostDevice {
    volume: String,
    snapshot: Option<String>,
    size: u64,
    why: String,
}

/// Totals of one volume or snapshot, in bytes, and the number of lost ranges.
#[derive(Debug, Clone, Copy, Serialize)]
struct Counted {
    size: u64,
    allocated: u64,
    readable: u64,
    lost: u64,
    lost_ranges: u64,
}

impl From<Losses> for Counted {
    fn from(of: Losses) -> Self {
        Counted {
            size: of.size,
            allocated: of.allocated,
            readable: of.readable(),
            lost: of.lost,
            lost_ranges: of.ranges,
        }
    }
}

impl Head {
    pub(super) fn of(pool: &Pool) -> Head {
        let nothing = Salvage::default();
        let found = pool.salvage().unwrap_or(&nothing);
        let catalog = match &found.source {
            CatalogSource::Own => {
                Catalog { source: "own", path: None, sequence: None, made: None, exact: true }
            }
            CatalogSource::Backup { path, sequence, time, exact } => Catalog {
                source: "backup",
                path: Some(path.clone()),
                sequence: Some(*sequence),
                made: Timestamp::from_nanosecond((*time).into()).ok(),
                exact: *exact,
            },
        };
        let finding = |f: &hindcast_engine::pool::SalvageFinding| Finding {
            code: f.code,
            object: f.object.clone(),
            detail: f.detail.clone(),
        };
        let lost = |d: &hindcast_engine::pool::LostDevice| LostDevice {
            volume: d.volume.clone(),
            snapshot: d.snapshot.clone(),
            size: d.size,
            why: d.why.clone(),
        };
        Head {
            pool: pool.info().uuid.to_string(),
            catalog,
            doubts: found.doubts.clone(),
            findings: found.findings.iter().map(finding).collect(),
            lost_devices: found.lost.iter().map(lost).collect(),
        }
    }

    /// Returns whether nothing is lost. A missing catalog is no loss if an exact backup replaces
    /// it.
    fn is_clean(&self) -> bool {
        let backed_up = self.catalog.source == "backup";
        let harmless = |f: &Finding| backed_up && matches!(f.code, "catalog" | "backup");
        self.doubts.is_empty() && self.lost_devices.is_empty() && self.findings.iter().all(harmless)
    }

    /// Returns whether a finding other than the ranges of a copy reports a loss. `all` means that
    /// the command was to copy every volume.
    pub(super) fn lacks(&self, all: bool) -> bool {
        let says = |f: &Finding| match f.code {
            "journal" | "unlocked" | "damage-unknown" => true,
            "catalog-row" => all,
            _ => false,
        };
        self.findings.iter().any(says) || all && !self.lost_devices.is_empty()
    }

    /// Returns the lines above the volumes.
    pub(super) fn text(&self) -> String {
        let made = || self.catalog.made.map(|made| made.to_string()).unwrap_or_default();
        let path = self.catalog.path.as_deref().unwrap_or_default();
        let catalog = match (self.catalog.source, self.catalog.exact) {
            ("own", _) => "the pool's own".to_owned(),
            (_, true) => format!("from the backup in {path}, of {}: exact", made()),
            (_, false) => format!("OF AN EARLIER TIME: from the backup in {path}, of {}", made()),
        };
        let mut text = properties([("pool", self.pool.clone()), ("catalog", catalog)]);
        for doubt in &self.doubts {
            text += &format!("\n\nIN DOUBT, every volume and snapshot: {doubt}");
        }
        if !self.findings.is_empty() {
            let rows = self.findings.iter().map(|f| vec![f.code.into(), f.object.clone(), f.detail.clone()]);
            text += &format!("\n\n{}", list(&["FOUND", "OBJECT", "DETAIL"], &[], rows));
        }
        for d in &self.lost_devices {
            let device = Device { volume: d.volume.clone(), snapshot: d.snapshot.clone() };
            text += &format!("\n\nLOST AS A WHOLE: {device}: {}", d.why);
        }
        text
    }
}

/// Totals and the first lost ranges of one volume or snapshot.
struct Row {
    device: Device,
    counted: Counted,
    ranges: Vec<Range>,
}

pub(super) fn show(pool: &Pool, output: &Output) -> Result<(), Failure> {
    let head = Head::of(pool);
    let devices = pool.devices();
    let bar = progress("checking", devices.len() as u64, "{msg} {wide_bar} {pos}/{len} {eta}");
    let devices = devices.into_iter().map(|(volume, snapshot)| {
        bar.inc(1);
        Device { volume, snapshot }
    });
    let losses = if output.is_json() {
        json(pool, &head, devices)?
    } else {
        let rows = devices.map(|device| look(pool, device)).collect::<Result<Vec<Row>, Failure>>()?;
        bar.finish_and_clear();
        line(&table(&head, &rows))?;
        rows.iter().filter(|row| row.counted.lost > 0).count()
    };
    bar.finish_and_clear();
    match (head.doubts.is_empty(), losses, head.is_clean()) {
        (true, 0, true) => Ok(()),
        (false, ..) => {
            Err(Failure::Failed("the readable data is in doubt: the output has the reason".into()))
        }
        (_, 0, _) => Err(Failure::Failed(
            "no range of a volume is lost, but other things are: see the findings".into(),
        )),
        (_, n, _) => Err(Failure::Failed(format!("parts of {n} volumes and snapshots are lost"))),
    }
}

fn look(pool: &Pool, device: Device) -> Result<Row, Failure> {
    let mut ranges = Vec::new();
    let counted = pool.losses(&device.volume, device.snapshot.as_deref(), &mut |loss| {
        if ranges.len() < SHOWN {
            ranges.push(Range::from(loss));
        }
    });
    Ok(Row { device, counted: counted.map_err(error_body)?.into(), ranges })
}

fn table(head: &Head, rows: &[Row]) -> String {
    let size = |bytes: u64| Size(bytes).to_string();
    let known = rows.iter().map(|row| {
        let c = row.counted;
        vec![row.device.to_string(), size(c.size), size(c.allocated), size(c.readable), size(c.lost)]
    });
    let gone = head.lost_devices.iter().map(|d| {
        let device = Device { volume: d.volume.clone(), snapshot: d.snapshot.clone() };
        vec![device.to_string(), size(d.size), "unknown".into(), size(0), size(d.size)]
    });
    let heading = ["NAME", "SIZE", "ALLOCATED", "READABLE", "LOST"];
    let devices = list(&heading, &[1, 2, 3, 4], known.chain(gone));
    let mut lost: Vec<Vec<String>> = Vec::new();
    for row in rows {
        let name = row.device.to_string();
        lost.extend(lines(&name, &row.ranges, row.counted.lost_ranges));
    }
    for d in &head.lost_devices {
        let device = Device { volume: d.volume.clone(), snapshot: d.snapshot.clone() };
        lost.push(vec![device.to_string(), "0".into(), d.size.to_string(), d.why.clone()]);
    }
    let text = format!("{}\n\n{devices}", head.text());
    if lost.is_empty() {
        return format!("{text}\n\nno range is lost");
    }
    format!("{text}\n\n{}", list(&["LOST OF", "OFFSET", "LENGTH", "REASON"], &[1, 2], lost.into_iter()))
}

/// Makes table rows for ranges of one device, which has `all` ranges.
pub(super) fn lines(name: &str, ranges: &[Range], all: u64) -> Vec<Vec<String>> {
    let row = |r: &Range| vec![name.into(), r.offset.to_string(), r.length.to_string(), r.reason.clone()];
    let mut rows: Vec<Vec<String>> = ranges.iter().map(row).collect();
    let more = all.saturating_sub(ranges.len() as u64);
    if more > 0 {
        rows.push(vec![name.into(), String::new(), String::new(), format!("and {more} more (-o json)")]);
    }
    rows
}

/// Writes everything as JSON while it is found, because there can be many ranges. Returns the
/// number of devices that have losses.
fn json(pool: &Pool, head: &Head, devices: impl Iterator<Item = Device>) -> Result<usize, Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    let text = serde_json::to_string(head).map_err(io::Error::from)?;
    // The head without its last brace: what follows belongs to the same object.
    write!(out, "{},\"devices\":[", text.trim_end_matches('}'))?;
    let mut losses = 0;
    for (n, device) in devices.enumerate() {
        let name = |text: &Option<String>| serde_json::to_string(text).map_err(io::Error::from);
        let (volume, snapshot) = (name(&Some(device.volume.clone()))?, name(&device.snapshot)?);
        let comma = if n > 0 { "," } else { "" };
        write!(out, "{comma}\n{{\"volume\":{volume},\"snapshot\":{snapshot},\"ranges\":[")?;
        let (mut first, mut failed) = (true, Ok(()));
        let counted = pool.losses(&device.volume, device.snapshot.as_deref(), &mut |loss| {
            if failed.is_ok() {
                failed = write_range(&mut out, &Range::from(loss), std::mem::replace(&mut first, false));
            }
        });
        failed?;
        let counted = Counted::from(counted.map_err(error_body)?);
        losses += usize::from(counted.lost > 0);
        let text = serde_json::to_string(&counted).map_err(io::Error::from)?;
        write!(out, "],{}", text.trim_start_matches('{'))?;
    }
    let clean = losses == 0 && head.is_clean();
    writeln!(out, "],\"clean\":{clean}}}")?;
    out.flush()?;
    Ok(losses)
}

fn write_range(out: &mut impl Write, range: &Range, first: bool) -> io::Result<()> {
    if !first {
        out.write_all(b",")?;
    }
    out.write_all(serde_json::to_string(range)?.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64) -> Range {
        Range { offset, length: 4096, code: "catalog", reason: "why".into() }
    }

    #[test]
    fn a_table_is_cut_and_says_so() {
        let rows = lines("v", &[range(0), range(8192)], 5);
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[1][1..], ["8192", "4096", "why"]);
        assert_eq!(rows[2][3], "and 3 more (-o json)");
        assert_eq!(lines("v", &[range(0)], 1).len(), 1);
    }

    #[test]
    fn a_backup_that_is_exact_is_no_loss() {
        let finding = |code| Finding { code, object: String::new(), detail: String::new() };
        let catalog =
            |source| Catalog { source, path: Some("x".into()), sequence: Some(1), made: None, exact: true };
        let head = |source, code| Head {
            pool: String::new(),
            catalog: catalog(source),
            doubts: Vec::new(),
            findings: vec![finding(code)],
            lost_devices: Vec::new(),
        };
        assert!(head("backup", "backup").is_clean() && head("backup", "catalog").is_clean());
        assert!(!head("backup", "pv").is_clean());
        assert!(!head("own", "catalog").is_clean());
        assert!(head("backup", "backup").text().contains(": exact"));
    }
}
