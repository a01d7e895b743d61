//! A block device in memory, sparse in units of 64 KiB. It counts the calls that it gets, and fails
//! when a test tells it to.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)] // included by several, each needing a part of it

use hindcast_engine::device::{BlockDevice, DeviceInfo, RequestKind, StatusRun, WriteOp};
use hindcast_engine::{Error, ErrorKind, Result};
use hindcast_target::{ExportEntry, Exports};
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use uuid::Uuid;

pub const SHARD: u64 = 64 << 10;

/// Calls of the device.
#[derive(Default)]
pub struct Calls {
    pub try_reads: AtomicU64,
    pub reads: AtomicU64,
    pub write_calls: AtomicU64,
    pub writes: AtomicU64,
    pub fua_calls: AtomicU64,
    pub flushes: AtomicU64,
    pub discards: AtomicU64,
    pub unmaps: AtomicU64,
    pub zeroes: AtomicU64,
    pub caches: AtomicU64,
    pub statuses: AtomicU64,
}

pub struct MemDevice {
    info: DeviceInfo,
    shards: Vec<RwLock<Option<Box<[u8]>>>>,
    pub calls: Calls,
    /// `try_read` says that it would have to wait.
    pub cold: AtomicBool,
    /// Everything fails with this.
    pub failure: Mutex<Option<ErrorKind>>,
    /// The block at this byte can't be read.
    pub damaged: Mutex<Option<u64>>,
    /// `read`, `flush` and writes with FUA wait while it is set.
    pub blocked: Gate,
    /// Other writes wait too.
    pub blocks_all: AtomicBool,
    /// `block_status` waits too.
    pub blocks_status: AtomicBool,
    /// The device keeps references to what is written.
    pub keep: Mutex<Option<Vec<bytes::Bytes>>>,
    /// `read` and `flush` panic.
    pub broken: AtomicBool,
    /// `try_read` panics, on the connection's own thread.
    pub broken_inline: AtomicBool,
    /// What targets told of requests, each on its own.
    pub answered: Mutex<Vec<(RequestKind, Duration)>>,
}

#[derive(Default)]
pub struct Gate {
    closed: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    pub fn close(&self) {
        self.closed.lock().0 = true;
    }

    pub fn open(&self) {
        self.closed.lock().0 = false;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut closed = self.closed.lock();
        closed.1 += 1;
        self.changed.notify_all();
        while closed.0 {
            self.changed.wait(&mut closed);
        }
        closed.1 -= 1;
    }

    /// Waits until `n` callers stand before it.
    pub fn wait_for(&self, n: usize) {
        let mut closed = self.closed.lock();
        while closed.1 < n {
            self.changed.wait(&mut closed);
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl MemDevice {
    pub fn new(size: u64) -> MemDevice {
        let info = DeviceInfo {
            size,
            block_size: 512,
            preferred_size: 4096,
            read_only: false,
            uuid: Uuid::from_bytes([7; 16]),
        };
        MemDevice::with_info(info)
    }

    pub fn with_info(info: DeviceInfo) -> MemDevice {
        let shards = (0..info.size.div_ceil(SHARD)).map(|_| RwLock::new(None)).collect();
        MemDevice {
            info,
            shards,
            calls: Calls::default(),
            cold: AtomicBool::new(false),
            failure: Mutex::default(),
            damaged: Mutex::default(),
            blocked: Gate::default(),
            blocks_all: AtomicBool::new(false),
            blocks_status: AtomicBool::new(false),
            keep: Mutex::default(),
            broken: AtomicBool::new(false),
            broken_inline: AtomicBool::new(false),
            answered: Mutex::default(),
        }
    }

    /// How long the requests of a kind took that were answered since the last call.
    pub fn answered(&self, kind: RequestKind) -> Vec<Duration> {
        let mut answered = self.answered.lock();
        answered.extract_if(.., |(of, _)| *of == kind).map(|(_, took)| took).collect()
    }

    /// The whole content.
    pub fn content(&self) -> Vec<u8> {
        let mut content = vec![0; self.info.size as usize];
        self.copy_out(0, &mut content);
        content
    }

    /// Whether two devices of one size have the same content.
    pub fn same_content(&self, other: &MemDevice) -> bool {
        let zeros = vec![0; SHARD as usize];
        self.shards.iter().zip(&other.shards).all(|(a, b)| match (&*a.read(), &*b.read()) {
            (None, None) => true,
            (a, b) => a.as_deref().unwrap_or(&zeros) == b.as_deref().unwrap_or(&zeros),
        })
    }

    fn check(&self, offset: u64, len: u64, write: bool) -> Result<()> {
        if let Some(kind) = *self.failure.lock() {
            return Err(Error::new(kind, "fail as told"));
        }
        let block = u64::from(self.info.block_size);
        assert!(
            offset.is_multiple_of(block) && len.is_multiple_of(block) && len > 0,
            "a target must check alignment"
        );
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.info.size),
            "a target must check the range"
        );
        assert!(!(write && self.info.read_only), "a target must check access");
        match *self.damaged.lock() {
            Some(at) if !write && (offset..offset + len).contains(&at) => {
                Err(Error::new(ErrorKind::Io, "read a damaged block").with_byte(at))
            }
            _ => Ok(()),
        }
    }

    fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (usize, usize, usize, usize)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = offset + done;
            let n = (SHARD - at % SHARD).min(len - done);
            let piece = ((at / SHARD) as usize, (at % SHARD) as usize, done as usize, n as usize);
            done += n;
            (n > 0).then_some(piece)
        })
    }

    fn copy_out(&self, offset: u64, buf: &mut [u8]) {
        for (shard, at, from, n) in Self::pieces(offset, buf.len() as u64) {
            match &*self.shards[shard].read() {
                Some(data) => buf[from..from + n].copy_from_slice(&data[at..at + n]),
                None => buf[from..from + n].fill(0),
            }
        }
    }

    fn copy_in(&self, offset: u64, len: u64, bytes: impl Fn(usize, &mut [u8])) {
        for (shard, at, from, n) in Self::pieces(offset, len) {
            let mut shard = self.shards[shard].write();
            let data = shard.get_or_insert_with(|| vec![0; SHARD as usize].into());
            bytes(from, &mut data[at..at + n]);
        }
    }
}

impl BlockDevice for MemDevice {
    fn answered(&self, kind: RequestKind, took: Duration, count: u64) {
        (0..count).for_each(|_| self.answered.lock().push((kind, took)));
    }

    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        count(&self.calls.try_reads);
        assert!(!self.broken_inline.load(Ordering::Relaxed), "break as told");
        self.check(offset, buf.len() as u64, false)?;
        if self.cold.load(Ordering::Relaxed) {
            buf.fill(0xee); // undefined content
            return Ok(false);
        }
        self.copy_out(offset, buf);
        Ok(true)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        count(&self.calls.reads);
        assert!(!self.broken.load(Ordering::Relaxed), "break as told");
        self.blocked.pass();
        self.check(offset, buf.len() as u64, false)?;
        self.copy_out(offset, buf);
        Ok(())
    }

    fn write(&self, ops: &mut [WriteOp], fua: bool) {
        count(&self.calls.write_calls);
        if fua {
            count(&self.calls.fua_calls);
        }
        if fua || self.blocks_all.load(Ordering::Relaxed) {
            self.blocked.pass();
        }
        for op in ops {
            count(&self.calls.writes);
            op.result = self.check(op.offset, op.data.len() as u64, true);
            if op.result.is_ok() {
                let data = &op.data;
                self.copy_in(op.offset, data.len() as u64, |from, to| {
                    to.copy_from_slice(&data[from..from + to.len()]);
                });
                if let Some(kept) = &mut *self.keep.lock() {
                    kept.push(op.data.clone());
                }
            }
        }
    }

    fn flush(&self) -> Result<()> {
        count(&self.calls.flushes);
        assert!(!self.broken.load(Ordering::Relaxed), "break as told");
        self.blocked.pass();
        match *self.failure.lock() {
            Some(kind) => Err(Error::new(kind, "fail as told")),
            None => Ok(()),
        }
    }

    fn discard(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        count(&self.calls.discards);
        self.check(offset, len, true)?;
        if fua {
            count(&self.calls.fua_calls);
        }
        for (shard, at, _, n) in Self::pieces(offset, len) {
            let mut shard = self.shards[shard].write();
            if n as u64 == SHARD {
                *shard = None;
            } else if let Some(data) = &mut *shard {
                data[at..at + n].fill(0);
            }
        }
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool, fua: bool) -> Result<()> {
        count(&self.calls.zeroes);
        if may_unmap {
            count(&self.calls.unmaps);
            return self.discard(offset, len, fua);
        }
        self.check(offset, len, true)?;
        self.copy_in(offset, len, |_, to| to.fill(0));
        Ok(())
    }

    fn block_status(&self, offset: u64, len: u64, max_runs: usize) -> Result<Vec<StatusRun>> {
        count(&self.calls.statuses);
        if self.blocks_status.load(Ordering::Relaxed) {
            self.blocked.pass();
        }
        self.check(offset, len, false)?;
        let mut runs: Vec<StatusRun> = Vec::new();
        for (shard, _, _, n) in Self::pieces(offset, len) {
            let allocated = self.shards[shard].read().is_some();
            if let Some(run) = runs.last_mut()
                && run.allocated == allocated
            {
                run.length += n as u64;
                continue;
            }
            if runs.len() == max_runs {
                break;
            }
            runs.push(StatusRun { length: n as u64, allocated, zero: !allocated });
        }
        Ok(runs)
    }

    fn damaged(&self, offset: u64, len: u64, _: usize) -> Result<Vec<(u64, bool)>> {
        let block = u64::from(self.info.block_size);
        Ok(match *self.damaged.lock() {
            Some(at) if (offset..offset + len).contains(&at) => {
                vec![(at - offset, false), (block, true), (offset + len - at - block, false)]
            }
            _ => vec![(len, false)],
        })
    }
    fn cache(&self, offset: u64, len: u64) -> Result<()> {
        count(&self.calls.caches);
        self.check(offset, len, false)
    }
}

/// Exports by name; the empty name is the first one.
#[derive(Default)]
pub struct MemExports(pub BTreeMap<String, Arc<MemDevice>>);

impl MemExports {
    pub fn one(name: &str, device: Arc<MemDevice>) -> Arc<MemExports> {
        Arc::new(MemExports([(name.to_owned(), device)].into()))
    }
}

impl Exports for MemExports {
    fn list(&self) -> Vec<ExportEntry> {
        let entry = |(name, device): (&String, &Arc<MemDevice>)| ExportEntry {
            name: name.clone(),
            description: format!("{} bytes of memory", device.info.size),
        };
        self.0.iter().map(entry).collect()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn BlockDevice>> {
        match self.0.get(&self.canonical(name)) {
            Some(device) => Ok(device.clone()),
            None => Err(Error::new(ErrorKind::NotFound, format!("open export {name}"))),
        }
    }

    fn canonical(&self, name: &str) -> String {
        match name {
            "" => self.0.keys().next().cloned().unwrap_or_default(),
            _ => name.to_owned(),
        }
    }
}
