//! ext2, ext3 and ext4. A journal that was not played back is applied in memory.

use crate::disk::Section;
use crate::failure::{Failure, FailureKind, Result};
use crate::file_system::{Bounds, Entries, FileSystem, last_name, parts, pass_on};
use crate::jbd2;
use crate::page::Page;
use crate::superblock::Superblock;
use ext4_view::{Ext4, Ext4Error, FileType, Metadata, Path};
use hindcast_api::{FileEntry, FileKind, name_text};
use jiff::Timestamp;

/// An opened file system of Linux's ext family.
pub(crate) struct Ext {
    fs: Ext4,
}

impl Ext {
    pub(crate) fn open(section: &Section) -> Result<Self> {
        let superblock = Superblock::read(section)?;
        // The parser's own replay neither follows a journal past its end to its beginning nor takes
        // back what later transactions revoke. It gets a file system that needs none.
        let section = match superblock.needs_recovery() {
            true => Superblock::settle(section, jbd2::replay(section, &superblock)?)?,
            false => section.clone(),
        };
        let fs = Ext4::load(Box::new(section));
        Ok(Ext { fs: fs.map_err(|e| failure(&e, "open the file system"))? })
    }

    fn described(&self, name: &[u8], path: &[u8], metadata: &Metadata) -> FileEntry {
        let kind = kind(metadata.file_type());
        let target = match kind {
            FileKind::Symlink => self.fs.read_link(path).ok().map(|target| name_text(target.as_ref())),
            _ => None,
        };
        let modified = metadata.modified();
        let nanoseconds = i32::try_from(modified.nanoseconds()).unwrap_or(0);
        FileEntry {
            name: name_text(name),
            kind,
            size: metadata.len(),
            mode: Some(u32::from(metadata.mode())),
            uid: Some(metadata.uid()),
            gid: Some(metadata.gid()),
            modified: Timestamp::new(modified.seconds(), nanoseconds).ok(),
            target,
        }
    }
}

/// Returns a path from the root. The parser follows links and `..` itself.
fn rooted(path: &[u8]) -> Result<Vec<u8>> {
    let rooted = [b"/".as_slice(), &parts(path).collect::<Vec<_>>().join(&b'/')].concat();
    match Path::try_from(rooted.as_slice()) {
        Ok(_) => Ok(rooted),
        Err(_) => Err(Failure::invalid(format!("{}: no file can have this path", name_text(path)))),
    }
}

impl FileSystem for Ext {
    fn name(&self) -> &'static str {
        "ext4"
    }

    fn label(&self) -> Option<String> {
        Some(self.fs.label().display().to_string()).filter(|label| !label.is_empty())
    }

    fn entry(&self, path: &[u8]) -> Result<FileEntry> {
        let path = rooted(path)?;
        let metadata = match self.fs.metadata(path.as_slice()) {
            Err(Ext4Error::NotFound | Ext4Error::TooManySymlinks) => {
                self.fs.symlink_metadata(path.as_slice())
            }
            found => found,
        };
        let metadata = metadata.map_err(|e| failure(&e, &name_text(&path)))?;
        Ok(self.described(last_name(&path), &path, &metadata))
    }

    fn list(&self, path: &[u8], bounds: &Bounds) -> Result<Entries> {
        let path = rooted(path)?;
        let failed = |e: &Ext4Error| failure(e, &name_text(&path));
        let mut page = Page::new(bounds.after.clone(), bounds.limit);
        for entry in self.fs.read_dir(path.as_slice()).map_err(|e| failed(&e))? {
            let entry = entry.map_err(|e| failed(&e))?;
            let name = entry.file_name().as_ref().to_vec();
            page.offer(&name, entry);
        }
        let (found, has_more) = page.finish();
        let described = |(name, entry): (Vec<u8>, ext4_view::DirEntry)| {
            let metadata = entry.metadata().map_err(|e| failed(&e))?;
            Ok(self.described(&name, entry.path().as_ref(), &metadata))
        };
        Ok((found.into_iter().map(described).collect::<Result<_>>()?, has_more))
    }

    fn read(
        &self,
        path: &[u8],
        offset: u64,
        length: u64,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let path = rooted(path)?;
        let failed = |e: &Ext4Error| failure(e, &name_text(&path));
        let mut file = self.fs.open(path.as_slice()).map_err(|e| failed(&e))?;
        if offset >= file.metadata().len() {
            return Ok(());
        }
        file.seek_to(offset).map_err(|e| failed(&e))?;
        pass_on(length, |out| file.read_bytes(out).map_err(|e| failed(&e)), take)
    }
}

fn kind(kind: FileType) -> FileKind {
    match kind {
        FileType::Regular => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    }
}

fn failure(error: &Ext4Error, what: &str) -> Failure {
    if let Some(failure) = error.as_io().and_then(|inner| inner.downcast_ref::<Failure>()) {
        return failure.clone();
    }
    let kind = match error {
        Ext4Error::NotFound => FailureKind::NotFound,
        Ext4Error::IsADirectory
        | Ext4Error::NotADirectory
        | Ext4Error::IsASpecialFile
        | Ext4Error::PathTooLong
        | Ext4Error::MalformedPath
        | Ext4Error::NotASymlink
        | Ext4Error::TooManySymlinks => FailureKind::Invalid,
        _ => FailureKind::Unsupported,
    };
    Failure::new(kind, format!("{what}: {error}"))
}
