//! The scrubs in the background: of the catalog, and of data in place (`upkeep/scrub.rs`).
//!
//! The scrub of the catalog reads a small piece at a time, when there is nothing else to do.
//!
//! Other commits store its position, so an idle pool writes nothing for it. After a restart a pass
//! continues from the position of the last commit.

use super::Pool;
use crate::catalog::ScrubRecord;
use crate::catalog::scrub::data::{DataScrubRecord, ScrubCounts};
use crate::disk::Dir;
use crate::error::{Error, ErrorKind, Result, not_found};
use crate::info::{CatalogScrub, DamageInfo, DataScrubInfo};
use crate::settings::PoolOptions;
use crate::upkeep::scrub::{begin, bytes_in_use};
use crate::world::World;
use std::sync::Arc;
use std::time::Duration;

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

impl Pool {
    /// Begins a scrub of the data in place, of at most `rate` bytes per second (0: no limit). With
    /// `adopt`, data without sums gets them: it is taken for right as it is. A pass that is under
    /// way is begun anew. Returns [`crate::ErrorKind::Unsupported`] if the pool has no sums.
    pub fn scrub(&self, rate: u64, adopt: bool) -> Result<DataScrubInfo> {
        self.core.check_usable()?;
        if !self.core.sums.is_on() {
            let text = "scrub the pool: it has no sums of data in place; enable the feature sums first";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let now = self.core.world.clock.now();
        self.core.data_scrub.change(|record| begin(record, now, rate, adopt));
        self.keep_scrub()
    }

    /// Pauses the scrub of the data in place, or goes on with it. Returns
    /// [`crate::ErrorKind::NotFound`] if none is under way.
    pub fn pause_scrub(&self, paused: bool) -> Result<DataScrubInfo> {
        self.change_scrub("pause or resume the scrub", |record| record.paused = paused)
    }

    /// Ends the scrub of the data in place where it is. Returns [`crate::ErrorKind::NotFound`] if
    /// none is under way.
    pub fn stop_scrub(&self) -> Result<DataScrubInfo> {
        self.change_scrub("stop the scrub", |record| (record.running, record.paused) = (false, false))
    }

    fn change_scrub(&self, what: &str, change: impl FnOnce(&mut DataScrubRecord)) -> Result<DataScrubInfo> {
        let found = self.core.data_scrub.change(|record| {
            let running = record.running;
            running.then(|| change(record))
        });
        found.ok_or_else(|| not_found(format!("{what}: none is running")))?;
        self.keep_scrub()
    }

    /// Makes durable what a user has asked for.
    fn keep_scrub(&self) -> Result<DataScrubInfo> {
        self.core.data_scrub.0.lock().not_before = 0;
        self.destager.commit_alone(&mut self.destager.state.lock())?;
        Ok(self.data_scrub())
    }

    /// Takes the next step of the scrub of the data in place. Returns the time after which to take
    /// the next one. A server calls it from a thread of its own.
    pub fn scrub_step(&self) -> Result<Duration> {
        self.destager.scrub_step()
    }

    /// Returns the progress of the scrub of the data in place.
    pub fn data_scrub(&self) -> DataScrubInfo {
        let record = self.core.data_scrub.record();
        let counts = record.counts;
        let has_begun = record.running || record.passes > 0 || counts != ScrubCounts::default();
        DataScrubInfo {
            running: record.running,
            paused: record.paused,
            adopts: record.adopts,
            total: bytes_in_use(self.core.names.read().branches.values()),
            verified: counts.verified,
            unknown: counts.unknown,
            adopted: counts.adopted,
            damaged: counts.damaged,
            unreadable: counts.unreadable,
            repaired: counts.repaired,
            rate: record.rate,
            started: if has_begun { record.started } else { 0 },
            finished: record.finished,
            passes: record.passes,
        }
    }
}

/// The result of [`Pool::verify_data`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataReport {
    /// What was verified.
    pub scrub: DataScrubInfo,
    /// What is damaged, by volume and snapshot.
    pub damage: Vec<DamageInfo>,
    /// Number of bytes that are wrong on one disk of a mirror or a RAID-5. The other disks have the
    /// right ones.
    pub wrong_copies: u64,
}

impl Pool {
    /// Verifies all data in place of a closed pool with its sums. `None` if the pool has no sums.
    /// Recovery stays in memory, and nothing is written. `progress` gets (bytes done, bytes of
    /// all). Returns [`ErrorKind::Busy`] if the pool is open.
    pub fn verify_data(
        dir: Arc<dyn Dir>,
        world: World,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Option<DataReport>> {
        let pool = Pool::open_in_memory(dir, world, PoolOptions::default())?;
        if !pool.core.sums.is_on() {
            return Ok(None);
        }
        // Only the copy in memory would be repaired.
        pool.core.repairs.turn_off();
        pool.scrub(0, false)?;
        let scrub = loop {
            let scrub = pool.data_scrub();
            progress(scrub.done().min(scrub.total), scrub.total);
            if !scrub.running {
                break scrub;
            }
            // Nobody destages here, however full the journal is.
            pool.destager.next_scrub_step(false)?;
            // A RAID-5 remembers a limited number of lines.
            pool.destager.mend_all_lines();
        };
        let wrong_copies = pool.core.repairs.done().copies;
        Ok(Some(DataReport { scrub, damage: pool.damage_by_owner(usize::MAX)?, wrong_copies }))
    }
}
