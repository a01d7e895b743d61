//! Lists with columns that a user chooses and orders.

use crate::failure::Failure;
use crate::output::{Format, Output, line, list};
use crate::session::Session;
use crate::when::Here;
use clap::Args;
use hindcast_api::Size;
use jiff::Timestamp;
use serde::Serialize;
use std::cmp::Ordering;

/// How a list is shown.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Listing {
    /// Order by this column; -COLUMN begins with the largest
    #[arg(long, value_name = "[-]COLUMN", allow_hyphen_values = true)]
    sort: Option<String>,
    /// For programs: no heading, tabs between columns, sizes in bytes, times in RFC 3339
    #[arg(short = 'H', long = "no-heading")]
    plain: bool,
    /// Print only the first column
    #[arg(short, long, conflicts_with = "plain")]
    quiet: bool,
}

/// A value in a column.
pub(crate) enum Cell {
    Text(String),
    /// A text that is ordered by a number.
    Ordered(String, u64),
    /// Bytes.
    Size(Option<u64>),
    Time(Option<Timestamp>),
}

impl Cell {
    pub(crate) fn text(text: impl Into<String>) -> Cell {
        Cell::Text(text.into())
    }

    pub(crate) fn number(number: u64) -> Cell {
        Cell::Ordered(number.to_string(), number)
    }

    fn cmp(&self, other: &Cell) -> Ordering {
        match (self, other) {
            (Cell::Ordered(_, one), Cell::Ordered(_, other)) => one.cmp(other),
            (Cell::Size(one), Cell::Size(other)) => one.cmp(other),
            (Cell::Time(one), Cell::Time(other)) => one.cmp(other),
            (Cell::Text(one), Cell::Text(other)) => one.cmp(other),
            _ => Ordering::Equal,
        }
    }

    fn is_number(&self) -> bool {
        matches!(self, Cell::Ordered(..) | Cell::Size(_))
    }

    /// Returns the value for people. Times are those of the zone.
    fn shown(self, here: &Here) -> String {
        match self {
            Cell::Text(text) | Cell::Ordered(text, _) => text,
            Cell::Size(bytes) => bytes.map_or_else(|| "-".into(), |bytes| Size(bytes).to_string()),
            Cell::Time(time) => time.map_or_else(|| "-".into(), |time| here.clock(time)),
        }
    }

    /// Returns the value for programs: bytes, and times in RFC 3339.
    fn plain(self) -> String {
        match self {
            Cell::Text(text) | Cell::Ordered(text, _) => text,
            Cell::Size(bytes) => bytes.map_or_else(|| "-".into(), |bytes| bytes.to_string()),
            Cell::Time(time) => time.map_or_else(|| "-".into(), |time| time.to_string()),
        }
    }
}

/// A column of a list of `T`.
pub(crate) struct Column<T> {
    /// Its name, as -o and --sort take it. The heading is the same in capitals.
    pub(crate) name: &'static str,
    /// Whether the list has it without -o.
    pub(crate) usual: bool,
    pub(crate) cell: fn(&T) -> Cell,
}

fn find<'a, T>(columns: &'a [Column<T>], name: &str) -> Result<&'a Column<T>, Failure> {
    columns.iter().find(|column| column.name == name).ok_or_else(|| {
        let known: Vec<&str> = columns.iter().map(|column| column.name).collect();
        Failure::usage(format!("there is no column {name}; the columns are {}", known.join(",")))
    })
}

impl Listing {
    /// Returns whether the user chose neither an order nor columns.
    pub(crate) fn is_usual(&self, output: &Output) -> bool {
        let is_table = !matches!(output.0, Format::Columns(_));
        is_table && self.sort.is_none() && !self.plain && !self.quiet
    }

    /// Prints a list. JSON has all fields, in the order of --sort.
    pub(crate) fn show<T: Serialize>(
        &self,
        session: &Session,
        mut items: Vec<T>,
        columns: &[Column<T>],
    ) -> Result<(), Failure> {
        let output = &session.output;
        let chosen: Vec<&Column<T>> = match &output.0 {
            Format::Columns(names) => {
                names.iter().map(|name| find(columns, name)).collect::<Result<_, _>>()?
            }
            _ => columns.iter().filter(|column| column.usual).collect(),
        };
        if let Some(sort) = &self.sort {
            let (name, descending) = sort.strip_prefix('-').map_or((&sort[..], false), |name| (name, true));
            let by = find(columns, name)?;
            // Stable: equal items keep the server's order.
            items.sort_by(|one, other| {
                let order = (by.cell)(one).cmp(&(by.cell)(other));
                if descending { order.reverse() } else { order }
            });
        }
        if output.is_json() {
            return output.json(&items);
        }
        let rows = |item: &T| chosen.iter().map(|column| (column.cell)(item)).collect::<Vec<Cell>>();
        if self.plain || self.quiet {
            let taken = if self.quiet { 1 } else { usize::MAX };
            return items.iter().map(rows).try_for_each(|cells| {
                let cells: Vec<String> = cells.into_iter().take(taken).map(Cell::plain).collect();
                line(&cells.join("\t"))
            });
        }
        let first: Vec<Cell> = items.first().map(rows).unwrap_or_default();
        let heading = chosen.iter().enumerate().map(|(n, column)| match first.get(n) {
            Some(Cell::Time(_)) => format!("{} ({})", column.name.to_uppercase(), session.here.offset()),
            _ => column.name.to_uppercase(),
        });
        let heading: Vec<String> = heading.collect();
        let heading: Vec<&str> = heading.iter().map(String::as_str).collect();
        let right: Vec<usize> = (0..first.len()).filter(|n| first[*n].is_number()).collect();
        let here = &session.here;
        let rows = items.iter().map(|item| rows(item).into_iter().map(|cell| cell.shown(here)).collect());
        line(&list(&heading, &right, rows))
    }
}

/// Returns a length of time in its two largest units: `6 d 23 h`.
pub(crate) fn span(seconds: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let mut parts = Vec::new();
    let mut left = seconds;
    for (unit, name) in UNITS {
        if left >= unit || (unit == 1 && parts.is_empty()) {
            parts.push(format!("{} {name}", left / unit));
            left %= unit;
        } else if !parts.is_empty() {
            // The next unit is empty: one is enough.
            break;
        }
        if parts.len() == 2 {
            break;
        }
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_two_units_at_most() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (61, "1 min 1 s"),
            (3600, "1 h"),
            (3661, "1 h 1 min"),
            (7 * 86_400, "7 d"),
            (7 * 86_400 - 1, "6 d 23 h"),
            (86_401, "1 d"),
        ] {
            assert_eq!(span(seconds), text, "{seconds}");
        }
    }

    #[test]
    fn numbers_are_ordered_as_numbers() {
        assert_eq!(Cell::Size(Some(9)).cmp(&Cell::Size(Some(1 << 30))), Ordering::Less);
        assert_eq!(Cell::number(10).cmp(&Cell::number(9)), Ordering::Greater);
        assert_eq!(Cell::text("b").cmp(&Cell::text("a")), Ordering::Greater);
        assert_eq!(Cell::Size(Some(2048)).plain(), "2048");
        assert_eq!(Cell::Ordered("x".into(), 1).plain(), "x");
        assert_eq!(Cell::Time(None).plain(), "-");
    }
}
