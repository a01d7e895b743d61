//! Upgrades of the pool, also in the middle of a run. After each crash the run compares the feature
//! word on the disk, and that of the opened pool, with what it knows of the upgrades.

use crate::perform::Answer;
use crate::run::{Outcome, Run};
use crate::survive;
use hindcast_engine::ErrorKind;
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::{DataScrubInfo, FeatureState, Pool, Progress};

/// The features that an upgrade enables, in runs without sums and in runs with them.
const FEATURES: [&[&str]; 2] = [&["references"], &["references", "sums"]];

/// The largest number of batches that a scrub may wait for, while the journal is too full.
const MOST_WAITS: u32 = 1000;

/// The state of the features, as the run knows it.
#[derive(Debug, Default)]
pub(crate) struct Upgraded {
    /// Whether an upgrade was tried. Nothing else enables the features.
    tried: bool,
    /// Whether an open pool had the features. From then on their bits are on each disk that a crash
    /// leaves (F1).
    had: bool,
    /// The LSN of the record that enables the features, if one was sequenced and is not applied
    /// yet.
    record: Option<Lsn>,
}

/// Returns whether a pool has all of these features.
fn has(pool: &Pool, names: &[&str]) -> bool {
    let features = pool.features();
    let enabled =
        |name: &&str| features.iter().any(|info| info.name == *name && info.state == FeatureState::Enabled);
    names.iter().all(enabled)
}

impl Run {
    fn wanted(&self) -> &'static [&'static str] {
        FEATURES[usize::from(self.plan.sums)]
    }

    pub(crate) fn enable_features(&mut self) -> Outcome<()> {
        self.make_room(4096)?;
        let (pool, wanted) = (self.pool()?, self.wanted());
        let (before, had) = (pool.stats().sequenced_lsn, has(&pool, wanted));
        self.upgraded.tried = true;
        let result =
            survive(|| pool.upgrade(&wanted.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()));
        let last = pool.stats().sequenced_lsn;
        if had && last != before {
            return Err("an upgrade that has nothing to do was sequenced".into());
        }
        if last == Lsn(before.0 + 1) {
            self.upgraded.record = Some(last);
        }
        self.note_features();
        let result = result.map(drop);
        // An upgrade that has nothing to do makes nothing durable.
        let answer = if had { self.around(result, &[]) } else { self.durably(result, &[ErrorKind::NoSpace]) };
        match answer? {
            Answer::Done if !self.upgraded.had => Err("an upgrade enabled nothing".into()),
            _ => Ok(()),
        }
    }

    /// Notes whether the open pool has the features. The run calls this before a process ends.
    pub(crate) fn note_features(&mut self) {
        let wanted = self.wanted();
        self.upgraded.had |= self.pool.as_ref().is_some_and(|pool| has(pool, wanted));
    }

    /// Checks the disk that a crash left, before it is recovered (F1): the bits of the features
    /// that the running pool had are durable.
    pub(crate) fn check_stored_features(&self) -> Outcome<()> {
        if !self.upgraded.had {
            return Ok(());
        }
        let stored = Pool::stored_features(&self.dir).map_err(|e| format!("read the features: {e:?}"))?;
        match self.wanted().iter().find(|name| !stored.contains(name)) {
            None => Ok(()),
            Some(name) => Err(format!("F1: the pool had {name}, and the disk has only {stored:?}")),
        }
    }

    /// Checks whether the opened pool has the features. A record that was lost in the crash enables
    /// nothing.
    pub(crate) fn check_features(&mut self) -> Outcome<()> {
        let pool = self.pool()?;
        if pool.stats().sequenced_lsn < self.upgraded.record.unwrap_or_default() {
            self.upgraded.record = None;
        }
        let wanted = self.wanted();
        match has(&pool, wanted) {
            true if !self.upgraded.tried => Err(format!("{wanted:?} are enabled without an upgrade")),
            false if self.upgraded.had => Err(format!("{wanted:?} are not enabled any more")),
            _ => Ok(()),
        }
    }

    /// Checks that the record of an upgrade was applied. The caller has drained the journal.
    pub(crate) fn check_features_carried_out(&mut self) -> Outcome<()> {
        let enabled = has(&*self.pool()?, self.wanted());
        match self.upgraded.record.take() {
            Some(lsn) if !enabled => Err(format!("the upgrade with LSN {lsn} was not carried out")),
            _ => Ok(()),
        }
    }

    /// Takes a step of background work. With sums, takes a step of the scrub, too.
    pub(crate) fn background_step(&self, pool: &Pool) -> hindcast_engine::Result<Progress> {
        let progress = pool.maintain()?;
        if self.plan.sums {
            pool.scrub_step()?;
        }
        Ok(progress)
    }

    /// Scrubs all data once.
    pub(crate) fn scrub_once(&self, pool: &Pool) -> Outcome<DataScrubInfo> {
        let failed = |e: hindcast_engine::Error| format!("scrub the pool: {e:?}");
        pool.scrub(0, false).map_err(failed)?;
        let mut waits = 0;
        while pool.data_scrub().running {
            if pool.scrub_step().map_err(failed)?.is_zero() {
                continue;
            }
            // The journal is too full. A step of destage also recycles retired segments.
            waits += 1;
            if waits > MOST_WAITS {
                return Err(format!("the scrub waits for the journal: {:?}", pool.stats()));
            }
            pool.destage_step().map_err(failed)?;
        }
        Ok(pool.data_scrub())
    }

    /// Scrubs all data. If no disk has lost anything, nothing may be damaged.
    pub(crate) fn scrub_all(&self) -> Outcome<()> {
        if !self.plan.sums || self.all_failed() {
            return Ok(());
        }
        let found = self.scrub_once(&*self.pool()?)?;
        match self.lost.is_empty() && found.damaged + found.unreadable > 0 {
            true => Err(format!("no disk has lost anything, and the scrub found damage: {found:?}")),
            false => Ok(()),
        }
    }
}
