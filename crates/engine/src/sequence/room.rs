//! Room in the journal: a request that finds none helps to destage, or waits.

use crate::branch::Branch;
use crate::core::Core;
use crate::destage::Destager;
use crate::error::{Error, ErrorKind, Result};
use crate::journal::{Admission, Sequencing};
use crate::shortage::{Task, passing};
use crate::throttle::{Fill, Lag};
use std::sync::atomic::Ordering;

impl Destager {
    /// Makes room for a record after [`Admission`] reported that there is none. It adds a journal
    /// file, or destages, or waits for the thread that does. The writer's own help is the
    /// backpressure.
    pub(crate) fn make_room(&self, room: Admission) -> Result<()> {
        self.core.check_usable()?;
        match room {
            Admission::Ready => Ok(()),
            Admission::NeedsFile => self.core.add_journal_file(false).map(|_| ()),
            Admission::Full if self.help_destage()? => Ok(()),
            Admission::Full if self.core.shortages.cause(Task::Destage).is_some() => self.wait_out_shortage(),
            Admission::Turns if self.help_destage()? => Ok(()),
            // The limit of turns does not apply then.
            Admission::Turns if self.core.shortages.cause(Task::Destage).is_some() => Ok(()),
            Admission::Full => {
                self.core.journal.wait_for_room();
                Ok(())
            }
            Admission::Turns => {
                self.core.journal.wait_for_turns(self.core.pace.turns(self.core.options.max_turns));
                Ok(())
            }
        }
    }

    /// Destages one batch, unless another thread is doing that. False when that brought nothing.
    fn help_destage(&self) -> Result<bool> {
        self.core.journal.counters.waits.fetch_add(1, Ordering::Relaxed);
        self.core.wake();
        self.repair_wanted();
        let Some(mut state) = self.state.try_lock() else { return Ok(false) };
        let state = &mut *state;
        self.poll_retired(state)?;
        let progress = self.retry_destage(state)?;
        if progress {
            self.owe_freeing(state);
            let mut steps = 0;
            while steps < STEPS_OF_HELP && passing(self.pay_freeing(state, false), false)? {
                steps += 1;
            }
        } else {
            passing(self.checkpoint(state), ())?;
        }
        Ok(self.poll_retired(state)? || progress)
    }
}

impl Core {
    /// Waits until the earlier writes of `branch` are paid for, or the journal has room again. The
    /// caller holds no lock and no promise.
    pub(crate) fn wait_until_paid(&self, branch: &Branch) {
        let debt = &branch.debt;
        if !debt.may_exist() {
            return;
        }
        let now = || self.world.clock.monotonic();
        if debt.is_due(now()) {
            let left = || debt.left(now());
            self.journal.counters.waits.fetch_add(1, Ordering::Relaxed);
            let start = self.options.destage_start_percent;
            let eased = |fill: Fill, lag: Lag| fill.above_start(start) == 0 && lag.is_short();
            if self.journal.wait_until_eased(eased, left) {
                debt.forgive();
            }
        }
    }

    /// Makes `branch` pay for a record that was just sequenced, if others write too. `bytes` are
    /// those of the record, and `referred` those that it refers to.
    pub(crate) fn charge(&self, branch: &Branch, bytes: u64, referred: u64, sequencing: &Sequencing<'_>) {
        if self.options.longest_delay.is_zero() {
            return;
        }
        self.neighbours.wrote(branch.id, || self.world.clock.monotonic());
        if !self.is_throttled() {
            return;
        }
        let lag = sequencing.lag();
        // Before the pace of destage is known, destage counts as half as fast as a sync: the two
        // share a disk, as a rule.
        let time = Some(self.pace.time(bytes)).filter(|time| *time > 0);
        let time = time.unwrap_or(lag.time_of(bytes).saturating_mul(2));
        let room = sequencing.fill().cost(time, self.options.destage_start_percent);
        let cost = room.saturating_add(lag.cost(bytes + referred));
        if cost > 0 {
            let most = u64::try_from(self.options.longest_delay.as_nanos()).unwrap_or(u64::MAX);
            branch.debt.add(self.world.clock.monotonic(), cost, most);
        }
    }

    /// Returns whether so many turns wait that none may be added. That is never so while destage
    /// waits for the end of a shortage, since a deletion may end the shortage.
    pub(crate) fn too_many_turns(&self, waiting: usize) -> bool {
        waiting >= self.pace.turns(self.options.max_turns) && self.shortages.cause(Task::Destage).is_none()
    }
}

impl Destager {
    /// Waits for room in the journal while destage waits for the end of a shortage. Refuses the
    /// write after a while.
    pub(crate) fn wait_out_shortage(&self) -> Result<()> {
        let used = self.core.journal.usage().0;
        for _ in 0..self.core.options.shortage_waits {
            self.core.journal.wait_for_room();
            if let Some(mut state) = self.state.try_lock() {
                self.retry_destage(&mut state)?;
            }
            // Readers of old segments may have gone meanwhile. It is enough that room came back:
            // the caller knows how much the write needs, and checks again.
            let has_come_back = self.core.journal.usage().0 < used;
            if has_come_back || self.core.shortages.cause(Task::Destage).is_none() {
                return Ok(());
            }
            self.core.check_usable()?;
        }
        self.core.shortages.cause(Task::Destage).map_or(Ok(()), |cause| {
            let text = "accept the write: the journal is full, and destaging lacks resources";
            Err(Error::new(ErrorKind::NoSpace, format!("{text}: {cause}")))
        })
    }
}

/// Number of steps of freeing that a writer which helps to destage takes at most with one batch.
pub(crate) const STEPS_OF_HELP: u32 = 16;

#[cfg(test)]
mod tests {
    use crate::Volume;
    use crate::device::BlockDevice;
    use crate::journal::Admission;
    use crate::settings::PoolOptions;
    use crate::testing::{self, MIB, Site};
    use std::sync::Arc;
    use std::time::Duration;

    fn write(volume: &Volume, offset: u64, len: u64) {
        testing::write(volume, offset, 7, len);
    }

    /// A pool of two volumes, with a journal that is nearly full with writes to the first. The
    /// second has been written to as well, unless the first is `alone`. Destage carries out a MiB
    /// in a second.
    fn filling(alone: bool) -> (Site, Arc<Volume>, Arc<Volume>) {
        let delay = Duration::from_secs(1);
        let options =
            PoolOptions { longest_delay: delay, destage_start_percent: 20, ..PoolOptions::default() };
        let site = Site::builder(63).journal(8 * MIB, MIB).build().reopen_with(options);
        let (v, w) = (site.volume("v", 16 * MIB, 4096), site.volume("w", MIB, 4096));
        if !alone {
            write(&w, 0, 512);
        }
        for at in 0..22 {
            write(&v, at * MIB / 4, MIB / 4);
        }
        site.pool.core.pace.took(8 * MIB, 8_000_000_000);
        (site, v, w)
    }

    #[test]
    fn a_volume_that_fills_the_journal_waits_and_others_do_not() {
        let (site, v, w) = filling(false);
        let waits = || site.pool.stats().backpressure_waits;
        // No write was charged before the pace was known, so this one doesn't wait.
        write(&v, 0, MIB / 8);
        assert_eq!(waits(), 0);
        let left = |volume: &Volume| volume.branch().debt.left(site.world.clock.monotonic());
        let most = left(&v).unwrap();
        // A volume that writes little pays little.
        write(&w, 0, 512);
        assert!(left(&w).is_some_and(|little| little * 8 < most), "{:?} {most:?}", left(&w));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| write(&v, 0, 4096));
            while waits() == 0 {
                std::thread::yield_now();
            }
            site.pool.drain().unwrap();
            site.pool.destage_step().unwrap();
            writer.join().unwrap();
        });
        // The journal has room again: everything is forgiven.
        write(&v, 0, 4096);
        assert!(!v.branch().debt.is_due(site.world.clock.monotonic()), "{:?}", left(&v));
    }

    #[test]
    fn a_volume_that_writes_alone_does_not_wait_before_the_journal_is_full() {
        let (site, v, _) = filling(true);
        (0..3).for_each(|_| write(&v, 0, MIB / 8));
        assert_eq!((site.pool.stats().backpressure_waits, v.branch().debt.may_exist()), (0, false));
    }

    #[test]
    fn a_write_waits_for_a_bounded_time_and_not_at_all_without_data() {
        let (site, v, _) = filling(false);
        v.write_zeroes(0, 4 * MIB, false, false).unwrap();
        assert!(!v.branch().debt.may_exist());
        for _ in 0..3 {
            // Nothing destages meanwhile. Each write goes on after the longest delay.
            write(&v, 0, MIB / 8);
        }
        assert_eq!(site.pool.stats().backpressure_waits, 2);
    }

    /// A write that finds only the segment for control records left has to wait. So this segment is
    /// no room that the throttle can count on.
    #[test]
    fn the_journal_counts_as_full_when_a_write_finds_no_room() {
        let site = Site::builder(64).journal(8 * MIB, MIB).build();
        let v = site.volume("v", 16 * MIB, 4096);
        let len = MIB / 16;
        loop {
            let sequencing = site.pool.core.journal.sequence();
            let (fill, room) = (sequencing.fill(), sequencing.room(len, false));
            assert!(fill.used <= fill.capacity);
            if room == Admission::Full {
                assert!(fill.capacity - fill.used < 2 * len, "{fill:?}");
                break;
            }
            drop(sequencing);
            write(&v, 0, len);
        }
        assert_eq!(site.pool.stats().journal_capacity, 8 * MIB);
    }

    #[test]
    fn a_file_that_another_thread_has_made_is_enough() {
        let site = Site::builder(63).journal(8 * MIB, MIB).build();
        let missing = || site.pool.core.journal.uncreated_bytes();
        assert!(site.pool.core.add_journal_file(true).unwrap());
        let before = missing();
        assert!(site.pool.core.add_journal_file(false).unwrap());
        assert_eq!(missing(), before, "a free file was there");
        assert!(site.pool.core.add_journal_file(true).unwrap());
        assert_eq!(missing(), before - MIB);
    }
}
