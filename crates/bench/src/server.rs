//! The servers under test: Hindcast and its peers. Each is a child process. Clients connect to a
//! Unix socket (NBD) or to a TCP port of the loopback address (iSCSI).

use crate::Common;
use crate::fio::{self, Amount, Job};
use crate::nbd::Client;
use anyhow::{Context, Error, Result, bail, ensure};
use hindcast_api::{CreateVolume, Endpoint};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Name of the server under test in reports.
pub(crate) const HINDCAST: &str = "hindcast";
/// Name of another build of the server in reports.
pub(crate) const BEFORE: &str = "before";
/// Longest time until a server answers after its start.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Longest time that a request of the admin API may take. A batch of many volumes takes minutes.
const PATIENCE: Duration = Duration::from_secs(900);

/// A running server. Dropping it kills the process.
pub(crate) struct Server {
    /// Name of the server in reports.
    pub(crate) name: &'static str,
    /// URI that a client connects to.
    pub(crate) uri: String,
    child: Child,
}

impl Server {
    fn start(name: &'static str, command: &mut Command, uri: String) -> Result<Server> {
        let child =
            command.stdin(Stdio::null()).spawn().with_context(|| format!("start {name}: {command:?}"))?;
        Ok(Server { name, uri, child })
    }

    /// Returns the process ID.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process with SIGKILL, and waits until it has ended.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill().context("kill the server")?;
        self.child.wait().context("reap the server")?;
        Ok(())
    }

    /// Stops the process with SIGTERM, as an operator does, and waits until it has ended.
    pub(crate) fn stop(&mut self) -> Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).context("stop the server")?;
        self.child.wait().context("reap the server")?;
        Ok(())
    }

    /// Waits until a client program gets the size of the export or logical unit at `uri`.
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
    /// Waits until the export can be opened. The function connects by itself and starts no client
    /// program, because some of the measured starts take only milliseconds.
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

/// Starts `nbdkit file` on a new sparse file.
pub(crate) fn nbdkit(dir: &Path, size: u64) -> Result<Server> {
    nbdkit_on(&dir.join("nbdkit.raw"), size, dir)
}

/// Starts `nbdkit file` on a new sparse file of `size` bytes at the path `file`.
pub(crate) fn nbdkit_on(file: &Path, size: u64, dir: &Path) -> Result<Server> {
    let socket = dir.join("nbdkit.sock");
    sparse_file(file, size)?;
    let mut command = Command::new("nbdkit");
    command.arg("-f").arg("-U").arg(&socket).arg("file").arg(file);
    let mut server = Server::start("nbdkit file", &mut command, uri(&socket, ""))?;
    server.wait_ready()?;
    Ok(server)
}

/// Starts `qemu-nbd` on a new image of `format` (raw, qcow2).
pub(crate) fn qemu_nbd(dir: &Path, size: u64, format: &'static str) -> Result<Server> {
    let file = dir.join(format!("qemu.{format}"));
    execute(Command::new("qemu-img").args(["create", "-q", "-f", format]).arg(&file).arg(size.to_string()))?;
    qemu_nbd_on(&file, dir, format)
}

/// Starts `qemu-nbd` on an existing image of `format` (raw, qcow2).
pub(crate) fn qemu_nbd_on(file: &Path, dir: &Path, format: &'static str) -> Result<Server> {
    let socket = dir.join(format!("qemu-{format}.sock"));
    let mut command = Command::new("qemu-nbd");
    command.args(["-t", "-e", "8", "-f", format, "-k"]).arg(&socket).arg(file);
    let name = if format == "raw" { "qemu-nbd raw" } else { "qemu-nbd qcow2" };
    let mut server = Server::start(name, &mut command, uri(&socket, ""))?;
    server.wait_ready()?;
    Ok(server)
}

/// Returns a TCP port of the loopback address on which no process listens.
fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").context("find a free port")?;
    Ok(listener.local_addr().context("find a free port")?.port())
}

/// Starts `tgtd` with one logical unit. With a `size`, the unit is on a new file of that many
/// bytes. Without one, it is on tgt's null store, whose size tgt chooses.
pub(crate) fn tgt(name: &'static str, dir: &Path, size: Option<u64>) -> Result<Server> {
    const TARGET: &str = "iqn.2026-11.io.hindcast.bench:tgt";
    let port = free_port()?;
    // The number of the control port must be below 2^15. It only names a socket. A number from a
    // free TCP port is practically unique.
    let control = (port & 0x7fff).to_string();
    let log = std::fs::File::create(dir.join(format!("{name}.log"))).context("create a log")?;
    let mut command = Command::new("tgtd");
    command.args(["-f", "-C", &control, "--iscsi", &format!("portal=127.0.0.1:{port}")]);
    command.stdout(log.try_clone().context("share a log")?).stderr(log);
    // LUN 0 is the controller of tgt.
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
        // `tgtadm` requires the name of a file. The null store does not use the file.
        None => drop(admin(&[&unit[..], &["--bstype", "null", "-b", "/dev/null"]].concat())?),
    }
    admin(&["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"])?;
    server.wait_ready()?;
    Ok(server)
}

/// Creates an empty file of `size` bytes that takes no space on the disk.
pub(crate) fn sparse_file(path: &Path, size: u64) -> Result<()> {
    let file = std::fs::File::create(path).with_context(|| format!("create {}", path.display()))?;
    file.set_len(size).with_context(|| format!("size {}", path.display()))
}

/// Runs a command to its end, and returns its standard output. Fails if the command fails.
pub(crate) fn execute(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout)
}

/// Writes every block of a server's export once, with data that does not compress, and flushes.
pub(crate) fn fill(server: &Server, size: u64, scratch: &Path) -> Result<()> {
    fill_export(&server.uri, size, scratch).with_context(|| format!("fill the volume of {}", server.name))
}

/// Writes every block of the export at `uri` once, with data that does not compress, and flushes.
pub(crate) fn fill_export(uri: &str, size: u64, scratch: &Path) -> Result<()> {
    fio::run(&Job::writes("write", 1 << 20, 8, size, 1), uri, scratch)?;
    Ok(())
}

/// Reads every block of an export once in random order. The export is then cached in small folios.
pub(crate) fn warm(server: &Server, size: u64, scratch: &Path) -> Result<()> {
    let job = Job::reads(Amount::Bytes(size), true, 2);
    fio::run(&job, &server.uri, scratch).with_context(|| format!("read the volume of {}", server.name))?;
    Ok(())
}

/// Returns the path of the socket on which the admin API of a server with this data directory
/// listens.
fn api_socket(data: &Path) -> PathBuf {
    data.join("hindcast.sock")
}

fn client(data: &Path) -> Result<hindcast_api::Client> {
    let client = hindcast_api::Client::new(Endpoint::Unix(api_socket(data)), None)?;
    Ok(client.with_patience(Some(PATIENCE)))
}

/// How to run Hindcast: the binary, its data directory, and its settings.
pub(crate) struct Hindcast {
    /// Name of the server in reports, and of its data directory.
    name: &'static str,
    binary: PathBuf,
    data: PathBuf,
    args: Vec<String>,
    api: hindcast_api::Client,
    /// TCP port of the server's iSCSI portal on the loopback address, if it has one.
    iscsi: Option<u16>,
}

impl Hindcast {
    /// Returns the settings of a server with a new data directory in `dir`. `pool` and `journal`
    /// are sizes in bytes. The server is not started.
    pub(crate) fn new(common: &Common, dir: &Path, pool: u64, journal: u64) -> Result<Hindcast> {
        Hindcast::named(common, HINDCAST, dir, pool, journal)
    }

    /// Returns the settings of [`Hindcast::new`] with another name, so that several servers of one
    /// build run side by side.
    pub(crate) fn named(
        common: &Common,
        name: &'static str,
        dir: &Path,
        pool: u64,
        journal: u64,
    ) -> Result<Hindcast> {
        let binary = match &common.hindcast {
            Some(path) => path.clone(),
            None => std::env::current_exe().context("find this program")?.with_file_name("hindcast"),
        };
        if !binary.exists() {
            bail!("{} does not exist: `cargo build --release`, or --hindcast PATH", binary.display());
        }
        let mut args = vec![format!("--pool-size={pool}"), format!("--journal-size={journal}")];
        args.extend(common.serve_args.iter().cloned());
        // Sockets have paths of about 100 bytes at most, and URIs have no spaces.
        let data = dir.join(name.replace([' ', ',', '+'], ""));
        Ok(Hindcast { name, binary, api: client(&data)?, data, args, iscsi: None })
    }

    /// Returns the path of the server's binary.
    pub(crate) fn binary(&self) -> &Path {
        &self.binary
    }

    /// Returns the settings of this server for another build, `binary`, that runs beside it. The
    /// other server has its own data directory and its own iSCSI portal.
    pub(crate) fn another(&self, binary: &Path, args: &[String]) -> Result<Hindcast> {
        ensure!(binary.exists(), "{} does not exist", binary.display());
        let data = self.data.with_file_name(BEFORE);
        Ok(Hindcast {
            name: BEFORE,
            binary: binary.to_owned(),
            api: client(&data)?,
            data,
            args: self.args.iter().chain(args).cloned().collect(),
            iscsi: self.iscsi.map(|_| free_port()).transpose()?,
        })
    }

    /// Starts the server, and creates one volume, `bench`, of `size` bytes. Its chunks have the
    /// server's default size (`--serve-arg=--chunk=SIZE`). The URI of the server is the volume's
    /// NBD export. If the server has an iSCSI portal, the URI is the volume's iSCSI URL.
    pub(crate) fn start_with_volume(&self, size: u64) -> Result<Server> {
        const VOLUME: &str = "bench";
        let mut server = self.start(VOLUME)?;
        self.api.create_volume(&volume(VOLUME, size)).context("create the volume")?;
        if let Some(url) = self.iscsi_url(VOLUME) {
            server.uri = url;
        }
        server.wait_ready()?;
        Ok(server)
    }

    /// Enables features in the pool of the running server.
    pub(crate) fn enable(&self, features: &[String]) -> Result<()> {
        if features.is_empty() {
            return Ok(());
        }
        let upgrade = hindcast_api::Upgrade { enable: features.to_vec(), dry_run: false };
        self.api.upgrade(&upgrade).context("upgrade the pool").map(drop)
    }

    /// Returns the settings of [`Hindcast::new`], with an iSCSI portal in addition.
    pub(crate) fn with_iscsi(common: &Common, dir: &Path, pool: u64, journal: u64) -> Result<Hindcast> {
        Ok(Hindcast { iscsi: Some(free_port()?), ..Hindcast::new(common, dir, pool, journal)? })
    }

    /// Returns the iSCSI URL of a volume, or `None` if the server has no portal.
    pub(crate) fn iscsi_url(&self, volume: &str) -> Option<String> {
        Some(format!("iscsi://127.0.0.1:{}/iqn.2026-11.io.hindcast:{volume}/0", self.iscsi?))
    }

    /// Lets the server listen for the admin API on a free TCP port of the loopback address, too.
    pub(crate) fn with_api_over_tcp(self) -> Hindcast {
        let socket = format!("--api=unix:{}", api_socket(&self.data).display());
        self.with(socket).with("--api=127.0.0.1:0".to_owned())
    }

    /// Returns the TCP address of the admin API of a running server.
    pub(crate) fn api_over_tcp(&self) -> Result<SocketAddr> {
        let listeners = self.api.status().context("ask for the listeners")?.listeners.api;
        listeners.iter().find_map(|listener| listener.parse().ok()).context("no listener over TCP")
    }

    /// Adds an argument of `hindcast serve`.
    pub(crate) fn with(mut self, arg: String) -> Hindcast {
        self.args.push(arg);
        self
    }

    /// Starts the daemon, and waits until its admin API answers. `export` is the NBD export in the
    /// URI of the server, and does not have to exist yet.
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

    /// Starts the daemon without waiting. `export` is the NBD export in the URI of the server, and
    /// does not have to exist yet.
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

    /// Returns the data directory.
    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    fn log(&self) -> PathBuf {
        self.data.with_extension("log")
    }

    /// Runs a command of the server's binary, which writes its table for people. Returns how long
    /// it took. The time includes the start of the process.
    pub(crate) fn time_command(&self, args: &[&str]) -> Result<Duration> {
        let mut command = Command::new(&self.binary);
        command.args(args).env("HINDCAST_SOCKET", api_socket(&self.data));
        Ok(timed(|| execute(&mut command))?.1)
    }

    /// Returns the NBD URI of a volume or of a snapshot (`VOLUME@NAME`).
    pub(crate) fn export(&self, name: &str) -> String {
        uri(&self.data.join("nbd.sock"), name)
    }

    /// Connects a client of the benchmark itself to the NBD export of a volume, a snapshot or a
    /// moment.
    pub(crate) fn connect(&self, export: &str) -> Result<Client> {
        Client::connect(&self.data.join("nbd.sock"), export)
    }

    /// Returns the client of the server's admin API.
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

/// Returns a request that creates a volume of `size` bytes with the server's defaults.
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
        on: None,
        placement: None,
        direct_min: None,
    }
}

/// Runs `work`. Returns its result and how long it took.
pub(crate) fn timed<T, E>(work: impl FnOnce() -> Result<T, E>) -> Result<(T, Duration), E> {
    let start = Instant::now();
    Ok((work()?, start.elapsed()))
}
