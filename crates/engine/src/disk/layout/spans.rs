//! Where the members of a mirror hold its content.
//!
//! Members may have any sizes. Two copies of a byte are never on one member. The copies are laid
//! out by the wrap-around rule (McNaughton, "Scheduling with Deadlines and Loss Functions", 1959):
//! all first copies, then all second copies, and so on, make one tape. The members take parts of
//! the tape, one after another. A member takes no more of it than one copy is long, so that its
//! part holds no byte twice. No other layout of whole units holds more.

/// The unit of all places, in bytes. Content of a member begins at a multiple of it.
pub(crate) const UNIT: u64 = 1 << 20;

/// A copy of a span: it is on `member`, at byte `offset` of the member's disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopyPlace {
    pub(crate) member: usize,
    pub(crate) offset: u64,
}

/// A part of the content, and where its copies are. All numbers are bytes, and multiples of
/// [`UNIT`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopiedSpan {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) places: Vec<CopyPlace>,
}

impl CopiedSpan {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// Returns the number of units that members with `sizes` units hold in so many copies.
pub(crate) fn capacity(sizes: &[u64], copies: u64) -> u64 {
    let holds = |units: u64| {
        let room: u128 = sizes.iter().map(|size| u128::from((*size).min(units))).sum();
        room >= u128::from(units) * u128::from(copies)
    };
    let all: u128 = sizes.iter().map(|size| u128::from(*size)).sum();
    let (mut low, mut high) = (0, u64::try_from(all / u128::from(copies.max(1))).unwrap_or(u64::MAX));
    while low < high {
        let middle = high - (high - low) / 2;
        match holds(middle) {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    low
}

/// Lays out as much content as members with `sizes` bytes hold in `copies` copies. Content begins
/// at byte `first` of each member. The result is empty if the members hold nothing.
pub(crate) fn spread(sizes: &[u64], copies: usize, first: u64) -> Vec<CopiedSpan> {
    let units: Vec<u64> = sizes.iter().map(|size| size / UNIT).collect();
    let length = capacity(&units, copies as u64);
    if length == 0 {
        return Vec::new();
    }
    // The part of the tape of each member.
    let mut parts = Vec::new();
    let mut at = 0;
    for size in &units {
        let end = (at + size.min(&length)).min(length * copies as u64);
        parts.push(at..end);
        at = end;
    }
    let mut cuts: Vec<u64> = parts.iter().map(|part| part.start % length).collect();
    cuts.extend([0, length]);
    cuts.sort_unstable();
    cuts.dedup();
    let place = |at: u64| {
        let member = parts.iter().position(|part| part.contains(&at))?;
        Some(CopyPlace { member, offset: first + (at - parts[member].start) * UNIT })
    };
    let span = |cut: &[u64]| CopiedSpan {
        start: cut[0] * UNIT,
        len: (cut[1] - cut[0]) * UNIT,
        places: (0..copies as u64).filter_map(|copy| place(copy * length + cut[0])).collect(),
    };
    cuts.windows(2).map(span).collect()
}

/// Lays out at most so many bytes of content as members with `sizes` bytes hold, like [`spread`].
/// The members get parts that are as equal as their sizes allow, so that what is left free is on
/// all.
pub(crate) fn spread_up_to(sizes: &[u64], copies: usize, first: u64, most: u64) -> Vec<CopiedSpan> {
    let units: Vec<u64> = sizes.iter().map(|size| size / UNIT).collect();
    let most = capacity(&units, copies as u64).min(most / UNIT);
    // The smallest bound of a member's part with which so much is held.
    let held = |bound: u64| {
        let parts: Vec<u64> = units.iter().map(|size| (*size).min(bound)).collect();
        capacity(&parts, copies as u64)
    };
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low) / 2;
        if held(middle) >= most { high = middle } else { low = middle + 1 }
    }
    let parts: Vec<u64> = units.iter().map(|size| (*size).min(low) * UNIT).collect();
    let mut spans = spread(&parts, copies, first);
    let end = most * UNIT;
    spans.retain(|span| span.start < end);
    if let Some(last) = spans.last_mut() {
        last.len = last.len.min(end - last.start);
    }
    spans
}

/// Returns whether spans can be those of a layout with so many members and copies, each member with
/// content up to a byte: they follow one another, and copies are apart.
pub(crate) fn is_sound(spans: &[CopiedSpan], copies: usize, ends: &[u64]) -> bool {
    let mut end = Some(0u64);
    !spans.is_empty()
        && spans.iter().all(|span| {
            let follows = end == Some(span.start) && span.len > 0;
            end = span.start.checked_add(span.len);
            let whole = |number: u64| number.is_multiple_of(UNIT);
            let fits = |place: &CopyPlace| {
                let end = place.offset.checked_add(span.len);
                ends.get(place.member).is_some_and(|most| end.is_some_and(|end| end <= *most))
                    && whole(place.offset)
            };
            let apart = |n: usize| span.places[..n].iter().all(|p| p.member != span.places[n].member);
            follows
                && end.is_some()
                && whole(span.len)
                && span.places.len() == copies
                && span.places.iter().all(fits)
                && (0..copies).all(apart)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mib(sizes: &[u64]) -> Vec<u64> {
        sizes.iter().map(|size| size * UNIT).collect()
    }

    fn length(spans: &[CopiedSpan]) -> u64 {
        spans.last().map_or(0, CopiedSpan::end) / UNIT
    }

    #[test]
    fn members_of_one_two_and_three_hold_three() {
        assert_eq!(length(&spread(&mib(&[1000, 2000, 3000]), 2, UNIT)), 3000);
        assert_eq!(length(&spread(&mib(&[10, 10]), 2, UNIT)), 10);
        assert_eq!(length(&spread(&mib(&[10, 100]), 2, UNIT)), 10, "the rest has no second member");
        assert_eq!(length(&spread(&mib(&[10, 10, 10]), 3, UNIT)), 10);
        assert_eq!(length(&spread(&mib(&[3, 3, 3]), 2, UNIT)), 4, "half a unit is left");
        assert!(spread(&mib(&[10]), 2, UNIT).is_empty());
        assert!(spread(&[UNIT - 1, UNIT], 2, UNIT).is_empty());
    }

    #[test]
    fn two_equal_members_hold_the_same() {
        let places = |first| [0, 1].map(|member| CopyPlace { member, offset: first }).to_vec();
        let spans = spread(&mib(&[10, 10]), 2, UNIT);
        assert_eq!(spans, [CopiedSpan { start: 0, len: 10 * UNIT, places: places(UNIT) }]);
    }

    proptest! {
        #[test]
        fn copies_are_apart_and_nothing_overlaps(
            sizes in prop::collection::vec(0u64..50, 1..8),
            copies in 2usize..4,
        ) {
            let spans = spread(&mib(&sizes), copies, UNIT);
            let ends: Vec<u64> = mib(&sizes).iter().map(|size| size + UNIT).collect();
            let length = length(&spans);
            prop_assert_eq!(length, capacity(&sizes, copies as u64));
            prop_assert!(length == 0 || is_sound(&spans, copies, &ends));
            for member in 0..sizes.len() {
                let mut held: Vec<(u64, u64)> = spans
                    .iter()
                    .flat_map(|span| span.places.iter().map(move |place| (place, span.len)))
                    .filter(|(place, _)| place.member == member)
                    .map(|(place, len)| (place.offset, place.offset + len))
                    .collect();
                held.sort_unstable();
                prop_assert!(held.windows(2).all(|pair| pair[0].1 <= pair[1].0));
            }
            // Less content leaves the same space on all members that have so much.
            let most = length / 2;
            let part = spread_up_to(&mib(&sizes), copies, UNIT, most * UNIT);
            prop_assert_eq!(part.last().map_or(0, CopiedSpan::end), most * UNIT);
            prop_assert!(most == 0 || is_sound(&part, copies, &ends));
            // No more fits: one more unit of each copy would need more than there is.
            let more: u64 = sizes.iter().map(|size| (*size).min(length + 1)).sum();
            prop_assert!(more < (length + 1) * copies as u64);
        }
    }
}
