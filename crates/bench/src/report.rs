//! Conversion of samples to a Markdown table, JSON and a plot.

use crate::samples::{Row, Sample, Series, median};
use anyhow::{Context, Result};
use hindcast_plot as plot;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

/// CPU use of a client, in per cent of a core, above which the client is taken as the limit.
const CLIENT_BOUND: f64 = 90.0;

/// The texts that differ between comparisons.
pub(crate) struct Layout {
    /// Head of the column that names what is compared.
    pub(crate) subject: &'static str,
    /// Name of the server or history with which the others are compared.
    pub(crate) baseline: &'static str,
    /// Footnote for rows in which the client used most of a core.
    pub(crate) client_bound: &'static str,
    /// Additional text below the table. If it is not empty, it begins with a space.
    pub(crate) note: &'static str,
}

impl Layout {
    /// Returns the first word of the baseline's name, for the heads of columns.
    fn short(&self) -> &'static str {
        self.baseline.split(' ').next().unwrap_or(self.baseline)
    }
}

/// The result of one goal.
pub(crate) struct Verdict {
    /// Name of the workload.
    pub(crate) workload: &'static str,
    /// Name of the ratio that has the goal.
    pub(crate) what: &'static str,
    /// The goal as text, for example `≥ 1.50`.
    pub(crate) goal: String,
    /// Ratio that was measured for Hindcast.
    pub(crate) measured: f64,
    /// Whether the ratio meets the goal.
    pub(crate) met: bool,
}

/// Figures of one server for one workload.
struct Figures {
    server: &'static str,
    iops: f64,
    megabytes: f64,
    p99_us: Option<f64>,
    cpu_run: f64,
    cpu_settled: f64,
    client_cpu: f64,
    /// Ratios to the baseline: speed, CPU time of the run, and CPU time with background work.
    speed_ratio: f64,
    cpu_ratio: f64,
    cpu_settled_ratio: f64,
}

fn optional(figure: Option<f64>) -> String {
    figure.map_or("–".to_owned(), |f| format!("{f:.0}"))
}

fn figures(layout: &Layout, row: &Row) -> Vec<Figures> {
    let base = row.of(layout.baseline);
    let ratio =
        |series: &Series, metric: fn(&Sample) -> f64| base.map_or(f64::NAN, |b| series.ratio(b, metric));
    row.series
        .iter()
        .map(|series| Figures {
            server: series.server,
            iops: series.median(|s| s.outcome.iops),
            megabytes: series.median(|s| s.outcome.megabytes),
            p99_us: series.samples.iter().map(|s| s.outcome.p99_us).collect::<Option<Vec<f64>>>().map(median),
            cpu_run: series.median(|s| s.cpu_run),
            cpu_settled: series.median(|s| s.cpu_settled),
            client_cpu: series.median(|s| s.outcome.client_cpu),
            speed_ratio: ratio(series, |s| s.outcome.iops),
            cpu_ratio: ratio(series, |s| s.cpu_run),
            cpu_settled_ratio: ratio(series, |s| s.cpu_settled),
        })
        .collect()
}

/// Returns a few lines about one workload for the terminal, while the benchmark goes on.
pub(crate) fn progress(layout: &Layout, row: &Row) -> String {
    let mut text = format!("{}\n", row.workload);
    for f in figures(layout, row) {
        let _ = writeln!(
            text,
            "  {:15} {:>9.0} IOPS {:>7.0} MB/s  p99 {:>7} us  CPU {:>6.1} us ({:>6.1} settled)  x{:.2} at x{:.2}  client {:.0} %",
            f.server,
            f.iops,
            f.megabytes,
            optional(f.p99_us),
            f.cpu_run,
            f.cpu_settled,
            f.speed_ratio,
            f.cpu_ratio,
            f.client_cpu
        );
    }
    text
}

/// Writes the Markdown report to the file `out`, with JSON and SVG beside it, or to standard
/// output. The verdicts become a table of their own.
pub(crate) fn write(
    out: Option<&Path>,
    layout: &Layout,
    title: &str,
    rows: &[Row],
    verdicts: &[Verdict],
) -> Result<()> {
    let Some(out) = out else {
        let text = markdown(layout, title, rows, verdicts, None);
        return std::io::stdout().write_all(text.as_bytes()).context("print the report");
    };
    let save = |path: &Path, text: &str| {
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
    };
    let svg = out.with_extension("svg");
    let svg_name = svg.file_name().map(|n| n.to_string_lossy().into_owned());
    save(out, &markdown(layout, title, rows, verdicts, svg_name.as_deref()))?;
    save(&out.with_extension("json"), &format!("{:#}\n", json_document(layout, title, rows, verdicts)))?;
    save(&svg, &plot_rows(layout, title, rows))
}

fn markdown(layout: &Layout, title: &str, rows: &[Row], verdicts: &[Verdict], plot: Option<&str>) -> String {
    let mut text = format!("{title}; {}\n\n{}{}", machine(), table(layout, rows), verdict_table(verdicts));
    if let Some(plot) = plot {
        let _ = writeln!(text, "\n![Speed and CPU relative to {}]({plot})", layout.short());
    }
    text
}

/// Returns the rows as a Markdown table, with an explanation of the columns.
pub(crate) fn table(layout: &Layout, rows: &[Row]) -> String {
    let mut text = format!(
        "| workload | {1} | IOPS | MB/s | p99 µs | CPU µs/request | … settled | speed ×{0} | CPU ×{0} | … settled |\n\
         |---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
        layout.short(),
        layout.subject
    );
    let mut client_bound = false;
    for row in rows {
        for (i, f) in figures(layout, row).iter().enumerate() {
            let name = if i == 0 { row.workload } else { "" };
            let bound = f.client_cpu > CLIENT_BOUND;
            client_bound |= bound;
            let _ = writeln!(
                text,
                "| {name} | {} | {:.0}{} | {:.0} | {} | {:.1} | {:.1} | {:.2} | {:.2} | {:.2} |",
                f.server,
                f.iops,
                if bound { " †" } else { "" },
                f.megabytes,
                optional(f.p99_us),
                f.cpu_run,
                f.cpu_settled,
                f.speed_ratio,
                f.cpu_ratio,
                f.cpu_settled_ratio
            );
        }
    }
    let _ = writeln!(
        text,
        "\nMedians over the rounds; ratios are medians of the ratios within a round. CPU is the server's, user and \
         system, per request: until the last answer, and settled, with all background work the run caused.{}",
        layout.note
    );
    if client_bound {
        let _ = writeln!(text, "\n† {}", layout.client_bound);
    }
    text
}

fn verdict_table(verdicts: &[Verdict]) -> String {
    if verdicts.is_empty() {
        return String::new();
    }
    let mut text = "\n| workload | goal of | goal | measured | |\n|---|---|--:|--:|---|\n".to_owned();
    for v in verdicts {
        let result = if v.met { "met" } else { "**missed**" };
        let _ = writeln!(text, "| {} | {} | {} | {:.2} | {result} |", v.workload, v.what, v.goal, v.measured);
    }
    text
}

/// Returns the number of cores and the kernel version. A reader needs them to judge the figures.
pub(crate) fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let uname = rustix::system::uname();
    format!("{cores} cores, Linux {}", uname.release().to_string_lossy())
}

/// Returns the rows with all their samples as JSON.
pub(crate) fn rows_json(layout: &Layout, rows: &[Row]) -> Value {
    let sample = |s: &Sample| {
        json!({
            "requests": s.outcome.requests, "iops": s.outcome.iops, "mb_per_s": s.outcome.megabytes,
            "p99_us": s.outcome.p99_us, "client_cpu_percent": s.outcome.client_cpu,
            "cpu_us_per_request": s.cpu_run, "cpu_us_per_request_settled": s.cpu_settled,
        })
    };
    let series = |row: &Row| -> Vec<Value> {
        let figures = figures(layout, row);
        row.series
            .iter()
            .zip(figures)
            .map(|(series, f)| {
                json!({
                    "server": series.server, "rounds": series.samples.iter().map(sample).collect::<Vec<_>>(),
                    "speed_ratio": f.speed_ratio, "cpu_ratio": f.cpu_ratio,
                    "cpu_settled_ratio": f.cpu_settled_ratio,
                })
            })
            .collect()
    };
    rows.iter().map(|row| json!({ "workload": row.workload, "servers": series(row) })).collect()
}

fn json_document(layout: &Layout, title: &str, rows: &[Row], verdicts: &[Verdict]) -> Value {
    let goals: Vec<Value> = verdicts
        .iter()
        .map(|v| {
            json!({
                "workload": v.workload, "ratio": v.what, "goal": v.goal, "measured": v.measured, "met": v.met,
            })
        })
        .collect();
    json!({ "title": title, "machine": machine(), "baseline": layout.baseline, "rows": rows_json(layout, rows), "goals": goals })
}

/// Draws speed and CPU time as bars, relative to the baseline.
pub(crate) fn plot_rows(layout: &Layout, title: &str, rows: &[Row]) -> String {
    let mut names: Vec<&'static str> = Vec::new();
    for series in rows.iter().flat_map(|row| &row.series) {
        if !names.contains(&series.server) {
            names.push(series.server);
        }
    }
    let panel = |heading: &str, pick: fn(&Figures) -> f64| plot::Panel {
        heading: heading.to_owned(),
        groups: rows
            .iter()
            .map(|row| {
                let figures = figures(layout, row);
                let value = |name: &&str| figures.iter().find(|f| f.server == *name).map(pick);
                plot::Group { label: row.workload.to_owned(), values: names.iter().map(value).collect() }
            })
            .collect(),
    };
    plot::bars(
        title,
        &names,
        &[
            panel(&format!("speed relative to {} (longer is better)", layout.short()), |f| f.speed_ratio),
            panel(
                &format!(
                    "server CPU per request, settled, relative to {} (shorter is better)",
                    layout.short()
                ),
                |f| f.cpu_settled_ratio,
            ),
        ],
    )
}
