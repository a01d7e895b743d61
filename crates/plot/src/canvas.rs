//! The primitives of a picture: an SVG document, an axis, and a frame of two axes with its grid.

use std::fmt::Write as _;

/// Colours that colour-blind readers can distinguish (Okabe and Ito's palette).
pub(crate) const COLOURS: [&str; 6] = ["#999999", "#56b4e9", "#0072b2", "#d55e00", "#009e73", "#cc79a7"];
/// Index of the colour of the first line. Grey and pale blue are for bars.
pub(crate) const FIRST_LINE: usize = 2;
pub(crate) const GRID: &str = "#dddddd";
/// Largest number of intervals between the ticks of an axis.
const TICKS: f64 = 10.0;

/// Returns the colour of series number `n`. The colours repeat.
pub(crate) fn colour(n: usize) -> &'static str {
    COLOURS[n % COLOURS.len()]
}

/// A value of SVG's `text-anchor`. It says which point of a text is at the given place: its
/// beginning, its middle or its end.
pub(crate) const START: &str = "start";
pub(crate) const MIDDLE: &str = "middle";
pub(crate) const END: &str = "end";

/// An SVG document that is being drawn. Places and lengths are in pixels.
#[derive(Default)]
pub(crate) struct Canvas {
    body: String,
}

impl Canvas {
    /// Returns the whole document. Its background is white, so that it is readable on a dark page.
    pub(crate) fn finish(self, width: f64, height: f64) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{}</svg>\n",
            self.body
        )
    }

    pub(crate) fn text(&mut self, at: (f64, f64), anchor: &str, content: &str) {
        self.words(at, anchor, "normal", content);
    }

    pub(crate) fn heading(&mut self, at: (f64, f64), content: &str) {
        self.words(at, START, "bold", content);
    }

    fn words(&mut self, (x, y): (f64, f64), anchor: &str, weight: &str, content: &str) {
        let content = content.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let _ = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-weight=\"{weight}\" \
             fill=\"#222222\">{content}</text>"
        );
    }

    pub(crate) fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str) {
        let _ = writeln!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\"/>"
        );
    }

    /// Draws a shape of SVG's path commands.
    pub(crate) fn shape(&mut self, commands: &str, fill: &str, opacity: f64) {
        let _ = writeln!(self.body, "<path d=\"{commands}\" fill=\"{fill}\" fill-opacity=\"{opacity:.2}\"/>");
    }

    pub(crate) fn circle(&mut self, (x, y): (f64, f64), fill: &str) {
        let _ = writeln!(self.body, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"{fill}\"/>");
    }

    /// Draws a line through points. `style` holds additional SVG attributes of the line.
    pub(crate) fn stroke(&mut self, points: &[(f64, f64)], colour: &str, style: &str) {
        let list: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            self.body,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" {style}/>",
            list.join(" ")
        );
    }

    /// Draws a legend of names with their colours, in a row that begins at `at`.
    pub(crate) fn legend<'a>(
        &mut self,
        at: (f64, f64),
        names: impl Iterator<Item = (&'a str, &'static str)>,
    ) {
        let mut x = at.0;
        for (name, colour) in names {
            self.rect((x, at.1 - 11.0), (12.0, 12.0), colour);
            self.text((x + 18.0, at.1), START, name);
            x += 40.0 + 8.0 * name.chars().count() as f64;
        }
    }
}

/// The range of values along one side of a diagram, and the labels of its ticks.
#[derive(Debug, PartialEq)]
pub(crate) struct Axis {
    from: f64,
    to: f64,
    logarithmic: bool,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Creates an axis from `from` to `to`, which must differ.
    pub(crate) fn linear(from: f64, to: f64, ticks: Vec<(f64, String)>) -> Axis {
        Axis { from, to, logarithmic: false, ticks }
    }

    /// Creates an axis from 0 to a round number. No finite value is larger than that number.
    pub(crate) fn from_zero(values: impl Iterator<Item = f64>) -> Axis {
        let largest = values.filter(|v| v.is_finite()).fold(f64::MIN_POSITIVE, f64::max);
        let step = step(largest);
        let count = (largest / step).ceil();
        let tick = |n: u32| (f64::from(n) * step, figure(f64::from(n) * step));
        Axis::linear(0.0, count * step, (0..=count as u32).map(tick).collect())
    }

    /// Creates an axis between round numbers. No finite value lies outside of it.
    pub(crate) fn around(values: impl Iterator<Item = f64>) -> Axis {
        let ends = values.filter(|v| v.is_finite()).fold(None, |ends: Option<(f64, f64)>, v| {
            Some(ends.map_or((v, v), |(least, most)| (least.min(v), most.max(v))))
        });
        let (least, most) = ends.unwrap_or((0.0, 1.0));
        let step = step((most - least).max(f64::MIN_POSITIVE.max(most.abs() * 1e-6)));
        let first = (least / step).floor();
        let last = (most / step).ceil().max(first + 1.0);
        let ticks = (0..=(last - first) as u32).map(|n| (first + f64::from(n)) * step);
        Axis::linear(first * step, last * step, ticks.map(|tick| (tick, figure(tick))).collect())
    }

    /// Creates a logarithmic axis from `from` to a larger `to`, with a tick at each power of ten.
    /// Both must be positive.
    pub(crate) fn logarithmic(from: f64, to: f64) -> Axis {
        let (first, last) = (from.log10() - 1e-9, to.log10() + 1e-9);
        let powers = (first.ceil() as i32..=last.floor() as i32).map(|power| 10f64.powi(power));
        Axis { from, to, logarithmic: true, ticks: powers.map(|tick| (tick, figure(tick))).collect() }
    }

    /// Creates a logarithmic axis of whole decades around positive values. Returns `None` if there
    /// are no values.
    pub(crate) fn decades(values: impl Iterator<Item = f64>) -> Option<Axis> {
        let (least, most) = values.fold((f64::INFINITY, 0.0), |(least, most), v| (v.min(least), v.max(most)));
        let (from, to) = (least.log10().floor() as i32, most.log10().ceil() as i32);
        (least <= most).then(|| Axis::logarithmic(10f64.powi(from), 10f64.powi(to.max(from + 1))))
    }

    /// Returns the place of a value along the axis: 0 is the beginning, and 1 is the end.
    pub(crate) fn share(&self, value: f64) -> f64 {
        if self.logarithmic {
            (value / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        }
    }
}

/// Returns a round distance between ticks. At most [`TICKS`] of such distances fit into `largest`.
fn step(largest: f64) -> f64 {
    let power = 10f64.powf((largest / TICKS).log10().floor());
    let steps = [1.0, 2.0, 5.0].into_iter().map(|n| n * power);
    steps.into_iter().find(|step| largest / step <= TICKS).unwrap_or(10.0 * power)
}

/// Formats a number as the label of a tick.
fn figure(value: f64) -> String {
    if value.abs() >= 1000.0 {
        return crate::grouped(value);
    }
    // Six decimals hide the rounding errors of floating point.
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A pair of axes, and the rectangle between them.
pub(crate) struct Frame {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) right: f64,
    pub(crate) bottom: f64,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
}

impl Frame {
    /// Returns the place of a point on the canvas.
    pub(crate) fn place(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let across = self.left + self.x.share(x) * (self.right - self.left);
        (across, self.bottom - self.y.share(y) * (self.bottom - self.top))
    }

    /// Draws the grid and the labels of its lines.
    pub(crate) fn grid(&self, canvas: &mut Canvas) {
        for (value, label) in &self.y.ticks {
            let (_, y) = self.place((self.x.from, *value));
            canvas.stroke(&[(self.left, y), (self.right, y)], GRID, "");
            canvas.text((self.left - 6.0, y + 4.0), END, label);
        }
        for (value, label) in &self.x.ticks {
            let (x, _) = self.place((*value, self.y.from));
            canvas.stroke(&[(x, self.top), (x, self.bottom)], GRID, "");
            canvas.text((x, self.bottom + 16.0), MIDDLE, label);
        }
    }

    /// Draws a line through points.
    pub(crate) fn line(&self, canvas: &mut Canvas, points: &[(f64, f64)], colour: &str) {
        let points: Vec<(f64, f64)> = points.iter().map(|point| self.place(*point)).collect();
        canvas.stroke(&points, colour, "stroke-width=\"2\"");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(axis: &Axis) -> Vec<f64> {
        axis.ticks.iter().map(|tick| tick.0).collect()
    }

    #[test]
    fn linear_axes_have_round_ticks() {
        assert_eq!([7.0, 10.0, 11.0, 0.3, 2500.0].map(step), [1.0, 1.0, 2.0, 0.05, 500.0]);
        assert_eq!([0.0, 0.25, 500.0, 10_000.0].map(figure), ["0", "0.25", "500", "10,000"]);
        let around = |values: &[f64]| ticks(&Axis::around(values.iter().copied()));
        assert_eq!(around(&[13.0, f64::INFINITY, 21.0]), (13..=21).map(f64::from).collect::<Vec<_>>());
        assert_eq!(around(&[-30.0, 5.0]), [-30.0, -25.0, -20.0, -15.0, -10.0, -5.0, 0.0, 5.0]);
        assert!(
            around(&[7.0]).len() >= 2
                && around(&[0.0]).len() >= 2
                && around(&[]) == ticks(&Axis::around([0.0, 1.0].into_iter()))
        );
        let axis = Axis::from_zero([3.0, f64::NAN, 11.0].into_iter());
        assert_eq!(ticks(&axis), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
        assert_eq!([axis.share(0.0), axis.share(6.0), axis.share(12.0)], [0.0, 0.5, 1.0]);
    }

    #[test]
    fn logarithmic_axes_have_decades() {
        let of = |values: &[f64]| Axis::decades(values.iter().copied());
        assert_eq!(of(&[3.0, 700.0]).map(|axis| ticks(&axis)), Some(vec![1.0, 10.0, 100.0, 1000.0]));
        assert_eq!(of(&[10.0]).map(|axis| ticks(&axis)), Some(vec![10.0, 100.0]));
        assert_eq!(of(&[]), None);
        let axis = Axis::logarithmic(3.0, 300.0);
        assert_eq!(ticks(&axis), [10.0, 100.0]);
        assert!((axis.share(30.0) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn points_have_places() {
        let [x, y] = [4.0, 10.0].map(|to| Axis::linear(0.0, to, Vec::new()));
        let frame = Frame { left: 10.0, top: 20.0, right: 50.0, bottom: 120.0, x, y };
        assert_eq!(frame.place((0.0, 0.0)), (10.0, 120.0));
        assert_eq!(frame.place((1.0, 5.0)), (20.0, 70.0));
    }
}
