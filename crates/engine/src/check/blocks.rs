//! Checks the catalog's blocks: each of them verifies, and so does everything that belongs to the
//! last commit.

use super::{CheckOptions, CheckReport};
use crate::catalog::Catalog;
use crate::error::{ErrorKind, Result};
use std::collections::BTreeSet;

/// Number of blocks that are verified at once.
const PIECE: u64 = 1024;

pub(super) fn check_blocks(
    catalog: &Catalog,
    options: &CheckOptions,
    report: &mut CheckReport,
) -> Result<()> {
    let mut suspects = BTreeSet::new();
    let mut from = 0;
    loop {
        let scrubbed = catalog.scrub(from, PIECE);
        suspects.extend(scrubbed.suspects);
        from = scrubbed.next;
        if from == 0 {
            break;
        }
    }
    match catalog.verify_whole() {
        // A block that does not verify was left by a crash where nothing reads.
        Ok(()) if options.repair => catalog.judge(&suspects),
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            catalog.note_damaged(&suspects);
            for block in catalog.damaged_blocks() {
                let detail = "its content does not verify: objects that depend on it can't be read";
                report.find("catalog-block", format!("block {block} of the catalog"), detail);
            }
            report.find("catalog", "catalog", error.to_string());
            Ok(())
        }
        Err(error) => Err(error),
    }
}
