//! Tests of the rules of persistent reservations, without a device.

use super::*;
use proptest::prelude::*;

fn name(n: u8) -> Name {
    Name { initiator: format!("iqn.{n},i,0x1").into(), port: "iqn.t,t,0x0001".into() }
}

fn own(n: u8) -> Registration {
    Registration { name: name(n), key: 0, relative_id: 1, all_ports: false }
}

const TYPES: [Type; 6] = [
    Type::WriteExclusive,
    Type::ExclusiveAccess,
    Type::WriteExclusiveRegistrantsOnly,
    Type::ExclusiveAccessRegistrantsOnly,
    Type::WriteExclusiveAllRegistrants,
    Type::ExclusiveAccessAllRegistrants,
];

/// Returns reservations with initiators 1 to `n` registered under keys 10, 20, …
fn registered(n: u8) -> Reservations {
    let mut reservations = Reservations::default();
    for i in 1..=n {
        reservations.register(&[own(i)], Some(0), u64::from(i) * 10, false).unwrap();
    }
    reservations
}

#[test]
fn the_table_of_conflicts() {
    use Want::*;
    // Expected access of nexuses that do not hold the reservation: (registered reads, writes,
    // other), (unregistered reads, writes, other).
    let expected = [
        ([true, false, true], [true, false, false]),
        ([false, false, true], [false, false, false]),
        ([true, true, true], [true, false, false]),
        ([true, true, true], [false, false, false]),
        ([true, true, true], [true, false, false]),
        ([true, true, true], [false, false, false]),
    ];
    for (kind, (registrant, stranger)) in TYPES.into_iter().zip(expected) {
        let mut r = registered(2);
        r.reserve(&name(1), 10, kind).unwrap();
        let allowed = |n: u8| [Read, Write, Registered].map(|want| r.allows(&name(n), want));
        assert_eq!(allowed(1), [true; 3], "{kind:?}");
        assert_eq!(allowed(2), registrant, "{kind:?}");
        assert_eq!(allowed(3), stranger, "{kind:?}");
    }
}

#[test]
fn keys_are_checked() {
    let mut r = registered(1);
    assert_eq!(r.register(&[own(1)], Some(11), 12, false), Err(Refusal::Conflict));
    assert_eq!(r.register(&[own(2)], Some(1), 12, false), Err(Refusal::Conflict));
    assert_eq!(r.reserve(&name(1), 11, Type::WriteExclusive), Err(Refusal::Conflict));
    assert_eq!(r.reserve(&name(2), 0, Type::WriteExclusive), Err(Refusal::Conflict));
    assert_eq!(r.release(&name(2), 10, None), Err(Refusal::Conflict));
    assert_eq!(r.clear(&name(1), 0), Err(Refusal::Conflict));
    assert_eq!(r.generation, 1);
    r.register(&[own(2)], Some(0), 0, false).unwrap();
    assert_eq!((r.registrations.len(), r.generation), (1, 1), "nothing was registered");
    r.register(&[own(1)], None, 12, false).unwrap();
    assert_eq!((r.key_of(&name(1)), r.generation), (Some(12), 2));
}

#[test]
fn a_holder_that_unregisters_releases() {
    for kind in TYPES {
        let mut r = registered(3);
        r.reserve(&name(1), 10, kind).unwrap();
        let news = r.register(&[own(1)], Some(10), 0, false).unwrap();
        let stays = kind.all_registrants();
        assert_eq!(r.reservation.is_some(), stays, "{kind:?}");
        let told = kind.for_registrants() && !stays;
        let expected = if told { vec![name(2), name(3)] } else { Vec::new() };
        assert_eq!(news.attentions.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>(), expected, "{kind:?}");
        r.register(&[own(2)], Some(20), 0, false).unwrap();
        r.register(&[own(3)], Some(30), 0, false).unwrap();
        assert_eq!(r.reservation, None, "the last registrant is gone");
    }
}

#[test]
fn release_is_the_holders() {
    for kind in TYPES {
        let mut r = registered(2);
        r.reserve(&name(1), 10, kind).unwrap();
        assert!(r.reserve(&name(1), 10, kind).is_ok(), "again");
        let other = if kind == Type::WriteExclusive { Type::ExclusiveAccess } else { Type::WriteExclusive };
        assert_eq!(r.reserve(&name(1), 10, other), Err(Refusal::Conflict));
        assert_eq!(r.reserve(&name(2), 20, kind).is_ok(), kind.all_registrants());
        let wrong = Sense::illegal(Asc::INVALID_RELEASE_OF_PERSISTENT_RESERVATION);
        assert_eq!(r.release(&name(1), 10, Some(other)), Err(Refusal::Check(wrong)));
        r.release(&name(2), 20, Some(kind)).unwrap();
        assert_eq!(r.reservation.is_none(), kind.all_registrants());
        r.release(&name(1), 10, Some(kind)).unwrap();
        assert_eq!((r.reservation, r.generation), (None, 2));
    }
}

#[test]
fn preempting_takes_the_reservation_or_only_registrations() {
    // This key preempts only registrations.
    let mut r = registered(3);
    let news = r.preempt(&name(1), 10, 20, None, false).unwrap();
    assert_eq!(news.attentions, [(name(2), Asc::REGISTRATIONS_PREEMPTED)]);
    assert_eq!((r.registrations.len(), r.reservation.clone(), r.generation), (2, None, 4));
    assert_eq!(r.preempt(&name(1), 10, 20, None, false), Err(Refusal::Conflict), "nobody has that key");
    assert_eq!(r.preempt(&name(1), 10, 0, None, false), Err(Refusal::Check(Sense::parameter_field(8))));
    // The holder's key preempts the reservation.
    r.reserve(&name(3), 30, Type::WriteExclusiveRegistrantsOnly).unwrap();
    assert_eq!(r.preempt(&name(1), 10, 30, None, false), Err(Refusal::Check(Sense::cdb_bit(2, 3))));
    let news = r.preempt(&name(1), 10, 30, Some(Type::ExclusiveAccess), true).unwrap();
    assert_eq!(news.attentions, [(name(3), Asc::REGISTRATIONS_PREEMPTED)]);
    assert_eq!(news.abort, [name(3)]);
    let held = Reservation { kind: Type::ExclusiveAccess, holder: name(1) };
    assert_eq!((r.reservation.clone(), r.registrations.len()), (Some(held), 1));
    // A nexus preempts its own key to change the type.
    r.preempt(&name(1), 10, 10, Some(Type::WriteExclusive), false).unwrap();
    assert_eq!(r.reservation.map(|r| r.kind), Some(Type::WriteExclusive));
    assert_eq!(r.registrations.len(), 1);
}

#[test]
fn preempting_all_registrants() {
    let mut r = registered(4);
    r.reserve(&name(1), 10, Type::WriteExclusiveAllRegistrants).unwrap();
    assert_eq!(r.reservation_key(), 0);
    r.preempt(&name(2), 20, 30, None, false).unwrap();
    assert_eq!((r.registrations.len(), r.reservation.is_some()), (3, true));
    let news = r.preempt(&name(2), 20, 0, Some(Type::WriteExclusive), false).unwrap();
    assert_eq!(news.attentions.len(), 2);
    assert_eq!(r.registrations.len(), 1);
    assert_eq!(r.reservation, Some(Reservation { kind: Type::WriteExclusive, holder: name(2) }));
    // A remaining registrant gets a unit attention if the rules changed for it.
    let mut r = registered(3);
    r.reserve(&name(1), 10, Type::WriteExclusiveRegistrantsOnly).unwrap();
    let news = r.preempt(&name(2), 20, 10, Some(Type::WriteExclusive), false).unwrap();
    let told = [(name(1), Asc::REGISTRATIONS_PREEMPTED), (name(3), Asc::RESERVATIONS_RELEASED)];
    assert_eq!(news.attentions, told);
}

#[test]
fn clearing_tells_everybody_else() {
    let mut r = registered(3);
    r.reserve(&name(2), 20, Type::ExclusiveAccess).unwrap();
    let news = r.clear(&name(1), 10).unwrap();
    let told = [(name(2), Asc::RESERVATIONS_PREEMPTED), (name(3), Asc::RESERVATIONS_PREEMPTED)];
    assert_eq!(news.attentions, told);
    assert_eq!((r.registrations.len(), r.reservation, r.generation), (0, None, 4));
}

#[test]
fn a_reservation_moves() {
    let mut r = registered(2);
    let to = |n: u8, key| Registration { key, ..own(n) };
    let not_holder = Refusal::Check(Sense::illegal(Asc::INVALID_FIELD_IN_CDB));
    assert_eq!(r.register_and_move(&name(1), 10, &to(3, 5), false, false), Err(not_holder));
    r.reserve(&name(1), 10, Type::ExclusiveAccess).unwrap();
    assert_eq!(r.register_and_move(&name(1), 11, &to(3, 5), false, false), Err(Refusal::Conflict));
    assert!(r.register_and_move(&name(1), 10, &to(3, 0), false, false).is_err());
    assert!(r.register_and_move(&name(1), 10, &to(1, 5), false, false).is_err());
    r.register_and_move(&name(1), 10, &to(3, 5), true, false).unwrap();
    assert_eq!(r.reservation, Some(Reservation { kind: Type::ExclusiveAccess, holder: name(3) }));
    assert_eq!((r.key_of(&name(1)), r.key_of(&name(3)), r.generation), (None, Some(5), 3));
    r.register_and_move(&name(3), 5, &to(2, 7), false, true).unwrap();
    assert_eq!((r.key_of(&name(2)), r.key_of(&name(3)), r.aptpl), (Some(7), Some(5), true));
    r.release(&name(2), 7, Some(Type::ExclusiveAccess)).unwrap();
    r.reserve(&name(2), 7, Type::WriteExclusiveAllRegistrants).unwrap();
    assert_eq!(r.register_and_move(&name(2), 7, &to(3, 5), false, false), Err(Refusal::Conflict));
}

#[test]
fn registrations_are_bounded() {
    let mut r = Reservations::default();
    let many: Vec<_> = (0..=MAX_REGISTRATIONS as u32)
        .map(|n| Registration { name: Name { initiator: n.to_string().into(), ..name(0) }, ..own(0) })
        .collect();
    let full = Refusal::Check(Sense::illegal(Asc::INSUFFICIENT_REGISTRATION_RESOURCES));
    assert_eq!(r.register(&many, Some(0), 1, false), Err(full.clone()));
    assert_eq!(r, Reservations::default());
    r.register(&many[1..], Some(0), 1, false).unwrap();
    assert_eq!(r.register(&many[..1], Some(0), 1, false), Err(full));
}

proptest! {
    /// For any sequence of operations: only registrants hold the reservation, and refusals change
    /// nothing. RESERVE and RELEASE do not change the generation. Any other operation adds at most
    /// 1 to it. An initiator gets a unit attention if another initiator removes its registration.
    #[test]
    fn invariants(steps in prop::collection::vec((0..7u8, 1..5u8, 0..4u64, 0..4u64, 0..6usize), 1..60)) {
        let mut r = Reservations::default();
        for (action, who, key, other, kind) in steps {
            let before = r.clone();
            let (who, kind) = (name(who), TYPES[kind]);
            let done = match action {
                0 => r.register(&[Registration { name: who.clone(), ..own(0) }], Some(key), other, false),
                1 => r.register(&[Registration { name: who.clone(), ..own(0) }], None, other, false),
                2 => r.reserve(&who, key, kind),
                3 => r.release(&who, key, Some(kind)),
                4 => r.clear(&who, key),
                5 => r.preempt(&who, key, other, Some(kind), false),
                _ => r.register_and_move(&who, key, &Registration { key: other, ..own(1) }, false, false),
            };
            if let Some(reservation) = &r.reservation {
                prop_assert!(!r.registrations.is_empty());
                prop_assert!(reservation.kind.all_registrants() || r.key_of(&reservation.holder).is_some());
            }
            prop_assert!(r.registrations.iter().all(|r| r.key != 0));
            let mut names: Vec<_> = r.registrations.iter().map(|r| r.name.clone()).collect();
            names.sort();
            names.dedup();
            prop_assert_eq!(names.len(), r.registrations.len());
            match done {
                Err(_) => prop_assert_eq!(&r, &before),
                Ok(news) => {
                    prop_assert!(r.generation - before.generation <= u32::from(!matches!(action, 2 | 3)));
                    for lost in before.registrations.iter().filter(|l| r.key_of(&l.name).is_none()) {
                        let told = news.attentions.iter().any(|(n, _)| *n == lost.name);
                        prop_assert!(told || lost.name == who);
                    }
                }
            }
        }
    }
}
