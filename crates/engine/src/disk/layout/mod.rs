//! Layouts: disks whose content is on several others. The directory of this module opens them like
//! other disks, under the name `mirror:NAME`. So nothing above it knows of their members.
//!
//! - [`record`]: what is stored of a mirror
//! - [`member`]: how members are recognized
//! - [`spans`]: which member holds what
//! - [`mirror`]: reads, writes, and members that fail
//! - [`copies`], [`rebuild`]: wrong copies, and members that get their content again
//! - [`create`]: the creation of a mirror

mod copies;
mod create;
mod disk;
pub(crate) mod member;
mod mirror;
mod rebuild;
pub(crate) mod record;
pub(crate) mod spans;

pub(crate) use create::{NewMember, create};
pub use mirror::Mirror;

use super::{Dir, Disk, OpenMode, SyncPurpose};
use std::io;
use std::sync::Arc;

/// How the name of a mirror begins, as a disk.
pub(crate) const MIRROR: &str = "mirror:";

/// A directory with the mirrors of the directory below.
struct LayoutDir {
    below: Arc<dyn Dir>,
    /// Whether the members of a mirror are synced side by side.
    parallel: bool,
}

/// Returns a directory with the mirrors of `below`.
pub(crate) fn with_layouts(below: Arc<dyn Dir>, parallel: bool) -> Arc<dyn Dir> {
    Arc::new(LayoutDir::over(below, parallel))
}

impl LayoutDir {
    /// Makes a directory over `below`. With `parallel` false, no threads are used.
    fn over(below: Arc<dyn Dir>, parallel: bool) -> LayoutDir {
        LayoutDir { below, parallel }
    }

    fn open_mirror(&self, name: &str, mode: OpenMode, is_locked: bool) -> io::Result<Arc<dyn Disk>> {
        if matches!(mode, OpenMode::CreateNew | OpenMode::Create) {
            let text = "a mirror is created with its members, by `hindcast pool add --layout mirror`";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let open = |path: &str| match is_locked {
            true => self.below.open_locked(path, mode),
            false => self.below.open(path, mode),
        };
        let mirror = Mirror::open(&self.below, name, mode, self.parallel, &open)?;
        Ok(Arc::new(mirror))
    }
}

impl Dir for LayoutDir {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        match name.strip_prefix(MIRROR) {
            Some(mirror) => self.open_mirror(mirror, mode, false),
            None => self.below.open(name, mode),
        }
    }
    fn open_locked(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        match name.strip_prefix(MIRROR) {
            Some(mirror) => self.open_mirror(mirror, mode, true),
            None => self.below.open_locked(name, mode),
        }
    }
    fn lock(&self, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        self.below.lock(name)
    }
    fn lock_existing(&self, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        self.below.lock_existing(name)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.below.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.below.rename(from, to)
    }
    fn list(&self) -> io::Result<Vec<String>> {
        self.below.list()
    }
    fn sync(&self, purpose: SyncPurpose) -> io::Result<()> {
        self.below.sync(purpose)
    }
}

#[cfg(test)]
mod tests;
