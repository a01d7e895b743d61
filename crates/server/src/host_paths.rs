//! Paths of the host in requests to the admin API: where they may lead, and what they must not.
//!
//! The server may read and write what its clients may not. A path in a request therefore leads
//! below a directory that the configuration names, whatever links lie on the way; over the network
//! there is no other. And it never leads to a file that the server itself lives by, under whatever
//! name: that would hand out passwords, or all volumes at once.

use crate::{iscsi, schedule};
use hindcast_api::{ErrorBody, ErrorKind};
use hindcast_engine::pool::Pool;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// How a request came in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Door {
    /// A Unix socket, which the server's own user can open.
    #[default]
    Local,
    /// TCP, with the token.
    Network,
}

/// What is to be done with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// An image that is read, or a file or device that is exported. It is there.
    Export,
    /// A physical volume. It may be a new file, also one in the data directory.
    Pv,
    /// A directory that files are put in. It may be a new one.
    Directory,
}

/// The rules.
#[derive(Debug, Clone)]
pub(crate) struct HostPaths {
    data: PathBuf,
    /// Directories that requests may name, without symbolic links.
    allowed: Vec<PathBuf>,
    /// Files of the configuration.
    own: Vec<PathBuf>,
}

type Result<T> = std::result::Result<T, ErrorBody>;

fn refusal(kind: ErrorKind, path: &str, why: impl std::fmt::Display) -> ErrorBody {
    ErrorBody { kind, message: format!("use {path}: {why}") }
}

fn failed(path: &str, error: impl Into<std::io::Error>) -> ErrorBody {
    let error = error.into();
    let kind = match error.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        std::io::ErrorKind::InvalidInput | std::io::ErrorKind::NotADirectory => ErrorKind::Invalid,
        _ => ErrorKind::Io,
    };
    refusal(kind, path, error)
}

/// Identity of a file; of a device that is behind a node, the device's.
type Id = (bool, u64, u64);

fn id(stat: &Stat) -> Id {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => (true, stat.st_rdev, 0),
        _ => (false, stat.st_dev, stat.st_ino),
    }
}

impl HostPaths {
    pub(crate) fn new(data: &Path, allowed: &[PathBuf], own: &[PathBuf]) -> HostPaths {
        HostPaths { data: data.to_owned(), allowed: allowed.to_vec(), own: own.to_vec() }
    }

    /// The path as it may be opened: where requests are bound to directories it is free of symbolic
    /// links.
    pub(crate) fn check(&self, door: Door, pool: &Pool, path: &str, purpose: Purpose) -> Result<String> {
        let refuse = |kind, why: &str| Err(refusal(kind, path, why));
        let said = Path::new(path);
        if said.components().any(|part| part == Component::ParentDir) {
            return refuse(ErrorKind::Invalid, "a path has no .. in it");
        }
        if !said.is_absolute() && purpose != Purpose::Pv {
            return refuse(ErrorKind::Invalid, "the path must be absolute");
        }
        let whole = self.data.join(said);
        let bound = door == Door::Network || !self.allowed.is_empty();
        let found = match bound {
            true => self.beneath(&whole, path)?,
            false => match rustix::fs::open(&whole, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
                Ok(file) => Some(file),
                Err(Errno::NOENT) => None,
                Err(e) => return Err(failed(path, e)),
            },
        };
        let Some(file) = found else {
            // It is made by who uses the path: in a directory that was seen to be within.
            return match purpose {
                Purpose::Pv | Purpose::Directory => Ok(path.to_owned()),
                Purpose::Export => refuse(ErrorKind::NotFound, "there is no such file"),
            };
        };
        let stat = rustix::fs::fstat(&file).map_err(|e| failed(path, e))?;
        match (FileType::from_raw_mode(stat.st_mode), purpose) {
            (FileType::Directory, Purpose::Directory) => {}
            (_, Purpose::Directory) => return refuse(ErrorKind::Invalid, "it is not a directory"),
            (FileType::RegularFile | FileType::BlockDevice, _) => {}
            _ => return refuse(ErrorKind::Invalid, "it is neither a plain file nor a block device"),
        }
        if purpose != Purpose::Directory && self.own_ids(pool).contains(&id(&stat)) {
            return refuse(ErrorKind::Conflict, "it belongs to the pool, or to the server");
        }
        match bound && said.is_absolute() {
            true => real_path(&file, path),
            false => Ok(path.to_owned()),
        }
    }

    /// Opens what an allowed directory holds, to look at it. Neither symbolic links nor what others
    /// do meanwhile lead out of the directory. `None`: there is nothing, and something can be made
    /// there.
    fn beneath(&self, whole: &Path, path: &str) -> Result<Option<OwnedFd>> {
        let refused = |why: &str| refusal(ErrorKind::Forbidden, path, why);
        let named = self.allowed.iter().filter(|dir| whole.starts_with(dir));
        let root = named.max_by_key(|dir| dir.as_os_str().len());
        let Some(root) = root else {
            return Err(refused(
                "requests may name paths only below the directories that the server's --allow-path names",
            ));
        };
        let look = OFlags::PATH | OFlags::CLOEXEC;
        let dir = rustix::fs::open(root, look | OFlags::DIRECTORY, Mode::empty())
            .map_err(|e| failed(&root.to_string_lossy(), e))?;
        let open = |inner: &Path, flags| {
            let inner = if inner.as_os_str().is_empty() { Path::new(".") } else { inner };
            let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            rustix::io::retry_on_intr(|| rustix::fs::openat2(&dir, inner, flags, Mode::empty(), how))
        };
        let inner = whole.strip_prefix(root).unwrap_or(whole);
        let leads_out = "it leads out of the directory that --allow-path names";
        match open(inner, look) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::NOENT) => {
                // A link that leads nowhere would be followed by who makes the file.
                if open(inner, look | OFlags::NOFOLLOW).is_ok() {
                    return Err(refused("a symbolic link is there"));
                }
                match open(inner.parent().unwrap_or(Path::new("")), look | OFlags::DIRECTORY) {
                    Ok(_) => Ok(None),
                    Err(Errno::XDEV | Errno::LOOP) => Err(refused(leads_out)),
                    Err(e) => Err(failed(path, e)),
                }
            }
            Err(Errno::XDEV | Errno::LOOP) => Err(refused(leads_out)),
            Err(e) => Err(failed(path, e)),
        }
    }

    /// What the server lives by.
    fn own_ids(&self, pool: &Pool) -> BTreeSet<Id> {
        let mut ids = BTreeSet::new();
        let mut add = |path: &Path| ids.extend(rustix::fs::stat(path).ok().map(|stat| id(&stat)));
        self.own.iter().for_each(|path| add(path));
        pool.pvs().iter().for_each(|pv| add(&self.data.join(&pv.path)));
        let mut directories = vec![(self.data.clone(), 0)];
        while let Some((directory, depth)) = directories.pop() {
            for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
                let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
                if is_directory && depth < 4 {
                    directories.push((entry.path(), depth + 1));
                } else if depth > 0 || is_known(&entry.file_name()) {
                    add(&entry.path());
                }
            }
        }
        ids
    }
}

/// Is it a name that the server or the engine gives a file in the data directory? Others may have
/// been put there to be an image or a physical volume.
fn is_known(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let prefixes = ["catalog", "journal-", "cdp-", "pool.lock", "lu-", iscsi::STORED.0, schedule::STORED.0];
    let suffixes = [".new", ".sock", ".state"];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
        || suffixes.iter().any(|suffix| name.ends_with(suffix))
}

/// The path of an open file, without symbolic links.
fn real_path(file: &OwnedFd, path: &str) -> Result<String> {
    let wrong = |why: &str| refusal(ErrorKind::Conflict, path, why);
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let real = std::fs::read_link(link).map_err(|e| failed(path, e))?;
    let same = |real: &Path| {
        let (now, then) = (rustix::fs::lstat(real).ok()?, rustix::fs::fstat(file).ok()?);
        (id(&now) == id(&then)).then_some(())
    };
    // One that was removed or replaced meanwhile has another name, or none.
    same(&real).ok_or_else(|| wrong("it was replaced meanwhile"))?;
    real.into_os_string().into_string().map_err(|_| wrong("the path it leads to is not UTF-8"))
}
