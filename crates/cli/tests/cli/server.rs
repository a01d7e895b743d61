//! For tests: a real server, started from the built binary on a directory of its own, and commands
//! that are sent to it.

use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Variable of a command that shall listen at the default addresses.
const DEFAULT: &str = "TEST_DEFAULT_ADDRESS";

/// The program, without anything from the environment that could lead it to another server, or make
/// it listen where another test does.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hindcast"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HINDCAST_") {
            command.env_remove(name);
        }
    }
    command.env("HINDCAST_NBD", "none").env("HINDCAST_ISCSI", "none");
    command
}

/// A script that ends in the program.
fn shell(script: &str) -> Command {
    let program = program();
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(program.get_program());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

/// A running server; killed when dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) dir: PathBuf,
}

impl Server {
    /// Starts a server on `dir`, and waits until it answers.
    /// Where there is no pool it makes a small one.
    pub(crate) fn start(dir: &Path) -> Server {
        Self::start_with(dir, &[])
    }

    /// Starts a server that listens at the default addresses.
    pub(crate) fn start_at_default(dir: &Path) -> Server {
        let mut program = program();
        program.env(DEFAULT, "");
        Self::started(program, dir, &[])
    }

    pub(crate) fn start_with(dir: &Path, args: &[&str]) -> Server {
        Self::started(program(), dir, args)
    }

    /// One that may have so many files open.
    pub(crate) fn start_limited(dir: &Path, files: u32, args: &[&str]) -> Server {
        Self::started(shell(&format!(r#"ulimit -n {files}; exec "$0" "$@""#)), dir, args)
    }

    /// One that logs to a file. `args` have the option `--log`.
    pub(crate) fn start_logged(dir: &Path, log: &Path, args: &[&str]) -> Server {
        let mut command = shell(r#"exec "$0" "$@" 2>"$TEST_LOG""#);
        command.env("TEST_LOG", log);
        Self::started(command, dir, args)
    }

    fn started(mut command: Command, dir: &Path, args: &[&str]) -> Server {
        let create: &[&str] = if dir.join("catalog.redb").exists() { &[] } else { &["--create"] };
        let socket = format!("unix:{}", dir.join("hindcast.sock").display());
        // Only one server of this machine can have the default address.
        let chosen = args.contains(&"--api") || command.get_envs().any(|(name, _)| name == DEFAULT);
        let listen: &[&str] = if chosen { &[] } else { &["--api", &socket] };
        let log: &[&str] = if args.contains(&"--log") { &[] } else { &["--log", "warn"] };
        let child = command
            .args(["serve", "--pool-size", "64M", "--journal-size", "16M", "--data"])
            .arg(dir)
            .args(log)
            .args(create)
            .args(listen)
            .args(args)
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut server = Server { child, dir: dir.to_path_buf() };
        let end = Instant::now() + START_TIMEOUT;
        while server.run(&["status"]).status.code() != Some(0) {
            assert!(server.child.try_wait().unwrap().is_none(), "the server ended early");
            assert!(Instant::now() < end, "the server did not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("hindcast.sock")
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        program().arg("--socket").arg(self.socket()).args(args).output().unwrap()
    }

    /// A command that succeeds; its output.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// A command that succeeds with `-o json`; its value.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[args, &["-o", "json"]].concat())).unwrap()
    }

    /// A command that fails: its code, and its one line on stderr.
    pub(crate) fn fails(&self, args: &[&str]) -> (i32, String) {
        failure(self.run(args))
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: &str) {
        let kill = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(kill.success());
    }

    /// Sends a signal, waits for the end, and tells the exit code.
    pub(crate) fn stop(mut self, signal: &str) -> Option<i32> {
        self.signal(signal);
        self.child.wait().unwrap().code()
    }

    /// A bare HTTP request over the socket: status code and body.
    pub(crate) fn http(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        read_response(stream)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn read_response(mut stream: impl Read) -> (u16, String) {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// The exit code of a failed command, and its message, which has to be one line. Before it may be
/// the line that says which moment the command understood.
pub(crate) fn failure(output: Output) -> (i32, String) {
    let all = String::from_utf8(output.stderr).unwrap();
    let text = match all.split_once('\n') {
        Some((said, rest)) if said.contains(", lsn:") && !said.starts_with("hindcast: ") => rest.to_owned(),
        _ => all,
    };
    assert!(text.starts_with("hindcast: ") && text.trim_end().lines().count() == 1, "{text:?}");
    (output.status.code().unwrap(), text)
}
