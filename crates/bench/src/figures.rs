//! A report of figures with their goals, tables and pictures. It is written as Markdown, JSON and
//! SVG.

use crate::report;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The goal of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// The figure has no goal. It is there for comparison.
    None,
}

/// A figure of the report, which is one row in a table.
pub(crate) struct Figure {
    section: &'static str,
    what: String,
    value: f64,
    unit: &'static str,
    goal: Goal,
}

impl Figure {
    fn met(&self) -> Option<bool> {
        match self.goal {
            Goal::AtLeast(least) => Some(self.value >= least),
            Goal::AtMost(most) => Some(self.value <= most),
            Goal::None => None,
        }
    }

    fn row(&self) -> String {
        let goal = match self.goal {
            Goal::AtLeast(least) => format!("≥ {least}"),
            Goal::AtMost(most) => format!("≤ {most}"),
            Goal::None => String::new(),
        };
        let verdict = match self.met() {
            Some(true) => "met",
            Some(false) => "**missed**",
            None => "",
        };
        let value =
            if self.value >= 1000.0 { format!("{:.0}", self.value) } else { format!("{:.2}", self.value) };
        format!("| {} | {value} | {} | {goal} | {verdict} |", self.what, self.unit)
    }
}

/// A part of a report.
enum Part {
    Figure(Figure),
    Table { section: &'static str, markdown: String, data: Value },
    Picture { section: &'static str, name: &'static str, caption: String, svg: String },
}

impl Part {
    fn section(&self) -> &'static str {
        match self {
            Part::Figure(figure) => figure.section,
            Part::Table { section, .. } | Part::Picture { section, .. } => section,
        }
    }
}

/// All parts of a report in their order, and the remarks below them.
#[derive(Default)]
pub(crate) struct Figures {
    parts: Vec<Part>,
    remarks: Vec<String>,
}

/// Returns the path of a picture's file, which is beside the report.
fn picture_file(out: &Path, name: &str) -> PathBuf {
    let stem = out.file_stem().unwrap_or_default().to_string_lossy();
    out.with_file_name(format!("{stem}-{name}.svg"))
}

impl Figures {
    /// Adds a figure, and prints it on the terminal.
    pub(crate) fn add(
        &mut self,
        section: &'static str,
        what: String,
        value: f64,
        unit: &'static str,
        goal: Goal,
    ) {
        let figure = Figure { section, what, value, unit, goal };
        eprintln!("{section}: {}", figure.row());
        self.parts.push(Part::Figure(figure));
    }

    /// Adds a table, and prints it on the terminal. `data` is the content of the table for the
    /// JSON.
    pub(crate) fn table(&mut self, section: &'static str, markdown: String, data: Value) {
        eprintln!("{section}:\n{markdown}");
        self.parts.push(Part::Table { section, markdown, data });
    }

    /// Adds a picture. It becomes an SVG file beside the report, if the report goes to a file.
    pub(crate) fn picture(
        &mut self,
        section: &'static str,
        name: &'static str,
        caption: String,
        svg: String,
    ) {
        self.parts.push(Part::Picture { section, name, caption, svg });
    }

    fn list(&self) -> impl Iterator<Item = &Figure> {
        self.parts.iter().filter_map(|part| if let Part::Figure(figure) = part { Some(figure) } else { None })
    }

    /// Adds a sentence that the reader must see, for example about what could not be measured.
    pub(crate) fn remark(&mut self, text: String) {
        eprintln!("*** {text}");
        self.remarks.push(text);
    }

    fn markdown(&self, title: &str, out: Option<&Path>) -> String {
        let mut text = format!("{title}; {}\n", report::machine());
        let mut section = "";
        let mut in_figures = false;
        for part in &self.parts {
            if part.section() != section {
                section = part.section();
                let _ = write!(text, "\n### {section}\n");
                in_figures = false;
            }
            match part {
                Part::Figure(figure) => {
                    if !in_figures {
                        text.push_str("\n| | | | goal | |\n|---|--:|---|--:|---|\n");
                    }
                    let _ = writeln!(text, "{}", figure.row());
                }
                Part::Table { markdown, .. } => {
                    let _ = write!(text, "\n{}\n", markdown.trim_end());
                }
                Part::Picture { name, caption, .. } => {
                    if let Some(file) = out.map(|out| picture_file(out, name)) {
                        let file = file.file_name().unwrap_or_default().to_string_lossy();
                        let _ = write!(text, "\n![{caption}]({file})\n");
                    }
                }
            }
            in_figures = matches!(part, Part::Figure(_));
        }
        for remark in &self.remarks {
            let _ = write!(text, "\n{remark}\n");
        }
        text
    }

    fn json(&self, title: &str) -> Value {
        let figures: Vec<Value> = self
            .list()
            .map(|f| {
                let goal = match f.goal {
                    Goal::AtLeast(least) => json!({ "at_least": least }),
                    Goal::AtMost(most) => json!({ "at_most": most }),
                    Goal::None => Value::Null,
                };
                json!({
                    "section": f.section, "what": f.what, "value": f.value, "unit": f.unit, "goal": goal,
                    "met": f.met(),
                })
            })
            .collect();
        let tables: Vec<Value> = self
            .parts
            .iter()
            .filter_map(|part| match part {
                Part::Table { section, data, .. } => Some(json!({ "section": section, "data": data })),
                _ => None,
            })
            .collect();
        json!({
            "title": title, "machine": report::machine(), "figures": figures, "tables": tables,
            "remarks": self.remarks,
        })
    }

    /// Writes the report to the file `out`, with JSON and pictures beside it, or to standard
    /// output. Then fails if `strict` and a goal is missed.
    pub(crate) fn write(&self, out: Option<&Path>, title: &str, strict: bool) -> Result<()> {
        let text = self.markdown(title, out);
        match out {
            Some(out) => {
                let save = |path: &Path, text: &str| {
                    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
                };
                save(out, &text)?;
                save(&out.with_extension("json"), &format!("{:#}\n", self.json(title)))?;
                for part in &self.parts {
                    if let Part::Picture { name, svg, .. } = part {
                        save(&picture_file(out, name), svg)?;
                    }
                }
            }
            None => std::io::stdout().write_all(text.as_bytes()).context("print the report")?,
        }
        let missed = self.list().filter(|f| f.met() == Some(false)).count();
        if strict && missed > 0 {
            bail!("{missed} goals were missed");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals() {
        let mut figures = Figures::default();
        figures.add("a", "x".into(), 0.5, "×", Goal::AtLeast(0.6));
        figures.add("a", "y".into(), 0.5, "×", Goal::AtMost(0.6));
        figures.add("b", "z".into(), 12345.6, "IOPS", Goal::None);
        let met: Vec<_> = figures.list().map(Figure::met).collect();
        assert_eq!(met, [Some(false), Some(true), None]);
        figures.picture("b", "curve", "z over time".into(), "<svg/>".into());
        figures.table("b", "| n |\n|--:|\n| 7 |\n".into(), json!([7]));
        let text = figures.markdown("t", Some(Path::new("/somewhere/cdp.md")));
        assert!(text.contains("| x | 0.50 | × | ≥ 0.6 | **missed** |"), "{text}");
        assert!(text.contains("### b") && text.contains("| z | 12346 | IOPS |  |  |"), "{text}");
        assert!(text.contains("![z over time](cdp-curve.svg)") && text.ends_with("| 7 |\n"), "{text}");
        assert_eq!(figures.json("t")["tables"][0]["data"], json!([7]));
    }
}
