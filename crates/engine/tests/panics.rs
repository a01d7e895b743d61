//! A panic while a thread holds state (I7). Wherever a disk operation panics, no thread hangs, the
//! pool is poisoned, and opening it again finds everything that was acknowledged. Every operation
//! of the scripts is tried.
#![allow(clippy::unwrap_used)] // a test may panic

use bytes::Bytes;
use hindcast_engine::cdp::CdpSettings;
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::disk::{Dir, MemDir};
use hindcast_engine::pool::{Health, Method, Placement, Pool, PoolConfig, PoolOptions, Progress};
use hindcast_engine::testing::{Act, FaultyDir, KIB, MIB, Op, check, content, new_volume, pv, world, write};
use hindcast_engine::{ErrorKind, Volume};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// A thread that hangs for this time counts as hanging for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory of which one operation panics. All operations count except reads of the catalog,
/// whose panics are errors.
#[derive(Clone, Default)]
struct PanicDir {
    files: MemDir,
    done: Arc<AtomicU64>,
    /// The number of the operation that panics; 0: none.
    at: Arc<AtomicU64>,
}

impl PanicDir {
    /// Returns the directory as a pool sees it.
    fn dir(&self) -> Arc<dyn Dir> {
        let panics = self.clone();
        FaultyDir::new(self.files.clone(), move |op: &Op<'_>| {
            match op.act {
                Act::Lock | Act::List => {}
                Act::Read(_) if op.name.starts_with("catalog") => {}
                _ => panics.step(),
            }
            None
        })
    }

    fn step(&self) {
        let number = self.done.fetch_add(1, Ordering::SeqCst) + 1;
        assert_ne!(number, self.at.load(Ordering::SeqCst), "injected into a disk");
    }

    /// Makes the `n`th operation from now on panic. With 0, no operation panics.
    fn arm(&self, n: u64) {
        self.done.store(0, Ordering::SeqCst);
        self.at.store(n, Ordering::SeqCst);
    }

    fn fired(&self) -> bool {
        let at = self.at.load(Ordering::SeqCst);
        at > 0 && self.done.load(Ordering::SeqCst) >= at
    }
}

fn open(dir: &PanicDir, threads: usize) -> hindcast_engine::Result<Arc<Pool>> {
    let options = PoolOptions { destage_threads: threads, ..PoolOptions::default() };
    Pool::open(dir.dir(), world(1), options)
}

fn idle(pool: &Pool) {
    for _ in 0..3 {
        while matches!(pool.maintain(), Ok(Progress::Worked)) {}
    }
}

/// What must be in place according to the answers to a script: the byte of its volume `v` in each
/// part of 4 KiB. `None` while a request is under way.
type Model = Vec<Option<u8>>;

struct Script {
    pool: Arc<Pool>,
    v: Arc<Volume>,
    model: Model,
}

impl Script {
    fn write(&mut self, offset: u64, byte: u8, len: u64) {
        let parts = (offset / 4096) as usize..((offset + len) / 4096) as usize;
        let before: Vec<_> = self.model[parts.clone()].to_vec();
        self.model[parts.clone()].fill(None);
        let mut ops = [WriteOp::new(offset, Bytes::from(vec![byte; len as usize]))];
        self.v.write(&mut ops, false);
        match &ops[0].result {
            Ok(()) => self.model[parts].fill(Some(byte)),
            Err(e) if e.kind() == ErrorKind::Poisoned => {}
            Err(_) => self.model[parts].copy_from_slice(&before),
        }
    }

    fn discard(&mut self, offset: u64, len: u64) {
        let parts = (offset / 4096) as usize..((offset + len) / 4096) as usize;
        self.model[parts.clone()].fill(None);
        if self.v.discard(offset, len, false).is_ok() {
            self.model[parts].fill(Some(0));
        }
    }

    fn drain(&self) {
        let _ = self.pool.drain();
    }

    /// Runs everything that changes the allocator, the names, the journal and a history. Errors are
    /// those of a pool that was poisoned on the way.
    fn run(&mut self) {
        self.write(0, 1, 128 * KIB);
        self.drain();
        let _ = self.pool.create_snapshots(&[("v", "s")]);
        // The chunk is redirected, filled from the old slot, and freed.
        self.write(4 * KIB, 2, 4 * KIB);
        self.write(64 * KIB, 2, 64 * KIB);
        self.discard(16 * KIB, 32 * KIB);
        self.drain();
        let _ = self.pool.set_method("v", Method::Copy);
        let _ = self.pool.create_snapshots(&[("v", "t")]);
        self.write(96 * KIB, 3, 20 * KIB);
        let _ = self.v.flush();
        idle(&self.pool);
        let _ = self.pool.set_cdp("v", Some(CdpSettings::default()));
        self.write(32 * KIB, 4, 64 * KIB);
        self.write(36 * KIB, 5, 4 * KIB);
        self.drain();
        let _ = self.pool.delete_snapshots("v", &["s"]);
        self.discard(0, 128 * KIB);
        self.write(128 * KIB, 6, 64 * KIB);
        idle(&self.pool);
        let _ = self.pool.relocate_volume("v", 0);
        idle(&self.pool);
        let _ = self.pool.create_volume(&new_volume("w", MIB, 4096));
        let _ = self.pool.delete_volume("w", true);
        idle(&self.pool);
        self.drain();
    }
}

fn site() -> PanicDir {
    let dir = PanicDir::default();
    let config =
        PoolConfig { extent_size: 64 * KIB, journal_size: MIB, segment_size: 256 * KIB, atomic_unit: 4096 };
    Pool::create(dir.dir(), &world(1), &config, Placement::Anywhere, &[pv("pv-0.img", 16 * MIB)]).unwrap();
    let pool = open(&dir, 1).unwrap();
    pool.create_volume(&new_volume("v", MIB, 8192)).unwrap();
    pool.close().unwrap();
    dir
}

/// Runs the script with a panic in the `n`th operation. Returns false if the script has fewer
/// operations.
fn panic_at(n: u64, threads: usize) -> bool {
    let dir = site();
    let pool = open(&dir, threads).unwrap();
    let v = pool.open_volume("v", false).unwrap();
    let mut script = Script { pool, v, model: vec![Some(0); 256] };
    dir.arm(n);
    let panicked = catch_unwind(AssertUnwindSafe(|| script.run())).is_err();
    let fired = dir.fired();
    assert!(!panicked || fired, "operation {n}: the script itself panicked");
    let Script { pool, v, model } = script;
    if fired {
        let health = pool.health();
        assert!(matches!(health, Health::Poisoned(_)), "operation {n}, {threads} threads: {health:?}");
        // No request uses state that was half changed.
        let mut ops = [WriteOp::new(0, Bytes::from(vec![9; 4096]))];
        v.write(&mut ops, true);
        assert_eq!(ops[0].result.as_ref().unwrap_err().kind(), ErrorKind::Poisoned);
        assert_eq!(v.flush().unwrap_err().kind(), ErrorKind::Poisoned);
        assert_eq!(pool.drain().unwrap_err().kind(), ErrorKind::Poisoned);
        assert!(pool.maintain().is_err());
        // All content that can be read is right.
        expect(n, &content(&v), &model);
    }
    drop((v, pool));
    dir.arm(0);
    let report = check(dir.dir());
    assert!(report.is_clean(), "operation {n}, {threads} threads: {:?}", report.findings);
    let pool = open(&dir, threads).unwrap();
    let v = pool.open_volume("v", false).unwrap();
    expect(n, &content(&v), &model);
    write(&v, 0, 7, 16 * KIB);
    pool.drain().unwrap();
    assert!(!matches!(pool.health(), Health::Poisoned(_)));
    fired
}

fn expect(n: u64, found: &[u8], model: &Model) {
    for (at, byte) in model.iter().enumerate().filter_map(|(at, byte)| Some((at, (*byte)?))) {
        let part = &found[at * 4096..][..4096];
        assert!(part.iter().all(|b| *b == byte), "operation {n}: 4 KiB part {at} is {} not {byte}", part[0]);
    }
}

/// Runs several clients at once. Clients that wait for the one that panics, as leader or as syncer,
/// are woken and fail.
fn clients_at(n: u64) -> bool {
    let dir = site();
    let pool = open(&dir, 1).unwrap();
    dir.arm(n);
    let client = &|number: u64| {
        let v = pool.open_volume("v", false).unwrap();
        for round in 0..8 {
            let mut ops = [WriteOp::new(number * 64 * KIB, Bytes::from(vec![round; 4096]))];
            v.write(&mut ops, true);
            if ops[0].result.is_err() {
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|number| scope.spawn(move || client(number))).collect();
        let died = clients.into_iter().filter_map(|client| client.join().err()).count();
        assert!(died <= 1, "operation {n}: {died} clients panicked");
    });
    let fired = dir.fired();
    assert_eq!(fired, matches!(pool.health(), Health::Poisoned(_)), "operation {n}");
    fired
}

/// Tries every operation in turn, as long as there are any, and detects a thread that hangs.
fn everywhere(least: u64, step: usize, panic_at: fn(u64) -> bool) {
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string();
        if !text.contains("injected into a disk") {
            eprintln!("{text}");
        }
    }));
    for n in (1..).step_by(step) {
        let (done, result) = channel();
        std::thread::spawn(move || done.send(catch_unwind(|| panic_at(n))));
        match result.recv_timeout(PATIENCE) {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => {
                assert!(n > least, "the script has {n} operations only");
                return;
            }
            Ok(Err(_)) => panic!("operation {n} failed"),
            Err(_) => panic!("operation {n} hangs"),
        }
    }
}

#[test]
fn a_panic_in_any_operation_of_one_thread_poisons_the_pool() {
    everywhere(100, 1, |n| panic_at(n, 1));
}

#[test]
fn a_panic_in_any_operation_of_borrowed_threads_poisons_the_pool() {
    everywhere(100, 3, |n| panic_at(n, 4));
}

#[test]
fn those_who_wait_for_a_thread_that_panics_fail_and_do_not_hang() {
    everywhere(8, 1, clients_at);
}
