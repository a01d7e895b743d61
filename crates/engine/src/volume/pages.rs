//! The room in the catalog that is promised to a write.

use crate::branch::Branch;
use crate::catalog::PageKey;
use crate::core::Core;
use crate::error::Result;
use crate::ids::Chunk;
use crate::journal::Record;
use crate::journal::record::Kind;
use crate::space::catalog_room::{Promise, growth};

impl Core {
    /// Promises room for the pages that a request may add to the catalog; `None` if it can't be
    /// promised.
    pub(crate) fn promise_pages(&self, branch: &Branch, records: &[Record]) -> Option<Promise<'_>> {
        let most = records.iter().map(|r| growth(branch, r.kind, r.offset, r.length)).sum();
        self.catalog_room.promise(most)
    }

    /// Returns whether all map pages of these records exist already, so that the catalog hardly
    /// grows.
    pub(crate) fn pages_are_there(&self, branch: &Branch, records: &[Record]) -> Result<bool> {
        if records.iter().all(|record| record.kind == Kind::Discard) {
            return Ok(true);
        }
        for record in records {
            let chunks = branch.chunks(record.offset, record.length);
            for number in Chunk::pages(&chunks) {
                if self.map.read(PageKey::new(branch.id, number))?.iter().next().is_none() {
                    return Ok(false);
                }
            }
        }
        Ok(branch.frozen.read().is_empty())
    }
}
