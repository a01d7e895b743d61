//! What must be there: volumes in plain memory, and the records since the last moment known to be durable.
//!
//! Every sector that a run writes says which write it comes from, so what a crash left behind can be compared with the
//! state after every prefix of the records. One must fit, and it must be long enough (I4).

mod replay;

use replay::Replay;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a sector: the unit of comparison.
pub(crate) const SECTOR: u64 = 512;
/// Sectors that are verified together.
const ZONE: u64 = 128;
/// Content that no write of the run has made.
const FOREIGN: u64 = u64::MAX;
const MAGIC: u64 = u64::from_le_bytes(*b"hindcast");

/// A volume's number inside a run, never used twice.
pub type VolId = u32;

/// Fills a sector with what write `stamp` puts there.
pub(crate) fn fill_sector(buf: &mut [u8], vol: VolId, sector: u64, stamp: u64) {
    let mut word = stamp.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ sector.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    word ^= u64::from(vol) << 32;
    for (i, part) in buf.chunks_exact_mut(8).enumerate() {
        let value = match i {
            0 => MAGIC,
            1 => stamp,
            2 => u64::from(vol),
            3 => sector,
            _ => {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                word
            }
        };
        part.copy_from_slice(&value.to_le_bytes());
    }
}

/// Which write made the content of a sector: 0 for zeros, [`FOREIGN`] when none did.
fn stamp_of(buf: &[u8], vol: VolId, sector: u64) -> u64 {
    if buf.iter().all(|b| *b == 0) {
        return 0;
    }
    let stamp = word(buf, 1);
    let mut expected = [0; SECTOR as usize];
    fill_sector(&mut expected, vol, sector, stamp);
    if buf == expected && stamp != 0 { stamp } else { FOREIGN }
}

fn word(buf: &[u8], index: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&buf[index * 8..index * 8 + 8]);
    u64::from_le_bytes(bytes)
}

/// Tells what a sector holds, for people.
pub(crate) fn describe(buf: &[u8]) -> String {
    if buf.iter().all(|b| *b == 0) {
        return "zeros".into();
    }
    if word(buf, 0) != MAGIC {
        return format!("{:02x?}…", &buf[..16]);
    }
    let (stamp, vol, sector) = (word(buf, 1), word(buf, 2), word(buf, 3));
    let mut expected = [0; SECTOR as usize];
    fill_sector(&mut expected, vol as VolId, sector, stamp);
    let damage = if buf == expected { "" } else { ", damaged" };
    format!("write {stamp} of volume {vol} sector {sector}{damage}")
}

/// A volume as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeModel {
    /// Name.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Chunk size in bytes.
    pub chunk_size: u64,
    /// Block size in bytes.
    pub block_size: u32,
    /// Refuses writes.
    pub read_only: bool,
    /// Which write each sector holds; absent: zeros.
    sectors: BTreeMap<u64, u64>,
}

impl VolumeModel {
    /// An empty volume.
    pub fn new(name: String, size: u64, chunk_size: u64, block_size: u32, read_only: bool) -> Self {
        VolumeModel { name, size, chunk_size, block_size, read_only, sectors: BTreeMap::new() }
    }

    /// Which write a sector holds; 0: none, zeros.
    pub(crate) fn sector(&self, sector: u64) -> u64 {
        self.sectors.get(&sector).copied().unwrap_or(0)
    }

    /// The first sector in a range of bytes that is not zeros.
    pub(crate) fn first_written(&self, offset: u64, len: u64) -> Option<u64> {
        self.sectors.range(offset / SECTOR..(offset + len) / SECTOR).next().map(|(sector, _)| *sector)
    }

    fn same_shape(&self, found: &FoundVolume) -> bool {
        (&self.name, self.size, self.chunk_size, self.block_size, self.read_only)
            == (&found.name, found.size, found.chunk_size, found.block_size, found.read_only)
    }
}

/// What one journal record does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// New data.
    Write {
        /// Where.
        vol: VolId,
        /// First sector.
        sector: u64,
        /// Number of sectors.
        count: u64,
        /// The write's number.
        stamp: u64,
    },
    /// Zeros, by any command.
    Zero {
        /// Where.
        vol: VolId,
        /// First sector.
        sector: u64,
        /// Number of sectors.
        count: u64,
    },
    /// A new volume.
    Create(VolId, VolumeModel),
    /// A volume goes.
    Delete(VolId),
    /// A new size; what lies past it is forgotten.
    Resize(VolId, u64),
    /// A new name.
    Rename(VolId, String),
    /// Another access.
    ReadOnly(VolId, bool),
}

/// All volumes at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// By number.
    pub volumes: BTreeMap<VolId, VolumeModel>,
}

impl State {
    fn apply(&mut self, effect: &Effect) {
        match effect {
            Effect::Write { vol, sector, count, stamp } => {
                if let Some(volume) = self.volumes.get_mut(vol) {
                    volume.sectors.extend((*sector..sector + count).map(|s| (s, *stamp)));
                }
            }
            Effect::Zero { vol, sector, count } => {
                if let Some(volume) = self.volumes.get_mut(vol) {
                    let gone: Vec<u64> =
                        volume.sectors.range(*sector..sector + count).map(|s| *s.0).collect();
                    for sector in gone {
                        volume.sectors.remove(&sector);
                    }
                }
            }
            Effect::Create(vol, model) => drop(self.volumes.insert(*vol, model.clone())),
            Effect::Delete(vol) => drop(self.volumes.remove(vol)),
            Effect::Resize(vol, size) => {
                if let Some(volume) = self.volumes.get_mut(vol) {
                    volume.size = *size;
                    volume.sectors.split_off(&(size / SECTOR));
                }
            }
            Effect::Rename(vol, name) => {
                if let Some(volume) = self.volumes.get_mut(vol) {
                    volume.name.clone_from(name);
                }
            }
            Effect::ReadOnly(vol, on) => {
                if let Some(volume) = self.volumes.get_mut(vol) {
                    volume.read_only = *on;
                }
            }
        }
    }
}

/// A volume as it was found after a crash.
#[derive(Debug, Clone)]
pub(crate) struct FoundVolume {
    /// Number, from the name that the run gave it.
    pub id: VolId,
    /// Name.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Chunk size in bytes.
    pub chunk_size: u64,
    /// Block size in bytes.
    pub block_size: u32,
    /// Refuses writes.
    pub read_only: bool,
    /// Content of the sectors that were read, as stamps.
    sectors: BTreeMap<u64, u64>,
}

impl FoundVolume {
    /// A volume none of whose sectors were read yet.
    pub(crate) fn new(
        id: VolId,
        name: String,
        size: u64,
        chunk_size: u64,
        block_size: u32,
        read_only: bool,
    ) -> Self {
        FoundVolume { id, name, size, chunk_size, block_size, read_only, sectors: BTreeMap::new() }
    }

    /// Takes in what was read at byte `offset`.
    pub(crate) fn add(&mut self, offset: u64, data: &[u8]) {
        for (sector, bytes) in (offset / SECTOR..).zip(data.chunks_exact(SECTOR as usize)) {
            self.sectors.insert(sector, stamp_of(bytes, self.id, sector));
        }
    }
}

/// How much of what was acknowledged must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Promise {
    /// After a kill: everything.
    Acknowledged,
    /// After a power loss: what was durable.
    Durable,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    /// Certainly durable.
    base: State,
    /// With everything acknowledged.
    now: State,
    /// What is acknowledged and not certainly durable, with its LSN.
    log: Vec<(u64, Effect)>,
    /// What was tried and has no answer, or a doubtful one.
    in_flight: Vec<Effect>,
    /// Zones that were ever written or tried.
    zones: BTreeMap<VolId, BTreeSet<u64>>,
    last_lsn: u64,
    /// The next LSN may skip some: after a torn tail the numbers of what was lost are not used again.
    may_skip: bool,
}

impl Oracle {
    /// With everything acknowledged.
    pub(crate) fn state(&self) -> &State {
        &self.now
    }

    /// Is there something that nobody knows the outcome of?
    pub(crate) fn doubtful(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Does nobody know whether the volume is there, or how long it is?
    pub(crate) fn doubtful_volume(&self, vol: VolId) -> bool {
        self.in_flight
            .iter()
            .any(|effect| matches!(effect, Effect::Delete(v) | Effect::Resize(v, _) if *v == vol))
    }

    /// Something is about to be tried.
    pub(crate) fn attempt(&mut self, effects: &[Effect]) {
        for effect in effects {
            if let Effect::Write { vol, sector, count, .. } | Effect::Zero { vol, sector, count } = effect {
                // Of a long range of zeros the ends tell enough.
                let (first, last) = (sector / ZONE, (sector + count - 1) / ZONE);
                let zones = self.zones.entry(*vol).or_default();
                zones.extend((first..=last).take(8).chain((first..=last).rev().take(8)));
            }
        }
        self.in_flight.extend_from_slice(effects);
    }

    /// The last LSN that the run knows of.
    pub(crate) fn last_lsn(&self) -> u64 {
        self.last_lsn
    }

    /// The last `count` effects tried were refused, and nothing has come of them.
    pub(crate) fn retract(&mut self, count: usize, lsn: u64) -> Result<(), String> {
        if lsn != self.last_lsn {
            return Err(format!("refused, but the LSN went from {} to {lsn}", self.last_lsn));
        }
        self.forget(count);
        Ok(())
    }

    /// The last `count` effects tried are to be tried anew.
    pub(crate) fn forget(&mut self, count: usize) {
        self.in_flight.truncate(self.in_flight.len().saturating_sub(count));
    }

    /// What was tried last has succeeded; the pool's last LSN is `lsn` now.
    pub(crate) fn acknowledge(&mut self, effects: &[Effect], lsn: u64) -> Result<(), String> {
        let sequenced = lsn.saturating_sub(self.last_lsn);
        let count = effects.len() as u64;
        let skipped = self.may_skip && count > 0 && sequenced > count;
        if sequenced != count && !skipped {
            return Err(format!(
                "the LSN went from {} to {lsn}, but {count} records were expected: {effects:?}",
                self.last_lsn
            ));
        }
        if effects.is_empty() {
            return Ok(());
        }
        if self.in_flight.len() != effects.len() {
            return Err("acknowledged after something whose outcome nobody knows".into());
        }
        self.in_flight.clear();
        self.last_lsn = lsn - count;
        self.may_skip = false;
        for effect in effects {
            self.last_lsn += 1;
            self.now.apply(effect);
            self.log.push((self.last_lsn, effect.clone()));
        }
        Ok(())
    }

    /// The pool sequenced records of its own.
    pub(crate) fn observe(&mut self, lsn: u64) {
        self.may_skip &= lsn == self.last_lsn;
        self.last_lsn = self.last_lsn.max(lsn);
    }

    /// Everything up to `lsn` is durable.
    pub(crate) fn durable(&mut self, lsn: u64) {
        let count = self.log.partition_point(|(at, _)| *at <= lsn);
        for (_, effect) in self.log.drain(..count) {
            self.base.apply(&effect);
        }
    }

    /// Everything acknowledged is durable.
    pub(crate) fn all_durable(&mut self) {
        self.durable(u64::MAX);
    }

    /// Byte ranges of a volume that are worth reading.
    pub(crate) fn interesting(&self, vol: VolId, size: u64) -> Vec<(u64, u64)> {
        let zones = self.zones.get(&vol).into_iter().flatten();
        let ranges = zones.map(|zone| {
            (zone * ZONE * SECTOR, (ZONE * SECTOR).min(size.saturating_sub(zone * ZONE * SECTOR)))
        });
        ranges.filter(|(_, len)| *len > 0).collect()
    }

    /// Compares what was read with what is acknowledged (or, where nobody knows, tried).
    pub(crate) fn check_read(&self, vol: VolId, offset: u64, data: &[u8]) -> Result<(), String> {
        let Some(volume) = self.now.volumes.get(&vol) else {
            return Err(format!("volume {vol} is gone"));
        };
        for (sector, bytes) in (offset / SECTOR..).zip(data.chunks_exact(SECTOR as usize)) {
            let found = stamp_of(bytes, vol, sector);
            let expected = volume.sector(sector);
            if found != expected && !self.tried(vol, sector, found) {
                return Err(format!(
                    "volume {vol} sector {sector} (byte {}): expected {}, found {}",
                    sector * SECTOR,
                    name_of(expected),
                    describe(bytes)
                ));
            }
        }
        Ok(())
    }

    fn tried(&self, vol: VolId, sector: u64, stamp: u64) -> bool {
        self.in_flight.iter().any(|effect| match effect {
            Effect::Write { vol: v, sector: s, count, stamp: t } => {
                *v == vol && (*s..s + count).contains(&sector) && stamp == *t
            }
            Effect::Zero { vol: v, sector: s, count } => {
                *v == vol && (*s..s + count).contains(&sector) && stamp == 0
            }
            Effect::Resize(v, size) => *v == vol && sector * SECTOR >= *size && stamp == 0,
            _ => false,
        })
    }

    /// Finds the prefix of all records that explains what was found after a crash, and goes on from there. Returns how
    /// many acknowledged records were lost.
    pub(crate) fn recover(
        &mut self,
        found: &[FoundVolume],
        promise: Promise,
        lsn: u64,
    ) -> Result<usize, String> {
        let acknowledged = self.log.len();
        let tail: Vec<Effect> =
            self.log.drain(..).map(|(_, effect)| effect).chain(self.in_flight.drain(..)).collect();
        let least = if promise == Promise::Acknowledged { acknowledged } else { 0 };
        let mut replay = Replay::new(self.base.clone(), found);
        let mut fitting: Option<(usize, State)> = None;
        let mut best = (i64::MAX, 0, String::new());
        for length in 0..=tail.len() {
            if length > 0 {
                replay.apply(&tail[length - 1]);
            }
            if length < least {
                continue;
            }
            let wrong = replay.wrong();
            if wrong == 0 {
                fitting = Some((length, replay.state.clone()));
            } else if wrong <= best.0 {
                best = (wrong, length, replay.explain());
            }
        }
        let Some((length, state)) = fitting else {
            return Err(format!(
                "nothing explains what the crash left ({promise:?} promised, {acknowledged} records acknowledged since \
                 the last durable one, {} tried): the closest are the first {}, wrong in {} places: {}",
                tail.len() - acknowledged,
                best.1,
                best.0,
                best.2
            ));
        };
        self.now = state.clone();
        self.base = state;
        self.last_lsn = lsn;
        self.may_skip = true;
        Ok(acknowledged.saturating_sub(length))
    }
}

fn name_of(stamp: u64) -> String {
    match stamp {
        0 => "zeros".into(),
        FOREIGN => "what no write made".into(),
        stamp => format!("write {stamp}"),
    }
}

#[cfg(test)]
mod tests;
