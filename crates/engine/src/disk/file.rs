//! Files and block devices of the operating system, by positional I/O on plain file descriptors.

mod direct;
mod open;

use super::aligned::BLOCK;
use super::place::Place;
use super::{Backing, Dir, Disk, OpenMode, PROBED, SyncPurpose};
use hindcast_ring::Piece;
use open::LockedFile;
use parking_lot::Mutex;
use rustix::fs::{Advice, FallocateFlags, FlockOperation, IFlags, OFlags};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// File systems that write overwritten data to a new place, by their numbers in `statfs(2)`.
const BTRFS: rustix::fs::FsWord = 0x9123_683e;
const ZFS: rustix::fs::FsWord = 0x2fc1_2fc1;
const BCACHEFS: rustix::fs::FsWord = 0xca45_1a4e;

/// The largest size of a folio of the page cache, in bytes.
const MAX_FOLIO: u64 = 4 << 20;

/// Linux's `IOV_MAX`: the most slices that one `pwritev` takes.
const MAX_SLICES: usize = 1024;

/// A directory of the file system.
#[derive(Debug, Clone)]
pub struct FileDir {
    path: PathBuf,
    /// Directories that no link in a path below them leads out of.
    within: Vec<PathBuf>,
}

impl FileDir {
    /// Names a directory. Nothing is created or checked.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        FileDir { path: path.into(), within: Vec::new() }
    }

    /// Binds absolute paths below one of the directories `within`: no link leads an open of such a
    /// path, without a lock, out of that directory.
    pub fn bound(self, within: &[PathBuf]) -> Self {
        FileDir { within: within.to_vec(), ..self }
    }

    /// Creates the directory, with its parents, if it does not exist, and makes its name durable.
    /// Only its owner has access to a new directory.
    pub fn create(path: impl Into<PathBuf>) -> io::Result<Self> {
        let dir = FileDir::new(path);
        let missing: Vec<&Path> = dir.path.ancestors().take_while(|p| !p.as_os_str().is_empty()).collect();
        let missing = missing.into_iter().take_while(|p| !p.exists()).collect::<Vec<_>>();
        if let [new, ..] = missing[..] {
            fs::create_dir_all(parent(new))?;
            let made = fs::DirBuilder::new().mode(0o700).create(new);
            made.or_else(|e| if e.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(e) })?;
        }
        for made in missing {
            sync_dir(parent(made))?;
        }
        Ok(dir)
    }

    /// Makes a name outside of this directory durable at once, because [`Dir::sync`] does not reach
    /// it.
    fn sync_elsewhere(&self, path: &Path) -> io::Result<()> {
        let parent = parent(path);
        if parent == self.path { Ok(()) } else { sync_dir(parent) }
    }
}

/// Raises the soft limit of open files to the hard one, and returns how many files the process may
/// have open now. The soft limit is 1024 by custom, because of `select`.
pub fn allow_many_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // Where it can't be raised the soft limit is the one to live with.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn no_disk() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "neither a regular file nor a block device")
}

/// Returns the directory that holds `path`'s name.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        Some(_) => Path::new("."),
        None => path,
    }
}

pub(super) fn sync_dir(path: &Path) -> io::Result<()> {
    let dir = File::open(path)?;
    retry_on_intr(|| rustix::fs::fsync(&dir))?;
    Ok(())
}

impl Dir for FileDir {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        let is_bound =
            Path::new(name).is_absolute() && matches!(mode, OpenMode::ReadOnly | OpenMode::Existing);
        let within: &[PathBuf] = if is_bound { &self.within } else { &[] };
        Ok(Arc::new(self.open_file(&Place::of(&self.path.join(name), within)?, mode)?))
    }

    fn open_locked(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        Ok(Arc::new(self.open_and_lock(&self.path.join(name), mode, None)?))
    }

    fn open_for_flight(&self, name: &str, mode: OpenMode, wait: Duration) -> io::Result<Arc<dyn Disk>> {
        Ok(Arc::new(self.open_and_lock(&self.path.join(name), mode, Some(wait))?))
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        allow_many_files();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            // A link there would create, or lock, a file somewhere else.
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(self.path.join(name))?;
        // The lock belongs to the open file and goes with it, also when the process is killed.
        retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive))?;
        Ok(Box::new(file))
    }

    fn lock_existing(&self, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        let flags = OFlags::NOFOLLOW.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(self.path.join(name))?;
        retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive))?;
        Ok(Box::new(file))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.path.join(name);
        let place = Place::of(&path, &[])?;
        let path = if place.is_new { &place.way } else { &path };
        fs::remove_file(path)?;
        self.sync_elsewhere(path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            // A name that is not UTF-8 is none of ours.
            if entry.file_type()?.is_file()
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sync(&self, _purpose: SyncPurpose) -> io::Result<()> {
        sync_dir(&self.path)
    }
}

struct FileDisk {
    file: File,
    block: bool,
    /// The open file for writes in flight, if there may be some.
    locked: Option<LockedFile>,
    /// Many direct writes at a time are tried. Cleared when the system does not allow them here.
    scatters: AtomicBool,
    /// Reads that don't wait are tried. Cleared when the file system reports that it has no such
    /// reads.
    nowait: AtomicBool,
    /// The file, opened for direct I/O. It stays open from the first direct write to the next sync.
    direct: Mutex<Option<Arc<File>>>,
    syncs: Syncs,
}

/// Runs syncs one after another. After one failed, all fail: the kernel reports a lost write to one
/// sync only, and success to the next one.
#[derive(Default)]
struct Syncs {
    failed: Mutex<bool>,
}

impl Syncs {
    fn run(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut failed = self.failed.lock();
        if *failed {
            return Err(io::Error::other(
                "an earlier sync failed, and data that it should have made durable may be lost",
            ));
        }
        let done = sync();
        *failed = done.is_err();
        done
    }
}

impl Disk for FileDisk {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        if !self.nowait.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let want = buf.len();
        match rustix::io::preadv2(&self.file, &mut [IoSliceMut::new(buf)], offset, ReadWriteFlags::NOWAIT) {
            Ok(got) => Ok(got == want),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.nowait.store(false, Ordering::Relaxed);
                Ok(false)
            }
            Err(e) => Err(e.into()),
        }
    }

    fn read_direct(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_past_cache(buf, offset)
    }

    fn drop_cached(&self, offset: u64, len: u64) {
        // A folio that reaches beyond the range would stay in the cache.
        let (from, to) = (offset.saturating_sub(MAX_FOLIO), offset + len + MAX_FOLIO);
        let _ = rustix::fs::fadvise(&self.file, from, NonZeroU64::new(to - from), Advice::DontNeed);
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(buf, offset)
    }

    fn write_vectored_at(&self, bufs: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut rest = bufs;
        let mut at = offset;
        // Also drops leading empty slices: a write of nothing but those would look like a full
        // disk.
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let now = &rest[..rest.len().min(MAX_SLICES)];
            let done = retry_on_intr(|| rustix::io::pwritev(&self.file, now, at))?;
            if done == 0 && now.iter().any(|s| !s.is_empty()) {
                return Err(io::ErrorKind::WriteZero.into());
            }
            at += done as u64;
            if done == 0 {
                let skip = now.len();
                rest = &mut rest[skip..];
            } else {
                IoSlice::advance_slices(&mut rest, done);
            }
        }
        Ok(())
    }

    fn write_direct(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let whole = buf.len().is_multiple_of(BLOCK) && offset.is_multiple_of(BLOCK as u64);
        if whole && self.write_directly(buf, offset)? { Ok(()) } else { self.write_at(buf, offset) }
    }

    fn write_scattered(&self, pieces: &[Piece<'_>]) -> io::Result<()> {
        self.write_pieces(pieces)
    }

    fn scatters(&self) -> bool {
        self.locked.is_some() && self.scatters.load(Ordering::Relaxed)
    }

    fn sync(&self, _purpose: SyncPurpose) -> io::Result<()> {
        *self.direct.lock() = None;
        // EINTR reports no lost write, so trying again is sound; every other error is final.
        self.syncs.run(|| Ok(retry_on_intr(|| rustix::fs::fdatasync(&self.file))?))
    }

    fn len(&self) -> io::Result<u64> {
        if self.block {
            // The only portable way to ask a device. The file position is used for nothing else.
            Ok(rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0))?)
        } else {
            Ok(self.file.metadata()?.len())
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if self.block {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a block device has a fixed length"));
        }
        self.file.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.block || len == 0 {
            return Ok(());
        }
        match retry_on_intr(|| rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, len)) {
            Ok(()) => Ok(()),
            // The length must come out the same on a file system that can't reserve.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let end = offset.saturating_add(len);
                if self.len()? < end { self.set_len(end) } else { Ok(()) }
            }
            Err(e) => Err(e.into()),
        }
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry_on_intr(|| rustix::fs::fallocate(&self.file, flags, offset, len)) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn zero(&self, offset: u64, len: u64, unmap: bool) -> io::Result<bool> {
        if len == 0 {
            return Ok(true);
        }
        // On a block device both promise zeros too: discarding only where that zeroes, or writing
        // zeros.
        let flags = if unmap { FallocateFlags::PUNCH_HOLE } else { FallocateFlags::ZERO_RANGE };
        let flags = flags | FallocateFlags::KEEP_SIZE;
        match retry_on_intr(|| rustix::fs::fallocate(&self.file, flags, offset, len)) {
            Ok(()) => Ok(true),
            // The last: a device with larger blocks than the range is aligned to.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    fn run_at(&self, offset: u64) -> io::Result<(u64, bool)> {
        let len = self.len()?;
        if self.block || offset >= len {
            return Ok((len.max(offset), true));
        }
        // The file position is used for nothing else, so that another thread's seek does no harm.
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(offset)) {
            // Past the last data: a hole up to the end.
            Err(Errno::NXIO) => return Ok((len, false)),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok((len, true)),
            Err(e) => return Err(e.into()),
            Ok(data) if data > offset => return Ok((data.min(len), false)),
            Ok(_) => {}
        }
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Hole(offset)) {
            Ok(hole) if hole > offset => Ok((hole.min(len), true)),
            // Cut off, or punched, meanwhile.
            Ok(_) | Err(Errno::NXIO) => Ok((len, true)),
            Err(e) => Err(e.into()),
        }
    }

    fn modified(&self) -> io::Result<Option<u64>> {
        if self.block {
            return Ok(None);
        }
        let meta = self.file.metadata()?;
        let nanos = meta.mtime().checked_mul(1_000_000_000).and_then(|n| n.checked_add(meta.mtime_nsec()));
        Ok(nanos.and_then(|nanos| u64::try_from(nanos).ok()))
    }

    fn backing_available(&self) -> io::Result<Option<Backing>> {
        if self.block {
            return Ok(None);
        }
        let fs = rustix::fs::fstatvfs(&self.file)?;
        if fs.f_blocks == 0 {
            // Some file systems in user space tell no sizes.
            return Ok(None);
        }
        let available = fs.f_bavail.saturating_mul(fs.f_frsize);
        Ok(Some(Backing { file_system: self.file.metadata()?.dev(), available }))
    }

    fn will_need(&self, offset: u64, len: u64) {
        let _ = rustix::fs::fadvise(&self.file, offset, NonZeroU64::new(len), Advice::WillNeed);
    }

    fn overwrites_elsewhere(&self) -> io::Result<bool> {
        if self.block {
            return Ok(false);
        }
        Ok(match rustix::fs::fstatfs(&self.file)?.f_type {
            BTRFS => !rustix::fs::ioctl_getflags(&self.file)?.contains(IFlags::NOCOW),
            ZFS | BCACHEFS => true,
            _ => false,
        })
    }

    fn answers(&self) -> io::Result<()> {
        let len = self.len()?;
        let mut block = vec![0; len.min(PROBED) as usize];
        let mut read = |at: u64| {
            // What is cached says nothing about the disk.
            if self.read_directly(&mut [0; BLOCK], at)? {
                return Ok(());
            }
            self.drop_cached(at, PROBED);
            self.read_at(&mut block, at)
        };
        // The last whole block.
        read(0).or_else(|_| read(len.saturating_sub(PROBED) / PROBED * PROBED))
    }

    fn advise_random(&self) {
        // Advice: when it is not taken nothing is lost.
        let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::Random);
    }

    fn is_block_device(&self) -> bool {
        self.block
    }

    fn physical_block(&self) -> io::Result<Option<u64>> {
        if self.block {
            return Ok(Some(rustix::fs::ioctl_blkpbszget(&self.file)?.into()));
        }
        Ok(physical_block_below(self.file.metadata()?.dev()))
    }
}

/// Returns the physical block size, in bytes, of the block device that a file system lies on, or
/// `None` if there is no such device, or the size is not known.
fn physical_block_below(device: u64) -> Option<u64> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    // A partition has no queue of its own; its disk, the directory above it, has.
    let queues = ["queue", "../queue"].map(|queue| device.join(queue).join("physical_block_size"));
    queues.iter().find_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn dir() -> (tempfile::TempDir, FileDir) {
        let tmp = tempfile::tempdir().unwrap();
        let dir = FileDir::new(tmp.path());
        (tmp, dir)
    }

    #[test]
    fn modes() {
        super::super::tests::modes(&dir().1);
    }

    #[test]
    fn a_lost_write_is_told_to_everybody() {
        let syncs = Syncs::default();
        syncs.run(|| Ok(())).unwrap();
        let lost = || Err(io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(syncs.run(lost).unwrap_err().kind(), io::ErrorKind::StorageFull);
        // The kernel would say that all is well.
        assert!(syncs.run(|| Ok(())).is_err());
    }

    #[test]
    fn contents() {
        super::super::tests::contents(&dir().1);
    }

    #[test]
    fn locks() {
        super::super::tests::locks(&dir().1);
    }

    #[test]
    fn disk_locks() {
        super::super::tests::disk_locks(&dir().1);
    }

    #[test]
    fn a_lock_file_that_is_a_link_is_refused() {
        let (tmp, dir) = dir();
        std::os::unix::fs::symlink(tmp.path().join("elsewhere"), tmp.path().join("lock")).unwrap();
        assert!(dir.lock("lock").is_err());
        assert!(!tmp.path().join("elsewhere").exists());
    }

    #[test]
    fn locks_reach_a_disk_by_each_of_its_names() {
        let (tmp, dir) = dir();
        let _held = dir.open_locked("a", OpenMode::CreateNew).unwrap();
        fs::hard_link(tmp.path().join("a"), tmp.path().join("hard")).unwrap();
        std::os::unix::fs::symlink("a", tmp.path().join("soft")).unwrap();
        for name in ["hard", "soft", tmp.path().join("a").to_str().unwrap()] {
            let refused = dir.open_locked(name, OpenMode::Existing).err().unwrap();
            assert_eq!(refused.kind(), io::ErrorKind::WouldBlock, "{name}");
        }
    }

    #[test]
    fn who_locks_may_open_many_files() {
        let (_tmp, dir) = dir();
        let _lock = dir.lock("lock").unwrap();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }

    #[test]
    fn vectored_writes_beyond_the_slice_limit() {
        let (_tmp, dir) = dir();
        let disk = dir.open("a", OpenMode::CreateNew).unwrap();
        let data: Vec<u8> = (0..5000u32).flat_map(|i| i.to_le_bytes()).collect();
        let mut slices: Vec<IoSlice<'_>> = vec![IoSlice::new(&[])];
        for part in data.chunks(4) {
            slices.push(IoSlice::new(part));
            slices.push(IoSlice::new(&[]));
        }
        // More empty slices in a row than one call takes.
        slices.extend((0..2 * MAX_SLICES).map(|_| IoSlice::new(&[])));
        slices.push(IoSlice::new(b"end"));
        disk.write_vectored_at(&mut slices, 7).unwrap();
        let mut back = vec![0; data.len() + 3];
        disk.read_at(&mut back, 7).unwrap();
        assert_eq!(&back[..data.len()], data);
        assert_eq!(&back[data.len()..], b"end");
        assert_eq!(disk.len().unwrap(), 7 + back.len() as u64);
    }

    #[test]
    fn scattered_writes() {
        let (tmp, dir) = dir();
        let path = tmp.path().join("a");
        let name = path.to_str().unwrap();
        let for_flight = |mode| dir.open_for_flight(name, mode, Duration::ZERO);
        // In the first one no writes are in flight, and the cache takes them.
        for disk in [dir.open(name, OpenMode::CreateNew), for_flight(OpenMode::Existing)] {
            let disk = disk.unwrap();
            let mut expected = vec![3; 8 << 20];
            disk.write_at(&expected, 0).unwrap();
            let contents: Vec<Vec<u8>> = (0..250u32)
                .map(|n| vec![n as u8; if n % 7 == 0 { 1000 } else { 4096 * (1 + n as usize % 5) }])
                .collect();
            let mut pieces: Vec<(&[u8], u64)> = Vec::new();
            for (index, content) in contents.iter().enumerate() {
                pieces.push((content, index as u64 * 24_576));
                expected[index * 24_576..][..content.len()].copy_from_slice(content);
            }
            let long = vec![9; 800 << 10];
            pieces.push((&long, 7 << 20));
            expected[7 << 20..][..long.len()].copy_from_slice(&long);
            for _ in 0..2 {
                disk.write_scattered(&pieces).unwrap();
                disk.sync(SyncPurpose::Apply).unwrap();
                let mut found = vec![0; expected.len()];
                disk.read_at(&mut found, 0).unwrap();
                assert!(found == expected);
            }
        }
    }

    #[test]
    fn a_lock_lasts_as_long_as_writes_in_flight() {
        let (tmp, dir) = dir();
        let disk =
            dir.open_and_lock(&tmp.path().join("a"), OpenMode::CreateNew, Some(Duration::ZERO)).unwrap();
        let Some(locked) = &disk.locked else {
            println!("SKIPPED: this file system does not suit writes in flight");
            return;
        };
        // A write in flight holds the open file, as this does.
        let in_flight = locked.as_fd().try_clone_to_owned().unwrap();
        drop(disk);
        let refused = dir.open_locked("a", OpenMode::Existing).err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        let wait = Duration::from_secs(30);
        std::thread::scope(|scope| {
            let next = scope.spawn(|| dir.open_for_flight("a", OpenMode::Existing, wait).map(|_| ()));
            std::thread::sleep(Duration::from_millis(100));
            drop(in_flight);
            next.join().unwrap().unwrap();
        });
    }

    #[test]
    fn absolute_paths_and_made_directories() {
        let (tmp, dir) = dir();
        let elsewhere = FileDir::create(tmp.path().join("x/y/z")).unwrap();
        let path = tmp.path().join("x/y/z/pv");
        let name = path.to_str().unwrap();
        dir.open(name, OpenMode::CreateNew).unwrap().write_at(b"pv", 0).unwrap();
        assert_eq!(elsewhere.list().unwrap(), ["pv"]);
        dir.remove(name).unwrap();
        assert!(elsewhere.list().unwrap().is_empty());
        assert!(FileDir::new(tmp.path().join("none")).list().is_err());
    }

    #[test]
    fn no_open_waits_for_somebody_at_the_other_end() {
        let (tmp, dir) = dir();
        let fifo = tmp.path().join("fifo");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).unwrap();
        std::os::unix::fs::symlink("fifo", tmp.path().join("link")).unwrap();
        for name in ["fifo", "link"] {
            for mode in [OpenMode::ReadOnly, OpenMode::Existing, OpenMode::Create] {
                let refused = dir.open(name, mode).err().unwrap();
                assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{name} {mode:?}");
            }
        }
    }

    #[test]
    fn a_made_directory_is_its_owners_alone() {
        let (tmp, _) = dir();
        let path = tmp.path().join("x/pool");
        FileDir::create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o750)).unwrap();
        FileDir::create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o750, "one that is there stays as it is");
    }

    #[test]
    fn not_a_file() {
        let (tmp, dir) = dir();
        fs::create_dir(tmp.path().join("d")).unwrap();
        assert!(dir.open("d", OpenMode::ReadOnly).is_err());
        let null = dir.open("/dev/null", OpenMode::Create).err().unwrap();
        assert_eq!(null.kind(), io::ErrorKind::InvalidInput);
        assert!(dir.list().unwrap().is_empty());
    }

    #[test]
    fn zeroing_and_holes() {
        let (_tmp, dir) = dir();
        let disk = dir.open("a", OpenMode::CreateNew).unwrap();
        disk.write_at(&[5; 1 << 20], 0).unwrap();
        disk.sync(SyncPurpose::Apply).unwrap();
        let mut buf = vec![1; 1 << 20];
        for (at, unmap) in [(0, true), (512 << 10, false)] {
            // Not every file system can; one that says so has done it.
            if disk.zero(at, 256 << 10, unmap).unwrap() {
                disk.read_at(&mut buf, 0).unwrap();
                let at = at as usize;
                assert!(buf[at..at + (256 << 10)].iter().all(|b| *b == 0));
                assert_eq!(buf[at + (256 << 10)], 5);
            }
        }
        assert_eq!(disk.len().unwrap(), 1 << 20);
        disk.set_len(4 << 20).unwrap();
        // The runs cover the file once, in order, whatever the file system knows of holes.
        let mut at = 0;
        while at < 4 << 20 {
            let (end, data) = disk.run_at(at).unwrap();
            assert!(end > at && end <= 4 << 20, "{at} to {end}");
            if !data {
                disk.read_at(&mut buf[..512], at).unwrap();
                assert!(buf[..512].iter().all(|b| *b == 0));
            }
            at = end;
        }
        assert_eq!(disk.run_at(4 << 20).unwrap(), (4 << 20, true));
        assert_eq!(disk.run_at(u64::MAX).unwrap(), (u64::MAX, true));
    }

    #[test]
    fn backing_is_known_and_cached_reads_need_no_wait() {
        let (_tmp, dir) = dir();
        let disk = dir.open("a", OpenMode::CreateNew).unwrap();
        disk.advise_random();
        disk.write_at(&[5; 4096], 0).unwrap();
        assert!(disk.backing_available().unwrap().unwrap().available > 0);
        let mut buf = [0; 4096];
        // Not every file system has such reads; one that answers true has filled the buffer.
        if disk.try_read_at(&mut buf, 0).unwrap() {
            assert_eq!(buf, [5; 4096]);
        }
        assert!(!disk.try_read_at(&mut buf, 1).unwrap(), "reaches past the end");
    }
}
