//! The content of a trace file, as far as the disk model needs it.

use anyhow::{Context, Result, bail};
use hindcast_engine::disk::{AccessOp, DiskAccess, TraceDisk, TraceHead, TracePiece, TraceReader};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// A trace: the accesses of the chosen disks.
#[derive(Debug)]
pub(super) struct LoadedTrace {
    pub(super) head: TraceHead,
    /// The chosen disks, by number. There is at least one unless the trace has no accesses.
    pub(super) disks: BTreeMap<u16, TraceDisk>,
    /// In the order of their times.
    accesses: Vec<DiskAccess>,
    /// Number of accesses that the trace lost.
    pub(super) lost: u64,
    /// Whether the file has its end.
    pub(super) is_whole: bool,
    /// Nanoseconds from the start of the trace to its end, or to its last access.
    pub(super) length: u64,
}

impl LoadedTrace {
    /// Reads a file. `chosen` has paths of disks or of physical volumes, or numbers of disks. If it
    /// is empty, all disks are chosen.
    pub(super) fn load(path: &Path, chosen: &[String]) -> Result<LoadedTrace> {
        let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        let input = BufReader::with_capacity(1 << 20, file);
        LoadedTrace::read(input, chosen).with_context(|| path.display().to_string())
    }

    /// Reads the bytes of a file, as [`LoadedTrace::load`] does.
    pub(super) fn read(input: impl Read, chosen: &[String]) -> Result<LoadedTrace> {
        let mut reader = TraceReader::open(input)?;
        let (mut disks, mut accesses) = (BTreeMap::new(), Vec::new());
        let mut length = 0;
        while let Some(piece) = reader.next_piece()? {
            match piece {
                TracePiece::Disks(found) => disks.extend(found.into_iter().map(|disk| (disk.number, disk))),
                TracePiece::Accesses(found) => accesses.extend(found),
                TracePiece::End(_, at) => length = at,
            }
        }
        // Accesses of several threads are in no order. Equal times keep the order of the file.
        accesses.sort_by_key(|access| access.at);
        length = accesses.last().map_or(length, |last| last.at.max(length));
        for number in accesses.iter().map(|access| access.disk) {
            disks.entry(number).or_insert_with(|| unnamed(number));
        }
        let (head, lost, is_whole) = (reader.head(), reader.lost(), reader.is_whole());
        let mut trace = LoadedTrace { head, disks, accesses, lost, is_whole, length };
        trace.choose(chosen)?;
        Ok(trace)
    }

    /// Leaves out the disks that are not chosen.
    fn choose(&mut self, chosen: &[String]) -> Result<()> {
        let is = |disk: &TraceDisk, name: &String| {
            disk.path == *name || disk.pv_path == *name || disk.number.to_string() == *name
        };
        for name in chosen {
            if !self.disks.values().any(|disk| is(disk, name)) {
                let all: Vec<String> = self.disks.values().map(|disk| format!("{:?}", disk.path)).collect();
                bail!("find the physical volume {name}: the trace has {}", all.join(", "));
            }
        }
        if !chosen.is_empty() {
            self.disks.retain(|_, disk| chosen.iter().any(|name| is(disk, name)));
        }
        Ok(())
    }

    /// Takes reads for answered by the page cache that took less than a number of microseconds.
    pub(super) fn take_for_cached(&mut self, micros: u32) {
        let is_short = |access: &&mut DiskAccess| access.op == AccessOp::Read && access.micros < micros;
        self.accesses.iter_mut().filter(is_short).for_each(|access| access.cached = true);
    }

    /// Returns the accesses of a disk, in the order of their times.
    pub(super) fn of_disk(&self, number: u16) -> impl Iterator<Item = &DiskAccess> {
        self.accesses.iter().filter(move |access| access.disk == number)
    }
}

/// A disk that has accesses, and that the file does not name.
fn unnamed(number: u16) -> TraceDisk {
    let path = format!("disk {number}");
    TraceDisk { number, pv: u32::MAX, size: 0, pv_path: path.clone(), path }
}
