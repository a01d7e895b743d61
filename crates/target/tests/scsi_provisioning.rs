//! UNMAP, WRITE SAME, GET LBA STATUS, thresholds and the log page about space.
#![allow(clippy::unwrap_used)] // the lint knows test functions only, not what they use

#[path = "common/mem.rs"]
mod mem;
#[path = "common/scsi.rs"]
mod scsi;

use hindcast_target::scsi::*;
use mem::SHARD;
use parking_lot::Mutex;
use scsi::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks of the device's unit of allocation.
const UNIT: u64 = SHARD / 512;
const LAST: u64 = 8192;

fn unmap(ranges: &[(u64, u32)]) -> (Vec<u8>, Vec<u8>) {
    let len = ranges.len() as u16 * 16;
    let mut list = [(len + 6).to_be_bytes(), len.to_be_bytes(), [0, 0], [0, 0]].concat();
    for (lba, count) in ranges {
        list.extend(lba.to_be_bytes());
        list.extend(count.to_be_bytes());
        list.extend([0; 4]);
    }
    let mut cdb = vec![0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    cdb[7..9].copy_from_slice(&(list.len() as u16).to_be_bytes());
    (cdb, list)
}

fn fill(rig: &Rig) {
    for lba in (0..LAST).step_by(1024) {
        good(&rig.a, &blocks(0x8a, 0, lba, 1024), &vec![0xff; 1024 * BLOCK]);
    }
}

/// (LBA, count, whether mapped)
fn status(rig: &Rig, lba: u64, room: u32) -> Vec<(u64, u32, bool)> {
    let data = good(&rig.a, &blocks(0x9e, 0x12, lba, u64::from(room)), &[]);
    let len = u32::from_be_bytes(data[..4].try_into().unwrap());
    assert_eq!(len as usize + 4, data.len().max(8 + 16 * (data.len() - 8) / 16));
    let field = |d: &[u8], n: usize| {
        d[n..].iter().take(if n == 0 { 8 } else { 4 }).fold(0, |a, &b| a << 8 | u64::from(b))
    };
    data[8..].chunks(16).map(|d| (field(d, 0), field(d, 8) as u32, d[12] == 0)).collect()
}

#[test]
fn unmapped_blocks_read_as_zeros_and_are_deallocated() {
    let rig = Rig::new();
    fill(&rig);
    let (cdb, list) = unmap(&[(UNIT, UNIT as u32), (3, 2), (LAST, 0), (LAST - 1, 1)]);
    good(&rig.a, &cdb, &list);
    assert_eq!(at(&rig, UNIT as usize, UNIT as usize), vec![0; SHARD as usize]);
    assert_eq!(at(&rig, 2, 4), [vec![0xff; BLOCK], vec![0; 2 * BLOCK], vec![0xff; BLOCK]].concat());
    assert_eq!(at(&rig, LAST as usize - 2, 2), [[0xff; BLOCK], [0; BLOCK]].concat());
    let unit = UNIT as u32;
    assert_eq!(
        status(&rig, 0, 1000),
        [(0, unit, true), (UNIT, unit, false), (2 * UNIT, LAST as u32 - 2 * unit, true)]
    );
    assert_eq!(status(&rig, UNIT + 5, 24), [(UNIT + 5, unit - 5, false)]);
    assert_eq!(status(&rig, LAST - 1, 24).len(), 1);
    bad(&rig.a, &blocks(0x9e, 0x12, LAST, 24), &[], SenseKey::IllegalRequest, Asc::LBA_OUT_OF_RANGE);
    assert_eq!(good(&rig.a, &blocks(0x9e, 0x12, 0, 5), &[]).len(), 5);
}

#[test]
fn unmap_is_checked_before_anything_happens() {
    let rig = Rig::new();
    fill(&rig);
    let refuse = |(cdb, list): (Vec<u8>, Vec<u8>), asc| {
        bad(&rig.a, &cdb, &list, SenseKey::IllegalRequest, asc);
    };
    refuse(unmap(&[(0, 1), (LAST, 1)]), Asc::LBA_OUT_OF_RANGE);
    refuse(unmap(&[(0, 1), (u64::MAX, 2)]), Asc::LBA_OUT_OF_RANGE);
    let (mut cdb, list) = unmap(&[(0, 1)]);
    cdb[1] = 1; // ANCHOR
    refuse((cdb, list), Asc::INVALID_FIELD_IN_CDB);
    for len in 1..8 {
        refuse(
            (vec![0x42, 0, 0, 0, 0, 0, 0, 0, len, 0], vec![0; usize::from(len)]),
            Asc::PARAMETER_LIST_LENGTH_ERROR,
        );
    }
    assert_eq!(at(&rig, 0, 1), [0xff; BLOCK]);
    good(&rig.a, &unmap(&[]).0, &unmap(&[]).1);
    good(&rig.a, &[0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]);
    // A descriptor that is cut off is not there.
    let (_, list) = unmap(&[(0, 1), (1, 1)]);
    good(&rig.a, &[0x42, 0, 0, 0, 0, 0, 0, 0, 39, 0], &list[..39]);
    assert_eq!(at(&rig, 0, 2), [[0; BLOCK], [0xff; BLOCK]].concat());
}

#[test]
fn write_same_repeats_a_block() {
    let rig = Rig::new();
    let block: Vec<u8> = (0..BLOCK).map(|n| n as u8).collect();
    for code in [0x41, 0x93] {
        good(&rig.a, &blocks(code, 0, 17, 5000), &block);
        assert_eq!(at(&rig, 17, 5000), block.repeat(5000));
        assert_eq!(at(&rig, 16, 1), [0; BLOCK]);
        // Zeros that may be unmapped are; others are written.
        good(&rig.a, &blocks(code, 0x08, 0, LAST), &[0; BLOCK]);
        assert_eq!(status(&rig, 0, 1000), [(0, LAST as u32, false)]);
        good(&rig.a, &blocks(code, 0, 0, UNIT), &[0; BLOCK]);
        assert_eq!(status(&rig, 0, 24), [(0, UNIT as u32, true)]);
        // Data that is not zero is written even if it might be unmapped.
        good(&rig.a, &blocks(code, 0x08, 5, 2), &block);
        assert_eq!(at(&rig, 5, 2), block.repeat(2));
        good(&rig.a, &blocks(code, 0x08, 0, LAST), &[0; BLOCK]);
    }
    // NDOB: no data at all.
    good(&rig.a, &blocks(0x93, 0, 0, 4), &block);
    good(&rig.a, &blocks(0x93, 0x01, 1, 2), &[]);
    assert_eq!(at(&rig, 0, 4), [block.clone(), vec![0; 2 * BLOCK], block].concat());
    good(&rig.a, &blocks(0x93, 0x09, 0, UNIT), &[]);
    assert_eq!(status(&rig, 0, 24), [(0, LAST as u32, false)]);
}

#[test]
fn write_same_refuses_what_it_must() {
    let rig = Rig::new();
    for code in [0x41, 0x93] {
        for flags in [0x10, 0x18, 0x02, 0x04] {
            bad_field(&rig.a, &blocks(code, flags, 0, 1), &[0; BLOCK]); // ANCHOR, LBDATA, PBDATA
        }
        bad_field(&rig.a, &blocks(code, 0, 0, 0), &[0; BLOCK]);
        for len in [0, BLOCK / 2, 2 * BLOCK] {
            bad_field(&rig.a, &blocks(code, 0x08, 0, 1), &vec![0; len]);
        }
    }
    bad_field(&rig.a, &blocks(0x93, 0x01, 0, 1), &[0; BLOCK]);
}

fn with_space() -> (Rig, Arc<AtomicU64>) {
    let available = Arc::new(AtomicU64::new(100 << 20));
    let seen = available.clone();
    let space = move || Space { used: 3 << 20, available: seen.load(Ordering::Relaxed) };
    let options = LuOptions { space: Some(Arc::new(space)), ..LuOptions::default() };
    (Rig::with(info(4 << 20), options), available)
}

#[test]
fn the_log_page_tells_of_space() {
    let (rig, available) = with_space();
    assert_eq!(good(&rig.a, &[0x4d, 0, 0, 0, 0, 0, 0, 0, 99, 0], &[])[..], [0, 0, 0, 2, 0x00, 0x0c]);
    assert_eq!(
        good(&rig.a, &[0x4d, 0, 0x40, 0xff, 0, 0, 0, 0, 99, 0], &[])[..],
        [0x40, 0xff, 0, 6, 0, 0, 0, 0xff, 0x0c, 0]
    );
    let page = good(&rig.a, &[0x4d, 0, 0x4c, 0, 0, 0, 0, 0, 99, 0], &[]);
    let expected: [&[u8]; 3] =
        [&[0x0c, 0, 0, 24], &[0, 1, 3, 8, 0, 0, 0, 100, 2, 0, 0, 0], &[0, 2, 3, 8, 0, 0, 0, 3, 1, 0, 0, 0]];
    assert_eq!(page[..], expected.concat());
    available.store(5 << 20, Ordering::Relaxed);
    assert_eq!(good(&rig.a, &[0x4d, 0, 0x4c, 0, 0, 0, 0, 0, 12, 0], &[])[11], 5);
    let from_two = good(&rig.a, &[0x4d, 0, 0x4c, 0, 0, 0, 2, 0, 99, 0], &[]);
    assert_eq!(from_two[..4], [0x0c, 0, 0, 12]);
    for cdb in [
        [0x4d, 1, 0x4c, 0, 0, 0, 0, 0, 99, 0],
        [0x4d, 0, 0x4c, 0, 0, 0, 3, 0, 99, 0],
        [0x4d, 0, 0x4c, 1, 0, 0, 0, 0, 99, 0],
        [0x4d, 0, 0x42, 0, 0, 0, 0, 0, 99, 0],
    ] {
        bad_field(&rig.a, &cdb, &[]);
    }
    let plain = Rig::new();
    assert_eq!(good(&plain.a, &[0x4d, 0, 0, 0, 0, 0, 0, 0, 99, 0], &[])[..], [0, 0, 0, 1, 0x00]);
    bad_field(&plain.a, &[0x4d, 0, 0x4c, 0, 0, 0, 0, 0, 99, 0], &[]);
    good(&rig.a, &[0x4c, 2, 0, 0, 0, 0, 0, 0, 0, 0], &[]);
    bad_field(&rig.a, &[0x4c, 1, 0, 0, 0, 0, 0, 0, 0, 0], &[]);
}

#[test]
fn a_threshold_is_reported_once() {
    let (rig, available) = with_space();
    // The page as it is, with the threshold armed at 50 sets of 1 MiB.
    let page = good(&rig.a, &[0x5a, 0x08, 0x1c, 2, 0, 0, 0, 0, 99, 0], &[]);
    let mut list = page.to_vec();
    list[..2].fill(0);
    list[3] = 0;
    list[8] &= 0x7f; // PS
    list[8 + 16] |= 0x80;
    list[8 + 20..8 + 24].copy_from_slice(&50u32.to_be_bytes());
    good(&rig.a, &[0x55, 0x10, 0, 0, 0, 0, 0, 0, list.len() as u8, 0], &list);
    assert_eq!(attention(&rig.b), Some(Asc::MODE_PARAMETERS_CHANGED));
    rig.lu.check_thresholds();
    assert_eq!(attention(&rig.b), None);
    available.store(50 << 20, Ordering::Relaxed);
    rig.lu.check_thresholds();
    rig.lu.check_thresholds();
    for nexus in [&rig.a, &rig.b] {
        assert_eq!(attention(nexus), Some(Asc::THIN_PROVISIONING_THRESHOLD));
        assert_eq!(attention(nexus), None);
    }
    available.store(60 << 20, Ordering::Relaxed);
    rig.lu.check_thresholds();
    available.store(40 << 20, Ordering::Relaxed);
    rig.lu.check_thresholds();
    assert_eq!(attention(&rig.a), Some(Asc::THIN_PROVISIONING_THRESHOLD));
}

#[test]
fn the_log_page_tells_of_the_scan_and_of_damage() {
    let state = Arc::new(Mutex::new(Scan::default()));
    let seen = state.clone();
    let scan = move || *seen.lock();
    let options = LuOptions { scan: Some(Arc::new(scan)), ..LuOptions::default() };
    let rig = Rig::with(info(4 << 20), options);
    assert_eq!(good(&rig.a, &[0x4d, 0, 0, 0, 0, 0, 0, 0, 99, 0], &[])[..], [0, 0, 0, 2, 0x00, 0x15]);
    let page = |first: u8| good(&rig.a, &[0x4d, 0, 0x55, 0, 0, 0, first, 0, 99, 0], &[]);
    assert_eq!(page(0)[..], [0x15, 0, 0, 16, 0, 0, 3, 12, 0, 0, 0, 0, 0, 0x08, 0, 0, 0, 0, 0, 0]);
    *state.lock() = Scan { running: true, paused: false, done: 1, total: 2, passes: 3, minutes: 0x0102 };
    assert_eq!(page(0)[4..], [0, 0, 3, 12, 0, 0, 1, 2, 0, 0x01, 0, 3, 0x7f, 0xff, 0, 3]);
    state.lock().paused = true;
    assert_eq!(page(0)[13], 0x06);
    bad_field(&rig.a, &[0x4d, 0, 0x55, 0, 0, 0, 1, 0, 99, 0], &[]);
    // Block 5 is damaged.
    *rig.device.damaged.lock() = Some(5 * BLOCK as u64);
    let found = [0, 1, 3, 20, 0, 0, 1, 2, 0x13, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];
    assert_eq!(page(0)[2..4], [0, 16 + 24]);
    assert_eq!(page(0)[20..], found);
    assert_eq!(page(1)[4..], found);
    bad_field(&rig.a, &[0x4d, 0, 0x55, 0, 0, 0, 2, 0, 99, 0], &[]);
    bad_field(&Rig::new().a, &[0x4d, 0, 0x55, 0, 0, 0, 0, 0, 99, 0], &[]);
}
