//! The file that a path stands for. While a holder keeps a [`Hold`] on a path, the path stands for
//! the file that was found there, even if another file takes that name meanwhile. A path that is
//! bound to a directory never leads out of that directory.
//!
//! A caller that checks a path (the kind of file, its place, its owner) opens it with `O_PATH` for
//! the check, and holds it. [`super::FileDir`] then opens the very file that was checked, by its
//! descriptor. A path means the same in the whole process, so holds belong to the process.

use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// The number of attempts to resolve a path while names on it are being changed.
const MAX_TRIES: u32 = 100;

static HELD: Mutex<Vec<Weak<Held>>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Held {
    /// The path under which the file is held.
    path: PathBuf,
    file: OwnedFd,
    /// The name in the directory `file`, if no file existed at the path.
    leaf: Option<OsString>,
}

/// A hold on a path. As long as it lives, the path stands for what was found there.
#[derive(Debug)]
#[must_use]
pub struct Hold(Arc<Held>);

impl Hold {
    /// Holds `file` under `path`, which is absolute or as a [`super::FileDir`] has it.
    pub fn file(path: impl Into<PathBuf>, file: OwnedFd) -> Hold {
        Hold::new(Held { path: path.into(), file, leaf: None })
    }

    /// Holds a path at which nothing exists. A file that is created there is created in
    /// `directory`. A link that appears there is not followed.
    pub fn new_file(path: impl Into<PathBuf>, directory: OwnedFd) -> Hold {
        let path = path.into();
        let leaf = path.file_name().unwrap_or_default().to_owned();
        Hold::new(Held { path, file: directory, leaf: Some(leaf) })
    }

    /// Returns another hold on what `path` stands for, or `None` if no hold on the path lives.
    pub fn of(path: impl AsRef<Path>) -> Option<Hold> {
        find(path.as_ref()).map(Hold)
    }

    fn new(held: Held) -> Hold {
        let held = Arc::new(held);
        let mut all = HELD.lock();
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&held));
        Hold(held)
    }

    /// Returns a path that leads to what is held, whatever happens to names, as long as this hold
    /// lives.
    pub fn way(&self) -> PathBuf {
        self.0.way()
    }

    /// Holds the directory, and creates it if nothing existed there. Only its owner has access to a
    /// new directory, and its name is durable.
    pub fn into_directory(self) -> io::Result<Hold> {
        let Held { path, file, leaf } = &*self.0;
        let look = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Some(leaf) = leaf else { return Ok(self) };
        match rustix::fs::mkdirat(file, leaf, Mode::RWXU) {
            Ok(()) => super::file::sync_dir(&PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())))?,
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        let directory = rustix::fs::openat(file, leaf, look, Mode::empty())?;
        Ok(Hold::file(path, directory))
    }
}

/// Returns what was held last under `path`.
fn find(path: &Path) -> Option<Arc<Held>> {
    HELD.lock().iter().rev().filter_map(Weak::upgrade).find(|held| held.path == path)
}

impl Held {
    fn way(&self) -> PathBuf {
        let mut way = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        way.extend(&self.leaf);
        way
    }
}

/// The place that a path leads to.
pub(super) struct Place {
    /// The path to open, as long as this value lives.
    pub(super) way: PathBuf,
    /// Nothing existed there. A link that exists there now is not followed.
    pub(super) is_new: bool,
    held: Option<Arc<Held>>,
}

impl Place {
    /// Returns what is held under `path`, or else what its name stands for. No link leads a path
    /// below one of the directories `within` out of it.
    pub(super) fn of(path: &Path, within: &[PathBuf]) -> io::Result<Place> {
        let held = match find(path) {
            Some(held) => Some(held),
            None => {
                beneath(path, within)?.map(|file| Arc::new(Held { path: path.to_owned(), file, leaf: None }))
            }
        };
        Ok(match held {
            Some(held) => Place { way: held.way(), is_new: held.leaf.is_some(), held: Some(held) },
            None => Place { way: path.to_owned(), is_new: false, held: None },
        })
    }

    /// Returns whether `path` still names the `open` file. Another process may have renamed a file
    /// over it before the lock was taken. A held file is not replaced by one that came after it.
    pub(super) fn is_named(&self, path: &Path, open: &File) -> io::Result<bool> {
        let is_held_file = self.held.is_some() && !self.is_new;
        let open = open.metadata()?;
        let same = match fs::metadata(if is_held_file { path } else { &self.way }) {
            Ok(named) => (named.dev(), named.ino()) == (open.dev(), open.ino()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => false,
            Err(e) => return Err(e),
        };
        match same {
            false if is_held_file => Err(io::Error::other("it was replaced during the operation")),
            same => Ok(same),
        }
    }
}

/// The file of a path that is opened for a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// The file that the path leads to.
    Any,
    /// The directory that the path leads to.
    Directory,
    /// The file that has the name itself. It may be a link.
    Name,
}

impl Look {
    fn flags(self) -> OFlags {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        match self {
            Look::Any => flags,
            Look::Directory => flags | OFlags::DIRECTORY,
            Look::Name => flags | OFlags::NOFOLLOW,
        }
    }
}

/// A directory that paths are resolved below. No link on the way leads out of it.
#[derive(Debug)]
pub struct Bound {
    dir: OwnedFd,
}

impl Bound {
    /// Returns the innermost of the directories `within` that `path` is below, and the path from
    /// there, or `None` if `path` is below none of them.
    pub fn innermost<'a>(path: &'a Path, within: &'a [PathBuf]) -> Option<(&'a Path, &'a Path)> {
        let named = within.iter().filter(|dir| path.starts_with(dir));
        let root = named.max_by_key(|dir| dir.as_os_str().len())?;
        let inner = path.strip_prefix(root).ok()?;
        Some((root, if inner.as_os_str().is_empty() { Path::new(".") } else { inner }))
    }

    /// Opens the directory.
    pub fn open(root: &Path) -> io::Result<Bound> {
        let dir = rustix::fs::open(root, Look::Directory.flags(), Mode::empty())?;
        Ok(Bound { dir })
    }

    /// Opens the file at `inner` below the directory, to check it. Fails with
    /// [`io::ErrorKind::PermissionDenied`] if the path leads out of the directory.
    pub fn look(&self, inner: &Path, what: Look) -> io::Result<OwnedFd> {
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        match openat2(&self.dir, inner, what.flags(), how) {
            Err(e) if is_unknown(e) => {
                let file = rustix::fs::openat(&self.dir, inner, what.flags(), Mode::empty())?;
                match name_of(&file)?.starts_with(name_of(&self.dir)?) {
                    true => Ok(file),
                    false => Err(leads_elsewhere()),
                }
            }
            opened => opened.map_err(in_words),
        }
    }
}

/// Opens `path`, to check it, below the innermost of the directories `within`. Returns `None` if
/// `path` is below none of them.
fn beneath(path: &Path, within: &[PathBuf]) -> io::Result<Option<OwnedFd>> {
    let Some((root, inner)) = Bound::innermost(path, within) else { return Ok(None) };
    Bound::open(root)?.look(inner, Look::Any).map(Some)
}

/// Opens an absolute path without symbolic links, to check it. Fails with
/// [`io::ErrorKind::PermissionDenied`] if there is a link on the way.
pub fn open_without_links(path: &Path) -> io::Result<OwnedFd> {
    let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match openat2(rustix::fs::CWD, path, Look::Any.flags(), how) {
        Err(e) if is_unknown(e) => {
            let file = rustix::fs::open(path, Look::Name.flags(), Mode::empty())?;
            let is_link = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) == FileType::Symlink;
            if is_link || name_of(&file)? != path { Err(leads_elsewhere()) } else { Ok(file) }
        }
        opened => opened.map_err(in_words),
    }
}

fn openat2(dir: impl AsFd, path: &Path, flags: OFlags, how: ResolveFlags) -> rustix::io::Result<OwnedFd> {
    #[cfg(test)]
    if let Some(e) = tests::REFUSED.get() {
        return Err(e);
    }
    let mut tries = 0;
    loop {
        match rustix::fs::openat2(&dir, path, flags, Mode::empty(), how) {
            // Names are being changed: the kernel could not tell whether it stays within.
            Err(Errno::AGAIN | Errno::INTR) if tries < MAX_TRIES => tries += 1,
            opened => return opened,
        }
    }
}

/// Returns whether the kernel is older than Linux 5.6, or the confinement of the process does not
/// know `openat2`. The caller then checks the name of the file that was opened.
fn is_unknown(error: Errno) -> bool {
    matches!(error, Errno::NOSYS | Errno::PERM)
}

/// Returns the path of an open file, without symbolic links.
fn name_of(file: &OwnedFd) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn in_words(error: Errno) -> io::Error {
    if matches!(error, Errno::LOOP | Errno::XDEV) { leads_elsewhere() } else { error.into() }
}

fn leads_elsewhere() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "a symbolic link on the way leads elsewhere")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Dir, FileDir, OpenMode};
    use std::cell::Cell;
    use std::os::unix::fs::symlink;

    thread_local! {
        /// The error that `openat2` returns in a test.
        pub(super) static REFUSED: Cell<Option<Errno>> = const { Cell::new(None) };
    }

    fn look_at(path: &Path) -> OwnedFd {
        rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    fn first(dir: &FileDir, path: &Path, mode: OpenMode) -> io::Result<u8> {
        let mut byte = [0];
        dir.open(path.to_str().unwrap(), mode)?.read_at(&mut byte, 0)?;
        Ok(byte[0])
    }

    #[test]
    fn what_is_held_is_opened_whatever_its_name_says() {
        let tmp = tempfile::tempdir().unwrap();
        let (path, other) = (tmp.path().join("a"), tmp.path().join("b"));
        fs::write(&path, [1; 512]).unwrap();
        fs::write(&other, [2; 512]).unwrap();
        let dir = FileDir::new("/");
        let hold = Hold::file(&path, look_at(&path));
        fs::rename(&path, tmp.path().join("c")).unwrap();
        symlink(&other, &path).unwrap();
        for mode in [OpenMode::ReadOnly, OpenMode::Existing, OpenMode::Create] {
            assert_eq!(first(&dir, &path, mode).unwrap(), 1);
        }
        let locked = dir.open_locked(path.to_str().unwrap(), OpenMode::Existing);
        assert!(locked.is_err(), "who opens it later by its name would get another");
        drop(hold);
        assert_eq!(first(&dir, &path, OpenMode::ReadOnly).unwrap(), 2);
    }

    #[test]
    fn what_is_made_is_made_where_it_was_looked_for() {
        let tmp = tempfile::tempdir().unwrap();
        let (within, elsewhere) = (tmp.path().join("in"), tmp.path().join("out"));
        fs::create_dir(&within).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        let path = within.join("new");
        let name = path.to_str().unwrap();
        let dir = FileDir::new("/");
        let hold = Hold::new_file(&path, look_at(&within));
        // A link at the name is not followed, and the directory is what it was.
        symlink(elsewhere.join("made"), &path).unwrap();
        assert!(dir.open_locked(name, OpenMode::CreateNew).is_err());
        assert!(dir.open(name, OpenMode::Create).is_err());
        fs::remove_file(&path).unwrap();
        fs::rename(&within, tmp.path().join("moved")).unwrap();
        symlink(&elsewhere, &within).unwrap();
        dir.open_locked(name, OpenMode::CreateNew).unwrap();
        assert!(tmp.path().join("moved/new").exists());
        dir.remove(name).unwrap();
        assert!(!tmp.path().join("moved/new").exists());
        let made = hold.into_directory().unwrap();
        fs::write(made.way().join("file"), "x").unwrap();
        assert!(tmp.path().join("moved/new/file").exists());
        drop(made);
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    }

    #[test]
    fn no_link_leads_out_of_a_directory_that_names_are_bound_to() {
        let tmp = tempfile::tempdir().unwrap();
        let within = tmp.path().join("in");
        fs::create_dir(&within).unwrap();
        fs::write(tmp.path().join("secret"), [9; 512]).unwrap();
        fs::write(within.join("image"), [1; 512]).unwrap();
        symlink("image", within.join("link")).unwrap();
        symlink("../secret", within.join("out")).unwrap();
        symlink(".", within.join("dir")).unwrap();
        let dir = FileDir::new(tmp.path()).bound(std::slice::from_ref(&within));
        let read = |path: &Path| first(&dir, path, OpenMode::ReadOnly);
        // With `openat2`, and where the kernel, or what confines the process, does not know it.
        for refused in [None, Some(Errno::NOSYS), Some(Errno::PERM)] {
            REFUSED.set(refused);
            assert_eq!(read(&within.join("image")).unwrap(), 1);
            assert_eq!(read(&within.join("link")).unwrap(), 1);
            assert_eq!(read(&within.join("out")).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            assert_eq!(read(&within.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
            assert_eq!(read(&tmp.path().join("secret")).unwrap(), 9, "what is not below it is not bound");
            let real = within.canonicalize().unwrap();
            assert!(open_without_links(&real.join("link")).is_err());
            assert!(open_without_links(&real.join("dir/image")).is_err());
            assert!(open_without_links(&real.join("image")).is_ok());
            let bound = Bound::open(&within).unwrap();
            assert!(bound.look(Path::new("out"), Look::Name).is_ok());
            assert!(bound.look(Path::new("image"), Look::Directory).is_err());
            assert!(bound.look(Path::new("dir"), Look::Directory).is_ok());
        }
        REFUSED.set(None);
    }

    /// The kernel gives up when names change while it follows `..`.
    #[test]
    fn names_that_change_elsewhere_are_no_error() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let tmp = tempfile::tempdir().unwrap();
        let (within, done) = (tmp.path().join("in"), AtomicBool::new(false));
        fs::create_dir_all(within.join("d")).unwrap();
        fs::write(within.join("image"), "x").unwrap();
        symlink("../image", within.join("d/link")).unwrap();
        let (a, b) = (tmp.path().join("a"), tmp.path().join("b"));
        fs::write(&a, "x").unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    fs::rename(&a, &b).unwrap();
                    fs::rename(&b, &a).unwrap();
                }
            });
            let bound = Bound::open(&within).unwrap();
            let failed = (0..20_000).find_map(|_| bound.look(Path::new("d/link"), Look::Any).err());
            done.store(true, Ordering::Relaxed);
            assert!(failed.is_none(), "{failed:?}");
        });
    }
}
