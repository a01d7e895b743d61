//! A scratch directory on a real disk ([`Scratch`]).

use anyhow::{Context, Result, bail};
use std::os::linux::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// `f_type` of a tmpfs (statfs(2)).
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Bytes that were read from a disk and written to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskBytes {
    pub(crate) read: u64,
    pub(crate) written: u64,
}

/// A scratch directory on a real disk. Dropping it removes the directory with its files.
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates a new directory under `parent`. Fails if `parent` is in memory (tmpfs), where a sync
    /// costs nothing.
    pub(crate) fn new(parent: &Path) -> Result<Scratch> {
        let path = parent.join(format!("hindcast-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        let scratch = Scratch { path };
        let kind = rustix::fs::statfs(&scratch.path).context("statfs of the scratch directory")?.f_type;
        if kind as i64 == TMPFS_MAGIC {
            bail!("{} is a tmpfs: choose a directory on a disk with --dir", parent.display());
        }
        Ok(scratch)
    }

    /// Writes back all dirty pages of the machine, and drops the cached pages of all files inside.
    /// Without this, a file that was just filled sequentially stays cached in large folios. A small
    /// write to a large folio costs several times as much.
    pub(crate) fn forget_cached(&self) -> Result<()> {
        rustix::fs::sync();
        let mut directories = vec![self.path.clone()];
        while let Some(directory) = directories.pop() {
            let entries =
                std::fs::read_dir(&directory).with_context(|| format!("list {}", directory.display()))?;
            for entry in entries {
                let entry = entry.context("list the scratch directory")?;
                let kind = entry.file_type().context("list the scratch directory")?;
                if kind.is_dir() {
                    directories.push(entry.path());
                } else if kind.is_file() {
                    let file = std::fs::File::open(entry.path()).context("open a scratch file")?;
                    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
                        .context("drop cached pages")?;
                }
            }
        }
        Ok(())
    }

    /// Returns what was read from the disk below the directory and written to it since the machine
    /// started, by all processes. The counters of a process do not say that: they count a whole
    /// folio of the page cache when one block of it becomes dirty.
    pub(crate) fn disk_bytes(&self) -> Result<DiskBytes> {
        /// Bytes of a sector in the kernel's statistics.
        const SECTOR: u64 = 512;
        let device = std::fs::metadata(&self.path).context("look at the scratch directory")?.st_dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let path = format!("/sys/dev/block/{major}:{minor}/stat");
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let sectors = |field: usize| text.split_whitespace().nth(field).and_then(|n| n.parse::<u64>().ok());
        let (read, written) = sectors(2).zip(sectors(6)).with_context(|| format!("{path}: {text}"))?;
        Ok(DiskBytes { read: read * SECTOR, written: written * SECTOR })
    }

    /// Returns the path of `name` inside the directory.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprintln!("remove {}: {error}", self.path.display());
        }
    }
}
