//! Reading, writing, comparing: the commands about the medium.
#![allow(clippy::unwrap_used)] // the lint knows test functions only, not what they use

#[path = "common/mem.rs"]
mod mem;
#[path = "common/scsi.rs"]
mod scsi;

use hindcast_engine::ErrorKind;
use hindcast_target::scsi::*;
use scsi::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const READS: [u8; 4] = [0x08, 0x28, 0xa8, 0x88];
const WRITES: [u8; 4] = [0x0a, 0x2a, 0xaa, 0x8a];
/// Blocks of the rig's logical unit.
const LAST: u64 = 8192;

fn pattern(blocks: usize, seed: u8) -> Vec<u8> {
    (0..blocks * BLOCK).map(|n| (n / 7) as u8 ^ seed).collect()
}

#[test]
fn what_is_written_is_read() {
    let rig = Rig::new();
    for (n, (&write, &read)) in WRITES.iter().zip(&READS).enumerate() {
        let data = pattern(3, n as u8);
        let lba = LAST - 3 - n as u64 * 10;
        good(&rig.a, &blocks(write, 0, lba, 3), &data);
        assert_eq!(good(&rig.b, &blocks(read, 0, lba, 3), &[]), data);
    }
    assert_eq!(rig.device.calls.fua_calls.load(Ordering::Relaxed), 0);
}

#[test]
fn six_byte_forms_mean_256_by_zero() {
    let rig = Rig::new();
    let data = pattern(256, 1);
    good(&rig.a, &blocks(0x0a, 0, 0x100, 0), &data);
    assert_eq!(good(&rig.a, &blocks(0x08, 0, 0x100, 0), &[]), data);
    // The upper three bits of byte 1 are no part of the address, and not protection either.
    let Command::Read(read) = rig.a.start(0, &[0x08, 0xe0, 1, 0, 1, 0], 0) else { panic!("not a read") };
    assert_eq!((read.offset, read.len), (0x100 * 512, 512));
}

#[test]
fn ranges_are_checked() {
    let rig = Rig::new();
    for code in [0x28, 0xa8, 0x88, 0x2f, 0xaf, 0x8f, 0x34, 0x90, 0x35, 0x91, 0x41, 0x93] {
        let data = if matches!(code, 0x41 | 0x93) { vec![0; BLOCK] } else { Vec::new() };
        for (lba, count) in [(LAST, 1), (LAST - 1, 2), (LAST + 1, 0), (0x8000_0000, 1), (0xffff_ffff, 0)] {
            let sense = bad(
                &rig.a,
                &blocks(code, 0, lba, count),
                &data,
                SenseKey::IllegalRequest,
                Asc::LBA_OUT_OF_RANGE,
            );
            assert_eq!(sense.information, Some(lba.max(LAST)));
        }
    }
    for code in [0x88, 0x8a, 0x8b, 0x8e, 0x8f, 0x93] {
        let data = vec![0; BLOCK];
        let cdb = blocks(code, 0, u64::MAX, 1);
        bad(&rig.a, &cdb, &data, SenseKey::IllegalRequest, Asc::LBA_OUT_OF_RANGE);
    }
    // Nothing at the very end is nothing, without data to wait for.
    for code in [0x28, 0x2a, 0xa8, 0xaa, 0x88, 0x8a] {
        assert_eq!(good(&rig.a, &blocks(code, 0, LAST, 0), &[]).len(), 0);
    }
}

#[test]
fn protection_and_overlong_transfers_are_refused() {
    let rig = Rig::new();
    for code in
        [0x28, 0x2a, 0x2e, 0x2f, 0x41, 0x88, 0x8a, 0x8b, 0x8e, 0x8f, 0x89, 0x93, 0x9c, 0xa8, 0xaa, 0xae, 0xaf]
    {
        for protect in 1..8 {
            bad_field(&rig.a, &blocks(code, protect << 5, 0, 1), &[0; BLOCK]);
        }
    }
    let large = Rig::with(info(1 << 30), LuOptions::default());
    for code in [0x88, 0x8a] {
        bad_field(&large.a, &blocks(code, 0, 0, (32 << 20) / 512 + 1), &[]);
    }
    let at_limit = large.a.start(0, &blocks(0x8a, 0, 0, (32 << 20) / 512), 0);
    assert_eq!(at_limit.data_out_len(), 32 << 20);
}

#[test]
fn naca_is_refused() {
    let rig = Rig::new();
    let mut cdb = blocks(0x28, 0, 0, 1);
    cdb[9] = 4;
    let sense = bad(&rig.a, &cdb, &[], SenseKey::IllegalRequest, Asc::INVALID_FIELD_IN_CDB);
    assert_eq!(sense.key_specific, Some([0xca, 0, 9]));
}

#[test]
fn fua_reaches_the_device() {
    let rig = Rig::new();
    let data = pattern(1, 9);
    good(&rig.a, &blocks(0x2a, 0x08, 0, 1), &data);
    assert_eq!(rig.device.calls.fua_calls.load(Ordering::Relaxed), 1);
    assert_eq!(good(&rig.a, &blocks(0x88, 0x18, 0, 1), &[]), data);
    assert_eq!(rig.device.calls.flushes.load(Ordering::Relaxed), 1);
    good(&rig.a, &blocks(0x35, 0, 0, 0), &[]);
    good(&rig.a, &blocks(0x91, 0x02, 5, 5), &[]);
    assert_eq!(rig.device.calls.flushes.load(Ordering::Relaxed), 3);
}

#[test]
fn device_errors_become_sense_data() {
    use SenseKey::*;
    let rig = Rig::new();
    let expected = [
        (ErrorKind::NoSpace, DataProtect, Asc::SPACE_ALLOCATION_FAILED),
        (ErrorKind::ReadOnly, DataProtect, Asc::WRITE_PROTECTED),
        (ErrorKind::Io, MediumError, Asc::WRITE_ERROR),
        (ErrorKind::Poisoned, HardwareError, Asc::INTERNAL_TARGET_FAILURE),
        (ErrorKind::OutOfRange, IllegalRequest, Asc::LBA_OUT_OF_RANGE),
        (ErrorKind::NotFound, NotReady, Asc::NOT_READY_MANUAL_INTERVENTION),
        (ErrorKind::Busy, AbortedCommand, Asc::NONE),
    ];
    for (kind, key, asc) in expected {
        *rig.device.failure.lock() = Some(kind);
        for cdb in [blocks(0x2a, 0, 0, 1), blocks(0x8e, 0, 0, 1), blocks(0x41, 0, 0, 1)] {
            bad(&rig.a, &cdb, &[1; BLOCK], key, asc);
        }
        bad(&rig.a, &blocks(0x93, 0x08, 0, 8), &[0; BLOCK], key, asc);
    }
    for kind in [ErrorKind::Io, ErrorKind::Corrupt] {
        *rig.device.failure.lock() = Some(kind);
        let sense = bad(&rig.a, &blocks(0x28, 0, 77, 1), &[], MediumError, Asc::UNRECOVERED_READ_ERROR);
        assert_eq!(sense.information, Some(77));
        bad(&rig.a, &blocks(0x2f, 0, 77, 1), &[], MediumError, Asc::UNRECOVERED_READ_ERROR);
    }
}

/// INFORMATION is the LBA of the first block that can't be read, wherever the command begins.
#[test]
fn the_block_that_can_not_be_read_is_named() {
    let rig = Rig::new();
    *rig.device.damaged.lock() = Some(700 * 512);
    for code in [0x28, 0xa8, 0x88, 0x2f, 0xaf, 0x8f] {
        for (lba, count) in [(700, 1), (690, 100), (699, 2)] {
            let cdb = blocks(code, 0, lba, count);
            let sense = bad(&rig.a, &cdb, &[], SenseKey::MediumError, Asc::UNRECOVERED_READ_ERROR);
            assert_eq!(sense.information, Some(700), "{code:#x} {lba} {count}");
        }
        good(&rig.a, &blocks(code, 0, 690, 10), &[]);
    }
    // A READ with FUA, and the read of a comparison.
    let sense =
        bad(&rig.a, &blocks(0x28, 8, 690, 20), &[], SenseKey::MediumError, Asc::UNRECOVERED_READ_ERROR);
    assert_eq!(sense.information, Some(700));
    let data = vec![0; 4 * BLOCK];
    let sense =
        bad(&rig.a, &blocks(0x89, 0, 699, 2), &data, SenseKey::MediumError, Asc::UNRECOVERED_READ_ERROR);
    assert_eq!(sense.information, Some(700));
    assert_eq!(sense.to_bytes()[0], 0xf0, "VALID");
    assert_eq!(sense.to_bytes()[3..7], 700u32.to_be_bytes());
}

#[test]
fn verify_compares_as_it_is_told() {
    let rig = Rig::new();
    let data = pattern(5, 3);
    good(&rig.a, &blocks(0x2a, 0, 100, 5), &data);
    let mut other = data.clone();
    other[700] ^= 1;
    for code in [0x2f, 0xaf, 0x8f] {
        good(&rig.a, &blocks(code, 0x10, 100, 5), &[]);
        assert_eq!(rig.a.start(0, &blocks(code, 0, 100, 5), 0).data_out_len(), 0);
        good(&rig.a, &blocks(code, 0x02, 100, 5), &data);
        let sense = bad(
            &rig.a,
            &blocks(code, 0x02, 100, 5),
            &other,
            SenseKey::Miscompare,
            Asc::MISCOMPARE_DURING_VERIFY,
        );
        assert_eq!(sense.information, Some(700));
        bad_field(&rig.a, &blocks(code, 0x04, 100, 1), &[]);
        // BYTCHK 11b: one block for all.
        good(&rig.a, &blocks(code, 0x06, 200, 64), &[0; BLOCK]);
        let sense = bad(
            &rig.a,
            &blocks(code, 0x06, 96, 10),
            &[0; BLOCK],
            SenseKey::Miscompare,
            Asc::MISCOMPARE_DURING_VERIFY,
        );
        assert!((4 * 512..5 * 512).contains(&sense.information.unwrap()));
        good(&rig.a, &blocks(code, 0x02, 100, 0), &[]);
    }
    // What did not come is not compared.
    good(&rig.a, &blocks(0x2f, 0x02, 100, 9), &data);
}

#[test]
fn write_and_verify_is_durable() {
    let rig = Rig::new();
    for (n, code) in [0x2e, 0xae, 0x8e].into_iter().enumerate() {
        for bytchk in [0, 2] {
            let data = pattern(2, n as u8 + bytchk);
            good(&rig.a, &blocks(code, bytchk, 50, 2), &data);
            assert_eq!(at(&rig, 50, 2), data);
        }
        bad_field(&rig.a, &blocks(code, 0x04, 50, 1), &[0; BLOCK]);
        good(&rig.a, &blocks(code, 0, 50, 0), &[]);
    }
    assert_eq!(rig.device.calls.fua_calls.load(Ordering::Relaxed), 6);
    // Half of it: the transport tells of the rest.
    good(&rig.a, &blocks(0x2e, 0, 60, 2), &[7; BLOCK + 9]);
    assert_eq!(at(&rig, 60, 2), [vec![7; BLOCK], vec![0; BLOCK]].concat());
}

fn compare_and_write(lba: u64, count: u8, flags: u8) -> Vec<u8> {
    let mut cdb = blocks(0x89, flags, lba, 0);
    cdb[13] = count;
    cdb
}

#[test]
fn compare_and_write_writes_only_if_equal() {
    let rig = Rig::new();
    let (old, new) = (pattern(4, 1), pattern(4, 2));
    good(&rig.a, &blocks(0x2a, 0, 10, 4), &old);
    let both = [old.clone(), new.clone()].concat();
    good(&rig.a, &compare_and_write(10, 4, 0), &both);
    assert_eq!(at(&rig, 10, 4), new);
    let sense =
        bad(&rig.a, &compare_and_write(10, 4, 0), &both, SenseKey::Miscompare, Asc::MISCOMPARE_DURING_VERIFY);
    assert_eq!(sense.information, new.iter().zip(&old).position(|(a, b)| a != b).map(|n| n as u64));
    assert_eq!(at(&rig, 10, 4), new);
    assert_eq!(rig.device.calls.flushes.load(Ordering::Relaxed), 0);
    good(&rig.a, &compare_and_write(10, 4, 0x08), &[new.clone(), new].concat());
    assert_eq!(rig.device.calls.flushes.load(Ordering::Relaxed), 1);
    good(&rig.a, &compare_and_write(10, 0, 0), &[]);
    bad(
        &rig.a,
        &compare_and_write(LAST, 1, 0),
        &[0; 2 * BLOCK],
        SenseKey::IllegalRequest,
        Asc::LBA_OUT_OF_RANGE,
    );
    // Neither more nor less than the CDB says.
    bad_field(&rig.a, &compare_and_write(0, 1, 0), &[0; 4 * BLOCK]);
    bad_field(&rig.a, &compare_and_write(0, 3, 0), &[0; 4 * BLOCK]);
    bad_field(&rig.a, &compare_and_write(0, 0, 0), &[0; 4 * BLOCK]);
}

#[test]
fn compare_and_write_is_one_step() {
    const ROUNDS: u32 = 200;
    let rig = Rig::new();
    // Two initiators count in one block, as a cluster takes its locks; a third overwrites another
    // block meanwhile.
    let count = |nexus: Arc<Nexus>| {
        for _ in 0..ROUNDS {
            loop {
                let now = good(&nexus, &blocks(0x88, 0, 7, 1), &[]);
                let mut next = now.to_vec();
                let value = u32::from_be_bytes(now[..4].try_into().unwrap()) + 1;
                next[..4].copy_from_slice(&value.to_be_bytes());
                let outcome = run(&nexus, &compare_and_write(7, 1, 0), &[now.to_vec(), next].concat());
                if outcome.status == Status::Good {
                    break;
                }
                assert_eq!(outcome.sense.unwrap().key, SenseKey::Miscompare);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| count(rig.a.clone()));
        scope.spawn(|| count(rig.b.clone()));
        for n in 0..ROUNDS {
            good(&rig.a, &blocks(0x2a, 0, 8, 1), &[n as u8; BLOCK]);
        }
    });
    assert_eq!(at(&rig, 7, 1)[..4], (2 * ROUNDS).to_be_bytes());
}

#[test]
fn orwrite_sets_bits() {
    let rig = Rig::new();
    let (old, new) = (pattern(3, 5), pattern(3, 0x5a));
    good(&rig.a, &blocks(0x2a, 0, 20, 3), &old);
    good(&rig.a, &blocks(0x8b, 0, 20, 3), &new);
    let expected: Vec<u8> = old.iter().zip(&new).map(|(a, b)| a | b).collect();
    assert_eq!(at(&rig, 20, 3), expected);
    good(&rig.a, &blocks(0x8b, 0x08, 20, 3), &new);
    assert_eq!(rig.device.calls.flushes.load(Ordering::Relaxed), 1);
    good(&rig.a, &blocks(0x8b, 0, 20, 0), &[]);
}

fn write_atomic(lba: u64, count: u16, boundary: u16) -> Vec<u8> {
    let mut cdb = blocks(0x9c, 0, lba, 0);
    cdb[10..12].copy_from_slice(&boundary.to_be_bytes());
    cdb[12..14].copy_from_slice(&count.to_be_bytes());
    cdb
}

#[test]
fn write_atomic_has_limits() {
    let rig = Rig::new();
    let data = pattern(256, 4);
    good(&rig.a, &write_atomic(3, 256, 0), &data);
    assert_eq!(at(&rig, 3, 256), data);
    assert_eq!(rig.device.calls.writes.load(Ordering::Relaxed), 1, "one write of the device");
    good(&rig.a, &write_atomic(0, 0, 0), &[]);
    bad_field(&rig.a, &write_atomic(0, 257, 0), &vec![0; 257 * BLOCK]);
    bad_field(&rig.a, &write_atomic(0, 8, 4), &vec![0; 8 * BLOCK]);
    bad_field(&rig.a, &write_atomic(0, 8, 0), &vec![0; 7 * BLOCK]);
    bad(&rig.a, &write_atomic(LAST, 1, 0), &[0; BLOCK], SenseKey::IllegalRequest, Asc::LBA_OUT_OF_RANGE);
    let plain = Rig::with(info(1 << 20), LuOptions::default());
    let unknown = Asc::INVALID_COMMAND_OPERATION_CODE;
    bad(&plain.a, &write_atomic(0, 1, 0), &[0; BLOCK], SenseKey::IllegalRequest, unknown);
}

#[test]
fn capacity_is_told() {
    let rig = Rig::new();
    let short = good(&rig.a, &blocks(0x25, 0, 0, 0), &[]);
    assert_eq!(short[..], [[0, 0, 0x1f, 0xff], [0, 0, 2, 0]].concat());
    bad_field(&rig.a, &blocks(0x25, 0, 1, 0), &[]);
    let mut cdb = blocks(0x9e, 0x10, 0, 32);
    let long = good(&rig.a, &cdb, &[]);
    assert_eq!(long.len(), 32);
    assert_eq!(long[..12], [[0, 0, 0, 0], [0, 0, 0x1f, 0xff], [0, 0, 2, 0]].concat());
    assert_eq!(long[12..16], [0, 0, 0xc0, 0], "LBPME, LBPRZ");
    let options = LuOptions { physical_block_size: 4096, ..LuOptions::default() };
    assert_eq!(good(&Rig::with(info(1 << 20), options).a, &cdb, &[])[13], 3);
    for n in 0..34 {
        cdb[13] = n;
        assert_eq!(good(&rig.a, &cdb, &[])[..], long[..usize::from(n).min(32)]);
    }
    let huge =
        Rig::with(hindcast_engine::device::DeviceInfo { block_size: 4096, ..info(0) }, LuOptions::default());
    assert_eq!(good(&huge.a, &blocks(0x25, 0, 0, 0), &[])[..], [0, 0, 0, 0, 0, 0, 0x10, 0]);
}

#[test]
fn prefetch_is_a_hint() {
    let rig = Rig::new();
    for code in [0x34, 0x90] {
        good(&rig.a, &blocks(code, 0, 0, 5), &[]);
        good(&rig.a, &blocks(code, 0x02, 10, 0), &[]);
        good(&rig.a, &blocks(code, 0, LAST, 0), &[]);
    }
    assert_eq!(rig.device.calls.caches.load(Ordering::Relaxed), 4);
}

#[test]
fn a_stopped_unit_waits_for_start() {
    let rig = Rig::new();
    let not_started = Asc::INITIALIZING_COMMAND_REQUIRED;
    good(&rig.a, &[0x1b, 0, 0, 0, 0, 0], &[]);
    assert_eq!(rig.device.calls.flushes.load(Ordering::Relaxed), 1);
    for cdb in [vec![0; 6], blocks(0x28, 0, 0, 1), blocks(0x2a, 0, 0, 1), blocks(0x25, 0, 0, 0)] {
        bad(&rig.b, &cdb, &[], SenseKey::NotReady, not_started);
    }
    good(&rig.b, &[0x12, 0, 0, 0, 96, 0], &[]);
    good(&rig.b, &[0x1b, 0, 0, 0, 1, 0], &[]);
    good(&rig.a, &[0; 6], &[]);
    bad_field(&rig.a, &[0x1b, 0, 0, 0, 0x02, 0], &[]); // LOEJ
    good(&rig.a, &[0x1b, 0, 0, 0, 0x21, 0], &[]); // IDLE
    bad_field(&rig.a, &[0x1b, 0, 0, 0, 0x51, 0], &[]);
    good(&rig.a, &[0x1e, 0, 0, 0, 1, 0], &[]);
    good(&rig.a, &[0x1e, 0, 0, 0, 0, 0], &[]);
    bad_field(&rig.a, &[0x1e, 0, 0, 0, 2, 0], &[]);
}

#[test]
fn there_are_no_defects() {
    let rig = Rig::new();
    assert_eq!(good(&rig.a, &[0x37, 0, 0x1d, 0, 0, 0, 0, 0, 32, 0], &[])[..], [0, 0x1d, 0, 0]);
    assert_eq!(
        good(&rig.a, &[0xb7, 0x0d, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], &[])[..],
        [0, 0x0d, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(good(&rig.a, &[0x37, 0, 0, 0, 0, 0, 0, 0, 3, 0], &[]).len(), 3);
}

#[test]
fn an_aborted_task_ends() {
    let rig = Rig::new();
    let Command::Other(task) = rig.a.start(0, &blocks(0x8f, 0, 0, LAST), 0) else { panic!("not a task") };
    task.abort();
    assert_eq!(task.run(&bytes::Bytes::new()).status, Status::TaskAborted);
}

#[test]
fn unknown_commands_are_refused() {
    let rig = Rig::new();
    for code in [0x04, 0x07, 0x13, 0x1c, 0x1d, 0x3b, 0x3c, 0x7f, 0x85, 0x9f, 0xa4, 0xff] {
        let mut cdb = [0; 16];
        cdb[0] = code;
        bad(&rig.a, &cdb, &[], SenseKey::IllegalRequest, Asc::INVALID_COMMAND_OPERATION_CODE);
    }
    // A known code with an unknown service action is a bad field.
    for (code, action) in [(0x9e, 0x11), (0xa3, 0x0b), (0x5e, 4), (0x5f, 8), (0x48, 3), (0x83, 1), (0x84, 1)]
    {
        let mut cdb = [0; 16];
        cdb[..2].copy_from_slice(&[code, action]);
        bad_field(&rig.a, &cdb, &[]);
    }
    // A CDB may be cut short: the rest is zeros.
    good(&rig.a, &[0], &[]);
    assert!(run(&rig.a, &[], &[]).sense.is_none());
}
