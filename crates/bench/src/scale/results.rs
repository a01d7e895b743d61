//! The results of the measurements, and their report. The report has a table and a diagram for each
//! cost.

use super::growth::{Growth, last_slope};
use crate::figures::Figures;
use hindcast_plot::{self as plot, Line};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The kind of volumes in a pool: what they have in addition to their content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    Histories,
    Schedules,
    Snapshots,
}

impl Kind {
    pub(super) const ALL: [Kind; 4] = [Kind::Plain, Kind::Histories, Kind::Schedules, Kind::Snapshots];

    /// Returns the head of the kind's column.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Plain => "without",
            Kind::Histories => "with histories",
            Kind::Schedules => "with schedules",
            Kind::Snapshots => "with many snapshots",
        }
    }
}

/// A cost that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cost {
    /// Section of the report, and name of the picture.
    group: &'static str,
    /// Name of the cost. It is short enough for a small diagram.
    title: &'static str,
    /// How the cost was measured.
    detail: &'static str,
    unit: &'static str,
}

macro_rules! costs {
    ($($name:ident: $group:literal, $title:literal, $detail:literal, $unit:literal;)*) => {
        $(pub(super) const $name: Cost = Cost { group: $group, title: $title, detail: $detail, unit: $unit };)*
        /// All costs, in the order of the report.
        pub(super) const COSTS: &[Cost] = &[$($name),*];
    };
}

costs! {
    CREATE_ALL: "create", "creating all volumes", "one request after another", "s";
    CREATE_LAST: "create", "creating one more volume", "median of the last hundred", "ms";
    SCHEDULES: "create", "creating the schedules", "one for ten volumes, one after another", "s";
    WRITES: "batch", "writing 4 KiB to each volume", "each opened, written to and closed, on 8 connections", "ms";
    BATCH_FIRST: "batch", "a batch of first writes", "the first to each volume, or the first after snapshots", "ms";
    BATCH: "batch", "a batch of later writes", "one to each volume, where one was before; median of 3", "ms";
    EMPTY: "batch", "an empty batch", "subtracted from the others; median of 5", "ms";
    DISK: "batch", "a sync of the disk itself", "4 KiB to a file of the same file system, median of 30 beside each batch", "ms";
    SNAPSHOT: "snapshot", "a snapshot of all volumes", "200 volumes a request", "ms";
    SNAPSHOT_BATCH: "snapshot", "carrying it out", "less an empty batch", "ms";
    STOP: "open", "stopping in order", "nothing waits; median of 3", "ms";
    OPEN: "open", "start until NBD answers", "after a stop in order; median of 3", "ms";
    OPEN_KILLED: "open", "start after SIGKILL", "a write to each volume in the journal", "ms";
    RESIDENT_BATCH: "memory", "resident after the batches", "now", "MiB";
    PEAK: "memory", "peak until then", "resident, at most", "MiB";
    RESIDENT_OPEN: "memory", "resident after opening", "right after it", "MiB";
    PEAK_OPEN: "memory", "peak while opening", "resident, at most", "MiB";
    FILES: "files", "open files, at most", "until the batches, snapshots and lists were done", "files";
    FILES_OPEN: "files", "open files after opening", "right after it", "files";
    REST: "rest", "CPU at rest", "of a core, over 3 s in which nobody asks for anything, or 11 s with schedules", "%";
    VOLUMES_API: "lists", "GET /volumes", "median of 3", "ms";
    VOLUMES_CLI: "lists", "hindcast volume list", "median of 3", "ms";
    SNAPSHOTS_API: "lists", "GET /snapshots", "median of 3", "ms";
    SNAPSHOTS_CLI: "lists", "hindcast snapshot list", "median of 3", "ms";
    SCHEDULES_API: "lists", "GET /schedules", "median of 3", "ms";
    SCHEDULES_CLI: "lists", "hindcast schedule list", "median of 3", "ms";
    STATUS_CLI: "lists", "hindcast status", "median of 3", "ms";
}

/// Ratio between the times of the disk's own syncs at two numbers of volumes. Above it, costs that
/// include syncs are hard to compare.
const SWING: f64 = 2.0;

/// One measured figure.
#[derive(Debug, Clone, Copy)]
struct Measured {
    cost: Cost,
    kind: Kind,
    volumes: usize,
    value: f64,
}

/// All figures of a run.
#[derive(Default)]
pub(super) struct Results {
    measured: Vec<Measured>,
    /// Kinds and numbers of volumes whose measurements are not complete, because they took too
    /// long.
    left_out: Vec<(Kind, usize)>,
}

/// Formats a figure with about three significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

impl Results {
    pub(super) fn add(&mut self, cost: Cost, kind: Kind, volumes: usize, value: f64) {
        eprintln!("  {volumes} {}: {}: {} {}", kind.name(), cost.title, short(value), cost.unit);
        self.measured.push(Measured { cost, kind, volumes, value });
    }

    /// Records that the missing figures of `kind` with `volumes` volumes were left out, because
    /// they took too long.
    pub(super) fn leave_out(&mut self, kind: Kind, volumes: usize) {
        self.left_out.push((kind, volumes));
    }

    /// Returns the points (volumes, cost) in ascending order of volumes, because passes run in that
    /// order.
    fn points(&self, cost: Cost, kind: Kind) -> Vec<(f64, f64)> {
        let of = self.measured.iter().filter(|m| m.cost == cost && m.kind == kind);
        of.map(|m| (m.volumes as f64, m.value)).collect()
    }

    fn kinds(&self, cost: Cost) -> Vec<Kind> {
        Kind::ALL.into_iter().filter(|kind| !self.points(cost, *kind).is_empty()).collect()
    }

    /// Describes the growth of a cost: its name, and the power in brackets. If the largest number
    /// of volumes was not measured, the text also has the largest number that was measured.
    fn growth(&self, cost: Cost, kind: Kind, counts: &[usize]) -> String {
        let points = self.points(cost, kind);
        let Some(slope) = last_slope(&points) else { return "–".into() };
        let mut text = format!("{} ({slope:.2})", Growth::of(slope).name());
        let last = points.last().map_or(0.0, |p| p.0);
        if counts.last().is_some_and(|largest| *largest as f64 != last) {
            let _ = write!(text, ", up to {last}");
        }
        if self.swung(cost, kind) {
            text.push_str(" ‡");
        }
        text
    }

    /// Returns whether the cost includes syncs, and the disk's own syncs took more than [`SWING`]
    /// times as long with one of the last two numbers of volumes as with the other.
    fn swung(&self, cost: Cost, kind: Kind) -> bool {
        let (points, disk) = (self.points(cost, kind), self.points(DISK, kind));
        let [.., from, to] = points.as_slice() else { return false };
        let syncs = |volumes: f64| disk.iter().find(|p| p.0 == volumes).map(|p| p.1);
        let (Some(before), Some(after)) = (syncs(from.0), syncs(to.0)) else { return false };
        ["create", "batch", "snapshot"].contains(&cost.group) && before.max(after) > SWING * before.min(after)
    }

    fn cell(&self, cost: Cost, kind: Kind, volumes: usize) -> String {
        let found = self.measured.iter().find(|m| m.cost == cost && m.kind == kind && m.volumes == volumes);
        match found {
            Some(m) => short(m.value),
            None if self.left_out.contains(&(kind, volumes)) => "**left out**".into(),
            None => "–".into(),
        }
    }

    fn table(&self, cost: Cost, counts: &[usize]) -> String {
        let kinds = self.kinds(cost);
        let mut text = format!("**{}**, {} ({})\n\n| volumes |", cost.title, cost.unit, cost.detail);
        kinds.iter().for_each(|kind| text.push_str(&format!(" {} |", kind.name())));
        text.push_str("\n|--:|");
        text.push_str(&"--:|".repeat(kinds.len()));
        for volumes in counts {
            let _ = write!(text, "\n| {volumes} |");
            kinds.iter().for_each(|kind| text.push_str(&format!(" {} |", self.cell(cost, *kind, *volumes))));
        }
        text.push_str("\n| growth |");
        kinds.iter().for_each(|kind| text.push_str(&format!(" {} |", self.growth(cost, *kind, counts))));
        text.push('\n');
        text
    }

    fn data(&self, cost: Cost) -> Value {
        let of_kind = |kind: &Kind| {
            let points = self.points(cost, *kind);
            let slope = last_slope(&points);
            let growth = slope.map(|slope| Growth::of(slope).name().replace('*', ""));
            json!({ "kind": kind.name(), "volumes_and_cost": points, "slope": slope, "growth": growth })
        };
        let series: Vec<Value> = self.kinds(cost).iter().map(of_kind).collect();
        json!({ "group": cost.group, "cost": cost.title, "detail": cost.detail, "unit": cost.unit, "series": series })
    }

    /// Returns one table with the growth of every cost.
    fn overview(&self, costs: &[Cost], counts: &[usize]) -> String {
        let mut text = "| cost |".to_owned();
        Kind::ALL.iter().for_each(|kind| text.push_str(&format!(" {} |", kind.name())));
        text.push_str("\n|---|");
        text.push_str(&"---|".repeat(Kind::ALL.len()));
        for cost in costs {
            let _ = write!(text, "\n| {} |", cost.title);
            for kind in Kind::ALL {
                let _ = write!(text, " {} |", self.growth(*cost, kind, counts));
            }
        }
        text.push('\n');
        text
    }

    fn diagram(&self, cost: Cost) -> plot::Diagram {
        let line = |kind: Kind| Line { name: kind.name().to_owned(), points: self.points(cost, kind) };
        plot::Diagram {
            heading: format!("{}, {}", cost.title, cost.unit),
            lines: Kind::ALL.into_iter().map(line).collect(),
        }
    }

    /// Adds an overview, a table for each cost, and a picture for each group of costs.
    pub(super) fn report(&self, counts: &[usize], figures: &mut Figures) {
        let costs: Vec<Cost> = COSTS.iter().copied().filter(|cost| !self.kinds(*cost).is_empty()).collect();
        if costs.is_empty() {
            return;
        }
        if let [.., from, to] = counts {
            let head = format!("From {from} to {to} volumes, and by which power of the number:\n\n");
            let foot = format!(
                "\n‡ The disk's own syncs took more than {SWING} times as long with one of the two numbers as with the other: \
                 this says little.\n"
            );
            let text = head + &self.overview(&costs, counts) + &foot;
            figures.table("growth", text, json!(counts));
        }
        for group in costs.chunk_by(|a, b| a.group == b.group) {
            for cost in group {
                figures.table(cost.group, self.table(*cost, counts), self.data(*cost));
            }
            let name = group[0].group;
            let diagrams: Vec<_> = group.iter().map(|cost| self.diagram(*cost)).collect();
            let title = format!("{name}: cost against the number of volumes");
            let svg = plot::logarithmic(&title, "volumes", &diagrams);
            figures.picture(name, name, title, svg);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let mut results = Results::default();
        for (volumes, plain) in [(100, 1.0), (1000, 10.0), (10_000, 1000.0)] {
            results.add(BATCH, Kind::Plain, volumes, plain);
        }
        results.add(BATCH, Kind::Histories, 100, 12.34);
        results.add(BATCH, Kind::Histories, 1000, 12.34);
        results.leave_out(Kind::Histories, 10_000);
        results
    }

    #[test]
    fn what_was_left_out_is_no_number() {
        let table = results().table(BATCH, &[100, 1000, 10_000]);
        assert!(table.contains("| volumes | without | with histories |\n"), "{table}");
        assert!(table.contains("| 1000 | 10.0 | 12.3 |\n"), "{table}");
        assert!(table.contains("| 10000 | 1000 | **left out** |\n"), "{table}");
        assert!(table.contains("| **more than linear** (2.00) | flat (0.00), up to 1000 |\n"), "{table}");
    }

    #[test]
    fn a_disk_that_swings_is_told() {
        let mut results = results();
        results.add(DISK, Kind::Plain, 1000, 1.0);
        results.add(DISK, Kind::Plain, 10_000, 1.9);
        assert!(!results.swung(BATCH, Kind::Plain));
        results.add(DISK, Kind::Histories, 100, 4.0);
        results.add(DISK, Kind::Histories, 1000, 1.9);
        assert!(results.growth(BATCH, Kind::Histories, &[100, 1000]).ends_with(" ‡"));
        results.add(PEAK, Kind::Histories, 100, 1.0);
        results.add(PEAK, Kind::Histories, 1000, 1.0);
        assert!(!results.swung(PEAK, Kind::Histories), "memory has no syncs in it");
    }

    #[test]
    fn a_report_has_tables_and_pictures() {
        let mut figures = Figures::default();
        results().report(&[100, 1000, 10_000], &mut figures);
        let series = &results().data(BATCH)["series"];
        assert_eq!(series[0]["growth"], "more than linear");
        assert_eq!(series[1]["volumes_and_cost"], json!([[100.0, 12.34], [1000.0, 12.34]]));
    }

    #[test]
    fn titles_fit_their_diagrams() {
        for (n, cost) in COSTS.iter().enumerate() {
            assert!(cost.title.len() + cost.unit.len() < 45, "{}", cost.title);
            assert!(
                !COSTS[..n].iter().any(|other| other.title == cost.title),
                "{} is there twice",
                cost.title
            );
        }
    }

    #[test]
    fn digits() {
        assert_eq!([0.1234, 12.345, 1234.5].map(short), ["0.12", "12.3", "1234"]);
    }
}
