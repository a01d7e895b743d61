//! A plain file or a block device that is exported unchanged: no thin provisioning, no journal, no
//! history.
//!
//! An acknowledgement promises the same as one of a volume (I4), by the page cache and `fdatasync`.
//! After a failed sync, the state of every write since the last successful sync is unknown. So the
//! device then refuses all requests (as I7 demands for a pool) until the server is restarted.

use hindcast_engine::device::{BlockDevice, DeviceInfo, StatusRun, WriteOp};
use hindcast_engine::disk::{Dir, Disk, FileDir, Hold, OpenMode, SyncPurpose, open_without_links};
use hindcast_engine::world::derived_uuid;
use hindcast_engine::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use uuid::Uuid;

/// Size of the pieces in which zeros are written, if the backing can't write zeros itself.
const ZEROS: usize = 1 << 20;

/// The file or device to export, and its properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileSpec {
    /// UUID of the logical unit. Initiators see it. It is stored with the mapping, because a file
    /// has none.
    pub(crate) uuid: Uuid,
    /// Absolute path without symbolic links.
    pub(crate) path: String,
    /// Whether writes are refused.
    pub(crate) read_only: bool,
    /// Logical block size in bytes, 512 or 4096.
    pub(crate) block_size: u32,
    /// Serial number that the operator chose, if the UUID is derived from it. `None`: the UUID is
    /// the serial number.
    pub(crate) serial: Option<String>,
}

/// Maximum length of a serial number: the space for one in identification descriptors.
const MAX_SERIAL: usize = 64;

/// Returns the UUID for a chosen serial number, which is the same on every server. It also returns
/// the serial number, unless that is a UUID itself.
pub(crate) fn identity_of_serial(serial: &str) -> Result<(Uuid, Option<String>)> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    if serial.is_empty() || serial.len() > MAX_SERIAL || !serial.chars().all(fits) {
        let text = format!(
            "use the serial number {serial:?}: it must have 1 to {MAX_SERIAL} letters, digits, '-', '_', '.' and ':'"
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let digits = if serial.len() == 36 { serial.replace('-', "") } else { serial.to_owned() };
    if let (32, Ok(uuid)) = (digits.len(), Uuid::try_parse(&digits)) {
        return Ok((uuid, None));
    }
    Ok((derived_uuid("hindcast serial number", &[serial.as_bytes()]), Some(serial.to_owned())))
}

/// An open file or block device.
pub(crate) struct FileDevice {
    spec: FileSpec,
    disk: Arc<dyn Disk>,
    /// Length of the file in bytes, at the last check.
    length: AtomicU64,
    failed: AtomicBool,
    /// Lock that allows one sync at a time. The system reports lost writes to one sync only. A
    /// second sync at the same time would acknowledge lost data.
    syncing: Mutex<()>,
}

impl FileDevice {
    /// Opens the file or device of `spec`.
    pub(crate) fn open(spec: FileSpec) -> Result<Arc<FileDevice>> {
        let fail = |e| Error::io(format!("export {}", spec.path), e);
        let dir = FileDir::new("/");
        let _hold = without_links(&spec.path)?;
        let disk = match spec.read_only {
            true => dir.open(&spec.path, OpenMode::ReadOnly).map_err(fail)?,
            // A file is locked against other servers that would write to it, too; a device is
            // opened exclusively.
            false => dir.open_locked(&spec.path, OpenMode::Existing).map_err(|e| match e.kind() {
                io::ErrorKind::WouldBlock => Error::new(
                    ErrorKind::Busy,
                    format!("export {}: another program has locked it", spec.path),
                ),
                _ => fail(e),
            })?,
        };
        Self::over(spec, disk).map(Arc::new)
    }

    fn over(spec: FileSpec, disk: Arc<dyn Disk>) -> Result<FileDevice> {
        let (length, failed, syncing) = Default::default();
        let device = FileDevice { spec, disk, length, failed, syncing };
        device.refresh()?;
        if device.size() == 0 {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("export {}: it is smaller than a block", device.spec.path),
            ));
        }
        Ok(device)
    }

    /// Returns the size in bytes, a multiple of the block size. If writes are refused, zeros fill
    /// up the last block. Otherwise an incomplete last block is not accessible, because the file
    /// must not grow.
    fn size(&self) -> u64 {
        self.in_blocks(self.length())
    }

    fn length(&self) -> u64 {
        self.length.load(Ordering::Acquire)
    }

    fn in_blocks(&self, len: u64) -> u64 {
        let unit = u64::from(self.spec.block_size);
        if self.spec.read_only { len.checked_next_multiple_of(unit).unwrap_or(0) } else { len - len % unit }
    }

    /// Refuses a file with an end that initiators could not access.
    pub(crate) fn check_tail(&self) -> Result<()> {
        let (path, length, unit) = (&self.spec.path, self.length(), u64::from(self.spec.block_size));
        let tail = length.saturating_sub(self.size());
        if tail == 0 {
            return Ok(());
        }
        let whole = length - tail + unit;
        Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "export {path}: its length of {length} bytes is not a multiple of the block size {unit}, so the last {tail} bytes would be out of reach; extend it (truncate -s {whole}), or export it read-only, which fills the last block with zeros"
            ),
        ))
    }

    /// Checks the length of the file. Returns whether the size in blocks has changed. A file that
    /// became empty keeps its size, and its reads and writes fail.
    pub(crate) fn refresh(&self) -> Result<bool> {
        let len = self.disk.len().map_err(|e| self.io("look at", e))?;
        if self.in_blocks(len) == 0 {
            return Ok(false);
        }
        let before = self.length.swap(len, Ordering::AcqRel);
        Ok(self.in_blocks(before) != self.in_blocks(len))
    }

    /// Returns the part of `buf` that the file fills, for a read at `offset`. The rest is set to
    /// zeros.
    fn inside<'a>(&self, offset: u64, buf: &'a mut [u8]) -> &'a mut [u8] {
        let there = usize::try_from(self.length().saturating_sub(offset)).unwrap_or(usize::MAX);
        // Only the last block is ever filled up: a file that was cut off meanwhile is not.
        let padding = if self.spec.read_only { buf.len().saturating_sub(there) } else { 0 };
        let (inside, rest) = buf.split_at_mut(buf.len() - padding);
        rest.fill(0);
        inside
    }

    fn io(&self, verb: &str, error: io::Error) -> Error {
        Error::io(format!("{verb} {}", self.spec.path), error)
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        let unit = u64::from(self.spec.block_size);
        if offset % unit != 0 || len % unit != 0 {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("use bytes {offset}+{len}: not a multiple of the block size {unit}"),
            ));
        }
        let size = self.size();
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                format!("use bytes {offset}+{len}: {} ends at {size}", self.spec.path),
            ));
        }
        Ok(())
    }

    fn check_writable(&self, offset: u64, len: u64) -> Result<()> {
        self.check(offset, len)?;
        if self.spec.read_only {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                format!("write to {}: it is read-only", self.spec.path),
            ));
        }
        self.check_trusted()?;
        // A file that was cut off behind our back would silently grow again.
        if !self.disk.is_block_device() {
            let now = self.disk.len().map_err(|e| self.io("look at", e))?;
            if offset.saturating_add(len) > now {
                return Err(Error::new(
                    ErrorKind::OutOfRange,
                    format!("write to {}: it was truncated to {now} bytes", self.spec.path),
                ));
            }
        }
        Ok(())
    }

    fn check_trusted(&self) -> Result<()> {
        if self.failed.load(Ordering::Acquire) {
            return Err(Error::new(
                ErrorKind::Poisoned,
                format!("use {}: an earlier sync failed; restart the server", self.spec.path),
            ));
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let _one_at_a_time = self.syncing.lock();
        self.check_trusted()?;
        self.disk.sync(SyncPurpose::Apply).map_err(|e| {
            self.failed.store(true, Ordering::Release);
            tracing::error!(path = self.spec.path, error = %e, "a sync failed: the device refuses writes from now on");
            self.io("sync", e)
        })
    }

    fn zero(&self, offset: u64, len: u64, unmap: bool, fua: bool) -> Result<()> {
        self.check_writable(offset, len)?;
        let done = self.disk.zero(offset, len, unmap).map_err(|e| self.io("write to", e))?;
        if !done {
            let zeros = vec![0u8; ZEROS.min(usize::try_from(len).unwrap_or(ZEROS))];
            let (mut at, end) = (offset, offset + len);
            while at < end {
                let piece = usize::try_from(end - at).unwrap_or(ZEROS).min(zeros.len());
                self.disk.write_at(&zeros[..piece], at).map_err(|e| self.io("write to", e))?;
                at += piece as u64;
            }
        }
        if fua { self.sync() } else { Ok(()) }
    }
}

impl BlockDevice for FileDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            size: self.size(),
            block_size: self.spec.block_size,
            preferred_size: 4096,
            read_only: self.spec.read_only,
            uuid: self.spec.uuid,
        }
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        self.check(offset, buf.len() as u64)?;
        self.disk.try_read_at(self.inside(offset, buf), offset).map_err(|e| self.io("read", e))
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.check(offset, buf.len() as u64)?;
        self.disk.read_at(self.inside(offset, buf), offset).map_err(|e| self.io("read", e))
    }

    fn write(&self, ops: &mut [WriteOp], fua: bool) {
        for op in &mut *ops {
            op.result = self
                .check_writable(op.offset, op.data.len() as u64)
                .and_then(|()| self.disk.write_at(&op.data, op.offset).map_err(|e| self.io("write to", e)));
        }
        if fua
            && ops.iter().any(|op| op.result.is_ok())
            && let Err(error) = self.sync()
        {
            for op in ops.iter_mut().filter(|op| op.result.is_ok()) {
                op.result = Err(error.clone());
            }
        }
    }

    fn flush(&self) -> Result<()> {
        if self.spec.read_only { Ok(()) } else { self.sync() }
    }

    fn discard(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.zero(offset, len, true, fua)
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool, fua: bool) -> Result<()> {
        self.zero(offset, len, may_unmap, fua)
    }

    fn block_status(&self, offset: u64, len: u64, max_runs: usize) -> Result<Vec<StatusRun>> {
        self.check(offset, len)?;
        let unit = u64::from(self.spec.block_size);
        let (mut at, end) = (offset, offset + len);
        let mut runs: Vec<StatusRun> = Vec::new();
        while at < end {
            let (to, data) = self.disk.run_at(at).map_err(|e| self.io("look at", e))?;
            // A block that is a hole in part is data; a file that was cut off reads as nothing, not
            // as zeros.
            let to = if data { to.div_ceil(unit).saturating_mul(unit) } else { to - to % unit };
            let (to, data) = if to <= at { (at + unit, true) } else { (to.min(end), data) };
            let full = runs.len() == max_runs;
            match runs.last_mut() {
                Some(last) if last.allocated == data => last.length += to - at,
                _ if full => break,
                _ => runs.push(StatusRun { length: to - at, allocated: data, zero: !data }),
            }
            at = to;
        }
        Ok(runs)
    }

    fn cache(&self, offset: u64, len: u64) -> Result<()> {
        // The system reads ahead by itself.
        self.check(offset, len)
    }
}

/// Opens a stored path, and refuses symbolic links. With a link on the way, the path would lead to
/// another file than the one that was allowed. If the check of the path still holds the file, that
/// file is used.
fn without_links(path: &str) -> Result<Hold> {
    if let Some(hold) = Hold::of(path) {
        return Ok(hold);
    }
    match open_without_links(Path::new(path)) {
        Ok(file) => Ok(Hold::file(path, file)),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied && canonical(path)? != path => {
            let text = format!("export {path}: it has been replaced by a symbolic link");
            Err(Error::new(ErrorKind::Conflict, text))
        }
        Err(e) => Err(Error::io(format!("export {path}"), e)),
    }
}

/// Returns the form in which a path is stored: absolute and without symbolic links, so that one
/// file has one identity.
pub(crate) fn canonical(path: &str) -> Result<String> {
    let fail = |e| Error::io(format!("export {path}"), e);
    if !Path::new(path).is_absolute() {
        return Err(Error::new(ErrorKind::Invalid, format!("export {path}: the path must be absolute")));
    }
    let found = std::fs::canonicalize(path).map_err(fail)?;
    found.into_os_string().into_string().map_err(|_| {
        Error::new(ErrorKind::Invalid, format!("export {path}: the path it leads to is not UTF-8"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use hindcast_engine::disk::{Layer, LayeredDisk, LowerDisk};

    const K: u64 = 1024;

    fn spec(path: &Path, read_only: bool) -> FileSpec {
        FileSpec {
            uuid: Uuid::from_bytes([7; 16]),
            path: path.to_str().unwrap().into(),
            read_only,
            block_size: 4096,
            serial: None,
        }
    }

    fn file(len: u64) -> (tempfile::TempDir, Arc<FileDevice>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::File::create(&path).unwrap().set_len(len).unwrap();
        (dir, FileDevice::open(spec(&path, false)).unwrap())
    }

    fn write(device: &FileDevice, offset: u64, byte: u8, len: usize, fua: bool) -> Result<()> {
        let mut ops = [WriteOp::new(offset, Bytes::from(vec![byte; len]))];
        device.write(&mut ops, fua);
        let [op] = ops;
        op.result
    }

    fn read(device: &FileDevice, offset: u64, len: usize) -> Vec<u8> {
        let mut buf = vec![0xee; len];
        device.read(offset, &mut buf).unwrap();
        let mut again = vec![0; len];
        if device.try_read(offset, &mut again).unwrap() {
            assert_eq!(again, buf);
        }
        buf
    }

    #[test]
    fn reads_see_writes_and_discards() {
        let (_dir, device) = file(256 * K + 100);
        assert_eq!(device.info().size, 256 * K, "whole blocks");
        write(&device, 0, 1, 256 << 10, false).unwrap();
        write(&device, 8 * K, 2, 4096, true).unwrap();
        assert_eq!(read(&device, 4 * K, 4096), [1; 4096]);
        assert_eq!(read(&device, 8 * K, 4096), [2; 4096]);
        device.flush().unwrap();
        device.discard(0, 64 * K, false).unwrap();
        device.write_zeroes(128 * K, 64 * K, false, true).unwrap();
        let all = read(&device, 0, 256 << 10);
        let zero = |range: std::ops::Range<u64>| {
            all[range.start as usize..range.end as usize].iter().all(|b| *b == 0)
        };
        assert!(zero(0..64 * K) && zero(128 * K..192 * K) && all[64 << 10] == 1 && all[192 << 10] == 1);

        let runs = device.block_status(0, 256 * K, 100).unwrap();
        assert_eq!(runs.iter().map(|r| r.length).sum::<u64>(), 256 * K);
        let mut at = 0;
        for run in &runs {
            assert!(!run.zero || zero(at..at + run.length), "{runs:?}");
            at += run.length;
        }
        assert_eq!(device.block_status(0, 256 * K, 1).unwrap().len(), 1);
    }

    #[test]
    fn the_end_of_an_image_that_is_only_read_is_filled_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let content: Vec<u8> = (0..10_000u32).map(|n| n as u8 | 1).collect();
        std::fs::write(&path, &content).unwrap();
        let device = FileDevice::open(spec(&path, true)).unwrap();
        device.check_tail().unwrap();
        assert_eq!(device.info().size, 12 * K);
        let all = read(&device, 0, 12 << 10);
        assert_eq!(all[..10_000], content);
        assert!(all[10_000..].iter().all(|b| *b == 0));
        assert_eq!(read(&device, 8 * K, 4096), all[8 << 10..]);
        let runs = device.block_status(0, 12 * K, 9).unwrap();
        assert_eq!(runs.iter().map(|r| r.length).sum::<u64>(), 12 * K);
        assert!(!runs.last().unwrap().zero);
        std::fs::write(&path, [7; 100]).unwrap();
        assert!(device.read(0, &mut [0; 4096]).is_err(), "what was cut off is missed");
        assert!(device.refresh().unwrap());
        assert_eq!(read(&device, 0, 4096), [&[7; 100][..], &[0; 3996]].concat());
    }

    #[test]
    fn a_writable_file_whose_end_is_out_of_reach_is_refused() {
        let (_dir, device) = file(10_000);
        let error = device.check_tail().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        for part in ["10000", "1808", "truncate -s 12288", "read-only"] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
        file(12_288).1.check_tail().unwrap();
    }

    #[test]
    fn serial_numbers_tell_identities() {
        let of = |serial: &str| identity_of_serial(serial).unwrap();
        assert_eq!(of("cd-2026"), of("cd-2026"));
        assert_ne!(of("cd-2026").0, of("cd-2027").0);
        assert_eq!(of("cd-2026").1.as_deref(), Some("cd-2026"));
        let golden = Uuid::from_u128(0x0123456789abcdef0011223344556677);
        for same in ["0123456789abcdef0011223344556677", "01234567-89AB-cdef-0011-223344556677"] {
            assert_eq!(of(same), (golden, None), "what a server chose before");
        }
        let long = "x".repeat(65);
        for bad in ["", "a b", "a\n", "ä", "a/b", &long] {
            assert_eq!(identity_of_serial(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
        }
    }

    #[test]
    fn bad_requests_are_refused() {
        let (_dir, device) = file(64 * K);
        let kind = |r: Result<()>| r.unwrap_err().kind();
        let mut buf = [0; 4096];
        assert_eq!(kind(device.read(1, &mut buf)), ErrorKind::Invalid);
        assert_eq!(kind(device.read(64 * K, &mut buf)), ErrorKind::OutOfRange);
        assert_eq!(kind(device.read(u64::MAX - 4095, &mut buf)), ErrorKind::OutOfRange);
        assert_eq!(kind(write(&device, 64 * K, 1, 4096, false)), ErrorKind::OutOfRange);
        assert_eq!(kind(device.discard(0, 512, false)), ErrorKind::Invalid);
        assert_eq!(kind(device.discard(4096, u64::MAX - 4095, false)), ErrorKind::OutOfRange);
        assert!(device.block_status(0, 65 * K, 1).is_err());
    }

    #[test]
    fn a_file_that_changes_its_length_is_noticed() {
        let (dir, device) = file(64 * K);
        let path = dir.path().join("f");
        let resize = |len| std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len).unwrap();
        resize(32 * K);
        let mut buf = [0; 4096];
        assert_eq!(device.read(48 * K, &mut buf).unwrap_err().kind(), ErrorKind::Io);
        assert!(write(&device, 48 * K, 1, 4096, false).is_err(), "it must not grow again");
        assert!(device.write_zeroes(48 * K, 4096, true, false).is_err());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 32 * K);
        assert!(device.refresh().unwrap());
        assert_eq!(device.info().size, 32 * K);
        resize(128 * K);
        assert!(device.refresh().unwrap() && !device.refresh().unwrap());
        write(&device, 124 * K, 1, 4096, false).unwrap();
        resize(0);
        assert!(!device.refresh().unwrap());
        assert!(device.read(0, &mut buf).is_err());
    }

    #[test]
    fn one_writer_and_only_files() {
        let (dir, device) = file(64 * K);
        let path = dir.path().join("f");
        let kind = |r: Result<Arc<FileDevice>>| r.map(|_| ()).unwrap_err().kind();
        assert_eq!(kind(FileDevice::open(spec(&path, false))), ErrorKind::Busy);
        let reader = FileDevice::open(spec(&path, true)).unwrap();
        assert_eq!(write(&reader, 0, 1, 4096, false).unwrap_err().kind(), ErrorKind::ReadOnly);
        assert!(reader.info().read_only && reader.flush().is_ok());
        drop(device);
        FileDevice::open(spec(&path, false)).unwrap();
        std::fs::File::create(dir.path().join("empty")).unwrap();
        assert_eq!(kind(FileDevice::open(spec(&dir.path().join("empty"), false))), ErrorKind::Invalid);
        assert_eq!(kind(FileDevice::open(spec(&dir.path().join("none"), false))), ErrorKind::NotFound);
        assert!(FileDevice::open(spec(dir.path(), false)).is_err());
        assert!(!dir.path().join("none").exists());
    }

    #[test]
    fn paths_are_followed_to_their_end() {
        let (dir, _device) = file(64 * K);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path().join("f"), &link).unwrap();
        let by_link = canonical(link.to_str().unwrap()).unwrap();
        assert_eq!(by_link, canonical(dir.path().join("f").to_str().unwrap()).unwrap());
        assert_eq!(canonical("f").unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(canonical("/nonexistent/f").unwrap_err().kind(), ErrorKind::NotFound);
    }

    /// A disk whose sync fails once if this is set. It has no faster way to make zeros than to
    /// write them.
    struct Failing(AtomicBool);

    impl Layer for Failing {
        fn sync(&self, disk: &LowerDisk, purpose: SyncPurpose) -> io::Result<()> {
            if self.0.swap(false, Ordering::SeqCst) {
                std::thread::sleep(std::time::Duration::from_millis(100)); // others have the time to come in between
                return Err(io::Error::other("no sync today"));
            }
            disk.sync(purpose)
        }
        fn zero(&self, _disk: &LowerDisk, _offset: u64, _len: u64, _unmap: bool) -> io::Result<bool> {
            Ok(false)
        }
        fn run_at(&self, disk: &LowerDisk, offset: u64) -> io::Result<(u64, bool)> {
            Ok((disk.len()?.max(offset), true))
        }
    }

    /// Makes a device of this size over such a disk.
    fn failing(size: u64, fails: bool) -> (tempfile::TempDir, FileDevice, Arc<Failing>) {
        let dir = tempfile::tempdir().unwrap();
        let disk = FileDir::new(dir.path()).open("f", OpenMode::CreateNew).unwrap();
        disk.set_len(size).unwrap();
        let layer = Arc::new(Failing(AtomicBool::new(fails)));
        let disk = Arc::new(LayeredDisk::over(disk, layer.clone()));
        let device = FileDevice::over(spec(&dir.path().join("f"), false), disk).unwrap();
        (dir, device, layer)
    }

    #[test]
    fn after_a_failed_sync_nothing_is_believed() {
        let (_dir, device, _) = failing(64 * K, true);
        write(&device, 0, 1, 4096, false).unwrap();
        assert_eq!(write(&device, 4096, 1, 4096, true).unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(device.flush().unwrap_err().kind(), ErrorKind::Poisoned);
        assert_eq!(write(&device, 0, 1, 4096, false).unwrap_err().kind(), ErrorKind::Poisoned);
        assert_eq!(read(&device, 0, 4096), [1; 4096], "reads go on");
        // This disk can neither punch nor zero: the zeros have been refused, not written.
        assert_eq!(device.write_zeroes(0, 4096, true, false).unwrap_err().kind(), ErrorKind::Poisoned);
    }

    /// The system reports lost writes to only one of two syncs.
    #[test]
    fn a_sync_beside_one_that_fails_promises_nothing() {
        let (_dir, device, layer) = failing(64 * K, true);
        write(&device, 0, 1, 4096, false).unwrap();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| device.flush());
            while layer.0.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            assert_eq!(device.flush().unwrap_err().kind(), ErrorKind::Poisoned);
            assert_eq!(first.join().unwrap().unwrap_err().kind(), ErrorKind::Io);
        });
    }

    #[test]
    fn zeros_are_written_where_nothing_better_is_known() {
        let (_dir, device, _) = failing(4 << 20, false);
        write(&device, 0, 1, 4 << 20, false).unwrap();
        device.discard(4096, (2 << 20) + 4096, false).unwrap();
        let all = read(&device, 0, 4 << 20);
        let end = 4096 + (2 << 20) + 4096;
        assert!(all[..4096].iter().all(|b| *b == 1) && all[end..].iter().all(|b| *b == 1));
        assert!(all[4096..end].iter().all(|b| *b == 0));
        let runs = device.block_status(0, 4 << 20, 9).unwrap();
        assert_eq!(runs, [StatusRun { length: 4 << 20, allocated: true, zero: false }]);
    }
}
