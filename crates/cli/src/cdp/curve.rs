//! A cost curve over a logarithmic axis, with its minimum: as text for a terminal, and as SVG.

use serde::Serialize;
use std::fmt::Write as _;

/// How far a curve reaches to either side of what is in its middle, as a factor.
const REACH: f64 = 32.0;
/// Columns and rows of a plot in text; a curve has one point for each column.
const COLUMNS: u32 = 65;
const ROWS: u32 = 12;

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) cost: f64,
}

/// A cost over a number from 1 on.
#[derive(Debug)]
pub(crate) struct Curve<'a> {
    pub(crate) heading: &'a str,
    /// What the number is called.
    pub(crate) symbol: &'a str,
    pub(crate) points: &'a [Point],
    /// What was chosen, and what bounds it.
    pub(crate) chosen: f64,
    pub(crate) bound: Option<f64>,
}

/// Points of a cost, spread evenly over the logarithm of its argument, around `middle`.
pub(crate) fn sample(middle: f64, cost: impl Fn(f64) -> f64) -> Vec<Point> {
    let (first, last) = ((middle / REACH).max(1.0), middle.max(1.0) * REACH);
    let point = |i: u32| {
        let x = first * (last / first).powf(f64::from(i) / f64::from(COLUMNS - 1));
        Point { x, cost: cost(x) }
    };
    (0..COLUMNS).map(point).collect()
}

impl Curve<'_> {
    /// Least and greatest cost; never the same, so that one can divide by their difference.
    fn range(&self) -> (f64, f64) {
        let least = self.points.iter().map(|p| p.cost).fold(f64::INFINITY, f64::min);
        let most = self.points.iter().map(|p| p.cost).fold(f64::NEG_INFINITY, f64::max);
        (least, if most > least { most } else { least + 1.0 })
    }

    /// Where a number is on the axis, from 0 to 1; `None` outside of it.
    fn along(&self, x: f64) -> Option<f64> {
        let (first, last) = (self.points.first()?.x, self.points.last()?.x);
        let share = (x / first).ln() / (last / first).ln();
        (0.0..=1.0).contains(&share).then_some(share)
    }

    pub(crate) fn text(&self) -> String {
        let (least, most) = self.range();
        let column = |x| self.along(x).map(|share| (share * f64::from(COLUMNS - 1)).round() as usize);
        let mut rows = vec![vec![' '; COLUMNS as usize]; ROWS as usize];
        if let Some(bound) = self.bound.and_then(column) {
            rows.iter_mut().for_each(|row| row[bound] = '┊');
        }
        let chosen = column(self.chosen);
        for (at, point) in self.points.iter().enumerate() {
            let up = (point.cost - least) / (most - least) * f64::from(ROWS - 1);
            let row = (ROWS - 1).saturating_sub(up.round() as u32) as usize;
            rows[row][at] = if chosen == Some(at) { '◆' } else { '•' };
        }
        let mut out = format!("{}\n", self.heading);
        for (at, row) in rows.iter().enumerate() {
            let label = match at {
                0 => format!("{:.2} x", most / least),
                _ if at + 1 == rows.len() => "1.00 x".to_owned(),
                _ => String::new(),
            };
            let line: String = row.iter().collect();
            let _ = writeln!(out, "{label:>9} │{}", line.trim_end());
        }
        let ends = self.points.first().zip(self.points.last()).map_or((0.0, 0.0), |(a, b)| (a.x, b.x));
        let (left, right) = (grouped(ends.0), grouped(ends.1));
        let middle = format!("◆ {} = {}", self.symbol, grouped(self.chosen));
        let width = (COLUMNS as usize).saturating_sub(left.len() + right.len());
        let _ = writeln!(out, "{:>9} └{}", "", "─".repeat(COLUMNS as usize));
        let _ = write!(out, "{:>10} {left}{middle:^width$}{right}", "");
        out
    }
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 40.0;

/// Curves, one below the other.
pub(crate) fn svg(curves: &[Curve<'_>]) -> String {
    let height = HEIGHT * curves.len() as f64;
    let mut body = String::new();
    for (at, curve) in curves.iter().enumerate() {
        panel(&mut body, curve, HEIGHT * at as f64);
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         {body}</svg>\n"
    )
}

fn panel(out: &mut String, curve: &Curve<'_>, y: f64) {
    let (least, most) = curve.range();
    let (top, bottom) = (y + TOP, y + HEIGHT - BOTTOM);
    let across = |x| curve.along(x).map(|share| LEFT + share * (WIDTH - LEFT - RIGHT));
    let up = |cost: f64| bottom - (cost - least) / (most - least) * (bottom - top);
    text(out, (LEFT, y + 24.0), "start", curve.heading);
    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let cost = least + share * (most - least);
        let at = up(cost);
        line(out, (LEFT, at), (WIDTH - RIGHT, at), "#dddddd");
        text(out, (LEFT - 6.0, at + 4.0), "end", &format!("{:.2} x", cost / least));
    }
    let mut tick = 1.0;
    while tick <= curve.points.last().map_or(0.0, |p| p.x) {
        if let Some(at) = across(tick) {
            line(out, (at, top), (at, bottom), "#dddddd");
            text(out, (at, bottom + 16.0), "middle", &grouped(tick));
        }
        tick *= 10.0;
    }
    if let Some(at) = curve.bound.and_then(across) {
        line(out, (at, top), (at, bottom), "#d55e00");
        text(out, (at + 4.0, top + 12.0), "start", &format!("{}_max", curve.symbol));
    }
    let points = curve.points.iter().filter_map(|p| Some(format!("{:.1},{:.1}", across(p.x)?, up(p.cost))));
    let points = points.collect::<Vec<_>>().join(" ");
    let _ =
        writeln!(out, "<polyline points=\"{points}\" fill=\"none\" stroke=\"#0072b2\" stroke-width=\"2\"/>");
    let nearest = curve
        .points
        .iter()
        .min_by(|a, b| (a.x / curve.chosen).ln().abs().total_cmp(&(b.x / curve.chosen).ln().abs()));
    if let Some((at, nearest)) = across(curve.chosen).zip(nearest) {
        let _ =
            writeln!(out, "<circle cx=\"{at:.1}\" cy=\"{:.1}\" r=\"5\" fill=\"#d55e00\"/>", up(nearest.cost));
        let label = format!("{} = {}", curve.symbol, grouped(curve.chosen));
        text(out, (at, up(nearest.cost) - 12.0), "middle", &label);
    }
}

fn line(out: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(
        out,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>"
    );
}

fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, content: &str) {
    let content = content.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#222222\">{content}</text>"
    );
}

/// A number rounded to a whole one, in groups of three digits.
pub(crate) fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = if value <= -0.5 { "-".to_owned() } else { String::new() };
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 && value.is_finite() {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With its minimum at 100.
    fn points() -> Vec<Point> {
        sample(100.0, |x| x / 100.0 + 100.0 / x)
    }

    fn curve(points: &[Point]) -> Curve<'_> {
        Curve { heading: "cost <of> x", symbol: "x", points, chosen: 100.0, bound: Some(1000.0) }
    }

    #[test]
    fn numbers_are_grouped() {
        for (value, text) in
            [(0.0, "0"), (999.4, "999"), (999.5, "1,000"), (227_629.0, "227,629"), (-1e6, "-1,000,000")]
        {
            assert_eq!(grouped(value), text);
        }
        assert_eq!(grouped(f64::INFINITY), "inf");
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
        let points = points();
        let plot = curve(&points).text();
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

    #[test]
    fn the_picture_is_well_formed() {
        let points = points();
        let svg = svg(&[curve(&points), curve(&points)]);
        assert!(svg.contains("cost &lt;of&gt; x") && !svg.contains("NaN") && !svg.contains("inf"));
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (2, 2));
        assert!(svg.contains("x = 100") && svg.contains("x_max") && svg.ends_with("</svg>\n"));
        // Flat curves have no height to divide by.
        let flat = sample(10.0, |_| 7.0);
        let flat = Curve { heading: "", symbol: "x", points: &flat, chosen: 10.0, bound: None };
        assert!(!super::svg(&[flat]).contains("NaN"));
    }
}
