//! The trash, and labels of volumes. A run moves a volume to the trash, works on, and takes it out
//! again. After a crash in between, the next opening takes it out.

use crate::oracle::{Effect, VolId};
use crate::perform::Answer;
use crate::run::{Outcome, Run};
use crate::workload::Op;
use bytes::Bytes;
use hindcast_engine::ErrorKind;
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::pool::{Pool, VolumeInfo};
use std::collections::BTreeSet;
use uuid::Uuid;

/// The largest number of labels of a volume.
const MAX_LABELS: usize = 64;
/// The largest number of steps of background work that a run takes while a volume is in the trash.
const MAX_STEPS: u64 = 4;

/// Takes all volumes out of the trash, and returns their identities.
pub(crate) fn take_out_all(pool: &Pool) -> Outcome<BTreeSet<Uuid>> {
    let all: BTreeSet<Uuid> = pool.trash().into_iter().map(|info| info.volume.uuid).collect();
    for uuid in &all {
        pool.restore_volume(*uuid, None).map_err(|e| format!("restore volume {uuid}: {e:?}"))?;
    }
    Ok(all)
}

impl Run {
    /// Performs an operation on the trash or on labels of volumes.
    pub(crate) fn perform_on_trash(&mut self, op: &Op) -> Outcome<()> {
        match op {
            Op::Trash { vol, force } => self.trash(*vol, *force),
            Op::LabelVolume(vol, key, value) => self.label_volume(*vol, key, value.as_deref()),
            other => Err(format!("{other:?} is no operation on the trash")),
        }
    }

    /// Moves a volume to the trash, takes steps of background work, and restores the volume.
    fn trash(&mut self, vol: VolId, force: bool) -> Outcome<()> {
        if !self.has_trash()? {
            return Ok(());
        }
        let name = self.volume_name(vol)?;
        let open = self.in_use(vol);
        let protected = self.oracle.state().snapshots_of(vol).any(|(_, s)| s.protected);
        let refusals: &[ErrorKind] = match (protected, open && !force) {
            (true, _) => &[ErrorKind::Conflict],
            (_, true) => &[ErrorKind::Busy],
            _ => &[],
        };
        let effect = Effect::Trash(vol, true);
        let answer = self.control(effect, refusals, |pool| pool.trash_volume(&name, force).map(drop))?;
        let Answer::Done = answer else { return Ok(()) };
        // An import that fills the volume has ended, also if the volume comes back.
        self.leases.remove(&vol);
        if !refusals.is_empty() {
            return Err("a volume in use, or with a protected snapshot, went to the trash".into());
        }
        self.check_trashed(vol, &name)?;
        for _ in 0..self.rand.clone().below(MAX_STEPS) {
            if self.dir.crashed() || self.poisoned() {
                return Ok(());
            }
            self.maintain_once()?;
        }
        if self.dir.crashed() || self.poisoned() {
            return Ok(());
        }
        let uuid = self.uuid_of(vol)?;
        let effect = Effect::Trash(vol, false);
        self.control(effect, &[], |pool| pool.restore_volume(uuid, None).map(drop)).map(drop)
    }

    /// Checks that nothing reaches a volume in the trash, and that its old handle is refused.
    fn check_trashed(&mut self, vol: VolId, name: &str) -> Outcome<()> {
        let (pool, uuid) = (self.pool()?, self.uuid_of(vol)?);
        if let Some(handle) = self.handles.remove(&vol) {
            let block = handle.info().block_size as usize;
            let mut writes = [WriteOp::new(0, Bytes::from(vec![1; block]))];
            handle.write(&mut writes, false);
            let works = writes[0].result.is_ok() || handle.read(0, &mut vec![0; block]).is_ok();
            if works && !self.dir.crashed() {
                return Err("a handle of a volume in the trash still works".into());
            }
        }
        let there = |info: &VolumeInfo| info.uuid == uuid;
        let opened = pool.open_volume(name, true).err().map(|e| e.kind());
        if pool.volumes().iter().any(there) || opened != Some(ErrorKind::NotFound) {
            return Err(format!("volume {name} is in the trash and in use"));
        }
        let snapshots = self.oracle.state().snapshots_of(vol).count() as u64;
        match pool.trash().iter().find(|info| there(&info.volume)) {
            Some(info) if info.volume.name == name && info.snapshots == snapshots => Ok(()),
            found => Err(format!("volume {name} with {snapshots} snapshots is in the trash as {found:?}")),
        }
    }

    /// Sets a label of a volume, or removes it.
    fn label_volume(&mut self, vol: VolId, key: &str, value: Option<&str>) -> Outcome<()> {
        if !self.has_trash()? {
            return Ok(());
        }
        let name = self.volume_name(vol)?;
        let mut labels = self.model(vol)?.labels.clone();
        match value {
            Some(value) => drop(labels.insert(key.into(), value.into())),
            None => drop(labels.remove(key)),
        }
        let fits = labels.len() <= MAX_LABELS;
        let refusals: &[ErrorKind] = if fits { &[] } else { &[ErrorKind::Invalid] };
        let effect = Effect::LabelVolume(vol, labels);
        let change = [(key, value)];
        let answer = self.control(effect, refusals, |pool| pool.label_volume(&name, &change).map(drop))?;
        match answer {
            Answer::Done if !fits => Err("a volume has labels beyond their limit".into()),
            _ => Ok(()),
        }
    }

    /// Closes the handle of a volume.
    pub(crate) fn release(&mut self, vol: VolId) -> Outcome<()> {
        self.handles.remove(&vol);
        Ok(())
    }

    /// Makes sure that the pool has the feature, which its first use enables. Returns false if that
    /// failed.
    fn has_trash(&mut self) -> Outcome<bool> {
        self.make_room(4096)?;
        let pool = self.pool()?;
        let result = crate::survive(|| pool.enable_trash());
        Ok(matches!(self.around(result, &[])?, Answer::Done))
    }

    fn uuid_of(&self, vol: VolId) -> Outcome<Uuid> {
        let found = self.ids.iter().find(|(_, id)| **id == vol).map(|(uuid, _)| *uuid);
        found.ok_or_else(|| format!("volume {vol} has no identity"))
    }
}
