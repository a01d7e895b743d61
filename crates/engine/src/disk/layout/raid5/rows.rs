//! Where rows and lines lie.
//!
//! A *row* has a unit on each column: the units of content, and one of parity. The parity rotates
//! from row to row. A *line* is the blocks at the same place of a row's units. It is what one block
//! of parity protects:
//!
//! ```text
//! width 4, units of 2 blocks      place 0   place 1   place 2   place 3
//! row 0: line 0                   parity    block 0   block 2   block 4
//!        line 1                   parity    block 1   block 3   block 5
//! row 1: line 2                   block 10  parity    block 6   block 8
//!        line 3                   block 11  parity    block 7   block 9
//! ```
//!
//! So neighbouring content fills whole rows, and line *n* is at byte *n* · [`BLOCK`] of each place.

use crate::disk::layout::places::Places;
use crate::disk::layout::spans::CopyPlace;

/// Bytes of a block: what is read, logged and written at once.
pub(super) const BLOCK: usize = 4096;

/// The geometry of a layout. The bytes of its spans are those of one place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    /// Number of columns: those of content, and the parity as the last one.
    width: usize,
    /// Number of blocks of a unit.
    unit: u64,
}

impl Rows {
    /// Makes the geometry of spans with `width` places and units of `unit` bytes.
    pub(super) fn new(width: usize, unit: u64) -> Rows {
        Rows { width, unit: unit / BLOCK as u64 }
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Returns the number of columns with content. It is the number of the parity's column, too.
    pub(super) fn parity(&self) -> usize {
        self.width - 1
    }

    /// Returns the number of lines.
    pub(super) fn lines(places: &Places) -> u64 {
        places.len() / BLOCK as u64
    }

    /// Returns the number of bytes of the content.
    pub(super) fn len(&self, places: &Places) -> u64 {
        places.len() * self.parity() as u64
    }

    /// Returns the number of bytes of content in a row.
    pub(super) fn row_len(&self) -> u64 {
        self.unit * self.parity() as u64 * BLOCK as u64
    }

    /// Returns line and column of a block of the content.
    pub(super) fn find(&self, block: u64) -> (u64, usize) {
        let columns = self.parity() as u64;
        let (row, within) = (block / (self.unit * columns), block % (self.unit * columns));
        (row * self.unit + within % self.unit, (within / self.unit) as usize)
    }

    /// Returns the block of the content that a line has in a column.
    pub(super) fn block(&self, line: u64, column: usize) -> u64 {
        let (row, within) = (line / self.unit, line % self.unit);
        (row * self.parity() as u64 + column as u64) * self.unit + within
    }

    /// Returns the position of a line's column among the places of its span.
    fn index(&self, line: u64, column: usize) -> usize {
        let rotation = (line / self.unit) as usize % self.width;
        (rotation + 1 + column) % self.width
    }

    /// Returns where a line's block of a column is.
    pub(super) fn place(&self, places: &Places, line: u64, column: usize) -> CopyPlace {
        let at = line * BLOCK as u64;
        let span = &places.from(at)[0];
        let CopyPlace { member, offset } = span.places[self.index(line, column)];
        CopyPlace { member, offset: offset + (at - span.start) }
    }

    /// Returns where a line's block of a column moves to, if it moves.
    pub(super) fn target(&self, places: &Places, line: u64, column: usize) -> Option<CopyPlace> {
        places.target(line * BLOCK as u64, self.index(line, column))
    }

    /// Returns the number of bytes of the content from `at` to the end of its unit. So many are
    /// next to each other in their place.
    pub(super) fn rest_of_unit(&self, at: u64) -> u64 {
        let unit = self.unit * BLOCK as u64;
        unit - at % unit
    }

    /// Returns the lines of all rows that have a part of a range of the content.
    pub(super) fn lines_of(&self, range: std::ops::Range<u64>) -> std::ops::Range<u64> {
        let row = self.row_len();
        range.start / row * self.unit..range.end.div_ceil(row) * self.unit
    }

    /// Returns a range of the content, extended to whole rows.
    pub(super) fn range_of_rows(&self, range: std::ops::Range<u64>) -> std::ops::Range<u64> {
        let row = self.row_len();
        range.start / row * row..range.end.div_ceil(row) * row
    }

    /// Returns the lines of the rows that lie in a range of the content as a whole.
    pub(super) fn whole_rows(&self, range: std::ops::Range<u64>) -> std::ops::Range<u64> {
        let row = self.row_len();
        let first = range.start.div_ceil(row);
        first * self.unit..(range.end / row).max(first) * self.unit
    }

    /// Returns the line behind the last one of a line's row.
    pub(super) fn end_of_row(&self, line: u64) -> u64 {
        (line / self.unit + 1) * self.unit
    }

    /// Returns whether a member has a place of one of these lines.
    pub(super) fn is_on(places: &Places, lines: std::ops::Range<u64>, member: usize) -> bool {
        let (from, to) = (lines.start * BLOCK as u64, lines.end * BLOCK as u64);
        let inside = places.from(from).iter().take_while(|span| span.start < to);
        inside.into_iter().any(|span| span.places.iter().any(|place| place.member == member))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::layout::spans::{UNIT, spread};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_drawing_above_is_right() {
        let rows = Rows::new(4, 2 * BLOCK as u64);
        let places = Places::in_spans(spread(&[UNIT; 4], 4, 0));
        let member = |line, column| rows.place(&places, line, column).member;
        assert_eq!([0, 1, 2, 3].map(|column| member(0, column)), [1, 2, 3, 0]);
        assert_eq!([0, 1, 2, 3].map(|column| member(3, column)), [2, 3, 0, 1]);
        assert_eq!([4, 5, 6, 10, 9].map(|block| rows.find(block)), [(0, 2), (1, 2), (2, 0), (2, 2), (3, 1)]);
        assert_eq!(rows.place(&places, 3, 2).offset, 3 * BLOCK as u64);
        assert_eq!(rows.len(&places), 3 * UNIT);
    }

    proptest! {
        #[test]
        fn every_block_has_its_own_place(
            sizes in prop::collection::vec(1u64..4, 3..7),
            width in 3usize..5,
            unit in 0u32..9,
        ) {
            let sizes: Vec<u64> = sizes.iter().map(|size| size * UNIT).collect();
            let spans = spread(&sizes, width, UNIT);
            prop_assume!(!spans.is_empty());
            let rows = Rows::new(width, (BLOCK as u64) << unit);
            let all = Places::in_spans(spans);
            let mut taken = BTreeSet::new();
            for line in 0..Rows::lines(&all) {
                let places: Vec<CopyPlace> =
                    (0..width).map(|column| rows.place(&all, line, column)).collect();
                let members: BTreeSet<usize> = places.iter().map(|place| place.member).collect();
                prop_assert_eq!(members.len(), width, "one member has two blocks of a line");
                for place in &places {
                    prop_assert!(taken.insert((place.member, place.offset)));
                    prop_assert!(Rows::is_on(&all, line..line + 1, place.member));
                }
                for column in 0..rows.parity() {
                    prop_assert_eq!(rows.find(rows.block(line, column)), (line, column));
                }
            }
            prop_assert_eq!(rows.len(&all) / BLOCK as u64, Rows::lines(&all) * rows.parity() as u64);
        }
    }
}
