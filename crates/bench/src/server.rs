//! The servers under test: Hindcast and its peers. Each is a child process behind a Unix socket
//! (NBD) or a TCP port of the loopback address (iSCSI).

use crate::Common;
use crate::fio::{self, Amount, Job};
use crate::nbd::Client;
use anyhow::{Context, Error, Result, bail, ensure};
use hindcast_api::{CreateVolume, Endpoint};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The server under test, in reports.
pub(crate) const HINDCAST: &str = "hindcast";
/// Another build of it, in reports.
pub(crate) const BEFORE: &str = "before";
/// How long a server may take until it answers.
const START_LIMIT: Duration = Duration::from_secs(120);
/// How long a request of the admin API may take. A batch of many volumes takes minutes.
const PATIENCE: Duration = Duration::from_secs(900);

/// A running server; killed when dropped.
pub(crate) struct Server {
    /// Name in reports.
    pub(crate) name: &'static str,
    /// What a client connects to.
    pub(crate) uri: String,
    child: Child,
}

impl Server {
    fn start(name: &'static str, command: &mut Command, uri: String) -> Result<Server> {
        let child =
            command.stdin(Stdio::null()).spawn().with_context(|| format!("start {name}: {command:?}"))?;
        Ok(Server { name, uri, child })
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as a power cut of the process would.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill().context("kill the server")?;
        self.child.wait().context("reap the server")?;
        Ok(())
    }

    /// Ends it as an operator would, and waits.
    pub(crate) fn stop(&mut self) -> Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).context("stop the server")?;
        self.child.wait().context("reap the server")?;
        Ok(())
    }

    /// Waits until a client gets the export's size.
    pub(crate) fn wait_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        while !answers(&self.uri)? {
            if let Some(status) = self.child.try_wait().context("look after the server")? {
                bail!("{} ended at once: {status}", self.name);
            }
            ensure!(start.elapsed() < START_LIMIT, "{} does not answer at {}", self.name, self.uri);
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Server {
    /// Waits until an export can be opened, without a process in between: for what takes
    /// milliseconds.
    pub(crate) fn wait_for(&mut self, hindcast: &Hindcast, export: &str) -> Result<()> {
        let start = Instant::now();
        while let Err(error) = hindcast.connect(export) {
            if let Some(status) = self.child.try_wait().context("look after the server")? {
                bail!("{} ended at once: {status}; its log is in {}", self.name, hindcast.log().display());
            }
            if start.elapsed() > START_LIMIT {
                return Err(error.context("hindcast does not answer"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn answers(uri: &str) -> Result<bool> {
    let mut command = if uri.starts_with("iscsi://") {
        Command::new("iscsi-readcapacity16")
    } else {
        let mut command = Command::new("nbdinfo");
        command.arg("--size");
        command
    };
    let status = command
        .arg(uri)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .context("run nbdinfo or iscsi-readcapacity16: are libnbd-bin and libiscsi-bin installed?")?;
    Ok(status.success())
}

fn uri(socket: &Path, export: &str) -> String {
    format!("nbd+unix:///{export}?socket={}", socket.display())
}

/// `nbdkit file` on a new sparse file.
pub(crate) fn nbdkit(dir: &Path, size: u64) -> Result<Server> {
    nbdkit_on(&dir.join("nbdkit.raw"), size, dir)
}

/// `nbdkit file` on a new sparse file of `size` bytes at the path `file`.
pub(crate) fn nbdkit_on(file: &Path, size: u64, dir: &Path) -> Result<Server> {
    let socket = dir.join("nbdkit.sock");
    sparse_file(file, size)?;
    let mut command = Command::new("nbdkit");
    command.arg("-f").arg("-U").arg(&socket).arg("file").arg(file);
    let mut server = Server::start("nbdkit file", &mut command, uri(&socket, ""))?;
    server.wait_ready()?;
    Ok(server)
}

/// `qemu-nbd` on a new image of `format` (raw, qcow2).
pub(crate) fn qemu_nbd(dir: &Path, size: u64, format: &'static str) -> Result<Server> {
    let file = dir.join(format!("qemu.{format}"));
    execute(Command::new("qemu-img").args(["create", "-q", "-f", format]).arg(&file).arg(size.to_string()))?;
    qemu_nbd_on(&file, dir, format)
}

/// `qemu-nbd` on an existing image of `format` (raw, qcow2).
pub(crate) fn qemu_nbd_on(file: &Path, dir: &Path, format: &'static str) -> Result<Server> {
    let socket = dir.join(format!("qemu-{format}.sock"));
    let mut command = Command::new("qemu-nbd");
    command.args(["-t", "-e", "8", "-f", format, "-k"]).arg(&socket).arg(file);
    let name = if format == "raw" { "qemu-nbd raw" } else { "qemu-nbd qcow2" };
    let mut server = Server::start(name, &mut command, uri(&socket, ""))?;
    server.wait_ready()?;
    Ok(server)
}

/// A TCP port of the loopback address that no process listens on.
fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").context("find a free port")?;
    Ok(listener.local_addr().context("find a free port")?.port())
}

/// `tgtd` with one logical unit: on a new file of `size` bytes, or on its null store, which is as
/// large as it likes.
pub(crate) fn tgt(name: &'static str, dir: &Path, size: Option<u64>) -> Result<Server> {
    const TARGET: &str = "iqn.2026-11.io.hindcast.bench:tgt";
    let port = free_port()?;
    // The control port, below 2^15, only names a socket; ours are as good as unique.
    let control = (port & 0x7fff).to_string();
    let log = std::fs::File::create(dir.join(format!("{name}.log"))).context("create a log")?;
    let mut command = Command::new("tgtd");
    command.args(["-f", "-C", &control, "--iscsi", &format!("portal=127.0.0.1:{port}")]);
    command.stdout(log.try_clone().context("share a log")?).stderr(log);
    // LUN 0 is tgt's own controller.
    let url = format!("iscsi://127.0.0.1:{port}/{TARGET}/1");
    let mut server = Server::start(name, &mut command, url).context("is tgt installed?")?;
    let admin =
        |args: &[&str]| execute(Command::new("tgtadm").args(["-C", &control, "--lld", "iscsi"]).args(args));
    let start = Instant::now();
    while let Err(error) = admin(&["--op", "show", "--mode", "system"]) {
        if let Some(status) = server.child.try_wait().context("look after tgtd")? {
            bail!("tgtd ended at once: {status}");
        }
        ensure!(start.elapsed() < START_LIMIT, "tgtd does not answer: {error}");
        std::thread::sleep(Duration::from_millis(20));
    }
    admin(&["--op", "new", "--mode", "target", "--tid", "1", "-T", TARGET])?;
    let unit = ["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1"];
    let file = dir.join("tgt.raw");
    match size {
        Some(size) => {
            sparse_file(&file, size)?;
            admin(&[&unit[..], &["-b", &file.to_string_lossy()]].concat())?;
        }
        // It wants a file's name, and does nothing with the file.
        None => drop(admin(&[&unit[..], &["--bstype", "null", "-b", "/dev/null"]].concat())?),
    }
    admin(&["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"])?;
    server.wait_ready()?;
    Ok(server)
}

/// Creates an empty file of `size` bytes that takes no space.
pub(crate) fn sparse_file(path: &Path, size: u64) -> Result<()> {
    let file = std::fs::File::create(path).with_context(|| format!("create {}", path.display()))?;
    file.set_len(size).with_context(|| format!("size {}", path.display()))
}

/// Runs a command to its end; its output.
pub(crate) fn execute(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout)
}

/// Writes every block of an export once, with data that does not compress, and flushes.
pub(crate) fn fill(server: &Server, size: u64, scratch: &Path) -> Result<()> {
    fill_export(&server.uri, size, scratch).with_context(|| format!("fill the volume of {}", server.name))
}

/// Writes every block of the export at `uri` once, with data that does not compress, and flushes.
pub(crate) fn fill_export(uri: &str, size: u64, scratch: &Path) -> Result<()> {
    fio::run(&Job::writes("write", 1 << 20, 8, size, 1), uri, scratch)?;
    Ok(())
}

/// Reads every block of an export once in random order, which leaves it cached in small folios.
pub(crate) fn warm(server: &Server, size: u64, scratch: &Path) -> Result<()> {
    let job = Job::reads(Amount::Bytes(size), true, 2);
    fio::run(&job, &server.uri, scratch).with_context(|| format!("read the volume of {}", server.name))?;
    Ok(())
}

/// Where the admin API of a server with this data directory listens.
fn api_socket(data: &Path) -> PathBuf {
    data.join("hindcast.sock")
}

fn client(data: &Path) -> Result<hindcast_api::Client> {
    let client = hindcast_api::Client::new(Endpoint::Unix(api_socket(data)), None)?;
    Ok(client.with_patience(Some(PATIENCE)))
}

/// How to run Hindcast: the binary, its data directory, and its settings.
pub(crate) struct Hindcast {
    /// Name in reports, and of its directory.
    name: &'static str,
    binary: PathBuf,
    data: PathBuf,
    args: Vec<String>,
    api: hindcast_api::Client,
    /// Its iSCSI portal's port on the loopback address.
    iscsi: Option<u16>,
}

impl Hindcast {
    /// Settings for a fresh data directory in `dir`.
    pub(crate) fn new(common: &Common, dir: &Path, pool: u64, journal: u64) -> Result<Hindcast> {
        let binary = match &common.hindcast {
            Some(path) => path.clone(),
            None => std::env::current_exe().context("find this program")?.with_file_name("hindcast"),
        };
        if !binary.exists() {
            bail!("{} does not exist: `cargo build --release`, or --hindcast PATH", binary.display());
        }
        let mut args = vec![format!("--pool-size={pool}"), format!("--journal-size={journal}")];
        args.extend(common.serve_args.iter().cloned());
        let data = dir.join(HINDCAST);
        Ok(Hindcast { name: HINDCAST, binary, api: client(&data)?, data, args, iscsi: None })
    }

    /// The settings of this server for another build beside it, with a data directory and a portal
    /// of its own.
    pub(crate) fn another(&self, binary: &Path) -> Result<Hindcast> {
        ensure!(binary.exists(), "{} does not exist", binary.display());
        let data = self.data.with_file_name(BEFORE);
        Ok(Hindcast {
            name: BEFORE,
            binary: binary.to_owned(),
            api: client(&data)?,
            data,
            args: self.args.clone(),
            iscsi: self.iscsi.map(|_| free_port()).transpose()?,
        })
    }

    /// Starts it, with one volume, `bench`, that NBD exports, or an initiator finds where there is
    /// a portal.
    pub(crate) fn start_with_volume(&self, size: u64) -> Result<Server> {
        const VOLUME: &str = "bench";
        let mut server = self.start(VOLUME)?;
        self.create_volume(VOLUME, size, 16 << 10)?;
        if let Some(url) = self.iscsi_url(VOLUME) {
            server.uri = url;
        }
        server.wait_ready()?;
        Ok(server)
    }

    /// A server like the one of [`Hindcast::new`], with an iSCSI portal.
    pub(crate) fn with_iscsi(common: &Common, dir: &Path, pool: u64, journal: u64) -> Result<Hindcast> {
        Ok(Hindcast { iscsi: Some(free_port()?), ..Hindcast::new(common, dir, pool, journal)? })
    }

    /// What an initiator calls a volume; `None` without a portal.
    pub(crate) fn iscsi_url(&self, volume: &str) -> Option<String> {
        Some(format!("iscsi://127.0.0.1:{}/iqn.2026-11.io.hindcast:{volume}/0", self.iscsi?))
    }

    /// With one more argument of `serve`.
    pub(crate) fn with(mut self, arg: String) -> Hindcast {
        self.args.push(arg);
        self
    }

    /// Starts the daemon and waits until its admin API answers; `export` need not exist yet.
    pub(crate) fn start(&self, export: &str) -> Result<Server> {
        std::fs::create_dir_all(&self.data).context("create the data directory")?;
        let mut server = self.launch(export)?;
        let start = Instant::now();
        while let Err(error) = self.api.status() {
            if let Some(status) = server.child.try_wait().context("look after the server")? {
                bail!("{} ended at once: {status}; its log is in {}", self.name, self.log().display());
            }
            if start.elapsed() > START_LIMIT {
                return Err(Error::from(error).context(format!("{} does not answer", self.name)));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Starts the daemon and does not wait.
    pub(crate) fn launch(&self, export: &str) -> Result<Server> {
        let socket = self.data.join("nbd.sock");
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .with_context(|| format!("open {}", self.log().display()))?;
        let mut command = Command::new(&self.binary);
        command
            .arg("serve")
            .arg("--create")
            .arg("--data")
            .arg(&self.data)
            .arg(format!("--nbd=unix:{}", socket.display()))
            .arg(match self.iscsi {
                Some(port) => format!("--iscsi=127.0.0.1:{port}"),
                None => "--iscsi=none".to_owned(),
            })
            .args(&self.args)
            .env("HINDCAST_ISCSI", "none")
            .stdout(log.try_clone().context("share the log")?)
            .stderr(log);
        Server::start(self.name, &mut command, uri(&socket, export))
    }

    fn log(&self) -> PathBuf {
        self.data.with_extension("log")
    }

    /// How long a command takes, its start included, which writes its table for people.
    pub(crate) fn time_command(&self, args: &[&str]) -> Result<Duration> {
        let mut command = Command::new(&self.binary);
        command.args(args).env("HINDCAST_SOCKET", api_socket(&self.data));
        Ok(timed(|| execute(&mut command))?.1)
    }

    /// What a client connects to, for a volume or a snapshot (`VOLUME@NAME`).
    pub(crate) fn export(&self, name: &str) -> String {
        uri(&self.data.join("nbd.sock"), name)
    }

    /// A connection of our own to a volume, a snapshot or a moment.
    pub(crate) fn connect(&self, export: &str) -> Result<Client> {
        Client::connect(&self.data.join("nbd.sock"), export)
    }

    /// The client of its admin API.
    pub(crate) fn api(&self) -> &hindcast_api::Client {
        &self.api
    }

    /// Creates a volume of `size` bytes with chunks of `chunk` bytes.
    pub(crate) fn create_volume(&self, name: &str, size: u64, chunk: u64) -> Result<()> {
        let new = CreateVolume { chunk_size: Some(chunk), ..volume(name, size) };
        self.api.create_volume(&new).with_context(|| format!("create the volume {name}"))?;
        Ok(())
    }
}

/// A volume to create, with the server's defaults.
pub(crate) fn volume(name: &str, size: u64) -> CreateVolume {
    CreateVolume {
        name: name.to_owned(),
        size,
        origin: None,
        chunk_size: None,
        block_size: None,
        read_only: false,
        method: None,
        cdp: None,
    }
}

/// Does something, and returns how long that took, too.
pub(crate) fn timed<T, E>(work: impl FnOnce() -> Result<T, E>) -> Result<(T, Duration), E> {
    let start = Instant::now();
    Ok((work()?, start.elapsed()))
}
