//! A rate limit for log lines that clients can cause as often as they like ([`Repeated`]).

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Number of lines that may be written in a row.
const BURST: u32 = 8;
/// After `BURST` lines, one line may be written in each interval.
const INTERVAL: Duration = Duration::from_secs(1);
/// Number of lines in a row that are also events.
const EVENT_BURST: u32 = 20;
/// After `EVENT_BURST` lines, one event may be made in each interval.
const EVENT_INTERVAL: Duration = Duration::from_secs(60);

/// Limits how often one kind of log line is written. A burst is written at once, and then one line
/// in each interval. The next line that is written reports how many lines were suppressed before
/// it.
#[derive(Debug)]
pub struct Repeated {
    state: Mutex<State>,
    burst: u32,
    interval: Duration,
}

#[derive(Debug)]
struct State {
    /// Number of lines that may be written now.
    left: u32,
    /// Time at which `left` was last increased.
    filled: Option<Instant>,
    /// Number of lines that were suppressed since the last one that was written.
    suppressed: u64,
}

/// Permission to write one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn(u64);

impl Turn {
    /// Returns the number of lines of this kind that were suppressed since the last one. Returns
    /// `None` if there were none, so that the log line has no such key.
    pub fn suppressed(self) -> Option<u64> {
        (self.0 > 0).then_some(self.0)
    }
}

impl Repeated {
    /// Makes a limit. No line counts as written yet.
    pub const fn new() -> Repeated {
        Repeated::with(BURST, INTERVAL)
    }

    /// Makes a limit for lines that are also events: 20 in a row, then one each minute. A list of
    /// events has limited room, and a client must not fill it.
    pub const fn events() -> Repeated {
        Repeated::with(EVENT_BURST, EVENT_INTERVAL)
    }

    const fn with(burst: u32, interval: Duration) -> Repeated {
        let state = State { left: burst, filled: None, suppressed: 0 };
        Repeated { state: Mutex::new(state), burst, interval }
    }

    /// Asks whether a line may be written now. `None` means that the line is suppressed. It is then
    /// counted for the next one.
    pub fn turn(&self) -> Option<Turn> {
        self.turn_at(Instant::now())
    }

    fn turn_at(&self, now: Instant) -> Option<Turn> {
        let mut state = self.state.lock();
        let filled = *state.filled.get_or_insert(now);
        let passed = now.saturating_duration_since(filled).as_nanos() / self.interval.as_nanos();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        if passed > 0 {
            state.left = state.left.saturating_add(passed).min(self.burst);
            state.filled = Some(if state.left == self.burst { now } else { filled + self.interval * passed });
        }
        if state.left == 0 {
            state.suppressed += 1;
            return None;
        }
        state.left -= 1;
        Some(Turn(std::mem::take(&mut state.suppressed)))
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
        let written: Vec<u64> =
            (0..100_000).filter_map(|n| lines.turn_at(at(n))).map(|turn| turn.0).collect();
        assert_eq!(written.len(), 8 + 9);
        assert_eq!(written[..9], [0, 0, 0, 0, 0, 0, 0, 0, 9_992]);
        assert_eq!(lines.turn_at(at(200_000)).unwrap().suppressed(), Some(9_999));
        assert_eq!(lines.turn_at(at(200_000)).unwrap().suppressed(), None);
    }

    #[test]
    fn a_flood_of_events_is_one_a_minute() {
        let lines = Repeated::events();
        let start = Instant::now();
        let written =
            (0..36_000).filter(|n| lines.turn_at(start + Duration::from_millis(100) * *n).is_some());
        assert_eq!(written.count(), 20 + 59);
    }

    #[test]
    fn rare_lines_are_always_written() {
        let lines = Repeated::new();
        let start = Instant::now();
        for n in 0..1000 {
            assert_eq!(lines.turn_at(start + INTERVAL * n), Some(Turn(0)));
        }
    }
}
