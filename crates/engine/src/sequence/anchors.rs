//! Anchors that are due after many writes, and anchors that a crash cut off.

use crate::branch::VolumeState;
use crate::branch::namespace::Namespace;
use crate::destage::Destager;
use crate::error::Result;
use crate::ids::{Lsn, Stamp, VolumeId};
use crate::journal::Record;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Destager {
    /// Sequences an anchor, if enough was written since the last one. A failure is none of the
    /// write behind which the anchor is due: a later write tries again.
    pub(crate) fn anchor_if_due(&self, state: &VolumeState) {
        if let Err(error) = self.try_anchor_if_due(state) {
            tracing::debug!(volume = state.id.0, %error, "an anchor that is due was not taken");
        }
    }

    fn try_anchor_if_due(&self, state: &VolumeState) -> Result<()> {
        let cdp = &state.line.branch.cdp;
        let is_due = || cdp.is_anchor_due(self.core.options.keep_distance, || self.core.clock.now());
        if !is_due() {
            return Ok(());
        }
        if self.core.too_many_turns(self.core.journal.turns()) {
            // Writers don't wait for turns: a later write sequences the anchor, when fewer turns
            // wait.
            self.core.wake();
            return Ok(());
        }
        let Stamp { lsn, .. } = self.sequence_control(
            |names| match names.volume_by_id(state.id) {
                // Another writer may have been quicker, and the volume may have a new branch by
                // now.
                Some(now) if is_due() && now.line.branch.id == state.line.branch.id => {
                    Ok((vec![names.anchor(now, &*self.core.world.rng)?], None))
                }
                _ => Ok((Vec::new(), None)),
            },
            |_| Ok(None),
        )?;
        self.core.journal.write_out(lsn)
    }

    /// Makes, at open, the anchor of a rollback's new branch, if a crash cut it off. The branch had
    /// no writes before, since they would have come behind the anchor.
    pub(crate) fn make_up_anchors(&self) -> Result<()> {
        let lacks = |state: &&Arc<VolumeState>| {
            let branch = &state.line.branch;
            branch.cdp.is_on() && branch.frozen.read().is_empty()
        };
        let lacking: Vec<VolumeId> = {
            let names = self.core.names.read();
            names.by_name.values().chain(names.trashed()).filter(lacks).map(|v| v.id).collect()
        };
        lacking.into_iter().try_for_each(|id| {
            let anchor = |names: &Namespace| {
                let volume = names.volume_by_id(id);
                volume.map(|volume| names.anchor(volume, &*self.core.world.rng)).transpose()
            };
            tracing::info!(volume = id.0, "an anchor that a crash interrupted is taken again");
            self.submit_with(|names| Ok((anchor(names)?.into_iter().collect(), None))).map(drop)
        })
    }

    /// Sequences a discard that is too long to be recorded, right behind an anchor that keeps the
    /// discarded content.
    pub(crate) fn discard_behind_anchor(
        &self,
        state: &VolumeState,
        mut record: impl FnMut() -> Result<Record>,
    ) -> Result<Lsn> {
        let sequenced = self.sequence_control(
            |names| {
                let on = state.line.branch.cdp.is_on() && !state.deleted.load(Ordering::Acquire);
                let anchor = on.then(|| names.anchor(state, &*self.core.world.rng)).transpose()?;
                Ok((anchor.into_iter().collect(), None))
            },
            |_| record().map(Some),
        );
        sequenced.map(|stamp| stamp.lsn)
    }
}
