//! Paths of the host in requests to the admin API: which paths are allowed ([`HostPaths`]).
//!
//! The server may read and write files that its clients may not. So a path in a request must lead
//! into a directory that the configuration names, whatever symbolic links are on the way. If the
//! configuration names no directory, a request over a Unix socket may use any path, and a request
//! over the network none.
//!
//! No path may lead to one of the server's own files, under any name. That would disclose
//! passwords, or all volumes at once.
//!
//! The checked file is held until the request has used it, so that no other file can replace it.

use crate::identity::{tokens, users};
use crate::{audit, certificate, groups, iscsi, schedule, space_trend, views};
use hindcast_api::{ErrorBody, ErrorKind};
use hindcast_engine::disk::{Bound, Hold, Look};
use hindcast_engine::pool::{Origin, Pool};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// How a request arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Door {
    /// Through a Unix socket. Only the server's own user can open it.
    #[default]
    Local,
    /// Over TCP, with the token.
    Network,
}

/// What a request does with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Reads an image, which must exist.
    Image,
    /// Exports a file or device, which must exist.
    Export,
    /// Uses a physical volume. It may be a new file, also one in the data directory.
    Pv,
    /// Creates files in a directory. The directory may be new.
    Directory,
    /// Creates a file, which must not exist.
    NewFile,
}

/// The rules for paths of the host.
#[derive(Debug, Clone)]
pub(crate) struct HostPaths {
    data: PathBuf,
    /// Directories that requests may name, without symbolic links.
    allowed: Vec<PathBuf>,
    /// Files of the configuration.
    own: Vec<PathBuf>,
}

/// A path that a request may use.
#[derive(Debug)]
pub(crate) struct Checked {
    /// The path. It has no symbolic links if requests are restricted to directories, or if the path
    /// is exported.
    pub(crate) path: String,
    /// While it lives, `path` leads to the checked file. `None`: there was no file, and requests
    /// are not restricted to directories.
    hold: Option<Hold>,
}

type Result<T> = std::result::Result<T, ErrorBody>;

fn refusal(kind: ErrorKind, path: &str, why: impl std::fmt::Display) -> ErrorBody {
    ErrorBody { kind, message: format!("use {path}: {why}") }
}

fn failed(path: &str, error: impl Into<io::Error>) -> ErrorBody {
    let error = error.into();
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::InvalidInput | io::ErrorKind::NotADirectory => ErrorKind::Invalid,
        _ => ErrorKind::Io,
    };
    refusal(kind, path, error)
}

/// The result of a search for a path.
enum Found {
    There(OwnedFd),
    /// There is no file. A new file may be created in this directory; `None`: in any directory.
    Nothing(Option<OwnedFd>),
}

/// Identity of a file. For a device node it is the identity of the device.
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

    /// Checks a path. The result must live until the request has opened the path.
    pub(crate) fn check(&self, door: Door, pool: &Pool, path: &str, purpose: Purpose) -> Result<Checked> {
        let refuse = |kind, why: &str| Err(refusal(kind, path, why));
        let said = Path::new(path);
        if said.components().any(|part| part == Component::ParentDir) {
            return refuse(ErrorKind::Invalid, "the path must not contain ..");
        }
        if !said.is_absolute() && purpose != Purpose::Pv {
            return refuse(ErrorKind::Invalid, "the path must be absolute");
        }
        if purpose == Purpose::NewFile && said.file_name().is_none_or(is_known) {
            return refuse(ErrorKind::Conflict, "such names are reserved for files of the server");
        }
        let whole = self.data.join(said);
        let bound = door == Door::Network || !self.allowed.is_empty();
        let found = match bound {
            true => self.beneath(&whole, path)?,
            false => match rustix::fs::open(&whole, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
                Ok(file) => Found::There(file),
                Err(Errno::NOENT) => Found::Nothing(None),
                Err(e) => return Err(failed(path, e)),
            },
        };
        let file = match found {
            Found::There(file) => file,
            // The caller makes it, in the directory that was found to be allowed.
            Found::Nothing(directory) => {
                let hold = directory.map(|directory| Hold::new_file(&whole, directory));
                return match purpose {
                    Purpose::Pv | Purpose::Directory | Purpose::NewFile => {
                        Ok(Checked { path: path.to_owned(), hold })
                    }
                    _ => refuse(ErrorKind::NotFound, "the file does not exist"),
                };
            }
        };
        if purpose == Purpose::NewFile {
            return refuse(ErrorKind::Conflict, "it exists already");
        }
        let stat = rustix::fs::fstat(&file).map_err(|e| failed(path, e))?;
        match (FileType::from_raw_mode(stat.st_mode), purpose) {
            (FileType::Directory, Purpose::Directory) => {}
            (_, Purpose::Directory) => return refuse(ErrorKind::Invalid, "it is not a directory"),
            (FileType::RegularFile | FileType::BlockDevice, _) => {}
            _ => return refuse(ErrorKind::Invalid, "it is neither a regular file nor a block device"),
        }
        if purpose != Purpose::Directory && self.own_ids(pool).contains(&id(&stat)) {
            return refuse(ErrorKind::Conflict, "it belongs to the pool, or to the server");
        }
        let path = match (bound || purpose == Purpose::Export) && said.is_absolute() {
            true => real_path(&file, path)?,
            false => path.to_owned(),
        };
        let hold = Some(Hold::file(self.data.join(&path), file));
        Ok(Checked { path, hold })
    }

    /// Opens a path in an allowed directory, without reading it. Neither symbolic links nor
    /// concurrent changes lead out of the directory.
    fn beneath(&self, whole: &Path, path: &str) -> Result<Found> {
        let refused = |why: &str| refusal(ErrorKind::Forbidden, path, why);
        let Some((root, inner)) = Bound::innermost(whole, &self.allowed) else {
            return Err(refused(
                "requests may name paths only in the directories of the server's --allow-path",
            ));
        };
        let bound = Bound::open(root).map_err(|e| failed(&root.to_string_lossy(), e))?;
        let wrong = |e: io::Error| match e.kind() {
            io::ErrorKind::PermissionDenied => refused("it leads out of the directory of --allow-path"),
            _ => failed(path, e),
        };
        match bound.look(inner, Look::Any) {
            Ok(file) => Ok(Found::There(file)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                // A link that leads nowhere would be followed by the code that makes the file.
                if bound.look(inner, Look::Name).is_ok() {
                    return Err(refused("it is a symbolic link"));
                }
                let parent = inner.parent().filter(|parent| !parent.as_os_str().is_empty());
                let directory = bound.look(parent.unwrap_or(Path::new(".")), Look::Directory);
                directory.map(|directory| Found::Nothing(Some(directory))).map_err(wrong)
            }
            Err(e) => Err(wrong(e)),
        }
    }

    /// Returns volumes whose images can't be read any more, and their images. These images were
    /// chosen before the directories were configured, and a symbolic link leads out of one of the
    /// directories.
    pub(crate) fn stray_images(&self, pool: &Pool) -> Vec<(String, String)> {
        let leads_out = |path: &str| {
            let Some((root, inner)) = Bound::innermost(Path::new(path), &self.allowed) else { return false };
            let found = Bound::open(root).and_then(|bound| bound.look(inner, Look::Any));
            found.is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied)
        };
        let image_of = |volume: &str| match pool.origin(volume) {
            Ok(Some(Origin::Image { path, .. })) if leads_out(&path) => Some(path),
            _ => None,
        };
        let volumes = pool.volumes().into_iter();
        volumes.filter_map(|volume| image_of(&volume.name).map(|image| (volume.name, image))).collect()
    }

    /// Returns the identities of the files that belong to the server or the pool.
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

impl Checked {
    /// Creates the directory if it does not exist. Returns a path that leads to this directory
    /// while the second value lives.
    pub(crate) fn directory(self) -> io::Result<(PathBuf, Option<Hold>)> {
        let Some(hold) = self.hold else { return Ok((PathBuf::from(self.path), None)) };
        let hold = hold.into_directory()?;
        Ok((hold.way(), Some(hold)))
    }
}

/// Returns whether the server or the engine gives this name to a file in the data directory. Other
/// files there may be images or physical volumes.
fn is_known(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let engine = ["catalog", "journal-", "sums-", "cdp-", "layout-", "pool.lock"];
    let server = [
        "events",
        "lu-",
        audit::DIRECTORY,
        iscsi::STORED.0,
        schedule::STORED.0,
        groups::STORED.0,
        views::STORED.0,
        tokens::STORED.0,
        users::STORED.0,
        certificate::STORED.0,
        space_trend::FILE,
    ];
    let suffixes = [".new", ".sock", ".state"];
    engine.iter().chain(&server).any(|prefix| name.starts_with(prefix))
        || suffixes.iter().any(|suffix| name.ends_with(suffix))
}

/// Returns the path of an open file, without symbolic links.
fn real_path(file: &OwnedFd, path: &str) -> Result<String> {
    let wrong = |why: &str| refusal(ErrorKind::Conflict, path, why);
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let real = std::fs::read_link(link).map_err(|e| failed(path, e))?;
    let same = |real: &Path| {
        let (now, then) = (rustix::fs::lstat(real).ok()?, rustix::fs::fstat(file).ok()?);
        (id(&now) == id(&then)).then_some(())
    };
    // One that was removed or replaced meanwhile has another name, or none.
    same(&real).ok_or_else(|| wrong("it was replaced during the request; try again"))?;
    real.into_os_string().into_string().map_err(|_| wrong("the path it leads to is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backups::{Backups, Place};
    use crate::passthrough::{FileDevice, FileSpec};
    use crate::settings::Salvaging;
    use crate::{open_pool, world};
    use hindcast_engine::device::BlockDevice;
    use hindcast_engine::disk::{Dir, FileDir};
    use hindcast_engine::pool::{NewVolume, Placement, PoolConfig, PoolOptions, PvSpec};
    use jiff::{SignedDuration, Timestamp};
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::Arc;

    const M: u64 = 1 << 20;

    struct Fixture {
        tmp: tempfile::TempDir,
        pool: Arc<Pool>,
        paths: HostPaths,
    }

    /// Makes a fixture: `allowed/d/disk` is full of ones. `secrets/disk` is full of nines, and no
    /// client may read it.
    fn fixture() -> Fixture {
        let tmp = tempfile::tempdir().unwrap();
        let at = |path: &str| tmp.path().join(path);
        for (file, byte) in [("allowed/d/disk", 1), ("secrets/disk", 9)] {
            fs::create_dir_all(at(file).parent().unwrap()).unwrap();
            fs::write(at(file), [byte; 64 << 10]).unwrap();
        }
        fs::create_dir(at("pool")).unwrap();
        let allowed = [at("allowed").canonicalize().unwrap()];
        let dir: Arc<dyn Dir> = Arc::new(FileDir::new(at("pool")).bound(&allowed));
        let config = PoolConfig { journal_size: 16 * M, segment_size: 4 * M, ..PoolConfig::default() };
        let pv = PvSpec { path: "pv-0.img".into(), size: Some(64 * M), force: false };
        Pool::create(dir.clone(), &world::real(), &config, Placement::Anywhere, &[pv]).unwrap();
        let pool = Pool::open(dir, world::real(), PoolOptions::default()).unwrap();
        let paths = HostPaths::new(&at("pool"), &allowed, &[]);
        Fixture { tmp, pool, paths }
    }

    impl Fixture {
        fn checked(&self, path: &str, purpose: Purpose) -> Checked {
            let path = self.tmp.path().canonicalize().unwrap().join(path);
            self.paths.check(Door::Network, &self.pool, path.to_str().unwrap(), purpose).unwrap()
        }

        /// Makes `allowed/d` lead to the secrets.
        fn replace(&self) {
            let at = |path: &str| self.tmp.path().join(path);
            fs::rename(at("allowed/d"), at("allowed/was")).unwrap();
            symlink(at("secrets"), at("allowed/d")).unwrap();
        }

        fn volume_over(&self, image: &str) -> hindcast_engine::Result<u8> {
            let (name, read_only) = ("v".to_owned(), false);
            let new = NewVolume { name, size: 0, chunk_size: 16 << 10, block_size: 512, read_only };
            self.pool.create_volume_over(&new, image)?;
            self.first()
        }

        fn first(&self) -> hindcast_engine::Result<u8> {
            let mut block = [0; 512];
            self.pool.open_volume("v", true)?.read(0, &mut block)?;
            Ok(block[0])
        }
    }

    #[test]
    fn an_image_that_was_checked_is_the_one_that_is_shown() {
        let f = fixture();
        let checked = f.checked("allowed/d/disk", Purpose::Image);
        f.replace();
        assert_eq!(f.volume_over(&checked.path).unwrap(), 1);
        drop(checked);
        assert_eq!(f.first().unwrap(), 1, "it stays open");
    }

    /// As after a restart, the path is stored and opened again.
    #[test]
    fn an_image_is_not_looked_for_beyond_the_directory_later() {
        let f = fixture();
        let path = f.checked("allowed/d/disk", Purpose::Image).path;
        f.replace();
        assert!(f.volume_over(&path).is_err());
    }

    #[test]
    fn salvage_does_not_look_for_it_either() {
        let f = fixture();
        let path = f.checked("allowed/d/disk", Purpose::Image).path;
        assert_eq!(f.volume_over(&path).unwrap(), 1);
        f.replace();
        let Fixture { tmp, pool, paths } = f;
        drop(pool);
        let data = tmp.path().join("pool");
        let (how, options) = (Salvaging::default(), PoolOptions::default());
        let pool = open_pool::salvage_bound(&data, &how, options, &paths.allowed).unwrap();
        let mut block = [0; 512];
        assert!(pool.open_volume("v", true).and_then(|v| v.read(0, &mut block)).is_err(), "{}", block[0]);
    }

    #[test]
    fn an_image_that_leads_out_is_told() {
        let f = fixture();
        let path = f.checked("allowed/d/disk", Purpose::Image).path;
        f.volume_over(&path).unwrap();
        assert!(f.paths.stray_images(&f.pool).is_empty());
        f.replace();
        assert_eq!(f.paths.stray_images(&f.pool), [("v".to_owned(), path)]);
        fs::remove_file(f.tmp.path().join("allowed/d")).unwrap();
        assert!(f.paths.stray_images(&f.pool).is_empty(), "that it is missing is told elsewhere");
    }

    /// Messages must not contain the number of a descriptor, which means nothing to users.
    #[test]
    fn a_directory_that_fails_is_named_as_it_was_said() {
        let f = fixture();
        let shown = f.tmp.path().join("allowed/backups");
        let backups = Backups::open(&f.tmp.path().join("pool"), 3, None);
        let place = Place { way: Path::new("/proc/self/fd/999999"), shown: &shown };
        let error = backups.make(&f.pool, Some(place)).unwrap_err().to_string();
        let health = backups.problem(Timestamp::now() + SignedDuration::from_hours(50)).unwrap();
        for text in [error, health] {
            assert!(text.contains(shown.to_str().unwrap()) && !text.contains("/proc/"), "{text}");
        }
    }

    #[test]
    fn a_file_that_was_checked_is_the_one_that_is_exported() {
        let f = fixture();
        let checked = f.checked("allowed/d/disk", Purpose::Export);
        f.replace();
        let path = checked.path.clone();
        let spec = FileSpec {
            uuid: uuid::Uuid::from_bytes([1; 16]),
            path,
            read_only: true,
            block_size: 512,
            serial: None,
        };
        let mut block = [0; 512];
        FileDevice::open(spec.clone()).unwrap().read(0, &mut block).unwrap();
        assert_eq!(block[0], 1);
        drop(checked);
        let error = FileDevice::open(spec).map(drop).unwrap_err();
        assert!(error.to_string().contains("symbolic link"), "{error}");
    }

    #[test]
    fn what_is_made_is_made_in_the_directory_that_was_checked() {
        let f = fixture();
        let (pv, backups) =
            (f.checked("allowed/d/pv", Purpose::Pv), f.checked("allowed/d/backups", Purpose::Directory));
        f.replace();
        let spec = PvSpec { path: pv.path.clone(), size: Some(16 * M), force: false };
        f.pool.add_pv(&spec).unwrap();
        let (way, _hold) = backups.directory().unwrap();
        fs::write(way.join("a"), "x").unwrap();
        let at = |path: &str| f.tmp.path().join(path);
        assert_eq!(fs::read_dir(at("secrets")).unwrap().count(), 1, "the one that was there");
        assert!(at("allowed/was/pv").exists() && at("allowed/was/backups/a").exists());
    }
}
