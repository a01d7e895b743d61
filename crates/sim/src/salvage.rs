//! A salvage before a recovery. It shows the pool from memory and writes nothing. What it shows
//! must be what the recovery then leads to.

use crate::run::{Outcome, Run};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::pool::Pool;
use hindcast_engine::salvage::SalvageOptions;
use hindcast_engine::world::{SplitMix, World};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Of one in so many openings that follow a crash.
const SELDOM: u64 = 8;
/// Bytes of one read.
const PIECE: u64 = 64 << 10;
/// Of each device so much is read.
const MOST: u64 = 8 << 20;

/// What devices show, piece by piece; `None` where a piece can't be read.
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
    /// Now and then shows what is there before it is recovered.
    pub(crate) fn salvaged(&self) -> Outcome<Option<Shown>> {
        // The run's own chance stays as it is.
        if self.rand.clone().fork().below(SELDOM) != 0 {
            return Ok(None);
        }
        let before = self.dir.save();
        let world = World { clock: self.world().clock, rng: Arc::new(SplitMix::new(1)) };
        let options = SalvageOptions { pool: self.plan.options.clone(), ..SalvageOptions::default() };
        let pool = Pool::open_salvage(self.dyn_dir(), world, options);
        let pool = pool.map_err(|e| format!("open for salvage: {e:?}"))?;
        match pool.salvage() {
            Some(found) if found.is_clean() => {}
            found => return Err(format!("a salvage of a pool that opens finds {found:?}")),
        }
        let seen = shown(&pool)?;
        drop(pool);
        if self.dir.save() != before {
            return Err("a salvage has written something".into());
        }
        Ok(Some(seen))
    }

    /// Holds it against the pool that has just been opened.
    pub(crate) fn compare_salvaged(&self, salvaged: &Shown) -> Outcome<()> {
        let Some(pool) = &self.pool else { return Ok(()) };
        let opened = shown(pool)?;
        if !opened.0.keys().eq(salvaged.0.keys()) {
            return Err("a salvage showed other volumes and snapshots than there are".into());
        }
        for (key, pieces) in &opened.0 {
            let Some(before) = salvaged.0.get(key) else { continue };
            let differs = |(one, other): (&Piece, &Piece)| match (one, other) {
                (Some(one), Some(other)) => one != other,
                // What a recovery can't read a salvage may not either.
                _ => false,
            };
            if before.len() != pieces.len() || before.iter().zip(pieces).any(differs) {
                return Err(format!("a salvage showed other content of {key:?} than there is"));
            }
        }
        Ok(())
    }
}
