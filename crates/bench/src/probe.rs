//! Measures how long the disk itself takes to make a block durable. Reports show this figure for
//! comparison.

use anyhow::{Context, Result};
use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;
/// Number of blocks in the file. They are written in turn.
const BLOCKS: u64 = 256;

/// A file whose blocks are already written, like a segment of the journal. A sync of the file waits
/// for no metadata.
pub(crate) struct Probe {
    file: File,
    next: Cell<u64>,
}

impl Probe {
    pub(crate) fn new(dir: &Path) -> Result<Probe> {
        let path = dir.join("probe");
        let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
        file.write_all_at(&vec![1; (BLOCK * BLOCKS) as usize], 0).context("write the probe")?;
        file.sync_all().context("sync the probe")?;
        Ok(Probe { file, next: Cell::new(0) })
    }

    /// Writes a block and waits until it is durable. Returns how long that took.
    pub(crate) fn sync(&self) -> Result<Duration> {
        let started = Instant::now();
        let at = self.next.replace(self.next.get() + 1) % BLOCKS * BLOCK;
        self.file.write_all_at(&[2; BLOCK as usize], at).context("write the probe")?;
        self.file.sync_data().context("sync the probe")?;
        Ok(started.elapsed())
    }
}
