//! Measures the first writes of the peers after a snapshot: internal snapshots of qcow2, and a
//! reflink copy on XFS.

use super::{Args, FirstWrites, fio_dir, peer_writes};
use crate::figures::{Figures, Goal};
use crate::process;
use crate::scratch::Scratch;
use crate::server::{self, Server, execute};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const SECTION: &str = "peers";
const SETTLE_LIMIT: Duration = Duration::from_secs(60);

/// Measures the first writes of the peers after a snapshot.
pub(super) fn run(args: &Args, scratch: &Scratch, figures: &mut Figures) -> Result<()> {
    qcow2(args, scratch, figures)?;
    match Xfs::mount(scratch, args.scope.size * 3) {
        Ok(xfs) => reflink(args, scratch, &xfs, figures),
        Err(error) => {
            figures.remark(format!("The reflink copy on XFS could NOT be measured here: {error:#}"));
            Ok(())
        }
    }
}

/// Measures internal snapshots of qcow2. The creation of one needs exclusive access to the image.
/// The server is stopped meanwhile, as an operator would do.
fn qcow2(args: &Args, scratch: &Scratch, figures: &mut Figures) -> Result<()> {
    let dir = fio_dir(scratch);
    let image = dir.join("qemu.qcow2");
    let mut server = server::qemu_nbd(&dir, args.scope.size, "qcow2")?;
    server::fill(&server, args.scope.size, &dir)?;
    scratch.forget_cached()?;
    let mut times = Vec::new();
    for (what, bytes) in [("burst", args.burst()), ("sustained", args.sustained())] {
        let mut all = FirstWrites::default();
        let rounds = if what == "burst" { args.scope.rounds } else { 1 };
        for round in 0..rounds {
            let plain = peer_writes(&server.uri, bytes, 100 + round as u64, &dir)?;
            process::settle(server.pid(), SETTLE_LIMIT)?;
            server.stop()?;
            let tag = format!("{what}{round}");
            let start = Instant::now();
            execute(Command::new("qemu-img").args(["snapshot", "-c", &tag]).arg(&image))?;
            times.push(start.elapsed().as_secs_f64());
            server = server::qemu_nbd_on(&image, &dir, "qcow2")?;
            let after = peer_writes(&server.uri, bytes, 200 + round as u64, &dir)?;
            process::settle(server.pid(), SETTLE_LIMIT)?;
            server.stop()?;
            execute(Command::new("qemu-img").args(["snapshot", "-d", &tag]).arg(&image))?;
            server = server::qemu_nbd_on(&image, &dir, "qcow2")?;
            all.take(plain, after);
        }
        all.report(figures, SECTION, &format!("qcow2, 64 KiB clusters, {what}"), Goal::None);
    }
    let longest = times.iter().copied().fold(0.0, f64::max);
    figures.add(SECTION, "qcow2: taking a snapshot, the server stopped".into(), longest, "s", Goal::None);
    server.stop()?;
    std::fs::remove_file(&image).context("remove the image")
}

fn reflink(args: &Args, scratch: &Scratch, xfs: &Xfs, figures: &mut Figures) -> Result<()> {
    let dir = fio_dir(scratch);
    let (disk, copy) = (xfs.at.join("disk.raw"), xfs.at.join("copy.raw"));
    let server = server::nbdkit_on(&disk, args.scope.size, &dir)?;
    server::fill(&server, args.scope.size, &dir)?;
    let mut times = Vec::new();
    for (what, bytes) in [("burst", args.burst()), ("sustained", args.sustained())] {
        let mut all = FirstWrites::default();
        let rounds = if what == "burst" { args.scope.rounds } else { 1 };
        for round in 0..rounds {
            let plain = peer_writes(&server.uri, bytes, 100 + round as u64, &dir)?;
            process::settle(server.pid(), SETTLE_LIMIT)?;
            let start = Instant::now();
            execute(Command::new("cp").arg("--reflink=always").arg(&disk).arg(&copy))?;
            times.push(start.elapsed().as_secs_f64());
            let after = peer_writes(&server.uri, bytes, 200 + round as u64, &dir)?;
            process::settle(server.pid(), SETTLE_LIMIT)?;
            std::fs::remove_file(&copy).context("remove the copy")?;
            all.take(plain, after);
        }
        all.report(figures, SECTION, &format!("reflink copy on XFS, nbdkit, {what}"), Goal::None);
    }
    let longest = times.iter().copied().fold(0.0, f64::max);
    figures.add(SECTION, "XFS: longest reflink copy".into(), longest, "s", Goal::None);
    drop::<Server>(server);
    Ok(())
}

/// An XFS file system in a file. It is mounted until it is dropped.
struct Xfs {
    at: PathBuf,
}

impl Xfs {
    fn mount(scratch: &Scratch, size: u64) -> Result<Xfs> {
        let (file, at) = (scratch.join("xfs.img"), scratch.join("xfs"));
        server::sparse_file(&file, size.max(512 << 20))?;
        execute(Command::new("mkfs.xfs").args(["-q", "-m", "reflink=1"]).arg(&file))?;
        std::fs::create_dir_all(&at).context("create the mount point")?;
        execute(Command::new("mount").args(["-o", "loop"]).arg(&file).arg(&at))?;
        Ok(Xfs { at })
    }
}

impl Drop for Xfs {
    fn drop(&mut self) {
        // A process that still uses the file system is about to end.
        for _ in 0..50 {
            if unmount(&self.at) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        eprintln!("{} is still mounted", self.at.display());
    }
}

fn unmount(at: &Path) -> bool {
    Command::new("umount").arg(at).status().is_ok_and(|status| status.success())
}
