//! The report of a priced trace: a Markdown table, or JSON.

use super::drives::Drive;
use super::geometry::SECTOR;
use super::price::{DiskPrice, PriceSum, Unpriced, price_disk};
use super::trace::LoadedTrace;
use anyhow::{Context, Result};
use hindcast_api::Size;
use hindcast_engine::disk::{AccessOp, Cause, TraceDisk};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// A trace with the prices of its accesses.
pub(super) struct PricedTrace<'a> {
    trace: &'a LoadedTrace,
    drive: &'a Drive,
    /// In the order of the disks' numbers.
    disks: Vec<(&'a TraceDisk, DiskPrice)>,
}

impl<'a> PricedTrace<'a> {
    /// Prices the accesses of all disks of the trace. Each disk is one drive of this kind.
    pub(super) fn new(trace: &'a LoadedTrace, drive: &'a Drive) -> Result<PricedTrace<'a>> {
        let price = |disk: &'a TraceDisk| {
            let priced = price_disk(drive, trace.of_disk(disk.number));
            Ok((disk, priced.with_context(|| format!("the disk {:?}", disk.path))?))
        };
        let disks = trace.disks.values().map(price).collect::<Result<_>>()?;
        Ok(PricedTrace { trace, drive, disks })
    }

    /// Returns the sums of a disk. The one that takes longest comes first.
    fn rows(priced: &DiskPrice) -> Vec<((AccessOp, Cause), PriceSum)> {
        let mut rows: Vec<_> = priced.sums.iter().map(|(key, sum)| (*key, *sum)).collect();
        rows.sort_by(|a, b| b.1.total().total_cmp(&a.1.total()));
        rows
    }

    fn sum(priced: &DiskPrice) -> PriceSum {
        let mut all = PriceSum::default();
        priced.sums.values().for_each(|sum| all.merge(sum));
        all
    }

    /// Returns the sum over all disks, the accesses without a price, and the buffered writes that
    /// no sync follows.
    fn sums(&self) -> (PriceSum, Unpriced, u64) {
        let (mut sum, mut unpriced, mut unsynced) = (PriceSum::default(), Unpriced::default(), 0);
        for (_, priced) in &self.disks {
            sum.merge(&PricedTrace::sum(priced));
            unpriced.cached += priced.unpriced.cached;
            unpriced.punched += priced.unpriced.punched;
            unpriced.failed += priced.unpriced.failed;
            unsynced += priced.unsynced;
        }
        (sum, unpriced, unsynced)
    }

    fn seconds(&self) -> f64 {
        self.trace.length as f64 / 1e9
    }

    fn started(&self) -> Timestamp {
        Timestamp::from_nanosecond(self.trace.head.started.into()).unwrap_or_default()
    }

    /// Returns the report as Markdown.
    pub(super) fn markdown(&self) -> String {
        let mut text = format!(
            "Trace of pool {} from {}, {:.1} s; each disk as a {} of {:.1} GB\n\n\
             | disk | op | cause | accesses | from the drive's cache | bytes | seeks | rotation | transfer | total | mean |\n\
             |---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
            self.trace.head.pool,
            self.started(),
            self.seconds(),
            shown(&self.drive.name),
            (self.drive.geometry.sectors() * SECTOR) as f64 / 1e9
        );
        for (disk, priced) in &self.disks {
            for ((op, cause), sum) in PricedTrace::rows(priced) {
                let name = format!("{} | {} | {}", shown(&disk.path), op.name(), cause.name());
                text.push_str(&row(&name, &sum));
            }
        }
        let (sum, unpriced, unsynced) = self.sums();
        text.push_str(&row("**sum** | |", &sum));
        text.push('\n');
        let busiest = self.disks.iter().map(|(_, priced)| PricedTrace::sum(priced).total());
        let busiest = busiest.fold(0.0, f64::max) / 1e3;
        let _ = writeln!(
            text,
            "The busiest disk works for {busiest:.1} s. Not priced: {} reads that the page cache answered, \
             {} ranges given back, {} failed accesses.",
            unpriced.cached, unpriced.punched, unpriced.failed
        );
        if unsynced > 0 {
            let _ = writeln!(text, "No sync follows {unsynced} writes. They are priced at the end.");
        }
        if self.trace.lost > 0 {
            let _ = writeln!(text, "The trace lost {} accesses.", self.trace.lost);
        }
        if !self.trace.is_whole {
            text.push_str("The file was cut off.\n");
        }
        text
    }

    /// Returns the report as JSON. Times are in milliseconds.
    pub(super) fn json(&self) -> Value {
        let (sum, unpriced, unsynced) = self.sums();
        json!({
            "drive": self.drive.name, "pool": self.trace.head.pool.to_string(),
            "started": self.started().to_string(), "seconds": self.seconds(),
            "lost": self.trace.lost, "is_whole": self.trace.is_whole,
            "disks": self.disks.iter().map(|(disk, priced)| disk_json(disk, priced)).collect::<Vec<_>>(),
            "sum": sum_json(&sum), "unpriced": unpriced_json(&unpriced), "unsynced": unsynced,
        })
    }
}

fn sum_json(sum: &PriceSum) -> Value {
    json!({
        "accesses": sum.accesses, "from_cache": sum.from_cache, "bytes": sum.bytes,
        "seek_ms": sum.seek, "rotation_ms": sum.rotation, "transfer_ms": sum.transfer,
        "total_ms": sum.total(), "mean_ms": mean(sum),
    })
}

fn unpriced_json(unpriced: &Unpriced) -> Value {
    json!({ "cached": unpriced.cached, "punched": unpriced.punched, "failed": unpriced.failed })
}

fn disk_json(disk: &TraceDisk, priced: &DiskPrice) -> Value {
    let mut rows = Vec::new();
    for ((op, cause), sum) in PricedTrace::rows(priced) {
        rows.push(json!({ "op": op.name(), "cause": cause.name(), "price": sum_json(&sum) }));
    }
    json!({
        "number": disk.number, "path": disk.path, "pv": disk.pv_path, "rows": rows,
        "sum": sum_json(&PricedTrace::sum(priced)),
        "unpriced": unpriced_json(&priced.unpriced), "unsynced": priced.unsynced,
    })
}

/// Returns the mean of the prices in milliseconds.
fn mean(sum: &PriceSum) -> f64 {
    sum.total() / sum.accesses.max(1) as f64
}

fn row(name: &str, sum: &PriceSum) -> String {
    let seconds = |milliseconds: f64| format!("{:.3} s", milliseconds / 1e3);
    let bytes = if sum.bytes == 0 { "–".to_owned() } else { Size(sum.bytes).to_string() };
    format!(
        "| {name} | {} | {} | {bytes} | {} | {} | {} | {} | {:.3} ms |\n",
        sum.accesses,
        sum.from_cache,
        seconds(sum.seek),
        seconds(sum.rotation),
        seconds(sum.transfer),
        seconds(sum.total()),
        mean(sum)
    )
}

/// Returns a name from a file in a form that changes neither a terminal nor a table.
fn shown(text: &str) -> String {
    let is_harmful =
        |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let show = |c: char| match c {
        '|' => "\\|".to_owned(),
        c if is_harmful(c) => c.escape_default().to_string(),
        c => c.to_string(),
    };
    text.chars().map(show).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_changes_neither_the_table_nor_the_terminal() {
        assert_eq!(shown("a|b\u{1b}[2J.img"), "a\\|b\\u{1b}[2J.img");
    }
}
