//! Upgrades of the pool in the middle of a run. After each crash the run compares the feature word
//! on the disk, and that of the opened pool, with what it knows of the upgrades.

use crate::perform::Answer;
use crate::run::{Outcome, Run};
use crate::survive;
use hindcast_engine::ErrorKind;
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::{FeatureState, Pool};

/// The feature that runs enable.
const FEATURE: &str = "references";

/// The state of the feature, as the run knows it.
#[derive(Debug, Default)]
pub(crate) struct Upgraded {
    /// Whether an upgrade was tried. Nothing else enables the feature.
    tried: bool,
    /// Whether an open pool had the feature. From then on its bit is on each disk that a crash
    /// leaves (F1).
    had: bool,
    /// The LSN of the record that enables the feature, if one was sequenced and is not applied yet.
    record: Option<Lsn>,
}

fn has(pool: &Pool) -> bool {
    pool.features().iter().any(|info| info.name == FEATURE && info.state == FeatureState::Enabled)
}

impl Run {
    pub(crate) fn enable_feature(&mut self) -> Outcome<()> {
        self.make_room(4096)?;
        let pool = self.pool()?;
        let (before, had) = (pool.stats().sequenced_lsn, has(&pool));
        self.upgraded.tried = true;
        let result = survive(|| pool.upgrade(&[FEATURE.to_owned()]));
        let last = pool.stats().sequenced_lsn;
        if had && last != before {
            return Err("an upgrade that has nothing to do was sequenced".into());
        }
        if last == Lsn(before.0 + 1) {
            self.upgraded.record = Some(last);
        }
        self.note_feature();
        let result = result.map(drop);
        // An upgrade that has nothing to do makes nothing durable.
        let answer = if had { self.around(result, &[]) } else { self.durably(result, &[ErrorKind::NoSpace]) };
        match answer? {
            Answer::Done if !self.upgraded.had => Err("an upgrade enabled nothing".into()),
            _ => Ok(()),
        }
    }

    /// Notes whether the open pool has the feature. The run calls this before a process ends.
    pub(crate) fn note_feature(&mut self) {
        self.upgraded.had |= self.pool.as_ref().is_some_and(|pool| has(pool));
    }

    /// Checks the disk that a crash left, before it is recovered (F1): the bit of a feature that
    /// the running pool had is durable.
    pub(crate) fn check_stored_feature(&self) -> Outcome<()> {
        if !self.upgraded.had {
            return Ok(());
        }
        let stored = Pool::stored_features(&self.dir).map_err(|e| format!("read the features: {e:?}"))?;
        match stored.contains(&FEATURE) {
            true => Ok(()),
            false => Err(format!("F1: the pool had {FEATURE}, and the disk has only {stored:?}")),
        }
    }

    /// Checks whether the opened pool has the feature. A record that was lost in the crash enables
    /// nothing.
    pub(crate) fn check_feature(&mut self) -> Outcome<()> {
        let pool = self.pool()?;
        if pool.stats().sequenced_lsn < self.upgraded.record.unwrap_or_default() {
            self.upgraded.record = None;
        }
        match has(&pool) {
            true if !self.upgraded.tried => Err(format!("{FEATURE} is enabled without an upgrade")),
            false if self.upgraded.had => Err(format!("{FEATURE} is not enabled any more")),
            _ => Ok(()),
        }
    }

    /// Checks that the record of an upgrade was applied. The caller has drained the journal.
    pub(crate) fn check_feature_carried_out(&mut self) -> Outcome<()> {
        let enabled = has(&*self.pool()?);
        match self.upgraded.record.take() {
            Some(lsn) if !enabled => Err(format!("the upgrade with LSN {lsn} was not carried out")),
            _ => Ok(()),
        }
    }
}
