//! Reservations as initiators see them: PERSISTENT RESERVE IN and OUT, RESERVE(6) and RELEASE(6).
#![allow(clippy::unwrap_used)] // the lint knows test functions only, not what they use

#[path = "common/mem.rs"]
mod mem;
#[path = "common/scsi.rs"]
mod scsi;

use hindcast_target::scsi::*;
use scsi::*;
use std::sync::Arc;

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const IGNORE: u8 = 6;
const MOVE: u8 = 7;

fn out_cdb(action: u8, kind: u8, len: usize) -> Vec<u8> {
    let mut cdb = vec![0x5f, action, kind, 0, 0, 0, 0, 0, 0, 0];
    cdb[5..9].copy_from_slice(&(len as u32).to_be_bytes());
    cdb
}

/// Flags: 1 APTPL, 4 ALL_TG_PT, 8 SPEC_I_PT.
fn out(action: u8, kind: u8, key: u64, action_key: u64, flags: u8, more: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut list = [key.to_be_bytes(), action_key.to_be_bytes()].concat();
    list.extend([0, 0, 0, 0, flags, 0, 0, 0]);
    list.extend(more);
    (out_cdb(action, kind, list.len()), list)
}

#[track_caller]
fn done(nexus: &Arc<Nexus>, action: u8, kind: u8, key: u64, action_key: u64) {
    let (cdb, list) = out(action, kind, key, action_key, 0, &[]);
    good(nexus, &cdb, &list);
}

fn read_in(nexus: &Arc<Nexus>, action: u8) -> Vec<u8> {
    let data = good(nexus, &[0x5e, action, 0, 0, 0, 0, 0, 4, 0, 0], &[]).to_vec();
    if action != 2 {
        assert_eq!(u32::from_be_bytes(data[4..8].try_into().unwrap()) as usize, data.len() - 8);
    }
    data
}

fn keys(nexus: &Arc<Nexus>) -> Vec<u64> {
    read_in(nexus, 0)[8..].chunks(8).map(|k| u64::from_be_bytes(k.try_into().unwrap())).collect()
}

fn transport_id(name: &str) -> Vec<u8> {
    let len = (name.len() + 1).next_multiple_of(4).max(20);
    let mut id = vec![if name.contains(",i,") { 0x45 } else { 0x05 }, 0, 0, len as u8];
    id.extend(name.as_bytes());
    id.resize(4 + len, 0);
    id
}

#[test]
fn registering_and_reserving() {
    let rig = Rig::new();
    assert_eq!(read_in(&rig.a, 0), [0; 8]);
    done(&rig.a, REGISTER, 0, 0, 0xa);
    done(&rig.b, IGNORE, 0, 99, 0xb);
    assert_eq!(keys(&rig.a), [0xa, 0xb]);
    assert_eq!(read_in(&rig.a, 0)[..4], [0, 0, 0, 2]);
    assert_eq!(read_in(&rig.a, 1).len(), 8);
    done(&rig.a, RESERVE, 5, 0xa, 0);
    assert_eq!(read_in(&rig.b, 1)[8..], [0, 0, 0, 0, 0, 0, 0, 0xa, 0, 0, 0, 0, 0, 5, 0, 0]);
    // The allocation length cuts the answer, not what it says of its length.
    assert_eq!(good(&rig.a, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0], &[])[..], [0, 0, 0, 2, 0, 0, 0, 16]);
    let status = read_in(&rig.b, 3);
    let id = transport_id(&port_name(1));
    assert_eq!(status[8..16], 0xau64.to_be_bytes());
    assert_eq!(status[20..22], [1, 5], "the holder, and what it holds");
    assert_eq!(status[26..28], [0, 1], "the relative port");
    assert_eq!(usize::from(status[31]), id.len());
    assert_eq!(status[32..32 + id.len()], id);
    assert_eq!(status[32 + id.len()..][8 + 4..8 + 6], [0, 0], "not the holder");
    assert_eq!(read_in(&rig.a, 2), [0, 8, 0x0d, 0x80, 0xea, 1, 0, 0]);
    done(&rig.a, RELEASE, 5, 0xa, 0);
    assert_eq!(attention(&rig.b), Some(Asc::RESERVATIONS_RELEASED));
    assert_eq!(read_in(&rig.a, 1).len(), 8);
    for action in 4..32 {
        bad_field(&rig.a, &[0x5e, action, 0, 0, 0, 0, 0, 4, 0, 0], &[]);
    }
}

#[test]
fn commands_meet_conflicts() {
    let rig = Rig::new();
    done(&rig.a, REGISTER, 0, 0, 1);
    let block = [0; BLOCK];
    let both = [0; 2 * BLOCK];
    let mut compare = blocks(0x89, 0, 0, 0);
    compare[13] = 1;
    let reads: [Vec<u8>; 5] = [
        blocks(0x28, 0, 0, 1),
        blocks(0x88, 8, 0, 1),
        blocks(0x2f, 0, 0, 1),
        blocks(0x34, 0, 0, 1),
        vec![0x08, 0, 0, 0, 1, 0],
    ];
    let writes: [(Vec<u8>, &[u8]); 12] = [
        (blocks(0x2a, 0, 0, 1), &block),
        (blocks(0x8e, 0, 0, 1), &block),
        (blocks(0x8b, 0, 0, 1), &block),
        (compare, &both),
        (blocks(0x93, 8, 0, 1), &block),
        (vec![0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]),
        (blocks(0x35, 0, 0, 1), &[]),
        (vec![0x1b, 0, 0, 0, 0, 0], &[]),
        (vec![0x1e, 0, 0, 0, 1, 0], &[]),
        (vec![0x48, 0x82, 0, 0, 0, 0, 0, 0, 0, 0], &[]),
        (vec![0x4c, 2, 0, 0, 0, 0, 0, 0, 0, 0], &[]),
        (vec![0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]),
    ];
    let registered = [vec![0x1a, 8, 0x3f, 0, 255, 0], vec![0x15, 0x10, 0, 0, 0, 0]];
    let free = [
        vec![0; 6],
        vec![0x12, 0, 0, 0, 96, 0],
        vec![0x03, 0, 0, 0, 18, 0],
        vec![0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        blocks(0x9e, 0x10, 0, 32),
        vec![0x1b, 0, 0, 0, 1, 0],
        vec![0x1e, 0, 0, 0, 0, 0],
        vec![0x4d, 0, 0, 0, 0, 0, 0, 0, 99, 0],
        vec![0x5e, 0, 0, 0, 0, 0, 0, 0, 99, 0],
    ];
    for (kind, readable) in [(1, true), (3, false), (5, true), (6, false), (7, true), (8, false)] {
        done(&rig.a, RESERVE, kind, 1, 0);
        free.iter().for_each(|cdb| assert_eq!(run(&rig.b, cdb, &[]).status, Status::Good, "{cdb:02x?}"));
        for cdb in &reads {
            assert_eq!(run(&rig.b, cdb, &[]).status == Status::Good, readable, "{kind} {cdb:02x?}");
        }
        for (cdb, data) in &writes {
            conflict(&rig.b, cdb, data);
        }
        registered.iter().for_each(|cdb| conflict(&rig.b, cdb, &[]));
        // A registrant may do more.
        done(&rig.b, REGISTER, 0, 0, 2);
        registered.iter().for_each(|cdb| assert_eq!(run(&rig.b, cdb, &[]).status, Status::Good));
        assert_eq!(run(&rig.b, &writes[0].0, &block).status == Status::Good, kind >= 5);
        assert_eq!(run(&rig.b, &reads[0], &[]).status == Status::Good, kind != 3);
        done(&rig.b, REGISTER, 0, 2, 0);
        good(&rig.a, &writes[0].0, &block);
        done(&rig.a, RELEASE, kind, 1, 0);
    }
    good(&rig.b, &writes[0].0, &block);
}

#[test]
fn bad_lists_are_refused() {
    let rig = Rig::new();
    let refuse = |(cdb, list): (Vec<u8>, Vec<u8>), asc| {
        bad(&rig.a, &cdb, &list, SenseKey::IllegalRequest, asc);
    };
    let list_length = Asc::PARAMETER_LIST_LENGTH_ERROR;
    for len in [0, 8, 23, 25, 40] {
        refuse((out_cdb(REGISTER, 0, len), vec![0; len]), list_length);
    }
    refuse((out_cdb(REGISTER, 0, 24), vec![0; 23]), list_length);
    done(&rig.a, REGISTER, 0, 0, 1);
    for kind in [0, 2, 4, 9, 15, 0x11] {
        refuse(out(RESERVE, kind, 1, 0, 0, &[]), Asc::INVALID_FIELD_IN_CDB);
        refuse(out(RELEASE, kind, 1, 0, 0, &[]), Asc::INVALID_FIELD_IN_CDB);
    }
    refuse(out(PREEMPT, 0x11, 1, 1, 0, &[]), Asc::INVALID_FIELD_IN_CDB);
    let (cdb, list) = out(RESERVE, 1, 2, 0, 0, &[]);
    conflict(&rig.a, &cdb, &list);
    conflict(&rig.b, &cdb, &list);
    // SPEC_I_PT is for those who register first.
    let more = [&[0, 0, 0, 0][..]].concat();
    refuse(out(REGISTER, 0, 1, 2, 8, &more), Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    refuse(out(IGNORE, 0, 1, 2, 8, &more), Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    let (cdb, list) = out(REGISTER, 0, 0, 2, 8, &[0, 0, 0, 9]);
    bad(&rig.b, &cdb, &list, SenseKey::IllegalRequest, list_length);
    let (cdb, list) = out(
        REGISTER,
        0,
        0,
        2,
        8,
        &[0, 0, 0, 24, 0x46, 0, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    );
    bad(&rig.b, &cdb, &list, SenseKey::IllegalRequest, Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    assert_eq!(keys(&rig.a), [1]);
}

#[test]
fn others_and_all_ports_can_be_registered() {
    let rig = Rig::new();
    let ids = [transport_id(&port_name(2)), transport_id("iqn.2026-11.com.example:absent,i,0x000000000001")]
        .concat();
    let more = [&(ids.len() as u32).to_be_bytes()[..], &ids].concat();
    let (cdb, list) = out(REGISTER, 0, 0, 5, 8, &more);
    good(&rig.a, &cdb, &list);
    assert_eq!(keys(&rig.a), [5, 5, 5]);
    done(&rig.b, RESERVE, 1, 5, 0);
    done(&rig.b, CLEAR, 0, 5, 0);
    assert_eq!(attention(&rig.a), Some(Asc::RESERVATIONS_PREEMPTED));
    // A device name stands for its ports that are here.
    let ids = transport_id("iqn.2026-11.com.example:2");
    let more = [&(ids.len() as u32).to_be_bytes()[..], &ids].concat();
    let (cdb, list) = out(REGISTER, 0, 0, 6, 8 | 4, &more);
    good(&rig.a, &cdb, &list);
    assert_eq!(keys(&rig.a), [6; 4], "two initiators, two ports each");
    assert_eq!(read_in(&rig.a, 3)[20], 2, "ALL_TG_PT");
    let through_second = rig.target.attach(&port_name(2), 2, Access::default(), Arc::new(())).unwrap();
    while attention(&through_second).is_some() {}
    done(&through_second, RESERVE, 3, 6, 0);
    conflict(&rig.b, &blocks(0x28, 0, 0, 1), &[]);
    let ids = transport_id("iqn.2026-11.com.example:nobody");
    let more = [&(ids.len() as u32).to_be_bytes()[..], &ids].concat();
    let fresh = rig.target.attach(&port_name(9), 1, Access::default(), Arc::new(())).unwrap();
    while attention(&fresh).is_some() {}
    let (cdb, list) = out(REGISTER, 0, 0, 6, 8, &more);
    bad(&fresh, &cdb, &list, SenseKey::IllegalRequest, Asc::INVALID_FIELD_IN_PARAMETER_LIST);
}

#[test]
fn preempting_tells_and_aborts() {
    let rig = Rig::new();
    done(&rig.a, REGISTER, 0, 0, 1);
    done(&rig.b, REGISTER, 0, 0, 2);
    done(&rig.a, RESERVE, 3, 1, 0);
    done(&rig.b, PREEMPT, 1, 2, 1);
    assert_eq!(attention(&rig.a), Some(Asc::REGISTRATIONS_PREEMPTED));
    assert_eq!(keys(&rig.a), [2]);
    assert!(!rig.told[0].0.lock().contains(&Event::AbortTasks { lun: 0 }));
    let (cdb, list) = out(RELEASE, 3, 1, 0, 0, &[]);
    conflict(&rig.a, &cdb, &list);
    done(&rig.a, REGISTER, 0, 0, 1);
    done(&rig.a, PREEMPT_AND_ABORT, 3, 1, 2);
    assert!(rig.told[1].0.lock().contains(&Event::AbortTasks { lun: 0 }));
    assert_eq!(attention(&rig.b), Some(Asc::REGISTRATIONS_PREEMPTED));
    conflict(&rig.b, &blocks(0x28, 0, 0, 1), &[]);
}

fn move_list(key: u64, action_key: u64, flags: u8, port: u16, id: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut list = [key.to_be_bytes(), action_key.to_be_bytes()].concat();
    list.extend([0, flags]);
    list.extend(port.to_be_bytes());
    list.extend((id.len() as u32).to_be_bytes());
    list.extend(id);
    (out_cdb(MOVE, 0, list.len()), list)
}

#[test]
fn a_reservation_can_be_moved() {
    let rig = Rig::new();
    let id = transport_id(&port_name(2));
    done(&rig.a, REGISTER, 0, 0, 1);
    done(&rig.a, RESERVE, 3, 1, 0);
    for (port, id, asc) in [
        (7, &id[..], Asc::INVALID_FIELD_IN_PARAMETER_LIST),
        (1, &transport_id("iqn.2026-11.com.example:nobody"), Asc::INVALID_FIELD_IN_PARAMETER_LIST),
        (1, &id[..20], Asc::PARAMETER_LIST_LENGTH_ERROR),
    ] {
        let (cdb, list) = move_list(1, 2, 0, port, id);
        bad(&rig.a, &cdb, &list, SenseKey::IllegalRequest, asc);
    }
    let (cdb, list) = move_list(1, 2, 2, 1, &id);
    good(&rig.a, &cdb, &list);
    assert_eq!(keys(&rig.b), [2]);
    good(&rig.b, &blocks(0x28, 0, 0, 1), &[]);
    conflict(&rig.a, &blocks(0x28, 0, 0, 1), &[]);
}

#[test]
fn aptpl_survives_a_restart() {
    let rig = Rig::new();
    let (cdb, list) = out(REGISTER, 0, 0, 1, 1, &[]);
    good(&rig.a, &cdb, &list);
    done(&rig.a, RESERVE, 3, 1, 0);
    assert_eq!(read_in(&rig.a, 2)[3], 0x81, "PTPL_A");
    let again = Rig::over(rig.device.clone(), LuOptions::default(), rig.store.clone());
    assert_eq!(read_in(&again.b, 0), [0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1], "a new generation");
    conflict(&again.b, &blocks(0x28, 0, 0, 1), &[]);
    good(&again.a, &blocks(0x28, 0, 0, 1), &[]);
    // What cannot be kept is not done.
    *again.store.broken.lock() = true;
    let (cdb, list) = out(RELEASE, 3, 1, 0, 0, &[]);
    bad(&again.a, &cdb, &list, SenseKey::MediumError, Asc::WRITE_ERROR);
    conflict(&again.b, &blocks(0x28, 0, 0, 1), &[]);
    *again.store.broken.lock() = false;
    // Registering without APTPL forgets.
    done(&again.a, REGISTER, 0, 1, 7);
    let last = Rig::over(rig.device.clone(), LuOptions::default(), rig.store.clone());
    assert_eq!(keys(&last.a), Vec::<u64>::new());
    good(&last.b, &blocks(0x28, 0, 0, 1), &[]);
    // Without a store it cannot be had.
    let lu = LogicalUnit::new(rig.device.clone(), LuOptions::default(), None).unwrap();
    last.target.set_lun(0, Some(lu));
    last.settle();
    let (cdb, list) = out(REGISTER, 0, 0, 1, 1, &[]);
    bad(&last.a, &cdb, &list, SenseKey::IllegalRequest, Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    assert_eq!(read_in(&last.a, 2)[2], 0x0c);
}

/// Found by fuzzing: the unit could not be opened again.
#[test]
fn aptpl_of_all_registrants_outlives_its_maker() {
    let rig = Rig::new();
    for (nexus, key) in [(&rig.a, 1), (&rig.b, 2)] {
        let (cdb, list) = out(REGISTER, 0, 0, key, 1, &[]);
        good(nexus, &cdb, &list);
    }
    done(&rig.a, RESERVE, 8, 1, 0);
    let (cdb, list) = out(REGISTER, 0, 1, 0, 1, &[]);
    good(&rig.a, &cdb, &list);
    let again = Rig::over(rig.device.clone(), LuOptions::default(), rig.store.clone());
    assert_eq!(keys(&again.b), [2]);
    conflict(&again.a, &blocks(0x28, 0, 0, 1), &[]);
    good(&again.b, &blocks(0x28, 0, 0, 1), &[]);
}

#[test]
fn registrations_outlive_sessions() {
    let rig = Rig::new();
    done(&rig.a, REGISTER, 0, 0, 1);
    done(&rig.a, RESERVE, 1, 1, 0);
    rig.a.detach();
    conflict(&rig.b, &blocks(0x2a, 0, 0, 1), &[0; BLOCK]);
    let back = rig.target.attach(&port_name(1), 1, Access::default(), Arc::new(())).unwrap();
    good(&back, &blocks(0x2a, 0, 0, 1), &[0; BLOCK]);
}

const RESERVE6: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
const RELEASE6: [u8; 6] = [0x17, 0, 0, 0, 0, 0];

#[test]
fn reserve6_keeps_others_out() {
    let rig = Rig::new();
    good(&rig.a, &RESERVE6, &[]);
    good(&rig.a, &RESERVE6, &[]);
    for cdb in [
        &RESERVE6[..],
        &[0; 6],
        &[0x1a, 8, 0x3f, 0, 255, 0],
        &[0x1e, 0, 0, 0, 1, 0],
        &[0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0],
    ] {
        conflict(&rig.b, cdb, &[]);
    }
    conflict(&rig.b, &blocks(0x28, 0, 0, 1), &[]);
    for cdb in [
        &RELEASE6[..],
        &[0x12, 0, 0, 0, 96, 0],
        &[3, 0, 0, 0, 18, 0],
        &[0x1e, 0, 0, 0, 0, 0],
        &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ] {
        good(&rig.b, cdb, &[]);
    }
    good(&rig.a, &blocks(0x2a, 0, 0, 1), &[0; BLOCK]);
    // The two kinds of reservations exclude each other.
    let (cdb, list) = out(REGISTER, 0, 0, 1, 0, &[]);
    conflict(&rig.a, &cdb, &list);
    conflict(&rig.b, &cdb, &list);
    good(&rig.a, &RELEASE6, &[]);
    good(&rig.b, &RESERVE6, &[]);
    rig.b.detach();
    good(&rig.a, &cdb, &list);
    conflict(&rig.a, &RESERVE6, &[]);
    conflict(&rig.a, &RELEASE6, &[]);
}

/// Fencing: what was let in before a PREEMPT AND ABORT is not written after it, however slow it
/// was.
#[test]
fn a_preempted_initiators_write_comes_too_late() {
    let rig = Rig::new();
    done(&rig.a, REGISTER, 0, 0, 1);
    done(&rig.b, REGISTER, 0, 0, 2);
    done(&rig.b, RESERVE, 5, 2, 0);
    let slow = |nexus: &Arc<Nexus>| match nexus.start(0, &blocks(0x2a, 0, 0, 1), BLOCK as u64) {
        Command::Write(write) => write,
        other => panic!("{other:?}"),
    };
    let slow_task = |nexus: &Arc<Nexus>, cdb: &[u8], len: usize| match nexus.start(0, cdb, len as u64) {
        Command::Other(task) => task,
        other => panic!("{other:?}"),
    };
    let mut compare = blocks(0x89, 0, 0, 0);
    compare[13] = 1;
    let (theirs, own) = (slow(&rig.b), slow(&rig.a));
    let tasks = [
        (slow_task(&rig.b, &blocks(0x93, 0, 8, 1), BLOCK), vec![7; BLOCK]),
        (slow_task(&rig.b, &blocks(0x93, 0, 8, 1), BLOCK), vec![0; BLOCK]),
        (slow_task(&rig.b, &blocks(0x8b, 0, 8, 1), BLOCK), vec![7; BLOCK]),
        (slow_task(&rig.b, &compare, 2 * BLOCK), vec![0; 2 * BLOCK]),
    ];
    done(&rig.a, PREEMPT_AND_ABORT, 5, 1, 2);
    let write = |command: &WriteCommand| {
        let mut ops = [hindcast_engine::device::WriteOp::new(0, vec![9; BLOCK].into())];
        WriteCommand::write_all(command.lu(), &mut ops, false, |_| command);
        let [op] = ops;
        command.outcome(&op.result).status
    };
    assert_ne!(write(&theirs), Status::Good);
    for (task, data) in tasks {
        assert_ne!(task.run(&data.into()).status, Status::Good, "{task:?}");
    }
    assert_eq!(rig.device.content()[..16 * BLOCK], [0; 16 * BLOCK]);
    assert_eq!(write(&own), Status::Good);
    assert_eq!(rig.device.content()[..BLOCK], [9; BLOCK]);
}

/// What a list of TransportIDs names has a limit, and so has its length.
#[test]
fn a_list_of_initiators_is_bounded() {
    let rig = Rig::new();
    let id = transport_id(&port_name(2));
    let ids = id.repeat(1100);
    let more = [&(ids.len() as u32).to_be_bytes()[..], &ids].concat();
    let (cdb, list) = out(REGISTER, 0, 0, 5, 8, &more);
    bad(&rig.a, &cdb, &list, SenseKey::IllegalRequest, Asc::INSUFFICIENT_REGISTRATION_RESOURCES);
    let (cdb, list) = out(REGISTER, 0, 0, 5, 8, &vec![0; 256 << 10]);
    bad(&rig.a, &cdb, &list, SenseKey::IllegalRequest, Asc::PARAMETER_LIST_LENGTH_ERROR);
    assert_eq!(keys(&rig.a), []);
}

/// Relative ports are those of the own target. Which initiators use other targets is not reported.
#[test]
fn full_status_tells_of_the_own_targets_ports_only() {
    let rig = Rig::new();
    let other = Target::new("iqn.2026-11.io.hindcast:other", &[1]);
    other.set_lun(0, Some(rig.lu.clone()));
    let there = other.attach(&port_name(3), 1, Access::default(), Arc::new(())).unwrap();
    while attention(&there).is_some() {}
    done(&rig.a, REGISTER, 0, 0, 1);
    done(&there, REGISTER, 0, 0, 3);
    let told = |nexus: &Arc<Nexus>| String::from_utf8_lossy(&read_in(nexus, 3)).into_owned();
    assert!(told(&rig.a).contains(&port_name(1)) && !told(&rig.a).contains(&port_name(3)));
    assert!(told(&there).contains(&port_name(3)) && !told(&there).contains(&port_name(1)));
    assert_eq!(keys(&rig.a), [1, 3], "keys are all told: they are what others are preempted by");
}

#[test]
fn a_registration_of_a_port_that_is_gone_is_dropped_with_the_news() {
    let rig = Rig::new();
    let other = Target::new("iqn.2026-11.io.hindcast:other", &[1]);
    other.set_lun(0, Some(rig.lu.clone()));
    let there = other.attach(&port_name(3), 1, Access::default(), Arc::new(())).unwrap();
    while attention(&there).is_some() {}
    done(&rig.a, REGISTER, 0, 0, 1);
    done(&there, REGISTER, 0, 0, 3);
    done(&there, RESERVE, 6, 3, 0);
    there.detach();
    assert_eq!(rig.lu.retain_ports(|port| target_of_port(port) == IQN).unwrap(), 1);
    assert_eq!(attention(&rig.a), Some(Asc::RESERVATIONS_RELEASED));
    assert_eq!(keys(&rig.a), [1]);
    assert_eq!(rig.lu.registrants().len(), 1);
    done(&rig.a, RESERVE, 3, 1, 0);
    conflict(&rig.b, &blocks(0x28, 0, 0, 1), &[]);
    assert_eq!(rig.lu.clear_reservations().unwrap(), 1);
    assert_eq!(attention(&rig.a), Some(Asc::RESERVATIONS_PREEMPTED));
    good(&rig.b, &blocks(0x28, 0, 0, 1), &[]);
    good(&rig.b, &[0x16, 0, 0, 0, 0, 0], &[]);
    conflict(&rig.a, &blocks(0x28, 0, 0, 1), &[]);
    assert_eq!(rig.lu.clear_reservations().unwrap(), 1, "RESERVE(6), too");
    good(&rig.a, &blocks(0x28, 0, 0, 1), &[]);
}
