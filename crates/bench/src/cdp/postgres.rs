//! Runs PostgreSQL under pgbench, on ext4, on disks whose writes are captured. nbdfuse shows an NBD
//! export as a file, and a loop device makes a disk of the file.

use super::capture::Capture;
use crate::server::execute;
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SIZE: u64 = 1 << 30;
/// Scale of pgbench. Each unit is 15 MiB of tables.
const SCALE: u32 = 10;
const CLIENTS: u32 = 8;
const PATIENCE: Duration = Duration::from_secs(60);
/// Settings of a small server. Checkpoints come during the run, and pages are protected as they
/// should be.
const SETTINGS: &str = "listen_addresses = ''\nshared_buffers = 64MB\nmax_wal_size = 256MB\n\
                        checkpoint_timeout = 30s\nfull_page_writes = on\nwal_sync_method = fdatasync\n";

/// The result of a capture.
pub(super) struct Captured {
    /// The disk of the tables and the disk of the write-ahead log. Writes to the first change small
    /// parts in place. Writes to the second go round.
    pub(super) disks: [CapturedDisk; 2],
    /// Speed that pgbench reports.
    pub(super) tps: String,
}

/// All writes to one disk.
pub(super) struct CapturedDisk {
    pub(super) what: &'static str,
    pub(super) trace: PathBuf,
    /// Size of the disk in bytes.
    pub(super) size: u64,
    /// Number of writes before pgbench began. They make the file system, the cluster and its
    /// tables.
    pub(super) before: u64,
    /// Number of all writes.
    pub(super) writes: u64,
}

/// Runs pgbench for `seconds` seconds, and captures the writes.
pub(super) fn capture(dir: &Path, seconds: u64) -> Result<Captured> {
    let bin = programs()?;
    let (mut data, mut wal) = (Disk::new(dir, "tables")?, Disk::new(dir, "wal")?);
    let cluster = Cluster::start(bin, dir, &data.mount, &wal.mount)?;
    cluster.pgbench(&["-i", "-q", "-s", &SCALE.to_string()])?;
    cluster.client("psql", &["-qc", "CHECKPOINT"])?;
    rustix::fs::sync();
    let before = [data.capture.writes(), wal.capture.writes()];
    let output =
        cluster.pgbench(&["-n", "-c", &CLIENTS.to_string(), "-j", "2", "-T", &seconds.to_string()])?;
    cluster.stop()?;
    data.detach()?;
    wal.detach()?;
    let tps = output.lines().find(|line| line.starts_with("tps")).unwrap_or("tps unknown");
    let tps = tps.split(" (").next().unwrap_or(tps).to_owned();
    let disks = [
        data.finish("PostgreSQL under pgbench, tables", before[0])?,
        wal.finish("PostgreSQL under pgbench, write-ahead log", before[1])?,
    ];
    Ok(Captured { disks, tps })
}

/// Returns the directory of PostgreSQL's server programs.
fn programs() -> Result<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").context("PostgreSQL is not installed")?;
    let mut found: Vec<PathBuf> = versions
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|bin| bin.join("initdb").exists())
        .collect();
    found.sort();
    found.pop().context("PostgreSQL's server is not installed")
}

fn until(what: &str, mut done: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !done() {
        ensure!(start.elapsed() < PATIENCE, "{what} takes too long");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// A captured disk: nbdfuse, a loop device and a mounted file system. Dropping it takes them down,
/// in whatever state they are.
struct Disk {
    capture: Capture,
    attached: Attached,
    mount: PathBuf,
}

impl Disk {
    /// Creates a disk with an empty ext4, and mounts it.
    fn new(dir: &Path, name: &str) -> Result<Disk> {
        let dir = dir.join(name);
        let mount = dir.join("mount");
        std::fs::create_dir_all(&mount).context("create a mount point")?;
        let socket = dir.join("nbd.sock");
        let capture = Capture::serve(&socket, SIZE)?;
        let mut attached = Attached::new(&dir, &socket)?;
        // A discard of the whole disk would be captured as that many zeros.
        let options = ["-q", "-F", "-E", "nodiscard"];
        execute(Command::new("mkfs.ext4").args(options).arg(&attached.device))?;
        attached.mount(&mount)?;
        Ok(Disk { capture, attached, mount })
    }

    fn detach(&mut self) -> Result<()> {
        self.attached.detach()
    }

    /// Returns the captured writes. [`Disk::detach`] must come before.
    fn finish(self, what: &'static str, before: u64) -> Result<CapturedDisk> {
        let writes = self.capture.writes();
        ensure!(writes > before, "{what}: nothing was written");
        Ok(CapturedDisk { what, trace: self.capture.finish()?, size: SIZE, before, writes })
    }
}

struct Attached {
    fuse: PathBuf,
    device: String,
    mounted: Option<PathBuf>,
    child: Child,
}

impl Attached {
    fn new(dir: &Path, socket: &Path) -> Result<Attached> {
        let fuse = dir.join("fuse");
        std::fs::create_dir_all(&fuse).context("create a mount point")?;
        let log = File::create(dir.join("nbdfuse.log")).context("create a log")?;
        let child = Command::new("nbdfuse")
            .arg(fuse.join("disk"))
            .arg(format!("nbd+unix:///?socket={}", socket.display()))
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("share a log")?)
            .stderr(log)
            .spawn()
            .context("start nbdfuse: is libnbd-bin installed?")?;
        let mut attached = Attached { fuse, device: String::new(), mounted: None, child };
        let file = attached.fuse.join("disk");
        until("nbdfuse", || file.exists())?;
        let device = execute(Command::new("losetup").args(["--find", "--show"]).arg(&file))?;
        attached.device = String::from_utf8_lossy(&device).trim().to_owned();
        Ok(attached)
    }

    fn mount(&mut self, at: &Path) -> Result<()> {
        execute(Command::new("mount").arg(&self.device).arg(at))?;
        self.mounted = Some(at.to_owned());
        Ok(())
    }

    /// Takes everything down in order, so that all cached data is written.
    fn detach(&mut self) -> Result<()> {
        if let Some(mount) = &self.mounted {
            // A process that has just ended may use the file system for a moment.
            until("umount", || succeeds(Command::new("umount").arg(mount)))?;
        }
        self.mounted = None;
        execute(Command::new("losetup").arg("-d").arg(&self.device))?;
        self.device.clear();
        let fuse = self.fuse.clone();
        until("nbdfuse's unmount", || succeeds(Command::new("fusermount3").arg("-u").arg(&fuse)))?;
        self.child.wait().context("reap nbdfuse")?;
        Ok(())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(mount) = &self.mounted {
            succeeds(Command::new("umount").arg("-l").arg(mount));
        }
        if !self.device.is_empty() {
            succeeds(Command::new("losetup").arg("-d").arg(&self.device));
        }
        // Both fail after an orderly detach, where nothing is left.
        succeeds(Command::new("fusermount3").arg("-uz").arg(&self.fuse));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running database cluster. Dropping it stops the server at once.
struct Cluster {
    bin: PathBuf,
    data: PathBuf,
    sockets: PathBuf,
}

impl Cluster {
    fn start(bin: PathBuf, dir: &Path, data: &Path, wal: &Path) -> Result<Cluster> {
        let cluster = Cluster { bin, data: data.join("pgdata"), sockets: dir.join("postgres") };
        let wal = wal.join("pgwal");
        for directory in [&cluster.data, &cluster.sockets, &wal] {
            std::fs::create_dir_all(directory).context("create a directory")?;
            execute(Command::new("chown").arg("postgres").arg(directory))?;
            execute(Command::new("chmod").arg("700").arg(directory))?;
        }
        let wal = wal.to_string_lossy();
        cluster
            .server("initdb", &["-X", &wal, "--data-checksums", "-A", "trust", "-E", "UTF8", "--locale=C"])?;
        let settings = format!("{SETTINGS}unix_socket_directories = '{}'\n", cluster.sockets.display());
        std::fs::write(cluster.data.join("postgresql.auto.conf"), settings).context("write the settings")?;
        let log = cluster.sockets.join("log");
        cluster.server("pg_ctl", &["-l", &log.to_string_lossy(), "-w", "-t", "60", "start"])?;
        Ok(cluster)
    }

    fn stop(self) -> Result<()> {
        self.server("pg_ctl", &["-w", "-t", "60", "-m", "fast", "stop"]).map(drop)
    }

    /// Runs one of the server's programs as the user of the server.
    fn server(&self, program: &str, args: &[&str]) -> Result<String> {
        let mut command = Command::new("runuser");
        command.args(["-u", "postgres", "--"]).arg(self.bin.join(program)).arg("-D").arg(&self.data);
        run(command.args(args))
    }

    fn pgbench(&self, args: &[&str]) -> Result<String> {
        self.client("pgbench", args)
    }

    fn client(&self, program: &str, args: &[&str]) -> Result<String> {
        let mut command = Command::new("runuser");
        command.args(["-u", "postgres", "--", program, "-U", "postgres", "-h"]).arg(&self.sockets).args(args);
        run(command.arg("postgres"))
    }
}

fn run(command: &mut Command) -> Result<String> {
    // The user postgres may have no access to the current directory.
    Ok(String::from_utf8_lossy(&execute(command.current_dir("/"))?).into_owned())
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.data.join("postmaster.pid").exists() {
            let _ = self.server("pg_ctl", &["-w", "-t", "20", "-m", "immediate", "stop"]);
        }
    }
}
