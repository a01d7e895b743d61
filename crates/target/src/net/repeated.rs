//! A rate limit for log lines that clients can cause as often as they like ([`Repeated`]).

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Lines that may be written in a row.
const BURST: u32 = 8;
/// Then one after each of these.
const INTERVAL: Duration = Duration::from_secs(1);

/// Bounds how often one kind of line is written: a few in a row, then one a second. The next line
/// that is written tells how many were not.
#[derive(Debug)]
pub struct Repeated(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Lines that may be written at once.
    left: u32,
    /// When `left` was last added to.
    filled: Option<Instant>,
    unsaid: u64,
}

/// A line may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn(u64);

impl Turn {
    /// How many lines of its kind were not written since the last one; `None` when it was the last
    /// one.
    pub fn unsaid(self) -> Option<u64> {
        (self.0 > 0).then_some(self.0)
    }
}

impl Repeated {
    /// Nothing was written yet.
    pub const fn new() -> Repeated {
        Repeated(Mutex::new(State { left: BURST, filled: None, unsaid: 0 }))
    }

    /// Something happened that is worth a line. `None`: it is counted instead.
    pub fn turn(&self) -> Option<Turn> {
        self.turn_at(Instant::now())
    }

    fn turn_at(&self, now: Instant) -> Option<Turn> {
        let mut state = self.0.lock();
        let filled = *state.filled.get_or_insert(now);
        let passed = now.saturating_duration_since(filled).as_nanos() / INTERVAL.as_nanos();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        if passed > 0 {
            state.left = state.left.saturating_add(passed).min(BURST);
            state.filled = Some(if state.left == BURST { now } else { filled + INTERVAL * passed });
        }
        if state.left == 0 {
            state.unsaid += 1;
            return None;
        }
        state.left -= 1;
        Some(Turn(std::mem::take(&mut state.unsaid)))
    }
}

impl Default for Repeated {
    fn default() -> Repeated {
        Repeated::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_line_a_second_and_a_count() {
        let lines = Repeated::new();
        let start = Instant::now();
        // 10,000 a second, for ten seconds.
        let at = |n: u64| start + Duration::from_micros(100) * u32::try_from(n).unwrap();
        let said: Vec<u64> = (0..100_000).filter_map(|n| lines.turn_at(at(n))).map(|turn| turn.0).collect();
        assert_eq!(said.len(), 8 + 9);
        assert_eq!(said[..9], [0, 0, 0, 0, 0, 0, 0, 0, 9_992]);
        assert_eq!(lines.turn_at(at(200_000)).unwrap().unsaid(), Some(9_999));
        assert_eq!(lines.turn_at(at(200_000)).unwrap().unsaid(), None);
    }

    #[test]
    fn what_is_rare_is_always_said() {
        let lines = Repeated::new();
        let start = Instant::now();
        for n in 0..1000 {
            assert_eq!(lines.turn_at(start + INTERVAL * n), Some(Turn(0)));
        }
    }
}
