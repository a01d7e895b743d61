//! Layouts: disks whose content is on several others. The directory of this module opens them like
//! other disks, under the names `mirror:NAME` and `raid5:NAME`. So nothing above it knows of their
//! members.
//!
//! - [`record`]: what is stored of a layout
//! - [`member`]: how members are recognized
//! - [`spans`]: which member holds what
//! - [`members`]: members that are in, out, and rebuilt
//! - [`stale`]: what changed while a member was out
//! - [`returning`]: members that come back
//! - [`mirror`]: each byte on several members
//! - [`raid5`]: rows with a parity
//! - [`create`]: the creation of a layout
//! - [`growth`]: what a layout does to use all space of its members
//! - [`growing`]: that, carried out
//! - [`places`]: where the content is now
//! - [`restore`]: what the data directory has of a layout, made again
//! - [`spares`]: disks that wait for a member to fail
//! - [`takeover`]: the others take over what a member had

mod create;
mod growing;
mod growth;
pub(crate) mod member;
pub(crate) mod members;
mod mirror;
mod places;
mod progress;
pub(crate) mod raid5;
pub(crate) mod record;
mod restore;
mod returning;
pub(crate) mod spans;
pub(crate) mod spares;
pub(crate) mod stale;
mod takeover;
#[cfg(test)]
mod testing;

pub(crate) use create::{NewLayout, NewMember, create};
pub(crate) use growing::Growing;
pub use growth::Growth;
pub use mirror::Mirror;
pub use progress::RebuildProgress;
pub(crate) use raid5::BlockSums;
pub use raid5::Raid5;
pub(crate) use restore::restore;

use super::{Dir, Disk, OpenMode, SyncPurpose};
use crate::settings::PoolOptions;
use member::write_header;
use members::Members;
use record::{Incoming, LayoutKind};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How the name of a mirror begins, as a disk.
const MIRROR: &str = "mirror:";
/// How the name of a RAID-5 begins, as a disk.
const RAID5: &str = "raid5:";

/// Tells for a byte of the content and a block whether the block may be its content.
pub(crate) type IsRight<'a> = &'a dyn Fn(u64, &[u8]) -> bool;

/// Returns the name of a layout as a disk.
pub(crate) fn path_of(kind: LayoutKind, name: &str) -> String {
    match kind {
        LayoutKind::Mirror => format!("{MIRROR}{name}"),
        LayoutKind::Raid5 { .. } => format!("{RAID5}{name}"),
    }
}

/// A disk that is a layout.
#[derive(Clone, Copy)]
pub enum DiskLayout<'d> {
    /// Each byte is on several members.
    Mirror(&'d Mirror),
    /// Rows with a parity.
    Raid5(&'d Raid5),
}

impl<'d> DiskLayout<'d> {
    /// Returns the members.
    pub(crate) fn members(self) -> &'d Members {
        match self {
            DiskLayout::Mirror(mirror) => &mirror.members,
            DiskLayout::Raid5(raid) => &raid.members,
        }
    }

    /// Returns whether the members can read a range.
    pub(crate) fn is_readable(self, at: u64, len: usize) -> bool {
        match self {
            DiskLayout::Mirror(mirror) => mirror.is_readable(at, len),
            DiskLayout::Raid5(raid) => raid.is_readable(at, len),
        }
    }

    /// Copies a range of whole blocks to the disks that members are rebuilt onto. Of several
    /// possible contents of a block, one is taken that is right. Returns the bytes that no member
    /// has any more. The disks have zeros there.
    pub(crate) fn copy_to_incoming(
        self,
        at: u64,
        len: u64,
        is_right: IsRight<'_>,
    ) -> io::Result<Vec<Range<u64>>> {
        match self {
            DiskLayout::Mirror(mirror) => mirror.copy_to_incoming(at, len, is_right),
            DiskLayout::Raid5(raid) => raid.copy_to_incoming(at, len, is_right),
        }
    }

    /// Returns how much of the content is listed as changed, if all disks that members are rebuilt
    /// onto only get that.
    pub(crate) fn listed(self) -> Option<u64> {
        let members = self.members();
        let per_place = match self {
            DiskLayout::Mirror(_) => 1,
            DiskLayout::Raid5(raid) => raid.columns(),
        };
        members.only_return().then(|| members.listed().saturating_mul(per_place))
    }

    /// Returns the first part of a range of the content that has to be copied to the disks that
    /// members are rebuilt onto. A disk that comes back has what is not stale.
    pub(crate) fn first_to_copy(self, range: Range<u64>) -> Option<Range<u64>> {
        if range.is_empty() {
            return None;
        }
        match self {
            _ if !self.members().only_return() => Some(range),
            DiskLayout::Mirror(mirror) => mirror.members.stale.first_in(range),
            DiskLayout::Raid5(raid) => raid.is_stale(&range).then_some(range),
        }
    }

    /// Notes that the content before `to` was copied since so many rebuilds had begun. It is
    /// durable when this returns. With `to` at the end, the disks are members from then on. If
    /// another rebuild began meanwhile, this does nothing.
    pub(crate) fn note_rebuilt(self, begun: u64, to: u64) -> io::Result<()> {
        match self {
            DiskLayout::Mirror(mirror) => mirror.note_rebuilt(begun, to),
            DiskLayout::Raid5(raid) => raid.note_rebuilt(begun, to),
        }
    }

    /// Gives a disk the header of a member, and begins to rebuild the member onto it. `rate` is the
    /// largest number of bytes a second: 0 means no limit, `None` what the pool's options say.
    pub(crate) fn rebuild_onto(self, number: usize, new: NewMember, rate: Option<u64>) -> io::Result<()> {
        let members = self.members();
        let record = members.record();
        // The disk that the member had keeps its header.
        if new.uuid != record.members[number].uuid {
            write_header(&*new.disk, &new.uuid, &record)?;
        }
        // The next opening would refuse a disk that has a newer record.
        member::write_record(&*new.disk, &record)?;
        members.set_rate(rate);
        self.begin_rebuild(number, Incoming { uuid: new.uuid, path: new.path, rebuilt: 0 }, new.disk)
    }

    /// Begins to rebuild a member onto a disk, whose header is written.
    fn begin_rebuild(self, number: usize, new: Incoming, disk: Arc<dyn Disk>) -> io::Result<()> {
        match self {
            DiskLayout::Mirror(mirror) => mirror.begin_rebuild(number, new, disk),
            DiskLayout::Raid5(raid) => raid.begin_rebuild(number, new, disk),
        }
    }
}

/// Replaces a file by one with these bytes. When this returns, the new one survives a power loss.
/// Before that, a crash leaves one of the two, whole. `new` is the name of the new file meanwhile.
fn replace_file(dir: &dyn Dir, file: &str, new: &str, bytes: &[u8], purpose: SyncPurpose) -> io::Result<()> {
    let disk = dir.open(new, OpenMode::Create)?;
    disk.set_len(0)?;
    disk.write_at(bytes, 0)?;
    disk.sync(purpose)?;
    drop(disk);
    dir.rename(new, file)?;
    dir.sync(purpose)
}

/// How layouts are opened.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LayoutOptions {
    /// Whether the members of a layout are synced side by side. Without it, no threads are used.
    pub(crate) parallel: bool,
    /// Whether a member that is missing refuses the opening, also if the others have everything.
    pub(crate) requires_all: bool,
}

impl From<&PoolOptions> for LayoutOptions {
    fn from(options: &PoolOptions) -> LayoutOptions {
        LayoutOptions { parallel: options.destage_threads > 1, requires_all: options.requires_all }
    }
}

/// A directory with the layouts of the directory below.
struct LayoutDir {
    below: Arc<dyn Dir>,
    options: LayoutOptions,
}

/// Returns a directory with the layouts of `below`.
pub(crate) fn with_layouts(below: Arc<dyn Dir>, options: LayoutOptions) -> Arc<dyn Dir> {
    Arc::new(LayoutDir { below, options })
}

impl LayoutDir {
    fn open_layout(&self, path: &str, mode: OpenMode, is_locked: bool) -> io::Result<Arc<dyn Disk>> {
        let open = |path: &str| match is_locked {
            true => self.below.open_locked(path, mode),
            false => self.below.open(path, mode),
        };
        let Some(name) = path.strip_prefix(MIRROR).or_else(|| path.strip_prefix(RAID5)) else {
            return open(path);
        };
        if matches!(mode, OpenMode::CreateNew | OpenMode::Create) {
            let text = "a layout is created with its members, by `hindcast pool add --layout`";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let members = Members::open(&self.below, name, mode, self.options, &open)?;
        let kind = members.record().kind;
        if path_of(kind, name) != path {
            let text = format!("the layout {name} is {}", path_of(kind, name));
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        match kind {
            LayoutKind::Mirror => Ok(Arc::new(Mirror::new(members))),
            LayoutKind::Raid5 { .. } => Ok(Arc::new(Raid5::new(members, mode)?)),
        }
    }
}

impl Dir for LayoutDir {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        self.open_layout(name, mode, false)
    }
    fn open_locked(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        self.open_layout(name, mode, true)
    }
    fn open_for_flight(&self, name: &str, mode: OpenMode, wait: Duration) -> io::Result<Arc<dyn Disk>> {
        match [MIRROR, RAID5].iter().any(|prefix| name.starts_with(prefix)) {
            true => self.open_locked(name, mode),
            false => self.below.open_for_flight(name, mode, wait),
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
