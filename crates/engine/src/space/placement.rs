//! Placement: the extent from which a new slot comes. It is a pure function of what is free, the
//! slot size, and a wish. It has no state and no randomness, so policies can be compared and tested
//! without a pool.

use crate::settings::Placement;

/// An extent: (physical volume, number on it).
pub(crate) type ExtentId = (u32, u32);

/// The free extents as placement sees them.
pub(crate) trait FreeView {
    /// Returns the first extent at or after `from` that holds slots of this size and has a free
    /// one.
    fn next_open(&self, slot_log2: u8, from: ExtentId) -> Option<ExtentId>;
    /// Returns the first extent at or after `from` that is unused and may be opened.
    fn next_free(&self, from: ExtentId) -> Option<ExtentId>;
}

/// The extent from which a slot is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// An extent that has slots of this size.
    Open(ExtentId),
    /// An extent that is unused.
    Free(ExtentId),
}

/// Chooses the extent for a new slot. `wish` is the extent of the neighbour; `last` is the extent
/// of the last allocation of this slot size. `spare` means that there are free extents that no
/// promise needs (I6), so one may be opened though another has room.
pub(crate) fn choose(
    policy: Placement,
    view: &dyn FreeView,
    slot_log2: u8,
    wish: Option<ExtentId>,
    last: Option<ExtentId>,
    spare: bool,
) -> Option<Choice> {
    let open_at = |extent: ExtentId| view.next_open(slot_log2, extent).filter(|e| *e == extent);
    let near = match policy {
        Placement::Anywhere => last.and_then(open_at).map(Choice::Open),
        Placement::Contiguous => wish.and_then(|w| {
            // The order is: the neighbour's own extent, the free one right behind it, then any
            // later one on the same physical volume.
            let same_pv = |e: &ExtentId| e.0 == w.0;
            let next = (w.0, w.1.saturating_add(1));
            let free_from = |extent| view.next_free(extent).filter(|_| spare);
            open_at(w)
                .map(Choice::Open)
                .or_else(|| free_from(next).filter(|e| *e == next).map(Choice::Free))
                .or_else(|| free_from(w).filter(same_pv).map(Choice::Free))
                .or_else(|| view.next_open(slot_log2, w).filter(same_pv).map(Choice::Open))
        }),
    };
    near.or_else(|| view.next_open(slot_log2, (0, 0)).map(Choice::Open))
        .or_else(|| view.next_free((0, 0)).map(Choice::Free))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct View {
        open: Vec<ExtentId>,
        free: Vec<ExtentId>,
    }
    impl FreeView for View {
        fn next_open(&self, _: u8, from: ExtentId) -> Option<ExtentId> {
            self.open.iter().copied().filter(|e| *e >= from).min()
        }
        fn next_free(&self, from: ExtentId) -> Option<ExtentId> {
            self.free.iter().copied().filter(|e| *e >= from).min()
        }
    }

    #[test]
    fn anywhere_stays_then_takes_the_first() {
        let view = View { open: vec![(0, 4), (0, 9)], free: vec![(0, 1)] };
        let choose = |last| choose(Placement::Anywhere, &view, 12, Some((0, 1)), last, true);
        assert_eq!(choose(Some((0, 9))), Some(Choice::Open((0, 9))));
        assert_eq!(choose(Some((0, 5))), Some(Choice::Open((0, 4))));
        assert_eq!(choose(None), Some(Choice::Open((0, 4))));
    }

    #[test]
    fn contiguous_follows_its_neighbour() {
        let at = |open: &[ExtentId], free: &[ExtentId], wish| {
            let view = View { open: open.to_vec(), free: free.to_vec() };
            choose(Placement::Contiguous, &view, 12, wish, None, true)
        };
        let view = View { open: vec![(0, 2)], free: vec![(0, 5)] };
        let spared = choose(Placement::Contiguous, &view, 12, Some((0, 4)), None, false);
        assert_eq!(spared, Some(Choice::Open((0, 2))), "promised extents are not used for neatness");
        assert_eq!(at(&[(0, 4)], &[(0, 5)], Some((0, 4))), Some(Choice::Open((0, 4))));
        assert_eq!(at(&[(0, 2)], &[(0, 5)], Some((0, 4))), Some(Choice::Free((0, 5))));
        assert_eq!(at(&[(0, 8)], &[(0, 7)], Some((0, 4))), Some(Choice::Free((0, 7))));
        assert_eq!(at(&[(0, 8)], &[(1, 7)], Some((0, 4))), Some(Choice::Open((0, 8))));
        assert_eq!(at(&[], &[(1, 7)], Some((0, 4))), Some(Choice::Free((1, 7))));
        assert_eq!(at(&[], &[], Some((0, 4))), None);
    }
}
