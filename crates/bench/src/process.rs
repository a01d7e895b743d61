//! Figures that Linux reports about a process: CPU time and memory.

use crate::samples::{Outcome, Sample};
use anyhow::{Context, Result};
use preempt_rt::sched::{Pid, Scheduler, SchedulerParams, set_scheduler};
use std::time::{Duration, Instant};

/// Does something on a thread that runs before all ordinary ones, where that is allowed: how long
/// the one who measures waits for a processor that the load keeps busy is not the server's doing.
pub(crate) fn first<T>(work: impl FnOnce() -> T) -> T {
    let schedule = |scheduler, priority| {
        set_scheduler(Pid::current_thread(), scheduler, SchedulerParams { priority }).is_ok()
    };
    let raised = schedule(Scheduler::SCHED_RR, 1);
    let done = work();
    if raised {
        schedule(Scheduler::SCHED_NORMAL, 0);
    }
    done
}

/// CPU time (user and system) of all threads of a process, also of those that have ended.
/// Granularity: one tick (10 ms), so measure over seconds.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("read CPU time of process {pid}: has it died?"))?;
    let ticks = parse_cpu_ticks(&stat).with_context(|| format!("parse /proc/{pid}/stat: {stat:?}"))?;
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// Fields 14 and 15 (utime, stime); the command name in field 2 may hold spaces and parentheses.
fn parse_cpu_ticks(stat: &str) -> Option<u64> {
    let after_name = stat.rsplit_once(')')?.1;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Memory of a process in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Memory {
    /// Peak resident set, mapped files included (VmHWM).
    pub(crate) peak: u64,
    /// Resident set now, mapped files included (VmRSS).
    pub(crate) resident: u64,
    /// Resident anonymous memory now (RssAnon).
    pub(crate) anonymous: u64,
}

/// Reads `/proc/PID/status`.
pub(crate) fn memory(pid: u32) -> Result<Memory> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("read memory of process {pid}: has it died?"))?;
    let field = |name: &str| {
        parse_kib(&status, name).with_context(|| format!("/proc/{pid}/status has no usable {name}"))
    };
    Ok(Memory { peak: field("VmHWM:")?, resident: field("VmRSS:")?, anonymous: field("RssAnon:")? })
}

/// How many files a process has open.
pub(crate) fn open_files(pid: u32) -> Result<usize> {
    let path = format!("/proc/{pid}/fd");
    Ok(std::fs::read_dir(&path).with_context(|| format!("list {path}: has it died?"))?.count())
}

fn parse_kib(status: &str, name: &str) -> Option<u64> {
    let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Waits until a process has been almost idle for a second: its background work (destage,
/// checkpoints) is done. Dirty pages of the machine are written back first, so that they don't
/// burden the server that is measured next.
pub(crate) fn settle(pid: u32, limit: Duration) -> Result<()> {
    const STEP: Duration = Duration::from_millis(250);
    const CALM_STEPS: u32 = 4;
    // One tick a step: a server may have timers.
    const CALM: Duration = Duration::from_millis(11);
    rustix::fs::sync();
    let start = Instant::now();
    let mut calm = 0;
    let mut last = cpu_time(pid)?;
    while calm < CALM_STEPS {
        if start.elapsed() > limit {
            eprintln!("process {pid} is still busy after {limit:?}; going on");
            break;
        }
        std::thread::sleep(STEP);
        let now = cpu_time(pid)?;
        calm = if now.saturating_sub(last) <= CALM { calm + 1 } else { 0 };
        last = now;
    }
    Ok(())
}

/// Runs a client against the server `pid`, and takes what the server spent on it.
pub(crate) fn sample(
    pid: u32,
    settle_limit: Duration,
    client: impl FnOnce() -> Result<Outcome>,
) -> Result<Sample> {
    let before = cpu_time(pid)?;
    let outcome = client()?;
    let after_run = cpu_time(pid)?;
    settle(pid, settle_limit)?;
    let settled = cpu_time(pid)?;
    let per_request =
        |until: Duration| until.saturating_sub(before).as_secs_f64() * 1e6 / outcome.requests as f64;
    Ok(Sample { outcome, cpu_run: per_request(after_run), cpu_settled: per_request(settled) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_with_a_nasty_name() {
        let stat = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1 0";
        assert_eq!(parse_cpu_ticks(stat), Some(300));
        assert_eq!(parse_cpu_ticks("42 (x) S 1"), None);
    }

    #[test]
    fn status_fields() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nRssAnon:\t 4 kB\n";
        assert_eq!(parse_kib(status, "VmHWM:"), Some(2 << 20));
        assert_eq!(parse_kib(status, "RssFile:"), None);
    }

    #[test]
    fn own_process() {
        let own = memory(std::process::id()).unwrap();
        assert!(own.peak > 0 && own.resident >= own.anonymous);
        assert!(open_files(std::process::id()).unwrap() > 0);
        cpu_time(std::process::id()).unwrap();
    }
}
