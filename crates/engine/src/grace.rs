//! Grace periods: the time until no reader can still use what was removed (a freed slot, a released
//! journal segment).
//!
//! Two phases of counters decide it, as in sleepable RCU. A reader counts itself in the current
//! phase. What is retired waits until the phase was turned and the counters of the old phase fell
//! to zero. Readers never wait. The owner polls.

use crate::generation::Counter;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const SHARDS: usize = 16;

#[repr(align(128))]
struct Padded<C>(C);

/// The counters of readers, in two phases. All threads share them.
pub(crate) struct Readers<C: Counter = AtomicU64, const N: usize = SHARDS> {
    phase: C,
    active: [[Padded<C>; N]; 2],
}

impl<C: Counter, const N: usize> Default for Readers<C, N> {
    fn default() -> Self {
        let row = |_| std::array::from_fn(|_| Padded(C::zero()));
        Readers { phase: C::zero(), active: std::array::from_fn(row) }
    }
}

/// A reader. The read ends when this is dropped.
pub(crate) struct Reading<'a, C: Counter = AtomicU64>(&'a C);

impl<C: Counter> Drop for Reading<'_, C> {
    fn drop(&mut self) {
        self.0.decrement();
    }
}

impl<C: Counter, const N: usize> Readers<C, N> {
    /// Begins a read. What the reader finds through an index stays readable until the read ends.
    pub(crate) fn enter(&self) -> Reading<'_, C> {
        let shard = shard() % N;
        loop {
            let phase = self.phase.get();
            let counter = &self.active[(phase & 1) as usize][shard].0;
            counter.increment();
            // A poll that turns the phase after this point sees the counter.
            if self.phase.get() == phase {
                return Reading(counter);
            }
            counter.decrement();
        }
    }

    fn quiet(&self, phase: u64) -> bool {
        self.active[(phase & 1) as usize].iter().all(|c| c.0.get() == 0)
    }
}

/// Spreads threads over the counters.
fn shard() -> usize {
    thread_local! {
        static SHARD: usize = {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS
        };
    }
    SHARD.with(|s| *s)
}

/// Things that were removed and wait until no reader can hold them.
pub(crate) struct Retired<T> {
    waiting: Mutex<(Vec<T>, Vec<T>)>,
}

impl<T> Default for Retired<T> {
    fn default() -> Self {
        Retired { waiting: Mutex::new((Vec::new(), Vec::new())) }
    }
}

impl<T> Retired<T> {
    /// Retires `item`. The caller has removed it from every index.
    pub(crate) fn push(&self, item: T) {
        self.waiting.lock().0.push(item);
    }

    /// Returns whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        let waiting = self.waiting.lock();
        waiting.0.is_empty() && waiting.1.is_empty()
    }

    /// Returns the items that no reader can hold any more. The caller calls it again as long as
    /// something waits.
    pub(crate) fn poll<C: Counter, const N: usize>(&self, readers: &Readers<C, N>) -> Vec<T> {
        let mut waiting = self.waiting.lock();
        let phase = readers.phase.get();
        // Readers that entered before the last turn of the phase.
        if !readers.quiet(phase + 1) {
            return Vec::new();
        }
        let free = std::mem::take(&mut waiting.1);
        waiting.1 = std::mem::take(&mut waiting.0);
        if !waiting.1.is_empty() {
            readers.phase.set(phase + 1);
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_readers_that_were_there() {
        let readers: Readers = Readers::default();
        let retired = Retired::default();
        let old = readers.enter();
        retired.push(1);
        assert!(retired.poll(&readers).is_empty(), "turned the phase only");
        let young = readers.enter();
        assert!(retired.poll(&readers).is_empty(), "the old reader is still there");
        drop(old);
        assert_eq!(retired.poll(&readers), [1], "the young one came after");
        drop(young);
        retired.push(2);
        assert!(retired.poll(&readers).is_empty());
        assert_eq!(retired.poll(&readers), [2]);
        assert!(retired.is_empty());
    }
}
