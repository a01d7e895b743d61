//! ext2, ext3 and ext4 (Linux, Documentation/filesystems/ext4).
//!
//! The reader follows extents and block maps, and reads directories from their beginning to their
//! end, so that it needs neither hashes of names nor their order. What was allocated and never
//! written is zeros. A journal that was not played back is applied in memory. Content that is
//! encrypted or in its inode is refused.

mod inode;
mod jbd2;
mod superblock;

use crate::disk::Section;
use crate::failure::{Failure, FailureKind, Result};
use crate::file_system::{Bounds, Entries, FileSystem, Part, Take, parts, pass_on, unknown};
use crate::page::Page;
use hindcast_api::{FileEntry, FileKind, name_text};
use inode::Inode;
use superblock::{Superblock, le16, le32};

/// Inode of the root directory.
const ROOT: u32 = 2;
/// Largest number of links that a path may lead through.
const MAX_LINKS: u32 = 40;
/// Largest size of a directory, in bytes. It bounds the work of a search.
const MAX_DIRECTORY: u64 = 1 << 30;
/// Length of the head of an entry of a directory.
const ENTRY: usize = 8;
/// Length of an entry in directories with blocks of 64 KiB, which 16 bits can't have.
const WHOLE_BLOCK: [usize; 2] = [0, 0xffff];

pub(crate) fn damaged(what: &str) -> Failure {
    Failure::unsupported(format!("read the file system: {what}"))
}

/// An opened file system of Linux's ext family.
pub(crate) struct Ext {
    section: Section,
    superblock: Superblock,
}

impl Ext {
    pub(crate) fn open(section: &Section) -> Result<Self> {
        let superblock = Superblock::read(section)?;
        let section = match superblock.needs_recovery() {
            true => section.under(jbd2::replay(section, &superblock)?),
            false => section.clone(),
        };
        // The journal can have a newer superblock.
        let superblock = Superblock::read(&section)?;
        let found = Ext { section, superblock };
        match found.inode(ROOT)?.kind {
            FileKind::Directory => Ok(found),
            _ => Err(damaged("its root is no directory")),
        }
    }

    fn inode(&self, number: u32) -> Result<Inode> {
        Inode::read(&self.section, &self.superblock, number)
    }

    /// Finds the inode at a path. Links in it are followed; the last one only with `follow`.
    fn find(&self, path: &[u8], follow: bool) -> Result<Inode> {
        let missing = || Failure::not_found(format!("{}: file not found", name_text(path)));
        // The directories that lead to the place.
        let mut above = vec![self.inode(ROOT)?];
        let mut names: Vec<Vec<u8>> = parts(path).rev().map(<[u8]>::to_vec).collect();
        let mut links = 0;
        while let Some(name) = names.pop() {
            if name == b".." {
                if above.len() > 1 {
                    above.pop();
                }
                continue;
            }
            let here = above.last().filter(|inode| inode.kind == FileKind::Directory).ok_or_else(missing)?;
            let number = self.look_up(here, &name)?.ok_or_else(missing)?;
            let found = self.inode(number)?;
            if found.kind == FileKind::Symlink && (follow || !names.is_empty()) {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Failure::invalid(format!("{}: too many symbolic links", name_text(path))));
                }
                let target = found.target(&self.section, &self.superblock)?;
                if target.starts_with(b"/") {
                    above.truncate(1);
                }
                names.extend(parts(&target).rev().map(<[u8]>::to_vec));
            } else {
                above.push(found);
            }
        }
        above.pop().ok_or_else(missing)
    }

    /// Returns the inode of a name in a directory.
    fn look_up(&self, directory: &Inode, name: &[u8]) -> Result<Option<u32>> {
        let mut found = None;
        self.entries(directory, &mut |entry, number| {
            if entry == name {
                found = Some(number);
            }
            found.is_none()
        })?;
        Ok(found)
    }

    /// Passes the names of a directory and their inodes to `take`, until that returns false.
    fn entries(&self, directory: &Inode, take: &mut dyn FnMut(&[u8], u32) -> bool) -> Result<()> {
        let block_size = self.superblock.block_size;
        if directory.size > MAX_DIRECTORY {
            return Err(damaged("a directory is too large"));
        }
        let mut block = vec![0; block_size];
        let mut offset = 0;
        while directory.read_at(&self.section, &self.superblock, offset, &mut block)? == block_size {
            offset += block_size as u64;
            let mut rest = block.as_slice();
            while rest.len() >= ENTRY {
                let (number, length) = (le32(rest, 0), usize::from(le16(rest, 4)));
                let is_rest = block_size == 1 << 16 && WHOLE_BLOCK.contains(&length);
                let length = if is_rest { rest.len() } else { length };
                let name_length = match self.superblock.has_file_types() {
                    true => usize::from(rest[6]),
                    false => usize::from(le16(rest, 6)),
                };
                if length < ENTRY || length > rest.len() || (number != 0 && ENTRY + name_length > length) {
                    return Err(damaged("a directory is damaged"));
                }
                if number != 0 && !take(&rest[ENTRY..ENTRY + name_length], number) {
                    return Ok(());
                }
                rest = &rest[length..];
            }
        }
        Ok(())
    }

    fn described(&self, name: &[u8], inode: &Inode) -> FileEntry {
        let target = match inode.kind {
            FileKind::Symlink => inode.target(&self.section, &self.superblock).ok(),
            _ => None,
        };
        FileEntry {
            name: name_text(name),
            kind: inode.kind,
            size: inode.size,
            mode: Some(inode.mode),
            uid: Some(inode.uid),
            gid: Some(inode.gid),
            modified: inode.modified,
            target: target.map(|target| name_text(&target)),
            id: Some(u64::from(inode.number)),
        }
    }
}

impl FileSystem for Ext {
    fn name(&self) -> &'static str {
        "ext4"
    }

    fn label(&self) -> Option<String> {
        Some(name_text(self.superblock.label())).filter(|label| !label.is_empty())
    }

    fn entry(&self, path: &[u8]) -> Result<FileEntry> {
        let name = parts(path).last().unwrap_or(b"/");
        let inode = match self.find(path, true) {
            Ok(found) => found,
            // A link that leads nowhere.
            Err(failure) => match self.find(path, false) {
                Ok(link) if link.kind == FileKind::Symlink => link,
                _ => return Err(failure),
            },
        };
        Ok(self.described(name, &inode))
    }

    fn list(&self, path: &[u8], bounds: &Bounds) -> Result<Entries> {
        let directory = self.find(path, true)?;
        if directory.kind != FileKind::Directory {
            return Err(Failure::invalid(format!("{}: path is not a directory", name_text(path))));
        }
        let mut page = Page::new(bounds.after.clone(), bounds.limit);
        self.entries(&directory, &mut |name, number| {
            page.offer(name, number);
            true
        })?;
        let (found, has_more) = page.finish();
        let described = |(name, number): (Vec<u8>, u32)| match self.inode(number) {
            Ok(inode) => Ok(self.described(&name, &inode)),
            Err(failure) if failure.kind == FailureKind::Disk => Err(failure),
            // A directory can reach the disk before the inode that it names.
            Err(_) => Ok(unknown(&name)),
        };
        Ok((found.into_iter().map(described).collect::<Result<_>>()?, has_more))
    }

    fn read(&self, path: &[u8], part: Part, take: Take<'_>) -> Result<()> {
        let Part { offset, length } = part;
        let inode = self.find(path, true)?;
        if inode.kind != FileKind::File {
            return Err(Failure::invalid(format!("{}: only files have content", name_text(path))));
        }
        let mut at = offset;
        let next = |out: &mut [u8]| {
            let read = inode.read_at(&self.section, &self.superblock, at, out)?;
            at += read as u64;
            Ok(read)
        };
        pass_on(length, next, take)
    }
}
