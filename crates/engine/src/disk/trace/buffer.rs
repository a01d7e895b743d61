//! Accesses that wait to be taken, in a bounded number of bytes.
//!
//! Threads add to shards, so that they rarely wait for each other, and never for a disk or for the
//! thread that takes. When all bytes are in use, further accesses are counted and dropped.

use super::access::{ACCESS_LEN, RawAccess};
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Number of bytes of all accesses that wait.
pub(super) const MAX_BYTES: usize = 64 << 20;
/// Number of accesses of a full page: 128 KiB.
const PAGE: usize = 4096;
/// Number of shards. It is a small multiple of the number of busy threads of most servers.
const SHARDS: usize = 16;

/// Accesses of one shard, in the order in which they ended.
pub(super) type Page = Vec<RawAccess>;

/// Accesses that wait to be taken.
pub(super) struct Buffer {
    shards: [Mutex<Shard>; SHARDS],
    /// Pages that are full.
    full: Mutex<Vec<Page>>,
    /// Number of full pages that may wait. One more page for each shard is being filled.
    most_full: usize,
    lost: AtomicU64,
}

#[derive(Default)]
struct Shard {
    /// The session whose accesses the shard takes; 0: none. Accesses of an earlier session that end
    /// late are dropped.
    session: u64,
    page: Page,
}

/// Returns the shard of this thread.
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<usize> = const { Cell::new(SHARDS) };
    }
    let own = OWN.get();
    if own < SHARDS {
        return own;
    }
    let new = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    OWN.set(new);
    new
}

impl Buffer {
    /// Makes a buffer of `bytes`. Each shard has a page in addition to at least one full page.
    pub(super) fn new(bytes: usize) -> Buffer {
        let pages = bytes / (PAGE * ACCESS_LEN);
        Buffer {
            shards: std::array::from_fn(|_| Mutex::default()),
            full: Mutex::default(),
            most_full: pages.saturating_sub(SHARDS).max(1),
            lost: AtomicU64::new(0),
        }
    }

    /// Adds an access of a session.
    pub(super) fn push(&self, session: u64, access: RawAccess) {
        let mut shard = self.shards[shard()].lock();
        if shard.session != session {
            return;
        }
        if shard.page.len() == PAGE {
            let mut full = self.full.lock();
            if full.len() == self.most_full {
                self.lost.fetch_add(1, Ordering::Relaxed);
                return;
            }
            full.push(std::mem::take(&mut shard.page));
        }
        if shard.page.capacity() == 0 {
            shard.page.reserve_exact(PAGE);
        }
        shard.page.push(access);
    }

    /// Drops everything, and takes accesses of `session` from now on; 0: of none. Returns what was
    /// there.
    pub(super) fn begin(&self, session: u64) -> (Vec<Page>, u64) {
        let mut pages = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.session = session;
            pages.push(std::mem::take(&mut shard.page));
        }
        let mut all = std::mem::take(&mut *self.full.lock());
        all.extend(pages.into_iter().filter(|page| !page.is_empty()));
        (all, self.lost.swap(0, Ordering::Relaxed))
    }

    /// Takes what waits. Also returns the number of accesses that were lost since the last call.
    pub(super) fn take(&self) -> (Vec<Page>, u64) {
        let mut pages = std::mem::take(&mut *self.full.lock());
        for shard in &self.shards {
            let page = std::mem::take(&mut shard.lock().page);
            pages.extend((!page.is_empty()).then_some(page));
        }
        (pages, self.lost.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(pages: &[Page]) -> usize {
        pages.iter().map(Vec::len).sum()
    }

    #[test]
    fn accesses_beyond_the_bound_are_counted_and_dropped() {
        let buffer = Buffer::new((SHARDS + 2) * PAGE * ACCESS_LEN);
        buffer.push(1, [9; ACCESS_LEN]);
        assert_eq!(buffer.take(), (Vec::new(), 0), "no session takes accesses");
        buffer.begin(1);
        // This thread fills one shard: two full pages, and the one that is being filled.
        (0..3 * PAGE + 5).for_each(|n| buffer.push(1, [n as u8; ACCESS_LEN]));
        let (pages, lost) = buffer.take();
        assert_eq!((count(&pages), lost), (3 * PAGE, 5));
        let in_order = pages.iter().flatten().enumerate().all(|(n, access)| access[0] == n as u8);
        assert!(in_order, "of one thread they are in order");
        assert_eq!(buffer.take(), (Vec::new(), 0));
        buffer.push(1, [1; ACCESS_LEN]);
        assert_eq!(count(&buffer.take().0), 1, "there is room again");
    }

    #[test]
    fn an_access_of_an_earlier_session_is_dropped() {
        let buffer = Buffer::new(MAX_BYTES);
        buffer.begin(1);
        buffer.push(1, [1; ACCESS_LEN]);
        assert_eq!(count(&buffer.begin(2).0), 1);
        buffer.push(1, [1; ACCESS_LEN]);
        buffer.push(2, [2; ACCESS_LEN]);
        assert_eq!(buffer.begin(0), (vec![vec![[2; ACCESS_LEN]]], 0));
        buffer.push(2, [2; ACCESS_LEN]);
        assert_eq!(buffer.take(), (Vec::new(), 0));
    }

    #[test]
    fn many_threads_lose_nothing_that_has_room() {
        let buffer = Buffer::new(MAX_BYTES);
        buffer.begin(7);
        let mut found = 0;
        std::thread::scope(|scope| {
            let work: Vec<_> = (0..8)
                .map(|n| {
                    scope.spawn({
                        let b = &buffer;
                        move || (0..10_000).for_each(|_| b.push(7, [n; ACCESS_LEN]))
                    })
                })
                .collect();
            while work.iter().any(|thread| !thread.is_finished()) {
                found += count(&buffer.take().0);
            }
        });
        let (rest, lost) = buffer.begin(0);
        assert_eq!((found + count(&rest), lost), (80_000, 0));
    }
}
