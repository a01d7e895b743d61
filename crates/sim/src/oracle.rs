//! The oracle ([`Oracle`]): the model of what must be there. It holds the volumes in plain memory,
//! and the records since the last moment that is known to be durable.
//!
//! Every sector that a run writes names the write that it comes from. So what a crash left behind
//! can be compared with the state after every prefix of the records. One of these states must fit,
//! and its prefix must be long enough (I4).

mod content;
mod lines;
mod replay;
mod state;

pub(crate) use content::Content;
pub(crate) use state::{Effect, ImportModel, Labels, Manner, PolicyModel, Taken, View};
pub use state::{SnapId, SnapshotModel, State, VolId, VolumeModel};

use content::{Found, ZONE};
use replay::Replay;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a sector: the unit of comparison.
pub(crate) const SECTOR: u64 = 512;
/// Content that no write of the run has made.
const FOREIGN: u64 = u64::MAX;
const MAGIC: u64 = u64::from_le_bytes(*b"hindcast");

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

/// What a sector on a physical volume holds, if a write to a volume filled it: (sector of the
/// volume, stamp).
pub(crate) fn held_by(buf: &[u8]) -> Option<(u64, u64)> {
    let (stamp, sector) = (word(buf, 1), word(buf, 3));
    (word(buf, 0) == MAGIC && stamp != 0 && stamp_of(buf, sector) == stamp).then_some((sector, stamp))
}

/// Which write made the content of a sector: 0 for zeros, [`FOREIGN`] when none did. A clone shows
/// what other volumes wrote; no two writes have one number.
pub(crate) fn stamp_of(buf: &[u8], sector: u64) -> u64 {
    if *buf == [0; SECTOR as usize] {
        return 0;
    }
    let (stamp, vol) = (word(buf, 1), word(buf, 2) as VolId);
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
    policy: PolicyModel,
    import: Option<ImportModel>,
    manner: Manner,
    /// Which write each sector that was read holds.
    content: Found,
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
        let policy = PolicyModel { percent: 10, auto_delete: false };
        let content = Found::default();
        let (import, manner) = (None, Manner::default());
        FoundVolume { id, name, size, chunk_size, block_size, read_only, policy, import, manner, content }
    }

    /// With what is not everybody's.
    pub(crate) fn with(self, policy: PolicyModel, import: Option<ImportModel>, manner: Manner) -> Self {
        FoundVolume { policy, import, manner, ..self }
    }

    /// Takes in what was read at byte `offset`.
    pub(crate) fn add(&mut self, offset: u64, data: &[u8]) {
        add(&mut self.content, offset, data);
    }
}

/// A snapshot as it was found after a crash.
#[derive(Debug, Clone)]
pub(crate) struct FoundSnapshot {
    id: SnapId,
    volume: VolId,
    name: String,
    size: u64,
    origin: SnapId,
    protected: bool,
    labels: Labels,
    content: Found,
}

impl FoundSnapshot {
    /// A snapshot none of whose sectors were read yet.
    pub(crate) fn new(id: SnapId, volume: VolId, name: String, size: u64) -> Self {
        let (labels, content) = (Labels::new(), Found::default());
        FoundSnapshot { id, volume, name, size, origin: id, protected: false, labels, content }
    }

    /// With what is not everybody's.
    pub(crate) fn with(self, origin: SnapId, protected: bool, labels: Labels) -> Self {
        FoundSnapshot { origin, protected, labels, ..self }
    }

    /// Takes in what was read at byte `offset`.
    pub(crate) fn add(&mut self, offset: u64, data: &[u8]) {
        add(&mut self.content, offset, data);
    }
}

fn add(content: &mut Found, offset: u64, data: &[u8]) {
    for (sector, bytes) in (offset / SECTOR..).zip(data.chunks_exact(SECTOR as usize)) {
        content.put(sector, stamp_of(bytes, sector));
    }
}

/// All that was found after a crash.
#[derive(Debug, Clone, Default)]
pub(crate) struct FoundState {
    pub(crate) volumes: Vec<FoundVolume>,
    pub(crate) snapshots: Vec<FoundSnapshot>,
}

/// Compares what was read with what should be there; `or` accepts something else.
pub(crate) fn check_content(
    what: &str,
    content: &Content,
    offset: u64,
    data: &[u8],
    or: impl Fn(u64, u64) -> bool,
) -> Result<(), String> {
    for (sector, bytes) in (offset / SECTOR..).zip(data.chunks_exact(SECTOR as usize)) {
        let found = stamp_of(bytes, sector);
        let expected = content.get(sector);
        if found != expected && !or(sector, found) {
            return Err(format!(
                "{what} sector {sector} (byte {}): expected {}, found {}",
                sector * SECTOR,
                name_of(expected),
                describe(bytes)
            ));
        }
    }
    Ok(())
}

/// How much of what was acknowledged must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Promise {
    /// After a kill: everything.
    Acknowledged,
    /// After a power loss: what was durable.
    Durable,
}

/// The model of what must be there.
#[derive(Debug, Clone, Default)]
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
    /// The next LSN may skip some: after a torn tail the numbers of what was lost are not used
    /// again.
    may_skip: bool,
    /// Several prefixes explained what a crash left, and they differ in space: zeros that keep it
    /// look like others.
    space_doubtful: bool,
    /// Nothing is taken for certainly durable: any prefix of what follows may be what is left.
    keep_all: bool,
}

impl Oracle {
    /// With everything acknowledged.
    pub(crate) fn state(&self) -> &State {
        &self.now
    }

    /// Whether there is an operation whose outcome is unknown.
    pub(crate) fn doubtful(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Whether it is unknown how much space each volume and snapshot should have.
    pub(crate) fn doubtful_space(&self) -> bool {
        self.doubtful() || self.space_doubtful
    }

    /// Whether it is unknown if the volume exists, or how long it is.
    pub(crate) fn doubtful_volume(&self, vol: VolId) -> bool {
        self.in_flight.iter().any(|effect| match effect {
            Effect::Delete(v) | Effect::Resize(v, _) | Effect::RollBack(v, ..) => *v == vol,
            Effect::RollBackTo(all) => all.iter().any(|taken| taken.vol == vol),
            _ => false,
        })
    }

    /// Whether it is unknown if the volume's snapshots exist.
    pub(crate) fn doubtful_snapshots(&self, vol: VolId) -> bool {
        self.in_flight.iter().any(|effect| match effect {
            Effect::Delete(v) | Effect::Rename(v, _) => *v == vol,
            Effect::DeleteSnapshots(_) | Effect::RenameSnapshot(..) | Effect::Imported(..) => true,
            _ => false,
        })
    }

    /// Something is about to be tried.
    pub(crate) fn attempt(&mut self, effects: &[Effect]) {
        for effect in effects {
            if let Some((vol, sector, count)) = effect.place() {
                // Of a long range of zeros the ends tell enough.
                let (first, last) = (sector / ZONE, (sector + count - 1) / ZONE);
                let zones = self.zones.entry(vol).or_default();
                zones.extend((first..=last).take(8).chain((first..=last).rev().take(8)));
            }
            if let Effect::Create(vol, model) = effect {
                let zones = model.content.zones().map(|(zone, _)| zone);
                self.zones.entry(*vol).or_default().extend(zones);
            }
            if let Effect::Clone(vol, snap, _) = effect
                && let Some(origin) = self.now.snapshots.get(snap)
            {
                let zones = self.zones.get(&origin.volume).cloned().unwrap_or_default();
                self.zones.insert(*vol, zones);
            }
        }
        self.in_flight.extend_from_slice(effects);
    }

    /// The second volume begins with what the first one held.
    pub(crate) fn share_zones(&mut self, from: VolId, to: VolId) {
        let zones = self.zones.get(&from).cloned().unwrap_or_default();
        self.zones.insert(to, zones);
    }

    /// Whether the next record may leave LSNs out: those of records that a crash has torn off.
    pub(crate) fn may_skip(&self) -> bool {
        self.may_skip
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
        if self.keep_all {
            return;
        }
        let count = self.log.partition_point(|(at, _)| *at <= lsn);
        for (_, effect) in self.log.drain(..count) {
            self.base.apply(&effect);
        }
    }

    /// From now on nothing is taken for certainly durable (or is again): the journal's files are
    /// about to be harmed.
    pub(crate) fn keep_all(&mut self, keep: bool) {
        self.keep_all = keep;
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

    /// Compares what was read with what is acknowledged, or, if the outcome is unknown, with what
    /// was tried.
    pub(crate) fn check_read(&self, view: View, offset: u64, data: &[u8]) -> Result<(), String> {
        let Some(content) = self.now.content(view) else {
            return Err(format!("{view:?} is gone"));
        };
        check_content(
            &format!("{view:?}"),
            content,
            offset,
            data,
            |sector, found| matches!(view, View::Volume(vol) if self.tried(vol, sector, found)),
        )
    }

    fn tried(&self, vol: VolId, sector: u64, stamp: u64) -> bool {
        self.in_flight.iter().any(|effect| match effect {
            Effect::Write { vol: v, sector: s, count, stamp: t } => {
                *v == vol && (*s..s + count).contains(&sector) && stamp == *t
            }
            Effect::Zero { vol: v, sector: s, count, .. } => {
                *v == vol && (*s..s + count).contains(&sector) && stamp == 0
            }
            Effect::Resize(v, size) => *v == vol && sector * SECTOR >= *size && stamp == 0,
            Effect::Arrive { vol: v, sector: s, stamps } => {
                *v == vol && sector.checked_sub(*s).and_then(|at| stamps.get(at as usize)) == Some(&stamp)
            }
            _ => false,
        })
    }

    /// Finds the prefix of all records that explains what was found after a crash, and goes on from
    /// there. Returns how many acknowledged records were lost, and the LSN of the first one that
    /// may be.
    pub(crate) fn recover(
        &mut self,
        found: &FoundState,
        promise: Promise,
        lsn: u64,
    ) -> Result<(usize, Option<u64>), String> {
        let acknowledged = self.log.len();
        let (lsns, mut tail): (Vec<u64>, Vec<Effect>) = self.log.drain(..).unzip();
        tail.append(&mut self.in_flight);
        let least = if promise == Promise::Acknowledged { acknowledged } else { 0 };
        let mut replay = Replay::new(self.base.clone(), found);
        // Where sectors can't be read several prefixes explain what was found: then the LSN tells.
        // Of what was cut short each record took one at least.
        let told = lsns.partition_point(|at| *at <= lsn);
        let last = lsns.last().copied().unwrap_or(self.last_lsn);
        let most = acknowledged + lsn.saturating_sub(last) as usize;
        let mut fitting: Option<(usize, State)> = None;
        let mut shortest = None;
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
                let other = fitting.as_ref().is_some_and(|(_, state)| state.lines != replay.state.lines);
                self.space_doubtful |= other;
                shortest.get_or_insert(length);
                let better = fitting.as_ref().is_none_or(|(known, _)| match told == acknowledged {
                    true => length <= most,
                    false => *known != told,
                });
                if better {
                    fitting = Some((length, replay.state.clone()));
                }
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
        let first_lost = shortest.and_then(|shortest| lsns.get(shortest).copied());
        Ok((acknowledged.saturating_sub(length), first_lost))
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
