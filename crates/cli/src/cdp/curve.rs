//! A cost curve over a logarithmic axis, with its minimum, as text for a terminal.

use hindcast_plot::{Curve, grouped};
use serde::Serialize;
use std::fmt::Write as _;

/// Factor by which a curve extends to either side of its middle.
const REACH: f64 = 32.0;
/// Columns and rows of a plot in text. A curve has one point for each column.
const COLUMNS: u32 = 65;
const ROWS: u32 = 12;

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) cost: f64,
}

/// Returns points in the form of [`Curve`].
pub(crate) fn pairs(points: &[Point]) -> Vec<(f64, f64)> {
    points.iter().map(|point| (point.x, point.cost)).collect()
}

/// Computes points of a cost around `middle`, evenly spaced on the logarithm of its argument.
pub(crate) fn sample(middle: f64, cost: impl Fn(f64) -> f64) -> Vec<Point> {
    let (first, last) = ((middle / REACH).max(1.0), middle.max(1.0) * REACH);
    let point = |i: u32| {
        let x = first * (last / first).powf(f64::from(i) / f64::from(COLUMNS - 1));
        Point { x, cost: cost(x) }
    };
    (0..COLUMNS).map(point).collect()
}

/// Draws a curve for a terminal.
pub(crate) fn text(curve: &Curve<'_>) -> String {
    let (least, most) = curve.range();
    let ends = curve.points.first().zip(curve.points.last()).map_or((1.0, 1.0), |(a, b)| (a.0, b.0));
    // `None` outside of the axis.
    let column = |x: f64| {
        let share = (x / ends.0).ln() / (ends.1 / ends.0).ln();
        (0.0..=1.0).contains(&share).then(|| (share * f64::from(COLUMNS - 1)).round() as usize)
    };
    let mut rows = vec![vec![' '; COLUMNS as usize]; ROWS as usize];
    if let Some(bound) = curve.bound.and_then(column) {
        rows.iter_mut().for_each(|row| row[bound] = '┊');
    }
    let chosen = column(curve.chosen);
    for (at, point) in curve.points.iter().enumerate() {
        let up = (point.1 - least) / (most - least) * f64::from(ROWS - 1);
        let row = (ROWS - 1).saturating_sub(up.round() as u32) as usize;
        rows[row][at] = if chosen == Some(at) { '◆' } else { '•' };
    }
    let mut out = format!("{}\n", curve.heading);
    for (at, row) in rows.iter().enumerate() {
        let label = match at {
            0 => format!("{:.2} x", most / least),
            _ if at + 1 == rows.len() => "1.00 x".to_owned(),
            _ => String::new(),
        };
        let line: String = row.iter().collect();
        let _ = writeln!(out, "{label:>9} │{}", line.trim_end());
    }
    let (left, right) = (grouped(ends.0), grouped(ends.1));
    let middle = format!("◆ {} = {}", curve.symbol, grouped(curve.chosen));
    let width = (COLUMNS as usize).saturating_sub(left.len() + right.len());
    let _ = writeln!(out, "{:>9} └{}", "", "─".repeat(COLUMNS as usize));
    let _ = write!(out, "{:>10} {left}{middle:^width$}{right}", "");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes points with their minimum at 100.
    fn points() -> Vec<Point> {
        sample(100.0, |x| x / 100.0 + 100.0 / x)
    }

    fn curve(points: &[(f64, f64)]) -> Curve<'_> {
        Curve { heading: "cost <of> x", symbol: "x", points, chosen: 100.0, bound: Some(1000.0) }
    }

    #[test]
    fn points_surround_the_middle_evenly() {
        let points = points();
        assert_eq!(points.len(), 65);
        assert!((points[0].x - 3.125).abs() < 1e-9 && (points[64].x - 3200.0).abs() < 1e-6);
        assert!((points[32].x - 100.0).abs() < 1e-9 && (points[32].cost - 2.0).abs() < 1e-12);
        // Not below one, where no count is.
        assert_eq!(sample(5.0, |x| x)[0].x, 1.0);
    }

    #[test]
    fn the_text_has_its_minimum_at_the_bottom() {
        let points = pairs(&points());
        let plot = text(&curve(&points));
        let lines: Vec<&str> = plot.lines().collect();
        assert_eq!(lines.len(), 15, "{plot}");
        let bottom = lines[12];
        assert!(bottom.contains('◆') && bottom.starts_with("   1.00 x │"), "{plot}");
        // Equally far from both ends, as the curve is.
        let (_, top) = lines[1].split_once('│').unwrap();
        assert!(top.starts_with('•') && top.ends_with('•'), "{plot}");
        assert!(lines[14].contains("◆ x = 100") && lines[14].trim_start().starts_with('3'), "{plot}");
        assert!(lines[5].contains('┊'), "{plot}");
    }
}
