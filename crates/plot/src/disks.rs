//! Pictures of what disks did: where they were accessed, how far they went from access to access,
//! and which parts of them were accessed most.

use crate::canvas::{Axis, Canvas, END, Frame, GRID, MIDDLE, START};
use crate::{LINE, MARGIN, WIDTH, grouped};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Number of spots of a picture above which they are drawn as cells of a grid.
const MOST_SPOTS: usize = 20_000;
/// Width and height of a cell, in pixels.
const CELL: f64 = 3.0;
/// Width and height of a spot, in pixels.
const SPOT: f64 = 2.4;
/// Height of a diagram, in pixels.
const HEIGHT: f64 = 190.0;
/// Height of the strip under a diagram that has spans, in pixels.
const STRIP: f64 = 10.0;
/// Opacity of the cells with the fewest spots.
const FAINTEST: f64 = 0.35;
/// Number of steps of opacity.
const SHADES: f64 = 8.0;
/// Distance in bytes at which the logarithmic part of the axis of distances begins.
const NEAR: f64 = 4096.0;
/// Colours of reads and writes.
const OPERATIONS: [Kind<'static>; 2] =
    [Kind { name: "read", colour: "#0072b2" }, Kind { name: "written", colour: "#d55e00" }];

/// A kind of spots.
#[derive(Debug, Clone, Copy)]
pub struct Kind<'a> {
    /// Name in the legend.
    pub name: &'a str,
    /// Colour, as in SVG.
    pub colour: &'a str,
}

/// A point of a diagram.
#[derive(Debug, Clone, Copy)]
pub struct Spot {
    /// Value of the x axis.
    pub x: f64,
    /// Value of the y axis.
    pub y: f64,
    /// Index of the kind.
    pub kind: usize,
}

/// A part of the x axis.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// Beginning.
    pub from: f64,
    /// End.
    pub to: f64,
    /// Index of the kind.
    pub kind: usize,
}

/// A diagram of accesses by time and place.
pub struct AccessField {
    /// Heading of the diagram.
    pub heading: String,
    /// Name of the y axis, with its unit.
    pub y_label: String,
    /// Accesses: time and place.
    pub spots: Vec<Spot>,
    /// What a strip under the diagram shows: a name, and parts of the time.
    pub strip: Option<(String, Vec<Span>)>,
}

/// A diagram of the accesses of a disk by distance and duration, and a histogram of the distances.
pub struct SeekField {
    /// Heading of the diagram.
    pub heading: String,
    /// Accesses: the distance in bytes from the end of the access before, without its sign, and the
    /// duration in milliseconds.
    pub spots: Vec<Spot>,
}

/// Diagrams of how much of each slice of a disk was accessed.
pub struct Density {
    /// Heading of the diagrams.
    pub heading: String,
    /// Name of the x axis: what a slice is.
    pub x_label: String,
    /// Name of the y axis, with its unit.
    pub y_label: String,
    /// For each slice how much was read, and how much was written.
    pub slices: Vec<[f64; 2]>,
}

/// Draws accesses by time and place, one diagram under another with the same time. Returns the SVG
/// document.
pub fn accesses(
    title: &str,
    notes: &[String],
    x_label: &str,
    kinds: &[Kind<'_>],
    fields: &[AccessField],
) -> String {
    let spots = || fields.iter().flat_map(|field| &field.spots);
    let spans = || fields.iter().flat_map(|field| &field.strip).flat_map(|(_, spans)| spans);
    let used = spots().map(|spot| spot.kind).chain(spans().map(|span| span.kind));
    let mut picture = Picture::begin(title, notes, kinds, used, spots().count());
    let end = spots().map(|spot| spot.x).chain(spans().map(|span| span.to));
    let end: Vec<f64> = end.collect();
    for (n, field) in fields.iter().enumerate() {
        let frame = picture.frame(
            &field.heading,
            &field.y_label,
            Axis::from_zero(end.iter().copied()),
            Axis::around(field.spots.iter().map(|spot| spot.y)),
        );
        frame.grid(&mut picture.canvas);
        picture.spots(&frame, &field.spots, kinds);
        if let Some((name, spans)) = &field.strip {
            picture.strip(&frame, name, spans, kinds);
        }
        if n + 1 == fields.len() {
            picture.canvas.text((frame.right, picture.top - 8.0), END, x_label);
        }
    }
    picture.finish()
}

/// Draws the distances between accesses: for each disk the duration of its accesses by distance,
/// and a histogram of the distances. Returns the SVG document.
pub fn seeks(title: &str, notes: &[String], kinds: &[Kind<'_>], fields: &[SeekField]) -> String {
    let spots = || fields.iter().flat_map(|field| &field.spots);
    let count = spots().count();
    let mut picture = Picture::begin(title, notes, kinds, spots().map(|spot| spot.kind), count);
    let farthest = spots().map(|spot| by_doubling(spot.x)).fold(1.0, f64::max).ceil();
    for field in fields {
        let place = |spot: &Spot| Spot { x: by_doubling(spot.x), y: spot.y.max(1e-3), kind: spot.kind };
        let spots: Vec<Spot> = field.spots.iter().map(place).collect();
        let durations = Axis::decades(spots.iter().map(|spot| spot.y));
        let durations = durations.unwrap_or_else(|| Axis::logarithmic(0.1, 10.0));
        let frame = picture.frame(&field.heading, "duration in ms", distances(farthest), durations);
        frame.grid(&mut picture.canvas);
        picture.spots(&frame, &spots, kinds);
        picture.histogram(&spots, farthest, kinds);
    }
    picture.finish()
}

/// Draws how much of each slice of a disk was accessed: in the order of the slices, and the most
/// accessed first. Returns the SVG document.
pub fn densities(title: &str, notes: &[String], disks: &[Density]) -> String {
    let mut picture = Picture::begin(title, notes, &OPERATIONS, 0..2, 0);
    for disk in disks {
        let mut sorted: Vec<[f64; 2]> =
            disk.slices.iter().copied().filter(|slice| slice.iter().sum::<f64>() > 0.0).collect();
        sorted.sort_by(|a, b| b.iter().sum::<f64>().total_cmp(&a.iter().sum()));
        let by_position = format!("{}: slices by position", disk.heading);
        let by_size = format!("{}: {}", disk.heading, concentration(&sorted, disk.slices.len()));
        // The rest of a disk that is mostly empty would squeeze the slices that are accessed.
        let is_used = |slice: &[f64; 2]| slice.iter().sum::<f64>() > 0.0;
        let used = disk.slices.iter().rposition(is_used).map_or(0, |last| last + 1);
        picture.columns(&by_position, &disk.x_label, &disk.y_label, &disk.slices[..used]);
        picture.columns(&by_size, "slices, the most accessed first", &disk.y_label, &sorted);
    }
    picture.finish()
}

/// Says in words how concentrated accesses are. The slices are sorted.
fn concentration(sorted: &[[f64; 2]], all: usize) -> String {
    let total: f64 = sorted.iter().flatten().sum();
    let mut so_far = 0.0;
    let half = sorted.iter().take_while(|slice| {
        let is_before = so_far < total / 2.0;
        so_far += slice.iter().sum::<f64>();
        is_before
    });
    let [half, used, all] = [half.count(), sorted.len(), all].map(|count| grouped(count as f64));
    format!("{used} of {all} slices are accessed, and {half} of them have half of it")
}

/// Returns the place of a distance in bytes on an axis where each doubling takes 1. 0 is at 0, and
/// [`NEAR`] at 1.
fn by_doubling(distance: f64) -> f64 {
    if distance < 1.0 { 0.0 } else { (1.0 + (distance / NEAR).log2()).max(0.5) }
}

/// Returns the axis of [`by_doubling`].
fn distances(farthest: f64) -> Axis {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut ticks = vec![(0.0, "0".to_owned())];
    // Every fourth doubling has a label, from 4 KiB on.
    let labels = (0..).map(|n| (f64::from(n) * 4.0 + 1.0, 12 + n * 4));
    for (at, log2) in labels.take_while(|(at, _)| *at <= farthest) {
        let unit = UNITS.get(log2 as usize / 10 - 1).unwrap_or(&"");
        ticks.push((at, format!("{} {unit}", 1u64 << (log2 % 10))));
    }
    Axis::linear(-0.5, farthest + 0.5, ticks)
}

/// A picture with diagrams under each other.
struct Picture {
    canvas: Canvas,
    /// Where the next diagram begins.
    top: f64,
    /// Spots are drawn as cells of a grid.
    is_binned: bool,
}

impl Picture {
    /// Draws title, notes, and the legend of the kinds that are `used`.
    fn begin(
        title: &str,
        notes: &[String],
        kinds: &[Kind<'_>],
        used: impl Iterator<Item = usize>,
        spots: usize,
    ) -> Picture {
        let mut canvas = Canvas::default();
        canvas.heading((MARGIN, 24.0), title);
        let mut top = 24.0;
        let is_binned = spots > MOST_SPOTS;
        let darker = "more accesses make a cell darker; its colour is that of most of them".to_owned();
        for note in notes.iter().chain(is_binned.then_some(&darker)) {
            top += LINE - 2.0;
            canvas.text((MARGIN, top), START, note);
        }
        let mut is_used = vec![false; kinds.len()];
        used.for_each(|kind| is_used[kind] = true);
        top += LINE + 4.0;
        let mut x = MARGIN;
        for (kind, _) in kinds.iter().zip(is_used).filter(|(_, is_used)| *is_used) {
            let width = 40.0 + 7.0 * kind.name.chars().count() as f64;
            if x + width > WIDTH - MARGIN {
                (x, top) = (MARGIN, top + LINE);
            }
            canvas.rect((x, top - 11.0), (12.0, 12.0), kind.colour);
            canvas.text((x + 18.0, top), START, kind.name);
            x += width;
        }
        Picture { canvas, top: top + 6.0, is_binned }
    }

    fn finish(self) -> String {
        self.canvas.finish(WIDTH, self.top)
    }

    /// Makes the frame of the next diagram.
    fn frame(&mut self, heading: &str, y_label: &str, x: Axis, y: Axis) -> Frame {
        self.canvas.heading((MARGIN, self.top + 18.0), heading);
        self.canvas.text((MARGIN, self.top + 36.0), START, y_label);
        let top = self.top + 52.0;
        self.top = top + HEIGHT + 40.0;
        Frame { left: 80.0, top, right: WIDTH - 2.0 * MARGIN, bottom: top + HEIGHT, x, y }
    }

    /// Draws spots, or the cells that they lie in.
    fn spots(&mut self, frame: &Frame, spots: &[Spot], kinds: &[Kind<'_>]) {
        let mut shapes: BTreeMap<(usize, u32), String> = BTreeMap::new();
        if !self.is_binned {
            for spot in spots {
                let (x, y) = frame.place((spot.x, spot.y));
                let shape = shapes.entry((spot.kind, 0)).or_default();
                square(shape, (x - SPOT / 2.0, y - SPOT / 2.0), SPOT);
            }
            for ((kind, _), shape) in shapes {
                self.canvas.shape(&shape, kinds[kind].colour, 0.8);
            }
            return;
        }
        let mut cells: BTreeMap<(u32, u32), BTreeMap<usize, u64>> = BTreeMap::new();
        let last = |length: f64| (length / CELL).ceil() - 1.0;
        let (columns, rows) = (last(frame.right - frame.left), last(frame.bottom - frame.top));
        for spot in spots {
            let (x, y) = frame.place((spot.x, spot.y));
            let column = ((x - frame.left) / CELL).floor().clamp(0.0, columns);
            let row = ((y - frame.top) / CELL).floor().clamp(0.0, rows);
            *cells.entry((column as u32, row as u32)).or_default().entry(spot.kind).or_default() += 1;
        }
        let count = |cell: &BTreeMap<usize, u64>| cell.values().sum::<u64>() as f64;
        let most = cells.values().map(count).fold(2.0, f64::max);
        for ((column, row), cell) in &cells {
            let kind = cell.iter().max_by_key(|(_, count)| **count).map_or(0, |(kind, _)| *kind);
            let shade = (count(cell).ln() / most.ln() * SHADES).round() as u32;
            let at = (frame.left + f64::from(*column) * CELL, frame.top + f64::from(*row) * CELL);
            square(shapes.entry((kind, shade)).or_default(), at, CELL);
        }
        for ((kind, shade), shape) in shapes {
            let opacity = FAINTEST + (1.0 - FAINTEST) * f64::from(shade) / SHADES;
            self.canvas.shape(&shape, kinds[kind].colour, opacity);
        }
    }

    /// Draws a strip under a diagram. A span is at least a pixel long.
    fn strip(&mut self, frame: &Frame, name: &str, spans: &[Span], kinds: &[Kind<'_>]) {
        let top = frame.bottom + 22.0;
        self.canvas.text((frame.left - 6.0, top + STRIP), END, name);
        self.canvas.rect((frame.left, top), (frame.right - frame.left, STRIP), "#f2f2f2");
        // Spans of one kind in one pixel are one shape.
        let mut shapes: BTreeMap<usize, String> = BTreeMap::new();
        let mut drawn: BTreeMap<usize, f64> = BTreeMap::new();
        for span in spans {
            let from = frame.left + frame.x.share(span.from) * (frame.right - frame.left);
            let to = frame.left + frame.x.share(span.to) * (frame.right - frame.left);
            let to = to.max(from + 1.0).min(frame.right);
            let end = drawn.entry(span.kind).or_insert(f64::NEG_INFINITY);
            if to <= *end {
                continue;
            }
            *end = to;
            let shape = shapes.entry(span.kind).or_default();
            let _ = write!(shape, "M{from:.1},{top:.1}h{:.1}v{STRIP:.0}h{:.1}z", to - from, from - to);
        }
        for (kind, shape) in shapes {
            self.canvas.shape(&shape, kinds[kind].colour, 0.9);
        }
        self.top += STRIP + 12.0;
    }

    /// Draws how many accesses there are at each distance, with one colour a kind.
    fn histogram(&mut self, spots: &[Spot], farthest: f64, kinds: &[Kind<'_>]) {
        let mut bins: BTreeMap<u32, BTreeMap<usize, f64>> = BTreeMap::new();
        for spot in spots {
            *bins.entry(spot.x.floor() as u32).or_default().entry(spot.kind).or_default() += 1.0;
        }
        let counts = Axis::from_zero(bins.values().map(|bin| bin.values().sum()));
        let frame = self.frame("", "accesses", distances(farthest), counts);
        frame.grid(&mut self.canvas);
        for (bin, of_kinds) in bins {
            let middle = f64::from(bin) + if bin == 0 { 0.0 } else { 0.5 };
            let (left, right) = (frame.place((middle - 0.4, 0.0)).0, frame.place((middle + 0.4, 0.0)).0);
            let mut below = 0.0;
            for (kind, count) in of_kinds {
                let (bottom, top) = (frame.place((0.0, below)).1, frame.place((0.0, below + count)).1);
                self.canvas.rect((left, top), (right - left, bottom - top), kinds[kind].colour);
                below += count;
            }
        }
        let label = "distance from the end of the access before; 0: it follows";
        self.canvas.text((frame.right, self.top - 8.0), END, label);
    }

    /// Draws a column for each slice, the part that was written above the part that was read.
    fn columns(&mut self, heading: &str, x_label: &str, y_label: &str, slices: &[[f64; 2]]) {
        let most = slices.len().max(1) as f64;
        let y = Axis::from_zero(slices.iter().map(|slice| slice.iter().sum()));
        let frame = self.frame(heading, y_label, Axis::from_zero(std::iter::once(most)), y);
        frame.grid(&mut self.canvas);
        let mut shapes = [String::new(), String::new()];
        for (n, slice) in slices.iter().enumerate() {
            let (left, right) = (frame.place((n as f64, 0.0)).0, frame.place((n as f64 + 1.0, 0.0)).0);
            let mut below = 0.0;
            for (shape, amount) in shapes.iter_mut().zip(slice) {
                let (bottom, top) = (frame.place((0.0, below)).1, frame.place((0.0, below + amount)).1);
                if *amount > 0.0 {
                    // Columns that are thinner than a pixel are drawn a pixel wide.
                    let width = (right - left).max(1.0);
                    let height = bottom - top;
                    let _ = write!(shape, "M{left:.1},{bottom:.1}v{:.1}h{width:.1}v{height:.1}z", -height);
                }
                below += amount;
            }
        }
        for (shape, kind) in shapes.iter().zip(OPERATIONS).filter(|(shape, _)| !shape.is_empty()) {
            self.canvas.shape(shape, kind.colour, 1.0);
        }
        if slices.is_empty() {
            let middle = ((frame.left + frame.right) / 2.0, (frame.top + frame.bottom) / 2.0);
            self.canvas.text(middle, MIDDLE, "nothing");
        }
        self.canvas.stroke(&[(frame.left, frame.bottom), (frame.right, frame.bottom)], GRID, "");
        self.canvas.text((frame.right, self.top - 8.0), END, x_label);
    }
}

/// Adds a square to a shape.
fn square(shape: &mut String, (x, y): (f64, f64), side: f64) {
    let _ = write!(shape, "M{x:.1},{y:.1}h{side}v{side}h-{side}z");
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind<'static>; 3] = [
        Kind { name: "a & b", colour: "#111111" },
        Kind { name: "unused", colour: "#222222" },
        Kind { name: "c", colour: "#333333" },
    ];

    fn spots(count: u32) -> Vec<Spot> {
        (0..count)
            .map(|n| Spot { x: f64::from(n), y: f64::from(n % 100), kind: n as usize % 2 * 2 })
            .collect()
    }

    fn field(count: u32) -> AccessField {
        let strip = Some(("syncs".into(), vec![Span { from: 1.0, to: 1.0, kind: 2 }; 3]));
        AccessField { heading: "disk <0>".into(), y_label: "GiB".into(), spots: spots(count), strip }
    }

    fn squares(svg: &str) -> usize {
        svg.matches("h-").count()
    }

    fn is_sound(svg: &str) {
        assert!(!svg.contains("NaN") && !svg.contains("inf") && svg.ends_with("</svg>\n"), "{svg}");
    }

    #[test]
    fn few_accesses_are_spots_and_many_are_cells() {
        let few = accesses("t", &["note".into()], "s", &KINDS, &[field(500)]);
        is_sound(&few);
        assert!(few.contains("disk &lt;0&gt;") && few.contains("a &amp; b") && few.contains(">note<"));
        assert!(!few.contains("unused") && !few.contains("darker"));
        // One square for each spot. Three spans at one place are one shape.
        assert_eq!(squares(&few), 500 + 1);
        let many = accesses("t", &[], "s", &KINDS, &[field(15_000), field(15_000)]);
        is_sound(&many);
        assert!(many.contains("darker") && squares(&many) < 30_000);
        is_sound(&accesses("t", &[], "s", &KINDS, &[field(0)]));
        is_sound(&accesses("t", &[], "s", &KINDS, &[]));
    }

    #[test]
    fn distances_have_a_place_of_their_own_for_none() {
        assert_eq!([0.0, 512.0, 4096.0, 8192.0, 1048576.0].map(by_doubling), [0.0, 0.5, 1.0, 2.0, 9.0]);
        let field = SeekField { heading: "disk".into(), spots: spots(200) };
        let svg = seeks("t", &[], &KINDS, &[field]);
        is_sound(&svg);
        assert!(svg.contains(">0<") && svg.contains("it follows"), "{svg}");
        let far = SeekField {
            heading: "disk".into(),
            spots: vec![Spot { x: 1e13, y: 0.0, kind: 0 }, Spot { x: 0.0, y: 1e4, kind: 0 }],
        };
        let svg = seeks("t", &[], &KINDS, &[far]);
        is_sound(&svg);
        assert!(svg.contains(">64 KiB<") && svg.contains(">1 TiB<"), "{svg}");
        is_sound(&seeks("t", &[], &KINDS, &[SeekField { heading: "disk".into(), spots: Vec::new() }]));
    }

    #[test]
    fn densities_are_drawn_by_position_and_sorted() {
        let slices = vec![[0.0, 1.0], [0.0, 0.0], [5.0, 3.0], [1.0, 0.0]];
        let disk = Density { heading: "disk".into(), x_label: "x".into(), y_label: "MiB".into(), slices };
        let svg = densities("t", &[], &[disk]);
        is_sound(&svg);
        assert!(svg.contains("3 of 4 slices are accessed, and 1 of them have half of it"), "{svg}");
        let empty = Density {
            heading: "disk".into(),
            x_label: "x".into(),
            y_label: "MiB".into(),
            slices: Vec::new(),
        };
        is_sound(&densities("t", &[], &[empty]));
    }
}
