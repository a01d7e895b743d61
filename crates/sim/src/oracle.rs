//! The oracle ([`Oracle`]): the model of what must be there. It holds the volumes in plain memory,
//! and the records since the last moment that is known to be durable.
//!
//! Every sector that a run writes names the write that it comes from. So the run can compare what a
//! crash left with the state after every prefix of the records. One of these states must fit, and
//! its prefix must be long enough (I4).

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
/// Stamp of content that no write of the run has made.
const FOREIGN: u64 = u64::MAX;
const MAGIC: u64 = u64::from_le_bytes(*b"hindcast");

/// Fills a sector with the content that write `stamp` gives it.
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

/// Returns what a sector on a physical volume holds, if a write to a volume filled it: (sector of
/// the volume, stamp).
pub(crate) fn held_by(buf: &[u8]) -> Option<(u64, u64)> {
    let (stamp, sector) = (word(buf, 1), word(buf, 3));
    (word(buf, 0) == MAGIC && stamp != 0 && stamp_of(buf, sector) == stamp).then_some((sector, stamp))
}

/// Returns the stamp of the write that made the content of a sector. 0 stands for zeros, and
/// [`FOREIGN`] for content that no write made. The volume is not compared, because a clone shows
/// what other volumes wrote. No two writes have the same stamp.
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

/// Describes the content of a sector for a message.
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

/// A volume as the run found it after a crash.
#[derive(Debug, Clone)]
pub(crate) struct FoundVolume {
    /// Number of the volume in the run. The run knows it from the UUID. A volume with an unknown
    /// UUID has the number whose creation has no answer yet.
    pub id: VolId,
    /// Name.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Chunk size in bytes.
    pub chunk_size: u64,
    /// Block size in bytes.
    pub block_size: u32,
    /// Whether the volume refuses writes of clients.
    pub read_only: bool,
    policy: PolicyModel,
    import: Option<ImportModel>,
    manner: Manner,
    /// Labels.
    pub labels: Labels,
    /// Whether the volume is in the trash.
    pub trashed: bool,
    /// The stamp of each sector that was read.
    content: Found,
}

impl FoundVolume {
    /// Creates a volume of which no sector was read yet.
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
        let (labels, trashed) = (Labels::new(), false);
        FoundVolume {
            id,
            name,
            size,
            chunk_size,
            block_size,
            read_only,
            policy,
            import,
            manner,
            labels,
            trashed,
            content,
        }
    }

    /// Sets the properties that [`FoundVolume::new`] leaves at their defaults.
    pub(crate) fn with(self, policy: PolicyModel, import: Option<ImportModel>, manner: Manner) -> Self {
        FoundVolume { policy, import, manner, ..self }
    }

    /// Adds the data that was read at byte `offset`.
    pub(crate) fn add(&mut self, offset: u64, data: &[u8]) {
        add(&mut self.content, offset, data);
    }
}

/// A snapshot as the run found it after a crash.
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
    /// Creates a snapshot of which no sector was read yet.
    pub(crate) fn new(id: SnapId, volume: VolId, name: String, size: u64) -> Self {
        let (labels, content) = (Labels::new(), Found::default());
        FoundSnapshot { id, volume, name, size, origin: id, protected: false, labels, content }
    }

    /// Sets the properties that [`FoundSnapshot::new`] leaves at their defaults.
    pub(crate) fn with(self, origin: SnapId, protected: bool, labels: Labels) -> Self {
        FoundSnapshot { origin, protected, labels, ..self }
    }

    /// Adds the data that was read at byte `offset`.
    pub(crate) fn add(&mut self, offset: u64, data: &[u8]) {
        add(&mut self.content, offset, data);
    }
}

fn add(content: &mut Found, offset: u64, data: &[u8]) {
    for (sector, bytes) in (offset / SECTOR..).zip(data.chunks_exact(SECTOR as usize)) {
        content.put(sector, stamp_of(bytes, sector));
    }
}

/// All volumes and snapshots that the run found after a crash.
#[derive(Debug, Clone, Default)]
pub(crate) struct FoundState {
    pub(crate) volumes: Vec<FoundVolume>,
    pub(crate) snapshots: Vec<FoundSnapshot>,
}

/// Compares the data that was read at byte `offset` with the expected content. `or` can accept
/// another stamp for a sector: it gets (sector, stamp).
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

/// The part of what was acknowledged that must be there.
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
    /// The state that is certainly durable.
    base: State,
    /// The state after everything that was acknowledged.
    now: State,
    /// Effects that are acknowledged and not certainly durable, with their LSNs.
    log: Vec<(u64, Effect)>,
    /// Effects that were attempted and have no answer, or an answer that leaves the outcome
    /// unknown.
    in_flight: Vec<Effect>,
    /// Zones that were ever written, or that a write was attempted to.
    zones: BTreeMap<VolId, BTreeSet<u64>>,
    last_lsn: u64,
    /// The next LSN may skip some numbers: after a torn tail the pool does not use the LSNs of lost
    /// records again.
    may_skip: bool,
    /// Several prefixes explained what a crash left, and they differ in the space that they need.
    /// Zeros that keep their space look like zeros without space.
    space_doubtful: bool,
    /// Nothing is taken as certainly durable. What is left may be any prefix of the records that
    /// follow.
    keep_all: bool,
}

impl Oracle {
    /// Returns the state after everything that was acknowledged.
    pub(crate) fn state(&self) -> &State {
        &self.now
    }

    /// Returns whether there is an operation whose outcome is unknown.
    pub(crate) fn doubtful(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Returns whether the space that each volume and snapshot should have is unknown.
    pub(crate) fn doubtful_space(&self) -> bool {
        self.doubtful() || self.space_doubtful
    }

    /// Returns whether it is unknown if the volume exists, how long it is, or whether it was rolled
    /// back.
    pub(crate) fn doubtful_volume(&self, vol: VolId) -> bool {
        self.in_flight.iter().any(|effect| match effect {
            Effect::Delete(v) | Effect::Trash(v, _) | Effect::Resize(v, _) | Effect::RollBack(v, ..) => {
                *v == vol
            }
            Effect::RollBackTo(all) => all.iter().any(|taken| taken.vol == vol),
            _ => false,
        })
    }

    /// Returns whether it is unknown if the volume's snapshots exist.
    pub(crate) fn doubtful_snapshots(&self, vol: VolId) -> bool {
        self.in_flight.iter().any(|effect| match effect {
            Effect::Delete(v) | Effect::Trash(v, _) | Effect::Rename(v, _) => *v == vol,
            Effect::DeleteSnapshots(_) | Effect::RenameSnapshot(..) | Effect::Imported(..) => true,
            Effect::KeepMoment(kept) => kept.vol == vol,
            _ => false,
        })
    }

    /// Notes effects that the run is about to attempt.
    pub(crate) fn attempt(&mut self, effects: &[Effect]) {
        for effect in effects {
            if let Some((vol, sector, count)) = effect.place() {
                // In a long range of zeros, it is enough to read the zones at both ends.
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

    /// Copies the zones of `from` to `to`, which begins with the content of `from`.
    pub(crate) fn share_zones(&mut self, from: VolId, to: VolId) {
        let zones = self.zones.get(&from).cloned().unwrap_or_default();
        self.zones.insert(to, zones);
    }

    /// Returns whether the next record may skip LSNs: those of records that a crash has torn off.
    pub(crate) fn may_skip(&self) -> bool {
        self.may_skip
    }

    /// Returns the last LSN that the run knows of.
    pub(crate) fn last_lsn(&self) -> u64 {
        self.last_lsn
    }

    /// Notes that the last `count` attempted effects were refused and have changed nothing.
    pub(crate) fn retract(&mut self, count: usize, lsn: u64) -> Result<(), String> {
        if lsn != self.last_lsn {
            return Err(format!("refused, but the LSN went from {} to {lsn}", self.last_lsn));
        }
        self.forget(count);
        Ok(())
    }

    /// Removes the last `count` attempted effects, which are to be attempted anew.
    pub(crate) fn forget(&mut self, count: usize) {
        self.in_flight.truncate(self.in_flight.len().saturating_sub(count));
    }

    /// Notes that the last attempted effects have succeeded. `lsn` is the last LSN of the pool now.
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

    /// Notes that the pool sequenced records by itself. `lsn` is the last LSN of the pool now.
    pub(crate) fn observe(&mut self, lsn: u64) {
        self.may_skip &= lsn == self.last_lsn;
        self.last_lsn = self.last_lsn.max(lsn);
    }

    /// Notes that everything up to `lsn` is durable.
    pub(crate) fn durable(&mut self, lsn: u64) {
        if self.keep_all {
            return;
        }
        let count = self.log.partition_point(|(at, _)| *at <= lsn);
        for (_, effect) in self.log.drain(..count) {
            self.base.apply(&effect);
        }
    }

    /// From now on nothing is taken as certainly durable (`keep`), or this ends. The run uses it
    /// before it harms the files of the journal.
    pub(crate) fn keep_all(&mut self, keep: bool) {
        self.keep_all = keep;
    }

    /// Notes that everything acknowledged is durable.
    pub(crate) fn all_durable(&mut self) {
        self.durable(u64::MAX);
    }

    /// Returns the byte ranges of a volume that are worth reading: (offset, length).
    pub(crate) fn interesting(&self, vol: VolId, size: u64) -> Vec<(u64, u64)> {
        let zones = self.zones.get(&vol).into_iter().flatten();
        let ranges = zones.map(|zone| {
            (zone * ZONE * SECTOR, (ZONE * SECTOR).min(size.saturating_sub(zone * ZONE * SECTOR)))
        });
        ranges.filter(|(_, len)| *len > 0).collect()
    }

    /// Compares the data that was read with what is acknowledged. If the outcome of an effect is
    /// unknown, what was attempted is accepted too.
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

    /// Finds the prefix of all records that explains what was found after a crash, and continues
    /// from that state. `lsn` is the last LSN of the pool. Returns the number of acknowledged
    /// records that were lost, and the LSN of the first one that may be lost.
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
        // If sectors can't be read, several prefixes can explain what was found. Then the last LSN
        // of the pool decides. Each record of an interrupted operation used at least one LSN.
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
