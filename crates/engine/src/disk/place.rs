//! What a path stands for: while somebody holds what it was found to be, that, whatever is put in
//! its place meanwhile; and where paths are bound to directories, nothing beyond them.
//!
//! Who checks a path (what kind of file it is, where it lies, whose it is) opens it for that with
//! `O_PATH`, and holds it. [`super::FileDir`] then opens the very file that was checked, by its
//! descriptor. Paths mean the same in the whole process, so holds are the process's.

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// Tries to resolve a path while names on it are being changed.
const MAX_TRIES: u32 = 100;

static HELD: Mutex<Vec<Weak<Held>>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Held {
    /// What it is called.
    path: PathBuf,
    file: OwnedFd,
    /// Where nothing was there: its name in the directory `file`.
    leaf: Option<OsString>,
}

/// As long as it lives a path stands for what was found there.
#[derive(Debug)]
#[must_use]
pub struct Hold(Arc<Held>);

impl Hold {
    /// `path`, absolute or as a [`super::FileDir`] has it, is `file`.
    pub fn file(path: impl Into<PathBuf>, file: OwnedFd) -> Hold {
        Hold::new(Held { path: path.into(), file, leaf: None })
    }

    /// Nothing is at `path`, and what is made there is made in `directory`. A link that appears
    /// there is not followed.
    pub fn new_file(path: impl Into<PathBuf>, directory: OwnedFd) -> Hold {
        let path = path.into();
        let leaf = path.file_name().unwrap_or_default().to_owned();
        Hold::new(Held { path, file: directory, leaf: Some(leaf) })
    }

    /// Holds on to what `path` stands for, if somebody holds it.
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

    /// A path that leads to what is held, whatever is done to names, as long as this lives.
    pub fn way(&self) -> PathBuf {
        self.0.way()
    }

    /// Holds the directory, which is made if nothing was there: its owner's alone, with a durable
    /// name.
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

/// What was held last under `path`.
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

/// Where a path leads.
pub(super) struct Place {
    /// What to open, as long as this lives.
    pub(super) way: PathBuf,
    /// Nothing was there: a link that is there now is not followed.
    pub(super) is_new: bool,
    held: Option<Arc<Held>>,
}

impl Place {
    /// What is held under `path`, or else what its name says. Below one of the directories `within`
    /// no link leads out of it.
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

    /// Does `path` still name the `open` file? Another process may have renamed something over it
    /// before the lock was there. What is held is not replaced by what came after it.
    pub(super) fn is_named(&self, path: &Path, open: &File) -> io::Result<bool> {
        let is_held_file = self.held.is_some() && !self.is_new;
        let open = open.metadata()?;
        let same = match fs::metadata(if is_held_file { path } else { &self.way }) {
            Ok(named) => (named.dev(), named.ino()) == (open.dev(), open.ino()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => false,
            Err(e) => return Err(e),
        };
        match same {
            false if is_held_file => Err(io::Error::other("it was replaced meanwhile")),
            same => Ok(same),
        }
    }
}

/// Opens `path`, to look at it, below the innermost of the directories `within`; `None` where it is
/// below none of them.
fn beneath(path: &Path, within: &[PathBuf]) -> io::Result<Option<OwnedFd>> {
    let named = within.iter().filter(|dir| path.starts_with(dir));
    let Some(root) = named.max_by_key(|dir| dir.as_os_str().len()) else { return Ok(None) };
    let dir = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let inner = path.strip_prefix(root).unwrap_or(path);
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    look(&dir, if inner.as_os_str().is_empty() { Path::new(".") } else { inner }, how).map(Some)
}

/// Opens an absolute path on which no symbolic links lie, to look at it.
pub fn open_without_links(path: &Path) -> io::Result<OwnedFd> {
    look(rustix::fs::CWD, path, ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS)
}

fn look(dir: impl AsFd, path: &Path, how: ResolveFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let mut tries = 0;
    let opened = loop {
        match rustix::fs::openat2(&dir, path, flags, Mode::empty(), how) {
            // Names are being changed: the kernel could not tell whether it stays within.
            Err(Errno::AGAIN | Errno::INTR) if tries < MAX_TRIES => tries += 1,
            opened => break opened,
        }
    };
    opened.map_err(|e| match e {
        Errno::LOOP | Errno::XDEV => {
            io::Error::new(io::ErrorKind::PermissionDenied, "a symbolic link on the way leads elsewhere")
        }
        e => e.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Dir, FileDir, OpenMode};
    use std::os::unix::fs::symlink;

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
        let dir = FileDir::new(tmp.path()).bound(std::slice::from_ref(&within));
        let read = |path: &Path| first(&dir, path, OpenMode::ReadOnly);
        assert_eq!(read(&within.join("image")).unwrap(), 1);
        assert_eq!(read(&within.join("link")).unwrap(), 1);
        assert_eq!(read(&within.join("out")).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(read(&within.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(read(&tmp.path().join("secret")).unwrap(), 9, "what is not below it is not bound");
        assert!(open_without_links(&within.join("link")).is_err());
        assert!(open_without_links(&within.join("image").canonicalize().unwrap()).is_ok());
    }
}
