//! Figures that Linux reports about a process: CPU time, memory and open files.

use crate::samples::{Outcome, Sample};
use anyhow::{Context, Error, Result};
use preempt_rt::sched::{Pid, Scheduler, SchedulerParams, set_scheduler};
use procfs::Current as _;
use procfs::process::Process;
use std::time::{Duration, Instant};

/// Runs `work` on this thread with a real-time priority, if the kernel allows that. The load keeps
/// the processors busy. Without the priority, the measured time would include the time that the
/// measuring thread waits for a processor.
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

fn process(pid: u32) -> Result<Process> {
    let number = i32::try_from(pid).context("a process id")?;
    Process::new(number).with_context(|| format!("look at process {pid}: has it died?"))
}

/// Returns the CPU time (user and system) of all threads of a process. Threads that have ended
/// count too. The granularity is one tick (10 ms), so a measurement must last for seconds.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = process(pid)?.stat().with_context(|| format!("read CPU time of process {pid}"))?;
    let per_second = procfs::ticks_per_second();
    Ok(Duration::from_secs_f64((stat.utime + stat.stime) as f64 / per_second as f64))
}

/// Memory of a process, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Memory {
    /// Peak resident set, mapped files included (VmHWM).
    pub(crate) peak: u64,
    /// Current resident set, mapped files included (VmRSS).
    pub(crate) resident: u64,
    /// Current resident anonymous memory (RssAnon).
    pub(crate) anonymous: u64,
}

/// Returns the memory figures of a process.
pub(crate) fn memory(pid: u32) -> Result<Memory> {
    let status = process(pid)?.status().with_context(|| format!("read memory of process {pid}"))?;
    let bytes = |kib: Option<u64>, name: &str| {
        Ok::<_, Error>(kib.with_context(|| format!("process {pid} has no {name}"))? << 10)
    };
    Ok(Memory {
        peak: bytes(status.vmhwm, "VmHWM")?,
        resident: bytes(status.vmrss, "VmRSS")?,
        anonymous: bytes(status.rssanon, "RssAnon")?,
    })
}

/// Writes to nearly all memory of the machine that is available, and gives it back.
///
/// The first write to a page of a virtual machine's memory costs its host some 3 µs, which the
/// guest counts as its own CPU time. A server that writes to new places in a file uses new pages of
/// the cache, and one that overwrites in place does not. Without this, the benchmark would measure
/// for how long the machine has been running.
pub(crate) fn touch_memory() -> Result<()> {
    const PIECE: usize = 256 << 20;
    // What the machine needs meanwhile.
    const LEFT: u64 = 2 << 30;
    let mut held = Vec::new();
    loop {
        let available = procfs::Meminfo::current().context("read /proc/meminfo")?.mem_available;
        if available.context("/proc/meminfo has no MemAvailable")? < LEFT + PIECE as u64 {
            return Ok(());
        }
        // A value other than 0: zeros would be pages that are not there before they are written.
        held.push(std::hint::black_box(vec![1u8; PIECE]));
    }
}

/// Returns the number of files that a process has open.
pub(crate) fn open_files(pid: u32) -> Result<usize> {
    process(pid)?.fd_count().with_context(|| format!("count the files of process {pid}"))
}

/// Waits until a process has been almost idle for a second. Its background work (destage,
/// checkpoints) is then done. The wait ends after `limit` in any case. All dirty pages of the
/// machine are written back first, so that they do not burden the server that is measured next.
pub(crate) fn settle(pid: u32, limit: Duration) -> Result<()> {
    const STEP: Duration = Duration::from_millis(250);
    const CALM_STEPS: u32 = 4;
    // A step with one tick of CPU time is calm, because a server may have timers.
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

/// Runs a client against the server `pid`, and measures the CPU time that the server used for it.
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
    fn own_process() {
        let pid = std::process::id();
        // The block is larger than all other memory of the test process, and it is in use.
        let block = vec![1u8; 64 << 20];
        let own = memory(pid).unwrap();
        assert!(own.peak >= own.resident && own.resident >= own.anonymous);
        assert!(own.anonymous >= 64 << 20, "{own:?} and {} bytes", block.len());
        let before = open_files(pid).unwrap();
        let files: Vec<_> = (0..50).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        assert!(open_files(pid).unwrap() >= before + files.len() / 2, "{before}");
        let (start, spent) = (Instant::now(), cpu_time(pid).unwrap());
        while cpu_time(pid).unwrap() < spent + Duration::from_millis(50) {
            assert!(start.elapsed() < Duration::from_secs(60), "a busy thread needs no time");
        }
        assert!(memory(u32::MAX).is_err() && cpu_time(u32::MAX >> 1).is_err());
    }
}
