//! A whole session: whatever an initiator sends after its login, in whatever pieces, every answer
//! is well-formed, in sequence, for a task that there was, and there is at most one status for
//! each.
#![no_main]

use hindcast_fuzz::initiator::{NAME, TARGET, daemon, encode, to_text};
use hindcast_fuzz::mem::MemDevice;
use hindcast_fuzz::serve_iscsi;
use hindcast_target::iscsi::IscsiConfig;
use hindcast_target::iscsi::pdu::{Bhs, Digests, FINAL, NO_TAG, opcode};
use libfuzzer_sys::fuzz_target;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const FIRST: u32 = 0xffff_fff0; // numbers wrap soon

/// Takes bytes as numbers; zeros when there are no more.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }
}

/// One request: mostly meaningful, with fields that are sometimes not.
fn request(source: &mut Source<'_>, cmd_sn: &mut u32) -> (Bhs, Vec<u8>) {
    let kind = source.byte();
    let code = match kind % 16 {
        0..=5 => opcode::SCSI_COMMAND,
        6..=8 => opcode::DATA_OUT,
        9 | 10 => opcode::TASK_MANAGEMENT,
        11 => opcode::NOP_OUT,
        12 => opcode::TEXT,
        13 => opcode::LOGOUT,
        _ => source.byte() & 0x3f,
    };
    let immediate = if kind & 0x40 != 0 { 0x40 } else { 0 };
    let mut bhs = Bhs::new(code | immediate, source.byte() | if kind & 0x80 == 0 { FINAL } else { 0 });
    bhs.0[9] = source.pick(&[0, 0, 0, 1, 7]);
    bhs.put_u32(16, u32::from(source.byte() % 8)).put_u32(24, *cmd_sn);
    let mut len = 0;
    match code {
        opcode::SCSI_COMMAND => {
            let blocks = source.pick(&[0u8, 1, 2, 8, 17]);
            bhs.put_u32(20, u32::from(blocks) * 512 + u32::from(source.pick(&[0u8, 0, 0, 1, 200])));
            let code =
                source.pick(&[0x28, 0x2a, 0x2a, 0x8a, 0x12, 0x00, 0x89, 0x35, 0x41, 0x42, 0x2f, 0x5f, 0xa0]);
            bhs.0[32] = code;
            let (lba, count) = if code & 0xe0 == 0x80 { (41, 45) } else { (37, 40) };
            bhs.0[lba] = source.byte() % 8;
            bhs.0[count] = blocks;
            len = usize::from(blocks) * usize::from(source.pick(&[0u16, 512, 512, 100]));
            if source.byte() == 7 {
                bhs.0[32 + usize::from(source.byte() % 16)] = source.byte();
            }
        }
        opcode::DATA_OUT => {
            bhs.put_u32(20, source.pick(&[NO_TAG, 1, 2, 3, 4])).put_u32(36, u32::from(source.byte() % 3));
            let at = u32::from(source.byte() % 18) * 512;
            bhs.put_u32(40, at);
            len = usize::from(source.pick(&[512u16, 1024, 0, 4096, 100]));
        }
        opcode::TASK_MANAGEMENT => {
            bhs.put_u32(20, u32::from(source.byte() % 8)).put_u32(32, cmd_sn.wrapping_add(1));
        }
        opcode::TEXT => {
            bhs.put_u32(20, source.pick(&[NO_TAG, 1, 2]));
            len = usize::from(source.byte() % 32);
        }
        _ => {
            bhs.put_u32(20, source.pick(&[NO_TAG, 0, 1]));
            len = usize::from(source.byte() % 32);
        }
    }
    *cmd_sn = cmd_sn.wrapping_add(match source.byte() % 32 {
        _ if immediate != 0 || code == opcode::DATA_OUT => 0,
        0 => 2, // a gap
        1 => u32::MAX,
        _ => 1,
    });
    let data = match code {
        opcode::TEXT => b"SendTargets=\0Key=value\0SendTargets=All"[..len].to_vec(),
        _ => (0..len).map(|n| n as u8).collect(),
    };
    bhs.set_data_len(data.len());
    (bhs, data)
}

fuzz_target!(|data: &[u8]| {
    let mut source = Source(data);
    let mode = source.byte();
    let digests = Digests { header: mode & 1 != 0, data: mode & 2 != 0 };
    let yes = |bit: u8| if mode & bit != 0 { "Yes" } else { "No" };
    let digest = |on| if on { "CRC32C" } else { "None" };
    let keys = [
        ("InitiatorName", NAME),
        ("TargetName", TARGET),
        ("HeaderDigest", digest(digests.header)),
        ("DataDigest", digest(digests.data)),
        ("InitialR2T", yes(4)),
        ("ImmediateData", yes(8)),
        ("FirstBurstLength", "2048"),
        ("MaxBurstLength", "4096"),
        ("MaxOutstandingR2T", "2"),
        ("MaxRecvDataSegmentLength", if mode & 16 != 0 { "1000" } else { "65536" }),
    ];
    let login = to_text(&keys);
    let mut bhs = Bhs::new(opcode::LOGIN | 0x40, 0x87);
    bhs.put_u32(24, FIRST).put_u32(28, FIRST).set_data_len(login.len());
    let mut input = vec![encode(&bhs, &login, Digests::default())];
    let (mut cmd_sn, mut requests, mut rest) = (FIRST, HashMap::new(), Vec::new());
    while !source.0.is_empty() && rest.len() < 1 << 20 {
        let (bhs, data) = request(&mut source, &mut cmd_sn);
        *requests.entry(bhs.itt()).or_insert(0u32) += 1;
        let mut bytes = encode(&bhs, &data, digests);
        if source.byte() == 9 {
            let at = usize::from(source.byte()) % bytes.len();
            bytes[at] ^= source.byte();
        }
        rest.extend(bytes);
    }
    let piece = source.pick(&[usize::MAX, 1, 49, 1000]).min(rest.len().max(1));
    input.extend(rest.chunks(if mode & 32 != 0 { 53 } else { piece }).map(<[u8]>::to_vec));
    let damaged = data.contains(&9);

    let device = Arc::new(MemDevice::new(1 << 20));
    device.cold.store(mode & 64 != 0, Ordering::Relaxed);
    let (daemon, _) = daemon(&device);
    let config = IscsiConfig { queue_depth: 8, ..IscsiConfig::default() };
    let output = serve_iscsi(&config, daemon, input);
    check(&output, digests, &requests, damaged);
});

/// Looks at everything that was answered.
fn check(output: &[u8], digests: Digests, requests: &HashMap<u32, u32>, damaged: bool) {
    let login = Bhs::parse(output).expect("the login is answered").layout(Digests::default());
    let (mut at, mut stat_sn, mut max) = (login.total, FIRST.wrapping_add(1), None);
    let mut statuses = HashMap::new();
    while at < output.len() {
        let bhs = Bhs::parse(&output[at..]).expect("a whole header");
        let layout = bhs.layout(digests);
        let pdu = &output[at..at + layout.total];
        assert!(layout.header_ok(pdu, digests) && layout.data_ok(pdu, digests));
        let has_status = match bhs.opcode() {
            opcode::DATA_IN => bhs.u8(1) & 1 != 0,
            opcode::R2T => false,
            opcode::NOP_IN => bhs.itt() != NO_TAG,
            _ => true,
        };
        if has_status {
            assert_eq!(bhs.u32(24), stat_sn);
            stat_sn = stat_sn.wrapping_add(1);
        }
        let window = bhs.u32(32);
        assert!(max.is_none_or(|max| window.wrapping_sub(max) < 1 << 31), "MaxCmdSN went back");
        assert!(window.wrapping_sub(bhs.u32(28)).wrapping_add(1) <= 8, "the window is too large");
        max = Some(window);
        if has_status && bhs.itt() != NO_TAG {
            *statuses.entry(bhs.itt()).or_insert(0u32) += 1;
        }
        at += layout.total;
    }
    for (itt, n) in statuses {
        assert!(damaged || requests.get(&itt).is_some_and(|asked| n <= *asked), "{n} answers to {itt:#x}");
    }
}
