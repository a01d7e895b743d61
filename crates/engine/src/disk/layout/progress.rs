//! The progress of a rebuild. It is shown to operators, and nothing relies on it.

use super::members::Members;
use parking_lot::Mutex;
use std::sync::atomic::Ordering;

const SECOND: u128 = 1_000_000_000;

/// How far the rebuild of a member has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RebuildProgress {
    /// Bytes of content that were copied since the rebuild began, or since the pool was opened.
    pub copied: u64,
    /// Bytes of content in use that are still to be copied.
    pub left: u64,
    /// Number of seconds that this takes if the pace stays as it was. `None`: nothing was copied
    /// yet.
    pub seconds: Option<u64>,
}

/// The steps of a rebuild that is under way.
#[derive(Debug, Clone, Copy)]
struct Steps {
    /// Number of rebuilds that had begun with it.
    begun: u64,
    copied: u64,
    left: u64,
    /// Times of the first and the last step.
    first: u64,
    last: u64,
}

/// What is known of the rebuild that is under way.
#[derive(Default)]
pub(super) struct RebuildSteps(Mutex<Option<Steps>>);

impl RebuildSteps {
    fn of(&self, begun: u64) -> Option<RebuildProgress> {
        let steps = (*self.0.lock()).filter(|steps| steps.begun == begun)?;
        let took = u128::from(steps.last - steps.first);
        let seconds = (u128::from(steps.left) * took).checked_div(u128::from(steps.copied) * SECOND);
        let seconds = seconds.map(|seconds| u64::try_from(seconds).unwrap_or(u64::MAX));
        Some(RebuildProgress { copied: steps.copied, left: steps.left, seconds })
    }
}

impl Members {
    /// Returns how far the rebuild that is under way has come. `None`: it has taken no step since
    /// the pool was opened.
    pub(crate) fn progress(&self) -> Option<RebuildProgress> {
        self.steps.of(self.begun.load(Ordering::SeqCst))
    }

    /// Notes the first step of a rebuild: `left` bytes are to be copied. `begun` is the number of
    /// rebuilds until then, and `now` a time in nanoseconds.
    pub(crate) fn note_first_step(&self, begun: u64, left: u64, now: u64) {
        *self.steps.0.lock() = Some(Steps { begun, copied: 0, left, first: now, last: now });
    }

    /// Notes that a step of a rebuild has copied `bytes`.
    pub(crate) fn note_step(&self, begun: u64, bytes: u64, now: u64) {
        if let Some(steps) = self.steps.0.lock().as_mut().filter(|steps| steps.begun == begun) {
            steps.copied += bytes;
            steps.left = steps.left.saturating_sub(bytes);
            steps.last = now.max(steps.last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_is_left_follows_from_the_pace() {
        let steps = |copied, left| {
            RebuildSteps(Mutex::new(Some(Steps {
                begun: 3,
                copied,
                left,
                first: 50,
                last: 4 * SECOND as u64 + 50,
            })))
        };
        let progress = |copied, left, seconds| Some(RebuildProgress { copied, left, seconds });
        assert_eq!(steps(100, 50).of(3), progress(100, 50, Some(2)));
        assert_eq!(steps(0, 50).of(3), progress(0, 50, None));
        assert_eq!(steps(1, u64::MAX).of(3), progress(1, u64::MAX, Some(u64::MAX)));
        assert_eq!(steps(100, 50).of(4), None);
    }
}
