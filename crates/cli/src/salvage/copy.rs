//! Copies of what can be read of a device: a sparse raw image, and a map in the format of GNU
//! ddrescue beside it.

use super::report::{Head, lines};
use super::{Device, Range, SHOWN, progress};
use crate::failure::Failure;
use crate::output::{Output, list};
use hindcast_api::{ErrorBody, ErrorKind, Size};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::pool::Pool;
use hindcast_engine::{Error, Volume};
use hindcast_server::error_body;
use indicatif::ProgressBar;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::ops;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Number of bytes of one read.
const PIECE: u64 = 1 << 20;
/// Size of a block in bytes. If a read fails, its blocks are read one by one.
const BLOCK: u64 = 4096;
/// Number of bytes of one request for block status.
const STRIDE: u64 = 1 << 30;
/// Maximum number of runs in one answer about block status.
const RUNS: usize = 1024;

/// Result of the copy of one volume or snapshot.
#[derive(Debug, Serialize)]
struct Copied {
    volume: String,
    snapshot: Option<String>,
    file: PathBuf,
    map: PathBuf,
    size: u64,
    rescued: u64,
    lost: u64,
    lost_ranges: u64,
    /// The first lost ranges. The map has all.
    ranges: Vec<Range>,
}

/// The machine-readable report.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
    copies: Vec<Copied>,
    failed: Vec<NotCopied>,
}

/// A volume that could not be copied, or only in part.
#[derive(Debug, Serialize)]
struct NotCopied {
    volume: String,
    error: String,
}

fn local(verb: &str, path: &Path, error: io::Error) -> Failure {
    error_body(Error::io(format!("{verb} {}", path.display()), error)).into()
}

pub(super) fn one(pool: &Arc<Pool>, device: &Device, to: &Path, output: &Output) -> Result<(), Failure> {
    let copied = copy(pool, device, to)?;
    finish(pool, (vec![copied], Vec::new()), false, output)
}

pub(super) fn all(pool: &Arc<Pool>, to: &Path, output: &Output) -> Result<(), Failure> {
    std::fs::create_dir_all(to).map_err(|e| local("create", to, e))?;
    let volumes = pool.devices().into_iter().filter(|(_, snapshot)| snapshot.is_none());
    let (mut copies, mut failed) = (Vec::new(), Vec::new());
    for (volume, _) in volumes {
        let file = to.join(format!("{volume}.img"));
        // What keeps one volume from being copied may not keep the next one.
        match copy(pool, &Device { volume: volume.clone(), snapshot: None }, &file) {
            Ok(copied) => copies.push(copied),
            Err(error) => failed.push(NotCopied { volume, error: error.to_string() }),
        }
    }
    finish(pool, (copies, failed), true, output)
}

fn finish(
    pool: &Pool,
    (copies, failed): (Vec<Copied>, Vec<NotCopied>),
    all: bool,
    output: &Output,
) -> Result<(), Failure> {
    let report = Report { head: Head::of(pool), copies, failed };
    output.show(&report, table)?;
    if !report.failed.is_empty() {
        let (n, of) = (report.failed.len(), report.failed.len() + report.copies.len());
        return Err(Failure::Failed(format!("{n} of {of} volumes could not be copied")));
    }
    let damaged = report.copies.iter().filter(|copied| copied.lost > 0).count();
    match (report.head.doubts.is_empty(), damaged, report.head.lacks(all)) {
        (true, 0, false) => Ok(()),
        (false, ..) => Err(Failure::Failed("the copied data is in doubt: the output has the reason".into())),
        (_, 0, _) => Err(Failure::Failed("the copies are complete, but other data is lost".into())),
        (_, n, _) => Err(Failure::Failed(format!("{n} of {} copies are incomplete", report.copies.len()))),
    }
}

fn table(report: &Report) -> String {
    let size = |bytes: u64| Size(bytes).to_string();
    let name = |c: &Copied| Device { volume: c.volume.clone(), snapshot: c.snapshot.clone() }.to_string();
    let rows = report
        .copies
        .iter()
        .map(|c| vec![name(c), size(c.size), size(c.rescued), size(c.lost), c.file.display().to_string()]);
    let copies = list(&["NAME", "SIZE", "RESCUED", "LOST", "FILE"], &[1, 2, 3], rows);
    let lost = report.copies.iter().flat_map(|c| lines(&name(c), &c.ranges, c.lost_ranges));
    let lost: Vec<Vec<String>> = lost.collect();
    let mut text = format!("{}\n\n{copies}", report.head.text());
    if !report.failed.is_empty() {
        let rows = report.failed.iter().map(|f| vec![f.volume.clone(), f.error.clone()]);
        text += &format!("\n\n{}", list(&["NOT COPIED", "WHY"], &[], rows));
    }
    if lost.is_empty() {
        return text;
    }
    format!("{text}\n\n{}", list(&["LOST OF", "OFFSET", "LENGTH", "REASON"], &[1, 2], lost.into_iter()))
}

fn new_file(path: &Path) -> Result<File, Failure> {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => {
            let message =
                format!("write {}: the file exists; remove it, or copy to another name", path.display());
            ErrorBody { kind: ErrorKind::Conflict, message }.into()
        }
        _ => local("create", path, e),
    })
}

fn copy(pool: &Arc<Pool>, device: &Device, to: &Path) -> Result<Copied, Failure> {
    let volume = match &device.snapshot {
        Some(name) => pool.open_snapshot(&device.volume, name),
        None => pool.open_volume(&device.volume, true),
    };
    let volume = volume.map_err(error_body)?;
    let mut map_path = to.as_os_str().to_owned();
    map_path.push(".map");
    let map_path = PathBuf::from(map_path);
    // Neither is made where the other can't be.
    if map_path.symlink_metadata().is_ok() {
        let message =
            format!("write {}: the file exists; remove it, or copy to another name", map_path.display());
        return Err(ErrorBody { kind: ErrorKind::Conflict, message }.into());
    }
    let image = new_file(to)?;
    let size = volume.info().size;
    // Until the copy ends, however that is, nothing passes for rescued.
    Map::untried(&new_file(&map_path)?, size).map_err(|e| local("write", &map_path, e))?;
    let mut next_path = map_path.clone().into_os_string();
    next_path.push(".new");
    let next_path = PathBuf::from(next_path);
    let _ = std::fs::remove_file(&next_path);
    let map = new_file(&next_path)?;
    let bar = progress("copying", size, "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {eta}");
    let mut copying = Copying {
        volume: &volume,
        image: &image,
        map: Map::begin(BufWriter::new(&map), size, Status::Rescued)
            .map_err(|e| local("write", &next_path, e))?,
        bar,
        ranges: Vec::new(),
        buffer: vec![0; PIECE as usize],
    };
    let written = copying.run(pool, device, size);
    // What was not tried is said to be so: another copy can go on from there.
    let ended = copying.map.end(size);
    copying.bar.finish_and_clear();
    let left = |e: io::Error| {
        let what = format!("write {} (the file and its map are incomplete)", to.display());
        Failure::from(error_body(Error::io(what, e)))
    };
    let ended = ended.and_then(|ended| map.sync_all().map(|()| ended));
    let ended = ended.and_then(|ended| std::fs::rename(&next_path, &map_path).map(|()| ended));
    written?.map_err(left)?;
    let (rescued, lost, lost_ranges) = ended.map_err(left)?;
    let ranges = std::mem::take(&mut copying.ranges);
    drop(copying);
    image.sync_all().map_err(|e| local("sync", to, e))?;
    sync_directory(to)?;
    let (file, map) = (to.to_owned(), map_path);
    let (volume, snapshot) = (device.volume.clone(), device.snapshot.clone());
    Ok(Copied { volume, snapshot, file, map, size, rescued, lost, lost_ranges, ranges })
}

/// Makes the names of the written files durable.
fn sync_directory(file: &Path) -> Result<(), Failure> {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent).and_then(|dir| dir.sync_all()).map_err(|e| local("sync", parent, e))
}

struct Copying<'a> {
    volume: &'a Volume,
    image: &'a File,
    map: Map<BufWriter<&'a File>>,
    bar: ProgressBar,
    /// The first lost ranges.
    ranges: Vec<Range>,
    buffer: Vec<u8>,
}

impl Copying<'_> {
    /// Copies the ranges between those that are known to be lost. The inner error is one of a file
    /// on this machine.
    fn run(&mut self, pool: &Pool, device: &Device, size: u64) -> Result<io::Result<()>, Failure> {
        if let Err(e) = self.image.set_len(size) {
            return Ok(Err(e));
        }
        let (mut at, mut done) = (0, Ok(()));
        let walked = pool.losses(&device.volume, device.snapshot.as_deref(), &mut |loss| {
            if done.is_ok() {
                let range = at..loss.offset;
                at = loss.offset + loss.length;
                done = self.read(range).and_then(|()| self.lose(Range::from(loss)));
            }
        });
        walked.map_err(error_body)?;
        Ok(done.and_then(|()| self.read(at..size)))
    }

    fn lose(&mut self, range: Range) -> io::Result<()> {
        self.map.add(range.offset..range.offset + range.length, Status::Bad)?;
        let full = self.ranges.len() >= SHOWN;
        match self.ranges.last_mut() {
            Some(last) if last.offset + last.length == range.offset && last.reason == range.reason => {
                last.length += range.length;
            }
            _ if full => {}
            _ => self.ranges.push(range),
        }
        Ok(())
    }

    /// Copies a range that should be readable. Zeros become a hole.
    fn read(&mut self, range: ops::Range<u64>) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let status = self.volume.block_status(at, (range.end - at).min(STRIDE), RUNS);
            let runs = status.unwrap_or_default();
            if runs.is_empty() {
                // What can't be told has to be read.
                let end = (at + PIECE).min(range.end);
                self.read_data(at..end)?;
                at = end;
            }
            for run in runs {
                let part = at..at + run.length;
                at = part.end;
                if run.zero {
                    self.map.add(part, Status::Rescued)?;
                } else {
                    self.read_data(part)?;
                }
            }
            self.bar.set_position(at);
        }
        Ok(())
    }

    fn read_data(&mut self, range: ops::Range<u64>) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let end = ((at / PIECE + 1) * PIECE).min(range.end);
            self.piece(at..end)?;
            at = end;
            self.bar.set_position(at);
        }
        Ok(())
    }

    fn piece(&mut self, range: ops::Range<u64>) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let out = &mut buffer[..(range.end - range.start) as usize];
        let done = match self.volume.read(range.start, out) {
            Ok(()) => self.write(range.start, out).and_then(|()| self.map.add(range, Status::Rescued)),
            Err(_) => self.blocks(range, out),
        };
        self.buffer = buffer;
        done
    }

    /// Reads the blocks of a range one by one, after a read of the range failed.
    fn blocks(&mut self, range: ops::Range<u64>, out: &mut [u8]) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let end = ((at / BLOCK + 1) * BLOCK).min(range.end);
            let block = &mut out[..(end - at) as usize];
            match self.volume.read(at, block) {
                Ok(()) => {
                    self.write(at, block)?;
                    self.map.add(at..end, Status::Rescued)?;
                }
                Err(e) => {
                    let reason = format!("can't be read: {e}");
                    self.lose(Range { offset: at, length: end - at, code: "read", reason })?;
                }
            }
            at = end;
        }
        Ok(())
    }

    /// Writes `data`, except for blocks of zeros.
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut at = 0;
        let blocks: Vec<&[u8]> = data.chunks(BLOCK as usize).collect();
        let holds = |block: &[u8]| block.iter().any(|byte| *byte != 0);
        for run in blocks.chunk_by(|a, b| holds(a) == holds(b)) {
            let len: usize = run.iter().map(|block| block.len()).sum();
            if run.first().is_some_and(|block| holds(block)) {
                self.image.write_all_at(&data[at..at + len], offset + at as u64)?;
            }
            at += len;
        }
        Ok(())
    }
}

/// State of a range, in the form of ddrescue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Rescued,
    Bad,
    NotTried,
}

impl Status {
    fn sign(self) -> char {
        match self {
            Status::Rescued => '+',
            Status::Bad => '-',
            Status::NotTried => '?',
        }
    }
}

/// A map file of ddrescue, written while the copy proceeds. Adjacent ranges of one status become
/// one line.
struct Map<W: Write> {
    out: W,
    last: Option<(ops::Range<u64>, Status)>,
    /// Offset up to which the map is complete.
    at: u64,
    rescued: u64,
    lost: u64,
    lost_ranges: u64,
}

impl<W: Write> Map<W> {
    /// Writes the map of a copy that was not tried.
    fn untried(mut out: W, size: u64) -> io::Result<()> {
        let mut map = Map::begin(&mut out, size, Status::NotTried)?;
        map.add(0..size, Status::NotTried)?;
        map.end(size).map(drop)
    }

    fn begin(mut out: W, size: u64, status: Status) -> io::Result<Map<W>> {
        writeln!(out, "# Mapfile. Created by hindcast salvage")?;
        writeln!(out, "# current_pos  current_status  current_pass")?;
        writeln!(out, "0x{size:08X}     {}               1", status.sign())?;
        writeln!(out, "#      pos        size  status")?;
        Ok(Map { out, last: None, at: 0, rescued: 0, lost: 0, lost_ranges: 0 })
    }

    fn add(&mut self, range: ops::Range<u64>, status: Status) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        self.at = range.end;
        match status {
            Status::Rescued => self.rescued += range.end - range.start,
            Status::Bad => self.lost += range.end - range.start,
            Status::NotTried => {}
        }
        match &mut self.last {
            Some((last, of)) if *of == status && last.end == range.start => last.end = range.end,
            _ => {
                self.lost_ranges += u64::from(status == Status::Bad);
                if let Some((last, of)) = self.last.replace((range, status)) {
                    self.line(&last, of)?;
                }
            }
        }
        Ok(())
    }

    fn line(&mut self, range: &ops::Range<u64>, status: Status) -> io::Result<()> {
        writeln!(self.out, "0x{:08X}  0x{:08X}  {}", range.start, range.end - range.start, status.sign())
    }

    /// Completes the map. Returns the number of rescued bytes, of lost bytes, and of lost ranges.
    fn end(&mut self, size: u64) -> io::Result<(u64, u64, u64)> {
        self.add(self.at..size, Status::NotTried)?;
        if let Some((last, of)) = self.last.take() {
            self.line(&last, of)?;
        }
        self.out.flush()?;
        Ok((self.rescued, self.lost, self.lost_ranges))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_engine::device::WriteOp;
    use hindcast_engine::disk::{Dir, MemDir, OpenMode};
    use hindcast_engine::pool::{NewVolume, Placement, PoolConfig, PoolOptions, PvSpec};
    use hindcast_engine::salvage::SalvageOptions;
    use hindcast_engine::world::{ManualClock, SplitMix, World};

    const MIB: u64 = 1 << 20;

    fn world(seed: u64) -> World {
        World { clock: Arc::new(ManualClock::new(seed)), rng: Arc::new(SplitMix::new(seed)) }
    }

    /// Makes a pool with a volume of 4 MiB, whose second MiB is zeros.
    fn pool() -> (Arc<MemDir>, Vec<u8>) {
        let dir = Arc::new(MemDir::new());
        let config = PoolConfig { journal_size: 4 * MIB, segment_size: MIB, ..PoolConfig::default() };
        let pv = PvSpec { path: "pv".into(), size: Some(33 * MIB), force: false };
        Pool::create(dir.clone(), &world(1), &config, Placement::Anywhere, &[pv]).unwrap();
        // Without references, the slots lie in the order of the volume.
        let options = PoolOptions { direct_min: None, ..PoolOptions::default() };
        let pool = Pool::open(dir.clone(), world(2), options).unwrap();
        let (name, size) = ("v".to_owned(), 4 * MIB);
        pool.create_volume(&NewVolume { name, size, chunk_size: 16384, block_size: 512, read_only: false })
            .unwrap();
        let mut wanted: Vec<u8> = (0..size).map(|n| (n / 512 % 255) as u8 + 1).collect();
        wanted[1 << 20..2 << 20].fill(0);
        let volume = pool.open_volume("v", false).unwrap();
        for at in [0, 2 * MIB, 3 * MIB] {
            let data = wanted[at as usize..(at + MIB) as usize].to_vec();
            let mut ops = [WriteOp::new(at, data.into())];
            volume.write(&mut ops, true);
            ops[0].result.as_ref().unwrap();
        }
        drop(volume);
        pool.drain().unwrap();
        pool.close().unwrap();
        (dir, wanted)
    }

    /// The copy leaves out sectors that fail only when they are read, and nothing else.
    #[test]
    fn a_copy_reads_around_what_fails() {
        let (dir, wanted) = pool();
        let options = SalvageOptions::default();
        let pool = Pool::open_salvage(dir.clone(), world(3), options).unwrap();
        // Behind the pool's back: no list of losses can know it.
        let disk = dir.open("pv", OpenMode::Existing).unwrap();
        disk.set_len(MIB + 2 * MIB + 5 * 4096 + 100).unwrap();
        let tmp = tempfile::tempdir().unwrap();
        let to = tmp.path().join("v.img");
        let device = Device { volume: "v".into(), snapshot: None };
        let copied = copy(&pool, &device, &to).unwrap();
        let image = std::fs::read(&to).unwrap();
        let at = 3 * MIB as usize + 5 * 4096;
        assert!(image[..at] == wanted[..at] && image[at..].iter().all(|b| *b == 0));
        assert_eq!((copied.lost, copied.rescued), (MIB - 5 * 4096, 3 * MIB + 5 * 4096));
        assert!(copied.ranges[0].reason.starts_with("can't be read: "), "{:?}", copied.ranges[0]);
        let map = std::fs::read_to_string(&copied.map).unwrap();
        let lines: Vec<&str> = map.lines().filter(|line| !line.starts_with('#')).skip(1).collect();
        assert_eq!(lines, ["0x00000000  0x00305000  +", "0x00305000  0x000FB000  -"]);
        let again = copy(&pool, &device, &to).unwrap_err();
        assert_eq!(again.code(), 4, "{again}");
        std::fs::remove_file(&to).unwrap();
        assert_eq!(copy(&pool, &device, &to).unwrap_err().code(), 4, "the map is there");
        assert!(!to.exists());
    }

    #[test]
    fn a_map_is_what_ddrescue_reads() {
        let mut out = Vec::new();
        let mut map = Map::begin(&mut out, 0x5000, Status::Rescued).unwrap();
        map.add(0..0x1000, Status::Rescued).unwrap();
        map.add(0x1000..0x1000, Status::Bad).unwrap();
        map.add(0x1000..0x2000, Status::Rescued).unwrap();
        map.add(0x2000..0x2200, Status::Bad).unwrap();
        map.add(0x2200..0x3000, Status::Bad).unwrap();
        map.add(0x3000..0x4000, Status::Rescued).unwrap();
        assert_eq!(map.end(0x5000).unwrap(), (0x3000, 0x1000, 1));
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                "0x00005000     +               1",
                "0x00000000  0x00002000  +",
                "0x00002000  0x00001000  -",
                "0x00003000  0x00001000  +",
                "0x00004000  0x00001000  ?",
            ]
        );
    }
}
