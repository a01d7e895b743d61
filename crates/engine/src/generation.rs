//! The optimistic read of content that may be overwritten: readers and writers never wait for each
//! other, and a reader never returns bytes that were written after the snapshot.
//!
//! A snapshot may be read from a place that is about to be overwritten (copy-on-write). The steps
//! have a fixed order:
//!
//! - The snapshot's content is copied to a new place, and the copy is published.
//! - The generation moves.
//! - The old place is overwritten.
//!
//! A reader notes the generation, looks up the place, and reads. If the generation has moved, it
//! repeats the look-up and the read. This is sound: the old place is overwritten only after the
//! move, and a look-up after the move finds the copy.
//!
//! The type is generic over [`Counter`], so that a test can explore every interleaving of it, and
//! of the grace periods beside it.

use std::sync::atomic::{AtomicU64, Ordering};

/// A sequentially consistent atomic counter: the standard library's, or one whose interleavings a
/// test explores.
pub(crate) trait Counter: Send + Sync {
    /// A counter with the value 0.
    fn zero() -> Self;
    fn get(&self) -> u64;
    fn set(&self, value: u64);
    fn increment(&self);
    fn decrement(&self);
}

macro_rules! counter {
    ($atomic:ty, $ordering:path) => {
        impl Counter for $atomic {
            fn zero() -> Self {
                <$atomic>::new(0)
            }
            fn get(&self) -> u64 {
                self.load($ordering)
            }
            fn set(&self, value: u64) {
                self.store(value, $ordering);
            }
            fn increment(&self) {
                self.fetch_add(1, $ordering);
            }
            fn decrement(&self) {
                self.fetch_sub(1, $ordering);
            }
        }
    };
}

counter!(AtomicU64, Ordering::SeqCst);
#[cfg(test)]
counter!(shuttle::sync::atomic::AtomicU64, shuttle::sync::atomic::Ordering::SeqCst);

/// A counter that moves before places that a snapshot may be read from are overwritten. A branch
/// has one. Readers never wait for it: they read again when it has moved.
pub(crate) struct Generation<C: Counter = AtomicU64>(C);

impl<C: Counter> Generation<C> {
    pub(crate) fn new() -> Self {
        Generation(C::zero())
    }

    /// Looks up and reads, and repeats both until nothing was overwritten meanwhile.
    pub(crate) fn read<T>(&self, mut look_up_and_read: impl FnMut() -> T) -> T {
        loop {
            let before = self.0.get();
            let done = look_up_and_read();
            if self.0.get() == before {
                return done;
            }
        }
    }

    /// Publishes where contents were copied to. After it returns the old places may be overwritten.
    pub(crate) fn supersede(&self, publish: impl FnOnce()) {
        publish();
        self.0.increment();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grace::{Readers, Retired};
    use shuttle::sync::atomic::AtomicU64 as Shared;
    use shuttle::thread;
    use std::sync::Arc;

    /// The content that the snapshot shows, and the content that is written after it.
    const OLD: u64 = 7;
    const NEW: u64 = 8;
    /// The largest number of schedules that a test tries. The exhaustive searches here are smaller.
    const SCHEDULES: usize = 200_000;

    /// Two slots, and the place of the snapshot's content: the map, the disks and the destager of a
    /// very small pool. A slot is read and written by system calls, which synchronise.
    struct Tiny {
        slots: [Shared; 2],
        place: Shared,
        generation: Generation<Shared>,
        readers: Readers<Shared, 1>,
    }

    impl Tiny {
        fn new() -> Arc<Tiny> {
            let tiny = Tiny {
                slots: [Shared::zero(), Shared::zero()],
                place: Shared::zero(),
                generation: Generation::new(),
                readers: Readers::default(),
            };
            tiny.slots[0].set(OLD);
            Arc::new(tiny)
        }

        /// Reads the snapshot as `Volume::read_into` does.
        fn read(&self) -> u64 {
            let _reading = self.readers.enter();
            self.generation.read(|| self.slots[self.place.get() as usize].get())
        }

        /// Preserves a chunk by copy-on-write, and overwrites it.
        fn preserve_and_overwrite(&self) {
            self.slots[1].set(self.slots[0].get());
            self.generation.supersede(|| self.place.set(1));
            self.slots[0].set(NEW);
        }
    }

    fn explore(test: impl Fn() + Send + Sync + 'static) {
        shuttle::check_dfs(test, Some(SCHEDULES));
    }

    #[test]
    fn a_reader_never_sees_what_was_written_later() {
        explore(|| {
            let tiny = Tiny::new();
            let reader = thread::spawn({
                let tiny = tiny.clone();
                move || tiny.read()
            });
            tiny.preserve_and_overwrite();
            assert_eq!(reader.join().unwrap(), OLD);
        });
    }

    /// Without the grace period a slot that was left could be allocated to another chunk before the
    /// reader has finished with it.
    #[test]
    fn a_slot_that_was_left_waits_for_its_readers() {
        explore(|| {
            let tiny = Tiny::new();
            let reader = thread::spawn({
                let tiny = tiny.clone();
                move || tiny.read()
            });
            // Moved, as by an evacuation. The old slot is free when no reader can hold it.
            tiny.slots[1].set(OLD);
            tiny.place.set(1);
            let retired = Retired::default();
            retired.push(0);
            for _ in 0..3 {
                for slot in retired.poll(&tiny.readers) {
                    tiny.slots[slot as usize].set(NEW);
                }
            }
            assert_eq!(reader.join().unwrap(), OLD);
        });
    }

    /// Random schedules, more than a test can search to the end: two readers, and chunks that are
    /// overwritten again and again.
    #[test]
    fn readers_and_a_destager_go_on_and_on() {
        let race = || {
            let tiny = Tiny::new();
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    let tiny = tiny.clone();
                    thread::spawn(move || (0..2).for_each(|_| assert_eq!(tiny.read(), OLD)))
                })
                .collect();
            let retired = Retired::default();
            tiny.preserve_and_overwrite();
            // The copy moves once more, and its slot is used again.
            tiny.slots[0].set(OLD);
            tiny.place.set(0);
            retired.push(1);
            for _ in 0..4 {
                for slot in retired.poll(&tiny.readers) {
                    tiny.slots[slot as usize].set(NEW);
                }
            }
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        };
        shuttle::check_random(race, 3000);
        shuttle::check_pct(race, 3000, 3);
    }
}
