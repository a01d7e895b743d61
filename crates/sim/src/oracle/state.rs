//! All volumes and snapshots at one moment ([`State`]), and how each record changes them.

use super::content::Content;
use super::lines::Lines;
use super::{FoundVolume, SECTOR};
use hindcast_engine::cdp::CdpSettings;
use hindcast_engine::pool::{Method, Order};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A volume's number inside a run, never used twice.
pub type VolId = u32;
/// A snapshot's number inside a run, never used twice.
pub type SnapId = u32;

/// Notes about a snapshot.
pub(crate) type Labels = BTreeMap<String, String>;

/// What a volume's snapshots may take, in per cent of its size, and whether the oldest are deleted
/// when they take more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PolicyModel {
    pub(crate) percent: u8,
    pub(crate) auto_delete: bool,
}

/// A stream that is being taken in: contents, by the first snapshots that had them, and how far it
/// is known to have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImportModel {
    pub(crate) from: Option<SnapId>,
    pub(crate) to: SnapId,
    pub(crate) position: u64,
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
    /// Which write each sector holds.
    pub(crate) content: Content,
    /// The line that it writes to.
    pub(crate) line: u32,
    /// It began over an image, of which it shows so many bytes.
    pub(crate) over_image: Option<u64>,
    pub(crate) policy: PolicyModel,
    pub(crate) import: Option<ImportModel>,
    pub(crate) manner: Manner,
}

/// How a volume's past is kept, as far as it was configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Manner {
    pub(crate) method: Option<Method>,
    pub(crate) order: Option<Order>,
    pub(crate) cdp: Option<Option<CdpSettings>>,
}

impl Manner {
    fn take(&mut self, said: &Manner) {
        self.method = said.method.or(self.method);
        self.order = said.order.or(self.order);
        self.cdp = said.cdp.or(self.cdp);
    }

    fn agrees(&self, found: &Manner) -> bool {
        let mut both = *found;
        both.take(self);
        both == *found
    }
}

/// A snapshot as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotModel {
    /// The volume it belongs to.
    pub volume: VolId,
    /// Name, unique among the volume's.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Chunk size in bytes.
    pub chunk_size: u64,
    /// Block size in bytes.
    pub block_size: u32,
    /// Which write each sector holds.
    pub(crate) content: Content,
    /// The line and the epoch that it froze.
    pub(crate) of: (u32, u32),
    /// The first snapshot with this content: itself, or the one that a stream was made of.
    pub(crate) origin: SnapId,
    pub(crate) protected: bool,
    pub(crate) labels: Labels,
}

/// A device that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum View {
    Volume(VolId),
    Snapshot(SnapId),
}

impl VolumeModel {
    /// An empty volume.
    pub fn new(name: String, size: u64, chunk_size: u64, block_size: u32, read_only: bool) -> Self {
        let content = Content::default();
        let policy = PolicyModel { percent: 10, auto_delete: false };
        VolumeModel {
            name,
            size,
            chunk_size,
            block_size,
            read_only,
            content,
            line: 0,
            policy,
            import: None,
            over_image: None,
            manner: Manner::default(),
        }
    }

    /// Whether requests may not write to it: it is read-only, or only an import may write.
    pub(crate) fn refuses_writes(&self) -> bool {
        self.read_only || self.import.is_some()
    }

    pub(super) fn same_shape(&self, found: &FoundVolume) -> bool {
        (&self.name, self.size, self.chunk_size, self.block_size, self.read_only)
            == (&found.name, found.size, found.chunk_size, found.block_size, found.read_only)
            && (self.policy, self.import) == (found.policy, found.import)
            && self.manner.agrees(&found.manner)
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
        /// Space is freed.
        unmap: bool,
    },
    /// A new volume.
    Create(VolId, VolumeModel),
    /// A volume goes, and its snapshots.
    Delete(VolId),
    /// A new size; what lies past it is forgotten.
    Resize(VolId, u64),
    /// A new name.
    Rename(VolId, String),
    /// Another access.
    ReadOnly(VolId, bool),
    /// Snapshots at one instant.
    CreateSnapshots(Vec<(SnapId, VolId, String)>),
    /// Snapshots go.
    DeleteSnapshots(Vec<SnapId>),
    /// A snapshot's new name.
    RenameSnapshot(SnapId, String),
    /// A new volume with a snapshot's content.
    Clone(VolId, SnapId, String),
    /// A volume gets a snapshot's content; what it was is kept as a snapshot (number, name).
    RollBack(VolId, SnapId, SnapId, String),
    /// Volumes get the content and the size of a moment, all at once.
    RollBackTo(Vec<Taken>),
    /// Another way to keep its past.
    Manner(VolId, Manner),
    /// A snapshot's protection and labels.
    Labels(SnapId, bool, Labels),
    /// What a volume's snapshots may take.
    Policy(VolId, PolicyModel),
    /// An import begins, has come to a position, or is given up.
    Import(VolId, Option<ImportModel>),
    /// Data that a stream has brought: the writes that it comes from, sector by sector.
    Arrive {
        /// Where.
        vol: VolId,
        /// First sector.
        sector: u64,
        /// Of each sector.
        stamps: Arc<[u64]>,
    },
    /// A stream has arrived: (number, volume, name, first snapshot with its content).
    Imported(SnapId, VolId, String, SnapId),
}

/// A volume that is taken back to a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) vol: VolId,
    /// What it held then, and its size.
    pub(crate) content: Content,
    pub(crate) size: u64,
    /// The snapshot that keeps what it was.
    pub(crate) undo: SnapId,
    pub(crate) name: String,
}

impl Effect {
    /// The sectors that it writes to: (volume, first, number).
    pub(crate) fn place(&self) -> Option<(VolId, u64, u64)> {
        match self {
            Effect::Write { vol, sector, count, .. } | Effect::Zero { vol, sector, count, .. } => {
                Some((*vol, *sector, *count))
            }
            Effect::Arrive { vol, sector, stamps } => Some((*vol, *sector, stamps.len() as u64)),
            _ => None,
        }
    }
}

/// All volumes at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// By number.
    pub volumes: BTreeMap<VolId, VolumeModel>,
    /// By number.
    pub snapshots: BTreeMap<SnapId, SnapshotModel>,
    pub(crate) lines: Lines,
}

impl State {
    /// The snapshots of a volume, oldest first.
    pub fn snapshots_of(&self, vol: VolId) -> impl Iterator<Item = (SnapId, &SnapshotModel)> {
        self.snapshots.iter().filter(move |(_, s)| s.volume == vol).map(|(id, s)| (*id, s))
    }

    /// Is there a snapshot of that name?
    pub fn has_snapshot(&self, vol: VolId, name: &str) -> bool {
        self.snapshots_of(vol).any(|(_, s)| s.name == name)
    }

    pub(crate) fn content(&self, view: View) -> Option<&Content> {
        match view {
            View::Volume(vol) => self.volumes.get(&vol).map(|v| &v.content),
            View::Snapshot(snap) => self.snapshots.get(&snap).map(|s| &s.content),
        }
    }

    pub(super) fn apply(&mut self, effect: &Effect) {
        match effect {
            Effect::Write { vol, sector, count, stamp } => {
                let Some(volume) = self.volumes.get_mut(vol) else { return };
                volume.content.set(*sector, sector + count, *stamp);
                self.lines.write(volume.line, sector * SECTOR, (sector + count) * SECTOR);
            }
            Effect::Zero { vol, sector, count, unmap } => {
                let Some(volume) = self.volumes.get_mut(vol) else { return };
                volume.content.set(*sector, sector + count, 0);
                let (start, end) = (sector * SECTOR, (sector + count) * SECTOR);
                if *unmap {
                    self.lines.discard(volume.line, start, end);
                } else {
                    self.lines.write(volume.line, start, end);
                }
            }
            Effect::Create(vol, model) => {
                let line = self.lines.begin(None, model.chunk_size);
                if let Some(shown) = model.over_image {
                    self.lines.put_over_image(line, shown);
                }
                self.volumes.insert(*vol, VolumeModel { line, ..model.clone() });
            }
            Effect::Delete(vol) => {
                if let Some(volume) = self.volumes.remove(vol) {
                    self.lines.leave(volume.line);
                }
                self.remove_snapshots(|_, s| s.volume == *vol);
            }
            Effect::Resize(vol, size) => {
                let Some(volume) = self.volumes.get_mut(vol) else { return };
                if *size < volume.size {
                    let end = volume.size.next_multiple_of(volume.chunk_size);
                    volume.content.set(size / SECTOR, u64::MAX / SECTOR, 0);
                    self.lines.discard(volume.line, *size, end);
                } else if self.lines.over_image(volume.line) && !size.is_multiple_of(volume.chunk_size) {
                    // By force it may be brought in, in case that the volume has grown meanwhile.
                    self.lines.write(volume.line, *size, size + 1);
                }
                volume.size = *size;
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
            Effect::Policy(..) | Effect::Import(..) | Effect::Arrive { .. } => self.apply_to_volume(effect),
            of_snapshots => self.apply_to_snapshots(of_snapshots),
        }
    }

    fn apply_to_snapshots(&mut self, effect: &Effect) {
        match effect {
            Effect::CreateSnapshots(wanted) => {
                wanted.iter().for_each(|(snap, vol, name)| self.freeze(*snap, *vol, name));
            }
            Effect::DeleteSnapshots(gone) => self.remove_snapshots(|id, _| gone.contains(&id)),
            Effect::RenameSnapshot(snap, name) => {
                if let Some(snapshot) = self.snapshots.get_mut(snap) {
                    snapshot.name.clone_from(name);
                }
            }
            Effect::Clone(vol, snap, name) => {
                let Some(origin) = self.snapshots.get(snap) else { return };
                let line = self.lines.begin(Some(origin.of), origin.chunk_size);
                let content = origin.content.clone();
                let new =
                    VolumeModel::new(name.clone(), origin.size, origin.chunk_size, origin.block_size, false);
                self.volumes.insert(*vol, VolumeModel { content, line, ..new });
            }
            Effect::RollBack(vol, snap, undo, name) => self.roll_back(*vol, *snap, *undo, name),
            Effect::RollBackTo(all) => all.iter().for_each(|taken| self.take_back(taken)),
            Effect::Labels(snap, protected, labels) => {
                if let Some(snapshot) = self.snapshots.get_mut(snap) {
                    snapshot.protected = *protected;
                    snapshot.labels.clone_from(labels);
                }
            }
            Effect::Imported(snap, vol, name, origin) => {
                self.freeze(*snap, *vol, name);
                if let Some(snapshot) = self.snapshots.get_mut(snap) {
                    snapshot.origin = *origin;
                }
                if let Some(volume) = self.volumes.get_mut(vol) {
                    volume.import = None;
                }
            }
            _ => {}
        }
    }

    fn apply_to_volume(&mut self, effect: &Effect) {
        let (Effect::Policy(vol, _)
        | Effect::Import(vol, _)
        | Effect::Manner(vol, _)
        | Effect::Arrive { vol, .. }) = effect
        else {
            return;
        };
        let Some(volume) = self.volumes.get_mut(vol) else { return };
        match effect {
            Effect::Policy(_, policy) => volume.policy = *policy,
            Effect::Import(_, import) => volume.import = *import,
            Effect::Manner(_, said) => volume.manner.take(said),
            Effect::Arrive { sector, stamps, .. } => {
                for (at, stamp) in (*sector..).zip(stamps.iter()) {
                    volume.content.set(at, at + 1, *stamp);
                }
                self.lines.write(volume.line, sector * SECTOR, (sector + stamps.len() as u64) * SECTOR);
            }
            _ => {}
        }
    }

    fn freeze(&mut self, snap: SnapId, vol: VolId, name: &str) {
        let Some(volume) = self.volumes.get(&vol) else { return };
        let snapshot = SnapshotModel {
            volume: vol,
            name: name.into(),
            size: volume.size,
            chunk_size: volume.chunk_size,
            block_size: volume.block_size,
            content: volume.content.clone(),
            of: (volume.line, self.lines.freeze(volume.line)),
            origin: snap,
            protected: false,
            labels: Labels::new(),
        };
        self.snapshots.insert(snap, snapshot);
    }

    fn roll_back(&mut self, vol: VolId, snap: SnapId, undo: SnapId, name: &str) {
        self.freeze(undo, vol, name);
        let (Some(volume), Some(target)) = (self.volumes.get_mut(&vol), self.snapshots.get(&snap)) else {
            return;
        };
        self.lines.leave(volume.line);
        volume.line = self.lines.begin(Some(target.of), target.chunk_size);
        volume.size = target.size;
        volume.import = None;
        volume.content = target.content.clone();
    }

    fn take_back(&mut self, taken: &Taken) {
        self.freeze(taken.undo, taken.vol, &taken.name);
        let Some(volume) = self.volumes.get_mut(&taken.vol) else { return };
        self.lines.leave(volume.line);
        volume.line = self.lines.begin_over_image(volume.chunk_size);
        self.lines.put_over_image(volume.line, taken.size);
        (volume.size, volume.content, volume.import) = (taken.size, taken.content.clone(), None);
    }

    fn remove_snapshots(&mut self, gone: impl Fn(SnapId, &SnapshotModel) -> bool) {
        let lines = &mut self.lines;
        self.snapshots.retain(|id, snapshot| {
            let stays = !gone(*id, snapshot);
            if !stays {
                lines.let_go(snapshot.of);
            }
            stays
        });
        self.lines.collect();
    }
}
