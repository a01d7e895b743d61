//! Asynchronous Messages about changes: a session gets one message for a change, however many
//! logical units there are.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "common/initiator.rs"]
mod initiator;
#[path = "common/mem.rs"]
mod mem;

use hindcast_target::iscsi::pdu::opcode;
use hindcast_target::scsi::{Access, LogicalUnit, LuOptions};
use initiator::{Fixture, SIZE, Wire};
use mem::MemDevice;
use std::sync::Arc;
use std::time::Duration;

const LUNS: u16 = 40;

fn unit() -> Arc<LogicalUnit> {
    LogicalUnit::new(Arc::new(MemDevice::new(SIZE)), LuOptions::default(), None).unwrap()
}

fn add(fixture: &Fixture, luns: std::ops::Range<u16>) {
    luns.for_each(|lun| fixture.daemon.target.set_lun(lun, Some(unit())));
}

/// A session with a target of many logical units.
fn session() -> (Fixture, Wire) {
    let fixture = Fixture::new();
    add(&fixture, 2..LUNS);
    let wire = fixture.session();
    (fixture, wire)
}

/// The additional sense codes of the messages that come within a time.
fn told(wire: &mut Wire, millis: u64) -> Vec<(u8, u8)> {
    wire.stream.set_read_timeout(Some(Duration::from_millis(millis))).unwrap();
    let mut told = Vec::new();
    while let Ok(pdu) = wire.try_receive() {
        assert_eq!(pdu.opcode(), opcode::ASYNC_MESSAGE);
        told.push((pdu.data[14], pdu.data[15]));
    }
    wire.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    told
}

fn report_luns(wire: &mut Wire) -> usize {
    let pdu = wire.run(0x40, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0], 1024, &[]);
    assert_eq!(pdu.status(), 0);
    pdu.data.len() / 8 - 1
}

/// The sense of TEST UNIT READY, or nothing where it is GOOD.
fn ready(wire: &mut Wire, lun: u8) -> Option<(u8, u8, u8)> {
    let mut bhs = wire.command(0, &[0; 6], 0);
    bhs.0[9] = lun;
    wire.send(&bhs, &[]);
    let pdu = wire.receive();
    (pdu.status() != 0).then(|| pdu.sense())
}

const LUNS_CHANGED: (u8, u8) = (0x3f, 0x0e);
const RESIZED: (u8, u8) = (0x2a, 0x09);

#[test]
fn one_message_tells_of_changed_luns_until_the_initiator_has_asked() {
    let (fixture, mut wire) = session();
    add(&fixture, LUNS..LUNS + 1);
    add(&fixture, LUNS + 1..LUNS + 30);
    assert_eq!(told(&mut wire, 2500), [LUNS_CHANGED]);
    assert_eq!(report_luns(&mut wire), usize::from(LUNS) + 30);
    assert_eq!(told(&mut wire, 1100), [], "it knows");
    fixture.daemon.target.set_lun(LUNS, None);
    assert_eq!(told(&mut wire, 500), [LUNS_CHANGED]);
    // The attention that says so counts like the question.
    for lun in 1..3 {
        let mut seen = Vec::new();
        while let Some(sense) = ready(&mut wire, lun) {
            seen.push((sense.1, sense.2));
        }
        assert!(seen.contains(&LUNS_CHANGED), "each logical unit has its own attention: {seen:x?}");
    }
    std::thread::sleep(Duration::from_secs(1));
    add(&fixture, LUNS..LUNS + 1);
    assert_eq!(told(&mut wire, 500), [LUNS_CHANGED]);
}

#[test]
fn changes_right_after_a_message_are_told_together_and_not_lost() {
    let (fixture, mut wire) = session();
    add(&fixture, LUNS..LUNS + 1);
    assert_eq!(wire.receive().opcode(), opcode::ASYNC_MESSAGE);
    report_luns(&mut wire);
    add(&fixture, LUNS + 1..LUNS + 20);
    assert_eq!(told(&mut wire, 300), [], "too early");
    assert_eq!(told(&mut wire, 4000), [LUNS_CHANGED], "late, but once");
    report_luns(&mut wire);
    // What the initiator has found out meanwhile need not be told.
    std::thread::sleep(Duration::from_secs(1));
    add(&fixture, LUNS + 20..LUNS + 21);
    assert_eq!(wire.receive().opcode(), opcode::ASYNC_MESSAGE);
    report_luns(&mut wire);
    add(&fixture, LUNS + 21..LUNS + 22);
    assert_eq!(report_luns(&mut wire), usize::from(LUNS) + 22);
    assert_eq!(told(&mut wire, 4000), []);
}

#[test]
fn a_first_lun_is_told_after_the_last_one_went() {
    let (fixture, mut wire) = session();
    let nexus = fixture.daemon.target.nexuses().pop().unwrap();
    nexus.set_access(Access { luns: Some([].into()), ..Access::default() });
    assert_eq!(told(&mut wire, 300), []);
    nexus.set_access(Access::default());
    assert_eq!(told(&mut wire, 300), [LUNS_CHANGED]);
}

#[test]
fn rules_that_show_and_hide_luns_send_one_message() {
    let (fixture, mut wire) = session();
    let nexus = fixture.daemon.target.nexuses().pop().unwrap();
    for n in 1..20 {
        nexus.set_access(Access { luns: Some((0..n).collect()), ..Access::default() });
    }
    assert_eq!(told(&mut wire, 2500), [LUNS_CHANGED]);
}

#[test]
fn a_resize_that_is_repeated_before_it_was_noticed_is_told_once() {
    let (fixture, mut wire) = session();
    (0..20).for_each(|_| fixture.lu.notify_resized());
    assert_eq!(told(&mut wire, 2500), [RESIZED]);
    fixture.lu.notify_resized();
    assert_eq!(told(&mut wire, 2500), [], "the attention is still there");
    assert_eq!(ready(&mut wire, 0), Some((6, 0x2a, 0x09)));
    assert_eq!(ready(&mut wire, 0), None);
    fixture.lu.notify_resized();
    assert_eq!(told(&mut wire, 500), [RESIZED]);
}

#[test]
fn units_that_are_replaced_send_one_message_for_all() {
    let (fixture, mut wire) = session();
    let target = &fixture.daemon.target;
    let pairs: Vec<_> = target
        .inventory()
        .iter()
        .map(|(lun, old)| {
            let device = Arc::new(MemDevice::new(SIZE / 2));
            (*lun, old.successor(device, LuOptions::default()).unwrap())
        })
        .collect();
    pairs.iter().for_each(|(lun, new)| target.set_lun(*lun, Some(new.clone())));
    pairs.iter().for_each(|(_, new)| new.notify_replaced(true));
    assert_eq!(told(&mut wire, 3500), [LUNS_CHANGED]);
    let mut attentions = Vec::new();
    while let Some(sense) = ready(&mut wire, 7) {
        attentions.push((sense.1, sense.2));
    }
    assert!(attentions.contains(&RESIZED) && attentions.contains(&(0x3f, 0x03)), "{attentions:x?}");
}
