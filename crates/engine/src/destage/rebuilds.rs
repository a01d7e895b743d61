//! How far the rebuilds of members of layouts have come, in memory.

use std::collections::BTreeMap;

/// Nanoseconds until a rebuild that could not go on is tried again.
const WAIT: u64 = 10_000_000_000;

/// How far rebuilds have come, in memory.
#[derive(Default)]
pub(crate) struct Rebuilds(BTreeMap<u32, Position>, bool);

#[derive(Default)]
struct Position {
    /// Number of rebuilds of the layout that had begun. With another one the copying starts again.
    begun: u64,
    /// Byte of the content up to which everything is copied; 0 if that is not known.
    at: u64,
    /// Time at which a rebuild that could not go on is tried again.
    waits_until: u64,
}

impl Rebuilds {
    /// Returns whether rebuilds have the next step of background work. They take turns with all
    /// other work.
    pub(crate) fn turn(&mut self) -> bool {
        self.1 = !self.1;
        self.1
    }

    pub(crate) fn position(&self, pv: u32, begun: u64, stored: u64) -> u64 {
        self.0.get(&pv).filter(|of| of.begun == begun).map_or(stored, |of| of.at.max(stored))
    }

    pub(crate) fn set(&mut self, pv: u32, begun: u64, at: u64) {
        self.0.insert(pv, Position { begun, at, waits_until: 0 });
    }

    pub(crate) fn forget(&mut self, pv: u32) {
        self.0.remove(&pv);
    }

    pub(crate) fn waits(&self, pv: u32, now: u64) -> bool {
        self.0.get(&pv).is_some_and(|of| of.waits_until > now)
    }

    pub(crate) fn wait(&mut self, pv: u32, now: u64) {
        self.0.entry(pv).or_default().waits_until = now.saturating_add(WAIT);
    }
}
