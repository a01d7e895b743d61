//! Control operations: every change of the pool's configuration, as journal records.

use super::cdp::{decode_settings, encode_settings};
use super::values::{
    Frozen, ImageRecord, ImportRecord, Labels, SnapshotRecord, Value, VolumeRecord, decode_import,
    decode_labels, decode_method, decode_order, decode_placement, encode_import, encode_labels,
    encode_method, encode_order, encode_placement,
};
use crate::codec::{Reader, Writer, align_up};
use crate::error::{Error, ErrorKind, Result};
use crate::journal::record::RECORD_ALIGN;
use crate::settings::{CdpSettings, Method, Order, Placement, SnapshotPolicy};

/// A catalog value inside a control record. Its length comes before it.
trait Nested {
    fn value(&mut self, value: &impl Value) -> &mut Self;
}

impl Nested for Writer {
    fn value(&mut self, value: &impl Value) -> &mut Self {
        let bytes = value.encode();
        self.u16(bytes.len() as u16).bytes(&bytes)
    }
}

impl Reader<'_> {
    fn value<V: Value>(&mut self) -> Option<V> {
        let len = self.u16()? as usize;
        V::decode(self.take(len)?)
    }
}

/// One control operation. The ids are chosen before it is sequenced, and are never used twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Control {
    /// Creates a volume, and begins the volume's branch.
    CreateVolume {
        id: u64,
        chunk_log2: u8,
        volume: VolumeRecord,
    },
    /// Changes the size of a volume. Shrinking discards the tail.
    ResizeVolume {
        id: u64,
        size: u64,
    },
    RenameVolume {
        id: u64,
        name: String,
    },
    SetReadOnly {
        id: u64,
        read_only: bool,
    },
    DeleteVolume {
        id: u64,
    },
    AddPv {
        pv: u32,
        uuid: [u8; 16],
        path: String,
        extents: u32,
    },
    SetDraining {
        pv: u32,
        draining: bool,
    },
    RemovePv {
        pv: u32,
    },
    SetPlacement(Placement),
    /// Freezes the current epochs of the branches, all at one instant.
    CreateSnapshots {
        /// The snapshots, with their ids.
        snapshots: Vec<(u64, SnapshotRecord)>,
    },
    DeleteSnapshots {
        ids: Vec<u64>,
    },
    RenameSnapshot {
        id: u64,
        name: String,
    },
    /// Creates a volume over a frozen state, and begins the volume's branch.
    CloneVolume {
        id: u64,
        chunk_log2: u8,
        base: Frozen,
        /// The LSN of the record right after which the base branch is the base; 0: the base is as
        /// its epoch shows it.
        at: u64,
        method: Method,
        volume: VolumeRecord,
    },
    /// Continues a volume from a frozen state, on a new branch. The volume's former state is kept
    /// as a snapshot.
    RollBack {
        id: u64,
        branch: u64,
        base: Frozen,
        /// The LSN of the record right after which the base branch is the base; 0: the base is as
        /// its epoch shows it.
        at: u64,
        size: u64,
        undo_id: u64,
        undo: SnapshotRecord,
    },
    SetMethod {
        id: u64,
        method: Method,
    },
    SetOrder {
        id: u64,
        order: Order,
    },
    /// Sets the labels of a snapshot, and whether it is protected from deletion.
    SetLabels {
        id: u64,
        protected: bool,
        labels: Labels,
    },
    SetPolicy {
        id: u64,
        policy: SnapshotPolicy,
    },
    /// Sets how far a stream was imported. All its writes up to there come before this record.
    SetImport {
        id: u64,
        import: Option<ImportRecord>,
    },
    /// Sets how the volume's history is kept, or that it is not kept.
    SetCdp {
        id: u64,
        settings: Option<CdpSettings>,
    },
    /// Gives this moment of the volume a name.
    Mark {
        volume: u64,
        name: String,
    },
    /// Removes the mark with this LSN.
    Unmark {
        volume: u64,
        lsn: u64,
    },
    /// Creates a volume over an image outside of the pool, and begins the volume's branch.
    CreateOver {
        id: u64,
        chunk_log2: u8,
        image: ImageRecord,
        volume: VolumeRecord,
    },
    /// Several operations, none of them a group, that are carried out as one.
    Group {
        parts: Vec<Control>,
    },
    /// Makes branches complete, at this rate in bytes per second (0: without limit), or stops
    /// making them complete.
    SetFill {
        branches: Vec<u64>,
        rate: Option<u64>,
    },
}

impl Control {
    /// Encodes the operation, padded with zeros to the alignment of records.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        self.put(&mut w);
        let len = align_up(w.0.len() as u64, RECORD_ALIGN) as usize;
        w.0.resize(len, 0);
        w.0
    }

    fn put(&self, w: &mut Writer) {
        match self {
            Control::CreateVolume { id, chunk_log2, volume: v } => {
                w.u8(1).u64(*id).u64(v.branch).bytes(&v.uuid).string(&v.name).u64(v.size);
                w.u8(*chunk_log2).u32(v.block_size).u8(v.read_only as u8).u64(v.created);
            }
            Control::ResizeVolume { id, size } => {
                w.u8(2).u64(*id).u64(*size);
            }
            Control::RenameVolume { id, name } => {
                w.u8(3).u64(*id).string(name);
            }
            Control::SetReadOnly { id, read_only } => {
                w.u8(4).u64(*id).u8(*read_only as u8);
            }
            Control::DeleteVolume { id } => {
                w.u8(5).u64(*id);
            }
            Control::AddPv { pv, uuid, path, extents } => {
                w.u8(6).u32(*pv).bytes(uuid).string(path).u32(*extents);
            }
            Control::SetDraining { pv, draining } => {
                w.u8(7).u32(*pv).u8(*draining as u8);
            }
            Control::RemovePv { pv } => {
                w.u8(8).u32(*pv);
            }
            Control::SetPlacement(placement) => {
                w.u8(9).u8(encode_placement(*placement));
            }
            Control::CreateSnapshots { snapshots } => {
                w.u8(10).u16(snapshots.len() as u16);
                for (id, snapshot) in snapshots {
                    w.u64(*id).value(snapshot);
                }
            }
            Control::DeleteSnapshots { ids } => {
                w.u8(11).u16(ids.len() as u16);
                ids.iter().for_each(|id| _ = w.u64(*id));
            }
            Control::RenameSnapshot { id, name } => {
                w.u8(12).u64(*id).string(name);
            }
            Control::CloneVolume { id, chunk_log2, base, at, method, volume } => {
                put_at(w, (13, 43), *at);
                w.u64(*id).u8(*chunk_log2).u64(base.branch).u32(base.epoch);
                w.u8(encode_method(*method)).value(volume);
            }
            Control::RollBack { id, branch, base, at, size, undo_id, undo } => {
                put_at(w, (14, 44), *at);
                w.u64(*id).u64(*branch).u64(base.branch).u32(base.epoch).u64(*size);
                w.u64(*undo_id).value(undo);
            }
            Control::CreateOver { id, chunk_log2, image, volume } => {
                w.u8(30).u64(*id).u8(*chunk_log2);
                image.put(w);
                w.value(volume);
            }
            Control::Group { parts } => {
                w.u8(45).u16(parts.len() as u16);
                for part in parts {
                    let bytes = part.encode();
                    w.u32(bytes.len() as u32).bytes(&bytes);
                }
            }
            property => property.put_property(w),
        }
    }

    /// Returns the operations that this one consists of: itself, unless it is a group.
    pub(crate) fn parts(&self) -> &[Control] {
        match self {
            Control::Group { parts } => parts,
            single => std::slice::from_ref(single),
        }
    }

    /// Returns whether the operation may be carried out in one commit with the records around it.
    /// It may not if it needs work before its commit, begins or ends a branch, or changes what is
    /// recorded of a branch.
    pub(crate) fn shares_commit(&self) -> bool {
        match self {
            Control::Group { parts } => parts.iter().all(Control::shares_commit),
            Control::RenameVolume { .. }
            | Control::SetReadOnly { .. }
            | Control::CreateSnapshots { .. }
            | Control::DeleteSnapshots { .. }
            | Control::RenameSnapshot { .. }
            | Control::SetOrder { .. }
            | Control::SetMethod { .. }
            | Control::SetLabels { .. }
            | Control::SetPolicy { .. }
            | Control::SetImport { .. }
            | Control::Mark { .. }
            | Control::Unmark { .. } => true,
            Control::CreateVolume { .. }
            | Control::ResizeVolume { .. }
            | Control::DeleteVolume { .. }
            | Control::AddPv { .. }
            | Control::SetDraining { .. }
            | Control::RemovePv { .. }
            | Control::SetPlacement(_)
            | Control::CloneVolume { .. }
            | Control::CreateOver { .. }
            | Control::SetFill { .. }
            | Control::RollBack { .. }
            | Control::SetCdp { .. } => false,
        }
    }

    /// Returns the approximate number of the catalog's rows that the operation changes.
    pub(crate) fn rows(&self) -> usize {
        match self {
            Control::Group { parts } => parts.iter().map(Control::rows).sum(),
            // Each with its branch.
            Control::CreateSnapshots { snapshots } => 2 * snapshots.len(),
            Control::DeleteSnapshots { ids } => ids.len(),
            _ => 1,
        }
    }

    /// Encodes an operation that only sets something.
    fn put_property(&self, w: &mut Writer) {
        match self {
            Control::SetMethod { id, method } => {
                w.u8(15).u64(*id).u8(encode_method(*method));
            }
            Control::SetLabels { id, protected, labels } => {
                w.u8(20).u64(*id).u8(*protected as u8);
                encode_labels(w, labels);
            }
            Control::SetPolicy { id, policy } => {
                w.u8(21).u64(*id).u8(policy.reserve_percent).u8(policy.auto_delete as u8);
            }
            Control::SetImport { id, import } => {
                w.u8(22).u64(*id);
                encode_import(w, import.as_ref());
            }
            Control::SetOrder { id, order } => {
                w.u8(23).u64(*id).u8(encode_order(*order));
            }
            Control::SetCdp { id, settings } => {
                w.u8(40).u64(*id).u8(settings.is_some() as u8);
                settings.iter().for_each(|settings| encode_settings(w, settings));
            }
            Control::Mark { volume, name } => {
                w.u8(41).u64(*volume).string(name);
            }
            Control::Unmark { volume, lsn } => {
                w.u8(42).u64(*volume).u64(*lsn);
            }
            Control::SetFill { branches, rate } => {
                w.u8(31).u8(rate.is_some() as u8).u64(rate.unwrap_or(0)).u16(branches.len() as u16);
                branches.iter().for_each(|id| _ = w.u64(*id));
            }
            _ => {}
        }
    }

    /// Decodes an operation. Returns `None` when the bytes are no control operation of this
    /// version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Control> {
        let mut r = Reader::new(bytes);
        let kind = r.u8()?;
        // What may rest on a moment has another number when it does, and the moment comes first.
        let at = if matches!(kind, 43 | 44) { Some(r.u64()?).filter(|at| *at != 0)? } else { 0 };
        let control = match kind {
            1 => {
                let (id, branch, uuid, name, size) = (r.u64()?, r.u64()?, r.array()?, r.string()?, r.u64()?);
                let (chunk_log2, block_size, read_only) = (r.u8()?, r.u32()?, r.u8()? != 0);
                let created = r.u64()?;
                let (policy, import) = (SnapshotPolicy::default(), None);
                let volume =
                    VolumeRecord { uuid, name, size, block_size, read_only, created, branch, policy, import };
                Control::CreateVolume { id, chunk_log2, volume }
            }
            2 => Control::ResizeVolume { id: r.u64()?, size: r.u64()? },
            3 => Control::RenameVolume { id: r.u64()?, name: r.string()? },
            4 => Control::SetReadOnly { id: r.u64()?, read_only: r.u8()? != 0 },
            5 => Control::DeleteVolume { id: r.u64()? },
            6 => Control::AddPv { pv: r.u32()?, uuid: r.array()?, path: r.string()?, extents: r.u32()? },
            7 => Control::SetDraining { pv: r.u32()?, draining: r.u8()? != 0 },
            8 => Control::RemovePv { pv: r.u32()? },
            9 => Control::SetPlacement(decode_placement(r.u8()?)?),
            10 => {
                let count = r.u16()?;
                let read = (0..count).map(|_| Some((r.u64()?, r.value()?)));
                Control::CreateSnapshots { snapshots: read.collect::<Option<_>>()? }
            }
            11 => {
                let count = r.u16()?;
                Control::DeleteSnapshots { ids: (0..count).map(|_| r.u64()).collect::<Option<_>>()? }
            }
            12 => Control::RenameSnapshot { id: r.u64()?, name: r.string()? },
            13 | 43 => Control::CloneVolume {
                id: r.u64()?,
                chunk_log2: r.u8()?,
                base: Frozen { branch: r.u64()?, epoch: r.u32()? },
                at,
                method: decode_method(r.u8()?)?,
                volume: r.value()?,
            },
            14 | 44 => Control::RollBack {
                id: r.u64()?,
                branch: r.u64()?,
                base: Frozen { branch: r.u64()?, epoch: r.u32()? },
                at,
                size: r.u64()?,
                undo_id: r.u64()?,
                undo: r.value()?,
            },
            30 => Control::CreateOver {
                id: r.u64()?,
                chunk_log2: r.u8()?,
                image: ImageRecord::take(&mut r)?,
                volume: r.value()?,
            },
            45 => Control::Group { parts: decode_parts(&mut r)? },
            code => Self::decode_property(code, &mut r)?,
        };
        if matches!(&control, Control::CreateVolume { chunk_log2, .. }
            | Control::CloneVolume { chunk_log2, .. }
            | Control::CreateOver { chunk_log2, .. } if !(9..=30).contains(chunk_log2))
        {
            return None;
        }
        is_padding(&mut r).then_some(control)
    }

    /// Decodes an operation that only sets something.
    fn decode_property(code: u8, r: &mut Reader<'_>) -> Option<Control> {
        Some(match code {
            15 => Control::SetMethod { id: r.u64()?, method: decode_method(r.u8()?)? },
            20 => Control::SetLabels { id: r.u64()?, protected: r.u8()? != 0, labels: decode_labels(r)? },
            21 => {
                let (id, reserve_percent, auto_delete) = (r.u64()?, r.u8()?, r.u8()? != 0);
                Control::SetPolicy { id, policy: SnapshotPolicy { reserve_percent, auto_delete } }
            }
            22 => Control::SetImport { id: r.u64()?, import: decode_import(r)? },
            23 => Control::SetOrder { id: r.u64()?, order: decode_order(r.u8()?)? },
            31 => {
                let (set, rate, count) = (r.u8()? != 0, r.u64()?, r.u16()?);
                let branches = (0..count).map(|_| r.u64()).collect::<Option<_>>()?;
                Control::SetFill { branches, rate: set.then_some(rate) }
            }
            40 => {
                let (id, on) = (r.u64()?, r.u8()?);
                let settings = match on {
                    0 => None,
                    1 => Some(decode_settings(r)?),
                    _ => return None,
                };
                Control::SetCdp { id, settings }
            }
            41 => Control::Mark { volume: r.u64()?, name: r.string()? },
            42 => Control::Unmark { volume: r.u64()?, lsn: r.u64()? },
            _ => return None,
        })
    }
}

/// Decodes the operations of a group.
fn decode_parts(r: &mut Reader<'_>) -> Option<Vec<Control>> {
    let part = |r: &mut Reader<'_>| {
        let len = r.u32()? as usize;
        Control::decode(r.take(len)?).filter(|part| !matches!(part, Control::Group { .. }))
    };
    (0..r.u16()?).map(|_| part(r)).collect()
}

/// Appends the number of an operation that may rest on a moment, and the moment.
fn put_at(w: &mut Writer, (plain, moment): (u8, u8), at: u64) {
    match at {
        0 => w.u8(plain),
        at => w.u8(moment).u64(at),
    };
}

/// Returns whether the rest is nothing but the zeros that align a record.
fn is_padding(r: &mut Reader<'_>) -> bool {
    let mut left = 0;
    while let Some(byte) = r.u8() {
        left += 1;
        if byte != 0 {
            return false;
        }
    }
    left < RECORD_ALIGN
}

pub(crate) fn decode_control(lsn: u64, data: &[u8]) -> Result<Control> {
    Control::decode(data).ok_or_else(|| {
        Error::new(
            ErrorKind::Unsupported,
            format!("decode the control record with LSN {lsn}: this build does not know its version"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create_volume() -> Control {
        let volume = VolumeRecord {
            uuid: [7; 16],
            name: "db".into(),
            size: 1 << 40,
            block_size: 512,
            read_only: true,
            created: 99,
            branch: 2,
            policy: SnapshotPolicy::default(),
            import: None,
        };
        Control::CreateVolume { id: 1, chunk_log2: 14, volume }
    }

    fn snapshot(id: u64) -> SnapshotRecord {
        SnapshotRecord {
            uuid: [5; 16],
            name: "s".into(),
            volume: 1,
            of: Frozen { branch: id, epoch: 9 },
            size: 1 << 30,
            block_size: 512,
            created: 99,
            deleted: false,
            origin: [0; 16],
            protected: false,
            labels: Labels::new(),
        }
    }

    fn clone_volume() -> Control {
        let Control::CreateVolume { volume, .. } = create_volume() else { unreachable!() };
        let base = Frozen { branch: 2, epoch: 9 };
        Control::CloneVolume { id: 7, chunk_log2: 14, base, at: 0, method: Method::Copy, volume }
    }

    fn create_over() -> Control {
        let Control::CreateVolume { volume, .. } = create_volume() else { unreachable!() };
        let image = ImageRecord { path: "/i".into(), len: 1000, modified: 77, shown: 900 };
        Control::CreateOver { id: 8, chunk_log2: 12, image, volume }
    }

    fn every_kind() -> [Control; 22] {
        let base = Frozen { branch: 2, epoch: 9 };
        [
            Control::Group {
                parts: vec![Control::DeleteVolume { id: 1 }, Control::SetReadOnly { id: 2, read_only: true }],
            },
            create_volume(),
            Control::ResizeVolume { id: 1, size: 5 },
            Control::RenameVolume { id: 1, name: "x".into() },
            Control::SetReadOnly { id: 1, read_only: true },
            Control::DeleteVolume { id: 1 },
            Control::AddPv { pv: 3, uuid: [1; 16], path: "/dev/loop7".into(), extents: 12 },
            Control::SetDraining { pv: 3, draining: true },
            Control::RemovePv { pv: 3 },
            Control::SetPlacement(Placement::Contiguous),
            Control::CreateSnapshots { snapshots: vec![(5, snapshot(2)), (6, snapshot(3))] },
            Control::DeleteSnapshots { ids: vec![5, 6] },
            Control::RenameSnapshot { id: 5, name: "x".into() },
            clone_volume(),
            Control::RollBack { id: 1, branch: 8, base, at: 0, size: 512, undo_id: 7, undo: snapshot(2) },
            Control::SetMethod { id: 1, method: Method::Copy },
            Control::SetOrder { id: 1, order: Order::Independent },
            Control::SetLabels { id: 5, protected: true, labels: [("by".into(), "ann".into())].into() },
            Control::SetPolicy { id: 1, policy: SnapshotPolicy { reserve_percent: 25, auto_delete: true } },
            create_over(),
            Control::SetFill { branches: vec![3, 4], rate: Some(9) },
            Control::SetImport {
                id: 1,
                import: Some(ImportRecord { from: [1; 16], to: [2; 16], position: 65536 }),
            },
        ]
    }

    /// The journal of an older build may contain these bytes.
    #[test]
    fn golden_bytes() {
        let hex = |c: &Control| c.encode().iter().map(|b| format!("{b:02x}")).collect::<String>();
        let golden = [
            "2d0200100000000501000000000000000000000000000010000000040200000000000000010000000000000000000000",
            "0101000000000000000200000000000000070707070707070707070707070707070200646200000000000100000e000200000163000000000000000000000000",
            "020100000000000000050000000000000000000000000000",
            "03010000000000000001007800000000",
            "04010000000000000001000000000000",
            "05010000000000000000000000000000",
            "0603000000010101010101010101010101010101010a002f6465762f6c6f6f70370c000000000000",
            "0703000000010000",
            "0803000000000000",
            "0901000000000000",
            "0a02000500000000000000540001050505050505050505050505050505050100730100000000000000020000000000000009000000000000400000000000020000630000000000000000000000000000000000000000000000000000000f7e1faf060000000000000054000105050505050505050505050505050505010073010000000000000003000000000000000900000000000040000000000002000063000000000000000000000000000000000000000000000000000000a58a710b00",
            "0b0200050000000000000006000000000000000000000000",
            "0c050000000000000001007800000000",
            "0d07000000000000000e02000000000000000900000001390002070707070707070707070707070707070200646200000000000100000002000001630000000000000002000000000000000a000064befddb000000000000",
            "0e0100000000000000080000000000000002000000000000000900000000020000000000000700000000000000540001050505050505050505050505050505050100730100000000000000020000000000000009000000000000400000000000020000630000000000000000000000000000000000000000000000000000000f7e1faf0000000000",
            "0f010000000000000001000000000000",
            "17010000000000000001000000000000",
            "140500000000000000010100020062790300616e6e000000",
            "15010000000000000019010000000000",
            "1e08000000000000000c02002f69e8030000000000004d000000000000008403000000000000390002070707070707070707070707070707070200646200000000000100000002000001630000000000000002000000000000000a000064befddb00000000000000",
            "1f01090000000000000002000300000000000000040000000000000000000000",
            "1601000000000000000101010101010101010101010101010101020202020202020202020202020202020000010000000000000000000000",
        ];
        assert_eq!(every_kind().each_ref().map(hex), golden);
    }

    #[test]
    fn round_trips() {
        for control in every_kind() {
            let bytes = control.encode();
            assert_eq!(bytes.len() % RECORD_ALIGN as usize, 0);
            assert_eq!(Control::decode(&bytes), Some(control.clone()));
            for cut in 0..bytes.len() {
                let decoded = Control::decode(&bytes[..cut]);
                assert!(decoded.is_none() || decoded == Some(control.clone()), "cut at {cut}");
            }
            let mut long = bytes.clone();
            long.extend([0; 8]);
            assert_eq!(Control::decode(&long), None, "too much padding");
        }
        assert_eq!(Control::decode(&[0; 8]), None);
        let group = |parts| Control::Group { parts };
        let nested = group(vec![group(Vec::new())]);
        assert_eq!(Control::decode(&nested.encode()), None, "a group in a group");
    }
}
