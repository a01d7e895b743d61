//! What a process has open of the simulated machine: files and locks.

use super::Failing;
use super::machine::{Change, Go, Machine, crashed, eio, index, is_meant};
use crate::oracle::SECTOR;
use hindcast_engine::disk::IMAGE_PAGE as PAGE;
use hindcast_engine::disk::{Backing, Disk, SyncPurpose};
use parking_lot::{Mutex, MutexGuard};
use std::io::{self, IoSlice};
use std::sync::Arc;

/// A lock by name. It ends with its process.
pub(super) struct Lock {
    pub(super) machine: Arc<Mutex<Machine>>,
    pub(super) name: String,
    pub(super) life: u64,
}

impl Drop for Lock {
    fn drop(&mut self) {
        let mut machine = self.machine.lock();
        // After a crash another process may hold the lock.
        if machine.life == self.life {
            machine.locked.remove(&self.name);
        }
    }
}

/// A file that a process has open.
pub(super) struct SimDisk {
    pub(super) machine: Arc<Mutex<Machine>>,
    pub(super) id: u64,
    pub(super) life: u64,
    pub(super) writable: bool,
    pub(super) locked: bool,
}

impl Drop for SimDisk {
    fn drop(&mut self) {
        let mut machine = self.machine.lock();
        // The crash has ended the locks of its life and has closed its files.
        if machine.life != self.life {
            return;
        }
        machine.open -= 1;
        if self.locked
            && let Some(file) = machine.files.get_mut(&self.id)
        {
            file.unlock(self.writable);
        }
    }
}

impl SimDisk {
    fn machine(&self) -> io::Result<MutexGuard<'_, Machine>> {
        let machine = self.machine.lock();
        machine.alive(self.life)?;
        Ok(machine)
    }

    fn for_writing(&self) -> io::Result<MutexGuard<'_, Machine>> {
        if self.writable { self.machine() } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }

    /// Like `for_writing`, for a change that leaves no trace when it fails.
    fn for_changing(&self) -> io::Result<MutexGuard<'_, Machine>> {
        let mut machine = self.for_writing()?;
        let fails = machine.is_away(self.id) || machine.fails(self.id) == Some(Failing::Writes);
        if fails { Err(eio()) } else { Ok(machine) }
    }

    fn write(&self, mut data: Vec<u8>, offset: u64) -> io::Result<()> {
        let mut machine = self.for_writing()?;
        let end = offset.checked_add(data.len() as u64).filter(|end| i64::try_from(*end).is_ok());
        let end = end.ok_or(io::ErrorKind::FileTooLarge)?;
        if let Some(file) = machine.files.get(&self.id)
            && file.block
            && end > file.now.len()
        {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if machine.begin(self.life, self.id, false)? == Go::Crash {
            // The crash may leave any part of the call done.
            let done = match machine.rand.below(4) {
                0 => 0,
                1 => data.len(),
                _ => machine.rand.below(data.len() as u64 + 1) as usize,
            };
            data.truncate(done);
        }
        if machine.is_away(self.id) {
            return Err(eio());
        }
        let fails = machine.fails(self.id) == Some(Failing::Writes);
        if fails {
            let done = machine.rand.below(data.len() as u64 + 1) as usize;
            data.truncate(done / SECTOR as usize * SECTOR as usize);
        }
        if !data.is_empty() {
            machine.back(self.id, offset, data.len() as u64)?;
            for sector in offset.div_ceil(SECTOR)..(offset + data.len() as u64) / SECTOR {
                machine.unreadable.remove(&(self.id, sector));
            }
            machine.change(self.id, Change::Write { offset, data })?;
        }
        machine.end().and(if fails { Err(eio()) } else { Ok(()) })
    }
}

impl Disk for SimDisk {
    fn scatters(&self) -> bool {
        true
    }

    /// Writes from the end to the beginning half of the time: nobody may rely on an order.
    fn write_scattered(&self, pieces: &[(&[u8], u64)]) -> io::Result<()> {
        let backward = self.machine()?.rand.percent(50);
        let write = |(bytes, offset): &(&[u8], u64)| self.write_at(bytes, *offset);
        if backward { pieces.iter().rev().try_for_each(write) } else { pieces.iter().try_for_each(write) }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let machine = self.machine()?;
        let file = machine.files.get(&self.id).ok_or_else(crashed)?;
        let len = buf.len() as u64;
        if len == 0 {
            return Ok(());
        }
        if offset.checked_add(len).is_none_or(|end| end > file.now.len()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if machine.is_away(self.id) || machine.unreadable(self.id, offset, len) {
            return Err(eio());
        }
        file.now.read(buf, offset);
        Ok(())
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        let ready = self.machine()?.rand.percent(50);
        if !ready {
            // The content of the buffer is undefined after this, so the engine must not use it.
            buf.fill(0xA5);
            return Ok(false);
        }
        match self.read_at(buf, offset) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write(buf.to_vec(), offset)
    }

    fn write_vectored_at(&self, bufs: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.write(bufs.iter().flat_map(|b| b.iter().copied()).collect(), offset)
    }

    fn sync(&self, purpose: SyncPurpose) -> io::Result<()> {
        let mut machine = self.machine()?;
        let going_on = machine.begin_whole(self.life, self.id, true)?;
        let fails = machine.is_away(self.id) || machine.fails(self.id).is_some();
        let failing = is_meant(machine.fail_sync, purpose) || fails;
        let dropped = machine.dropped[index(purpose)];
        if failing {
            machine.fail_sync(self.id);
            return Err(eio());
        }
        let file = machine.files.get_mut(&self.id).ok_or_else(crashed)?;
        if going_on && !dropped {
            file.sync();
        }
        machine.end()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.machine()?.files.get(&self.id).ok_or_else(crashed)?.now.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut machine = self.for_changing()?;
        if machine.files.get(&self.id).is_some_and(|f| f.block) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if machine.begin_whole(self.life, self.id, false)? {
            machine.change(self.id, Change::SetLen(len))?;
        }
        machine.end()
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut machine = self.for_changing()?;
        let end = offset.checked_add(len).ok_or(io::ErrorKind::FileTooLarge)?;
        if machine.files.get(&self.id).is_some_and(|f| f.block) {
            return Ok(());
        }
        if machine.begin_whole(self.life, self.id, false)? {
            machine.back(self.id, offset, len)?;
            machine.change(self.id, Change::Extend(end))?;
        }
        machine.end()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut machine = self.for_changing()?;
        let going_on = machine.begin_whole(self.life, self.id, false)?;
        let file = machine.files.get(&self.id).ok_or_else(crashed)?;
        let len = len.min(file.now.len().saturating_sub(offset));
        // The content of the range is undefined after this: the old content, zeros, or in a short
        // range any bytes.
        let outcome = machine.rand.below(3);
        if !going_on || len == 0 || outcome == 0 {
            return machine.end();
        }
        if outcome == 1 || len > 1 << 20 {
            machine.change(self.id, Change::Zero { offset, len })?;
            if let Some(file) = machine.files.get_mut(&self.id) {
                let pages = offset.div_ceil(PAGE)..(offset + len) / PAGE;
                file.backed.retain(|page| !pages.contains(page));
            }
        } else {
            let mut data = vec![0; len as usize];
            machine.rand.fill(&mut data);
            machine.change(self.id, Change::Write { offset, data })?;
        }
        machine.end()
    }

    /// A crash may leave a part of it.
    fn zero(&self, offset: u64, len: u64, _unmap: bool) -> io::Result<bool> {
        let mut machine = self.for_changing()?;
        if !machine.makes_zeros {
            return Ok(false);
        }
        let file = machine.files.get(&self.id).ok_or_else(crashed)?;
        let whole = len.min(file.now.len().saturating_sub(offset));
        let mut len = whole;
        // A disk may find out on the way that it can't.
        let ends_early = machine.rand.below(16) == 0;
        if !machine.begin_whole(self.life, self.id, false)? || ends_early {
            len = (machine.rand.below(len.div_ceil(SECTOR) + 1) * SECTOR).min(whole);
        }
        if len > 0 {
            machine.change(self.id, Change::Zero { offset, len })?;
            if let Some(file) = machine.files.get_mut(&self.id) {
                let pages = offset.div_ceil(PAGE)..(offset + len) / PAGE;
                file.backed.retain(|page| !pages.contains(page));
            }
        }
        machine.end().map(|()| !ends_early)
    }

    fn backing_available(&self) -> io::Result<Option<Backing>> {
        let machine = self.machine()?;
        let file = machine.files.get(&self.id).ok_or_else(crashed)?;
        if file.block {
            return Ok(None);
        }
        let free = |limit: u64| limit.saturating_sub(machine.backing_used());
        Ok(Some(Backing { file_system: 1, available: machine.backing.map_or(1 << 50, free) }))
    }

    fn advise_random(&self) {}

    fn is_block_device(&self) -> bool {
        self.machine.lock().files.get(&self.id).is_some_and(|f| f.block)
    }
}
