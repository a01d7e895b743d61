//! A small file that is replaced as a whole. After a crash it holds either the old or the new
//! content.
//!
//! The file begins with a line of text, `hindcast KIND VERSION LENGTH CRC32C`. LENGTH bytes of
//! content follow the line. Content that does not verify is never used, because it decides which
//! clients may see which data.

use hindcast_engine::disk::{Dir, OpenMode, SyncPurpose};
use hindcast_engine::{Error, ErrorKind, Result};
use std::io;
use std::sync::Arc;

/// Number of bytes in which the header line must end.
const MAX_HEADER: usize = 128;
/// Maximum size of the content in bytes. It limits the memory that a damaged file can use.
const MAX_CONTENT: usize = 64 << 20;

/// A file in a directory that is replaced as a whole.
pub(crate) struct DurableFile {
    dir: Arc<dyn Dir>,
    name: String,
    /// Word in the header that names the kind of the content.
    kind: &'static str,
    version: u32,
}

impl DurableFile {
    pub(crate) fn new(dir: Arc<dyn Dir>, name: impl Into<String>, kind: &'static str, version: u32) -> Self {
        DurableFile { dir, name: name.into(), kind, version }
    }

    fn temporary(&self) -> String {
        format!("{}.new", self.name)
    }

    fn io(&self, verb: &str, error: io::Error) -> Error {
        Error::io(format!("{verb} {}", self.name), error)
    }

    /// Returns the content, or `None` if it was never written. It removes what an interrupted
    /// [`save`](Self::save) left.
    pub(crate) fn load(&self) -> Result<Option<Vec<u8>>> {
        // What a crash left of a replacement that was never acknowledged.
        self.discard(&self.temporary())?;
        self.read()
    }

    /// Returns the content, or `None` if it was never written. It changes no file.
    pub(crate) fn read(&self) -> Result<Option<Vec<u8>>> {
        let disk = match self.dir.open(&self.name, OpenMode::ReadOnly) {
            Ok(disk) => disk,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(self.io("open", e)),
        };
        let len = disk.len().map_err(|e| self.io("read", e))?;
        let len = usize::try_from(len).ok().filter(|len| *len <= MAX_HEADER + MAX_CONTENT);
        let len = len.ok_or_else(|| self.damaged("it is too long"))?;
        let mut bytes = vec![0; len];
        disk.read_at(&mut bytes, 0).map_err(|e| self.io("read", e))?;
        self.verify(bytes).map(Some)
    }

    fn damaged(&self, why: &str) -> Error {
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "read {}: {why}; restore the file from a backup, or move it away to start with an empty one",
                self.name
            ),
        )
    }

    /// Checks the bytes of a whole file, and returns the content.
    fn verify(&self, mut bytes: Vec<u8>) -> Result<Vec<u8>> {
        let end = bytes.iter().take(MAX_HEADER).position(|b| *b == b'\n');
        let end = end.ok_or_else(|| self.damaged("it has no header"))?;
        let content = bytes.split_off(end + 1);
        let header = std::str::from_utf8(&bytes[..end]).unwrap_or("");
        let words: Vec<&str> = header.split(' ').collect();
        let ["hindcast", kind, version, len, crc] = words[..] else {
            return Err(self.damaged("it has no header"));
        };
        if kind != self.kind {
            return Err(self.damaged(&format!("it contains {kind}, not {}", self.kind)));
        }
        if version.parse() != Ok(self.version) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "read {}: its version is {version}, and this program reads version {} only",
                    self.name, self.version
                ),
            ));
        }
        if len.parse() != Ok(content.len()) {
            return Err(self.damaged("its length differs from the length in its header"));
        }
        if crc != format!("{:08x}", crc_fast::crc32_iscsi(&content)) {
            return Err(self.damaged("its checksum does not match"));
        }
        Ok(content)
    }

    /// Replaces the content. After success, the new content survives a power loss. After a failure,
    /// the file has the old or the new content. Content that exceeds the limit of `load` is
    /// refused, and the old content stays.
    pub(crate) fn save(&self, content: &[u8]) -> Result<()> {
        if content.len() > MAX_CONTENT {
            let text =
                format!("write {}: its content would exceed the limit of {MAX_CONTENT} bytes", self.name);
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        let temporary = self.temporary();
        self.discard(&temporary)?;
        let crc = crc_fast::crc32_iscsi(content);
        let mut bytes =
            format!("hindcast {} {} {} {crc:08x}\n", self.kind, self.version, content.len()).into_bytes();
        bytes.extend_from_slice(content);
        let written = || -> io::Result<()> {
            // A file of a data directory is its owner's alone (0600), which secrets need.
            let disk = self.dir.open(&temporary, OpenMode::CreateNew)?;
            disk.write_at(&bytes, 0)?;
            disk.sync(SyncPurpose::Catalog)?;
            self.dir.rename(&temporary, &self.name)?;
            self.dir.sync(SyncPurpose::Dir)
        };
        written().map_err(|e| self.io("write", e))
    }

    /// Removes the file, if it exists.
    pub(crate) fn remove(&self) -> Result<()> {
        self.discard(&self.temporary())?;
        if self.discard(&self.name)? {
            self.dir.sync(SyncPurpose::Dir).map_err(|e| self.io("remove", e))?;
        }
        Ok(())
    }

    /// Removes a file. Returns whether it existed.
    fn discard(&self, name: &str) -> Result<bool> {
        match self.dir.remove(name) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(self.io("remove", e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_engine::disk::{Disk, FileDir, Layer, LayeredDir, LowerDisk, MemDir};
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn file(dir: &Arc<dyn Dir>) -> DurableFile {
        DurableFile::new(dir.clone(), "t.state", "things", 3)
    }

    fn memory() -> Arc<dyn Dir> {
        Arc::new(MemDir::new())
    }

    #[test]
    fn what_was_saved_is_loaded() {
        let dir = memory();
        assert_eq!(file(&dir).load().unwrap(), None);
        for content in [&b"one"[..], b"", b"three\n\0"] {
            file(&dir).save(content).unwrap();
            assert_eq!(file(&dir).load().unwrap().as_deref(), Some(content));
            assert_eq!(dir.list().unwrap(), ["t.state"]);
        }
        file(&dir).remove().unwrap();
        file(&dir).remove().unwrap();
        assert_eq!(file(&dir).load().unwrap(), None);
    }

    #[test]
    fn what_could_not_be_loaded_is_not_saved() {
        let dir = memory();
        file(&dir).save(b"old").unwrap();
        let mut large = vec![b'x'; MAX_CONTENT];
        file(&dir).save(&large).unwrap();
        assert_eq!(file(&dir).load().unwrap().map(|content| content.len()), Some(MAX_CONTENT));
        large.push(b'x');
        assert_eq!(file(&dir).save(&large).unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(file(&dir).load().unwrap().map(|content| content.len()), Some(MAX_CONTENT));
        assert_eq!(dir.list().unwrap(), ["t.state"]);
    }

    #[test]
    fn golden_bytes() {
        let dir = memory();
        file(&dir).save(b"123456789").unwrap();
        let disk = dir.open("t.state", OpenMode::ReadOnly).unwrap();
        let mut bytes = vec![0; usize::try_from(disk.len().unwrap()).unwrap()];
        disk.read_at(&mut bytes, 0).unwrap();
        assert_eq!(std::str::from_utf8(&bytes), Ok("hindcast things 3 9 e3069283\n123456789"));
    }

    #[test]
    fn only_the_owner_may_read_it() {
        let tmp = tempfile::tempdir().unwrap();
        let dir: Arc<dyn Dir> = Arc::new(FileDir::new(tmp.path()));
        // A leftover that other users could read does not pass its permissions on.
        std::fs::write(tmp.path().join("t.state.new"), "x").unwrap();
        file(&dir).save(b"secret").unwrap();
        let mode = std::fs::metadata(tmp.path().join("t.state")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    fn put(dir: &Arc<dyn Dir>, name: &str, bytes: &[u8]) {
        let _ = dir.remove(name);
        dir.open(name, OpenMode::CreateNew).unwrap().write_at(bytes, 0).unwrap();
    }

    #[test]
    fn a_torn_replacement_changes_nothing() {
        let dir = memory();
        file(&dir).save(b"old").unwrap();
        for torn in [&b""[..], b"hind", b"hindcast things 3 3 00000000\nne"] {
            put(&dir, "t.state.new", torn);
            assert_eq!(file(&dir).load().unwrap().as_deref(), Some(&b"old"[..]));
            assert_eq!(dir.list().unwrap(), ["t.state"], "the leftover is gone");
        }
        put(&dir, "t.state.new", b"x");
        file(&dir).save(b"new").unwrap();
        assert_eq!(file(&dir).load().unwrap().as_deref(), Some(&b"new"[..]));
    }

    #[test]
    fn every_damage_is_found() {
        let dir = memory();
        file(&dir).save(b"content of the file").unwrap();
        let disk = dir.open("t.state", OpenMode::ReadOnly).unwrap();
        let mut good = vec![0; usize::try_from(disk.len().unwrap()).unwrap()];
        disk.read_at(&mut good, 0).unwrap();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            put(&dir, "t.state", &bad);
            assert!(file(&dir).load().is_err(), "bit {bit}");
        }
        for len in 0..good.len() {
            put(&dir, "t.state", &good[..len]);
            assert_eq!(file(&dir).load().unwrap_err().kind(), ErrorKind::Corrupt, "{len} bytes");
        }
        put(&dir, "t.state", &good);
        let other = DurableFile::new(dir.clone(), "t.state", "things", 4);
        assert_eq!(other.load().unwrap_err().kind(), ErrorKind::Unsupported);
        let other = DurableFile::new(dir, "t.state", "others", 3);
        assert_eq!(other.load().unwrap_err().kind(), ErrorKind::Corrupt);
    }

    /// A directory whose operations fail from the nth on, as if the process had died there. Bytes
    /// that were written and not synced are then torn.
    struct Dying(AtomicUsize);

    impl Dying {
        fn step(&self) -> io::Result<()> {
            let before = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
            before.map(|_| ()).map_err(|_| io::Error::other("died"))
        }
    }

    impl Layer for Dying {
        fn open(
            &self,
            _name: &str,
            _mode: OpenMode,
            open: &dyn Fn() -> io::Result<Arc<dyn Disk>>,
        ) -> io::Result<Arc<dyn Disk>> {
            self.step()?;
            open()
        }
        fn remove(&self, dir: &dyn Dir, name: &str) -> io::Result<()> {
            self.step()?;
            dir.remove(name)
        }
        fn rename(&self, dir: &dyn Dir, from: &str, to: &str) -> io::Result<()> {
            self.step()?;
            dir.rename(from, to)
        }
        fn sync_names(&self, dir: &dyn Dir, purpose: SyncPurpose) -> io::Result<()> {
            self.step()?;
            dir.sync(purpose)
        }
        fn write_at(&self, disk: &LowerDisk, buf: &[u8], offset: u64) -> io::Result<()> {
            // Half of it always gets there.
            disk.write_at(&buf[..buf.len() / 2], offset)?;
            self.step()?;
            disk.write_at(buf, offset)
        }
        fn sync(&self, disk: &LowerDisk, purpose: SyncPurpose) -> io::Result<()> {
            self.step()?;
            disk.sync(purpose)
        }
    }

    #[test]
    fn a_death_at_any_step_leaves_the_old_or_the_new() {
        let mut outcomes = [0, 0];
        for steps in 0..20 {
            let dir = memory();
            file(&dir).save(b"the old content").unwrap();
            let dying = Arc::new(Dying(AtomicUsize::new(steps)));
            let dying: Arc<dyn Dir> = Arc::new(LayeredDir::over(dir.clone(), dying));
            let saved = file(&dying).save(b"the new content, which is longer");
            let now = file(&dir).load().unwrap().unwrap();
            if saved.is_ok() {
                assert_eq!(now, b"the new content, which is longer");
                outcomes[1] += 1;
            } else {
                assert!(now == b"the old content" || now == b"the new content, which is longer");
                outcomes[0] += 1;
            }
        }
        assert!(outcomes[0] >= 5 && outcomes[1] > 0, "{outcomes:?}");
    }
}
