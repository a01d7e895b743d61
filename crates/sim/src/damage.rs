//! Damage to a closed pool, or to the catalog of an open one. It has to be found and named, or it
//! has to be harmless. Damaged bytes are never served as data. After a repair and more writes,
//! damage never causes space in use to be given to another volume.

use crate::disk::CrashPoint;
use crate::fate::PowerLoss;
use crate::oracle::{Promise, SECTOR, SnapId, SnapshotModel, View, VolId, check_content};
use crate::rand::Rand;
use crate::run::{Outcome, Run};
use crate::workload::Crash;
use bytes::Bytes;
use hindcast_engine::Volume;
use hindcast_engine::backup::{find, restore};
use hindcast_engine::cdp::Moment;
use hindcast_engine::check::inject::{Injury, injure};
use hindcast_engine::check::{CheckOptions, CheckReport, check};
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::disk::Dir;
use hindcast_engine::pool::{NewVolume, Pool};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Moments that are checked in a damaged pool, about.
const MOMENTS: usize = 20;
/// Name of a volume that is created in a damaged pool, to take the space that the pool calls free.
const NEWCOMER: &str = "newcomer";
/// Bytes of one write to the newcomer.
const PIECE: u64 = 64 << 10;
/// Number of writes to the newcomer, if the pool has room for all.
const PIECES: u64 = 128;
/// Background steps in a damaged pool.
const STEPS: usize = 40;
/// Number of repairs after which nothing is left to repair. The first repair may keep doubtful
/// marks that the second one removes.
const REPAIRS: usize = 2;

/// The content that can't be read any more.
#[derive(Clone, Copy)]
pub(crate) struct Lost<'a> {
    pub(crate) sectors: &'a BTreeSet<(u64, u64)>,
    /// Some volume had CDP, so content may come from moments. Moments are reconstructed chunk by
    /// chunk, so one bad sector also makes the other sectors of its chunk unreadable.
    pub(crate) by_chunk: bool,
    /// Some content may wait for destage in slots. It is verified block by block, so one bad sector
    /// also makes the other sectors of its block of 4 KiB unreadable.
    pub(crate) by_block: bool,
}

impl Lost<'_> {
    /// Returns whether content of this range became unreadable, in any state of a volume.
    pub(crate) fn touches(&self, offset: u64, len: u64) -> bool {
        let unit = if self.by_block { 4096 } else { SECTOR };
        let (start, end) = (offset / unit * unit, (offset + len).next_multiple_of(unit));
        let range = (start / SECTOR, 0)..(end / SECTOR, 0);
        if self.by_chunk { !self.sectors.is_empty() } else { self.sectors.range(range).next().is_some() }
    }
}

impl Run {
    /// Closes the pool, does damage that a repair can undo completely, repairs it, and opens the
    /// pool again. Everything must be as before.
    pub(crate) fn injure(&mut self, seed: u64) -> Outcome<()> {
        if !self.close()? {
            return self.reopen_unclean();
        }
        self.dir.crash_at(None);
        let mut rand = Rand::new(seed);
        if rand.percent(30) {
            return self.restore(&mut rand);
        }
        let mut injured = false;
        for _ in 0..rand.between(1, 3) {
            let (injury, place) = (rand.pick(&Injury::MENDED), rand.bits());
            let done = injure(&self.dir, injury, place).map_err(|e| format!("{injury:?}: {e:?}"))?;
            self.say(|| format!("{injury:?}: {done}"));
            injured |= done;
        }
        if injured && self.check(false)?.is_clean() {
            return Err("check finds nothing of the damage to marks and counts".into());
        }
        if rand.percent(30) {
            self.dir.crash_at(Some(CrashPoint::Op(self.dir.counts().ops + rand.between(1, 30))));
            let repaired = check(
                self.dyn_dir(),
                &CheckOptions { repair: true, ..CheckOptions::default() },
                &mut |_, _| {},
            );
            if self.dir.crashed() {
                self.planned = Some(Crash::random(&mut rand));
                self.end_process();
            } else {
                repaired.map_err(|e| format!("repair: {e:?}"))?;
            }
            self.dir.crash_at(None);
        }
        for _ in 0..REPAIRS {
            self.check(true)?;
        }
        self.inspect()?;
        self.open(Promise::Acknowledged)
    }

    /// Loses the catalog of the closed pool, and restores it from a backup. Nothing may be missing.
    fn restore(&mut self, rand: &mut Rand) -> Outcome<()> {
        let fail = |what: &str, e: hindcast_engine::Error| format!("{what}: {e:?}");
        let pool = Pool::open(self.dyn_dir(), self.world(), self.plan.options.clone())
            .map_err(|e| fail("open the pool to back it up", e))?;
        pool.close().map_err(|e| fail("close the pool to back it up", e))?;
        let info = pool.backup_metadata(&self.dir, 2).map_err(|e| fail("back the metadata up", e))?;
        drop(pool);
        self.dir.lose_power(rand.pick(&PowerLoss::ALL));
        let on_pv = self.pvs.iter().next().filter(|_| info.pvs > 0 && rand.percent(50)).cloned();
        let on_pv = on_pv.and_then(|pv| self.with_beginning(pv));
        let from = on_pv.or(info.file).ok_or("the backup has no place")?;
        let catalogs = self.dir.files().into_iter().filter(|(name, _)| name.starts_with("catalog.redb"));
        for (name, _) in catalogs {
            self.dir.remove(&name).map_err(|e| format!("lose {name}: {e:?}"))?;
        }
        let found = find(&self.dir, &from).map_err(|e| fail("find the backup", e))?;
        restore(&self.dir, &found).map_err(|e| fail("restore the catalog", e))?;
        self.dir.lose_power(rand.pick(&PowerLoss::ALL));
        self.inspect()?;
        self.open(Promise::Acknowledged)
    }

    fn check(&self, repair: bool) -> Outcome<CheckReport> {
        check(self.dyn_dir(), &CheckOptions { repair, ..CheckOptions::default() }, &mut |_, _| {})
            .map_err(|e| format!("check (repair: {repair}): {e:?}"))
    }

    /// Damages a cleanly closed pool, and checks what checking, opening and reading report. Then
    /// repairs it or not, and uses it. In one run of five it damages the catalog of the open pool
    /// instead. This is the end of a run: afterwards the pool may refuse anything, but it must
    /// never serve wrong data.
    pub(crate) fn damage(&mut self) -> Outcome<()> {
        if self.rand.percent(20) {
            return self.damage_catalog_in_use();
        }
        // The absence of a row has no checksum. Only a check can notice that a row is gone.
        let mut lost_rows = false;
        if self.rand.percent(40) {
            for _ in 0..self.rand.between(1, 3) {
                let fatal = self.rand.percent(40);
                let injury = if fatal { Injury::BadMapPage } else { self.rand.pick(&Injury::MENDED) };
                let place = self.rand.bits();
                let done = injure(&self.dir, injury, place).map_err(|e| format!("{injury:?}: {e:?}"))?;
                self.say(|| format!("{injury:?}: {done}"));
                lost_rows |= matches!(injury, Injury::LostExtent | Injury::LostExtentAndBitmap);
            }
        } else if !self.flip_bits() {
            return Ok(());
        }
        let report =
            check(self.dyn_dir(), &CheckOptions { repair: false, ..CheckOptions::default() }, &mut |_, _| {});
        let noticed = report.is_err() || report.is_ok_and(|r| !r.findings.is_empty());
        for _ in 0..self.rand.below(3).max(u64::from(lost_rows)) {
            let repaired = check(
                self.dyn_dir(),
                &CheckOptions { repair: true, ..CheckOptions::default() },
                &mut |_, _| {},
            );
            self.say(|| format!("repaired: {repaired:?}"));
        }
        match Pool::open(self.dyn_dir(), self.world(), self.plan.options.clone()) {
            Ok(pool) => {
                self.read_damaged(&pool, noticed)?;
                self.go_on(pool)
            }
            Err(e) => {
                self.say(|| format!("open: {e:?}"));
                Ok(())
            }
        }
    }

    /// Flips bits of the catalog again and again while the pool is open.
    fn damage_catalog_in_use(&mut self) -> Outcome<()> {
        let pool = Pool::open(self.dyn_dir(), self.world(), self.plan.options.clone());
        let pool = pool.map_err(|e| format!("open the pool: {e:?}"))?;
        for _ in 0..self.rand.between(1, 20) {
            let len = self.dir.files().iter().find(|f| f.0 == "catalog.redb").map_or(1, |f| f.1);
            let offset = self.rand.below(len);
            let bit = self.rand.below(8) as u8;
            self.dir.flip_bit("catalog.redb", offset, bit);
            self.say(|| format!("a bit flipped in the catalog at {offset}"));
            self.read_damaged(&pool, true)?;
        }
        self.go_on(pool)
    }

    /// Uses a damaged pool: writes to all space that the pool calls free, and runs background work.
    /// The pool must serve nothing wrong afterwards.
    fn go_on(&mut self, pool: Arc<Pool>) -> Outcome<()> {
        let written = self.fill_newcomer(&pool);
        for _ in 0..STEPS {
            // Damage may stop the step. Only what the pool serves counts.
            let _ = pool.maintain();
        }
        self.read_damaged(&pool, true)?;
        drop(pool);
        let Ok(pool) = Pool::open(self.dyn_dir(), self.world(), self.plan.options.clone()) else {
            return Ok(());
        };
        self.read_damaged(&pool, true)?;
        let Ok(handle) = pool.open_volume(NEWCOMER, true) else { return Ok(()) };
        let mut data = vec![0; PIECE as usize];
        for n in 0..written {
            let right = handle.read(n * PIECE, &mut data).is_err() || data == piece(n);
            if !right {
                return Err(format!("served damage: what was written to the newcomer at {}", n * PIECE));
            }
        }
        Ok(())
    }

    /// Writes to a new volume until the pool has no room. Returns the number of pieces that were
    /// acknowledged.
    fn fill_newcomer(&mut self, pool: &Arc<Pool>) -> u64 {
        let chunks: Vec<u64> = self.oracle.state().volumes.values().map(|v| v.chunk_size).collect();
        let chunk_size = if chunks.is_empty() { 4096 } else { self.rand.pick(&chunks) };
        let size = PIECES * PIECE;
        let new = NewVolume { name: NEWCOMER.into(), size, chunk_size, block_size: 512, read_only: false };
        let Ok(handle) = pool.create_volume(&new).and_then(|_| pool.open_volume(NEWCOMER, false)) else {
            return 0;
        };
        for n in 0..PIECES {
            let mut ops = [WriteOp::new(n * PIECE, Bytes::from(piece(n)))];
            handle.write(&mut ops, true);
            if ops[0].result.is_err() || pool.drain().is_err() {
                self.say(|| format!("the newcomer has {n} pieces: {:?}", ops[0].result));
                return n;
            }
        }
        PIECES
    }

    /// Flips bits in one file: of the journal, of a physical volume, of the catalog or of a
    /// history. Returns false if there is no such file.
    fn flip_bits(&mut self) -> bool {
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
            return false;
        };
        // Only the label and the stamps of a physical volume are metadata.
        let reach = if kind == 1 { 3 * 4096 } else { *len };
        let start = self.rand.below(reach);
        for _ in 0..self.rand.pick(&[1, 1, 3, 100]) {
            let offset = (start + self.rand.below(64)).min(reach - 1);
            let bit = self.rand.below(8) as u8;
            self.dir.flip_bit(name, offset, bit);
        }
        self.say(|| format!("bits flipped in {name} at {start}"));
        true
    }

    fn read_damaged(&mut self, pool: &Arc<Pool>, noticed: bool) -> Outcome<()> {
        let volumes: Vec<(VolId, String)> =
            self.oracle.state().volumes.iter().map(|(id, v)| (*id, v.name.clone())).collect();
        for (id, name) in volumes {
            match pool.open_volume(&name, true) {
                Ok(handle) => self.read_view(&handle, View::Volume(id), id, noticed)?,
                Err(_) if noticed || !self.lost.is_empty() => {}
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
                Err(_) if noticed || !self.lost.is_empty() => {}
                Err(e) => {
                    return Err(format!("check finds nothing, but snapshot {id} can't be opened: {e:?}"));
                }
            }
        }
        self.read_damaged_moments(pool, noticed)
    }

    /// Reads moments. Each must be as it was, or an error must report that it is lost.
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
                    Err(_) if noticed || !self.lost.is_empty() => {}
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
                Err(_) if noticed || !self.lost.is_empty() => {}
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

/// Returns the content of a piece of the newcomer. No write that the oracle knows has this content.
fn piece(n: u64) -> Vec<u8> {
    (0..PIECE / 8).flat_map(|word| (0xA5A5_0000_0000_0000 | n << 32 | word).to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use crate::enumerate::run_script;
    use crate::oracle::VolumeModel;
    use crate::scripts::Script;
    use crate::workload::{KIB, Op};

    /// Repairs follow damage to marks and counts, and writes then take the space that is free.
    #[test]
    fn a_pool_goes_on_after_repairs() {
        let write = |offset, len| Op::Write { vol: 1, parts: vec![(offset, len)], fua: false };
        let mut ops = vec![
            Op::Create(VolumeModel::new("a".into(), 256 * KIB, 4 * KIB, 512, false)),
            write(0, 24 * KIB),
            Op::Snapshot(vec![(1, "s".into())]),
            write(0, 8 * KIB),
            Op::Drain,
        ];
        for seed in 1..40 {
            ops.extend([Op::Injure(seed), write(seed % 28 * 8 * KIB, 12 * KIB), Op::Drain]);
        }
        let script = Script {
            name: "repair",
            atomic_unit: 4096,
            from_creation: false,
            shared_segments: false,
            references: false,
            sums: false,
            layout: None,
            spares: false,
            grows: false,
            reserve: false,
            makes_zeros: false,
            ops,
        };
        run_script(&script, None, None, None).map(drop).unwrap();
    }
}
