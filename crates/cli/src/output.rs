//! Results on stdout: tables for people, JSON for programs.

use crate::failure::Failure;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use std::fmt::Display;
use std::io::Write;
use std::str::FromStr;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Format {
    Table,
    Json,
    /// A table with these columns. Only lists have it.
    Columns(Vec<String>),
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Format, String> {
        let is_name =
            |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
        match text {
            "table" => Ok(Format::Table),
            "json" => Ok(Format::Json),
            names if names.split(',').all(is_name) => {
                Ok(Format::Columns(names.split(',').map(str::to_owned).collect()))
            }
            _ => Err("the format is table, json, or the columns of a list, such as name,size".into()),
        }
    }
}

/// The format of a command's results.
#[derive(Debug, Clone)]
pub(crate) struct Output(pub(crate) Format);

impl Output {
    pub(crate) fn is_json(&self) -> bool {
        self.0 == Format::Json
    }

    /// Prints a value: as JSON, or as the text that `human` makes from it.
    pub(crate) fn show<T: Serialize, D: Display>(
        &self,
        value: &T,
        human: impl FnOnce(&T) -> D,
    ) -> Result<(), Failure> {
        match &self.0 {
            Format::Json => self.json(value),
            Format::Table => line(&human(value)),
            Format::Columns(names) => Err(Failure::usage(format!(
                "-o {}: this command has no columns to choose; use -o table or -o json",
                names.join(",")
            ))),
        }
    }

    /// Prints a value as indented JSON.
    pub(crate) fn json<T: Serialize>(&self, value: &T) -> Result<(), Failure> {
        line(&serde_json::to_string_pretty(value).map_err(std::io::Error::from)?)
    }

    /// Prints a value as one line of JSON, for sequences of values.
    pub(crate) fn json_line<T: Serialize>(&self, value: &T) -> Result<(), Failure> {
        line(&serde_json::to_string(value).map_err(std::io::Error::from)?)
    }

    /// Reports that a command succeeded. It prints nothing as JSON, because programs use the exit
    /// code.
    pub(crate) fn done(&self, message: impl Display) -> Result<(), Failure> {
        match self.0 {
            Format::Json => Ok(()),
            Format::Table | Format::Columns(_) => line(&message),
        }
    }
}

/// Returns a text that does nothing to a terminal: control characters, and those that reorder text,
/// are escaped.
pub(crate) fn harmless(text: &str) -> String {
    let is_harmful =
        |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if is_harmful(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// Writes to stdout and flushes it.
pub(crate) fn line(text: &dyn Display) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{text}")?;
    stdout.flush()?;
    Ok(())
}

/// Makes a table with a heading. The columns named in `right` are numbers.
pub(crate) fn list(heading: &[&str], right: &[usize], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(heading.to_vec()).add_rows(rows);
    for column in right {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    flush_left(&table)
}

/// Makes a table with one line for each property of one object.
pub(crate) fn properties<const N: usize>(rows: [(&str, String); N]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).add_rows(rows.map(|(name, value)| vec![name.to_owned(), value]));
    flush_left(&table)
}

/// Removes the table's outer padding, so that lines can be cut and pasted.
fn flush_left(table: &Table) -> String {
    let lines = table.lines().map(|line| line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

/// Formats a share in percent, for people.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.0} %", part as f64 / whole as f64 * 100.0) }
}

pub(crate) fn yes_no(value: bool) -> String {
    if value { "yes" } else { "no" }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_plain_columns() {
        let rows = [vec!["a".into(), "10 GiB".into()], vec!["long-name".into(), "5 B".into()]];
        let text = list(&["NAME", "SIZE"], &[1], rows.into_iter());
        assert_eq!(text, "NAME         SIZE\na          10 GiB\nlong-name     5 B");
        assert_eq!(properties([("size", "1".into()), ("name", "x".into())]), "size  1\nname  x");
        assert_eq!(
            harmless("k\u{e4}se\u{1b}]0;x\u{7}\u{9b}\u{202e}"),
            "k\u{e4}se\\u{1b}]0;x\\u{7}\\u{9b}\\u{202e}"
        );
        assert_eq!(percent(1, 4), "25 %");
        assert_eq!(percent(1, 0), "-");
    }
}
