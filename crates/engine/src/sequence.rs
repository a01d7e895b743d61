//! The order of control operations. Each operation gets a place in the journal, like any write.
//!
//! The folder also has what delays a place, and what accompanies one: room in the journal, space
//! that has to be freed first, and anchors.

pub(crate) mod anchors;
pub(crate) mod deletion;
pub(crate) mod relief;
pub(crate) mod room;

use crate::branch::Branch;
use crate::branch::namespace::Namespace;
use crate::control::Control;
use crate::destage::Destager;
use crate::error::Result;
use crate::ids::{BranchId, Epoch, Lsn, Stamp};
use crate::journal::record::{Kind, PieceCrcs};
use crate::journal::{Admission, Record};
use crate::space::reservations::full;
use bytes::Bytes;
use relief::Relief;
use std::sync::Arc;

impl Destager {
    /// Sequences the operation that `build` makes from the current names, and makes it durable.
    /// Returns its LSN.
    pub(crate) fn submit(&self, build: impl Fn(&Namespace) -> Result<Control>) -> Result<Lsn> {
        self.submit_with(|names| Ok((vec![build(names)?], None)))
    }

    /// Sequences operations that follow one another with nothing between them, and makes them
    /// durable. The last of them may need a slot of a branch, which is promised before they are
    /// sequenced. Returns the last LSN.
    pub(crate) fn submit_with(
        &self,
        build: impl Fn(&Namespace) -> Result<(Vec<Control>, Option<Arc<Branch>>)>,
    ) -> Result<Lsn> {
        self.submit_timed(build).map(|stamp| stamp.lsn)
    }

    /// Sequences operations as [`Destager::submit_with`] does. Returns the LSN and time of the last
    /// one.
    pub(crate) fn submit_timed(
        &self,
        build: impl Fn(&Namespace) -> Result<(Vec<Control>, Option<Arc<Branch>>)>,
    ) -> Result<Stamp> {
        let stamp = self.sequence_control(build, |_| Ok(None))?;
        self.core.journal.sync_to(stamp.lsn)?;
        self.core.wake();
        Ok(stamp)
    }

    /// Sequences operations, and perhaps a record of data right behind them. Returns LSN and time
    /// of the last record. The caller writes the journal out and makes it durable.
    pub(crate) fn sequence_control(
        &self,
        build: impl Fn(&Namespace) -> Result<(Vec<Control>, Option<Arc<Branch>>)>,
        mut behind: impl FnMut(&Namespace) -> Result<Option<Record>>,
    ) -> Result<Stamp> {
        let mut relief = Relief::default();
        loop {
            self.core.check_usable()?;
            if self.core.too_many_turns(self.core.journal.turns()) {
                self.make_room(Admission::Turns)?;
                continue;
            }
            let mut names = self.core.names.write();
            let (controls, slot_of) = build(&names)?;
            let encoded: Vec<Vec<u8>> = controls.iter().map(Control::encode).collect();
            let space: u64 =
                encoded.iter().map(|data| crate::journal::record::space(data.len() as u64)).sum();
            let mut sequencing = self.core.journal.sequence();
            match sequencing.room(space, true) {
                Admission::Ready => {}
                wait => {
                    drop(sequencing);
                    drop(names);
                    self.make_room(wait)?;
                    continue;
                }
            }
            if let Some(branch) = &slot_of
                && !self.core.space.try_reserve(branch.kind(), 1)
            {
                let sequenced = sequencing.last_lsn();
                drop(sequencing);
                drop(names);
                self.core.journal.write_out(sequenced)?;
                if !self.relieve(&mut relief, None, 0)? {
                    return Err(full());
                }
                continue;
            }
            let mut last = Lsn::ZERO;
            let count = controls.len();
            for (n, (control, data)) in controls.iter().zip(encoded).enumerate() {
                let slot_of = slot_of.as_ref().filter(|_| n + 1 == count);
                last = sequencing.push(control_record(control, data, slot_of))?;
                // The journal has the operation. Names without it would not be what a recovery
                // finds.
                let applied = control.apply(&mut names, last, sequencing.last_time());
                applied.map_err(|e| self.core.fault.poison(&e))?;
            }
            if let Some(record) = behind(&names)? {
                last = sequencing.push(record)?;
            }
            return Ok(Stamp { lsn: last, time: sequencing.last_time() });
        }
    }
}

/// Makes the journal's record of an operation. `slot_of` is the branch of which a slot was promised
/// for it.
fn control_record(control: &Control, data: Vec<u8>, slot_of: Option<&Arc<Branch>>) -> Record {
    Record {
        kind: Kind::Control,
        branch: slot_of.map_or(BranchId(0), |b| b.id),
        epoch: Epoch::NONE,
        offset: 0,
        length: data.len() as u64,
        slots: slot_of.is_some() as u16,
        crcs: PieceCrcs::of(0, &data),
        alone: slot_of.is_some() || !control.shares_commit(),
        data: Bytes::from(data),
        reference: None,
        staging: None,
    }
}
