//! The report of the snapshot benchmark: figures with their goals, as Markdown and JSON.

use crate::report;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

/// What a figure has to reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// Only to compare with.
    None,
}

/// One line of the report.
pub(super) struct Figure {
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

/// All figures of a run, in order, and remarks.
#[derive(Default)]
pub(super) struct Figures {
    list: Vec<Figure>,
    remarks: Vec<String>,
}

impl Figures {
    /// Adds a figure, and tells it on the terminal.
    pub(super) fn add(
        &mut self,
        section: &'static str,
        what: String,
        value: f64,
        unit: &'static str,
        goal: Goal,
    ) {
        let figure = Figure { section, what, value, unit, goal };
        eprintln!("{section}: {}", figure.row());
        self.list.push(figure);
    }

    /// Adds a sentence that the reader must see, like what could not be measured.
    pub(super) fn remark(&mut self, text: String) {
        eprintln!("*** {text}");
        self.remarks.push(text);
    }

    fn markdown(&self, title: &str) -> String {
        let mut text = format!("{title}; {}\n", report::machine());
        let mut section = "";
        for figure in &self.list {
            if figure.section != section {
                section = figure.section;
                let _ = write!(text, "\n### {section}\n\n| | | | goal | |\n|---|--:|---|--:|---|\n");
            }
            let _ = writeln!(text, "{}", figure.row());
        }
        for remark in &self.remarks {
            let _ = write!(text, "\n{remark}\n");
        }
        text
    }

    fn json(&self, title: &str) -> Value {
        let figures: Vec<Value> = self
            .list
            .iter()
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
        json!({ "title": title, "machine": report::machine(), "figures": figures, "remarks": self.remarks })
    }

    /// Writes the report to `out`, JSON beside it, or to standard output; fails when a goal is missed and `strict`.
    pub(super) fn write(&self, out: Option<&Path>, title: &str, strict: bool) -> Result<()> {
        let text = self.markdown(title);
        match out {
            Some(out) => {
                let save = |path: &Path, text: &str| {
                    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
                };
                save(out, &text)?;
                save(&out.with_extension("json"), &format!("{:#}\n", self.json(title)))?;
            }
            None => std::io::stdout().write_all(text.as_bytes()).context("print the report")?,
        }
        let missed = self.list.iter().filter(|f| f.met() == Some(false)).count();
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
        let met: Vec<_> = figures.list.iter().map(Figure::met).collect();
        assert_eq!(met, [Some(false), Some(true), None]);
        let text = figures.markdown("t");
        assert!(text.contains("| x | 0.50 | × | ≥ 0.6 | **missed** |"), "{text}");
        assert!(text.contains("### b") && text.contains("| z | 12346 | IOPS |  |  |"), "{text}");
    }
}
