//! The bytes of all operations.

use super::*;
use crate::area::Area;
use crate::catalog::{Frozen, ImageRecord, ImportRecord, Labels, SnapshotRecord, VolumeRecord};
use crate::ids::{BranchId, Epoch, Lsn, VolumeId};
use crate::settings::{
    AnchorPolicy, CdpSettings, Compression, DirectMin, Encoding, Method, Order, Retention, SnapAware,
    SnapshotPolicy,
};
use uuid::Uuid;

fn volume() -> VolumeRecord {
    let record = VolumeRecord::new(Uuid::from_bytes([7; 16]), "db", (1 << 40, 512), BranchId(2));
    VolumeRecord { read_only: true, created: 99, ..record }
}

fn snapshot(id: u64) -> SnapshotRecord {
    SnapshotRecord {
        uuid: Uuid::from_bytes([5; 16]),
        name: "s".into(),
        volume: VolumeId(1),
        of: Frozen { branch: BranchId(id), epoch: Epoch(9) },
        size: 1 << 30,
        block_size: 512,
        created: 99,
        deleted: false,
        origin: Uuid::nil(),
        protected: false,
        labels: Labels::new(),
    }
}

fn settings() -> CdpSettings {
    CdpSettings {
        encoding: Encoding::Undo,
        compression: Compression::Zstd,
        anchors: AnchorPolicy::Every(7),
        max_distance: None,
        retention: Retention { time: Some(9), bytes: None },
    }
}

fn clone_volume(base: Frozen, at: Option<Lsn>) -> Control {
    let (id, method, volume, area) = (VolumeId(7), Method::Copy, volume(), Area::Common);
    CloneVolume { id, chunk_log2: 14, base, at, method, volume, area }.into()
}

fn roll_back(base: Frozen, at: Option<Lsn>) -> Control {
    let (id, branch, undo_id) = (VolumeId(1), BranchId(8), SnapshotId(7));
    RollBack { id, branch, base, at, size: 512, undo_id, undo: snapshot(2), area: Area::Common }.into()
}

fn add_pv(path: &str) -> Control {
    let uuid = Uuid::from_bytes([1; 16]);
    AddPv { pv: 3, uuid, path: path.into(), extents: 12, dedicated: false }.into()
}

fn set_import(from: Uuid, to: Uuid) -> Control {
    SetImport { id: VolumeId(1), import: Some(ImportRecord { from, to, position: 65536 }) }.into()
}

fn every_kind() -> [Control; 40] {
    let base = Frozen { branch: BranchId(2), epoch: Epoch(9) };
    let moment = Frozen { epoch: Epoch::NONE, ..base };
    let image = ImageRecord { path: "/i".into(), len: 1000, modified: 77, shown: 900 };
    [
        Group {
            parts: vec![
                DeleteVolume { id: VolumeId(1) }.into(),
                SetReadOnly { id: VolumeId(2), read_only: true }.into(),
            ],
        }
        .into(),
        CreateVolume { id: VolumeId(1), chunk_log2: 14, volume: volume(), area: Area::Common }.into(),
        ResizeVolume { id: VolumeId(1), size: 5 }.into(),
        RenameVolume { id: VolumeId(1), name: "x".into() }.into(),
        SetReadOnly { id: VolumeId(1), read_only: true }.into(),
        DeleteVolume { id: VolumeId(1) }.into(),
        add_pv("/dev/loop7"),
        SetDraining { pv: 3, draining: true }.into(),
        RemovePv { pv: 3 }.into(),
        SetPlacement { placement: Placement::Contiguous }.into(),
        SetPlacement { placement: Placement::Share }.into(),
        SetPlacement { placement: Placement::SnapAware(SnapAware { slice: 16, gap: 7 }) }.into(),
        SetVolumePlacement { id: VolumeId(1), placement: None }.into(),
        SetVolumePlacement { id: VolumeId(1), placement: Some(Placement::Share) }.into(),
        SetWeight { pv: 3, weight: 50 }.into(),
        SetDirectMin { id: VolumeId(1), direct_min: DirectMin::Bytes(4096) }.into(),
        SetDirectMin { id: VolumeId(1), direct_min: DirectMin::Never }.into(),
        CreateSnapshots { snapshots: vec![(SnapshotId(5), snapshot(2)), (SnapshotId(6), snapshot(3))] }
            .into(),
        DeleteSnapshots { ids: vec![SnapshotId(5), SnapshotId(6)] }.into(),
        RenameSnapshot { id: SnapshotId(5), name: "x".into() }.into(),
        clone_volume(base, None),
        roll_back(base, None),
        SetMethod { id: VolumeId(1), method: Method::Copy }.into(),
        SetOrder { id: VolumeId(1), order: Order::Independent }.into(),
        SetLabels { id: SnapshotId(5), protected: true, labels: [("by".into(), "ann".into())].into() }.into(),
        SetPolicy { id: VolumeId(1), policy: SnapshotPolicy { reserve_percent: 25, auto_delete: true } }
            .into(),
        CreateOver { id: VolumeId(8), chunk_log2: 12, image, volume: volume(), area: Area::Common }.into(),
        SetFill { branches: vec![BranchId(3), BranchId(4)], rate: Some(9) }.into(),
        set_import(Uuid::from_bytes([1; 16]), Uuid::from_bytes([2; 16])),
        SetCdp { id: VolumeId(1), settings: Some(settings()) }.into(),
        SetCdp { id: VolumeId(1), settings: None }.into(),
        AddMark { volume: VolumeId(1), name: "here".into() }.into(),
        RemoveMark { volume: VolumeId(1), lsn: Lsn(5) }.into(),
        clone_volume(moment, Some(Lsn(77))),
        roll_back(moment, Some(Lsn(77))),
        EnableFeatures { features: 1 << 40 | 1 }.into(),
        KeepMoment {
            area: Area::Common,
            id: SnapshotId(7),
            snapshot: snapshot(8),
            chunk_log2: 14,
            base: moment,
            at: Lsn(77),
            method: Method::Copy,
        }
        .into(),
        TrashVolume { id: VolumeId(1), time: 77 }.into(),
        RestoreVolume { id: VolumeId(1), name: "x".into() }.into(),
        LabelVolume { id: VolumeId(1), labels: [("app".into(), "shop".into())].into() }.into(),
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
        "0902000000000000",
        "09031000000007000000000000000000",
        "40010000000000000000000000000000",
        "40010000000000000001020000000000",
        "41030000003200000000000000000000",
        "420100000000000000001000000000000000000000000000",
        "420100000000000000ffffffffffffffff00000000000000",
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
        "280100000000000000010203010700000000000000000000000000000009000000000000000000000000000000000000",
        "28010000000000000000000000000000",
        "29010000000000000004006865726500",
        "2a0100000000000000050000000000000000000000000000",
        "2b4d0000000000000007000000000000000e02000000000000000000000001390002070707070707070707070707070707070200646200000000000100000002000001630000000000000002000000000000000a000064befddb000000000000",
        "2c4d000000000000000100000000000000080000000000000002000000000000000000000000020000000000000700000000000000540001050505050505050505050505050505050100730100000000000000020000000000000009000000000000400000000000020000630000000000000000000000000000000000000000000000000000000f7e1faf0000000000",
        "32010000000001000000000000000000",
        "2e4d0000000000000007000000000000000e0200000000000000000000000154000105050505050505050505050505050505010073010000000000000008000000000000000900000000000040000000000002000063000000000000000000000000000000000000000000000000000000cfe904d3000000",
        "3c01000000000000004d0000000000000000000000000000",
        "3d010000000000000001007800000000",
        "3e010000000000000001000300617070040073686f700000",
    ];
    assert_eq!(every_kind().each_ref().map(hex), golden);
}

/// The operations that may be on a dedicated physical volume: as they are elsewhere, and there.
fn every_dedicated() -> Vec<(Control, Control)> {
    let area = Area::Only(3);
    let dedicated = |control: &Control| {
        Some(match control.clone() {
            Control::CreateVolume(of) => CreateVolume { area, ..of }.into(),
            Control::CreateOver(of) => CreateOver { area, ..of }.into(),
            Control::CloneVolume(of) => CloneVolume { area, ..of }.into(),
            Control::RollBack(of) => RollBack { area, ..of }.into(),
            Control::KeepMoment(of) => KeepMoment { area, ..of }.into(),
            Control::AddPv(of) => AddPv { dedicated: true, ..of }.into(),
            _ => return None,
        })
    };
    every_kind().into_iter().filter_map(|of| dedicated(&of).map(|there| (of, there))).collect()
}

/// The number of the physical volume stands before the operation, whose bytes are as always.
#[test]
fn golden_bytes_of_dedicated_operations() {
    let all = every_dedicated();
    assert_eq!(all.len(), 8);
    for (elsewhere, there) in all {
        let mut w = Writer::default();
        elsewhere.operation().put(&mut w);
        let bytes = there.encode();
        assert_eq!(bytes[..5], [63, 3, 0, 0, 0]);
        assert!(bytes[5..].starts_with(&w.0) && bytes.len() < 5 + w.0.len() + 8);
    }
}

#[test]
fn round_trips() {
    for control in every_kind().into_iter().chain(every_dedicated().into_iter().map(|(_, there)| there)) {
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
    let group = |parts| -> Control { Group { parts }.into() };
    let nested = group(vec![group(Vec::new())]);
    assert_eq!(Control::decode(&nested.encode()), None, "a group in a group");
    for kind in [Group::KIND, DEDICATED, ResizeVolume::KIND] {
        let bytes = [&[DEDICATED, 3, 0, 0, 0, kind], &[0; 34][..]].concat();
        assert_eq!(Control::decode(&bytes), None, "nothing else is dedicated");
    }
}

/// Such a record is one of a later build, alone or in a group. An operation of this build is not.
#[test]
fn an_operation_that_enables_what_this_build_does_not_know_is_refused() {
    let enable = |features| -> Control { EnableFeatures { features }.into() };
    let refused = |control: Control| {
        let error = decode_control(Lsn(7), &control.encode()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        for part in ["LSN 7", "(features regions, 0x10000000000)", "use a newer build"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    };
    refused(enable(1 << 40 | 16 | 1));
    refused(Group { parts: vec![enable(1), enable(1 << 40 | 16)] }.into());
    assert_eq!(decode_control(Lsn(7), &enable(1).encode()).unwrap(), enable(1));
    assert_eq!(decode_control(Lsn(7), &[99; 16]).unwrap_err().kind(), ErrorKind::Unsupported);
}

/// Bytes of a journal choose the depth, and must not choose that of the stack.
#[test]
fn groups_in_groups_without_end() {
    let mut bytes: Vec<u8> = Vec::new();
    for _ in 0..100_000 {
        // Written backwards: the number, one part, its length.
        bytes.extend((bytes.len() as u32).to_be_bytes());
        bytes.extend([0, 1, Group::KIND]);
    }
    bytes.reverse();
    assert_eq!(Control::decode(&bytes), None);
}
