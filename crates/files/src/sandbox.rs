//! What a reader may do: use the socket that it has, and memory.
//!
//! The reader limits itself before it reads the first byte of a disk. From then on a parser that is
//! deceived by its input can compute for a while, and send nonsense to the server, which trusts
//! nothing of it.

use rustix::process::{Resource, Rlimit, setpriority_process, setrlimit};
use rustix::thread::set_no_new_privs;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::io;

/// Memory of a reader, as address space, in bytes.
pub const MEMORY: u64 = 256 << 20;
/// Processor time of a reader, in seconds. The server adds to it for content that was delivered.
pub const SECONDS: u64 = 30;

/// System calls of a reader: use of open descriptors, memory, and the end. None opens anything,
/// starts anything or sends a signal to another process.
fn allowed() -> Vec<i64> {
    let mut all = vec![
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_recvfrom,
        libc::SYS_sendto,
        libc::SYS_close,
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        libc::SYS_mprotect,
        libc::SYS_brk,
        libc::SYS_futex,
        libc::SYS_sched_yield,
        libc::SYS_sched_getaffinity,
        libc::SYS_getcpu,
        libc::SYS_clock_gettime,
        libc::SYS_getrandom,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigreturn,
        libc::SYS_sigaltstack,
        libc::SYS_restart_syscall,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ];
    all.sort_unstable();
    all
}

/// Checks that the process has no descriptors but the three standard ones.
///
/// # Errors
///
/// An error if it has: somebody forgot to close them, and the parsers could use them.
pub fn check_descriptors() -> io::Result<()> {
    let own = std::fs::read_dir("/proc/self/fd")?;
    let all = own.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    // The listing itself has one descriptor.
    match all.filter(|number| *number > 2).count() {
        0 | 1 => Ok(()),
        more => Err(io::Error::other(format!("the reader has {} descriptors too many", more - 1))),
    }
}

/// Limits the process for ever. Fails if a limit can't be set: the reader must not start then.
pub fn enter() -> io::Result<()> {
    // The file systems of guests are read beside the server's clients.
    let _ = setpriority_process(None, 19);
    let limit = |current, maximum| Rlimit { current, maximum };
    setrlimit(Resource::Core, limit(Some(0), Some(0)))?;
    setrlimit(Resource::Fsize, limit(Some(0), Some(0)))?;
    setrlimit(Resource::Nproc, limit(Some(0), Some(0)))?;
    setrlimit(Resource::As, limit(Some(MEMORY), Some(MEMORY)))?;
    // The server raises it, within what the process may have at most.
    setrlimit(Resource::Cpu, limit(Some(SECONDS), None))?;
    set_no_new_privs(true)?;
    filter()
}

/// Forbids all system calls but the allowed ones, for all threads. Another one ends the process.
fn filter() -> io::Result<()> {
    let rules = allowed().into_iter().map(|call| (call, Vec::new())).collect();
    let arch = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let filter = SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, arch);
    let program: BpfProgram = filter.and_then(TryInto::try_into).map_err(io::Error::other)?;
    seccompiler::apply_filter_all_threads(&program).map_err(io::Error::other)
}
