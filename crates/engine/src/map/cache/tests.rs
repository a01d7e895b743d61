//! Tests of the cache against a model of each policy, written from the policy's definition.

use super::*;
use crate::world::{Rng, SplitMix};

const POLICIES: [CachePolicy; 4] =
    [CachePolicy::RoundRobin, CachePolicy::Lru, CachePolicy::Lfu, CachePolicy::S3Fifo];

struct Item {
    key: u64,
    value: u64,
    weight: usize,
    uses: u64,
    /// The time at which the item came to its present place in the order.
    since: u64,
    main: bool,
}

/// A model of one shard, written from the policies' definitions and not from their data structures.
struct Model {
    policy: CachePolicy,
    bound: usize,
    now: u64,
    items: Vec<Item>,
    ghost: Vec<(u64, usize, bool)>,
    evictions: u64,
}

impl Model {
    fn new(policy: CachePolicy, bound: usize) -> Self {
        Model { policy, bound, now: 0, items: Vec::new(), ghost: Vec::new(), evictions: 0 }
    }

    fn bytes(&self) -> usize {
        self.items.iter().map(|i| i.weight).sum()
    }

    fn touch(&mut self, key: u64) {
        self.now += 1;
        let item = self.items.iter_mut().find(|i| i.key == key).unwrap();
        match self.policy {
            CachePolicy::RoundRobin => {}
            CachePolicy::Lru => item.since = self.now,
            CachePolicy::Lfu => (item.uses, item.since) = (item.uses + 1, self.now),
            CachePolicy::S3Fifo => item.uses = (item.uses + 1).min(3),
        }
    }

    fn get(&mut self, key: u64) -> Option<u64> {
        let value = self.items.iter().find(|i| i.key == key)?.value;
        self.touch(key);
        Some(value)
    }

    fn victim(&mut self) -> usize {
        if self.policy != CachePolicy::S3Fifo {
            return (0..self.items.len())
                .min_by_key(|i| (self.items[*i].uses, self.items[*i].since))
                .unwrap();
        }
        loop {
            self.now += 1;
            let oldest = |main| {
                let queue = (0..self.items.len()).filter(|i| self.items[*i].main == main);
                queue.min_by_key(|i| self.items[*i].since)
            };
            let small: usize = self.items.iter().filter(|i| !i.main).map(|i| i.weight).sum();
            let from_small = oldest(false).filter(|_| small >= self.bound / 10 || oldest(true).is_none());
            let at = from_small.or_else(|| oldest(true)).unwrap();
            let item = &mut self.items[at];
            match (item.main, item.uses) {
                (false, 0 | 1) => {
                    self.ghost.push((item.key, item.weight.max(1), true));
                    let room = self.bound - self.bound / 10;
                    while self.ghost.iter().map(|g| g.1).sum::<usize>() > room {
                        self.ghost.remove(0);
                    }
                    return at;
                }
                (false, _) => (item.main, item.uses, item.since) = (true, 0, self.now),
                (true, 0) => return at,
                (true, _) => (item.uses, item.since) = (item.uses - 1, self.now),
            }
        }
    }

    fn evict(&mut self) {
        let at = self.victim();
        self.items.remove(at);
        self.evictions += 1;
    }

    fn insert(&mut self, key: u64, value: u64, weight: usize) {
        while !self.items.is_empty() && self.bytes() + weight > self.bound {
            self.evict();
        }
        self.now += 1;
        let remembered = self.ghost.iter().any(|g| g.0 == key && g.2);
        self.ghost.iter_mut().filter(|g| g.0 == key).for_each(|g| g.2 = false);
        let main = self.policy == CachePolicy::S3Fifo && remembered;
        let uses = u64::from(self.policy == CachePolicy::Lfu);
        self.items.push(Item { key, value, weight, uses, since: self.now, main });
    }

    fn replace(&mut self, key: u64, value: u64, weight: usize) {
        match self.items.iter_mut().find(|i| i.key == key) {
            Some(item) => (item.value, item.weight) = (value, weight),
            None => return self.insert(key, value, weight),
        }
        self.touch(key);
        while self.items.len() > 1 && self.bytes() > self.bound {
            self.evict();
        }
    }
}

/// Checks everything that the links state, by computing it again.
fn verify(shard: &Shard<u64, u64>) {
    let mut seen = 0;
    let mut bytes = 0;
    for (number, queue) in shard.queues.iter().enumerate() {
        if shard.free_queues.contains(&(number as u32)) {
            continue;
        }
        let (mut at, mut last, mut inside) = (queue.head, NONE, 0);
        while at != NONE {
            let entry = &shard.entries[at as usize];
            assert_eq!((entry.queue, entry.prev), (number as u32, last));
            assert!(entry.value.is_some());
            assert_eq!(shard.index[&entry.key], at);
            inside += entry.weight;
            seen += 1;
            (last, at) = (at, entry.next);
        }
        assert_eq!((queue.tail, queue.bytes), (last, inside));
        bytes += inside;
    }
    assert_eq!(seen, shard.index.len());
    assert_eq!(seen + shard.free.len(), shard.entries.len());
    assert_eq!(bytes, shard.bytes);
    assert!(shard.bytes <= shard.bound || shard.index.len() == 1);
    assert!(shard.ghost.bytes <= shard.ghost.bound);
    assert!(shard.ghost.keys.len() <= shard.ghost.order.len());
}

fn against_the_model(policy: CachePolicy, seed: u64) {
    let rng = SplitMix::new(seed);
    let below = |n: u64| rng.next() % n;
    let bound = [0, 7, 64, 300][below(4) as usize];
    let keys = 1 + below(60);
    let mut shard = Shard::new(policy, bound);
    let mut model = Model::new(policy, bound);
    for step in 0..2000 {
        // Low keys are wanted more often.
        let key = below(1 + below(keys));
        match below(10) {
            0 => {
                let weight = below(20) as usize;
                shard.replace(key, step, weight);
                model.replace(key, step, weight);
            }
            1 => {
                if let Some(&at) = shard.index.get(&key) {
                    shard.remove(at);
                }
                model.items.retain(|i| i.key != key);
            }
            _ => {
                let got = shard.get(&key);
                assert_eq!(got, model.get(key), "{policy:?} seed {seed} step {step}");
                if got.is_none() {
                    let weight = 1 + below(9) as usize;
                    shard.insert(key, step, weight);
                    model.insert(key, step, weight);
                }
            }
        }
        verify(&shard);
        assert_eq!(shard.bytes, model.bytes(), "{policy:?} seed {seed} step {step}");
        assert_eq!(shard.evictions, model.evictions, "{policy:?} seed {seed} step {step}");
    }
    for item in &model.items {
        assert_eq!(shard.get(&item.key), Some(item.value));
    }
}

#[test]
fn every_policy_does_as_its_definition_says() {
    for policy in POLICIES {
        for seed in 0..60 {
            against_the_model(policy, seed);
        }
    }
}

#[test]
fn the_bound_holds_over_all_shards() {
    for policy in POLICIES {
        for bytes in [0, 1000, 100_000] {
            let cache = Cache::new(policy, bytes);
            for key in 0..20_000u64 {
                let generation = cache.generation(&key);
                assert!(cache.insert_if(key, key, 100, generation));
                assert_eq!(cache.get(&key), Some(key), "a newcomer stays");
            }
            let stats = cache.stats();
            assert!(stats.bytes <= (bytes + SHARDS * 100) as u64);
            assert_eq!(stats.bytes, stats.entries * 100);
            assert_eq!((stats.hits, stats.misses, stats.evictions), (20_000, 0, 20_000 - stats.entries));
            assert!(stats.entries >= SHARDS as u64, "all shards are in use");
        }
    }
}

#[test]
fn the_bookkeeping_is_what_small_values_cost() {
    type Key = (u64, u64, u32);
    const EACH: usize = Cache::<Key, &str>::BOOKKEEPING;
    let table = |capacity: usize| capacity * 8 / 7 * (size_of::<(Key, u64)>() + 1);
    // Bounds between a power of two and the next: whatever has just doubled takes twice its need.
    let (mut taken, mut bounds) = (0, 0);
    for sixteenth in 16..32 {
        let bound = sixteenth << 15;
        let mut shard: Shard<Key, &str> = Shard::new(CachePolicy::S3Fifo, bound);
        for key in 0..20_000 {
            shard.insert((key, 0, 0), "", EACH);
        }
        bounds += bound;
        taken += shard.entries.capacity() * size_of::<Entry<Key, &str>>()
            + table(shard.index.capacity())
            + table(shard.ghost.keys.capacity())
            + shard.ghost.order.capacity() * size_of::<(Key, u64, usize)>();
    }
    assert!((bounds * 4 / 5..bounds * 6 / 5).contains(&taken), "{taken} bytes for bounds of {bounds}");
}

#[test]
fn a_hit_allocates_nothing() {
    for policy in POLICIES {
        let mut shard = Shard::new(policy, 1000);
        for key in 0..100u64 {
            shard.insert(key, key, 10);
        }
        let room = |s: &Shard<u64, u64>| {
            (s.entries.capacity(), s.free.capacity(), s.queues.capacity(), s.free_queues.capacity())
        };
        let before = room(&shard);
        let rng = SplitMix::new(3);
        for round in 0..20_000 {
            // First every key gets a frequency of its own, the most queues that there can be.
            let key = if round < 5000 {
                (0..100).find(|k| round < k * (k + 1) / 2).unwrap_or(0)
            } else {
                rng.next() % 100
            };
            assert_eq!(shard.get(&key), Some(key));
        }
        verify(&shard);
        assert_eq!(room(&shard), before, "{policy:?}");
    }
}

#[test]
fn stale_loads_are_refused() {
    let cache: Cache<u64, u64> = Cache::new(CachePolicy::Lru, 1 << 20);
    let updates: [(&str, &dyn Fn()); 3] = [
        ("publish", &|| cache.publish(1, 100, 8)),
        ("invalidate", &|| cache.invalidate_where(|key| *key == 1)),
        ("invalidate_where", &|| cache.invalidate_where(|_| false)),
    ];
    for (name, update) in updates {
        let generation = cache.generation(&1);
        update();
        let now = cache.get(&1);
        assert!(!cache.insert_if(1, 7, 8, generation), "{name}");
        assert_eq!(cache.get(&1), now, "{name}");
    }
    let generation = cache.generation(&1);
    assert!(cache.insert_if(1, 5, 8, generation));
    assert!(cache.insert_if(1, 6, 8, generation), "loads do not disturb each other");
    assert_eq!(cache.get(&1), Some(5));
}

#[test]
fn published_values_replace_and_invalid_ones_go() {
    for policy in POLICIES {
        let cache: Cache<(u64, u64), u64> = Cache::new(policy, 1 << 20);
        for key in 0..100 {
            cache.publish((key % 2, key), key, 10);
        }
        cache.publish((0, 4), 44, 20);
        assert_eq!(cache.get(&(0, 4)), Some(44));
        assert_eq!(cache.stats().bytes, 1010);
        cache.invalidate_where(|key| *key == (0, 4));
        assert_eq!(cache.get(&(0, 4)), None);
        cache.invalidate_where(|key| key.0 == 1);
        assert_eq!(cache.get(&(1, 3)), None);
        assert_eq!(cache.get(&(0, 2)), Some(2));
        let stats = cache.stats();
        assert_eq!((stats.entries, stats.bytes, stats.evictions), (49, 490, 0));
        assert_eq!((stats.hits, stats.misses), (2, 2));
    }
}

#[test]
fn scans_do_not_flush_s3_fifo() {
    let hits = |policy| {
        let mut shard = Shard::new(policy, 1000);
        let mut hot_hits = 0;
        for round in 0..2000u64 {
            for key in [round % 20, 1000 + 3 * round, 1001 + 3 * round, 1002 + 3 * round] {
                match shard.get(&key) {
                    Some(_) => hot_hits += 1,
                    None => shard.insert(key, key, 20),
                }
            }
        }
        hot_hits
    };
    assert!(hits(CachePolicy::S3Fifo) > 1900);
    assert!(hits(CachePolicy::RoundRobin) < 100 && hits(CachePolicy::Lru) < 100);
}

#[test]
fn threads_agree_on_what_was_published() {
    for policy in POLICIES {
        let cache: Cache<u64, u64> = Cache::new(policy, 4096);
        let truth: Vec<Mutex<u64>> = (0..64).map(|_| Mutex::new(0)).collect();
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let (cache, truth) = (&cache, &truth);
                scope.spawn(move || {
                    let rng = SplitMix::new(seed);
                    for _ in 0..20_000 {
                        let key = rng.next() % 64;
                        if rng.next().is_multiple_of(8) {
                            let mut value = truth[key as usize].lock();
                            *value += 1;
                            cache.publish(key, *value, 64);
                        } else if cache.get(&key).is_none() {
                            let generation = cache.generation(&key);
                            let value = *truth[key as usize].lock();
                            cache.insert_if(key, value, 64, generation);
                        }
                    }
                });
            }
        });
        for (key, value) in truth.iter().enumerate() {
            let value = *value.lock();
            assert!(cache.get(&(key as u64)).is_none_or(|held| held == value), "{policy:?}");
        }
    }
}
