//! A salvage before a recovery. It shows the pool from memory and writes nothing. It must show what
//! the recovery then leads to.

use crate::run::{Outcome, Run};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::pool::{Pool, TrashInfo};
use hindcast_engine::salvage::SalvageOptions;
use hindcast_engine::world::{SplitMix, World};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// In a random run, a salvage precedes one in this many openings.
const SELDOM: u64 = 8;
/// Bytes of one read.
const PIECE: u64 = 64 << 10;
/// Bytes of each device that are read, at most.
const MOST: u64 = 8 << 20;

/// The content of devices, piece by piece. `None` stands for a piece that can't be read.
pub(crate) struct Shown(BTreeMap<(String, Option<String>), Vec<Piece>>);

type Piece = Option<Vec<u8>>;

fn shown(pool: &Arc<Pool>) -> Outcome<Shown> {
    let mut all = BTreeMap::new();
    for (volume, snapshot) in pool.devices() {
        let opened = match &snapshot {
            Some(name) => pool.open_snapshot(&volume, name),
            None => pool.open_volume(&volume, true),
        };
        let device = opened.map_err(|e| format!("open {volume}@{snapshot:?}: {e:?}"))?;
        let size = device.info().size.min(MOST);
        let pieces = (0..size).step_by(PIECE as usize).map(|at| {
            let mut data = vec![0; PIECE.min(size - at) as usize];
            device.read(at, &mut data).ok().map(|()| data)
        });
        let pieces = pieces.collect();
        all.insert((volume, snapshot), pieces);
    }
    Ok(Shown(all))
}

impl Run {
    /// Now and then salvages the pool before its recovery, and returns what the salvage shows.
    pub(crate) fn salvaged(&self) -> Outcome<Option<Shown>> {
        // A copy makes this draw, so that the other draws of the run stay the same.
        if self.rand.clone().fork().below(SELDOM) != 0 {
            return Ok(None);
        }
        let before = self.dir.save();
        let world = World { clock: self.world().clock, rng: Arc::new(SplitMix::new(1)) };
        let options = SalvageOptions { pool: self.plan.options.clone(), ..SalvageOptions::default() };
        let pool = Pool::open_salvage(self.dyn_dir(), world, options);
        let pool = pool.map_err(|e| format!("open for salvage: {e:?}"))?;
        match pool.salvage() {
            // Only a log that ends before a reference without its data is no damage.
            Some(found)
                if found.findings.iter().all(|f| f.code == "journal-end")
                    && found.doubts.is_empty()
                    && found.lost.is_empty() => {}
            found => return Err(format!("a salvage of a pool that opens finds {found:?}")),
        }
        let seen = shown(&pool)?;
        drop(pool);
        if self.dir.save() != before {
            return Err("a salvage has written something".into());
        }
        Ok(Some(seen))
    }

    /// Compares what the salvage showed with the pool that was just opened.
    pub(crate) fn compare_salvaged(&self, salvaged: &Shown) -> Outcome<()> {
        let Some(pool) = &self.pool else { return Ok(()) };
        let opened = shown(pool)?;
        // A salvage also shows what is in the trash, under other names.
        let in_trash =
            |info: TrashInfo| format!("{}.trash-{:08x}", info.volume.name, info.volume.uuid.as_fields().0);
        let in_trash: BTreeSet<String> = pool.trash().into_iter().map(in_trash).collect();
        let shown = |volume: &String| salvaged.0.contains_key(&(volume.clone(), None));
        let others = salvaged.0.keys().filter(|(volume, _)| !in_trash.contains(volume));
        if !opened.0.keys().eq(others) || !in_trash.iter().all(shown) {
            return Err("a salvage showed other volumes and snapshots than there are".into());
        }
        if pool.stats().repaired.total() > 0 || pool.damaged().0 > 0 {
            // A salvage shows what is in place. The pool repairs it, or finds another way to the
            // content of a moment.
            return Ok(());
        }
        for (key, pieces) in &opened.0 {
            let Some(before) = salvaged.0.get(key) else { continue };
            let differs = |(one, other): (&Piece, &Piece)| match (one, other) {
                (Some(one), Some(other)) => one != other,
                // A piece that the recovery or the salvage can't read does not count as a
                // difference.
                _ => false,
            };
            if before.len() != pieces.len() || before.iter().zip(pieces).any(differs) {
                let at = before.iter().zip(pieces).position(differs);
                return Err(format!(
                    "a salvage showed other content of {key:?} than there is, in piece {at:?}"
                ));
            }
        }
        Ok(())
    }
}
