//! How far the rebuilds of members of layouts have come, in memory.

use std::collections::BTreeMap;

/// Nanoseconds until a rebuild that could not go on is tried again.
const WAIT: u64 = 10_000_000_000;

/// Nanoseconds of urgent work for each nanosecond of a rebuild, at most. Clients that write without
/// a pause would stop rebuilds for ever otherwise.
const OTHERS: u64 = 9;
/// Nanoseconds for which steps come before other work at least, and at most, at once.
const LEAST_OWED: u64 = 5_000_000;
const MOST_OWED: u64 = 100_000_000;
/// Nanoseconds of an hour.
const HOUR: u64 = 3_600_000_000_000;

/// How far rebuilds have come, in memory.
#[derive(Default)]
pub(crate) struct Rebuilds {
    positions: BTreeMap<u32, Position>,
    /// Whether rebuilds had the last turn.
    turn: bool,
    /// Time at which steps last came before work that is urgent.
    paid_at: u64,
    /// Time at which an hour began, in which reads that fail count together.
    hour: u64,
    /// Times since which members are known to be out: (physical volume, member).
    out: BTreeMap<(u32, usize), u64>,
}

#[derive(Default)]
struct Position {
    /// Number of rebuilds of the layout that had begun. With another one the copying starts again.
    begun: u64,
    /// Byte of the content up to which everything is copied; 0 if that is not known.
    at: u64,
    /// Time before which no further step is taken.
    waits_until: u64,
}

impl Rebuilds {
    /// Returns whether rebuilds have the next step of background work. They take turns with all
    /// other work.
    pub(crate) fn turn(&mut self) -> bool {
        self.turn = !self.turn;
        self.turn
    }

    /// Returns the number of nanoseconds for which steps come before work that is urgent.
    pub(crate) fn owed(&self, now: u64) -> u64 {
        let owed = now.saturating_sub(self.paid_at) / OTHERS;
        if owed < LEAST_OWED { 0 } else { owed.min(MOST_OWED) }
    }

    /// Notes that steps came before work that is urgent until now, or that there were no steps.
    pub(crate) fn pay(&mut self, now: u64) {
        self.paid_at = now;
    }

    /// Returns whether an hour is over, and begins the next one.
    pub(crate) fn is_hour_over(&mut self, now: u64) -> bool {
        let is_over = now.saturating_sub(self.hour) >= HOUR;
        if is_over {
            self.hour = now;
        }
        is_over
    }

    pub(crate) fn position(&self, pv: u32, begun: u64, stored: u64) -> u64 {
        self.positions.get(&pv).filter(|of| of.begun == begun).map_or(stored, |of| of.at.max(stored))
    }

    /// Notes that everything before `at` is copied, and that the next step is not taken before a
    /// time.
    pub(crate) fn set(&mut self, pv: u32, begun: u64, at: u64, waits_until: u64) {
        self.positions.insert(pv, Position { begun, at, waits_until });
    }

    /// Notes which members of a physical volume are out and not rebuilt now. Returns them, and
    /// since when, those first that are out for the longest time.
    pub(crate) fn note_out(&mut self, pv: u32, out: &[(usize, u64)], now: u64) -> Vec<(usize, u64)> {
        self.out.retain(|(of, member), _| *of != pv || out.iter().any(|(number, _)| number == member));
        let since = |(number, _): &(usize, u64)| (*number, *self.out.entry((pv, *number)).or_insert(now));
        let mut all: Vec<_> = out.iter().map(since).collect();
        all.sort_by_key(|(_, since)| *since);
        all
    }

    pub(crate) fn forget(&mut self, pv: u32) {
        self.positions.remove(&pv);
    }

    pub(crate) fn waits(&self, pv: u32, now: u64) -> bool {
        self.positions.get(&pv).is_some_and(|of| of.waits_until > now)
    }

    /// Returns the times before which no further steps are taken.
    pub(crate) fn pauses(&self) -> impl Iterator<Item = u64> {
        self.positions.values().map(|of| of.waits_until)
    }

    pub(crate) fn wait(&mut self, pv: u32, now: u64) {
        self.positions.entry(pv).or_default().waits_until = now.saturating_add(WAIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ninth_of_the_time_of_other_work_is_owed() {
        const MS: u64 = 1_000_000;
        let mut rebuilds = Rebuilds::default();
        rebuilds.pay(100 * MS);
        let owed = [144, 145, 190, 1000, 9000].map(|now| rebuilds.owed(now * MS) / MS);
        assert_eq!(owed, [0, 5, 10, 100, 100]);
    }

    #[test]
    fn an_hour_is_over_once() {
        let mut rebuilds = Rebuilds::default();
        let over = [HOUR - 1, HOUR, HOUR + 1, 2 * HOUR - 1, 5 * HOUR].map(|now| rebuilds.is_hour_over(now));
        assert_eq!(over, [false, true, false, false, true]);
    }

    #[test]
    fn a_member_is_out_since_it_was_seen_first() {
        let mut rebuilds = Rebuilds::default();
        assert_eq!(rebuilds.note_out(1, &[], 5), []);
        assert_eq!(rebuilds.note_out(1, &[(3, 0)], 6), [(3, 6)]);
        assert_eq!(rebuilds.note_out(1, &[(2, 0), (3, 0)], 7), [(3, 6), (2, 7)]);
        assert_eq!(rebuilds.note_out(2, &[(0, 0)], 8), [(0, 8)]);
        assert_eq!(rebuilds.note_out(1, &[(2, 0)], 9), [(2, 7)]);
        assert_eq!(rebuilds.note_out(1, &[(2, 0), (3, 0)], 10), [(2, 7), (3, 10)]);
        rebuilds.set(1, 4, 100, 50);
        assert!(rebuilds.waits(1, 49) && !rebuilds.waits(1, 50));
        assert_eq!((rebuilds.position(1, 4, 0), rebuilds.position(1, 5, 0)), (100, 0));
    }
}
