//! The memory allocator's settings.
//!
//! glibc gives each group of threads an arena, and an arena seldom gives anything back: after a
//! flood of connections the process would stay large. It reads its settings before the program
//! begins, so a program that was started without them starts itself anew, with the same process id.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Two: the threads of data paths wait for disks and networks more than for these.
const ARENAS: (&str, &str) = ("MALLOC_ARENA_MAX", "2");
/// Who set these wants something else.
const OTHERS: [&str; 2] = [ARENAS.0, "GLIBC_TUNABLES"];

/// Sees to it that the allocator has its settings. Where that can't be done the program goes on as
/// it is.
pub(crate) fn settle() {
    if !cfg!(target_env = "gnu") || OTHERS.iter().any(|name| std::env::var_os(name).is_some()) {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut arguments = std::env::args_os();
    let Some(name) = arguments.next() else { return };
    // Returns only where it failed: the program may have been replaced on disk.
    let _ = Command::new(program).arg0(name).args(arguments).env(ARENAS.0, ARENAS.1).exec();
}
