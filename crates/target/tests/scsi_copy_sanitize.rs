//! EXTENDED COPY with RECEIVE COPY RESULTS, and SANITIZE.
#![allow(clippy::unwrap_used)] // the lint knows test functions only, not what they use

#[path = "common/mem.rs"]
mod mem;
#[path = "common/scsi.rs"]
mod scsi;

use hindcast_engine::ErrorKind;
use hindcast_engine::device::{BlockDevice, DeviceInfo};
use hindcast_target::scsi::*;
use mem::MemDevice;
use scsi::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// A CSCD descriptor by the first designator of device identification.
fn target_descriptor(nexus: &Arc<Nexus>, lun: u64, block_size: u32) -> Vec<u8> {
    let page = run_at(nexus, lun, &[0x12, 1, 0x83, 1, 0, 0], &[]).data_in;
    let len = usize::from(page[7]);
    let mut descriptor = vec![0xe4, 0, 0, 0];
    descriptor.extend(&page[4..8 + len]);
    descriptor.resize(28, 0);
    descriptor.extend(block_size.to_be_bytes());
    descriptor
}

fn segment(source: u16, destination: u16, blocks: u16, from: u64, to: u64) -> Vec<u8> {
    let mut descriptor = vec![0x02, 0, 0, 24];
    descriptor.extend(source.to_be_bytes());
    descriptor.extend(destination.to_be_bytes());
    descriptor.extend([0, 0]);
    descriptor.extend(blocks.to_be_bytes());
    descriptor.extend(from.to_be_bytes());
    descriptor.extend(to.to_be_bytes());
    descriptor
}

fn copy(list_id: u8, targets: &[Vec<u8>], segments: &[Vec<u8>]) -> (Vec<u8>, Vec<u8>) {
    let (targets, segments) = (targets.concat(), segments.concat());
    let mut list = vec![list_id, 0];
    list.extend((targets.len() as u16).to_be_bytes());
    list.extend([0; 4]);
    list.extend((segments.len() as u32).to_be_bytes());
    list.extend([0; 4]);
    list.extend(targets);
    list.extend(segments);
    (copy_cdb(list.len()), list)
}

fn copy_cdb(len: usize) -> Vec<u8> {
    let mut cdb = vec![0x83; 16];
    cdb[1..].fill(0);
    cdb[10..14].copy_from_slice(&(len as u32).to_be_bytes());
    cdb
}

fn results(action: u8, list_id: u8) -> [u8; 16] {
    [0x84, action, list_id, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0]
}

/// A second logical unit with 4 KiB blocks at LUN 1.
fn with_second(rig: &Rig) -> (Arc<MemDevice>, Arc<LogicalUnit>, u64) {
    let info = DeviceInfo { block_size: 4096, uuid: Uuid::from_bytes(*b"second logical u"), ..info(1 << 20) };
    let device = Arc::new(MemDevice::with_info(info));
    let lu = LogicalUnit::new(device.clone(), LuOptions::default(), None).unwrap();
    rig.target.set_lun(1, Some(lu.clone()));
    rig.settle();
    (device, lu, lun_to_wire(1))
}

#[test]
fn blocks_are_copied() {
    let rig = Rig::new();
    let (device, _, lun) = with_second(&rig);
    let data: Vec<u8> = (0..4096 * BLOCK).map(|n| (n / 100) as u8).collect();
    good(&rig.a, &blocks(0x8a, 0, 0, 4096), &data);
    let targets = [target_descriptor(&rig.a, 0, 512), target_descriptor(&rig.a, lun, 4096)];
    let segments = [segment(0, 0, 3000, 5, 5000), segment(0, 1, 64, 16, 2), segment(1, 0, 8, 2, 8000)];
    let (cdb, list) = copy(7, &targets, &segments);
    good(&rig.a, &cdb, &list);
    assert_eq!(at(&rig, 5000, 3000), data[5 * BLOCK..3005 * BLOCK]);
    let mut there = vec![0; 64 * BLOCK];
    device.read(2 * 4096, &mut there).unwrap();
    assert_eq!(there, data[16 * BLOCK..80 * BLOCK]);
    assert_eq!(at(&rig, 8000, 64), data[16 * BLOCK..80 * BLOCK], "counted in blocks of the source");
    let kib = (3000 * 512 + 64 * 512 + 8 * 4096) as u32 / 1024;
    let status = good(&rig.a, &results(0, 7), &[]);
    assert_eq!(status[..8], [0, 0, 0, 8, 1, 0, 3, 1]);
    assert_eq!(status[8..], kib.to_be_bytes());
    let details = good(&rig.a, &results(4, 7), &[]);
    assert_eq!((details.len(), details[3], details[56]), (60, 56, 0));
    // It is that initiator's alone, and that list's.
    bad_field(&rig.b, &results(0, 7), &[]);
    bad_field(&rig.a, &results(0, 8), &[]);
    // With DC the count is in blocks of the destination.
    let mut by_destination = segment(0, 1, 2, 0, 10);
    by_destination[1] = 2;
    let (cdb, list) = copy(7, &targets, &[by_destination]);
    good(&rig.a, &cdb, &list);
    let mut there = vec![0; 2 * 4096];
    device.read(10 * 4096, &mut there).unwrap();
    assert_eq!(there, data[..2 * 4096]);
    // Usage 11b: nothing is kept.
    let (cdb, mut list) = copy(0, &targets, &segments);
    list[1] = 0x18;
    good(&rig.a, &cdb, &list);
    bad_field(&rig.a, &results(0, 0), &[]);
    good(&rig.a, &copy_cdb(0), &[]);
    let parameters = good(&rig.a, &results(3, 0), &[]);
    assert_eq!(parameters[..4], [0, 0, 0, 42]);
    assert_eq!(parameters[8..16], [0, 16, 0, 16, 0, 0, 3, 0xc0]);
    assert_eq!(parameters[43..], [2, 0x02, 0xe4]);
}

#[test]
fn a_list_that_is_not_understood_copies_nothing() {
    let rig = Rig::new();
    let target = [target_descriptor(&rig.a, 0, 512)];
    let fine = [segment(0, 0, 1, 0, 1)];
    let refuse = |targets: &[Vec<u8>], segments: &[Vec<u8>], asc| {
        let (cdb, list) = copy(1, targets, segments);
        bad(&rig.a, &cdb, &list, SenseKey::IllegalRequest, asc);
    };
    let changed = |at: usize, value: u8| {
        let mut target = target[0].clone();
        target[at] = value;
        target
    };
    refuse(&[changed(0, 0xe0)], &fine, Asc::UNSUPPORTED_TARGET_DESCRIPTOR);
    refuse(&[changed(1, 1)], &fine, Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    refuse(&[changed(30, 4)], &fine, Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    let mut stream = fine[0].clone();
    stream[0] = 3;
    refuse(&target, &[stream], Asc::UNSUPPORTED_SEGMENT_DESCRIPTOR);
    let mut long = fine[0].clone();
    long[3] = 25;
    refuse(&target, &[long], Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    refuse(&vec![target[0].clone(); 17], &fine, Asc::TOO_MANY_TARGET_DESCRIPTORS);
    refuse(&target, &vec![fine[0].clone(); 17], Asc::TOO_MANY_SEGMENT_DESCRIPTORS);
    refuse(&vec![target[0].clone(); 17], &vec![fine[0].clone(); 17], Asc::PARAMETER_LIST_LENGTH_ERROR);
    refuse(&[target[0][..31].to_vec()], &fine, Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    refuse(&target, &[fine[0][..27].to_vec()], Asc::PARAMETER_LIST_LENGTH_ERROR);
    let (_, list) = copy(1, &target, &fine);
    for len in [1, 15, 16, 47, 75] {
        bad(&rig.a, &copy_cdb(len), &list[..len], SenseKey::IllegalRequest, Asc::PARAMETER_LIST_LENGTH_ERROR);
    }
    let mut inline = list.clone();
    inline[15] = 1;
    bad(&rig.a, &copy_cdb(list.len()), &inline, SenseKey::IllegalRequest, Asc::INLINE_DATA_LENGTH_EXCEEDED);
    for usage in [0x08, 0x18] {
        let mut list = list.clone();
        list[1] = usage;
        bad(
            &rig.a,
            &copy_cdb(list.len()),
            &list,
            SenseKey::IllegalRequest,
            Asc::INVALID_FIELD_IN_PARAMETER_LIST,
        );
    }
    assert_eq!(rig.device.calls.writes.load(Ordering::Relaxed), 0);
}

#[test]
fn a_copy_that_fails_says_how_far_it_came() {
    let rig = Rig::new();
    let (_, second, lun) = with_second(&rig);
    let targets = [target_descriptor(&rig.a, 0, 512), target_descriptor(&rig.a, lun, 4096), vec![0; 32]];
    let mut unknown = targets.clone();
    unknown[2] = targets[0].clone();
    unknown[2][15] ^= 0xff;
    let abort = |segments: &[Vec<u8>], asc| {
        let (cdb, list) = copy(3, &unknown, segments);
        let sense = bad(&rig.a, &cdb, &list, SenseKey::CopyAborted, asc);
        let status = good(&rig.a, &results(0, 3), &[]);
        assert_eq!(status[4], 2);
        let details = good(&rig.a, &results(4, 3), &[]);
        assert_eq!((details[56], &details[60..]), (2, &sense.to_bytes()[..]));
        u16::from_be_bytes([status[5], status[6]])
    };
    let fine = segment(0, 0, 8, 0, 100);
    assert_eq!(abort(&[fine.clone(), segment(0, 3, 1, 0, 0)], Asc::UNREACHABLE_COPY_TARGET), 1);
    assert_eq!(
        abort(&[fine.clone(), fine.clone(), segment(2, 0, 1, 0, 0)], Asc::COPY_TARGET_NOT_REACHABLE),
        2
    );
    assert_eq!(abort(&[segment(0, 0, 2, 0, 8191)], Asc::NONE), 0);
    assert_eq!(abort(&[segment(0, 0, 2, u64::MAX, 0)], Asc::NONE), 0);
    assert_eq!(abort(&[segment(0, 1, 7, 0, 0)], Asc::NONE), 0, "no whole blocks");
    *rig.device.failure.lock() = Some(ErrorKind::Io);
    assert_eq!(abort(std::slice::from_ref(&fine), Asc::THIRD_PARTY_DEVICE_FAILURE), 0);
    *rig.device.failure.lock() = None;
    // What the initiator may not do it may not do in this way either.
    let (cdb, list) = copy(3, &unknown, &[segment(0, 1, 8, 0, 0)]);
    rig.a.set_access(Access { read_only: true, ..Access::default() });
    bad(&rig.a, &cdb, &list, SenseKey::DataProtect, Asc::WRITE_PROTECTED);
    rig.a.set_access(Access::default());
    let stop = [0x1b, 0, 0, 0, 0, 0];
    while run_at(&rig.b, lun, &stop, &[]).sense.is_some() {}
    bad(&rig.a, &cdb, &list, SenseKey::CopyAborted, Asc::COPY_TARGET_NOT_REACHABLE);
    run_at(&rig.b, lun, &[0x1b, 0, 0, 0, 1, 0], &[]);
    good(&rig.a, &cdb, &list);
    run_at(&rig.b, lun, &[0x16, 0, 0, 0, 0, 0], &[]);
    bad(&rig.a, &cdb, &list, SenseKey::CopyAborted, Asc::COPY_TARGET_NOT_REACHABLE);
    assert_eq!(second.block_size(), 4096);
}

fn sanitize(action: u8, len: usize) -> Vec<u8> {
    vec![0x48, action, 0, 0, 0, 0, 0, (len >> 8) as u8, len as u8, 0]
}

fn overwrite(count: u8, pattern: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut list = vec![count, 0];
    list.extend((pattern.len() as u16).to_be_bytes());
    list.extend(pattern);
    (sanitize(1, list.len()), list)
}

fn slow() -> Rig {
    // Two seconds for all of it.
    Rig::with(info(4 << 20), LuOptions { sanitize_rate: 2 << 20, ..LuOptions::default() })
}

#[test]
fn block_erase_unmaps_everything() {
    let rig = Rig::new();
    good(&rig.a, &blocks(0x2a, 0, 100, 100), &vec![1; 100 * BLOCK]);
    good(&rig.a, &sanitize(2, 0), &[]);
    assert_eq!(rig.device.content(), vec![0; 4 << 20]);
    let status = good(&rig.a, &blocks(0x9e, 0x12, 0, 1000), &[]);
    assert_eq!(
        status[8..],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 1, 0, 0, 0],
        "one descriptor, deallocated"
    );
    bad_field(&rig.a, &sanitize(2, 8), &[0; 8]);
    bad_field(&rig.a, &sanitize(0x1f, 8), &[0; 8]);
    good(&rig.a, &sanitize(0x1f, 0), &[]);
    bad_field(&rig.a, &sanitize(3, 0), &[]); // CRYPTO ERASE: nothing is encrypted
}

#[test]
fn overwrite_repeats_the_pattern_in_every_block() {
    let rig = Rig::with(info(4 << 20), LuOptions { sanitize_rate: 1 << 40, ..LuOptions::default() });
    for (count, pattern) in [(1, vec![0xaa; 512]), (2, vec![1, 2, 3]), (31, vec![7])] {
        let (cdb, list) = overwrite(count, &pattern);
        good(&rig.a, &cdb, &list);
        let block: Vec<u8> = pattern.iter().copied().cycle().take(512).collect();
        assert_eq!(rig.device.content(), block.repeat(8192));
    }
    let (cdb, list) = overwrite(0x82, &[0x0f]);
    good(&rig.a, &cdb, &list);
    assert_eq!(rig.device.content()[..2], [0xf0; 2], "the second pass is inverted");
    for (len, list) in [(0, vec![]), (4, vec![1, 0, 0, 0]), (517, vec![1; 517])] {
        bad_field(&rig.a, &sanitize(1, len), &list);
    }
    for list in [[0, 0, 0, 1, 9], [1, 0, 0, 0, 9], [1, 0, 0, 2, 9], [1, 0, 2, 1, 9]] {
        bad(&rig.a, &sanitize(1, 5), &list, SenseKey::IllegalRequest, Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    }
    // What is reserved has to be zero.
    let (cdb, list) = overwrite(1, &[9]);
    for (byte, bits) in [(1, 0x40), (2, 1), (3, 2), (4, 4), (5, 8), (6, 0x80)] {
        let mut cdb = cdb.clone();
        cdb[byte] |= bits;
        bad_field(&rig.a, &cdb, &list);
    }
}

#[test]
fn while_it_runs_nothing_else_does() {
    let rig = slow();
    let begun = Instant::now();
    let (mut cdb, list) = overwrite(1, &[0x55]);
    cdb[1] |= 0x80; // IMMED
    good(&rig.a, &cdb, &list);
    let in_progress = Asc::SANITIZE_IN_PROGRESS;
    for cdb in
        [vec![0; 6], blocks(0x28, 0, 0, 1), blocks(0x2a, 0, 0, 1), vec![0x1b, 0, 0, 0, 1, 0], sanitize(2, 0)]
    {
        bad(&rig.b, &cdb, &[0; BLOCK], SenseKey::NotReady, in_progress);
    }
    good(&rig.b, &[0x12, 0, 0, 0, 96, 0], &[]);
    // A write that was let in before comes too late.
    let mut ops = [hindcast_engine::device::WriteOp::new(0, bytes::Bytes::from(vec![1; 512]))];
    rig.lu.write(&mut ops, false);
    assert_eq!(ops[0].result.as_ref().unwrap_err().kind(), ErrorKind::Busy);
    rig.a.reset_lu(0);
    rig.settle();
    let mut last = 0;
    loop {
        let sense = good(&rig.b, &[3, 0, 0, 0, 18, 0], &[]);
        if sense[2] == 0 {
            break;
        }
        assert_eq!((sense[2], sense[12], sense[13], sense[15]), (2, 4, 0x1b, 0x80));
        let progress = u16::from_be_bytes([sense[16], sense[17]]);
        assert!(progress >= last);
        last = progress;
        std::thread::sleep(Duration::from_millis(20));
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    assert!(last > 0);
    good(&rig.b, &[0; 6], &[]);
    assert_eq!(rig.device.content(), vec![0x55; 4 << 20]);
    good(&rig.a, &cdb, &list);
    rig.lu.retire();
    bad(&rig.b, &[0; 6], &[], SenseKey::MediumError, Asc::SANITIZE_FAILED);
}

#[test]
fn it_goes_on_without_its_command() {
    let rig = slow();
    let (cdb, list) = overwrite(1, &[0x66]);
    let Command::Other(task) = rig.a.start(0, &cdb, list.len() as u64) else { panic!("not a task") };
    assert!(task.may_take_long());
    std::thread::scope(|scope| {
        let running = scope.spawn(|| task.run(&list.clone().into()));
        // The state is written just before it begins.
        while rig.store.state.lock().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        task.abort();
        assert_eq!(running.join().unwrap().status, Status::TaskAborted);
    });
    bad(&rig.b, &[0; 6], &[], SenseKey::NotReady, Asc::SANITIZE_IN_PROGRESS);
    // A server that starts anew finds that it was interrupted.
    let state = rig.store.state.lock().clone();
    let store = Arc::new(Store::default());
    *store.state.lock() = state;
    let again = Rig::over(Arc::new(MemDevice::new(1 << 20)), LuOptions::default(), store);
    for cdb in [vec![0; 6], blocks(0x28, 0, 0, 1)] {
        bad(&again.a, &cdb, &[], SenseKey::MediumError, Asc::SANITIZE_FAILED);
    }
    good(&again.a, &sanitize(0x1f, 0), &[]);
    good(&again.a, &blocks(0x28, 0, 0, 1), &[]);
    let once_more = Rig::over(again.device.clone(), LuOptions::default(), again.store.clone());
    good(&once_more.a, &blocks(0x28, 0, 0, 1), &[]);
}

#[test]
fn a_failure_is_kept_until_it_is_dealt_with() {
    let rig = Rig::new();
    *rig.device.failure.lock() = Some(ErrorKind::Io);
    // AUSE: the initiator may give up.
    for (flags, may_give_up) in [(0x20, true), (0, false)] {
        let sense = run(&rig.a, &sanitize(2 | flags, 0), &[]).sense.unwrap();
        assert_eq!((sense.key, sense.asc), (SenseKey::MediumError, Asc::SANITIZE_FAILED));
        bad(&rig.b, &[0; 6], &[], SenseKey::MediumError, Asc::SANITIZE_FAILED);
        assert_eq!(run(&rig.b, &sanitize(0x1f, 0), &[]).status == Status::Good, may_give_up);
        assert_eq!(run(&rig.b, &[0; 6], &[]).status == Status::Good, may_give_up);
    }
    *rig.device.failure.lock() = None;
    good(&rig.b, &sanitize(2, 0), &[]);
    good(&rig.b, &[0; 6], &[]);
}
