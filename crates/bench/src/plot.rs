//! A small bar plot in SVG: panels of grouped horizontal bars, readable on light and dark pages.

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
}
