//! Mounts a volume's file system for a while, by nbdfuse and a loop device.

use super::interrupt::Interrupt;
use crate::failure::Failure;
use hindcast_api::percent_encoded;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time that nbdfuse has to show the disk, and to end.
const PATIENCE: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(20);
/// Gives each helper a process group of its own, so that a Ctrl-C does not reach it. The orderly
/// unmount needs the helpers.
const OWN_GROUP: i32 = 0;

/// Returns the NBD URI of an export of a listener, `HOST:PORT` or `unix:PATH`.
pub(super) fn uri(listener: &str, export: &str) -> String {
    let export = percent_encoded(export, b"@:");
    match listener.strip_prefix("unix:") {
        Some(path) => format!("nbd+unix:///{export}?socket={}", percent_encoded(path, b"/")),
        None => format!("nbd://{listener}/{export}"),
    }
}

/// A mounted file system. A drop unmounts it, even if it was mounted only in part.
pub(super) struct Mounted {
    dir: PathBuf,
    fuse: Option<Child>,
    device: Option<PathBuf>,
    mounted: bool,
}

impl Mounted {
    pub(super) fn new(uri: &str, interrupt: &Interrupt) -> Result<Mounted, Failure> {
        let dir = run(Command::new("mktemp").args(["-d", "-t", "hindcast-bisect-XXXXXX"]))?;
        let mut this = Mounted { dir: PathBuf::from(dir.trim()), fuse: None, device: None, mounted: false };
        for part in [this.fuse_dir(), this.path()] {
            std::fs::create_dir(&part)
                .map_err(|e| Failure::Failed(format!("create {}: {e}", part.display())))?;
        }
        let disk = this.fuse_dir().join("disk");
        let mut fuse = Command::new("nbdfuse");
        fuse.arg(&disk).arg(uri).stdin(Stdio::null()).stdout(Stdio::null()).process_group(OWN_GROUP);
        this.fuse = Some(fuse.spawn().map_err(|e| Failure::Failed(format!("run nbdfuse: {e}")))?);
        this.wait_for("the start of nbdfuse", |this| {
            interrupt.check()?;
            if let Some(Ok(Some(status))) = this.fuse.as_mut().map(Child::try_wait) {
                return Err(Failure::Failed(format!("nbdfuse ended with {status}")));
            }
            Ok(disk.exists())
        })?;
        let device = run(Command::new("losetup").args(["--find", "--show"]).arg(&disk))?;
        this.device = Some(PathBuf::from(device.trim()));
        // Read-only, and yet the file system's own journal is replayed, since the device can be
        // written to.
        run(Command::new("mount").args(["-o", "ro"]).arg(device.trim()).arg(this.path()))?;
        this.mounted = true;
        Ok(this)
    }

    fn fuse_dir(&self) -> PathBuf {
        self.dir.join("fuse")
    }

    /// Mount point of the file system.
    pub(super) fn path(&self) -> PathBuf {
        self.dir.join("mount")
    }

    fn wait_for(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Self) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let end = Instant::now() + PATIENCE;
        while !done(self)? {
            if Instant::now() > end {
                return Err(Failure::Failed(format!(
                    "{what} did not finish within {} s",
                    PATIENCE.as_secs()
                )));
            }
            std::thread::sleep(STEP);
        }
        Ok(())
    }

    /// Unmounts in order, and returns the error of a step that fails.
    pub(super) fn unmount(mut self) -> Result<(), Failure> {
        if self.mounted {
            let path = self.path();
            // The command's last process may hold it for a moment.
            self.wait_for("umount", |_| Ok(quiet("umount", &[&path])))?;
            self.mounted = false;
        }
        if let Some(device) = self.device.take() {
            self.wait_for("losetup -d", |_| Ok(quiet("losetup", &[Path::new("-d"), &device])))?;
        }
        let dir = self.fuse_dir();
        self.wait_for("the unmount of nbdfuse", |_| Ok(quiet("fusermount3", &[Path::new("-u"), &dir])))?;
        if let Some(mut fuse) = self.fuse.take() {
            fuse.wait().map_err(|e| Failure::Failed(format!("wait for nbdfuse: {e}")))?;
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.mounted {
            quiet("umount", &[Path::new("-l"), &self.path()]);
        }
        if let Some(device) = self.device.take() {
            quiet("losetup", &[Path::new("-d"), &device]);
        }
        if let Some(mut fuse) = self.fuse.take() {
            quiet("fusermount3", &[Path::new("-uz"), &self.fuse_dir()]);
            let _ = fuse.kill();
            let _ = fuse.wait();
        }
        // Only what is empty: never the content of a mount that would not go.
        for dir in [self.fuse_dir(), self.path(), self.dir.clone()] {
            let _ = std::fs::remove_dir(dir);
        }
    }
}

fn run(command: &mut Command) -> Result<String, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.stdin(Stdio::null()).process_group(OWN_GROUP).output();
    let done = done.map_err(|e| Failure::Failed(format!("run {name}: {e}")))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    Err(Failure::Failed(format!("{name}: {}", String::from_utf8_lossy(&done.stderr).trim())))
}

fn quiet(program: &str, args: &[&Path]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.process_group(OWN_GROUP);
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_those_of_nbd() {
        assert_eq!(uri("127.0.0.1:10809", "db@lsn:5"), "nbd://127.0.0.1:10809/db@lsn:5");
        assert_eq!(uri("unix:/a b/nbd.sock", "db"), "nbd+unix:///db?socket=/a%20b/nbd.sock");
    }
}
