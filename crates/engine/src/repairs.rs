//! What is known of repairs of damaged data: counters, and the slots for which nothing was found.

use crate::branch::View;
use crate::ids::{Chunk, Slot};
use crate::info::Repaired;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Number of slots that are remembered. Repairs of further ones are tried again with each read.
const MAX_HOPELESS: usize = 64 << 10;
/// Nanoseconds after which a read tries again to repair a slot.
const PATIENCE: u64 = 60_000_000_000;

/// A chunk as a line shows it.
pub(crate) type ShownChunk = (View, Chunk);

/// The state of repairs. All threads share it.
#[derive(Default)]
pub(crate) struct Repairs {
    /// Nothing is repaired, because the pool is only looked at.
    off: AtomicBool,
    /// Slots with damage for which no content was found, and the time of the monotonic clock.
    hopeless: Mutex<BTreeMap<Slot, u64>>,
    /// Chunks with damage, as lines show them, that background work wants to be repaired.
    wanted: Mutex<Vec<ShownChunk>>,
    /// Held while the journal's files are searched.
    pub(crate) search: Mutex<()>,
    /// Bytes that were repaired since the pool was opened, by their source.
    pub(crate) from_history: AtomicU64,
    pub(crate) from_journal: AtomicU64,
    pub(crate) from_cache: AtomicU64,
    pub(crate) from_copies: AtomicU64,
    /// Bytes of slots that are not used again, as of the last commit.
    pub(crate) bad_bytes: AtomicU64,
}

impl Repairs {
    pub(crate) fn new(on: bool) -> Repairs {
        Repairs { off: AtomicBool::new(!on), ..Repairs::default() }
    }

    /// Ends all repairs.
    pub(crate) fn turn_off(&self) {
        self.off.store(true, Ordering::Release);
    }

    pub(crate) fn is_on(&self) -> bool {
        !self.off.load(Ordering::Acquire)
    }

    /// Returns whether nothing was found lately that repairs a slot.
    pub(crate) fn is_hopeless(&self, slot: Slot, now: u64) -> bool {
        self.hopeless.lock().get(&slot).is_some_and(|since| now.saturating_sub(*since) < PATIENCE)
    }

    /// Notes that nothing was found that repairs a slot.
    pub(crate) fn give_up(&self, slot: Slot, now: u64) {
        let mut hopeless = self.hopeless.lock();
        if hopeless.len() >= MAX_HOPELESS {
            hopeless.retain(|_, since| now.saturating_sub(*since) < PATIENCE);
        }
        if hopeless.len() < MAX_HOPELESS {
            hopeless.insert(slot, now);
        }
    }

    /// Asks for the repair of chunks.
    pub(crate) fn want(&self, chunks: Vec<ShownChunk>) {
        self.wanted.lock().extend(chunks);
    }

    /// Takes the chunks whose repair was asked for.
    pub(crate) fn take_wanted(&self) -> Vec<ShownChunk> {
        std::mem::take(&mut self.wanted.lock())
    }

    /// Returns the bytes that were repaired, by their source.
    pub(crate) fn done(&self) -> Repaired {
        let of = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        Repaired {
            history: of(&self.from_history),
            journal: of(&self.from_journal),
            cache: of(&self.from_cache),
            copies: of(&self.from_copies),
        }
    }
}
