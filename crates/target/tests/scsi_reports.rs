//! Self-descriptions of logical units and targets: INQUIRY, mode pages, supported commands, logical
//! units, port groups, and unit attentions.
#![allow(clippy::unwrap_used)] // the lint knows test functions only, not what they use

#[path = "common/mem.rs"]
mod mem;
#[path = "common/scsi.rs"]
mod scsi;

use hindcast_engine::cdp::moment_uuid;
use hindcast_engine::device::DeviceInfo;
use hindcast_engine::ids::Lsn;
use hindcast_target::scsi::*;
use scsi::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uuid::Uuid;

fn vpd(nexus: &Arc<Nexus>, page: u8) -> Vec<u8> {
    let data = good(nexus, &[0x12, 1, page, 4, 0, 0], &[]);
    assert_eq!(data[..2], [0, page]);
    assert_eq!(usize::from(u16::from_be_bytes([data[2], data[3]])), data.len() - 4);
    data.to_vec()
}

#[test]
fn inquiry_identifies_the_logical_unit() {
    let rig = Rig::new();
    let data = good(&rig.a, &[0x12, 0, 0, 1, 4, 0], &[]);
    assert_eq!(data.len(), 96);
    assert_eq!(data[..8], [0, 0, 6, 0x12, 91, 0x18, 0x10, 0x02]);
    assert_eq!(&data[8..36], b"HINDCASTVOLUME          1   ");
    for len in 0..=97 {
        assert_eq!(good(&rig.a, &[0x12, 0, 0, 0, len, 0], &[])[..], data[..usize::from(len).min(96)]);
    }
    bad_field(&rig.a, &[0x12, 0, 0x80, 0, 96, 0], &[]);
    bad_field(&rig.a, &[0x12, 1, 0x77, 0, 96, 0], &[]);
    let pages = vpd(&rig.a, 0x00);
    assert!(pages[4..].is_sorted());
    pages[4..].iter().for_each(|&page| assert!(vpd(&rig.a, page).len() > 4));
    assert_eq!(&vpd(&rig.a, 0x80)[4..], b"30313233343536373839616263646566");
}

#[test]
fn designators_name_unit_port_and_target() {
    let rig = Rig::new();
    let page = vpd(&rig.a, 0x83);
    let mut rest = &page[4..];
    let mut seen = Vec::new();
    while !rest.is_empty() {
        let len = usize::from(rest[3]);
        seen.push((rest[0] & 0x0f, rest[1] & 0x3f, rest[4..4 + len].to_vec()));
        rest = &rest[4 + len..];
    }
    let kinds: Vec<_> = seen.iter().map(|(set, kind, _)| (*set, *kind)).collect();
    assert_eq!(kinds, [(1, 0x03), (2, 0x01), (1, 0x14), (1, 0x15), (3, 0x18), (3, 0x28)]);
    assert_eq!((seen[0].2.len(), seen[0].2[0] >> 4), (8, 3), "NAA, locally assigned");
    assert_eq!(seen[2].2, [0, 0, 0, 1]);
    assert!(seen[4].2.starts_with(format!("{IQN},t,0x0001\0").as_bytes()));
    assert!(seen[5].2.starts_with(format!("{IQN}\0").as_bytes()));
    // Another path leads to the same unit by another port.
    let other = rig.target.attach(&port_name(3), 2, Access::default(), Arc::new(())).unwrap();
    let second = vpd(&other, 0x83);
    assert_eq!(second[..16], page[..16]);
    assert_ne!(second, page);
}

/// The NAA identifier of a logical unit whose device has this identity.
fn naa(uuid: Uuid) -> [u8; 8] {
    let rig = Rig::with(DeviceInfo { uuid, ..info(1 << 20) }, LuOptions::default());
    vpd(&rig.a, 0x83)[8..16].try_into().unwrap()
}

/// Hosts know disks by it: a server that told another one after an update would rename them all.
#[test]
fn volumes_keep_their_naa_identifiers() {
    assert_eq!(naa(Uuid::from_bytes(*b"0123456789abcdef")), [0x38, 0x08, 0x53, 0x51, 0x57, 0x51, 0x53, 0x51]);
}

#[test]
fn moments_have_naa_identifiers_of_their_own() {
    let volume = Uuid::from_bytes(*b"0123456789abcdef");
    let mut seen = BTreeSet::from([naa(volume)]);
    for lsn in 1..=4096 {
        assert!(seen.insert(naa(moment_uuid(&volume, Lsn(lsn)))), "LSN {lsn}");
    }
}

#[test]
fn limits_agree_with_what_is_done() {
    let rig = Rig::new();
    let page = vpd(&rig.a, 0xb0);
    assert_eq!(page.len(), 64);
    let field = |at: usize| u32::from_be_bytes(page[at..at + 4].try_into().unwrap());
    assert_eq!((page[4], page[5]), (1, 255));
    assert_eq!(field(8), 65536);
    assert_eq!((field(20), field(28)), (u32::MAX, 8));
    assert_eq!(field(44), 256, "atomic");
    assert_eq!(vpd(&rig.a, 0xb1)[4..9], [0, 1, 0, 0x40, 2]);
    assert_eq!(vpd(&rig.a, 0xb2)[4..], [0, 0xe4, 2, 0]);
    // Third-party copy: a list of descriptors, each a multiple of four long.
    let page = vpd(&rig.a, 0x8f);
    let mut rest = &page[4..];
    let mut kinds = Vec::new();
    while !rest.is_empty() {
        let len = usize::from(u16::from_be_bytes([rest[2], rest[3]]));
        kinds.push(u16::from_be_bytes([rest[0], rest[1]]));
        assert_eq!(len % 4, 0);
        rest = &rest[4 + len..];
    }
    assert_eq!(kinds, [1, 4, 8, 0x8001]);
    assert_eq!(page[8..16], [8, 0x83, 1, 0, 0x84, 3, 0, 3], "EXTENDED COPY, RECEIVE COPY RESULTS");
}

fn rsoc(options: u8, code: u8, action: u16) -> [u8; 12] {
    let [high, low] = action.to_be_bytes();
    [0xa3, 0x0c, options, code, high, low, 0, 0, 0xff, 0xff, 0, 0]
}

#[test]
fn supported_commands_are_told_truly() {
    let rig = Rig::new();
    let all = good(&rig.a, &rsoc(0, 0, 0), &[]);
    assert_eq!(u32::from_be_bytes(all[..4].try_into().unwrap()) as usize, all.len() - 4);
    let mut known = BTreeSet::new();
    for descriptor in all[4..].chunks(8) {
        let (code, action) = (descriptor[0], u16::from_be_bytes([descriptor[2], descriptor[3]]));
        let has_action = descriptor[5] & 1 != 0;
        assert!(known.insert((code, action)), "twice");
        let option = 1 + u8::from(has_action);
        let one = good(&rig.a, &rsoc(option, code, action), &[]);
        let len = usize::from(u16::from_be_bytes([one[2], one[3]]));
        assert_eq!(one[..2], [0, 3]);
        assert_eq!((len, len), (usize::from(descriptor[7]), one.len() - 4));
        assert_eq!(one[4], code);
        assert!(u16::from(one[5] & 0x1f) == action || !has_action);
        assert_eq!(one[4 + len - 1], 4, "NACA is looked at");
        assert_eq!(good(&rig.a, &rsoc(3, code, action), &[]), one);
        bad_field(&rig.a, &rsoc(3 - option, code, action), &[]);
        // With timeouts.
        let timed = good(&rig.a, &rsoc(0x80 | option, code, action), &[]);
        assert_eq!((timed[1], timed.len()), (0x83, one.len() + 12));
        assert_eq!(timed[one.len()..][..2], [0, 0x0a]);
    }
    assert!(known.contains(&(0x9c, 0)));
    let timed = good(&rig.a, &rsoc(0x80, 0, 0), &[]);
    assert_eq!(timed.len(), 4 + known.len() * 20);
    // What is not there is said not to be there.
    for (option, code, action) in [(1, 0x04, 0), (2, 0x9e, 0x11), (3, 0x28, 1), (3, 0x5e, 9), (2, 0xff, 0)] {
        assert_eq!(good(&rig.a, &rsoc(option, code, action), &[])[..], [0, 1, 0, 0]);
    }
    for option in 4..8 {
        bad_field(&rig.a, &rsoc(option, 0, 0), &[]);
    }
    let plain = Rig::with(info(1 << 20), LuOptions::default());
    assert_eq!(good(&plain.a, &rsoc(1, 0x9c, 0), &[])[..], [0, 1, 0, 0]);
    // Every command that is told of exists.
    for code in 0..=255u8 {
        for action in 0..32u8 {
            let mut cdb = [0; 16];
            cdb[..2].copy_from_slice(&[code, action]);
            let sense = match rig.a.start(0, &cdb, 0) {
                Command::Done(outcome) => outcome.sense,
                _ => None,
            };
            let unknown = sense.is_some_and(|s| s.asc == Asc::INVALID_COMMAND_OPERATION_CODE);
            assert_eq!(unknown, !known.iter().any(|(c, _)| *c == code), "{code:#x}");
        }
    }
}

#[test]
fn task_management_is_told() {
    let rig = Rig::new();
    assert_eq!(good(&rig.a, &[0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 99, 0, 0], &[])[..], [0xda, 0, 0, 0]);
    assert_eq!(good(&rig.a, &[0xa3, 0x0d, 0x80, 0, 0, 0, 0, 0, 0, 99, 0, 0], &[]).len(), 16);
}

const SENSE6: [u8; 6] = [0x1a, 0x08, 0x3f, 0, 255, 0];

#[test]
fn mode_pages_can_be_read() {
    let rig = Rig::new();
    let all = good(&rig.a, &SENSE6, &[]);
    assert_eq!(usize::from(all[0]), all.len() - 1);
    assert_eq!(all[1..4], [0, 0x10, 0]);
    let codes = |mut rest: &[u8]| {
        let mut codes = Vec::new();
        while !rest.is_empty() {
            let sub = rest[0] & 0x40 != 0;
            let len = if sub {
                4 + usize::from(u16::from_be_bytes([rest[2], rest[3]]))
            } else {
                2 + usize::from(rest[1])
            };
            codes.push((rest[0] & 0x3f, if sub { rest[1] } else { 0 }));
            rest = &rest[len..];
        }
        codes
    };
    assert_eq!(codes(&all[4..]), [(1, 0), (8, 0), (0xa, 0), (0x1c, 0)]);
    let everything = good(&rig.a, &[0x5a, 0x08, 0x3f, 0xff, 0, 0, 0, 2, 0, 0], &[]);
    assert_eq!(usize::from(u16::from_be_bytes([everything[0], everything[1]])), everything.len() - 2);
    assert_eq!(codes(&everything[8..]), [(1, 0), (8, 0), (0xa, 0), (0xa, 1), (0x1c, 0)]);
    // With block descriptors, short and long.
    let short = good(&rig.a, &[0x1a, 0, 0x08, 0, 255, 0], &[]);
    assert_eq!(short[3..12], [8, 0, 0, 0x20, 0, 0, 0, 2, 0]);
    let long = good(&rig.a, &[0x5a, 0x10, 0x08, 0, 0, 0, 0, 0, 255, 0], &[]);
    assert_eq!(long[4..8], [1, 0, 0, 16]);
    assert_eq!(long[8..24], [0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
    // What can be changed: WCE; D_SENSE and SWP.
    let mask = good(&rig.a, &[0x1a, 0x08, 0x48, 0, 255, 0], &[]);
    assert_eq!(mask[4..7], [0x08, 0x12, 0x04]);
    let mask = good(&rig.a, &[0x1a, 0x08, 0x4a, 0, 255, 0], &[]);
    assert_eq!(mask[4..9], [0x0a, 0x0a, 0x04, 0, 0x08]);
    bad_field(&rig.a, &[0x1a, 0x08, 0x05, 0, 255, 0], &[]);
    bad_field(&rig.a, &[0x1a, 0x08, 0x08, 1, 255, 0], &[]);
}

fn page6(rig: &Rig, control: u8, page: u8) -> Vec<u8> {
    let data = good(&rig.a, &[0x1a, 0x08, control << 6 | page, 0, 255, 0], &[]);
    data[4..].to_vec()
}

fn select(page: &[u8], save: bool) -> (Vec<u8>, Vec<u8>) {
    let mut list = vec![0; 4];
    list.extend(page);
    list[4] &= 0x7f;
    (vec![0x15, 0x10 | u8::from(save), 0, 0, list.len() as u8, 0], list)
}

fn change(rig: &Rig, page: u8, byte: usize, bit: u8, save: bool) {
    let mut data = page6(rig, 0, page);
    data[byte] ^= 1 << bit;
    let (cdb, list) = select(&data, save);
    good(&rig.a, &cdb, &list);
}

#[test]
fn mode_pages_can_be_changed() {
    let rig = Rig::new();
    change(&rig, 0x0a, 4, 3, false); // SWP
    assert_eq!(attention(&rig.a), None);
    assert_eq!(attention(&rig.b), Some(Asc::MODE_PARAMETERS_CHANGED));
    let write = blocks(0x2a, 0, 0, 1);
    for cdb in
        [write.clone(), blocks(0x41, 8, 0, 1), blocks(0x8b, 0, 0, 1), vec![0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0]]
    {
        bad(&rig.b, &cdb, &[0; BLOCK], SenseKey::DataProtect, Asc::SOFTWARE_WRITE_PROTECTED);
    }
    good(&rig.b, &blocks(0x28, 0, 0, 1), &[]);
    assert_eq!(good(&rig.b, &SENSE6, &[])[2], 0x90, "WP");
    change(&rig, 0x0a, 4, 3, false);
    assert_eq!(attention(&rig.b), Some(Asc::MODE_PARAMETERS_CHANGED));
    good(&rig.b, &write, &[0; BLOCK]);
    assert_eq!(rig.device.calls.fua_calls.load(Ordering::Relaxed), 0);
    let flushes = || rig.device.calls.flushes.load(Ordering::Relaxed);
    let before = flushes();
    change(&rig, 0x08, 2, 2, false); // WCE off: writes are durable, and those before are made so
    assert_eq!(flushes(), before + 1);
    rig.settle();
    good(&rig.a, &write, &[0; BLOCK]);
    good(&rig.a, &blocks(0x93, 0x08, 0, 128), &[0; BLOCK]);
    assert_eq!(rig.device.calls.fua_calls.load(Ordering::Relaxed), 2);
    change(&rig, 0x0a, 2, 2, false); // D_SENSE
    let sense = run(&rig.a, &blocks(0x28, 0, 8192, 1), &[]).sense.unwrap();
    let bytes = sense.to_bytes();
    assert_eq!(bytes[..8], [0x72, 5, 0x21, 0, 0, 0, 0, 12]);
    assert_eq!(bytes[8..20], [0, 0x0a, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x20, 0]);
}

#[test]
fn a_bad_mode_list_changes_nothing() {
    let rig = Rig::new();
    let bad_list = |list: &[u8], asc| {
        let cdb = [0x15, 0x10, 0, 0, list.len() as u8, 0];
        bad(&rig.a, &cdb, list, SenseKey::IllegalRequest, asc);
    };
    let before = page6(&rig, 0, 0x3f);
    let (_, list) = select(&page6(&rig, 0, 0x08), false);
    // The caching page changed, then a page that is not there, or a bit that cannot be changed, or
    // half a page.
    let mut changed = list.clone();
    changed[6] ^= 0x04;
    bad_list(&[changed.clone(), vec![0x3e, 2, 0, 0]].concat(), Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    bad_list(&[changed.clone(), vec![0x4a, 0, 0, 0]].concat(), Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    bad_list(&[changed.clone(), vec![0x0a, 0x0a, 0]].concat(), Asc::PARAMETER_LIST_LENGTH_ERROR);
    let mut rcd = changed.clone();
    rcd[6] |= 1;
    bad_list(&rcd, Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    let mut length = changed.clone();
    length[5] = 0x11;
    bad_list(&length, Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    bad_list(&changed[..3], Asc::PARAMETER_LIST_LENGTH_ERROR);
    let mut descriptor = changed.clone();
    descriptor[3] = 200;
    bad_list(&descriptor, Asc::PARAMETER_LIST_LENGTH_ERROR);
    // A block descriptor that says what is so, or nothing, is fine; any other is not.
    for (bytes, fine) in
        [([0u8; 4], true), ([0xff; 4], true), ([0, 0, 0x20, 0], true), ([0, 0, 0x10, 0], false)]
    {
        let mut list = vec![0, 0, 0, 8];
        list.extend(bytes);
        list.extend([0, 0, 2, 0]);
        let outcome = run(&rig.a, &[0x15, 0x10, 0, 0, 12, 0], &list);
        assert_eq!(outcome.sense.is_none(), fine);
        list[10] = 4;
        bad_list(&list, Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    }
    let (mut cdb, list) = select(&page6(&rig, 0, 0x08), false);
    cdb[1] = 0; // PF
    bad_field(&rig.a, &cdb, &list);
    good(&rig.a, &[0x15, 0x10, 0, 0, 0, 0], &[]);
    assert_eq!(page6(&rig, 0, 0x3f), before);
    assert_eq!(attention(&rig.b), None);
}

#[test]
fn saved_pages_survive_a_restart() {
    let rig = Rig::new();
    change(&rig, 0x0a, 4, 3, true);
    change(&rig, 0x0a, 2, 2, false);
    assert_eq!(page6(&rig, 3, 0x0a)[2..5], [0x02, 0x10, 0x08]);
    assert_eq!(page6(&rig, 2, 0x0a)[2..5], [0x02, 0x10, 0], "defaults");
    let again = Rig::over(rig.device.clone(), LuOptions::default(), rig.store.clone());
    assert_eq!(page6(&again, 0, 0x0a)[2..5], [0x02, 0x10, 0x08]);
    bad(&again.a, &blocks(0x2a, 0, 0, 1), &[0; BLOCK], SenseKey::DataProtect, Asc::SOFTWARE_WRITE_PROTECTED);
    // What cannot be saved is not changed.
    *again.store.broken.lock() = true;
    let mut page = page6(&again, 0, 0x08);
    page[2] ^= 4;
    let (cdb, list) = select(&page, true);
    bad(&again.a, &cdb, &list, SenseKey::MediumError, Asc::WRITE_ERROR);
    page[2] ^= 4;
    assert_eq!(page6(&again, 0, 0x08), page);
    // Without a store nothing can be saved.
    let lu = LogicalUnit::new(rig.device.clone(), LuOptions::default(), None).unwrap();
    rig.target.set_lun(1, Some(lu));
    rig.settle();
    let lun = lun_to_wire(1);
    while run_at(&rig.a, lun, &[0; 6], &[]).sense.is_some() {}
    let sense = run_at(&rig.a, lun, &[0x1a, 8, 0xca, 0, 255, 0], &[]).sense.unwrap();
    assert_eq!(sense.asc, Asc::SAVING_PARAMETERS_NOT_SUPPORTED);
    assert!(run_at(&rig.a, lun, &cdb, &list).sense.is_some());
    assert_eq!(run_at(&rig.a, lun, &SENSE6, &[]).data_in[4] & 0x80, 0, "PS");
    // A damaged state is not guessed at.
    *rig.store.state.lock() = Some(b"nonsense".to_vec());
    assert!(LogicalUnit::new(rig.device.clone(), LuOptions::default(), Some(rig.store.clone())).is_err());
}

#[test]
fn logical_units_come_and_go() {
    let rig = Rig::new();
    let luns = |rig: &Rig| {
        let data = good(&rig.a, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[]);
        assert_eq!(u32::from_be_bytes(data[..4].try_into().unwrap()) as usize, data.len() - 8);
        data[8..]
            .chunks(8)
            .map(|l| lun_from_wire(u64::from_be_bytes(l.try_into().unwrap())).unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(luns(&rig), [0]);
    let other = LogicalUnit::new(rig.device.clone(), LuOptions::default(), None).unwrap();
    rig.target.set_lun(300, Some(other.clone()));
    assert_eq!(luns(&rig), [0, 300]);
    // The initiator that asked for the inventory knows of the change.
    assert_eq!(attention(&rig.a), None);
    assert_eq!(attention(&rig.b), Some(Asc::REPORTED_LUNS_DATA_CHANGED));
    assert_eq!(run_at(&rig.a, lun_to_wire(300), &[0; 6], &[]).sense.unwrap().asc, Asc::POWER_ON_OR_RESET);
    rig.b.set_access(Access { read_only: true, luns: Some(BTreeSet::from([300])), ..Access::default() });
    assert_eq!(rig.b.luns(), [300]);
    assert!(!rig.b.has_lun(0));
    while run_at(&rig.b, lun_to_wire(300), &[0; 6], &[]).sense.is_some() {}
    let sense = run_at(&rig.b, lun_to_wire(300), &blocks(0x2a, 0, 0, 1), &[0; BLOCK]).sense.unwrap();
    assert_eq!((sense.key, sense.asc), (SenseKey::DataProtect, Asc::WRITE_PROTECTED));
    assert_eq!(run_at(&rig.b, lun_to_wire(300), &SENSE6, &[]).data_in[2], 0x90);
    // Nor may it change anything for others.
    for cdb in [
        vec![0x15, 0x10, 0, 0, 0, 0],
        vec![0x16, 0, 0, 0, 0, 0],
        vec![0x1b, 0, 0, 0, 0, 0],
        vec![0x5f; 10],
        vec![0x4c; 10],
    ] {
        let cdb = [&cdb[..1], &[0; 9]].concat();
        assert_eq!(run_at(&rig.b, lun_to_wire(300), &cdb, &[]).sense.unwrap().asc, Asc::WRITE_PROTECTED);
    }
    // Replacing is removing and adding.
    rig.target.set_lun(300, Some(rig.lu.clone()));
    assert!(rig.told[1].0.lock().contains(&Event::AbortTasks { lun: 300 }));
    rig.target.set_lun(300, None);
    rig.target.set_lun(0, None);
    assert_eq!(luns(&rig), Vec::<u16>::new());
    bad(&rig.a, &[0; 6], &[], SenseKey::IllegalRequest, Asc::LOGICAL_UNIT_NOT_SUPPORTED);
}

#[test]
fn an_absent_unit_answers_what_it_must() {
    let rig = Rig::new();
    for lun in [lun_to_wire(1), lun_to_wire(300), u64::MAX, 1, 0xc101 << 48, 0x8000 << 48] {
        let inquiry = run_at(&rig.a, lun, &[0x12, 0, 0, 0, 36, 0], &[]);
        assert_eq!((inquiry.data_in[0], inquiry.data_in.len()), (0x7f, 36));
        assert_eq!(run_at(&rig.a, lun, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 99, 0, 0], &[]).data_in.len(), 16);
        let sense = run_at(&rig.a, lun, &[3, 0, 0, 0, 99, 0], &[]).data_in;
        assert_eq!((sense[2], sense[12], sense.len()), (5, 0x25, 18));
        assert_eq!(run_at(&rig.a, lun, &[3, 1, 0, 0, 99, 0], &[]).data_in[..4], [0x72, 5, 0x25, 0]);
        for cdb in [vec![0; 6], blocks(0x28, 0, 0, 1), vec![0x12, 1, 0, 0, 36, 0], vec![0x12, 0, 1, 0, 36, 0]]
        {
            let sense = run_at(&rig.a, lun, &cdb, &[]).sense.unwrap();
            assert_eq!((sense.key, sense.asc), (SenseKey::IllegalRequest, Asc::LOGICAL_UNIT_NOT_SUPPORTED));
        }
        assert!(!rig.a.reset_lu(lun) && !rig.a.clear_task_set(lun));
    }
    for (option, count) in [(0, 1), (1, 0), (2, 1)] {
        assert_eq!(good(&rig.a, &[0xa0, 0, option, 0, 0, 0, 0, 0, 0, 99, 0, 0], &[]).len(), 8 + 8 * count);
    }
    bad_field(&rig.a, &[0xa0, 0, 3, 0, 0, 0, 0, 0, 0, 99, 0, 0], &[]);
}

#[test]
fn lun_numbers_survive_the_wire() {
    for lun in [0, 1, 255, 256, 300, MAX_LUN] {
        assert_eq!(lun_from_wire(lun_to_wire(lun)), Some(lun));
    }
    assert_eq!(lun_from_wire(0x4005 << 48), Some(5), "flat space addressing");
    assert_eq!(lun_from_wire(0x0105 << 48), None, "another bus");
}

#[test]
fn attentions_wait_in_order_and_once() {
    let rig = Rig::new();
    rig.lu.notify_resized();
    rig.lu.notify_resized();
    rig.lu.notify_inquiry_changed();
    assert_eq!(rig.told[0].0.lock().len(), 2, "sessions are told at once, and once");
    // Some commands do not wait for them.
    good(&rig.a, &[0x12, 0, 0, 0, 96, 0], &[]);
    good(&rig.a, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 99, 0, 0], &[]);
    bad(&rig.a, &blocks(0x28, 0, 0, 1), &[], SenseKey::UnitAttention, Asc::CAPACITY_DATA_CHANGED);
    // REQUEST SENSE takes them as data.
    assert_eq!(good(&rig.a, &[3, 0, 0, 0, 99, 0], &[])[2..14], [6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x3f, 3]);
    assert_eq!(good(&rig.a, &[3, 1, 0, 0, 99, 0], &[])[..], [0x72, 0, 0, 0, 0, 0, 0, 0]);
    good(&rig.a, &blocks(0x28, 0, 0, 1), &[]);
    assert_eq!(attention(&rig.b), Some(Asc::CAPACITY_DATA_CHANGED));
    // An unknown command waits too.
    let outcome = run(&rig.b, &[0xff; 16], &[]);
    assert_eq!(outcome.sense.unwrap().asc, Asc::INQUIRY_DATA_CHANGED);
}

#[test]
fn resets_are_told_to_everybody() {
    let rig = Rig::new();
    good(&rig.a, &[0x16, 0, 0, 0, 0, 0], &[]);
    assert!(rig.b.reset_lu(0));
    for nexus in [&rig.a, &rig.b] {
        assert_eq!(attention(nexus), Some(Asc::BUS_DEVICE_RESET));
        assert_eq!(attention(nexus), None);
    }
    assert!(rig.told[0].0.lock().contains(&Event::AbortTasks { lun: 0 }));
    assert!(!rig.told[1].0.lock().contains(&Event::AbortTasks { lun: 0 }), "its own it aborts itself");
    good(&rig.b, &blocks(0x2a, 0, 0, 1), &[0; BLOCK]);
    rig.a.reset_target();
    assert_eq!(attention(&rig.b), Some(Asc::BUS_DEVICE_RESET));
    rig.settle();
    assert!(rig.a.clear_task_set(0));
    assert_eq!((attention(&rig.a), attention(&rig.b)), (None, Some(Asc::COMMANDS_CLEARED)));
}

#[test]
fn who_is_new_hears_of_power_on() {
    let rig = Rig::new();
    let come = |port: &str| rig.target.attach(port, 1, Access::default(), Arc::new(())).unwrap();
    let first = come("iqn.x,i,0x000000000001");
    assert_eq!(attention(&first), Some(Asc::POWER_ON_OR_RESET));
    assert_eq!(attention(&first), None);
    first.detach();
    let second = come("iqn.x,i,0x000000000002");
    assert_eq!(attention(&second), None);
    good(&second, &[0x16, 0, 0, 0, 0, 0], &[]);
    conflict(&rig.a, &blocks(0x28, 0, 0, 1), &[]);
    second.detach();
    good(&rig.a, &blocks(0x28, 0, 0, 1), &[]);
    let third = come("IQN.X,i,0x000000000003");
    assert_eq!(attention(&third), Some(Asc::NEXUS_LOSS));
    assert_eq!(rig.target.nexuses().len(), 3);
    assert!(rig.target.attach("iqn.x,i,0x1", 9, Access::default(), Arc::new(())).is_none(), "no such port");
    assert!(rig.target.attach("iqn\tx,i,0x1", 1, Access::default(), Arc::new(())).is_none(), "no name");
}

#[test]
fn port_groups_have_states() {
    let rig = Rig::new();
    let report = |nexus: &Arc<Nexus>| good(nexus, &[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 99, 0, 0], &[]);
    let lone = [0, 0, 0, 16, 0x80, 0x8f, 0, 1, 0, 2, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2];
    assert_eq!(report(&rig.a)[..], lone);
    let extended = good(&rig.a, &[0xa3, 0x2a, 0, 0, 0, 0, 0, 0, 0, 99, 0, 0], &[]);
    assert_eq!(extended[..8], [0, 0, 0, 20, 0x10, 0, 0, 0]);
    bad_field(&rig.a, &[0xa3, 0x4a, 0, 0, 0, 0, 0, 0, 0, 99, 0, 0], &[]);
    let group = |id, state, port| PortGroup { id, preferred: false, state, ports: vec![port] };
    let through = rig.target.attach(&port_name(7), 2, Access::default(), Arc::new(())).unwrap();
    while attention(&through).is_some() {}
    for (state, asc) in [
        (AccessState::Standby, Asc::TARGET_PORT_IN_STANDBY),
        (AccessState::Unavailable, Asc::TARGET_PORT_UNAVAILABLE),
        (AccessState::Transitioning, Asc::ACCESS_STATE_TRANSITION),
    ] {
        rig.lu.set_port_groups(vec![group(10, state, 1), group(11, AccessState::ActiveOptimized, 2)]);
        assert_eq!(attention(&rig.a), Some(Asc::ASYMMETRIC_ACCESS_STATE_CHANGED));
        assert_eq!(report(&rig.a)[4..8], [state as u8, 0x8f, 0, 10]);
        bad(&rig.a, &blocks(0x28, 0, 0, 1), &[], SenseKey::NotReady, asc);
        bad(&rig.a, &[0; 6], &[], SenseKey::NotReady, asc);
        good(&rig.a, &[0x12, 0, 0, 0, 96, 0], &[]);
        assert_eq!(attention(&through), Some(Asc::ASYMMETRIC_ACCESS_STATE_CHANGED));
        good(&through, &blocks(0x28, 0, 0, 1), &[]);
    }
    rig.lu.set_port_groups(Vec::new());
    rig.settle();
    assert_eq!(report(&rig.a)[..], lone);
    good(&rig.a, &blocks(0x28, 0, 0, 1), &[]);
    // States are not the initiators' to change: SET TARGET PORT GROUPS.
    bad(
        &rig.a,
        &[0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[],
        SenseKey::IllegalRequest,
        Asc::INVALID_COMMAND_OPERATION_CODE,
    );
}

#[test]
fn a_read_only_device_is_write_protected() {
    let rig = Rig::with(DeviceInfo { read_only: true, ..info(1 << 20) }, LuOptions::default());
    let list = [0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    let block = [0; BLOCK];
    for (cdb, data) in [
        (blocks(0x0a, 0, 0, 1), &block[..]),
        (blocks(0x2a, 0, 0, 1), &block),
        (blocks(0xaa, 0, 0, 1), &block),
        (blocks(0x8a, 0, 0, 1), &block),
        (blocks(0x2e, 0, 0, 1), &block),
        (blocks(0x41, 0, 0, 1), &block),
        (blocks(0x93, 8, 0, 1), &block),
        (blocks(0x8b, 0, 0, 1), &block),
        (blocks(0x89, 0, 0, 0), &[]),
        (vec![0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list),
        (vec![0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0], &[]),
    ] {
        bad(&rig.a, &cdb, data, SenseKey::DataProtect, Asc::WRITE_PROTECTED);
    }
    assert_eq!(good(&rig.a, &SENSE6, &[])[2], 0x90);
    good(&rig.a, &blocks(0x2f, 0, 0, 1), &[]);
}
