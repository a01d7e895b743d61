//! The scrub of the catalog in the background. It reads a small piece at a time, when there is
//! nothing else to do.
//!
//! Other commits store its position, so an idle pool writes nothing for it. After a restart a pass
//! continues from the position of the last commit.

use super::Pool;
use crate::catalog::ScrubRecord;
use crate::error::Result;
use crate::info::CatalogScrub;

/// Number of blocks that are read at once: 1 MiB.
const PIECE: u64 = 256;
/// Number of suspects of a pass. Further suspects are left to the next pass.
const MAX_SUSPECTS: usize = 65_536;

impl Pool {
    /// Returns how far the scrub in the background has come.
    pub(crate) fn scrub_progress(&self) -> CatalogScrub {
        let ScrubRecord { next, finished, passes } = self.core.scrub.record();
        let damaged = self.core.catalog.damaged_blocks().len() as u64;
        CatalogScrub { blocks: self.core.catalog.blocks(), next, finished, passes, damaged }
    }

    /// Reads the next piece of the catalog, if it is due.
    pub(crate) fn scrub_catalog(&self) -> Result<()> {
        let interval = self.core.options.catalog_scrub_interval.as_nanos().min(u64::MAX.into()) as u64;
        let now = self.core.world.clock.now();
        if interval == 0 || self.core.catalog.blocks() == 0 {
            return Ok(());
        }
        let Some(first) = self.core.scrub.0.lock().due(now, interval) else { return Ok(()) };
        self.core.check_usable()?;
        let scrubbed = self.core.catalog.scrub(first, PIECE);
        let suspects = {
            let mut state = self.core.scrub.0.lock();
            let room = MAX_SUSPECTS - state.suspects.len().min(MAX_SUSPECTS);
            state.suspects.extend(scrubbed.suspects.into_iter().take(room));
            state.record.next = scrubbed.next;
            if scrubbed.next > 0 {
                return Ok(());
            }
            std::mem::take(&mut state.suspects)
        };
        if !suspects.is_empty() {
            self.core.catalog.judge(&suspects)?;
        }
        let record = &mut self.core.scrub.0.lock().record;
        (record.finished, record.passes) = (self.core.world.clock.now().max(1), record.passes + 1);
        Ok(())
    }
}
