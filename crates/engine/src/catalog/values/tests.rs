//! The bytes of the catalog's values.

use super::*;
use crate::catalog::HoleRecord;
use std::fmt::Debug;

fn golden<V: Value + PartialEq + Debug>(value: V, hex: &str) {
    let bytes = value.encode();
    let got: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(got, hex, "{value:?}");
    assert_eq!(V::decode(&bytes).as_ref(), Some(&value));
    assert_eq!(V::decode(&[]), None);
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(V::decode(&bad), None, "bit {bit}");
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

/// The bytes are as version 0.1.0 wrote them.
#[test]
fn a_volume_of_format_1_has_the_default_policy() {
    let hex = "0103030303030303030303030303030303020064620000004000000000000200000007000000000000000400000000000000b6ef2a01";
    let expected = VolumeRecord {
        uuid: Uuid::from_bytes([3; 16]),
        name: "db".into(),
        size: 1 << 30,
        block_size: 512,
        read_only: false,
        created: 7,
        branch: BranchId(4),
        policy: SnapshotPolicy { reserve_percent: 10, auto_delete: false },
        import: None,
        trashed: 0,
        labels: Labels::new(),
        direct_min: DirectMin::OfPool,
    };
    assert_eq!(VolumeRecord::decode(&bytes(hex)), Some(expected));
}

/// The bytes are as version 0.1.0 wrote them.
#[test]
fn a_branch_of_format_1_has_no_base() {
    let bytes = bytes("010e00010000004d000000000000003403f663");
    let expected = BranchRecord { slots: 77, ..BranchRecord::new(14, None, Method::Redirect) };
    assert_eq!(BranchRecord::decode(&bytes), Some(expected));
}

#[test]
fn a_branch_keeps_its_order() {
    let value = BranchRecord { order: Order::Independent, ..BranchRecord::new(14, None, Method::Copy) };
    let bytes = value.encode();
    assert_eq!(bytes[bytes.len() - 5], 0x11, "method below, order above");
    assert_eq!(BranchRecord::decode(&bytes), Some(value));
}

#[test]
fn golden_bytes() {
    golden(
        Positions {
            incarnation: 1,
            preserved_lsn: Lsn(2),
            destaged_lsn: Lsn(3),
            synced_lsn: Lsn(4),
            journal_seq: 5,
            journal_incarnation: 6,
            time: 7,
        },
        "0101000000000000000200000000000000030000000000000004000000000000000500000000000000060000000000000007000000000000002a26bfa3",
    );
    golden(
        PvRecord { draining: true, ..PvRecord::new(Uuid::from_bytes([2; 16]), "pv-0.img".into(), 64) },
        "0102020202020202020202020202020202080070762d302e696d67400000000181aec3fb",
    );
    let pv = PvRecord::new(Uuid::from_bytes([2; 16]), "pv-0.img".into(), 64);
    golden(
        PvRecord { dedicated: true, ..pv.clone() },
        "0202020202020202020202020202020202080070762d302e696d674000000000df5c434f",
    );
    golden(
        PvRecord { weight: 50, ..pv.clone() },
        "0302020202020202020202020202020202080070762d302e696d6740000000000032000000c86a707a",
    );
    golden(
        PvRecord { dedicated: true, weight: 200, ..pv },
        "0302020202020202020202020202020202080070762d302e696d67400000000001c80000006d7605cc",
    );
}

#[test]
fn golden_bytes_of_volumes_with_labels_and_in_the_trash() {
    let plain = VolumeRecord::new(Uuid::from_bytes([3; 16]), "db", (1 << 30, 512), BranchId(4));
    let labels: Labels = [("app".into(), "shop".into())].into();
    golden(
        VolumeRecord { labels, ..plain.clone() },
        "03030303030303030303030303030303030200646200000040000000000002000000000000000000000004000000000000000a0000000000000000000001000300617070040073686f70a14a7d12",
    );
    golden(
        VolumeRecord { trashed: 77, ..plain.clone() },
        "03030303030303030303030303030303030200646200000040000000000002000000000000000000000004000000000000000a00004d00000000000000000073d430c2",
    );
    assert_eq!(plain.encode()[0], 2, "an older build reads what does not need the new version");
}

#[test]
fn golden_bytes_of_volumes_with_a_least_size_of_their_own() {
    let plain = VolumeRecord::new(Uuid::from_bytes([3; 16]), "db", (1 << 30, 512), BranchId(4));
    golden(
        VolumeRecord { direct_min: DirectMin::Bytes(4096), ..plain.clone() },
        "04030303030303030303030303030303030200646200000040000000000002000000000000000000000004000000000000000a000000000000000000000000001000000000000049a1b558",
    );
    golden(
        VolumeRecord { direct_min: DirectMin::Never, trashed: 77, ..plain },
        "04030303030303030303030303030303030200646200000040000000000002000000000000000000000004000000000000000a00004d000000000000000000ffffffffffffffffaea8509d",
    );
}

/// A size that this build does not know is damage, not another size.
#[test]
fn a_least_size_out_of_range_is_refused() {
    let plain = VolumeRecord::new(Uuid::from_bytes([3; 16]), "db", (1 << 30, 512), BranchId(4));
    for bytes in [1, 4095, (16 << 20) + 1, u64::MAX - 1] {
        let record = VolumeRecord { direct_min: DirectMin::Bytes(bytes), ..plain.clone() };
        assert_eq!(VolumeRecord::decode(&record.encode()), None, "{bytes}");
    }
}

#[test]
fn golden_bytes_of_volumes() {
    golden(
        VolumeRecord {
            uuid: Uuid::from_bytes([3; 16]),
            name: "db".into(),
            size: 1 << 30,
            block_size: 512,
            read_only: false,
            created: 7,
            branch: BranchId(4),
            policy: SnapshotPolicy { reserve_percent: 20, auto_delete: true },
            import: Some(ImportRecord {
                from: Uuid::from_bytes([8; 16]),
                to: Uuid::from_bytes([9; 16]),
                position: 4096,
            }),
            trashed: 0,
            labels: Labels::new(),
            direct_min: DirectMin::OfPool,
        },
        "0203030303030303030303030303030303020064620000004000000000000200000007000000000000000400000000000000140101080808080808080808080808080808080909090909090909090909090909090900100000000000008942f335",
    );
    golden(
        SnapshotRecord {
            uuid: Uuid::from_bytes([4; 16]),
            name: "monday".into(),
            volume: VolumeId(3),
            of: Frozen { branch: BranchId(4), epoch: Epoch(5) },
            size: 1 << 30,
            block_size: 512,
            created: 7,
            deleted: false,
            origin: Uuid::from_bytes([6; 16]),
            protected: true,
            labels: [("by".into(), "ann".into()), ("why".into(), "upgrade".into())].into(),
        },
        "010404040404040404040404040404040406006d6f6e646179030000000000000004000000000000000500000000000040000000000002000007000000000000000006060606060606060606060606060606010200020062790300616e6e03007768790700757067726164657b9bc21b",
    );
    golden(Entry { slot: Slot::new(1, 4096), born: Epoch(3) }, "01080000000000010003000000d0a8f98f");
    golden(HoleRecord { end: 1 << 30, born: Epoch(3) }, "01000000400000000003000000352d693f");
    golden(ExtentRecord { slot_log2: 14, used: 3 }, "010e03000000d3f4388f");
    golden(BitmapPage(vec![5, 1 << 63]), "0105000000000000000000000000000080dbe5f733");
}

#[test]
fn golden_bytes_of_branches() {
    golden(
        BranchRecord {
            base: Some(BaseRecord::Frozen(Frozen { branch: BranchId(2), epoch: Epoch(9) })),
            slots: 77,
            ..BranchRecord::new(14, None, Method::Copy)
        },
        "020e00010000004d0000000000000002000000000000000900000001281f1fd0",
    );
    let image = ImageRecord { path: "/i".into(), len: 1000, modified: 77, shown: 900 };
    golden(
        BranchRecord {
            fill: Some(FillRecord { rate: 1, page: 2, copied: 3 }),
            ..BranchRecord::new(14, Some(BaseRecord::Image(image)), Method::Copy)
        },
        "030e00010000000000000000000000000000000000000000000000010102002f69e8030000000000004d00000000000000840300000000000001010000000000000002000000000000000300000000000000618637c3",
    );
    golden(
        BranchRecord {
            base_at: Some(Lsn(33)),
            slots: 77,
            ..BranchRecord::new(
                14,
                Some(BaseRecord::Frozen(Frozen { branch: BranchId(2), epoch: Epoch::NONE })),
                Method::Copy,
            )
        },
        "040e00010000004d00000000000000020000000000000000000000010000210000000000000029b53203",
    );
    let new = BranchRecord::new(14, None, Method::Redirect);
    golden(
        BranchRecord { area: Area::Only(3), ..new.clone() },
        "050e00010000000000000000000000000000000000000000000000000000000000000000000003000000c205a05b",
    );
    golden(
        BranchRecord { placement: Some(Placement::Share), ..new.clone() },
        "060e0001000000000000000000000000000000000000000000000000000000000000000000000002955f4140",
    );
    let sizes = SnapAware { slice: 16, gap: 7 };
    golden(
        BranchRecord {
            area: Area::Only(3),
            base_at: Some(Lsn(33)),
            base: Some(BaseRecord::Frozen(Frozen { branch: BranchId(2), epoch: Epoch::NONE })),
            placement: Some(Placement::SnapAware(sizes)),
            ..new
        },
        "060e000100000000000000000000000200000000000000000000000000002100000000000000010300000003100000000700000056889ea4",
    );
}
