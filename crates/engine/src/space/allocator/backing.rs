//! The places of the free extents, and the room for them in the file systems below.

use super::{Allocator, PvState};
use crate::area::Area;
use crate::disk::Backing;
use crate::error::{Error, Result};
use crate::space::reservations::{AreaRoom, BackingRoom, RoomBelow};
use std::collections::BTreeMap;

impl Allocator {
    /// Measures the room for free extents, and for logs, when `margin` bytes of each file system
    /// are kept for the rest of the pool. `data` is the file system of the logs; `ahead` bytes of
    /// it are already used by logs, and are also promised, so they count as available. Extents that
    /// were set aside are free again as far as there is room for them. Returns the room, and the
    /// number of such extents by area.
    pub(crate) fn backing(
        &mut self,
        margin: u64,
        data: Option<Backing>,
        ahead: u64,
    ) -> Result<(BackingRoom, BTreeMap<Area, u64>)> {
        let left = |below: &Backing| below.available.saturating_sub(margin);
        let of_pvs = self.measure_pvs(data.as_ref(), ahead)?;
        let mut areas: BTreeMap<Area, AreaRoom> = BTreeMap::new();
        let mut taken_back = BTreeMap::new();
        let mut bytes: BTreeMap<u64, u64> = BTreeMap::new();
        for ((id, state), of_pv) in self.pvs.iter_mut().zip(of_pvs) {
            let room = of_pv.as_ref().map_or(u64::MAX, |of_pv| left(of_pv) / self.extent_size);
            let kept = (state.aside.len() as u64).saturating_sub(room) as usize;
            let back = state.aside.split_off(kept);
            *taken_back.entry(state.area).or_default() += back.len() as u64;
            state.free += back.len() as u64;
            state.file_system = of_pv.as_ref().map(|of_pv| of_pv.file_system);
            self.areas.index(state.area).free.extend(back.into_iter().map(|extent| (*id, extent)));
            let area = areas.entry(state.area).or_default();
            let Some(of_pv) = of_pv else {
                area.solid += state.free;
                continue;
            };
            let known = bytes.entry(of_pv.file_system).or_insert(u64::MAX);
            *known = (*known).min(left(&of_pv));
            if state.gives() {
                *area.sparse.entry(of_pv.file_system).or_default() += state.free;
            }
        }
        self.areas.0.values_mut().for_each(|area| area.index.shunned.clear());
        let of_logs = data.as_ref().map(|data| data.file_system);
        (self.rooms.of_logs, self.rooms.by_file_system) = (of_logs, bytes.clone());
        let log_bytes = data.as_ref().map_or(u64::MAX, left);
        Ok((BackingRoom { areas, below: RoomBelow { bytes, of_logs, log_bytes } }, taken_back))
    }

    /// Asks each physical volume for the room below it. `None`: it has its space already, or has
    /// failed.
    fn measure_pvs(&self, data: Option<&Backing>, ahead: u64) -> Result<Vec<Option<Backing>>> {
        let measure = |state: &PvState| {
            if state.failed {
                // A failed physical volume gets nothing, and may not answer.
                return Ok(None);
            }
            let fail = |e| Error::io(format!("determine the free space of {}", state.pv.path), e);
            let mut of_pv = state.pv.disk.backing_available().map_err(fail)?;
            if let (Some(of_pv), Some(data)) = (&mut of_pv, data)
                && of_pv.file_system == data.file_system
            {
                of_pv.available += ahead;
            }
            Ok(of_pv)
        };
        self.pvs.values().map(measure).collect()
    }
}
