//! What a reader may do: use the socket that it has, and memory.
//!
//! The reader limits itself before it reads the first byte of a disk. From then on a parser that is
//! deceived by its input can compute until the server ends it, and send nonsense to the server,
//! which trusts nothing of it.

use rustix::process::{Resource, Rlimit, setpriority_process, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;
use std::io;

/// Memory of a reader, as address space, in bytes.
pub const MEMORY: u64 = 256 << 20;
/// Processor time of a reader for one request, in seconds. The server moves the limit for the next.
pub const SECONDS: u64 = 30;
/// What a reader may tell the kernel of its memory: that it is free, and the size of its pages.
const ADVICE: [i32; 4] = [libc::MADV_DONTNEED, libc::MADV_FREE, libc::MADV_HUGEPAGE, libc::MADV_NOHUGEPAGE];

/// System calls of a reader, whatever their arguments: use of open descriptors, memory, and the
/// end. None opens anything, starts anything, or sends or ignores a signal.
const ALLOWED: [i64; 22] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_close,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_gettid,
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
    // The server moves it. The signal at its end can't be ignored any more.
    setrlimit(Resource::Cpu, limit(Some(SECONDS), None))?;
    set_no_new_privs(true)?;
    // A server that runs as root gives none of its power away.
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    filter()
}

/// Returns the rule that an argument of a call has to obey.
fn rule(argument: u8, op: SeccompCmpOp, value: i32) -> io::Result<SeccompRule> {
    let value = u64::try_from(value).map_err(io::Error::other)?;
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value);
    SeccompRule::new(vec![condition.map_err(io::Error::other)?]).map_err(io::Error::other)
}

/// Forbids all system calls but the allowed ones, for all threads. Another one ends the process.
fn filter() -> io::Result<()> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.map(|call| (call, Vec::new())).into();
    // The standard library looks whether a descriptor that it closes is open.
    rules.insert(libc::SYS_fcntl, vec![rule(1, SeccompCmpOp::Eq, libc::F_GETFD)?]);
    // Memory never becomes a program.
    let no_program = || rule(2, SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64), 0);
    rules.insert(libc::SYS_mmap, vec![no_program()?]);
    rules.insert(libc::SYS_mprotect, vec![no_program()?]);
    let advice = ADVICE.map(|advice| rule(2, SeccompCmpOp::Eq, advice));
    rules.insert(libc::SYS_madvise, advice.into_iter().collect::<io::Result<_>>()?);
    let arch = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let filter = SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, arch);
    let program: BpfProgram = filter.and_then(TryInto::try_into).map_err(io::Error::other)?;
    seccompiler::apply_filter_all_threads(&program).map_err(io::Error::other)
}
