//! All volumes and snapshots at one moment ([`State`]), and the changes that each record makes to
//! them.

use super::content::Content;
use super::lines::Lines;
use super::{FoundVolume, SECTOR};
use hindcast_engine::cdp::CdpSettings;
use hindcast_engine::pool::{DirectMin, Method, Order, Placement};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of a volume in a run. A run never uses a number twice.
pub type VolId = u32;
/// Number of a snapshot in a run. A run never uses a number twice.
pub type SnapId = u32;

/// The labels of a snapshot: key and value.
pub(crate) type Labels = BTreeMap<String, String>;

/// The largest space that a volume's snapshots may take, in per cent of its size, and whether the
/// pool deletes the oldest ones when they take more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PolicyModel {
    pub(crate) percent: u8,
    pub(crate) auto_delete: bool,
}

/// An unfinished import. It names contents by the first snapshots that had them. `position` is the
/// byte up to which the import is known to have come.
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
    /// Whether the volume refuses writes of clients.
    pub read_only: bool,
    /// The stamp of each sector.
    pub(crate) content: Content,
    /// The line that the volume writes to.
    pub(crate) line: u32,
    /// The number of bytes of an image that the volume showed when it was created over it. `None`
    /// means that the volume was not created over an image.
    pub(crate) over_image: Option<u64>,
    pub(crate) policy: PolicyModel,
    pub(crate) import: Option<ImportModel>,
    pub(crate) manner: Manner,
    pub(crate) labels: Labels,
    /// Whether the volume is in the trash.
    pub(crate) trashed: bool,
}

/// The way in which a volume keeps its past. `None` means that a property was never configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Manner {
    pub(crate) method: Option<Method>,
    pub(crate) order: Option<Order>,
    pub(crate) cdp: Option<Option<CdpSettings>>,
    pub(crate) placement: Option<Option<Placement>>,
    pub(crate) direct_min: Option<DirectMin>,
}

impl Manner {
    fn take(&mut self, said: &Manner) {
        self.method = said.method.or(self.method);
        self.order = said.order.or(self.order);
        self.cdp = said.cdp.or(self.cdp);
        self.placement = said.placement.or(self.placement);
        self.direct_min = said.direct_min.or(self.direct_min);
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
    /// The volume that the snapshot belongs to.
    pub volume: VolId,
    /// Name, unique among the snapshots of the volume.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Chunk size in bytes.
    pub chunk_size: u64,
    /// Block size in bytes.
    pub block_size: u32,
    /// The stamp of each sector.
    pub(crate) content: Content,
    /// The line and the epoch that the snapshot froze.
    pub(crate) of: (u32, u32),
    /// The first snapshot with this content: the snapshot itself, or the one that a stream was made
    /// of.
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
    /// Creates an empty volume.
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
            labels: Labels::new(),
            trashed: false,
        }
    }

    /// Returns whether the volume refuses writes of requests. It does so if it is read-only, and
    /// while only an import may write.
    pub(crate) fn refuses_writes(&self) -> bool {
        self.read_only || self.import.is_some()
    }

    pub(super) fn same_shape(&self, found: &FoundVolume) -> bool {
        (&self.name, self.size, self.chunk_size, self.block_size, self.read_only)
            == (&found.name, found.size, found.chunk_size, found.block_size, found.read_only)
            && (self.policy, self.import) == (found.policy, found.import)
            && (&self.labels, self.trashed) == (&found.labels, found.trashed)
            && self.manner.agrees(&found.manner)
    }
}

/// The effect of one journal record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Writes new data.
    Write {
        /// The volume.
        vol: VolId,
        /// First sector.
        sector: u64,
        /// Number of sectors.
        count: u64,
        /// Number of the write.
        stamp: u64,
    },
    /// Writes zeros, by any command.
    Zero {
        /// The volume.
        vol: VolId,
        /// First sector.
        sector: u64,
        /// Number of sectors.
        count: u64,
        /// Whether the space is freed.
        unmap: bool,
    },
    /// Creates a volume.
    Create(VolId, VolumeModel),
    /// Deletes a volume and its snapshots.
    Delete(VolId),
    /// Changes the size of a volume. The content past the new end is lost.
    Resize(VolId, u64),
    /// Renames a volume.
    Rename(VolId, String),
    /// Makes a volume read-only or writable.
    ReadOnly(VolId, bool),
    /// Moves a volume to the trash, or takes it out.
    Trash(VolId, bool),
    /// Sets the labels of a volume.
    LabelVolume(VolId, Labels),
    /// Takes snapshots at one instant.
    CreateSnapshots(Vec<(SnapId, VolId, String)>),
    /// Deletes snapshots.
    DeleteSnapshots(Vec<SnapId>),
    /// Renames a snapshot.
    RenameSnapshot(SnapId, String),
    /// Creates a volume with the content of a snapshot.
    Clone(VolId, SnapId, String),
    /// Gives a volume the content of a snapshot. The state before stays as a snapshot. The fields
    /// are the volume, the snapshot, and the number and name of the snapshot that keeps the state
    /// before.
    RollBack(VolId, SnapId, SnapId, String),
    /// Gives volumes the content and the size of a moment, all at once.
    RollBackTo(Vec<Taken>),
    /// Creates a snapshot with the content of a moment. `undo` is the number of the snapshot.
    KeepMoment(Taken),
    /// Changes the way in which a volume keeps its past.
    Manner(VolId, Manner),
    /// Sets the protection and the labels of a snapshot.
    Labels(SnapId, bool, Labels),
    /// Sets the space that a volume's snapshots may take.
    Policy(VolId, PolicyModel),
    /// Begins an import, notes its position, or cancels it (`None`).
    Import(VolId, Option<ImportModel>),
    /// Writes data of a stream. It has the stamps of the original writes, sector by sector.
    Arrive {
        /// The volume.
        vol: VolId,
        /// First sector.
        sector: u64,
        /// The stamp of each sector.
        stamps: Arc<[u64]>,
    },
    /// Completes an import with a snapshot: (number, volume, name, first snapshot with this
    /// content).
    Imported(SnapId, VolId, String, SnapId),
}

/// A volume that is rolled back to a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) vol: VolId,
    /// The content of the volume at the moment. `size` is its size then, in bytes.
    pub(crate) content: Content,
    pub(crate) size: u64,
    /// The snapshot that keeps the state before. `name` is its name.
    pub(crate) undo: SnapId,
    pub(crate) name: String,
}

impl Effect {
    /// Returns the sectors that the effect writes: (volume, first sector, number of sectors).
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

/// All volumes and snapshots at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// Volumes by number.
    pub volumes: BTreeMap<VolId, VolumeModel>,
    /// Snapshots by number.
    pub snapshots: BTreeMap<SnapId, SnapshotModel>,
    pub(crate) lines: Lines,
}

impl State {
    /// Returns the snapshots of a volume, oldest first.
    pub fn snapshots_of(&self, vol: VolId) -> impl Iterator<Item = (SnapId, &SnapshotModel)> {
        self.snapshots.iter().filter(move |(_, s)| s.volume == vol).map(|(id, s)| (*id, s))
    }

    /// Returns whether the volume has a snapshot of that name.
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
                    // A forced resize may materialize the chunk at the new end, because the volume
                    // may have grown meanwhile.
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
            Effect::Policy(..)
            | Effect::Import(..)
            | Effect::Manner(..)
            | Effect::Trash(..)
            | Effect::LabelVolume(..)
            | Effect::Arrive { .. } => self.apply_to_volume(effect),
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
            Effect::KeepMoment(kept) => self.keep(kept),
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
        | Effect::Trash(vol, _)
        | Effect::LabelVolume(vol, _)
        | Effect::Arrive { vol, .. }) = effect
        else {
            return;
        };
        let Some(volume) = self.volumes.get_mut(vol) else { return };
        match effect {
            Effect::Policy(_, policy) => volume.policy = *policy,
            Effect::Import(_, import) => volume.import = *import,
            Effect::Manner(_, said) => volume.manner.take(said),
            Effect::Trash(_, trashed) => volume.trashed = *trashed,
            Effect::LabelVolume(_, labels) => volume.labels.clone_from(labels),
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

    fn keep(&mut self, kept: &Taken) {
        let Some(volume) = self.volumes.get(&kept.vol) else { return };
        let line = self.lines.begin_over_image(volume.chunk_size);
        self.lines.put_over_image(line, kept.size);
        let of = (line, self.lines.freeze(line));
        self.lines.leave(line);
        let snapshot = SnapshotModel {
            volume: kept.vol,
            name: kept.name.clone(),
            size: kept.size,
            chunk_size: volume.chunk_size,
            block_size: volume.block_size,
            content: kept.content.clone(),
            of,
            origin: kept.undo,
            protected: false,
            labels: Labels::new(),
        };
        self.snapshots.insert(kept.undo, snapshot);
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
