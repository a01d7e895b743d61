//! How the members of a layout take over what a member had that is out, if they have the space.
//!
//! A place of the missing member moves to a member that has free space and no other place of the
//! same content. If all members with free space have one, another place makes way: it moves from a
//! full member to one with free space, and leaves room for the missing one. Such a place exists as
//! long as the members that are in could hold all content. Let *m* be a member with free space that
//! has not all content; one exists, since otherwise the others could not hold it. Content that *m*
//! does not have has all its *width* places elsewhere, on members that are in. The missing content
//! has at most *width* - 1 places, one of them on *m*. So one of the former is on a member without
//! the missing content, and that member is full.

use super::growth::{GrowthStep, MemberRoom, PlaceMove, has_room_for, place_on};
use super::record::LayoutRecord;
use super::spans::{CopiedSpan, UNIT};

/// More units than a member has.
const ALL: u64 = u64::MAX / UNIT;
/// Members whose free parts differ by less than this part of a member count as equal. So content
/// goes to all of them, and spans stay long.
const PARTS: u64 = 16;

/// Returns the next move, until members that are out have no place any more. `None`: they have
/// none, or the others have no space.
pub(super) fn next_takeover(record: &LayoutRecord) -> Option<GrowthStep> {
    let is_in = |member: usize| record.members[member].is_in;
    let room = MemberRoom::on(record, is_in);
    let missing = |span: &CopiedSpan| span.places.iter().position(|place| !is_in(place.member));
    let free_part = |to: &usize| room.free[*to] * PARTS / (room.free[*to] + room.used[*to]).max(1);
    let direct = record.spans.iter().rev().find_map(|span| {
        let index = missing(span)?;
        let to = (0..room.free.len()).filter(|to| room.free[*to] > 0 && place_on(span, *to).is_none());
        room.move_end(span, index, to.max_by_key(free_part)?, ALL)
    });
    let stuck = || record.spans.iter().find(|span| missing(span).is_some());
    let step = direct.or_else(|| make_way(record, &room, stuck()?))?;
    Some(GrowthStep::Move(step)).filter(|step| has_room_for(record, step))
}

/// Returns the move that leaves room for content of which a place is missing.
fn make_way(record: &LayoutRecord, room: &MemberRoom, missing: &CopiedSpan) -> Option<PlaceMove> {
    let members = 0..room.free.len();
    let gets = |to: &usize| room.free[*to] > 0 && room.used[*to] < room.held;
    members.clone().filter(gets).find_map(|to| {
        let gives = |from: &usize| record.members[*from].is_in && place_on(missing, *from).is_none();
        members.clone().filter(gives).find_map(|from| {
            let is_it = |span: &&CopiedSpan| place_on(span, from).is_some() && place_on(span, to).is_none();
            let span = record.spans.iter().rev().find(is_it)?;
            room.move_end(span, place_on(span, from)?, to, missing.len / UNIT)
        })
    })
}
