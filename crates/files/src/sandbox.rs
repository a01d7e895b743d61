//! What a reader may do: use the socket that it has, and memory.
//!
//! The reader limits itself before it reads the first byte of a disk. From then on a parser that is
//! deceived by its input can compute for a while, and send nonsense to the server, which trusts
//! nothing of it.

use rustix::process::{Resource, Rlimit, setpriority_process, setrlimit};
use rustix::thread::set_no_new_privs;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;
use std::io;

/// Memory of a reader, as address space, in bytes.
pub const MEMORY: u64 = 256 << 20;
/// Processor time of a reader, in seconds. The server adds to it for content that was delivered.
pub const SECONDS: u64 = 30;
/// Command of fcntl(2) that reads the flags of a descriptor.
const F_GETFD: u64 = libc::F_GETFD as u64;

/// System calls of a reader: use of open descriptors, memory, and the end. None opens anything,
/// starts anything or sends a signal to another process.
const ALLOWED: [i64; 27] = [
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

/// Closes all descriptors but the three standard ones. The program that started the server may have
/// left some open that the server does not know.
///
/// # Errors
///
/// An error if the open descriptors can't be found.
pub fn close_descriptors() -> io::Result<()> {
    let all = std::fs::read_dir("/proc/self/fd")?;
    let numbers: Vec<i32> = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        // That of the listing itself is closed already.
        let _ = nix::unistd::close(number);
    }
    Ok(())
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
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.map(|call| (call, Vec::new())).into();
    // The standard library looks whether a descriptor that it closes is open.
    let reads_flags = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, F_GETFD);
    let reads_flags = SeccompRule::new(vec![reads_flags.map_err(io::Error::other)?]);
    rules.insert(libc::SYS_fcntl, vec![reads_flags.map_err(io::Error::other)?]);
    let arch = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let filter = SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, arch);
    let program: BpfProgram = filter.and_then(TryInto::try_into).map_err(io::Error::other)?;
    seccompiler::apply_filter_all_threads(&program).map_err(io::Error::other)
}
