//! A bounded, sharded cache with selectable replacement, shared by all volumes of a pool.
//!
//! A hit takes one shard's lock, one hash lookup and a constant number of index updates. It
//! allocates nothing. Entries live in a slab, and indexes link them into queues. The policies
//! differ only in which queues exist, what a hit does, and which entry is evicted first.
//!
//! Round-robin in ESnapII (Xiao et al. 2009) sweeps a pointer over the fixed places of its cache
//! and replaces what it finds, used or not. Places fill in the order of the sweep, so that is first
//! in, first out. Here entries differ in size and have no fixed places, and round-robin means first
//! in, first out.
//!
//! **Coherence.** A loader that missed reads its value without any lock, so an update could
//! overtake it. The loader takes [`Cache::generation`] before it reads and offers the value with
//! [`Cache::insert_if`]. Every update of the shard ([`Cache::publish`], [`Cache::invalidate`])
//! moves the generation, and the stale value is refused.

use crate::hash::Mix;
use crate::settings::CachePolicy;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash};

/// The number of shards: a power of two, several times the number of threads that look things up at
/// once.
const SHARDS: usize = 16;
/// An index that stands for no entry and no queue.
const NONE: u32 = u32::MAX;
/// The largest number of accesses that S3-FIFO counts for an entry.
const MAX_FREQ: u64 = 3;

/// A cache with a bound in bytes, shared by all threads. `V` is cheap to clone (an `Arc`). The
/// cache holds at most its bound, or one entry per shard if even that is more.
pub(crate) struct Cache<K, V> {
    hasher: Mix,
    shards: [Padded<Mutex<Shard<K, V>>>; SHARDS],
}

/// A wrapper that keeps the locks of neighbouring shards out of one cache line (and its prefetched
/// neighbour).
#[repr(align(128))]
struct Padded<T>(T);

/// Counters since the cache was made, and what the cache holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CacheStats {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) evictions: u64,
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

impl<K, V> Cache<K, V> {
    /// Number of bytes that the cache keeps for each entry, on average, in addition to what the
    /// value points to: the two counters of an `Arc`, the entry, its place in the index, and, for
    /// S3-FIFO, a key in the ghost's index and order. A vector or table doubles when it is full, so
    /// two thirds of it are in use on average.
    pub(crate) const BOOKKEEPING: usize = {
        let table = 2 * (size_of::<(K, u64)>() + 1) * 8 / 7;
        let lists = size_of::<Entry<K, V>>() + size_of::<(K, u64, usize)>();
        (table + lists) * 3 / 2 + 2 * size_of::<usize>()
    };
}

impl<K: Hash + Eq + Copy, V: Clone> Cache<K, V> {
    /// Makes a cache of at most `bytes`, split evenly over the shards.
    pub(crate) fn new(policy: CachePolicy, bytes: usize) -> Self {
        let shard = |_| Padded(Mutex::new(Shard::new(policy, bytes / SHARDS)));
        Cache { hasher: Mix::default(), shards: std::array::from_fn(shard) }
    }

    fn shard(&self, key: &K) -> &Mutex<Shard<K, V>> {
        // Bits that the hash table inside uses neither for its buckets (low) nor for its tags
        // (high).
        let at = (self.hasher.hash_one(key) >> 32) as usize % SHARDS;
        &self.shards[at].0
    }

    /// Looks up a key, and counts a hit or a miss.
    pub(crate) fn get(&self, key: &K) -> Option<V> {
        self.shard(key).lock().get(key)
    }

    /// Returns the generation of the key's shard. A loader takes it before it loads the value that
    /// it then offers to [`Cache::insert_if`].
    pub(crate) fn generation(&self, key: &K) -> u64 {
        self.shard(key).lock().generation
    }

    /// Inserts the value of a loader. Returns false, and refuses the value, when an update came in
    /// between. A value that is there already stays, because all loads of one generation are equal.
    pub(crate) fn insert_if(&self, key: K, value: V, weight: usize, generation: u64) -> bool {
        let mut shard = self.shard(&key).lock();
        if shard.generation != generation {
            return false;
        }
        if !shard.index.contains_key(&key) {
            shard.insert(key, value, weight);
        }
        true
    }

    /// Replaces a value after an update (which counts as a use) or inserts it, and makes the
    /// inserts of loaders that are under way fail.
    pub(crate) fn publish(&self, key: K, value: V, weight: usize) {
        let mut shard = self.shard(&key).lock();
        shard.generation += 1;
        shard.replace(key, value, weight);
    }

    /// Removes a key, and makes the inserts of loaders that are under way fail.
    pub(crate) fn invalidate(&self, key: &K) {
        let mut shard = self.shard(key).lock();
        shard.generation += 1;
        if let Some(at) = shard.index.get(key).copied() {
            shard.remove(at);
        }
    }

    /// Removes every key for which `gone` returns true, and makes the inserts of all loaders that
    /// are under way fail.
    pub(crate) fn invalidate_where(&self, gone: impl Fn(&K) -> bool) {
        for shard in &self.shards {
            let mut shard = shard.0.lock();
            shard.generation += 1;
            let found: Vec<u32> =
                shard.index.iter().filter(|(key, _)| gone(key)).map(|(_, at)| *at).collect();
            for at in found {
                shard.remove(at);
            }
        }
    }

    /// Returns the sums over all shards.
    pub(crate) fn stats(&self) -> CacheStats {
        self.shards.iter().fold(CacheStats::default(), |sum, shard| {
            let shard = shard.0.lock();
            CacheStats {
                hits: sum.hits + shard.hits,
                misses: sum.misses + shard.misses,
                evictions: sum.evictions + shard.evictions,
                bytes: sum.bytes + shard.bytes as u64,
                entries: sum.entries + shard.index.len() as u64,
            }
        })
    }
}

struct Entry<K, V> {
    key: K,
    /// The value, or `None` while the place is free.
    value: Option<V>,
    weight: usize,
    queue: u32,
    prev: u32,
    next: u32,
    /// S3-FIFO: the number of accesses since the entry entered its queue, up to [`MAX_FREQ`].
    freq: u64,
}

/// A list of entries. The first one in is at the head.
#[derive(Clone, Copy)]
struct Queue {
    head: u32,
    tail: u32,
    bytes: usize,
    /// LFU: how often each entry of the queue was used. Queues are linked by rising frequency.
    freq: u64,
    prev: u32,
    next: u32,
}

impl Queue {
    const EMPTY: Queue = Queue { head: NONE, tail: NONE, bytes: 0, freq: 0, prev: NONE, next: NONE };
}

/// The indexes of the queues. Round-robin and LRU have one queue, S3-FIFO has two. LFU has
/// [`LFU_ROOT`], which stays empty and links to the queues of the frequencies that occur.
const ONLY: u32 = 0;
const SMALL: u32 = 0;
const MAIN: u32 = 1;
const LFU_ROOT: u32 = 0;

struct Shard<K, V> {
    policy: CachePolicy,
    bound: usize,
    bytes: usize,
    generation: u64,
    hits: u64,
    misses: u64,
    evictions: u64,
    index: HashMap<K, u32, Mix>,
    entries: Vec<Entry<K, V>>,
    free: Vec<u32>,
    queues: Vec<Queue>,
    free_queues: Vec<u32>,
    ghost: Ghost<K>,
}

impl<K: Hash + Eq + Copy, V: Clone> Shard<K, V> {
    fn new(policy: CachePolicy, bound: usize) -> Self {
        let main_bound = bound - bound / 10;
        Shard {
            policy,
            bound,
            bytes: 0,
            generation: 0,
            hits: 0,
            misses: 0,
            evictions: 0,
            index: HashMap::default(),
            entries: Vec::new(),
            free: Vec::new(),
            queues: vec![Queue::EMPTY; if policy == CachePolicy::S3Fifo { 2 } else { 1 }],
            free_queues: Vec::new(),
            ghost: Ghost::new(main_bound),
        }
    }

    fn get(&mut self, key: &K) -> Option<V> {
        let Some(&at) = self.index.get(key) else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        self.touch(at);
        self.entries[at as usize].value.clone()
    }

    /// Moves the entry at `at` in the order, as the policy does after a use.
    fn touch(&mut self, at: u32) {
        match self.policy {
            CachePolicy::RoundRobin => {}
            CachePolicy::Lru => {
                self.unlink(at);
                self.append(ONLY, at);
            }
            CachePolicy::Lfu => self.promote(at),
            CachePolicy::S3Fifo => {
                let freq = &mut self.entries[at as usize].freq;
                *freq = (*freq + 1).min(MAX_FREQ);
            }
        }
    }

    /// Adds a key that the shard does not have. The shard makes room first, so that the new entry
    /// is not its own victim.
    fn insert(&mut self, key: K, value: V, weight: usize) {
        while !self.index.is_empty() && self.bytes.saturating_add(weight) > self.bound {
            self.evict();
        }
        let entry = Entry { key, value: Some(value), weight, queue: NONE, prev: NONE, next: NONE, freq: 0 };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.index.insert(key, at);
        self.bytes += weight;
        match self.policy {
            CachePolicy::RoundRobin | CachePolicy::Lru => self.append(ONLY, at),
            CachePolicy::Lfu => {
                let queue = self.frequency_queue(LFU_ROOT, 1);
                self.append(queue, at);
                // So that a hit, which can need a queue more, need not allocate: there is at most
                // one per entry, the one that an entry is leaving, and the root.
                let most = self.entries.len() + 2;
                self.queues.reserve(most.saturating_sub(self.queues.len()));
                self.free_queues.reserve(most.saturating_sub(self.free_queues.len()));
            }
            CachePolicy::S3Fifo => {
                let queue = if self.ghost.take(&key) { MAIN } else { SMALL };
                self.append(queue, at);
            }
        }
    }

    fn replace(&mut self, key: K, value: V, weight: usize) {
        let Some(&at) = self.index.get(&key) else {
            return self.insert(key, value, weight);
        };
        let entry = &mut self.entries[at as usize];
        entry.value = Some(value);
        let old = std::mem::replace(&mut entry.weight, weight);
        let queue = &mut self.queues[entry.queue as usize];
        queue.bytes = queue.bytes - old + weight;
        self.bytes = self.bytes - old + weight;
        self.touch(at);
        while self.index.len() > 1 && self.bytes > self.bound {
            self.evict();
        }
    }

    /// Removes the entry that the policy chooses.
    fn evict(&mut self) {
        let victim = match self.policy {
            CachePolicy::RoundRobin | CachePolicy::Lru => self.queues[ONLY as usize].head,
            CachePolicy::Lfu => self.queues[self.queues[LFU_ROOT as usize].next as usize].head,
            CachePolicy::S3Fifo => self.s3_victim(),
        };
        self.remove(victim);
        self.evictions += 1;
    }

    /// Chooses a victim by algorithm 1 of the S3-FIFO paper. The loop ends, because every round
    /// lowers a frequency or moves one entry to the main queue, and no entry comes back from there.
    fn s3_victim(&mut self) -> u32 {
        loop {
            let small = &self.queues[SMALL as usize];
            let main = &self.queues[MAIN as usize];
            if small.head != NONE && (small.bytes >= self.bound / 10 || main.head == NONE) {
                let at = small.head;
                let entry = &self.entries[at as usize];
                if entry.freq <= 1 {
                    self.ghost.put(entry.key, entry.weight);
                    return at;
                }
                self.entries[at as usize].freq = 0;
                self.unlink(at);
                self.append(MAIN, at);
            } else {
                let at = main.head;
                if self.entries[at as usize].freq == 0 {
                    return at;
                }
                self.entries[at as usize].freq -= 1;
                self.unlink(at);
                self.append(MAIN, at);
            }
        }
    }

    fn remove(&mut self, at: u32) {
        let left = self.unlink(at);
        if self.policy == CachePolicy::Lfu {
            self.drop_if_empty(left);
        }
        let entry = &mut self.entries[at as usize];
        entry.value = None;
        self.bytes -= entry.weight;
        self.index.remove(&entry.key);
        self.free.push(at);
    }

    fn append(&mut self, to: u32, at: u32) {
        let queue = &mut self.queues[to as usize];
        let last = std::mem::replace(&mut queue.tail, at);
        if last == NONE {
            queue.head = at;
        } else {
            self.entries[last as usize].next = at;
        }
        let entry = &mut self.entries[at as usize];
        (entry.queue, entry.prev, entry.next) = (to, last, NONE);
        queue.bytes += entry.weight;
    }

    /// Takes an entry out of its queue, and returns the queue, which may be empty now.
    fn unlink(&mut self, at: u32) -> u32 {
        let Entry { queue, prev, next, weight, .. } = self.entries[at as usize];
        let list = &mut self.queues[queue as usize];
        list.bytes -= weight;
        match prev {
            NONE => list.head = next,
            _ => self.entries[prev as usize].next = next,
        }
        match next {
            NONE => list.tail = prev,
            _ => self.entries[next as usize].prev = prev,
        }
        queue
    }

    /// LFU: moves an entry to the queue of the next higher frequency. Within a queue the entry that
    /// came first is evicted first.
    fn promote(&mut self, at: u32) {
        let from = self.unlink(at);
        let to = self.frequency_queue(from, self.queues[from as usize].freq + 1);
        self.append(to, at);
        self.drop_if_empty(from);
    }

    /// LFU: returns the queue of `freq`, right behind `after`. The queue is made if it does not
    /// exist.
    fn frequency_queue(&mut self, after: u32, freq: u64) -> u32 {
        let next = self.queues[after as usize].next;
        if next != NONE && self.queues[next as usize].freq == freq {
            return next;
        }
        let made = Queue { freq, prev: after, next, ..Queue::EMPTY };
        let at = match self.free_queues.pop() {
            Some(at) => {
                self.queues[at as usize] = made;
                at
            }
            None => {
                self.queues.push(made);
                (self.queues.len() - 1) as u32
            }
        };
        self.queues[after as usize].next = at;
        if next != NONE {
            self.queues[next as usize].prev = at;
        }
        at
    }

    fn drop_if_empty(&mut self, queue: u32) {
        let Queue { head, prev, next, .. } = self.queues[queue as usize];
        if head != NONE {
            return;
        }
        self.queues[prev as usize].next = next;
        if next != NONE {
            self.queues[next as usize].prev = prev;
        }
        self.free_queues.push(queue);
    }
}

/// S3-FIFO's memory of keys that left the small queue. It holds keys for as many bytes as main can
/// hold, and forgets the oldest first.
struct Ghost<K> {
    bound: usize,
    bytes: usize,
    /// The number of the newest entry in `order` that stands for the key.
    keys: HashMap<K, u64, Mix>,
    order: VecDeque<(K, u64, usize)>,
    next: u64,
}

impl<K: Hash + Eq + Copy> Ghost<K> {
    fn new(bound: usize) -> Self {
        Ghost { bound, bytes: 0, keys: HashMap::default(), order: VecDeque::new(), next: 0 }
    }

    fn put(&mut self, key: K, weight: usize) {
        // A weight of nothing must not let this grow without end.
        let weight = weight.max(1);
        self.keys.insert(key, self.next);
        self.order.push_back((key, self.next, weight));
        self.next += 1;
        self.bytes += weight;
        while self.bytes > self.bound
            && let Some((key, number, weight)) = self.order.pop_front()
        {
            self.bytes -= weight;
            // Else the key was taken, and perhaps put again later.
            if self.keys.get(&key) == Some(&number) {
                self.keys.remove(&key);
            }
        }
    }

    /// Returns whether the key was remembered, and forgets it.
    fn take(&mut self, key: &K) -> bool {
        self.keys.remove(key).is_some()
    }
}

#[cfg(test)]
mod tests;
