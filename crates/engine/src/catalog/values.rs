//! The catalog's values: small records that begin with a version byte and end with a CRC32C.

use super::page::{Entry, Slot};
use crate::area::Area;
use crate::codec::{Reader, Writer, crc32c};
use crate::ids::{BranchId, Epoch, Lsn, VolumeId};
use crate::settings::{
    DirectMin, FULL_WEIGHT, MAX_WEIGHT, Method, Order, Placement, SnapAware, SnapshotPolicy,
};
use std::collections::BTreeMap;
use uuid::Uuid;

/// Encodes a value: version, fields, sum.
pub(super) fn seal(version: u8, fields: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut w = Writer::default();
    w.u8(version);
    fields(&mut w);
    let crc = crc32c(&w.0);
    w.u32(crc);
    w.0
}

/// Verifies the sum and the version, and returns a reader of the fields.
pub(super) fn unseal(bytes: &[u8], version: u8) -> Option<Reader<'_>> {
    let (body, sum) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
    let (first, fields) = body.split_first()?;
    (crc32c(body).to_le_bytes() == sum && *first == version).then(|| Reader::new(fields))
}

/// A value of the catalog. It encodes and verifies itself.
pub(crate) trait Value: Sized {
    fn encode(&self) -> Vec<u8>;
    fn decode(bytes: &[u8]) -> Option<Self>;
}

pub(crate) fn put_placement(w: &mut Writer, placement: Placement) {
    match placement {
        Placement::Anywhere => w.u8(0),
        Placement::Contiguous => w.u8(1),
        Placement::Share => w.u8(2),
        Placement::SnapAware(SnapAware { slice, gap }) => w.u8(3).u32(slice).u32(gap),
    };
}

/// Reads the weight of a physical volume.
pub(crate) fn take_weight(r: &mut Reader<'_>) -> Option<u32> {
    r.u32().filter(|weight| (1..=MAX_WEIGHT).contains(weight))
}

pub(crate) fn take_placement(r: &mut Reader<'_>) -> Option<Placement> {
    match r.u8()? {
        0 => Some(Placement::Anywhere),
        1 => Some(Placement::Contiguous),
        2 => Some(Placement::Share),
        3 => {
            let sizes = SnapAware { slice: r.u32()?, gap: r.u32()? };
            sizes.is_valid().then_some(Placement::SnapAware(sizes))
        }
        _ => None,
    }
}

/// The positions up to which the log has been carried out, as of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Positions {
    /// The number of the pool's life. It grows at every open, before the first append.
    pub(crate) incarnation: u64,
    /// The last LSN up to which everything is preserved: new slots are written and in the map.
    pub(crate) preserved_lsn: Lsn,
    /// The last LSN up to which everything is in place.
    pub(crate) destaged_lsn: Lsn,
    /// The last LSN up to which everything was durable in the journal.
    pub(crate) synced_lsn: Lsn,
    /// The number of the journal segment that holds the record after `destaged_lsn`.
    pub(crate) journal_seq: u64,
    /// The least incarnation that the segment `journal_seq` may have.
    pub(crate) journal_incarnation: u64,
    /// All pool times that were given out are below this, or in the journal.
    pub(crate) time: u64,
}

impl Value for Positions {
    fn encode(&self) -> Vec<u8> {
        seal(1, |w| {
            w.u64(self.incarnation).u64(self.preserved_lsn).u64(self.destaged_lsn);
            w.u64(self.synced_lsn).u64(self.journal_seq).u64(self.journal_incarnation).u64(self.time);
        })
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = unseal(bytes, 1)?;
        let value = Positions {
            incarnation: r.u64()?,
            preserved_lsn: r.u64()?,
            destaged_lsn: r.u64()?,
            synced_lsn: r.u64()?,
            journal_seq: r.u64()?,
            journal_incarnation: r.u64()?,
            time: r.u64()?,
        };
        r.end(value)
    }
}

/// The record of a physical volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PvRecord {
    pub(crate) uuid: Uuid,
    pub(crate) path: String,
    pub(crate) extents: u32,
    pub(crate) draining: bool,
    /// Only branches that were made for the physical volume have slots there.
    pub(crate) dedicated: bool,
    /// The part of its size that counts for Share, in per cent.
    pub(crate) weight: u32,
}

impl PvRecord {
    /// Makes the record of a new physical volume.
    pub(crate) fn new(uuid: Uuid, path: String, extents: u32) -> PvRecord {
        PvRecord { uuid, path, extents, draining: false, dedicated: false, weight: FULL_WEIGHT }
    }
}

/// Version 2 is of a dedicated physical volume, version 3 of any with a weight. The oldest version
/// that can express the record is written.
impl Value for PvRecord {
    fn encode(&self) -> Vec<u8> {
        let version = match (self.weight, self.dedicated) {
            (FULL_WEIGHT, false) => 1,
            (FULL_WEIGHT, true) => 2,
            _ => 3,
        };
        seal(version, |w| {
            w.uuid(&self.uuid).string(&self.path).u32(self.extents).u8(self.draining as u8);
            if version >= 3 {
                w.u8(self.dedicated as u8).u32(self.weight);
            }
        })
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (mut r, version) = [1, 2, 3].into_iter().filter_map(|v| Some((unseal(bytes, v)?, v))).next()?;
        let record = PvRecord::new(r.uuid()?, r.string()?, r.u32()?);
        let mut value = PvRecord { draining: r.u8()? != 0, dedicated: version == 2, ..record };
        if version >= 3 {
            (value.dedicated, value.weight) = (r.u8().filter(|flag| *flag < 2)? == 1, take_weight(&mut r)?);
        }
        r.end(value)
    }
}

/// The record of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeRecord {
    pub(crate) uuid: Uuid,
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) block_size: u32,
    pub(crate) read_only: bool,
    pub(crate) created: u64,
    /// The branch that the volume writes to.
    pub(crate) branch: BranchId,
    pub(crate) policy: SnapshotPolicy,
    /// The progress of the import that fills the volume, if there is one.
    pub(crate) import: Option<ImportRecord>,
    /// The pool time at which the volume was moved to the trash; 0: it is in use. The name of a
    /// volume in the trash is free.
    pub(crate) trashed: u64,
    pub(crate) labels: Labels,
    pub(crate) direct_min: DirectMin,
}

impl VolumeRecord {
    /// Makes the record of a new volume without data, as if created at the Unix epoch. `of` is the
    /// size and the block size in bytes.
    pub(crate) fn new(uuid: Uuid, name: &str, of: (u64, u32), branch: BranchId) -> Self {
        VolumeRecord {
            uuid,
            name: name.to_owned(),
            size: of.0,
            block_size: of.1,
            read_only: false,
            created: 0,
            branch,
            policy: SnapshotPolicy::default(),
            import: None,
            trashed: 0,
            labels: Labels::new(),
            direct_min: DirectMin::OfPool,
        }
    }
}

/// The progress of an import of a stream. Snapshots are named by their content's identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImportRecord {
    /// The snapshot that the stream builds upon, or zeros if there is none.
    pub(crate) from: Uuid,
    pub(crate) to: Uuid,
    /// Bytes of the volume, from its start, that are as the stream has them.
    pub(crate) position: u64,
}

pub(crate) fn encode_import(w: &mut Writer, import: Option<&ImportRecord>) {
    w.u8(import.is_some() as u8);
    if let Some(import) = import {
        w.uuid(&import.from).uuid(&import.to).u64(import.position);
    }
}

pub(crate) fn decode_import(r: &mut Reader<'_>) -> Option<Option<ImportRecord>> {
    match r.u8()? {
        0 => Some(None),
        1 => Some(Some(ImportRecord { from: r.uuid()?, to: r.uuid()?, position: r.u64()? })),
        _ => None,
    }
}

/// Version 1 had neither policy nor import, version 2 neither trash nor labels, version 3 no least
/// size of writes by reference. The oldest version that can express the record is written, but
/// never version 1.
impl Value for VolumeRecord {
    fn encode(&self) -> Vec<u8> {
        let version = match self.direct_min {
            DirectMin::OfPool if self.trashed == 0 && self.labels.is_empty() => 2,
            DirectMin::OfPool => 3,
            _ => 4,
        };
        seal(version, |w| {
            w.uuid(&self.uuid).string(&self.name).u64(self.size).u32(self.block_size);
            w.u8(self.read_only as u8).u64(self.created).u64(self.branch.0);
            w.u8(self.policy.reserve_percent).u8(self.policy.auto_delete as u8);
            encode_import(w, self.import.as_ref());
            if version >= 3 {
                w.u64(self.trashed);
                encode_labels(w, &self.labels);
            }
            if version >= 4 {
                w.u64(self.direct_min.code());
            }
        })
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let known = [4, 3, 2, 1].into_iter();
        let (mut r, version) = known.filter_map(|v| Some((unseal(bytes, v)?, v))).next()?;
        let (uuid, name, of) = (r.uuid()?, r.string()?, (r.u64()?, r.u32()?));
        let (read_only, created) = (r.u8()? != 0, r.u64()?);
        let record = VolumeRecord::new(uuid, &name, of, BranchId(r.u64()?));
        let mut value = VolumeRecord { read_only, created, ..record };
        if version >= 2 {
            value.policy = SnapshotPolicy { reserve_percent: r.u8()?, auto_delete: r.u8()? != 0 };
            value.import = decode_import(&mut r)?;
        }
        if version >= 3 {
            (value.trashed, value.labels) = (r.u64()?, decode_labels(&mut r)?);
        }
        if version >= 4 {
            value.direct_min = DirectMin::from_code(r.u64()?)?;
        }
        r.end(value)
    }
}

/// A frozen state: a branch up to an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Frozen {
    pub(crate) branch: BranchId,
    pub(crate) epoch: Epoch,
}

/// An image outside of the pool, as it was when a volume was created over it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ImageRecord {
    /// The path of a file or block device. It is absolute, or inside the data directory.
    pub(crate) path: String,
    pub(crate) len: u64,
    /// The time of the last modification, in nanoseconds since the Unix epoch; 0: not known.
    pub(crate) modified: u64,
    /// Bytes, from the start of the image, that the volume shows. What follows reads as zeros.
    pub(crate) shown: u64,
}

impl ImageRecord {
    pub(crate) fn put(&self, w: &mut Writer) {
        w.string(&self.path).u64(self.len).u64(self.modified).u64(self.shown);
    }

    pub(crate) fn take(r: &mut Reader<'_>) -> Option<ImageRecord> {
        Some(ImageRecord { path: r.string()?, len: r.u64()?, modified: r.u64()?, shown: r.u64()? })
    }
}

/// The content under a branch. Chunks without an entry have their content there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BaseRecord {
    Frozen(Frozen),
    Image(ImageRecord),
}

/// The progress of making a branch complete: see `upkeep/flatten.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FillRecord {
    /// The limit of the rate, in bytes per second; 0: no limit.
    pub(crate) rate: u64,
    /// The number of the next map page.
    pub(crate) page: u64,
    /// The number of bytes copied so far.
    pub(crate) copied: u64,
}

/// The record of a branch: one line of history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BranchRecord {
    /// log2 of the chunk size in bytes.
    pub(crate) chunk_log2: u8,
    /// No volume writes to the branch any more. What no snapshot needs is being freed.
    pub(crate) dead: bool,
    /// The epoch in which writes are born.
    pub(crate) epoch: Epoch,
    /// The number of slots that the branch's map and versions point to.
    pub(crate) slots: u64,
    pub(crate) base: Option<BaseRecord>,
    /// The LSN of the record right after which the base branch is this branch's base. Without one
    /// the base is as its epoch shows it.
    pub(crate) base_at: Option<Lsn>,
    /// The method by which the branch preserves.
    pub(crate) method: Method,
    /// Whether the snapshots of the branch share the content that is preserved.
    pub(crate) order: Order,
    /// The progress of making the branch complete, so that it no longer needs its base.
    pub(crate) fill: Option<FillRecord>,
    /// The physical volumes from which the branch takes its slots.
    pub(crate) area: Area,
    /// The placement of the branch's slots; `None`: that of the pool.
    pub(crate) placement: Option<Placement>,
}

impl BranchRecord {
    /// Makes a new branch, without content of its own.
    pub(crate) fn new(chunk_log2: u8, base: Option<BaseRecord>, method: Method) -> Self {
        let order = Order::Dependent;
        let (slots, base_at, fill) = (0, None, None);
        BranchRecord {
            chunk_log2,
            dead: false,
            epoch: Epoch::FIRST,
            slots,
            base,
            base_at,
            method,
            order,
            fill,
            area: Area::Common,
            placement: None,
        }
    }

    /// Returns the frozen state that the branch rests on.
    pub(crate) fn frozen(&self) -> Option<Frozen> {
        match self.base {
            Some(BaseRecord::Frozen(of)) => Some(of),
            _ => None,
        }
    }
}

/// Version 1 had neither base nor method, version 2 neither image nor fill, version 3 no moment,
/// version 4 no dedicated physical volume, version 5 no placement. The oldest version that can
/// express the record is written, but never version 1.
impl Value for BranchRecord {
    fn encode(&self) -> Vec<u8> {
        let base = self.frozen().unwrap_or(Frozen { branch: BranchId(0), epoch: Epoch::NONE });
        let image = match &self.base {
            Some(BaseRecord::Image(image)) => Some(image),
            _ => None,
        };
        let version = match (self.area, self.base_at, image.is_some() || self.fill.is_some()) {
            _ if self.placement.is_some() => 6,
            (Area::Common, None, false) => 2,
            (Area::Common, None, true) => 3,
            (Area::Common, Some(_), _) => 4,
            (Area::Only(_), ..) => 5,
        };
        seal(version, |w| {
            w.u8(self.chunk_log2).u8(self.dead as u8).u32(self.epoch.0).u64(self.slots);
            w.u64(base.branch.0)
                .u32(base.epoch.0)
                .u8(encode_method(self.method) | encode_order(self.order) << 4);
            if version >= 3 {
                w.u8(image.is_some() as u8);
                if let Some(image) = image {
                    image.put(w);
                }
                w.u8(self.fill.is_some() as u8);
                if let Some(fill) = &self.fill {
                    w.u64(fill.rate).u64(fill.page).u64(fill.copied);
                }
            }
            if version >= 5 {
                w.u64(self.base_at.unwrap_or(Lsn::ZERO));
            } else if let Some(at) = self.base_at {
                w.u64(at);
            }
            if version >= 6 {
                w.u8(self.area.dedicated().is_some() as u8);
            }
            if let Area::Only(pv) = self.area {
                w.u32(pv);
            }
            if let Some(placement) = self.placement {
                put_placement(w, placement);
            }
        })
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let known = [6, 5, 4, 3, 2, 1].into_iter();
        let (mut r, version) = known.filter_map(|v| Some((unseal(bytes, v)?, v))).next()?;
        let (chunk_log2, dead, epoch, slots) = (r.u8()?, r.u8()? != 0, Epoch(r.u32()?), r.u64()?);
        let mut value =
            BranchRecord { dead, epoch, slots, ..BranchRecord::new(chunk_log2, None, Method::Redirect) };
        if version >= 2 {
            let base = Frozen { branch: BranchId(r.u64()?), epoch: Epoch(r.u32()?) };
            value.base = (base.branch.0 != 0).then_some(BaseRecord::Frozen(base));
            let how = r.u8()?;
            value.method = decode_method(how & 15)?;
            value.order = decode_order(how >> 4)?;
        }
        if version >= 3 {
            match (r.u8()?, &value.base) {
                (0, _) => {}
                (1, None) => value.base = Some(BaseRecord::Image(ImageRecord::take(&mut r)?)),
                _ => return None,
            }
            value.fill = match r.u8()? {
                0 => None,
                1 => Some(FillRecord { rate: r.u64()?, page: r.u64()?, copied: r.u64()? }),
                _ => return None,
            };
        }
        if version == 4 {
            value.base_at = Some(Some(r.u64()?).filter(|at| *at != Lsn::ZERO)?);
        }
        if version >= 5 {
            value.base_at = Some(r.u64()?).filter(|at| *at != Lsn::ZERO);
            let is_dedicated = version == 5 || r.u8().filter(|flag| *flag < 2)? == 1;
            value.area = if is_dedicated { Area::Only(r.u32()?) } else { Area::Common };
        }
        if version >= 6 {
            value.placement = Some(take_placement(&mut r)?);
        }
        r.end(value)
    }
}

pub(crate) fn encode_method(method: Method) -> u8 {
    match method {
        Method::Redirect => 0,
        Method::Copy => 1,
    }
}

pub(crate) fn encode_order(order: Order) -> u8 {
    match order {
        Order::Dependent => 0,
        Order::Independent => 1,
    }
}

pub(crate) fn decode_order(code: u8) -> Option<Order> {
    match code {
        0 => Some(Order::Dependent),
        1 => Some(Order::Independent),
        _ => None,
    }
}

pub(crate) fn decode_method(code: u8) -> Option<Method> {
    match code {
        0 => Some(Method::Redirect),
        1 => Some(Method::Copy),
        _ => None,
    }
}

/// The record of a snapshot: a name for a frozen state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotRecord {
    pub(crate) uuid: Uuid,
    pub(crate) name: String,
    /// The id of the volume that the snapshot belongs to.
    pub(crate) volume: VolumeId,
    pub(crate) of: Frozen,
    /// The size of the volume at the instant of the snapshot, in bytes.
    pub(crate) size: u64,
    pub(crate) block_size: u32,
    pub(crate) created: u64,
    /// The snapshot is deleted and not visible. What only it needs is freed after nothing rests on
    /// it.
    pub(crate) deleted: bool,
    /// The snapshot, of another volume or pool, that a stream made this one from, or zeros.
    pub(crate) origin: Uuid,
    /// The snapshot must not be deleted.
    pub(crate) protected: bool,
    pub(crate) labels: Labels,
}

/// Notes of users and programs about a snapshot: keys and values.
pub(crate) type Labels = BTreeMap<String, String>;

pub(crate) fn encode_labels(w: &mut Writer, labels: &Labels) {
    w.u16(labels.len() as u16);
    for (key, value) in labels {
        w.string(key).string(value);
    }
}

/// Decodes labels. They are in the order of keys, each key once, so that there is one encoding
/// only.
pub(crate) fn decode_labels(r: &mut Reader<'_>) -> Option<Labels> {
    let mut labels = Labels::new();
    for _ in 0..r.u16()? {
        let (key, value) = (r.string()?, r.string()?);
        if labels.last_key_value().is_some_and(|(last, _)| *last >= key) {
            return None;
        }
        labels.insert(key, value);
    }
    Some(labels)
}

impl Value for SnapshotRecord {
    fn encode(&self) -> Vec<u8> {
        seal(1, |w| {
            w.uuid(&self.uuid).string(&self.name).u64(self.volume);
            w.u64(self.of.branch.0).u32(self.of.epoch.0).u64(self.size).u32(self.block_size);
            w.u64(self.created).u8(self.deleted as u8).uuid(&self.origin).u8(self.protected as u8);
            encode_labels(w, &self.labels);
        })
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = unseal(bytes, 1)?;
        let value = SnapshotRecord {
            uuid: r.uuid()?,
            name: r.string()?,
            volume: r.u64()?,
            of: Frozen { branch: BranchId(r.u64()?), epoch: Epoch(r.u32()?) },
            size: r.u64()?,
            block_size: r.u32()?,
            created: r.u64()?,
            deleted: r.u8()? != 0,
            origin: r.uuid()?,
            protected: r.u8()? != 0,
            labels: decode_labels(&mut r)?,
        };
        r.end(value)
    }
}

/// The entry of a version: content that was overwritten, and that a snapshot needs.
impl Value for Entry {
    fn encode(&self) -> Vec<u8> {
        seal(1, |w| {
            w.u64(self.slot.0).u32(self.born.0);
        })
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = unseal(bytes, 1)?;
        let value = Entry { slot: Slot(r.u64()?), born: Epoch(r.u32()?) };
        r.end(value)
    }
}

/// The slot size of an extent that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExtentRecord {
    /// log2 of the slot size in bytes.
    pub(crate) slot_log2: u8,
    pub(crate) used: u32,
}

impl Value for ExtentRecord {
    fn encode(&self) -> Vec<u8> {
        seal(1, |w| {
            w.u8(self.slot_log2).u32(self.used);
        })
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = unseal(bytes, 1)?;
        let value = ExtentRecord { slot_log2: r.u8()?, used: r.u32()? };
        r.end(value)
    }
}

/// One page of an extent's bitmap of used slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BitmapPage(pub(crate) Vec<u64>);

impl Value for BitmapPage {
    fn encode(&self) -> Vec<u8> {
        seal(1, |w| {
            for word in &self.0 {
                w.u64(*word);
            }
        })
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = unseal(bytes, 1)?;
        let words = (bytes.len() - 5) / 8;
        let page = (0..words).map(|_| r.u64()).collect::<Option<Vec<u64>>>()?;
        r.end(BitmapPage(page))
    }
}

#[cfg(test)]
mod tests;
