//! Images outside of the pool that volumes rest on. An image is opened when it is needed, and
//! checked at each use.
//!
//! If an image is missing or has changed, the reads that need it fail with
//! [`ErrorKind::Unavailable`], and nothing else fails: the pool opens without the image, and tries
//! it again at each use. A change shows in the image's length and, for a file, in the time of its
//! last modification. That is a guard against mistakes, not a proof.

use crate::catalog::ImageRecord;
use crate::disk::{Dir, Disk, OpenMode};
use crate::error::{Error, ErrorKind, Result};
use parking_lot::RwLock;
use std::sync::Arc;

/// An image that a volume rests on: the record of what it was, and the disk while it is open. Its
/// content is never changed.
pub(crate) struct ExternalImage {
    pub(crate) record: ImageRecord,
    dir: Arc<dyn Dir>,
    /// The open disk, after a check found it unchanged.
    disk: RwLock<Option<Arc<dyn Disk>>>,
}

impl ExternalImage {
    /// Makes an image that is not opened yet.
    pub(crate) fn new(record: ImageRecord, dir: Arc<dyn Dir>) -> ExternalImage {
        ExternalImage { record, dir, disk: RwLock::new(None) }
    }

    /// Describes the image at `path` as it is now, for a volume of `size` bytes that is to show it.
    /// A `size` of 0 stands for the length of the image.
    pub(crate) fn describe(dir: &dyn Dir, path: &str, size: u64) -> Result<ImageRecord> {
        let failed = |e| Error::io(format!("open the image {path}"), e);
        let disk = dir.open(path, OpenMode::ReadOnly).map_err(failed)?;
        let (len, modified) = look(&*disk).map_err(failed)?;
        let shown = if size == 0 { len } else { len.min(size) };
        Ok(ImageRecord { path: path.to_owned(), len, modified, shown })
    }

    /// Fills `out` from byte `at`. Bytes beyond what is shown are zeros. Returns `Ok(false)` if the
    /// read would have to wait for a disk and `may_block` is false.
    pub(crate) fn read(&self, out: &mut [u8], at: u64, may_block: bool) -> Result<bool> {
        let there = self.record.shown.saturating_sub(at).min(out.len() as u64) as usize;
        let (data, beyond) = out.split_at_mut(there);
        beyond.fill(0);
        if data.is_empty() {
            return Ok(true);
        }
        self.with(|disk| {
            if may_block {
                return disk.read_at(data, at).map(|()| true);
            }
            disk.try_read_at(data, at)
        })
    }

    /// Returns what lies at `at`, which is in front of the end of what is shown, as
    /// [`Disk::run_at`] does: `(end, data)`.
    pub(crate) fn run_at(&self, at: u64) -> Result<(u64, bool)> {
        let (end, data) = self.with(|disk| disk.run_at(at))?;
        Ok((end.min(self.record.shown), data))
    }

    /// Checks that the image exists and has not changed.
    pub(crate) fn check(&self) -> Result<()> {
        self.with(|_| Ok(()))
    }

    /// Runs `act` on the disk. The image is checked afterwards, because what was read before a
    /// change is right.
    fn with<T>(&self, act: impl FnOnce(&dyn Disk) -> std::io::Result<T>) -> Result<T> {
        let held = self.disk.read().clone();
        let disk = match held {
            Some(disk) => disk,
            None => self.dir.open(&self.record.path, OpenMode::ReadOnly).map_err(|e| self.unavailable(e))?,
        };
        let done = act(&*disk);
        match look(&*disk) {
            Ok(found) if found == (self.record.len, self.record.modified) => {}
            looked => {
                // The next look may find another file of that name.
                *self.disk.write() = None;
                let changed = || std::io::Error::other("it was changed after the volume was created");
                return Err(self.unavailable(looked.err().unwrap_or_else(changed)));
            }
        }
        let done = done.map_err(|e| Error::io(format!("read the image {}", self.record.path), e))?;
        if self.disk.read().is_none() {
            *self.disk.write() = Some(disk);
        }
        Ok(done)
    }

    fn unavailable(&self, source: std::io::Error) -> Error {
        let context = format!("use the image {} that the volume depends on", self.record.path);
        Error::with_source(ErrorKind::Unavailable, context, source)
    }
}

/// Returns the length, and the time of the last modification (0: not known).
fn look(disk: &dyn Disk) -> std::io::Result<(u64, u64)> {
    Ok((disk.len()?, disk.modified()?.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::MemDir;

    #[test]
    fn what_was_changed_is_not_served_until_it_is_what_it_was() {
        let dir = Arc::new(MemDir::new());
        let disk = dir.open("i", OpenMode::CreateNew).unwrap();
        disk.write_at(&[7; 1000], 0).unwrap();
        let image = ExternalImage::new(ExternalImage::describe(&*dir, "i", 0).unwrap(), dir.clone());
        let mut buf = [1; 1024];
        assert!(image.read(&mut buf, 0, true).unwrap());
        assert!(buf[..1000].iter().all(|b| *b == 7) && buf[1000..].iter().all(|b| *b == 0));
        disk.set_len(900).unwrap();
        let kind = |r: Result<bool>| r.unwrap_err().kind();
        assert_eq!(kind(image.read(&mut buf, 0, true)), ErrorKind::Unavailable);
        dir.remove("i").unwrap();
        assert_eq!(kind(image.read(&mut buf, 0, false)), ErrorKind::Unavailable);
        assert!(image.read(&mut buf, 1000, true).unwrap(), "zeros need no image");
        dir.open("i", OpenMode::CreateNew).unwrap().write_at(&[8; 1000], 0).unwrap();
        assert!(image.read(&mut buf[..512], 512, true).unwrap());
        assert!(buf[..488].iter().all(|b| *b == 8) && buf[488..512].iter().all(|b| *b == 0));
    }

    #[test]
    fn a_volume_may_show_less_than_there_is() {
        let dir = Arc::new(MemDir::new());
        dir.open("i", OpenMode::CreateNew).unwrap().write_at(&[7; 1000], 0).unwrap();
        let image = ExternalImage::new(ExternalImage::describe(&*dir, "i", 512).unwrap(), dir);
        let mut buf = [1; 1024];
        assert!(image.read(&mut buf, 0, true).unwrap());
        assert!(buf[..512].iter().all(|b| *b == 7) && buf[512..].iter().all(|b| *b == 0));
        assert_eq!(image.run_at(0).unwrap(), (512, true));
        assert!(ExternalImage::describe(&MemDir::new(), "none", 0).is_err());
    }
}
