//! Small plots in SVG, readable on light and dark pages: panels of grouped horizontal bars, and
//! lines over an axis.

use std::fmt::Write as _;

/// One diagram.
pub(crate) struct Panel {
    /// What the bars measure.
    pub(crate) heading: String,
    /// Top to bottom.
    pub(crate) groups: Vec<Group>,
}

/// Bars that belong together, one per series; `None` where a series took no part.
pub(crate) struct Group {
    /// Label above the bars.
    pub(crate) label: String,
    /// In the order of the series.
    pub(crate) values: Vec<Option<f64>>,
}

// Okabe and Ito's palette: told apart by colour-blind readers.
const COLOURS: [&str; 6] = ["#999999", "#56b4e9", "#0072b2", "#d55e00", "#009e73", "#cc79a7"];
const WIDTH: f64 = 860.0;
const LEFT: f64 = 20.0;
const BAR: f64 = 14.0;
const LINE: f64 = 20.0;
/// Room on the right for the figure after a bar.
const FIGURE: f64 = 60.0;

/// Draws panels one under another, with a legend of the series on top.
pub(crate) fn bars(title: &str, series: &[&str], panels: &[Panel]) -> String {
    let mut body = String::new();
    let mut y = 24.0;
    text(&mut body, LEFT, y, "bold", title);
    y += LINE;
    let mut x = LEFT;
    for (i, name) in series.iter().enumerate() {
        rect(&mut body, x, y - 11.0, 12.0, 12.0, COLOURS[i % COLOURS.len()]);
        text(&mut body, x + 18.0, y, "normal", name);
        x += 40.0 + 8.0 * name.len() as f64;
    }
    y += LINE;
    for panel in panels {
        y = draw(&mut body, panel, y);
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{y}\" viewBox=\"0 0 {WIDTH} {y}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         {body}</svg>\n"
    )
}

fn draw(body: &mut String, panel: &Panel, mut y: f64) -> f64 {
    let values = panel.groups.iter().flat_map(|g| g.values.iter().flatten());
    let largest = values.copied().filter(|v| v.is_finite()).fold(1.0, f64::max);
    let scale = (WIDTH - 2.0 * LEFT - FIGURE) / largest;
    y += LINE;
    text(body, LEFT, y, "bold", &panel.heading);
    y += 6.0;
    let top = y;
    for group in &panel.groups {
        y += LINE;
        text(body, LEFT, y, "normal", &group.label);
        y += 4.0;
        for (i, value) in group.values.iter().enumerate() {
            let Some(value) = value.filter(|v| v.is_finite()) else {
                continue;
            };
            rect(body, LEFT, y, value * scale, BAR - 2.0, COLOURS[i % COLOURS.len()]);
            text(body, LEFT + value * scale + 4.0, y + BAR - 4.0, "normal", &format!("{value:.2}"));
            y += BAR;
        }
    }
    let one = LEFT + scale;
    let _ = writeln!(
        body,
        "<line x1=\"{one:.1}\" y1=\"{top:.1}\" x2=\"{one:.1}\" y2=\"{y:.1}\" stroke=\"#444\" stroke-dasharray=\"3 3\"/>"
    );
    y + LINE
}

/// A series of points in order of x; both axes begin at 0.
pub(crate) struct Line {
    /// Name in the legend.
    pub(crate) name: String,
    /// (x, y)
    pub(crate) points: Vec<(f64, f64)>,
}

/// Draws lines over one pair of axes.
pub(crate) fn lines(title: &str, x_label: &str, y_label: &str, lines: &[Line]) -> String {
    const HEIGHT: f64 = 400.0;
    const AXIS: f64 = 70.0;
    const TOP: f64 = 80.0;
    let (right, bottom) = (WIDTH - LEFT, HEIGHT - 50.0);
    let largest = |pick: fn(&(f64, f64)) -> f64| {
        let all = lines.iter().flat_map(|line| line.points.iter().map(pick));
        all.filter(|v| v.is_finite()).fold(f64::MIN_POSITIVE, f64::max)
    };
    let (step_x, step_y) = (tick(largest(|p| p.0)), tick(largest(|p| p.1)));
    let ends = |largest: f64, step: f64| (largest / step).ceil() * step;
    let (end_x, end_y) = (ends(largest(|p| p.0), step_x), ends(largest(|p| p.1), step_y));
    let x = |value: f64| AXIS + value / end_x * (right - AXIS);
    let y = |value: f64| bottom - value / end_y * (bottom - TOP);
    let mut body = String::new();
    text(&mut body, LEFT, 24.0, "bold", title);
    text(&mut body, AXIS, TOP - 8.0, "normal", y_label);
    text(&mut body, right - 7.0 * x_label.len() as f64, HEIGHT - 10.0, "normal", x_label);
    for n in 0..=(end_y / step_y).round() as u32 {
        let value = f64::from(n) * step_y;
        stroke(&mut body, &[(AXIS, y(value)), (right, y(value))], "#cccccc", 1.0);
        text(&mut body, LEFT, y(value) + 4.0, "normal", &figure(value));
    }
    for n in 0..=(end_x / step_x).round() as u32 {
        let value = f64::from(n) * step_x;
        stroke(&mut body, &[(x(value), bottom), (x(value), bottom + 5.0)], "#444444", 1.0);
        text(&mut body, x(value) - 8.0, bottom + 18.0, "normal", &figure(value));
    }
    let mut legend = LEFT;
    for (n, line) in lines.iter().enumerate() {
        let colour = COLOURS[(n + 2) % COLOURS.len()];
        rect(&mut body, legend, 37.0, 12.0, 12.0, colour);
        text(&mut body, legend + 18.0, 48.0, "normal", &line.name);
        legend += 40.0 + 8.0 * line.name.len() as f64;
        let points: Vec<(f64, f64)> = line.points.iter().map(|p| (x(p.0), y(p.1))).collect();
        stroke(&mut body, &points, colour, 2.0);
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

/// A round distance of at most ten ticks up to `largest`.
fn tick(largest: f64) -> f64 {
    let power = 10f64.powf((largest / 10.0).log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|n| n * power).find(|step| largest / step <= 10.0).unwrap_or(10.0 * power)
}

fn figure(value: f64) -> String {
    // Without the noise of adding up.
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Lines over one pair of logarithmic axes.
pub(crate) struct Diagram {
    /// What y is.
    pub(crate) heading: String,
    /// One for each series; of a series without points only the colour is taken.
    pub(crate) lines: Vec<Line>,
}

/// Draws diagrams with logarithmic axes, two in a row, under a legend of the series. What is not
/// positive has no place on such axes and is left out.
pub(crate) fn logarithmic(title: &str, x_label: &str, diagrams: &[Diagram]) -> String {
    const HEIGHT: f64 = 250.0;
    const TOP: f64 = 64.0;
    let mut body = String::new();
    text(&mut body, LEFT, 24.0, "bold", title);
    let mut legend = LEFT;
    for (n, line) in diagrams.first().map_or(&[][..], |first| &first.lines).iter().enumerate() {
        let colour = COLOURS[(n + 2) % COLOURS.len()];
        rect(&mut body, legend, 37.0, 12.0, 12.0, colour);
        text(&mut body, legend + 18.0, 48.0, "normal", &line.name);
        legend += 40.0 + 8.0 * line.name.len() as f64;
    }
    for (n, diagram) in diagrams.iter().enumerate() {
        let (left, top) = (LEFT + (n % 2) as f64 * WIDTH / 2.0, TOP + (n / 2) as f64 * HEIGHT);
        log_diagram(&mut body, diagram, x_label, (left, top), (WIDTH / 2.0 - 2.0 * LEFT, HEIGHT));
    }
    let height = TOP + diagrams.len().div_ceil(2) as f64 * HEIGHT;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

fn log_diagram(
    body: &mut String,
    diagram: &Diagram,
    x_label: &str,
    (left, top): (f64, f64),
    (width, height): (f64, f64),
) {
    const AXIS: f64 = 46.0;
    let positive = |p: &&(f64, f64)| [p.0, p.1].iter().all(|v| v.is_finite() && *v > 0.0);
    let all = || diagram.lines.iter().flat_map(|line| line.points.iter().filter(positive));
    let (Some(xs), Some(ys)) = (decades(all().map(|p| p.0)), decades(all().map(|p| p.1))) else {
        return;
    };
    let (begin, end) = (left + AXIS, left + width);
    let (ceiling, floor) = (top + 24.0, top + height - 40.0);
    let share = |value: f64, (from, to): (i32, i32)| (value.log10() - f64::from(from)) / f64::from(to - from);
    let x = |value: f64| begin + share(value, xs) * (end - begin);
    let y = |value: f64| floor - share(value, ys) * (floor - ceiling);
    text(body, left, top + 12.0, "bold", &diagram.heading);
    text(body, end - 6.0 * x_label.len() as f64, floor + 30.0, "normal", x_label);
    for power in ys.0..=ys.1 {
        let value = 10f64.powi(power);
        stroke(body, &[(begin, y(value)), (end, y(value))], "#cccccc", 1.0);
        text(body, left, y(value) + 4.0, "normal", &figure(value));
    }
    for power in xs.0..=xs.1 {
        let value = 10f64.powi(power);
        stroke(body, &[(x(value), floor), (x(value), floor + 5.0)], "#444444", 1.0);
        let label = figure(value);
        text(body, x(value) - 3.2 * label.len() as f64, floor + 16.0, "normal", &label);
    }
    for (n, line) in diagram.lines.iter().enumerate() {
        let colour = COLOURS[(n + 2) % COLOURS.len()];
        let points: Vec<(f64, f64)> = line.points.iter().filter(positive).map(|p| (x(p.0), y(p.1))).collect();
        for (x, y) in &points {
            rect(body, x - 2.5, y - 2.5, 5.0, 5.0, colour);
        }
        if points.len() > 1 {
            stroke(body, &points, colour, 2.0);
        }
    }
}

/// The powers of ten around some positive values; None without any.
fn decades(values: impl Iterator<Item = f64>) -> Option<(i32, i32)> {
    let (least, most) = values.fold((f64::INFINITY, 0.0), |(least, most), v| (v.min(least), v.max(most)));
    let (from, to) = (least.log10().floor(), most.log10().ceil());
    (least <= most).then(|| (from as i32, (to as i32).max(from as i32 + 1)))
}

fn stroke(body: &mut String, points: &[(f64, f64)], colour: &str, width: f64) {
    let list: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        body,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>",
        list.join(" ")
    );
}

fn rect(body: &mut String, x: f64, y: f64, width: f64, height: f64, fill: &str) {
    let _ = writeln!(
        body,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\"/>"
    );
}

fn text(body: &mut String, x: f64, y: f64, weight: &str, content: &str) {
    let escaped = content.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        body,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" font-weight=\"{weight}\" fill=\"#222\">{escaped}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_and_leaves_out_missing_bars() {
        let panel = Panel {
            heading: "a < b".into(),
            groups: vec![Group { label: "x & y".into(), values: vec![Some(2.0), None, Some(f64::NAN)] }],
        };
        let svg = bars("t", &["one", "two", "three"], &[panel]);
        assert!(svg.contains("a &lt; b") && svg.contains("x &amp; y"));
        // Background, three legend boxes, one bar.
        assert_eq!(svg.matches("<rect").count(), 5);
    }

    #[test]
    fn logarithmic_axes_have_decades() {
        assert_eq!(decades([3.0, 700.0].into_iter()), Some((0, 3)));
        assert_eq!(decades([10.0].into_iter()), Some((1, 2)));
        assert_eq!(decades(std::iter::empty()), None);
        let line = |points: &[(f64, f64)]| Line { name: "one".into(), points: points.to_vec() };
        let lines = vec![line(&[(1.0, 0.2), (100.0, 5.0)]), line(&[(1.0, 0.0)])];
        let empty = Diagram { heading: "nothing".into(), lines: vec![line(&[])] };
        let svg = logarithmic("t", "x", &[Diagram { heading: "a & b".into(), lines }, empty]);
        // 3 grid lines, 3 ticks, the line; background, two in the legend, two points.
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<rect").count()), (7, 5), "{svg}");
        assert!(svg.contains("a &amp; b"), "{svg}");
    }

    #[test]
    fn lines_have_round_ticks() {
        assert_eq!([7.0, 10.0, 11.0, 0.3, 2500.0].map(tick), [1.0, 1.0, 2.0, 0.05, 500.0]);
        assert_eq!([0.0, 0.25, 500.0].map(figure), ["0", "0.25", "500"]);
        let line = Line { name: "one".into(), points: vec![(0.0, 1.0), (5.0, 3.0)] };
        let svg = lines("t", "x", "y", &[line]);
        // 7 grid lines, 11 ticks, the line.
        assert_eq!(svg.matches("<polyline").count(), 19, "{svg}");
    }
}
