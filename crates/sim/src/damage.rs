//! Flipped bits in a closed pool: found and named, or harmless; never served as data.

use crate::oracle::{SECTOR, SnapId, SnapshotModel, View, VolId, check_content};
use crate::run::{Outcome, Run};
use hindcast_engine::Volume;
use hindcast_engine::cdp::Moment;
use hindcast_engine::check::{CheckOptions, check};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::pool::Pool;
use std::sync::Arc;

/// Moments that are looked at in a damaged pool.
const MOMENTS: usize = 20;

impl Run {
    /// Flips bits in the metadata of a cleanly closed pool, and looks at what opening, reading and checking make of
    /// it. The end of a run: nothing can be expected of the pool afterwards.
    pub(crate) fn damage(&mut self) -> Outcome<()> {
        let files: Vec<(String, u64)> = self.dir.files().into_iter().filter(|f| f.1 > 0).collect();
        let recorded = files.iter().any(|(name, _)| name.starts_with("cdp-"));
        let kind = self.rand.below(if recorded { 5 } else { 3 });
        let mut targets = files.iter().filter(|(name, _)| match kind {
            0 => name.starts_with("journal"),
            1 => self.pvs.contains(name),
            2 => name.starts_with("catalog"),
            _ => name.starts_with("cdp-"),
        });
        let count = targets.clone().count() as u64;
        let Some((name, len)) = targets.nth(self.rand.below(count) as usize) else {
            return Ok(());
        };
        // Of a physical volume only the label is metadata.
        let reach = if kind == 1 { 4096 } else { *len };
        let start = self.rand.below(reach);
        for _ in 0..self.rand.pick(&[1, 1, 3, 100]) {
            let offset = (start + self.rand.below(64)).min(reach - 1);
            let bit = self.rand.below(8) as u8;
            self.dir.flip_bit(name, offset, bit);
        }
        self.say(|| format!("bits flipped in {name} at {start}"));
        let report = check(self.dyn_dir(), &CheckOptions { repair: false }, &mut |_, _| {});
        let noticed = report.is_err() || report.is_ok_and(|r| !r.findings.is_empty());
        match Pool::open(self.dyn_dir(), self.world(), self.plan.options.clone()) {
            Ok(pool) => self.read_damaged(&pool, noticed),
            Err(e) => {
                self.say(|| format!("open: {e:?}"));
                Ok(())
            }
        }
    }

    fn read_damaged(&mut self, pool: &Arc<Pool>, noticed: bool) -> Outcome<()> {
        let volumes: Vec<(VolId, String)> =
            self.oracle.state().volumes.iter().map(|(id, v)| (*id, v.name.clone())).collect();
        for (id, name) in volumes {
            match pool.open_volume(&name, true) {
                Ok(handle) => self.read_view(&handle, View::Volume(id), id, noticed)?,
                Err(_) if noticed => {}
                Err(e) => {
                    return Err(format!("check finds nothing, but volume {name} can't be opened: {e:?}"));
                }
            }
        }
        let snapshots: Vec<(SnapId, SnapshotModel)> =
            self.oracle.state().snapshots.iter().take(10).map(|(id, s)| (*id, s.clone())).collect();
        for (id, snapshot) in snapshots {
            let volume = self.volume_name(snapshot.volume)?;
            match pool.open_snapshot(&volume, &snapshot.name) {
                Ok(handle) => self.read_view(&handle, View::Snapshot(id), snapshot.volume, noticed)?,
                Err(_) if noticed => {}
                Err(e) => {
                    return Err(format!("check finds nothing, but snapshot {id} can't be opened: {e:?}"));
                }
            }
        }
        self.read_damaged_moments(pool, noticed)
    }

    /// A moment is as it was, or an error says that it is lost.
    fn read_damaged_moments(&mut self, pool: &Arc<Pool>, noticed: bool) -> Outcome<()> {
        for (vol, lsn, content, size) in self.some_moments(MOMENTS) {
            let name = self.volume_name(vol)?;
            let what = format!("volume {vol} at LSN {lsn}");
            let view = match pool.open_moment(&name, &Moment::Lsn(lsn)) {
                Ok(view) => view,
                Err(_) if noticed || self.expires(vol) => continue,
                Err(e) => return Err(format!("check finds nothing, but {what} can't be opened: {e:?}")),
            };
            for (offset, len) in self.oracle.interesting(vol, size) {
                let mut data = vec![0xEE; len as usize];
                match view.read(offset, &mut data) {
                    Ok(()) => check_content(&what, &content, offset, &data, |_, _| false)
                        .map_err(|e| format!("served damage: {e}"))?,
                    Err(_) if noticed => {}
                    Err(e) => return Err(format!("check finds nothing, but {what} can't be read: {e:?}")),
                }
            }
        }
        Ok(())
    }

    fn read_view(&self, handle: &Volume, view: View, owner: VolId, noticed: bool) -> Outcome<()> {
        for (offset, len) in self.oracle.interesting(owner, handle.info().size) {
            let mut data = vec![0; len as usize];
            match handle.read(offset, &mut data) {
                Ok(()) => {
                    self.oracle.check_read(view, offset, &data).map_err(|e| format!("served damage: {e}"))?
                }
                Err(_) if noticed => {}
                Err(e) => {
                    let sector = offset / SECTOR;
                    return Err(format!(
                        "check finds nothing, but {view:?} can't be read at sector {sector}: {e:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}
