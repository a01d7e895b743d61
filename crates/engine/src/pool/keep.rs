//! Snapshots of past moments (decision 71).

use super::Pool;
use super::cdp::{base_of, together};
use super::snapshots::check_free;
use crate::branch::namespace::check_depth;
use crate::catalog::{Frozen, SnapshotRecord};
use crate::control::{Control, KeepMoment, SetFill};
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::ids::{BranchId, Epoch, SnapshotId};
use crate::info::SnapshotInfo;
use crate::info::history::Moment;
use crate::policies::QUIET_RATE;
use crate::world::uuid as new_uuid;
use uuid::Uuid;

impl Pool {
    /// Keeps one past moment of several volumes as snapshots: (volume, name of the snapshot). They
    /// can be read at once. Background work copies their content out of the history, so that they
    /// stay when the moment expires.
    pub fn keep_moment(&self, wanted: &[(&str, &str)], moment: &Moment) -> Result<Vec<SnapshotInfo>> {
        let held = self.hold_all(wanted.iter().map(|(volume, _)| *volume), moment)?;
        let uuids: Vec<_> = wanted.iter().map(|_| new_uuid(&*self.core.world.rng)).collect();
        self.destager.submit_with(|names| {
            let (mut controls, mut branches) = (Vec::new(), Vec::new());
            for (n, ((state, line, point), (_, name))) in held.iter().zip(wanted).enumerate() {
                let (volume, _) = wanted[n];
                if wanted[..n].iter().any(|(other, _)| *other == volume) {
                    return Err(invalid(format!("keep a moment: volume {volume} is named twice")));
                }
                // The volume may have been deleted, or moved to the trash, since it was held.
                if names.volume(volume)?.id != state.id {
                    let text =
                        format!("keep a moment of volume {volume}: it was replaced meanwhile; try again");
                    return Err(Error::new(ErrorKind::Busy, text));
                }
                check_free(names, state, name)?;
                check_depth(line)?;
                let id = SnapshotId(names.next_id + 2 * n as u64);
                let new = BranchId(id.0 + 1);
                branches.push(new);
                let snapshot = SnapshotRecord {
                    uuid: uuids[n],
                    name: (*name).to_owned(),
                    volume: state.id,
                    of: Frozen { branch: new, epoch: Epoch::FIRST },
                    size: point.size,
                    block_size: state.block_size,
                    created: point.time,
                    deleted: false,
                    origin: Uuid::nil(),
                    protected: false,
                    labels: Default::default(),
                };
                let branch = &line.branch;
                let keep = KeepMoment {
                    id,
                    snapshot,
                    chunk_log2: branch.chunk_log2,
                    base: base_of(branch),
                    at: point.lsn,
                    method: branch.method(),
                    area: branch.area,
                };
                controls.push(keep.into());
            }
            let fill: Control = SetFill { branches, rate: Some(QUIET_RATE) }.into();
            controls.push(fill);
            Ok((vec![together(controls)], None))
        })?;
        wanted.iter().map(|(volume, name)| self.snapshot(volume, name)).collect()
    }
}
