//! Where the content of an open layout is, as memory has it. It changes while the layout grows.

use super::growth::{PlaceMove, split};
use super::record::LayoutRecord;
use super::spans::{CopiedSpan, CopyPlace};
use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The places of a layout's content.
pub(super) struct Places {
    spans: Vec<CopiedSpan>,
    /// A place that moves, and the number of rebuilds and moves that had begun with it. What moves
    /// is whole spans.
    moving: Option<(u64, PlaceMove)>,
}

impl Places {
    pub(super) fn of(record: &LayoutRecord) -> Places {
        Places { spans: record.spans.clone(), moving: None }
    }

    #[cfg(test)]
    pub(super) fn in_spans(spans: Vec<CopiedSpan>) -> Places {
        Places { spans, moving: None }
    }

    /// Returns the places of a record while one of them moves, since so many rebuilds and moves had
    /// begun.
    pub(super) fn while_moving(record: &LayoutRecord, begun: u64, step: PlaceMove) -> Places {
        Places { spans: split(&record.spans, &step.range()), moving: Some((begun, step)) }
    }

    /// Returns the number of bytes of the spans.
    pub(super) fn len(&self) -> u64 {
        self.spans.last().map_or(0, CopiedSpan::end)
    }

    /// Returns the span with a byte, and those behind it.
    pub(super) fn from(&self, at: u64) -> &[CopiedSpan] {
        &self.spans[self.spans.partition_point(|span| span.end() <= at)..]
    }

    /// Returns the number of rebuilds and moves that had begun with the move, if a place moves.
    pub(super) fn moving_since(&self) -> Option<u64> {
        self.moving.map(|(begun, _)| begun)
    }

    /// Returns where a byte's place moves to, if it moves.
    pub(super) fn target(&self, at: u64, index: usize) -> Option<CopyPlace> {
        self.moving?.1.target(at, index)
    }

    /// Returns where one of the places of a span moves to, if one moves.
    pub(super) fn target_of(&self, span: &CopiedSpan) -> Option<CopyPlace> {
        let (_, step) = self.moving?;
        step.target(span.start, step.index)
    }
}

/// The places of a layout, read without a lock.
pub(super) struct CurrentPlaces {
    now: ArcSwap<Places>,
    /// What reads may still have found. Where such places lay and no place is now, nothing is
    /// written until no read has them any more.
    former: Mutex<Vec<Arc<Places>>>,
}

impl CurrentPlaces {
    pub(super) fn new(places: Places) -> CurrentPlaces {
        CurrentPlaces { now: ArcSwap::from_pointee(places), former: Mutex::default() }
    }

    /// Returns the places. As long as the result lives, nothing else is written to them.
    pub(super) fn load(&self) -> Guard<Arc<Places>> {
        self.now.load()
    }

    /// Replaces the places. The caller excludes writes.
    pub(super) fn replace(&self, places: Places) {
        let former = self.now.swap(Arc::new(places));
        self.former.lock().push(former);
    }

    /// Returns whether a read may still use former places.
    pub(super) fn are_former_used(&self) -> bool {
        let mut former = self.former.lock();
        if former.iter().any(|places| Arc::strong_count(places) > 1) {
            return true;
        }
        // The reads that had them happened before.
        fence(Ordering::Acquire);
        former.clear();
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_places_are_used_as_long_as_a_read_has_them() {
        let places = || Places { spans: Vec::new(), moving: None };
        let current = CurrentPlaces::new(places());
        let read = current.load();
        assert!(!current.are_former_used(), "they are not former ones");
        current.replace(places());
        let younger = current.load();
        current.replace(places());
        assert!(current.are_former_used());
        drop(younger);
        assert!(current.are_former_used());
        drop(read);
        assert!(!current.are_former_used());
        let _now = current.load();
        assert!(!current.are_former_used());
    }
}
