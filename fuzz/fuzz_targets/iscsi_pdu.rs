//! Headers: whatever the bytes, the parts of a PDU lie one behind the other, and numbering
//! responses touches nothing else.
#![no_main]

use hindcast_target::iscsi::pdu::{
    BHS_LEN, Bhs, Digests, Numbers, TaskFunction, additional_headers, digest, opcode, sn_before, stamp,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&mode, bytes)) = data.split_first() else {
        return;
    };
    let digests = Digests { header: mode & 1 != 0, data: mode & 2 != 0 };
    let Some(bhs) = Bhs::parse(bytes) else {
        assert!(bytes.len() < BHS_LEN);
        return;
    };
    let layout = bhs.layout(digests);
    assert!(layout.header >= BHS_LEN && layout.data_at >= layout.header);
    assert!(layout.total >= layout.data_at + layout.data_len && layout.total % 4 == 0);
    let _ = TaskFunction::from_wire(bhs.u8(1));
    assert!(!(sn_before(bhs.cmd_sn(), bhs.exp_stat_sn()) && sn_before(bhs.exp_stat_sn(), bhs.cmd_sn())));
    if bytes.len() >= layout.total {
        let ahs = &bytes[BHS_LEN..layout.header];
        let taken: usize = additional_headers(ahs).map(|h| h.map_or(0, |(_, body)| body.len())).sum();
        assert!(taken <= ahs.len());
        let pdu = &bytes[..layout.total];
        let _ = (layout.header_ok(pdu, digests), layout.data_ok(pdu, digests));
    }
    responses(bytes, digests);
});

/// Cuts the bytes into responses, numbers them, and looks at what became of them.
fn responses(bytes: &[u8], digests: Digests) {
    let mut before = Vec::new();
    for piece in bytes.chunks(64).filter(|piece| piece.len() > 8) {
        let mut bhs = Bhs([0; BHS_LEN]);
        let n = piece.len().min(BHS_LEN);
        bhs.0[..n].copy_from_slice(&piece[..n]);
        bhs.0[0] &= 0x3f;
        bhs.0[4] = 0;
        bhs.set_data_len(piece.len() - 8);
        let layout = bhs.layout(digests);
        let start = before.len();
        before.extend(bhs.0);
        before.resize(start + layout.total, 0x55);
    }
    let mut after = before.clone();
    let mut numbers = Numbers { stat_sn: u32::MAX, exp_cmd_sn: 7, max_cmd_sn: 9 };
    stamp(&mut after, &mut numbers, digests);
    let (mut at, mut statuses) = (0, 0u32);
    while let Some(bhs) = Bhs::parse(&after[at..]) {
        let layout = bhs.layout(digests);
        let (old, new) = (&before[at..at + layout.total], &after[at..at + layout.total]);
        assert_eq!(old[..24], new[..24]);
        assert_eq!((bhs.u32(28), bhs.u32(32)), (7, 9));
        assert_eq!(old[36..48], new[36..48]);
        if digests.header {
            assert_eq!(new[48..52], digest(&new[..48]));
        }
        assert_eq!(old[layout.data_at..], new[layout.data_at..]);
        if bhs.opcode() == opcode::SCSI_RESPONSE {
            assert_eq!(bhs.u32(24), u32::MAX.wrapping_add(statuses));
        }
        let none = bhs.opcode() == opcode::R2T
            || bhs.opcode() == opcode::DATA_IN && bhs.u8(1) & 1 == 0
            || bhs.opcode() == opcode::NOP_IN && bhs.itt() == u32::MAX;
        statuses += u32::from(!none);
        at += layout.total;
    }
    assert_eq!(numbers.stat_sn, u32::MAX.wrapping_add(statuses));
}
