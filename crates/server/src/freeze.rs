//! Commands that run before and after a snapshot, so that a file system or database is consistent
//! in it. Examples are `fsfreeze`, or the backup mode of a database.
//!
//! A frozen program is always thawed. A guardian process runs the command that thaws: on request,
//! at the deadline, and when this process ends in any way.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Default time for which the commands may keep a program frozen.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Script of the guardian. It reads process groups, one a line, until its input ends. Then it kills
/// the last group, if that is not empty, and becomes the command that thaws. It ignores signals
/// that ask it to end, because a service manager sends them to all processes of a unit.
const GUARDIAN: &str = r#"trap '' HUP INT TERM
while read -r line; do group=$line; done
[ -n "$group" ] && kill -s KILL -- "-$group" 2>/dev/null
exec sh -c "$1" </dev/null"#;
/// Script of the command before a snapshot. It waits until the guardian knows the process.
const GUARDED: &str = r#"read -r go || exit 1
exec sh -c "$1" </dev/null"#;

/// Commands to run around a snapshot, by `sh -c`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hooks {
    /// Command to run before the snapshot. If it fails, no snapshot is taken.
    pub before: Option<String>,
    /// Command to run after the snapshot. It also runs if `before` or the snapshot failed.
    pub after: Option<String>,
    /// Time after the start of `before` at which `after` runs at the latest.
    pub timeout: Duration,
}

/// Commands around snapshots, by volume.
pub(crate) type VolumeHooks = BTreeMap<String, Hooks>;

/// Why a freeze has no valid result.
#[derive(Debug)]
pub enum FreezeError<T, E> {
    /// The command before the snapshot could not be run, failed, or took too long. The work was not
    /// done.
    Before(String),
    /// The work failed.
    Work(E),
    /// The work was done after the deadline. Its result is not of a frozen state.
    Late(T),
    /// The work was done. Then the command after it failed.
    After(T, String),
}

/// Does `work` between the two commands.
pub fn frozen<T, E>(hooks: &Hooks, work: impl FnOnce() -> Result<T, E>) -> Result<T, FreezeError<T, E>> {
    let end = Instant::now() + hooks.timeout;
    let mut guardian = Guardian::start(hooks.after.as_deref()).map_err(FreezeError::Before)?;
    if let Some(Err(why)) = hooks.before.as_deref().map(|command| guardian.run_before(command, end)) {
        return Err(FreezeError::Before(match guardian.thaw(hooks.timeout) {
            Ok(()) => why,
            Err(after) => format!("{why}; {after}"),
        }));
    }
    let (done, when_done) = mpsc::channel::<()>();
    let timed = move || {
        let left = end.saturating_duration_since(Instant::now());
        let late = matches!(when_done.recv_timeout(left), Err(RecvTimeoutError::Timeout));
        (late, guardian.thaw(hooks.timeout))
    };
    std::thread::scope(|scope| {
        // Where there is none to be had the guardian goes with the closure, and thaws.
        let timer = std::thread::Builder::new()
            .spawn_scoped(scope, timed)
            .map_err(|e| FreezeError::Before(format!("start the thread of the freeze timeout: {e}")))?;
        let result = work();
        drop(done);
        let thawed = timer.join().unwrap_or_else(|_| {
            (true, Err("run the command after the snapshot: its thread panicked".into()))
        });
        match (result, thawed) {
            (Err(error), _) => Err(FreezeError::Work(error)),
            (Ok(done), (true, _)) => Err(FreezeError::Late(done)),
            (Ok(done), (false, Err(why))) => Err(FreezeError::After(done, why)),
            (Ok(done), (false, Ok(()))) => Ok(done),
        }
    })
}

/// Waits for the end of a process on a thread of its own. If no thread can be started, the process
/// stays a zombie until this process ends.
pub(crate) fn reap(mut process: Child) {
    let _ = std::thread::Builder::new().spawn(move || process.wait());
}

/// The process that thaws.
struct Guardian {
    process: Child,
    /// Input of the guardian. The guardian thaws when it ends, and it ends with this process.
    orders: ChildStdin,
}

impl Guardian {
    fn start(after: Option<&str>) -> Result<Guardian, String> {
        let fail = |e: &dyn fmt::Display| format!("start the guardian of the freeze: {e}");
        let (process, orders) = shell(GUARDIAN, after.unwrap_or(":")).map_err(|e| fail(&e))?;
        Ok(Guardian { process, orders })
    }

    /// Runs the command before the snapshot, which has to end before `end`.
    fn run_before(&mut self, command: &str, end: Instant) -> Result<(), String> {
        let fail = |e: &dyn fmt::Display| format!("run {command:?} before the snapshot: {e}");
        let (mut process, mut go) = shell(GUARDED, command).map_err(|e| fail(&e))?;
        // The guardian knows the process first, so that it can end the process from its beginning
        // on.
        let told = writeln!(self.orders, "{}", process.id()).and_then(|()| go.write_all(b"go\n"));
        drop(go);
        let waited = told.map_err(|e| fail(&e)).and_then(|()| match wait(&mut process, end) {
            Ok(Some(status)) if status.success() => Ok(()),
            Ok(Some(status)) => Err(fail(&status)),
            Ok(None) => Err(fail(&"it did not end before the freeze timeout")),
            Err(e) => Err(fail(&e)),
        });
        match waited {
            Ok(()) => writeln!(self.orders).map_err(|e| fail(&e)),
            Err(why) => {
                // Its group is the guardian's to kill; what is left of it here is reaped.
                reap(process);
                Err(why)
            }
        }
    }

    /// Starts the command after the snapshot, and waits for it at most for `patience`.
    fn thaw(mut self, patience: Duration) -> Result<(), String> {
        drop(self.orders);
        match wait(&mut self.process, Instant::now() + patience) {
            Ok(Some(status)) if status.success() => Ok(()),
            Ok(Some(status)) => Err(format!("run the command after the snapshot: {status}")),
            Ok(None) => {
                reap(self.process);
                Err("run the command after the snapshot: it did not end before the freeze timeout".into())
            }
            Err(e) => Err(format!("wait for the command after the snapshot: {e}")),
        }
    }
}

/// Starts a shell with a process group of its own, so that signals of a terminal to the group of
/// this process do not reach it. The output of commands goes to standard error, because standard
/// output is for results.
fn shell(script: &str, command: &str) -> std::io::Result<(Child, ChildStdin)> {
    let mut process = Command::new("sh")
        .args(["-c", script, "hindcast-hook", command])
        .stdin(Stdio::piped())
        .process_group(0)
        .spawn()?;
    match process.stdin.take() {
        Some(stdin) => Ok((process, stdin)),
        None => Err(std::io::Error::other("no pipe")),
    }
}

/// Waits for a process. Returns `None` if it has not ended by `end`.
pub(crate) fn wait(process: &mut Child, end: Instant) -> std::io::Result<Option<ExitStatus>> {
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = process.try_wait()? {
            return Ok(Some(status));
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn hooks(before: &str, after: &str, millis: u64) -> Hooks {
        let timeout = Duration::from_millis(millis);
        Hooks { before: Some(before.into()), after: Some(after.into()), timeout }
    }

    fn lines(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap_or_default().replace('\n', " ")
    }

    fn note(path: &Path, what: &str) -> String {
        format!("echo {what} >>{}", path.display())
    }

    #[test]
    fn work_is_done_in_between() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let hooks = hooks(&note(&log, "before"), &note(&log, "after"), 20_000);
        let seen = frozen(&hooks, || Ok::<_, ()>(lines(&log))).unwrap();
        assert_eq!(seen, "before ");
        assert_eq!(lines(&log), "before after ");
    }

    /// A service manager that stops a unit signals all of its processes.
    #[test]
    fn the_guardian_thaws_though_it_is_told_to_end() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let guardian = Guardian::start(Some(&note(&log, "after"))).unwrap();
        let status = format!("/proc/{}/status", guardian.process.id());
        let ignores = |signal: u32| {
            let status = std::fs::read_to_string(&status).unwrap();
            let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
            u64::from_str_radix(set.trim(), 16).unwrap() >> (signal - 1) & 1 == 1
        };
        let end = Instant::now() + Duration::from_secs(20);
        while !ignores(15) {
            assert!(Instant::now() < end, "it does not ignore SIGTERM");
            std::thread::sleep(Duration::from_millis(1));
        }
        let group = format!("-{}", guardian.process.id());
        assert!(Command::new("sh").args(["-c", "kill -s TERM -- $0", &group]).status().unwrap().success());
        std::thread::sleep(Duration::from_millis(50));
        guardian.thaw(Duration::from_secs(20)).unwrap();
        assert_eq!(lines(&log), "after ");
    }

    #[test]
    fn what_fails_is_thawed_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let failing = hooks("exit 7", &note(&log, "after"), 20_000);
        let error = frozen(&failing, || -> Result<(), ()> { panic!("was run") }).unwrap_err();
        assert!(matches!(&error, FreezeError::Before(why) if why.contains('7')), "{error:?}");
        assert_eq!(lines(&log), "after ");

        let working = hooks("true", &note(&log, "again"), 20_000);
        assert!(matches!(frozen(&working, || Err::<(), _>("no")), Err(FreezeError::Work("no"))));
        assert_eq!(lines(&log), "after again ");

        let broken = hooks("true", "exit 3", 20_000);
        assert!(matches!(frozen(&broken, || Ok::<_, ()>(1)), Err(FreezeError::After(1, _))));
    }

    #[test]
    fn at_the_deadline_it_is_thawed_under_the_work() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let hooks = hooks("true", &note(&log, "after"), 300);
        let work = || {
            let end = Instant::now() + Duration::from_secs(20);
            while lines(&log).is_empty() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok::<_, ()>(lines(&log))
        };
        assert!(matches!(frozen(&hooks, work), Err(FreezeError::Late(seen)) if seen == "after "));
    }

    /// If a command before the snapshot hangs, it is killed with all its processes before the
    /// command after runs.
    #[test]
    fn a_hanging_command_is_killed_first() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let slow = format!("{}; sleep 3 & sleep 3; {}", note(&log, "frozen"), note(&log, "too-late"));
        let error =
            frozen(&hooks(&slow, &note(&log, "after"), 1000), || -> Result<(), ()> { panic!("was run") });
        assert!(
            matches!(&error, Err(FreezeError::Before(why)) if why.contains("did not end before the freeze timeout")),
            "{error:?}"
        );
        std::thread::sleep(Duration::from_millis(3000));
        assert_eq!(lines(&log), "frozen after ");
    }
}
