//! Tables of views and asks, and what is chosen.

use super::share::Weight;
use super::snap_aware::Region;
use super::*;

/// Extents in memory: those with a free slot, and those that are unused.
#[derive(Default)]
struct View {
    open: Vec<ExtentId>,
    free: Vec<ExtentId>,
    last: Option<ExtentId>,
}

impl FreeView for View {
    fn next_open(&self, _: u8, from: ExtentId) -> Option<ExtentId> {
        self.open.iter().copied().filter(|e| *e >= from).min()
    }
    fn next_free(&self, from: ExtentId) -> Option<ExtentId> {
        self.free.iter().copied().filter(|e| *e >= from).min()
    }
    fn prev_open(&self, _: u8, end: ExtentId) -> Option<ExtentId> {
        self.open.iter().copied().filter(|e| *e < end).max()
    }
    fn prev_free(&self, end: ExtentId) -> Option<ExtentId> {
        self.free.iter().copied().filter(|e| *e < end).max()
    }
    fn last_on(&self, _: u8, pv: u32) -> Option<ExtentId> {
        self.last.filter(|last| last.0 == pv)
    }
}

fn view(open: &[ExtentId], free: &[ExtentId]) -> View {
    View { open: open.to_vec(), free: free.to_vec(), last: None }
}

fn ask(policy: Policy<'_>) -> Ask<'_> {
    Ask {
        policy,
        slot_log2: 12,
        slots_per_extent: 16,
        class: Class::Current,
        owner: (BranchId(1), Chunk(0)),
        origin: None,
        neighbour: None,
        region: None,
        last: None,
        spare: true,
    }
}

#[test]
fn anywhere_stays_then_takes_the_first() {
    let view = view(&[(0, 4), (0, 9)], &[(0, 1)]);
    let choose = |last| {
        let neighbour = Some(((0, 1), 3));
        choose(&view, &Ask { neighbour, last, ..ask(Policy::Anywhere) })
    };
    assert_eq!(choose(Some((0, 9))), Some(Choice::Open((0, 9), 0)));
    assert_eq!(choose(Some((0, 5))), Some(Choice::Open((0, 4), 0)));
    assert_eq!(choose(None), Some(Choice::Open((0, 4), 0)));
}

#[test]
fn contiguous_follows_its_neighbour() {
    let asked = |spare| Ask { neighbour: Some(((0, 4), 6)), spare, ..ask(Policy::Contiguous) };
    let at = |open: &[ExtentId], free: &[ExtentId]| choose(&view(open, free), &asked(true));
    let spared = choose(&view(&[(0, 2)], &[(0, 5)]), &asked(false));
    assert_eq!(spared, Some(Choice::Open((0, 2), 0)), "promised extents are not used for neatness");
    assert_eq!(at(&[(0, 4)], &[(0, 5)]), Some(Choice::Open((0, 4), 7)));
    assert_eq!(at(&[(0, 2)], &[(0, 5)]), Some(Choice::Free((0, 5), 0)));
    assert_eq!(at(&[(0, 8)], &[(0, 7)]), Some(Choice::Free((0, 7), 0)));
    assert_eq!(at(&[(0, 8)], &[(1, 7)]), Some(Choice::Open((0, 8), 0)));
    assert_eq!(at(&[], &[(1, 7)]), Some(Choice::Free((1, 7), 0)));
    assert_eq!(at(&[], &[]), None);
}

fn share(disks: u32) -> ShareMap {
    let weights: Vec<_> = (0..disks).map(|pv| Weight { pv, capacity: 10, gives: true }).collect();
    ShareMap::new(&weights)
}

/// The chunk at which an extent's worth of branch 1 begins that Share places on this disk.
fn chunk_on(map: &ShareMap, pv: u32) -> Chunk {
    let is_there = |chunk: &Chunk| map.place(item_of((BranchId(1), *chunk), 16)) == Some(pv);
    (0..).map(|part| Chunk(16 * part)).find(is_there).unwrap()
}

#[test]
fn share_names_the_disk_and_the_last_extent_there_is_taken() {
    let map = share(3);
    let policy = Policy::Share(&map);
    let Policy::Share(map) = &policy else { return };
    let chunk = chunk_on(map, 1);
    for offset in [0, 5, 15] {
        let owner = (BranchId(1), Chunk(chunk.0 + offset));
        let asked = |spare| Ask { owner, last: Some((0, 4)), spare, ..ask(policy) };
        let all = view(&[(0, 4), (1, 2), (1, 6), (2, 0)], &[(0, 5), (1, 1), (2, 3)]);
        assert_eq!(choose(&all, &asked(true)), Some(Choice::Open((1, 2), 0)));
        let begun = View { last: Some((1, 6)), ..view(&all.open, &all.free) };
        assert_eq!(choose(&begun, &asked(true)), Some(Choice::Open((1, 6), 0)));
        let filled = View { last: Some((1, 5)), ..view(&all.open, &all.free) };
        assert_eq!(choose(&filled, &asked(true)), Some(Choice::Open((1, 2), 0)));
        let none_begun = view(&[(0, 4)], &[(0, 5), (1, 1), (2, 3)]);
        assert_eq!(choose(&none_begun, &asked(true)), Some(Choice::Free((1, 1), 0)));
        // Promised extents are not opened for a wish.
        assert_eq!(choose(&none_begun, &asked(false)), Some(Choice::Open((0, 4), 0)));
        // Where no extent is open, the promise of this very slot is on a free one.
        let none_open = view(&[], &[(0, 5), (1, 1), (2, 3)]);
        assert_eq!(choose(&none_open, &asked(false)), Some(Choice::Free((1, 1), 0)));
    }
}

#[test]
fn a_full_disk_is_passed_over_in_the_order_of_the_ranking() {
    let map = share(4);
    let policy = Policy::Share(&map);
    let Policy::Share(map) = &policy else { return };
    for part in 0..50 {
        let owner = (BranchId(1), Chunk(16 * part));
        let ranking = map.ranking(item_of(owner, 16));
        for full in 0..4 {
            let left = &ranking[full..];
            let free: Vec<ExtentId> = left.iter().map(|pv| (*pv, 3)).collect();
            let chosen = choose(&view(&[], &free), &Ask { owner, ..ask(policy) });
            assert_eq!(chosen, Some(Choice::Free((left[0], 3), 0)));
        }
    }
}

#[test]
fn what_is_preserved_stays_on_the_disk_of_its_origin() {
    let map = share(3);
    let policy = Policy::Share(&map);
    let Policy::Share(map) = &policy else { return };
    let owner = (BranchId(1), chunk_on(map, 1));
    let all = view(&[(0, 4), (1, 2)], &[(2, 3)]);
    let asked = |class, pv| Ask { class, owner, origin: Some(((pv, 9), 1)), ..ask(policy) };
    assert_eq!(choose(&all, &asked(Class::Preserved, 0)), Some(Choice::Open((0, 4), 0)));
    assert_eq!(choose(&all, &asked(Class::Preserved, 2)), Some(Choice::Free((2, 3), 0)));
    assert_eq!(choose(&all, &asked(Class::Preserved, 7)), Some(Choice::Open((1, 2), 0)));
    assert_eq!(choose(&all, &asked(Class::Current, 0)), Some(Choice::Open((1, 2), 0)));
}

const SNAP_AWARE: SnapAware = SnapAware { slice: 4, gap: 2 };

/// The region of extents 6 to 11 of physical volume 1: 6 to 9 are the slice, 10 and 11 the gap. The
/// home of chunk 67 is index 3 of extent 6.
fn in_region(open: &[u32], free: &[u32], class: Class, origin: u32, spare: bool) -> Option<Choice> {
    let on_pv = |extents: &[u32]| extents.iter().map(|extent| (1, *extent)).collect::<Vec<_>>();
    let policy = Policy::SnapAware(SNAP_AWARE);
    let asked = Ask {
        class,
        owner: (BranchId(1), Chunk(67)),
        origin: Some(((1, origin), 3)),
        region: Some(Region { pv: 1, first: 6 }),
        spare,
        ..ask(policy)
    };
    choose(&view(&on_pv(open), &on_pv(free)), &asked)
}

#[test]
fn current_content_goes_home_or_to_the_gap_behind_its_slice() {
    let chosen = |open: &[u32], free: &[u32]| in_region(open, free, Class::Current, 6, true);
    let all: Vec<u32> = (0..24).collect();
    let free_index = |extent, index| Some(Choice::Free((1, extent), index));
    let open_at = |extent| Some(Choice::Open((1, extent), 0));
    assert_eq!(chosen(&[], &all), free_index(6, 3), "its extent is not open yet");
    assert_eq!(chosen(&[7, 8], &[10, 11]), free_index(10, 0), "home is taken: the gap, nearest first");
    assert_eq!(chosen(&[7, 10], &[11]), open_at(10), "an open extent of the gap");
    assert_eq!(chosen(&[11], &[10]), open_at(11));
    assert_eq!(chosen(&[7, 9], &[8]), open_at(7), "the gap is full: the slice, nearest first");
    assert_eq!(chosen(&[4, 12, 17], &[20]), open_at(4), "another gap that is begun, nearest first");
    assert_eq!(chosen(&[12], &[5, 14, 16]), free_index(14, 0), "what is in no gap");
    assert_eq!(chosen(&[12], &[5, 16]), open_at(12));
    assert_eq!(chosen(&[], &[5, 16]), free_index(5, 0), "a gap is no reserve");
}

#[test]
fn preserved_content_goes_to_the_gap_near_its_origin() {
    let chosen = |open: &[u32], free: &[u32]| in_region(open, free, Class::Preserved, 9, true);
    let all: Vec<u32> = (0..24).collect();
    assert_eq!(chosen(&[], &all), Some(Choice::Free((1, 10), 0)));
    assert_eq!(chosen(&[10, 11], &all), Some(Choice::Open((1, 10), 0)));
    assert_eq!(chosen(&[6, 8], &[]), Some(Choice::Open((1, 8), 0)));
    // A promise of another writer keeps the gap closed.
    let promised = in_region(&[6, 8], &[10], Class::Preserved, 9, false);
    assert_eq!(promised, Some(Choice::Open((1, 8), 0)));
    let needed = in_region(&[], &[10], Class::Preserved, 9, false);
    assert_eq!(needed, Some(Choice::Free((1, 10), 0)));
}

#[test]
fn a_region_is_where_its_content_lies() {
    let of = SNAP_AWARE;
    for extent in [6, 9, 10, 11] {
        assert_eq!(of.region_of((1, extent)), Region { pv: 1, first: 6 });
    }
    assert_eq!(of.region_of((1, 12)), Region { pv: 1, first: 12 });
    let region = Region { pv: 1, first: 6 };
    assert_eq!(of.region_behind(region), Some(Region { pv: 1, first: 12 }));
    // A slice has 64 chunks.
    for (chunk, place) in [(64, ((1, 6), 0)), (67, ((1, 6), 3)), (127, ((1, 9), 15)), (128, ((1, 6), 0))] {
        assert_eq!(of.home(region, Chunk(chunk), 16), place);
    }
    assert_eq!(SnapAware::of(64 << 10, 1 << 20, 4, 10).unwrap(), SnapAware { slice: 16, gap: 7 });
    for (slice, snapshots, percent) in [(0, 4, 10), (1 << 20, 0, 10), (1 << 20, 4, 0), (1 << 40, 1000, 100)] {
        SnapAware::of(64 << 10, slice, snapshots, percent).unwrap_err();
    }
}

/// P1: whatever is free is found, under every policy, with and without spare extents.
#[test]
fn what_is_free_is_found() {
    let (map, of_others) = (share(3), ShareMap::default());
    let policies = [
        ("anywhere", Policy::Anywhere),
        ("contiguous", Policy::Contiguous),
        ("share", Policy::Share(&map)),
        ("share of others", Policy::Share(&of_others)),
        ("snap-aware", Policy::SnapAware(SNAP_AWARE)),
    ];
    for (name, policy) in policies {
        for spare in [false, true] {
            let far = ((3, 7), 5);
            let asked = |class| Ask {
                class,
                neighbour: Some(far),
                origin: Some(far),
                region: Some(Region { pv: 3, first: 6 }),
                last: Some((2, 2)),
                spare,
                ..ask(policy)
            };
            for class in [Class::Current, Class::Preserved] {
                let only_open = choose(&view(&[(1, 1)], &[]), &asked(class));
                assert_eq!(only_open, Some(Choice::Open((1, 1), 0)), "{name} {spare}");
                let only_free = choose(&view(&[], &[(1, 1)]), &asked(class));
                assert_eq!(only_free, Some(Choice::Free((1, 1), 0)), "{name} {spare}");
                assert_eq!(choose(&view(&[], &[]), &asked(class)), None);
            }
        }
    }
}
