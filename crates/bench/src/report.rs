//! Turns samples into a Markdown table, JSON and a plot.

use crate::plot;
use crate::targets::{BASELINE, Row, Sample, Series};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

/// Above this share of a core, fio itself is taken as the limit.
const CLIENT_BOUND: f64 = 90.0;

/// The median; the mean of the middle two of an even number.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

impl Series {
    fn median(&self, metric: impl Fn(&Sample) -> f64) -> f64 {
        median(self.samples.iter().map(metric).collect())
    }

    /// The median of the ratios to `base`, round by round.
    fn ratio(&self, base: &Series, metric: impl Fn(&Sample) -> f64) -> f64 {
        median(
            self.samples.iter().zip(&base.samples).map(|(own, other)| metric(own) / metric(other)).collect(),
        )
    }
}

/// One server's figures for one workload.
struct Figures {
    server: &'static str,
    iops: f64,
    megabytes: f64,
    p99_us: f64,
    cpu_run: f64,
    cpu_settled: f64,
    client_cpu: f64,
    /// Speed and CPU (run; settled) relative to the baseline.
    speed_ratio: f64,
    cpu_ratio: f64,
    cpu_settled_ratio: f64,
}

fn figures(row: &Row) -> Vec<Figures> {
    let base = row.series.iter().find(|s| s.server == BASELINE);
    let ratio =
        |series: &Series, metric: fn(&Sample) -> f64| base.map_or(f64::NAN, |b| series.ratio(b, metric));
    row.series
        .iter()
        .map(|series| Figures {
            server: series.server,
            iops: series.median(|s| s.outcome.iops),
            megabytes: series.median(|s| s.outcome.megabytes),
            p99_us: series.median(|s| s.outcome.p99_us),
            cpu_run: series.median(|s| s.cpu_run),
            cpu_settled: series.median(|s| s.cpu_settled),
            client_cpu: series.median(|s| s.outcome.client_cpu),
            speed_ratio: ratio(series, |s| s.outcome.iops),
            cpu_ratio: ratio(series, |s| s.cpu_run),
            cpu_settled_ratio: ratio(series, |s| s.cpu_settled),
        })
        .collect()
}

/// A few lines for the terminal while the run goes on.
pub(crate) fn progress(row: &Row) -> String {
    let mut text = format!("{}\n", row.workload.name);
    for f in figures(row) {
        let _ = writeln!(
            text,
            "  {:15} {:>9.0} IOPS {:>7.0} MB/s  p99 {:>7.0} us  CPU {:>6.1} us ({:>6.1} settled)  x{:.2} at x{:.2}  fio {:.0} %",
            f.server,
            f.iops,
            f.megabytes,
            f.p99_us,
            f.cpu_run,
            f.cpu_settled,
            f.speed_ratio,
            f.cpu_ratio,
            f.client_cpu
        );
    }
    text
}

/// Writes the Markdown report to `out` (and JSON and SVG beside it), or to standard output.
pub(crate) fn write(out: Option<&Path>, title: &str, rows: &[Row]) -> Result<()> {
    let Some(out) = out else {
        let text = markdown(title, rows, None);
        return std::io::stdout().write_all(text.as_bytes()).context("print the report");
    };
    let save = |path: &Path, text: &str| {
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
    };
    let svg = out.with_extension("svg");
    let svg_name = svg.file_name().map(|n| n.to_string_lossy().into_owned());
    save(out, &markdown(title, rows, svg_name.as_deref()))?;
    save(&out.with_extension("json"), &format!("{:#}\n", json_document(title, rows)))?;
    save(&svg, &plot_rows(title, rows))
}

fn markdown(title: &str, rows: &[Row], plot: Option<&str>) -> String {
    let mut text = format!("{title}; {}\n\n", machine());
    text.push_str(
        "| workload | server | IOPS | MB/s | p99 µs | CPU µs/request | … settled | speed ×nbdkit | CPU ×nbdkit | … settled |\n\
         |---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let mut client_bound = false;
    for row in rows {
        for (i, f) in figures(row).iter().enumerate() {
            let name = if i == 0 { row.workload.name } else { "" };
            let bound = f.client_cpu > CLIENT_BOUND;
            client_bound |= bound;
            let _ = writeln!(
                text,
                "| {name} | {} | {:.0}{} | {:.0} | {:.0} | {:.1} | {:.1} | {:.2} | {:.2} | {:.2} |",
                f.server,
                f.iops,
                if bound { " †" } else { "" },
                f.megabytes,
                f.p99_us,
                f.cpu_run,
                f.cpu_settled,
                f.speed_ratio,
                f.cpu_ratio,
                f.cpu_settled_ratio
            );
        }
    }
    text.push_str(
        "\nMedians over the rounds; ratios are medians of the ratios within a round. CPU is the server's, user and \
         system, per request: until the last answer, and settled, with all background work the run caused. Where \
         every write has a flush, p99 is the flush's.\n",
    );
    if client_bound {
        let _ = writeln!(text, "\n† fio used more than {CLIENT_BOUND} % of a core: the client is the limit.");
    }
    if let Some(plot) = plot {
        let _ = writeln!(text, "\n![Speed and CPU relative to nbdkit]({plot})");
    }
    text
}

/// Kernel and cores: what a reader needs to judge the figures.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let uname = rustix::system::uname();
    format!("{cores} cores, Linux {}", uname.release().to_string_lossy())
}

fn json_document(title: &str, rows: &[Row]) -> Value {
    let sample = |s: &Sample| {
        json!({
            "requests": s.outcome.requests, "iops": s.outcome.iops, "mb_per_s": s.outcome.megabytes,
            "p99_us": s.outcome.p99_us, "client_cpu_percent": s.outcome.client_cpu,
            "cpu_us_per_request": s.cpu_run, "cpu_us_per_request_settled": s.cpu_settled,
        })
    };
    let series = |row: &Row| -> Vec<Value> {
        let figures = figures(row);
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
    let rows: Vec<Value> =
        rows.iter().map(|row| json!({ "workload": row.workload.name, "servers": series(row) })).collect();
    json!({ "title": title, "machine": machine(), "baseline": BASELINE, "rows": rows })
}

fn plot_rows(title: &str, rows: &[Row]) -> String {
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
                let figures = figures(row);
                let value = |name: &&str| figures.iter().find(|f| f.server == *name).map(pick);
                plot::Group { label: row.workload.name.to_owned(), values: names.iter().map(value).collect() }
            })
            .collect(),
    };
    plot::bars(
        title,
        &names,
        &[
            panel("speed relative to nbdkit (longer is better)", |f| f.speed_ratio),
            panel("server CPU per request, settled, relative to nbdkit (shorter is better)", |f| {
                f.cpu_settled_ratio
            }),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }
}
