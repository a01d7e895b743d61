//! Tests of what a layout does to grow.

use super::super::record::{LayoutKind, MemberRecord};
use super::super::spans::{capacity, is_sound, spread};
use super::super::takeover::next_takeover;
use super::*;
use proptest::prelude::*;
use uuid::Uuid;

fn member(units: u64) -> MemberRecord {
    MemberRecord {
        uuid: Uuid::nil(),
        path: String::new(),
        is_in: true,
        is_listed: false,
        capacity: units * UNIT,
        reason: String::new(),
        incoming: None,
    }
}

/// A layout whose spans are those of a new one.
fn layout(sizes: &[u64], width: usize) -> LayoutRecord {
    let bytes: Vec<u64> = sizes.iter().map(|units| units * UNIT).collect();
    LayoutRecord {
        uuid: Uuid::nil(),
        sequence: 1,
        kind: LayoutKind::Mirror,
        width,
        reserve: 0,
        stale: 0,
        members: sizes.iter().map(|units| member(*units)).collect(),
        spans: spread(&bytes, width, CONTENT_START),
    }
}

/// What the units of the places hold: for each member a number for each unit of its disk.
type Disks = Vec<Vec<Option<u64>>>;

fn units_of(span: &CopiedSpan) -> Range<u64> {
    span.start / UNIT..span.end() / UNIT
}

/// Fills disks as spans say, each unit with its number.
fn fill(disks: &mut Disks, spans: &[CopiedSpan]) {
    for span in spans {
        for place in &span.places {
            for (n, unit) in units_of(span).enumerate() {
                disks[place.member][(place.offset / UNIT) as usize + n] = Some(unit);
            }
        }
    }
}

/// Checks that each place has what it is to have, and that no two places are at one.
fn check(disks: &Disks, record: &LayoutRecord) {
    let ends: Vec<u64> = record.members.iter().map(|of| CONTENT_START + of.capacity).collect();
    assert!(is_sound(&record.spans, record.width, &ends));
    let mut taken = std::collections::BTreeSet::new();
    for span in &record.spans {
        for place in &span.places {
            for (n, unit) in units_of(span).enumerate() {
                let at = (place.offset / UNIT) as usize + n;
                assert_eq!(disks[place.member][at], Some(unit), "unit {unit} on member {}", place.member);
                assert!(taken.insert((place.member, at)), "two units at one place");
            }
        }
    }
}

/// Carries out a move on disks. What the source has lost comes from elsewhere.
fn carry_out(disks: &mut Disks, record: &mut LayoutRecord, step: &PlaceMove) {
    for (n, unit) in (step.start / UNIT..(step.start + step.len) / UNIT).enumerate() {
        disks[step.to.member][(step.to.offset / UNIT) as usize + n] = Some(unit);
    }
    record.spans = moved(&record.spans, step);
}

/// Grows a layout to the end. Returns how many units moved, and how often content was laid out.
fn grow(record: &mut LayoutRecord) -> (u64, u64) {
    let mut disks: Disks =
        record.members.iter().map(|of| vec![None; (of.capacity / UNIT) as usize + 1]).collect();
    fill(&mut disks, &record.spans);
    let (mut moves, mut extended) = (0, 0);
    for _ in 0..10_000 {
        match next_step(record) {
            None => return (moves, extended),
            Some(GrowthStep::Extend(spans)) => {
                fill(&mut disks, &spans);
                extended += 1;
                record.spans = joined([record.spans.clone(), spans].concat());
            }
            Some(GrowthStep::Move(step)) => {
                moves += step.len / UNIT;
                carry_out(&mut disks, record, &step);
            }
        }
        check(&disks, record);
    }
    panic!("the layout never ends to grow");
}

fn held(record: &LayoutRecord) -> u64 {
    record.spans.last().map_or(0, CopiedSpan::end) / UNIT
}

#[test]
fn a_disk_beside_two_full_ones_makes_half_of_it() {
    let mut mirror = layout(&[100, 100], 2);
    mirror.members.push(member(100));
    assert_eq!(reckon(&mirror), Some(Growth { size: 150 * UNIT, moves: 50 * UNIT }));
    assert_eq!((grow(&mut mirror).0, held(&mirror)), (50, 150));
    assert!(mirror.spans.len() <= 4, "{} spans", mirror.spans.len());
    assert_eq!(reckon(&mirror), None);
}

#[test]
fn two_disks_beside_full_ones_need_no_move() {
    let mut mirror = layout(&[100, 100], 2);
    mirror.members.extend([member(70), member(70)]);
    assert_eq!((grow(&mut mirror), held(&mirror)), ((0, 1), 170));
}

#[test]
fn rows_go_over_one_more_disk() {
    let mut rows = layout(&[90, 90, 90], 3);
    (rows.kind, rows.width) = (LayoutKind::Raid5 { unit: 65536 }, 3);
    rows.members.push(member(90));
    assert_eq!(reckon(&rows), Some(Growth { size: 240 * UNIT, moves: 60 * UNIT }));
    assert_eq!((grow(&mut rows).0, held(&rows)), (60, 120));
}

#[test]
fn larger_disks_count() {
    let mut mirror = layout(&[10, 10], 2);
    mirror.members[0].capacity = 30 * UNIT;
    assert_eq!(next_step(&mirror), None, "the other one has no space");
    mirror.members[1].capacity = 20 * UNIT;
    assert_eq!((grow(&mut mirror), held(&mirror)), ((0, 1), 20));
    assert_eq!(mirror.spans.len(), 1);
}

#[test]
fn a_new_layout_has_nothing_to_gain() {
    for sizes in [&[10, 10][..], &[10, 100], &[3, 3, 3], &[1000, 2000, 3000]] {
        assert_eq!(next_step(&layout(sizes, 2)), None);
    }
}

/// Lets the others take over what members had that are out. Returns whether they have everything.
fn take_over(record: &mut LayoutRecord) -> bool {
    let mut disks: Disks =
        record.members.iter().map(|of| vec![None; (of.capacity / UNIT) as usize + 1]).collect();
    fill(&mut disks, &record.spans);
    for _ in 0..10_000 {
        match next_takeover(record) {
            None => return record.is_complete(),
            Some(GrowthStep::Extend(_)) => panic!("a layout does not grow without a member"),
            Some(GrowthStep::Move(step)) => {
                assert!(record.members[step.to.member].is_in);
                carry_out(&mut disks, record, &step);
            }
        }
        check(&disks, record);
    }
    panic!("it never ends");
}

#[test]
fn a_reserve_is_kept_free_and_takes_over() {
    let mut rows = layout(&[90, 90, 90, 90], 3);
    (rows.kind, rows.width, rows.reserve) = (LayoutKind::Raid5 { unit: 65536 }, 3, 1);
    rows.spans = super::super::spans::spread_up_to(&[90 * UNIT; 4], 3, CONTENT_START, 90 * UNIT);
    let used = |rows: &LayoutRecord| MemberRoom::on(rows, |_| true).used;
    assert_eq!((held(&rows), used(&rows), next_step(&rows)), (90, vec![68, 68, 68, 66], None));
    rows.members[1].is_in = false;
    assert!(take_over(&mut rows));
    assert_eq!((used(&rows), rows.is_used(1)), (vec![90, 0, 90, 90], false));
    assert_eq!(next_step(&rows), None, "it does not grow without its reserve");
    // A new disk in its place is the reserve, and a further one is used.
    rows.members[1].is_in = true;
    assert_eq!(next_step(&rows), None);
    rows.members.push(member(90));
    grow(&mut rows);
    assert_eq!(held(&rows), 120);
}

proptest! {
    #[test]
    fn the_others_take_over_if_they_could_hold_everything(
        sizes in prop::collection::vec(1u64..40, 3..7),
        reserve in 0usize..3,
        width in 2usize..4,
        more in prop::collection::vec(1u64..40, 0..3),
        out in prop::collection::vec(0usize..7, 1..3),
    ) {
        prop_assume!(reserve + width <= sizes.len());
        let bytes: Vec<u64> = sizes.iter().map(|units| units * UNIT).collect();
        let mut record = layout(&sizes, width);
        record.reserve = reserve;
        let most = capacity_with(&sizes, width, reserve);
        record.spans = spread_up_to(&bytes, width, CONTENT_START, most * UNIT);
        prop_assume!(!record.spans.is_empty());
        record.members.extend(more.into_iter().map(member));
        grow(&mut record);
        let sizes: Vec<u64> = record.members.iter().map(|of| of.capacity / UNIT).collect();
        prop_assert_eq!(held(&record), capacity_with(&sizes, width, reserve).max(most));
        let out: std::collections::BTreeSet<usize> = out.into_iter().filter(|of| *of < sizes.len()).collect();
        prop_assume!(out.len() < width);
        out.iter().for_each(|number| record.members[*number].is_in = false);
        let left = sizes.iter().enumerate().filter(|(number, _)| !out.contains(number)).map(|(_, size)| *size);
        let left: Vec<u64> = left.collect();
        let can = left.len() >= width && capacity(&left, width as u64) >= held(&record);
        prop_assert!(can || out.len() > reserve, "the reserve is for {reserve}");
        prop_assert_eq!(take_over(&mut record), can || out.iter().all(|of| !record.is_used(*of)));
    }
}

proptest! {
    #[test]
    fn a_layout_grows_to_all_that_its_members_hold(
        sizes in prop::collection::vec(1u64..40, 2..6),
        more in prop::collection::vec(prop::collection::vec(0u64..40, 0..3), 1..4),
        larger in prop::collection::vec(0u64..20, 0..4),
        width in 2usize..5,
    ) {
        let mut record = layout(&sizes, width);
        prop_assume!(!record.spans.is_empty());
        for new in more {
            record.members.extend(new.into_iter().map(member));
            for (of, more) in record.members.iter_mut().zip(&larger) {
                of.capacity += more * UNIT;
            }
            let sizes: Vec<u64> = record.members.iter().map(|of| of.capacity / UNIT).collect();
            let (before, missing) = (held(&record), MemberRoom::of(&record).missing(width));
            let (moves, extended) = grow(&mut record);
            prop_assert_eq!(held(&record), capacity(&sizes, width as u64));
            prop_assert!(held(&record) >= before);
            // What is laid out early leaves less than a unit over on each place.
            let most = missing + extended * width as u64;
            prop_assert!(moves <= most, "{moves} units moved, {missing} at least");
        }
    }
}
