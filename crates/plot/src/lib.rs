//! Small pictures in SVG that are readable on light and dark pages.
//!
//! - [`bars`]: panels of grouped horizontal bars.
//! - [`lines`]: lines over one pair of axes.
//! - [`logarithmic`]: diagrams with logarithmic axes, two in a row.
//! - [`curves`]: costs over a number, each with the number that was chosen.
//! - [`accesses`], [`seeks`], [`densities`]: what disks did.
#![forbid(unsafe_code)]

mod canvas;
mod disks;

use canvas::{Axis, Canvas, END, FIRST_LINE, Frame, MIDDLE, START, colour};
pub use disks::{AccessField, Density, Kind, SeekField, Span, Spot, accesses, densities, seeks};

const WIDTH: f64 = 860.0;
/// Space at both sides of a picture, in pixels.
const MARGIN: f64 = 20.0;
/// Height of a line of text, in pixels.
const LINE: f64 = 20.0;

/// A diagram of horizontal bars.
pub struct Panel {
    /// Name of the figure that the bars show.
    pub heading: String,
    /// Groups of bars, from top to bottom.
    pub groups: Vec<Group>,
}

/// Bars that belong together, one for each series.
pub struct Group {
    /// Label above the bars.
    pub label: String,
    /// Values in the order of the series. A value is `None` if the series took no part.
    pub values: Vec<Option<f64>>,
}

/// A series of points.
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Points (x, y), in ascending order of x.
    pub points: Vec<(f64, f64)>,
}

/// A diagram of lines over one pair of logarithmic axes.
pub struct Diagram {
    /// Name of the figure on the y axis.
    pub heading: String,
    /// Lines, one for each series. A series without points draws nothing, and keeps its colour.
    pub lines: Vec<Line>,
}

/// A cost over a number. One value of the number was chosen.
pub struct Curve<'a> {
    /// Name of the cost.
    pub heading: &'a str,
    /// Symbol of the number in labels.
    pub symbol: &'a str,
    /// Points (number, cost). There are at least two, in ascending order of the number. All values
    /// are positive.
    pub points: &'a [(f64, f64)],
    /// Value of the number that was chosen.
    pub chosen: f64,
    /// Largest value of the number that was allowed, if there is one.
    pub bound: Option<f64>,
}

/// Draws panels one under another, with a legend of the series on top. A dashed line in each panel
/// is at 1. Returns the SVG document.
pub fn bars(title: &str, series: &[&str], panels: &[Panel]) -> String {
    let mut canvas = Canvas::default();
    canvas.heading((MARGIN, 24.0), title);
    canvas.legend((MARGIN, 24.0 + LINE), series.iter().enumerate().map(|(n, name)| (*name, colour(n))));
    let height = panels.iter().fold(24.0 + 2.0 * LINE, |top, panel| panel.draw(&mut canvas, top));
    canvas.finish(WIDTH, height)
}

impl Panel {
    /// Draws the panel with its top at `y`. Returns the y at which the next panel begins.
    fn draw(&self, canvas: &mut Canvas, mut y: f64) -> f64 {
        const BAR: f64 = 14.0;
        /// Space on the right for the figure after a bar, in pixels.
        const FIGURE: f64 = 60.0;
        let values = self.groups.iter().flat_map(|g| g.values.iter().flatten());
        let largest = values.copied().filter(|v| v.is_finite()).fold(1.0, f64::max);
        let scale = (WIDTH - 2.0 * MARGIN - FIGURE) / largest;
        y += LINE;
        canvas.heading((MARGIN, y), &self.heading);
        y += 6.0;
        let top = y;
        for group in &self.groups {
            y += LINE;
            canvas.text((MARGIN, y), START, &group.label);
            y += 4.0;
            for (n, value) in group.values.iter().enumerate() {
                let Some(value) = value.filter(|v| v.is_finite()) else { continue };
                canvas.rect((MARGIN, y), (value * scale, BAR - 2.0), colour(n));
                let end = MARGIN + value * scale + 4.0;
                canvas.text((end, y + BAR - 4.0), START, &format!("{value:.2}"));
                y += BAR;
            }
        }
        let one = MARGIN + scale;
        canvas.stroke(&[(one, top), (one, y)], "#444444", "stroke-dasharray=\"3 3\"");
        y + LINE
    }
}

/// Draws a title, and a legend of lines under it.
fn begin(title: &str, lines: &[Line]) -> Canvas {
    let mut canvas = Canvas::default();
    canvas.heading((MARGIN, 24.0), title);
    let names = lines.iter().enumerate().map(|(n, line)| (line.name.as_str(), colour(n + FIRST_LINE)));
    canvas.legend((MARGIN, 48.0), names);
    canvas
}

/// Draws lines over one pair of axes, which begin at 0. Returns the SVG document.
pub fn lines(title: &str, x_label: &str, y_label: &str, lines: &[Line]) -> String {
    const HEIGHT: f64 = 400.0;
    let mut canvas = begin(title, lines);
    let all = || lines.iter().flat_map(|line| &line.points);
    let frame = Frame {
        left: 70.0,
        top: 80.0,
        // Half of the last label is right of the frame.
        right: WIDTH - 2.0 * MARGIN,
        bottom: HEIGHT - 50.0,
        x: Axis::from_zero(all().map(|p| p.0)),
        y: Axis::from_zero(all().map(|p| p.1)),
    };
    frame.grid(&mut canvas);
    canvas.text((frame.left, frame.top - 8.0), START, y_label);
    canvas.text((frame.right, HEIGHT - 14.0), END, x_label);
    for (n, line) in lines.iter().enumerate() {
        frame.line(&mut canvas, &line.points, colour(n + FIRST_LINE));
    }
    canvas.finish(WIDTH, HEIGHT)
}

/// Draws diagrams with logarithmic axes, two in a row, under a legend of the series. Such axes have
/// no place for values that are not positive, so points with them are left out. Returns the SVG
/// document.
pub fn logarithmic(title: &str, x_label: &str, diagrams: &[Diagram]) -> String {
    const HEIGHT: f64 = 250.0;
    const TOP: f64 = 64.0;
    let mut canvas = begin(title, diagrams.first().map_or(&[], |first| &first.lines));
    for (n, diagram) in diagrams.iter().enumerate() {
        let at = (MARGIN + (n % 2) as f64 * WIDTH / 2.0, TOP + (n / 2) as f64 * HEIGHT);
        diagram.draw(&mut canvas, x_label, at, (WIDTH / 2.0 - 2.0 * MARGIN, HEIGHT));
    }
    canvas.finish(WIDTH, TOP + diagrams.len().div_ceil(2) as f64 * HEIGHT)
}

impl Diagram {
    fn draw(&self, canvas: &mut Canvas, x_label: &str, (left, top): (f64, f64), (width, height): (f64, f64)) {
        let positive = |p: &&(f64, f64)| [p.0, p.1].iter().all(|v| v.is_finite() && *v > 0.0);
        let all = || self.lines.iter().flat_map(|line| line.points.iter().filter(positive));
        let (Some(x), Some(y)) = (Axis::decades(all().map(|p| p.0)), Axis::decades(all().map(|p| p.1)))
        else {
            return;
        };
        let (right, bottom) = (left + width - 10.0, top + height - 40.0);
        let frame = Frame { left: left + 46.0, top: top + 24.0, right, bottom, x, y };
        canvas.heading((left, top + 12.0), &self.heading);
        frame.grid(canvas);
        canvas.text((right, bottom + 30.0), END, x_label);
        for (n, line) in self.lines.iter().enumerate() {
            let colour = colour(n + FIRST_LINE);
            let points: Vec<(f64, f64)> = line.points.iter().filter(positive).copied().collect();
            for (x, y) in points.iter().map(|point| frame.place(*point)) {
                canvas.rect((x - 2.5, y - 2.5), (5.0, 5.0), colour);
            }
            if points.len() > 1 {
                frame.line(canvas, &points, colour);
            }
        }
    }
}

/// Draws curves, one below the other. Labels give costs relative to the least cost of a curve.
/// Returns the SVG document.
pub fn curves(curves: &[Curve<'_>]) -> String {
    const WIDTH: f64 = 720.0;
    const HEIGHT: f64 = 300.0;
    let mut canvas = Canvas::default();
    for (n, curve) in curves.iter().enumerate() {
        curve.draw(&mut canvas, HEIGHT * n as f64, (WIDTH, HEIGHT));
    }
    canvas.finish(WIDTH, HEIGHT * curves.len() as f64)
}

impl Curve<'_> {
    /// Returns the least and the greatest cost. If they are equal, the second value is larger by 1,
    /// so that the difference can be a divisor.
    pub fn range(&self) -> (f64, f64) {
        let costs = || self.points.iter().map(|p| p.1);
        let (least, most) =
            (costs().fold(f64::INFINITY, f64::min), costs().fold(f64::NEG_INFINITY, f64::max));
        (least, if most > least { most } else { least + 1.0 })
    }

    fn draw(&self, canvas: &mut Canvas, y: f64, (width, height): (f64, f64)) {
        const CURVE: usize = FIRST_LINE;
        const CHOSEN: usize = FIRST_LINE + 1;
        let ([(from, _), .., (to, _)], (least, most)) = (self.points, self.range()) else { return };
        let costs = [0.0, 0.25, 0.5, 0.75, 1.0].map(|share| least + share * (most - least));
        let ticks = costs.map(|cost| (cost, format!("{:.2} x", cost / least))).to_vec();
        let frame = Frame {
            left: 70.0,
            top: y + 40.0,
            right: width - MARGIN,
            bottom: y + height - 40.0,
            x: Axis::logarithmic(*from, *to),
            y: Axis::linear(least, most, ticks),
        };
        canvas.heading((MARGIN, y + 24.0), self.heading);
        frame.grid(canvas);
        let inside = |x: &f64| (0.0..=1.0).contains(&frame.x.share(*x));
        if let Some(bound) = self.bound.filter(inside) {
            let (x, _) = frame.place((bound, least));
            canvas.stroke(&[(x, frame.top), (x, frame.bottom)], colour(CHOSEN), "");
            canvas.text((x + 4.0, frame.top + 12.0), START, &format!("{}_max", self.symbol));
        }
        frame.line(canvas, self.points, colour(CURVE));
        let far = |p: &&(f64, f64)| (p.0 / self.chosen).ln().abs();
        let nearest = self.points.iter().min_by(|a, b| far(a).total_cmp(&far(b)));
        if let Some((_, cost)) = nearest.filter(|_| inside(&self.chosen)) {
            let (x, y) = frame.place((self.chosen, *cost));
            canvas.circle((x, y), colour(CHOSEN));
            let label = format!("{} = {}", self.symbol, grouped(self.chosen));
            canvas.text((x, y - 12.0), MIDDLE, &label);
        }
    }
}

/// Formats a number, rounded to a whole number, in groups of three digits.
pub fn grouped(value: f64) -> String {
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

    fn count(svg: &str) -> [usize; 3] {
        ["<rect", "<polyline", "<circle"].map(|tag| svg.matches(tag).count())
    }

    fn line(points: &[(f64, f64)]) -> Line {
        Line { name: "one".into(), points: points.to_vec() }
    }

    #[test]
    fn bars_escape_and_leave_out_what_is_missing() {
        let panel = Panel {
            heading: "a < b".into(),
            groups: vec![Group { label: "x & y".into(), values: vec![Some(2.0), None, Some(f64::NAN)] }],
        };
        let svg = bars("t", &["one", "two", "three"], &[panel]);
        assert!(svg.contains("a &lt; b") && svg.contains("x &amp; y"));
        // Rectangles: the background, three boxes of the legend, one bar. Lines: the line at 1.
        assert_eq!(count(&svg), [5, 1, 0], "{svg}");
    }

    #[test]
    fn lines_have_a_grid() {
        let svg = lines("t", "x", "y", &[line(&[(0.0, 1.0), (5.0, 3.0)])]);
        // Rectangles: the background, one box of the legend. Lines: 11 vertical and 7 horizontal
        // lines of the grid, and the line itself.
        assert_eq!(count(&svg), [2, 19, 0], "{svg}");
    }

    #[test]
    fn logarithmic_diagrams_leave_out_what_is_not_positive() {
        let lines = vec![line(&[(1.0, 0.2), (100.0, 5.0)]), line(&[(1.0, 0.0)])];
        let empty = Diagram { heading: "nothing".into(), lines: vec![line(&[])] };
        let svg = logarithmic("t", "x", &[Diagram { heading: "a & b".into(), lines }, empty]);
        // Rectangles: the background, two boxes of the legend, two points. Lines: three lines of
        // the grid in each direction, and the line itself.
        assert_eq!(count(&svg), [5, 7, 0], "{svg}");
        assert!(svg.contains("a &amp; b") && !svg.contains("nothing"), "{svg}");
    }

    #[test]
    fn curves_show_what_was_chosen() {
        let points: Vec<(f64, f64)> =
            (0..65).map(|n| 10f64.powf(f64::from(n) / 16.0)).map(|x| (x, x)).collect();
        let curve =
            || Curve { heading: "c", symbol: "x", points: &points, chosen: 5000.0, bound: Some(100.0) };
        let svg = curves(&[curve(), curve()]);
        assert!(!svg.contains("NaN") && !svg.contains("inf") && svg.ends_with("</svg>\n"), "{svg}");
        assert!(svg.contains("x = 5,000") && svg.contains("x_max"), "{svg}");
        // Lines of each curve: five horizontal and five vertical ones of the grid, the bound, the
        // curve.
        assert_eq!(count(&svg), [1, 24, 2], "{svg}");
        // A flat curve has no height that could be a divisor. A chosen number outside of the axis
        // is not drawn.
        let flat = Curve { points: &[(1.0, 7.0), (10.0, 7.0)], bound: None, ..curve() };
        let svg = curves(&[flat]);
        assert!(!svg.contains("NaN") && count(&svg) == [1, 8, 0], "{svg}");
    }

    #[test]
    fn numbers_are_grouped() {
        let numbers =
            [(0.0, "0"), (999.4, "999"), (999.5, "1,000"), (227_629.0, "227,629"), (-1e6, "-1,000,000")];
        for (value, text) in numbers {
            assert_eq!(grouped(value), text);
        }
        assert_eq!(grouped(f64::INFINITY), "inf");
    }
}
